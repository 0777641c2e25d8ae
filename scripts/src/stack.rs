//! Our own stack as a system under test, in virtual time.
//!
//! In: a script. Out: its outcome on `megapipe-sockets` over our stack. When the script lets time
//! pass, the clock jumps from one thing that is due to the next, and what the stack sends carries
//! the exact time at which it was sent.
//!
//! Read first: `world.rs`, the host that packetdrill's plug-in drives as well.
//!
//! Invariant: a call that blocks is made by a thread of its own, and time stands still until it is
//! over or sleeps, so a script runs the same way each time.

mod calls;
mod fast_open;
mod knobs;
mod personality;
mod program;

#[cfg(test)]
mod tests;

use std::time::Duration;

use megapipe_sockets::Error;
use megapipe_stack::TcpConfig;

use crate::dialect::Dialect;
use crate::knobs::{Knob, from_text};
use crate::report::ScriptOutcome;
use crate::run::run;
use crate::script::Script;
use crate::settings::ScriptSettings;
use crate::stack::knobs::Knobs;
use crate::stack::program::StackProgram;
use crate::system::{Call, Injected, KnobResult, Returned, SentPacket, System, SystemError};
use crate::wire::ChecksumTrust;
use crate::world::{ScriptWorld, WorldStack, host};
use crate::{refused, skipped};

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
    let mut config = Knobs { tcp: personality::of(Dialect::Linux), mtu: 0 };
    for knob in from_text(knobs) {
        if knobs::set_knob(&mut config, &knob) != KnobResult::Done {
            return Err(UnknownKnob(format!("{}={}", knob.name, knob.value)));
        }
    }
    Ok(config.tcp)
}

/// Knobs for every script of a run: `MEGAPIPE_KNOBS=tcp_ecn=1,delayed_ack_ms=20`.
const KNOBS_VARIABLE: &str = "MEGAPIPE_KNOBS";

/// Runs a script on the stack. Takes no longer than the computing takes.
pub(crate) fn run_script(
    script: &Script,
    settings: ScriptSettings,
    stack: WorldStack,
) -> ScriptOutcome {
    let mut system = OurStack::new(&settings, stack);
    let text = std::env::var(KNOBS_VARIABLE).unwrap_or_default();
    for knob in from_text(&text) {
        if system.set_knob(&knob) != Ok(KnobResult::Done) {
            return skipped(format!("{KNOBS_VARIABLE}: no knob {}={}", knob.name, knob.value));
        }
    }
    if let Some(line) = fast_open::needed_in_line(script) {
        let what = SystemError::Unsupported("TCP Fast Open by the experimental option".to_owned())
            .to_string();
        return refused(line, what);
    }
    run(script, settings, &mut system)
}

/// A host with our stack, and a program with sockets on it.
struct OurStack {
    settings: ScriptSettings,
    stack: WorldStack,
    knobs: Knobs,
    running: Option<RunningStack>,
    /// The script's time as long as nothing runs.
    now_us: i64,
}

/// What runs from the first call or packet on.
struct RunningStack {
    world: ScriptWorld,
    program: StackProgram,
    /// Start of the script: the script's time, and the simulated host's.
    began: (i64, Duration),
}

impl OurStack {
    fn new(settings: &ScriptSettings, stack: WorldStack) -> Self {
        let knobs = Knobs { tcp: personality::of(settings.dialect), mtu: settings.mtu };
        Self { settings: settings.clone(), stack, knobs, running: None, now_us: 0 }
    }

    /// The simulated host, created on first use: from then on its settings are fixed.
    fn running(&mut self) -> Result<&mut RunningStack, SystemError> {
        if self.running.is_none() {
            let address = (self.settings.local_ip, self.settings.local_prefix_len);
            let config = host(vec![address], self.knobs.mtu, self.knobs.tcp.clone());
            let world = ScriptWorld::on(self.stack, config, Duration::ZERO);
            let world = world.map_err(|error| SystemError::Unsupported(error.to_string()))?;
            let program = StackProgram::start(&world)?;
            let began = (self.now_us, world.elapsed());
            self.running = Some(RunningStack { world, program, began });
        }
        self.running.as_mut().ok_or_else(|| broken("it does not run"))
    }
}

impl Drop for RunningStack {
    fn drop(&mut self) {
        self.program.end(&self.world);
    }
}

impl RunningStack {
    fn to_us(&self, at: Duration) -> i64 {
        let (us, began) = self.began;
        let since_us = at.saturating_sub(began).as_micros();
        us.saturating_add(i64::try_from(since_us).unwrap_or(i64::MAX))
    }

    /// The host's time at a time of the script.
    fn at(&self, at_us: i64) -> Duration {
        let (us, began) = self.began;
        began + Duration::from_micros(u64::try_from(at_us - us).unwrap_or(0))
    }
}

fn broken(why: impl ToString) -> SystemError {
    SystemError::Failed { what: "the stack", why: why.to_string() }
}

fn gone(error: Error) -> SystemError {
    broken(error)
}

impl System for OurStack {
    fn checksums(&self) -> ChecksumTrust {
        ChecksumTrust::Verified
    }

    fn set_knob(&mut self, knob: &Knob) -> Result<KnobResult, SystemError> {
        let mut knobs = self.knobs.clone();
        Ok(match knobs::set_knob(&mut knobs, knob) {
            // As when a script puts everything back at its end.
            KnobResult::Done if self.running.is_some() && knobs != self.knobs => {
                KnobResult::TooLate
            }
            KnobResult::Done => {
                self.knobs = knobs;
                KnobResult::Done
            }
            other => other,
        })
    }

    fn begin(&mut self) -> Result<(), SystemError> {
        Ok(())
    }

    fn now_us(&mut self) -> i64 {
        self.running.as_ref().map_or(self.now_us, |running| running.to_us(running.world.elapsed()))
    }

    fn wait_until_us(&mut self, at_us: i64) -> Result<(), SystemError> {
        let Some(running) = &self.running else {
            self.now_us = self.now_us.max(at_us);
            return Ok(());
        };
        let waited = running.world.run_until(running.at(at_us), || None::<()>);
        waited.map(drop).map_err(gone)
    }

    fn start_call(&mut self, call: Call) -> Result<(), SystemError> {
        if let Call::Splice { .. } = call {
            return Err(SystemError::Unsupported("splice".to_owned()));
        }
        let RunningStack { world, program, .. } = self.running()?;
        program.start_call(world, call)?;
        world.advance().map(drop).map_err(gone)
    }

    fn await_call(&mut self, until_us: i64) -> Result<Option<(Returned, i64)>, SystemError> {
        let Some(running) = &self.running else { return Ok(None) };
        let ended = running.world.run_until(running.at(until_us), || running.program.ended());
        Ok(ended.map_err(gone)?.map(|(returned, at)| (returned, running.to_us(at))))
    }

    fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        self.running()?.world.send(packet.bytes, packet.segment_bytes).map_err(gone)
    }

    fn next_sent(&mut self, until_us: i64) -> Result<Option<SentPacket>, SystemError> {
        let running = self.running()?;
        let sent = running.world.receive(running.at(until_us)).map_err(gone)?;
        Ok(sent.map(|sent| SentPacket { at_us: running.to_us(sent.at), bytes: sent.bytes }))
    }
}
