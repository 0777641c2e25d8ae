//! Looking into a channel: addresses, options, and why a handle takes the path it takes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::address::Address;
use crate::channel::Channel;
use crate::driver::Driver;
use crate::error::{Misuse, OpError};
use crate::handle::Handle;
use crate::kernel::sys;
use crate::report::{DriverKind, Explain};
use crate::slot::{Kind, Target};

impl<T> Channel<T> {
    /// Returns the local address of a socket. Costs one system call, and several for an lwsocket
    /// without a descriptor: not for the hot path.
    ///
    /// # Errors
    /// [`OpError::BadDescriptor`] for a stale handle or one that is no socket, else the kernel's
    /// error.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let listener = channel.listen(&"127.0.0.1:0".parse()?, &ListenOptions::default(), 0)?;
    /// let address = channel.local_address(listener)?.as_inet().expect("a TCP address");
    /// assert_ne!(address.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_address(&mut self, handle: Handle) -> Result<Address, OpError> {
        #[cfg(feature = "local")]
        if let Some((local, _)) = self.addresses_on_stack(handle)? {
            return Ok(local);
        }
        self.with_descriptor(handle, sys::local_address)
    }

    /// Returns the peer's address of a connected socket. Costs as [`Channel::local_address`] does.
    ///
    /// # Errors
    /// [`OpError::NotConnected`] if there is no peer; else as [`Channel::local_address`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, ConnectOptions};
    ///
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?.into();
    /// let mut channel = Channel::create(Config::default())?;
    /// let connection = channel.connect(&address, &ConnectOptions::default(), 0)?;
    /// channel.dispatch(None)?;
    /// assert_eq!(channel.peer_address(connection)?, address);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer_address(&mut self, handle: Handle) -> Result<Address, OpError> {
        #[cfg(feature = "local")]
        if let Some((_, peer)) = self.addresses_on_stack(handle)? {
            return peer.ok_or(OpError::NotConnected);
        }
        self.with_descriptor(handle, sys::peer_address)
    }

    fn with_descriptor(
        &mut self,
        handle: Handle,
        ask: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<Option<Address>>,
    ) -> Result<Address, OpError> {
        self.check_fork().map_err(|_| OpError::BadDescriptor)?;
        let index = self.state.find(handle).map_err(|_| OpError::BadDescriptor)?;
        let asked = match self.state.slot(index).fd.as_ref() {
            Some(fd) => ask(fd.as_fd()),
            None => {
                let fd = self.descriptor_of_direct(index)?;
                ask(fd.as_fd())
            }
        };
        asked.map_err(|error| OpError::from_io(&error))?.ok_or(OpError::NotConnected)
    }

    /// Returns the kernel's descriptor of a handle, for socket options. `None` if it has none: a
    /// direct descriptor of io_uring, a connection of our own stack. The channel keeps owning it.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use rustix::net::sockopt;
    /// use std::os::unix::net::UnixStream;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, _peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// let fd = channel.descriptor(handle)?.expect("it was registered as a descriptor");
    /// sockopt::set_socket_send_buffer_size(fd, 1 << 20)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descriptor(&self, handle: Handle) -> Result<Option<BorrowedFd<'_>>, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        Ok(self.state.peek(index).fd.as_ref().map(AsFd::as_fd))
    }

    /// Who serves a slot.
    fn backend_of(&self, index: u32) -> &'static str {
        #[cfg(feature = "local")]
        if crate::local::is_stacks(self.state.peek(index)) {
            return self.state.config.backend.name();
        }
        let _ = index;
        "kernel"
    }

    /// What our own stack says of a slot that it serves.
    fn description_on_stack(&mut self, index: u32) -> Option<String> {
        #[cfg(feature = "local")]
        return self.described_by_stack(index);
        #[cfg(not(feature = "local"))]
        {
            let _ = index;
            None
        }
    }

    /// A file descriptor beside a direct one, for calls that know only those.
    fn descriptor_of_direct(&mut self, index: u32) -> Result<OwnedFd, OpError> {
        match self.state.slot(index).target {
            Target::Direct(direct) => self.driver.install(&mut self.state, direct),
            Target::Fd(_) | Target::Stack(_) | Target::None => Err(OpError::BadDescriptor),
        }
    }

    /// Describes a handle: the driver and descriptor it uses and why, its addresses, its queued
    /// operations.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let listener = channel.listen(&"127.0.0.1:0".parse()?, &ListenOptions::default(), 0)?;
    /// let explain = channel.explain(listener)?;
    /// println!("{explain}");
    /// assert_eq!((explain.backend, explain.reads, explain.writes), ("kernel", 0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&mut self, handle: Handle) -> Result<Explain, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        let driver = self.report().driver;
        let (local, peer) = (self.local_address(handle).ok(), self.peer_address(handle).ok());
        let incoming = match self.state.slot(index).fd.as_ref() {
            Some(fd) => sys::incoming_cpu(fd.as_fd()).ok(),
            None => None,
        };
        let backend = self.backend_of(index);
        let on_stack = self.description_on_stack(index);
        #[cfg(feature = "local")]
        let (mask_on_stack, place) = (self.mask_on_stack(index), self.place_of_stack(index));
        #[cfg(not(feature = "local"))]
        let (mask_on_stack, place) = (None, None);
        #[cfg(feature = "local")]
        let mut remarks: Vec<String> =
            self.refused_move(handle).into_iter().chain(self.described_on_stack(index)).collect();
        #[cfg(not(feature = "local"))]
        let mut remarks = Vec::new();
        if let Some(why) = &self.report.fallen_back_from_service {
            remarks.push(format!("the kernel serves in place of the service: {why}"));
        }
        let lwsockets = self.state.config.lwsockets;
        let partition = self.state.config.partition;
        let slot = self.state.slot(index);
        let (kind, target, writes) = (slot.kind, slot.target, slot.writes);
        let silent = usize::from(slot.silent_bytes > 0);
        let unread_bytes = u64::from(slot.unread_bytes);
        let listener = slot.listener();
        let member = listener.as_ref().is_some_and(|it| it.membership.is_some());
        let cpu_mask = listener.and_then(|it| it.membership.as_ref()?.mask()).or(mask_on_stack);
        if handle.is_lwsocket() && kind == Kind::Tcp && matches!(target, Target::Fd(_)) {
            remarks.push(fd_backed(driver, lwsockets).to_owned());
        }
        if kind == Kind::Listener && !member && backend == "kernel" {
            remarks.push(unpartitioned(partition, local.as_ref()).to_owned());
        }
        if member && cpu_mask.is_none() {
            remarks.push("takes connections of cores that no sibling's mask names".to_owned());
        }
        Ok(Explain {
            handle,
            kind: kind.name(),
            backend,
            driver,
            path: on_stack.unwrap_or_else(|| match target {
                Target::Fd(fd) => format!("file descriptor {fd}"),
                Target::Direct(direct) => format!("direct descriptor {direct}"),
                Target::Stack(index) => format!("our own stack, number {index}"),
                Target::None => "no descriptor".to_owned(),
            }),
            place,
            local,
            peer,
            cpu_mask,
            incoming_cpu: incoming.and_then(|cpu| u32::try_from(cpu).ok()),
            unread_bytes,
            reads: self.state.reads_waiting(index),
            writes: silent + self.state.writes.iter(writes).count(),
            remarks,
        })
    }
}

const fn fd_backed(driver: DriverKind, lwsockets: bool) -> &'static str {
    match (driver, lwsockets) {
        (_, false) => "lwsockets are switched off by configuration: it has a file descriptor",
        (DriverKind::Epoll, _) => "the epoll driver knows only file descriptors",
        (DriverKind::Uring, _) => {
            "it has a file descriptor: it was connected from here, came from a sibling channel, \
             or this kernel lacks direct accept or FIXED_FD_INSTALL"
        }
    }
}

fn unpartitioned(partition: bool, local: Option<&Address>) -> &'static str {
    match (partition, local) {
        (false, _) => "partitioning is switched off by configuration: one accept queue for all",
        (_, Some(Address::Unix(_))) => "UNIX sockets have one accept queue for all",
        _ => "registered without a mask: its accept queue is shared by all holders of the socket",
    }
}
