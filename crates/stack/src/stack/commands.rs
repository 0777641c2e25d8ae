//! The commands of applications to TCP.
//!
//! Read first: RFC 9293 §3.9.1, whose calls these are, split into what does not block.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::RangeInclusive;

use super::Stack;
use crate::chunk::Chunk;
use crate::error::{ConnectError, ListenError, OperationError};
use crate::id::{ConnId, ListenerGroupId, ListenerId, PoolId};
use crate::memory::Memory;
use crate::table_memory::{TABLES, TableMemory};
use crate::tcp::{
    ConnInfo, ConnOption, Handover, Holder, ListenerGroupLimits, ListenerGroupUse, Reuse, Snapshot,
    TcpUsage,
};
use crate::time::Instant;

impl Stack {
    /// Takes connections to `local` from now on; an unspecified address means any of ours of that
    /// family. `backlog`: as in Linux, one more connection waits to be reported beside those that
    /// [`Stack::accept`] asked for; SYNs of others are dropped. Their bytes go to `pool`.
    ///
    /// # Errors
    ///
    /// See [`ListenError`].
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        pool: PoolId,
    ) -> Result<ListenerId, ListenError> {
        self.tcp.listen(&self.base.ip, local, backlog, pool)
    }

    /// What the sockets of a listener's connections say of others at their local address, from now
    /// on: as [`ConnOption::Reuse`] from the beginning.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn set_listener_reuse(
        &mut self,
        listener: ListenerId,
        reuse: Reuse,
    ) -> Result<(), OperationError> {
        self.tcp.set_listener_reuse(listener, reuse)
    }

    /// Lets so many connections of a listener begin with the data of a SYN and wait for the
    /// handshake's end (Fast Open, RFC 7413), from now on; 0, as at first: none. Such a connection
    /// is reported, and may be answered, before its peer has shown that it is where it says; and if
    /// the network repeats the SYN later, the application sees its data twice. So it is for
    /// requests that do no harm when they come twice.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn set_listener_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        self.tcp.set_listener_fast_open(listener, pending_max)
    }

    /// Makes a group for listeners, whose backlogs and other connections have limits together.
    /// Beyond them, SYNs are dropped as with a full backlog. `None`: there is no memory.
    pub fn open_listener_group(&mut self, limits: ListenerGroupLimits) -> Option<ListenerGroupId> {
        self.tcp.listener_groups().open(limits)
    }

    /// Replaces the limits of a group. What it has stays.
    pub fn limit_listener_group(&mut self, group: ListenerGroupId, limits: ListenerGroupLimits) {
        self.tcp.listener_groups().limit(group, limits);
    }

    /// No more listeners join a group. Its id is stale from now on.
    pub fn close_listener_group(&mut self, group: ListenerGroupId) {
        self.tcp.listener_groups().close(group);
    }

    /// What the listeners of a group have together.
    pub fn listener_group_use(&mut self, group: ListenerGroupId) -> ListenerGroupUse {
        self.tcp.listener_groups().usage(group)
    }

    /// A listener belongs to a group from now on. What was reported before is of none, or of the
    /// group before.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn set_listener_group(
        &mut self,
        listener: ListenerId,
        group: ListenerGroupId,
    ) -> Result<(), OperationError> {
        self.tcp.set_listener_group(listener, group)
    }

    /// Whether the peer of some connection, closed ones included, has not acknowledged all bytes,
    /// or the FIN, that were queued for it. Searches all connections: for the end of a process, and
    /// not per frame.
    #[must_use]
    pub fn has_undelivered(&self) -> bool {
        self.tcp.has_undelivered()
    }

    /// Returns the connections at some local ports, including orphans and those in TIME-WAIT,
    /// without duplicates. The stack itself allows listening there; this is for the stricter rules
    /// of bind(2). Searches all connections if one uses such a port, so do not call it per frame.
    #[must_use]
    pub fn holders(&self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        self.tcp.holders(ports)
    }

    /// The first port at which there is no connection, from `from` on and then from the range's
    /// beginning; `None`: each has one.
    #[must_use]
    pub fn port_without_connections(&self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        self.tcp.port_without_connections(ports, from)
    }

    /// Lets `credit` more [`crate::Event::Incoming`] come.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn accept(&mut self, listener: ListenerId, credit: u32) -> Result<(), OperationError> {
        self.tcp.accept(listener, credit)
    }

    /// Takes back credit that was given by [`Stack::accept`], as far as it was not used.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn withdraw_credit(
        &mut self,
        listener: ListenerId,
        credit: u32,
    ) -> Result<(), OperationError> {
        self.tcp.withdraw_credit(listener, credit)
    }

    /// Takes no more connections. Those that were not reported yet are reset.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn unlisten<M: Memory>(
        &mut self,
        now: Instant,
        listener: ListenerId,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.unlisten(context, listener))
    }

    /// Begins a connection to `remote`, from `local` or from an address and a port that the stack
    /// chooses (either part of `local` may be left open: unspecified, 0). Its bytes go to `pool`.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect<M: Memory>(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        (pool, memory): (PoolId, &mut M),
    ) -> Result<ConnId, ConnectError> {
        self.connect_where(now, remote, local, (pool, memory), &|_| true)
    }

    /// As [`Stack::connect`], from an address and port that `fits` alone: where many stacks share
    /// an address, answers to others do not come here.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`]; [`ConnectError::InUse`] for a port that was asked for and does not
    /// fit.
    pub fn connect_where<M: Memory>(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        (pool, memory): (PoolId, &mut M),
        fits: &dyn Fn(SocketAddr) -> bool,
    ) -> Result<ConnId, ConnectError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.connect(context, remote, local, pool, fits))
    }

    /// Asks for the next bytes: one [`crate::Event::Received`], or
    /// [`crate::Event::PeerClosed`]. Until then they wait here, and the peer's window closes.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn receive(&mut self, now: Instant, conn: ConnId) -> Result<(), OperationError> {
        self.tick(now);
        self.tcp.receive(conn)
    }

    /// Takes back a [`Stack::receive`] that nothing has come of. Returns whether there was one. The
    /// end of the peer's stream is reported to the next one, also if it was before.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn withhold(&mut self, conn: ConnId) -> Result<bool, OperationError> {
        self.tcp.withhold(conn)
    }

    /// Whether the next bytes were asked for and have not come.
    #[must_use]
    pub fn is_receiving(&self, conn: ConnId) -> bool {
        self.tcp.is_receiving(conn)
    }

    /// Whether a chunk for which `is_such` returns `true` waits to be sent or acknowledged.
    #[must_use]
    pub fn has_queued(&self, conn: ConnId, is_such: impl Fn(Chunk) -> bool) -> bool {
        self.tcp.has_queued(conn, is_such)
    }

    /// Gives the bytes that wait to be read to `each`, in order, which owns their chunks then.
    /// Bytes behind a gap are given up, and the peer sends them again. The end of the peer's stream
    /// is reported to the next [`Stack::receive`], also if it was before.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn take_unread<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        memory: &mut M,
        each: impl FnMut(&mut M, Chunk),
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.tcp.take_unread(conn, memory, each)
    }

    /// Sends `chunk`. Its buffer is the stack's until the peer has acknowledged all of it; then it
    /// is given up by [`Memory::free`].
    ///
    /// # Errors
    ///
    /// The buffer is still the caller's. [`OperationError::QueueFull`]: enough is queued already.
    pub fn send<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        chunk: Chunk,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.send(context, conn, chunk))
    }

    /// Asks for one [`crate::Event::Acked`].
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.tcp.await_acks(conn)
    }

    /// Sends no more: FIN after what is queued. The peer may go on.
    ///
    /// # Errors
    ///
    /// [`OperationError::Closing`] the second time.
    pub fn shutdown<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.shutdown(context, conn))
    }

    /// The application is gone: what is queued is sent, then FIN. Bytes that it has not read, or
    /// that come later, are answered by a RST (RFC 9293 §3.6.1). The id is stale.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn close<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.close(context, conn))
    }

    /// RST. The id is stale.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn abort<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.abort(context, conn))
    }

    /// Sets something.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`]; for [`ConnOption::Urgent`] and [`ConnOption::EndOfRecord`]
    /// those of [`Stack::send`].
    pub fn set_option<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        option: ConnOption,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.set_option(context, conn, option))
    }

    /// What is known about a connection.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn info(&self, conn: ConnId) -> Result<ConnInfo, OperationError> {
        self.tcp.info(conn)
    }

    /// What the tables cost.
    #[must_use]
    pub fn memory(&self) -> [TableMemory; TABLES] {
        self.tcp.memory()
    }

    /// How full the tables of TCP are.
    #[must_use]
    pub const fn tcp_usage(&self) -> TcpUsage {
        self.tcp.usage()
    }

    /// Both ends: ours, then the peer's.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn addresses(&self, conn: ConnId) -> Result<(SocketAddr, SocketAddr), OperationError> {
        self.tcp.addresses(conn)
    }

    /// Bytes that come from now on go to `pool`.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn set_pool(&mut self, conn: ConnId, pool: PoolId) -> Result<(), OperationError> {
        self.tcp.set_pool(conn, pool)
    }

    /// Whether there is a connection between these two ends, be it in TIME-WAIT.
    #[must_use]
    pub fn knows(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.tcp.knows(local, remote)
    }

    /// The connections at a local port, with their local and remote ends; those in TIME-WAIT left
    /// out. Looks at every connection: not for the way of a frame.
    #[must_use]
    pub fn connections_at(&self, port: u16) -> Vec<(ConnId, SocketAddr, SocketAddr)> {
        self.tcp.connections_at(port)
    }

    /// Takes an established connection out, to go on somewhere else: the id is stale, nothing is
    /// sent, and no event comes. Keep its segments away from this stack: those that are on their
    /// way to it are dropped for a second ([`crate::limits::DEPARTED_LASTS`]). The snapshot's
    /// chunks are the caller's, who gives them up by [`Memory::free`] or to [`Stack::import`].
    ///
    /// # Errors
    ///
    /// [`OperationError::NotConnected`] or [`OperationError::Closing`] in any state but
    /// ESTABLISHED.
    pub fn export<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        memory: &mut M,
    ) -> Result<Snapshot, OperationError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.export(context, conn))
    }

    /// Takes a connection in that was established elsewhere. Its chunks are the stack's from now
    /// on, and bytes that come go to `pool`.
    ///
    /// # Errors
    ///
    /// [`ConnectError::InUse`], [`ConnectError::BadLocalAddress`],
    /// [`ConnectError::BadRemoteAddress`], [`ConnectError::NoRoute`],
    /// [`ConnectError::TooManyConnections`]; the chunks are still the caller's.
    pub fn import<M: Memory>(
        &mut self,
        now: Instant,
        snapshot: &Snapshot,
        (pool, memory): (PoolId, &mut M),
    ) -> Result<ConnId, ConnectError> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.import(context, snapshot, pool))
    }

    /// Takes the next handshake or unreported connection out of a listener that is about to leave,
    /// for another stack that listens at its address ([`Stack::take_over`]). Nothing is sent, and
    /// its buffers are free. `None`: there is none left that could move; [`Stack::unlisten`] resets
    /// what is left.
    pub fn hand_over_next<M: Memory>(
        &mut self,
        now: Instant,
        listener: ListenerId,
        memory: &mut M,
    ) -> Option<Handover> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.hand_over_next(context, listener))
    }

    /// Takes out a connection that was reported by [`crate::Event::Incoming`], and that no
    /// application has used yet. The id is stale then. `None`: it is over, or something was sent on
    /// it or asked for that cannot move; nothing has changed.
    pub fn hand_over_reported<M: Memory>(
        &mut self,
        now: Instant,
        conn: ConnId,
        memory: &mut M,
    ) -> Option<Handover> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.hand_over_reported(context, conn))
    }

    /// Takes over what another stack handed over. A handshake goes on where it was; a connection
    /// waits to be reported, also beyond the backlog.
    ///
    /// # Errors
    ///
    /// The handover, if no listener has its address here, or a table or the memory is full.
    pub fn take_over<M: Memory>(
        &mut self,
        now: Instant,
        handover: Handover,
        memory: &mut M,
    ) -> Result<(), Handover> {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.take_over(context, handover))
    }

    /// Ends a handover that no stack takes over: with a RST for a connection. A handshake is
    /// forgotten, and the peer's next segment gets the RST.
    pub fn refuse_handover<M: Memory>(
        &mut self,
        now: Instant,
        handover: &Handover,
        memory: &mut M,
    ) {
        self.tick(now);
        self.with(memory, |tcp, context| tcp.refuse_handover(context, handover));
    }
}
