//! Reads from a stream: recv(2) and its kin, and how much is taken ahead of them.
//!
//! Read first: `stream.rs`, `inbox.rs`; recv(2) on MSG_PEEK and MSG_WAITALL, socket(7) on
//! SO_RCVLOWAT.
//!
//! Invariant: a call returns all that has arrived as far as the caller has room for it, also what
//! waits in the channel because the program has fallen behind ([`StreamSocket::take_here`]).

use super::StreamSocket;
use super::urgent::UrgentMark;
use crate::control_data::{ControlKinds, write_unread};
use crate::error::Error;
use crate::flags::MsgFlags;
use crate::gather::{ReceivePieces, ReceivedMessage};
use crate::readiness::{ConnectProgress, Shut};
use crate::transport::{ObjectTransport, StreamTransport};

impl StreamSocket {
    /// Bytes that have to be here at once: a low-water mark, or MSG_PEEK, may be above the usual
    /// limit.
    #[cold]
    pub(super) fn wanted_ahead(&self) -> usize {
        self.looks_for.max(self.options.low_water())
    }

    /// The program has fallen behind: more may wait in the channel than is here.
    #[inline]
    pub(crate) const fn is_behind(&self) -> bool {
        !self.reading
    }

    /// More waits in the channel than is here, or may.
    #[inline]
    pub(super) const fn may_be_behind(&self) -> bool {
        self.is_behind() || self.counted > self.unread()
    }

    /// So many bytes wait in the channel and beneath it: they come, if slowly.
    pub(crate) const fn expect(&mut self, beneath: usize) {
        if self.counted == usize::MAX {
            self.counted = 0;
        }
        let all = self.unread() + beneath;
        if beneath > 0 && all > self.counted {
            self.counted = all;
        }
    }

    /// Of `before` bytes some were taken: keeps the number of those that were counted and have
    /// not come.
    const fn count_off(&mut self, before: usize, may_be_behind: bool) {
        let taken = before - self.unread();
        self.counted = match self.counted {
            _ if !may_be_behind => 0,
            usize::MAX => usize::MAX,
            counted if counted > taken => counted - taken,
            _ => usize::MAX,
        };
    }

    /// Notes that a call reported bytes that are not here yet.
    pub(crate) const fn note_counted(&mut self, beneath: usize) {
        self.counted = if beneath > 0 { self.unread() + beneath } else { 0 };
    }

    /// Whether more bytes are known to wait below than the `here` that are here.
    pub(crate) const fn expects_more_than(&self, here: usize) -> bool {
        self.counted > here
    }

    /// Nothing more is known to wait below.
    pub(crate) const fn expect_nothing(&mut self) {
        self.counted = 0;
    }

    /// Bytes that have arrived and are not here yet: in the channel, and below it.
    pub(crate) fn unread_below<T: StreamTransport>(&self, transport: &mut T) -> usize {
        let in_channel = transport.unread_in_channel(self.handle);
        match self.progress {
            ConnectProgress::Closed if !self.has_bytes_left => in_channel,
            _ => in_channel + transport.unread_in_stack(self.handle),
        }
    }
}

/// Steps of a call that reads.
impl StreamSocket {
    /// A call looks for bytes that stay here (MSG_PEEK). Returns whether they have to be fetched.
    #[cold]
    pub(crate) fn look_for(&mut self, wanted: usize) -> bool {
        if self.unread() >= wanted {
            return false;
        }
        self.looks_for = wanted;
        self.may_be_behind()
    }

    /// Posts a read again where there was no memory for it.
    #[inline]
    pub(crate) fn retry_read<T: StreamTransport>(&mut self, transport: &mut T) {
        if self.starved || self.withheld {
            self.read_again(transport);
        }
    }

    #[cold]
    fn read_again<T: StreamTransport>(&mut self, transport: &mut T) {
        self.resume(transport);
        self.post_read(transport);
    }

    /// Takes what is here. Returns how many bytes more the call can use, if those that wait below
    /// have to be fetched for that and the call then goes on.
    #[inline]
    pub(crate) fn take_here<T: StreamTransport>(
        &mut self,
        to: &mut ReceivePieces<'_, '_>,
        flags: MsgFlags,
        transport: &mut T,
    ) -> Option<usize> {
        let (peeks, discards) = (flags.contains(MsgFlags::PEEK), flags.contains(MsgFlags::TRUNC));
        let wanted = to.left();
        if wanted == 0 || self.unread() == 0 && self.counted == 0 {
            return None;
        }
        if self.unread() == 0 {
            return Some(wanted);
        }
        let (before, may_be_behind) = (self.unread(), self.may_be_behind());
        match self.mark {
            None => self.take(wanted, peeks, |bytes| to.put(bytes, discards)),
            Some(mark) => self.take_near_mark(mark, to, flags),
        }
        if !peeks {
            self.looks_for = 0;
            self.count_off(before, may_be_behind);
        }
        self.post_read(transport);
        (!peeks && may_be_behind && self.mark.is_none()).then(|| to.left())
    }

    /// Bytes that a call with so much room waits for.
    #[inline]
    fn target(&self, wanted: usize, flags: MsgFlags) -> usize {
        match flags.contains(MsgFlags::WAITALL) {
            true => wanted,
            false => wanted.min(self.options.low_water()).max(1),
        }
    }

    /// The answer of a call that has taken what there is; `None`: it has to wait for more.
    #[inline]
    pub(crate) fn read_result<T: StreamTransport>(
        &mut self,
        to: &ReceivePieces<'_, '_>,
        flags: MsgFlags,
        transport: &T,
    ) -> Option<Result<usize, Error>> {
        let (filled, room) = (to.filled(), to.filled() + to.left());
        if room == 0 && self.unread() > 0 {
            return Some(Ok(0));
        }
        let is_enough = to.left() == 0 || filled >= self.target(room, flags);
        if filled > 0 && (is_enough || self.is_cut_short()) {
            return Some(Ok(filled));
        }
        if self.shut == Shut::BOTH {
            self.look_for_error(transport);
        }
        if filled == 0 { self.reason_for_nothing() } else { None }
    }

    /// Whether a call that has some bytes and could take more gets no more.
    fn is_cut_short(&self) -> bool {
        self.ended
            || self.mark.is_some_and(|mark| mark.ahead == 0)
            || self.error.is_some()
            || self.shut.receive
            || self.starved
            || matches!(self.progress, ConnectProgress::Closed)
    }

    /// Why there is nothing to be read; `None`: there will be.
    fn reason_for_nothing(&mut self) -> Option<Result<usize, Error>> {
        if self.ended {
            return Some(Ok(0));
        }
        if self.has_bytes_left && self.reading {
            return None;
        }
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        if self.shut.receive {
            return Some(Ok(0));
        }
        if self.starved {
            return Some(Err(Error::NoMemory));
        }
        matches!(self.progress, ConnectProgress::Closed).then_some(Err(Error::NotConnected))
    }

    /// The kernel reports nothing of a connection that we have shut in both directions, even if it
    /// is reset then: a call has to look.
    #[cold]
    pub(super) fn look_for_error<T: ObjectTransport>(&mut self, transport: &T) {
        if self.error.is_none()
            && self.shut == Shut::BOTH
            && let Some(socket) = transport.kernel_socket(self.handle)
            && let Ok(Err(errno)) = rustix::net::sockopt::socket_error(socket)
        {
            self.error = Some(errno.into());
        }
    }

    /// Whether each recvmsg(2) returns how much is left to read (TCP_INQ).
    #[inline]
    pub(crate) const fn reports_unread(&self) -> bool {
        self.options.control_kinds.contains(ControlKinds::UNREAD)
    }

    /// The answer of a call that has read `len` bytes, with how many are left. The peer's end
    /// counts as one more, as in Linux.
    #[cold]
    pub(crate) fn received_with_unread<T: StreamTransport>(
        &mut self,
        len: usize,
        control: &mut [u8],
        transport: &mut T,
    ) -> ReceivedMessage {
        let below = self.unread_below(transport);
        self.note_counted(below);
        let left = self.readable(below) + usize::from(self.ended);
        let left = i32::try_from(left).unwrap_or(i32::MAX);
        let (control_len, is_cut) = write_unread(left, control);
        let flags = if is_cut { MsgFlags::CTRUNC } else { MsgFlags::empty() };
        ReceivedMessage { len, flags, control_len, ..ReceivedMessage::NOTHING }
    }
}

/// Taking bytes out of the inbox.
impl StreamSocket {
    /// Takes up to `len` bytes out of the inbox (leaves them there, if `peeks`).
    #[inline]
    fn take(&mut self, len: usize, peeks: bool, mut each: impl FnMut(&[u8])) {
        // By far the most often, all that came is one buffer, and there is room for it.
        if self.unread() <= len
            && !peeks
            && let Some(bytes) = self.inbox.take_only()
        {
            each(&bytes);
            return;
        }
        self.take_parts(len, peeks, &mut each);
    }

    fn take_parts(&mut self, len: usize, peeks: bool, each: &mut dyn FnMut(&[u8])) {
        if peeks {
            self.inbox.peek(len, each);
        } else {
            self.inbox.take(len, each);
        }
    }

    /// Throws bytes away.
    #[cold]
    pub(crate) fn skip(&mut self, len: usize) {
        self.take_parts(len, false, &mut |_| ());
    }

    /// As `take`, where the peer has marked a byte.
    #[cold]
    fn take_near_mark(
        &mut self,
        mark: UrgentMark,
        to: &mut ReceivePieces<'_, '_>,
        flags: MsgFlags,
    ) {
        let (peeks, discards) = (flags.contains(MsgFlags::PEEK), flags.contains(MsgFlags::TRUNC));
        let step = mark.step(to.filled(), to.left(), self.unread(), self.is_inline());
        if peeks {
            let mut skip = step.skip;
            return self.take_parts(step.most + step.skip, true, &mut |bytes| {
                let rest = &bytes[skip.min(bytes.len())..];
                skip -= bytes.len() - rest.len();
                to.put(rest, discards);
            });
        }
        if step.passes {
            self.mark = None;
        }
        self.skip(step.skip);
        let before = self.unread();
        self.take_parts(step.most, false, &mut |bytes| to.put(bytes, discards));
        if let Some(mark) = &mut self.mark {
            mark.ahead -= before - self.inbox.unread();
        }
    }
}
