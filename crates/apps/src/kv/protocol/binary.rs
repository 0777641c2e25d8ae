//! The binary protocol: a header of 24 bytes, then extras, key and value.
//!
//! Read first: memcached's wiki page `BinaryProtocolRevamped`; `protocol_binary.h` for the numbers.
//!
//! ```text
//!  0 magic 80/81 | 1 opcode | 2-3 key length | 4 extras length | 5 data type | 6-7 vbucket/status
//!  8-11 length of extras + key + value | 12-15 opaque | 16-23 cas
//! ```
//! All numbers are big endian. The opaque comes back as it was sent.
//!
//! Invariants
//! - A frame is judged by its header alone: extras and key are waited for only if they can be
//!   valid, so a frame never needs more than [`FRAME_BYTES_MAX`] bytes besides its value.

use crate::kv::limits::KEY_BYTES_MAX;

/// First byte of every request.
pub const MAGIC_REQUEST: u8 = 0x80;
/// First byte of every response.
pub const MAGIC_RESPONSE: u8 = 0x81;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Most bytes of extras that any request has.
pub const EXTRAS_BYTES_MAX: usize = 20;
/// Most bytes that a frame needs before its value.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + EXTRAS_BYTES_MAX + KEY_BYTES_MAX;

/// How a request went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum BinaryStatus {
    /// As asked.
    Success = 0x00,
    /// No such item.
    KeyNotFound = 0x01,
    /// There is such an item, or its cas unique differs.
    KeyExists = 0x02,
    /// The value is too large.
    TooLarge = 0x03,
    /// The frame's parts do not fit the opcode.
    InvalidArguments = 0x04,
    /// There is nothing to append to.
    NotStored = 0x05,
    /// The value is no number.
    NonNumeric = 0x06,
    /// No such opcode.
    UnknownCommand = 0x81,
    /// Values in arrival hold all memory that may be used for them.
    OutOfMemory = 0x82,
}

impl BinaryStatus {
    /// The text that a response with this status carries as its value.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Success => "",
            Self::KeyNotFound => "Not found",
            Self::KeyExists => "Data exists for key.",
            Self::TooLarge => "Too large.",
            Self::InvalidArguments => "Invalid arguments",
            Self::NotStored => "Not stored.",
            Self::NonNumeric => "Non-numeric server-side value for incr or decr",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "Out of memory",
        }
    }
}

/// What a request asks for. Quiet and plain opcodes are one operation; see [`RequestFrame::quiet`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BinaryOperation {
    /// Get; with the key in the response (getk) or not.
    Get {
        /// The response carries the key.
        with_key: bool,
    },
    /// Get and touch.
    GetAndTouch {
        /// The response carries the key.
        with_key: bool,
    },
    /// Touch.
    Touch,
    /// Set, add or replace.
    Store(StoreKind),
    /// Append or prepend.
    Concatenate {
        /// Before the value.
        front: bool,
    },
    /// Delete.
    Delete,
    /// Increment or decrement.
    Arithmetic {
        /// Decrement.
        down: bool,
    },
    /// Close the connection.
    Quit,
    /// Drop all items.
    Flush,
    /// Answer.
    Noop,
    /// The server's version.
    Version,
    /// Counters and settings.
    Stat,
}

/// The three storage opcodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreKind {
    /// Whether or not there is an item.
    Set,
    /// Only if there is none.
    Add,
    /// Only if there is one.
    Replace,
}

/// A request up to its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestFrame<'a> {
    /// As sent; responses repeat it.
    pub opcode: u8,
    /// What it asks for.
    pub operation: BinaryOperation,
    /// Whether the nominal response is left out.
    pub quiet: bool,
    /// As sent; responses repeat it.
    pub opaque: u32,
    /// The cas unique that the item must have; 0 is any.
    pub cas: u64,
    /// As long as the operation asks for.
    pub extras: &'a [u8],
    /// Empty exactly where the operation allows it.
    pub key: &'a [u8],
    /// Bytes of the value that follows; 0 for operations without one.
    pub value_len: usize,
}

/// What stands at the front of the stream.
#[derive(Debug, PartialEq)]
pub enum ParsedFrame<'a> {
    /// Nothing can be said yet; nothing was consumed.
    NeedMore,
    /// Not a request: the stream cannot be followed any further.
    NotARequest,
    /// A request; its value, if any, follows.
    Frame {
        /// The request.
        frame: RequestFrame<'a>,
        /// Its bytes before the value.
        consumed: usize,
    },
    /// A request that cannot be carried out. Its body is `skip` bytes after the header.
    Fault {
        /// Why.
        status: BinaryStatus,
        /// As sent.
        opcode: u8,
        /// As sent.
        opaque: u32,
        /// Bytes of the body.
        skip: usize,
        /// Whether the client is too far off to go on.
        close: bool,
    },
}

/// The request at the front of `buffer`.
#[must_use]
pub fn parse(buffer: &[u8]) -> ParsedFrame<'_> {
    let Some((header, rest)) = buffer.split_first_chunk::<HEADER_BYTES>() else {
        return match buffer.first() {
            Some(&magic) if magic != MAGIC_REQUEST => ParsedFrame::NotARequest,
            _ => ParsedFrame::NeedMore,
        };
    };
    if header[0] != MAGIC_REQUEST {
        return ParsedFrame::NotARequest;
    }
    let opcode = header[1];
    let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let extras_len = usize::from(header[4]);
    let body_len = u32_at(header, 8) as usize;
    let opaque = u32_at(header, 12);
    let fault =
        |status, close| ParsedFrame::Fault { status, opcode, opaque, skip: body_len, close };
    let Some(value_len) = body_len.checked_sub(key_len + extras_len) else {
        return fault(BinaryStatus::UnknownCommand, true);
    };
    let Some((operation, quiet)) = operation(opcode) else {
        return fault(BinaryStatus::UnknownCommand, false);
    };
    let shape = shape(operation);
    let fits = shape.extras.contains(&extras_len)
        && shape.key.contains(&key_len)
        && (shape.value || value_len == 0);
    if !fits {
        return fault(BinaryStatus::InvalidArguments, true);
    }
    let Some(parts) = rest.get(..extras_len + key_len) else {
        return ParsedFrame::NeedMore;
    };
    let (extras, key) = parts.split_at(extras_len);
    let cas = u64::from(u32_at(header, 16)) << 32 | u64::from(u32_at(header, 20));
    let frame = RequestFrame { opcode, operation, quiet, opaque, cas, extras, key, value_len };
    ParsedFrame::Frame { frame, consumed: HEADER_BYTES + parts.len() }
}

impl RequestFrame<'_> {
    /// The 32-bit number at `at` in the extras, 0 if they are shorter.
    #[must_use]
    pub fn extra_u32(&self, at: usize) -> u32 {
        self.extras
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_be_bytes)
    }

    /// The 64-bit number at `at` in the extras, 0 if they are shorter.
    #[must_use]
    pub fn extra_u64(&self, at: usize) -> u64 {
        u64::from(self.extra_u32(at)) << 32 | u64::from(self.extra_u32(at + 4))
    }
}

/// The fields of a response's header.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseHeader {
    /// Of the request.
    pub opcode: u8,
    /// Of the request.
    pub opaque: u32,
    /// A [`BinaryStatus`] as a number.
    pub status: u16,
    /// The item's cas unique, or 0.
    pub cas: u64,
    /// Bytes of extras.
    pub extras_len: u8,
    /// Bytes of key.
    pub key_len: u16,
    /// Bytes of value.
    pub value_len: u32,
}

impl ResponseHeader {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let body_len = u32::from(self.extras_len) + u32::from(self.key_len) + self.value_len;
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC_RESPONSE;
        bytes[1] = self.opcode;
        bytes[2..4].copy_from_slice(&self.key_len.to_be_bytes());
        bytes[4] = self.extras_len;
        bytes[6..8].copy_from_slice(&self.status.to_be_bytes());
        bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.cas.to_be_bytes());
        bytes
    }
}

/// How long a request's parts may be.
struct FrameShape {
    extras: &'static [usize],
    key: std::ops::RangeInclusive<usize>,
    value: bool,
}

fn shape(operation: BinaryOperation) -> FrameShape {
    let (extras, key_required, value): (&[usize], Option<bool>, bool) = match operation {
        BinaryOperation::Get { .. } | BinaryOperation::Delete => (&[0], Some(true), false),
        BinaryOperation::GetAndTouch { .. } | BinaryOperation::Touch => (&[4], Some(true), false),
        BinaryOperation::Store(_) => (&[8], Some(true), true),
        BinaryOperation::Concatenate { .. } => (&[0], Some(true), true),
        BinaryOperation::Arithmetic { .. } => (&[20], Some(true), false),
        BinaryOperation::Quit | BinaryOperation::Noop | BinaryOperation::Version => {
            (&[0], None, false)
        }
        BinaryOperation::Flush => (&[0, 4], None, false),
        BinaryOperation::Stat => (&[0], Some(false), false),
    };
    let key = match key_required {
        Some(true) => 1..=KEY_BYTES_MAX,
        Some(false) => 0..=KEY_BYTES_MAX,
        None => 0..=0,
    };
    FrameShape { extras, key, value }
}

/// What an opcode asks for, and whether it is quiet.
const fn operation(opcode: u8) -> Option<(BinaryOperation, bool)> {
    Some(match opcode {
        0x00 => (BinaryOperation::Get { with_key: false }, false),
        0x09 => (BinaryOperation::Get { with_key: false }, true),
        0x0c => (BinaryOperation::Get { with_key: true }, false),
        0x0d => (BinaryOperation::Get { with_key: true }, true),
        0x01 => (BinaryOperation::Store(StoreKind::Set), false),
        0x11 => (BinaryOperation::Store(StoreKind::Set), true),
        0x02 => (BinaryOperation::Store(StoreKind::Add), false),
        0x12 => (BinaryOperation::Store(StoreKind::Add), true),
        0x03 => (BinaryOperation::Store(StoreKind::Replace), false),
        0x13 => (BinaryOperation::Store(StoreKind::Replace), true),
        0x04 => (BinaryOperation::Delete, false),
        0x14 => (BinaryOperation::Delete, true),
        0x05 => (BinaryOperation::Arithmetic { down: false }, false),
        0x15 => (BinaryOperation::Arithmetic { down: false }, true),
        0x06 => (BinaryOperation::Arithmetic { down: true }, false),
        0x16 => (BinaryOperation::Arithmetic { down: true }, true),
        0x07 => (BinaryOperation::Quit, false),
        0x17 => (BinaryOperation::Quit, true),
        0x08 => (BinaryOperation::Flush, false),
        0x18 => (BinaryOperation::Flush, true),
        0x0a => (BinaryOperation::Noop, false),
        0x0b => (BinaryOperation::Version, false),
        0x0e => (BinaryOperation::Concatenate { front: false }, false),
        0x19 => (BinaryOperation::Concatenate { front: false }, true),
        0x0f => (BinaryOperation::Concatenate { front: true }, false),
        0x1a => (BinaryOperation::Concatenate { front: true }, true),
        0x10 => (BinaryOperation::Stat, false),
        0x1c => (BinaryOperation::Touch, false),
        0x1d => (BinaryOperation::GetAndTouch { with_key: false }, false),
        0x1e => (BinaryOperation::GetAndTouch { with_key: false }, true),
        0x23 => (BinaryOperation::GetAndTouch { with_key: true }, false),
        0x24 => (BinaryOperation::GetAndTouch { with_key: true }, true),
        _ => return None,
    })
}

fn u32_at(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[cfg(test)]
mod tests;
