//! Bounds of the handshakes in progress: in number, of one user, and in time.
//!
//! Pure: what the daemon does at its socket is in `control_server.rs`.
//!
//! Invariants
//! - At most [`HANDSHAKES_MAX`] are in progress, at most [`HANDSHAKES_OF_USER_MAX`] of one user.
//! - None is in progress for longer than [`HANDSHAKE_TIME`].

use std::time::{Duration, Instant};

use crate::limits::{HANDSHAKE_TIME, HANDSHAKES_MAX, HANDSHAKES_OF_USER_MAX};

/// A limit of handshakes that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeLimit {
    #[error("{HANDSHAKES_MAX} handshakes are in progress, which is the limit")]
    Total,
    #[error("{HANDSHAKES_OF_USER_MAX} handshakes of this user are in progress, which is the limit")]
    User,
}

/// The handshakes in progress: the owner's key of each, with its user and its deadline, oldest
/// first.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Vec<(u64, u32, Instant)>);

impl Handshakes {
    /// Begins a handshake of a user.
    ///
    /// # Errors
    /// [`HandshakeLimit`].
    pub(super) fn begin(&mut self, key: u64, uid: u32, now: Instant) -> Result<(), HandshakeLimit> {
        if self.0.len() >= HANDSHAKES_MAX {
            return Err(HandshakeLimit::Total);
        }
        if self.0.iter().filter(|(_, of, _)| *of == uid).count() >= HANDSHAKES_OF_USER_MAX {
            return Err(HandshakeLimit::User);
        }
        self.0.push((key, uid, now + HANDSHAKE_TIME));
        Ok(())
    }

    /// A handshake is over.
    pub(super) fn end(&mut self, key: u64) {
        self.0.retain(|(there, ..)| *there != key);
    }

    /// Removes a handshake whose time is over.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<u64> {
        let (key, _, deadline) = *self.0.first()?;
        (deadline <= now).then(|| {
            self.0.remove(0);
            key
        })
    }

    /// Time until the next one expires. `None`: none is in progress.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        self.0.first().map(|(_, _, deadline)| deadline.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_bounded_in_number_and_time() {
        let (mut handshakes, start) = (Handshakes::default(), Instant::now());
        for key in 0..HANDSHAKES_OF_USER_MAX as u64 {
            assert_eq!(handshakes.begin(key, 1_000, start), Ok(()));
        }
        assert_eq!(handshakes.begin(99, 1_000, start), Err(HandshakeLimit::User));
        let later = start + HANDSHAKE_TIME / 2;
        for key in HANDSHAKES_OF_USER_MAX as u64..HANDSHAKES_MAX as u64 {
            assert_eq!(handshakes.begin(key, key as u32, later), Ok(()));
        }
        assert_eq!(handshakes.begin(99, 7, later), Err(HandshakeLimit::Total));
        handshakes.end(3);
        assert_eq!(handshakes.begin(100, 1_000, later), Ok(()));
        assert_eq!(handshakes.patience(later), Some(HANDSHAKE_TIME / 2));
        assert_eq!(handshakes.next_expired(later), None);
        let end = start + HANDSHAKE_TIME;
        let expired: Vec<_> = std::iter::from_fn(|| handshakes.next_expired(end)).collect();
        assert_eq!(expired.len(), HANDSHAKES_OF_USER_MAX - 1);
        assert!(!expired.contains(&3));
        let all = std::iter::from_fn(|| handshakes.next_expired(end + HANDSHAKE_TIME)).count();
        assert_eq!(all, HANDSHAKES_MAX - expired.len());
        assert_eq!(handshakes.patience(end), None);
    }
}
