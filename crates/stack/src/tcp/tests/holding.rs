//! Slots, ports and addresses are held by existing connections only.

use proptest::prelude::*;

use super::*;
use crate::error::ConnectError;
use crate::limits::{LOCALS_MAX, NODES_MIN};
use crate::tcp::migrate::Snapshot;
use crate::tcp::send_hold::Reuse;

/// So many connections there can be.
const PLACES: u32 = 3;
/// Our addresses; the peer is 10.0.0.2.
const OURS: [u8; 3] = [1, 3, 4];

const fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

#[test]
fn without_room_for_its_address_a_connection_leaves_time_wait_alone() {
    let mut pair = Pair::new(|_| {});
    let (a, b) = pair.establish();
    pair.a.with(pair.now, |tcp, context| tcp.shutdown(context, a)).unwrap();
    pair.b.with(pair.now, |tcp, context| tcp.shutdown(context, b)).unwrap();
    pair.run(5_000);
    let Host { tcp, .. } = &mut pair.a;
    let (record, _) = tcp.time_waits.iter().next().unwrap();
    let Flow { local, remote, local_port, remote_port } = record.flow;
    let (local, remote) =
        (SocketAddr::new(local.ip(), local_port), SocketAddr::new(remote.ip(), remote_port));
    // Connections have all the addresses that there is room for.
    let others: Vec<_> = (0..LOCALS_MAX as u32)
        .map(|n| Flow { local: Ipv4Addr::from_bits(n).into(), ..record.flow })
        .map(|flow| tcp.shard.locals.take(&flow, Reuse::default()).unwrap())
        .collect();
    let begin = |tcp: &mut Tcp, context: &mut Context<'_, HeapMemory>| {
        tcp.connect(context, remote, Some(local), PoolId(0), &|_| true)
    };
    assert_eq!(pair.a.with(pair.now, begin), Err(ConnectError::TooManyConnections));
    assert_eq!(pair.a.tcp.time_waits.len(), 1, "segments to the old one are distinguished");
    for ends in others {
        pair.a.tcp.shard.locals.give_back(&ends);
    }
    pair.a.tcp.check_invariants();
    pair.a.with(pair.now, begin).unwrap();
    assert_eq!(pair.a.tcp.time_waits.len(), 0, "it made room");
    pair.a.tcp.check_invariants();
}

#[test]
fn what_there_is_no_room_for_takes_nothing() {
    let mut host = Host::new(1, |config| config.connections = 1);
    let flow = |local: IpAddr, local_port| {
        let (local, remote) = (local.into(), ip(2).into());
        Flow { local, remote, local_port, remote_port: 80 }
    };
    let room = host.tcp.take_room(&flow(ip(1), 1_000), Reuse::default()).unwrap();
    assert!(host.tcp.take_room(&flow(ip(1), 2_000), Reuse::default()).is_none());
    assert!(!host.tcp.shard.locals.are_held(2_000..=2_000), "no place, and no port either");
    host.tcp.give_room_back(room);
    assert!(!host.tcp.shard.locals.are_held(0..=u16::MAX));
    for n in 0..LOCALS_MAX as u32 {
        let other = flow(Ipv4Addr::from_bits(n).into(), 3_000);
        host.tcp.shard.locals.take(&other, Reuse::default()).unwrap();
    }
    assert!(host.tcp.take_room(&flow(ip(1), 1_000), Reuse::default()).is_none());
    assert_eq!(host.tcp.places.len(), 0, "no address, and no place either");
}

/// One step of a run.
#[derive(Debug, Clone)]
enum Step {
    Connect { last: u8, port: u16 },
    Import { last: u8, port: u16, whole: bool },
    Export(usize),
    Shutdown(usize),
    Close(usize),
    Abort(usize),
    Reuse(usize, u8),
    Addresses(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let last = || prop::sample::select(&OURS[..]);
    let which = || 0..2 * PLACES as usize;
    // Few, so that they meet.
    let port = || 0..4_u16;
    prop_oneof![
        4 => (last(), port()).prop_map(|(last, port)| Step::Connect { last, port }),
        6 => (last(), port(), prop::bool::weighted(0.8))
            .prop_map(|(last, port, whole)| Step::Import { last, port, whole }),
        2 => which().prop_map(Step::Export),
        1 => which().prop_map(Step::Shutdown),
        1 => which().prop_map(Step::Close),
        2 => which().prop_map(Step::Abort),
        2 => (which(), 0..8_u8).prop_map(|(which, bits)| Step::Reuse(which, bits)),
        1 => (1..=OURS.len()).prop_map(Step::Addresses),
        2 => (0..5_000_u64).prop_map(Step::Wait),
    ]
}

/// A host whose connections come and go.
struct Crowd {
    host: Host,
    now: Instant,
    conns: Vec<ConnId>,
    /// Of a connection that is established.
    snapshot: Snapshot,
}

impl Crowd {
    fn new() -> Self {
        let mut pair = Pair::new(|_| {});
        let (a, _) = pair.establish();
        let snapshot = pair.a.with(pair.now, |tcp, context| tcp.export(context, a)).unwrap();
        let host = Host::new(1, |config| {
            config.connections = PLACES;
            config.tcp.retries = 2;
            config.addresses = OURS.map(|last| (ip(last), 24)).to_vec();
        });
        Self { host, now: pair.now, conns: Vec::new(), snapshot }
    }

    fn take(&mut self, step: &Step) {
        let (now, host) = (self.now, &mut self.host);
        let conn = |which: usize| {
            let stale = ConnId { index: 0, generation: u32::MAX };
            self.conns.iter().rev().nth(which).copied().unwrap_or(stale)
        };
        match *step {
            Step::Connect { last, port } => {
                let (remote, local) = (SocketAddr::new(ip(2), 80), SocketAddr::new(ip(last), port));
                let begun = host.with(now, |tcp, context| {
                    tcp.connect(context, remote, Some(local), PoolId(0), &|_| true)
                });
                self.conns.extend(begun);
            }
            Step::Import { last, port, whole } => {
                let (remote, local) = (SocketAddr::new(ip(2), port), SocketAddr::new(ip(last), 80));
                let mut snapshot = Snapshot { local, remote, ..self.snapshot.clone() };
                if !whole {
                    let chunk = host.memory.chunk_of(b"one of too many").unwrap();
                    snapshot.unacked = vec![chunk; NODES_MIN as usize + 1];
                }
                let moved =
                    host.with(now, |tcp, context| tcp.import(context, &snapshot, PoolId(0)));
                assert!(whole || moved.is_err(), "there is no room for all that");
                if let Some(chunk) = snapshot.unacked.first() {
                    host.memory.free(chunk.buf);
                }
                self.conns.extend(moved);
            }
            Step::Export(which) => {
                let conn = conn(which);
                let _ = host.with(now, |tcp, context| tcp.export(context, conn));
            }
            Step::Shutdown(which) => {
                let conn = conn(which);
                let _ = host.with(now, |tcp, context| tcp.shutdown(context, conn));
            }
            Step::Close(which) => {
                let conn = conn(which);
                let _ = host.with(now, |tcp, context| tcp.close(context, conn));
            }
            Step::Abort(which) => {
                let conn = conn(which);
                let _ = host.with(now, |tcp, context| tcp.abort(context, conn));
            }
            Step::Reuse(which, bits) => {
                let option = ConnOption::Reuse(Reuse::from_bits(bits));
                let conn = conn(which);
                let _ = host.with(now, |tcp, context| tcp.set_option(context, conn, option));
            }
            Step::Addresses(count) => {
                let addresses: Vec<_> =
                    OURS.iter().take(count).map(|last| (ip(*last), 24)).collect();
                host.tcp.forget_ways();
                host.base.ip.set_addresses(now, &addresses).unwrap();
            }
            Step::Wait(ms) => self.wait(ms),
        }
    }

    fn wait(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            while self.host.frame(self.now).is_some() {}
            self.host.collect(self.now);
            let next = self.host.tcp.poll_timeout();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.host.with(self.now, |tcp, context| tcp.on_timeout(context));
        }
        self.now = end;
    }
}

proptest! {
    #[test]
    fn an_address_is_as_busy_as_there_are_connections_that_have_it(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut crowd = Crowd::new();
        for step in &steps {
            crowd.take(step);
            crowd.host.tcp.check_invariants();
        }
        for conn in core::mem::take(&mut crowd.conns) {
            let _ = crowd.host.with(crowd.now, |tcp, context| tcp.abort(context, conn));
        }
        crowd.wait(1_000_000);
        crowd.host.tcp.check_invariants();
        prop_assert_eq!(crowd.host.tcp.places.len(), 0);
        prop_assert!(!crowd.host.tcp.shard.locals.are_held(0..=u16::MAX));
        prop_assert_eq!((crowd.host.memory.in_use(), crowd.host.tcp.held()), (0, (0, 0)));
    }
}
