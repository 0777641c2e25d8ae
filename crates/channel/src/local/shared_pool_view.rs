//! The memory of a stack on a thread beside the channel's: the same buffers, by their numbers.
//!
//! Read first: `memory.rs` and `buffer_ids.rs` for what the numbers count, and `megapipe_service`'s
//! `shared_thread.rs` for which thread is inside the stack when. What only the channel's thread may
//! touch, which counts owners without atomics, stays there ([`Pools`]).
//!
//! Receive buffers are exchanged in batches: the channel stocks up free ones, and takes back what
//! the stack has let go of, each time that it looks for events. When the stock is out, heap memory
//! stands in, as it does inside `dispatch`.
//!
//! Invariants
//! - The token of a buffer in `stock`, or that the stack uses or has freed, is in `held`.
//! - The owners of buffers that the stack sends from, or has sent from and freed, are in
//!   `surrendered`.
//! - What `freed` names the stack does not use any more, and the channel has not taken back.

use std::ops::Range;
use std::sync::Arc;

use megapipe_stack::{BufId, Chunk, Memory, PoolId};

use super::buffer_ids::{self, HELD_RECEIVE, KIND, SENT_RECEIVE, SENT_WRITE, SPARE_RECEIVE};
use super::memory::{Pools, ReceivedMemory, Surrendered};
use super::overflow_buffers::{Heap, copy_out};
use crate::buffer::{Payload, ReadBuf};
use crate::kernel::pool::{BufferMemory, HeldBuffer, HeldTable};

/// A payload that may go from thread to thread.
pub(super) enum Kept {
    Vec(Vec<u8>),
    /// Not in a buffer of a pool.
    Heap(ReadBuf),
    Static(&'static [u8]),
    Shared(Arc<[u8]>, Range<usize>),
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
}

impl Kept {
    /// Bytes in a channel's buffers are copied.
    ///
    /// # Errors
    /// There is no memory for the copy; returns the payload.
    pub(super) fn new(payload: Payload) -> Result<Self, Payload> {
        match payload {
            Payload::Read(bytes) if !bytes.holds_pool_buffer() => Ok(Self::Heap(bytes)),
            Payload::Read(_) | Payload::Write(_) => match copied(payload.as_slice()) {
                Some(bytes) => Ok(Self::Vec(bytes)),
                None => Err(payload),
            },
            Payload::Vec(bytes) => Ok(Self::Vec(bytes)),
            Payload::Static(bytes) => Ok(Self::Static(bytes)),
            Payload::Shared(bytes, range) => Ok(Self::Shared(bytes, range)),
            Payload::Owner(owner, range) => Ok(Self::Owner(owner, range)),
        }
    }

    fn into_payload(self) -> Payload {
        match self {
            Self::Vec(bytes) => Payload::Vec(bytes),
            Self::Heap(bytes) => Payload::Read(bytes),
            Self::Static(bytes) => Payload::Static(bytes),
            Self::Shared(bytes, range) => Payload::Shared(bytes, range),
            Self::Owner(owner, range) => Payload::Owner(owner, range),
        }
    }
}

fn copied(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Vec(bytes) => bytes,
            Self::Heap(bytes) => bytes,
            Self::Static(bytes) => bytes,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Owner(owner, range) => (**owner).as_ref().get(range.clone()).unwrap_or_default(),
        }
    }
}

/// What the stack on the other thread works on.
pub(super) struct LentMemory {
    receive: BufferMemory,
    send: BufferMemory,
    held: HeldTable,
    surrendered: Surrendered,
    stock: Vec<u16>,
    freed: FreedBuffers,
    heap: Heap<Kept>,
}

/// Buffers that the stack has freed, and how often: one that it sends parts of is freed for each.
/// All memory is allocated at the start, because freeing cannot fail.
struct FreedBuffers {
    /// By [`FreedBuffers::place`].
    counts: Box<[u32]>,
    /// Those with a count, once each.
    listed: Vec<BufId>,
    buffer_count: usize,
}

impl FreedBuffers {
    fn new(pools: &Pools) -> Self {
        let count = pools.receive.buffer_count().max(pools.send.buffer_count());
        let places = 3 * usize::from(count);
        let counts = vec![0; places].into();
        Self { counts, listed: Vec::with_capacity(places), buffer_count: count.into() }
    }

    #[inline]
    const fn place(&self, buf: BufId) -> usize {
        let kind = match buf.0 & KIND {
            HELD_RECEIVE => 0,
            SENT_RECEIVE => 1,
            _ => 2,
        };
        kind * self.buffer_count + buffer_ids::within(buf)
    }

    #[inline]
    fn add(&mut self, buf: BufId) {
        let place = self.place(buf);
        let Some(count) = self.counts.get_mut(place) else { return };
        *count += 1;
        if *count == 1 {
            self.listed.push(buf);
        }
    }

    /// A buffer, and how often it was freed.
    #[inline]
    fn take(&mut self) -> Option<(BufId, u32)> {
        let buf = self.listed.pop()?;
        let place = self.place(buf);
        Some((buf, std::mem::take(&mut self.counts[place])))
    }
}

impl LentMemory {
    pub(super) fn new(pools: &Pools) -> Self {
        let mut memory = Self {
            receive: pools.receive.buffers().clone(),
            send: pools.send.buffers().clone(),
            held: pools.receive.held_table(),
            surrendered: Surrendered::new(pools),
            stock: Vec::with_capacity(pools.receive.buffer_count().into()),
            freed: FreedBuffers::new(pools),
            heap: Heap::new(),
        };
        memory.exchange(pools);
        memory
    }

    /// Takes back what the stack has let go of, and stocks up. On the channel's thread.
    #[inline]
    pub(super) fn exchange(&mut self, pools: &Pools) {
        while let Some((buf, count)) = self.freed.take() {
            for _ in 0..count {
                pools.free(&mut self.held, &mut self.surrendered, buf);
            }
        }
        // The kernel's driver, for files and pipes, has the rest.
        let most = usize::from(pools.receive.buffer_count()) / 4 * 3;
        while self.stock.len() < most
            && let Some(number) = pools.receive.take_held(&mut self.held)
        {
            self.stock.push(number);
        }
    }

    /// The owners of buffers that the stack sends from, for the channel's thread.
    #[inline]
    pub(super) const fn surrendered(&mut self) -> &mut Surrendered {
        &mut self.surrendered
    }

    /// Keeps a payload until the stack frees it; all of its bytes as a chunk.
    ///
    /// # Errors
    /// There is no memory; returns the payload.
    pub(super) fn keep(&mut self, payload: Payload) -> Result<Chunk, Payload> {
        self.heap.keep(Kept::new(payload)?).map_err(Kept::into_payload)
    }

    /// The stack did not take a payload: gives it back.
    pub(super) fn give_back(&mut self, chunk: Chunk) -> Option<Payload> {
        self.heap.give_back(chunk).map(Kept::into_payload)
    }

    /// A received chunk, as what a completion carries; `None`: it was taken already.
    #[inline]
    pub(super) fn received(&mut self, chunk: Chunk) -> Option<ReceivedMemory> {
        match buffer_ids::held(chunk.buf) {
            Some(number) => self.take_held(number).map(ReceivedMemory::Pool),
            None => Some(ReceivedMemory::Heap(self.heap.received(chunk))),
        }
    }

    /// The held buffer of this number; `None`: it was taken already.
    #[inline]
    pub(super) fn take_held(&mut self, number: u16) -> Option<HeldBuffer> {
        self.held.take(number)
    }

    #[inline]
    fn sent(&self, buf: BufId) -> &[u8] {
        match buf.0 & KIND {
            SENT_RECEIVE | SENT_WRITE => self.surrendered.bytes((&self.receive, &self.send), buf),
            _ => self.heap.bytes(buf),
        }
    }
}

impl Memory for LentMemory {
    #[inline]
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        match self.stock.pop() {
            Some(number) => Some(BufId(u32::from(number) | HELD_RECEIVE)),
            None => self.heap.alloc(self.receive.buffer_len()),
        }
    }

    #[inline]
    fn free(&mut self, buf: BufId) {
        if !self.heap.free(buf) {
            self.freed.add(buf);
        }
    }

    fn buf_bytes(&self, buf: BufId) -> u32 {
        match buf.0 & KIND {
            HELD_RECEIVE | SPARE_RECEIVE => self.receive.buffer_len() as u32,
            _ => self.sent(buf).len() as u32,
        }
    }

    #[inline]
    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        if let Some(number) = buffer_ids::held(buf) {
            return self.receive.fill_held((&mut self.held, number), offset as usize, from);
        }
        self.heap.copy_in(buf, offset, from)
    }

    #[inline]
    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        if let Some(number) = buffer_ids::held(chunk.buf) {
            let buffers = &self.receive;
            return buffers.copy_held((&self.held, number), chunk.offset as usize, to);
        }
        copy_out(self.sent(chunk.buf), chunk.offset, to)
    }
}

#[cfg(test)]
mod tests;
