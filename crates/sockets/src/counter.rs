//! Event counters of a context (eventfd), which wake threads through the same sets as sockets.
//!
//! Read first: eventfd(2).
//!
//! They live in the context's memory: no system call, and no descriptor of the process.
//!
//! Invariant: a counter is never `u64::MAX`.

use crate::effects::Effects;
use crate::error::Error;
use crate::flags::Events;
use crate::gather::{ReceivePieces, SendPieces};

/// An event counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventCounter {
    count: u64,
    /// EFD_SEMAPHORE: a read takes one.
    is_semaphore: bool,
}

impl EventCounter {
    pub(crate) fn new(count: u32, is_semaphore: bool) -> Self {
        Self { count: count.into(), is_semaphore }
    }

    /// Readable when it is not zero, writable when at least one more fits.
    pub(crate) const fn readiness(self) -> Events {
        let mut events = Events::empty();
        if self.count > 0 {
            events = events.union(Events::IN);
        }
        if self.count < u64::MAX - 1 {
            events = events.union(Events::OUT);
        }
        events
    }

    /// read(2). [`Error::WouldBlock`]: the counter is zero.
    pub(crate) fn read(&mut self, to: &mut ReceivePieces<'_, '_>) -> Effects<usize> {
        if to.left() < 8 {
            return Effects::quiet(Err(Error::InvalidArgument));
        }
        if self.count == 0 {
            return Effects::quiet(Err(Error::WouldBlock));
        }
        let taken = if self.is_semaphore { 1 } else { self.count };
        self.count -= taken;
        to.put(&taken.to_ne_bytes(), false);
        Effects { result: Ok(8), events: Events::OUT }
    }

    /// write(2). [`Error::WouldBlock`]: the sum does not fit.
    pub(crate) fn write(&mut self, from: &mut SendPieces<'_>) -> Effects<usize> {
        let mut bytes = [0; 8];
        if from.left() + from.taken() < bytes.len() {
            return Effects::quiet(Err(Error::InvalidArgument));
        }
        from.rewind();
        let mut filled = 0;
        from.take(bytes.len(), |part| {
            bytes[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        });
        let more = u64::from_ne_bytes(bytes);
        if more == u64::MAX {
            return Effects::quiet(Err(Error::InvalidArgument));
        }
        if u64::MAX - 1 - self.count < more {
            return Effects::quiet(Err(Error::WouldBlock));
        }
        self.count += more;
        Effects { result: Ok(8), events: Events::IN }
    }
}
