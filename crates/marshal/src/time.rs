//! Times and signal masks of C callers.

use std::time::{Duration, Instant};

use libc::{c_int, sigset_t, timespec, timeval};
use megapipe_sockets::SignalMask;

use crate::error::ArgumentError;

const INVALID: ArgumentError = ArgumentError::Invalid("timeout");

/// Returns a timeout in milliseconds; negative: none.
#[must_use]
pub fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Reads a time; null is none.
///
/// # Errors
/// EINVAL.
///
/// # Safety
/// `time` is null or points to a time.
pub unsafe fn duration(time: *const timespec) -> Result<Option<Duration>, ArgumentError> {
    // SAFETY: the caller promises a time, or null.
    match unsafe { time.as_ref() } {
        None => Ok(None),
        Some(time) if time.tv_nsec >= 1_000_000_000 => Err(INVALID),
        Some(time) => Ok(Some(checked(time.tv_sec, time.tv_nsec, 1)?)),
    }
}

/// Reads a time of select(2); null is none.
///
/// # Errors
/// EINVAL.
///
/// # Safety
/// `time` is null or points to a time.
unsafe fn duration_of_timeval(time: *const timeval) -> Result<Option<Duration>, ArgumentError> {
    // SAFETY: the caller promises a time, or null.
    match unsafe { time.as_ref() } {
        None => Ok(None),
        Some(time) => Ok(Some(checked(time.tv_sec, time.tv_usec, 1_000)?)),
    }
}

/// Calls `select` with the time of a select(2), and sets that to the time that remains, as Linux
/// does whatever the result is.
///
/// # Errors
/// EINVAL; what `select` returns.
///
/// # Safety
/// `timeout` is null or points to a time that may be written.
pub unsafe fn with_time_left<T, E: From<ArgumentError>>(
    timeout: *mut timeval,
    select: impl FnOnce(Option<Duration>) -> Result<T, E>,
) -> Result<T, E> {
    // SAFETY: the caller promises a time, or null.
    let time = unsafe { duration_of_timeval(timeout) }?;
    let began = Instant::now();
    let selected = select(time);
    if let Some(time) = time {
        let left = time.saturating_sub(began.elapsed());
        let tv_sec = left.as_secs() as libc::time_t;
        let left = timeval { tv_sec, tv_usec: left.subsec_micros().into() };
        // SAFETY: the caller promises a writable time.
        unsafe { timeout.write(left) };
    }
    selected
}

/// Returns the record of a time.
#[must_use]
pub fn timespec_of(time: Duration) -> timespec {
    timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() }
}

/// Seconds and parts of them, of `part_ns` nanoseconds each.
fn checked(seconds: i64, parts: i64, part_ns: u64) -> Result<Duration, ArgumentError> {
    let seconds = u64::try_from(seconds).ok().map(Duration::from_secs);
    let parts = u64::try_from(parts).ok().and_then(|parts| parts.checked_mul(part_ns));
    let time = seconds.zip(parts.map(Duration::from_nanos));
    let time = time.map(|(seconds, parts)| seconds.saturating_add(parts));
    time.ok_or(INVALID)
}

/// Reads the signals of a mask, of which the kernel uses the first word; null is none.
///
/// # Safety
/// `mask` is null or points to a mask.
#[must_use]
pub unsafe fn mask_of(mask: *const sigset_t) -> Option<SignalMask> {
    // SAFETY: the caller promises a mask, or null.
    let bits = unsafe { mask.cast::<u64>().as_ref() };
    bits.map(|bits| SignalMask::from_bits(*bits))
}

const _: () = assert!(size_of::<sigset_t>() >= size_of::<u64>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_times_are_rejected() {
        assert_eq!(checked(1, 500_000, 1_000), Ok(Duration::from_millis(1500)));
        for (seconds, parts) in [(-1, 0), (0, -1)] {
            assert_eq!(checked(seconds, parts, 1), Err(INVALID));
        }
        let late = timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
        // SAFETY: the time is a local.
        assert!(unsafe { duration(&raw const late) }.is_err());
        // SAFETY: null is allowed.
        assert_eq!(unsafe { duration(std::ptr::null()) }, Ok(None));
        assert_eq!(timespec_of(Duration::from_millis(1500)).tv_nsec, 500_000_000);
        assert_eq!((milliseconds(-1), milliseconds(5)), (None, Some(Duration::from_millis(5))));
    }
}
