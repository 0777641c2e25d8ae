//! Ports at which several contexts of the process listen.
//!
//! In mTCP every context may listen at any port, whoever else does; a server has a listener in each
//! context and asks for nothing. In Linux it takes SO_REUSEPORT, and so it does in our sockets. So
//! a socket that `mtcp_bind` gives a port may share it with sockets of the process's other
//! contexts, and with nobody else's: not with one of its own context, not with another process's.
//! And as in mTCP, connections of an earlier run that Linux still remembers do not keep a server
//! from starting (SO_REUSEADDR).
//!
//! Read first: socket(7) on SO_REUSEADDR and SO_REUSEPORT.
//!
//! How: the port is taken without the option, as by somebody who wants it alone, and only then made
//! to be shared. Where that finds the port taken, and by a sibling, it is taken with the option.
//!
//! Invariant: an address is in [`CLAIMS`] as long as a context that lives has a socket which
//! `mtcp_bind` gave it, and is written there before another context can ask for it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sockets::{Bsd, Error};

use super::context::Waiting;

/// Addresses of the process's contexts, with the context's core.
static CLAIMS: Mutex<Vec<(c_int, SocketAddr)>> = Mutex::new(Vec::new());

fn claims() -> MutexGuard<'static, Vec<(c_int, SocketAddr)>> {
    // What a panicking thread left is whole: one call changes it.
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The addresses that one context has given to its sockets.
#[derive(Debug)]
pub(super) struct Claimed {
    core: c_int,
    /// There may be other contexts.
    has_siblings: bool,
    by_fd: BTreeMap<c_int, SocketAddr>,
}

impl Claimed {
    pub(super) const fn new(core: c_int, has_siblings: bool) -> Self {
        Self { core, has_siblings, by_fd: BTreeMap::new() }
    }

    /// The descriptor is closed.
    #[inline]
    pub(super) fn release(&mut self, fd: c_int) {
        if let Some(address) = self.by_fd.remove(&fd) {
            self.forget(address);
        }
    }

    fn forget(&self, address: SocketAddr) {
        let mut claims = claims();
        if let Some(place) = claims.iter().position(|claim| *claim == (self.core, address)) {
            claims.swap_remove(place);
        }
    }

    /// This context has the address.
    fn is_own(&self, address: SocketAddr) -> bool {
        self.by_fd.values().any(|other| overlap(*other, address))
    }

    /// Somebody else of the process has the address, and this context has not.
    fn is_siblings(&self, claims: &[(c_int, SocketAddr)], address: SocketAddr) -> bool {
        !self.is_own(address) && claims.iter().any(|(_, other)| overlap(*other, address))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        for address in std::mem::take(&mut self.by_fd).into_values() {
            self.forget(address);
        }
    }
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let same_ip =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && same_ip
}

/// bind(2), for a socket that may share its port with those of sibling contexts.
pub(super) fn bind(waiting: &mut Waiting, fd: c_int, to: SocketAddr) -> Result<(), Error> {
    let is_stream = option(waiting, fd, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if to.port() == 0 || !is_stream {
        return waiting.bind(fd, to);
    }
    if option(waiting, fd, libc::SO_REUSEADDR) != Ok(0) {
        return bind_beside_siblings(waiting, fd, to);
    }
    if waiting.claimed.is_own(to) {
        return Err(Error::AddressInUse);
    }
    set(waiting, fd, (libc::SO_REUSEADDR, true))?;
    bind_beside_siblings(waiting, fd, to).inspect_err(|_| undo(waiting, fd, libc::SO_REUSEADDR))
}

fn bind_beside_siblings(waiting: &mut Waiting, fd: c_int, to: SocketAddr) -> Result<(), Error> {
    let mut claims = claims();
    let shares_by_itself = option(waiting, fd, libc::SO_REUSEPORT) != Ok(0);
    if !waiting.claimed.has_siblings || shares_by_itself {
        waiting.bind(fd, to)?;
    } else {
        match waiting.bind(fd, to) {
            Err(Error::AddressInUse) if waiting.claimed.is_siblings(&claims, to) => {
                set(waiting, fd, (libc::SO_REUSEPORT, true))?;
                let bound = waiting.bind(fd, to);
                bound.inspect_err(|_| undo(waiting, fd, libc::SO_REUSEPORT))?;
            }
            bound => {
                bound?;
                set(waiting, fd, (libc::SO_REUSEPORT, true))?;
            }
        }
    }
    claims.push((waiting.claimed.core, to));
    waiting.claimed.by_fd.insert(fd, to);
    Ok(())
}

fn option(waiting: &mut Waiting, fd: c_int, name: c_int) -> Result<c_int, Error> {
    let mut value = [0; size_of::<c_int>()];
    waiting.getsockopt(fd, libc::SOL_SOCKET, name, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

fn set(waiting: &mut Waiting, fd: c_int, (name, on): (c_int, bool)) -> Result<(), Error> {
    let value = c_int::from(on).to_ne_bytes();
    waiting.setsockopt(fd, libc::SOL_SOCKET, name, &value)
}

/// The socket is as the program made it.
fn undo(waiting: &mut Waiting, fd: c_int, name: c_int) {
    // What could be set can be taken back; and if not, bind(2) has failed already.
    let _ = set(waiting, fd, (name, false));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_siblings_only_if_it_is_not_the_contexts_own() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut one = Claimed::new(1, true);
        let theirs = [(2, at("0.0.0.0:80")), (3, at("10.0.0.1:90"))];
        assert!(one.is_siblings(&theirs, at("10.0.0.1:80")));
        assert!(one.is_siblings(&theirs, at("0.0.0.0:90")));
        assert!(!one.is_siblings(&theirs, at("10.0.0.2:90")));
        assert!(!one.is_siblings(&theirs, at("10.0.0.1:81")));
        one.by_fd.insert(5, at("10.0.0.1:80"));
        assert!(!one.is_siblings(&theirs, at("0.0.0.0:80")));
        assert!(one.is_siblings(&theirs, at("10.0.0.2:80")), "its own is another address");
        one.release(5);
        assert!(one.is_siblings(&theirs, at("0.0.0.0:80")));
    }
}
