//! From the text of a script to its syntax tree.
//!
//! In: the bytes of a file and the definitions of its invocation. Out: a `Script`, or the first
//! error with its line and column. The language is packetdrill's, as google/packetdrill and the
//! FreeBSD fork of it have it; what only one of the two knows is accepted in both.
//!
//! Read first: `script.rs`, the tree; then `event` below. `conditional.rs` has the parts
//! that depend on the system, `packet.rs` the packets, `option.rs` the TCP options, `call.rs` the
//! system calls.
//!
//! Invariants
//! - Total: any bytes give a tree or an error, in time linear in their number, without a panic.
//! - What the language has and this interpreter has not (GRE, MPLS, SCTP, MPTCP) is an error that
//!   names it, never something skipped.

mod call;
mod conditional;
mod cursor;
mod number;
mod option;
mod packet;
mod time;

#[cfg(test)]
mod tests;

use crate::limits::SCRIPT_BYTES_MAX;
use crate::parse::cursor::Cursor;
use crate::script::{EventTime, Remark, Script, ScriptAction, ScriptEvent, ScriptSetting};

/// Words that stand for others: `-D NAME=value` and `--define=NAME=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions(Vec<(String, String)>);

impl Definitions {
    /// Parses `NAME=value`; returns whether it has that form.
    pub fn define(&mut self, definition: &str) -> bool {
        let Some((name, value)) = definition.split_once('=') else { return false };
        self.0.push((name.to_owned(), value.to_owned()));
        true
    }

    /// Adds all of others, which come before those that are here.
    pub(crate) fn extend(&mut self, others: &Self) {
        self.0.extend(others.0.iter().cloned());
    }

    /// The value as written, with its quotes.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Where a script is not understood, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {problem}")]
pub struct ParseError {
    /// From 1.
    pub line: u32,
    /// From 1, in bytes.
    pub column: u32,
    /// What is wrong there.
    pub problem: ScriptProblem,
}

/// What is wrong with a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptProblem {
    /// A token that the grammar does not allow here.
    #[error("expected {what}, found `{found}`")]
    Expected {
        /// The expected token.
        what: &'static str,
        /// The text that stands there.
        found: String,
    },
    /// A number that its field cannot hold.
    #[error("{what} {value} is out of range (0 to {max})")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// As written.
        value: i64,
        /// The largest that fits.
        max: i64,
    },
    /// The end of a segment does not follow from its beginning and length.
    #[error("sequence numbers {start}:{end} do not span {len} bytes")]
    InconsistentSequence {
        /// First sequence number.
        start: u32,
        /// The one after the last.
        end: u32,
        /// As written in parentheses.
        len: u16,
    },
    /// A time range that ends before it begins.
    #[error("the time range ends before it begins")]
    BackwardRange,
    /// Only outbound packets are looked for in a range of time, or at any time.
    #[error("only an outbound packet may have a time range or `*`")]
    RangeNotAllowed,
    /// `<...>` and the like describe accepted values, so an inbound packet cannot have them.
    #[error("{0} can stand in an outbound packet only")]
    OutboundOnly(&'static str),
    /// More TCP options than a header can hold.
    #[error("the TCP options take {0} bytes, and a header holds 40")]
    TooManyOptions(usize),
    /// Digits that are not hexadecimal, or an odd number of them.
    #[error("`{0}` is no string of hexadecimal bytes")]
    NotHexadecimal(String),
    /// Known to the language, not to this interpreter.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Quotes, backticks or braces that stay open.
    #[error("{0} is not closed")]
    Unclosed(&'static str),
    /// An option at the beginning that cannot be followed.
    #[error("{0}")]
    BadSetting(String),
    /// Beyond what any real script has.
    #[error("too long or too deep: {0}")]
    TooMuch(&'static str),
}

/// Parses a script. `definitions` come from outside; the script's own are added to them.
pub fn parse(text: &[u8], definitions: &mut Definitions) -> Result<Script, ParseError> {
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(ParseError {
            line: 1,
            column: 1,
            problem: ScriptProblem::TooMuch("the script"),
        });
    }
    for setting in settings(&mut Cursor::new(text))?.iter().filter(|one| one.name == "define") {
        definitions.define(&setting.value);
    }
    let text = conditional::select(text, definitions)?;
    let mut cursor = Cursor::new(&text);
    let mut script = Script { settings: settings(&mut cursor)?, ..Script::default() };
    cursor.skip_blank();
    while !cursor.is_at_end() {
        script.events.push(event(&mut cursor, definitions)?);
        cursor.skip_blank();
    }
    script.remarks = without_repeats(cursor.remarks);
    Ok(script)
}

/// A rule that looks ahead reads a comment twice.
fn without_repeats(remarks: Vec<Remark>) -> Vec<Remark> {
    let mut once: Vec<Remark> = Vec::new();
    for remark in remarks {
        if !once.contains(&remark) {
            once.push(remark);
        }
    }
    once
}

/// The options that a script begins with.
fn settings(cursor: &mut Cursor<'_>) -> Result<Vec<ScriptSetting>, ParseError> {
    let mut settings = Vec::new();
    loop {
        cursor.skip_blank();
        let line = cursor.line();
        if !cursor.take("--") {
            return Ok(settings);
        }
        let name = cursor.take_word().ok_or_else(|| cursor.expected("the name of an option"))?;
        let value = if cursor.take("=") { setting_value(cursor)? } else { String::new() };
        settings.push(ScriptSetting { line, name, value });
    }
}

/// Up to the next white space, but quotes and backticks may hold some.
fn setting_value(cursor: &mut Cursor<'_>) -> Result<String, ParseError> {
    let mut value = Vec::new();
    while let Some(byte) = cursor.peek() {
        match byte {
            b'"' | b'`' => {
                let quote = if byte == b'"' { "\"" } else { "`" };
                cursor.advance(1);
                let inside = cursor
                    .take_until(quote, true)
                    .ok_or_else(|| cursor.error(ScriptProblem::Unclosed("a quote")))?;
                value.push(byte);
                value.extend_from_slice(inside);
                value.push(byte);
            }
            byte if byte.is_ascii_whitespace() => break,
            byte => {
                value.push(byte);
                cursor.advance(1);
            }
        }
    }
    let value = String::from_utf8_lossy(&value).into_owned();
    let whole = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    Ok(whole.map_or_else(|| value.clone(), str::to_owned))
}

/// One event. Commands and code may stand without a time: the language lets the first and the last
/// command of a script do so.
fn event(cursor: &mut Cursor<'_>, definitions: &Definitions) -> Result<ScriptEvent, ParseError> {
    cursor.skip_blank();
    let line = cursor.line();
    let start = cursor.at();
    let when = match cursor.peek() {
        Some(b'`' | b'%') => EventTime::Relative { at_us: 0, until_us: None },
        _ => time::when(cursor)?,
    };
    cursor.skip_blank();
    let action = action(cursor, when, definitions)?;
    let may_range = matches!(&action, ScriptAction::Packet(packet) if packet.is_outbound());
    if is_range(when) && !may_range {
        return Err(cursor.error_at(start, ScriptProblem::RangeNotAllowed));
    }
    Ok(ScriptEvent { line, when, action })
}

fn is_range(when: EventTime) -> bool {
    match when {
        EventTime::Any => true,
        EventTime::Absolute { until_us, .. } | EventTime::Relative { until_us, .. } => {
            until_us.is_some()
        }
    }
}

fn action(
    cursor: &mut Cursor<'_>,
    when: EventTime,
    definitions: &Definitions,
) -> Result<ScriptAction, ParseError> {
    match cursor.peek() {
        Some(b'<' | b'>') => Ok(ScriptAction::Packet(packet::packet(cursor, definitions)?)),
        Some(b'`') => {
            cursor.advance(1);
            let command = cursor.take_until("`", true);
            let command =
                command.ok_or_else(|| cursor.error(ScriptProblem::Unclosed("a shell command")))?;
            Ok(ScriptAction::Command(String::from_utf8_lossy(command).into_owned()))
        }
        Some(b'%') if cursor.take("%{") => {
            let code = cursor.take_until("}%", false);
            let code = code.ok_or_else(|| cursor.error(ScriptProblem::Unclosed("code")))?;
            Ok(ScriptAction::Code(String::from_utf8_lossy(code).trim().to_owned()))
        }
        _ => call::call(cursor, when, definitions),
    }
}
