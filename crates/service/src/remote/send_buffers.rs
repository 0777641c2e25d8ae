//! The application's send buffers: which are free, and whose bytes each of the others carries.
//!
//! Read first: `client.rs`. This state lies outside the region, where only the application can
//! change it.
//!
//! Invariants
//! - A buffer is in `free` exactly when it is not out, so what a server gives back twice, or never
//!   had, changes nothing.
//! - No connection takes a buffer while it holds more of that size than are left for the others.

use megapipe_shm::limits::POOL_BUFS_MAX;
use megapipe_shm::record;
use megapipe_shm::{BufId, BufferArea};
use megapipe_stack::{ConnId, DatagramId};

use super::{LARGE, SMALL};
use crate::limits::SMALL_SEND_BYTES;

/// Whose bytes a send buffer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Carrier {
    /// None: the buffer is the application's.
    #[default]
    Nothing,
    /// Those of a connection.
    Conn(ConnId),
    /// A datagram.
    Endpoint(DatagramId),
}

/// What a send buffer carries.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    carrier: Carrier,
    len: u32,
}

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
    area: BufferArea,
    /// Those that are the application's, the last one used next.
    free: Vec<u32>,
    carried: Vec<Carried>,
}

impl SendClass {
    fn new(area: BufferArea) -> Self {
        let count = area.layout().count;
        let carried = vec![Carried::default(); count as usize];
        Self { area, free: (0..count).rev().collect(), carried }
    }

    /// A copy of as many of the bytes as fit one buffer. `None`: there is none for a carrier that
    /// has `held` of them.
    #[inline]
    pub(super) fn fill(
        &mut self,
        (carrier, held): (Carrier, &mut u32),
        bytes: &[u8],
    ) -> Option<record::Chunk> {
        if *held as usize > self.free.len() {
            return None;
        }
        let index = self.free.pop()?;
        *held += 1;
        let len = bytes.len().min(self.area.layout().buf_bytes);
        let copied = self.area.write(index, 0, &bytes[..len]);
        debug_assert!(copied.is_ok(), "it is a buffer of the area");
        let len = len as u32;
        if let Some(carried) = self.carried.get_mut(index as usize) {
            *carried = Carried { carrier, len };
        }
        let buf = BufId::from_bits(u32::from(self.area.layout().tag) * POOL_BUFS_MAX + index);
        Some(record::Chunk { buf, offset: 0, len })
    }

    /// The server is done with a buffer, and what it carried. `None`: the server never had it.
    #[inline]
    pub(super) fn take_back(&mut self, buf: BufId) -> Option<(Carrier, u32)> {
        let carried = self.carried.get_mut(buf.index() as usize)?;
        let carrier = std::mem::take(&mut carried.carrier);
        if carrier == Carrier::Nothing {
            return None;
        }
        self.free.push(buf.index());
        Some((carrier, carried.len))
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
    pub(super) fn new(small: BufferArea, large: BufferArea, buffer_bytes: u32) -> Self {
        let (small, large) = (SendClass::new(small), SendClass::new(large));
        Self { small, large, buffer_bytes }
    }

    /// As [`SendClass::fill`], in a buffer of the size that fits best.
    pub(super) fn fill(
        &mut self,
        (carrier, held): (Carrier, &mut Held),
        bytes: &[u8],
    ) -> Option<record::Chunk> {
        let small = (bytes.len() <= SMALL_SEND_BYTES)
            .then(|| self.small.fill((carrier, &mut held.small), bytes));
        small.flatten().or_else(|| self.large.fill((carrier, &mut held.large), bytes))
    }

    #[inline]
    pub(super) fn take_back(&mut self, buf: BufId) -> Option<(Carrier, u32)> {
        match buf.tag() {
            SMALL => self.small.take_back(buf),
            LARGE => self.large.take_back(buf),
            _ => None,
        }
    }
}
