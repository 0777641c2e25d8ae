//! The channel below the sockets: when it is polled, and how old its last poll is.
//!
//! Calls never wait, so the channel is polled between them: by a call that waits, by the thread
//! that drives the context, or by a call that finds the last poll too old ([`Self::count_call`],
//! [`Self::is_answer_fresh`]). What comes of a poll goes to the table (`table/polling.rs`).
//!
//! [`Self::count_call`]: PolledChannel::count_call
//! [`Self::is_answer_fresh`]: PolledChannel::is_answer_fresh

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use megapipe::{
    Accept, Address, Backend, Channel, Clock, Completion, ConnInfo, ConnOption, ConnectError,
    ConnectOptions, CreateError, Datagram, DatagramSharing, Disconnect, DispatchError, Handle,
    Holder, ListenError, ListenOptions, MovableChannel, Park, RegisterError, ThreadsInTurn,
    WriteBuf,
};

use crate::error::Error;
use crate::gather::SendPieces;
use crate::kernel;
use crate::limits::{
    CALLS_PER_CHECK, CALLS_TO_FIRST_CHECK, CHECKS_PER_POLL, DATAGRAM_BYTES_MAX, POLL_AGE_MAX,
    READ_BYTES,
};
use crate::ports::Beneath;
use crate::transport::{
    DatagramRoute, DatagramTransport, ListenerTransport, ObjectTransport, StreamTransport,
};

/// Where the count of calls starts after a poll, so that the first check of the poll's age comes
/// after [`CALLS_TO_FIRST_CHECK`] calls.
const CALLS_AFTER_POLL: u32 = CALLS_PER_CHECK - CALLS_TO_FIRST_CHECK;

/// The channel, with what is known of its last poll.
pub(crate) struct PolledChannel {
    channel: MovableChannel,
    is_local: bool,
    clock: Clock,
    /// The stack uses the same clock.
    shares_clock: bool,
    /// Number of polls so far.
    polls: u32,
    /// Calls that returned without waiting since the last poll, counted from
    /// [`CALLS_AFTER_POLL`] on.
    calls: u32,
    /// Time of the last poll, on the clock.
    polled_at: Duration,
    /// Age of a poll up to which "would block" is answered from it.
    freshness: Duration,
    /// Operations submitted to the channel when it was last ready for sleep.
    submitted_at_rest: u64,
    /// The channel is not ready for sleep: something was submitted that is not counted among its
    /// operations, or it was polled since.
    is_restless: bool,
    /// Operations submitted to the channel when it last submitted them.
    submitted: u64,
    /// Since then something was submitted that is not counted among its operations.
    has_uncounted: bool,
    /// A signal ended the wait of the last poll.
    pub(crate) is_interrupted: bool,
    /// The link is gone: nothing is submitted or polled any more.
    is_down: bool,
}

impl Deref for PolledChannel {
    type Target = Channel<ThreadsInTurn>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.channel
    }
}

impl DerefMut for PolledChannel {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.channel
    }
}

impl PolledChannel {
    /// Opens the channel.
    ///
    /// # Errors
    /// Those of [`Channel::create`].
    pub(crate) fn create(
        config: megapipe::Config,
        clock: Clock,
        freshness: Duration,
    ) -> Result<Self, CreateError> {
        let shares_clock = matches!(
            &config.backend, Backend::Local(network) if network.settings().clock == clock
        );
        let channel = MovableChannel::create(config)?;
        // A channel may have fallen back to the kernel.
        let is_local = channel.report().backend != Backend::Kernel.name();
        Ok(Self {
            channel,
            is_local,
            polls: 0,
            calls: CALLS_AFTER_POLL,
            polled_at: clock.elapsed(),
            shares_clock,
            clock,
            freshness,
            submitted_at_rest: 0,
            is_restless: true,
            submitted: 0,
            has_uncounted: true,
            is_interrupted: false,
            is_down: false,
        })
    }

    /// Whether the link is gone, which the table has noted ([`Self::note_down`]).
    pub(crate) const fn is_down(&self) -> bool {
        self.is_down
    }

    /// The link is gone.
    pub(crate) const fn note_down(&mut self) {
        self.is_down = true;
    }

    /// Whether bytes that were written still need this process.
    pub(crate) fn has_undelivered(&mut self) -> bool {
        !self.is_down && self.channel.has_undelivered()
    }

    /// Checks that the link is there.
    ///
    /// # Errors
    /// [`Error::NetworkDown`].
    pub(crate) fn check_link(&self) -> Result<(), Error> {
        if self.is_down { Err(Error::NetworkDown) } else { Ok(()) }
    }

    /// Number of polls so far.
    #[inline]
    pub(crate) const fn polls(&self) -> u32 {
        self.polls
    }

    /// Time since the clock's origin.
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Time of the last poll.
    pub(crate) const fn polled_at(&self) -> Duration {
        self.polled_at
    }

    // -- polls

    /// Begins a poll: submits what is queued and waits at most `patience` for the first completion.
    ///
    /// # Errors
    /// The link is gone, or the kernel refused.
    pub(crate) fn begin_poll(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<Option<Completion>, Error> {
        self.polls = self.polls.wrapping_add(1);
        self.calls = CALLS_AFTER_POLL;
        self.is_restless = true;
        if self.is_down {
            return Ok(None);
        }
        self.channel.dispatch(patience).map_err(|error| error_of_poll(&error))
    }

    /// Ends a poll, after its last completion was taken by [`Channel::dispatch_ready`].
    pub(crate) fn end_poll(&mut self) {
        self.polled_at = match self.channel.polled_at() {
            Some(at) if self.shares_clock => at,
            _ => self.now(),
        };
        self.is_interrupted = self.channel.take_interrupted();
    }

    /// Counts a call that returns without having waited. Returns whether the channel has to be
    /// polled now: a program that never waits still receives and acknowledges.
    #[inline(always)]
    pub(crate) fn count_call(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.calls.is_multiple_of(CALLS_PER_CHECK) && self.is_poll_due()
    }

    #[cold]
    fn is_poll_due(&self) -> bool {
        self.calls >= CHECKS_PER_POLL * CALLS_PER_CHECK
            || self.now().saturating_sub(self.polled_at) >= POLL_AGE_MAX
    }

    /// Whether "would block" may be answered from the last poll, for an object from which bytes
    /// were last read in poll `served_in`.
    pub(crate) fn is_answer_fresh(&self, served_in: u32) -> bool {
        // Read until there is nothing, after the poll that brought what was read.
        if served_in == self.polls && !self.freshness.is_zero() {
            return true;
        }
        self.now().saturating_sub(self.polled_at) < self.freshness
    }

    // -- sleep

    /// Prepares for sleep: submits what is queued, and returns whether there is work left.
    ///
    /// # Errors
    /// The link is gone, or the kernel refused.
    pub(crate) fn prepare_sleep(&mut self) -> Result<Park, Error> {
        self.submitted_at_rest = self.channel.counters().operations;
        self.calls = CALLS_AFTER_POLL;
        self.is_restless = false;
        if self.is_down {
            return Ok(Park::Until(None));
        }
        self.channel.park().map_err(|error| error_of_poll(&error))
    }

    /// Submits what is queued, if anything may be. Does not poll.
    ///
    /// # Errors
    /// The link is gone, or the kernel refused.
    pub(crate) fn submit(&mut self) -> Result<(), Error> {
        let operations = self.channel.counters().operations;
        if !std::mem::take(&mut self.has_uncounted) && operations == self.submitted {
            return Ok(());
        }
        self.submitted = operations;
        if self.is_down {
            return Ok(());
        }
        self.channel.flush().map_err(|error| error_of_poll(&error))
    }

    /// Whether a thread that sleeps on the channel would sleep too long: since
    /// [`PolledChannel::prepare_sleep`] something was submitted, or the channel was polled.
    pub(crate) fn is_restless(&self) -> bool {
        self.is_restless || self.channel.counters().operations != self.submitted_at_rest
    }

    /// Something was submitted that the channel does not count among its operations.
    pub(crate) const fn note_uncounted(&mut self) {
        self.is_restless = true;
        self.has_uncounted = true;
    }

    // -- threads

    /// As [`MovableChannel::bind_thread`].
    pub(crate) fn bind_thread(&self) -> bool {
        self.channel.bind_thread()
    }

    /// As [`MovableChannel::unbind_thread`].
    pub(crate) fn unbind_thread(&self) {
        self.channel.unbind_thread();
    }
}

#[cold]
fn error_of_poll(error: &DispatchError) -> Error {
    match error {
        DispatchError::Kernel(source) => {
            Error::from_raw_os_error(source.raw_os_error().unwrap_or(libc::EIO))
        }
        DispatchError::Forked => Error::BadDescriptor,
        _ => Error::NetworkDown,
    }
}

impl ObjectTransport for PolledChannel {
    #[inline]
    fn is_local(&self) -> bool {
        self.is_local
    }

    fn set_cookie(&mut self, handle: Handle, cookie: u64) -> bool {
        self.channel.set_cookie(handle, cookie).is_ok()
    }

    fn unregister(&mut self, handle: Handle) {
        self.note_uncounted();
        drop(self.channel.unregister(handle));
    }

    fn register(&mut self, socket: OwnedFd, cookie: u64) -> Result<Handle, Error> {
        self.channel.register(socket, cookie, None).map_err(|error| match error {
            RegisterError::Kernel { source, .. } => source.into(),
            RegisterError::Misuse(misuse) => misuse.into(),
            RegisterError::Limit(limit) => limit.into(),
            _ => Error::InvalidArgument,
        })
    }

    fn kernel_socket(&self, handle: Handle) -> Option<BorrowedFd<'_>> {
        self.channel.descriptor(handle).ok().flatten()
    }

    fn local_address(&mut self, handle: Handle) -> Option<SocketAddr> {
        self.channel.local_address(handle).ok().and_then(|address| address.as_inet())
    }

    #[inline]
    fn unsent_bytes(&self, handle: Handle) -> Result<usize, Error> {
        Ok(self.channel.unsent_bytes(handle)?)
    }
}

impl StreamTransport for PolledChannel {
    fn connect(
        &mut self,
        to: SocketAddr,
        options: &ConnectOptions,
        cookie: u64,
    ) -> Result<Handle, Error> {
        self.check_link()?;
        self.channel.connect(&Address::Inet(to), options, cookie).map_err(error_of_connect)
    }

    fn connect_socket(
        &mut self,
        socket: &mut Option<OwnedFd>,
        to: SocketAddr,
        cookie: u64,
    ) -> Result<Handle, Error> {
        let Some(fd) = socket.take() else { return Err(Error::InvalidArgument) };
        self.channel.connect_socket(fd, &Address::Inet(to), cookie).map_err(|failed| {
            *socket = failed.fd;
            error_of_connect(failed.why)
        })
    }

    fn hand_back(&mut self, handle: Handle, seen: &[u8]) -> bool {
        self.note_uncounted();
        self.channel.hand_back(handle, seen)
    }

    fn peer_address(&mut self, handle: Handle) -> Result<Option<SocketAddr>, Error> {
        Ok(self.channel.peer_address(handle)?.as_inet())
    }

    #[inline]
    fn read(&mut self, handle: Handle) -> Result<(), Error> {
        Ok(self.channel.read(handle, READ_BYTES)?)
    }

    fn resume(&mut self, handle: Handle) {
        self.note_uncounted();
        self.channel.resume(handle);
    }

    fn await_end(&mut self, handle: Handle) {
        // It may be awaited already.
        let _ = self.channel.await_end(handle);
    }

    fn await_delivery(&mut self, handle: Handle) -> bool {
        self.channel.await_delivery(handle).is_ok()
    }

    fn await_unsent_below(&mut self, handle: Handle, bytes: u32) -> bool {
        self.channel.await_unsent_below(handle, bytes).is_ok()
    }

    #[inline]
    fn write(
        &mut self,
        handle: Handle,
        from: &mut SendPieces<'_>,
        len: usize,
    ) -> Result<(), Error> {
        let mut bytes = self.channel.try_alloc(len).map_err(|_| Error::NoMemory)?;
        let before = from.position();
        from.take(len, |part| bytes.extend_from_slice(part));
        if let Err(error) = self.channel.write_quiet(handle, bytes) {
            from.return_to(before);
            return Err(error.into());
        }
        Ok(())
    }

    #[inline]
    fn write_copied(&mut self, handle: Handle, bytes: &[u8]) -> Option<usize> {
        self.channel.write_copied(handle, bytes).ok()
    }

    fn report_last_write(&mut self, handle: Handle) -> Result<bool, Error> {
        Ok(self.channel.report_last_write(handle)?)
    }

    fn disconnect(&mut self, handle: Handle, how: Disconnect) -> Result<(), Error> {
        Ok(self.channel.disconnect(handle, how)?)
    }

    fn set_option(&mut self, handle: Handle, option: ConnOption) -> bool {
        self.channel.set_conn_option(handle, option).is_ok()
    }

    fn set_reset_on_close(&mut self, handle: Handle, on: bool) {
        // One that is over needs none.
        let _ = self.channel.set_reset_on_close(handle, on);
    }

    fn unread_in_channel(&self, handle: Handle) -> usize {
        self.channel.unread_bytes(handle).unwrap_or_default()
    }

    fn unread_in_stack(&mut self, handle: Handle) -> usize {
        self.bytes_below(handle, |info| info.unread_bytes, kernel::unread_bytes)
    }

    fn queued_in_stack(&mut self, handle: Handle) -> usize {
        self.bytes_below(handle, |info| info.queued_bytes, kernel::queued_bytes)
    }

    fn unsent_in_stack(&mut self, handle: Handle) -> usize {
        self.bytes_below(handle, |info| info.unsent_bytes, kernel::unsent_bytes)
    }

    fn syn_room(&mut self, handle: Handle) -> Option<usize> {
        self.channel.conn_info(handle).ok()?.syn_room.map(|room| room as usize)
    }

    fn room_below(&mut self, handle: Handle, mark: u32) -> Option<usize> {
        let info = self.channel.conn_info(handle).ok()?;
        Some(info.room_below(mark) as usize)
    }

    fn is_unsent_at(&mut self, handle: Handle, mark: u32) -> bool {
        self.channel.conn_info(handle).is_ok_and(|info| info.unsent_bytes >= mark)
    }
}

impl Beneath for PolledChannel {
    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        self.channel.holders(ports)
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        self.channel.port_without_connections(ports, from)
    }
}

impl ListenerTransport for PolledChannel {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        cookie: u64,
    ) -> Result<Handle, Error> {
        self.check_link()?;
        self.channel.listen(&Address::Inet(local), options, cookie).map_err(error_of_listen)
    }

    fn accept(&mut self, listener: Handle, count: u32, cookie: u64) -> Result<(), Error> {
        // What the program has not accepted counts against the backlog.
        let accept = Accept::lwsocket(count).cookie(cookie).first_read(READ_BYTES).exactly();
        Ok(self.channel.accept(listener, accept)?)
    }

    fn accepts_left(&mut self, listener: Handle) -> usize {
        self.channel.accepts_left(listener).unwrap_or_default() as usize
    }

    fn set_fast_open(&mut self, listener: Handle, pending_max: u32) {
        // One that is not there any more has nothing to be set.
        let _ = self.channel.set_fast_open(listener, pending_max);
    }

    fn addresses(&mut self, connection: Handle) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let local = ObjectTransport::local_address(self, connection);
        let peer = self.channel.peer_address(connection).ok();
        (local, peer.and_then(|address| address.as_inet()))
    }
}

impl DatagramTransport for PolledChannel {
    fn bind_datagram(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
        cookie: u64,
    ) -> Result<Handle, Error> {
        self.check_link()?;
        self.channel.bind_datagram(local, sharing, cookie).map_err(error_of_listen)
    }

    fn connect_datagram(
        &mut self,
        handle: Handle,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, Error> {
        Ok(self.channel.connect_datagram(handle, peer)?)
    }

    fn receive_datagram(&mut self, handle: Handle) -> Result<(), Error> {
        Ok(self.channel.recvfrom(handle, DATAGRAM_BYTES_MAX)?)
    }

    fn take_shared_datagram(
        &mut self,
        handle: Handle,
        keeps: bool,
    ) -> Option<Option<(Datagram, u32)>> {
        self.note_uncounted();
        self.channel.take_shared_datagram(handle, keeps)
    }

    fn await_shared_datagram(&mut self, handle: Handle) -> Option<u32> {
        self.note_uncounted();
        self.channel.await_shared_datagram(handle)
    }

    fn send_by_kernel(
        &mut self,
        handle: Handle,
        from: &mut SendPieces<'_>,
        to: SocketAddr,
    ) -> Result<(), Error> {
        let bytes = self.gathered(from)?;
        Ok(self.channel.sendto(handle, bytes, &Address::Inet(to))?)
    }

    fn send_by_stack(
        &mut self,
        handle: Handle,
        from: &mut SendPieces<'_>,
        route: &DatagramRoute,
    ) -> Result<(), Error> {
        self.check_link()?;
        let bytes = self.gathered(from)?;
        let DatagramRoute { to, departure, segment_len } = route;
        match segment_len {
            Some(len) => self.channel.send_datagrams(handle, (bytes, *len), *to, departure)?,
            None => self.channel.send_datagram(handle, bytes, *to, departure)?,
        }
        Ok(())
    }

    fn quote_errors(&mut self, handle: Handle, on: bool) {
        // It is there, and the stack's.
        let _ = self.channel.quote_errors(handle, on);
    }

    fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        self.channel.packet_bytes_max(to)
    }
}

impl PolledChannel {
    /// The rest of the caller's memory, in a buffer of the channel.
    fn gathered(&mut self, from: &mut SendPieces<'_>) -> Result<WriteBuf, Error> {
        let mut bytes = self.channel.try_alloc(from.left()).map_err(|_| Error::NoMemory)?;
        from.take(from.left(), |part| bytes.extend_from_slice(part));
        Ok(bytes)
    }

    /// Bytes that our own stack has of a connection, or else the kernel.
    fn bytes_below(
        &mut self,
        handle: Handle,
        in_stack: fn(&ConnInfo) -> u32,
        in_kernel: fn(BorrowedFd<'_>) -> usize,
    ) -> usize {
        match self.channel.conn_info(handle) {
            Ok(info) => in_stack(&info) as usize,
            Err(_) => ObjectTransport::kernel_socket(self, handle).map_or(0, in_kernel),
        }
    }
}

fn error_of_connect(error: ConnectError) -> Error {
    match error {
        ConnectError::Kernel { source, .. } => source.into(),
        ConnectError::Misuse(misuse) => misuse.into(),
        ConnectError::Limit(limit) => limit.into(),
        _ => Error::InvalidArgument,
    }
}

fn error_of_listen(error: ListenError) -> Error {
    match error {
        ListenError::Kernel { source, .. } => source.into(),
        ListenError::Misuse(misuse) => misuse.into(),
        ListenError::Limit(limit) => limit.into(),
        _ => Error::InvalidArgument,
    }
}
