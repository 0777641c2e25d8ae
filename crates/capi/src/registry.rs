//! Finds the channel of a handle: the channels of this process and their owner threads.
//!
//! The calls of the paper take only a handle. A handle carries its channel's tag, and this table
//! maps the tag to the channel in a few instructions, without a lock.
//!
//! Invariants
//! - Only the owner of an entry changes it, so a thread that reads its own number in `owner` may
//!   use `channel`. Any other thread reads only `owner`.
//! - Thread numbers are never reused, so a new thread never has the number of one that ended.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::error::{CallError, CallFailure};
use crate::limits::CHANNEL_TAGS;

/// A thread of this process, by a number that is never reused; 0 is no thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadNumber(u64);

impl ThreadNumber {
    /// Of the calling thread.
    pub(crate) fn current() -> Self {
        thread_local! {
            static NUMBER: Cell<u64> = const { Cell::new(0) };
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NUMBER.with(|number| {
            if number.get() == 0 {
                // Relaxed: the numbers only have to differ.
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

/// The channels of this process by tag, each an object of type `T` that its thread owns.
pub(crate) struct Registry<T> {
    entries: [RegistryEntry<T>; CHANNEL_TAGS],
}

struct RegistryEntry<T> {
    /// The number of the thread whose channel has this tag; 0 if there is none.
    owner: AtomicU64,
    /// That channel. Written and read only by the owner.
    channel: AtomicPtr<T>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [const {
                RegistryEntry { owner: AtomicU64::new(0), channel: AtomicPtr::new(ptr::null_mut()) }
            }; CHANNEL_TAGS],
        }
    }

    /// Enters a channel of the calling thread: `false` if another channel has the tag.
    pub(crate) fn enter(&self, tag: u16, channel: *mut T) -> bool {
        let entry = self.entry(tag);
        let owner = ThreadNumber::current().0;
        // Acquire pairs with the Release in `leave`: the store to `channel` below comes after the
        // store of null by the thread that had the entry before.
        let won = entry.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed);
        if won.is_ok() {
            entry.channel.store(channel, Ordering::Relaxed);
        }
        won.is_ok()
    }

    /// Removes a channel of the calling thread.
    pub(crate) fn leave(&self, tag: u16) {
        let entry = self.entry(tag);
        entry.channel.store(ptr::null_mut(), Ordering::Relaxed);
        // Release pairs with the Acquire in `enter`.
        entry.owner.store(0, Ordering::Release);
    }

    /// The calling thread's channel that has this tag.
    #[inline]
    pub(crate) fn find(&self, tag: u16) -> Result<*mut T, CallFailure> {
        let entry = self.entry(tag);
        // Relaxed: a thread sees its own stores in order, and other threads' entries are not read.
        match entry.owner.load(Ordering::Relaxed) {
            0 => Err(CallError::NoChannel.into()),
            owner if owner == ThreadNumber::current().0 => {
                Ok(entry.channel.load(Ordering::Relaxed))
            }
            _ => Err(CallError::WrongThread.into()),
        }
    }

    /// The channels of the calling thread.
    pub(crate) fn own(&self) -> impl Iterator<Item = *mut T> {
        let owner = ThreadNumber::current().0;
        // Relaxed: a thread sees its own stores in order, and uses no other thread's entries.
        let own = move |entry: &&RegistryEntry<T>| entry.owner.load(Ordering::Relaxed) == owner;
        self.entries.iter().filter(own).map(|entry| entry.channel.load(Ordering::Relaxed))
    }

    const fn entry(&self, tag: u16) -> &RegistryEntry<T> {
        &self.entries[tag as usize % CHANNEL_TAGS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of<T>(result: Result<T, CallFailure>) -> i32 {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    #[test]
    fn tag_finds_the_channel_only_on_its_own_thread() {
        static REGISTRY: Registry<u64> = Registry::new();
        let tag = 4000;
        let channel = ptr::dangling_mut::<u64>();
        assert_eq!(errno_of(REGISTRY.find(tag)), libc::EBADF);
        assert!(REGISTRY.enter(tag, channel));
        assert!(!REGISTRY.enter(tag, channel), "the tag is taken");
        assert_eq!(REGISTRY.find(tag).unwrap(), channel);
        std::thread::spawn(move || assert_eq!(errno_of(REGISTRY.find(tag)), libc::EPERM))
            .join()
            .unwrap();
        REGISTRY.leave(tag);
        assert_eq!(errno_of(REGISTRY.find(tag)), libc::EBADF);
        assert!(REGISTRY.enter(tag, channel), "the tag is free again");
        REGISTRY.leave(tag);
    }

    #[test]
    fn threads_have_different_numbers() {
        let mine = ThreadNumber::current();
        assert_eq!(mine, ThreadNumber::current());
        let other = std::thread::spawn(ThreadNumber::current).join().unwrap();
        assert_ne!(mine, other);
    }
}
