//! Pool of chunk queue nodes, shared by the connections of a shard.
//!
//! Invariants
//! - A node is on one list, or free. Lists are chained by index plus one; 0 ends them.
//! - A buffer belongs to one node at most.

use alloc::vec::Vec;

use super::out_of_order::OutOfOrderList;
use crate::chunk::Chunk;
use crate::id::BufId;
use crate::seq::SeqNum;
use crate::slab::Spares;

/// A chunk on a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(super) chunk: Chunk,
    /// Where its first byte lies: in the stream for what arrived out of order, by a count of the
    /// queue's own for what is sent. Of no meaning for what waits to be read.
    pub(super) seq: SeqNum,
    /// The next node plus one; 0: none.
    pub(super) next: u32,
    /// In a send queue: [`ENDS_RECORD`], or 0. Out of order, in the first node of a range without
    /// gaps: the range's last node plus one.
    pub(super) of_list: u32,
}

/// In [`Node::of_list`]: no segment holds the node's last byte and the one after it.
pub(super) const ENDS_RECORD: u32 = 1;

/// Every node is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The nodes of one shard.
#[derive(Debug)]
pub(crate) struct ChunkNodes {
    nodes: Vec<Node>,
    capacity: u32,
    free: u32,
    len: u32,
    /// How often a node was looked at.
    #[cfg(test)]
    pub(super) steps: core::cell::Cell<u32>,
    /// What only queues with a gap have.
    pub(crate) out_of_orders: Spares<OutOfOrderList>,
}

impl ChunkNodes {
    /// Room for `capacity` chunks in the queues of all `connections`.
    pub(crate) fn new(capacity: u32, connections: u32) -> Self {
        let nodes = Vec::with_capacity(capacity as usize);
        Self {
            nodes,
            capacity,
            free: 0,
            len: 0,
            #[cfg(test)]
            steps: core::cell::Cell::new(0),
            out_of_orders: Spares::new(connections),
        }
    }

    /// Memory set aside for chunks, and the part of it that was touched, in bytes.
    pub(crate) const fn memory_bytes(&self) -> (usize, usize) {
        (self.capacity as usize * size_of::<Node>(), self.nodes.len() * size_of::<Node>())
    }

    /// How many nodes are free.
    pub(crate) const fn free(&self) -> u32 {
        self.capacity - self.len
    }

    /// How many nodes are in use.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// A node for `chunk`, as index plus one.
    #[inline(always)]
    pub(super) fn take(&mut self, chunk: Chunk, seq: SeqNum) -> Result<u32, Full> {
        if self.free == 0 {
            self.add_free()?;
        }
        let link = self.free;
        let place = self.at_mut(link);
        let free = place.next;
        *place = Node { chunk, seq, next: 0, of_list: 0 };
        self.free = free;
        self.len += 1;
        Ok(link)
    }

    /// A node that was never used.
    #[cold]
    #[inline(never)]
    fn add_free(&mut self) -> Result<(), Full> {
        if self.nodes.len() == self.capacity as usize {
            return Err(Full);
        }
        let chunk = Chunk { buf: BufId(u32::MAX), offset: 0, len: 0 };
        self.nodes.push(Node { chunk, seq: SeqNum(0), next: 0, of_list: 0 });
        self.free = self.nodes.len() as u32;
        Ok(())
    }

    /// Frees a node; what follows it on its list.
    #[inline(always)]
    pub(super) fn give_back(&mut self, link: u32) -> u32 {
        let free = self.free;
        let node = self.at_mut(link);
        let next = core::mem::replace(&mut node.next, free);
        self.free = link;
        self.len -= 1;
        next
    }

    #[inline(always)]
    pub(super) fn at(&self, link: u32) -> &Node {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
        &self.nodes[link as usize - 1]
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, link: u32) -> &mut Node {
        &mut self.nodes[link as usize - 1]
    }
}
