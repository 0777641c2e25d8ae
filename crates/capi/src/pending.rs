//! What the C border remembers about operations that are under way: where a read's bytes go, and
//! what the connections of an accept get.
//!
//! The channel answers a handle's reads in the order in which they were asked for, and so its
//! accepts; one queue for each handle is therefore enough to find the answer's place. Only reads
//! at an offset of a disk file are answered in any order, so of those one at a time is under way,
//! and what comes behind it waits here.
//!
//! The queues are linked lists in one arena: they cost four bytes of link per entry, and no
//! allocation once the arena has grown to the most that was ever outstanding.
//!
//! Invariants
//! - A queue belongs to one handle (all 64 bits of it). Asking with another handle of the same
//!   number empties it first, so a stale place can never be written to.
//! - Memory is bounded by the channel's own limit on outstanding operations.
//! - Nothing here dereferences a pointer of the program.

use std::ffi::c_void;

use channel::{FIRST_LWSOCKET, Handle};
use libc::{iovec, sockaddr, socklen_t};

/// Where the bytes of one read go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Into the caller's memory of this many bytes.
    Copy(*mut c_void, usize),
    /// Into the parts that this array of the caller's names, so many of them.
    Scatter(*const iovec, usize),
    /// Nowhere: the buffer itself is lent.
    Lend,
}

/// Where the sender of a message goes, as in `recvfrom(2)`. Both null: nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) address: *mut sockaddr,
    pub(crate) size: *mut socklen_t,
}

impl Sender {
    pub(crate) const NOWHERE: Self =
        Self { address: std::ptr::null_mut(), size: std::ptr::null_mut() };
}

/// A read that the channel has not been asked for yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) len: usize,
    /// `None`: from where the last one ended.
    pub(crate) offset: Option<u64>,
}

/// One entry of a handle's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    /// A read under way.
    Read(Place),
    /// A receive under way.
    Message(Place, Sender),
    /// A read at an offset under way.
    ReadAt(Place),
    /// A read that waits until it is the oldest.
    Waiting(Place, Request),
    /// So many connections, each with or without a first read. `u32::MAX` never runs out.
    Accept { remaining: u32, first_read: bool },
}

/// Where the answer to a read goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) place: Place,
    pub(crate) sender: Sender,
    /// Whether there are entries behind it; [`PendingTable::start_waiting`] should be asked.
    pub(crate) more: bool,
}

/// All queues of one channel.
#[derive(Debug, Default)]
pub(crate) struct PendingTable {
    descriptors: Vec<Queue>,
    lwsockets: Vec<Queue>,
    nodes: Vec<Node>,
    free: Link,
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    handle: Handle,
    first: Link,
    last: Link,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    pending: Pending,
    next: Link,
}

/// Index of a node plus one; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Link(u32);

impl Link {
    const NONE: Self = Self(0);

    const fn index(self) -> Option<usize> {
        match self.0 {
            0 => None,
            above => Some(above as usize - 1),
        }
    }
}

const EMPTY: Queue = Queue { handle: Handle::NONE, first: Link::NONE, last: Link::NONE };

impl PendingTable {
    /// A handle left the channel.
    pub(crate) fn leave(&mut self, handle: Handle) {
        if self.owner_of(handle.number()) == Some(handle) {
            self.clear(handle.number());
        }
    }

    /// Whether a read has to wait for those before it: each read at an offset for all of them,
    /// and every read for one at an offset.
    pub(crate) fn must_wait(&mut self, handle: Handle, at_offset: bool) -> bool {
        let Some(last) = self.queue_of(handle).last.index() else { return false };
        at_offset || matches!(self.nodes[last].pending, Pending::ReadAt(_) | Pending::Waiting(..))
    }

    /// Appends to the handle's queue.
    pub(crate) fn push(&mut self, handle: Handle, pending: Pending) {
        let link = self.take_node(Node { pending, next: Link::NONE });
        let queue = self.queue_of(handle);
        let last = std::mem::replace(&mut queue.last, link);
        match last.index() {
            Some(index) => self.nodes[index].next = link,
            None => queue.first = link,
        }
    }

    /// Takes the place of the handle's oldest read under way; another entry stays.
    pub(crate) fn pop_read(&mut self, handle: Handle) -> Option<Answer> {
        let first = self.queue_of(handle).first;
        let Node { pending, next } = self.nodes[first.index()?];
        let (place, sender) = match pending {
            Pending::Read(place) | Pending::ReadAt(place) => (place, Sender::NOWHERE),
            Pending::Message(place, sender) => (place, sender),
            Pending::Waiting(..) | Pending::Accept { .. } => return None,
        };
        self.advance(handle, first, next);
        Some(Answer { place, sender, more: next != Link::NONE })
    }

    /// If the handle's oldest entry waits: it is under way from now on, and this is what the
    /// channel must be asked for.
    pub(crate) fn start_waiting(&mut self, handle: Handle) -> Option<Request> {
        let first = self.queue_of(handle).first.index()?;
        let pending = &mut self.nodes[first].pending;
        let Pending::Waiting(place, request) = *pending else { return None };
        *pending = match request.offset {
            Some(_) => Pending::ReadAt(place),
            None => Pending::Read(place),
        };
        Some(request)
    }

    /// Spends one connection of the handle's oldest accept: whether it has a first read.
    pub(crate) fn spend_accept(&mut self, handle: Handle) -> bool {
        let first = self.queue_of(handle).first;
        let Some(index) = first.index() else { return false };
        let node = &mut self.nodes[index];
        let next = node.next;
        let Pending::Accept { remaining, first_read } = &mut node.pending else { return false };
        let first_read = *first_read;
        if *remaining != u32::MAX {
            *remaining -= 1;
            if *remaining == 0 {
                self.advance(handle, first, next);
            }
        }
        first_read
    }

    fn advance(&mut self, handle: Handle, first: Link, next: Link) {
        let queue = self.queue_of(handle);
        queue.first = next;
        if next == Link::NONE {
            queue.last = Link::NONE;
        }
        self.give_node(first);
    }

    /// The handle's queue, empty if the number was somebody else's until now.
    fn queue_of(&mut self, handle: Handle) -> &mut Queue {
        let number = handle.number();
        if self.owner_of(number) != Some(handle) {
            self.clear(number);
        }
        let (table, index) = self.slot(number);
        if index >= table.len() {
            table.resize(index + 1, EMPTY);
        }
        table[index].handle = handle;
        &mut table[index]
    }

    /// Whose queue a number's is.
    fn owner_of(&self, number: u32) -> Option<Handle> {
        let queue = if number >= FIRST_LWSOCKET {
            self.lwsockets.get((number - FIRST_LWSOCKET) as usize)
        } else {
            self.descriptors.get(number as usize)
        };
        queue.map(|queue| queue.handle).filter(|&handle| handle != Handle::NONE)
    }

    fn slot(&mut self, number: u32) -> (&mut Vec<Queue>, usize) {
        if number >= FIRST_LWSOCKET {
            (&mut self.lwsockets, (number - FIRST_LWSOCKET) as usize)
        } else {
            (&mut self.descriptors, number as usize)
        }
    }

    fn clear(&mut self, number: u32) {
        let (table, index) = self.slot(number);
        let Some(queue) = table.get_mut(index) else { return };
        let mut link = std::mem::replace(queue, EMPTY).first;
        while let Some(index) = link.index() {
            let next = self.nodes[index].next;
            self.give_node(link);
            link = next;
        }
    }

    fn take_node(&mut self, node: Node) -> Link {
        let Some(index) = self.free.index() else {
            self.nodes.push(node);
            return Link(self.nodes.len() as u32);
        };
        let link = self.free;
        self.free = self.nodes[index].next;
        self.nodes[index] = node;
        link
    }

    fn give_node(&mut self, link: Link) {
        if let Some(index) = link.index() {
            self.nodes[index].next = self.free;
            self.free = link;
        }
    }
}

#[cfg(test)]
mod tests;
