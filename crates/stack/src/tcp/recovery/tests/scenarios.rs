//! One test per rule of the RFCs.

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
    assert_eq!(sender.records.stresses.len(), 0, "that needs no more than every connection has");
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

#[test]
fn rfc6298_2_first_sample_variance_and_lower_bound() {
    let mut sender = Sender::new(&no_rack());
    assert_eq!(sender.recovery.rto(&sender.records), Duration::from_secs(1));
    sender.send(MSS);
    sender.wait_ms(100);
    sender.ack(1, &[]);
    assert_eq!(sender.recovery.srtt(), Some(ms(100)));
    assert_eq!(sender.recovery.rttvar(), ms(50));
    // 100 + 4 * 50, and with the variance gone, 100 + 200 of the lower bound.
    assert_eq!(sender.recovery.rto(&sender.records), ms(300));
    for segment in 1..40 {
        sender.send(MSS);
        sender.wait_ms(100);
        sender.ack(segment + 1, &[]);
    }
    assert_eq!(sender.recovery.rto(&sender.records), ms(300));
    assert!(sender.recovery.rttvar() < ms(5));
    assert_eq!(sender.recovery.min_rtt(), Some(ms(100)));
}

#[test]
fn rfc6298_2_4_the_timeout_has_bounds() {
    let config = TcpConfig { rto_min: ms(10), rto_max: ms(4_000), ..no_rack() };
    let mut sender = warmed(&config, 1);
    for count in 1..=20 {
        assert_eq!(sender.time_out(), Timeout::Retransmit { count });
        assert!(sender.until_deadline() <= ms(4_000));
        sender.resend();
    }
    assert_eq!(sender.until_deadline(), ms(4_000));
    assert_eq!(sender.recovery.retransmissions(), 20);
}

#[test]
fn rfc6298_3_karn_what_was_sent_twice_is_no_sample_and_the_back_off_stays() {
    let mut sender = warmed(&no_rack(), 1);
    let rto = sender.recovery.rto(&sender.records);
    sender.time_out();
    sender.resend();
    sender.wait_ms(3);
    let acked = sender.ack(1, &[]);
    assert_eq!((acked.bytes, acked.rtt), (MSS, None));
    assert_eq!(sender.recovery.rto(&sender.records), rto * 2);
    assert_eq!(sender.recovery.retransmissions(), 0, "that was progress");
    sender.send(MSS);
    sender.wait_ms(100);
    assert_eq!(sender.ack(2, &[]).rtt, Some(ms(100)));
    assert!(sender.recovery.rto(&sender.records) <= rto);
}

#[test]
fn rfc7323_4_an_echo_tells_which_transmission_was_acknowledged() {
    let mut sender = warmed(&no_rack(), 1);
    sender.time_out();
    sender.resend();
    sender.wait_ms(90);
    let acked = sender.ack_echo(1, &[], Some(ms(90)));
    assert_eq!(acked.rtt, Some(ms(90)));
    assert!(!acked.undone);
    assert_eq!(sender.recovery.retransmissions(), 0);
}

#[test]
fn rfc7323_5_4_an_echo_is_good_to_a_tick_and_an_ancient_one_is_none() {
    for (age, rtt) in [(ms(0), Some(ms(1))), (Duration::from_secs(1_100), None)] {
        let mut sender = warmed(&no_rack(), 1);
        sender.time_out();
        sender.resend();
        let acked = sender.ack_echo(1, &[], Some(age));
        assert_eq!((acked.rtt, acked.undone), (rtt, false));
    }
}

#[test]
fn rfc6298_5_2_and_5_3_acknowledgments_restart_and_stop_the_timer() {
    let mut sender = warmed(&no_rack(), 2);
    let rto = sender.recovery.rto(&sender.records);
    sender.wait_ms(90);
    sender.ack(1, &[]);
    assert_eq!(sender.until_deadline(), sender.recovery.rto(&sender.records));
    assert!(sender.until_deadline() <= rto);
    sender.ack(2, &[]);
    assert_eq!(sender.recovery.deadline(), None);
    let early = sender.recovery.on_timeout(&mut sender.records, sender.now, sender.nxt);
    assert_eq!(early, Timeout::Nothing);
}

fn opened(config: &TcpConfig, mss: u32, syn_retransmissions: u8, rtt: Option<Duration>) -> Sender {
    let mut sender = Sender::new(config);
    let rtt_us = rtt.map(rtt::micros);
    let opening = Opening { mss, sack: config.sack, syn_retransmissions, rtt_us };
    sender.recovery = Recovery::new(&sender.records, sender.now, &opening);
    sender
}

#[test]
fn rfc6298_5_7_after_a_lost_syn_the_first_timeout_is_three_seconds() {
    let sender = opened(&no_rack(), MSS, 1, None);
    assert_eq!(sender.recovery.rto(&sender.records), Duration::from_secs(3));
    let sender = opened(&no_rack(), MSS, 1, Some(ms(20)));
    assert!(sender.recovery.rto(&sender.records) < Duration::from_secs(1));
}

#[test]
fn rfc6928_2_the_initial_window() {
    let config = TcpConfig::default();
    for (mss, resent, cwnd) in
        [(1460, 0, 14_600), (536, 0, 5_360), (9_000, 0, 18_000), (1460, 1, 14_600), (1460, 2, 1460)]
    {
        assert_eq!(opened(&config, mss, resent, None).recovery.cwnd(), cwnd);
    }
}

#[test]
fn rfc5681_4_1_after_idle_time_the_window_is_the_initial_one() {
    let mut sender = warmed(&config(Congestion::NewReno), 0);
    for _ in 0..4 {
        let (first, sent) = (sender.nxt.since(sender.start) / MSS, sender.fill());
        sender.wait_ms(100);
        for segment in first..first + sent {
            sender.ack(segment + 1, &[]);
        }
    }
    let grown = sender.recovery.cwnd();
    assert_eq!(grown, 160 * MSS);
    sender.wait_ms(150);
    sender.recovery.restart_after_idle(&mut sender.records, sender.now);
    assert_eq!(sender.recovery.cwnd(), grown, "that was less than the RTO");
    sender.wait_ms(10_000);
    sender.recovery.restart_after_idle(&mut sender.records, sender.now);
    assert_eq!(sender.recovery.cwnd(), 10 * MSS);
}

#[test]
fn rfc7661_a_window_that_is_not_filled_does_not_grow() {
    for congestion in [Congestion::NewReno, Congestion::Cubic] {
        let mut sender = warmed(&config(congestion), 0);
        for segment in (0..100).step_by(2) {
            sender.send_apart(2);
            sender.wait_ms(100);
            sender.ack(segment + 2, &[]);
        }
        assert_eq!(sender.recovery.cwnd(), 10 * MSS);
    }
}

#[test]
fn rfc3465_a_peer_that_divides_its_acknowledgments_gains_nothing() {
    let mut windows = Vec::new();
    for pieces in [1, 10] {
        let mut sender = warmed(&config(Congestion::NewReno), 10);
        sender.wait_ms(100);
        for piece in 1..=10 * pieces {
            sender.ack_raw(sender.start + piece * MSS / pieces, &[], None, false);
        }
        windows.push(sender.recovery.cwnd());
    }
    assert_eq!(windows, [20 * MSS, 20 * MSS]);
}

#[test]
fn rfc3042_the_first_two_duplicates_let_new_segments_out() {
    for config in [no_sack(), no_rack(), config(Congestion::Cubic)] {
        let mut sender = warmed(&config, 10);
        assert_eq!(sender.fill(), 0);
        sender.wait_ms(100);
        for duplicate in 0..2 {
            sender.ack(0, &[(1, 2 + duplicate)]);
            assert_eq!((sender.resend(), sender.fill()), (vec![], 1));
        }
        assert_eq!(sender.recovery.cwnd(), 10 * MSS, "the window itself does not change");
    }
}

#[test]
fn rfc6675_4_lost_is_what_has_more_than_two_segments_above_it() {
    let mut sender = warmed(&no_rack(), 10);
    sender.wait_ms(100);
    assert_eq!(sender.ack(0, &[(2, 3)]).lost, 0);
    assert_eq!(sender.ack(0, &[(2, 3), (4, 5)]).lost, 0);
    assert_eq!(sender.ack(0, &[(2, 3), (4, 5), (6, 7)]).lost, 2 * MSS, "three above 0 and 1");
    let acked = sender.ack(0, &[(2, 3), (4, 5), (6, 9)]);
    assert_eq!(acked.lost, 2 * MSS, "more than two above 3 and 5, none above 9");
    assert_eq!(
        sender.recovery.lost_bytes(&sender.records) + sender.recovery.sacked_bytes(&sender.records),
        9 * MSS
    );
}

#[test]
fn rfc9937_6_sending_in_recovery_is_paced_to_the_new_window() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 2)]);
    sender.ack(0, &[(1, 3)]);
    // The retransmission goes at once, nothing until five are left, then one for each that arrives.
    let mut sent = Vec::new();
    for segment in 3..10 {
        sender.ack(0, &[(1, segment + 1)]);
        sent.push(sender.resend().len() as u32 + sender.fill());
    }
    assert_eq!(sent, [1, 0, 0, 1, 1, 1, 1]);
    assert!(sender.recovery.in_flight(&sender.records) <= 5 * MSS);
}

#[test]
fn rfc8985_7_3_the_probe_is_new_data_or_the_last_segment() {
    let mut sender = warmed(&config(Congestion::NewReno), 3);
    // Twice the SRTT, and some slack.
    assert!(sender.until_deadline() < ms(210));
    assert_eq!(sender.time_out(), Timeout::Probe);
    assert_eq!(sender.recovery.probe(&sender.records), Some(sender.range(2, 1)));
    sender.send(MSS);
    assert_eq!(sender.recovery.cwnd(), 10 * MSS);
    sender.wait_ms(100);
    assert!(!sender.ack(4, &[]).cwr, "new data repairs nothing");
}

fn probed() -> Sender {
    let mut sender = warmed(&config(Congestion::NewReno), 3);
    assert_eq!(sender.time_out(), Timeout::Probe);
    let last = sender.recovery.probe(&sender.records).expect("something is in flight");
    sender
        .recovery
        .on_sent(&mut sender.records, sender.now, last, Sent::Probe)
        .expect("a probe needs no record");
    sender.wait_ms(100);
    sender
}

#[test]
fn rfc8985_7_4_a_probe_that_repaired_a_loss_is_congestion() {
    let mut sender = probed();
    assert!(!sender.ack(3, &[]).cwr, "not known yet");
    sender.send_apart(1);
    sender.wait_ms(100);
    let acked = sender.ack(4, &[]);
    assert!(acked.cwr && !acked.entered);
    assert_eq!(sender.recovery.ssthresh(), Some(2 * MSS));
}

#[test]
fn rfc8985_7_4_a_probe_that_was_a_duplicate_is_none() {
    // By D-SACK, and without it by a duplicate ACK.
    for sack in [&[(2, 3)][..], &[]] {
        let mut sender = probed();
        sender.ack(3, &[]);
        let acked = sender.ack(3, sack);
        assert_eq!(acked.dsack, !sack.is_empty());
        sender.send_apart(1);
        sender.wait_ms(100);
        assert!(!sender.ack(4, &[]).cwr);
        assert_eq!(sender.recovery.ssthresh(), None);
    }
}

#[test]
fn rfc8985_7_one_probe_and_then_the_timeout() {
    let mut sender = probed();
    assert_eq!(sender.time_out(), Timeout::Retransmit { count: 1 });
    assert_eq!(sender.resend(), [0]);
}

#[test]
fn rfc8985_7_3_an_acknowledgment_calls_the_probe_off() {
    let mut sender = warmed(&config(Congestion::NewReno), 3);
    assert_eq!(sender.time_out(), Timeout::Probe);
    sender.ack(1, &[]);
    assert_eq!(sender.recovery.probe(&sender.records), None);
    assert_eq!(sender.time_out(), Timeout::Probe, "another may come");
}

#[test]
fn rfc8985_7_2_the_probe_waits_for_an_ack_that_may_be_held_back() {
    let config = TcpConfig { rto_min: ms(50), ..config(Congestion::NewReno) };
    let mut sender = warmed(&config, 1);
    // 2 SRTT, slack, and the longest delay of an ACK.
    assert_eq!(sender.until_deadline(), Duration::from_micros(252_000));
    sender.send(MSS);
    assert_eq!(sender.until_deadline(), Duration::from_micros(202_000));
}

#[test]
fn rfc6298_5_3_a_fast_retransmission_of_the_first_segment_restarts_the_timer() {
    let mut sender = warmed(&no_rack(), 10);
    sender.wait_ms(290);
    sender.ack(0, &[(1, 6)]);
    assert!(sender.until_deadline() < ms(11));
    assert_eq!(sender.resend(), [0]);
    assert_eq!(sender.until_deadline(), sender.recovery.rto(&sender.records));
}

#[test]
fn rfc8985_3_4_a_lost_probe_target_is_found_by_the_probes_sack() {
    let mut sender = probed();
    let acked = sender.ack(0, &[(2, 3)]);
    assert!(acked.entered);
    assert_eq!(acked.lost, 2 * MSS);
}

#[test]
fn rfc8985_6_2_a_lost_retransmission_is_found_again() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 6)]);
    assert_eq!(sender.resend(), [0]);
    sender.ack(0, &[(1, 8)]);
    assert_eq!(sender.fill(), 2);
    sender.wait_ms(105);
    let acked = sender.ack(0, &[(1, 12)]);
    assert_eq!(acked.lost, MSS, "what left after the retransmission has arrived");
    assert_eq!(sender.resend(), [0]);
}

#[test]
fn rfc8985_6_2_a_segment_may_be_late_once_the_network_reorders() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 2)]);
    assert_eq!(sender.ack(2, &[]).lost, 0, "reordered");
    assert_eq!(sender.ack(2, &[(3, 7)]).lost, 0, "four segments are not enough now");
    let wait = sender.until_deadline();
    assert!(wait <= ms(25) && wait > ms(20), "a quarter of the smallest RTT: {wait:?}");
    assert_eq!(sender.time_out(), Timeout::Nothing);
    assert_eq!(sender.resend(), [2]);
}

#[test]
fn rfc8985_6_2_duplicates_widen_the_reordering_window_once_a_round() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 2)]);
    sender.ack(2, &[]);
    sender.ack(2, &[(0, 1)]);
    sender.ack(2, &[(0, 1), (3, 5)]);
    assert_eq!(sender.reo_mult(), 2);
    let wait = sender.until_deadline();
    assert!(wait <= ms(50) && wait > ms(45), "{wait:?}");
}

#[test]
fn rfc8985_6_3_a_timeout_spares_what_was_just_sent() {
    let config = TcpConfig { rto_min: ms(1), ..config(Congestion::NewReno) };
    let mut sender = warmed(&config, 2);
    sender.time_out();
    sender.send(MSS);
    sender.now = sender.recovery.deadline().expect("the RTO waits") - ms(5);
    sender.send(MSS);
    assert_eq!(sender.time_out(), Timeout::Retransmit { count: 1 });
    assert_eq!(sender.recovery.lost_bytes(&sender.records), 3 * MSS);
    assert_eq!(sender.recovery.in_flight(&sender.records), MSS);
    assert_eq!(sender.recovery.allowance(&sender.records), MSS);
}

#[test]
fn rfc5682_2_1_a_needless_timeout_is_taken_back_without_timestamps() {
    for config in [no_sack(), no_rack()] {
        let mut sender = warmed(&config, 8);
        sender.time_out();
        assert_eq!(sender.resend(), [0]);
        sender.wait_ms(1);
        assert!(!sender.ack(1, &[]).undone);
        assert_eq!((sender.resend(), sender.fill()), (vec![], 2), "new data asks");
        let acked = sender.ack(2, &[]);
        assert!(acked.undone);
        assert_eq!(sender.recovery.cwnd(), 11 * MSS, "slow start goes on with this ACK");
        assert_eq!(sender.recovery.lost_bytes(&sender.records), 0);
        assert_eq!(sender.recovery.ssthresh(), None);
    }
}

#[test]
fn rfc5682_2_1_a_timeout_for_a_reason_goes_on_in_slow_start() {
    for config in [no_sack(), no_rack()] {
        let mut sender = warmed(&config, 8);
        sender.time_out();
        sender.resend();
        sender.wait_ms(100);
        sender.ack(1, &[]);
        assert_eq!(sender.fill(), 2);
        sender.wait_ms(100);
        let acked = sender.ack(1, &[(8, 9)]);
        assert!(!acked.undone);
        assert_eq!(sender.resend()[0], 1);
    }
}

#[test]
fn rfc5682_2_1_without_new_data_the_timeout_counts() {
    let mut sender = warmed(&no_sack(), 8);
    sender.unsent = false;
    sender.time_out();
    sender.resend();
    sender.wait_ms(1);
    sender.ack(1, &[]);
    assert_eq!(sender.resend(), [1, 2]);
}

#[test]
fn rfc3522_3_an_echo_from_before_takes_a_timeout_back() {
    let mut sender = warmed(&no_rack(), 4);
    sender.time_out();
    sender.resend();
    let (late, after) = (sender.now, ms(2));
    sender.now = late + after;
    let acked = sender.ack_echo(1, &[], Some(ms(302)));
    assert!(acked.undone);
    assert_eq!(sender.recovery.cwnd(), 11 * MSS, "slow start goes on with this ACK");
    assert_eq!(sender.resend(), []);
}

#[test]
fn rfc3522_3_an_echo_within_one_tick_proves_nothing() {
    let mut sender = warmed(&no_rack(), 4);
    sender.time_out();
    sender.resend();
    sender.wait_us(100);
    // The retransmission's own stamp, cut to a millisecond.
    let acked = sender.ack_echo(1, &[], Some(Duration::from_micros(1_099)));
    assert!(!acked.undone);
}

#[test]
fn rfc3708_3_duplicates_reported_for_all_that_was_resent_take_a_recovery_back() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 6)]);
    assert_eq!(sender.resend(), [0]);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    sender.wait_ms(1);
    sender.ack(10, &[]);
    sender.wait_ms(99);
    let acked = sender.ack(10, &[(0, 1)]);
    assert!(acked.undone && acked.dsack);
    assert_eq!(sender.recovery.cwnd(), 10 * MSS);
    assert_eq!(sender.recovery.ssthresh(), None);
}

#[test]
fn rfc3708_3_duplicates_of_a_later_round_take_nothing_back() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 6)]);
    assert_eq!(sender.resend(), [0]);
    sender.wait_ms(100);
    sender.ack(10, &[]);
    sender.send_apart(2);
    sender.wait_ms(100);
    sender.ack(12, &[]);
    assert!(!sender.ack(12, &[(10, 11)]).undone);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
}

#[test]
fn rfc3168_6_1_2_marks_reduce_once_per_window() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    let mut reductions = 0;
    for segment in 1..=9 {
        let ack = sender.start + segment * MSS;
        reductions += u32::from(sender.ack_raw(ack, &[], None, true).cwr);
        sender.fill();
    }
    assert_eq!(reductions, 1);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    let ack = sender.start + 10 * MSS;
    assert!(!sender.ack_raw(ack, &[], None, true).cwr, "the peer has not seen CWR yet");
    assert_eq!(sender.recovery.cwnd(), 5 * MSS);
    sender.fill();
    assert!(sender.ack_raw(ack + MSS, &[], None, true).cwr, "a new window, a new mark");
}

/// A sender whose window was reduced for a mark, with its last segments not acknowledged.
fn marked(config: &TcpConfig) -> Sender {
    let mut sender = warmed(config, 10);
    sender.wait_ms(100);
    assert!(sender.ack_raw(sender.start + MSS, &[], None, true).cwr);
    for segment in 2..=7 {
        sender.ack(segment, &[]);
    }
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    sender
}

/// The probe of a sender that [`marked`] returns; its answer is due.
fn marked_and_probed() -> Sender {
    let mut sender = marked(&config(Congestion::NewReno));
    assert_eq!(sender.time_out(), Timeout::Probe);
    let last = sender.recovery.probe(&sender.records).expect("something is in flight");
    sender.on_sent(last, Sent::Probe).expect("a probe needs no record");
    sender.wait_ms(100);
    sender
}

#[test]
fn rfc3168_6_1_2_loss_found_by_probe_is_same_window() {
    let mut sender = marked_and_probed();
    let acked = sender.ack(7, &[(9, 10)]);
    assert!(acked.entered && !acked.cwr);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
}

#[test]
fn rfc3168_6_1_2_mark_during_probe_is_same_window() {
    let mut sender = marked_and_probed();
    let ack = sender.start + 8 * MSS;
    assert!(!sender.ack_raw(ack, &[], None, true).cwr);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    // A mark in the first window of a connection counts while a probe is out.
    let mut sender = probed();
    assert!(sender.ack_raw(sender.start + MSS, &[], None, true).cwr);
}

#[test]
fn rfc3168_6_1_2_loss_repaired_by_probe_is_same_window() {
    let mut sender = marked_and_probed();
    assert!(!sender.ack(10, &[]).cwr);
    assert_eq!(sender.recovery.cwnd(), 5 * MSS, "the window that it was reduced to");
    sender.send_apart(1);
    sender.wait_ms(100);
    assert!(!sender.ack(11, &[]).cwr);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    sender.send_apart(2);
    sender.wait_ms(100);
    let ack = sender.start + 12 * MSS;
    assert!(sender.ack_raw(ack, &[], None, true).cwr, "a new window, a new mark");
}

#[test]
fn rfc3168_6_1_2_acknowledgment_before_probe_keeps_window() {
    let mut sender = marked(&config(Congestion::NewReno));
    assert_eq!(sender.time_out(), Timeout::Probe);
    // The probe is called off before it leaves.
    assert!(!sender.ack_raw(sender.start + 8 * MSS, &[], None, true).cwr);
    assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
    assert!(!sender.ack_raw(sender.start + 10 * MSS, &[], None, true).cwr);
    assert_eq!(sender.recovery.cwnd(), 5 * MSS);
}

#[test]
fn rfc3168_6_1_2_timeout_is_same_window() {
    let without_probes = TcpConfig { tail_loss_probes: false, ..config(Congestion::NewReno) };
    for mut sender in [marked_and_probed(), marked(&without_probes)] {
        assert_eq!(sender.time_out(), Timeout::Retransmit { count: 1 });
        assert_eq!(sender.recovery.ssthresh(), Some(5 * MSS));
        assert_eq!(sender.recovery.cwnd(), MSS);
    }
}

#[test]
fn rfc2018_8_a_peer_that_drops_what_it_had_sacked_gets_it_again() {
    let mut sender = warmed(&config(Congestion::NewReno), 6);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 4)]);
    sender.resend();
    sender.wait_ms(100);
    // The hole is filled, and yet 1 to 3 are gone.
    sender.ack(1, &[]);
    while sender.recovery.sacked_bytes(&sender.records) > 0 {
        sender.time_out();
        sender.resend();
    }
    let mut got = 1;
    while got < 6 {
        sender.wait_ms(100);
        got += 1;
        sender.ack(got, &[]);
        sender.resend();
    }
    assert_eq!(sender.records.available(), 4096);
}

#[test]
fn blocks_that_no_honest_peer_sends_mark_nothing() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    sender.wait_ms(100);
    let start = sender.start;
    let odd = [
        SeqRange { start: start + 5 * MSS, end: start + 4 * MSS },
        SeqRange { start: start + 9 * MSS, end: start + 11 * MSS },
        SeqRange { start: start - MSS, end: start + 3 * MSS },
        SeqRange { start: start + 3 * MSS, end: start + 3 * MSS },
        SeqRange { start: start + 3 * MSS, end: start + 3 * MSS + (1 << 31) },
        SeqRange { start: start + MSS + 1, end: start + 2 * MSS - 1 },
    ];
    for block in odd {
        let acked = sender.ack_raw(start, &[block, block], None, false);
        assert_eq!((acked.delivered, acked.lost), (0, 0), "{block:?}");
    }
    assert_eq!(sender.recovery.sacked_bytes(&sender.records), 0);
}

#[test]
fn a_peer_that_sacks_every_other_byte_costs_no_record() {
    let mut sender = Sender::new(&config(Congestion::NewReno));
    for _ in 0..32 {
        sender.send(MSS);
    }
    let before = sender.records.available();
    assert_eq!(before, 4095, "one burst, one record");
    for byte in (1..32 * MSS).step_by(2) {
        sender.ack_raw(sender.una, &[SeqRange::new(sender.start + byte, 1)], None, false);
    }
    assert_eq!(sender.records.available(), before);
    for segment in (1..32).step_by(2) {
        sender.ack(0, &[(segment, segment + 1)]);
    }
    assert!(sender.records.available() >= before - 31, "never more than segments");
}

#[test]
fn sacked_neighbours_become_one_record() {
    let mut sender = warmed(&config(Congestion::NewReno), 20);
    let before = sender.records.available();
    sender.wait_ms(100);
    sender.ack(0, &[(3, 4)]);
    sender.ack(0, &[(5, 6), (3, 4)]);
    sender.ack(0, &[(3, 6)]);
    assert_eq!(sender.records.available(), before + 2);
    sender.ack(0, &[(1, 20)]);
    assert_eq!(sender.records.available(), 4096 - 2);
}

#[test]
fn segments_of_a_burst_share_a_record_until_one_is_not_full() {
    let mut sender = Sender::new(&config(Congestion::NewReno));
    for bytes in [MSS, MSS, 10, 10] {
        sender.send(bytes);
    }
    assert_eq!(sender.records.available(), 4096 - 2);
    sender.wait_us(1);
    sender.send(10);
    assert_eq!(sender.records.available(), 4096 - 3);
}

#[test]
fn short_of_records_new_data_joins_an_old_one_and_is_no_sample() {
    let mut sender = Sender::with_capacity(&config(Congestion::NewReno), 4);
    for _ in 0..8 {
        sender.wait_ms(1);
        sender.send(100);
    }
    assert_eq!(sender.records.available(), 0);
    sender.wait_ms(10);
    assert!(sender.ack_raw(sender.start + 300, &[], None, false).rtt.is_some());
    let acked = sender.ack_raw(sender.nxt, &[], None, false);
    assert_eq!((acked.bytes, acked.rtt), (500, None));
}

#[test]
fn without_a_record_nothing_new_is_sent() {
    let mut sender = Sender::with_capacity(&config(Congestion::NewReno), 0);
    let range = SeqRange::new(sender.nxt, MSS);
    let sent = sender.recovery.on_sent(&mut sender.records, sender.now, range, Sent::New);
    assert_eq!(sent, Err(Full));
    sender.check();
    assert_eq!(sender.recovery.deadline(), None);
}

#[test]
fn without_a_record_a_lost_burst_goes_out_one_segment_a_round() {
    let mut sender = Sender::with_capacity(&no_sack(), 1);
    for _ in 0..4 {
        sender.send(MSS);
    }
    sender.unsent = false;
    sender.time_out();
    for segment in 0..4 {
        assert_eq!(sender.resend(), [segment]);
        sender.wait_ms(100);
        sender.ack(segment + 1, &[]);
    }
    assert_eq!(sender.records.available(), 1);
}

#[test]
fn rfc1191_6_4_smaller_segments_are_sent_again_without_a_reduction() {
    let mut sender = warmed(&config(Congestion::Cubic), 4);
    let cwnd = sender.recovery.cwnd();
    sender.recovery.on_packet_too_big(&mut sender.records, sender.now, MSS / 2);
    assert_eq!((sender.recovery.cwnd(), sender.recovery.ssthresh()), (cwnd, None));
    let first = sender.recovery.next_retransmission(&sender.records).expect("all goes again");
    assert_eq!(first, SeqRange::new(sender.start, MSS / 2));
    assert_eq!(sender.resend(), [0, 0, 1, 1, 2, 2, 3, 3]);
    sender.wait_ms(100);
    assert!(sender.ack(4, &[]).left);
    assert!(sender.recovery.cwnd() >= cwnd);
}

#[test]
fn a_connection_that_ends_gives_its_records_back() {
    let mut sender = warmed(&config(Congestion::Cubic), 10);
    sender.wait_ms(100);
    sender.ack(0, &[(1, 4)]);
    sender.recovery.clear(&mut sender.records);
    assert_eq!(sender.records.available(), 4096);
    assert_eq!(sender.recovery.deadline(), None);
}

/// One line of a trace: at so many milliseconds, an ACK of so many segments with these blocks.
type Step = (u64, u32, &'static [(u32, u32)]);

/// What is expected after it: resent segments, new segments, window in segments.
type Outcome = (&'static [u32], u32, u32);

#[test]
fn a_burst_loss_from_beginning_to_end() {
    let mut sender = warmed(&config(Congestion::NewReno), 10);
    let begin = sender.now;
    // Segments 2, 3 and 7 of ten are lost.
    let trace: [(Step, Outcome); 8] = [
        ((100, 2, &[]), (&[], 4, 12)),
        ((101, 2, &[(4, 5)]), (&[], 1, 12)),
        ((102, 2, &[(4, 6)]), (&[], 1, 12)),
        ((103, 2, &[(4, 7)]), (&[2], 0, 10)),
        ((104, 2, &[(8, 9), (4, 7)]), (&[], 0, 8)),
        ((105, 2, &[(8, 10), (4, 7)]), (&[], 0, 7)),
        ((200, 2, &[(8, 16), (4, 7)]), (&[3, 7], 3, 6)),
        ((203, 3, &[(8, 16), (4, 7)]), (&[], 1, 6)),
    ];
    for ((at, ack, sack), outcome) in trace {
        sender.now = begin + ms(at);
        sender.ack(ack, sack);
        let resent = sender.resend();
        let new = sender.fill();
        let cwnd = sender.recovery.cwnd() / MSS;
        assert_eq!((resent.as_slice(), new, cwnd), outcome, "at {at} ms");
    }
    sender.now = begin + ms(310);
    assert!(sender.ack(20, &[]).left);
    assert_eq!(sender.recovery.cwnd(), 6 * MSS);
    assert_eq!(sender.records.available(), 4096);
}
