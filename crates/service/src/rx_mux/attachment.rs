//! A shard's place among the others: what it binds, and which flows arrive at it.
//!
//! Everything here is for commands; nothing of it is on the way of a frame.

use std::net::SocketAddr;
use std::sync::Arc;

use megapipe_stack::Handover;

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
        let table = lock(&self.shared.control).bindings.table();
        self.shared.steering.shard_of(&table, Transport::Tcp, &ends) == self.shard
    }

    /// Hands a connection over to the shard that takes its frames from now on, and wakes it.
    ///
    /// # Errors
    /// The handover, if no other shard listens at its address, or all masks leave its core out.
    pub fn hand_over(&self, handover: Handover) -> Result<(), Handover> {
        let ends = SteeringKey { src: handover.remote(), dst: handover.local() };
        let home = self.shared.steering.home(Transport::Tcp, &ends);
        // Until it is in the mailbox: a shard that stops listening looks there afterwards.
        let mut control = lock(&self.shared.control);
        let heir = control.bindings.heir(Transport::Tcp, ends.dst, home);
        let Some(heir) = heir.filter(|heir| *heir != self.shard) else { return Err(handover) };
        if self.shared.mailboxes[usize::from(heir)].put(handover) {
            let queue = lock(&self.shared.queues[0]);
            // An eventfd that cannot be written to is not there: no thread sleeps on it.
            let _ = queue.feeds[usize::from(heir)].bell.ring();
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
        sum
    }

    /// Changes something, and lets every queue go by it from its next burst on.
    fn change<R>(&self, change: impl FnOnce(&mut MuxControl) -> R) -> R {
        let mut control = lock(&self.shared.control);
        // All at once, so that no two queues go by different tables.
        let mut queues: Vec<_> = self.shared.queues.iter().map(lock).collect();
        for queue in &queues {
            for (row, _) in queue.used.iter().enumerate().filter(|(_, used)| **used) {
                control.bindings.mark_used(&queue.table, row);
            }
        }
        let result = change(&mut control);
        self.shared.changed();
        let table = Arc::new(control.bindings.table());
        for queue in &mut queues {
            queue.used.clear();
            queue.used.resize(table.rows(), false);
            queue.table = Arc::clone(&table);
        }
        result
    }
}
