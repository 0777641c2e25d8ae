//! Whole connections, with and without faults.

use super::*;
use crate::error::CloseReason;
use crate::table_memory::Table;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}

fn assert_quiet(pair: &Pair) {
    assert_eq!(pair.a.memory.in_use(), 0, "buffers of a");
    assert_eq!(pair.b.memory.in_use(), 0, "buffers of b");
    for host in [&pair.a, &pair.b] {
        assert_eq!(host.tcp.places.len(), 0);
        assert_eq!(host.tcp.half_open.len(), 0);
        assert_eq!(host.tcp.shard.nodes.len(), 0);
        let usage = host.tcp.usage();
        assert_eq!((usage.gaps, usage.stresses, usage.rares), (0, 0, 0));
        assert_eq!(host.tcp.shard.flows.len(), host.tcp.time_waits.len());
    }
}

#[test]
fn a_handshake_agrees_on_all_options() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    let (a, b) = (pair.a.tcp.info(a).unwrap(), pair.b.tcp.info(b).unwrap());
    assert_eq!((a.state, b.state), (TcpState::Established, TcpState::Established));
    assert!(a.timestamps && a.sack && b.timestamps && b.sack);
    assert_eq!((a.mss, b.mss), (1448, 1448));
    assert_eq!(a.window_scale, Some((7, 7)));
    assert_eq!(a.srtt, Some(Duration::from_millis(10)));
}

#[test]
fn bytes_go_both_ways_and_both_sides_close() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    assert!(pair.a.send(pair.now, a, b"question"));
    pair.run(100);
    assert_eq!(pair.b.received, b"question");
    assert!(pair.b.send(pair.now, b, b"answer"));
    pair.run(100);
    assert_eq!(pair.a.received, b"answer");
    pair.a.with(pair.now, |tcp, context| tcp.shutdown(context, a)).unwrap();
    pair.run(100);
    assert!(pair.b.events.contains(&Event::PeerClosed { conn: b }));
    assert!(pair.b.send(pair.now, b, b"more"));
    pair.b.with(pair.now, |tcp, context| tcp.shutdown(context, b)).unwrap();
    pair.run(100);
    assert_eq!(pair.a.received, b"answermore");
    let finished = |conn| Event::Closed { conn, reason: CloseReason::Finished };
    assert_eq!(pair.a.events.last(), Some(&finished(a)));
    assert_eq!(pair.b.events.last(), Some(&finished(b)));
    assert_eq!(pair.a.tcp.time_waits.len(), 1);
    assert_quiet(&pair);
    pair.run(120_000);
    assert_eq!(pair.a.tcp.time_waits.len(), 0);
    assert_eq!(pair.a.tcp.poll_timeout(), None);
}

#[test]
fn a_connection_holds_its_local_port_until_old_segments_are_gone() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    let (local, remote) = pair.a.tcp.addresses(a).unwrap();
    let shared = Reuse { address: true, ..Reuse::default() };
    let holder = |of: SocketAddr, reuse| Holder { port: of.port(), ip: of.ip(), reuse };
    let holders = |host: &Host| Vec::from_iter(host.tcp.holders(0..=u16::MAX));
    assert_eq!(holders(&pair.a), [holder(local, Reuse::default())]);
    assert_eq!(holders(&pair.b), [holder(remote, Reuse::default())]);
    pair.a
        .with(pair.now, |tcp, context| tcp.set_option(context, a, ConnOption::Reuse(shared)))
        .unwrap();
    assert_eq!(holders(&pair.a), [holder(local, shared)]);
    let port = local.port();
    assert!(pair.a.tcp.holders(0..=port - 1).is_empty());
    let next = |host: &Host, from| host.tcp.port_without_connections(port..=port + 1, from);
    assert_eq!((next(&pair.a, port), next(&pair.a, port + 1)), (Some(port + 1), Some(port + 1)));
    assert_eq!(pair.a.tcp.port_without_connections(port..=port, port), None);
    pair.a.with(pair.now, |tcp, context| tcp.close(context, a)).unwrap();
    pair.run(100);
    pair.b.with(pair.now, |tcp, context| tcp.close(context, b)).unwrap();
    pair.run(100);
    assert_eq!(pair.a.tcp.time_waits.len(), 1);
    assert_eq!(holders(&pair.a), [holder(local, shared)]);
    assert_eq!(holders(&pair.b), []);
    pair.run(120_000);
    assert_eq!(holders(&pair.a), []);
    assert_eq!(next(&pair.a, port), Some(port));
}

#[test]
fn a_stream_arrives_whole() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    let stream = bytes(3_000_000);
    let mut rest = &stream[..];
    while !rest.is_empty() {
        let len = rest.len().min(2048);
        if pair.a.send(pair.now, a, &rest[..len]) {
            rest = &rest[len..];
        } else {
            pair.run(1);
        }
    }
    pair.a.with(pair.now, |tcp, context| tcp.close(context, a)).unwrap();
    pair.run(3000);
    assert_eq!(pair.b.received.len(), stream.len());
    assert!(pair.b.received == stream);
    assert!(pair.b.events.contains(&Event::PeerClosed { conn: b }));
    assert_eq!(pair.a.base.counters.totals.segments_retransmitted, 0);
    pair.b.with(pair.now, |tcp, context| tcp.close(context, b)).unwrap();
    pair.run(1000);
    assert_quiet(&pair);
}

#[test]
fn a_stream_survives_loss() {
    for percent in [1, 5] {
        let mut pair = Pair::new(|_| {});
        let (a, _) = pair.establish();
        let mut state = 12_345_u64 + percent;
        pair.lose = Box::new(move |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 100 < percent
        });
        let stream = bytes(300_000);
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let len = rest.len().min(1500);
            if pair.a.send(pair.now, a, &rest[..len]) {
                rest = &rest[len..];
            } else {
                pair.run(10);
            }
        }
        pair.a.with(pair.now, |tcp, context| tcp.close(context, a)).unwrap();
        pair.run(200_000);
        assert_eq!(pair.b.received.len(), stream.len(), "{percent} %");
        assert!(pair.b.received == stream);
        assert!(pair.a.base.counters.totals.segments_retransmitted > 0);
    }
}

#[test]
fn a_port_without_listener_refuses() {
    let mut pair = Pair::new(|_| {});
    let a = pair.connect();
    pair.run(100);
    let refused = Event::Closed { conn: a, reason: CloseReason::Refused };
    assert_eq!(pair.a.events, [refused]);
    assert_quiet(&pair);
}

#[test]
fn an_abort_resets_the_peer() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    pair.a.with(pair.now, |tcp, context| tcp.abort(context, a)).unwrap();
    pair.run(100);
    let reset = Event::Closed { conn: b, reason: CloseReason::ResetByPeer };
    assert_eq!(pair.b.events.last(), Some(&reset));
    assert_eq!(pair.a.tcp.info(a), Err(crate::OperationError::Unknown));
    assert_quiet(&pair);
}

#[test]
fn both_sides_may_close_at_once() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    pair.a.with(pair.now, |tcp, context| tcp.shutdown(context, a)).unwrap();
    pair.b.with(pair.now, |tcp, context| tcp.shutdown(context, b)).unwrap();
    pair.run(1000);
    let finished = |conn| Event::Closed { conn, reason: CloseReason::Finished };
    assert_eq!(pair.a.events.last(), Some(&finished(a)));
    assert_eq!(pair.b.events.last(), Some(&finished(b)));
    assert_eq!((pair.a.tcp.time_waits.len(), pair.b.tcp.time_waits.len()), (1, 1));
    assert_quiet(&pair);
}

#[test]
fn a_closed_window_is_probed_and_opens() {
    let mut pair = Pair::new(|config| {
        config.tcp.receive_buffer = 4096;
        config.tcp.receive_buffer_max = 4096;
    });
    let (a, b) = pair.establish();
    // The reader stops taking events.
    let stream = bytes(20_000);
    for part in stream.chunks(1000) {
        assert!(pair.a.send(pair.now, a, part));
    }
    pair.run_without_readers(2000);
    assert_eq!(pair.a.conn(a).send.wnd, 0);
    assert!(pair.a.conn(a).flags.has(ConnFlags::PERSIST));
    assert!(pair.a.base.counters.totals.window_probes > 0);
    assert_eq!(pair.b.conn(b).receive.queue.ready_bytes(), 4096);
    pair.run(60_000);
    assert!(pair.b.received == stream);
}

#[test]
fn late_segments_for_a_connection_that_left_are_not_answered() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    let (now, flow) = (pair.now, pair.b.tcp.shard.locals.flow(&pair.b.conn(b).ends));
    let ends = |flow: &Flow| {
        let end = SocketAddr::new;
        (end(flow.local.ip(), flow.local_port), end(flow.remote.ip(), flow.remote_port))
    };
    let (local, remote) = ends(&flow);
    assert!(pair.b.tcp.knows(local, remote) && !pair.b.tcp.knows(remote, local));
    let snapshot = pair.b.with(now, |tcp, context| tcp.export(context, b)).unwrap();
    assert!(!pair.b.tcp.knows(local, remote));
    assert!(pair.a.send(now, a, b"on its way"));
    let (frame, _) = pair.a.frame(now).unwrap();
    pair.b.take(now, &frame);
    assert_eq!(pair.b.frame(now), None, "no RST, and no connection to acknowledge it");
    assert_eq!(pair.b.base.counters.dropped(crate::Drop::DepartedConnection), 1);
    // It comes back: what was dropped is sent again.
    let b = pair.b.with(now, |tcp, context| tcp.import(context, &snapshot, PoolId(0))).unwrap();
    pair.b.tcp.receive(b).unwrap();
    pair.run(2000);
    assert_eq!(pair.b.received, b"on its way");
    // Some time after the export, the flow is unknown.
    let now = pair.now;
    pair.b.with(now, |tcp, context| tcp.export(context, b)).unwrap();
    let later = now + crate::limits::DEPARTED_LASTS;
    pair.b.take(later, &frame);
    assert_eq!(pair.b.base.counters.dropped(crate::Drop::DepartedConnection), 1);
    assert!(pair.b.frame(later).is_some(), "a RST");
}

#[test]
fn no_more_connections_are_remembered_than_there_is_room_for() {
    let mut departed = Departed::default();
    let flow = |port| Flow {
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        remote: Ipv4Addr::new(10, 0, 0, 2).into(),
        local_port: 80,
        remote_port: port,
    };
    let last = crate::limits::DEPARTED_MAX as u16;
    for port in 0..=last {
        departed.add(flow(port), Instant::ZERO);
    }
    assert!(!departed.holds(&flow(0), Instant::ZERO), "the oldest went");
    assert!(departed.holds(&flow(1), Instant::ZERO) && departed.holds(&flow(last), Instant::ZERO));
    departed.remove(&flow(1));
    assert!(!departed.holds(&flow(1), Instant::ZERO));
}

#[test]
fn import_without_timestamp_learns_it_from_next_segment() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    let now = pair.now;
    let mut snapshot = pair.b.with(now, |tcp, context| tcp.export(context, b)).unwrap();
    let clocks = snapshot.clocks.as_mut().unwrap();
    clocks.recent = None;
    let b = pair.b.with(now, |tcp, context| tcp.import(context, &snapshot, PoolId(0))).unwrap();
    pair.b.tcp.receive(b).unwrap();
    assert!(pair.a.send(now, a, b"later than nothing"));
    pair.run(1000);
    assert_eq!(pair.b.received, b"later than nothing");
    assert_ne!(pair.b.conn(b).receive.ts_recent, 0);
    assert_eq!(pair.b.base.counters.dropped(crate::Drop::OldTimestamp), 0);
}

#[test]
fn a_connection_moves_in_the_middle_of_a_transfer() {
    for change in [|_: &mut Config| {}, |config: &mut Config| config.tcp.timestamps = false] {
        let mut pair = Pair::new(change);
        let (a, b) = pair.establish();
        let stream = bytes(40_000);
        for part in stream.chunks(2000) {
            assert!(pair.a.send(pair.now, a, part));
        }
        assert!(pair.b.send(pair.now, b, b"not read yet"));
        // Half of it is on its way when both ends move.
        pair.run_without_readers(12);
        let moves = |host: &mut Host, now, id| {
            let snapshot = host.with(now, |tcp, context| tcp.export(context, id)).unwrap();
            assert_eq!(host.tcp.info(id), Err(crate::OperationError::Unknown));
            host.tcp.check_invariants();
            let id =
                host.with(now, |tcp, context| tcp.import(context, &snapshot, PoolId(0))).unwrap();
            host.tcp.receive(id).unwrap();
            id
        };
        let a = moves(&mut pair.a, pair.now, a);
        let b = moves(&mut pair.b, pair.now, b);
        pair.run(5000);
        assert!(pair.b.received == stream);
        assert_eq!(pair.a.received, b"not read yet");
        pair.a.with(pair.now, |tcp, context| tcp.close(context, a)).unwrap();
        pair.b.with(pair.now, |tcp, context| tcp.close(context, b)).unwrap();
        pair.run(5000);
        assert_quiet(&pair);
    }
}

#[test]
fn every_connection_may_need_what_few_do_and_none_keeps_it() {
    let mut pair = Pair::new(|config| config.connections = 4);
    let mut conns = vec![pair.establish().0];
    conns.extend((0..3).map(|_| pair.connect()));
    pair.run(100);
    let touched = |host: &Host, which: Table| {
        let tables = host.tcp.memory();
        tables.iter().find(|memory| memory.table == which).map(|memory| memory.touched_bytes)
    };
    assert_eq!((pair.a.tcp.usage().rares, touched(&pair.a, Table::Rares)), (0, Some(0)));
    assert_eq!(touched(&pair.a, Table::Connections), Some(4 * size_of::<Connection>()));
    let now = pair.now;
    for a in &conns {
        let idle = ConnOption::KeepaliveIdle(Some(Duration::from_secs(3600)));
        pair.a.with(now, |tcp, context| tcp.set_option(context, *a, idle)).unwrap();
    }
    assert_eq!(pair.a.tcp.usage().rares, 4);
    for a in &conns {
        pair.a.with(now, |tcp, context| tcp.abort(context, *a)).unwrap();
    }
    assert_eq!(pair.a.tcp.usage().rares, 0);
    for memory in pair.a.tcp.memory() {
        assert!(memory.touched_bytes <= memory.reserved_bytes, "{memory:?}");
    }
}

#[test]
fn an_answer_of_the_same_turn_carries_the_acknowledgment() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    pair.run(100);
    // Also while each of a young connection's segments is acknowledged at once.
    for turn in 0..40_u8 {
        let now = pair.now;
        pair.b.tcp.receive(b).unwrap();
        assert!(pair.a.send(now, a, &[turn; 100]));
        let (request, _) = pair.a.frame(now).unwrap();
        pair.b.take(now, &request);
        pair.b.collect(now);
        assert!(pair.b.send(now, b, &[turn; 50]));
        let (answer, _) = pair.b.frame(now).unwrap();
        let packet = ipv4::View::new(&answer).unwrap();
        let segment = crate::wire::tcp::View::new(packet.payload()).unwrap();
        assert_eq!(segment.payload(), [turn; 50]);
        assert_eq!(segment.ack(), pair.a.conn(a).send.nxt, "nothing is left to acknowledge");
        assert_eq!(pair.b.frame(now), None, "and nothing goes for its own sake");
        pair.a.take(now, &answer);
        pair.now += Duration::from_millis(1);
    }
}
