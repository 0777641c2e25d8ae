//! Rings between the servers of a daemon: messages about new connections (PIKA).
//!
//! ```text
//!  server 0                                    server 1
//!    outbox 1 --- ring of records ------------->  inbox 0
//!    inbox 1  <------------- ring of records ---  outbox 0
//!                 one doorbell for each receiver
//! ```
//!
//! Read first: [PIKA 3.2, 3.3]; `megapipe_shm`'s `record/message.rs` and `doorbell.rs`.
//!
//! Each server has a ring to each other one, and a doorbell that all others ring. Rings are single
//! producer, single consumer; there is no lock. Messages that another server waits for wake it.
//! Offers and reports of service times do not, until a ring is half full: the receiver takes them
//! when it polls for another reason.
//!
//! Invariants
//! - Messages from one server to another arrive in the order in which they were sent.
//! - An offer without credit that there is no room for is dropped. Any other message waits at its
//!   sender for room, at most [`MAIL_WAITING_MAX`] of them; the receiver is woken then.
//! - A server that is armed and was not woken has no message that wakes.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use megapipe_shm::limits::BELL_BYTES;
use megapipe_shm::record::{Message, MessageSubject, Record};
use megapipe_shm::{Consumer, Producer, Region, Ringer, Sleeper, doorbell, ring, ring_bytes};

use crate::error::RemoteError;
use crate::limits::{MAIL_ENTRIES, MAIL_PER_POLL, MAIL_WAITING_MAX};

/// What a server sends to another one, and how it wakes it.
#[derive(Debug)]
struct MailOutbox {
    ring: Producer<Record>,
    /// Messages that the ring had no room for.
    waiting: VecDeque<Record>,
    bell: Ringer,
    /// Whether the receiver is to be woken.
    is_urgent: bool,
}

/// The ends that one server has of the rings between servers.
#[derive(Debug)]
pub(crate) struct ServerMail {
    /// By server; `None`: this one.
    inboxes: Vec<Option<Consumer<Record>>>,
    outboxes: Vec<Option<MailOutbox>>,
    sleeper: Sleeper,
    counters: MailCounters,
}

/// What was counted of a server's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MailCounters {
    /// Messages to other servers.
    pub sent: u64,
    /// Messages of other servers.
    pub received: u64,
    /// Times that another server was woken.
    pub wakes: u64,
    /// Messages that there was no room for.
    pub dropped: u64,
}

/// Whether the receiver is woken for a message. Service times and offers change which acceptor is
/// best, and nothing waits for them. An assignment only lowers a credit.
const fn is_urgent(subject: &MessageSubject) -> bool {
    use MessageSubject::{Answered, Assigned, Closed, Offer};
    !matches!(subject, Offer { .. } | Closed { .. } | Answered { .. } | Assigned { .. })
}

/// Connects `servers` servers, each with each.
///
/// # Errors
/// [`RemoteError`]: no memory, or no descriptor.
pub(crate) fn connect_servers(servers: usize) -> Result<Vec<ServerMail>, RemoteError> {
    let mut bells = Vec::with_capacity(servers);
    let mut mails = Vec::with_capacity(servers);
    for _ in 0..servers {
        let mut parts = Region::heap(BELL_BYTES)?.into_parts();
        let (sleeper, ringer) = doorbell(&mut parts)?;
        bells.push(ringer);
        let (inboxes, outboxes) = (Vec::with_capacity(servers), Vec::with_capacity(servers));
        let counters = MailCounters::default();
        mails.push(ServerMail { inboxes, outboxes, sleeper, counters });
    }
    for from in 0..servers {
        for (to, bell) in bells.iter().enumerate() {
            if from == to {
                mails[from].outboxes.push(None);
                mails[to].inboxes.push(None);
                continue;
            }
            let mut parts = Region::heap(ring_bytes::<Record>(MAIL_ENTRIES))?.into_parts();
            // The region was made for this ring.
            let (ring, inbox) = ring(&mut parts, MAIL_ENTRIES).map_err(RemoteError::from)?;
            let (waiting, is_urgent) = (VecDeque::new(), false);
            mails[from].outboxes.push(Some(MailOutbox {
                ring,
                waiting,
                bell: bell.clone(),
                is_urgent,
            }));
            mails[to].inboxes.push(Some(inbox));
        }
    }
    Ok(mails)
}

impl MailOutbox {
    /// Puts a message into the ring, or lets it wait. Returns whether it was taken.
    fn put(&mut self, message: &Message) -> bool {
        let record = message.record();
        let has_room = self.waiting.is_empty() && matches!(self.ring.reserve(1), Ok(1..));
        if has_room && self.ring.put(&record).is_ok() {
            self.is_urgent |= is_urgent(&message.subject);
            return true;
        }
        let may_wait = !matches!(message.subject, MessageSubject::Offer { credits: 0, .. });
        // A receiver that has ended takes nothing.
        let has_room = self.waiting.len() < MAIL_WAITING_MAX && !self.bell.has_ended();
        if may_wait && has_room {
            self.waiting.push_back(record);
            self.is_urgent = true;
        }
        may_wait && has_room
    }

    /// Publishes what was put. Returns whether the receiver was woken.
    fn flush(&mut self) -> bool {
        while let Some(record) = self.waiting.front()
            && matches!(self.ring.reserve(1), Ok(1..))
            && self.ring.put(record).is_ok()
        {
            self.waiting.pop_front();
        }
        let has_published = self.ring.commit() > 0;
        let half = self.ring.capacity() / 2;
        if has_published && !self.is_urgent {
            self.is_urgent = !matches!(self.ring.reserve(half), Ok(room) if room >= half);
        }
        if !self.is_urgent {
            return false;
        }
        self.is_urgent = !self.waiting.is_empty();
        // An eventfd that cannot be written to is closed: no server sleeps on it.
        self.bell.ring().unwrap_or(false)
    }
}

impl ServerMail {
    /// Sends a message to a server, which takes it after [`ServerMail::flush`].
    pub(crate) fn send(&mut self, to: u16, message: &Message) {
        let Some(Some(outbox)) = self.outboxes.get_mut(usize::from(to)) else { return };
        if outbox.put(message) {
            self.counters.sent += 1;
        } else {
            self.counters.dropped += 1;
        }
    }

    /// Publishes all messages, and wakes servers that sleep where a message wakes.
    #[inline]
    pub(crate) fn flush(&mut self) {
        for outbox in self.outboxes.iter_mut().flatten() {
            self.counters.wakes += u64::from(outbox.flush());
        }
    }

    /// Takes messages of other servers, a bounded number of each. Returns how many.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(u16, Message)) -> u32 {
        let mut count = 0;
        for (inbox, from) in self.inboxes.iter_mut().zip(0..) {
            let Some(inbox) = inbox else { continue };
            // Both ends are in this process: a ring that is broken has no messages.
            let waiting = inbox.peek(1).map_or(0, |waiting| waiting.min(MAIL_PER_POLL));
            for _ in 0..waiting {
                let Some(record) = inbox.take() else { break };
                count += 1;
                if let Ok(message) = Message::parse(&record) {
                    each(from, message);
                }
            }
            if waiting > 0 {
                inbox.release();
            }
        }
        self.counters.received += u64::from(count);
        count
    }

    /// Requests to be woken at [`ServerMail::fd`]. Returns `false` if messages wait, here or for
    /// room at another server.
    pub(crate) fn arm(&mut self) -> bool {
        self.sleeper.arm();
        let is_empty =
            self.inboxes.iter_mut().flatten().all(|inbox| matches!(inbox.peek(1), Ok(0) | Err(_)));
        is_empty && self.outboxes.iter().flatten().all(|outbox| outbox.waiting.is_empty())
    }

    /// Ends the request to be woken.
    #[inline]
    pub(crate) fn disarm(&self) {
        self.sleeper.disarm();
    }

    /// Clears rings that came at the descriptor.
    pub(crate) fn clear(&self) {
        // An eventfd of this process.
        let _ = self.sleeper.clear();
    }

    /// Readable when another server has rung.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }

    /// Returns the counters.
    pub(crate) const fn counters(&self) -> MailCounters {
        self.counters
    }
}

/// Also after a panic: no other server waits for room at this one.
impl Drop for ServerMail {
    fn drop(&mut self) {
        self.sleeper.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapipe_shm::record::{AcceptorRef, ConnRef};
    use std::net::SocketAddr;

    fn message(subject: MessageSubject) -> Message {
        Message { listener: SocketAddr::from(([10, 0, 0, 2], 80)), subject }
    }

    fn established(id: u64) -> Message {
        let conn = ConnRef { transport: 0, id, flow_hash: 0 };
        message(MessageSubject::Established { conn })
    }

    fn offer() -> Message {
        let acceptor = AcceptorRef { manager: 0, id: 1, enlistment: 0 };
        message(MessageSubject::Offer { acceptor, service_time_ns: 1, credits: 0 })
    }

    fn received(mail: &mut ServerMail) -> Vec<(u16, Message)> {
        let mut all = Vec::new();
        while mail.receive(|from, message| all.push((from, message))) > 0 {}
        all
    }

    #[test]
    fn messages_arrive_in_order_also_beyond_the_ring() {
        let mut mails = connect_servers(3).expect("memory");
        let count = u64::from(MAIL_ENTRIES) * 3;
        for id in 0..count {
            mails[0].send(2, &established(id));
        }
        let mut ids = Vec::new();
        for _ in 0..8 {
            mails[0].flush();
            ids.extend(received(&mut mails[2]));
        }
        let expected: Vec<_> = (0..count).map(|id| (0, established(id))).collect();
        assert_eq!(ids, expected);
        assert_eq!(received(&mut mails[1]), []);
        assert!(mails[0].arm() && mails[2].arm());
        assert_eq!((mails[0].counters().sent, mails[2].counters().received), (count, count));
    }

    #[test]
    fn offers_do_not_wake_and_are_dropped_where_there_is_no_room() {
        let mut mails = connect_servers(2).expect("memory");
        assert!(mails[1].arm());
        mails[0].send(1, &offer());
        mails[0].flush();
        assert_eq!(mails[0].counters().wakes, 0);
        assert_eq!(received(&mut mails[1]), [(0, offer())]);
        mails[0].send(1, &established(1));
        mails[0].flush();
        assert_eq!(mails[0].counters().wakes, 1);
        assert!(!mails[1].arm(), "there is a message");
        for _ in 0..MAIL_ENTRIES {
            mails[0].send(1, &offer());
            mails[0].flush();
        }
        assert_eq!((mails[0].counters().wakes, mails[0].counters().dropped), (2, 1));
    }

    #[test]
    fn messages_to_a_server_that_has_ended_are_dropped() {
        let mut mails = connect_servers(2).expect("memory");
        drop(mails.pop());
        for id in 0..u64::from(MAIL_ENTRIES) + 5 {
            mails[0].send(1, &established(id));
            mails[0].flush();
        }
        assert_eq!(mails[0].counters().dropped, 5);
        assert!(mails[0].arm());
    }
}
