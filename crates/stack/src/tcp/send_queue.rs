//! Send queue: the bytes from `snd.una` on that the application gave us and the peer has not
//! acknowledged.
//!
//! Read first: RFC 9293 §3.4 for `snd.una`; the head of `memory.rs`. A buffer is ours from
//! `push` until its last byte is acknowledged, and retransmission reads it in place.
//!
//! ```text
//!  snd.una                    snd.nxt
//!     |---- sent, unacked -------|---- not sent ----|
//!  [ chunk  ][ chunk     ][ chunk ][ chunk          ]
//!   ^ head, whose first bytes are ^ cursor           ^ tail
//!     acknowledged already
//! ```
//!
//! Each node says where its first byte lies, by a count that goes on as long as nodes are in use:
//! where the queue ends follows from the tail, and where `snd.una` is from that and `bytes`.
//!
//! A request, or an answer, is mostly one chunk, and acknowledged before the next: it needs no
//! node. The queue names it itself, and what is acknowledged of it is not part of it any more.
//!
//! Invariants
//! - `bytes` is the sum of the chunks' lengths less what is acknowledged of the head.
//! - The cursor is a node of the list, or 0: sending on from where one stopped costs no walk.
//! - A chunk without a node is the only one of its queue.

use alloc::vec::Vec;
use core::fmt;

use super::chunks::{ChunkNodes, ENDS_RECORD, Full, Node};
use super::recovery::Sent;
use crate::chunk::Chunk;
use crate::id::BufId;
use crate::memory::Memory;
use crate::seq::{SeqNum, SeqRange};

/// In `tail`.
const NO_NODE: u32 = u32::MAX;

/// Data to be sent in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Data {
    /// Its sequence numbers, a FIN's included.
    pub(super) range: SeqRange,
    pub(super) kind: Sent,
    /// The last of `range` is our FIN.
    pub(super) fin: bool,
}

impl Data {
    pub(super) fn is_new(&self) -> bool {
        self.kind == Sent::New
    }
}

/// The send queue of one connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct SendQueue {
    /// The first node; the only chunk's buffer, if that has no node.
    head: u32,
    /// The last node; 0: none; [`NO_NODE`]: `head` is a buffer.
    tail: u32,
    /// A node; where the only chunk begins in its buffer.
    cursor: u32,
    chunks: u32,
    bytes: u32,
}

/// Without the name of a buffer, which says nothing: queues with the same bytes look the same.
impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.only().is_none().then_some((self.head, self.tail, self.cursor));
        f.debug_struct("SendQueue")
            .field("nodes", &nodes)
            .field("chunks", &self.chunks)
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl SendQueue {
    /// Bytes that wait, sent or not.
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Chunks that wait, wholly or in part.
    pub(crate) const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The chunk that has no node.
    #[inline(always)]
    const fn only(&self) -> Option<Chunk> {
        let chunk = Chunk { buf: BufId(self.head), offset: self.cursor, len: self.bytes };
        if self.tail == NO_NODE { Some(chunk) } else { None }
    }

    /// Takes over a chunk.
    ///
    /// # Errors
    /// [`Full`] if the shard has no node left; nothing was taken.
    #[inline(always)]
    pub(crate) fn push(&mut self, nodes: &mut ChunkNodes, chunk: Chunk) -> Result<(), Full> {
        if self.tail != 0 {
            return self.push_behind(nodes, chunk);
        }
        let Chunk { buf, offset, len } = chunk;
        *self = Self { head: buf.0, tail: NO_NODE, cursor: offset, chunks: 1, bytes: len };
        Ok(())
    }

    /// The same where others wait.
    #[inline(never)]
    fn push_behind(&mut self, nodes: &mut ChunkNodes, chunk: Chunk) -> Result<(), Full> {
        if self.tail == NO_NODE && nodes.free() < 2 {
            return Err(Full);
        }
        self.use_node(nodes)?;
        let end = self.end(nodes);
        let link = nodes.take(chunk, end)?;
        nodes.at_mut(self.tail).next = link;
        self.tail = link;
        self.chunks += 1;
        self.bytes += chunk.len;
        Ok(())
    }

    /// Copies the bytes from `offset` (counted from `snd.una`) on into `to`, and answers their sum
    /// as [`Memory::copy_out`] does. What lies past the queue's end becomes zeroes.
    #[inline(always)]
    pub(crate) fn copy_out<M: Memory>(
        &mut self,
        nodes: &ChunkNodes,
        memory: &M,
        offset: u32,
        to: &mut [u8],
    ) -> u16 {
        // Most segments are of one chunk, and most chunks go in one segment.
        if let Some(only) = self.only()
            && let Some(left) = only.len.checked_sub(offset)
            && to.len() <= left as usize
        {
            let len = to.len() as u32;
            return memory.copy_out(Chunk { offset: only.offset + offset, len, ..only }, to);
        }
        self.copy_any(nodes, memory, offset, to)
    }

    #[inline(never)]
    fn copy_any<M: Memory>(
        &mut self,
        nodes: &ChunkNodes,
        memory: &M,
        offset: u32,
        to: &mut [u8],
    ) -> u16 {
        if let Some(only) = self.only() {
            // It ends before `to` does.
            let there = only.len.saturating_sub(offset).min(to.len() as u32);
            let (head, tail) = to.split_at_mut(there as usize);
            tail.fill(0);
            if there == 0 {
                return 0;
            }
            let piece = Chunk { offset: only.offset + offset, len: there, ..only };
            return memory.copy_out(piece, head);
        }
        let at = self.front(nodes) + offset;
        self.seek(nodes, at);
        if self.cursor != 0 {
            let node = nodes.at(self.cursor);
            let skip = at.since(node.seq);
            if u64::from(skip) + to.len() as u64 <= u64::from(node.chunk.len) {
                let Chunk { buf, offset, .. } = node.chunk;
                let piece = Chunk { buf, offset: offset + skip, len: to.len() as u32 };
                return memory.copy_out(piece, to);
            }
        }
        self.copy_pieces(nodes, memory, at, to)
    }

    fn copy_pieces<M: Memory>(
        &mut self,
        nodes: &ChunkNodes,
        memory: &M,
        mut at: SeqNum,
        to: &mut [u8],
    ) -> u16 {
        let (mut sum, mut done) = (0_u32, 0_usize);
        while done < to.len() && self.cursor != 0 {
            let node = nodes.at(self.cursor);
            let (chunk, skip) = (node.chunk, at.since(node.seq));
            let len = (chunk.len.saturating_sub(skip) as usize).min(to.len() - done);
            if len == 0 {
                break;
            }
            let piece = Chunk { offset: chunk.offset + skip, len: len as u32, ..chunk };
            let part = memory.copy_out(piece, &mut to[done..done + len]);
            // A piece at an odd offset has its bytes in the other halves of the pairs (RFC 1071).
            sum += u32::from(if done.is_multiple_of(2) { part } else { part.swap_bytes() });
            done += len;
            at += len as u32;
            if skip + (len as u32) < chunk.len || node.next == 0 {
                break;
            }
            self.cursor = node.next;
        }
        to[done..].fill(0);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// It is one chunk without a node, and no longer than `bytes`.
    #[inline(always)]
    pub(crate) const fn is_only(&self, bytes: u32) -> bool {
        self.tail == NO_NODE && self.bytes <= bytes
    }

    /// The buffer of the only chunk, which is acknowledged.
    #[inline(always)]
    pub(crate) fn take_only(&mut self) -> BufId {
        let buf = BufId(self.head);
        *self = Self::default();
        buf
    }

    /// The first `bytes` are acknowledged: gives up the chunks that are done, and says how many.
    #[inline(always)]
    pub(crate) fn acknowledge<M: Memory>(
        &mut self,
        nodes: &mut ChunkNodes,
        memory: &mut M,
        bytes: u32,
    ) -> u32 {
        if !self.is_only(bytes) {
            return self.acknowledge_part(nodes, memory, bytes);
        }
        // A request, or an answer, whole.
        memory.free(self.take_only());
        1
    }

    #[inline(never)]
    fn acknowledge_part<M: Memory>(
        &mut self,
        nodes: &mut ChunkNodes,
        memory: &mut M,
        bytes: u32,
    ) -> u32 {
        if self.tail == 0 {
            return 0;
        }
        if self.tail == NO_NODE {
            debug_assert!(bytes < self.bytes, "more of it is left");
            self.cursor += bytes;
            self.bytes -= bytes;
            return 0;
        }
        let end = self.end(nodes);
        self.bytes -= bytes.min(self.bytes);
        let front = end - self.bytes;
        let mut freed = 0;
        while self.head != 0 {
            let Node { chunk, seq, .. } = *nodes.at(self.head);
            if (seq + chunk.len).after(front) {
                break;
            }
            memory.free(chunk.buf);
            if self.cursor == self.head {
                self.cursor = 0;
            }
            self.head = nodes.give_back(self.head);
            freed += 1;
        }
        if self.head == 0 {
            self.tail = 0;
        }
        self.chunks -= freed;
        freed
    }

    /// What was queued so far ends a record. Nothing, if all of it is acknowledged.
    ///
    /// # Errors
    /// [`Full`] if the shard has no node left to note it in.
    pub(crate) fn end_record(&mut self, nodes: &mut ChunkNodes) -> Result<(), Full> {
        self.use_node(nodes)?;
        if self.tail != 0 {
            nodes.at_mut(self.tail).of_list = ENDS_RECORD;
        }
        Ok(())
    }

    /// Gives the only chunk a node, if it has none.
    fn use_node(&mut self, nodes: &mut ChunkNodes) -> Result<(), Full> {
        if let Some(only) = self.only() {
            let link = nodes.take(only, SeqNum(0))?;
            (self.head, self.tail, self.cursor) = (link, link, 0);
        }
        Ok(())
    }

    /// How many bytes from `offset` (counted from `snd.una`) on belong to one record; `None`: the
    /// record goes on to the queue's end.
    pub(crate) fn record_bytes(&self, nodes: &ChunkNodes, offset: u32) -> Option<u32> {
        if self.only().is_some() {
            return None;
        }
        let at = self.front(nodes) + offset;
        let mut link = self.cursor;
        if link == 0 || nodes.at(link).seq.after(at) {
            link = self.head;
        }
        while link != 0 {
            let node = nodes.at(link);
            let end = node.seq + node.chunk.len;
            if node.of_list == ENDS_RECORD && end.after(at) {
                return Some(end.since(at));
            }
            link = node.next;
        }
        None
    }

    /// Whether some chunk that waits is such a one.
    pub(crate) fn has_chunk(&self, nodes: &ChunkNodes, is_such: impl Fn(Chunk) -> bool) -> bool {
        if let Some(only) = self.only() {
            return is_such(only);
        }
        let mut link = self.head;
        while link != 0 {
            let node = nodes.at(link);
            if is_such(node.chunk) {
                return true;
            }
            link = node.next;
        }
        false
    }

    /// Gives up everything.
    #[inline]
    pub(crate) fn clear<M: Memory>(&mut self, nodes: &mut ChunkNodes, memory: &mut M) {
        if let Some(only) = self.only() {
            memory.free(only.buf);
            *self = Self::default();
        }
        while self.head != 0 {
            memory.free(nodes.at(self.head).chunk.buf);
            self.head = nodes.give_back(self.head);
        }
        *self = Self::default();
    }

    /// Gives everything to the caller, buffers and all: the chunks in order, the acknowledged bytes
    /// of the first left out.
    pub(crate) fn release(&mut self, nodes: &mut ChunkNodes) -> Vec<Chunk> {
        let chunks = self.iter(nodes).collect();
        while self.head != 0 && self.only().is_none() {
            self.head = nodes.give_back(self.head);
        }
        *self = Self::default();
        chunks
    }

    /// The chunks in order, the acknowledged bytes of the first left out.
    pub(crate) fn iter<'a>(&self, nodes: &'a ChunkNodes) -> impl Iterator<Item = Chunk> + use<'a> {
        let mut only = self.only();
        let mut link = if only.is_some() { 0 } else { self.head };
        let mut skip = if link == 0 { 0 } else { self.front(nodes).since(nodes.at(link).seq) };
        core::iter::from_fn(move || {
            if link == 0 {
                return only.take();
            }
            let node = nodes.at(link);
            link = node.next;
            let skip = core::mem::take(&mut skip);
            let chunk = node.chunk;
            Some(Chunk { offset: chunk.offset + skip, len: chunk.len - skip, ..chunk })
        })
    }

    /// One past the last byte, by the queue's own count. All have nodes.
    fn end(&self, nodes: &ChunkNodes) -> SeqNum {
        match self.tail {
            0 => SeqNum(0),
            tail => {
                let tail = nodes.at(tail);
                tail.seq + tail.chunk.len
            }
        }
    }

    /// The first byte that is not acknowledged.
    fn front(&self, nodes: &ChunkNodes) -> SeqNum {
        self.end(nodes) - self.bytes
    }

    /// Moves the cursor to the node that holds `at`, from where it is or from the head.
    fn seek(&mut self, nodes: &ChunkNodes, at: SeqNum) {
        if self.cursor == 0 || nodes.at(self.cursor).seq.after(at) {
            self.cursor = self.head;
        }
        while self.cursor != 0 {
            let node = nodes.at(self.cursor);
            if at.before(node.seq + node.chunk.len) || node.next == 0 {
                break;
            }
            self.cursor = node.next;
        }
    }
}

#[cfg(test)]
mod tests;
