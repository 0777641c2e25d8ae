//! The calls of a TCP socket that have to do with its connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{ConnId, ConnOption, ConnectError, ListenError, Memory, OperationError};

use super::host::Host;
use super::sockets::{Attempt, Entry, Role, Sockets, Stream, ended, failed, unmapped, unsupported};
use crate::limits::POOL_BUFFER_BYTES;
use crate::symbols::{TCP_KEEPINIT, option_name};
use crate::system::{Fd, Output, Returned, SystemError};

/// Options that change nothing that a packet script could see.
const WITHOUT_EFFECT: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_DEBUG),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];
/// Without TCP_KEEPIDLE (tcp(7)).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(7200);

impl Sockets {
    pub(super) fn listen(&mut self, fd: Fd, backlog: i32, host: &mut Host) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        match stream.role {
            Role::Fresh => {}
            Role::Listening { .. } => return ended(0),
            _ => return failed(libc::EINVAL),
        }
        let any = any_of(stream.domain);
        let local = stream.local.unwrap_or_else(|| SocketAddr::new(any, 0));
        let backlog = u32::try_from(backlog).unwrap_or(0).max(1);
        let stack = host.stack()?;
        let listener = match stack.listen(local, backlog, Host::pool()) {
            Ok(listener) => listener,
            Err(ListenError::InUse) => return failed(libc::EADDRINUSE),
            Err(ListenError::BadPort) => return unsupported("listen without a port"),
            Err(ListenError::BadLocalAddress) => return failed(libc::EADDRNOTAVAIL),
            Err(_) => return failed(libc::ENOBUFS),
        };
        // One ahead, so that readiness is known before accept is called.
        let _ = stack.accept(listener, 1);
        stream.role = Role::Listening { listener, queue: Default::default() };
        ended(0)
    }

    pub(super) fn accept(&mut self, fd: Fd, flags: i32, host: &mut Host) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let Role::Listening { listener, queue } = &mut stream.role else {
            return failed(libc::EINVAL);
        };
        let Some(conn) = queue.pop_front() else {
            return if stream.is_nonblocking { failed(libc::EAGAIN) } else { Ok(None) };
        };
        let _ = host.stack()?.accept(*listener, 1);
        let mut child = Stream::new(stream.domain, flags & libc::SOCK_NONBLOCK != 0);
        child.role = Role::Connected(conn);
        child.options.clone_from(&stream.options);
        apply_options(&child, host)?;
        ended(i64::from(self.keep(Entry::Stream(child))))
    }

    pub(super) fn connect(&mut self, fd: Fd, address: SocketAddr, host: &mut Host) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let is_first = stream.written == 0;
        stream.written = 1;
        match &stream.role {
            Role::Fresh => {}
            Role::Connecting(_) if stream.is_nonblocking || is_first => {
                return failed(libc::EALREADY);
            }
            Role::Connecting(_) => return Ok(None),
            Role::Connected(_) if is_first => return failed(libc::EISCONN),
            Role::Connected(_) => return ended(0),
            Role::Listening { .. } => return failed(libc::EISCONN),
            Role::Over => {
                let error = stream.take_error().unwrap_or(libc::ECONNABORTED);
                return failed(error);
            }
        }
        let local = stream.local;
        let now = host.now();
        let (stack, memory) = host.parts()?;
        let conn = stack.connect(now, unmapped(address), local, (Host::pool(), memory));
        let conn = match conn {
            Ok(conn) => conn,
            Err(ConnectError::NoRoute) => return failed(libc::ENETUNREACH),
            Err(ConnectError::BadRemoteAddress) => return failed(libc::ECONNREFUSED),
            Err(ConnectError::TooManyConnections) => return failed(libc::ENOBUFS),
            Err(_) => return failed(libc::EADDRNOTAVAIL),
        };
        stream.role = Role::Connecting(conn);
        apply_options(stream, host)?;
        if stream.is_nonblocking { failed(libc::EINPROGRESS) } else { Ok(None) }
    }

    pub(super) fn receive(&mut self, fd: Fd, want: usize, flags: i32, host: &mut Host) -> Attempt {
        if flags & libc::MSG_OOB != 0 || flags & libc::MSG_ERRQUEUE != 0 {
            return unsupported("recv with MSG_OOB or MSG_ERRQUEUE");
        }
        if let Err(errno) = self.stream(fd) {
            return failed(errno);
        }
        self.take_bytes(fd, want, host)?;
        let Ok(stream) = self.stream(fd) else { return failed(libc::EBADF) };
        if matches!(stream.role, Role::Fresh | Role::Listening { .. }) {
            return failed(libc::ENOTCONN);
        }
        let is_blocking = !stream.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && is_blocking;
        let count = stream.taken.len().min(want);
        let is_at_end = stream.is_ended || stream.is_read_shut || stream.role == Role::Over;
        if count == want || (count > 0 && !wants_all) || (is_at_end && count > 0) {
            let bytes: Vec<u8> = if flags & libc::MSG_PEEK != 0 {
                stream.taken.iter().take(count).copied().collect()
            } else {
                stream.taken.drain(..count).collect()
            };
            let result = i64::try_from(count).unwrap_or(i64::MAX);
            return Ok(Some(Returned {
                output: Output::Bytes(bytes),
                ..Returned::success(result)
            }));
        }
        if let Some(error) = stream.take_error() {
            return failed(error);
        }
        if is_at_end {
            return ended(0);
        }
        if is_blocking { Ok(None) } else { failed(libc::EAGAIN) }
    }

    /// Takes bytes that the stack has in order, as many as are wanted, and learns of the end.
    fn take_bytes(&mut self, fd: Fd, want: usize, host: &mut Host) -> Result<(), SystemError> {
        loop {
            let Ok(stream) = self.stream(fd) else { return Ok(()) };
            let Some(conn) = stream.conn() else { return Ok(()) };
            let is_enough = stream.taken.len() >= want && !stream.taken.is_empty();
            let Ok(info) = host.stack()?.info(conn) else { return Ok(()) };
            let is_there = info.unread_bytes > 0 || is_half_closed(info.state);
            if is_enough || stream.is_ended || !is_there {
                return Ok(());
            }
            let now = host.now();
            if host.stack()?.receive(now, conn).is_err() {
                return Ok(());
            }
            let events = host.pump()?;
            if events.is_empty() {
                return Ok(());
            }
            for event in events {
                self.on_event(event, host);
            }
        }
    }

    pub(super) fn send(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        (flags, has_address): (i32, bool),
        host: &mut Host,
    ) -> Attempt {
        if flags & libc::MSG_FASTOPEN != 0 {
            return unsupported("TCP Fast Open");
        }
        if flags & (libc::MSG_MORE | libc::MSG_ZEROCOPY) != 0 {
            return unsupported("send with MSG_MORE or MSG_ZEROCOPY");
        }
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        if has_address && stream.conn().is_some() {
            return failed(libc::EISCONN);
        }
        let is_blocking = !stream.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let conn = match stream.role {
            Role::Connected(conn) if !stream.is_write_shut => conn,
            Role::Connecting(_) if is_blocking => return Ok(None),
            Role::Connecting(_) => return failed(libc::EAGAIN),
            _ => return failed(stream.take_error().unwrap_or(libc::EPIPE)),
        };
        let queued = queue(conn, &bytes[stream.written..], host)?;
        stream.written += queued;
        if flags & libc::MSG_OOB != 0 && stream.written == bytes.len() {
            let now = host.now();
            let (stack, memory) = host.parts()?;
            let _ = stack.set_option(now, conn, ConnOption::Urgent, memory);
        }
        let written = i64::try_from(stream.written).unwrap_or(i64::MAX);
        if stream.written == bytes.len() || (stream.written > 0 && !is_blocking) {
            return ended(written);
        }
        if is_blocking { Ok(None) } else { failed(libc::EAGAIN) }
    }

    pub(super) fn shutdown(&mut self, fd: Fd, how: i32, host: &mut Host) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let Some(conn) = stream.conn() else { return failed(libc::ENOTCONN) };
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return failed(libc::EINVAL);
        }
        if how != libc::SHUT_WR {
            stream.is_read_shut = true;
        }
        if how != libc::SHUT_RD && !stream.is_write_shut {
            stream.is_write_shut = true;
            let now = host.now();
            let (stack, memory) = host.parts()?;
            let _ = stack.shutdown(now, conn, memory);
        }
        ended(0)
    }

    pub(super) fn close(&mut self, fd: Fd, host: &mut Host) -> Attempt {
        let Some(entry) = self.forget(fd) else { return failed(libc::EBADF) };
        let Entry::Stream(stream) = entry else { return ended(0) };
        let now = host.now();
        if !host.is_running() {
            return ended(0);
        }
        let (stack, memory) = host.parts()?;
        // What was over already needs no more of the stack.
        let _ = match &stream.role {
            Role::Listening { listener, queue } => {
                for conn in queue {
                    let _ = stack.abort(now, *conn, memory);
                }
                stack.unlisten(now, *listener, memory)
            }
            Role::Connecting(conn) | Role::Connected(conn) => {
                let linger = stream.options.get(&(libc::SOL_SOCKET, libc::SO_LINGER));
                let resets = linger.is_some_and(|value| int(value) != 0 && int(&value[4..]) == 0);
                // Bytes that were taken and never read are lost, and the peer is told so.
                if resets || !stream.taken.is_empty() {
                    stack.abort(now, *conn, memory)
                } else {
                    stack.close(now, *conn, memory)
                }
            }
            Role::Fresh | Role::Over => Ok(()),
        };
        ended(0)
    }

    pub(super) fn set_option(
        &mut self,
        fd: Fd,
        (level, name): (i32, i32),
        value: &[u8],
        host: &mut Host,
    ) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        match (level, name) {
            key if WITHOUT_EFFECT.contains(&key) => {}
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_LINGER)
            | (
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
                | libc::TCP_USER_TIMEOUT
                | libc::TCP_QUICKACK
                | TCP_KEEPINIT,
            ) => {}
            // The largest value means that there is no such limit.
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) if int(value) == -1 => {}
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {
                // Known before the first SYN, it decides on the window and its scale.
                if !host.is_running() {
                    set_buffer(name, value, host);
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
                let name = String::from_utf8_lossy(&value[..end]).into_owned();
                let knob = crate::knobs::Knob {
                    name: "net.ipv4.tcp_congestion_control".to_owned(),
                    value: name.clone(),
                };
                if congestion(host) != name && host.turn(&knob) != crate::system::Turned::Done {
                    return unsupported(format!("congestion control {name} from here on"));
                }
            }
            _ => return unsupported(option_name(level, name)),
        }
        stream.options.insert((level, name), value.to_vec());
        apply_options(stream, host)?;
        ended(0)
    }

    pub(super) fn get_option(
        &mut self,
        fd: Fd,
        (level, name): (i32, i32),
        bytes: usize,
        host: &Host,
    ) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let info = stream.conn().and_then(|conn| host.running()?.info(conn).ok());
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => stream.take_error().unwrap_or(0),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            // The kernel doubles what it is told, and tells that (socket(7)).
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF)
                if stream.options.contains_key(&(level, name)) =>
            {
                let told = stream.options.get(&(level, name)).map_or(0, |value| int(value));
                i32::try_from(told.saturating_mul(2)).unwrap_or(i32::MAX)
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                let configured = host.config.tcp.receive_buffer;
                info.map_or(configured, |info| info.receive_buffer_bytes).cast_signed()
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let configured = host.config.tcp.send_buffer;
                info.map_or(configured, |info| info.send_buffer_bytes).cast_signed()
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let mss = info.map_or(megapipe_stack::limits::MSS_DEFAULT, |info| info.mss);
                i32::from(mss)
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let mut value = congestion(host).as_bytes().to_vec();
                value.resize(bytes.max(value.len()), 0);
                return Ok(Some(Returned { output: Output::Bytes(value), ..Returned::success(0) }));
            }
            key => match stream.options.get(&key) {
                Some(value) => {
                    return Ok(Some(Returned {
                        output: Output::Bytes(value.clone()),
                        ..Returned::success(0)
                    }));
                }
                None if WITHOUT_EFFECT.contains(&key) => 0,
                None => return unsupported(option_name(level, name)),
            },
        };
        let mut value = value.to_ne_bytes().to_vec();
        value.truncate(bytes);
        Ok(Some(Returned { output: Output::Bytes(value), ..Returned::success(0) }))
    }
}

/// Data that the peer will send no more of, or a connection that ends.
fn is_half_closed(state: megapipe_stack::TcpState) -> bool {
    use megapipe_stack::TcpState::{CloseWait, Closed, Closing, LastAck};
    matches!(state, CloseWait | Closed | Closing | LastAck)
}

fn any_of(domain: i32) -> IpAddr {
    if domain == libc::AF_INET6 {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    }
}

/// Queues bytes in chunks of a buffer; how many the stack took.
fn queue(conn: ConnId, bytes: &[u8], host: &mut Host) -> Result<usize, SystemError> {
    let now = host.now();
    let (stack, memory) = host.parts()?;
    let mut queued = 0;
    for part in bytes.chunks(POOL_BUFFER_BYTES as usize) {
        let Some(chunk) = memory.chunk_of(part) else { break };
        match stack.send(now, conn, chunk, memory) {
            Ok(()) => queued += part.len(),
            Err(OperationError::QueueFull | _) => {
                memory.free(chunk.buf);
                break;
            }
        }
    }
    Ok(queued)
}

/// SO_RCVBUF and SO_SNDBUF fix a buffer's size.
fn set_buffer(name: i32, value: &[u8], host: &mut Host) {
    let bytes = u32::try_from(int(value)).unwrap_or(0).max(1);
    let tcp = &mut host.config.tcp;
    if name == libc::SO_RCVBUF {
        (tcp.receive_buffer, tcp.receive_buffer_max) = (bytes, bytes);
    } else {
        (tcp.send_buffer, tcp.send_buffer_max) = (bytes, bytes);
    }
}

fn congestion(host: &Host) -> &'static str {
    match host.config.tcp.congestion {
        megapipe_stack::Congestion::Cubic => "cubic",
        megapipe_stack::Congestion::NewReno => "reno",
    }
}

/// Hands a socket's options to its connection.
pub(super) fn apply_options(stream: &Stream, host: &mut Host) -> Result<(), SystemError> {
    let Some(conn) = stream.conn() else { return Ok(()) };
    let tcp = libc::IPPROTO_TCP;
    let option = |level: i32, name: i32| stream.options.get(&(level, name)).map(|it| int(it));
    let seconds =
        |name| option(tcp, name).map(|it| Duration::from_secs(u64::try_from(it).unwrap_or(0)));
    let count = |value: i64| u8::try_from(value).unwrap_or(u8::MAX);
    let keepalive = option(libc::SOL_SOCKET, libc::SO_KEEPALIVE).map(|on| {
        let idle = seconds(libc::TCP_KEEPIDLE).unwrap_or(KEEPALIVE_IDLE);
        ConnOption::KeepaliveIdle((on != 0).then_some(idle))
    });
    let user_timeout = match (&stream.role, seconds(TCP_KEEPINIT)) {
        (Role::Connecting(_), Some(limit)) => Some(ConnOption::UserTimeout(Some(limit))),
        (_, limit) => {
            let ms = option(tcp, libc::TCP_USER_TIMEOUT).or_else(|| limit.map(|_| 0));
            let ms = ms.map(|ms| u64::try_from(ms).unwrap_or(0));
            ms.map(|ms| ConnOption::UserTimeout((ms > 0).then(|| Duration::from_millis(ms))))
        }
    };
    let buffer = |value: i64| u32::try_from(value).unwrap_or(0).max(1);
    let options = [
        option(tcp, libc::TCP_NODELAY).map(|on| ConnOption::NoDelay(on != 0)),
        keepalive,
        seconds(libc::TCP_KEEPINTVL).map(ConnOption::KeepaliveInterval),
        option(tcp, libc::TCP_KEEPCNT).map(|it| ConnOption::KeepaliveProbes(count(it))),
        user_timeout,
        option(libc::SOL_SOCKET, libc::SO_RCVBUF).map(|it| ConnOption::ReceiveBuffer(buffer(it))),
        option(libc::SOL_SOCKET, libc::SO_SNDBUF).map(|it| ConnOption::SendBuffer(buffer(it))),
        option(tcp, libc::TCP_QUICKACK).map(|on| ConnOption::QuickAck(on != 0)),
    ];
    let now = host.now();
    let (stack, memory) = host.parts()?;
    for option in options.into_iter().flatten() {
        // A connection that is over has no options any more.
        let _ = stack.set_option(now, conn, option, memory);
    }
    Ok(())
}

/// An option's value as a number, 0 where it is too short for one.
fn int(value: &[u8]) -> i64 {
    let bytes = value.get(..4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or_else(
        || value.first().copied().map_or(0, i64::from),
        |bytes| i64::from(i32::from_ne_bytes(bytes)),
    )
}
