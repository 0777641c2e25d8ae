//! A lock that the child of a fork can take over.
//!
//! Read first: futex(2); pthread_atfork(3).
//!
//! The thread that forks holds the lock during the fork, so the state is consistent in the child,
//! where that thread alone exists. Then both processes release it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// A thread may sleep until it is free.
const AWAITED: u32 = 2;

/// A value behind a lock.
pub(crate) struct StateLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `lock` gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for StateLock<T> {}

/// The lock is held until this is dropped.
pub(crate) struct StateGuard<'a, T>(&'a StateLock<T>);

impl<T> StateLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> StateGuard<'_, T> {
        self.take();
        StateGuard(self)
    }

    /// Takes the lock without a guard, for [`StateLock::release`].
    pub(crate) fn take(&self) {
        let free = self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
        while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
            // It returns at once if the word has changed; errors are retried.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    /// Releases the lock that this thread has taken, in this process or before a fork.
    pub(crate) fn release(&self) {
        if self.word.swap(FREE, Ordering::Release) == AWAITED {
            // It fails only for wrong arguments.
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }
}

impl<T> Drop for StateGuard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl<T> Deref for StateGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread alone has the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for StateGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        static VALUE: StateLock<u64> = StateLock::new(0);
        let add = || (0..10_000).for_each(|_| *VALUE.lock() += 1);
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(add))));
        assert_eq!(*VALUE.lock(), 40_000);
    }
}
