//! `Memory`: interface to the payload buffers of applications.
//!
//! Read first: `channel/src/buffer.rs`. The stack never holds a reference into that
//! memory: another process may write it at any time. It copies, with the Internet checksum
//! (RFC 1071) of what it copied in the same pass.
//!
//! Invariants that an implementation keeps
//! - `copy_in` and `copy_out` answer the one's complement sum of the bytes copied, folded to 16
//!   bits, big-endian pairs from the first byte on, not complemented. An odd last byte counts as
//!   the high half of a pair.
//! - A range outside a buffer copies nothing past its end; the sum is of what the frame holds
//!   (zeroes where nothing could be copied), so that a lying application harms only itself.

use crate::chunk::Chunk;
use crate::id::{BufId, PoolId};

/// Buffers for payload.
pub trait Memory {
    /// A free buffer of `pool`. `None`: the pool is empty.
    fn alloc(&mut self, pool: PoolId) -> Option<BufId>;

    /// Releases one use of `buf`: a discarded received buffer, or a sent chunk's.
    fn free(&mut self, buf: BufId);

    /// Size of a buffer in bytes.
    fn buf_bytes(&self, buf: BufId) -> u32;

    /// Copies `from` into `buf` at `offset`; the sum of what was copied.
    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16;

    /// A free buffer of `pool` with `bytes` at its start, and their sum: what the stack asks for
    /// each segment. `None`: the pool is empty, or its buffers are too small.
    #[inline]
    fn store(&mut self, pool: PoolId, bytes: &[u8]) -> Option<(BufId, u16)> {
        let buf = self.alloc(pool)?;
        if bytes.len() > self.buf_bytes(buf) as usize {
            self.free(buf);
            return None;
        }
        Some((buf, self.copy_in(buf, 0, bytes)))
    }

    /// Copies bytes of `chunk` to `to`, which is as long as the chunk; the sum of `to`. The chunk
    /// is one to send, or one that was received and not reported.
    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16;
}
