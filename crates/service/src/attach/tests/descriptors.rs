//! Descriptors within a session: honest ones, and each way to pass others.

use super::*;
use crate::limits::{PASSED_MAX, PASSED_SOCKETS_MAX};

/// A session of a client that speaks the newest version.
fn session(daemon: &Daemon) -> OwnedFd {
    let socket = connected(&daemon.path());
    send(socket.as_fd(), &hello(), &[]).expect("it is sent");
    answer(&socket).expect("a welcome");
    assert!(matches!(daemon.next(), Asked::Opened(..)));
    send(socket.as_fd(), &encode_ready(VERSIONS.1), &[]).expect("it is sent");
    assert_eq!(daemon.next(), Asked::Begun);
    socket
}

fn bound() -> OwnedFd {
    bind_port(Transport::Udp, ([127, 0, 0, 1], 0).into(), true).expect("a free port")
}

/// Passes descriptors for a port of UDP, whose filter needs no privilege. Returns the answer.
fn pass(socket: &OwnedFd, cookie: u64, fds: &[BorrowedFd<'_>]) -> SessionMessage {
    let message = SessionMessage::Pass { cookie, purpose: PassPurpose::UdpPort };
    send(socket.as_fd(), &message.encode(), fds).expect("it is sent");
    SessionMessage::decode(&answer(socket).expect("the session goes on")).expect("an answer")
}

fn refusal(answer: SessionMessage) -> (u64, String) {
    let SessionMessage::NotPassed { cookie, errno, sentence } = answer else {
        panic!("{answer:?}")
    };
    assert!(errno > 0, "{sentence}");
    (cookie, sentence)
}

/// A pipe of which the daemon has a copy of the writer.
fn is_closed(reader: &mut std::io::PipeReader, writer: std::io::PipeWriter) {
    drop(writer);
    assert_eq!(reader.read(&mut [0]).expect("a pipe"), 0, "the daemon holds no copy");
}

#[test]
fn passed_descriptors_are_kept_until_they_are_forgotten() {
    let daemon = Daemon::start("pass");
    let socket = session(&daemon);
    for cookie in 1..=PASSED_MAX as u64 {
        let port = bound();
        let passed = pass(&socket, cookie, &[port.as_fd()]);
        assert_eq!(passed, SessionMessage::Passed { cookie });
    }
    let (cookie, sentence) = refusal(pass(&socket, 99, &[bound().as_fd()]));
    assert_eq!(cookie, 99);
    assert!(sentence.contains("the limit"), "{sentence}");
    let forget = SessionMessage::Forget { cookie: 3 }.encode();
    send(socket.as_fd(), &forget, &[]).expect("it is sent");
    assert_eq!(pass(&socket, 99, &[bound().as_fd()]), SessionMessage::Passed { cookie: 99 });
    drop(socket);
    assert_eq!(daemon.next(), Asked::Ended);
}

#[test]
fn refused_descriptors_are_closed_and_the_session_goes_on() {
    let daemon = Daemon::start("refused");
    let socket = session(&daemon);
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let (_, sentence) = refusal(pass(&socket, 1, &[writer.as_fd()]));
    assert!(sentence.contains("is no Udp socket"), "{sentence}");
    is_closed(&mut reader, writer);
    let message = SessionMessage::Pass { cookie: 1, purpose: PassPurpose::Connection }.encode();
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let listening = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    for (fds, rule) in [
        (vec![writer.as_fd()], "SO_NETNS_COOKIE"),
        (vec![listening.as_fd()], "in LISTEN"),
        (vec![listening.as_fd(); 2], "2 sockets were passed for one connection"),
        (Vec::new(), "0 sockets"),
    ] {
        send(socket.as_fd(), &message, &fds).expect("it is sent");
        let answer = SessionMessage::decode(&answer(&socket).expect("the session goes on"));
        let (_, sentence) = refusal(answer.expect("an answer"));
        assert!(sentence.contains(rule), "{sentence}");
    }
    is_closed(&mut reader, writer);
    refusal(pass(&socket, 1, &[]));
    refusal(pass(&socket, 0, &[bound().as_fd()]));
    // More than a message may have.
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let many = [writer.as_fd(); PASSED_SOCKETS_MAX + 1];
    let (cookie, sentence) = refusal(pass(&socket, 7, &many));
    assert!(cookie == 7 && sentence.contains("more than"), "{sentence}");
    is_closed(&mut reader, writer);
    // More than the daemon has room for: the message is cut.
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let fds = [writer.as_fd(); 200];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let message = SessionMessage::Pass { cookie: 8, purpose: PassPurpose::TcpPort }.encode();
    sendmsg(&socket, &[IoSlice::new(&message)], &mut control, SendFlags::empty()).expect("sent");
    let cut = SessionMessage::decode(&answer(&socket).expect("the session goes on"));
    assert_eq!(refusal(cut.expect("an answer")).0, 0);
    is_closed(&mut reader, writer);
    assert_eq!(pass(&socket, 9, &[bound().as_fd()]), SessionMessage::Passed { cookie: 9 });
}

#[test]
fn client_of_version_2_passes_no_descriptors() {
    let daemon = Daemon::start("two");
    let socket = connected(&daemon.path());
    let hello = AttachHello { versions: (1, 2), ..AttachHello::new("two", SessionSizes::LEAST) };
    send(socket.as_fd(), &hello.encode(), &[]).expect("it is sent");
    answer(&socket).expect("a welcome");
    send(socket.as_fd(), &encode_ready(2), &[]).expect("it is sent");
    let message = SessionMessage::Pass { cookie: 1, purpose: PassPurpose::UdpPort }.encode();
    send(socket.as_fd(), &message, &[bound().as_fd()]).expect("it is sent");
    assert_eq!(answer(&socket), None, "it has no messages within a session");
}

/// A token, which the daemon gives before it says so.
fn token_of(socket: &OwnedFd, cookie: u64) -> OwnedFd {
    let message = SessionMessage::Token { cookie }.encode();
    send(socket.as_fd(), &message, &[]).expect("it is sent");
    let given = loop {
        match receive(socket.as_fd()).expect("the session goes on") {
            Reception::Message(message) => break message,
            Reception::Nothing => {
                wait_readable([Some(socket.as_fd())], Some(PATIENCE)).expect("in time");
            }
            other => panic!("{other:?}"),
        }
    };
    let give = SessionMessage::Give { cookie: cookie | crate::descriptors::GIVEN_TOKEN };
    assert_eq!(SessionMessage::decode(&given.bytes), Some(give));
    let passed = SessionMessage::decode(&answer(socket).expect("the session goes on"));
    assert_eq!(passed, Some(SessionMessage::Passed { cookie }));
    given.fds.into_iter().next().expect("it was given")
}

fn pass_token(socket: &OwnedFd, cookie: u64, token: BorrowedFd<'_>) -> SessionMessage {
    let message = SessionMessage::Pass { cookie, purpose: PassPurpose::Token }.encode();
    send(socket.as_fd(), &message, &[token]).expect("it is sent");
    let answer = answer(socket).expect("the session goes on");
    SessionMessage::decode(&answer).expect("an answer")
}

#[test]
fn token_is_known_by_its_socket_until_its_last_close() {
    let daemon = Daemon::start("known");
    let (one, other) = (session(&daemon), session(&daemon));
    let token = token_of(&one, 1);
    // Another end of the same kind, and one that was connected by the client.
    let pair = rustix::net::socketpair;
    let flags = SocketFlags::CLOEXEC;
    let forged = pair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
    for no_token in [forged.0.as_fd(), forged.1.as_fd(), one.as_fd(), other.as_fd()] {
        refusal(pass_token(&other, 2, no_token));
    }
    let copy = token.try_clone().expect("a descriptor");
    drop(token);
    assert_eq!(pass_token(&other, 3, copy.as_fd()), SessionMessage::Passed { cookie: 3 });
    // Over the token itself: another one for a child, and connections that are closed.
    let child = crate::descriptors::copy_token(copy.as_fd()).expect("the daemon makes one");
    assert_eq!(pass_token(&one, 4, child.as_fd()), SessionMessage::Passed { cookie: 4 });
    let conn = megapipe_stack::ConnId { index: 3, generation: 1 };
    let conns = [SharedConn { lane: 1, conn }; 300];
    crate::descriptors::release_shared(child.as_fd(), &conns).expect("it is sent");
    let endpoint = megapipe_stack::DatagramId { index: 3, generation: 1 };
    let endpoints = [SharedEndpoint { lane: 1, endpoint }; 2];
    crate::descriptors::release_shared_endpoints(child.as_fd(), &endpoints).expect("it is sent");
    drop(child);
    drop(copy);
    let mut notices = Vec::new();
    while notices.len() < 5 {
        if let Asked::Notice(line) = daemon.next() {
            notices.push(line);
        }
    }
    notices.sort();
    let released = ["2 endpoints released", "256 released", "44 released"];
    assert_eq!(notices, [&released[..], &["ended: true"; 2]].concat());
}
