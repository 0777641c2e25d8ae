//! Urgent data as programs of Linux know it: one byte, out of the band.
//!
//! Read first: tcp(7) on "out-of-band data", RFC 6093 (why there is no such thing in TCP),
//! socket(7) on SO_OOBINLINE and sockatmark(3).
//!
//! The stack says where the urgent bytes end. The last of them is *the* urgent byte; its place is
//! the *mark*. A read stops before the mark; the next one begins behind it. A call that reads the
//! byte by MSG_OOB meanwhile gets it; no call gets it later. With SO_OOBINLINE the byte is one of
//! the stream's, and only the stop is left. Since our own stack tells of marks when they come,
//! while bytes wait here until they are read, a mark is kept as the distance to it.
//!
//! Invariant: `ahead` is counted from the next byte that the program reads, so what is read is
//! taken off, and a mark that was read past is gone.

use super::StreamSocket;
use crate::error::Error;
use crate::flags::{Events, MsgFlags};
use crate::gather::ReceivePieces;
use crate::readiness::ConnectProgress;
use crate::transport::StreamTransport;

/// Where the urgent byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UrgentMark {
    /// Bytes of the stream before it.
    pub(crate) ahead: usize,
    /// A call with MSG_OOB has got it.
    pub(crate) is_taken: bool,
}

/// What a read takes near a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UrgentStep {
    /// Bytes to be passed over first: the urgent one.
    pub(crate) skip: usize,
    /// Bytes at most.
    pub(crate) most: usize,
    /// The read goes past the mark.
    pub(crate) passes: bool,
}

impl UrgentMark {
    /// A call that has `filled` bytes and wants `wanted` more; so many wait, `unread`.
    pub(crate) fn step(
        self,
        filled: usize,
        wanted: usize,
        unread: usize,
        inline: bool,
    ) -> UrgentStep {
        if self.ahead > 0 {
            return UrgentStep { skip: 0, most: wanted.min(self.ahead), passes: false };
        }
        // At the mark: a call that has something stops, and the byte itself has to be here.
        if filled > 0 || unread == 0 {
            return UrgentStep { skip: 0, most: 0, passes: false };
        }
        UrgentStep { skip: usize::from(!inline), most: wanted, passes: true }
    }

    /// The byte has come and was not read.
    pub(crate) const fn is_waiting(self, unread: usize) -> bool {
        !self.is_taken && unread > self.ahead
    }

    /// Bytes that FIONREAD tells, where `unread` wait: those before the mark.
    pub(crate) const fn readable(self, unread: usize, inline: bool) -> usize {
        if inline || self.ahead >= unread { unread } else { self.ahead }
    }
}

impl StreamSocket {
    /// What is urgent comes among the others.
    pub(crate) const fn is_inline(&self) -> bool {
        self.options.inline_urgent
    }

    /// Bytes that FIONREAD tells, where so many wait beneath.
    pub(crate) fn readable(&self, beneath: usize) -> usize {
        let unread = self.unread() + beneath;
        self.mark.map_or(unread, |mark| mark.readable(unread, self.is_inline()))
    }

    /// The peer has marked the last of `bytes` bytes, counted from what comes next.
    #[cold]
    pub(crate) fn on_urgent(&mut self, bytes: u32) -> Events {
        // The byte of a mark that the program stands at is passed over, as in Linux; that of one
        // ahead is an ordinary one from now on.
        let stands_at = self.mark.is_some_and(|mark| mark.ahead == 0);
        if stands_at && !self.is_inline() && self.unread() > 0 {
            self.skip(1);
        }
        let ahead = self.unread() + (bytes as usize).saturating_sub(1);
        self.mark = Some(UrgentMark { ahead, is_taken: false });
        Events::ARRIVED
    }

    /// recv(2) with MSG_OOB: never waits.
    ///
    /// # Errors
    /// As recv(2).
    #[cold]
    pub(crate) fn recv_urgent<T: StreamTransport>(
        &mut self,
        to: &mut ReceivePieces<'_, '_>,
        flags: MsgFlags,
        transport: &T,
    ) -> Result<usize, Error> {
        if !transport.is_local() {
            // The channel reads past marks, ahead of the program; the kernel forgets the byte then.
            return Err(Error::NotSupported);
        }
        let mark = self.mark.filter(|mark| !mark.is_taken && !self.is_inline());
        let mark = mark.ok_or(Error::InvalidArgument)?;
        let Some(byte) = self.inbox.byte_at(mark.ahead) else {
            let is_over = self.shut.receive || matches!(self.progress, ConnectProgress::Closed);
            return if is_over { Ok(0) } else { Err(Error::WouldBlock) };
        };
        if !flags.contains(MsgFlags::PEEK) {
            self.mark = Some(UrgentMark { is_taken: true, ..mark });
        }
        to.put(&[byte], flags.contains(MsgFlags::TRUNC));
        Ok(to.filled())
    }

    /// Whether the next byte is the urgent one (SIOCATMARK).
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`] on the kernel.
    pub(crate) fn is_at_mark<T: StreamTransport>(&self, transport: &T) -> Result<bool, Error> {
        if !transport.is_local() {
            return Err(Error::NoSuchRequest);
        }
        Ok(self.mark.is_some_and(|mark| mark.ahead == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: UrgentMark = UrgentMark { ahead: 3, is_taken: false };
    const HERE: UrgentMark = UrgentMark { ahead: 0, is_taken: false };

    #[test]
    fn a_read_stops_before_the_mark_and_the_next_one_begins_behind_it() {
        assert_eq!(AHEAD.step(0, 10, 5, false), UrgentStep { skip: 0, most: 3, passes: false });
        assert_eq!(AHEAD.step(0, 2, 5, false), UrgentStep { skip: 0, most: 2, passes: false });
        assert_eq!(HERE.step(3, 7, 2, false), UrgentStep { skip: 0, most: 0, passes: false });
        assert_eq!(HERE.step(0, 7, 2, false), UrgentStep { skip: 1, most: 7, passes: true });
        assert_eq!(HERE.step(0, 7, 2, true), UrgentStep { skip: 0, most: 7, passes: true });
        assert_eq!(HERE.step(0, 7, 0, false), UrgentStep { skip: 0, most: 0, passes: false });
    }

    #[test]
    fn the_byte_waits_from_when_it_comes_until_it_is_taken() {
        assert!(!AHEAD.is_waiting(3));
        assert!(AHEAD.is_waiting(4));
        assert!(!UrgentMark { is_taken: true, ..AHEAD }.is_waiting(4));
        assert_eq!(AHEAD.readable(3, false), 3);
        assert_eq!(AHEAD.readable(9, false), 3);
        assert_eq!(AHEAD.readable(9, true), 9);
    }
}
