//! Shared memory that somebody hostile writes: each record is one of its ring's, exactly as it
//! lies there, or a fault; a ring whose indexes jump gives no more records than it has.
#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use megapipe_shm::record::{Completion, Message, Op, Record};
use megapipe_shm::{Consumer, Producer, Region, RingLayout};

const ENTRIES: u32 = 16;
const RECORD_BYTES: usize = size_of::<Record>();

#[derive(Debug, Arbitrary)]
enum Step {
    /// The other end writes where it should not, or should.
    Write {
        at: u16,
        bytes: Vec<u8>,
    },
    /// Like the above, but on one of the ring's indexes, near or far from where it was.
    Index {
        is_tail: bool,
        to: u32,
    },
    Take {
        want: u8,
    },
    Put {
        want: u8,
    },
}

/// Whatever is accepted is written back as the same bytes: nothing was guessed.
fn read(record: &Record) {
    let mut kinds = 0;
    if let Ok(op) = Op::parse(record) {
        assert_eq!(op.record(), *record);
        kinds += 1;
    }
    if let Ok(completion) = Completion::parse(record) {
        assert_eq!(completion.record(), *record);
        kinds += 1;
    }
    if let Ok(message) = Message::parse(record) {
        assert_eq!(message.record(), *record);
        kinds += 1;
    }
    assert!(kinds <= 1, "a record of two rings");
}

/// Takes what is there, as a server would. `false`: the ring is over.
fn take(consumer: &mut Consumer<Record>, want: u8) -> bool {
    let Ok(waiting) = consumer.peek(want.into()) else { return false };
    assert!(waiting <= ENTRIES);
    let mut taken = 0;
    while let Some(record) = consumer.take() {
        read(&record);
        taken += 1;
    }
    assert!(taken <= ENTRIES);
    assert_eq!(consumer.release(), taken);
    true
}

fuzz_target!(|input: (Vec<u8>, Vec<Step>)| {
    let (records, steps) = input;
    let bytes = RingLayout::bytes::<Record>(ENTRIES);
    let region = Arc::new(Region::heap(bytes.max(4096)).expect("a few pages"));
    for bytes in records.chunks_exact(RECORD_BYTES) {
        region.write(0, bytes).expect("it fits");
        read(&region.load::<Record>(0).expect("it fits"));
    }
    region.write(0, &vec![0; bytes]).expect("it fits");

    let layout = RingLayout { offset: 0, entries: ENTRIES };
    let mut consumer = Consumer::<Record>::new(Arc::clone(&region), layout).expect("it fits");
    let mut producer = Producer::<Record>::new(Arc::clone(&region), layout).expect("it fits");
    for step in steps {
        let goes_on = match step {
            Step::Write { at, bytes } => {
                // Past the region's end is refused, and nothing is written.
                let _ = region.write(at.into(), &bytes);
                true
            }
            Step::Index { is_tail, to } => {
                // The two indexes lie in the ring's first two pairs of lines.
                let at = if is_tail { 128 } else { 0 };
                region
                    .atomic_u32(at)
                    .expect("it fits")
                    .store(to, std::sync::atomic::Ordering::Release);
                true
            }
            Step::Take { want } => take(&mut consumer, want),
            Step::Put { want } => match producer.reserve(want.into()) {
                Ok(room) => {
                    assert!(room <= ENTRIES);
                    while producer.put(&Record::default()).is_ok() {}
                    assert!(producer.commit() <= ENTRIES);
                    true
                }
                Err(_) => false,
            },
        };
        if !goes_on {
            return;
        }
    }
});
