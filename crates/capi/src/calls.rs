//! The C calls, in the order of the header. Each has a man page of its name.
//!
//! A call checks its arguments, enters the channel by `object.rs`, and returns by `border.rs`; the
//! channel implements the operation.

// The order is that of the header.
pub mod lifecycle;

pub mod membership;

pub mod setup;

pub mod operations;

pub mod completions;

pub mod inspection;

use crate::error::{CallError, CallFailure};

/// Rejects a null pointer.
fn non_null<T>(pointer: *const T, name: &'static str) -> Result<(), CallFailure> {
    if pointer.is_null() { Err(CallError::Null(name).into()) } else { Ok(()) }
}

/// Reads a record that begins with its size and was written by a program with an older or newer
/// version of the header. Fields that the program does not know are zero; a field that this library
/// does not know must be zero.
///
/// # Safety
/// `record` is null or points to a `usize` with the number of readable bytes. All zeros must be a
/// valid `T`, and so must any other bytes.
pub(crate) unsafe fn read_sized<T: Copy>(
    record: *const T,
    name: &'static str,
) -> Result<T, CallFailure> {
    non_null(record, name)?;
    // SAFETY: the caller promises a size as the first field.
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
    // SAFETY: both sides have as many bytes, and `known` is a local.
    unsafe { target.copy_from_nonoverlapping(bytes, size.min(size_of::<T>())) };
    Ok(known)
}

/// Fills a program's record as far as both versions know it, and the remaining bytes with zeros.
///
/// # Safety
/// `record` is null or points to `size` writable bytes. `T` has no padding.
unsafe fn write_sized<T: Copy>(
    record: *mut T,
    size: usize,
    value: &T,
    name: &'static str,
) -> Result<(), CallFailure> {
    non_null(record, name)?;
    if size < size_of::<usize>() || size > SIZED_BYTES_MAX {
        return Err(CallError::Argument("the size of the record").into());
    }
    let target = record.cast::<u8>();
    // SAFETY: the caller promises `size` bytes.
    unsafe { target.write_bytes(0, size) };
    let bytes = (&raw const *value).cast::<u8>();
    // SAFETY: both sides have as many bytes, and `value` is a local.
    unsafe { target.copy_from_nonoverlapping(bytes, size.min(size_of::<T>())) };
    Ok(())
}

/// No record of any version is larger; a larger size is rejected without reading.
const SIZED_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_other_versions_are_read_field_by_field() {
        let record = [32_usize, 7, 0, 0];
        // SAFETY: the array has the 32 bytes that its first word names.
        let read = |record: &[usize; 4]| unsafe {
            read_sized::<[usize; 3]>(record.as_ptr().cast(), "record")
        };
        assert_eq!(read(&record).unwrap(), [32, 7, 0]);
        assert_eq!(read(&[16, 7, 9, 9]).unwrap(), [16, 7, 0], "missing fields are zero");
        assert!(read(&[32, 7, 0, 1]).is_err(), "an unknown field is set");
        for size in [0, 7, 4097, usize::MAX] {
            assert!(read(&[size, 0, 0, 0]).is_err(), "{size}");
        }
    }
}
