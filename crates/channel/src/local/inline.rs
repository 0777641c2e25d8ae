//! Placement `inline`: the server is polled inside `dispatch` and called in place.
//!
//! Invariant: nothing is between a call and the server. Received and sent payload lies in the
//! channel's own buffers.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::{Clock, Next, NotShared, RemoteEvent, Server};
use megapipe_stack::{Chunk, ConnId, DatagramId, Departure, Instant, Memory, OperationError};

use super::memory::{ChannelMemory, ReceivedMemory};
use super::pieces::{room_for_segments, settle_front, take_front};
use super::server_calls::InPlace;
use super::stack_handle::{NoBuffer, Polled, ServerParts, StackHandle};
use crate::buffer::{Payload, ReadBuf};
use crate::error::CreateError;
use crate::kernel::pool::HeldBuffer;

/// A server that this thread alone uses.
pub(crate) struct Inline(Server<ChannelMemory>);

impl Inline {
    #[inline]
    const fn memory(&mut self) -> &mut ChannelMemory {
        self.0.parts().1
    }

    /// Sends a chunk. Returns the payload behind it if the stack does not take it.
    #[inline]
    fn send_chunk(
        &mut self,
        now: Instant,
        conn: ConnId,
        chunk: Chunk,
    ) -> Result<(), (OperationError, Option<Payload>)> {
        let (stack, memory) = self.0.parts();
        stack.send(now, conn, chunk, memory).map_err(|error| (error, memory.give_back(chunk)))
    }
}

impl InPlace for Inline {
    type Memory = ChannelMemory;

    #[inline]
    fn at<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Server<ChannelMemory>, Instant) -> R,
    ) -> R {
        call(&mut self.0, now)
    }

    #[inline]
    fn enter<R>(&mut self, call: impl FnOnce(&mut Server<ChannelMemory>) -> R) -> R {
        call(&mut self.0)
    }
}

impl StackHandle for Inline {
    fn start(parts: ServerParts<'_>) -> Result<(Self, String), CreateError> {
        let ServerParts { frames, settings, state, .. } = parts;
        let memory = ChannelMemory::of(state);
        let server = Server::new(frames, settings, memory, settings.clock.now());
        Ok((Self(server.map_err(CreateError::Local)?), "inside dispatch".to_owned()))
    }

    fn poll(&mut self, now: Instant) -> Result<Polled, LinkError> {
        let has_worked = self.0.poll(now)?.worked();
        Ok(Polled { has_worked, has_event: self.0.parts().0.has_event() })
    }

    fn transmit(&mut self, now: Instant) -> Result<usize, LinkError> {
        self.0.transmit(now)
    }

    #[inline]
    fn next_event(&mut self) -> Option<RemoteEvent> {
        self.0.event().map(|(event, offer)| RemoteEvent::Event(event, offer))
    }

    fn after_poll(&mut self, has_worked: bool, now: Instant) -> Next {
        self.0.after_poll(has_worked, now)
    }

    fn arm(&mut self, now: Instant) -> Result<bool, LinkError> {
        self.0.arm(now)
    }

    fn patience(&self, now: Instant) -> Option<Duration> {
        self.0.patience(now)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.0.wait_fd()
    }

    fn host_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.host_fd()
    }

    fn shut_down(&mut self, clock: &Clock) -> Result<(), LinkError> {
        self.0.shut_down(clock)
    }

    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn shard(&self) -> Option<(u16, u16)> {
        self.0.attachment().map(|place| (place.shard(), place.shards()))
    }

    fn set_core(&mut self, core: Option<u32>) {
        if let Some(place) = self.0.attachment() {
            place.set_core(core);
        }
    }

    #[inline]
    fn received(&mut self, chunk: Chunk) -> Option<ReceivedMemory> {
        self.memory().received(chunk)
    }

    #[inline]
    fn take_held(&mut self, number: u16) -> Option<HeldBuffer> {
        self.memory().take_held(number)
    }

    fn free_received(&mut self, chunk: Chunk) {
        self.memory().free(chunk.buf);
    }

    #[inline]
    fn send_read(&mut self, now: Instant, conn: ConnId, bytes: ReadBuf) -> Option<Payload> {
        match self.memory().keep_read(bytes) {
            Ok(chunk) => self.send_chunk(now, conn, chunk).err()?.1,
            Err(payload) => Some(payload),
        }
    }

    #[inline]
    fn send_copy(
        &mut self,
        now: Instant,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<Option<Payload>, NoBuffer> {
        let chunk = self.memory().keep_copy(bytes).ok_or(NoBuffer)?;
        Ok(self.send_chunk(now, conn, chunk).err().and_then(|(_, refused)| refused))
    }

    fn send_front(
        &mut self,
        now: Instant,
        conn: ConnId,
        payload: &mut Payload,
    ) -> Result<usize, OperationError> {
        let front = take_front(payload, || self.0.stack().info(conn))?;
        let len = front.len();
        let sent = match self.memory().keep(front) {
            Ok(chunk) => self.send_chunk(now, conn, chunk),
            Err(front) => Err((OperationError::NoMemory, Some(front))),
        };
        settle_front(payload, len, sent)
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        payload: Payload,
    ) -> Result<(), OperationError> {
        let (stack, memory) = self.0.parts();
        let chunk = memory.keep(payload).map_err(|_| OperationError::NoMemory)?;
        let sent = stack.send_datagram_as(now, endpoint, (to, chunk, departure), memory);
        sent.inspect_err(|_| drop(memory.give_back(chunk)))
    }

    fn send_datagrams(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        (mut payload, segment_len): (Payload, usize),
    ) -> Result<(), OperationError> {
        let mut chunks = room_for_segments(payload.len(), segment_len)?;
        while !payload.is_empty() {
            let front = payload.front(segment_len).and_then(|it| self.memory().keep(it).ok());
            let Some(chunk) = front else {
                chunks.into_iter().for_each(|chunk| drop(self.memory().give_back(chunk)));
                return Err(OperationError::NoMemory);
            };
            chunks.push(chunk);
            payload.skip(segment_len);
        }
        self.0.make_datagram_room(now, endpoint, chunks.len());
        let sent = self.0.send_datagrams(now, endpoint, destination, &chunks);
        sent.inspect_err(|_| {
            for chunk in chunks {
                drop(self.memory().give_back(chunk));
            }
        })
    }

    fn migration_server(&mut self) -> Result<&mut Server<ChannelMemory>, NotShared> {
        Ok(&mut self.0)
    }

    fn shared_interface(&self) -> Result<u32, NotShared> {
        self.0.shared_interface()
    }
}
