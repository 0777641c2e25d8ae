//! Nothing allocates once a region, its pools, rings and doorbells are made.
//!
//! The allocator counts for the whole process, and the thread that runs the tests prints now and
//! then. So the work is done several times, and one of them must be without any allocation.

use std::alloc::System;
use std::time::Duration;

use megapipe_shm::record::{Chunk, Command, Id, Op, Record};
use megapipe_shm::{BufferArea, DoorbellError, Pool, PoolLayout, Region, doorbell, ring};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Watch, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ATTEMPTS: usize = 10;

#[test]
fn nothing_allocates_after_creation() {
    let layout = PoolLayout { buf_bytes: 2048, count: 16, tag: 0 };
    let region = Region::heap(layout.bytes()).expect("memory");
    let pool = Pool::owning(region, layout).expect("it fits");
    let region = Region::memfd("mp-test", 1 << 16).expect("memory");
    // The same memory, as another process has it.
    let fd = region.fd().expect("a memfd").try_clone_to_owned().expect("a copy");
    let mut others = Region::from_fd(fd, 1 << 16).expect("sealed as agreed").into_parts();
    let mut parts = region.into_parts();
    let (mut producer, mut consumer) = ring::<Record>(&mut parts, 64).expect("it fits");
    let (sleeper, ringer) = doorbell(&mut parts).expect("a doorbell");
    let (mut bytes, mut records) = ([7; 1460], [Record::default(); 32]);

    let mut round = || {
        let buf = pool.alloc().expect("free");
        pool.copy_in(buf, 0, &bytes).expect("in bounds");
        pool.copy_out(buf, 0, &mut bytes).expect("in bounds");
        pool.free(buf).expect("in use");
        pool.free(buf).expect_err("freed twice");
        let (conn, chunk) = (Id::default(), Chunk { buf, offset: 0, len: 64 });
        let op = Op { cookie: 1, command: Command::Send { conn, chunk } };
        records[0] = op.record();
        assert_eq!(producer.send(&records), Ok(32));
        ringer.ring().expect("it works");
        let has_work = || Ok::<_, DoorbellError>(consumer.peek(1).expect("honest") > 0);
        sleeper.sleep(Some(Duration::ZERO), has_work).expect("it works");
        assert_eq!(consumer.receive(&mut records), Ok(32));
        assert_eq!(Op::parse(&records[0]), Ok(op));
        Op::parse(&records[1]).expect_err("no kind");
    };
    let attempt = |_| {
        let watch = Watch::new(ALLOCATOR);
        (0..100).for_each(|_| round());
        let change = watch.change();
        change.allocations + change.reallocations
    };
    let allocations: [usize; ATTEMPTS] = std::array::from_fn(attempt);
    assert!(allocations.contains(&0), "{allocations:?}");
    assert_eq!(pool.free_count(), 16);

    // Nor does what goes wrong.
    let lines = PoolLayout { buf_bytes: 64, count: 16, tag: 0 };
    let lines = BufferArea::new(&mut others, lines).expect("it fits");
    lines.write(2, 0, &(1u32 << 31).to_ne_bytes()).expect("the ring's tail");
    let allocations: [usize; ATTEMPTS] = std::array::from_fn(|_| {
        let watch = Watch::new(ALLOCATOR);
        consumer.peek(1).expect_err("a tail of nonsense");
        watch.change().allocations
    });
    assert!(allocations.contains(&0), "{allocations:?}");
}
