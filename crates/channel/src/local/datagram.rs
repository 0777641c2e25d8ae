//! UDP endpoints on the stack.
//!
//! Read first: `state.rs` for `answer_message`.
//!
//! Invariant: a datagram that comes while no read waits is kept, up to [`WAITING_MAX`] of them;
//! more are dropped and counted, as a socket's full buffer would drop them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use megapipe_service::PortError;
use megapipe_stack::{
    self as stack, BindError, Chunk, DatagramId, DatagramSharing, OperationError,
};

use super::{Local, NO_OWNER, SlotOwner, StackHandle};
use crate::address::Address;
use crate::buffer::Payload;
use crate::completion::{Arrival, Datagram, Event, Notice, Undelivered};
use crate::error::OpError;
use crate::kernel::sys;
use crate::operations::joined;
use crate::slot::{Body, Extra, Target, WaitingDatagram};
use crate::state::State;

/// Datagrams that wait for a read at most.
const WAITING_MAX: usize = 256;

impl<H: StackHandle + ?Sized> Local<H> {
    /// Binds an endpoint on behalf of a slot; port 0, or no address, takes any port.
    pub(crate) fn bind(
        &mut self,
        state: &mut State,
        slot: u32,
        (local, sharing): (SocketAddr, DatagramSharing),
    ) -> Result<(), PortError<BindError>> {
        let endpoint = self.server.bind(local, sharing)?;
        self.own_endpoint(state, slot, endpoint)
    }

    /// A slot has an endpoint from now on, which is closed if there is no memory.
    pub(super) fn own_endpoint(
        &mut self,
        state: &mut State,
        slot: u32,
        endpoint: DatagramId,
    ) -> Result<(), PortError<BindError>> {
        let index = endpoint.index as usize;
        let missing = (index + 1).saturating_sub(self.endpoints.len());
        let waiting = sys::try_box(Extra::Datagrams(VecDeque::new()));
        let (Ok(()), Ok(waiting)) = (self.endpoints.try_reserve(missing), waiting) else {
            self.server.close_datagram(endpoint);
            return Err(PortError::Stack(BindError::NoMemory));
        };
        if self.endpoints.len() <= index {
            self.endpoints.resize(index + 1, NO_OWNER);
        }
        self.endpoints[index] = SlotOwner { slot, generation: endpoint.generation, ..NO_OWNER };
        let entry = state.slot(slot);
        entry.target = Target::Stack(endpoint.index);
        entry.extra = Some(waiting);
        Ok(())
    }

    /// Restricts an endpoint to one peer; `None`: to none. Returns its address.
    pub(super) fn connect_datagram(
        &mut self,
        state: &State,
        slot: u32,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OpError> {
        let endpoint = self.endpoint(state, slot).ok_or(OpError::BadDescriptor)?;
        self.server.connect_datagram(endpoint, peer).map_err(|error| match error {
            OperationError::BadAddress => OpError::NetworkUnreachable,
            _ => OpError::BadDescriptor,
        })
    }

    /// Answers reads with what waits.
    pub(super) fn read_datagrams(&mut self, state: &mut State, slot: u32) {
        loop {
            let Some(read) = state.peek(slot).first_read else { return };
            let Some(Extra::Datagrams(waiting)) = state.slot(slot).extra.as_deref_mut() else {
                return state.answer_message(slot, read.with_sender, Err(OpError::BadDescriptor));
            };
            let Some(WaitingDatagram { from, mut data, arrival }) = waiting.pop_front() else {
                return;
            };
            let truncated = data.len() > read.len as usize;
            if truncated {
                data = data.split_to(read.len as usize);
            }
            let (from, control) = (Some(Address::Inet(from)), Box::default());
            let datagram = Datagram { data, from, truncated, arrival, control };
            state.answer_message(slot, read.with_sender, Ok(datagram));
        }
    }

    /// A datagram arrived.
    pub(super) fn on_datagram(
        &mut self,
        state: &mut State,
        endpoint: DatagramId,
        from: SocketAddr,
        chunk: Chunk,
    ) {
        let arrival = self.server.last_arrival().map(arrival_of);
        let received = self.server.received(chunk);
        let Some(buffer) = received.and_then(|it| it.into_bytes(state, chunk.len)) else { return };
        let Some(slot) = self.slot_of_endpoint(endpoint) else { return };
        let Some(Extra::Datagrams(waiting)) = state.slot(slot).extra.as_deref_mut() else { return };
        if waiting.len() == WAITING_MAX || waiting.try_reserve(1).is_err() {
            state.counters.datagrams_dropped += 1;
            return;
        }
        // An unread datagram must not hold a buffer that connections need.
        let crowded = waiting.len() >= WAITING_MAX / 8;
        let data = if crowded { buffer.try_detached().unwrap_or(buffer) } else { buffer };
        waiting.push_back(WaitingDatagram { from, data, arrival });
        self.read_datagrams(state, slot);
    }

    /// A datagram did not get there.
    pub(super) fn on_undelivered(
        &mut self,
        state: &mut State,
        endpoint: DatagramId,
        to: SocketAddr,
    ) {
        let Some(stack::Notice { by, kind, code, info, arrival, quote }) =
            self.server.take_notice()
        else {
            return;
        };
        // Out of the buffer, which others need.
        let quote =
            quote.and_then(|chunk| self.server.received(chunk)?.into_bytes(state, chunk.len));
        let quote = quote.map_or_else(Box::default, |bytes| Box::from(&*bytes));
        let Some(slot) =
            self.slot_of_endpoint(endpoint).filter(|_| state.config.unsolicited_events)
        else {
            return;
        };
        let (errno, is_final) = match by {
            IpAddr::V4(_) => icmp4_error(kind, code),
            IpAddr::V6(_) => icmp6_error(kind, code),
        };
        let error = OpError::from_raw_os_error(errno);
        let notice = Notice { by, kind, code, info, arrival: arrival_of(arrival), quote };
        let undelivered = Undelivered { to: Address::Inet(to), error, is_final, notice };
        state.complete(slot, Event::Undelivered(Box::new(undelivered)));
    }

    pub(super) fn slot_of_endpoint(&self, endpoint: DatagramId) -> Option<u32> {
        let owner = self.endpoints.get(endpoint.index as usize)?;
        (owner.generation == endpoint.generation && owner.slot != super::NO_SLOT)
            .then_some(owner.slot)
    }

    /// Sends what is queued, a message each.
    pub(super) fn write_datagrams(&mut self, state: &mut State, slot: u32) {
        loop {
            let queue = state.peek(slot).writes;
            let Some(head) = state.writes.front_mut(queue) else { break };
            let len = head.len;
            let to = head.receiver().and_then(Address::as_inet);
            let payload = match &mut head.body {
                Body::One(payload) => std::mem::replace(payload, Payload::Static(&[])),
                Body::Many(parts) => match joined(parts, len) {
                    Ok(bytes) => bytes.into(),
                    Err(_) => {
                        state.on_send_failed(slot, OpError::NoMemory);
                        continue;
                    }
                },
                Body::Disconnect(_) => {
                    state.pop_control(slot);
                    let ended = Event::Disconnect(Ok(()));
                    state.complete(slot, ended);
                    continue;
                }
                Body::ToFd => {
                    state.pop_control(slot);
                    state.on_moved(slot, Err(OpError::NotSupported));
                    continue;
                }
            };
            match self.send_datagram(state, slot, to, payload) {
                Ok(()) => state.on_sent(slot, len),
                Err(error) => state.on_send_failed(slot, error),
            }
        }
        state.slot(slot).flags.writing = false;
    }

    fn send_datagram(
        &mut self,
        state: &State,
        slot: u32,
        to: Option<SocketAddr>,
        payload: Payload,
    ) -> Result<(), OpError> {
        let to = to.ok_or(OpError::NotConnected)?;
        self.send_datagram_as(state, slot, (to, &stack::Departure::default()), payload)
    }

    pub(super) fn send_datagram_as(
        &mut self,
        state: &State,
        slot: u32,
        (to, departure): (SocketAddr, &stack::Departure),
        payload: Payload,
    ) -> Result<(), OpError> {
        let endpoint = self.endpoint(state, slot).ok_or(OpError::BadDescriptor)?;
        let sent = self.server.send_datagram(self.now, endpoint, (to, departure), payload);
        sent.map_err(not_sent)
    }

    /// Sends pieces of `segment_len` bytes as a datagram each.
    pub(super) fn send_segments(
        &mut self,
        state: &State,
        slot: u32,
        way: (SocketAddr, &stack::Departure),
        what: (Payload, usize),
    ) -> Result<(), OpError> {
        let endpoint = self.endpoint(state, slot).ok_or(OpError::BadDescriptor)?;
        self.server.send_datagrams(self.now, endpoint, way, what).map_err(not_sent)
    }

    pub(super) fn leave_endpoint(&mut self, state: &mut State, slot: u32) {
        let Some(endpoint) = self.endpoint(state, slot) else { return };
        self.server.close_datagram(endpoint);
        self.endpoints[endpoint.index as usize] = NO_OWNER;
        state.slot(slot).target = Target::None;
    }
}

/// Arrival metadata in the form of completions.
pub(super) const fn arrival_of(arrival: stack::Arrival) -> Arrival {
    let stack::Arrival { to, hop_limit, traffic_class } = arrival;
    Arrival { to, hop_limit, traffic_class }
}

const fn not_sent(error: OperationError) -> OpError {
    match error {
        OperationError::TooLong => OpError::MessageTooLong,
        OperationError::BadAddress => OpError::NetworkUnreachable,
        OperationError::QueueFull => OpError::NoBuffers,
        OperationError::NoMemory => OpError::NoMemory,
        _ => OpError::InvalidInput,
    }
}

/// The kernel's error for what ICMP says, and whether it is final (`__udp4_lib_err` and
/// `icmp_err_convert` there).
const fn icmp4_error(kind: u8, code: u8) -> (i32, bool) {
    match (kind, code) {
        (UNREACHABLE_4, 0 | 11) => (libc::ENETUNREACH, false),
        (UNREACHABLE_4, 2) => (libc::ENOPROTOOPT, true),
        (UNREACHABLE_4, 3) => (libc::ECONNREFUSED, true),
        (UNREACHABLE_4, 4) => (libc::EMSGSIZE, true),
        (UNREACHABLE_4, 5) => (libc::EOPNOTSUPP, false),
        (UNREACHABLE_4, 6 | 9) => (libc::ENETUNREACH, true),
        (UNREACHABLE_4, 7) => (libc::EHOSTDOWN, true),
        (UNREACHABLE_4, 8) => (libc::ENONET, true),
        (UNREACHABLE_4, 10 | 13..=15) => (libc::EHOSTUNREACH, true),
        (PARAMETER_PROBLEM_4, _) => (libc::EPROTO, true),
        _ => (libc::EHOSTUNREACH, false),
    }
}

/// The same of ICMP for IPv6 (`icmpv6_err_convert`).
const fn icmp6_error(kind: u8, code: u8) -> (i32, bool) {
    match (kind, code) {
        (UNREACHABLE_6, 0) => (libc::ENETUNREACH, false),
        (UNREACHABLE_6, 2 | 3) | (TIME_EXCEEDED_6, _) => (libc::EHOSTUNREACH, false),
        (UNREACHABLE_6, 1 | 5 | 6) => (libc::EACCES, true),
        (UNREACHABLE_6, 4) => (libc::ECONNREFUSED, true),
        (TOO_BIG_6, _) => (libc::EMSGSIZE, true),
        (UNREACHABLE_6 | PARAMETER_PROBLEM_6, _) => (libc::EPROTO, true),
        _ => (libc::EPROTO, false),
    }
}

/// Types of ICMP (RFC 792) and of ICMP for IPv6 (RFC 4443).
const UNREACHABLE_4: u8 = 3;
const PARAMETER_PROBLEM_4: u8 = 12;
const UNREACHABLE_6: u8 = 1;
const TOO_BIG_6: u8 = 2;
const TIME_EXCEEDED_6: u8 = 3;
const PARAMETER_PROBLEM_6: u8 = 4;
