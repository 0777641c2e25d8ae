//! A queue of frame slots between two threads: one producer, one consumer, no lock.
//!
//! ```text
//!   consumer's               producer's
//!      tail ──► frames ──►  head  ──► rooms ──► tail + slots
//! ```
//!
//! `head` counts the frames published, `tail` those given back; both run over and are masked.
//!
//! Invariants
//! - `head - tail <= slots.len()`, a power of two.
//! - Slots from `tail` to `head` are the consumer's, the others the producer's. Each side moves
//!   only its own number, and only after it has let go of the slots behind it.
//! - [`PairProducer`] and [`PairConsumer`] cannot be cloned, and their methods take `&mut self`:
//!   there is one of each, used by one thread at a time.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::TxMetadata;

struct PairSlot {
    transmit: TxMetadata,
    bytes: Box<[u8]>,
}

/// A number on a cache line of its own, so that the two sides do not pull at one.
#[repr(align(128))]
struct Alone(AtomicU32);

struct PairRing {
    head: Alone,
    tail: Alone,
    is_abandoned: AtomicBool,
    slots: Box<[UnsafeCell<PairSlot>]>,
}

// SAFETY: `Sync` requires that shared use from two threads is no data race. `head`, `tail` and
// `is_abandoned` are atomics. A slot is reached only by the one `PairProducer` while it lies
// outside
// `tail..head` and by the one `PairConsumer` while it lies inside; it changes sides when `head` or
// `tail` is stored with Release and loaded with Acquire by the other side.
unsafe impl Sync for PairRing {}

impl PairRing {
    fn slot(&self, number: u32) -> *mut PairSlot {
        // `slots.len()` is a power of two that fits u32: `ring` asserts it.
        self.slots[number as usize & (self.slots.len() - 1)].get()
    }
}

/// Makes a queue of `slots` frames (a power of two) of at most `frame_bytes` each.
pub(super) fn ring(slots: usize, frame_bytes: usize) -> (PairProducer, PairConsumer) {
    assert!(slots.is_power_of_two() && slots <= 1 << 20, "checked by PairConfig");
    let slot = || PairSlot { transmit: TxMetadata::default(), bytes: vec![0; frame_bytes].into() };
    let ring = Arc::new(PairRing {
        head: Alone(AtomicU32::new(0)),
        tail: Alone(AtomicU32::new(0)),
        is_abandoned: AtomicBool::new(false),
        slots: (0..slots).map(|_| UnsafeCell::new(slot())).collect(),
    });
    let producer = PairProducer { ring: Arc::clone(&ring), head: 0, tail_seen: 0 };
    (producer, PairConsumer { ring, tail: 0, head_seen: 0 })
}

/// The side that fills frames.
pub(super) struct PairProducer {
    ring: Arc<PairRing>,
    /// Ours; ahead of `ring.head` by what is not published.
    head: u32,
    /// What we last saw of `ring.tail`.
    tail_seen: u32,
}

impl PairProducer {
    /// The next room to fill; `None`: the queue is full.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        let slot = self.ring.slot(self.head);
        // SAFETY: a unique reference requires exclusive access to the slot while it lives. The
        // slot at `head` is outside `tail..head` (`has_room`), so the consumer does not touch it
        // until `publish`, which needs `&mut self`, and the reference borrows `self`.
        let slot = unsafe { &mut *slot };
        Some(&mut slot.bytes)
    }

    /// Queues the frame that the last `room` was filled with. The caller checked its length.
    pub(super) fn put(&mut self, transmit: TxMetadata) {
        assert!(self.has_room(), "put follows room");
        let slot = self.ring.slot(self.head);
        // SAFETY: as in `room`: the slot at `head` is ours, and `&mut self` makes us the only one.
        let slot = unsafe { &mut *slot };
        slot.transmit = transmit;
        self.head = self.head.wrapping_add(1);
    }

    /// Lets the consumer see all that was put.
    pub(super) fn publish(&mut self) {
        // Release: pairs with the Acquire in `PairConsumer::has_frame`; the slots are written
        // before.
        self.ring.head.0.store(self.head, Ordering::Release);
    }

    /// Is there room for one more?
    pub(super) fn has_room(&mut self) -> bool {
        let slots = self.ring.slots.len() as u32;
        if self.head.wrapping_sub(self.tail_seen) < slots {
            return true;
        }
        // Acquire: pairs with the Release in `PairConsumer::take`; it has read the slots before.
        self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        self.head.wrapping_sub(self.tail_seen) < slots
    }

    /// The other side is gone.
    pub(super) fn is_abandoned(&self) -> bool {
        // Acquire: pairs with the Release in `abandon`.
        self.ring.is_abandoned.load(Ordering::Acquire)
    }

    /// Says that this side goes.
    pub(super) fn abandon(&self) {
        // Release: a reader that sees the flag also sees the frames published before.
        self.ring.is_abandoned.store(true, Ordering::Release);
    }
}

/// The side that is lent frames.
pub(super) struct PairConsumer {
    ring: Arc<PairRing>,
    /// Ours, as `ring.tail`.
    tail: u32,
    /// What we last saw of `ring.head`.
    head_seen: u32,
}

impl PairConsumer {
    /// Lends at most `max` frames, oldest first, then gives their slots back.
    pub(super) fn take(&mut self, max: usize, each: &mut dyn FnMut(&[u8], TxMetadata)) -> usize {
        let mut count = 0;
        while count < max && self.has_frame() {
            let slot = self.ring.slot(self.tail);
            // SAFETY: a shared reference requires no writer to the slot while it lives. It lies
            // in `tail..head` (`has_frame`), so the producer does not touch it until `ring.tail`
            // passes it, which happens below, after the reference's last use.
            let slot = unsafe { &*slot };
            self.tail = self.tail.wrapping_add(1);
            count += 1;
            each(&slot.bytes[..slot.transmit.len], slot.transmit);
        }
        if count > 0 {
            // Release: pairs with the Acquire in `PairProducer::has_room`; we have read the slots.
            self.ring.tail.0.store(self.tail, Ordering::Release);
        }
        count
    }

    /// Is there a frame?
    pub(super) fn has_frame(&mut self) -> bool {
        if self.head_seen != self.tail {
            return true;
        }
        // Acquire: pairs with the Release in `PairProducer::publish`; the slots are written.
        self.head_seen = self.ring.head.0.load(Ordering::Acquire);
        self.head_seen != self.tail
    }

    /// The other side is gone. What it published before is seen by `has_frame` afterwards.
    pub(super) fn is_abandoned(&self) -> bool {
        // Acquire: pairs with the Release in `abandon`.
        self.ring.is_abandoned.load(Ordering::Acquire)
    }

    /// Says that this side goes.
    pub(super) fn abandon(&self) {
        // Release: as in `PairProducer::abandon`.
        self.ring.is_abandoned.store(true, Ordering::Release);
    }
}

impl fmt::Debug for PairProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("head", &self.head).finish_non_exhaustive()
    }
}

impl fmt::Debug for PairConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("tail", &self.tail).finish_non_exhaustive()
    }
}
