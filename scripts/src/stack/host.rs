//! The stack with its memory, its clock and its wire.

use std::collections::VecDeque;
use std::net::IpAddr;

use megapipe_stack::{
    Config, Congestion, Event, HeapMemory, Instant, Medium, PoolId, Received, Route, Stack,
};

use super::write::excess_bytes;
use super::{knobs, personality};
use crate::dialect::Dialect;
use crate::knobs::Knob;
use crate::limits::{CONNECTIONS, POOL_BUFFER_BYTES, POOL_BUFFERS, STALLS_MAX};
use crate::settings::Settings;
use crate::system::{Injected, Sent, SystemError, Turned};

/// The stack's secret. Always the same, so that a run can be repeated exactly.
const SECRET: [u8; 32] = *b"packet scripts want no surprises";

/// A host with the stack.
pub(super) struct Host {
    /// None until the first socket listens or connects, or a packet arrives.
    stack: Option<Stack>,
    /// Nothing but listeners has been asked of it, and no packet came: it can still be made anew,
    /// with another configuration.
    is_pristine: bool,
    pub(super) memory: HeapMemory,
    pub(super) config: Config,
    pub(super) dialect: Dialect,
    /// The payload of a full segment.
    pub(super) segment_bytes: u32,
    now_us: i64,
    sent: VecDeque<Sent>,
    frame: Vec<u8>,
}

impl Host {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            stack: None,
            is_pristine: true,
            memory: HeapMemory::new(POOL_BUFFERS, POOL_BUFFER_BYTES),
            config: config(settings),
            dialect: settings.dialect,
            segment_bytes: full_segment(settings),
            now_us: 0,
            sent: VecDeque::new(),
            frame: Vec::new(),
        }
    }

    pub(super) fn now_us(&self) -> i64 {
        self.now_us
    }

    pub(super) fn now(&self) -> Instant {
        Instant::from_micros(u64::try_from(self.now_us).unwrap_or(0))
    }

    /// Turns a knob of the configuration. Once the stack runs it is too late for another value.
    pub(super) fn turn(&mut self, knob: &Knob) -> Turned {
        if self.is_pristine {
            return knobs::turn(&mut self.config, knob);
        }
        let mut config = self.config.clone();
        match knobs::turn(&mut config, knob) {
            // As when a script puts everything back at its end.
            Turned::Done if config == self.config => Turned::Done,
            Turned::Done => Turned::TooLate,
            other => other,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.is_pristine
    }

    /// From now on its configuration stays as it is.
    pub(super) fn run(&mut self) {
        self.is_pristine = false;
    }

    /// Gives up a stack that only listens, so that the next one has the configuration of now.
    pub(super) fn unmake(&mut self) {
        if self.is_pristine {
            self.stack = None;
        }
    }

    /// The stack, made when it is first needed.
    pub(super) fn stack(&mut self) -> Result<&mut Stack, SystemError> {
        self.parts().map(|(stack, _)| stack)
    }

    /// The stack and its memory.
    pub(super) fn parts(&mut self) -> Result<(&mut Stack, &mut HeapMemory), SystemError> {
        let now = self.now();
        if self.stack.is_none() {
            let mut config = self.config.clone();
            for bytes in [&mut config.tcp.send_buffer, &mut config.tcp.send_buffer_max] {
                *bytes = bytes.saturating_add(excess_bytes(self.dialect));
            }
            let stack = Stack::new(config, now);
            let stack = stack.map_err(|error| SystemError::Unsupported(error.to_string()))?;
            self.frame.resize(self.config.tx_frame_bytes as usize, 0);
            self.stack = Some(stack);
        }
        match &mut self.stack {
            Some(stack) => Ok((stack, &mut self.memory)),
            None => Err(broken("there is no stack")),
        }
    }

    /// The stack, if it has been needed yet.
    pub(super) fn running(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    /// Takes in a packet.
    pub(super) fn on_packet(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        self.run();
        let now = self.now();
        let (stack, memory) = self.parts()?;
        let received = Received { segment_bytes: packet.segment_bytes, ..Received::default() };
        stack.on_frame(now, packet.bytes, received, memory);
        Ok(())
    }

    /// Takes the stack's events.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let Some(stack) = &mut self.stack else { return Vec::new() };
        std::iter::from_fn(|| stack.poll_event()).collect()
    }

    /// Sends the stack's frames.
    pub(super) fn transmit(&mut self) {
        let now = self.now();
        let Some(stack) = &mut self.stack else { return };
        while let Some(transmit) = stack.poll_transmit(now, &mut self.frame, &mut self.memory) {
            let bytes = self.frame.get(..transmit.len).unwrap_or_default().to_vec();
            self.sent.push_back(Sent { at_us: self.now_us, bytes });
        }
    }

    pub(super) fn next_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }

    /// Lets time pass until the stack's next timeout or `wake_us`, but not beyond `until_us`.
    /// False when it got there without either.
    pub(super) fn step(
        &mut self,
        until_us: i64,
        wake_us: Option<i64>,
    ) -> Result<bool, SystemError> {
        let timeout = self.stack.as_ref().and_then(Stack::poll_timeout);
        // Rounded up: an earlier call would find nothing to do yet.
        let timeout_us = timeout.map(|at| {
            i64::try_from(at.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX).max(self.now_us)
        });
        let wake_us = wake_us.filter(|&at_us| at_us > self.now_us);
        let next_us = match (timeout_us, wake_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match next_us.filter(|&at_us| at_us <= until_us) {
            Some(at_us) => {
                self.now_us = at_us;
                self.time_out()?;
                Ok(true)
            }
            None => {
                self.now_us = self.now_us.max(until_us);
                Ok(false)
            }
        }
    }

    /// Tells the stack the time until it wants to be told a later one.
    fn time_out(&mut self) -> Result<(), SystemError> {
        let now = self.now();
        let Some(stack) = &mut self.stack else { return Ok(()) };
        for _ in 0..STALLS_MAX {
            if stack.poll_timeout().is_none_or(|at| at > now) {
                return Ok(());
            }
            stack.on_timeout(now, &mut self.memory);
        }
        Err(broken("on_timeout is asked for again and again at one time"))
    }

    /// The name of the algorithm of congestion control.
    pub(super) fn congestion(&self) -> &'static str {
        match self.config.tcp.congestion {
            Congestion::Cubic => "cubic",
            Congestion::NewReno => "reno",
        }
    }

    /// Takes another one, if there is such and the stack does not run yet.
    pub(super) fn use_congestion(&mut self, name: &str) -> bool {
        let (name, value) = ("net.ipv4.tcp_congestion_control".to_owned(), name.to_owned());
        self.turn(&Knob { name, value }) == Turned::Done
    }

    pub(super) fn pool() -> PoolId {
        PoolId::default()
    }
}

fn broken(why: &str) -> SystemError {
    SystemError::Broken { what: "the stack", why: why.to_owned() }
}

/// A host at the script's address, with the other side behind it.
pub(super) fn config(settings: &Settings) -> Config {
    let addresses = vec![(settings.local_ip, settings.local_prefix_len)];
    let routes = vec![Route {
        prefix: network(settings.remote_ip, settings.remote_prefix_len),
        prefix_bits: settings.remote_prefix_len,
        via: None,
    }];
    Config {
        medium: Medium::Ip,
        mtu: settings.mtu,
        tx_frame_bytes: u32::from(settings.mtu),
        tx_checksum: false,
        tso: false,
        addresses,
        routes,
        external_neighbours: false,
        vlan: None,
        connections: CONNECTIONS,
        time_waits: CONNECTIONS,
        listeners: CONNECTIONS,
        datagram_endpoints: CONNECTIONS,
        ephemeral_ports: (32_768, 60_999),
        tcp: personality::of(settings.dialect),
        secret: SECRET,
    }
}

/// The payload of a segment without options that fills a packet.
fn full_segment(settings: &Settings) -> u32 {
    let headers = if settings.local_ip.is_ipv6() { 60 } else { 40 };
    u32::from(settings.mtu.saturating_sub(headers)).max(1)
}

/// An address with the bits of its host cleared.
fn network(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}
