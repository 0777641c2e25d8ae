//! The flag that says whether the other end sleeps: its atomics, without the descriptor.
//!
//! Read first: `doorbell.rs` for the picture.
//!
//! The two sequentially consistent fences below pair with each other, and one of them comes first.
//! If the sleeper's does, the ringer's load of the flag sees that it is set. If the ringer's does,
//! the sleeper's second look at the ring sees what was published before it. So never both: a ringer
//! that does not ring, and a sleeper that sleeps.
//!
//! Any value but 0 and [`ENDED`] counts as set, and names where the sleeper sleeps. The other end
//! may write what it likes there: at worst it is rung in vain or not rung, and both are its own
//! loss.

use crate::atomics::{AtomicU32, Ordering, fence};

/// The sleeper polls a descriptor.
pub(crate) const AT_DESCRIPTOR: u32 = 1;
/// It sleeps on the flag itself, a futex(2).
pub(crate) const AT_FLAG: u32 = 2;
/// The sleeper polls a descriptor, for a short time: what it is not rung for it finds afterwards.
pub(crate) const BRIEFLY: u32 = 3;
/// It has ended, and sleeps no more.
pub(crate) const ENDED: u32 = u32::MAX;

/// Before the last look at the ring: from now on we want to be rung, there.
#[inline]
pub(crate) fn arm(flag: &AtomicU32, place: u32) {
    // Relaxed: the fence orders it before the look at the ring that follows.
    flag.store(place, Ordering::Relaxed);
    // With the fence in `take_wish`.
    fence(Ordering::SeqCst);
}

/// There was something after all, or we have woken.
#[inline]
pub(crate) fn disarm(flag: &AtomicU32) {
    // Relaxed: a ringer that still sees the old value rings in vain, and that is all.
    flag.store(0, Ordering::Relaxed);
}

/// The sleeper ends: what it has published before is seen by a ringer that sees this.
pub(crate) fn end(flag: &AtomicU32) {
    flag.store(ENDED, Ordering::Release);
}

/// The sleeper has ended.
#[inline]
pub(crate) fn has_ended(flag: &AtomicU32) -> bool {
    // Acquire: with the store in `end`.
    flag.load(Ordering::Acquire) == ENDED
}

/// After publishing: where to ring now, which the caller then must. Takes the wish back, so that
/// one ring answers it.
#[inline]
pub(crate) fn take_wish(flag: &AtomicU32) -> Option<u32> {
    take_wish_unless(flag, || false)
}

/// As [`take_wish`]. A sleeper that sleeps [`BRIEFLY`] is left alone if `may_wait` says so.
#[inline]
pub(crate) fn take_wish_unless(flag: &AtomicU32, may_wait: impl FnOnce() -> bool) -> Option<u32> {
    // With the fence in `arm`: what was published is before it, the load of the flag after.
    fence(Ordering::SeqCst);
    // Relaxed: the fence orders it. While no end sleeps the line stays shared between the cores.
    let seen = flag.load(Ordering::Relaxed);
    if seen == 0 || seen == ENDED || seen == BRIEFLY && may_wait() {
        return None;
    }
    // Relaxed: a later wish than the one that was seen is answered by the ring that follows, at the
    // place that it names. What carries the ring orders this before the sleeper's next wish.
    match flag.swap(0, Ordering::Relaxed) {
        // It was taken back meanwhile: a ring in vain.
        0 => Some(seen),
        // It ended meanwhile, and stays so.
        ENDED => {
            end(flag);
            None
        }
        place => Some(place),
    }
}

/// Where the other end sleeps, or is about to; a reader of it has armed a flag of its own
/// before, so that of two that do so one sees the other, or is inside a lock that the sleeper comes
/// to after arming.
#[inline]
pub(crate) fn wish(flag: &AtomicU32) -> u32 {
    // Relaxed: the fence in `arm` of the caller's own flag orders it, or the lock does.
    flag.load(Ordering::Relaxed)
}

#[cfg(all(test, loom))]
mod models;
