//! Two of ours on one cable: settings, wake-ups, leaving, and a peer that speaks nonsense.

use std::thread;

use super::control::{FixedText, Init, MemifMessage, SECRET_BYTES};
use super::*;

const SOON: Duration = Duration::from_secs(10);
/// How long a client asks again that is sent away.
const QUICK: Duration = Duration::from_millis(100);

/// Settings on a socket of this test's own.
fn settings(name: &str) -> MemifSettings {
    let socket = format!("@mp-memif-{}-{name}", std::process::id());
    MemifSettings { ring_size_log2: 6, ..MemifSettings::new(socket, [2, 0, 0, 0, 0, 1]) }
}

fn joined(settings: &MemifSettings) -> (Vec<Memif>, Vec<Memif>) {
    let mut listener = Listener::bind(settings).expect("listener");
    let of_client = settings.clone();
    let client = thread::spawn(move || connect(&of_client, SOON));
    let server = listener.accept(SOON).expect("a client");
    (server, client.join().expect("no panic").expect("a server"))
}

fn send(link: &mut Memif, bytes: &[u8]) -> Result<usize, LinkError> {
    let mut is_filled = false;
    link.tx_burst(2, &mut |room| {
        if std::mem::replace(&mut is_filled, true) {
            return None;
        }
        room[..bytes.len()].copy_from_slice(bytes);
        Some(TxMetadata { len: bytes.len(), ..TxMetadata::default() })
    })
}

fn received(link: &mut Memif) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    link.rx_burst(100, &mut |frame, _| frames.push(frame.to_vec())).expect("rx_burst");
    frames
}

#[test]
fn settings_out_of_range_are_named() {
    let good = settings("range");
    for (bad, name) in [
        (MemifSettings { queue_count: 0, ..good.clone() }, "queue_count"),
        (MemifSettings { queue_count: 65, ..good.clone() }, "queue_count"),
        (MemifSettings { ring_size_log2: 15, ..good.clone() }, "ring_size_log2"),
        (MemifSettings { ring_size_log2: 0, ..good.clone() }, "ring_size_log2"),
        (MemifSettings { buffer_bytes: 63, ..good.clone() }, "buffer_bytes"),
        (MemifSettings { mtu: 67, ..good.clone() }, "mtu"),
        (MemifSettings { mtu: 65_536, ..good.clone() }, "mtu"),
        (MemifSettings { mtu: 9000, buffer_bytes: 64, ..good.clone() }, "mtu"),
        (MemifSettings { secret: "x".repeat(25), ..good.clone() }, "secret"),
    ] {
        let Err(LinkError::Setting { setting, .. }) = Listener::bind(&bad) else {
            panic!("{bad:?} was taken");
        };
        assert_eq!(setting, name);
        assert!(connect(&bad, Duration::ZERO).is_err());
    }
}

#[test]
fn each_queue_is_a_link_of_its_own() {
    let wanted = MemifSettings { queue_count: 3, ..settings("queues") };
    let (mut servers, mut clients) = joined(&wanted);
    assert_eq!((servers.len(), clients.len()), (3, 3));
    for (number, (server, client)) in servers.iter_mut().zip(&mut clients).enumerate() {
        assert_eq!(send(server, &[number as u8; 60]).expect("sent"), 1);
        assert_eq!(received(client), [[number as u8; 60]]);
        assert_eq!(send(client, &[0x80 | number as u8; 61]).expect("sent"), 1);
        assert_eq!(received(server), [[0x80 | number as u8; 61]]);
    }
}

#[test]
fn frames_longer_than_a_buffer_are_chained() {
    let wanted = MemifSettings { buffer_bytes: 512, mtu: 9000, ..settings("chains") };
    let (mut servers, mut clients) = joined(&wanted);
    let frame: Vec<u8> = (0..9014u32).map(|at| at as u8).collect();
    assert_eq!(send(&mut servers[0], &frame).expect("sent"), 1);
    assert_eq!(received(&mut clients[0]), std::slice::from_ref(&frame));
    assert_eq!(send(&mut clients[0], &frame).expect("sent"), 1);
    assert_eq!(received(&mut servers[0]), [frame]);
}

#[test]
fn a_turn_without_sleep_makes_no_system_call() {
    let (mut servers, mut clients) = joined(&settings("calls"));
    for _ in 0..1_000 {
        assert_eq!(send(&mut servers[0], &[1; 60]).expect("sent"), 1);
        assert_eq!(received(&mut clients[0]).len(), 1);
    }
    assert_eq!(servers[0].counters().system_calls, 0);
    assert_eq!(clients[0].counters().system_calls, 0);
}

#[test]
fn one_server_serves_one_client_after_another() {
    let wanted = settings("again");
    let mut listener = Listener::bind(&wanted).expect("listener");
    for round in 0..3u8 {
        let of_client = wanted.clone();
        let client = thread::spawn(move || connect(&of_client, SOON));
        let mut server = listener.accept(SOON).expect("a client");
        let mut client = client.join().expect("no panic").expect("a server");
        assert_eq!(send(&mut client[0], &[round; 60]).expect("sent"), 1);
        drop(client);
        assert_eq!(received(&mut server[0]), [[round; 60]], "sent before it left");
        let gone = loop {
            match server[0].wait(Some(SOON)) {
                Ok(woken) => assert!(woken, "the peer's leaving wakes"),
                Err(error) => break error,
            }
        };
        assert!(matches!(gone, LinkError::Gone { driver: "memif" }));
        assert_eq!(server[0].gone_reason(), Some("the peer disconnected: closed"));
    }
    assert_eq!(listener.refused_count(), 0);
}

/// Connects until the server has had the processor to answer.
fn told(settings: &MemifSettings, patience: Duration) -> Result<Vec<Memif>, LinkError> {
    let start = Instant::now();
    loop {
        match connect(settings, patience) {
            Err(LinkError::Unavailable { why, .. })
                if !why.contains("the peer disconnected") && start.elapsed() < SOON => {}
            outcome => return outcome,
        }
    }
}

#[test]
fn disagreeing_client_is_refused() {
    let wanted = MemifSettings { secret: "sesame".to_owned(), ..settings("secret") };
    let mut listener = Listener::bind(&wanted).expect("listener");
    let thread = thread::spawn(move || {
        let outcomes =
            [("", QUICK), ("wrong", QUICK), ("sesame", SOON)].map(|(secret, patience)| {
                let settings = MemifSettings { secret: secret.to_owned(), ..wanted.clone() };
                told(&settings, patience)
            });
        outcomes.map(|outcome| outcome.map(|links| links.len()).map_err(|error| error.to_string()))
    });
    assert_eq!(listener.accept(3 * SOON).expect("the last one").len(), 1);
    let refused = "memif is unavailable: the peer disconnected: wrong secret".to_owned();
    let outcomes = thread.join().expect("no panic");
    assert_eq!(outcomes, [Err(refused.clone()), Err(refused), Ok(1)]);
    assert!(listener.refused_count() >= 2);
}

#[test]
fn missing_peer_is_an_error_before_the_deadline() {
    let absent = settings("absent");
    let start = Instant::now();
    let error = connect(&absent, Duration::from_millis(50)).expect_err("no server").to_string();
    assert!(error.contains("no server is listening"), "{error}");
    let mut listener = Listener::bind(&absent).expect("listener");
    let error = listener.accept(Duration::from_millis(50)).expect_err("no client").to_string();
    assert!(error.contains("no client has come"), "{error}");
    assert!(start.elapsed() < SOON);
}

#[test]
fn a_socket_file_left_behind_is_replaced_and_a_live_one_is_not() {
    let path = std::env::temp_dir().join(format!("mp-memif-{}.sock", std::process::id()));
    let on_file = MemifSettings { socket: path.clone(), ..settings("file") };
    let abandoned = socket::listen(&path).expect("a socket");
    assert!(Listener::bind(&on_file).is_err(), "another server listens");
    drop(abandoned);
    drop(Listener::bind(&on_file).expect("the other server is gone"));
    assert!(!path.exists());
}

#[test]
fn frame_with_unoffered_offload_is_refused() {
    let (mut servers, mut clients) = joined(&settings("offloads"));
    let wishes = [
        TxMetadata { len: 60, checksum_start: 34, ..TxMetadata::default() },
        TxMetadata { len: 60, segment_bytes: 20, ..TxMetadata::default() },
        TxMetadata { len: 60, ..TxMetadata::default() },
    ];
    let mut wishes = wishes.into_iter();
    let filled = clients[0].tx_burst(9, &mut |_| wishes.next()).expect("sent");
    assert_eq!(filled, 3);
    assert_eq!(clients[0].counters().tx_dropped_refused, 2);
    assert_eq!(received(&mut servers[0]).len(), 1);
}

/// A peer that has seen the protocol once: it sends every kind of message at every moment, with
/// and without descriptors, and cuts off anywhere. The server sends each away and serves the next.
#[test]
fn a_server_outlives_every_client() {
    let wanted = settings("hostile");
    let mut listener = Listener::bind(&wanted).expect("listener");
    let hostile = {
        let wanted = wanted.clone();
        thread::spawn(move || {
            for seed in 1..=60u64 {
                hostile_client(&wanted, seed);
            }
            connect(&wanted, SOON).expect("served at last")
        })
    };
    let mut server = listener.accept(Duration::from_secs(30)).expect("the honest one");
    let mut client = hostile.join().expect("no panic");
    assert_eq!(listener.refused_count(), 60);
    assert_eq!(send(&mut client[0], &[5; 60]).expect("sent"), 1);
    assert_eq!(received(&mut server[0]), [[5; 60]]);
}

fn hostile_client(wanted: &MemifSettings, seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let channel = loop {
        match socket::connect(&wanted.socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            connected => break connected.expect("a server"),
        }
    };
    let honest_init = handshake::init(&wanted.terms());
    let (_region, memory) = region::MemifRegion::create(4096).expect("memory");
    for step in 0..4 + next(6) {
        let message = match next(8) {
            _ if step == 0 && !seed.is_multiple_of(4) => honest_init,
            0 => MemifMessage::AddRegion { index: next(3) as u16, bytes: 1 << next(40) },
            1 => MemifMessage::AddRegion { index: 0, bytes: 4096 },
            2 => MemifMessage::Connect { name: FixedText::new("x") },
            3 => MemifMessage::Init(Init {
                version: next(4) as u16,
                id: next(2) as u32,
                mode: next(3) as u8,
                secret: [0; SECRET_BYTES],
                name: FixedText::new(""),
            }),
            _ => MemifMessage::AddRing(control::AddRing {
                to_server: next(2) == 0,
                index: next(2) as u16,
                region: next(2) as u16,
                offset: next(3) as u32 * 8,
                size_log2: next(8) as u8,
                private_header_bytes: next(8) as u16 / 7,
            }),
        };
        let fd = (next(3) != 0).then(|| memory.as_fd());
        if socket::send(channel.as_fd(), &message, fd).is_err() {
            return;
        }
    }
}

#[test]
fn a_descriptor_that_is_no_eventfd_is_refused() {
    let wanted = settings("pipe");
    let mut listener = Listener::bind(&wanted).expect("listener");
    let of_client = wanted.clone();
    let client = thread::spawn(move || {
        let channel = socket::connect(&of_client.socket).expect("a server");
        let (region, memory) = region::MemifRegion::create(4096).expect("memory");
        let region = Arc::new(region);
        for offset in [0, 1024] {
            ring::MemifRing::at(&region, offset, 3).expect("ring").clear();
        }
        let (_reader, writer) = io::pipe().expect("a pipe");
        let ring = |to_server, offset| {
            MemifMessage::AddRing(control::AddRing {
                to_server,
                index: 0,
                region: 0,
                offset,
                size_log2: 3,
                private_header_bytes: 0,
            })
        };
        let steps = [
            (handshake::init(&of_client.terms()), None),
            (MemifMessage::AddRegion { index: 0, bytes: 4096 }, Some(memory.as_fd())),
            (ring(true, 0), Some(writer.as_fd())),
            (ring(false, 1024), Some(writer.as_fd())),
            (MemifMessage::Connect { name: FixedText::new("pipe") }, None),
        ];
        for (message, fd) in steps {
            socket::send(channel.as_fd(), &message, fd).expect("sent");
        }
        // HELLO, four ACKs, and the word that ends it.
        let deadline = Instant::now() + SOON;
        let mut last = None;
        while let Ok(socket::SocketArrival::Message(message, _)) =
            socket::receive(channel.as_fd(), deadline)
        {
            last = Some(message);
        }
        (last, connect(&of_client, SOON))
    });
    listener.accept(3 * SOON).expect("the honest one");
    assert_eq!(listener.refused_count(), 1);
    let (last, honest) = client.join().expect("no panic");
    assert!(honest.is_ok(), "{honest:?}");
    assert_eq!(last, Some(handshake::disconnect("a ring's descriptor must be an eventfd")));
}

/// Runs `acts` with two connected links, after a holder of their event descriptors has cleared
/// `O_NONBLOCK` and written `fill`.
fn at_a_peers_mercy(name: &str, fill: Option<u64>, acts: fn(&mut Memif, &mut Memif)) {
    let (mut one, mut other) = joined(&settings(name));
    let (mut one, mut other) = (one.remove(0), other.remove(0));
    // Those of the other are the same.
    let lanes = &one.peer.as_ref().expect("a peer").lanes;
    for fd in [&lanes.wakes_us, &lanes.wakes_peer] {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).expect("clears the shared flag");
        if let Some(fill) = fill {
            rustix::io::write(fd, &fill.to_ne_bytes()).expect("there is room");
        }
    }
    let (done, is_done) = std::sync::mpsc::channel();
    let acting = thread::spawn(move || {
        acts(&mut one, &mut other);
        done.send(()).expect("it is waited for");
    });
    let ended = is_done.recv_timeout(12 * SOON);
    assert!(ended != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it waits for its peer");
    acting.join().expect("nothing failed there");
}

#[test]
fn peer_filling_its_eventfd_does_not_block_us() {
    at_a_peers_mercy("full", Some(u64::MAX - 1), |one, other| {
        for round in 0..100_u8 {
            // The peer wants to be woken, and is; it never reads the counter.
            other.peer.as_ref().expect("a peer").lanes.receiving.ring.mask_interrupt(false);
            assert_eq!(send(one, &[round; 60]).expect("sent"), 1);
            assert_eq!(received(other), [[round; 60]]);
        }
    });
}

#[test]
fn peer_clearing_nonblock_does_not_block_our_reads() {
    at_a_peers_mercy("empty", None, |one, other| {
        for round in 0..100_u8 {
            assert!(other.arm().expect("armed"), "there is nothing yet");
            assert_eq!(send(one, &[round; 60]).expect("sent"), 1);
            let woken = crate::sleep::until_readable(other.wait_fd(), Some(SOON));
            assert!(woken.expect("waited"), "it is not woken");
            other.slept();
            assert_eq!(received(other), [[round; 60]]);
        }
    });
}

#[test]
fn sleep_without_frames_leaves_no_interrupt_to_clear() {
    let (mut server, mut client) = joined(&settings("quiet"));
    let (link, peer) = (&mut server[0], &mut client[0]);
    let calls_of_sleep = |link: &mut Memif| {
        let before = link.counters().system_calls;
        assert!(link.arm().expect("it can wait"));
        link.counters().system_calls - before
    };
    let is_readable =
        |link: &Memif| crate::sleep::until_readable(link.wait_fd(), Some(Duration::ZERO));
    for _ in 0..3 {
        // Each second one in a row, so that the control channel is looked at.
        assert_eq!(calls_of_sleep(link), 1);
        assert!(received(link).is_empty());
        assert_eq!(calls_of_sleep(link), 0);
        assert!(received(link).is_empty());
    }
    for round in 0..4 {
        calls_of_sleep(link);
        assert_eq!(send(peer, b"frame").expect("there is room"), 1);
        assert!(is_readable(link).expect("it can be polled"), "round {round}");
        assert_eq!(received(link).len(), 1);
        assert_eq!(calls_of_sleep(link), 1, "the interrupt is cleared");
        assert!(!is_readable(link).expect("it can be polled"), "round {round}");
        assert!(received(link).is_empty());
    }
    drop(client);
    let deadline = Instant::now() + SOON;
    while link.arm().is_ok() {
        assert!(Instant::now() < deadline, "the end of the peer goes unseen");
        // As a loop does that is woken.
        let _ = link.rx_burst(1, &mut |_, _| ());
    }
}
