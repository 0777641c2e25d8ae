//! Calls: what is rarely asked of the server, each with one answer that the caller waits for.
//!
//! Read first: `megapipe_shm`'s `record/call.rs`; `server.rs` of this crate for what each call
//! means. A call of a server that is gone returns an error, or what a server without the object
//! would return.
//!
//! Invariant: one call is under way at a time, and the call buffer is the server's from the call to
//! its answer. An answer that does not belong to its call ends the session.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use megapipe_link::LinkError;
use megapipe_shm::BufferArea;
use megapipe_shm::record::{Chunk, Command, Id, ListenSharing, Refusal, ServerAnswer, SessionCall};
use megapipe_stack::{
    BindError, ConnId, ConnInfo, ConnectError, DatagramId, DatagramSharing, Holder, ListenError,
    ListenerId, OperationError,
};

use super::Conn;
use super::{ProtocolFault, RemoteClient};
use crate::begin::ConnectStart;
use crate::error::{MoveRefusal, PortError};
use crate::limits::{CALL_BYTES, PREPENDED_BYTES_MAX};
use crate::remote::CALL_BUFFER;
use crate::remote::encoding::{
    AdoptedLaneListener, Coded, conn_id, decode_holders, decode_info, decode_listener,
    decode_port_error, encode_begin, encode_bind, encode_sharing, endpoint_id, id_of,
    id_of_endpoint, id_of_listener, listener_id, reason_of,
};
use crate::remote::lanes::AdoptedConn;
use crate::sharing::Sharing;
use crate::sleep::wait_readable;

/// The cookies of calls begin after this one: those of ops that open connections are below.
pub(super) const FIRST_COOKIE: u64 = 1 << 63;

/// What a server that is gone answers.
const fn gone() -> LinkError {
    LinkError::Gone { driver: "the server" }
}

/// A copy of what the server has written into the call buffer; `None`: there is no memory for it.
fn written(calls: &BufferArea, chunk: Chunk) -> Result<Option<Vec<u8>>, ProtocolFault> {
    let Chunk { buf, offset, len } = chunk;
    if buf != CALL_BUFFER || len as usize > CALL_BYTES {
        return Err(ProtocolFault);
    }
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len as usize).is_err() {
        return Ok(None);
    }
    bytes.resize(len as usize, 0);
    calls.read(0, offset as usize, &mut bytes).map_err(|_| ProtocolFault)?;
    Ok(Some(bytes))
}

/// The exchange of calls and answers.
impl RemoteClient {
    /// Makes a call, and waits for its answer, which comes after the ops before it and their
    /// events. `None`: the server is gone.
    pub(in crate::remote) fn call(&mut self, call: SessionCall) -> Option<ServerAnswer> {
        if !self.server.is_running() {
            return None;
        }
        self.last_call = self.last_call.wrapping_add(1) | FIRST_COOKIE;
        let cookie = self.last_call;
        self.put_wanted();
        self.put_back();
        self.ask(cookie, Command::Call(call));
        self.commit();
        self.wake_server();
        loop {
            // The end is looked for first: what was published before it is found after it.
            let lives = self.server.is_running();
            if let Some(answer) = self.set_aside(Some(cookie)) {
                return Some(answer);
            }
            if !lives {
                return None;
            }
            self.await_events();
        }
    }

    /// Submits a call of a test that polls the server itself. Returns its cookie.
    #[cfg(test)]
    pub(in crate::remote) fn submit_call(&mut self, call: SessionCall) -> u64 {
        self.last_call = self.last_call.wrapping_add(1) | FIRST_COOKIE;
        self.ask(self.last_call, Command::Call(call));
        self.commit();
        self.last_call
    }

    /// Its answer.
    #[cfg(test)]
    pub(in crate::remote) fn take_answer(&mut self, cookie: u64) -> Option<ServerAnswer> {
        self.set_aside(Some(cookie))
    }

    /// What lies in the call buffer by an answer.
    #[cfg(test)]
    pub(in crate::remote) fn read_call(&self, chunk: Chunk) -> Vec<u8> {
        written(&self.calls, chunk).expect("no fault").expect("there is memory")
    }

    /// How many calls were made.
    #[cfg(test)]
    pub(in crate::remote) const fn calls(&self) -> u64 {
        self.last_call - FIRST_COOKIE
    }

    /// Sleeps until the server publishes something, or ends.
    fn await_events(&mut self) {
        let was_armed = self.server.is_armed();
        self.server.arm();
        if self.waiting_events(1) == 0 && self.server.is_running() {
            // An interrupted sleep looks again.
            let _ = wait_readable([Some(self.server.wait_fd())], None);
        }
        // An application that has armed the doorbell polls it: it stays readable if it was rung.
        if was_armed {
            self.server.look_for_process();
        } else {
            self.server.disarm();
        }
    }

    /// What comes of an answer; `None`, and the end of the session, if it does not belong to its
    /// call.
    fn accept_answer<T>(&mut self, result: Result<T, ProtocolFault>) -> Option<T> {
        result.map_err(|fault| self.end_session(fault)).ok()
    }

    /// A call that is answered by `Done`, or refused.
    ///
    /// # Errors
    /// [`OperationError::Unknown`] also if the server is gone.
    pub(super) fn call_done(&mut self, call: SessionCall) -> Result<(), OperationError> {
        let result = match self.call(call) {
            None => Ok(Err(OperationError::Unknown)),
            Some(ServerAnswer::Done) => Ok(Ok(())),
            Some(other) => refused(other).map(Err),
        };
        self.accept_answer(result).unwrap_or(Err(OperationError::Unknown))
    }

    /// A call that is answered by a number, or refused.
    ///
    /// # Errors
    /// As `call_done`.
    pub(super) fn call_value(&mut self, call: SessionCall) -> Result<u64, OperationError> {
        let result = match self.call(call) {
            None => Ok(Err(OperationError::Unknown)),
            Some(ServerAnswer::Value { value }) => Ok(Ok(value)),
            Some(other) => refused(other).map(Err),
        };
        self.accept_answer(result).unwrap_or(Err(OperationError::Unknown))
    }

    /// A call that is answered by addresses, or refused.
    ///
    /// # Errors
    /// As `call_done`.
    fn call_addresses(
        &mut self,
        call: SessionCall,
    ) -> Result<(SocketAddr, Option<SocketAddr>), OperationError> {
        let result = match self.call(call) {
            None => Ok(Err(OperationError::Unknown)),
            Some(ServerAnswer::Addresses { local, remote }) => {
                Ok(Ok((local.into(), remote.map(Into::into))))
            }
            Some(other) => refused(other).map(Err),
        };
        self.accept_answer(result).unwrap_or(Err(OperationError::Unknown))
    }

    /// A call that is answered by what `accept` takes, or refused as a port is.
    ///
    /// # Errors
    /// [`PortError::Host`] also if the server is gone.
    fn call_port<T, E: Coded>(
        &mut self,
        call: SessionCall,
        accept: impl FnOnce(&mut Self, ServerAnswer) -> Result<T, ProtocolFault>,
    ) -> Result<T, PortError<E>> {
        let result = match self.call(call) {
            None => Ok(Err(PortError::Host(gone()))),
            Some(ServerAnswer::Refused { refusal, detail, text }) => {
                let text = text.map_or(Ok(None), |chunk| written(&self.calls, chunk));
                let text = text.map(Option::unwrap_or_default);
                text.and_then(|text| decode_port_error(refusal, detail, &text).ok_or(ProtocolFault))
                    .map(Err)
            }
            Some(answer) => accept(self, answer).map(Ok),
        };
        self.accept_answer(result).unwrap_or_else(|| Err(PortError::Host(gone())))
    }

    /// A call that is answered by what `decode` reads in the call buffer. The inner `None`: it is
    /// refused as `Unknown` or `TooLong`, or there is no memory for a copy.
    pub(in crate::remote) fn call_written<T>(
        &mut self,
        call: SessionCall,
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<Option<T>> {
        let result = match self.call(call)? {
            ServerAnswer::Written { chunk } => match written(&self.calls, chunk) {
                Ok(Some(bytes)) => decode(&bytes).ok_or(ProtocolFault).map(Some),
                Ok(None) => Ok(None),
                Err(fault) => Err(fault),
            },
            ServerAnswer::Refused { refusal: Refusal::Unknown | Refusal::TooLong, .. } => Ok(None),
            _ => Err(ProtocolFault),
        };
        self.accept_answer(result)
    }

    /// Puts bytes into the call buffer, for the next call. At most [`CALL_BYTES`].
    pub(in crate::remote) fn lend(&mut self, bytes: &[u8]) -> Chunk {
        let written = self.calls.write(0, 0, bytes);
        debug_assert!(written.is_ok(), "no caller has more");
        Chunk { buf: CALL_BUFFER, offset: 0, len: bytes.len() as u32 }
    }

    fn lend_sharing(&mut self, sharing: &Sharing) -> ListenSharing {
        let (flags, cores) = encode_sharing(sharing);
        let cores = cores.map(|cores| self.lend(&cores));
        ListenSharing { flags, fast_open: sharing.fast_open, cores }
    }
}

/// The error of an answer that refuses an operation.
fn refused(answer: ServerAnswer) -> Result<OperationError, ProtocolFault> {
    match answer {
        ServerAnswer::Refused { refusal, .. } => {
            OperationError::from_refusal(refusal).ok_or(ProtocolFault)
        }
        _ => Err(ProtocolFault),
    }
}

/// An answer without content.
fn done(answer: ServerAnswer) -> Result<(), ProtocolFault> {
    if answer == ServerAnswer::Done { Ok(()) } else { Err(ProtocolFault) }
}

/// Listeners.
impl RemoteClient {
    /// As [`Server::listen`](crate::Server::listen).
    ///
    /// # Errors
    /// As [`Server::listen`](crate::Server::listen); [`PortError::Host`] if the server is gone.
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.listen_reserved((local, 0), backlog, sharing)
    }

    /// As [`RemoteClient::listen`], with the cookie of the sockets that reserve the port; 0: none.
    ///
    /// # Errors
    /// As there.
    pub(in crate::remote) fn listen_reserved(
        &mut self,
        (local, reservation): (SocketAddr, u64),
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        if !self.offers.reserve_acceptor() {
            return Err(PortError::Stack(ListenError::NoMemory));
        }
        let sharing = self.lend_sharing(&sharing);
        let call = SessionCall::Listen { local, backlog, sharing, reservation };
        let listener = self.call_port(call, |_, answer| match answer {
            ServerAnswer::Listening { listener } => Ok(listener_id(listener)),
            _ => Err(ProtocolFault),
        })?;
        self.listeners.insert(listener, local);
        Ok(listener)
    }

    /// As [`Server::share`](crate::Server::share).
    ///
    /// # Errors
    /// As [`Server::share`](crate::Server::share); [`PortError::Host`] if the server is gone.
    pub fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        let (listener, sharing) = (id_of_listener(listener), self.lend_sharing(&sharing));
        self.call_port(SessionCall::Share { listener, sharing }, |_, answer| done(answer))
    }

    /// As [`megapipe_stack::Stack::set_listener_fast_open`].
    ///
    /// # Errors
    /// [`OperationError::Unknown`] if there is no such listener.
    pub fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        self.call_done(SessionCall::SetFastOpen { listener: id_of_listener(listener), pending_max })
    }

    /// As [`Server::is_listening`](crate::Server::is_listening).
    pub fn is_listening(&mut self, local: SocketAddr) -> bool {
        self.call_value(SessionCall::IsListening { local }) == Ok(1)
    }

    /// Stops listening. The address is free when this returns.
    pub fn unlisten(&mut self, listener: ListenerId) {
        self.offers.leave(listener);
        self.listeners.remove(listener);
        // A server that is gone listens no more.
        let _ = self.call_done(SessionCall::Unlisten { listener: id_of_listener(listener) });
    }

    /// Takes out a connection that no program has seen, as [`Server::take_out`]. Events of it that
    /// are on their way still come; [`RemoteClient::forget_moved`] ends that.
    ///
    /// [`Server::take_out`]: crate::Server::take_out
    pub fn take_out(&mut self, conn: ConnId) -> bool {
        let Some(server) = self.named(conn) else { return false };
        let is_out = self.call_done(SessionCall::TakeOut { conn: id_of(server) }).is_ok();
        if is_out {
            self.supersede(conn);
        }
        self.taken_out = is_out.then_some((conn, server));
        is_out
    }

    /// As [`Server::hand_over_taken`], with bytes that were received already and go before the
    /// unread ones.
    ///
    /// [`Server::hand_over_taken`]: crate::Server::hand_over_taken
    pub fn hand_over_taken(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some((_, server)) = self.taken_out.take_if(|(taken, _)| *taken == conn) else { return };
        let conn = id_of(server);
        // The last ones first: each goes before what was there.
        for part in bytes.rchunks(CALL_BYTES) {
            let chunk = self.lend(part);
            // A server that is gone has reset the connection.
            let _ = self.call_done(SessionCall::PrependUnread { conn, chunk });
        }
        let _ = self.call_done(SessionCall::HandOver { conn });
    }

    /// A call that moves or shares a connection: answered by what `accept` takes, or refused with
    /// a sentence.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(super) fn call_explained<T>(
        &mut self,
        call: SessionCall,
        accept: impl FnOnce(&mut Self, ServerAnswer) -> Result<T, ProtocolFault>,
    ) -> Result<T, MoveRefusal> {
        let result = match self.call(call) {
            None => Ok(Err(MoveRefusal::gone())),
            Some(ServerAnswer::Refused { detail, text, .. }) => {
                self.refused_move(detail, text).map(Err)
            }
            Some(answer) => accept(self, answer).map(Ok),
        };
        self.accept_answer(result).unwrap_or_else(|| Err(MoveRefusal::gone()))
    }

    /// As `call_explained`, answered by `Done` or `Value`.
    ///
    /// # Errors
    /// As there.
    fn call_move(&mut self, call: SessionCall) -> Result<u64, MoveRefusal> {
        self.call_explained(call, |_, answer| match answer {
            ServerAnswer::Done => Ok(0),
            ServerAnswer::Value { value } => Ok(value),
            _ => Err(ProtocolFault),
        })
    }

    /// As `call_explained`, answered by `Connecting`: the connection is the session's from now on.
    ///
    /// # Errors
    /// As there.
    fn call_adopting(&mut self, call: SessionCall) -> Result<ConnId, MoveRefusal> {
        self.call_explained(call, |client, answer| match answer {
            ServerAnswer::Connecting { conn } => client.adopt_answered(conn_id(conn)),
            _ => Err(ProtocolFault),
        })
    }

    /// Takes an established connection out of the stack, on its way to the kernel. Events of it
    /// that are on their way still come; [`RemoteClient::forget_moved`] ends that.
    ///
    /// # Errors
    /// [`MoveRefusal`]; the connection is as it was.
    pub(in crate::remote) fn move_out(&mut self, conn: ConnId) -> Result<(), MoveRefusal> {
        let server = self.named_soon(conn).ok_or_else(MoveRefusal::gone)?;
        self.call_move(SessionCall::MoveOut { conn: id_of(server) })?;
        self.supersede(conn);
        self.taken_out = Some((conn, server));
        Ok(())
    }

    /// Makes a kernel socket of the connection that was moved out, with bytes that were received
    /// already and go before the unread ones. Returns the cookie that it was given with.
    ///
    /// # Errors
    /// [`MoveRefusal`]; the connection was reset.
    pub(in crate::remote) fn finish_move(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<u64, MoveRefusal> {
        let taken = self.taken_out.take_if(|(taken, _)| *taken == conn);
        let (_, server) = taken.ok_or_else(MoveRefusal::gone)?;
        let conn = id_of(server);
        // The last ones first: each goes before what was there.
        for part in bytes.rchunks(CALL_BYTES) {
            let chunk = self.lend(part);
            // A server that is gone refuses the next call.
            let _ = self.call_done(SessionCall::PrependUnread { conn, chunk });
        }
        self.call_move(SessionCall::FinishMove { conn })
    }

    /// Takes a connection of the kernel's into the stack, whose socket was passed with a cookie.
    /// Returns its name, and the bytes that the kernel had received.
    ///
    /// # Errors
    /// [`MoveRefusal`]; the kernel goes on with the connection.
    pub(in crate::remote) fn take_over(
        &mut self,
        cookie: u64,
    ) -> Result<(ConnId, Vec<u8>), MoveRefusal> {
        let conn = self.call_adopting(SessionCall::TakeOver { cookie })?;
        let mut unread = Vec::new();
        while let Some(Some(part)) =
            self.call_written(SessionCall::TakeUnread, |part| Some(part.to_vec()))
            && !part.is_empty()
        {
            unread.extend(part);
            if unread.len() > PREPENDED_BYTES_MAX {
                self.end_session(ProtocolFault);
            }
        }
        // Bytes of the kernel's that are not acknowledged go before the first of the application.
        let queued_bytes = self.info(conn).map_or(0, |info| info.queued_bytes);
        let state = &mut self.conns[conn.index as usize];
        (state.has_copy, state.queued_bytes) = (queued_bytes > 0, queued_bytes);
        Ok((conn, unread))
    }

    /// A token owns a connection too, whose cookie was given; without a connection all that the
    /// session has. Bytes that come are not delivered until they are asked for again.
    ///
    /// # Errors
    /// [`MoveRefusal`]; nothing has changed.
    pub(in crate::remote) fn hold(
        &mut self,
        token: u64,
        conn: Option<ConnId>,
    ) -> Result<(), MoveRefusal> {
        let conn = match conn {
            Some(conn) => Some(self.named_soon(conn).ok_or_else(MoveRefusal::gone)?),
            None => None,
        };
        self.call_shared(SessionCall::Hold { token, conn: conn.map(id_of) })
    }

    /// Gives received bytes of a connection back, for whichever owner asks next. Also without bytes
    /// nothing more is delivered until it is asked for again; events that were on their way still
    /// come.
    ///
    /// # Errors
    /// How many of them, from the first on, were not taken, and [`MoveRefusal`].
    pub(in crate::remote) fn give_bytes_back(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<(), (usize, MoveRefusal)> {
        let gone = || (bytes.len(), MoveRefusal::gone());
        let server = self.named(conn).ok_or_else(gone)?;
        let mut left = bytes.len();
        if bytes.is_empty() {
            let chunk = self.lend(bytes);
            let call = SessionCall::GiveBack { conn: id_of(server), chunk };
            return self.call_shared(call).map_err(|refusal| (0, refusal));
        }
        // Each part goes before those that were given back earlier.
        for part in bytes.rchunks(CALL_BYTES) {
            let chunk = self.lend(part);
            let call = SessionCall::GiveBack { conn: id_of(server), chunk };
            self.call_shared(call).map_err(|refusal| (left, refusal))?;
            left -= part.len();
        }
        Ok(())
    }

    pub(super) fn call_shared(&mut self, call: SessionCall) -> Result<(), MoveRefusal> {
        self.call_explained(call, |_, answer| done(answer))
    }

    /// Adopts a connection that a token owns; 0: the token by which the session was opened. `None`:
    /// the token's only one.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(in crate::remote) fn adopt_shared(
        &mut self,
        token: u64,
        conn: Option<ConnId>,
    ) -> Result<AdoptedConn, MoveRefusal> {
        let call = SessionCall::Adopt { token, conn: conn.map(id_of) };
        self.call_explained(call, |client, answer| match answer {
            ServerAnswer::Connecting { conn } => {
                client.named_by_adoption(conn).map(AdoptedConn::Established)
            }
            ServerAnswer::AdoptedConnecting { conn } => {
                client.named_by_adoption(conn).map(AdoptedConn::Connecting)
            }
            ServerAnswer::ConnectFailed { reason } => Ok(AdoptedConn::Failed(reason_of(reason))),
            _ => Err(ProtocolFault),
        })
    }

    /// One that the session owns already keeps its name.
    fn named_by_adoption(&mut self, conn: Id) -> Result<ConnId, ProtocolFault> {
        match self.ours(conn) {
            Some(known) => Ok(known),
            None => self.adopt_answered(conn_id(conn)),
        }
    }

    /// A token owns a listener too.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(in crate::remote) fn hold_listener(
        &mut self,
        token: u64,
        listener: ListenerId,
    ) -> Result<(), MoveRefusal> {
        self.call_shared(SessionCall::HoldListener { token, listener: id_of_listener(listener) })
    }

    /// Adopts the listener that a token owns. Returns also whether the session did not have it.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub(in crate::remote) fn adopt_listener(
        &mut self,
        token: u64,
    ) -> Result<(AdoptedLaneListener, bool), MoveRefusal> {
        if !self.offers.reserve_acceptor() {
            return Err(MoveRefusal::no_memory());
        }
        self.call_explained(SessionCall::AdoptListener { token }, |client, answer| {
            let ServerAnswer::Written { chunk } = answer else { return Err(ProtocolFault) };
            let bytes = written(&client.calls, chunk)?.ok_or(ProtocolFault)?;
            let (listener, options) = decode_listener(&bytes).ok_or(ProtocolFault)?;
            let is_new = client.listeners.insert(listener, options.address);
            Ok(((listener, options), is_new))
        })
    }

    /// The daemon's sentence why a connection does not move.
    fn refused_move(&self, detail: u32, text: Option<Chunk>) -> Result<MoveRefusal, ProtocolFault> {
        let text = text.map_or(Ok(None), |chunk| written(&self.calls, chunk))?.unwrap_or_default();
        Ok(MoveRefusal::new(detail.cast_signed(), &String::from_utf8_lossy(&text)))
    }

    /// As [`Server::hand_over_offered`].
    ///
    /// [`Server::hand_over_offered`]: crate::Server::hand_over_offered
    pub fn hand_over_offered(&mut self, conn: ConnId) {
        let Some(server) = self.named(conn) else { return };
        // A server that is gone has reset the connection.
        let _ = self.call_done(SessionCall::HandOverOffered { conn: id_of(server) });
        self.forget_moved(conn);
    }

    /// Names the core that the application runs on from now on, where shards share a link.
    pub fn set_core(&mut self, core: Option<u32>) {
        // A server that is gone has no shard.
        let _ = self.call_done(SessionCall::SetCore { core });
    }
}

/// Connections and ports.
impl RemoteClient {
    /// Begins to connect from `local`, with what holds from the first segment on. Without `local`
    /// and without data on the SYN this does not wait for the server ([`RemoteClient::connect`]).
    ///
    /// # Errors
    /// As [`Server::connect`](crate::Server::connect); [`PortError::Host`] if the server is gone.
    pub fn connect_as(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        self.connect_reserved((remote, local, 0), begin)
    }

    /// As [`RemoteClient::connect_as`], with the cookie of the sockets that reserve the local port;
    /// 0: none.
    ///
    /// # Errors
    /// As there.
    pub(in crate::remote) fn connect_reserved(
        &mut self,
        (remote, local, reservation): (SocketAddr, Option<SocketAddr>, u64),
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        let resets_on_close = begin.resets_on_close && self.knows_resets;
        let begin = ConnectStart { resets_on_close, ..begin };
        // With Fast Open the first bytes are to go with the SYN: they need the connection's name at
        // the server, which the answer to a call has.
        let fits_record = !begin.fast_open && (begin.nodelay.is_none() || self.knows_connect_flags);
        if local.is_none() && fits_record {
            return Ok(self.connect_simply(remote, begin));
        }
        let call = SessionCall::Connect { remote, local, flags: encode_begin(begin), reservation };
        self.call_port(call, |client, answer| match answer {
            ServerAnswer::Connecting { conn } => client.adopt_answered(conn_id(conn)),
            _ => Err(ProtocolFault),
        })
    }

    /// As [`megapipe_stack::Stack::info`], with the received bytes on their way counted as unread.
    pub fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        let server = self.named(conn)?;
        let mut info =
            self.call_written(SessionCall::Info { conn: id_of(server) }, decode_info)??;
        info.unread_bytes = info.unread_bytes.saturating_add(self.published_bytes(conn));
        Some(info)
    }

    /// As [`megapipe_stack::Stack::addresses`].
    pub fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        // One that is being opened is named as soon as the server has seen the op.
        let server = self.named_soon(conn)?;
        let Conn { local, remote, .. } = self.conns[conn.index as usize];
        if let (Some(local), Some(remote)) = (local, remote) {
            return Some((local, remote));
        }
        let call = SessionCall::Addresses { conn: id_of(server) };
        let (local, remote) = self.call_addresses(call).ok()?;
        let state = &mut self.conns[conn.index as usize];
        (state.local, state.remote) = (Some(local), remote);
        Some((local, remote?))
    }

    /// As [`megapipe_stack::Stack::holders`].
    pub fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        let (first, last) = ports.into_inner();
        let mut holders = BTreeSet::new();
        // Halves are asked for where the call buffer has no room for all.
        let mut ranges = vec![(first, last)];
        while let Some((first, last)) = ranges.pop() {
            match self.call_written(SessionCall::Holders { ports: (first, last) }, decode_holders) {
                Some(Some(some)) => holders.extend(some),
                Some(None) if first < last => {
                    let middle = first + (last - first) / 2;
                    ranges.extend([(first, middle), (middle + 1, last)]);
                }
                _ => {}
            }
        }
        holders
    }

    /// As [`megapipe_stack::Stack::port_without_connections`].
    pub fn port_without_connections(
        &mut self,
        ports: RangeInclusive<u16>,
        from: u16,
    ) -> Option<u16> {
        let call = SessionCall::FreePort { ports: ports.into_inner(), from };
        let port = self.call_value(call).ok()?;
        u16::try_from(port).ok().filter(|port| *port != 0)
    }

    /// As [`megapipe_stack::Stack::has_undelivered`], for connections of all sessions.
    pub fn has_undelivered(&mut self) -> bool {
        self.call_value(SessionCall::HasUndelivered) == Ok(1)
    }
}

/// Datagrams.
impl RemoteClient {
    /// As [`Server::bind`](crate::Server::bind).
    ///
    /// # Errors
    /// As [`Server::bind`](crate::Server::bind); [`PortError::Host`] if the server is gone.
    pub fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        self.bind_reserved((local, 0), sharing)
    }

    /// As [`RemoteClient::bind`], with the cookie of the sockets that reserve the port; 0: none.
    ///
    /// # Errors
    /// As there.
    pub(in crate::remote) fn bind_reserved(
        &mut self,
        (local, reservation): (SocketAddr, u64),
        mut sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        sharing.excludes_others &= self.knows_exclusive_endpoints;
        let call = SessionCall::Bind { local, flags: encode_bind(sharing), reservation };
        self.call_port(call, |_, answer| match answer {
            ServerAnswer::Bound { endpoint } => Ok(endpoint_id(endpoint)),
            _ => Err(ProtocolFault),
        })
    }

    /// As [`megapipe_stack::Stack::connect_datagram`].
    ///
    /// # Errors
    /// As there; [`OperationError::Unknown`] if the server is gone.
    pub fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        let call = SessionCall::ConnectDatagram { endpoint: id_of_endpoint(endpoint), peer };
        self.call_addresses(call).map(|(local, _)| local)
    }

    /// As [`Server::close_datagram`](crate::Server::close_datagram). The address is free on return.
    pub fn close_datagram(&mut self, endpoint: DatagramId) {
        // A server that is gone has no endpoints.
        let _ = self.call_done(SessionCall::CloseDatagram { endpoint: id_of_endpoint(endpoint) });
    }

    /// As [`megapipe_stack::Stack::quote_errors`].
    ///
    /// # Errors
    /// As there; [`OperationError::Unknown`] if the server is gone.
    pub fn quote_errors(&mut self, endpoint: DatagramId, on: bool) -> Result<(), OperationError> {
        self.call_done(SessionCall::QuoteErrors { endpoint: id_of_endpoint(endpoint), on })
    }

    /// As [`megapipe_stack::Stack::packet_bytes_max`]; `None` if the server is gone.
    pub fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        u16::try_from(self.call_value(SessionCall::PacketBytesMax { to }).ok()?).ok()
    }

    /// As [`megapipe_stack::Stack::datagram_address`].
    pub fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        self.datagram_addresses(endpoint).map(|(local, _)| local)
    }

    /// The same, and the endpoint's peer; an older server names none.
    pub(in crate::remote) fn datagram_addresses(
        &mut self,
        endpoint: DatagramId,
    ) -> Option<(SocketAddr, Option<SocketAddr>)> {
        let call = SessionCall::DatagramAddress { endpoint: id_of_endpoint(endpoint) };
        self.call_addresses(call).ok()
    }
}
