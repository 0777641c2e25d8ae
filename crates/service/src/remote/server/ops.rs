//! Ops: what the application submits, done in order.

use megapipe_link::LinkError;
use megapipe_shm::record::{Command, Completion, Event as Says, Op, ServerAnswer};
use megapipe_stack::{Chunk, Departure, Instant, Memory};

use super::{RemoteServer, gone};
use crate::connection_manager::AcceptorId;
use crate::limits::OPS_PER_POLL;
use crate::remote::deferred::End;
use crate::remote::encoding::{
    Coded, chunk_of, conn_id, encode_port_error, endpoint_id, id_of, listener_id,
};

/// Whether a poll goes on with the next op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpStep {
    Next,
    /// A call was answered.
    Stop,
}

impl RemoteServer {
    /// Does what the application submitted, one poll's share of it. Returns how many ops.
    ///
    /// # Errors
    /// A record that no correct application writes.
    pub(super) fn take_ops(&mut self, now: Instant) -> Result<u32, LinkError> {
        let waiting = self.ends.ops.peek(OPS_PER_POLL).map_err(|_| gone())?;
        // Each may have an answer, for which there has to be room.
        let room = self.ends.events.reserve(OPS_PER_POLL).map_err(|_| gone())?;
        let count = waiting.min(OPS_PER_POLL).min(room);
        let mut done = 0;
        while done < count {
            let Some(record) = self.ends.ops.take() else { break };
            let op = Op::parse(&record).map_err(|_| gone())?;
            done += 1;
            if self.execute(now, op)? == OpStep::Stop {
                break;
            }
        }
        self.ends.ops.release();
        // A correct application has no more chunks under way than it has buffers.
        let (_, memory) = self.server.parts();
        if memory.is_overdrawn() || self.deferred.chunks() > memory.send_count() {
            return Err(gone());
        }
        Ok(done)
    }

    #[inline]
    fn execute(&mut self, now: Instant, op: Op) -> Result<OpStep, LinkError> {
        match op.command {
            Command::Send { conn, chunk } => {
                let (stack, memory) = self.server.parts();
                let chunk = chunk_of(chunk);
                if !memory.holds(chunk) {
                    return Err(gone());
                }
                self.deferred.send(now, conn_id(conn), chunk, (stack, memory));
            }
            Command::Receive { conns } => {
                let (stack, _) = self.server.parts();
                for conn in conns.iter() {
                    // A connection that is over needs no answer.
                    let _ = stack.receive(now, conn_id(conn));
                }
            }
            Command::Return { bufs } => {
                let (_, memory) = self.server.parts();
                bufs.iter().for_each(|buf| memory.take_back(buf));
            }
            _ => return self.execute_rare(now, op),
        }
        Ok(OpStep::Next)
    }

    /// As `execute`, of ops that do not come with each message.
    fn execute_rare(&mut self, now: Instant, op: Op) -> Result<OpStep, LinkError> {
        let (stack, memory) = self.server.parts();
        // A connection that is over needs no answer: its end is on the way.
        let _ = match op.command {
            Command::Shutdown { conn } => {
                self.deferred.end(now, conn_id(conn), End::Shutdown, (stack, memory))
            }
            Command::Close { conn } => {
                self.deferred.end(now, conn_id(conn), End::Close, (stack, memory))
            }
            Command::Abort { conn } => {
                self.deferred.drop_of(conn_id(conn), memory);
                stack.abort(now, conn_id(conn), memory)
            }
            Command::AwaitAcks { conn } => stack.await_acks(conn_id(conn)),
            Command::Accept { listener, credit } => {
                self.server.accept(listener_id(listener), AcceptorId(op.cookie), credit)
            }
            Command::Connect { remote, local } => {
                let answer = match self.server.connect(now, remote, local) {
                    Ok(conn) => ServerAnswer::Connecting { conn: id_of(conn) },
                    Err(error) => ServerAnswer::refused(encode_port_error(&error).0),
                };
                self.publish(op.cookie, Says::Answer(answer));
                Ok(())
            }
            Command::SendDatagram { .. } => return self.send_datagram(now, op.command),
            Command::Call(call) => {
                self.answer_call(now, op.cookie, call)?;
                return Ok(OpStep::Stop);
            }
            Command::Send { .. } | Command::Receive { .. } | Command::Return { .. } => Ok(()),
        };
        Ok(OpStep::Next)
    }

    /// Sends a datagram. If the stack does not take it, the application learns it by an event.
    fn send_datagram(&mut self, now: Instant, command: Command) -> Result<OpStep, LinkError> {
        let Command::SendDatagram { endpoint, to, from, hop_limit, traffic_class, buf, len } =
            command
        else {
            return Ok(OpStep::Next);
        };
        let (stack, memory) = self.server.parts();
        let chunk = Chunk { buf: megapipe_stack::BufId(buf.bits()), offset: 0, len: len.into() };
        if !memory.holds_datagram(chunk) {
            return Err(gone());
        }
        let hop_limit = (hop_limit > 0).then_some(hop_limit);
        let departure = Departure { from, hop_limit, traffic_class };
        let what = (to, chunk, &departure);
        let sent = stack.send_datagram_as(now, endpoint_id(endpoint), what, memory);
        if let Err(error) = sent {
            memory.free(chunk.buf);
            self.publish(0, Says::DatagramFailed { endpoint, refusal: error.refusal() });
        }
        Ok(OpStep::Next)
    }

    /// Publishes one completion. There is room: it was seen before (`has_room`, `take_ops`).
    pub(super) fn publish(&mut self, cookie: u64, event: Says) {
        self.put(&Completion { cookie, event }.record());
    }
}
