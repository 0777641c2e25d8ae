//! The body of an answer that is too long for one write: what comes next, and what stands between.
//!
//! It comes from an open file, read piece by piece, or from memory that the cache shares. Either
//! way it leaves in chunks, so that a peer that takes them slowly is seen to take them.
//!
//! Pure: lengths in, the next read or bytes out.
//!
//! Invariants
//! - At most one read is outstanding, so bytes are written in the order of the file.
//! - At most two chunks are on their way: one being written while the next is read or queued.

use std::collections::VecDeque;
use std::ops::Range;

use super::limits::CHUNK_BYTES;
use super::outbox::HttpOutbox;
use super::response::PreparedFile;

/// One part of a body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum BodyPart {
    /// Text of a multipart body.
    Bytes(Vec<u8>),
    /// A range of the file.
    File(Range<u64>),
}

/// A read of the file.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct FileRead {
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

/// The parts that are left.
#[derive(Debug)]
pub(crate) struct BodyStream {
    parts: VecDeque<BodyPart>,
    /// Where the file's bytes are, if they are in memory.
    held: Option<PreparedFile>,
    reading: bool,
}

impl BodyStream {
    /// A body of `parts`, in order, of an open file. Empty ranges must not be among them.
    pub(crate) fn of_file(parts: Vec<BodyPart>) -> Self {
        Self { parts: parts.into(), held: None, reading: false }
    }

    /// The same of a file in memory.
    pub(crate) fn of_memory(parts: Vec<BodyPart>, held: &PreparedFile) -> Self {
        Self { parts: parts.into(), held: Some(held.clone()), reading: false }
    }

    /// Moves on: text and bytes from memory go to `out`; a read of the file is returned. Does
    /// nothing while a read is outstanding or too much is unwritten.
    pub(crate) fn poll_read(
        &mut self,
        unwritten_bytes: usize,
        out: &mut HttpOutbox,
    ) -> Option<FileRead> {
        while !self.reading && unwritten_bytes + out.len() <= CHUNK_BYTES {
            match self.parts.front_mut()? {
                BodyPart::Bytes(bytes) => {
                    out.bytes.append(bytes);
                    self.parts.pop_front();
                }
                BodyPart::File(range) => {
                    let len = (range.end - range.start).min(CHUNK_BYTES as u64) as usize;
                    let Some(held) = &self.held else {
                        self.reading = true;
                        return Some(FileRead { offset: range.start, len });
                    };
                    let start = held.body_at + range.start as usize;
                    out.share(&held.memory, start..start + len);
                    self.consume(len);
                }
            }
        }
        None
    }

    /// `len` bytes were read; false if that ends the file before its time.
    pub(crate) fn on_file_bytes(&mut self, len: usize) -> bool {
        self.reading = false;
        self.consume(len)
    }

    fn consume(&mut self, len: usize) -> bool {
        let Some(BodyPart::File(range)) = self.parts.front_mut() else { return false };
        if len == 0 || len as u64 > range.end - range.start {
            return false;
        }
        range.start += len as u64;
        if range.start == range.end {
            self.parts.pop_front();
        }
        true
    }

    /// Whether all of it was passed on.
    pub(crate) fn is_done(&self) -> bool {
        self.parts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::representation::tests::representation;
    use super::*;

    #[test]
    fn parts_come_in_order_one_read_at_a_time() {
        let mut out = HttpOutbox::new(0);
        let long = CHUNK_BYTES as u64 + 10;
        let mut stream = BodyStream::of_file(vec![
            BodyPart::Bytes(b"a".to_vec()),
            BodyPart::File(5..5 + long),
            BodyPart::Bytes(b"b".to_vec()),
            BodyPart::Bytes(b"c".to_vec()),
            BodyPart::File(0..1),
            BodyPart::Bytes(b"end".to_vec()),
        ]);
        assert_eq!(stream.poll_read(CHUNK_BYTES + 1, &mut out), None, "too much is unwritten");
        let first = stream.poll_read(0, &mut out);
        assert_eq!(first, Some(FileRead { offset: 5, len: CHUNK_BYTES }));
        assert_eq!(out.bytes, b"a");
        assert_eq!(stream.poll_read(0, &mut out), None, "one is outstanding");
        assert!(stream.on_file_bytes(CHUNK_BYTES - 1), "a short read goes on where it ended");
        let second = FileRead { offset: CHUNK_BYTES as u64 + 4, len: 11 };
        assert_eq!(stream.poll_read(0, &mut out), Some(second));
        assert!(stream.on_file_bytes(11));
        assert_eq!(stream.poll_read(0, &mut out), Some(FileRead { offset: 0, len: 1 }));
        assert_eq!(out.bytes, b"abc");
        assert!(stream.on_file_bytes(1) && !stream.is_done());
        assert_eq!(stream.poll_read(0, &mut out), None);
        assert!(stream.is_done());
        assert_eq!(out.bytes, b"abcend");
    }

    #[test]
    fn a_file_that_ends_too_soon_is_noticed() {
        let mut stream = BodyStream::of_file(vec![BodyPart::File(0..10)]);
        stream.poll_read(0, &mut HttpOutbox::new(0));
        assert!(!stream.on_file_bytes(0));
        let mut stream = BodyStream::of_file(vec![BodyPart::File(0..10)]);
        stream.poll_read(0, &mut HttpOutbox::new(0));
        assert!(!stream.on_file_bytes(11), "and so is a read longer than requested");
    }

    #[test]
    fn a_body_in_memory_leaves_in_chunks() {
        let len = 3 * CHUNK_BYTES;
        let body: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
        let prepared = PreparedFile::new(&representation(len as u64, 1), &body);
        let parts = vec![BodyPart::Bytes(b"head".to_vec()), BodyPart::File(1..len as u64)];
        let mut stream = BodyStream::of_memory(parts, &prepared);
        let (mut out, mut sent, mut turns) = (HttpOutbox::new(0), Vec::new(), 0);
        while !stream.is_done() {
            assert_eq!(stream.poll_read(0, &mut out), None);
            assert!(out.len() <= 2 * CHUNK_BYTES);
            sent.extend(out.concat());
            out.clear();
            turns += 1;
        }
        assert_eq!(&sent[..4], b"head");
        assert!(sent[4..] == body[1..]);
        assert_eq!(turns, 2);
    }
}
