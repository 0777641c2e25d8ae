//! Ports of the host that sockets of clients reserve, each for the life of its listeners, endpoints
//! and connections.
//!
//! Read first: `descriptors.rs`; `megapipe_link::PortReservation`; decision 0047.
//!
//! A port stays ours, and the kernel silent at it, until no listener has reserved it and the stack
//! has no connection there: otherwise the kernel would reset connections that outlive their
//! listener.
//!
//! Invariants
//! - A socket is closed after the link has stopped taking the port's frames.
//! - A port that was ours without a reservation stays ours.
//! - A listening socket of a program is deaf to the link's interface while the port is ours.

use std::net::SocketAddr;
use std::sync::Arc;

use megapipe_link::{LinkError, OwnershipError, Transport};
use megapipe_stack::{Instant, Stack};

use super::Host;
use crate::descriptors::KeptPort;
use crate::limits::MOVED_LOOK_PERIOD;
use crate::link_server::LinkServer;

/// The reservations of a host.
#[derive(Debug, Default)]
pub(super) struct HostReservations {
    ports: Vec<ReservedPort>,
    looked_at: Option<Instant>,
}

/// A reservation of one listener, endpoint or connection.
#[derive(Debug)]
struct ReservedPort {
    kept: Arc<KeptPort>,
    /// Addresses of ours at which its sockets keep the kernel silent.
    silent: Vec<SocketAddr>,
    /// Its listener or endpoint is gone; that of a connection is from the beginning.
    is_leaving: bool,
    /// The port was ours before.
    was_ours: bool,
}

/// A port of a protocol.
type TransportPort = (Transport, u16);

impl ReservedPort {
    fn port(&self) -> TransportPort {
        port_of(&self.kept)
    }
}

fn port_of(kept: &KeptPort) -> TransportPort {
    let reservation = kept.reservation();
    (reservation.transport(), reservation.address().port())
}

impl Host {
    /// Makes a port ours that the sockets of a client keep the kernel silent at. Addresses that
    /// they do not cover are reserved by sockets of our own.
    ///
    /// # Errors
    /// What the link says; nothing has changed then.
    pub(crate) fn reserve(
        &mut self,
        link: &mut LinkServer,
        kept: &Arc<KeptPort>,
    ) -> Result<(), LinkError> {
        let port @ (transport, number) = port_of(kept);
        let at = |ip| SocketAddr::new(ip, number);
        let all = self.ownership.addresses().iter().map(|ip| at(*ip));
        let silent: Vec<_> = all.filter(|address| kept.reservation().covers(*address)).collect();
        let before = self.reserved.ports.iter().find(|other| other.port() == port);
        let was_ours = match before {
            Some(other) => other.was_ours,
            None => self.owns(transport, number),
        };
        if let Some(interface) = self.interface() {
            let is_listening =
                |it: &ReservedPort| it.port() == port && it.kept.reservation().are_listening();
            let is_shared = self.reserved.ports.iter().any(is_listening);
            kept.reservation().deafen_on(interface, is_shared).map_err(|source| {
                let what = "attach a filter to the listening socket";
                LinkError::Io { what, source }
            })?;
        }
        self.change(link, |ownership| {
            let mut hold = |address: &SocketAddr| ownership.hold_elsewhere(transport, *address);
            silent.iter().try_for_each(&mut hold)?;
            ownership.ports_mut(transport).insert(number..=number)
        })?;
        let kept = Arc::clone(kept);
        self.reserved.ports.push(ReservedPort { kept, silent, is_leaving: false, was_ours });
        Ok(())
    }

    /// The listener of a reservation is gone. Its port stays ours while it has to.
    pub(crate) fn leave_reservation(&mut self, kept: &Arc<KeptPort>) {
        let mut ports = self.reserved.ports.iter_mut();
        let is_its = |it: &&mut ReservedPort| !it.is_leaving && Arc::ptr_eq(&it.kept, kept);
        if let Some(reserved) = ports.find(is_its) {
            reserved.is_leaving = true;
            self.reserved.looked_at = None;
        }
    }

    /// Addresses that the kernel is to have again at a port of listening sockets that no listener
    /// has reserved any more. Empty: others have it, or the port was ours before.
    pub(crate) fn left_at(&self, port: u16) -> Vec<SocketAddr> {
        let here = || self.reserved.ports.iter().filter(|it| it.port() == (Transport::Tcp, port));
        match here().any(|it| !it.is_leaving || it.was_ours) {
            true => Vec::new(),
            false => here().flat_map(|it| it.silent.iter().copied()).collect(),
        }
    }

    /// The kernel has a port again: its sockets go.
    pub(crate) fn drop_reservations(&mut self, port: u16) {
        self.reserved.ports.retain(|it| it.port() != (Transport::Tcp, port));
    }

    /// When the reservations are looked after next; `None`: none is to be given back.
    pub(crate) fn next_look_after_reserved(&self) -> Option<Instant> {
        let is_any = self.reserved.ports.iter().any(|it| it.is_leaving);
        is_any.then(|| self.reserved.looked_at.map_or(Instant::ZERO, |at| at + MOVED_LOOK_PERIOD))
    }

    /// Gives back ports that no listener has reserved and that have no connection.
    pub(crate) fn look_after_reserved(
        &mut self,
        now: Instant,
        link: &mut LinkServer,
        stack: &Stack,
    ) {
        if self.next_look_after_reserved().is_none_or(|at| now < at) {
            return;
        }
        self.reserved.looked_at = Some(now);
        let leaving = self.reserved.ports.iter().filter(|it| it.is_leaving);
        let mut leaving: Vec<TransportPort> = leaving.map(ReservedPort::port).collect();
        leaving.sort_unstable();
        leaving.dedup();
        for port in leaving {
            let (here, others): (Vec<_>, Vec<_>) =
                self.reserved.ports.drain(..).partition(|it| it.port() == port);
            let kept = match self.still_needed(link, stack, here) {
                Ok(kept) | Err(kept) => kept,
            };
            self.reserved.ports = others;
            self.reserved.ports.extend(kept);
        }
    }

    /// Those reservations of a port that are still needed; as an error if the link does not let go
    /// of the port.
    fn still_needed(
        &mut self,
        link: &mut LinkServer,
        stack: &Stack,
        here: Vec<ReservedPort>,
    ) -> Result<Vec<ReservedPort>, Vec<ReservedPort>> {
        let (transport, port) = here[0].port();
        let staying = || here.iter().filter(|it| !it.is_leaving);
        let is_covered = |address: &SocketAddr| staying().any(|it| it.silent.contains(address));
        if staying().next().is_some() {
            // A listening socket that leaves would hear the link's interface again.
            let is_deaf = |it: &ReservedPort| it.kept.reservation().are_listening();
            let all_covered =
                here.iter().flat_map(|it| &it.silent).all(is_covered) && !here.iter().any(is_deaf);
            let (staying, leaving): (Vec<_>, Vec<_>) =
                here.into_iter().partition(|it| !it.is_leaving);
            return Ok(match all_covered {
                true => staying,
                false => staying.into_iter().chain(leaving).collect(),
            });
        }
        if transport == Transport::Tcp && !stack.connections_at(port).is_empty() {
            return Ok(here);
        }
        let changed = self.change(link, |ownership| -> Result<(), OwnershipError> {
            let silent = here.iter().flat_map(|it| &it.silent);
            silent.for_each(|address| ownership.hold_again(transport, *address));
            match here[0].was_ours {
                true => Ok(()),
                false => ownership.ports_mut(transport).remove(port..=port),
            }
        });
        // The next look tries again.
        if changed.is_ok() { Ok(Vec::new()) } else { Err(here) }
    }
}
