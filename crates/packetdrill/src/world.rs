//! Sockets, wire and clock, and how time passes.
//!
//! The thread of packetdrill that runs the script drives: each of its calls ends with a turn of
//! the stack, and `usleep`, `gettimeofday` and `netdev_receive` let time pass from one thing that
//! is due to the next. A blocking call is made by a second thread. When a turn wakes it, the
//! driving thread lets it come back before time goes on, as far as that can be seen from here.
//!
//! Invariant: what the stack sends is stamped with the virtual time at which it was due.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{Backend, Clock, LocalNetwork, NetworkError};
use megapipe_sockets::{Config, CreateError, Driving, Error, SharedContext};

use crate::flags::{FlagError, Flags};
use crate::limits::{DESCRIPTORS, EPOCH_US, LOOK_TIME, NOTE_TIME, RECEIVE_TIME, RETURN_TIME};
use crate::wire::{Far, Sent, Wire};

/// Why there is no world.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorldError {
    #[error("so_flags: {0}")]
    Flags(#[from] FlagError),
    #[error("the wire: {0}")]
    Wire(#[from] io::Error),
    #[error("the network: {0}")]
    Network(#[from] NetworkError),
    #[error("the sockets: {0}")]
    Sockets(#[from] CreateError),
}

/// One host and its wire.
pub(crate) struct World {
    context: SharedContext,
    clock: Clock,
    far: Far,
    /// Calls that threads are inside of.
    inside: AtomicUsize,
}

impl World {
    pub(crate) fn new(flags: &str) -> Result<Self, WorldError> {
        let flags = Flags::parse(flags)?;
        let clock = Clock::by_hand();
        let (wire, far) = Wire::new(flags.mtu, clock.clone())?;
        let mut settings = flags.settings()?;
        settings.clock = clock.clone();
        let network = LocalNetwork::over(vec![Box::new(wire)], settings)?;
        let channel =
            megapipe::Config::default().backend(Backend::Local(network)).max_lwsockets(DESCRIPTORS);
        let config = Config::default()
            .channel(channel)
            .descriptors(DESCRIPTORS)
            .clock(clock.clone())
            .freshness(Duration::ZERO);
        let context = SharedContext::create(config, Driving::Outside)?;
        Ok(Self { context, clock, far, inside: AtomicUsize::new(0) })
    }

    /// Makes a call, which may sleep until another thread lets time pass or hands in a packet.
    pub(crate) fn call<T>(
        &self,
        call: impl FnOnce(&mut SharedContext) -> Result<T, Error>,
    ) -> Result<T, Error> {
        struct Inside<'world>(&'world AtomicUsize);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                // Release pairs with the Acquire in `come_back`: what the call did is done.
                self.0.fetch_sub(1, Ordering::Release);
            }
        }
        self.inside.fetch_add(1, Ordering::Relaxed);
        let _inside = Inside(&self.inside);
        call(&mut self.context.clone())
    }

    /// A packet arrives; the stack deals with it at once.
    pub(crate) fn send(&self, packet: &[u8]) -> Result<(), Error> {
        let taken = self.far.send(packet);
        self.turn()?;
        if taken { Ok(()) } else { Err(Error::NoBuffers) }
    }

    /// The next packet that the stack sends, now or when it is due.
    pub(crate) fn receive(&self) -> Result<Sent, Error> {
        let limit = self.clock.elapsed() + RECEIVE_TIME;
        loop {
            let until = self.turn()?;
            if let Some(sent) = self.far.receive() {
                return Ok(sent);
            }
            let left = limit.saturating_sub(self.clock.elapsed());
            match until {
                _ if left.is_zero() => return Err(Error::TimedOut),
                Some(until) => self.clock.advance(until.clamp(Duration::from_micros(1), left)),
                None => {
                    // Nothing is due, ever. Another thread may be about to call; let it.
                    thread::sleep(NOTE_TIME);
                    self.clock.advance(left);
                }
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn run_for(&self, time: Duration) -> Result<(), Error> {
        let end = self.clock.elapsed() + time;
        loop {
            let until = self.turn()?;
            let left = end.saturating_sub(self.clock.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            let step = until.unwrap_or(left).clamp(Duration::from_nanos(1), left);
            self.clock.advance(step);
        }
    }

    /// Microseconds since 1970, as the world has it.
    pub(crate) fn now_us(&self) -> u64 {
        Self::to_us(self.clock.elapsed())
    }

    /// A time of the world's clock in microseconds since 1970.
    pub(crate) fn to_us(at: Duration) -> u64 {
        EPOCH_US + u64::try_from(at.as_micros()).unwrap_or(u64::MAX - EPOCH_US)
    }

    /// Everything that can be done now; how long until more is due.
    fn turn(&self) -> Result<Option<Duration>, Error> {
        loop {
            let until = self.context.turn()?;
            if !self.come_back() {
                return Ok(until);
            }
        }
    }

    /// Waits until calls that were woken are over, or sleep again, and a little longer where one is
    /// over: its thread will want to note the time. Whether there was one.
    fn come_back(&self) -> bool {
        let began = Instant::now();
        // Acquire pairs with the Release in `call`.
        let before = self.inside.load(Ordering::Acquire);
        if before == 0 || self.context.sleeping() >= before {
            return false;
        }
        while began.elapsed() < RETURN_TIME {
            let inside = self.inside.load(Ordering::Acquire);
            if self.context.sleeping() >= inside {
                if inside < before {
                    thread::sleep(NOTE_TIME);
                }
                return true;
            }
            thread::sleep(LOOK_TIME);
        }
        // A thread that the machine does not run now is no reason to stand still.
        false
    }
}
