//! Output of a connection in one poll: owned bytes, interleaved with slices of memory shared with
//! the cache.
//!
//! Reused between polls, so that a response allocates nothing.
//!
//! Pure: it is a value; the shell does the writing.

use std::ops::Range;
use std::sync::Arc;

use super::limits::WRITE_BYTES_MAX;
use super::status::HttpStatus;

/// Answers in the order they leave.
#[derive(Debug, Default)]
pub(crate) struct HttpOutbox {
    /// Heads and small bodies.
    pub(crate) bytes: Vec<u8>,
    shared: Vec<SharedBody>,
    shared_bytes: usize,
    boundaries: fastrand::Rng,
    /// Answers that were errors of the client and of the server, ever.
    errors: (u64, u64),
}

/// Memory that goes out after the first `at` of the outbox's own bytes.
#[derive(Debug)]
struct SharedBody {
    at: usize,
    memory: Arc<[u8]>,
    range: Range<usize>,
}

/// One piece of what leaves.
#[derive(Debug)]
pub(crate) enum OutboxPiece<'o> {
    Copied(&'o [u8]),
    Shared(Arc<[u8]>, Range<usize>),
}

impl HttpOutbox {
    /// An empty one; `seed` starts the boundaries of multipart answers and should be random.
    pub(crate) fn new(seed: u64) -> Self {
        Self { boundaries: fastrand::Rng::with_seed(seed), ..Self::default() }
    }

    /// Adds part of shared memory; not more than one write may be.
    pub(crate) fn share(&mut self, memory: &Arc<[u8]>, range: Range<usize>) {
        debug_assert!(range.len() <= WRITE_BYTES_MAX);
        if range.is_empty() {
            return;
        }
        self.shared_bytes += range.len();
        self.shared.push(SharedBody { at: self.bytes.len(), memory: memory.clone(), range });
    }

    /// Counts an answer if it is an error.
    pub(crate) const fn count(&mut self, status: HttpStatus) {
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
        self.boundaries.u64(..)
    }

    /// Whether all of it is bytes of its own.
    pub(crate) fn is_copied(&self) -> bool {
        self.shared.is_empty()
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = OutboxPiece<'_>> {
        let mut copied = 0;
        let between = self.shared.iter().flat_map(move |shared| {
            let before = OutboxPiece::Copied(&self.bytes[copied..shared.at]);
            copied = shared.at;
            [before, OutboxPiece::Shared(shared.memory.clone(), shared.range.clone())]
        });
        let last = self.shared.last().map_or(0, |shared| shared.at);
        between
            .chain([OutboxPiece::Copied(&self.bytes[last..])])
            .filter(|piece| !matches!(piece, OutboxPiece::Copied([])))
    }

    /// Empties it for the next input.
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
                OutboxPiece::Copied(bytes) => all.extend(bytes),
                OutboxPiece::Shared(memory, range) => all.extend(&memory[range]),
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
        let mut outbox = HttpOutbox::new(1);
        outbox.bytes.extend(b"one");
        outbox.share(&memory, 1..100);
        outbox.share(&memory, 0..0);
        outbox.share(&memory, 2..4);
        outbox.bytes.extend(b"two");
        outbox.share(&memory, 0..1);
        let lens: Vec<(bool, usize)> = outbox
            .pieces()
            .map(|piece| match piece {
                OutboxPiece::Copied(bytes) => (true, bytes.len()),
                OutboxPiece::Shared(_, range) => (false, range.len()),
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
        let mut outbox = HttpOutbox::new(7);
        let first = outbox.next_boundary();
        assert!((0..1000).all(|_| outbox.next_boundary() != first));
    }
}
