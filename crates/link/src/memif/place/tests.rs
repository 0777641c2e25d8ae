//! Clients that come and go, and links that stay.

use std::thread::{self, JoinHandle};

use super::super::{Memif, MemifRole, connect, open};
use super::*;
use crate::{Link, TxMetadata};

const SOON: Duration = Duration::from_secs(10);

fn settings(name: &str, queue_count: u16) -> MemifSettings {
    let socket = format!("@mp-memif-{}-door-{name}", std::process::id());
    MemifSettings {
        ring_size_log2: 6,
        queue_count,
        ..MemifSettings::new(socket, [2, 0, 0, 0, 0, 1])
    }
}

fn connecting(settings: &MemifSettings) -> JoinHandle<Result<Vec<Memif>, LinkError>> {
    let settings = settings.clone();
    thread::spawn(move || connect(&settings, SOON))
}

fn opened(settings: &MemifSettings) -> (Vec<Memif>, Vec<Memif>) {
    let client = connecting(settings);
    let server = open(MemifRole::Server, settings, SOON, &mut |_| ()).expect("a client");
    (server, client.join().expect("no panic").expect("a server"))
}

/// Sends one frame of 60 bytes; how many were taken.
fn send(link: &mut Memif, byte: u8) -> usize {
    let mut is_filled = false;
    let filled = link.tx_burst(2, &mut |room| {
        room[..60].fill(byte);
        (!std::mem::replace(&mut is_filled, true))
            .then_some(TxMetadata { len: 60, ..TxMetadata::default() })
    });
    filled.expect("a link that stays")
}

fn received(link: &mut Memif) -> Vec<u8> {
    let mut firsts = Vec::new();
    link.rx_burst(100, &mut |frame, _| firsts.push(frame[0])).expect("a link that stays");
    firsts
}

/// What arrives first, from whichever client it is.
fn awaited(link: &mut Memif) -> Vec<u8> {
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        let frames = received(link);
        if !frames.is_empty() {
            return frames;
        }
        link.wait(Some(Duration::from_millis(100))).expect("a link that stays");
    }
    panic!("no frame in time");
}

#[test]
fn memif_server_keeps_a_regular_file() {
    let path = std::env::temp_dir().join(format!("mp-memif-{}.txt", std::process::id()));
    std::fs::write(&path, "precious").expect("a file");
    let settings = MemifSettings::new(&path, [2, 0, 0, 0, 0, 1]);
    let error = Listener::bind(&settings).expect_err("the path is taken");
    assert!(error.to_string().contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read(&path).expect("the file is there"), b"precious");
    std::fs::remove_file(&path).expect("the file is there");
}

#[test]
fn the_links_of_a_server_outlive_its_clients() {
    let wanted = settings("next", 1);
    let (mut server, mut client) = opened(&wanted);
    for round in 0..4u8 {
        assert_eq!(send(&mut client[0], round), 1);
        assert_eq!(awaited(&mut server[0]), [round]);
        assert_eq!(send(&mut server[0], 0x80 | round), 1);
        assert_eq!(received(&mut client[0]), [0x80 | round]);
        assert_eq!(send(&mut client[0], 0x40 | round), 1, "its last word");
        drop(client);
        assert_eq!(awaited(&mut server[0]), [0x40 | round], "sent before it left");
        let next = connecting(&wanted);
        let deadline = Instant::now() + SOON;
        while !next.is_finished() {
            assert!(Instant::now() < deadline, "the next client is not served");
            server[0].wait(Some(Duration::from_millis(100))).expect("a link that stays");
            assert_eq!(received(&mut server[0]), [0; 0]);
        }
        client = next.join().expect("no panic").expect("a server");
    }
    let notes = &server[0].caps().notes;
    assert!(notes.iter().any(|note| note.contains("serves the next client")), "{notes:?}");
}

#[test]
fn without_a_client_frames_are_lost_and_counted() {
    let (mut server, client) = opened(&settings("lost", 1));
    drop(client);
    while server[0].peer.is_some() {
        server[0].wait(Some(Duration::from_millis(10))).expect("a link that stays");
    }
    for _ in 0..100 {
        assert_eq!(send(&mut server[0], 1), 1);
    }
    assert_eq!(server[0].counters().tx_dropped_refused, 100);
    let start = Instant::now();
    assert!(!server[0].wait(Some(Duration::from_millis(50))).expect("a link that stays"));
    assert!(start.elapsed() >= Duration::from_millis(50), "it sleeps while no client connects");
}

#[test]
fn each_queue_gets_the_next_clients_rings() {
    let wanted = settings("queues", 3);
    let (mut server, client) = opened(&wanted);
    drop(client);
    let next = connecting(&wanted);
    let deadline = Instant::now() + SOON;
    while !next.is_finished() && Instant::now() < deadline {
        server[1].wait(Some(Duration::from_millis(10))).expect("a link that stays");
    }
    let mut client = next.join().expect("no panic").expect("a server");
    for (queue, (server, client)) in server.iter_mut().zip(&mut client).enumerate() {
        assert_eq!(send(client, queue as u8), 1);
        assert_eq!(awaited(server), [queue as u8]);
        assert_eq!(send(server, 0x80 | queue as u8), 1);
        assert_eq!(received(client), [0x80 | queue as u8]);
    }
}

#[test]
fn a_client_with_other_queues_is_sent_away() {
    let wanted = settings("fewer", 2);
    let (mut server, client) = opened(&wanted);
    drop(client);
    let fewer = MemifSettings { queue_count: 1, ..wanted.clone() };
    let next = thread::spawn(move || {
        let start = Instant::now();
        let refused = loop {
            let refused = connect(&fewer, Duration::from_millis(300)).expect_err("too few queues");
            // The server may not have had the processor to say why.
            if refused.to_string().contains("disconnected") || start.elapsed() > SOON {
                break refused;
            }
        };
        (refused.to_string(), connect(&wanted, SOON).map(|links| links.len()))
    });
    let deadline = Instant::now() + 3 * SOON;
    while !next.is_finished() && Instant::now() < deadline {
        for link in &mut server {
            link.wait(Some(Duration::from_millis(10))).expect("a link that stays");
        }
    }
    let (refused, served) = next.join().expect("no panic");
    assert!(refused.contains("as many queues are wanted as there were before"), "{refused}");
    assert_eq!(served.expect("the right number"), 2);
}

#[test]
fn silent_memif_client_blocks_the_next_briefly() {
    let wanted = settings("silent", 1);
    let (mut server, client) = opened(&wanted);
    drop(client);
    let silent = socket::connect(&wanted.socket).expect("the socket is there");
    while server[0].wait(Some(Duration::from_millis(100))).expect("a link that stays") {}
    let next = connecting(&wanted);
    let deadline = Instant::now() + SOON;
    while !next.is_finished() && Instant::now() < deadline {
        server[0].wait(Some(Duration::from_millis(100))).expect("a link that stays");
    }
    let mut client = next.join().expect("no panic").expect("a server");
    assert_eq!(send(&mut client[0], 9), 1);
    assert_eq!(awaited(&mut server[0]), [9]);
    drop(silent);
}

#[test]
fn nonsense_costs_the_client_that_writes_it() {
    let wanted = settings("nonsense", 1);
    let (mut server, mut client) = opened(&wanted);
    // The client's index runs far past the ring.
    client[0].peer.as_mut().expect("a peer").lanes.sending.scribble_index(12_345);
    while server[0].peer.is_some() {
        server[0].wait(Some(Duration::from_millis(10))).expect("a link that stays");
        assert_eq!(received(&mut server[0]), [0; 0]);
    }
    drop(client);
    let next = connecting(&wanted);
    let deadline = Instant::now() + SOON;
    while !next.is_finished() && Instant::now() < deadline {
        server[0].wait(Some(Duration::from_millis(10))).expect("a link that stays");
    }
    assert_eq!(send(&mut next.join().expect("no panic").expect("a server")[0], 3), 1);
}

/// Links that start without their peer, and what they said.
fn unplugged(role: MemifRole, settings: &MemifSettings) -> (Vec<Memif>, Vec<String>) {
    let mut said = Vec::new();
    let links = open(role, settings, Duration::ZERO, &mut |why| said.push(why.to_owned()));
    (links.expect("no peer is needed"), said)
}

/// Lets both ends poll until a frame of one arrives at the other.
fn until_plugged(from: &mut Memif, to: &mut Memif) {
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        assert_eq!(send(from, 7), 1);
        for link in [&mut *from, &mut *to] {
            link.wait(Some(Duration::from_millis(5))).expect("a link that stays");
        }
        if received(to).contains(&7) {
            return;
        }
    }
    panic!("they do not meet");
}

#[test]
fn ends_that_start_alone_meet_in_either_order() {
    for first in [MemifRole::Server, MemifRole::Client] {
        let wanted = settings(&format!("alone-{first:?}"), 1);
        let second = match first {
            MemifRole::Server => MemifRole::Client,
            MemifRole::Client => MemifRole::Server,
        };
        let (mut one, said) = unplugged(first, &wanted);
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!((send(&mut one[0], 1), received(&mut one[0])), (1, Vec::new()));
        let start = Instant::now();
        let is_woken = one[0].wait(Some(Duration::from_millis(30))).expect("a link that stays");
        assert!(is_woken || start.elapsed() >= Duration::from_millis(30));
        let (mut other, _) = unplugged(second, &wanted);
        until_plugged(&mut one[0], &mut other[0]);
        until_plugged(&mut other[0], &mut one[0]);
        drop(other);
        if first == MemifRole::Client {
            while one[0].wait(Some(SOON)).is_ok() {}
            let error = one[0].rx_burst(1, &mut |_, _| ());
            assert!(matches!(error, Err(LinkError::Gone { .. })), "it ends with its server");
            continue;
        }
        let (mut next, _) = unplugged(second, &wanted);
        until_plugged(&mut next[0], &mut one[0]);
        until_plugged(&mut one[0], &mut next[0]);
    }
}

#[test]
fn client_that_starts_alone_is_connected_to_a_server_that_is_there() {
    let wanted = settings("there", 2);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (mut servers, _) = unplugged(MemifRole::Server, &wanted);
    let stopped = Arc::clone(&stop);
    let serving = thread::spawn(move || {
        let deadline = Instant::now() + SOON;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) && Instant::now() < deadline {
            for link in &mut servers {
                link.wait(Some(Duration::from_millis(1))).expect("a link that stays");
            }
        }
        servers
    });
    let deadline = Instant::now() + SOON;
    let mut client = loop {
        // A busy machine may need more than the time that it waits.
        let (client, said) = unplugged(MemifRole::Client, &wanted);
        if said.is_empty() || Instant::now() > deadline {
            break client;
        }
    };
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut servers = serving.join().expect("no panic");
    for (queue, (server, client)) in servers.iter_mut().zip(&mut client).enumerate() {
        assert_eq!(send(client, queue as u8), 1);
        assert_eq!(awaited(server), [queue as u8]);
    }
}

#[test]
fn client_without_a_server_tries_less_and_less_often() {
    let start = Instant::now();
    let mut side = DoorSide::Client {
        socket: "@mp-memif-absent".into(),
        wanted: settings("absent", 1).wanted(),
        next_attempt: start,
        pause: RETRY_MIN,
    };
    let attempts = (0..60_000)
        .filter(|millisecond| side.next_peer(start + Duration::from_millis(*millisecond)).is_err());
    let attempts: Vec<u64> = attempts.collect();
    assert_eq!(attempts[..4], [0, 10, 30, 70]);
    assert!((60_000 / 500..60_000 / 500 + 8).contains(&attempts.len()), "{}", attempts.len());
}

#[test]
fn client_with_more_queues_than_the_server_stays_alone() {
    let wanted = settings("more", 1);
    let (mut server, _) = unplugged(MemifRole::Server, &wanted);
    let more = MemifSettings { queue_count: 2, ..wanted };
    let (mut client, _) = unplugged(MemifRole::Client, &more);
    let deadline = Instant::now() + Duration::from_millis(100);
    while Instant::now() < deadline {
        assert_eq!(send(&mut client[0], 7), 1);
        client[0].wait(Some(Duration::from_millis(5))).expect("a link that stays");
        server[0].wait(Some(Duration::from_millis(5))).expect("a link that stays");
        assert_eq!(received(&mut server[0]), [0; 0]);
    }
    assert!(client[0].peer.is_none() && server[0].peer.is_none());
}
