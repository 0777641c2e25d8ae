//! What a message costs a server on our own stack, from the frame that brings it to the frame that
//! carries the answer: run it under callgrind.
//!
//! `cargo build --release -p megapipe --example message_cost`, then
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured_poll*'
//! target/release/examples/message_cost echo 32`; what was collected, divided by the number that
//! the program prints, is the cost of one at the server (`*measured_client*`: at the client). The
//! first word is what is measured:
//!
//! - `echo N`: a request of 64 bytes and its answer, on N connections that stay.
//! - `short N`: a connection with one such transaction, N at a time, closed by the client.
//! - `reset N`: a connection that is accepted and reset, N at a time.
//!
//! Both ends are channels of this thread; between them is a pair of links in memory or, with
//! `memif` as the third word, a memif, whose client is the client.

use std::error::Error;
use std::time::Duration;

use megapipe::{
    Accept, Address, Backend, Channel, Completion, Config, ConnectOptions, Connection, Disconnect,
    Event, Handle, ListenOptions, LocalNetwork, ServerConfig,
};
use megapipe_link::{Link, PairConfig, memif, pair};

const READ_BYTES: usize = 4096;
const REQUEST: &[u8] = &[7; 64];
/// Messages or connections that are counted; enough that what comes once does not show.
const COUNT: u32 = 20_000;
/// Before those: what the first ones cost is not the question.
const WARM_UP: u32 = 2_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cost {
    Echo,
    Short,
    Reset,
}

type Ends = (Box<dyn Link>, Box<dyn Link>);

fn boxed<L: Link + 'static>(here: L, there: L) -> Ends {
    (Box::new(here), Box::new(there))
}

/// A memif's server and its client.
fn cable() -> Outcome<Ends> {
    let socket = format!("@megapipe-message-cost-{}", std::process::id());
    let [here, there] =
        [1, 2].map(|last| memif::MemifSettings::new(&socket, [2, 0, 0, 0, 0, last]));
    let timeout = Duration::from_secs(5);
    let connecting = std::thread::spawn(move || memif::connect(&there, timeout));
    let here = memif::open(memif::MemifRole::Server, &here, timeout, &mut |_| ())?;
    let there = connecting.join().map_err(|_| "the client's thread panicked")??;
    let mut ends = here.into_iter().zip(there).map(|(here, there)| boxed(here, there));
    Ok(ends.next().ok_or("a memif without a queue")?)
}

fn channel(link: Box<dyn Link>, last: u8) -> Outcome<Channel> {
    let settings = ServerConfig {
        addresses: vec![([10, 0, 0, last].into(), 24)],
        connections: 4096,
        ..ServerConfig::default()
    };
    let network = LocalNetwork::over(vec![link], settings)?;
    let config = Config::default().backend(Backend::Local(network));
    Ok(Channel::create(config)?)
}

/// What is counted at the server.
#[inline(never)]
fn measured_poll(server: &mut Channel, cost: Cost) -> Outcome<()> {
    poll(server, cost)
}

/// All that the server does until nothing is left to do.
#[inline(always)]
fn poll(server: &mut Channel, cost: Cost) -> Outcome<()> {
    while let Some(done) = server.dispatch(Some(Duration::ZERO))? {
        let Completion { handle, event, .. } = done;
        match event {
            Event::Read(Ok(data)) if !data.is_empty() => {
                server.write_quiet(handle, data)?;
                server.read(handle, READ_BYTES)?;
            }
            Event::Accept(Ok(accepted)) if cost == Cost::Reset => {
                if let Connection::Lwsocket(handle) = accepted.connection {
                    server.disconnect(handle, Disconnect::Reset)?;
                }
            }
            Event::Read(_) | Event::Disconnect(_) => drop(server.unregister(handle)?),
            _ => {}
        }
    }
    Ok(())
}

/// The client: how many of its connections came to what they were made for.
struct Client {
    channel: Channel,
    server: Address,
    cost: Cost,
    done: u32,
}

impl Client {
    fn connect(&mut self) -> Outcome<()> {
        let options = ConnectOptions::default().reset_on_close(self.cost == Cost::Reset);
        self.channel.connect(&self.server, &options, 0)?;
        Ok(())
    }

    fn ask(&mut self, handle: Handle) -> Outcome<()> {
        self.channel.write_quiet(handle, REQUEST)?;
        Ok(self.channel.read(handle, READ_BYTES)?)
    }

    /// What is counted at the client.
    #[inline(never)]
    fn measured_client(&mut self) -> Outcome<()> {
        self.poll()
    }

    #[inline(always)]
    fn poll(&mut self) -> Outcome<()> {
        while let Some(done) = self.channel.dispatch(Some(Duration::ZERO))? {
            let handle = done.handle;
            match (self.cost, done.event) {
                (Cost::Reset, Event::Connect(Ok(()))) => self.channel.await_end(handle)?,
                (_, Event::Connect(Ok(()))) => self.ask(handle)?,
                (Cost::Echo, Event::Read(Ok(data))) if data.len() == REQUEST.len() => {
                    self.done += 1;
                    self.ask(handle)?;
                }
                (Cost::Echo, Event::Read(read)) => return Err(format!("{read:?}").into()),
                (_, Event::Connect(_) | Event::Read(_) | Event::End(_)) => {
                    self.done += 1;
                    self.channel.unregister(handle)?;
                    self.connect()?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let cost = match arguments.next().as_deref() {
        Some("echo") | None => Cost::Echo,
        Some("short") => Cost::Short,
        Some("reset") => Cost::Reset,
        Some(other) => return Err(format!("{other:?} is not echo, short or reset").into()),
    };
    let connections: u32 = arguments.next().map_or(Ok(32), |count| count.parse())?;
    let (here, there) = match arguments.next().as_deref() {
        Some("memif") => cable()?,
        _ => pair(&PairConfig::default()).map(|(here, there)| boxed(here, there))?,
    };
    let (mut server, channel) = (channel(here, 1)?, channel(there, 2)?);
    let address: Address = "10.0.0.1:80".parse()?;
    let listener = server.listen(&address, &ListenOptions::default(), 0)?;
    let accept = Accept::lwsocket(u32::MAX);
    let accept = if cost == Cost::Reset { accept } else { accept.first_read(READ_BYTES) };
    server.accept(listener, accept)?;
    let mut client = Client { channel, server: address, cost, done: 0 };
    for _ in 0..connections {
        client.connect()?;
    }
    while client.done < WARM_UP {
        client.poll()?;
        poll(&mut server, cost)?;
    }
    let before = client.done;
    while client.done < before + COUNT {
        client.measured_client()?;
        measured_poll(&mut server, cost)?;
    }
    println!("{}", client.done - before);
    Ok(())
}
