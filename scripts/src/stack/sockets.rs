//! BSD sockets on the stack's commands and events.
//!
//! Read first: `Sockets::attempt`: a call either ends, or would block and is tried again later.
//! Results and errors are those of Linux's man pages.
//!
//! Invariants
//! - Bytes stay in the stack until a call wants them, so that windows close and open as they would
//!   with a program: the stack gets a credit only for what is there already.
//! - A connection that is over has no id any more; what is left of it is its error and its bytes.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use megapipe_stack::{CloseReason, ConnId, DatagramId, Event, ListenerId};

use super::datagram::Datagrams;
use super::error_queue::ErrorQueue;
use super::host::Host;
use super::options::apply_options;
use super::ready::Epoll;
use crate::symbols::SIOCOUTQNSD;
use crate::system::{Call, Fd, Output, Returned, SystemError};

/// The first descriptor: 0 to 2 are a program's own.
const FIRST_FD: Fd = 3;
const SOCKET_FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// What a call came to: an error number, or none yet.
pub(super) type Attempt = Result<Option<Returned>, SystemError>;

/// A program's descriptors.
#[derive(Default)]
pub(super) struct Sockets {
    pub(super) open: BTreeMap<Fd, Entry>,
    /// When the call under way began: its timeout counts from then.
    pub(super) began_us: i64,
    /// When a call with a timeout gives up.
    wake_us: Option<i64>,
}

/// What a descriptor is.
pub(super) enum Entry {
    Stream(Stream),
    Datagrams(Datagrams),
    Epoll(Epoll),
}

/// A TCP socket.
pub(super) struct Stream {
    pub(super) role: Role,
    pub(super) domain: i32,
    /// O_NONBLOCK.
    pub(super) is_nonblocking: bool,
    pub(super) local: Option<SocketAddr>,
    /// Of a listener.
    pub(super) backlog: u32,
    /// That a listener has got.
    pub(super) connections: u64,
    /// Taken from the stack and not read yet.
    pub(super) taken: VecDeque<u8>,
    /// SO_ERROR.
    pub(super) error: i32,
    /// The peer sends no more.
    pub(super) is_ended: bool,
    /// SHUT_RD and SHUT_WR.
    pub(super) is_read_shut: bool,
    pub(super) is_write_shut: bool,
    /// Bytes of the write under way that are queued already.
    pub(super) written: usize,
    /// A write found no room: it goes on when there is more than a little.
    pub(super) is_writer_blocked: bool,
    /// Of the packet buffer that a write filled last, so much has not left.
    pub(super) last_buffer_bytes: u32,
    /// The largest window that the peer was seen with.
    pub(super) window_max_bytes: u32,
    /// What was sent last had MSG_MORE.
    pub(super) has_more: bool,
    /// What recvmsg(2) with MSG_ERRQUEUE takes.
    pub(super) error_queue: ErrorQueue,
    /// By level and name, as they were set.
    pub(super) options: BTreeMap<(i32, i32), Vec<u8>>,
}

/// How far a socket has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Fresh,
    Listening {
        listener: ListenerId,
        queue: VecDeque<ConnId>,
    },
    Connecting(ConnId),
    Connected(ConnId),
    /// It was connected, or tried to.
    Over,
}

impl Stream {
    pub(super) fn new(domain: i32, is_nonblocking: bool) -> Self {
        Self {
            role: Role::Fresh,
            domain,
            is_nonblocking,
            local: None,
            backlog: 0,
            connections: 0,
            taken: VecDeque::new(),
            error: 0,
            is_ended: false,
            is_read_shut: false,
            is_write_shut: false,
            written: 0,
            is_writer_blocked: false,
            last_buffer_bytes: 0,
            window_max_bytes: 0,
            has_more: false,
            error_queue: ErrorQueue::default(),
            options: BTreeMap::new(),
        }
    }

    pub(super) fn conn(&self) -> Option<ConnId> {
        match self.role {
            Role::Connecting(conn) | Role::Connected(conn) => Some(conn),
            _ => None,
        }
    }

    /// Gives the error once.
    pub(super) fn take_error(&mut self) -> Option<i32> {
        let error = std::mem::take(&mut self.error);
        (error != 0).then_some(error)
    }

    fn on_closed(&mut self, reason: CloseReason) {
        let was_connecting = matches!(self.role, Role::Connecting(_));
        self.error = match reason {
            CloseReason::Finished | CloseReason::Aborted => 0,
            CloseReason::Refused => libc::ECONNREFUSED,
            CloseReason::ResetByPeer if was_connecting => libc::ECONNREFUSED,
            // After the peer's FIN a program that goes on writing is told so (tcp(7)).
            CloseReason::ResetByPeer if self.is_ended => libc::EPIPE,
            CloseReason::ResetByPeer => libc::ECONNRESET,
            CloseReason::TimedOut | CloseReason::KeepaliveTimedOut => libc::ETIMEDOUT,
            CloseReason::Unreachable | CloseReason::HostUnreachable => libc::EHOSTUNREACH,
        };
        self.is_ended = true;
        self.role = Role::Over;
    }
}

pub(super) fn ended(result: i64) -> Attempt {
    Ok(Some(Returned::success(result)))
}

pub(super) fn failed(errno: i32) -> Attempt {
    Ok(Some(Returned::failure(errno)))
}

pub(super) fn unsupported<T>(what: impl Into<String>) -> Result<T, SystemError> {
    Err(SystemError::Unsupported(what.into()))
}

impl Sockets {
    /// A new call begins.
    pub(super) fn begin(&mut self, call: &Call, now_us: i64) {
        self.began_us = now_us;
        let timeout_us = match call {
            Call::Poll { timeout_ms, .. } | Call::EpollWait { timeout_ms, .. } => {
                (*timeout_ms >= 0).then(|| i64::from(*timeout_ms) * 1000)
            }
            Call::Receive { fd, .. } | Call::Accept { fd, .. } => {
                self.timeout_us(*fd, libc::SO_RCVTIMEO)
            }
            Call::Send { fd, .. } | Call::Connect { fd, .. } => {
                self.timeout_us(*fd, libc::SO_SNDTIMEO)
            }
            _ => None,
        };
        self.wake_us = timeout_us.map(|us| now_us.saturating_add(us));
        for entry in self.open.values_mut() {
            if let Entry::Stream(stream) = entry {
                stream.written = 0;
                stream.is_writer_blocked = false;
            }
        }
    }

    fn timeout_us(&mut self, fd: Fd, name: i32) -> Option<i64> {
        self.stream(fd).ok()?.timeout_us(name)
    }

    /// When the call under way gives up.
    pub(super) fn wake_us(&self) -> Option<i64> {
        self.wake_us
    }

    pub(super) fn has_timed_out(&self, host: &Host) -> bool {
        self.wake_us.is_some_and(|at_us| at_us <= host.now_us())
    }

    pub(super) fn keep(&mut self, entry: Entry) -> Fd {
        let fd = (FIRST_FD..).find(|fd| !self.open.contains_key(fd)).unwrap_or(-1);
        self.open.insert(fd, entry);
        fd
    }

    pub(super) fn stream(&mut self, fd: Fd) -> Result<&mut Stream, i32> {
        match self.open.get_mut(&fd) {
            Some(Entry::Stream(stream)) => Ok(stream),
            Some(Entry::Datagrams(_)) => Err(libc::EOPNOTSUPP),
            Some(Entry::Epoll(_)) => Err(libc::ENOTSOCK),
            None => Err(libc::EBADF),
        }
    }

    /// What the stack says.
    pub(super) fn on_event(&mut self, event: Event, host: &mut Host) {
        match event {
            Event::Incoming { listener, conn, .. } => {
                for entry in self.open.values_mut() {
                    if let Entry::Stream(Stream {
                        role: Role::Listening { listener: own, queue },
                        connections,
                        ..
                    }) = entry
                        && *own == listener
                    {
                        queue.push_back(conn);
                        *connections += 1;
                    }
                }
            }
            Event::Connected { conn } => self.with_conn(conn, |stream| {
                stream.role = Role::Connected(conn);
                // The limit of the handshake's time no longer holds.
                let _ = apply_options(stream, None, host);
            }),
            Event::Received { conn, chunk } => {
                let bytes = host.memory.bytes(chunk).to_vec();
                megapipe_stack::Memory::free(&mut host.memory, chunk.buf);
                self.with_conn(conn, |stream| stream.taken.extend(bytes));
            }
            Event::PeerClosed { conn } => self.with_conn(conn, |stream| stream.is_ended = true),
            Event::Closed { conn, reason } => {
                self.with_conn(conn, |stream| stream.on_closed(reason));
            }
            Event::Datagram { endpoint, from, chunk } => {
                let bytes = host.memory.bytes(chunk).to_vec();
                megapipe_stack::Memory::free(&mut host.memory, chunk.buf);
                self.with_endpoint(endpoint, |datagrams| datagrams.on_datagram(from, bytes));
            }
            Event::DatagramRefused { endpoint, to, .. } => {
                self.with_endpoint(endpoint, |datagrams| datagrams.on_refused(to));
            }
            // Nobody asks for acknowledgments, and urgent bytes come with the others.
            Event::Acked { .. } | Event::Urgent { .. } => {}
        }
    }

    fn with_endpoint(&mut self, endpoint: DatagramId, act: impl FnOnce(&mut Datagrams)) {
        let all = self.open.values_mut().filter_map(|entry| match entry {
            Entry::Datagrams(datagrams) => Some(datagrams),
            _ => None,
        });
        let mut found = all.filter(|datagrams| datagrams.endpoint() == Some(endpoint));
        if let Some(datagrams) = found.next() {
            act(datagrams);
        }
    }

    /// A descriptor is closed: no epoll knows it any more.
    pub(super) fn forget(&mut self, fd: Fd) -> Option<Entry> {
        for entry in self.open.values_mut() {
            if let Entry::Epoll(epoll) = entry {
                epoll.forget(fd);
            }
        }
        self.open.remove(&fd)
    }

    fn with_conn(&mut self, conn: ConnId, act: impl FnOnce(&mut Stream)) {
        let streams = self.open.values_mut().filter_map(|entry| match entry {
            Entry::Stream(stream) => Some(stream),
            Entry::Datagrams(_) | Entry::Epoll(_) => None,
        });
        let mut found = streams.filter(|stream| stream.conn() == Some(conn));
        if let Some(stream) = found.next() {
            act(stream);
        }
    }

    /// Tries a call. None: it would block.
    pub(super) fn attempt(&mut self, call: &Call, host: &mut Host) -> Attempt {
        if let Some(attempt) = self.attempt_datagram(call, host) {
            return attempt;
        }
        match call {
            Call::Socket { domain, kind, protocol } => self.socket(*domain, *kind, *protocol),
            Call::Bind { fd, address } => self.bind(*fd, *address, host),
            Call::Listen { fd, backlog } => self.listen(*fd, *backlog, host),
            Call::Accept { fd, flags } => self.accept(*fd, *flags, host),
            Call::Connect { fd, address: Some(address) } => self.connect(*fd, *address, host),
            Call::Connect { fd, address: None } => self.disconnect(*fd, host),
            Call::Receive { fd, sizes, flags, form, .. } => {
                self.receive(*fd, sizes.iter().sum(), (*flags, *form), host)
            }
            Call::Send { fd, parts, flags, to, .. } => {
                self.send(*fd, &parts.concat(), (*flags, to.is_some()), host)
            }
            Call::Nowhere { fd } => {
                let is_open = self.open.contains_key(fd);
                failed(if is_open { libc::EFAULT } else { libc::EBADF })
            }
            Call::Shutdown { fd, how } => self.shutdown(*fd, *how, host),
            Call::Close { fd } => self.close(*fd, host),
            Call::SetOption { fd, level, name, value } => {
                self.set_option(*fd, (*level, *name), value, host)
            }
            Call::GetOption { fd, level, name, bytes } => {
                self.get_option(*fd, (*level, *name), *bytes, host)
            }
            Call::Fcntl { fd, command, argument } => self.fcntl(*fd, *command, *argument),
            Call::Ioctl { fd, request, argument } => self.ioctl(*fd, (*request, *argument), host),
            Call::Poll { fds, .. } => self.poll(fds, host),
            Call::EpollCreate { .. } => {
                let fd = self.keep(Entry::Epoll(Epoll::default()));
                ended(i64::from(fd))
            }
            Call::EpollControl { epoll, operation, fd, events, data } => {
                self.epoll_control(*epoll, *operation, *fd, (*events, *data))
            }
            Call::EpollWait { epoll, count, .. } => self.epoll_wait(*epoll, *count, host),
            Call::Pipe { .. } | Call::Splice { .. } => unsupported("pipes and splice"),
        }
    }

    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Attempt {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return failed(libc::EAFNOSUPPORT);
        }
        let is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let entry = match (kind & !SOCKET_FLAGS, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Entry::Stream(Stream::new(domain, is_nonblocking))
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Entry::Datagrams(Datagrams::new(domain, is_nonblocking))
            }
            _ => return unsupported("sockets other than those of TCP and UDP"),
        };
        ended(i64::from(self.keep(entry)))
    }

    fn bind(&mut self, fd: Fd, address: SocketAddr, host: &Host) -> Attempt {
        let address = unmapped(address);
        let is_ours = host.config.addresses.iter().any(|(ip, _)| *ip == address.ip());
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        if stream.local.is_some() || stream.role != Role::Fresh {
            return failed(libc::EINVAL);
        }
        if !is_ours && !address.ip().is_unspecified() {
            return failed(libc::EADDRNOTAVAIL);
        }
        stream.local = Some(address);
        ended(0)
    }

    fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Attempt {
        let is_nonblocking = match self.open.get_mut(&fd) {
            Some(Entry::Stream(stream)) => &mut stream.is_nonblocking,
            Some(Entry::Datagrams(datagrams)) => &mut datagrams.is_nonblocking,
            Some(Entry::Epoll(_)) => return unsupported("fcntl of an epoll descriptor"),
            None => return failed(libc::EBADF),
        };
        match command {
            libc::F_GETFL => {
                let flag = if *is_nonblocking { libc::O_NONBLOCK } else { 0 };
                ended(i64::from(libc::O_RDWR | flag))
            }
            libc::F_SETFL => {
                *is_nonblocking = argument & libc::O_NONBLOCK != 0;
                ended(0)
            }
            libc::F_GETFD | libc::F_SETFD => ended(0),
            _ => failed(libc::EINVAL),
        }
    }

    fn ioctl(&mut self, fd: Fd, (request, argument): (i64, i32), host: &Host) -> Attempt {
        const TIOCOUTQ: i64 = libc::TIOCOUTQ as i64;
        const FIONREAD: i64 = libc::FIONREAD as i64;
        const FIONBIO: i64 = libc::FIONBIO as i64;
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let info = stream.conn().and_then(|conn| host.running()?.info(conn).ok());
        let value = match request {
            FIONREAD => {
                let unread = info.map_or(0, |info| i64::from(info.unread_bytes));
                unread + i64::try_from(stream.taken.len()).unwrap_or(0)
            }
            TIOCOUTQ => info.map_or(0, |info| i64::from(info.queued_bytes)),
            SIOCOUTQNSD => info
                .map_or(0, |info| i64::from(info.queued_bytes.saturating_sub(info.flight_bytes))),
            FIONBIO => {
                stream.is_nonblocking = argument != 0;
                return ended(0);
            }
            _ => return unsupported(format!("ioctl request {request:#x}")),
        };
        Ok(Some(Returned { output: Output::Integer(value), ..Returned::success(0) }))
    }
}

/// An IPv4 address that an IPv6 socket has in its own form.
pub(super) fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(IpAddr::V4(ip), address.port()),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}
