//! Bounds of the lines that clients can make a daemon write: a process that is refused again and
//! again must not fill a disk.
//!
//! Pure: (now) in, whether to write out.

use std::time::Instant;

use crate::limits::{CLIENT_LINES_PER_PERIOD, CLIENT_LINES_PERIOD};

/// Counts the lines of a period.
#[derive(Debug)]
pub(super) struct LinePace {
    began: Instant,
    written: u32,
    left_out: u64,
}

impl LinePace {
    /// A period that begins now.
    pub(super) const fn new(now: Instant) -> Self {
        Self { began: now, written: 0, left_out: 0 }
    }

    /// One more line is to be written. `Err`: it is left out. `Ok`: how many were left out since
    /// the last one that was written.
    pub(super) fn admit(&mut self, now: Instant) -> Result<u64, ()> {
        if now.saturating_duration_since(self.began) >= CLIENT_LINES_PERIOD {
            (self.began, self.written) = (now, 0);
        }
        if self.written == CLIENT_LINES_PER_PERIOD {
            self.left_out += 1;
            return Err(());
        }
        self.written += 1;
        Ok(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_of_a_period_are_bounded_and_the_others_are_counted() {
        let start = Instant::now();
        let mut pace = LinePace::new(start);
        for _ in 0..CLIENT_LINES_PER_PERIOD {
            assert_eq!(pace.admit(start), Ok(0));
        }
        let late = start + CLIENT_LINES_PERIOD - Duration::from_nanos(1);
        assert_eq!([pace.admit(start), pace.admit(late)], [Err(()), Err(())]);
        assert_eq!(pace.admit(start + CLIENT_LINES_PERIOD), Ok(2));
        assert_eq!(pace.admit(start + CLIENT_LINES_PERIOD), Ok(0));
        // A clock that steps back begins no period.
        assert_eq!(pace.admit(start), Ok(0));
    }
}
