//! Loom models: every order of the two threads, and every value that a load may return.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

struct ModelRing<const ENTRIES: usize> {
    head: AtomicU32,
    tail: AtomicU32,
    /// Loom fails a model in which a slot is written while it is read.
    slots: [UnsafeCell<u32>; ENTRIES],
}

impl<const ENTRIES: usize> ModelRing<ENTRIES> {
    fn new() -> Arc<Self> {
        let slots = std::array::from_fn(|_| UnsafeCell::new(u32::MAX));
        Arc::new(Self { head: AtomicU32::new(0), tail: AtomicU32::new(0), slots })
    }

    fn write(&self, slot: u32, value: u32) {
        // SAFETY: loom checks that no other thread has the slot meanwhile; that is what is tested.
        self.slots[slot as usize].with_mut(|place| unsafe { *place = value });
    }

    fn read(&self, slot: u32) -> u32 {
        // SAFETY: as in `write`.
        self.slots[slot as usize].with(|place| unsafe { *place })
    }
}

/// Puts `values` in batches of at most `batch`, yielding while the ring is full.
fn produce<const N: usize>(shared: &ModelRing<N>, values: std::ops::Range<u32>, batch: u32) {
    let mut cursor = ProducerCursor::new(N as u32);
    let mut values = values.peekable();
    while values.peek().is_some() {
        let room = cursor.room(1, &shared.head).expect("an honest consumer");
        for value in values.by_ref().take(room.min(batch) as usize) {
            let slot = cursor.stage().expect("there was room");
            shared.write(slot, value);
        }
        if cursor.commit(&shared.tail) == 0 {
            thread::yield_now();
        }
    }
}

/// Takes `count` values and checks that they are 0, 1, 2, …
fn consume<const N: usize>(shared: &ModelRing<N>, count: u32, batch: u32) {
    let mut cursor = ConsumerCursor::new(N as u32);
    let mut next = 0;
    while next < count {
        let waiting = cursor.waiting(1, &shared.tail).expect("an honest producer");
        for _ in 0..waiting.min(batch) {
            let slot = cursor.take().expect("one was waiting");
            assert_eq!(shared.read(slot), next);
            next += 1;
        }
        if cursor.release(&shared.head) == 0 {
            thread::yield_now();
        }
    }
}

fn model<const N: usize>(count: u32, producer_batch: u32, consumer_batch: u32) {
    loom::model(move || {
        let shared = ModelRing::<N>::new();
        let theirs = Arc::clone(&shared);
        let producer = thread::spawn(move || produce(&theirs, 0..count, producer_batch));
        consume(&shared, count, consumer_batch);
        producer.join().expect("no assertion failed there");
    });
}

#[test]
fn records_arrive_once_in_order_and_no_slot_is_shared() {
    model::<2>(3, 1, 1);
}

#[test]
fn batches_arrive_whole_around_the_end_of_the_ring() {
    model::<2>(4, 2, 2);
}

#[test]
fn batches_of_different_sizes_meet() {
    model::<4>(4, 3, 1);
}
