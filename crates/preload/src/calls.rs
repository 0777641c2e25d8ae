//! The interposed functions, by family.
//!
//! Each first looks its number up. A descriptor of the kernel passes to the next library without a
//! lock, an allocation or a look at thread-local memory.

use std::ffi::c_int;

use megapipe_sockets::{Error, Fd};

use crate::fork_sharing;
use crate::numbers::{self, NumberEntry};
use crate::raw::{errno, set_errno};
use crate::records::RECORDS;
use crate::rules::SocketPath;
use crate::stack;

mod by_number;
pub(crate) mod create;
pub(crate) mod data;
pub(crate) mod descriptors;
#[cfg(target_arch = "x86_64")]
pub(crate) mod exec_lists;
pub(crate) mod files;
pub(crate) mod inherited;
pub(crate) mod interfaces;
pub(crate) mod options;
pub(crate) mod passing;
pub(crate) mod pipes;
pub(crate) mod process;
pub(crate) mod sets;
pub(crate) mod shells;
pub(crate) mod signals;
pub(crate) mod streams;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vfork;
pub(crate) mod waits;

/// Looks up the next library's functions.
pub(crate) fn resolve() {
    create::resolve();
    data::resolve();
    descriptors::resolve();
    files::resolve();
    interfaces::resolve();
    options::resolve();
    pipes::resolve();
    process::resolve();
    sets::resolve();
    shells::resolve();
    signals::resolve();
    streams::resolve();
    waits::resolve();
}

/// Returns the names of all functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let families = [
        create::NAMES,
        data::NAMES,
        descriptors::NAMES,
        files::NAMES,
        interfaces::NAMES,
        options::NAMES,
        pipes::NAMES,
        process::NAMES,
        sets::NAMES,
        shells::NAMES,
        signals::NAMES,
        streams::NAMES,
        waits::NAMES,
        #[cfg(target_arch = "x86_64")]
        exec_lists::NAMES,
        #[cfg(target_arch = "x86_64")]
        vfork::NAMES,
    ];
    families.into_iter().flatten().copied()
}

/// What a call on a number works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallTarget {
    /// The kernel's descriptor.
    Kernel,
    /// A socket of the stack.
    Stack(Fd),
}

/// Returns what a call that transfers works on. A recorded socket of the stack starts the stack.
///
/// # Errors
/// ECHILD, EBADF, ENETDOWN.
#[inline]
pub(crate) fn target(fd: c_int) -> Result<CallTarget, Error> {
    match numbers::entry(fd) {
        NumberEntry::Kernel => Ok(CallTarget::Kernel),
        NumberEntry::Stack(inner) => Ok(CallTarget::Stack(inner)),
        other => cold_target(fd, other),
    }
}

#[cold]
fn cold_target(fd: c_int, entry: NumberEntry) -> Result<CallTarget, Error> {
    match entry {
        NumberEntry::Recorded(_) => stack::enter(|| {
            let mut records = RECORDS.lock();
            // Without a record another thread has been faster.
            if let Some(record) = records.of(fd) {
                if record.path != Some(SocketPath::Stack) || record.is_kept() {
                    return Ok(CallTarget::Kernel);
                }
                records.activate_all()?;
                records.activate(fd)?;
            }
            match numbers::entry(fd) {
                NumberEntry::Stack(inner) => Ok(CallTarget::Stack(inner)),
                _ => Ok(CallTarget::Kernel),
            }
        }),
        NumberEntry::Own => Err(Error::BadDescriptor),
        NumberEntry::Parent => Err(stack::refuse_in_child()),
        NumberEntry::Inherited(_) | NumberEntry::Token => match fork_sharing::resolved(fd)? {
            NumberEntry::Stack(inner) => Ok(CallTarget::Stack(inner)),
            // It only looked like a token.
            NumberEntry::Kernel => Ok(CallTarget::Kernel),
            _ => Err(Error::BadDescriptor),
        },
        NumberEntry::Stack(inner) => Ok(CallTarget::Stack(inner)),
        NumberEntry::Set(_) | NumberEntry::PendingSet | NumberEntry::Kernel => {
            Ok(CallTarget::Kernel)
        }
    }
}

/// Runs a call on a recorded socket. It runs again where it returns `None`: another thread has
/// given the socket to the stack meanwhile ([`without_record`]).
fn retried_on_stack<T>(mut call: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
    loop {
        if let Some(done) = call()? {
            return Ok(done);
        }
    }
}

/// A call of the kernel, under the lock of the records, on a socket that has none: `None` if it is
/// the stack's by now.
fn without_record(fd: c_int, pass: &dyn Fn() -> c_int) -> Result<Option<c_int>, Error> {
    if is_stacks(fd) { Ok(None) } else { passed(pass).map(Some) }
}

/// The result of the kernel, with its error: errno is kept by calls that succeed inside.
fn passed(pass: &dyn Fn() -> c_int) -> Result<c_int, Error> {
    match pass() {
        -1 => Err(Error::from_raw_os_error(errno())),
        result => Ok(result),
    }
}

/// A call of the kernel that changes nothing. It runs again where another thread gives a recorded
/// socket to the stack meanwhile: `None` then.
fn passed_unchanged(fd: c_int, pass: &dyn Fn() -> c_int) -> Option<c_int> {
    let result = pass();
    (!is_stacks(fd)).then_some(result)
}

fn is_stacks(fd: c_int) -> bool {
    matches!(numbers::entry(fd), NumberEntry::Stack(_))
}

/// Returns the result of a C function: a value, or -1 and errno.
#[inline]
pub(crate) fn answer<T: From<i8>>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            set_errno(error.raw_os_error());
            T::from(-1)
        }
    }
}

/// As [`answer`], for a function that returns 0.
#[inline]
pub(crate) fn status(result: Result<(), Error>) -> c_int {
    answer(result.map(|()| 0))
}
