//! Listeners that tokens own: what a shard keeps of them beside their acceptors.
//!
//! Read first: `ownership.rs` for who owns what; `share_listeners.rs` for the operations.
//!
//! The sessions that own a listener are its acceptors, which `owners.rs` has; so the machine has
//! the tokens alone. While no session owns a listener its backlog collects connections, as no
//! acceptor has credit for them.
//!
//! Invariants
//! - A listener that a token has owned has a state until it ends.
//! - A listener that no session owns is owned by a token, and counts for the user of one.

use std::collections::HashMap;
use std::sync::Arc;

use megapipe_stack::{ListenerId, PoolId};

use super::ownership::SharedOwnership;
use crate::descriptors::KeptPort;
use crate::policy::QuotaCharge;

/// A listener that a token owns or has owned.
#[derive(Debug, Default)]
struct HeldListener {
    /// Sockets that reserve its port at the host, of the sessions that have shared it.
    kept: Vec<Arc<KeptPort>>,
    /// It counts for the user of a token, since no session owns it.
    charge: Option<QuotaCharge>,
}

/// The listeners of a shard that tokens own.
#[derive(Debug, Default)]
pub(super) struct HeldListeners {
    pub(super) owners: SharedOwnership<ListenerId, PoolId, u64>,
    states: HashMap<ListenerId, HeldListener>,
}

impl HeldListeners {
    /// Whether sockets reserve the port of a listener until it ends.
    pub(super) fn keeps_port(&self, listener: ListenerId) -> bool {
        self.states.get(&listener).is_some_and(|state| !state.kept.is_empty())
    }

    /// A token owns a listener from now on, whose port is reserved by `kept`, too.
    pub(super) fn hold(&mut self, token: u64, listener: ListenerId, kept: Option<Arc<KeptPort>>) {
        self.owners.hold(token, listener, None);
        self.states.entry(listener).or_default().kept.extend(kept);
    }

    /// A listener that tokens alone own counts for the user of one.
    pub(super) fn set_charge(&mut self, listener: ListenerId, charge: Option<QuotaCharge>) {
        if let Some(state) = self.states.get_mut(&listener) {
            state.charge = charge;
        }
    }

    /// A listener ends. Returns the sockets that reserve its port.
    pub(super) fn remove(&mut self, listener: ListenerId) -> Vec<Arc<KeptPort>> {
        self.owners.forget(listener);
        self.states.remove(&listener).map(|state| state.kept).unwrap_or_default()
    }

    /// The listeners that have a state.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }
}
