//! Streams of libc on sockets of the stack.
//!
//! libc's streams read and write by its own calls, which nothing can interpose. A stream on a
//! socket of the library is therefore one with functions of its own (fopencookie(3)).
//!
//! Invariant: the number stands in the stream where libc has it for its own ones, so that no table
//! is needed. libc does not use it for a stream with functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{answer, data, descriptors};
use crate::next::interpose;
use crate::numbers::{self, NumberEntry};
use crate::raw::{errno, set_errno};
use megapipe_sockets::Error;

/// Place of the number in glibc's `struct _IO_FILE` (bits/types/struct_FILE.h).
const NUMBER_OFFSET: usize = 112;
/// The flag of glibc's streams with a number of their own (`_IO_IS_FILEBUF`), in the first word.
const IS_LIBCS: c_int = 0x2000;

interpose! {
    /// fdopen(3).
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE |pass| {
        match numbers::entry(fd) {
            NumberEntry::Kernel | NumberEntry::PendingSet | NumberEntry::Set(_) => pass(),
            NumberEntry::Own => {
                set_errno(libc::EBADF);
                std::ptr::null_mut()
            }
            // SAFETY: the program promises a mode.
            _ => unsafe { opened(fd, mode) },
        }
    }

    /// fileno(3).
    fn fileno(stream: *mut FILE) -> c_int |pass| {
        // SAFETY: the program promises an open stream.
        unsafe { number_of(stream) }.unwrap_or_else(pass)
    }

    /// fileno(3), without a lock.
    fn fileno_unlocked(stream: *mut FILE) -> c_int |pass| {
        // SAFETY: as above.
        unsafe { number_of(stream) }.unwrap_or_else(pass)
    }
}

/// Functions of a stream (`cookie_io_functions_t`).
#[repr(C)]
struct StreamFunctions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: StreamFunctions,
    ) -> *mut FILE;
}

/// # Safety
/// `mode` is a C string.
unsafe fn opened(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller promises a string.
    let is_known =
        matches!(unsafe { CStr::from_ptr(mode) }.to_bytes().first(), Some(b'r' | b'w' | b'a'));
    if !is_known {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    let functions = StreamFunctions { read, write, seek, close };
    // SAFETY: the functions take the number, which is passed as a pointer and is not followed.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        // SAFETY: glibc's stream is larger; only the program's thread has it.
        unsafe { stream.wrapping_byte_add(NUMBER_OFFSET).cast::<c_int>().write(fd) };
    }
    stream
}

/// The number of a stream that was made here.
///
/// # Safety
/// `stream` is an open stream.
pub(super) unsafe fn number_of(stream: *mut FILE) -> Option<c_int> {
    // SAFETY: the caller promises a stream, which begins with its flags.
    let flags = unsafe { stream.cast::<c_int>().read() };
    if flags & IS_LIBCS != 0 {
        return None;
    }
    // SAFETY: as in `opened`.
    let fd = unsafe { stream.wrapping_byte_add(NUMBER_OFFSET).cast::<c_int>().read() };
    (fd >= 0).then_some(fd)
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: libc passes its buffer.
    unsafe { data::read(cookie as usize as c_int, to.cast(), len) }
}

/// Returns 0 for an error, as libc wants it.
unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: libc passes its buffer.
        let from = from.wrapping_add(done).cast();
        // SAFETY: the same.
        let written = unsafe { data::write(cookie as usize as c_int, from, len - done) };
        match written {
            1.. => done += written as usize,
            _ if written < 0 && errno() == libc::EINTR && done == 0 => return 0,
            _ => break,
        }
    }
    done as ssize_t
}

unsafe extern "C" fn seek(_cookie: *mut c_void, _to: *mut off64_t, _whence: c_int) -> c_int {
    answer(Err(Error::NoPosition))
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: takes an integer.
    unsafe { descriptors::close(cookie as usize as c_int) }
}
