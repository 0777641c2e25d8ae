//! Memory that a program hands over by address and length, and pieces of it (`struct iovec`).
//!
//! Read first: `readv(2)`.
//!
//! Invariants
//! - A null pointer, and a length that no memory has, are errors and are not followed.
//! - A call with few pieces allocates nothing.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};

use libc::iovec;

use crate::error::{CallError, Failure};
use crate::limits::{MOVED_BYTES_MAX, PARTS_AT_HAND, PARTS_MAX};

/// Memory of the program's, as much of it as one call moves.
///
/// # Safety
/// `at` is null, or points to `len` bytes, of which the first [`MOVED_BYTES_MAX`] are readable and
/// not written as long as `'a` lasts.
pub(crate) unsafe fn memory<'a>(
    at: *const c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a [u8], Failure> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CallError::Null(name).into()),
        // SAFETY: the caller promises the bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len.min(MOVED_BYTES_MAX)) }),
    }
}

/// # Safety
/// As [`memory`], for bytes that nobody else reads or writes.
pub(crate) unsafe fn memory_mut<'a>(
    at: *mut c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a mut [u8], Failure> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CallError::Null(name).into()),
        // SAFETY: the caller promises the bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len.min(MOVED_BYTES_MAX)) }),
    }
}

/// Runs `work` on pieces to read from. No count: more than there can be.
///
/// # Safety
/// `at` is null or points to as many pieces, each as [`memory`] has it.
pub(crate) unsafe fn with_parts<T, E: From<Failure>>(
    at: *const iovec,
    count: Option<usize>,
    work: impl FnOnce(&[IoSlice<'_>]) -> Result<T, E>,
) -> Result<T, E> {
    // SAFETY: the caller promises the pieces.
    let pieces = unsafe { pieces(at, count) }?;
    let part = |piece: &iovec| -> Result<IoSlice<'_>, Failure> {
        // SAFETY: each piece is readable memory, as the caller promises.
        Ok(IoSlice::new(unsafe { memory(piece.iov_base, piece.iov_len, "iov_base") }?))
    };
    if pieces.len() > PARTS_AT_HAND {
        let parts: Result<Vec<IoSlice<'_>>, Failure> = pieces.iter().map(part).collect();
        return work(&parts?);
    }
    let mut parts = [IoSlice::new(&[]); PARTS_AT_HAND];
    for (place, piece) in parts.iter_mut().zip(pieces) {
        *place = part(piece)?;
    }
    work(&parts[..pieces.len()])
}

/// Runs `work` on pieces to write to.
///
/// # Safety
/// `at` is null or points to as many pieces, each as [`memory_mut`] has it.
pub(crate) unsafe fn with_parts_mut<T, E: From<Failure>>(
    at: *const iovec,
    count: Option<usize>,
    work: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<T, E>,
) -> Result<T, E> {
    // SAFETY: the caller promises the pieces.
    let pieces = unsafe { pieces(at, count) }?;
    let part = |piece: &iovec| -> Result<IoSliceMut<'_>, Failure> {
        // SAFETY: each piece is writable memory of its own, as the caller promises.
        Ok(IoSliceMut::new(unsafe { memory_mut(piece.iov_base, piece.iov_len, "iov_base") }?))
    };
    if pieces.len() > PARTS_AT_HAND {
        let parts: Result<Vec<IoSliceMut<'_>>, Failure> = pieces.iter().map(part).collect();
        return work(&mut parts?);
    }
    let mut parts: [IoSliceMut<'_>; PARTS_AT_HAND] =
        std::array::from_fn(|_| IoSliceMut::new(&mut []));
    for (place, piece) in parts.iter_mut().zip(pieces) {
        *place = part(piece)?;
    }
    work(&mut parts[..pieces.len()])
}

/// # Safety
/// `at` is null or points to as many readable records.
unsafe fn pieces<'a>(at: *const iovec, count: Option<usize>) -> Result<&'a [iovec], Failure> {
    let count = count.filter(|&count| count <= PARTS_MAX);
    let count = count.ok_or(CallError::Argument("the number of pieces"))?;
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(CallError::Null("iov").into());
    }
    // SAFETY: the caller promises the records.
    let pieces = unsafe { std::slice::from_raw_parts(at, count) };
    match pieces.iter().any(|piece| piece.iov_len > isize::MAX as usize) {
        true => Err(CallError::Argument("iov_len").into()),
        false => Ok(pieces),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of<T>(result: Result<T, Failure>) -> i32 {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    #[test]
    fn pieces_few_or_many_are_what_the_program_named() {
        for count in [0, 1, PARTS_AT_HAND, PARTS_AT_HAND + 1, PARTS_MAX] {
            let bytes: Vec<u8> = (0..count).map(|index| index as u8).collect();
            let piece =
                |byte: &u8| iovec { iov_base: (&raw const *byte).cast_mut().cast(), iov_len: 1 };
            let records: Vec<iovec> = bytes.iter().map(piece).collect();
            let joined = |parts: &[IoSlice<'_>]| -> Result<Vec<u8>, Failure> {
                Ok(parts.iter().flat_map(|part| part.to_vec()).collect())
            };
            // SAFETY: each record names a byte of `bytes`.
            let got = unsafe { with_parts(records.as_ptr(), Some(count), joined) };
            assert_eq!(got.unwrap(), bytes);
            let mut room = vec![0_u8; count];
            let piece = |byte: &mut u8| iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 };
            let records: Vec<iovec> = room.iter_mut().map(piece).collect();
            let fill = |parts: &mut [IoSliceMut<'_>]| -> Result<(), Failure> {
                parts.iter_mut().for_each(|part| part.fill(9));
                Ok(())
            };
            // SAFETY: each record names a byte of `room`, which nobody else uses meanwhile.
            unsafe { with_parts_mut(records.as_ptr(), Some(count), fill) }.unwrap();
            assert_eq!(room, vec![9; count]);
        }
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let null = iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        let long = iovec { iov_base: std::ptr::dangling_mut::<u8>().cast(), iov_len: usize::MAX };
        let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let ask = |at: *const iovec, count| {
            // SAFETY: no piece that is followed is anything but empty.
            errno_of(unsafe { with_parts(at, count, |_| Ok::<(), Failure>(())) })
        };
        assert_eq!(ask(&raw const null, Some(1)), libc::EFAULT);
        assert_eq!(ask(&raw const long, Some(1)), libc::EINVAL);
        assert_eq!(ask(&raw const empty, Some(1)), 0);
        assert_eq!(ask(std::ptr::null(), Some(1)), libc::EFAULT);
        assert_eq!(ask(std::ptr::null(), Some(0)), 0);
        assert_eq!(ask(&raw const null, Some(PARTS_MAX + 1)), libc::EINVAL);
        assert_eq!(ask(&raw const null, None), libc::EINVAL);
        // SAFETY: no bytes are promised, and none are looked at.
        assert_eq!(unsafe { memory(std::ptr::null(), 0, "x") }.unwrap(), []);
    }
}
