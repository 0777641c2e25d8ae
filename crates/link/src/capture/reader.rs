//! Reads pcapng and classic pcap, for tests and replay.
//!
//! Read first: draft-ietf-opsawg-pcapng §3 and §4; for the classic format draft-ietf-opsawg-pcap.
//!
//! Pure: a file's bytes in, frames out. Any bytes are allowed.
//!
//! Invariants
//! - Nothing is allocated but a bounded table of interfaces; frames are borrowed from the file.
//! - After an error there are no more frames.

use crate::LinkMedium;
use crate::limits::CAPTURE_INTERFACES_MAX;

use super::pcapng::{
    BYTE_ORDER_MAGIC, Direction, ENHANCED_PACKET, EPB_FLAGS, IF_TSOFFSET, IF_TSRESOL, INTERFACE,
    LINK_ETHERNET, LINK_RAW, OPTION_END, SECTION_HEADER, SIMPLE_PACKET,
};

const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Other numbers for raw IP (`DLT_RAW`, `LINKTYPE_IPV4`, `LINKTYPE_IPV6`).
const LINK_RAW_OTHER: [u16; 4] = [12, 14, 228, 229];

/// A frame of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// The interface's place in its section; 0 in classic files.
    pub interface: u32,
    /// What frames of that interface start with; `None`: something that we have no link for.
    pub medium: Option<LinkMedium>,
    /// Nanoseconds since 1970; `None`: not recorded.
    pub timestamp_ns: Option<u64>,
    /// Which way it went, where that is recorded.
    pub direction: Option<Direction>,
    /// Its length on the wire, which may be over what was kept.
    pub original_len: u32,
    /// What was kept of it.
    pub bytes: &'a [u8],
}

/// Why a file could not be read (on).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It starts like no capture.
    #[error("neither pcapng nor pcap")]
    NotACapture,
    /// It ends within a block. A capture of a program that was killed does.
    #[error("cut off at byte {at}")]
    CutOff {
        /// Where the block starts.
        at: usize,
    },
    /// A block contradicts itself or the blocks before it.
    #[error("bad block at byte {at}: {why}")]
    BadBlock {
        /// Where the block starts.
        at: usize,
        /// What is wrong.
        why: &'static str,
    },
}

/// The frames of a capture file, in the file's order.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    file: &'a [u8],
    at: usize,
    is_big_endian: bool,
    format: Format,
    interfaces: Vec<CapturedInterface>,
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Format {
    Pcapng,
    /// Ticks in a second.
    Pcap(u32),
}

#[derive(Debug, Clone, Copy)]
struct CapturedInterface {
    medium: Option<LinkMedium>,
    snap_len: u32,
    ticks: TicksPerSecond,
    /// Seconds to add to each time.
    offset_s: i64,
}

/// Ticks in a second, as a power (`if_tsresol`).
#[derive(Debug, Clone, Copy)]
enum TicksPerSecond {
    PowerOf10(u32),
    PowerOf2(u32),
}

impl TicksPerSecond {
    /// `None`: over what 64 bits hold.
    fn to_ns(self, ticks: u64) -> Option<u64> {
        let wide = u128::from(ticks) * 1_000_000_000;
        let ns = match self {
            Self::PowerOf10(power) => wide / 10_u128.checked_pow(power)?,
            Self::PowerOf2(power) => wide.checked_shr(power)?,
        };
        u64::try_from(ns).ok()
    }
}

impl<'a> Reader<'a> {
    /// Looks at the head of `file`.
    ///
    /// # Errors
    /// [`ReadError::NotACapture`], or what is wrong with the head.
    pub fn new(file: &'a [u8]) -> Result<Self, ReadError> {
        let (mut at, mut is_big_endian, mut format) = (0, false, Format::Pcapng);
        let mut interfaces = Vec::new();
        let magic = file.first_chunk::<4>().ok_or(ReadError::NotACapture)?;
        if u32::from_le_bytes(*magic) != SECTION_HEADER {
            is_big_endian =
                [PCAP_MICROSECONDS, PCAP_NANOSECONDS].contains(&u32::from_be_bytes(*magic));
            let ticks = match u32_in(is_big_endian, *magic) {
                PCAP_MICROSECONDS => 1_000_000,
                PCAP_NANOSECONDS => 1_000_000_000,
                _ => return Err(ReadError::NotACapture),
            };
            let head = file.first_chunk::<24>().ok_or(ReadError::CutOff { at: 0 })?;
            let link_type = u32_in(is_big_endian, [head[20], head[21], head[22], head[23]]);
            let medium = medium_of((link_type & 0xffff) as u16);
            let ticks_of = TicksPerSecond::PowerOf10(9);
            interfaces.push(CapturedInterface {
                medium,
                snap_len: 0,
                ticks: ticks_of,
                offset_s: 0,
            });
            (at, format) = (24, Format::Pcap(ticks));
        }
        Ok(Self { file, at, is_big_endian, format, interfaces, is_over: false })
    }

    fn u32_at(&self, bytes: &[u8], at: usize) -> Option<u32> {
        Some(u32_in(self.is_big_endian, bytes.get(at..at + 4)?.try_into().ok()?))
    }

    fn u16_at(&self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if self.is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    /// The next record of a classic file.
    fn record(&mut self, ticks_in_second: u32) -> Result<Captured<'a>, ReadError> {
        let at = self.at;
        let cut_off = ReadError::CutOff { at };
        let head = self.file.get(at..at + 16).ok_or(cut_off)?;
        let field = |index: usize| self.u32_at(head, index * 4).ok_or(cut_off);
        let (seconds, ticks, len, original_len) = (field(0)?, field(1)?, field(2)?, field(3)?);
        let end = (at + 16).checked_add(len as usize).ok_or(cut_off)?;
        let bytes = self.file.get(at + 16..end).ok_or(cut_off)?;
        let tick_ns = u64::from(1_000_000_000 / ticks_in_second);
        self.at = end;
        Ok(Captured {
            interface: 0,
            medium: self.interfaces[0].medium,
            timestamp_ns: Some(u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * tick_ns),
            direction: None,
            original_len,
            bytes,
        })
    }

    /// The next block; `None`: it holds no frame.
    fn block(&mut self) -> Result<Option<Captured<'a>>, ReadError> {
        let at = self.at;
        let bad = |why| ReadError::BadBlock { at, why };
        let rest = &self.file[at..];
        let cut_off = ReadError::CutOff { at };
        let kind = *rest.first_chunk::<4>().ok_or(cut_off)?;
        if u32::from_le_bytes(kind) == SECTION_HEADER {
            let magic = rest.get(8..12).and_then(|m| m.try_into().ok()).ok_or(cut_off)?;
            self.is_big_endian = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
                (BYTE_ORDER_MAGIC, _) => false,
                (_, BYTE_ORDER_MAGIC) => true,
                _ => return Err(bad("no byte order")),
            };
            self.interfaces.clear();
        }
        let kind = u32_in(self.is_big_endian, kind);
        let len = self.u32_at(rest, 4).ok_or(cut_off)? as usize;
        if len < 12 || !len.is_multiple_of(4) {
            return Err(bad("a length that no block has"));
        }
        let block = rest.get(..len).ok_or(cut_off)?;
        if self.u32_at(block, len - 4) != Some(len as u32) {
            return Err(bad("the lengths at its ends differ"));
        }
        self.at = at + len;
        let body = &block[8..len - 4];
        match kind {
            INTERFACE => self.describe(body).map_err(bad).map(|()| None),
            ENHANCED_PACKET => self.enhanced(body).map_err(bad).map(Some),
            SIMPLE_PACKET => self.simple(body).map_err(bad).map(Some),
            _ => Ok(None),
        }
    }

    fn describe(&mut self, body: &[u8]) -> Result<(), &'static str> {
        if self.interfaces.len() == CAPTURE_INTERFACES_MAX {
            return Err("more interfaces than we read");
        }
        let link_type = self.u16_at(body, 0).ok_or("too short")?;
        let snap_len = self.u32_at(body, 4).ok_or("too short")?;
        let (mut ticks, mut offset_s) = (TicksPerSecond::PowerOf10(6), 0);
        self.options(&body[8..], |code, value| match (code, value) {
            (IF_TSRESOL, &[power]) if power & 0x80 == 0 => {
                ticks = TicksPerSecond::PowerOf10(power.into())
            }
            (IF_TSRESOL, &[power]) => ticks = TicksPerSecond::PowerOf2((power & 0x7f).into()),
            (IF_TSOFFSET, value) => {
                let value: [u8; 8] = value.try_into().unwrap_or_default();
                let order =
                    if self.is_big_endian { i64::from_be_bytes } else { i64::from_le_bytes };
                offset_s = order(value);
            }
            _ => {}
        })?;
        let medium = medium_of(link_type);
        self.interfaces.push(CapturedInterface { medium, snap_len, ticks, offset_s });
        Ok(())
    }

    fn enhanced(&self, body: &'a [u8]) -> Result<Captured<'a>, &'static str> {
        let field = |index: usize| self.u32_at(body, index * 4).ok_or("too short");
        let number = field(0)?;
        let ticks = u64::from(field(1)?) << 32 | u64::from(field(2)?);
        let (len, original_len) = (field(3)? as usize, field(4)?);
        let interface = self.interfaces.get(number as usize).ok_or("an unknown interface")?;
        let bytes = body[20..].get(..len).ok_or("a frame longer than its block")?;
        let options = body[20..].get(len.next_multiple_of(4)..).unwrap_or_default();
        let mut direction = None;
        self.options(options, |code, value| {
            if let (EPB_FLAGS, Some(flags)) = (code, self.u32_at(value, 0)) {
                direction = Direction::from_flags(flags);
            }
        })?;
        let offset_ns = i128::from(interface.offset_s) * 1_000_000_000;
        let timestamp_ns = interface
            .ticks
            .to_ns(ticks)
            .and_then(|ns| u64::try_from(i128::from(ns) + offset_ns).ok());
        let medium = interface.medium;
        Ok(Captured { interface: number, medium, timestamp_ns, direction, original_len, bytes })
    }

    fn simple(&self, body: &'a [u8]) -> Result<Captured<'a>, &'static str> {
        let original_len = self.u32_at(body, 0).ok_or("too short")?;
        let interface = self.interfaces.first().ok_or("an unknown interface")?;
        let kept = match interface.snap_len {
            0 => original_len,
            snap_len => original_len.min(snap_len),
        };
        let bytes = body[4..].get(..kept as usize).ok_or("a frame longer than its block")?;
        let medium = interface.medium;
        let (timestamp_ns, direction) = (None, None);
        Ok(Captured { interface: 0, medium, timestamp_ns, direction, original_len, bytes })
    }

    fn options<'b>(
        &self,
        mut options: &'b [u8],
        mut each: impl FnMut(u16, &'b [u8]),
    ) -> Result<(), &'static str> {
        while let (Some(code), Some(len)) = (self.u16_at(options, 0), self.u16_at(options, 2)) {
            if code == OPTION_END {
                break;
            }
            let len = usize::from(len);
            each(code, options[4..].get(..len).ok_or("an option longer than its block")?);
            options = options[4..].get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Captured<'a>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over && self.at < self.file.len() {
            let found = match self.format {
                Format::Pcap(ticks) => self.record(ticks).map(Some),
                Format::Pcapng => self.block(),
            };
            match found {
                Ok(Some(frame)) => return Some(Ok(frame)),
                Ok(None) => {}
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

fn medium_of(link_type: u16) -> Option<LinkMedium> {
    match link_type {
        LINK_ETHERNET => Some(LinkMedium::Ethernet),
        LINK_RAW => Some(LinkMedium::Ip),
        other if LINK_RAW_OTHER.contains(&other) => Some(LinkMedium::Ip),
        _ => None,
    }
}

fn u32_in(is_big_endian: bool, bytes: [u8; 4]) -> u32 {
    if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

#[cfg(test)]
mod tests;
