//! Text for a C program: written as `snprintf(3)` writes it, cut to the room there is, always
//! with its NUL, and the length that the whole text has.

use std::ffi::c_char;
use std::fmt::{self, Display, Write};

/// A writer into memory of the program.
struct Room {
    text: *mut c_char,
    /// Bytes of the room, the NUL's included.
    size: usize,
    /// Bytes that the whole text has so far.
    len: usize,
}

/// Writes `value` as text; the length of the whole text, without the NUL.
///
/// # Safety
/// `text` points to `size` writable bytes, or `size` is 0.
pub(crate) unsafe fn write(text: *mut c_char, size: usize, value: &impl Display) -> usize {
    let mut room = Room { text, size, len: 0 };
    // The writer never fails; a `Display` that does leaves what it wrote before.
    let _ = write!(room, "{value}");
    let end = room.len.min(size.saturating_sub(1));
    if size > 0 {
        // SAFETY: `end` is at most `size - 1`, so it lies in the room that the caller promises.
        let last = unsafe { text.add(end) };
        // SAFETY: the same.
        unsafe { last.write(0) };
    }
    room.len
}

impl Write for Room {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = self.size.saturating_sub(1).saturating_sub(self.len);
        let len = part.len().min(left);
        if len > 0 {
            // SAFETY: `len > 0` means that `self.len` is below the size of the room.
            let target = unsafe { self.text.add(self.len) };
            // SAFETY: `len` bytes are left in the room, and `part` is memory of Rust's own.
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
        // SAFETY: the room has more than `size` bytes.
        let len = unsafe { write(room.as_mut_ptr().cast(), size, &value) };
        assert!(room[size..].iter().all(|&byte| byte == 0x55), "wrote beyond the room");
        room.truncate(size);
        (len, room)
    }

    #[test]
    fn text_is_cut_to_the_room_and_ends_with_a_nul() {
        assert_eq!(write_into(6, "hello"), (5, b"hello\0".to_vec()));
        assert_eq!(write_into(5, "hello"), (5, b"hell\0".to_vec()));
        assert_eq!(write_into(1, "hello"), (5, b"\0".to_vec()));
        assert_eq!(write_into(0, "hello"), (5, Vec::new()));
    }

    #[test]
    fn no_room_needs_no_memory() {
        // SAFETY: a size of 0 promises nothing.
        assert_eq!(unsafe { write(std::ptr::null_mut(), 0, &12345) }, 5);
    }
}
