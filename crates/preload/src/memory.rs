//! The program's memory, checked as the kernel checks it: EFAULT instead of a signal.
//!
//! Read first: madvise(2) on MADV_POPULATE_READ, since Linux 5.14; `megapipe_marshal::memory`.
//!
//! A page that was checked once is remembered: programs use the same buffers again. If the program
//! unmaps it afterwards and passes it nevertheless, the call ends with the signal of a bad access.
//!
//! Invariants
//! - Where the kernel cannot answer, memory counts as valid.
//! - A piece is valid if its first and its last page are.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{iovec, msghdr, sigset_t};
use megapipe_marshal::{self as marshal, ArgumentError};
use megapipe_sockets::{Error, SignalMask};

use crate::raw::system_call;

const PAGE_BITS: u32 = 12;
const PAGE_BYTES: usize = 1 << PAGE_BITS;
/// Pages that are remembered, by the low bits of their numbers.
const PAGES_KNOWN: usize = 1 << 16;
/// Most bytes of one call in Linux.
const BYTES_MAX: usize = 0x7fff_f000;
/// Most pieces of one call in Linux.
const PIECES_MAX: usize = 1024;

/// Bytes of the kernel's signal mask.
const MASK_BYTES: usize = size_of::<u64>();

/// Numbers of pages, with [`Access`] in the lowest bit.
static KNOWN: [AtomicUsize; PAGES_KNOWN] = [const { AtomicUsize::new(0) }; PAGES_KNOWN];

/// What a call does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read = 0,
    Write = 1,
}

/// Checks memory of a record, of which all bytes are used.
///
/// # Errors
/// EFAULT.
#[inline]
pub(crate) fn check(at: usize, len: usize, access: Access) -> Result<(), ArgumentError> {
    match valid_bytes(at, len, access)? == len {
        true => Ok(()),
        false => Err(Error::Fault.into()),
    }
}

/// As [`marshal::memory`], for as many bytes as are there.
///
/// # Safety
/// As [`marshal::memory`], except that the memory may not exist.
#[inline]
pub(crate) unsafe fn memory<'a>(
    at: *const c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a [u8], ArgumentError> {
    let len = valid_bytes(at as usize, len.min(BYTES_MAX), Access::Read)?;
    // SAFETY: the caller keeps the contract; the memory exists.
    unsafe { marshal::memory(at, len, name) }
}

/// As [`marshal::memory_mut`], for as many bytes as are there.
///
/// # Safety
/// As [`marshal::memory_mut`], except that the memory may not exist.
#[inline]
pub(crate) unsafe fn memory_mut<'a>(
    at: *mut c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a mut [u8], ArgumentError> {
    let len = valid_bytes(at as usize, len.min(BYTES_MAX), Access::Write)?;
    // SAFETY: the caller keeps the contract; the memory exists.
    unsafe { marshal::memory_mut(at, len, name) }
}

/// Checks pieces of memory, and the array of them. Returns the number of their bytes. A count that
/// Linux refuses is left to the call: its number is `usize::MAX`.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Where the array exists, it is not written meanwhile.
pub(crate) unsafe fn check_pieces(
    at: *const iovec,
    count: usize,
    access: Access,
) -> Result<usize, ArgumentError> {
    if count > PIECES_MAX {
        return Ok(usize::MAX);
    }
    check(at as usize, count * size_of::<iovec>(), Access::Read)?;
    let mut bytes = 0_usize;
    for index in 0..count {
        // SAFETY: the array is readable, as was checked.
        let piece = unsafe { at.wrapping_add(index).read_unaligned() };
        if piece.iov_len <= BYTES_MAX {
            check(piece.iov_base as usize, piece.iov_len, access)?;
        }
        bytes = bytes.saturating_add(piece.iov_len);
    }
    Ok(bytes)
}

/// Checks a message, its pieces, its address and its control data.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Where the header exists, it is not written meanwhile.
pub(crate) unsafe fn check_message(
    message: *const msghdr,
    access: Access,
) -> Result<(), ArgumentError> {
    check(message as usize, size_of::<msghdr>(), access)?;
    // SAFETY: the header is readable, as was checked.
    let header = unsafe { message.read_unaligned() };
    // SAFETY: the caller keeps the contract.
    unsafe { check_pieces(header.msg_iov, header.msg_iovlen, access) }?;
    if !header.msg_name.is_null() {
        check(header.msg_name as usize, header.msg_namelen as usize, access)?;
    }
    if !header.msg_control.is_null() && header.msg_controllen <= BYTES_MAX {
        check(header.msg_control as usize, header.msg_controllen, access)?;
    }
    Ok(())
}

/// Reads the mask of a call that waits; null is none.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Where the mask exists, it is not written meanwhile.
pub(crate) unsafe fn mask(at: *const sigset_t) -> Result<Option<SignalMask>, Error> {
    if !at.is_null() {
        check(at as usize, MASK_BYTES, Access::Read)?;
    }
    // SAFETY: it is null or exists.
    Ok(unsafe { marshal::mask_of(at) })
}

/// Whether a list of C strings can be read up to its null pointer. Null is an empty list.
pub(crate) fn is_string_list(list: *const *const c_char) -> bool {
    let mut at = list;
    if at.is_null() {
        return true;
    }
    loop {
        if check(at as usize, size_of::<*const c_char>(), Access::Read).is_err() {
            return false;
        }
        // SAFETY: the pointer is readable, as was checked.
        let text = unsafe { at.read_unaligned() };
        if text.is_null() {
            return true;
        }
        if !is_string(text) {
            return false;
        }
        at = at.wrapping_add(1);
    }
}

/// Whether a C string can be read up to its NUL.
pub(crate) fn is_string(text: *const c_char) -> bool {
    let mut at = text;
    loop {
        if !is_valid(at as usize, Access::Read) {
            return false;
        }
        let in_page = PAGE_BYTES - at as usize % PAGE_BYTES;
        // SAFETY: the rest of the page is readable, as was checked.
        if unsafe { libc::strnlen(at, in_page) } < in_page {
            return true;
        }
        at = at.wrapping_add(in_page);
    }
}

/// Returns how many bytes from `at` on can be used: `len`, or those up to the end of the first
/// page.
///
/// # Errors
/// EFAULT: none.
#[inline]
fn valid_bytes(at: usize, len: usize, access: Access) -> Result<usize, ArgumentError> {
    if len == 0 {
        return Ok(0);
    }
    if !is_valid(at, access) {
        return Err(Error::Fault.into());
    }
    let last = at.saturating_add(len - 1);
    if last >> PAGE_BITS == at >> PAGE_BITS || is_valid(last, access) {
        return Ok(len);
    }
    Ok(PAGE_BYTES - at % PAGE_BYTES)
}

#[inline]
fn is_valid(at: usize, access: Access) -> bool {
    let page = at >> PAGE_BITS;
    // Relaxed: a page that is wrongly known or unknown changes only what is checked.
    let known = KNOWN[page % PAGES_KNOWN].load(Ordering::Relaxed);
    (known >> 1 == page && known & 1 >= access as usize && known != 0) || probe(page, access)
}

/// Asks the kernel.
#[cold]
fn probe(page: usize, access: Access) -> bool {
    // The kernel's half. On other machines the upper bits may be a tag.
    if cfg!(target_arch = "x86_64") && page >> (usize::BITS - 1 - PAGE_BITS) != 0 {
        return false;
    }
    let errno = |advice: c_int| {
        let arguments = [page << PAGE_BITS, PAGE_BYTES, advice as usize, 0, 0, 0];
        // SAFETY: brings a page of the program into memory, which changes no byte of it.
        -(unsafe { system_call(libc::SYS_madvise, arguments) }) as c_int
    };
    let is_valid = match access {
        Access::Read => !matches!(errno(libc::MADV_POPULATE_READ), libc::ENOMEM | libc::EFAULT),
        Access::Write => match errno(libc::MADV_POPULATE_WRITE) {
            libc::ENOMEM | libc::EFAULT => false,
            // Constant memory, or a kernel without these calls.
            libc::EINVAL => errno(libc::MADV_POPULATE_READ) != 0,
            _ => true,
        },
    };
    if is_valid {
        KNOWN[page % PAGES_KNOWN].store(page << 1 | access as usize, Ordering::Relaxed);
    }
    is_valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_pages_are_found() {
        let bytes = vec![7_u8; 3 * PAGE_BYTES];
        let at = bytes.as_ptr() as usize;
        assert!(check(at, bytes.len(), Access::Write).is_ok());
        for bad in [0, 1, usize::MAX - PAGE_BYTES, usize::MAX] {
            assert!(check(bad, 1, Access::Read).is_err(), "{bad:x}");
            assert!(check(bad, 1, Access::Write).is_err(), "{bad:x}");
        }
        assert!(check(0, 0, Access::Write).is_ok());
        static CONSTANT: [u8; 8] = [1; 8];
        let constant = (&raw const CONSTANT) as usize;
        assert!(check(constant, 8, Access::Read).is_ok());
    }

    /// A new page before one that is not mapped.
    fn page_before_hole() -> *mut c_void {
        let len = 2 * PAGE_BYTES;
        let flags = rustix::mm::MapFlags::PRIVATE;
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
        let at = at.unwrap();
        let hole = at.wrapping_byte_add(PAGE_BYTES);
        // SAFETY: nothing uses the second page.
        unsafe { rustix::mm::munmap(hole, PAGE_BYTES) }.unwrap();
        at
    }

    #[test]
    fn strings_without_end_before_a_hole_are_invalid() {
        let at = page_before_hole();
        let end = at.wrapping_byte_add(PAGE_BYTES);
        let last = end.wrapping_byte_sub(1).cast::<c_char>();
        // SAFETY: the last byte of the page is ours.
        unsafe { last.write(b'x' as c_char) };
        assert!(!is_string(last) && !is_string(end.cast()) && !is_string(std::ptr::null()));
        let list = [c"text".as_ptr(), last, std::ptr::null()];
        assert!(!is_string_list(list.as_ptr()) && is_string_list(list[2..].as_ptr()));
        // SAFETY: as above.
        unsafe { last.write(0) };
        assert!(is_string(last) && is_string_list(list.as_ptr()));
        assert!(is_string_list(std::ptr::null()) && !is_string_list(end.cast()));
        // SAFETY: nothing uses the page.
        unsafe { rustix::mm::munmap(at, PAGE_BYTES) }.unwrap();
    }

    #[test]
    fn bytes_before_a_hole_are_usable() {
        let at = page_before_hole();
        let start = at as usize + PAGE_BYTES - 10;
        assert_eq!(valid_bytes(start, 8, Access::Write).unwrap(), 8);
        assert_eq!(valid_bytes(start, 20, Access::Write).unwrap(), 10);
        assert!(check(start, 20, Access::Read).is_err());
        // SAFETY: nothing uses the page.
        unsafe { rustix::mm::munmap(at, PAGE_BYTES) }.unwrap();
    }
}
