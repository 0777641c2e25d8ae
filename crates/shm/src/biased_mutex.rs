//! A mutex that is biased to the thread with most entries, which needs no locked instruction.
//!
//! ```text
//!  biased thread                          another thread
//!  seat = inside                          locks the inner mutex
//!  (order kept by the compiler)           bias = none; membarrier(2)
//!  bias still its own ?  enters           seat inside ?  waits
//!   else: locks the inner mutex           ... uses the value ...
//!  ... uses the value ...                 bias = as before
//!  seat = outside                         unlocks the inner mutex
//! ```
//!
//! For a value that any thread may use and one thread uses most of the time, such as the sockets of
//! a program with one worker. Where several threads enter alternately, the inner mutex is used and
//! there is no bias.
//!
//! Read first: `bias.rs` for mutual exclusion; `biased_cell.rs` for two threads known in advance.
//!
//! Invariants
//! - One thread uses the value at a time: the biased thread, or the thread that has the inner mutex
//!   and has revoked the bias.
//! - A thread gets the bias after [`GRANT_AFTER`] entries without an entry of another thread, so
//!   the bias moves at most once in so many entries.
//! - The bias ends if another thread enters after fewer than [`KEEP_AFTER`] entries of the biased
//!   thread: the barrier would cost more than the bias saves.
//! - Without membarrier(2) (before Linux 4.14, or forbidden) there is no bias.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::bias::{Bias, UNBIASED};
use crate::biased_cell::wait_while;
use crate::biased_lock::Barrier;
use crate::thread_binding::thread_pointer;

/// Consecutive entries of one thread after which it gets the bias.
const GRANT_AFTER: u32 = 1024;
/// Least entries of the biased thread between two entries of others. With fewer, the bias ends.
const KEEP_AFTER: u32 = 256;
/// Pause in place of a barrier that the kernel refuses. The biased thread's store has left its core
/// by then, or the thread was preempted, which is a barrier.
const REFUSED_BARRIER_PAUSE: Duration = Duration::from_millis(10);

/// A mutex that is biased to one thread.
///
/// A panic while the mutex is locked does not poison it.
///
/// ```
/// let count = std::sync::Arc::new(megapipe_shm::BiasedMutex::new(0));
/// let other = std::sync::Arc::clone(&count);
/// let thread = std::thread::spawn(move || *other.lock() += 1);
/// *count.lock() += 1;
/// thread.join().expect("it does not panic");
/// assert_eq!(*count.lock(), 2);
/// ```
pub struct BiasedMutex<T> {
    bias: Bias,
    others: Mutex<EntryHistory>,
    /// Whether membarrier(2) works.
    has_barrier: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: a reference to the value exists only while a guard exists, and `Bias` with the inner
// mutex allows one guard at a time (`bias/models.rs`). So `T` moves between threads, which `Send`
// allows.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

/// History of the inner mutex's entries.
#[derive(Debug, Default)]
struct EntryHistory {
    /// Thread of the last entry, and number of its consecutive entries.
    last: usize,
    in_a_row: u32,
    /// Entries of the biased thread at the last entry of another thread.
    entries: u32,
}

/// Exclusive access to the value of a [`BiasedMutex`], until it is dropped.
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    way: EntryWay<'a>,
}

/// How the guard's thread entered.
enum EntryWay<'a> {
    /// As the biased thread, by its seat.
    Biased(u32),
    /// By the inner mutex. The thread of this seat gets the bias afterwards.
    Inner(#[expect(dead_code, reason = "unlocked by its drop")] MutexGuard<'a, EntryHistory>, u32),
}

impl<T> BiasedMutex<T> {
    /// Creates a mutex without a bias.
    pub fn new(value: T) -> Self {
        // A process registers once; a second registration has no effect.
        let is_registered = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Self {
            bias: Bias::new(),
            others: Mutex::default(),
            has_barrier: AtomicBool::new(is_registered),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the mutex. Blocks while another thread has it.
    ///
    /// # Panics
    /// If the calling thread has the mutex and the bias. Without the bias, a second lock deadlocks.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        let thread = thread_pointer();
        match self.bias.try_enter(thread, Barrier::Revokers) {
            Some(seat) => BiasedGuard { mutex: self, way: EntryWay::Biased(seat) },
            None => self.lock_inner(thread),
        }
    }

    /// As [`BiasedMutex::lock`]; `None` if another thread has the inner mutex. Waits for a biased
    /// thread that is inside.
    pub fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        let thread = thread_pointer();
        if let Some(seat) = self.bias.try_enter(thread, Barrier::Revokers) {
            return Some(BiasedGuard { mutex: self, way: EntryWay::Biased(seat) });
        }
        match self.others.try_lock() {
            Ok(record) => Some(self.enter_with(record, thread)),
            Err(TryLockError::Poisoned(record)) => {
                Some(self.enter_with(record.into_inner(), thread))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline(never)]
    fn lock_inner(&self, thread: usize) -> BiasedGuard<'_, T> {
        let record = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        self.enter_with(record, thread)
    }

    /// Enters with the inner mutex locked.
    fn enter_with<'a>(
        &'a self,
        mut record: MutexGuard<'a, EntryHistory>,
        thread: usize,
    ) -> BiasedGuard<'a, T> {
        // The bias cannot be revoked while this thread has the inner mutex.
        if let Some(seat) = self.bias.try_enter(thread, Barrier::Revokers) {
            return BiasedGuard { mutex: self, way: EntryWay::Biased(seat) };
        }
        let next = match self.bias.holder() {
            UNBIASED => self.seat_to_grant(&mut record, thread),
            holder => self.revoke(&mut record, holder),
        };
        BiasedGuard { mutex: self, way: EntryWay::Inner(record, next) }
    }

    /// Returns the seat that gets the bias after an entry without a bias.
    fn seat_to_grant(&self, record: &mut EntryHistory, thread: usize) -> u32 {
        let in_a_row = if record.last == thread { record.in_a_row + 1 } else { 1 };
        (record.last, record.in_a_row) = (thread, in_a_row);
        if in_a_row < GRANT_AFTER || !self.has_barrier.load(Ordering::Relaxed) {
            return UNBIASED;
        }
        record.in_a_row = 0;
        let seat = self.bias.seat_of(thread);
        record.entries = self.bias.entries(seat);
        seat
    }

    /// Revokes the bias of a seat. Returns the seat that gets the bias afterwards.
    #[cold]
    fn revoke(&self, record: &mut EntryHistory, holder: u32) -> u32 {
        self.bias.revoke();
        if membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // Out of memory, or a filter (seccomp(2)) was installed after the mutex was created.
            self.has_barrier.store(false, Ordering::Relaxed);
            std::thread::sleep(REFUSED_BARRIER_PAUSE);
        }
        wait_while(|| !self.bias.is_out(holder));
        let entries = self.bias.entries(holder);
        let since = entries.wrapping_sub(record.entries) & (u32::MAX / 2);
        record.entries = entries;
        let stays = since >= KEEP_AFTER && self.has_barrier.load(Ordering::Relaxed);
        if stays { holder } else { UNBIASED }
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: one guard exists at a time, by the first invariant of this module.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard is borrowed mutably, so there is one reference.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match &self.way {
            EntryWay::Biased(seat) => self.mutex.bias.exit(*seat),
            // The inner mutex is unlocked when the fields are dropped, after this.
            EntryWay::Inner(_, next) => self.mutex.bias.grant(*next),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn is_biased(mutex: &BiasedMutex<u64>) -> bool {
        matches!(mutex.lock().way, EntryWay::Biased(_))
    }

    fn enter(mutex: &BiasedMutex<u64>, times: u32) {
        for _ in 0..times {
            *mutex.lock() += 1;
        }
    }

    fn elsewhere(mutex: &Arc<BiasedMutex<u64>>, times: u32) {
        let mutex = Arc::clone(mutex);
        let thread = std::thread::spawn(move || enter(&mutex, times));
        thread.join().expect("the thread does not panic");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
    fn a_thread_that_enters_often_is_biased() {
        let mutex = Arc::new(BiasedMutex::new(0));
        if !mutex.has_barrier.load(Ordering::Relaxed) {
            return eprintln!("skipped: no membarrier(2)");
        }
        enter(&mutex, GRANT_AFTER - 1);
        assert!(!is_biased(&mutex), "this entry is the last without the bias");
        assert!(is_biased(&mutex));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
    fn bias_survives_rare_entries_of_other_threads_only() {
        let mutex = Arc::new(BiasedMutex::new(0));
        enter(&mutex, GRANT_AFTER + KEEP_AFTER);
        if !mutex.has_barrier.load(Ordering::Relaxed) {
            return eprintln!("skipped: no membarrier(2)");
        }
        elsewhere(&mutex, 1);
        assert!(is_biased(&mutex));
        elsewhere(&mutex, 1);
        assert!(!is_biased(&mutex));
        elsewhere(&mutex, GRANT_AFTER + 1);
        assert!(!is_biased(&mutex), "the other thread had the bias, and this entry ends it");
        let entries = u64::from(GRANT_AFTER + KEEP_AFTER + GRANT_AFTER + 3);
        assert_eq!(*mutex.lock(), entries);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
    fn concurrent_entries_lose_no_change() {
        const TIMES: u32 = 20_000;
        let mutex = Arc::new(BiasedMutex::new(0));
        let threads = [1, 7, 700].map(|pause| {
            let mutex = Arc::clone(&mutex);
            std::thread::spawn(move || {
                for turn in 0..TIMES / pause {
                    enter(&mutex, 1);
                    if turn % 50 == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        });
        for thread in threads {
            thread.join().expect("the thread does not panic");
        }
        assert_eq!(*mutex.lock(), [1, 7, 700].map(|pause| u64::from(TIMES / pause)).iter().sum());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
    fn panic_while_locked_does_not_poison() {
        let mutex = Arc::new(BiasedMutex::new(0));
        let theirs = Arc::clone(&mutex);
        let thread = std::thread::spawn(move || {
            enter(&theirs, GRANT_AFTER + 1);
            let _guard = theirs.lock();
            panic!("inside");
        });
        thread.join().expect_err("it panics");
        assert!(mutex.try_lock().is_some());
    }
}
