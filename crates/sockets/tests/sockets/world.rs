//! Where a program runs: two hosts that reach each other, on each system; and what it wrote down.
//!
//! A program is a function of a [`World`]. It calls, and each answer goes into the log. Linux's log
//! is what the others' have to be.

use std::fmt::{Debug, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use megapipe::{
    Backend, Clock, CreateError, DriverChoice, LocalNetwork, LoopbackOwner, Placement, ServerConfig,
};
use megapipe_link::{Link, LinkMedium, PairConfig, pair};
use megapipe_sockets::{Config, Context};

use crate::host::{Answer, Ctl, Fd, Host};
use crate::linux::Linux;
use crate::{daemon, namespace, turns};

/// Rounds of settling, in which both hosts hear of everything that is on its way.
const ROUNDS: usize = 6;
/// Times that a world settles for one thing that has to come.
const SETTLES_MAX: usize = 1000;
/// How much longer than usual a world settles, one try after the other: what is still on its way
/// after a short while depends on who else has the processor, and answers must not. From the second
/// try on it also waits until every thread has had the processor, however long that takes.
const PATIENCES: [u32; 3] = [1, 5, 40];

/// Where our own stack runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StackPlace {
    /// In the program that has the sockets.
    Program(Placement),
    /// In a daemon, one for each host.
    Service,
}

pub(crate) const STACK_PLACES: [StackPlace; 4] = [
    StackPlace::INLINE,
    StackPlace::THREAD,
    StackPlace::Program(Placement::Core(None)),
    StackPlace::Service,
];

impl StackPlace {
    pub(crate) const INLINE: Self = Self::Program(Placement::Inline);
    pub(crate) const THREAD: Self = Self::Program(Placement::Thread);

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Program(placement) => placement.name(),
            Self::Service => "service",
        }
    }
}

/// A side of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}
pub(crate) use Side::{Client, Server};

/// Two hosts, and the log.
pub(crate) struct World {
    hosts: [Box<dyn Host>; 2],
    /// Descriptors of the process, which are Linux's everywhere; hosts watch them by number.
    pub(crate) process: Linux,
    ips: [IpAddr; 2],
    ips6: [IpAddr; 2],
    patience: u32,
    pub(crate) log: String,
}

impl World {
    pub(crate) fn host(&mut self, side: Side) -> &mut dyn Host {
        &mut *self.hosts[side as usize]
    }

    pub(crate) fn address(&self, side: Side, port: u16) -> SocketAddr {
        SocketAddr::new(self.ips[side as usize], port)
    }

    pub(crate) fn address6(&self, side: Side, port: u16) -> SocketAddr {
        SocketAddr::new(self.ips6[side as usize], port)
    }

    /// A side's IPv4 address as an IPv6 socket has it.
    pub(crate) fn mapped(&self, side: Side, port: u16) -> SocketAddr {
        match self.ips[side as usize] {
            IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), port),
            ip => SocketAddr::new(ip, port),
        }
    }

    /// An address in words that are the same everywhere. On Linux both sides are one host.
    pub(crate) fn words(&self, address: SocketAddr) -> String {
        for side in [Server, Client] {
            for (ip, words) in [
                (self.address(side, 0), "IPv4"),
                (self.mapped(side, 0), "mapped IPv4"),
                (self.address6(side, 0), "IPv6"),
            ] {
                if ip.ip() == address.ip() {
                    return words.to_owned();
                }
            }
        }
        address.ip().to_string()
    }

    /// Writes an answer down.
    pub(crate) fn note(&mut self, what: &str, answer: &dyn Debug) {
        writeln!(self.log, "{what}: {answer:?}").expect("a string takes anything");
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..ROUNDS {
            let patience = self.patience;
            for host in &mut self.hosts {
                host.settle(patience);
                if patience > PATIENCES[0] {
                    turns::let_all_have_one();
                }
            }
        }
    }

    /// How much longer than usual to wait for what comes by itself.
    pub(crate) const fn patience(&self) -> u32 {
        self.patience
    }

    // -- steps of programs

    /// A TCP socket whose calls do not wait.
    pub(crate) fn tcp(&mut self, side: Side) -> Fd {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        self.host(side).socket(libc::AF_INET, kind, 0).expect("a socket can be had")
    }

    /// A listening socket, and its address.
    pub(crate) fn listener(&mut self, side: Side, backlog: i32) -> (Fd, SocketAddr) {
        let fd = self.tcp(side);
        let any_port = self.address(side, 0);
        self.host(side).bind(fd, any_port).expect("an address can be had");
        self.host(side).listen(fd, backlog).expect("it can listen");
        let address = self.host(side).getsockname(fd).expect("it has a name");
        (fd, address)
    }

    /// A connection: the server's end, then the client's.
    pub(crate) fn connection(&mut self) -> (Fd, Fd) {
        let (listener, address) = self.listener(Server, 8);
        let client = self.tcp(Client);
        let begun = self.host(Client).connect(client, Some(address));
        assert_eq!(begun, Err(libc::EINPROGRESS));
        let server = self.accept(listener);
        self.host(Server).close(listener).expect("it is open");
        self.until_there(|world| match world.host(Client).connect(client, Some(address)) {
            Err(libc::EALREADY) => Err(libc::EAGAIN),
            answer => answer,
        });
        (server, client)
    }

    /// The server's next connection, when it comes.
    pub(crate) fn accept(&mut self, listener: Fd) -> Fd {
        self.accept_at(Server, listener)
    }

    /// The same of either side.
    pub(crate) fn accept_at(&mut self, side: Side, listener: Fd) -> Fd {
        self.until_there(|world| world.host(side).accept4(listener, libc::SOCK_NONBLOCK))
    }

    /// What a call answers as soon as it would not have to wait.
    pub(crate) fn until_there<T>(&mut self, mut call: impl FnMut(&mut Self) -> Answer<T>) -> T {
        for _ in 0..SETTLES_MAX {
            self.settle();
            match call(self) {
                Err(libc::EAGAIN) => {}
                answer => return answer.expect("it would have to wait, or is done"),
            }
        }
        panic!("it never came")
    }

    /// Small segments leave at once.
    pub(crate) fn no_delay(&mut self, side: Side, fd: Fd) {
        let on = 1_i32.to_ne_bytes();
        let set = self.host(side).setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
        set.expect("any connection takes it");
    }

    /// A set that watches one descriptor, which is its data.
    pub(crate) fn watch(&mut self, side: Side, fd: Fd, events: i32) -> Fd {
        let epoll = self.host(side).epoll_create1(0).expect("a set can be had");
        let event = (events as u32, 7);
        self.host(side).epoll_ctl(epoll, Ctl::Add, fd, event).expect("it can be watched");
        epoll
    }

    /// Writes down what a set tells.
    pub(crate) fn note_events(&mut self, what: &str, side: Side, epoll: Fd) {
        self.settle();
        let told = self.host(side).epoll_wait(epoll, 16).map(|events| named(&events));
        self.note(what, &told);
    }

    pub(crate) fn note_recv(&mut self, what: &str, side: Side, fd: Fd, len: usize, flags: i32) {
        self.settle();
        let answer: Answer<String> =
            self.host(side).recv(fd, len, flags).map(|bytes| bytes.escape_ascii().to_string());
        self.note(what, &answer);
    }

    pub(crate) fn note_send(&mut self, what: &str, side: Side, fd: Fd, bytes: &[u8], flags: i32) {
        let answer = self.host(side).send(fd, bytes, flags);
        self.settle();
        self.note(what, &answer);
    }
}

/// Events by their names.
pub(crate) fn named(events: &[(u32, u64)]) -> Vec<(String, u64)> {
    let name = |bits: u32| {
        let events = megapipe_sockets::Events::from_bits_retain(bits);
        events.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join("|")
    };
    events.iter().map(|(bits, data)| (name(*bits), *data)).collect()
}

/// Numbers that the process does not reach, so that lower ones are its own.
fn numbered(config: Config) -> Config {
    config.first_descriptor(1 << 20).process_below_first(true)
}

fn on_linux() -> World {
    let ips = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from);
    World {
        hosts: [Box::new(Linux::default()), Box::new(Linux::default())],
        process: Linux::default(),
        ips,
        ips6: [IpAddr::V6(Ipv6Addr::LOCALHOST); 2],
        patience: 1,
        log: String::new(),
    }
}

fn on_kernel(driver: DriverChoice) -> Result<World, CreateError> {
    let host = || {
        let channel = megapipe::Config::default().driver(driver);
        match Context::create(numbered(Config::default()).channel(channel)) {
            Ok(context) => Ok(Box::new(context) as Box<dyn Host>),
            Err(megapipe_sockets::CreateError::Channel(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    };
    Ok(World { hosts: [host()?, host()?], ..on_linux() })
}

/// The hosts' addresses on our own stack.
pub(crate) const STACK_IPS: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

const STACK_IPS6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)];

/// Two hosts with our own stack, on the two ends of a link. Daemons that served the calling thread
/// before are gone.
pub(crate) fn stack_configs(clock: &Clock, place: StackPlace) -> [Config; 2] {
    // As loopback, without neighbours to be asked for first.
    let link = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
    let (one, other) = pair(&link).expect("a pair can be had");
    let network = |link: Box<dyn Link>, side: usize| {
        let addresses = vec![(STACK_IPS[side].into(), 24), (STACK_IPS6[side].into(), 64)];
        let mut settings = ServerConfig { addresses, ..ServerConfig::default() };
        settings.connections = 4096;
        settings.loopback = LoopbackOwner::Stack;
        settings.waits.spin = Duration::ZERO;
        settings.clock = clock.clone();
        LocalNetwork::over(vec![link], settings).expect("one queue")
    };
    let networks = [network(Box::new(one), 0), network(Box::new(other), 1)];
    let backends = match place {
        StackPlace::Program(_) => networks.map(Backend::Local),
        StackPlace::Service => daemon::serve(networks).map(Backend::Service),
    };
    backends.map(|backend| {
        let mut channel = megapipe::Config::default().backend(backend);
        if let StackPlace::Program(placement) = place {
            channel.placement = placement;
        }
        Config::default().channel(channel).clock(clock.clone())
    })
}

pub(crate) fn on_stack(place: StackPlace) -> World {
    let hosts = stack_configs(&Clock::new(), place).map(|config| {
        Box::new(Context::create(numbered(config)).expect("the stack can be had")) as Box<dyn Host>
    });
    let (ips, ips6) = (STACK_IPS.map(IpAddr::from), STACK_IPS6.map(IpAddr::from));
    World { hosts, ips, ips6, ..on_linux() }
}

/// A world on our own stack that is compared with nothing: no second try follows, so it is patient.
pub(crate) fn alone(place: StackPlace) -> World {
    World { patience: PATIENCES[PATIENCES.len() - 1], ..on_stack(place) }
}

/// Runs a program on Linux and on ours, and compares what each wrote down.
pub(crate) fn compare(program: impl Fn(&mut World)) {
    compare_on(&[("io_uring", DriverChoice::Uring), ("epoll", DriverChoice::Epoll)], program);
}

/// The same with some of the kernel's drivers only.
pub(crate) fn compare_on(drivers: &[(&str, DriverChoice)], program: impl Fn(&mut World)) {
    compare_in(drivers, &STACK_PLACES, program);
}

/// The same with some places of our own stack only.
pub(crate) fn compare_in(
    drivers: &[(&str, DriverChoice)],
    places: &[StackPlace],
    program: impl Fn(&mut World),
) {
    namespace::enter_own();
    let mut comparison = Comparison { program, linux: [const { None }; PATIENCES.len()] };
    for (name, driver) in drivers {
        match on_kernel(*driver) {
            Ok(_) => comparison.check(&format!("on the kernel by {name}"), || {
                on_kernel(*driver).expect("it could be had just now")
            }),
            Err(CreateError::DriverUnavailable { reason, .. }) => {
                println!("skipped: {name}: {reason}");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    for place in places.iter().copied() {
        let name = format!("on our own stack, {}", place.name());
        comparison.check(&name, || on_stack(place));
    }
}

/// A program, and what it wrote down on Linux for each patience.
struct Comparison<P> {
    program: P,
    linux: [Option<String>; PATIENCES.len()],
}

impl<P: Fn(&mut World)> Comparison<P> {
    fn run(&self, world: World, patience: u32) -> String {
        let mut world = World { patience, ..world };
        (self.program)(&mut world);
        assert!(!world.log.is_empty(), "a program that writes nothing down shows nothing");
        world.log
    }

    /// Fails unless the logs agree, given time.
    fn check(&mut self, place: &str, world: impl Fn() -> World) {
        for (step, patience) in PATIENCES.into_iter().enumerate() {
            // Where a program fails by itself, this says where.
            println!("{place}");
            let ours = self.run(world(), patience);
            if self.linux[step].is_none() {
                self.linux[step] = Some(self.run(on_linux(), patience));
            }
            let linux = self.linux[step].as_ref().expect("it ran just now");
            if step + 1 == PATIENCES.len() {
                assert_eq!(&ours, linux, "{place}");
            }
            if ours == *linux {
                return;
            }
            println!("{place}: once more with longer patience than {patience}");
        }
    }
}
