//! The name of a thing inside a channel.
//!
//! A handle is 64 bits: `number (31) | generation (21) | channel tag (12)`, high to low.
//!
//! Invariants
//! - `number >= 2^30` exactly for lwsockets [MP 4.1.1]; else it is the file descriptor's number.
//! - The generation of a number is incremented when a handle with that number ends
//!   (`state/handles.rs`), so that a stale handle is an error and never names another connection.
//! - The tag tells channels of one process apart. It repeats after 4,095 channels.
//! - The value 0 is no object's handle ([`Handle::NONE`]): tag 0 is never given out.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first number of an lwsocket [MP 4.1.1].
pub const FIRST_LWSOCKET: u32 = 1 << 30;

const TAG_BITS: u32 = 12;
const GENERATION_BITS: u32 = 21;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
pub(crate) const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

const _: () = assert!(TAG_BITS + GENERATION_BITS + 31 == 64);

/// Identifies one socket, file, timer or pipe inside one channel. Plain data: copy it, store it,
/// compare it. Using it after `unregister`, or in another channel, returns an error.
///
/// # Examples
/// ```
/// use megapipe::{Channel, Config, Handle, Misuse};
/// use std::time::Duration;
///
/// let mut channel = Channel::create(Config::default())?;
/// let timer = channel.timer(Duration::from_secs(1), None, 0)?;
/// assert_eq!(Handle::from_bits(timer.to_bits()), timer);
/// channel.unregister(timer)?;
/// assert_eq!(channel.set_cookie(timer, 1), Err(Misuse::StaleHandle));
/// assert_eq!(channel.set_cookie(Handle::NONE, 1), Err(Misuse::StaleHandle));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

impl Handle {
    /// The handle of completions that belong to no object (`Event::Wake`).
    pub const NONE: Self = Self(0);

    #[inline]
    pub(crate) const fn new(number: u32, generation: u32, tag: ChannelTag) -> Self {
        Self(
            (number as u64) << (TAG_BITS + GENERATION_BITS)
                | ((generation & GENERATION_MASK) as u64) << TAG_BITS
                | tag.0 as u64,
        )
    }

    /// No handle, with the generation of a free slot's lwsocket number.
    #[inline]
    pub(crate) const fn free(generation: u32) -> Self {
        Self(((generation & GENERATION_MASK) as u64) << TAG_BITS)
    }

    /// The same number in the next generation.
    #[inline]
    pub(crate) const fn next_generation(self) -> Self {
        let generation = self.generation().wrapping_add(1) & GENERATION_MASK;
        let others = self.0 & !((GENERATION_MASK as u64) << TAG_BITS);
        Self(others | (generation as u64) << TAG_BITS)
    }

    /// Returns the handle's number: 2^30 or more for an lwsocket, the descriptor's number
    /// otherwise.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u32 {
        (self.0 >> (TAG_BITS + GENERATION_BITS)) as u32
    }

    /// Returns whether this is an lwsocket, which exists only inside its channel.
    #[must_use]
    #[inline]
    pub const fn is_lwsocket(self) -> bool {
        self.number() >= FIRST_LWSOCKET
    }

    /// Returns the bits, for foreign interfaces and tables.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the handle of bits. Any value is safe: a wrong one is a [`crate::Misuse`] when used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The handle without its channel, in the low bits.
    #[inline]
    pub(crate) const fn in_channel(self) -> u64 {
        self.0 >> TAG_BITS
    }

    /// The handle of [`Handle::in_channel`] in the channel of `sibling`.
    #[inline]
    pub(crate) const fn beside(sibling: Self, in_channel: u64) -> Self {
        Self::of_channel(ChannelTag(sibling.channel_tag()), in_channel)
    }

    /// The handle of [`Handle::in_channel`] in the channel with a tag.
    #[inline]
    pub(crate) const fn of_channel(tag: ChannelTag, in_channel: u64) -> Self {
        Self(in_channel << TAG_BITS | tag.0 as u64)
    }

    /// Returns the tag that distinguishes the channels of a process; 0 for [`Handle::NONE`] only.
    #[must_use]
    #[inline]
    pub const fn channel_tag(self) -> u16 {
        (self.0 & TAG_MASK) as u16
    }

    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        ((self.0 >> TAG_BITS) as u32) & GENERATION_MASK
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("Handle(none)");
        }
        let (kind, number) = if self.is_lwsocket() {
            ("lw", self.number() - FIRST_LWSOCKET)
        } else {
            ("fd", self.number())
        };
        write!(f, "Handle({kind}{number}.{} in channel {})", self.generation(), self.channel_tag())
    }
}

/// Tells the channels of one process apart inside handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChannelTag(u16);

impl ChannelTag {
    /// The next tag in turn, 1..=4095.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the counter orders nothing but itself.
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % (TAG_MASK as u32);
        Self(number as u16 + 1)
    }

    pub(crate) const fn value(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_fields_do_not_disturb_each_other() {
        let tag = ChannelTag(4095);
        for (number, generation) in [(0, 0), (FIRST_LWSOCKET, GENERATION_MASK), (0x7fff_ffff, 1)] {
            let handle = Handle::new(number, generation, tag);
            assert_eq!(handle.number(), number);
            assert_eq!(handle.generation(), generation);
            assert_eq!(handle.channel_tag(), 4095);
            assert_eq!(Handle::from_bits(handle.to_bits()), handle);
            assert_eq!(handle.is_lwsocket(), number >= FIRST_LWSOCKET);
        }
    }

    #[test]
    fn the_next_generation_changes_nothing_else() {
        let tag = ChannelTag(7);
        for (generation, next) in [(0, 1), (GENERATION_MASK, 0)] {
            let handle = Handle::new(FIRST_LWSOCKET + 3, generation, tag);
            assert_eq!(handle.next_generation(), Handle::new(FIRST_LWSOCKET + 3, next, tag));
            let free = Handle::free(generation);
            assert_eq!((free.generation(), free.number(), free.channel_tag()), (generation, 0, 0));
        }
    }

    #[test]
    fn no_channel_ever_gives_out_the_empty_handle() {
        for _ in 0..5000 {
            let tag = ChannelTag::next();
            assert_ne!(Handle::new(0, 0, tag), Handle::NONE);
        }
    }
}
