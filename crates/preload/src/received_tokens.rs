//! Tokens that this process has received in messages (SCM_RIGHTS), or from the program that was in
//! it before exec(3), on the back end `service`.
//!
//! Read first: decision 0056; `calls/passing.rs` and `exec_sharing.rs` for the senders.
//!
//! A number with a token is a socket of the kernel until the program uses it: a program that only
//! closes it, or passes it on, needs no stack. Then this process adopts the connection, and a
//! placeholder takes the token's place.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};

use megapipe_sockets::{Bsd, Error};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::numbers::{self, NumberEntry};
use crate::raw::system_call;
use crate::records::{RecordedSockets, anchor};
use crate::report::{self, COUNTS};

/// The mode belongs to the socket: who adopts a token reads it there.
///
/// # Errors
/// As fcntl(2).
pub(crate) fn set_mode(token: impl AsFd, mode: c_int) -> Result<(), Error> {
    let mode = OFlags::from_bits_retain(mode.cast_unsigned());
    Ok(rustix::fs::fcntl_setfl(token, mode & OFlags::NONBLOCK)?)
}

/// Notes a number that this process was given, if it is a token.
pub(crate) fn note(fd: c_int) {
    if fd < 0 || !numbers::is_kernel(fd) {
        return;
    }
    // SAFETY: the number is open: the kernel has given it to this process just now.
    if megapipe::is_token(unsafe { BorrowedFd::borrow_raw(fd) }) {
        numbers::set(fd, NumberEntry::Token);
    }
}

/// Adopts the connection of a token. All numbers of the token stand for it.
///
/// # Errors
/// ECONNRESET: the connection has ended; ENETDOWN; as accept(2). The number stays a token.
pub(crate) fn adopt(records: &RecordedSockets, fd: c_int) -> Result<(), Error> {
    // SAFETY: the number is open while the table has it.
    let token = unsafe { BorrowedFd::borrow_raw(fd) };
    let numbers_of_token = numbers_of(token)?;
    let mut context = records.start_stack()?;
    let mode = rustix::fs::fcntl_getfl(token)?;
    let inner = match context.adopt_token(token, mode.contains(OFlags::NONBLOCK)) {
        Ok(inner) => inner,
        Err(Error::BadDescriptor) if !has_ended(token) => {
            // It is a socket of the program's own that looks like a token.
            for number in numbers_of_token {
                numbers::set(number, NumberEntry::Kernel);
            }
            return Ok(());
        }
        Err(error) => {
            let has_ended = matches!(error.raw_os_error(), libc::ESTALE | libc::EBADF);
            return Err(if has_ended { Error::Reset } else { error });
        }
    };
    for (place, number) in numbers_of_token.into_iter().enumerate() {
        let of_number = match place {
            0 => inner,
            _ => context.fcntl(inner, libc::F_DUPFD, 0)?,
        };
        put_placeholder(number)?;
        numbers::set(number, NumberEntry::Stack(of_number));
    }
    report::count(&COUNTS.connections_received);
    Ok(())
}

/// The numbers of the process that are duplicates of one token.
fn numbers_of(token: BorrowedFd<'_>) -> Result<Vec<c_int>, Error> {
    let inode = rustix::fs::fstat(token)?.st_ino;
    let tokens = numbers::known(0, u32::MAX).filter(|(_, entry)| *entry == NumberEntry::Token);
    let its = tokens.map(|(number, _)| number).filter(|number| {
        // SAFETY: the number is open while the table has it.
        let other = unsafe { BorrowedFd::borrow_raw(*number) };
        rustix::fs::fstat(other).is_ok_and(|facts| facts.st_ino == inode)
    });
    Ok(its.collect())
}

/// Whether the daemon has closed its end.
fn has_ended(token: BorrowedFd<'_>) -> bool {
    let mut looked = [PollFd::from_borrowed_fd(token, PollFlags::empty())];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let found = rustix::event::poll(&mut looked, Some(&none));
    found.is_ok() && looked[0].revents().contains(PollFlags::HUP)
}

/// A placeholder takes the place of a token, which is closed there.
///
/// # Errors
/// As dup3(2).
pub(crate) fn put_placeholder(number: c_int) -> Result<(), Error> {
    let closes = if closes_on_exec(number) { libc::O_CLOEXEC } else { 0 };
    put(anchor()?, number, closes)
}

/// Whether exec(3) closes a number; also if it is not open.
pub(crate) fn closes_on_exec(number: c_int) -> bool {
    let arguments = [number as usize, libc::F_GETFD as usize, 0, 0, 0, 0];
    // SAFETY: takes integers.
    let flags = unsafe { system_call(libc::SYS_fcntl, arguments) };
    flags != 0
}

/// The number stands for another file in the kernel from now on.
///
/// # Errors
/// As dup3(2).
pub(crate) fn put(file: c_int, number: c_int, flags: c_int) -> Result<(), Error> {
    let arguments = [file as usize, number as usize, flags as usize, 0, 0, 0];
    // SAFETY: takes integers; the caller's program owns the number.
    match unsafe { system_call(libc::SYS_dup3, arguments) } {
        0.. => Ok(()),
        error => Err(Error::from_raw_os_error(-error as c_int)),
    }
}
