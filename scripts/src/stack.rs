//! Our own stack as a system under test, in virtual time.
//!
//! In: a script. Out: its outcome on `megapipe-stack`. Nothing here waits: when the script lets
//! time pass, the clock jumps from one of the stack's timeouts to the next, and what the stack
//! sends carries the exact time at which it was sent.
//!
//! Read first: `megapipe_stack::Stack`, whose order of calls `host.rs` keeps; `sockets.rs`, which
//! makes BSD calls of its commands and events.
//!
//! Invariants
//! - After every input the stack's events are taken, then its frames, before anything else happens.
//! - A call that blocks is tried again after everything that happens, and ends at that very time.

mod datagram;
mod error_queue;
mod host;
mod knobs;
mod options;
mod personality;
mod ready;
mod sockets;
mod stream;
mod write;

#[cfg(test)]
mod tests;

use megapipe_stack::TcpConfig;

use crate::dialect::Dialect;
use crate::knobs::{Knob, from_text};
use crate::report::Outcome;
use crate::run::run;
use crate::script::Script;
use crate::settings::{IpVersion, Settings};
use crate::skipped;
use crate::stack::host::Host;
use crate::stack::sockets::Sockets;
use crate::system::{Call, Injected, Returned, Sent, System, SystemError, Turned};
use crate::wire::Checksums;

/// A knob that the stack does not have, or not with that value, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no knob {0}")]
pub struct UnknownKnob(pub String);

/// TCP as scripts expect it, with the knobs of a list as in `MEGAPIPE_KNOBS`: for programs that run
/// scripts on our stack by other means.
///
/// # Errors
/// [`UnknownKnob`] names the first that is none.
pub fn tcp_for_scripts(knobs: &str) -> Result<TcpConfig, UnknownKnob> {
    let mut config = host::config(&Settings::of(IpVersion::V4, Dialect::Linux));
    for knob in from_text(knobs) {
        if knobs::turn(&mut config, &knob) != Turned::Done {
            return Err(UnknownKnob(format!("{}={}", knob.name, knob.value)));
        }
    }
    Ok(config.tcp)
}

/// Knobs for every script of a run: `MEGAPIPE_KNOBS=tcp_ecn=1,delayed_ack_ms=20`.
const KNOBS_VARIABLE: &str = "MEGAPIPE_KNOBS";

/// Runs a script on the stack. Takes no longer than the computing takes.
pub(crate) fn run_script(script: &Script, settings: Settings) -> Outcome {
    let mut system = OurStack::new(&settings);
    let text = std::env::var(KNOBS_VARIABLE).unwrap_or_default();
    for knob in from_text(&text) {
        if system.turn(&knob) != Ok(Turned::Done) {
            return skipped(format!("{KNOBS_VARIABLE}: no knob {}={}", knob.name, knob.value));
        }
    }
    run(script, settings, &mut system)
}

/// A host with our stack, and a program with sockets on it.
struct OurStack {
    host: Host,
    sockets: Sockets,
    /// The call under way.
    pending: Option<Call>,
    finished: Option<(Returned, i64)>,
}

impl OurStack {
    fn new(settings: &Settings) -> Self {
        Self {
            host: Host::new(settings),
            sockets: Sockets::default(),
            pending: None,
            finished: None,
        }
    }

    /// Tries the call under way again and takes what the stack has to say, until it is quiet.
    fn settle(&mut self) -> Result<(), SystemError> {
        loop {
            self.sockets.look_at_edges(&self.host);
            self.try_call()?;
            let events = self.host.events();
            let is_quiet = events.is_empty();
            for event in events {
                self.sockets.on_event(event, &mut self.host);
            }
            self.host.transmit();
            self.sockets.look_at_sent(&self.host);
            if is_quiet {
                return Ok(());
            }
        }
    }

    /// Ends the call under way if it can.
    fn try_call(&mut self) -> Result<(), SystemError> {
        let Some(call) = &self.pending else { return Ok(()) };
        if let Some(returned) = self.sockets.attempt(call, &mut self.host)? {
            self.finished = Some((returned, self.host.now_us()));
            self.pending = None;
        }
        Ok(())
    }

    /// Goes on to the stack's next timeout, but not beyond `until_us`. Whether there was one.
    fn step(&mut self, until_us: i64) -> Result<bool, SystemError> {
        let wake_us = self.sockets.wake_us();
        let has_timeout = self.host.step(until_us, wake_us)?;
        self.settle()?;
        Ok(has_timeout)
    }
}

impl System for OurStack {
    fn checksums(&self) -> Checksums {
        Checksums::Verified
    }

    fn turn(&mut self, knob: &Knob) -> Result<Turned, SystemError> {
        let turned = self.host.turn(knob);
        self.sockets.listen_anew(&mut self.host)?;
        Ok(turned)
    }

    fn begin(&mut self) -> Result<(), SystemError> {
        Ok(())
    }

    fn now_us(&mut self) -> i64 {
        self.host.now_us()
    }

    fn wait_until_us(&mut self, at_us: i64) -> Result<(), SystemError> {
        while self.step(at_us)? {}
        Ok(())
    }

    fn start_call(&mut self, call: Call) -> Result<(), SystemError> {
        self.finished = None;
        self.sockets.begin(&call, self.host.now_us());
        self.pending = Some(call);
        self.settle()
    }

    fn await_call(&mut self, until_us: i64) -> Result<Option<(Returned, i64)>, SystemError> {
        while self.finished.is_none() && self.step(until_us)? {}
        let finished = self.finished.take();
        if finished.is_none() {
            self.pending = None;
        }
        Ok(finished)
    }

    fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        self.host.on_packet(packet)?;
        self.settle()
    }

    fn next_sent(&mut self, until_us: i64) -> Result<Option<Sent>, SystemError> {
        loop {
            if let Some(sent) = self.host.next_sent() {
                return Ok(Some(sent));
            }
            if !self.step(until_us)? {
                return Ok(self.host.next_sent());
            }
        }
    }
}
