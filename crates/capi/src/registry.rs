//! From a handle to its channel: which channels exist in this process, and whose they are.
//!
//! The calls of the paper take a handle and nothing else. A handle carries its channel's tag, and
//! this table leads from the tag to the channel in a few instructions, without a lock.
//!
//! Invariants
//! - Only the owner of an entry changes it, so a thread that finds its own number in `owner` may
//!   trust `channel`. Any other thread reads nothing but `owner`.
//! - Thread numbers are never reused, so that a new thread can never pass for one that ended.
//! - A thread that ends has no channels any more: those that it did not destroy are destroyed.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::error::{CallError, Failure};
use crate::limits::CHANNEL_TAGS;
use crate::object::mp_channel;

/// A thread of this process, by a number that is never reused; 0 is no thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadNumber(u64);

impl ThreadNumber {
    /// The calling thread's.
    pub(crate) fn current() -> Self {
        thread_local! {
            static NUMBER: Cell<u64> = const { Cell::new(0) };
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NUMBER.with(|number| {
            if number.get() == 0 {
                // Relaxed: only that numbers differ matters.
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        }))
    }

    /// The number.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

struct Entry {
    /// The number of the thread whose channel has this tag; 0 if there is none.
    owner: AtomicU64,
    /// That channel. Written and read by the owner alone.
    channel: AtomicPtr<mp_channel>,
}

static ENTRIES: [Entry; CHANNEL_TAGS] =
    [const { Entry { owner: AtomicU64::new(0), channel: AtomicPtr::new(ptr::null_mut()) } };
        CHANNEL_TAGS];

thread_local! {
    static AT_END: AtEnd = const { AtEnd };
}

/// Destroys the channels of a thread when the thread ends: no other thread can, and each holds
/// descriptors of the process.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        if is_main_thread() {
            // The process ends, and the kernel takes everything back.
            return;
        }
        let owner = ThreadNumber::current().0;
        // Relaxed: a thread sees its own stores in order, and takes no other thread's entries.
        let own = ENTRIES.iter().filter(|entry| entry.owner.load(Ordering::Relaxed) == owner);
        for entry in own {
            // SAFETY: the registry holds the channels of this thread that are not destroyed. One
            // that a call is inside of, because a signal handler ends the thread, is left.
            let _ = unsafe { mp_channel::destroy(entry.channel.load(Ordering::Relaxed)) };
        }
    }
}

fn is_main_thread() -> bool {
    // SAFETY: the call takes nothing and returns a number.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the same.
    thread == unsafe { libc::getpid() }
}

/// Enters a channel of the calling thread: `false` if another channel has the tag.
pub(crate) fn enter(tag: u16, channel: *mut mp_channel) -> bool {
    let entry = &ENTRIES[usize::from(tag) % CHANNEL_TAGS];
    let owner = ThreadNumber::current().0;
    // Acquire pairs with the Release in `leave`: the store to `channel` below comes after the
    // store of null by the thread that had the entry before.
    let won = entry.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed);
    if won.is_ok() {
        entry.channel.store(channel, Ordering::Relaxed);
        // The first use in a thread registers the destructor. In a thread that is at its end
        // already nothing runs after this, and the channel is its maker's to destroy.
        let _ = AT_END.try_with(|_| ());
    }
    won.is_ok()
}

/// Removes a channel of the calling thread.
pub(crate) fn leave(tag: u16) {
    let entry = &ENTRIES[usize::from(tag) % CHANNEL_TAGS];
    entry.channel.store(ptr::null_mut(), Ordering::Relaxed);
    // Release pairs with the Acquire in `enter`.
    entry.owner.store(0, Ordering::Release);
}

/// The calling thread's channel that has this tag.
pub(crate) fn find(tag: u16) -> Result<*mut mp_channel, Failure> {
    let entry = &ENTRIES[usize::from(tag) % CHANNEL_TAGS];
    // Relaxed: a thread sees its own stores in order, and other threads' entries are not read.
    match entry.owner.load(Ordering::Relaxed) {
        0 => Err(CallError::NoChannel.into()),
        owner if owner == ThreadNumber::current().0 => Ok(entry.channel.load(Ordering::Relaxed)),
        _ => Err(CallError::WrongThread.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of<T>(result: Result<T, Failure>) -> i32 {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    #[test]
    fn a_tag_leads_its_own_thread_to_the_channel_and_no_other() {
        // Tags of channels that other tests may make come from the low end.
        let tag = 4000;
        let channel = ptr::dangling_mut::<mp_channel>();
        assert_eq!(errno_of(find(tag)), libc::EBADF);
        assert!(enter(tag, channel));
        assert!(!enter(tag, channel), "the tag is taken");
        assert_eq!(find(tag).unwrap(), channel);
        std::thread::spawn(move || assert_eq!(errno_of(find(tag)), libc::EPERM)).join().unwrap();
        leave(tag);
        assert_eq!(errno_of(find(tag)), libc::EBADF);
        assert!(enter(tag, channel), "the tag can be had again");
        leave(tag);
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let mine = ThreadNumber::current();
        assert_eq!(mine, ThreadNumber::current());
        let other = std::thread::spawn(ThreadNumber::current).join().unwrap();
        assert_ne!(mine, other);
    }
}
