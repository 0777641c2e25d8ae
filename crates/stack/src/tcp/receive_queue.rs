//! Receive queue: received bytes that the application has not taken.
//!
//! Read first: RFC 9293 §3.10.7.4 (seventh), RFC 2018 §4 for the order of SACK blocks, RFC 2883
//! for duplicates.
//!
//! ```text
//!    ready: in order, waits for a credit      gaps        out of order: sorted by `seq`
//!   [ chunk ][ chunk ][ chunk  room ]   |   . . . . [ chunk ][ chunk ] . . . [ chunk  room ]
//!    ^ ready_head       ^ ready_tail     ^ rcv.nxt   ^ out_of_order_head       ^ last end
//! ```
//!
//! Small segments share buffers: bytes that continue a list's last chunk go into the room behind
//! it, so that a peer that sends single bytes cannot use up a buffer for each. Out of order that
//! does not help against one who leaves out every second byte; `SPARSE_CHUNKS_MAX` does.
//!
//! Most that arrives is taken before more comes: one buffer, filled from its start, is all that
//! waits then, and needs no node. The queue names it itself.
//!
//! Invariants
//! - What is ready ends at `rcv.nxt`; chunks out of order start behind it, do not overlap and are
//!   sorted.
//! - Each chunk has a buffer of its own, and the bytes from its end to the buffer's are free.
//! - A buffer that waits without a node is the only one of its queue: there is no gap.
//! - A queue has an [`OutOfOrderList`] exactly while it has a gap: most connections never do.

mod ranges;

use core::fmt;

use super::chunks::ChunkNodes;
use super::out_of_order::{OutOfOrderList, RECENT};
use crate::chunk::Chunk;
use crate::id::{BufId, PoolId};
use crate::memory::Memory;
use crate::seq::{SeqNum, SeqRange};
use crate::slab::Spare;
use crate::wire::checksum;

/// In `ready_tail`.
const NO_NODE: u32 = u32::MAX;

/// What became of a segment's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Inserted {
    /// How far `rcv.nxt` moves.
    pub(crate) advanced: u32,
    /// The first range that was there already (RFC 2883 §4).
    pub(crate) duplicate: Option<SeqRange>,
    /// Something was kept behind a gap.
    pub(crate) out_of_order: bool,
    /// Something had to be left out: no buffer, no node, or too many chunks behind gaps.
    pub(crate) no_room: bool,
}

/// The receive queue of one connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReceiveQueue {
    /// The first node, or a buffer.
    ready_head: u32,
    /// The last node; 0: none; [`NO_NODE`]: `ready_head` is the only buffer.
    ready_tail: u32,
    ready_bytes: u32,
    out_of_order: Spare,
}

/// Without the name of a buffer, which says nothing: queues with the same bytes look the same.
impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.only().is_none().then_some((self.ready_head, self.ready_tail));
        f.debug_struct("ReceiveQueue")
            .field("ready", &ready)
            .field("ready_bytes", &self.ready_bytes)
            .field("out_of_order", &self.out_of_order)
            .finish()
    }
}

/// Bytes that were copied to behind what is ready, and are not part of it yet.
pub(crate) struct Staged {
    /// How many lie in the last buffer.
    filled: u32,
    /// The others, in a buffer of their own.
    new: Option<Chunk>,
}

impl Staged {
    /// Gives up the buffer.
    pub(crate) fn discard<M: Memory>(self, memory: &mut M) {
        if let Some(chunk) = self.new {
            memory.free(chunk.buf);
        }
    }
}

/// Where and how bytes are stored.
pub(crate) struct Store<'a, M> {
    pub(crate) nodes: &'a mut ChunkNodes,
    pub(crate) memory: &'a mut M,
    pub(crate) pool: PoolId,
}

impl ReceiveQueue {
    /// Bytes that are in order and wait.
    pub(crate) const fn ready_bytes(&self) -> u32 {
        self.ready_bytes
    }

    /// Nothing waits, in order or behind a gap.
    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.ready_tail == 0 && !self.out_of_order.is_some()
    }

    /// Bytes behind gaps.
    pub(crate) fn out_of_order_bytes(&self, nodes: &ChunkNodes) -> u32 {
        self.out_of_order(nodes).map_or(0, |list| list.bytes)
    }

    /// There is a gap.
    pub(crate) const fn has_gap(&self) -> bool {
        self.out_of_order.is_some()
    }

    fn out_of_order<'a>(&self, nodes: &'a ChunkNodes) -> Option<&'a OutOfOrderList> {
        nodes.out_of_orders.get(self.out_of_order)
    }

    /// Where what lies behind gaps begins; 0: there is no gap.
    fn out_of_order_head(&self, nodes: &ChunkNodes) -> u32 {
        self.out_of_order(nodes).map_or(0, |list| list.head)
    }

    /// Takes over a buffer that was filled already with the bytes at `rcv.nxt`; the queue has no
    /// gap, or the bytes end before what follows it. `false`: no node is left, the buffer is
    /// still the caller's.
    pub(crate) fn adopt(&mut self, nodes: &mut ChunkNodes, chunk: Chunk) -> bool {
        debug_assert!(!self.has_gap(), "bytes before a gap are inserted");
        if self.ready_tail == 0 && chunk.offset == 0 {
            self.adopt_first(chunk);
            return true;
        }
        if !self.use_nodes(nodes) {
            return false;
        }
        let Ok(link) = nodes.take(chunk, SeqNum(0)) else { return false };
        self.push_ready(nodes, link, chunk.len);
        true
    }

    /// The same where nothing waits, and the bytes lie at the buffer's start.
    #[inline(always)]
    pub(crate) fn adopt_first(&mut self, chunk: Chunk) {
        debug_assert!(self.ready_tail == 0 && !self.has_gap(), "it is the only one");
        (self.ready_head, self.ready_tail, self.ready_bytes) = (chunk.buf.0, NO_NODE, chunk.len);
    }

    /// The buffer that waits without a node.
    #[inline(always)]
    const fn only(&self) -> Option<Chunk> {
        let chunk = Chunk { buf: BufId(self.ready_head), offset: 0, len: self.ready_bytes };
        if self.ready_tail == NO_NODE { Some(chunk) } else { None }
    }

    /// Gives the only buffer a node, so that others can follow it. `false`: there is none.
    fn use_nodes(&mut self, nodes: &mut ChunkNodes) -> bool {
        let Some(chunk) = self.only() else { return true };
        let Ok(link) = nodes.take(chunk, SeqNum(0)) else { return false };
        (self.ready_head, self.ready_tail) = (link, link);
        true
    }

    /// Takes the payload that starts at `seq`, cut to the window by the caller.
    pub(crate) fn insert<M: Memory>(
        &mut self,
        store: &mut Store<'_, M>,
        rcv_nxt: SeqNum,
        seq: SeqNum,
        payload: &[u8],
    ) -> Inserted {
        let mut inserted = Inserted::default();
        let end = seq + payload.len() as u32;
        if seq.before(rcv_nxt) {
            inserted.duplicate = Some(SeqRange { start: seq, end: end.earlier(rcv_nxt) });
        }
        if end.at_or_before(rcv_nxt) {
            return inserted;
        }
        if seq.after(rcv_nxt) {
            self.keep_out_of_order(store, seq, payload, &mut inserted);
            return inserted;
        }
        let fresh = &payload[rcv_nxt.since(seq) as usize..];
        self.continue_ready(store, rcv_nxt, fresh, &mut inserted);
        inserted
    }

    /// Copies bytes that continue what is ready to where they would lie, without taking them, and
    /// answers their sum: one pass where it is not known yet whether they are good. `None`: they
    /// need more than the last buffer and a new one, or there is none; nothing happened. The queue
    /// has no gap.
    #[inline(always)]
    pub(crate) fn stage<M: Memory>(
        &self,
        store: &mut Store<'_, M>,
        bytes: &[u8],
    ) -> Option<(Staged, u16)> {
        debug_assert!(!self.has_gap(), "bytes before a gap are inserted");
        let (mut filled, mut sum) = (0, 0);
        if self.ready_tail != 0 {
            let only = self.only();
            let chunk = only.unwrap_or_else(|| store.nodes.at(self.ready_tail).chunk);
            let end = chunk.offset + chunk.len;
            let room = store.memory.buf_bytes(chunk.buf).saturating_sub(end) as usize;
            filled = room.min(bytes.len());
            if filled > 0 {
                sum = store.memory.copy_in(chunk.buf, end, &bytes[..filled]);
            }
        }
        let rest = &bytes[filled..];
        if rest.is_empty() {
            return Some((Staged { filled: filled as u32, new: None }, sum));
        }
        if store.nodes.free() < 2 {
            return None;
        }
        let (chunk, more) = Self::stage_in_new_buffer(store, rest)?;
        let sum = if filled == 0 { more } else { checksum::append(sum, filled, more) };
        Some((Staged { filled: filled as u32, new: Some(chunk) }, sum))
    }

    /// The same where nothing waits: into a buffer of their own, for [`ReceiveQueue::adopt_first`].
    #[inline(always)]
    pub(crate) fn stage_in_new_buffer<M: Memory>(
        store: &mut Store<'_, M>,
        bytes: &[u8],
    ) -> Option<(Chunk, u16)> {
        let (buf, sum) = store.memory.store(store.pool, bytes)?;
        Some((Chunk { buf, offset: 0, len: bytes.len() as u32 }, sum))
    }

    /// Takes what was staged: how many bytes.
    #[inline(always)]
    pub(crate) fn take_staged(&mut self, nodes: &mut ChunkNodes, staged: &Staged) -> u32 {
        let mut taken = staged.filled;
        if staged.filled > 0 {
            if self.only().is_none() {
                nodes.at_mut(self.ready_tail).chunk.len += staged.filled;
            }
            self.ready_bytes += staged.filled;
        }
        // Nodes were free when that was staged.
        if let Some(chunk) = staged.new
            && self.adopt(nodes, chunk)
        {
            taken += chunk.len;
        }
        taken
    }

    /// The oldest bytes in order. The buffer is the caller's.
    #[inline(always)]
    pub(crate) fn pop(&mut self, nodes: &mut ChunkNodes) -> Option<Chunk> {
        if self.ready_tail != NO_NODE {
            return self.pop_node(nodes);
        }
        self.pop_only()
    }

    /// The same, if it is the only one.
    #[inline(always)]
    pub(crate) fn pop_only(&mut self) -> Option<Chunk> {
        let chunk = self.only()?;
        (self.ready_head, self.ready_tail, self.ready_bytes) = (0, 0, 0);
        Some(chunk)
    }

    #[inline(never)]
    fn pop_node(&mut self, nodes: &mut ChunkNodes) -> Option<Chunk> {
        if self.ready_head == 0 {
            return None;
        }
        let chunk = nodes.at(self.ready_head).chunk;
        self.ready_head = nodes.give_back(self.ready_head);
        if self.ready_head == 0 {
            self.ready_tail = 0;
        }
        self.ready_bytes -= chunk.len;
        Some(chunk)
    }

    /// The ranges behind gaps, those that grew last first (RFC 2018 §4), and how many there are.
    pub(crate) fn sack_blocks(&self, nodes: &ChunkNodes) -> ([SeqRange; RECENT], usize) {
        let Some(list) = self.out_of_order(nodes) else {
            return ([SeqRange::default(); RECENT], 0);
        };
        if list.recent_count > 0 {
            return (list.recent, usize::from(list.recent_count));
        }
        // All that grew lately is in order by now; what is older still wants to be said.
        ([OutOfOrderList::range_of(nodes, list.head); RECENT], 1)
    }

    /// Gives up everything.
    #[inline(always)]
    pub(crate) fn clear<M: Memory>(&mut self, nodes: &mut ChunkNodes, memory: &mut M) {
        if !self.is_empty() {
            self.free_whole(nodes, memory);
        }
    }

    #[inline(never)]
    fn free_whole<M: Memory>(&mut self, nodes: &mut ChunkNodes, memory: &mut M) {
        self.drop_out_of_order(nodes, memory);
        match self.only() {
            Some(chunk) => memory.free(chunk.buf),
            None => free_all(nodes, memory, self.ready_head),
        }
        *self = Self::default();
    }

    /// Gives up what lies behind gaps: it was never acknowledged (RFC 2018 §8).
    pub(crate) fn drop_out_of_order<M: Memory>(&mut self, nodes: &mut ChunkNodes, memory: &mut M) {
        let head = self.out_of_order_head(nodes);
        free_all(nodes, memory, head);
        nodes.out_of_orders.give_back(&mut self.out_of_order);
    }

    #[cfg(test)]
    /// Returns the chunks in order, for migration.
    pub(crate) fn iter<'a>(&self, nodes: &'a ChunkNodes) -> impl Iterator<Item = Chunk> + use<'a> {
        let mut only = self.only();
        let mut link = if only.is_some() { 0 } else { self.ready_head };
        core::iter::from_fn(move || {
            if let Some(chunk) = only.take() {
                return Some(chunk);
            }
            let node = (link != 0).then(|| nodes.at(link))?;
            link = node.next;
            Some(node.chunk)
        })
    }

    /// `fresh` starts at `rcv.nxt`: takes its bytes, and between them what waited behind gaps.
    fn continue_ready<M: Memory>(
        &mut self,
        store: &mut Store<'_, M>,
        rcv_nxt: SeqNum,
        fresh: &[u8],
        inserted: &mut Inserted,
    ) {
        let mut at = rcv_nxt;
        let end = rcv_nxt + fresh.len() as u32;
        loop {
            let out_of_order_head = self.out_of_order_head(store.nodes);
            if out_of_order_head != 0 && store.nodes.at(out_of_order_head).seq == at {
                let range = self.close_gap(store.nodes);
                if at.before(end) && inserted.duplicate.is_none() {
                    inserted.duplicate = Some(SeqRange { end: range.end.earlier(end), ..range });
                }
                at = range.end;
                continue;
            }
            if end.at_or_before(at) {
                break;
            }
            let stop = match out_of_order_head {
                0 => end,
                head => end.earlier(store.nodes.at(head).seq),
            };
            let piece = &fresh[at.since(rcv_nxt) as usize..stop.since(rcv_nxt) as usize];
            let taken = self.append_ready(store, piece);
            at += taken;
            if taken < piece.len() as u32 {
                inserted.no_room = true;
                break;
            }
        }
        inserted.advanced = at.since(rcv_nxt);
    }

    /// Moves the first range behind a gap, which starts at `rcv.nxt`, to what is in order.
    fn close_gap(&mut self, nodes: &mut ChunkNodes) -> SeqRange {
        let Some(mut list) = self.out_of_order(nodes).copied() else { return SeqRange::default() };
        let (first, last) = (list.head, nodes.at(list.head).of_list);
        let range = list.remove_first_range(nodes);
        if list.head == 0 {
            nodes.out_of_orders.give_back(&mut self.out_of_order);
        } else if let Some(kept) = nodes.out_of_orders.get_mut(self.out_of_order) {
            *kept = list;
        }
        nodes.at_mut(last).next = 0;
        self.push_ready(nodes, first, range.len());
        self.ready_tail = last;
        range
    }

    #[inline(always)]
    fn push_ready(&mut self, nodes: &mut ChunkNodes, link: u32, len: u32) {
        if self.ready_tail == 0 {
            self.ready_head = link;
        } else {
            nodes.at_mut(self.ready_tail).next = link;
        }
        self.ready_tail = link;
        self.ready_bytes += len;
    }

    /// Appends to what is in order; how many bytes found room.
    fn append_ready<M: Memory>(&mut self, store: &mut Store<'_, M>, bytes: &[u8]) -> u32 {
        let mut done = 0;
        if let Some(mut chunk) = self.only() {
            done = fill_room(store.memory, &mut chunk, bytes);
            self.ready_bytes = chunk.len;
        } else if self.ready_tail != 0 {
            let chunk = &mut store.nodes.at_mut(self.ready_tail).chunk;
            done = fill_room(store.memory, chunk, bytes);
            self.ready_bytes += done as u32;
        }
        while done < bytes.len() && self.use_nodes(store.nodes) {
            let rest = &bytes[done..];
            if self.ready_tail == 0 && !self.has_gap() {
                let Some(chunk) = new_chunk(store, rest) else { break };
                self.adopt_first(chunk);
                done += chunk.len as usize;
                continue;
            }
            let Some((link, len)) = new_node(store, SeqNum(0), rest) else { break };
            self.push_ready(store.nodes, link, len as u32);
            done += len;
        }
        done as u32
    }

    /// Keeps bytes behind a gap: whatever of them is not there yet.
    fn keep_out_of_order<M: Memory>(
        &mut self,
        store: &mut Store<'_, M>,
        seq: SeqNum,
        payload: &[u8],
        inserted: &mut Inserted,
    ) {
        if !self.use_nodes(store.nodes) {
            inserted.no_room = true;
            return;
        }
        let mut list =
            *store.nodes.out_of_orders.get_or_take(&mut self.out_of_order, OutOfOrderList::default);
        let range = list.keep(store, seq, payload, inserted);
        list.mark_recent(store.nodes, range, seq);
        if list.head == 0 {
            store.nodes.out_of_orders.give_back(&mut self.out_of_order);
        } else if let Some(kept) = store.nodes.out_of_orders.get_mut(self.out_of_order) {
            *kept = list;
        }
    }
}

impl OutOfOrderList {
    /// Keeps what of a segment is not there yet. Returns the first node of the last range that it
    /// met; 0: none.
    fn keep<M: Memory>(
        &mut self,
        store: &mut Store<'_, M>,
        seq: SeqNum,
        payload: &[u8],
        inserted: &mut Inserted,
    ) -> u32 {
        let end = seq + payload.len() as u32;
        let (mut at, mut range) = (seq, self.range_before(store.nodes, seq));
        while at.before(end) {
            if range != 0 {
                let behind = Self::range_of(store.nodes, range).end;
                if at.before(behind) {
                    let range = SeqRange { start: at, end: behind.earlier(end) };
                    inserted.duplicate.get_or_insert(range);
                    at = behind;
                    continue;
                }
            }
            let next = self.range_behind(store.nodes, range);
            let stop = match next {
                0 => end,
                next => end.earlier(store.nodes.at(next).seq),
            };
            let piece = &payload[at.since(seq) as usize..stop.since(seq) as usize];
            let taken = self.insert_behind(store, &mut range, at, piece);
            inserted.out_of_order |= taken > 0;
            at += taken;
            if taken < piece.len() as u32 {
                inserted.no_room = true;
                break;
            }
            if next != 0 && store.nodes.at(next).seq == at {
                self.join_ranges(store.nodes, range, next);
            }
        }
        range
    }

    /// Puts bytes that overlap nothing behind the range of `range` (0: first), and moves `range` to
    /// theirs; how many bytes found room.
    fn insert_behind<M: Memory>(
        &mut self,
        store: &mut Store<'_, M>,
        range: &mut u32,
        seq: SeqNum,
        bytes: &[u8],
    ) -> u32 {
        let mut done = 0;
        let mut continues = *range != 0 && Self::range_of(store.nodes, *range).end == seq;
        if continues {
            let last = store.nodes.at(*range).of_list;
            done = fill_room(store.memory, &mut store.nodes.at_mut(last).chunk, bytes);
            self.bytes += done as u32;
        }
        while done < bytes.len() && self.may_keep() && (continues || self.may_add_range()) {
            let at = seq + done as u32;
            let Some((link, len)) = new_node(store, at, &bytes[done..]) else { break };
            if continues {
                self.extend_range(store.nodes, *range, link);
            } else {
                self.add_range(store.nodes, *range, link);
                *range = link;
                continues = true;
            }
            self.chunks += 1;
            self.bytes += len as u32;
            done += len;
        }
        done as u32
    }
}

/// Gives up the nodes from `link` on.
fn free_all<M: Memory>(nodes: &mut ChunkNodes, memory: &mut M, mut link: u32) {
    while link != 0 {
        memory.free(nodes.at(link).chunk.buf);
        link = nodes.give_back(link);
    }
}

/// Copies into the room behind a chunk's bytes; how many found room.
fn fill_room<M: Memory>(memory: &mut M, chunk: &mut Chunk, bytes: &[u8]) -> usize {
    let end = chunk.offset + chunk.len;
    let room = memory.buf_bytes(chunk.buf).saturating_sub(end) as usize;
    let len = room.min(bytes.len());
    if len > 0 {
        memory.copy_in(chunk.buf, end, &bytes[..len]);
        chunk.len += len as u32;
    }
    len
}

/// A new buffer that holds the first of `bytes`.
fn new_chunk<M: Memory>(store: &mut Store<'_, M>, bytes: &[u8]) -> Option<Chunk> {
    let buf = store.memory.alloc(store.pool)?;
    let len = bytes.len().min(store.memory.buf_bytes(buf) as usize);
    store.memory.copy_in(buf, 0, &bytes[..len]);
    Some(Chunk { buf, offset: 0, len: len as u32 })
}

/// A node with such a buffer, and how many bytes that holds.
fn new_node<M: Memory>(
    store: &mut Store<'_, M>,
    seq: SeqNum,
    bytes: &[u8],
) -> Option<(u32, usize)> {
    if store.nodes.free() == 0 {
        return None;
    }
    let chunk = new_chunk(store, bytes)?;
    let Ok(link) = store.nodes.take(chunk, seq) else {
        store.memory.free(chunk.buf);
        return None;
    };
    Some((link, chunk.len as usize))
}

#[cfg(test)]
mod tests;
