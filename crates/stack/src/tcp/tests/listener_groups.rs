//! Groups of listeners: what they bound, and when they have room again.

use super::*;
use crate::counters::Drop;
use crate::id::ListenerGroupId;

/// `b` listens at `PORT` and above, with backlogs larger than what the group may have.
fn listen_in_group(pair: &mut Pair, count: u16, limits: ListenerGroupLimits) -> ListenerGroupId {
    let group = pair.b.tcp.listener_groups().open(limits).unwrap();
    for port in PORT..PORT + count {
        let id = listen_at(&mut pair.b, pair.now, port);
        pair.b.tcp.set_listener_group(id, group).unwrap();
    }
    group
}

fn listen_at(host: &mut Host, now: Instant, port: u16) -> ListenerId {
    let local = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), port);
    host.with(now, |tcp, context| tcp.listen(&context.base.ip, local, 100, PoolId(0))).unwrap()
}

fn connect_to(pair: &mut Pair, port: u16) -> ConnId {
    let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), port);
    let connected = pair
        .a
        .with(pair.now, |tcp, context| tcp.connect(context, remote, None, PoolId(0), &|_| true));
    connected.unwrap()
}

fn connected(host: &Host) -> usize {
    host.events.iter().filter(|event| matches!(event, Event::Connected { .. })).count()
}

/// Names of the connections that were reported at `b`.
fn incoming(host: &Host) -> Vec<ConnId> {
    let conn = |event: &Event| match event {
        Event::Incoming { conn, .. } => Some(*conn),
        _ => None,
    };
    host.events.iter().filter_map(conn).collect()
}

#[test]
fn backlogs_of_a_group_are_bounded_together() {
    let mut pair = Pair::new(|_| {});
    let limits = ListenerGroupLimits { waiting: 6, connections: 100 };
    let group = listen_in_group(&mut pair, 4, limits);
    let other = listen_at(&mut pair.b, pair.now, PORT + 9);
    for port in [0, 1, 2, 3, 0, 1, 2, 3] {
        connect_to(&mut pair, PORT + port);
        pair.run(50);
    }
    assert_eq!((connected(&pair.a), pair.b.base.counters.dropped(Drop::ListenerGroupFull)), (6, 2));
    connect_to(&mut pair, PORT + 9);
    pair.run(50);
    assert_eq!(connected(&pair.a), 7, "a listener of no group");
    let usage = pair.b.tcp.listener_groups().usage(group);
    assert_eq!((usage.waiting, usage.connections, usage.refused_waiting), (6, 6, 2));
    // Those that are refused come again, and there is room.
    let first = pair.b.tcp.listeners.id(0);
    pair.b.tcp.accept(first, 2).unwrap();
    pair.run(3_000);
    assert_eq!(connected(&pair.a), 9);
    let usage = pair.b.tcp.listener_groups().usage(group);
    assert_eq!((usage.waiting, usage.connections), (6, 8));
    pair.b.with(pair.now, |tcp, context| tcp.unlisten(context, other)).unwrap();
    for listener in 0..4 {
        let id = pair.b.tcp.listeners.id(listener);
        pair.b.with(pair.now, |tcp, context| tcp.unlisten(context, id)).unwrap();
    }
    pair.b.tcp.listener_groups().close(group);
    let usage = pair.b.tcp.listener_groups().usage(group);
    assert_eq!((usage.waiting, usage.connections), (0, 2), "those that were accepted");
    for conn in incoming(&pair.b) {
        pair.b.with(pair.now, |tcp, context| tcp.abort(context, conn)).unwrap();
    }
    assert_eq!(pair.b.tcp.listener_groups().numbers().count(), 0);
    pair.run(100);
}

/// Whatever credit an application gives, its group has no more connections than it may.
#[test]
fn credit_of_a_group_is_bounded_by_its_connections() {
    let mut pair = Pair::new(|_| {});
    let limits = ListenerGroupLimits { waiting: 100, connections: 5 };
    let group = listen_in_group(&mut pair, 2, limits);
    for listener in 0..2 {
        let id = pair.b.tcp.listeners.id(listener);
        pair.b.tcp.accept(id, u32::MAX).unwrap();
    }
    for port in [0, 1, 0, 1, 0, 1] {
        connect_to(&mut pair, PORT + port);
        pair.run(50);
    }
    assert_eq!((connected(&pair.a), incoming(&pair.b).len()), (5, 5));
    let usage = pair.b.tcp.listener_groups().usage(group);
    assert_eq!((usage.waiting, usage.connections, usage.refused_connections), (0, 5, 1));
    // One that its application has closed counts until the peer has closed it, too.
    let closed = incoming(&pair.b)[0];
    pair.b.with(pair.now, |tcp, context| tcp.close(context, closed)).unwrap();
    pair.run(1_500);
    assert_eq!(connected(&pair.a), 5);
    let aborted = incoming(&pair.b)[1];
    pair.b.with(pair.now, |tcp, context| tcp.abort(context, aborted)).unwrap();
    pair.run(5_000);
    assert_eq!(connected(&pair.a), 6);
}

/// SYNs for the listeners of one group leave records of handshakes to others.
#[test]
fn group_has_cookies_beyond_its_half_of_the_handshakes() {
    let mut pair = Pair::new(|config| (config.tcp.syn_backlog, config.listeners) = (4, 3));
    listen_in_group(&mut pair, 2, ListenerGroupLimits { waiting: 99, connections: 99 });
    listen_at(&mut pair.b, pair.now, PORT + 9);
    pair.lose = Box::new(|to_b, _| !to_b);
    for port in [0, 1, 0, 1, 0, 1] {
        connect_to(&mut pair, PORT + port);
    }
    pair.run(50);
    assert_eq!((pair.b.tcp.half_open.len(), pair.b.base.counters.totals.cookies_sent), (6, 0));
    pair.lose = Box::new(|_, _| false);
    connect_to(&mut pair, PORT);
    pair.run(50);
    assert_eq!((connected(&pair.a), pair.b.base.counters.totals.cookies_sent), (1, 1));
    connect_to(&mut pair, PORT + 9);
    pair.run(50);
    assert_eq!((connected(&pair.a), pair.b.base.counters.totals.cookies_sent), (2, 1));
}

#[test]
fn handover_does_not_exceed_the_connections_of_a_group() {
    let mut pair = Pair::new(|_| {});
    let mut apart = Host::new(2, |_| {});
    let listener = listen_at(&mut pair.b, pair.now, PORT);
    let other = listen_at(&mut apart, pair.now, PORT);
    let limits = ListenerGroupLimits { waiting: 1, connections: 2 };
    let group = apart.tcp.listener_groups().open(limits).unwrap();
    apart.tcp.set_listener_group(other, group).unwrap();
    for _ in 0..3 {
        connect_to(&mut pair, PORT);
    }
    pair.run(50);
    let now = pair.now;
    let taken = [(); 3].map(|()| {
        let moved = pair.b.with(now, |tcp, context| tcp.hand_over_next(context, listener));
        apart.with(now, |tcp, context| tcp.take_over(context, moved.unwrap())).is_ok()
    });
    assert_eq!(taken, [true, true, false]);
    apart.tcp.check_invariants();
}
