//! Frames between two stacks, in memory that exists before.

const FRAME_BYTES: usize = 256;
const FRAMES: usize = 1024;

/// Frames in one direction: one side fills it, then the other reads all of it.
pub(crate) struct FrameQueue {
    frames: Box<[QueuedFrame; FRAMES]>,
    written: usize,
    read: usize,
}

#[derive(Clone, Copy)]
struct QueuedFrame {
    bytes: [u8; FRAME_BYTES],
    len: usize,
}

impl FrameQueue {
    pub(crate) fn new() -> Self {
        let frames =
            vec![QueuedFrame { bytes: [0; FRAME_BYTES], len: 0 }; FRAMES].into_boxed_slice();
        let Ok(frames) = frames.try_into() else { unreachable!("there are so many") };
        Self { frames, written: 0, read: 0 }
    }

    /// Room for the next frame.
    pub(crate) fn room(&mut self) -> &mut [u8; FRAME_BYTES] {
        &mut self.frames[self.written].bytes
    }

    /// The frame in the room is complete.
    pub(crate) fn push(&mut self, len: usize) {
        self.frames[self.written].len = len;
        self.written += 1;
    }

    /// The next frame that was not read.
    pub(crate) fn pop(&mut self) -> Option<&[u8]> {
        if self.is_read() {
            return None;
        }
        let frame = &self.frames[self.read];
        self.read += 1;
        Some(&frame.bytes[..frame.len])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.written == 0
    }

    pub(crate) fn is_read(&self) -> bool {
        self.read == self.written
    }

    /// Empties it, once all frames were read.
    pub(crate) fn clear(&mut self) {
        assert!(self.is_read(), "each frame is read");
        self.written = 0;
        self.read = 0;
    }
}
