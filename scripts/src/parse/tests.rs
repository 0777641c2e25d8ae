//! Real forms of the language, what is refused by name, and that nothing makes the parser panic.

use proptest::prelude::*;

use super::*;
use crate::script::{
    ACK, AE, CWR, ECE, Expression, PSH, PacketBody, PacketDirection, SYN, Sequence, TcpOption,
};
use crate::script::{CallLine, Icmp, Quoted, ScriptPacket, ScriptSegment, Tos};

fn script(text: &str) -> Script {
    parse(text.as_bytes(), &mut Definitions::default()).expect("a script")
}

fn problem(text: &str) -> ParseError {
    parse(text.as_bytes(), &mut Definitions::default()).expect_err("no script")
}

fn only_event(text: &str) -> ScriptEvent {
    let mut events = script(text).events;
    assert_eq!(events.len(), 1, "{text}");
    events.remove(0)
}

fn packet(text: &str) -> ScriptPacket {
    match only_event(&format!("+0 {text}")).action {
        ScriptAction::Packet(packet) => packet,
        other => panic!("{text} is {other:?}"),
    }
}

fn segment(text: &str) -> ScriptSegment {
    match packet(text).body {
        PacketBody::Tcp(segment) => segment,
        other => panic!("{text} is {other:?}"),
    }
}

fn call(text: &str) -> CallLine {
    match only_event(text).action {
        ScriptAction::Call(call) => call,
        other => panic!("{text} is {other:?}"),
    }
}

#[test]
fn times_have_all_their_forms() {
    let when = |time: &str| only_event(&format!("{time} > . 1:1(0) ack 1")).when;
    let absolute = |at_us, until_us| EventTime::Absolute { at_us, until_us };
    let relative = |at_us, until_us| EventTime::Relative { at_us, until_us };
    assert_eq!(when("0"), absolute(0, None));
    assert_eq!(when("0.00"), absolute(0, None));
    assert_eq!(when("+.1"), relative(100_000, None));
    assert_eq!(when("+ 0.25"), relative(250_000, None));
    assert_eq!(when("12.000001"), absolute(12_000_001, None));
    assert_eq!(when("+0.0000019"), relative(1, None));
    assert_eq!(when("*"), EventTime::Any);
    assert_eq!(when("1.5~1.8"), absolute(1_500_000, Some(1_800_000)));
    assert_eq!(when("+0~+.1"), relative(0, Some(100_000)));
}

#[test]
fn a_range_belongs_to_outbound_packets_and_runs_forward() {
    assert_eq!(problem("+0~+1 < . 1:1(0) ack 1 win 5").problem, ScriptProblem::RangeNotAllowed);
    assert_eq!(problem("* close(3) = 0").problem, ScriptProblem::RangeNotAllowed);
    assert_eq!(problem("+2~+1 > . 1:1(0) ack 1").problem, ScriptProblem::BackwardRange);
    assert_eq!(problem("2...1 close(3) = 0").problem, ScriptProblem::BackwardRange);
}

#[test]
fn a_segment_with_everything() {
    let text = "> [ect0, flowlabel 0x3] 80 > 1234 PEW. 1:1001(1000) ack 7 win 257 urg 9 \
                <nop,nop,TS val 1 ecr 2,sack 1:2 3:4>";
    let packet = packet(text);
    assert_eq!(packet.direction, PacketDirection::Outbound);
    assert_eq!(packet.ip.tos, Tos::Ecn(2));
    assert_eq!(packet.ip.flow_label, Some(3));
    assert_eq!(packet.ports, Some((80, 1234)));
    let PacketBody::Tcp(segment) = packet.body else { panic!("no segment") };
    assert_eq!(segment.flags.bits, PSH | ECE | CWR | ACK);
    assert_eq!((segment.seq, segment.payload_len), (Sequence::Relative(1), 1000));
    assert_eq!((segment.ack, segment.window, segment.urgent), (7, Some(257), 9));
    let timestamps = TcpOption::Timestamps { val: Some(1), ecr: Some(2), absolute_ecr: false };
    let sack = TcpOption::Sack(vec![(1, 2), (3, 4)]);
    assert_eq!(segment.options, Some(vec![TcpOption::Nop, TcpOption::Nop, timestamps, sack]));
}

#[test]
fn flags_of_both_dialects() {
    assert_eq!(segment("> SEWA 0:0(0) <...>").flags.bits, SYN | ECE | CWR | AE);
    assert_eq!(segment("> - 0:0(0)").flags.bits, 0);
    assert_eq!(segment("> . 1:1(0) ack 1").flags.bits, ACK);
    let counted = segment("> P.5 1:2(1) ack 1");
    assert_eq!((counted.flags.bits, counted.flags.ace), (PSH | ACK, Some(5)));
    assert!(matches!(problem("+0 > X 1:1(0)").problem, ScriptProblem::Expected { .. }));
}

#[test]
fn numbers_of_the_freebsd_dialect() {
    let absolute = segment("> . 5:5(0)! ack 1 <nop,nop,TS val ... ecr 7!>");
    assert_eq!(absolute.seq, Sequence::Absolute(5));
    let timestamps = TcpOption::Timestamps { val: None, ecr: Some(7), absolute_ecr: true };
    assert_eq!(absolute.options.as_deref().and_then(<[_]>::last), Some(&timestamps));
    assert_eq!(segment("> . ...(10) ack 1").seq, Sequence::Any);
    assert_eq!(segment("< S 0:0(0) win 1 <mss 1000>/udp(1 > 2)").encapsulation, Some((1, 2)));
}

#[test]
fn options_of_both_dialects() {
    let options = |text: &str| segment(text).options;
    assert_eq!(options("> . 1:1(0)"), Some(vec![]));
    assert_eq!(options("> . 1:1(0) <...>"), None);
    let syn = options("< S 0:0(0) win 5 <mss 1460, sackOK, eol, FO ,wscale 7,FO 0a0B>");
    let expected = vec![
        TcpOption::Mss(Some(1460)),
        TcpOption::SackPermitted,
        TcpOption::Eol,
        TcpOption::FastOpen(vec![]),
        TcpOption::WindowScale(Some(7)),
        TcpOption::FastOpen(vec![0x0a, 0x0b]),
    ];
    assert_eq!(syn, Some(expected));
    let counters = options("> . 1:1(0) <ECN e1b 1 ceb 2 e0b 3,nop>");
    let expected = TcpOption::AccurateEcn { kind: 174, counters: vec![1, 2, 3] };
    assert_eq!(counters, Some(vec![expected, TcpOption::Nop]));
    assert_eq!(options("> S 0:0(0) <wscale *>"), Some(vec![TcpOption::WindowScale(None)]));
    let why = problem("+0 < S 0:0(0) win 1 <wscale *>").problem;
    assert_eq!(why, ScriptProblem::OutboundOnly("an option's value of `*`"));
    let why = problem("+0 < S 0:0(0) win 1 <sack 1:2 3:4 5:6 7:8,TS val 1 ecr 2>").problem;
    assert_eq!(why, ScriptProblem::TooManyOptions(44));
}

#[test]
fn datagrams_and_icmp() {
    assert_eq!(packet("< udp (100)").body, PacketBody::Udp(100));
    assert_eq!(packet("> 5 > 6 udp (1)").ports, Some((5, 6)));
    let text = "< icmp unreachable frag_needed mtu 1200 [1:1001(1000)]";
    let expected = Icmp {
        kind: "unreachable".to_owned(),
        code: Some("frag_needed".to_owned()),
        mtu: Some(1200),
        id: None,
        quoted: Quoted::Tcp { seq: 1, payload_len: 1000, encapsulation: None },
    };
    assert_eq!(packet(text).body, PacketBody::Icmp(expected));
    let PacketBody::Icmp(old) =
        packet("< [1:1001(1000)] icmp unreachable frag_needed mtu 1200").body
    else {
        panic!("no ICMP")
    };
    assert_eq!(old.quoted, Quoted::Tcp { seq: 1, payload_len: 1000, encapsulation: None });
    let PacketBody::Icmp(plain) = packet("< icmp source_quench").body else { panic!("no ICMP") };
    assert_eq!((plain.code, plain.mtu), (None, None));
    let PacketBody::Icmp(echo) = packet("< icmp echo_request id 7").body else { panic!("no ICMP") };
    assert_eq!(echo.id, Some(7));
}

#[test]
fn calls_keep_their_arguments_as_written() {
    let line = call("+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)");
    assert_eq!(line.name, "connect");
    let arguments = [Expression::Integer(3), Expression::Ellipsis, Expression::Ellipsis];
    assert_eq!(line.arguments, arguments);
    assert_eq!(
        (line.result, line.errno.as_deref()),
        (Expression::Integer(-1), Some("EINPROGRESS"))
    );
    let line = call("1.00...16.00 accept(3, ..., ...) = 4");
    assert_eq!(line.end_us, Some(16_000_000));
    let line = call("+0 fcntl(3, F_GETFL) = 0x02 (flags O_RDWR)");
    assert_eq!((line.result, line.errno), (Expression::Integer(2), None));
}

#[test]
fn structures_of_any_name_are_arguments() {
    let line = call("+0 setsockopt(4, SOL_SOCKET, SO_LINGER, {onoff=1, linger=0}, 8) = 0");
    let Expression::Structure(fields) = &line.arguments[3] else { panic!("no structure") };
    assert_eq!(fields[0], Expression::Field("onoff".into(), Expression::Integer(1).into()));
    let text = "+0 sendmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 5}], msg_flags=0}, 0) = 5";
    let Expression::Structure(fields) = &call(text).arguments[1] else { panic!("no structure") };
    assert!(matches!(&fields[1], Expression::Field(name, _) if name == "msg_iov"));
    let text = "+0 bind(3, {sa_family = AF_INET, sin_port = htons(80), \
                sin_addr = inet_addr(\"1.2.3.4\")}, ...) = 0";
    assert_eq!(call(text).arguments.len(), 3);
    let text = "+0 write(4, \"ab\" \"c\\x41\\n\"..., 5) = 5";
    assert_eq!(call(text).arguments[1], Expression::Text(b"abcA\n".to_vec()));
}

#[test]
fn commands_code_comments_and_options_stand_where_they_may() {
    let text = "// linux: differs: it is another system\n--ip_version=ipv6 --define=CC=\"reno\"\n\
                /* a\n comment */ `sysctl -q a=1\nb`\n# another\n0 close(3) = 0\n\
                +0 %{ assert x == {1:2} }%\n`cleanup`\n";
    let script = script(text);
    assert_eq!(script.settings[0].name, "ip_version");
    assert_eq!(script.settings[1].value, "CC=\"reno\"");
    assert_eq!(script.remarks[0].reason, "it is another system");
    assert_eq!(script.remarks[0].system, "linux");
    let kinds: Vec<u32> = script.events.iter().map(|event| event.line).collect();
    assert_eq!(kinds, [4, 7, 8, 9]);
    assert_eq!(script.events[2].action, ScriptAction::Code("assert x == {1:2}".to_owned()));
    assert_eq!(script.events[3].action, ScriptAction::Command("cleanup".to_owned()));
}

#[test]
fn definitions_replace_words() {
    let mut definitions = Definitions::default();
    assert!(definitions.define("TFO_COOKIE=3021b9d8"));
    assert!(definitions.define("CLEAN=`rm`"));
    assert!(!definitions.define("nothing"));
    let text = b"--define=CC=\"reno\"\n0 f(CC) = 0\n+0 CLEAN\n\
                 +0 < S 0:0(0) win 1 <FO TFO_COOKIE,nop,nop>";
    let script = parse(text, &mut definitions).expect("a script");
    let ScriptAction::Call(line) = &script.events[0].action else { panic!("no call") };
    assert_eq!(line.arguments, [Expression::Text(b"reno".to_vec())]);
    assert_eq!(script.events[1].action, ScriptAction::Command("rm".to_owned()));
    let ScriptAction::Packet(packet) = &script.events[2].action else { panic!("no packet") };
    let PacketBody::Tcp(segment) = &packet.body else { panic!("no segment") };
    let options = segment.options.as_ref().expect("options");
    assert_eq!(options[0], TcpOption::FastOpen(vec![0x30, 0x21, 0xb9, 0xd8]));
}

#[test]
fn errors_say_where_and_what() {
    let error = problem("0 close(3) = 0\n+0 > S 1:5(3)");
    assert_eq!((error.line, error.column), (2, 8));
    assert_eq!(error.to_string(), "2:8: sequence numbers 1:5 do not span 3 bytes");
    let error = problem("0 > . 1:1(0) ack 1 win 65536");
    assert_eq!(error.to_string(), "1:24: window 65536 is out of range (0 to 65535)");
    assert_eq!(problem("0 `never").problem, ScriptProblem::Unclosed("a shell command"));
    assert_eq!(problem("99999999 close(3) = 0").problem, ScriptProblem::TooMuch("a time"));
}

#[test]
fn options_without_a_name_have_a_number() {
    let options = |text: &str| segment(&format!("> S 0:0(0) <{text}>")).options.expect("a list");
    let other = |kind: u8, data: &[u8]| TcpOption::Other { kind, data: data.to_vec() };
    assert_eq!(
        options("gen-77,nop,gen-78 0102"),
        [other(77, &[]), TcpOption::Nop, other(78, &[1, 2])]
    );
    assert_eq!(options("exp-e2d4 99"), [other(254, &[0xe2, 0xd4, 0x99])]);
    assert_eq!(
        options("exp-tarr 5,exp-tarr"),
        [other(254, &[0, 0xac, 10]), other(254, &[0, 0xac])]
    );
    assert_eq!(options("EXP-FO 0102"), [TcpOption::FastOpenExperiment(vec![1, 2])]);
    assert_eq!(
        options("AccECN1 ee1b 1 eceb 0"),
        [TcpOption::AccurateEcn { kind: 174, counters: vec![1, 0] }]
    );
    let experiment = options("exp-AccECN0 EE0B 1 ECEB 2 EE1B 3");
    assert_eq!(experiment, [other(254, &[0xac, 0xc0, 0, 0, 1, 0, 0, 2, 0, 0, 3])]);
    for option in options("gen-77,gen-78 0102,exp-e2d4 99") {
        assert_eq!(options(&option.to_string()), [option]);
    }
    assert!(problem("0 > S 0:0(0) <gen-300>").to_string().contains("the number of a TCP option"));
}

#[test]
fn unsupported_syntax_is_refused_by_name() {
    for (text, what) in [
        ("0 < sctp: INIT[]", "SCTP"),
        ("0 < udplite (1, 2)", "UDP-Lite"),
        ("0 < gre: . 1:1(0) ack 1 win 1", "encapsulation in GRE"),
        ("0 < ipv4 1.2.3.4 > 5.6.7.8: . 1:1(0) win 1", "encapsulation in IPv4"),
        ("0 > S 0:0(0) <exp-xyz 1>", "TCP option exp-xyz"),
        ("0 < ipv6 2::2 > 1::1: gre: . 1:1(0) ack 1 win 1", "encapsulation in IPv6"),
        ("0 < mpls (label 1, tc 0, [S], ttl 2): . 1:1(0) win 1", "encapsulation in MPLS"),
        ("0 > S 0:0(0) <mp_capable v1 flags[flag_h] nokey>", "TCP option mp_capable"),
        ("0 < . 1:1(0) win 5 {mut tcp mss}", "mutation of packets"),
    ] {
        assert_eq!(problem(text).problem, ScriptProblem::Unsupported(what.to_owned()), "{text}");
    }
}

#[test]
fn deep_and_long_input_ends_in_an_error() {
    let deep = format!("0 f({}) = 0", "[".repeat(100_000));
    assert_eq!(problem(&deep).problem, ScriptProblem::TooMuch("an expression"));
    let wide = format!("0 f({}1) = 0", "1|".repeat(100_000));
    assert_eq!(problem(&wide).problem, ScriptProblem::TooMuch("an expression"));
    let long = vec![b' '; SCRIPT_BYTES_MAX + 1];
    let error = parse(&long, &mut Definitions::default()).expect_err("too long");
    assert_eq!(error.problem, ScriptProblem::TooMuch("the script"));
}

/// Fragments of scripts, so that random ones get past the first character.
const PIECES: &[&str] = &[
    "0",
    "+",
    ".1",
    "...",
    "~",
    "*",
    "<",
    ">",
    " ",
    "\n",
    "S",
    "P.",
    ".",
    "-",
    "1:1(0)",
    "ack",
    "win",
    "urg",
    "1",
    "0x7",
    "<mss 1460",
    ",",
    "nop",
    "sack 1:2",
    "TS val 1 ecr 2",
    ">",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "=",
    "|",
    "\"",
    "`",
    "%{",
    "}%",
    "//",
    "/*",
    "*/",
    "#",
    "--",
    "socket",
    "udp",
    "icmp",
    "ect0",
    "tos",
    "flowlabel",
    "FO",
    "ECN e0b",
    "!",
    "/udp(",
    "~+",
    "9999999999999",
    "\\",
    "mtu",
    "id",
    "a=b",
];

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes, &mut Definitions::default());
    }

    #[test]
    fn no_pieces_make_the_parser_panic(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60),
    ) {
        let _ = parse(pieces.concat().as_bytes(), &mut Definitions::default());
    }

    #[test]
    fn a_segment_reads_back_what_it_displays(
        bits in 0_u16..0x200,
        seq in any::<u32>(),
        len in any::<u16>(),
        ack in any::<u32>(),
        window in prop::option::of(any::<u16>()),
        urgent in any::<u16>(),
        options in prop::option::of(prop::collection::vec(prop::sample::select(vec![
            TcpOption::Nop,
            TcpOption::Mss(Some(1460)),
            TcpOption::WindowScale(Some(7)),
            TcpOption::SackPermitted,
            TcpOption::Sack(vec![(1, 2)]),
            TcpOption::FastOpen(vec![1, 0xab]),
        ]), 0..4)),
    ) {
        let flags = crate::script::TcpFlags { bits, ace: None };
        let ack = if bits & ACK == 0 { 0 } else { ack };
        let seq = Sequence::Relative(seq);
        let segment = ScriptSegment {
            flags, seq, payload_len: len, ack, window, urgent, options, encapsulation: None,
        };
        let shown = format!("> {segment}");
        prop_assert_eq!(self::segment(&shown), segment);
    }
}
