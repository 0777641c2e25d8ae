//! Loom models: mutual exclusion of three threads, and visibility of their changes.
//!
//! The inner mutex is loom's. The steps are those of `biased_mutex.rs`, with the biased thread's
//! own fence in place of the kernel's barrier.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;

struct ModelMutex {
    bias: Bias,
    others: Mutex<()>,
    /// Loom fails a model in which two threads are at it at once, or one does not see the other's
    /// change.
    value: UnsafeCell<u32>,
}

// SAFETY: a thread that is inside is alone with the value, which is what the models check.
unsafe impl Sync for ModelMutex {}

/// What a thread that has the inner mutex does with the bias when it leaves.
#[derive(Clone, Copy)]
enum BiasAfter {
    /// The same thread has it again.
    Kept,
    /// No thread has it.
    Ended,
    /// The leaving thread has it.
    Own,
}

impl ModelMutex {
    fn biased_to(thread: usize) -> Arc<Self> {
        let (bias, others, value) = (Bias::new(), Mutex::new(()), UnsafeCell::new(0));
        bias.grant(bias.seat_of(thread));
        Arc::new(Self { bias, others, value })
    }

    fn add_one(&self) -> u32 {
        self.value.with_mut(|value| {
            // SAFETY: called by the thread that is inside.
            unsafe {
                *value += 1;
                *value
            }
        })
    }

    /// One entry of a thread.
    fn enter(&self, thread: usize, after: BiasAfter) {
        if let Some(seat) = self.bias.try_enter(thread, Barrier::Own) {
            self.add_one();
            self.bias.exit(seat);
            return;
        }
        let guard = self.others.lock().expect("no assertion failed");
        if let Some(seat) = self.bias.try_enter(thread, Barrier::Own) {
            drop(guard);
            self.add_one();
            self.bias.exit(seat);
            return;
        }
        let holder = self.bias.holder();
        if holder != UNBIASED {
            self.bias.revoke();
            while !self.bias.is_out(holder) {
                thread::yield_now();
            }
        }
        self.add_one();
        match after {
            BiasAfter::Kept => self.bias.grant(holder),
            BiasAfter::Ended => self.bias.grant(UNBIASED),
            BiasAfter::Own => self.bias.grant(self.bias.seat_of(thread)),
        }
        drop(guard);
    }
}

/// The mutex is biased to thread 1; threads 2 and 3 enter and leave the bias like this.
fn three_threads(second: BiasAfter, third: BiasAfter) {
    let mut model = loom::model::Builder::new();
    // All interleavings of three threads with a mutex are too many.
    model.preemption_bound = Some(3);
    model.check(move || {
        let mutex = ModelMutex::biased_to(1);
        let others = [(2, second), (3, third)].map(|(number, after)| {
            let mutex = Arc::clone(&mutex);
            thread::spawn(move || mutex.enter(number, after))
        });
        mutex.enter(1, BiasAfter::Kept);
        mutex.enter(1, BiasAfter::Kept);
        for other in others {
            other.join().expect("no assertion failed there");
        }
        let _guard = mutex.others.lock().expect("no assertion failed");
        assert_eq!(mutex.add_one(), 5);
    });
}

#[test]
fn kept_bias_excludes_two_other_threads() {
    three_threads(BiasAfter::Kept, BiasAfter::Kept);
}

#[test]
fn ended_bias_leaves_a_plain_mutex() {
    three_threads(BiasAfter::Ended, BiasAfter::Kept);
}

/// The first thread may be preempted before its store and continue when the second has the bias.
#[test]
fn moved_bias_excludes_its_former_thread() {
    three_threads(BiasAfter::Own, BiasAfter::Kept);
}

#[test]
fn bias_moved_twice_excludes_former_threads() {
    three_threads(BiasAfter::Own, BiasAfter::Own);
}
