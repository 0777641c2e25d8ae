//! Connections on their way from one shard to another whose listener takes them over.
//!
//! Not on the way of a frame: a shard looks at a flag in each poll.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use megapipe_stack::Handover;

use super::lock;

/// What others hand over to a shard.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    waiting: Mutex<Vec<Handover>>,
    /// Something waits.
    is_filled: AtomicBool,
}

impl Mailbox {
    /// Puts something in. Returns `true` if the mailbox was empty: the shard has to be woken.
    pub(super) fn put(&self, handover: Handover) -> bool {
        let mut waiting = lock(&self.waiting);
        waiting.push(handover);
        self.is_filled.store(true, Ordering::Release);
        waiting.len() == 1
    }

    /// Takes what waits, the oldest first.
    pub(super) fn take(&self) -> Vec<Handover> {
        if !self.is_filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.is_filled.store(false, Ordering::Release);
        std::mem::take(&mut waiting)
    }

    /// Something waits. Exact, for a shard that is about to sleep.
    pub(super) fn is_filled(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }
}
