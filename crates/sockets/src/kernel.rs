//! Socket options of the kernel's sockets, as the caller gave them: what they mean, and which there
//! are, is the kernel's to say.
//!
//! Read first: setsockopt(2), getsockopt(2).
#![expect(unsafe_code, reason = "see docs/UNSAFE.md")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Error;

fn check(result: libc::c_int) -> Result<(), Error> {
    if result < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
}

/// setsockopt(2).
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<(), Error> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which outlives the call. Options whose value
    // holds pointers of its own are refused before (`options::holds_pointers`), so the kernel reads
    // nothing else.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) })
}

/// getsockopt(2): how many bytes of `value` were filled.
pub(crate) fn option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> Result<usize, Error> {
    let mut len = value.len() as libc::socklen_t;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: pointer and length describe `value`, which outlives the call, and bytes of any value
    // are valid there. Options whose value holds pointers of its own are refused before.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &raw mut len) })?;
    Ok(len as usize)
}
