//! Addresses that the process's contexts are bound to, each with its context.
//!
//! Invariant: an address is in [`CLAIMS`] as long as a live context has a socket bound to it by
//! `mtcp_bind`, and is added before another context can bind it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses of the process's contexts, with the context's core.
static CLAIMS: Mutex<Vec<(c_int, SocketAddr)>> = Mutex::new(Vec::new());

/// Locks the table.
pub(super) fn claims() -> MutexGuard<'static, Vec<(c_int, SocketAddr)>> {
    // A panicking thread leaves it complete: one call changes it.
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The addresses of one context's sockets.
#[derive(Debug)]
pub(super) struct Claimed {
    core: c_int,
    /// Whether there may be other contexts.
    pub(super) has_siblings: bool,
    by_fd: BTreeMap<c_int, SocketAddr>,
}

impl Claimed {
    pub(super) const fn new(core: c_int, has_siblings: bool) -> Self {
        Self { core, has_siblings, by_fd: BTreeMap::new() }
    }

    /// Adds the address that a descriptor is bound to.
    pub(super) fn add(
        &mut self,
        claims: &mut Vec<(c_int, SocketAddr)>,
        fd: c_int,
        address: SocketAddr,
    ) {
        claims.push((self.core, address));
        self.by_fd.insert(fd, address);
    }

    /// Removes a descriptor that is closed.
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

    /// Whether this context has the address.
    pub(super) fn is_own(&self, address: SocketAddr) -> bool {
        self.by_fd.values().any(|other| overlap(*other, address))
    }

    /// Whether another context of the process has the address, and this one does not.
    pub(super) fn is_siblings(&self, claims: &[(c_int, SocketAddr)], address: SocketAddr) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_address_is_not_a_siblings() {
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
