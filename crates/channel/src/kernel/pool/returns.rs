//! Owners that are dropped on a thread that is not bound, and owners that outlive their channel.
//!
//! Read first: `pool.rs`.
//!
//! Invariants
//! - While there is a [`super::PoolOwner`], an owner that another thread drops is in `list`, and
//!   counts until the bound thread has released it.
//! - Once there is none, no thread is bound or ever will be, and owners are counted under the lock.
//!   `keeper` holds the pool until no buffer has an owner.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::span::PoolRef;
use super::{Pool, PoolOwner};
use crate::waker::Waker;

#[derive(Default)]
pub(super) struct Returns {
    /// `list` is not empty.
    is_any: AtomicBool,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// Buffers of owners that were dropped, once for each.
    list: Vec<u16>,
    /// Wakes the channel, which may be out of buffers.
    waker: Option<Waker>,
    keeper: Option<Keeper>,
}

/// Keeps a pool without a channel.
struct Keeper {
    _pool: Arc<Pool>,
    /// Buffers that have owners.
    owned: usize,
}

impl Returns {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Nothing panics under it.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolOwner {
    /// Sets what is woken when another thread drops an owner.
    pub(crate) fn set_waker(&self, waker: Waker) {
        self.returns.lock().waker = Some(waker);
    }
}

impl Pool {
    /// Releases what other threads have dropped. Nothing on a thread that is not bound.
    #[inline]
    pub(super) fn release_returned(&self) {
        // Relaxed: the lock orders what the list says.
        if self.returns.is_any.load(Ordering::Relaxed) && self.binding.is_bound() {
            self.release_list(&mut self.returns.lock());
        }
    }

    #[cold]
    fn release_list(&self, inside: &mut Inside) {
        self.returns.is_any.store(false, Ordering::Relaxed);
        for index in inside.list.drain(..) {
            self.release(index);
        }
    }

    /// The channel has gone, and takes no buffers any more.
    pub(super) fn orphan(self: &Arc<Self>) {
        if !self.binding.bind() {
            // Another thread is bound, and counts owners without a lock for as long as it lives:
            // the memory stays.
            std::mem::forget(Arc::clone(self));
            return;
        }
        let mut inside = self.returns.lock();
        self.release_list(&mut inside);
        inside.waker = None;
        let owned = self.buffers.owned_count();
        inside.keeper = (owned > 0).then(|| Keeper { _pool: Arc::clone(self), owned });
        // Under the lock: a thread that finds itself not bound finds the keeper.
        self.binding.unbind();
    }
}

/// An owner is dropped on a thread that is not bound. A pool without a channel ends with the last
/// one, so no reference to it is an argument here.
#[cold]
#[inline(never)]
pub(super) fn release_elsewhere(pool: PoolRef, index: u16) {
    let mut last = None;
    let mut woken = None;
    {
        let pool = pool.get();
        let mut inside = pool.returns.lock();
        let Inside { list, waker, keeper } = &mut *inside;
        if let Some(kept) = keeper {
            kept.owned -= usize::from(pool.buffers.release(index));
            if kept.owned == 0 {
                last = keeper.take();
            }
        } else {
            // Once until the channel has looked.
            if list.is_empty() {
                woken.clone_from(waker);
            }
            list.push(index);
            pool.returns.is_any.store(true, Ordering::Relaxed);
        }
    }
    drop(last);
    if let Some(waker) = woken {
        waker.wake_silently();
    }
}
