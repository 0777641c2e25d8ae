//! The transport server: owns the flows of one shard, and the memory that their payload lies in.
//!
//! Read first: `megapipe_stack::Stack`.

use std::sync::{Mutex, PoisonError};

use megapipe_shm::Region;
use megapipe_stack::{Config, Instant, Memory, Stack};

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

    /// Runs what is due. Whether anything was.
    pub fn on_time(&mut self, now: Instant) -> bool {
        let due = self.stack.has_timer_due(now);
        if due {
            self.stack.on_timeout(now, &mut self.memory);
        }
        due
    }

    /// For frames, commands and events: most calls of a stack take both.
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
