//! mTCP's route and ARP files: `config/route.conf` and `config/arp.conf` in the working directory.
//!
//! A file has a line with the number of entries and then the entries:
//!
//! ```text
//! ROUTES 1                     ARP_ENTRY 1
//! 10.0.1.0/24 dpdk0            10.0.0.1/32 90:e2:ba:25:10:c0
//! ```
//!
//! Pure: text in, entries or an error with its line out. `setup.rs` applies the entries.
//!
//! As in mTCP, lines after the stated number of entries are ignored.

use std::net::IpAddr;

use thiserror::Error;

use super::conf::prefixed;

/// A route: packets for a prefix leave by a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteEntry {
    pub(super) prefix: (IpAddr, u8),
    pub(super) device: String,
}

/// A static ARP entry: hosts of a prefix have a hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArpEntry {
    pub(super) prefix: (IpAddr, u8),
    pub(super) mac: [u8; 6],
}

/// The contents of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatedTable<T> {
    /// At most the stated number.
    pub(super) entries: Vec<T>,
    pub(super) stated: usize,
    pub(super) found: usize,
}

/// A table that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {text:?} is not {shape}")]
pub(crate) struct TableError {
    line: usize,
    text: String,
    shape: &'static str,
}

const ROUTE_SHAPE: &str = "PREFIX/BITS DEVICE";
const NEIGHBOUR_SHAPE: &str = "PREFIX/BITS MAC";

pub(super) fn routes(text: &str) -> Result<StatedTable<RouteEntry>, TableError> {
    entries(text, "ROUTES", ROUTE_SHAPE, |prefix, device| {
        Some(RouteEntry { prefix: prefixed(prefix)?, device: device.to_owned() })
    })
}

pub(super) fn neighbours(text: &str) -> Result<StatedTable<ArpEntry>, TableError> {
    entries(text, "ARP_ENTRY", NEIGHBOUR_SHAPE, |prefix, mac| {
        Some(ArpEntry { prefix: prefixed(prefix)?, mac: parsed_mac(mac)? })
    })
}

fn entries<T>(
    text: &str,
    heading: &str,
    shape: &'static str,
    parse: impl Fn(&str, &str) -> Option<T>,
) -> Result<StatedTable<T>, TableError> {
    let mut stated = 0;
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_text = line.split_once('#').map_or(line, |(text, _)| text).trim();
        let mut words = line_text.split_whitespace();
        let wrong = |shape| TableError { line: index + 1, text: line_text.to_owned(), shape };
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(word), Some(count), None) if word == heading => {
                stated = count.parse().map_err(|_| wrong("a number of entries"))?;
            }
            (Some(first), Some(second), None) => {
                entries.push(parse(first, second).ok_or_else(|| wrong(shape))?);
            }
            _ => return Err(wrong(shape)),
        }
    }
    let found = entries.len();
    entries.truncate(stated);
    Ok(StatedTable { entries, stated, found })
}

fn parsed_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_comments_are_read() {
        let text = "# where to\nROUTES 2\n10.0.1.0/24 dpdk0 # east\n\n0.0.0.0/0 dpdk1\n";
        let routes = routes(text).unwrap().entries;
        assert_eq!(routes.len(), 2);
        assert_eq!(routes[0].prefix, (IpAddr::from([10, 0, 1, 0]), 24));
        assert_eq!(routes[1].device, "dpdk1");
        let neighbours = neighbours("ARP_ENTRY 1\n10.0.0.1/32 90:e2:BA:25:10:c0\n").unwrap();
        assert_eq!(neighbours.entries[0].mac, [0x90, 0xe2, 0xba, 0x25, 0x10, 0xc0]);
        assert_eq!(self::routes("").unwrap().entries, []);
    }

    #[test]
    fn entries_after_the_stated_number_are_ignored_and_counted() {
        let counts = |text: &str| {
            let table = routes(text).unwrap();
            (table.entries.len(), table.stated, table.found)
        };
        assert_eq!(counts("ROUTES 2\n10.0.1.0/24 a\n"), (1, 2, 1));
        assert_eq!(counts("ROUTES 1\n10.0.1.0/24 a\n10.0.2.0/24 b\n"), (1, 1, 2));
        assert_eq!(counts("10.0.1.0/24 a\n"), (0, 0, 1));
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_text() {
        for (text, line) in [("ROUTES 1\n10.0.1.0 a", 2), ("ROUTES x", 1), ("a b c d", 1)] {
            let error = routes(text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
        }
        for mac in ["1:2:3:4:5", "1:2:3:4:5:6:7", "1:2:3:4:5:g", "1:2:3:4:5:100"] {
            assert!(neighbours(&format!("ARP_ENTRY 1\n1.2.3.4/32 {mac}")).is_err(), "{mac}");
        }
    }
}
