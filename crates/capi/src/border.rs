//! What a call of the library returns: one convention for all of them.
//!
//! A call that fails sets errno, leaves a text for `mp_last_error()`, and returns -1, or null, or
//! [`MP_NO_HANDLE`]. A call that succeeds touches neither.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use channel::Handle;
use libc::ssize_t;

use crate::abi::{MP_NO_HANDLE, mp_handle_t};
use crate::error::{CallError, Errno, Failure, set_last};

/// What calls return when they fail.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl Failed for mp_handle_t {
    const FAILED: Self = MP_NO_HANDLE;
}

impl<T> Failed for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

/// The value that the call returns.
#[inline]
pub(crate) fn finish<T: Failed>(call: &str, result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => failed(call, &error),
    }
}

/// The same, for a call that returns 0 when it succeeds.
#[inline]
pub(crate) fn status(call: &str, result: Result<(), Failure>) -> c_int {
    finish(call, result.map(|()| 0))
}

/// The same, for a call that returns a handle.
#[inline]
pub(crate) fn handle(call: &str, result: Result<Handle, Failure>) -> mp_handle_t {
    finish(call, result.map(Handle::to_bits))
}

/// Runs what is not inside a channel or a context; a panic is an error here too, and errno is left
/// alone.
pub(crate) fn caught<T, E: From<CallError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let errno = Errno::now();
    let result = catch_unwind(AssertUnwindSafe(work));
    errno.put_back();
    result.unwrap_or_else(|_| Err(CallError::Broken.into()))
}

#[cold]
fn failed<T: Failed>(call: &str, error: &Failure) -> T {
    set_last(call, error.why());
    T::FAILED
}

#[cfg(test)]
mod tests;
