//! A range of bytes in a buffer of an application's memory.

use crate::id::BufId;

/// `len` bytes from `offset` on, in `buf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The buffer.
    pub buf: BufId,
    /// Where the bytes begin, in bytes from the buffer's start.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}
