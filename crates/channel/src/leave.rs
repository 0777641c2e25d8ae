//! Leaving without losing a connection: what a channel gives its siblings, and takes from them.
//!
//! Read first: `partition.rs`. A listener that leaves gives its siblings what it accepted and then
//! its socket. Here is the other side: a gift arrives, and is treated as if this channel's own
//! listener had accepted it. And here a channel ends.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::limits::LEAVE_GRACE_MS;
use crate::partition::{self, Gift};
use crate::slot::{Arrived, Extra, Handed, Kind, Listener};
use crate::timers::Due;

impl Channel {
    /// The channel's eventfd was rung: by a `Waker`, or because there are gifts.
    pub(crate) fn on_woken(&mut self) {
        self.state.woken = false;
        self.waker.silence();
        if self.waker.take_asked() {
            self.state.complete_wake();
        }
        for gift in self.inbox.take() {
            match gift {
                Gift::Connection(id, fd) => self.adopt_connection(id, fd),
                Gift::Listener(id, fd) => self.adopt_listener(id, fd),
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

    fn adopt_connection(&mut self, member: u64, fd: OwnedFd) {
        let Some(listener) = self.listener_of(member) else {
            // This channel left the group too, after the gift was sent: pass it on.
            self.state.pass_gift(fd);
            return;
        };
        self.state.counters.connections_passed += 1;
        if let Handed::To(slot) = self.state.on_accepted(listener, Arrived::Fd(fd)) {
            // A connection that arrives as a descriptor has to be made known to the driver.
            if self.driver.attach(&mut self.state, slot).is_ok() && self.state.wants_data(slot) {
                self.driver.start_receive(&mut self.state, slot);
            }
        }
    }

    fn adopt_listener(&mut self, member: u64, fd: OwnedFd) {
        let heir = self.listener_of(member);
        let adopted = heir.and_then(|heir| {
            let queues = self.state.slot(heir).listener()?;
            let (connection, backlog) = (queues.connection, queues.backlog);
            let index = self.state.allocate(Kind::Listener, 0).ok()?;
            let mut listener = Listener::new(connection, backlog, None);
            listener.heir = Some(heir);
            self.state.slot(index).extra = Some(Box::new(Extra::Listener(listener)));
            Some(index)
        });
        let Some(index) = adopted else {
            partition::close(&fd);
            return;
        };
        self.state.slot(index).set_fd(fd);
        if self.driver.attach(&mut self.state, index).is_err() {
            self.detach(index);
            return;
        }
        let grace = Instant::now().checked_add(Duration::from_millis(LEAVE_GRACE_MS));
        self.state.set_deadline(index, grace, Due::LeaveGrace);
        self.driver.start_accept(&mut self.state, index);
    }

    /// Sockets that are drained for siblings end with the listener that inherits from them.
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

impl Drop for Channel {
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
                self.detach(index);
            }
        }
        self.driver.shut_down(&mut self.state);
        for gift in self.inbox.take() {
            if let Gift::Connection(_, fd) = gift {
                self.state.pass_gift(fd);
            }
        }
    }
}
