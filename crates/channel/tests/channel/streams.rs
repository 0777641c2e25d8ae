//! Bytes through every kind of stream: order, wholeness, lengths, moving out of the channel.

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use megapipe::limits::{GATHER_PARTS_MAX, READ_AHEAD_BYTES_MAX, WRITE_PARTS_MAX};
use megapipe::{Disconnect, Event, Payload};

use crate::scene::{Case, Stream, on_each_driver, pattern, peer, receive, send};

on_each_driver![
    stream_reads_and_writes_arrive,
    short_read_leaves_the_rest,
    reads_outstanding_are_answered_in_order,
    writes_outstanding_go_out_in_order_each_with_its_length,
    reads_and_writes_are_outstanding_at_once,
    every_payload_sends_its_bytes,
    received_bytes_echo_without_a_copy_in_between,
    a_vector_of_more_parts_than_one_send_takes_is_one_write,
    a_vector_may_have_empty_parts,
    eight_mib_to_a_slow_reader_are_written_whole,
    sixty_four_kib_echo_through_buffers_of_sixty_four_bytes,
    without_batching_and_with_it_the_bytes_are_the_same,
    more_than_the_read_ahead_limit_waits_in_the_kernel_and_is_not_lost,
    unregister_gives_a_descriptor_back_with_what_was_unread,
    unregister_with_a_read_waiting_loses_no_byte,
    a_spilled_read_buffer_keeps_its_bytes;
    kernel:
    to_fd_carries_unread_bytes_and_queued_writes,
    to_fd_of_an_idle_stream_is_a_plain_socket,
    to_fd_cancels_reads_that_wait,
    to_fd_leaves_nothing_with_the_kernel_that_awaited_the_end,
    to_fd_waits_for_an_earlier_reset,
];

fn stream_reads_and_writes_arrive(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        assert_eq!(handle.is_lwsocket(), !kind.is_registered());
        scene.write(handle, &b"from the channel"[..]).unwrap();
        scene.expect_written(handle, 16);
        assert_eq!(scene.receive(&mut peer, 16), b"from the channel", "{kind:?}");
        scene.send(&mut peer, b"from the peer");
        assert_eq!(scene.read_exact(handle, 13), b"from the peer", "{kind:?}");
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn short_read_leaves_the_rest(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.send(&mut peer, b"abcdefghij");
        let mut got = Vec::new();
        for len in [1, 2, 3, 100] {
            let read = scene.read_once(handle, len).unwrap();
            assert!((1..=len).contains(&read.len()), "{kind:?}");
            got.extend_from_slice(&read);
        }
        while got.len() < 10 {
            got.extend_from_slice(&scene.read_once(handle, 100).unwrap());
        }
        assert_eq!(got, b"abcdefghij", "{kind:?}");
    }
}

fn reads_outstanding_are_answered_in_order(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        // Each message is sent when the one before was read, so that each answers one read.
        for _ in 0..4 {
            scene.read(handle, 64).unwrap();
        }
        for turn in 0..4 {
            scene.send(&mut peer, &pattern(turn, 20));
            let Event::Read(Ok(read)) = scene.next_of(handle) else { panic!("{kind:?}") };
            assert_eq!(*read, pattern(turn, 20), "{kind:?}");
        }
        for len in [3, 5, 2] {
            scene.read(handle, len).unwrap();
        }
        scene.send(&mut peer, b"1112222233");
        let mut got = Vec::new();
        for _ in 0..3 {
            let Event::Read(Ok(read)) = scene.next_of(handle) else { panic!("{kind:?}") };
            got.extend_from_slice(&read);
        }
        assert!(b"1112222233".starts_with(&got), "{kind:?}");
    }
}

fn writes_outstanding_go_out_in_order_each_with_its_length(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        let sizes: Vec<usize> = (0..100).map(|turn| 1 + turn * 37 % 700).collect();
        let mut expected = Vec::new();
        for (turn, len) in sizes.iter().enumerate() {
            scene.write(handle, pattern(turn, *len)).unwrap();
            expected.extend(pattern(turn, *len));
        }
        let total = expected.len();
        let reader = thread::spawn(move || receive(&mut peer, total));
        for len in sizes {
            scene.expect_written(handle, len);
        }
        assert_eq!(scene.join(reader), expected, "{kind:?}");
    }
    scene.expect_no_strays();
}

fn reads_and_writes_are_outstanding_at_once(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        for turn in 0..10 {
            scene.read(handle, 8).unwrap();
            scene.write(handle, pattern(turn, 8)).unwrap();
        }
        // The peer answers each message with the next, so no read is answered without a write.
        let answering = thread::spawn(move || {
            for turn in 0..10 {
                assert_eq!(receive(&mut peer, 8), pattern(turn, 8));
                send(&mut peer, &pattern(turn + 1, 8));
            }
            peer
        });
        let (mut written, mut read) = (0, Vec::new());
        while read.len() < 80 || written < 10 {
            match scene.next_of(handle) {
                Event::Write(Ok(8)) => written += 1,
                Event::Read(Ok(bytes)) => {
                    read.extend_from_slice(&bytes);
                    if bytes.len() < 8 {
                        scene.read(handle, 8).unwrap();
                    }
                }
                other => panic!("{kind:?} {other:?}"),
            }
        }
        let expected: Vec<u8> = (1..11).flat_map(|turn| pattern(turn, 8)).collect();
        assert_eq!((written, read), (10, expected), "{kind:?}");
        drop(scene.join(answering));
    }
}

fn every_payload_sends_its_bytes(case: &Case) {
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    let shared: Arc<[u8]> = pattern(3, 1000).into();
    let mut lent = scene.alloc(10);
    lent.write_all(b"written").unwrap();
    let mut grown = scene.alloc(10);
    grown.extend_from_slice(&pattern(4, 10_000));
    scene.write(handle, lent).unwrap();
    scene.write(handle, grown).unwrap();
    scene.write(handle, vec![7; 5]).unwrap();
    scene.write(handle, "text").unwrap();
    scene.write(handle, Arc::clone(&shared)).unwrap();
    scene.write(handle, Payload::shared(Arc::clone(&shared), 10..20)).unwrap();
    scene.write(handle, Payload::owner(Arc::new(pattern(5, 50)), 40..50)).unwrap();
    for len in [7, 10_000, 5, 4, 1000, 10, 10] {
        scene.expect_written(handle, len);
    }
    // Our own stack needs it until the peer has acknowledged it.
    if !case.is_local {
        assert_eq!(Arc::strong_count(&shared), 1, "a payload is free when its write is done");
    }
    let mut expected = b"written".to_vec();
    expected.extend(pattern(4, 10_000));
    expected.extend([7; 5]);
    expected.extend(b"text");
    expected.extend(pattern(3, 1000));
    expected.extend(&pattern(3, 1000)[10..20]);
    expected.extend(&pattern(5, 50)[40..50]);
    assert_eq!(scene.receive(&mut peer, expected.len()), expected);
}

fn received_bytes_echo_without_a_copy_in_between(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        for turn in 0..20 {
            scene.send(&mut peer, &pattern(turn, 500));
            let mut echoed = 0;
            while echoed < 500 {
                let read = scene.read_once(handle, 4096).unwrap();
                let len = read.len();
                scene.write(handle, read).unwrap();
                scene.expect_written(handle, len);
                echoed += len;
            }
            assert_eq!(scene.receive(&mut peer, 500), pattern(turn, 500), "{kind:?}");
        }
    }
}

fn a_vector_of_more_parts_than_one_send_takes_is_one_write(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        for parts in [GATHER_PARTS_MAX, GATHER_PARTS_MAX + 1, 200, WRITE_PARTS_MAX] {
            let (handle, mut peer) = scene.stream(kind);
            let vector: Vec<_> = (0..parts).map(|turn| pattern(turn, 1 + turn % 90)).collect();
            let mut expected = vector.concat();
            let total = expected.len();
            expected.push(b'!');
            let reader = thread::spawn(move || receive(&mut peer, total + 1));
            scene.writev(handle, vector.into_iter().map(Payload::from)).unwrap();
            scene.write(handle, "!").unwrap();
            scene.expect_written(handle, total);
            scene.expect_written(handle, 1);
            assert!(scene.join(reader) == expected, "{kind:?}, {parts} parts");
        }
    }
}

fn a_vector_may_have_empty_parts(case: &Case) {
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    let parts = ["", "a", "", "", "bc", ""].map(Payload::from);
    scene.writev(handle, parts).unwrap();
    scene.expect_written(handle, 3);
    assert_eq!(scene.receive(&mut peer, 3), b"abc");
}

fn eight_mib_to_a_slow_reader_are_written_whole(case: &Case) {
    const LEN: usize = 8 << 20;
    let mut scene = case.scene_without_limit();
    for kind in [Stream::Accepted4, Stream::RegisteredUnix] {
        let (handle, mut peer) = scene.stream(kind);
        let bytes: Arc<[u8]> = pattern(1, LEN).into();
        scene.write(handle, Arc::clone(&bytes)).unwrap();
        scene.write(handle, "end").unwrap();
        let reader = thread::spawn(move || {
            let mut got = receive(&mut peer, 100_000);
            thread::sleep(Duration::from_millis(50));
            got.extend(receive(&mut peer, LEN - 100_000));
            (got, receive(&mut peer, 3))
        });
        scene.expect_written(handle, LEN);
        scene.expect_written(handle, 3);
        let (got, end) = scene.join(reader);
        assert!(got[..] == bytes[..] && end == b"end", "{kind:?}");
    }
}

fn sixty_four_kib_echo_through_buffers_of_sixty_four_bytes(case: &Case) {
    const LEN: usize = 64 << 10;
    let config = case.config().buffer_len(64).buffer_count(16);
    let mut scene = case.scene_with(config);
    for kind in [Stream::Accepted4, Stream::AcceptedUnix] {
        let (handle, mut peer) = scene.stream(kind);
        let mut sender = peer.try_clone().unwrap();
        let writer = thread::spawn(move || send(&mut sender, &pattern(9, LEN)));
        let reader = thread::spawn(move || receive(&mut peer, LEN));
        scene.read(handle, 4096).unwrap();
        let mut echoed = 0;
        while echoed < LEN {
            match scene.next_of(handle) {
                Event::Read(Ok(read)) => {
                    assert!(!read.is_empty());
                    scene.write(handle, read).unwrap();
                }
                Event::Write(Ok(len)) => {
                    echoed += len;
                    if echoed < LEN {
                        scene.read(handle, 4096).unwrap();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        scene.join(writer);
        assert!(scene.join(reader) == pattern(9, LEN), "{kind:?}");
    }
}

fn without_batching_and_with_it_the_bytes_are_the_same(case: &Case) {
    for batch in [1, 2, 32, 4096] {
        let mut scene = case.scene_with(case.config().batch(batch));
        let mut streams: Vec<_> = (0..10).map(|_| scene.stream(Stream::Accepted4)).collect();
        for turn in 0..5 {
            for (handle, peer) in &mut streams {
                scene.send(peer, &pattern(turn, 64));
                scene.read(*handle, 64).unwrap();
            }
            for _ in 0..streams.len() * 2 {
                let done = scene.next();
                match done.event {
                    Event::Read(Ok(read)) => scene.write(done.handle, read).unwrap(),
                    Event::Write(Ok(64)) => {}
                    other => panic!("batch {batch}: {other:?}"),
                }
            }
            for (_, peer) in &mut streams {
                assert_eq!(scene.receive(peer, 64), pattern(turn, 64), "batch {batch}");
            }
        }
        scene.expect_no_strays();
    }
}

fn more_than_the_read_ahead_limit_waits_in_the_kernel_and_is_not_lost(case: &Case) {
    const LEN: usize = READ_AHEAD_BYTES_MAX * 40;
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::RegisteredUnix] {
        let (handle, mut peer) = scene.stream(kind);
        // The first read makes the channel receive; what follows arrives ahead of any read.
        scene.read(handle, 1).unwrap();
        let writer = thread::spawn(move || {
            send(&mut peer, &pattern(2, LEN));
            peer
        });
        let Event::Read(Ok(first)) = scene.next_of(handle) else { panic!() };
        let mut got = first.to_vec();
        for _ in 0..3 {
            scene.expect_silence();
        }
        // What the kernel delivers in one go, before it can be told to stop, comes on top.
        let ahead = scene.explain(handle).unwrap().unread_bytes as usize;
        assert!(ahead < LEN / 4, "{ahead} bytes ahead");
        while got.len() < LEN {
            let want = 1 + got.len() % 50_000;
            got.extend_from_slice(&scene.read_once(handle, want).unwrap());
        }
        assert!(got == pattern(2, LEN), "{kind:?}");
        drop(scene.join(writer));
    }
}

fn to_fd_carries_unread_bytes_and_queued_writes(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut theirs) = scene.stream(kind);
        scene.send(&mut theirs, &pattern(1, 10_000));
        let first = scene.read_exact(handle, 100);
        for turn in 0..5 {
            scene.write(handle, pattern(turn, 300)).unwrap();
        }
        scene.to_fd(handle).unwrap();
        for _ in 0..5 {
            scene.expect_written(handle, 300);
        }
        let Event::ToFd(Ok(moved)) = scene.next_of(handle) else { panic!("{kind:?}") };
        scene.read(handle, 1).expect_err("the handle is gone");
        for turn in 0..5 {
            assert_eq!(scene.receive(&mut theirs, 300), pattern(turn, 300), "{kind:?}");
        }
        let mut ours = peer(moved.fd);
        scene.send(&mut theirs, b"tail");
        let mut got = first;
        for unread in &moved.unread {
            got.extend_from_slice(unread);
        }
        let rest = 10_004 - got.len();
        ours.set_nonblocking(false).unwrap();
        got.extend(scene.receive(&mut ours, rest));
        assert_eq!(got[..10_000], pattern(1, 10_000), "{kind:?}");
        assert_eq!(&got[10_000..], b"tail", "{kind:?}");
        scene.send(&mut ours, b"and back");
        assert_eq!(scene.receive(&mut theirs, 8), b"and back", "{kind:?}");
        drop(ours);
        assert_eq!(
            scene.end_of(&mut theirs).unwrap(),
            b"",
            "the socket has no other owner: {kind:?}"
        );
    }
    scene.expect_no_strays();
}

fn to_fd_of_an_idle_stream_is_a_plain_socket(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut theirs) = scene.stream(kind);
        scene.to_fd(handle).unwrap();
        let Event::ToFd(Ok(moved)) = scene.next_of(handle) else { panic!("{kind:?}") };
        assert!(moved.unread.is_empty());
        let flags = rustix::io::fcntl_getfd(&moved.fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{kind:?}");
        scene.send(&mut peer(moved.fd), b"hello");
        assert_eq!(scene.end_of(&mut theirs).unwrap(), b"hello", "{kind:?}");
    }
}

fn to_fd_cancels_reads_that_wait(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut theirs) = scene.stream(kind);
        scene.read(handle, 10).unwrap();
        scene.read(handle, 10).unwrap();
        scene.flush().unwrap();
        scene.to_fd(handle).unwrap();
        let mut cancelled = 0;
        let moved = loop {
            match scene.next_of(handle) {
                Event::Read(Err(megapipe::OpError::Cancelled)) => cancelled += 1,
                Event::ToFd(Ok(moved)) => break moved,
                other => panic!("{kind:?} {other:?}"),
            }
        };
        assert_eq!(cancelled, 2, "{kind:?}");
        scene.send(&mut theirs, b"later");
        let mut ours = peer(moved.fd);
        ours.set_nonblocking(false).unwrap();
        assert_eq!(scene.receive(&mut ours, 5), b"later", "{kind:?}");
    }
}

fn to_fd_leaves_nothing_with_the_kernel_that_awaited_the_end(case: &Case) {
    let mut scene = case.scene();
    for kind in Stream::ALL {
        let (handle, mut theirs) = scene.stream(kind);
        scene.await_end(handle).unwrap();
        scene.flush().unwrap();
        scene.to_fd(handle).unwrap();
        let Event::ToFd(Ok(moved)) = scene.next_of(handle) else { panic!("{kind:?}") };
        // The next connection has the slot; the end of the one before does not concern it.
        let (next, mut its) = scene.stream(kind);
        scene.send(&mut peer(moved.fd), b"moved");
        assert_eq!(scene.receive(&mut theirs, 5), b"moved", "{kind:?}");
        drop(theirs);
        scene.expect_silence();
        scene.send(&mut its, b"hello");
        assert_eq!(scene.read_exact(next, 5), b"hello", "{kind:?}");
        scene.unregister(next).unwrap();
    }
    scene.expect_no_strays();
}

fn to_fd_waits_for_an_earlier_reset(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::Connected4, Stream::RegisteredTcp] {
        let (handle, theirs) = scene.stream(kind);
        scene.disconnect(handle, Disconnect::Reset).unwrap();
        scene.to_fd(handle).unwrap();
        let told = [scene.next_of(handle), scene.next_of(handle)];
        assert!(told.iter().any(|it| matches!(it, Event::Disconnect(Ok(())))), "{kind:?} {told:?}");
        assert!(told.iter().any(|it| matches!(it, Event::ToFd(Ok(_)))), "{kind:?} {told:?}");
        drop(theirs);
    }
    scene.expect_no_strays();
}

fn unregister_gives_a_descriptor_back_with_what_was_unread(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::RegisteredTcp, Stream::RegisteredUnix] {
        let (handle, mut theirs) = scene.stream(kind);
        scene.send(&mut theirs, &pattern(6, 5000));
        let mut got = scene.read_exact(handle, 7);
        let left = scene.unregister(handle).unwrap();
        for unread in &left.unread {
            got.extend_from_slice(unread);
        }
        let mut ours = peer(left.fd.expect("it was registered"));
        ours.set_nonblocking(false).unwrap();
        let rest = 5000 - got.len();
        got.extend(scene.receive(&mut ours, rest));
        assert_eq!(got, pattern(6, 5000), "{kind:?}");
        // The same descriptor may come back.
        let again = scene.register(ours.into(), 9, None).unwrap();
        assert_ne!(again, handle);
        assert_eq!(again.number(), handle.number());
        scene.send(&mut theirs, b"again");
        assert_eq!(scene.read_exact(again, 5), b"again", "{kind:?}");
        scene.disconnect(again, Disconnect::Both).unwrap();
        scene.expect_disconnected(again);
        assert_eq!(scene.receive_to_end(&mut theirs), b"", "{kind:?}");
    }
}

fn unregister_with_a_read_waiting_loses_no_byte(case: &Case) {
    let mut scene = case.scene();
    for turn in 0..50 {
        let kind = [Stream::RegisteredTcp, Stream::RegisteredUnix][turn % 2];
        let (handle, mut theirs) = scene.stream(kind);
        scene.read(handle, 4096).unwrap();
        scene.flush().unwrap();
        let sender = thread::spawn(move || {
            for part in pattern(turn, 3000).chunks(100) {
                send(&mut theirs, part);
            }
            theirs
        });
        if turn % 3 == 0 {
            thread::yield_now();
        }
        let left = scene.unregister(handle).unwrap();
        let mut got: Vec<u8> = left.unread.iter().flat_map(|unread| unread.to_vec()).collect();
        let mut ours = peer(left.fd.expect("it was registered"));
        ours.set_nonblocking(false).unwrap();
        let rest = 3000 - got.len();
        got.extend(scene.receive(&mut ours, rest));
        assert_eq!(got, pattern(turn, 3000), "{kind:?}");
        scene.join(sender);
    }
    scene.expect_no_strays();
}

fn a_spilled_read_buffer_keeps_its_bytes(case: &Case) {
    // Four buffers, and an unread handle takes them all: the others go on.
    let config = case.config().buffer_count(4).buffer_len(256);
    let mut scene = case.scene_with(config);
    let (idle, mut idle_peer) = scene.stream(Stream::Accepted4);
    let (busy, mut busy_peer) = scene.stream(Stream::Accepted4);
    scene.read(idle, 1).unwrap();
    scene.send(&mut idle_peer, &pattern(1, 5000));
    let Event::Read(Ok(first)) = scene.next_of(idle) else { panic!() };
    let mut got = first.to_vec();
    drop(first);
    for turn in 0..20 {
        scene.send(&mut busy_peer, &pattern(turn, 700));
        assert_eq!(scene.read_exact(busy, 700), pattern(turn, 700), "turn {turn}");
    }
    got.extend(scene.read_exact(idle, 4999));
    assert_eq!(got, pattern(1, 5000));
}
