//! Awaited listeners: SYNs for their addresses are dropped while no listener is there.
//!
//! Read first: [`AwaitedListener`]. A peer repeats a SYN that is dropped, and gives up after a RST.
//!
//! Invariant: an address is awaited for [`LISTENER_WAIT_MAX`] at most, from the first SYN for it or
//! from the end of its last listener.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::config::AwaitedListener;
use crate::limits::LISTENER_WAIT_MAX;
use crate::time::Instant;

/// The awaited listeners of a shard.
#[derive(Debug)]
pub(super) struct AwaitedListeners(Vec<AwaitedAddress>);

#[derive(Debug)]
struct AwaitedAddress {
    listener: AwaitedListener,
    /// `None`: no SYN has come for it yet.
    since: Option<Instant>,
}

impl AwaitedListeners {
    pub(super) fn new(listeners: &[AwaitedListener]) -> Self {
        let wait = |listener: &AwaitedListener| AwaitedAddress { listener: *listener, since: None };
        Self(listeners.iter().map(wait).collect())
    }

    /// Whether a SYN for an address without a listener is dropped.
    #[cold]
    pub(super) fn expects(&mut self, now: Instant, ip: IpAddr, port: u16) -> bool {
        let matching = self.0.iter_mut().filter(|it| it.listener.takes(ip, port));
        // Each is asked: its time begins now.
        matching.fold(false, |expects, awaited| {
            let since = *awaited.since.get_or_insert(now);
            expects || now.since(since) < LISTENER_WAIT_MAX
        })
    }

    /// A listener begins at an address.
    pub(super) fn on_begin(&mut self, local: SocketAddr) {
        self.0.retain(|it| it.listener.local != local || it.listener.has_successor);
    }

    /// The listener at an address has ended.
    pub(super) fn on_end(&mut self, now: Instant, local: SocketAddr) {
        for awaited in self.0.iter_mut().filter(|it| it.listener.local == local) {
            awaited.since = Some(now);
        }
    }
}

impl AwaitedListener {
    fn takes(&self, ip: IpAddr, port: u16) -> bool {
        let (own, is_same_family) = (self.local.ip(), self.local.is_ipv4() == ip.is_ipv4());
        self.local.port() == port && (own == ip || own.is_unspecified() && is_same_family)
    }
}
