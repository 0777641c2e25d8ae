//! The memory of one session: the buffers of its region, and copies in the server's own memory.
//!
//! Read first: `memory.rs`; `megapipe_shm::Pool`.
//!
//! Receive buffers are the server's to give out. Send buffers are the application's: the server
//! reads them and returns them afterwards. Copies are of sends for which the application had no
//! buffer.
//!
//! Invariants
//! - What a record of the application named is checked against its area before the stack gets it
//!   ([`SessionMemory::sent_chunk`]); no record names a copy.
//! - A copy lives until the stack frees it.
//! - `in_stack` counts the chunks that the stack has of send buffers and copies.

use megapipe_shm::record::{self, Bufs};
use megapipe_shm::{BufferArea, Pool};
use megapipe_stack::{Chunk, PoolId};

use super::buffer_names::{other_buffer, other_in_record};
use super::{COPIES, LARGE, SMALL};
use crate::limits::{COPIES_MAX, COPY_BYTES_MAX};

/// The buffers of a session in its region, and copies.
pub(crate) struct SessionMemory {
    pub(super) receives: Pool,
    /// The bytes of the same buffers.
    receive_area: BufferArea,
    pub(super) small: BufferArea,
    pub(super) large: BufferArea,
    /// Send buffers that go back to the application, as records name them.
    returned: Vec<megapipe_shm::BufId>,
    /// Chunks of send buffers, and copies, that the stack has.
    in_stack: u32,
    /// Copies by their index.
    copies: Vec<Option<Box<[u8]>>>,
    /// Indices without a copy.
    free_copies: Vec<u32>,
    copy_bytes: usize,
}

impl SessionMemory {
    pub(super) fn new(receive_area: BufferArea, small: BufferArea, large: BufferArea) -> Self {
        let receives = Pool::new(receive_area.clone());
        let count = small.layout().count + large.layout().count;
        let returned = Vec::with_capacity(count as usize);
        let (copies, free_copies) = (Vec::new(), Vec::new());
        let (in_stack, copy_bytes) = (0, 0);
        Self {
            receives,
            receive_area,
            small,
            large,
            returned,
            in_stack,
            copies,
            free_copies,
            copy_bytes,
        }
    }

    /// Copies received bytes into a free buffer. Returns its index; `None`: there is none, or the
    /// bytes do not fit.
    #[inline]
    pub(super) fn store(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.receives.buf_bytes() {
            return None;
        }
        let index = self.receives.alloc()?.index();
        // The buffer was allocated just now, and the bytes fit.
        let _ = self.receive_area.write(index, 0, bytes);
        Some(index)
    }

    /// Keeps bytes until the stack frees them. `None`: the session has as many copies as it may.
    pub(super) fn keep(&mut self, session: PoolId, bytes: Box<[u8]>) -> Option<Chunk> {
        if self.copy_bytes + bytes.len() > COPY_BYTES_MAX {
            return None;
        }
        let index = match self.free_copies.pop() {
            Some(index) => index,
            None if self.copies.len() >= COPIES_MAX as usize => return None,
            None => {
                self.copies.push(None);
                (self.copies.len() - 1) as u32
            }
        };
        let len = bytes.len() as u32;
        self.copy_bytes += bytes.len();
        self.in_stack += 1;
        self.copies[index as usize] = Some(bytes);
        Some(Chunk { buf: other_buffer(session, COPIES, index), offset: 0, len })
    }

    pub(super) fn copy_of(&self, index: u32) -> Option<&[u8]> {
        self.copies.get(index as usize)?.as_deref()
    }

    /// The chunk that a record names, on its way to the stack. `None`: it is not within a send
    /// buffer.
    #[inline]
    pub(super) fn sent_chunk(&mut self, session: PoolId, chunk: record::Chunk) -> Option<Chunk> {
        let end = u64::from(chunk.offset) + u64::from(chunk.len);
        self.sent(session, chunk, end).filter(|chunk| chunk.len > 0)
    }

    /// The same of a datagram, which may have no bytes.
    pub(super) fn sent_datagram(
        &mut self,
        session: PoolId,
        buf: megapipe_shm::BufId,
        len: u16,
    ) -> Option<Chunk> {
        let chunk = record::Chunk { buf, offset: 0, len: len.into() };
        self.sent(session, chunk, len.into())
    }

    #[inline]
    fn sent(&mut self, session: PoolId, chunk: record::Chunk, end: u64) -> Option<Chunk> {
        let (tag, index) = (chunk.buf.tag(), chunk.buf.index());
        let area = self.area(tag)?.layout();
        if index >= area.count || end > area.buf_bytes as u64 {
            return None;
        }
        self.in_stack += 1;
        let buf = other_buffer(session, tag, index);
        Some(Chunk { buf, offset: chunk.offset, len: chunk.len })
    }

    /// The area of send buffers with a tag.
    #[inline]
    pub(super) const fn area(&self, tag: u16) -> Option<&BufferArea> {
        match tag {
            SMALL => Some(&self.small),
            LARGE => Some(&self.large),
            _ => None,
        }
    }

    /// The stack frees a send buffer or a copy. Returns whether it is the first of those that go
    /// back.
    #[inline]
    pub(super) fn free_other(&mut self, tag: u16, index: u32) -> bool {
        self.in_stack = self.in_stack.saturating_sub(1);
        if tag != COPIES {
            self.returned.push(other_in_record(tag, index));
            return self.returned.len() == 1;
        }
        self.free_copy(index);
        false
    }

    fn free_copy(&mut self, index: u32) {
        let copy = self.copies.get_mut(index as usize).and_then(Option::take);
        debug_assert!(copy.is_some(), "the stack frees a copy once");
        if let Some(copy) = copy {
            self.copy_bytes -= copy.len();
            self.free_copies.push(index);
        }
    }

    /// A receive buffer comes back. One that the application did not have is refused and counted by
    /// the pool, as is any other id.
    #[inline]
    pub(super) fn take_back(&self, buf: megapipe_shm::BufId) {
        let _ = self.receives.free(buf);
    }

    /// Chunks of send buffers, and copies, that the stack has.
    pub(super) const fn in_stack(&self) -> u32 {
        self.in_stack
    }

    /// The application has sent a buffer that it did not have: more are under way than there are.
    #[inline]
    pub(super) fn is_overdrawn(&self) -> bool {
        let count = self.small.layout().count + self.large.layout().count;
        let copies = self.copies.len() - self.free_copies.len();
        (self.in_stack as usize).saturating_sub(copies) + self.returned.len() > count as usize
    }

    /// Send buffers that the application may have again, as many as a record names; `None`: there
    /// are none.
    #[inline]
    pub(super) fn take_returned(&mut self) -> Option<Bufs> {
        let mut bufs = Bufs::default();
        while !bufs.is_full()
            && let Some(buf) = self.returned.pop()
        {
            bufs.push(buf);
        }
        (!bufs.is_empty()).then_some(bufs)
    }

    /// Whether send buffers are to go back.
    pub(super) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }
}
