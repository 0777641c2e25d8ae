//! The connection manager: which acceptor gets a new connection.
//!
//! Read first: [PIKA 3.2, 3.3]. This is the local half: acceptors of this server, each with a
//! credit of connections that it is ready to take. An acceptor without credit is not offered
//! anything; a connection for which no acceptor has credit waits in the listener's backlog.
//!
//! Pure: listeners, acceptors and credits go in; offers come out. It knows no clock and sends
//! nothing itself.
//!
//! Invariants
//! - A listener's outstanding credit at the transport server is the sum of its acceptors' credits.
//! - Acceptors take turns, so that none of those with credit starves.

use std::collections::VecDeque;

use megapipe_stack::{ListenerId, PoolId};

pub use crate::acceptor::AcceptorId;
use crate::limits::ACCEPTORS_MAX;

/// A new connection goes to this acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The acceptor that it is offered to.
    pub acceptor: AcceptorId,
    /// How many more connections that acceptor would take.
    pub credit_left: u32,
}

#[derive(Debug)]
struct Acceptor {
    /// Its session, and its number there.
    name: (PoolId, AcceptorId),
    credit: u32,
}

#[derive(Debug)]
struct Listener {
    generation: u32,
    /// The next to be offered a connection is in front.
    acceptors: VecDeque<Acceptor>,
}

/// The listeners of one server and their acceptors.
#[derive(Debug, Default)]
pub struct ConnectionManager {
    /// By the listener's index.
    listeners: Vec<Option<Listener>>,
    /// Reserved for the acceptors of the next listener.
    spare: VecDeque<Acceptor>,
}

impl ConnectionManager {
    /// No listeners yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory for one more listener and its first acceptor. `false`: there is none.
    pub fn reserve_listener(&mut self) -> bool {
        self.listeners.try_reserve(1).is_ok() && self.spare.try_reserve(1).is_ok()
    }

    /// Adds a listener without acceptors.
    pub fn add_listener(&mut self, listener: ListenerId) {
        let index = listener.index as usize;
        if self.listeners.len() <= index {
            self.listeners.resize_with(index + 1, || None);
        }
        let acceptors = std::mem::take(&mut self.spare);
        self.listeners[index] = Some(Listener { generation: listener.generation, acceptors });
    }

    /// The listener is gone, and with it all acceptors' places.
    pub fn remove_listener(&mut self, listener: ListenerId) {
        if self.listener(listener).is_some() {
            self.listeners[listener.index as usize] = None;
        }
    }

    /// An acceptor of a session is ready for `count` more connections. `false`: no such listener,
    /// or it has its maximum of acceptors.
    pub fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: (PoolId, AcceptorId),
        count: u32,
    ) -> bool {
        let Some(queues) = self.listener(listener) else { return false };
        let known = queues.acceptors.iter().position(|known| known.name == acceptor);
        match known {
            Some(place) => {
                let credit = &mut queues.acceptors[place].credit;
                *credit = credit.saturating_add(count);
            }
            None if queues.acceptors.len() >= ACCEPTORS_MAX => return false,
            None => queues.acceptors.push_back(Acceptor { name: acceptor, credit: count }),
        }
        true
    }

    /// Removes all acceptors of a listener. Returns them with their credit.
    pub fn take_acceptors(&mut self, listener: ListenerId) -> Vec<((PoolId, AcceptorId), u32)> {
        let Some(queues) = self.listener(listener) else { return Vec::new() };
        queues.acceptors.drain(..).map(|acceptor| (acceptor.name, acceptor.credit)).collect()
    }

    /// The acceptors of a session take no more. Returns how much credit they had left.
    pub fn withdraw_session(&mut self, listener: ListenerId, session: PoolId) -> u32 {
        let Some(queues) = self.listener(listener) else { return 0 };
        let mut credit = 0_u32;
        queues.acceptors.retain(|acceptor| {
            let is_its = acceptor.name.0 == session;
            credit = credit.saturating_add(if is_its { acceptor.credit } else { 0 });
            !is_its
        });
        credit
    }

    /// The credit of a session's acceptors.
    #[must_use]
    pub fn credit_of(&self, listener: ListenerId, session: PoolId) -> u32 {
        let known = self.listeners.get(listener.index as usize).and_then(Option::as_ref);
        let its = known.filter(|known| known.generation == listener.generation);
        let acceptors = its.into_iter().flat_map(|its| &its.acceptors);
        let credits = acceptors.filter(|it| it.name.0 == session).map(|it| it.credit);
        credits.fold(0, u32::saturating_add)
    }

    /// Picks the acceptor of a connection that was established. Returns it with its session;
    /// `None`: none has credit.
    pub fn on_incoming(&mut self, listener: ListenerId) -> Option<(PoolId, Offer)> {
        let acceptors = &mut self.listener(listener)?.acceptors;
        if acceptors.len() == 1 {
            // No other to alternate with.
            let only = acceptors.front_mut().filter(|only| only.credit > 0)?;
            only.credit -= 1;
            let (session, acceptor) = only.name;
            return Some((session, Offer { acceptor, credit_left: only.credit }));
        }
        for _ in 0..acceptors.len() {
            let mut front = acceptors.pop_front()?;
            let is_ready = front.credit > 0;
            front.credit -= u32::from(is_ready);
            let ((session, acceptor), credit_left) = (front.name, front.credit);
            acceptors.push_back(front);
            if is_ready {
                return Some((session, Offer { acceptor, credit_left }));
            }
        }
        None
    }

    fn listener(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let listener = self.listeners.get_mut(id.index as usize)?.as_mut()?;
        (listener.generation == id.generation).then_some(listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTTP: ListenerId = ListenerId { index: 3, generation: 1 };

    const fn acceptor(number: u64) -> (PoolId, AcceptorId) {
        (PoolId(1), AcceptorId(number))
    }

    #[test]
    fn acceptors_take_polls_as_long_as_they_have_credit() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        assert!(manager.accept(HTTP, acceptor(1), 1));
        assert!(manager.accept(HTTP, acceptor(2), 2));
        assert!(manager.accept(HTTP, acceptor(2), 1));
        let mut order = Vec::new();
        while let Some((_, offer)) = manager.on_incoming(HTTP) {
            order.push((offer.acceptor.0, offer.credit_left));
        }
        assert_eq!(order, [(1, 0), (2, 2), (2, 1), (2, 0)]);
    }

    #[test]
    fn withdrawn_session_is_offered_nothing() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        manager.accept(HTTP, acceptor(1), 5);
        manager.accept(HTTP, acceptor(2), 2);
        // The same number at another session is another acceptor.
        let other = (PoolId(2), AcceptorId(1));
        manager.accept(HTTP, other, 1);
        assert_eq!([1, 2, 3].map(|number| manager.credit_of(HTTP, PoolId(number))), [7, 1, 0]);
        assert_eq!(manager.withdraw_session(HTTP, PoolId(1)), 7);
        assert_eq!(manager.withdraw_session(HTTP, PoolId(1)), 0);
        let offer = Offer { acceptor: AcceptorId(1), credit_left: 0 };
        assert_eq!(manager.on_incoming(HTTP), Some((PoolId(2), offer)));
        assert_eq!(manager.on_incoming(HTTP), None);
    }

    #[test]
    fn a_stale_listener_has_no_acceptor() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        let stale = ListenerId { generation: 0, ..HTTP };
        assert!(!manager.accept(stale, acceptor(1), 1));
        manager.remove_listener(stale);
        assert!(manager.accept(HTTP, acceptor(1), 1));
        manager.remove_listener(HTTP);
        assert_eq!(manager.on_incoming(HTTP), None);
        assert!(!manager.accept(ListenerId { index: 99, generation: 0 }, acceptor(1), 1));
    }

    #[test]
    fn a_listener_has_a_bounded_number_of_acceptors() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        for id in 0..ACCEPTORS_MAX as u64 {
            assert!(manager.accept(HTTP, acceptor(id), 1));
        }
        assert!(!manager.accept(HTTP, acceptor(u64::MAX), 1));
        assert!(manager.accept(HTTP, acceptor(0), u32::MAX), "credit saturates");
    }
}
