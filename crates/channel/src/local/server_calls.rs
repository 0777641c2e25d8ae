//! Calls of a server for connections, listeners, endpoints and ports: [`ServerCalls`].
//!
//! A server in this process is called in place ([`InPlace`]): placements `inline` and `thread`
//! differ in how they get hold of it. The server of the placement `core` and of a daemon is called
//! by records (`remote.rs`).
//!
//! Read first: `stack_handle.rs`, for what else a channel asks of a stack;
//! `megapipe_service::Server`, for the meaning of each call.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use megapipe_service::{AcceptorId, ConnectStart, PortError, Server, Sharing};
use megapipe_stack::{
    Arrival, BindError, ConnId, ConnInfo, ConnOption, ConnectError, DatagramId, DatagramSharing,
    Holder, Instant, ListenError, ListenerId, Memory, Notice, OperationError, Stack,
};

/// Calls of a server, wherever it runs. `now` is the time of the channel's last poll.
pub(crate) trait ServerCalls {
    // -- connections

    /// Begins to connect.
    ///
    /// # Errors
    /// As [`Server::connect`]. On `core`, errors of a connection with default options follow as
    /// [`RemoteEvent::NotBegun`](megapipe_service::RemoteEvent::NotBegun).
    fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>>;

    /// Requests the next received bytes of a connection.
    ///
    /// # Errors
    /// [`OperationError`]: the connection is over.
    fn receive(&mut self, now: Instant, conn: ConnId) -> Result<(), OperationError>;

    /// Requests an event for the next acknowledgment, to send what waits for room.
    ///
    /// # Errors
    /// [`OperationError`]: the connection is over.
    fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError>;

    /// Sets an option, after all operations that were queued before.
    ///
    /// # Errors
    /// [`OperationError`]: the connection is over.
    fn set_option(
        &mut self,
        now: Instant,
        conn: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError>;

    /// Closes the sending direction, unless it is closed.
    fn shutdown(&mut self, now: Instant, conn: ConnId);

    /// Closes a connection in order, unless it is over.
    fn close(&mut self, now: Instant, conn: ConnId);

    /// Resets a connection, unless it is over.
    fn abort(&mut self, now: Instant, conn: ConnId);

    /// State and options of a connection; `None`: it is over.
    fn info(&mut self, conn: ConnId) -> Option<ConnInfo>;

    /// Local and remote address of a connection; `None`: it is over.
    fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)>;

    // -- listeners

    /// Listens, without credit to accept.
    ///
    /// # Errors
    /// As [`Server::listen`].
    fn listen(
        &mut self,
        now: Instant,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>>;

    /// Changes which connections belong to a listener whose address shards share.
    ///
    /// # Errors
    /// As [`Server::share`].
    fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>>;

    /// Sets how many connections of a listener may begin with the data of a SYN.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: no such listener.
    fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError>;

    /// Whether a shard listens at an address.
    fn is_listening(&mut self, local: SocketAddr) -> bool;

    /// Gives a listener credit for `count` more connections.
    ///
    /// # Errors
    /// [`OperationError`]: no such listener, or too many acceptors.
    fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError>;

    /// Stops listening. The address is free on return.
    fn unlisten(&mut self, now: Instant, listener: ListenerId);

    // -- handover to siblings

    /// As [`Server::take_out`]. Events of the connection that are in transit follow until
    /// [`StackHandle::forget_moved`](super::StackHandle::forget_moved).
    fn take_out(&mut self, now: Instant, conn: ConnId) -> bool;

    /// As [`Server::hand_over_taken`], with bytes that were received already and go before the
    /// unread ones.
    fn hand_over_taken(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);

    /// As [`Server::hand_over_offered`].
    fn hand_over_offered(&mut self, now: Instant, conn: ConnId);

    // -- datagrams

    /// Binds an endpoint; port 0 takes any.
    ///
    /// # Errors
    /// As [`Server::bind`].
    fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>>;

    /// Restricts an endpoint to one peer; `None`: to none. Returns its address.
    ///
    /// # Errors
    /// [`OperationError::BadAddress`]: no route to the peer; others: no such endpoint.
    fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError>;

    /// Closes an endpoint. The address is free on return.
    fn close_datagram(&mut self, endpoint: DatagramId);

    /// Arrival metadata of the datagram of the last event.
    fn last_arrival(&mut self) -> Option<Arrival>;

    /// Takes the notice of the last event, if that was an undelivered datagram.
    fn take_notice(&mut self) -> Option<Notice>;

    /// Sets whether notices of an endpoint quote the datagram.
    ///
    /// # Errors
    /// [`OperationError`]: no such endpoint.
    fn quote_errors(&mut self, endpoint: DatagramId, on: bool) -> Result<(), OperationError>;

    /// Bytes of the longest packet of a datagram to `to`; `None`: the server is gone.
    fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16>;

    /// Address of an endpoint; `None`: no such endpoint.
    fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr>;

    // -- the end of the program

    /// Whether a stack that ends with the program has bytes, or a FIN, that a peer has not
    /// acknowledged: [`megapipe_stack::Stack::has_undelivered`]. A daemon's goes on.
    fn has_undelivered(&mut self) -> bool;

    // -- ports

    /// As [`megapipe_stack::Stack::holders`].
    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder>;

    /// As [`megapipe_stack::Stack::port_without_connections`].
    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16>;
}

/// Access to a server in this process.
pub(super) trait InPlace {
    /// The server's payload memory.
    type Memory: Memory;

    /// Calls the server, at `now` or at the server's own time if that is later.
    fn at<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Server<Self::Memory>, Instant) -> R,
    ) -> R;

    /// As `at`, for calls that need no time.
    fn enter<R>(&mut self, call: impl FnOnce(&mut Server<Self::Memory>) -> R) -> R;

    /// As `enter`, for the stack.
    #[inline]
    fn stack<R>(&mut self, call: impl FnOnce(&mut Stack) -> R) -> R {
        self.enter(|server| call(server.parts().0))
    }
}

impl<P: InPlace> ServerCalls for P {
    fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        self.at(now, |server, now| server.connect_as(now, (remote, local), begin))
    }

    #[inline]
    fn receive(&mut self, now: Instant, conn: ConnId) -> Result<(), OperationError> {
        self.at(now, |server, now| server.parts().0.receive(now, conn))
    }

    fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.stack(|stack| stack.await_acks(conn))
    }

    fn set_option(
        &mut self,
        now: Instant,
        conn: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError> {
        self.at(now, |server, now| {
            let (stack, memory) = server.parts();
            stack.set_option(now, conn, option, memory)
        })
    }

    fn shutdown(&mut self, now: Instant, conn: ConnId) {
        self.at(now, |server, now| {
            let (stack, memory) = server.parts();
            // Closed by us before, or by the peer meanwhile.
            let _ = stack.shutdown(now, conn, memory);
        });
    }

    fn close(&mut self, now: Instant, conn: ConnId) {
        self.at(now, |server, now| {
            let (stack, memory) = server.parts();
            // A connection that is over needs no end.
            let _ = stack.close(now, conn, memory);
        });
    }

    fn abort(&mut self, now: Instant, conn: ConnId) {
        self.at(now, |server, now| server.abort(now, conn));
    }

    fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        self.stack(|stack| stack.info(conn).ok())
    }

    fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        self.stack(|stack| stack.addresses(conn).ok())
    }

    fn listen(
        &mut self,
        now: Instant,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.at(now, |server, now| server.listen(now, local, backlog, sharing))
    }

    fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        self.enter(|server| server.share(listener, sharing))
    }

    fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        self.stack(|stack| stack.set_listener_fast_open(listener, pending_max))
    }

    fn is_listening(&mut self, local: SocketAddr) -> bool {
        self.enter(|server| server.is_listening(local))
    }

    fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError> {
        self.enter(|server| server.accept(listener, acceptor, count))
    }

    fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        self.at(now, |server, now| server.unlisten(now, listener));
    }

    fn take_out(&mut self, now: Instant, conn: ConnId) -> bool {
        self.at(now, |server, now| server.take_out(now, conn))
    }

    fn hand_over_taken(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.at(now, |server, now| {
            server.prepend_unread(conn, bytes);
            server.hand_over_taken(now, conn);
        });
    }

    fn hand_over_offered(&mut self, now: Instant, conn: ConnId) {
        self.at(now, |server, now| server.hand_over_offered(now, conn));
    }

    fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        self.enter(|server| server.bind(local, sharing))
    }

    fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        self.stack(|stack| stack.connect_datagram(endpoint, peer))
    }

    fn close_datagram(&mut self, endpoint: DatagramId) {
        self.enter(|server| server.close_datagram(endpoint));
    }

    fn last_arrival(&mut self) -> Option<Arrival> {
        self.stack(|stack| Some(stack.last_arrival()))
    }

    fn take_notice(&mut self) -> Option<Notice> {
        self.stack(Stack::take_notice)
    }

    fn quote_errors(&mut self, endpoint: DatagramId, on: bool) -> Result<(), OperationError> {
        self.stack(|stack| stack.quote_errors(endpoint, on))
    }

    fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        self.stack(|stack| Some(stack.packet_bytes_max(to)))
    }

    fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        self.stack(|stack| stack.datagram_address(endpoint).ok())
    }

    fn has_undelivered(&mut self) -> bool {
        self.stack(|stack| stack.has_undelivered())
    }

    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        self.stack(|stack| stack.holders(ports))
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        self.stack(|stack| stack.port_without_connections(ports, from))
    }
}
