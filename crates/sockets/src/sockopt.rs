//! setsockopt, getsockopt, ioctl and fcntl on whatever a descriptor stands for.
//!
//! Read first: `options.rs`; ioctl_list(2) on FIONREAD and FIONBIO, tcp(7) on SIOCINQ and SIOCOUTQ,
//! fcntl(2).

use std::os::fd::{AsFd, BorrowedFd};

use megapipe::{Channel, ConnInfo, Handle, TcpState};

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::{Events, OpenFlags};
use crate::kernel;
use crate::options::{Facts, Options, Value, holds_pointers, tells_beside_stream};
use crate::readiness::Progress;
use crate::sockets::{Kind, Sockets};
use crate::stream::{Blank, Stream};

const LOW_WATER: (i32, i32) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
/// ioctl(2)'s request behind sockatmark(3).
const SIOCATMARK: u64 = 0x8905;
/// The bytes of `struct tcp_info` that have been there from the beginning.
const TCP_INFO_BYTES: usize = 104;
/// The number that Linux gives to the state of a listener.
const TCP_LISTEN: u8 = 10;

/// A socket as options see it.
struct Target<'a> {
    options: &'a mut Options,
    handle: Handle,
    facts: Facts,
    /// The kernel's socket, where it is not in the channel yet.
    blank: Option<BorrowedFd<'a>>,
}

impl Sockets {
    fn target(&mut self, fd: Fd) -> Result<(Target<'_>, &mut Channel), Error> {
        let object = self.table.object(fd)?;
        let Self { objects, channel, .. } = self;
        let entry = objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        let stream = Facts { is_v6: false, is_stream: true, is_listener: false, is_bound: false };
        let target = match &mut entry.kind {
            Kind::Stream(it) => Target {
                options: &mut it.options,
                handle: it.handle,
                facts: Facts {
                    is_v6: it.is_v6,
                    is_bound: it.bound.is_some() || it.handle != Handle::NONE,
                    ..stream
                },
                blank: match &it.blank {
                    Blank::Kernel(fd) => Some(fd.as_fd()),
                    Blank::Local | Blank::Used => None,
                },
            },
            Kind::Listener(it) => Target {
                handle: it.handle(),
                options: &mut it.options,
                facts: Facts { is_v6: it.is_v6, is_listener: true, is_bound: true, ..stream },
                blank: None,
            },
            Kind::Datagram(it) => Target {
                handle: it.handle(),
                options: &mut it.options,
                facts: Facts {
                    is_v6: it.is_v6,
                    is_stream: false,
                    is_bound: it.bound.is_some(),
                    ..stream
                },
                blank: None,
            },
            _ => return Err(Error::NotASocket),
        };
        Ok((target, channel))
    }

    pub(crate) fn setsockopt(&mut self, fd: Fd, at: (i32, i32), value: &[u8]) -> Result<(), Error> {
        let (is_local, defaults) = (self.is_local, self.defaults);
        let (target, channel) = self.target(fd)?;
        if is_local {
            let Target { options, handle, facts, .. } = target;
            if at == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN)
                && handle != Handle::NONE
                && !facts.is_listener
            {
                // A connection has no listener's options.
                return Err(Error::InvalidArgument);
            }
            let heard = options.set(at, value, facts, &defaults)?;
            if let Some(option) = heard.filter(|_| handle != Handle::NONE && !facts.is_listener) {
                // A connection that is over has nothing to be set; Linux sets it all the same.
                let _ = channel.set_conn_option(handle, option);
            }
            if at == (libc::SOL_SOCKET, libc::SO_REUSEADDR)
                || at == (libc::SOL_SOCKET, libc::SO_REUSEPORT)
            {
                self.share_address(fd)?;
            }
        } else {
            if target.facts.is_stream && at == LOW_WATER {
                return self.set_low_water(fd, value);
            }
            let asks = value.iter().any(|byte| *byte != 0);
            let is_lost = target.facts.is_stream && tells_beside_stream(at.0, at.1) && asks;
            if is_lost || holds_pointers(at.0, at.1) {
                return Err(Error::NoSuchOption);
            }
            let socket = match target.blank {
                Some(socket) => socket,
                None => kernel_socket(channel, target.handle)?,
            };
            kernel::set_option(socket, at.0, at.1, value)?;
            target.options.note(at.0, at.1, value);
        }
        match at {
            LOW_WATER => self.notify_lowered(fd),
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) if is_local => {
                let object = self.table.object(fd)?;
                self.set_fast_open(object);
                Ok(())
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                if is_local =>
            {
                let object = self.table.object(fd)?;
                self.on_errors_asked(object, value.iter().take(4).any(|byte| *byte != 0));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The kernel's socket must not hear of the low-water mark of a stream: the bytes that count
    /// towards it lie here, and the kernel would hold back those that are missing.
    #[cold]
    fn set_low_water(&mut self, fd: Fd, value: &[u8]) -> Result<(), Error> {
        let defaults = self.defaults;
        let (Target { options, facts, .. }, _) = self.target(fd)?;
        options.set(LOW_WATER, value, facts, &defaults)?;
        self.notify_lowered(fd)
    }

    /// What a socket says of sharing its address has changed.
    #[cold]
    fn share_address(&mut self, fd: Fd) -> Result<(), Error> {
        let object = self.table.object(fd)?;
        let Self { objects, ports, .. } = self;
        let (bound, sharing) = match objects.get(object as usize).map(|entry| &entry.kind) {
            Some(Kind::Stream(it)) => (it.bound, it.options.sharing),
            Some(Kind::Listener(it)) => (it.bound, it.options.sharing),
            Some(Kind::Datagram(it)) => (it.bound, it.options.sharing),
            _ => return Ok(()),
        };
        if let Some(bound) = bound {
            ports.share(bound, sharing);
        }
        Ok(())
    }

    /// The low-water mark of a stream was set: what waits may be enough now, as Linux looks then,
    /// or too little.
    #[cold]
    fn notify_lowered(&mut self, fd: Fd) -> Result<(), Error> {
        let object = self.table.object(fd)?;
        if let Some((stream, channel)) = self.stream_mut(object) {
            // A higher mark may need more than was taken ahead so far.
            stream.ask(channel);
        }
        if self.readiness(object).contains(Events::READABLE) {
            self.notify(object, Events::ARRIVED);
        }
        Ok(())
    }

    /// How many bytes of `value` were filled.
    pub(crate) fn getsockopt(
        &mut self,
        fd: Fd,
        at: (i32, i32),
        value: &mut [u8],
    ) -> Result<usize, Error> {
        if at == (libc::SOL_SOCKET, libc::SO_ERROR)
            && let Some(error) = self.take_error(fd)?
        {
            return Ok(Value::Int(error.raw_os_error()).write(value));
        }
        let (is_local, mut defaults) = (self.is_local, self.defaults);
        let (target, channel) = self.target(fd)?;
        let is_ours = is_local || (target.facts.is_stream && at == LOW_WATER);
        if !is_ours {
            let socket = match target.blank {
                Some(socket) => socket,
                None => kernel_socket(channel, target.handle)?,
            };
            if holds_pointers(at.0, at.1) {
                return Err(Error::NoSuchOption);
            }
            return kernel::option(socket, at.0, at.1, value);
        }
        let info = channel.conn_info(target.handle).ok();
        match (at, info) {
            ((libc::SOL_SOCKET, libc::SO_ERROR), _) => return Ok(Value::Int(0).write(value)),
            ((libc::IPPROTO_TCP, libc::TCP_INFO), info) if target.facts.is_stream => {
                let bytes = tcp_info(info.as_ref(), target.facts.is_listener);
                let len = bytes.len().min(value.len());
                value[..len].copy_from_slice(&bytes[..len]);
                return Ok(len);
            }
            (_, Some(info)) => {
                defaults.receive_buffer = info.receive_buffer_bytes;
                defaults.send_buffer = info.send_buffer_bytes;
                defaults.mss = info.mss.into();
            }
            (_, None) => {}
        }
        Ok(target.options.value(at, target.facts, &defaults)?.write(value))
    }

    /// The error that waits to be told; it is told now.
    fn take_error(&mut self, fd: Fd) -> Result<Option<Error>, Error> {
        let object = self.table.object(fd)?;
        let entry = self.object_mut(object).ok_or(Error::BadDescriptor)?;
        Ok(match &mut entry.kind {
            Kind::Stream(stream) => stream.error.take(),
            Kind::Listener(listener) => listener.error.take(),
            Kind::Datagram(endpoint) => endpoint.error.take(),
            _ => return Err(Error::NotASocket),
        })
    }

    /// Options that were set before there was a connection reach it now.
    pub(crate) fn apply_options(channel: &mut Channel, handle: Handle, options: &Options) {
        if !options.says_anything() {
            return;
        }
        for option in options.for_connection() {
            // On the kernel they are the socket's already; a connection that is over needs none.
            if channel.set_conn_option(handle, option).is_err() {
                return;
            }
        }
    }

    // -- ioctl

    /// `argument` is what lies at the caller's pointer; what has to lie there afterwards is
    /// answered.
    pub(crate) fn ioctl(&mut self, fd: Fd, request: u64, argument: i32) -> Result<i32, Error> {
        let object = self.table.object(fd)?;
        let Self { objects, channel, .. } = self;
        let entry = objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        if request == libc::FIONBIO {
            entry.nonblocking = argument != 0;
            return Ok(argument);
        }
        if request == libc::FIOCLEX || request == libc::FIONCLEX {
            self.table.set_close_on_exec(fd, request == libc::FIOCLEX);
            return Ok(argument);
        }
        if let (&Kind::Pipe(end), libc::FIONREAD) = (&entry.kind, request) {
            return Ok(self.unread_in_pipe(end) as i32);
        }
        if request == SIOCATMARK {
            return self.at_mark(object).map(i32::from);
        }
        let count = match (&mut entry.kind, request) {
            (Kind::Datagram(endpoint), libc::FIONREAD) => endpoint.next_len(),
            (Kind::Stream(stream), libc::FIONREAD) => {
                let beneath = unread_beneath(channel, stream);
                stream.note_counted(beneath);
                stream.readable(beneath)
            }
            (Kind::Stream(stream), libc::TIOCOUTQ) => {
                let unsent = channel.unsent_bytes(stream.handle).unwrap_or_default();
                unsent + bytes_beneath(channel, stream, |it| it.queued_bytes)
            }
            (Kind::Listener(_), libc::FIONREAD | libc::TIOCOUTQ) => {
                return Err(Error::InvalidArgument);
            }
            _ => return Err(Error::NoSuchRequest),
        };
        Ok(i32::try_from(count).unwrap_or(i32::MAX))
    }

    fn at_mark(&self, object: u32) -> Result<bool, Error> {
        match self.object(object).map(|entry| &entry.kind) {
            Some(Kind::Stream(stream)) => self.stands_at_mark(stream),
            Some(Kind::Listener(_)) if self.is_local => Ok(false),
            _ => Err(Error::NoSuchRequest),
        }
    }

    // -- fcntl

    pub(crate) fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Result<i32, Error> {
        let object = self.table.object(fd)?;
        let entry = self.object_mut(object).ok_or(Error::BadDescriptor)?;
        match command {
            libc::F_GETFL => {
                let nonblocking = if entry.nonblocking { libc::O_NONBLOCK } else { 0 };
                Ok(entry.kind.access() | nonblocking)
            }
            libc::F_SETFL => {
                entry.nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD => Ok(if self.table.closes_on_exec(fd) { libc::FD_CLOEXEC } else { 0 }),
            libc::F_SETFD => {
                self.table.set_close_on_exec(fd, argument & libc::FD_CLOEXEC != 0);
                Ok(0)
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                if argument < 0 || !self.table.can_be(argument) {
                    return Err(Error::InvalidArgument);
                }
                let free = self.table.lowest_free(argument)?;
                let flags = match command {
                    libc::F_DUPFD_CLOEXEC => OpenFlags::CLOEXEC,
                    _ => OpenFlags::empty(),
                };
                self.name(free, object, flags)?;
                Ok(free)
            }
            _ => Err(Error::InvalidArgument),
        }
    }

    /// dup3(2): `new` stands for what `old` stands for.
    pub(crate) fn dup3(&mut self, old: Fd, new: Fd, flags: OpenFlags) -> Result<Fd, Error> {
        if old == new || !OpenFlags::CLOEXEC.contains(flags) {
            return Err(Error::InvalidArgument);
        }
        let object = self.table.object(old)?;
        let before = self.table.set(new, object, flags.contains(OpenFlags::CLOEXEC))?;
        if let Some(entry) = self.object_mut(object) {
            entry.descriptors += 1;
        }
        if let Some(before) = before {
            self.unname(before);
        }
        Ok(new)
    }
}

/// Bytes that our own stack, or the kernel, has beneath what is here.
fn bytes_beneath(channel: &mut Channel, stream: &Stream, of: fn(&ConnInfo) -> u32) -> usize {
    if matches!(stream.progress, Progress::Closed) {
        return 0;
    }
    if let Ok(info) = channel.conn_info(stream.handle) {
        return of(&info) as usize;
    }
    let Ok(Some(socket)) = channel.descriptor(stream.handle) else { return 0 };
    rustix::io::ioctl_fionread(socket).map_or(0, |count| count as usize)
}

/// Bytes of a connection that have arrived and are not here yet: in the channel, and beneath it.
pub(crate) fn unread_beneath(channel: &mut Channel, stream: &Stream) -> usize {
    let in_channel = channel.unread_bytes(stream.handle).unwrap_or_default();
    in_channel + bytes_beneath(channel, stream, |info| info.unread_bytes)
}

fn kernel_socket(channel: &Channel, handle: Handle) -> Result<BorrowedFd<'_>, Error> {
    channel.descriptor(handle)?.ok_or(Error::InvalidArgument)
}

/// `struct tcp_info` of Linux, as far as there is something to be told; times in microseconds, but
/// for those that the kernel tells in milliseconds.
fn tcp_info(info: Option<&ConnInfo>, is_listener: bool) -> [u8; TCP_INFO_BYTES] {
    let mut bytes = [0; TCP_INFO_BYTES];
    let Some(info) = info else {
        bytes[0] = if is_listener { TCP_LISTEN } else { TcpState::Closed.linux_number() };
        return bytes;
    };
    bytes[0] = info.state.linux_number();
    let bit = |on: bool, place: u8| u8::from(on) << place;
    let scaled = info.window_scale.is_some();
    let (theirs, ours) = info.window_scale.unwrap_or_default();
    bytes[2] = info.timeouts;
    bytes[5] = bit(info.timestamps, 0) | bit(info.sack, 1) | bit(scaled, 2) | bit(info.ecn, 3);
    bytes[6] = (theirs & 0xf) | ours << 4;
    let micros = |time: std::time::Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let mss = u32::from(info.mss).max(1);
    let words = [
        (8, micros(info.rto)),
        (16, mss),
        (20, mss),
        (24, info.flight_bytes.div_ceil(mss)),
        (28, info.sacked_bytes.div_ceil(mss)),
        (32, info.lost_bytes.div_ceil(mss)),
        (68, info.srtt.map_or(0, micros)),
        (72, micros(info.rttvar)),
        (76, info.ssthresh.map_or(0x7fff_ffff, |bytes| bytes / mss)),
        (80, info.cwnd / mss),
        (84, mss),
        (88, 3),
        (96, info.receive_buffer_bytes),
        (100, info.segments_retransmitted),
    ];
    for (place, word) in words {
        bytes[place..place + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
