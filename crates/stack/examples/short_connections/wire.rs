//! Frames between two stacks, in memory that exists before.

const FRAME_BYTES: usize = 256;
const FRAMES: usize = 1024;

/// Frames in one direction: one side fills it, then the other reads all of it.
pub(crate) struct FrameQueue {
    frames: Box<[[u8; FRAME_BYTES]]>,
    lens: Vec<usize>,
    read: usize,
}

impl FrameQueue {
    pub(crate) fn new() -> Self {
        let frames = vec![[0; FRAME_BYTES]; FRAMES].into_boxed_slice();
        Self { frames, lens: Vec::with_capacity(FRAMES), read: 0 }
    }

    /// Room for the next frame.
    pub(crate) fn room(&mut self) -> &mut [u8; FRAME_BYTES] {
        &mut self.frames[self.lens.len()]
    }

    /// The frame in the room is complete.
    pub(crate) fn push(&mut self, len: usize) {
        self.lens.push(len);
    }

    /// The next frame that was not read.
    pub(crate) fn pop(&mut self) -> Option<&[u8]> {
        let len = *self.lens.get(self.read)?;
        self.read += 1;
        Some(&self.frames[self.read - 1][..len])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    pub(crate) fn is_read(&self) -> bool {
        self.read == self.lens.len()
    }

    /// Empties it, once all frames were read.
    pub(crate) fn clear(&mut self) {
        assert!(self.is_read(), "each frame is read");
        self.lens.clear();
        self.read = 0;
    }
}
