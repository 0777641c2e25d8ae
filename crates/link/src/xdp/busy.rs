//! What is busy for a moment.
//!
//! The kernel takes sockets and programs off an interface some 20 ms after their descriptors were
//! closed, and a program that is just being started may hold them a little longer; until then the
//! place is busy. So a busy place is asked again, with growing pauses.

use std::io;
use std::time::{Duration, Instant};

use crate::limits::XDP_BUSY_PATIENCE_MS;

/// Whether the kernel said that the place is taken.
pub(super) fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Tries until the place is not busy any more, or for good.
pub(super) fn while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + Duration::from_millis(XDP_BUSY_PATIENCE_MS);
    let mut pause = Duration::from_millis(1);
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_request_is_retried_with_a_limit() {
        let mut answers = [libc::EBUSY, libc::EBUSY, libc::EPERM].into_iter();
        let outcome: io::Result<()> = while_busy(|| {
            Err(io::Error::from_raw_os_error(answers.next().expect("not asked once more")))
        });
        assert_eq!(outcome.expect_err("the last answer").raw_os_error(), Some(libc::EPERM));
        let outcome: io::Result<()> = while_busy(|| Err(io::Error::from_raw_os_error(libc::EBUSY)));
        assert!(is_busy(&outcome.expect_err("busy for good")));
    }
}
