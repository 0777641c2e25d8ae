//! poll(2) on one descriptor, for `Link::wait` of most drivers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::LinkError;

/// Sleeps until `fd` is readable or broken (`true`), or `timeout` has passed or a signal came
/// (`false`: the caller looks again). `None` sleeps without an end.
pub(crate) fn until_readable(
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> Result<bool, LinkError> {
    // A time too long for the kernel is no limit.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(source) => Err(LinkError::Io { what: "poll a link", source: source.into() }),
    }
}
