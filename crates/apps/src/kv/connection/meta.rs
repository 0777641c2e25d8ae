//! Carrying out the meta commands.
//!
//! Read first: [`super`], [`crate::kv::protocol::meta`].
//!
//! Flags are answered in the client's order, and those that change the item (`T`, `R`) act at their
//! place in that order, as in memcached: `t T30` tells the time left before, `T30 t` after.

use super::line::Line;
use super::responses::{push_fault, store_fault};
use super::text::{refuse_block, whole_block};
use super::{Afterwards, KvConnection, KvContext, ResponseBuffer, StoreReply};
use crate::kv::protocol::CommandFault;
use crate::kv::protocol::meta::{MetaCommand, MetaVerb, key_scratch};
use crate::kv::protocol::text::StoreVerb;
use crate::kv::store::{
    ArithmeticOutcome, Digits, ItemChange, NumberChange, Removal, StoreOutcome, StoredItem, Write,
    expiry,
};

impl KvConnection {
    /// Answers a meta command; returns how many bytes of the data block behind it were taken.
    pub(super) fn carry_out_meta(
        &mut self,
        command: &MetaCommand<'_>,
        block: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> usize {
        match command.verb {
            MetaVerb::Get => get(command, context, out),
            MetaVerb::Set => return self.set(command, block, context, out),
            MetaVerb::Delete => delete(command, context, out),
            MetaVerb::Arithmetic => add(command, context, out),
            MetaVerb::Debug => debug(command, context, out),
            MetaVerb::Noop => out.extend_from_slice(b"MN\r\n"),
        }
        0
    }

    fn set(
        &mut self,
        command: &MetaCommand<'_>,
        block: &[u8],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) -> usize {
        if let Some(fault) = command.refused {
            self.skip(command.value_len as u64 + 2, Afterwards::Tell(fault), out);
            return 0;
        }
        let options = &command.options;
        let verb = match command.store_verb() {
            // With a cas unique a replace is a compare and set.
            StoreVerb::Replace if options.cas.is_some() => StoreVerb::Set,
            verb => verb,
        };
        let write = Write {
            verb,
            cas: options.cas,
            flags: options.client_flags,
            expires: expiry(options.touch.unwrap_or(0), context.now),
            stale_if_older: options.invalidate,
        };
        let mut scratch = key_scratch();
        let Some((value, ending)) = whole_block(block, command.value_len) else {
            self.hold(command);
            let value = (command.key(&mut scratch), command.value_len);
            self.receive(value, write, StoreReply::Meta, context, out);
            return 0;
        };
        if ending == b"\r\n" {
            let outcome =
                context.store.store(command.key(&mut scratch), &write, value, context.now);
            answer_set(outcome, command.key_text, command.flags(), out);
        } else {
            refuse_block(StoreReply::Meta, out);
        }
        command.value_len + 2
    }

    /// Keeps key and flags as one line until the block has arrived.
    fn hold(&mut self, command: &MetaCommand<'_>) {
        self.held.clear();
        self.held.extend_from_slice(command.key_text);
        self.held.push(b' ');
        self.held.extend_from_slice(command.flag_text());
    }
}

/// The response to a set whose block has come in pieces.
pub(super) fn answer_held_store(outcome: StoreOutcome, held: &[u8], out: &mut impl ResponseBuffer) {
    let mut words = crate::kv::protocol::words(held);
    let key = words.next().unwrap_or_default();
    answer_set(outcome, key, words, out);
}

fn answer_set<'a>(
    outcome: StoreOutcome,
    key: &[u8],
    flags: impl Iterator<Item = &'a [u8]> + Clone,
    out: &mut impl ResponseBuffer,
) {
    let (code, cas) = match outcome {
        StoreOutcome::Stored(_) if flags.clone().any(|flag| flag[0] == b'q') => return,
        StoreOutcome::Stored(cas) => (b"HD", cas),
        StoreOutcome::NotStored => (b"NS", 0),
        StoreOutcome::Exists => (b"EX", 0),
        StoreOutcome::NotFound => (b"NF", 0),
        StoreOutcome::TooLarge | StoreOutcome::OutOfMemory => {
            return push_fault(store_fault(outcome), out);
        }
    };
    let base64 = flags.clone().any(|flag| flag[0] == b'b');
    let mut line = Line::new();
    line.push(code);
    for flag in flags {
        match flag[0] {
            b'c' => {
                line.push(b" c");
                line.push_number(cas);
            }
            _ => repeat_flag(flag, key, base64, &mut line),
        }
    }
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
}

/// The flags that every response repeats: the opaque, and the key as it was sent, with `b` behind
/// it if that is base64.
fn repeat_flag(flag: &[u8], key_text: &[u8], base64: bool, line: &mut Line) {
    match flag[0] {
        b'O' => {
            line.push(b" ");
            line.push(flag);
        }
        b'k' => {
            line.push(b" k");
            line.push(key_text);
            line.push(if base64 { b" b" } else { b"" });
        }
        _ => {}
    }
}

fn repeat_flags(command: &MetaCommand<'_>, line: &mut Line) {
    for flag in command.flags() {
        repeat_flag(flag, command.key_text, command.is_base64(), line);
    }
}

fn get(command: &MetaCommand<'_>, context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    let now = context.now;
    let vivify = command.options.vivify.map(|exptime| expiry(exptime, now));
    context.store.visit(command.key(&mut key_scratch()), vivify, now, |item| {
        let Some(item) = item else {
            if !command.options.quiet {
                answer_miss(command, out);
            }
            return ((), ItemChange::default());
        };
        ((), answer_hit(command, item, now, out))
    });
}

fn answer_miss(command: &MetaCommand<'_>, out: &mut impl ResponseBuffer) {
    let mut line = Line::new();
    line.push(b"EN");
    repeat_flags(command, &mut line);
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
}

fn answer_hit(
    command: &MetaCommand<'_>,
    item: &StoredItem<'_>,
    now: u32,
    out: &mut impl ResponseBuffer,
) -> ItemChange {
    let options = &command.options;
    let mut line = Line::new();
    if options.value {
        line.push(b"VA ");
        line.push_number(item.value.len() as u64);
    } else {
        line.push(b"HD");
    }
    let mut change =
        ItemChange { no_bump: options.no_bump, win: item.created, ..ItemChange::default() };
    let mut expires = item.expires;
    for flag in command.flags() {
        match flag[0] {
            b'T' => {
                expires = expiry(options.touch.unwrap_or(0), now);
                change.expires = Some(expires);
            }
            b'R' => {
                let limit = expiry(options.recache.unwrap_or(0), now);
                change.win |= !item.won && expires != 0 && expires < limit;
            }
            _ => answer_item_flag(flag, command, item, (expires, now), &mut line),
        }
    }
    if item.won {
        line.push(b" Z");
    }
    if item.stale {
        line.push(b" X");
        change.win |= !item.won;
    }
    if change.win {
        line.push(b" W");
    }
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
    if options.value {
        out.extend_from_slice(item.value);
        out.extend_from_slice(b"\r\n");
    }
    change
}

fn answer_item_flag(
    flag: &[u8],
    command: &MetaCommand<'_>,
    item: &StoredItem<'_>,
    (expires, now): (u32, u32),
    line: &mut Line,
) {
    let number = match flag[0] {
        b's' => item.value.len() as u64,
        b'f' => u64::from(item.flags),
        b'c' => item.cas,
        b'h' => u64::from(item.fetched),
        b'l' => u64::from(now.saturating_sub(item.accessed)),
        b't' => {
            line.push(b" t");
            line.push_time_left(expires, now);
            return;
        }
        _ => return repeat_flag(flag, command.key_text, command.is_base64(), line),
    };
    line.push(b" ");
    line.push(&flag[..1]);
    line.push_number(number);
}

fn delete(command: &MetaCommand<'_>, context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    let options = &command.options;
    let mut scratch = key_scratch();
    let (key, now) = (command.key(&mut scratch), context.now);
    let removal = if options.invalidate {
        let expires = options.touch.map(|exptime| expiry(exptime, now));
        context.store.mark_stale(key, options.cas, expires, now)
    } else {
        context.store.delete(key, options.cas, now)
    };
    let code = match removal {
        Removal::Done if options.quiet => return,
        Removal::Done => b"HD",
        Removal::NotFound => b"NF",
        Removal::Exists => b"EX",
    };
    let mut line = Line::new();
    line.push(code);
    repeat_flags(command, &mut line);
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
}

fn add(command: &MetaCommand<'_>, context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    let options = &command.options;
    let now = context.now;
    let change = NumberChange {
        delta: options.delta.unwrap_or(1),
        down: command.down(),
        cas: options.cas,
        create: options.vivify.map(|exptime| (options.initial, expiry(exptime, now))),
        expires: options.touch.map(|exptime| expiry(exptime, now)),
    };
    let mut line = Line::new();
    let sum = context.store.add(command.key(&mut key_scratch()), &change, now);
    match sum {
        // What memcached creates, it tells of in any case.
        ArithmeticOutcome::Value { created: false, .. } if options.quiet => return,
        ArithmeticOutcome::Value { number, cas, expires, .. } => {
            let digits = Digits::new(number);
            if options.value {
                line.push(b"VA ");
                line.push_number(digits.len() as u64);
            } else {
                line.push(b"HD");
            }
            for flag in command.flags() {
                match flag[0] {
                    b't' => {
                        line.push(b" t");
                        line.push_time_left(expires, now);
                    }
                    b'c' => {
                        line.push(b" c");
                        line.push_number(cas);
                    }
                    _ => repeat_flag(flag, command.key_text, command.is_base64(), &mut line),
                }
            }
            if options.value {
                line.push(b"\r\n");
                line.push(&digits);
            }
        }
        ArithmeticOutcome::NotFound => {
            line.push(b"NF");
            repeat_flags(command, &mut line);
        }
        ArithmeticOutcome::Exists => {
            line.push(b"EX");
            repeat_flags(command, &mut line);
        }
        ArithmeticOutcome::NonNumeric => return push_fault(CommandFault::NonNumeric, out),
        ArithmeticOutcome::OutOfMemory => return push_fault(CommandFault::OutOfMemory, out),
    }
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
}

/// What is known of an item besides its value. The class is always 1: there is one log, no slabs.
fn debug(command: &MetaCommand<'_>, context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    let now = context.now;
    let mut line = Line::new();
    let found = context.store.peek(command.key(&mut key_scratch()), now, |item| {
        line.push(b"ME ");
        line.push(command.key_text);
        line.push(b" exp=");
        if item.expires == 0 {
            line.push(b"-1");
        } else {
            // memcached counts from the expiry time to now.
            line.push(b"-");
            line.push_number(u64::from(item.expires.saturating_sub(now)));
        }
        line.push(b" la=");
        line.push_number(u64::from(now.saturating_sub(item.accessed)));
        line.push(b" cas=");
        line.push_number(item.cas);
        line.push(if item.fetched { b" fetch=yes" } else { b" fetch=no" });
        line.push(b" cls=1 size=");
        line.push_number(item.record_bytes as u64);
    });
    if found.is_none() {
        line.push(b"EN");
    }
    line.push(b"\r\n");
    out.extend_from_slice(line.bytes());
}
