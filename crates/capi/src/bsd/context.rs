//! Finds the sockets of a call, and creates those of a thread that has none.
//!
//! Read first: `thread.rs`, `setup.rs`.

use std::ffi::c_int;

use sockets::{Bsd, Error};

use super::outcome::SocketCallError;
use super::setup;
use super::thread::{ThreadState, here};
use crate::error::{CallError, CallFailure};

/// Runs `work` with the sockets of the calling thread, which are created if it has none.
#[inline]
pub(super) fn with_sockets<T>(
    work: impl FnOnce(&mut ThreadState) -> Result<T, Error>,
) -> Result<T, SocketCallError> {
    if let Some(thread) = here()? {
        return thread.enter(work);
    }
    setup::make()?;
    match here()? {
        Some(thread) => thread.enter(work),
        None => Err(CallError::NoContext.into()),
    }
}

/// Runs `work` with the sockets that a descriptor belongs to.
#[inline]
pub(super) fn with_fd<T>(
    fd: c_int,
    work: impl FnOnce(&mut ThreadState) -> Result<T, Error>,
) -> Result<T, SocketCallError> {
    match here()? {
        Some(thread) if thread.has(fd) => thread.enter(work),
        Some(thread) => {
            thread.check_process()?;
            Err(CallError::OtherThreads.into())
        }
        None if setup::join()? => with_sockets(work),
        None => Err(CallError::OtherThreads.into()),
    }
}

/// Orders the errors of a call on a descriptor: EBADF comes before any other error, such as EFAULT,
/// as in Linux.
#[inline]
pub(super) fn in_order<T>(
    fd: c_int,
    result: Result<T, SocketCallError>,
) -> Result<T, SocketCallError> {
    match result {
        Err(SocketCallError::Call(failure)) => Err(refused(fd, failure)),
        result => result,
    }
}

#[cold]
fn refused(fd: c_int, failure: CallFailure) -> SocketCallError {
    match with_fd(fd, |sockets| sockets.fcntl(fd, libc::F_GETFD, 0)) {
        Ok(_) => failure.into(),
        Err(refusal) => refusal,
    }
}
