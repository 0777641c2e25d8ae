//! Fast path of streams: a read of all that came, and a write that goes out at once. Every other
//! call is left to the general path, with nothing done.
//!
//! Read first: `stream.rs`.

use super::StreamSocket;
use crate::gather::{ReceivePieces, SendPieces};
use crate::limits::{PIECE_BYTES_MIN, PIECES_UNSENT_MAX};
use crate::readiness::ConnectProgress;
use crate::transport::StreamTransport;

impl StreamSocket {
    /// What most reads do: all that came is one buffer, and the caller has room for it in one
    /// piece. How many bytes that were; `None`: it is not so.
    #[inline]
    pub(crate) fn take_whole(&mut self, to: &mut ReceivePieces<'_, '_>) -> Option<usize> {
        let len = self.unread();
        // Where more may wait below, the general path looks.
        let is_plain = !self.may_be_behind() && self.mark.is_none();
        if !is_plain || len < self.options.low_water() {
            return None;
        }
        let room = to.only_piece()?.get_mut(..len)?;
        room.copy_from_slice(&self.inbox.take_only()?);
        Some(len)
    }

    /// A write without flags has nothing to look at but the bytes.
    #[inline]
    fn takes_plain_bytes(&self) -> bool {
        matches!(self.progress, ConnectProgress::Connected)
            && self.error.is_none()
            && self.options.notsent_lowat == 0
            && !(self.shut.send
                || self.congested
                || self.more
                || self.owes_mark
                || self.owes_record_end)
    }

    /// What most calls of write(2) do: a connection that is open and not full takes one piece of
    /// memory. `None`: the call is another one, or it failed, and nothing was done.
    #[inline]
    pub(crate) fn write_whole<T: StreamTransport>(
        &mut self,
        from: &SendPieces<'_>,
        transport: &mut T,
    ) -> Option<usize> {
        let bytes = from.only_piece()?;
        let is_short = bytes.len() <= PIECE_BYTES_MIN;
        let fits = is_short || bytes.len() <= self.piece_bytes();
        if !fits || !self.takes_plain_bytes() || bytes.is_empty() {
            return None;
        }
        let most = match transport.is_local() {
            true => 1,
            false => PIECES_UNSENT_MAX * self.piece_bytes(),
        };
        let unsent = transport.write_copied(self.handle, bytes)?;
        if unsent >= most {
            self.congested = transport.report_last_write(self.handle).unwrap_or(false);
        }
        Some(bytes.len())
    }
}
