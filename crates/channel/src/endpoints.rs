//! Calls that make handles: listen, connect, bind, open a file, set a timer.
//!
//! Read first: `channel.rs`, for descriptors that the program makes itself.
//!
//! Invariant: a call that returns an error leaves no slot, descriptor or deadline behind.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use crate::address::Address;
use crate::address::sockaddr::RawAddress;
use crate::channel::Channel;
use crate::driver::Driver;
use crate::error::{ConnectError, ListenError, Misuse, NotConnected, SubmitError};
use crate::handle::Handle;
use crate::kernel::sys;
use crate::options::{ConnectOptions, ListenOptions, OpenOptions, SocketKind};
use crate::partition;
use crate::report::DriverKind;
use crate::slot::{Extra, Kind, Listener, SlotPhase};
use crate::timers::Due;

/// New handles.
impl<T> Channel<T> {
    /// Listens on an address. The handle is an lwsocket: `unregister` closes the socket. Does not
    /// block.
    ///
    /// For TCP with [`ListenOptions::share`] (the default) the channel gets an accept queue of its
    /// own, and other channels may listen on the same address.
    ///
    /// # Errors
    /// [`ListenError`] names the step that failed and the kernel's reason.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let listener = channel.listen(&"127.0.0.1:0".parse()?, &ListenOptions::default(), 0)?;
    /// channel.accept(listener, Accept::lwsocket(1))?;
    /// let address = channel.local_address(listener)?.as_inet().expect("a TCP address");
    /// let client = std::net::TcpStream::connect(address)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// let Event::Accept(accepted) = done.event else { panic!("unexpected: {done:?}") };
    /// let Connection::Lwsocket(connection) = accepted?.connection else { panic!("no handle") };
    /// assert_eq!(channel.peer_address(connection)?, client.local_addr()?.into());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen(
        &mut self,
        address: &Address,
        options: &ListenOptions,
        cookie: u64,
    ) -> Result<Handle, ListenError> {
        self.check_fork()?;
        #[cfg(feature = "local")]
        if let Some(address) = self.stack_address(address) {
            return self.listen_on_stack(address, options, cookie);
        }
        let is_inet = address.as_inet().is_some();
        let connection = if is_inet { Kind::Tcp } else { Kind::UnixStream };
        // Memory first: a socket that listens takes connections.
        let extra =
            sys::try_box(Extra::Listener(Listener::new(connection, options.backlog, None)))?;
        let index = self.state.allocate(Kind::Listener, cookie)?;
        let slot = self.state.slot(index);
        slot.extra = Some(extra);
        let listening = self.start_listening(index, address, options);
        if listening.is_err() {
            self.state.retire(index);
            self.state.release(index);
        }
        listening.map(|()| self.state.handle(index))
    }

    /// Makes the socket of a listener's slot.
    fn start_listening(
        &mut self,
        index: u32,
        address: &Address,
        options: &ListenOptions,
    ) -> Result<(), ListenError> {
        let nonblocking = self.report.driver == DriverKind::Epoll;
        let is_shared = address.as_inet().is_some() && options.share && self.state.config.partition;
        let (socket, membership) = if is_shared {
            let (fd, membership) = partition::listen(address, options, &self.inbox, nonblocking)?;
            (fd, Some(membership))
        } else {
            (sys::listening_socket(address, options, nonblocking)?, None)
        };
        let slot = self.state.slot(index);
        slot.set_fd(socket);
        if let Some(listener) = slot.listener() {
            listener.membership = membership;
        }
        let watched = self.driver.attach(&mut self.state, index);
        if let (Err(_), true, Some(socket)) = (&watched, is_shared, &self.state.slot(index).fd) {
            partition::close(socket);
        }
        watched.map_err(|source| ListenError::Kernel { what: "watch", source })
    }

    /// Connects to an address. Completes with [`crate::Event::Connect`]; writes and reads may be
    /// queued before that. Does not block.
    ///
    /// # Errors
    /// [`ConnectError`] if the attempt could not start. A refused or timed-out attempt is in the
    /// completion.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, ConnectOptions, Event};
    /// use std::{net::TcpListener, time::Duration};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut channel = Channel::create(Config::default())?;
    /// let options = ConnectOptions::default().timeout(Duration::from_secs(5));
    /// let connection = channel.connect(&listener.local_addr()?.into(), &options, 0)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert_eq!(done.handle, connection);
    /// assert!(matches!(done.event, Event::Connect(Ok(()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(
        &mut self,
        address: &Address,
        options: &ConnectOptions,
        cookie: u64,
    ) -> Result<Handle, ConnectError> {
        self.check_fork()?;
        self.state.admit()?;
        #[cfg(feature = "local")]
        if let Some(remote) = self.stack_address(address) {
            return self.connect_on_stack(remote, options, cookie);
        }
        let nonblocking = self.report.driver == DriverKind::Epoll;
        let socket = sys::connecting_socket(address, options, nonblocking)?;
        self.start_connect(&mut Some(socket), address, options.timeout, cookie)
    }

    /// Connects a stream socket of the kernel that the program has created, bound and configured,
    /// as [`Channel::connect`] does. The channel owns the socket from now on; its handle is an
    /// lwsocket, and `unregister` closes it.
    ///
    /// # Errors
    /// [`NotConnected`] if the attempt could not start; it has the socket.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use rustix::net::{AddressFamily, SocketType, socket, sockopt};
    ///
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    /// sockopt::set_socket_send_buffer_size(&socket, 1 << 20)?;
    /// let mut channel = Channel::create(Config::default())?;
    /// channel.connect_socket(socket, &listener.local_addr()?.into(), 0)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Connect(Ok(()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_socket(
        &mut self,
        socket: OwnedFd,
        address: &Address,
        cookie: u64,
    ) -> Result<Handle, NotConnected> {
        let mut socket = Some(socket);
        match self.try_connect_socket(&mut socket, address, cookie) {
            Ok(handle) => Ok(handle),
            Err(why) => Err(NotConnected { fd: socket, why }),
        }
    }

    fn try_connect_socket(
        &mut self,
        socket: &mut Option<OwnedFd>,
        address: &Address,
        cookie: u64,
    ) -> Result<Handle, ConnectError> {
        self.check_fork()?;
        self.state.admit()?;
        if self.report.driver == DriverKind::Epoll
            && let Some(socket) = socket
        {
            sys::set_nonblocking(socket.as_fd(), true)
                .map_err(|source| ConnectError::Kernel { what: "set O_NONBLOCK", source })?;
        }
        self.start_connect(socket, address, None, cookie)
    }

    /// Takes the socket, unless it fails.
    fn start_connect(
        &mut self,
        socket: &mut Option<OwnedFd>,
        address: &Address,
        timeout: Option<Duration>,
        cookie: u64,
    ) -> Result<Handle, ConnectError> {
        let kind = if address.as_inet().is_some() { Kind::Tcp } else { Kind::UnixStream };
        let connecting = Extra::Connecting { raw: RawAddress::new(address), abandoned: false };
        let extra = sys::try_box(connecting)?;
        self.state.reserve_deadline()?;
        let index = self.state.allocate(kind, cookie)?;
        let slot = self.state.slot(index);
        if let Some(socket) = socket.take() {
            slot.set_fd(socket);
        }
        slot.phase = SlotPhase::Starting;
        slot.extra = Some(extra);
        if let Err(source) = self.driver.attach(&mut self.state, index) {
            *socket = self.state.slot(index).fd.take();
            self.state.retire(index);
            self.state.release(index);
            return Err(ConnectError::Kernel { what: "watch", source });
        }
        if let Some(timeout) = timeout {
            self.state.set_deadline(index, Instant::now().checked_add(timeout), Due::Connect);
        }
        self.driver.start_connect(&mut self.state, index);
        Ok(self.state.handle(index))
    }

    /// Creates a datagram socket, bound to an address if one is given. The handle is an lwsocket:
    /// `unregister` closes the socket. Does not block.
    ///
    /// # Errors
    /// [`ListenError`] names the step that failed and the kernel's reason.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event, SocketKind};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let socket = channel.socket(SocketKind::Udp4, Some(&"127.0.0.1:0".parse()?), 0)?;
    /// let address = channel.local_address(socket)?;
    /// channel.recvfrom(socket, 1500)?;
    /// channel.sendto(socket, "hello", &address)?;
    /// loop {
    ///     match channel.dispatch(None)?.expect("there is no time-out").event {
    ///         Event::RecvFrom(datagram) => break assert_eq!(*datagram?.data, *b"hello"),
    ///         Event::SendTo(bytes) => assert_eq!(bytes?, 5),
    ///         other => panic!("unexpected: {other:?}"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn socket(
        &mut self,
        kind: SocketKind,
        bind: Option<&Address>,
        cookie: u64,
    ) -> Result<Handle, ListenError> {
        self.check_fork()?;
        let (family, kind) = match kind {
            SocketKind::Udp4 => (AddressFamily::INET, Kind::Udp),
            SocketKind::Udp6 => (AddressFamily::INET6, Kind::Udp),
            SocketKind::UnixDatagram => (AddressFamily::UNIX, Kind::UnixDatagram),
        };
        #[cfg(feature = "local")]
        if kind == Kind::Udp && self.driver.local().is_some() {
            return self.bind_on_stack(family == AddressFamily::INET6, bind, cookie);
        }
        let kernel = |what| move |source| ListenError::Kernel { what, source };
        let nonblocking = self.report.driver == DriverKind::Epoll;
        let socket =
            sys::socket(family, SocketType::DGRAM, nonblocking).map_err(kernel("make a socket"))?;
        if let Some(address) = bind {
            sys::bind(socket.as_fd(), address).map_err(kernel("bind"))?;
        }
        let index = self.state.allocate(kind, cookie)?;
        self.state.slot(index).set_fd(socket);
        self.attach(index).map_err(kernel("watch"))?;
        Ok(self.state.handle(index))
    }

    /// Opens a disk file. Completes with [`crate::Event::Open`]; reads and writes are accepted
    /// after it. The handle is an lwsocket: `unregister` closes the file. Does not block.
    ///
    /// # Errors
    /// [`Misuse::InvalidPath`] for a path that contains a NUL byte or is too long.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event, OpenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let file = channel.open("/proc/self/comm".as_ref(), &OpenOptions::read(), 0)?;
    /// let opened = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(opened.event, Event::Open(Ok(()))));
    /// channel.read(file, 64)?;
    /// let read = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(read.event, Event::Read(Ok(data)) if data.ends_with(b"\n")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(
        &mut self,
        path: &Path,
        options: &OpenOptions,
        cookie: u64,
    ) -> Result<Handle, SubmitError> {
        use std::os::unix::ffi::OsStrExt;
        self.check_fork()?;
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&0) || bytes.len() >= libc::PATH_MAX as usize {
            return Err(Misuse::InvalidPath.into());
        }
        self.state.admit()?;
        let index = self.state.allocate(Kind::File, cookie)?;
        self.state.slot(index).phase = SlotPhase::Starting;
        self.driver.start_open(&mut self.state, index, path.to_owned(), *options);
        Ok(self.state.handle(index))
    }

    /// Sets a timer: it expires after `after`, then each `period` if one is given. Completes with
    /// [`crate::Event::Timer`]. `unregister` cancels it; the handle of an expired one-shot timer
    /// has to be unregistered as well.
    ///
    /// # Errors
    /// [`Misuse::InvalidDuration`] for a period of zero or a duration beyond a thousand years.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let timer = channel.timer(Duration::ZERO, Some(Duration::from_millis(1)), 0)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Timer { expirations: 1.. }));
    /// channel.unregister(timer)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timer(
        &mut self,
        after: Duration,
        period: Option<Duration>,
        cookie: u64,
    ) -> Result<Handle, SubmitError> {
        const LONGEST: Duration = Duration::from_secs(1000 * 366 * 86_400);
        self.check_fork()?;
        if after > LONGEST || period.is_some_and(|period| period.is_zero() || period > LONGEST) {
            return Err(Misuse::InvalidDuration.into());
        }
        let at = Instant::now().checked_add(after).ok_or(Misuse::InvalidDuration)?;
        self.state.reserve_deadline()?;
        let extra = sys::try_box(Extra::Timer { period })?;
        self.state.admit()?;
        let index = self.state.allocate(Kind::Timer, cookie)?;
        self.state.slot(index).extra = Some(extra);
        self.state.set_deadline(index, Some(at), Due::Timer);
        Ok(self.state.handle(index))
    }
}
