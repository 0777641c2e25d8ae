//! Our side of the interoperation tests: the programs that the tests run against Linux's.
//!
//! `http`, `kv` and `load` are those of `megapipe`. `accept` and `connect` are the channel's side
//! of `megapipe_tests::transfer`; read that first. They print a line when their transfers are
//! done, and keep their stack until standard input ends: a stack that goes takes its unfinished
//! retransmissions with it.
//!
//! Invariants
//! - One read and one write at most are under way on a connection.
//! - A connection is counted once, in `Party::end`: as successful if both directions ended as
//!   agreed.
//! - A connection that failed because its neighbour was not resolved is retried: resolution sends
//!   three requests, and on a link with loss all three may be lost.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use megapipe::{
    Accept, Address, Channel, Completion, Config, ConnectOptions, Connection, Disconnect, Event,
    Handle, ListenOptions, OpError, ReadBuf,
};
use megapipe_apps::backend::BackendArgs;
use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::kv::{self, KvArgs};
use megapipe_apps::load::{HttpLoadArgs, report, run_http};
use megapipe_tests::transfer::{CHUNK_LEN, HEADER_LEN, Header, Mode, Pattern, lens};

type Failure = Box<dyn std::error::Error>;

/// Longest transfer of `connect`, as a power of two.
const LEN_BITS: u32 = 17;
const STDIN: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a connection is asked for at most.
const ATTEMPTS: u32 = 5;

/// Our side of the interoperation tests
#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// megapipe serve http
    Http(HttpArgs),
    /// megapipe serve kv
    Kv(KvArgs),
    /// megapipe load http
    Load(Box<HttpLoadArgs>),
    /// Answers transfers
    Accept(AcceptArgs),
    /// Asks for transfers
    Connect(ConnectArgs),
}

#[derive(Args)]
struct AcceptArgs {
    /// Where to listen
    #[arg(long, required = true)]
    listen: Vec<Address>,

    /// Transfers to answer
    #[arg(long, default_value_t = 1)]
    count: u64,

    /// Write what one peer sends into a file instead, and answer with its length
    #[arg(long)]
    into: Option<PathBuf>,

    #[command(flatten)]
    backend: BackendArgs,
}

#[derive(Args)]
struct ConnectArgs {
    /// Where to connect to, in turn
    #[arg(long, required = true)]
    to: Vec<Address>,

    /// Transfers to ask for
    #[arg(long, default_value_t = 1)]
    count: u64,

    /// Of them at once
    #[arg(long, default_value_t = 16)]
    at_once: u64,

    /// What lengths and bytes follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    backend: BackendArgs,
}

/// What a connection does with what it receives.
enum Inward {
    /// The header is not whole yet.
    Header(Vec<u8>),
    /// It has to be these bytes.
    Expect(Pattern),
    /// It has to be these bytes and goes back.
    Echo(Pattern),
    /// It goes into a file.
    Keep(File, u64),
}

/// One connection.
struct Peer {
    handle: Handle,
    inward: Inward,
    /// What is still to be sent, once it may be.
    outward: Option<Pattern>,
    /// The peer closes before we send.
    waits_for_end: bool,
    has_peer_ended: bool,
    is_closing: bool,
    is_closed: bool,
    asked: Option<Asked>,
}

/// A transfer that we ask for.
#[derive(Clone)]
struct Asked {
    to: Address,
    header: Header,
    attempts: u32,
}

/// What a program does about a completion that is no connection's, and when a transfer has ended.
type Next<'a> = dyn FnMut(&mut Party, Option<Completion>) -> Result<(), Failure> + 'a;

/// All connections of a program, and the books.
struct Party {
    channel: Channel,
    peers: slab::Slab<Peer>,
    good: u64,
    wrong: u64,
}

impl Party {
    fn new(backend: &BackendArgs) -> Result<Self, Failure> {
        let backend = backend.open(1_024, 1)?;
        let mut channel = Channel::create(Config::default().backend(backend))?;
        let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
        let stdin = channel.register(stdin, STDIN, None)?;
        channel.read(stdin, 1)?;
        Ok(Self { channel, peers: slab::Slab::new(), good: 0, wrong: 0 })
    }

    fn ended(&self) -> u64 {
        self.good + self.wrong
    }

    fn add(&mut self, handle: Handle, inward: Inward, outward: Option<Pattern>) -> usize {
        self.peers.insert(Peer {
            handle,
            inward,
            outward,
            waits_for_end: false,
            has_peer_ended: false,
            is_closing: false,
            is_closed: false,
            asked: None,
        })
    }

    /// Connects, and says which transfer it is about.
    fn ask(&mut self, asked: Asked) -> Result<(), Failure> {
        let Asked { to, header, .. } = &asked;
        let options = ConnectOptions::default().timeout(CONNECT_TIMEOUT);
        let handle = self.channel.connect(to, &options, LISTENER)?;
        self.channel.write(handle, header.to_bytes().to_vec())?;
        let inward = Inward::Expect(header.from_server());
        let key = self.add(handle, inward, Some(header.from_client()));
        self.channel.set_cookie(handle, key as u64)?;
        self.peers[key].waits_for_end = header.mode == Mode::Give;
        self.peers[key].asked = Some(asked);
        Ok(())
    }

    /// Asks anew. The handle of the attempt that failed goes.
    fn ask_again(&mut self, key: usize) -> Result<bool, Failure> {
        let peer = self.peers.remove(key);
        self.channel.unregister(peer.handle)?;
        let asked = peer.asked.ok_or("it was not asked for here")?;
        self.ask(Asked { attempts: asked.attempts + 1, ..asked })?;
        Ok(true)
    }

    /// Whether the neighbour was not resolved and retries are left.
    fn may_ask_again(&self, key: usize) -> bool {
        self.peers[key].asked.as_ref().is_some_and(|asked| asked.attempts < ATTEMPTS)
    }

    /// Does what a completion of a connection calls for. A failure ends that connection.
    fn on_peer(&mut self, key: usize, event: Event) {
        if matches!(event, Event::Connect(Err(OpError::HostUnreachable))) && self.may_ask_again(key)
        {
            if let Err(misuse) = self.ask_again(key) {
                eprintln!("interop: {misuse}");
                self.wrong += 1;
            }
            return;
        }
        let went_well = match event {
            Event::Connect(Ok(())) => self.on_connected(key),
            Event::Read(Ok(data)) if data.is_empty() => self.on_end_of_stream(key),
            Event::Read(Ok(data)) => self.on_bytes(key, data),
            Event::Write(Ok(_)) => self.on_written(key),
            Event::Disconnect(Ok(())) => {
                self.peers[key].is_closed = true;
                Ok(true)
            }
            other => {
                eprintln!("interop: {other:?}");
                Ok(false)
            }
        };
        let peer = &self.peers[key];
        match went_well {
            Ok(true) if peer.has_peer_ended && peer.is_closed => self.end(key, true),
            Ok(true) => {}
            Ok(false) => self.end(key, false),
            Err(misuse) => {
                eprintln!("interop: {misuse}");
                self.end(key, false);
            }
        }
    }

    /// The header is on its way already; what follows it is sent when it was taken.
    fn on_connected(&mut self, key: usize) -> Result<bool, Failure> {
        self.channel.read(self.peers[key].handle, CHUNK_LEN)?;
        Ok(true)
    }

    fn on_bytes(&mut self, key: usize, data: ReadBuf) -> Result<bool, Failure> {
        let peer = &mut self.peers[key];
        let is_good = match &mut peer.inward {
            Inward::Header(bytes) => {
                bytes.extend_from_slice(&data);
                return self.on_header(key);
            }
            Inward::Expect(pattern) => pattern.matches(&data),
            Inward::Echo(pattern) => {
                let is_good = pattern.matches(&data);
                // The next read waits for this write: nothing is held beyond one piece.
                self.channel.write(peer.handle, data)?;
                return Ok(is_good);
            }
            Inward::Keep(file, len) => {
                *len += data.len() as u64;
                file.write_all(&data)?;
                true
            }
        };
        self.channel.read(peer.handle, CHUNK_LEN)?;
        Ok(is_good)
    }

    /// More of the header came, and maybe what follows it.
    fn on_header(&mut self, key: usize) -> Result<bool, Failure> {
        let peer = &mut self.peers[key];
        let Inward::Header(bytes) = &mut peer.inward else { return Ok(false) };
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            self.channel.read(peer.handle, CHUNK_LEN)?;
            return Ok(true);
        };
        let Some(header) = Header::from_bytes(header) else { return Ok(false) };
        let rest = rest.to_vec();
        let mut expected = header.from_client();
        let is_good = expected.matches(&rest);
        match header.mode {
            Mode::Echo if rest.is_empty() => {
                peer.inward = Inward::Echo(expected);
                self.channel.read(peer.handle, CHUNK_LEN)?;
            }
            Mode::Echo => {
                peer.inward = Inward::Echo(expected);
                self.channel.write(peer.handle, rest)?;
            }
            Mode::Give => {
                peer.inward = Inward::Expect(expected);
                peer.outward = Some(header.from_server());
                self.channel.read(peer.handle, CHUNK_LEN)?;
                self.send_more(key)?;
            }
        }
        Ok(is_good)
    }

    fn on_written(&mut self, key: usize) -> Result<bool, Failure> {
        let peer = &self.peers[key];
        if matches!(peer.inward, Inward::Echo(_)) {
            self.channel.read(peer.handle, CHUNK_LEN)?;
        } else if !peer.waits_for_end || peer.has_peer_ended {
            self.send_more(key)?;
        }
        Ok(true)
    }

    /// Sends the next piece; after the last one our side is closed.
    fn send_more(&mut self, key: usize) -> Result<(), Failure> {
        let peer = &mut self.peers[key];
        let Some(pattern) = &mut peer.outward else { return Ok(()) };
        if pattern.left() > 0 {
            self.channel.write(peer.handle, pattern.take(CHUNK_LEN))?;
        } else if !std::mem::replace(&mut peer.is_closing, true) {
            self.channel.disconnect(peer.handle, Disconnect::Write)?;
        }
        Ok(())
    }

    fn on_end_of_stream(&mut self, key: usize) -> Result<bool, Failure> {
        let peer = &mut self.peers[key];
        peer.has_peer_ended = true;
        match &peer.inward {
            Inward::Header(_) => return Ok(false),
            Inward::Expect(pattern) if pattern.left() > 0 => return Ok(false),
            Inward::Echo(pattern) if pattern.left() > 0 => return Ok(false),
            Inward::Expect(_) if !peer.waits_for_end => return Ok(true),
            Inward::Expect(_) => {
                self.send_more(key)?;
                return Ok(true);
            }
            Inward::Keep(_, len) => {
                self.channel.write(peer.handle, len.to_string().into_bytes())?
            }
            Inward::Echo(_) => {}
        }
        peer.is_closing = true;
        self.channel.disconnect(peer.handle, Disconnect::Write)?;
        Ok(true)
    }

    fn end(&mut self, key: usize, is_good: bool) {
        let peer = self.peers.remove(key);
        if is_good {
            self.good += 1;
        } else {
            self.wrong += 1;
            eprintln!("interop: a transfer went wrong");
        }
        // A handle that the channel no longer knows needs no more.
        let _ = self.channel.unregister(peer.handle);
    }

    /// Runs until standard input has ended. `next` hears of what is no connection's, and of each
    /// transfer that ended; after `count` of them the line is printed.
    fn run(&mut self, count: u64, next: &mut Next<'_>) -> Result<ExitCode, Failure> {
        let mut is_told = false;
        loop {
            let Some(done) = self.channel.dispatch(None)? else { continue };
            match done.cookie {
                // Ignores completions after the end of a connection.
                STDIN => return Ok(ExitCode::from(u8::from(self.wrong > 0 || !is_told))),
                LISTENER => next(self, Some(done))?,
                key if self.peers.get(key as usize).is_some_and(|it| it.handle == done.handle) => {
                    let before = self.ended();
                    self.on_peer(key as usize, done.event);
                    if self.ended() > before {
                        next(self, None)?;
                    }
                }
                _ => {}
            }
            if self.ended() >= count && !std::mem::replace(&mut is_told, true) {
                println!("ended {} good {} wrong", self.good, self.wrong);
            }
        }
    }
}

fn accept(args: &AcceptArgs) -> Result<ExitCode, Failure> {
    let mut party = Party::new(&args.backend)?;
    let mut file = args.into.as_ref().map(File::create).transpose()?;
    for address in &args.listen {
        let listener = party.channel.listen(address, &ListenOptions::default(), LISTENER)?;
        party.channel.accept(listener, Accept::lwsocket(u32::MAX))?;
    }
    println!("listening on {:?}", args.listen);
    party.run(args.count, &mut |party, done| {
        let Some(Completion { event: Event::Accept(accepted), .. }) = done else { return Ok(()) };
        let Connection::Lwsocket(handle) = accepted?.connection else { return Ok(()) };
        let inward = match file.take() {
            Some(file) => Inward::Keep(file, 0),
            None => Inward::Header(Vec::new()),
        };
        let key = party.add(handle, inward, None);
        party.channel.set_cookie(handle, key as u64)?;
        party.channel.read(handle, CHUNK_LEN)?;
        Ok(())
    })
}

fn connect(args: &ConnectArgs) -> Result<ExitCode, Failure> {
    let mut party = Party::new(&args.backend)?;
    let mut lens = lens(args.seed, LEN_BITS);
    let mut seeds = 0..args.count;
    let start = &mut |party: &mut Party, _: Option<Completion>| {
        let (Some(number), Some(len)) = (seeds.next(), lens.next()) else { return Ok(()) };
        let mode = if number % 2 == 0 { Mode::Echo } else { Mode::Give };
        let header = Header { mode, len, seed: args.seed.wrapping_add(number) };
        let to = args.to[(number / 2) as usize % args.to.len()].clone();
        party.ask(Asked { to, header, attempts: 1 })
    };
    for _ in 0..args.at_once {
        start(&mut party, None)?;
    }
    party.run(args.count, start)
}

fn main() -> ExitCode {
    let done = |result: Result<(), Failure>| result.map(|()| ExitCode::SUCCESS);
    let ended = match &Program::parse().command {
        Command::Http(args) => done(http::serve(args).map_err(Into::into)),
        Command::Kv(args) => done(kv::serve(args).map_err(Into::into)),
        Command::Load(args) => done(
            run_http(args, &mut |_| {})
                .and_then(|summary| report(&summary, &args.load))
                .map_err(Into::into),
        ),
        Command::Accept(args) => accept(args),
        Command::Connect(args) => connect(args),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("interop: {error}");
        ExitCode::FAILURE
    })
}
