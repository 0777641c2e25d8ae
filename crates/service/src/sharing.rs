//! What a shard's server has bound where other shards have the same addresses.
//!
//! Read first: `steering/bindings.rs` for what a binding means.
//!
//! Invariant: what the stack listens at or receives at is bound, and nothing else is.

use std::net::SocketAddr;

use megapipe_stack::{
    BindError, DatagramId, DatagramSharing, Handover, ListenError, ListenerId, Reuse,
};

use crate::client_ports::candidates;
use crate::error::PortError;
use crate::rx_mux::Attachment;
use crate::steering::{BindingError, Takes, Transport};

/// Which of the connections to a listener's address are its own, where shards share the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    /// Whose connections.
    pub takes: Takes,
    /// No other shard listens there.
    pub is_exclusive: bool,
    /// What its connections say of others at their local address.
    pub reuse: Reuse,
    /// How many of its connections may begin with a SYN's data and not be established yet (Fast
    /// Open); 0: none.
    pub fast_open: u32,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { takes: Takes::Rest, is_exclusive: false, reuse: Reuse::default(), fast_open: 0 }
    }
}

/// Where a listener of a session listens, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerOptions {
    /// The address.
    pub address: SocketAddr,
    /// Most connections that wait to be accepted.
    pub backlog: u32,
    /// What other listeners may have of the address, and the options of its connections.
    pub sharing: Sharing,
}

/// The bindings of one shard.
pub(crate) struct ShardBindings {
    attachment: Attachment,
    /// By the stack's index.
    listeners: Vec<Option<SocketAddr>>,
    endpoints: Vec<Option<SocketAddr>>,
}

impl ShardBindings {
    pub(crate) const fn new(attachment: Attachment) -> Self {
        Self { attachment, listeners: Vec::new(), endpoints: Vec::new() }
    }

    /// Some shard listens at an address.
    pub(crate) fn is_listening(&self, local: SocketAddr) -> bool {
        self.attachment.is_bound(Transport::Tcp, local)
    }

    pub(crate) fn listen(
        &mut self,
        listener: ListenerId,
        local: SocketAddr,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        let Sharing { takes, is_exclusive, .. } = sharing;
        self.attachment.bind((Transport::Tcp, local), takes, is_exclusive).map_err(|error| {
            match error {
                BindingError::InUse => PortError::Stack(ListenError::InUse),
                BindingError::Full => PortError::Stack(ListenError::TooManyListeners),
                other => PortError::Shared(other),
            }
        })?;
        set(&mut self.listeners, listener.index, local);
        Ok(())
    }

    pub(crate) fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        let local = self.listeners.get(listener.index as usize).copied().flatten();
        let local = local.ok_or(PortError::Shared(BindingError::NotBound))?;
        self.attachment.rebind((Transport::Tcp, local), sharing.takes).map_err(PortError::Shared)
    }

    /// Returns `true` if other shards go on listening at the listener's address.
    pub(crate) fn unlisten(&mut self, listener: ListenerId) -> bool {
        let place = self.listeners.get_mut(listener.index as usize);
        let Some(local) = place.and_then(Option::take) else { return false };
        self.attachment.unbind((Transport::Tcp, local));
        self.is_listening(local)
    }

    /// As [`Attachment::hand_over`].
    pub(crate) fn hand_over(&self, handover: Handover) -> Result<(), Handover> {
        self.attachment.hand_over(handover)
    }

    /// Binds an endpoint. Its address is the shard's alone, unless what comes there is spread: then
    /// first over the shards that have it, and in each over its endpoints. Ports that are chosen
    /// are split between the shards: each has those whose remainder is its number.
    pub(crate) fn bind(
        &mut self,
        (local, sharing): (SocketAddr, DatagramSharing),
        ports: impl Iterator<Item = u16>,
        mut bind: impl FnMut(SocketAddr) -> Result<DatagramId, BindError>,
    ) -> Result<DatagramId, PortError<BindError>> {
        if local.port() != 0 {
            return self.bind_at(local, sharing, &mut bind);
        }
        // Not one that an endpoint of this shard has already.
        let alone = DatagramSharing::default();
        let (shard, shards) = (self.attachment.shard(), self.attachment.shards());
        for port in candidates(ports, shard, shards) {
            let local = SocketAddr::new(local.ip(), port);
            let sharing = if self.has_endpoint(local) { alone } else { sharing };
            match self.bind_at(local, sharing, &mut bind) {
                Err(PortError::Stack(BindError::InUse)) => {}
                other => return other,
            }
        }
        Err(PortError::Stack(BindError::NoPort))
    }

    fn bind_at(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
        bind: &mut impl FnMut(SocketAddr) -> Result<DatagramId, BindError>,
    ) -> Result<DatagramId, PortError<BindError>> {
        let address = (Transport::Udp, local);
        let is_first = !(sharing.is_shared && self.has_endpoint(local));
        if is_first {
            self.attachment.bind(address, Takes::Rest, !sharing.spreads).map_err(|error| {
                PortError::Stack(match error {
                    BindingError::Full => BindError::TooManyEndpoints,
                    _ => BindError::InUse,
                })
            })?;
        }
        match bind(local) {
            Ok(endpoint) => {
                set(&mut self.endpoints, endpoint.index, local);
                Ok(endpoint)
            }
            Err(error) => {
                if is_first {
                    self.attachment.unbind(address);
                }
                Err(PortError::Stack(error))
            }
        }
    }

    pub(crate) fn close(&mut self, endpoint: DatagramId) {
        let place = self.endpoints.get_mut(endpoint.index as usize);
        if let Some(local) = place.and_then(Option::take)
            && !self.has_endpoint(local)
        {
            self.attachment.unbind((Transport::Udp, local));
        }
    }

    fn has_endpoint(&self, local: SocketAddr) -> bool {
        self.endpoints.contains(&Some(local))
    }
}

fn set(places: &mut Vec<Option<SocketAddr>>, index: u32, local: SocketAddr) {
    let index = index as usize;
    if places.len() <= index {
        places.resize(index + 1, None);
    }
    places[index] = Some(local);
}
