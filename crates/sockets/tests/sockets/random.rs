//! Random programs on Linux and on ours: whatever is called in whatever order, the answers agree.

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

use crate::host::{Ctl, Fd};
use crate::world::{Client, Server, Side, World, compare, named};

/// A call of a random program, on one of the sockets that there are.
#[derive(Debug, Clone, Copy)]
enum Step {
    Send { side: bool, len: u8 },
    Recv { side: bool, len: u8, flags: u8 },
    Shutdown { side: bool, how: u8 },
    Close { side: bool },
    Watch { side: bool, events: u8 },
    Wait { side: bool },
    Reconnect { side: bool },
    Linger { side: bool, on: bool },
    Names { side: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let side = any::<bool>;
    prop_oneof![
        4 => (side(), 0u8..40).prop_map(|(side, len)| Step::Send { side, len }),
        4 => (side(), 0u8..40, 0u8..4)
            .prop_map(|(side, len, flags)| Step::Recv { side, len, flags }),
        // Not both directions at once: a reset that comes after that is returned by calls alone.
        1 => (side(), 0u8..2).prop_map(|(side, how)| Step::Shutdown { side, how }),
        1 => side().prop_map(|side| Step::Close { side }),
        2 => (side(), 0u8..16).prop_map(|(side, events)| Step::Watch { side, events }),
        4 => side().prop_map(|side| Step::Wait { side }),
        1 => side().prop_map(|side| Step::Reconnect { side }),
        1 => (side(), any::<bool>()).prop_map(|(side, on)| Step::Linger { side, on }),
        1 => side().prop_map(|side| Step::Names { side }),
    ]
}

/// One end of the connection, and the set that watches it.
struct End {
    side: Side,
    fd: Fd,
    epoll: Fd,
    is_watched: bool,
    is_shut: bool,
    is_closed: bool,
}

fn run(world: &mut World, steps: &[Step]) {
    let (server, client) = world.connection();
    let mut ends = [(Server, server), (Client, client)].map(|(side, fd)| {
        // When Nagle's algorithm lets a small segment go is a matter of time.
        world.no_delay(side, fd);
        let epoll = world.host(side).epoll_create1(0).expect("a set can be had");
        End { side, fd, epoll, is_watched: false, is_shut: false, is_closed: false }
    });
    for step in steps {
        take(world, &mut ends, *step);
        world.settle();
    }
    world.note("over", &steps.len());
}

fn take(world: &mut World, ends: &mut [End; 2], step: Step) {
    match step {
        Step::Send { side, len } => {
            let end = &ends[usize::from(side)];
            let bytes = vec![b'a' + len % 26; len.into()];
            world.note_send("send", end.side, end.fd, &bytes, 0);
        }
        Step::Recv { side, len, flags } => {
            let end = &ends[usize::from(side)];
            let flags = [0, libc::MSG_PEEK, libc::MSG_DONTWAIT, libc::MSG_WAITALL][flags as usize];
            world.note_recv("recv", end.side, end.fd, len.into(), flags);
        }
        Step::Shutdown { side, how } => {
            let end = &mut ends[usize::from(side)];
            if std::mem::replace(&mut end.is_shut, true) {
                return;
            }
            let answer = world.host(end.side).shutdown(end.fd, how.into());
            // Whether the last acknowledgment is here already is a matter of time.
            world.note("shutdown", &answer.is_ok_and(|()| false));
        }
        Step::Close { side } => {
            let end = &mut ends[usize::from(side)];
            end.is_closed = true;
            let answer = world.host(end.side).close(end.fd);
            world.note("close", &answer);
        }
        Step::Watch { side, events } => {
            let end = &mut ends[usize::from(side)];
            // On Linux its number may be another test's by now.
            if end.is_closed {
                return;
            }
            let bit = |place: u8, bits: i32| if events & place == 0 { 0 } else { bits as u32 };
            let asked = bit(1, libc::EPOLLIN)
                | bit(2, libc::EPOLLOUT)
                | bit(4, libc::EPOLLET)
                | bit(8, libc::EPOLLONESHOT)
                | libc::EPOLLRDHUP as u32;
            let op = if end.is_watched { Ctl::Modify } else { Ctl::Add };
            let answer = world.host(end.side).epoll_ctl(end.epoll, op, end.fd, (asked, 5));
            end.is_watched |= answer.is_ok();
            world.note("watch", &answer);
        }
        Step::Wait { side } => {
            let end = &ends[usize::from(side)];
            let told = world.host(end.side).epoll_wait(end.epoll, 4);
            world.note("wait", &told.map(|events| named(&events)));
        }
        Step::Reconnect { side } => {
            let end = &ends[usize::from(side)];
            let unused = world.address(Server, 1);
            if side {
                let answer = world.host(end.side).connect(end.fd, Some(unused));
                world.note("connect", &answer);
            }
        }
        Step::Linger { side, on } => {
            let end = &ends[usize::from(side)];
            let value = [i32::from(on).to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
            let host = world.host(end.side);
            let answer = host.setsockopt(end.fd, libc::SOL_SOCKET, libc::SO_LINGER, &value);
            world.note("linger", &answer);
        }
        Step::Names { side } => {
            let end = &ends[usize::from(side)];
            let answer = world.host(end.side).getsockname(end.fd).map(|name| name.port() > 0);
            world.note("name", &answer);
        }
    }
}

proptest! {
    #![proptest_config(Config {
        cases: 24,
        max_shrink_iters: 60,
        // Each try is a whole run in five places, some of them in real time.
        max_shrink_time: 60_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..Config::default()
    })]

    #[test]
    fn random_programs_are_answered_as_on_linux(steps in prop::collection::vec(step(), 1..25)) {
        compare(|world| run(world, &steps));
    }
}
