//! What a connection has to say in one turn: bytes of its own, and between them parts of memory
//! that the cache shares.
//!
//! Reused from turn to turn, so that an answer allocates nothing.
//!
//! Pure: it is a value; the shell does the writing.

use std::ops::Range;
use std::sync::Arc;

use super::limits::WRITE_BYTES_MAX;
use super::response::Status;

/// Answers in the order they leave.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Heads and small bodies.
    pub(crate) bytes: Vec<u8>,
    shared: Vec<Shared>,
    shared_bytes: usize,
    boundary: u64,
    /// Answers that were errors of the client and of the server, ever.
    errors: (u64, u64),
}

/// Memory that goes out after the first `at` of the outbox's own bytes.
#[derive(Debug)]
struct Shared {
    at: usize,
    memory: Arc<[u8]>,
    range: Range<usize>,
}

/// One piece of what leaves.
#[derive(Debug)]
pub(crate) enum Piece<'o> {
    Copied(&'o [u8]),
    Shared(Arc<[u8]>, Range<usize>),
}

impl Outbox {
    /// An empty one; `seed` starts the boundaries of multipart answers and should be random.
    pub(crate) fn new(seed: u64) -> Self {
        Self { boundary: seed, ..Self::default() }
    }

    /// Adds part of shared memory; not more than one write may be.
    pub(crate) fn share(&mut self, memory: &Arc<[u8]>, range: Range<usize>) {
        debug_assert!(range.len() <= WRITE_BYTES_MAX);
        if range.is_empty() {
            return;
        }
        self.shared_bytes += range.len();
        self.shared.push(Shared { at: self.bytes.len(), memory: memory.clone(), range });
    }

    /// Counts an answer if it is an error.
    pub(crate) const fn count(&mut self, status: Status) {
        let (client, server) = &mut self.errors;
        match status.class() {
            4 => *client += 1,
            5 => *server += 1,
            _ => {}
        }
    }

    /// How many answers were errors of the client (4xx) and of the server (5xx).
    pub(crate) const fn errors(&self) -> (u64, u64) {
        self.errors
    }

    /// Bytes that leave.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.shared_bytes
    }

    /// A boundary that content cannot foresee.
    pub(crate) fn next_boundary(&mut self) -> u64 {
        // SplitMix64: every state gives another value.
        self.boundary = self.boundary.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.boundary ^ (self.boundary >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Whether all of it is bytes of its own.
    pub(crate) fn is_copied(&self) -> bool {
        self.shared.is_empty()
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut copied = 0;
        let between = self.shared.iter().flat_map(move |shared| {
            let before = Piece::Copied(&self.bytes[copied..shared.at]);
            copied = shared.at;
            [before, Piece::Shared(shared.memory.clone(), shared.range.clone())]
        });
        let last = self.shared.last().map_or(0, |shared| shared.at);
        between
            .chain([Piece::Copied(&self.bytes[last..])])
            .filter(|piece| !matches!(piece, Piece::Copied([])))
    }

    /// Empties it for the next turn.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        self.shared_bytes = 0;
    }

    /// All bytes in order, as the peer sees them.
    #[cfg(test)]
    pub(crate) fn concat(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in self.pieces() {
            match piece {
                Piece::Copied(bytes) => all.extend(bytes),
                Piece::Shared(memory, range) => all.extend(&memory[range]),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_in_order() {
        let memory: Arc<[u8]> = vec![b'm'; 100].into();
        let mut outbox = Outbox::new(1);
        outbox.bytes.extend(b"one");
        outbox.share(&memory, 1..100);
        outbox.share(&memory, 0..0);
        outbox.share(&memory, 2..4);
        outbox.bytes.extend(b"two");
        outbox.share(&memory, 0..1);
        let lens: Vec<(bool, usize)> = outbox
            .pieces()
            .map(|piece| match piece {
                Piece::Copied(bytes) => (true, bytes.len()),
                Piece::Shared(_, range) => (false, range.len()),
            })
            .collect();
        assert_eq!(lens, [(true, 3), (false, 99), (false, 2), (true, 3), (false, 1)]);
        assert_eq!(outbox.len(), 108);
        assert!(!outbox.is_copied());
        outbox.clear();
        assert_eq!((outbox.len(), outbox.pieces().count(), outbox.is_copied()), (0, 0, true));
    }

    #[test]
    fn boundaries_differ() {
        let mut outbox = Outbox::new(7);
        let first = outbox.next_boundary();
        assert!((0..1000).all(|_| outbox.next_boundary() != first));
    }
}
