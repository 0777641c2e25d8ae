//! The application's send buffers: which are free, and whose bytes each of the others carries.
//!
//! Read first: `session.rs`. What says so lies outside the region, where only the application can
//! change it.
//!
//! Invariants
//! - A buffer is in `free` exactly when it is not out, so what a server gives back twice, or never
//!   had, changes nothing.
//! - No connection takes a buffer while it holds more of that size than are left for the others.

use megapipe_shm::limits::POOL_BUFS_MAX;
use megapipe_shm::record;
use megapipe_shm::{BufId, PoolLayout, Region};
use megapipe_stack::ConnId;

use super::{LARGE, Layout, SMALL};
use crate::limits::SMALL_SEND_BYTES;

/// What a send buffer carries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carried {
    pub(super) conn: ConnId,
    pub(super) len: u32,
    /// The buffer is in the server's hands.
    is_out: bool,
}

/// No connection.
const NONE: ConnId = ConnId { index: u32::MAX, generation: 0 };

/// How many buffers of each size a connection has with the server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) small: u32,
    large: u32,
}

impl Held {
    /// One came back.
    #[inline]
    pub(super) const fn give_back(&mut self, buf: BufId) {
        let count = if buf.tag() == SMALL { &mut self.small } else { &mut self.large };
        *count = count.saturating_sub(1);
    }
}

/// Send buffers of one size.
pub(super) struct SendClass {
    layout: PoolLayout,
    stride_bytes: usize,
    /// Those that are the application's, the last one used next.
    free: Vec<u32>,
    carried: Vec<Carried>,
}

impl SendClass {
    fn new(layout: PoolLayout) -> Self {
        let nothing = Carried { conn: NONE, len: 0, is_out: false };
        Self {
            layout,
            stride_bytes: layout.stride_bytes(),
            free: (0..layout.count).rev().collect(),
            carried: vec![nothing; layout.count as usize],
        }
    }

    /// A copy of as many of the bytes as fit one buffer. `None`: there is none for a connection
    /// that has `held` of them.
    #[inline]
    pub(super) fn fill(
        &mut self,
        region: &Region,
        (conn, held): (ConnId, &mut u32),
        bytes: &[u8],
    ) -> Option<record::Chunk> {
        if *held as usize > self.free.len() {
            return None;
        }
        let index = self.free.pop()?;
        *held += 1;
        let len = bytes.len().min(self.layout.buf_bytes);
        let place = self.layout.offset + index as usize * self.stride_bytes;
        let copied = region.write(place, &bytes[..len]);
        debug_assert!(copied.is_ok(), "the buffer lies in the region");
        let len = len as u32;
        if let Some(carried) = self.carried.get_mut(index as usize) {
            *carried = Carried { conn, len, is_out: true };
        }
        let buf = BufId::from_bits(u32::from(self.layout.tag) * POOL_BUFS_MAX + index);
        Some(record::Chunk { buf, offset: 0, len })
    }

    /// The server is done with a buffer, and what it carried. `None`: the server never had it.
    #[inline]
    pub(super) fn take_back(&mut self, buf: BufId) -> Option<Carried> {
        let carried = self.carried.get_mut(buf.index() as usize)?;
        let is_out = std::mem::take(&mut carried.is_out);
        is_out.then(|| self.free.push(buf.index()))?;
        Some(*carried)
    }
}

/// The send buffers, and whose bytes each carries.
pub(super) struct Sends {
    pub(super) small: SendClass,
    large: SendClass,
    /// Size of a new connection's send buffer.
    pub(super) buffer_bytes: u32,
}

impl Sends {
    pub(super) fn new(layout: &Layout, buffer_bytes: u32) -> Self {
        let (small, large) = (SendClass::new(layout.small), SendClass::new(layout.large));
        Self { small, large, buffer_bytes }
    }

    /// As [`SendClass::fill`], in a buffer of the size that fits best.
    pub(super) fn fill(
        &mut self,
        region: &Region,
        (conn, held): (ConnId, &mut Held),
        bytes: &[u8],
    ) -> Option<record::Chunk> {
        let small = (bytes.len() <= SMALL_SEND_BYTES)
            .then(|| self.small.fill(region, (conn, &mut held.small), bytes));
        small.flatten().or_else(|| self.large.fill(region, (conn, &mut held.large), bytes))
    }

    #[inline]
    pub(super) fn take_back(&mut self, buf: BufId) -> Option<Carried> {
        match buf.tag() {
            SMALL => self.small.take_back(buf),
            LARGE => self.large.take_back(buf),
            _ => None,
        }
    }
}
