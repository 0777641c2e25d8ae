//! Carrying out the text protocol.
//!
//! Read first: [`super`], [`crate::kv::protocol::text`].

use super::line::Line;
use super::stats;
use super::{Afterwards, Arriving, Connection, Context, Keys, Output, State, Step, StoreReply};
use crate::kv::VERSION;
use crate::kv::limits::OUTPUT_BYTES_MAX;
use crate::kv::protocol::Fault;
use crate::kv::protocol::text::{self, NextKey, Parsed, Request, StoreLine};
use crate::kv::store::{Arithmetic, Digits, Item, Outcome, Removal, Sum, Write, expiry};

impl Connection {
    /// The command at the front of `input`.
    pub(super) fn step_text(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
    ) -> Step {
        match text::parse(input) {
            Parsed::NeedMore => Step::NeedMore,
            Parsed::LineTooLong | Parsed::Http => {
                self.commands.refused += 1;
                self.state = State::Ended;
                Step::Took(input.len())
            }
            Parsed::Retrieve { retrieval, consumed } => {
                self.commands.accepted += 1;
                let touch = retrieval.touch.map(|exptime| expiry(exptime, context.now));
                let keys = Keys { with_cas: retrieval.with_cas, touch, any: touch.is_some() };
                self.state = State::Keys(keys);
                match self.step_keys(keys, &input[consumed..], context, out) {
                    Step::Took(count) => Step::Took(consumed + count),
                    Step::NeedMore => Step::Took(consumed),
                }
            }
            Parsed::Request { request, consumed } => {
                self.commands.accepted += 1;
                let block = &input[consumed..];
                Step::Took(consumed + self.carry_out(&request, block, context, out))
            }
            Parsed::Fault { fault, noreply, consumed, line_ended } => {
                self.commands.refused += 1;
                if !noreply {
                    tell(fault, out);
                }
                if !line_ended {
                    self.state = State::SkipLine;
                }
                Step::Took(consumed)
            }
        }
    }

    /// Keys of a retrieval line, as many as are here and the output has room for.
    pub(super) fn step_keys(
        &mut self,
        mut keys: Keys,
        input: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
    ) -> Step {
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
                    self.state = State::Command;
                    if keys.any {
                        out.extend_from_slice(b"END\r\n");
                    } else {
                        tell(Fault::UnknownCommand, out);
                    }
                    return Step::Took(at + consumed);
                }
                NextKey::TooLong { consumed } => {
                    self.state = State::SkipLine;
                    tell(Fault::BadLine, out);
                    return Step::Took(at + consumed);
                }
                NextKey::NeedMore { consumed } => {
                    self.state = State::Keys(keys);
                    at += consumed;
                    return if at == 0 { Step::NeedMore } else { Step::Took(at) };
                }
            }
        }
        self.state = State::Keys(keys);
        Step::Took(at)
    }

    /// Answers a whole line; returns how many bytes of the data block behind it were taken.
    fn carry_out(
        &mut self,
        request: &Request<'_>,
        block: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
    ) -> usize {
        let (store, now) = (context.store, context.now);
        match *request {
            Request::Store(ref line) => return self.store_text(line, block, context, out),
            Request::Meta(ref command) => return self.carry_out_meta(command, block, context, out),
            Request::Arithmetic { key, delta, down, noreply } => {
                let change = Arithmetic { delta, down, cas: None, create: None, expires: None };
                answer_sum(store.add(key, &change, now), noreply, out);
            }
            Request::Delete { key, noreply } => {
                let done = store.delete(key, None, now) == Removal::Done;
                answer(if done { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }, noreply, out);
            }
            Request::Touch { key, exptime, noreply } => {
                let touched = store.touch(key, expiry(exptime, now), now).is_some();
                answer(if touched { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, noreply, out);
            }
            Request::FlushAll { delay, noreply } => {
                store.flush(flush_time(delay, now), now);
                answer(b"OK\r\n", noreply, out);
            }
            Request::Stats(arguments) => stats::answer_text(arguments, context, out),
            Request::Version => {
                out.extend_from_slice(b"VERSION ");
                out.extend_from_slice(VERSION.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Request::Verbosity { noreply } => answer(b"OK\r\n", noreply, out),
            Request::Quit => self.state = State::Ended,
        }
        0
    }

    fn store_text(
        &mut self,
        line: &StoreLine<'_>,
        block: &[u8],
        context: &Context<'_>,
        out: &mut impl Output,
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
        context: &Context<'_>,
        out: &mut impl Output,
    ) {
        match context.store.reserve(key, &write, value_len, context.now) {
            Ok(reservation) => {
                self.state = State::Value(Arriving {
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

/// What a client is told after a block for which there is no memory.
fn refusal(outcome: Outcome, reply: StoreReply) -> Afterwards {
    match reply {
        StoreReply::Text { noreply: true } | StoreReply::Resp(_) => Afterwards::Nothing,
        StoreReply::Text { noreply: false } | StoreReply::Meta => {
            Afterwards::Tell(store_fault(outcome))
        }
        StoreReply::Binary { opcode, opaque, .. } => {
            let status = super::binary::store_status(outcome);
            Afterwards::Status { status, opcode, opaque }
        }
    }
}

/// The value and its ending, if all of it is here.
pub(super) fn whole_block(block: &[u8], value_len: usize) -> Option<(&[u8], &[u8])> {
    block.get(..value_len + 2).map(|block| block.split_at(value_len))
}

/// A data block that does not end as it must.
pub(super) fn refuse_block(reply: StoreReply, out: &mut impl Output) {
    if !matches!(reply, StoreReply::Text { noreply: true }) {
        tell(Fault::BadDataChunk, out);
    }
}

pub(super) fn tell(fault: Fault, out: &mut impl Output) {
    out.extend_from_slice(fault.line().as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) fn answer_store(outcome: Outcome, noreply: bool, out: &mut impl Output) {
    let response: &[u8] = match outcome {
        Outcome::Stored(_) => b"STORED\r\n",
        Outcome::NotStored => b"NOT_STORED\r\n",
        Outcome::Exists => b"EXISTS\r\n",
        Outcome::NotFound => b"NOT_FOUND\r\n",
        Outcome::TooLarge | Outcome::OutOfMemory => {
            if !noreply {
                tell(store_fault(outcome), out);
            }
            return;
        }
    };
    answer(response, noreply, out);
}

/// The line for an item that cannot be stored.
pub(super) const fn store_fault(outcome: Outcome) -> Fault {
    match outcome {
        Outcome::TooLarge => Fault::TooLarge,
        _ => Fault::OutOfMemory,
    }
}

/// A flush at once, or at a second to come.
pub(super) fn flush_time(delay: i64, now: u32) -> u32 {
    if delay <= 0 { now } else { expiry(delay, now) }
}

fn answer(response: &[u8], noreply: bool, out: &mut impl Output) {
    if !noreply {
        out.extend_from_slice(response);
    }
}

fn answer_sum(sum: Sum, noreply: bool, out: &mut impl Output) {
    match sum {
        _ if noreply => {}
        Sum::Value { number, .. } => {
            out.extend_from_slice(&Digits::new(number));
            out.extend_from_slice(b"\r\n");
        }
        Sum::NotFound => out.extend_from_slice(b"NOT_FOUND\r\n"),
        Sum::Exists => out.extend_from_slice(b"EXISTS\r\n"),
        Sum::NonNumeric => tell(Fault::NonNumeric, out),
        Sum::OutOfMemory => tell(Fault::OutOfMemoryInIncr, out),
    }
}

fn answer_item(key: &[u8], item: &Item<'_>, with_cas: bool, out: &mut impl Output) {
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
