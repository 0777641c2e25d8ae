//! The options of `megapipe serve kv`.

use std::str::FromStr;

use clap::Args;

use super::limits::{
    MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, STALL_TIMEOUT_S_DEFAULT,
    TIMEOUT_S_MAX,
};
use crate::number::within;
use crate::serve::ServeArgs;

/// The options of `megapipe serve kv`.
#[derive(Clone, Debug, Args)]
pub struct KvArgs {
    /// What every server has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Memory for items, hash table included; k, m and g are powers of 1024
    #[arg(long, short, value_name = "SIZE", default_value_t = MemorySize(MEMORY_BYTES_DEFAULT))]
    pub memory: MemorySize,

    /// Close connections that ask for nothing for so many seconds; 0 is never
    #[arg(help_heading = "Limits", long, value_name = "SECONDS", default_value_t = 0,
          value_parser = within(0..=TIMEOUT_S_MAX))]
    pub idle_timeout: u32,

    /// Close connections whose command takes longer than so many seconds to arrive, or that read
    /// none of their responses for so long; 0 is never
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = STALL_TIMEOUT_S_DEFAULT,
          value_parser = within(0..=TIMEOUT_S_MAX))]
    pub stall_timeout: u32,
}

impl KvArgs {
    /// A server with memcached's default of 64 MiB.
    #[must_use]
    pub const fn new(serve: ServeArgs) -> Self {
        Self {
            serve,
            memory: MemorySize(MEMORY_BYTES_DEFAULT),
            idle_timeout: 0,
            stall_timeout: STALL_TIMEOUT_S_DEFAULT,
        }
    }
}

/// An amount of memory in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemorySize(pub usize);

/// A size that is no number with at most one of the letters k, m and g behind it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX} bytes, with k, m or g behind the number for \
     powers of 1024"
)]
pub struct MemoryError;

impl FromStr for MemorySize {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let shift = match text.bytes().last().map(|letter| letter.to_ascii_lowercase()) {
            Some(b'k') => 10,
            Some(b'm') => 20,
            Some(b'g') => 30,
            _ => 0,
        };
        let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
        let number: usize = digits.parse().map_err(|_| MemoryError)?;
        number.checked_mul(1 << shift).map(Self).ok_or(MemoryError)
    }
}

impl std::fmt::Display for MemorySize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (shift, letter) in [(30, "g"), (20, "m"), (10, "k")] {
            if self.0 > 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{letter}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (text, bytes) in [("64m", 64 << 20), ("1g", 1 << 30), ("9k", 9 << 10), ("12345", 12345)]
        {
            assert_eq!(text.parse(), Ok(MemorySize(bytes)));
            assert_eq!(MemorySize(bytes).to_string(), text);
        }
        assert_eq!("64M".parse(), Ok(MemorySize(64 << 20)));
        for text in ["", "m", "1.5g", "-1", "1t", "99999999999g", "1é"] {
            assert_eq!(text.parse::<MemorySize>(), Err(MemoryError), "{text}");
        }
    }
}
