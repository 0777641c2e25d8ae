//! Listeners on shards of our own stack that leave and join under load, on a wire with delay.
//!
//! Each shard has a thread of its own. Every [`PERIOD`] one listener joins and the oldest leaves,
//! so connections wait, and handshakes are under way, at each listener that leaves. The client is a
//! channel at the other end of a pair in memory.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use megapipe::{
    Address, Backend, Channel, Config, ConnectOptions, Event, Handle, LocalNetwork, Placement,
    ServerConfig,
};
use megapipe_link::fault::Faults;
use megapipe_link::{Fault, Link, PairConfig, pair};

use crate::clients::Outcome;
use crate::{PATIENCE, Server};

/// Time between two changes of the listeners.
const PERIOD: Duration = Duration::from_millis(10);
/// Connections of one test, unless `MEGAPIPE_CONNECTIONS` names another number.
const CONNECTIONS: usize = 1000;
/// Connections under way at the same time.
const AT_ONCE: usize = 200;
const SERVER: &str = "10.79.0.2:80";

fn network(link: impl Link + 'static, last: u8, shards: u16) -> LocalNetwork {
    let address = IpAddr::from([10, 79, 0, last]);
    let settings = ServerConfig {
        addresses: vec![(address, 24)],
        shards: Some(shards),
        ..ServerConfig::default()
    };
    LocalNetwork::over(vec![Box::new(link)], settings).expect("one queue")
}

/// What a shard's thread is asked to do; it answers when that is done.
enum Ask {
    Join,
    Leave,
}

/// One shard's thread.
struct Shard {
    asks: Sender<Ask>,
    answers: Receiver<()>,
    thread: JoinHandle<u64>,
}

impl Shard {
    fn start(config: Config) -> Self {
        let ((asks, asked), (answer, answers)) = (channel(), channel());
        let thread = spawn(move || serve(config, &asked, &answer));
        Self { asks, answers, thread }
    }

    fn ask(&self, what: Ask) {
        self.asks.send(what).expect("the shard's thread runs");
        self.answers.recv_timeout(PATIENCE).expect("the shard's thread answers");
    }

    /// Returns how many connections it accepted.
    fn end(self) -> u64 {
        drop(self.asks);
        self.thread.join().expect("the shard's thread ends")
    }
}

fn serve(config: Config, asked: &Receiver<Ask>, answer: &Sender<()>) -> u64 {
    let mut server = Server::of(Channel::create(config).expect("a shard"));
    let address: Address = SERVER.parse().expect("an address");
    loop {
        match asked.try_recv() {
            Ok(ask) => {
                match ask {
                    Ask::Join => drop(server.listen(&address)),
                    Ask::Leave => server.leave(),
                }
                answer.send(()).expect("the test waits");
            }
            Err(TryRecvError::Empty) => server.serve_for(Duration::from_micros(500)),
            Err(TryRecvError::Disconnected) => return server.accepted,
        }
    }
}

/// The client's end: one transaction on each of many connections.
struct Clients {
    channel: Channel,
    open: HashMap<Handle, (u64, Instant)>,
    outcome: Outcome,
}

impl Clients {
    fn begin(&mut self, number: u64) {
        let (address, options) = (SERVER.parse().expect("one"), ConnectOptions::default());
        let handle = self.channel.connect(&address, &options, number).expect("begins");
        self.channel.write(handle, number.to_ne_bytes().to_vec()).expect("is written");
        self.channel.read(handle, 8).expect("is read");
        self.open.insert(handle, (number, Instant::now()));
    }

    fn end(&mut self, handle: Handle, error: Option<String>) {
        if self.open.remove(&handle).is_none() {
            return;
        }
        match error {
            None => self.outcome.served += 1,
            Some(error) => *self.outcome.lost.entry(error).or_default() += 1,
        }
        let _ = self.channel.unregister(handle);
    }

    fn poll(&mut self) {
        let wait = Some(Duration::from_millis(1));
        while let Some(done) = self.channel.dispatch(wait).expect("works") {
            let handle = done.handle;
            let number = self.open.get(&handle).map(|(number, _)| number.to_ne_bytes());
            match done.event {
                Event::Connect(Err(error)) => self.end(handle, Some(format!("connect: {error}"))),
                Event::Write(Err(error)) => self.end(handle, Some(format!("write: {error}"))),
                Event::Read(Err(error)) => self.end(handle, Some(format!("read: {error}"))),
                Event::Read(Ok(bytes)) => {
                    let is_whole = number.is_some_and(|number| *bytes == number);
                    let error = (!is_whole).then(|| format!("{} bytes came", bytes.len()));
                    self.end(handle, error);
                }
                _ => {}
            }
            if self.open.len() < AT_ONCE / 2 {
                return;
            }
        }
        let is_late = |(_, begun): &(u64, Instant)| begun.elapsed() > PATIENCE;
        let late: Vec<Handle> =
            self.open.iter().filter(|(_, it)| is_late(it)).map(|(handle, _)| *handle).collect();
        late.into_iter().for_each(|handle| self.end(handle, Some("no answer".to_owned())));
    }
}

/// Makes `total` connections, reports what became of them, and keeps the link until `end` is gone.
fn run(config: Config, total: usize, report: &Sender<Outcome>, end: &Receiver<()>) {
    let channel = Channel::create(config).expect("one");
    let mut clients = Clients { channel, open: HashMap::new(), outcome: Outcome::default() };
    let mut begun = 0;
    while begun < total || !clients.open.is_empty() {
        while begun < total && clients.open.len() < AT_ONCE {
            begun += 1;
            clients.begin(begun as u64);
        }
        clients.poll();
    }
    report.send(clients.outcome).expect("the test waits");
    // Servers whose link breaks would fail.
    let _ = end.recv();
}

/// Listeners of all shards but one leave and join while clients connect.
fn listeners_leave_and_join(placement: Placement, shards: u16, round_trip_ms: u64) {
    let total = std::env::var("MEGAPIPE_CONNECTIONS").ok().and_then(|count| count.parse().ok());
    let total = total.unwrap_or(CONNECTIONS);
    let name = format!("{placement:?}, {shards} shards, {round_trip_ms} ms");
    let (one, other) = pair(&PairConfig::default()).expect("a pair");
    let delay = Faults { delay: Duration::from_millis(round_trip_ms) / 2, ..Faults::default() };
    let one = Fault::in_real_time(one, 1, delay, delay).expect("a timer");
    let config = |network| Config::default().backend(Backend::Local(network));
    let theirs = network(other, 2, shards);
    let start = |_| Shard::start(config(theirs.clone()).placement(placement));
    let mut away: VecDeque<Shard> = (0..shards).map(start).collect();
    let mut members = VecDeque::new();
    while away.len() > 1 {
        let shard = away.pop_front().expect("more than one");
        shard.ask(Ask::Join);
        members.push_back(shard);
    }
    let ours = network(one, 1, 1);
    let ((report, reported), (end, ended)) = (channel(), channel());
    let clients = spawn(move || run(config(ours), total, &report, &ended));
    let (mut changed, mut leaves) = (Instant::now(), 0);
    let outcome = loop {
        match reported.try_recv() {
            Ok(outcome) => break outcome,
            Err(TryRecvError::Disconnected) => panic!("the clients failed"),
            Err(TryRecvError::Empty) => {}
        }
        sleep(PERIOD.saturating_sub(changed.elapsed()));
        changed = Instant::now();
        let joining = away.pop_front().expect("one is away");
        joining.ask(Ask::Join);
        members.push_back(joining);
        let leaving = members.pop_front().expect("there are members");
        leaving.ask(Ask::Leave);
        away.push_back(leaving);
        leaves += 1;
    };
    let accepted: Vec<u64> = members.into_iter().chain(away).map(Shard::end).collect();
    drop(end);
    clients.join().expect("the clients end");
    println!("{name}: {outcome:?}, {leaves} listeners left, accepted {accepted:?}");
    assert!(outcome.lost.is_empty(), "{name}: {outcome:?}, {leaves} listeners left");
    assert_eq!(outcome.served, total);
}

/// Makes the tests of each placement.
macro_rules! on_each_placement {
    ($($name:ident: $shards:literal, $delay_ms:literal;)+) => {
        on_each_placement!(inline, megapipe::Placement::Inline, $($name: $shards, $delay_ms;)+);
        on_each_placement!(thread, megapipe::Placement::Thread, $($name: $shards, $delay_ms;)+);
        on_each_placement!(core, megapipe::Placement::Core(None), $($name: $shards, $delay_ms;)+);
    };
    ($module:ident, $placement:expr, $($name:ident: $shards:literal, $delay_ms:literal;)+) => {
        mod $module {
            $(#[test]
            fn $name() {
                super::listeners_leave_and_join($placement, $shards, $delay_ms);
            })+
        }
    };
}

on_each_placement! {
    leaving_2_shards_loses_nothing_at_0_ms: 2, 0;
    leaving_2_shards_loses_nothing_at_6_ms: 2, 6;
    leaving_2_shards_loses_nothing_at_200_ms: 2, 200;
    leaving_4_shards_loses_nothing_at_0_ms: 4, 0;
    leaving_4_shards_loses_nothing_at_6_ms: 4, 6;
    leaving_4_shards_loses_nothing_at_200_ms: 4, 200;
}
