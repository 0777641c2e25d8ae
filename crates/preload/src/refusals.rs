//! Counts of refused calls and options, for the end of the report.
//!
//! Invariant: a count takes no lock and no memory of the heap. Refusals that have no room in the
//! table are counted together.

use std::ffi::{c_int, c_ulong};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Different refusals that are counted apart.
const REFUSALS_MAX: usize = 64;

/// A call or option that the library refuses, although the kernel would not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallRefusal {
    /// A call from a signal handler that interrupted the library where no call is possible.
    InHandler,
    /// A call on a socket of the parent process.
    ParentsSocket,
    /// A socket of the stack in a message (SCM_RIGHTS).
    PassedSocket,
    /// `io_uring_setup`.
    IoUring,
    /// A TCP socket of the kernel, with `--require stack`.
    KernelPath,
    /// A listener, by the stack.
    Listener,
    /// setsockopt(2), by level and name.
    Option(c_int, c_int),
    /// ioctl(2), by request.
    Ioctl(c_ulong),
    /// fcntl(2), by command.
    Fcntl(c_int),
}

/// Bits of each argument in a key.
const ARGUMENT_BITS: u32 = 24;
const ARGUMENT_MASK: u64 = (1 << ARGUMENT_BITS) - 1;

impl CallRefusal {
    /// A word that is never 0.
    fn encode(self) -> u64 {
        let (kind, first, second) = match self {
            Self::InHandler => (1, 0, 0),
            Self::ParentsSocket => (2, 0, 0),
            Self::PassedSocket => (3, 0, 0),
            Self::IoUring => (4, 0, 0),
            Self::KernelPath => (5, 0, 0),
            Self::Listener => (6, 0, 0),
            Self::Option(level, name) => (7, level as u64, name as u64),
            Self::Ioctl(request) => (8, request & ARGUMENT_MASK, request >> ARGUMENT_BITS),
            Self::Fcntl(command) => (9, 0, command as u64),
        };
        kind << (2 * ARGUMENT_BITS)
            | (first & ARGUMENT_MASK) << ARGUMENT_BITS
            | second & ARGUMENT_MASK
    }

    fn decode(word: u64) -> Option<Self> {
        let (first, second) = (word >> ARGUMENT_BITS & ARGUMENT_MASK, word & ARGUMENT_MASK);
        Some(match word >> (2 * ARGUMENT_BITS) {
            1 => Self::InHandler,
            2 => Self::ParentsSocket,
            3 => Self::PassedSocket,
            4 => Self::IoUring,
            5 => Self::KernelPath,
            6 => Self::Listener,
            7 => Self::Option(first as c_int, second as c_int),
            8 => Self::Ioctl(first | second << ARGUMENT_BITS),
            9 => Self::Fcntl(second as c_int),
            _ => return None,
        })
    }
}

impl fmt::Display for CallRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => {
                f.write_str("a call from a signal handler where none is possible (EDEADLK)")
            }
            Self::ParentsSocket => f.write_str("a call on a socket of the parent (ECHILD)"),
            Self::PassedSocket => f.write_str("SCM_RIGHTS with a socket of the stack"),
            Self::IoUring => f.write_str("io_uring_setup (ENOSYS)"),
            Self::KernelPath => f.write_str("a socket of the kernel (--require stack)"),
            Self::Listener => f.write_str("a listener, by the stack"),
            Self::Option(level, name) => write!(f, "option {name} of level {level}"),
            Self::Ioctl(request) => write!(f, "ioctl {request:#x}"),
            Self::Fcntl(command) => write!(f, "fcntl {command}"),
        }
    }
}

/// A refusal, 0 for none, and its count.
struct RefusalCount {
    key: AtomicU64,
    count: AtomicU32,
}

static TABLE: [RefusalCount; REFUSALS_MAX] =
    [const { RefusalCount { key: AtomicU64::new(0), count: AtomicU32::new(0) } }; REFUSALS_MAX];

/// Refusals without a place in the table.
static OTHERS: AtomicU32 = AtomicU32::new(0);

/// Counts a refusal.
#[cold]
pub(crate) fn count(refusal: CallRefusal) {
    let key = refusal.encode();
    let place = TABLE.iter().find(|place| {
        let known = place.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
        known.is_ok() || known == Err(key)
    });
    place.map_or(&OTHERS, |place| &place.count).fetch_add(1, Ordering::Relaxed);
}

/// Returns the count of all refusals.
pub(crate) fn total() -> u32 {
    let counts = TABLE.iter().map(|place| &place.count).chain([&OTHERS]);
    counts.fold(0, |sum, count| sum.saturating_add(count.load(Ordering::Relaxed)))
}

/// Calls `show` with each refusal and its count.
pub(crate) fn each(mut show: impl FnMut(&dyn fmt::Display, u32)) {
    for RefusalCount { key, count } in &TABLE {
        if let Some(refusal) = CallRefusal::decode(key.load(Ordering::Relaxed)) {
            show(&refusal, count.load(Ordering::Relaxed));
        }
    }
    match OTHERS.load(Ordering::Relaxed) {
        0 => {}
        others => show(&"other calls", others),
    }
}

/// In the child of a fork: its counts are its own.
pub(crate) fn forget() {
    for RefusalCount { key, count } in &TABLE {
        key.store(0, Ordering::Relaxed);
        count.store(0, Ordering::Relaxed);
    }
    OTHERS.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_apart_and_beyond_the_table() {
        let kinds = [
            CallRefusal::InHandler,
            CallRefusal::ParentsSocket,
            CallRefusal::PassedSocket,
            CallRefusal::IoUring,
            CallRefusal::KernelPath,
            CallRefusal::Listener,
            CallRefusal::Option(6, 13),
            CallRefusal::Ioctl(0x5452),
            CallRefusal::Fcntl(8),
        ];
        for kind in kinds {
            assert_eq!(CallRefusal::decode(kind.encode()), Some(kind));
        }
        forget();
        count(CallRefusal::IoUring);
        (0..100).for_each(|name| count(CallRefusal::Option(1, name)));
        count(CallRefusal::IoUring);
        let mut lines = Vec::new();
        each(|refusal, count| lines.push(format!("{count} x {refusal}")));
        assert_eq!(lines[0], "2 x io_uring_setup (ENOSYS)");
        assert_eq!(lines[1], "1 x option 0 of level 1");
        assert_eq!(lines.last().map(String::as_str), Some("37 x other calls"));
        assert_eq!((total(), lines.len()), (102, REFUSALS_MAX + 1));
        forget();
        assert_eq!(total(), 0);
    }
}
