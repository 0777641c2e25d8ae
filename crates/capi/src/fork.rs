//! Tells that a channel was made before a `fork(2)` and that this is the child.
//!
//! The channel itself refuses what would disturb the parent. Here the C border makes that one
//! rule for all calls: in the child, none of them works but `mp_destroy()`.
//!
//! Read first: `pthread_atfork(3)`.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use channel::Misuse;

use crate::error::Failure;

/// How many forks lie between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A process: itself, and none of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMark(u32);

impl ProcessMark {
    /// This process. The first call sees to it that children will differ.
    pub(crate) fn current() -> Result<Self, Failure> {
        static WATCHED: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler only adds to an atomic, which is safe in the child of any fork.
        let failed =
            *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        match failed {
            0 => Ok(Self(GENERATION.load(Ordering::Relaxed))),
            errno => Err(io::Error::from_raw_os_error(errno).into()),
        }
    }

    /// An error if this is another process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Failure> {
        // Relaxed: the number changes only while a child has a single thread.
        match GENERATION.load(Ordering::Relaxed) {
            generation if generation == self.0 => Ok(()),
            _ => Err(Misuse::Forked.into()),
        }
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let mark = ProcessMark::current().unwrap();
        assert!(mark.check().is_ok());
        let parent = ProcessMark(mark.0.wrapping_sub(1));
        assert_eq!(parent.check().unwrap_err().why().errno(), libc::ECHILD);
    }
}
