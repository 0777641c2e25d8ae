//! Ranges of what was received out of order: search, growth, joining, removal.
//!
//! Read first: `out_of_order.rs` for the list and its invariants, RFC 2018 §4 for what is recent.

use super::{ChunkNodes, OutOfOrderList, RECENT};
use crate::limits::{
    OUT_OF_ORDER_CHUNKS_MAX, OUT_OF_ORDER_RANGES_MAX, SPARSE_CHUNK_BYTES_MIN, SPARSE_CHUNKS_MAX,
};
use crate::seq::{SeqNum, SeqRange};

impl OutOfOrderList {
    /// The bytes of the range whose first node is `first`.
    pub(super) fn range_of(nodes: &ChunkNodes, first: u32) -> SeqRange {
        let node = nodes.at(first);
        let last = nodes.at(node.of_list);
        SeqRange { start: node.seq, end: last.seq + last.chunk.len }
    }

    /// The first node of the last range that starts at or before `seq`; 0: none. Most segments come
    /// behind all.
    pub(super) fn range_before(&self, nodes: &ChunkNodes, seq: SeqNum) -> u32 {
        if self.tail_range != 0 && nodes.at(self.tail_range).seq.at_or_before(seq) {
            return self.tail_range;
        }
        let (mut previous, mut link) = (0, self.head);
        while link != 0 {
            let node = nodes.at(link);
            if node.seq.after(seq) {
                break;
            }
            previous = link;
            link = nodes.at(node.of_list).next;
        }
        previous
    }

    /// The first node of the range behind that of `first` (0: of the first range); 0: none.
    pub(super) fn range_behind(&self, nodes: &ChunkNodes, first: u32) -> u32 {
        if first == 0 { self.head } else { nodes.at(nodes.at(first).of_list).next }
    }

    /// Adds a node to the range of `first`, at its end.
    pub(super) fn extend_range(&mut self, nodes: &mut ChunkNodes, first: u32, link: u32) {
        let last = nodes.at(first).of_list;
        nodes.at_mut(link).next = nodes.at(last).next;
        nodes.at_mut(last).next = link;
        nodes.at_mut(first).of_list = link;
    }

    /// Makes a node a range of its own behind that of `previous` (0: the first range).
    pub(super) fn add_range(&mut self, nodes: &mut ChunkNodes, previous: u32, link: u32) {
        let next = self.range_behind(nodes, previous);
        let node = nodes.at_mut(link);
        (node.next, node.of_list) = (next, link);
        if previous == 0 {
            self.head = link;
        } else {
            let last = nodes.at(previous).of_list;
            nodes.at_mut(last).next = link;
        }
        if next == 0 {
            self.tail_range = link;
        }
        self.ranges += 1;
    }

    /// The gap between two neighbouring ranges is filled.
    pub(super) fn join_ranges(&mut self, nodes: &mut ChunkNodes, first: u32, second: u32) {
        nodes.at_mut(first).of_list = nodes.at(second).of_list;
        if self.tail_range == second {
            self.tail_range = first;
        }
        self.ranges -= 1;
    }

    /// Takes the first range off the list. Returns its bytes.
    pub(super) fn remove_first_range(&mut self, nodes: &ChunkNodes) -> SeqRange {
        let range = Self::range_of(nodes, self.head);
        let last = nodes.at(self.head).of_list;
        let mut link = self.head;
        self.chunks -= 1;
        while link != last {
            link = nodes.at(link).next;
            self.chunks -= 1;
        }
        self.head = nodes.at(last).next;
        if self.head == 0 {
            self.tail_range = 0;
        }
        self.ranges -= 1;
        self.bytes -= range.len();
        let mut kept = 0;
        for index in 0..usize::from(self.recent_count) {
            if self.recent[index].start != range.start {
                self.recent[kept] = self.recent[index];
                kept += 1;
            }
        }
        self.recent_count = kept as u8;
        range
    }

    /// A peer may leave gaps, but not so many and so small that its bytes cost far more memory
    /// than its window says.
    pub(super) const fn may_keep(&self) -> bool {
        self.chunks < OUT_OF_ORDER_CHUNKS_MAX
            && (self.chunks < SPARSE_CHUNKS_MAX
                || self.bytes >= self.chunks * SPARSE_CHUNK_BYTES_MIN)
    }

    /// One range more is allowed.
    pub(super) const fn may_add_range(&self) -> bool {
        self.ranges < OUT_OF_ORDER_RANGES_MAX
    }

    /// The range of `first`, in which `seq` lies unless nothing of its segment found room, grew or
    /// came again: it is the most recent one now.
    pub(super) fn mark_recent(&mut self, nodes: &ChunkNodes, first: u32, seq: SeqNum) {
        if first == 0 {
            return;
        }
        let range = Self::range_of(nodes, first);
        if !seq.within(range.start, range.len()) {
            return;
        }
        let mut recent = [range; RECENT];
        let mut count = 1;
        for other in &self.recent[..usize::from(self.recent_count)] {
            if count < RECENT && !other.start.within(range.start, range.len()) {
                recent[count] = *other;
                count += 1;
            }
        }
        self.recent = recent;
        self.recent_count = count as u8;
    }
}
