//! Buffers of one size, as simple as possible: their cost is not what the programs count.

use megapipe_stack::wire::checksum;
use megapipe_stack::{BufId, Chunk, Memory, PoolId};

/// Buffers of `BYTES` bytes.
pub(crate) struct Buffers<const BYTES: usize = 2048> {
    bytes: Vec<u8>,
    free: Vec<u32>,
}

impl<const BYTES: usize> Buffers<BYTES> {
    pub(crate) fn new(count: u32) -> Self {
        Self { bytes: vec![0; count as usize * BYTES], free: (0..count).collect() }
    }

    pub(crate) fn chunk_of(&mut self, bytes: &[u8]) -> Option<Chunk> {
        let buf = self.alloc(PoolId(0))?;
        self.copy_in(buf, 0, bytes);
        Some(Chunk { buf, offset: 0, len: bytes.len() as u32 })
    }
}

impl<const BYTES: usize> Memory for Buffers<BYTES> {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        self.free.pop().map(BufId)
    }

    fn free(&mut self, buf: BufId) {
        self.free.push(buf.0);
    }

    fn buf_bytes(&self, _buf: BufId) -> u32 {
        BYTES as u32
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        let at = buf.0 as usize * BYTES + offset as usize;
        self.bytes[at..at + from.len()].copy_from_slice(from);
        checksum::sum(from)
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        let at = chunk.buf.0 as usize * BYTES + chunk.offset as usize;
        to.copy_from_slice(&self.bytes[at..at + to.len()]);
        checksum::sum(to)
    }
}
