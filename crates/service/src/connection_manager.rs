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

use megapipe_stack::ListenerId;

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
    id: AcceptorId,
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
}

impl ConnectionManager {
    /// No listeners yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener without acceptors.
    pub fn add_listener(&mut self, listener: ListenerId) {
        let index = listener.index as usize;
        if self.listeners.len() <= index {
            self.listeners.resize_with(index + 1, || None);
        }
        self.listeners[index] =
            Some(Listener { generation: listener.generation, acceptors: VecDeque::new() });
    }

    /// The listener is gone, and with it all acceptors' places.
    pub fn remove_listener(&mut self, listener: ListenerId) {
        if self.listener(listener).is_some() {
            self.listeners[listener.index as usize] = None;
        }
    }

    /// An acceptor is ready for `count` more connections. `false`: no such listener, or it has its
    /// maximum of acceptors.
    pub fn accept(&mut self, listener: ListenerId, acceptor: AcceptorId, count: u32) -> bool {
        let Some(queues) = self.listener(listener) else { return false };
        let known = queues.acceptors.iter().position(|known| known.id == acceptor);
        match known {
            Some(place) => {
                let credit = &mut queues.acceptors[place].credit;
                *credit = credit.saturating_add(count);
            }
            None if queues.acceptors.len() >= ACCEPTORS_MAX => return false,
            None => queues.acceptors.push_back(Acceptor { id: acceptor, credit: count }),
        }
        true
    }

    /// An acceptor takes no more; how much credit it had left.
    pub fn withdraw(&mut self, listener: ListenerId, acceptor: AcceptorId) -> u32 {
        let Some(queues) = self.listener(listener) else { return 0 };
        let place = queues.acceptors.iter().position(|known| known.id == acceptor);
        place.and_then(|place| queues.acceptors.remove(place)).map_or(0, |gone| gone.credit)
    }

    /// Picks the acceptor of a connection that was established. `None`: none has credit.
    pub fn on_incoming(&mut self, listener: ListenerId) -> Option<Offer> {
        let acceptors = &mut self.listener(listener)?.acceptors;
        if acceptors.len() == 1 {
            // No other to alternate with.
            let only = acceptors.front_mut().filter(|only| only.credit > 0)?;
            only.credit -= 1;
            return Some(Offer { acceptor: only.id, credit_left: only.credit });
        }
        for _ in 0..acceptors.len() {
            let mut front = acceptors.pop_front()?;
            let is_ready = front.credit > 0;
            front.credit -= u32::from(is_ready);
            let offer = Offer { acceptor: front.id, credit_left: front.credit };
            acceptors.push_back(front);
            if is_ready {
                return Some(offer);
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

    #[test]
    fn acceptors_take_polls_as_long_as_they_have_credit() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        assert!(manager.accept(HTTP, AcceptorId(1), 1));
        assert!(manager.accept(HTTP, AcceptorId(2), 2));
        assert!(manager.accept(HTTP, AcceptorId(2), 1));
        let mut order = Vec::new();
        while let Some(offer) = manager.on_incoming(HTTP) {
            order.push((offer.acceptor.0, offer.credit_left));
        }
        assert_eq!(order, [(1, 0), (2, 2), (2, 1), (2, 0)]);
    }

    #[test]
    fn who_withdraws_is_offered_nothing() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        manager.accept(HTTP, AcceptorId(1), 5);
        assert_eq!(manager.withdraw(HTTP, AcceptorId(1)), 5);
        assert_eq!(manager.withdraw(HTTP, AcceptorId(1)), 0);
        assert_eq!(manager.on_incoming(HTTP), None);
    }

    #[test]
    fn a_stale_listener_has_no_acceptor() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        let stale = ListenerId { generation: 0, ..HTTP };
        assert!(!manager.accept(stale, AcceptorId(1), 1));
        manager.remove_listener(stale);
        assert!(manager.accept(HTTP, AcceptorId(1), 1));
        manager.remove_listener(HTTP);
        assert_eq!(manager.on_incoming(HTTP), None);
        assert!(!manager.accept(ListenerId { index: 99, generation: 0 }, AcceptorId(1), 1));
    }

    #[test]
    fn a_listener_has_a_bounded_number_of_acceptors() {
        let mut manager = ConnectionManager::new();
        manager.add_listener(HTTP);
        for id in 0..ACCEPTORS_MAX as u64 {
            assert!(manager.accept(HTTP, AcceptorId(id), 1));
        }
        assert!(!manager.accept(HTTP, AcceptorId(u64::MAX), 1));
        assert!(manager.accept(HTTP, AcceptorId(0), u32::MAX), "credit saturates");
    }
}
