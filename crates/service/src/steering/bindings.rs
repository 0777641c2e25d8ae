//! Which shards listen where, and so who gets what comes for a port.
//!
//! Without a binding a flow belongs to its *home*, the default shard of its hash. A listener or
//! endpoint binds its address to a shard. If every shard binds an address, each serves its own
//! home, and there is nothing to look up. Otherwise the homes that have no listener of their own
//! are served by another, as on the kernel's back end:
//!
//! - a listener with a mask takes the homes of the shards that run on the mask's cores;
//! - homes that no mask takes are spread over the listeners without a mask;
//! - if there are none of those, they stay where they are, and are refused there, even if that
//!   shard listens for other cores.
//!
//! When a listener comes, goes, or changes its mask, connections go on where they are: a
//! [`BindingTable`] remembers which shards had a home before, and a shard that does not know a flow
//! passes its packets on to those ([`BindingTable::before`]).
//!
//! Invariants
//! - Of the masks of one address no two have a core in common.
//! - A table is never changed: a new one takes its place.
//! - Former shards of a home keep their order: a packet that has asked some of them asks the others
//!   next, also after a change.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use megapipe_stack::wire::Protocol;

use super::hash::SteeringKey;
use crate::limits::{BOUND_ADDRESSES_MAX, FORMER_SHARDS_MAX};

/// Whose ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The one with ports, of the protocols that we speak.
    #[must_use]
    pub const fn of(protocol: Protocol) -> Option<Self> {
        match protocol {
            Protocol::Tcp => Some(Self::Tcp),
            Protocol::Udp => Some(Self::Udp),
            Protocol::Icmp | Protocol::Icmp6 => None,
        }
    }
}

/// Which homes a listener takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takes {
    /// Those of the shards that run on these cores, ascending.
    Cores(Vec<u32>),
    /// Those that no mask names.
    Rest,
}

/// Why an address was not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    /// Another shard has it, and one of the two does not share.
    #[error("another shard has the address to itself")]
    InUse,
    /// Another listener's mask has this core.
    #[error("another listener takes core {core}")]
    Overlap {
        /// The smallest core that both have.
        core: u32,
    },
    /// A mask without cores.
    #[error("a mask names no core")]
    NoCore,
    /// The table of addresses is full.
    #[error("too many addresses are bound")]
    Full,
    /// There is no such binding to change.
    #[error("the address is not bound")]
    NotBound,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    shard: u16,
    takes: Takes,
    is_exclusive: bool,
}

type Key = (Transport, SocketAddr);

/// Who gets the packets of each home, by the home.
type Row = Box<[Served]>;

/// Who gets the packets of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// This shard.
    pub shard: u16,
    /// But it refuses new connections: the masks of all listeners leave the home's core out.
    pub refuses: bool,
}

/// The row of one address, and where its connections may be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rows {
    now: Row,
    /// Shards that had each home while connections may have begun there, the first first.
    former: Box<[Vec<u16>]>,
    /// By home: connections may have begun where `now` has it.
    used: Box<[bool]>,
}

impl Rows {
    fn new(now: Row) -> Self {
        let former = now.iter().map(|_| Vec::new()).collect();
        let used = now.iter().map(|_| false).collect();
        Self { now, former, used }
    }

    /// Homes are served by others from now on.
    fn change(&mut self, now: Row) {
        for (home, (old, new)) in self.now.iter().zip(&now).enumerate() {
            let former = &mut self.former[home];
            if old.shard == new.shard || !std::mem::take(&mut self.used[home]) {
                continue;
            }
            if !former.contains(&old.shard) {
                if former.len() == FORMER_SHARDS_MAX {
                    former.remove(0);
                }
                former.push(old.shard);
            }
        }
        self.now = now;
    }

    /// Nothing of the shard's is left.
    fn forget(&mut self, shard: u16) {
        self.former.iter_mut().for_each(|former| former.retain(|other| *other != shard));
    }

    /// No packet goes by the row: each home serves itself, and always has.
    fn is_plain(&self) -> bool {
        is_identity(&self.now) && self.former.iter().all(Vec::is_empty)
    }
}

/// Who listens where: what a change is made in. [`Bindings::table`] is what packets go by.
#[derive(Debug)]
pub struct Bindings {
    /// The core of each shard; `None`: it is not there, or runs on no core in particular.
    cores: Vec<Option<u32>>,
    members: BTreeMap<Key, Vec<Member>>,
    rows: BTreeMap<Key, Rows>,
}

impl Bindings {
    /// No bindings.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        Self { cores: vec![None; shards.into()], members: BTreeMap::new(), rows: BTreeMap::new() }
    }

    /// A shard runs on this core from now on.
    pub fn set_core(&mut self, shard: u16, core: Option<u32>) {
        if let Some(place) = self.cores.get_mut(usize::from(shard)) {
            *place = core;
        }
        let keys: Vec<Key> = self.members.keys().copied().collect();
        keys.into_iter().for_each(|key| self.settle(key));
    }

    /// A shard listens at `address`, port and all. `is_exclusive`: no other shard may.
    ///
    /// # Errors
    /// [`BindingError`]; nothing has changed.
    pub fn bind(
        &mut self,
        (transport, address): (Transport, SocketAddr),
        shard: u16,
        takes: Takes,
        is_exclusive: bool,
    ) -> Result<(), BindingError> {
        let key = (transport, address);
        if self.is_taken(key, shard, is_exclusive) {
            return Err(BindingError::InUse);
        }
        let there = self.members.get(&key).map_or(&[][..], Vec::as_slice);
        let is_new = there.is_empty();
        check_mask(there, shard, &takes)?;
        if is_new && self.rows.len() >= BOUND_ADDRESSES_MAX && !self.forget_one() {
            return Err(BindingError::Full);
        }
        self.members.entry(key).or_default().push(Member { shard, takes, is_exclusive });
        self.settle(key);
        Ok(())
    }

    /// Whether [`Bindings::bind`] finds the address in use.
    #[must_use]
    pub fn is_taken(
        &self,
        address: (Transport, SocketAddr),
        shard: u16,
        is_exclusive: bool,
    ) -> bool {
        let there = self.members.get(&address).map_or(&[][..], Vec::as_slice);
        there.iter().any(|it| it.shard == shard || it.is_exclusive || is_exclusive)
    }

    /// A listener takes other homes from now on.
    ///
    /// # Errors
    /// [`BindingError`]; nothing has changed.
    pub fn change(
        &mut self,
        (transport, address): (Transport, SocketAddr),
        shard: u16,
        takes: Takes,
    ) -> Result<(), BindingError> {
        let key = (transport, address);
        let members = self.members.get_mut(&key).ok_or(BindingError::NotBound)?;
        check_mask(members, shard, &takes)?;
        let member = members.iter_mut().find(|it| it.shard == shard);
        member.ok_or(BindingError::NotBound)?.takes = takes;
        self.settle(key);
        Ok(())
    }

    /// A shard listens there no more.
    pub fn unbind(&mut self, (transport, address): (Transport, SocketAddr), shard: u16) {
        let key = (transport, address);
        if let Some(members) = self.members.get_mut(&key) {
            members.retain(|it| it.shard != shard);
            if members.is_empty() {
                self.members.remove(&key);
            }
            self.settle(key);
            if self.members.contains_key(&key) {
                // What the shard hands over goes on where the row says.
                self.set_used(key);
            }
        }
    }

    /// A shard is gone, and with it all of its bindings and flows.
    pub fn leave(&mut self, shard: u16) {
        let keys: Vec<Key> = self.members.keys().copied().collect();
        for (transport, address) in keys {
            self.unbind((transport, address), shard);
        }
        self.set_core(shard, None);
        self.rows.values_mut().for_each(|rows| rows.forget(shard));
    }

    /// Chooses the shard to which a connection goes on that its shard hands over: the one that
    /// takes packets of the flow, which has this home. `None`: none listens there, or all masks
    /// leave the home's core out.
    pub fn heir(&mut self, transport: Transport, local: SocketAddr, home: u16) -> Option<u16> {
        let any = SocketAddr::new(unspecified(local.ip()), local.port());
        let mut keys = [local, any].into_iter().map(|address| (transport, address));
        let key = keys.find(|key| self.members.contains_key(key))?;
        let served = *self.rows.get(&key)?.now.get(usize::from(home))?;
        // It begins there as others do by their first packet.
        self.set_used(key);
        (!served.refuses).then_some(served.shard)
    }

    /// Connections have begun by the table's row of this number: they are remembered when the row
    /// changes.
    pub fn mark_used(&mut self, table: &BindingTable, row: usize) {
        if let Some((transport, address, _)) = table.rows.get(row) {
            self.set_used((*transport, *address));
        }
    }

    fn set_used(&mut self, key: Key) {
        if let Some(rows) = self.rows.get_mut(&key) {
            rows.used.fill(true);
        }
    }

    /// Some shard listens there.
    #[must_use]
    pub fn is_bound(&self, transport: Transport, address: SocketAddr) -> bool {
        self.members.contains_key(&(transport, address))
    }

    /// What packets go by from now on.
    #[must_use]
    pub fn table(&self) -> BindingTable {
        let shards = self.cores.len() as u16;
        let mut table = BindingTable::new(shards);
        for ((transport, address), rows) in &self.rows {
            if !rows.is_plain() {
                table.add(*transport, *address, rows.clone());
            }
        }
        table
    }

    /// Works out who gets what of an address, and remembers who did.
    fn settle(&mut self, key: Key) {
        let members = self.members.get(&key).map_or(&[][..], Vec::as_slice);
        let (now, has_members) = (row(members, &self.cores), !members.is_empty());
        let rows = self.rows.entry(key).or_insert_with(|| Rows::new(now.clone()));
        if rows.now != now {
            rows.change(now);
        }
        if key.0 == Transport::Udp {
            // Datagrams belong to the socket that is bound now; only connections outlive a binding.
            *rows = Rows::new(rows.now.clone());
        } else if has_members && rows.is_plain() {
            // Packets do not go by such a row, and so mark nothing.
            rows.used.fill(true);
        }
    }

    /// Forgets an address without a listener, with its former bindings, to free a row.
    fn forget_one(&mut self) -> bool {
        let unused = self.rows.keys().find(|key| !self.members.contains_key(key)).copied();
        unused.is_some_and(|key| self.rows.remove(&key).is_some())
    }
}

/// Any address of the same family.
const fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// A mask has cores, and none that another member's has.
fn check_mask(members: &[Member], shard: u16, takes: &Takes) -> Result<(), BindingError> {
    let Takes::Cores(cores) = takes else { return Ok(()) };
    if cores.is_empty() {
        return Err(BindingError::NoCore);
    }
    for member in members.iter().filter(|it| it.shard != shard) {
        if let Takes::Cores(others) = &member.takes
            && let Some(core) = cores.iter().find(|core| others.contains(core))
        {
            return Err(BindingError::Overlap { core: *core });
        }
    }
    Ok(())
}

/// The shard that takes each default shard's flows.
fn row(members: &[Member], cores: &[Option<u32>]) -> Row {
    let takes_core = |member: &&Member, core: u32| match &member.takes {
        Takes::Cores(mask) => mask.contains(&core),
        Takes::Rest => false,
    };
    let rest: Vec<u16> =
        members.iter().filter(|it| it.takes == Takes::Rest).map(|it| it.shard).collect();
    let taker = |home: u16| {
        let core = cores[usize::from(home)];
        let masked = core.and_then(|core| members.iter().find(|it| takes_core(it, core)));
        let shard = match (masked, rest.as_slice()) {
            (Some(member), _) => member.shard,
            (None, []) => return Served { shard: home, refuses: !members.is_empty() },
            (None, rest) if rest.contains(&home) => home,
            (None, rest) => rest[usize::from(home) % rest.len()],
        };
        Served { shard, refuses: false }
    };
    (0..cores.len() as u16).map(taker).collect()
}

fn is_identity(row: &[Served]) -> bool {
    row.iter().enumerate().all(|(home, taker)| home == usize::from(taker.shard) && !taker.refuses)
}

/// Where packets go whose homes do not all serve themselves.
#[derive(Debug, Clone)]
pub struct BindingTable {
    shards: u16,
    /// A bit for each port of each protocol that has rows.
    ports: Box<[[u64; 1024]; 2]>,
    /// By protocol and port; those with an address before those without.
    rows: Vec<(Transport, SocketAddr, Rows)>,
}

impl BindingTable {
    /// Every home serves itself.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        Self { shards, ports: Box::new([[0; 1024]; 2]), rows: Vec::new() }
    }

    /// How many shards there are.
    #[must_use]
    pub const fn shards(&self) -> u16 {
        self.shards
    }

    fn add(&mut self, transport: Transport, address: SocketAddr, rows: Rows) {
        let port = address.port();
        self.ports[transport as usize][usize::from(port / 64)] |= 1 << (port % 64);
        let key = |transport: Transport, address: SocketAddr| {
            (transport, address.port(), address.ip().is_unspecified())
        };
        let new = key(transport, address);
        let place = self.rows.partition_point(|(transport, at, _)| key(*transport, *at) <= new);
        self.rows.insert(place, (transport, address, rows));
    }

    /// The shard of a flow with this default shard.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, transport: Transport, ends: &SteeringKey, home: u16) -> u16 {
        self.row_of(transport, ends).map_or(home, |row| self.taker(row, home).shard)
    }

    /// The number of the row that a flow goes by; `None`: it belongs to its home.
    #[must_use]
    #[inline]
    pub fn row_of(&self, transport: Transport, ends: &SteeringKey) -> Option<usize> {
        self.has_rows(transport, ends.dst.port()).then(|| self.look_up(transport, ends.dst))?
    }

    /// A port has rows, at some address.
    #[must_use]
    #[inline]
    pub fn has_rows(&self, transport: Transport, port: u16) -> bool {
        let bits = self.ports[transport as usize][usize::from(port / 64)];
        bits >> (port % 64) & 1 == 1
    }

    /// Who gets what comes for a home by a row.
    #[must_use]
    #[inline]
    pub fn taker(&self, row: usize, home: u16) -> Served {
        self.rows[row].2.now[usize::from(home)]
    }

    /// How many rows there are.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The shard of this number, from 0, among those that had a home before; `None`: there are no
    /// more.
    #[must_use]
    pub fn before(
        &self,
        transport: Transport,
        ends: &SteeringKey,
        home: u16,
        back: usize,
    ) -> Option<u16> {
        self.rows_of(transport, ends)?.former.get(usize::from(home))?.get(back).copied()
    }

    /// Whether flows of a home may be elsewhere than where they would begin today.
    #[must_use]
    #[inline]
    pub fn has_past(&self, row: usize, home: u16) -> bool {
        let Rows { now, former, .. } = &self.rows[row].2;
        let home = usize::from(home);
        former[home].iter().any(|shard| *shard != now[home].shard)
    }

    fn rows_of(&self, transport: Transport, ends: &SteeringKey) -> Option<&Rows> {
        self.row_of(transport, ends).map(|row| &self.rows[row].2)
    }

    fn look_up(&self, transport: Transport, local: SocketAddr) -> Option<usize> {
        let from =
            self.rows.partition_point(|(it, at, _)| (*it, at.port()) < (transport, local.port()));
        let any = unspecified(local.ip());
        (from..self.rows.len())
            .take_while(|row| {
                let (it, at, _) = &self.rows[*row];
                (*it, at.port()) == (transport, local.port())
            })
            .find(|row| {
                let ip = self.rows[*row].1.ip();
                ip == local.ip() || ip == any
            })
    }
}
