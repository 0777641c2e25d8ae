//! What a channel asks of a stack, wherever it runs: [`StackHandle`].
//!
//! Each placement implements it in a file of its own:
//!
//! - `inline.rs`: the server is polled inside `dispatch` and called in place.
//! - `shared_thread.rs`: a second thread of the same core polls the server too, and both use it in
//!   place under a biased lock.
//! - `remote.rs`: the server runs on a core of its own, behind rings of records.
//!
//! [`Local`](super::Local) is generic over the trait, so a call on the path of a message costs what
//! a call of the placement's own function costs. Rare calls of a channel go through
//! `Local<dyn StackHandle>`.
//!
//! Invariants
//! - Results do not depend on the placement: names of connections, chunks in the channel's own
//!   memory, the same errors at the same calls. A method whose answer depends on the placement
//!   documents each answer.
//! - `now` is the time of the channel's last poll. A server that another thread polls may be ahead
//!   of it, and then uses its own time.
//!
//! Read first: `megapipe_service::Server`, for the meaning of each call.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::{
    AcceptorId, Clock, Frames, LaneSet, MoveRefusal, Next, NotShared, PortError, RemoteCounters,
    RemoteError, RemoteEvent, Server, ServerConfig, Sharing, Slept,
};
use megapipe_stack::{
    Chunk, ConnId, DatagramId, Departure, Instant, ListenError, ListenerId, OperationError,
};

use super::memory::{ChannelMemory, ReceivedMemory};
use super::server_calls::ServerCalls;
use crate::buffer::{Payload, ReadBuf};
use crate::config::Config;
use crate::error::CreateError;
use crate::kernel::pool::HeldBuffer;
use crate::state::State;

/// Result of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Polled {
    /// Frames moved, a timer expired, or connections were handed over.
    pub(crate) has_worked: bool,
    /// [`StackHandle::next_event`] has an event to return.
    pub(crate) has_event: bool,
}

/// No buffer is free for a copy; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoBuffer;

/// What a server is made from.
pub(crate) struct ServerParts<'a> {
    pub(super) frames: Frames,
    pub(super) settings: &'a ServerConfig,
    pub(super) config: &'a Config,
    pub(super) state: &'a State,
    /// Descriptor of the kernel's driver, which a sleep watches together with the link.
    pub(super) kernel: BorrowedFd<'a>,
    /// Core that the calling thread is pinned to, if it is pinned to one.
    pub(super) own_core: Option<usize>,
    /// Core that the configuration names for the server.
    pub(super) server_core: Option<usize>,
}

/// The error of a channel whose server's thread did not start.
pub(super) fn not_started(config: &Config, source: RemoteError) -> CreateError {
    match source {
        RemoteError::Server(error) => CreateError::Local(error),
        source => CreateError::StackThread { placement: config.placement.name(), source },
    }
}

/// A channel's stack.
pub(crate) trait StackHandle: ServerCalls {
    /// Starts a server. Returns its handle, and its location in words for reports.
    ///
    /// # Errors
    /// [`CreateError`] names the resource that is missing.
    fn start(parts: ServerParts<'_>) -> Result<(Self, String), CreateError>
    where
        Self: Sized;

    // -- polling

    /// Polls the link and the timers if this thread does so, submits queued operations, and
    /// reports whether there are events. Does not block.
    ///
    /// # Errors
    /// The link or the server's thread failed.
    fn poll(&mut self, now: Instant) -> Result<Polled, LinkError>;

    /// Whether the stack is a daemon's, whose end is no error of the channel.
    fn is_session(&self) -> bool {
        false
    }

    /// Attaches to a daemon again, if one was lost and it is time to try. `true`: another session
    /// has begun, without any object.
    #[inline]
    fn attach_again(&mut self, _now: Instant, _config: &Config) -> bool {
        false
    }

    /// Addresses of a daemon's stack, those of loopback included.
    fn addresses_of_stack(&self) -> &[IpAddr] {
        &[]
    }

    /// Submits queued operations without receiving. Returns the number of frames sent by this
    /// thread.
    ///
    /// # Errors
    /// As [`StackHandle::poll`].
    fn transmit(&mut self, now: Instant) -> Result<usize, LinkError>;

    /// Returns the next event, if that is received bytes and the placement has a shorter way for
    /// them: the connection, and the bytes in the channel's memory. `None`:
    /// [`StackHandle::next_event`] returns the next one, if there is any.
    #[inline]
    fn next_bytes(&mut self) -> Option<(ConnId, Chunk)> {
        None
    }

    /// Returns the next event; `None`: there is none.
    fn next_event(&mut self) -> Option<RemoteEvent>;

    /// Whether [`StackHandle::next_event`] has left an event where it is for want of memory, once.
    /// By default none needs any.
    fn take_lack_of_memory(&mut self) -> bool {
        false
    }

    /// Decides between another poll and sleep, after a poll with or without work.
    fn after_poll(&mut self, has_worked: bool, now: Instant) -> Next;

    // -- sleeping

    /// Prepares for sleep on [`StackHandle::wait_fd`] and [`StackHandle::host_fd`]. Returns `false`
    /// if there is work already.
    ///
    /// # Errors
    /// As [`StackHandle::poll`].
    fn arm(&mut self, now: Instant) -> Result<bool, LinkError>;

    /// Sleeps without descriptors of this thread, until an event, readiness of the kernel driver's
    /// descriptor or `timeout`. `None`, the default: the placement sleeps on descriptors only. On
    /// `thread` the server's thread watches the descriptors while it is awake.
    fn sleep_unarmed(&mut self, _timeout: Option<Duration>) -> Option<Slept> {
        None
    }

    /// Time until the stack's next timer, if this thread runs the timers; `None`, the default: no
    /// timer ends this thread's sleep.
    fn patience(&self, _now: Instant) -> Option<Duration> {
        None
    }

    /// Descriptor that becomes readable after [`StackHandle::arm`] when there is work.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Descriptor of the host's address changes, if this thread follows them; `None`, the default:
    /// another thread does, or the link has an address of its own.
    fn host_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ends in order: sends FINs, RSTs and queued data once. On `thread` and `core`, the default,
    /// submits what is queued; the server's thread does the rest when the handle is dropped, which
    /// waits for it.
    ///
    /// # Errors
    /// As [`StackHandle::poll`].
    fn shut_down(&mut self, clock: &Clock) -> Result<(), LinkError> {
        self.poll(clock.now()).map(|_| ())
    }

    /// Marks the handle as a forked child's copy: the parent's thread and rings stay untouched.
    /// Without such, the default, nothing is to be done.
    fn abandon(&mut self) {}

    // -- description

    /// Capabilities of the link.
    fn caps(&self) -> &Caps;

    /// The shard, and of how many; `None`: the shard has the link to itself.
    fn shard(&self) -> Option<(u16, u16)>;

    /// Names the core that the application runs on from now on, where shards share a link.
    fn set_core(&mut self, core: Option<u32>);

    /// Events and wake-ups between two threads; zeros, the default: there is one thread.
    fn counters(&self) -> RemoteCounters {
        RemoteCounters::default()
    }

    // -- received payload

    /// Returns a received chunk in the form of a completion; `None`: it was taken already.
    fn received(&mut self, chunk: Chunk) -> Option<ReceivedMemory>;

    /// Returns the held buffer of this number; `None`: it was taken already.
    fn take_held(&mut self, number: u16) -> Option<HeldBuffer>;

    /// Frees a received chunk.
    fn free_received(&mut self, chunk: Chunk);

    /// Sends bytes that nearly always lie in a buffer of the channel. Returns what was not sent.
    fn send_read(&mut self, now: Instant, conn: ConnId, bytes: ReadBuf) -> Option<Payload>;

    /// Sends a copy of `bytes`. Returns what was not sent.
    ///
    /// # Errors
    /// [`NoBuffer`].
    fn send_copy(
        &mut self,
        now: Instant,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<Option<Payload>, NoBuffer>;

    /// Sends a payload, or the front of a long one that the send queue has room for, and removes
    /// that from `payload`. Returns the number of bytes.
    ///
    /// # Errors
    /// [`OperationError::QueueFull`]: nothing was sent; others: the connection takes no more.
    fn send_front(
        &mut self,
        now: Instant,
        conn: ConnId,
        payload: &mut Payload,
    ) -> Result<usize, OperationError>;

    /// Requests an event for the next acknowledgment. On `core` it follows even if there is room in
    /// the send queue; elsewhere the default is the same as `await_acks`.
    ///
    /// # Errors
    /// [`OperationError`]: the connection is over.
    fn await_delivery(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.await_acks(conn)
    }

    /// Sets whether a connection is reset if the application ends without closing it. Only a server
    /// that outlives the application needs to know.
    fn set_reset_on_close(&mut self, _conn: ConnId, _on: bool) {}

    /// Sets whether the connections of an acceptor are read at once: a server that offers them
    /// then sends the first bytes without being asked.
    fn set_first_read(&mut self, _acceptor: AcceptorId, _reads: bool) {}

    /// Drops the name of a connection that was taken out. Nothing to do, the default, where no
    /// event can be in transit.
    fn forget_moved(&mut self, _conn: ConnId) {}

    /// Whether events can be in transit between two threads. Where they can, a call may take effect
    /// before an older event is seen. Default: they cannot.
    fn has_events_in_transit(&self) -> bool {
        false
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// As [`megapipe_stack::Stack::send_datagram_as`].
    fn send_datagram(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        payload: Payload,
    ) -> Result<(), OperationError>;

    /// Sends each `segment_len` bytes of a payload as a datagram, the last one perhaps shorter: all
    /// or none.
    ///
    /// # Errors
    /// As [`StackHandle::send_datagram`].
    fn send_datagrams(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        segments: (Payload, usize),
    ) -> Result<(), OperationError>;

    // -- the host's address

    /// Returns the server if no other thread uses it: for connections that migrate between stack
    /// and kernel, and for ports of the host.
    ///
    /// # Errors
    /// [`NotShared::OtherThread`], the default, on `thread` and `core`.
    fn migration_server(&mut self) -> Result<&mut Server<ChannelMemory>, NotShared> {
        Err(NotShared::OtherThread)
    }

    /// Returns the lanes to a server behind rings, for calls that only a daemon's stack executes:
    /// connections and endpoints of several processes, moves between the kernel and the daemon.
    ///
    /// # Errors
    /// By default the server is in this process.
    fn lanes(&mut self) -> Result<&mut LaneSet, MoveRefusal> {
        Err(MoveRefusal::gone())
    }

    /// As [`StackHandle::lanes`], if the server still polls.
    ///
    /// # Errors
    /// As there, or the server is gone.
    fn polling_lanes(&mut self) -> Result<&mut LaneSet, MoveRefusal> {
        let lanes = self.lanes()?;
        lanes.check().map_err(|_gone| MoveRefusal::gone())?;
        Ok(lanes)
    }

    /// As [`ServerCalls::listen`], at sockets that were passed with a cookie.
    ///
    /// # Errors
    /// As there.
    fn listen_passed(
        &mut self,
        now: Instant,
        (local, _cookie): (SocketAddr, u64),
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.listen(now, local, backlog, sharing)
    }

    /// Index of the interface whose address the link shares with the kernel; 0 where a daemon knows
    /// it.
    ///
    /// # Errors
    /// No connection can move. On `thread` and `core`: [`NotShared::OtherThread`], or
    /// [`NotShared::OwnAddress`] where that is the link's.
    fn shared_interface(&self) -> Result<u32, NotShared> {
        match self.caps().shares_host_address {
            true => Err(NotShared::OtherThread),
            false => Err(NotShared::OwnAddress),
        }
    }
}
