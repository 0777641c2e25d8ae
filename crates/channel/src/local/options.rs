//! What can be set and known of a connection on our own stack. On the kernel a program has the
//! socket's descriptor for that (`Channel::descriptor`).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use megapipe_stack::{ConnInfo, ConnOption, Departure, Holder, OperationError};

use super::AnyLocal;
use crate::buffer::Payload;
use crate::channel::Channel;
use crate::error::OpError;
use crate::handle::Handle;
use crate::limits::DATAGRAM_SEGMENTS_MAX;
use crate::state::State;

impl<T> Channel<T> {
    /// Sets an option of a connection on our own stack.
    ///
    /// # Errors
    /// [`OpError::NotSupported`] for connections of the kernel, [`OpError::NotConnected`] for a
    /// connection that is over, [`OpError::BadDescriptor`] for a stale handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, ConnOption, Handle, OpError};
    /// use std::time::Duration;
    ///
    /// fn keep_alive(channel: &mut Channel, connection: Handle) -> Result<(), OpError> {
    ///     let idle = Some(Duration::from_secs(60));
    ///     channel.set_conn_option(connection, ConnOption::KeepaliveIdle(idle))
    /// }
    /// ```
    pub fn set_conn_option(&mut self, handle: Handle, option: ConnOption) -> Result<(), OpError> {
        self.on_conn(handle, |local, conn| {
            let now = local.now;
            local.server.set_option(now, conn, option)
        })
    }

    /// Sets whether `unregister` resets a connection of our own stack instead of closing it in
    /// order, as [`crate::ConnectOptions::reset_on_close`] does. On the back end `service`, the
    /// same holds if the program ends without `unregister`. Sockets of the kernel have SO_LINGER.
    ///
    /// # Errors
    /// As [`Channel::set_conn_option`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Handle, OpError};
    ///
    /// fn reset_later(channel: &mut Channel, connection: Handle) -> Result<(), OpError> {
    ///     channel.set_reset_on_close(connection, true)
    /// }
    /// ```
    pub fn set_reset_on_close(&mut self, handle: Handle, on: bool) -> Result<(), OpError> {
        self.on_conn(handle, |local, conn| {
            local.conns[conn.index as usize].resets_on_close = on;
            local.server.set_reset_on_close(conn, on);
            Ok(())
        })
    }

    /// Sets how many connections of a listener on our own stack may begin with the data of a SYN
    /// and not be established yet, as [`crate::ListenOptions::fast_open`] does; 0: none.
    ///
    /// # Errors
    /// [`OpError::NotSupported`] for handles of the kernel or that are no listener,
    /// [`OpError::BadDescriptor`] for a stale handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Handle, OpError};
    ///
    /// fn stop_fast_open(channel: &mut Channel, listener: Handle) -> Result<(), OpError> {
    ///     channel.set_fast_open(listener, 0)
    /// }
    /// ```
    pub fn set_fast_open(&mut self, handle: Handle, pending_max: u32) -> Result<(), OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        let listener = local.listener(state, index).ok_or(OpError::NotSupported)?;
        local.set_fast_open(listener, pending_max);
        Ok(())
    }

    /// Completes when the peer has acknowledged all bytes written to a connection on our own stack,
    /// and our FIN if the sending direction was closed: [`crate::Event::Delivered`]. One at a time:
    /// a second call changes nothing. Does not block.
    ///
    /// # Errors
    /// As for [`Channel::set_conn_option`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Disconnect, Handle};
    ///
    /// /// Closes a connection and learns whether the peer received everything.
    /// fn close(channel: &mut Channel, socket: Handle) -> Result<(), Box<dyn std::error::Error>> {
    ///     channel.disconnect(socket, Disconnect::Write)?;
    ///     Ok(channel.await_delivery(socket)?)
    /// }
    /// ```
    pub fn await_delivery(&mut self, handle: Handle) -> Result<(), OpError> {
        let conn = self.on_conn(handle, |_, conn| Ok(conn))?;
        let Self { driver, state, .. } = self;
        driver.local().ok_or(OpError::NotSupported)?.watch_delivery(state, conn);
        Ok(())
    }

    /// Reports when a connection on our own stack has fewer than `bytes` bytes written and not
    /// sent: [`crate::Event::UnsentBelow`], also if that is the case already. One at a time: a
    /// second call replaces the first. No event comes after the end of the connection, which has
    /// completions of its own. Does not block.
    ///
    /// # Errors
    /// [`OpError::InvalidInput`] for 0 bytes, [`OpError::NoMemory`]; else as for
    /// [`Channel::set_conn_option`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Handle, OpError};
    ///
    /// /// Produces the next frame of a video as late as possible.
    /// fn next_frame(channel: &mut Channel, connection: Handle) -> Result<(), OpError> {
    ///     channel.await_unsent_below(connection, 16 << 10)
    /// }
    /// ```
    pub fn await_unsent_below(&mut self, handle: Handle, bytes: u32) -> Result<(), OpError> {
        if bytes == 0 {
            return Err(OpError::InvalidInput);
        }
        let conn = self.on_conn(handle, |_, conn| Ok(conn))?;
        let Self { driver, state, .. } = self;
        driver.local().ok_or(OpError::NotSupported)?.await_unsent(state, conn, bytes)
    }

    /// Sends a datagram from a socket on our own stack, without a completion. Does not block.
    ///
    /// # Errors
    /// [`OpError::MessageTooLong`], [`OpError::NetworkUnreachable`] (also for a source address that
    /// is not ours), [`OpError::NoBuffers`]; [`OpError::NotSupported`] for sockets of the kernel,
    /// [`OpError::BadDescriptor`] for a stale handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Departure, Handle, OpError};
    ///
    /// fn ping(channel: &mut Channel, socket: Handle) -> Result<(), OpError> {
    ///     let departure = Departure { hop_limit: Some(1), ..Departure::default() };
    ///     channel.send_datagram(socket, "ping", ([10, 0, 0, 2], 7).into(), &departure)
    /// }
    /// ```
    pub fn send_datagram(
        &mut self,
        handle: Handle,
        bytes: impl Into<Payload>,
        to: SocketAddr,
        departure: &Departure,
    ) -> Result<(), OpError> {
        self.on_endpoint(handle, |local, state, index| {
            local.send_datagram_as(state, index, (to, departure), bytes.into())
        })
    }

    /// Sends one datagram for each `segment_len` bytes, the last one possibly shorter, as
    /// [`Channel::send_datagram`] does: all of them or none.
    ///
    /// # Errors
    /// As there; [`OpError::InvalidInput`] for a segment length of 0, no bytes, or more than 128
    /// segments.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Departure, Handle, OpError};
    ///
    /// fn send(channel: &mut Channel, socket: Handle, media: Vec<u8>) -> Result<(), OpError> {
    ///     let to = ([10, 0, 0, 2], 5004).into();
    ///     channel.send_datagrams(socket, (media, 1200), to, &Departure::default())
    /// }
    /// ```
    pub fn send_datagrams(
        &mut self,
        handle: Handle,
        (bytes, segment_len): (impl Into<Payload>, usize),
        to: SocketAddr,
        departure: &Departure,
    ) -> Result<(), OpError> {
        let bytes = bytes.into();
        if segment_len == 0
            || bytes.is_empty()
            || bytes.len().div_ceil(segment_len) > DATAGRAM_SEGMENTS_MAX
        {
            return Err(OpError::InvalidInput);
        }
        self.on_endpoint(handle, |local, state, index| {
            local.send_segments(state, index, (to, departure), (bytes, segment_len))
        })
    }

    fn on_endpoint(
        &mut self,
        handle: Handle,
        send: impl FnOnce(&mut AnyLocal, &State, u32) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        // Counted, so that who looks at what was asked for hands it over.
        state.admit().map_err(|_| OpError::NoBuffers)?;
        let sent = send(local, state, index);
        local.ask(state);
        sent
    }

    /// Sets whether reports of undelivered messages ([`crate::Event::Undelivered`]) of a socket on
    /// our own stack carry the part of the message that the ICMP message quotes. Default: off.
    ///
    /// # Errors
    /// [`OpError::NotSupported`] for sockets of the kernel, [`OpError::BadDescriptor`] for a stale
    /// handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Handle, OpError};
    ///
    /// fn trace_route(channel: &mut Channel, socket: Handle) -> Result<(), OpError> {
    ///     channel.quote_errors(socket, true)
    /// }
    /// ```
    pub fn quote_errors(&mut self, handle: Handle, on: bool) -> Result<(), OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        let endpoint = local.endpoint(state, index).ok_or(OpError::NotSupported)?;
        local.server.quote_errors(endpoint, on).map_err(|_| OpError::BadDescriptor)
    }

    /// Returns the bytes of the longest packet in which our own stack sends a datagram to `to`, as
    /// far as it knows the path; `None` if the kernel sends the datagrams.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// assert_eq!(channel.packet_bytes_max([127, 0, 0, 1].into()), None);
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    pub fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        self.check_fork().ok()?;
        self.driver.local()?.server.packet_bytes_max(to)
    }

    /// Restricts a datagram socket on our own stack to one peer, or to none with `None`. With a
    /// peer it takes precedence over other sockets at its address. Returns its local address: a
    /// specific one while it has a peer.
    ///
    /// # Errors
    /// [`OpError::NetworkUnreachable`] if there is no route to the peer; [`OpError::NotSupported`]
    /// for sockets of the kernel, [`OpError::BadDescriptor`] for a stale handle.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Handle, OpError};
    /// use std::net::SocketAddr;
    ///
    /// fn to_resolver(channel: &mut Channel, socket: Handle) -> Result<SocketAddr, OpError> {
    ///     channel.connect_datagram(socket, Some(([10, 0, 0, 2], 53).into()))
    /// }
    /// ```
    pub fn connect_datagram(
        &mut self,
        handle: Handle,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        local.connect_datagram(state, index, peer)
    }

    /// Returns the addresses of a daemon's stack ([`crate::Backend::Service`]), with 127.0.0.1 and
    /// ::1 if loopback is the stack's; of another stack none, since its configuration names them.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// assert!(channel.stack_addresses().is_empty());
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    pub fn stack_addresses(&mut self) -> Vec<IpAddr> {
        let local = self.check_fork().ok().and_then(|()| self.driver.local());
        local.map(|local| local.server.addresses_of_stack().to_vec()).unwrap_or_default()
    }

    /// Returns the connections of our own stack at local ports, also those without a handle and in
    /// TIME-WAIT, with their address-sharing options ([`ConnOption::Reuse`],
    /// [`crate::ListenOptions::reuse`]). Equal ones are returned once; without a stack there is
    /// none. A `listen` at such a port is not refused: this is for layers that implement bind(2)'s
    /// rules.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// assert!(channel.holders(1..=1023).is_empty());
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    pub fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        let local = self.check_fork().ok().and_then(|()| self.driver.local());
        local.map(|local| local.server.holders(ports)).unwrap_or_default()
    }

    /// Returns whether our own stack has bytes, or a FIN, that a peer has not acknowledged, on any
    /// connection, also without a handle. They are lost if the process ends now. `false` where the
    /// process does not run the stack: the kernel, or a daemon, goes on. Searches all connections.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// assert!(!channel.has_undelivered());
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    pub fn has_undelivered(&mut self) -> bool {
        let local = self.check_fork().ok().and_then(|()| self.driver.local());
        local.is_some_and(|local| local.server.has_undelivered())
    }

    /// Returns the first port at which our own stack has no connection, from `from` on and then
    /// from the beginning of the range; `None` if each has one, or if there is no stack.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// // The kernel's ports are not known here.
    /// assert_eq!(channel.port_without_connections(49_152..=65_535, 50_000), None);
    /// # Ok::<(), megapipe::CreateError>(())
    /// ```
    pub fn port_without_connections(
        &mut self,
        ports: RangeInclusive<u16>,
        from: u16,
    ) -> Option<u16> {
        self.check_fork().ok()?;
        self.driver.local()?.server.port_without_connections(ports, from)
    }

    /// Returns the state of a connection on our own stack: round-trip time, windows, counters.
    ///
    /// # Errors
    /// As for [`Channel::set_conn_option`].
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Handle, OpError};
    ///
    /// fn print_rtt(channel: &mut Channel, connection: Handle) -> Result<(), OpError> {
    ///     let info = channel.conn_info(connection)?;
    ///     println!("{:?}, window of {} bytes", info.srtt, info.cwnd);
    ///     Ok(())
    /// }
    /// ```
    pub fn conn_info(&mut self, handle: Handle) -> Result<ConnInfo, OpError> {
        self.on_conn(handle, |local, conn| local.server.info(conn).ok_or(OperationError::Unknown))
    }

    /// A handle of our own stack's, and where it is.
    fn on_stack(&mut self, handle: Handle) -> Result<(&mut AnyLocal, &mut State, u32), OpError> {
        self.check_fork().map_err(|_| OpError::BadDescriptor)?;
        let index = self.state.find(handle).map_err(|_| OpError::BadDescriptor)?;
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(OpError::NotSupported)?;
        if !super::is_stacks(state.peek(index)) {
            return Err(OpError::NotSupported);
        }
        Ok((local, state, index))
    }

    fn on_conn<R>(
        &mut self,
        handle: Handle,
        call: impl FnOnce(&mut AnyLocal, megapipe_stack::ConnId) -> Result<R, OperationError>,
    ) -> Result<R, OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        let conn = local.conn(state, index).ok_or(OpError::NotConnected)?;
        let done = call(local, conn);
        // An option may make the stack send something.
        local.ask(state);
        done.map_err(|_| OpError::NotConnected)
    }
}
