//! Reads from a connection: recv(2) and its kin, and how much is taken ahead of them.
//!
//! Read first: `stream.rs`, `inbox.rs`; recv(2) on MSG_PEEK and MSG_WAITALL, socket(7) on
//! SO_RCVLOWAT.
//!
//! Invariant: a call returns all that has arrived as far as the caller has room for it, also what
//! waits in the channel because the program has fallen behind.

use std::time::Duration;

use super::Stream;
use crate::error::Error;
use crate::flags::MsgFlags;
use crate::gather::Scatter;
use crate::limits::FETCH_ROUNDS;
use crate::readiness::Shut;
use crate::sockets::{Attempt, Kind, Sockets, Wait};
use crate::sockopt::unread_beneath;

impl Stream {
    /// Bytes that have to be here at once: a low-water mark, or MSG_PEEK, may be above the usual
    /// limit.
    #[cold]
    pub(super) fn wanted_ahead(&self) -> usize {
        self.looks_for.max(self.options.low_water())
    }

    /// The program has fallen behind: more may wait in the channel than is here.
    #[inline]
    const fn is_behind(&self) -> bool {
        !self.reading
    }

    /// More waits in the channel than is here, or may.
    #[inline]
    pub(super) const fn may_be_behind(&self) -> bool {
        self.is_behind() || self.counted > self.unread()
    }

    /// So many bytes wait in the channel and beneath it: they come, if slowly.
    const fn expect(&mut self, beneath: usize) {
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
}

impl Sockets {
    /// `got` is what earlier attempts of the same call have copied.
    #[inline]
    pub(crate) fn recv_stream(
        &mut self,
        object: u32,
        to: &mut Scatter<'_, '_>,
        flags: MsgFlags,
        is_over: bool,
    ) -> Attempt<usize> {
        if flags.contains(MsgFlags::OOB) {
            return Attempt::Done(self.recv_urgent(object, to, flags));
        }
        let mut looked_again = false;
        loop {
            self.take_all(object, to, flags);
            let turns = self.turns();
            let Self { objects, channel, epolls, .. } = self;
            let Some(entry) = objects.get_mut(object as usize) else {
                return Attempt::Done(Err(Error::BadDescriptor));
            };
            let Kind::Stream(stream) = &mut entry.kind else {
                return Attempt::Done(Err(Error::NotConnected));
            };
            let wanted = to.filled() + to.left();
            if wanted == 0 && stream.unread() > 0 {
                return Attempt::Done(Ok(0));
            }
            let target = match flags.contains(MsgFlags::WAITALL) {
                true => wanted,
                false => wanted.min(stream.options.low_water()).max(1),
            };
            epolls.settle(entry.watchers, stream.readiness());
            let filled = to.filled();
            let is_enough = to.left() == 0 || filled >= target;
            if filled > 0 && (is_enough || stream.why_short()) {
                entry.served_in = turns;
                return Attempt::Done(Ok(filled));
            }
            if stream.shut == Shut::BOTH {
                stream.look_for_error(channel);
            }
            if filled == 0
                && let Some(answer) = stream.why_empty()
            {
                return Attempt::Done(answer);
            }
            let waits = !entry.nonblocking && !flags.contains(MsgFlags::DONTWAIT) && !is_over;
            if waits {
                let timeout = stream.options.receive_timeout;
                return Attempt::Wait(Wait::on(object, timeout).with_part(filled > 0));
            }
            if filled > 0 {
                return Attempt::Done(Ok(filled));
            }
            if looked_again || !self.refreshed(object) {
                return Attempt::Done(Err(Error::WouldBlock));
            }
            looked_again = true;
        }
    }

    /// Takes what is here, and what waits beneath because the program has fallen behind.
    #[inline]
    fn take_all(&mut self, object: u32, to: &mut Scatter<'_, '_>, flags: MsgFlags) {
        let (peeks, discards) = (flags.contains(MsgFlags::PEEK), flags.contains(MsgFlags::TRUNC));
        if peeks {
            to.rewind();
            self.look_for(object, to.left());
        }
        loop {
            let Some((stream, channel)) = self.stream_mut(object) else { return };
            let wanted = to.left();
            if wanted == 0 || stream.unread() == 0 && stream.counted == 0 {
                return;
            }
            if stream.unread() == 0 {
                if !self.fetch(object, wanted) {
                    return;
                }
                continue;
            }
            let (before, may_be_behind) = (stream.unread(), stream.may_be_behind());
            match stream.mark {
                None => stream.take(wanted, peeks, |bytes| to.put(bytes, discards)),
                Some(mark) => stream.take_near_mark(mark, (wanted, peeks), to, discards),
            }
            if !peeks {
                stream.looks_for = 0;
                stream.count_off(before, may_be_behind);
            }
            stream.ask(channel);
            if peeks || !may_be_behind || stream.mark.is_some() || !self.fetch(object, to.left()) {
                return;
            }
        }
    }

    /// A call looks for bytes that stay here (MSG_PEEK).
    #[cold]
    fn look_for(&mut self, object: u32, wanted: usize) {
        let Some((stream, _)) = self.stream_mut(object) else { return };
        if stream.unread() < wanted {
            stream.looks_for = wanted;
            if stream.may_be_behind() {
                self.fetch(object, wanted);
            }
        }
    }

    /// Takes from the channel what waits there for a stream of which the program has read too
    /// little, until `wanted` bytes are here or no more can be had without waiting. Whether bytes
    /// are here.
    #[cold]
    fn fetch(&mut self, object: u32, wanted: usize) -> bool {
        let mut rounds = 0;
        while let Some((stream, channel)) = self.stream_mut(object) {
            stream.ask(channel);
            let before = stream.unread();
            if before >= wanted || stream.is_behind() || rounds == FETCH_ROUNDS {
                return before > 0;
            }
            while let Some(completion) = self.channel.dispatch_ready() {
                self.on_completion(completion);
            }
            let Some((stream, channel)) = self.stream_mut(object) else { return false };
            if stream.unread() > before {
                continue;
            }
            // The kernel, or a stack on another thread, has to be asked for it. What that has
            // handed over is not counted there any more, and comes with this turn or a later one.
            let beneath = unread_beneath(channel, stream);
            stream.expect(beneath);
            let is_turned = self.turn_channel(Some(Duration::ZERO)).is_ok();
            let Some((stream, _)) = self.stream_mut(object) else { return false };
            let has_come = stream.unread() > before;
            if !is_turned || (!has_come && stream.counted <= before) {
                stream.counted = 0;
                return before > 0;
            }
            rounds = if has_come { 0 } else { rounds + 1 };
        }
        false
    }
}
