//! Connections, endpoints and ports: each belongs to a lane, which is found by its name.
//!
//! A connection is opened on the lanes in turn: each shard chooses a local port whose flow comes
//! back to it. With a local port of the application's, the lane that it fits is found by trying.
//!
//! Datagrams come to the shard of their endpoint, as bindings have it. Endpoints of one port are
//! therefore on one lane in all channels, chosen by the port, so that one stack knows those that
//! share it. Spread ones (SO_REUSEPORT) are on the channel's own lane: what comes is spread over
//! the shards, too.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use megapipe_link::Transport;
use megapipe_stack::{
    BindError, ConnId, ConnInfo, ConnOption, ConnectError, DatagramId, DatagramSharing, Departure,
    Holder, OperationError,
};

use super::LaneSet;
use crate::begin::ConnectStart;
use crate::error::PortError;
use crate::limits::FREE_PORT_TRIES;

/// Connections.
impl LaneSet {
    /// As [`RemoteClient::connect_as`], on the next lane, or on the one that `local` fits.
    ///
    /// # Errors
    /// As there.
    ///
    /// [`RemoteClient::connect_as`]: crate::remote::RemoteClient::connect_as
    #[inline]
    pub fn connect_as(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        let reservation = match local {
            Some(local) => self.reserve_port(Transport::Tcp, local)?,
            None => 0,
        };
        let begun = self.connect_lanes((remote, local, reservation), begin);
        self.forget_port(reservation);
        begun
    }

    #[inline]
    fn connect_lanes(
        &mut self,
        at @ (_, local, _): (SocketAddr, Option<SocketAddr>, u64),
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        if self.others.is_empty() {
            return self.first.connect_reserved(at, begin);
        }
        let lanes = self.lanes();
        let is_chosen = local.is_some_and(|local| local.port() != 0);
        let mut lane = self.next;
        self.next = (lane + 1) % lanes;
        for _ in 1..lanes {
            match self.lane(lane).connect_reserved(at, begin) {
                // Its flow comes to another shard, perhaps.
                Err(PortError::Stack(ConnectError::InUse)) if is_chosen => {}
                begun => return begun.map(|conn| self.name_of(lane, conn)),
            }
            lane = (lane + 1) % lanes;
        }
        let begun = self.lane(lane).connect_reserved(at, begin);
        begun.map(|conn| self.name_of(lane, conn))
    }

    /// The next bytes are wanted.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the connection is over.
    #[inline]
    pub fn receive(&mut self, conn: ConnId) -> Result<(), OperationError> {
        let (lane, conn) = self.of_conn(conn);
        lane.receive(conn)
    }

    /// As [`RemoteClient::send_short`](crate::remote::RemoteClient::send_short).
    #[inline]
    pub fn send_short(&mut self, conn: ConnId, bytes: &[u8]) -> bool {
        let (lane, conn) = self.of_conn(conn);
        lane.send_short(conn, bytes)
    }

    /// As [`RemoteClient::send`](crate::remote::RemoteClient::send).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) -> Result<usize, OperationError> {
        let (lane, conn) = self.of_conn(conn);
        lane.send(conn, bytes)
    }

    /// As [`RemoteClient::await_acks`](crate::remote::RemoteClient::await_acks).
    ///
    /// # Errors
    /// As there.
    pub fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        let (lane, conn) = self.of_conn(conn);
        lane.await_acks(conn)
    }

    /// As [`RemoteClient::await_delivery`](crate::remote::RemoteClient::await_delivery).
    ///
    /// # Errors
    /// As there.
    pub fn await_delivery(&mut self, conn: ConnId) -> Result<(), OperationError> {
        let (lane, conn) = self.of_conn(conn);
        lane.await_delivery(conn)
    }

    /// As [`RemoteClient::set_reset_on_close`](crate::remote::RemoteClient::set_reset_on_close).
    ///
    /// # Errors
    /// As there.
    pub fn set_reset_on_close(&mut self, conn: ConnId, on: bool) -> Result<(), OperationError> {
        let (lane, conn) = self.of_conn(conn);
        lane.set_reset_on_close(conn, on)
    }

    /// As [`RemoteClient::set_option`](crate::remote::RemoteClient::set_option).
    ///
    /// # Errors
    /// As there.
    pub fn set_option(&mut self, conn: ConnId, option: ConnOption) -> Result<(), OperationError> {
        let (lane, conn) = self.of_conn(conn);
        lane.set_option(conn, option)
    }

    /// Nothing more will be sent.
    pub fn shutdown(&mut self, conn: ConnId) {
        let (lane, conn) = self.of_conn(conn);
        lane.shutdown(conn);
    }

    /// The application is done with a connection.
    pub fn close(&mut self, conn: ConnId) {
        let (lane, conn) = self.of_conn(conn);
        lane.close(conn);
    }

    /// Resets a connection.
    pub fn abort(&mut self, conn: ConnId) {
        let (lane, conn) = self.of_conn(conn);
        lane.abort(conn);
    }

    /// As [`RemoteClient::info`](crate::remote::RemoteClient::info).
    pub fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        let (lane, conn) = self.of_conn(conn);
        lane.info(conn)
    }

    /// As [`RemoteClient::addresses`](crate::remote::RemoteClient::addresses).
    pub fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        let (lane, conn) = self.of_conn(conn);
        lane.addresses(conn)
    }

    /// As [`RemoteClient::take_out`](crate::remote::RemoteClient::take_out).
    pub fn take_out(&mut self, conn: ConnId) -> bool {
        let (lane, conn) = self.of_conn(conn);
        lane.take_out(conn)
    }

    /// Nothing more is heard of a connection that was taken out.
    pub fn forget_moved(&mut self, conn: ConnId) {
        let (lane, conn) = self.of_conn(conn);
        lane.forget_moved(conn);
    }

    /// As [`RemoteClient::hand_over_taken`](crate::remote::RemoteClient::hand_over_taken).
    pub fn hand_over_taken(&mut self, conn: ConnId, bytes: &[u8]) {
        let (lane, conn) = self.of_conn(conn);
        lane.hand_over_taken(conn, bytes);
    }

    /// As [`RemoteClient::hand_over_offered`](crate::remote::RemoteClient::hand_over_offered).
    pub fn hand_over_offered(&mut self, conn: ConnId) {
        let (lane, conn) = self.of_conn(conn);
        lane.hand_over_offered(conn);
    }

    /// Names the core that the application runs on from now on, where shards share a link.
    pub fn set_core(&mut self, core: Option<u32>) {
        self.all_mut().for_each(|lane| lane.set_core(core));
    }
}

/// Ports.
impl LaneSet {
    /// As [`RemoteClient::holders`](crate::remote::RemoteClient::holders), of all shards.
    pub fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        let of_lane = |lane: &mut crate::remote::RemoteClient| lane.holders(ports.clone());
        self.all_mut().flat_map(of_lane).collect()
    }

    /// As [`RemoteClient::has_undelivered`](crate::remote::RemoteClient::has_undelivered), of any
    /// shard.
    pub fn has_undelivered(&mut self) -> bool {
        self.all_mut().any(crate::remote::RemoteClient::has_undelivered)
    }

    /// A port without connections on any shard, from `from` on.
    pub fn port_without_connections(
        &mut self,
        ports: RangeInclusive<u16>,
        mut from: u16,
    ) -> Option<u16> {
        for _ in 0..FREE_PORT_TRIES {
            let port = self.first.port_without_connections(ports.clone(), from)?;
            let mut others = self.others.iter_mut();
            if others.all(|lane| lane.port_without_connections(port..=port, port).is_some()) {
                return Some(port);
            }
            from = if port < *ports.end() { port + 1 } else { *ports.start() };
        }
        None
    }
}

/// Datagrams.
impl LaneSet {
    /// As [`RemoteClient::bind`](crate::remote::RemoteClient::bind), on the lane of the port.
    ///
    /// # Errors
    /// As there.
    pub fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        let lane = match local.port() {
            port if port != 0 && !sharing.spreads => usize::from(port) % self.lanes(),
            _ => self.home,
        };
        let reservation = self.reserve_port(Transport::Udp, local)?;
        let bound = self.lane(lane).bind_reserved((local, reservation), sharing);
        self.forget_port(reservation);
        bound.map(|endpoint| self.name_of_endpoint(lane, endpoint))
    }

    /// As [`RemoteClient::connect_datagram`](crate::remote::RemoteClient::connect_datagram).
    ///
    /// # Errors
    /// As there.
    pub fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.connect_datagram(endpoint, peer)
    }

    /// Closes an endpoint. The address is free on return.
    pub fn close_datagram(&mut self, endpoint: DatagramId) {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.close_datagram(endpoint);
    }

    /// As [`RemoteClient::send_datagram`](crate::remote::RemoteClient::send_datagram).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send_datagram(
        &mut self,
        endpoint: DatagramId,
        way: (SocketAddr, &Departure),
        bytes: &[u8],
    ) -> Result<(), OperationError> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.send_datagram(endpoint, way, bytes)
    }

    /// As [`RemoteClient::send_datagrams`](crate::remote::RemoteClient::send_datagrams).
    ///
    /// # Errors
    /// As there.
    pub fn send_datagrams(
        &mut self,
        endpoint: DatagramId,
        way: (SocketAddr, &Departure),
        segments: (&[u8], usize),
    ) -> Result<(), OperationError> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.send_datagrams(endpoint, way, segments)
    }

    /// As [`RemoteClient::quote_errors`](crate::remote::RemoteClient::quote_errors).
    ///
    /// # Errors
    /// As there.
    pub fn quote_errors(&mut self, endpoint: DatagramId, on: bool) -> Result<(), OperationError> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.quote_errors(endpoint, on)
    }

    /// As [`RemoteClient::packet_bytes_max`](crate::remote::RemoteClient::packet_bytes_max): routes
    /// are the same at all shards.
    pub fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        self.first.packet_bytes_max(to)
    }

    /// As [`RemoteClient::datagram_address`](crate::remote::RemoteClient::datagram_address).
    pub fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.datagram_address(endpoint)
    }
}
