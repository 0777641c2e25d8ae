//! The listening sockets of a server: one address, one channel or many.
//!
//! Three cases [MegaPipe 3.4.1]:
//! - TCP, partitioned (the default): every channel listens for itself on the same port and takes
//!   the connections of its own processors. The first channel binds; where it asked for port 0
//!   the others join the port that it was given. A port at which another process listens is
//!   refused, also if that would share it: of two servers that start at once one is refused.
//! - TCP with `--no-partition`: one socket whose only accept queue all channels share, as servers
//!   had it before SO_REUSEPORT. It is what the paper compares with.
//! - UNIX: a path can be bound once, so channels share the socket in any case.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use megapipe::{
    Accept, Address, BoundPath, Channel, CpuMask, Handle, ListenError, ListenOptions, SubmitError,
    UnixAddress,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use slab::Slab;

use super::admission::Admission;
use super::error::ServeError;
use crate::limits;
use crate::memory::require;

/// Cookies from here up belong to the frame; a server numbers its connections below.
pub const FRAME_COOKIES: u64 = 1 << 63;

/// Where a server listens, before its channels exist.
#[derive(Debug)]
pub(crate) enum ServerEndpoint {
    /// Every channel makes its own socket on this address.
    Partitioned(Address),
    /// All channels share this socket.
    Shared {
        address: Address,
        /// A UNIX socket's path, removed before the socket closes.
        _path: Option<BoundPath>,
        socket: OwnedFd,
    },
}

impl ServerEndpoint {
    /// Decides between the cases above, and binds what is shared.
    pub(crate) fn new(address: Address, partition: bool, backlog: u32) -> Result<Self, ServeError> {
        let shared = match &address {
            Address::Inet(inet) if !partition => bind_inet(*inet, backlog),
            Address::Inet(_) => return Ok(Self::Partitioned(address)),
            Address::Unix(unix) => bind_unix(unix, backlog),
        };
        match shared {
            Ok(BoundListener { resolved, path, socket }) => {
                let address = resolved.map_or(address, Address::Inet);
                Ok(Self::Shared { address, _path: path, socket })
            }
            Err(source) => Err(ServeError::Bind { address, source }),
        }
    }

    /// The address; before the first channel listens, as in the options.
    pub(crate) const fn address(&self) -> &Address {
        match self {
            Self::Partitioned(address) | Self::Shared { address, .. } => address,
        }
    }

    /// Makes this channel listen. Returns the handle.
    pub(crate) fn listen(
        &self,
        channel: &mut Channel,
        mask: Option<CpuMask>,
        backlog: u32,
        cookie: u64,
    ) -> Result<Handle, ServeError> {
        match self {
            Self::Partitioned(address) => {
                let mut options = ListenOptions::default().backlog(backlog).only_this_process(true);
                if let Some(mask) = mask {
                    options = options.cpu_mask(mask);
                }
                channel.listen(address, &options, cookie).map_err(|error| {
                    let address = address.clone();
                    match error {
                        // Which step was refused makes no difference to a person.
                        ListenError::Kernel { source, what: "bind" | "listen" } => {
                            ServeError::Bind { address, source }
                        }
                        source => ServeError::Listen { address, source },
                    }
                })
            }
            Self::Shared { address, socket, .. } => {
                let bind = |source| ServeError::Bind { address: address.clone(), source };
                let register = |source| ServeError::Register { address: address.clone(), source };
                let socket = socket.try_clone().map_err(bind)?;
                channel.register(socket, cookie, None).map_err(register)
            }
        }
    }
}

/// A listening socket that channels share.
struct BoundListener {
    /// Its Internet address, with the port that the kernel chose.
    resolved: Option<SocketAddr>,
    path: Option<BoundPath>,
    socket: OwnedFd,
}

/// A socket that may bind an address with connections in TIME-WAIT, but not one with a listener.
fn unbound(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

fn bind_inet(address: SocketAddr, backlog: u32) -> io::Result<BoundListener> {
    let socket = unbound(address)?;
    // Accepted connections inherit it; nothing is saved by waiting to send.
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let resolved = rustix::net::getsockname(&socket)?;
    Ok(BoundListener { resolved: SocketAddr::try_from(resolved).ok(), path: None, socket })
}

/// Binds a UNIX stream socket; [`BoundPath`] defines what happens to a path that exists.
fn bind_unix(unix: &UnixAddress, backlog: u32) -> io::Result<BoundListener> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = match unix {
        UnixAddress::Path(path) => Some(BoundPath::listen(socket.as_fd(), path, backlog)?),
        UnixAddress::Abstract(name) => {
            rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
            rustix::net::listen(&socket, backlog)?;
            None
        }
        UnixAddress::Unnamed => return Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    Ok(BoundListener { resolved: None, path, socket })
}

/// The listeners of one channel, and the number of connections that each may still accept.
///
/// A shard owns this, starts it, and reports each connection's start and end:
/// [`ServerListeners::start`] once, [`ServerListeners::on_accept`] or
/// [`ServerListeners::on_accept_error`] for each `Accept` completion, [`ServerListeners::on_close`]
/// for each connection that is unregistered, [`ServerListeners::on_tick`] on each tick,
/// [`ServerListeners::close`] to drain.
#[derive(Debug)]
pub struct ServerListeners {
    listeners: Vec<ChannelListener>,
    accept: Option<Accept>,
}

#[derive(Debug)]
struct ChannelListener {
    handle: Handle,
    books: Admission,
}

impl ServerListeners {
    /// `limit` connections, divided among the listeners with `handles`.
    pub(crate) fn new(handles: Vec<Handle>, limit: u32) -> Self {
        let share = (limit / u32::try_from(handles.len()).unwrap_or(u32::MAX).max(1)).max(1);
        let listeners = handles.into_iter();
        let listeners = listeners
            .map(|handle| ChannelListener { handle, books: Admission::new(share) })
            .collect();
        Self { listeners, accept: None }
    }

    /// Begins to accept; `accept` has the options (its count is replaced by the allowed number).
    ///
    /// # Errors
    /// As [`Channel::accept`].
    pub fn start(&mut self, channel: &mut Channel, accept: Accept) -> Result<(), SubmitError> {
        self.accept = Some(accept);
        for listener in &mut self.listeners {
            let mut accept = accept;
            accept.count = listener.books.start();
            channel.accept(listener.handle, accept)?;
        }
        Ok(())
    }

    /// A table for what a server keeps of each connection, with room for all that may be open at
    /// once, where that is little or there is memory. Room costs memory only where it is used; a
    /// table that grows leaves its former, smaller memory behind.
    pub(crate) fn peer_table<T>(&self) -> Slab<T> {
        let limit: usize = self.listeners.iter().map(|it| it.books.limit() as usize).sum();
        // A vacant place may need a word for itself.
        let place_bytes = size_of::<T>() + size_of::<usize>();
        let count = limit.min(limits::PEER_TABLE_BYTES_MAX / place_bytes);
        let has_memory = require(count * place_bytes + limits::SPARE_BYTES).is_ok();
        Slab::with_capacity(if has_memory { count } else { 0 })
    }

    /// Returns the index of the listener with this cookie; `None` for a connection's cookie.
    #[must_use]
    pub fn index_of(&self, cookie: u64) -> Option<usize> {
        let index = usize::try_from(cookie.checked_sub(FRAME_COOKIES)?).ok()?;
        (index < self.listeners.len()).then_some(index)
    }

    /// A connection was accepted by the listener with this index.
    pub fn on_accept(&mut self, channel: &mut Channel, index: usize) {
        if let Some(listener) = self.listeners.get_mut(index) {
            let credit = listener.books.accepted();
            Self::grant(channel, listener.handle, self.accept, credit);
        }
    }

    /// A connection that the listener with this index accepted was closed.
    pub fn on_close(&mut self, channel: &mut Channel, index: usize) {
        if let Some(listener) = self.listeners.get_mut(index) {
            let credit = listener.books.closed();
            Self::grant(channel, listener.handle, self.accept, credit);
        }
    }

    /// Whether the listener with this index takes no connection before another one ends.
    #[must_use]
    pub fn is_full(&self, index: usize) -> bool {
        self.listeners.get(index).is_some_and(|listener| listener.books.is_full())
    }

    /// An accept of the listener with this index completed with an error.
    pub fn on_accept_error(&mut self, index: usize) {
        if let Some(listener) = self.listeners.get_mut(index) {
            listener.books.failed();
        }
    }

    /// Tries again what failed since the last tick.
    pub fn on_tick(&mut self, channel: &mut Channel) {
        for listener in &mut self.listeners {
            let credit = listener.books.on_tick();
            Self::grant(channel, listener.handle, self.accept, credit);
        }
    }

    fn grant(channel: &mut Channel, listener: Handle, accept: Option<Accept>, credit: u32) {
        if let (1.., Some(mut accept)) = (credit, accept) {
            accept.count = credit;
            // A listener that is being closed takes no more; nothing is lost by that.
            let _ = channel.accept(listener, accept);
        }
    }

    /// Stops listening. Connections that are open stay open. The channel drains what the kernel
    /// has completed already; those arrive as `Accept` completions until it is done.
    pub fn close(&mut self, channel: &mut Channel) {
        self.accept = None;
        for listener in &self.listeners {
            // Stale only if it was closed before.
            let _ = channel.unregister(listener.handle);
        }
    }
}

/// A number above the keys of all connections in a [`ServerListeners::peer_table`].
pub(crate) fn end_of_keys<T>(peers: &Slab<T>) -> usize {
    peers.iter().next_back().map_or(0, |(key, _)| key + 1)
}
