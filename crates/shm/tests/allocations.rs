//! Nothing allocates once a region, its pools and its rings are made.

use std::alloc::System;
use std::rc::Rc;
use std::sync::Arc;

use megapipe_shm::{Pool, PoolLayout, Region, RingLayout, ring};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Watch, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn nothing_allocates_after_creation() {
    let layout = PoolLayout { offset: 0, buf_bytes: 2048, count: 16, tag: 0 };
    let region = Region::heap(layout.bytes()).expect("memory");
    let pool = Rc::new(Pool::owning(region, layout).expect("it fits"));
    let region = Arc::new(Region::heap(1 << 16).expect("memory"));
    let (mut producer, mut consumer) =
        ring::<[u64; 8]>(&region, RingLayout { offset: 0, entries: 64 }).expect("it fits");
    let (mut bytes, mut records) = ([7; 1460], [[1; 8]; 32]);

    let watch = Watch::new(ALLOCATOR);
    for _ in 0..100 {
        let buf = pool.alloc().expect("free");
        pool.copy_in(buf, 0, &bytes).expect("in bounds");
        pool.copy_out(buf, 0, &mut bytes).expect("in bounds");
        pool.share(buf).expect("in use");
        drop(pool.lend(buf, 0, 64).expect("in use"));
        pool.free(buf).expect("in use");
        pool.free(buf).expect_err("freed twice");
        drop(pool.writer().expect("free"));
        assert_eq!(producer.send(&records), Ok(32));
        assert_eq!(consumer.receive(&mut records), Ok(32));
    }
    region.atomic_u32(128).expect("in bounds").store(77, std::sync::atomic::Ordering::Relaxed);
    consumer.peek(1).expect_err("a tail of nonsense");
    let change = watch.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
    assert_eq!(pool.free_count(), 16);
}
