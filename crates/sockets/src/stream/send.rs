//! Writes to a stream: send(2) and its kin, and TCP_NOTSENT_LOWAT, by which a stream takes no more
//! while too much of it has not left.
//!
//! Read first: `stream.rs`; send(2); ip-sysctl.rst of the kernel on tcp_notsent_lowat;
//! `sk_stream_memory_free` and `sk_stream_is_writeable`.
//!
//! As in Linux, a send looks at the mark when it begins a packet buffer, and the socket is ready
//! for writing while less than half of the mark is unsent. On the kernel the socket has the mark,
//! and at most one piece waits before it.

use megapipe::{ConnOption, Handle};

use super::StreamSocket;
use super::connect::SynData;
use crate::error::Error;
use crate::flags::{Events, MsgFlags};
use crate::gather::SendPieces;
use crate::limits::{PIECE_BYTES, PIECE_BYTES_MIN, PIECES_PER_SEND_BUFFER, PIECES_UNSENT_MAX};
use crate::readiness::{ConnectProgress, Shut};
use crate::transport::StreamTransport;

/// What one step of a send did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendStep {
    /// The call is over, with what it has written.
    Done,
    /// Below the mark some was written: once the stack has sent, there may be room again
    /// ([`StreamSocket::look_at_mark`]).
    Pushed,
    /// There is no room.
    Full,
    /// A SYN left with the first bytes, and the rest waits for the handshake.
    Connects,
}

impl StreamSocket {
    /// Writes what there is room for.
    ///
    /// # Errors
    /// As send(2), if nothing was written.
    #[inline]
    pub(crate) fn send<T: StreamTransport>(
        &mut self,
        from: &mut SendPieces<'_>,
        flags: MsgFlags,
        transport: &mut T,
    ) -> Result<SendStep, Error> {
        if self.shut == Shut::BOTH {
            self.look_for_error(transport);
        }
        if let Some(error) = self.reason_for_end() {
            return self.end_send(error, from.taken(), transport);
        }
        let mut otherwise = SendStep::Full;
        if self.syn_data == SynData::Awaited {
            otherwise = SendStep::Connects;
            self.release_syn(transport, from);
        }
        if !matches!(self.progress, ConnectProgress::Connected) {
            return Ok(otherwise);
        }
        let has_pushed = match self.push(transport, from, flags.contains(MsgFlags::MORE)) {
            // What was written before stays written, and the next call returns the reason.
            Err(_) if from.taken() > 0 => return Ok(SendStep::Done),
            pushed => pushed?,
        };
        self.owe_marks(from, flags, transport);
        if has_pushed && self.options.notsent_lowat > 0 && transport.is_local() {
            return Ok(SendStep::Pushed);
        }
        Ok(if from.left() == 0 { SendStep::Done } else { otherwise })
    }

    /// Why nothing can be written any more; `None`: something can, now or later.
    fn reason_for_end(&mut self) -> Option<Error> {
        let is_open = !self.shut.send && !matches!(self.progress, ConnectProgress::Closed);
        if is_open && self.error.is_none() {
            return None;
        }
        Some(self.error.take().unwrap_or(Error::BrokenPipe))
    }

    /// An error ends a send after `sent` bytes.
    #[cold]
    fn end_send<T: StreamTransport>(
        &mut self,
        error: Error,
        sent: usize,
        transport: &mut T,
    ) -> Result<SendStep, Error> {
        if sent == 0 {
            return Err(error);
        }
        if self.syn_data == SynData::Sent {
            // A send that connects returns how that went, and leaves a fresh socket.
            self.disconnect(transport);
            return Err(error);
        }
        // The bytes sent are returned first; the next call returns the error.
        self.error = (error != Error::BrokenPipe).then_some(error);
        Ok(SendStep::Done)
    }

    /// Hands bytes to the channel, as many as there is room for. Returns whether there were any.
    fn push<T: StreamTransport>(
        &mut self,
        transport: &mut T,
        from: &mut SendPieces<'_>,
        more: bool,
    ) -> Result<bool, Error> {
        let (left, is_local) = (from.left(), transport.is_local());
        // Our own stack takes what it has room for at once: what is left over is too much. The
        // kernel is asked in batches, so that something is always on its way.
        let piece = self.piece_bytes();
        let most = if is_local { 1 } else { self.unsent_max() };
        if more && is_local {
            // Each time: an acknowledgment lets go of what was held, and ends the hold with it. A
            // connection that is over reports that itself. (The kernel need not know: what is
            // submitted together goes together.)
            transport.set_option(self.handle, ConnOption::More(true));
            self.more = true;
        }
        let pushed = match is_local && self.options.notsent_lowat > 0 {
            true => self.push_below_mark(transport, from),
            false => self.push_pieces(transport, from, (piece, most)),
        };
        if self.more && !more {
            // After the last bytes: a stack on another thread sends at once what it held.
            transport.set_option(self.handle, ConnOption::More(false));
            self.more = false;
        }
        pushed.map(|_| from.left() < left)
    }

    /// Writes pieces of so many bytes, until `most` bytes are not sent.
    #[inline]
    fn push_pieces<T: StreamTransport>(
        &mut self,
        transport: &mut T,
        from: &mut SendPieces<'_>,
        (piece, most): (usize, usize),
    ) -> Result<(), Error> {
        while from.left() > 0 && !self.congested {
            transport.write(self.handle, from, from.left().min(piece))?;
            if transport.unsent_bytes(self.handle)? >= most {
                self.congested = transport.report_last_write(self.handle)?;
            }
        }
        Ok(())
    }

    /// What was written is urgent, or ends a record.
    #[inline]
    fn owe_marks<T: StreamTransport>(
        &mut self,
        from: &SendPieces<'_>,
        flags: MsgFlags,
        transport: &mut T,
    ) {
        let is_urgent = flags.contains(MsgFlags::OOB);
        let is_record = flags.contains(MsgFlags::EOR) && transport.is_local() && from.left() == 0;
        // A call that has written nothing must not mark the bytes of an earlier one.
        if (is_urgent || is_record) && from.taken() > 0 {
            self.owes_mark |= is_urgent;
            self.owes_record_end |= is_record;
            self.mark_written(transport);
        }
    }

    /// Tells our own stack that what was written is urgent, or ends a record, as soon as it has
    /// all of it. Until then nothing more is written.
    #[inline]
    pub(super) fn mark_written<T: StreamTransport>(&mut self, transport: &mut T) {
        let owes = self.owes_mark || self.owes_record_end;
        if owes && transport.unsent_bytes(self.handle).is_ok_and(|unsent| unsent == 0) {
            let owed = [
                (&mut self.owes_mark, ConnOption::Urgent),
                (&mut self.owes_record_end, ConnOption::EndOfRecord),
            ];
            for (owes, option) in owed {
                if std::mem::take(owes) {
                    // A connection that is over reports that itself.
                    transport.set_option(self.handle, option);
                }
            }
        }
    }

    /// Bytes that the peer has not acknowledged (SIOCOUTQ).
    pub(crate) fn unacknowledged<T: StreamTransport>(&self, transport: &mut T) -> usize {
        self.queued(transport, T::queued_in_stack)
    }

    /// Bytes that were not sent (SIOCOUTQNSD).
    pub(crate) fn unsent<T: StreamTransport>(&self, transport: &mut T) -> usize {
        self.queued(transport, T::unsent_in_stack)
    }

    /// Bytes in the channel, and those that `beneath` counts.
    fn queued<T: StreamTransport>(
        &self,
        transport: &mut T,
        beneath: fn(&mut T, Handle) -> usize,
    ) -> usize {
        let in_channel = transport.unsent_bytes(self.handle).unwrap_or_default();
        match self.progress {
            // What Fast Open sends with a SYN is not counted before the handshake.
            ConnectProgress::Connecting => 0,
            ConnectProgress::Closed => in_channel,
            ConnectProgress::Connected => in_channel + beneath(transport, self.handle),
        }
    }
}

/// Pieces, and the mark of TCP_NOTSENT_LOWAT.
impl StreamSocket {
    /// Bytes of one write to the channel at most.
    pub(super) fn piece_bytes(&self) -> usize {
        let piece = self.send_buffer_piece();
        match self.options.notsent_lowat {
            0 => piece,
            // What the kernel has not taken is unsent too.
            mark => piece.min(mark as usize).max(PIECE_BYTES_MIN),
        }
    }

    fn send_buffer_piece(&self) -> usize {
        match self.options.send_buffer {
            0 => PIECE_BYTES,
            // Twice what the program asked for, as Linux has it.
            bytes => (bytes.unsigned_abs() as usize / 2 / PIECES_PER_SEND_BUFFER)
                .clamp(PIECE_BYTES_MIN, PIECE_BYTES),
        }
    }

    /// Bytes that the kernel has not taken yet, from which on the connection is full.
    #[inline]
    fn unsent_max(&self) -> usize {
        match self.options.notsent_lowat {
            0 => PIECES_UNSENT_MAX * self.piece_bytes(),
            _ => 1,
        }
    }

    /// Hands over the rest of a packet buffer, or a whole one if the mark lets one begin.
    #[cold]
    fn push_below_mark<T: StreamTransport>(
        &mut self,
        transport: &mut T,
        from: &mut SendPieces<'_>,
    ) -> Result<(), Error> {
        if transport.unsent_bytes(self.handle)? > 0 {
            // The send buffer is full.
            self.congested = transport.report_last_write(self.handle)?;
            return Ok(());
        }
        // A connection that is over reports that itself.
        let Some(room) = transport.room_below(self.handle, self.options.notsent_lowat) else {
            return Ok(());
        };
        let len = from.left().min(room);
        if len > 0 {
            transport.write(self.handle, from, len)?;
        }
        self.watch_mark(transport);
        Ok(())
    }

    /// Decides by the mark whether the stream has room; if it has none, a completion follows.
    fn watch_mark<T: StreamTransport>(&mut self, transport: &mut T) {
        let unsent = transport.unsent_bytes(self.handle).unwrap_or_default();
        if unsent > 0 {
            self.congested = transport.report_last_write(self.handle).unwrap_or(false);
            return;
        }
        let below = self.options.notsent_lowat.div_ceil(2);
        let is_high = transport.is_unsent_at(self.handle, below);
        self.congested = is_high && transport.await_unsent_below(self.handle, below);
    }

    /// Looks again whether the mark leaves room, because the stack has sent.
    #[cold]
    pub(crate) fn look_at_mark<T: StreamTransport>(&mut self, transport: &mut T) {
        if matches!(self.progress, ConnectProgress::Connected) {
            self.watch_mark(transport);
        }
    }

    /// A stream that was full has room again, unless its mark leaves none.
    pub(super) fn on_room<T: StreamTransport>(&mut self, transport: &mut T) -> Events {
        self.congested = false;
        if self.options.notsent_lowat > 0 && transport.is_local() {
            self.look_at_mark(transport);
        }
        if self.congested { Events::empty() } else { Events::HAS_ROOM }
    }

    /// The stack has sent so much that less than half of the mark is left.
    #[cold]
    pub(crate) fn on_unsent_below<T: StreamTransport>(&mut self, transport: &mut T) -> Events {
        if self.congested { self.on_room(transport) } else { Events::empty() }
    }

    /// The mark was set.
    #[cold]
    pub(crate) fn on_mark_set<T: StreamTransport>(&mut self, transport: &mut T) -> Events {
        let is_connected = matches!(self.progress, ConnectProgress::Connected);
        match transport.unsent_bytes(self.handle) {
            Ok(0) if is_connected => self.on_room(transport),
            _ => Events::empty(),
        }
    }
}
