//! The channel, for one thread: creation, registration of handles, configuration.
//!
//! Read first: `lib.rs` for the tour, `state.rs` for what an operation means.
//!
//! Invariants
//! - A call checks its handle and arguments, puts the operation into [`State`], and tells the
//!   driver; it never waits for the kernel (`unregister` of a registered descriptor, which takes
//!   requests back first, is the one exception).
//! - Operations go to the kernel when (i) a batch is full (and due: `uring/batch.rs`), (ii) no
//!   completion is left to hand out, (iii) `flush` is called [MP 3.4.3].

use std::collections::TryReserveError;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::any_driver::{self, AnyDriver};
use crate::buffer::WriteBuf;
use crate::completion::Unregistered;
use crate::config::{Backend, Config};
use crate::counters::Counters;
use crate::cpu_mask::CpuMask;
use crate::driver::Driver;
#[cfg(not(feature = "local"))]
use crate::error::MoveError;
use crate::error::{CreateError, Misuse, NotTaken, RegisterError};
use crate::handle::Handle;
use crate::kernel::fork::ForkMark;
use crate::kernel::sys;
use crate::limits;
use crate::partition::{self, ConnectionInbox};
use crate::report::{DriverKind, DriverReport};
use crate::slot::{Extra, Kind, Listener, SlotPhase};
use crate::state::State;
use crate::waker::Waker;

/// Asynchronous operations in, completions out, for one thread.
///
/// Create it on the thread that uses it: it is neither `Send` nor `Sync`. [`crate::MovableChannel`]
/// is for threads that use one channel in turn; its channel has another parameter, and the same
/// calls. After `fork`, every call in the child returns an
/// error; the child creates a channel of its own.
///
/// Dropping a channel closes its lwsockets and its registered descriptors. Connections that wait at
/// its partitioned listeners go to the sibling listeners at the same address.
///
/// # Examples
/// A connection is a handle. An operation on it returns at once, and `dispatch` returns its
/// completion:
/// ```
/// use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions};
/// use std::io::{Read, Write};
///
/// let mut channel = Channel::create(Config::default())?;
/// let listener = channel.listen(&"127.0.0.1:0".parse()?, &ListenOptions::default(), 0)?;
/// channel.accept(listener, Accept::lwsocket(1).first_read(4096))?;
///
/// let address = channel.local_address(listener)?.as_inet().expect("a TCP address");
/// let mut client = std::net::TcpStream::connect(address)?;
/// client.write_all(b"hello")?;
/// loop {
///     let done = channel.dispatch(None)?.expect("there is no time-out");
///     match done.event {
///         Event::Accept(accepted) => drop(accepted?),
///         Event::Read(data) => channel.write(done.handle, data?)?,
///         Event::Write(bytes) => break assert_eq!(bytes?, 5),
///         other => panic!("unexpected: {other:?}"),
///     }
/// }
/// let mut answer = [0; 5];
/// client.read_exact(&mut answer)?;
/// assert_eq!(&answer, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel<T = OneThread> {
    // Before `state`: the driver takes the kernel's hands off the buffers first.
    pub(crate) driver: AnyDriver,
    pub(crate) state: State,
    pub(crate) report: DriverReport,
    pub(crate) waker: Waker,
    pub(crate) inbox: Arc<ConnectionInbox>,
    pub(crate) fork: ForkMark,
    pub(crate) orphans: Vec<Handle>,
    pub(crate) threads: PhantomData<T>,
}

/// Parameter of a channel that stays on the thread that created it.
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<megapipe::Channel>();
/// ```
pub struct OneThread(PhantomData<*const ()>);

impl Channel {
    /// Creates a channel for the calling thread.
    ///
    /// Probes the kernel for io_uring unless [`Config::driver`] names a driver, pins the thread if
    /// [`Config::core`] is set, and raises the process's soft limit of descriptors to its hard
    /// limit. Does not block.
    ///
    /// # Errors
    /// [`CreateError`] names the field of the configuration that is out of range, the driver that
    /// does not work here, or the resource that the kernel refused.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, CreateError, DriverChoice};
    ///
    /// let channel = Channel::create(Config::default().driver(DriverChoice::Epoll))?;
    /// assert_eq!(channel.report().driver.name(), "epoll");
    ///
    /// let refused = Channel::create(Config::default().batch(0)).err().expect("out of range");
    /// assert!(matches!(refused, CreateError::Config { field: "batch", value: 0, .. }));
    /// # Ok::<(), CreateError>(())
    /// ```
    pub fn create(config: Config) -> Result<Self, CreateError> {
        Self::start(config)
    }
}

/// Membership: what is in the channel.
impl<T> Channel<T> {
    /// As [`Channel::create`].
    pub(crate) fn start(config: Config) -> Result<Self, CreateError> {
        let mut config = config.validated()?;
        if let Some(core) = config.core {
            pin(core)?;
        }
        let descriptors = sys::raise_descriptor_limit();
        // Connections of our own stack are no descriptors.
        if config.backend == Backend::Kernel || config.fall_back {
            config.max_lwsockets = config.max_lwsockets.min(descriptors.min(1 << 31) as u32);
        }
        let kernel = |what| move |source| CreateError::Kernel { what, source };
        let mut state = State::new(config.clone()).map_err(kernel("memory for buffers"))?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| kernel("an eventfd")(errno.into()))?;
        let event = Arc::new(event);
        let (driver, report) = any_driver::create(&config, &mut state, &event)?;
        let waker = Waker::new(event);
        for pool in [&state.receive_pool, &state.send_pool] {
            pool.set_waker(waker.clone());
        }
        Ok(Self {
            driver,
            state,
            report,
            inbox: ConnectionInbox::new(waker.clone()),
            waker,
            fork: ForkMark::get(),
            orphans: Vec::new(),
            threads: PhantomData,
        })
    }

    /// Registers a descriptor of any kind: TCP, UDP or UNIX socket, listening or connected, pipe,
    /// FIFO, terminal, signalfd, timerfd, eventfd, disk file. Does not block.
    ///
    /// The channel owns the descriptor until `unregister` returns it. With a `cpu_mask`, a
    /// listening socket gets an accept queue of its own for connections that arrive on those cores;
    /// the descriptor keeps the address reserved.
    ///
    /// On `local` and `service` our own stack listens at the port of a registered listening TCP
    /// socket, too. If the link shares the host's address, the stack takes over the port for the
    /// link's interface (on `local` that needs CAP_NET_ADMIN); otherwise it listens at the same
    /// port of its own address. Connections over other interfaces are accepted from the kernel, by
    /// the same handle. A mask applies to the stack's shards as well. `unregister` returns the port
    /// to the kernel: up to 256 connections on it continue, further ones are reset.
    /// [`Channel::explain`] reports which case applies.
    ///
    /// # Errors
    /// [`RegisterError`]; the descriptor is closed then.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::{io::Write, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, mut peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 7, None)?;
    /// channel.read(handle, 4096)?;
    /// peer.write_all(b"hello")?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert_eq!((done.handle, done.cookie), (handle, 7));
    /// assert!(matches!(done.event, Event::Read(Ok(data)) if *data == *b"hello"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register(
        &mut self,
        fd: OwnedFd,
        cookie: u64,
        cpu_mask: Option<CpuMask>,
    ) -> Result<Handle, RegisterError> {
        self.check_fork()?;
        let raw = fd.as_raw_fd();
        if self.state.is_fd_registered(raw) {
            // The number can only be there twice if the program closed it behind our back; what
            // is open under it now is not ours to close.
            std::mem::forget(fd);
            return Err(RegisterError::AlreadyRegistered);
        }
        let kernel = |what| move |source| RegisterError::Kernel { what, source };
        let kind = sys::kind_of(fd.as_fd())
            .map_err(kernel("cannot look at the descriptor"))?
            .map_err(|kind| RegisterError::Unsupported { kind })?;
        if cpu_mask.is_some() && kind != Kind::Listener {
            return Err(RegisterError::MaskNotPossible);
        }
        let extra = match kind {
            Kind::Listener => {
                let connection = sys::connection_kind(fd.as_fd())
                    .map_err(kernel("cannot look at the listening socket"))?
                    .map_err(|kind| RegisterError::Unsupported { kind })?;
                Some(Listener::new(connection, limits::BACKLOG_DEFAULT, None))
            }
            _ => None,
        };
        if let (Some(mask), true) = (cpu_mask, self.state.config.partition) {
            return self.register_split(fd, cookie, mask);
        }
        let extra = extra.map(|listener| sys::try_box(Extra::Listener(listener))).transpose()?;
        self.state.reserve_number(raw)?;
        let index = self.state.allocate(kind, cookie)?;
        self.state.number_by_fd(index, raw);
        let slot = self.state.slot(index);
        slot.set_fd(fd);
        slot.extra = extra;
        self.attach(index).map_err(kernel("cannot watch the descriptor"))?;
        self.listen_on_stack_too(index, cpu_mask)
    }

    /// Our own stack listens where a registered socket does, if the channel has one.
    fn listen_on_stack_too(
        &mut self,
        index: u32,
        cpu_mask: Option<CpuMask>,
    ) -> Result<Handle, RegisterError> {
        #[cfg(feature = "local")]
        if let Err(error) = self.listen_registered_on_stack(index, cpu_mask) {
            drop(self.withdraw(index));
            return Err(error);
        }
        let _ = cpu_mask;
        Ok(self.state.handle(index))
    }

    /// Moves an established TCP connection from the kernel into the channel's own stack. Unread,
    /// unsent and unacknowledged bytes move along, and the peer does not notice. [`Channel::to_fd`]
    /// is the other direction.
    ///
    /// The kernel's socket is gone afterwards, without a segment, even if other descriptors refer
    /// to it; the handle is an lwsocket. Needs the back end `local` or `service` on a link that
    /// shares the host's address (`packet`, `xdp`), and a peer that is reached over that link. On
    /// `local` the process needs CAP_NET_ADMIN, on `service` the daemon. Blocks for about thirty
    /// system calls.
    ///
    /// # Errors
    /// [`NotTaken`] returns the socket unchanged, with the reason.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, MoveError};
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let socket = TcpStream::connect(listener.local_addr()?)?;
    /// // This channel is on the kernel back end: it has no stack.
    /// let refused = channel.take_over(socket.into(), 0).err().expect("it has no stack");
    /// assert!(matches!(refused.why, MoveError::NoStack));
    /// let socket = TcpStream::from(refused.fd);
    /// assert_eq!(socket.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_over(&mut self, fd: OwnedFd, cookie: u64) -> Result<Handle, NotTaken> {
        let taken = match self.check_fork() {
            Err(misuse) => Err((fd, misuse.into())),
            Ok(()) if self.state.is_fd_registered(fd.as_raw_fd()) => {
                Err((fd, Misuse::Closing.into()))
            }
            #[cfg(feature = "local")]
            Ok(()) => self.take_over_on_stack(fd, cookie),
            #[cfg(not(feature = "local"))]
            Ok(()) => {
                let _ = cookie;
                Err((fd, MoveError::NoStack))
            }
        };
        taken.map_err(|(fd, why)| NotTaken { fd, why })
    }

    /// A listening socket with a mask: the channel gets a socket of its own beside it.
    fn register_split(
        &mut self,
        fd: OwnedFd,
        cookie: u64,
        mask: CpuMask,
    ) -> Result<Handle, RegisterError> {
        let nonblocking = self.report.driver == DriverKind::Epoll;
        let (socket, membership) = partition::split(fd.as_fd(), mask, &self.inbox, nonblocking)?;
        let listener = Listener::new(Kind::Tcp, limits::BACKLOG_DEFAULT, Some(membership));
        let raw = fd.as_raw_fd();
        self.state.reserve_number(raw)?;
        let index = self.state.allocate(Kind::Listener, cookie)?;
        self.state.number_by_fd(index, raw);
        let slot = self.state.slot(index);
        slot.set_fd(socket);
        slot.extra = Some(Box::new(Extra::Listener(Listener { reserved: Some(fd), ..listener })));
        self.attach(index)
            .map_err(|source| RegisterError::Kernel { what: "cannot watch the socket", source })?;
        self.listen_on_stack_too(index, Some(mask))
    }

    pub(crate) fn attach(&mut self, index: u32) -> std::io::Result<()> {
        let attached = self.driver.attach(&mut self.state, index);
        if attached.is_err() {
            self.state.retire(index);
            self.state.release(index);
        }
        attached
    }

    /// Removes a handle from the channel. Cancels its operations; they and completions that were
    /// not dispatched yet produce no completion.
    ///
    /// An lwsocket is closed: with FIN after the bytes written, or with RST if received bytes were
    /// not read, as close(2) does. A registered descriptor is returned, with the bytes that the
    /// channel received ahead. For a registered descriptor the call blocks until the kernel has
    /// released it, which does not depend on the peer.
    ///
    /// A listener leaves its group without losing a connection if a sibling channel of this process
    /// listens at its address: handshakes, and connections whose `Accept` was not dispatched,
    /// continue at the sibling. On our own stack, connections of cores that no remaining mask names
    /// are reset. The last listener resets its own, as close(2) does.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, _peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// let left = channel.unregister(handle)?;
    /// assert!(left.fd.is_some() && left.unread.is_empty());
    /// assert!(channel.unregister(handle).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Inlined for lwsockets: they leave nothing behind to search for.
    #[inline]
    pub fn unregister(&mut self, handle: Handle) -> Result<Unregistered, Misuse> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        if handle.is_lwsocket() && !self.state.is_listener(index) {
            self.detach(index);
            return Ok(Unregistered::default());
        }
        Ok(self.unregister_any(handle, index))
    }

    #[inline(never)]
    fn unregister_any(&mut self, handle: Handle, index: u32) -> Unregistered {
        let mut connections = Vec::new();
        if self.state.slot(index).kind == Kind::Listener {
            // First, so that what is rescued is not given to the listener that leaves.
            self.retreat(index);
            connections = self.rescue_unseen(index);
        }
        let mut left = Unregistered::default();
        if handle.is_lwsocket() {
            self.detach(index);
        } else {
            left = self.withdraw(index);
        }
        connections.append(&mut left.connections);
        left.connections = connections;
        left
    }

    fn withdraw(&mut self, index: u32) -> Unregistered {
        if let Some(listener) = self.state.slot(index).listener()
            && let Some(fd) = listener.reserved.take()
        {
            self.detach(index);
            return Unregistered { fd: Some(fd), ..Unregistered::default() };
        }
        let handle = self.state.handle(index);
        let mut unread = self.state.take_unseen_reads(handle);
        self.state.retire(index);
        self.state.slot(index).phase = SlotPhase::Leaving;
        let fd = self.driver.withdraw(&mut self.state, index);
        unread.append(&mut self.state.take_unread(index));
        let connections = self.take_held(index);
        self.state.release(index);
        Unregistered { fd, unread, connections }
    }

    pub(crate) fn detach(&mut self, index: u32) {
        self.state.retire(index);
        if self.state.slot(index).kind == Kind::Listener {
            self.retreat(index);
        }
        self.driver.detach(&mut self.state, index);
    }

    /// Takes a listener out: it gets no new connection and passes none on.
    pub(crate) fn retreat(&mut self, index: u32) {
        let Some(listener) = self.state.slot(index).listener() else { return };
        if let Some(membership) = &listener.membership {
            membership.retreat();
        }
        if listener.heir.is_none() {
            self.drop_adopted(index);
        }
    }

    /// Sets a handle's cookie, which all completions dispatched from now on carry.
    ///
    /// [`Channel::dispatch_many`] dispatches a batch at once. A cookie that is set in response to a
    /// connection's `Accept` is nevertheless in all completions of that connection.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let timer = channel.timer(Duration::from_millis(1), None, 1)?;
    /// channel.set_cookie(timer, 2)?;
    /// assert_eq!(channel.dispatch(None)?.expect("there is no time-out").cookie, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_cookie(&mut self, handle: Handle, cookie: u64) -> Result<(), Misuse> {
        let index = self.state.find(handle)?;
        self.state.slot(index).cookie = cookie;
        Ok(())
    }

    /// Returns the tag that all handles of this channel carry ([`Handle::channel_tag`]); never 0.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let timer = channel.timer(Duration::from_secs(1), None, 0)?;
    /// assert_eq!(timer.channel_tag(), channel.tag());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn tag(&self) -> u16 {
        self.state.tag.value()
    }

    /// Returns the handle of the lwsocket with a number (2^30 or more), for interfaces that pass
    /// numbers.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, SocketKind};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let socket = channel.socket(SocketKind::Udp4, None, 0)?;
    /// assert_eq!(channel.lwsocket(socket.number()), Some(socket));
    /// assert_eq!(channel.lwsocket(3), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lwsocket(&self, number: u32) -> Option<Handle> {
        self.state.lwsocket(number)
    }

    /// Sets the cores whose connections a partitioned listener accepts. Connections that are in its
    /// queue already stay there. (The paper left this open [MP 3.4.1].)
    ///
    /// # Errors
    /// [`RegisterError::MaskNotPossible`] if the listener is not partitioned or the mask is empty,
    /// [`RegisterError::MaskOverlaps`] if a sibling has one of the cores. Nothing has changed then.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, CpuMask, ListenOptions};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let options = ListenOptions::default().cpu_mask(CpuMask::cpu(0));
    /// let listener = channel.listen(&"127.0.0.1:0".parse()?, &options, 0)?;
    /// channel.set_cpu_mask(listener, CpuMask::cpus([0, 1]))?;
    /// assert_eq!(channel.explain(listener)?.cpu_mask, Some(CpuMask::from_bits(0b11)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_cpu_mask(&mut self, listener: Handle, mask: CpuMask) -> Result<(), RegisterError> {
        self.check_fork()?;
        let index = self.state.find(listener)?;
        #[cfg(feature = "local")]
        if let Some(changed) = self.set_mask_on_stack(index, mask) {
            return changed;
        }
        let queues = self.state.slot(index).listener().ok_or(RegisterError::MaskNotPossible)?;
        let membership = queues.membership.as_ref().ok_or(RegisterError::MaskNotPossible)?;
        let before = membership.mask();
        membership.set_mask(mask)?;
        #[cfg(feature = "local")]
        if let Err(error) = self.set_stack_mask(index, mask) {
            // It was possible before, and nothing has changed meanwhile.
            let queues = self.state.slot(index).listener();
            let membership = queues.and_then(|queues| queues.membership.as_ref());
            if let (Some(membership), Some(before)) = (membership, before) {
                let _ = membership.set_mask(before);
            }
            return Err(error);
        }
        let _ = before;
        Ok(())
    }
}

/// Memory, and looking in.
impl<T> Channel<T> {
    /// Returns an empty buffer with room for `capacity` bytes, from the channel's pool if it fits
    /// there, else from the heap.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    /// use std::{io::Write, os::unix::net::UnixStream};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (ours, _peer) = UnixStream::pair()?;
    /// let handle = channel.register(ours.into(), 0, None)?;
    /// let mut buffer = channel.alloc(64);
    /// write!(buffer, "{} bytes", 42)?;
    /// channel.write(handle, buffer)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Write(Ok(8))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn alloc(&mut self, capacity: usize) -> WriteBuf {
        WriteBuf::with_capacity(&self.state.send_pool, capacity)
    }

    /// Returns a buffer as [`Channel::alloc`] does, or an error where that would abort the process.
    ///
    /// # Errors
    /// `TryReserveError` if neither the channel's pool nor the heap has the memory.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// assert!(channel.try_alloc(64)?.capacity() >= 64);
    /// assert!(channel.try_alloc(usize::MAX).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_alloc(&mut self, capacity: usize) -> Result<WriteBuf, TryReserveError> {
        WriteBuf::try_with_capacity(&self.state.send_pool, capacity)
    }

    /// Returns a waker, with which other threads end this channel's `dispatch`.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let waker = channel.waker();
    /// let worker = std::thread::spawn(move || waker.wake());
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Wake));
    /// worker.join().expect("it does not panic");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns which driver serves the channel, why, and which features were found on this kernel.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let channel = Channel::create(Config::default())?;
    /// println!("{}", channel.report());
    /// assert_eq!(channel.report().backend, "kernel");
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    #[must_use]
    pub const fn report(&self) -> &DriverReport {
        &self.report
    }

    /// Returns the totals since the channel was created.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    /// use std::time::Duration;
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// channel.timer(Duration::ZERO, None, 0)?;
    /// channel.dispatch(None)?;
    /// assert_eq!((channel.counters().operations, channel.counters().completions), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Returns the bytes of user-space memory of the handles and their queues, without the buffers.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let channel = Channel::create(Config::default())?;
    /// println!("{} KiB", channel.memory_bytes() / 1024);
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.state.memory_bytes()
    }

    pub(crate) fn check_fork(&self) -> Result<(), Misuse> {
        if self.fork.is_wiped() { Err(Misuse::Forked) } else { Ok(()) }
    }
}

fn pin(core: usize) -> Result<(), CreateError> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| CreateError::Pin { core, source: errno.into() })
}
