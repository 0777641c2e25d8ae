//! Undelivered datagrams: ICMP errors and unresolved next hops.
//!
//! Read first: RFC 1122 §4.1.3.3, RFC 5927 §4 (what a forged error can do); `ip/icmp.rs`.
//!
//! Invariants
//! - `waiting` has a notice for each event of a refused datagram that waits, in the same order.
//! - The buffer of a notice's quote is the stack's until the notice is taken, or its endpoint is
//!   closed or receives into another pool. Without a buffer a notice comes without its quote.

use alloc::collections::VecDeque;

use super::Udp;
use super::sending::Outgoing;
use crate::chunk::Chunk;
use crate::config::Config;
use crate::context::Context;
use crate::counters::Drop;
use crate::error::OperationError;
use crate::event::{Arrival, Event, Notice, Undelivered};
use crate::id::DatagramId;
use crate::ip::{IcmpError, IcmpErrorKind, IcmpReport, Ip, Unreachable};
use crate::limits::{
    DATAGRAMS_PER_ENDPOINT_MAX, DATAGRAMS_WAITING_MAX, HOP_LIMIT, MTU_MIN, QUOTE_BYTES_MAX,
};
use crate::memory::Memory;
use crate::wire::{icmp4, icmp6, ipv4, udp};
use core::net::{IpAddr, SocketAddr};

/// Notices on their way to whom they concern.
#[derive(Debug)]
pub(super) struct Refusals {
    waiting: VecDeque<(DatagramId, Notice)>,
    /// Notice of the last event.
    last: Option<Notice>,
    capacity: usize,
}

impl Refusals {
    pub(super) fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(capacity), last: None, capacity }
    }

    /// The event is being reported.
    pub(super) fn on_event_reported(&mut self, event: &Event) {
        if let Event::DatagramRefused { .. } = event {
            self.last = self.waiting.pop_front().map(|(_, notice)| notice);
        }
    }

    /// Drops the notices of an endpoint that was closed.
    pub(super) fn close<M: Memory>(&mut self, id: DatagramId, memory: &mut M) {
        self.waiting.retain(|(endpoint, notice)| {
            let stays = *endpoint != id;
            if let Some(chunk) = notice.quote.filter(|_| !stays) {
                memory.free(chunk.buf);
            }
            stays
        });
    }

    /// Notices of an endpoint that wait come without what they quote.
    pub(super) fn drop_quotes<M: Memory>(&mut self, id: DatagramId, memory: &mut M) {
        let its = self.waiting.iter_mut().filter(|(endpoint, _)| *endpoint == id);
        let quotes = its.filter_map(|(_, notice)| notice.quote.take());
        quotes.for_each(|chunk| memory.free(chunk.buf));
    }
}

impl Udp {
    pub(crate) const fn take_notice(&mut self) -> Option<Notice> {
        self.refusals.last.take()
    }

    pub(crate) fn quote_errors(&mut self, id: DatagramId, on: bool) -> Result<(), OperationError> {
        self.endpoint(id)?;
        if let Some(Some(endpoint)) = self.endpoints.get_mut(id.index as usize) {
            endpoint.quotes = on;
        }
        Ok(())
    }

    /// Bytes of the longest packet to `to`: of IPv4 the link's, as routers may cut it.
    #[expect(clippy::unused_self, reason = "it is how this transport sends")]
    pub(crate) fn packet_bytes_max(&self, ip: &Ip, config: &Config, to: IpAddr) -> u16 {
        if to.is_ipv4() { config.mtu } else { ip.path_mtu(to.into()) }
    }

    /// An ICMP error about a datagram that says it is ours (RFC 1122 §4.1.3.3).
    ///
    /// # Errors
    ///
    /// [`Drop::BadIcmpError`]: no endpoint of the port sent there lately.
    pub(crate) fn on_icmp_error<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        error: &IcmpError,
        said: &IcmpReport<'_>,
    ) -> Result<(), Drop> {
        // As in Linux, the endpoint that would get a reply receives it; with shared addresses this
        // is not always the sender.
        let index = self.find(error.remote, error.local).ok_or(Drop::BadIcmpError)?;
        if !self.has_sent(error.local.port(), error.remote) {
            return Err(Drop::BadIcmpError);
        }
        let why = match error.kind {
            IcmpErrorKind::FragmentationNeeded { mtu } if error.remote.is_ipv6() => {
                context.base.ip.learn_path_mtu(context.now, error.remote.ip(), mtu);
                Undelivered::TooLong
            }
            // We never forbid routers to cut a datagram of IPv4.
            IcmpErrorKind::FragmentationNeeded { .. } => return Err(Drop::BadIcmpError),
            IcmpErrorKind::Unreachable(why) => match why {
                Unreachable::Network => Undelivered::NetworkUnreachable,
                Unreachable::Host => Undelivered::HostUnreachable,
                Unreachable::Protocol => Undelivered::ProtocolUnreachable,
                Unreachable::Port => Undelivered::PortUnreachable,
                Unreachable::Prohibited => Undelivered::Prohibited,
            },
            IcmpErrorKind::TimeExceeded => Undelivered::TimeExceeded,
            IcmpErrorKind::ParameterProblem => Undelivered::ParameterProblem,
        };
        let id = DatagramId { index, generation: self.places.generation(index) };
        if !self.has_room_to_refuse(id) {
            return Ok(());
        }
        let quoted = said.quoted.get(udp::HEADER_BYTES..).unwrap_or_default();
        let quote = self.keep_quote(context.memory, id, quoted);
        let IcmpReport { by, kind, code, info, arrival, .. } = *said;
        self.refuse(id, (error.remote, why), Notice { by, kind, code, info, arrival, quote });
        Ok(())
    }

    /// A datagram has no way out: its sender hears what a router of ours would say.
    pub(super) fn refuse_here<M: Memory>(
        &mut self,
        memory: &mut M,
        outgoing: &Outgoing,
        why: Undelivered,
    ) {
        let id = outgoing.endpoint;
        if !self.has_room_to_refuse(id) {
            return;
        }
        let by = outgoing.src.ip();
        let (kind, code) = match (by, why) {
            (IpAddr::V4(_), Undelivered::NetworkUnreachable) => {
                (icmp4::UNREACHABLE, icmp4::CODE_NETWORK)
            }
            (IpAddr::V4(_), _) => (icmp4::UNREACHABLE, icmp4::CODE_HOST),
            (IpAddr::V6(_), Undelivered::NetworkUnreachable) => {
                (icmp6::UNREACHABLE, icmp6::CODE_NO_ROUTE)
            }
            (IpAddr::V6(_), _) => (icmp6::UNREACHABLE, icmp6::CODE_ADDRESS),
        };
        let room = match by {
            IpAddr::V4(_) => {
                let headers = 2 * ipv4::HEADER_BYTES + icmp4::HEADER_BYTES + udp::HEADER_BYTES;
                usize::from(MTU_MIN) - headers
            }
            IpAddr::V6(_) => QUOTE_BYTES_MAX,
        };
        let mut bytes = [0; QUOTE_BYTES_MAX];
        let quoted = &mut bytes[..room.min(outgoing.chunk.len as usize)];
        let Chunk { buf, offset, .. } = outgoing.chunk;
        memory.copy_out(Chunk { buf, offset, len: quoted.len() as u32 }, quoted);
        let quote = self.keep_quote(memory, id, quoted);
        let arrival = Arrival { to: by, hop_limit: HOP_LIMIT, traffic_class: 0 };
        let notice = Notice { by, kind, code, info: 0, arrival, quote };
        self.refuse(id, (outgoing.dst, why), notice);
    }

    /// There is room to tell an endpoint's owner of one more datagram that was refused.
    fn has_room_to_refuse(&self, id: DatagramId) -> bool {
        let is_full = self.events.len() >= DATAGRAMS_WAITING_MAX
            || self.refusals.waiting.len() >= self.refusals.capacity;
        !is_full && self.endpoint(id).is_ok_and(|it| it.events < DATAGRAMS_PER_ENDPOINT_MAX)
    }

    /// Copies what is quoted into a buffer, if that is asked for and there is one.
    fn keep_quote<M: Memory>(
        &self,
        memory: &mut M,
        id: DatagramId,
        quoted: &[u8],
    ) -> Option<Chunk> {
        let endpoint = self.endpoint(id).ok().filter(|it| it.quotes && !quoted.is_empty())?;
        let buf = memory.alloc(endpoint.pool)?;
        let room = QUOTE_BYTES_MAX.min(memory.buf_bytes(buf) as usize);
        let quoted = &quoted[..quoted.len().min(room)];
        memory.copy_in(buf, 0, quoted);
        Some(Chunk { buf, offset: 0, len: quoted.len() as u32 })
    }

    /// Tells the endpoint's owner that a datagram did not get there. There is room.
    fn refuse(&mut self, id: DatagramId, (to, why): (SocketAddr, Undelivered), notice: Notice) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(id.index as usize) else { return };
        endpoint.events += 1;
        self.events.push_back((Event::DatagramRefused { endpoint: id, to, why }, Arrival::NONE));
        self.refusals.waiting.push_back((id, notice));
    }
}
