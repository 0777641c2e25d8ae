//! Shared memory that a hostile process writes: each record is valid or reported as a fault, and a
//! ring whose indexes jump returns no more records than it has.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use megapipe_shm::record::{Completion, Message, Op, Record};
use megapipe_shm::{BufferArea, Consumer, PoolLayout, Region, ring, ring_bytes};

const ENTRIES: u32 = 16;
const RECORD_BYTES: usize = size_of::<Record>();
const LINE: usize = 64;
/// Where a ring's records begin, after its indexes.
const RECORDS: usize = 256;

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

/// Writes into the memory, wherever a ring has what. Past its end is refused.
fn write(lines: &BufferArea, at: usize, bytes: &[u8]) {
    for (at, byte) in (at..).zip(bytes) {
        let _ = lines.write((at / LINE) as u32, at % LINE, &[*byte]);
    }
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
    let bytes = ring_bytes::<Record>(ENTRIES).max(4096);
    let region = Region::memfd("mp-fuzz", bytes).expect("a few pages");
    // The same memory, as the other end has it.
    let fd = region.fd().expect("a memfd").try_clone_to_owned().expect("a copy");
    let mut others = Region::from_fd(fd, bytes).expect("sealed as agreed").into_parts();
    let lines = PoolLayout { buf_bytes: LINE, count: (bytes / LINE) as u32, tag: 0 };
    let lines = BufferArea::new(&mut others, lines).expect("it fits");
    let (mut producer, mut consumer) =
        ring::<Record>(&mut region.into_parts(), ENTRIES).expect("it fits");
    for (number, bytes) in records.chunks_exact(RECORD_BYTES).enumerate() {
        assert_eq!(producer.send(&[Record::default()]), Ok(1));
        write(&lines, RECORDS + number % ENTRIES as usize * RECORD_BYTES, bytes);
        assert!(take(&mut consumer, 1));
    }
    for step in steps {
        let goes_on = match step {
            Step::Write { at, bytes } => {
                write(&lines, at.into(), &bytes);
                true
            }
            Step::Index { is_tail, to } => {
                // The two indexes lie in the ring's first two pairs of lines.
                write(&lines, if is_tail { 128 } else { 0 }, &to.to_ne_bytes());
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
