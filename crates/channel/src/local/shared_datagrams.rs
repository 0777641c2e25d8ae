//! Datagram sockets of a daemon that other processes own too.
//!
//! Read first: `sharing.rs` of the channel; decision 0068.
//!
//! The datagrams of such a socket wait at the daemon, and each is taken by a call. Reads that were
//! pending when it was shared are not completed any more.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe_service::{SharedDatagram, SharedEndpoint};
use megapipe_stack::{self as stack, DatagramId};

use super::datagram::arrival_of;
use super::{Local, NO_SLOT, StackHandle};
use crate::address::Address;
use crate::buffer::ReadBuf;
use crate::channel::Channel;
use crate::completion::{Arrival, Datagram, Event};
use crate::error::{Limit, ShareError};
use crate::handle::Handle;
use crate::kind::Kind;
use crate::slot::{Extra, WaitingDatagram};
use crate::state::State;

/// A datagram socket that was adopted.
#[derive(Debug, Clone, Copy)]
pub struct AdoptedDatagramSocket {
    /// Its handle.
    pub handle: Handle,
    /// Its address.
    pub local: SocketAddr,
    /// The only peer, if it has one.
    pub peer: Option<SocketAddr>,
}

impl<T> Channel<T> {
    pub(crate) fn endpoint_name_on_service(&mut self, index: u32) -> Option<SharedEndpoint> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        let endpoint = local.endpoint(state, index)?;
        local.server.lanes().ok()?.shared_endpoint_name(endpoint)
    }

    pub(crate) fn endpoint_names_on_service(&mut self) -> Vec<SharedEndpoint> {
        let Some(local) = self.driver.local() else { return Vec::new() };
        let owned = local.endpoints.iter().zip(0..).filter(|(owner, _)| owner.slot != NO_SLOT);
        let owned: Vec<DatagramId> = owned
            .map(|(owner, index)| DatagramId { index, generation: owner.generation })
            .collect();
        let Ok(lanes) = local.server.lanes() else { return Vec::new() };
        owned.into_iter().filter_map(|it| lanes.shared_endpoint_name(it)).collect()
    }

    pub(crate) fn adopt_endpoint_on_service(
        &mut self,
        name: SharedEndpoint,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let lanes = local.server.polling_lanes();
        let adopted = lanes.and_then(|lanes| lanes.adopt_inherited_endpoint(name));
        local.adopt_endpoint(state, adopted.map_err(ShareError::Service)?, cookie)
    }

    pub(crate) fn share_endpoints_on_service(
        &mut self,
        handles: &[Handle],
    ) -> Result<OwnedFd, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let endpoints = handles.iter().map(|handle| {
            let index = state.find(*handle)?;
            local.endpoint(state, index).ok_or(ShareError::NotEstablished)
        });
        let endpoints: Vec<DatagramId> = endpoints.collect::<Result<_, ShareError>>()?;
        let lanes = local.server.polling_lanes();
        let shared = lanes.and_then(|lanes| lanes.share_endpoints(&endpoints));
        local.settle_events(state);
        shared.map_err(ShareError::Service)
    }

    pub(crate) fn adopt_endpoints_on_service(
        &mut self,
        token: BorrowedFd<'_>,
    ) -> Result<Vec<AdoptedDatagramSocket>, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let lanes = local.server.polling_lanes().map_err(ShareError::Service)?;
        let adopted = lanes.adopt_token_endpoints(token).map_err(ShareError::Service)?;
        let mut sockets: Vec<AdoptedDatagramSocket> = Vec::new();
        let mut error = None;
        for (endpoint, address, peer) in adopted {
            if error.is_some() {
                local.server.close_datagram(endpoint);
                continue;
            }
            match local.adopt_endpoint(state, endpoint, 0) {
                Ok(handle) => sockets.push(AdoptedDatagramSocket { handle, local: address, peer }),
                Err(failed) => error = Some(failed),
            }
        }
        let Some(error) = error else { return Ok(sockets) };
        for AdoptedDatagramSocket { handle, .. } in sockets {
            // It is there: it was made just now.
            let _ = self.unregister(handle);
        }
        Err(error)
    }

    pub(crate) fn take_datagram_on_service(
        &mut self,
        index: u32,
        keeps: bool,
    ) -> Option<Option<(Datagram, u32)>> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        let endpoint = local.endpoint(state, index)?;
        let Some((taken, waiting)) = local.server.lanes().ok()?.take_datagram(endpoint, keeps)?
        else {
            return Some(None);
        };
        let SharedDatagram { from, arrival, bytes } = taken;
        let datagram = Datagram {
            data: ReadBuf::from_vec(bytes),
            from: Some(Address::Inet(from)),
            truncated: false,
            arrival: Some(arrival_of(arrival)),
            control: Box::default(),
        };
        Some(Some((datagram, waiting)))
    }

    pub(crate) fn await_datagram_on_service(&mut self, index: u32) -> Option<u32> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        let endpoint = local.endpoint(state, index)?;
        local.server.lanes().ok()?.await_datagram(endpoint).ok()
    }

    pub(crate) fn give_datagrams_back_to_service(
        &mut self,
        index: u32,
        seen: Vec<Datagram>,
    ) -> Result<(), ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let endpoint = local.endpoint(state, index).ok_or(ShareError::NotEstablished)?;
        let waiting = match state.slot(index).extra.as_deref_mut() {
            Some(Extra::Datagrams(waiting)) => std::mem::take(waiting),
            _ => return Err(ShareError::NotEstablished),
        };
        let waiting = waiting
            .into_iter()
            .filter_map(|WaitingDatagram { from, data, arrival }| given(from, &data, arrival));
        let seen = seen.into_iter().filter_map(|Datagram { from, data, arrival, .. }| {
            given(from.and_then(|from| from.as_inet())?, &data, arrival)
        });
        // Each goes before those that were given back earlier.
        let all: Vec<SharedDatagram> = seen.chain(waiting).collect();
        let mut newest_first = all.iter().rev();
        let given =
            newest_first.try_for_each(|it| local.server.lanes()?.give_datagram_back(endpoint, it));
        given.map_err(ShareError::Service)
    }
}

/// A datagram as a daemon has it.
fn given(from: SocketAddr, data: &ReadBuf, arrival: Option<Arrival>) -> Option<SharedDatagram> {
    let Arrival { to, hop_limit, traffic_class } = arrival?;
    let arrival = stack::Arrival { to, hop_limit, traffic_class };
    Some(SharedDatagram { from, arrival, bytes: data.to_vec() })
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// Makes a slot for an endpoint that was adopted. Without one the endpoint is closed.
    fn adopt_endpoint(
        &mut self,
        state: &mut State,
        endpoint: DatagramId,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        if let Some(slot) = self.slot_of_endpoint(endpoint) {
            return Err(ShareError::Known { handle: state.handle(slot) });
        }
        let index = match state.allocate(Kind::Udp, cookie) {
            Ok(index) => index,
            Err(error) => {
                self.server.close_datagram(endpoint);
                return Err(error.into());
            }
        };
        if self.own_endpoint(state, index, endpoint).is_err() {
            state.retire(index);
            state.release(index);
            return Err(Limit::Memory.into());
        }
        Ok(state.handle(index))
    }

    /// A datagram waits at the daemon for the owners of an endpoint.
    pub(super) fn on_datagram_waits(
        &mut self,
        state: &mut State,
        endpoint: DatagramId,
        bytes: u32,
    ) {
        let slot = self.slot_of_endpoint(endpoint).filter(|_| state.config.unsolicited_events);
        if let Some(slot) = slot {
            state.complete(slot, Event::DatagramWaits { bytes });
        }
    }
}
