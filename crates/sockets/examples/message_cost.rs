//! What a message costs a server that is written on sockets and epoll, on our own stack, beside the
//! same server on the channel beneath: run it under callgrind.
//!
//! `cargo build --release -p megapipe-sockets --example message_cost`, then
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured_poll*'
//! target/release/examples/message_cost sockets 32`; what was collected, divided by the number that
//! the program prints, is the cost of one transaction of 64 bytes at the server. The first word
//! says what the server is written on: `sockets`, `drain` (sockets that are read until there is
//! nothing, edge triggered), or `channel`; the second how many connections there are.
//!
//! The client is a channel of this thread; between them is a pair of links in memory.

use std::error::Error;
use std::time::Duration;

use megapipe::{
    Accept, Address, Backend, Channel, ConnectOptions, Event, Handle, ListenOptions, LocalNetwork,
    ServerConfig,
};
use megapipe_link::{Link, PairConfig, pair};
use megapipe_sockets::{
    Bsd, Config, Context, EpollEvent, EpollOp, Error as SocketError, Events, Fd, OpenFlags,
};

const READ_BYTES: usize = 4096;
const REQUEST: &[u8] = &[7; 64];
/// Messages that are counted; enough that what comes once does not show.
const COUNT: u32 = 20_000;
/// Before those: what the first ones cost is not the question.
const WARM_UP: u32 = 2_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn config(link: Box<dyn Link>, last: u8) -> Outcome<megapipe::Config> {
    let settings = ServerConfig {
        addresses: vec![([10, 0, 0, last].into(), 24)],
        connections: 4096,
        ..ServerConfig::default()
    };
    let network = LocalNetwork::over(vec![link], settings)?;
    Ok(megapipe::Config::default().backend(Backend::Local(network)))
}

/// A server that echoes.
trait EchoServer {
    /// All that it does until nothing is left to do.
    fn poll(&mut self) -> Outcome<()>;
}

/// On the channel, as in its own example.
struct OnChannel(Channel);

impl OnChannel {
    fn new(config: megapipe::Config) -> Outcome<Self> {
        let mut channel = Channel::create(config)?;
        let address: Address = "10.0.0.1:80".parse()?;
        let listener = channel.listen(&address, &ListenOptions::default(), 0)?;
        channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(READ_BYTES))?;
        Ok(Self(channel))
    }
}

impl EchoServer for OnChannel {
    fn poll(&mut self) -> Outcome<()> {
        while let Some(done) = self.0.dispatch(Some(Duration::ZERO))? {
            match done.event {
                Event::Read(Ok(data)) if !data.is_empty() => {
                    self.0.write_quiet(done.handle, data)?;
                    self.0.read(done.handle, READ_BYTES)?;
                }
                Event::Read(_) => drop(self.0.unregister(done.handle)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// On sockets and epoll.
struct OnSockets {
    context: Context,
    listener: Fd,
    epoll: Fd,
    /// Read until there is nothing, and told of changes only.
    drains: bool,
    events: Vec<EpollEvent>,
    bytes: Vec<u8>,
}

impl OnSockets {
    fn new(config: megapipe::Config, drains: bool) -> Outcome<Self> {
        let mut context = Context::create(Config::default().channel(config))?;
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        let listener = context.socket(libc::AF_INET, kind, 0)?;
        context.bind(listener, "10.0.0.1:80".parse()?)?;
        let on = 1_i32.to_ne_bytes();
        context.setsockopt(listener, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on)?;
        context.listen(listener, 4096)?;
        let epoll = context.epoll_create1(OpenFlags::empty())?;
        let mut server = Self {
            context,
            listener,
            epoll,
            drains,
            events: vec![EpollEvent::default(); 256],
            bytes: vec![0; READ_BYTES],
        };
        server.watch(listener)?;
        Ok(server)
    }

    fn watch(&mut self, fd: Fd) -> Outcome<()> {
        let mut events = Events::IN;
        events.set(Events::EDGE, self.drains && fd != self.listener);
        let event = EpollEvent { events, data: fd as u64 };
        Ok(self.context.epoll_ctl(self.epoll, EpollOp::Add(event), fd)?)
    }

    fn serve(&mut self, fd: Fd) -> Outcome<()> {
        loop {
            match self.context.read(fd, &mut self.bytes) {
                Ok(0) => return Ok(self.context.close(fd)?),
                Ok(len) => {
                    self.context.write(fd, &self.bytes[..len])?;
                }
                Err(SocketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if !self.drains {
                return Ok(());
            }
        }
    }
}

impl EchoServer for OnSockets {
    fn poll(&mut self) -> Outcome<()> {
        loop {
            let mut events = std::mem::take(&mut self.events);
            let count = self.context.epoll_wait(self.epoll, &mut events, Some(Duration::ZERO))?;
            for event in &events[..count] {
                let fd = event.data as Fd;
                if fd == self.listener {
                    let connection = self.context.accept4(fd, OpenFlags::NONBLOCK)?;
                    self.watch(connection)?;
                } else {
                    self.serve(fd)?;
                }
            }
            self.events = events;
            if count == 0 {
                return Ok(());
            }
        }
    }
}

/// What is counted.
#[inline(never)]
fn measured_poll(server: &mut dyn EchoServer) -> Outcome<()> {
    server.poll()
}

/// The client: how many requests were answered.
struct EchoClient {
    channel: Channel,
    done: u32,
}

impl EchoClient {
    fn ask(&mut self, handle: Handle) -> Outcome<()> {
        self.channel.write_quiet(handle, REQUEST)?;
        Ok(self.channel.read(handle, READ_BYTES)?)
    }

    fn poll(&mut self) -> Outcome<()> {
        while let Some(done) = self.channel.dispatch(Some(Duration::ZERO))? {
            match done.event {
                Event::Connect(Ok(())) => self.ask(done.handle)?,
                Event::Read(Ok(data)) if data.len() == REQUEST.len() => {
                    self.done += 1;
                    self.ask(done.handle)?;
                }
                Event::Connect(Err(error)) | Event::Read(Err(error)) => return Err(error.into()),
                Event::Read(Ok(data)) => return Err(format!("{} bytes", data.len()).into()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let way = arguments.next().unwrap_or_else(|| "sockets".to_owned());
    let connections: u32 = arguments.next().map_or(Ok(32), |count| count.parse())?;
    let (here, there) = pair(&PairConfig::default())?;
    let here = config(Box::new(here), 1)?;
    let mut server: Box<dyn EchoServer> = match &*way {
        "sockets" => Box::new(OnSockets::new(here, false)?),
        "drain" => Box::new(OnSockets::new(here, true)?),
        "channel" => Box::new(OnChannel::new(here)?),
        other => return Err(format!("{other:?} is not sockets, drain or channel").into()),
    };
    let mut client = EchoClient { channel: Channel::create(config(Box::new(there), 2)?)?, done: 0 };
    let address: Address = "10.0.0.1:80".parse()?;
    for _ in 0..connections {
        client.channel.connect(&address, &ConnectOptions::default(), 0)?;
    }
    while client.done < WARM_UP {
        client.poll()?;
        server.poll()?;
    }
    let before = client.done;
    while client.done < before + COUNT {
        client.poll()?;
        measured_poll(&mut *server)?;
    }
    println!("{}", client.done - before);
    Ok(())
}
