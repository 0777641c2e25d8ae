//! Connections that another program goes on with, on the back end `service`: by exec(3) in this
//! process or in the child of a vfork(2), by posix_spawn(3), or by a shell of libc.
//!
//! A connection without FD_CLOEXEC is shared, and its token takes the place of its placeholder at
//! each of its numbers. The kernel then does with the numbers what the program asks for, file
//! actions of posix_spawn(3) included, and the new program finds the tokens among its descriptors
//! (`received_tokens.rs`). A program that is not preloaded gets none: it would keep the connections
//! open and could not use them.
//!
//! The child of a vfork(2) does this for itself: it has its parent's stack while the parent's
//! thread waits, and its numbers are those of its view (`child_views.rs`).
//!
//! Read first: decision 0056.
//!
//! Invariants
//! - Tokens stand at numbers of this process only while a program is started, or a shell runs.
//! - The child of a vfork(2) leaves no memory behind when it executes a program.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use megapipe_sockets::{Bsd, Error, SharedContext};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::foreign_children;
use crate::fork_sharing;
use crate::numbers::{self, NumberEntry, child_views};
use crate::raw::with_signals_blocked;
use crate::received_tokens::{closes_on_exec, put, put_placeholder, set_mode};
use crate::report;
use crate::stack;

/// A program goes on with no more: each costs a message of the service.
const NUMBERS_MAX: usize = 16;

/// A number with a token, and the inode of the token.
type PassedNumber = (c_int, u64);

/// Numbers with a token, for a program that is being started.
#[derive(Default)]
pub(crate) struct PassedNumbers {
    numbers: [PassedNumber; NUMBERS_MAX],
    count: usize,
}

/// Before a program is started. `check` says why it cannot be preloaded, or that it can; `None`: it
/// cannot be started.
pub(crate) fn prepare(check: impl FnOnce() -> Option<Result<(), &'static str>>) -> PassedNumbers {
    if !stack::is_shared() {
        return PassedNumbers::default();
    }
    if !foreign_children::is_foreign() {
        let is_connection =
            |entry| matches!(entry, NumberEntry::Stack(_) | NumberEntry::Inherited(_));
        let known = numbers::known(0, u32::MAX);
        return pass(known.filter(|(_, entry)| is_connection(*entry)), check);
    }
    if !child_views::has_current() {
        return PassedNumbers::default();
    }
    let known = child_views::entries().into_iter();
    let known = known.filter(|(fd, it)| matches!(it, NumberEntry::Stack(_)) && is_placeholder(*fd));
    // A child that a signal ends must not keep the locks of its parent's stack.
    let passed = with_signals_blocked(|| pass(known, check));
    // The parent's other threads need not wait for the new program.
    passed.resume();
    passed
}

/// Shares the connections that a program goes on with.
fn pass(
    connections: impl Iterator<Item = (c_int, NumberEntry)>,
    check: impl FnOnce() -> Option<Result<(), &'static str>>,
) -> PassedNumbers {
    let mut passed = PassedNumbers::default();
    let passing = connections.filter(|(fd, _)| !closes_on_exec(*fd));
    let passing: Vec<(c_int, NumberEntry)> = passing.take(NUMBERS_MAX + 1).collect();
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
    for (fd, entry) in passing {
        match share(fd, entry) {
            Ok(Some(token)) => passed.add((fd, token)),
            Ok(None) => {}
            Err(error) => {
                report::note(format_args!("descriptor {fd} is not passed to a program: {error}"));
            }
        }
    }
    passed
}

/// A token of the connection takes the place of a number's placeholder. Returns the token's inode;
/// `None`: it is no established connection.
fn share(fd: c_int, entry: NumberEntry) -> Result<Option<u64>, Error> {
    let entry = match entry {
        NumberEntry::Inherited(_) => fork_sharing::settled(fd)?,
        entry => entry,
    };
    let NumberEntry::Stack(inner) = entry else { return Ok(None) };
    let shared = stack::with_stack(|sockets| {
        let token = sockets.share_stream(inner)?;
        let mode = sockets.fcntl(inner, libc::F_GETFL, 0)?;
        set_mode(&token, mode)?;
        Ok(token)
    });
    match shared {
        Ok(token) => {
            let inode = inode_of(token.as_fd()).ok_or(Error::BadDescriptor)?;
            put(token.as_raw_fd(), fd, 0).map(|()| Some(inode))
        }
        Err(Error::NotSupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a number is open, and a placeholder: the anchor of this process, or of one that forked.
fn is_placeholder(fd: c_int) -> bool {
    // SAFETY: the number is looked at in these calls alone; one that is not open is refused.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    sockopt::socket_domain(file) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(file) == Ok(SocketType::SEQPACKET)
        && rustix::net::getpeername(file) == Err(Errno::NOTCONN)
}

fn inode_of(file: BorrowedFd<'_>) -> Option<u64> {
    rustix::fs::fstat(file).ok().map(|facts| facts.st_ino)
}

impl PassedNumbers {
    /// There is room: no more numbers are shared.
    fn add(&mut self, number: PassedNumber) {
        if let Some(place) = self.numbers.get_mut(self.count) {
            *place = number;
            self.count += 1;
        }
    }

    fn numbers(&self) -> &[PassedNumber] {
        self.numbers.get(..self.count).unwrap_or_default()
    }

    /// This process goes on, and reads its connections ahead again where its threads wait for them.
    pub(crate) fn resume(&self) {
        if self.count != 0 {
            stack::context().into_iter().for_each(SharedContext::resume_after_fork);
        }
    }

    /// The program was started in a child, or could not be started: placeholders take the places of
    /// the tokens. A number that another thread has closed meanwhile stays as it is.
    pub(crate) fn put_back(&self) {
        for (fd, inode) in self.numbers() {
            // SAFETY: the number is looked at in this call alone.
            let found = inode_of(unsafe { BorrowedFd::borrow_raw(*fd) });
            if found == Some(*inode)
                && let Err(error) = put_placeholder(*fd)
            {
                report::note(format_args!("no placeholder for a descriptor: {error}"));
            }
        }
    }
}
