//! One end of a connection, and the many ways in which a program reads and writes.
//!
//! The streams are those of `check/streams.rs`, so a peer may be any other host. How an end reads
//! and writes is drawn by its host alone.

use std::io::IoSlice;
use std::time::Duration;

use megapipe_sockets::{Bsd, Error, Fd, MsgFlags, Shutdown};
use megapipe_stack::Instant;

use super::pace::Calls;
use crate::check::Violation;
use crate::check::streams::{CheckedStream, HEADER_BYTES, Receiver};
use crate::pattern::Pattern;

const FIONREAD: u64 = 0x541b;

/// A way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    Plain,
    Peek,
    WaitAll,
    LowWater(i32),
    Count,
}

/// A way to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Send,
    More,
    Pieces,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndStep {
    /// Bytes moved.
    Moved,
    /// It would have to wait.
    WouldWait,
    /// This direction is over.
    Over,
    /// The connection broke, as it may.
    Broken,
}

/// One end.
pub(super) struct SocketEnd {
    pub(super) fd: Fd,
    /// A server's: what has come of the header.
    header: Option<Vec<u8>>,
    stream: Option<CheckedStream>,
    receiver: Option<Receiver>,
    pattern: Pattern,
    prelude: Vec<u8>,
    sent: u64,
    to_send: u64,
    is_shut: bool,
    has_ended: bool,
    is_inline: bool,
    reads: Reads,
    writes: Writes,
    /// Bytes in one call.
    piece: usize,
    /// It breaks the connection after so many bytes received.
    breaks_at: Option<u64>,
    pub(super) stalled_until: Option<Instant>,
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    pub(super) is_connecting: bool,
    /// The stream that is to be begun anew if its handshake fails.
    pub(super) plan: Option<(CheckedStream, std::net::SocketAddr)>,
}

impl SocketEnd {
    /// The end of a client, or with `stream: None` of a server, with its options set.
    pub(super) fn new(
        calls: &mut Calls,
        fd: Fd,
        stream: Option<CheckedStream>,
        receive_buffer: u32,
    ) -> Result<Self, Violation> {
        let rng = &mut calls.rng;
        let is_rough = stream.is_none_or(CheckedStream::is_rough);
        let mut end = Self {
            fd,
            header: Some(Vec::new()),
            stream: None,
            receiver: None,
            pattern: Pattern::new(0),
            prelude: Vec::new(),
            sent: 0,
            to_send: 0,
            is_shut: false,
            has_ended: false,
            is_inline: rng.bool(),
            reads: match rng.u32(..8) {
                0 => Reads::Peek,
                1 => Reads::WaitAll,
                // A mark near what the window holds may stall on any system.
                2 => Reads::LowWater(rng.i32(1..=(receive_buffer / 8).max(1).cast_signed())),
                3 => Reads::Count,
                _ => Reads::Plain,
            },
            writes: match rng.u32(..4) {
                0 => Writes::More,
                1 => Writes::Pieces,
                _ => Writes::Send,
            },
            piece: 1 << rng.u32(4..15),
            breaks_at: (is_rough && rng.bool()).then(|| rng.u64(..20_000)),
            stalled_until: None,
            may_read: true,
            may_write: true,
            is_connecting: false,
            plan: None,
        };
        if let Some(stream) = stream {
            end.begin(stream, true);
        }
        end.set_options(calls)?;
        Ok(end)
    }

    fn begin(&mut self, stream: CheckedStream, is_client: bool) {
        let (request, response) = stream.patterns();
        let lengths = (stream.request_bytes, stream.response_bytes);
        let (ours, theirs, (to_send, expected)) = if is_client {
            self.prelude = stream.header().to_vec();
            (request, response, lengths)
        } else {
            (response, request, (lengths.1, lengths.0))
        };
        (self.pattern, self.to_send) = (ours, to_send);
        let mut receiver = Receiver::new(stream.number, theirs, expected);
        receiver.may_miss_urgent = stream.is_urgent();
        self.receiver = Some(receiver);
        self.stream = Some(stream);
        if !stream.is_rough() {
            self.breaks_at = None;
        }
        if stream.is_urgent() && self.reads != Reads::WaitAll {
            // The others count bytes, and the urgent one is not among them.
            self.reads = Reads::Plain;
        }
        self.header = None;
    }

    fn set_options(&self, calls: &mut Calls) -> Result<(), Violation> {
        let fd = self.fd;
        let set = |calls: &mut Calls, level, name, value: i32| {
            calls.must("setsockopt", |it| it.setsockopt(fd, level, name, &value.to_ne_bytes()))
        };
        if calls.rng.bool() {
            set(calls, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        }
        if calls.rng.u32(..3) == 0 {
            let bytes = [1, 4_608, 9_000, 42_000][calls.rng.usize(..4)];
            set(calls, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
        }
        if self.is_inline {
            set(calls, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1)?;
        }
        if let Reads::LowWater(bytes) = self.reads {
            set(calls, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)?;
        }
        // What waits for a peer that broke the connection hears of it by keepalives alone.
        set(calls, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        set(calls, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60)?;
        if calls.rng.u32(..4) == 0 {
            let linger = [1_i32, calls.rng.i32(1..20)].map(i32::to_ne_bytes).concat();
            let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
            calls.must("setsockopt", |it| it.setsockopt(fd, level, name, &linger))?;
        }
        Ok(())
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_shut && self.has_ended
    }

    /// It is known to be ready for what it wants.
    pub(super) const fn can_go_on(&self) -> bool {
        let reads = self.may_read && self.wants_to_read() && self.stalled_until.is_none();
        let writes = self.may_write && self.wants_to_write();
        (reads || writes) && !self.is_connecting
    }

    /// It has something to write, or its direction to close.
    pub(super) const fn wants_to_write(&self) -> bool {
        !self.is_shut && self.header.is_none()
    }

    pub(super) const fn wants_to_read(&self) -> bool {
        !self.has_ended
    }

    /// A connection may break that was to be broken, or whose plan is not known yet.
    fn may_break(&self) -> bool {
        self.stream.is_none_or(CheckedStream::is_rough)
    }

    /// An error of a call on the connection.
    fn broken(
        &self,
        calls: &Calls,
        call: &'static str,
        error: Error,
    ) -> Result<EndStep, Violation> {
        let is_break = matches!(error, Error::Reset | Error::BrokenPipe | Error::Aborted);
        match error {
            Error::WouldBlock => Ok(EndStep::WouldWait),
            _ if is_break && self.may_break() => Ok(EndStep::Broken),
            _ => Err(calls.failed(call, error)),
        }
    }

    // -- reading

    /// Reads once.
    pub(super) fn read(&mut self, calls: &mut Calls) -> Result<EndStep, Violation> {
        if self.has_ended {
            return Ok(EndStep::Over);
        }
        self.read_urgent(calls)?;
        let fd = self.fd;
        let mut bytes = vec![0; self.piece];
        let read = match self.reads {
            // The header's end is what it is.
            _ if self.header.is_some() => {
                let left = HEADER_BYTES - self.header.as_ref().map_or(0, Vec::len);
                bytes.truncate(left);
                calls.call(|it| it.recv(fd, &mut bytes, MsgFlags::empty()))
            }
            Reads::Plain | Reads::LowWater(_) => calls.call(|it| it.read(fd, &mut bytes)),
            Reads::WaitAll => calls.call(|it| it.recv(fd, &mut bytes, MsgFlags::WAITALL)),
            Reads::Peek => return self.peek_and_read(calls),
            Reads::Count => return self.count_and_read(calls),
        };
        match read {
            Ok(len) => self.take(calls, &bytes[..len]),
            Err(error) => self.broken(calls, "recv", error),
        }
    }

    fn peek_and_read(&mut self, calls: &mut Calls) -> Result<EndStep, Violation> {
        let fd = self.fd;
        let (mut seen, mut bytes) = (vec![0; self.piece], vec![0; self.piece]);
        let peeked = match calls.call(|it| it.recv(fd, &mut seen, MsgFlags::PEEK)) {
            Ok(len) => len,
            Err(error) => return self.broken(calls, "recv", error),
        };
        let wanted = peeked.max(1);
        match calls.call(|it| it.recv(fd, &mut bytes[..wanted], MsgFlags::empty())) {
            Ok(len) if peeked > 0 && bytes[..len] != seen[..peeked] => {
                let what = format!("{peeked} bytes were peeked at, {len} others read");
                Err(Violation::Call { host: 0, call: "recv", what })
            }
            Ok(len) => self.take(calls, &bytes[..len]),
            Err(error) => self.broken(calls, "recv", error),
        }
    }

    fn count_and_read(&mut self, calls: &mut Calls) -> Result<EndStep, Violation> {
        let fd = self.fd;
        let counted = calls.must("ioctl", |it| it.ioctl(fd, FIONREAD, 0))?.max(0) as usize;
        let wanted = counted.clamp(1, self.piece);
        let mut bytes = vec![0; wanted];
        match calls.call(|it| it.recv(fd, &mut bytes, MsgFlags::empty())) {
            Ok(len) if counted > 0 && len < wanted => {
                let what = format!("{counted} bytes were counted, {len} read");
                Err(Violation::Call { host: 0, call: "recv", what })
            }
            Ok(len) => self.take(calls, &bytes[..len]),
            Err(error) => self.broken(calls, "recv", error),
        }
    }

    /// The urgent byte, if there is one and it is not among the others.
    fn read_urgent(&mut self, calls: &mut Calls) -> Result<(), Violation> {
        let Some(receiver) = self.receiver.filter(|it| it.may_miss_urgent && !self.is_inline)
        else {
            return Ok(());
        };
        let (fd, mut byte) = (self.fd, [0]);
        match calls.call(|it| it.recv(fd, &mut byte, MsgFlags::OOB)) {
            Ok(1) => receiver.on_urgent(byte[0]),
            _ => Ok(()),
        }
    }

    /// Bytes have come, or the end.
    fn take(&mut self, calls: &mut Calls, bytes: &[u8]) -> Result<EndStep, Violation> {
        if bytes.is_empty() {
            self.has_ended = true;
            return match &mut self.receiver {
                Some(receiver) => receiver.on_end().map(|()| EndStep::Over),
                // Not even a header: the other end has broken it.
                None => Ok(EndStep::Broken),
            };
        }
        if let Some(header) = &mut self.header {
            header.extend(bytes);
            if let Ok(whole) = <&[u8; HEADER_BYTES]>::try_from(&header[..]) {
                let stream = CheckedStream::of_header(whole);
                self.begin(stream, false);
            }
            return Ok(EndStep::Moved);
        }
        let Some(receiver) = &mut self.receiver else { return Ok(EndStep::Broken) };
        receiver.on_bytes(bytes)?;
        if self.breaks_at.is_some_and(|at| receiver.received >= at) {
            self.break_off(calls)?;
            return Ok(EndStep::Broken);
        }
        Ok(EndStep::Moved)
    }

    /// Makes the close that follows a reset.
    fn break_off(&self, calls: &mut Calls) -> Result<(), Violation> {
        let (fd, at_once) = (self.fd, [1_i32, 0].map(i32::to_ne_bytes).concat());
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        calls.must("setsockopt", |it| it.setsockopt(fd, level, name, &at_once))
    }

    // -- writing

    /// Writes once, and shuts the direction down behind the last byte.
    pub(super) fn write(&mut self, calls: &mut Calls) -> Result<EndStep, Violation> {
        if self.header.is_some() {
            return Ok(EndStep::WouldWait);
        }
        if self.is_shut {
            return Ok(EndStep::Over);
        }
        let left = self.to_send - self.sent;
        if left == 0 && self.prelude.is_empty() {
            return self.shut_down(calls);
        }
        let (bytes, flags) = self.next_piece(left);
        let fd = self.fd;
        let written = if self.writes == Writes::Pieces && flags.is_empty() {
            let (one, other) = bytes.split_at(bytes.len() / 2);
            calls.call(|it| it.writev(fd, &[IoSlice::new(one), IoSlice::new(other)]))
        } else {
            calls.call(|it| it.send(fd, &bytes, flags | MsgFlags::NOSIGNAL))
        };
        match written {
            Ok(len) if self.prelude.is_empty() => self.sent += len as u64,
            Ok(len) => drop(self.prelude.drain(..len)),
            Err(error) => return self.broken(calls, "send", error),
        }
        Ok(EndStep::Moved)
    }

    /// What the next call sends, and how.
    fn next_piece(&self, left: u64) -> (Vec<u8>, MsgFlags) {
        if !self.prelude.is_empty() {
            return (self.prelude.clone(), MsgFlags::empty());
        }
        let mut len = self.piece.min(usize::try_from(left).unwrap_or(usize::MAX));
        if self.stream.is_some_and(CheckedStream::is_urgent) {
            let until = |it: &u64| self.pattern.is_urgent(*it, self.to_send);
            match (self.sent..self.sent + len as u64).find(until) {
                Some(at) if at == self.sent => {
                    return (self.pattern.bytes(at, 1), MsgFlags::OOB);
                }
                Some(at) => len = (at - self.sent) as usize,
                None => {}
            }
        }
        let has_more = self.writes == Writes::More && (len as u64) < left;
        let flags = if has_more { MsgFlags::MORE } else { MsgFlags::empty() };
        (self.pattern.bytes(self.sent, len), flags)
    }

    fn shut_down(&mut self, calls: &mut Calls) -> Result<EndStep, Violation> {
        self.is_shut = true;
        // Where the other direction is over, closing says as much.
        if self.has_ended && calls.rng.bool() {
            return Ok(EndStep::Over);
        }
        let fd = self.fd;
        match calls.call(|it| it.shutdown(fd, Shutdown::Write)) {
            Err(Error::NotConnected) if self.may_break() => Ok(EndStep::Broken),
            Err(error) => Err(calls.failed("shutdown", error)),
            Ok(()) => Ok(EndStep::Over),
        }
    }

    /// Closes the descriptor.
    pub(super) fn close(self, calls: &mut Calls) -> Result<(), Violation> {
        let is_broken = !self.is_over();
        calls.count(|counts| {
            counts.connections += 1;
            counts.broken += u64::from(is_broken);
        });
        let fd = self.fd;
        match calls.call(|it| it.close(fd)) {
            // A linger time that is over.
            Ok(()) | Err(Error::WouldBlock) => Ok(()),
            Err(error) if self.may_break() && error == Error::Reset => Ok(()),
            Err(error) => Err(calls.failed("close", error)),
        }
    }

    /// Whether it is to pause now.
    pub(super) fn draw_stall(calls: &mut Calls, stall: u32) -> Option<Duration> {
        let rng = &mut calls.rng;
        (rng.u32(..1_000) < stall).then(|| Duration::from_micros(1 << rng.u32(8..23)))
    }
}
