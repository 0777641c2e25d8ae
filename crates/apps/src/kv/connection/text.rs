//! Carrying out the text protocol.
//!
//! Read first: [`super`], [`crate::kv::protocol::text`].

use super::line::Line;
use super::responses::{flush_time, push_fault, refusal, store_fault};
use super::stats;
use super::{
    ConnectionState, IncomingValue, Keys, KvConnection, KvContext, ParseStep, ResponseBuffer,
    StoreReply,
};
use crate::kv::VERSION;
use crate::kv::limits::OUTPUT_BYTES_MAX;
use crate::kv::protocol::CommandFault;
use crate::kv::protocol::text::{self, NextKey, ParsedLine, StoreLine, TextRequest};
use crate::kv::store::{
    ArithmeticOutcome, Digits, NumberChange, Removal, StoreOutcome, StoredItem, Write, expiry,
};

impl KvConnection {
    /// The command at the front of `input`.
    pub(super) fn step_text(
        &mut self,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        match text::parse(input) {
            ParsedLine::NeedMore => ParseStep::NeedMore,
            ParsedLine::LineTooLong | ParsedLine::Http => {
                self.commands.refused += 1;
                self.state = ConnectionState::Ended;
                ParseStep::Took(input.len())
            }
            ParsedLine::Retrieve { retrieval, consumed } => {
                self.commands.accepted += 1;
                let touch = retrieval.touch.map(|exptime| expiry(exptime, context.now));
                let keys = Keys { with_cas: retrieval.with_cas, touch, any: touch.is_some() };
                self.state = ConnectionState::Keys(keys);
                match self.step_keys(keys, &input[consumed..], context, out) {
                    ParseStep::Took(count) => ParseStep::Took(consumed + count),
                    ParseStep::NeedMore => ParseStep::Took(consumed),
                }
            }
            ParsedLine::Request { request, consumed } => {
                self.commands.accepted += 1;
                let block = &input[consumed..];
                ParseStep::Took(consumed + self.carry_out(&request, block, context, out))
            }
            ParsedLine::Fault { fault, noreply, consumed, line_ended } => {
                self.commands.refused += 1;
                if !noreply {
                    push_fault(fault, out);
                }
                if !line_ended {
                    self.state = ConnectionState::SkipLine;
                }
                ParseStep::Took(consumed)
            }
        }
    }

    /// Keys of a retrieval line, as many as are here and the output has room for.
    pub(super) fn step_keys(
        &mut self,
        mut keys: Keys,
        input: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> ParseStep {
        let mut at = 0;
        while out.len() < OUTPUT_BYTES_MAX {
            match text::next_key(&input[at..]) {
                NextKey::Key { key, consumed } => {
                    at += consumed;
                    keys.any = true;
                    context.store.get(key, keys.touch, context.now, |item| {
                        answer_item(key, item, keys.with_cas, out);
                    });
                }
                NextKey::End { consumed } => {
                    self.state = ConnectionState::Command;
                    if keys.any {
                        out.extend_from_slice(b"END\r\n");
                    } else {
                        push_fault(CommandFault::UnknownCommand, out);
                    }
                    return ParseStep::Took(at + consumed);
                }
                NextKey::TooLong { consumed } => {
                    self.state = ConnectionState::SkipLine;
                    push_fault(CommandFault::BadLine, out);
                    return ParseStep::Took(at + consumed);
                }
                NextKey::NeedMore { consumed } => {
                    self.state = ConnectionState::Keys(keys);
                    at += consumed;
                    return if at == 0 { ParseStep::NeedMore } else { ParseStep::Took(at) };
                }
            }
        }
        self.state = ConnectionState::Keys(keys);
        ParseStep::Took(at)
    }

    /// Answers a whole line; returns how many bytes of the data block behind it were taken.
    fn carry_out(
        &mut self,
        request: &TextRequest<'_>,
        block: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> usize {
        let (store, now) = (context.store, context.now);
        match *request {
            TextRequest::Store(ref line) => return self.store_text(line, block, context, out),
            TextRequest::Meta(ref command) => {
                return self.carry_out_meta(command, block, context, out);
            }
            TextRequest::Arithmetic { key, delta, down, noreply } => {
                let change = NumberChange { delta, down, cas: None, create: None, expires: None };
                answer_sum(store.add(key, &change, now), noreply, out);
            }
            TextRequest::Delete { key, noreply } => {
                let done = store.delete(key, None, now) == Removal::Done;
                answer(if done { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }, noreply, out);
            }
            TextRequest::Touch { key, exptime, noreply } => {
                let touched = store.touch(key, expiry(exptime, now), now).is_some();
                answer(if touched { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, noreply, out);
            }
            TextRequest::FlushAll { delay, noreply } => {
                store.flush(flush_time(delay, now), now);
                answer(b"OK\r\n", noreply, out);
            }
            TextRequest::Stats(arguments) => stats::answer_text(arguments, context, out),
            TextRequest::Version => {
                out.extend_from_slice(b"VERSION ");
                out.extend_from_slice(VERSION.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            TextRequest::Verbosity { noreply } => answer(b"OK\r\n", noreply, out),
            TextRequest::Quit => self.state = ConnectionState::Ended,
        }
        0
    }

    fn store_text(
        &mut self,
        line: &StoreLine<'_>,
        block: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> usize {
        let write = Write {
            verb: line.verb,
            cas: line.cas,
            flags: line.flags,
            expires: expiry(line.exptime, context.now),
            stale_if_older: false,
        };
        let reply = StoreReply::Text { noreply: line.noreply };
        let Some((value, ending)) = whole_block(block, line.value_len) else {
            self.receive((line.key, line.value_len), write, reply, context, out);
            return 0;
        };
        if ending == b"\r\n" {
            let outcome = context.store.store(line.key, &write, value, context.now);
            answer_store(outcome, line.noreply, out);
        } else {
            refuse_block(reply, out);
        }
        line.value_len + 2
    }

    /// Prepares for a data block that is not here as a whole.
    pub(super) fn receive(
        &mut self,
        (key, value_len): (&[u8], usize),
        write: Write,
        reply: StoreReply,
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        match context.store.reserve(key, &write, value_len, context.now) {
            Ok(reservation) => {
                self.state = ConnectionState::Value(IncomingValue {
                    reservation,
                    write,
                    value_len,
                    received: 0,
                    ending: [0; 2],
                    reply,
                });
            }
            Err(outcome) => {
                let left = (value_len + reply.ending_len()) as u64;
                self.skip(left, refusal(outcome, reply), out);
            }
        }
    }
}

/// The value and its ending, if all of it is here.
pub(super) fn whole_block(block: &[u8], value_len: usize) -> Option<(&[u8], &[u8])> {
    block.get(..value_len + 2).map(|block| block.split_at(value_len))
}

/// A data block that does not end as it must.
pub(super) fn refuse_block(reply: StoreReply, out: &mut impl ResponseBuffer) {
    if !matches!(reply, StoreReply::Text { noreply: true }) {
        push_fault(CommandFault::BadDataChunk, out);
    }
}

pub(super) fn answer_store(outcome: StoreOutcome, noreply: bool, out: &mut impl ResponseBuffer) {
    let response: &[u8] = match outcome {
        StoreOutcome::Stored(_) => b"STORED\r\n",
        StoreOutcome::NotStored => b"NOT_STORED\r\n",
        StoreOutcome::Exists => b"EXISTS\r\n",
        StoreOutcome::NotFound => b"NOT_FOUND\r\n",
        StoreOutcome::TooLarge | StoreOutcome::OutOfMemory => {
            if !noreply {
                push_fault(store_fault(outcome), out);
            }
            return;
        }
    };
    answer(response, noreply, out);
}

fn answer(response: &[u8], noreply: bool, out: &mut impl ResponseBuffer) {
    if !noreply {
        out.extend_from_slice(response);
    }
}

fn answer_sum(sum: ArithmeticOutcome, noreply: bool, out: &mut impl ResponseBuffer) {
    match sum {
        _ if noreply => {}
        ArithmeticOutcome::Value { number, .. } => {
            out.extend_from_slice(&Digits::new(number));
            out.extend_from_slice(b"\r\n");
        }
        ArithmeticOutcome::NotFound => out.extend_from_slice(b"NOT_FOUND\r\n"),
        ArithmeticOutcome::Exists => out.extend_from_slice(b"EXISTS\r\n"),
        ArithmeticOutcome::NonNumeric => push_fault(CommandFault::NonNumeric, out),
        ArithmeticOutcome::OutOfMemory => push_fault(CommandFault::OutOfMemoryInIncr, out),
    }
}

fn answer_item(key: &[u8], item: &StoredItem<'_>, with_cas: bool, out: &mut impl ResponseBuffer) {
    let mut line = Line::new();
    line.push(b"VALUE ");
    line.push(key);
    line.push(b" ");
    line.push_number(u64::from(item.flags));
    line.push(b" ");
    line.push_number(item.value.len() as u64);
    if with_cas {
        line.push(b" ");
        line.push_number(item.cas);
    }
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
}
