//! UDP endpoints on the stack.
//!
//! Read first: `state.rs` for `answer_message`.
//!
//! Invariant: a datagram that comes while no read waits is kept, up to [`WAITING_MAX`] of them;
//! more are dropped and counted, as a socket's full buffer would drop them.

use std::net::SocketAddr;

use megapipe_service::PortError;
use megapipe_stack::{self as stack, BindError, Chunk, DatagramId, OperationError};

use super::memory::Received;
use super::{Local, NOBODY, Owner};
use crate::address::Address;
use crate::buffer::{Payload, ReadBuf};
use crate::completion::{Arrival, Datagram, Event, Undelivered};
use crate::error::OpError;
use crate::slot::{Body, Extra, Target};
use crate::state::State;

/// A datagram that waits for a read.
#[derive(Debug)]
pub(crate) struct Waiting {
    from: SocketAddr,
    data: ReadBuf,
    arrival: Option<Arrival>,
}

/// Datagrams that wait for a read at most.
const WAITING_MAX: usize = 256;

impl Local {
    /// Binds an endpoint on behalf of a slot; port 0, or no address, takes any port.
    pub(crate) fn bind(
        &mut self,
        state: &mut State,
        slot: u32,
        local: SocketAddr,
    ) -> Result<(), PortError<BindError>> {
        let endpoint = self.server.bind(local)?;
        let index = endpoint.index as usize;
        if self.endpoints.len() <= index {
            self.endpoints.resize(index + 1, NOBODY);
        }
        self.endpoints[index] = Owner { slot, generation: endpoint.generation, ..NOBODY };
        let entry = state.slot(slot);
        entry.target = Target::Stack(endpoint.index);
        entry.extra = Some(Box::new(Extra::Datagrams(std::collections::VecDeque::new())));
        Ok(())
    }

    /// Answers reads with what waits.
    pub(super) fn read_datagrams(&mut self, state: &mut State, slot: u32) {
        loop {
            let Some(read) = state.peek(slot).first_read else { return };
            let Some(Extra::Datagrams(waiting)) = state.slot(slot).extra.as_deref_mut() else {
                return state.answer_message(slot, read.with_sender, Err(OpError::BadDescriptor));
            };
            let Some(Waiting { from, mut data, arrival }) = waiting.pop_front() else { return };
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
        let arrival = self.server.last_arrival();
        let buffer = match self.server.memory().received(chunk) {
            Received::Pool(held) => state.adopt(held, chunk.len),
            Received::Heap(bytes) => Some(bytes),
        };
        let Some(buffer) = buffer else { return };
        let Some(slot) = self.slot_of_endpoint(endpoint) else { return };
        let Some(Extra::Datagrams(waiting)) = state.slot(slot).extra.as_deref_mut() else { return };
        if waiting.len() == WAITING_MAX {
            state.counters.datagrams_dropped += 1;
            return;
        }
        // A datagram that nobody reads must not hold a buffer that connections need.
        let crowded = waiting.len() >= WAITING_MAX / 8;
        let data = if crowded { buffer.detached() } else { buffer };
        waiting.push_back(Waiting { from, data, arrival });
        self.read_datagrams(state, slot);
    }

    /// A datagram did not get there.
    pub(super) fn on_undelivered(
        &mut self,
        state: &mut State,
        endpoint: DatagramId,
        to: SocketAddr,
        why: stack::Undelivered,
    ) {
        let Some(slot) = self.slot_of_endpoint(endpoint).filter(|_| state.config.asides) else {
            return;
        };
        let (errno, is_final) = told_as(why, to.is_ipv6());
        let error = OpError::from_raw_os_error(errno);
        let undelivered = Undelivered { to: Address::Inet(to), error, is_final };
        state.complete(slot, Event::Undelivered(Box::new(undelivered)));
    }

    fn slot_of_endpoint(&self, endpoint: DatagramId) -> Option<u32> {
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
            let to = head.to.as_deref().and_then(Address::as_inet);
            let payload = match &mut head.body {
                Body::One(payload) => std::mem::replace(payload, Payload::Static(&[])),
                Body::Many(parts) => {
                    let pieces: Vec<&[u8]> = parts.iter().map(Payload::as_slice).collect();
                    pieces.concat().into()
                }
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
        sent.map_err(|error| match error {
            OperationError::TooLong => OpError::MessageTooLong,
            OperationError::BadAddress => OpError::NetworkUnreachable,
            OperationError::QueueFull => OpError::NoBuffers,
            _ => OpError::InvalidInput,
        })
    }

    pub(super) fn leave_endpoint(&mut self, state: &mut State, slot: u32) {
        let Some(endpoint) = self.endpoint(state, slot) else { return };
        self.server.close_datagram(endpoint);
        self.endpoints[endpoint.index as usize] = NOBODY;
        state.slot(slot).target = Target::None;
    }
}

/// The kernel's error for what ICMP says, and whether it is final (`icmp_err_convert` and
/// `icmpv6_err_convert` there).
const fn told_as(why: stack::Undelivered, is_v6: bool) -> (i32, bool) {
    match why {
        stack::Undelivered::NetworkUnreachable => (libc::ENETUNREACH, false),
        stack::Undelivered::HostUnreachable => (libc::EHOSTUNREACH, false),
        // IPv6 has no such message; a header that is not understood is a problem with a parameter.
        stack::Undelivered::ProtocolUnreachable => (libc::ENOPROTOOPT, true),
        stack::Undelivered::PortUnreachable => (libc::ECONNREFUSED, true),
        stack::Undelivered::Prohibited if is_v6 => (libc::EACCES, true),
        stack::Undelivered::Prohibited => (libc::EHOSTUNREACH, true),
        stack::Undelivered::TooLong => (libc::EMSGSIZE, true),
        stack::Undelivered::TimeExceeded => (libc::EHOSTUNREACH, false),
        stack::Undelivered::ParameterProblem => (libc::EPROTO, true),
    }
}
