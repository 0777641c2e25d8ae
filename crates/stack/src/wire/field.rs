//! Reading and writing numbers in network order.
//!
//! Invariant: the readers are total. A `View` has checked its lengths, so a field that is not
//! there cannot happen; the zero that is answered then keeps a mistake of ours from being a panic
//! that a peer can cause.

/// The byte at `at`.
#[inline]
pub(super) fn u8_at(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// The 16 bits at `at`.
#[inline]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array_at(bytes, at).map_or(0, u16::from_be_bytes)
}

/// The 32 bits at `at`.
#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array_at(bytes, at).map_or(0, u32::from_be_bytes)
}

/// `N` bytes at `at`; `None`: they are not all there.
#[inline]
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Bytes from `from` on; none if there are none.
#[inline]
pub(super) fn rest(bytes: &[u8], from: usize) -> &[u8] {
    bytes.get(from..).unwrap_or_default()
}

/// Writes 16 bits at `at`.
#[inline]
pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes 32 bits at `at`.
#[inline]
pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
