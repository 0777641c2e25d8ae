//! Child views: what numbers stand for in the children of vfork(2), as far as the table differs.
//!
//! Such a child has the memory of its parent, of which a thread waits for it, and descriptors of
//! its own. The table is its parent's. A view keeps the duplicates that the child makes. It also
//! keeps the former entries of numbers that other threads of the parent change meanwhile. Whether a
//! number is open in the child, the kernel knows.
//!
//! Read first: vfork(2); `calls/vfork.rs`, which begins and ends views; `exec_sharing.rs`, which
//! reads them.
//!
//! Invariants
//! - A view exists from before vfork(2) until the parent's thread goes on. The thread and its child
//!   have the same memory of the thread, where the view's number stands.
//! - The child never changes the table.
//! - A connection that the parent closes is in no view any more: its descriptor in the stack may be
//!   another connection's then.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{NumberEntry, entry, known};
use crate::raw::with_signals_blocked;
use crate::state_lock::StateLock;

/// In place of a view's number.
pub(crate) const NO_VIEW: u32 = 0;

/// What differs in one child.
#[derive(Debug, Clone, Default)]
struct ChildView {
    entries: BTreeMap<c_int, NumberEntry>,
    /// The view of the child that has made this one.
    outer: u32,
}

/// All views.
struct ChildViews {
    by_number: BTreeMap<u32, ChildView>,
    last: u32,
}

static VIEWS: StateLock<ChildViews> =
    StateLock::new(ChildViews { by_number: BTreeMap::new(), last: NO_VIEW });

/// How many views there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The view of the child that this thread makes, and that has this thread's memory.
    static CURRENT: Cell<u32> = const { Cell::new(NO_VIEW) };
}

/// A thread makes a child. Returns the number of the child's view.
pub(crate) fn begin() -> u32 {
    let outer = CURRENT.get();
    let number = with_views(|views| {
        let mut view = views.by_number.get(&outer).cloned().unwrap_or_default();
        view.outer = outer;
        views.last = views.last.checked_add(1).unwrap_or(1);
        views.by_number.insert(views.last, view);
        views.last
    });
    COUNT.fetch_add(1, Ordering::Relaxed);
    CURRENT.set(number);
    number
}

/// The thread that has made a child goes on.
pub(crate) fn end(number: u32) {
    let view = with_views(|views| views.by_number.remove(&number));
    if let Some(view) = view {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        CURRENT.set(view.outer);
    }
}

/// Whether this thread, or the child that has its memory, has a view.
pub(crate) fn has_current() -> bool {
    CURRENT.get() != NO_VIEW
}

/// In a child with a view: `new` is a duplicate of `old`.
pub(crate) fn duplicate(old: c_int, new: c_int) {
    let number = CURRENT.get();
    if number == NO_VIEW {
        return;
    }
    with_views(|views| {
        if let Some(view) = views.by_number.get_mut(&number) {
            let of_old = view.entries.get(&old).copied().unwrap_or_else(|| entry(old));
            view.entries.insert(new, of_old);
        }
    });
}

/// In a child with a view: what all numbers stand for.
pub(crate) fn entries() -> Vec<(c_int, NumberEntry)> {
    let number = CURRENT.get();
    with_views(|views| {
        let mut all: BTreeMap<c_int, NumberEntry> = known(0, u32::MAX).collect();
        if let Some(view) = views.by_number.get(&number) {
            all.extend(&view.entries);
        }
        all.into_iter().collect()
    })
}

/// What a number stands for, in a child with a view also.
pub(crate) fn entry_of(fd: c_int) -> NumberEntry {
    let number = CURRENT.get();
    if number == NO_VIEW {
        return entry(fd);
    }
    with_views(|views| {
        let view = views.by_number.get(&number);
        view.and_then(|view| view.entries.get(&fd).copied()).unwrap_or_else(|| entry(fd))
    })
}

/// Changes an entry of the table by `change`, which returns the former one. The views keep that.
#[inline]
pub(super) fn changing(fd: c_int, change: impl FnOnce() -> NumberEntry) -> NumberEntry {
    // Relaxed: a number that another thread changes while vfork(2) begins is the program's own
    // race.
    if COUNT.load(Ordering::Relaxed) == 0 { change() } else { change_noting(fd, change) }
}

#[cold]
fn change_noting(fd: c_int, change: impl FnOnce() -> NumberEntry) -> NumberEntry {
    with_views(|views| {
        let before = change();
        for view in views.by_number.values_mut() {
            view.entries.entry(fd).or_insert(before);
            if let NumberEntry::Stack(_) = before {
                let its = view.entries.values_mut().filter(|entry| **entry == before);
                its.for_each(|entry| *entry = NumberEntry::Parent);
            }
        }
        before
    })
}

/// A handler that interrupts the holder of the lock could wait for ever, and so could the parent of
/// a child that a signal ends.
fn with_views<T>(work: impl FnOnce(&mut ChildViews) -> T) -> T {
    with_signals_blocked(|| work(&mut VIEWS.lock()))
}

/// Before a fork(2): no thread changes the views until [`resume`] or [`forget`].
pub(crate) fn pause() {
    VIEWS.take();
}

/// After a fork(2), in the parent.
pub(crate) fn resume() {
    VIEWS.release();
}

/// After a fork(2), in the child: the children of other threads are the parent's.
pub(crate) fn forget() {
    VIEWS.release();
    with_views(|views| views.by_number.clear());
    COUNT.store(0, Ordering::Relaxed);
    CURRENT.set(NO_VIEW);
}

#[cfg(test)]
mod tests {
    use super::super::set;
    use super::*;

    fn seen(fd: c_int) -> NumberEntry {
        let found = entries().into_iter().find(|(number, _)| *number == fd);
        let found = found.map_or(NumberEntry::Kernel, |(_, entry)| entry);
        assert_eq!(entry_of(fd), found);
        found
    }

    #[test]
    fn view_keeps_duplicates_and_former_entries() {
        const FIRST: c_int = 910_000;
        let [first, second, third, new] = [0, 1, 2, 3].map(|place| FIRST + place);
        set(first, NumberEntry::Stack(1));
        set(second, NumberEntry::Stack(2));
        let number = begin();
        assert!(has_current());
        duplicate(first, new);
        duplicate(new, third);
        assert_eq!([new, third].map(seen), [NumberEntry::Stack(1); 2]);
        assert!(entry(new) == NumberEntry::Kernel && entry(third) == NumberEntry::Kernel);
        // Another thread closes one connection and accepts another one under its number.
        set(second, NumberEntry::Kernel);
        set(second, NumberEntry::Stack(2));
        assert_eq!(seen(second), NumberEntry::Parent);
        assert_eq!(seen(new), NumberEntry::Stack(1));
        // A child of the child begins with its numbers, and changes its own.
        let inner = begin();
        duplicate(second, new);
        assert_eq!([new, third].map(seen), [NumberEntry::Parent, NumberEntry::Stack(1)]);
        end(inner);
        assert_eq!(seen(new), NumberEntry::Stack(1));
        // The connection behind the duplicates is closed.
        set(first, NumberEntry::Kernel);
        assert_eq!([first, new, third].map(seen), [NumberEntry::Parent; 3]);
        end(number);
        assert!(!has_current());
        set(second, NumberEntry::Kernel);
    }
}
