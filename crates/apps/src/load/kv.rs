//! The client of a memcached server: nine gets to a set, 64 B keys, 1 KiB values [MegaPipe 5.2].
//!
//! Speaks memcached's text protocol (`doc/protocol.txt` of memcached): `get KEY` is answered by
//! `VALUE KEY FLAGS BYTES`, the value and `END`, or by `END` alone where there is no such key;
//! `set KEY FLAGS EXPTIME BYTES` and the value by `STORED`.
//!
//! A key's number follows from its text and its value from its number, so every value that comes
//! back can be checked without remembering what was stored.
//!
//! Invariants
//! - While the key space is being filled, each key of this thread's share is set once, and nothing
//!   is asked for.

use crate::limits::load::HEADER_LEN_MAX;
use crate::rpc::protocol::{PATTERN, PATTERN_LEN};

use super::client_protocol::{ClientProtocol, RequestBuilder, ResponseProgress};
use super::distribution::Distribution;
use super::rng::Rng;

/// The shortest key: a letter and the digits of the largest number.
pub(crate) const KEY_LEN_MIN: usize = 12;
/// The longest key that memcached takes.
pub(crate) const KEY_LEN_MAX: usize = 250;
/// The largest value of a request: memcached's usual limit on an item.
pub(crate) const VALUE_LEN_MAX: u64 = 1 << 20;
/// Values up to this many bytes are copied into one piece of memory with their command.
const COPY_LEN_MAX: usize = 2_048;

/// The requests of a thread.
#[derive(Clone, Debug)]
pub(crate) struct KvPlan {
    /// Keys in the whole space.
    pub(crate) keys: u64,
    pub(crate) key_len: usize,
    pub(crate) value_bytes: Distribution,
    /// The share of gets, 0 to 1.
    pub(crate) gets: f64,
    /// The keys that this thread sets beforehand; none if the cache is to be used as it is.
    pub(crate) fill: std::ops::Range<u64>,
    pub(crate) verify_every: u32,
}

/// The client's half of the text protocol.
#[derive(Debug)]
pub(crate) struct KvClient {
    plan: KvPlan,
    rng: Rng,
    /// Keys whose first set has no response yet, sent or not.
    unfilled: u64,
    /// Keys of a set that was lost with its connection.
    lost: Vec<u64>,
    requests: u32,
    hits: u64,
    misses: u64,
    sets: u64,
}

/// One command under way.
#[derive(Debug, Default)]
pub(crate) struct KvExchange {
    expect: Expect,
    key: u64,
    filling: bool,
    verified: bool,
    /// The response's current line, as far as it has come.
    line: Vec<u8>,
    value_len: u64,
}

/// What comes next in the response.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Expect {
    /// `STORED`.
    #[default]
    Stored,
    /// `VALUE …` or `END`.
    Value,
    /// The value's bytes from this offset on, and CR LF.
    Data(u64),
    /// `END`.
    End,
}

impl KvClient {
    pub(crate) fn new(plan: KvPlan, rng: Rng) -> Self {
        let unfilled = plan.fill.end.saturating_sub(plan.fill.start);
        let counts = (0, 0, 0);
        let (hits, misses, sets) = counts;
        Self { plan, rng, unfilled, lost: Vec::new(), requests: 0, hits, misses, sets }
    }

    /// The next key to fill the space with.
    fn next_to_fill(&mut self) -> Option<u64> {
        self.lost.pop().or_else(|| self.plan.fill.next())
    }

    fn set(&mut self, key: u64, request: &mut RequestBuilder<'_>) {
        let len = self.plan.value_bytes.sample(&mut self.rng).min(VALUE_LEN_MAX) as usize;
        request.head.append(b"set ");
        append_key(key, self.plan.key_len, request);
        request.head.append(b" 0 0 ");
        append_number(len as u64, request);
        request.head.append(b"\r\n");
        let copied = len <= COPY_LEN_MAX;
        let mut offset = 0;
        while offset < len {
            let piece = value_at(key, offset, len);
            match copied {
                true => request.head.append(piece),
                false => request.tail.push(piece),
            }
            offset += piece.len();
        }
        match copied {
            true => request.head.append(b"\r\n"),
            false => request.tail.push(b"\r\n"),
        }
    }

    fn stored(&mut self, exchange: &KvExchange) -> ResponseProgress {
        if exchange.filling {
            self.unfilled = self.unfilled.saturating_sub(1);
        }
        self.sets += 1;
        ResponseProgress::Done { reusable: true }
    }

    /// Takes a whole line of the response.
    fn on_line(&mut self, exchange: &mut KvExchange) -> ResponseProgress {
        match (exchange.expect, exchange.line.as_slice()) {
            (Expect::Stored, b"STORED") => self.stored(exchange),
            (Expect::Value, b"END") => {
                self.misses += 1;
                ResponseProgress::Done { reusable: true }
            }
            (Expect::End, b"END") => {
                self.hits += 1;
                ResponseProgress::Done { reusable: true }
            }
            (Expect::Value, line) => {
                let Some((key, len)) = value_line(line, self.plan.key_len) else {
                    return ResponseProgress::Wrong;
                };
                let possible = self.plan.value_bytes.min()..=self.plan.value_bytes.max();
                if key != exchange.key || !possible.contains(&len) {
                    return ResponseProgress::Wrong;
                }
                exchange.value_len = len;
                exchange.expect = Expect::Data(0);
                ResponseProgress::More
            }
            _ => ResponseProgress::Wrong,
        }
    }
}

impl ClientProtocol for KvClient {
    type Exchange = KvExchange;

    fn request(&mut self, exchange: &mut KvExchange, request: &mut RequestBuilder<'_>) {
        self.requests = self.requests.wrapping_add(1);
        let fill = self.next_to_fill();
        let key = fill.unwrap_or_else(|| self.rng.below(self.plan.keys));
        let get = fill.is_none() && self.rng.unit() < self.plan.gets;
        exchange.line.clear();
        exchange.key = key;
        exchange.filling = fill.is_some();
        exchange.verified = self.requests.is_multiple_of(self.plan.verify_every.max(1));
        if get {
            exchange.expect = Expect::Value;
            request.head.append(b"get ");
            append_key(key, self.plan.key_len, request);
            request.head.append(b"\r\n");
        } else {
            exchange.expect = Expect::Stored;
            self.set(key, request);
        }
    }

    fn response(&mut self, exchange: &mut KvExchange, mut bytes: &[u8]) -> ResponseProgress {
        while !bytes.is_empty() {
            if let Expect::Data(offset) = exchange.expect {
                match data(exchange, offset, bytes) {
                    Some(rest) => bytes = rest,
                    None => return ResponseProgress::Wrong,
                }
                continue;
            }
            let Some(len) = bytes.iter().position(|&byte| byte == b'\n') else {
                exchange.line.extend_from_slice(bytes);
                return match exchange.line.len() {
                    0..=HEADER_LEN_MAX => ResponseProgress::More,
                    _ => ResponseProgress::Wrong,
                };
            };
            exchange.line.extend_from_slice(&bytes[..len]);
            bytes = &bytes[len + 1..];
            if exchange.line.pop() != Some(b'\r') {
                return ResponseProgress::Wrong;
            }
            match self.on_line(exchange) {
                ResponseProgress::More => exchange.line.clear(),
                ResponseProgress::Done { .. } if !bytes.is_empty() => {
                    return ResponseProgress::Wrong;
                }
                answer => return answer,
            }
        }
        ResponseProgress::More
    }

    fn abandoned(&mut self, exchange: &mut KvExchange) {
        if exchange.filling {
            self.lost.push(exchange.key);
        }
    }

    fn preparing(&self) -> bool {
        !self.lost.is_empty() || !self.plan.fill.is_empty()
    }

    fn prepared(&self) -> bool {
        self.unfilled == 0
    }

    fn details(&self) -> Vec<(&'static str, u64)> {
        vec![("hits", self.hits), ("misses", self.misses), ("sets", self.sets)]
    }
}

/// Takes bytes of the value and of the CR LF behind it. What is left, or None if they are wrong.
fn data<'a>(exchange: &mut KvExchange, offset: u64, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let len = exchange.value_len;
    if offset < len {
        let take = (len - offset).min(bytes.len() as u64) as usize;
        let (value, rest) = bytes.split_at(take);
        if exchange.verified && !is_value(exchange.key, offset as usize, value) {
            return None;
        }
        exchange.expect = Expect::Data(offset + take as u64);
        return Some(rest);
    }
    let (&byte, rest) = bytes.split_first()?;
    if byte != b"\r\n"[(offset - len) as usize] {
        return None;
    }
    exchange.expect = if byte == b'\n' { Expect::End } else { Expect::Data(offset + 1) };
    Some(rest)
}

/// Key and length out of `VALUE KEY FLAGS BYTES`.
fn value_line(line: &[u8], key_len: usize) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix(b"VALUE ")?.split(|&byte| byte == b' ');
    let key = key_number(words.next()?, key_len)?;
    let _flags = words.next()?;
    Some((key, number(words.next()?)?))
}

/// A key: `k` and its number, with zeros in front up to the length of keys.
fn append_key(key: u64, key_len: usize, request: &mut RequestBuilder<'_>) {
    let mut text = [b'0'; KEY_LEN_MAX];
    text[0] = b'k';
    let (mut rest, mut at) = (key, key_len.clamp(KEY_LEN_MIN, KEY_LEN_MAX));
    let end = at;
    while rest > 0 && at > 1 {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    request.head.append(&text[..end]);
}

fn append_number(value: u64, request: &mut RequestBuilder<'_>) {
    let mut digits = [0; 20];
    let (mut rest, mut at) = (value, digits.len());
    while at == digits.len() || rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    request.head.append(&digits[at..]);
}

fn key_number(text: &[u8], key_len: usize) -> Option<u64> {
    let digits = text.strip_prefix(b"k").filter(|_| text.len() == key_len)?;
    number(digits)
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &digit| {
        let value = digit.checked_sub(b'0').filter(|&value| value < 10)?;
        number.checked_mul(10)?.checked_add(value.into())
    })
}

/// A key's value is the pattern from a place of the key's own on.
fn value_at(key: u64, offset: usize, len: usize) -> &'static [u8] {
    let start = ((key.wrapping_mul(40_503) % PATTERN_LEN as u64) as usize + offset) % PATTERN_LEN;
    &PATTERN[start..start + (PATTERN_LEN - start).min(len - offset)]
}

fn is_value(key: u64, mut offset: usize, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let expected = value_at(key, offset, offset + bytes.len());
        let (piece, rest) = bytes.split_at(expected.len());
        if piece != expected {
            return false;
        }
        (offset, bytes) = (offset + piece.len(), rest);
    }
    true
}

#[cfg(test)]
mod tests;
