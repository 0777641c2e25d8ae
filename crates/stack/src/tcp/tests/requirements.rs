//! Requirements of RFC 9293 that no other test shows, by their numbers.
//!
//! Read first: `docs/RFC9293.md`, which says where each of them is shown.

use super::peer::*;
use super::segments::{closed, connecting, icmp};
use super::*;
use crate::counters::Drop;
use crate::error::{CloseReason, ConnectError, ListenError};
use crate::ip::{IcmpErrorKind, Unreachable};
use crate::wire::tcp::{Flags, Options};

/// No congestion window is in the way.
fn at_once(config: &mut Config) {
    config.tcp.initial_window = 100;
}

#[test]
fn must_1_a_window_over_32767_is_used_whole() {
    let (mut peer, conn) = Peer::accepted(at_once, plain());
    for _ in 0..40 {
        peer.send(conn, &[0; 2000]);
    }
    let bytes: usize = peer.out().iter().map(|out| out.len).sum();
    assert_eq!(bytes, usize::from(peer.window));
}

#[test]
fn must_3_a_wrong_checksum_gets_no_answer() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.damage = 0x0100;
    for flags in [S, A, A | F, R] {
        peer.inject(flags, 1, 1, b"damaged");
    }
    assert_eq!(peer.out(), []);
    assert_eq!(peer.dropped(Drop::BadTransportChecksum), 4);
    let info = peer.host.tcp.info(conn).unwrap();
    assert_eq!((info.state, info.bytes_in), (TcpState::Established, 0));
}

#[test]
fn must_11_a_reset_in_a_simultaneous_open_refuses() {
    let (mut peer, conn, _) = connecting(|_| {});
    peer.inject(S, 0, 0, &[]);
    peer.out();
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::SynReceived);
    peer.inject(R, 1, 0, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::Refused));
}

#[test]
fn must_10_windows_of_a_simultaneous_open_are_not_scaled() {
    let (mut peer, conn, _) = connecting(|_| {});
    peer.options = Options { window_scale: Some(7), ..plain() };
    peer.window = 3000;
    peer.inject(S, 0, 0, &[]);
    peer.out();
    peer.inject(S | A, 0, 1, &[]);
    peer.options = Options::default();
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
    assert_eq!(peer.last_event(), Some(Event::Connected { conn }));
    assert_eq!(peer.host.conn(conn).send.wnd, 3000);
    peer.inject(A, 1, 1, &[]);
    assert_eq!(peer.host.conn(conn).send.wnd, 3000 << 7);
}

#[test]
fn must_23_a_syn_is_tried_for_three_minutes_ever_more_seldom() {
    let (mut peer, conn, _) = connecting(|_| {});
    let mut sent_at = Vec::new();
    for tenth in 0..1800 {
        sent_at.extend(peer.wait(100).iter().map(|_| tenth));
    }
    let waits: Vec<i32> = sent_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.is_sorted() && waits.len() >= 3, "{waits:?}");
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::SynSent);
    peer.wait(300_000);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::TimedOut));
}

#[test]
fn shld_11_data_is_tried_for_a_hundred_seconds() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    peer.send(conn, b"x");
    peer.out();
    assert!(peer.wait(100_000).len() > 3);
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
}

#[test]
fn must_25_an_idle_connection_is_silent() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    assert_eq!(peer.wait(48 * 3_600_000), []);
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
}

#[test]
fn must_31_urgent_data_may_be_longer_than_the_pointer_reaches() {
    let (mut peer, conn) = Peer::accepted(at_once, plain());
    for _ in 0..35 {
        peer.send(conn, &[0; 2000]);
    }
    peer.host
        .with(peer.now, |tcp, context| tcp.set_option(context, conn, ConnOption::Urgent))
        .unwrap();
    let out = peer.out();
    assert!(out.iter().all(|out| out.flags.contains(U)), "{out:?}");
    assert_eq!(out[0].urgent, u16::MAX);
    let last = out.last().unwrap();
    assert_eq!(last.seq + u32::from(last.urgent), 70_001);
}

#[test]
fn must_33_urgent_bytes_are_counted_until_they_are_read() {
    let (mut peer, conn) = Peer::accepted(|_| {}, plain());
    let urgent = |peer: &Peer| peer.host.tcp.info(conn).unwrap().urgent_bytes;
    peer.urgent = 3;
    peer.inject(A | U, 1, 1, b"abcdef");
    assert_eq!(urgent(&peer), 3);
    peer.host.collect(peer.now);
    assert_eq!(urgent(&peer), 0);
    // The pointer is ahead of the bytes.
    peer.urgent = 100;
    peer.inject(A | U, 7, 1, b"abc");
    assert_eq!(urgent(&peer), 100);
    peer.host.collect(peer.now);
    assert_eq!(urgent(&peer), 97);
    peer.inject(A, 10, 1, b"de");
    peer.inject(A | F, 12, 1, &[]);
    assert_eq!(urgent(&peer), 2, "there will be no more");
    peer.host.collect(peer.now);
    assert_eq!(urgent(&peer), 0);
}

#[test]
fn must_41_listening_changes_no_connection() {
    let mut peer = Peer::new(|_| {});
    let local = SocketAddr::new(peer.local.0, peer.local.1);
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let connect = |tcp: &mut Tcp, context: &mut Context<'_, HeapMemory>| {
        tcp.connect(context, remote, Some(local), PoolId(0), &|_| true)
    };
    let conn = peer.host.with(peer.now, connect).unwrap();
    let iss = peer.out().remove(0).seq;
    assert_eq!(iss, 0);
    // MUST-42: beside a connection in SYN-SENT, and beside one in SYN-RECEIVED.
    peer.listen();
    let iss = peer.iss;
    peer.remote.1 += 1;
    peer.inject(S, 0, 0, &[]);
    assert!(peer.out()[0].flags.contains(S | A), "the listener's");
    (peer.remote.1, peer.iss) = (remote.port(), iss);
    peer.inject(S | A, 0, 1, &[]);
    assert_eq!(peer.last_event(), Some(Event::Connected { conn }));
    let again =
        peer.host.with(peer.now, |tcp, context| tcp.listen(&context.base.ip, local, 4, PoolId(0)));
    assert_eq!(again, Err(ListenError::InUse));
    assert_eq!(peer.host.tcp.info(conn).unwrap().state, TcpState::Established);
    peer.send(conn, b"still here");
    assert!(peer.out().iter().any(|out| out.len == 10));
}

#[test]
fn must_45_a_connection_keeps_the_address_that_it_began_with() {
    let second: IpAddr = Ipv4Addr::new(10, 0, 0, 3).into();
    for wanted in [None, Some(SocketAddr::new(second, 0))] {
        let mut peer = Peer::new(|config| config.addresses.push((second, 24)));
        let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
        let connect = |tcp: &mut Tcp, context: &mut Context<'_, HeapMemory>| {
            tcp.connect(context, remote, wanted, PoolId(0), &|_| true)
        };
        let conn = peer.host.with(peer.now, connect).unwrap();
        let src = peer.out()[0].src;
        // MUST-43: the one that was asked for; MUST-44: else one of ours that IP chooses.
        assert!(wanted.is_none_or(|wanted| wanted.ip() == src));
        assert!(peer.host.base.ip.is_ours(src));
        peer.local.0 = src;
        peer.inject(S | A, 0, 1, &[]);
        peer.send(conn, b"data");
        let out = peer.out();
        assert!(!out.is_empty() && out.iter().all(|out| out.src == src), "{out:?}");
    }
}

#[test]
fn must_46_a_broadcast_address_cannot_be_called() {
    let mut peer = Peer::new(|_| {});
    let remote = "10.0.0.255:80".parse().unwrap();
    for local in [None, Some("10.0.0.1:0".parse().unwrap())] {
        let called = peer.host.with(peer.now, |tcp, context| {
            tcp.connect(context, remote, local, PoolId(0), &|_| true)
        });
        assert_eq!(called, Err(ConnectError::NoRoute));
    }
    assert_eq!(peer.out(), []);
}

#[test]
fn must_56_soft_errors_end_nothing_and_are_told() {
    use IcmpErrorKind::{ParameterProblem, TimeExceeded, Unreachable as Lost};
    let soft = [Unreachable::Network, Unreachable::Host, Unreachable::Prohibited].map(Lost);
    for kind in soft.into_iter().chain([TimeExceeded, ParameterProblem]) {
        let (mut peer, conn) = Peer::accepted(|_| {}, plain());
        peer.send(conn, b"x");
        peer.out();
        assert!(!peer.host.tcp.info(conn).unwrap().soft_error);
        let error = icmp(&peer, 1, kind);
        peer.host.with(peer.now, |tcp, context| tcp.on_icmp_error(context, &error));
        let info = peer.host.tcp.info(conn).unwrap();
        assert_eq!((info.state, info.soft_error), (TcpState::Established, true), "{kind:?}");
    }
}

#[test]
fn must_59_a_burst_is_acknowledged_once() {
    let (mut peer, _) = Peer::accepted(|_| {}, plain());
    for index in 0..8 {
        peer.inject(A, 1 + 1000 * index, 1, &[0; 1000]);
    }
    assert_eq!(peer.cores(), [(Flags::ACK.0, 1, 8001, 0)]);
}

#[test]
fn must_65_an_mss_is_said_in_a_syn_only() {
    let (mut peer, conn, syn) = connecting(|_| {});
    assert_eq!(syn.options.mss, Some(1460));
    peer.options = plain();
    peer.inject(S | A, 0, 1, &[]);
    peer.options = Default::default();
    let mut out = peer.out();
    peer.send(conn, b"data");
    out.extend(peer.out());
    peer.inject(A, 1, 5, b"data");
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    out.extend(peer.out());
    assert!(out.len() == 3 && out.iter().all(|out| out.options.mss.is_none()), "{out:?}");
}

#[test]
fn must_66_a_closed_window_takes_urg_and_rst() {
    let small = |config: &mut Config| {
        config.tcp.receive_buffer = 4000;
        config.tcp.receive_buffer_max = 4000;
    };
    let (mut peer, conn) = Peer::accepted(small, plain());
    for index in 0..4 {
        peer.inject(A, 1 + index * 1000, 1, &[0; 1000]);
    }
    assert_eq!(peer.out().last().unwrap().window, 0);
    peer.urgent = 1;
    peer.inject(A | U, 4001, 1, b"!");
    assert_eq!(peer.host.tcp.poll_event(peer.now), Some(Event::Urgent { conn, bytes: 4001 }));
    assert_eq!(peer.host.tcp.info(conn).unwrap().unread_bytes, 4000);
    peer.inject(R, 4001, 0, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer));
}
