//! How connections end: in order, half by half, by reset, from either side.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::thread;

use megapipe::{ConnectOptions, Disconnect, Event, Limit, OpError};
use rustix::net::SendFlags;

use crate::place::there;
use crate::scene::{Case, Stream, on_each_driver, pattern, receive_to_end, reset};

on_each_driver![
    await_end_completes_at_the_end,
    the_peers_end_is_an_empty_read_now_and_later,
    bytes_before_the_end_come_before_it,
    end_completes_all_waiting_reads,
    after_the_peers_end_the_channel_can_still_write,
    a_closed_sending_direction_leaves_reading_open,
    a_write_after_the_sending_direction_was_closed_is_a_broken_pipe,
    disconnect_of_both_directions_follows_the_queued_writes,
    disconnect_twice_is_no_error,
    a_disconnect_ends_a_read_that_waits,
    a_reset_by_the_channel_is_seen_by_the_peer,
    a_reset_by_the_peer_fails_the_read_that_waits,
    a_reset_by_the_peer_fails_later_reads_and_writes,
    reset_reported_to_a_write_is_no_orderly_end,
    a_reset_in_mid_write_fails_that_write_and_those_behind_it,
    a_reset_by_the_channel_cancels_queued_writes,
    unregister_of_an_lwsocket_ends_it_in_order,
    unregister_with_unread_bytes_resets,
    unregister_after_connect_with_reset_on_close_resets,
    urgent_data_leaves_the_stream_as_it_is,
];

fn the_peers_end_is_an_empty_read_now_and_later(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, peer) = scene.stream(kind);
        drop(peer);
        for _ in 0..3 {
            assert!(scene.read_once(handle, 10).unwrap().is_empty(), "{kind:?}");
        }
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn bytes_before_the_end_come_before_it(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.send(&mut peer, &pattern(1, 20_000));
        drop(peer);
        assert_eq!(scene.read_to_end(handle), pattern(1, 20_000), "{kind:?}");
    }
}

fn end_completes_all_waiting_reads(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        for _ in 0..4 {
            scene.read(handle, 10).unwrap();
        }
        scene.flush().unwrap();
        scene.send(&mut peer, b"last");
        drop(peer);
        let mut got = Vec::new();
        for _ in 0..4 {
            let Event::Read(Ok(read)) = scene.next_of(handle) else { panic!("{kind:?}") };
            got.extend_from_slice(&read);
        }
        assert_eq!(got, b"last", "{kind:?}");
        scene.expect_silence();
    }
}

fn after_the_peers_end_the_channel_can_still_write(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.send(&mut peer, b"question");
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(scene.read_to_end(handle), b"question", "{kind:?}");
        scene.write(handle, pattern(1, 50_000)).unwrap();
        scene.expect_written(handle, 50_000);
        assert_eq!(scene.receive(&mut peer, 50_000), pattern(1, 50_000), "{kind:?}");
        scene.disconnect(handle, Disconnect::Both).unwrap();
        scene.expect_disconnected(handle);
        assert_eq!(scene.receive_to_end(&mut peer), b"", "{kind:?}");
    }
}

fn a_closed_sending_direction_leaves_reading_open(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.write(handle, "question").unwrap();
        scene.disconnect(handle, Disconnect::Write).unwrap();
        scene.expect_written(handle, 8);
        scene.expect_disconnected(handle);
        assert_eq!(scene.receive_to_end(&mut peer), b"question", "{kind:?}");
        scene.send(&mut peer, &pattern(2, 30_000));
        drop(peer);
        assert_eq!(scene.read_to_end(handle), pattern(2, 30_000), "{kind:?}");
    }
}

fn a_write_after_the_sending_direction_was_closed_is_a_broken_pipe(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, _peer) = scene.stream(kind);
        scene.disconnect(handle, Disconnect::Write).unwrap();
        scene.expect_disconnected(handle);
        scene.write(handle, "too late").unwrap();
        let Event::Write(Err(OpError::BrokenPipe)) = scene.next_of(handle) else {
            panic!("{kind:?}")
        };
    }
}

fn disconnect_of_both_directions_follows_the_queued_writes(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        for turn in 0..10 {
            scene.write(handle, pattern(turn, 40_000)).unwrap();
        }
        scene.disconnect(handle, Disconnect::Both).unwrap();
        let reader = thread::spawn(move || receive_to_end(&mut peer));
        for _ in 0..10 {
            scene.expect_written(handle, 40_000);
        }
        scene.expect_disconnected(handle);
        let expected: Vec<u8> = (0..10).flat_map(|turn| pattern(turn, 40_000)).collect();
        assert!(scene.join(reader) == expected, "{kind:?}");
    }
}

fn disconnect_twice_is_no_error(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, _peer) = scene.stream(kind);
        for how in [Disconnect::Write, Disconnect::Both, Disconnect::Both] {
            scene.disconnect(handle, how).unwrap();
            scene.expect_disconnected(handle);
        }
    }
}

fn a_disconnect_ends_a_read_that_waits(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, _peer) = scene.stream(kind);
        scene.read(handle, 10).unwrap();
        scene.flush().unwrap();
        scene.disconnect(handle, Disconnect::Both).unwrap();
        let (mut ended, mut disconnected) = (false, false);
        while !(ended && disconnected) {
            match scene.next_of(handle) {
                Event::Read(Ok(read)) if read.is_empty() => ended = true,
                Event::Disconnect(Ok(())) => disconnected = true,
                other => panic!("{kind:?} {other:?}"),
            }
        }
    }
}

fn a_reset_by_the_channel_is_seen_by_the_peer(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::TCP {
        let (handle, mut peer) = scene.stream(kind);
        scene.disconnect(handle, Disconnect::Reset).unwrap();
        scene.expect_disconnected(handle);
        assert_eq!(scene.end_of(&mut peer).unwrap_err().kind(), ErrorKind::ConnectionReset);
        scene.unregister(handle).unwrap();
    }
    for kind in Stream::ALL.into_iter().filter(|kind| !kind.is_tcp()) {
        let (handle, mut peer) = scene.stream(kind);
        scene.disconnect(handle, Disconnect::Reset).unwrap();
        scene.expect_disconnected(handle);
        assert_eq!(scene.receive_to_end(&mut peer), b"", "elsewhere a reset is an end: {kind:?}");
    }
}

fn a_reset_by_the_peer_fails_the_read_that_waits(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::TCP {
        let (handle, peer) = scene.stream(kind);
        scene.read(handle, 10).unwrap();
        scene.flush().unwrap();
        reset(peer);
        let Event::Read(Err(OpError::Reset)) = scene.next_of(handle) else { panic!("{kind:?}") };
    }
}

fn a_reset_by_the_peer_fails_later_reads_and_writes(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::TCP {
        let (handle, peer) = scene.stream(kind);
        reset(peer);
        let Err(OpError::Reset) = scene.read_once(handle, 10) else { panic!("{kind:?}") };
        let Err(OpError::Reset) = scene.read_once(handle, 10) else { panic!("{kind:?}") };
        scene.write(handle, "unread").unwrap();
        match scene.next_of(handle) {
            Event::Write(Err(OpError::BrokenPipe | OpError::Reset)) => {}
            other => panic!("{kind:?} {other:?}"),
        }
    }
}

fn reset_reported_to_a_write_is_no_orderly_end(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::TCP {
        let (handle, mut peer) = scene.stream(kind);
        scene.send(&mut peer, b"before the reset");
        reset(peer);
        #[cfg(feature = "local")]
        if case.is_local {
            scene.catch_up();
            // One that is not exactly at its place is asked for again (RFC 5961 §3.2).
            let start = std::time::Instant::now();
            let is_open = |info: megapipe::ConnInfo| info.state != megapipe::TcpState::Closed;
            while scene.channel.conn_info(handle).is_ok_and(is_open) {
                assert!(start.elapsed() < crate::scene::PATIENCE, "{kind:?} is not reset");
                scene.catch_up();
            }
        }
        // The kernel tells of a reset once, and here the write is the first to ask.
        scene.write(handle, "unread").unwrap();
        match scene.next_of(handle) {
            Event::Write(Err(OpError::Reset)) => {}
            other => panic!("{kind:?} {other:?}"),
        }
        assert_eq!(scene.read_exact(handle, 16), b"before the reset", "{kind:?}");
        for _ in 0..2 {
            assert_eq!(scene.read_once(handle, 1).unwrap_err(), OpError::Reset, "{kind:?}");
        }
    }
}

fn a_reset_in_mid_write_fails_that_write_and_those_behind_it(case: &Case) {
    let mut scene = case.scene_without_limit();
    for kind in Stream::TCP {
        let (handle, mut peer) = scene.stream(kind);
        for _ in 0..3 {
            scene.write(handle, vec![1; 16 << 20]).unwrap();
        }
        scene.flush().unwrap();
        scene.receive(&mut peer, 1000);
        reset(peer);
        for _ in 0..3 {
            match scene.next_of(handle) {
                Event::Write(Err(OpError::Reset | OpError::BrokenPipe)) => {}
                other => panic!("{kind:?} {other:?}"),
            }
        }
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn a_reset_by_the_channel_cancels_queued_writes(case: &Case) {
    let mut scene = case.scene_without_limit();
    for kind in Stream::TCP {
        let (handle, mut peer) = scene.stream(kind);
        for _ in 0..3 {
            scene.write(handle, vec![1; 16 << 20]).unwrap();
        }
        scene.flush().unwrap();
        scene.receive(&mut peer, 1000);
        scene.disconnect(handle, Disconnect::Reset).unwrap();
        let (mut failed, mut disconnected) = (0, false);
        while failed < 3 || !disconnected {
            match scene.next_of(handle) {
                Event::Write(Err(_)) => failed += 1,
                Event::Disconnect(Ok(())) => disconnected = true,
                other => panic!("{kind:?} {other:?}"),
            }
        }
        scene.expect_silence();
        let end = scene.end_of(&mut peer).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{kind:?}");
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn unregister_of_an_lwsocket_ends_it_in_order(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL.into_iter().filter(|kind| !kind.is_registered()) {
        let (handle, mut peer) = scene.stream(kind);
        scene.write(handle, pattern(1, 5000)).unwrap();
        scene.expect_written(handle, 5000);
        scene.unregister(handle).unwrap();
        assert_eq!(scene.end_of(&mut peer).unwrap(), pattern(1, 5000), "{kind:?}");
    }
}

fn unregister_with_unread_bytes_resets(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::Accepted6, Stream::Connected4] {
        let (handle, mut peer) = scene.stream(kind);
        // No read took these bytes, so they are in the kernel when the socket is closed.
        scene.send(&mut peer, b"never read");
        scene.catch_up();
        scene.unregister(handle).unwrap();
        let end = scene.end_of(&mut peer).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "{kind:?}");
    }
}

fn unregister_after_connect_with_reset_on_close_resets(case: &Case) {
    let mut scene = case.scene();
    let listener = std::net::TcpListener::bind(there("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().into();
    let options = ConnectOptions::default().reset_on_close(true);
    let handle = scene.connect(&address, &options, 0).unwrap();
    let Event::Connect(Ok(())) = scene.next_of(handle) else { panic!() };
    let mut peer = scene.admit(&listener);
    scene.unregister(handle).unwrap();
    assert_eq!(scene.end_of(&mut peer).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn urgent_data_leaves_the_stream_as_it_is(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::TCP {
        let (handle, mut peer) = scene.stream(kind);
        scene.read(handle, 100).unwrap();
        scene.flush().unwrap();
        scene.send(&mut peer, b"before");
        rustix::net::send(&peer, b"!", SendFlags::OOB).unwrap();
        scene.send(&mut peer, b"after");
        drop(peer);
        let Event::Read(Ok(first)) = scene.next_of(handle) else { panic!("{kind:?}") };
        let mut got = first.to_vec();
        got.extend(scene.read_to_end(handle));
        // Our own stack leaves urgent bytes where they are, as RFC 6093 §3.1 has it.
        let in_line = case.is_local && !kind.is_registered();
        let all: &[u8] = if in_line { b"before!after" } else { b"beforeafter" };
        assert_eq!(got, all, "{kind:?}");
    }
}

fn await_end_completes_at_the_end(case: &Case) {
    let mut scene = case.scene();
    // In order: the peer's end, then ours.
    let (handle, peer) = scene.stream(Stream::Accepted4);
    scene.await_end(handle).unwrap();
    assert_eq!(scene.await_end(handle), Err(Limit::Operations.into()));
    scene.read(handle, 10).unwrap();
    drop(peer);
    let Event::Read(Ok(end)) = scene.next_of(handle) else { panic!() };
    assert!(end.is_empty());
    scene.disconnect(handle, Disconnect::Write).unwrap();
    // The driver chooses which completes first.
    let told = [scene.next_of(handle), scene.next_of(handle)];
    assert!(told.iter().any(|event| matches!(event, Event::End(Ok(())))), "{told:?}");
    assert!(told.iter().any(|event| matches!(event, Event::Disconnect(Ok(())))), "{told:?}");
    scene.unregister(handle).unwrap();
    // By a reset that no read would tell of any more.
    let (handle, peer) = scene.stream(Stream::Accepted4);
    scene.read(handle, 10).unwrap();
    drop(peer);
    let Event::Read(Ok(end)) = scene.next_of(handle) else { panic!() };
    assert!(end.is_empty());
    scene.await_end(handle).unwrap();
    scene.write(handle, "it is dropped").unwrap();
    scene.expect_written(handle, 13);
    let Event::End(Err(error)) = scene.next_of(handle) else { panic!() };
    assert!(matches!(error, OpError::Reset | OpError::BrokenPipe), "{error:?}");
    // Requested of a handle that leaves: no completion comes, and nothing is left with the kernel.
    let (handle, _peer) = scene.stream(Stream::Connected4);
    scene.await_end(handle).unwrap();
    scene.unregister(handle).unwrap();
    scene.expect_silence();
    scene.expect_no_strays();
}
