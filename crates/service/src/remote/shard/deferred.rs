//! Deferred sends: chunks that the stack had no room for, by connection, and what follows them.
//!
//! The session keeps to each connection's send buffer, so only a stack that is short of places for
//! chunks refuses one.
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

use megapipe_stack::{Chunk, ConnId, Instant, Memory, OperationError, Stack};

use crate::remote::SharedMemory;

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

#[derive(Default)]
pub(super) struct Deferred {
    queues: HashMap<ConnId, Queue>,
}

impl Deferred {
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
            return;
        }
        match stack.send(now, conn, chunk, memory) {
            Ok(()) => {}
            Err(OperationError::QueueFull) => {
                let chunks = VecDeque::from([chunk]);
                self.queues.insert(conn, Queue { chunks, end: None });
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
        let Some(queue) = self.queues.get_mut(&conn) else { return };
        while let Some(chunk) = queue.chunks.front() {
            match stack.send(now, conn, *chunk, memory) {
                Ok(()) => {}
                Err(OperationError::QueueFull) => {
                    let awaited = stack.await_acks(conn);
                    debug_assert!(awaited.is_ok(), "its queue is full");
                    return;
                }
                Err(_) => memory.free(chunk.buf),
            }
            queue.chunks.pop_front();
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
        self.queues.remove(&conn).map_or_else(VecDeque::new, |queue| queue.chunks)
    }

    /// Frees what is deferred of a connection that is over.
    #[inline]
    pub(super) fn drop_of(&mut self, conn: ConnId, memory: &mut SharedMemory) {
        if !self.queues.is_empty()
            && let Some(queue) = self.queues.remove(&conn)
        {
            queue.chunks.iter().for_each(|chunk| memory.free(chunk.buf));
        }
    }
}
