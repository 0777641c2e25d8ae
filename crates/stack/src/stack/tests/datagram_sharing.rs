//! UDP endpoints that share an address: selection of the receiver.

use super::*;
use crate::error::{BindError, OperationError};
use crate::udp::{DatagramOwner, DatagramSharing};

const ALONE: DatagramSharing = DatagramSharing {
    is_shared: false,
    spreads: false,
    is_mapped: false,
    excludes_others: false,
    owner: DatagramOwner { program: 0, user: 0 },
};
const SHARED: DatagramSharing = DatagramSharing { is_shared: true, ..ALONE };
const SPREAD: DatagramSharing = DatagramSharing { spreads: true, ..SHARED };

impl Host {
    fn bind_beside(&mut self, ip: IpAddr, sharing: DatagramSharing) -> DatagramId {
        let local = SocketAddr::new(ip, 53);
        self.stack.bind_datagram_beside(local, sharing, PoolId(0)).unwrap()
    }

    /// Returns the endpoint that receives a datagram from a port of the peer.
    fn who_hears(&mut self, src_port: u16) -> Option<DatagramId> {
        let bytes = datagram(PEER.into(), OURS.into(), (src_port, 53), b"x");
        self.give(&frame4(Protocol::Udp, &bytes));
        match self.stack.poll_event()? {
            Event::Datagram { endpoint, chunk, from } => {
                assert_eq!(from, SocketAddr::new(PEER.into(), src_port));
                self.memory.free(chunk.buf);
                Some(endpoint)
            }
            event => panic!("{event:?}"),
        }
    }
}

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ONE: IpAddr = IpAddr::V4(OURS);

#[test]
fn an_address_is_shared_if_both_say_so() {
    for (first, second, allowed) in [
        (ALONE, ALONE, false),
        (ALONE, SHARED, false),
        (SHARED, ALONE, false),
        (SHARED, SHARED, true),
        (SHARED, SPREAD, true),
    ] {
        let mut host = Host::new();
        let id = host.bind_beside(ANY, first);
        let local = SocketAddr::new(ANY, 53);
        let beside = host.stack.bind_datagram_beside(local, second, PoolId(0));
        assert_eq!(beside.is_ok(), allowed, "{first:?} {second:?}");
        if !allowed {
            assert_eq!(beside, Err(BindError::InUse));
            host.stack.close_datagram(id, &mut host.memory).unwrap();
            host.stack.bind_datagram_beside(local, second, PoolId(0)).unwrap();
        }
    }
}

#[test]
fn the_newest_of_those_that_fit_alike_hears_and_then_the_one_before_it() {
    let mut host = Host::new();
    let mapped = DatagramSharing { is_mapped: true, ..SHARED };
    // Worse fits come later, and do not count.
    let ids = [
        host.bind_beside(ONE, SHARED),
        host.bind_beside(ONE, SHARED),
        host.bind_beside(ONE, mapped),
        host.bind_beside(ANY, SHARED),
        host.bind_beside(ANY, SPREAD),
        host.bind_beside(ANY, mapped),
        host.bind_beside(IpAddr::V6(Ipv6Addr::UNSPECIFIED), SHARED),
    ];
    for expected in [1, 0, 2, 4, 3, 5] {
        assert_eq!(host.who_hears(5000), Some(ids[expected]), "{expected}");
        host.stack.close_datagram(ids[expected], &mut host.memory).unwrap();
    }
    assert_eq!(host.who_hears(5000), None, "the last one is of the other family");
}

#[test]
fn what_is_spread_stays_where_it_went_and_reaches_all() {
    let mut host = Host::new();
    let ids: Vec<DatagramId> = (0..4).map(|_| host.bind_beside(ANY, SPREAD)).collect();
    let mut counts = [0; 4];
    let mut hear = |host: &mut Host, port| {
        let id = host.who_hears(port).unwrap();
        counts[ids.iter().position(|other| *other == id).unwrap()] += 1;
        id
    };
    let first: Vec<DatagramId> = (5000..5400).map(|port| hear(&mut host, port)).collect();
    let again: Vec<DatagramId> = (5000..5400).map(|port| hear(&mut host, port)).collect();
    assert_eq!(first, again);
    assert!(counts.iter().all(|count| (100..300).contains(count)), "{counts:?}");
    // Another secret, another choice.
    let mut other = Host::with(|config| config.secret = [8; 32]);
    let others: Vec<DatagramId> = (0..4).map(|_| other.bind_beside(ANY, SPREAD)).collect();
    let differs = |(at, port)| {
        let place = ids.iter().position(|id| *id == first[at]);
        place != others.iter().position(|id| Some(*id) == other.who_hears(port))
    };
    assert!((5000..5400).enumerate().map(differs).filter(|it| *it).count() > 200);
}

#[test]
fn connected_endpoint_receives_only_from_its_peer() {
    let mut host = Host::new();
    let one = host.bind_beside(ANY, SPREAD);
    let other = host.bind_beside(ANY, SPREAD);
    let peer = |port| SocketAddr::new(PEER.into(), port);
    let place = |host: &Host| host.stack.datagram_address(one).unwrap().ip();
    for port in 5000..5020 {
        assert_eq!(host.stack.connect_datagram(one, Some(peer(port))).map(|at| at.ip()), Ok(ONE));
        assert_eq!((host.who_hears(port), place(&host)), (Some(one), ONE));
        assert_eq!(host.who_hears(6000), Some(other));
        assert_eq!(host.stack.connect_datagram(one, None).map(|at| at.ip()), Ok(ANY));
        assert_eq!(place(&host), ANY);
        assert_eq!(host.who_hears(6000), Some(one), "it has come there anew");
    }
    // A peer of the other family: nothing that comes is from it.
    host.stack.connect_datagram(one, Some(peer6())).unwrap();
    assert_eq!(host.who_hears(5000), Some(other));
    let nowhere = SocketAddr::new("2001:db9::1".parse().unwrap(), 9);
    let id6 = host.bind6(53);
    let refused = host.stack.connect_datagram(id6, Some(nowhere));
    assert_eq!(refused, Err(OperationError::BadAddress));
    host.stack.close_datagram(id6, &mut host.memory).unwrap();
    let stale = host.stack.connect_datagram(id6, None);
    assert_eq!(stale, Err(OperationError::Unknown));
}

#[test]
fn datagram_for_connected_endpoints_of_other_peers_is_refused() {
    let mut host = Host::new();
    host.meet(PEER.into());
    let id = host.bind_beside(ANY, ALONE);
    host.stack.connect_datagram(id, Some(SocketAddr::new(PEER.into(), 5001))).unwrap();
    let frames = host.reply(&frame4(Protocol::Udp, &datagram4(53, b"x")));
    assert_eq!(frames.len(), 1, "the sender gets port unreachable");
    assert_eq!(host.dropped(Drop::NoEndpoint), 1);
}

#[test]
fn icmp_error_goes_to_endpoint_that_receives_from_peer() {
    let mut host = Host::new();
    host.meet(PEER.into());
    let with_peer = host.bind_beside(ONE, SHARED);
    let newest = host.bind_beside(ONE, SHARED);
    let error = |host: &mut Host| {
        host.send(with_peer, peer(), b"x").unwrap();
        let sent = host.transmit().unwrap();
        let unreachable = icmp4::Repr::Unreachable { code: icmp4::CODE_PORT, mtu: 0 };
        let message = message4(unreachable, &sent[14..]);
        host.give(&frame4(Protocol::Icmp, &message));
        match host.stack.poll_event() {
            Some(Event::DatagramRefused { endpoint, .. }) => endpoint,
            event => panic!("{event:?}"),
        }
    };
    assert_eq!(error(&mut host), newest);
    host.stack.connect_datagram(with_peer, Some(peer())).unwrap();
    assert_eq!(error(&mut host), with_peer);
}

#[test]
fn address_of_another_program_is_refused_as_on_linux() {
    let of = |program, user| DatagramSharing {
        owner: DatagramOwner { program, user },
        excludes_others: true,
        ..SHARED
    };
    let reused = |program| DatagramSharing { excludes_others: false, ..of(program, 1) };
    let spread = |program, user| DatagramSharing { spreads: true, ..of(program, user) };
    let table = [
        (of(1, 1), of(1, 1), true),
        (of(1, 1), of(2, 1), false),
        (of(1, 1), reused(2), false),
        (reused(1), of(2, 1), false),
        (reused(1), reused(2), true),
        (spread(1, 1), spread(2, 1), true),
        (spread(1, 1), spread(2, 2), false),
        (spread(1, 1), of(2, 1), false),
        (spread(1, 1), reused(2), false),
    ];
    for (first, second, is_allowed) in table {
        for (one, other) in [(ONE, ONE), (ANY, ONE), (ONE, ANY), (ANY, ANY)] {
            let mut host = Host::new();
            host.bind_beside(one, first);
            let at = SocketAddr::new(other, 53);
            let bound = host.stack.bind_datagram_beside(at, second, PoolId(0));
            let expected = if is_allowed { Ok(()) } else { Err(BindError::InUse) };
            assert_eq!(bound.map(drop), expected, "{first:?} {second:?} {one} {other}");
        }
        // Another address, and another family.
        let mut host = Host::new();
        host.bind_beside(ONE, first);
        host.bind_beside(IpAddr::V6(Ipv6Addr::UNSPECIFIED), second);
    }
    // A port that is chosen is free.
    let mut host = Host::with(|config| config.ephemeral_ports = (53, 54));
    host.bind_beside(ANY, of(1, 1));
    let chosen = host.stack.bind_datagram_beside(SocketAddr::new(ONE, 0), of(2, 1), PoolId(0));
    let place = chosen.map(|id| host.stack.datagram_address(id).unwrap());
    assert_eq!(place, Ok(SocketAddr::new(ONE, 54)));
}
