//! Rings: order, batches, bounds, and ends that lie.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::region::Region;

type Record = [u64; 2];

/// What is before the ring in its region, and the ring's entries.
const BEFORE: usize = 128;
const ENTRIES: u32 = 4;

type Ends = (Producer<Record>, Consumer<Record>);

fn ends() -> Ends {
    with_region().0
}

/// The ends of a ring, and all of its region as another process sees it.
fn with_region() -> (Ends, Arc<Region>) {
    let mut parts = Region::heap(limits::PAGE_BYTES).expect("a page").into_parts();
    parts.take(BEFORE).expect("it fits");
    (ring(&mut parts, ENTRIES).expect("it fits"), parts.region())
}

#[test]
fn a_record_is_seen_after_its_commit_and_its_slot_after_its_release() {
    let (mut producer, mut consumer) = ends();
    assert_eq!(producer.reserve(9), Ok(4));
    for number in 0..4 {
        producer.put(&[number, !number]).expect("four fit");
    }
    assert_eq!(producer.put(&[0, 0]), Err(RingFull));
    assert_eq!(consumer.peek(1), Ok(0));
    assert_eq!(consumer.take(), None);
    assert_eq!(producer.commit(), 4);
    assert_eq!(consumer.peek(1), Ok(4));
    assert_eq!(consumer.take(), Some([0, !0]));
    assert_eq!(consumer.take(), Some([1, !1]));
    assert_eq!(producer.reserve(1), Ok(0));
    assert_eq!(consumer.release(), 2);
    assert_eq!(producer.put(&[4, 4]), Err(RingFull));
    assert_eq!(producer.reserve(1), Ok(2));
    assert_eq!(producer.oldest(), Some([2, !2]));
    producer.put(&[4, 4]).expect("two fit");
    assert_eq!((producer.commit(), producer.commit()), (1, 0));
    assert_eq!(consumer.release(), 0);
}

#[test]
fn the_oldest_is_what_was_put_first_of_what_is_not_released() {
    let (mut producer, mut consumer) = ends();
    assert_eq!(producer.oldest(), None);
    for number in 0..9 {
        producer.put(&[number, 0]).expect("one fits");
        assert_eq!(producer.oldest(), Some([number, 0]), "put, not yet committed");
        producer.commit();
        assert_eq!((consumer.peek(1), consumer.take()), (Ok(1), Some([number, 0])));
        consumer.release();
        assert_eq!(producer.oldest(), Some([number, 0]), "the consumer has not looked");
        assert_eq!(producer.reserve(4), Ok(4));
        assert_eq!(producer.oldest(), None);
    }
}

#[test]
fn all_are_taken_that_are_known_and_have_a_place() {
    let (mut producer, mut consumer) = ends();
    assert_eq!(producer.send(&[[0; 2], [1; 2], [2; 2]]), Ok(3));
    let mut out = [[9; 2]; 2];
    assert_eq!(consumer.take_all(&mut out), 0, "none is known without a look");
    assert_eq!(consumer.peek(1), Ok(3));
    assert_eq!((consumer.take_all(&mut out), out), (2, [[0; 2], [1; 2]]));
    assert_eq!(producer.send(&[[3; 2], [4; 2]]), Ok(1), "none is released yet");
    assert_eq!((consumer.take_all(&mut out), out), (1, [[2; 2], [1; 2]]));
    assert_eq!(consumer.release(), 3);
    assert_eq!(producer.send(&[[4; 2]]), Ok(1));
    assert_eq!((consumer.peek(2), consumer.take_all(&mut out)), (Ok(2), 2));
    assert_eq!(out, [[3; 2], [4; 2]], "around the end");
}

#[test]
fn slices_go_as_far_as_they_fit() {
    let (mut producer, mut consumer) = ends();
    let records: Vec<Record> = (0..6).map(|number| [number, 0]).collect();
    assert_eq!(producer.send(&records), Ok(4));
    let mut out = [[0; 2]; 3];
    assert_eq!(consumer.receive(&mut out), Ok(3));
    assert_eq!(out, [[0, 0], [1, 0], [2, 0]]);
    assert_eq!(producer.send(&records[4..]), Ok(2));
    assert_eq!(consumer.receive(&mut out), Ok(3));
    assert_eq!(out, [[3, 0], [4, 0], [5, 0]]);
    assert_eq!(consumer.receive(&mut out), Ok(0));
    assert_eq!(consumer.receive(&mut []), Ok(0));
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let mut parts = Region::heap(limits::PAGE_BYTES).expect("a page").into_parts();
    let mut refused = |entries| ring::<Record>(&mut parts, entries).map(|_| ()).expect_err("no");
    for entries in [0, 1, 3, limits::RING_ENTRIES_MAX * 2, u32::MAX] {
        assert_eq!(refused(entries), RingError::Entries { entries });
    }
    assert!(matches!(refused(1024), RingError::Region(_)));
    assert_eq!(parts.bytes_left(), limits::PAGE_BYTES, "nothing was taken");
}

#[test]
fn ring_stays_within_the_bytes_that_it_takes() {
    let ((mut producer, mut consumer), region) = with_region();
    let end = BEFORE + ring_bytes::<Record>(ENTRIES);
    let around = || (0..BEFORE / 8).flat_map(|word| [word * 8, end + word * 8]);
    for offset in around() {
        region.raw::<AtomicU64>(offset).store(0xaa, Ordering::Relaxed);
    }
    for _ in 0..9 {
        producer.send(&[[u64::MAX; 2]; 4]).expect("honest");
        consumer.receive(&mut [[0; 2]; 4]).expect("honest");
    }
    for offset in around() {
        assert_eq!(region.raw::<AtomicU64>(offset).load(Ordering::Relaxed), 0xaa);
    }
}

#[test]
fn an_end_that_lies_ends_the_ring_and_nothing_else() {
    let ((mut producer, mut consumer), region) = with_region();
    producer.send(&[[1, 2]]).expect("honest");
    let head = region.raw::<AtomicU32>(BEFORE + HEAD_OFFSET);
    let tail = region.raw::<AtomicU32>(BEFORE + TAIL_OFFSET);
    head.store(7, Ordering::Relaxed);
    let fault = RingFault::Head { value: 7, last: 0, end: 1 };
    assert_eq!(producer.reserve(4), Err(fault));
    assert_eq!(producer.send(&[[3, 4]]), Err(fault));
    tail.store(5, Ordering::Relaxed);
    let fault = RingFault::Tail { value: 5, last: 0, end: 4 };
    assert_eq!(consumer.peek(1), Err(fault));
    assert_eq!(consumer.receive(&mut [[0; 2]]), Err(fault));
    tail.store(1, Ordering::Relaxed);
    assert_eq!(consumer.peek(1), Err(fault));
    assert!(fault.to_string().contains("tail 0x5"), "{fault}");
}

#[test]
fn two_threads_pass_every_record_once_and_in_order() {
    let count: u64 = if cfg!(miri) { 200 } else { 100_000 };
    let (mut producer, mut consumer) = ends();
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < count {
            let fit = producer.reserve(3).expect("an honest consumer");
            for _ in 0..u64::from(fit).min(count - next) {
                producer.put(&[next, next.wrapping_mul(0x9e37_79b9_7f4a_7c15)]).expect("it fits");
                next += 1;
            }
            if producer.commit() == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut next = 0;
    while next < count {
        if consumer.peek(1).expect("an honest producer") == 0 {
            std::thread::yield_now();
        }
        while let Some(record) = consumer.take() {
            assert_eq!(record, [next, next.wrapping_mul(0x9e37_79b9_7f4a_7c15)]);
            next += 1;
        }
        consumer.release();
    }
    sender.join().expect("no assertion failed there");
}

/// While one thread writes anything anywhere into the ring, the ends go on, or stop with a fault,
/// and touch nothing else.
#[test]
fn scribbling_into_a_ring_gives_records_of_nonsense_or_a_fault() {
    let seed = 0x5eed_0001u64;
    let rounds = if cfg!(miri) { 2 } else { 300 };
    for round in 0..rounds {
        let ((mut producer, mut consumer), region) = with_region();
        let end = BEFORE + ring_bytes::<Record>(ENTRIES);
        region.raw::<AtomicU64>(end).store(0x55, Ordering::Relaxed);
        let scribbled = Arc::clone(&region);
        let mut state = seed.wrapping_mul(round * 2 + 1);
        let scribbler = std::thread::spawn(move || {
            for _ in 0..if cfg!(miri) { 50 } else { 500 } {
                // xorshift64, seeded: what it writes is small or anything, at one of the indices
                // or in the records.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let value = if state & 4 == 0 { (state >> 40) % 8 } else { state };
                let index = match state % 3 {
                    0 => BEFORE + HEAD_OFFSET,
                    1 => BEFORE + TAIL_OFFSET,
                    _ => {
                        let word = (state >> 8) as usize % 8;
                        let place = BEFORE + RECORDS_OFFSET + word * 8;
                        scribbled.raw::<AtomicU64>(place).store(value, Ordering::Relaxed);
                        continue;
                    }
                };
                scribbled.raw::<AtomicU32>(index).store(value as u32, Ordering::Relaxed);
            }
        });
        let mut faults = (None, None);
        while !scribbler.is_finished() {
            match producer.send(&[[7; 2]; 3]) {
                Ok(count) => assert!(count <= 3 && faults.0.is_none()),
                Err(fault) => assert_eq!(*faults.0.get_or_insert(fault), fault),
            }
            match consumer.receive(&mut [[0; 2]; 3]) {
                Ok(count) => assert!(count <= 3 && faults.1.is_none()),
                Err(fault) => assert_eq!(*faults.1.get_or_insert(fault), fault),
            }
        }
        scribbler.join().expect("it only writes");
        let after = region.raw::<AtomicU64>(end).load(Ordering::Relaxed);
        assert_eq!(after, 0x55, "seed {seed:#x}, round {round}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(u32),
    Put(u64),
    Commit,
    Peek(u32),
    Take,
    Release,
    Send(Vec<u64>),
    Receive(usize),
}

const STEPS: usize = if cfg!(miri) { 20 } else { 60 };

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u32..6).prop_map(Step::Reserve),
        4 => any::<u64>().prop_map(Step::Put),
        1 => Just(Step::Commit),
        1 => (0u32..6).prop_map(Step::Peek),
        4 => Just(Step::Take),
        1 => Just(Step::Release),
        1 => proptest::collection::vec(any::<u64>(), 0..6).prop_map(Step::Send),
        1 => (0usize..6).prop_map(Step::Receive),
    ]
}

/// A ring as queues: put and not committed, committed and not taken, taken and not released.
#[derive(Default)]
struct Model {
    staged: VecDeque<u64>,
    published: VecDeque<u64>,
    taken: usize,
    /// Places that the producer knows to be free, and records that the consumer knows of.
    known_room: usize,
    known_waiting: usize,
}

impl Model {
    fn room(&self) -> usize {
        4 - self.staged.len() - self.published.len() - self.taken
    }

    fn put(&mut self, value: u64) -> bool {
        let fits = self.known_room > 0;
        if fits {
            self.known_room -= 1;
            self.staged.push_back(value);
        }
        fits
    }

    fn take(&mut self) -> Option<u64> {
        self.known_waiting = self.known_waiting.checked_sub(1)?;
        self.taken += 1;
        self.published.pop_front()
    }

    /// What an end answers that looks again only when it knows too little.
    fn look(known: &mut usize, want: usize, now: usize) -> usize {
        if *known < want {
            *known = now;
        }
        *known
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_ring_does_what_queues_do(steps in proptest::collection::vec(step(), 0..STEPS)) {
        let (mut producer, mut consumer) = ends();
        let mut model = Model { known_room: 4, ..Model::default() };
        for step in steps {
            match step {
                Step::Reserve(want) => {
                    let now = model.room();
                    let known = Model::look(&mut model.known_room, want as usize, now);
                    prop_assert_eq!(producer.reserve(want), Ok(known as u32));
                }
                Step::Put(value) => {
                    prop_assert_eq!(producer.put(&[value, !value]).is_ok(), model.put(value));
                }
                Step::Commit => {
                    prop_assert_eq!(producer.commit() as usize, model.staged.len());
                    model.published.append(&mut model.staged);
                }
                Step::Peek(want) => {
                    let now = model.published.len();
                    let known = Model::look(&mut model.known_waiting, want as usize, now);
                    prop_assert_eq!(consumer.peek(want), Ok(known as u32));
                }
                Step::Take => {
                    prop_assert_eq!(consumer.take(), model.take().map(|value| [value, !value]));
                }
                Step::Release => {
                    prop_assert_eq!(consumer.release() as usize, model.taken);
                    model.taken = 0;
                }
                Step::Send(values) => {
                    let now = model.room();
                    let known = Model::look(&mut model.known_room, values.len(), now);
                    let count = known.min(values.len());
                    let records: Vec<Record> =
                        values.iter().map(|value| [*value, !value]).collect();
                    prop_assert_eq!(producer.send(&records), Ok(count));
                    for value in &values[..count] {
                        model.put(*value);
                    }
                    model.published.append(&mut model.staged);
                }
                Step::Receive(len) => {
                    let mut out = vec![[0; 2]; len];
                    let now = model.published.len();
                    let known = Model::look(&mut model.known_waiting, len, now);
                    prop_assert_eq!(consumer.receive(&mut out), Ok(known.min(len)));
                    for record in &out[..known.min(len)] {
                        prop_assert_eq!(Some(record[0]), model.take());
                    }
                    model.taken = 0;
                }
            }
        }
    }
}

#[test]
fn unreleased_records_are_read_back_in_order() {
    let mut parts = Region::heap(ring_bytes::<u64>(4)).expect("memory").into_parts();
    let (mut producer, mut consumer) = ring::<u64>(&mut parts, 4).expect("it fits");
    let unreleased = |producer: &mut Producer<u64>| {
        let mut all = Vec::new();
        producer.each_unreleased(|record| all.push(*record)).map(|()| all)
    };
    assert_eq!((producer.capacity(), consumer.capacity()), (4, 4));
    assert_eq!(unreleased(&mut producer), Ok(vec![]));
    for round in 0..5 {
        assert_eq!(producer.send(&[round, round + 10, round + 20]), Ok(3));
        assert_eq!(unreleased(&mut producer), Ok(vec![round, round + 10, round + 20]));
        assert_eq!(consumer.receive(&mut [0; 2]), Ok(2));
        assert_eq!(unreleased(&mut producer), Ok(vec![round + 20]));
        assert_eq!(consumer.receive(&mut [0; 2]), Ok(1));
    }
}
