//! Where each end of a ring stands: the index arithmetic and its atomics, without the memory.
//!
//! Read first: `ring.rs` for the picture. The two indices are free-running 32-bit counts of records
//! ever released (`head`) and ever published (`tail`); the record of a count lies in the slot
//! `count & (entries - 1)`.
//!
//! Invariants
//! - An end never reads its own index back from shared memory: what it relies on is private.
//! - The other end's index is believed only when it moved forward from what was last believed, and
//!   no further than it may: `head <= tail <= head + entries`, all differences modulo 2^32. So no
//!   slot is written before it was released, nor read before it was published, and what a cursor
//!   answers is always between 0 and `entries`.
//! - After a fault nothing more is believed: each later call answers the same fault.

use crate::atomics::{AtomicU32, Ordering};

/// An index in shared memory that no honest other end would have written. The session with that end
/// is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The consumer claims to have released records that were not published, or takes back that it
    /// released some.
    #[error("the consumer's head {value:#x} is not within {last:#x} to {end:#x}")]
    Head {
        /// What it wrote.
        value: u32,
        /// The last that was believed.
        last: u32,
        /// The furthest that it may be.
        end: u32,
    },
    /// The producer claims to have published more than the ring holds, or takes back what it
    /// published.
    #[error("the producer's tail {value:#x} is not within {last:#x} to {end:#x}")]
    Tail {
        /// What it wrote.
        value: u32,
        /// The last that was believed.
        last: u32,
        /// The furthest that it may be.
        end: u32,
    },
}

/// Whether `value` lies on the way from `last` to `end`.
#[inline]
fn is_between(last: u32, value: u32, end: u32) -> bool {
    value.wrapping_sub(last) <= end.wrapping_sub(last)
}

/// The producer's end.
#[derive(Debug)]
pub(crate) struct ProducerCursor {
    entries: u32,
    /// Records put into slots, published or not.
    staged: u32,
    /// Records published: the `tail` that was last stored.
    published: u32,
    /// The other end's `head`, as last believed.
    released: u32,
    fault: Option<RingFault>,
}

impl ProducerCursor {
    /// An end of a fresh ring of `entries`, a power of two.
    pub(crate) const fn new(entries: u32) -> Self {
        Self { entries, staged: 0, published: 0, released: 0, fault: None }
    }

    /// Slots of the ring.
    #[inline]
    pub(crate) const fn entries(&self) -> u32 {
        self.entries
    }

    /// Free slots: looks at the other end's index only if there are fewer than `want`.
    #[inline]
    pub(crate) fn room(&mut self, want: u32, head: &AtomicU32) -> Result<u32, RingFault> {
        let known = self.entries - self.staged.wrapping_sub(self.released);
        if known >= want && self.fault.is_none() {
            return Ok(known);
        }
        self.look(head)
    }

    fn look(&mut self, head: &AtomicU32) -> Result<u32, RingFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        // Acquire, with the Release store of `head` in `ConsumerCursor::release`: the consumer's
        // loads from the slots that it released come before our stores into them.
        let value = head.load(Ordering::Acquire);
        if !is_between(self.released, value, self.published) {
            let fault = RingFault::Head { value, last: self.released, end: self.published };
            self.fault = Some(fault);
            return Err(fault);
        }
        self.released = value;
        Ok(self.entries - self.staged.wrapping_sub(value))
    }

    /// The slot for the next record; `None` if as far as is known all are taken.
    #[inline]
    pub(crate) fn stage(&mut self) -> Option<u32> {
        if self.staged.wrapping_sub(self.released) == self.entries || self.fault.is_some() {
            return None;
        }
        let slot = self.staged & (self.entries - 1);
        self.staged = self.staged.wrapping_add(1);
        Some(slot)
    }

    /// The slot that will be `ahead` after the next one, whosever it is now.
    #[inline]
    pub(crate) fn slot_after(&self, ahead: u32) -> u32 {
        self.staged.wrapping_add(ahead) & (self.entries - 1)
    }

    /// The slot of the oldest record that was staged and, as far as is known, not released.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.staged != self.released).then_some(self.released & (self.entries - 1))
    }

    /// The slots of all records that were staged and are not released, oldest first.
    ///
    /// # Errors
    /// [`RingFault`]: the consumer's fault.
    pub(crate) fn unreleased(
        &mut self,
        head: &AtomicU32,
    ) -> Result<impl Iterator<Item = u32> + use<>, RingFault> {
        self.room(self.entries, head)?;
        let (first, mask) = (self.released, self.entries - 1);
        let count = self.staged.wrapping_sub(first);
        Ok((0..count).map(move |place| first.wrapping_add(place) & mask))
    }

    /// Publishes all that was staged; how many records that were.
    #[inline]
    pub(crate) fn commit(&mut self, tail: &AtomicU32) -> u32 {
        let count = self.staged.wrapping_sub(self.published);
        if count > 0 {
            self.published = self.staged;
            // Release, with the Acquire load of `tail` in `ConsumerCursor::look`: our stores into
            // the slots come before the consumer's loads from them.
            tail.store(self.published, Ordering::Release);
        }
        count
    }
}

/// The consumer's end.
#[derive(Debug)]
pub(crate) struct ConsumerCursor {
    entries: u32,
    /// Records taken out of slots, released or not.
    taken: u32,
    /// Records released: the `head` that was last stored.
    released: u32,
    /// The other end's `tail`, as last believed.
    published: u32,
    fault: Option<RingFault>,
}

impl ConsumerCursor {
    /// An end of a fresh ring of `entries`, a power of two.
    pub(crate) const fn new(entries: u32) -> Self {
        Self { entries, taken: 0, released: 0, published: 0, fault: None }
    }

    /// Slots of the ring.
    #[inline]
    pub(crate) const fn entries(&self) -> u32 {
        self.entries
    }

    /// Records to take: looks at the other end's index only if there are fewer than `want`.
    #[inline]
    pub(crate) fn waiting(&mut self, want: u32, tail: &AtomicU32) -> Result<u32, RingFault> {
        let known = self.published.wrapping_sub(self.taken);
        if known >= want && self.fault.is_none() {
            return Ok(known);
        }
        self.look(tail)
    }

    fn look(&mut self, tail: &AtomicU32) -> Result<u32, RingFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        // Acquire, with the Release store of `tail` in `ProducerCursor::commit`: the producer's
        // stores into the slots that it published come before our loads from them.
        let value = tail.load(Ordering::Acquire);
        let end = self.released.wrapping_add(self.entries);
        if !is_between(self.published, value, end) {
            let fault = RingFault::Tail { value, last: self.published, end };
            self.fault = Some(fault);
            return Err(fault);
        }
        self.published = value;
        Ok(value.wrapping_sub(self.taken))
    }

    /// The slot of the next record; `None` if as far as is known there is none.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.take_most(1).next()
    }

    /// The slots of the next records, in order: as many as are known, but `most` at most.
    #[inline]
    pub(crate) fn take_most(&mut self, most: usize) -> impl ExactSizeIterator<Item = u32> + use<> {
        let known = self.published.wrapping_sub(self.taken);
        let known = if self.fault.is_some() { 0 } else { known };
        let count = u32::try_from(most).map_or(known, |most| known.min(most));
        let (first, mask) = (self.taken, self.entries - 1);
        self.taken = first.wrapping_add(count);
        (0..count).map(move |ahead| first.wrapping_add(ahead) & mask)
    }

    /// Gives all taken slots back; how many that were.
    #[inline]
    pub(crate) fn release(&mut self, head: &AtomicU32) -> u32 {
        let count = self.taken.wrapping_sub(self.released);
        if count > 0 {
            self.released = self.taken;
            // Release, with the Acquire load of `head` in `ProducerCursor::look`: our loads from
            // the slots come before the producer's next stores into them.
            head.store(self.released, Ordering::Release);
        }
        count
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
