//! The blocks of a pcapng file that we write.
//!
//! Read first: draft-ietf-opsawg-pcapng §3 (general structure), §4.1–4.3 (section header,
//! interface description, enhanced packet). Numbers are in the byte order of the machine; the
//! section header says which.
//!
//! Pure: values in, bytes appended to a buffer.
//!
//! Invariants
//! - Every block has its length at both ends and is a multiple of four bytes long.
//! - Times are nanoseconds (`if_tsresol` 9).

use std::time::Duration;

use crate::LinkMedium;
use crate::limits::{CAPTURE_BUFFER_BYTES, OFFLOAD_FRAME_BYTES};

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
pub(super) const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

pub(super) const OPTION_END: u16 = 0;
pub(super) const IF_TSRESOL: u16 = 9;
pub(super) const IF_TSOFFSET: u16 = 14;
pub(super) const EPB_FLAGS: u16 = 2;

const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const NANOSECONDS: u8 = 9;

/// Link types (`LINKTYPE_…`): Ethernet; raw IP, version in the first byte.
pub(super) const LINK_ETHERNET: u16 = 1;
pub(super) const LINK_RAW: u16 = 101;

/// The longest block: a packet's fixed part, the largest frame, and one option.
pub(super) const BLOCK_BYTES_MAX: usize = 32 + OFFLOAD_FRAME_BYTES.next_multiple_of(4) + 12;

const _: () = assert!(2 * BLOCK_BYTES_MAX <= CAPTURE_BUFFER_BYTES);

/// Which way a frame went, seen from the program that captured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To us.
    Inward,
    /// From us.
    Outward,
}

impl Direction {
    /// The lowest two bits of `epb_flags`.
    fn flags(self) -> u32 {
        match self {
            Self::Inward => 1,
            Self::Outward => 2,
        }
    }

    pub(super) fn from_flags(flags: u32) -> Option<Self> {
        match flags & 3 {
            1 => Some(Self::Inward),
            2 => Some(Self::Outward),
            _ => None,
        }
    }
}

/// A frame to write.
pub(super) struct Frame<'a> {
    pub(super) interface: u32,
    /// Since 1970.
    pub(super) timestamp: Duration,
    pub(super) direction: Direction,
    pub(super) bytes: &'a [u8],
}

/// Appends the section header that a file starts with.
pub(super) fn section_header(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        out.extend(1_u16.to_ne_bytes());
        out.extend(0_u16.to_ne_bytes());
        // The section's length is not known beforehand.
        out.extend((-1_i64).to_ne_bytes());
        option(out, SHB_USERAPPL, b"megapipe");
        option(out, OPTION_END, &[]);
    });
}

/// Appends the description of the next interface.
pub(super) fn interface(out: &mut Vec<u8>, medium: LinkMedium, name: &str) {
    block(out, INTERFACE, |out| {
        let link_type = match medium {
            LinkMedium::Ethernet => LINK_ETHERNET,
            LinkMedium::Ip => LINK_RAW,
        };
        out.extend(link_type.to_ne_bytes());
        out.extend(0_u16.to_ne_bytes());
        // No limit to a packet's length.
        out.extend(0_u32.to_ne_bytes());
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[NANOSECONDS]);
        option(out, OPTION_END, &[]);
    });
}

/// Appends one frame. What is over the largest frame is cut off, and its length kept.
pub(super) fn packet(out: &mut Vec<u8>, frame: &Frame<'_>) {
    let kept = &frame.bytes[..frame.bytes.len().min(OFFLOAD_FRAME_BYTES)];
    let original_len = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
    // Nanoseconds overrun 64 bits in the year 2554.
    let ticks = frame.timestamp.as_nanos() as u64;
    block(out, ENHANCED_PACKET, |out| {
        out.extend(frame.interface.to_ne_bytes());
        out.extend(((ticks >> 32) as u32).to_ne_bytes());
        out.extend((ticks as u32).to_ne_bytes());
        out.extend((kept.len() as u32).to_ne_bytes());
        out.extend(original_len.to_ne_bytes());
        out.extend_from_slice(kept);
        pad(out, kept.len());
        option(out, EPB_FLAGS, &frame.direction.flags().to_ne_bytes());
        option(out, OPTION_END, &[]);
    });
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_ne_bytes());
    out.extend([0; 4]);
    body(out);
    let bytes = (out.len() - start + 4) as u32;
    out.extend(bytes.to_ne_bytes());
    out[start + 4..start + 8].copy_from_slice(&bytes.to_ne_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_ne_bytes());
    out.extend((value.len() as u16).to_ne_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + len.next_multiple_of(4) - len, 0);
}
