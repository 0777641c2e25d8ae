//! DestinationPorts: how many ports of a shard connections have towards each destination, by
//! session and by user.
//!
//! A connection that a session began takes one of the shard's ports towards its peer's address and
//! port. There are few of them: one user must not take all.
//!
//! Connections in TIME-WAIT are not counted: their ports are used again after a second where the
//! peer has timestamps.
//!
//! Pure: connections in, counts out.
//!
//! Invariants
//! - A counted connection counts for one session and one user until it is removed.
//! - `levels[n]` is the number of destinations with `n` ports, and `most` the largest such `n`.
//! - Where there is no memory for a count, the connection is not counted.

use std::collections::HashMap;
use std::net::SocketAddr;

use megapipe_stack::{ConnId, PoolId};

/// The ports of one session or user.
#[derive(Debug, Default)]
struct OwnerPorts {
    towards: HashMap<SocketAddr, u32>,
    levels: Vec<u32>,
    most: u32,
}

impl OwnerPorts {
    /// Makes room for one more port. Returns whether there is memory for it.
    fn reserve(&mut self) -> bool {
        let levels = self.most as usize + 2;
        let missing = levels.saturating_sub(self.levels.len());
        self.towards.try_reserve(1).is_ok() && self.levels.try_reserve(missing).is_ok()
    }

    fn held(&self, remote: SocketAddr) -> u32 {
        self.towards.get(&remote).copied().unwrap_or(0)
    }

    /// One more port towards a destination, for which there is room.
    fn add(&mut self, remote: SocketAddr) {
        let ports = self.towards.entry(remote).or_insert(0);
        *ports += 1;
        let level = *ports as usize;
        if self.levels.len() <= level {
            self.levels.resize(level + 1, 0);
        }
        self.levels[level] += 1;
        self.levels[level - 1] = self.levels[level - 1].saturating_sub(1);
        self.most = self.most.max(*ports);
    }

    fn remove(&mut self, remote: SocketAddr) {
        let Some(ports) = self.towards.get_mut(&remote) else { return };
        let level = *ports as usize;
        *ports -= 1;
        if *ports == 0 {
            self.towards.remove(&remote);
        }
        self.levels[level] -= 1;
        self.levels[level - 1] += u32::from(level > 1);
        if self.levels[self.most as usize] == 0 {
            // This destination had the most, and has one less now.
            self.most -= 1;
        }
    }
}

/// A connection that is counted.
#[derive(Debug, Clone, Copy)]
struct CountedPort {
    generation: u32,
    session: PoolId,
    user: usize,
    remote: SocketAddr,
}

/// The counts of a shard.
#[derive(Debug, Default)]
pub(super) struct DestinationPorts {
    /// By the connection's index.
    conns: HashMap<u32, CountedPort>,
    sessions: HashMap<PoolId, OwnerPorts>,
    users: HashMap<usize, OwnerPorts>,
}

impl DestinationPorts {
    /// The ports of a session and of a user towards a destination.
    pub(super) fn held(&self, (session, user): (PoolId, usize), remote: SocketAddr) -> (u32, u32) {
        let held = |ports: Option<&OwnerPorts>| ports.map_or(0, |ports| ports.held(remote));
        (held(self.sessions.get(&session)), held(self.users.get(&user)))
    }

    /// The most ports of a session and of a user towards one destination.
    pub(super) fn most(&self, (session, user): (PoolId, usize)) -> (u32, u32) {
        let most = |ports: Option<&OwnerPorts>| ports.map_or(0, |ports| ports.most);
        (most(self.sessions.get(&session)), most(self.users.get(&user)))
    }

    /// Counts a connection.
    pub(super) fn add(&mut self, conn: ConnId, owner: (PoolId, usize), remote: SocketAddr) {
        let (session, user) = owner;
        self.remove_index(conn.index);
        let Self { conns, sessions, users } = self;
        let has_maps = conns.try_reserve(1).is_ok()
            && sessions.try_reserve(1).is_ok()
            && users.try_reserve(1).is_ok();
        if !has_maps {
            return;
        }
        let (own, its) = (sessions.entry(session).or_default(), users.entry(user).or_default());
        if own.reserve() && its.reserve() {
            own.add(remote);
            its.add(remote);
            let generation = conn.generation;
            conns.insert(conn.index, CountedPort { generation, session, user, remote });
        }
        self.forget_empty(owner);
    }

    /// A connection is over. Returns its session and user, if it was counted.
    pub(super) fn remove(&mut self, conn: ConnId) -> Option<(PoolId, usize)> {
        let counted = self.conns.get(&conn.index);
        let is_it = counted.is_some_and(|counted| counted.generation == conn.generation);
        if is_it { self.remove_index(conn.index) } else { None }
    }

    fn remove_index(&mut self, index: u32) -> Option<(PoolId, usize)> {
        let CountedPort { session, user, remote, .. } = self.conns.remove(&index)?;
        self.sessions.get_mut(&session).into_iter().for_each(|ports| ports.remove(remote));
        self.users.get_mut(&user).into_iter().for_each(|ports| ports.remove(remote));
        self.forget_empty((session, user));
        Some((session, user))
    }

    fn forget_empty(&mut self, (session, user): (PoolId, usize)) {
        let is_empty = |ports: Option<&OwnerPorts>| ports.is_some_and(|it| it.towards.is_empty());
        if is_empty(self.sessions.get(&session)) {
            self.sessions.remove(&session);
        }
        if is_empty(self.users.get(&user)) {
            self.users.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::RandomSequence;

    fn conn(index: u32) -> ConnId {
        ConnId { index, generation: 1 }
    }

    fn to(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 80))
    }

    #[test]
    fn ports_count_for_session_and_user_until_the_connection_is_over() {
        let mut ports = DestinationPorts::default();
        let [one, two] = [PoolId(1), PoolId(2)].map(|session| (session, 7));
        ports.add(conn(1), one, to(1));
        ports.add(conn(2), one, to(2));
        ports.add(conn(3), two, to(1));
        assert_eq!((ports.held(one, to(1)), ports.held(two, to(1))), ((1, 2), (1, 2)));
        assert_eq!((ports.held(one, to(2)), ports.held(two, to(2))), ((1, 1), (0, 1)));
        assert_eq!(ports.held((PoolId(3), 8), to(1)), (0, 0), "another user");
        assert_eq!((ports.most(one), ports.most(two)), ((1, 2), (1, 2)));
        let later = ConnId { generation: 2, ..conn(1) };
        assert_eq!(ports.remove(later), None, "another connection at its place");
        assert_eq!(ports.remove(conn(1)), Some(one));
        assert_eq!((ports.held(one, to(1)), ports.most(one)), ((0, 1), (1, 1)));
        // The place is used again before the end was seen.
        ports.add(ConnId { generation: 9, ..conn(3) }, one, to(3));
        assert_eq!((ports.held(two, to(1)), ports.held(one, to(3))), ((0, 0), (1, 1)));
        for index in 2..4 {
            ports.remove_index(index);
        }
        assert!(ports.conns.is_empty() && ports.sessions.is_empty() && ports.users.is_empty());
    }

    #[test]
    fn most_ports_are_those_of_the_destination_with_the_most() {
        let mut random = RandomSequence::new(3);
        let mut below = |count: usize| (random.next() % count as u64) as usize;
        let (mut ports, mut open, owner) =
            (DestinationPorts::default(), Vec::new(), (PoolId(1), 7));
        for index in 0..3_000 {
            if open.is_empty() || below(5) < if index < 1_500 { 3 } else { 2 } {
                let remote = to(below(4) as u8);
                ports.add(conn(index), owner, remote);
                open.push((index, remote));
            } else {
                let (index, _) = open.swap_remove(below(open.len()));
                assert_eq!(ports.remove(conn(index)), Some(owner));
            }
            let towards = |host| open.iter().filter(|(_, remote)| *remote == to(host)).count();
            let most = (0..4).map(towards).max().unwrap_or(0) as u32;
            assert_eq!(ports.most(owner), (most, most));
        }
    }
}
