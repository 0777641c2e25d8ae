//! Peers at addresses of our own: which of them may be reached, and whether any ever was.
//!
//! Read first: `Ip::via`. A link that shares the host's address has ports of the kernel's at that
//! address; the caller's filter says which ones are ours.

use alloc::boxed::Box;
use core::cell::Cell;
use core::fmt;
use core::net::SocketAddr;

/// A peer at an address of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalPeer {
    /// A listener, or the other end of a connection.
    Stream(SocketAddr),
    /// A datagram endpoint.
    Datagram(SocketAddr),
}

impl LocalPeer {
    pub(super) const fn address(self) -> SocketAddr {
        match self {
            Self::Stream(at) | Self::Datagram(at) => at,
        }
    }
}

/// Returns whether a peer can be reached.
pub type LocalPeerFilter = Box<dyn Fn(LocalPeer) -> bool + Send>;

/// What is known about peers at addresses of our own.
#[derive(Default)]
pub(super) struct LocalPeers {
    /// `None`: all can be reached.
    filter: Option<LocalPeerFilter>,
    /// A way to one was looked up. In a cell, because looking up changes nothing else.
    were_used: Cell<bool>,
}

impl LocalPeers {
    pub(super) fn set_filter(&mut self, filter: LocalPeerFilter) {
        self.filter = Some(filter);
    }

    pub(super) fn can_reach(&self, peer: LocalPeer) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(peer))
    }

    pub(super) fn note_use(&self) {
        self.were_used.set(true);
    }

    pub(super) const fn were_used(&self) -> bool {
        self.were_used.get()
    }
}

impl fmt::Debug for LocalPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LocalPeers");
        debug.field("were_used", &self.were_used()).finish_non_exhaustive()
    }
}
