//! Options of connections.
//!
//! A connection that was opened a moment ago has no name of the server's yet. What is set meanwhile
//! is sent with the name: a program that sets options of each connection that it opens need not
//! wait for the server each time.

use megapipe_shm::record::{Command, NO_ANSWER, SessionCall};
use megapipe_stack::{ConnId, ConnOption, OperationError};

use super::RemoteClient;
use crate::remote::encoding::{encode_option, id_of};

/// What was set for a connection before the server named it.
#[derive(Debug, Clone, Copy)]
pub(super) enum EarlyOption {
    /// Its code and value.
    Connection(u32, u64),
    ResetOnClose(bool),
}

/// So many for each connection. With more, the server's name is waited for.
const EARLY_OPTIONS_MAX: usize = 16;

impl RemoteClient {
    /// Sets an option, after what was asked for before. Waits for the server only where its answer
    /// or the send queue matters: for the size of the send buffer, for what can be refused, and for
    /// a report of what is unsent.
    ///
    /// # Errors
    /// As [`megapipe_stack::Stack::set_option`]; but of a connection whose end is on its way, only
    /// where the server is waited for.
    pub fn set_option(&mut self, conn: ConnId, option: ConnOption) -> Result<(), OperationError> {
        let (code, value) = encode_option(option).ok_or(OperationError::Unknown)?;
        let has_answer = matches!(
            option,
            ConnOption::SendBuffer(_)
                | ConnOption::Urgent
                | ConnOption::EndOfRecord
                | ConnOption::ReportUnsentBelow(_)
        );
        if !has_answer && self.keeps_early(conn, EarlyOption::Connection(code, value))? {
            return Ok(());
        }
        let server = self.named_soon(conn).ok_or(OperationError::Unknown)?;
        if !has_answer {
            self.put_option(server, code, value);
            self.commit();
            return Ok(());
        }
        let send_buffer_bytes = self.call_value(option_call(server, code, value))?;
        if let ConnOption::SendBuffer(_) = option {
            let bytes = u32::try_from(send_buffer_bytes).unwrap_or(u32::MAX);
            self.conns[conn.index as usize].send_buffer_bytes = bytes;
        }
        Ok(())
    }

    /// Sets whether a connection is reset instead of closed in order if the session ends before the
    /// application has closed it (SO_LINGER with time 0). A daemon older than version 5 of the
    /// protocol closes it in order.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the connection is over.
    pub fn set_reset_on_close(&mut self, conn: ConnId, on: bool) -> Result<(), OperationError> {
        if self.keeps_early(conn, EarlyOption::ResetOnClose(on))? {
            return Ok(());
        }
        let server = self.named_soon(conn).ok_or(OperationError::Unknown)?;
        self.put_reset_on_close(server, on);
        Ok(())
    }

    /// The server has named a connection: it gets what was set before.
    pub(super) fn put_early_options(&mut self, conn: ConnId, server: ConnId) {
        for early in std::mem::take(&mut self.conns[conn.index as usize].early) {
            match early {
                EarlyOption::Connection(code, value) => self.put_option(server, code, value),
                EarlyOption::ResetOnClose(on) => self.put_reset_on_close(server, on),
            }
        }
    }

    /// Keeps an option of a connection that the server has not named; `false`: it has, or there is
    /// no room.
    fn keeps_early(&mut self, conn: ConnId, option: EarlyOption) -> Result<bool, OperationError> {
        if !self.is_known(conn) {
            return Err(OperationError::Unknown);
        }
        let state = &mut self.conns[conn.index as usize];
        if state.server.is_some() || state.early.len() == EARLY_OPTIONS_MAX {
            return Ok(false);
        }
        let has_room = state.early.try_reserve(1).is_ok();
        if has_room {
            state.early.push(option);
        }
        Ok(has_room)
    }

    /// Options that wait for a connection's name.
    #[cfg(test)]
    pub(in crate::remote) fn early_options(&self, conn: ConnId) -> usize {
        self.conns[conn.index as usize].early.len()
    }

    /// One of which no answer is waited for.
    fn put_option(&mut self, server: ConnId, code: u32, value: u64) {
        self.unanswered += 1;
        self.ask(NO_ANSWER, Command::Call(option_call(server, code, value)));
    }

    fn put_reset_on_close(&mut self, server: ConnId, on: bool) {
        if self.knows_resets {
            self.ask(0, Command::ResetOnClose { conn: id_of(server), on });
        }
    }
}

const fn option_call(server: ConnId, option: u32, value: u64) -> SessionCall {
    SessionCall::SetOption { conn: id_of(server), option, value }
}
