//! The transport server: owns the flows of one shard, and the memory that their payload lies in.
//!
//! Read first: `megapipe_stack::Stack`.

use std::sync::{Mutex, PoisonError};

use megapipe_shm::Region;
use megapipe_stack::{Config, Event, Instant, Memory, Received, Stack, Transmit};

use crate::error::ServerError;
use crate::limits;

/// A stack and the memory it works on.
pub struct TransportServer<M> {
    stack: Stack,
    memory: M,
}

impl<M: Memory> TransportServer<M> {
    /// A stack that reads and writes payload in `memory`.
    ///
    /// # Errors
    /// [`ServerError::Stack`] names the setting that is out of range, [`ServerError::NoMemory`] the
    /// bytes that are not to be had.
    pub fn new(config: Config, memory: M, now: Instant) -> Result<Self, ServerError> {
        // Of shards that start at once each looks at what the others have left.
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = config.memory_bytes();
        let needed = bytes.saturating_add(limits::SERVER_SPARE_BYTES);
        Region::heap(needed).map_err(|_| ServerError::NoMemory { bytes })?;
        Ok(Self { stack: Stack::new(config, now)?, memory })
    }

    /// A frame arrived.
    #[inline]
    pub fn on_frame(&mut self, now: Instant, frame: &[u8], received: Received) {
        self.stack.on_frame(now, frame, received, &mut self.memory);
    }

    /// A frame arrived whose connection may be on its way from one shard to another.
    pub fn on_stray_frame(&mut self, now: Instant, frame: &[u8], received: Received) {
        self.stack.on_stray_frame(now, frame, received, &mut self.memory);
    }

    /// Refuses a frame that begins a connection which no shard may accept.
    pub fn refuse_frame(&mut self, now: Instant, frame: &[u8], received: Received) {
        self.stack.refuse_frame(now, frame, received, &mut self.memory);
    }

    /// Runs what is due. Whether anything was.
    pub fn on_time(&mut self, now: Instant) -> bool {
        let due = self.stack.has_timer_due(now);
        if due {
            self.stack.on_timeout(now, &mut self.memory);
        }
        due
    }

    /// Fills the next frame, if one is to be sent.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, frame: &mut [u8]) -> Option<Transmit> {
        self.stack.poll_transmit(now, frame, &mut self.memory)
    }

    /// What happened next.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.stack.poll_event()
    }

    /// For commands, which take both.
    #[inline]
    pub const fn parts(&mut self) -> (&mut Stack, &mut M) {
        (&mut self.stack, &mut self.memory)
    }

    /// The stack, to look at.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        &self.stack
    }
}
