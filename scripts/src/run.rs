//! Works through a script: the evaluator.
//!
//! In: a script and a system under test. Out: an `ScriptOutcome`. Semantics are packetdrill's:
//! - a relative time counts from now, that is from the end of the event before; between inbound
//!   packets that follow each other it counts from the time of the one before, so that delays do
//!   not add up;
//! - outbound packets are taken in the order in which they were sent, those of other connections
//!   skipped; what is sent after the last one looked for does not matter;
//! - a blocking call runs in parallel to the events, until the next call or the end of the script.
//!
//! Read first: `ScriptRun::event`; then `packets.rs` and `calls.rs`.

mod calls;
mod packets;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::call::{ScriptCallError, ScriptDescriptors};
use crate::conversation::{Conversation, MapError};
use crate::knobs;
use crate::report::{ScriptFailure, ScriptOutcome, ScriptVerdict, seconds};
use crate::run::calls::PendingCall;
use crate::script::{EventTime, PacketDirection, Script, ScriptAction, ScriptEvent};
use crate::settings::{ScriptSettings, SettingError};
use crate::system::{Fd, KnobResult, System, SystemError};
use crate::wire::{IpPacket, WireError};

/// The port of the first connection that comes from the remote side.
const FIRST_REMOTE_PORT: u16 = 52_000;

/// Runs a script on a system. Blocks until the script is over.
pub(crate) fn run<S: System>(
    script: &Script,
    settings: ScriptSettings,
    system: &mut S,
) -> ScriptOutcome {
    let mut run = ScriptRun {
        system,
        settings,
        descriptors: ScriptDescriptors::default(),
        conversations: Vec::new(),
        sockets: BTreeMap::new(),
        under_test: None,
        next_remote_port: FIRST_REMOTE_PORT,
        pending: None,
        has_sent_text: false,
        rest: None,
        time: Moment::default(),
        before: None,
        is_begun: false,
        code_count: 0,
        notes: Vec::new(),
    };
    let mut event_count = 0;
    let verdict = match run.all(script, &mut event_count) {
        Ok(()) => ScriptVerdict::Passed,
        Err(ScriptEnd::Failed(failure)) => ScriptVerdict::Failed(failure),
        Err(ScriptEnd::Unsupported { line, what }) => ScriptVerdict::Unsupported { line, what },
        Err(ScriptEnd::Unavailable(why)) => ScriptVerdict::Skipped(why),
    };
    ScriptOutcome { verdict, event_count, code_count: run.code_count, notes: run.notes }
}

/// Why a script ends early.
#[derive(Debug)]
enum ScriptEnd {
    Failed(ScriptFailure),
    Unsupported { line: u32, what: String },
    Unavailable(String),
}

/// An error of one event, before its line is known.
#[derive(Debug, thiserror::Error)]
enum EventError {
    #[error(transparent)]
    Call(#[from] ScriptCallError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("a packet with {0} was sent")]
    Wire(#[from] WireError),
    #[error("{what}")]
    Differs { what: String, packets: Vec<String> },
}

impl EventError {
    fn differs(what: impl Into<String>) -> Self {
        Self::Differs { what: what.into(), packets: Vec::new() }
    }

    fn end(self, line: u32, at_us: i64) -> ScriptEnd {
        match self {
            Self::Differs { what, packets } => {
                ScriptEnd::Failed(ScriptFailure { line, at_us, what, packets })
            }
            Self::System(SystemError::Unavailable(why)) => ScriptEnd::Unavailable(why),
            Self::System(SystemError::Unsupported(_))
            | Self::Call(
                ScriptCallError::UnknownCall(_)
                | ScriptCallError::UnknownName(_)
                | ScriptCallError::Unsupported(_),
            )
            | Self::Map(MapError::UnknownIcmp(_) | MapError::Encapsulated)
            | Self::Setting(_) => ScriptEnd::Unsupported { line, what: self.to_string() },
            other => {
                let what = other.to_string();
                ScriptEnd::Failed(ScriptFailure { line, at_us, what, packets: Vec::new() })
            }
        }
    }
}

/// When the event under way is to happen.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    /// None for `*`.
    at_us: Option<i64>,
    until_us: Option<i64>,
    /// What a relative time counts from.
    base_us: i64,
    /// What both sides may differ by.
    tolerance_us: i64,
}

/// State that the next event needs from the one before.
#[derive(Clone, Copy, Debug)]
struct Before {
    at_us: i64,
    /// When an inbound packet was sent: its answer may be there before the interpreter goes on.
    began_us: i64,
    is_inbound: bool,
    is_absolute: bool,
}

/// A script on its way.
struct ScriptRun<'a, S> {
    system: &'a mut S,
    settings: ScriptSettings,
    descriptors: ScriptDescriptors,
    conversations: Vec<Conversation>,
    /// Conversations by the system's descriptor.
    sockets: BTreeMap<Fd, usize>,
    /// The conversation that packets belong to.
    under_test: Option<usize>,
    next_remote_port: u16,
    pending: Option<PendingCall>,
    /// Whether the program has sent something other than zeros.
    has_sent_text: bool,
    /// What is left of a train of segments, and when that was sent.
    rest: Option<(IpPacket, i64)>,
    time: Moment,
    before: Option<Before>,
    is_begun: bool,
    code_count: usize,
    notes: Vec<String>,
}

impl<S: System> ScriptRun<'_, S> {
    fn all(&mut self, script: &Script, event_count: &mut usize) -> Result<(), ScriptEnd> {
        for event in &script.events {
            if let Err(error) = self.event(event) {
                let now_us = if self.is_begun { self.system.now_us() } else { 0 };
                // A call that returned too late fails its own line.
                let line = self.failed_line().unwrap_or(event.line);
                return Err(error.end(line, now_us));
            }
            *event_count += 1;
        }
        let line = self.pending.as_ref().map_or(0, |pending| pending.line);
        self.finish_pending().map_err(|error| error.end(line, self.system.now_us()))
    }

    fn event(&mut self, event: &ScriptEvent) -> Result<(), EventError> {
        // What stands before the first event in time is the system's configuration.
        if !self.is_begun
            && let ScriptAction::Command(command) = &event.action
            && is_at_start(event.when)
        {
            return self.command(command);
        }
        if !self.is_begun {
            self.system.begin()?;
            self.is_begun = true;
        }
        self.resolve(event)?;
        let mut began_us = 0;
        match &event.action {
            ScriptAction::Packet(packet) if packet.direction == PacketDirection::Inbound => {
                self.wait("an inbound packet")?;
                began_us = self.system.now_us();
                self.inbound(packet)?;
            }
            ScriptAction::Packet(packet) => self.outbound(packet)?,
            ScriptAction::Call(line) => {
                self.finish_pending()?;
                // The end of the call before may be what this one counts from.
                self.resolve(event)?;
                self.wait("a call")?;
                self.call(line, event)?;
            }
            ScriptAction::Command(command) => {
                self.wait("a command")?;
                self.command(command)?;
            }
            ScriptAction::Code(_) => {
                self.wait("code")?;
                self.code_count += 1;
            }
        }
        self.before = Some(Before {
            at_us: self.time.at_us.unwrap_or(self.time.base_us),
            began_us,
            is_inbound: is_inbound(event),
            is_absolute: matches!(event.when, EventTime::Absolute { .. }),
        });
        Ok(())
    }

    /// Turns an event's time into one on the script's clock.
    fn resolve(&mut self, event: &ScriptEvent) -> Result<(), EventError> {
        let base_us = match self.before {
            Some(before) if before.is_inbound && is_inbound(event) => before.at_us,
            Some(before) if before.is_inbound => before.began_us,
            _ => self.system.now_us(),
        };
        let (at_us, until_us, base_us) = match event.when {
            EventTime::Any => (None, None, base_us),
            EventTime::Absolute { at_us, until_us } => (Some(at_us), until_us, 0),
            EventTime::Relative { at_us, until_us } => {
                (Some(base_us + at_us), until_us.map(|until_us| base_us + until_us), base_us)
            }
        };
        let mut tolerance_us = self.settings.tolerance_us;
        if let (Some(before), Some(at_us)) = (self.before, at_us) {
            let share = (at_us - before.at_us) * self.settings.tolerance_per_mille / 1000;
            tolerance_us = tolerance_us.max(share);
            let is_absolute = matches!(event.when, EventTime::Absolute { .. });
            if is_absolute && before.is_absolute && at_us < before.at_us {
                return Err(EventError::differs("time goes back in the script"));
            }
        }
        self.time = Moment { at_us, until_us, base_us, tolerance_us };
        Ok(())
    }

    /// Waits for the time of the event under way.
    fn wait(&mut self, what: &str) -> Result<(), EventError> {
        let Some(at_us) = self.time.at_us else { return Ok(()) };
        self.system.wait_until_us(at_us)?;
        let now_us = self.system.now_us();
        // The first event begins when it begins.
        if self.before.is_some() {
            self.check_time(what, now_us)?;
        }
        Ok(())
    }

    /// Whether something that happened at `actual_us` happened when it should.
    fn check_time(&self, what: &str, actual_us: i64) -> Result<(), EventError> {
        let Moment { at_us: Some(at_us), until_us, tolerance_us, .. } = self.time else {
            return Ok(());
        };
        let latest_us = until_us.unwrap_or(at_us) + tolerance_us;
        if (at_us - tolerance_us..=latest_us).contains(&actual_us) {
            return Ok(());
        }
        let expected = match until_us {
            None => seconds(at_us),
            Some(until_us) => format!("{} to {}", seconds(at_us), seconds(until_us)),
        };
        Err(EventError::differs(format!(
            "{what} at {} s, expected at {expected} s, tolerance {} s",
            seconds(actual_us),
            seconds(tolerance_us)
        )))
    }

    fn command(&mut self, text: &str) -> Result<(), EventError> {
        let command = knobs::command(text);
        for note in command.notes {
            self.note(format!("not run: {note}"));
        }
        for knob in &command.knobs {
            let why = match self.system.set_knob(knob)? {
                KnobResult::Done => continue,
                KnobResult::Unknown => "no such knob here",
                KnobResult::TooLate => "too late for",
                KnobResult::Refused(what) => {
                    let what = format!("{}={}: {what}", knob.name, knob.value);
                    return Err(SystemError::Unsupported(what).into());
                }
            };
            self.note(format!("{why}: {}={}", knob.name, knob.value));
        }
        Ok(())
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

fn is_inbound(event: &ScriptEvent) -> bool {
    let ScriptAction::Packet(packet) = &event.action else { return false };
    packet.direction == PacketDirection::Inbound
}

fn is_at_start(when: EventTime) -> bool {
    match when {
        EventTime::Any => false,
        EventTime::Absolute { at_us, .. } | EventTime::Relative { at_us, .. } => at_us == 0,
    }
}
