//! A datagram socket alone: calls and completions go in; its operations and events come out.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use megapipe::{Address, Arrival, Datagram, Handle, Notice, OpError, Undelivered};

use super::DatagramSocket;
use crate::control_data::ControlKinds;
use crate::effects::Effects;
use crate::error::Error;
use crate::flags::{Events, MsgFlags};
use crate::gather::{MessageTarget, ReceivePieces, ReceivedMessage, SendPieces};
use crate::limits::{DATAGRAM_BYTES_MAX, DATAGRAM_INBOX_BYTES_MAX};
use crate::ports::LocalPorts;
use crate::stream::Shutdown;
use crate::transport::fake::{FakeTransport, SubmittedOperation as Submitted};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A socket on our own stack, at 10.0.0.1:7.
fn bound_socket(ports: &mut LocalPorts, transport: &mut FakeTransport) -> DatagramSocket {
    let mut socket = DatagramSocket::open(false, transport).unwrap();
    socket.bind(at("10.0.0.1:7"), ports, 3, transport).unwrap();
    let expected = [Submitted::BindDatagram(at("10.0.0.1:7")), Submitted::Receive];
    assert_eq!(transport.take(), expected);
    socket
}

fn datagram(from: &str, content: &[u8]) -> Box<Datagram> {
    Box::new(Datagram {
        data: content.to_vec().into(),
        from: Some(Address::Inet(at(from))),
        truncated: false,
        arrival: None,
        control: Box::default(),
    })
}

fn bring(socket: &mut DatagramSocket, content: &[u8], transport: &mut FakeTransport) -> Events {
    socket.on_datagram(socket.handle(), Ok(datagram("10.0.0.2:9", content)), transport)
}

fn receive(
    socket: &mut DatagramSocket,
    room: &mut [u8],
    flags: MsgFlags,
    transport: &mut FakeTransport,
) -> Option<Result<ReceivedMessage, Error>> {
    socket.receive(&mut ReceivePieces::new(&mut [IoSliceMut::new(room)]), &mut [], flags, transport)
}

fn send(
    socket: &mut DatagramSocket,
    content: &[u8],
    to: Option<SocketAddr>,
    ports: &mut LocalPorts,
    transport: &mut FakeTransport,
) -> Effects<usize> {
    let target = MessageTarget { to, ..MessageTarget::NONE };
    socket.send(&mut SendPieces::new(&[IoSlice::new(content)]), &target, ports, 3, transport)
}

fn undelivered(to: SocketAddr, is_final: bool) -> Undelivered {
    let by = [10, 0, 0, 254].into();
    let arrival = Arrival { to: [10, 0, 0, 1].into(), hop_limit: 64, traffic_class: 0 };
    let quote = b"quoted".to_vec().into();
    let notice = Notice { by, kind: 3, code: 3, info: 0, arrival, quote };
    Undelivered { to: Address::Inet(to), error: OpError::Refused, is_final, notice }
}

#[test]
fn received_datagram_is_handed_out_whole_or_cut() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let mut socket = bound_socket(&mut ports, &mut transport);
    let mut room = [0; 8];
    assert_eq!(receive(&mut socket, &mut room, MsgFlags::empty(), &mut transport), None);
    assert_eq!(bring(&mut socket, b"hello", &mut transport), Events::ARRIVED);
    assert_eq!(transport.take(), [Submitted::Receive], "the next one is asked for");
    assert!(socket.readiness().contains(Events::READABLE));
    assert_eq!(socket.next_len(), 5);

    let whole =
        ReceivedMessage { len: 5, from: Some(at("10.0.0.2:9")), ..ReceivedMessage::NOTHING };
    let peeked = receive(&mut socket, &mut room, MsgFlags::PEEK, &mut transport);
    assert_eq!((peeked, &room[..5]), (Some(Ok(whole)), &b"hello"[..]));
    let cut = ReceivedMessage { len: 2, flags: MsgFlags::TRUNC, ..whole };
    let taken = receive(&mut socket, &mut room[..2], MsgFlags::empty(), &mut transport);
    assert_eq!(taken, Some(Ok(cut)));
    assert_eq!(receive(&mut socket, &mut room, MsgFlags::empty(), &mut transport), None);
}

#[test]
fn full_inbox_asks_for_no_more_datagrams() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let mut socket = bound_socket(&mut ports, &mut transport);
    let _ = bring(&mut socket, &vec![0; DATAGRAM_INBOX_BYTES_MAX], &mut transport);
    assert_eq!(transport.take(), []);
    let taken = receive(&mut socket, &mut [0; 1], MsgFlags::empty(), &mut transport);
    assert!(taken.is_some_and(|it| it.is_ok()));
    assert_eq!(transport.take(), [Submitted::Receive]);
}

#[test]
fn unbound_socket_takes_a_port_when_it_sends() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let mut socket = DatagramSocket::open(false, &mut transport).unwrap();
    let to = at("10.0.0.2:9");
    assert_eq!(send(&mut socket, b"x", None, &mut ports, &mut transport).result, {
        Err(Error::NoDestination)
    });
    let sent = send(&mut socket, b"x", Some(to), &mut ports, &mut transport);
    assert_eq!(sent, Effects::quiet(Ok(1)));
    let [Submitted::BindDatagram(local), Submitted::Receive, last] = &transport.take()[..] else {
        panic!("it binds, receives and sends");
    };
    assert!(local.ip().is_unspecified() && local.port() != 0);
    assert_eq!(*last, Submitted::Send(to, b"x".to_vec()));
    assert_eq!(socket.local_name(&mut transport), *local);
}

#[test]
fn socket_on_the_kernel_is_full_until_its_sends_end() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::default());
    let mut socket = DatagramSocket::open(false, &mut transport).unwrap();
    let to = Some(at("10.0.0.2:9"));
    let long = vec![0; DATAGRAM_BYTES_MAX];
    let mut sent = 0;
    while send(&mut socket, &long, to, &mut ports, &mut transport).result.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 4, "what fits into 208 KiB, and the one that goes beyond");
    let full = send(&mut socket, b"x", to, &mut ports, &mut transport);
    assert_eq!(full, Effects::quiet(Err(Error::WouldBlock)));
    assert!(!socket.readiness().contains(Events::WRITABLE));
    assert_eq!(socket.on_sent(Ok(long.len()), &transport), Events::HAS_ROOM);
    assert!(socket.readiness().contains(Events::WRITABLE));
    assert_eq!(socket.on_sent(Err(OpError::Refused), &transport), Events::ERR);
    let refused = send(&mut socket, b"x", to, &mut ports, &mut transport);
    assert_eq!(refused.result, Err(Error::Refused), "the next call reports it");
}

#[test]
fn connected_socket_learns_of_a_closed_port_and_no_other() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    transport.local = Some(at("10.0.0.1:7"));
    let mut socket = bound_socket(&mut ports, &mut transport);
    let (peer, other) = (at("10.0.0.2:9"), at("10.0.0.3:9"));
    assert_eq!(socket.on_undelivered(undelivered(peer, true)), Events::empty());
    socket.connect(Some(peer), &mut ports, 3, &mut transport).unwrap();
    assert_eq!(transport.take(), [Submitted::ConnectDatagram(Some(peer))]);
    assert_eq!(socket.on_undelivered(undelivered(other, true)), Events::empty());
    assert_eq!(socket.on_undelivered(undelivered(peer, false)), Events::empty());
    assert_eq!(socket.on_undelivered(undelivered(peer, true)), Events::ERR);
    let answer = receive(&mut socket, &mut [0; 8], MsgFlags::empty(), &mut transport);
    assert_eq!(answer, Some(Err(Error::Refused)));
    assert_eq!(socket.readiness() & Events::ERR, Events::empty());
}

#[test]
fn error_queue_is_filled_only_when_it_is_asked_for() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let mut socket = bound_socket(&mut ports, &mut transport);
    let (to, long) = (at("10.0.0.2:9"), vec![0; DATAGRAM_BYTES_MAX + 1]);
    let plain = send(&mut socket, &long, Some(to), &mut ports, &mut transport);
    assert_eq!(plain, Effects::quiet(Err(Error::MessageTooLong)));

    socket.options.control_kinds.ask(ControlKinds::ERRORS4, true);
    socket.queue_errors(true, &mut transport);
    assert_eq!(transport.take(), [Submitted::QuoteErrors(true)]);
    let queued = send(&mut socket, &long, Some(to), &mut ports, &mut transport);
    assert_eq!(queued, Effects { result: Err(Error::MessageTooLong), events: Events::ERR });
    assert_eq!(socket.on_undelivered(undelivered(to, false)), Events::ERR);

    let mut take = |room: &mut [u8]| {
        let mut pieces = [IoSliceMut::new(room)];
        let effects = socket.take_failure(&mut ReceivePieces::new(&mut pieces), &mut [0; 128]);
        (effects.result.map(|it| (it.len, it.from)), effects.events)
    };
    let mut room = [0; 8];
    assert_eq!(take(&mut room), (Ok((0, Some(at("10.0.0.2:0")))), Events::ERR), "ours comes first");
    assert_eq!(take(&mut room), (Ok((6, Some(to))), Events::empty()));
    assert_eq!(&room[..6], b"quoted");
    assert_eq!(take(&mut room), (Err(Error::WouldBlock), Events::empty()));
}

#[test]
fn shutdown_ends_both_directions_of_a_connected_socket() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    transport.local = Some(at("10.0.0.1:7"));
    let mut socket = bound_socket(&mut ports, &mut transport);
    socket.connect(Some(at("10.0.0.2:9")), &mut ports, 3, &mut transport).unwrap();
    assert_eq!(socket.shutdown(Shutdown::Both).result, Ok(()));
    assert!(socket.readiness().contains(Events::HUP | Events::RDHUP | Events::READABLE));
    let answer = receive(&mut socket, &mut [0; 8], MsgFlags::empty(), &mut transport);
    assert_eq!(answer, Some(Ok(ReceivedMessage::NOTHING)));
    let sent = send(&mut socket, b"x", None, &mut ports, &mut transport);
    assert_eq!(sent.result, Err(Error::BrokenPipe));
}

#[test]
fn shutdown_without_a_peer_fails_and_lasts() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    transport.local = Some(at("10.0.0.1:7"));
    let mut socket = bound_socket(&mut ports, &mut transport);
    let effects = socket.shutdown(Shutdown::Read);
    assert_eq!(effects.result, Err(Error::NotConnected));
    assert!(effects.events.contains(Events::READABLE | Events::RDHUP));
    assert!(socket.readiness().contains(Events::READABLE | Events::RDHUP));
    socket.connect(Some(at("10.0.0.2:9")), &mut ports, 3, &mut transport).unwrap();
    assert!(socket.readiness().contains(Events::RDHUP), "also of the peer that it has then");
}

#[test]
fn closed_socket_frees_its_address() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let socket = bound_socket(&mut ports, &mut transport);
    let mut second = DatagramSocket::open(false, &mut transport).unwrap();
    let taken = second.bind(at("10.0.0.1:7"), &mut ports, 4, &mut transport);
    assert_eq!(taken, Err(Error::AddressInUse));
    let handle = socket.handle();
    assert_ne!(handle, Handle::NONE);
    let released = socket.close(&mut transport);
    assert_eq!(transport.take(), [Submitted::Unregister]);
    ports.release(released.bound.expect("it was bound"));
    assert_eq!(second.bind(at("10.0.0.1:7"), &mut ports, 4, &mut transport), Ok(()));
}

#[test]
fn shared_socket_gives_back_what_is_unread_and_takes_datagrams_singly() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let mut socket = bound_socket(&mut ports, &mut transport);
    bring(&mut socket, b"one", &mut transport);
    bring(&mut socket, b"two", &mut transport);
    transport.take();
    let shared = socket.share(|_| true);
    let [(handle, unread)] = &shared[..] else { panic!("{shared:?}") };
    let unread: Vec<_> = unread.iter().map(|datagram| datagram.data.to_vec()).collect();
    assert_eq!((*handle, unread), (socket.handle(), vec![b"one".to_vec(), b"two".to_vec()]));
    assert!(!socket.readiness().contains(Events::READABLE), "the service is not asked yet");
    transport.shared.extend([b"one".to_vec(), b"two".to_vec()]);
    assert_eq!(socket.look(&mut transport), Events::ARRIVED);
    assert_eq!((socket.next_len(), transport.shared_calls), (3, 1));
    let mut room = [0; 8];
    for (flags, left) in [(MsgFlags::PEEK, 2), (MsgFlags::empty(), 1), (MsgFlags::empty(), 0)] {
        let message = receive(&mut socket, &mut room, flags, &mut transport);
        let message = message.expect("it waits").expect("no error");
        assert_eq!((message.len, message.from), (3, Some(at("10.0.0.2:9"))));
        assert_eq!(transport.shared.len(), left);
        assert_eq!(socket.readiness().contains(Events::READABLE), left > 0);
    }
    // The service reports the next one: until then it is not asked.
    let calls = transport.shared_calls;
    assert_eq!(receive(&mut socket, &mut room, MsgFlags::empty(), &mut transport), None);
    assert_eq!(socket.look(&mut transport), Events::empty());
    assert_eq!(transport.shared_calls, calls);
    // Another process has taken what was reported.
    let handle = socket.handle();
    assert_eq!(socket.on_datagram_waits(handle, &mut transport), Events::empty());
    transport.shared.push_back(b"three".to_vec());
    assert_eq!(socket.on_datagram_waits(handle, &mut transport), Events::ARRIVED);
    transport.shared.clear();
    assert_eq!(receive(&mut socket, &mut room, MsgFlags::empty(), &mut transport), None);
    assert!(!socket.readiness().contains(Events::READABLE));
    assert_eq!(transport.take(), [], "the one that was posted is pending");
    // No other process has it any more: that one completes.
    transport.is_unshared = true;
    assert_eq!(socket.on_datagram_waits(handle, &mut transport), Events::empty());
    assert!(!socket.is_shared());
    let calls = transport.shared_calls;
    assert_eq!(bring(&mut socket, b"direct", &mut transport), Events::ARRIVED);
    let message = receive(&mut socket, &mut room, MsgFlags::empty(), &mut transport);
    assert_eq!(message.map(|result| result.map(|it| it.len)), Some(Ok(6)));
    assert_eq!(transport.shared_calls, calls);
}

#[test]
fn side_that_the_service_does_not_share_keeps_its_datagrams() {
    let (mut ports, mut transport) = (LocalPorts::default(), FakeTransport::local());
    let mut socket = bound_socket(&mut ports, &mut transport);
    bring(&mut socket, b"kept", &mut transport);
    assert!(socket.share(|_| false).is_empty() && !socket.is_shared());
    let mut room = [0; 8];
    let message = receive(&mut socket, &mut room, MsgFlags::empty(), &mut transport);
    assert_eq!(message.map(|result| result.map(|it| it.len)), Some(Ok(4)));
    assert_eq!(transport.shared_calls, 0);
}
