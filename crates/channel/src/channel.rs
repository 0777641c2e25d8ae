//! The channel: the calls of architecture §6, for one thread.
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
use crate::partition::{self, Inbox};
use crate::report::{DriverKind, DriverReport};
use crate::slot::{Extra, Kind, Listener, Phase};
use crate::state::State;
use crate::waker::Waker;

/// Asynchronous operations in, completions out, for one thread.
///
/// Make it on the thread that uses it: it is neither `Send` nor `Sync` ([`crate::MovableChannel`]
/// is for threads that take turns). After `fork`, every call
/// in the child gives an error by name; make a new one there.
///
/// Dropping a channel closes its lwsockets and its registered descriptors, and hands what its
/// partitioned listeners hold to their siblings.
pub struct Channel {
    // Before `state`: the driver takes the kernel's hands off the buffers first.
    pub(crate) driver: AnyDriver,
    pub(crate) state: State,
    pub(crate) report: DriverReport,
    pub(crate) waker: Waker,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) fork: ForkMark,
    pub(crate) orphans: Vec<Handle>,
    pub(crate) not_send: PhantomData<*const ()>,
}

/// Membership: what is in the channel.
impl Channel {
    /// Makes a channel for the calling thread. Tries what the kernel offers; does not block.
    ///
    /// # Errors
    /// [`CreateError`] names the configuration's field that is wrong, the driver that was forced
    /// and does not work here, or what the kernel refused.
    pub fn create(config: Config) -> Result<Self, CreateError> {
        let mut config = config.validated()?;
        if let Some(core) = config.core {
            pin(core)?;
        }
        let descriptors = sys::raise_descriptor_limit();
        // Connections of our own stack are no descriptors.
        if config.backend == Backend::Kernel {
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
            inbox: Inbox::new(waker.clone()),
            waker,
            fork: ForkMark::get(),
            orphans: Vec::new(),
            not_send: PhantomData,
        })
    }

    /// Puts a descriptor of any kind into the channel: TCP, UDP or UNIX socket, listening or
    /// connected, pipe, FIFO, terminal, signalfd, timerfd, eventfd, disk file.
    ///
    /// The channel owns the descriptor until `unregister` gives it back. With a `cpu_mask`, a
    /// listening socket gets an accept queue of its own for connections that arrive on those
    /// cores; the descriptor stays as the address's reservation.
    ///
    /// On the `local` back end our own stack listens at the port of a listening TCP socket: where
    /// the link shares the host's address it takes the port over for what comes over its interface
    /// (needs CAP_NET_ADMIN), elsewhere it listens at the same port of its own address. What else
    /// reaches the socket is accepted from the kernel, by the same handle; a mask is about the
    /// stack's shards as well. `unregister` gives the port back: connections on it stay, as far as
    /// single flows can be told apart (256), and are reset beyond that. [`Channel::explain`] says
    /// what is so.
    ///
    /// # Errors
    /// [`RegisterError`]; the descriptor is closed then.
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
        self.state.reserve_number(raw)?;
        let index = self.state.allocate(kind, cookie)?;
        self.state.number_by_fd(index, raw);
        let slot = self.state.slot(index);
        slot.set_fd(fd);
        slot.extra = extra.map(|listener| Box::new(Extra::Listener(listener)));
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
        if let Err(error) = self.listen_beside(index, cpu_mask) {
            drop(self.withdraw(index));
            return Err(error);
        }
        let _ = cpu_mask;
        Ok(self.state.handle(index))
    }

    /// Takes an established TCP connection of the kernel's over into the channel's own stack, in
    /// the middle of whatever it does: what was not read yet, not sent and not acknowledged comes
    /// along, and its peer notices nothing. The kernel's socket is gone then, without a segment,
    /// even if others have a descriptor of it; the handle is an lwsocket's. [`Channel::to_fd`] goes
    /// the other way.
    ///
    /// Only on the `local` back end, on a link that shares the host's address (`packet`, `xdp`),
    /// for a connection whose peer is reached over that link. Needs CAP_NET_ADMIN. Blocks for some
    /// thirty system calls.
    ///
    /// # Errors
    /// [`NotTaken`] gives the socket back as it was, and says why.
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

    /// Takes a handle out of the channel. Its operations that have not completed are cancelled,
    /// and completions not yet handed out are never seen.
    ///
    /// An lwsocket is closed: with FIN after what was sent, or with RST if the peer's data was
    /// not read (as close(2) does). A registered descriptor is given back, together with bytes
    /// that the channel had received ahead; for this it waits until the kernel has let go, which
    /// does not depend on the peer.
    ///
    /// A listener leaves its group without losing a connection, if a sibling channel of this
    /// process listens at its address: handshakes under way, and connections whose `Accept` was not
    /// handed out, go on there. On our own stack, those of cores that all remaining masks leave out
    /// are reset; the last listener resets its own, as close(2) does.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
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
        self.state.slot(index).phase = Phase::Leaving;
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

    /// Gives a handle another cookie; completions handed out from now on carry it. A batch of
    /// [`Channel::dispatch_many`] is handed out at once: set in its `Accept`, a cookie is in all
    /// completions of the connection.
    ///
    /// # Errors
    /// [`Misuse`] for a stale or foreign handle.
    pub fn set_cookie(&mut self, handle: Handle, cookie: u64) -> Result<(), Misuse> {
        let index = self.state.find(handle)?;
        self.state.slot(index).cookie = cookie;
        Ok(())
    }

    /// What all handles of this channel carry ([`Handle::channel_tag`]); never 0.
    #[must_use]
    pub const fn tag(&self) -> u16 {
        self.state.tag.value()
    }

    /// The lwsocket that has a number (from 2^30 up), for interfaces that pass numbers.
    #[must_use]
    pub fn lwsocket(&self, number: u32) -> Option<Handle> {
        self.state.lwsocket(number)
    }

    /// Changes which cores' connections a partitioned listener takes; connections that are in
    /// its queue stay. (The paper left this open [MP 3.4.1].)
    ///
    /// # Errors
    /// `MaskNotPossible` without a partitioned listener or with an empty mask, `MaskOverlaps` if
    /// a sibling has one of the cores; nothing has changed then.
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
        if let Err(error) = self.set_mask_beside(index, mask) {
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
impl Channel {
    /// Memory to be filled and written: empty, with room for `capacity` bytes.
    #[must_use]
    pub fn alloc(&mut self, capacity: usize) -> WriteBuf {
        WriteBuf::with_capacity(&self.state.send_pool, capacity)
    }

    /// Memory as [`Channel::alloc`] gives it, for a program that goes on where there is none.
    ///
    /// # Errors
    /// `TryReserveError` if neither the channel's pool nor the heap has the memory.
    pub fn try_alloc(&mut self, capacity: usize) -> Result<WriteBuf, TryReserveError> {
        WriteBuf::try_with_capacity(&self.state.send_pool, capacity)
    }

    /// Wakes this channel's `dispatch` from other threads.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Which driver serves the channel, why, and what it found on this kernel.
    #[must_use]
    pub const fn report(&self) -> &DriverReport {
        &self.report
    }

    /// What was counted since the channel was made.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Bytes of user-space memory behind the handles and their queues, without the buffers.
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
