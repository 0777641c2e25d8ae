//! Listeners of a shard, and the sessions that are their acceptors.
//!
//! Read first: `share_listeners.rs` for listeners that tokens own as well.
//!
//! Invariant: a listener has options from its begin until its last owner's end.

use std::net::SocketAddr;
use std::sync::Arc;

use megapipe_stack::{ListenerId, PoolId};

use super::ObjectOwners;
use crate::policy::SessionRights;
use crate::sharing::ListenerOptions;

#[derive(Debug, Default)]
pub(super) struct ListenerOwners {
    generation: u32,
    /// `None`: it has ended.
    options: Option<ListenerOptions>,
    /// The user whose session has begun it.
    user: u32,
    /// A token owns it, or has owned it: other sessions may be its acceptors even if it is
    /// exclusive.
    is_held: bool,
    /// Memory of its connections until a session owns them.
    pool: PoolId,
    /// Its acceptors.
    sessions: Vec<PoolId>,
}

impl ListenerOwners {
    /// Sessions of the user that has begun it may listen there.
    fn may_share(&self) -> bool {
        self.options.as_ref().is_some_and(|options| !options.sharing.is_exclusive)
    }
}

impl ObjectOwners {
    /// Whether a session listens on a listener.
    pub(in crate::remote::shard) fn has_listener(
        &self,
        session: PoolId,
        listener: ListenerId,
    ) -> bool {
        let owners = self.listeners.get(listener.index as usize);
        owners.is_some_and(|it| {
            it.generation == listener.generation && it.sessions.contains(&session)
        })
    }

    fn listener(&self, listener: ListenerId) -> Option<&ListenerOwners> {
        let owners = self.listeners.get(listener.index as usize)?;
        (owners.generation == listener.generation && owners.options.is_some()).then_some(owners)
    }

    fn listener_mut(&mut self, listener: ListenerId) -> Option<&mut ListenerOwners> {
        let owners = self.listeners.get_mut(listener.index as usize)?;
        (owners.generation == listener.generation && owners.options.is_some()).then_some(owners)
    }

    /// Whether any session or token has a listener.
    pub(in crate::remote::shard) fn is_listener(&self, listener: ListenerId) -> bool {
        self.listener(listener).is_some()
    }

    /// Where a listener listens, and how.
    pub(in crate::remote::shard) fn options_of(
        &self,
        listener: ListenerId,
    ) -> Option<&ListenerOptions> {
        self.listener(listener)?.options.as_ref()
    }

    /// The user whose session has begun a listener.
    pub(in crate::remote::shard) fn user_of_listener(&self, listener: ListenerId) -> Option<u32> {
        Some(self.listener(listener)?.user)
    }

    /// The user whose sessions may listen at a listener's address. `None`: it is exclusive.
    pub(in crate::remote::shard) fn sharer_of_listener(&self, listener: ListenerId) -> Option<u32> {
        let owners = self.listener(listener)?;
        owners.may_share().then_some(owners.user)
    }

    /// The session that listens on a listener, if it is one alone.
    pub(in crate::remote::shard) fn only_of_listener(
        &self,
        listener: ListenerId,
    ) -> Option<PoolId> {
        let owners = self.listeners.get(listener.index as usize)?;
        match owners.sessions[..] {
            [only] if owners.generation == listener.generation => Some(only),
            _ => None,
        }
    }

    /// The sessions that listen on a listener.
    pub(in crate::remote::shard) fn sessions_of_listener(&self, listener: ListenerId) -> &[PoolId] {
        self.listener(listener).map_or(&[], |owners| &owners.sessions)
    }

    /// The listener at an address that a session of a user may share.
    pub(in crate::remote::shard) fn listener_at(
        &self,
        session: PoolId,
        local: SocketAddr,
        user: u32,
    ) -> Option<ListenerId> {
        let mut all = self.listeners.iter().zip(0..);
        let may_join = |owners: &ListenerOwners| {
            owners.options.as_ref().is_some_and(|options| options.address == local)
                && owners.may_share()
                && owners.user == user
                && !owners.sessions.contains(&session)
        };
        let (owners, index) = all.find(|(owners, _)| may_join(owners))?;
        Some(ListenerId { index, generation: owners.generation })
    }

    /// The listener at an address that may have several acceptors. Addresses are compared as
    /// messages have them.
    pub(in crate::remote::shard) fn listener_of_address(
        &self,
        address: SocketAddr,
    ) -> Option<ListenerId> {
        let mut all = self.listeners.iter().zip(0..);
        let is_it = |owners: &ListenerOwners| {
            let local = owners.options.as_ref().map(|options| options.address);
            local.is_some_and(|local| (local.ip(), local.port()) == (address.ip(), address.port()))
                && (owners.is_held || owners.may_share())
        };
        let (owners, index) = all.find(|(owners, _)| is_it(owners))?;
        Some(ListenerId { index, generation: owners.generation })
    }

    /// A listener has begun, by a session of a user. There is a place for it.
    pub(in crate::remote::shard) fn set_options(
        &mut self,
        listener: ListenerId,
        options: ListenerOptions,
        user: u32,
    ) {
        if let Some(owners) = self.listeners.get_mut(listener.index as usize) {
            (owners.options, owners.user) = (Some(options), user);
        }
    }

    /// A listener has another limit of connections that begin with a SYN's data.
    pub(in crate::remote::shard) fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) {
        let options = self.listener_mut(listener).and_then(|owners| owners.options.as_mut());
        options.into_iter().for_each(|options| options.sharing.fast_open = pending_max);
    }

    /// A token owns a listener.
    pub(in crate::remote::shard) fn set_held(&mut self, listener: ListenerId) {
        self.listener_mut(listener).into_iter().for_each(|owners| owners.is_held = true);
    }

    /// A session listens on a listener, which may have others.
    pub(in crate::remote::shard) fn add_listener(&mut self, session: PoolId, listener: ListenerId) {
        let owners = self.listener_mut(listener);
        owners.into_iter().for_each(|owners| owners.sessions.push(session));
    }

    /// Makes room for one more session of a listener. Returns whether there is memory for it.
    pub(in crate::remote::shard) fn reserve_listener(&mut self, listener: ListenerId) -> bool {
        let index = listener.index as usize;
        let missing = (index + 1).saturating_sub(self.listeners.len());
        if self.listeners.try_reserve(missing).is_err() {
            return false;
        }
        let count = self.listeners.len() + missing;
        self.listeners.resize_with(count, ListenerOwners::default);
        let owners = &mut self.listeners[index];
        if owners.generation != listener.generation {
            *owners = ListenerOwners { generation: listener.generation, ..Default::default() };
        }
        owners.sessions.try_reserve(1).is_ok()
    }

    /// Received bytes of a listener's connections go to a pool until a session owns them.
    pub(in crate::remote::shard) fn set_listener_pool(
        &mut self,
        listener: ListenerId,
        pool: PoolId,
    ) {
        if let Some(owners) = self.listeners.get_mut(listener.index as usize)
            && owners.generation == listener.generation
        {
            owners.pool = pool;
        }
    }

    /// That pool, and the rights of the session that has listened longest.
    pub(in crate::remote::shard) fn account_of_listener(
        &self,
        listener: ListenerId,
    ) -> (PoolId, Option<Arc<SessionRights>>) {
        let Some(owners) = self.listeners.get(listener.index as usize) else {
            return (PoolId(0), None);
        };
        let first = owners.sessions.first().map(|first| usize::from(first.0));
        (owners.pool, first.and_then(|first| self.rights.get(first)?.clone()))
    }

    /// A session leaves a listener.
    pub(in crate::remote::shard) fn remove_listener(
        &mut self,
        session: PoolId,
        listener: ListenerId,
    ) {
        if let Some(owners) = self.listener_mut(listener) {
            owners.sessions.retain(|other| *other != session);
        }
    }

    /// A listener has no owner any more.
    pub(in crate::remote::shard) fn end_listener(&mut self, listener: ListenerId) {
        if let Some(owners) = self.listener_mut(listener) {
            *owners = ListenerOwners { generation: listener.generation, ..Default::default() };
        }
    }

    /// A listener of a session.
    pub(in crate::remote::shard) fn first_listener(&self, session: PoolId) -> Option<ListenerId> {
        let mut with_index = self.listeners.iter().zip(0..);
        let its = with_index.find(|(owners, _)| owners.sessions.contains(&session));
        its.map(|(owners, index)| ListenerId { index, generation: owners.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::Sharing;

    const ONE: PoolId = PoolId(1);
    const TWO: PoolId = PoolId(2);

    fn begin(
        owners: &mut ObjectOwners,
        (session, listener): (PoolId, ListenerId),
        (address, is_exclusive): (SocketAddr, bool),
    ) {
        assert!(owners.reserve_listener(listener));
        let sharing = Sharing { is_exclusive, ..Sharing::default() };
        owners.set_options(listener, ListenerOptions { address, backlog: 8, sharing }, 7);
        owners.add_listener(session, listener);
    }

    #[test]
    fn exclusive_listener_is_named_by_messages_only_if_it_is_held() {
        let mut owners = ObjectOwners::new(8);
        let listener = ListenerId { index: 0, generation: 3 };
        let local: SocketAddr = "10.0.0.1:80".parse().unwrap();
        begin(&mut owners, (ONE, listener), (local, true));
        assert_eq!(owners.sharer_of_listener(listener), None);
        assert_eq!(owners.listener_at(TWO, local, 7), None);
        assert_eq!(owners.listener_of_address(local), None, "it has one acceptor");
        owners.set_held(listener);
        assert_eq!(owners.listener_of_address(local), Some(listener));
        assert_eq!(owners.listener_at(TWO, local, 7), None, "without a token");
        owners.end_listener(listener);
        assert_eq!(owners.listener_of_address(local), None);
    }

    #[test]
    fn listener_may_have_several_sessions() {
        let mut owners = ObjectOwners::new(8);
        let listener = ListenerId { index: 1, generation: 0 };
        let local: SocketAddr = "10.0.0.1:80".parse().unwrap();
        assert_eq!(owners.listener_at(TWO, local, 7), None);
        begin(&mut owners, (ONE, listener), (local, false));
        for (session, local, user, known) in [
            (TWO, local, 7, Some(listener)),
            (TWO, local, 8, None),
            (ONE, local, 7, None),
            (TWO, SocketAddr::new(local.ip(), 81), 7, None),
        ] {
            assert_eq!(owners.listener_at(session, local, user), known, "{session:?} {user:?}");
        }
        assert_eq!(owners.only_of_listener(listener), Some(ONE));
        owners.add_listener(TWO, listener);
        assert_eq!(owners.only_of_listener(listener), None);
        assert!(owners.has_listener(ONE, listener) && owners.has_listener(TWO, listener));
        assert!(!owners.has_listener(ONE, ListenerId { generation: 1, ..listener }));
        owners.remove_listener(ONE, listener);
        assert_eq!(owners.first_listener(ONE), None);
        assert_eq!(owners.first_listener(TWO), Some(listener));
        assert_eq!(owners.sessions_of_listener(listener), [TWO]);
        owners.remove_listener(TWO, listener);
        assert!(owners.is_listener(listener) && owners.sessions_of_listener(listener).is_empty());
        assert_eq!(owners.listener_at(ONE, local, 7), Some(listener), "a token may own it");
        owners.end_listener(listener);
        assert!(!owners.is_listener(listener) && owners.listener_at(ONE, local, 7).is_none());
    }
}
