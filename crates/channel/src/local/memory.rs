//! The memory that the stack works on: the channel's receive buffers, and what writes handed over.
//!
//! Read first: `megapipe_stack::Memory`; `buffer.rs` and `kernel/pool.rs` for who owns what.
//!
//! Received bytes are copied once, from the frame into a receive buffer, which a completion lends
//! to the program. What is written is not copied at all before it goes into a frame: the payload
//! itself waits here until the peer has acknowledged it.
//!
//! Invariants
//! - A receive buffer that the stack holds is out of the pool's free list and has no owner; the
//!   completion that carries it makes the owner.
//! - A payload lies in `payloads` from the write until the stack frees it.

use std::rc::Rc;

use megapipe_stack::{BufId, Chunk, Memory, PoolId};
use slab::Slab;

use crate::buffer::Payload;
use crate::kernel::pool::{Held, Pool};

/// Set in the number of a payload; a receive buffer's has it clear.
const PAYLOAD: u32 = 1 << 31;

pub(crate) struct ChannelMemory {
    receive_pool: Rc<Pool>,
    payloads: Slab<Payload>,
}

impl ChannelMemory {
    pub(crate) fn new(receive_pool: Rc<Pool>) -> Self {
        Self { receive_pool, payloads: Slab::new() }
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
    pub(super) const fn received(chunk: Chunk) -> Held {
        Held::at(chunk.buf.0 as u16)
    }

    fn payload(&self, buf: BufId) -> Option<&Payload> {
        self.payloads.get((buf.0 & !PAYLOAD) as usize)
    }
}

impl Memory for ChannelMemory {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        let held = self.receive_pool.take_held()?;
        Some(BufId(held.index().into()))
    }

    fn free(&mut self, buf: BufId) {
        if buf.0 & PAYLOAD != 0 {
            drop(self.payloads.try_remove((buf.0 & !PAYLOAD) as usize));
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
