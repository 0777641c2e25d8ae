//! Writes that say nothing when all goes well: their bytes, their order, their failures.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use megapipe::{Config, Disconnect, Event, Handle, Misuse, OpError, SubmitError};

use crate::scene::{Case, Scene, Stream, on_each_driver, pattern, receive, reset};

on_each_driver![
    a_quiet_write_arrives_and_gives_no_completion,
    writes_behind_a_quiet_one_complete_after_it,
    quiet_and_other_writes_keep_their_order,
    more_than_the_socket_takes_arrives_whole_and_quietly,
    a_quiet_write_without_room_is_followed_by_others_in_order,
    a_socket_that_fills_up_gets_every_byte_once_and_in_order,
    a_reset_while_the_socket_is_full_fails_what_was_left,
    unsent_bytes_rise_and_fall,
    a_quiet_write_to_a_peer_that_reset_fails_aloud,
    a_disconnect_waits_for_the_quiet_write_before_it,
    unregister_with_a_quiet_write_pending_frees_the_slot_for_another,
    a_quiet_echo_goes_round_many_times_without_batching_too,
    a_quiet_write_of_nothing_is_misuse;
    kernel:
    to_fd_waits_for_the_quiet_write_before_it,
];

fn a_quiet_write_arrives_and_gives_no_completion(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.write_quiet(handle, &b"quietly"[..]).unwrap();
        scene.expect_silence();
        assert_eq!(scene.receive(&mut peer, 7), b"quietly", "{kind:?}");
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn writes_behind_a_quiet_one_complete_after_it(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.write_quiet(handle, &b"first, "[..]).unwrap();
        scene.write(handle, &b"then"[..]).unwrap();
        // Nothing else is on its way that could end a wait.
        scene.expect_written(handle, 4);
        assert_eq!(scene.unsent_bytes(handle), Ok(0));
        assert_eq!(scene.receive(&mut peer, 11), b"first, then", "{kind:?}");
    }
}

fn quiet_and_other_writes_keep_their_order(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::RegisteredUnix] {
        let (handle, mut peer) = scene.stream(kind);
        let mut sent = Vec::new();
        let mut aloud = 0;
        for turn in 0..200 {
            let bytes = pattern(turn, 1 + turn * 7);
            sent.extend_from_slice(&bytes);
            if turn % 3 == 0 {
                scene.write(handle, bytes).unwrap();
                aloud += 1;
            } else {
                scene.write_quiet(handle, bytes).unwrap();
            }
            if turn % 10 == 0 {
                scene.flush().unwrap();
            }
        }
        let len = sent.len();
        let reader = thread::spawn(move || receive(&mut peer, len));
        for _ in 0..aloud {
            assert!(matches!(scene.next_of(handle), Event::Write(Ok(_))), "{kind:?}");
        }
        scene.expect_silence();
        assert!(scene.join(reader) == sent, "{kind:?}");
    }
}

fn more_than_the_socket_takes_arrives_whole_and_quietly(case: &Case) {
    const LEN: usize = 8 << 20;
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::RegisteredTcp, Stream::RegisteredUnix] {
        let (handle, mut peer) = scene.stream(kind);
        let bytes: Arc<[u8]> = pattern(1, LEN).into();
        scene.write_quiet(handle, Arc::clone(&bytes)).unwrap();
        scene.flush().unwrap();
        let reader = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            receive(&mut peer, LEN)
        });
        while scene.unsent_bytes(handle).unwrap() > 0 {
            let done = scene.dispatch(Some(Duration::from_millis(10))).unwrap();
            assert!(done.is_none(), "{done:?}");
        }
        assert!(scene.join(reader)[..] == bytes[..], "{kind:?}");
    }
}

fn a_quiet_write_without_room_is_followed_by_others_in_order(case: &Case) {
    const LEN: usize = 6 << 20;
    let mut scene = case.scene_without_limit();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    // The first is cut by a full socket; those behind it must wait for all of it.
    scene.write_quiet(handle, pattern(1, LEN)).unwrap();
    scene.flush().unwrap();
    scene.write_quiet(handle, pattern(2, LEN)).unwrap();
    scene.write(handle, &b"end"[..]).unwrap();
    let reader = thread::spawn(move || (receive(&mut peer, 2 * LEN + 3), peer));
    scene.expect_written(handle, 3);
    let (got, mut peer) = scene.join(reader);
    let all = [pattern(1, LEN), pattern(2, LEN), b"end".to_vec()].concat();
    assert!(got == all);
    // With room again, writes are quiet again.
    scene.write_quiet(handle, &b"after"[..]).unwrap();
    scene.expect_silence();
    assert_eq!(scene.receive(&mut peer, 5), b"after");
}

/// Writes quietly from pool buffers until the peer's socket is full; returns what was written.
fn fill_up(scene: &mut Scene, handle: Handle) -> Vec<u8> {
    fill_up_beyond(scene, handle, 0)
}

/// Fills a socket, and leaves more than so many bytes unsent.
fn fill_up_beyond(scene: &mut Scene, handle: Handle, unsent: usize) -> Vec<u8> {
    let mut sent = Vec::new();
    for turn in 0.. {
        let mut buffer = scene.alloc(4096);
        buffer.extend_from_slice(&pattern(turn, 4096 - turn % 100));
        sent.extend_from_slice(&buffer);
        scene.write_quiet(handle, buffer).unwrap();
        if turn % 3 == 0 {
            let done = scene.dispatch(Some(Duration::ZERO)).unwrap();
            assert!(done.is_none(), "{done:?}");
            if scene.unsent_bytes(handle).unwrap() > unsent {
                break;
            }
        }
        assert!(sent.len() < 64 << 20, "the socket takes everything");
    }
    sent
}

fn a_socket_that_fills_up_gets_every_byte_once_and_in_order(case: &Case) {
    for config in [case.config(), case.config().batch(1), small(case.config())] {
        let mut scene = case.scene_with(config);
        for kind in [Stream::Accepted4, Stream::AcceptedUnix, Stream::RegisteredUnix] {
            let (handle, mut peer) = scene.stream(kind);
            let mut sent = fill_up(&mut scene, handle);
            for turn in 0..20 {
                let mut buffer = scene.alloc(300);
                buffer.extend_from_slice(&pattern(turn, 300));
                sent.extend_from_slice(&buffer);
                scene.write_quiet(handle, buffer).unwrap();
            }
            scene.write(handle, &b"end"[..]).unwrap();
            sent.extend_from_slice(b"end");
            let len = sent.len();
            let reader = thread::spawn(move || (receive(&mut peer, len), peer));
            scene.expect_written(handle, 3);
            let (got, mut peer) = scene.join(reader);
            assert!(got == sent, "{kind:?}");
            // And now that there is room, once more.
            let again = fill_up(&mut scene, handle);
            let len = again.len();
            let reader = thread::spawn(move || receive(&mut peer, len));
            while scene.unsent_bytes(handle).unwrap() > 0 {
                assert!(scene.dispatch(Some(Duration::from_millis(10))).unwrap().is_none());
            }
            assert!(scene.join(reader) == again, "{kind:?}");
            scene.unregister(handle).unwrap();
        }
        scene.expect_no_strays();
    }
}

fn a_reset_while_the_socket_is_full_fails_what_was_left(case: &Case) {
    // More than the peer's kernel takes while its program reads nothing. Otherwise a server that
    // has not run for a while takes all of it before the reset.
    const UNSENT: usize = 512 << 10;
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::RegisteredTcp] {
        let (handle, peer) = scene.stream(kind);
        fill_up_beyond(&mut scene, handle, UNSENT);
        reset(peer);
        match scene.next_of(handle) {
            Event::Write(Err(OpError::Reset | OpError::BrokenPipe)) => {}
            other => panic!("{kind:?}: {other:?}"),
        }
        assert_eq!(scene.unsent_bytes(handle), Ok(0));
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn unsent_bytes_rise_and_fall(case: &Case) {
    const LEN: usize = 4 << 20;
    let mut scene = case.scene_without_limit();
    let (handle, mut peer) = scene.stream(Stream::AcceptedUnix);
    assert_eq!(scene.unsent_bytes(handle), Ok(0));
    scene.write_quiet(handle, pattern(3, LEN)).unwrap();
    scene.flush().unwrap();
    scene.expect_silence();
    let stuck = scene.unsent_bytes(handle).unwrap();
    assert!((1..=LEN).contains(&stuck), "{stuck}");
    scene.write(handle, &b"x"[..]).unwrap();
    assert_eq!(scene.unsent_bytes(handle), Ok(stuck + 1));
    let reader = thread::spawn(move || receive(&mut peer, LEN + 1));
    scene.expect_written(handle, 1);
    assert_eq!(scene.unsent_bytes(handle), Ok(0));
    assert!(scene.join(reader)[..LEN] == pattern(3, LEN)[..]);
    scene.unregister(handle).unwrap();
    assert!(scene.unsent_bytes(handle).is_err());
}

fn a_quiet_write_to_a_peer_that_reset_fails_aloud(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::TCP {
        let (handle, peer) = scene.stream(kind);
        reset(peer);
        scene.catch_up();
        scene.expect_silence();
        scene.write_quiet(handle, &b"too late"[..]).unwrap();
        match scene.next_of(handle) {
            Event::Write(Err(OpError::Reset | OpError::BrokenPipe)) => {}
            other => panic!("{kind:?}: {other:?}"),
        }
        assert_eq!(scene.unsent_bytes(handle), Ok(0));
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn a_disconnect_waits_for_the_quiet_write_before_it(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.write_quiet(handle, &b"goodbye"[..]).unwrap();
        scene.disconnect(handle, Disconnect::Write).unwrap();
        scene.expect_disconnected(handle);
        assert_eq!(scene.receive_to_end(&mut peer), b"goodbye", "{kind:?}");
    }
}

fn to_fd_waits_for_the_quiet_write_before_it(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::AcceptedUnix] {
        let (handle, mut peer) = scene.stream(kind);
        scene.write_quiet(handle, &b"before"[..]).unwrap();
        scene.to_fd(handle).unwrap();
        match scene.next_of(handle) {
            Event::ToFd(Ok(moved)) => drop(moved),
            other => panic!("{kind:?}: {other:?}"),
        }
        assert_eq!(scene.receive(&mut peer, 6), b"before", "{kind:?}");
    }
}

fn unregister_with_a_quiet_write_pending_frees_the_slot_for_another(case: &Case) {
    let mut scene = case.scene();
    let mut last = None;
    for turn in 0..50 {
        let (handle, mut peer) = scene.stream(Stream::Accepted4);
        scene.write_quiet(handle, pattern(turn, 100)).unwrap();
        scene.unregister(handle).unwrap();
        let _ = scene.end_of(&mut peer);
        last = Some(handle.number());
    }
    // Slots come back: fifty connections, one after the other, need a few numbers only.
    let first = megapipe::FIRST_LWSOCKET;
    assert!(last.is_some_and(|number| number - first < 10), "{last:?}");
    scene.expect_no_strays();
}

fn a_quiet_echo_goes_round_many_times_without_batching_too(case: &Case) {
    for config in [case.config(), case.config().batch(1), small(case.config())] {
        let mut scene = case.scene_with(config);
        let mut streams: Vec<_> = (0..4).map(|_| scene.stream(Stream::Accepted4)).collect();
        for (handle, _) in &streams {
            scene.read(*handle, 64).unwrap();
        }
        for turn in 0..100 {
            for (_, peer) in &mut streams {
                scene.send(peer, &pattern(turn, 64));
            }
            let mut echoed = 0;
            while echoed < streams.len() * 64 {
                let done = scene.next();
                let Event::Read(Ok(bytes)) = done.event else { panic!("{done:?}") };
                echoed += bytes.len();
                scene.write_quiet(done.handle, bytes).unwrap();
                scene.read(done.handle, 64).unwrap();
            }
            scene.flush().unwrap();
            for (_, peer) in &mut streams {
                assert_eq!(scene.receive(peer, 64), pattern(turn, 64));
            }
        }
        assert_eq!(scene.counters().buffers_exhausted, 0);
        scene.expect_no_strays();
    }
}

/// Queues that are full all the time.
fn small(config: Config) -> Config {
    config.batch(2).submission_entries(8).completion_entries(8)
}

fn a_quiet_write_of_nothing_is_misuse(case: &Case) {
    let mut scene = case.scene();
    let (handle, _peer) = scene.stream(Stream::Accepted4);
    let refused = scene.write_quiet(handle, Vec::new());
    assert!(
        matches!(refused, Err(SubmitError::Misuse(Misuse::InvalidLength { len: 0, .. }))),
        "{refused:?}"
    );
    scene.unregister(handle).unwrap();
    assert_eq!(scene.write_quiet(handle, "x"), Err(Misuse::StaleHandle.into()));
}
