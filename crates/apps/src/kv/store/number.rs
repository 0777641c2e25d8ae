//! Values that are numbers, as `incr` and `decr` read and write them.
//!
//! Read first: memcached's `protocol.txt`, "Increment/Decrement".

use std::ops::Deref;

/// The number that a value stands for: white space, an optional `+`, digits, and then nothing or
/// white space and anything. memcached reads values with C's `strtoull`, so other servers' values
/// must mean the same here.
pub(super) fn parse_value(value: &[u8]) -> Option<u64> {
    let start = value.iter().position(|byte| !is_space(*byte))?;
    let value = &value[start..];
    let value = value.strip_prefix(b"+").unwrap_or(value);
    let count = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ended = value.get(count).is_none_or(|&byte| is_space(byte) || byte == 0);
    if count == 0 || !ended {
        return None;
    }
    value[..count].iter().try_fold(0u64, |number, &digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// A number in decimal digits, without memory of its own on the heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits {
    bytes: [u8; 20],
    start: u8,
}

impl Digits {
    pub(crate) const fn new(mut number: u64) -> Self {
        let mut bytes = [0; 20];
        let mut start = 20;
        loop {
            start -= 1;
            bytes[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { bytes, start: start as u8 };
            }
        }
    }
}

impl Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}
