//! Placement `thread`: a second thread of the same core polls the server too, and both use it in
//! place under a biased lock.
//!
//! Read first: `megapipe_service`'s `shared_thread.rs`, for the thread that holds the lock;
//! `shared_pool_view.rs`, for the owners of memory.
//!
//! Invariant: owner counts without atomics are accessed by the channel's thread only.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::{
    AdaptiveSpin, Next, RemoteCounters, RemoteError, RemoteEvent, Server,
    SharedThread as ServiceEnd, Slept, start_shared_thread,
};
use megapipe_stack::{
    Chunk, ConnId, DatagramId, Departure, Instant, Memory, OperationError, Stack,
};

use super::cores::on_core;
use super::memory::{Pools, ReceivedMemory};
use super::pieces::{room_for_segments, settle_front, take_front};
use super::server_calls::InPlace;
use super::shared_pool_view::LentMemory;
use super::stack_handle::{NoBuffer, Polled, ServerParts, StackHandle, not_started};
use crate::buffer::{Payload, ReadBuf};
use crate::error::CreateError;
use crate::kernel::pool::HeldBuffer;

/// Attempts to send several datagrams together.
const SEND_ATTEMPTS: usize = 4;

/// The application's end of a server that two threads use, and the channel's buffers.
pub(crate) struct SharedThread {
    end: ServiceEnd<LentMemory>,
    pools: Pools,
    adaptive_spin: AdaptiveSpin,
    /// This thread is to sleep because the server's does, whatever is left of its spin.
    follows: bool,
}

/// Result of sending a chunk; the payload comes back if the stack does not take it.
type Sent = Result<(), (OperationError, Option<Payload>)>;

impl SharedThread {
    /// Uses the memory; nothing for the server's thread follows from it.
    #[inline]
    fn memory<R>(&mut self, call: impl FnOnce(&mut LentMemory) -> R) -> R {
        call(self.end.look().server.parts().1)
    }

    /// Reports a spin in vain to the policy.
    fn slept(&mut self) {
        if !std::mem::take(&mut self.follows) {
            self.adaptive_spin.slept();
        }
    }

    #[inline]
    fn send_bytes(&mut self, now: Instant, conn: ConnId, bytes: ReadBuf) -> Sent {
        let pools = &self.pools;
        let sent = at(&mut self.end, now, |server, now| {
            let (stack, memory) = server.parts();
            let chunk = pools.surrender(memory.surrendered(), bytes)?;
            Ok(send_chunk(pools, (stack, memory), now, (conn, chunk)))
        });
        sent.unwrap_or_else(|bytes: ReadBuf| self.send_kept(now, conn, bytes.into()))
    }

    fn send(&mut self, now: Instant, conn: ConnId, payload: Payload) -> Sent {
        match payload.into_read() {
            Ok(bytes) => self.send_bytes(now, conn, bytes),
            Err(payload) => self.send_kept(now, conn, payload),
        }
    }

    /// Sends a payload with memory of its own.
    #[cold]
    fn send_kept(&mut self, now: Instant, conn: ConnId, payload: Payload) -> Sent {
        self.at(now, |server, now| {
            let (stack, memory) = server.parts();
            let kept = memory.keep(payload);
            let chunk = kept.map_err(|payload| (OperationError::NoMemory, Some(payload)))?;
            stack.send(now, conn, chunk, memory).map_err(|error| (error, memory.give_back(chunk)))
        })
    }

    /// Keeps the payload of a datagram until the stack frees it.
    fn keep(&mut self, payload: Payload) -> Result<Chunk, OperationError> {
        let mut shared = self.end.look();
        let memory = shared.server.parts().1;
        let surrender = |bytes| self.pools.surrender(memory.surrendered(), bytes);
        let payload = match payload.into_read().map(surrender) {
            Ok(Ok(chunk)) => return Ok(chunk),
            Ok(Err(bytes)) => bytes.into(),
            Err(payload) => payload,
        };
        memory.keep(payload).map_err(|_| OperationError::NoMemory)
    }

    /// Frees a payload that the stack did not take.
    fn discard(&mut self, chunk: Chunk) {
        let mut shared = self.end.look();
        let memory = shared.server.parts().1;
        drop(self.pools.reclaim(memory.surrendered(), chunk));
        drop(memory.give_back(chunk));
    }

    /// Sends chunks as datagrams, all or none. Where there is no room, the server's thread gets the
    /// core, to send what waits.
    fn send_chunks(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        chunks: &[Chunk],
    ) -> Result<(), OperationError> {
        let mut attempts = SEND_ATTEMPTS;
        loop {
            let sent = self
                .at(now, |server, now| server.send_datagrams(now, endpoint, destination, chunks));
            attempts -= 1;
            match sent {
                Err(OperationError::QueueFull) if attempts > 0 => {
                    self.end.flush();
                    std::thread::yield_now();
                }
                sent => return sent,
            }
        }
    }
}

/// Calls the server, at `now` or at the server's own time if that is later.
#[inline]
fn at<R>(
    end: &mut ServiceEnd<LentMemory>,
    now: Instant,
    call: impl FnOnce(&mut Server<LentMemory>, Instant) -> R,
) -> R {
    let mut shared = end.enter();
    let now = shared.not_before(now);
    call(&mut shared.server, now)
}

/// Sends bytes of a buffer of the channel's, which come back if the stack does not take them.
#[inline]
fn send_chunk(
    pools: &Pools,
    (stack, memory): (&mut Stack, &mut LentMemory),
    now: Instant,
    (conn, chunk): (ConnId, Chunk),
) -> Sent {
    stack
        .send(now, conn, chunk, memory)
        .map_err(|error| (error, pools.reclaim(memory.surrendered(), chunk).map(Payload::from)))
}

/// The server's thread executes what a call queues.
impl InPlace for SharedThread {
    type Memory = LentMemory;

    #[inline]
    fn at<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Server<LentMemory>, Instant) -> R,
    ) -> R {
        at(&mut self.end, now, call)
    }

    #[inline]
    fn enter<R>(&mut self, call: impl FnOnce(&mut Server<LentMemory>) -> R) -> R {
        call(&mut self.end.enter().server)
    }
}

impl StackHandle for SharedThread {
    fn start(parts: ServerParts<'_>) -> Result<(Self, String), CreateError> {
        let ServerParts { frames, settings, config, state, kernel, own_core, .. } = parts;
        let (receive, send) = (Arc::clone(&state.receive_pool), Arc::clone(&state.send_pool));
        let pools = Pools { receive, send };
        let failed = |source| not_started(config, source);
        let watched =
            kernel.try_clone_to_owned().map_err(|error| failed(RemoteError::Thread(error)))?;
        let memory = LentMemory::new(&pools);
        let end =
            start_shared_thread(frames, settings, memory, own_core, watched).map_err(failed)?;
        // Where they are not pinned to one core, the server's thread may run at the same time.
        let spin = if own_core.is_some() { settings.waits.spin } else { Duration::ZERO };
        let adaptive_spin = AdaptiveSpin::new(spin);
        let place = format!("on a second thread, {}", on_core(own_core));
        Ok((Self { end, pools, adaptive_spin, follows: false }, place))
    }

    /// Exchanges buffers; operations run here or on the server's thread.
    fn poll(&mut self, now: Instant) -> Result<Polled, LinkError> {
        self.end.wake_up();
        self.end.look().server.parts().1.exchange(&self.pools);
        let has_worked = self.end.poll(now)?.worked();
        self.end.flush();
        self.end.check()?;
        Ok(Polled { has_worked, has_event: self.end.has_event() })
    }

    fn transmit(&mut self, _now: Instant) -> Result<usize, LinkError> {
        self.end.flush();
        Ok(0)
    }

    #[inline]
    fn next_event(&mut self) -> Option<RemoteEvent> {
        self.end.event().map(|(event, offer)| RemoteEvent::Event(event, offer))
    }

    fn after_poll(&mut self, has_worked: bool, now: Instant) -> Next {
        let next = self.adaptive_spin.after_poll(has_worked, now, || None);
        // A sleeping server's thread does not poll: a spin would find nothing.
        self.follows = next == Next::Poll && !has_worked && self.end.is_server_asleep();
        if self.follows { Next::Sleep } else { next }
    }

    fn arm(&mut self, _now: Instant) -> Result<bool, LinkError> {
        self.slept();
        Ok(self.end.arm())
    }

    fn sleep_unarmed(&mut self, timeout: Option<Duration>) -> Option<Slept> {
        let slept = self.end.sleep(timeout);
        if slept == Slept::Polls {
            return None;
        }
        self.slept();
        Some(slept)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.end.wait_fd()
    }

    fn abandon(&mut self) {
        self.end.abandon();
    }

    fn caps(&self) -> &Caps {
        self.end.caps()
    }

    fn shard(&self) -> Option<(u16, u16)> {
        self.end.attachment().map(|place| (place.shard(), place.shards()))
    }

    fn set_core(&mut self, core: Option<u32>) {
        if let Some(place) = self.end.attachment() {
            place.set_core(core);
        }
    }

    fn counters(&self) -> RemoteCounters {
        self.end.counters()
    }

    #[inline]
    fn received(&mut self, chunk: Chunk) -> Option<ReceivedMemory> {
        self.memory(|memory| memory.received(chunk))
    }

    #[inline]
    fn take_held(&mut self, number: u16) -> Option<HeldBuffer> {
        self.memory(|memory| memory.take_held(number))
    }

    fn free_received(&mut self, chunk: Chunk) {
        self.enter(|server| server.parts().1.free(chunk.buf));
    }

    #[inline]
    fn send_read(&mut self, now: Instant, conn: ConnId, bytes: ReadBuf) -> Option<Payload> {
        self.send_bytes(now, conn, bytes).err()?.1
    }

    #[inline]
    fn send_copy(
        &mut self,
        now: Instant,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<Option<Payload>, NoBuffer> {
        let pools = &self.pools;
        let sent = at(&mut self.end, now, |server, now| {
            let (stack, memory) = server.parts();
            let chunk = pools.copy(memory.surrendered(), bytes).ok_or(NoBuffer)?;
            Ok(send_chunk(pools, (stack, memory), now, (conn, chunk)))
        });
        Ok(sent?.err().and_then(|(_, refused)| refused))
    }

    fn send_front(
        &mut self,
        now: Instant,
        conn: ConnId,
        payload: &mut Payload,
    ) -> Result<usize, OperationError> {
        let front = take_front(payload, || self.enter(|server| server.stack().info(conn)))?;
        let len = front.len();
        settle_front(payload, len, self.send(now, conn, front))
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        payload: Payload,
    ) -> Result<(), OperationError> {
        let chunk = self.keep(payload)?;
        let sent = self.at(now, |server, now| {
            let (stack, memory) = server.parts();
            stack.send_datagram_as(now, endpoint, (to, chunk, departure), memory)
        });
        sent.inspect_err(|_| self.discard(chunk))
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
            let front = payload.front(segment_len).and_then(|it| self.keep(it).ok());
            let Some(chunk) = front else {
                chunks.into_iter().for_each(|chunk| self.discard(chunk));
                return Err(OperationError::NoMemory);
            };
            chunks.push(chunk);
            payload.skip(segment_len);
        }
        let sent = self.send_chunks(now, endpoint, destination, &chunks);
        sent.inspect_err(|_| chunks.into_iter().for_each(|chunk| self.discard(chunk)))
    }
}
