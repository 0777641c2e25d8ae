//! Multicast listener discovery, version 2 (RFC 3810 §5): what a host needs to say which groups it
//! hears, so that switches that look into it pass them on.
//!
//! ```text
//! query:  130 | 0 | checksum | maximum response code (2) | 0 (2) | group (16) | ...
//! report: 143 | 0 | checksum | 0 (2) | records (2)
//! record: type (1) | 0 | sources (2): 0 | group (16)
//! ```
//!
//! Invariants
//! - A query of the first version reads the same as far as we look (§5.1, §8.1).
//! - Our records have no source filters: we receive a group from all sources.

use core::net::Ipv6Addr;
use core::time::Duration;

use super::field::{array_at, put_u16, u16_at};
use super::icmp6;
use crate::counters::Drop;

/// Type of a query.
pub const QUERY: u8 = 130;
/// Type of a report.
pub const REPORT: u8 = 143;
/// Destination of reports (§5.2.14).
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop limit of every message.
pub const HOP_LIMIT: u8 = 1;
/// Bytes of a report before its records.
pub const REPORT_BYTES: usize = 8;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 20;

const QUERY_BYTES: usize = 24;
const MODE_IS_EXCLUDE: u8 = 2;
const CHANGE_TO_EXCLUDE: u8 = 4;

/// A multicast listener query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Which group; unspecified: all.
    pub group: Ipv6Addr,
    /// The answer's latest time.
    pub within: Duration,
}

impl Query {
    /// Reads a message of type [`QUERY`]; its checksum is right.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`].
    pub fn parse(message: &[u8]) -> Result<Self, Drop> {
        if message.len() < QUERY_BYTES {
            return Err(Drop::Truncated);
        }
        let code = u16_at(message, 4);
        // Above 32,767 it is a floating-point number (§5.1.3).
        let millis = match code {
            0..0x8000 => u64::from(code),
            _ => u64::from(code & 0x0fff | 0x1000) << ((code >> 12 & 7) + 3),
        };
        let group = Ipv6Addr::from_octets(array_at(message, 8).unwrap_or_default());
        Ok(Self { group, within: Duration::from_millis(millis) })
    }
}

/// Why a report is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A group was joined.
    Joined,
    /// In answer to a query.
    Asked,
}

/// Length of a report about so many groups, in bytes.
#[must_use]
pub const fn report_bytes(groups: usize) -> usize {
    REPORT_BYTES + groups * RECORD_BYTES
}

/// Writes a report to `message`, which is [`report_bytes`] long, with a checksum that covers a
/// pseudo header that sums to `pseudo_header`.
///
/// # Panics
///
/// If `message` is shorter than that.
pub fn emit_report(
    message: &mut [u8],
    reason: Reason,
    groups: impl Iterator<Item = Ipv6Addr>,
    pseudo_header: u16,
) {
    message[..REPORT_BYTES].fill(0);
    message[0] = REPORT;
    let mut count = 0;
    for group in groups {
        let at = report_bytes(usize::from(count));
        let record = &mut message[at..at + RECORD_BYTES];
        record[..4].fill(0);
        record[0] = match reason {
            Reason::Joined => CHANGE_TO_EXCLUDE,
            Reason::Asked => MODE_IS_EXCLUDE,
        };
        record[4..].copy_from_slice(&group.octets());
        count += 1;
    }
    put_u16(message, 6, count);
    icmp6::write_checksum(message, pseudo_header);
}
