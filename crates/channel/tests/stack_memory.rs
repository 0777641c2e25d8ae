//! What a stack allocates at its start stays below what its settings promise.

#![cfg(feature = "local")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use megapipe_stack::{Config, Instant, Stack};

/// Counts the bytes that are asked for.
struct Counting;

static ASKED_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ASKED_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test, so that no other allocates meanwhile.
#[test]
fn tables_stay_within_the_promised_memory() {
    for (connections, time_waits, listeners, endpoints) in [
        (1, 1, 1, 1),
        (1 << 10, 1, 256, 1),
        // Just above a power of two, where hash tables double.
        ((1 << 16) + 1, 1, 1, 1),
        (1 << 16, 1 << 16, 1, 1),
        (1 << 16, 1 << 14, 1 << 10, 1 << 10),
        (1 << 20, 1 << 14, 256, 256),
    ] {
        let mut config = Config::single([192, 0, 2, 1].into(), 24, [0; 32]);
        (config.connections, config.time_waits) = (connections, time_waits);
        (config.listeners, config.datagram_endpoints) = (listeners, endpoints);
        let promised = config.memory_bytes();
        let before = ASKED_BYTES.load(Ordering::Relaxed);
        let stack = Stack::new(config, Instant::ZERO).expect("settings within their range");
        let asked = ASKED_BYTES.load(Ordering::Relaxed) - before;
        drop(stack);
        let what = (connections, time_waits, listeners, endpoints);
        assert!(asked <= promised, "{what:?}: {asked} of {promised} bytes");
        assert!(asked * 2 >= promised, "{what:?}: {promised} bytes are far more than {asked}");
    }
}
