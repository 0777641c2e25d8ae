//! TCP sockets: from a fresh one over connecting to a connection, and its bytes both ways.
//!
//! Read first: tcp(7), connect(2), recv(2), send(2), shutdown(2). Where several errors are possible
//! the order is Linux's.
//!
//! A [`StreamSocket`] is a value that knows no other object. Calls and completions go in;
//! operations go out to its transport (`transport.rs`), and each method returns the events that
//! others are notified of. The files below `stream/` have its parts: `address.rs`, `connect.rs`,
//! `receive.rs`, `send.rs`, `close.rs`, `urgent.rs`; `fast_path.rs` has what most messages take.
//!
//! A connection always has one read with the channel, so that data which comes makes a completion,
//! and a completion makes the socket readable. When the program falls behind, none is asked for
//! ([`INBOX_BYTES_MAX`], [`INBOX_BUFFERS_MAX`]): what comes then stays in the stack, and the peer's
//! window closes.
//!
//! Invariants
//! - `reading` is set exactly while a read is with the transport. Then the inbox has room for what
//!   the read brings; without memory for that no read is posted, and the bytes wait below.
//! - `handle` is known to the transport while `progress` is not `Closed`, and until the socket
//!   closes if it ever was.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use megapipe::{Disconnect, Handle, OpError, ReadBuf};

use crate::error::Error;
use crate::flags::Events;
use crate::limits::{INBOX_BUFFERS_MAX, INBOX_BYTES_MAX};
use crate::options::SocketOptions;
use crate::ports::BoundPort;
use crate::readiness::{self, ConnectProgress, Shut, StreamStatus};
use crate::transport::StreamTransport;

mod address;
mod close;
mod connect;
mod fast_path;
mod inbox;
mod receive;
mod send;
mod shared;
#[cfg(test)]
mod tests;
mod urgent;

pub(crate) use connect::{Connecting, SynData};
use inbox::StreamInbox;
pub(crate) use send::SendStep;
pub use shared::InheritedStream;
use urgent::UrgentMark;

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
pub(crate) struct StreamSocket {
    /// Its name in the channel; `Handle::NONE`: it was never connected.
    pub(crate) handle: Handle,
    pub(crate) inbox: StreamInbox,
    /// The urgent byte that the peer has marked, until it is read past.
    pub(crate) mark: Option<UrgentMark>,
    /// The pending error, for the next call that reports it.
    pub(crate) error: Option<Error>,
    pub(crate) progress: ConnectProgress,
    pub(crate) connecting: Connecting,
    pub(crate) shut: Shut,
    /// The peer's end was seen: reading gives the end, whatever comes after.
    ended: bool,
    reading: bool,
    /// There is no memory to read further. The next call that reads tries again, and the socket is
    /// ready for it.
    starved: bool,
    /// Nothing is read ahead since a fork, or since it was shared, until the program looks.
    pub(crate) withheld: bool,
    /// Other processes may own it, too.
    pub(crate) shared: bool,
    /// It broke, and bytes that came before it may be left in the channel or below it.
    has_bytes_left: bool,
    /// The channel was asked to tell when there is room to write again.
    congested: bool,
    /// What was written last was urgent, and our own stack has not got it yet.
    owes_mark: bool,
    /// The same of the end of a record (MSG_EOR).
    owes_record_end: bool,
    /// The last write said that more would come (MSG_MORE).
    more: bool,
    /// Fast Open: data that the SYN carries.
    syn_data: SynData,
    /// Bytes that a call has looked for without taking them (MSG_PEEK). So many may be taken from
    /// the channel ahead of the program's reads.
    looks_for: usize,
    /// Bytes that FIONREAD reported before all of them were here, or `usize::MAX` after the program
    /// fell behind and no call has counted since: the next call that reads has to fetch them.
    counted: usize,
    /// A close waits until the peer has everything.
    pub(crate) lingers: bool,
    pub(crate) is_v6: bool,
    pub(crate) options: SocketOptions,
    pub(crate) blank: Blank,
    /// Where it is bound, if our own stack is to do it.
    pub(crate) bound: Option<BoundPort>,
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

impl StreamSocket {
    pub(crate) const fn new(blank: Blank, is_v6: bool) -> Self {
        Self {
            handle: Handle::NONE,
            progress: ConnectProgress::Closed,
            connecting: Connecting::Not,
            shut: Shut { receive: false, send: false },
            ended: false,
            starved: false,
            withheld: false,
            shared: false,
            has_bytes_left: false,
            error: None,
            inbox: StreamInbox::new(),
            reading: false,
            congested: false,
            looks_for: 0,
            counted: 0,
            lingers: false,
            mark: None,
            owes_mark: false,
            owes_record_end: false,
            more: false,
            syn_data: SynData::None,
            is_v6,
            options: SocketOptions::DEFAULT,
            blank,
            bound: None,
            asked: None,
            name: None,
        }
    }

    /// A connection that was accepted, with its listener's options; a read is posted.
    pub(crate) fn accepted<T: StreamTransport>(
        handle: Handle,
        is_v6: bool,
        options: SocketOptions,
        transport: &mut T,
    ) -> Self {
        let name = if transport.is_local() { transport.local_address(handle) } else { None };
        transport.apply_options(handle, &options);
        Self {
            handle,
            progress: ConnectProgress::Connected,
            connecting: Connecting::Done,
            reading: true,
            options,
            name,
            ..Self::new(Blank::Used, is_v6)
        }
    }

    /// As an accepted one, of which no read is posted.
    pub(crate) fn not_reading(self, shut: Shut) -> Self {
        Self { reading: false, shut: Shut { receive: false, send: shut.send }, ..self }
    }

    /// Resets the connection: bytes of it are lost, or came and no call will read them, as in the
    /// kernel.
    #[cold]
    pub(crate) fn break_off<T: StreamTransport>(&mut self, transport: &mut T) -> Events {
        // It may be over already.
        let _ = transport.disconnect(self.handle, Disconnect::Reset);
        self.on_failed(Error::Reset)
    }

    /// The end of the peer's stream comes again, behind what was given back.
    pub(crate) const fn forget_end(&mut self) {
        if self.ended {
            self.ended = false;
            self.shut.receive = false;
        }
        self.looks_for = 0;
        self.counted = 0;
    }

    #[inline(always)]
    pub(crate) fn readiness(&self) -> Events {
        // What nearly all are, nearly always.
        if self.is_plainly_open() && !self.shut.send && self.mark.is_none() {
            let mut events = Events::empty();
            if self.unread() >= self.options.low_water() || self.starved {
                events = events.union(Events::READABLE);
            }
            return if self.congested { events } else { events.union(Events::WRITABLE) };
        }
        self.computed_readiness()
    }

    #[inline(never)]
    fn computed_readiness(&self) -> Events {
        if self.syn_data == SynData::Awaited {
            // A write makes the SYN leave.
            return Events::WRITABLE;
        }
        readiness::of_stream(StreamStatus {
            progress: self.progress,
            shut: self.shut,
            has_data: self.starved || self.unread() >= self.options.low_water() + self.unreadable(),
            has_room: !self.congested,
            is_urgent: self.mark.is_some_and(|mark| mark.is_waiting(self.unread())),
            has_error: self.error.is_some(),
        })
    }

    /// Connected; neither direction has ended, and no error is pending.
    #[inline]
    fn is_plainly_open(&self) -> bool {
        matches!(self.progress, ConnectProgress::Connected)
            && !self.shut.receive
            && self.error.is_none()
    }

    /// Bytes that wait and that a read would pass over: an urgent one at the front.
    #[inline]
    fn unreadable(&self) -> usize {
        match self.mark {
            Some(UrgentMark { ahead: 0, .. }) if !self.is_inline() => 1,
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
            && (matches!(self.progress, ConnectProgress::Connected) || self.has_bytes_left)
            && (self.has_room_ahead() || self.unread() < self.wanted_ahead())
    }

    #[inline]
    fn has_room_ahead(&self) -> bool {
        self.unread() < INBOX_BYTES_MAX && self.inbox.buffer_count() < INBOX_BUFFERS_MAX
    }

    /// Posts a read for what comes next, unless enough waits for the program.
    #[inline(always)]
    pub(crate) fn post_read<T: StreamTransport>(&mut self, transport: &mut T) {
        if !self.reading {
            self.post_read_anew(transport);
        }
    }

    #[inline]
    fn post_read_anew<T: StreamTransport>(&mut self, transport: &mut T) {
        if self.withheld {
            return;
        }
        self.starved = false;
        if self.wants_more() {
            let reserved = self.inbox.reserve_one();
            match reserved.and_then(|()| transport.read(self.handle)) {
                Ok(()) => {
                    self.reading = true;
                    return;
                }
                // What comes waits below.
                Err(Error::NoMemory | Error::NoBuffers) => self.starved = true,
                // The channel does not take the handle any more: it has ended, which it reports.
                Err(_) => return,
            }
        }
        if !self.ended && matches!(self.progress, ConnectProgress::Connected) {
            // The program is behind, and no read reports a reset.
            transport.await_end(self.handle);
        }
    }
}

/// Completions.
impl StreamSocket {
    /// Bytes came; not none.
    #[inline]
    pub(crate) fn on_bytes<T: StreamTransport>(
        &mut self,
        bytes: ReadBuf,
        transport: &mut T,
    ) -> Events {
        self.reading = false;
        if self.shut == Shut::BOTH && !self.has_bytes_left {
            return self.break_off(transport);
        }
        self.inbox.push(bytes);
        self.post_read(transport);
        Events::ARRIVED
    }

    /// No more bytes come, in order or because of an error.
    pub(crate) fn on_read_end<T: StreamTransport>(
        &mut self,
        error: Option<OpError>,
        transport: &mut T,
    ) -> Events {
        self.reading = false;
        let broke_before = std::mem::take(&mut self.has_bytes_left);
        if let Some(error) = error {
            if broke_before {
                // The reason is known; waiters for the rest are notified now.
                return Events::READABLE | Events::RDHUP | Events::HUP;
            }
            return self.on_failed(error.into());
        }
        // Not the peer's end, if we have shut the connection ourselves. After an error our own
        // stack reports no other end; the kernel does, unless a reset came behind the peer's.
        let is_its = transport.is_local() || self.error == Some(Error::BrokenPipe);
        let has_end = broke_before && is_its;
        self.ended = self.shut != Shut::BOTH || has_end;
        self.shut.receive = true;
        // Nothing is read any more that would report a reset.
        transport.await_end(self.handle);
        Events::READABLE | Events::RDHUP | Events::HUP
    }

    /// The connection is over, and not in order.
    fn on_failed(&mut self, error: Error) -> Events {
        if matches!(self.progress, ConnectProgress::Closed) {
            return Events::empty();
        }
        // A reset after the peer's end: all bytes are read, so the writer gets the error (RFC 9293
        // §3.10.7.4 has "reset" for both; Linux returns EPIPE here).
        self.error = Some(match (error, self.ended) {
            (Error::Reset, true) => Error::BrokenPipe,
            (error, _) => error,
        });
        self.progress = ConnectProgress::Closed;
        self.shut = Shut::BOTH;
        Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::ALWAYS
    }

    /// Our own stack has lost its link.
    pub(crate) fn on_link_gone(&mut self) -> Events {
        self.on_failed(Error::NetworkDown)
    }

    /// Both directions are over.
    pub(crate) fn on_end<T: StreamTransport>(
        &mut self,
        result: Result<(), OpError>,
        transport: &mut T,
    ) -> Events {
        match result {
            // It may have been awaited twice.
            Err(_) if matches!(self.progress, ConnectProgress::Closed) => Events::empty(),
            Err(error) => {
                // Writers get it at once, and readers behind what came before, as from the kernel.
                // A read that is posted gets that, or reports the end.
                let may_have_rest = !self.ended && !self.shut.receive;
                let is_certain = self.reading || !transport.is_local();
                self.has_bytes_left =
                    may_have_rest && (is_certain || transport.unread_in_stack(self.handle) > 0);
                // The peer's end came before, and nothing but it is left to be read.
                let is_behind_end = error == OpError::BrokenPipe && !self.has_bytes_left;
                self.ended |= may_have_rest && is_behind_end;
                self.on_failed(error.into())
            }
            // What has come is read first: the peer's end is behind it, and reports the same.
            Ok(()) if !self.shut.receive => Events::empty(),
            Ok(()) => {
                // Writes that the peer will never take are the program's mistake to make.
                self.shut = Shut::BOTH;
                Events::READABLE | Events::RDHUP | Events::HUP
            }
        }
    }

    /// A write has ended.
    pub(crate) fn on_written<T: StreamTransport>(
        &mut self,
        result: Result<usize, OpError>,
        transport: &mut T,
    ) -> Events {
        if let Err(error) = result {
            return self.on_failed(error.into());
        }
        self.mark_written(transport);
        if self.congested { self.on_room(transport) } else { Events::empty() }
    }

    /// An attempt to connect has ended.
    pub(crate) fn on_connected<T: StreamTransport>(
        &mut self,
        result: Result<(), OpError>,
        transport: &mut T,
    ) -> Events {
        if let Err(error) = result {
            return self.on_failed(error.into());
        }
        self.progress = ConnectProgress::Connected;
        self.syn_data = SynData::None;
        if transport.is_local() {
            self.name = transport.local_address(self.handle);
        }
        self.post_read(transport);
        if self.starved { Events::READABLE | Events::WRITABLE } else { Events::WRITABLE }
    }
}
