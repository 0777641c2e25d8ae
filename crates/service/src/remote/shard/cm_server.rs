//! A connection manager on a server of its own: no link, no flows, no sessions.
//!
//! Read first: `hand_overs.rs`, of which this is the part of the manager alone; `server_mail.rs`.
//!
//! Pure but for its rings: what it does is a function of the messages in them and `now`.
//!
//! Invariant: a listener is known while an acceptor, a connection that waits or another manager's
//! member of it is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_shm::record::{Message, MessageSubject};
use megapipe_stack::{Instant, ListenerId};

use super::hand_overs::{HandOverCounters, HandOvers};
use crate::hand_over::HandOverSettings;
use crate::observe::{AnswerBody, AnswerPage};
use crate::server_mail::{MailCounters, ServerMail};
use crate::server_wiring::ServerWiring;

/// The connection manager of a server that has no other component.
pub(in crate::remote) struct ManagerServer {
    hand_overs: HandOvers,
    mail: Option<ServerMail>,
    /// Names that only this manager uses.
    listeners: HashMap<SocketAddr, ListenerId>,
    free: Vec<u32>,
}

impl ManagerServer {
    /// A manager without listeners.
    pub(in crate::remote) fn new(
        settings: HandOverSettings,
        (wiring, mail): (ServerWiring, ServerMail),
        seed: u64,
    ) -> Self {
        let hand_overs = HandOvers::new(settings, wiring, seed);
        Self { hand_overs, mail: Some(mail), listeners: HashMap::new(), free: Vec::new() }
    }

    /// Takes messages, and sends what follows from them. Returns whether there were any.
    pub(in crate::remote) fn poll(&mut self, now: Instant) -> bool {
        let Some(mut mail) = self.mail.take() else { return false };
        let count = mail.receive(|from, message| self.on_message(now, from, &message));
        self.hand_overs.publish_offers(now);
        while let Some((to, message)) = self.hand_overs.next_mail() {
            mail.send(to, &message);
        }
        mail.flush();
        self.mail = Some(mail);
        count > 0
    }

    pub(super) fn on_message(&mut self, now: Instant, from: u16, message: &Message) {
        let listener = match self.listeners.get(&message.listener) {
            Some(listener) => *listener,
            // What a listener that is gone leaves behind begins none.
            None if !begins(&message.subject) || !self.hand_overs.has_room() => {
                return self.hand_overs.refuse_message(message);
            }
            None => {
                let index = self.free.pop().unwrap_or(self.listeners.len() as u32);
                let listener = ListenerId { index, generation: 0 };
                self.listeners.insert(message.listener, listener);
                self.hand_overs.begin(now, (listener, message.listener), &[], Vec::new());
                listener
            }
        };
        let Some(number) = self.hand_overs.number_of(listener) else { return };
        self.hand_overs.on_message(now, number, (from, message.subject));
        if self.hand_overs.is_unused(number) {
            self.hand_overs.end(listener);
            self.listeners.remove(&message.listener);
            self.free.push(listener.index);
        }
    }

    /// What the manager sees, from a place on.
    pub(in crate::remote) fn page(&self, now: Instant, from: u64) -> AnswerPage {
        let page = self.hand_overs.manager_page(now, from);
        page.unwrap_or_else(|| AnswerPage::last(AnswerBody::Manager(None)))
    }

    /// A manager whose messages the test passes on.
    #[cfg(test)]
    pub(super) fn without_rings(
        settings: HandOverSettings,
        wiring: ServerWiring,
        seed: u64,
    ) -> Self {
        let hand_overs = HandOvers::new(settings, wiring, seed);
        Self { hand_overs, mail: None, listeners: HashMap::new(), free: Vec::new() }
    }

    #[cfg(test)]
    pub(super) const fn hand_overs(&self) -> &HandOvers {
        &self.hand_overs
    }

    #[cfg(test)]
    pub(super) const fn hand_overs_mut(&mut self) -> &mut HandOvers {
        &mut self.hand_overs
    }

    /// Requests to be woken at the descriptor. Returns `false` if messages wait.
    pub(in crate::remote) fn arm(&mut self) -> bool {
        self.mail.as_mut().is_none_or(ServerMail::arm)
    }

    /// Ends the request to be woken, and clears rings that came.
    pub(in crate::remote) fn disarm(&self) {
        self.mail.iter().for_each(|mail| {
            mail.disarm();
            mail.clear();
        });
    }

    /// Readable when another server has rung.
    pub(in crate::remote) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mail.as_ref().map(ServerMail::fd)
    }

    /// How long it may sleep. `None`: until it is woken.
    pub(in crate::remote) fn patience(&self, now: Instant) -> Option<Duration> {
        self.hand_overs.patience(now)
    }

    /// What was counted.
    pub(in crate::remote) fn counters(&self) -> (HandOverCounters, MailCounters) {
        let mail = self.mail.as_ref().map(ServerMail::counters);
        (self.hand_overs.counters(), mail.unwrap_or_default())
    }
}

/// Whether a message may be the first about a listener.
const fn begins(subject: &MessageSubject) -> bool {
    use MessageSubject::{Accept, Established, Joined, TakenBack};
    matches!(subject, Accept { .. } | Established { .. } | Joined { .. } | TakenBack { .. })
}
