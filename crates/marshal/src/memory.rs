//! Memory that a program passes by address and length, and arrays of it (`struct iovec`).
//!
//! Read first: `readv(2)`.
//!
//! Invariants
//! - A null pointer, or a length beyond any address space, is an error and is not followed.
//! - A call with few pieces allocates nothing.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};

use libc::iovec;
use megapipe_sockets::Error;

use crate::error::ArgumentError;
use crate::limits::{MOVED_BYTES_MAX, PARTS_MAX, PARTS_ON_STACK};

/// The program's memory, up to the most that one call moves.
///
/// # Safety
/// `at` is null, or points to `len` bytes, of which the first [`MOVED_BYTES_MAX`] are readable and
/// not written as long as `'a` lasts.
pub unsafe fn memory<'a>(
    at: *const c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a [u8], ArgumentError> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(ArgumentError::Null(name)),
        // SAFETY: the caller promises the bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len.min(MOVED_BYTES_MAX)) }),
    }
}

/// # Safety
/// As [`memory`], for bytes that no other thread or reference uses.
pub unsafe fn memory_mut<'a>(
    at: *mut c_void,
    len: usize,
    name: &'static str,
) -> Result<&'a mut [u8], ArgumentError> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(ArgumentError::Null(name)),
        // SAFETY: the caller promises the bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len.min(MOVED_BYTES_MAX)) }),
    }
}

/// Runs `work` on pieces to read from. A count of `None` is beyond the limit.
///
/// # Safety
/// `at` is null or points to `count` pieces, each as for [`memory`].
pub unsafe fn with_parts<T, E: From<ArgumentError>>(
    at: *const iovec,
    count: Option<usize>,
    work: impl FnOnce(&[IoSlice<'_>]) -> Result<T, E>,
) -> Result<T, E> {
    // SAFETY: the caller promises the pieces.
    let pieces = unsafe { pieces(at, count) }?;
    let part = |piece: &iovec| -> Result<IoSlice<'_>, ArgumentError> {
        // SAFETY: each piece is readable memory, as the caller promises.
        Ok(IoSlice::new(unsafe { memory(piece.iov_base, piece.iov_len, "iov_base") }?))
    };
    if pieces.len() > PARTS_ON_STACK {
        let mut parts = room_for(pieces.len())?;
        for piece in pieces {
            parts.push(part(piece)?);
        }
        return work(&parts);
    }
    let mut parts = [IoSlice::new(&[]); PARTS_ON_STACK];
    for (place, piece) in parts.iter_mut().zip(pieces) {
        *place = part(piece)?;
    }
    work(&parts[..pieces.len()])
}

/// Runs `work` on pieces to write to.
///
/// # Safety
/// `at` is null or points to `count` pieces, each as for [`memory_mut`].
pub unsafe fn with_parts_mut<T, E: From<ArgumentError>>(
    at: *const iovec,
    count: Option<usize>,
    work: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<T, E>,
) -> Result<T, E> {
    // SAFETY: the caller promises the pieces.
    let pieces = unsafe { pieces(at, count) }?;
    let part = |piece: &iovec| -> Result<IoSliceMut<'_>, ArgumentError> {
        // SAFETY: each piece is writable memory of its own, as the caller promises.
        Ok(IoSliceMut::new(unsafe { memory_mut(piece.iov_base, piece.iov_len, "iov_base") }?))
    };
    if pieces.len() > PARTS_ON_STACK {
        let mut parts = room_for(pieces.len())?;
        for piece in pieces {
            parts.push(part(piece)?);
        }
        return work(&mut parts);
    }
    let mut parts: [IoSliceMut<'_>; PARTS_ON_STACK] =
        std::array::from_fn(|_| IoSliceMut::new(&mut []));
    for (place, piece) in parts.iter_mut().zip(pieces) {
        *place = part(piece)?;
    }
    work(&mut parts[..pieces.len()])
}

/// An empty list that has room for `count`.
fn room_for<T>(count: usize) -> Result<Vec<T>, ArgumentError> {
    let mut parts = Vec::new();
    parts.try_reserve_exact(count).map_err(|_| ArgumentError::Socket(Error::NoMemory))?;
    Ok(parts)
}

/// # Safety
/// `at` is null or points to `count` readable records.
unsafe fn pieces<'a>(at: *const iovec, count: Option<usize>) -> Result<&'a [iovec], ArgumentError> {
    let count = count.filter(|&count| count <= PARTS_MAX);
    let count = count.ok_or(ArgumentError::Invalid("the number of pieces"))?;
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(ArgumentError::Null("iov"));
    }
    // SAFETY: the caller promises the records.
    let pieces = unsafe { std::slice::from_raw_parts(at, count) };
    match pieces.iter().any(|piece| piece.iov_len > isize::MAX as usize) {
        true => Err(ArgumentError::Invalid("iov_len")),
        false => Ok(pieces),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of<T>(result: Result<T, ArgumentError>) -> i32 {
        result.err().map_or(0, |failure| Error::from(failure).raw_os_error())
    }

    #[test]
    fn pieces_on_stack_and_heap_match_the_iovec_array() {
        for count in [0, 1, PARTS_ON_STACK, PARTS_ON_STACK + 1, PARTS_MAX] {
            let bytes: Vec<u8> = (0..count).map(|index| index as u8).collect();
            let piece =
                |byte: &u8| iovec { iov_base: (&raw const *byte).cast_mut().cast(), iov_len: 1 };
            let records: Vec<iovec> = bytes.iter().map(piece).collect();
            let joined = |parts: &[IoSlice<'_>]| -> Result<Vec<u8>, ArgumentError> {
                Ok(parts.iter().flat_map(|part| part.to_vec()).collect())
            };
            // SAFETY: each record names a byte of `bytes`.
            let got = unsafe { with_parts(records.as_ptr(), Some(count), joined) };
            assert_eq!(got.unwrap(), bytes);
            let mut room = vec![0_u8; count];
            let piece = |byte: &mut u8| iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 };
            let records: Vec<iovec> = room.iter_mut().map(piece).collect();
            let fill = |parts: &mut [IoSliceMut<'_>]| -> Result<(), ArgumentError> {
                parts.iter_mut().for_each(|part| part.fill(9));
                Ok(())
            };
            // SAFETY: each record names a byte of `room`, which nothing else uses meanwhile.
            unsafe { with_parts_mut(records.as_ptr(), Some(count), fill) }.unwrap();
            assert_eq!(room, vec![9; count]);
        }
    }

    #[test]
    fn invalid_memory_is_rejected() {
        let null = iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        let long = iovec { iov_base: std::ptr::dangling_mut::<u8>().cast(), iov_len: usize::MAX };
        let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let ask = |at: *const iovec, count| {
            // SAFETY: every piece that is followed is empty.
            errno_of(unsafe { with_parts(at, count, |_| Ok::<(), ArgumentError>(())) })
        };
        assert_eq!(ask(&raw const null, Some(1)), libc::EFAULT);
        assert_eq!(ask(&raw const long, Some(1)), libc::EINVAL);
        assert_eq!(ask(&raw const empty, Some(1)), 0);
        assert_eq!(ask(std::ptr::null(), Some(1)), libc::EFAULT);
        assert_eq!(ask(std::ptr::null(), Some(0)), 0);
        assert_eq!(ask(&raw const null, Some(PARTS_MAX + 1)), libc::EINVAL);
        assert_eq!(ask(&raw const null, None), libc::EINVAL);
        // SAFETY: no bytes are promised, and none are read.
        assert_eq!(unsafe { memory(std::ptr::null(), 0, "x") }.unwrap(), []);
    }
}
