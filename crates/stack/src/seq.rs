//! Sequence numbers: 32 bits that wrap (RFC 9293 §3.4).
//!
//! There is no `Ord`: `a < b` is a question about a window, not about two numbers, and it is not
//! transitive. Ask [`SeqNum::before`] and its kin about numbers less than 2^31 apart.

use core::ops::{Add, AddAssign, Sub};

/// A sequence number, or an acknowledgment number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// `self` is earlier than `other`.
    #[must_use]
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// `self` is earlier than `other`, or the same.
    #[must_use]
    #[inline]
    pub const fn at_or_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) <= 0
    }

    /// `self` is later than `other`.
    #[must_use]
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// `self` is later than `other`, or the same.
    #[must_use]
    #[inline]
    pub const fn at_or_after(self, other: Self) -> bool {
        other.at_or_before(self)
    }

    /// How far `self` is behind `earlier`, in sequence space.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The later of two.
    #[must_use]
    #[inline]
    pub const fn later(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two.
    #[must_use]
    #[inline]
    pub const fn earlier(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }

    /// `self` lies in the `len` numbers from `start` on.
    #[must_use]
    #[inline]
    pub const fn within(self, start: Self, len: u32) -> bool {
        self.since(start) < len
    }
}

impl Add<u32> for SeqNum {
    type Output = Self;

    #[inline]
    fn add(self, by: u32) -> Self {
        Self(self.0.wrapping_add(by))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, by: u32) {
        *self = *self + by;
    }
}

impl Sub<u32> for SeqNum {
    type Output = Self;

    #[inline]
    fn sub(self, by: u32) -> Self {
        Self(self.0.wrapping_sub(by))
    }
}

/// The sequence numbers from `start` up to, and without, `end`: a SACK block on the wire (RFC 2018
/// §3), a segment sent, a piece that waits out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqRange {
    /// The first number inside.
    pub start: SeqNum,
    /// The first number behind.
    pub end: SeqNum,
}

impl SeqRange {
    /// `len` numbers from `start` on; `len` is below 2^31.
    #[must_use]
    #[inline]
    pub const fn new(start: SeqNum, len: u32) -> Self {
        Self { start, end: SeqNum(start.0.wrapping_add(len)) }
    }

    /// How many numbers it covers. Meaningless where `end` is before `start`: ask
    /// [`SeqRange::is_empty`] about a range that a peer sent.
    #[must_use]
    #[inline]
    pub const fn len(self) -> u32 {
        self.end.since(self.start)
    }

    /// It covers nothing, or is inside out.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.end.at_or_before(self.start)
    }

    /// All of `other` lies inside.
    #[must_use]
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.start.at_or_before(other.start) && other.end.at_or_before(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_survives_the_wrap() {
        let range = SeqRange::new(SeqNum(u32::MAX - 1), 4);
        assert_eq!((range.end, range.len()), (SeqNum(2), 4));
        assert!(range.covers(SeqRange::new(SeqNum(0), 2)));
        assert!(!range.covers(SeqRange::new(SeqNum(0), 3)));
        assert!(SeqRange { start: range.end, end: range.start }.is_empty());
        assert!(SeqRange::new(range.start, 0).is_empty());
    }

    #[test]
    fn order_survives_the_wrap() {
        let end = SeqNum(u32::MAX);
        assert!(end.before(end + 1));
        assert!((end + 1).after(end));
        assert_eq!((end + 5).since(end), 5);
        assert_eq!(end.later(end + 3), end + 3);
        assert!((end + 2).within(end, 3));
        assert!(!(end + 3).within(end, 3));
    }
}
