//! Leaving without losing a connection: what a channel gives its siblings, and takes from them.
//!
//! Read first: `partition.rs`. A listener that leaves gives its siblings what it accepted and then
//! its socket. Here is the other side: a gift arrives, and is treated as if this channel's own
//! listener had accepted it. And here a channel ends.

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::buffer::ReadBuf;
use crate::channel::Channel;
use crate::completion::{Connection, ToFd};
use crate::driver::Driver;
use crate::handle::Handle;
use crate::partition::Given;
use crate::slot::{Extra, Handed, Kind, Listener, NewConnection, SlotPhase, Target};
use crate::timers::Due;

impl<T> Channel<T> {
    /// The channel's eventfd was rung: by a `Waker`, or because there are gifts.
    pub(crate) fn on_woken(&mut self) {
        self.state.woken = false;
        self.waker.silence();
        if self.waker.take_asked() {
            self.state.complete_wake();
        }
        for gift in self.inbox.take() {
            // Where this channel has left the group too, after the gift was sent, it is passed on.
            match self.listener_of(gift.member) {
                None => self.state.pass_gift(gift),
                Some(listener) => match gift.content {
                    Given::Connection(fd, unread) => self.adopt_connection(listener, fd, unread),
                    Given::Listener(fd, until) => self.adopt_listener(listener, fd, until),
                },
            }
        }
    }

    fn listener_of(&mut self, member: u64) -> Option<u32> {
        let listeners: Vec<u32> = self.state.live_slots().map(|(index, _)| index).collect();
        listeners.into_iter().find(|&index| {
            let listener = self.state.slot(index).listener();
            listener
                .and_then(|it| it.membership.as_ref())
                .is_some_and(|membership| membership.id() == member)
        })
    }

    fn adopt_connection(&mut self, listener: u32, fd: OwnedFd, unread: Vec<u8>) {
        self.state.counters.connections_passed += 1;
        if let Handed::To(slot) = self.state.on_accepted(listener, NewConnection::Fd(fd, unread)) {
            // A connection that arrives as a descriptor has to be made known to the driver.
            if self.driver.attach(&mut self.state, slot).is_ok() && self.state.wants_data(slot) {
                self.driver.start_receive(&mut self.state, slot);
            }
        }
    }

    /// Connections that a leaving listener has accepted without a completion: they go to a
    /// sibling, or to the caller if there is none.
    pub(crate) fn rescue_unseen(&mut self, listener: u32) -> Vec<ToFd> {
        if let Some(queues) = self.state.slot(listener).listener() {
            // Taking one out looks at the kernel's answers, and a connection among them must be
            // held: as one more completion of a listener that is gone it would be lost.
            queues.credits.clear();
        }
        let mut rescued = Vec::new();
        for connection in self.state.take_unseen_accepts(listener) {
            match connection {
                Connection::Fd(fd) => rescued.push(ToFd { fd, unread: Vec::new() }),
                Connection::Lwsocket(handle) if self.hand_back(handle, &[]) => {}
                Connection::Lwsocket(handle) => rescued.extend(self.extract(handle)),
            }
        }
        if !self.state.has_sibling(listener) {
            return rescued;
        }
        for ToFd { fd, unread } in rescued {
            let unread = unread.iter().flat_map(|buffer| buffer.iter().copied()).collect();
            self.state.pass_on(listener, fd, unread);
        }
        Vec::new()
    }

    /// Gives an accepted connection of our own stack to another listener at its address, of this
    /// process or, on a daemon, of another one. Without one it is reset.
    ///
    /// Nothing may have been written to it. `seen` are the bytes of its completed reads, which the
    /// other listener's program reads first. The handle is gone then. Returns `false`, and changes
    /// nothing, for a connection of the kernel and for a handle that is stale or no connection.
    pub fn hand_back(&mut self, handle: Handle, seen: &[u8]) -> bool {
        let Ok(index) = self.state.find(handle) else { return false };
        #[cfg(feature = "local")]
        if self.state.peek(index).kind == Kind::Tcp
            && let Some(local) = self.driver.local()
            && crate::local::is_stacks(self.state.peek(index))
        {
            local.hand_back(&mut self.state, index, seen);
            self.detach(index);
            return true;
        }
        let _ = (index, seen);
        false
    }

    /// Takes an lwsocket out of the channel as a descriptor, at once.
    fn extract(&mut self, handle: Handle) -> Option<ToFd> {
        let index = self.state.find(handle).ok()?;
        let mut unread = self.state.take_unseen_reads(handle);
        self.state.retire(index);
        self.state.slot(index).phase = SlotPhase::Leaving;
        let fd = self.driver.withdraw(&mut self.state, index);
        let fd = match (fd, self.state.slot(index).target) {
            (None, Target::Direct(direct)) => self.take_direct(direct),
            (fd, _) => fd,
        };
        unread.append(&mut self.state.take_unread(index));
        self.state.release(index);
        fd.map(|fd| ToFd { fd, unread })
    }

    /// Makes a file descriptor of a direct one that no slot has any more.
    fn take_direct(&mut self, direct: u32) -> Option<OwnedFd> {
        let fd = self.driver.install(&mut self.state, direct);
        self.driver.discard(&mut self.state, direct);
        if fd.is_err() {
            self.state.counters.connections_dropped += 1;
        }
        fd.ok()
    }

    /// What a listener had accepted ahead when its descriptor goes back to the program.
    pub(crate) fn take_held(&mut self, listener: u32) -> Vec<ToFd> {
        let mut taken = Vec::new();
        while let Some(held) =
            self.state.slot(listener).listener().and_then(|it| it.held.pop_front())
        {
            let (fd, unread) = match held {
                NewConnection::Fd(fd, unread) => (Some(fd), unread),
                NewConnection::Direct(direct) => (self.take_direct(direct), Vec::new()),
                // It stays with the stack, which resets it when its listener goes.
                NewConnection::Stack(..) => continue,
            };
            let unread = if unread.is_empty() { vec![] } else { vec![ReadBuf::from_vec(unread)] };
            taken.extend(fd.map(|fd| ToFd { fd, unread }));
        }
        taken
    }

    fn adopt_listener(&mut self, heir: u32, fd: OwnedFd, until: Instant) {
        let Some(queues) = self.state.slot(heir).listener() else { return };
        let (connection, backlog) = (queues.connection, queues.backlog);
        let Ok(index) = self.state.allocate(Kind::Listener, 0) else {
            // The table of handles is full: what waits is saved, what is under way is not.
            return self.state.close_drained(&fd);
        };
        let mut listener = Listener::new(connection, backlog, None);
        listener.heir = Some(heir);
        listener.drained_until = Some(until);
        self.state.slot(index).extra = Some(Box::new(Extra::Listener(listener)));
        self.state.slot(index).set_fd(fd);
        if self.driver.attach(&mut self.state, index).is_err() {
            self.detach(index);
            return;
        }
        self.state.set_deadline(index, Some(until), Due::LeaveGrace);
        self.driver.start_accept(&mut self.state, index);
    }

    /// Sockets that are drained for siblings leave with the listener that inherits from them: they
    /// are passed on to the next heir.
    pub(crate) fn drop_adopted(&mut self, heir: u32) {
        let adopted: Vec<u32> = self
            .state
            .live_slots()
            .filter(|(_, slot)| {
                matches!(slot.extra.as_deref(),
                    Some(Extra::Listener(listener)) if listener.heir == Some(heir))
            })
            .map(|(index, _)| index)
            .collect();
        for index in adopted {
            self.detach(index);
        }
    }
}

impl<T> Drop for Channel<T> {
    fn drop(&mut self) {
        if self.check_fork().is_err() {
            // The rings and sockets are the parent's; closing our copies of the descriptors, which
            // dropping the fields does, leaves them alone.
            self.driver.abandon();
            return;
        }
        let listeners: Vec<u32> = self
            .state
            .live_slots()
            .filter(|(_, slot)| slot.kind == Kind::Listener)
            .map(|(index, _)| index)
            .collect();
        for index in listeners {
            // An adopted listener may have gone with its heir.
            if self.state.slot(index).is_live() {
                self.retreat(index);
                // What is rescued without a sibling is closed here.
                drop(self.rescue_unseen(index));
                self.detach(index);
            }
        }
        self.driver.shut_down(&mut self.state);
        for gift in self.inbox.take() {
            self.state.pass_gift(gift);
        }
    }
}
