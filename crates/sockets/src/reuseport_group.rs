//! SO_REUSEPORT groups: a listener of the channel, and the sockets that take its connections.
//!
//! Read first: socket(7) on SO_REUSEPORT; `listener.rs`; decision 0025.
//!
//! Mostly a group is one socket's. On our own stack an address has one listener in a shard, and
//! sockets that listen there with SO_REUSEPORT share it: a keyed hash of the connection's addresses
//! selects the socket, as in Linux.
//!
//! Invariants
//! - A group has a member; with the last one it closes.
//! - `asked` and what waits in the members' queues are together never more than what the members
//!   take ahead of the program, except after one of them left.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use megapipe::Handle;

use crate::error::Error;
use crate::index_table::IndexTable;
use crate::transport::ListenerTransport;

struct ReuseportGroup {
    handle: Handle,
    /// On our own stack.
    address: Option<SocketAddr>,
    /// The objects of the listening sockets, in the order in which they came.
    members: Vec<u32>,
    /// Connections that the channel was asked for and has not brought yet.
    asked: usize,
}

/// The members of a group that is to be opened.
pub(crate) struct GroupMembers(Vec<u32>);

/// The queue of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueLevel {
    /// Connections that wait for the program.
    pub(crate) queued: usize,
    pub(crate) is_full: bool,
}

/// The groups of a context.
#[derive(Default)]
pub(crate) struct ReuseportGroups {
    groups: IndexTable<ReuseportGroup>,
    /// The sum of what was asked for.
    asked: usize,
    /// Keys the hash, so that no client can choose the socket.
    hasher: RandomState,
}

impl ReuseportGroups {
    /// The index of the group that is opened next.
    pub(crate) const fn next(&self) -> u32 {
        self.groups.next()
    }

    /// Makes room for a group with its first member.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn prepare(&mut self, member: u32) -> Result<GroupMembers, Error> {
        self.groups.reserve(1)?;
        let mut members = Vec::new();
        members.try_reserve(1).map_err(|_| Error::NoMemory)?;
        members.push(member);
        Ok(GroupMembers(members))
    }

    /// A group, for which there is room, with its first member.
    pub(crate) fn open(
        &mut self,
        handle: Handle,
        address: Option<SocketAddr>,
        members: GroupMembers,
    ) -> u32 {
        self.groups.insert(ReuseportGroup { handle, address, members: members.0, asked: 0 })
    }

    /// One socket more takes connections to an address. Returns the group, if there is one.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn join(&mut self, address: SocketAddr, member: u32) -> Result<Option<u32>, Error> {
        let mut groups = self.groups.iter_mut();
        let found = groups.find(|(_, group)| group.address == Some(address));
        let Some((index, group)) = found else { return Ok(None) };
        group.members.try_reserve(1).map_err(|_| Error::NoMemory)?;
        group.members.push(member);
        Ok(Some(index))
    }

    /// A socket takes no more. Returns what has to be taken out of the channel, if it was the last.
    pub(crate) fn leave(&mut self, group: u32, member: u32) -> Option<Handle> {
        let entry = self.groups.get_mut(group)?;
        entry.members.retain(|other| *other != member);
        if !entry.members.is_empty() {
            return None;
        }
        let closed = self.groups.remove(group)?;
        self.asked -= closed.asked;
        Some(closed.handle)
    }

    pub(crate) fn handle(&self, group: u32) -> Handle {
        self.groups.get(group).map_or(Handle::NONE, |group| group.handle)
    }

    pub(crate) fn members(&self, group: u32) -> &[u32] {
        self.groups.get(group).map_or(&[], |group| &group.members)
    }

    /// Of some groups, the fewest connections that one was asked for and has not brought.
    pub(crate) fn asked_least(&self, groups: impl Iterator<Item = u32>) -> usize {
        groups.filter_map(|group| self.groups.get(group)).map(|it| it.asked).min().unwrap_or(0)
    }

    /// Connections that a group was asked for and has not brought.
    pub(crate) fn asked(&self, group: u32) -> usize {
        self.groups.get(group).map_or(0, |group| group.asked)
    }

    /// The same of all groups.
    pub(crate) const fn asked_of_all(&self) -> usize {
        self.asked
    }

    /// Connections to be asked for where the members of a group have `room` for so many together.
    pub(crate) fn missing(&self, group: u32, room: usize) -> usize {
        room.saturating_sub(self.asked(group))
    }

    /// Asks for `more` connections.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; the channel does not know the listener any more.
    pub(crate) fn request<T: ListenerTransport>(
        &mut self,
        group: u32,
        more: usize,
        transport: &mut T,
    ) -> Result<(), Error> {
        let Some(entry) = self.groups.get_mut(group) else { return Ok(()) };
        transport.accept(entry.handle, more as u32, group.into())?;
        entry.asked += more;
        self.asked += more;
        Ok(())
    }

    /// Counts anew what the channel was asked for, after an error, which may have used up a
    /// request.
    pub(crate) fn recount<T: ListenerTransport>(&mut self, group: u32, transport: &mut T) {
        let Some(entry) = self.groups.get_mut(group) else { return };
        let left = transport.accepts_left(entry.handle).min(entry.asked);
        self.asked -= entry.asked - left;
        entry.asked = left;
    }

    /// Selects the member that a connection is for. If the one that its hash selects is full, it is
    /// the one that has least in its queue.
    pub(crate) fn choose<T: ListenerTransport>(
        &mut self,
        group: u32,
        connection: Handle,
        level: impl Fn(u32) -> QueueLevel,
        transport: &mut T,
    ) -> Option<u32> {
        let entry = self.groups.get_mut(group)?;
        let brought = entry.asked.min(1);
        entry.asked -= brought;
        self.asked -= brought;
        let [first, _, ..] = entry.members[..] else { return entry.members.first().copied() };
        let place = self.hasher.hash_one(transport.addresses(connection));
        let place = place % entry.members.len() as u64;
        let chosen = entry.members.get(place as usize).copied().unwrap_or(first);
        if !level(chosen).is_full {
            return Some(chosen);
        }
        entry.members.iter().copied().min_by_key(|member| level(*member).queued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::fake::{FakeTransport, SubmittedOperation as Submitted};

    const FREE: QueueLevel = QueueLevel { queued: 0, is_full: false };

    fn address() -> SocketAddr {
        "10.0.0.1:80".parse().unwrap()
    }

    #[test]
    fn group_asks_for_what_its_members_have_room_for() {
        let (mut groups, mut transport) = (ReuseportGroups::default(), FakeTransport::local());
        let members = groups.prepare(5).unwrap();
        let group = groups.open(Handle::from_bits(1), Some(address()), members);
        assert_eq!(groups.missing(group, 3), 3);
        groups.request(group, 3, &mut transport).unwrap();
        assert_eq!((groups.missing(group, 3), groups.asked_of_all()), (0, 3));
        assert_eq!(transport.take(), [Submitted::Accept(3)], "they are on their way");
        let chosen = groups.choose(group, Handle::from_bits(9), |_| FREE, &mut transport);
        assert_eq!((chosen, groups.asked_least([group].into_iter())), (Some(5), 2));
        assert_eq!(groups.missing(group, 4), 2);
        groups.request(group, 2, &mut transport).unwrap();
        assert_eq!(transport.take(), [Submitted::Accept(2)]);
    }

    #[test]
    fn connections_are_spread_over_the_members() {
        let (mut groups, mut transport) = (ReuseportGroups::default(), FakeTransport::local());
        let members = groups.prepare(5).unwrap();
        let group = groups.open(Handle::from_bits(1), Some(address()), members);
        assert_eq!(groups.join(address(), 6), Ok(Some(group)));
        assert_eq!(groups.join("10.0.0.1:81".parse().unwrap(), 7), Ok(None));
        let mut counts = [0; 2];
        for connection in 0..200 {
            let handle = Handle::from_bits(connection);
            let chosen = groups.choose(group, handle, |_| FREE, &mut transport);
            let again = groups.choose(group, handle, |_| FREE, &mut transport);
            assert_eq!(chosen, again, "the same connection has the same member");
            counts[chosen.expect("it has members") as usize - 5] += 1;
        }
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }

    #[test]
    fn connection_of_a_full_member_goes_to_the_shortest_queue() {
        let (mut groups, mut transport) = (ReuseportGroups::default(), FakeTransport::local());
        let members = groups.prepare(5).unwrap();
        let group = groups.open(Handle::from_bits(1), Some(address()), members);
        let _ = (groups.join(address(), 6), groups.join(address(), 7));
        let level = |member| QueueLevel { queued: 10 - member as usize, is_full: true };
        for connection in 0..20 {
            let handle = Handle::from_bits(connection);
            assert_eq!(groups.choose(group, handle, level, &mut transport), Some(7));
        }
    }

    #[test]
    fn last_member_closes_the_group() {
        let mut groups = ReuseportGroups::default();
        let members = groups.prepare(5).unwrap();
        let group = groups.open(Handle::from_bits(1), Some(address()), members);
        let _ = groups.join(address(), 6);
        assert_eq!(groups.leave(group, 5), None);
        assert_eq!(groups.members(group), [6]);
        assert_eq!(groups.leave(group, 6), Some(Handle::from_bits(1)));
        assert_eq!((groups.handle(group), groups.members(group).len()), (Handle::NONE, 0));
    }
}
