//! One direction of a connection: which slots are whose, and frames in and out of them.
//!
//! Read first: the table of heads and tails in [`super::ring`].
//!
//! The client owns the memory. It alone knows where its buffers are, and never reads a place back
//! from a descriptor. The server takes each place from the descriptor, as the client wrote it, and
//! checks it each time.
//!
//! Invariants
//! - A frame is copied out before anybody looks at it, and copied in after it is complete.
//! - A slot is the peer's again only after `give_back` or `publish`, once per burst.
//! - An index of the peer that cannot be ends the connection ([`Nonsense`]); a descriptor of a
//!   received frame that cannot be costs that frame.

use std::sync::Arc;

use super::region::MemifRegion;
use super::ring::{DescriptorFields, Index, MemifRing};

/// How many slots ahead of the frame in hand bytes are asked for.
const LOOK_AHEAD_SLOTS: u16 = 3;
/// Lines of a buffer that are asked for ahead to be written: a header and a short payload.
const LOOK_AHEAD_FILLED_LINES: usize = 2;
/// Bytes of a frame that are asked for ahead; a longer one is found by the processor itself.
const LOOK_AHEAD_BYTES_MAX: usize = 256;

/// The peer broke the protocol in a way that leaves nothing to go on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Nonsense(pub(super) &'static str);

const OUTSIDE: Nonsense = Nonsense("a buffer outside of its region");

/// Where the buffers are.
#[derive(Debug, Clone)]
pub(super) enum LaneBuffers {
    /// We are the client: slot by slot, one behind another.
    Ours {
        /// The memory.
        region: Arc<MemifRegion>,
        /// The first slot's buffer.
        first_offset: u32,
        /// Bytes in each.
        buffer_bytes: u32,
    },
    /// We are the server: where the descriptors say.
    Theirs {
        /// The regions that the client added.
        regions: Arc<[Arc<MemifRegion>]>,
    },
}

/// A buffer: where, and how many bytes it holds at most.
struct BufferPlace<'a> {
    region: &'a MemifRegion,
    offset: usize,
    capacity: usize,
}

impl LaneBuffers {
    /// The buffer of a filled slot; `None`: the descriptor names a region that does not exist.
    #[inline(always)]
    fn place(
        &self,
        ring: &MemifRing,
        index: u16,
        slot: &DescriptorFields,
    ) -> Option<BufferPlace<'_>> {
        Some(match self {
            Self::Ours { region, .. } => {
                let ours = self.empty(ring, index);
                let (offset, capacity) = (ours.offset as usize, ours.len as usize);
                BufferPlace { region, offset, capacity }
            }
            Self::Theirs { regions } => BufferPlace {
                region: regions.get(usize::from(slot.region))?,
                offset: slot.offset as usize,
                capacity: slot.len as usize,
            },
        })
    }

    /// Where the buffer of a slot lies that [`LaneBuffers::empty`] told of. `None`: the descriptor
    /// names a region that does not exist.
    #[inline(always)]
    fn region(&self, empty: &DescriptorFields) -> Option<&MemifRegion> {
        match self {
            Self::Ours { region, .. } => Some(region),
            Self::Theirs { regions } => {
                regions.get(usize::from(empty.region)).map(|region| &**region)
            }
        }
    }

    /// What a slot's descriptor says while it is empty: the client keeps the places itself.
    #[inline(always)]
    fn empty(&self, ring: &MemifRing, index: u16) -> DescriptorFields {
        match *self {
            Self::Ours { first_offset, buffer_bytes, .. } => {
                let slot = u32::from(index & (ring.size() - 1));
                let offset = first_offset + slot * buffer_bytes;
                DescriptorFields { more: false, region: 0, offset, len: buffer_bytes }
            }
            Self::Theirs { .. } => ring.read(index),
        }
    }

    fn are_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// The index that we write: the client's is the head.
    fn our_index(&self) -> Index {
        if self.are_ours() { Index::Head } else { Index::Tail }
    }

    /// The index that the peer writes.
    fn their_index(&self) -> Index {
        if self.are_ours() { Index::Tail } else { Index::Head }
    }
}

/// What the front of a receiving ring holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatheredFrame {
    /// A frame, now private.
    Frame {
        /// Its bytes.
        len: usize,
        /// Slots that it took.
        slots: u16,
    },
    /// A frame that does not fit.
    TooLong {
        /// Slots that it took.
        slots: u16,
    },
    /// No frame at all.
    Malformed {
        /// Slots that it took.
        slots: u16,
    },
    /// The rest of the frame is still to come.
    Incomplete,
}

/// Frames from the peer.
#[derive(Debug)]
pub(super) struct ReceiveLane {
    /// Where its interrupts are masked.
    pub(super) ring: MemifRing,
    buffers: LaneBuffers,
    /// The oldest slot not yet taken.
    next: u16,
    /// The oldest slot not yet given back.
    held: u16,
}

impl ReceiveLane {
    /// A ring that nothing went through yet. The client gives all its buffers to the server now.
    pub(super) fn new(ring: MemifRing, buffers: LaneBuffers) -> Self {
        let size = ring.size();
        if buffers.are_ours() {
            for index in 0..size {
                ring.write(index, buffers.empty(&ring, index));
            }
            ring.store(Index::Head, size);
        }
        Self { ring, buffers, next: 0, held: 0 }
    }

    /// How many filled slots wait.
    pub(super) fn waiting(&self) -> Result<u16, Nonsense> {
        let waiting = self.ring.load(self.buffers.their_index()).wrapping_sub(self.next);
        if waiting > self.ring.size() {
            return Err(Nonsense("an index ran past the ring"));
        }
        Ok(waiting)
    }

    /// Asks for the bytes of a frame that comes soon: they lie in the other core's cache, and
    /// arrive here while the frames before it are worked on.
    #[inline]
    fn look_ahead(&self, waiting: u16) {
        if waiting <= LOOK_AHEAD_SLOTS {
            return;
        }
        let index = self.next.wrapping_add(LOOK_AHEAD_SLOTS);
        let slot = self.ring.read(index);
        if let Some(place) = self.buffers.place(&self.ring, index, &slot) {
            let bytes = (slot.len as usize).min(LOOK_AHEAD_BYTES_MAX);
            place.region.expect(place.offset, bytes);
        }
    }

    /// Copies the oldest frame out, of at most `waiting` slots, and takes its slots.
    pub(super) fn gather(&mut self, waiting: u16, frame: &mut [u8]) -> GatheredFrame {
        self.look_ahead(waiting);
        let slot = self.ring.read(self.next);
        if waiting == 0 || slot.more {
            return self.gather_chain(waiting, frame);
        }
        let copied = self.copy_out(self.next, &slot, frame);
        self.take(1);
        match copied {
            Ok(0) | Err(NotCopied::Malformed) => GatheredFrame::Malformed { slots: 1 },
            Ok(len) => GatheredFrame::Frame { len, slots: 1 },
            Err(NotCopied::TooLong) => GatheredFrame::TooLong { slots: 1 },
        }
    }

    /// As `gather`, for a frame of more than one slot.
    fn gather_chain(&mut self, waiting: u16, frame: &mut [u8]) -> GatheredFrame {
        let mut len = 0;
        let mut dropped = None;
        for taken in 0..waiting {
            let index = self.next.wrapping_add(taken);
            let slot = self.ring.read(index);
            if dropped.is_none() {
                match self.copy_out(index, &slot, frame.get_mut(len..).unwrap_or_default()) {
                    Ok(bytes) => len += bytes,
                    Err(why) => dropped = Some(why),
                }
            }
            if slot.more {
                continue;
            }
            let slots = taken + 1;
            self.take(slots);
            return match dropped {
                Some(NotCopied::TooLong) => GatheredFrame::TooLong { slots },
                Some(NotCopied::Malformed) => GatheredFrame::Malformed { slots },
                None if len == 0 => GatheredFrame::Malformed { slots },
                None => GatheredFrame::Frame { len, slots },
            };
        }
        if waiting < self.ring.size() {
            return GatheredFrame::Incomplete;
        }
        // The whole ring is one frame without an end: it will not get one.
        self.take(waiting);
        GatheredFrame::Malformed { slots: waiting }
    }

    /// Takes slots whose frame was copied out or given up.
    fn take(&mut self, slots: u16) {
        if !self.buffers.are_ours() {
            // DPDK's client sets NEXT and never clears it, so a slot that was once inside of a
            // chain would stay so: we clear it while the slot is ours.
            for taken in 0..slots - 1 {
                let index = self.next.wrapping_add(taken);
                self.ring.write(index, DescriptorFields { more: false, ..self.ring.read(index) });
            }
        }
        self.next = self.next.wrapping_add(slots);
    }

    fn copy_out(
        &self,
        index: u16,
        slot: &DescriptorFields,
        free: &mut [u8],
    ) -> Result<usize, NotCopied> {
        let place = self.buffers.place(&self.ring, index, slot).ok_or(NotCopied::Malformed)?;
        let len = slot.len as usize;
        if len > place.capacity {
            return Err(NotCopied::Malformed);
        }
        let free = free.get_mut(..len).ok_or(NotCopied::TooLong)?;
        if place.region.read(place.offset, free) { Ok(len) } else { Err(NotCopied::Malformed) }
    }

    /// Gives all slots taken back to the peer.
    pub(super) fn give_back(&mut self) {
        if self.held == self.next {
            return;
        }
        let mut given = self.next;
        if self.buffers.are_ours() {
            // The server wrote lengths and flags into them: they are made empty again.
            while self.held != self.next {
                self.ring.write(self.held, self.buffers.empty(&self.ring, self.held));
                self.held = self.held.wrapping_add(1);
            }
            // All slots but those that the server filled are the server's.
            given = self.next.wrapping_add(self.ring.size());
        }
        self.held = self.next;
        self.ring.store(self.buffers.our_index(), given);
    }
}

enum NotCopied {
    TooLong,
    Malformed,
}

/// Room for a frame, as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserved {
    /// One slot, as its descriptor was read: it is not read again.
    Slot(DescriptorFields),
    /// Several.
    Chain,
}

/// Frames to the peer.
#[derive(Debug)]
pub(super) struct SendLane {
    ring: MemifRing,
    buffers: LaneBuffers,
    /// The oldest slot not yet filled.
    next: u16,
    /// The oldest slot not yet handed over.
    held: u16,
}

impl SendLane {
    /// A ring that nothing went through yet.
    pub(super) fn new(ring: MemifRing, buffers: LaneBuffers) -> Self {
        Self { ring, buffers, next: 0, held: 0 }
    }

    /// How many slots may be filled.
    pub(super) fn room(&self) -> Result<u16, Nonsense> {
        let theirs = self.ring.load(self.buffers.their_index());
        // The client may fill what the server has emptied; the server what the client gave.
        let limit = if self.buffers.are_ours() { self.ring.size() } else { 0 };
        let room = theirs.wrapping_add(limit).wrapping_sub(self.next);
        if room > self.ring.size() {
            return Err(Nonsense("an index ran past the ring"));
        }
        Ok(room)
    }

    /// Asks for the buffer and the descriptor of a frame that may follow soon: they lie in the
    /// other core's cache, which has just read them.
    #[inline]
    fn look_ahead(&self, room: u16) {
        if room <= LOOK_AHEAD_SLOTS {
            return;
        }
        let index = self.next.wrapping_add(LOOK_AHEAD_SLOTS);
        let slot = self.buffers.empty(&self.ring, index);
        if let Some(region) = self.buffers.region(&slot) {
            region.expect_to_write::<LOOK_AHEAD_FILLED_LINES>(slot.offset as usize);
        }
        self.ring.expect_to_write(index);
    }

    /// Room for a frame of `bytes` in the next `room` slots; `None`: it does not fit.
    #[inline(always)]
    pub(super) fn reserve(&self, room: u16, bytes: usize) -> Result<Option<Reserved>, Nonsense> {
        if room == 0 {
            return Ok(None);
        }
        let slot = self.checked(self.next)?;
        let mut capacity = slot.len as usize;
        if capacity >= bytes {
            return Ok(Some(Reserved::Slot(slot)));
        }
        for filled in 1..room {
            let index = self.next.wrapping_add(filled);
            capacity += self.checked(index)?.len as usize;
            if capacity >= bytes {
                return Ok(Some(Reserved::Chain));
            }
        }
        Ok(None)
    }

    /// Copies a frame into what was reserved for it, in at most `room` slots, and says how many it
    /// took.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        (room, reserved): (u16, Reserved),
        frame: &[u8],
    ) -> Result<u16, Nonsense> {
        let Reserved::Slot(slot) = reserved else { return self.scatter(room, frame) };
        self.look_ahead(room);
        let region = self.buffers.region(&slot);
        if !region.is_some_and(|region| region.write(slot.offset as usize, frame)) {
            return Err(OUTSIDE);
        }
        self.ring
            .write(self.next, DescriptorFields { more: false, len: frame.len() as u32, ..slot });
        self.next = self.next.wrapping_add(1);
        Ok(1)
    }

    /// Copies a frame in, into at most `room` slots, and says how many it took.
    fn scatter(&mut self, room: u16, frame: &[u8]) -> Result<u16, Nonsense> {
        let mut rest = frame;
        for filled in 0..room {
            let index = self.next.wrapping_add(filled);
            let empty = self.checked(index)?;
            let (now, later) = rest.split_at(rest.len().min(empty.len as usize));
            let region = self.buffers.region(&empty);
            if !region.is_some_and(|region| region.write(empty.offset as usize, now)) {
                return Err(OUTSIDE);
            }
            let more = !later.is_empty();
            // The place stays as it was: a client of ours rewrites what it knows, a server what it
            // has just read.
            self.ring.write(index, DescriptorFields { more, len: now.len() as u32, ..empty });
            rest = later;
            if !more {
                self.next = index.wrapping_add(1);
                return Ok(filled + 1);
            }
        }
        // `reserve` said that it fits: the client changed a descriptor in between.
        Err(Nonsense("a buffer shrank while it was filled"))
    }

    /// An empty slot with its buffer, which has to be one: nothing can be sent around it.
    #[inline(always)]
    fn checked(&self, index: u16) -> Result<DescriptorFields, Nonsense> {
        let slot = self.buffers.empty(&self.ring, index);
        let region = self.buffers.region(&slot).ok_or(Nonsense("a buffer in no region"))?;
        if slot.len == 0 || region.locate(slot.offset as usize, slot.len as usize).is_none() {
            return Err(OUTSIDE);
        }
        Ok(slot)
    }

    /// What a peer without sense does.
    #[cfg(test)]
    pub(super) fn scribble_index(&self, index: u16) {
        self.ring.store(self.buffers.our_index(), index);
    }

    /// Hands all filled slots over. `true`: the peer wants to be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.held == self.next {
            return false;
        }
        self.held = self.next;
        self.ring.store(self.buffers.our_index(), self.next);
        self.ring.wants_interrupt()
    }
}

#[cfg(test)]
mod tests;
