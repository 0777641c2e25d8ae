//! Payload memory on the heap: for simulations, scripts and tests, and as the reference
//! implementation of [`Memory`].
//!
//! Invariant: a buffer is free or in use; freeing a free one panics, because it is a bug of the
//! stack and never of a peer.

use alloc::vec::Vec;

use crate::chunk::Chunk;
use crate::id::{BufId, PoolId};
use crate::memory::Memory;
use crate::wire::checksum;

/// Buffers of one size on the heap; all pools share them.
#[derive(Debug)]
pub struct HeapMemory {
    bytes: Vec<u8>,
    buf_bytes: u32,
    free: Vec<u32>,
    in_use: Vec<bool>,
}

impl HeapMemory {
    /// `count` buffers of `buf_bytes` bytes each.
    #[must_use]
    pub fn new(count: u32, buf_bytes: u32) -> Self {
        Self {
            bytes: alloc::vec![0; count as usize * buf_bytes as usize],
            buf_bytes,
            free: (0..count).rev().collect(),
            in_use: alloc::vec![false; count as usize],
        }
    }

    /// A buffer filled with `bytes`, as an application makes one to send it. `None`: none is free,
    /// or `bytes` are more than a buffer holds.
    #[must_use]
    pub fn chunk_of(&mut self, bytes: &[u8]) -> Option<Chunk> {
        if bytes.len() > self.buf_bytes as usize {
            return None;
        }
        let buf = self.alloc(PoolId::default())?;
        self.copy_in(buf, 0, bytes);
        Some(Chunk { buf, offset: 0, len: bytes.len() as u32 })
    }

    /// The bytes of a chunk; fewer if it reaches past its buffer.
    #[must_use]
    pub fn bytes(&self, chunk: Chunk) -> &[u8] {
        let start = chunk.buf.0 as usize * self.buf_bytes as usize;
        let Some(buf) = self.bytes.get(start..start + self.buf_bytes as usize) else {
            return &[];
        };
        let end = (u64::from(chunk.offset) + u64::from(chunk.len)).min(buf.len() as u64) as usize;
        buf.get(chunk.offset as usize..end).unwrap_or(&[])
    }

    /// Returns the number of buffers in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.in_use.len() - self.free.len()
    }
}

impl Memory for HeapMemory {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        let index = self.free.pop()?;
        self.in_use[index as usize] = true;
        Some(BufId(index))
    }

    fn free(&mut self, buf: BufId) {
        let in_use = self.in_use.get_mut(buf.0 as usize);
        assert!(in_use.is_some_and(core::mem::take), "{buf:?} was given up twice");
        self.free.push(buf.0);
    }

    fn buf_bytes(&self, _buf: BufId) -> u32 {
        self.buf_bytes
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        let start = buf.0 as usize * self.buf_bytes as usize + offset as usize;
        let len = from.len().min(self.buf_bytes.saturating_sub(offset) as usize);
        if let Some(to) = self.bytes.get_mut(start..start + len) {
            to.copy_from_slice(&from[..len]);
        }
        checksum::sum(from)
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        let from = self.bytes(chunk);
        let len = from.len().min(to.len());
        to[len..].fill(0);
        // Zeroes add nothing.
        checksum::copy(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_copied_in_comes_out_with_the_same_sum() {
        let mut memory = HeapMemory::new(2, 8);
        let buf = memory.alloc(PoolId(0)).unwrap();
        assert_eq!(memory.copy_in(buf, 2, &[1, 2, 3]), 0x0402);
        let chunk = Chunk { buf, offset: 2, len: 3 };
        let mut out = [9; 3];
        assert_eq!(memory.copy_out(chunk, &mut out), 0x0402);
        assert_eq!(out, [1, 2, 3]);
        memory.free(buf);
        assert_eq!(memory.in_use(), 0);
    }

    #[test]
    fn ranges_outside_a_buffer_are_zeroes() {
        let mut memory = HeapMemory::new(2, 8);
        let chunk = memory.chunk_of(&[7; 8]).unwrap();
        memory.copy_in(chunk.buf, 6, &[1, 2, 3, 4]);
        assert_eq!(memory.bytes(Chunk { offset: 6, len: 4, ..chunk }), [1, 2]);
        let mut out = [9; 4];
        memory.copy_out(Chunk { offset: 7, len: 4, ..chunk }, &mut out);
        assert_eq!(out, [2, 0, 0, 0]);
        let far = Chunk { buf: BufId(77), offset: u32::MAX, len: u32::MAX };
        memory.copy_out(far, &mut out);
        assert_eq!(out, [0; 4]);
        assert_eq!(memory.chunk_of(&[0; 9]), None);
    }
}
