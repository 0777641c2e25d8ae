//! The calls, in the order in which a program meets them. Each has a man page of its name.
//!
//! A call checks its own arguments, passes through `object.rs`, and hands its result to
//! `border.rs`; what it means is the channel's business.

// The order is that of the header.
pub mod lifecycle;

pub mod membership;

pub mod setup;

pub mod operations;

pub mod completions;

pub mod inspection;

use crate::error::{CallError, Failure};

/// The pointer, unless it is null.
fn non_null<T>(pointer: *const T, name: &'static str) -> Result<(), Failure> {
    if pointer.is_null() { Err(CallError::Null(name).into()) } else { Ok(()) }
}

/// A record that begins with its size, written by a program that may know fewer fields than this
/// library, or more. Fields that the program does not know are zero; a field that this library
/// does not know must be zero, because it cannot be obeyed.
///
/// # Safety
/// `record` is null or points to a `usize` that says how many readable bytes there are. All zeros
/// must be a valid `T`, and so must any other bytes.
pub(crate) unsafe fn read_sized<T: Copy>(
    record: *const T,
    name: &'static str,
) -> Result<T, Failure> {
    non_null(record, name)?;
    // SAFETY: the caller promises a size at the beginning.
    let size = unsafe { record.cast::<usize>().read() };
    if size < size_of::<usize>() || size > SIZED_BYTES_MAX {
        return Err(CallError::Argument("the size of the record").into());
    }
    let bytes = record.cast::<u8>();
    for index in size_of::<T>()..size {
        // SAFETY: the index is below the size that the caller promises.
        let byte = unsafe { bytes.add(index) };
        // SAFETY: the same.
        if unsafe { byte.read() } != 0 {
            return Err(CallError::Argument("a field that this version does not know").into());
        }
    }
    // SAFETY: the caller promises that zeros are a valid `T`.
    let mut known = unsafe { std::mem::zeroed::<T>() };
    let target = (&raw mut known).cast::<u8>();
    // SAFETY: both sides have as many bytes, and `known` is memory of our own.
    unsafe { target.copy_from_nonoverlapping(bytes, size.min(size_of::<T>())) };
    Ok(known)
}

/// The other way round: fills as much of a program's record as both sides know, and the rest of it
/// with zeros.
///
/// # Safety
/// `record` is null or points to `size` writable bytes. `T` has no padding.
unsafe fn write_sized<T: Copy>(
    record: *mut T,
    size: usize,
    value: &T,
    name: &'static str,
) -> Result<(), Failure> {
    non_null(record, name)?;
    if size < size_of::<usize>() || size > SIZED_BYTES_MAX {
        return Err(CallError::Argument("the size of the record").into());
    }
    let target = record.cast::<u8>();
    // SAFETY: the caller promises `size` bytes.
    unsafe { target.write_bytes(0, size) };
    let bytes = (&raw const *value).cast::<u8>();
    // SAFETY: both sides have as many bytes, and `value` is memory of our own.
    unsafe { target.copy_from_nonoverlapping(bytes, size.min(size_of::<T>())) };
    Ok(())
}

/// No record of any version is larger; a larger size is a mistake and not worth reading.
const SIZED_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_other_versions_are_read_as_far_as_they_are_understood() {
        let record = [32_usize, 7, 0, 0];
        // SAFETY: the array has the 32 bytes that its first word names.
        let read = |record: &[usize; 4]| unsafe {
            read_sized::<[usize; 3]>(record.as_ptr().cast(), "record")
        };
        assert_eq!(read(&record).unwrap(), [32, 7, 0]);
        assert_eq!(read(&[16, 7, 9, 9]).unwrap(), [16, 7, 0], "what it does not know is zero");
        assert!(read(&[32, 7, 0, 1]).is_err(), "an unknown field is set");
        for size in [0, 7, 4097, usize::MAX] {
            assert!(read(&[size, 0, 0, 0]).is_err(), "{size}");
        }
    }
}
