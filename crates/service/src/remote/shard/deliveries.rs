//! What the hand-over of new connections leads to at sessions: offers, assignments, claims.
//!
//! Read first: `hand_overs.rs`.
//!
//! Invariant: a connection gets its owner and its pool together with the `Incoming` record that
//! gives it to a session; until then no record but its offer names it.

use std::hash::{DefaultHasher, Hash, Hasher};

use megapipe_shm::record::{Completion, Event as Says, Id, Message, Record};
use megapipe_stack::{ConnId, Instant, PoolId};

use super::SessionShard;
use super::handed_conn::{ClaimAnswer, Delivery, HandedConn};
use super::ops::SessionWork;
use super::owners::HandOverNumber;
use crate::remote::encoding::{conn_id, id_of, id_of_listener};
use crate::server_mail::ServerMail;

impl SessionShard {
    /// A connection was established at a listener that several sessions share.
    pub(super) fn hand_over_established(
        &mut self,
        now: Instant,
        hand_over: HandOverNumber,
        conn: ConnId,
    ) {
        self.owners.add_offered(conn, hand_over);
        let flow_hash = if self.hand_overs.needs_hash(hand_over) { self.hash(conn) } else { 0 };
        self.hand_overs.on_established(now, hand_over, conn, flow_hash);
    }

    /// Hash of a flow that no peer can predict.
    fn hash(&self, conn: ConnId) -> u32 {
        let stack = self.server.stack();
        let mut hasher = DefaultHasher::new();
        stack.config().secret.hash(&mut hasher);
        stack.addresses(conn).ok().hash(&mut hasher);
        hasher.finish() as u32
    }

    /// Does what the hand-overs have decided. Returns whether the stack may report more connections
    /// than before.
    pub(super) fn deliver(&mut self, now: Instant) -> bool {
        while let Some(delivery) = self.hand_overs.next_delivery() {
            match delivery {
                Delivery::Offer { session, number, conn, acceptor } => {
                    let record = Completion::available(number.0, id_of(conn), acceptor);
                    self.put(now, session, record, false);
                }
                Delivery::Assign { session, to } => self.assign(now, session, to),
                Delivery::Withdraw { session, conn } => {
                    self.put_handed(now, session, 0, Says::Withdrawn { conn: id_of(conn) });
                }
                Delivery::Urgent { session, conn, bytes } => {
                    let event = Says::Urgent { conn: id_of(conn), bytes };
                    self.put_handed(now, session, u64::MAX, event);
                }
                Delivery::Reset { conn } => {
                    self.owners.take_offered(conn);
                    self.server.refuse(now, conn);
                }
            }
        }
        self.hand_overs.update_credit(self.server.parts().0)
    }

    /// Connections that hand-overs count.
    #[cfg(test)]
    pub(in crate::remote) fn handed_over(&self) -> usize {
        self.hand_overs.connections()
    }

    /// Takes messages of other servers. Returns how many.
    pub(super) fn take_mail(&mut self, now: Instant) -> u32 {
        let Some(mut mail) = self.mail.take() else { return 0 };
        let count = mail.receive(|from, message| self.on_message(now, from, &message));
        self.mail = Some(mail);
        count
    }

    /// A message of another server about a listener. One that this shard does not have is gone.
    fn on_message(&mut self, now: Instant, from: u16, message: &Message) {
        let Some(listener) = self.owners.listener_of_address(message.listener) else {
            return self.hand_overs.refuse_message(message);
        };
        if self.hand_overs.number_of(listener).is_none() {
            // The other server has a second session there, or is about to have one.
            self.share_work(now).begin_hand_over(listener);
        }
        if let Some(number) = self.hand_overs.number_of(listener) {
            self.hand_overs.on_message(now, number, (from, message.subject));
        } else {
            self.hand_overs.refuse_message(message);
        }
    }

    /// Sends messages to other servers, and wakes those that sleep where a message does.
    pub(super) fn send_mail(&mut self, now: Instant) {
        self.hand_overs.publish_offers(now);
        self.flush_mail();
    }

    /// As `send_mail`, without offers.
    pub(in crate::remote) fn flush_mail(&mut self) {
        let Some(mail) = &mut self.mail else { return };
        while let Some((to, message)) = self.hand_overs.next_mail() {
            mail.send(to, &message);
        }
        mail.flush();
    }

    /// The rings that connect this server with the others.
    pub(in crate::remote) const fn mail_mut(&mut self) -> Option<&mut ServerMail> {
        self.mail.as_mut()
    }

    fn put_handed(&mut self, now: Instant, session: PoolId, cookie: u64, event: Says) {
        self.put(now, session, Completion { cookie, event }.record(), false);
    }

    /// Gives a connection to the only acceptor.
    fn assign(&mut self, now: Instant, id: PoolId, to: HandedConn) {
        let conn = to.conn;
        let incoming = self.work(now, id, |work| {
            work.session.is_running().then(|| work.take_handed(&to)).flatten()
        });
        match incoming.flatten() {
            Some(record) => {
                self.put(now, id, record, false);
            }
            None => {
                // The session has ended since: others may listen.
                self.owners.take_offered(conn);
                self.hand_overs.on_closed(now, to.hand_over, conn);
                self.server.hand_over_offered(now, conn);
            }
        }
    }
}

impl SessionWork<'_> {
    /// A connection is the session's from now on. Returns its `Incoming` record; `None`: the stack
    /// has no such connection, and the acceptor takes another one in its place.
    fn take_handed(&mut self, to: &HandedConn) -> Option<Record> {
        let HandedConn { hand_over, listener, conn, number, awaits_answer } = *to;
        let (stack, _) = self.server.parts();
        let Ok((_, remote)) = stack.addresses(conn) else {
            self.session.credit = self.session.credit.saturating_sub(1);
            self.accept(listener, number, 1);
            return None;
        };
        // It may be over, as its next event says.
        let _ = stack.set_pool(conn, self.id);
        self.owners.add_claimed(self.id, conn, hand_over);
        self.session.credit = self.session.credit.saturating_sub(1);
        self.session.awaits_answer |= awaits_answer;
        let ids = (id_of_listener(listener), id_of(conn));
        Some(Completion::incoming(number.0, ids, remote, 0))
    }

    /// CLAIM-CONNECTION. One record answers it.
    pub(super) fn claim(&mut self, conn: Id, acceptor: Id, receives: bool) {
        if self.session.is_leaving {
            // Its application has not learned of the connection: it is offered to another.
            return;
        }
        let claimed = self.hand_overs.claim(self.now, self.id, conn_id(conn), acceptor);
        let incoming = match &claimed {
            ClaimAnswer::Confirmed(handed) => self.take_handed(handed),
            ClaimAnswer::Refused => None,
            ClaimAnswer::Repeated => return,
        };
        match (claimed, incoming) {
            (ClaimAnswer::Confirmed(handed), Some(record)) => {
                self.session.put(&record);
                if receives {
                    // It may be over.
                    let _ = self.server.parts().0.receive(self.now, handed.conn);
                }
            }
            (ClaimAnswer::Confirmed(handed), None) => {
                self.finish_handed(handed.conn, Some(handed.hand_over));
                self.session.put_completion(0, Says::ClaimRefused { conn, acceptor });
            }
            _ => self.session.put_completion(0, Says::ClaimRefused { conn, acceptor }),
        }
    }

    /// A connection is no more the application's: the hand-over that counts it learns that.
    pub(super) fn finish_handed(&mut self, conn: ConnId, hand_over: Option<HandOverNumber>) {
        if let Some(hand_over) = hand_over {
            self.hand_overs.on_closed(self.now, hand_over, conn);
        }
    }

    /// The application sends bytes, and a hand-over is to learn of the first.
    pub(super) fn note_answer(&mut self, conn: ConnId) {
        if self.owners.has_open_conn(self.id, conn)
            && let Some(hand_over) = self.owners.hand_over_of(conn)
        {
            let awaits_more = self.hand_overs.on_answer(self.now, hand_over, conn);
            self.session.awaits_answer = awaits_more;
        }
    }
}
