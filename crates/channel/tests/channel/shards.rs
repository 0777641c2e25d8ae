//! Many shards of our own stack in one process, over one queue of a link: who gets a connection,
//! and who refuses it.
//!
//! Read first: `megapipe_service::rx_mux`, `steering/bindings.rs` there.
//!
//! Both ends are channels of this process, on the two ends of a pair. A thread that turns them all
//! in turn stands for as many cores.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Backend, Channel, Completion, Config, ConnectOptions, Connection, CpuMask,
    CreateError, DatagramSharing, Event, Handle, ListenOptions, LocalNetwork, OpError, Placement,
    RegisterError, ServerConfig, SocketKind,
};
use megapipe_link::{Link, PairConfig, pair};

use crate::scene::PATIENCE;

const SERVER: &str = "10.78.0.2:80";
/// So many connections that of two who take what a hash gives them neither gets as few as five but
/// once in 10¹⁶ times.
const MANY: usize = 80;

fn network(link: impl Link + 'static, last: u8, shards: u16) -> LocalNetwork {
    let address = IpAddr::from([10, 78, 0, last]);
    let settings = ServerConfig {
        addresses: vec![(address, 24)],
        shards: Some(shards),
        ..ServerConfig::default()
    };
    LocalNetwork::over(vec![Box::new(link)], settings).expect("one queue")
}

/// Makes one test of each function for each place that the stacks can run at.
macro_rules! on_each_placement {
    ($($fact:ident),+ $(,)?) => {
        mod inline {
            $(#[test]
            fn $fact() {
                super::$fact(megapipe::Placement::Inline);
            })+
        }
        mod thread {
            $(#[test]
            fn $fact() {
                super::$fact(megapipe::Placement::Thread);
            })+
        }
        mod core {
            $(#[test]
            fn $fact() {
                super::$fact(megapipe::Placement::Core(None));
            })+
        }
    };
}

on_each_placement![
    every_shard_serves_its_share_and_every_byte_finds_its_way,
    a_listener_of_one_shard_accepts_for_all,
    connections_go_on_where_they_are_when_listeners_come_and_go,
    connections_survive_when_all_shards_listened_and_one_leaves,
    unseen_connections_go_to_a_sibling_when_their_channel_ends,
    masks_partition_a_listener_and_cores_outside_of_them_refuse,
    a_datagram_reaches_the_shard_that_has_the_port_and_ports_are_had_once,
    datagrams_to_an_address_of_several_shards_are_spread_over_them,
];

/// The channels of a client, host 1, and of a server, host 2.
struct Hosts {
    clients: Vec<Channel>,
    servers: Vec<Channel>,
    /// Completions of all channels that no step has taken yet.
    done: Vec<(Side, usize, Completion)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

impl Hosts {
    fn new(clients: u16, servers: u16, placement: Placement) -> Self {
        let (one, other) = pair(&PairConfig::default()).expect("a pair");
        let channels = |network: LocalNetwork| {
            let config = Config::default().backend(Backend::Local(network.clone()));
            let config = config.placement(placement);
            let channels = (0..network.shards()).map(|_| Channel::create(config.clone()));
            channels.collect::<Result<Vec<_>, _>>().expect("a shard for each")
        };
        Self {
            clients: channels(network(one, 1, clients)),
            servers: channels(network(other, 2, servers)),
            done: Vec::new(),
        }
    }

    /// One turn of each channel.
    fn poll(&mut self) {
        let sides = [(Side::Client, &mut self.clients), (Side::Server, &mut self.servers)];
        for (side, channels) in sides {
            for (index, channel) in channels.iter_mut().enumerate() {
                while let Some(done) = channel.dispatch(Some(Duration::ZERO)).expect("works") {
                    self.done.push((side, index, done));
                }
            }
        }
    }

    /// Turns until `found` makes something of what has completed.
    #[track_caller]
    fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Vec<(Side, usize, Completion)>) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = found(&mut self.done) {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.done);
            self.poll();
        }
    }

    /// The next completion of a handle of one side.
    #[track_caller]
    fn next(&mut self, side: Side, handle: Handle) -> Event {
        self.until("a completion", |done| {
            let is_it =
                |(at, _, done): &(Side, usize, Completion)| *at == side && done.handle == handle;
            // That a write was taken says nothing here.
            done.retain(|done| {
                !(is_it(done) && matches!(done.2.event, Event::Write(Ok(_)) | Event::SendTo(Ok(_))))
            });
            let place = done.iter().position(is_it)?;
            Some(done.remove(place).2.event)
        })
    }

    /// Makes a server's channel listen and accept without end.
    fn listen(&mut self, server: usize, options: &ListenOptions) -> Handle {
        let channel = &mut self.servers[server];
        let address = SERVER.parse().expect("an address");
        let listener = channel.listen(&address, options, 0).expect("listens");
        channel.accept(listener, Accept::lwsocket(10_000)).expect("accepts");
        listener
    }

    /// Connects `count` times from a client's channel. How many of them each server's channel
    /// accepted, and how many were refused.
    fn connect(&mut self, client: usize, count: usize) -> (Vec<usize>, usize) {
        let address = SERVER.parse().expect("an address");
        let options = ConnectOptions::default();
        let mut tally = (vec![0; self.servers.len()], 0);
        for _ in 0..count {
            let channel = &mut self.clients[client];
            let handle = channel.connect(&address, &options, 0).expect("begins");
            match self.next(Side::Client, handle) {
                Event::Connect(Ok(())) => {
                    let server = self.until("accepting", |done| {
                        let is_it = |(_, _, done): &(Side, usize, Completion)| {
                            matches!(done.event, Event::Accept(Ok(_)))
                        };
                        let place = done.iter().position(is_it)?;
                        Some(done.remove(place).1)
                    });
                    tally.0[server] += 1;
                }
                Event::Connect(Err(OpError::Refused)) => tally.1 += 1,
                other => panic!("{other:?}"),
            }
        }
        tally
    }
}

fn every_shard_serves_its_share_and_every_byte_finds_its_way(placement: Placement) {
    // So many that chance leaves no shard with fifteen of them.
    const CONNECTIONS: u8 = 240;
    let mut hosts = Hosts::new(2, 3, placement);
    for server in 0..3 {
        let channel = &mut hosts.servers[server];
        let address = SERVER.parse().unwrap();
        let listener = channel.listen(&address, &ListenOptions::default(), 0).unwrap();
        channel.accept(listener, Accept::lwsocket(10_000).first_read(100)).unwrap();
    }
    let mut sent = HashMap::new();
    for number in 0..CONNECTIONS {
        let client = usize::from(number % 2);
        let channel = &mut hosts.clients[client];
        let address = SERVER.parse().unwrap();
        let handle = channel.connect(&address, &ConnectOptions::default(), number.into()).unwrap();
        channel.write(handle, vec![number; 50]).unwrap();
        channel.read(handle, 100).unwrap();
        sent.insert((client, number), ());
    }
    let (mut echoed, mut shares, start) = (0, [0; 3], Instant::now());
    while echoed < CONNECTIONS {
        assert!(start.elapsed() < PATIENCE, "{echoed} came back");
        hosts.poll();
        for (side, index, done) in std::mem::take(&mut hosts.done) {
            match (side, done.event) {
                (Side::Server, Event::Accept(Ok(_))) => shares[index] += 1,
                (Side::Server, Event::Read(Ok(bytes))) => {
                    hosts.servers[index].write(done.handle, bytes).unwrap();
                }
                (Side::Client, Event::Read(Ok(bytes))) => {
                    assert_eq!(*bytes, vec![done.cookie as u8; 50]);
                    assert_eq!(sent.remove(&(index, done.cookie as u8)), Some(()));
                    echoed += 1;
                }
                (_, Event::Connect(Ok(())) | Event::Write(Ok(50))) => {}
                (_, other) => panic!("{other:?}"),
            }
        }
    }
    assert!(shares.iter().all(|share| *share > 15), "{shares:?}");
}

fn a_listener_of_one_shard_accepts_for_all(placement: Placement) {
    let mut hosts = Hosts::new(1, 3, placement);
    hosts.listen(1, &ListenOptions::default());
    assert_eq!(hosts.connect(0, 30), (vec![0, 30, 0], 0));
}

fn connections_go_on_where_they_are_when_listeners_come_and_go(placement: Placement) {
    let mut hosts = Hosts::new(1, 2, placement);
    let first = hosts.listen(0, &ListenOptions::default());
    let address = SERVER.parse().unwrap();
    let mut old = Vec::new();
    for _ in 0..10 {
        let handle = hosts.clients[0].connect(&address, &ConnectOptions::default(), 0).unwrap();
        let Event::Connect(Ok(())) = hosts.next(Side::Client, handle) else { panic!() };
        let Event::Accept(Ok(accepted)) = hosts.next(Side::Server, first) else { panic!() };
        let Connection::Lwsocket(accepted) = accepted.connection else { panic!() };
        old.push((handle, accepted));
    }
    hosts.listen(1, &ListenOptions::default());
    let (shares, refused) = hosts.connect(0, MANY);
    assert!(shares[0] > 5 && shares[1] > 5 && refused == 0, "{shares:?}");
    hosts.servers[0].unregister(first).unwrap();
    assert_eq!(hosts.connect(0, 10), (vec![0, 10], 0));
    for (client, server) in old {
        hosts.servers[0].read(server, 10).unwrap();
        hosts.clients[0].write(client, "still here").unwrap();
        let Event::Read(Ok(bytes)) = hosts.next(Side::Server, server) else { panic!() };
        assert_eq!(*bytes, *b"still here");
    }
}

/// While all shards listen no packet is looked up, and none is when connections began.
fn connections_survive_when_all_shards_listened_and_one_leaves(placement: Placement) {
    let mut hosts = Hosts::new(1, 2, placement);
    let listeners = [0, 1].map(|server| hosts.listen(server, &ListenOptions::default()));
    let address = SERVER.parse().unwrap();
    let mut open = Vec::new();
    for _ in 0..20 {
        let handle = hosts.clients[0].connect(&address, &ConnectOptions::default(), 0).unwrap();
        let Event::Connect(Ok(())) = hosts.next(Side::Client, handle) else { panic!() };
        let accepted = hosts.until("accepting", |done| {
            let is_it = |it: &(Side, usize, Completion)| matches!(it.2.event, Event::Accept(Ok(_)));
            let place = done.iter().position(is_it)?;
            let (_, server, done) = done.remove(place);
            match done.event {
                Event::Accept(Ok(accepted)) => Some((server, accepted.connection)),
                _ => None,
            }
        });
        let (server, Connection::Lwsocket(accepted)) = accepted else { panic!() };
        open.push((handle, server, accepted));
    }
    assert!(open.iter().any(|it| it.1 == 0) && open.iter().any(|it| it.1 == 1));
    hosts.servers[0].unregister(listeners[0]).unwrap();
    for (client, server, accepted) in open {
        hosts.servers[server].read(accepted, 10).unwrap();
        hosts.clients[0].write(client, "still here").unwrap();
        let bytes = hosts.until("bytes", |done| {
            let is_it = |it: &(Side, usize, Completion)| {
                (it.0, it.1, it.2.handle) == (Side::Server, server, accepted)
            };
            let place = done.iter().position(is_it)?;
            Some(done.remove(place).2.event)
        });
        let Event::Read(Ok(bytes)) = bytes else { panic!("{bytes:?}") };
        assert_eq!(*bytes, *b"still here");
    }
}

/// Accepted and not handed out, held, or in the stack's queue: with the bytes that came, in order.
fn unseen_connections_go_to_a_sibling_when_their_channel_ends(placement: Placement) {
    let mut hosts = Hosts::new(1, 2, placement);
    let address: Address = SERVER.parse().unwrap();
    for channel in &mut hosts.servers {
        let listener = channel.listen(&address, &ListenOptions::default(), 0).unwrap();
        channel.accept(listener, Accept::lwsocket(30).first_read(100)).unwrap();
    }
    for number in 0..MANY as u64 {
        let channel = &mut hosts.clients[0];
        let handle = channel.connect(&address, &ConnectOptions::default(), number).unwrap();
        channel.write(handle, vec![number as u8; 3000]).unwrap();
    }
    let (mut connected, mut seen, start) = (0, 0, Instant::now());
    while connected < MANY {
        assert!(start.elapsed() < PATIENCE, "{connected} of {MANY} connected");
        while let Some(done) = hosts.clients[0].dispatch(Some(Duration::ZERO)).unwrap() {
            connected += usize::from(matches!(done.event, Event::Connect(Ok(()))));
        }
        // Few completions are looked at for many connections that come. A stack on a thread of its
        // own needs no dispatch.
        if placement != Placement::Inline && seen >= MANY / 8 {
            continue;
        }
        for server in &mut hosts.servers {
            let done = server.dispatch(Some(Duration::ZERO)).unwrap();
            let is_accept = done.is_some_and(|done| matches!(done.event, Event::Accept(Ok(_))));
            seen += usize::from(is_accept);
        }
    }
    assert!(seen < MANY / 2, "{seen} of {MANY} were seen");
    let first = hosts.servers.remove(0);
    drop(first);
    let (mut whole, mut unread) = (0, HashMap::new());
    while whole + seen < MANY {
        assert!(start.elapsed() < 2 * PATIENCE, "{whole} and {seen} of {MANY}: {unread:?}");
        let channel = &mut hosts.servers[0];
        while let Some(done) = channel.dispatch(Some(Duration::ZERO)).unwrap() {
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    let Connection::Lwsocket(handle) = accepted.connection else { panic!() };
                    unread.insert(handle, Vec::new());
                    channel.accept(done.handle, Accept::lwsocket(1).first_read(100)).unwrap();
                }
                Event::Read(Ok(bytes)) => {
                    let Some(all) = unread.get_mut(&done.handle) else { continue };
                    all.extend_from_slice(&bytes);
                    if all.len() < 3000 {
                        channel.read(done.handle, 100).unwrap();
                        continue;
                    }
                    let first = all[0];
                    assert!(all.len() == 3000 && all.iter().all(|byte| *byte == first));
                    whole += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        while hosts.clients[0].dispatch(Some(Duration::ZERO)).unwrap().is_some() {}
    }
    assert_eq!(whole + seen, MANY);
}

/// Two shards on cores that the test chooses, if this machine has them.
fn two_cores() -> Option<[usize; 2]> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    let mut cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
    Some([cores.next()?, cores.next()?])
}

fn masks_partition_a_listener_and_cores_outside_of_them_refuse(placement: Placement) {
    let Some([a, b]) = two_cores() else { return println!("skipped: one core is not enough") };
    let (one, other) = pair(&PairConfig::default()).unwrap();
    let network = network(other, 2, 2);
    let create = |core| {
        let config = Config::default().backend(Backend::Local(network.clone()));
        let config = config.placement(placement).core(core);
        Channel::create(config).expect("a shard")
    };
    let mut hosts = Hosts {
        servers: vec![create(a), create(b)],
        clients: vec![
            Channel::create(Config::default().backend(Backend::Local(self::network(one, 1, 1))))
                .unwrap(),
        ],
        done: Vec::new(),
    };
    let mask = |core| ListenOptions::default().cpu_mask(CpuMask::cpu(core));
    let first = hosts.listen(0, &mask(a));
    assert_eq!(hosts.servers[0].explain(first).unwrap().cpu_mask, Some(CpuMask::cpu(a)));
    let (shares, refused) = hosts.connect(0, MANY);
    assert!(shares[0] > 5 && shares[1] == 0 && refused > 5, "{shares:?}, {refused} refused");

    let taken = hosts.servers[1].listen(&SERVER.parse().unwrap(), &mask(a), 0).unwrap_err();
    assert!(taken.to_string().contains(&a.to_string()), "{taken}");
    let second = hosts.listen(1, &mask(b));
    let (shares, refused) = hosts.connect(0, MANY);
    assert!(shares[0] > 5 && shares[1] > 5 && refused == 0, "{shares:?}, {refused} refused");

    // The other way round, step by step: no two may have a core at once.
    let overlap = hosts.servers[0].set_cpu_mask(first, CpuMask::cpus([a, b]));
    assert!(matches!(overlap, Err(RegisterError::MaskOverlaps { core }) if core == b));
    let nothing = hosts.servers[0].set_cpu_mask(first, CpuMask::EMPTY);
    assert!(matches!(nothing, Err(RegisterError::MaskNotPossible)));
    hosts.servers[1].unregister(second).unwrap();
    hosts.servers[0].set_cpu_mask(first, CpuMask::cpus([a, b])).unwrap();
    assert_eq!(hosts.connect(0, 20), (vec![20, 0], 0));
    hosts.servers[0].set_cpu_mask(first, CpuMask::cpu(b)).unwrap();
    let (shares, refused) = hosts.connect(0, MANY);
    assert!(shares[0] > 5 && refused > 5 && shares[0] + refused == MANY, "{shares:?} {refused}");
}

fn a_datagram_reaches_the_shard_that_has_the_port_and_ports_are_had_once(placement: Placement) {
    let mut hosts = Hosts::new(1, 3, placement);
    let at: Address = "10.78.0.2:53".parse().unwrap();
    let endpoint = hosts.servers[2].socket(SocketKind::Udp4, Some(&at), 0).unwrap();
    assert!(hosts.servers[0].socket(SocketKind::Udp4, Some(&at), 0).is_err());
    for number in 0..20_u8 {
        let sender = hosts.clients[0].socket(SocketKind::Udp4, None, 0).unwrap();
        hosts.clients[0].sendto(sender, vec![number; 3], &at).unwrap();
        hosts.servers[2].recvfrom(endpoint, 10).unwrap();
        let Event::RecvFrom(Ok(datagram)) = hosts.next(Side::Server, endpoint) else { panic!() };
        assert_eq!(*datagram.data, [number; 3]);
        // And back, to a port that the shard's hash has nothing to do with.
        let from = datagram.from.expect("a sender");
        hosts.clients[0].recvfrom(sender, 10).unwrap();
        hosts.servers[2].sendto(endpoint, vec![number; 4], &from).unwrap();
        let Event::RecvFrom(Ok(datagram)) = hosts.next(Side::Client, sender) else { panic!() };
        assert_eq!(*datagram.data, [number; 4]);
    }
    let mut ports = Vec::new();
    for server in &mut hosts.servers {
        for _ in 0..5 {
            let handle = server.socket(SocketKind::Udp4, None, 0).unwrap();
            ports.push(server.local_address(handle).unwrap().as_inet().unwrap().port());
        }
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 15, "no two shards chose the same");
}

fn datagrams_to_an_address_of_several_shards_are_spread_over_them(placement: Placement) {
    let mut hosts = Hosts::new(1, 2, placement);
    let at: SocketAddr = "10.78.0.2:53".parse().unwrap();
    let spread = DatagramSharing { is_shared: true, spreads: true, ..DatagramSharing::default() };
    let shared = DatagramSharing { spreads: false, ..spread };
    let bind = |hosts: &mut Hosts, shard: usize, sharing| {
        hosts.servers[shard].bind_datagram(at, sharing, 0)
    };
    let first = bind(&mut hosts, 0, spread).unwrap();
    let second = bind(&mut hosts, 0, shared).unwrap();
    hosts.servers[0].unregister(second).unwrap();
    assert!(bind(&mut hosts, 1, shared).is_err(), "one shard's newest is not another's");
    let endpoints = [
        (0, first),
        (0, bind(&mut hosts, 0, spread).unwrap()),
        (1, bind(&mut hosts, 1, spread).unwrap()),
    ];
    for (shard, endpoint) in endpoints {
        hosts.servers[shard].recvfrom(endpoint, 10).unwrap();
    }
    let to = Address::Inet(at);
    let hears = |hosts: &mut Hosts, sender| {
        hosts.clients[0].sendto(sender, vec![1; 3], &to).unwrap();
        let (shard, endpoint) = hosts.until("a datagram", |done| {
            let is_it = |(side, _, done): &(Side, usize, Completion)| {
                *side == Side::Server && matches!(done.event, Event::RecvFrom(Ok(_)))
            };
            let place = done.iter().position(is_it)?;
            let (_, shard, done) = done.remove(place);
            Some((shard, done.handle))
        });
        hosts.servers[shard].recvfrom(endpoint, 10).unwrap();
        endpoints.iter().position(|it| *it == (shard, endpoint)).unwrap()
    };
    let mut counts = [0; 3];
    // So many that a fair choice leaves no shard with so few, but once in the age of the universe.
    for _ in 0..160 {
        let sender = hosts.clients[0].socket(SocketKind::Udp4, None, 0).unwrap();
        let chosen = hears(&mut hosts, sender);
        counts[chosen] += 1;
        assert_eq!(hears(&mut hosts, sender), chosen, "a flow stays where it is");
    }
    assert!(counts.iter().all(|count| *count > 3), "{counts:?}");
    // A shard whose last endpoint goes leaves the address to the other.
    for (shard, endpoint) in &endpoints[..2] {
        hosts.servers[*shard].unregister(*endpoint).unwrap();
    }
    for _ in 0..10 {
        let sender = hosts.clients[0].socket(SocketKind::Udp4, None, 0).unwrap();
        assert_eq!(hears(&mut hosts, sender), 2);
    }
}

#[test]
fn more_channels_than_shards_are_refused() {
    let (one, _other) = pair(&PairConfig::default()).unwrap();
    let config = Config::default().backend(Backend::Local(network(one, 1, 2)));
    let channels =
        [Channel::create(config.clone()).unwrap(), Channel::create(config.clone()).unwrap()];
    assert!(matches!(Channel::create(config).err(), Some(CreateError::NoQueue)));
    for (shard, channel) in channels.iter().enumerate() {
        let reason = &channel.report().reason;
        assert!(reason.contains(&format!("shard {shard} of 2 on ")), "{reason}");
        assert!(reason.contains("2 shards over 1 queue"), "{reason}");
    }
}

/// SYNs that were steered to a shard before its listener left do not get a RST from it: they are
/// sent again, and reach the shard that goes on listening.
#[test]
fn syn_on_its_way_to_a_leaving_listener_is_not_refused() {
    let mut hosts = Hosts::new(1, 2, Placement::Inline);
    let (address, options) = (SERVER.parse::<Address>().expect("one"), ListenOptions::default());
    let listen = |channel: &mut Channel| {
        let listener = channel.listen(&address, &options, 0).expect("listens");
        channel.accept(listener, Accept::lwsocket(u32::MAX)).expect("accepts");
        listener
    };
    let listeners: Vec<Handle> = hosts.servers.iter_mut().map(listen).collect();
    for _ in 0..MANY {
        hosts.clients[0].connect(&address, &ConnectOptions::default(), 0).expect("starts");
    }
    // The client sends its SYNs, and the shard that stays steers those of the other to it.
    for _ in 0..10 {
        let Hosts { clients, servers, done } = &mut hosts;
        for (side, channel) in [(Side::Client, &mut clients[0]), (Side::Server, &mut servers[0])] {
            while let Some(it) = channel.dispatch(Some(Duration::ZERO)).expect("works") {
                done.push((side, 0, it));
            }
        }
    }
    hosts.servers[1].unregister(listeners[1]).expect("listened until now");
    let (mut connected, start) = (0, Instant::now());
    while connected < MANY {
        assert!(start.elapsed() < PATIENCE, "{connected} of {MANY} connected");
        hosts.poll();
        for (side, _, done) in hosts.done.drain(..) {
            match done.event {
                Event::Connect(Ok(())) if side == Side::Client => connected += 1,
                Event::Accept(Ok(_)) => {}
                other => panic!("{connected} of {MANY} connected, then {other:?}"),
            }
        }
    }
}
