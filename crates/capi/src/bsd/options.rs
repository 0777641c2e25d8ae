//! Options and modes of descriptors, and duplication.
//!
//! `fcntl` and `ioctl` take an argument of any type. On the supported machines, a word-sized
//! argument after `...` is passed as an ordinary one, so here it is a word; it is ignored where the
//! program passes none.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;
use marshal::{IntArgument, check_room, memory, memory_mut};
use sockets::{Bsd, OpenFlags};

use super::context::{in_order, with_fd};
use super::outcome::{answer, status};
use super::thread::is_ours;
use crate::error::CallError;

/// getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what getsockopt(2) asks for.
        return unsafe { libc::getsockopt(fd, level, name, value, size) };
    }
    let get = || {
        // SAFETY: the program promises a size, or null.
        unsafe { check_room(size) }?;
        // SAFETY: the same.
        let room = unsafe { size.read() } as usize;
        // SAFETY: it promises that many writable bytes.
        let room = unsafe { memory_mut(value, room, "optval") }?;
        let told = with_fd(fd, |sockets| sockets.getsockopt(fd, level, name, room))?;
        // SAFETY: it promises a writable size.
        unsafe { size.write(told as socklen_t) };
        Ok(())
    };
    status("mps_getsockopt", in_order(fd, get()))
}

/// setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    size: socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what setsockopt(2) asks for.
        return unsafe { libc::setsockopt(fd, level, name, value, size) };
    }
    let set = || {
        let size = usize::try_from(size.cast_signed());
        let size = size.map_err(|_| CallError::Argument("optlen"))?;
        // SAFETY: the program promises that many readable bytes.
        let value = unsafe { memory(value, size, "optval") }?;
        with_fd(fd, |sockets| sockets.setsockopt(fd, level, name, value))
    };
    status("mps_setsockopt", in_order(fd, set()))
}

/// ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what ioctl(2) asks for.
        return unsafe { libc::ioctl(fd, request, argument) };
    }
    let control = || {
        let int = IntArgument::of(request);
        if int != IntArgument::Ignored && argument.is_null() {
            return Err(CallError::Null("argument").into());
        }
        let place = argument.cast::<c_int>();
        // SAFETY: for these requests the program promises a pointer to an int.
        let given = if int == IntArgument::Read { unsafe { place.read() } } else { 0 };
        let told = with_fd(fd, |sockets| sockets.ioctl(fd, request, given))?;
        if int == IntArgument::Written {
            // SAFETY: the same.
            unsafe { place.write(told) };
        }
        Ok(())
    };
    status("mps_ioctl", in_order(fd, control()))
}

/// fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what fcntl(2) asks for.
        return unsafe { libc::fcntl(fd, command, argument) };
    }
    // The argument is an int; the upper half of the register is undefined.
    let argument = argument as c_int;
    answer("mps_fcntl", with_fd(fd, |sockets| sockets.fcntl(fd, command, argument)))
}

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C" fn mps_dup(fd: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: takes an integer.
        return unsafe { libc::dup(fd) };
    }
    answer("mps_dup", with_fd(fd, |sockets| sockets.fcntl(fd, libc::F_DUPFD, 0)))
}

/// dup2(2). A descriptor of the library cannot become one of the process, nor the reverse: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn mps_dup2(old: c_int, new: c_int) -> c_int {
    if !is_ours(old) {
        // SAFETY: takes integers.
        return unsafe { libc::dup2(old, new) };
    }
    let dup = with_fd(old, |sockets| {
        sockets.fcntl(old, libc::F_GETFD, 0)?;
        if old == new { Ok(new) } else { sockets.dup3(old, new, OpenFlags::empty()) }
    });
    answer("mps_dup2", dup)
}

/// dup3(2), as dup2.
#[unsafe(no_mangle)]
pub extern "C" fn mps_dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if !is_ours(old) {
        // SAFETY: takes integers.
        return unsafe { libc::dup3(old, new, flags) };
    }
    let flags = OpenFlags::from_bits(flags).ok_or_else(|| CallError::Argument("flags").into());
    let dup = flags.and_then(|flags| with_fd(old, |sockets| sockets.dup3(old, new, flags)));
    answer("mps_dup3", dup)
}
