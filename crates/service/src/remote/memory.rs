//! The memory that a remote server works on: buffers in the session's region.
//!
//! Read first: `megapipe_shm::Pool`. Receive buffers are the server's to give out; send buffers are
//! the application's, and the server only reads them and returns them afterwards. Copies are the
//! server's own: of datagrams, and of sends for which the application had no buffer.
//!
//! Invariants
//! - What a record of the application named is checked against its pool's layout before it gets
//!   here ([`SharedMemory::holds`]); no record names a copy.
//! - A copy lives until the stack frees it.

use megapipe_shm::limits::POOL_BUFS_MAX;
use megapipe_shm::record::Bufs;
use megapipe_shm::{BufferArea, Pool};
use megapipe_stack::wire::checksum;
use megapipe_stack::{BufId, Chunk, Memory, PoolId};

use super::{COPIES, LARGE, RECEIVES, SMALL};

/// SessionBuffers in a region that an application shares.
pub struct SharedMemory {
    receives: Pool,
    small: BufferArea,
    large: BufferArea,
    /// Send buffers that go back to the application; at most as many as there are.
    returned: Vec<u32>,
    /// More came back than there are: the application has sent some twice.
    is_overdrawn: bool,
    /// Copies by their index.
    copies: Vec<Option<Box<[u8]>>>,
    /// Indices without a copy.
    free_copies: Vec<u32>,
}

impl SharedMemory {
    pub(super) fn new(receives: Pool, small: BufferArea, large: BufferArea) -> Self {
        let count = small.layout().count + large.layout().count;
        let returned = Vec::with_capacity(count as usize);
        let (copies, free_copies) = (Vec::new(), Vec::new());
        let is_overdrawn = false;
        Self { receives, small, large, returned, is_overdrawn, copies, free_copies }
    }

    /// Keeps bytes until the stack frees them.
    pub fn keep(&mut self, bytes: Box<[u8]>) -> Chunk {
        let index = self.free_copies.pop().unwrap_or_else(|| {
            self.copies.push(None);
            (self.copies.len() - 1) as u32
        });
        let len = bytes.len() as u32;
        self.copies[index as usize] = Some(bytes);
        Chunk { buf: BufId(u32::from(COPIES) * POOL_BUFS_MAX + index), offset: 0, len }
    }

    fn copy_of(&self, buf: BufId) -> Option<&[u8]> {
        let id = megapipe_shm::BufId::from_bits(buf.0);
        let copy = self.copies.get(id.index() as usize).filter(|_| id.tag() == COPIES);
        copy?.as_deref()
    }

    /// A chunk lies in a send buffer.
    pub(super) fn holds(&self, chunk: Chunk) -> bool {
        self.sent(chunk.buf).is_some_and(|(area, _)| {
            let end = u64::from(chunk.offset) + u64::from(chunk.len);
            chunk.len > 0 && end <= area.layout().buf_bytes as u64
        })
    }

    /// A datagram lies in a send buffer; it may have no bytes.
    pub(super) fn holds_datagram(&self, chunk: Chunk) -> bool {
        let area = self.sent(chunk.buf).map(|(area, _)| area);
        area.is_some_and(|area| chunk.len as usize <= area.layout().buf_bytes)
    }

    /// A receive buffer comes back. One that the application did not have is refused and counted by
    /// the pool, as is any other id.
    #[inline]
    pub(super) fn take_back(&self, buf: megapipe_shm::BufId) {
        let _ = self.receives.free(buf);
    }

    /// How many send buffers there are: an honest application never sends more chunks at once.
    pub(super) const fn send_count(&self) -> usize {
        (self.small.layout().count + self.large.layout().count) as usize
    }

    /// The application has sent a buffer that it did not have.
    pub(super) const fn is_overdrawn(&self) -> bool {
        self.is_overdrawn
    }

    /// Send buffers that the application may have again, as many as a record names; `None`: there
    /// are none.
    pub(super) fn take_returned(&mut self) -> Option<Bufs> {
        let mut bufs = Bufs::default();
        while !bufs.is_full()
            && let Some(buf) = self.returned.pop()
        {
            bufs.push(megapipe_shm::BufId::from_bits(buf));
        }
        (!bufs.is_empty()).then_some(bufs)
    }

    /// The area that a send buffer is in, and its index there.
    #[inline]
    fn sent(&self, buf: BufId) -> Option<(&BufferArea, u32)> {
        let buf = megapipe_shm::BufId::from_bits(buf.0);
        let area = match buf.tag() {
            SMALL => &self.small,
            LARGE => &self.large,
            _ => return None,
        };
        (buf.index() < area.layout().count).then_some((area, buf.index()))
    }
}

impl Memory for SharedMemory {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        self.receives.alloc().map(|buf| BufId(buf.bits()))
    }

    fn free(&mut self, buf: BufId) {
        let id = megapipe_shm::BufId::from_bits(buf.0);
        match id.tag() {
            // A buffer that the application returned twice is refused and counted by the pool.
            RECEIVES => {
                let _ = self.receives.free(id);
            }
            COPIES => {
                let copy = self.copies.get_mut(id.index() as usize);
                let is_freed = copy.is_some_and(|copy| copy.take().is_some());
                debug_assert!(is_freed, "the stack frees a copy once");
                if is_freed {
                    self.free_copies.push(id.index());
                }
            }
            _ => {
                self.is_overdrawn |= self.returned.len() >= self.send_count();
                if !self.is_overdrawn {
                    self.returned.push(buf.0);
                }
            }
        }
    }

    fn buf_bytes(&self, buf: BufId) -> u32 {
        if let Some(copy) = self.copy_of(buf) {
            return copy.len() as u32;
        }
        let send = self.sent(buf).map(|(area, _)| area.layout().buf_bytes);
        send.unwrap_or_else(|| self.receives.buf_bytes()) as u32
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        let id = megapipe_shm::BufId::from_bits(buf.0);
        // A buffer that is not ours any more takes nothing; the sum is of what arrived.
        let _ = self.receives.copy_in(id, offset, from);
        checksum::sum(from)
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        let len = to.len().min(chunk.len as usize);
        let (bytes, rest) = to.split_at_mut(len);
        let offset = chunk.offset as usize;
        let id = megapipe_shm::BufId::from_bits(chunk.buf.0);
        let read = match self.sent(chunk.buf) {
            _ if id.tag() == RECEIVES => self.receives.copy_out(id, chunk.offset, bytes).is_ok(),
            Some((area, index)) => area.read(index, offset, bytes).is_ok(),
            None => {
                let copy = self.copy_of(chunk.buf).and_then(|copy| copy.get(offset..offset + len));
                copy.is_some_and(|copy| {
                    bytes.copy_from_slice(copy);
                    true
                })
            }
        };
        // An application that returns a buffer before its bytes were published harms itself.
        let is_received = id.tag() == RECEIVES;
        debug_assert!(read || is_received, "what an op named was checked, and copies are kept");
        rest.fill(0);
        checksum::sum(to)
    }
}
