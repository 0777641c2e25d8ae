//! The memory that the stack works on: the channel's receive buffers, and what writes handed over.
//!
//! Read first: `megapipe_stack::Memory`; `buffer.rs` and `kernel/pool.rs` for who owns what.
//!
//! Received bytes are copied once, from the frame into a receive buffer, which a completion lends
//! to the program. What is written is not copied at all before it goes into a frame: the payload
//! itself waits here until the peer has acknowledged it.
//!
//! What has arrived and is not asked for lies in receive buffers too. When all are taken, heap
//! memory of the same size stands in for more, up to [`RESERVE_BYTES_MAX`]: it is what the kernel's
//! socket buffers are to its drivers, and keeps handles that nobody reads from starving the others.
//!
//! Invariants
//! - A receive buffer that the stack holds is out of the pool's free list and has no owner; the
//!   completion that carries it makes the owner.
//! - A payload lies in `payloads` from the write until the stack frees it.
//! - A buffer of the reserve is the stack's until it is freed or taken for a completion.

use std::rc::Rc;

use megapipe_stack::{BufId, Chunk, Memory, PoolId};
use slab::Slab;

use crate::buffer::{Payload, ReadBuf};
use crate::kernel::pool::{Held, Pool};
use crate::limits::RESERVE_BYTES_MAX;

/// Set in the number of a payload; a receive buffer's has it clear.
const PAYLOAD: u32 = 1 << 31;
/// Set in the number of a buffer of the reserve.
const RESERVE: u32 = 1 << 30;

/// Where received bytes lie.
pub(super) enum Received {
    /// In a receive buffer.
    Pool(Held),
    /// In memory of their own.
    Heap(ReadBuf),
}

pub(crate) struct ChannelMemory {
    receive_pool: Rc<Pool>,
    payloads: Slab<Payload>,
    reserve: Slab<Vec<u8>>,
}

impl ChannelMemory {
    pub(crate) fn new(receive_pool: Rc<Pool>) -> Self {
        Self { receive_pool, payloads: Slab::new(), reserve: Slab::new() }
    }

    /// Keeps a payload until the stack frees it; all of its bytes as a chunk.
    pub(super) fn keep(&mut self, payload: Payload) -> Chunk {
        let len = payload.len() as u32;
        let index = self.payloads.insert(payload) as u32;
        Chunk { buf: BufId(index | PAYLOAD), offset: 0, len }
    }

    /// The stack did not take it: gives it back.
    pub(super) fn give_back(&mut self, chunk: Chunk) -> Option<Payload> {
        self.payloads.try_remove((chunk.buf.0 & !PAYLOAD) as usize)
    }

    /// A received chunk, as what a completion carries.
    #[inline]
    pub(super) fn received(&mut self, chunk: Chunk) -> Received {
        if chunk.buf.0 & RESERVE == 0 {
            return Received::Pool(Held::at(chunk.buf.0 as u16));
        }
        let mut bytes = self.reserve.try_remove(reserved(chunk.buf)).unwrap_or_default();
        bytes.truncate(chunk.len as usize);
        Received::Heap(ReadBuf::from_vec(bytes))
    }

    #[cold]
    fn alloc_reserve(&mut self) -> Option<BufId> {
        let len = self.receive_pool.buffer_len();
        if (self.reserve.len() + 1) * len > RESERVE_BYTES_MAX {
            return None;
        }
        Some(BufId(self.reserve.insert(vec![0; len]) as u32 | RESERVE))
    }

    fn payload(&self, buf: BufId) -> Option<&Payload> {
        self.payloads.get((buf.0 & !PAYLOAD) as usize)
    }
}

impl Memory for ChannelMemory {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        match self.receive_pool.take_held() {
            Some(held) => Some(BufId(held.index().into())),
            None => self.alloc_reserve(),
        }
    }

    fn free(&mut self, buf: BufId) {
        if buf.0 & PAYLOAD != 0 {
            drop(self.payloads.try_remove((buf.0 & !PAYLOAD) as usize));
        } else if buf.0 & RESERVE != 0 {
            drop(self.reserve.try_remove(reserved(buf)));
        } else {
            // The last owner's drop puts it on the free list.
            drop(self.receive_pool.adopt(Held::at(buf.0 as u16), 0));
        }
    }

    fn buf_bytes(&self, buf: BufId) -> u32 {
        if buf.0 & PAYLOAD != 0 {
            return self.payload(buf).map_or(0, |payload| payload.len() as u32);
        }
        self.receive_pool.buffer_len() as u32
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        if buf.0 & RESERVE != 0 {
            let bytes = self.reserve.get_mut(reserved(buf));
            let to = bytes.and_then(|bytes| bytes.get_mut(offset as usize..)).unwrap_or_default();
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
            return megapipe_shm::checksum::sum(from);
        }
        self.receive_pool.fill_held(Held::at(buf.0 as u16), offset as usize, from);
        megapipe_shm::checksum::sum(from)
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        let bytes = self.payload(chunk.buf).map_or(&[][..], Payload::as_slice);
        let from = bytes.get(chunk.offset as usize..).unwrap_or_default();
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
        to[len..].fill(0);
        megapipe_shm::checksum::sum(to)
    }
}

const fn reserved(buf: BufId) -> usize {
    (buf.0 & !RESERVE) as usize
}
