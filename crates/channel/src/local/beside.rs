//! A channel's end of a server that is turned on a thread beside it.
//!
//! Read first: `megapipe_service`'s `beside.rs` for who is at the server when; `lent.rs` for whose
//! memory is whose.
//!
//! Invariant: what counts owners without atomics is touched by the channel's thread alone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_service::{Beside as End, BesideShared, Next, Slept, Told, Turn, Waiting};
use megapipe_shm::Owned;
use megapipe_stack::{Chunk, ConnId, DatagramId, Departure, Instant, OperationError};

use super::lent::{Kept, LentMemory};
use super::memory::{Pools, Received};
use super::numbers;
use super::stream::{PIECES_FROM, room_for_a_piece};
use crate::buffer::{Payload, ReadBuf};

/// Times that datagrams are tried to be sent together.
const TRIES_TO_SEND: usize = 4;

/// The application's end, and the channel's buffers.
pub(super) struct Beside {
    pub(super) end: End<LentMemory>,
    pools: Pools,
    waiting: Waiting,
    /// It is to sleep because the server does, whatever is left of its spin.
    follows: bool,
}

impl Beside {
    /// `spin`: how long to turn the server without work before sleep.
    pub(super) const fn new(end: End<LentMemory>, pools: Pools, spin: Duration) -> Self {
        Self { end, pools, waiting: Waiting::new(spin), follows: false }
    }

    /// The server, to ask something of.
    #[inline]
    pub(super) fn enter(&mut self) -> Owned<'_, BesideShared<LentMemory>> {
        self.end.enter()
    }

    /// Buffers go to and fro, and what was asked for is done here or by the server's thread.
    pub(super) fn turn(&mut self, now: Instant) -> Result<Turn, LinkError> {
        self.end.wake_up();
        {
            let mut shared = self.end.look();
            let (_, memory) = shared.server.parts();
            memory.exchange(&self.pools);
        }
        let turn = self.end.turn(now)?;
        self.end.flush();
        self.end.check()?;
        Ok(turn)
    }

    pub(super) fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        let next = self.waiting.after_turn(worked, now);
        // Turns of a server's thread that sleeps are taken by nobody: a spin would find nothing.
        self.follows = next == Next::Turn && !worked && self.end.is_server_asleep();
        if self.follows { Next::Sleep } else { next }
    }

    /// As [`End::sleep`].
    pub(super) fn sleep(&mut self, timeout: Option<Duration>) -> Slept {
        let slept = self.end.sleep(timeout);
        if slept != Slept::Polls {
            self.slept();
        }
        slept
    }

    /// As [`End::arm`].
    pub(super) fn arm(&mut self) -> bool {
        self.slept();
        self.end.arm()
    }

    /// Tells the policy of a spin that was in vain.
    fn slept(&mut self) {
        if !std::mem::take(&mut self.follows) {
            self.waiting.slept();
        }
    }

    #[inline]
    pub(super) fn event(&mut self) -> Option<Told> {
        self.end.event().map(|(event, offer)| Told::Event(event, offer))
    }

    /// A received chunk, as what a completion carries.
    #[inline]
    pub(super) fn received(&mut self, chunk: Chunk) -> Received {
        if let Some(held) = numbers::held(chunk) {
            return Received::Pool(held);
        }
        let mut shared = self.end.look();
        let (_, memory) = shared.server.parts();
        memory.received_on_heap(chunk)
    }

    /// Sends bytes that nearly always lie in a buffer of the channel; what the stack does not take
    /// comes back.
    #[inline]
    pub(super) fn send_read(
        &mut self,
        now: Instant,
        conn: ConnId,
        bytes: ReadBuf,
    ) -> Result<(), (OperationError, Option<Payload>)> {
        let chunk = match self.pools.surrender(bytes) {
            Ok(chunk) => chunk,
            Err(bytes) => return self.send_kept(now, conn, bytes.into()),
        };
        self.send_chunk(now, conn, chunk)
    }

    /// As `send_read`, of a copy; `None`: there is no buffer for it.
    #[inline]
    pub(super) fn send_copy(
        &mut self,
        now: Instant,
        conn: ConnId,
        bytes: &[u8],
    ) -> Option<Result<(), (OperationError, Option<Payload>)>> {
        let chunk = self.pools.copy(bytes)?;
        Some(self.send_chunk(now, conn, chunk))
    }

    #[inline]
    fn send_chunk(
        &mut self,
        now: Instant,
        conn: ConnId,
        chunk: Chunk,
    ) -> Result<(), (OperationError, Option<Payload>)> {
        let sent = {
            let mut shared = self.end.enter();
            let now = shared.not_before(now);
            let (stack, memory) = shared.server.parts();
            stack.send(now, conn, chunk, memory)
        };
        sent.map_err(|error| (error, self.pools.reclaim(chunk).map(Payload::from)))
    }

    /// As `send_read`, of any payload.
    fn send(
        &mut self,
        now: Instant,
        conn: ConnId,
        payload: Payload,
    ) -> Result<(), (OperationError, Option<Payload>)> {
        match payload.into_read() {
            Ok(bytes) => self.send_read(now, conn, bytes),
            Err(payload) => self.send_kept(now, conn, payload),
        }
    }

    /// Sends what lies in memory of its own.
    #[cold]
    fn send_kept(
        &mut self,
        now: Instant,
        conn: ConnId,
        payload: Payload,
    ) -> Result<(), (OperationError, Option<Payload>)> {
        let mut shared = self.end.enter();
        let now = shared.not_before(now);
        let (stack, memory) = shared.server.parts();
        let chunk = memory.keep(Kept::new(payload));
        stack.send(now, conn, chunk, memory).map_err(|error| (error, memory.give_back(chunk)))
    }

    /// Hands over a payload, or as much of a long one as there is room for. How many bytes.
    pub(super) fn send_front(
        &mut self,
        now: Instant,
        conn: ConnId,
        part: &mut Payload,
    ) -> Result<usize, OperationError> {
        let mut len = part.len();
        let mut front = std::mem::replace(part, Payload::Static(&[]));
        if len > PIECES_FROM {
            if let Payload::Vec(bytes) = front {
                // So that its pieces need no copies.
                front = Payload::owner(Arc::new(bytes), 0..len);
            }
            let info = self.enter().server.stack().info(conn);
            let room = match info.and_then(|info| room_for_a_piece(&info)) {
                Ok(room) => room,
                Err(error) => {
                    *part = front;
                    return Err(error);
                }
            };
            len = len.min(room);
            *part = front;
            front = part.split_to(len);
        }
        self.send(now, conn, front).map(|()| len).map_err(|(error, front)| {
            // No place in the queue in spite of the room: both parts are joined again.
            if let Some(front) = front {
                *part = if part.is_empty() {
                    front
                } else {
                    Payload::Vec([front.as_slice(), part.as_slice()].concat())
                };
            }
            error
        })
    }

    /// Keeps the payload of a datagram until the stack frees it.
    pub(super) fn keep(&mut self, payload: Payload) -> Chunk {
        let payload = match payload.into_read().map(|bytes| self.pools.surrender(bytes)) {
            Ok(Ok(chunk)) => return chunk,
            Ok(Err(bytes)) => bytes.into(),
            Err(payload) => payload,
        };
        let mut shared = self.end.look();
        let (_, memory) = shared.server.parts();
        memory.keep(Kept::new(payload))
    }

    /// Sends chunks as datagrams, all or none. Where there is no room, the server's thread gets the
    /// core, to send what waits.
    pub(super) fn send_datagrams(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        way: (SocketAddr, &Departure),
        chunks: &[Chunk],
    ) -> Result<(), OperationError> {
        let mut tries = TRIES_TO_SEND;
        loop {
            let sent = {
                let mut shared = self.enter();
                let now = shared.not_before(now);
                shared.server.send_datagrams(now, endpoint, way, chunks)
            };
            tries -= 1;
            match sent {
                Err(OperationError::QueueFull) if tries > 0 => {
                    self.end.flush();
                    std::thread::yield_now();
                }
                sent => return sent,
            }
        }
    }

    /// The stack did not take what was kept.
    pub(super) fn discard(&mut self, chunk: Chunk) {
        drop(self.pools.reclaim(chunk));
        let mut shared = self.end.look();
        let (_, memory) = shared.server.parts();
        drop(memory.give_back(chunk));
    }
}
