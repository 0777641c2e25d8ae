//! Where connections come in: a listener of the channel, and the sockets that take from it.
//!
//! Read first: socket(7) on SO_REUSEPORT; `listener.rs`; decision 0025.
//!
//! Mostly a door is one socket's. On our own stack an address has one listener in a shard, and
//! sockets that listen there with SO_REUSEPORT share it: each connection is one socket's, chosen by
//! a hash of who connects, as in Linux.
//!
//! Invariants
//! - A door has a member; with the last one it closes.
//! - `asked` and what waits in the members' queues are together never more than what the members
//!   take ahead of the program, except after one of them left.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use megapipe::{Accept, Handle};
use slab::Slab;

use crate::limits::READ_BYTES;
use crate::listener::Listener;
use crate::sockets::{Kind, NIL, Object, Sockets};

struct Door {
    handle: Handle,
    /// On our own stack.
    address: Option<SocketAddr>,
    /// The objects of the listening sockets, in the order in which they came.
    members: Vec<u32>,
    /// Connections that the channel was asked for and has not brought yet.
    asked: usize,
}

/// The doors of a context.
#[derive(Default)]
pub(crate) struct Doors {
    doors: Slab<Door>,
    /// Nobody who connects can choose the socket.
    secret: RandomState,
}

impl Doors {
    /// The index of the door that is opened next.
    pub(crate) fn next(&self) -> u32 {
        self.doors.vacant_key() as u32
    }

    pub(crate) fn open(&mut self, handle: Handle, address: Option<SocketAddr>, member: u32) -> u32 {
        self.doors.insert(Door { handle, address, members: vec![member], asked: 0 }) as u32
    }

    /// One socket more takes connections to an address, if there is a door.
    pub(crate) fn join(&mut self, address: SocketAddr, member: u32) -> Option<u32> {
        let mut doors = self.doors.iter_mut();
        let (index, door) = doors.find(|(_, door)| door.address == Some(address))?;
        door.members.push(member);
        Some(index as u32)
    }

    /// A socket takes no more. What is to be taken out of the channel, if it was the last one.
    pub(crate) fn leave(&mut self, door: u32, member: u32) -> Option<Handle> {
        let entry = self.doors.get_mut(door as usize)?;
        entry.members.retain(|other| *other != member);
        entry.members.is_empty().then(|| self.doors.remove(door as usize).handle)
    }

    pub(crate) fn handle(&self, door: u32) -> Handle {
        self.doors.get(door as usize).map_or(Handle::NONE, |door| door.handle)
    }

    pub(crate) fn members(&self, door: u32) -> &[u32] {
        self.doors.get(door as usize).map_or(&[], |door| &door.members)
    }

    /// Of the doors of one socket, how many connections the one was asked for that was asked for
    /// the fewest.
    pub(crate) fn asked_least(&self, doors: [u32; 2]) -> usize {
        let doors = doors.into_iter().filter(|door| *door != NIL);
        doors.filter_map(|door| self.doors.get(door as usize)).map(|it| it.asked).min().unwrap_or(0)
    }
}

fn listener(object: Option<&Object>) -> Option<&Listener> {
    match &object?.kind {
        Kind::Listener(listener) => Some(listener),
        _ => None,
    }
}

impl Sockets {
    /// Asks the channel for as many connections as the members take ahead of the program.
    pub(crate) fn ask_at_door(&mut self, door: u32) {
        let Self { doors, objects, channel, .. } = self;
        let Some(entry) = doors.doors.get_mut(door as usize) else { return };
        let members = entry.members.iter().map(|member| *member as usize);
        let room: usize = members
            .filter_map(|member| listener(objects.get(member)))
            .map(|it| it.ahead.saturating_sub(it.queue.len()))
            .sum();
        let more = room.saturating_sub(entry.asked);
        if more == 0 {
            return;
        }
        let accept = Accept::lwsocket(more as u32).cookie(door.into()).first_read(READ_BYTES);
        // What the program has not accepted counts against the backlog.
        let accept = accept.exactly();
        if channel.accept(entry.handle, accept).is_ok() {
            entry.asked += more;
        }
    }

    /// Whose a connection is that came to a door. If the one that its hash says has no room, the
    /// one that has least in its queue.
    pub(crate) fn choose_listener(&mut self, door: u32, connection: Handle) -> Option<u32> {
        let Self { doors: Doors { doors, secret }, objects, channel, .. } = self;
        let entry = doors.get_mut(door as usize)?;
        entry.asked = entry.asked.saturating_sub(1);
        let [first, _, ..] = entry.members[..] else { return entry.members.first().copied() };
        let ends = (channel.local_address(connection).ok(), channel.peer_address(connection).ok());
        let ends = (ends.0.and_then(|it| it.as_inet()), ends.1.and_then(|it| it.as_inet()));
        let place = secret.hash_one(ends) % entry.members.len() as u64;
        let waiting = |member: u32| {
            listener(objects.get(member as usize))
                .map_or((false, usize::MAX), |it| (it.queue.len() < it.ahead, it.queue.len()))
        };
        let chosen = entry.members.get(place as usize).copied().unwrap_or(first);
        if waiting(chosen).0 {
            return Some(chosen);
        }
        entry.members.iter().copied().min_by_key(|member| waiting(*member).1)
    }
}
