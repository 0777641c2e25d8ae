//! A lock that costs its owner next to nothing, and the other thread a system call.
//!
//! ```text
//!  owner                                  revoker
//!  inside = 1                             wanted = 1
//!  (the compiler keeps the order)         membarrier(2), unless the owner is away
//!  wanted ?  out again, wait              inside ?  wait
//!  ... at the value ...                   ... at the value ...
//!  inside = 0                             wanted = 0
//! ```
//!
//! For two threads of which one comes to the value many times in a row, mostly for a moment, and
//! the other seldom and for longer: an application that asks its server for one thing after
//! another, and the server's own turns beside it.
//!
//! Where the kernel has no `membarrier(2)` (before 4.14, or forbidden), the owner makes the barrier
//! itself, each time.
//!
//! Read first: `biased_lock.rs` for why this is enough.
//!
//! Invariants
//! - The owner and the revoker are never both at the value.
//! - A waiter sleeps: on one core, the other thread has to run.
//! - A revoker that comes again lets an owner that waits go first.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::biased_lock::{Barrier, BiasedLock};

/// So often a waiter yields its core before it sleeps.
const YIELDS: u32 = 32;
/// How long it sleeps then, before it looks again: the other one may be the kernel's to wake, or
/// have less of a right to the core than a thread that only yields.
const NAP: Duration = Duration::from_micros(50);

/// What both share.
struct Guarded<T> {
    bias: BiasedLock,
    value: UnsafeCell<T>,
}

// SAFETY: a reference to the value exists only between `try_enter` and `exit` of the one owner, and
// between the end of the revoker's wait and its `give_back`. `BiasedLock` keeps these apart (its
// models show it), and each end is one value that only `&mut` of enters by. So `T` goes from one
// thread to the other and back, which `Send` allows.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// The end that comes often.
pub struct BiasOwner<T> {
    guarded: Arc<Guarded<T>>,
    barrier: Barrier,
    is_away: bool,
}

/// The end that comes seldom.
pub struct Revoker<T> {
    guarded: Arc<Guarded<T>>,
    barrier: Barrier,
}

/// The owner is at the value. To other threads this is no more than `&mut T` is:
///
/// ```compile_fail,E0277
/// let (mut owner, _revoker) = megapipe_shm::biased(std::cell::Cell::new(0));
/// let owned = owner.enter();
/// // Two threads would be at what may be at one only.
/// std::thread::scope(|scope| {
///     scope.spawn(|| owned.set(1));
/// });
/// ```
pub struct Owned<'a, T> {
    guarded: &'a Guarded<T>,
    value: PhantomData<&'a mut T>,
}

/// The revoker is at the value. To other threads this is no more than `&mut T` is:
///
/// ```compile_fail,E0277
/// let (_owner, mut revoker) = megapipe_shm::biased(std::cell::Cell::new(0));
/// let revoked = revoker.enter();
/// std::thread::scope(|scope| {
///     scope.spawn(|| revoked.set(1));
/// });
/// ```
pub struct Revoked<'a, T> {
    guarded: &'a Guarded<T>,
    value: PhantomData<&'a mut T>,
}

/// The two ends of a lock around `value`.
pub fn biased<T: Send>(value: T) -> (BiasOwner<T>, Revoker<T>) {
    // Each process says once that it will want such barriers; again does no harm.
    let barrier = match membarrier(MembarrierCommand::RegisterPrivateExpedited) {
        Ok(()) => Barrier::Revokers,
        Err(_) => Barrier::Own,
    };
    ends(value, barrier)
}

fn ends<T: Send>(value: T, barrier: Barrier) -> (BiasOwner<T>, Revoker<T>) {
    let guarded = Arc::new(Guarded { bias: BiasedLock::new(), value: UnsafeCell::new(value) });
    let revoker = Revoker { guarded: Arc::clone(&guarded), barrier };
    (BiasOwner { guarded, barrier, is_away: false }, revoker)
}

impl<T> BiasOwner<T> {
    /// Goes to the value; waits while the revoker is there.
    #[inline]
    pub fn enter(&mut self) -> Owned<'_, T> {
        if self.is_away || !self.guarded.bias.try_enter(self.barrier) {
            self.enter_late();
        }
        Owned { guarded: &self.guarded, value: PhantomData }
    }

    #[cold]
    fn enter_late(&mut self) {
        let bias = &self.guarded.bias;
        if std::mem::take(&mut self.is_away) {
            bias.come_back();
        }
        if bias.try_enter(self.barrier) {
            return;
        }
        bias.wait(true);
        while !bias.try_enter(self.barrier) {
            wait_while(|| bias.is_wanted());
        }
        bias.wait(false);
    }

    /// Does not enter for a while, which spares the revoker its system calls; the next `enter` ends
    /// it.
    pub fn leave(&mut self) {
        if !self.is_away {
            self.is_away = true;
            self.guarded.bias.leave();
        }
    }
}

impl<T> Revoker<T> {
    /// Goes to the value; waits while the owner is there.
    pub fn enter(&mut self) -> Revoked<'_, T> {
        let bias = &self.guarded.bias;
        wait_while(|| {
            wait_while(|| bias.owner_waits() && !bias.is_owner_away());
            let is_safe = !bias.want() || self.make_barrier();
            if !is_safe {
                // The owner may be inside, and not be seen there.
                bias.give_back();
            }
            !is_safe
        });
        wait_while(|| !bias.is_free());
        Revoked { guarded: &self.guarded, value: PhantomData }
    }

    /// Where that is the revoker's. `false`: the kernel has no memory now, or has been told by a
    /// filter of the process's (seccomp(2)) to refuse what it allowed when the lock was made. The
    /// revoker gets in while the owner is away.
    fn make_barrier(&self) -> bool {
        self.barrier == Barrier::Own || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    /// The owner enters nothing now.
    #[must_use]
    pub fn is_owner_away(&self) -> bool {
        self.guarded.bias.is_owner_away()
    }
}

pub(crate) fn wait_while(mut is_so: impl FnMut() -> bool) {
    let mut yields = 0;
    while is_so() {
        if yields < YIELDS {
            yields += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }
}

impl<T> Deref for Owned<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the owner is inside until this guard is dropped, and alone there; the guard
        // borrows the owner's end mutably, so there is one guard.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Owned<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard is borrowed mutably, so there is one reference.
        unsafe { &mut *self.guarded.value.get() }
    }
}

impl<T> Drop for Owned<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.guarded.bias.exit();
    }
}

impl<T> Deref for Revoked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the revoker has waited until the owner was out, which stays out until this guard
        // is dropped; the guard borrows the revoker's end mutably, so there is one guard.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Revoked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard is borrowed mutably, so there is one reference.
        unsafe { &mut *self.guarded.value.get() }
    }
}

impl<T> Drop for Revoked<'_, T> {
    fn drop(&mut self) {
        self.guarded.bias.give_back();
    }
}

#[cfg(test)]
mod tests;
