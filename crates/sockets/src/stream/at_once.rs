//! What most messages take: a read of all that came, and a write that goes out at once. Whatever is
//! not so plain is left to the general way, with nothing done.
//!
//! Read first: `stream.rs`.

use super::Stream;
use crate::gather::{Gather, Scatter};
use crate::limits::{PIECE_BYTES_MIN, PIECES_UNSENT_MAX};
use crate::readiness::Progress;
use crate::sockets::{Kind, Sockets};

impl Stream {
    /// What most reads do: all that came is one buffer, and the caller has room for it in one
    /// piece. How many bytes that were; `None`: it is not so.
    #[inline]
    fn take_whole(&mut self, to: &mut Scatter<'_, '_>) -> Option<usize> {
        let len = self.unread();
        // Where more may wait beneath, `take_all` looks.
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
        matches!(self.progress, Progress::Connected)
            && self.error.is_none()
            && !(self.shut.send
                || self.congested
                || self.more
                || self.owes_mark
                || self.owes_record_end)
    }
}

impl Sockets {
    /// What most calls of read(2) do, and nothing else; `None`: the call is another one.
    #[inline]
    pub(crate) fn read_at_once(&mut self, object: u32, to: &mut Scatter<'_, '_>) -> Option<usize> {
        let turns = self.turns();
        let Self { objects, epolls, .. } = self;
        let entry = objects.get_mut(object as usize)?;
        let Kind::Stream(stream) = &mut entry.kind else { return None };
        let len = stream.take_whole(to)?;
        epolls.settle(entry.watchers, stream.readiness());
        entry.served_in = turns;
        Some(len)
    }

    /// What most calls of write(2) do: a connection that is open and not full takes one piece of
    /// memory. `None`: the call is another one, or it failed, and nothing was done.
    #[inline]
    pub(crate) fn write_at_once(&mut self, object: u32, from: &Gather<'_>) -> Option<usize> {
        let Self { objects, channel, is_local, .. } = self;
        let Kind::Stream(stream) = &mut objects.get_mut(object as usize)?.kind else {
            return None;
        };
        let bytes = from.only_piece()?;
        let is_short = bytes.len() <= PIECE_BYTES_MIN;
        let fits = is_short || bytes.len() <= stream.piece_bytes();
        if !fits || !stream.takes_plain_bytes() || bytes.is_empty() {
            return None;
        }
        let most = match *is_local {
            true => 1,
            false => PIECES_UNSENT_MAX * stream.piece_bytes(),
        };
        let unsent = channel.write_copied(stream.handle, bytes).ok()?;
        if unsent >= most {
            stream.congested = channel.report_last_write(stream.handle).unwrap_or(false);
        }
        Some(bytes.len())
    }
}
