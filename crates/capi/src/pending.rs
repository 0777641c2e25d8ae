//! What the C border remembers about operations that are under way: where a read's bytes go, and
//! what the connections of an accept get.
//!
//! The channel answers a handle's reads in the order in which they were asked for, and so its
//! accepts; one queue for each handle is therefore enough to find the answer's place. Only reads
//! at an offset of a disk file are answered in any order, so of those one at a time is under way,
//! and what comes behind it waits here.
//!
//! Nearly always a queue holds nothing or one plain read, and that one lies in the queue itself.
//! Longer queues are linked lists in one arena: no allocation once it has grown to the most that
//! was ever outstanding.
//!
//! Invariants
//! - A queue belongs to one handle (all 64 bits of it). Another handle of the same number finds
//!   nothing in it and empties it, so a stale place can never be written to.
//! - Only handles that the channel has accepted enter the table, so memory is bounded by the
//!   channel's own limits on handles and outstanding operations.
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
    /// By number: of descriptors, and of lwsockets.
    queues: [Vec<Queue>; 2],
    nodes: Vec<Node>,
    free: Link,
}

/// Where a handle's queue is. Good until the handle leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueIndex {
    is_lwsocket: bool,
    index: usize,
}

impl QueueIndex {
    const fn of(number: u32) -> Self {
        let is_lwsocket = number >= FIRST_LWSOCKET;
        Self { is_lwsocket, index: (number & (FIRST_LWSOCKET - 1)) as usize }
    }
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    handle: Handle,
    /// The only entry, a plain read, if `first` is [`Link::SINGLE`].
    single: Place,
    first: Link,
    last: Link,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    pending: Pending,
    next: Link,
}

/// Index of a node plus one; 0 is none, the largest is [`Link::SINGLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Link(u32);

impl Link {
    const NONE: Self = Self(0);
    /// No node, but [`Queue::single`].
    const SINGLE: Self = Self(u32::MAX);

    const fn index(self) -> Option<usize> {
        match self.0 {
            0 => None,
            u32::MAX => None,
            above => Some(above as usize - 1),
        }
    }
}

const EMPTY: Queue =
    Queue { handle: Handle::NONE, single: Place::Lend, first: Link::NONE, last: Link::NONE };

impl PendingTable {
    /// The handle's queue, if it ever had one. Any handle may be asked for.
    #[inline]
    pub(crate) fn find(&self, handle: Handle) -> Option<QueueIndex> {
        let index = QueueIndex::of(handle.number());
        let queue = self.queues[usize::from(index.is_lwsocket)].get(index.index)?;
        (queue.handle == handle).then_some(index)
    }

    /// The queue of a handle that the channel has accepted. Whatever had its number is forgotten.
    #[inline]
    pub(crate) fn enter(&mut self, handle: Handle) -> QueueIndex {
        self.find(handle).unwrap_or_else(|| self.enter_anew(handle))
    }

    #[cold]
    fn enter_anew(&mut self, handle: Handle) -> QueueIndex {
        let index = QueueIndex::of(handle.number());
        let queues = &mut self.queues[usize::from(index.is_lwsocket)];
        if index.index >= queues.len() {
            queues.resize(index.index + 1, EMPTY);
        }
        self.clear(index);
        self.queue(index).handle = handle;
        index
    }

    /// A handle left the channel.
    pub(crate) fn leave(&mut self, handle: Handle) {
        if let Some(index) = self.find(handle) {
            self.clear(index);
        }
    }

    /// Whether a read has to wait for those before it: each read at an offset for all of them,
    /// and every read for one at an offset.
    #[inline]
    pub(crate) fn must_wait(&self, queue: QueueIndex, at_offset: bool) -> bool {
        let queue = &self.queues[usize::from(queue.is_lwsocket)][queue.index];
        match queue.first {
            Link::NONE => false,
            Link::SINGLE => at_offset,
            _ => at_offset || self.ends_with_waiting(queue.last),
        }
    }

    fn ends_with_waiting(&self, last: Link) -> bool {
        let last = last.index().map(|index| self.nodes[index].pending);
        matches!(last, Some(Pending::ReadAt(_) | Pending::Waiting(..)))
    }

    /// Appends a plain read that is under way.
    #[inline]
    pub(crate) fn push_read(&mut self, index: QueueIndex, place: Place) {
        let queue = self.queue(index);
        if queue.first == Link::NONE {
            queue.single = place;
            queue.first = Link::SINGLE;
        } else {
            self.push(index, Pending::Read(place));
        }
    }

    /// Appends to a queue.
    pub(crate) fn push(&mut self, index: QueueIndex, pending: Pending) {
        let queue = self.queue(index);
        if queue.first == Link::SINGLE {
            let single = queue.single;
            queue.first = Link::NONE;
            self.append(index, Pending::Read(single));
        }
        self.append(index, pending);
    }

    fn append(&mut self, index: QueueIndex, pending: Pending) {
        let link = self.take_node(Node { pending, next: Link::NONE });
        let queue = self.queue(index);
        let last = std::mem::replace(&mut queue.last, link);
        match last.index() {
            Some(last) => self.nodes[last].next = link,
            None => queue.first = link,
        }
    }

    /// Takes the place of the only entry, if there is no other and it is a plain read.
    #[inline]
    pub(crate) fn pop_single(&mut self, index: QueueIndex) -> Option<Place> {
        let queue = self.queue(index);
        (queue.first == Link::SINGLE).then(|| {
            queue.first = Link::NONE;
            queue.single
        })
    }

    /// Takes the place of the oldest read under way; another entry stays.
    pub(crate) fn pop_read(&mut self, index: QueueIndex) -> Option<Answer> {
        if let Some(place) = self.pop_single(index) {
            return Some(Answer { place, sender: Sender::NOWHERE, more: false });
        }
        let first = self.queue(index).first.index()?;
        let Node { pending, next } = self.nodes[first];
        let (place, sender) = match pending {
            Pending::Read(place) | Pending::ReadAt(place) => (place, Sender::NOWHERE),
            Pending::Message(place, sender) => (place, sender),
            Pending::Waiting(..) | Pending::Accept { .. } => return None,
        };
        self.drop_node(index);
        Some(Answer { place, sender, more: next != Link::NONE })
    }

    /// If the oldest entry waits: it is under way from now on, and this is what the channel must
    /// be asked for.
    pub(crate) fn start_waiting(&mut self, index: QueueIndex) -> Option<Request> {
        let first = self.queue(index).first.index()?;
        let pending = &mut self.nodes.get_mut(first)?.pending;
        let Pending::Waiting(place, request) = *pending else { return None };
        *pending = match request.offset {
            Some(_) => Pending::ReadAt(place),
            None => Pending::Read(place),
        };
        Some(request)
    }

    /// Spends one connection of the oldest accept: whether it has a first read.
    pub(crate) fn spend_accept(&mut self, index: QueueIndex) -> bool {
        let first = self.queue(index).first.index();
        let Some(node) = first.and_then(|first| self.nodes.get_mut(first)) else { return false };
        let Pending::Accept { remaining, first_read } = &mut node.pending else { return false };
        let first_read = *first_read;
        if *remaining != u32::MAX {
            *remaining -= 1;
            if *remaining == 0 {
                self.drop_node(index);
            }
        }
        first_read
    }

    #[inline]
    fn queue(&mut self, index: QueueIndex) -> &mut Queue {
        &mut self.queues[usize::from(index.is_lwsocket)][index.index]
    }

    /// Removes a queue's oldest node, if it has one.
    fn drop_node(&mut self, index: QueueIndex) {
        let Self { queues, nodes, free } = self;
        let queue = &mut queues[usize::from(index.is_lwsocket)][index.index];
        let first = queue.first;
        let Some(node) = first.index().and_then(|first| nodes.get_mut(first)) else { return };
        queue.first = std::mem::replace(&mut node.next, *free);
        *free = first;
        if queue.first == Link::NONE {
            queue.last = Link::NONE;
        }
    }

    fn clear(&mut self, index: QueueIndex) {
        while !matches!(self.queue(index).first, Link::NONE | Link::SINGLE) {
            self.drop_node(index);
        }
        *self.queue(index) = EMPTY;
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
}

#[cfg(test)]
mod tests;
