//! The three protocols of memcached 1.6, text, meta and binary, and RESP. Pure parsers over byte
//! slices.
//!
//! Read first: memcached's `protocol.txt`; for the binary protocol its wiki page
//! `BinaryProtocolRevamped`; for RESP the head of [`resp`].
//! Input: the bytes at the front of a connection's stream. Output: a command whose keys and
//! arguments borrow those bytes, or a [`CommandFault`]. Nothing here allocates, and nothing here
//! knows the store.
//!
//! Invariants
//! - A parser that needs more bytes returns that and has consumed nothing.
//! - No input makes a parser panic.

pub mod binary;
pub mod meta;
pub mod resp;
mod store_verb;
pub mod text;

/// An error response to a command. The client's fault, except the last three, which are limits of
/// the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandFault {
    /// No such command, or the wrong number of arguments for it.
    UnknownCommand,
    /// A key too long, or a number that is none.
    BadLine,
    /// The data block does not end in CR LF.
    BadDataChunk,
    /// `delete` with arguments it does not take.
    DeleteUsage,
    /// An expiry time that is no number.
    InvalidExptime,
    /// `incr` or `decr` by something that is no unsigned number.
    InvalidDelta,
    /// `incr` or `decr` of a value that is no unsigned number.
    NonNumeric,
    /// `stats cachedump`, which would hold a shard's lock for long.
    DumpDisabled,
    /// `shutdown`, which this server never obeys.
    ShutdownDisabled,
    /// A meta flag twice in one line.
    DuplicateFlag,
    /// A meta flag that does not exist.
    InvalidFlag,
    /// What `md` and `ma` answer to any bad flag.
    InvalidOrDuplicateFlag,
    /// A number in a meta flag that is none.
    BadToken,
    /// Flag `b` with a key that is not base64.
    BadBase64Key,
    /// Flag `M` without exactly one letter.
    ModeLength,
    /// Flag `M` with a letter that `ms` does not know.
    InvalidSetMode,
    /// Flag `M` with a letter that `ma` does not know.
    InvalidArithmeticMode,
    /// Flag `J` without a number.
    InvalidInitial,
    /// Flag `D` without a number.
    InvalidDeltaToken,
    /// Flag `O` with more than 31 bytes.
    OpaqueTooLong,
    /// More meta flags than a line may have.
    TooManyFlags,
    /// The same for `ms`, in other words.
    TooManySetFlags,
    /// The item would be larger than the largest item.
    TooLarge,
    /// Values in arrival hold all memory that may be used for them.
    OutOfMemory,
    /// The same, where the command would have changed a value.
    OutOfMemoryInIncr,
}

impl CommandFault {
    /// The error line for the client, without its CR LF.
    #[must_use]
    pub const fn line(self) -> &'static str {
        match self {
            Self::UnknownCommand => "ERROR",
            Self::BadLine => "CLIENT_ERROR bad command line format",
            Self::BadDataChunk => "CLIENT_ERROR bad data chunk",
            Self::DeleteUsage => {
                "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"
            }
            Self::InvalidExptime => "CLIENT_ERROR invalid exptime argument",
            Self::InvalidDelta => "CLIENT_ERROR invalid numeric delta argument",
            Self::NonNumeric => "CLIENT_ERROR cannot increment or decrement non-numeric value",
            Self::DumpDisabled => "CLIENT_ERROR stats cachedump not allowed",
            Self::ShutdownDisabled => "ERROR: shutdown not enabled",
            Self::DuplicateFlag => "CLIENT_ERROR duplicate flag",
            Self::InvalidFlag => "CLIENT_ERROR invalid flag",
            Self::InvalidOrDuplicateFlag => "CLIENT_ERROR invalid or duplicate flag",
            Self::BadToken => "CLIENT_ERROR bad token in command line format",
            Self::BadBase64Key => "CLIENT_ERROR error decoding key",
            Self::ModeLength => "CLIENT_ERROR incorrect length for M token",
            Self::InvalidSetMode => "CLIENT_ERROR invalid mode for ms M token",
            Self::InvalidArithmeticMode => "CLIENT_ERROR invalid mode for ma M token",
            Self::InvalidInitial => "CLIENT_ERROR invalid numeric initial value",
            Self::InvalidDeltaToken => "CLIENT_ERROR invalid numeric delta value",
            Self::OpaqueTooLong => "CLIENT_ERROR opaque token too long",
            Self::TooManyFlags => "CLIENT_ERROR options flags are too long",
            Self::TooManySetFlags => "CLIENT_ERROR options flags too long",
            Self::TooLarge => "SERVER_ERROR object too large for cache",
            Self::OutOfMemory => "SERVER_ERROR out of memory storing object",
            Self::OutOfMemoryInIncr => "SERVER_ERROR out of memory in incr",
        }
    }
}

impl std::fmt::Display for CommandFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.line())
    }
}

impl std::error::Error for CommandFault {}

/// The words of a line: what stands between spaces, and only spaces.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// Whether a line that is no command is the first line of an HTTP request. A web page can make a
/// browser send one, and its body would be taken for commands.
pub(crate) fn is_http(line: &[u8]) -> bool {
    words(line.trim_ascii_end()).last().is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// An unsigned decimal number with an optional `+`, as clients send it.
pub(crate) fn parse_u64(word: &[u8]) -> Option<u64> {
    let digits = word.strip_prefix(b"+").unwrap_or(word);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// A signed decimal number.
pub(crate) fn parse_i64(word: &[u8]) -> Option<i64> {
    match word.strip_prefix(b"-") {
        Some(digits) if !digits.starts_with(b"+") => 0i64.checked_sub_unsigned(parse_u64(digits)?),
        Some(_) => None,
        None => i64::try_from(parse_u64(word)?).ok(),
    }
}

/// Client flags: 32 bits of whatever number is sent, as memcached takes them.
pub(crate) fn parse_flags(word: &[u8]) -> Option<u32> {
    parse_u64(word).map(|number| (number & u64::from(u32::MAX)) as u32)
}

/// The length of a data block: what a 32-bit signed number with the CR LF added can hold.
fn parse_value_len(word: &[u8]) -> Option<usize> {
    let len = parse_u64(word)?;
    if len > (i32::MAX - 2) as u64 { None } else { usize::try_from(len).ok() }
}
