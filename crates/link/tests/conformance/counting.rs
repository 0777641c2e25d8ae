//! An allocator that counts each thread's allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often the calling thread has allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: `GlobalAlloc` requires what `System` keeps; all is handed on to it with the arguments
// unchanged. The counter is a constant-initialised thread-local without a destructor: touching it
// neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: our caller keeps the contract of `alloc`, and so do we towards `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` above, that is from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}
