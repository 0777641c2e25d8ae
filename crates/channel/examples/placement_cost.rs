//! What a transaction costs a server on our own stack by placement, where the server and its stack
//! have one core: in CPU time, or in instructions under callgrind.
//!
//! `cargo build --release -p megapipe --example placement_cost`, then
//! `taskset -c 1 target/release/examples/placement_cost core echo 256 500000`: placement (`inline`
//! or `core`), what is exchanged (`echo`: on connections that stay; `short`: one transaction on
//! each), connections, transactions. It prints the CPU time of a transaction in nanoseconds at all
//! threads but the client's. Under `valgrind --tool=callgrind --separate-threads=yes`, two runs of
//! different length give the instructions of the transactions between them.
//!
//! The client is a channel of a thread on core 0, behind a memif. All threads sleep when they have
//! nothing to do.

use std::error::Error;
use std::time::Duration;

use megapipe::{
    Accept, Address, Backend, Channel, Completion, Config, ConnectOptions, Event, Handle,
    ListenOptions, LocalNetwork, Placement, ServerConfig,
};
use megapipe_link::{Link, memif};
use megapipe_service::Waits;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const READ_BYTES: usize = 4096;
const REQUEST: &[u8] = &[7; 64];
/// Transactions that are not counted: what the first ones cost is not the question.
const WARM_UP: u64 = 5_000;
const SERVER: &str = "10.0.0.1:80";

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A memif's server and its client.
fn cable() -> Outcome<[Box<dyn Link>; 2]> {
    let socket = format!("@megapipe-placement-cost-{}", std::process::id());
    let [here, there] =
        [1, 2].map(|last| memif::MemifSettings::new(&socket, [2, 0, 0, 0, 0, last]));
    let timeout = Duration::from_secs(5);
    let connecting = std::thread::spawn(move || memif::connect(&there, timeout));
    let here = memif::open(memif::MemifRole::Server, &here, timeout, &mut |_| ())?;
    let there = connecting.join().map_err(|_| "the client's thread panicked")??;
    let mut ends = here.into_iter().zip(there);
    let (here, there) = ends.next().ok_or("a memif without a queue")?;
    Ok([Box::new(here), Box::new(there)])
}

fn channel(link: Box<dyn Link>, last: u8, placement: Placement) -> Outcome<Channel> {
    let settings = ServerConfig {
        addresses: vec![([10, 0, 0, last].into(), 24)],
        connections: 4096,
        waits: Waits { spin: Duration::ZERO, ..Waits::default() },
        ..ServerConfig::default()
    };
    let network = LocalNetwork::over(vec![link], settings)?;
    let config = Config::default().backend(Backend::Local(network)).placement(placement);
    Ok(Channel::create(config)?)
}

/// CPU time until now.
struct CpuTimes {
    /// Of this thread.
    own: Duration,
    /// Of all threads.
    all: Duration,
}

impl CpuTimes {
    fn now() -> Self {
        let time = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
        Self { own: time(ClockId::ThreadCPUTime), all: time(ClockId::ProcessCPUTime) }
    }
}

/// Exchanges so many messages.
fn client(link: Box<dyn Link>, is_short: bool, connections: u64, count: u64) -> Outcome<()> {
    let mut core = CpuSet::new();
    core.set(0);
    sched_setaffinity(None, &core)?;
    let mut channel = channel(link, 2, Placement::Inline)?;
    let server: Address = SERVER.parse()?;
    let options = ConnectOptions::default().reset_on_close(true);
    for _ in 0..connections {
        channel.connect(&server, &options, 0)?;
    }
    let ask = |channel: &mut Channel, handle: Handle| -> Outcome<()> {
        channel.write_quiet(handle, REQUEST)?;
        Ok(channel.read(handle, READ_BYTES)?)
    };
    let (mut done, mut before) = (0, CpuTimes::now());
    while done < WARM_UP + count {
        let Some(Completion { handle, event, .. }) = channel.dispatch(None)? else { continue };
        match event {
            Event::Connect(Ok(())) => ask(&mut channel, handle)?,
            Event::Read(Ok(data)) if data.len() == REQUEST.len() => {
                done += 1;
                if done == WARM_UP {
                    before = CpuTimes::now();
                }
                if is_short {
                    channel.unregister(handle)?;
                    channel.connect(&server, &options, 0)?;
                } else {
                    ask(&mut channel, handle)?;
                }
            }
            Event::Connect(Err(_)) | Event::Read(_) => return Err(format!("{event:?}").into()),
            _ => {}
        }
    }
    let after = CpuTimes::now();
    let server = (after.all - before.all).saturating_sub(after.own - before.own);
    println!("{} ns", server.as_nanos() as u64 / count);
    Ok(())
}

/// Echoes what comes, until the process ends.
fn serve(link: Box<dyn Link>, placement: Placement) -> Outcome<()> {
    let mut server = channel(link, 1, placement)?;
    let listener = server.listen(&SERVER.parse()?, &ListenOptions::default(), 0)?;
    server.accept(listener, Accept::lwsocket(u32::MAX).first_read(READ_BYTES))?;
    loop {
        let Some(Completion { handle, event, .. }) = server.dispatch(None)? else { continue };
        match event {
            Event::Read(Ok(data)) if !data.is_empty() => {
                server.write_quiet(handle, data)?;
                server.read(handle, READ_BYTES)?;
            }
            Event::Read(_) | Event::Disconnect(_) => drop(server.unregister(handle)?),
            _ => {}
        }
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [placement, what, connections, count] = &arguments[..] else {
        return Err("arguments: inline|core echo|short CONNECTIONS TRANSACTIONS".into());
    };
    let placement = match placement.as_str() {
        "inline" => Placement::Inline,
        "core" => Placement::Core(None),
        other => return Err(format!("{other:?} is not inline or core").into()),
    };
    let (is_short, connections, count) = (what == "short", connections.parse()?, count.parse()?);
    let [here, there] = cable()?;
    let serving = std::thread::spawn(move || serve(here, placement));
    let exchanging = std::thread::spawn(move || client(there, is_short, connections, count));
    let outcome = exchanging.join().map_err(|_| "the client's thread panicked")?;
    if serving.is_finished() {
        serving.join().map_err(|_| "the server's thread panicked")??;
    }
    outcome
}
