//! UDP (RFC 768): endpoints that send and receive datagrams.
//!
//! Read first: RFC 1122 §4.1, RFC 8085 §3.4 (checksums) and §5.2 (what an ICMP error is worth).
//!
//! Invariants
//! - A datagram is received whole into one buffer of the endpoint's pool, or dropped and counted.
//! - What is sent fits one packet: the link's MTU for IPv4, whose routers may cut it, the path's
//!   for IPv6. Datagrams are not fragmented here: the loss of one
//!   fragment would lose the whole datagram (RFC 8085 §3.2).
//! - Datagrams that wait, in both directions, have ceilings per endpoint and together.
//! - An ICMP error is believed if an endpoint of that port sent to that peer lately, and else not.
//! - To each event of a datagram that was refused belongs one notice, in the same order.

mod ports;
mod refusing;
mod sending;
mod sharing;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::chunk::Chunk;
use crate::config::Config;
use crate::context::Context;
use crate::counters::Drop;
use crate::error::{BindError, OperationError};
use crate::event::{Arrival, Event};
use crate::frame::Checksums;
use crate::id::{DatagramId, PoolId};
use crate::ip::{Arrived, Ip};
use crate::limits::{
    DATAGRAM_PEERS, DATAGRAMS_PER_ENDPOINT_MAX, DATAGRAMS_WAITING_MAX, NOTICES_WAITING_MAX,
};
use crate::memory::Memory;
use crate::slab::Places;
use crate::wire::{Protocol, checksum, udp};
use ports::Ports;
use refusing::Refusals;
use sending::Sending;
use sharing::Spread;
pub use sharing::{DatagramOwner, DatagramSharing};

/// Where datagrams arrive and leave.
#[derive(Debug, Clone, Copy)]
struct Endpoint {
    /// Where it was bound.
    bound: SocketAddr,
    /// Where it is: as `bound`, or one address of all while it has a peer.
    local: SocketAddr,
    /// The only one that it hears.
    peer: Option<SocketAddr>,
    sharing: DatagramSharing,
    /// Later than that of those that came to their address before it.
    since: u64,
    pool: PoolId,
    /// Its events that were not taken yet.
    events: u32,
    /// Datagrams of it that wait to be sent.
    sending: u32,
    /// Whom it sent to last.
    peers: [Option<SocketAddr>; DATAGRAM_PEERS],
    next_peer: u8,
    /// Notices come with what they quote.
    quotes: bool,
}

/// The name of an endpoint, its ends, and how many datagrams wait in each direction.
type EndpointInPlace = (DatagramId, (SocketAddr, Option<SocketAddr>), (u32, u32));

/// The endpoints of a shard.
#[derive(Debug)]
pub(crate) struct Udp {
    endpoints: Vec<Option<Endpoint>>,
    places: Places,
    ports: Ports,
    spread: Spread,
    /// Endpoints that came to an address, ever.
    changes: u64,
    events: VecDeque<(Event, Arrival)>,
    /// Arrival metadata of the datagram of the last event.
    last_arrival: Arrival,
    refusals: Refusals,
    sending: Sending,
}

impl Udp {
    pub(crate) fn new(config: &Config) -> Self {
        let capacity = config.datagram_endpoints;
        // A stack without endpoints has nothing to wait for.
        let waiting = if capacity == 0 { 0 } else { DATAGRAMS_WAITING_MAX };
        Self {
            endpoints: alloc::vec![None; capacity as usize],
            places: Places::new(capacity),
            ports: Ports::new(config),
            spread: Spread::new(config),
            changes: 0,
            events: VecDeque::with_capacity(waiting),
            last_arrival: Arrival::NONE,
            refusals: Refusals::new(if capacity == 0 { 0 } else { NOTICES_WAITING_MAX }),
            sending: Sending::new(waiting),
        }
    }

    /// Opens an endpoint at `local`: an address of ours, or the unspecified one for all of that
    /// family; port 0: a free one that `fits` is chosen.
    pub(crate) fn bind(
        &mut self,
        ip: &Ip,
        (local, sharing): (SocketAddr, DatagramSharing),
        pool: PoolId,
        fits: &dyn Fn(u16) -> bool,
    ) -> Result<DatagramId, BindError> {
        if !local.ip().is_unspecified() && !ip.stays_here(local.ip()) {
            return Err(BindError::BadLocalAddress);
        }
        let local = match local.port() {
            0 => SocketAddr::new(local.ip(), self.free_port(local.ip(), fits)?),
            _ if self.is_refused(local, sharing) => return Err(BindError::InUse),
            _ => local,
        };
        let (index, generation) = self.places.take().ok_or(BindError::TooManyEndpoints)?;
        self.ports.insert(local.port(), index);
        self.changes += 1;
        self.endpoints[index as usize] = Some(Endpoint {
            bound: local,
            local,
            peer: None,
            sharing,
            since: self.changes,
            pool,
            events: 0,
            sending: 0,
            peers: [None; DATAGRAM_PEERS],
            next_peer: 0,
            quotes: false,
        });
        Ok(DatagramId { index, generation })
    }

    /// Closes an endpoint: what it has received is dropped, what it has sent goes out.
    pub(crate) fn close<M: Memory>(
        &mut self,
        id: DatagramId,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        let endpoint = *self.endpoint(id)?;
        self.ports.remove(endpoint.local.port(), id.index);
        self.endpoints[id.index as usize] = None;
        self.places.give_back(id.index);
        self.events.retain(|(event, _)| match event {
            Event::Datagram { endpoint, chunk, .. } if *endpoint == id => {
                memory.free(chunk.buf);
                false
            }
            Event::DatagramRefused { endpoint, .. } => *endpoint != id,
            _ => true,
        });
        self.refusals.close(id, memory);
        Ok(())
    }

    /// Drops the datagrams that wait to be sent and whose chunk `is_its`.
    pub(crate) fn drop_sent<M: Memory>(&mut self, is_its: impl Fn(Chunk) -> bool, memory: &mut M) {
        self.sending.drop_where(is_its, memory);
    }

    /// Takes what an endpoint has received and no event has reported. It receives into `pool` from
    /// now on, and none of its buffers is of another pool.
    pub(crate) fn set_pool<M: Memory>(
        &mut self,
        (id, pool): (DatagramId, PoolId),
        memory: &mut M,
        mut each: impl FnMut(SocketAddr, Arrival, Chunk),
    ) -> Result<(), OperationError> {
        let mut taken = 0;
        self.endpoint(id)?;
        self.events.retain(|(event, arrival)| match *event {
            Event::Datagram { endpoint, from, chunk } if endpoint == id => {
                taken += 1;
                each(from, *arrival, chunk);
                false
            }
            _ => true,
        });
        self.refusals.drop_quotes(id, memory);
        if let Some(Some(endpoint)) = self.endpoints.get_mut(id.index as usize) {
            endpoint.events -= taken;
            endpoint.pool = pool;
        }
        Ok(())
    }

    /// Where the endpoint is.
    pub(crate) fn local(&self, id: DatagramId) -> Result<SocketAddr, OperationError> {
        self.endpoint(id).map(|endpoint| endpoint.local)
    }

    /// The only peer of an endpoint, if it has one.
    pub(crate) fn peer(&self, id: DatagramId) -> Result<Option<SocketAddr>, OperationError> {
        self.endpoint(id).map(|endpoint| endpoint.peer)
    }

    /// Places of endpoints that were ever in use, and free ones.
    pub(crate) const fn slots(&self) -> u32 {
        self.endpoints.len() as u32
    }

    /// The endpoint in a place: its name, its ends, and how many datagrams wait to be received and
    /// to be sent.
    pub(crate) fn endpoint_at(&self, index: u32) -> Option<EndpointInPlace> {
        let endpoint = self.endpoints.get(index as usize)?.as_ref()?;
        let id = DatagramId { index, generation: self.places.generation(index) };
        Some((id, (endpoint.local, endpoint.peer), (endpoint.events, endpoint.sending)))
    }

    /// A datagram arrived.
    ///
    /// # Errors
    ///
    /// Why it is dropped; [`Drop::NoEndpoint`] is for the sender to know.
    pub(crate) fn on_datagram<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        arrived: &Arrived<'_>,
    ) -> Result<(), Drop> {
        let view = udp::View::new(arrived.payload)?;
        let from = SocketAddr::new(arrived.src, view.src_port());
        let to = SocketAddr::new(arrived.dst, view.dst_port());
        let Some(index) = self.find(from, to) else {
            // Only a valid datagram is answered with port unreachable.
            check(arrived, &view, checksum::sum(view.payload()))?;
            return Err(Drop::NoEndpoint);
        };
        let Some(endpoint) = self.endpoints[index as usize].as_mut() else {
            return Err(Drop::NoEndpoint);
        };
        let is_full = self.events.len() >= DATAGRAMS_WAITING_MAX;
        if is_full || endpoint.events >= DATAGRAMS_PER_ENDPOINT_MAX {
            return Err(Drop::QueueFull);
        }
        let buf = context.memory.alloc(endpoint.pool).ok_or(Drop::NoBuffer)?;
        if view.payload().len() > context.memory.buf_bytes(buf) as usize {
            context.memory.free(buf);
            return Err(Drop::NoBuffer);
        }
        let sum = context.memory.copy_in(buf, 0, view.payload());
        if let Err(reason) = check(arrived, &view, sum) {
            context.memory.free(buf);
            return Err(reason);
        }
        endpoint.events += 1;
        context.base.counters.totals.datagrams_in += 1;
        let generation = self.places.generation(index);
        let datagram = Event::Datagram {
            endpoint: DatagramId { index, generation },
            from,
            chunk: Chunk { buf, offset: 0, len: view.payload().len() as u32 },
        };
        let Arrived { dst, hop_limit, traffic_class, .. } = *arrived;
        self.events.push_back((datagram, Arrival { to: dst, hop_limit, traffic_class }));
        Ok(())
    }

    /// What happened next.
    #[inline(never)]
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let (event, arrival) = self.events.pop_front()?;
        self.last_arrival = arrival;
        self.refusals.on_event_reported(&event);
        if let Event::Datagram { endpoint, .. } | Event::DatagramRefused { endpoint, .. } = event
            && let Some(Some(endpoint)) = self.endpoints.get_mut(endpoint.index as usize)
        {
            endpoint.events -= 1;
        }
        Some(event)
    }

    /// Whether an event is pending.
    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Arrival metadata of the datagram of the last event.
    pub(crate) const fn last_arrival(&self) -> Arrival {
        self.last_arrival
    }

    fn endpoint(&self, id: DatagramId) -> Result<&Endpoint, OperationError> {
        if !self.places.holds(id.index, id.generation) {
            return Err(OperationError::Unknown);
        }
        self.endpoints[id.index as usize].as_ref().ok_or(OperationError::Unknown)
    }

    fn free_port(&mut self, ip: IpAddr, fits: &dyn Fn(u16) -> bool) -> Result<u16, BindError> {
        let mut candidates = self.ports.candidates().filter(|port| fits(*port));
        candidates.find(|port| !self.is_taken(SocketAddr::new(ip, *port))).ok_or(BindError::NoPort)
    }
}

/// Checks a datagram's checksum; `payload_sum` is the sum of its payload.
fn check(arrived: &Arrived<'_>, view: &udp::View<'_>, payload_sum: u16) -> Result<(), Drop> {
    if arrived.checksums != Checksums::Unverified {
        return Ok(());
    }
    if view.checksum() == 0 {
        // "No checksum" is for IPv4 alone (RFC 8200 §8.1).
        return if arrived.src.is_ipv4() { Ok(()) } else { Err(Drop::BadTransportChecksum) };
    }
    let len = view.bytes().len();
    let pseudo_header =
        checksum::pseudo_header(arrived.src, arrived.dst, Protocol::Udp.number(), len);
    let header = checksum::sum(&view.bytes()[..udp::HEADER_BYTES]);
    let sum = checksum::combine(checksum::combine(pseudo_header, header), payload_sum);
    if sum == 0xffff { Ok(()) } else { Err(Drop::BadTransportChecksum) }
}
