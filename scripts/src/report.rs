//! What became of a script.

use std::fmt::{Display, Formatter, Result};

/// The verdict on a script, and what was left out on the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOutcome {
    /// The verdict.
    pub verdict: ScriptVerdict,
    /// How many events came to pass.
    pub event_count: usize,
    /// Blocks of code between `%{` and `}%` that were not run.
    pub code_count: usize,
    /// Shell commands and knobs that were not followed, each once.
    pub notes: Vec<String>,
}

/// The verdict on a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptVerdict {
    /// Everything happened as written.
    Passed,
    /// Something did not.
    Failed(ScriptFailure),
    /// The script needs something that this interpreter or the system does not have.
    Unsupported {
        /// The line that needs it, from 1.
        line: u32,
        /// What that is.
        what: String,
    },
    /// It could not be run here: no root, no device.
    Skipped(String),
}

/// The first thing that did not happen as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFailure {
    /// The line of the event, from 1.
    pub line: u32,
    /// When, in seconds of the script, as text.
    pub at_us: i64,
    /// What differs.
    pub what: String,
    /// The packet that the script has and the one that came, each with its time.
    pub packets: Vec<String>,
}

impl ScriptVerdict {
    /// The exit status of a run: 0 passed or skipped (with a note), 1 failed, 2 not supported.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Passed | Self::Skipped(_) => 0,
            Self::Failed(_) => 1,
            Self::Unsupported { .. } => 2,
        }
    }
}

impl Display for ScriptFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}: at {} s: {}", self.line, seconds(self.at_us), self.what)?;
        self.packets.iter().try_for_each(|packet| write!(f, "\n    {packet}"))
    }
}

/// Microseconds as seconds with six digits.
pub(crate) fn seconds(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "" };
    let us = us.unsigned_abs();
    format!("{sign}{}.{:06}", us / 1_000_000, us % 1_000_000)
}
