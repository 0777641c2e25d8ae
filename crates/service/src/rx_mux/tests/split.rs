//! Link servers apart from the shards.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::loopback::LoopbackQueue;
use megapipe_link::TxMetadata;

/// The peer's end, a server, and a link for each shard.
fn network(shards: u16) -> (Pair, SplitLinkServer, Vec<ServedLink>) {
    let config = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
    let (ours, theirs) = pair(&config).unwrap();
    let (mut servers, links) = split_switch(vec![Box::new(ours)], (1, shards), &KEY).unwrap();
    (theirs, servers.pop().unwrap(), links)
}

fn poll_all(server: &mut SplitLinkServer) {
    while server.poll().unwrap() {}
}

fn take(link: &mut ServedLink) -> Vec<Vec<u8>> {
    let mut heap = Heap::default();
    while link.receive(16, &mut heap).unwrap() > 0 {}
    heap.frames
}

/// Runs commands of shards, which wait for the server.
fn with_polls<R>(server: &mut SplitLinkServer, commands: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let polling = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                server.poll().unwrap();
            }
        });
        let result = commands();
        is_over.store(true, Ordering::Release);
        polling.join().unwrap();
        result
    })
}

/// Ends a test: the server first, for which the links would wait.
fn end(server: SplitLinkServer, links: Vec<ServedLink>) {
    drop(server);
    drop(links);
}

/// Lets a shard send frames of these first bytes. How many it could.
fn transmit(link: &mut ServedLink, bytes: &mut impl Iterator<Item = u8>, len: usize) -> usize {
    let sent = link.transmit(usize::MAX, &mut |room| {
        room[..len].fill(bytes.next()?);
        Some(TxMetadata { len, ..TxMetadata::default() })
    });
    sent.unwrap()
}

fn received(peer: &mut Pair) -> Vec<u8> {
    let mut firsts = Vec::new();
    while peer.rx_burst(64, &mut |frame, _| firsts.push(frame[0])).unwrap() > 0 {}
    firsts
}

#[test]
fn server_gives_each_shard_its_frames() {
    let (mut peer, mut server, mut links) = network(4);
    let frames: Vec<_> = (1000..1200).map(|port| segment(port, Flags::ACK)).collect();
    send(&mut peer, &frames);
    poll_all(&mut server);
    for (shard, link) in (0..4).zip(&mut links) {
        let is_its = |port| default_shard(port, 4) == shard;
        let ports = (1000..1200).filter(|port| is_its(*port));
        let mine: Vec<_> = ports.map(|port| segment(port, Flags::ACK)).collect();
        assert!(mine.len() > 20, "shard {shard} has {}", mine.len());
        assert_eq!(take(link), mine);
    }
    let counted = with_polls(&mut server, || links[0].attachment().counters());
    assert_eq!((counted.kept, counted.steered, counted.dropped_full), (0, 200, 0));
    end(server, links);
}

#[test]
fn frames_that_each_shard_can_answer_reach_one() {
    let (mut peer, mut server, mut links) = network(3);
    send(&mut peer, &[vec![0; 20]]);
    poll_all(&mut server);
    let counts: Vec<_> = links.iter_mut().map(|link| take(link).len()).collect();
    assert_eq!(counts, [1, 0, 0]);
    end(server, links);
}

#[test]
fn fragments_follow_the_first_and_wait_for_it() {
    let (mut peer, mut server, mut links) = network(4);
    let ports = [9_u16.to_be_bytes(), 80_u16.to_be_bytes(), [0, 40], [0; 2]].concat();
    let first = packet(Protocol::Udp, 0, true, &[&ports[..], &[1; 16]].concat());
    let second = packet(Protocol::Udp, 24, false, &[2; 8]);
    send(&mut peer, &[second.clone(), first.clone()]);
    poll_all(&mut server);
    let all: Vec<_> = links.iter_mut().map(take).collect();
    assert_eq!(all[usize::from(default_shard(9, 4))], [first, second]);
    end(server, links);
}

#[test]
fn frames_of_a_shard_leave_in_order_and_none_is_lost_without_room() {
    let (mut peer, mut server, mut links) = network(2);
    let mut bytes = (0..=255).cycle().take(5000);
    let (mut sent, mut firsts) = (0, Vec::new());
    while sent < 5000 {
        let filled = transmit(&mut links[0], &mut bytes, 1400);
        // The ring is full, and one more waits beside it.
        assert!(filled > 0 && (sent + filled == 5000 || links[0].counters().tx_full > 0));
        sent += filled;
        loop {
            let worked = server.poll().unwrap();
            let got = received(&mut peer);
            firsts.extend(&got);
            if !worked && got.is_empty() {
                break;
            }
        }
    }
    transmit(&mut links[0], &mut bytes, 1400);
    poll_all(&mut server);
    firsts.extend(received(&mut peer));
    assert_eq!(firsts, (0..=255).cycle().take(5000).collect::<Vec<u8>>());
    end(server, links);
}

#[test]
fn shards_send_in_turn() {
    let (mut peer, mut server, mut links) = network(2);
    for (shard, link) in links.iter_mut().enumerate() {
        let mut bytes = std::iter::repeat_n(shard as u8, 10);
        assert_eq!(transmit(link, &mut bytes, 60), 10);
    }
    poll_all(&mut server);
    let firsts = received(&mut peer);
    let first_half = firsts[..10].iter().filter(|byte| **byte == 0).count();
    assert_eq!((firsts.len(), first_half), (20, 5));
    end(server, links);
}

#[test]
fn frames_to_own_addresses_reach_their_shard() {
    let (_peer, mut server, mut links) = network(4);
    let port = (1..).find(|port| default_shard(*port, 4) == 3).unwrap();
    let frame = segment(port, Flags::ACK);
    let mut looped = LoopbackQueue::default();
    for _ in 0..3 {
        let metadata = TxMetadata { len: frame.len(), ..TxMetadata::default() };
        assert!(looped.push(&frame, metadata));
    }
    assert_eq!(links[1].loop_back(&mut looped), 3);
    poll_all(&mut server);
    assert_eq!(take(&mut links[3]), [frame.clone(), frame.clone(), frame]);
    end(server, links);
}

#[test]
fn a_connection_stays_where_it_is_when_listeners_come() {
    let (mut peer, mut server, mut links) = network(2);
    let address = (Transport::Tcp, "0.0.0.0:80".parse().unwrap());
    let bind = |server: &mut SplitLinkServer, link: &ServedLink| {
        with_polls(server, || link.attachment().bind(address, Takes::Rest, false)).unwrap();
    };
    bind(&mut server, &links[0]);
    let port = (1..).find(|port| default_shard(*port, 2) == 1).unwrap();
    send(&mut peer, &[segment(port, Flags::SYN)]);
    poll_all(&mut server);
    assert_eq!(take(&mut links[0]).len(), 1);
    bind(&mut server, &links[1]);

    // The new owner of the home does not know the old flow, and asks the server.
    let [mut old, mut new] = [Heap { flows: vec![port], ..Heap::default() }, Heap::default()];
    send(&mut peer, &[segment(port, Flags::ACK)]);
    let mut pass = |old: &mut Heap, new: &mut Heap| {
        for _ in 0..4 {
            poll_all(&mut server);
            links[1].receive(16, new).unwrap();
            links[0].receive(16, old).unwrap();
        }
    };
    pass(&mut old, &mut new);
    assert_eq!((old.frames.len(), new.frames.len()), (1, 0));

    // A flow that is the new one's stays there, and an unknown one comes back to it.
    new.flows.push(port);
    send(&mut peer, &[segment(port, Flags::ACK)]);
    pass(&mut old, &mut new);
    assert_eq!((old.frames.len(), new.frames.len()), (1, 1));
    new.flows.clear();
    old.flows.clear();
    send(&mut peer, &[segment(port, Flags::ACK)]);
    pass(&mut old, &mut new);
    assert_eq!((old.frames.len(), new.frames.len()), (1, 2));
    let counted = with_polls(&mut server, || links[0].attachment().counters());
    assert_eq!(counted.passed_on, 3, "to the old one twice, and back once");
    end(server, links);
}

#[test]
fn both_sides_sleep_and_wake_each_other() {
    let (mut peer, mut server, mut links) = network(1);
    let port = 9;
    let control = server.control();
    let serving = thread::spawn(move || {
        while !server.is_stopped() {
            if !server.poll().unwrap() {
                server.sleep().unwrap();
            }
        }
    });
    let link = &mut links[0];
    for round in 0..50 {
        if round % 10 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        send(&mut peer, &[segment(port, Flags::ACK)]);
        let start = Instant::now();
        while take(link).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "round {round}");
            if link.arm().unwrap() {
                let fds = [Some(link.wait_fd())];
                crate::sleep::wait_readable(fds, Some(Duration::from_secs(20))).unwrap();
            }
        }
        transmit(link, &mut [7].into_iter(), 60);
        let start = Instant::now();
        while received(&mut peer).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "round {round}");
            peer.wait(Some(Duration::from_secs(20))).unwrap();
        }
    }
    control.stop();
    serving.join().unwrap();
}

#[test]
fn shard_without_room_sleeps_until_there_is_some() {
    let (mut peer, mut server, mut links) = network(1);
    let mut bytes = (0..=255).cycle();
    while transmit(&mut links[0], &mut bytes, 1400) > 0 {}
    assert!(links[0].arm().unwrap(), "the server has not looked yet");
    let is_woken = |link: &ServedLink| {
        let woken =
            crate::sleep::wait_readable([Some(link.wait_fd())], Some(Duration::ZERO)).unwrap();
        woken[0]
    };
    assert!(!is_woken(&links[0]));
    poll_all(&mut server);
    received(&mut peer);
    assert!(is_woken(&links[0]), "frames have left the ring");
    assert!(!links[0].arm().unwrap(), "the frame that waited has room");
    end(server, links);
}

#[test]
fn commands_to_a_server_that_is_gone_return() {
    let (_peer, server, mut links) = network(2);
    drop(server);
    let address = (Transport::Tcp, "0.0.0.0:80".parse().unwrap());
    links[0].attachment().bind(address, Takes::Rest, false).unwrap();
    let set = links[0].set_ownership(&Ownership::new());
    assert!(matches!(set, Err(LinkError::Gone { .. })), "{set:?}");
}

#[test]
fn link_servers_without_a_queue_are_refused() {
    let (ours, _theirs) = pair(&PairConfig::default()).unwrap();
    let made = split_switch(vec![Box::new(ours)], (2, 2), &KEY);
    let error = made.err().expect("one queue").to_string();
    assert_eq!(
        error,
        "2 link servers apart from the shards need as many queues, and the link has 1"
    );
}

#[test]
fn frames_of_one_queue_do_not_wait_for_those_of_another() {
    let config = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
    let (ours, mut peers): (Vec<Box<dyn Link>>, Vec<Pair>) = (0..2)
        .map(|_| {
            let (ours, peer) = pair(&config).unwrap();
            (Box::new(ours) as Box<dyn Link>, peer)
        })
        .unzip();
    let (mut servers, mut links) = split_switch(ours, (2, 1), &KEY).unwrap();
    let many: Vec<_> = (0..60).map(|_| segment(1, Flags::ACK)).collect();
    send(&mut peers[0], &many);
    send(&mut peers[1], &[segment(2, Flags::ACK)]);
    servers.iter_mut().for_each(poll_all);
    let mut heap = Heap::default();
    for _ in 0..2 {
        // The first queue always has more than a share.
        assert_eq!(links[0].receive(16, &mut heap).unwrap(), 16);
    }
    assert!(heap.frames.contains(&segment(2, Flags::ACK)));
    drop(servers);
}

#[test]
fn frames_that_were_steered_before_a_change_end_where_they_belong() {
    let (mut peer, mut server, mut links) = network(2);
    let ports: Vec<u16> = (1..).filter(|port| default_shard(*port, 2) == 0).take(200).collect();
    let frames = |flags| ports.iter().map(|port| segment(*port, flags)).collect::<Vec<_>>();
    send(&mut peer, &frames(Flags::SYN));
    send(&mut peer, &frames(Flags::ACK));
    poll_all(&mut server);
    // The shard has stopped to listen elsewhere, and these are still its own.
    links[0].steer_again();
    let mut heap = Heap::default();
    for _ in 0..40 {
        links[0].receive(64, &mut heap).unwrap();
        poll_all(&mut server);
    }
    assert_eq!(heap.frames.len(), 400, "each comes back once, and stays");
    end(server, links);
}
