//! Single segments: RFC 9293 §3.10.7 and related RFCs.

use core::ops::RangeInclusive;

use super::peer::*;
use super::*;
use crate::chunk::Chunk;
use crate::config::SynCookies;
use crate::counters::Drop;
use crate::error::{CloseReason, OperationError};
use crate::ip::{IcmpError, IcmpErrorKind, Unreachable};
use crate::seq::SeqNum;
use crate::wire::Ecn;
use crate::wire::tcp::{Flags, Options, SackBlock, Timestamps};

const SYN: u8 = 0x02;
const SA: u8 = 0x12;
const ACK: u8 = 0x10;
const PA: u8 = 0x18;
const FA: u8 = 0x11;
const RST: u8 = 0x04;
const RA: u8 = 0x14;

fn full() -> Options {
    Options {
        mss: Some(1000),
        window_scale: Some(0),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 500, echo: 0 }),
        ..Options::default()
    }
}

fn with_sack() -> Options {
    Options { sack_permitted: true, ..plain() }
}

pub(super) fn closed(conn: ConnId, reason: CloseReason) -> Option<Event> {
    Some(Event::Closed { conn, reason })
}

#[test]
fn closed_answers_everything_but_a_reset_with_a_reset() {
    let mut peer = Peer::new(|_| {});
    peer.inject(S, 0, 0, &[]);
    peer.inject(A, 7, 9, b"x");
    peer.inject(R, 7, 0, &[]);
    peer.inject(F, 7, 0, &[]);
    let out = peer.cores();
    assert_eq!(out, [(RA, 0u32.wrapping_sub(peer.iss.0), 1, 0), (RST, 9, 0, 0), (RA, 0, 8, 0)]);
    assert_eq!(peer.dropped(Drop::NoConnection), 4);
}

#[test]
fn listen_takes_a_syn_and_nothing_else() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    peer.inject(R, 0, 0, &[]);
    peer.inject(F, 0, 0, &[]);
    assert_eq!(peer.cores(), []);
    peer.inject(A, 5, 9, &[]);
    assert_eq!(peer.cores(), [(RST, 9, 0, 0)]);
    peer.inject(S, 0, 0, &[]);
    let out = peer.out();
    assert_eq!(out[0].core(), (SA, 0, 1, 0));
    assert_eq!(out[0].options, Options { mss: Some(1460), ..Options::default() });
}

#[test]
fn a_syn_ack_is_sent_again_and_given_up() {
    let mut peer = Peer::new(|config| config.tcp.synack_retries = 2);
    peer.listen();
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.cores().len(), 1);
    // The same SYN again is answered at once.
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.cores(), [(SA, 0, 1, 0)]);
    let again = peer.wait(60_000);
    assert_eq!(again.len(), 1, "two were sent before");
    assert_eq!(peer.host.tcp.half_open.len(), 0);
}

#[test]
fn a_wrong_ack_of_a_syn_ack_is_reset() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    peer.inject(S, 0, 0, &[]);
    peer.out();
    peer.inject(A, 1, 2, &[]);
    assert_eq!(peer.cores(), [(RST, 2, 0, 0)]);
    peer.inject(R, 2, 0, &[]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)], "RFC 5961: a challenge");
    peer.inject(R, 1, 0, &[]);
    assert_eq!(peer.host.tcp.half_open.len(), 0);
}

#[test]
fn a_connect_is_retried_and_given_up() {
    let mut peer = Peer::new(|config| config.tcp.syn_retries = 3);
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let conn = peer
        .host
        .with(peer.now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true))
        .unwrap();
    let first = peer.out();
    assert_eq!(first[0].core(), (2, 0, 0, 0));
    let begun = peer.now;
    let again = peer.wait(120_000);
    assert_eq!(again.len(), 3);
    let gone = closed(conn, CloseReason::TimedOut);
    assert_eq!(peer.last_event(), gone);
    assert!(peer.now.since(begun) > Duration::from_secs(15));
}

pub(super) fn connecting(change: impl FnOnce(&mut Config)) -> (Peer, ConnId, Out) {
    let mut peer = Peer::new(change);
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let conn = peer
        .host
        .with(peer.now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true))
        .unwrap();
    let syn = peer.out().remove(0);
    (peer, conn, syn)
}

#[test]
fn syn_sent_believes_what_acknowledges_its_syn() {
    let (mut peer, conn, _) = connecting(|_| {});
    peer.inject(R, 0, 0, &[]);
    peer.inject(R | A, 0, 5, &[]);
    assert_eq!(peer.cores(), []);
    peer.inject(S | A, 0, 5, &[]);
    assert_eq!(peer.cores(), [(RST, 5, 0, 0)]);
    peer.inject(A, 0, 1, &[]);
    assert_eq!(peer.cores(), []);
    peer.options = plain();
    peer.inject(S | A, 0, 1, &[]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)]);
    assert_eq!(peer.last_event(), Some(Event::Connected { conn }));
}

#[test]
fn syn_is_repeated_once_at_once_after_a_bad_ack() {
    let (mut peer, conn, _) = connecting(|_| {});
    // An ACK of an older connection of these ports, which the peer has in TIME-WAIT.
    peer.inject(A, 0, 5, &[]);
    assert_eq!(peer.cores(), [(RST, 5, 0, 0)]);
    // More of them do not delay it.
    assert_eq!(peer.wait(5).len(), 0);
    peer.inject(A, 0, 5, &[]);
    peer.out();
    let again: Vec<_> = peer.wait(5).iter().map(Out::core).collect();
    assert_eq!(again, [(SYN, 0, 0, 0)]);
    peer.inject(A, 0, 5, &[]);
    peer.out();
    assert_eq!(peer.wait(900).len(), 0, "the time-out decides from now on");
    assert_eq!(peer.wait(3_000).len(), 1);
    peer.options = plain();
    peer.inject(S | A, 0, 1, &[]);
    assert_eq!(peer.last_event(), Some(Event::Connected { conn }));
}

#[test]
fn a_reset_with_the_right_ack_refuses() {
    let (mut peer, conn, _) = connecting(|_| {});
    peer.inject(R | A, 0, 1, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::Refused));
    assert_eq!(peer.host.tcp.places.len(), 0);
}

#[test]
fn both_may_open_at_once() {
    let (mut peer, conn, _) = connecting(|_| {});
    peer.options = plain();
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.cores(), [(SA, 0, 1, 0)]);
    peer.inject(S | A, 0, 1, &[]);
    peer.options = Options::default();
    // Its SYN is old by now: acknowledged, and its ACK is what we wait for.
    peer.inject(A, 1, 1, &[]);
    assert_eq!(peer.last_event(), Some(Event::Connected { conn }));
    peer.out();
    peer.send(conn, b"hello");
    assert_eq!(peer.cores(), [(PA, 1, 1, 5)]);
}

#[test]
fn a_reset_must_hit_the_next_number() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(R, 2, 0, &[]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)], "a challenge");
    peer.inject(R, 4_000_000, 0, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.dropped(Drop::UnexactReset), 1);
    peer.inject(R, 1, 0, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer));
}

#[test]
fn a_syn_in_a_connection_is_challenged() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(S, 1, 0, &[]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)]);
    peer.inject(S, 500_000, 0, &[]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)]);
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
}

/// Linux drops it, too. Anything else would tell scanners what listens here.
#[test]
fn syn_with_fin_is_dropped_by_a_listener() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    peer.options = full();
    peer.inject(S | F, 0, 0, &[]);
    peer.inject(S | F | P, 0, 0, b"x");
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.dropped(Drop::UnexpectedSegment), 2);
    assert_eq!(peer.host.tcp.half_open.len(), 0);
}

#[test]
fn syn_with_fin_does_not_end_time_wait() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    peer.out();
    peer.inject(F | A, 1, 2, &[]);
    peer.out();
    peer.options = plain();
    peer.inject(S | F, 50, 0, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.host.tcp.time_waits.len(), 1);
    peer.inject(S, 50, 0, &[]);
    assert_eq!(peer.out()[0].flags.0, SA);
}

#[test]
fn challenges_are_limited_for_the_whole_shard() {
    let (mut peer, _) = Peer::accepted(|config| config.tcp.challenge_acks_per_s = 10, plain());
    let mut sent = 0;
    for _ in 0..100 {
        peer.inject(S, 1, 0, &[]);
        sent += peer.out().len();
    }
    assert!((5..15).contains(&sent), "{sent}");
}

#[test]
fn acks_of_the_future_and_of_long_ago_are_not_believed() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(A, 1, 2, b"x");
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)]);
    peer.inject(A, 1, 0u32.wrapping_sub(100_000), b"x");
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)]);
    assert_eq!(peer.dropped(Drop::BadAck), 2);
    assert_eq!(peer.host.conn(conn).receive.queue.ready_bytes(), 0);
    // An old one is no reason not to take the text.
    peer.inject(A, 1, 0, b"x");
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, b"x");
}

#[test]
fn text_out_of_order_is_kept_and_said() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    peer.inject(A | P, 11, 1, &[2; 10]);
    let out = peer.out();
    assert_eq!(out[0].core(), (ACK, 1, 1, 0));
    assert_eq!(out[0].sack(), [(11, 21)]);
    peer.inject(A | P, 31, 1, &[4; 10]);
    assert_eq!(peer.out()[0].sack(), [(31, 41), (11, 21)]);
    peer.inject(A | P, 1, 1, &[1; 10]);
    let out = peer.out();
    assert_eq!((out[0].ack, out[0].sack()), (21, vec![(31, 41)]));
    // RFC 2883 §4: what came twice goes first.
    peer.inject(A | P, 1, 1, &[1; 10]);
    assert_eq!(peer.out()[0].sack(), [(1, 11), (31, 41)]);
    peer.inject(A | P, 21, 1, &[3; 10]);
    let out = peer.out();
    assert_eq!((out[0].ack, out[0].sack()), (41, vec![]));
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received.len(), 40);
    assert!(peer.host.received.is_sorted());
}

#[test]
fn a_fin_that_comes_early_is_remembered() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(A | F, 11, 1, &[2; 10]);
    assert_eq!(peer.out()[0].ack, 1);
    peer.inject(A, 1, 1, &[1; 10]);
    assert_eq!(peer.out()[0].ack, 22);
    assert_eq!(peer.last_event(), Some(Event::PeerClosed { conn }));
}

#[test]
fn the_first_segments_are_acknowledged_at_once() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    for index in 0..16 {
        peer.inject(A, 1 + index * 1000, 1, &[0; 1000]);
        assert_eq!(peer.cores(), [(ACK, 1, 1001 + index * 1000, 0)]);
    }
    peer.inject(A, 16_001, 1, &[0; 1000]);
    assert_eq!(peer.cores(), []);
    // Who answers has something for the next ACK to ride on.
    let (mut peer, other) = Peer::accepted(|_| {}, plain());
    assert_eq!(conn.index, other.index);
    peer.inject(A | P, 1, 1, b"get");
    peer.send(other, b"answer");
    assert_eq!(peer.cores().last(), Some(&(PA, 1, 4, 6)));
    peer.inject(A | P, 4, 7, b"get");
    assert_eq!(peer.cores(), []);
}

#[test]
fn every_second_full_segment_is_acknowledged_at_once_and_others_later() {
    let (mut peer, _) = Peer::accepted(|config| config.tcp.quick_acks = 0, plain());
    peer.inject(A, 1, 1, &[0; 1000]);
    assert_eq!(peer.cores(), []);
    peer.inject(A, 1001, 1, &[0; 1000]);
    assert_eq!(peer.cores(), [(ACK, 1, 2001, 0)]);
    peer.inject(A, 2001, 1, &[0; 10]);
    assert_eq!(peer.cores(), []);
    let late = peer.wait(39);
    assert!(late.is_empty());
    assert_eq!(peer.wait(5)[0].core(), (ACK, 1, 2011, 0));
}

#[test]
fn data_carries_the_ack_that_waits() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(A | P, 1, 1, b"get");
    peer.send(conn, b"answer");
    assert_eq!(peer.cores(), [(PA, 1, 4, 6)]);
    assert!(peer.wait(100).iter().all(|out| out.len > 0), "nothing is left to acknowledge");
}

#[test]
fn a_timestamp_from_the_past_is_refused() {
    let (mut peer, _) = Peer::accepted(|_| {}, full());
    peer.clock = Some(600);
    peer.inject(A, 1, 1, b"x");
    peer.clock = Some(550);
    peer.inject(A, 2, 1, b"y");
    let out = peer.out();
    assert_eq!(out[0].core(), (ACK, 1, 2, 0));
    assert_eq!(out[0].options.timestamps.unwrap().echo, 600);
    assert_eq!(peer.dropped(Drop::OldTimestamp), 1);
    // A RST needs no fresh timestamp (RFC 7323 §5.2).
    peer.inject(R, 2, 0, &[]);
    assert!(matches!(peer.last_event(), Some(Event::Closed { .. })));
}

#[test]
fn nagle_holds_back_the_second_small_segment() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.send(conn, &[0; 100]);
    assert_eq!(peer.cores(), [(PA, 1, 1, 100)]);
    peer.send(conn, &[0; 100]);
    assert_eq!(peer.cores(), []);
    peer.inject(A, 1, 101, &[]);
    assert_eq!(peer.cores(), [(PA, 101, 1, 100)]);
    peer.send(conn, &[0; 100]);
    assert_eq!(peer.cores(), []);
    let no_delay = ConnOption::NoDelay(true);
    peer.host.with(peer.now, |tcp, context| tcp.set_option(context, conn, no_delay)).unwrap();
    assert_eq!(peer.cores(), [(PA, 201, 1, 100)]);
}

#[test]
fn a_fin_does_not_wait_for_nagle() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.send(conn, &[0; 100]);
    peer.out();
    peer.send(conn, &[0; 100]);
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    assert_eq!(peer.cores(), [(PA | FA, 101, 1, 100)]);
    let again = peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn));
    assert_eq!(again, Err(OperationError::Closing));
}

#[test]
fn segments_are_full_and_the_initial_window_holds_ten() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    for _ in 0..10 {
        peer.send(conn, &[7; 2000]);
    }
    let out = peer.cores();
    assert_eq!(out.len(), 10);
    assert!(out.iter().all(|(.., len)| *len == 1000));
}

#[test]
fn nothing_is_sent_beyond_the_peers_window_and_shrinking_it_does_no_harm() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.window = 2500;
    peer.inject(A, 1, 1, &[]);
    peer.send(conn, &[0; 2000]);
    peer.send(conn, &[0; 2000]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 1000), (ACK, 1001, 1, 1000)]);
    // MUST-34: the right edge moves left, behind what was sent.
    peer.window = 500;
    peer.inject(A, 1, 1001, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.host.conn(conn).send.window_room(), 0);
    peer.window = 60_000;
    peer.inject(A, 1, 2001, &[]);
    assert_eq!(peer.cores(), [(ACK, 2001, 1, 1000), (PA, 3001, 1, 1000)]);
}

/// The peer has filled the window, and nothing of it came: all that it says lies at the edge.
#[test]
fn an_ack_at_the_edge_of_the_window_counts_and_a_reset_there_does_not() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    let edge = 1 + peer.host.conn(conn).receive.wnd();
    peer.send(conn, &[0; 1000]);
    peer.out();
    peer.inject(A, edge, 1001, &[]);
    assert_eq!((peer.cores(), peer.host.memory.in_use()), (vec![], 0));
    peer.inject(Flags::RST, edge, 0, &[]);
    peer.inject(A, edge + 1, 1001, &[]);
    assert_eq!(peer.dropped(Drop::OutsideWindow), 2);
    peer.inject(A, edge, 1001, b"x");
    assert_eq!(peer.dropped(Drop::OutsideWindow), 3);
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
}

#[test]
fn a_zero_window_is_probed_for_ever_while_probes_are_answered() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.window = 0;
    peer.inject(A, 1, 1, &[]);
    peer.send(conn, &[0; 100]);
    assert_eq!(peer.cores(), []);
    for _ in 0..20 {
        let probes = peer.wait(130_000);
        assert!(!probes.is_empty());
        assert!(probes.iter().all(|probe| probe.core() == (ACK, 0, 1, 0)), "{probes:?}");
        peer.inject(A, 1, 1, &[]);
    }
    peer.window = 1000;
    peer.inject(A, 1, 1, &[]);
    assert_eq!(peer.cores(), [(PA, 1, 1, 100)]);
}

#[test]
fn unanswered_zero_window_probes_end_the_connection() {
    let (mut peer, conn) = Peer::accepted(|config| config.tcp.retries = 3, plain());
    peer.window = 0;
    peer.inject(A, 1, 1, &[]);
    peer.send(conn, &[0; 100]);
    peer.wait(1_000_000);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::TimedOut));
    assert_eq!(peer.host.memory.in_use(), 0);
}

#[test]
fn a_small_window_is_used_in_the_end() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.window = 100;
    peer.inject(A, 1, 1, &[]);
    peer.send(conn, &[0; 2000]);
    // 100 of 60,000: not worth a segment, until the override timer says so.
    assert_eq!(peer.cores(), []);
    let late = peer.wait(1100);
    assert_eq!(late[0].core(), (ACK, 1, 1, 100));
}

#[test]
fn our_window_opens_in_good_steps() {
    let small = |config: &mut Config| {
        config.tcp.receive_buffer = 4000;
        config.tcp.receive_buffer_max = 4000;
    };
    let (mut peer, conn) = Peer::accepted(small, plain());
    let id = conn;
    peer.inject(A, 1, 1, b"one credit");
    peer.host.collect(peer.now);
    peer.host.tcp.by_id(id).unwrap().flags.clear(ConnFlags::CREDIT);
    for index in 0..4 {
        peer.inject(A, 11 + index * 1000, 1, &[0; 1000]);
    }
    let out = peer.out();
    assert_eq!(out.last().unwrap().window, 0, "{out:?}");
    peer.host.tcp.receive(conn).unwrap();
    peer.host.collect(peer.now);
    let out = peer.out();
    assert_eq!(out.len(), 1, "one update, when much was read: {out:?}");
    assert!(out[0].window >= 2000);
}

#[test]
fn keepalives_are_sent_when_idle_and_given_up() {
    let keepalive = |config: &mut Config| {
        config.tcp.keepalive_idle = Some(Duration::from_secs(10));
        config.tcp.keepalive_interval = Duration::from_secs(2);
        config.tcp.keepalive_probes = 3;
    };
    let (mut peer, conn) = Peer::accepted(keepalive, plain());
    assert!(peer.wait(9_900).is_empty());
    let probes = peer.wait(200);
    assert_eq!(probes[0].core(), (ACK, 0, 1, 0));
    peer.inject(A, 1, 1, &[]);
    assert!(peer.wait(9_900).is_empty());
    let last: Vec<_> = peer.wait(20_000).iter().map(|out| out.core()).collect();
    assert_eq!(last, [(ACK, 0, 1, 0), (ACK, 0, 1, 0), (ACK, 0, 1, 0), (RA, 1, 1, 0)]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::KeepaliveTimedOut));
}

#[test]
fn the_user_timeout_ends_what_is_not_acknowledged() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    let timeout = ConnOption::UserTimeout(Some(Duration::from_secs(5)));
    peer.host.with(peer.now, |tcp, context| tcp.set_option(context, conn, timeout)).unwrap();
    assert!(peer.wait(60_000).is_empty(), "nothing is in flight");
    peer.send(conn, b"x");
    peer.out();
    peer.wait(4_900);
    assert_ne!(peer.last_event(), closed(conn, CloseReason::TimedOut));
    peer.wait(200);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::TimedOut));
}

#[test]
fn retransmissions_back_off_and_end() {
    let (mut peer, conn) = Peer::accepted(|config| config.tcp.retries = 4, plain());
    peer.send(conn, b"x");
    assert_eq!(peer.cores().len(), 1);
    let again = peer.wait(300_000);
    assert!(again.iter().all(|out| out.core() == (PA, 1, 1, 1)), "{again:?}");
    assert!((4..=6).contains(&again.len()), "{}", again.len());
    assert_eq!(peer.last_event(), closed(conn, CloseReason::TimedOut));
}

#[test]
fn data_for_an_application_that_closed_is_reset() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
    assert_eq!(peer.cores(), [(FA, 1, 1, 0)]);
    peer.inject(A, 1, 2, b"late");
    assert_eq!(peer.cores(), [(RST, 2, 0, 0)]);
    assert_eq!(peer.host.tcp.places.len(), 0);
}

#[test]
fn closing_with_unread_data_resets() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(A, 1, 1, b"read");
    peer.host.collect(peer.now);
    peer.host.tcp.by_id(conn).unwrap().flags.clear(ConnFlags::CREDIT);
    peer.inject(A, 5, 1, b"unread");
    peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
    let out = peer.cores();
    assert_eq!(out.last(), Some(&(RA, 1, 11, 0)), "{out:?}");
    assert_eq!(peer.host.memory.in_use(), 0);
}

#[test]
fn an_orphan_in_fin_wait_2_has_an_end() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
    peer.out();
    peer.inject(A, 1, 2, &[]);
    assert_eq!(peer.host.tcp.places.len(), 1);
    peer.wait(61_000);
    assert_eq!(peer.host.tcp.places.len(), 0);
}

#[test]
fn the_peers_last_fin_is_acknowledged_again_in_time_wait() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    peer.out();
    peer.inject(F | A, 1, 2, &[]);
    let out = peer.out();
    assert_eq!(out[0].core(), (ACK, 2, 2, 0));
    assert!(out[0].window > 60_000, "no closed window, which would be probed");
    assert_eq!(peer.host.tcp.time_waits.len(), 1);
    peer.wait(30_000);
    peer.inject(F | A, 1, 2, &[]);
    assert_eq!(peer.cores(), [(ACK, 2, 2, 0)]);
    peer.wait(59_000);
    assert_eq!(peer.host.tcp.time_waits.len(), 1, "it waits anew");
    // RFC 1337.
    peer.inject(R, 2, 0, &[]);
    assert_eq!(peer.host.tcp.time_waits.len(), 1);
    peer.wait(2_000);
    assert_eq!(peer.host.tcp.time_waits.len(), 0);
}

#[test]
fn a_new_syn_reopens_what_waits() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    peer.out();
    peer.inject(F | A, 1, 2, &[]);
    peer.out();
    let old = peer.iss;
    peer.options = plain();
    peer.inject(S, 1, 0, &[]);
    assert_eq!(peer.cores(), [(ACK, 2, 2, 0)], "an old duplicate");
    peer.inject(S, 50, 0, &[]);
    let out = peer.out();
    assert_eq!((out[0].flags.0, out[0].ack), (SA, 51));
    assert!(peer.iss.after(old + 1), "beyond what the old one used");
    assert_eq!(peer.host.tcp.time_waits.len(), 0);
}

#[test]
fn cookies_keep_nothing_and_bring_everything_back() {
    let always = |config: &mut Config| config.tcp.syn_cookies = SynCookies::Always;
    let mut peer = Peer::new(always);
    peer.listen();
    peer.clock = Some(500);
    peer.options = full();
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.host.tcp.half_open.len(), 0);
    let out = peer.out();
    assert_eq!((out[0].flags.0, out[0].ack), (SA, 1));
    peer.options = Options::default();
    peer.inject(A | P, 1, 1, b"first");
    let conn = peer.incoming().expect("incoming");
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, b"first");
    let info = peer.host.tcp.info(conn).unwrap();
    assert!(info.sack && info.timestamps);
    assert_eq!(info.window_scale.map(|scale| scale.0), Some(0));
    assert_eq!(peer.host.base.counters.totals.cookies_accepted, 1);
}

#[test]
fn syn_flood_leaves_room_for_real_clients() {
    let few = |config: &mut Config| config.tcp.syn_backlog = 4;
    let mut peer = Peer::new(few);
    peer.listen();
    for port in 1..100 {
        peer.remote.1 = port;
        peer.inject(S, 0, 0, &[]);
    }
    peer.out();
    assert_eq!(peer.host.tcp.half_open.len(), 4);
    assert_eq!(peer.host.base.counters.totals.cookies_sent, 95);
    peer.remote.1 = 5555;
    peer.open(plain());
    assert!(peer.incoming().is_some());
}

/// A listener with a backlog of four and no accepts.
fn unattended(change: impl FnOnce(&mut Config)) -> (Peer, ListenerId) {
    let mut peer = Peer::new(change);
    let listener = peer.listen();
    peer.host.tcp.listeners.by_id(listener).unwrap().credit = 0;
    (peer, listener)
}

/// How many have come in so far.
fn arrivals(peer: &mut Peer) -> usize {
    peer.host.collect(peer.now);
    let incoming = |event: &&Event| matches!(event, Event::Incoming { .. });
    peer.host.events.iter().filter(incoming).count()
}

#[test]
fn a_full_accept_queue_lets_the_peer_try_again() {
    let (mut peer, listener) = unattended(|_| {});
    // As in Linux, one more than the backlog says.
    for port in 1..=5 {
        peer.remote.1 = port;
        peer.open(plain());
    }
    assert_eq!(peer.dropped(Drop::BacklogFull), 0);
    for port in 6..=9 {
        peer.remote.1 = port;
        peer.inject(S, 0, 0, &[]);
    }
    assert_eq!(peer.cores(), [], "no peer is connected");
    assert_eq!(peer.dropped(Drop::BacklogFull), 4);
    assert_eq!(peer.host.tcp.half_open.len(), 0);
    assert_eq!(peer.host.tcp.places.len(), 5);
    peer.host.tcp.accept(listener, 1).unwrap();
    assert_eq!(arrivals(&mut peer), 1);
    peer.open(plain());
    peer.remote.1 = 8;
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.cores(), [], "one was accepted, and one got in");
    peer.host.tcp.accept(listener, 100).unwrap();
    assert_eq!(arrivals(&mut peer), 6);
}

/// Peers whose SYNs are answered: their ports, with our numbers for them.
fn call(peer: &mut Peer, ports: RangeInclusive<u16>) -> Vec<(u16, SeqNum)> {
    let answered = |port| {
        peer.remote.1 = port;
        peer.inject(S, 0, 0, &[]);
        assert_eq!(peer.cores(), [(SA, 0, 1, 0)]);
        (port, peer.iss)
    };
    ports.map(answered).collect()
}

/// Each of them says something after its SYN.
fn go_on(peer: &mut Peer, callers: &[(u16, SeqNum)], flags: Flags, text: &[u8]) {
    for (port, iss) in callers {
        (peer.remote.1, peer.iss) = (*port, *iss);
        peer.inject(flags, 1, 1, text);
    }
}

#[test]
fn handshake_before_full_accept_queue_completes_when_room() {
    let (mut peer, listener) = unattended(|config| config.tcp.synack_retries = 3);
    let callers = call(&mut peer, 1..=8);
    go_on(&mut peer, &callers, A, b"");
    assert_eq!(peer.dropped(Drop::BacklogFull), 3);
    assert_eq!(peer.host.tcp.half_open.len(), 3);
    assert_eq!(peer.cores(), [], "no RST");
    // Our SYN-ACK comes again, and its answer is too early.
    assert_eq!(peer.wait(1_100).len(), 3);
    go_on(&mut peer, &callers[5..], A, b"");
    assert_eq!(peer.dropped(Drop::BacklogFull), 6);
    peer.host.tcp.accept(listener, 6).unwrap();
    assert_eq!(arrivals(&mut peer), 5);
    // Nothing has to be sent for that: any segment of who believes to be connected will do.
    go_on(&mut peer, &callers[5..6], A | P, b"get");
    assert_eq!(arrivals(&mut peer), 6);
    peer.out();
    let again = peer.wait(2_100);
    assert_eq!(again.iter().filter(|out| out.flags == S | A).count(), 2);
    go_on(&mut peer, &callers[6..7], A, b"");
    assert_eq!(peer.host.tcp.listeners.by_id(listener).unwrap().waiting.len(), 1);
    // Unanswered handshakes still time out.
    peer.wait(60_000);
    assert_eq!(peer.host.tcp.half_open.len(), 0);
    peer.host.tcp.check_invariants();
}

#[test]
fn a_full_accept_queue_is_no_reason_for_a_cookie() {
    let (mut peer, listener) = unattended(|config| config.tcp.syn_cookies = SynCookies::Always);
    let callers = call(&mut peer, 1..=7);
    go_on(&mut peer, &callers[..5], A, b"");
    peer.remote.1 = 8;
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.host.base.counters.totals.cookies_sent, 7);
    assert_eq!(peer.dropped(Drop::BacklogFull), 1);
    // Cookies that were given while there was room.
    go_on(&mut peer, &callers[5..], A, b"");
    assert_eq!(peer.dropped(Drop::BacklogFull), 3);
    assert_eq!(peer.cores(), [], "neither a SYN-ACK nor a RST");
    peer.host.tcp.accept(listener, 7).unwrap();
    assert_eq!(arrivals(&mut peer), 5);
    go_on(&mut peer, &callers[5..], A | P, b"get");
    assert_eq!(arrivals(&mut peer), 7);
}

#[test]
fn a_syn_that_finds_no_room_leaves_time_wait_alone() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    peer.out();
    peer.inject(F | A, 1, 2, &[]);
    peer.out();
    let (port, old) = (peer.remote.1, peer.iss);
    let (index, _) = peer.host.tcp.listeners.iter().next().unwrap();
    peer.host.tcp.listeners.get_mut(index).unwrap().credit = 0;
    let callers = call(&mut peer, 1..=5);
    go_on(&mut peer, &callers, A, b"");
    (peer.remote.1, peer.iss) = (port, old);
    peer.inject(S, 50, 0, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.dropped(Drop::BacklogFull), 1);
    assert_eq!(peer.host.tcp.time_waits.len(), 1);
    peer.host.tcp.listeners.get_mut(index).unwrap().add_credit(1);
    peer.inject(S, 50, 0, &[]);
    assert_eq!(peer.out()[0].flags, S | A);
    assert!(peer.iss.after(old + 1), "beyond what the old one used");
}

#[test]
fn a_backlog_of_nothing_lets_one_wait() {
    let mut peer = Peer::new(|_| {});
    let local = SocketAddr::new(peer.local.0, peer.local.1);
    peer.host
        .with(peer.now, |tcp, context| tcp.listen(&context.base.ip, local, 0, PoolId(0)))
        .unwrap();
    peer.open(plain());
    peer.remote.1 += 1;
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.dropped(Drop::BacklogFull), 1);
}

#[test]
fn who_may_be_reported_at_once_does_not_fill_the_accept_queue() {
    let (mut peer, listener) = unattended(|_| {});
    peer.host.tcp.accept(listener, 6).unwrap();
    // A burst without taking events. Six are reported, five wait.
    for port in 1..=11 {
        peer.remote.1 = port;
        peer.open(plain());
    }
    peer.remote.1 = 12;
    peer.inject(S, 0, 0, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.dropped(Drop::BacklogFull), 1);
    assert_eq!(arrivals(&mut peer), 6);
    assert_eq!(peer.host.tcp.listeners.by_id(listener).unwrap().waiting.len(), 5);
}

#[test]
fn an_old_connections_last_word_opens_no_new_one() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    peer.options = plain();
    peer.inject(S, 0, 0, &[]);
    peer.out();
    peer.options = Options::default();
    // From TIME-WAIT, in answer to our SYN-ACK: text and a FIN lie before it.
    peer.inject(A, 20, 1, &[]);
    assert!(peer.incoming().is_none());
    assert_eq!(peer.dropped(Drop::UnexpectedSegment), 1);
    assert_eq!(peer.host.tcp.half_open.len(), 1);
    // Lost text is retransmitted; text received early is kept.
    peer.inject(A | P, 4, 1, b"def");
    assert!(peer.incoming().is_some());
    peer.inject(A | P, 1, 1, b"abc");
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, b"abcdef");
}

#[test]
fn unaccepted_connections_are_reset_with_their_listener() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    peer.host.tcp.listeners.by_id(listener).unwrap().credit = 0;
    peer.open(plain());
    peer.host.with(peer.now, |tcp, context| tcp.unlisten(context, listener)).unwrap();
    assert_eq!(peer.cores(), [(RA, 1, 1, 0)]);
    assert_eq!(peer.host.tcp.places.len(), 0);
    peer.host.tcp.check_invariants();
}

#[test]
fn ecn_is_agreed_on_and_marks_are_echoed() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    peer.options = plain();
    peer.inject(S | Flags::ECE | Flags::CWR, 0, 0, &[]);
    let out = peer.out();
    assert_eq!(out[0].flags, S | A | Flags::ECE, "a peer that asks gets it");
    peer.options = Options::default();
    peer.inject(A, 1, 1, &[]);
    let conn = peer.incoming().unwrap();
    peer.send(conn, &[0; 10]);
    let out = peer.out();
    assert_eq!(out[0].ecn, Ecn::Ect0);
    peer.ecn = Ecn::Ce;
    peer.inject(A, 1, 11, &[0; 10]);
    assert_eq!(peer.out()[0].flags, A | Flags::ECE);
    peer.ecn = Ecn::Ect0;
    peer.inject(A, 11, 11, &[0; 1000]);
    peer.inject(A, 1011, 11, &[0; 1000]);
    assert_eq!(peer.out()[0].flags, A | Flags::ECE);
    peer.inject(A | Flags::CWR, 2011, 11, &[0; 1000]);
    peer.inject(A, 3011, 11, &[0; 1000]);
    assert_eq!(peer.out()[0].flags, A);
    // The other way: the peer saw a mark of ours.
    peer.send(conn, &[0; 2000]);
    peer.out();
    peer.inject(A | Flags::ECE, 4011, 1011, &[]);
    peer.out();
    peer.inject(A, 4011, 2011, &[]);
    peer.send(conn, &[0; 1000]);
    assert!(peer.out()[0].flags.contains(Flags::CWR));
}

#[test]
fn the_urgent_pointer_is_told_and_sent() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.urgent = 3;
    peer.inject(A | U, 1, 1, b"abcdef");
    peer.host.collect(peer.now);
    assert!(peer.host.events.contains(&Event::Urgent { conn, bytes: 3 }));
    peer.send(conn, b"0123456789");
    peer.host
        .with(peer.now, |tcp, context| tcp.set_option(context, conn, ConnOption::Urgent))
        .unwrap();
    let out = peer.out();
    assert!(out[0].flags.contains(U));
    assert_eq!(out[0].urgent, 10, "the byte after the last urgent one");
}

#[test]
fn unsent_below_is_reported_once_when_bytes_leave() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    let ask = |peer: &mut Peer, bytes| {
        let option = ConnOption::ReportUnsentBelow(bytes);
        peer.host.with(peer.now, |tcp, context| tcp.set_option(context, conn, option)).unwrap();
    };
    let is_reported = |peer: &mut Peer| {
        let event = peer.host.tcp.poll_event(peer.now);
        assert!(event.is_none() || event == Some(Event::UnsentBelow { conn }), "{event:?}");
        event.is_some()
    };
    ask(&mut peer, 1);
    assert!(is_reported(&mut peer), "at once");
    peer.window = 2000;
    peer.inject(A, 1, 1, &[]);
    for _ in 0..5 {
        peer.send(conn, &[0; 1000]);
    }
    peer.out();
    assert_eq!(peer.host.tcp.info(conn).unwrap().unsent_bytes, 3000);
    ask(&mut peer, 2500);
    ask(&mut peer, 100);
    assert!(!is_reported(&mut peer));
    // The window grows, and nothing is acknowledged, which no `Acked` would tell.
    peer.window = 3000;
    peer.inject(A, 1, 1, &[]);
    peer.out();
    assert!(is_reported(&mut peer));
    peer.window = 8000;
    peer.inject(A, 1, 1001, &[]);
    peer.out();
    assert!(!is_reported(&mut peer), "asked for once");
}

#[test]
fn room_below_a_limit_fills_what_was_begun() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.window = 0;
    let room = |peer: &Peer| peer.host.tcp.info(conn).unwrap().room_below(3000);
    let info = peer.host.tcp.info(conn).unwrap();
    let half = info.snd_wnd_max / 2;
    let buffer = half - half % u32::from(info.mss);
    peer.inject(A, 1, 1, &[]);
    assert_eq!(room(&peer), buffer);
    for left in (0..buffer / 1000).rev() {
        peer.send(conn, &[0; 1000]);
        peer.out();
        assert_eq!(room(&peer), left * 1000);
    }
}

#[test]
fn no_frame_holds_bytes_of_two_records() {
    for tso in [false, true] {
        let cuts = |config: &mut Config| {
            (config.tso, config.tx_checksum) = (tso, tso);
            config.tx_frame_bytes = if tso { 65_550 } else { config.tx_frame_bytes };
        };
        let (mut peer, conn) = Peer::accepted(cuts, plain());
        for (len, ends) in [(300, true), (2040, true), (50, false), (60, true), (10, false)] {
            peer.send(conn, &vec![7; len]);
            if ends {
                let end = ConnOption::EndOfRecord;
                peer.host
                    .with(peer.now, |tcp, context| tcp.set_option(context, conn, end))
                    .unwrap();
            }
        }
        let pushed = |out: &Out| (out.seq, out.len, out.flags.contains(Flags::PSH));
        let sent: Vec<_> = peer.out().iter().map(pushed).collect();
        let second: &[_] = if tso {
            &[(301, 2040, true)]
        } else {
            &[(301, 1000, false), (1301, 1000, false), (2301, 40, true)]
        };
        // What ends no record waits, as small segments do.
        let expected = [&[(1, 300, true)], second, &[(2341, 110, true)]].concat();
        assert_eq!(sent, expected, "tso: {tso}");
        peer.inject(A, 1, 2451, &[]);
        assert_eq!(peer.cores(), [(A.0 | Flags::PSH.0, 2451, 1, 10)]);
        peer.inject(A, 1, 2461, &[]);
        peer.send(conn, &[7; 400]);
        assert_eq!(peer.cores(), [(A.0 | Flags::PSH.0, 2461, 1, 400)], "no record, no border");
    }
}

#[test]
fn a_fin_alone_is_not_kept_back_by_a_full_congestion_window() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    (0..6).for_each(|_| peer.send(conn, &[0; 2000]));
    assert_eq!(peer.out().len(), 10);
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    assert_eq!(peer.cores(), [], "two segments of data come first");
    peer.inject(A, 1, 2001, &[]);
    let fin = A.0 | Flags::PSH.0 | Flags::FIN.0;
    assert_eq!(peer.cores(), [(A.0, 10_001, 1, 1000), (fin, 11_001, 1, 1000)]);
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    (0..5).for_each(|_| peer.send(conn, &[0; 2000]));
    assert_eq!(peer.out().len(), 10);
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    assert_eq!(peer.cores(), [(A.0 | Flags::FIN.0, 10_001, 1, 0)]);
}

pub(super) fn icmp(peer: &Peer, seq: u32, kind: IcmpErrorKind) -> IcmpError {
    IcmpError {
        protocol: Protocol::Tcp,
        local: SocketAddr::new(peer.local.0, peer.local.1),
        remote: SocketAddr::new(peer.remote.0, peer.remote.1),
        seq: peer.iss + seq,
        kind,
    }
}

#[test]
fn a_smaller_path_mtu_is_believed_for_what_is_in_flight() {
    let syn = Options { mss: Some(1460), ..Options::default() };
    let (mut peer, conn) = Peer::accepted(|_| {}, syn);
    peer.send(conn, &[0; 2048]);
    peer.send(conn, &[0; 872]);
    assert_eq!(peer.cores().len(), 2);
    let too_big = IcmpErrorKind::FragmentationNeeded { mtu: 1040 };
    let forged = icmp(&peer, 5000, too_big);
    peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &forged));
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.dropped(Drop::BadIcmpError), 1);
    let real = icmp(&peer, 1, too_big);
    peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &real));
    let again = peer.out();
    assert!(again.iter().all(|out| out.len <= 1000), "{again:?}");
    assert_eq!(again[0].seq, 1);
    assert_eq!(peer.host.tcp.info(conn).unwrap().mss, 1000);
}

#[test]
fn icmp_errors_are_hard_for_a_syn_and_soft_for_a_connection() {
    let (mut peer, conn, _) = connecting(|_| {});
    let host = icmp(&peer, 0, IcmpErrorKind::Unreachable(Unreachable::Host));
    peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &host));
    assert!(peer.host.tcp.info(conn).unwrap().soft_error);
    let port = icmp(&peer, 0, IcmpErrorKind::Unreachable(Unreachable::Port));
    peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &port));
    assert_eq!(peer.last_event(), closed(conn, CloseReason::Refused));
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.send(conn, b"x");
    peer.out();
    let port = icmp(&peer, 1, IcmpErrorKind::Unreachable(Unreachable::Port));
    peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &port));
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
}

#[test]
fn a_black_hole_is_found() {
    let syn = Options { mss: Some(1460), ..Options::default() };
    let (mut peer, conn) = Peer::accepted(|_| {}, syn);
    peer.send(conn, &[0; 2048]);
    peer.out();
    let again = peer.wait(4_000);
    assert!(again.iter().any(|out| out.len == 1024), "{:?}", again.last());
    assert_eq!(peer.host.tcp.info(conn).unwrap().mss, 1024);
}

#[test]
fn a_message_in_one_segment_gets_through_a_black_hole() {
    let syn = Options { mss: Some(1460), ..Options::default() };
    let (mut peer, conn) = Peer::accepted(|_| {}, syn);
    peer.send(conn, &[0; 1200]);
    assert_eq!(peer.out().len(), 1);
    let again = peer.wait(60_000);
    assert!(again.iter().any(|out| out.len == 536), "{:?}", again.last());
}

#[test]
fn black_hole_detection_counts_the_timestamps_option() {
    let mut pair = Pair::new(|_| {});
    let (conn, _) = pair.establish();
    // With 12 bytes of options, a packet of 578 bytes.
    narrow(&mut pair, 576);
    assert!(pair.a.send(pair.now, conn, &[7; 526]));
    pair.run(60_000);
    assert_eq!(pair.a.tcp.info(conn).unwrap().flight_bytes, 0);
}

/// Loses what is larger than a path takes, as long as it is so.
fn narrow(pair: &mut Pair, bytes: usize) {
    pair.lose = Box::new(move |_, frame| frame.len() > bytes);
}

/// Sends 30 seconds long, ten kilobytes each tenth of a second.
fn stream(pair: &mut Pair, conn: ConnId) {
    for _ in 0..300 {
        for _ in 0..5 {
            assert!(pair.a.send(pair.now, conn, &[7; 2000]));
        }
        pair.run(100);
    }
}

#[test]
fn segments_are_full_again_when_a_black_hole_is_gone() {
    let mut pair = Pair::new(|_| {});
    let (a, _) = pair.establish();
    let full = pair.a.tcp.info(a).unwrap().mss;
    // Nothing gets through for a while, whatever its size.
    narrow(&mut pair, 0);
    assert!(pair.a.send(pair.now, a, &[7; 2000]));
    assert!(pair.a.send(pair.now, a, &[7; 2000]));
    pair.run(15_000);
    assert_eq!(pair.a.tcp.info(a).unwrap().mss, 524);
    narrow(&mut pair, usize::MAX);
    pair.run(20_000);
    assert_eq!(pair.b.received.len(), 4000);
    let before = pair.a.base.counters.totals.segments_retransmitted;
    stream(&mut pair, a);
    assert_eq!(pair.a.tcp.info(a).unwrap().mss, full);
    let again = pair.a.base.counters.totals.segments_retransmitted - before;
    assert_eq!(again, 0, "nothing is lost any more");
    assert_eq!(pair.b.received.len(), 4000 + 300 * 10_000);
}

#[test]
fn the_largest_size_that_a_path_takes_is_found_and_tried_again_ten_minutes_later() {
    let mut pair = Pair::new(|_| {});
    let (a, _) = pair.establish();
    let full = pair.a.tcp.info(a).unwrap().mss;
    narrow(&mut pair, 1300);
    pair.a.send(pair.now, a, &[7; 2000]);
    stream(&mut pair, a);
    let found = pair.a.tcp.info(a).unwrap().mss;
    let takes = 1300 - 40 - 12;
    assert!(found <= takes && found + crate::limits::PATH_PROBE_GAIN_BYTES > takes, "{found}");
    // Nothing more is tried, and nothing is lost, until it may have changed.
    let lost = pair.a.base.counters.totals.segments_retransmitted;
    stream(&mut pair, a);
    assert_eq!(pair.a.base.counters.totals.segments_retransmitted, lost);
    narrow(&mut pair, usize::MAX);
    stream(&mut pair, a);
    assert_eq!(pair.a.tcp.info(a).unwrap().mss, found);
    pair.run(600_000);
    stream(&mut pair, a);
    assert_eq!(pair.a.tcp.info(a).unwrap().mss, full);
    assert_eq!(pair.b.received.len(), 2000 + 4 * 300 * 10_000);
}

#[test]
fn one_probe_leaves_with_more_behind_it_and_is_sent_again_in_pieces() {
    let mut pair = Pair::new(|_| {});
    let (a, _) = pair.establish();
    let sizes = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = std::rc::Rc::clone(&sizes);
    pair.lose = Box::new(move |to_b, frame| {
        if to_b && frame.len() > 52 {
            seen.borrow_mut().push(frame.len() - 52);
        }
        frame.len() > 1100
    });
    pair.a.send(pair.now, a, &[7; 2000]);
    pair.run(8_000);
    assert_eq!(pair.a.tcp.info(a).unwrap().mss, 1012);
    sizes.borrow_mut().clear();
    // Too little for a probe and something behind it.
    pair.a.send(pair.now, a, &[7; 1500]);
    pair.run(100);
    assert_eq!(*sizes.borrow(), [1012, 488]);
    sizes.borrow_mut().clear();
    for _ in 0..3 {
        pair.a.send(pair.now, a, &[7; 2000]);
    }
    let timeouts = pair.a.base.counters.totals.retransmission_timeouts;
    pair.run(900);
    let sizes = sizes.borrow();
    assert_eq!(sizes.iter().filter(|size| **size > 1012).count(), 1, "{sizes:?}");
    assert_eq!(pair.a.base.counters.totals.retransmission_timeouts, timeouts, "{sizes:?}");
    assert_eq!(pair.b.received.len(), 2000 + 1500 + 6000);
}

#[test]
fn a_link_that_cuts_gets_large_frames() {
    let offload = |config: &mut Config| {
        config.tso = true;
        config.tx_checksum = true;
        config.tx_frame_bytes = 65_550;
    };
    let (mut peer, conn) = Peer::accepted(offload, plain());
    for _ in 0..5 {
        peer.send(conn, &[1; 2000]);
    }
    let out = peer.out();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].len, out[0].transmit.segment_bytes()), (10_000, 1000));
    assert_eq!(out[0].transmit.header_bytes(), 40);
    assert_eq!((out[0].transmit.checksum_start(), out[0].transmit.checksum_field()), (20, 16));
    peer.inject(A, 1, 10_001, &[]);
    assert_eq!(peer.host.memory.in_use(), 0);
}

#[test]
fn acks_are_reported_when_asked_for() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.tcp.await_acks(conn).unwrap();
    peer.send(conn, &[0; 100]);
    peer.send(conn, &[0; 100]);
    peer.out();
    assert!(!matches!(peer.last_event(), Some(Event::Acked { .. })));
    peer.inject(A, 1, 101, &[]);
    let acked = Event::Acked { conn, chunks: 1, queued_bytes: 100 };
    assert_eq!(peer.last_event(), Some(acked));
}

#[test]
fn the_send_queue_has_a_limit() {
    let small = |config: &mut Config| {
        config.tcp.send_buffer = 3000;
        config.tcp.send_buffer_max = 3000;
    };
    let (mut peer, conn) = Peer::accepted(small, plain());
    peer.send(conn, &[0; 2000]);
    assert!(!peer.host.send(peer.now, conn, &[0; 2000]));
    peer.out();
    peer.inject(A, 1, 1001, &[]);
    assert!(peer.host.send(peer.now, conn, &[0; 2000]));
    let empty = Chunk { buf: crate::BufId(0), offset: 0, len: 0 };
    let sent = peer.host.with(peer.now, |tcp, context| tcp.send(context, conn, empty));
    assert_eq!(sent, Err(OperationError::BadChunk));
}

#[test]
fn ports_run_out_and_come_back() {
    let few = |config: &mut Config| config.ephemeral_ports = (40_000, 40_002);
    let mut peer = Peer::new(few);
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let mut connect = || {
        let now = peer.now;
        peer.host.with(now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true))
    };
    let first = connect().unwrap();
    connect().unwrap();
    connect().unwrap();
    assert_eq!(connect(), Err(crate::ConnectError::NoPort));
    peer.host.with(peer.now, |tcp, context| tcp.abort(context, first)).unwrap();
    peer.host
        .with(peer.now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true))
        .unwrap();
}

#[test]
fn addresses_that_cannot_be_called_are_refused() {
    use crate::ConnectError::{BadLocalAddress, BadRemoteAddress};
    let mut peer = Peer::new(|_| {});
    let mut connect = |remote: &str, local: Option<&str>| {
        let local = local.map(|text| text.parse().unwrap());
        let remote = remote.parse().unwrap();
        let now = peer.now;
        peer.host
            .with(now, |tcp, context| tcp.connect(context, remote, local, PoolId(0), &|_| true))
            .err()
    };
    assert_eq!(connect("10.0.0.2:0", None), Some(BadRemoteAddress));
    assert_eq!(connect("224.0.0.1:80", None), Some(BadRemoteAddress));
    assert_eq!(connect("255.255.255.255:80", None), Some(BadRemoteAddress));
    assert_eq!(connect("10.0.0.2:80", Some("10.0.0.9:0")), Some(BadLocalAddress));
    assert_eq!(connect("10.0.0.2:80", Some("[::1]:0")), Some(BadLocalAddress));
    assert_eq!(connect("10.0.0.2:80", Some("0.0.0.0:1234")), None);
    assert_eq!(connect("10.0.0.2:80", Some("10.0.0.1:1234")), Some(crate::ConnectError::InUse));
}

#[test]
fn the_handshakes_round_trip_is_measured_without_timestamps() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    peer.options = plain();
    peer.inject(S, 0, 0, &[]);
    peer.options = Options::default();
    peer.out();
    peer.now += Duration::from_millis(30);
    peer.inject(A, 1, 1, &[]);
    let conn = peer.incoming().unwrap();
    assert_eq!(peer.host.tcp.info(conn).unwrap().srtt, Some(Duration::from_millis(30)));
    assert_eq!(peer.host.conn(conn).cold.recovery.deadline(), None);
    assert_eq!(SeqNum(1), peer.host.conn(conn).send.una - peer.iss.0);
}

#[test]
fn each_segment_out_of_order_has_an_ack_of_its_own() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    let said = |peer: &mut Peer| -> Vec<_> {
        peer.out().iter().map(|out| (out.core().2, out.len, out.sack())).collect()
    };
    // A burst, taken before anything leaves (RFC 5681 section 4.2, RFC 2018 section 4).
    for seq in [11, 31, 21] {
        peer.inject(A | P, seq, 1, &[7; 10]);
    }
    let expected =
        [(1, 0, vec![(11, 21)]), (1, 0, vec![(31, 41), (11, 21)]), (1, 0, vec![(11, 41)])];
    assert_eq!(said(&mut peer), expected);
    // What fills a part of a gap, and what comes again (RFC 2883 section 4), has one as well.
    peer.inject(A | P, 61, 1, &[7; 10]);
    peer.inject(A | P, 1, 1, &[7; 10]);
    peer.inject(A | P, 11, 1, &[7; 10]);
    peer.inject(A | P, 21, 1, &[7; 10]);
    let expected = [
        (1, 0, vec![(61, 71), (11, 41)]),
        (41, 0, vec![(61, 71)]),
        (41, 0, vec![(11, 21), (61, 71)]),
        (41, 0, vec![(21, 31), (61, 71)]),
    ];
    assert_eq!(said(&mut peer), expected);
    // The last gap is closed: from now on one answer does for many.
    peer.inject(A | P, 41, 1, &[7; 20]);
    peer.inject(A | P, 71, 1, &[7; 10]);
    peer.inject(A | P, 81, 1, &[7; 10]);
    assert_eq!(said(&mut peer), [(91, 0, vec![])]);
}

#[test]
fn a_flood_out_of_order_gets_as_many_acks_as_there_is_room_for() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    for segment in 0..1_000 {
        peer.inject(A, 11 + segment % 40 * 100, 1, &[7; 100]);
    }
    let out = peer.out();
    assert_eq!(out.len(), crate::limits::ACKS_AHEAD_MAX + 1);
    assert!(out.iter().all(|out| out.core() == (ACK, 1, 1, 0)));
    peer.inject(A, 1, 1, &[7; 10]);
    assert_eq!(peer.cores(), [(ACK, 1, 4011, 0)]);
}

#[test]
fn what_came_twice_is_said_even_without_a_gap() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    peer.inject(A | P, 1, 1, &[1; 1000]);
    peer.wait(100);
    peer.inject(A | P, 1, 1, &[1; 1000]);
    let out = peer.out();
    assert_eq!((out[0].core(), out[0].sack()), ((ACK, 1, 1001, 0), vec![(1, 1001)]));
    // Part of it is new.
    peer.inject(A | P, 501, 1, &[1; 1000]);
    let out = peer.out();
    assert_eq!((out[0].ack, out[0].sack()), (1501, vec![(501, 1001)]));
    // With timestamps a segment sent again has a later one, or the same.
    let syn = Options { sack_permitted: true, ..full() };
    let (mut peer, _) = Peer::accepted(|_| {}, syn);
    peer.inject(A | P, 1, 1, &[1; 1000]);
    peer.wait(100);
    peer.inject(A | P, 1, 1, &[1; 1000]);
    assert_eq!(peer.out()[0].sack(), [(1, 1001)]);
}

#[test]
fn reading_from_a_peer_without_window_scaling_needs_no_update() {
    let (mut peer, _) = Peer::accepted(|config| config.tcp.quick_acks = 0, plain());
    for index in 0..10 {
        peer.inject(A | P, 1 + index * 50, 1, &[0; 50]);
        peer.host.collect(peer.now);
        assert_eq!(peer.cores(), []);
    }
}

#[test]
fn first_bytes_for_a_new_owner_need_no_update() {
    let unowned = |config: &mut Config| {
        config.tcp.quick_acks = 0;
        config.tcp.unowned_receive_buffer = 8_000;
    };
    let (mut peer, conn) = Peer::accepted(unowned, plain());
    peer.host.tcp.set_pool(conn, PoolId(1)).unwrap();
    peer.inject(A | P, 1, 1, b"get");
    peer.host.collect(peer.now);
    assert_eq!(peer.cores(), [], "the answer carries the larger window");
    peer.send(conn, b"answer");
    assert!(peer.out()[0].window > 8_000);

    // One that has filled the small window waits for an update.
    let (mut peer, conn) = Peer::accepted(unowned, plain());
    peer.host.tcp.by_id(conn).unwrap().flags.clear(ConnFlags::CREDIT);
    for index in 0..8 {
        peer.inject(A | P, 1 + index * 1000, 1, &[0; 1000]);
    }
    assert_eq!(peer.out().last().unwrap().window, 0);
    peer.host.tcp.set_pool(conn, PoolId(1)).unwrap();
    peer.host.tcp.receive(conn).unwrap();
    peer.host.collect(peer.now);
    assert!(peer.out().last().expect("an update").window > 8_000);
}

#[test]
fn unread_bytes_and_the_end_are_reported_again_to_another_reader() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    assert!(peer.host.tcp.is_receiving(conn));
    assert_eq!(peer.host.tcp.withhold(conn), Ok(true));
    assert_eq!(peer.host.tcp.withhold(conn), Ok(false));
    peer.inject(A | P, 1, 1, b"one");
    // Behind a gap.
    peer.inject(A | P, 10, 1, b"three");
    peer.host.collect(peer.now);
    let is_news = |event: &Event| !matches!(event, Event::Incoming { .. });
    assert!(!peer.host.events.iter().any(is_news), "nothing was asked for");
    let mut taken = Vec::new();
    let take = |peer: &mut Peer, taken: &mut Vec<u32>| {
        let each = |memory: &mut _, chunk: Chunk| {
            taken.push(chunk.len);
            Memory::free(memory, chunk.buf);
        };
        peer.host.with(peer.now, |tcp, context| tcp.take_unread(conn, context.memory, each))
    };
    take(&mut peer, &mut taken).unwrap();
    assert_eq!(taken, [3]);
    peer.inject(A | P, 4, 1, b"second");
    peer.inject(F | A, 10, 1, &[]);
    take(&mut peer, &mut taken).unwrap();
    assert_eq!(taken, [3, 6], "the peer sends again what was behind the gap");
    for _ in 0..2 {
        peer.host.events.clear();
        peer.host.tcp.receive(conn).unwrap();
        peer.host.collect(peer.now);
        assert!(peer.host.events.contains(&Event::PeerClosed { conn }));
        take(&mut peer, &mut taken).unwrap();
    }
    let stale = ConnId { generation: conn.generation + 1, ..conn };
    assert_eq!(peer.host.tcp.withhold(stale), Err(OperationError::Unknown));
    assert!(!peer.host.tcp.is_receiving(stale));
}

#[test]
fn the_ack_of_our_fin_in_closing_wants_no_answer() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    assert_eq!(peer.cores(), [(FA, 1, 1, 0)]);
    peer.inject(F | A, 1, 1, &[]);
    assert_eq!(peer.cores(), [(ACK, 2, 2, 0)]);
    peer.inject(A, 2, 2, &[]);
    assert_eq!(peer.cores(), []);
    assert_eq!(peer.host.tcp.time_waits.len(), 1);
}

#[test]
fn a_learnt_path_mtu_is_for_every_connection_to_that_host() {
    let syn = Options { mss: Some(1460), ..Options::default() };
    let (mut peer, conn) = Peer::accepted(|_| {}, syn);
    peer.send(conn, &[0; 1460]);
    peer.out();
    let too_big = icmp(&peer, 1, IcmpErrorKind::FragmentationNeeded { mtu: 1040 });
    peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &too_big));
    peer.out();
    peer.remote.1 += 1;
    peer.host.events.clear();
    peer.open(syn);
    let second = peer.incoming().unwrap();
    assert_eq!(peer.host.tcp.info(second).unwrap().mss, 1000);
}

#[test]
fn the_oldest_in_time_wait_makes_room() {
    let mut peer = Peer::new(|config| config.time_waits = 3);
    peer.listen();
    for port in 1..=5 {
        peer.remote.1 = port;
        peer.host.events.clear();
        peer.open(plain());
        let conn = peer.incoming().unwrap();
        peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
        peer.out();
        peer.inject(F | A, 1, 2, &[]);
        assert_eq!(peer.cores(), [(ACK, 2, 2, 0)]);
        peer.wait(1000);
    }
    assert_eq!(peer.host.tcp.time_waits.len(), 3);
    peer.remote.1 = 2;
    peer.inject(F | A, 1, 2, &[]);
    assert_eq!(peer.cores(), [(RST, 2, 0, 0)], "forgotten");
    peer.remote.1 = 3;
    peer.inject(F | A, 1, 2, &[]);
    assert_eq!(peer.cores().len(), 1);
}

#[test]
fn a_partial_ack_without_sack_sends_the_next_hole() {
    let reno = |config: &mut Config| config.tcp.congestion = crate::Congestion::NewReno;
    let (mut peer, conn) = Peer::accepted(reno, plain());
    for _ in 0..5 {
        peer.send(conn, &[7; 2000]);
    }
    assert_eq!(peer.cores().len(), 10);
    peer.now += Duration::from_millis(100);
    for _ in 0..3 {
        peer.inject(A, 1, 1, &[]);
    }
    let again = peer.cores();
    assert_eq!(again, [(ACK, 1, 1, 1000)]);
    peer.now += Duration::from_millis(100);
    // RFC 6582 §3.2, step 3.
    peer.inject(A, 1, 3001, &[]);
    assert_eq!(peer.cores(), [(ACK, 3001, 1, 1000)]);
    peer.inject(A, 1, 10_001, &[]);
    assert_eq!(peer.cores(), []);
}

#[test]
fn an_application_chooses_hops_and_service() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    for option in [ConnOption::HopLimit(7), ConnOption::Dscp(46)] {
        peer.host.with(peer.now, |tcp, context| tcp.set_option(context, conn, option)).unwrap();
    }
    peer.send(conn, b"x");
    let (frame, _) = peer.host.frame(peer.now).unwrap();
    let ip = ipv4::Repr::parse(&ipv4::View::new(&frame).unwrap()).unwrap();
    assert_eq!((ip.ttl, ip.dscp), (7, 46));
}

#[test]
fn a_closed_window_does_not_hold_what_an_application_left() {
    let (mut peer, conn) = Peer::accepted(|config| config.tcp.retries = 5, plain());
    peer.window = 0;
    peer.inject(A, 1, 1, &[]);
    peer.send(conn, &[0; 100]);
    peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
    for _ in 0..200 {
        for _ in peer.wait(100) {
            peer.inject(A, 1, 1, &[]);
        }
    }
    assert_eq!(peer.host.tcp.places.len(), 0);
    assert_eq!(peer.host.memory.in_use(), 0);
}

#[test]
fn a_route_that_comes_back_lets_a_connection_go_on() {
    let route =
        crate::Route { prefix: Ipv4Addr::new(192, 168, 0, 0).into(), prefix_bits: 16, via: None };
    let mut peer = Peer::new(|config| config.routes = vec![route]);
    let remote = SocketAddr::new(Ipv4Addr::new(192, 168, 1, 1).into(), 80);
    peer.host
        .with(peer.now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true))
        .unwrap();
    peer.host.base.ip.set_routes(&[]).unwrap();
    assert_eq!(peer.cores(), []);
    peer.host.base.ip.set_routes(&[route]).unwrap();
    assert_eq!(peer.cores(), [(2, 0, 0, 0)]);
}

#[test]
fn what_lies_behind_a_gap_makes_room_for_what_closes_it() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    // All buffers except those for the next segments are in use.
    let mut others = Vec::new();
    while let Some(buf) = peer.host.memory.alloc(PoolId(0)) {
        others.push(buf);
    }
    for buf in others.drain(..2) {
        peer.host.memory.free(buf);
    }
    peer.inject(A | P, 3001, 1, &[3; 1000]);
    peer.inject(A | P, 7001, 1, &[7; 1000]);
    assert_eq!(peer.out().last().unwrap().ack, 1);
    peer.inject(A | P, 1, 1, &[1; 1000]);
    assert_eq!(peer.out().last().map(Out::core), Some((ACK, 1, 1001, 0)));
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, [1; 1000]);
    for buf in others {
        peer.host.memory.free(buf);
    }
    assert_eq!(peer.host.memory.in_use(), 0);
}

#[test]
fn out_of_order_fin_is_acknowledged_at_once() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    peer.inject(F | A, 101, 1, &[]);
    assert_eq!(peer.cores(), [(ACK, 1, 1, 0)]);
    peer.inject(A | P, 1, 1, &[7; 100]);
    assert_eq!(peer.out().last().map(Out::core), Some((ACK, 1, 102, 0)));
}

#[test]
fn sack_block_covers_the_fin_behind_its_text() {
    let (mut peer, _) = Peer::accepted(|_| {}, with_sack());
    peer.inject(F | A, 101, 1, b"abc");
    let out = peer.out();
    assert_eq!((out[0].core(), out[0].sack()), ((ACK, 1, 1, 0), vec![(101, 105)]));
}

#[test]
fn reset_before_the_last_acknowledgment_is_reported() {
    for crosses in [false, true] {
        let (mut peer, conn) = Peer::accepted(|_| {}, plain());
        if !crosses {
            peer.inject(F | A, 1, 1, &[]);
        }
        peer.send(conn, b"abc");
        peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
        peer.out();
        if crosses {
            peer.inject(F | A, 1, 1, &[]);
        }
        peer.inject(R | A, 2, 1, &[]);
        assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer), "{crosses}");
    }
}

#[test]
fn reset_after_both_sides_closed_keeps_unread_bytes() {
    for crosses in [false, true] {
        let (mut peer, conn) = Peer::accepted(|_| {}, plain());
        peer.inject(A | P, 1, 1, &[7; 100]);
        if !crosses {
            peer.inject(F | A, 101, 1, &[]);
        }
        peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
        peer.out();
        if crosses {
            peer.inject(F | A, 101, 1, &[]);
        }
        peer.inject(R | A, 102, 1, &[]);
        assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer), "{crosses}");
        assert_eq!(peer.host.received, [7; 100]);
        assert!(peer.host.events.contains(&Event::PeerClosed { conn }), "{crosses}");
    }
}

#[test]
fn reset_keeps_unread_bytes_and_drops_those_apart() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.inject(A | P, 1, 1, &[7; 100]);
    // Out of order: the stream is not whole.
    peer.inject(F | A | P, 201, 1, &[8; 100]);
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    peer.out();
    peer.inject(R | A, 101, 1, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer));
    assert_eq!(peer.host.received, [7; 100]);
    assert!(!peer.host.events.contains(&Event::PeerClosed { conn }));
    assert_eq!(peer.host.memory.in_use(), 0);
}

/// A connection with bytes that nothing has asked for, which its peer has reset.
fn broken() -> (Peer, ConnId) {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    assert_eq!(peer.host.tcp.withhold(conn), Ok(true));
    peer.inject(A | P, 1, 1, &[7; 100]);
    peer.inject(A | P, 101, 1, &[8; 100]);
    peer.send(conn, b"an answer that is not acknowledged");
    peer.inject(R | A, 201, 1, &[]);
    let reason = CloseReason::ResetByPeer;
    assert_eq!(peer.last_event(), Some(Event::Broken { conn, reason, is_whole: false }));
    assert_eq!(peer.host.received, []);
    (peer, conn)
}

#[test]
fn reset_is_reported_before_bytes_that_nothing_has_asked_for() {
    let (mut peer, conn) = broken();
    let events = peer.host.events.len();
    peer.host.collect(peer.now);
    assert_eq!(peer.host.events.len(), events, "once");
    let sent = peer.host.memory.chunk_of(b"late").unwrap();
    let refused = peer.host.with(peer.now, |tcp, context| tcp.send(context, conn, sent));
    assert_eq!(refused, Err(OperationError::Unknown));
    peer.host.memory.free(sent.buf);
    peer.host.tcp.receive(conn).unwrap();
    assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer));
    assert_eq!(peer.host.received, [[7; 100], [8; 100]].concat());
    assert_eq!(peer.host.memory.in_use(), 0);
    assert_eq!(peer.out(), [], "nothing answers a reset");
}

#[test]
fn reset_behind_the_peers_end_leaves_a_whole_stream() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    assert_eq!(peer.host.tcp.withhold(conn), Ok(true));
    peer.inject(A | P, 1, 1, &[7; 100]);
    peer.inject(F | A, 101, 1, &[]);
    peer.inject(R | A, 102, 1, &[]);
    let reason = CloseReason::ResetByPeer;
    assert_eq!(peer.last_event(), Some(Event::Broken { conn, reason, is_whole: true }));
    peer.host.tcp.receive(conn).unwrap();
    assert_eq!(peer.last_event(), closed(conn, CloseReason::Finished));
    assert_eq!(peer.host.received, [7; 100]);
    assert!(peer.host.events.contains(&Event::PeerClosed { conn }));
}

#[test]
fn bytes_left_of_a_reset_connection_go_with_it() {
    for how in ["close", "abort", "take"] {
        let (mut peer, conn) = broken();
        let now = peer.now;
        match how {
            "close" => peer.host.with(now, |tcp, context| tcp.close(context, conn)).unwrap(),
            "abort" => peer.host.with(now, |tcp, context| tcp.abort(context, conn)).unwrap(),
            _ => {
                let Host { tcp, memory, .. } = &mut peer.host;
                tcp.take_unread(conn, memory, |memory, chunk| memory.free(chunk.buf)).unwrap();
                assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer));
            }
        }
        assert_eq!(peer.host.memory.in_use(), 0, "{how}");
        assert_eq!(peer.host.tcp.receive(conn), Err(OperationError::Unknown), "{how}");
        assert_eq!(peer.out(), [], "{how}: it is over at the peer");
    }
}

#[test]
fn time_out_keeps_unread_bytes() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    assert_eq!(peer.host.tcp.withhold(conn), Ok(true));
    peer.inject(A | P, 1, 1, &[7; 100]);
    peer.send(conn, b"never acknowledged");
    let reason = CloseReason::TimedOut;
    let is_over = (0..100_000).any(|_| {
        peer.wait(100);
        peer.last_event() == Some(Event::Broken { conn, reason, is_whole: false })
    });
    assert!(is_over, "{:?}", peer.host.events);
    peer.host.tcp.receive(conn).unwrap();
    assert_eq!(peer.last_event(), closed(conn, reason));
    assert_eq!(peer.host.received, [7; 100]);
}

/// RFC 8985 §7.4.2: a peer without D-SACK reports the probe that it had by a duplicate ACK, which
/// comes when nothing is in flight any more.
#[test]
fn duplicate_ack_of_tail_loss_probe_is_no_congestion() {
    for is_lost in [false, true] {
        let (mut peer, conn) = Peer::accepted(|_| {}, with_sack());
        peer.send(conn, &[1; 500]);
        assert_eq!(peer.cores(), [(PA, 1, 1, 500)]);
        let probe = (0..100).map(|_| peer.wait(10)).find(|out| !out.is_empty()).unwrap();
        assert_eq!(probe[0].core(), (PA, 1, 1, 500), "the probe, and no timeout");
        assert_eq!(peer.host.base.counters.totals.retransmission_timeouts, 0);
        peer.inject(A, 1, 501, &[]);
        if !is_lost {
            peer.inject(A, 1, 501, &[]);
        }
        peer.send(conn, &[1; 500]);
        assert_eq!(peer.cores(), [(PA, 501, 1, 500)]);
        peer.inject(A, 1, 1001, &[]);
        let reduced = peer.host.conn(conn).cold.recovery.ssthresh().is_some();
        assert_eq!(reduced, is_lost);
    }
}

/// Each segment of a large frame would carry the SACK option, which leaves less room for text than
/// recovery counts on.
#[test]
fn data_with_sack_leaves_in_single_segments() {
    let offload = |config: &mut Config| {
        config.tso = true;
        config.tx_checksum = true;
        config.tx_frame_bytes = 65_550;
    };
    let (mut peer, conn) = Peer::accepted(offload, with_sack());
    peer.inject(A, 101, 1, b"behind a gap");
    peer.out();
    for _ in 0..2 {
        peer.send(conn, &[1; 1500]);
    }
    let out = peer.out();
    let sent: Vec<_> = out.iter().map(|out| (out.seq, out.len)).collect();
    assert_eq!(sent, [(1, 988), (989, 988), (1977, 988)]);
    assert!(out.iter().all(|out| out.transmit.segment_bytes() == 0 && !out.sack().is_empty()));
    // The second one arrived, and is not sent again.
    let second = SackBlock { start: peer.iss + 989, end: peer.iss + 1977 };
    peer.options.set_sack(&[second]);
    peer.inject(A, 1, 1, &[]);
    let mut again = peer.out();
    again.extend(peer.wait(2000));
    assert!(!again.is_empty());
    for out in again {
        let (start, end) = (out.seq, out.seq + out.len as u32);
        assert!(end <= 989 || start >= 1977, "{start}..{end}");
    }
}

/// RFC 6298 §3: an ACK of a SYN that was sent twice is no sample, whichever it answers.
#[test]
fn simultaneous_open_after_resent_syn_is_no_sample() {
    for (waits_ms, sample) in [(500, Some(Duration::from_millis(600))), (1500, None)] {
        let (mut peer, conn, _) = connecting(|_| {});
        let again = peer.wait(waits_ms).len();
        assert_eq!(again == 0, sample.is_some());
        peer.options = plain();
        peer.inject(S, 0, 0, &[]);
        assert_eq!(peer.cores(), [(SA, 0, 1, 0)]);
        peer.options = Options::default();
        peer.wait(100);
        peer.inject(A, 1, 1, &[]);
        assert_eq!(peer.last_event(), Some(Event::Connected { conn }));
        assert_eq!(peer.host.tcp.info(conn).unwrap().srtt, sample);
    }
}

/// The timestamp of a SYN-ACK with a cookie holds options of the SYN in its low bits.
#[test]
fn syn_cookie_timestamp_is_no_round_trip_sample() {
    let mut peer = Peer::new(|config| config.tcp.syn_cookies = SynCookies::Always);
    peer.listen();
    peer.clock = Some(500);
    peer.options = full();
    peer.inject(S, 0, 0, &[]);
    peer.out();
    peer.options = Options::default();
    peer.now += Duration::from_millis(10);
    peer.inject(A, 1, 1, &[]);
    let conn = peer.incoming().expect("incoming");
    assert_eq!(peer.host.tcp.info(conn).unwrap().srtt, None);
    peer.send(conn, b"x");
    peer.out();
    peer.now += Duration::from_millis(10);
    peer.inject(A, 1, 2, &[]);
    let srtt = peer.host.tcp.info(conn).unwrap().srtt;
    assert_eq!(srtt, Some(Duration::from_millis(10)));
}

/// Anything that knows the ports can send a segment outside the window.
#[test]
fn segments_outside_the_window_do_not_put_keepalives_off() {
    let keepalive = |config: &mut Config| {
        config.tcp.keepalive_idle = Some(Duration::from_secs(10));
    };
    let (mut peer, _conn) = Peer::accepted(keepalive, plain());
    assert!(peer.wait(9_000).is_empty());
    peer.inject(A, 3_000_000_000, 1, &[]);
    peer.out();
    let probes = peer.wait(1_500);
    assert_eq!(probes.iter().map(Out::core).collect::<Vec<_>>(), [(ACK, 0, 1, 0)]);
}
