//! Operations: what an application submits, done in order.
//!
//! Invariant: nothing is done with a name before it was found to be the session's own
//! (`owners.rs`).

use std::net::SocketAddr;
use std::sync::Arc;

use megapipe_link::Transport;
use megapipe_shm::record;
use megapipe_shm::record::{
    Bufs, Command, Event as Says, Id, Ids, NO_ANSWER, Op, ServerAnswer, SessionCall,
};
use megapipe_stack::{ConnId, DatagramId, Departure, Instant, ListenerId, Memory, PoolId};

use super::deferred::End;
use super::hand_overs::HandOvers;
use super::owners::ObjectOwners;
use super::session_limits::{SessionFault, SessionLimits};
use super::shard_session::{ShardSession, WithheldCredit};
use super::shared_conns::SharedConns;
use super::user_groups::UserGroups;
use crate::client_ports::is_client_port;
use crate::connection_manager::AcceptorId;
use crate::descriptors::KeptPort;
use crate::error::PortError;
use crate::limits::{ACCEPTORS_MAX, SESSION_CREDIT_MAX};
use crate::policy::{
    CONNECTING, CONNECTIONS, LISTENERS, PolicyRefusal, QuotaPair, QuotaReached, SessionRights,
};
use crate::remote::SharedMemory;
use crate::remote::encoding::{
    Coded, conn_id, decode_begin, encode_port_error, endpoint_id, id_of, listener_id,
};
use crate::server::Server;

/// One session, and what its operations change.
pub(super) struct SessionWork<'shard> {
    pub(super) now: Instant,
    pub(super) id: PoolId,
    pub(super) session: &'shard mut ShardSession,
    pub(super) server: &'shard mut Server<SharedMemory>,
    pub(super) owners: &'shard mut ObjectOwners,
    pub(super) hand_overs: &'shard mut HandOvers,
    pub(super) groups: &'shard mut UserGroups,
    pub(super) shared: &'shard mut SharedConns,
}

/// Whether a poll goes on with the next operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpStep {
    Next,
    /// A call is to be answered.
    Stop,
}

/// A call, and its cookie.
pub(super) type AskedCall = (u64, SessionCall);

impl SessionWork<'_> {
    /// Does operations, `share` at most, up to the first call. That one is not done, and postponed.
    /// Returns how many were taken.
    ///
    /// # Errors
    /// What no correct application submits.
    #[inline]
    pub(super) fn take_ops(&mut self, share: u32) -> Result<u32, SessionFault> {
        if self.session.awaits_answer {
            return self.take_ops_with_answers(share);
        }
        self.take_ops_as::<false>(share)
    }

    /// As `take_ops`, while a hand-over is to learn of first bytes. Apart, so that sending costs a
    /// session without hand-over nothing.
    #[inline(never)]
    fn take_ops_with_answers(&mut self, share: u32) -> Result<u32, SessionFault> {
        self.take_ops_as::<true>(share)
    }

    #[inline(always)]
    fn take_ops_as<const NOTES_ANSWERS: bool>(&mut self, share: u32) -> Result<u32, SessionFault> {
        let waiting = self.session.ends.ops.peek(share).map_err(|_| SessionFault::Ring)?;
        if waiting == 0 {
            return Ok(0);
        }
        let mut done = 0;
        while done < waiting.min(share) {
            let Some(record) = self.session.ends.ops.take() else { break };
            done += 1;
            if let Some((conn, chunk)) = Op::parse_bytes(&record) {
                // Nearly all of them.
                if NOTES_ANSWERS && self.session.awaits_answer {
                    self.note_answer(conn_id(conn));
                }
                self.send(conn_id(conn), chunk)?;
                continue;
            }
            let op = Op::parse(&record).map_err(|_| SessionFault::Record)?;
            if self.execute(op)? == OpStep::Stop {
                break;
            }
        }
        self.session.ends.ops.release();
        self.session.counters.ops += u64::from(done);
        // A correct application has no more chunks under way than it has buffers.
        let (_, memory) = self.server.parts();
        if let Some(memory) = memory.of(self.id) {
            if memory.is_overdrawn() {
                return Err(SessionFault::Buffer);
            }
            self.session.deferred.return_unused(memory.in_stack());
        }
        Ok(done)
    }

    #[inline(always)]
    fn execute(&mut self, op: Op) -> Result<OpStep, SessionFault> {
        match op.command {
            Command::Receive { conns } => self.receive(conns),
            Command::Return { bufs } => self.take_back(bufs),
            _ => return self.execute_rare(op),
        }
        Ok(OpStep::Next)
    }

    #[inline]
    fn send(&mut self, conn: ConnId, chunk: record::Chunk) -> Result<(), SessionFault> {
        let is_its = self.owners.has_conn(self.id, conn) || self.use_shared(conn);
        let (stack, memory) = self.server.parts();
        let its = memory.of_mut(self.id).ok_or(SessionFault::Buffer)?;
        let chunk = its.sent_chunk(self.id, chunk).ok_or(SessionFault::Buffer)?;
        if is_its {
            self.session.deferred.send(self.now, conn, chunk, (stack, memory));
        } else {
            // A connection that is over needs no answer: its end is on the way.
            memory.free(chunk.buf);
            self.note_name(conn);
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, conns: Ids) {
        for conn in conns.iter().map(conn_id) {
            if self.owners.has_conn(self.id, conn) || self.use_shared(conn) {
                self.receive_one(conn);
            } else {
                self.note_name(conn);
            }
        }
    }

    #[inline]
    fn take_back(&mut self, bufs: Bufs) {
        if let Some(memory) = self.server.parts().1.of(self.id) {
            bufs.iter().for_each(|buf| memory.take_back(buf));
        }
    }

    /// Counts a connection's name that is another session's.
    #[cold]
    fn note_name(&mut self, conn: ConnId) {
        let is_foreign = self.owners.of_conn(conn).is_some();
        self.session.counters.foreign_names += u64::from(is_foreign);
    }

    /// Whether the session has a connection; counts the name if another one does.
    pub(super) fn has_conn(&mut self, conn: ConnId) -> bool {
        let has = self.owners.has_conn(self.id, conn) || self.use_shared(conn);
        if !has {
            self.note_name(conn);
        }
        has
    }

    /// The same of a listener.
    pub(super) fn has_listener(&mut self, listener: ListenerId) -> bool {
        let has = self.owners.has_listener(self.id, listener);
        let is_foreign = !has && self.owners.is_listener(listener);
        self.session.counters.foreign_names += u64::from(is_foreign);
        has
    }

    /// The same of an endpoint.
    pub(super) fn has_endpoint(&mut self, endpoint: DatagramId) -> bool {
        let owner = self.owners.of_endpoint(endpoint);
        let has = owner == Some(self.id) || self.use_endpoint(endpoint);
        self.session.counters.foreign_names += u64::from(!has && owner.is_some());
        has
    }

    /// As `execute`, of operations that do not come with each message.
    #[inline(never)]
    fn execute_rare(&mut self, op: Op) -> Result<OpStep, SessionFault> {
        match op.command {
            Command::Shutdown { conn } => self.end_conn(conn_id(conn), End::Shutdown),
            Command::Close { conn } => self.end_conn(conn_id(conn), End::Close),
            Command::Abort { conn } => self.abort(conn_id(conn)),
            Command::AwaitAcks { conn } => {
                if self.has_conn(conn_id(conn)) {
                    // It may be over: its end is on the way then.
                    let _ = self.server.parts().0.await_acks(conn_id(conn));
                }
            }
            Command::Accept { listener, credit } => {
                let listener = listener_id(listener);
                if self.has_listener(listener) {
                    self.accept(listener, AcceptorId(op.cookie), credit);
                }
            }
            Command::ResetOnClose { conn, on } => {
                if self.has_conn(conn_id(conn)) {
                    self.owners.set_reset_on_close(self.id, conn_id(conn), on);
                }
            }
            Command::Connect { remote, local, flags } => {
                let begin = decode_begin(flags).ok_or(SessionFault::Call)?;
                let may = match local {
                    Some(local) => self.reserved_port(Transport::Tcp, local, 0).map(|_| ()),
                    None => Ok(()),
                };
                let begun = match may {
                    Err(refusal) => Err(PortError::Policy(refusal)),
                    Ok(()) => match self.check_connect(remote) {
                        Ok(()) => self.begin_connection((remote, local), begin),
                        Err(reached) => {
                            self.session
                                .put_completion(op.cookie, Says::Answer(over_quota(reached)));
                            return Ok(OpStep::Next);
                        }
                    },
                };
                let answer = match begun {
                    Ok(conn) => ServerAnswer::Connecting { conn: id_of(conn) },
                    Err(error) => ServerAnswer::refused(encode_port_error(&error).0),
                };
                self.session.put_completion(op.cookie, Says::Answer(answer));
            }
            Command::Claim { conn, acceptor, receives } => self.claim(conn, acceptor, receives),
            Command::SendDatagram { .. } => self.send_datagram(op.command)?,
            Command::Call(call @ SessionCall::SetOption { .. }) if op.cookie == NO_ANSWER => {
                // Looks at no queue: sends that wait need no other try before.
                self.answer(call)?;
            }
            Command::Call(call) => {
                self.session.postponed = Some((op.cookie, call));
                return Ok(OpStep::Stop);
            }
            // Done elsewhere.
            Command::Send { .. } | Command::Receive { .. } | Command::Return { .. } => {}
        }
        Ok(OpStep::Next)
    }

    /// Ends a connection, or its sending direction, after what the application has sent.
    pub(super) fn end_conn(&mut self, conn: ConnId, end: End) {
        if end == End::Close && self.leave_shared(conn) || !self.has_conn(conn) {
            return;
        }
        if end == End::Close && self.drop_unread(conn) {
            return self.abort(conn);
        }
        let (stack, memory) = self.server.parts();
        // One that is over needs no end.
        let _ = self.session.deferred.end(self.now, conn, end, (stack, memory));
        if end == End::Close {
            self.let_go(conn);
        }
    }

    /// Resets a connection.
    pub(super) fn abort(&mut self, conn: ConnId) {
        if !self.leave_shared(conn) && self.has_conn(conn) {
            self.drop_unread(conn);
            self.shared.end_handshake(conn);
            self.session.deferred.drop_of(conn, self.server.parts().1);
            self.server.abort(self.now, conn);
            debug_assert!(self.server.stack().addresses(conn).is_err(), "it is freed at once");
            let hand_over = self.owners.remove_conn(conn);
            self.finish_handed(conn, hand_over);
            self.grant_withheld();
        }
    }

    /// The application has let go of a connection, which may go on in the stack.
    fn let_go(&mut self, conn: ConnId) {
        // The stack reports no end of it.
        self.shared.end_handshake(conn);
        let hand_over = self.owners.close_conn(conn);
        self.finish_handed(conn, hand_over);
        self.grant_withheld();
        self.forget_ended();
    }

    /// Forgets closed connections that the stack no longer has, where there are many: it reports no
    /// end of a connection that its application has closed.
    fn forget_ended(&mut self) {
        let counts = self.owners.counts(self.id);
        if counts.closed > self.session.limits.connections / 4 {
            self.look_at_closed(CLOSED_LOOKS);
        }
    }

    /// Forgets connections that are over, of so many closed ones, and grants credit that was
    /// withheld.
    pub(super) fn recount(&mut self, looks: usize) {
        let closed = self.owners.counts(self.id).closed as usize;
        self.look_at_closed(looks.min(closed));
        for _ in 0..self.session.withheld.len() {
            self.grant_withheld();
        }
        self.return_chunks();
    }

    /// Gives all chunks back that the session drew from its quotas and does not need now.
    pub(super) fn return_chunks(&mut self) {
        if let Some(memory) = self.server.parts().1.of(self.id) {
            self.session.deferred.return_all_unused(memory.in_stack());
        }
    }

    fn look_at_closed(&mut self, looks: usize) {
        for _ in 0..looks {
            let Some(conn) = self.owners.first_conn(self.id, true) else { return };
            let is_over = self.server.stack().addresses(conn).is_err();
            // It becomes the last of those that are not over. No hand-over counts it any more.
            let _ = match is_over {
                true => self.owners.remove_conn(conn),
                false => self.owners.close_conn(conn),
            };
        }
    }

    /// Whether the limits let the session begin a connection to a destination.
    ///
    /// # Errors
    /// [`QuotaReached`] names the quota.
    pub(super) fn check_connect(&mut self, remote: SocketAddr) -> Result<(), QuotaReached> {
        let (counts, limits) = (self.owners.counts(self.id), &self.session.limits);
        let of_lane = (counts.open.saturating_add(counts.closed), counts.connecting);
        let (held, connecting) = limits
            .rights
            .as_ref()
            .map_or(of_lane, |its| (its.count(CONNECTIONS.0), its.count(CONNECTING.0)));
        let of_channel = [
            (held, limits.connections, CONNECTIONS.0),
            (connecting, limits.connecting, CONNECTING.0),
        ];
        let reached = of_channel.into_iter().find(|(has, limit, _)| has >= limit);
        let may = match (reached, &limits.rights) {
            (None, None) => Ok(()),
            (None, Some(rights)) => {
                let rights = Arc::clone(rights);
                let may = self.check_destination(remote, &rights);
                may.and_then(|()| rights.begin_connect(self.now))
            }
            (Some((_, limit, kind)), rights) => {
                rights.iter().for_each(|rights| rights.note_reached(kind));
                Err(QuotaReached { kind, limit })
            }
        };
        may.inspect_err(|_| {
            self.session.counters.refused += 1;
            self.forget_ended();
        })
    }

    /// Whether there may be one more port towards a destination. Connections that the application
    /// has closed may be over.
    fn check_destination(
        &mut self,
        remote: SocketAddr,
        rights: &Arc<SessionRights>,
    ) -> Result<(), QuotaReached> {
        let may = self.owners.check_destination(self.id, remote, rights);
        may.or_else(|_| {
            let closed = self.owners.counts(self.id).closed as usize;
            self.look_at_closed(closed.min(DESTINATION_LOOKS));
            self.owners.check_destination(self.id, remote, rights)
        })
        .inspect_err(|reached| rights.note_reached(reached.kind))
    }

    /// Whether an address to listen at, bind to, or connect from is the session's.
    ///
    /// # Errors
    /// [`PolicyRefusal::Port`] names the rule.
    pub(super) fn check_port(&mut self, local: SocketAddr) -> Result<(), PolicyRefusal> {
        let Some(rights) = &self.session.limits.rights else { return Ok(()) };
        rights.check_port(local).map_err(|refusal| {
            self.session.counters.refused += 1;
            refusal.into()
        })
    }

    /// The sockets that reserve a port. Where the host's address is shared, the kernel's rules for
    /// them decide about it. Elsewhere, for ports that the stack chooses from, and for sessions
    /// that have all ports, none are needed.
    ///
    /// # Errors
    /// [`PolicyRefusal::Port`] names the rule.
    pub(super) fn reserved_port(
        &mut self,
        transport: Transport,
        local: SocketAddr,
        cookie: u64,
    ) -> Result<Option<Arc<KeptPort>>, PolicyRefusal> {
        let is_chosen = !is_client_port(local.port());
        if !(self.server.caps().shares_host_address && is_chosen) {
            return self.check_port(local).map(|()| None);
        }
        let limits = &self.session.limits;
        let kept = limits.descriptors.as_ref().and_then(|passed| passed.port(cookie));
        let is_its = |kept: &Arc<KeptPort>| {
            let reservation = kept.reservation();
            reservation.transport() == transport && reservation.stands_for(local)
        };
        match kept.filter(is_its) {
            None if cookie == 0 && limits.rights.is_none() => Ok(None),
            None => {
                self.session.counters.refused += 1;
                let driver = self.server.caps().driver;
                Err(PolicyRefusal::Port(format!(
                    "the kernel decides about ports of {driver}, and the program has passed no \
                     socket that is bound to {} {local}",
                    if transport == Transport::Tcp { "TCP" } else { "UDP" }
                )))
            }
            kept => Ok(kept),
        }
    }

    /// Whether the session, which has `held` of a kind and may have `limit`, and its user may have
    /// one more.
    ///
    /// # Errors
    /// [`PolicyRefusal::Quota`] names the quota and its limit.
    pub(super) fn check_quota(
        &mut self,
        (held, limit): (u32, u32),
        (own, of_user): QuotaPair,
    ) -> Result<(), PolicyRefusal> {
        let SessionLimits { rights, shard, .. } = &self.session.limits;
        // A listener is on all lanes, an endpoint on one.
        let of_channel = rights.as_ref().filter(|_| own != LISTENERS.0);
        let held = of_channel.map_or(held, |rights| rights.count(own));
        let reached = if held >= limit {
            rights.iter().for_each(|rights| rights.note_reached(own));
            Err(QuotaReached { kind: own, limit })
        } else {
            rights.as_ref().map_or(Ok(()), |rights| rights.check_on(of_user, *shard))
        };
        reached.map_err(|reached| {
            self.session.counters.refused += 1;
            reached.into()
        })
    }

    /// The session has one more or less of a kind that is counted for its user.
    pub(super) fn count_for_user(&self, kinds: QuotaPair, is_more: bool) {
        let SessionLimits { rights, shard, .. } = &self.session.limits;
        rights.iter().for_each(|rights| rights.change_on(kinds, *shard, is_more));
    }

    /// An acceptor takes so many more connections, as far as the limits let it. The rest is
    /// withheld until connections of the session end.
    pub(super) fn accept(&mut self, listener: ListenerId, acceptor: AcceptorId, count: u32) {
        let held = self.owners.counts(self.id).open.saturating_add(self.session.credit);
        let limit = self.session.limits.connections;
        let most = limit.saturating_sub(held);
        let most = most.min(SESSION_CREDIT_MAX.saturating_sub(self.session.credit));
        let most = self.session.limits.rights.as_ref().map_or(most, |its| {
            let of_channel = limit.saturating_sub(its.count(CONNECTIONS.0));
            if of_channel == 0 {
                its.note_reached(CONNECTIONS.0);
            }
            most.min(of_channel).min(its.room(CONNECTIONS.1))
        });
        let granted = count.min(most);
        if granted > 0 {
            let acceptor = (self.id, acceptor);
            let accepted = match self.hand_overs.number_of(listener) {
                Some(number) => self.hand_overs.accept(self.now, number, acceptor, granted),
                None => self.server.accept_for(listener, acceptor, granted),
            };
            match accepted {
                Ok(()) => self.session.credit += granted,
                Err(_) => self.session.counters.refused += 1,
            }
        }
        if granted < count {
            self.withhold(WithheldCredit { listener, acceptor, count: count - granted });
        }
    }

    fn withhold(&mut self, credit: WithheldCredit) {
        let withheld = &mut self.session.withheld;
        let is_full = withheld.len() >= ACCEPTORS_MAX;
        let known = withheld
            .iter_mut()
            .find(|it| it.listener == credit.listener && it.acceptor == credit.acceptor);
        match known {
            Some(known) => known.count = known.count.saturating_add(credit.count),
            None if is_full => self.session.counters.refused += 1,
            None => withheld.push_back(credit),
        }
    }

    /// Grants credit that was withheld: a connection of the session is over.
    #[inline]
    pub(super) fn grant_withheld(&mut self) {
        if let Some(credit) = self.session.withheld.pop_front() {
            self.accept(credit.listener, credit.acceptor, credit.count);
        }
    }

    /// Sends a datagram. If the stack does not take it, the application learns it by an event.
    fn send_datagram(&mut self, command: Command) -> Result<(), SessionFault> {
        let Command::SendDatagram { endpoint, to, from, hop_limit, traffic_class, buf, len } =
            command
        else {
            return Ok(());
        };
        let is_own = self.has_endpoint(endpoint_id(endpoint));
        let (stack, memory) = self.server.parts();
        let its = memory.of_mut(self.id).ok_or(SessionFault::Buffer)?;
        let chunk = its.sent_datagram(self.id, buf, len).ok_or(SessionFault::Buffer)?;
        let hop_limit = (hop_limit > 0).then_some(hop_limit);
        let departure = Departure { from, hop_limit, traffic_class };
        let sent = if is_own {
            let what = (to, chunk, &departure);
            stack.send_datagram_as(self.now, endpoint_id(endpoint), what, memory)
        } else {
            Err(megapipe_stack::OperationError::Unknown)
        };
        if let Err(error) = sent {
            memory.free(chunk.buf);
            self.refuse_datagram(endpoint, error.refusal());
        }
        Ok(())
    }

    fn refuse_datagram(&mut self, endpoint: Id, refusal: record::Refusal) {
        self.session.put_completion(0, Says::DatagramFailed { endpoint, refusal });
    }
}

/// The answer to an operation that a quota refuses.
const fn over_quota(reached: QuotaReached) -> ServerAnswer {
    let (refusal, detail) = (record::Refusal::QuotaReached, reached.code());
    ServerAnswer::Refused { refusal, detail, text: None }
}

/// Closed connections that are looked at when another one is closed: more than one, so that their
/// number falls.
const CLOSED_LOOKS: usize = 2;
/// The same where a session has as many ports towards a destination as it may.
const DESTINATION_LOOKS: usize = 64;
