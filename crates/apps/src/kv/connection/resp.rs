//! RESP: commands that come in pieces of any size. What they do is in [`commands`].
//!
//! Read first: [`super`], [`crate::kv::protocol::resp`].
//!
//! ```text
//!                 small, or here as a whole
//!   Command ------------------------------------------> carried out
//!      ^  |  MGET, DEL, EXISTS, TOUCH, MSET
//!      |  +--------> Many: key by key ----+--> answered
//!      |  |                ^              | MSET's value in pieces
//!      |  |                +--- Value <---+
//!      |  |  SET, SETEX, APPEND, ... whose value comes in pieces
//!      |  +--------> Value --> Tail: the options behind it --> answered
//!      |  |  refused
//!      +--+--------> Skip: the arguments that are left
//! ```
//!
//! Invariants
//! - What is kept of a command is at most [`LINE_BYTES_MAX`] bytes; values go straight into the
//!   store's memory.
//! - A command that is refused is answered first and passed over then, so answers stay in order.

mod commands;

use super::{
    ConnectionState, IncomingValue, KvConnection, KvContext, ParseStep, ResponseBuffer, StoreReply,
};
use crate::kv::limits::{KEY_BYTES_MAX, LINE_BYTES_MAX, OUTPUT_BYTES_MAX, RESP_HEADER_BYTES_MAX};
use crate::kv::protocol::is_http;
use crate::kv::protocol::resp::{
    self, ARRAY, Bulk, Malformed, RespArguments, RespCommand, RespFault, RespPiece, RespVerb,
    SetOptions,
};
use crate::kv::store::{KvStore, Reservation, Write};
use commands::{ArgumentSource, error, nil};

/// Bytes that a command's name may have, with its length.
const NAME_BYTES_MAX: usize = 256;

/// Bytes that the arguments of a command may have, but a value.
const ARGUMENTS_BYTES_MAX: usize = LINE_BYTES_MAX - NAME_BYTES_MAX - RESP_HEADER_BYTES_MAX;

/// Inside a command.
#[derive(Debug)]
pub(super) enum Midway {
    Many(Many),
    Tail(PendingOptions),
    Skip(Skip),
}

/// Inside a command of many keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many {
    verb: RespVerb,
    /// Arguments to come.
    left: u32,
    /// Keys that there were.
    count: u64,
    /// What was wrong with the first value that could not be stored.
    fault: Option<RespFault>,
}

/// A value is here, and its options are not.
#[derive(Debug)]
pub(super) struct PendingOptions {
    reservation: Reservation,
    /// Arguments to come.
    left: u32,
}

/// Discarded arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    /// Of the one that has begun.
    bytes: usize,
    /// Those behind it.
    left: u32,
    /// A command of many keys continues then.
    then: Option<Many>,
}

/// Treatment of a value that arrives in pieces; its key is in `held`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingValue {
    verb: RespVerb,
    /// For the verbs that have their options in front of the value.
    options: SetOptions,
    /// Arguments behind the value.
    left: u32,
    /// The command of many keys that it is a part of.
    of: Option<Many>,
}

impl Midway {
    /// What it holds in the store.
    pub(super) fn into_reservation(self) -> Option<Reservation> {
        match self {
            Self::Tail(tail) => Some(tail.reservation),
            Self::Many(_) | Self::Skip(_) => None,
        }
    }
}

/// The arguments of a command, as far as they are here.
enum GatheredArguments<'a> {
    NeedMore,
    Malformed(Malformed),
    /// All of it; the number of its bytes.
    Whole(RespArguments<'a>, usize),
    /// The next is longer than what is kept; the bytes before it.
    TooLong(RespArguments<'a>, usize),
}

/// `count` more arguments from `at` on. All but a value have to be near each other, however the
/// bytes came.
fn gather<'a>(
    input: &'a [u8],
    mut at: usize,
    mut arguments: RespArguments<'a>,
    (count, value_index): (u32, Option<usize>),
) -> GatheredArguments<'a> {
    let mut near = at;
    let mut value_at = at;
    for _ in 0..count {
        let is_value = value_index == Some(arguments.as_slice().len());
        let next = resp::bulk(&input[at..]);
        let len = match next {
            Bulk::Whole(_, consumed) => consumed,
            Bulk::NeedMore(len) => len.unwrap_or(RESP_HEADER_BYTES_MAX),
            Bulk::Malformed(why) => return GatheredArguments::Malformed(why),
        };
        let is_far = at - near + len > ARGUMENTS_BYTES_MAX;
        match next {
            Bulk::Whole(argument, consumed) if is_value || !is_far => {
                arguments.push(argument);
                if is_value {
                    (value_at, near) = (at, at + consumed);
                }
                at += consumed;
            }
            Bulk::NeedMore(_) if at + len <= LINE_BYTES_MAX && !is_far => {
                return GatheredArguments::NeedMore;
            }
            // With its value, all of it would be too much to keep.
            Bulk::NeedMore(_) if value_at < near && !is_far => {
                arguments.truncate(value_index.unwrap_or_default());
                return GatheredArguments::TooLong(arguments, value_at);
            }
            _ => return GatheredArguments::TooLong(arguments, at),
        }
    }
    GatheredArguments::Whole(arguments, at)
}

impl KvConnection {
    /// The command at the front of `input`.
    pub(super) fn step_resp(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        if input[0] != ARRAY {
            return self.step_resp_line(input, context, out);
        }
        let (count, at) = match resp::array(input) {
            RespPiece::Whole(0, consumed) => return ParseStep::Took(consumed),
            RespPiece::Whole(count, consumed) => (count, consumed),
            RespPiece::NeedMore => return ParseStep::NeedMore,
            RespPiece::Malformed(why) => return self.hang_up(why, input, out),
        };
        let (name, at) = match resp::bulk(&input[at..]) {
            Bulk::Whole(name, consumed) if consumed <= NAME_BYTES_MAX => (name, at + consumed),
            Bulk::NeedMore(len) if len.unwrap_or(0) <= NAME_BYTES_MAX => {
                return ParseStep::NeedMore;
            }
            // Too long for a name: it is passed over with the rest.
            Bulk::Whole(..) | Bulk::NeedMore(_) => {
                commands::unknown_command_error(b"", out);
                return self.refuse(at, count);
            }
            Bulk::Malformed(why) => return self.hang_up(why, input, out),
        };
        let Some(command) = resp::find(name) else {
            commands::unknown_command_error(name, out);
            return self.refuse(at, count - 1);
        };
        if !command.takes(count) {
            error(RespFault::Arity(command.name), out);
            return self.refuse(at, count - 1);
        }
        if command.verb.is_of_many() {
            return self.begin_many(command.verb, at, count - 1, out);
        }
        self.step_arguments(command, (name, count), (input, at), context, out)
    }

    /// The arguments of a command that has a few.
    fn step_arguments(
        &mut self,
        command: &RespCommand,
        (name, count): (&[u8], u32),
        (input, at): (&[u8], usize),
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        if count as usize > resp::ARGUMENTS_KEPT_MAX {
            error(RespFault::Syntax, out);
            return self.refuse(at, count - 1);
        }
        let mut arguments = RespArguments::new();
        arguments.push(name);
        match gather(input, at, arguments, (count - 1, command.verb.value_index())) {
            GatheredArguments::NeedMore => ParseStep::NeedMore,
            GatheredArguments::Malformed(why) => self.hang_up(why, input, out),
            GatheredArguments::Whole(arguments, consumed) => {
                self.execute(command, arguments.as_slice(), context, out);
                ParseStep::Took(consumed)
            }
            GatheredArguments::TooLong(arguments, at) => {
                let arguments = arguments.as_slice();
                let left = count - arguments.len() as u32;
                if command.verb.value_index() == Some(arguments.len())
                    && let RespPiece::Whole(value_len, consumed) = resp::bulk_header(&input[at..])
                {
                    let place = (value_len, left - 1);
                    self.begin_value(command, arguments, place, context, out);
                    return ParseStep::Took(at + consumed);
                }
                // What is wrong in front of the value is wrong however it comes.
                let fault = match command.verb.value_index().and_then(|at| arguments.get(at)) {
                    Some(value) => commands::check_value(command, arguments, value, context.now),
                    None => Ok(()),
                };
                error(fault.err().unwrap_or(RespFault::ArgumentTooLong), out);
                self.refuse(at, left)
            }
        }
    }

    /// Parses an inline command: words in a line.
    fn step_resp_line(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let (line, consumed) = match resp::line(input, LINE_BYTES_MAX) {
            RespPiece::Whole(line, consumed) => (line, consumed),
            RespPiece::NeedMore => return ParseStep::NeedMore,
            RespPiece::Malformed(why) => return self.hang_up(why, input, out),
        };
        let mut room = [0; LINE_BYTES_MAX];
        let arguments = match resp::split_line(line, &mut room) {
            Ok(arguments) => arguments,
            Err(why) => return self.hang_up(why, input, out),
        };
        let words = arguments.as_ref().map(RespArguments::as_slice);
        let command = words.and_then(|words| resp::find(words.first()?));
        match (words, command) {
            (Some([]), _) => return ParseStep::Took(consumed),
            (Some(words), Some(command)) if command.takes(words.len() as u32) => {
                self.execute_line(command, words, context, out);
                return ParseStep::Took(consumed);
            }
            // No answer: an HTTP client does not read RESP.
            _ if is_http(line) => self.state = ConnectionState::Ended,
            (_, Some(command)) => error(RespFault::Arity(command.name), out),
            (Some([name, ..]), None) => commands::unknown_command_error(name, out),
            (None, None) => error(RespFault::Syntax, out),
        }
        self.commands.refused += 1;
        ParseStep::Took(consumed)
    }

    /// What is no RESP ends the conversation, as with Redis.
    fn hang_up(
        &mut self,
        why: Malformed,
        input: &[u8],
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        self.commands.refused += 1;
        commands::malformed_error(why, out);
        self.state = ConnectionState::Ended;
        ParseStep::Took(input.len())
    }

    /// Passes over the arguments that are left of a command that was answered.
    fn refuse(&mut self, at: usize, left: u32) -> ParseStep {
        self.commands.refused += 1;
        self.skip_arguments(0, left);
        ParseStep::Took(at)
    }

    /// Passes over the rest of an argument and those behind it.
    fn skip_arguments(&mut self, bytes: usize, left: u32) {
        self.state = if bytes == 0 && left == 0 {
            ConnectionState::Command
        } else {
            ConnectionState::Resp(Midway::Skip(Skip { bytes, left, then: None }))
        };
    }

    /// Likewise inside a command of many keys; there is at least one such byte or argument.
    const fn skip_inside(&mut self, bytes: usize, left: u32, many: Many) {
        self.state = ConnectionState::Resp(Midway::Skip(Skip { bytes, left, then: Some(many) }));
    }

    /// Goes on with a command of many keys, or answers it if that was all.
    fn go_on(&mut self, many: Many, out: &mut impl ResponseBuffer) {
        if many.left > 0 {
            self.state = ConnectionState::Resp(Midway::Many(many));
        } else {
            self.state = ConnectionState::Command;
            commands::answer_many(many.verb, many.count, many.fault, out);
        }
    }

    /// The next piece of a command that is not here as a whole.
    pub(super) fn step_midway(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let ConnectionState::Resp(midway) = std::mem::take(&mut self.state) else {
            return ParseStep::Took(0);
        };
        match midway {
            Midway::Many(many) => self.step_many(many, input, context, out),
            Midway::Skip(skip) => self.step_skip_arguments(skip, input, out),
            Midway::Tail(tail) => self.step_tail(tail, input, context, out),
        }
    }

    fn step_skip_arguments(
        &mut self,
        mut skip: Skip,
        input: &[u8],
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let mut at = input.len().min(skip.bytes);
        skip.bytes -= at;
        while skip.bytes == 0 {
            if skip.left == 0 {
                self.state = ConnectionState::Command;
                if let Some(many) = skip.then {
                    self.go_on(many, out);
                }
                return ParseStep::Took(at);
            }
            match resp::bulk_header(&input[at..]) {
                RespPiece::Whole(len, consumed) => {
                    at += consumed;
                    skip.left -= 1;
                    skip.bytes = len + 2;
                    let there = (input.len() - at).min(skip.bytes);
                    at += there;
                    skip.bytes -= there;
                }
                RespPiece::NeedMore => break,
                RespPiece::Malformed(why) => return self.hang_up(why, input, out),
            }
        }
        self.state = ConnectionState::Resp(Midway::Skip(skip));
        if at == 0 { ParseStep::NeedMore } else { ParseStep::Took(at) }
    }
}

/// Commands of many keys.
impl KvConnection {
    fn begin_many(
        &mut self,
        verb: RespVerb,
        at: usize,
        left: u32,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        self.commands.accepted += 1;
        if verb == RespVerb::MGet {
            commands::array(left, out);
        }
        self.state =
            ConnectionState::Resp(Midway::Many(Many { verb, left, count: 0, fault: None }));
        ParseStep::Took(at)
    }

    fn step_many(
        &mut self,
        mut many: Many,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let mut at = 0;
        while many.left > 0 {
            if out.len() >= OUTPUT_BYTES_MAX {
                break;
            }
            let key = match resp::bulk(&input[at..]) {
                Bulk::Whole(key, consumed) if many.verb != RespVerb::MSet => {
                    at += consumed;
                    many.left -= 1;
                    commands::of_many(many.verb, key, &mut many.count, context, out);
                    continue;
                }
                Bulk::Whole(key, consumed) => (key, at + consumed),
                Bulk::NeedMore(Some(len)) if len > KEY_BYTES_MAX + RESP_HEADER_BYTES_MAX => {
                    return self.pass_over_key(many, at, out);
                }
                Bulk::NeedMore(_) => break,
                Bulk::Malformed(why) => return self.hang_up(why, input, out),
            };
            match self.step_pair(many, key.0, (input, key.1), context) {
                PairOutcome::Stored(next, consumed) => (many, at) = (next, consumed),
                PairOutcome::Underway(consumed) => return ParseStep::Took(consumed),
                PairOutcome::NeedMore => break,
                PairOutcome::Malformed(why) => return self.hang_up(why, input, out),
            }
        }
        let is_paused = out.len() >= OUTPUT_BYTES_MAX;
        let is_over = many.left == 0;
        self.go_on(many, out);
        if at == 0 && !is_paused && !is_over { ParseStep::NeedMore } else { ParseStep::Took(at) }
    }

    /// A key that no item has, since it is too long.
    fn pass_over_key(
        &mut self,
        mut many: Many,
        at: usize,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let mut count = 1;
        match many.verb {
            RespVerb::MGet => nil(out),
            RespVerb::MSet => {
                count = 2;
                many.fault.get_or_insert(RespFault::KeyTooLong);
            }
            _ => {}
        }
        many.left -= count;
        self.skip_inside(0, count, many);
        ParseStep::Took(at)
    }

    /// A key of `MSET`, whose value begins at `at`.
    fn step_pair(
        &mut self,
        mut many: Many,
        key: &[u8],
        (input, at): (&[u8], usize),
        context: &KvContext<'_>,
    ) -> PairOutcome {
        many.left -= 2;
        match resp::bulk(&input[at..]) {
            Bulk::Whole(value, consumed) => {
                let fault = commands::set_plainly(key, value, context).err();
                many.fault = many.fault.or(fault);
                PairOutcome::Stored(many, at + consumed)
            }
            Bulk::Malformed(why) => PairOutcome::Malformed(why),
            Bulk::NeedMore(None) => PairOutcome::NeedMore,
            Bulk::NeedMore(Some(_)) => {
                let RespPiece::Whole(value_len, consumed) = resp::bulk_header(&input[at..]) else {
                    return PairOutcome::NeedMore;
                };
                let arrival = PendingValue {
                    verb: RespVerb::MSet,
                    options: SetOptions::default(),
                    left: 0,
                    of: Some(many),
                };
                match commands::reserve(key, value_len, context) {
                    Ok(reservation) => self.await_value(reservation, value_len, arrival),
                    Err(fault) => {
                        many.fault.get_or_insert(fault);
                        self.skip_inside(value_len + 2, 0, many);
                    }
                }
                PairOutcome::Underway(at + consumed)
            }
        }
    }
}

/// What became of a key and its value.
enum PairOutcome {
    Stored(Many, usize),
    /// The value comes in pieces; what is before it was taken.
    Underway(usize),
    NeedMore,
    Malformed(Malformed),
}

/// Values that come in pieces.
impl KvConnection {
    /// A value of `value_len` bytes, with `left` arguments behind it.
    fn begin_value(
        &mut self,
        command: &RespCommand,
        arguments: &[&[u8]],
        (value_len, left): (usize, u32),
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        let key = arguments[1];
        let options = commands::options_before_value(command, arguments, context.now);
        let taken = options.and_then(|options| {
            let reservation = commands::reserve(key, value_len, context)?;
            Ok((reservation, options))
        });
        match taken {
            Ok((reservation, options)) => {
                self.commands.accepted += 1;
                self.held.clear();
                self.held.extend_from_slice(key);
                let arrival = PendingValue { verb: command.verb, options, left, of: None };
                self.await_value(reservation, value_len, arrival);
            }
            Err(fault) => {
                self.commands.refused += 1;
                error(fault, out);
                self.skip_arguments(value_len + 2, left);
            }
        }
    }

    const fn await_value(
        &mut self,
        reservation: Reservation,
        value_len: usize,
        arrival: PendingValue,
    ) {
        self.state = ConnectionState::Value(IncomingValue {
            reservation,
            write: Write::PLAIN,
            value_len,
            received: 0,
            ending: [0; 2],
            reply: StoreReply::Resp(arrival),
        });
    }

    /// All pieces are here.
    pub(super) fn finish_arrival(
        &mut self,
        arriving: IncomingValue,
        arrival: PendingValue,
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        let IncomingValue { reservation, write, ending, .. } = arriving;
        if ending != *b"\r\n" {
            context.store.abandon(reservation);
            self.hang_up(Malformed::BulkEnding, b"", out);
        } else if let Some(mut many) = arrival.of {
            let outcome = context.store.commit(reservation, &write, context.now);
            let fault = commands::store_fault(outcome);
            many.fault = many.fault.or(fault);
            self.go_on(many, out);
        } else if arrival.left > 0 {
            self.state = ConnectionState::Resp(Midway::Tail(PendingOptions {
                reservation,
                left: arrival.left,
            }));
        } else {
            self.store_arrived(arrival.verb, reservation, arrival.options, context, out);
        }
    }

    fn store_arrived(
        &mut self,
        verb: RespVerb,
        reservation: Reservation,
        options: SetOptions,
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        let key = std::mem::take(&mut self.held);
        let source = ArgumentSource::Arrived(reservation);
        commands::store_value(verb, &key, source, options, context, out);
    }

    /// The options behind a value of `SET`.
    fn step_tail(
        &mut self,
        tail: PendingOptions,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let options = match gather(input, 0, RespArguments::new(), (tail.left, None)) {
            GatheredArguments::NeedMore => {
                self.state = ConnectionState::Resp(Midway::Tail(tail));
                return ParseStep::NeedMore;
            }
            GatheredArguments::Malformed(why) => {
                context.store.abandon(tail.reservation);
                return self.hang_up(why, input, out);
            }
            GatheredArguments::TooLong(arguments, at) => {
                context.store.abandon(tail.reservation);
                error(RespFault::ArgumentTooLong, out);
                let left = tail.left - arguments.as_slice().len() as u32;
                self.skip_arguments(0, left);
                return ParseStep::Took(at);
            }
            GatheredArguments::Whole(arguments, consumed) => {
                let options = resp::set_options(arguments.as_slice(), context.now);
                options.map(|options| (options, consumed)).map_err(|fault| (fault, consumed))
            }
        };
        let (Ok((_, consumed)) | Err((_, consumed))) = options;
        match options {
            Ok((options, _)) => {
                self.store_arrived(RespVerb::Set, tail.reservation, options, context, out);
            }
            Err((fault, _)) => {
                context.store.abandon(tail.reservation);
                error(fault, out);
            }
        }
        ParseStep::Took(consumed)
    }
}

/// Gives up what a connection holds in the store.
pub(super) fn abandon(midway: Midway, store: &KvStore) {
    if let Some(reservation) = midway.into_reservation() {
        store.abandon(reservation);
    }
}

#[cfg(test)]
mod tests;
