//! Send queue: the bytes from `snd.una` on that the application gave us and the peer has not
//! acknowledged.
//!
//! Read first: RFC 9293 §3.4 for `snd.una`; architecture, "Who owns a byte": a buffer is ours from
//! `push` until its last byte is acknowledged, and retransmission reads it in place.
//!
//! ```text
//!  snd.una                    snd.nxt
//!     |---- sent, unacked -------|---- not sent ----|
//!  [ chunk  ][ chunk     ][ chunk ][ chunk          ]
//!   ^ head, `acked` bytes of it    ^ cursor           ^ tail
//!     are acknowledged already
//! ```
//!
//! Invariants
//! - `bytes` is the sum of the chunks' lengths less `acked`.
//! - The cursor is a node of the list, or 0; `cursor_offset` is where its first byte lies, counted
//!   from `snd.una`. Sending on from where one stopped costs no walk.

use alloc::vec::Vec;

use super::chunks::{ChunkNodes, Full};
use crate::chunk::Chunk;
use crate::memory::Memory;
use crate::seq::SeqNum;

/// The send queue of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SendQueue {
    head: u32,
    tail: u32,
    chunks: u32,
    bytes: u32,
    /// Bytes of the head chunk that are acknowledged.
    acked: u32,
    cursor: u32,
    /// Negative for the head while some of it is acknowledged.
    cursor_offset: i32,
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

    /// Takes over a chunk.
    ///
    /// # Errors
    /// [`Full`] if the shard has no node left; nothing was taken.
    pub(crate) fn push(&mut self, nodes: &mut ChunkNodes, chunk: Chunk) -> Result<(), Full> {
        let link = nodes.take(chunk, SeqNum(0))?;
        if self.tail == 0 {
            self.head = link;
        } else {
            nodes.at_mut(self.tail).next = link;
        }
        self.tail = link;
        self.chunks += 1;
        self.bytes += chunk.len;
        Ok(())
    }

    /// Copies the bytes from `offset` (counted from `snd.una`) on into `to`, and answers their sum
    /// as [`Memory::copy_out`] does. What lies past the queue's end becomes zeroes.
    pub(crate) fn copy_out<M: Memory>(
        &mut self,
        nodes: &ChunkNodes,
        memory: &M,
        offset: u32,
        to: &mut [u8],
    ) -> u16 {
        self.seek(nodes, offset);
        let mut skip = (i64::from(offset) - i64::from(self.cursor_offset)) as u32;
        let (mut sum, mut done) = (0_u32, 0_usize);
        while done < to.len() && self.cursor != 0 {
            let node = nodes.at(self.cursor);
            let chunk = node.chunk;
            let len = (chunk.len.saturating_sub(skip) as usize).min(to.len() - done);
            if len == 0 {
                break;
            }
            let piece = Chunk { offset: chunk.offset + skip, len: len as u32, ..chunk };
            let part = memory.copy_out(piece, &mut to[done..done + len]);
            // A piece at an odd offset has its bytes in the other halves of the pairs (RFC 1071).
            sum += u32::from(if done.is_multiple_of(2) { part } else { part.swap_bytes() });
            done += len;
            if skip + (len as u32) < chunk.len || node.next == 0 {
                break;
            }
            skip = 0;
            self.cursor_offset += chunk.len as i32;
            self.cursor = node.next;
        }
        to[done..].fill(0);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// The first `bytes` are acknowledged: gives up the chunks that are done, and says how many.
    pub(crate) fn acknowledge<M: Memory>(
        &mut self,
        nodes: &mut ChunkNodes,
        memory: &mut M,
        bytes: u32,
    ) -> u32 {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.acked += bytes;
        self.cursor_offset -= bytes as i32;
        let mut freed = 0;
        while self.head != 0 && nodes.at(self.head).chunk.len <= self.acked {
            let chunk = nodes.at(self.head).chunk;
            memory.free(chunk.buf);
            self.acked -= chunk.len;
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

    /// Gives up everything.
    pub(crate) fn clear<M: Memory>(&mut self, nodes: &mut ChunkNodes, memory: &mut M) {
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
        while self.head != 0 {
            self.head = nodes.give_back(self.head);
        }
        *self = Self::default();
        chunks
    }

    /// The chunks in order, the acknowledged bytes of the first left out.
    pub(crate) fn iter<'a>(&self, nodes: &'a ChunkNodes) -> impl Iterator<Item = Chunk> + use<'a> {
        let mut link = self.head;
        let mut skip = self.acked;
        core::iter::from_fn(move || {
            if link == 0 {
                return None;
            }
            let node = nodes.at(link);
            link = node.next;
            let skip = core::mem::take(&mut skip);
            let chunk = node.chunk;
            Some(Chunk { offset: chunk.offset + skip, len: chunk.len - skip, ..chunk })
        })
    }

    /// Moves the cursor to the node that holds `offset`, from where it is or from the head.
    fn seek(&mut self, nodes: &ChunkNodes, offset: u32) {
        if self.cursor == 0 || i64::from(self.cursor_offset) > i64::from(offset) {
            self.cursor = self.head;
            self.cursor_offset = -(self.acked as i32);
        }
        while self.cursor != 0 {
            let node = nodes.at(self.cursor);
            let end = i64::from(self.cursor_offset) + i64::from(node.chunk.len);
            if i64::from(offset) < end || node.next == 0 {
                break;
            }
            self.cursor_offset += node.chunk.len as i32;
            self.cursor = node.next;
        }
    }
}

#[cfg(test)]
mod tests;
