//! What the epoll driver can do on this kernel, found out by doing it, once per process.

use std::io::{self, IoSliceMut};
use std::sync::OnceLock;

use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::plain::CURRENT_POSITION;
use super::set;
use crate::kernel::{Refusal, found_once, has_worked};
use crate::report::Feature;

/// What works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EpollCapabilities {
    /// epoll_pwait2.
    pub(super) precise: bool,
    /// Reading a blocking pipe without blocking.
    nowait_pipe: bool,
}

impl EpollCapabilities {
    pub(super) fn features(&self) -> Vec<Feature> {
        let feature = |name, available, consequence| Feature { name, available, consequence };
        vec![
            feature("epoll, edge-triggered", true, "a socket is watched once, when it first waits"),
            feature(
                "epoll_pwait2",
                self.precise,
                if self.precise {
                    "waits end to the nanosecond"
                } else {
                    "time-outs are rounded up to a millisecond"
                },
            ),
            feature(
                "RWF_NOWAIT on pipes",
                self.nowait_pipe,
                if self.nowait_pipe {
                    "pipes are tried without asking first"
                } else {
                    "pipes are polled before each read, and before each write of 4096 bytes"
                },
            ),
            feature(
                "direct descriptors",
                false,
                "lwsockets have a file descriptor; a system call per operation",
            ),
            feature(
                "asynchronous disk files",
                false,
                "what is not in the page cache is done by up to 4 helper threads",
            ),
        ]
    }
}

/// The answer for this process; tried at the first call.
///
/// # Errors
/// [`Refusal`] if there is no epoll, or no descriptor to try it with.
pub(super) fn capabilities() -> Result<&'static EpollCapabilities, Refusal> {
    static FOUND: OnceLock<Result<EpollCapabilities, String>> = OnceLock::new();
    found_once(&FOUND, || {
        let precise = set::waits_precisely().map_err(|error| Refusal::of("an epoll set", error))?;
        let nowait_pipe = has_worked("a pipe", nowait_pipe())?.unwrap_or(false);
        Ok(EpollCapabilities { precise, nowait_pipe })
    })
}

/// Whether an empty blocking pipe says so instead of blocking.
fn nowait_pipe() -> io::Result<bool> {
    let (reader, _writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(reader, &mut parts, CURRENT_POSITION, ReadWriteFlags::NOWAIT);
    Ok(read == Err(Errno::AGAIN))
}
