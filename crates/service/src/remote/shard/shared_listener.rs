//! A listener of several sessions at one shard, and how the decisions of its machines are carried
//! out.
//!
//! Read first: `hand_overs.rs`; `server_wiring.rs` for where a message goes.
//!
//! Invariants
//! - A message to this server is a call, and one to another server is put into `mail`, in order.
//! - An assignment to an acceptor that has no lane here is taken back at once.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use megapipe_shm::record::{Id, Message, MessageSubject};
use megapipe_stack::{ConnId, Instant, ListenerId, OperationError, PoolId};

use super::handed_conn::{ACCEPTOR_BITS, ClaimAnswer, Delivery, HandedConn, packed, unpacked};
use super::owners::HandOverNumber;
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::balancer::{LentCredit, LoadMeasure, PickReason, RandomSequence, Scheme, ServiceOffer};
use crate::hand_over::{
    AcceptorOfSession, AcceptorReport, Assignment, ClaimOutcome, ClaimTimes, HandOverError,
    ListenerManager, ListenerSettings, ManagerInput, ManagerMessage, ManagerOutput, OfferTable,
    TransportReport, decode_assignment, encode_assignment,
};
use crate::limits::{ACCEPTORS_OF_SESSION_MAX, PICKS_REMEMBERED};
use crate::observe::{ServiceAcceptor, ServiceHandOver, ServicePick};
use crate::server_wiring::ServerWiring;

/// A session that listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListenerMember {
    pub(super) session: PoolId,
    /// Its name at all servers.
    pub(super) key: u64,
    /// The connection manager of its acceptors.
    pub(super) home: ManagerId,
    /// It has a lane to this shard only.
    pub(super) is_private: bool,
}

/// An acceptor of a session, as its lane to this shard has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionAcceptor {
    pub(super) session: PoolId,
    /// Its number in the session.
    number: AcceptorId,
    /// Connections that it would take over this lane, those that were offered included.
    pub(super) wanted: u32,
    /// Offers that are out.
    offered: u32,
    /// Its name at all servers, of its last enlistment. `None`: it has not enlisted yet.
    name: Option<AcceptorName>,
    /// That enlistment lasts.
    is_enlisted: bool,
    /// It has sent a byte on a connection.
    has_answered: bool,
}

/// A decision of a balancer.
#[derive(Debug, Clone, Copy)]
struct RememberedPick {
    session: PoolId,
    at: Instant,
    reason: PickReason,
    service_time_ns: Option<u64>,
    is_final: bool,
}

/// A listener of several sessions.
#[derive(Debug)]
pub(super) struct SharedListener {
    pub(super) listener: ListenerId,
    address: SocketAddr,
    pub(super) table: OfferTable,
    claim_times: ClaimTimes,
    /// `None`: the connection manager is on another server.
    pub(super) manager: Option<ListenerManager>,
    pub(super) members: Vec<ListenerMember>,
    /// By the number that records name them with.
    pub(super) acceptors: Vec<Option<SessionAcceptor>>,
    /// Connections that wait for an acceptor.
    pub(super) waiting: u32,
    waiting_max: u32,
    /// Credit that the stack has.
    pub(super) granted: u32,
    /// Urgent pointers of unclaimed connections.
    pub(super) urgent: Vec<(ConnId, u32)>,
    /// The last picks, oldest first.
    picks: VecDeque<RememberedPick>,
    pub(super) measures_answers: bool,
    pub(super) selects_by_hash: bool,
}

impl SharedListener {
    pub(super) fn new(
        (listener, address): (ListenerId, SocketAddr),
        settings: &ListenerSettings,
        own: Option<ManagerId>,
        first_id: u64,
    ) -> Result<Self, HandOverError> {
        let manager = own.map(|own| ListenerManager::new(own, settings, first_id)).transpose()?;
        Ok(Self {
            listener,
            // What a message has of an address.
            address: SocketAddr::new(address.ip(), address.port()),
            table: OfferTable::new(&settings.hand_over)?,
            claim_times: ClaimTimes::new(),
            manager,
            members: Vec::new(),
            acceptors: Vec::new(),
            waiting: 0,
            waiting_max: u32::try_from(settings.hand_over.waiting).unwrap_or(u32::MAX),
            granted: 0,
            urgent: Vec::new(),
            picks: VecDeque::with_capacity(PICKS_REMEMBERED),
            measures_answers: settings.balancer.measure == LoadMeasure::FirstAnswer,
            selects_by_hash: settings.balancer.scheme == Scheme::Hash,
        })
    }

    /// As messages name it.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether nothing is left that a connection manager has to know.
    pub(super) fn is_unused(&self) -> bool {
        self.manager.as_ref().is_none_or(ListenerManager::is_unused)
    }

    /// Connections that the stack may report: what enlisted acceptors take over their lanes to this
    /// shard, less those that wait.
    pub(super) fn free_credit(&self) -> u32 {
        let free = |known: &SessionAcceptor| {
            if known.is_enlisted { known.wanted.saturating_sub(known.offered) } else { 0 }
        };
        let all = self.acceptors.iter().flatten().map(free);
        let credit = all.fold(0_u32, u32::saturating_add);
        credit.min(self.waiting_max).saturating_sub(self.waiting)
    }

    /// By session: what its acceptors would take over their lanes.
    #[cfg(test)]
    pub(super) fn free_by_member(&self) -> Vec<(u64, u32)> {
        let free = |known: &SessionAcceptor| {
            let member = self.member(known.session)?;
            Some((member.key, known.wanted.saturating_sub(known.offered)))
        };
        self.acceptors.iter().flatten().filter_map(free).collect()
    }

    pub(super) fn shown(
        &self,
        now: Instant,
        settings: &ListenerSettings,
        key: &dyn Fn(PoolId) -> u64,
    ) -> ServiceHandOver {
        let queue = self.manager.as_ref().map(|it| it.queue().counters()).unwrap_or_default();
        let table = self.table.counters();
        let picks = self.picks.iter().rev().map(|pick| ServicePick {
            session: key(pick.session),
            ago: now.since(pick.at),
            reason: pick.reason,
            service_time: pick.service_time_ns.map(Duration::from_nanos),
            is_final: pick.is_final,
        });
        ServiceHandOver {
            scheme: settings.balancer.scheme.to_string(),
            claim_time: self.table.claim_time(now),
            waiting: self.waiting,
            assigned: queue.local,
            assigned_elsewhere: queue.remote,
            offers_sent: queue.offers_sent,
            offers_received: queue.offers_received,
            waits: queue.waits,
            refused: queue.refused,
            dropped: queue.dropped,
            offers: table.offers,
            final_offers: table.final_offers,
            claims: table.claims,
            claim_p50: self.claim_times.quantile(0.5),
            claim_p99: self.claim_times.quantile(0.99),
            late_claims: table.late_claims,
            take_backs: table.take_backs,
            orphans: table.orphans,
            withdrawals: table.withdrawals,
            picks: picks.collect(),
        }
    }

    pub(super) fn shown_acceptors(
        &self,
        now: Instant,
        key: &dyn Fn(PoolId) -> u64,
    ) -> Vec<ServiceAcceptor> {
        let own = self.manager.as_ref().map(|manager| manager.queue().balancer());
        let shown = self.acceptors.iter().flatten().map(|known| {
            let at_home = own.zip(known.name).and_then(|(balancer, name)| {
                let mut local = balancer.local_acceptors();
                local.find(|(it, ..)| it.is_same(name)).map(|(_, time, open)| (time, open))
            });
            let offer = own.zip(known.name).and_then(|(balancer, name)| {
                let (offer, at) = balancer.offer_of(name.manager)?;
                let age = now.since(at);
                let time = Duration::from_nanos(offer.service_time);
                offer.acceptor.is_same(name).then_some((time, age))
            });
            ServiceAcceptor {
                session: key(known.session),
                credit: known.wanted.saturating_sub(known.offered),
                offered: known.offered,
                open: at_home.map(|(_, open)| open),
                service_time: at_home.and_then(|(time, _)| time).map(Duration::from_nanos),
                is_dropped: !known.is_enlisted,
                home: known.name.map(|name| name.manager.0),
                offer,
            }
        });
        shown.collect()
    }

    fn member(&self, session: PoolId) -> Option<&ListenerMember> {
        self.members.iter().find(|member| member.session == session)
    }

    /// The number of an acceptor, which may be new. `None`: there is no place for it.
    pub(super) fn acceptor_of(&mut self, (session, number): (PoolId, AcceptorId)) -> Option<usize> {
        let is_it = |known: &SessionAcceptor| known.session == session && known.number == number;
        let place = self.acceptors.iter().position(|known| known.as_ref().is_some_and(is_it));
        if place.is_some() {
            return place;
        }
        let its = self.acceptors.iter().flatten().filter(|known| known.session == session);
        if its.count() >= ACCEPTORS_OF_SESSION_MAX {
            return None;
        }
        let free = self.acceptors.iter().position(Option::is_none);
        let index = free.unwrap_or(self.acceptors.len());
        if index >> ACCEPTOR_BITS != 0 {
            return None;
        }
        if free.is_none() {
            self.acceptors.push(None);
        }
        self.acceptors[index] = Some(SessionAcceptor {
            session,
            number,
            wanted: 0,
            offered: 0,
            name: None,
            is_enlisted: false,
            has_answered: false,
        });
        Some(index)
    }

    /// The number of an acceptor with this name, of whichever enlistment.
    fn index_of(&self, name: AcceptorName) -> Option<usize> {
        let is_it = |known: &SessionAcceptor| known.name.is_some_and(|it| it.is_same(name));
        self.acceptors.iter().position(|known| known.as_ref().is_some_and(is_it))
    }

    /// An acceptor has enlisted. Returns whether its session has a lane here.
    fn on_joined(&mut self, name: AcceptorName, who: AcceptorOfSession) -> bool {
        let member = self.members.iter().find(|member| member.key == who.session);
        let Some(session) = member.map(|member| member.session) else { return false };
        let index = self.acceptor_of((session, AcceptorId(who.number)));
        let known = index.and_then(|index| self.acceptors[index].as_mut());
        let Some(known) = known else { return false };
        (known.name, known.is_enlisted) = (Some(name), true);
        true
    }

    /// An enlistment has ended.
    fn on_left(&mut self, name: AcceptorName) {
        let known = self.acceptors.iter_mut().flatten();
        for known in known.filter(|known| known.name == Some(name)) {
            known.is_enlisted = false;
        }
    }

    /// An acceptor has sent its first byte.
    pub(super) fn note_answered(&mut self, name: AcceptorName) {
        if let Some(index) = self.index_of(name)
            && let Some(known) = &mut self.acceptors[index]
        {
            known.has_answered = true;
        }
    }

    /// The urgent pointer of a connection that is claimed now, if it has moved.
    fn take_urgent(&mut self, conn: ConnId, session: PoolId) -> Option<Delivery> {
        let place = self.urgent.iter().position(|(urgent, _)| *urgent == conn)?;
        let (_, bytes) = self.urgent.swap_remove(place);
        Some(Delivery::Urgent { session, conn, bytes })
    }

    /// An offer has ended without a claim. Returns its acceptor, if that is still there.
    pub(super) fn offer_is_over(&mut self, name: AcceptorName) -> Option<SessionAcceptor> {
        let index = self.index_of(name)?;
        let known = self.acceptors[index].as_mut()?;
        known.offered = known.offered.saturating_sub(1);
        Some(*known)
    }
}

/// What the machines of a listener decide with, and where their decisions go.
pub(super) struct Machines<'shard> {
    pub(super) number: HandOverNumber,
    pub(super) wiring: &'shard ServerWiring,
    pub(super) random: &'shard mut RandomSequence,
    pub(super) deliveries: &'shard mut VecDeque<Delivery>,
    pub(super) outputs: &'shard mut Vec<ManagerOutput>,
    pub(super) mail: &'shard mut VecDeque<(u16, Message)>,
}

impl Machines<'_> {
    fn send(&mut self, to: u16, shared: &SharedListener, subject: MessageSubject) {
        self.mail.push_back((to, Message { listener: shared.address, subject }));
    }

    /// This shard's transport server.
    fn transport(&self) -> u16 {
        self.wiring.transport().unwrap_or_default()
    }

    /// An acceptor takes more connections over its lane.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        index: usize,
        credit: u32,
    ) -> Result<(), OperationError> {
        let Some(known) = shared.acceptors[index] else { return Err(OperationError::Unknown) };
        let Some(member) = shared.member(known.session).copied() else {
            return Err(OperationError::Unknown);
        };
        let ListenerMember { key: session, home, is_private, .. } = member;
        let number = known.number.0;
        let accepted = match &mut shared.manager {
            Some(manager) if self.wiring.manager() == Some(home) => {
                let from = (self.transport(), AcceptorOfSession { session, number, is_private });
                // Before the manager: it may assign connections at once.
                add_wanted(&mut shared.acceptors[index], credit);
                let accepted = manager.accept(now, from, credit, self.random.next(), self.outputs);
                self.settle(now, shared);
                accepted.is_ok()
            }
            _ => {
                add_wanted(&mut shared.acceptors[index], credit);
                let to = self.wiring.server_of_manager(home);
                self.send(to, shared, MessageSubject::Accept { session, number, credit });
                true
            }
        };
        if accepted {
            return Ok(());
        }
        if let Some(known) = &mut shared.acceptors[index] {
            known.wanted = known.wanted.saturating_sub(credit);
        }
        Err(OperationError::QueueFull)
    }

    pub(super) fn claim(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        conn: ConnId,
        (index, enlistment): (usize, u32),
    ) -> ClaimAnswer {
        let Some(known) = &mut shared.acceptors[index] else { return ClaimAnswer::Refused };
        let Some(name) = known.name else { return ClaimAnswer::Refused };
        let claimant = AcceptorName { enlistment, ..name };
        let (outcome, offered) = shared.table.claim_by_id(packed(conn), claimant);
        match outcome {
            ClaimOutcome::Confirmed => {
                shared.claim_times.record(now.since(offered.unwrap_or(now)));
                known.wanted = known.wanted.saturating_sub(1);
                known.offered = known.offered.saturating_sub(1);
                let (number, session) = (known.number, known.session);
                let awaits_answer = shared.measures_answers || !known.has_answered;
                self.deliveries.extend(shared.take_urgent(conn, session));
                let (hand_over, listener) = (self.number, shared.listener);
                let handed = HandedConn { hand_over, listener, conn, number, awaits_answer };
                ClaimAnswer::Confirmed(handed)
            }
            ClaimOutcome::Late => {
                // The acceptor dispatches again: it enlists again unless it is enlisted. That its
                // last enlistment has ended may still be on its way here.
                let is_own = self.wiring.manager() == Some(name.manager);
                if !known.is_enlisted || (!is_own && claimant == name) {
                    self.accept_again(now, shared, claimant);
                }
                ClaimAnswer::Refused
            }
            ClaimOutcome::Repeated => ClaimAnswer::Repeated,
        }
    }

    fn accept_again(&mut self, now: Instant, shared: &mut SharedListener, lost: AcceptorName) {
        match &mut shared.manager {
            Some(manager) if self.wiring.manager() == Some(lost.manager) => {
                manager.accept_again(now, lost, self.random.next(), self.outputs);
                self.settle(now, shared);
            }
            _ => {
                let to = self.wiring.server_of_manager(lost.manager);
                self.send(to, shared, MessageSubject::AcceptAgain { lost: lost.into() });
            }
        }
    }

    /// A session leaves the listener. Returns what its acceptors wanted.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        session: PoolId,
    ) -> u32 {
        let place = shared.members.iter().position(|member| member.session == session);
        let Some(member) = place.map(|place| shared.members.swap_remove(place)) else { return 0 };
        let mut left = Vec::new();
        for known in &mut shared.acceptors {
            left.extend(known.take_if(|known| known.session == session));
        }
        let subject = MessageSubject::Gone { session: member.key };
        let to = self.wiring.server_of_manager(member.home);
        if self.wiring.manager() == Some(member.home) {
            self.on_message_for_manager(now, shared, (self.transport(), subject));
        } else {
            self.send(to, shared, subject);
            // No connection of this shard goes to it any more.
            for name in left.iter().filter_map(|known| known.name) {
                self.input(now, shared, ManagerInput::Manager(ManagerMessage::Left(name)));
            }
        }
        for name in left.iter().filter_map(|known| known.name) {
            for report in shared.table.on_acceptor_id_gone(name.manager, name.id) {
                shared.waiting += 1;
                self.report_transport(now, shared, report);
            }
        }
        left.iter().fold(0, |sum, known| sum.saturating_add(known.wanted))
    }

    /// Takes a message of another server.
    pub(super) fn on_message(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        (from, subject): (u16, MessageSubject),
    ) {
        match subject {
            MessageSubject::Assign { conn, acceptor, how } => {
                self.assign(now, shared, decode_assignment(conn, acceptor, how));
            }
            MessageSubject::Refuse { conn } => self.refuse(shared, conn.into()),
            MessageSubject::Joined { acceptor, session, number } => {
                let who = AcceptorOfSession { session, number, is_private: false };
                // Without a lane here no connection of this shard can go to it.
                let has_lane = shared.on_joined(acceptor.into(), who);
                // Before connections that the manager assigns to it.
                self.forward(shared, subject);
                if has_lane || self.wiring.transport().is_none() {
                    self.on_message_for_manager(now, shared, (from, subject));
                }
            }
            MessageSubject::Left { acceptor } => {
                shared.on_left(acceptor.into());
                self.on_message_for_manager(now, shared, (from, subject));
                self.forward(shared, subject);
            }
            _ => {
                // What names a lane comes of a transport server.
                let transport = self.wiring.transport_of(from).unwrap_or(from);
                self.on_message_for_manager(now, shared, (transport, subject));
            }
        }
    }

    /// Forwards membership to the transport servers whose manager this one is.
    fn forward(&mut self, shared: &SharedListener, subject: MessageSubject) {
        let wiring = self.wiring;
        if wiring.manager().is_some() {
            wiring.dependents().for_each(|to| self.send(to, shared, subject));
        }
    }

    fn on_message_for_manager(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        (transport, subject): (u16, MessageSubject),
    ) {
        let Some(manager) = &mut shared.manager else { return };
        let (random, out) = (self.random.next(), &mut *self.outputs);
        match subject {
            MessageSubject::Accept { session, number, credit } => {
                let who = AcceptorOfSession { session, number, is_private: false };
                // A listener with the most acceptors there may be has no place for it.
                let _ = manager.accept(now, (transport, who), credit, random, out);
            }
            MessageSubject::AcceptAgain { lost } => {
                manager.accept_again(now, lost.into(), random, out);
            }
            MessageSubject::Gone { session } => {
                manager.on_gone(now, (transport, session), random, out);
            }
            _ => {
                let Some(input) = ManagerInput::of(subject) else { return };
                return self.input(now, shared, input);
            }
        }
        self.settle(now, shared);
    }

    fn input(&mut self, now: Instant, shared: &mut SharedListener, input: ManagerInput) {
        let Some(manager) = &mut shared.manager else { return };
        let (random, out) = (self.random.next(), &mut *self.outputs);
        match input {
            ManagerInput::Transport(report) => manager.on_transport(now, report, random, out),
            ManagerInput::Acceptor(report) => manager.on_acceptor(now, report, random, out),
            ManagerInput::Manager(message) => manager.on_message(now, message, random, out),
        }
        self.settle(now, shared);
    }

    /// Reports to the manager of this shard's connections.
    pub(super) fn report_transport(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        report: TransportReport,
    ) {
        if shared.manager.is_some() {
            return self.input(now, shared, ManagerInput::Transport(report));
        }
        let to = self.wiring.manager_server_of(self.transport());
        self.send(to, shared, report.into());
    }

    /// Reports to the home of an acceptor.
    pub(super) fn report_acceptor(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        report: AcceptorReport,
    ) {
        let home = report.acceptor().manager;
        if self.wiring.manager() == Some(home) {
            return self.input(now, shared, ManagerInput::Acceptor(report));
        }
        self.send(self.wiring.server_of_manager(home), shared, report.into());
    }

    /// Publishes the manager's offer if one is due.
    pub(super) fn publish_offer(&mut self, now: Instant, shared: &mut SharedListener) {
        if let Some(manager) = &mut shared.manager {
            let managers = u16::try_from(self.wiring.manager_count()).unwrap_or(u16::MAX);
            manager.publish_offer(now, managers, self.outputs);
            self.settle(now, shared);
        }
    }

    /// Carries out what the manager has decided.
    #[inline]
    fn settle(&mut self, now: Instant, shared: &mut SharedListener) {
        if !self.outputs.is_empty() {
            self.settle_outputs(now, shared);
        }
    }

    fn settle_outputs(&mut self, now: Instant, shared: &mut SharedListener) {
        let mut outputs = std::mem::take(self.outputs);
        for output in outputs.drain(..) {
            match output {
                ManagerOutput::Assign(assignment) => {
                    let transport = assignment.conn.transport;
                    if self.wiring.transport() == Some(transport) {
                        self.assign(now, shared, assignment);
                    } else {
                        let to = self.wiring.server_of_transport(transport);
                        self.send(to, shared, encode_assignment(&assignment));
                    }
                }
                ManagerOutput::Refuse(conn) => {
                    if self.wiring.transport() == Some(conn.transport) {
                        self.refuse(shared, conn);
                    } else {
                        let to = self.wiring.server_of_transport(conn.transport);
                        self.send(to, shared, MessageSubject::Refuse { conn: conn.into() });
                    }
                }
                ManagerOutput::Send(message) | ManagerOutput::Publish(message) => {
                    self.publish(shared, message);
                }
                ManagerOutput::Lend(to, offer) => {
                    self.send(self.wiring.server_of_manager(to), shared, offer.into());
                }
                ManagerOutput::Grant(to, offer) => {
                    let ServiceOffer { acceptor, service_time, credits } = offer;
                    let (acceptor, service_time_ns) = (acceptor.into(), service_time);
                    let subject = MessageSubject::Granted { acceptor, service_time_ns, credits };
                    self.send(self.wiring.server_of_manager(to), shared, subject);
                }
            }
        }
        *self.outputs = outputs;
    }

    /// Sends a message of this server's manager.
    fn publish(&mut self, shared: &mut SharedListener, message: ManagerMessage) {
        let subject = match message {
            ManagerMessage::Joined(name) => {
                let who = shared.manager.as_ref().and_then(|manager| manager.acceptor(name.id));
                let Some(who) = who else { return };
                shared.on_joined(name, who);
                if who.is_private {
                    return;
                }
                let AcceptorOfSession { session, number, .. } = who;
                MessageSubject::Joined { acceptor: name.into(), session, number }
            }
            ManagerMessage::Left(name) => {
                shared.on_left(name);
                MessageSubject::Left { acceptor: name.into() }
            }
            ManagerMessage::Offer(offer) => offer.into(),
            ManagerMessage::Recall(name) => MessageSubject::Recall { acceptor: name.into() },
            ManagerMessage::Assigned { acceptor, borrower } => {
                let to = self.wiring.server_of_manager(acceptor.manager);
                let (acceptor, borrower) = (acceptor.into(), borrower.map(|borrower| borrower.0));
                return self.send(to, shared, MessageSubject::Assigned { acceptor, borrower });
            }
            ManagerMessage::Returned { lent: LentCredit { acceptor, credits }, borrower } => {
                let to = self.wiring.server_of_manager(acceptor.manager);
                let (acceptor, borrower) = (acceptor.into(), borrower.0);
                let subject = MessageSubject::Returned { acceptor, credits, borrower };
                return self.send(to, shared, subject);
            }
            ManagerMessage::Request { lender, borrower } => {
                let to = self.wiring.server_of_manager(lender);
                let (lender, borrower) = (lender.0, borrower.0);
                return self.send(to, shared, MessageSubject::Request { lender, borrower });
            }
            ManagerMessage::TimedOut(name) => {
                let to = self.wiring.server_of_manager(name.manager);
                let subject = MessageSubject::TimedOut { acceptor: name.into() };
                return self.send(to, shared, subject);
            }
        };
        let wiring = self.wiring;
        wiring.other_managers().for_each(|to| self.send(to, shared, subject));
        if !matches!(subject, MessageSubject::Offer { .. } | MessageSubject::Recall { .. }) {
            self.forward(shared, subject);
        }
    }

    fn refuse(&mut self, shared: &mut SharedListener, conn: crate::hand_over::ConnectionName) {
        if shared.table.on_refused(conn) {
            shared.waiting = shared.waiting.saturating_sub(1);
            self.deliveries.push_back(Delivery::Reset { conn: unpacked(conn.id) });
        }
    }

    fn assign(&mut self, now: Instant, shared: &mut SharedListener, assignment: Assignment) {
        let Assignment { conn, acceptor, is_final, reason } = assignment;
        let Some(index) = shared.index_of(acceptor) else {
            // Its session has left here: the manager learns it, and picks another.
            let report = TransportReport::TakenBack { conn, acceptor };
            if shared.table.is_waiting(conn.id) {
                return self.report_transport(now, shared, report);
            }
            return self.report_acceptor(now, shared, AcceptorReport::Withdrawn(acceptor));
        };
        if let Err(report) = shared.table.assign(now, assignment) {
            // Its peer has reset it meanwhile.
            return self.report_acceptor(now, shared, report);
        }
        shared.waiting = shared.waiting.saturating_sub(1);
        let Some(known) = &mut shared.acceptors[index] else { return };
        let lacks_credit = known.wanted <= known.offered;
        known.wanted += u32::from(lacks_credit);
        let SessionAcceptor { session, number, .. } = *known;
        let awaits_answer = shared.measures_answers || !known.has_answered;
        let conn = unpacked(conn.id);
        if is_final {
            known.wanted = known.wanted.saturating_sub(1);
            let (hand_over, listener) = (self.number, shared.listener);
            let to = HandedConn { hand_over, listener, conn, number, awaits_answer };
            self.deliveries.push_back(Delivery::Assign { session, to });
            self.deliveries.extend(shared.take_urgent(conn, session));
        } else {
            known.offered += 1;
            let index = u32::from(self.number.get()) << ACCEPTOR_BITS | index as u32;
            let acceptor = Id { index, generation: acceptor.enlistment };
            self.deliveries.push_back(Delivery::Offer { session, number, conn, acceptor });
        }
        self.remember(now, shared, (session, acceptor), (reason, is_final));
        if lacks_credit {
            self.compensate(now, shared, index);
        }
    }

    /// A connection has used credit that the acceptor has at other lanes: its home gets it back, so
    /// that those lanes do not wait for connections that nothing counts.
    fn compensate(&mut self, now: Instant, shared: &mut SharedListener, index: usize) {
        let Some(known) = shared.acceptors[index] else { return };
        let Some(member) = shared.member(known.session).copied() else { return };
        let (session, number, credit) = (member.key, known.number.0, 1);
        let subject = MessageSubject::Accept { session, number, credit };
        if self.wiring.manager() != Some(member.home) {
            let to = self.wiring.server_of_manager(member.home);
            return self.send(to, shared, subject);
        }
        let who = AcceptorOfSession { session, number, is_private: member.is_private };
        let Some(manager) = &mut shared.manager else { return };
        let from = (self.wiring.transport().unwrap_or_default(), who);
        // It is an acceptor already.
        let _ = manager.accept(now, from, credit, self.random.next(), self.outputs);
        self.settle(now, shared);
    }

    fn remember(
        &mut self,
        now: Instant,
        shared: &mut SharedListener,
        (session, acceptor): (PoolId, AcceptorName),
        (reason, is_final): (PickReason, bool),
    ) {
        let own =
            shared.manager.as_ref().filter(|_| self.wiring.manager() == Some(acceptor.manager));
        let service_time_ns = own.and_then(|own| own.queue().balancer().measured_of(acceptor.id));
        if shared.picks.len() >= PICKS_REMEMBERED {
            shared.picks.pop_front();
        }
        let pick = RememberedPick { session, at: now, reason, service_time_ns, is_final };
        shared.picks.push_back(pick);
    }
}

fn add_wanted(known: &mut Option<SessionAcceptor>, credit: u32) {
    if let Some(known) = known {
        known.wanted = known.wanted.saturating_add(credit);
    }
}
