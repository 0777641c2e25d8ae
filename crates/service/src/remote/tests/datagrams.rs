//! Datagrams: no round trip after the first to a destination, and errors at once.

use megapipe_stack::limits::DATAGRAMS_PER_ENDPOINT_MAX;
use megapipe_stack::{DatagramId, DatagramSharing, Departure};

use super::*;

const PORT: u16 = 5_000;

fn address(last: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, last]), PORT)
}

fn bound(session: &mut RemoteClient, last: u8) -> DatagramId {
    session.bind(address(last), DatagramSharing::default()).expect("the port is free")
}

/// The bytes of the session's next datagram.
fn received(session: &mut RemoteClient) -> Vec<u8> {
    let Event::Datagram { chunk, .. } = next_event(session) else { panic!() };
    let mut bytes = vec![0; chunk.len as usize];
    session.take_bytes(chunk, &mut bytes);
    session.flush();
    bytes
}

fn send(session: &mut RemoteClient, from: DatagramId, bytes: &[u8]) -> Result<(), OperationError> {
    session.send_datagram(from, (address(2), &Departure::default()), bytes)
}

#[test]
fn datagrams_after_the_first_wait_for_no_answer() {
    let (mut client, mut server) = sessions();
    let (ours, _) = (bound(&mut client, 1), bound(&mut server, 2));
    send(&mut client, ours, b"first").expect("there is a route");
    client.flush();
    assert_eq!(received(&mut server), b"first");
    let calls = client.calls();
    for round in 0..1_000_u32 {
        send(&mut client, ours, &round.to_ne_bytes()).expect("there is room");
        client.flush();
        assert_eq!(received(&mut server), round.to_ne_bytes());
        // SessionBuffers come back.
        while client.event().is_some() {}
    }
    send(&mut client, ours, b"").expect("an empty one");
    client.flush();
    assert_eq!(received(&mut server), b"");
    assert_eq!(client.calls(), calls, "each was submitted alone");
    assert_eq!(client.counters().datagrams_failed, 0);
}

#[test]
fn datagram_that_cannot_be_sent_is_refused_at_once() {
    let (mut client, _server) = sessions();
    let ours = bound(&mut client, 1);
    let usual = Departure::default();
    let nowhere = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), PORT);
    let mut send = |to, departure: &Departure, len: usize| {
        client.send_datagram(ours, (to, departure), &vec![7; len])
    };
    for _ in 0..2 {
        assert_eq!(send(nowhere, &usual, 4), Err(OperationError::BadAddress));
        assert_eq!(send(address(2), &usual, 1_472), Ok(()));
        assert_eq!(send(address(2), &usual, 1_473), Err(OperationError::TooLong));
        assert_eq!(send(address(2), &usual, 70_000), Err(OperationError::TooLong));
        let portless = SocketAddr::new(address(2).ip(), 0);
        assert_eq!(send(portless, &usual, 4), Err(OperationError::BadAddress));
        for from in [[10, 0, 0, 9].into(), IpAddr::from([1; 16])] {
            let other = Departure { from: Some(from), ..usual };
            assert_eq!(send(address(2), &other, 4), Err(OperationError::BadAddress));
        }
    }
    let stale = DatagramId { generation: ours.generation + 1, ..ours };
    let sent = client.send_datagram(stale, (address(2), &usual), b"late");
    assert_eq!(sent, Err(OperationError::Unknown));
    let none = DatagramId { index: u32::MAX, generation: 0 };
    assert_eq!(client.send_datagram(none, (address(2), &usual), b""), Err(OperationError::Unknown));
}

#[test]
fn full_queue_of_datagrams_is_refused_at_once() {
    let (mut client, _server) = sessions();
    let ours = bound(&mut client, 1);
    // No host has that address: datagrams wait until its link address is given up.
    let to = SocketAddr::new(IpAddr::from([10, 0, 0, 77]), PORT);
    let way = (to, &Departure::default());
    let mut sent = 0;
    let refused = loop {
        match client.send_datagram(ours, way, b"queued") {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent <= DATAGRAMS_PER_ENDPOINT_MAX, "a queue without end");
    };
    assert_eq!((refused, sent), (OperationError::QueueFull, DATAGRAMS_PER_ENDPOINT_MAX));
    assert_eq!(client.counters().datagrams_failed, 0);
}

#[test]
fn segments_go_all_or_none() {
    let (mut client, mut server) = sessions();
    let (ours, _) = (bound(&mut client, 1), bound(&mut server, 2));
    let way = (address(2), &Departure::default());
    let bytes: Vec<u8> = (0..1_000_u32).map(|at| (at % 251) as u8).collect();
    client.send_datagrams(ours, way, (&bytes, 300)).expect("there is room");
    client.flush();
    for piece in bytes.chunks(300) {
        assert_eq!(received(&mut server), piece);
    }
    let long = vec![7; 4_000];
    let refused = client.send_datagrams(ours, way, (&long, 1_473));
    assert_eq!(refused, Err(OperationError::TooLong));
    let many = vec![7; DATAGRAMS_PER_ENDPOINT_MAX as usize + 1];
    let refused = client.send_datagrams(ours, way, (&many, 1));
    assert_eq!(refused, Err(OperationError::QueueFull));
    client.flush();
    send(&mut client, ours, b"last").expect("there is room");
    client.flush();
    assert_eq!(received(&mut server), b"last", "nothing of the others was sent");
}

#[test]
fn datagram_refused_after_its_check_is_counted_and_checked_again() {
    let (mut client, mut server) = sessions();
    let (ours, _) = (bound(&mut client, 1), bound(&mut server, 2));
    send(&mut client, ours, b"first").expect("there is a route");
    client.flush();
    assert_eq!(received(&mut server), b"first");
    // Behind the back of what checks datagrams: one that is too long.
    let (to, buf) = (address(2), BufId::from_bits(u32::from(LARGE) * POOL_BUFS_MAX));
    let command = Command::SendDatagram {
        endpoint: encoding::id_of_endpoint(ours),
        to,
        from: None,
        hop_limit: 0,
        traffic_class: 0,
        buf,
        len: 2_000,
    };
    client.put(&Op { cookie: 0, command }.record());
    let calls = client.calls();
    assert_eq!(client.call(SessionCall::Sync), Some(ServerAnswer::Done));
    while client.event().is_some() {}
    assert_eq!(client.counters().datagrams_failed, 1);
    send(&mut client, ours, b"again").expect("there is a route");
    assert_eq!(client.calls(), calls + 2, "it was checked again");
    client.flush();
    assert_eq!(received(&mut server), b"again");
}
