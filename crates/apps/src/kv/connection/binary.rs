//! Carrying out the binary protocol.
//!
//! Read first: [`super`], [`crate::kv::protocol::binary`].

use super::responses::{answer_status, flush_time, header_of, store_status};
use super::stats;
use super::{
    Afterwards, ConnectionState, KvConnection, KvContext, ParseStep, ResponseBuffer, StoreReply,
};
use crate::kv::VERSION;
use crate::kv::protocol::binary::{
    self, BinaryOperation, BinaryStatus, HEADER_BYTES, ParsedFrame, RequestFrame, ResponseHeader,
    StoreKind,
};
use crate::kv::protocol::text::StoreVerb;
use crate::kv::store::{
    ArithmeticOutcome, NumberChange, Removal, StoreOutcome, StoredItem, Write, expiry,
};

/// The expiry time that means: do not create the number.
const DO_NOT_CREATE: u32 = u32::MAX;

impl KvConnection {
    /// The request at the front of `input`.
    pub(super) fn step_binary(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        match binary::parse(input) {
            ParsedFrame::NeedMore => ParseStep::NeedMore,
            ParsedFrame::NotARequest => {
                self.commands.refused += 1;
                self.state = ConnectionState::Ended;
                ParseStep::Took(input.len())
            }
            ParsedFrame::Fault { status, opcode, opaque, skip, close } => {
                self.commands.refused += 1;
                if close {
                    answer_status(status, opcode, opaque, out);
                    self.state = ConnectionState::Ended;
                    return ParseStep::Took(input.len());
                }
                self.skip(skip as u64, Afterwards::Status { status, opcode, opaque }, out);
                ParseStep::Took(HEADER_BYTES)
            }
            ParsedFrame::Frame { frame, consumed } => {
                self.commands.accepted += 1;
                let rest = &input[consumed..];
                ParseStep::Took(consumed + self.carry_out_frame(&frame, rest, context, out))
            }
        }
    }

    /// Answers a request; returns how many bytes of the value behind it were taken.
    fn carry_out_frame(
        &mut self,
        frame: &RequestFrame<'_>,
        rest: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> usize {
        match frame.operation {
            BinaryOperation::Store(kind) => {
                return self.store_binary(
                    frame,
                    store_write(frame, kind, context),
                    rest,
                    context,
                    out,
                );
            }
            BinaryOperation::Concatenate { front } => {
                let verb = if front { StoreVerb::Prepend } else { StoreVerb::Append };
                let write = Write { verb, cas: cas_of(frame), ..Write::PLAIN };
                return self.store_binary(frame, write, rest, context, out);
            }
            BinaryOperation::Get { with_key } => get(frame, with_key, None, context, out),
            BinaryOperation::GetAndTouch { with_key } => {
                let expires = expiry(i64::from(frame.extra_u32(0)), context.now);
                get(frame, with_key, Some(expires), context, out);
            }
            BinaryOperation::Touch => touch(frame, context, out),
            BinaryOperation::Delete => delete(frame, context, out),
            BinaryOperation::Arithmetic { down } => add(frame, down, context, out),
            BinaryOperation::Quit => {
                answer_success(frame, 0, out);
                self.state = ConnectionState::Ended;
            }
            BinaryOperation::Flush => {
                let delay = i64::from(frame.extra_u32(0));
                context.store.flush(flush_time(delay, context.now), context.now);
                answer_success(frame, 0, out);
            }
            BinaryOperation::Noop => answer_success(frame, 0, out),
            BinaryOperation::Version => {
                let value_len = VERSION.len() as u32;
                let header = ResponseHeader { value_len, ..header_of(frame) };
                out.extend_from_slice(&header.to_bytes());
                out.extend_from_slice(VERSION.as_bytes());
            }
            BinaryOperation::Stat => {
                if !stats::answer_binary(frame, context, out) {
                    answer_status(BinaryStatus::KeyNotFound, frame.opcode, frame.opaque, out);
                }
            }
        }
        0
    }

    fn store_binary(
        &mut self,
        frame: &RequestFrame<'_>,
        write: Write,
        rest: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> usize {
        let RequestFrame { opcode, opaque, quiet, key, value_len, .. } = *frame;
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

pub(super) fn answer_store(
    outcome: StoreOutcome,
    write: &Write,
    (opcode, opaque, quiet): (u8, u32, bool),
    out: &mut impl ResponseBuffer,
) {
    let status = match outcome {
        StoreOutcome::Stored(_) if quiet => return,
        StoreOutcome::Stored(cas) => {
            let header = ResponseHeader { opcode, opaque, cas, ..ResponseHeader::default() };
            return out.extend_from_slice(&header.to_bytes());
        }
        // Each verb has its own word for a condition that does not hold.
        StoreOutcome::NotStored => match write.verb {
            StoreVerb::Add => BinaryStatus::KeyExists,
            StoreVerb::Replace => BinaryStatus::KeyNotFound,
            _ => BinaryStatus::NotStored,
        },
        outcome => store_status(outcome),
    };
    answer_status(status, opcode, opaque, out);
}

fn answer_success(frame: &RequestFrame<'_>, cas: u64, out: &mut impl ResponseBuffer) {
    if !frame.quiet {
        let header = ResponseHeader { cas, ..header_of(frame) };
        out.extend_from_slice(&header.to_bytes());
    }
}

fn answer_failure(frame: &RequestFrame<'_>, status: BinaryStatus, out: &mut impl ResponseBuffer) {
    answer_status(status, frame.opcode, frame.opaque, out);
}

fn cas_of(frame: &RequestFrame<'_>) -> Option<u64> {
    (frame.cas != 0).then_some(frame.cas)
}

fn store_write(frame: &RequestFrame<'_>, kind: StoreKind, context: &KvContext<'_>) -> Write {
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
    frame: &RequestFrame<'_>,
    with_key: bool,
    touch: Option<u32>,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let key = if with_key { frame.key } else { &[] };
    let found = context.store.get(frame.key, touch, context.now, |item| {
        answer_item(frame, key, item, out);
    });
    if found.is_some() || frame.quiet {
        return;
    }
    if with_key {
        let status = BinaryStatus::KeyNotFound as u16;
        let header = ResponseHeader { status, key_len: key.len() as u16, ..header_of(frame) };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(key);
    } else {
        answer_failure(frame, BinaryStatus::KeyNotFound, out);
    }
}

fn answer_item(
    frame: &RequestFrame<'_>,
    key: &[u8],
    item: &StoredItem<'_>,
    out: &mut impl ResponseBuffer,
) {
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

fn touch(frame: &RequestFrame<'_>, context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    let expires = expiry(i64::from(frame.extra_u32(0)), context.now);
    match context.store.touch(frame.key, expires, context.now) {
        Some((flags, cas)) => {
            let header = ResponseHeader { cas, extras_len: 4, ..header_of(frame) };
            out.extend_from_slice(&header.to_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        None => answer_failure(frame, BinaryStatus::KeyNotFound, out),
    }
}

fn delete(frame: &RequestFrame<'_>, context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    match context.store.delete(frame.key, cas_of(frame), context.now) {
        Removal::Done => answer_success(frame, 0, out),
        Removal::NotFound => answer_failure(frame, BinaryStatus::KeyNotFound, out),
        Removal::Exists => answer_failure(frame, BinaryStatus::KeyExists, out),
    }
}

fn add(
    frame: &RequestFrame<'_>,
    down: bool,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let exptime = frame.extra_u32(16);
    let initial = (frame.extra_u64(8), expiry(i64::from(exptime), context.now));
    let change = NumberChange {
        delta: frame.extra_u64(0),
        down,
        cas: cas_of(frame),
        create: (exptime != DO_NOT_CREATE).then_some(initial),
        expires: None,
    };
    let status = match context.store.add(frame.key, &change, context.now) {
        ArithmeticOutcome::Value { .. } if frame.quiet => return,
        ArithmeticOutcome::Value { number, cas, .. } => {
            let header = ResponseHeader { cas, value_len: 8, ..header_of(frame) };
            out.extend_from_slice(&header.to_bytes());
            return out.extend_from_slice(&number.to_be_bytes());
        }
        ArithmeticOutcome::NotFound => BinaryStatus::KeyNotFound,
        ArithmeticOutcome::Exists => BinaryStatus::KeyExists,
        ArithmeticOutcome::NonNumeric => BinaryStatus::NonNumeric,
        ArithmeticOutcome::OutOfMemory => BinaryStatus::OutOfMemory,
    };
    answer_failure(frame, status, out);
}
