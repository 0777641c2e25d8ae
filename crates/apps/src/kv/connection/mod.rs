//! One client's conversation: bytes in, responses out. Pure: no I/O, no clock, no thread.
//!
//! Read first: [`super::protocol`], [`super::store`].
//!
//! Input: [`KvConnection::on_bytes`] with what has arrived, `now`, the store and somewhere to put
//! responses. Output: the responses, how many bytes were taken, and what to do next ([`NextStep`]).
//! When the client goes, [`KvConnection::abandon`].
//!
//! ```text
//!             get a b            set k 0 0 9999
//!   Command ----------> Keys     Command ----------> Value    (the block goes straight into the
//!      ^                 |          ^                  |       store's memory, piece by piece)
//!      +---- line end ---+          +--- block end ----+
//!   Command --- block that cannot be stored ---> Skip --- block end ---> Command
//!   Keys --- key too long ---> SkipLine --- line end ---> Command
//! ```
//!
//! Invariants
//! - A connection keeps at most [`LINE_BYTES_MAX`] bytes of its own; a data block is never kept.
//! - Parsing stops while [`OUTPUT_BYTES_MAX`] bytes of responses wait: a client that sends and
//!   never reads costs no more than that and one item.
//! - Responses come in the order of the commands.
//! - The first word decides for the whole connection, see `protocol_of`.

mod binary;
mod line;
mod meta;
mod resp;
mod responses;
mod stats;
mod text;

use std::mem;

use super::limits::{COMMAND_BYTES_MAX, LINE_BYTES_MAX, OUTPUT_BYTES_MAX};
use super::protocol::binary::{FRAME_BYTES_MAX, MAGIC_REQUEST};
use super::protocol::resp::{ARRAY, find};
use super::protocol::text::is_command;
use super::store::{KvStore, Reservation, Write};
pub use stats::{ServerSnapshot, ServerView};

/// Where responses go.
pub trait ResponseBuffer {
    /// Appends.
    fn extend_from_slice(&mut self, bytes: &[u8]);
    /// Bytes that wait.
    fn len(&self) -> usize;
    /// Whether nothing waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ResponseBuffer for Vec<u8> {
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        Self::extend_from_slice(self, bytes);
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}

/// What a connection needs besides bytes.
#[derive(Clone, Copy)]
pub struct KvContext<'a> {
    /// The items.
    pub store: &'a KvStore,
    /// Unix seconds.
    pub now: u32,
    /// For `stats`.
    pub server: &'a dyn ServerView,
}

/// What to do after [`KvConnection::on_bytes`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NextStep {
    /// All bytes were taken; read more.
    ReadOn,
    /// Write the responses, then call again with what was not taken.
    Paused,
    /// Write the responses, then close.
    Close,
}

/// The result of [`KvConnection::on_bytes`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InputProgress {
    /// Bytes taken. All of them unless the connection is [`NextStep::Paused`].
    pub consumed: usize,
    /// What to do next.
    pub flow: NextStep,
    /// Whether a command ended in these bytes.
    pub command_ended: bool,
}

/// A client's conversation.
#[derive(Debug, Default)]
pub struct KvConnection {
    state: ConnectionState,
    protocol: KvProtocol,
    /// The beginning of a command that has not arrived as a whole.
    partial: Vec<u8>,
    /// Key and flags of a meta set whose block is arriving, or the key of a value in RESP.
    held: Vec<u8>,
    commands: Commands,
}

/// How many commands there were since [`KvConnection::take_commands`] was last asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Commands {
    /// Well formed, so carried out; a line of many keys is one.
    pub accepted: u32,
    /// Not so.
    pub refused: u32,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum KvProtocol {
    #[default]
    Unknown,
    Text,
    Binary,
    Resp,
}

/// What a connection speaks that begins with `input`: binary if its `first` byte is 0x80, RESP if
/// it is `*`, or if its first word is a command of Redis's and not one of memcached's, which are in
/// lower case; else text. `None`: more bytes are needed.
fn protocol_of(first: u8, input: &[u8]) -> Option<KvProtocol> {
    match first {
        MAGIC_REQUEST => return Some(KvProtocol::Binary),
        ARRAY => return Some(KvProtocol::Resp),
        _ => {}
    }
    let start = &input[..input.len().min(COMMAND_BYTES_MAX + 1)];
    let word = match start.iter().position(u8::is_ascii_whitespace) {
        Some(len) => &start[..len],
        None if start.len() > COMMAND_BYTES_MAX => return Some(KvProtocol::Text),
        None => return None,
    };
    let is_resp = find(word).is_some() && !is_command(word);
    Some(if is_resp { KvProtocol::Resp } else { KvProtocol::Text })
}

#[derive(Debug, Default)]
enum ConnectionState {
    #[default]
    Command,
    Keys(Keys),
    SkipLine,
    Value(IncomingValue),
    Skip {
        left: u64,
        then: Afterwards,
    },
    Resp(resp::Midway),
    Ended,
}

/// Inside a retrieval line.
#[derive(Clone, Copy, Debug)]
struct Keys {
    with_cas: bool,
    /// New expiry time, in Unix seconds.
    touch: Option<u32>,
    /// A line without keys is an error, except with an expiry time.
    any: bool,
}

/// A data block on its way into the store.
#[derive(Debug)]
struct IncomingValue {
    reservation: Reservation,
    write: Write,
    value_len: usize,
    received: usize,
    /// The two bytes after a text block.
    ending: [u8; 2],
    reply: StoreReply,
}

/// How to answer a store.
#[derive(Clone, Copy, Debug)]
enum StoreReply {
    Text {
        noreply: bool,
    },
    /// Key and flags are in `held`.
    Meta,
    Binary {
        opcode: u8,
        opaque: u32,
        quiet: bool,
    },
    /// The key is in `held`.
    Resp(resp::PendingValue),
}

impl StoreReply {
    /// Bytes after the value.
    const fn ending_len(self) -> usize {
        match self {
            Self::Binary { .. } => 0,
            Self::Text { .. } | Self::Meta | Self::Resp(_) => 2,
        }
    }
}

/// What to say after a block was passed over.
#[derive(Clone, Copy, Debug)]
enum Afterwards {
    Nothing,
    Tell(super::protocol::CommandFault),
    Status { status: super::protocol::binary::BinaryStatus, opcode: u8, opaque: u32 },
}

/// What a step did with the bytes before it.
enum ParseStep {
    /// It took this many; there may be more to do.
    Took(usize),
    /// It needs more bytes than there are.
    NeedMore,
}

/// Most bytes of a command that are kept until the rest arrives.
const PARTIAL_BYTES_MAX: usize = LINE_BYTES_MAX;
const _: () = assert!(PARTIAL_BYTES_MAX >= FRAME_BYTES_MAX);

impl KvConnection {
    /// A connection that has said nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes and answers what they ask.
    pub fn on_bytes(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> InputProgress {
        let mut at = 0;
        let mut command_ended = false;
        loop {
            let progress = |consumed, flow| InputProgress { consumed, flow, command_ended };
            if matches!(self.state, ConnectionState::Ended) {
                return progress(input.len(), NextStep::Close);
            }
            if out.len() >= OUTPUT_BYTES_MAX {
                return progress(at, NextStep::Paused);
            }
            let rest = &input[at..];
            let taken = if self.partial.is_empty() {
                self.step(rest, context, out)
            } else {
                self.step_from_partial(rest, context, out)
            };
            match taken {
                ParseStep::Took(count) => {
                    at += count;
                    command_ended |= !self.is_midway();
                }
                ParseStep::NeedMore => {
                    // A step that starts from the partial has added what it can use itself.
                    if self.partial.is_empty() {
                        self.partial.extend_from_slice(rest);
                    }
                    return progress(input.len(), NextStep::ReadOn);
                }
            }
        }
    }

    /// Gives back what the connection holds in the store. To be called once, when it ends.
    pub fn abandon(&mut self, store: &KvStore) {
        match mem::replace(&mut self.state, ConnectionState::Ended) {
            ConnectionState::Value(arriving) => store.abandon(arriving.reservation),
            ConnectionState::Resp(midway) => resp::abandon(midway, store),
            _ => {}
        }
    }

    /// The commands since the last call.
    pub fn take_commands(&mut self) -> Commands {
        mem::take(&mut self.commands)
    }

    /// Whether the client owes the rest of a command or of a data block.
    #[must_use]
    pub fn is_midway(&self) -> bool {
        !self.partial.is_empty() || !matches!(self.state, ConnectionState::Command)
    }

    /// Steps over the partial command with as much of `input` behind it as may belong to it.
    fn step_from_partial(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let mut partial = mem::take(&mut self.partial);
        let old_len = partial.len();
        let added = input.len().min(PARTIAL_BYTES_MAX.saturating_sub(old_len));
        partial.extend_from_slice(&input[..added]);
        match self.step(&partial, context, out) {
            ParseStep::Took(count) if count >= old_len => ParseStep::Took(count - old_len),
            ParseStep::Took(count) => {
                partial.truncate(old_len);
                partial.drain(..count);
                self.partial = partial;
                ParseStep::Took(0)
            }
            ParseStep::NeedMore => {
                debug_assert!(added == input.len(), "a full partial command is refused");
                self.partial = partial;
                ParseStep::NeedMore
            }
        }
    }

    fn step(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let Some(&first) = input.first() else {
            return ParseStep::NeedMore;
        };
        match self.state {
            ConnectionState::Command => match self.protocol {
                KvProtocol::Text => self.step_text(input, context, out),
                KvProtocol::Binary => self.step_binary(input, context, out),
                KvProtocol::Resp => self.step_resp(input, context, out),
                KvProtocol::Unknown => match protocol_of(first, input) {
                    Some(protocol) => {
                        self.protocol = protocol;
                        ParseStep::Took(0)
                    }
                    None => ParseStep::NeedMore,
                },
            },
            ConnectionState::Keys(keys) => self.step_keys(keys, input, context, out),
            ConnectionState::SkipLine => self.step_skip_line(input),
            ConnectionState::Value(_) => self.step_value(input, context, out),
            ConnectionState::Resp(_) => self.step_midway(input, context, out),
            ConnectionState::Skip { left, then } => self.step_skip(left, then, input, out),
            ConnectionState::Ended => ParseStep::Took(input.len()),
        }
    }

    fn step_skip_line(&mut self, input: &[u8]) -> ParseStep {
        match memchr::memchr(b'\n', input) {
            Some(end) => {
                self.state = ConnectionState::Command;
                ParseStep::Took(end + 1)
            }
            None => ParseStep::Took(input.len()),
        }
    }

    fn step_skip(
        &mut self,
        left: u64,
        then: Afterwards,
        input: &[u8],
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        self.skip(left - count as u64, then, out);
        ParseStep::Took(count)
    }

    /// Skips the next `left` bytes and then sends `then`.
    fn skip(&mut self, left: u64, then: Afterwards, out: &mut impl ResponseBuffer) {
        if left > 0 {
            self.state = ConnectionState::Skip { left, then };
            return;
        }
        self.state = ConnectionState::Command;
        match then {
            Afterwards::Nothing => {}
            Afterwards::Tell(fault) => responses::push_fault(fault, out),
            Afterwards::Status { status, opcode, opaque } => {
                responses::answer_status(status, opcode, opaque, out);
            }
        }
    }

    /// A piece of a data block.
    fn step_value(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let ConnectionState::Value(arriving) = &mut self.state else {
            return ParseStep::Took(0);
        };
        let ending_len = arriving.reply.ending_len();
        let whole = arriving.value_len + ending_len;
        let count = input.len().min(whole - arriving.received);
        let at = arriving.received;
        let value_count = count.min(arriving.value_len.saturating_sub(at));
        if value_count > 0 {
            context.store.fill(&arriving.reservation, at, &input[..value_count]);
        }
        for (offset, &byte) in input[value_count..count].iter().enumerate() {
            arriving.ending[at + value_count + offset - arriving.value_len] = byte;
        }
        arriving.received += count;
        if arriving.received == whole
            && let ConnectionState::Value(arriving) = mem::take(&mut self.state)
        {
            self.finish_value(arriving, context, out);
        }
        ParseStep::Took(count)
    }

    fn finish_value(
        &mut self,
        arriving: IncomingValue,
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        if let StoreReply::Resp(arrival) = arriving.reply {
            return self.finish_arrival(arriving, arrival, context, out);
        }
        let IncomingValue { reservation, write, ending, reply, .. } = arriving;
        let held = mem::take(&mut self.held);
        if reply.ending_len() > 0 && ending != *b"\r\n" {
            context.store.abandon(reservation);
            text::refuse_block(reply, out);
            return;
        }
        let outcome = context.store.commit(reservation, &write, context.now);
        match reply {
            StoreReply::Text { noreply } => text::answer_store(outcome, noreply, out),
            StoreReply::Meta => meta::answer_held_store(outcome, &held, out),
            StoreReply::Binary { opcode, opaque, quiet } => {
                binary::answer_store(outcome, &write, (opcode, opaque, quiet), out);
            }
            StoreReply::Resp(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
