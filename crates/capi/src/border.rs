//! Return convention of the C calls: errno, the text of `mp_last_error()`, and the failure value.
//!
//! A call that fails sets errno, stores a text for `mp_last_error()`, and returns -1, null or
//! [`MP_NO_HANDLE`]. A call that succeeds changes neither errno nor the text.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use channel::Handle;
use libc::ssize_t;

use crate::abi::{MP_NO_HANDLE, mp_handle_t};
use crate::error::{CallError, CallFailure, Errno, set_last};

/// The value that a failed call returns.
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
pub(crate) fn finish<T: Failed>(call: &str, result: Result<T, CallFailure>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => failed(call, &error),
    }
}

/// As [`finish`], for a call that returns 0 when it succeeds.
#[inline]
pub(crate) fn status(call: &str, result: Result<(), CallFailure>) -> c_int {
    finish(call, result.map(|()| 0))
}

/// As [`finish`], for a call that returns a handle.
#[inline]
pub(crate) fn handle(call: &str, result: Result<Handle, CallFailure>) -> mp_handle_t {
    finish(call, result.map(Handle::to_bits))
}

/// Runs work that is outside a channel or a context. A panic becomes an error, and errno is
/// unchanged.
pub(crate) fn caught<T, E: From<CallError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let errno = Errno::now();
    let result = catch_unwind(AssertUnwindSafe(work));
    errno.put_back();
    result.unwrap_or_else(|_| Err(CallError::Poisoned.into()))
}

#[cold]
fn failed<T: Failed>(call: &str, error: &CallFailure) -> T {
    set_last(call, error.why());
    T::FAILED
}

#[cfg(test)]
mod tests;
