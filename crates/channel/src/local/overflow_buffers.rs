//! What of the stack's memory lies on the heap: payloads that are sent from where the program left
//! them, and the reserve, which stands in for receive buffers when all are taken.
//!
//! Read first: `memory.rs` for why there is a reserve.
//!
//! Invariants
//! - A payload is here from its write until the stack frees it, or gives it back.
//! - A buffer of the reserve is the stack's until it is freed or taken for a completion.

use megapipe_stack::wire::checksum;
use megapipe_stack::{BufId, Chunk};
use slab::Slab;

use super::buffer_ids::{KIND, SENT_PAYLOAD, SPARE_RECEIVE, within};
use crate::buffer::ReadBuf;
use crate::limits::RESERVE_BYTES_MAX;

pub(super) struct Heap<P> {
    payloads: Slab<P>,
    reserve: Slab<Vec<u8>>,
}

impl<P: AsRef<[u8]>> Heap<P> {
    pub(super) const fn new() -> Self {
        Self { payloads: Slab::new(), reserve: Slab::new() }
    }

    /// Keeps a payload until the stack frees it; all of its bytes as a chunk.
    pub(super) fn keep(&mut self, payload: P) -> Chunk {
        let len = payload.as_ref().len() as u32;
        let index = self.payloads.insert(payload) as u32;
        debug_assert!(index & KIND == 0, "there are far fewer operations than that");
        Chunk { buf: BufId(index | SENT_PAYLOAD), offset: 0, len }
    }

    /// The stack did not take a payload: gives it back. `None`: the chunk is no payload's.
    pub(super) fn give_back(&mut self, chunk: Chunk) -> Option<P> {
        match chunk.buf.0 & KIND {
            SENT_PAYLOAD => self.payloads.try_remove(within(chunk.buf)),
            _ => None,
        }
    }

    /// Memory of `len` bytes that stands in for a receive buffer; `None`: that is enough of it.
    #[cold]
    pub(super) fn alloc(&mut self, len: usize) -> Option<BufId> {
        if (self.reserve.len() + 1) * len > RESERVE_BYTES_MAX {
            return None;
        }
        Some(self.hold(vec![0; len]))
    }

    /// Received bytes that lie elsewhere than in a receive buffer.
    #[cold]
    pub(super) fn hold(&mut self, bytes: Vec<u8>) -> BufId {
        BufId(self.reserve.insert(bytes) as u32 | SPARE_RECEIVE)
    }

    /// A received chunk of the reserve, as what a completion carries.
    #[cold]
    pub(super) fn received(&mut self, chunk: Chunk) -> ReadBuf {
        let mut bytes = self.reserve.try_remove(within(chunk.buf)).unwrap_or_default();
        bytes.truncate(chunk.len as usize);
        ReadBuf::from_vec(bytes)
    }

    /// Frees what is of the heap. `false`: it lies elsewhere.
    #[inline]
    pub(super) fn free(&mut self, buf: BufId) -> bool {
        match buf.0 & KIND {
            SPARE_RECEIVE => drop(self.reserve.try_remove(within(buf))),
            SENT_PAYLOAD => drop(self.payloads.try_remove(within(buf))),
            _ => return false,
        }
        true
    }

    /// Copies into the reserve, and sums what it copies.
    #[cold]
    pub(super) fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        let bytes = self.reserve.get_mut(within(buf));
        let to = bytes.and_then(|bytes| bytes.get_mut(offset as usize..)).unwrap_or_default();
        checksum::copy(from, to)
    }

    /// The bytes of a payload, or of a buffer of the reserve; of anything else none.
    #[inline]
    pub(super) fn bytes(&self, buf: BufId) -> &[u8] {
        match buf.0 & KIND {
            SENT_PAYLOAD => self.payloads.get(within(buf)).map_or(&[][..], P::as_ref),
            SPARE_RECEIVE => self.reserve.get(within(buf)).map_or(&[][..], Vec::as_slice),
            _ => &[],
        }
    }

    #[cfg(test)]
    pub(super) fn payload_count(&self) -> usize {
        self.payloads.len()
    }

    #[cfg(test)]
    pub(super) fn reserve_count(&self) -> usize {
        self.reserve.len()
    }
}

/// Copies a part of what is sent, and sums what it copies. What is not there any more is zeros.
#[inline]
pub(super) fn copy_out(sent: &[u8], offset: u32, to: &mut [u8]) -> u16 {
    let from = sent.get(offset as usize..).unwrap_or_default();
    if from.len() < to.len() {
        to[from.len()..].fill(0);
    }
    // Zeros add nothing.
    checksum::copy(from, to)
}
