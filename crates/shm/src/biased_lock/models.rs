//! Loom models: never both inside, and each sees what the other has done.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

struct ModelGuarded {
    bias: BiasedLock,
    /// Loom fails a model in which two threads are at it at once, or one does not see the other's
    /// change.
    value: UnsafeCell<u32>,
}

// SAFETY: a thread that is inside is alone with the value, which is what the models check.
unsafe impl Sync for ModelGuarded {}

impl ModelGuarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { bias: BiasedLock::new(), value: UnsafeCell::new(0) })
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

    /// The owner's part, once; whether it got in.
    fn own(&self) -> bool {
        let entered = self.bias.try_enter(Barrier::Own);
        if entered {
            self.add_one();
            self.bias.exit();
        }
        entered
    }

    fn revoke(&self) {
        // Loom's stand-in for the barrier of the kernel's is the owner's fence.
        let _ = self.bias.want();
        while !self.bias.is_free() {
            thread::yield_now();
        }
        self.add_one();
        self.bias.give_back();
    }
}

#[test]
fn an_owner_and_a_revoker_are_never_both_inside() {
    loom::model(|| {
        let guarded = ModelGuarded::new();
        let theirs = Arc::clone(&guarded);
        let revoker = thread::spawn(move || theirs.revoke());
        let entered = u32::from(guarded.own()) + u32::from(guarded.own());
        revoker.join().expect("no assertion failed there");
        assert_eq!(guarded.add_one(), entered + 2);
    });
}

/// A revoker that sees the owner away looks at nothing else.
#[test]
fn an_owner_that_was_away_comes_back_behind_the_revoker() {
    loom::model(|| {
        let guarded = ModelGuarded::new();
        guarded.bias.leave();
        let theirs = Arc::clone(&guarded);
        let revoker = thread::spawn(move || {
            let is_away = !theirs.bias.want();
            while !is_away && !theirs.bias.is_free() {
                thread::yield_now();
            }
            theirs.add_one();
            theirs.bias.give_back();
        });
        guarded.bias.come_back();
        let entered = u32::from(guarded.own());
        revoker.join().expect("no assertion failed there");
        assert_eq!(guarded.add_one(), entered + 2);
    });
}
