//! TCP sockets: from a fresh one over connecting to a connection, and its bytes both ways.
//!
//! Read first: tcp(7), connect(2), recv(2), send(2), shutdown(2). Where several errors are possible
//! the order is Linux's.
//!
//! A connection always has one read with the channel, so that data which comes makes a completion,
//! and a completion makes the socket readable. When the program falls behind, none is asked for
//! ([`INBOX_BYTES_MAX`], [`INBOX_BUFFERS_MAX`]): what comes then stays in the stack, and the peer's
//! window closes.
//!
//! Invariants
//! - `reading` is set exactly while a read is with the channel.
//! - `handle` is in the channel while `progress` is not `Closed`, and until the socket closes if it
//!   ever was.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use megapipe::{
    Address, Channel, ConnOption, ConnectOptions, Disconnect, Handle, OpError, ReadBuf, Reuse,
};

use crate::error::Error;
use crate::family;
use crate::flags::{Events, MsgFlags};
use crate::gather::{Gather, Scatter};
use crate::limits::{
    INBOX_BUFFERS_MAX, INBOX_BYTES_MAX, PIECE_BYTES, PIECE_BYTES_MIN, PIECES_PER_SEND_BUFFER,
    PIECES_UNSENT_MAX, READ_BYTES,
};
use crate::options::Options;
use crate::ports::Bound;
use crate::readiness::{self, Progress, Shut, StreamFacts};
use crate::sockets::{Attempt, Kind, Sockets, Wait};
use crate::urgent::Mark;

mod at_once;
mod inbox;
mod receive;

use inbox::Inbox;

/// How far `connect` is, as calls are answered by it: an attempt that has ended is told of once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connecting {
    Not,
    Begun,
    Done,
}

/// Which directions `shutdown` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// SHUT_RD.
    Read,
    /// SHUT_WR.
    Write,
    /// SHUT_RDWR.
    Both,
}

impl Shutdown {
    /// What shutdown(2) is given as `how`; `None` where there is no such direction.
    #[must_use]
    pub const fn from_raw(how: i32) -> Option<Self> {
        match how {
            libc::SHUT_RD => Some(Self::Read),
            libc::SHUT_WR => Some(Self::Write),
            libc::SHUT_RDWR => Some(Self::Both),
            _ => None,
        }
    }
}

/// A stream socket that does not listen. In the order in which it is written here: what each
/// message touches comes first, and lies in two lines of the cache together with the object's own
/// record.
#[repr(C)]
pub(crate) struct Stream {
    /// Its name in the channel; `Handle::NONE`: it was never connected.
    pub(crate) handle: Handle,
    pub(crate) inbox: Inbox,
    /// The urgent byte that the peer has marked, until it is read past.
    pub(crate) mark: Option<Mark>,
    /// The next call that asks is told.
    pub(crate) error: Option<Error>,
    pub(crate) progress: Progress,
    pub(crate) connecting: Connecting,
    pub(crate) shut: Shut,
    /// The peer's end was seen: reading gives the end, whatever comes after.
    ended: bool,
    reading: bool,
    /// It broke while the program was behind: bytes that came before are still with the channel.
    has_rest: bool,
    /// The channel was asked to tell when there is room to write again.
    congested: bool,
    /// What was written last was urgent, and our own stack has not got it yet.
    owes_mark: bool,
    /// The same of the end of a record (MSG_EOR).
    owes_record_end: bool,
    /// The last write said that more would come (MSG_MORE).
    more: bool,
    /// Bytes that a call has looked for without taking them (MSG_PEEK). So many may be taken from
    /// the channel ahead of the program's reads.
    looks_for: usize,
    /// Bytes that FIONREAD reported before all of them were here, or `usize::MAX` after the program
    /// fell behind and no call has counted since: the next call that reads has to fetch them.
    counted: usize,
    /// A close waits until the peer has everything.
    pub(crate) lingers: bool,
    pub(crate) is_v6: bool,
    pub(crate) options: Options,
    pub(crate) blank: Blank,
    /// Where it is bound, if our own stack is to do it.
    pub(crate) bound: Option<Bound>,
    /// What bind(2) asked for, where the kernel did it: of an IPv6 socket, IPv4 as itself.
    pub(crate) asked: Option<SocketAddr>,
    /// Its own address, if our stack has given it one: known beyond the connection's end.
    pub(crate) name: Option<SocketAddr>,
}

/// What a socket is before it is in the channel.
pub(crate) enum Blank {
    /// Nothing: it is in the channel, or was.
    Used,
    /// The kernel's socket.
    Kernel(OwnedFd),
    /// Our own stack knows nothing of it yet.
    Local,
}

impl Stream {
    pub(crate) const fn new(blank: Blank, is_v6: bool) -> Self {
        Self {
            handle: Handle::NONE,
            progress: Progress::Closed,
            connecting: Connecting::Not,
            shut: Shut { receive: false, send: false },
            ended: false,
            has_rest: false,
            error: None,
            inbox: Inbox::new(),
            reading: false,
            congested: false,
            looks_for: 0,
            counted: 0,
            lingers: false,
            mark: None,
            owes_mark: false,
            owes_record_end: false,
            more: false,
            is_v6,
            options: Options::DEFAULT,
            blank,
            bound: None,
            asked: None,
            name: None,
        }
    }

    /// A connection that was accepted; a read is with the channel.
    pub(crate) fn accepted(handle: Handle, is_v6: bool, options: Options) -> Self {
        Self {
            handle,
            progress: Progress::Connected,
            connecting: Connecting::Done,
            reading: true,
            options,
            ..Self::new(Blank::Used, is_v6)
        }
    }

    #[inline(always)]
    pub(crate) fn readiness(&self) -> Events {
        // What nearly all are, nearly always.
        if self.is_plainly_open() && !self.shut.send && self.mark.is_none() {
            let mut events = Events::empty();
            if self.unread() >= self.options.low_water() {
                events = events.union(Events::READABLE);
            }
            return if self.congested { events } else { events.union(Events::WRITABLE) };
        }
        self.readiness_by_facts()
    }

    #[inline(never)]
    fn readiness_by_facts(&self) -> Events {
        readiness::of_stream(StreamFacts {
            progress: self.progress,
            shut: self.shut,
            has_data: self.unread() >= self.options.low_water() + self.unreadable(),
            has_room: !self.congested,
            is_urgent: self.mark.is_some_and(|mark| mark.is_waiting(self.unread())),
            has_error: self.error.is_some(),
        })
    }

    /// Connected; nobody has ended anything, and no error waits.
    #[inline]
    fn is_plainly_open(&self) -> bool {
        matches!(self.progress, Progress::Connected) && !self.shut.receive && self.error.is_none()
    }

    /// Bytes that wait and that a read would pass over: an urgent one at the front.
    #[inline]
    fn unreadable(&self) -> usize {
        match self.mark {
            Some(Mark { ahead: 0, .. }) if !self.is_inline() => 1,
            _ => 0,
        }
    }

    /// Bytes that wait.
    #[inline]
    pub(crate) const fn unread(&self) -> usize {
        self.inbox.unread()
    }

    fn wants_more(&self) -> bool {
        !self.reading
            && !self.ended
            && (matches!(self.progress, Progress::Connected) || self.has_rest)
            && (self.has_room_ahead() || self.unread() < self.wanted_ahead())
    }

    #[inline]
    fn has_room_ahead(&self) -> bool {
        self.unread() < INBOX_BYTES_MAX && self.inbox.buffer_count() < INBOX_BUFFERS_MAX
    }

    /// Asks the channel for what comes next, unless enough waits for the program.
    #[inline(always)]
    pub(crate) fn ask(&mut self, channel: &mut Channel) {
        if !self.reading {
            self.ask_anew(channel);
        }
    }

    #[inline]
    fn ask_anew(&mut self, channel: &mut Channel) {
        if self.wants_more() {
            // A handle that the channel does not take any more has ended, which it tells itself.
            self.reading = channel.read(self.handle, READ_BYTES).is_ok();
        } else if !self.ended && matches!(self.progress, Progress::Connected) {
            // The program is behind, and no read will tell of a reset. (It may be watched for.)
            let _ = channel.await_end(self.handle);
        }
    }

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

    /// The byte behind `ahead` others, if it has come.
    pub(crate) fn byte_at(&self, ahead: usize) -> Option<u8> {
        self.inbox.byte_at(ahead)
    }

    /// As `take`, where the peer has marked a byte.
    #[cold]
    fn take_near_mark(
        &mut self,
        mark: Mark,
        (len, peeks): (usize, bool),
        to: &mut Scatter<'_, '_>,
        discards: bool,
    ) {
        let step = mark.step((to.filled(), len), self.unread(), self.is_inline());
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

    /// Why there is nothing to be read; `None`: there will be.
    fn why_empty(&mut self) -> Option<Result<usize, Error>> {
        if self.ended {
            return Some(Ok(0));
        }
        if self.has_rest && self.reading {
            return None;
        }
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        if self.shut.receive {
            return Some(Ok(0));
        }
        matches!(self.progress, Progress::Closed).then_some(Err(Error::NotConnected))
    }

    /// The kernel says nothing of a connection that we have shut in both directions, even if it is
    /// reset then: whoever asks has to look.
    #[cold]
    fn look_for_error(&mut self, channel: &Channel) {
        if self.error.is_none()
            && self.shut == Shut::BOTH
            && let Ok(Some(socket)) = channel.descriptor(self.handle)
            && let Ok(Err(errno)) = rustix::net::sockopt::socket_error(socket)
        {
            self.error = Some(errno.into());
        }
    }

    /// Why nothing can be written any more; `None`: something can, now or later.
    fn why_closed(&mut self) -> Option<Error> {
        let is_open = !self.shut.send && !matches!(self.progress, Progress::Closed);
        if is_open && self.error.is_none() {
            return None;
        }
        Some(self.error.take().unwrap_or(Error::BrokenPipe))
    }
}

/// What happens to connections.
impl Sockets {
    pub(crate) fn stream_mut(&mut self, object: u32) -> Option<(&mut Stream, &mut Channel)> {
        let Self { objects, channel, .. } = self;
        match &mut objects.get_mut(object as usize)?.kind {
            Kind::Stream(stream) => Some((stream, channel)),
            _ => None,
        }
    }

    /// Bytes came; not none. (Whoever waits or watches is found in the record at hand, as by
    /// `notify`.)
    #[inline]
    pub(crate) fn on_bytes(&mut self, object: u32, bytes: ReadBuf) {
        let Self { objects, channel, .. } = self;
        let Some(entry) = objects.get_mut(object as usize) else { return };
        let Kind::Stream(stream) = &mut entry.kind else { return };
        stream.reading = false;
        if stream.shut == Shut::BOTH && !stream.has_rest {
            return self.refuse(object);
        }
        stream.inbox.push(bytes);
        stream.ask(channel);
        let watchers = entry.watchers;
        if entry.sleepers > 0 {
            self.wakes.push(object);
        }
        self.notify_watchers(watchers, Events::ARRIVED);
    }

    /// No more bytes come, in order or because of an error.
    pub(crate) fn on_read_end(&mut self, object: u32, error: Option<OpError>) {
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        stream.reading = false;
        let broke_before = std::mem::take(&mut stream.has_rest);
        if let Some(error) = error {
            if broke_before {
                // Why is known; whoever waits for the rest hears of it now.
                return self.notify(object, Events::READABLE | Events::RDHUP | Events::HUP);
            }
            return self.on_failed(object, error.into());
        }
        // Not the peer's end, if we have shut the connection ourselves.
        stream.ended = stream.shut != Shut::BOTH;
        stream.shut.receive = true;
        // Nothing is read any more that would tell of a reset.
        let _ = channel.await_end(stream.handle);
        self.notify(object, Events::READABLE | Events::RDHUP | Events::HUP);
    }

    /// Bytes came that nobody will ever read: the peer is told so by a reset, as by the kernel.
    #[cold]
    fn refuse(&mut self, object: u32) {
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        // It may be over already.
        let _ = channel.disconnect(stream.handle, Disconnect::Reset);
        self.on_failed(object, Error::Reset);
    }

    /// The connection is over, and not in order.
    fn on_failed(&mut self, object: u32, error: Error) {
        let Some((stream, _)) = self.stream_mut(object) else { return };
        if matches!(stream.progress, Progress::Closed) {
            return;
        }
        // A reset after the peer's end: what was to be read is, so the writer is told (RFC 9293
        // §3.10.7.4 says "reset" to both; Linux tells EPIPE here).
        stream.error = Some(match (error, stream.ended) {
            (Error::Reset, true) => Error::BrokenPipe,
            (error, _) => error,
        });
        stream.progress = Progress::Closed;
        stream.shut = Shut::BOTH;
        let all = Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::ALWAYS;
        self.notify(object, all);
    }

    /// Both directions are over.
    pub(crate) fn on_end(&mut self, object: u32, result: Result<(), OpError>) {
        let is_local = self.is_local;
        let Some((stream, _)) = self.stream_mut(object) else { return };
        match result {
            Err(error) => {
                // Writers are told at once, and readers behind what came before, as by the kernel.
                // (On our own stack a reset takes what was not read.)
                stream.has_rest =
                    !is_local && !stream.reading && !stream.ended && !stream.shut.receive;
                self.on_failed(object, error.into());
            }
            // What has come is read first: the peer's end is behind it, and says the same.
            Ok(()) if !stream.shut.receive => {}
            Ok(()) => {
                // Writes that the peer will never take are the program's mistake to make.
                stream.shut = Shut::BOTH;
                self.notify(object, Events::READABLE | Events::RDHUP | Events::HUP);
            }
        }
    }

    pub(crate) fn on_written(&mut self, object: u32, result: Result<usize, OpError>) {
        if let Err(error) = result {
            return self.on_failed(object, error.into());
        }
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        stream.mark_written(channel);
        if std::mem::take(&mut stream.congested) {
            self.notify(object, Events::HAS_ROOM);
        }
    }

    pub(crate) fn on_connected(&mut self, object: u32, result: Result<(), OpError>) {
        if let Err(error) = result {
            return self.on_failed(object, error.into());
        }
        let is_local = self.is_local;
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        stream.progress = Progress::Connected;
        if is_local {
            stream.name = channel.local_address(stream.handle).ok().and_then(|it| it.as_inet());
        }
        stream.ask(channel);
        self.notify(object, Events::WRITABLE);
    }
}

/// Connecting.
impl Sockets {
    pub(crate) fn connect(
        &mut self,
        object: u32,
        to: SocketAddr,
        (is_first, is_over): (bool, bool),
    ) -> Attempt<()> {
        let waits = self.object(object).is_some_and(|entry| !entry.nonblocking) && !is_over;
        let Some((stream, _)) = self.stream_mut(object) else {
            return Attempt::Done(Err(Error::AlreadyConnected));
        };
        let mut otherwise = Error::InProgress;
        match stream.connecting {
            Connecting::Done => return Attempt::Done(Err(Error::AlreadyConnected)),
            Connecting::Begun if is_first => otherwise = Error::AlreadyConnecting,
            Connecting::Begun => {}
            Connecting::Not => {
                if let Err(error) = self.begin_connect(object, to) {
                    return Attempt::Done(Err(error));
                }
            }
        }
        let Some((stream, _)) = self.stream_mut(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        match stream.progress {
            Progress::Connecting if waits => {
                Attempt::Wait(Wait::on(object, stream.options.send_timeout))
            }
            Progress::Connecting => Attempt::Done(Err(otherwise)),
            Progress::Connected => {
                stream.connecting = Connecting::Done;
                Attempt::Done(Ok(()))
            }
            Progress::Closed => {
                let error = stream.error.take().unwrap_or(Error::Aborted);
                self.disconnect(object);
                Attempt::Done(Err(error))
            }
        }
    }

    fn begin_connect(&mut self, object: u32, to: SocketAddr) -> Result<(), Error> {
        let is_local = self.is_local;
        let Some((stream, channel)) = self.stream_mut(object) else {
            return Err(Error::InvalidArgument);
        };
        let Stream { is_v6, options, bound, asked, .. } = stream;
        let (asked, bound) = (*asked, bound.map(|bound| bound.address));
        let plain = family::to_connect(*is_v6, options.sharing.v6_only, bound.or(asked), to)?;
        // The kernel takes IPv4 from IPv6 sockets as they have it.
        let to = if is_local { plain } else { to };
        let address = Address::Inet(to);
        let cookie = u64::from(object);
        let blank = std::mem::replace(&mut stream.blank, Blank::Used);
        let begun = match blank {
            Blank::Kernel(fd) => channel.connect_socket(fd, &address, cookie),
            Blank::Local | Blank::Used if is_local => {
                let options = ConnectOptions::default().nodelay(stream.options.no_delay);
                let options = match bound {
                    Some(bound) => options.bind(Address::Inet(family::bound_towards(bound, to))),
                    None => options,
                };
                channel.connect(&address, &options, cookie)
            }
            Blank::Local | Blank::Used => return Err(Error::InvalidArgument),
        };
        let handle = begun.map_err(|error| match error {
            megapipe::ConnectError::Kernel { source, .. } => source.into(),
            megapipe::ConnectError::Misuse(misuse) => Error::from(misuse),
            megapipe::ConnectError::Limit(limit) => limit.into(),
            _ => Error::InvalidArgument,
        });
        match handle {
            Ok(handle) => {
                stream.options.forget_quick_ack();
                Self::apply_options(channel, handle, &stream.options);
                let reuse = stream.options.sharing.reuse();
                if is_local && reuse != Reuse::default() {
                    // It is there: it was made just now.
                    let _ = channel.set_conn_option(handle, ConnOption::Reuse(reuse));
                }
                stream.handle = handle;
                stream.progress = Progress::Connecting;
                stream.connecting = Connecting::Begun;
                stream.shut = Shut::default();
                Ok(())
            }
            Err(error) => {
                stream.blank = Blank::Local;
                Err(error)
            }
        }
    }

    /// Back to a fresh socket, after a connection attempt that failed or by `connect` to nowhere
    /// (AF_UNSPEC). What was received is gone.
    pub(crate) fn disconnect(&mut self, object: u32) {
        self.is_restless = true;
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        let mut unconnected = None;
        if stream.handle != Handle::NONE {
            // The kernel's socket goes on with its options. Where a step fails, what is left is a
            // socket that cannot be connected again.
            if let Ok(Some(fd)) = channel.descriptor(stream.handle) {
                unconnected = fd.try_clone_to_owned().ok();
            }
            let undone = unconnected.as_ref().map(rustix::net::connect_unspec);
            if undone.is_none() && !matches!(stream.progress, Progress::Closed) {
                // It may be over already, which is what is wanted.
                let _ = channel.disconnect(stream.handle, Disconnect::Reset);
            }
            let _ = channel.unregister(stream.handle);
        }
        let Stream { options, is_v6, bound, asked, .. } = *stream;
        let blank = match unconnected {
            Some(fd) => Blank::Kernel(fd),
            None => std::mem::replace(&mut stream.blank, Blank::Local),
        };
        // Who cut a connection off himself is told of a reset.
        let error = (!matches!(stream.progress, Progress::Closed)).then_some(Error::Reset);
        *stream = Stream { options, bound, asked, error, ..Stream::new(blank, is_v6) };
    }
}

/// Bytes.
impl Sockets {
    #[inline]
    pub(crate) fn send_stream(
        &mut self,
        object: u32,
        from: &mut Gather<'_>,
        flags: MsgFlags,
        is_over: bool,
    ) -> Attempt<usize> {
        let is_urgent = flags.contains(MsgFlags::OOB);
        if flags.contains(MsgFlags::FASTOPEN) || (is_urgent && !self.is_local) {
            // On the kernel, urgent bytes would go in line, and data with a SYN after it: refused,
            // because a program that asked for the one must not get the other.
            return Attempt::Done(Err(Error::NotSupported));
        }
        let mut looked_again = false;
        loop {
            let is_local = self.is_local;
            let Self { objects, channel, .. } = self;
            let Some(entry) = objects.get_mut(object as usize) else {
                return Attempt::Done(Err(Error::BadDescriptor));
            };
            let Kind::Stream(stream) = &mut entry.kind else {
                return Attempt::Done(Err(Error::BrokenPipe));
            };
            let sent = from.taken();
            if stream.shut == Shut::BOTH {
                stream.look_for_error(channel);
            }
            if let Some(error) = stream.why_closed() {
                if sent > 0 {
                    // What went out is told first; the next call hears why no more did.
                    stream.error = (error != Error::BrokenPipe).then_some(error);
                    return Attempt::Done(Ok(sent));
                }
                return Attempt::Done(Err(error));
            }
            if matches!(stream.progress, Progress::Connected) {
                let more = flags.contains(MsgFlags::MORE);
                if let Err(error) = stream.push(channel, from, (is_local, more)) {
                    return Attempt::Done(Err(error));
                }
                let is_record = flags.contains(MsgFlags::EOR) && is_local && from.left() == 0;
                if is_urgent || (is_record && from.taken() > 0) {
                    stream.owes_mark |= is_urgent;
                    stream.owes_record_end |= is_record;
                    stream.mark_written(channel);
                }
                if from.left() == 0 {
                    return Attempt::Done(Ok(from.taken()));
                }
            }
            if !entry.nonblocking && !flags.contains(MsgFlags::DONTWAIT) && !is_over {
                let wait = Wait::on(object, stream.options.send_timeout);
                return Attempt::Wait(wait.with_part(from.taken() > 0));
            }
            if from.taken() > 0 {
                return Attempt::Done(Ok(from.taken()));
            }
            if looked_again || !self.refreshed(object) {
                return Attempt::Done(Err(Error::WouldBlock));
            }
            looked_again = true;
        }
    }
}

impl Stream {
    /// A call that has some bytes and could take more gets no more.
    fn why_short(&self) -> bool {
        self.ended
            || self.mark.is_some_and(|mark| mark.ahead == 0)
            || self.error.is_some()
            || self.shut.receive
            || matches!(self.progress, Progress::Closed)
    }

    /// Says to our own stack that what was written is urgent, or ends a record, as soon as it has
    /// all of it. Until then nothing more is written.
    #[inline]
    fn mark_written(&mut self, channel: &mut Channel) {
        let owes = self.owes_mark || self.owes_record_end;
        if owes && channel.unsent_bytes(self.handle).is_ok_and(|unsent| unsent == 0) {
            let owed = [
                (&mut self.owes_mark, ConnOption::Urgent),
                (&mut self.owes_record_end, ConnOption::EndOfRecord),
            ];
            for (owes, option) in owed {
                if std::mem::take(owes) {
                    // A connection that is over tells so itself.
                    let _ = channel.set_conn_option(self.handle, option);
                }
            }
        }
    }

    /// Bytes of one write to the channel at most.
    fn piece_bytes(&self) -> usize {
        match self.options.send_buffer {
            0 => PIECE_BYTES,
            // Twice what the program asked for, as Linux has it.
            bytes => (bytes.unsigned_abs() as usize / 2 / PIECES_PER_SEND_BUFFER)
                .clamp(PIECE_BYTES_MIN, PIECE_BYTES),
        }
    }

    /// Hands bytes to the channel, as many as there is room for.
    fn push(
        &mut self,
        channel: &mut Channel,
        from: &mut Gather<'_>,
        (is_local, more): (bool, bool),
    ) -> Result<(), Error> {
        // Our own stack takes what it has room for at once: what is left over is too much. The
        // kernel is asked in batches, so that something is always on its way.
        let piece = self.piece_bytes();
        let most = if is_local { 1 } else { PIECES_UNSENT_MAX * piece };
        if (more || self.more) && is_local {
            // Each time: an acknowledgment lets go of what was held, and ends the hold with it. A
            // connection that is over tells so itself. (The kernel's part needs not to be told:
            // what is asked for together goes together.)
            let _ = channel.set_conn_option(self.handle, ConnOption::More(more));
            self.more = more;
        }
        while from.left() > 0 && !self.congested {
            let len = from.left().min(piece);
            let mut bytes = channel.alloc(len);
            from.take(len, |part| bytes.extend_from_slice(part));
            channel.write_quiet(self.handle, bytes)?;
            if channel.unsent_bytes(self.handle)? >= most {
                self.congested = channel.report_last_write(self.handle)?;
            }
        }
        Ok(())
    }
}
