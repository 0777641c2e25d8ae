//! Whether a packet is the one that the script expects.
//!
//! In: two packets in the script's numbers. Out: the first field that differs. What the script
//! leaves out (`win`, the IP fields) is not looked at; options have to be the same in the same
//! order.

use crate::conversation::ace;
use crate::dialect::Dialect;
use crate::script::{
    ACK, AE, CWR, ECE, FIN, PSH, PacketBody, RST, SYN, ScriptPacket, ScriptSegment, TcpOption, Tos,
    URG,
};
use crate::settings::ScriptSettings;
use crate::{icmp, script};

const ECN_MASK: u8 = 3;

/// None when the packet is as expected.
pub(crate) fn difference(
    expected: &ScriptPacket,
    actual: &ScriptPacket,
    settings: &ScriptSettings,
) -> Option<String> {
    ip(expected, actual).or_else(|| match (&expected.body, &actual.body) {
        (PacketBody::Tcp(expected), PacketBody::Tcp(actual)) => segment(expected, actual, settings),
        (PacketBody::Udp(expected), PacketBody::Udp(actual)) => {
            field("UDP payload", expected, actual)
        }
        (PacketBody::Icmp(expected), PacketBody::Icmp(actual)) => {
            icmp_message(expected, actual, settings.remote_ip.is_ipv6())
        }
        _ => Some("another protocol".to_owned()),
    })
}

fn field<T: PartialEq + std::fmt::Display>(name: &str, expected: &T, actual: &T) -> Option<String> {
    (expected != actual).then(|| format!("{name}: expected {expected}, actual {actual}"))
}

fn ip(expected: &ScriptPacket, actual: &ScriptPacket) -> Option<String> {
    let Tos::Byte(tos) = actual.ip.tos else { return None };
    let ecn = tos & ECN_MASK;
    let wrong_tos = match expected.ip.tos {
        Tos::Any => None,
        Tos::Ecn(bits) => field("ECN bits of the IP header", &bits, &ecn),
        Tos::EitherEct => (ecn != 1 && ecn != 2)
            .then(|| format!("ECN bits of the IP header: expected 1 or 2, actual {ecn}")),
        Tos::Byte(byte) => field("tos", &byte, &tos),
    };
    wrong_tos
        .or_else(|| match (expected.ip.ttl, actual.ip.ttl) {
            (Some(expected), Some(actual)) => field("ttl", &expected, &actual),
            _ => None,
        })
        .or_else(|| match (expected.ip.flow_label, actual.ip.flow_label) {
            (Some(expected), Some(actual)) => field("flow label", &expected, &actual),
            _ => None,
        })
}

fn segment(
    expected: &ScriptSegment,
    actual: &ScriptSegment,
    settings: &ScriptSettings,
) -> Option<String> {
    flags(expected, actual)
        .or_else(|| match (expected.seq, actual.seq) {
            (script::Sequence::Any, _) => None,
            (expected, actual) => (expected != actual).then(|| {
                format!("sequence number: expected {}, actual {}", number(expected), number(actual))
            }),
        })
        .or_else(|| field("payload", &expected.payload_len, &actual.payload_len))
        .or_else(|| field("acknowledgment number", &expected.ack, &actual.ack))
        .or_else(|| match (expected.window, actual.window) {
            (Some(expected), Some(actual)) => field("window", &expected, &actual),
            _ => None,
        })
        .or_else(|| field("urgent pointer", &expected.urgent, &actual.urgent))
        .or_else(|| options(expected.options.as_deref()?, actual.options.as_deref()?, settings))
}

fn number(sequence: script::Sequence) -> String {
    match sequence {
        script::Sequence::Relative(seq) => seq.to_string(),
        script::Sequence::Absolute(seq) => format!("{seq}!"),
        script::Sequence::Any => "any".to_owned(),
    }
}

fn flags(expected: &ScriptSegment, actual: &ScriptSegment) -> Option<String> {
    const NAMES: [(&str, u16); 9] = [
        ("FIN", FIN),
        ("SYN", SYN),
        ("RST", RST),
        ("PSH", PSH),
        ("ACK", ACK),
        ("URG", URG),
        ("ECE", ECE),
        ("CWR", CWR),
        ("AE", AE),
    ];
    let (bits, live) = (expected.flags.bits, actual.flags.bits);
    if let Some(counter) = expected.flags.ace
        && let Some(difference) = field("ACE", &counter, &ace(live))
    {
        return Some(difference);
    }
    let skipped = if expected.flags.ace.is_some() { ECE | CWR | AE } else { 0 };
    let differs = |bit: u16| bit & skipped == 0 && (bits ^ live) & bit != 0;
    let (name, bit) = NAMES.into_iter().find(|&(_, bit)| differs(bit))?;
    let set = |bits: u16| if bits & bit != 0 { "set" } else { "not set" };
    Some(format!("{name}: expected {}, actual {}", set(bits), set(live)))
}

fn options(
    expected: &[TcpOption],
    actual: &[TcpOption],
    settings: &ScriptSettings,
) -> Option<String> {
    // Zeros at the end are padding, written or not.
    let trim = |options: &[TcpOption]| {
        let padding = options.iter().rev().take_while(|it| **it == TcpOption::Eol).count();
        options[..options.len() - padding].to_vec()
    };
    let (mut expected, mut actual) = (trim(expected), trim(actual));
    if settings.dialect == Dialect::FreeBsd {
        // Where an option stands is each system's choice (RFC 9293, section 3.1).
        expected = in_one_order(&expected);
        actual = in_one_order(&actual);
    }
    let pairs = expected.iter().zip(&actual);
    if expected.len() != actual.len() || pairs.clone().any(|(a, b)| !same_kind(a, b)) {
        return Some("other TCP options, or in another order".to_owned());
    }
    pairs.into_iter().find_map(|(expected, actual)| option(expected, actual, settings))
}

/// Without padding, and by kind.
fn in_one_order(options: &[TcpOption]) -> Vec<TcpOption> {
    let is_padding = |it: &&TcpOption| !matches!(it, TcpOption::Nop | TcpOption::Eol);
    let mut ordered: Vec<TcpOption> = options.iter().filter(is_padding).cloned().collect();
    ordered.sort_by_key(TcpOption::kind);
    ordered
}

fn same_kind(expected: &TcpOption, actual: &TcpOption) -> bool {
    match (expected, actual) {
        (TcpOption::AccurateEcn { kind: a, .. }, TcpOption::AccurateEcn { kind: b, .. })
        | (TcpOption::Other { kind: a, .. }, TcpOption::Other { kind: b, .. }) => a == b,
        _ => std::mem::discriminant(expected) == std::mem::discriminant(actual),
    }
}

fn option(expected: &TcpOption, actual: &TcpOption, settings: &ScriptSettings) -> Option<String> {
    match (expected, actual) {
        (TcpOption::Mss(None), _) | (TcpOption::WindowScale(None), _) => None,
        (
            TcpOption::Timestamps { val, ecr, .. },
            TcpOption::Timestamps { val: actual_val, ecr: actual_ecr, .. },
        ) => timestamps((*val, *ecr), (*actual_val, *actual_ecr), settings),
        (expected, actual) => (expected != actual)
            .then(|| format!("TCP option: expected {expected}, actual {actual}")),
    }
}

/// Compared only if the script states the length of a tick.
fn timestamps(
    expected: (Option<u32>, Option<u32>),
    actual: (Option<u32>, Option<u32>),
    settings: &ScriptSettings,
) -> Option<String> {
    if settings.timestamp_tick_us == 0 {
        return None;
    }
    if let (Some(expected), Some(actual)) = (expected.0, actual.0) {
        let ticks = i64::from(actual.wrapping_sub(expected).cast_signed());
        if (ticks * settings.timestamp_tick_us).abs() > settings.tolerance_us {
            return field("TSval", &expected, &actual);
        }
    }
    match (expected.1, actual.1) {
        (Some(expected), Some(actual)) => field("TSecr", &expected, &actual),
        _ => None,
    }
}

fn icmp_message(expected: &script::Icmp, actual: &script::Icmp, is_ipv6: bool) -> Option<String> {
    let numbers = |it: &script::Icmp| icmp::numbers(is_ipv6, &it.kind, it.code.as_deref());
    let mtu = match (expected.mtu, actual.mtu) {
        (Some(expected), actual) => field("MTU", &expected, &actual.unwrap_or(0)),
        (None, _) => None,
    };
    let is_other = numbers(expected) != numbers(actual);
    is_other.then(|| "another ICMP message".to_owned()).or(mtu)
}
