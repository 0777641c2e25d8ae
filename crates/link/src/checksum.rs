//! The Internet checksum (RFC 1071), apart from the stack's own.
//!
//! Links fill in with it what was left to them, and tools check the stack by it.
//!
//! Pure: bytes in, sums out.

/// Adds `bytes`, taken as big-endian halves, the last one padded with zero, to a running sum.
/// Every part but the last must have an even length.
#[must_use]
pub fn sum(start: u32, bytes: &[u8]) -> u32 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let whole =
        pairs.iter().fold(u64::from(start), |sum, pair| sum + u64::from(u16::from_be_bytes(*pair)));
    let whole = whole + last.first().map_or(0, |byte| u64::from(*byte) << 8);
    // At most 64 KiB of halves: two folds leave less than 2^17.
    let folded = (whole & 0xffff) + (whole >> 16 & 0xffff) + (whole >> 32);
    folded as u32
}

/// Folds a running sum into 16 bits. The checksum is its complement.
#[must_use]
pub fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 1071 §3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(0, &bytes)), 0xddf2);
        assert_eq!(fold(sum(sum(0, &bytes[..4]), &bytes[4..])), 0xddf2);
    }

    #[test]
    fn an_odd_byte_is_the_upper_half() {
        assert_eq!(fold(sum(0, &[0x12])), 0x1200);
        assert_eq!(fold(sum(0, &[0xff; 65_535])), 0xff00);
    }
}
