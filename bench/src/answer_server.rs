//! A server whose answers carry the number of its process, for the bars of the daemon.
//!
//! Each request of [`MESSAGE_BYTES`] is answered with as many bytes, of which the first four are
//! the process id. So a client knows by which of the programs that share a port it was served. One
//! thread, one channel; a delay per request blocks the thread, as slow work does.
//!
//! When its daemon dies, it prints how many connections ended and when: `gone COUNT at NANOSECONDS`
//! of the monotonic clock, which all processes share.
//!
//! Invariant: a request comes in one segment, because a client sends the next one after the answer.

use crate::{accept_reset::AcceptError, limits};
use megapipe::{
    Accept, Address, Channel, Completion, Config, Connection, Disconnect, Event, Handle,
    ListenOptions, OpError,
};
use megapipe_apps::{backend::BackendArgs, serve::DriverName};
use rustix::time::{ClockId, clock_gettime};
use std::{io::Write, num::NonZeroU64, thread, time::Duration};

/// Bytes of a request, and of an answer.
pub(crate) const MESSAGE_BYTES: usize = 64;
/// Completions taken from the channel at a time.
const COMPLETIONS_PER_TURN: usize = 256;

/// Options of `megapipe bench answer-server`.
#[derive(Clone, Debug, clap::Args)]
pub struct AnswerArgs {
    /// Its address
    server: Address,
    /// Microseconds that it sleeps for each request
    #[arg(long, default_value_t = 0)]
    delay: u64,
    /// From this nanosecond of the monotonic clock on it sleeps longer
    #[arg(long, default_value_t = 0, requires = "slow_until")]
    slow_from: u64,
    /// The end of that time
    #[arg(long, default_value_t = 0)]
    slow_until: u64,
    /// Microseconds that it then sleeps more
    #[arg(long, default_value_t = 0)]
    slow_by: u64,
    /// Most connections
    #[arg(long, default_value_t = limits::ACCEPT_CONNECTIONS_MAX)]
    connections: u32,
    /// Back end.
    #[command(flatten)]
    backend: BackendArgs,
    /// Which kernel interface carries the channel
    #[arg(long, value_enum, default_value_t)]
    driver: DriverName,
}

/// A time in which a server is slow: for a server in nanoseconds of [`monotonic_ns`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowPeriod {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    /// What each request takes more.
    pub(crate) by: Duration,
}

/// A running server.
pub(crate) struct AnswerServer {
    channel: Channel,
    completions: Vec<Completion>,
    delay: Duration,
    slow: SlowPeriod,
    answer: [u8; MESSAGE_BYTES],
    /// Connections that are open.
    open: u64,
    /// Connections that ended with their daemon, and are not printed yet.
    gone: u64,
}

impl SlowPeriod {
    /// The same period, so much later.
    pub(crate) const fn later(self, ns: u64) -> Self {
        Self { from_ns: self.from_ns + ns, until_ns: self.until_ns + ns, ..self }
    }

    /// What a request at this time takes more.
    fn at(self, now_ns: u64) -> Duration {
        if (self.from_ns..self.until_ns).contains(&now_ns) { self.by } else { Duration::ZERO }
    }
}

/// Nanoseconds of the clock that all processes share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Serves until a signal ends the process. Blocks.
pub(crate) fn serve(args: &AnswerArgs) -> Result<(), AcceptError> {
    let config = Config::default()
        .backend(args.backend.open(args.connections, 1)?)
        .placement(args.backend.placement(0))
        .driver(args.driver.into())
        .max_lwsockets(args.connections);
    let mut server = AnswerServer::open(config, &args.server)?;
    server.delay = Duration::from_micros(args.delay);
    let (from_ns, until_ns) = (args.slow_from, args.slow_until);
    server.slow = SlowPeriod { from_ns, until_ns, by: Duration::from_micros(args.slow_by) };
    // A delay of 100 µs is not to last 150.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    println!("listening on {}", args.server);
    loop {
        server.poll(None)?;
        server.print_gone();
    }
}

impl AnswerServer {
    /// A server in this process that sleeps for no request.
    pub(crate) fn open(config: Config, address: &Address) -> Result<Self, AcceptError> {
        let failed = |step: &'static str| move |source| AcceptError::Step { step, source };
        let mut channel = Channel::create(config)?;
        let options = ListenOptions::default().backlog(limits::ACCEPT_BACKLOG);
        let listener = channel.listen(address, &options, 0);
        let listener = listener.map_err(|error| failed("listen")(error.into()))?;
        let accept = Accept::lwsocket(u32::MAX).first_read(MESSAGE_BYTES);
        channel.accept(listener, accept).map_err(|error| failed("accept")(error.into()))?;
        let mut answer = [0; MESSAGE_BYTES];
        answer[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let completions = Vec::with_capacity(COMPLETIONS_PER_TURN);
        let (delay, slow) = (Duration::ZERO, SlowPeriod::default());
        Ok(Self { channel, completions, delay, slow, answer, open: 0, gone: 0 })
    }

    /// Serves what has come, or waits for it so long (`None`: for ever).
    pub(crate) fn poll(&mut self, wait: Option<Duration>) -> Result<(), AcceptError> {
        let mut completions = std::mem::take(&mut self.completions);
        let dispatched = self.channel.dispatch_many(&mut completions, COMPLETIONS_PER_TURN, wait);
        dispatched.map_err(|error| AcceptError::Step { step: "dispatch", source: error.into() })?;
        for completion in completions.drain(..) {
            self.on_completion(completion);
        }
        self.completions = completions;
        Ok(())
    }

    fn on_completion(&mut self, Completion { handle, event, .. }: Completion) {
        match event {
            Event::Accept(Ok(accepted)) => {
                if let Connection::Lwsocket(_) = accepted.connection {
                    self.open += 1;
                }
            }
            Event::Read(Ok(bytes)) if bytes.len() == MESSAGE_BYTES => {
                drop(bytes);
                self.on_request(handle);
            }
            Event::Read(Ok(bytes)) => {
                let is_end = bytes.is_empty();
                drop(bytes);
                if !is_end {
                    // A client of another protocol. Its end is not waited for.
                    let _ = self.channel.disconnect(handle, Disconnect::Reset);
                }
                self.close(handle);
            }
            Event::Read(Err(error)) => {
                self.gone += u64::from(error == OpError::ServiceGone);
                self.close(handle);
            }
            _ => {}
        }
    }

    fn on_request(&mut self, handle: Handle) {
        let delay = self.delay + self.slow.at(monotonic_ns());
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        let written = self.channel.write_quiet(handle, self.answer.to_vec());
        if written.is_err() || self.channel.read(handle, MESSAGE_BYTES).is_err() {
            self.close(handle);
        }
    }

    fn close(&mut self, handle: Handle) {
        // Each connection has one read at a time, so that its end is seen once.
        let _ = self.channel.unregister(handle);
        self.open -= 1;
    }

    /// Prints the end of the daemon, when all connections have ended.
    fn print_gone(&mut self) {
        if self.gone > 0 && self.open == 0 {
            println!("gone {} at {}", self.gone, monotonic_ns());
            // A reader that is gone is no reason to end.
            let _ = std::io::stdout().flush();
            self.gone = 0;
        }
    }
}
