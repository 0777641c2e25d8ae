//! Children that libc does not prepare for: those of vfork(2), clone(2) and _Fork(3) have the
//! tables of their parent, and descriptors of their own.
//!
//! Read first: vfork(2); `calls/vfork.rs`.
//!
//! Only such a child has another number than the owner, and to ask the kernel for it would be a
//! third of the price of closing a connection. So the calls that make such children say so before
//! ([`POSSIBLE`]), and while there is none a call need not ask.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::raw;

/// The process that the table of numbers belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// How many such children may run now, as far as the process knows. One of which the end is not
/// seen counts for ever. The memory is common to a vfork's child and its parent.
pub(crate) static POSSIBLE: AtomicU32 = AtomicU32::new(AT_FIRST);
/// Where vfork(2) is not interposed there may always be one.
const AT_FIRST: u32 = if cfg!(target_arch = "x86_64") { 0 } else { 1 };

/// The tables are this process's.
pub(crate) fn own_tables() {
    OWNER.store(raw::process(), Ordering::Relaxed);
}

/// The process that the table of numbers belongs to.
pub(crate) fn owner() -> c_int {
    OWNER.load(Ordering::Relaxed)
}

/// Whether this is the child of a vfork(2) or of a clone(2) that libc does not know: it has its
/// own descriptors, and the table is its parent's.
#[inline]
pub(crate) fn is_foreign() -> bool {
    // Acquire: pairs with `note_new`, by the thread that makes the child.
    POSSIBLE.load(Ordering::Acquire) != 0 && raw::process() != owner()
}

/// Runs `work`, which takes locks. A signal that ended a foreign child meanwhile would leave the
/// locks of its parent's memory taken: such a child blocks all signals.
pub(crate) fn keeping_locks<T>(work: impl FnOnce() -> T) -> T {
    if is_foreign() { raw::with_signals_blocked(work) } else { work() }
}

/// A child is about to be made, of which the end is not seen.
pub(crate) fn note_new() {
    POSSIBLE.fetch_add(1, Ordering::Release);
}

/// In the child of a fork(2), which has its own tables and no child yet.
pub(crate) fn forget() {
    POSSIBLE.store(AT_FIRST, Ordering::Relaxed);
}
