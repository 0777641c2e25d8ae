//! CPU time of an idle server on the stack, with one shard or two.
//!
//! Its connections are open and have each carried a transaction; then they are idle. The processor
//! time of all its threads is read from the kernel's scheduler (`/proc/PID/task/TID/schedstat`, in
//! nanoseconds) before and after a while. ETA's servers always polled, which cost them at
//! low load [ETA 7.2].

use crate::{
    cpu_time::run_time,
    layout::{BenchLayout, LayoutError},
    limits,
    peer_channel::PeerError,
    run::Bench,
    server::{RunningServer, ServerStartError, ServiceKind, TestedServer, control_socket},
    stack_link::{StackLink, StackPlacement},
};
use megapipe::{
    Address, Backend, Channel, Config, ConnectOptions, Event, LocalNetwork, OpError, ServerConfig,
    ServiceAddress,
};
use megapipe_apps::rpc::protocol::{Lengths, MESSAGE_LEN_DEFAULT, header};
use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

/// The processor time could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShardIdleError {
    #[error(transparent)]
    Server(#[from] ServerStartError),
    #[error("reading /proc: {0}")]
    System(#[from] io::Error),
    #[error("the peer: {0}")]
    Peer(#[from] PeerError),
}

/// An idle server: where its stack runs (none: inside its channels' dispatch), and what it serves.
pub(crate) type Idle = (Option<StackPlacement>, ServiceKind);

/// What an idle daemon has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleDaemon {
    /// Open connections of one application.
    pub(crate) connections: u32,
    /// Applications besides, each with a session and nothing else.
    pub(crate) sessions: usize,
}

/// The share of a core that an idle server is busy, all its threads together: 0 to the number of
/// its threads. Blocks for the bench's window and about a second.
///
/// # Errors
/// [`ShardIdleError`], or that there is no place to measure in.
pub(crate) fn busy_share(
    bench: &mut Bench,
    idle: Idle,
) -> Result<Result<f64, ShardIdleError>, LayoutError> {
    let (window, scratch) = (bench.effort.window, bench.scratch.path().to_owned());
    let layout = bench.layout(1)?;
    Ok(measure(idle, window, layout, &scratch))
}

/// The same of a daemon's threads alone, which other applications are attached to.
///
/// # Errors
/// As [`busy_share`].
pub(crate) fn daemon_busy_share(
    bench: &mut Bench,
    idle: IdleDaemon,
) -> Result<Result<f64, ShardIdleError>, LayoutError> {
    let (window, scratch) = (bench.effort.window, bench.scratch.path().to_owned());
    let layout = bench.layout(1)?;
    Ok(measure_daemon(idle, window, layout, &scratch))
}

fn measure_daemon(
    IdleDaemon { connections, sessions }: IdleDaemon,
    window: Duration,
    layout: &BenchLayout,
    scratch: &Path,
) -> Result<f64, ShardIdleError> {
    let server = TestedServer::Placed(StackLink::Memif, StackPlacement::Service);
    let mut server = RunningServer::start(server, ServiceKind::Rpc, layout, scratch)?;
    let daemon = server.daemon_pid().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let mut peer = Peer::open(layout, scratch, connections)?;
    peer.ask_each_once(&Address::from(server.address), connections)?;
    let mut others = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        others.push(attach(scratch)?);
    }
    peer.look_on_for(limits::SHARD_IDLE_SETTLE)?;
    let (start, before) = (Instant::now(), run_time(daemon)?);
    peer.look_on_for(window)?;
    let (spent, after) = (start.elapsed(), run_time(daemon)?);
    server.check()?;
    drop(others);
    Ok(after.saturating_sub(before).as_secs_f64() / spent.as_secs_f64())
}

/// A channel of this process at the daemon of a server.
///
/// # Errors
/// Why it cannot attach.
pub(crate) fn attach(scratch: &Path) -> Result<Channel, PeerError> {
    let address = ServiceAddress::new(control_socket(scratch));
    Ok(Channel::create(Config::default().backend(Backend::Service(address)))?)
}

fn measure(
    (placement, service): Idle,
    window: Duration,
    layout: &BenchLayout,
    scratch: &Path,
) -> Result<f64, ShardIdleError> {
    let link = StackLink::Memif;
    let server =
        placement.map_or(TestedServer::Local(link), |place| TestedServer::Placed(link, place));
    let mut server = RunningServer::start(server, service, layout, scratch)?;
    let connections = limits::SHARD_IDLE_CONNECTIONS;
    let mut peer = Peer::open(layout, scratch, connections)?;
    peer.ask_each_once(&Address::from(server.address), connections)?;
    peer.look_on_for(limits::SHARD_IDLE_SETTLE)?;
    let (start, before) = (Instant::now(), run_time(server.pid())?);
    peer.look_on_for(window)?;
    let (spent, after) = (start.elapsed(), run_time(server.pid())?);
    server.check()?;
    Ok(after.saturating_sub(before).as_secs_f64() / spent.as_secs_f64())
}

/// The other end, in this process: opens connections and sleeps.
pub(crate) struct Peer(Channel);

impl Peer {
    /// The peer of a server over memif, with room for so many connections.
    pub(crate) fn open(
        layout: &BenchLayout,
        scratch: &Path,
        connections: u32,
    ) -> Result<Self, PeerError> {
        let (link, address, prefix_bits) = StackLink::memif_peer(layout, scratch);
        let settings = ServerConfig {
            addresses: vec![(address, prefix_bits)],
            connections: connections * 2,
            ..ServerConfig::default()
        };
        let network = LocalNetwork::open(&link, settings)?;
        Ok(Self(Channel::create(Config::default().backend(Backend::Local(network)))?))
    }

    fn ask_each_once(&mut self, server: &Address, connections: u32) -> Result<(), PeerError> {
        for _ in 0..connections {
            self.0.connect(server, &ConnectOptions::default(), 0)?;
        }
        let mut request = [0; MESSAGE_LEN_DEFAULT as usize];
        request[..16].copy_from_slice(&header(Lengths::default(), 0));
        let deadline = Instant::now() + limits::SHARD_IDLE_OPEN_MAX;
        let mut unanswered = connections as usize * request.len();
        while unanswered > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(done) = self.0.dispatch(Some(left))? else {
                return Err(PeerError::Exchange("not all connections were answered in time"));
            };
            match done.event {
                // The server opens its memif before it listens.
                Event::Connect(Err(OpError::Refused)) if !left.is_zero() => {
                    self.0.unregister(done.handle)?;
                    self.0.connect(server, &ConnectOptions::default(), 0)?;
                }
                Event::Connect(outcome) => {
                    outcome?;
                    self.0.write_quiet(done.handle, request.to_vec())?;
                    self.0.read(done.handle, request.len())?;
                }
                Event::Read(bytes) => {
                    let len = bytes?.len();
                    if len == 0 {
                        return Err(OpError::Reset.into());
                    }
                    unanswered = unanswered.saturating_sub(len);
                    self.0.read(done.handle, request.len())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until a server answers on a connection.
    pub(crate) fn await_listener(&mut self, server: &Address) -> Result<(), PeerError> {
        self.ask_each_once(server, 1)
    }

    /// Takes what comes, asleep meanwhile.
    pub(crate) fn look_on_for(&mut self, time: Duration) -> Result<(), PeerError> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.0.dispatch(Some(left))?;
        }
    }
}
