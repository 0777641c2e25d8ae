//! Sending: which bytes go over in which buffer, and how many of one connection at a time.
//!
//! A connection has at most its send buffer's bytes with the server, so that the server's stack
//! takes them as they come. A connection that has nothing there sends one chunk of any length, as
//! the stack has it.
//!
//! Invariants
//! - A connection that has nothing with the server is never refused: if other connections have all
//!   buffers, its bytes go over as a copy.
//! - One that is refused has bytes with the server, and is unblocked when some of them come back.

use megapipe_shm::BufId;
use megapipe_shm::record::{Command, Op, SessionCall};
use megapipe_stack::{ConnId, OperationError};

use super::{Conn, RemoteClient};
use crate::limits::{LARGE_SEND_BYTES, SMALL_SEND_BYTES};
use crate::remote::encoding::id_of;
use crate::remote::send_buffers::Carrier;

impl Conn {
    /// The first of `bytes` that its send buffer has room for.
    fn fitting<'bytes>(&self, bytes: &'bytes [u8]) -> &'bytes [u8] {
        if self.has_copy {
            return &[];
        }
        let room = self.send_buffer_bytes.saturating_sub(self.queued_bytes) as usize;
        let len = if self.queued_bytes == 0 { bytes.len() } else { bytes.len().min(room) };
        &bytes[..len]
    }
}

impl RemoteClient {
    /// Copies a short message into a send buffer, and hands it over. `false`: nothing was sent;
    /// [`RemoteClient::send`] does it in pieces, or returns the reason why not.
    #[inline]
    pub fn send_short(&mut self, conn: ConnId, bytes: &[u8]) -> bool {
        let Some(state) = self.conns.get_mut(conn.index as usize) else { return false };
        let is_open = state.is_used && state.generation == conn.generation && !state.is_shut;
        let Some(server) = state.server.filter(|_| is_open && !state.has_copy) else {
            return false;
        };
        if bytes.is_empty() || bytes.len() > SMALL_SEND_BYTES {
            return false;
        }
        let queued_bytes = state.queued_bytes.saturating_add(bytes.len() as u32);
        if queued_bytes > state.send_buffer_bytes {
            return false;
        }
        let held = &mut state.held.small;
        let chunk = self.sends.small.fill((Carrier::Conn(conn), held), bytes);
        let Some(chunk) = chunk else { return false };
        state.queued_bytes = queued_bytes;
        self.put(&Op::send(id_of(server), chunk));
        true
    }

    /// Copies bytes into send buffers, and hands them over. How many: fewer than all, where the
    /// connection's send buffer or its share of the buffers is used up.
    ///
    /// # Errors
    /// [`OperationError::QueueFull`]: none; [`megapipe_stack::Event::Acked`] follows when there is
    /// room again. [`OperationError::Unknown`]: the connection is over;
    /// [`OperationError::Closing`]: our direction of it is.
    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) -> Result<usize, OperationError> {
        let server = self.server_of(conn)?;
        if self.conns[conn.index as usize].is_shut {
            return Err(OperationError::Closing);
        }
        let mut sent = 0;
        while sent < bytes.len() {
            let state = &mut self.conns[conn.index as usize];
            let part = state.fitting(&bytes[sent..]);
            if part.is_empty() {
                break;
            }
            let chunk = self.sends.fill((Carrier::Conn(conn), &mut state.held), part);
            let Some(chunk) = chunk else {
                if state.queued_bytes == 0 {
                    sent += self.send_copy(conn, server, part)?;
                }
                break;
            };
            state.queued_bytes += chunk.len;
            self.put(&Op::send(id_of(server), chunk));
            sent += chunk.len as usize;
        }
        if sent == 0 {
            self.conns[conn.index as usize].awaits = true;
            return Err(OperationError::QueueFull);
        }
        Ok(sent)
    }

    /// Hands over a copy in the server's memory, of a connection that has nothing with the server.
    /// How many bytes; none, if the server still has some of it.
    #[cold]
    fn send_copy(
        &mut self,
        conn: ConnId,
        server: ConnId,
        bytes: &[u8],
    ) -> Result<usize, OperationError> {
        let copy = &bytes[..bytes.len().min(LARGE_SEND_BYTES)];
        let len = copy.len();
        let chunk = self.lend(copy);
        let sent = self.call_done(SessionCall::SendCopy { conn: id_of(server), chunk });
        let state = &mut self.conns[conn.index as usize];
        match sent {
            Ok(()) => {
                (state.has_copy, state.queued_bytes) = (true, len as u32);
                Ok(len)
            }
            // A copy of before that an answer was too early for (`on_acked`).
            Err(OperationError::QueueFull) => {
                state.has_copy = true;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for one [`megapipe_stack::Event::Acked`].
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the connection is over.
    pub fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.server_of(conn)?;
        let state = &mut self.conns[conn.index as usize];
        state.awaits = true;
        if state.queued_bytes == 0 && !state.has_copy {
            self.unblocked.push_back(conn);
        }
        Ok(())
    }

    /// Asks for one [`megapipe_stack::Event::Acked`] when the peer has acknowledged something,
    /// whether there is room or not.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the connection is over.
    pub fn await_delivery(&mut self, conn: ConnId) -> Result<(), OperationError> {
        let server = self.server_of(conn)?;
        self.ask(0, Command::AwaitAcks { conn: id_of(server) });
        Ok(())
    }

    /// The server has given a send buffer back.
    pub(super) fn on_returned(&mut self, buf: BufId) {
        let Some((carrier, len)) = self.sends.take_back(buf) else { return };
        let conn = match carrier {
            Carrier::Conn(conn) => conn,
            Carrier::Endpoint(endpoint) => return self.datagrams.on_returned(endpoint, buf),
            Carrier::Nothing => return,
        };
        let state = self.conns.get_mut(conn.index as usize);
        if let Some(state) = state.filter(|it| it.is_used && it.generation == conn.generation) {
            state.queued_bytes = state.queued_bytes.saturating_sub(len);
            state.held.give_back(buf);
            if state.awaits {
                self.unblocked.push_back(conn);
            }
        }
    }

    /// The peer has acknowledged chunks; so many bytes are left of the connection's.
    pub(super) fn on_acked(&mut self, conn: ConnId, queued_bytes: u32) {
        let state = &mut self.conns[conn.index as usize];
        if !state.has_copy {
            return;
        }
        if queued_bytes > 0 {
            // The answer to an older question.
            let _ = self.await_delivery(conn);
            return;
        }
        (state.has_copy, state.queued_bytes) = (false, 0);
        if state.awaits {
            self.unblocked.push_back(conn);
        }
    }
}
