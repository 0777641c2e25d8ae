//! Descriptors of the process beside sockets of ours: in sets, in poll, in select.
//!
//! Programs make and use them by `World::process`, and watch them by their numbers.

use std::os::fd::OwnedFd;

use megapipe_sockets::{Config, Context};
use rustix::fs::{Mode, OFlags};

use crate::host::{Answer, Ctl, Fd, Host};
use crate::world::{Client, Server, World, compare};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

fn set(world: &mut World) -> Fd {
    world.host(Server).epoll_create1(0).unwrap()
}

fn control(world: &mut World, what: &str, epoll: Fd, op: Ctl, fd: Fd, event: (u32, u64)) {
    let answer = world.host(Server).epoll_ctl(epoll, op, fd, event);
    world.note(what, &answer);
}

#[test]
fn members_of_both_kinds_tell_side_by_side() {
    let alone = [EXCLUSIVE, EXCLUSIVE | ET];
    for how in [0, ET, ONE_SHOT, ET | ONE_SHOT].into_iter().chain(alone) {
        compare(|world| {
            let (server, client) = world.connection();
            let [reader, writer] = world.process.pipe2(libc::O_NONBLOCK).unwrap();
            let epoll = set(world);
            control(world, "socket", epoll, Ctl::Add, server, (IN | how, 1));
            control(world, "pipe", epoll, Ctl::Add, reader, (IN | how, u64::MAX));
            control(world, "twice", epoll, Ctl::Add, reader, (IN | how, 9));
            world.note_events("nothing", Server, epoll);
            world.process.write(writer, b"ab").unwrap();
            world.note_events("the pipe", Server, epoll);
            world.note_events("unread", Server, epoll);
            world.note_send("send", Client, client, b"ab", 0);
            world.note_events("the socket", Server, epoll);
            world.note_events("both unread", Server, epoll);
            world.process.write(writer, b"cd").unwrap();
            world.note_events("more in the pipe", Server, epoll);
            control(world, "again", epoll, Ctl::Modify, reader, (IN | how & !EXCLUSIVE, 8));
            control(world, "again", epoll, Ctl::Modify, server, (IN | how & !EXCLUSIVE, 7));
            world.note_events("asked again", Server, epoll);
            world.process.read(reader, 3).unwrap();
            world.note_recv("part", Server, server, 1, 0);
            world.note_events("parts are left", Server, epoll);
            world.process.read(reader, 3).unwrap();
            world.note_recv("rest", Server, server, 10, 0);
            world.note_events("nothing is left", Server, epoll);
            world.process.close(writer).unwrap();
            world.note_events("no writer", Server, epoll);
            control(world, "gone", epoll, Ctl::Delete, reader, (0, 0));
            control(world, "gone already", epoll, Ctl::Delete, reader, (0, 0));
            world.note_events("none", Server, epoll);
        });
    }
}

/// Whatever the kernel's sets take: what it is, and the descriptor to watch.
fn of_every_kind(process: &mut crate::linux::Linux) -> Vec<(&'static str, Fd)> {
    use rustix::{event, fs, net, pipe, time};
    let [reader, _] = process.pipe2(0).unwrap();
    let (end, other) = net::socketpair(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::io::write(&other, b"x").unwrap();
    process.keep(other);
    let timer = time::timerfd_create(time::TimerfdClockId::Monotonic, time::TimerfdFlags::NONBLOCK);
    let counter = event::eventfd(1, event::EventfdFlags::NONBLOCK).unwrap();
    let watch = fs::inotify::init(fs::inotify::CreateFlags::NONBLOCK).unwrap();
    let inner = event::epoll::create(event::epoll::CreateFlags::CLOEXEC).unwrap();
    let data = event::epoll::EventData::new_u64(3);
    event::epoll::add(&inner, &counter, data, event::epoll::EventFlags::IN).unwrap();
    let (_, writer) = pipe::pipe().unwrap();
    let open = |path: &str| -> OwnedFd {
        fs::open(path, OFlags::RDONLY | OFlags::NOCTTY, Mode::empty()).unwrap()
    };
    let listener = process.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    vec![
        ("pipe", reader),
        ("UNIX socket", process.keep(end)),
        ("timerfd", process.keep(timer.unwrap())),
        ("eventfd", process.keep(counter)),
        ("inotify", process.keep(watch)),
        ("tty", process.keep(open("/dev/ptmx"))),
        ("a set of the kernel's", process.keep(inner)),
        ("a pipe without reader", process.keep(writer)),
        ("a disk file", process.keep(open("/proc/self/exe"))),
        ("a folder", process.keep(open("/"))),
        ("/dev/null", process.keep(open("/dev/null"))),
        ("a socket of the kernel's", listener),
    ]
}

#[test]
fn whatever_the_kernels_sets_take_ours_take() {
    compare(|world| {
        let kinds = of_every_kind(&mut world.process);
        let (server, _client) = world.connection();
        let epoll = set(world);
        for (what, fd) in kinds {
            let data = what.len() as u64;
            control(world, what, epoll, Ctl::Modify, fd, (IN | OUT, data));
            control(world, what, epoll, Ctl::Delete, fd, (0, 0));
            control(world, what, epoll, Ctl::Add, fd, (IN | OUT, data));
            world.note_events(what, Server, epoll);
            control(world, what, epoll, Ctl::Modify, fd, (IN, data + 1));
            world.note_events(what, Server, epoll);
            control(world, what, epoll, Ctl::Delete, fd, (0, 0));
            control(world, "alone", epoll, Ctl::Add, fd, (IN | EXCLUSIVE, data));
            control(world, "alone", epoll, Ctl::Delete, fd, (0, 0));
            // Where the set is none, the member's error is returned first.
            control(world, "no set", server, Ctl::Add, fd, (IN, data));
            control(world, "no descriptor", 999_999, Ctl::Add, fd, (IN, data));
            let asked = [(fd, libc::POLLIN | libc::POLLOUT), (server, libc::POLLOUT), (fd, 0)];
            let told = world.host(Server).poll(&asked);
            world.note("poll", &told);
            let told = world.host(Server).select(&[fd, server], &[server, fd]);
            world.note("select", &told);
        }
        control(world, "nothing", epoll, Ctl::Add, 999_999, (IN, 0));
        control(world, "nothing", epoll, Ctl::Delete, 999_999, (IN, 0));
        let polled = world.host(Server).poll(&[(999_999, libc::POLLIN), (-1, libc::POLLIN)]);
        world.note("poll", &polled);
    });
}

#[test]
fn a_timer_and_a_signal_come_when_they_are_due() {
    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
    compare(|world| {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
            .unwrap();
        let soon = Timespec { tv_sec: 0, tv_nsec: 1 };
        let once = Itimerspec { it_value: soon, it_interval: Timespec::default() };
        let epoll = set(world);
        let settings = timer.try_clone().unwrap();
        let fd = world.process.keep(timer);
        control(world, "timer", epoll, Ctl::Add, fd, (IN | ET, 4));
        world.note_events("not set", Server, epoll);
        rustix::time::timerfd_settime(&settings, TimerfdTimerFlags::empty(), &once).unwrap();
        world.note_events("due", Server, epoll);
        world.note_events("told", Server, epoll);
        let expired = world.process.read(fd, 8);
        world.note("expired", &expired);
        rustix::time::timerfd_settime(&settings, TimerfdTimerFlags::empty(), &once).unwrap();
        world.note_events("again", Server, epoll);
    });
}

#[test]
fn a_member_leaves_when_the_last_descriptor_for_it_is_closed() {
    compare(|world| {
        let [reader, writer] = world.process.pipe2(libc::O_NONBLOCK).unwrap();
        let epoll = set(world);
        control(world, "add", epoll, Ctl::Add, reader, (IN, 1));
        let copy = world.process.dup(reader).unwrap();
        control(world, "the copy", epoll, Ctl::Add, copy, (IN | ET, 2));
        world.process.write(writer, b"x").unwrap();
        world.note_events("both names", Server, epoll);
        world.process.close(copy).unwrap();
        // Its item is still there, because the pipe's end is open by the other name.
        world.process.write(writer, b"x").unwrap();
        world.note_events("one name closed", Server, epoll);
        world.process.close(reader).unwrap();
        world.note_events("the last one closed", Server, epoll);
        let (server, client) = world.connection();
        control(world, "a socket", epoll, Ctl::Add, server, (IN, 3));
        world.note_send("send", Client, client, b"x", 0);
        world.note_events("a socket", Server, epoll);
        world.host(Server).close(server).unwrap();
        world.note_events("closed", Server, epoll);
        world.host(Server).close(epoll).unwrap();
        let answer = world.host(Server).epoll_wait(epoll, 1);
        world.note("the set closed", &answer);
    });
}

#[test]
fn sets_in_sets_tell_of_the_kernels_upwards() {
    for how in [0, ET, ONE_SHOT] {
        compare(|world| {
            let (server, client) = world.connection();
            let [reader, writer] = world.process.pipe2(libc::O_NONBLOCK).unwrap();
            let (inner, outer) = (set(world), set(world));
            control(world, "pipe", inner, Ctl::Add, reader, (IN, 1));
            control(world, "socket", inner, Ctl::Add, server, (IN, 2));
            control(world, "inner", outer, Ctl::Add, inner, (IN | how, 3));
            let counter = world.process.eventfd(0, libc::EFD_NONBLOCK).unwrap();
            control(world, "counter", outer, Ctl::Add, counter, (IN, 4));
            world.note_events("nothing", Server, outer);
            world.process.write(writer, b"ab").unwrap();
            world.note_events("the pipe, from outside", Server, outer);
            world.note_events("again", Server, outer);
            let polled = world.host(Server).poll(&[(outer, libc::POLLIN), (inner, libc::POLLIN)]);
            world.note("poll", &polled);
            world.note_events("from inside", Server, inner);
            world.process.write(counter, &1_u64.to_ne_bytes()).unwrap();
            world.process.write(writer, b"cd").unwrap();
            world.note_events("both", Server, outer);
            world.process.read(counter, 8).unwrap();
            world.process.read(reader, 10).unwrap();
            world.note_events("read", Server, outer);
            world.note_send("send", Client, client, b"x", 0);
            world.note_events("the socket", Server, outer);
            world.host(Server).close(inner).unwrap();
            world.note_events("the inner set is closed", Server, outer);
        });
    }
}

#[test]
fn a_set_of_the_kernels_is_a_member_like_any_other() {
    compare(|world| {
        let [reader, writer] = world.process.pipe2(libc::O_NONBLOCK).unwrap();
        let kernels = world.process.epoll_create1(0).unwrap();
        world.process.epoll_ctl(kernels, Ctl::Add, reader, (IN, 1)).unwrap();
        let epoll = set(world);
        control(world, "add", epoll, Ctl::Add, kernels, (IN | ET, 2));
        control(world, "alone", epoll, Ctl::Add, kernels, (IN | EXCLUSIVE, 2));
        world.note_events("nothing", Server, epoll);
        world.process.write(writer, b"x").unwrap();
        world.note_events("its pipe", Server, epoll);
        world.note_events("told", Server, epoll);
        let inside = world.process.epoll_wait(kernels, 4);
        world.note("inside", &inside);
        world.process.read(reader, 1).unwrap();
        world.process.write(writer, b"x").unwrap();
        world.note_events("an edge", Server, epoll);
        world.process.close(kernels).unwrap();
        world.note_events("closed", Server, epoll);
    });
}

/// How deep a nest of the kernel's sets may be that a set takes.
fn deepest(host: &mut dyn Host, process: &mut crate::linux::Linux) -> usize {
    let mut top = process.pipe2(0).unwrap()[0];
    for depth in 0..10 {
        let outer = host.epoll_create1(0).unwrap();
        match host.epoll_ctl(outer, Ctl::Add, top, (IN, 0)) {
            Ok(()) => host.close(outer).unwrap(),
            Err(error) => {
                assert!([libc::ELOOP, libc::EINVAL].contains(&error), "{error}");
                return depth - 1;
            }
        }
        let next = process.epoll_create1(0).unwrap();
        process.epoll_ctl(next, Ctl::Add, top, (IN, 0)).unwrap();
        top = next;
    }
    panic!("it takes any depth")
}

#[test]
fn of_the_kernels_sets_one_level_less_fits_because_of_the_one_that_sleeps() {
    let on_linux = deepest(&mut crate::linux::Linux::default(), &mut Default::default());
    let config = Config::default().first_descriptor(1 << 20).process_below_first(true);
    let ours = deepest(&mut Context::create(config).unwrap(), &mut Default::default());
    assert_eq!((on_linux, ours), (4, 3));
}

#[test]
fn a_small_array_serves_every_item_in_turn() {
    for room in [1, 2, 3, 5] {
        compare(|world| {
            let epoll = set(world);
            let mut clients = Vec::new();
            for data in 0..3 {
                let (server, client) = world.connection();
                control(world, "socket", epoll, Ctl::Add, server, (IN, data));
                world.note_send("send", Client, client, b"x", 0);
                clients.push((server, client));
            }
            for data in 10..13 {
                let counter = world.process.eventfd(1, 0).unwrap();
                control(world, "counter", epoll, Ctl::Add, counter, (IN, data));
            }
            world.settle();
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..12_usize.div_ceil(room).max(6) {
                let told = world.host(Server).epoll_wait(epoll, room).unwrap();
                assert!((1..=room).contains(&told.len()), "{told:?}");
                seen.extend(told.into_iter().map(|(_, data)| data));
            }
            world.note("in turns", &seen);
        });
    }
}

#[test]
fn poll_and_select_take_both_kinds() {
    compare(|world| {
        let (server, client) = world.connection();
        let [reader, writer] = world.process.pipe2(libc::O_NONBLOCK).unwrap();
        let inner = set(world);
        control(world, "inner", inner, Ctl::Add, reader, (IN, 1));
        let note = |world: &mut World, what: &str| {
            world.settle();
            let input = libc::POLLIN | libc::POLLRDHUP;
            let asked = [
                (reader, input),
                (server, input),
                (writer, libc::POLLOUT),
                (server, libc::POLLOUT),
                (reader, 0),
                (inner, input),
                (reader, libc::POLLOUT),
            ];
            let told: Answer<Vec<i16>> = world.host(Server).poll(&asked);
            world.note(what, &told);
            let told = world.host(Server).select(&[reader, server, inner], &[writer, server]);
            world.note(what, &told);
            let told = world.host(Server).select(&[reader, server], &[]);
            world.note(what, &told);
        };
        note(world, "nothing");
        world.process.write(writer, b"x").unwrap();
        note(world, "the pipe");
        world.note_send("send", Client, client, b"x", 0);
        note(world, "both");
        world.process.read(reader, 1).unwrap();
        note(world, "the socket");
        world.process.close(reader).unwrap();
        let told = world.host(Server).poll(&[(writer, libc::POLLOUT)]);
        world.note("no reader", &told);
    });
}
