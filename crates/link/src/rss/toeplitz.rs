//! The Toeplitz hash of receive side scaling, as a table under a key.
//!
//! Read first: Krawczyk, "LFSR-based hashing and authentication", 1994; Microsoft's "RSS hashing
//! types" for the order of the fields.
//!
//! Each bit of the input that is set adds, by exclusive or, the 32 bits of the key that begin at
//! its number. So the hash of an input is the sum of the hashes of its half bytes, each at its
//! place, and those are looked up: 1.5 KiB are touched for an IPv4 packet with ports, which stay in
//! the first-level cache beside everything else.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of the longest input: two IPv6 addresses and two ports.
pub(super) const INPUT_BYTES_MAX: usize = 36;

/// What each half byte of the input adds, by its place and value.
type Table = [[u32; 16]; 2 * INPUT_BYTES_MAX];

/// The function under one key.
#[derive(Clone, PartialEq, Eq)]
pub struct Toeplitz(Box<Table>);

impl Toeplitz {
    /// The function under `key`. Of one that is shorter than 40 bytes the rest counts as zero, as
    /// devices have it.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        let byte = |at: usize| u64::from(key.get(at).copied().unwrap_or(0));
        let mut table = Box::new([[0; 16]; 2 * INPUT_BYTES_MAX]);
        for (place, sums) in table.iter_mut().enumerate() {
            // 40 bits of the key: the windows of the 8 bits of this byte are among them.
            let bits = (0..5).fold(0, |bits, next| bits << 8 | byte(place / 2 + next));
            for (value, sum) in sums.iter_mut().enumerate() {
                // The first half byte is the higher one, and a bit's number counts from the top.
                let set = (0..4).filter(|bit| value >> (3 - bit) & 1 == 1);
                let windows = set.map(|bit| (bits >> (8 - (place % 2 * 4 + bit))) as u32);
                *sum = windows.fold(0, |sum, window| sum ^ window);
            }
        }
        Self(table)
    }

    /// The hash of any input of at most 36 bytes; what is beyond does not count.
    #[must_use]
    #[inline]
    pub fn of(&self, input: &[u8]) -> u32 {
        let places = self.0.as_chunks().0;
        input.iter().zip(places).fold(0, |sum, (byte, [high, low])| {
            sum ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)]
        })
    }

    /// The hash of an IPv4 packet, with its source and destination port if they count.
    #[must_use]
    #[inline]
    pub fn of_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, ports: Option<(u16, u16)>) -> u32 {
        let hosts = u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits());
        let mut input = [0; 12];
        input[..8].copy_from_slice(&hosts.to_be_bytes());
        match ports {
            None => self.of(&input[..8]),
            Some((from, to)) => {
                let ports = u32::from(from) << 16 | u32::from(to);
                input[8..].copy_from_slice(&ports.to_be_bytes());
                self.of(&input)
            }
        }
    }

    /// The hash of an IPv6 packet, with its source and destination port if they count.
    #[must_use]
    #[inline]
    pub fn of_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, ports: Option<(u16, u16)>) -> u32 {
        let mut input = [0; INPUT_BYTES_MAX];
        input[..16].copy_from_slice(&src.octets());
        input[16..32].copy_from_slice(&dst.octets());
        match ports {
            None => self.of(&input[..32]),
            Some((from, to)) => {
                let ports = u32::from(from) << 16 | u32::from(to);
                input[32..].copy_from_slice(&ports.to_be_bytes());
                self.of(&input)
            }
        }
    }
}

/// Without the key, which a peer who knew it could aim by.
impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}
