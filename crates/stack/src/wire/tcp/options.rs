//! TCP's options: MSS (RFC 9293 §3.7.1), window scale and timestamps (RFC 7323), SACK (RFC 2018),
//! Fast Open cookies (RFC 7413 §4.1.1).
//!
//! Invariants
//! - An option that we do not know is skipped by its length (RFC 9293 §3.1, MUST-6).
//! - A list with an impossible length is read up to there, what came before counts, and
//!   `malformed` says so (MUST-7); nothing after it can be believed.
//! - An option that we know, with a length that is not its own, is skipped like an unknown one.
//! - Of two options of a kind the later counts.

use crate::seq::SeqNum;
use crate::wire::field::{array_at, put_u16, put_u32, u32_at};

/// Room for options in a header, in bytes: the data offset counts to 15 words.
pub const OPTIONS_BYTES_MAX: usize = 40;
/// Most SACK blocks in one header (RFC 2018 §3); three beside timestamps.
pub const SACK_BLOCKS_MAX: usize = 4;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const FAST_OPEN: u8 = 34;

const MSS_BYTES: usize = 4;
const WINDOW_SCALE_BYTES: usize = 3;
const SACK_PERMITTED_BYTES: usize = 2;
const TIMESTAMPS_BYTES: usize = 10;
const SACK_HEADER_BYTES: usize = 2;
const SACK_BLOCK_BYTES: usize = 8;
const FAST_OPEN_HEADER_BYTES: usize = 2;
/// Shortest and longest Fast Open cookie (RFC 7413 §4.1.1).
const COOKIE_BYTES_MIN: usize = 4;
const COOKIE_BYTES_MAX: usize = 16;

/// Sequence numbers that arrived: from `start` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlock {
    /// The first.
    pub start: SeqNum,
    /// One past the last.
    pub end: SeqNum,
}

/// The timestamps option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the echo of ours; means something with an ACK only.
    pub echo: u32,
}

/// A Fast Open cookie (RFC 7413 §4.1.1). An empty one requests a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cookie {
    len: u8,
    bytes: [u8; COOKIE_BYTES_MAX],
}

impl Cookie {
    /// Requests a cookie.
    pub const REQUEST: Self = Self { len: 0, bytes: [0; COOKIE_BYTES_MAX] };

    /// Makes a cookie of 4 to 16 bytes, an even number, or an empty one. `None`: no cookie has
    /// such a length.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = bytes.len();
        let is_cookie = (COOKIE_BYTES_MIN..=COOKIE_BYTES_MAX).contains(&len);
        if len != 0 && !(is_cookie && len.is_multiple_of(2)) {
            return None;
        }
        let mut cookie = Self { len: len as u8, ..Self::REQUEST };
        cookie.bytes[..len].copy_from_slice(bytes);
        Some(cookie)
    }

    /// The cookie's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// It is empty, and requests a cookie.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }
}

/// The options of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window shift, as it came: it may be over the 14 that is allowed.
    pub window_scale: Option<u8>,
    /// SACK may be used.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Fast Open: a cookie, or the request for one. In SYNs only.
    pub fast_open: Option<Cookie>,
    /// The list ended in an option of impossible length.
    pub malformed: bool,
    pub(crate) sack_count: u8,
    pub(crate) sack: [SackBlock; SACK_BLOCKS_MAX],
}

impl Options {
    /// The SACK blocks, in the sender's order.
    #[must_use]
    #[inline]
    pub fn sack(&self) -> &[SackBlock] {
        self.sack.get(..usize::from(self.sack_count)).unwrap_or_default()
    }

    /// There is one of those that only a SYN has.
    #[inline]
    pub(crate) const fn are_of_syn(&self) -> bool {
        self.mss.is_some() || self.window_scale.is_some() || self.sack_permitted
    }

    /// There are none but timestamps.
    #[inline]
    pub(crate) const fn are_timestamps_alone(&self) -> bool {
        !self.are_of_syn() && self.sack_count == 0 && self.fast_open.is_none()
    }

    /// Sets the SACK blocks: as many of `blocks` as there is room for, beside the timestamps if
    /// those are set already.
    #[inline]
    pub fn set_sack(&mut self, blocks: &[SackBlock]) {
        let most = if self.timestamps.is_some() { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX };
        let count = blocks.len().min(most);
        self.sack[..count].copy_from_slice(&blocks[..count]);
        self.sack[count..].fill(SackBlock::default());
        self.sack_count = count as u8;
    }

    /// Reads a list of options.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // Nearly every segment of a connection with timestamps has this list and no other
        // (RFC 7323 appendix A).
        if let [NOP, NOP, TIMESTAMPS, 10, _, _, _, _, _, _, _, _] = bytes {
            return Self { timestamps: Some(timestamps_at(bytes, 4)), ..Self::default() };
        }
        Self::parse_any(bytes)
    }

    fn parse_any(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let [kind, tail @ ..] = bytes {
            bytes = match *kind {
                END => return options,
                NOP => tail,
                kind => {
                    let len = tail.first().map_or(0, |len| usize::from(*len));
                    let (Some(option), true) = (bytes.get(..len), len >= 2) else {
                        options.malformed = true;
                        return options;
                    };
                    options.take(kind, option);
                    &bytes[len..]
                }
            };
        }
        options
    }

    /// One option: kind, length and value.
    fn take(&mut self, kind: u8, option: &[u8]) {
        match (kind, option.len()) {
            (MSS, MSS_BYTES) => self.mss = array_at(option, 2).map(u16::from_be_bytes),
            (WINDOW_SCALE, WINDOW_SCALE_BYTES) => self.window_scale = Some(option[2]),
            (SACK_PERMITTED, SACK_PERMITTED_BYTES) => self.sack_permitted = true,
            // One of another length is no cookie, and ignored (RFC 7413 §4.1.1).
            (FAST_OPEN, _) => self.fast_open = Cookie::new(&option[FAST_OPEN_HEADER_BYTES..]),
            (TIMESTAMPS, TIMESTAMPS_BYTES) => self.timestamps = Some(timestamps_at(option, 2)),
            (SACK, len) if (len - SACK_HEADER_BYTES).is_multiple_of(SACK_BLOCK_BYTES) => {
                self.take_sack(&option[SACK_HEADER_BYTES..]);
            }
            _ => {}
        }
    }

    fn take_sack(&mut self, bytes: &[u8]) {
        self.sack = [SackBlock::default(); SACK_BLOCKS_MAX];
        self.sack_count = 0;
        for (to, from) in self.sack.iter_mut().zip(bytes.chunks_exact(SACK_BLOCK_BYTES)) {
            *to = SackBlock { start: SeqNum(u32_at(from, 0)), end: SeqNum(u32_at(from, 4)) };
            self.sack_count += 1;
        }
    }

    /// Length in bytes that [`Options::emit`] writes: a multiple of four.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        // Every option is padded to whole words but one: "SACK permitted" takes the place of the
        // two NOPs before timestamps.
        let mut bytes = 0;
        if self.mss.is_some() {
            bytes += MSS_BYTES;
        }
        if self.timestamps.is_some() {
            bytes += 2 + TIMESTAMPS_BYTES;
        } else if self.sack_permitted {
            bytes += 2 + SACK_PERMITTED_BYTES;
        }
        if self.window_scale.is_some() {
            bytes += 1 + WINDOW_SCALE_BYTES;
        }
        if self.sack_count > 0 {
            bytes += 2 + SACK_HEADER_BYTES + usize::from(self.sack_count) * SACK_BLOCK_BYTES;
        }
        if let Some(cookie) = &self.fast_open {
            bytes += (FAST_OPEN_HEADER_BYTES + cookie.bytes().len()).next_multiple_of(4);
        }
        bytes
    }

    /// Writes the list in the order that Linux uses: MSS, SACK permitted, timestamps, window
    /// scale, SACK; each on a boundary that suits its fields, by NOPs before it. Last comes a
    /// Fast Open cookie, with NOPs behind it.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Options::bytes`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        let mut at = 0;
        if let Some(mss) = self.mss {
            bytes[at..at + 2].copy_from_slice(&[MSS, MSS_BYTES as u8]);
            put_u16(bytes, at + 2, mss);
            at += MSS_BYTES;
        }
        if let Some(timestamps) = self.timestamps {
            let before = if self.sack_permitted { [SACK_PERMITTED, 2] } else { [NOP, NOP] };
            bytes[at..at + 2].copy_from_slice(&before);
            bytes[at + 2..at + 4].copy_from_slice(&[TIMESTAMPS, TIMESTAMPS_BYTES as u8]);
            put_u32(bytes, at + 4, timestamps.value);
            put_u32(bytes, at + 8, timestamps.echo);
            at += 2 + TIMESTAMPS_BYTES;
        } else if self.sack_permitted {
            bytes[at..at + 4].copy_from_slice(&[NOP, NOP, SACK_PERMITTED, 2]);
            at += 2 + SACK_PERMITTED_BYTES;
        }
        if let Some(shift) = self.window_scale {
            bytes[at..at + 4].copy_from_slice(&[NOP, WINDOW_SCALE, 3, shift]);
            at += 1 + WINDOW_SCALE_BYTES;
        }
        if self.sack_count > 0 {
            let len = SACK_HEADER_BYTES + self.sack().len() * SACK_BLOCK_BYTES;
            bytes[at..at + 4].copy_from_slice(&[NOP, NOP, SACK, len as u8]);
            at += 2 + SACK_HEADER_BYTES;
            for block in self.sack() {
                put_u32(bytes, at, block.start.0);
                put_u32(bytes, at + 4, block.end.0);
                at += SACK_BLOCK_BYTES;
            }
        }
        if let Some(cookie) = &self.fast_open {
            let len = FAST_OPEN_HEADER_BYTES + cookie.bytes().len();
            bytes[at..at + 2].copy_from_slice(&[FAST_OPEN, len as u8]);
            bytes[at + 2..at + len].copy_from_slice(cookie.bytes());
            bytes[at + len..at + len.next_multiple_of(4)].fill(NOP);
        }
    }
}

fn timestamps_at(bytes: &[u8], at: usize) -> Timestamps {
    Timestamps { value: u32_at(bytes, at), echo: u32_at(bytes, at + 4) }
}
