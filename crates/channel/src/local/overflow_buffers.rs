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

use super::buffer_ids::{KIND, SENT_PAYLOAD, SPARE_RECEIVE, within};
use crate::buffer::ReadBuf;
use crate::kernel::pool::UnsharedBytes;
use crate::limits::RESERVE_BYTES_MAX;

/// Values by number, in memory that is asked for without ending the process.
struct NumberedValues<T> {
    values: Vec<Option<T>>,
    /// Numbers without a value; it has room for all.
    free: Vec<u32>,
}

impl<T> NumberedValues<T> {
    const fn new() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }

    const fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Makes room for one more value. `false`: there is no memory.
    #[inline]
    fn reserve_one(&mut self) -> bool {
        !self.free.is_empty() || self.grow()
    }

    #[cold]
    fn grow(&mut self) -> bool {
        if self.values.try_reserve(1).is_err() {
            return false;
        }
        let missing = self.values.capacity() - self.free.len();
        self.free.try_reserve(missing).is_ok()
    }

    /// Adds a value, for which there is room.
    #[inline]
    fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.values[number as usize] = Some(value);
            return number;
        }
        self.values.push(Some(value));
        (self.values.len() - 1) as u32
    }

    #[inline]
    fn get(&self, number: usize) -> Option<&T> {
        self.values.get(number)?.as_ref()
    }

    fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.values.get_mut(number)?.as_mut()
    }

    #[inline]
    fn remove(&mut self, number: usize) -> Option<T> {
        let value = self.values.get_mut(number)?.take()?;
        self.free.push(number as u32);
        Some(value)
    }
}

pub(super) struct Heap<P> {
    payloads: NumberedValues<P>,
    reserve: NumberedValues<UnsharedBytes>,
    /// Memory for the reserve, and room for it there.
    spare: Option<UnsharedBytes>,
}

impl<P: AsRef<[u8]>> Heap<P> {
    pub(super) const fn new() -> Self {
        Self { payloads: NumberedValues::new(), reserve: NumberedValues::new(), spare: None }
    }

    /// Keeps a payload until the stack frees it; all of its bytes as a chunk.
    ///
    /// # Errors
    /// There is no memory; returns the payload.
    pub(super) fn keep(&mut self, payload: P) -> Result<Chunk, P> {
        if !self.payloads.reserve_one() {
            return Err(payload);
        }
        let len = payload.as_ref().len() as u32;
        let index = self.payloads.insert(payload);
        debug_assert!(index & KIND == 0, "there are far fewer operations than that");
        Ok(Chunk { buf: BufId(index | SENT_PAYLOAD), offset: 0, len })
    }

    /// The stack did not take a payload: gives it back. `None`: the chunk is no payload's.
    pub(super) fn give_back(&mut self, chunk: Chunk) -> Option<P> {
        match chunk.buf.0 & KIND {
            SENT_PAYLOAD => self.payloads.remove(within(chunk.buf)),
            _ => None,
        }
    }

    /// Memory of `len` bytes that stands in for a receive buffer; `None`: that is enough of it, or
    /// there is none.
    #[cold]
    pub(super) fn alloc(&mut self, len: usize) -> Option<BufId> {
        if (self.reserve.len() + 1) * len > RESERVE_BYTES_MAX || !self.reserve.reserve_one() {
            return None;
        }
        let memory = UnsharedBytes::zeroed(len)?;
        Some(BufId(self.reserve.insert(memory) | SPARE_RECEIVE))
    }

    /// A received chunk of the reserve, as what a completion carries.
    #[cold]
    pub(super) fn received(&mut self, chunk: Chunk) -> ReadBuf {
        let memory = self.reserve.remove(within(chunk.buf));
        memory.map_or(ReadBuf::END, |it| ReadBuf::from_heap(it, chunk.len as usize))
    }

    /// Frees what is of the heap. `false`: it lies elsewhere.
    #[inline]
    pub(super) fn free(&mut self, buf: BufId) -> bool {
        match buf.0 & KIND {
            SPARE_RECEIVE => drop(self.reserve.remove(within(buf))),
            SENT_PAYLOAD => drop(self.payloads.remove(within(buf))),
            _ => return false,
        }
        true
    }

    /// Copies into the reserve, and sums what it copies.
    #[cold]
    pub(super) fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        let memory = self.reserve.get_mut(within(buf));
        let to =
            memory.and_then(|it| it.bytes_mut().get_mut(offset as usize..)).unwrap_or_default();
        checksum::copy(from, to)
    }

    /// Whether there is memory of `len` bytes for [`Heap::fill_spare`].
    #[cold]
    pub(super) fn has_spare(&mut self, len: usize) -> bool {
        if self.spare.is_none() && self.reserve.reserve_one() {
            self.spare = UnsharedBytes::zeroed(len);
        }
        self.spare.is_some()
    }

    /// The spare memory joins the reserve; `copy` fills its first `len` bytes. It was asked for,
    /// so the reserve's limit does not count.
    #[cold]
    pub(super) fn fill_spare(&mut self, len: usize, copy: impl FnOnce(&mut [u8])) -> BufId {
        let Some(mut memory) = self.spare.take() else {
            debug_assert!(false, "`has_spare` was asked");
            return BufId(KIND);
        };
        if let Some(to) = memory.bytes_mut().get_mut(..len) {
            copy(to);
        }
        BufId(self.reserve.insert(memory) | SPARE_RECEIVE)
    }

    /// The bytes of a payload, or of a buffer of the reserve; of anything else none.
    #[inline]
    pub(super) fn bytes(&self, buf: BufId) -> &[u8] {
        match buf.0 & KIND {
            SENT_PAYLOAD => self.payloads.get(within(buf)).map_or(&[][..], P::as_ref),
            SPARE_RECEIVE => self.reserve.get(within(buf)).map_or(&[][..], UnsharedBytes::bytes),
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
