//! Who owns a byte on its way between the program and the kernel.
//!
//! - [`ReadBuf`]: bytes that a completion lends. Dropping it gives the memory back.
//! - [`WriteBuf`]: memory that the channel lends to be filled and submitted.
//! - [`Payload`]: what a write takes: a `WriteBuf`, a `ReadBuf` (an echo without a copy), or
//!   memory of the program's own that it hands over or shares. The channel owns it until the
//!   write has completed.
//!
//! Lengths are bytes. Nothing here blocks or fails.

use std::collections::TryReserveError;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::kernel::pool::{Pool, PoolBuf, Span, UnsharedBytes};

/// Received bytes. Dereferences to a slice; empty means end of file. Dropping it returns the memory
/// to the channel: a program that keeps many of them leaves no memory for receiving. It may be sent
/// to another thread: dropped there, it returns the memory and wakes the channel.
///
/// # Examples
/// ```
/// use megapipe::ReadBuf;
///
/// // Tests create one from bytes of their own; a program gets them from `Event::Read`.
/// let mut body = ReadBuf::from(b"GET / HTTP/1.1\r\n\r\nbody".to_vec());
/// let head = body.split_to(18);
/// assert_eq!((&*head, &*body), (&b"GET / HTTP/1.1\r\n\r\n"[..], &b"body"[..]));
/// ```
pub struct ReadBuf(Span);

impl ReadBuf {
    /// What the end of a stream looks like.
    pub(crate) const END: Self = Self(Span::EMPTY);

    #[inline]
    pub(crate) const fn new(bytes: Span) -> Self {
        Self(bytes)
    }

    /// The first `len` bytes of a pool buffer.
    pub(crate) fn from_pool(buffer: PoolBuf, len: usize) -> Self {
        Self(buffer.into_span(len as u32))
    }

    /// A copy in a buffer of the pool, if one is free and large enough.
    #[inline]
    pub(crate) fn copied(pool: &Arc<Pool>, bytes: &[u8]) -> Option<Self> {
        let mut buffer = pool.take()?;
        buffer.bytes_mut().get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::from_pool(buffer, bytes.len()))
    }

    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        Self(Span::from_vec(bytes))
    }

    /// The first `len` bytes of heap memory.
    pub(crate) fn from_heap(memory: UnsharedBytes, len: usize) -> Self {
        Self(memory.into_span(len))
    }

    /// Bytes. Does not look at the memory.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: the end of the file or stream.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Returns the first `len` bytes (or all) as a buffer of its own; `self` keeps the rest. Both
    /// share the memory, which is free when both are dropped.
    pub fn split_to(&mut self, len: usize) -> Self {
        Self(self.0.split_to(len))
    }

    /// As `split_to`, but `self` keeps all.
    #[cfg(feature = "local")]
    fn front(&self, len: usize) -> Self {
        Self(self.0.front(len))
    }

    /// Leaves the first `len` bytes out, at most all.
    #[cfg(feature = "local")]
    fn skip(&mut self, len: usize) {
        self.0.skip(len);
    }

    /// The bytes, for memory that keeps them under a number.
    #[cfg(feature = "local")]
    #[inline]
    pub(crate) fn into_span(self) -> Span {
        self.0
    }

    /// The same bytes in memory of their own, so that no pool buffer is held. `None`: there is no
    /// memory.
    pub(crate) fn try_detached(&self) -> Option<Self> {
        let mut memory = UnsharedBytes::zeroed(self.len())?;
        memory.bytes_mut().copy_from_slice(self);
        Some(Self::from_heap(memory, self.len()))
    }

    /// Whether a buffer of the channel's receive pool is held.
    pub(crate) fn holds_pool_buffer(&self) -> bool {
        self.0.holds_pool_buffer()
    }
}

/// Bytes in memory of their own: for a program that tests what it does with received bytes.
impl From<Vec<u8>> for ReadBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_vec(bytes)
    }
}

impl Deref for ReadBuf {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for ReadBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ReadBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadBuf({} bytes)", self.0.len())
    }
}

/// Memory to fill and submit. It starts empty and grows by appending. Small buffers come from the
/// channel's pool; a buffer that outgrows it moves to the heap.
///
/// # Examples
/// ```
/// use megapipe::{Channel, Config};
/// use std::io::Write;
///
/// let mut channel = Channel::create(Config::default())?;
/// let mut buffer = channel.alloc(16);
/// buffer.extend_from_slice(b"length: ");
/// write!(buffer, "{}", 42)?;
/// assert_eq!(&*buffer, b"length: 42");
/// buffer.as_mut_slice()[0] = b'L';
/// buffer.resize(6);
/// assert_eq!(&*buffer, b"Length");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WriteBuf {
    memory: WriteMemory,
}

enum WriteMemory {
    Pool { buffer: PoolBuf, len: usize },
    Heap(Vec<u8>),
}

impl WriteBuf {
    pub(crate) fn with_capacity(pool: &Arc<Pool>, capacity: usize) -> Self {
        Self::in_pool(pool, capacity)
            .unwrap_or_else(|| Self { memory: WriteMemory::Heap(Vec::with_capacity(capacity)) })
    }

    pub(crate) fn try_with_capacity(
        pool: &Arc<Pool>,
        capacity: usize,
    ) -> Result<Self, TryReserveError> {
        if let Some(buffer) = Self::in_pool(pool, capacity) {
            return Ok(buffer);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity)?;
        Ok(Self { memory: WriteMemory::Heap(bytes) })
    }

    /// A buffer of the pool, if one is free and `capacity` fits into it.
    #[inline]
    fn in_pool(pool: &Arc<Pool>, capacity: usize) -> Option<Self> {
        let buffer = if capacity <= pool.buffer_len() { pool.take() } else { None };
        buffer.map(|buffer| Self { memory: WriteMemory::Pool { buffer, len: 0 } })
    }

    /// What was appended, to be read only, if it lies in a pool buffer.
    pub(crate) fn into_read(self) -> Result<ReadBuf, Self> {
        match self.memory {
            WriteMemory::Pool { buffer, len } => Ok(ReadBuf::from_pool(buffer, len)),
            memory @ WriteMemory::Heap(_) => Err(Self { memory }),
        }
    }

    /// What was appended, as memory that can be split.
    #[cfg(feature = "local")]
    fn into_payload(self) -> Payload {
        match self.memory {
            WriteMemory::Pool { buffer, len } => Payload::Read(ReadBuf::from_pool(buffer, len)),
            WriteMemory::Heap(bytes) => Payload::Vec(bytes),
        }
    }

    /// Bytes appended so far.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.memory {
            WriteMemory::Pool { len, .. } => *len,
            WriteMemory::Heap(bytes) => bytes.len(),
        }
    }

    /// Whether nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that fit before the memory has to move.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.memory {
            WriteMemory::Pool { buffer, .. } => buffer.len(),
            WriteMemory::Heap(bytes) => bytes.capacity(),
        }
    }

    /// Appends bytes. Beyond the capacity, the content moves to a larger piece of memory.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        if let WriteMemory::Pool { buffer, len } = &mut self.memory {
            let room = buffer.bytes_mut().get_mut(*len..*len + bytes.len());
            if let Some(room) = room {
                room.copy_from_slice(bytes);
                *len += bytes.len();
                return;
            }
            let mut moved = Vec::with_capacity((*len + bytes.len()).next_power_of_two());
            moved.extend_from_slice(&buffer.bytes()[..*len]);
            self.memory = WriteMemory::Heap(moved);
        }
        if let WriteMemory::Heap(vec) = &mut self.memory {
            vec.extend_from_slice(bytes);
        }
    }

    /// Extends with zeros, or shortens, to `len` bytes.
    pub fn resize(&mut self, len: usize) {
        if let WriteMemory::Pool { buffer, len: old } = &mut self.memory
            && len <= buffer.len()
        {
            if len > *old {
                buffer.bytes_mut()[*old..len].fill(0);
            }
            *old = len;
            return;
        }
        if let WriteMemory::Pool { .. } = &self.memory {
            let content = self.to_vec();
            self.memory = WriteMemory::Heap(content);
        }
        if let WriteMemory::Heap(vec) = &mut self.memory {
            vec.resize(len, 0);
        }
    }

    /// Returns the bytes appended so far, to change in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.memory {
            WriteMemory::Pool { buffer, len } => &mut buffer.bytes_mut()[..*len],
            WriteMemory::Heap(bytes) => bytes,
        }
    }
}

impl Deref for WriteBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            WriteMemory::Pool { buffer, len } => &buffer.bytes()[..*len],
            WriteMemory::Heap(bytes) => bytes,
        }
    }
}

impl io::Write for WriteBuf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for WriteBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteBuf({} of {} bytes)", self.len(), self.capacity())
    }
}

/// The bytes of a write. The channel owns it from submission to completion.
///
/// # Examples
/// ```
/// use megapipe::Payload;
/// use std::sync::Arc;
///
/// let file: Arc<[u8]> = vec![b'x'; 1 << 20].into();
/// // No copy: each of these shares the memory of `file`.
/// let first = Payload::shared(file.clone(), 0..1000);
/// let second = Payload::shared(file, 1000..1500);
/// assert_eq!((first.len(), second.len()), (1000, 500));
/// assert_eq!(Payload::from("text").as_slice(), b"text");
/// ```
#[non_exhaustive]
pub enum Payload {
    /// Memory of the channel, filled by the program.
    Write(WriteBuf),
    /// Received bytes, sent on without a copy.
    Read(ReadBuf),
    /// Memory of the program, passed by value.
    Vec(Vec<u8>),
    /// Constant bytes.
    Static(&'static [u8]),
    /// A part of shared memory: sent without a copy, possibly to many peers at once.
    Shared(Arc<[u8]>, Range<usize>),
    /// A part of the bytes of any owner.
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Payload {
    /// A part of shared bytes. A range beyond the end is cut at the end.
    #[must_use]
    pub fn shared(bytes: Arc<[u8]>, range: Range<usize>) -> Self {
        let range = clamp(range, bytes.len());
        Self::Shared(bytes, range)
    }

    /// A part of the bytes of an owner. A range beyond the end is cut at the end.
    #[must_use]
    pub fn owner(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        let range = clamp(range, (*owner).as_ref().len());
        Self::Owner(owner, range)
    }

    /// The bytes, to be read only, if they lie in memory of the channel.
    #[inline(always)]
    pub(crate) fn into_read(self) -> Result<ReadBuf, Self> {
        match self {
            Self::Read(bytes) => Ok(bytes),
            Self::Write(buffer) => buffer.into_read().map_err(Self::Write),
            other => Err(other),
        }
    }

    /// The bytes.
    #[must_use]
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Write(buffer) => buffer,
            Self::Read(buffer) => buffer,
            Self::Vec(bytes) => bytes,
            Self::Static(bytes) => bytes,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Owner(owner, range) => (**owner).as_ref().get(range.clone()).unwrap_or_default(),
        }
    }

    /// Bytes.
    #[must_use]
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.0.len(),
            _ => self.as_slice().len(),
        }
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `len` bytes (or all), without a copy; `self` keeps all of them too. `None`: there
    /// is no memory to share them.
    #[cfg(feature = "local")]
    pub(crate) fn front(&mut self, len: usize) -> Option<Self> {
        let len = len.min(self.len());
        match self {
            Self::Read(buffer) => Some(Self::Read(buffer.front(len))),
            Self::Static(bytes) => Some(Self::Static(&bytes[..len])),
            Self::Shared(bytes, range) => {
                Some(Self::Shared(Arc::clone(bytes), range.start..range.start + len))
            }
            Self::Owner(owner, range) => {
                Some(Self::Owner(Arc::clone(owner), range.start..range.start + len))
            }
            Self::Vec(_) | Self::Write(_) => {
                self.make_shareable()?;
                self.front(len)
            }
        }
    }

    /// Memory that can have several owners. `None`: there is no memory to count them.
    #[cfg(feature = "local")]
    fn make_shareable(&mut self) -> Option<()> {
        *self = match std::mem::replace(self, Self::Static(&[])) {
            Self::Vec(bytes) => {
                let len = bytes.len();
                match UnsharedBytes::of(bytes) {
                    Ok(memory) => Self::Read(ReadBuf::from_heap(memory, len)),
                    Err(bytes) => {
                        *self = Self::Vec(bytes);
                        return None;
                    }
                }
            }
            Self::Write(buffer) => {
                *self = buffer.into_payload();
                return self.make_shareable();
            }
            other => other,
        };
        Some(())
    }

    /// Leaves the first `len` bytes out (or all).
    #[cfg(feature = "local")]
    pub(crate) fn skip(&mut self, len: usize) {
        let len = len.min(self.len());
        // Without memory for a count it stays a vector, whose bytes move.
        let _ = self.make_shareable();
        match self {
            Self::Read(buffer) => buffer.skip(len),
            Self::Static(bytes) => *bytes = &bytes[len..],
            Self::Shared(_, range) | Self::Owner(_, range) => range.start += len,
            Self::Vec(bytes) => drop(bytes.drain(..len)),
            Self::Write(_) => debug_assert!(false, "it has become something else"),
        }
    }
}

fn clamp(range: Range<usize>, len: usize) -> Range<usize> {
    let end = range.end.min(len);
    range.start.min(end)..end
}

impl From<WriteBuf> for Payload {
    fn from(buffer: WriteBuf) -> Self {
        match buffer.memory {
            WriteMemory::Heap(bytes) => Self::Vec(bytes),
            memory @ WriteMemory::Pool { .. } => Self::Write(WriteBuf { memory }),
        }
    }
}

impl From<ReadBuf> for Payload {
    #[inline]
    fn from(buffer: ReadBuf) -> Self {
        Self::Read(buffer)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Vec(bytes)
    }
}

impl From<&'static [u8]> for Payload {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Static(bytes)
    }
}

impl<const N: usize> From<&'static [u8; N]> for Payload {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::Static(bytes)
    }
}

impl From<&'static str> for Payload {
    fn from(text: &'static str) -> Self {
        Self::Static(text.as_bytes())
    }
}

impl From<Arc<[u8]>> for Payload {
    fn from(bytes: Arc<[u8]>) -> Self {
        let len = bytes.len();
        Self::Shared(bytes, 0..len)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::kernel::pool::PoolOwner;

    #[test]
    fn a_read_can_be_handed_out_in_pieces() {
        let mut all = ReadBuf::from_vec(b"hello world".to_vec());
        let front = all.split_to(5);
        assert_eq!((&*front, &*all), (&b"hello"[..], &b" world"[..]));
        assert!(all.split_to(100).len() == 6 && all.is_empty());
    }

    #[test]
    fn a_write_buffer_moves_to_the_heap_when_it_outgrows_the_pool() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut buffer = WriteBuf::with_capacity(&pool, 10);
        buffer.write_all(&[7; 60]).unwrap();
        assert_eq!((pool.free_count(), buffer.capacity()), (3, 64));
        buffer.extend_from_slice(&[8; 10]);
        assert_eq!((pool.free_count(), buffer.len()), (4, 70));
        assert_eq!((buffer[59], buffer[60]), (7, 8));
    }

    #[test]
    fn growing_never_shows_what_another_owner_left_in_the_buffer() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut buffer = WriteBuf::with_capacity(&pool, 64);
        buffer.extend_from_slice(&[0xaa; 64]);
        drop(buffer);
        let mut again = WriteBuf::with_capacity(&pool, 64);
        again.resize(64);
        assert_eq!(*again, [0; 64]);
        again.resize(80);
        assert_eq!(again.len(), 80);
    }

    #[test]
    fn parts_are_cut_at_the_end_of_what_they_are_part_of() {
        let shared: Arc<[u8]> = Arc::from(&b"0123456789"[..]);
        assert_eq!(Payload::shared(Arc::clone(&shared), 8..20).as_slice(), b"89");
        assert_eq!(Payload::shared(Arc::clone(&shared), 30..40).len(), 0);
        assert_eq!(Payload::owner(Arc::new(b"abc".to_vec()), 1..3).as_slice(), b"bc");
    }
}
