//! RESP2, the protocol of Redis, as far as its strings go: framing, names, options.
//!
//! Read first: "Redis serialization protocol specification" and the pages of the commands, at
//! redis.io/docs. A command is an array of bulk strings (`*2 $3 GET $1 k`), or a line of words
//! ("inline").
//! Input: the bytes at the front of a connection's stream. Output: pieces that borrow them. Nothing
//! here allocates, and nothing here knows the store.
//!
//! Invariants
//! - A parser that needs more bytes returns that and has consumed nothing.
//! - No input makes a parser panic.

use crate::kv::limits::{RESP_ARGUMENTS_MAX, RESP_BULK_BYTES_MAX, RESP_HEADER_BYTES_MAX};

/// The first byte of a client that speaks RESP; no command of memcached's begins with it.
pub const ARRAY: u8 = b'*';

/// Bytes that are no RESP: the stream cannot be followed any further. In Redis's words.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// A count of arguments that is no number, or too large.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// A length that is no number, negative, or too large.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// Something else stands where a bulk string must begin.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NotABulk(u8),
    /// A bulk string does not end in CR LF.
    #[error("Protocol error: bulk string without its CR LF")]
    BulkEnding,
    /// A line of words without an end.
    #[error("Protocol error: too big inline request")]
    LineTooLong,
    /// A quote in a line of words that does not end, or not at the end of a word.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
}

/// A command that cannot be carried out, in Redis's words. The client's fault, but the last two,
/// which are the server's limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RespFault {
    /// Options that do not go together, or that there are not.
    #[error("ERR syntax error")]
    Syntax,
    /// A number that is none, here or in the value.
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    /// The sum would not fit 64 bits.
    #[error("ERR increment or decrement would overflow")]
    Overflow,
    /// There is no such number to take away, in 64 bits.
    #[error("ERR decrement would overflow")]
    DecrementOverflow,
    /// A time to live that is not positive, or too large.
    #[error("ERR invalid expire time in '{0}' command")]
    InvalidExpire(&'static str),
    /// The wrong count of arguments.
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    /// A subcommand that there is not.
    #[error("ERR unknown subcommand. Try {0} HELP.")]
    Subcommand(&'static str),
    /// Another database than the one there is.
    #[error("ERR DB index is out of range")]
    DbIndex,
    /// A password, which this server does not have.
    #[error(
        "ERR AUTH <password> called without any password configured for the default user. Are you \
         sure your configuration is correct?"
    )]
    NoPassword,
    /// A version that is no number.
    #[error("ERR Protocol version is not an integer or out of range")]
    NotAVersion,
    /// RESP3.
    #[error("NOPROTO unsupported protocol version")]
    NoProtocol,
    /// More bytes than an argument of this kind may have.
    #[error("ERR an argument is too long")]
    ArgumentTooLong,
    /// A key that the store does not take.
    #[error("ERR key is longer than 250 bytes")]
    KeyTooLong,
    /// The item would be larger than the largest item.
    #[error("ERR string exceeds maximum allowed size (1 MiB with its key)")]
    TooLarge,
    /// Values in arrival hold all memory that may be used for them.
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    OutOfMemory,
}

/// What stands at the front of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RespPiece<T> {
    /// More bytes are needed.
    NeedMore,
    /// No RESP.
    Malformed(Malformed),
    /// The value, and the number of its bytes.
    Whole(T, usize),
}

/// How many arguments follow: `*<count> CR LF`. A negative count is none, as for Redis.
#[must_use]
pub fn array(buffer: &[u8]) -> RespPiece<u32> {
    match header(buffer, Malformed::ArrayLength) {
        RespPiece::Whole(count, consumed) => match u32::try_from(count.max(0)) {
            Ok(count) if count <= RESP_ARGUMENTS_MAX => RespPiece::Whole(count, consumed),
            _ => RespPiece::Malformed(Malformed::ArrayLength),
        },
        RespPiece::NeedMore => RespPiece::NeedMore,
        RespPiece::Malformed(why) => RespPiece::Malformed(why),
    }
}

/// How many bytes follow: `$<length> CR LF`, behind which stand as many bytes and CR LF.
#[must_use]
pub fn bulk_header(buffer: &[u8]) -> RespPiece<usize> {
    match buffer.first() {
        Some(&first) if first != b'$' => return RespPiece::Malformed(Malformed::NotABulk(first)),
        _ => {}
    }
    match header(buffer, Malformed::BulkLength) {
        RespPiece::Whole(len, consumed) => match usize::try_from(len) {
            Ok(len) if len <= RESP_BULK_BYTES_MAX => RespPiece::Whole(len, consumed),
            _ => RespPiece::Malformed(Malformed::BulkLength),
        },
        RespPiece::NeedMore => RespPiece::NeedMore,
        RespPiece::Malformed(why) => RespPiece::Malformed(why),
    }
}

/// A bulk string.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bulk<'a> {
    /// More bytes are needed; of how many it consists, with everything, if that is known.
    NeedMore(Option<usize>),
    /// No RESP.
    Malformed(Malformed),
    /// Its bytes, and how many were consumed.
    Whole(&'a [u8], usize),
}

/// The bulk string at the front.
#[must_use]
pub fn bulk(buffer: &[u8]) -> Bulk<'_> {
    let (len, at) = match bulk_header(buffer) {
        RespPiece::Whole(len, at) => (len, at),
        RespPiece::NeedMore => return Bulk::NeedMore(None),
        RespPiece::Malformed(why) => return Bulk::Malformed(why),
    };
    match buffer.get(at..at + len + 2) {
        Some(block) if block[len..] == *b"\r\n" => Bulk::Whole(&block[..len], at + len + 2),
        Some(_) => Bulk::Malformed(Malformed::BulkEnding),
        None => Bulk::NeedMore(Some(at + len + 2)),
    }
}

/// The number behind the first byte, up to CR LF.
fn header(buffer: &[u8], malformed: Malformed) -> RespPiece<i64> {
    let window = &buffer[..buffer.len().min(RESP_HEADER_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        let is_too_long = window.len() == RESP_HEADER_BYTES_MAX;
        return if is_too_long { RespPiece::Malformed(malformed) } else { RespPiece::NeedMore };
    };
    let line = window.get(1..end).and_then(|line| line.strip_suffix(b"\r"));
    match line.and_then(integer) {
        Some(number) => RespPiece::Whole(number, end + 1),
        None => RespPiece::Malformed(malformed),
    }
}

/// Splits a line into words, with quotes as in redis-cli.
#[must_use]
pub fn line(buffer: &[u8], len_max: usize) -> RespPiece<&[u8]> {
    match memchr::memchr(b'\n', &buffer[..buffer.len().min(len_max)]) {
        Some(end) => RespPiece::Whole(buffer[..end].trim_ascii_end(), end + 1),
        None if buffer.len() >= len_max => RespPiece::Malformed(Malformed::LineTooLong),
        None => RespPiece::NeedMore,
    }
}

/// A signed number as Redis takes it: no sign but a minus, no zeros in front, nothing around it.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if is_plain { super::parse_i64(text) } else { None }
}

/// What a command does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RespVerb {
    /// A value.
    Get,
    /// A new value; options may follow it.
    Set,
    /// A new value where there is none.
    SetNx,
    /// A new value with a time to live, in seconds or milliseconds.
    SetEx(Unit),
    /// A new value for the old one.
    GetSet,
    /// A value that is deleted.
    GetDel,
    /// A value, and a new time to live.
    GetEx,
    /// More at the end of a value.
    Append,
    /// A value's length.
    StrLen,
    /// A part of a value.
    GetRange,
    /// A number that changes by one, up or down.
    Step {
        /// By -1.
        down: bool,
    },
    /// A number that changes by another.
    StepBy {
        /// Is taken away.
        down: bool,
    },
    /// A new time to live, or end of life.
    Expire(Unit, Epoch),
    /// The time to live, or the end of life.
    TimeLeft(Unit, Epoch),
    /// Lives for ever.
    Persist,
    /// What kind of value.
    Type,
    /// Values of many keys.
    MGet,
    /// Values for many keys.
    MSet,
    /// Many keys go.
    Del,
    /// How many keys there are of these.
    Exists,
    /// The same, and they were used.
    Touch,
    /// Everything goes.
    Flush,
    /// How many items there are.
    DbSize,
    /// PING: checks the connection.
    Ping,
    /// Says it again.
    Echo,
    /// Another database.
    Select,
    /// Greeting.
    Hello,
    /// Password.
    Auth,
    /// What a connection is called.
    Client,
    /// What commands there are.
    Command,
    /// What the server is set to.
    Config,
    /// What the server counts.
    Info,
    /// What time it is.
    Time,
    /// Goodbye.
    Quit,
}

/// Of a time in an argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds; the store keeps whole seconds, so they are rounded up.
    Milliseconds,
}

/// Where an argument's time begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Epoch {
    /// Now.
    Now,
    /// In 1970.
    Unix,
}

impl RespVerb {
    /// Which argument is a value that may arrive in pieces; the name is argument 0.
    #[must_use]
    pub const fn value_index(self) -> Option<usize> {
        match self {
            Self::Set | Self::SetNx | Self::GetSet | Self::Append => Some(2),
            Self::SetEx(_) => Some(3),
            _ => None,
        }
    }

    /// It takes as many keys as one likes.
    #[must_use]
    pub const fn is_of_many(self) -> bool {
        matches!(self, Self::MGet | Self::MSet | Self::Del | Self::Exists | Self::Touch)
    }
}

/// A command by its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RespCommand {
    /// In lower case.
    pub name: &'static str,
    /// Arguments, the name among them.
    pub count_min: u32,
    /// Likewise.
    pub count_max: u32,
    /// What it does.
    pub verb: RespVerb,
}

impl RespCommand {
    /// Returns whether it accepts this number of arguments, its name included. MSET takes pairs.
    #[must_use]
    pub fn takes(&self, count: u32) -> bool {
        let is_odd = count % 2 == 1;
        (self.count_min..=self.count_max).contains(&count)
            && (self.verb != RespVerb::MSet || is_odd)
    }
}

const fn command(name: &'static str, counts: (u32, u32), verb: RespVerb) -> RespCommand {
    RespCommand { name, count_min: counts.0, count_max: counts.1, verb }
}

const ANY: u32 = u32::MAX;

/// All commands; those that come often first.
pub const COMMANDS: &[RespCommand] = &[
    command("get", (2, 2), RespVerb::Get),
    command("set", (3, ANY), RespVerb::Set),
    command("incr", (2, 2), RespVerb::Step { down: false }),
    command("mget", (2, ANY), RespVerb::MGet),
    command("mset", (3, ANY), RespVerb::MSet),
    command("del", (2, ANY), RespVerb::Del),
    command("exists", (2, ANY), RespVerb::Exists),
    command("expire", (3, 3), RespVerb::Expire(Unit::Seconds, Epoch::Now)),
    command("ping", (1, 2), RespVerb::Ping),
    command("setnx", (3, 3), RespVerb::SetNx),
    command("setex", (4, 4), RespVerb::SetEx(Unit::Seconds)),
    command("psetex", (4, 4), RespVerb::SetEx(Unit::Milliseconds)),
    command("getset", (3, 3), RespVerb::GetSet),
    command("getdel", (2, 2), RespVerb::GetDel),
    command("getex", (2, 4), RespVerb::GetEx),
    command("append", (3, 3), RespVerb::Append),
    command("strlen", (2, 2), RespVerb::StrLen),
    command("getrange", (4, 4), RespVerb::GetRange),
    command("substr", (4, 4), RespVerb::GetRange),
    command("decr", (2, 2), RespVerb::Step { down: true }),
    command("incrby", (3, 3), RespVerb::StepBy { down: false }),
    command("decrby", (3, 3), RespVerb::StepBy { down: true }),
    command("pexpire", (3, 3), RespVerb::Expire(Unit::Milliseconds, Epoch::Now)),
    command("expireat", (3, 3), RespVerb::Expire(Unit::Seconds, Epoch::Unix)),
    command("pexpireat", (3, 3), RespVerb::Expire(Unit::Milliseconds, Epoch::Unix)),
    command("ttl", (2, 2), RespVerb::TimeLeft(Unit::Seconds, Epoch::Now)),
    command("pttl", (2, 2), RespVerb::TimeLeft(Unit::Milliseconds, Epoch::Now)),
    command("expiretime", (2, 2), RespVerb::TimeLeft(Unit::Seconds, Epoch::Unix)),
    command("pexpiretime", (2, 2), RespVerb::TimeLeft(Unit::Milliseconds, Epoch::Unix)),
    command("persist", (2, 2), RespVerb::Persist),
    command("type", (2, 2), RespVerb::Type),
    command("unlink", (2, ANY), RespVerb::Del),
    command("touch", (2, ANY), RespVerb::Touch),
    command("flushall", (1, 2), RespVerb::Flush),
    command("flushdb", (1, 2), RespVerb::Flush),
    command("dbsize", (1, 1), RespVerb::DbSize),
    command("echo", (2, 2), RespVerb::Echo),
    command("select", (2, 2), RespVerb::Select),
    command("hello", (1, ANY), RespVerb::Hello),
    command("auth", (2, 3), RespVerb::Auth),
    command("client", (2, ANY), RespVerb::Client),
    command("command", (1, ANY), RespVerb::Command),
    command("config", (2, ANY), RespVerb::Config),
    command("info", (1, ANY), RespVerb::Info),
    command("time", (1, 1), RespVerb::Time),
    command("quit", (1, ANY), RespVerb::Quit),
];

/// The command of a name in whatever case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static RespCommand> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Redis's commands for types that this server does not have, by type.
const OTHER_TYPES: [(&str, &str); 5] = [
    (
        "lists",
        "BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH LINDEX LINSERT LLEN LMOVE LMPOP LPOP LPOS \
         LPUSH LPUSHX LRANGE LREM LSET LTRIM RPOP RPOPLPUSH RPUSH RPUSHX",
    ),
    (
        "sets",
        "SADD SCARD SDIFF SDIFFSTORE SINTER SINTERCARD SINTERSTORE SISMEMBER SMEMBERS \
         SMISMEMBER SMOVE SPOP SRANDMEMBER SREM SSCAN SUNION SUNIONSTORE",
    ),
    (
        "hashes",
        "HDEL HEXISTS HGET HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HRANDFIELD \
         HSCAN HSET HSETNX HSTRLEN HVALS",
    ),
    (
        "sorted sets",
        "BZMPOP BZPOPMAX BZPOPMIN ZADD ZCARD ZCOUNT ZDIFF ZDIFFSTORE ZINCRBY ZINTER \
         ZINTERCARD ZINTERSTORE ZLEXCOUNT ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE \
         ZRANGEBYLEX ZRANGEBYSCORE ZRANGESTORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK \
         ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE \
         ZUNION ZUNIONSTORE",
    ),
    (
        "streams",
        "XACK XADD XAUTOCLAIM XCLAIM XDEL XGROUP XINFO XLEN XPENDING XRANGE XREAD \
         XREADGROUP XREVRANGE XSETID XTRIM",
    ),
];

/// Returns the type that Redis's command of this name, in any case, works on, if it is one that
/// the server does not have.
pub(crate) fn other_type(name: &[u8]) -> Option<&'static str> {
    let is_it = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
    let found = OTHER_TYPES.iter().find(|(_, names)| names.split(' ').any(is_it));
    found.map(|(kind, _)| *kind)
}

/// Whether there must be a value before, for a new one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Condition {
    /// Either way.
    #[default]
    Any,
    /// NX: there must not.
    Absent,
    /// XX: there must.
    Present,
}

/// How long a value is to live.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ValueLifetime {
    /// For ever.
    #[default]
    Endless,
    /// As long as the one before it.
    Kept,
    /// Until this Unix second.
    Until(u32),
}

/// What follows the value of `SET`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SetOptions {
    /// NX or XX.
    pub condition: Condition,
    /// EX, PX, EXAT, PXAT or KEEPTTL.
    pub life: ValueLifetime,
    /// GET: the answer is the value before.
    pub get: bool,
}

/// The options of `SET`, at the Unix second `now`.
///
/// # Errors
/// [`RespFault::Syntax`], [`RespFault::NotAnInteger`], [`RespFault::InvalidExpire`].
pub fn set_options(mut arguments: &[&[u8]], now: u32) -> Result<SetOptions, RespFault> {
    let mut options = SetOptions::default();
    while let [word, rest @ ..] = arguments {
        arguments = rest;
        if word.eq_ignore_ascii_case(b"nx") && options.condition == Condition::Any {
            options.condition = Condition::Absent;
        } else if word.eq_ignore_ascii_case(b"xx") && options.condition == Condition::Any {
            options.condition = Condition::Present;
        } else if word.eq_ignore_ascii_case(b"get") {
            options.get = true;
        } else if options.life != ValueLifetime::Endless {
            return Err(RespFault::Syntax);
        } else if word.eq_ignore_ascii_case(b"keepttl") {
            options.life = ValueLifetime::Kept;
        } else {
            let (unit, epoch) = time_option(word).ok_or(RespFault::Syntax)?;
            let [time, rest @ ..] = arguments else { return Err(RespFault::Syntax) };
            arguments = rest;
            options.life = ValueLifetime::Until(end_of_life(time, (unit, epoch), now, "set")?);
        }
    }
    Ok(options)
}

/// What `GETEX` does to the end of life: `None` leaves it alone, `Some(0)` takes it away.
///
/// # Errors
/// As [`set_options`].
pub fn getex_options(arguments: &[&[u8]], now: u32) -> Result<Option<u32>, RespFault> {
    match arguments {
        [] => Ok(None),
        [word] if word.eq_ignore_ascii_case(b"persist") => Ok(Some(0)),
        [word, time] => {
            let times = time_option(word).ok_or(RespFault::Syntax)?;
            end_of_life(time, times, now, "getex").map(Some)
        }
        _ => Err(RespFault::Syntax),
    }
}

fn time_option(word: &[u8]) -> Option<(Unit, Epoch)> {
    let options: [(&[u8], Unit, Epoch); 4] = [
        (b"ex", Unit::Seconds, Epoch::Now),
        (b"px", Unit::Milliseconds, Epoch::Now),
        (b"exat", Unit::Seconds, Epoch::Unix),
        (b"pxat", Unit::Milliseconds, Epoch::Unix),
    ];
    let found = options.iter().find(|(name, ..)| word.eq_ignore_ascii_case(name));
    found.map(|&(_, unit, epoch)| (unit, epoch))
}

/// The Unix second at which a value's life ends that is given a positive time.
///
/// # Errors
/// [`RespFault::NotAnInteger`], [`RespFault::InvalidExpire`].
pub fn end_of_life(
    time: &[u8],
    times: (Unit, Epoch),
    now: u32,
    command: &'static str,
) -> Result<u32, RespFault> {
    let time = integer(time).ok_or(RespFault::NotAnInteger)?;
    if time <= 0 {
        return Err(RespFault::InvalidExpire(command));
    }
    unix_second(time, times, now).ok_or(RespFault::InvalidExpire(command))
}

/// The Unix second that a time stands for, rounded up; 1 for one that has long passed. `None`: that
/// is later than the store can say.
#[must_use]
pub fn unix_second(time: i64, (unit, epoch): (Unit, Epoch), now: u32) -> Option<u32> {
    let seconds = match unit {
        Unit::Seconds => time,
        Unit::Milliseconds => time.div_euclid(1_000) + i64::from(time.rem_euclid(1_000) > 0),
    };
    let second = match epoch {
        Epoch::Now => i64::from(now).checked_add(seconds)?,
        Epoch::Unix => seconds,
    };
    u32::try_from(second.max(1)).ok()
}

/// Which bytes of a value of `len` bytes `GETRANGE` means: both ends are in it, and negative ones
/// count from the end.
#[must_use]
pub fn range(len: usize, start: i64, end: i64) -> std::ops::Range<usize> {
    let len = len as i64;
    let is_backward = start < 0 && end < 0 && start > end;
    let from_front = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_front(start), from_front(end).min(len - 1));
    if is_backward || start > end || end < 0 { 0..0 } else { start as usize..end as usize + 1 }
}

/// More arguments than any command here has, but those of many keys.
pub const ARGUMENTS_KEPT_MAX: usize = 16;

/// Arguments of one command, on the stack.
#[derive(Clone, Copy, Debug)]
pub struct RespArguments<'a> {
    all: [&'a [u8]; ARGUMENTS_KEPT_MAX],
    count: usize,
}

impl<'a> RespArguments<'a> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { all: [b""; ARGUMENTS_KEPT_MAX], count: 0 }
    }

    /// One more; beyond [`ARGUMENTS_KEPT_MAX`] it is left out.
    pub const fn push(&mut self, argument: &'a [u8]) {
        if self.count < ARGUMENTS_KEPT_MAX {
            self.all[self.count] = argument;
            self.count += 1;
        }
    }

    /// Whether one more is left out.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count == ARGUMENTS_KEPT_MAX
    }

    /// Only the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[&'a [u8]] {
        &self.all[..self.count]
    }
}

impl Default for RespArguments<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// The words of a line as Redis splits it: between blanks, or in quotes, which may hold blanks and
/// escapes. They are written to `room`, which is at least as long as the line. `None`: too many.
///
/// # Errors
/// [`Malformed::UnbalancedQuotes`].
pub fn split_line<'a>(
    mut line: &[u8],
    mut room: &'a mut [u8],
) -> Result<Option<RespArguments<'a>>, Malformed> {
    let mut arguments = RespArguments::new();
    loop {
        line = line.trim_ascii_start();
        if line.is_empty() {
            return Ok(Some(arguments));
        }
        if arguments.is_full() {
            return Ok(None);
        }
        let (consumed, len) = unquote(line, room)?;
        let (word, rest) = std::mem::take(&mut room).split_at_mut(len);
        arguments.push(word);
        (line, room) = (&line[consumed..], rest);
    }
}

/// Writes the word at the front of a line to `room`. Returns how many bytes it takes in the line,
/// and how many it stands for.
fn unquote(line: &[u8], room: &mut [u8]) -> Result<(usize, usize), Malformed> {
    let (mut at, mut len) = (0, 0);
    let mut quote = None;
    loop {
        let rest = &line[at..];
        let (byte, count) = match (quote, rest) {
            (None, []) => return Ok((at, len)),
            (None, [blank, ..]) if blank.is_ascii_whitespace() => return Ok((at, len)),
            (None, [mark @ (b'"' | b'\''), ..]) => {
                quote = Some(*mark);
                at += 1;
                continue;
            }
            (Some(_), []) => return Err(Malformed::UnbalancedQuotes),
            (Some(mark), [byte, behind @ ..]) if *byte == mark => {
                if behind.first().is_some_and(|next| !next.is_ascii_whitespace()) {
                    return Err(Malformed::UnbalancedQuotes);
                }
                quote = None;
                at += 1;
                continue;
            }
            (Some(b'"'), [b'\\', ..]) => escape(rest),
            (Some(b'\''), [b'\\', b'\'', ..]) => (b'\'', 2),
            (_, [byte, ..]) => (*byte, 1),
        };
        room[len] = byte;
        len += 1;
        at += count;
    }
}

/// The byte that a backslash and what follows it stand for, and how many bytes they are.
fn escape(rest: &[u8]) -> (u8, usize) {
    let digit = |at: usize| rest.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    match rest.get(1) {
        Some(b'x') => match (digit(2), digit(3)) {
            (Some(high), Some(low)) => ((high << 4 | low) as u8, 4),
            _ => (b'x', 2),
        },
        Some(b'n') => (b'\n', 2),
        Some(b'r') => (b'\r', 2),
        Some(b't') => (b'\t', 2),
        Some(b'b') => (0x08, 2),
        Some(b'a') => (0x07, 2),
        Some(&byte) => (byte, 2),
        None => (b'\\', 1),
    }
}

#[cfg(test)]
mod tests;
