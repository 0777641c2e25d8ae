//! Groups of listeners, such as those of one user of a shared stack, with limits that hold for all
//! listeners of a group together: backlogs and credit of many listeners cannot fill the tables.
//!
//! Read first: `listeners.rs`. Group 0 stands for none.
//!
//! Invariants
//! - `connections` counts each connection that began at a listener of the group until its place is
//!   free, and `waiting` those of them that are in a backlog.
//! - A group that is closed stays until nothing of it is left.

use alloc::vec::Vec;

use crate::id::ListenerGroupId;

/// What the listeners of a group may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerGroupLimits {
    /// Connections that are established and not reported.
    pub waiting: u32,
    /// Connections that began at one of the listeners, reported or not, until they end.
    pub connections: u32,
}

/// What the listeners of a group have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenerGroupUse {
    /// Connections that are established and not reported.
    pub waiting: u32,
    /// Connections that began at one of the listeners, until they end.
    pub connections: u32,
    /// Handshakes.
    pub half_open: u32,
    /// SYNs and last ACKs of handshakes that were dropped because too many connections waited.
    pub refused_waiting: u64,
    /// The same because there were too many connections.
    pub refused_connections: u64,
}

#[derive(Debug)]
struct ListenerGroup {
    limits: ListenerGroupLimits,
    usage: ListenerGroupUse,
    listeners: u32,
    is_open: bool,
}

impl ListenerGroup {
    const fn is_unused(&self) -> bool {
        let ListenerGroupUse { connections, half_open, .. } = self.usage;
        !self.is_open && self.listeners == 0 && connections == 0 && half_open == 0
    }
}

/// All groups of a shard.
#[derive(Debug)]
pub(crate) struct ListenerGroups {
    /// By number, less one.
    groups: Vec<Option<ListenerGroup>>,
    /// Handshakes that a group may have.
    half_open_max: u32,
}

impl ListenerGroups {
    /// In a shard with room for so many handshakes: a group may have half of them.
    pub(crate) const fn new(half_open: u32) -> Self {
        Self { groups: Vec::new(), half_open_max: half_open.div_ceil(2) }
    }

    /// Makes a group. `None`: there is no memory.
    pub(crate) fn open(&mut self, limits: ListenerGroupLimits) -> Option<ListenerGroupId> {
        let free = self.groups.iter().position(Option::is_none).unwrap_or(self.groups.len());
        let number = u16::try_from(free + 1).ok()?;
        if free == self.groups.len() {
            self.groups.try_reserve(1).ok()?;
            self.groups.push(None);
        }
        let usage = ListenerGroupUse::default();
        self.groups[free] = Some(ListenerGroup { limits, usage, listeners: 0, is_open: true });
        Some(ListenerGroupId(number))
    }

    /// No more listeners join a group, which is forgotten when nothing of it is left.
    pub(crate) fn close(&mut self, group: ListenerGroupId) {
        self.change(group.0, |group| group.is_open = false);
    }

    /// Replaces the limits of a group.
    pub(crate) fn limit(&mut self, group: ListenerGroupId, limits: ListenerGroupLimits) {
        self.change(group.0, |group| group.limits = limits);
    }

    pub(crate) fn usage(&self, group: ListenerGroupId) -> ListenerGroupUse {
        self.get(group.0).map_or_else(ListenerGroupUse::default, |group| group.usage)
    }

    /// Whether a group is there and not closed.
    pub(crate) fn is_open(&self, group: ListenerGroupId) -> bool {
        self.get(group.0).is_some_and(|group| group.is_open)
    }

    fn get(&self, group: u16) -> Option<&ListenerGroup> {
        self.groups.get(usize::from(group).checked_sub(1)?)?.as_ref()
    }

    fn change(&mut self, group: u16, how: impl FnOnce(&mut ListenerGroup)) {
        let Some(place) = usize::from(group).checked_sub(1) else { return };
        let Some(slot) = self.groups.get_mut(place) else { return };
        if let Some(group) = slot {
            how(group);
        }
        slot.take_if(|group| group.is_unused());
    }

    /// A listener with so many waiting connections and handshakes is of `to` instead of `from`.
    pub(crate) fn move_listener(
        &mut self,
        (from, to): (u16, u16),
        (waiting, half_open): (u32, u32),
    ) {
        self.change(to, |group| {
            group.listeners += 1;
            group.usage.waiting += waiting;
            group.usage.connections += waiting;
            group.usage.half_open += half_open;
        });
        self.change(from, |group| {
            group.listeners -= 1;
            group.usage.waiting -= waiting;
            group.usage.connections -= waiting;
            group.usage.half_open -= half_open;
        });
    }

    /// Whether one more connection may begin at a listener of a group; counted if not.
    #[inline]
    pub(crate) fn may_begin(&mut self, group: u16) -> bool {
        group == 0 || self.has_room(group)
    }

    fn has_room(&mut self, group: u16) -> bool {
        let mut has_room = true;
        self.change(group, |ListenerGroup { limits, usage, .. }| {
            let is_full = usage.connections >= limits.connections;
            usage.refused_connections += u64::from(is_full);
            usage.refused_waiting += u64::from(!is_full && usage.waiting >= limits.waiting);
            has_room = !is_full && usage.waiting < limits.waiting;
        });
        has_room
    }

    /// Whether a group may have one more connection, in whichever backlog.
    pub(crate) fn may_hold(&self, group: u16) -> bool {
        self.get(group).is_none_or(|it| it.usage.connections < it.limits.connections)
    }

    /// Whether a group may have one more handshake.
    pub(crate) fn may_begin_handshake(&self, group: u16) -> bool {
        group == 0 || self.get(group).is_none_or(|it| it.usage.half_open < self.half_open_max)
    }

    /// A connection waits in a backlog.
    #[inline]
    pub(crate) fn on_waiting(&mut self, group: u16) {
        if group != 0 {
            self.change(group, |group| {
                group.usage.waiting += 1;
                group.usage.connections += 1;
            });
        }
    }

    /// A connection has left its backlog, and goes on or ends.
    #[inline]
    pub(crate) fn on_left_backlog(&mut self, group: u16) {
        if group != 0 {
            self.change(group, |group| group.usage.waiting -= 1);
        }
    }

    /// The place of a connection is free.
    #[inline]
    pub(crate) fn on_end(&mut self, group: u16) {
        if group != 0 {
            self.change(group, |group| group.usage.connections -= 1);
        }
    }

    /// A handshake begins or ends.
    #[inline]
    pub(crate) fn on_handshake(&mut self, group: u16, begins: bool) {
        if group != 0 {
            self.change(group, |ListenerGroup { usage, .. }| match begins {
                true => usage.half_open += 1,
                false => usage.half_open -= 1,
            });
        }
    }

    /// Numbers of all groups, those included that are closed.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        (1..=self.groups.len() as u16).filter(|number| self.get(*number).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ListenerGroupLimits = ListenerGroupLimits { waiting: 2, connections: 3 };

    #[test]
    fn group_bounds_waiting_and_all_connections() {
        let mut groups = ListenerGroups::new(3);
        let group = groups.open(LIMITS).unwrap();
        groups.move_listener((0, group.0), (0, 0));
        let begin = |groups: &mut ListenerGroups| {
            let may = groups.may_begin(group.0);
            if may {
                groups.on_waiting(group.0);
            }
            may
        };
        assert_eq!([(); 3].map(|()| begin(&mut groups)), [true, true, false]);
        groups.on_left_backlog(group.0);
        assert_eq!([(); 2].map(|()| begin(&mut groups)), [true, false]);
        groups.on_left_backlog(group.0);
        assert!(!groups.may_hold(group.0) && !begin(&mut groups));
        groups.on_end(group.0);
        assert!(begin(&mut groups));
        let expected = ListenerGroupUse {
            waiting: 2,
            connections: 3,
            half_open: 0,
            refused_waiting: 1,
            refused_connections: 2,
        };
        assert_eq!(groups.usage(group), expected);
        assert!(groups.may_begin(0) && groups.may_hold(0), "no group has no limits");
    }

    #[test]
    fn group_has_half_of_the_handshakes() {
        let mut groups = ListenerGroups::new(3);
        let [one, other] = [(); 2].map(|()| groups.open(LIMITS).unwrap());
        for _ in 0..2 {
            assert!(groups.may_begin_handshake(one.0));
            groups.on_handshake(one.0, true);
        }
        assert!(!groups.may_begin_handshake(one.0) && groups.may_begin_handshake(other.0));
        groups.on_handshake(one.0, false);
        assert!(groups.may_begin_handshake(one.0) && groups.may_begin_handshake(0));
    }

    #[test]
    fn closed_group_stays_until_nothing_is_left() {
        let mut groups = ListenerGroups::new(8);
        let group = groups.open(LIMITS).unwrap();
        groups.move_listener((0, group.0), (2, 1));
        groups.close(group);
        assert!(!groups.is_open(group));
        groups.move_listener((group.0, 0), (1, 0));
        let other = groups.open(LIMITS).unwrap();
        assert_ne!(other, group, "it still has a connection and a handshake");
        groups.on_handshake(group.0, false);
        groups.on_left_backlog(group.0);
        groups.on_end(group.0);
        assert_eq!(groups.numbers().collect::<Vec<_>>(), [other.0]);
        assert_eq!(groups.open(LIMITS), Some(group), "the number is free");
    }
}
