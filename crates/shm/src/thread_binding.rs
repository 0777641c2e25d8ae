//! Thread binding: data that one thread at a time changes without locked instructions.
//!
//! Read first: Choi, Shull, Torrellas, "Biased Reference Counting" (PACT 2018), for counts that one
//! thread changes by plain loads and stores while all others take a slower way.
//!
//! A thread that is bound may change what belongs to the binding; [`ThreadBinding::is_bound`] costs
//! a comparison. Every other thread reads `false` there and takes the slow way.
//!
//! Invariants
//! - At most one thread is bound. A thread becomes bound only where none is, and only itself ends
//!   that.
//! - What a thread did while bound happens before the next thread is bound.

use crate::atomics::{AtomicUsize, Ordering};

/// In place of a thread: none is bound. No thread's pointer is null.
const NONE: usize = 0;

/// The thread, if any, that may change some data.
#[derive(Debug)]
pub struct ThreadBinding {
    thread: AtomicUsize,
}

impl Default for ThreadBinding {
    fn default() -> Self {
        Self { thread: AtomicUsize::new(NONE) }
    }
}

#[cfg(not(loom))]
impl ThreadBinding {
    /// Bound to the calling thread.
    #[must_use]
    pub fn to_caller() -> Self {
        Self { thread: AtomicUsize::new(thread_pointer()) }
    }

    /// Whether the calling thread is bound.
    #[inline(always)]
    pub fn is_bound(&self) -> bool {
        self.is_bound_as(thread_pointer())
    }

    /// Binds the calling thread. `false`: another thread is bound.
    pub fn bind(&self) -> bool {
        self.bind_as(thread_pointer())
    }

    /// Ends the binding of the calling thread, if it is bound.
    pub fn unbind(&self) {
        self.unbind_as(thread_pointer());
    }
}

impl ThreadBinding {
    #[inline(always)]
    fn is_bound_as(&self, thread: usize) -> bool {
        // Relaxed: this thread alone stores its own pointer and removes it, so it reads the
        // pointer exactly while it is bound.
        self.thread.load(Ordering::Relaxed) == thread
    }

    fn bind_as(&self, thread: usize) -> bool {
        // Acquire: pairs with the Release in `unbind_as` of the thread that was bound before.
        let bound =
            self.thread.compare_exchange(NONE, thread, Ordering::Acquire, Ordering::Relaxed);
        bound.is_ok() || bound == Err(thread)
    }

    fn unbind_as(&self, thread: usize) {
        if self.is_bound_as(thread) {
            // Release: pairs with the Acquire in `bind_as`.
            self.thread.store(NONE, Ordering::Release);
        }
    }
}

/// A number that no two live threads share. A new thread may have the number of one that has ended,
/// whose memory it then reuses.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(miri, loom))))]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: in the x86-64 ABI for thread-local storage, the word at fs:0 is the thread pointer,
    // which is set before a thread runs its first instruction and never changes. The instruction
    // reads that word and changes neither memory, stack nor flags.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

#[cfg(all(not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri))), not(loom)))]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::ThreadBinding;

    #[derive(Default)]
    struct Bound {
        binding: ThreadBinding,
        /// Loom fails a model in which two threads access it at once, or one does not see the
        /// other's change.
        value: UnsafeCell<u32>,
    }

    // SAFETY: only a bound thread accesses the value; the models check that.
    unsafe impl Sync for Bound {}

    impl Bound {
        /// What a thread does that may be bound already; whether it changed the value.
        fn add_one(&self, thread: usize) -> bool {
            let is_bound = self.binding.is_bound_as(thread);
            if is_bound {
                // SAFETY: this thread is bound.
                self.value.with_mut(|value| unsafe { *value += 1 });
            }
            is_bound
        }
    }

    #[test]
    fn two_threads_are_never_bound_at_once() {
        loom::model(|| {
            let bound = Arc::new(Bound::default());
            assert!(bound.binding.bind_as(1) && bound.add_one(1));
            let theirs = Arc::clone(&bound);
            let other = thread::spawn(move || {
                let mut changes = 0;
                for _ in 0..2 {
                    theirs.binding.bind_as(2);
                    changes += u32::from(theirs.add_one(2));
                    theirs.binding.unbind_as(2);
                }
                changes
            });
            let mut changes = 1 + u32::from(bound.add_one(1));
            bound.binding.unbind_as(1);
            changes += u32::from(bound.add_one(1));
            assert!(!bound.add_one(1), "it has unbound itself");
            changes += other.join().expect("no assertion failed there");
            assert!(bound.binding.bind_as(1) && bound.add_one(1));
            // SAFETY: the other thread has ended.
            bound.value.with(|value| assert_eq!(unsafe { *value }, changes + 1));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::ThreadBinding;

    #[test]
    fn binding_changes_threads_only_after_unbind() {
        let binding = ThreadBinding::to_caller();
        assert!(binding.is_bound() && binding.bind(), "it is bound already");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                binding.unbind();
                !binding.is_bound() && !binding.bind()
            });
            assert!(other.join().unwrap(), "another thread changes nothing");
            binding.unbind();
            assert!(!binding.is_bound());
            assert!(scope.spawn(|| binding.bind() && binding.is_bound()).join().unwrap());
        });
    }
}
