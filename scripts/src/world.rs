//! A host in virtual time: sockets of `megapipe-sockets`, our stack below them and a wire.
//!
//! Two interpreters drive it: the runner of this crate (`stack.rs`) and packetdrill itself
//! (`crates/packetdrill`), so a script means the same in both. The interpreter's thread drives:
//! each call ends with a turn of the stack, and time passes only in [`ScriptWorld::run_until`],
//! from one thing that is due to the next. A blocking call is made by a second thread. When a turn
//! wakes it, the driving thread waits until the call is over or sleeps again before time goes on.
//!
//! Invariants
//! - A packet is stamped with the virtual time at which the stack sent it.
//! - A call that waits sleeps on a futex of the shared context and nowhere else.

mod daemon;
mod wire;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{Backend, Clock, LocalNetwork, NetworkError, ServerConfig};
use megapipe_sockets::{Bsd, Config, CreateError, Driving, Error, SharedContext, Shutdown};
use megapipe_stack::TcpConfig;

use crate::limits::{DESCRIPTORS, END_TIME, LOOK_TIME, RETURN_TIME};
use crate::world::daemon::ScriptDaemon;
use crate::world::wire::{Far, StackWire};

pub use crate::world::wire::StackSent;

/// Why there is no simulated host.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// No descriptor for the wire.
    #[error("the wire: {0}")]
    Wire(#[from] io::Error),
    /// The stack refuses its settings.
    #[error("the network: {0}")]
    Network(#[from] NetworkError),
    /// The sockets cannot be made.
    #[error("the sockets: {0}")]
    Sockets(#[from] CreateError),
}

/// The settings of a host with these addresses. The other side is behind a gateway of each family.
#[must_use]
pub fn host(addresses: Vec<(IpAddr, u8)>, mtu: u16, tcp: TcpConfig) -> ServerConfig {
    let mut gateways: Vec<IpAddr> = Vec::new();
    for (address, bits) in &addresses {
        if !gateways.iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            gateways.push(beside(*address, *bits));
        }
    }
    ServerConfig { addresses, gateways, mtu: Some(mtu), tcp, ..ServerConfig::default() }
}

/// Returns another host's address of the same prefix. Nothing asks for it: the wire has no link
/// layer.
fn beside(address: IpAddr, prefix_bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(ip) => {
            let hosts = u32::MAX.checked_shr(prefix_bits.into()).unwrap_or(0);
            // Neither the prefix's own address nor its broadcast address.
            let is_host = |ip: &u32| ip & hosts != 0 && ip & hosts != hosts;
            let others = [1, 2, 3].map(|bits| ip.to_bits() ^ bits);
            Ipv4Addr::from_bits(
                others.into_iter().find(is_host).unwrap_or_else(|| ip.to_bits() ^ 1),
            )
            .into()
        }
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() ^ 1).into(),
    }
}

/// One host and its wire.
pub struct ScriptWorld {
    context: SharedContext,
    clock: Clock,
    far: Far,
    /// Calls that threads are inside of.
    inside: Arc<AtomicUsize>,
    /// Real time that the caller of a blocking call gets to note its end.
    note_time: Duration,
    /// Of a stack in a daemon. Last: its sessions end before it.
    daemon: Option<ScriptDaemon>,
}

/// Where the stack of a world runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorldStack {
    /// In the sockets' own channel.
    Local,
    /// In a daemon of the back end `service`, on a thread of this process.
    Service,
}

/// A call is under way while this exists.
#[derive(Debug)]
pub struct CallGuard(Arc<AtomicUsize>);

impl Drop for CallGuard {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `await_return`: what the call did is visible.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl ScriptWorld {
    /// Makes a host with a stack of its own ([`ScriptWorld::on`]).
    ///
    /// # Errors
    /// [`WorldError`].
    pub fn new(settings: ServerConfig, note_time: Duration) -> Result<Self, WorldError> {
        Self::on(WorldStack::Local, settings, note_time)
    }

    /// Makes a host with the addresses, MTU and TCP of `settings`, whose clock is set by hand.
    /// `note_time` is real time that passes after the end of a call that blocked, for a caller who
    /// reads the clock after it.
    ///
    /// # Errors
    /// [`WorldError`].
    pub fn on(
        stack: WorldStack,
        mut settings: ServerConfig,
        note_time: Duration,
    ) -> Result<Self, WorldError> {
        let clock = Clock::by_hand();
        let mtu = settings.mtu.unwrap_or(u16::MAX);
        let (wire, far) = StackWire::new(mtu, clock.clone())?;
        settings.connections = DESCRIPTORS;
        settings.clock = clock.clone();
        if stack == WorldStack::Service {
            // A shard that spins does so until the time is set.
            settings.waits.spin = Duration::ZERO;
        }
        let network = LocalNetwork::over(vec![Box::new(wire)], settings)?;
        let (backend, daemon) = match stack {
            WorldStack::Local => (Backend::Local(network), None),
            WorldStack::Service => {
                let daemon = ScriptDaemon::start(network, far.clone(), clock.clone())?;
                (Backend::Service(daemon.address()), Some(daemon))
            }
        };
        let channel = megapipe::Config::default().backend(backend).max_lwsockets(DESCRIPTORS);
        let config = Config::default()
            .channel(channel)
            .descriptors(DESCRIPTORS)
            .clock(clock.clone())
            .freshness(Duration::ZERO);
        let context = SharedContext::create(config, Driving::Outside)?;
        Ok(Self { context, clock, far, inside: Arc::default(), note_time, daemon })
    }

    /// The sockets, for a thread that makes calls. A call that may block needs an [`CallGuard`].
    #[must_use]
    pub fn sockets(&self) -> SharedContext {
        self.context.clone()
    }

    /// A call begins. Taken before the thread that makes it runs, and dropped after the call's
    /// result is noted, it keeps time from passing between.
    #[must_use]
    pub fn enter(&self) -> CallGuard {
        // Relaxed: the count publishes nothing. A driving thread that misses a call of another
        // thread sees it in a later turn.
        self.inside.fetch_add(1, Ordering::Relaxed);
        CallGuard(Arc::clone(&self.inside))
    }

    /// Makes a call, which may block until another thread advances the time or injects a packet.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call<T>(
        &self,
        call: impl FnOnce(&mut SharedContext) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _inside = self.enter();
        call(&mut self.context.clone())
    }

    /// A packet arrives, from the IP header on; the stack handles it at once. With `segment_bytes`
    /// other than 0 it is a train of TCP segments with so much payload each, as a device merges
    /// them.
    ///
    /// # Errors
    /// [`Error::NoBuffers`]: too many packets wait; [`Error::NetworkDown`].
    pub fn send(&self, packet: &[u8], segment_bytes: u16) -> Result<(), Error> {
        let is_taken = self.far.send(packet, segment_bytes);
        self.advance()?;
        if is_taken { Ok(()) } else { Err(Error::NoBuffers) }
    }

    /// The next packet that the stack sent, if there is one by `end`.
    ///
    /// # Errors
    /// [`Error::NetworkDown`].
    pub fn receive(&self, end: Duration) -> Result<Option<StackSent>, Error> {
        self.run_until(end, || self.far.receive())
    }

    /// Whether [`ScriptWorld::receive`] has a packet now.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.far.has_sent()
    }

    /// Lets time pass until `found` finds something, at most until `end`.
    ///
    /// # Errors
    /// [`Error::NetworkDown`].
    pub fn run_until<T>(
        &self,
        end: Duration,
        mut found: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        loop {
            let until = self.advance()?;
            if let Some(found) = found() {
                return Ok(Some(found));
            }
            let left = end.saturating_sub(self.clock.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if until.is_none() {
                // Nothing is due, ever. Another thread may be about to call; let it.
                thread::sleep(self.note_time);
            }
            let step = until.unwrap_or(left).clamp(Duration::from_nanos(1), left);
            self.clock.advance(step);
        }
    }

    /// The clock that [`ScriptWorld::run_until`] sets.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Whether a call is under way.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        // Acquire pairs with the Release in `CallGuard`.
        self.inside.load(Ordering::Acquire) > 0
    }

    /// The virtual time.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Waits until calls that began or were woken are over or sleep, then does everything that can
    /// be done now. How long until more is due.
    ///
    /// # Errors
    /// [`Error::NetworkDown`].
    pub fn advance(&self) -> Result<Option<Duration>, Error> {
        self.await_return();
        loop {
            let poll = || self.context.poll_channel();
            let until = match &self.daemon {
                Some(daemon) => daemon.settle(poll)?,
                None => poll()?,
            };
            if !self.await_return() {
                return Ok(until);
            }
        }
    }

    /// Waits until calls under way are over or sleep. Whether there was one that did neither. Where
    /// one is over, its thread gets the time to note it.
    fn await_return(&self) -> bool {
        // Acquire pairs with the Release in `CallGuard`.
        let before = self.inside.load(Ordering::Acquire);
        if before == 0 || self.context.sleeping() >= before {
            return false;
        }
        let began = Instant::now();
        while began.elapsed() < RETURN_TIME {
            let inside = self.inside.load(Ordering::Acquire);
            if self.context.sleeping() >= inside {
                if inside < before {
                    thread::sleep(self.note_time);
                }
                return true;
            }
            thread::sleep(LOOK_TIME);
        }
        // A thread that the machine does not run now is no reason to stand still.
        false
    }

    /// Ends all sockets if a call still sleeps, and waits a moment for it.
    pub fn end(&self) {
        if !self.is_inside() {
            return;
        }
        let mut sockets = self.sockets();
        let last = i32::try_from(DESCRIPTORS).unwrap_or(i32::MAX);
        for fd in 0..last {
            // What is no socket, or not open, has no call that would wait for it.
            let _ = sockets.shutdown(fd, Shutdown::Both);
            let _ = sockets.close(fd);
        }
        let began = Instant::now();
        while self.is_inside() && began.elapsed() < END_TIME {
            if self.context.poll_channel().is_err() {
                return;
            }
            thread::sleep(LOOK_TIME);
        }
    }
}
