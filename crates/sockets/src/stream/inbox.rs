//! What has come for a connection and the program has not read: the channel's buffers, in order.
//!
//! Read first: `stream.rs`.
//!
//! A program that keeps up finds one buffer at most: that one lies in the socket's own record, so
//! that a message touches no memory beside it. More of them wait in a queue, which is made when it
//! is first needed.
//!
//! Invariants
//! - `unread` is the sum of the lengths of all buffers, and none of them is empty.
//! - Where `front` is none, so is everything.

use std::collections::VecDeque;

use megapipe::ReadBuf;

/// Received bytes, oldest first.
pub(crate) struct Inbox {
    front: Option<ReadBuf>,
    unread: usize,
    #[expect(clippy::box_collection, reason = "one word in each socket instead of four")]
    more: Option<Box<VecDeque<ReadBuf>>>,
}

impl Inbox {
    pub(crate) const fn new() -> Self {
        Self { front: None, unread: 0, more: None }
    }

    /// Bytes that wait.
    #[inline]
    pub(crate) const fn unread(&self) -> usize {
        self.unread
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.front.is_none()
    }

    /// How many buffers of the channel's are held.
    #[inline]
    pub(crate) fn buffer_count(&self) -> usize {
        usize::from(self.front.is_some()) + self.more.as_ref().map_or(0, |more| more.len())
    }

    /// Bytes came; not none.
    #[inline]
    pub(crate) fn push(&mut self, bytes: ReadBuf) {
        self.unread += bytes.len();
        if self.front.is_none() {
            self.front = Some(bytes);
        } else {
            self.push_behind(bytes);
        }
    }

    #[inline(never)]
    fn push_behind(&mut self, bytes: ReadBuf) {
        self.more.get_or_insert_default().push_back(bytes);
    }

    /// Everything, if that is one buffer.
    #[inline]
    pub(crate) fn take_only(&mut self) -> Option<ReadBuf> {
        if self.more.as_ref().is_some_and(|more| !more.is_empty()) {
            return None;
        }
        self.unread = 0;
        self.front.take()
    }

    /// Hands the first `len` bytes to `each`, or all, and lets them go. How many that were.
    pub(crate) fn take(&mut self, len: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = 0;
        while taken < len
            && let Some(front) = &mut self.front
        {
            let step = front.len().min(len - taken);
            each(&front[..step]);
            taken += step;
            if step < front.len() {
                front.split_to(step);
            } else {
                self.front = self.more.as_mut().and_then(|more| more.pop_front());
            }
        }
        self.unread -= taken;
        taken
    }

    /// Shows the first `len` bytes to `each`, or all.
    pub(crate) fn peek(&self, len: usize, each: &mut dyn FnMut(&[u8])) {
        let mut left = len;
        for bytes in self.buffers() {
            let step = bytes.len().min(left);
            if step == 0 {
                break;
            }
            each(&bytes[..step]);
            left -= step;
        }
    }

    /// The byte behind `ahead` others, if it has come.
    pub(crate) fn byte_at(&self, mut ahead: usize) -> Option<u8> {
        for bytes in self.buffers() {
            match bytes.get(ahead) {
                Some(byte) => return Some(*byte),
                None => ahead -= bytes.len(),
            }
        }
        None
    }

    fn buffers(&self) -> impl Iterator<Item = &ReadBuf> {
        self.front.iter().chain(self.more.iter().flat_map(|more| more.iter()))
    }
}
