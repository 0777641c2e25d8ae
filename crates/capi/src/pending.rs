//! Operations in progress: where the bytes of a read are copied to, and what the connections of an
//! accept get.
//!
//! The channel completes the reads of a handle in the order of submission, and so its accepts; one
//! queue for each handle is therefore enough to find the destination. Only reads at an offset of a
//! disk file complete in any order, so one of those is in progress at a time, and later ones wait
//! here.
//!
//! A queue usually holds nothing or one plain read, which is stored in the queue itself. Longer
//! queues are linked lists in one arena: no allocation once it has grown to the most that was ever
//! outstanding.
//!
//! Invariants
//! - A queue belongs to one handle (all 64 bits of it). Another handle of the same number empties
//!   the queue first, so a stale destination is never written to.
//! - Only handles that the channel has accepted enter the table, so memory is bounded by the
//!   channel's own limits on handles and outstanding operations.
//! - Nothing here dereferences a pointer of the program.

use std::ffi::c_void;

use channel::{FIRST_LWSOCKET, Handle};
use libc::{iovec, sockaddr, socklen_t};

/// Destination of the bytes of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadDestination {
    /// Into the caller's memory of this many bytes.
    Copy(*mut c_void, usize),
    /// The parts that this array of the caller names, and their count.
    Scatter(*const iovec, usize),
    /// None: the buffer itself is lent.
    Lend,
}

/// Destination of the sender's address, as in `recvfrom(2)`. Both null: not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) address: *mut sockaddr,
    pub(crate) size: *mut socklen_t,
}

impl Sender {
    pub(crate) const NOWHERE: Self =
        Self { address: std::ptr::null_mut(), size: std::ptr::null_mut() };
}

/// A read that is not submitted to the channel yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedRead {
    pub(crate) len: usize,
    /// `None`: continue where the last one ended.
    pub(crate) offset: Option<u64>,
}

/// One entry of a handle's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingOp {
    /// A read in progress.
    Read(ReadDestination),
    /// A receive in progress.
    Message(ReadDestination, Sender),
    /// A read at an offset in progress.
    ReadAt(ReadDestination),
    /// A read that waits until it is the oldest.
    Waiting(ReadDestination, QueuedRead),
    /// This many connections, each with or without a first read. `u32::MAX` is no limit.
    Accept { remaining: u32, first_read: bool },
}

/// Destination of a completed read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadAnswer {
    pub(crate) place: ReadDestination,
    pub(crate) sender: Sender,
    /// Whether entries follow; then call [`PendingTable::start_waiting`].
    pub(crate) more: bool,
}

/// All queues of one channel.
#[derive(Debug, Default)]
pub(crate) struct PendingTable {
    /// By number: of descriptors, and of lwsockets.
    queues: [Vec<HandleQueue>; 2],
    nodes: Vec<PendingNode>,
    free: NodeLink,
}

/// Position of a handle's queue. Valid until the handle is unregistered.
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
struct HandleQueue {
    handle: Handle,
    /// The only entry, a plain read, if `first` is [`NodeLink::SINGLE`].
    single: ReadDestination,
    first: NodeLink,
    last: NodeLink,
}

#[derive(Debug, Clone, Copy)]
struct PendingNode {
    pending: PendingOp,
    next: NodeLink,
}

/// Index of a node plus one; 0 is none, the largest is [`NodeLink::SINGLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct NodeLink(u32);

impl NodeLink {
    const NONE: Self = Self(0);
    /// No node, but [`HandleQueue::single`].
    const SINGLE: Self = Self(u32::MAX);

    const fn index(self) -> Option<usize> {
        match self.0 {
            0 => None,
            u32::MAX => None,
            above => Some(above as usize - 1),
        }
    }
}

const EMPTY: HandleQueue = HandleQueue {
    handle: Handle::NONE,
    single: ReadDestination::Lend,
    first: NodeLink::NONE,
    last: NodeLink::NONE,
};

impl PendingTable {
    /// Finds the handle's queue, if it ever had one. Any handle may be passed.
    #[inline]
    pub(crate) fn find(&self, handle: Handle) -> Option<QueueIndex> {
        let index = QueueIndex::of(handle.number());
        let queue = self.queues[usize::from(index.is_lwsocket)].get(index.index)?;
        (queue.handle == handle).then_some(index)
    }

    /// Returns the queue of a handle that the channel has accepted. Entries of an older handle with
    /// its number are dropped.
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

    /// Forgets a handle that was unregistered.
    pub(crate) fn leave(&mut self, handle: Handle) {
        if let Some(index) = self.find(handle) {
            self.clear(index);
        }
    }

    /// Whether a read has to wait for earlier ones: a read at an offset waits for all of them, and
    /// every read waits for one at an offset.
    #[inline]
    pub(crate) fn must_wait(&self, queue: QueueIndex, at_offset: bool) -> bool {
        let queue = &self.queues[usize::from(queue.is_lwsocket)][queue.index];
        match queue.first {
            NodeLink::NONE => false,
            NodeLink::SINGLE => at_offset,
            _ => at_offset || self.ends_with_waiting(queue.last),
        }
    }

    fn ends_with_waiting(&self, last: NodeLink) -> bool {
        let last = last.index().map(|index| self.nodes[index].pending);
        matches!(last, Some(PendingOp::ReadAt(_) | PendingOp::Waiting(..)))
    }

    /// Appends a plain read in progress.
    #[inline]
    pub(crate) fn push_read(&mut self, index: QueueIndex, place: ReadDestination) {
        let queue = self.queue(index);
        if queue.first == NodeLink::NONE {
            queue.single = place;
            queue.first = NodeLink::SINGLE;
        } else {
            self.push(index, PendingOp::Read(place));
        }
    }

    /// Appends to a queue.
    pub(crate) fn push(&mut self, index: QueueIndex, pending: PendingOp) {
        let queue = self.queue(index);
        if queue.first == NodeLink::SINGLE {
            let single = queue.single;
            queue.first = NodeLink::NONE;
            self.append(index, PendingOp::Read(single));
        }
        self.append(index, pending);
    }

    fn append(&mut self, index: QueueIndex, pending: PendingOp) {
        let link = self.take_node(PendingNode { pending, next: NodeLink::NONE });
        let queue = self.queue(index);
        let last = std::mem::replace(&mut queue.last, link);
        match last.index() {
            Some(last) => self.nodes[last].next = link,
            None => queue.first = link,
        }
    }

    /// Takes the destination of the only entry, if there is no other and it is a plain read.
    #[inline]
    pub(crate) fn pop_single(&mut self, index: QueueIndex) -> Option<ReadDestination> {
        let queue = self.queue(index);
        (queue.first == NodeLink::SINGLE).then(|| {
            queue.first = NodeLink::NONE;
            queue.single
        })
    }

    /// Takes the destination of the oldest read in progress; another entry stays.
    pub(crate) fn pop_read(&mut self, index: QueueIndex) -> Option<ReadAnswer> {
        if let Some(place) = self.pop_single(index) {
            return Some(ReadAnswer { place, sender: Sender::NOWHERE, more: false });
        }
        let first = self.queue(index).first.index()?;
        let PendingNode { pending, next } = self.nodes[first];
        let (place, sender) = match pending {
            PendingOp::Read(place) | PendingOp::ReadAt(place) => (place, Sender::NOWHERE),
            PendingOp::Message(place, sender) => (place, sender),
            PendingOp::Waiting(..) | PendingOp::Accept { .. } => return None,
        };
        self.drop_node(index);
        Some(ReadAnswer { place, sender, more: next != NodeLink::NONE })
    }

    /// Marks the oldest entry as in progress if it was waiting, and returns the read to submit.
    pub(crate) fn start_waiting(&mut self, index: QueueIndex) -> Option<QueuedRead> {
        let first = self.queue(index).first.index()?;
        let pending = &mut self.nodes.get_mut(first)?.pending;
        let PendingOp::Waiting(place, request) = *pending else { return None };
        *pending = match request.offset {
            Some(_) => PendingOp::ReadAt(place),
            None => PendingOp::Read(place),
        };
        Some(request)
    }

    /// Uses one connection of the oldest accept; returns whether it has a first read.
    pub(crate) fn spend_accept(&mut self, index: QueueIndex) -> bool {
        let first = self.queue(index).first.index();
        let Some(node) = first.and_then(|first| self.nodes.get_mut(first)) else { return false };
        let PendingOp::Accept { remaining, first_read } = &mut node.pending else { return false };
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
    fn queue(&mut self, index: QueueIndex) -> &mut HandleQueue {
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
        if queue.first == NodeLink::NONE {
            queue.last = NodeLink::NONE;
        }
    }

    fn clear(&mut self, index: QueueIndex) {
        while !matches!(self.queue(index).first, NodeLink::NONE | NodeLink::SINGLE) {
            self.drop_node(index);
        }
        *self.queue(index) = EMPTY;
    }

    fn take_node(&mut self, node: PendingNode) -> NodeLink {
        let Some(index) = self.free.index() else {
            self.nodes.push(node);
            return NodeLink(self.nodes.len() as u32);
        };
        let link = self.free;
        self.free = self.nodes[index].next;
        self.nodes[index] = node;
        link
    }
}

#[cfg(test)]
mod tests;
