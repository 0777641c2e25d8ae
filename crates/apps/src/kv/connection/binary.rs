//! Carrying out the binary protocol.
//!
//! Read first: [`super`], [`crate::kv::protocol::binary`].

use super::stats;
use super::text::flush_time;
use super::{Afterwards, Connection, Context, Output, State, Step, StoreReply};
use crate::kv::VERSION;
use crate::kv::protocol::binary::{
    self, Frame, HEADER_BYTES, Operation, Parsed, ResponseHeader, Status, StoreKind,
};
use crate::kv::protocol::text::StoreVerb;
use crate::kv::store::{Arithmetic, Item, Outcome, Removal, Sum, Write, expiry};

/// An expiry time that says: do not create the number.
const DO_NOT_CREATE: u32 = u32::MAX;

impl Connection {
    /// The request at the front of `input`.
    pub(super) fn step_binary(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
    ) -> Step {
        match binary::parse(input) {
            Parsed::NeedMore => Step::NeedMore,
            Parsed::NotARequest => {
                self.commands.refused += 1;
                self.state = State::Ended;
                Step::Took(input.len())
            }
            Parsed::Fault { status, opcode, opaque, skip, close } => {
                self.commands.refused += 1;
                if close {
                    answer_status(status, opcode, opaque, out);
                    self.state = State::Ended;
                    return Step::Took(input.len());
                }
                self.skip(skip as u64, Afterwards::Status { status, opcode, opaque }, out);
                Step::Took(HEADER_BYTES)
            }
            Parsed::Frame { frame, consumed } => {
                self.commands.accepted += 1;
                let rest = &input[consumed..];
                Step::Took(consumed + self.carry_out_frame(&frame, rest, context, out))
            }
        }
    }

    /// Answers a request; returns how many bytes of the value behind it were taken.
    fn carry_out_frame(
        &mut self,
        frame: &Frame<'_>,
        rest: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
    ) -> usize {
        match frame.operation {
            Operation::Store(kind) => {
                return self.store_binary(
                    frame,
                    store_write(frame, kind, context),
                    rest,
                    context,
                    out,
                );
            }
            Operation::Concatenate { front } => {
                let verb = if front { StoreVerb::Prepend } else { StoreVerb::Append };
                let write = Write { verb, cas: cas_of(frame), ..Write::PLAIN };
                return self.store_binary(frame, write, rest, context, out);
            }
            Operation::Get { with_key } => get(frame, with_key, None, context, out),
            Operation::GetAndTouch { with_key } => {
                let expires = expiry(i64::from(frame.extra_u32(0)), context.now);
                get(frame, with_key, Some(expires), context, out);
            }
            Operation::Touch => touch(frame, context, out),
            Operation::Delete => delete(frame, context, out),
            Operation::Arithmetic { down } => add(frame, down, context, out),
            Operation::Quit => {
                answer_success(frame, 0, out);
                self.state = State::Ended;
            }
            Operation::Flush => {
                let delay = i64::from(frame.extra_u32(0));
                context.store.flush(flush_time(delay, context.now), context.now);
                answer_success(frame, 0, out);
            }
            Operation::Noop => answer_success(frame, 0, out),
            Operation::Version => {
                let value_len = VERSION.len() as u32;
                let header = ResponseHeader { value_len, ..header_of(frame) };
                out.extend_from_slice(&header.to_bytes());
                out.extend_from_slice(VERSION.as_bytes());
            }
            Operation::Stat => {
                if !stats::answer_binary(frame, context, out) {
                    answer_status(Status::KeyNotFound, frame.opcode, frame.opaque, out);
                }
            }
        }
        0
    }

    fn store_binary(
        &mut self,
        frame: &Frame<'_>,
        write: Write,
        rest: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
    ) -> usize {
        let Frame { opcode, opaque, quiet, key, value_len, .. } = *frame;
        let Some(value) = rest.get(..value_len) else {
            let reply = StoreReply::Binary { opcode, opaque, quiet };
            self.receive((key, value_len), write, reply, context, out);
            return 0;
        };
        let outcome = context.store.store(key, &write, value, context.now);
        answer_store(outcome, &write, (opcode, opaque, quiet), out);
        value_len
    }
}

/// A response without extras, key and value unless it tells of a failure.
pub(super) fn answer_status(status: Status, opcode: u8, opaque: u32, out: &mut impl Output) {
    let text = status.text().as_bytes();
    let header = ResponseHeader {
        opcode,
        opaque,
        status: status as u16,
        value_len: text.len() as u32,
        ..ResponseHeader::default()
    };
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(text);
}

pub(super) fn answer_store(
    outcome: Outcome,
    write: &Write,
    (opcode, opaque, quiet): (u8, u32, bool),
    out: &mut impl Output,
) {
    let status = match outcome {
        Outcome::Stored(_) if quiet => return,
        Outcome::Stored(cas) => {
            let header = ResponseHeader { opcode, opaque, cas, ..ResponseHeader::default() };
            return out.extend_from_slice(&header.to_bytes());
        }
        // Each verb has its own word for a condition that does not hold.
        Outcome::NotStored => match write.verb {
            StoreVerb::Add => Status::KeyExists,
            StoreVerb::Replace => Status::KeyNotFound,
            _ => Status::NotStored,
        },
        outcome => store_status(outcome),
    };
    answer_status(status, opcode, opaque, out);
}

pub(super) const fn store_status(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Stored(_) => Status::Success,
        Outcome::NotStored => Status::NotStored,
        Outcome::Exists => Status::KeyExists,
        Outcome::NotFound => Status::KeyNotFound,
        Outcome::TooLarge => Status::TooLarge,
        Outcome::OutOfMemory => Status::OutOfMemory,
    }
}

/// The header of a response to this request, so far without a body.
pub(super) fn header_of(frame: &Frame<'_>) -> ResponseHeader {
    let Frame { opcode, opaque, .. } = *frame;
    ResponseHeader { opcode, opaque, ..ResponseHeader::default() }
}

fn answer_success(frame: &Frame<'_>, cas: u64, out: &mut impl Output) {
    if !frame.quiet {
        let header = ResponseHeader { cas, ..header_of(frame) };
        out.extend_from_slice(&header.to_bytes());
    }
}

fn answer_failure(frame: &Frame<'_>, status: Status, out: &mut impl Output) {
    answer_status(status, frame.opcode, frame.opaque, out);
}

fn cas_of(frame: &Frame<'_>) -> Option<u64> {
    (frame.cas != 0).then_some(frame.cas)
}

fn store_write(frame: &Frame<'_>, kind: StoreKind, context: &Context<'_>) -> Write {
    let cas = cas_of(frame);
    let verb = match kind {
        // With a cas unique all three are a compare and set.
        _ if cas.is_some() => StoreVerb::Set,
        StoreKind::Set => StoreVerb::Set,
        StoreKind::Add => StoreVerb::Add,
        StoreKind::Replace => StoreVerb::Replace,
    };
    let expires = expiry(i64::from(frame.extra_u32(4)), context.now);
    Write { verb, cas, flags: frame.extra_u32(0), expires, stale_if_older: false }
}

fn get(
    frame: &Frame<'_>,
    with_key: bool,
    touch: Option<u32>,
    context: &Context<'_>,
    out: &mut impl Output,
) {
    let key = if with_key { frame.key } else { &[] };
    let found = context.store.get(frame.key, touch, context.now, |item| {
        answer_item(frame, key, item, out);
    });
    if found.is_some() || frame.quiet {
        return;
    }
    if with_key {
        let status = Status::KeyNotFound as u16;
        let header = ResponseHeader { status, key_len: key.len() as u16, ..header_of(frame) };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(key);
    } else {
        answer_failure(frame, Status::KeyNotFound, out);
    }
}

fn answer_item(frame: &Frame<'_>, key: &[u8], item: &Item<'_>, out: &mut impl Output) {
    let header = ResponseHeader {
        cas: item.cas,
        extras_len: 4,
        key_len: key.len() as u16,
        value_len: item.value.len() as u32,
        ..header_of(frame)
    };
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(&item.flags.to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(item.value);
}

fn touch(frame: &Frame<'_>, context: &Context<'_>, out: &mut impl Output) {
    let expires = expiry(i64::from(frame.extra_u32(0)), context.now);
    match context.store.touch(frame.key, expires, context.now) {
        Some((flags, cas)) => {
            let header = ResponseHeader { cas, extras_len: 4, ..header_of(frame) };
            out.extend_from_slice(&header.to_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        None => answer_failure(frame, Status::KeyNotFound, out),
    }
}

fn delete(frame: &Frame<'_>, context: &Context<'_>, out: &mut impl Output) {
    match context.store.delete(frame.key, cas_of(frame), context.now) {
        Removal::Done => answer_success(frame, 0, out),
        Removal::NotFound => answer_failure(frame, Status::KeyNotFound, out),
        Removal::Exists => answer_failure(frame, Status::KeyExists, out),
    }
}

fn add(frame: &Frame<'_>, down: bool, context: &Context<'_>, out: &mut impl Output) {
    let exptime = frame.extra_u32(16);
    let initial = (frame.extra_u64(8), expiry(i64::from(exptime), context.now));
    let change = Arithmetic {
        delta: frame.extra_u64(0),
        down,
        cas: cas_of(frame),
        create: (exptime != DO_NOT_CREATE).then_some(initial),
        expires: None,
    };
    let status = match context.store.add(frame.key, &change, context.now) {
        Sum::Value { .. } if frame.quiet => return,
        Sum::Value { number, cas, .. } => {
            let header = ResponseHeader { cas, value_len: 8, ..header_of(frame) };
            out.extend_from_slice(&header.to_bytes());
            return out.extend_from_slice(&number.to_be_bytes());
        }
        Sum::NotFound => Status::KeyNotFound,
        Sum::Exists => Status::KeyExists,
        Sum::NonNumeric => Status::NonNumeric,
        Sum::OutOfMemory => Status::OutOfMemory,
    };
    answer_failure(frame, status, out);
}
