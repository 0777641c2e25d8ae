//! What a channel knows of its listeners: who gets a connection that arrived, and where those go
//! that a leaving listener holds.
//!
//! Read first: `state.rs`, `partition.rs`.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::State;
use crate::buffer::ReadBuf;
use crate::completion::{Accepted, Connection, Event};
use crate::error::{Limit, OpError};
use crate::handle::Handle;
use crate::kernel::sys;
use crate::options::{Accept, AcceptAs};
use crate::partition::{self, Gift, Given};
use crate::slot::{Handed, Kind, NewConnection, ReadOp, Target};
use crate::timers::Due;

/// How long accepting pauses after descriptors ran out.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

impl State {
    /// The listener whose accepts a listener's connections answer: itself, or its heir.
    fn heir(&mut self, listener: u32) -> u32 {
        self.slot(listener).listener().and_then(|it| it.heir).unwrap_or(listener)
    }

    /// In which form the next connection is wanted; `None` if none is.
    pub(crate) fn accept_wanted(&mut self, listener: u32) -> Option<AcceptAs> {
        let heir = self.heir(listener);
        Some(self.slot(heir).listener()?.credits.front()?.kind)
    }

    /// The next accept, for as many connections as are wanted in its form before another.
    pub(crate) fn accept_asked(&mut self, listener: u32) -> Option<Accept> {
        let heir = self.heir(listener);
        let credits = &self.slot(heir).listener()?.credits;
        let next = *credits.front()?;
        let alike = credits
            .iter()
            .take_while(|other| (other.kind, other.exactly) == (next.kind, next.exactly));
        let count = alike.fold(0_u32, |sum, credit| sum.saturating_add(credit.count));
        Some(Accept { count, ..next })
    }

    /// Whether the next accept asks for the first bytes of its connections.
    #[cfg(feature = "local")]
    pub(crate) fn accept_reads(&mut self, listener: u32) -> bool {
        let next = self.slot(listener).listener().and_then(|queues| queues.credits.front());
        next.is_some_and(|accept| accept.first_read.is_some())
    }

    /// How many connections are wanted in all.
    pub(crate) fn accept_credit(&mut self, listener: u32) -> u32 {
        let credits = self.slot(listener).listener().map(|queues| &queues.credits);
        credits.into_iter().flatten().fold(0_u32, |sum, credit| sum.saturating_add(credit.count))
    }

    /// Connections accepted ahead.
    pub(crate) fn held_count(&mut self, listener: u32) -> usize {
        let heir = self.heir(listener);
        self.slot(heir).listener().map_or(0, |queues| queues.held.len())
    }

    /// A connection that was accepted ahead and is wanted now, and in which form.
    pub(crate) fn next_held(&mut self, listener: u32) -> Option<(NewConnection, AcceptAs)> {
        let queues = self.slot(listener).listener()?;
        let kind = queues.credits.front()?.kind;
        Some((queues.held.pop_front()?, kind))
    }

    /// A connection arrived: gives it to the accept that waits, or holds it.
    pub(crate) fn on_accepted(&mut self, listener: u32, arrived: NewConnection) -> Handed {
        let mut heir = listener;
        let mut queues = self.slots[listener as usize].listener();
        if let Some(other) = queues.as_deref().and_then(|queues| queues.heir) {
            heir = other;
            queues = self.slots[heir as usize].listener();
        }
        let Some(queues) = queues else {
            self.counters.connections_dropped += 1;
            return Handed::Refused;
        };
        let Some(credit) = queues.credits.front_mut() else {
            queues.held.push_back(arrived);
            return Handed::Held;
        };
        let accept = *credit;
        queues.use_credit();
        let pending = (queues.held.len() as u32, queues.connection);
        self.counters.accepted += 1;
        self.hand_out(heir, arrived, accept, pending)
    }

    fn hand_out(
        &mut self,
        listener: u32,
        arrived: NewConnection,
        accept: Accept,
        (pending, kind): (u32, Kind),
    ) -> Handed {
        let arrived = match (arrived, accept.kind) {
            (NewConnection::Fd(fd, unread), AcceptAs::Fd) if unread.is_empty() => {
                let connection = Connection::Fd(fd);
                self.complete(listener, Event::Accept(Ok(Accepted { connection, pending })));
                return Handed::Gone;
            }
            (arrived, _) => arrived,
        };
        let index = match self.allocate(kind, accept.cookie) {
            Ok(index) => index,
            Err(limit) => {
                let is_memory = limit == Limit::Memory;
                let error = if is_memory { OpError::NoMemory } else { OpError::TableFull };
                self.counters.connections_dropped += 1;
                self.complete(listener, Event::Accept(Err(error)));
                return Handed::Refused;
            }
        };
        match arrived {
            NewConnection::Direct(direct) => self.slot(index).target = Target::Direct(direct),
            NewConnection::Stack(conn, _) => self.slot(index).target = Target::Stack(conn),
            NewConnection::Fd(fd, unread) => {
                self.slot(index).set_fd(fd);
                if !unread.is_empty() {
                    self.on_received(index, ReadBuf::from_vec(unread));
                }
            }
        }
        let whose = (self.handle(listener), listener);
        self.ready.push_accepted(whose, self.handle(index), pending);
        if let Some(len) = accept.first_read {
            // The connection has no other read.
            let _ = self.queue_read(index, ReadOp { len: len as u32, with_sender: false });
            self.answer_reads(index);
        }
        Handed::To(index)
    }

    /// Listeners that stopped for want of descriptors may try again.
    pub(crate) fn take_exhausted_listeners(&mut self) -> Vec<u32> {
        let mut waiting = Vec::new();
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            if let Some(listener) = slot.listener()
                && listener.exhausted
            {
                listener.exhausted = false;
                waiting.push(index);
            }
        }
        self.exhausted_listeners = 0;
        waiting
    }

    /// A listener cannot go on for want of descriptors.
    pub(crate) fn note_exhausted(&mut self, listener: u32) {
        self.counters.accept_exhausted += 1;
        if let Some(queues) = self.slot(listener).listener()
            && !queues.exhausted
        {
            queues.exhausted = true;
            self.exhausted_listeners += 1;
        }
    }

    /// A connection arrived that cannot be had in the form that is wanted: an accept is used up.
    #[cfg(feature = "local")]
    pub(crate) fn on_accept_lost(&mut self, listener: u32, error: OpError) {
        self.counters.connections_dropped += 1;
        if let Some(queues) = self.slot(listener).listener() {
            queues.use_credit();
        }
        self.complete(listener, Event::Accept(Err(error)));
    }

    /// Accepting failed in a way that the program has to hear of.
    pub(crate) fn on_accept_failed(&mut self, listener: u32, error: OpError) {
        self.complete(listener, Event::Accept(Err(error)));
        match error.raw_os_error() {
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                self.note_exhausted(listener);
                let again = Instant::now().checked_add(EXHAUSTED_PAUSE);
                self.set_deadline(listener, again, Due::AcceptAgain);
            }
            _ => {
                // The socket itself is broken: asking again would fail for ever.
                if let Some(queues) = self.slot(listener).listener() {
                    queues.credits.clear();
                }
            }
        }
    }

    /// Whether a sibling channel would take what a leaving listener holds.
    pub(crate) fn has_sibling(&mut self, listener: u32) -> bool {
        let Some(socket) = self.slot(listener).fd.as_ref() else { return false };
        partition::has_taker(socket.as_fd())
    }

    /// Gives a connection of a leaving listener to a sibling; closes it if there is none.
    pub(crate) fn pass_on(&mut self, listener: u32, connection: OwnedFd, unread: Vec<u8>) {
        let Some(socket) = self.slot(listener).fd.as_ref() else { return };
        let passed = partition::give(socket.as_fd(), Given::Connection(connection, unread));
        self.count_passed(passed.is_ok());
    }

    pub(crate) fn pass_arrived(&mut self, listener: u32, arrived: NewConnection) {
        if let NewConnection::Fd(fd, unread) = arrived {
            self.pass_on(listener, fd, unread);
        }
    }

    /// Keeps a connection of a listener that leaves until the driver has let go of it.
    pub(crate) fn hold(&mut self, listener: u32, arrived: NewConnection) {
        if let Some(queues) = self.slot(listener).listener() {
            queues.held.push_back(arrived);
        }
    }

    /// Connections of a listener whose Accept completions were not handed out yet.
    pub(crate) fn take_unseen_accepts(&mut self, listener: u32) -> Vec<Connection> {
        let handle = self.handle(listener);
        self.take_unseen(handle, |event| match event {
            Event::Accept(Ok(accepted)) => Ok(accepted.connection),
            other => Err(other),
        })
    }

    /// Bytes of a stream whose Read completions were not handed out yet, oldest first.
    pub(crate) fn take_unseen_reads(&mut self, handle: Handle) -> Vec<ReadBuf> {
        self.take_unseen(handle, |event| match event {
            Event::Read(Ok(buffer)) => Ok(buffer),
            other => Err(other),
        })
    }

    /// Removes those of a handle's completions that `wanted` takes apart.
    fn take_unseen<T>(
        &mut self,
        handle: Handle,
        wanted: impl Fn(Event) -> Result<T, Event>,
    ) -> Vec<T> {
        let Self { ready, receive_pool, .. } = self;
        ready.take(handle, receive_pool, wanted)
    }

    /// Passes on what was given to a listener which is gone.
    pub(crate) fn pass_gift(&mut self, gift: Gift) {
        let is_connection = matches!(gift.content, Given::Connection(..));
        match partition::pass(gift) {
            Err(Given::Listener(socket, _)) => partition::close(&socket),
            passed if is_connection => self.count_passed(passed.is_ok()),
            _ => {}
        }
    }

    fn count_passed(&mut self, passed: bool) {
        if passed {
            self.counters.connections_passed += 1;
        } else {
            self.counters.connections_dropped += 1;
        }
    }

    /// Gives a leaving listener's socket to a sibling to be drained; closes it if there is none.
    pub(crate) fn pass_listener(&mut self, listener: u32) {
        let Some(queues) = self.slot(listener).listener() else { return };
        let (membership, until) = (queues.membership.take(), queues.drained_until);
        if membership.is_none() && until.is_none() {
            return;
        }
        let Some(socket) = self.slot(listener).fd.take() else { return };
        self.slot(listener).target = Target::None;
        let until = until.unwrap_or_else(partition::grace_end);
        if Instant::now() >= until {
            return self.close_drained(&socket);
        }
        let given = sys::duplicate(&socket)
            .is_ok_and(|it| partition::give(socket.as_fd(), Given::Listener(it, until)).is_ok());
        if !given {
            partition::close(&socket);
        }
    }

    /// Gives the connections that wait in the queue of a socket to a sibling, and closes it.
    pub(crate) fn close_drained(&mut self, socket: &OwnedFd) {
        while partition::has_taker(socket.as_fd())
            && let Ok(connection) = sys::accept_waiting(socket.as_fd())
        {
            let given = Given::Connection(connection, Vec::new());
            let passed = partition::give(socket.as_fd(), given);
            self.count_passed(passed.is_ok());
        }
        partition::close(socket);
    }
}
