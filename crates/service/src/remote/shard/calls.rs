//! Calls: each is done and answered before the next op.
//!
//! Read first: `megapipe_shm`'s `record/call.rs`. From a call to its answer the call buffer is the
//! server's; it is copied out before it is looked at.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use megapipe_link::Transport;
use megapipe_shm::record::{
    Chunk, Event as Says, Id, ListenSharing, Refusal, ServerAnswer, SessionCall,
};
use megapipe_stack::{
    BindError, ConnId, ConnOption, ConnectError, DatagramId, DatagramOwner, DatagramSharing,
    Departure, Holder, ListenError, ListenerId, Memory, OperationError,
};

use super::ops::{AskedCall, SessionWork};
use super::session_limits::{SessionFault, SessionLimits};
use super::shard_session::ReservingObject;
use crate::begin::ConnectStart;
use crate::descriptors::KeptPort;
use crate::error::PortError;
use crate::limits::{CALL_BYTES, PREPENDED_BYTES_MAX};
use crate::policy::{ENDPOINTS, LISTENERS};
use crate::remote::CALL_BUFFER;
use crate::remote::encoding::{
    Coded, conn_id, decode_begin, decode_bind, decode_option, decode_sharing, encode_holders,
    encode_info, encode_port_error, endpoint_id, id_of, id_of_endpoint, id_of_listener,
    listener_id,
};
use crate::sharing::{ListenerOptions, Sharing};
use crate::steering::Takes;

/// An answer; an error: no correct application makes this call.
pub(super) type Answered = Result<ServerAnswer, SessionFault>;

/// The answer of an operation without a result.
fn done<T>(result: Result<T, OperationError>) -> ServerAnswer {
    result.map_or_else(|error| ServerAnswer::refused(error.refusal()), |_| ServerAnswer::Done)
}

impl SessionWork<'_> {
    /// Answers a call, after the operations before it and their events: so bytes that the stack no
    /// longer counts as unread can be taken.
    ///
    /// # Errors
    /// No correct application makes this call.
    pub(super) fn answer_call(&mut self, (cookie, call): AskedCall) -> Result<(), SessionFault> {
        // A call that looks at a queue sees none that is empty while sends wait for it.
        let (stack, memory) = self.server.parts();
        self.session.deferred.retry_all(self.now, (stack, memory));
        let answer = self.answer(call)?;
        self.session.put_completion(cookie, Says::Answer(answer));
        Ok(())
    }

    /// Does a call.
    ///
    /// # Errors
    /// As `answer_call`.
    pub(super) fn answer(&mut self, call: SessionCall) -> Answered {
        Ok(match call {
            SessionCall::Sync => ServerAnswer::Done,
            SessionCall::SetCore { core } => {
                self.set_core(core);
                ServerAnswer::Done
            }
            SessionCall::Listen { local, backlog, sharing, reservation } => {
                let sharing = self.sharing(sharing)?;
                match self.listen((local, reservation), backlog, sharing) {
                    Ok(listener) => ServerAnswer::Listening { listener: id_of_listener(listener) },
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::Share { listener, sharing } => {
                let sharing = self.sharing(sharing)?;
                if !self.has_listener(listener_id(listener)) {
                    return Ok(ServerAnswer::refused(Refusal::NotBound));
                }
                let sharing = self.on_shards(sharing);
                match self.server.share(listener_id(listener), sharing) {
                    Ok(()) => ServerAnswer::Done,
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::SetFastOpen { listener, pending_max } => {
                if !self.has_listener(listener_id(listener)) {
                    return Ok(ServerAnswer::refused(Refusal::Unknown));
                }
                let (stack, _) = self.server.parts();
                let set = stack.set_listener_fast_open(listener_id(listener), pending_max);
                self.owners.set_fast_open(listener_id(listener), pending_max);
                done(set)
            }
            SessionCall::IsListening { local } => {
                ServerAnswer::Value { value: self.server.is_listening(local).into() }
            }
            SessionCall::Unlisten { listener } => {
                if self.has_listener(listener_id(listener)) {
                    self.unlisten(listener_id(listener));
                }
                ServerAnswer::Done
            }
            SessionCall::TakeOut { .. }
            | SessionCall::PrependUnread { .. }
            | SessionCall::HandOver { .. }
            | SessionCall::HandOverOffered { .. } => return self.answer_hand_over(call),
            SessionCall::MoveOut { .. }
            | SessionCall::FinishMove { .. }
            | SessionCall::TakeOver { .. }
            | SessionCall::TakeUnread => return self.answer_move(call),
            SessionCall::Hold { .. } | SessionCall::Adopt { .. } | SessionCall::GiveBack { .. } => {
                return self.answer_share(call);
            }
            SessionCall::HoldEndpoint { .. }
            | SessionCall::AdoptEndpoint { .. }
            | SessionCall::TakeDatagram { .. }
            | SessionCall::AwaitDatagram { .. }
            | SessionCall::GiveDatagramBack { .. } => return self.answer_shared_endpoint(call),
            SessionCall::HoldListener { .. } | SessionCall::AdoptListener { .. } => {
                return self.answer_shared_listener(call);
            }
            _ => return self.answer_connection(call),
        })
    }

    /// As `answer`, of calls that hand connections over to other listeners. One connection of the
    /// session is out at a time: another one that still is goes on first.
    fn answer_hand_over(&mut self, call: SessionCall) -> Answered {
        match call {
            SessionCall::TakeOut { conn } => {
                self.hand_over_taken();
                let conn = conn_id(conn);
                let is_its_alone = self.has_conn(conn) && !self.shared.owners.is_shared(conn);
                let handover = match is_its_alone {
                    true => self.server.take_out_of_stack(self.now, conn),
                    false => None,
                };
                let Some(mut handover) = handover else {
                    return Ok(ServerAnswer::refused(Refusal::Unknown));
                };
                handover.prepend(&self.take_shared_bytes(conn));
                let hand_over = self.owners.remove_conn(conn);
                self.finish_handed(conn, hand_over);
                self.session.taken_out = Some((conn, handover));
            }
            SessionCall::PrependUnread { conn, chunk } => {
                let bytes = self.bytes(chunk)?;
                self.session.prepended_bytes += bytes.len();
                if self.session.prepended_bytes > PREPENDED_BYTES_MAX {
                    return Err(SessionFault::Call);
                }
                if let Some((taken, handover)) = &mut self.session.taken_out
                    && *taken == conn_id(conn)
                {
                    handover.prepend(&bytes);
                }
                if let Some(moving) = &mut self.session.moving {
                    moving.prepend(conn_id(conn), &bytes);
                }
            }
            SessionCall::HandOver { conn } => {
                self.session.prepended_bytes = 0;
                if self.session.taken_out.as_ref().is_some_and(|(it, _)| *it == conn_id(conn)) {
                    self.hand_over_taken();
                }
            }
            SessionCall::HandOverOffered { conn } => {
                let conn = conn_id(conn);
                // One with other owners is not handed over: the session lets go of it.
                if !self.leave_shared(conn) && self.has_conn(conn) {
                    self.drop_shared(conn);
                    let hand_over = self.owners.remove_conn(conn);
                    self.finish_handed(conn, hand_over);
                    self.server.hand_over_offered(self.now, conn);
                }
            }
            // The other functions answer all others.
            _ => return Err(SessionFault::Call),
        }
        self.grant_withheld();
        Ok(ServerAnswer::Done)
    }

    /// Hands the connection that was taken out over to whatever listens at its address.
    pub(super) fn hand_over_taken(&mut self) {
        if let Some((_, handover)) = self.session.taken_out.take() {
            self.server.hand_over(self.now, handover);
        }
    }

    /// As `answer`, of calls about connections and ports.
    fn answer_connection(&mut self, call: SessionCall) -> Answered {
        let unknown = Ok(ServerAnswer::refused(Refusal::Unknown));
        Ok(match call {
            SessionCall::Connect { remote, local, flags, reservation } => {
                let begin = decode_begin(flags).ok_or(SessionFault::Call)?;
                match self.connect_from((remote, local, reservation), begin) {
                    Ok(conn) => ServerAnswer::Connecting { conn: id_of(conn) },
                    Err(error) => self.refuse_port(&error),
                }
            }
            SessionCall::Info { conn } if !self.has_conn(conn_id(conn)) => return unknown,
            SessionCall::Info { conn } => match self.server.stack().info(conn_id(conn)) {
                Ok(mut info) => {
                    info.unread_bytes += self.shared.unread_bytes(conn_id(conn));
                    self.written(&encode_info(&info))
                }
                Err(error) => ServerAnswer::refused(error.refusal()),
            },
            SessionCall::Addresses { conn } if !self.has_conn(conn_id(conn)) => return unknown,
            SessionCall::Addresses { conn } => match self.server.stack().addresses(conn_id(conn)) {
                Ok((local, remote)) => ServerAnswer::addresses(local, Some(remote)),
                Err(error) => ServerAnswer::refused(error.refusal()),
            },
            SessionCall::SetOption { conn, option, value } => {
                self.set_option(conn, option, value)?
            }
            SessionCall::SendCopy { conn, chunk } => {
                let copy = self.bytes(chunk)?;
                done(self.send_copy(conn_id(conn), copy))
            }
            SessionCall::Holders { ports: (first, last) } => {
                let holders: BTreeSet<Holder> = self.server.stack().holders(first..=last);
                self.written(&encode_holders(&holders))
            }
            SessionCall::FreePort { ports: (first, last), from } => {
                let port = self.server.stack().port_without_connections(first..=last, from);
                ServerAnswer::Value { value: port.unwrap_or(0).into() }
            }
            SessionCall::HasUndelivered => {
                ServerAnswer::Value { value: self.server.stack().has_undelivered().into() }
            }
            _ => return self.answer_datagram(call),
        })
    }

    /// As `answer`, of calls about endpoints for datagrams.
    fn answer_datagram(&mut self, call: SessionCall) -> Answered {
        let named = match call {
            SessionCall::ConnectDatagram { endpoint, .. }
            | SessionCall::CloseDatagram { endpoint }
            | SessionCall::QuoteErrors { endpoint, .. }
            | SessionCall::DatagramAddress { endpoint }
            | SessionCall::CheckDatagrams { endpoint, .. } => Some(endpoint_id(endpoint)),
            _ => None,
        };
        if named.is_some_and(|endpoint| !self.has_endpoint(endpoint)) {
            // A close has no other answer.
            let is_close = matches!(call, SessionCall::CloseDatagram { .. });
            let unknown = ServerAnswer::refused(Refusal::Unknown);
            return Ok(if is_close { ServerAnswer::Done } else { unknown });
        }
        Ok(match call {
            SessionCall::Bind { local, flags, reservation } => {
                self.bind((local, reservation), flags)
            }
            SessionCall::ConnectDatagram { endpoint, peer } => {
                let (stack, _) = self.server.parts();
                match stack.connect_datagram(endpoint_id(endpoint), peer) {
                    Ok(local) => ServerAnswer::addresses(local, None),
                    Err(error) => ServerAnswer::refused(error.refusal()),
                }
            }
            SessionCall::CloseDatagram { endpoint } => {
                self.close_endpoint(endpoint_id(endpoint));
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
                let (stack, endpoint) = (self.server.stack(), endpoint_id(endpoint));
                match stack.datagram_address(endpoint) {
                    Ok(local) => {
                        ServerAnswer::addresses(local, stack.datagram_peer(endpoint).ok().flatten())
                    }
                    Err(error) => ServerAnswer::refused(error.refusal()),
                }
            }
            SessionCall::CheckDatagrams { endpoint, to, from, len, count } => {
                self.check_datagrams(endpoint, (to, from), (len, count))
            }
            // The other functions answer all others.
            _ => return Err(SessionFault::Call),
        })
    }

    fn bind(&mut self, (local, reservation): (SocketAddr, u64), flags: u16) -> ServerAnswer {
        let count = (self.session.endpoints, self.session.limits.endpoints);
        let may = self.reserved_port(Transport::Udp, local, reservation);
        let may = may.and_then(|kept| self.check_quota(count, ENDPOINTS).map(|()| kept));
        let limits = &self.session.limits;
        let owner = DatagramOwner { program: limits.key, user: limits.user };
        let sharing = DatagramSharing { owner, ..decode_bind(flags) };
        let bound = match may {
            Ok(kept) => self.reserving(kept.as_ref(), |work| {
                work.server.bind(local, sharing).inspect(|endpoint| {
                    let object = ReservingObject::Endpoint(*endpoint);
                    work.session.reservations.extend(kept.clone().map(|kept| (object, kept)));
                })
            }),
            Err(refusal) => Err(PortError::<BindError>::Policy(refusal)),
        };
        match bound {
            Ok(endpoint) if !self.owners.reserve_endpoint(endpoint) => {
                self.server.close_datagram(endpoint);
                self.leave_reservation(ReservingObject::Endpoint(endpoint));
                self.refuse_port(&PortError::Stack(BindError::NoMemory))
            }
            Ok(endpoint) => {
                self.owners.add_endpoint(self.id, endpoint);
                self.session.endpoints += 1;
                self.count_for_user(ENDPOINTS, true);
                ServerAnswer::Bound { endpoint: id_of_endpoint(endpoint) }
            }
            Err(error) => self.refuse_port(&error),
        }
    }

    /// Closes an endpoint of the session; one with other owners goes on.
    pub(super) fn close_endpoint(&mut self, endpoint: DatagramId) {
        if !self.leave_endpoint(endpoint) {
            self.server.close_datagram(endpoint);
            self.leave_reservation(ReservingObject::Endpoint(endpoint));
            self.owners.remove_endpoint(endpoint);
        }
        self.session.endpoints -= 1;
        self.count_for_user(ENDPOINTS, false);
    }

    /// Whether datagrams can be sent now; makes room for several, as [`Server::send_datagrams`].
    ///
    /// [`Server::send_datagrams`]: crate::server::Server::send_datagrams
    fn check_datagrams(
        &mut self,
        endpoint: Id,
        (to, from): (SocketAddr, Option<IpAddr>),
        (len, count): (u16, u16),
    ) -> ServerAnswer {
        let endpoint = endpoint_id(endpoint);
        if count > 1 {
            self.server.make_datagram_room(self.now, endpoint, count.into());
        }
        let way = (to, &Departure { from, ..Departure::default() });
        let what = (usize::from(len), usize::from(count));
        match self.server.stack().check_datagrams(endpoint, way, what) {
            Ok(bytes_max) => ServerAnswer::Value { value: bytes_max as u64 },
            Err(error) => ServerAnswer::refused(error.refusal()),
        }
    }

    /// A refusal with a number of the kernel's and a sentence.
    pub(super) fn refused_by_host(&mut self, errno: i32, sentence: &str) -> ServerAnswer {
        self.session.counters.refused += 1;
        let text = match self.written(sentence.as_bytes()) {
            ServerAnswer::Written { chunk } if chunk.len > 0 => Some(chunk),
            _ => None,
        };
        let detail = errno.cast_unsigned();
        ServerAnswer::Refused { refusal: Refusal::NotPermitted, detail, text }
    }

    fn set_option(&mut self, conn: Id, option: u32, value: u64) -> Answered {
        #[cfg(test)]
        crate::remote::tests::panic_where_asked(option, value);
        let option = decode_option(option, value).ok_or(SessionFault::Call)?;
        let conn = conn_id(conn);
        if !self.has_conn(conn) {
            return Ok(ServerAnswer::refused(Refusal::Unknown));
        }
        let (stack, memory) = self.server.parts();
        let set = stack.set_option(self.now, conn, option, memory);
        let value = set.and_then(|()| match option {
            ConnOption::SendBuffer(_) => Ok(stack.info(conn)?.send_buffer_bytes.into()),
            // Of others the client awaits no value.
            _ => Ok(0),
        });
        Ok(match value {
            Ok(value) => ServerAnswer::Value { value },
            Err(error) => ServerAnswer::refused(error.refusal()),
        })
    }

    /// Queues a copy in the server's own memory, and asks for its acknowledgment. A connection has
    /// one copy at a time, and nothing else with the server: that bounds the memory, as does the
    /// session's limit of copies.
    fn send_copy(&mut self, conn: ConnId, copy: Box<[u8]>) -> Result<(), OperationError> {
        if !self.has_conn(conn) {
            return Err(OperationError::Unknown);
        }
        let (stack, memory) = self.server.parts();
        let is_idle = stack.info(conn)?.queued_bytes == 0;
        let its = memory.of_mut(self.id).filter(|_| is_idle);
        let Some(chunk) = its.and_then(|its| its.keep(self.id, copy)) else {
            return stack.await_acks(conn).and(Err(OperationError::QueueFull));
        };
        let sent = stack.send(self.now, conn, chunk, memory);
        if sent.is_err() {
            memory.free(chunk.buf);
        }
        stack.await_acks(conn).and(sent)
    }

    fn sharing(&self, sharing: ListenSharing) -> Result<Sharing, SessionFault> {
        let ListenSharing { flags, fast_open, cores } = sharing;
        let cores = cores.map(|chunk| self.bytes(chunk)).transpose()?;
        decode_sharing(flags, fast_open, cores.as_deref()).ok_or(SessionFault::Call)
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
    pub(super) fn written(&self, bytes: &[u8]) -> ServerAnswer {
        match self.session.ends.calls.write(0, 0, bytes) {
            Ok(()) => {
                let chunk = Chunk { buf: CALL_BUFFER, offset: 0, len: bytes.len() as u32 };
                ServerAnswer::Written { chunk }
            }
            Err(_) => ServerAnswer::refused(Refusal::TooLong),
        }
    }

    /// A copy of bytes in the call buffer.
    pub(super) fn bytes(&self, chunk: Chunk) -> Result<Box<[u8]>, SessionFault> {
        let Chunk { buf, offset, len } = chunk;
        if buf != CALL_BUFFER || len as usize > CALL_BYTES {
            return Err(SessionFault::Call);
        }
        let mut bytes = vec![0; len as usize];
        let read = self.session.ends.calls.read(0, offset as usize, &mut bytes);
        read.map(|()| bytes.into()).map_err(|_| SessionFault::Call)
    }
}

/// Listeners.
impl SessionWork<'_> {
    /// Listens. Where another session listens at the address already and neither is exclusive
    /// there, both are acceptors of one listener (SO_REUSEPORT, for the sessions of one user).
    fn listen(
        &mut self,
        (local, reservation): (SocketAddr, u64),
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        let count = (self.session.listeners, self.session.limits.listeners);
        let may = self.reserved_port(Transport::Tcp, local, reservation);
        let kept = may.map_err(PortError::Policy)?;
        self.check_quota(count, LISTENERS).map_err(PortError::Policy)?;
        let listener =
            self.reserving(kept.as_ref(), |work| work.listen_at(local, backlog, sharing))?;
        let object = ReservingObject::Listener(listener);
        self.session.reservations.extend(kept.map(|kept| (object, kept)));
        Ok(listener)
    }

    /// Makes a port ours that sockets of the client reserve, for what `make` makes there. Where
    /// that fails, the port is given back.
    fn reserving<T, E>(
        &mut self,
        kept: Option<&Arc<KeptPort>>,
        make: impl FnOnce(&mut Self) -> Result<T, PortError<E>>,
    ) -> Result<T, PortError<E>> {
        if let Some(kept) = kept {
            self.server.reserve_port(kept).map_err(PortError::Host)?;
        }
        make(self).inspect_err(|_| {
            kept.into_iter().for_each(|kept| self.server.leave_reservation(kept));
        })
    }

    /// A listener or an endpoint gives its port back, which stays ours while it has connections.
    /// Returns its sockets.
    fn leave_reservation(&mut self, object: ReservingObject) -> Option<Arc<KeptPort>> {
        let reservations = &mut self.session.reservations;
        let place = reservations.iter().position(|(of, _)| *of == object)?;
        let (_, kept) = reservations.swap_remove(place);
        self.server.leave_reservation(&kept);
        Some(kept)
    }

    /// Begins to connect. A port of the application's choice is reserved as a listener's is, and
    /// stays ours as long as it has connections.
    pub(super) fn connect_from(
        &mut self,
        (remote, local, reservation): (SocketAddr, Option<SocketAddr>, u64),
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        let kept = match local {
            Some(local) => self.reserved_port(Transport::Tcp, local, reservation),
            None => Ok(None),
        };
        let kept = kept.map_err(PortError::Policy)?;
        self.check_connect(remote).map_err(|reached| PortError::Policy(reached.into()))?;
        let conn =
            self.reserving(kept.as_ref(), |work| work.begin_connection((remote, local), begin))?;
        // It goes with the last connection at the port.
        kept.iter().for_each(|kept| self.server.leave_reservation(kept));
        Ok(conn)
    }

    /// Begins to connect, where policy and quotas allow it. The connection is the session's.
    pub(super) fn begin_connection(
        &mut self,
        (remote, local): (SocketAddr, Option<SocketAddr>),
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        let conn = self.server.connect_as(self.now, (remote, local), begin)?;
        self.owners.add_conn(self.id, conn, true);
        self.owners.count_destination(self.id, conn, remote);
        self.owners.set_reset_on_close(self.id, conn, begin.resets_on_close);
        Ok(conn)
    }

    /// As `listen`, where the session may have the port.
    fn listen_at(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        let backlog = backlog.min(self.session.limits.waiting);
        let user = self.session.limits.user;
        let has_private = self.server.parts().1.has_private();
        let known = match has_private && !sharing.is_exclusive {
            true => self.owners.listener_at(self.id, local, user),
            false => None,
        };
        let listener = match known {
            Some(known) => known,
            None => {
                let on_shards = self.on_shards(sharing.clone());
                let listener = self.listen_alone((local, backlog, on_shards), has_private)?;
                let options = ListenerOptions { address: local, backlog, sharing };
                self.owners.set_options(listener, options, user);
                listener
            }
        };
        if known.is_some() && !self.owners.reserve_listener(listener) {
            return Err(PortError::Stack(ListenError::NoMemory));
        }
        self.join_listener(listener);
        Ok(listener)
    }

    /// The first session listens at an address. There is a place for it among the owners.
    fn listen_alone(
        &mut self,
        (local, backlog, sharing): (SocketAddr, u32, Sharing),
        has_private: bool,
    ) -> Result<ListenerId, PortError<ListenError>> {
        // Bytes of a connection that no session owns yet are in no session's memory.
        let pool = match has_private {
            true => {
                let limits = &self.session.limits;
                let memory = self.server.parts().1;
                let opened = memory.open_account(limits.shard, limits.rights.as_ref());
                opened.ok_or(PortError::Stack(ListenError::NoMemory))?
            }
            false => self.id,
        };
        self.server.set_pool(pool);
        let listening = self.server.listen(self.now, local, backlog, sharing);
        self.server.set_pool(self.id);
        let listening = listening.and_then(|listener| {
            if self.owners.reserve_listener(listener) && self.join_group(listener) {
                return Ok(listener);
            }
            self.server.unlisten(self.now, listener);
            Err(PortError::Stack(ListenError::NoMemory))
        });
        match listening {
            Ok(listener) => self.owners.set_listener_pool(listener, pool),
            Err(_) => self.server.parts().1.close_account(pool),
        }
        listening
    }

    /// A listener counts for the session's user. Returns whether there is memory for that.
    fn join_group(&mut self, listener: ListenerId) -> bool {
        let SessionLimits { rights, shard, .. } = &self.session.limits;
        let (stack, _) = self.server.parts();
        let its = rights.as_deref().map(|rights| (*shard, rights));
        its.is_none_or(|its| self.groups.join(stack, listener, its).is_ok())
    }

    /// The session leaves a listener, which ends with its last owner. Connections that were not
    /// offered go to its other sessions, or wait while tokens own it.
    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        let kept = self.leave_reservation(ReservingObject::Listener(listener));
        let credit = match self.hand_overs.number_of(listener) {
            Some(number) => self.hand_overs.leave(self.now, number, self.id),
            None => self.server.withdraw(listener, self.id),
        };
        self.session.credit = self.session.credit.saturating_sub(credit);
        self.session.withheld.retain(|it| it.listener != listener);
        self.session.listeners -= 1;
        self.count_for_user(LISTENERS, false);
        self.owners.remove_listener(self.id, listener);
        let id = self.id;
        self.share_work().leave_listener(listener, id);
        if let Some(kept) = kept.filter(|kept| kept.reservation().are_listening()) {
            self.server.give_back_reserved(self.now, &kept);
        }
    }

    /// What a listener is among the shards. A session that has all shards takes what each of them
    /// has: a mask names cores of applications, and the shards run on those of the daemon. And it
    /// is exclusive by what this shard has.
    fn on_shards(&self, sharing: Sharing) -> Sharing {
        match self.session.limits.is_on_all_shards {
            true => Sharing { takes: Takes::Rest, is_exclusive: false, ..sharing },
            false => sharing,
        }
    }

    /// Names the core that the application runs on, if the shard is its own.
    fn set_core(&mut self, core: Option<u32>) {
        let is_shared = self.server.parts().1.has_private();
        if let Some(attachment) = self.server.attachment().filter(|_| !is_shared) {
            attachment.set_core(core);
        }
    }
}
