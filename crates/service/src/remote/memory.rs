//! The memory of a shard: that of its sessions by their number, and its own.
//!
//! Read first: `buffer_names.rs`, `session_memory.rs`.
//!
//! The stack names a session's memory by the connection's pool: `PoolId` is the session's number,
//! which is an index here. Pool 0 and those above the sessions' are memory of the shard's own that
//! no application maps (`private_buffers.rs`). Bytes of a connection that no session owns yet lie
//! there.
//!
//! Invariant: a session's memory stays until the stack has no chunk of it (`shard/session_end.rs`).

use std::sync::Arc;

use megapipe_shm::Pool;
use megapipe_stack::wire::checksum;
use megapipe_stack::{BufId, Chunk, Memory, PoolId};

use super::COPIES;
use super::buffer_names::{NamedBuffer, place_of, receive_buffer, session_of};
use super::private_buffers::PrivateBuffers;
use super::session_memory::SessionMemory;
use crate::error::RemoteError;
use crate::policy::SessionRights;

/// Bytes that a move from the shard's memory to a session's copies at a time.
const MOVED_AT_ONCE: usize = 512;

/// The memory of a shard.
#[derive(Default)]
pub struct SharedMemory {
    /// By the session's number.
    sessions: Vec<Option<Box<SessionMemory>>>,
    /// Bytes of connections that no session owns yet.
    private: Option<PrivateBuffers>,
    /// Sessions that send buffers are to go back to, each once.
    returning: Vec<PoolId>,
}

impl SharedMemory {
    /// No session yet, and `buffers` buffers of the shard's own; 0: received bytes go to the
    /// session that listens.
    ///
    /// # Errors
    /// [`RemoteError::Region`], [`RemoteError::Pool`].
    pub(super) fn new(buf_bytes: usize, buffers: u32) -> Result<Self, RemoteError> {
        let private = match buffers {
            0 => None,
            _ => Some(PrivateBuffers::new(buf_bytes, buffers)?),
        };
        Ok(Self { private, ..Self::default() })
    }

    /// Whether bytes of connections that no session owns yet have memory of their own.
    pub(super) const fn has_private(&self) -> bool {
        self.private.is_some()
    }

    /// Buffers of the shard's own that are in use.
    pub(super) fn private_used(&self) -> u32 {
        self.private.as_ref().map_or(0, PrivateBuffers::used)
    }

    /// The same, and how many there are.
    pub(super) fn private_buffers(&self) -> (u32, u32) {
        let count = |private: &PrivateBuffers| private.pool().layout().count;
        (self.private_used(), self.private.as_ref().map_or(0, count))
    }

    /// Opens the account of a listener. Returns the pool of its connections until a session owns
    /// them; `None`: there is no memory for it.
    pub(super) fn open_account(
        &mut self,
        shard: u16,
        rights: Option<&Arc<SessionRights>>,
    ) -> Option<PoolId> {
        match &mut self.private {
            Some(private) => private.open_account(shard, rights),
            None => Some(PoolId(0)),
        }
    }

    /// The buffers of a listener count for another channel of its user.
    pub(super) fn transfer_account(&mut self, pool: PoolId, rights: &Arc<SessionRights>) {
        self.private.iter_mut().for_each(|private| private.transfer_account(pool, rights));
    }

    /// The listener of an account is gone.
    pub(super) fn close_account(&mut self, pool: PoolId) {
        self.private.iter_mut().for_each(|private| private.close_account(pool));
    }

    /// Makes room for `most` sessions in all. Returns whether there is memory for it.
    pub(super) fn reserve_sessions(&mut self, most: usize) -> bool {
        let Self { sessions, returning, .. } = self;
        sessions.try_reserve(most - sessions.len().min(most)).is_ok()
            && returning.try_reserve(most - returning.len().min(most)).is_ok()
    }

    /// A session begins.
    pub(super) fn insert(&mut self, session: PoolId, memory: SessionMemory) {
        let index = usize::from(session.0);
        if self.sessions.len() <= index {
            self.sessions.resize_with(index + 1, || None);
        }
        self.sessions[index] = Some(Box::new(memory));
    }

    /// It is over: its region is unmapped.
    pub(super) fn remove(&mut self, session: PoolId) {
        if let Some(memory) = self.sessions.get_mut(usize::from(session.0)) {
            *memory = None;
        }
    }

    #[inline]
    pub(super) fn of(&self, session: PoolId) -> Option<&SessionMemory> {
        self.sessions.get(usize::from(session.0))?.as_deref()
    }

    #[inline]
    pub(super) fn of_mut(&mut self, session: PoolId) -> Option<&mut SessionMemory> {
        self.sessions.get_mut(usize::from(session.0))?.as_deref_mut()
    }

    /// Sessions that send buffers are to go back to.
    pub(super) fn returning(&self) -> &[PoolId] {
        &self.returning
    }

    /// Nothing is to go back any more to the session at a place of that list.
    pub(super) fn end_returning(&mut self, place: usize) {
        self.returning.swap_remove(place);
    }

    /// The received bytes of a session, or of the shard's own memory, as names of buffers have it.
    #[inline]
    fn receives(&self, session: PoolId) -> Option<&Pool> {
        match self.of(session) {
            Some(memory) => Some(&memory.receives),
            None => self.private.as_ref().filter(|_| session.0 == 0).map(PrivateBuffers::pool),
        }
    }

    /// Copies received bytes into a buffer of the shard's own.
    fn store_private(&mut self, pool: PoolId, bytes: &[u8]) -> Option<BufId> {
        let private = self.private.as_mut()?;
        if bytes.len() > private.pool().buf_bytes() {
            return None;
        }
        let buf = private.alloc(pool)?;
        // The buffer was allocated just now.
        let _ = private.pool().copy_in(buf, 0, bytes);
        Some(receive_buffer(PoolId(0), buf.index()))
    }

    /// Moves received bytes into a session's own memory. `None`: it has no buffer left.
    pub(super) fn move_to(&mut self, session: PoolId, chunk: Chunk) -> Option<Chunk> {
        if chunk.len as usize > self.of(session)?.receives.buf_bytes() {
            return None;
        }
        self.move_part(session, chunk).map(|(moved, _)| moved)
    }

    /// Moves as many received bytes as a buffer takes into a session's own memory, or into that of
    /// an account. Returns them, and what is left where it was. `None`: there is no buffer left.
    pub(super) fn move_part(&mut self, to: PoolId, chunk: Chunk) -> Option<(Chunk, Option<Chunk>)> {
        let buf = self.alloc(to)?;
        let moved = chunk.len.min(self.buf_bytes(buf));
        let mut piece = [0; MOVED_AT_ONCE];
        for from in (0..moved).step_by(MOVED_AT_ONCE) {
            let len = (moved - from).min(MOVED_AT_ONCE as u32);
            let bytes = &mut piece[..len as usize];
            self.copy_out(Chunk { offset: chunk.offset + from, len, ..chunk }, bytes);
            self.copy_in(buf, from, bytes);
        }
        let rest = Chunk { offset: chunk.offset + moved, len: chunk.len - moved, ..chunk };
        let rest = (rest.len > 0).then_some(rest);
        if rest.is_none() {
            self.free(chunk.buf);
        }
        Some((Chunk { buf, offset: 0, len: moved }, rest))
    }
}

/// The name of a receive buffer in its pool.
const fn in_pool(index: u32) -> megapipe_shm::BufId {
    megapipe_shm::BufId::from_bits(index)
}

impl Memory for SharedMemory {
    #[inline]
    fn alloc(&mut self, pool: PoolId) -> Option<BufId> {
        if let Some(memory) = self.of(pool) {
            return memory.receives.alloc().map(|buf| receive_buffer(pool, buf.index()));
        }
        let buf = self.private.as_mut()?.alloc(pool)?;
        Some(receive_buffer(PoolId(0), buf.index()))
    }

    #[inline]
    fn free(&mut self, buf: BufId) {
        match place_of(buf) {
            NamedBuffer::Receive(index) => {
                let session = session_of(buf);
                if let Some(memory) = self.of(session) {
                    // A buffer that the application returned twice is refused and counted.
                    let _ = memory.receives.free(in_pool(index));
                } else if let Some(private) = self.private.as_mut().filter(|_| session.0 == 0) {
                    private.free(in_pool(index));
                }
            }
            NamedBuffer::Other(tag, index) => {
                let session = session_of(buf);
                if let Some(memory) = self.of_mut(session)
                    && memory.free_other(tag, index)
                {
                    self.returning.push(session);
                }
            }
        }
    }

    fn buf_bytes(&self, buf: BufId) -> u32 {
        let bytes = match place_of(buf) {
            NamedBuffer::Receive(_) => self.receives(session_of(buf)).map(Pool::buf_bytes),
            NamedBuffer::Other(COPIES, index) => {
                self.of(session_of(buf)).and_then(|memory| memory.copy_of(index)).map(<[u8]>::len)
            }
            NamedBuffer::Other(tag, _) => self
                .of(session_of(buf))
                .and_then(|memory| memory.area(tag))
                .map(|area| area.layout().buf_bytes),
        };
        bytes.unwrap_or(0) as u32
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        if let NamedBuffer::Receive(index) = place_of(buf)
            && let Some(receives) = self.receives(session_of(buf))
        {
            // A buffer that is not ours any more takes nothing; the sum is of what arrived.
            let _ = receives.copy_in(in_pool(index), offset, from);
        }
        checksum::sum(from)
    }

    #[inline]
    fn store(&mut self, pool: PoolId, bytes: &[u8]) -> Option<(BufId, u16)> {
        let buf = match self.of(pool) {
            Some(memory) => receive_buffer(pool, memory.store(bytes)?),
            None => self.store_private(pool, bytes)?,
        };
        Some((buf, checksum::sum(bytes)))
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        let len = to.len().min(chunk.len as usize);
        let (bytes, rest) = to.split_at_mut(len);
        let (session, offset) = (session_of(chunk.buf), chunk.offset as usize);
        let is_read = match place_of(chunk.buf) {
            // An application that returns a buffer before its bytes were published harms itself.
            NamedBuffer::Receive(index) => {
                let receives = self.receives(session);
                receives.is_some_and(|receives| {
                    receives.copy_out(in_pool(index), chunk.offset, bytes).is_ok()
                })
            }
            NamedBuffer::Other(COPIES, index) => {
                let copy = self.of(session).and_then(|memory| memory.copy_of(index));
                let copy = copy.and_then(|copy| copy.get(offset..offset + len));
                copy.is_some_and(|copy| {
                    bytes.copy_from_slice(copy);
                    true
                })
            }
            NamedBuffer::Other(tag, index) => {
                let area = self.of(session).and_then(|memory| memory.area(tag));
                area.is_some_and(|area| area.read(index, offset, bytes).is_ok())
            }
        };
        if !is_read {
            bytes.fill(0);
        }
        if !rest.is_empty() {
            rest.fill(0);
        }
        checksum::sum(to)
    }
}
