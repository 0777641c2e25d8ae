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
//! - Other threads close and open numbers meanwhile. A token takes the place of a placeholder of
//!   its own connection alone: both are checked directly before.
//! - The child of a vfork(2) leaves no memory behind when it executes a program.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use megapipe_sockets::{Bsd, Error};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::foreign_children;
use crate::fork_sharing;
use crate::numbers::{self, NumberEntry, child_views};
use crate::received_tokens::{closes_on_exec, put, put_placeholder, set_mode};
use crate::records::release;
use crate::report;
use crate::stack;

/// A program goes on with no more: each costs a message of the service.
const PASSED_NUMBERS_MAX: usize = 16;

/// A number with a token.
#[derive(Debug, Clone, Copy)]
struct PassedNumber {
    fd: c_int,
    /// What the number stood for when it got the token.
    entry: NumberEntry,
    /// The inode of the token.
    token: u64,
}

/// Numbers with a token, for a program that is being started.
#[derive(Default)]
pub(crate) struct PassedNumbers {
    numbers: [Option<PassedNumber>; PASSED_NUMBERS_MAX],
    count: usize,
    /// Connections were shared, for some of which a number may have got no token.
    is_withheld: bool,
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
    let known = known.filter(|(fd, it)| matches!(it, NumberEntry::Stack(_)) && is_connections(*fd));
    let mut passed = foreign_children::keeping_locks(|| pass(known, check));
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
    let passing: Vec<(c_int, NumberEntry)> = passing.take(PASSED_NUMBERS_MAX + 1).collect();
    if passing.is_empty() {
        return passed;
    }
    match check() {
        Some(Ok(())) if passing.len() <= PASSED_NUMBERS_MAX => {}
        Some(Ok(())) => {
            report::note(format_args!(
                "a program is started with more than {PASSED_NUMBERS_MAX} connections that have no \
                 FD_CLOEXEC: it gets none of them"
            ));
            return passed;
        }
        Some(Err(reason)) => {
            report::note(format_args!(
                "a program is not known to be preloaded ({reason}): it gets no connection"
            ));
            return passed;
        }
        None => return passed,
    }
    passed.is_withheld = true;
    for (fd, entry) in passing {
        match share(fd, entry) {
            Ok(Some(number)) => passed.add(number),
            Ok(None) => {}
            Err(error) => {
                report::note(format_args!("descriptor {fd} is not passed to a program: {error}"));
            }
        }
    }
    passed
}

/// A token of the connection takes the place of a number's placeholder. `None`: it is no
/// established connection, or another thread has closed the number.
fn share(fd: c_int, entry: NumberEntry) -> Result<Option<PassedNumber>, Error> {
    let entry = match entry {
        NumberEntry::Inherited(_) => fork_sharing::resolved(fd)?,
        entry => entry,
    };
    let NumberEntry::Stack(inner) = entry else { return Ok(None) };
    let shared = stack::with_stack(|sockets| {
        let token = sockets.share_stream(inner)?;
        let mode = sockets.fcntl(inner, libc::F_GETFL, 0)?;
        set_mode(&token, mode)?;
        Ok(token)
    });
    let file = match shared {
        Ok(token) => token,
        Err(Error::NotSupported) => return Ok(None),
        // The stack has no such descriptor any more.
        Err(_) if !stands_for(fd, entry) => return Ok(None),
        Err(error) => return Err(error),
    };
    let token = inode_of(file.as_fd()).ok_or(Error::BadDescriptor)?;
    // The descriptor in the stack may be that of another peer's connection meanwhile.
    if !stands_for(fd, entry) {
        return Ok(None);
    }
    put(file.as_raw_fd(), fd, 0)?;
    Ok(Some(PassedNumber { fd, entry, token }))
}

/// Whether a number still stands for a connection that a program goes on with.
fn stands_for(fd: c_int, entry: NumberEntry) -> bool {
    child_views::entry_of(fd) == entry && is_connections(fd) && !closes_on_exec(fd)
}

/// Whether a number is open, and what stands at the number of a connection: a placeholder, or the
/// token of a program that another thread starts.
fn is_connections(fd: c_int) -> bool {
    // SAFETY: the number is looked at in this call alone.
    is_placeholder(fd) || megapipe::is_token(unsafe { BorrowedFd::borrow_raw(fd) })
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
            *place = Some(number);
            self.count += 1;
        }
    }

    /// This process goes on, and reads its connections ahead again where its threads wait for them.
    pub(crate) fn resume(&mut self) {
        if !std::mem::take(&mut self.is_withheld) {
            return;
        }
        let resume = || {
            stack::with_stack(|sockets| {
                sockets.resume_after_fork();
                Ok(())
            })
        };
        // A handler that may make no calls has shared nothing, either.
        let _ = foreign_children::keeping_locks(resume);
    }

    /// The program was started in a child, or could not be started: placeholders take the places of
    /// the tokens, and this process goes on.
    pub(crate) fn put_back(mut self) {
        self.numbers.iter().flatten().for_each(PassedNumber::put_back);
        self.resume();
    }
}

impl PassedNumber {
    /// A placeholder takes the place of the token. Where another thread has closed the number, it
    /// stays as it is, or the token that came behind the close is closed.
    fn put_back(&self) {
        // SAFETY: the number is looked at in this call alone.
        let found = inode_of(unsafe { BorrowedFd::borrow_raw(self.fd) });
        if found != Some(self.token) {
            return;
        }
        // No other thread has the numbers of a vfork's child, whose entries change when its parent
        // closes connections.
        if !foreign_children::is_foreign() && numbers::entry(self.fd) != self.entry {
            return release(self.fd);
        }
        if let Err(error) = put_placeholder(self.fd) {
            report::note(format_args!("no placeholder for a descriptor: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{IntoRawFd, OwnedFd};

    use rustix::net::SocketFlags;

    use super::*;

    const INNER: NumberEntry = NumberEntry::Stack(7);

    fn socket() -> OwnedFd {
        let (domain, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socket_with(domain, kind, SocketFlags::empty(), None).unwrap()
    }

    /// A number with a token, whose entry is [`INNER`].
    fn passed() -> PassedNumber {
        let token = socket();
        let inode = inode_of(token.as_fd()).unwrap();
        let fd = token.into_raw_fd();
        numbers::set(fd, INNER);
        PassedNumber { fd, entry: INNER, token: inode }
    }

    fn inode_at(fd: c_int) -> Option<u64> {
        // SAFETY: the number is looked at in this call alone.
        inode_of(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    #[test]
    fn number_that_was_closed_gets_no_token() {
        let file = socket();
        let fd = file.as_raw_fd();
        numbers::set(fd, INNER);
        assert!(stands_for(fd, INNER));
        assert!(!stands_for(fd, NumberEntry::Stack(8)));
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC).unwrap();
        assert!(!stands_for(fd, INNER));
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        // The program has closed the number, and opened a file there.
        let (reader, _writer) = std::io::pipe().unwrap();
        put(reader.as_raw_fd(), fd, 0).unwrap();
        assert!(!stands_for(fd, INNER));
        numbers::set(fd, NumberEntry::Kernel);
    }

    #[test]
    fn token_behind_a_close_is_closed() {
        let number = passed();
        number.put_back();
        let placeholder = inode_at(number.fd);
        assert!(placeholder.is_some() && placeholder != Some(number.token));
        // Another file stands there, which stays.
        numbers::set(number.fd, NumberEntry::Kernel);
        number.put_back();
        assert_eq!(inode_at(number.fd), placeholder);
        release(number.fd);
        let number = passed();
        numbers::set(number.fd, NumberEntry::Kernel);
        number.put_back();
        assert_ne!(inode_at(number.fd), Some(number.token));
    }
}
