//! StrandedEvents: events of a session's connections whose received bytes wait for a receive buffer
//! of the session, in order.
//!
//! Read first: `events.rs`.
//!
//! Invariants
//! - `by_conn` has the number of events in `queue` of each connection, and no connection without.
//! - At most [`DATAGRAMS_PARKED_MAX`] are urgent notices: those a peer can cause without end.

use std::collections::{HashMap, VecDeque};

use megapipe_stack::{ConnId, Event};

use crate::limits::{DATAGRAMS_PARKED_MAX, WAITING_KEPT};

/// Events that wait.
#[derive(Debug, Default)]
pub(super) struct StrandedEvents {
    queue: VecDeque<Event>,
    by_conn: HashMap<ConnId, u32>,
    urgent: usize,
}

impl StrandedEvents {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.queue.iter()
    }

    /// Whether an event of a connection waits.
    #[inline]
    pub(super) fn has(&self, conn: ConnId) -> bool {
        !self.queue.is_empty() && self.by_conn.contains_key(&conn)
    }

    /// Whether one more event is dropped because so many of its kind wait.
    pub(super) fn drops(&self, event: Event) -> bool {
        matches!(event, Event::Urgent { .. }) && self.urgent >= DATAGRAMS_PARKED_MAX
    }

    /// Adds the latest event.
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
        self.count(event);
    }

    /// Puts the oldest event back.
    pub(super) fn put_back(&mut self, event: Event) {
        self.queue.push_front(event);
        self.count(event);
    }

    /// Takes the oldest event.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.urgent -= usize::from(matches!(event, Event::Urgent { .. }));
        if let Some(conn) = conn_of(event)
            && let Some(count) = self.by_conn.get_mut(&conn)
        {
            *count -= 1;
            if *count == 0 {
                self.by_conn.remove(&conn);
            }
        }
        if self.queue.is_empty() && self.queue.capacity() > WAITING_KEPT {
            *self = Self::default();
        }
        Some(event)
    }

    fn count(&mut self, event: Event) {
        self.urgent += usize::from(matches!(event, Event::Urgent { .. }));
        if let Some(conn) = conn_of(event) {
            *self.by_conn.entry(conn).or_insert(0) += 1;
        }
    }
}

/// The connection that an event is of.
pub(super) const fn conn_of(event: Event) -> Option<ConnId> {
    match event {
        Event::Incoming { conn, .. }
        | Event::Connected { conn }
        | Event::Received { conn, .. }
        | Event::Acked { conn, .. }
        | Event::Urgent { conn, .. }
        | Event::UnsentBelow { conn }
        | Event::PeerClosed { conn }
        | Event::Broken { conn, .. }
        | Event::Closed { conn, .. } => Some(conn),
        Event::Datagram { .. } | Event::DatagramRefused { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(index: u32) -> ConnId {
        ConnId { index, generation: 1 }
    }

    #[test]
    fn stranded_events_are_counted_by_connection() {
        let mut events = StrandedEvents::default();
        for index in [1, 2, 1] {
            events.push(Event::PeerClosed { conn: conn(index) });
        }
        assert!(events.has(conn(1)) && events.has(conn(2)) && !events.has(conn(3)));
        let first = events.pop().expect("three wait");
        assert!(events.has(conn(1)), "one more waits");
        events.put_back(first);
        assert_eq!((events.pop(), events.len()), (Some(first), 2));
        assert_eq!(events.pop(), Some(Event::PeerClosed { conn: conn(2) }));
        assert!(events.has(conn(1)) && !events.has(conn(2)));
        events.pop();
        assert!(events.is_empty() && !events.has(conn(1)) && events.by_conn.is_empty());
    }

    #[test]
    fn urgent_notices_that_wait_are_bounded() {
        let mut events = StrandedEvents::default();
        let urgent = Event::Urgent { conn: conn(1), bytes: 1 };
        while !events.drops(urgent) {
            events.push(urgent);
        }
        assert_eq!(events.len(), DATAGRAMS_PARKED_MAX);
        assert!(!events.drops(Event::PeerClosed { conn: conn(1) }));
        events.pop();
        assert!(!events.drops(urgent));
    }
}
