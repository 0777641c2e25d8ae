//! References to the bytes of a pool's buffers, for programs that read and write in place.
//!
//! They exist only for a pool that is alone in a region that no other process can map
//! ([`Pool::owning`]): Rust allows no reference to bytes that another process may change.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

use super::{BufError, BufId, BufState, Pool, WITH_WRITER};

/// Bytes of a buffer that do not change while this exists. Its use of the buffer ends when it is
/// dropped, and not before: no id can end it.
pub struct Lent {
    pool: Rc<Pool>,
    index: u32,
    start: NonNull<u8>,
    len: usize,
}

/// A whole buffer for its only user to fill. It goes back to the pool when dropped.
pub struct Writer {
    pool: Rc<Pool>,
    buf: BufId,
    start: NonNull<u8>,
}

impl Pool {
    /// Lends bytes of a buffer. A use of the buffer that the caller has goes into the result.
    ///
    /// From now until the buffer is free again, [`Pool::copy_in`] refuses all bytes up to the end
    /// of this range; those behind it can still be written by the holder of another use.
    ///
    /// # Errors
    /// [`BufError`]; the use is still the caller's.
    #[inline]
    pub fn lend(self: &Rc<Self>, buf: BufId, offset: u32, len: u32) -> Result<Lent, BufError> {
        if !self.is_alone {
            return Err(BufError::SharedRegion);
        }
        let start = self.range(buf, offset, len as usize)?;
        let state = &self.states[buf.index() as usize];
        let lent_bytes = state.lent_bytes.get();
        if lent_bytes == WITH_WRITER {
            return Err(self.refused(BufError::Lent(buf)));
        }
        let lends = state.lends.get().checked_add(1).ok_or(BufError::TooManyUses(buf))?;
        state.lends.set(lends);
        // `range` has checked that there is a use.
        state.uses.set(state.uses.get() - 1);
        // `range` has checked that the end lies in the buffer, far below WITH_WRITER.
        state.lent_bytes.set(lent_bytes.max(offset + len));
        Ok(Lent { pool: Rc::clone(self), index: buf.index(), start, len: len as usize })
    }

    /// A free buffer for a program to fill in place; it starts with its old bytes. `None`: all are
    /// in use, or the region is shared.
    #[must_use]
    pub fn writer(self: &Rc<Self>) -> Option<Writer> {
        if !self.is_alone {
            return None;
        }
        let buf = self.alloc()?;
        let index = buf.index() as usize;
        // SAFETY: the start of a buffer that `alloc` has given.
        let start = unsafe { self.area.address(buf.index(), 0) };
        self.states[index].lent_bytes.set(WITH_WRITER);
        Some(Writer { pool: Rc::clone(self), buf, start })
    }
}

impl Deref for Lent {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the buffer (`Pool::lend`), and the pool keeps the region. Its
        // memory was zeroed at first, so it is initialised. It is not written while this exists:
        // the region is private and the pool's alone; the buffer's count of lends, which only
        // `Drop` lowers, keeps it from being given out again; and below `lent_bytes`, `copy_in`
        // refuses to write.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        let state = &self.pool.states[self.index as usize];
        state.lends.set(state.lends.get() - 1);
        self.pool.free_if_unused(self.index, state);
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes of buffer {})", self.len, self.index)
    }
}

impl Writer {
    /// Ends the filling: the buffer and its use are the caller's, by id.
    #[must_use]
    pub fn finish(self) -> BufId {
        let buf = self.buf;
        self.state().lent_bytes.set(0);
        // One more, which the drop that follows takes away again.
        self.state().uses.set(self.state().uses.get() + 1);
        buf
    }

    fn state(&self) -> &BufState {
        &self.pool.states[self.buf.index() as usize]
    }
}

impl Deref for Writer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: a whole buffer of the pool's private region, initialised since it was mapped.
        // While `lent_bytes` is WITH_WRITER the pool neither reads, writes, lends nor frees it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.pool.layout.buf_bytes) }
    }
}

impl DerefMut for Writer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the only other way to these bytes is this value, borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.pool.layout.buf_bytes) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let state = self.state();
        state.lent_bytes.set(0);
        state.uses.set(state.uses.get() - 1);
        self.pool.free_if_unused(self.buf.index(), state);
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({:?})", self.buf)
    }
}
