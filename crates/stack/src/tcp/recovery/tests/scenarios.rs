//! One test for each thing that an RFC says.

use core::time::Duration;

use super::super::*;
use super::path::{MSS, Sender, config};
use crate::config::{Congestion, TcpConfig};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn no_rack() -> TcpConfig {
    TcpConfig { rack: false, ..config(Congestion::NewReno) }
}

fn no_sack() -> TcpConfig {
    TcpConfig { sack: false, ..config(Congestion::NewReno) }
}

/// A sender that has measured an RTT of 100 ms, with `flight` segments just sent.
fn warmed(config: &TcpConfig, flight: u32) -> Sender {
    let mut sender = Sender::new(config);
    sender.send(MSS);
    sender.wait_ms(100);
    sender.ack(1, &[]);
    sender.start = sender.nxt;
    sender.send_apart(flight);
    sender
}

#[test]
fn a_plain_acknowledgment_frees_its_record_and_measures() {
    let mut sender = Sender::new(&config(Congestion::Cubic));
    sender.send(300);
    sender.wait_ms(7);
    let acked = sender.ack_raw(sender.nxt, &[], None, false);
    assert_eq!((acked.bytes, acked.rtt), (300, Some(ms(7))));
    assert_eq!(sender.records.available(), 4096);
    assert_eq!(sender.recovery.deadline(), None);
    assert_eq!(sender.recovery.cwnd(), 10 * MSS, "one segment does not fill ten");
}

#[test]
fn rfc8985_6_2_a_hole_is_resent_once_when_three_segments_above_it_arrived() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    assert_eq!(sender.ack(0, &[(1, 2)]).lost, 0);
    assert_eq!(sender.ack(0, &[(1, 3)]).lost, 0);
    let acked = sender.ack(0, &[(1, 4)]);
    assert!(acked.entered && acked.cwr);
    assert_eq!(acked.lost, MSS);
    assert_eq!(sender.resend(), [0]);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    sender.ack(0, &[(1, 10)]);
    assert_eq!(sender.resend(), [], "only once");
    sender.wait_ms(100);
    let acked = sender.ack(10, &[]);
    assert!(acked.left && !acked.undone);
    assert_eq!(sender.recovery.cwnd(), 5 * MSS);
    assert_eq!(sender.records.available(), 4096);
}

#[test]
fn rfc6582_without_sack_three_duplicates_and_partial_acknowledgments() {
    let mut sender = warmed(&no_sack(), 10);
    sender.wait_ms(100);
    sender.ack(0, &[]);
    sender.ack(0, &[]);
    assert_eq!(sender.resend(), []);
    assert!(sender.ack(0, &[]).entered);
    assert_eq!(sender.resend(), [0]);
    for _ in 0..5 {
        sender.ack(0, &[]);
    }
    sender.wait_ms(100);
    let acked = sender.ack(4, &[]);
    assert!(!acked.left);
    assert_eq!(sender.resend(), [4], "the next hole, at once");
    sender.wait_ms(100);
    assert!(sender.ack(10, &[]).left);
    assert_eq!(sender.recovery.cwnd(), 5 * MSS);
    sender.send_apart(4);
    for _ in 0..4 {
        assert!(!sender.ack(10, &[]).entered, "duplicates of the last ACK of a recovery");
    }
}

#[test]
fn rfc6298_5_the_timer_goes_off_backs_off_and_the_window_is_one_segment() {
    let mut sender = warmed(&no_rack(), 4);
    assert_eq!(sender.time_out(), Timeout::Retransmit { count: 1 });
    assert_eq!(sender.recovery.cwnd(), MSS);
    assert_eq!(sender.resend(), [0]);
    let first = sender.until_deadline();
    assert_eq!(sender.time_out(), Timeout::Retransmit { count: 2 });
    assert_eq!(sender.until_deadline(), first * 2);
    assert_eq!(sender.resend(), [0]);
    assert_eq!(sender.recovery.ssthresh(), Some(2 * MSS));
}
