//! IPv6 extension headers (RFC 8200 §4), from the IPv6 header up to what a transport reads.
//!
//! Hop-by-hop options, destination options and routing headers are read and passed over; at a
//! fragment header the reading stops, and goes on when the packet is put together.
//!
//! Invariants
//! - At most [`HEADERS_MAX`] headers are followed, so that a packet cannot keep us busy.
//! - Options that we do not know are treated as their high bits say (§4.2). We know the padding
//!   and the router alert (RFC 2711).
//! - A routing header with segments left is refused, whatever its type: we are not a router
//!   (§4.4; RFC 5095 for type 0).

use super::field::{put_u16, put_u32, rest, u8_at, u16_at, u32_at};
use super::ipv6;
use crate::counters::Drop;

/// Most extension headers of one packet.
pub const HEADERS_MAX: usize = 8;
/// Bytes of a fragment header.
pub const FRAGMENT_BYTES: usize = 8;
/// Number of the hop-by-hop options header.
pub const HOP_BY_HOP: u8 = 0;
/// Number of the routing header.
pub const ROUTING: u8 = 43;
/// Number of the fragment header.
pub const FRAGMENT: u8 = 44;
/// Number that says that nothing follows.
pub const NO_NEXT: u8 = 59;
/// Number of the destination options header.
pub const DESTINATION: u8 = 60;

const OPTION_PAD1: u8 = 0;
const OPTION_PADN: u8 = 1;
const OPTION_ROUTER_ALERT: u8 = 5;

/// Code of a parameter problem: a field has an impossible value (RFC 4443 §3.4).
pub const CODE_FIELD: u8 = 0;
/// Code of a parameter problem: a next header that is not known, or not here.
pub const CODE_NEXT_HEADER: u8 = 1;
/// Code of a parameter problem: an option that is not known.
pub const CODE_OPTION: u8 = 2;

/// A fragment header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// What the fragmented part begins with.
    pub next_header: u8,
    /// Where the bytes belong in the fragmented part, in bytes: a multiple of 8.
    pub offset: usize,
    /// This is not the last one.
    pub more: bool,
    /// Which packet.
    pub identification: u32,
}

impl Fragment {
    /// Reads the header at the start of `bytes`. `None`: it is not all there.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..FRAGMENT_BYTES)?;
        Some(Self {
            next_header: u8_at(bytes, 0),
            offset: usize::from(u16_at(bytes, 2) & 0xfff8),
            more: u16_at(bytes, 2) & 1 != 0,
            identification: u32_at(bytes, 4),
        })
    }

    /// Writes the header to the start of `bytes`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`FRAGMENT_BYTES`].
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[0] = self.next_header;
        bytes[1] = 0;
        put_u16(bytes, 2, self.offset as u16 | u16::from(self.more));
        put_u32(bytes, 4, self.identification);
    }
}

/// Where the extension headers lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// What comes after them; [`FRAGMENT`] if they end in a fragment header.
    pub protocol: u8,
    /// Where that begins, in bytes from the start of the headers.
    pub offset: usize,
    /// Where `protocol` itself stands: an offset like `offset`, or `None` for the IPv6 header's
    /// own field.
    pub named_at: Option<usize>,
}

/// Why a chain of headers is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// What it is counted as.
    pub drop: Drop,
    /// Error to report to the sender.
    pub report: Option<Report>,
}

/// A parameter problem to report (RFC 4443 §3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Its code.
    pub code: u8,
    /// The byte that is the problem, counted from the start of the extension headers; `None`: the
    /// next header field of the IPv6 header.
    pub pointer: Option<usize>,
    /// Report it even if the packet went to a group.
    pub even_to_group: bool,
}

impl Problem {
    const fn silent(drop: Drop) -> Self {
        Self { drop, report: None }
    }

    const fn reported(drop: Drop, code: u8, pointer: Option<usize>) -> Self {
        Self { drop, report: Some(Report { code, pointer, even_to_group: false }) }
    }
}

/// Follows the headers in `bytes`, the first of which is a `first`. The hop-by-hop options header
/// is allowed there alone, and only if `directly` after the IPv6 header (§4.1).
///
/// # Errors
///
/// The problem, and the error to report to the sender.
pub fn walk(first: u8, bytes: &[u8], directly: bool) -> Result<Chain, Problem> {
    follow(Chain { protocol: first, offset: 0, named_at: None }, bytes, directly)
}

/// Follows the headers behind the fragment header that `chain` led to, in the `bytes` that it was
/// followed in.
///
/// # Errors
///
/// The problem, and the error to report to the sender.
pub fn walk_behind_fragment_header(chain: Chain, bytes: &[u8]) -> Result<Chain, Problem> {
    let protocol = *bytes.get(chain.offset).ok_or(Problem::silent(Drop::Truncated))?;
    let offset = chain.offset + FRAGMENT_BYTES;
    follow(Chain { protocol, offset, named_at: Some(chain.offset) }, bytes, false)
}

fn follow(mut chain: Chain, bytes: &[u8], directly: bool) -> Result<Chain, Problem> {
    for count in 0..=HEADERS_MAX {
        match chain.protocol {
            HOP_BY_HOP if count > 0 || !directly => {
                let at = chain.named_at;
                return Err(Problem::reported(Drop::ForbiddenOption, CODE_NEXT_HEADER, at));
            }
            HOP_BY_HOP | DESTINATION => check_options(bytes, chain.offset)?,
            ROUTING => check_routing(bytes, chain.offset)?,
            _ => return Ok(chain),
        }
        let header_bytes = header_bytes_at(bytes, chain.offset)?;
        chain = Chain {
            protocol: u8_at(bytes, chain.offset),
            named_at: Some(chain.offset),
            offset: chain.offset + header_bytes,
        };
    }
    Err(Problem::silent(Drop::ForbiddenOption))
}

/// Length of the header at `at`, all of which is there.
fn header_bytes_at(bytes: &[u8], at: usize) -> Result<usize, Problem> {
    let truncated = Problem::silent(Drop::Truncated);
    let units = bytes.get(at + 1).ok_or(truncated)?;
    let header_bytes = (usize::from(*units) + 1) * 8;
    if rest(bytes, at).len() < header_bytes { Err(truncated) } else { Ok(header_bytes) }
}

fn check_routing(bytes: &[u8], at: usize) -> Result<(), Problem> {
    header_bytes_at(bytes, at)?;
    if u8_at(bytes, at + 3) == 0 {
        return Ok(());
    }
    Err(Problem::reported(Drop::ForbiddenOption, CODE_FIELD, Some(at + 2)))
}

/// The options of the header at `at`: kind, length, value (§4.2).
fn check_options(bytes: &[u8], at: usize) -> Result<(), Problem> {
    let end = at + header_bytes_at(bytes, at)?;
    let mut option = at + 2;
    while option < end {
        let kind = u8_at(bytes, option);
        if kind == OPTION_PAD1 {
            option += 1;
            continue;
        }
        if option + 1 == end {
            return Err(Problem::reported(Drop::BadHeader, CODE_FIELD, Some(option)));
        }
        let next = option + 2 + usize::from(u8_at(bytes, option + 1));
        if next > end {
            return Err(Problem::reported(Drop::BadHeader, CODE_FIELD, Some(option + 1)));
        }
        if !matches!(kind, OPTION_PADN | OPTION_ROUTER_ALERT) {
            refuse_unknown(kind, option)?;
        }
        option = next;
    }
    Ok(())
}

fn refuse_unknown(kind: u8, at: usize) -> Result<(), Problem> {
    let report =
        |even_to_group| Some(Report { code: CODE_OPTION, pointer: Some(at), even_to_group });
    match kind >> 6 {
        0 => Ok(()),
        1 => Err(Problem::silent(Drop::ForbiddenOption)),
        2 => Err(Problem { drop: Drop::ForbiddenOption, report: report(true) }),
        _ => Err(Problem { drop: Drop::ForbiddenOption, report: report(false) }),
    }
}

/// Removes the fragment header from a packet: `header_bytes` of headers as the first fragment had
/// them, the fragment header last, and the whole fragmented part behind them. The header that
/// names the fragment header then names what that one did, and no other fragment's headers count
/// (§4.5). Returns the packet, and whether extension headers stand before the fragmented part.
/// `None`: it is longer than a packet can be, or has no such headers.
pub fn remove_fragment_header(packet: &mut [u8], header_bytes: usize) -> Option<(&[u8], bool)> {
    let kept = header_bytes.checked_sub(FRAGMENT_BYTES)?;
    let total_bytes = packet.len().checked_sub(FRAGMENT_BYTES)?;
    let payload_bytes = u16::try_from(total_bytes.checked_sub(ipv6::HEADER_BYTES)?).ok()?;
    let chain = walk(*packet.get(6)?, packet.get(ipv6::HEADER_BYTES..header_bytes)?, true).ok()?;
    if chain.protocol != FRAGMENT || ipv6::HEADER_BYTES + chain.offset != kept {
        return None;
    }
    let named_at = chain.named_at.map_or(6, |at| at + ipv6::HEADER_BYTES);
    packet[named_at] = *packet.get(kept)?;
    packet.copy_within(..kept, FRAGMENT_BYTES);
    let packet = &mut packet[FRAGMENT_BYTES..];
    put_u16(packet, 4, payload_bytes);
    Some((packet, chain.offset > 0))
}
