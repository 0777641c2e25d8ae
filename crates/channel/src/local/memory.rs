//! The memory that the stack works on: the channel's receive buffers, and what writes handed over.
//!
//! Read first: `megapipe_stack::Memory`; `buffer.rs` and `kernel/pool.rs` for who owns what;
//! `buffer_ids.rs` for how the stack names it, `overflow_buffers.rs` for what lies elsewhere than
//! in buffers.
//!
//! Received bytes are copied once, from the frame into a receive buffer, which a completion lends
//! to the program. What is written is not copied at all before it goes into a frame. Where it lies
//! in one of the channel's buffers (an echo, or what [`crate::Channel::alloc`] gave), the stack's
//! number for it is the buffer's own, and stands for one of the buffer's owners; any other payload
//! waits in a table until the peer has acknowledged it.
//!
//! What has arrived and is not asked for lies in receive buffers too. When all are taken, heap
//! memory of the same size stands in for more, up to `limits::RESERVE_BYTES_MAX`: it is what the
//! kernel's socket buffers are to its drivers, and keeps unread handles from starving
//! the others.
//!
//! Invariants
//! - A receive buffer that the stack holds has its token in `held`, until the stack frees it or it
//!   is taken for a completion, which makes an owner of it.
//! - What is written is on the heap, or a surrendered owner of a buffer that `surrendered` counts,
//!   from the write until the stack frees it.

use std::sync::Arc;

use megapipe_stack::{BufId, Chunk, Memory, PoolId};

use super::buffer_ids::{self, HELD_RECEIVE, KIND, SENT_RECEIVE, SENT_WRITE, SPARE_RECEIVE};
use super::overflow_buffers::{Heap, copy_out};
use crate::buffer::{Payload, ReadBuf};
use crate::kernel::pool::{BufferMemory, HeldBuffer, HeldTable, Pool, SurrenderedTable};
use crate::state::State;

/// Where received bytes lie.
pub(crate) enum ReceivedMemory {
    /// In a receive buffer.
    Pool(HeldBuffer),
    /// In memory of their own.
    Heap(ReadBuf),
}

impl ReceivedMemory {
    /// Its first `len` bytes.
    #[inline]
    pub(super) fn into_bytes(self, state: &State, len: u32) -> Option<ReadBuf> {
        match self {
            Self::Pool(held) => state.adopt(held, len),
            Self::Heap(bytes) => Some(bytes),
        }
    }
}

/// The channel's buffers, and the stack's numbers for them.
pub(super) struct Pools {
    pub(super) receive: Arc<Pool>,
    pub(super) send: Arc<Pool>,
}

/// The owners that the stack's numbers for what it sends stand for.
pub(super) struct Surrendered {
    received: SurrenderedTable,
    filled: SurrenderedTable,
}

impl Surrendered {
    pub(super) fn new(pools: &Pools) -> Self {
        let received = pools.receive.surrendered_table();
        Self { received, filled: pools.send.surrendered_table() }
    }

    /// What is sent from a buffer of the channel: all bytes of it. None without an owner.
    #[inline]
    pub(super) fn bytes<'a>(
        &'a self,
        (receive, send): (&'a BufferMemory, &'a BufferMemory),
        buf: BufId,
    ) -> &'a [u8] {
        match buf.0 & KIND {
            SENT_RECEIVE => receive.surrendered(&self.received, buf.0 as u16),
            SENT_WRITE => send.surrendered(&self.filled, buf.0 as u16),
            _ => &[],
        }
    }
}

impl Pools {
    /// Bytes that lie in a buffer of the channel become a chunk of the stack's.
    ///
    /// # Errors
    /// They lie elsewhere.
    #[inline]
    pub(super) fn surrender(
        &self,
        owners: &mut Surrendered,
        bytes: ReadBuf,
    ) -> Result<Chunk, ReadBuf> {
        let chunk = |kind, (index, offset, len): (u16, u32, u32)| Chunk {
            buf: BufId(u32::from(index) | kind),
            offset,
            len,
        };
        match bytes.into_span().surrender(&self.receive, &mut owners.received) {
            Ok(place) => Ok(chunk(SENT_RECEIVE, place)),
            Err(span) => match span.surrender(&self.send, &mut owners.filled) {
                Ok(place) => Ok(chunk(SENT_WRITE, place)),
                Err(span) => Err(ReadBuf::new(span)),
            },
        }
    }

    /// A copy of what the program goes on using; `None`: there is no buffer for it.
    #[inline]
    pub(super) fn copy(&self, owners: &mut Surrendered, bytes: &[u8]) -> Option<Chunk> {
        let index = self.send.surrender_copy(&mut owners.filled, bytes)?;
        Some(Chunk {
            buf: BufId(u32::from(index) | SENT_WRITE),
            offset: 0,
            len: bytes.len() as u32,
        })
    }

    /// The stack did not take it: gives it back, if it lies in a buffer.
    pub(super) fn reclaim(&self, owners: &mut Surrendered, chunk: Chunk) -> Option<ReadBuf> {
        let (pool, table) = match chunk.buf.0 & KIND {
            SENT_RECEIVE => (&self.receive, &mut owners.received),
            SENT_WRITE => (&self.send, &mut owners.filled),
            _ => return None,
        };
        pool.reclaim(table, (chunk.buf.0 as u16, chunk.offset, chunk.len)).map(ReadBuf::new)
    }

    /// Without it taken for a completion, which is seldom.
    #[cold]
    fn free_held(&self, held: &mut HeldTable, number: u16) {
        if let Some(held) = held.take(number) {
            self.receive.put_back(held);
        }
    }

    /// The stack has let go of a buffer. The token of a held one is in `held`.
    #[inline(always)]
    pub(super) fn free(&self, held: &mut HeldTable, owners: &mut Surrendered, buf: BufId) {
        match buf.0 & KIND {
            HELD_RECEIVE => self.free_held(held, buf.0 as u16),
            SENT_RECEIVE => self.receive.give_up(&mut owners.received, buf.0 as u16),
            SENT_WRITE => self.send.give_up(&mut owners.filled, buf.0 as u16),
            _ => {}
        }
    }
}

pub(crate) struct ChannelMemory {
    pools: Pools,
    held: HeldTable,
    surrendered: Surrendered,
    heap: Heap<Payload>,
}

impl ChannelMemory {
    /// Memory over a channel's buffers.
    pub(super) fn of(state: &State) -> Self {
        Self::new(Arc::clone(&state.receive_pool), Arc::clone(&state.send_pool))
    }

    fn new(receive: Arc<Pool>, send: Arc<Pool>) -> Self {
        let held = receive.held_table();
        let pools = Pools { receive, send };
        let surrendered = Surrendered::new(&pools);
        Self { pools, held, surrendered, heap: Heap::new() }
    }

    /// Keeps a payload until the stack frees it; all of its bytes as a chunk.
    ///
    /// # Errors
    /// There is no memory; returns the payload.
    pub(super) fn keep(&mut self, payload: Payload) -> Result<Chunk, Payload> {
        match payload.into_read() {
            Ok(bytes) => self.keep_read(bytes),
            Err(payload) => self.heap.keep(payload),
        }
    }

    /// As `keep`, for bytes that nearly always lie in a buffer of the channel.
    #[inline]
    pub(super) fn keep_read(&mut self, bytes: ReadBuf) -> Result<Chunk, Payload> {
        match self.pools.surrender(&mut self.surrendered, bytes) {
            Ok(chunk) => Ok(chunk),
            Err(bytes) => self.heap.keep(bytes.into()),
        }
    }

    /// Keeps a copy of what the program goes on using; `None`: there is no buffer for it.
    #[inline]
    pub(super) fn keep_copy(&mut self, bytes: &[u8]) -> Option<Chunk> {
        self.pools.copy(&mut self.surrendered, bytes)
    }

    /// The stack did not take it: gives it back.
    #[cold]
    pub(super) fn give_back(&mut self, chunk: Chunk) -> Option<Payload> {
        let (heap, owners) = (self.heap.give_back(chunk), &mut self.surrendered);
        heap.or_else(|| self.pools.reclaim(owners, chunk).map(Payload::from))
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

    /// Whether [`ChannelMemory::take_in`] has room: a receive buffer, or memory that stands in for
    /// one. `false`: there is no memory.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        let receive = &self.pools.receive;
        receive.has_free() || self.heap.has_spare(receive.buffer_len())
    }

    /// Takes received bytes that lie elsewhere to a receive buffer, or to memory that stands in for
    /// one: `copy` fills it. At most a buffer's; none without room.
    #[inline]
    pub(super) fn take_in(&mut self, len: u32, copy: impl FnOnce(&mut [u8])) -> Chunk {
        let len = len.min(self.pools.receive.buffer_len() as u32);
        let buf = match self.pools.receive.take_held(&mut self.held) {
            Some(number) => {
                let buffers = self.pools.receive.buffers();
                buffers.fill_held_by((&mut self.held, number), len as usize, copy);
                BufId(u32::from(number) | HELD_RECEIVE)
            }
            None => self.heap.fill_spare(len as usize, copy),
        };
        Chunk { buf, offset: 0, len }
    }

    /// What is sent: all bytes of its buffer, or of the payload.
    #[inline]
    fn sent(&self, buf: BufId) -> &[u8] {
        match buf.0 & KIND {
            SENT_RECEIVE | SENT_WRITE => {
                let buffers = (self.pools.receive.buffers(), self.pools.send.buffers());
                self.surrendered.bytes(buffers, buf)
            }
            _ => self.heap.bytes(buf),
        }
    }
}

impl Memory for ChannelMemory {
    #[inline]
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        match self.pools.receive.take_held(&mut self.held) {
            Some(number) => Some(BufId(u32::from(number) | HELD_RECEIVE)),
            None => self.heap.alloc(self.pools.receive.buffer_len()),
        }
    }

    #[inline]
    fn free(&mut self, buf: BufId) {
        if !self.heap.free(buf) {
            self.pools.free(&mut self.held, &mut self.surrendered, buf);
        }
    }

    fn buf_bytes(&self, buf: BufId) -> u32 {
        match buf.0 & KIND {
            HELD_RECEIVE | SPARE_RECEIVE => self.pools.receive.buffer_len() as u32,
            _ => self.sent(buf).len() as u32,
        }
    }

    #[inline]
    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        if let Some(number) = buffer_ids::held(buf) {
            let buffers = self.pools.receive.buffers();
            return buffers.fill_held((&mut self.held, number), offset as usize, from);
        }
        self.heap.copy_in(buf, offset, from)
    }

    #[inline]
    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        if let Some(number) = buffer_ids::held(chunk.buf) {
            let buffers = self.pools.receive.buffers();
            return buffers.copy_held((&self.held, number), chunk.offset as usize, to);
        }
        copy_out(self.sent(chunk.buf), chunk.offset, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::pool::PoolOwner;

    /// The memory, and what a channel has of its pools.
    fn memory() -> (ChannelMemory, [PoolOwner; 2]) {
        let owners = [(); 2].map(|()| PoolOwner::new(64, 4).unwrap());
        let [receive, send] = [0, 1].map(|pool: usize| Arc::clone(&owners[pool]));
        (ChannelMemory::new(receive, send), owners)
    }

    fn out(memory: &ChannelMemory, chunk: Chunk) -> Vec<u8> {
        let mut bytes = vec![0xee; chunk.len as usize];
        memory.copy_out(chunk, &mut bytes);
        bytes
    }

    #[test]
    fn received_buffer_is_sent_without_copy() {
        let (mut memory, _owners) = memory();
        let buf = memory.alloc(PoolId::default()).unwrap();
        let sum = memory.copy_in(buf, 0, b"hello world");
        let all = Chunk { buf, offset: 0, len: 11 };
        let Some(ReceivedMemory::Pool(held)) = memory.received(all) else {
            panic!("it has a buffer")
        };
        assert!(memory.received(all).is_none(), "it was taken");
        let mut bytes = ReadBuf::new(memory.pools.receive.adopt(held, 11).unwrap());
        let front = memory.keep_read(bytes.split_to(6)).unwrap();
        let rest = memory.keep(bytes.into()).unwrap();
        assert_eq!((memory.heap.payload_count(), rest.offset), (0, 6));
        assert_eq!((out(&memory, front), out(&memory, rest)), (b"hello ".into(), b"world".into()));
        let again = Chunk { len: 11, ..front };
        assert_eq!(memory.copy_out(again, &mut [0; 11]), sum);
        memory.free(front.buf);
        assert_eq!(memory.pools.receive.free_count(), 3);
        memory.free(rest.buf);
        assert_eq!(memory.pools.receive.free_count(), 4);
    }

    #[test]
    fn refused_payload_is_returned_unchanged() {
        let (mut memory, _owners) = memory();
        let mut buffer = crate::buffer::WriteBuf::with_capacity(&memory.pools.send, 10);
        buffer.extend_from_slice(b"filled");
        for payload in [Payload::from(buffer), Payload::from(&b"static"[..])] {
            let bytes = payload.as_slice().to_vec();
            let chunk = memory.keep(payload).unwrap();
            assert_eq!(out(&memory, chunk), bytes);
            let back = memory.give_back(chunk).unwrap();
            assert_eq!(back.as_slice(), bytes);
            drop(back);
            assert!(memory.sent(chunk.buf).is_empty() && memory.give_back(chunk).is_none());
        }
        assert_eq!((memory.pools.send.free_count(), memory.heap.payload_count()), (4, 0));
    }

    #[test]
    fn heap_memory_stands_in_when_the_buffers_are_taken() {
        let (mut memory, _owners) = memory();
        let bufs: Vec<_> = (0..5).map_while(|_| memory.alloc(PoolId::default())).collect();
        memory.copy_in(bufs[4], 0, b"late");
        let chunk = |buf| Chunk { buf, offset: 0, len: 4 };
        let Some(ReceivedMemory::Heap(bytes)) = memory.received(chunk(bufs[4])) else {
            panic!("no buffer")
        };
        assert_eq!(&*bytes, b"late");
        let kept = memory.keep_read(bytes).unwrap();
        assert_eq!((memory.heap.payload_count(), out(&memory, kept)), (1, b"late".into()));
        for buf in [kept.buf, bufs[0], bufs[1], bufs[2], bufs[3]] {
            memory.free(buf);
        }
        assert_eq!((memory.pools.receive.free_count(), memory.heap.payload_count()), (4, 0));
        assert_eq!(memory.heap.reserve_count(), 0);
    }
}
