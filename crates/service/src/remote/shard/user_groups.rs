//! UserGroups: the groups of listeners of a shard's stack, one for each user with quotas.
//!
//! Connections that wait in backlogs, and those that come on credit given in advance, count for no
//! session yet. The stack counts all connections that began at the listeners of a user until they
//! end, so that no user fills a shard's table of connections: it has at most `user.connections` and
//! `user.waiting` together there, and at most `user.waiting` in the backlogs.
//!
//! Read first: `listener_groups.rs` of the stack; the decision on groups of listeners in
//! `docs/decisions`.
//!
//! Invariants
//! - A group stays as long as it has a listener or a connection: a user that listens again has the
//!   same group.
//! - Its limits are the largest of the quotas that its listeners' sessions had.

use std::sync::Arc;

use megapipe_stack::{
    ListenerGroupId, ListenerGroupLimits, ListenerGroupUse, ListenerId, OperationError, Stack,
};

use crate::policy::{QuotaKind, SessionRights, UserAccount};

/// The listeners of a user.
#[derive(Debug)]
struct UserGroup {
    account: Arc<UserAccount>,
    group: ListenerGroupId,
    limits: ListenerGroupLimits,
    listeners: Vec<ListenerId>,
    /// What the account shows.
    shown: ListenerGroupUse,
}

/// The groups of a shard.
#[derive(Debug, Default)]
pub(super) struct UserGroups {
    groups: Vec<UserGroup>,
    shard: u16,
}

/// The limits by the quotas of a user. `None`: it has none.
fn limits_of(rights: &SessionRights) -> Option<ListenerGroupLimits> {
    let waiting = rights.limit(QuotaKind::UserWaiting);
    let connections = rights.limit(QuotaKind::UserConnections).saturating_add(waiting);
    let is_limited = waiting.min(connections) < u32::MAX;
    is_limited.then_some(ListenerGroupLimits { waiting, connections })
}

impl UserGroups {
    /// A new listener counts for the user that `rights` name.
    ///
    /// # Errors
    /// [`OperationError::QueueFull`]: there is no memory.
    pub(super) fn join(
        &mut self,
        stack: &mut Stack,
        listener: ListenerId,
        (shard, rights): (u16, &SessionRights),
    ) -> Result<(), OperationError> {
        let Some(limits) = limits_of(rights) else { return Ok(()) };
        self.shard = shard;
        let account = rights.account();
        let known = self.groups.iter_mut().position(|it| Arc::ptr_eq(&it.account, account));
        let place = match known {
            Some(place) => place,
            None => self.open(stack, account, limits).ok_or(OperationError::QueueFull)?,
        };
        let its = &mut self.groups[place];
        its.listeners.try_reserve(1).map_err(|_| OperationError::QueueFull)?;
        its.limits.waiting = its.limits.waiting.max(limits.waiting);
        its.limits.connections = its.limits.connections.max(limits.connections);
        stack.limit_listener_group(its.group, its.limits);
        stack.set_listener_group(listener, its.group)?;
        its.listeners.push(listener);
        Ok(())
    }

    fn open(
        &mut self,
        stack: &mut Stack,
        account: &Arc<UserAccount>,
        limits: ListenerGroupLimits,
    ) -> Option<usize> {
        self.groups.try_reserve(1).ok()?;
        let group = stack.open_listener_group(limits)?;
        let (account, shown) = (Arc::clone(account), ListenerGroupUse::default());
        self.groups.push(UserGroup { account, group, limits, listeners: Vec::new(), shown });
        Some(self.groups.len() - 1)
    }

    /// A listener is gone.
    pub(super) fn leave(&mut self, stack: &mut Stack, listener: ListenerId) {
        self.groups.iter_mut().for_each(|it| it.listeners.retain(|its| *its != listener));
        self.publish(stack);
    }

    /// Shows the accounts what the groups have, and forgets those of which nothing is left.
    pub(super) fn publish(&mut self, stack: &mut Stack) {
        let shard = self.shard;
        self.groups.retain_mut(|UserGroup { account, group, listeners, shown, .. }| {
            let now = stack.listener_group_use(*group);
            let is_unused = listeners.is_empty() && now.connections == 0 && now.half_open == 0;
            if now != *shown || is_unused {
                let refusals = |kind, now: u64, before: u64| {
                    account.note_refusals(kind, now.saturating_sub(before));
                };
                let (waiting, all) = (QuotaKind::UserWaiting, QuotaKind::UserConnections);
                refusals(waiting, now.refused_waiting, shown.refused_waiting);
                refusals(all, now.refused_connections, shown.refused_connections);
                account.show_waiting(shard, now.waiting);
                *shown = now;
            }
            if is_unused {
                stack.close_listener_group(*group);
            }
            !is_unused
        });
    }
}
