//! What has come for a connection and the program has not read: the channel's buffers, in order.
//!
//! Read first: `stream.rs`.
//!
//! A program that keeps up finds one buffer at most, and a read is posted that may bring the next:
//! both lie in the socket's own record, so that a message touches no memory beside it. More of them
//! wait in a queue, which is made when it is first needed. Bytes beyond [`INBOX_BUFFERS_MAX`]
//! buffers are copied to memory of their own: a program that peeks at many small segments must not
//! hold buffers that others live on.
//!
//! Invariants
//! - `unread` is the sum of the lengths of all buffers and of the copied bytes; no buffer is empty.
//! - The order is `front`, `second`, `buffers`, `copied`, `last`. `front` is none only if `second`
//!   is, and `second` only if `buffers` is empty.
//! - No read is posted before there is room for the buffer that it brings
//!   ([`StreamInbox::reserve_one`]). One that is to be copied, without memory, is `last`.

use std::collections::VecDeque;

use megapipe::ReadBuf;

use crate::error::Error;
use crate::fallible_box::FallibleBox;
use crate::limits::INBOX_BUFFERS_MAX;

/// Received bytes, oldest first.
pub(crate) struct StreamInbox {
    front: Option<ReadBuf>,
    second: Option<ReadBuf>,
    unread: usize,
    more: Option<FallibleBox<MoreBytes>>,
}

/// What does not fit the socket's record.
#[derive(Default)]
struct MoreBytes {
    buffers: VecDeque<ReadBuf>,
    copied: VecDeque<u8>,
    /// A buffer for whose copy there was no memory.
    last: Option<ReadBuf>,
}

impl MoreBytes {
    fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.copied.is_empty() && self.last.is_none()
    }

    fn buffer_count(&self) -> usize {
        self.buffers.len() + usize::from(self.last.is_some())
    }

    /// Copies bytes, or fails without memory.
    fn copy(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.copied.try_reserve(bytes.len()).map_err(|_| Error::NoMemory)?;
        self.copied.extend(bytes);
        Ok(())
    }
}

impl StreamInbox {
    pub(crate) const fn new() -> Self {
        Self { front: None, second: None, unread: 0, more: None }
    }

    /// Bytes that wait.
    #[inline]
    pub(crate) const fn unread(&self) -> usize {
        self.unread
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.unread == 0
    }

    /// How many buffers of the channel's are held.
    #[inline]
    pub(crate) fn buffer_count(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |more| more.buffer_count());
        usize::from(self.front.is_some()) + usize::from(self.second.is_some()) + more
    }

    /// Whether the next buffer is the second one.
    #[inline]
    fn has_room_for_second(&self) -> bool {
        self.second.is_none() && self.more.as_ref().is_none_or(|more| more.is_empty())
    }

    /// Makes room for one more buffer.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    #[inline]
    pub(crate) fn reserve_one(&mut self) -> Result<(), Error> {
        if self.has_room_for_second() { Ok(()) } else { self.reserve_behind() }
    }

    #[inline(never)]
    fn reserve_behind(&mut self) -> Result<(), Error> {
        let has_room = self.buffer_count() < INBOX_BUFFERS_MAX;
        let more = match &mut self.more {
            Some(more) => more,
            none => {
                let empty = FallibleBox::try_new(MoreBytes::default());
                none.insert(empty.map_err(|_| Error::NoMemory)?)
            }
        };
        if let Some(last) = more.last.take()
            && let Err(error) = more.copy(&last)
        {
            more.last = Some(last);
            return Err(error);
        }
        if has_room && more.copied.is_empty() {
            more.buffers.try_reserve(1).map_err(|_| Error::NoMemory)?;
        }
        Ok(())
    }

    /// Bytes came, for which there is room; not none.
    #[inline]
    pub(crate) fn push(&mut self, bytes: ReadBuf) {
        if self.is_empty() {
            self.unread = bytes.len();
            self.front = Some(bytes);
        } else if self.has_room_for_second() {
            self.unread += bytes.len();
            self.second = Some(bytes);
        } else {
            self.push_behind(bytes);
        }
    }

    #[inline(never)]
    fn push_behind(&mut self, bytes: ReadBuf) {
        let has_room = self.buffer_count() < INBOX_BUFFERS_MAX;
        let Some(more) = &mut self.more else {
            return debug_assert!(false, "there is room before a read is posted");
        };
        self.unread += bytes.len();
        if has_room && more.copied.is_empty() {
            more.buffers.push_back(bytes);
        } else if more.copy(&bytes).is_err() {
            more.last = Some(bytes);
        }
    }

    /// Everything, if that is one buffer.
    #[inline]
    pub(crate) fn take_only(&mut self) -> Option<ReadBuf> {
        if !self.has_room_for_second() {
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
                let next = self.more.as_mut().and_then(|more| more.buffers.pop_front());
                self.front = std::mem::replace(&mut self.second, next);
            }
        }
        taken += self.take_copied(len - taken, each);
        taken += self.take_last(len - taken, each);
        self.unread -= taken;
        taken
    }

    /// What was not copied is first now, if nothing is before it.
    fn take_last(&mut self, len: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let Some(more) = self.more.as_mut().filter(|_| self.front.is_none()) else { return 0 };
        let MoreBytes { copied, last, .. } = &mut **more;
        let Some(mut last) = last.take_if(|_| copied.is_empty()) else { return 0 };
        let taken = last.len().min(len);
        if taken > 0 {
            each(&last[..taken]);
        }
        if taken < last.len() {
            last.split_to(taken);
            self.front = Some(last);
        }
        taken
    }

    fn take_copied(&mut self, len: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let Some(more) = self.more.as_mut().filter(|_| len > 0) else { return 0 };
        let copied = &mut more.copied;
        let taken = len.min(copied.len());
        let (first, second) = copied.as_slices();
        let from_first = taken.min(first.len());
        for part in [&first[..from_first], &second[..taken - from_first]] {
            if !part.is_empty() {
                each(part);
            }
        }
        copied.drain(..taken);
        if copied.is_empty() {
            // Few programs get here, and mostly once.
            *copied = VecDeque::new();
        }
        taken
    }

    /// Shows the first `len` bytes to `each`, or all.
    pub(crate) fn peek(&self, len: usize, each: &mut dyn FnMut(&[u8])) {
        let mut left = len;
        for bytes in self.parts() {
            let step = bytes.len().min(left);
            if step > 0 {
                each(&bytes[..step]);
                left -= step;
            }
        }
    }

    /// The byte behind `ahead` others, if it has come.
    pub(crate) fn byte_at(&self, mut ahead: usize) -> Option<u8> {
        for bytes in self.parts() {
            match bytes.get(ahead) {
                Some(byte) => return Some(*byte),
                None => ahead -= bytes.len(),
            }
        }
        None
    }

    /// Everything, in order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let behind = self.more.iter().flat_map(|more| {
            let (first, second) = more.copied.as_slices();
            let buffers = more.buffers.iter().map(|bytes| &bytes[..]);
            buffers.chain([first, second]).chain(more.last.iter().map(|bytes| &bytes[..]))
        });
        self.front.iter().chain(&self.second).map(|bytes| &bytes[..]).chain(behind)
    }
}
