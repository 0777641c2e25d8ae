//! A stream alone: calls and completions go in; its operations, events and readiness come out.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use megapipe::{ConnOption, Disconnect, Handle, OpError, ReadBuf};

use super::{Blank, Connecting, SendStep, Shutdown, StreamSocket};
use crate::effects::Effects;
use crate::error::Error;
use crate::flags::{Events, MsgFlags};
use crate::gather::{ReceivePieces, SendPieces};
use crate::limits::INBOX_BYTES_MAX;
use crate::options::SocketOptions;
use crate::transport::CLOSED;
use crate::transport::fake::{FakeTransport, SubmittedOperation as Submitted};

const OVER: Events =
    Events::READABLE.union(Events::WRITABLE).union(Events::RDHUP).union(Events::ALWAYS);

fn connection(transport: &mut FakeTransport) -> StreamSocket {
    StreamSocket::accepted(Handle::from_bits(1), false, SocketOptions::DEFAULT, transport)
}

fn bytes(content: &[u8]) -> ReadBuf {
    content.to_vec().into()
}

/// One attempt of recv(2): the answer, `None` if the call has to wait, and the bytes.
fn receive(
    stream: &mut StreamSocket,
    room: usize,
    flags: MsgFlags,
    transport: &mut FakeTransport,
) -> (Option<Result<usize, Error>>, Vec<u8>) {
    let mut memory = vec![0; room];
    let mut pieces = [IoSliceMut::new(&mut memory)];
    let mut to = ReceivePieces::new(&mut pieces);
    stream.take_here(&mut to, flags, transport);
    let (answer, filled) = (stream.read_result(&to, flags, transport), to.filled());
    memory.truncate(filled);
    (answer, memory)
}

fn send(
    stream: &mut StreamSocket,
    content: &[u8],
    flags: MsgFlags,
    transport: &mut FakeTransport,
) -> (Result<SendStep, Error>, usize) {
    let pieces = [IoSlice::new(content)];
    let mut from = SendPieces::new(&pieces);
    let step = stream.send(&mut from, flags, transport);
    (step, from.taken())
}

#[test]
fn stream_hands_out_what_came_and_posts_the_next_read() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    assert_eq!(stream.readiness(), Events::WRITABLE);
    assert_eq!(receive(&mut stream, 8, MsgFlags::empty(), &mut transport), (None, vec![]));
    assert_eq!(transport.take(), [], "a read is with the channel already");

    assert_eq!(stream.on_bytes(bytes(b"hello"), &mut transport), Events::ARRIVED);
    assert_eq!(transport.take(), [Submitted::Read]);
    assert_eq!(stream.readiness(), Events::READABLE | Events::WRITABLE);
    let peeked = receive(&mut stream, 3, MsgFlags::PEEK, &mut transport);
    assert_eq!(peeked, (Some(Ok(3)), b"hel".to_vec()));
    let first = receive(&mut stream, 3, MsgFlags::empty(), &mut transport);
    assert_eq!(first, (Some(Ok(3)), b"hel".to_vec()));
    let rest = receive(&mut stream, 8, MsgFlags::empty(), &mut transport);
    assert_eq!(rest, (Some(Ok(2)), b"lo".to_vec()));
    assert_eq!(stream.readiness(), Events::WRITABLE);
}

#[test]
fn stream_posts_no_read_while_its_program_is_behind() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    let _ = stream.on_bytes(bytes(&vec![7; INBOX_BYTES_MAX]), &mut transport);
    assert_eq!(transport.take(), [Submitted::AwaitEnd], "only a reset is reported");
    let taken = receive(&mut stream, 1, MsgFlags::empty(), &mut transport);
    assert_eq!(taken, (Some(Ok(1)), vec![7]));
    assert_eq!(transport.take(), [Submitted::Read]);
}

#[test]
fn stream_with_low_water_is_not_readable_below_it() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    stream.options.low_water = 4;
    let _ = stream.on_bytes(bytes(b"abc"), &mut transport);
    assert_eq!(stream.readiness(), Events::WRITABLE);
    let _ = stream.on_bytes(bytes(b"d"), &mut transport);
    assert_eq!(stream.readiness(), Events::READABLE | Events::WRITABLE);
}

#[test]
fn peer_end_is_read_behind_the_bytes() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    let _ = stream.on_bytes(bytes(b"a"), &mut transport);
    let end = Events::READABLE | Events::RDHUP | Events::HUP;
    assert_eq!(stream.on_read_end(None, &mut transport), end);
    let ready = Events::READABLE | Events::RDHUP | Events::WRITABLE;
    assert_eq!(stream.readiness(), ready);
    let read = receive(&mut stream, 8, MsgFlags::empty(), &mut transport);
    assert_eq!(read, (Some(Ok(1)), b"a".to_vec()));
    for _ in 0..2 {
        assert_eq!(receive(&mut stream, 8, MsgFlags::empty(), &mut transport).0, Some(Ok(0)));
    }
    // The peer hears what is written until it resets.
    assert_eq!(send(&mut stream, b"x", MsgFlags::empty(), &mut transport).0, Ok(SendStep::Done));
    assert_eq!(stream.on_end(Err(OpError::Reset), &mut transport), OVER);
    let refused = send(&mut stream, b"x", MsgFlags::empty(), &mut transport);
    assert_eq!(refused, (Err(Error::BrokenPipe), 0));
}

/// The program reads again when the reset comes: what the posted read brings is not the last.
#[test]
fn reset_beside_a_posted_read_keeps_what_comes_behind_it() {
    for ends in 1..3 {
        let mut transport = FakeTransport::local();
        let mut stream = connection(&mut transport);
        let _ = stream.on_bytes(bytes(b"ab"), &mut transport);
        assert_eq!(stream.on_end(Err(OpError::Reset), &mut transport), OVER);
        for _ in 1..ends {
            assert_eq!(stream.on_end(Err(OpError::Reset), &mut transport), Events::empty());
        }
        assert_eq!(stream.on_bytes(bytes(b"cd"), &mut transport), Events::ARRIVED);
        let end = Events::READABLE | Events::RDHUP | Events::HUP;
        assert_eq!(stream.on_read_end(Some(OpError::Reset), &mut transport), end);
        let flags = MsgFlags::empty();
        let read = receive(&mut stream, 8, flags, &mut transport);
        assert_eq!(read, (Some(Ok(4)), b"abcd".to_vec()));
        assert_eq!(receive(&mut stream, 8, flags, &mut transport).0, Some(Err(Error::Reset)));
        assert_eq!(receive(&mut stream, 8, flags, &mut transport).0, Some(Ok(0)));
    }
}

#[test]
fn reset_is_reported_once_and_then_the_end() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    assert_eq!(stream.on_read_end(Some(OpError::Reset), &mut transport), OVER);
    assert!(stream.readiness().contains(Events::ERR | Events::HUP));
    let flags = MsgFlags::empty();
    assert_eq!(receive(&mut stream, 8, flags, &mut transport).0, Some(Err(Error::Reset)));
    assert_eq!(receive(&mut stream, 8, flags, &mut transport).0, Some(Ok(0)));
    let written = send(&mut stream, b"x", flags, &mut transport);
    assert_eq!(written, (Err(Error::BrokenPipe), 0));
    assert_eq!(stream.on_end(Err(OpError::Reset), &mut transport), Events::empty(), "it is known");
}

#[test]
fn full_stream_has_room_again_when_its_last_write_ends() {
    let mut transport = FakeTransport { unsent_bytes: 10, ..FakeTransport::local() };
    let mut stream = connection(&mut transport);
    let (step, taken) = send(&mut stream, b"abc", MsgFlags::empty(), &mut transport);
    assert_eq!((step, taken), (Ok(SendStep::Done), 3));
    let written = Submitted::Write(b"abc".to_vec());
    assert_eq!(transport.take(), [written, Submitted::ReportLastWrite]);
    assert_eq!(stream.readiness(), Events::empty());
    let (step, taken) = send(&mut stream, b"d", MsgFlags::empty(), &mut transport);
    assert_eq!((step, taken), (Ok(SendStep::Full), 0));
    transport.unsent_bytes = 0;
    assert_eq!(stream.on_written(Ok(3), &mut transport), Events::HAS_ROOM);
    assert_eq!(stream.readiness(), Events::WRITABLE);
}

#[test]
fn fast_path_and_general_path_write_the_same() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    let pieces = [IoSlice::new(b"abc")];
    assert_eq!(stream.write_whole(&SendPieces::new(&pieces), &mut transport), Some(3));
    let fast = transport.take();
    let (step, _) = send(&mut stream, b"abc", MsgFlags::empty(), &mut transport);
    assert_eq!((step, transport.take()), (Ok(SendStep::Done), fast));
    stream.shut.send = true;
    assert_eq!(stream.write_whole(&SendPieces::new(&pieces), &mut transport), None);
    assert_eq!(transport.take(), []);
}

#[test]
fn stream_below_its_mark_waits_until_less_than_half_is_unsent() {
    let mut transport = FakeTransport { room_below: 2, ..FakeTransport::local() };
    let mut stream = connection(&mut transport);
    stream.options.notsent_lowat = 8;
    let (step, taken) = send(&mut stream, b"abcd", MsgFlags::empty(), &mut transport);
    assert_eq!((step, taken), (Ok(SendStep::Pushed), 2));
    assert_eq!(transport.take(), [Submitted::Write(b"ab".to_vec())]);
    transport.room_below = 0;
    stream.look_at_mark(&mut transport);
    assert_eq!(transport.take(), [Submitted::AwaitUnsentBelow(4)]);
    assert_eq!(stream.readiness(), Events::empty());
    transport.room_below = 8;
    assert_eq!(stream.on_unsent_below(&mut transport), Events::HAS_ROOM);
}

#[test]
fn urgent_byte_is_marked_behind_the_bytes_before_it() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    let (step, _) = send(&mut stream, b"ab", MsgFlags::OOB, &mut transport);
    assert_eq!(step, Ok(SendStep::Done));
    let marked = Submitted::Option(ConnOption::Urgent);
    assert_eq!(transport.take(), [Submitted::Write(b"ab".to_vec()), marked]);

    assert_eq!(stream.on_urgent(3), Events::ARRIVED);
    let _ = stream.on_bytes(bytes(b"xyZa"), &mut transport);
    assert!(stream.readiness().contains(Events::PRI));
    let read = receive(&mut stream, 8, MsgFlags::empty(), &mut transport);
    assert_eq!(read, (Some(Ok(2)), b"xy".to_vec()), "a read stops at the mark");
    assert_eq!(stream.is_at_mark(&transport), Ok(true));
    let mut room = [0];
    let mut pieces = [IoSliceMut::new(&mut room)];
    let urgent =
        stream.recv_urgent(&mut ReceivePieces::new(&mut pieces), MsgFlags::OOB, &transport);
    assert_eq!((urgent, room), (Ok(1), *b"Z"));
    let read = receive(&mut stream, 8, MsgFlags::empty(), &mut transport);
    assert_eq!(read, (Some(Ok(1)), b"a".to_vec()));
}

#[test]
fn refused_connection_leaves_a_fresh_stream() {
    let mut transport = FakeTransport::local();
    let mut stream = StreamSocket::new(Blank::Local, false);
    let to = "10.0.0.2:80".parse().unwrap();
    stream.begin_connect(to, false, 7, &mut transport).unwrap();
    assert_eq!(transport.take(), [Submitted::Connect(to)]);
    assert_eq!(stream.readiness(), Events::empty());
    assert_eq!(stream.connect_result(&mut transport), None);

    assert_eq!(stream.on_connected(Err(OpError::Refused), &mut transport), OVER);
    assert!(stream.readiness().contains(Events::ERR));
    assert_eq!(stream.connect_result(&mut transport), Some(Err(Error::Refused)));
    assert_eq!(transport.take(), [Submitted::Unregister]);
    assert_eq!(stream.readiness(), Events::HUP | Events::WRITABLE, "as a fresh socket");
    stream.begin_connect(to, false, 7, &mut transport).unwrap();
    assert_eq!(transport.take(), [Submitted::Connect(to)]);
}

#[test]
fn established_connection_posts_its_first_read() {
    let mut transport = FakeTransport::local();
    transport.local = Some("10.0.0.1:40000".parse().unwrap());
    let mut stream = StreamSocket::new(Blank::Local, false);
    let to = "10.0.0.2:80".parse().unwrap();
    stream.begin_connect(to, false, 7, &mut transport).unwrap();
    assert_eq!(stream.connecting, Connecting::Begun);
    assert_eq!(stream.on_connected(Ok(()), &mut transport), Events::WRITABLE);
    assert_eq!(transport.take(), [Submitted::Connect(to), Submitted::Read]);
    assert_eq!(stream.connect_result(&mut transport), Some(Ok(())));
    assert_eq!(stream.connecting, Connecting::Done);
    assert_eq!(stream.local_name(&mut transport), Ok(transport.local.unwrap()));
}

#[test]
fn fast_open_write_leaves_with_the_syn() {
    let mut transport = FakeTransport { syn_room: Some(3), ..FakeTransport::local() };
    let mut stream = StreamSocket::new(Blank::Local, false);
    stream.begin_connect("10.0.0.2:80".parse().unwrap(), true, 7, &mut transport).unwrap();
    assert!(stream.holds_syn(&mut transport));
    assert_eq!(stream.readiness(), Events::WRITABLE, "a write makes the SYN leave");
    let _ = transport.take();
    let (step, taken) = send(&mut stream, b"abcde", MsgFlags::empty(), &mut transport);
    assert_eq!((step, taken), (Ok(SendStep::Connects), 3));
    assert_eq!(transport.take(), [Submitted::Write(b"abc".to_vec())]);
    assert_eq!(stream.readiness(), Events::empty(), "the handshake goes on");
}

#[test]
fn write_that_ends_a_hold_comes_before_its_end() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    let _ = transport.take();
    send(&mut stream, b"ab", MsgFlags::MORE, &mut transport).0.unwrap();
    send(&mut stream, b"cd", MsgFlags::empty(), &mut transport).0.unwrap();
    send(&mut stream, b"ef", MsgFlags::empty(), &mut transport).0.unwrap();
    let write = |bytes: &[u8]| Submitted::Write(bytes.to_vec());
    let more = |is_on| Submitted::Option(ConnOption::More(is_on));
    let expected = [more(true), write(b"ab"), write(b"cd"), more(false), write(b"ef")];
    assert_eq!(transport.take(), expected);
}

#[test]
fn shutdown_of_both_directions_is_one_operation_on_the_kernel() {
    let all = Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::HUP;
    for (is_local, how) in [(true, Disconnect::Write), (false, Disconnect::Both)] {
        let peer = Some("10.0.0.2:7".parse().unwrap());
        let mut transport = FakeTransport { is_local, peer, ..FakeTransport::default() };
        let mut stream = connection(&mut transport);
        let effects = stream.shutdown(Shutdown::Both, &mut transport);
        assert_eq!(effects, Effects { result: Ok(()), events: all });
        assert_eq!(transport.take(), [Submitted::Disconnect(how)]);
        let again = stream.shutdown(Shutdown::Write, &mut transport);
        assert_eq!(again.result, Ok(()));
        assert_eq!(transport.take(), [], "once is enough");
        let late = stream.on_bytes(bytes(b"late"), &mut transport);
        assert_eq!(late, OVER, "no call reads it");
        assert_eq!(transport.take(), [Submitted::Disconnect(Disconnect::Reset)]);
    }
}

#[test]
fn shutdown_of_a_closed_connection_is_refused() {
    let mut transport = FakeTransport { is_local: true, ..FakeTransport::default() };
    let mut stream = connection(&mut transport);
    assert_eq!(stream.shutdown(Shutdown::Both, &mut transport).result, Ok(()));
    assert_eq!(transport.peer, None, "both ends have closed it");
    let again = stream.shutdown(Shutdown::Write, &mut transport);
    assert_eq!(again.result, Err(Error::NotConnected));
}

#[test]
fn shutdown_that_fails_can_be_repeated() {
    for (is_local, how, below) in [
        (true, Shutdown::Write, Disconnect::Write),
        (true, Shutdown::Both, Disconnect::Write),
        (false, Shutdown::Both, Disconnect::Both),
    ] {
        let mut transport = FakeTransport { is_local, ..FakeTransport::default() };
        let mut stream = connection(&mut transport);
        transport.disconnect_error = Some(Error::NoBuffers);
        let failed = stream.shutdown(how, &mut transport);
        assert_eq!(failed, Effects::quiet(Err(Error::NoBuffers)));
        assert_eq!(transport.take(), []);
        assert_eq!(stream.readiness(), Events::WRITABLE, "both directions are open");
        let sent = send(&mut stream, b"x", MsgFlags::empty(), &mut transport);
        assert_eq!(sent, (Ok(SendStep::Done), 1));
        let _ = transport.take();
        transport.disconnect_error = None;
        assert_eq!(stream.shutdown(how, &mut transport).result, Ok(()));
        assert_eq!(transport.take(), [Submitted::Disconnect(below)]);
        let refused = send(&mut stream, b"x", MsgFlags::empty(), &mut transport);
        assert_eq!(refused, (Err(Error::BrokenPipe), 0));
    }
}

#[test]
fn close_resets_a_stream_with_unread_bytes() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    let _ = stream.on_bytes(bytes(b"a"), &mut transport);
    let _ = transport.take();
    assert!(!stream.close(&mut transport).is_sending);
    let reset = Submitted::Disconnect(Disconnect::Reset);
    assert_eq!(transport.take(), [reset, Submitted::Unregister]);
}

#[test]
fn close_with_unsent_bytes_keeps_the_handle_until_they_are_sent() {
    let mut transport = FakeTransport { unsent_bytes: 5, ..FakeTransport::default() };
    let stream = connection(&mut transport);
    assert!(stream.close(&mut transport).is_sending);
    let both = Submitted::Disconnect(Disconnect::Both);
    assert_eq!(transport.take(), [Submitted::SetCookie(CLOSED), both]);
}

#[test]
fn linger_of_zero_reaches_an_accepted_connection() {
    for (linger, is_sent) in [(Some(Duration::ZERO), true), (Some(Duration::from_secs(1)), false)] {
        let mut transport = FakeTransport::local();
        let mut options = SocketOptions::DEFAULT;
        options.linger = linger;
        StreamSocket::accepted(Handle::from_bits(1), false, options, &mut transport);
        let was_sent = transport.submitted.contains(&Submitted::ResetOnClose(true));
        assert_eq!(was_sent, is_sent, "{linger:?}");
    }
}

#[test]
fn lingering_stream_waits_for_delivery() {
    let mut transport = FakeTransport::local();
    let mut stream = connection(&mut transport);
    assert_eq!(stream.linger_time(&transport), None);
    stream.options.linger = Some(Duration::from_secs(3));
    assert_eq!(stream.linger_time(&transport), Some(Duration::from_secs(3)));
    assert!(stream.begin_to_linger(&mut transport));
    let end = Submitted::Disconnect(Disconnect::Write);
    assert_eq!(transport.take(), [end, Submitted::AwaitDelivery]);
    assert_eq!(stream.is_lingering(), Some(Duration::from_secs(3)));
    assert_eq!(stream.on_delivered(), Events::HUP);
    assert_eq!(stream.is_lingering(), None);
}
