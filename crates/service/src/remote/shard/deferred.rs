//! Deferred sends: chunks that the stack had no room for, by connection, and what follows them.
//!
//! The session keeps to each connection's send buffer, so only a stack that is short of places for
//! chunks refuses one. A session at a quota of chunks defers those of connections that have some
//! in the stack: the first chunk of a queue needs no place, and its acknowledgment makes room.
//!
//! Invariants
//! - A connection has a queue here exactly while it has deferred chunks. It awaits acknowledgments,
//!   which a connection that was refused room is owed.
//! - What is asked of a connection after a deferred send is done after it.
//! - Deferred chunks count as in the stack ([`SessionMemory::in_stack`]), which bounds their
//!   number.
//!
//! [`SessionMemory::in_stack`]: crate::remote::session_memory::SessionMemory::in_stack

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use megapipe_stack::{Chunk, ConnId, Instant, Memory, OperationError, Stack};

use super::quota_grant::QuotaGrant;
use crate::policy::{CHUNKS, SessionRights};
use crate::remote::SharedMemory;
use crate::remote::buffer_names::session_of;

/// A server's parts.
type Parts<'server> = (&'server mut Stack, &'server mut SharedMemory);

/// How the application ends a connection, after what it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Shutdown,
    Close,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    /// Follows the last chunk.
    end: Option<End>,
}

pub(super) struct Deferred {
    queues: HashMap<ConnId, Queue>,
    /// All chunks of the queues.
    count: u32,
    grant: QuotaGrant,
}

impl Deferred {
    /// Nothing is deferred, and chunks in the stack are within these rights' quotas.
    pub(super) fn new(rights: Option<Arc<SessionRights>>) -> Self {
        Self { queues: HashMap::new(), count: 0, grant: QuotaGrant::new(CHUNKS, rights) }
    }

    /// Gives back what the session drew from its quotas and does not need, where its stack has so
    /// many chunks, deferred ones included.
    #[inline]
    pub(super) fn return_unused(&mut self, in_stack: u32) {
        self.grant.return_unused(in_stack.saturating_sub(self.count));
    }

    /// As [`Deferred::return_unused`], all that it does not need now.
    pub(super) fn return_all_unused(&mut self, in_stack: u32) {
        self.grant.return_all_unused(in_stack.saturating_sub(self.count));
    }

    /// Whether a quota lets the stack have a chunk, which is counted already. The first chunk of a
    /// connection's queue is let always.
    #[inline]
    fn may_send(&mut self, conn: ConnId, chunk: Chunk, stack: &Stack, its: &SharedMemory) -> bool {
        if !self.grant.is_limited() {
            return true;
        }
        let memory = its.of(session_of(chunk.buf));
        let in_stack = memory.map_or(0, |memory| memory.in_stack());
        self.grant.has_room(in_stack.saturating_sub(self.count))
            || stack.info(conn).is_ok_and(|info| info.queued_bytes == 0)
    }

    /// Queues a chunk with the stack, or defers it.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: Instant,
        conn: ConnId,
        chunk: Chunk,
        (stack, memory): Parts<'_>,
    ) {
        if !self.queues.is_empty()
            && let Some(queue) = self.queues.get_mut(&conn)
        {
            if queue.end.is_some() {
                return memory.free(chunk.buf);
            }
            queue.chunks.push_back(chunk);
            self.count += 1;
            return;
        }
        let sent = match self.may_send(conn, chunk, stack, memory) {
            true => stack.send(now, conn, chunk, memory),
            // One that is over takes nothing.
            false => stack.await_acks(conn).and(Err(OperationError::QueueFull)),
        };
        match sent {
            Ok(()) => {}
            Err(OperationError::QueueFull) => {
                let chunks = VecDeque::from([chunk]);
                self.queues.insert(conn, Queue { chunks, end: None });
                self.count += 1;
                let awaited = stack.await_acks(conn);
                debug_assert!(awaited.is_ok(), "its queue is full");
            }
            Err(_) => memory.free(chunk.buf),
        }
    }

    /// Ends a connection after what is deferred.
    ///
    /// # Errors
    /// As [`Stack::shutdown`] and [`Stack::close`], if nothing is deferred.
    pub(super) fn end(
        &mut self,
        now: Instant,
        conn: ConnId,
        end: End,
        (stack, memory): Parts<'_>,
    ) -> Result<(), OperationError> {
        if let Some(queue) = self.queues.get_mut(&conn) {
            queue.end = queue.end.max(Some(end));
            return Ok(());
        }
        match end {
            End::Shutdown => stack.shutdown(now, conn, memory),
            End::Close => stack.close(now, conn, memory),
        }
    }

    /// The peer has acknowledged something: sends what there is room for, then ends the connection
    /// if that follows.
    #[inline]
    pub(super) fn retry(&mut self, now: Instant, conn: ConnId, parts: Parts<'_>) {
        if !self.queues.is_empty() {
            self.retry_some(now, conn, parts);
        }
    }

    fn retry_some(&mut self, now: Instant, conn: ConnId, (stack, memory): Parts<'_>) {
        while let Some(chunk) = self.queues.get(&conn).and_then(|queue| queue.chunks.front()) {
            let chunk = *chunk;
            // It is no deferred one while it is decided about.
            self.count -= 1;
            let sent = match self.may_send(conn, chunk, stack, memory) {
                true => stack.send(now, conn, chunk, memory),
                false => Err(OperationError::QueueFull),
            };
            match sent {
                Ok(()) => {}
                Err(OperationError::QueueFull) => {
                    self.count += 1;
                    let awaited = stack.await_acks(conn);
                    debug_assert!(awaited.is_ok(), "its queue is full");
                    return;
                }
                Err(_) => memory.free(chunk.buf),
            }
            self.queues.get_mut(&conn).and_then(|queue| queue.chunks.pop_front());
        }
        let end = self.queues.remove(&conn).and_then(|queue| queue.end);
        if let Some(end) = end {
            // One that is over meanwhile needs no end.
            let _ = self.end(now, conn, end, (stack, memory));
        }
    }

    /// As `retry`, of each connection.
    pub(super) fn retry_all(&mut self, now: Instant, (stack, memory): Parts<'_>) {
        if !self.queues.is_empty() {
            let conns: Vec<_> = self.queues.keys().copied().collect();
            for conn in conns {
                self.retry_some(now, conn, (&mut *stack, &mut *memory));
            }
        }
    }

    /// Whether the end of a connection is queued behind its deferred chunks.
    pub(super) fn has_end(&self, conn: ConnId) -> bool {
        self.queues.get(&conn).is_some_and(|queue| queue.end.is_some())
    }

    /// Takes the deferred chunks of a connection, which are the caller's then.
    pub(super) fn take_of(&mut self, conn: ConnId) -> VecDeque<Chunk> {
        let chunks = self.queues.remove(&conn).map_or_else(VecDeque::new, |queue| queue.chunks);
        self.count -= chunks.len() as u32;
        chunks
    }

    /// Frees what is deferred of a connection that is over.
    #[inline]
    pub(super) fn drop_of(&mut self, conn: ConnId, memory: &mut SharedMemory) {
        if !self.queues.is_empty()
            && let Some(queue) = self.queues.remove(&conn)
        {
            self.count -= queue.chunks.len() as u32;
            queue.chunks.iter().for_each(|chunk| memory.free(chunk.buf));
        }
    }
}
