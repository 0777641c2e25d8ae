//! One ring in shared memory: its header, its descriptors, and what an index may be.
//!
//! ```text
//!  offset 0   cookie u32 | flags u16 | head u16      written by the client, but for MASK_INT
//!        64   tail u16                               written by the server
//!       128   descriptors, 16 bytes each:
//!             flags u16 | region u16 | length u32 | offset u32 | metadata u32
//! ```
//!
//! Head and tail run freely through all 16 bits; the slot is their remainder by the size. The
//! client writes `head` and the server writes `tail` on both kinds of ring:
//!
//! | ring | head means | tail means |
//! |---|---|---|
//! | client to server | filled by the client up to here | emptied by the server up to here |
//! | server to client | given as empty by the client up to here | filled by the server up to here |
//!
//! Invariants
//! - The header and all descriptors lie inside the region (checked when the ring is made), and the
//!   ring keeps the region.
//! - Everything in here is read and written by atomics: the peer may write any of it at any time.
//! - The peer's word decides nothing unchecked: a count of slots is at most the size.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::region::MemifRegion;

/// What the first word of a ring holds.
const COOKIE: u32 = 0x03E3_1F20;

/// The consumer does not want to be woken.
const MASK_INTERRUPT: u16 = 1;

/// The frame goes on in the next descriptor.
const NEXT: u16 = 1;

/// Alignment that a ring needs in its region; regions start on a page.
pub(super) const RING_ALIGNMENT: usize = align_of::<RingDescriptor>();

#[repr(C)]
struct Header {
    cookie: AtomicU32,
    flags: AtomicU16,
    head: AtomicU16,
    rest_of_first_line: [AtomicU16; 28],
    tail: AtomicU16,
    rest_of_second_line: [AtomicU16; 31],
}

/// 16 bytes, read and written as two words.
#[repr(C)]
struct RingDescriptor([AtomicU64; 2]);

const _: () = assert!(size_of::<Header>() == 128);
const _: () = assert!(size_of::<RingDescriptor>() == 16);
const _: () = assert!(std::mem::offset_of!(Header, head) == 6);
const _: () = assert!(std::mem::offset_of!(Header, tail) == 64);
const _: () = assert!(align_of::<Header>() <= align_of::<RingDescriptor>());

/// Bytes that a ring of 2^`size_log2` descriptors takes.
pub(super) const fn ring_bytes(size_log2: u8) -> usize {
    size_of::<Header>() + (size_of::<RingDescriptor>() << size_log2)
}

/// What a descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DescriptorFields {
    /// The frame goes on in the next one.
    pub(super) more: bool,
    /// The region of the buffer.
    pub(super) region: u16,
    /// The buffer's first byte.
    pub(super) offset: u32,
    /// Bytes filled, or room.
    pub(super) len: u32,
}

/// Which index is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    /// The client's.
    Head,
    /// The server's.
    Tail,
}

/// A ring, from either side.
pub(super) struct MemifRing {
    header: NonNull<Header>,
    descriptors: NonNull<[RingDescriptor]>,
    /// Keeps what both point into.
    _region: Arc<MemifRegion>,
}

// SAFETY: the pointers lead into the region, which any thread may use (see there) and which the
// ring keeps; what they point at is atomics only.
unsafe impl Send for MemifRing {}

impl MemifRing {
    /// The ring of 2^`size_log2` descriptors at `offset`; `None`: it is not inside the region, or
    /// not aligned.
    pub(super) fn at(region: &Arc<MemifRegion>, offset: usize, size_log2: u8) -> Option<Self> {
        if !offset.is_multiple_of(RING_ALIGNMENT) {
            return None;
        }
        let header = region.locate(offset, ring_bytes(size_log2))?;
        // SAFETY: `ring_bytes` from `header` on are inside the mapping, and the header is the first
        // part of them, so the address behind it is inside too.
        let first = unsafe { header.add(size_of::<Header>()) };
        let descriptors = NonNull::slice_from_raw_parts(first.cast(), 1 << size_log2);
        Some(Self { header: header.cast(), descriptors, _region: Arc::clone(region) })
    }

    fn header(&self) -> &Header {
        // SAFETY: `at` found the header inside a region that `self` keeps mapped; the region starts
        // on a page and `offset` is a multiple of 8, so it is aligned; it holds only atomics, for
        // which any bytes are valid, however the peer writes them meanwhile.
        unsafe { self.header.as_ref() }
    }

    fn descriptors(&self) -> &[RingDescriptor] {
        // SAFETY: as for the header: `at` found all of them inside; 128 bytes behind a multiple of
        // 8 is one too; they are atomics only.
        unsafe { self.descriptors.as_ref() }
    }

    /// How many descriptors.
    pub(super) fn size(&self) -> u16 {
        // At most 2^14: `MEMIF_RING_SIZE_LOG2_MAX`.
        self.descriptors.len() as u16
    }

    /// Makes an empty ring: the client's task, before it offers it.
    pub(super) fn clear(&self) {
        let header = self.header();
        // Relaxed: the peer sees the ring only after the message that offers it.
        header.head.store(0, Ordering::Relaxed);
        header.tail.store(0, Ordering::Relaxed);
        header.flags.store(MASK_INTERRUPT, Ordering::Relaxed);
        header.cookie.store(COOKIE, Ordering::Relaxed);
    }

    /// Whether the peer has initialised this ring.
    pub(super) fn has_cookie(&self) -> bool {
        self.header().cookie.load(Ordering::Relaxed) == COOKIE
    }

    fn index(&self, index: Index) -> &AtomicU16 {
        match index {
            Index::Head => &self.header().head,
            Index::Tail => &self.header().tail,
        }
    }

    /// Reads the peer's index. Acquire: pairs with the peer's release store of it
    /// ([`MemifRing::store`]), so that descriptors and bytes written before it are seen.
    pub(super) fn load(&self, index: Index) -> u16 {
        self.index(index).load(Ordering::Acquire)
    }

    /// Writes our index. Release: pairs with the peer's acquire load of it ([`MemifRing::load`]),
    /// so that descriptors and bytes written before are seen, and reads made before are over.
    pub(super) fn store(&self, index: Index, value: u16) {
        self.index(index).store(value, Ordering::Release);
    }

    /// Reads the descriptor of the slot that `index` falls on. Relaxed: its order is that of the
    /// indices.
    #[inline(always)]
    pub(super) fn read(&self, index: u16) -> DescriptorFields {
        let [first, second] = &self.descriptor(index).0;
        let [f0, f1, r0, r1, l0, l1, l2, l3] = first.load(Ordering::Relaxed).to_ne_bytes();
        let [o0, o1, o2, o3, ..] = second.load(Ordering::Relaxed).to_ne_bytes();
        DescriptorFields {
            more: u16::from_ne_bytes([f0, f1]) & NEXT != 0,
            region: u16::from_ne_bytes([r0, r1]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
        }
    }

    /// Writes the descriptor of the slot that `index` falls on. Relaxed: see [`MemifRing::read`].
    /// Always inlined, so that the fields go from registers into the two words: through memory the
    /// processor would have to wait for each.
    #[inline(always)]
    pub(super) fn write(&self, index: u16, slot: DescriptorFields) {
        let [first, second] = &self.descriptor(index).0;
        let [f0, f1] = if slot.more { NEXT } else { 0 }.to_ne_bytes();
        let [r0, r1] = slot.region.to_ne_bytes();
        let [l0, l1, l2, l3] = slot.len.to_ne_bytes();
        let [o0, o1, o2, o3] = slot.offset.to_ne_bytes();
        first.store(u64::from_ne_bytes([f0, f1, r0, r1, l0, l1, l2, l3]), Ordering::Relaxed);
        second.store(u64::from_ne_bytes([o0, o1, o2, o3, 0, 0, 0, 0]), Ordering::Relaxed);
    }

    #[inline(always)]
    fn descriptor(&self, index: u16) -> &RingDescriptor {
        // The size is a power of two, so the remainder is inside whatever `index` is.
        let descriptors = self.descriptors();
        &descriptors[usize::from(index) & (descriptors.len() - 1)]
    }

    /// Says that the descriptor will be written soon: a hint.
    #[inline]
    pub(super) fn expect_to_write(&self, index: u16) {
        megapipe_shm::expect_line_to_write(std::ptr::from_ref(self.descriptor(index)).cast());
    }

    /// Says whether the producer need not wake us. The fence pairs with the one in
    /// [`MemifRing::wants_interrupt`]: either the producer sees that we want to be woken, or our
    /// next [`MemifRing::load`] sees its index.
    pub(super) fn mask_interrupt(&self, mask: bool) {
        let flags = if mask { MASK_INTERRUPT } else { 0 };
        self.header().flags.store(flags, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the consumer wants to be woken, asked after [`MemifRing::store`]. The fence pairs
    /// with the one in [`MemifRing::mask_interrupt`].
    pub(super) fn wants_interrupt(&self) -> bool {
        fence(Ordering::SeqCst);
        self.header().flags.load(Ordering::Relaxed) & MASK_INTERRUPT == 0
    }
}

impl std::fmt::Debug for MemifRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (head, tail) = (self.load(Index::Head), self.load(Index::Tail));
        write!(f, "Ring {{ size: {}, head: {head}, tail: {tail} }}", self.size())
    }
}

#[cfg(test)]
mod tests;
