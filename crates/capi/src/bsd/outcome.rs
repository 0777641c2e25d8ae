//! Result of a socket call: a value, or errno and the cause for `mp_last_error()`.

use std::ffi::c_int;

use marshal::ArgumentError;
use sockets::Error;

use crate::border::Failed;
use crate::error::{CallError, CallFailure, set_last, set_last_of_socket};

/// Cause of a failed call: an error of a socket, which is frequent, or another one.
pub(super) enum SocketCallError {
    Socket(Error),
    Call(CallFailure),
}

impl From<Error> for SocketCallError {
    #[inline]
    fn from(error: Error) -> Self {
        Self::Socket(error)
    }
}

impl From<CallFailure> for SocketCallError {
    #[cold]
    fn from(failure: CallFailure) -> Self {
        Self::Call(failure)
    }
}

impl From<ArgumentError> for SocketCallError {
    fn from(error: ArgumentError) -> Self {
        match error {
            ArgumentError::Socket(error) => Self::Socket(error),
            error => Self::Call(error.into()),
        }
    }
}

impl From<CallError> for SocketCallError {
    #[cold]
    fn from(error: CallError) -> Self {
        Self::Call(error.into())
    }
}

/// The value that a call returns.
#[inline]
pub(super) fn answer<T: Failed>(call: &'static str, result: Result<T, SocketCallError>) -> T {
    match result {
        Ok(value) => return value,
        Err(SocketCallError::Socket(error)) => set_last_of_socket(call, error),
        Err(SocketCallError::Call(failure)) => set_last(call, failure.why()),
    }
    T::FAILED
}

/// As [`answer`], for a call that returns 0 when it succeeds.
#[inline]
pub(super) fn status(call: &'static str, result: Result<(), SocketCallError>) -> c_int {
    answer(call, result.map(|()| 0))
}

/// As [`answer`], for a call that returns a count that fits into an int.
#[inline]
pub(super) fn count(call: &'static str, result: Result<usize, SocketCallError>) -> c_int {
    answer(call, result.map(|count| c_int::try_from(count).unwrap_or(c_int::MAX)))
}
