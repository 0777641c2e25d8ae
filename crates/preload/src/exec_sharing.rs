//! Connections that another program goes on with, on the back end `service`: by exec(3) in this
//! process, or by posix_spawn(3) in a child.
//!
//! A connection without FD_CLOEXEC is shared, and its token takes the place of its placeholder at
//! each of its numbers. The kernel then does with the numbers what the program asks for, file
//! actions of posix_spawn(3) included, and the new program finds the tokens among its descriptors
//! (`received_tokens.rs`). A program that is not preloaded gets none: it would keep the connections
//! open and could not use them.
//!
//! Read first: decision 0056.
//!
//! Invariant: tokens stand at numbers of this process only while a program is started.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use megapipe_sockets::{Bsd, Error, SharedContext};

use crate::fork_sharing;
use crate::numbers::{self, NumberEntry};
use crate::received_tokens::{closes_on_exec, put, set_mode};
use crate::records::anchor;
use crate::report;
use crate::stack;

/// A program goes on with no more: each costs a message of the service.
const NUMBERS_MAX: usize = 16;

/// Numbers with a token, for a program that is being started.
pub(crate) struct PassedNumbers(Vec<c_int>);

/// Before a program is started. `check` says why it cannot be preloaded, or that it can; `None`: it
/// cannot be started.
pub(crate) fn prepare(check: impl FnOnce() -> Option<Result<(), &'static str>>) -> PassedNumbers {
    let mut passed = PassedNumbers(Vec::new());
    if !stack::is_shared() || stack::is_foreign_child() {
        return passed;
    }
    let is_connection = |entry| matches!(entry, NumberEntry::Stack(_) | NumberEntry::Inherited(_));
    let known = numbers::known(0, u32::MAX).filter(|(_, entry)| is_connection(*entry));
    let passing = known.map(|(fd, _)| fd).filter(|fd| !closes_on_exec(*fd));
    let passing: Vec<c_int> = passing.take(NUMBERS_MAX + 1).collect();
    if passing.is_empty() {
        return passed;
    }
    match check() {
        Some(Ok(())) if passing.len() <= NUMBERS_MAX => {}
        Some(Ok(())) => {
            report::note(format_args!(
                "a program is started with more than {NUMBERS_MAX} connections that have no \
                 FD_CLOEXEC: it gets none of them"
            ));
            return passed;
        }
        Some(Err(reason)) => {
            report::note(format_args!(
                "a program is started that is not preloaded ({reason}): it gets no connection"
            ));
            return passed;
        }
        None => return passed,
    }
    for fd in passing {
        match share(fd) {
            Ok(true) => passed.0.push(fd),
            Ok(false) => {}
            Err(error) => {
                report::note(format_args!("descriptor {fd} is not passed to a program: {error}"));
            }
        }
    }
    passed
}

/// A token of the connection takes the place of a number's placeholder. Returns whether it is an
/// established connection.
fn share(fd: c_int) -> Result<bool, Error> {
    let NumberEntry::Stack(inner) = fork_sharing::settled(fd)? else { return Ok(false) };
    let shared = stack::with_stack(|sockets| {
        let token = sockets.share_stream(inner)?;
        let mode = sockets.fcntl(inner, libc::F_GETFL, 0)?;
        set_mode(&token, mode)?;
        Ok(token)
    });
    match shared {
        Ok(token) => put(token.as_raw_fd(), fd, 0).map(|()| true),
        Err(Error::NotSupported) => Ok(false),
        Err(error) => Err(error),
    }
}

impl PassedNumbers {
    /// The program was started in a child, or could not be started: this process goes on.
    pub(crate) fn take_back(self) {
        if self.0.is_empty() {
            return;
        }
        let placed = stack::enter(|| {
            let anchor = anchor()?;
            self.0.iter().try_for_each(|fd| put(anchor, *fd, 0))
        });
        if let Err(error) = placed {
            report::note(format_args!("no placeholder for a descriptor: {error}"));
        }
        stack::context().into_iter().for_each(SharedContext::resume_after_fork);
    }
}
