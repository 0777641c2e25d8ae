//! Descriptors in messages of AF_UNIX sockets (SCM_RIGHTS): a socket of the stack cannot go to
//! another process, where its placeholder would stand for nothing.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{mmsghdr, msghdr};
use megapipe_sockets::Error;

use crate::memory::{Access, check as check_memory};
use crate::numbers::{self, NumberEntry};
use crate::raw::process;
use crate::refusals::{self, CallRefusal};
use crate::report;
use crate::stack;

/// Checks that a message for a socket of the kernel passes no socket of the stack.
///
/// # Errors
/// EOPNOTSUPP, with one line on standard error in a process.
///
/// # Safety
/// Where the header exists, neither it nor its control data is written meanwhile.
#[inline]
pub(super) unsafe fn check(message: *const msghdr) -> Result<(), Error> {
    if stack::settings().is_none()
        || check_memory(message as usize, size_of::<msghdr>(), Access::Read).is_err()
    {
        // What is wrong is the kernel's to find.
        return Ok(());
    }
    // SAFETY: the header is readable, as was checked.
    let header = unsafe { &*message };
    match header.msg_control.is_null() || header.msg_controllen == 0 {
        true => Ok(()),
        // SAFETY: the caller keeps the contract.
        false => unsafe { check_control(header) },
    }
}

/// As [`check`], for the messages of one sendmmsg(2).
///
/// # Errors
/// As [`check`].
///
/// # Safety
/// As [`check`], for each message.
pub(super) unsafe fn check_all(messages: *const mmsghdr, count: c_uint) -> Result<(), Error> {
    for index in 0..(count as usize).min(libc::UIO_MAXIOV as usize) {
        // SAFETY: the caller keeps the contract; a message begins with its header.
        unsafe { check(messages.wrapping_add(index).cast()) }?;
    }
    Ok(())
}

#[cold]
unsafe fn check_control(header: &msghdr) -> Result<(), Error> {
    let mut checked = Ok(());
    let mut check = |fd| checked = checked.and_then(|()| check_number(fd));
    // SAFETY: the caller keeps the contract.
    unsafe { descriptors(header, &mut check) };
    checked
}

/// Gives the descriptors in a message's control data to `take`.
///
/// # Safety
/// Where the control data exists, it is not written meanwhile.
pub(super) unsafe fn descriptors(header: &msghdr, mut take: impl FnMut(c_int)) {
    if check_memory(header.msg_control as usize, header.msg_controllen, Access::Read).is_err() {
        return;
    }
    let header = &raw const *header;
    // SAFETY: the control data is readable, as was checked.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or within the control data.
    while let Some(head) = unsafe { part.as_ref() } {
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: computes a size.
            let size = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the part has a header.
            let at = unsafe { libc::CMSG_DATA(part) }.cast::<c_int>();
            for index in 0..head.cmsg_len.saturating_sub(size) / size_of::<c_int>() {
                // SAFETY: the part has that many descriptors.
                take(unsafe { at.wrapping_add(index).read_unaligned() });
            }
        }
        // SAFETY: as above.
        part = unsafe { libc::CMSG_NXTHDR(header, part) };
    }
}

fn check_number(fd: c_int) -> Result<(), Error> {
    match numbers::entry(fd) {
        NumberEntry::Own => Err(Error::BadDescriptor),
        NumberEntry::Stack(_) | NumberEntry::Parent => {
            static PRINTED: AtomicBool = AtomicBool::new(false);
            refusals::count(CallRefusal::PassedSocket);
            if !PRINTED.swap(true, Ordering::Relaxed) {
                report::complain(format_args!(
                    "process {} passes a socket of the stack to another process (SCM_RIGHTS), \
                     which is refused",
                    process()
                ));
            }
            Err(Error::NotSupported)
        }
        // A listener of both paths, or a socket without a path, is also the kernel's.
        _ => Ok(()),
    }
}
