//! Random programs with sets that hold sockets of ours and descriptors of the kernel's, while
//! signals come: what Linux's sets tell, ours tell.
//!
//! Read first: `mixed.rs`, `random.rs`. A failing program is printed, cut to what it needs.
//!
//! What is left out is what decision 0024 says is different: sets that are full (the order among
//! both kinds), EPOLLEXCLUSIVE on what wakes a call that waits, and too deep nests of the kernel's.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::host::{Answer, Ctl, Fd, Host};
use crate::linux::signal_set;
use crate::signals::with_handlers;
use crate::threads::is_asleep;
use crate::world::{Client, Server, World, compare, named};

/// Sets of the context; one more is the kernel's.
const SETS: usize = 3;
/// Everything that can be watched; see [`Scene::new`].
const MEMBERS: usize = 17;
/// As many of them play a part in one program, so that much happens to each.
const CHOSEN: usize = 5;
/// Events that one call takes: more than there are members.
const ROOM: usize = 64;
const SIGNAL: i32 = libc::SIGUSR1;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// epoll_ctl on a set of ours, or on the kernel's.
    Control { set: u8, op: Ctl, member: u8, events: u8 },
    /// Something happens to a member: what, is the member's.
    Happen { member: u8, what: u8, len: u8 },
    /// epoll_wait without waiting.
    Tell { set: u8 },
    /// poll and select of some members.
    Poll { members: u32, events: u8 },
    /// epoll_pwait with a time-out, and what comes meanwhile.
    Wait { set: u8, meanwhile: Meanwhile },
}

/// What comes while a call waits.
#[derive(Debug, Clone, Copy)]
enum Meanwhile {
    Nothing,
    /// A signal, which ends it.
    Signal,
    /// A signal that the call's mask blocks.
    Blocked,
    /// A signal came before, and the call's mask lets it in.
    LetIn,
    /// A byte into a pipe of the process that the sets may watch.
    Byte,
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![5 => Just(Ctl::Add), 3 => Just(Ctl::Modify), 1 => Just(Ctl::Delete)];
    let (set, member) = (0..SETS as u8, 0..CHOSEN as u8);
    let meanwhile = prop_oneof![
        1 => Just(Meanwhile::Nothing),
        1 => Just(Meanwhile::Signal),
        1 => Just(Meanwhile::Blocked),
        1 => Just(Meanwhile::LetIn),
        2 => Just(Meanwhile::Byte),
    ];
    prop_oneof![
        10 => (0..=SETS as u8, op, member.clone(), any::<u8>())
            .prop_map(|(set, op, member, events)| Step::Control { set, op, member, events }),
        10 => (member, 0u8..8, 1u8..20)
            .prop_map(|(member, what, len)| Step::Happen { member, what, len }),
        8 => set.clone().prop_map(|set| Step::Tell { set }),
        1 => (any::<u32>(), any::<u8>())
            .prop_map(|(members, events)| Step::Poll { members, events }),
        1 => (set, meanwhile).prop_map(|(set, meanwhile)| Step::Wait { set, meanwhile }),
    ]
}

/// The owner of a descriptor, whose calls are made on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The context's, or Linux's in its place.
    Hosts,
    Process,
}

/// What a member is, which says what can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stream,
    Datagram,
    Reader,
    Writer,
    Counter,
    Timer,
    Set,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    whose: Whose,
    kind: Kind,
    fd: Fd,
    /// What is at its other end; itself, where there is none.
    other: Fd,
    is_open: bool,
    other_is_open: bool,
}

struct Scene {
    members: Vec<Member>,
    /// What rings the pipe that wakes calls which wait, from another thread.
    bell: OwnedFd,
    timer: OwnedFd,
}

impl Scene {
    fn new(world: &mut World) -> Self {
        let mut scene = Self::of_the_process(world);
        let add = |scene: &mut Self, kind, fd, other| scene.add(Whose::Hosts, kind, fd, other);
        for _ in 0..2 {
            let (server, client) = world.connection();
            world.no_delay(Server, server);
            world.no_delay(Client, client);
            add(&mut scene, Kind::Stream, server, client);
        }
        // One of them by another name.
        let Member { fd, other, .. } = scene.members[scene.members.len() - 1];
        let copy = world.host(Server).dup(fd).unwrap();
        add(&mut scene, Kind::Stream, copy, other);
        let (server, client) = datagrams(world);
        add(&mut scene, Kind::Datagram, server, client);
        let [reader, writer] = world.host(Server).pipe2(libc::O_NONBLOCK).unwrap();
        add(&mut scene, Kind::Reader, reader, writer);
        let [reader, writer] = world.host(Server).pipe2(libc::O_NONBLOCK).unwrap();
        add(&mut scene, Kind::Writer, writer, reader);
        let counter = world.host(Server).eventfd(0, libc::EFD_NONBLOCK).unwrap();
        add(&mut scene, Kind::Counter, counter, counter);
        for _ in 0..SETS {
            let set = world.host(Server).epoll_create1(0).unwrap();
            add(&mut scene, Kind::Set, set, set);
        }
        assert_eq!(scene.members.len(), MEMBERS);
        scene
    }

    fn of_the_process(world: &mut World) -> Self {
        let process = &mut world.process;
        let (reader, bell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let (reader, writer) = (process.keep(reader), process.keep(bell.try_clone().unwrap()));
        let watched = process.keep(timer.try_clone().unwrap());
        let mut scene = Self { members: Vec::new(), bell, timer };
        let mut add = |kind, fd, other| scene.add(Whose::Process, kind, fd, other);
        add(Kind::Reader, reader, writer);
        add(Kind::Timer, watched, watched);
        let [reader, writer] = process.pipe2(libc::O_NONBLOCK).unwrap();
        add(Kind::Reader, reader, writer);
        let [reader, writer] = process.pipe2(libc::O_NONBLOCK).unwrap();
        add(Kind::Writer, writer, reader);
        let counter = process.eventfd(0, libc::EFD_NONBLOCK).unwrap();
        add(Kind::Counter, counter, counter);
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::NONBLOCK);
        let (one, other) =
            rustix::net::socketpair(family, SocketType::STREAM, flags, None).unwrap();
        add(Kind::Stream, process.keep(one), process.keep(other));
        let set = process.epoll_create1(0).unwrap();
        add(Kind::Set, set, set);
        scene
    }

    fn add(&mut self, whose: Whose, kind: Kind, fd: Fd, other: Fd) {
        let (is_open, other_is_open) = (true, true);
        self.members.push(Member { whose, kind, fd, other, is_open, other_is_open });
    }

    /// Set number `index`; the one after ours is the kernel's. `None`: it was closed.
    fn set(&self, index: u8) -> Option<Member> {
        let whose = if usize::from(index) < SETS { Whose::Hosts } else { Whose::Process };
        let mut sets = self.members.iter().filter(|it| it.kind == Kind::Set && it.whose == whose);
        sets.nth(usize::from(index) % SETS).copied().filter(|set| set.is_open)
    }
}

/// Two datagram sockets that are connected to each other.
fn datagrams(world: &mut World) -> (Fd, Fd) {
    let ends = [Server, Client].map(|side| {
        let any_port = world.address(side, 0);
        let host = world.host(side);
        let fd = host.socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0).unwrap();
        host.bind(fd, any_port).unwrap();
        (fd, host.getsockname(fd).unwrap())
    });
    let [(server, server_at), (client, client_at)] = ends;
    world.host(Server).connect(server, Some(client_at)).unwrap();
    world.host(Client).connect(client, Some(server_at)).unwrap();
    (server, client)
}

fn run(world: &mut World, chosen: &[usize], steps: &[Step]) {
    let mut scene = Scene::new(world);
    for (index, step) in steps.iter().enumerate() {
        world.note("step", &index);
        take(world, &mut scene, chosen, (index as u64, *step));
        world.settle();
    }
    // What the sets have to tell in the end, and that they say it twice.
    for index in 0..SETS as u8 * 2 {
        if let Some(set) = scene.set(index % SETS as u8) {
            world.note_events("in the end", Server, set.fd);
        }
    }
}

fn take(world: &mut World, scene: &mut Scene, chosen: &[usize], (index, step): (u64, Step)) {
    match step {
        Step::Control { set, op, member, events } => {
            let number = chosen[usize::from(member)];
            let (Some(set), member) = (scene.set(set), scene.members[number]) else {
                return;
            };
            if !member.is_open || (set.whose == Whose::Process && member.whose == Whose::Hosts) {
                return;
            }
            let is_bell = number == 0;
            let event = (asked(events, is_bell), number as u64 + 100 * index);
            let answer = match set.whose {
                Whose::Hosts => world.host(Server).epoll_ctl(set.fd, op, member.fd, event),
                Whose::Process => world.process.epoll_ctl(set.fd, op, member.fd, event),
            };
            world.note("control", &answer);
        }
        Step::Happen { member, what, len } => {
            happen(world, scene, chosen[usize::from(member)], (what, len));
        }
        Step::Tell { set } => {
            if let Some(set) = scene.set(set) {
                let told = world.host(Server).epoll_wait(set.fd, ROOM);
                world.note("tell", &told.map(|events| named(&events)));
            }
        }
        Step::Poll { members, events } => {
            let chosen = |(index, member): (usize, &Member)| {
                (member.is_open && members & 1 << index != 0).then_some(member.fd)
            };
            let fds: Vec<Fd> = scene.members.iter().enumerate().filter_map(chosen).collect();
            let asked: Vec<(Fd, i16)> =
                fds.iter().map(|fd| (*fd, asked(events & 0xf, true) as i16)).collect();
            let told = world.host(Server).poll(&asked);
            world.note("poll", &told);
            let told = world.host(Server).select(&fds, &fds);
            world.note("select", &told);
        }
        Step::Wait { set, meanwhile } => {
            if let Some(set) = scene.set(set) {
                let told = wait(world, scene, set.fd, meanwhile);
                world.note("wait", &told.map(|events| named(&events)));
            }
        }
    }
}

/// The events behind eight bits.
fn asked(bits: u8, is_bell: bool) -> u32 {
    let events = [
        libc::EPOLLIN,
        libc::EPOLLOUT,
        libc::EPOLLRDHUP,
        libc::EPOLLPRI,
        libc::EPOLLET,
        libc::EPOLLONESHOT,
    ];
    let chosen = events.iter().enumerate().filter(|(place, _)| bits & 1 << place != 0);
    let all = chosen.fold(0, |all, (_, event)| all | *event as u32);
    if bits >> 6 == 3 && !is_bell { all | libc::EPOLLEXCLUSIVE as u32 } else { all }
}

/// Waits on a set; what comes meanwhile comes from another thread.
fn wait(
    world: &mut World,
    scene: &Scene,
    set: Fd,
    meanwhile: Meanwhile,
) -> Answer<Vec<(u32, u64)>> {
    match (wait_once(world, scene, set, meanwhile), meanwhile) {
        ((told, true), _) => told,
        // A busy machine kept the other thread from its part until it was too late for the call.
        // What tells of nothing changes nothing, so it is called once more.
        ((Ok(told), _), Meanwhile::Signal) if told.is_empty() => wait(world, scene, set, meanwhile),
        ((Ok(told), _), Meanwhile::Byte) if told.is_empty() => {
            wait(world, scene, set, Meanwhile::Nothing)
        }
        ((told, false), _) => told,
    }
}

/// The same, and whether what comes meanwhile came when the call waited and had time left.
fn wait_once(
    world: &mut World,
    scene: &Scene,
    set: Fd,
    meanwhile: Meanwhile,
) -> (Answer<Vec<(u32, u64)>>, bool) {
    let (delay_ms, timeout_ms) = (2 * world.patience(), 12 * world.patience());
    let delay = Duration::from_millis(delay_ms.into());
    let bit = 1 << (SIGNAL - 1);
    let (timeout_ms, mask) = match meanwhile {
        Meanwhile::Nothing => (delay_ms, None),
        Meanwhile::Signal | Meanwhile::Byte => (timeout_ms, None),
        Meanwhile::Blocked => (2 * delay_ms, Some(bit)),
        Meanwhile::LetIn => (timeout_ms, Some(0)),
    };
    // SAFETY: the calling thread's own handle.
    let thread = unsafe { libc::pthread_self() } as usize;
    let caller = rustix::thread::gettid();
    if matches!(meanwhile, Meanwhile::LetIn) {
        change_mask(libc::SIG_BLOCK);
        send_signal(thread);
    }
    let host = world.host(Server);
    let begun = Instant::now();
    let (told, came_after) = std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            std::thread::sleep(delay);
            if matches!(meanwhile, Meanwhile::Signal) {
                // A signal that comes before the call, or after it, does not end it.
                while !is_asleep(caller) {
                    std::thread::yield_now();
                }
            }
            let came_after = begun.elapsed();
            match meanwhile {
                Meanwhile::Signal | Meanwhile::Blocked => send_signal(thread),
                Meanwhile::Byte => drop(rustix::io::write(&scene.bell, b"x")),
                Meanwhile::Nothing | Meanwhile::LetIn => {}
            }
            came_after
        });
        let told = host.epoll_pwait(set, ROOM, timeout_ms, mask);
        (told, other.join().expect("it only sleeps and sends"))
    });
    if matches!(meanwhile, Meanwhile::LetIn) {
        change_mask(libc::SIG_UNBLOCK);
    }
    (told, came_after < Duration::from_millis(timeout_ms.into()) / 2)
}

fn send_signal(thread: usize) {
    // SAFETY: the thread waits for the one that sends, or is it, so its handle is valid.
    let sent = unsafe { libc::pthread_kill(thread as libc::pthread_t, SIGNAL) };
    assert_eq!(sent, 0);
}

fn change_mask(how: i32) {
    let set = signal_set(1 << (SIGNAL - 1));
    // SAFETY: the set outlives the call, and the old one is not asked for.
    let changed = unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
    assert_eq!(changed, 0);
}

/// Something happens to a member, or to its other end.
fn happen(world: &mut World, scene: &mut Scene, index: usize, (what, len): (u8, u8)) {
    let member = &mut scene.members[index];
    let is_rare = len > 14;
    match (member.kind, what) {
        (_, 7) if is_rare && member.is_open => {
            member.is_open = false;
            let answer = near(world, *member).close(member.fd);
            world.note("close", &answer);
        }
        (Kind::Set | Kind::Timer | Kind::Counter | Kind::Datagram, 6) => {}
        (_, 6) if is_rare && member.other_is_open => {
            member.other_is_open = false;
            let (member, other) = (*member, member.other);
            // The other names of the same connection.
            let same = scene.members.iter_mut().filter(|it| it.other == other);
            same.for_each(|it| it.other_is_open = false);
            let answer = far(world, member).close(other);
            world.note("close the other end", &answer);
        }
        (Kind::Timer, _) => {
            let soon = Timespec { tv_sec: 0, tv_nsec: (what % 2).into() };
            let once = Itimerspec { it_value: soon, it_interval: Timespec::default() };
            timerfd_settime(&scene.timer, TimerfdTimerFlags::empty(), &once).unwrap();
        }
        _ => {
            let member = *member;
            transfer(world, member, (what, len.into()));
        }
    }
}

/// Bytes go in or out, at one end or the other.
fn transfer(world: &mut World, member: Member, (what, len): (u8, usize)) {
    let bytes = vec![b'a' + what; len];
    let Member { kind, fd, other, .. } = member;
    let (near_is_open, far_is_open) = (member.is_open, member.other_is_open);
    match (kind, what) {
        (Kind::Set, _) => {}
        (Kind::Counter, _) if !near_is_open => {}
        (Kind::Counter, 0..3) => {
            let answer = near(world, member).write(fd, &(len as u64).to_ne_bytes());
            world.note("count", &answer);
        }
        (Kind::Counter, 3) => {
            let answer = near(world, member).write(fd, &(u64::MAX - 1).to_ne_bytes());
            world.note("count to the end", &answer);
        }
        (Kind::Counter, _) => {
            let answer = near(world, member).read(fd, 8);
            world.note("read the count", &answer);
        }
        (Kind::Writer, 0 | 1) if near_is_open => {
            let answer = near(world, member).write(fd, &bytes);
            world.note("write", &answer);
        }
        // From the first byte on, so that both count the same pages.
        (Kind::Writer, 2 | 3) if near_is_open && far_is_open => {
            let all = far(world, member).read(other, 1 << 16).map(|bytes| bytes.len());
            let answer = near(world, member).write(fd, &[0; 1 << 16]);
            world.note("fill", &(all, answer));
        }
        (Kind::Writer, 4..) if far_is_open => {
            let pages = if len % 2 == 0 { 4096 } else { 1 << 16 };
            let answer = far(world, member).read(other, pages).map(|bytes| bytes.len());
            world.note("read pages", &answer);
        }
        (Kind::Reader | Kind::Stream | Kind::Datagram, 0..3) if far_is_open => {
            let answer = far(world, member).write(other, &bytes);
            world.note("write at the other end", &answer);
        }
        (Kind::Stream | Kind::Datagram, 3) if near_is_open => {
            let answer = near(world, member).write(fd, &bytes);
            world.note("write", &answer);
        }
        (Kind::Stream | Kind::Datagram, 4) if far_is_open => {
            let answer = far(world, member).read(other, len);
            world.note("read at the other end", &answer);
        }
        (Kind::Reader | Kind::Stream | Kind::Datagram, 3..) if near_is_open => {
            let answer = near(world, member).read(fd, len);
            world.note("read", &answer);
        }
        _ => {}
    }
}

/// Where a member's own calls are made.
fn near(world: &mut World, member: Member) -> &mut dyn Host {
    match member.whose {
        Whose::Hosts => world.host(Server),
        Whose::Process => &mut world.process,
    }
}

/// Where those of its other end are.
fn far(world: &mut World, member: Member) -> &mut dyn Host {
    match (member.whose, member.kind) {
        (Whose::Hosts, Kind::Stream | Kind::Datagram) => world.host(Client),
        _ => near(world, member),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        max_shrink_iters: 200,
        // Each try is a whole run in five places, some of them in real time.
        max_shrink_time: 60_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_programs_with_mixed_sets_are_answered_as_on_linux(
        restarts in any::<bool>(),
        chosen in prop::collection::vec(0..MEMBERS, CHOSEN),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        with_handlers(if restarts { libc::SA_RESTART } else { 0 }, || {
            compare(|world| run(world, &chosen, &steps));
        });
    }
}
