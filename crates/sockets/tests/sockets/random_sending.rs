//! Random programs that send through small send buffers: what a program sends before `shutdown` or
//! `close` arrives, and peers that do not read delay no other connection.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

use crate::host::Fd;
use crate::world::{Client, Server, World, compare};

/// Rounds without a byte after which a program stalls, but for a machine that is very busy.
const IDLE_ROUNDS_MAX: usize = 200;
/// The same as time, where rounds are long.
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes that a stalled connection is given at most.
const STALLED_BYTES_MAX: usize = 100_000;

/// How the sending side ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Shutdown,
    Close,
}

/// A connection that the program sends on.
#[derive(Debug, Clone, Copy)]
struct Sent {
    total: usize,
    piece_len: usize,
    end: End,
    /// The peer reads only when all other connections are over.
    is_stalled: bool,
}

#[derive(Debug, Clone)]
struct Program {
    /// SO_SNDBUF; `None`: as it is.
    send_buffer: Option<i32>,
    /// Set on the listener, or on each connection.
    is_inherited: bool,
    conns: Vec<Sent>,
}

fn program() -> impl Strategy<Value = Program> {
    let piece_len = prop_oneof![1usize..300, 300usize..3000, 3000usize..20_000];
    let end = prop_oneof![Just(End::Shutdown), Just(End::Close)];
    let sent = (1usize..30_000, piece_len, end, any::<bool>()).prop_map(
        |(total, piece_len, end, is_stalled)| Sent {
            // Pieces of a few bytes take a while each.
            total: total.min(400 * piece_len),
            piece_len,
            end,
            is_stalled,
        },
    );
    let send_buffer = prop_oneof![
        3 => Just(Some(4_608)),
        2 => (4_608i32..40_000).prop_map(Some),
        1 => Just(None),
    ];
    (send_buffer, any::<bool>(), prop::collection::vec(sent, 1..6))
        .prop_map(|(send_buffer, is_inherited, conns)| Program { send_buffer, is_inherited, conns })
}

/// A connection, and how far it is.
struct Conn {
    plan: Sent,
    sender: Fd,
    reader: Fd,
    /// Bytes that the program has yet to send.
    to_send: usize,
    sent: usize,
    read: usize,
    has_ended: bool,
    is_over: bool,
}

fn byte_at(place: usize) -> u8 {
    (place % 251) as u8
}

impl Conn {
    /// Sends until there is no room, then ends if all is sent. How many bytes.
    fn send(&mut self, world: &mut World) -> usize {
        let before = self.sent;
        while self.to_send > 0 {
            let len = self.plan.piece_len.min(self.to_send);
            let bytes: Vec<u8> = (self.sent..self.sent + len).map(byte_at).collect();
            match world.host(Server).send(self.sender, &bytes, libc::MSG_NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    self.to_send -= count;
                }
                Err(error) => {
                    assert_eq!(error, libc::EAGAIN);
                    break;
                }
            }
        }
        if self.to_send == 0 && !std::mem::replace(&mut self.has_ended, true) {
            let ended = match self.plan.end {
                End::Shutdown => world.host(Server).shutdown(self.sender, libc::SHUT_WR),
                End::Close => world.host(Server).close(self.sender),
            };
            assert_eq!(ended, Ok(()));
        }
        self.sent - before
    }

    /// Reads what is there. How many bytes.
    fn read(&mut self, world: &mut World) -> usize {
        let before = self.read;
        while !self.is_over {
            match world.host(Client).recv(self.reader, 8_192, 0) {
                Ok(bytes) => {
                    self.is_over = bytes.is_empty();
                    let expected = (self.read..).map(byte_at);
                    assert!(bytes.iter().copied().eq(expected.take(bytes.len())), "wrong bytes");
                    self.read += bytes.len();
                }
                Err(error) => {
                    assert_eq!(error, libc::EAGAIN);
                    break;
                }
            }
        }
        self.read - before
    }
}

/// Sends and reads on some connections until they are over.
fn finish<'conns>(world: &mut World, conns: impl IntoIterator<Item = &'conns mut Conn>) {
    let mut conns: Vec<_> = conns.into_iter().collect();
    let (mut idle_rounds, mut moved_at) = (0, Instant::now());
    while conns.iter().any(|conn| !conn.is_over) {
        if idle_rounds >= IDLE_ROUNDS_MAX || idle_rounds > 5 && moved_at.elapsed() > IDLE_TIME_MAX {
            break;
        }
        let moved: usize = conns.iter_mut().map(|conn| conn.send(world) + conn.read(world)).sum();
        idle_rounds += 1;
        if moved > 0 {
            (idle_rounds, moved_at) = (0, Instant::now());
        }
        world.settle();
    }
    for conn in conns {
        world.note(
            "sent, arrived, at its end",
            &(conn.to_send == 0, conn.read == conn.sent, conn.is_over),
        );
    }
}

fn run(world: &mut World, program: &Program) {
    let shrink = |world: &mut World, fd| {
        if let Some(bytes) = program.send_buffer {
            let bytes = bytes.to_ne_bytes();
            let set = world.host(Server).setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
            assert_eq!(set, Ok(()));
        }
    };
    let (listener, address) = world.listener(Server, 8);
    if program.is_inherited {
        shrink(world, listener);
    }
    let mut conns: Vec<Conn> = Vec::new();
    for plan in &program.conns {
        let reader = world.tcp(Client);
        let begun = world.host(Client).connect(reader, Some(address));
        assert_eq!(begun, Err(libc::EINPROGRESS));
        let sender = world.accept(listener);
        if !program.is_inherited {
            shrink(world, sender);
        }
        world.no_delay(Server, sender);
        let to_send = if plan.is_stalled { STALLED_BYTES_MAX } else { plan.total };
        let (sent, read, has_ended, is_over) = (0, 0, false, false);
        let plan = *plan;
        conns.push(Conn { plan, sender, reader, to_send, sent, read, has_ended, is_over });
    }
    for conn in conns.iter_mut().filter(|conn| conn.plan.is_stalled) {
        conn.send(world);
        world.settle();
        conn.send(world);
    }
    finish(world, conns.iter_mut().filter(|conn| !conn.plan.is_stalled));
    // They send no more than is under way.
    conns.iter_mut().filter(|conn| !conn.has_ended).for_each(|conn| conn.to_send = 0);
    finish(world, conns.iter_mut().filter(|conn| conn.plan.is_stalled));
    world.note("over", &conns.len());
}

proptest! {
    #![proptest_config(Config {
        // `MEGAPIPE_CASES=10000` looks for more.
        cases: std::env::var("MEGAPIPE_CASES").ok().and_then(|it| it.parse().ok()).unwrap_or(6),
        max_shrink_iters: 20,
        max_shrink_time: 60_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..Config::default()
    })]

    #[test]
    fn small_send_buffers_lose_and_delay_nothing(program in program()) {
        compare(|world| run(world, &program));
    }
}
