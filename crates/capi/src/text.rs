//! Text for a C program, as `snprintf(3)` writes it: truncated to the buffer, always with its NUL,
//! with the length of the whole text.

use std::ffi::c_char;
use std::fmt::{self, Display, Write};

/// A writer into a buffer of the program.
struct TextBuffer {
    text: *mut c_char,
    /// Size of the buffer, with the NUL.
    size: usize,
    /// Length of the whole text so far.
    len: usize,
}

/// Writes `value` as text; returns the length of the whole text, without the NUL.
///
/// # Safety
/// `text` points to `size` writable bytes, or `size` is 0.
pub(crate) unsafe fn write(text: *mut c_char, size: usize, value: &impl Display) -> usize {
    let mut room = TextBuffer { text, size, len: 0 };
    // The writer never fails; a `Display` that does leaves the text written before.
    let _ = write!(room, "{value}");
    let end = room.len.min(size.saturating_sub(1));
    if size > 0 {
        // SAFETY: `end` is at most `size - 1`, so it lies in the caller's buffer.
        let last = unsafe { text.add(end) };
        // SAFETY: the same.
        unsafe { last.write(0) };
    }
    room.len
}

impl Write for TextBuffer {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = self.size.saturating_sub(1).saturating_sub(self.len);
        let len = part.len().min(left);
        if len > 0 {
            // SAFETY: `len > 0` means that `self.len` is below the size of the buffer.
            let target = unsafe { self.text.add(self.len) };
            // SAFETY: `len` bytes are left in the buffer, and `part` is a Rust string.
            unsafe { part.as_ptr().cast::<c_char>().copy_to_nonoverlapping(target, len) };
        }
        self.len += part.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_into(size: usize, value: &str) -> (usize, Vec<u8>) {
        let mut room = vec![0x55_u8; size + 4];
        // SAFETY: the buffer has more than `size` bytes.
        let len = unsafe { write(room.as_mut_ptr().cast(), size, &value) };
        assert!(room[size..].iter().all(|&byte| byte == 0x55), "wrote past the buffer");
        room.truncate(size);
        (len, room)
    }

    #[test]
    fn text_is_truncated_and_ends_with_a_nul() {
        assert_eq!(write_into(6, "hello"), (5, b"hello\0".to_vec()));
        assert_eq!(write_into(5, "hello"), (5, b"hell\0".to_vec()));
        assert_eq!(write_into(1, "hello"), (5, b"\0".to_vec()));
        assert_eq!(write_into(0, "hello"), (5, Vec::new()));
    }

    #[test]
    fn size_0_needs_no_memory() {
        // SAFETY: a size of 0 promises nothing.
        assert_eq!(unsafe { write(std::ptr::null_mut(), 0, &12345) }, 5);
    }
}
