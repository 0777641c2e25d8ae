//! Which signals a call lets in while it waits: the masks of epoll_pwait(2), ppoll(2) and
//! pselect(2).
//!
//! Read first: signal(7), sigprocmask(2), epoll_wait(2) on `epoll_pwait`.
//!
//! A program that blocks a signal, looks whether its handler has run, and then waits with a mask
//! that lets the signal in, misses none: the kernel changes the mask and sleeps in one step. So a
//! call with a mask sleeps in ppoll(2) with that mask, whatever it sleeps on otherwise, and nowhere
//! else is the mask of a thread changed.

/// The signals that are blocked while a call waits, instead of those that the thread blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SignalMask(u64);

impl SignalMask {
    /// No signal is blocked.
    pub const NONE: Self = Self(0);
    /// All are, but for those that cannot be.
    pub const ALL: Self = Self(u64::MAX);

    /// A mask as the kernel has it: bit 0 is signal 1.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As the kernel has it.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The same with one signal more, by its number; a number that is no signal's changes nothing.
    #[must_use]
    pub const fn with(self, signal: i32) -> Self {
        match signal {
            1..=64 => Self(self.0 | 1 << (signal - 1)),
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_one_is_bit_zero() {
        assert_eq!(SignalMask::NONE.with(1).with(64).bits(), 1 | 1 << 63);
        assert_eq!(SignalMask::NONE.with(0).with(65).with(-1), SignalMask::NONE);
        assert_eq!(SignalMask::from_bits(1 << (libc::SIGUSR1 - 1)), {
            SignalMask::NONE.with(libc::SIGUSR1)
        });
    }
}
