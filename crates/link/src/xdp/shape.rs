//! Layout of a socket: frames, rings and pieces.

/// How a socket is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketShape {
    /// Bytes of one chunk: of a frame, unless it comes in pieces.
    pub(super) frame_bytes: u32,
    /// Entries of each ring, and chunks in each direction.
    pub(super) ring_size: u32,
    /// The longest frame, if it may come in pieces.
    pub(super) pieces_bytes: Option<usize>,
    /// Checksums are to be left to the kernel.
    pub(super) wants_metadata: bool,
}

impl SocketShape {
    /// Chunks of one socket.
    pub(super) const fn chunk_count(&self) -> u32 {
        2 * self.ring_size
    }

    /// Chunks of a frame that is sent.
    pub(super) fn pieces(&self) -> u32 {
        let bytes = self.pieces_bytes.unwrap_or(1);
        // At most `XDP_PIECES_MAX`, which `open` checks.
        bytes.div_ceil(self.frame_bytes as usize) as u32
    }
}
