//! What a cursor believes of the other end's index.

use super::*;

fn producer(staged: u32, released: u32) -> ProducerCursor {
    ProducerCursor { entries: 8, staged, published: staged, released, fault: None }
}

fn consumer(taken: u32, published: u32) -> ConsumerCursor {
    ConsumerCursor { entries: 8, taken, released: taken, published, fault: None }
}

/// Indices near zero and near where they wrap.
const BASES: [u32; 4] = [0, 5, u32::MAX - 3, u32::MAX / 2];

#[test]
fn a_producer_believes_only_heads_that_moved_towards_its_tail() {
    for base in BASES {
        for moved in 0..=4 {
            let mut cursor = producer(base.wrapping_add(4), base);
            let head = AtomicU32::new(base.wrapping_add(moved));
            assert_eq!(cursor.room(8, &head), Ok(4 + moved));
        }
        for value in [
            4u32.wrapping_add(base).wrapping_add(1),
            base.wrapping_sub(1),
            base.wrapping_add(1 << 31),
        ] {
            let mut cursor = producer(base.wrapping_add(4), base);
            let fault = RingFault::Head { value, last: base, end: base.wrapping_add(4) };
            assert_eq!(cursor.room(8, &AtomicU32::new(value)), Err(fault));
            // And never again, whatever it says later.
            assert_eq!(cursor.room(0, &AtomicU32::new(base)), Err(fault));
            assert_eq!(cursor.stage(), None);
        }
    }
}

#[test]
fn a_head_beyond_what_was_published_is_a_fault_although_more_is_staged() {
    let mut cursor = ProducerCursor::new(8);
    let (head, tail) = (AtomicU32::new(0), AtomicU32::new(0));
    for _ in 0..3 {
        cursor.stage().expect("an empty ring");
    }
    assert_eq!(cursor.commit(&tail), 3);
    cursor.stage().expect("five are left");
    head.store(4, Ordering::Relaxed);
    assert_eq!(cursor.room(8, &head), Err(RingFault::Head { value: 4, last: 0, end: 3 }));
}

#[test]
fn a_consumer_believes_only_tails_that_moved_at_most_a_ring_ahead() {
    for base in BASES {
        for moved in 0..=8 {
            let mut cursor = consumer(base, base);
            let tail = AtomicU32::new(base.wrapping_add(moved));
            assert_eq!(cursor.waiting(9, &tail), Ok(moved));
        }
        for value in [base.wrapping_add(9), base.wrapping_sub(1), base.wrapping_add(1 << 31)] {
            let mut cursor = consumer(base, base);
            let fault = RingFault::Tail { value, last: base, end: base.wrapping_add(8) };
            assert_eq!(cursor.waiting(1, &AtomicU32::new(value)), Err(fault));
            assert_eq!(cursor.waiting(0, &AtomicU32::new(base)), Err(fault));
            assert_eq!(cursor.take(), None);
        }
        // What was published cannot be taken back, nor a taken slot filled before its release.
        let mut cursor = consumer(base, base.wrapping_add(8));
        assert_eq!(cursor.take(), Some(base & 7));
        for value in [base.wrapping_add(7), base.wrapping_add(9)] {
            let (last, end) = (base.wrapping_add(8), base.wrapping_add(8));
            let mut cursor = consumer(base, base.wrapping_add(8));
            cursor.take().expect("eight were waiting");
            let fault = RingFault::Tail { value, last, end };
            assert_eq!(cursor.waiting(8, &AtomicU32::new(value)), Err(fault));
        }
    }
}

#[test]
fn an_index_that_need_not_be_looked_at_is_not() {
    let nonsense = AtomicU32::new(0xdead_beef);
    assert_eq!(producer(4, 0).room(4, &nonsense), Ok(4));
    assert_eq!(consumer(0, 3).waiting(3, &nonsense), Ok(3));
}
