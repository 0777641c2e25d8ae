//! The bias of a mutex: which thread may enter without the inner mutex, and whether it is inside.
//!
//! Read first: `biased_mutex.rs` for the picture; `biased_lock.rs` for the barrier.
//!
//! The biased thread has a *seat*, which it alone writes. It stores "inside" there and then reads
//! whether the bias is still its own. A thread that revokes the bias stores that first and then
//! reads the seat, with a barrier for both threads in between.
//!
//! A thread keeps its seat for the life of the mutex. A thread that is preempted between its two
//! accesses and continues when another thread has the bias writes its own seat only.
//!
//! Invariants
//! - `holder` is written only by the thread that has the inner mutex.
//! - The thread of a seat is inside exactly while `turns` is odd and its second read found the
//!   bias.

use crate::atomics::{AtomicU32, AtomicUsize, Ordering, fence};
use crate::biased_lock::Barrier;

/// Number of threads that one mutex can be biased to during its life.
pub(crate) const SEATS: usize = if cfg!(loom) { 2 } else { 16 };

/// The mutex is biased to no thread.
pub(crate) const UNBIASED: u32 = 0;

#[derive(Debug, Default)]
struct Seat {
    /// Number of its thread; 0: free.
    thread: AtomicUsize,
    /// Odd while the thread is inside.
    turns: AtomicU32,
}

/// The biased part of a mutex.
#[derive(Debug)]
pub(crate) struct Bias {
    /// One more than the index of the biased thread's seat.
    holder: AtomicU32,
    seats: [Seat; SEATS],
}

impl Bias {
    pub(crate) fn new() -> Self {
        Self { holder: AtomicU32::new(UNBIASED), seats: std::array::from_fn(|_| Seat::default()) }
    }

    fn seat(&self, holder: u32) -> Option<&Seat> {
        self.seats.get((holder as usize).wrapping_sub(1))
    }

    /// Enters as the biased thread. Returns its seat; `None` if the bias is not the caller's.
    #[inline(always)]
    pub(crate) fn try_enter(&self, thread: usize, barrier: Barrier) -> Option<u32> {
        let holder = self.holder.load(Ordering::Relaxed);
        let seat = self.seat(holder)?;
        // Relaxed: a seat's number is stored before its first grant and never changes.
        if seat.thread.load(Ordering::Relaxed) != thread {
            return None;
        }
        let turns = seat.turns.load(Ordering::Relaxed);
        assert!(turns.is_multiple_of(2), "a thread locks a mutex that it holds");
        seat.turns.store(turns.wrapping_add(1), Ordering::Relaxed);
        match barrier {
            Barrier::Own => fence(Ordering::SeqCst),
            Barrier::Revokers => std::sync::atomic::compiler_fence(Ordering::SeqCst),
        }
        // Acquire: with the release of `grant`, the changes of other threads are visible.
        if self.holder.load(Ordering::Acquire) == holder {
            return Some(holder);
        }
        seat.turns.store(turns, Ordering::Release);
        None
    }

    /// Leaves as the thread of a seat.
    #[inline(always)]
    pub(crate) fn exit(&self, holder: u32) {
        if let Some(seat) = self.seat(holder) {
            let turns = seat.turns.load(Ordering::Relaxed);
            // Release: with the acquire of `is_out`.
            seat.turns.store(turns.wrapping_add(1), Ordering::Release);
        }
    }

    /// Returns the seat of the biased thread. Requires the inner mutex, as all functions below.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.load(Ordering::Relaxed)
    }

    /// Returns the seat of a thread, allocating one if it has none; [`UNBIASED`] if all are taken.
    pub(crate) fn seat_of(&self, thread: usize) -> u32 {
        let place = self.seats.iter().position(|seat| {
            let owner = seat.thread.load(Ordering::Relaxed);
            if owner == 0 {
                seat.thread.store(thread, Ordering::Relaxed);
            }
            owner == 0 || owner == thread
        });
        place.map_or(UNBIASED, |place| place as u32 + 1)
    }

    /// Revokes the bias. The caller then issues the barrier and waits until [`Bias::is_out`].
    pub(crate) fn revoke(&self) {
        self.holder.store(UNBIASED, Ordering::Relaxed);
        // With the fence in `try_enter`, where that makes one.
        fence(Ordering::SeqCst);
    }

    /// Whether the thread of a seat is outside. It stays there until it gets the bias again.
    pub(crate) fn is_out(&self, holder: u32) -> bool {
        self.seat(holder).is_none_or(|seat| seat.turns.load(Ordering::Acquire).is_multiple_of(2))
    }

    /// Number of entries of the thread of a seat, modulo 2^31.
    pub(crate) fn entries(&self, holder: u32) -> u32 {
        self.seat(holder).map_or(0, |seat| seat.turns.load(Ordering::Relaxed) / 2)
    }

    /// Biases the mutex to the thread of a seat.
    pub(crate) fn grant(&self, seat: u32) {
        // Release: with the acquire of `try_enter`.
        self.holder.store(seat, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models;
