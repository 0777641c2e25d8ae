//! Descriptor numbers: which are sockets or sets of the library, and which are the kernel's.
//!
//! In: a number. Out: a [`NumberEntry`], from one load without a lock. Sockets of the stack have
//! numbers of the kernel, with a placeholder behind them, so that the lowest free number, dup(2),
//! F_DUPFD, close-on-exec and RLIMIT_NOFILE are the kernel's.
//!
//! Invariants
//! - A number that the table does not know is the kernel's.
//! - Numbers from [`NUMBERS_MAX`] on are always the kernel's.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use megapipe_sockets::Fd;

use crate::foreign_children;
use crate::raw::system_call;

#[cfg_attr(
    all(not(target_arch = "x86_64"), not(test)),
    expect(dead_code, reason = "vfork(2) is not interposed on other machines")
)]
pub(crate) mod child_views;

/// Numbers that a socket of the stack can have: the kernel's default for `fs.nr_open`.
pub(crate) const NUMBERS_MAX: usize = 1 << 20;

/// Numbers at the top of the range that are kept for the library.
const OWN_NUMBERS: c_int = 128;

/// A limit of files up to which the library's own numbers lie above it.
const FEW_NUMBERS: c_int = 512;

/// One word for each number, in memory that is not resident until it is used.
static TABLE: [AtomicU32; NUMBERS_MAX] = [const { AtomicU32::new(0) }; NUMBERS_MAX];

/// Numbers of a block: a cache line and more of the table.
const BLOCK: usize = 64;
/// The blocks that ever had an entry, a bit each: a fork looks at those alone.
static USED: [AtomicU64; NUMBERS_MAX / BLOCK / 64] =
    [const { AtomicU64::new(0) }; NUMBERS_MAX / BLOCK / 64];

/// How many numbers are sets that wait for the stack.
static PENDING_SETS: AtomicI32 = AtomicI32::new(0);

/// The lowest number of the library's own descriptors; 0: they are not moved.
static OWN_FIRST: AtomicI32 = AtomicI32::new(0);

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberEntry {
    /// A descriptor of the kernel.
    Kernel,
    /// A socket of the stack, by its number in the context.
    Stack(Fd),
    /// A socket that is recorded, by its record.
    Recorded(u32),
    /// A set with sockets of the stack, by its number in the context.
    Set(Fd),
    /// A set with recorded sockets.
    PendingSet,
    /// A descriptor of the library.
    Own,
    /// A socket or set of the parent process, which forked.
    Parent,
    /// A connection of the parent process that this one owns too, by its place (`fork_sharing.rs`).
    Inherited(u32),
    /// A token of a connection, which this process has received and not used yet.
    Token,
}

const VALUE_BITS: u32 = 28;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;

impl NumberEntry {
    const fn encode(self) -> u32 {
        let (kind, value) = match self {
            Self::Kernel => (0, 0),
            Self::Stack(fd) => (1, fd.cast_unsigned()),
            Self::Recorded(record) => (2, record),
            Self::Set(fd) => (3, fd.cast_unsigned()),
            Self::PendingSet => (4, 0),
            Self::Own => (5, 0),
            Self::Parent => (6, 0),
            Self::Inherited(place) => (7, place),
            Self::Token => (8, 0),
        };
        kind << VALUE_BITS | value & VALUE_MASK
    }

    const fn decode(word: u32) -> Self {
        let value = word & VALUE_MASK;
        match word >> VALUE_BITS {
            1 => Self::Stack(value.cast_signed()),
            2 => Self::Recorded(value),
            3 => Self::Set(value.cast_signed()),
            4 => Self::PendingSet,
            5 => Self::Own,
            6 => Self::Parent,
            7 => Self::Inherited(value),
            8 => Self::Token,
            _ => Self::Kernel,
        }
    }
}

/// Returns what a number stands for.
#[inline]
pub(crate) fn entry(fd: c_int) -> NumberEntry {
    // Acquire: pairs with `set`, so that the socket behind it is there.
    let word = TABLE.get(fd as usize).map_or(0, |word| word.load(Ordering::Acquire));
    if word == 0 { NumberEntry::Kernel } else { NumberEntry::decode(word) }
}

/// Whether a number is the kernel's.
#[inline]
pub(crate) fn is_kernel(fd: c_int) -> bool {
    entry(fd) == NumberEntry::Kernel
}

/// Sets what a number stands for; returns what it stood for before.
pub(crate) fn set(fd: c_int, entry: NumberEntry) -> NumberEntry {
    let Some(word) = TABLE.get(fd as usize) else { return NumberEntry::Kernel };
    if entry != NumberEntry::Kernel {
        let block = fd as usize / BLOCK;
        let (used, bit) = (&USED[block / 64], 1 << (block % 64));
        if used.load(Ordering::Relaxed) & bit == 0 {
            used.fetch_or(bit, Ordering::Relaxed);
        }
    }
    let swap = || NumberEntry::decode(word.swap(entry.encode(), Ordering::AcqRel));
    let before = child_views::changing(fd, swap);
    let count = |entry| i32::from(entry == NumberEntry::PendingSet);
    match count(entry) - count(before) {
        0 => {}
        // Relaxed: under the lock of the records, or before other threads know the set.
        change => drop(PENDING_SETS.fetch_add(change, Ordering::Relaxed)),
    }
    before
}

/// Whether a set waits for the stack. Spares most callers the look at all numbers, of which there
/// are as many as RLIMIT_NOFILE allows.
pub(crate) fn has_pending_sets() -> bool {
    PENDING_SETS.load(Ordering::Relaxed) > 0
}

/// Returns the numbers up to `last` that the table has, from `first` on.
pub(crate) fn known(first: c_uint, last: c_uint) -> impl Iterator<Item = (c_int, NumberEntry)> {
    let (first, last) = (first as usize, (last as usize).min(NUMBERS_MAX - 1));
    let words = first / BLOCK / 64..=last / BLOCK / 64;
    let blocks = words.flat_map(|word| {
        let used = USED.get(word).map_or(0, |used| used.load(Ordering::Relaxed));
        (0..64).filter(move |bit| used >> bit & 1 != 0).map(move |bit| word * 64 + bit)
    });
    let numbers = blocks.flat_map(|block| block * BLOCK..(block + 1) * BLOCK);
    let within = numbers.filter(move |number| (first..=last).contains(number));
    let entries = within.map(|number| (number as c_int, entry(number as c_int)));
    entries.filter(|(_, entry)| *entry != NumberEntry::Kernel)
}

/// Chooses where the library's own descriptors lie, by RLIMIT_NOFILE: at the end of the range, or
/// above it where the program may open a few files only.
pub(crate) fn choose_own_range() {
    let limit = file_limit();
    let number = |it: u64| c_int::try_from(it).unwrap_or(c_int::MAX).min(NUMBERS_MAX as c_int);
    let (soft, hard) = (number(limit.rlim_cur), number(limit.rlim_max));
    let first = match hard.min(FEW_NUMBERS) - OWN_NUMBERS {
        above if soft <= above => above,
        _ => (soft - OWN_NUMBERS).max(soft / 2),
    };
    OWN_FIRST.store(first, Ordering::Relaxed);
}

fn file_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 0 };
    // SAFETY: the record is a local. On failure the limit stays.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// Runs `create`, which opens descriptors of the library, with room for them above the numbers that
/// the program may have. Its limit is the same afterwards, although the channel raises it; one
/// that the program sets meanwhile stays.
pub(crate) fn with_room_above<T>(create: impl FnOnce() -> T) -> T {
    let limit = file_limit();
    let wanted = u64::from(FEW_NUMBERS.cast_unsigned()).min(limit.rlim_max);
    if limit.rlim_cur < wanted {
        set_file_limit(libc::rlimit { rlim_cur: wanted, ..limit });
    }
    let created = create();
    let now = file_limit().rlim_cur;
    if now != limit.rlim_cur && (now == wanted || now == limit.rlim_max) {
        set_file_limit(limit);
    }
    created
}

fn set_file_limit(limit: libc::rlimit) {
    // SAFETY: the record is a local. On failure the limit stays.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Moves a new descriptor of the library to the top of the range. Returns its number there, or the
/// result of a call that failed unchanged.
pub(crate) fn raise(result: isize) -> isize {
    let first = OWN_FIRST.load(Ordering::Relaxed);
    if result < 0 || first == 0 {
        return result;
    }
    let fd = result as usize;
    let moved = [fd, libc::F_DUPFD_CLOEXEC as usize, first as usize, 0, 0, 0];
    // SAFETY: takes integers.
    let mut raised = unsafe { system_call(libc::SYS_fcntl, moved) };
    if raised == -(libc::EINVAL as isize) {
        // SAFETY: the same.
        raised = with_room_above(|| unsafe { system_call(libc::SYS_fcntl, moved) });
    }
    if raised < 0 {
        // No number is free there: it stays where it is.
        mark_own(result);
        return result;
    }
    // SAFETY: the descriptor was made by the caller and has no other owner.
    unsafe { system_call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    mark_own(raised);
    raised
}

/// The table is not that of a foreign child, which executes a program with what it opens.
fn mark_own(fd: isize) {
    if !foreign_children::is_foreign() {
        set(fd as c_int, NumberEntry::Own);
    }
}

/// A descriptor of the library is closed.
pub(crate) fn forget_own(fd: c_int) {
    if entry(fd) == NumberEntry::Own && !foreign_children::is_foreign() {
        set(fd, NumberEntry::Kernel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_table() {
        let fd = 900_000;
        for entry_of in [
            NumberEntry::Stack(7),
            NumberEntry::Recorded(3),
            NumberEntry::Set(0),
            NumberEntry::PendingSet,
            NumberEntry::Own,
            NumberEntry::Parent,
            NumberEntry::Token,
            NumberEntry::Inherited(5),
        ] {
            set(fd, entry_of);
            assert_eq!(entry(fd), entry_of);
            assert!(known(0, c_uint::MAX).any(|found| found == (fd, entry_of)));
        }
        assert_eq!(set(fd, NumberEntry::Kernel), NumberEntry::Inherited(5));
        assert!(!has_pending_sets());
        set(fd, NumberEntry::PendingSet);
        set(fd, NumberEntry::PendingSet);
        assert!(has_pending_sets());
        set(fd, NumberEntry::Set(3));
        assert!(!has_pending_sets());
        set(fd, NumberEntry::Kernel);
        // In order, with both ends of a range, across blocks.
        let last = NUMBERS_MAX as c_int - 1;
        let mine = [900_031, 900_032, 900_033, 904_000, last];
        for fd in mine {
            set(fd, NumberEntry::PendingSet);
        }
        let found = |first: c_int, last: c_uint| -> Vec<c_int> {
            known(first.cast_unsigned(), last).map(|(fd, _)| fd).collect()
        };
        assert_eq!(found(900_000, c_uint::MAX), mine);
        assert_eq!(found(900_032, 904_000), mine[1..4]);
        assert_eq!(found(900_033, 900_032), []);
        assert_eq!(found(last, c_uint::MAX), [last]);
        assert_eq!(found(c_int::MAX, c_uint::MAX), []);
        for fd in mine {
            set(fd, NumberEntry::Kernel);
        }
        assert!(is_kernel(fd) && is_kernel(-1) && is_kernel(NUMBERS_MAX as c_int));
    }
}
