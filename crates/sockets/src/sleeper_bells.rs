//! What the threads of a shared context sleep on: a futex each, and an eventfd for the leader.
//!
//! Read first: `shared_context.rs`.
//!
//! Bells lie in blocks that stay where they are and are never freed, so that a thread sleeps on one
//! without the context's lock, and a call that waits allocates only where more calls wait than ever
//! before.
//!
//! Invariant: bell `n` is the sleeper's with index `n`, and exists before that sleeper does. A ring
//! that its last owner did not take wakes the next one once more than needed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::error::Error;
use crate::kernel;
use crate::signal::SignalMask;

/// Brings the leader back from the kernel. The leader alone polls it: what the lookout shows may be
/// taken by a poll of another thread before the leader has seen it, and then poll(2) sleeps on.
pub(crate) struct Recall {
    pub(crate) counter: OwnedFd,
    is_rung: AtomicBool,
}

impl Recall {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { counter: counter()?, is_rung: AtomicBool::new(false) })
    }

    /// Under the lock, while a thread leads.
    pub(crate) fn ring(&self) {
        // The lock orders it.
        if !self.is_rung.swap(true, Ordering::Relaxed) {
            // It fails only where it is readable already.
            let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
        }
    }

    /// By the leader, under the lock: it is back.
    pub(crate) fn clear(&self) {
        if self.is_rung.swap(false, Ordering::Relaxed) {
            // It does not fail: the bell was rung.
            let _ = rustix::io::read(&self.counter, &mut [0; 8]);
        }
    }
}

fn counter() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// What one sleeper sleeps on: a condition variable that a signal interrupts.
#[derive(Default)]
pub(crate) struct SleeperBell {
    rings: AtomicU32,
    /// What a sleeper with a mask sleeps on, because futex(2) takes none: readable after a ring.
    counter: OnceLock<OwnedFd>,
}

impl SleeperBell {
    /// `has_mask`: the sleeper sleeps with a mask.
    pub(crate) fn ring(&self, has_mask: bool) {
        // Under the lock, which orders it: a reader of the count has seen what happened before.
        self.rings.fetch_add(1, Ordering::Relaxed);
        match self.counter.get() {
            // It fails only where it is readable already.
            Some(counter) if has_mask => drop(rustix::io::write(counter, &1_u64.to_ne_bytes())),
            // It fails only for wrong arguments.
            _ => drop(futex::wake(&self.rings, futex::Flags::PRIVATE, 1)),
        }
    }

    /// The number of rings so far; under the lock, before a sleep.
    pub(crate) fn rings(&self) -> u32 {
        self.rings.load(Ordering::Relaxed)
    }

    /// Sleeps, without the lock, until the bell rings again, at most `patience`. Returns whether a
    /// signal ended it.
    pub(crate) fn sleep(&self, rings: u32, patience: Option<Duration>) -> bool {
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let slept = futex::wait(&self.rings, futex::Flags::PRIVATE, rings, timeout.as_ref());
        slept == Err(Errno::INTR)
    }

    /// As [`SleeperBell::sleep`], with other signals blocked meanwhile.
    pub(crate) fn sleep_with_mask(&self, patience: Option<Duration>, mask: SignalMask) -> bool {
        let Some(counter) = self.counter.get() else { return false };
        // It fails only for wrong arguments.
        let has_signal = kernel::sleep([counter.as_fd()], patience, Some(mask));
        // Rings that were heard are counted once.
        let _ = rustix::io::read(counter, &mut [0; 8]);
        has_signal.unwrap_or(false)
    }
}

/// Bells of the first block; each further block has twice as many as the one before.
const FIRST_BELLS: usize = 16;
const BLOCKS: usize = 24;

/// The bells of all sleepers, and that of the leader.
pub(crate) struct SleeperBells {
    pub(crate) recall: Recall,
    blocks: [OnceLock<Box<[SleeperBell]>>; BLOCKS],
}

impl SleeperBells {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { recall: Recall::new()?, blocks: [const { OnceLock::new() }; BLOCKS] })
    }

    /// The block of a bell, and its place there.
    const fn place(sleeper: u32) -> (usize, usize) {
        let number = sleeper as usize + FIRST_BELLS;
        let block = (number / FIRST_BELLS).ilog2();
        (block as usize, number - (FIRST_BELLS << block))
    }

    pub(crate) fn get(&self, sleeper: u32) -> Option<&SleeperBell> {
        let (block, place) = Self::place(sleeper);
        self.blocks.get(block)?.get()?.get(place)
    }

    /// Makes the bell of a sleeper that sleeps with a mask, or without one; under the lock.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; as eventfd(2).
    pub(crate) fn prepare(&self, sleeper: u32, mask: Option<SignalMask>) -> Result<(), Error> {
        let (block, place) = Self::place(sleeper);
        let cell = self.blocks.get(block).ok_or(Error::NoMemory)?;
        if cell.get().is_none() {
            let count = FIRST_BELLS << block;
            let mut bells = Vec::new();
            bells.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
            bells.resize_with(count, SleeperBell::default);
            // Under the lock no other thread makes it.
            let _ = cell.set(bells.into_boxed_slice());
        }
        let bell = cell.get().and_then(|bells| bells.get(place)).ok_or(Error::NoMemory)?;
        if mask.is_some() && bell.counter.get().is_none() {
            let _ = bell.counter.set(counter()?);
        }
        Ok(())
    }

    /// Rings a sleeper's bell.
    pub(crate) fn ring(&self, sleeper: u32, has_mask: bool) {
        if let Some(bell) = self.get(sleeper) {
            bell.ring(has_mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sleeper_has_a_bell_of_its_own() {
        assert_eq!(SleeperBells::place(0), (0, 0));
        assert_eq!(SleeperBells::place(15), (0, 15));
        assert_eq!(SleeperBells::place(16), (1, 0));
        assert_eq!(SleeperBells::place(47), (1, 31));
        assert_eq!(SleeperBells::place(48), (2, 0));
        let bells = SleeperBells::new().unwrap();
        assert!(bells.get(20).is_none());
        bells.prepare(20, None).unwrap();
        let bell = bells.get(20).unwrap();
        let rings = bell.rings();
        bells.ring(20, false);
        assert!(!bell.sleep(rings, None), "it has rung already");
    }
}
