//! Tells a channel that it woke up in a fork's child.
//!
//! A ring, an epoll set and their descriptors are shared with the parent after `fork`; using them
//! from the child would disturb the parent. One page of the process is marked MADV_WIPEONFORK
//! (Linux 4.14): the kernel gives a child zeros in its place, however it was forked.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE_BYTES: usize = 4096;
const ALIVE: u8 = 1;
/// The mark where the kernel wipes none: a child is not told from its parent there.
static NEVER_WIPED: AtomicU8 = AtomicU8::new(ALIVE);

/// Reads as [`ALIVE`] in the process that made it and as 0 in its children.
#[derive(Clone, Copy)]
pub(crate) struct ForkMark(&'static AtomicU8);

impl ForkMark {
    /// The process's mark, made at the first call. In a child it is the parent's, wiped: channels
    /// made there get one of their own from [`ForkMark::fresh`].
    pub(crate) fn get() -> Self {
        static MARK: OnceLock<ForkMark> = OnceLock::new();
        let mark = *MARK.get_or_init(Self::fresh);
        if mark.is_wiped() { Self::fresh() } else { mark }
    }

    /// Whether this process is a child of the one that made the mark.
    #[inline(always)]
    pub(crate) fn is_wiped(self) -> bool {
        // Relaxed: the kernel changes the byte only in a new address space.
        self.0.load(Ordering::Relaxed) != ALIVE
    }

    fn fresh() -> Self {
        // SAFETY: a fresh anonymous private mapping at an address of the kernel's choice aliases
        // nothing.
        let page = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let Ok(page) = page else { return Self(&NEVER_WIPED) };
        // SAFETY: the advice covers exactly the page that was just mapped; it changes what
        // children see, nothing here.
        let advised = unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) };
        if advised.is_err() {
            return Self(&NEVER_WIPED);
        }
        // SAFETY: the page is mapped, zeroed, never unmapped, and only ever accessed as this one
        // atomic byte.
        let byte: &'static AtomicU8 = unsafe { &*page.cast::<AtomicU8>() };
        byte.store(ALIVE, Ordering::Relaxed);
        Self(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::ForkMark;

    #[test]
    fn a_mark_is_whole_in_its_own_process() {
        assert!(!ForkMark::get().is_wiped());
    }
}
