//! Who may enter: the flags of a biased lock, without what it guards.
//!
//! Read first: `biased_cell.rs` for the picture.
//!
//! Each side first says what it wants and then looks at what the other says (Dekker). Between the
//! two there has to be a barrier, or both could look before either is seen. The owner's is left out
//! where the revoker makes one for both of them with `membarrier(2)`: a thread that has said
//! "inside" before that call is seen by the look after it, and one that says it later sees
//! "wanted".
//!
//! While the owner is away, it enters nothing before it has come back, which is by a fence of its
//! own; so a revoker that sees it away needs no barrier of the kernel's.

use crate::atomics::{AtomicU32, Ordering, fence};

/// The flags. The owner writes the first three, the revoker the last.
#[derive(Debug)]
pub(crate) struct BiasedLock {
    inside: AtomicU32,
    away: AtomicU32,
    waits: AtomicU32,
    wanted: AtomicU32,
}

/// Whose barrier stands between an owner's word and its look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// The owner's own.
    Own,
    /// The revoker's, by `membarrier(2)`: only the compiler is held.
    #[cfg_attr(loom, expect(dead_code, reason = "loom knows no barrier of the kernel's"))]
    Revokers,
}

impl BiasedLock {
    pub(crate) fn new() -> Self {
        let clear = || AtomicU32::new(0);
        Self { inside: clear(), away: clear(), waits: clear(), wanted: clear() }
    }

    /// The owner goes in; `false`: the revoker is in there or on its way, and the owner stays out.
    #[inline(always)]
    pub(crate) fn try_enter(&self, barrier: Barrier) -> bool {
        // Relaxed: the barrier orders it before the look.
        self.inside.store(1, Ordering::Relaxed);
        match barrier {
            Barrier::Own => fence(Ordering::SeqCst),
            Barrier::Revokers => std::sync::atomic::compiler_fence(Ordering::SeqCst),
        }
        // Acquire: with the release of `give_back`, what the revoker has changed is seen.
        if self.wanted.load(Ordering::Acquire) == 0 {
            return true;
        }
        self.exit();
        false
    }

    /// The owner goes out.
    #[inline(always)]
    pub(crate) fn exit(&self) {
        // Release: with the acquire of `is_free`.
        self.inside.store(0, Ordering::Release);
    }

    /// The owner waits until the revoker has gone, which lets it in before it comes again.
    pub(crate) fn wait(&self, waits: bool) {
        // Relaxed: it is a wish, and nothing depends on when it is seen.
        self.waits.store(waits.into(), Ordering::Relaxed);
    }

    pub(crate) fn owner_waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed) != 0
    }

    /// The owner enters nothing until it has come back.
    pub(crate) fn leave(&self) {
        // Release: what it did inside was before.
        self.away.store(1, Ordering::Release);
    }

    pub(crate) fn come_back(&self) {
        self.away.store(0, Ordering::Relaxed);
        // With the fence in `want`: either the revoker sees that we are back, or we see its wish.
        fence(Ordering::SeqCst);
    }

    /// The revoker wants in. `true`: the owner may be about to enter, and a barrier is needed
    /// before the look at whether it has.
    pub(crate) fn want(&self) -> bool {
        self.wanted.store(1, Ordering::Relaxed);
        // With the fence in `come_back`, or in `try_enter` where that makes one.
        fence(Ordering::SeqCst);
        self.away.load(Ordering::Acquire) == 0
    }

    /// The owner is not inside, and will not be before the revoker has gone.
    pub(crate) fn is_free(&self) -> bool {
        self.inside.load(Ordering::Acquire) == 0
    }

    /// The revoker goes out.
    pub(crate) fn give_back(&self) {
        // Release: with the acquire of `try_enter`.
        self.wanted.store(0, Ordering::Release);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn is_owner_away(&self) -> bool {
        self.away.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, loom))]
mod models;
