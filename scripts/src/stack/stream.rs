//! The calls of a TCP socket that have to do with its connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use megapipe_stack::{ConnOption, ConnectError, ListenError};

use super::host::Host;
use super::options::{apply_options, int};
use super::sockets::{Attempt, Entry, Role, Sockets, Stream, ended, failed, unmapped, unsupported};
use super::write::unsent_bytes;
use crate::symbols::TCP_CM_INQ;
use crate::system::{Control, Fd, Form, Output, Returned, SystemError};

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
        // One more than this waits in the stack, and another is taken ahead.
        let backlog = u32::try_from(backlog).unwrap_or(0).saturating_sub(1);
        let stack = host.stack()?;
        stream.backlog = backlog;
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

    /// What the stack is made with has changed before anything happened: it is made anew, with the
    /// same listeners.
    pub(super) fn listen_anew(&mut self, host: &mut Host) -> Result<(), SystemError> {
        host.unmake();
        if host.is_running() {
            return Ok(());
        }
        for entry in self.open.values_mut() {
            let Entry::Stream(stream) = entry else { continue };
            let Role::Listening { listener, .. } = &mut stream.role else { continue };
            let local = stream.local.unwrap_or_else(|| SocketAddr::new(any_of(stream.domain), 0));
            let stack = host.stack()?;
            if let Ok(again) = stack.listen(local, stream.backlog, Host::pool()) {
                let _ = stack.accept(again, 1);
                *listener = again;
            }
        }
        Ok(())
    }

    pub(super) fn accept(&mut self, fd: Fd, flags: i32, host: &mut Host) -> Attempt {
        let has_timed_out = self.has_timed_out(host);
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let Role::Listening { listener, queue } = &mut stream.role else {
            return failed(libc::EINVAL);
        };
        let Some(conn) = queue.pop_front() else {
            let gives_up = stream.is_nonblocking || has_timed_out;
            return if gives_up { failed(libc::EAGAIN) } else { Ok(None) };
        };
        let _ = host.stack()?.accept(*listener, 1);
        let mut child = Stream::new(stream.domain, flags & libc::SOCK_NONBLOCK != 0);
        child.role = Role::Connected(conn);
        child.options.clone_from(&stream.options);
        apply_options(&child, None, host)?;
        ended(i64::from(self.keep(Entry::Stream(child))))
    }

    /// connect(2) to AF_UNSPEC: the socket is as new.
    pub(super) fn disconnect(&mut self, fd: Fd, host: &mut Host) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        if let Some(conn) = stream.conn() {
            let now = host.now();
            let (stack, memory) = host.parts()?;
            let _ = stack.abort(now, conn, memory);
        }
        let mut fresh = Stream::new(stream.domain, stream.is_nonblocking);
        std::mem::swap(&mut fresh.options, &mut stream.options);
        *stream = fresh;
        ended(0)
    }

    pub(super) fn connect(&mut self, fd: Fd, address: SocketAddr, host: &mut Host) -> Attempt {
        let has_timed_out = self.has_timed_out(host);
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
            Role::Connecting(_) if has_timed_out => return failed(libc::EINPROGRESS),
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
        host.run();
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
        apply_options(stream, None, host)?;
        if stream.is_nonblocking { failed(libc::EINPROGRESS) } else { Ok(None) }
    }

    pub(super) fn receive(
        &mut self,
        fd: Fd,
        want: usize,
        (flags, form): (i32, Form),
        host: &mut Host,
    ) -> Attempt {
        if flags & libc::MSG_OOB != 0 {
            return unsupported("recv with MSG_OOB");
        }
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        if flags & libc::MSG_ERRQUEUE != 0 {
            let domain = stream.domain;
            let Some((control, flags)) = stream.error_queue.take(domain) else {
                return failed(libc::EAGAIN);
            };
            let output = Output::Message { bytes: Vec::new(), flags, control };
            return Ok(Some(Returned { output, ..Returned::success(0) }));
        }
        self.take_bytes(fd, want, host)?;
        let has_timed_out = self.has_timed_out(host);
        let Ok(stream) = self.stream(fd) else { return failed(libc::EBADF) };
        if matches!(stream.role, Role::Fresh | Role::Listening { .. }) {
            return failed(libc::ENOTCONN);
        }
        let is_blocking = !stream.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let low_water = stream.number(libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
        let low_water = usize::try_from(low_water).unwrap_or(1).clamp(1, want.max(1));
        let enough = if flags & libc::MSG_WAITALL != 0 { want } else { low_water };
        let count = stream.taken.len().min(want);
        let is_at_end = stream.is_ended || stream.is_read_shut || stream.role == Role::Over;
        let waits = is_blocking && !has_timed_out;
        if count == want || (count > 0 && (count >= enough || is_at_end || !waits)) {
            let bytes: Vec<u8> = if flags & libc::MSG_PEEK != 0 {
                stream.taken.iter().take(count).copied().collect()
            } else {
                stream.taken.drain(..count).collect()
            };
            return self.received(fd, (bytes, flags), form, host);
        }
        if let Some(error) = stream.take_error() {
            return failed(error);
        }
        if is_at_end {
            return self.received(fd, (Vec::new(), flags), form, host);
        }
        if waits { Ok(None) } else { failed(libc::EAGAIN) }
    }

    /// What a receiving call returns: MSG_TRUNC means that nobody wants the bytes themselves.
    fn received(
        &mut self,
        fd: Fd,
        (bytes, flags): (Vec<u8>, i32),
        form: Form,
        host: &mut Host,
    ) -> Attempt {
        let result = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let bytes = if flags & libc::MSG_TRUNC != 0 { Vec::new() } else { bytes };
        let output = match form {
            Form::Message => {
                Output::Message { bytes, flags: 0, control: self.control_of(fd, host) }
            }
            _ => Output::Bytes(bytes),
        };
        Ok(Some(Returned { output, ..Returned::success(result) }))
    }

    /// The control messages of a receive: TCP_INQ's, how much more there is to read, where only the
    /// end of the stream is left as 1.
    fn control_of(&mut self, fd: Fd, host: &Host) -> Vec<Control> {
        let Ok(stream) = self.stream(fd) else { return Vec::new() };
        if stream.number(libc::IPPROTO_TCP, libc::TCP_INQ).unwrap_or(0) == 0 {
            return Vec::new();
        }
        let info = stream.conn().and_then(|conn| host.running()?.info(conn).ok());
        let unread = info.as_ref().map_or(0, |info| info.unread_bytes as usize);
        let has_end = stream.is_ended || info.is_none_or(|info| is_half_closed(info.state));
        let left = match stream.taken.len() + unread {
            0 => usize::from(has_end),
            left => left,
        };
        let data = i32::try_from(left).unwrap_or(i32::MAX).to_ne_bytes().to_vec();
        vec![Control { level: libc::IPPROTO_TCP, kind: TCP_CM_INQ, data }]
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
            let events = host.events();
            host.transmit();
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
        let has_timed_out = self.has_timed_out(host);
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
        let queued = stream.queue(conn, bytes, flags & libc::MSG_MORE != 0, host)?;
        stream.written += queued;
        if flags & libc::MSG_OOB != 0 && stream.written == bytes.len() {
            let now = host.now();
            let (stack, memory) = host.parts()?;
            let _ = stack.set_option(now, conn, ConnOption::Urgent, memory);
        }
        if flags & libc::MSG_EOR != 0 && stream.written == bytes.len() {
            let now = host.now();
            let (stack, memory) = host.parts()?;
            let _ = stack.set_option(now, conn, ConnOption::EndOfRecord, memory);
        }
        let written = i64::try_from(stream.written).unwrap_or(i64::MAX);
        let gives_up = !is_blocking || has_timed_out;
        if stream.written == bytes.len() || (stream.written > 0 && gives_up) {
            stream.on_written(flags);
            return ended(written);
        }
        if has_timed_out {
            return failed(libc::EAGAIN);
        }
        if is_blocking { Ok(None) } else { failed(libc::EAGAIN) }
    }

    /// Tells the error queues how far the connections have come.
    pub(super) fn look_at_sent(&mut self, host: &Host) {
        for entry in self.open.values_mut() {
            let Entry::Stream(stream) = entry else { continue };
            let Some(conn) = stream.conn() else { continue };
            let Some(Ok(info)) = host.running().map(|stack| stack.info(conn)) else { continue };
            let unsent = unsent_bytes(&info);
            stream.error_queue.on_progress(unsent, info.queued_bytes, host.now_us());
        }
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
        if host.running().is_none() {
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
                let seconds = |value: &[u8]| value.get(4..).map_or(0, int);
                let resets = linger.is_some_and(|value| int(value) != 0 && seconds(value) == 0);
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

impl Stream {
    /// A send is over, with bytes that were taken: whoever asked is told what becomes of them.
    fn on_written(&mut self, flags: i32) {
        let stamps = self.number(libc::SOL_SOCKET, libc::SO_TIMESTAMPING).unwrap_or(0);
        self.error_queue.on_written(self.written, stamps);
        // Without the option the flag means nothing.
        let is_told = self.number(libc::SOL_SOCKET, libc::SO_ZEROCOPY).unwrap_or(0) != 0;
        if flags & libc::MSG_ZEROCOPY != 0 && is_told && self.written > 0 {
            self.error_queue.on_copied();
        }
    }
}
