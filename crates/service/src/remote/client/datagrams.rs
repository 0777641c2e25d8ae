//! Datagrams: their payload goes over in send buffers, and the caller does not wait for the server.
//!
//! Linux refuses some datagrams at once: for their length, for want of a route, for a source
//! address that is not the host's, or because the send queue is full. Only the server knows routes.
//! So the first datagram from an endpoint to a destination is checked by a call
//! (`CheckDatagrams`), and its answer is remembered. It is forgotten when the server's stack does
//! not take a datagram after all, or the network refuses one: the next datagram is then checked
//! again, and its caller gets the error.
//!
//! Invariants
//! - A datagram that was not checked, or that may exceed the endpoint's queue, is never submitted
//!   without a call before it.
//! - What is remembered is a hint: the server's stack checks each datagram.

use std::net::{IpAddr, SocketAddr};

use megapipe_shm::BufId;
use megapipe_shm::record::{self, Command, SessionCall};
use megapipe_stack::limits::{DATAGRAM_ENDPOINTS_MAX, DATAGRAMS_PER_ENDPOINT_MAX};
use megapipe_stack::{DatagramId, Departure, OperationError};

use super::RemoteClient;
use crate::limits::CHECKED_WAYS_MAX;
use crate::remote::encoding::id_of_endpoint;
use crate::remote::send_buffers::{Carrier, Held};

/// A destination that the server has checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CheckedWay {
    endpoint: DatagramId,
    to: IpAddr,
    from: Option<IpAddr>,
    /// Bytes of the longest datagram.
    bytes_max: usize,
}

/// An endpoint's datagrams that are with the server.
#[derive(Debug, Clone, Copy, Default)]
struct EndpointQueue {
    generation: u32,
    count: u32,
    held: Held,
}

/// What is known of endpoints and destinations.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    /// By a hash of endpoint and destination; empty before the first datagram.
    ways: Vec<Option<CheckedWay>>,
    queues: Vec<EndpointQueue>,
}

impl Datagrams {
    fn place(endpoint: DatagramId, to: IpAddr) -> usize {
        let address = match to {
            IpAddr::V4(ip) => ip.to_bits(),
            IpAddr::V6(ip) => {
                let bits = ip.to_bits();
                (bits ^ bits >> 32 ^ bits >> 64 ^ bits >> 96) as u32
            }
        };
        let mixed = (address ^ endpoint.index).wrapping_mul(0x9e37_79b1);
        (mixed >> (u32::BITS - CHECKED_WAYS_MAX.ilog2())) as usize
    }

    /// Bytes of the longest datagram that goes there; `None`: it is not known.
    fn bytes_max(&self, endpoint: DatagramId, to: IpAddr, from: Option<IpAddr>) -> Option<usize> {
        let way = self.ways.get(Self::place(endpoint, to))?.as_ref()?;
        let is_same = way.endpoint == endpoint && way.to == to && way.from == from;
        is_same.then_some(way.bytes_max)
    }

    /// Without memory for the table, each datagram is checked by a call.
    fn remember(&mut self, way: CheckedWay) {
        if self.ways.is_empty() {
            if self.ways.try_reserve_exact(CHECKED_WAYS_MAX).is_err() {
                return;
            }
            self.ways.resize(CHECKED_WAYS_MAX, None);
        }
        self.ways[Self::place(way.endpoint, way.to)] = Some(way);
    }

    /// Destinations of an endpoint are to be checked again.
    pub(super) fn forget(&mut self, endpoint: DatagramId) {
        for way in &mut self.ways {
            way.take_if(|way| way.endpoint == endpoint);
        }
    }

    /// The queue of an endpoint.
    ///
    /// # Errors
    /// There cannot be such an endpoint, or there is no memory.
    fn queue(&mut self, endpoint: DatagramId) -> Result<&mut EndpointQueue, OperationError> {
        if endpoint.index >= DATAGRAM_ENDPOINTS_MAX {
            return Err(OperationError::Unknown);
        }
        let index = endpoint.index as usize;
        if self.queues.len() <= index {
            let missing = index + 1 - self.queues.len();
            self.queues.try_reserve(missing).map_err(|_| OperationError::NoMemory)?;
            self.queues.resize(index + 1, EndpointQueue::default());
        }
        let queue = &mut self.queues[index];
        if queue.generation != endpoint.generation {
            *queue = EndpointQueue { generation: endpoint.generation, ..EndpointQueue::default() };
        }
        Ok(queue)
    }

    /// The server has given back the buffer of a datagram.
    pub(super) fn on_returned(&mut self, endpoint: DatagramId, buf: BufId) {
        let queue = self.queues.get_mut(endpoint.index as usize);
        if let Some(queue) = queue.filter(|queue| queue.generation == endpoint.generation) {
            queue.count = queue.count.saturating_sub(1);
            queue.held.give_back(buf);
        }
    }
}

impl RemoteClient {
    /// Sends a datagram.
    ///
    /// # Errors
    /// As [`megapipe_stack::Stack::send_datagram_as`]; [`OperationError::QueueFull`] also if all
    /// send buffers are in use.
    pub fn send_datagram(
        &mut self,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        bytes: &[u8],
    ) -> Result<(), OperationError> {
        self.admit(endpoint, (to, departure), (bytes.len(), 1))?;
        let chunk = self.fill_datagram(endpoint, bytes).ok_or(OperationError::QueueFull)?;
        self.submit_datagram(endpoint, (to, departure), chunk);
        Ok(())
    }

    /// Sends pieces of `bytes` of `segment_len` bytes, the last one perhaps shorter, as a datagram
    /// each: all or none.
    ///
    /// # Errors
    /// As [`Server::send_datagrams`](crate::Server::send_datagrams); [`OperationError::QueueFull`]
    /// also if there are fewer send buffers.
    pub fn send_datagrams(
        &mut self,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        (bytes, segment_len): (&[u8], usize),
    ) -> Result<(), OperationError> {
        let pieces = bytes.chunks(segment_len.max(1));
        let longest = bytes.len().min(segment_len);
        self.admit(endpoint, (to, departure), (longest, pieces.len()))?;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(pieces.len()).map_err(|_| OperationError::NoMemory)?;
        for piece in pieces {
            let Some(chunk) = self.fill_datagram(endpoint, piece) else {
                chunks.iter().for_each(|chunk: &record::Chunk| self.on_returned(chunk.buf));
                return Err(OperationError::QueueFull);
            };
            chunks.push(chunk);
        }
        for chunk in chunks {
            self.submit_datagram(endpoint, (to, departure), chunk);
        }
        Ok(())
    }

    /// Whether so many datagrams of at most `len` bytes can be submitted: as it is known here, or
    /// else by a call.
    fn admit(
        &mut self,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        (len, count): (usize, usize),
    ) -> Result<(), OperationError> {
        let from = departure.from;
        let queued = self.datagrams.queue(endpoint)?.count;
        let is_checked = to.port() != 0
            && queued as usize + count <= DATAGRAMS_PER_ENDPOINT_MAX as usize
            && self.datagrams.bytes_max(endpoint, to.ip(), from).is_some_and(|max| len <= max);
        if is_checked {
            return Ok(());
        }
        if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
            // A record has no room for it; the server would refuse it too.
            return Err(OperationError::BadAddress);
        }
        let Ok(len) = u16::try_from(len) else { return Err(OperationError::TooLong) };
        let count = u16::try_from(count).map_err(|_| OperationError::QueueFull)?;
        let call = SessionCall::CheckDatagrams {
            endpoint: id_of_endpoint(endpoint),
            to,
            from,
            len,
            count,
        };
        let bytes_max = self.call_value(call)? as usize;
        self.datagrams.remember(CheckedWay { endpoint, to: to.ip(), from, bytes_max });
        // SessionBuffers that came back meanwhile.
        self.collect_events();
        Ok(())
    }

    /// A copy of a datagram in a send buffer, if one is free.
    fn fill_datagram(&mut self, endpoint: DatagramId, bytes: &[u8]) -> Option<record::Chunk> {
        let Self { datagrams, sends, .. } = self;
        let queue = datagrams.queue(endpoint).ok()?;
        let chunk = sends.fill((Carrier::Endpoint(endpoint), &mut queue.held), bytes)?;
        queue.count += 1;
        Some(chunk)
    }

    /// Sends a datagram for a test that polls the server itself, so that no call checks it.
    #[cfg(test)]
    pub(in crate::remote) fn send_unchecked(
        &mut self,
        endpoint: DatagramId,
        to: SocketAddr,
        bytes: &[u8],
    ) {
        let chunk = self.fill_datagram(endpoint, bytes).expect("a buffer is free");
        self.submit_datagram(endpoint, (to, &Departure::default()), chunk);
        self.flush();
    }

    fn submit_datagram(
        &mut self,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        record::Chunk { buf, len, .. }: record::Chunk,
    ) {
        let Departure { from, hop_limit, traffic_class } = *departure;
        // No hop limit is 0: the stack raises it to 1.
        let hop_limit = hop_limit.map_or(0, |hops| hops.max(1));
        let (endpoint, len) = (id_of_endpoint(endpoint), len as u16);
        let command =
            Command::SendDatagram { endpoint, to, from, hop_limit, traffic_class, buf, len };
        self.ask(0, command);
    }
}
