//! The flag that says whether the other end sleeps: its atomics, without the descriptor.
//!
//! Read first: `doorbell.rs` for the picture.
//!
//! The two sequentially consistent fences below pair with each other, and one of them comes first.
//! If the sleeper's does, the ringer's load of the flag sees that it is set. If the ringer's does,
//! the sleeper's second look at the ring sees what was published before it. So never both: a ringer
//! that does not ring, and a sleeper that sleeps.
//!
//! Any value but 0 counts as set. The other end may write what it likes there: at worst it is rung
//! in vain or not rung, and both are its own loss.

use crate::atomics::{AtomicU32, Ordering, fence};

/// Before the last look at the ring: from now on we want to be rung.
#[inline]
pub(crate) fn arm(flag: &AtomicU32) {
    // Relaxed: the fence orders it before the look at the ring that follows.
    flag.store(1, Ordering::Relaxed);
    // With the fence in `is_wanted`.
    fence(Ordering::SeqCst);
}

/// There was something after all, or we have woken.
#[inline]
pub(crate) fn disarm(flag: &AtomicU32) {
    // Relaxed: a ringer that still sees the old value rings in vain, and that is all.
    flag.store(0, Ordering::Relaxed);
}

/// After publishing: whether to ring now, which the caller then must. Takes the wish back, so that
/// one ring answers it.
#[inline]
pub(crate) fn is_wanted(flag: &AtomicU32) -> bool {
    // With the fence in `arm`: what was published is before it, the load of the flag after.
    fence(Ordering::SeqCst);
    // Relaxed: the fence orders it. While nobody sleeps the line stays shared between the cores.
    if flag.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // Relaxed: if this overwrites a later wish than the one that was seen, the ring that follows
    // answers that wish too. The descriptor orders this store before the sleeper's next one.
    flag.store(0, Ordering::Relaxed);
    true
}

#[cfg(all(test, loom))]
mod models;
