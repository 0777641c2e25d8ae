//! The text protocol: one line per command, then for storage commands a data block.
//!
//! Read first: memcached's `protocol.txt` up to "Meta Commands" and from "Deletion" on.
//!
//! ```text
//! get|gets <key>*\r\n                                          keys taken one by one: [`next_key`]
//! gat|gats <exptime> <key>*\r\n                                the same
//! set|add|replace|append|prepend <key> <flags> <exptime> <bytes> [noreply]\r\n<data>\r\n
//! cas <key> <flags> <exptime> <bytes> <cas unique> [noreply]\r\n<data>\r\n
//! ```
//!
//! Invariants
//! - A retrieval line may be of any length and needs no memory: its head and each of its keys are
//!   parsed as they arrive. Every other line ends within [`LINE_BYTES_MAX`] bytes or is refused.
//! - A line ends with a line feed; one carriage return before it belongs to it. Only spaces
//!   separate words, so a key may hold any other byte.

pub use super::store_verb::StoreVerb;
use super::{
    CommandFault, is_http, meta, parse_flags, parse_i64, parse_u64, parse_value_len, words,
};
use crate::kv::limits::{KEY_BYTES_MAX, LINE_BYTES_MAX};

/// What stands at the front of the stream.
#[derive(Debug, PartialEq)]
pub enum ParsedLine<'a> {
    /// Nothing can be said yet; nothing was consumed.
    NeedMore,
    /// A line that is too long. There is no way to find the next command.
    LineTooLong,
    /// The first line of an HTTP request. What follows is not meant for this server.
    Http,
    /// The head of a retrieval line; its keys follow, see [`next_key`].
    Retrieve {
        /// Which retrieval.
        retrieval: Retrieval,
        /// Bytes of the head.
        consumed: usize,
    },
    /// A whole line, without its data block if it has one.
    Request {
        /// What is asked for.
        request: TextRequest<'a>,
        /// Bytes of the line with its end.
        consumed: usize,
    },
    /// A line that cannot be carried out.
    Fault {
        /// Why.
        fault: CommandFault,
        /// The client requested no reply.
        noreply: bool,
        /// Bytes to pass over.
        consumed: usize,
        /// Whether these include the end of the line.
        line_ended: bool,
    },
}

/// The commands that fetch a list of keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retrieval {
    /// Whether responses carry the cas unique (`gets`, `gats`).
    pub with_cas: bool,
    /// New expiry time as sent (`gat`, `gats`).
    pub touch: Option<i64>,
}

/// A command line that is complete.
#[derive(Debug, PartialEq)]
pub enum TextRequest<'a> {
    /// A storage command; a data block follows.
    Store(StoreLine<'a>),
    /// `incr` and `decr`.
    Arithmetic {
        /// Whose value.
        key: &'a [u8],
        /// By how much.
        delta: u64,
        /// `decr`.
        down: bool,
        /// Whether no response is wanted.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// Which item.
        key: &'a [u8],
        /// Whether no response is wanted.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// Which item.
        key: &'a [u8],
        /// New expiry time as sent.
        exptime: i64,
        /// Whether no response is wanted.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// Seconds from now or a Unix time, as for items.
        delay: i64,
        /// Whether no response is wanted.
        noreply: bool,
    },
    /// `stats` and what follows it.
    Stats(&'a [u8]),
    /// `version`.
    Version,
    /// `verbosity`, which changes nothing here.
    Verbosity {
        /// Whether no response is wanted.
        noreply: bool,
    },
    /// `quit`.
    Quit,
    /// One of the meta commands.
    Meta(meta::MetaCommand<'a>),
}

/// The line of a storage command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoreLine<'a> {
    /// Which condition, which place.
    pub verb: StoreVerb,
    /// Of the item.
    pub key: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// Expiry time as sent.
    pub exptime: i64,
    /// Bytes of the data block without its CR LF.
    pub value_len: usize,
    /// The cas unique that the item must have (`cas`).
    pub cas: Option<u64>,
    /// Whether no response is wanted.
    pub noreply: bool,
}

/// What follows in a retrieval line.
#[derive(Debug, PartialEq)]
pub enum NextKey<'a> {
    /// The word has not ended yet. `consumed` bytes, all spaces, may be dropped.
    NeedMore {
        /// Bytes to drop.
        consumed: usize,
    },
    /// One key.
    Key {
        /// 1 to [`KEY_BYTES_MAX`] bytes.
        key: &'a [u8],
        /// Bytes up to the key's end.
        consumed: usize,
    },
    /// The line is over.
    End {
        /// Bytes up to and with its line feed.
        consumed: usize,
    },
    /// A key longer than [`KEY_BYTES_MAX`]; the rest of the line is to be passed over.
    TooLong {
        /// Bytes of it seen, none of them a line feed.
        consumed: usize,
    },
}

/// The command at the front of `buffer`.
#[must_use]
pub fn parse(buffer: &[u8]) -> ParsedLine<'_> {
    if buffer.starts_with(b"get ") {
        let retrieval = Retrieval { with_cas: false, touch: None };
        return ParsedLine::Retrieve { retrieval, consumed: 4 };
    }
    let indent = buffer.iter().take(LINE_BYTES_MAX).take_while(|&&byte| byte == b' ').count();
    let trimmed = &buffer[indent..];
    for (name, with_cas) in [(&b"get "[..], false), (&b"gets "[..], true)] {
        if trimmed.starts_with(name) {
            let retrieval = Retrieval { with_cas, touch: None };
            return ParsedLine::Retrieve { retrieval, consumed: indent + name.len() };
        }
    }
    for (name, with_cas) in [(&b"gat "[..], false), (&b"gats "[..], true)] {
        if trimmed.starts_with(name) {
            return parse_get_and_touch(buffer, indent + name.len(), with_cas);
        }
    }
    let searched = &buffer[..buffer.len().min(LINE_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', searched) else {
        let full = searched.len() == LINE_BYTES_MAX;
        return if full { ParsedLine::LineTooLong } else { ParsedLine::NeedMore };
    };
    let line = buffer[..end].strip_suffix(b"\r").unwrap_or(&buffer[..end]);
    let consumed = end + 1;
    let name = words(line).next().unwrap_or_default();
    match parse_line(line) {
        Ok(request) => ParsedLine::Request { request, consumed },
        Err(_) if !is_command(name) && is_http(line) => ParsedLine::Http,
        Err((fault, noreply)) => ParsedLine::Fault { fault, noreply, consumed, line_ended: true },
    }
}

/// The key at the front of `buffer`, which stands inside a retrieval line.
#[must_use]
pub fn next_key(buffer: &[u8]) -> NextKey<'_> {
    let start = buffer.iter().position(|&byte| byte != b' ').unwrap_or(buffer.len());
    let rest = &buffer[start..];
    let Some(len) = memchr::memchr2(b' ', b'\n', rest) else {
        // One byte more than a key may be the carriage return of the line's end.
        return if rest.len() > KEY_BYTES_MAX + 1 {
            NextKey::TooLong { consumed: buffer.len() }
        } else {
            NextKey::NeedMore { consumed: start }
        };
    };
    let mut key = &rest[..len];
    if rest[len] == b'\n' {
        key = key.strip_suffix(b"\r").unwrap_or(key);
        if key.is_empty() {
            return NextKey::End { consumed: start + len + 1 };
        }
    }
    let consumed = start + key.len();
    if key.len() > KEY_BYTES_MAX {
        return NextKey::TooLong { consumed };
    }
    NextKey::Key { key, consumed }
}

/// `gat` and `gats`: `at` is where the expiry time may begin.
fn parse_get_and_touch(buffer: &[u8], at: usize, with_cas: bool) -> ParsedLine<'_> {
    let start = at + buffer[at..].iter().take_while(|&&byte| byte == b' ').count();
    let Some(len) = memchr::memchr2(b' ', b'\n', &buffer[start..]) else {
        let full = buffer.len() >= LINE_BYTES_MAX;
        return if full { ParsedLine::LineTooLong } else { ParsedLine::NeedMore };
    };
    let mut word = &buffer[start..start + len];
    if buffer[start + len] == b'\n' {
        word = word.strip_suffix(b"\r").unwrap_or(word);
        if word.is_empty() {
            let consumed = start + len + 1;
            let fault = CommandFault::UnknownCommand;
            return ParsedLine::Fault { fault, noreply: false, consumed, line_ended: true };
        }
    }
    let consumed = start + word.len();
    match parse_i64(word) {
        Some(exptime) => {
            let retrieval = Retrieval { with_cas, touch: Some(exptime) };
            ParsedLine::Retrieve { retrieval, consumed }
        }
        None => {
            let fault = CommandFault::InvalidExptime;
            ParsedLine::Fault { fault, noreply: false, consumed, line_ended: false }
        }
    }
}

/// Why a line cannot be carried out, and whether the client asked not to be told.
type Refusal = (CommandFault, bool);

/// The commands by what their lines have in common.
enum TextVerb {
    Store {
        verb: StoreVerb,
        with_cas: bool,
    },
    Arithmetic {
        down: bool,
    },
    Delete,
    Touch,
    FlushAll,
    Verbosity,
    Version,
    Quit,
    Shutdown,
    Stats,
    Meta,
    /// A line that has keys is taken apart by [`next_key`].
    Retrieve,
}

fn verb_of(name: &[u8]) -> Option<TextVerb> {
    let store = |verb| TextVerb::Store { verb, with_cas: false };
    Some(match name {
        b"set" => store(StoreVerb::Set),
        b"add" => store(StoreVerb::Add),
        b"replace" => store(StoreVerb::Replace),
        b"append" => store(StoreVerb::Append),
        b"prepend" => store(StoreVerb::Prepend),
        b"cas" => TextVerb::Store { verb: StoreVerb::Set, with_cas: true },
        b"incr" => TextVerb::Arithmetic { down: false },
        b"decr" => TextVerb::Arithmetic { down: true },
        b"delete" => TextVerb::Delete,
        b"touch" => TextVerb::Touch,
        b"flush_all" => TextVerb::FlushAll,
        b"verbosity" => TextVerb::Verbosity,
        b"version" => TextVerb::Version,
        b"quit" => TextVerb::Quit,
        b"shutdown" => TextVerb::Shutdown,
        b"stats" => TextVerb::Stats,
        b"get" | b"gets" | b"gat" | b"gats" => TextVerb::Retrieve,
        [b'm', _] => TextVerb::Meta,
        _ => return None,
    })
}

/// Whether a word is the name of a command.
#[must_use]
pub fn is_command(name: &[u8]) -> bool {
    verb_of(name).is_some()
}

fn parse_line(line: &[u8]) -> Result<TextRequest<'_>, Refusal> {
    let unknown = (CommandFault::UnknownCommand, false);
    let mut rest = words(line);
    let name = rest.next().ok_or(unknown)?;
    let arguments = TextArguments::new(rest);
    match verb_of(name).ok_or(unknown)? {
        TextVerb::Store { verb, with_cas } => parse_store(verb, with_cas, &arguments),
        TextVerb::Arithmetic { down } => parse_arithmetic(down, &arguments),
        TextVerb::Delete => parse_delete(&arguments),
        TextVerb::Touch => parse_touch(&arguments),
        TextVerb::FlushAll => parse_flush(&arguments),
        TextVerb::Verbosity => parse_verbosity(&arguments),
        TextVerb::Version => Ok(TextRequest::Version),
        TextVerb::Quit => Ok(TextRequest::Quit),
        TextVerb::Shutdown => Err((CommandFault::ShutdownDisabled, false)),
        TextVerb::Stats => Ok(TextRequest::Stats(arguments_of(line, name))),
        TextVerb::Meta => meta::parse(name, arguments_of(line, name))
            .map(TextRequest::Meta)
            .map_err(|fault| (fault, false)),
        TextVerb::Retrieve => Err(unknown),
    }
}

/// What follows the command's name in its line.
fn arguments_of<'a>(line: &'a [u8], name: &[u8]) -> &'a [u8] {
    let indent = line.iter().take_while(|&&byte| byte == b' ').count();
    &line[indent + name.len()..]
}

/// Most arguments that a command with a line of its own takes.
const ARGUMENTS_MAX: usize = 6;

/// The words after the command's name, as many as any command takes.
struct TextArguments<'a> {
    words: [&'a [u8]; ARGUMENTS_MAX],
    /// One more than [`ARGUMENTS_MAX`] stands for "too many".
    count: usize,
}

impl<'a> TextArguments<'a> {
    fn new(rest: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut words: [&[u8]; ARGUMENTS_MAX] = [&[]; ARGUMENTS_MAX];
        let mut count = 0;
        for word in rest.take(ARGUMENTS_MAX + 1) {
            if let Some(place) = words.get_mut(count) {
                *place = word;
            }
            count += 1;
        }
        Self { words, count }
    }

    /// The arguments, if there are as many as the command takes.
    fn between(&self, least: usize, most: usize) -> Result<&[&'a [u8]], Refusal> {
        if (least..=most).contains(&self.count) {
            Ok(&self.words[..self.count])
        } else {
            Err((CommandFault::UnknownCommand, false))
        }
    }

    /// Whether the last word asks for no response.
    fn noreply(&self) -> bool {
        self.words[..self.count.min(ARGUMENTS_MAX)].last() == Some(&&b"noreply"[..])
    }
}

fn checked_key(key: &[u8], noreply: bool) -> Result<&[u8], Refusal> {
    if key.len() > KEY_BYTES_MAX { Err((CommandFault::BadLine, noreply)) } else { Ok(key) }
}

fn parse_store<'a>(
    verb: StoreVerb,
    with_cas: bool,
    arguments: &TextArguments<'a>,
) -> Result<TextRequest<'a>, Refusal> {
    let least = if with_cas { 5 } else { 4 };
    let words = arguments.between(least, least + 1)?;
    let noreply = arguments.noreply();
    let refusal = (CommandFault::BadLine, noreply);
    let key = checked_key(words[0], noreply)?;
    let flags = parse_flags(words[1]).ok_or(refusal)?;
    let exptime = parse_i64(words[2]).ok_or(refusal)?;
    let value_len = parse_value_len(words[3]).ok_or(refusal)?;
    let cas = if with_cas { Some(parse_u64(words[4]).ok_or(refusal)?) } else { None };
    Ok(TextRequest::Store(StoreLine { verb, key, flags, exptime, value_len, cas, noreply }))
}

fn parse_arithmetic<'a>(
    down: bool,
    arguments: &TextArguments<'a>,
) -> Result<TextRequest<'a>, Refusal> {
    let words = arguments.between(2, 3)?;
    let noreply = arguments.noreply();
    let key = checked_key(words[0], noreply)?;
    let delta = parse_u64(words[1]).ok_or((CommandFault::InvalidDelta, noreply))?;
    Ok(TextRequest::Arithmetic { key, delta, down, noreply })
}

fn parse_delete<'a>(arguments: &TextArguments<'a>) -> Result<TextRequest<'a>, Refusal> {
    let words = arguments.between(1, 3)?;
    let noreply = arguments.noreply();
    // An old form had a time here; nought is still allowed.
    let known = match words {
        [_] => true,
        [_, last] => noreply || *last == b"0",
        [_, time, _] => noreply && *time == b"0",
        _ => false,
    };
    if !known {
        return Err((CommandFault::DeleteUsage, noreply));
    }
    Ok(TextRequest::Delete { key: checked_key(words[0], noreply)?, noreply })
}

fn parse_touch<'a>(arguments: &TextArguments<'a>) -> Result<TextRequest<'a>, Refusal> {
    let words = arguments.between(2, 3)?;
    let noreply = arguments.noreply();
    let key = checked_key(words[0], noreply)?;
    let exptime = parse_i64(words[1]).ok_or((CommandFault::InvalidExptime, noreply))?;
    Ok(TextRequest::Touch { key, exptime, noreply })
}

fn parse_flush<'a>(arguments: &TextArguments<'a>) -> Result<TextRequest<'a>, Refusal> {
    let words = arguments.between(0, 2)?;
    let noreply = arguments.noreply();
    let delay = match words {
        [] => 0,
        [_] if noreply => 0,
        [word, ..] => parse_i64(word).ok_or((CommandFault::InvalidExptime, noreply))?,
    };
    Ok(TextRequest::FlushAll { delay, noreply })
}

fn parse_verbosity<'a>(arguments: &TextArguments<'a>) -> Result<TextRequest<'a>, Refusal> {
    let words = arguments.between(1, 2)?;
    let noreply = arguments.noreply();
    let level = parse_u64(words[0]).filter(|&level| level <= u64::from(u32::MAX));
    level.ok_or((CommandFault::BadLine, noreply))?;
    Ok(TextRequest::Verbosity { noreply })
}

#[cfg(test)]
mod tests;
