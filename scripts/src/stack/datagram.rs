//! UDP sockets on the stack's datagram endpoints.
//!
//! Invariants: a datagram that is larger than the buffer it is read into loses its end, as on
//! Linux; what a connected socket's peer did not send is not for that socket.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use megapipe_stack::{BindError, DatagramId, Memory, OperationError};

use super::host::Host;
use super::sockets::{Attempt, Entry, Sockets, ended, failed, unmapped, unsupported};
use crate::limits::POOL_BUFFER_BYTES;
use crate::system::{Call, Fd, Output, Returned, SystemError};

/// A UDP socket.
pub(super) struct Datagrams {
    domain: i32,
    pub(super) is_nonblocking: bool,
    endpoint: Option<DatagramId>,
    peer: Option<SocketAddr>,
    queue: VecDeque<Vec<u8>>,
    /// SO_ERROR.
    error: i32,
}

impl Datagrams {
    pub(super) fn new(domain: i32, is_nonblocking: bool) -> Self {
        Self {
            domain,
            is_nonblocking,
            endpoint: None,
            peer: None,
            queue: VecDeque::new(),
            error: 0,
        }
    }

    pub(super) fn endpoint(&self) -> Option<DatagramId> {
        self.endpoint
    }

    pub(super) fn on_datagram(&mut self, from: SocketAddr, bytes: Vec<u8>) {
        if self.peer.is_none_or(|peer| peer == from) {
            self.queue.push_back(bytes);
        }
    }

    pub(super) fn on_refused(&mut self, to: SocketAddr) {
        if self.peer == Some(to) {
            self.error = libc::ECONNREFUSED;
        }
    }

    /// poll's bits.
    pub(super) fn ready(&self) -> u32 {
        let mut mask = (libc::POLLOUT | libc::POLLWRNORM) as u32;
        if !self.queue.is_empty() || self.error != 0 {
            mask |= (libc::POLLIN | libc::POLLRDNORM) as u32;
        }
        if self.error != 0 {
            mask |= libc::POLLERR as u32;
        }
        mask
    }

    fn take_error(&mut self) -> Option<i32> {
        let error = std::mem::take(&mut self.error);
        (error != 0).then_some(error)
    }

    /// The endpoint, bound to `local`, or to a port of the stack's choice.
    fn bound(
        &mut self,
        local: Option<SocketAddr>,
        host: &mut Host,
    ) -> Result<Result<DatagramId, i32>, SystemError> {
        if let Some(endpoint) = self.endpoint {
            return Ok(Ok(endpoint));
        }
        let any = match self.domain {
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let local = local.unwrap_or_else(|| SocketAddr::new(any, 0));
        host.run();
        Ok(match host.stack()?.bind_datagram(local, Host::pool()) {
            Ok(endpoint) => {
                self.endpoint = Some(endpoint);
                Ok(endpoint)
            }
            Err(BindError::InUse) => Err(libc::EADDRINUSE),
            Err(BindError::BadLocalAddress) => Err(libc::EADDRNOTAVAIL),
            Err(_) => Err(libc::ENOBUFS),
        })
    }

    fn send(&mut self, bytes: &[u8], to: Option<SocketAddr>, host: &mut Host) -> Attempt {
        if let Some(error) = self.take_error() {
            return failed(error);
        }
        let Some(to) = to.map(unmapped).or(self.peer) else { return failed(libc::EDESTADDRREQ) };
        let endpoint = match self.bound(None, host)? {
            Ok(endpoint) => endpoint,
            Err(errno) => return failed(errno),
        };
        let now = host.now();
        let (stack, memory) = host.parts()?;
        if bytes.len() > POOL_BUFFER_BYTES as usize {
            return failed(libc::EMSGSIZE);
        }
        let Some(chunk) = memory.chunk_of(bytes) else { return failed(libc::ENOBUFS) };
        let Err(error) = stack.send_datagram(now, endpoint, (to, chunk), memory) else {
            return ended(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        };
        memory.free(chunk.buf);
        failed(match error {
            OperationError::TooLong => libc::EMSGSIZE,
            OperationError::QueueFull => libc::EAGAIN,
            _ => libc::ENETUNREACH,
        })
    }

    fn receive(&mut self, want: usize, flags: i32) -> Attempt {
        if let Some(error) = self.take_error() {
            return failed(error);
        }
        let is_peek = flags & libc::MSG_PEEK != 0;
        let next = if is_peek { self.queue.front().cloned() } else { self.queue.pop_front() };
        let Some(mut bytes) = next else {
            let is_blocking = !self.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
            return if is_blocking { Ok(None) } else { failed(libc::EAGAIN) };
        };
        let whole = bytes.len();
        bytes.truncate(want);
        let len = if flags & libc::MSG_TRUNC != 0 { whole } else { bytes.len() };
        let result = i64::try_from(len).unwrap_or(i64::MAX);
        Ok(Some(Returned { output: Output::Bytes(bytes), ..Returned::success(result) }))
    }
}

impl Sockets {
    fn datagrams(&mut self, fd: Fd) -> Option<&mut Datagrams> {
        match self.open.get_mut(&fd) {
            Some(Entry::Datagrams(datagrams)) => Some(datagrams),
            _ => None,
        }
    }

    /// Tries a call of a UDP socket; outer none: it is not one of those.
    pub(super) fn attempt_datagram(&mut self, call: &Call, host: &mut Host) -> Option<Attempt> {
        match call {
            Call::Bind { fd, address } => {
                let datagrams = self.datagrams(*fd)?;
                if datagrams.endpoint.is_some() {
                    return Some(failed(libc::EINVAL));
                }
                Some(match datagrams.bound(Some(unmapped(*address)), host) {
                    Ok(Ok(_)) => ended(0),
                    Ok(Err(errno)) => failed(errno),
                    Err(error) => Err(error),
                })
            }
            Call::Connect { fd, address } => {
                let datagrams = self.datagrams(*fd)?;
                datagrams.peer = address.map(unmapped);
                Some(match datagrams.bound(None, host) {
                    Ok(Ok(_)) => ended(0),
                    Ok(Err(errno)) => failed(errno),
                    Err(error) => Err(error),
                })
            }
            Call::Send { fd, parts, to, .. } => {
                Some(self.datagrams(*fd)?.send(&parts.concat(), *to, host))
            }
            Call::Receive { fd, sizes, flags, .. } => {
                Some(self.datagrams(*fd)?.receive(sizes.iter().sum(), *flags))
            }
            Call::Close { fd } => {
                let endpoint = self.datagrams(*fd)?.endpoint;
                self.forget(*fd);
                Some(close(endpoint, host))
            }
            Call::GetOption { fd, level: libc::SOL_SOCKET, name: libc::SO_ERROR, .. } => {
                let error = self.datagrams(*fd)?.take_error().unwrap_or(0);
                let output = Output::Bytes(error.to_ne_bytes().to_vec());
                Some(Ok(Some(Returned { output, ..Returned::success(0) })))
            }
            Call::SetOption { fd, level: libc::SOL_SOCKET, name, .. }
                if matches!(*name, libc::SO_REUSEADDR | libc::SO_REUSEPORT) =>
            {
                self.datagrams(*fd)?;
                Some(ended(0))
            }
            Call::Listen { fd, .. } | Call::Accept { fd, .. } => {
                self.datagrams(*fd)?;
                Some(failed(libc::EOPNOTSUPP))
            }
            Call::Shutdown { fd, .. }
            | Call::SetOption { fd, .. }
            | Call::GetOption { fd, .. }
            | Call::Ioctl { fd, .. } => {
                self.datagrams(*fd)?;
                Some(unsupported("this call of a UDP socket"))
            }
            _ => None,
        }
    }
}

fn close(endpoint: Option<DatagramId>, host: &mut Host) -> Attempt {
    if let Some(endpoint) = endpoint {
        let (stack, memory) = host.parts()?;
        let _ = stack.close_datagram(endpoint, memory);
    }
    ended(0)
}
