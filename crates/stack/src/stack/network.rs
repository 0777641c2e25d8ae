//! Commands about the network and about datagrams.

use core::net::{IpAddr, SocketAddr};

use super::Stack;
use crate::chunk::Chunk;
use crate::config::Route;
use crate::context::Context;
use crate::error::{BindError, ConfigError, OperationError};
use crate::event::{Arrival, Departure, Notice};
use crate::id::{DatagramId, PoolId};
use crate::ip::local_peers::LocalPeerFilter;
use crate::memory::Memory;
use crate::time::Instant;
use crate::udp::DatagramSharing;

impl Stack {
    /// Only peers at our own addresses that pass `filter` can be reached from now on: of others
    /// [`Stack::connect`] and [`Stack::send_datagram`] say that no route leads there. For links
    /// that share the host's address, where the kernel has ports of its own.
    pub fn set_local_peer_filter(&mut self, filter: LocalPeerFilter) {
        self.base.ip.set_local_peer_filter(filter);
    }

    /// Whether anything was ever sent to an address of ours. Then frames that stay here
    /// ([`crate::Transmit::stays_here`]) may wait behind frames for the link.
    #[must_use]
    pub const fn has_local_peers(&self) -> bool {
        self.base.ip.has_local_peers()
    }

    /// Opens a UDP endpoint. `local` is an address of ours, or the unspecified one for all of its
    /// family; port 0: a free one of [`crate::Config::ephemeral_ports`] is chosen. What arrives
    /// goes to buffers of `pool`. Does not block.
    ///
    /// # Errors
    ///
    /// The address is not ours, the pair is in use, or there is no room.
    pub fn bind_datagram(
        &mut self,
        local: SocketAddr,
        pool: PoolId,
    ) -> Result<DatagramId, BindError> {
        self.bind_datagram_beside(local, DatagramSharing::default(), pool)
    }

    /// As [`Stack::bind_datagram`], at an address that others may have as well. A datagram goes to
    /// the endpoint that fits it best: one with that very peer, at that very address, of IPv4's own
    /// sockets, the newest; or to one of those of its address over which it is spread.
    ///
    /// # Errors
    ///
    /// As there; the pair is in use also if only one of the two shares it.
    pub fn bind_datagram_beside(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
        pool: PoolId,
    ) -> Result<DatagramId, BindError> {
        self.bind_datagram_where(local, sharing, pool, &|_| true)
    }

    /// As [`Stack::bind_datagram_beside`]; a port that is chosen is one that `fits`, for callers
    /// that have not reserved all of [`crate::Config::ephemeral_ports`].
    ///
    /// # Errors
    ///
    /// As there; [`BindError::NoPort`] if no free port fits.
    pub fn bind_datagram_where(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
        pool: PoolId,
        fits: &dyn Fn(u16) -> bool,
    ) -> Result<DatagramId, BindError> {
        self.udp.bind(&self.base.ip, (local, sharing), pool, fits)
    }

    /// Sets the peer of an endpoint, which then receives from it only, with precedence over
    /// endpoints that share its address; `None` removes the peer. A wildcard endpoint gets the
    /// source address for that peer; with a peer of the other family it receives nothing. Returns
    /// its local address.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`]; [`OperationError::BadAddress`]: there is no way to the peer.
    pub fn connect_datagram(
        &mut self,
        id: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        self.udp.connect(&self.base.ip, id, peer)
    }

    /// Where an endpoint is, with the port that was chosen for it.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn datagram_address(&self, id: DatagramId) -> Result<SocketAddr, OperationError> {
        self.udp.local(id)
    }

    /// The peer that [`Stack::connect_datagram`] gave an endpoint.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn datagram_peer(&self, id: DatagramId) -> Result<Option<SocketAddr>, OperationError> {
        self.udp.peer(id)
    }

    /// Sends the bytes of `chunk`, which may be none, as one datagram. The buffer is the stack's
    /// until the datagram is written to a frame, or dropped; then [`Memory::free`] gets it. Does
    /// not block. The datagram fits one packet: of the link's MTU for IPv4, of the path's for
    /// IPv6.
    ///
    /// # Errors
    ///
    /// The chunk is the caller's again: the endpoint is unknown, the address is none to send to,
    /// the datagram is too long, or the queue is full.
    pub fn send_datagram<M: Memory>(
        &mut self,
        now: Instant,
        id: DatagramId,
        (to, chunk): (SocketAddr, Chunk),
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        let Self { base, udp, now, .. } = self;
        let mut context = Context { now: *now, memory, base };
        udp.send(&mut context, id, (to, chunk), &Departure::default())
    }

    /// As [`Stack::send_datagram`], from an address, with a hop limit and a traffic class of its
    /// own.
    ///
    /// # Errors
    ///
    /// As there; [`OperationError::BadAddress`] also for a source that is not ours.
    pub fn send_datagram_as<M: Memory>(
        &mut self,
        now: Instant,
        id: DatagramId,
        (to, chunk, departure): (SocketAddr, Chunk, &Departure),
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.tick(now);
        let Self { base, udp, now, .. } = self;
        let mut context = Context { now: *now, memory, base };
        udp.send(&mut context, id, (to, chunk), departure)
    }

    /// Whether [`Stack::send_datagram_as`] would take `count` datagrams of at most `len` bytes now.
    /// Returns the bytes of the longest that it would take.
    ///
    /// # Errors
    ///
    /// Those of sending them.
    pub fn check_datagrams(
        &self,
        id: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        (len, count): (usize, usize),
    ) -> Result<usize, OperationError> {
        self.udp.check((&self.base.ip, &self.base.config), id, to, departure, (len, count))
    }

    /// How many more datagrams an endpoint may send now, before one is written to a frame.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn datagram_room(&self, id: DatagramId) -> Result<usize, OperationError> {
        self.udp.room(id)
    }

    /// How the datagram arrived that [`Stack::poll_event`] told of last.
    #[must_use]
    pub const fn last_arrival(&self) -> Arrival {
        self.udp.last_arrival()
    }

    /// Takes the notice of the last event of [`Stack::poll_event`], if it was an undelivered
    /// datagram. Callers that enabled quotes must take each notice, which owns a buffer.
    pub const fn take_notice(&mut self) -> Option<Notice> {
        self.udp.take_notice()
    }

    /// From now on notices come with the bytes that they quote, or without, as at first.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn quote_errors(&mut self, id: DatagramId, on: bool) -> Result<(), OperationError> {
        self.udp.quote_errors(id, on)
    }

    /// Bytes of the longest packet that goes to `to`, as far as is known.
    #[must_use]
    pub fn packet_bytes_max(&self, to: IpAddr) -> u16 {
        self.udp.packet_bytes_max(&self.base.ip, &self.base.config, to)
    }

    /// Closes an endpoint. Datagrams that it has received are dropped; those that it has sent go
    /// out.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn close_datagram<M: Memory>(
        &mut self,
        id: DatagramId,
        memory: &mut M,
    ) -> Result<(), OperationError> {
        self.udp.close(id, memory)
    }

    /// Drops datagrams that wait to be sent, also of closed endpoints: those whose chunk `is_its`.
    pub fn drop_datagrams<M: Memory>(&mut self, is_its: impl Fn(Chunk) -> bool, memory: &mut M) {
        self.udp.drop_sent(is_its, memory);
    }

    /// An endpoint receives into `pool` from now on. `each` gets the datagrams that it has received
    /// and that no event has reported, oldest first; their buffers are the caller's. Notices that
    /// no event has reported lose what they quote.
    ///
    /// # Errors
    ///
    /// [`OperationError::Unknown`].
    pub fn set_datagram_pool<M: Memory>(
        &mut self,
        endpoint: (DatagramId, PoolId),
        memory: &mut M,
        each: impl FnMut(SocketAddr, Arrival, Chunk),
    ) -> Result<(), OperationError> {
        self.udp.set_pool(endpoint, memory, each)
    }

    /// Says where the neighbour `ip` is; it is believed until it is removed or set anew. False:
    /// the table of neighbours is full of such.
    pub fn set_neighbour<M: Memory>(
        &mut self,
        now: Instant,
        ip: IpAddr,
        mac: [u8; 6],
        memory: &mut M,
    ) -> bool {
        self.tick(now);
        let is_set = self.base.ip.set_neighbour(self.now, ip, mac);
        self.report_neighbours(memory);
        is_set
    }

    /// Forgets where the neighbour `ip` is.
    pub fn remove_neighbour(&mut self, ip: IpAddr) {
        self.base.ip.remove_neighbour(ip);
    }

    /// With [`crate::Config::external_neighbours`]: the next neighbour that is to be looked for,
    /// again every second for three seconds; `None`: no more. The answer is
    /// [`Stack::set_neighbour`]. Without that setting always `None`.
    pub fn poll_wanted(&mut self, now: Instant) -> Option<IpAddr> {
        self.tick(now);
        self.base.ip.poll_wanted(self.now)
    }

    /// Replaces the routes.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them; the old ones stay.
    pub fn set_routes(&mut self, routes: &[Route]) -> Result<(), ConfigError> {
        self.tcp.forget_ways();
        self.base.ip.set_routes(routes)
    }

    /// Replaces our addresses, each with the length of its prefix in bits. Connections and
    /// endpoints of addresses that are gone hear nothing more.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them; the old ones stay.
    pub fn set_addresses(&mut self, addresses: &[(IpAddr, u8)]) -> Result<(), ConfigError> {
        self.tcp.forget_ways();
        self.base.ip.set_addresses(self.now, addresses)
    }
}
