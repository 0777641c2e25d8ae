//! A shard's place among the others: what it binds, and which flows arrive at it.
//!
//! Everything here is for commands; nothing of it is on the way of a frame.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use megapipe_stack::Handover;

use super::split_server::{LinkDoor, PausingServer};
use super::{MuxControl, MuxShared, SteeringCounters, lock};
use crate::steering::{BindingError, SteeringKey, Takes, Transport};

/// A shard's place among the others. Cloning gives another name for the same place.
#[derive(Clone)]
pub struct Attachment {
    shared: Arc<MuxShared>,
    shard: u16,
}

impl Attachment {
    pub(super) fn new(shared: &Arc<MuxShared>, shard: u16) -> Self {
        Self { shared: Arc::clone(shared), shard }
    }

    /// Which shard it is.
    #[must_use]
    pub const fn shard(&self) -> u16 {
        self.shard
    }

    /// Of how many.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shared.steering.shards()
    }

    /// The core that it runs on from now on.
    pub fn set_core(&self, core: Option<u32>) {
        self.change(|control| control.bindings.set_core(self.shard, core));
    }

    /// What arrives at `address` is this shard's, as `takes` says. `is_exclusive`: and no other's.
    ///
    /// # Errors
    /// [`BindingError`].
    pub fn bind(
        &self,
        address: (Transport, SocketAddr),
        takes: Takes,
        is_exclusive: bool,
    ) -> Result<(), BindingError> {
        // One who looks for a free port is answered without a change.
        if lock(&self.shared.control).bindings.is_taken(address, self.shard, is_exclusive) {
            return Err(BindingError::InUse);
        }
        self.change(|control| control.bindings.bind(address, self.shard, takes, is_exclusive))
    }

    /// Changes what a listener takes.
    ///
    /// # Errors
    /// [`BindingError`].
    pub fn rebind(
        &self,
        address: (Transport, SocketAddr),
        takes: Takes,
    ) -> Result<(), BindingError> {
        self.change(|control| control.bindings.change(address, self.shard, takes))
    }

    /// Nothing that arrives at `address` is this shard's any more.
    pub fn unbind(&self, address: (Transport, SocketAddr)) {
        self.change(|control| control.bindings.unbind(address, self.shard));
    }

    /// Whether some shard has bound an address.
    #[must_use]
    pub fn is_bound(&self, transport: Transport, address: SocketAddr) -> bool {
        lock(&self.shared.control).bindings.is_bound(transport, address)
    }

    /// Whether a port of the host's address is some shard's.
    #[must_use]
    pub fn owns(&self, transport: megapipe_link::Transport, port: u16) -> bool {
        let control = lock(&self.shared.control);
        control.owned.iter().flatten().any(|owned| owned.ports(transport).contains(port))
    }

    /// Whether frames of a connection of TCP, from `remote` to `local`, come to this shard as the
    /// bindings are now.
    #[must_use]
    pub fn is_home(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let ends = SteeringKey { src: remote, dst: local };
        let table = Arc::clone(&lock(&self.shared.control).table);
        self.shared.steering.shard_of(&table, Transport::Tcp, &ends) == self.shard
    }

    /// Hands a connection over to the shard that takes its frames from now on, and wakes it.
    ///
    /// # Errors
    /// The handover, if no other shard listens at its address, or all masks leave its core out.
    pub fn hand_over(&self, handover: Handover) -> Result<(), Handover> {
        let ends = SteeringKey { src: handover.remote(), dst: handover.local() };
        let home = self.shared.steering.default_shard(Transport::Tcp, &ends);
        // Until it is in the mailbox: a shard that stops listening looks there afterwards.
        let mut control = lock(&self.shared.control);
        let heir = control.bindings.heir(Transport::Tcp, ends.dst, home);
        let Some(heir) = heir.filter(|heir| *heir != self.shard) else { return Err(handover) };
        if self.shared.mailboxes[usize::from(heir)].put(handover) {
            // An eventfd that cannot be written to is not there: no thread sleeps on it.
            let _ = control.bells[usize::from(heir)].ring();
        }
        Ok(())
    }

    /// The shard is gone.
    pub(super) fn leave(&self) {
        self.change(|control| {
            control.bindings.leave(self.shard);
            control.owned[usize::from(self.shard)] = None;
        });
        for queue in &self.shared.queues {
            // No shard waits for it to serve the link.
            lock(queue).asleep[usize::from(self.shard)] = true;
        }
    }

    /// What all shards steered.
    #[must_use]
    pub fn counters(&self) -> SteeringCounters {
        let mut sum = SteeringCounters::default();
        for queue in &self.shared.queues {
            sum.add(&lock(queue).counters);
        }
        for door in &lock(&self.shared.control).doors {
            sum.add(&door.counters());
        }
        sum
    }

    /// Changes something, and lets every queue go by it from its next burst on.
    fn change<R>(&self, change: impl FnOnce(&mut MuxControl) -> R) -> R {
        let mut control = lock(&self.shared.control);
        // All at once, so that no two queues go by different tables.
        let mut queues: Vec<_> = self.shared.queues.iter().map(lock).collect();
        let pausing: Vec<_> = control.doors.iter().map(LinkDoor::pause).collect();
        let paused: Vec<_> = pausing.into_iter().filter_map(PausingServer::paused).collect();
        for queue in &queues {
            queue.used_rows().for_each(|row| control.bindings.mark_used(&queue.table, row));
        }
        for row in paused.iter().flat_map(|it| &it.used) {
            let table = Arc::clone(&control.table);
            control.bindings.mark_used(&table, *row);
        }
        let result = change(&mut control);
        self.shared.changed();
        let table = Arc::new(control.bindings.table());
        queues.iter_mut().for_each(|queue| queue.go_by(&table));
        paused.into_iter().for_each(|it| it.go_on(&table));
        control.table = table;
        // Behind the table, which shards then look for under the lock.
        self.shared.changes.fetch_add(1, Ordering::Release);
        result
    }
}
