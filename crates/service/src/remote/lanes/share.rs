//! Connections, endpoints and listeners that other processes own too, by tokens.
//!
//! Read first: `descriptors.rs`, `shard/share.rs`; decision 0055.
//!
//! A token is made over the control socket; then a call on each lane lets it own connections. So
//! the price of a fork is a message, a descriptor and a call on each lane, whatever the channel
//! has.

use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe_stack::{ConnId, DatagramId, ListenerId, OperationError};

use super::{AdoptedConn, AdoptedEndpoint, AdoptedListener, LaneSet};
use crate::descriptors::{PassPurpose, SessionControl, SharedConn, SharedEndpoint};
use crate::error::MoveRefusal;
use crate::remote::encoding::SharedDatagram;

impl LaneSet {
    /// Makes a token that owns a connection too; without one, all connections that the channel has
    /// now. Received bytes are not delivered until they are asked for again; events that were on
    /// their way still come.
    ///
    /// # Errors
    /// [`MoveRefusal`]; no token owns anything.
    pub fn share_conns(&mut self, conn: Option<ConnId>) -> Result<OwnedFd, MoveRefusal> {
        let shares_endpoints = self.shares_endpoints();
        self.share_by_token(|lanes, cookie| match conn {
            Some(conn) => {
                let (lane, conn) = lanes.of_conn(conn);
                lane.hold(cookie, Some(conn))
            }
            None => lanes.all_mut().try_for_each(|lane| {
                lane.hold(cookie, None)?;
                if shares_endpoints { lane.hold_endpoint(cookie, None) } else { Ok(()) }
            }),
        })
    }

    /// Makes a token that owns these endpoints too. Their datagrams wait at the server from now on,
    /// also if this fails for another of them ([`LaneSet::await_datagram`]).
    ///
    /// # Errors
    /// [`MoveRefusal`]; no token owns anything.
    pub fn share_endpoints(&mut self, endpoints: &[DatagramId]) -> Result<OwnedFd, MoveRefusal> {
        if !self.shares_endpoints() {
            return Err(MoveRefusal::no_tokens());
        }
        self.share_by_token(|lanes, cookie| {
            endpoints.iter().try_for_each(|endpoint| {
                let (lane, endpoint) = lanes.of_endpoint(*endpoint);
                lane.hold_endpoint(cookie, Some(endpoint))
            })
        })
    }

    fn share_by_token(
        &mut self,
        hold: impl FnOnce(&mut Self, u64) -> Result<(), MoveRefusal>,
    ) -> Result<OwnedFd, MoveRefusal> {
        let made = self.token_control()?.make_token();
        let (cookie, token) = made.map_err(|error| MoveRefusal::of_passed(&error))?;
        let held = hold(self, cookie);
        self.forget_port(cookie);
        // Without its last holder the token owns nothing any more.
        held.map(|()| token)
    }

    /// Gives received bytes of a connection back, for whichever owner asks next. Also without bytes
    /// nothing more is delivered until it is asked for again.
    ///
    /// # Errors
    /// How many of them, from the first on, were not taken, and [`MoveRefusal`].
    pub fn give_bytes_back(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<(), (usize, MoveRefusal)> {
        let (lane, conn) = self.of_conn(conn);
        lane.give_bytes_back(conn, bytes)
    }

    /// The name of a connection for a process that inherits it.
    #[must_use]
    pub fn shared_name(&mut self, conn: ConnId) -> Option<SharedConn> {
        let lane = self.lane_of(conn.index) as u16;
        let (client, conn) = self.of_conn(conn);
        Some(SharedConn { lane, conn: client.named(conn)? })
    }

    /// Adopts the connection that a token stands for.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub fn adopt_token(&mut self, token: BorrowedFd<'_>) -> Result<AdoptedConn, MoveRefusal> {
        let control = self.token_control()?;
        let passed = control.pass(PassPurpose::Token, &[token]);
        let cookie = passed.map_err(|error| MoveRefusal::of_passed(&error))?;
        let mut adopted = Err(MoveRefusal::gone());
        for lane in 0..self.lanes() {
            adopted = self.lane(lane).adopt_shared(cookie, None);
            // Only one shard has it.
            let is_elsewhere =
                adopted.as_ref().is_err_and(|refusal| refusal.raw_os_error() == ELSEWHERE);
            if !is_elsewhere {
                adopted = adopted.map(|conn| self.named_adopted(lane, conn));
                break;
            }
        }
        self.forget_port(cookie);
        adopted
    }

    /// Adopts a connection of the token by which the channel was attached.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub fn adopt_inherited(&mut self, name: SharedConn) -> Result<AdoptedConn, MoveRefusal> {
        let lane = usize::from(name.lane);
        if lane >= self.lanes() {
            return Err(MoveRefusal::gone());
        }
        let adopted = self.lane(lane).adopt_shared(0, Some(name.conn))?;
        Ok(self.named_adopted(lane, adopted))
    }

    fn named_adopted(&self, lane: usize, adopted: AdoptedConn) -> AdoptedConn {
        match adopted {
            AdoptedConn::Established(conn) => AdoptedConn::Established(self.name_of(lane, conn)),
            AdoptedConn::Connecting(conn) => AdoptedConn::Connecting(self.name_of(lane, conn)),
            failed @ AdoptedConn::Failed(_) => failed,
        }
    }

    /// Whether tokens own connections that are being opened, too.
    #[must_use]
    pub fn shares_connecting(&self) -> bool {
        self.control.as_ref().is_some_and(SessionControl::shares_connecting)
    }

    /// Whether tokens own endpoints for datagrams, too.
    #[must_use]
    pub fn shares_endpoints(&self) -> bool {
        self.control.as_ref().is_some_and(SessionControl::shares_endpoints)
    }

    /// The name of an endpoint for a process that inherits it. `None`: this daemon does not share
    /// endpoints.
    #[must_use]
    pub fn shared_endpoint_name(&mut self, endpoint: DatagramId) -> Option<SharedEndpoint> {
        if !self.shares_endpoints() {
            return None;
        }
        let lane = self.lane_of(endpoint.index) as u16;
        Some(SharedEndpoint { lane, endpoint: self.of_endpoint(endpoint).1 })
    }

    /// Adopts an endpoint of the token by which the channel was attached.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub fn adopt_inherited_endpoint(
        &mut self,
        name: SharedEndpoint,
    ) -> Result<DatagramId, MoveRefusal> {
        let lane = usize::from(name.lane);
        if lane >= self.lanes() || !self.shares_endpoints() {
            return Err(MoveRefusal::gone());
        }
        let adopted = self.lane(lane).adopt_endpoint(0, Some(name.endpoint))?;
        Ok(self.name_of_endpoint(lane, adopted))
    }

    /// Adopts all endpoints that a token stands for. Returns them, with their addresses and peers;
    /// those that the channel owns already as well.
    ///
    /// # Errors
    /// [`MoveRefusal`]; nothing is adopted.
    pub fn adopt_token_endpoints(
        &mut self,
        token: BorrowedFd<'_>,
    ) -> Result<Vec<AdoptedEndpoint>, MoveRefusal> {
        if !self.shares_endpoints() {
            return Err(MoveRefusal::no_tokens());
        }
        let passed = self.token_control()?.pass(PassPurpose::Token, &[token]);
        let cookie = passed.map_err(|error| MoveRefusal::of_passed(&error))?;
        let mut adopted = Vec::new();
        let done = (0..self.lanes())
            .try_for_each(|lane| self.adopt_endpoints_of_lane(lane, cookie, &mut adopted));
        self.forget_port(cookie);
        match done {
            Ok(()) if !adopted.is_empty() => Ok(adopted),
            done => {
                adopted.iter().for_each(|(endpoint, _, _)| self.close_datagram(*endpoint));
                Err(done.err().unwrap_or_else(MoveRefusal::gone))
            }
        }
    }

    /// Adds the endpoints to `adopted` that the token has on one lane: two of a socket for both
    /// families. On error it has added those before.
    ///
    /// # Errors
    /// [`MoveRefusal`], but for a lane that has none.
    pub(in crate::remote) fn adopt_endpoints_of_lane(
        &mut self,
        lane: usize,
        cookie: u64,
        adopted: &mut Vec<AdoptedEndpoint>,
    ) -> Result<(), MoveRefusal> {
        loop {
            let endpoint = match self.lane(lane).adopt_endpoint(cookie, None) {
                Ok(endpoint) => endpoint,
                Err(refusal) if refusal.raw_os_error() == ELSEWHERE => return Ok(()),
                Err(refusal) => return Err(refusal),
            };
            let name = self.name_of_endpoint(lane, endpoint);
            if adopted.iter().any(|(known, _, _)| *known == name) {
                return Ok(());
            }
            let Some((local, peer)) = self.lane(lane).datagram_addresses(endpoint) else {
                self.close_datagram(name);
                return Err(MoveRefusal::gone());
            };
            adopted.push((name, local, peer));
        }
    }

    /// Takes the first datagram that waits for the owners of an endpoint, or a copy of it; and 1
    /// more than the bytes of the first one that waits then, or 0. The inner `None`: none waits,
    /// and [`RemoteEvent::DatagramWaits`] reports the next one that arrives. The outer: the
    /// endpoint has no other owners, and its datagrams come by themselves.
    ///
    /// [`RemoteEvent::DatagramWaits`]: super::RemoteEvent::DatagramWaits
    pub fn take_datagram(
        &mut self,
        endpoint: DatagramId,
        keeps: bool,
    ) -> Option<Option<(SharedDatagram, u32)>> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.take_datagram(endpoint, keeps)
    }

    /// Returns 1 more than the bytes of the first datagram that waits for the owners of an
    /// endpoint, or 0. As [`LaneSet::take_datagram`], otherwise.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: it has no other owners, or the server is gone.
    pub fn await_datagram(&mut self, endpoint: DatagramId) -> Result<u32, OperationError> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.await_datagram(endpoint)
    }

    /// Gives a received datagram back: it is the first that waits.
    ///
    /// # Errors
    /// [`MoveRefusal`].
    pub fn give_datagram_back(
        &mut self,
        endpoint: DatagramId,
        datagram: &SharedDatagram,
    ) -> Result<(), MoveRefusal> {
        let (lane, endpoint) = self.of_endpoint(endpoint);
        lane.give_datagram_back(endpoint, datagram)
    }

    /// Makes a token that owns a listener too.
    ///
    /// # Errors
    /// [`MoveRefusal`]; no token owns anything.
    pub fn share_listener(&mut self, listener: ListenerId) -> Result<OwnedFd, MoveRefusal> {
        if !self.shares_listeners() {
            return Err(MoveRefusal::no_listener_tokens());
        }
        self.share_by_token(|lanes, cookie| lanes.hold_listener_lanes(listener, cookie))
    }

    /// Adopts the listener that a token stands for: the channel is one more acceptor of it.
    ///
    /// # Errors
    /// [`MoveRefusal`]; nothing is adopted.
    pub fn adopt_token_listener(
        &mut self,
        token: BorrowedFd<'_>,
    ) -> Result<AdoptedListener, MoveRefusal> {
        if !self.shares_listeners() {
            return Err(MoveRefusal::no_listener_tokens());
        }
        let passed = self.token_control()?.pass(PassPurpose::Token, &[token]);
        let cookie = passed.map_err(|error| MoveRefusal::of_passed(&error))?;
        let adopted = self.adopt_listener_lanes(cookie);
        self.forget_port(cookie);
        adopted
    }

    /// Whether tokens own listeners, too.
    #[must_use]
    pub fn shares_listeners(&self) -> bool {
        self.control.as_ref().is_some_and(SessionControl::shares_listeners)
    }

    fn token_control(&mut self) -> Result<&mut SessionControl, MoveRefusal> {
        let control = self.control.as_mut().filter(|control| control.passes_tokens());
        control.ok_or_else(MoveRefusal::no_tokens)
    }
}

/// What a shard answers that has nothing of a token (`shard/share.rs`).
const ELSEWHERE: i32 = rustix::io::Errno::STALE.raw_os_error();
