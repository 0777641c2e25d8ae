//! Calls that return descriptors of the kernel: their numbers are no longer the library's, if libc
//! closed them without a call that the library sees; and fclose(3), which is such a call.

use std::ffi::{c_char, c_int, c_uint};

use libc::{FILE, mode_t};

use super::descriptors::reap;
use super::streams;
use crate::handlers;
use crate::inner;
use crate::next::interpose;
use crate::numbers;

interpose! {
    /// open(2).
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int |pass| { reaped(pass()) }

    /// open(2), of large files.
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int |pass| { reaped(pass()) }

    /// openat(2).
    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int |pass| {
        reaped(pass())
    }

    /// openat(2), of large files.
    fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int |pass| {
        reaped(pass())
    }

    /// creat(2).
    fn creat(path: *const c_char, mode: mode_t) -> c_int |pass| { reaped(pass()) }

    /// creat(2), of large files.
    fn creat64(path: *const c_char, mode: mode_t) -> c_int |pass| { reaped(pass()) }

    /// pipe(2).
    fn pipe(ends: *mut c_int) -> c_int |pass| {
        let made = pass();
        // SAFETY: the kernel has filled both ends if it made them.
        unsafe { reap_both(made, ends) };
        made
    }

    /// pipe2(2).
    fn pipe2(ends: *mut c_int, flags: c_int) -> c_int |pass| {
        let made = pass();
        // SAFETY: as in `pipe`.
        unsafe { reap_both(made, ends) };
        made
    }

    /// socketpair(2).
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int |pass| {
        let made = pass();
        // SAFETY: as in `pipe`.
        unsafe { reap_both(made, ends) };
        made
    }

    /// eventfd(2).
    fn eventfd(count: c_uint, flags: c_int) -> c_int |pass| { reaped(pass()) }

    /// timerfd_create(2).
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int |pass| { reaped(pass()) }

    /// signalfd(2).
    fn signalfd(fd: c_int, mask: *const libc::sigset_t, flags: c_int) -> c_int |pass| {
        reaped(pass())
    }

    /// memfd_create(2).
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int |pass| {
        if handlers::is_inside() {
            // `rustix` looks the function up by dlsym(3), so it finds this one.
            // SAFETY: the caller promises what memfd_create(2) asks for.
            return unsafe { inner::memfd_create(name as usize, flags as usize) } as c_int;
        }
        reaped(pass())
    }

    /// inotify_init(2).
    fn inotify_init() -> c_int |pass| { reaped(pass()) }

    /// inotify_init1(2).
    fn inotify_init1(flags: c_int) -> c_int |pass| { reaped(pass()) }

    /// fclose(3).
    fn fclose(stream: *mut FILE) -> c_int |pass| {
        // SAFETY: the program promises an open stream.
        let is_own = unsafe { streams::number_of(stream) }.is_some();
        // SAFETY: the same.
        let fd = if is_own { -1 } else { unsafe { libc::fileno(stream) } };
        // Once it is closed, another thread may have the number.
        if fd >= 0 && numbers::entry(fd) != numbers::NumberEntry::Own {
            reap(fd);
        }
        pass()
    }
}

#[inline]
fn reaped(fd: c_int) -> c_int {
    reap(fd);
    fd
}

/// # Safety
/// `made` is -1, or `ends` points to two descriptors.
unsafe fn reap_both(made: c_int, ends: *const c_int) {
    if made != 0 {
        return;
    }
    for index in 0..2 {
        // SAFETY: the caller promises both.
        reap(unsafe { ends.wrapping_add(index).read() });
    }
}
