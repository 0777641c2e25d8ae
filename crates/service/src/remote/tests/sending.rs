//! Small send buffers and stalled peers: sends, shutdown and close stay in order on each
//! connection, and no connection uses up what others need.

use megapipe_shm::record::Refusal;
use megapipe_stack::ConnOption;

use super::*;

/// Small enough that most of what a test sends has to wait.
const SMALL_SEND_BUFFER: u32 = 2_304;

/// Sessions with small windows, and receive buffers for the windows of all connections: what a
/// test's peer does not read costs its other connections nothing.
fn sessions_of_small_windows() -> (RemoteClient, RemoteClient) {
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    let sizes = (1 << 14, 8 << 10);
    (session_with(one, 1, sizes), session_with(other, 2, sizes))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Changes the send buffer without the session's knowledge, so that the server has to defer sends.
fn shrink_at_server(session: &mut RemoteClient, conn: ConnId) {
    let name = session.named(conn).expect("it is connected");
    let option = ConnOption::SendBuffer(SMALL_SEND_BUFFER);
    let (option, value) = encoding::encode_option(option).expect("it has a code");
    let set = session.call(SessionCall::SetOption { conn: encoding::id_of(name), option, value });
    assert_eq!(set, Some(ServerAnswer::Value { value: SMALL_SEND_BUFFER.into() }));
}

/// Sends pieces until the connection's share is used up, to a peer that does not read.
fn stall(session: &mut RemoteClient, conn: ConnId, piece_len: usize) -> usize {
    let (piece, mut sent) = (pattern(piece_len), 0);
    let start = Instant::now();
    // The peer's window takes some: the share is used up when nothing comes back any more.
    let mut refused_at = Instant::now();
    while refused_at.elapsed() < Duration::from_millis(30) {
        assert!(start.elapsed() < PATIENCE, "a share without end");
        match session.send(conn, &piece) {
            Ok(count) => {
                sent += count;
                refused_at = Instant::now();
            }
            Err(error) => assert_eq!(error, OperationError::QueueFull),
        }
        session.flush();
        while session.event().is_some() {}
    }
    sent
}

/// Sends `bytes` in pieces as there is room, then calls `end`; what the peer reads up to the end.
fn transfer(
    (client, ours): (&mut RemoteClient, ConnId),
    (server, theirs): (&mut RemoteClient, ConnId),
    (bytes, piece_len): (&[u8], usize),
    end: fn(&mut RemoteClient, ConnId),
) -> Vec<u8> {
    let (mut sent, mut came, mut has_ended) = (0, Vec::new(), false);
    let start = Instant::now();
    server.receive(theirs).unwrap();
    loop {
        assert!(start.elapsed() < PATIENCE, "{} of {sent} bytes arrived", came.len());
        while sent < bytes.len() {
            let piece = &bytes[sent..bytes.len().min(sent + piece_len)];
            match client.send(ours, piece) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error, OperationError::QueueFull);
                    break;
                }
            }
        }
        if sent == bytes.len() && !std::mem::replace(&mut has_ended, true) {
            end(client, ours);
        }
        client.flush();
        server.flush();
        while client.event().is_some() {}
        while let Some(event) = server.event() {
            match event {
                RemoteEvent::Event(Event::Received { conn, chunk }, _) if conn == theirs => {
                    let at = came.len();
                    came.resize(at + chunk.len as usize, 0);
                    server.take_bytes(chunk, &mut came[at..]);
                    server.receive(conn).unwrap();
                }
                RemoteEvent::Event(Event::PeerClosed { conn }, _) if conn == theirs => return came,
                RemoteEvent::Event(Event::Closed { conn, reason }, _) if conn == theirs => {
                    panic!("{reason:?} after {} bytes", came.len())
                }
                _ => {}
            }
        }
        std::thread::yield_now();
    }
}

#[test]
fn shutdown_and_close_follow_deferred_sends() {
    for end in [RemoteClient::shutdown, RemoteClient::close] {
        let (mut client, mut server) = sessions();
        listen(&mut server, 1);
        let (ours, theirs) = connected(&mut client, &mut server);
        shrink_at_server(&mut client, ours);
        let bytes = pattern(40_000);
        let came = transfer((&mut client, ours), (&mut server, theirs), (&bytes, 500), end);
        assert!(came == bytes, "{} of {} bytes", came.len(), bytes.len());
    }
}

#[test]
fn bytes_with_the_server_are_bounded_by_the_send_buffer() {
    for bytes in [SMALL_SEND_BUFFER, 600_000] {
        let (mut client, mut server) = sessions();
        listen(&mut server, 1);
        let (ours, theirs) = connected(&mut client, &mut server);
        assert_eq!(client.set_option(ours, ConnOption::SendBuffer(bytes)), Ok(()));
        let (piece, mut sent) = (pattern(bytes as usize / 20), 0);
        while let Ok(count) = client.send(ours, &piece) {
            sent += count;
            assert!(sent <= bytes as usize, "{sent} of {bytes}");
        }
        assert_eq!(sent, bytes as usize);
        let ends = ((&mut client, ours), (&mut server, theirs));
        assert_eq!(transfer(ends.0, ends.1, (&[], 1), RemoteClient::shutdown).len(), sent);
    }
}

#[test]
fn stalled_connection_delays_no_other() {
    let (mut client, mut server) = sessions_of_small_windows();
    listen(&mut server, 2);
    let (stalled, _) = connected(&mut client, &mut server);
    let (ours, theirs) = connected(&mut client, &mut server);
    shrink_at_server(&mut client, stalled);
    shrink_at_server(&mut client, ours);
    stall(&mut client, stalled, 1_000);
    let bytes = pattern(20_000);
    let end = RemoteClient::shutdown;
    let came = transfer((&mut client, ours), (&mut server, theirs), (&bytes, 1_000), end);
    assert!(came == bytes, "{} of {} bytes", came.len(), bytes.len());
}

#[test]
fn stalled_connections_leave_room_for_others() {
    let (mut client, mut server) = sessions_of_small_windows();
    listen(&mut server, 100);
    // Enough of each length to use up every buffer, were there no shares.
    let lens = [300, 1, LARGE_SEND_BYTES].into_iter().cycle().take(60);
    let pairs: Vec<_> = (0..63).map(|_| connected(&mut client, &mut server)).collect();
    for ((stalled, _), len) in pairs.iter().copied().zip(lens) {
        for _ in 0..20_000 {
            if client.send(stalled, &pattern(len)).is_err() {
                break;
            }
        }
        client.flush();
    }
    for ((ours, theirs), piece_len) in pairs.into_iter().skip(60).zip([1, 300, 70_000]) {
        let bytes = pattern(20_000.max(piece_len).min(piece_len * 2_000));
        let ends = ((&mut client, ours), (&mut server, theirs));
        let came = transfer(ends.0, ends.1, (&bytes, piece_len), RemoteClient::shutdown);
        assert!(came == bytes, "{} of {} bytes", came.len(), bytes.len());
    }
}

#[test]
fn connection_has_one_copy_with_the_server() {
    let (mut client, mut server) = sessions_of_small_windows();
    listen(&mut server, 1);
    let (ours, _) = connected(&mut client, &mut server);
    let conn = client.named(ours).map(encoding::id_of).expect("it is connected");
    let copy =
        SessionCall::SendCopy { conn, chunk: Chunk { buf: CALL_BUFFER, offset: 0, len: 60_000 } };
    // The peer does not read.
    assert_eq!(client.call(copy), Some(ServerAnswer::Done));
    let refused = ServerAnswer::refused(Refusal::QueueFull);
    assert_eq!(client.call(copy), Some(refused), "an application would use up the memory");
}

/// What a program does for each connection that it accepts.
#[test]
fn ends_and_options_of_an_accepted_connection_need_no_call() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    let (ours, theirs) = connected(&mut client, &mut server);
    let calls = server.calls();
    let (local, remote) = server.addresses(theirs).expect("it is connected");
    for option in [ConnOption::NoDelay(true), ConnOption::ReceiveBuffer(54_321)] {
        assert_eq!(server.set_option(theirs, option), Ok(()));
    }
    assert_eq!(server.calls(), calls);
    // The peer's end was asked for.
    assert_eq!(client.addresses(ours), Some((remote, local)));
    let asked = client.calls();
    assert_eq!(client.addresses(ours), Some((remote, local)));
    assert_eq!(client.calls(), asked, "and is known");
    let name = server.named(theirs).expect("it is connected");
    let info = info(&mut server, name).expect("it is connected");
    assert_eq!(info.receive_buffer_bytes, 54_321, "the option was set before");
    assert_eq!(server.set_option(theirs, ConnOption::SendBuffer(SMALL_SEND_BUFFER)), Ok(()));
    assert_eq!(server.calls(), calls + 2, "its size is the server's to say");
}

/// What a program sets between connect(2) and the answer of the server goes with the name that the
/// server gives.
#[test]
fn options_of_a_connection_without_a_name_need_no_call() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 3);
    server.flush();
    let conn = client.connect(http());
    let released = client.connect(http());
    let calls = client.calls();
    for bytes in [10_000, 54_321] {
        for conn in [conn, released] {
            assert_eq!(client.set_option(conn, ConnOption::ReceiveBuffer(bytes)), Ok(()));
        }
    }
    client.close(released);
    let after = client.set_option(released, ConnOption::NoDelay(true));
    assert_eq!(after, Err(OperationError::Unknown));
    assert_eq!(client.calls(), calls);
    let Event::Connected { conn: connected } = next_event(&mut client) else { panic!("it comes") };
    assert_eq!(connected, conn, "the other one was aborted when it got its name");
    let name = client.named(conn).expect("it is connected");
    let bytes = info(&mut client, name).expect("it is connected").receive_buffer_bytes;
    assert_eq!(bytes, 54_321, "the last one holds");
}

/// A program that sets options in a loop while the server does not run needs no more memory for it.
#[test]
fn options_of_a_connection_without_a_name_are_bounded() {
    let (mut client, mut server) = sessions();
    listen(&mut server, 1);
    server.flush();
    let conn = client.connect(http());
    let calls = client.calls();
    for bytes in 1..=1_000 {
        assert_eq!(client.set_option(conn, ConnOption::ReceiveBuffer(bytes + 20_000)), Ok(()));
        assert!(client.early_options(conn) <= 16);
    }
    assert_eq!(client.calls(), calls + 1, "one call has waited for the name");
    let name = client.named_soon(conn).expect("it is connected");
    let bytes = info(&mut client, name).expect("it is connected").receive_buffer_bytes;
    assert_eq!(bytes, 21_000);
}
