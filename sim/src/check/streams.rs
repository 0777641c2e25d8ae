//! Every connection's bytes, from both sides.
//!
//! A connection's number decides its bytes ([`crate::pattern::Pattern`]), how many there are in
//! each direction, and who closes first; the client sends the number first, so that the server
//! knows all of it too.

use megapipe_stack::CloseReason;

use super::Violation;
use crate::pattern::{Pattern, URGENT_EVERY};

/// Bytes before the client's pattern: the connection's number, and both lengths.
pub(crate) const HEADER_BYTES: usize = 24;

/// What a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckedStream {
    pub(crate) number: u64,
    /// Pattern bytes from the client, after the header.
    pub(crate) request_bytes: u64,
    /// Pattern bytes from the server.
    pub(crate) response_bytes: u64,
}

impl CheckedStream {
    pub(crate) fn header(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.number.to_be_bytes());
        header[8..16].copy_from_slice(&self.request_bytes.to_be_bytes());
        header[16..].copy_from_slice(&self.response_bytes.to_be_bytes());
        header
    }

    pub(crate) fn of_header(header: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            u64::from_be_bytes(<[u8; 8]>::try_from(&header[at..at + 8]).unwrap_or_default())
        };
        Self { number: word(0), request_bytes: word(8), response_bytes: word(16) }
    }

    /// Either end may break it at any moment, where its program does such things.
    pub(crate) const fn is_rough(self) -> bool {
        self.number % 8 == 3
    }

    /// Some of its bytes are sent as urgent ones, where its programs know of them.
    pub(crate) const fn is_urgent(self) -> bool {
        self.number % 8 > 5
    }

    /// What the client sends after the header, and what the server sends.
    pub(crate) fn patterns(self) -> (Pattern, Pattern) {
        (Pattern::new(self.number), Pattern::new(!self.number))
    }
}

/// The receiving direction of one end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receiver {
    stream: u64,
    pattern: Pattern,
    expected: u64,
    pub(crate) received: u64,
    pub(crate) ended: bool,
    /// Urgent bytes may be missing: they are read out of the band.
    pub(crate) may_miss_urgent: bool,
}

impl Receiver {
    pub(crate) const fn new(stream: u64, pattern: Pattern, expected: u64) -> Self {
        Self { stream, pattern, expected, received: 0, ended: false, may_miss_urgent: false }
    }

    pub(crate) fn on_bytes(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let Self { stream, .. } = *self;
        if self.may_miss_urgent {
            bytes.iter().try_for_each(|byte| self.on_byte(*byte))?;
            return self.check_length();
        }
        if let Some(offset) = self.pattern.mismatch(self.received, bytes) {
            return Err(Violation::WrongByte { stream, offset });
        }
        self.received += bytes.len() as u64;
        self.check_length()
    }

    /// One byte, which may stand behind an urgent one that does not come.
    fn on_byte(&mut self, byte: u8) -> Result<(), Violation> {
        let Self { stream, pattern, expected, received: offset, .. } = *self;
        let is_next = |offset| pattern.mismatch(offset, &[byte]).is_none();
        let skips = pattern.is_urgent(offset, expected) && !is_next(offset);
        self.received += u64::from(skips) + 1;
        if is_next(self.received - 1) {
            Ok(())
        } else {
            Err(Violation::WrongByte { stream, offset })
        }
    }

    /// A byte was read out of the band.
    pub(crate) fn on_urgent(&self, byte: u8) -> Result<(), Violation> {
        let Self { stream, pattern, expected, received: offset, .. } = *self;
        // The mark may be ahead, or have been passed by the last read.
        let near = offset.saturating_sub(URGENT_EVERY * 2)..expected;
        let mut marks = near.filter(|at| pattern.is_urgent(*at, expected));
        let is_known = marks.any(|at| pattern.mismatch(at, &[byte]).is_none());
        if is_known { Ok(()) } else { Err(Violation::WrongByte { stream, offset }) }
    }

    const fn check_length(&self) -> Result<(), Violation> {
        let Self { stream, .. } = *self;
        if self.received > self.expected || self.ended {
            return Err(Violation::TooMuch { stream });
        }
        Ok(())
    }

    pub(crate) fn on_end(&mut self) -> Result<(), Violation> {
        self.ended = true;
        let Self { stream, received, expected, .. } = *self;
        if received < expected {
            return Err(Violation::EndedEarly { stream, received, expected });
        }
        Ok(())
    }

    /// The connection is over on this side. `may_fail`: a host may have died or reset it.
    pub(crate) fn on_closed(&self, reason: CloseReason, may_fail: bool) -> Result<(), Violation> {
        let Self { stream, received, expected, .. } = *self;
        if reason == CloseReason::Finished && received < expected {
            return Err(Violation::EndedEarly { stream, received, expected });
        }
        if reason != CloseReason::Finished && !may_fail {
            return Err(Violation::ClosedBecause { stream, reason });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_header_is_complete() {
        let stream = CheckedStream { number: 1, request_bytes: 1 << 40, response_bytes: 3 };
        assert_eq!(CheckedStream::of_header(&stream.header()), stream);
    }

    #[test]
    fn bytes_that_are_wrong_missing_or_too_many_are_seen() {
        let pattern = Pattern::new(9);
        let mut receiver = Receiver::new(9, pattern, 10);
        assert_eq!(receiver.on_bytes(&pattern.bytes(0, 6)), Ok(()));
        let mut early = receiver;
        assert!(matches!(early.on_end(), Err(Violation::EndedEarly { received: 6, .. })));
        let wrong = receiver.on_bytes(&pattern.bytes(0, 4));
        assert!(matches!(wrong, Err(Violation::WrongByte { .. })));
        assert_eq!(receiver.on_bytes(&pattern.bytes(6, 4)), Ok(()));
        assert_eq!(receiver.on_end(), Ok(()));
        assert_eq!(receiver.on_closed(CloseReason::Finished, false), Ok(()));
        assert!(receiver.on_closed(CloseReason::TimedOut, false).is_err());
        assert!(receiver.on_closed(CloseReason::TimedOut, true).is_ok());
        assert!(receiver.on_bytes(&pattern.bytes(10, 1)).is_err());
    }
}
