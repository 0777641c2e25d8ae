//! Datagram sockets of a daemon that other processes own too.
//!
//! Read first: `sharing.rs` of the channel; decision 0068.
//!
//! The datagrams of such a socket wait at the daemon, and each is taken by a call. Reads that were
//! pending when it was shared are not completed any more.

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

impl<T> Channel<T> {
    pub(crate) fn endpoint_name_on_service(&mut self, index: u32) -> Option<SharedEndpoint> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        let endpoint = local.endpoint(state, index)?;
        local.server.shared_endpoint_name(endpoint)
    }

    pub(crate) fn endpoint_names_on_service(&mut self) -> Vec<SharedEndpoint> {
        let Some(local) = self.driver.local() else { return Vec::new() };
        let owned = local.endpoints.iter().zip(0..).filter(|(owner, _)| owner.slot != NO_SLOT);
        let owned: Vec<DatagramId> = owned
            .map(|(owner, index)| DatagramId { index, generation: owner.generation })
            .collect();
        let names = owned.into_iter().filter_map(|it| local.server.shared_endpoint_name(it));
        names.collect()
    }

    pub(crate) fn adopt_endpoint_on_service(
        &mut self,
        name: SharedEndpoint,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let index = state.allocate(Kind::Udp, cookie)?;
        let adopted = local.server.adopt_inherited_endpoint(name).map_err(ShareError::Service);
        let owned = adopted.and_then(|endpoint| match local.slot_of_endpoint(endpoint) {
            Some(slot) => Err(ShareError::Known { handle: state.handle(slot) }),
            None => local
                .own_endpoint(state, index, endpoint)
                .map_err(|_no_memory| Limit::Memory.into()),
        });
        match owned {
            Ok(()) => Ok(state.handle(index)),
            Err(error) => {
                state.retire(index);
                state.release(index);
                Err(error)
            }
        }
    }

    pub(crate) fn take_datagram_on_service(
        &mut self,
        index: u32,
        keeps: bool,
    ) -> Option<(Datagram, u32)> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        let endpoint = local.endpoint(state, index)?;
        let (taken, waiting) = local.server.take_datagram(endpoint, keeps)?;
        let SharedDatagram { from, arrival, bytes } = taken;
        let datagram = Datagram {
            data: ReadBuf::from_vec(bytes),
            from: Some(Address::Inet(from)),
            truncated: false,
            arrival: Some(arrival_of(arrival)),
            control: Box::default(),
        };
        Some((datagram, waiting))
    }

    pub(crate) fn await_datagram_on_service(&mut self, index: u32) -> u32 {
        let Self { driver, state, .. } = self;
        let Some(local) = driver.local() else { return 0 };
        local.endpoint(state, index).map_or(0, |endpoint| local.server.await_datagram(endpoint))
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
        let given = newest_first.try_for_each(|it| local.server.give_datagram_back(endpoint, it));
        given.map_err(ShareError::Service)
    }
}

/// A datagram as a daemon has it.
fn given(
    from: std::net::SocketAddr,
    data: &ReadBuf,
    arrival: Option<Arrival>,
) -> Option<SharedDatagram> {
    let Arrival { to, hop_limit, traffic_class } = arrival?;
    let arrival = stack::Arrival { to, hop_limit, traffic_class };
    Some(SharedDatagram { from, arrival, bytes: data.to_vec() })
}

impl<H: StackHandle + ?Sized> Local<H> {
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
