//! UDP, from frame to event and back.

use super::*;
use crate::error::{BindError, OperationError};

#[test]
fn datagrams_arrive_whole_and_leave_whole() {
    for len in [0, 1, 2, 1471, 1472] {
        let mut host = Host::new();
        let id = host.bind(53);
        let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
        host.give(&frame4(Protocol::Udp, &datagram4(53, &payload)));
        assert_eq!(host.receive(), Some((peer(), payload.clone())));
        host.meet(PEER.into());
        host.send(id, peer(), &payload).unwrap();
        let frame = host.transmit().unwrap();
        let (_, header, bytes) = open4(&frame);
        assert_eq!((header.protocol, header.dont_fragment), (17, false));
        assert_eq!(bytes, datagram(OURS.into(), PEER.into(), (53, 5000), &payload), "{len}");
        assert_eq!(host.memory.in_use(), 0);
    }
}

#[test]
fn the_same_over_ipv6() {
    let mut host = Host::new();
    let id = host.bind6(53);
    host.give(&frame6(17, &datagram6(53, b"hello")));
    assert_eq!(host.receive(), Some((peer6(), b"hello".to_vec())));
    host.meet(PEER6.into());
    host.send(id, peer6(), b"hello").unwrap();
    let frame = host.transmit().unwrap();
    assert_eq!(open6(&frame).2, datagram(OURS6.into(), PEER6.into(), (53, 5000), b"hello"));
}

#[test]
fn checksums_are_verified_unless_the_link_did() {
    let mut host = Host::new();
    host.bind(53);
    host.bind6(53);
    let mut wrong = datagram4(53, b"hello");
    wrong[6] ^= 1;
    host.drops(&frame4(Protocol::Udp, &wrong), Drop::BadTransportChecksum);
    assert_eq!(host.memory.in_use(), 0);
    let received = Received { checksums: Checksums::Verified, segment_bytes: 0 };
    let frame = frame4(Protocol::Udp, &wrong);
    host.stack.on_frame(host.now, &frame, received, &mut host.memory);
    assert!(host.receive().is_some());
    wrong[6..8].copy_from_slice(&[0, 0]);
    host.give(&frame4(Protocol::Udp, &wrong));
    assert!(host.receive().is_some(), "IPv4 may go without");
    let mut none = datagram6(53, b"hello");
    none[6..8].copy_from_slice(&[0, 0]);
    host.drops(&frame6(17, &none), Drop::BadTransportChecksum);
}

#[test]
fn the_link_fills_in_checksums_where_it_can() {
    let mut host = Host::with(|config| config.tx_checksum = true);
    let id = host.bind(53);
    host.meet(PEER.into());
    host.send(id, peer(), b"hello").unwrap();
    let mut frame = vec![0; 1518];
    let sent = host.stack.poll_transmit(host.now, &mut frame, &mut host.memory).unwrap();
    assert_eq!((sent.checksum_start(), sent.checksum_field()), (34, 6));
    let bytes = &mut frame[34..sent.frame_bytes()];
    let sum = checksum::sum(bytes);
    udp::write_checksum(bytes, sum);
    assert_eq!(bytes, datagram(OURS.into(), PEER.into(), (53, 5000), b"hello"));
}

#[test]
fn an_endpoint_of_one_address_goes_before_one_of_all() {
    let mut host = Host::new();
    let all = host.bind(53);
    let one = host.stack.bind_datagram(SocketAddr::new(OURS.into(), 53), PoolId(0)).unwrap();
    let mut arrives_at = || {
        host.give(&frame4(Protocol::Udp, &datagram4(53, b"x")));
        match host.stack.poll_event() {
            Some(Event::Datagram { endpoint, chunk, .. }) => {
                host.memory.free(chunk.buf);
                endpoint
            }
            event => panic!("{event:?}"),
        }
    };
    assert_eq!(arrives_at(), one);
    host.stack.close_datagram(one, &mut host.memory).unwrap();
    host.give(&frame4(Protocol::Udp, &datagram4(53, b"x")));
    assert!(
        matches!(host.stack.poll_event(), Some(Event::Datagram { endpoint, .. }) if endpoint == all)
    );
    let closed = host.stack.close_datagram(one, &mut host.memory);
    assert_eq!(closed, Err(OperationError::Unknown));
}

#[test]
fn ports_are_refused_when_taken_and_chosen_when_asked() {
    let mut host = Host::with(|config| {
        config.datagram_endpoints = 5;
        config.ephemeral_ports = (40_000, 40_002);
    });
    let any = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let mut bind = |local| host.stack.bind_datagram(local, PoolId(0));
    assert_eq!(bind(SocketAddr::new(PEER.into(), 53)), Err(BindError::BadLocalAddress));
    bind(any(53)).unwrap();
    assert_eq!(bind(any(53)), Err(BindError::InUse));
    let chosen: Vec<_> = (0..3).map(|_| bind(any(0)).unwrap()).collect();
    assert_eq!(bind(any(0)), Err(BindError::NoPort));
    bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 53)).unwrap();
    assert_eq!(bind(any(54)), Err(BindError::TooManyEndpoints));
    let mut ports: Vec<_> =
        chosen.iter().map(|id| host.stack.datagram_address(*id).unwrap().port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [40_000, 40_001, 40_002]);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut host = Host::new();
    let id = host.bind(53);
    let id6 = host.bind6(53);
    host.meet(PEER.into());
    let to = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 9);
    for bad in ["10.0.0.255", "224.0.0.1", "127.0.0.1", "0.0.0.0", "2001:db8::2"] {
        assert_eq!(host.send(id, to(bad), b"x"), Err(OperationError::BadAddress), "{bad}");
    }
    assert_eq!(host.send(id6, to("2001:db9::1"), b"x"), Err(OperationError::BadAddress));
    assert_eq!(
        host.send(id, SocketAddr::new(PEER.into(), 0), b""),
        Err(OperationError::BadAddress)
    );
    assert_eq!(host.send(id, peer(), &[0; 1473]), Err(OperationError::TooLong));
    assert_eq!(host.send(id6, peer6(), &[0; 1453]), Err(OperationError::TooLong));
    let stale = DatagramId { generation: 9, ..id };
    assert_eq!(host.send(stale, peer(), b"x"), Err(OperationError::Unknown));
    let chunk = host.memory.chunk_of(b"x").unwrap();
    let lying = crate::Chunk { offset: 4090, len: 7, ..chunk };
    let sent = host.stack.send_datagram(host.now, id, (peer(), lying), &mut host.memory);
    assert_eq!(sent, Err(OperationError::BadChunk));
    assert!(host.frames().is_empty());
}

#[test]
fn untaken_datagrams_are_bounded() {
    let mut host = Host::new();
    host.memory = HeapMemory::new(1000, 64);
    let id = host.bind(53);
    let most = crate::limits::DATAGRAMS_PER_ENDPOINT_MAX as usize;
    let hello = frame4(Protocol::Udp, &datagram4(53, b"hello"));
    for _ in 0..most {
        host.give(&hello);
    }
    host.drops(&hello, Drop::QueueFull);
    assert_eq!(host.memory.in_use(), most);
    for _ in 0..most {
        host.send(id, peer(), b"x").unwrap();
    }
    assert_eq!(host.send(id, peer(), b"x"), Err(OperationError::QueueFull));
    host.stack.close_datagram(id, &mut host.memory).unwrap();
    assert_eq!(host.memory.in_use(), most);
    assert_eq!(host.stack.poll_event(), None);
    host.stack.drop_datagrams(|_| false, &mut host.memory);
    assert_eq!(host.memory.in_use(), most);
    host.stack.drop_datagrams(|chunk| chunk.len == 1, &mut host.memory);
    assert_eq!(host.memory.in_use(), 0);
    assert!(host.frames().is_empty());
}

#[test]
fn waiting_datagrams_are_taken_where_the_pool_changes() {
    let mut host = Host::new();
    let (id, other) = (host.bind(53), host.bind(54));
    let [one, two] = [b"one", b"two"].map(|bytes| frame4(Protocol::Udp, &datagram4(53, bytes)));
    host.give(&one);
    host.give(&frame4(Protocol::Udp, &datagram4(54, b"other")));
    host.give(&two);
    let mut taken = Vec::new();
    let set = host.stack.set_datagram_pool((id, PoolId(7)), &mut host.memory, |from, _, chunk| {
        taken.push((from, chunk));
    });
    assert_eq!((set, taken.len()), (Ok(()), 2));
    let bytes: Vec<_> = taken.iter().map(|(_, chunk)| host.memory.bytes(*chunk)).collect();
    assert_eq!(bytes, [b"one", b"two"]);
    let Some(Event::Datagram { endpoint, .. }) = host.stack.poll_event() else { panic!() };
    assert_eq!(endpoint, other);
    assert_eq!(host.stack.poll_event(), None);
    let unknown = DatagramId { generation: id.generation + 1, ..id };
    let set = host.stack.set_datagram_pool((unknown, PoolId(0)), &mut host.memory, |_, _, _| {});
    assert_eq!(set, Err(OperationError::Unknown));
}

#[test]
fn datagrams_of_a_closed_endpoint_leave() {
    let mut host = Host::new();
    let id = host.bind(53);
    // The second one waits for its neighbour beyond the end of the endpoint.
    host.meet(PEER.into());
    host.send(id, peer(), b"known").unwrap();
    let away: IpAddr = [10, 0, 0, 7].into();
    let other = SocketAddr::new(away, 5000);
    host.send(id, other, b"other").unwrap();
    host.stack.close_datagram(id, &mut host.memory).unwrap();
    // The place is another endpoint's, which has sent nothing.
    let next = host.bind(53);
    assert_eq!(next.index, id.index);
    assert!(host.transmit().unwrap().ends_with(b"known"));
    host.frames();
    host.meet(away);
    assert!(host.transmit().unwrap().ends_with(b"other"));
    assert_eq!(host.memory.in_use(), 0);
    let all = crate::limits::DATAGRAMS_PER_ENDPOINT_MAX as usize;
    assert_eq!(host.stack.datagram_room(next), Ok(all));
}

#[test]
fn a_datagram_larger_than_a_buffer_or_without_one_is_dropped() {
    let mut host = Host::new();
    host.bind(53);
    host.memory = HeapMemory::new(1, 64);
    host.drops(&frame4(Protocol::Udp, &datagram4(53, &[0; 65])), Drop::NoBuffer);
    assert_eq!(host.memory.in_use(), 0);
    host.give(&frame4(Protocol::Udp, &datagram4(53, &[0; 64])));
    host.drops(&frame4(Protocol::Udp, &datagram4(53, &[0; 64])), Drop::NoBuffer);
}

#[test]
fn a_datagram_tells_how_it_arrived_and_leaves_as_it_is_told() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.give(&frame4(Protocol::Udp, &datagram4(53, b"hello")));
    assert!(host.receive().is_some());
    let arrival = host.stack.last_arrival();
    assert_eq!((arrival.to, arrival.hop_limit, arrival.traffic_class), (OURS.into(), 64, 0));
    host.meet(PEER.into());
    let mut send = |departure: &crate::Departure| {
        let chunk = host.memory.chunk_of(b"x").unwrap();
        let what = (peer(), chunk, departure);
        let sent = host.stack.send_datagram_as(host.now, id, what, &mut host.memory);
        if sent.is_err() {
            host.memory.free(chunk.buf);
        }
        sent.map(|()| host.transmit().unwrap())
    };
    let plain = send(&crate::Departure::default()).unwrap();
    let (_, header, _) = open4(&plain);
    assert_eq!((header.src, header.ttl, plain[15]), (OURS, 64, 0));
    let departure =
        crate::Departure { from: Some(OURS.into()), hop_limit: Some(3), traffic_class: 0xb9 };
    let frame = send(&departure).unwrap();
    let (_, header, _) = open4(&frame);
    assert_eq!((header.src, header.ttl, frame[15]), (OURS, 3, 0xb9));
    for not_ours in [IpAddr::from(PEER), IpAddr::from(OURS6)] {
        let from = crate::Departure { from: Some(not_ours), ..departure };
        assert_eq!(send(&from).unwrap_err(), OperationError::BadAddress);
    }
    assert_eq!(host.memory.in_use(), 0);
}

#[test]
fn an_endpoint_says_how_many_more_it_may_send() {
    let mut host = Host::new();
    let (id, other) = (host.bind(53), host.bind(54));
    host.meet(PEER.into());
    let all = crate::limits::DATAGRAMS_PER_ENDPOINT_MAX as usize;
    assert_eq!(host.stack.datagram_room(id), Ok(all));
    host.send(id, peer(), b"x").unwrap();
    assert_eq!(host.stack.datagram_room(id), Ok(all - 1));
    assert_eq!(host.stack.datagram_room(other), Ok(all));
    host.frames();
    assert_eq!(host.stack.datagram_room(id), Ok(all));
    host.stack.close_datagram(id, &mut host.memory).unwrap();
    assert_eq!(host.stack.datagram_room(id), Err(OperationError::Unknown));
}
