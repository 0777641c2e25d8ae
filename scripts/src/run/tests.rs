//! The evaluator on a system that is made up: it answers calls and sends what a test put into it.

use crate::dialect::Dialect;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::knobs::Knob;
use crate::parse::{Definitions, parse};
use crate::script::{ACK, SYN, TcpOption};
use crate::system::{Call, Injected, Returned, SentPacket};
use crate::wire::tcp::TcpHeader;
use crate::wire::{self, ChecksumTrust, PacketTransport, emit};

const ISN: u32 = 0xffff_fff0;

/// A system in virtual time that does what the test has planned.
#[derive(Default)]
struct Planned {
    now_us: i64,
    sent: VecDeque<SentPacket>,
    /// What calls return, and when.
    returns: VecDeque<(Returned, i64)>,
    calls: Vec<Call>,
    injected: Vec<IpPacket>,
    knobs: Vec<Knob>,
    /// It leaves checksums and the cutting of trains to a device.
    is_offloading: bool,
}

impl System for Planned {
    fn checksums(&self) -> ChecksumTrust {
        if self.is_offloading { ChecksumTrust::Offloaded } else { ChecksumTrust::Verified }
    }

    fn set_knob(&mut self, knob: &Knob) -> Result<KnobResult, SystemError> {
        self.knobs.push(knob.clone());
        Ok(KnobResult::Done)
    }

    fn begin(&mut self) -> Result<(), SystemError> {
        Ok(())
    }

    fn now_us(&mut self) -> i64 {
        self.now_us
    }

    fn wait_until_us(&mut self, at_us: i64) -> Result<(), SystemError> {
        self.now_us = self.now_us.max(at_us);
        Ok(())
    }

    fn start_call(&mut self, call: Call) -> Result<(), SystemError> {
        self.calls.push(call);
        Ok(())
    }

    fn await_call(&mut self, until_us: i64) -> Result<Option<(Returned, i64)>, SystemError> {
        let (returned, at_us) =
            self.returns.pop_front().unwrap_or_else(|| (Returned::success(0), self.now_us));
        if at_us > until_us {
            self.now_us = until_us;
            return Ok(None);
        }
        self.now_us = self.now_us.max(at_us);
        Ok(Some((returned, at_us)))
    }

    fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        self.injected
            .push(wire::parse(packet.bytes, ChecksumTrust::Verified).expect("a good packet"));
        Ok(())
    }

    fn next_sent(&mut self, until_us: i64) -> Result<Option<SentPacket>, SystemError> {
        let sent = self.sent.pop_front().filter(|sent| sent.at_us <= until_us);
        self.now_us = self.now_us.max(sent.as_ref().map_or(until_us, |sent| sent.at_us));
        Ok(sent)
    }
}

fn header(seq: u32, ack: u32, flags: u16) -> TcpHeader {
    TcpHeader {
        source_port: 8080,
        destination_port: FIRST_REMOTE_PORT,
        seq,
        ack,
        flags,
        reserved: 0,
        window: 65_535,
        urgent: 0,
        options: Vec::new(),
        payload: Vec::new(),
    }
}

fn sent(at_us: i64, header: TcpHeader) -> SentPacket {
    let packet = IpPacket {
        source: IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)),
        destination: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        tos: 0,
        flow_label: 0,
        ttl: 64,
        payload: PacketTransport::Tcp(header),
    };
    SentPacket { at_us, bytes: emit(&packet) }
}

fn outcome(text: &str, system: &mut Planned) -> ScriptOutcome {
    let script = parse(text.as_bytes(), &mut Definitions::default()).expect("a script");
    let settings = ScriptSettings::new(&script.settings, Dialect::Linux).expect("settings");
    run(&script, settings, system)
}

fn failure(text: &str, system: &mut Planned) -> ScriptFailure {
    match outcome(text, system).verdict {
        ScriptVerdict::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// A listener, a SYN, its answer and the third segment.
const OPENED: &str = "0 socket(..., SOCK_STREAM, 6) = 3\n+0 bind(3, ..., ...) = 0\n\
                      +0 listen(3, 1) = 0\n+0 < S 7:7(0) win 100\n+0 > S. 0:0(0) ack 8\n\
                      +.1 < . 1:1(0) ack 1 win 100\n";

fn opened() -> Planned {
    let mut system = Planned::default();
    system.returns.push_back((Returned::success(9), 0));
    system.sent.push_back(sent(0, header(ISN, 8, SYN | ACK)));
    system
}

#[test]
fn numbers_count_from_the_initial_ones_across_their_end() {
    let mut system = opened();
    let mut data = header(ISN.wrapping_add(1), 8, ACK);
    data.payload = vec![0; 20];
    system.sent.push_back(sent(100_000, data));
    let text = format!("{OPENED}+0 > . 1:21(20) ack 1\n+0 < . 1:1(0) ack 21 win 100\n");
    assert_eq!(outcome(&text, &mut system).verdict, ScriptVerdict::Passed);
    let PacketTransport::Tcp(last) = &system.injected[2].payload else { panic!("no segment") };
    assert_eq!((last.seq, last.ack), (8, ISN.wrapping_add(21)));
}

#[test]
fn a_second_life_of_the_same_ports_has_numbers_of_its_own() {
    let mut system = opened();
    system.sent.push_back(sent(100_000, header(5000, 91, SYN | ACK)));
    let text = format!(
        "{OPENED}+0 < R 1:1(0) win 0\n+0 < S 90:90(0) win 9\n+0 > S. 0:0(0) ack 91\n\
         +0 < . 1:1(0) ack 1 win 9\n"
    );
    assert_eq!(outcome(&text, &mut system).verdict, ScriptVerdict::Passed);
    let PacketTransport::Tcp(last) = &system.injected[4].payload else { panic!("no segment") };
    assert_eq!((last.seq, last.ack), (91, 5001));
}

#[test]
fn descriptors_are_the_scripts_and_not_the_systems() {
    let mut system = opened();
    assert_eq!(outcome(OPENED, &mut system).verdict, ScriptVerdict::Passed);
    assert_eq!(system.calls[2], Call::Listen { fd: 9, backlog: 1 });
}

#[test]
fn a_train_of_segments_makes_one_expected_packet() {
    for (lens, is_one) in [(vec![10, 10, 5], true), (vec![10, 5, 10], false)] {
        let mut system = opened();
        let mut seq = ISN.wrapping_add(1);
        for len in lens {
            let mut data = header(seq, 8, ACK);
            data.payload = vec![0; len];
            seq = seq.wrapping_add(data.payload.len() as u32);
            system.sent.push_back(sent(100_000, data));
        }
        let text = format!("{OPENED}+0 > . 1:26(25) ack 1\n");
        let is_passed = outcome(&text, &mut system).verdict == ScriptVerdict::Passed;
        assert_eq!(is_passed, is_one);
    }
}

#[test]
fn a_train_is_cut_only_where_the_system_leaves_that_to_a_device() {
    for is_offloading in [true, false] {
        let mut system = opened();
        system.is_offloading = is_offloading;
        let mut data = header(ISN.wrapping_add(1), 8, ACK | crate::script::PSH);
        data.payload = vec![0; 25];
        system.sent.push_back(sent(100_000, data));
        let text = format!("{OPENED}+0 > . 1:11(10) ack 1\n+0 > P. 11:26(15) ack 1\n");
        let is_passed = outcome(&text, &mut system).verdict == ScriptVerdict::Passed;
        assert_eq!(is_passed, is_offloading);
    }
}

#[test]
fn a_packet_too_early_or_too_late_is_a_failure_that_names_both_times() {
    let mut system = opened();
    system.sent.push_back(sent(190_000, header(ISN.wrapping_add(1), 8, ACK)));
    let failed = failure(&format!("{OPENED}+.05 > . 1:1(0) ack 1\n"), &mut system);
    assert_eq!(failed.line, 7);
    assert_eq!(
        failed.what,
        "the packet was sent at 0.190000 s, expected at 0.150000 s, tolerance 0.006250 s"
    );
    assert_eq!(failed.packets.len(), 2);
    for (time, is_fine) in [("+.03~+.1", true), ("+.1~+.2", false), ("*", true)] {
        let mut system = opened();
        system.sent.push_back(sent(160_000, header(ISN.wrapping_add(1), 8, ACK)));
        let verdict = outcome(&format!("{OPENED}{time} > . 1:1(0) ack 1\n"), &mut system).verdict;
        assert_eq!(verdict == ScriptVerdict::Passed, is_fine, "{time}");
    }
}

#[test]
fn a_missing_packet_is_a_failure() {
    let failed = failure(&format!("{OPENED}+0 > . 1:1(0) ack 1\n"), &mut opened());
    assert_eq!(failed.what, "no packet was sent");
    assert_eq!(failed.packets, ["script packet: 0.100000 > . 1:1(0) ack 1"]);
}

#[test]
fn echoed_timestamps_are_the_live_ones() {
    let timestamps =
        |val, ecr| TcpOption::Timestamps { val: Some(val), ecr: Some(ecr), absolute_ecr: false };
    let mut system = Planned::default();
    let mut answer = header(ISN, 8, SYN | ACK);
    answer.options = vec![TcpOption::Nop, TcpOption::Nop, timestamps(123_456, 5)];
    system.sent.push_back(sent(0, answer));
    let text = "0 < S 7:7(0) win 100 <nop,nop,TS val 5 ecr 0>\n\
                +0 > S. 0:0(0) ack 8 <nop,nop,TS val 100 ecr 5>\n\
                +0 < . 1:1(0) ack 1 win 9 <nop,nop,TS val 6 ecr 100>\n";
    assert_eq!(outcome(text, &mut system).verdict, ScriptVerdict::Passed);
    let PacketTransport::Tcp(last) = &system.injected[1].payload else { panic!("no segment") };
    assert_eq!(last.options[2], timestamps(6, 123_456));
    let unknown = format!("{text}+0 < . 1:1(0) ack 1 win 9 <nop,nop,TS val 6 ecr 101>\n");
    system.sent.push_back(sent(0, header(ISN, 8, SYN | ACK)));
    assert!(matches!(outcome(&unknown, &mut system).verdict, ScriptVerdict::Failed(_)));
}

#[test]
fn blocking_call_ends_on_time_among_events() {
    let text = |end: &str| {
        format!("{OPENED}+0...{end} accept(3, ..., ...) = 4\n+.2 < . 1:1(0) ack 1 win 9\n")
    };
    let mut returns = opened();
    returns.returns.extend([(Returned::success(0), 0), (Returned::success(0), 0)]);
    returns.returns.push_back((Returned::success(12), 300_000));
    let script = text("0.2");
    assert_eq!(outcome(&script, &mut returns).verdict, ScriptVerdict::Passed);
    let mut late = opened();
    late.returns.extend([(Returned::success(0), 0), (Returned::success(0), 0)]);
    late.returns.push_back((Returned::success(12), 400_000));
    let failed = failure(&text("0.2"), &mut late);
    assert_eq!(failed.line, 7);
    assert!(failed.what.starts_with("accept returned at 0.400000 s, expected at 0.300000"));
}

#[test]
fn commands_before_time_zero_are_configuration_and_code_is_counted() {
    let text = "`sysctl -q net.ipv4.tcp_ecn=1\nrm -rf /`\n0 %{ assert False }%\n";
    let mut system = Planned::default();
    let outcome = outcome(text, &mut system);
    assert_eq!(outcome.verdict, ScriptVerdict::Passed);
    assert_eq!(outcome.code_count, 1);
    assert_eq!(outcome.notes, ["not run: rm -rf /"]);
    assert_eq!(system.knobs.len(), 1);
}

#[test]
fn time_that_goes_back_is_a_failure() {
    let failed = failure("1 close(-1) = 0\n0.5 close(-1) = 0\n", &mut Planned::default());
    assert_eq!((failed.line, failed.what.as_str()), (2, "time goes back in the script"));
}
