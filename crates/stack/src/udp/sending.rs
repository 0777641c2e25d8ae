//! UDP output.
//!
//! Invariants
//! - A datagram's buffer is ours from `send` until it is written to a frame, or dropped; then it
//!   is freed, once.
//! - One whose next hop is not known yet is parked, and lets the others pass.
//! - A datagram outlives its endpoint, as in Linux: a program may send and close at once.

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};

use super::Udp;
use crate::chunk::Chunk;
use crate::config::Config;
use crate::context::Context;
use crate::counters::Drop;
use crate::error::OperationError;
use crate::event::{Departure, Undelivered};
use crate::frame::Transmit;
use crate::id::DatagramId;
use crate::ip::local_peers::LocalPeer;
use crate::ip::{Departing, Hop, Ip, NextHop, Service, ip_header_bytes};
use crate::limits::{DATAGRAM_PEERS, DATAGRAMS_PER_ENDPOINT_MAX, HOP_LIMIT};
use crate::memory::Memory;
use crate::wire::{Ecn, Protocol, checksum, udp};

#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) endpoint: DatagramId,
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) chunk: Chunk,
    service: Service,
    ecn: Ecn,
    parked: bool,
}

/// Datagrams that wait to be sent, the oldest first.
#[derive(Debug)]
pub(super) struct Sending {
    waiting: VecDeque<Outgoing>,
    parked: usize,
    capacity: usize,
}

impl Sending {
    pub(super) fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(capacity), parked: 0, capacity }
    }

    /// Drops the datagrams that wait and whose chunk `is_its`.
    pub(super) fn drop_where<M: Memory>(&mut self, is_its: impl Fn(Chunk) -> bool, memory: &mut M) {
        let Self { waiting, parked, .. } = self;
        waiting.retain(|outgoing| {
            let stays = !is_its(outgoing.chunk);
            if !stays {
                *parked -= usize::from(outgoing.parked);
                memory.free(outgoing.chunk.buf);
            }
            stays
        });
    }
}

impl Udp {
    /// Takes a datagram to send: the bytes of `chunk`, which may be none.
    pub(crate) fn send<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: DatagramId,
        (to, chunk): (SocketAddr, Chunk),
        departure: &Departure,
    ) -> Result<(), OperationError> {
        let src = self.source(&context.base.ip, id, to, departure)?;
        let end = chunk.offset.checked_add(chunk.len);
        if end.is_none_or(|end| end > context.memory.buf_bytes(chunk.buf)) {
            return Err(OperationError::BadChunk);
        }
        if chunk.len as usize > self.payload_bytes_max(&context.base.ip, &context.base.config, to) {
            return Err(OperationError::TooLong);
        }
        let Some(Some(endpoint)) = self.endpoints.get_mut(id.index as usize) else {
            return Err(OperationError::Unknown);
        };
        let is_full = self.sending.waiting.len() >= self.sending.capacity;
        if is_full || endpoint.sending >= DATAGRAMS_PER_ENDPOINT_MAX {
            return Err(OperationError::QueueFull);
        }
        endpoint.sending += 1;
        if !endpoint.peers.contains(&Some(to)) {
            endpoint.peers[usize::from(endpoint.next_peer)] = Some(to);
            endpoint.next_peer = (endpoint.next_peer + 1) % DATAGRAM_PEERS as u8;
        }
        self.sending.waiting.push_back(Outgoing {
            endpoint: id,
            src,
            dst: to,
            chunk,
            service: Service {
                dscp: departure.traffic_class >> 2,
                hop_limit: departure.hop_limit.map_or(HOP_LIMIT, |hops| hops.max(1)),
            },
            ecn: Ecn::from_bits(departure.traffic_class),
            parked: false,
        });
        Ok(())
    }

    /// The source of a datagram to `to`.
    fn source(
        &self,
        ip: &Ip,
        id: DatagramId,
        to: SocketAddr,
        departure: &Departure,
    ) -> Result<SocketAddr, OperationError> {
        let local = self.local(id)?;
        if to.port() == 0 || to.is_ipv4() != local.is_ipv4() {
            return Err(OperationError::BadAddress);
        }
        let routed = ip.source_for(to.ip().into()).ok_or(OperationError::BadAddress)?.ip();
        if routed == to.ip() && !ip.can_reach(LocalPeer::Datagram(to)) {
            return Err(OperationError::BadAddress);
        }
        let src = match departure.from {
            Some(from) if from.is_ipv4() != to.is_ipv4() || !ip.stays_here(from) => {
                return Err(OperationError::BadAddress);
            }
            Some(from) => from,
            None if local.ip().is_unspecified() => routed,
            None => local.ip(),
        };
        if !ip.may_send(src, to.ip()) {
            return Err(OperationError::BadAddress);
        }
        Ok(SocketAddr::new(src, local.port()))
    }

    /// Bytes of the longest datagram to `to`.
    fn payload_bytes_max(&self, ip: &Ip, config: &Config, to: SocketAddr) -> usize {
        let headers = ip_header_bytes(&to.ip()) + udp::HEADER_BYTES;
        usize::from(self.packet_bytes_max(ip, config, to.ip())).saturating_sub(headers)
    }

    /// As `send`, of `count` datagrams of at most `len` bytes, without sending them. Returns the
    /// bytes of the longest that could be sent.
    pub(crate) fn check(
        &self,
        (ip, config): (&Ip, &Config),
        id: DatagramId,
        to: SocketAddr,
        departure: &Departure,
        (len, count): (usize, usize),
    ) -> Result<usize, OperationError> {
        self.source(ip, id, to, departure)?;
        let max = self.payload_bytes_max(ip, config, to);
        if len > max {
            return Err(OperationError::TooLong);
        }
        if self.room(id)? < count {
            return Err(OperationError::QueueFull);
        }
        Ok(max)
    }

    /// How many more datagrams an endpoint may send.
    pub(crate) fn room(&self, id: DatagramId) -> Result<usize, OperationError> {
        let own = DATAGRAMS_PER_ENDPOINT_MAX.saturating_sub(self.endpoint(id)?.sending);
        Ok(self.sending.capacity.saturating_sub(self.sending.waiting.len()).min(own as usize))
    }

    /// No datagram can leave now.
    #[inline(always)]
    pub(crate) fn is_silent(&self) -> bool {
        self.sending.waiting.len() <= self.sending.parked
    }

    /// Writes the next datagram.
    pub(crate) fn poll_transmit<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        frame: &mut [u8],
    ) -> Option<Transmit> {
        while !self.is_silent() {
            let at = self.sending.waiting.iter().position(|outgoing| !outgoing.parked)?;
            let outgoing = self.sending.waiting[at];
            match context.base.ip.next_hop(context.now, outgoing.dst.ip().into()) {
                NextHop::Ready(hop) => {
                    self.finish(at);
                    let transmit = write(context, frame, hop, &outgoing);
                    context.memory.free(outgoing.chunk.buf);
                    return Some(transmit);
                }
                NextHop::Waiting => {
                    self.sending.waiting[at].parked = true;
                    self.sending.parked += 1;
                }
                NextHop::NoRoute => self.give_up(context, at, Undelivered::NetworkUnreachable),
            }
        }
        None
    }

    /// A neighbour was found, or given up.
    pub(crate) fn on_neighbour<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        neighbour: IpAddr,
        resolved: bool,
    ) {
        if self.sending.parked == 0 {
            return;
        }
        let mut at = 0;
        while let Some(outgoing) = self.sending.waiting.get_mut(at) {
            if !outgoing.parked || context.base.ip.via(outgoing.dst.ip()) != Some(neighbour) {
                at += 1;
                continue;
            }
            outgoing.parked = false;
            self.sending.parked -= 1;
            if resolved {
                at += 1;
            } else {
                self.give_up(context, at, Undelivered::HostUnreachable);
            }
        }
    }

    /// Drops a datagram that has no way out, and says so.
    fn give_up<M: Memory>(&mut self, context: &mut Context<'_, M>, at: usize, why: Undelivered) {
        let outgoing = self.sending.waiting[at];
        self.finish(at);
        context.base.counters.drop(Drop::NextHopUnresolved);
        self.refuse_here(context.memory, &outgoing, why);
        context.memory.free(outgoing.chunk.buf);
    }

    /// Takes a datagram that is not parked out of the queue.
    fn finish(&mut self, at: usize) {
        let Some(Outgoing { endpoint: id, .. }) = self.sending.waiting.remove(at) else { return };
        if self.places.holds(id.index, id.generation)
            && let Some(Some(endpoint)) = self.endpoints.get_mut(id.index as usize)
        {
            endpoint.sending -= 1;
        }
    }
}

fn write<M: Memory>(
    context: &mut Context<'_, M>,
    frame: &mut [u8],
    hop: Hop,
    outgoing: &Outgoing,
) -> Transmit {
    let payload_bytes = outgoing.chunk.len as usize;
    let len = udp::HEADER_BYTES + payload_bytes;
    let (src, dst) = (outgoing.src.ip(), outgoing.dst.ip());
    let departing = Departing {
        src,
        dst,
        protocol: Protocol::Udp,
        service: outgoing.service,
        ecn: outgoing.ecn,
        payload_bytes: len,
        dont_fragment: false,
    };
    let at = context.base.ip.header_bytes(&dst);
    context.base.ip.write_headers(frame, hop, &departing);
    let datagram = &mut frame[at..at + len];
    let header =
        udp::Repr { src_port: outgoing.src.port(), dst_port: outgoing.dst.port(), payload_bytes };
    let header_sum = header.emit(datagram);
    let payload_sum = context.memory.copy_out(outgoing.chunk, &mut datagram[udp::HEADER_BYTES..]);
    let pseudo_header = checksum::pseudo_header(src, dst, Protocol::Udp.number(), len);
    context.base.counters.totals.datagrams_out += 1;
    let transmit = Transmit::new(at + len).staying(hop.is_local());
    if context.base.config.tx_checksum {
        udp::write_partial_checksum(datagram, pseudo_header);
        transmit.checksummed_by_link(at as u16, udp::CHECKSUM_OFFSET as u8)
    } else {
        let sum = checksum::combine(checksum::combine(pseudo_header, header_sum), payload_sum);
        udp::write_checksum(datagram, sum);
        transmit
    }
}
