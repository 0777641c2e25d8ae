//! One shard of TCP/IP.
//!
//! Invariant: whoever calls takes the outputs after each input or command, or after a burst of
//! them: events, then frames, then the time of the next call of [`Stack::on_timeout`].

mod commands;

use core::net::IpAddr;

use crate::config::{Config, Route};
use crate::counters::{Counters, Drop};
use crate::cx::Cx;
use crate::error::ConfigError;
use crate::event::Event;
use crate::frame::{Received, Transmit};
use crate::ip::Ip;
use crate::ip::input::Inbound;
use crate::ip::reassembly::Reassembly;
use crate::memory::Memory;
use crate::tcp::Tcp;
use crate::time::Instant;

/// A TCP/IP host, as a function of frames, commands and time.
///
/// - Inputs: [`Stack::on_frame`], [`Stack::on_timeout`].
/// - Commands: [`Stack::listen`], [`Stack::accept`], [`Stack::connect`], [`Stack::receive`],
///   [`Stack::send`], [`Stack::shutdown`], [`Stack::close`], [`Stack::abort`] and their kin. None
///   blocks; each has its own errors.
/// - Outputs, after any of these: [`Stack::poll_event`] until it has nothing more to say, then
///   [`Stack::poll_transmit`] likewise, then [`Stack::poll_timeout`].
pub struct Stack {
    ip: Ip,
    reassembly: Reassembly,
    tcp: Tcp,
    config: Config,
    counters: Counters,
    /// Time never runs backwards.
    now: Instant,
}

impl Stack {
    /// Makes a stack. Everything that it will ever need is allocated here.
    ///
    /// # Errors
    ///
    /// Which of the settings is wrong, and why.
    pub fn new(config: Config, now: Instant) -> Result<Self, ConfigError> {
        Ok(Self {
            ip: Ip::new(&config, now)?,
            reassembly: Reassembly::new(),
            tcp: Tcp::new(&config, now),
            counters: Counters::default(),
            config,
            now,
        })
    }

    /// Takes in a frame.
    pub fn on_frame<M: Memory>(
        &mut self,
        now: Instant,
        frame: &[u8],
        received: Received,
        memory: &mut M,
    ) {
        self.tick(now);
        self.counters.totals.frames_in += 1;
        let Self { ip, reassembly, tcp, config, counters, now } = self;
        let inbound = match ip.on_frame(*now, (frame, received), reassembly, counters) {
            Ok(inbound) => inbound,
            Err(reason) => return counters.drop(reason),
        };
        let mut cx = Cx { now: *now, memory, ip, config, counters };
        match inbound {
            Inbound::Tcp(arrived) => tcp.on_segment(&mut cx, &arrived),
            Inbound::Icmp(error) => tcp.on_icmp_error(&mut cx, &error),
            Inbound::Udp(..) => cx.counters.drop(Drop::NoEndpoint),
            Inbound::Handled => {}
        }
        self.tell_of_neighbours(memory);
    }

    /// Looks after what waits for time to pass: call it when [`Stack::poll_timeout`] has come.
    pub fn on_timeout<M: Memory>(&mut self, now: Instant, memory: &mut M) {
        self.tick(now);
        self.ip.on_timeout(self.now);
        let given_up = self.reassembly.on_timeout(self.now, |_| {});
        (0..given_up).for_each(|_| self.counters.drop(Drop::BadFragment));
        self.with(memory, |tcp, cx| tcp.on_timeout(cx));
        self.tell_of_neighbours(memory);
    }

    /// The next event; `None`: no more for now.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.tcp.poll_event(self.now)
    }

    /// Writes one frame into `frame`, which holds `tx_frame_bytes` of the configuration at least.
    /// `None`: there is nothing to send for now.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        memory: &mut M,
    ) -> Option<Transmit> {
        self.tick(now);
        let len = self.ip.poll_transmit(self.now, frame, &mut self.counters);
        let transmit = match len {
            Some(len) => Some(Transmit { len, ..Transmit::default() }),
            None => self.with(memory, |tcp, cx| tcp.poll_transmit(cx, frame)),
        };
        if transmit.is_some() {
            self.counters.totals.frames_out += 1;
            return transmit;
        }
        // Sending may have asked for a neighbour.
        let len = self.ip.poll_transmit(self.now, frame, &mut self.counters)?;
        self.counters.totals.frames_out += 1;
        Some(Transmit { len, ..Transmit::default() })
    }

    /// When [`Stack::on_timeout`] has something to do, at the earliest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timers =
            [self.ip.poll_timeout(), self.reassembly.poll_timeout(), self.tcp.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// What was counted so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Somebody else says at which link address a neighbour is.
    pub fn set_neighbour<M: Memory>(
        &mut self,
        now: Instant,
        ip: IpAddr,
        mac: [u8; 6],
        memory: &mut M,
    ) {
        self.tick(now);
        self.ip.set_neighbour(self.now, ip, mac);
        self.tell_of_neighbours(memory);
    }

    /// Somebody else says that a neighbour is gone.
    pub fn remove_neighbour(&mut self, ip: IpAddr) {
        self.ip.remove_neighbour(ip);
    }

    /// With `external_neighbours`: a neighbour that somebody waits for.
    pub fn poll_wanted(&mut self, now: Instant) -> Option<IpAddr> {
        self.tick(now);
        self.ip.poll_wanted(self.now)
    }

    /// Replaces our addresses, each with the length of its prefix in bits.
    ///
    /// # Errors
    ///
    /// What is wrong with them; nothing changed.
    pub fn set_addresses(&mut self, addresses: &[(IpAddr, u8)]) -> Result<(), ConfigError> {
        self.ip.set_addresses(addresses)
    }

    /// Replaces the routes.
    ///
    /// # Errors
    ///
    /// What is wrong with them; nothing changed.
    pub fn set_routes(&mut self, routes: &[Route]) -> Result<(), ConfigError> {
        self.ip.set_routes(routes)
    }

    /// Checks what holds between two calls.
    ///
    /// # Panics
    ///
    /// If something is wrong with this stack.
    #[cfg(any(test, feature = "invariants"))]
    pub fn check_invariants(&self) {
        self.tcp.check_invariants();
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn with<M: Memory, R>(
        &mut self,
        memory: &mut M,
        f: impl FnOnce(&mut Tcp, &mut Cx<'_, M>) -> R,
    ) -> R {
        let Self { ip, tcp, config, counters, now, .. } = self;
        f(tcp, &mut Cx { now: *now, memory, ip, config, counters })
    }

    /// Connections that wait for a neighbour go on, or give up.
    fn tell_of_neighbours<M: Memory>(&mut self, memory: &mut M) {
        while let Some((neighbour, resolved)) = self.ip.poll_neighbour(&mut self.counters) {
            self.with(memory, |tcp, cx| tcp.on_neighbour(cx, neighbour, resolved));
        }
    }
}
