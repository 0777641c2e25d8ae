//! Detects that a channel was created before a `fork(2)` and that this process is the child.
//!
//! The channel itself rejects what would disturb the parent. The C interface has one rule for all
//! calls: in the child, only `mp_destroy()` works.
//!
//! Read first: `pthread_atfork(3)`.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use channel::Misuse;

use crate::error::CallFailure;

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Identifies a process, different in each of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMark(u32);

impl ProcessMark {
    /// This process. The first call installs the fork handler.
    pub(crate) fn current() -> Result<Self, CallFailure> {
        static WATCHED: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler only adds to an atomic, which is safe in the child of any fork.
        let failed =
            *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        match failed {
            0 => Ok(Self(GENERATION.load(Ordering::Relaxed))),
            errno => Err(io::Error::from_raw_os_error(errno).into()),
        }
    }

    /// Fails in another process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), CallFailure> {
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
    fn mark_is_valid_in_its_own_process() {
        let mark = ProcessMark::current().unwrap();
        assert!(mark.check().is_ok());
        let parent = ProcessMark(mark.0.wrapping_sub(1));
        assert_eq!(parent.check().unwrap_err().why().errno(), libc::ECHILD);
    }
}
