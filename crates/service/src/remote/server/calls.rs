//! Calls: each is done and answered before the next op.
//!
//! Read first: `megapipe_shm`'s `record/call.rs`. From a call to its answer the call buffer is the
//! server's; it is copied out before it is looked at.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use megapipe_link::LinkError;
use megapipe_shm::record::{
    Chunk, Event as Says, Id, ListenSharing, Refusal, ServerAnswer, SessionCall,
};
use megapipe_stack::{ConnId, Departure, Holder, Instant, Memory, OperationError};

use super::{RemoteServer, gone};
use crate::error::PortError;
use crate::limits::{CALL_BYTES, PREPENDED_BYTES_MAX};
use crate::remote::CALL_BUFFER;
use crate::remote::encoding::{
    Coded, conn_id, decode_begin, decode_bind, decode_option, decode_sharing, encode_holders,
    encode_info, encode_port_error, endpoint_id, id_of, id_of_endpoint, id_of_listener,
    listener_id,
};
use crate::sharing::Sharing;

/// An answer; an error: no correct application makes this call.
type Answered = Result<ServerAnswer, LinkError>;

/// The answer of an operation without a result.
fn done<T>(result: Result<T, OperationError>) -> ServerAnswer {
    result.map_or_else(|error| ServerAnswer::refused(error.refusal()), |_| ServerAnswer::Done)
}

impl RemoteServer {
    /// Answers a call, after the ops before it and their events: so bytes that the stack no longer
    /// counts as unread can be taken.
    ///
    /// # Errors
    /// No correct application makes this call.
    pub(super) fn answer_call(
        &mut self,
        now: Instant,
        cookie: u64,
        call: SessionCall,
    ) -> Result<(), LinkError> {
        self.publish_events(now);
        // A call that looks at a queue sees none that is empty while sends wait for it.
        let (stack, memory) = self.server.parts();
        self.deferred.retry_all(now, (stack, memory));
        let answer = self.answer(now, call)?;
        self.publish(cookie, Says::Answer(answer));
        Ok(())
    }

    fn answer(&mut self, now: Instant, call: SessionCall) -> Answered {
        Ok(match call {
            SessionCall::Sync => ServerAnswer::Done,
            SessionCall::SetCore { core } => {
                if let Some(attachment) = self.server.attachment() {
                    attachment.set_core(core);
                }
                ServerAnswer::Done
            }
            SessionCall::Listen { local, backlog, sharing } => {
                let sharing = self.sharing(sharing)?;
                match self.server.listen(now, local, backlog, sharing) {
                    Ok(listener) => ServerAnswer::Listening { listener: id_of_listener(listener) },
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::Share { listener, sharing } => {
                let sharing = self.sharing(sharing)?;
                match self.server.share(listener_id(listener), sharing) {
                    Ok(()) => ServerAnswer::Done,
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::SetFastOpen { listener, pending_max } => {
                let (stack, _) = self.server.parts();
                done(stack.set_listener_fast_open(listener_id(listener), pending_max))
            }
            SessionCall::IsListening { local } => {
                ServerAnswer::Value { value: self.server.is_listening(local).into() }
            }
            SessionCall::Unlisten { listener } => {
                self.server.unlisten(now, listener_id(listener));
                ServerAnswer::Done
            }
            SessionCall::TakeOut { conn } => match self.server.take_out(now, conn_id(conn)) {
                true => ServerAnswer::Done,
                false => ServerAnswer::refused(Refusal::Unknown),
            },
            SessionCall::PrependUnread { conn, chunk } => {
                let bytes = self.bytes(chunk)?;
                self.prepended_bytes += bytes.len();
                if self.prepended_bytes > PREPENDED_BYTES_MAX {
                    return Err(gone());
                }
                self.server.prepend_unread(conn_id(conn), &bytes);
                ServerAnswer::Done
            }
            SessionCall::HandOver { conn } => {
                self.prepended_bytes = 0;
                self.server.hand_over_taken(now, conn_id(conn));
                ServerAnswer::Done
            }
            SessionCall::HandOverOffered { conn } => {
                self.server.hand_over_offered(now, conn_id(conn));
                ServerAnswer::Done
            }
            _ => return self.answer_connection(now, call),
        })
    }

    /// As `answer`, of calls about connections and ports.
    fn answer_connection(&mut self, now: Instant, call: SessionCall) -> Answered {
        Ok(match call {
            SessionCall::Connect { remote, local, flags } => {
                let begin = decode_begin(flags).ok_or_else(gone)?;
                match self.server.connect_as(now, (remote, local), begin) {
                    Ok(conn) => ServerAnswer::Connecting { conn: id_of(conn) },
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::Info { conn } => match self.server.stack().info(conn_id(conn)) {
                Ok(info) => self.written(&encode_info(&info)),
                Err(error) => ServerAnswer::refused(error.refusal()),
            },
            SessionCall::Addresses { conn } => match self.server.stack().addresses(conn_id(conn)) {
                Ok((local, remote)) => ServerAnswer::addresses(local, Some(remote)),
                Err(error) => ServerAnswer::refused(error.refusal()),
            },
            SessionCall::SetOption { conn, option, value } => {
                self.set_option(now, conn, option, value)?
            }
            SessionCall::SendCopy { conn, chunk } => {
                let copy = self.bytes(chunk)?;
                done(self.send_copy(now, conn_id(conn), copy))
            }
            SessionCall::Holders { ports: (first, last) } => {
                let holders: BTreeSet<Holder> = self.server.stack().holders(first..=last);
                self.written(&encode_holders(&holders))
            }
            SessionCall::FreePort { ports: (first, last), from } => {
                let port = self.server.stack().port_without_connections(first..=last, from);
                ServerAnswer::Value { value: port.unwrap_or(0).into() }
            }
            _ => return self.answer_datagram(now, call),
        })
    }

    /// As `answer`, of calls about endpoints for datagrams.
    fn answer_datagram(&mut self, now: Instant, call: SessionCall) -> Answered {
        Ok(match call {
            SessionCall::Bind { local, flags } => {
                match self.server.bind(local, decode_bind(flags)) {
                    Ok(endpoint) => ServerAnswer::Bound { endpoint: id_of_endpoint(endpoint) },
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::ConnectDatagram { endpoint, peer } => {
                let (stack, _) = self.server.parts();
                match stack.connect_datagram(endpoint_id(endpoint), peer) {
                    Ok(local) => ServerAnswer::addresses(local, None),
                    Err(error) => ServerAnswer::refused(error.refusal()),
                }
            }
            SessionCall::CloseDatagram { endpoint } => {
                self.server.close_datagram(endpoint_id(endpoint));
                ServerAnswer::Done
            }
            SessionCall::QuoteErrors { endpoint, on } => {
                let (stack, _) = self.server.parts();
                done(stack.quote_errors(endpoint_id(endpoint), on))
            }
            SessionCall::PacketBytesMax { to } => {
                ServerAnswer::Value { value: self.server.stack().packet_bytes_max(to).into() }
            }
            SessionCall::DatagramAddress { endpoint } => {
                match self.server.stack().datagram_address(endpoint_id(endpoint)) {
                    Ok(local) => ServerAnswer::addresses(local, None),
                    Err(error) => ServerAnswer::refused(error.refusal()),
                }
            }
            SessionCall::CheckDatagrams { endpoint, to, from, len, count } => {
                self.check_datagrams(now, endpoint, (to, from), (len, count))
            }
            // The other functions answer all others.
            _ => return Err(gone()),
        })
    }

    /// Whether datagrams can be sent now; makes room for several, as [`Server::send_datagrams`].
    ///
    /// [`Server::send_datagrams`]: crate::server::Server::send_datagrams
    fn check_datagrams(
        &mut self,
        now: Instant,
        endpoint: Id,
        (to, from): (SocketAddr, Option<IpAddr>),
        (len, count): (u16, u16),
    ) -> ServerAnswer {
        let endpoint = endpoint_id(endpoint);
        if count > 1 {
            self.server.make_datagram_room(now, endpoint, count.into());
        }
        let way = (to, &Departure { from, ..Departure::default() });
        let what = (usize::from(len), usize::from(count));
        match self.server.stack().check_datagrams(endpoint, way, what) {
            Ok(bytes_max) => ServerAnswer::Value { value: bytes_max as u64 },
            Err(error) => ServerAnswer::refused(error.refusal()),
        }
    }

    fn set_option(&mut self, now: Instant, conn: Id, option: u32, value: u64) -> Answered {
        #[cfg(test)]
        crate::remote::tests::panic_where_asked(option, value);
        let option = decode_option(option, value).ok_or_else(gone)?;
        let (stack, memory) = self.server.parts();
        let conn = conn_id(conn);
        let set = stack.set_option(now, conn, option, memory);
        Ok(match set.and_then(|()| stack.info(conn)) {
            Ok(info) => ServerAnswer::Value { value: info.send_buffer_bytes.into() },
            Err(error) => ServerAnswer::refused(error.refusal()),
        })
    }

    /// Queues a copy in the server's own memory, and asks for its acknowledgment. A connection has
    /// one copy at a time, and nothing else with the server: that bounds the memory.
    fn send_copy(
        &mut self,
        now: Instant,
        conn: ConnId,
        copy: Box<[u8]>,
    ) -> Result<(), OperationError> {
        let (stack, memory) = self.server.parts();
        if stack.info(conn)?.queued_bytes > 0 {
            return stack.await_acks(conn).and(Err(OperationError::QueueFull));
        }
        let chunk = memory.keep(copy);
        let sent = stack.send(now, conn, chunk, memory);
        if sent.is_err() {
            memory.free(chunk.buf);
        }
        stack.await_acks(conn).and(sent)
    }

    fn sharing(&self, sharing: ListenSharing) -> Result<Sharing, LinkError> {
        let ListenSharing { flags, fast_open, cores } = sharing;
        let cores = cores.map(|chunk| self.bytes(chunk)).transpose()?;
        decode_sharing(flags, fast_open, cores.as_deref()).ok_or_else(gone)
    }

    fn refuse_port<E: Coded>(&self, error: &PortError<E>) -> ServerAnswer {
        let (refusal, detail, text) = encode_port_error(error);
        let text = match self.written(&text) {
            ServerAnswer::Written { chunk } if chunk.len > 0 => Some(chunk),
            _ => None,
        };
        ServerAnswer::Refused { refusal, detail, text }
    }

    /// Writes what a record has no field for into the call buffer, if there is room.
    fn written(&self, bytes: &[u8]) -> ServerAnswer {
        match self.ends.calls.write(0, 0, bytes) {
            Ok(()) => {
                let chunk = Chunk { buf: CALL_BUFFER, offset: 0, len: bytes.len() as u32 };
                ServerAnswer::Written { chunk }
            }
            Err(_) => ServerAnswer::refused(Refusal::TooLong),
        }
    }

    /// A copy of bytes in the call buffer.
    fn bytes(&self, chunk: Chunk) -> Result<Box<[u8]>, LinkError> {
        let Chunk { buf, offset, len } = chunk;
        if buf != CALL_BUFFER || len as usize > CALL_BYTES {
            return Err(gone());
        }
        let mut bytes = vec![0; len as usize];
        let read = self.ends.calls.read(0, offset as usize, &mut bytes);
        read.map(|()| bytes.into()).map_err(|_| gone())
    }
}
