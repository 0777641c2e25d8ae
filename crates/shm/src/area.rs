//! Buffers of one size in a region, as bytes that both ends copy in and out.
//!
//! Read first: `region/parts.rs`; `bytes.rs`; `pool.rs` for who owns which buffer.
//!
//! Invariants
//! - The bytes are accessed by copies alone (`bytes.rs`), which allow for writes at the same time,
//!   this process's included. So any number of users may have the area.
//! - There are no references to its bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::region::{OutOfRegion, Part, RegionParts};
use crate::{bytes, limits};

/// How many buffers there are, and of which size. Both ends of a region agree on it; neither reads
/// it from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLayout {
    /// Size of a buffer, `BUF_BYTES_MIN` to `BUF_BYTES_MAX`.
    pub buf_bytes: usize,
    /// How many buffers, 1 to `POOL_BUFS_MAX`.
    pub count: u32,
    /// Tells the pools of one owner apart, below `POOL_TAGS_MAX`.
    pub tag: u16,
}

impl PoolLayout {
    /// Bytes from one buffer's start to the next one's: an odd number of cache lines. At a power
    /// of two, the starts of all buffers, which small messages alone use, would share few of the
    /// cache's sets.
    #[must_use]
    pub const fn stride_bytes(&self) -> usize {
        (self.buf_bytes.div_ceil(limits::LINE_BYTES) | 1) * limits::LINE_BYTES
    }

    /// Bytes that all buffers take of a region; the settings are in their ranges.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (self.stride_bytes() * self.count as usize).next_multiple_of(limits::LINE_PAIR_BYTES)
    }

    fn check(&self) -> Result<(), PoolError> {
        let sizes = limits::BUF_BYTES_MIN..=limits::BUF_BYTES_MAX;
        let setting = if !sizes.contains(&self.buf_bytes) {
            "buf_bytes"
        } else if self.count == 0 || self.count > limits::POOL_BUFS_MAX {
            "count"
        } else if self.tag >= limits::POOL_TAGS_MAX {
            "tag"
        } else {
            return Ok(());
        };
        Err(PoolError::Setting { setting })
    }
}

/// Why there is no pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A setting of the layout is out of its range.
    #[error("the buffers' {setting} is out of range")]
    Setting {
        /// Which.
        setting: &'static str,
    },
    /// The buffers do not fit into what is left of the region.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
}

/// Buffers of one size. A clone is another name for the same bytes, for another thread.
#[derive(Debug, Clone)]
pub struct BufferArea {
    part: Arc<Part>,
    layout: PoolLayout,
    stride_bytes: usize,
}

impl BufferArea {
    /// Buffers in the next part of a region.
    ///
    /// # Errors
    /// [`PoolError`]: the caller's settings; nothing was taken of the region.
    pub fn new(parts: &mut RegionParts, layout: PoolLayout) -> Result<Self, PoolError> {
        layout.check()?;
        let part = Arc::new(parts.take(layout.bytes())?);
        Ok(Self { part, layout, stride_bytes: layout.stride_bytes() })
    }

    /// Copies `from` into buffer `index`, at `offset` there.
    ///
    /// # Errors
    /// [`OutOfRegion`]: there is no such buffer, or it is too short; nothing was written.
    #[inline]
    pub fn write(&self, index: u32, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        let to = self.place(index, offset, from.len())?;
        // SAFETY: `place` has checked the range, which is mapped as long as the part. `from` lies
        // elsewhere, since no reference into the area exists (the module's second invariant).
        unsafe { bytes::copy_in(from, to.as_ptr()) };
        Ok(())
    }

    /// Copies what is in buffer `index` at `offset` to `to`. Bytes that are written meanwhile
    /// are each the old or the new one.
    ///
    /// # Errors
    /// [`OutOfRegion`]: there is no such buffer, or it is too short; nothing was read.
    #[inline]
    pub fn read(&self, index: u32, offset: usize, to: &mut [u8]) -> Result<(), OutOfRegion> {
        let from = self.place(index, offset, to.len())?;
        // SAFETY: as in `write`.
        unsafe { bytes::copy_out(from.as_ptr(), to) };
        Ok(())
    }

    /// How many there are, and of which size.
    #[inline]
    #[must_use]
    pub const fn layout(&self) -> PoolLayout {
        self.layout
    }

    /// The address of a range of a buffer.
    #[inline]
    fn place(&self, index: u32, offset: usize, len: usize) -> Result<NonNull<u8>, OutOfRegion> {
        let bytes = self.layout.buf_bytes;
        if index >= self.layout.count || offset > bytes || len > bytes - offset {
            return Err(OutOfRegion { offset, len, bytes });
        }
        // SAFETY: the index is below the count and the offset within the buffer.
        Ok(unsafe { self.address(index, offset) })
    }

    /// The address of a place in a buffer.
    ///
    /// # Safety
    /// `index` is below the layout's count, and `offset` at most its `buf_bytes`.
    #[inline]
    pub(crate) unsafe fn address(&self, index: u32, offset: usize) -> NonNull<u8> {
        let place = index as usize * self.stride_bytes + offset;
        // SAFETY: within the part, which is as long as all buffers (`new`), as the caller promises.
        unsafe { self.part.start().add(place) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    #[test]
    fn copies_stay_within_their_buffer() {
        let layout = PoolLayout { buf_bytes: 100, count: 3, tag: 0 };
        let mut parts = Region::heap(4096).expect("a page").into_parts();
        let area = BufferArea::new(&mut parts, layout).expect("it fits");
        area.write(1, 97, b"end").expect("within the buffer");
        area.clone().write(2, 0, b"next").expect("within the buffer");
        let mut bytes = [9; 4];
        area.read(1, 96, &mut bytes).expect("within the buffer");
        assert_eq!(&bytes, b"\0end");
        area.read(2, 0, &mut bytes).expect("within the buffer");
        assert_eq!(&bytes, b"next");
        for (index, offset) in [(3, 0), (u32::MAX, 0), (0, 97), (0, 101), (0, usize::MAX)] {
            let refused = Err(OutOfRegion { offset, len: 4, bytes: 100 });
            assert_eq!(area.write(index, offset, b"wide"), refused);
            assert_eq!(area.read(index, offset, &mut bytes), refused);
        }
        assert_eq!((area.write(0, 100, b""), &bytes), (Ok(()), b"next"));
    }
}
