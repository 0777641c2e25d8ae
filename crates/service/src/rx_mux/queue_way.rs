//! A shard's way to a queue that a link server reads.

use megapipe_shm::{Ringer, Sleeper};

use crate::frame_ring::OutSender;
use crate::limits::FORMER_SHARDS_MAX;
use crate::steering::{Note, PAST, RETURNED};

/// The note of a frame that a shard sends to the stack's own addresses.
pub(super) const LOOPED: Note = RETURNED - 1;

const _: () = assert!(PAST as usize + FORMER_SHARDS_MAX < LOOPED as usize, "no other note");

/// A shard's way to one queue.
#[derive(Debug)]
pub(super) struct QueueWay {
    /// Frames to be steered.
    pub(super) back: OutSender,
    /// Wakes the server.
    pub(super) server: Ringer,
    /// Frames to be sent, if the shard sends over this queue.
    pub(super) out: Option<OutWay>,
}

/// A shard's frames on their way out.
#[derive(Debug)]
pub(super) struct OutWay {
    pub(super) frames: OutSender,
    /// Rung when frames have left the ring.
    pub(super) room: Sleeper,
}
