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

impl Channel {
    /// Sets an option of a connection on our own stack.
    ///
    /// # Errors
    /// [`OpError::NotSupported`] for what is the kernel's, [`OpError::NotConnected`] for a
    /// connection that is over, [`OpError::BadDescriptor`] for a stale handle.
    pub fn set_conn_option(&mut self, handle: Handle, option: ConnOption) -> Result<(), OpError> {
        self.on_conn(handle, |local, conn| {
            let now = local.now;
            local.server.set_option(now, conn, option)
        })
    }

    /// Sets how many connections of a listener on our own stack may begin with the data of a SYN
    /// and not be established yet, as [`crate::ListenOptions::fast_open`] does; 0: none.
    ///
    /// # Errors
    /// [`OpError::NotSupported`] for what is the kernel's or no listener,
    /// [`OpError::BadDescriptor`] for a stale handle.
    pub fn set_fast_open(&mut self, handle: Handle, pending_max: u32) -> Result<(), OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        let listener = local.listener(state, index).ok_or(OpError::NotSupported)?;
        local.set_fast_open(listener, pending_max);
        Ok(())
    }

    /// Asks to be told when the peer has acknowledged all that was written to a connection on our
    /// own stack, and our FIN if the sending direction was closed: `Event::Delivered`. One at a
    /// time; a second one is the first.
    ///
    /// # Errors
    /// As for [`Channel::set_conn_option`].
    pub fn await_delivery(&mut self, handle: Handle) -> Result<(), OpError> {
        let conn = self.on_conn(handle, |_, conn| Ok(conn))?;
        let Self { driver, state, .. } = self;
        driver.local().ok_or(OpError::NotSupported)?.watch_delivery(state, conn);
        Ok(())
    }

    /// Asks to be told when fewer than `bytes` bytes of a connection on our own stack are written
    /// and have not left yet: [`crate::Event::UnsentBelow`], also if that is so already. One at a
    /// time; a second one takes the place of the first. Nothing comes after the connection's end,
    /// which has completions of its own.
    ///
    /// # Errors
    /// [`OpError::InvalidInput`] for 0 bytes; else as for [`Channel::set_conn_option`].
    ///
    /// # Examples
    /// ```
    /// # fn example(channel: &mut megapipe::Channel, conn: megapipe::Handle) {
    /// // Produce the next frame of a video as late as possible.
    /// let awaited = channel.await_unsent_below(conn, 16 << 10);
    /// # let _ = awaited;
    /// # }
    /// ```
    pub fn await_unsent_below(&mut self, handle: Handle, bytes: u32) -> Result<(), OpError> {
        if bytes == 0 {
            return Err(OpError::InvalidInput);
        }
        let conn = self.on_conn(handle, |_, conn| Ok(conn))?;
        let Self { driver, state, .. } = self;
        driver.local().ok_or(OpError::NotSupported)?.await_unsent(state, conn, bytes);
        Ok(())
    }

    /// Sends a datagram from an endpoint on our own stack at once, without a completion.
    ///
    /// # Errors
    /// [`OpError::MessageTooLong`], [`OpError::NetworkUnreachable`] (also for a source that is not
    /// ours), [`OpError::NoBuffers`]; [`OpError::NotSupported`] for what is the kernel's,
    /// [`OpError::BadDescriptor`] for a stale handle.
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

    /// As [`Channel::send_datagram`], a datagram for each `segment_len` bytes, of which the last
    /// one may have fewer: all of them, or none.
    ///
    /// # Errors
    /// As there; [`OpError::InvalidInput`] for segments without a byte, for more than 128
    /// of them, and for none.
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

    /// Decides whether reports of undelivered messages ([`crate::Event::Undelivered`])
    /// carry what the ICMP message quotes of them. Default: they do not.
    ///
    /// # Errors
    /// [`OpError::NotSupported`] for what is the kernel's, [`OpError::BadDescriptor`] for a stale
    /// handle.
    pub fn quote_errors(&mut self, handle: Handle, on: bool) -> Result<(), OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        let endpoint = local.endpoint(state, index).ok_or(OpError::NotSupported)?;
        local.server.quote_errors(endpoint, on).map_err(|_| OpError::BadDescriptor)
    }

    /// Bytes of the longest packet in which our own stack sends a datagram to `to`, as far as it
    /// knows; `None`: the datagrams are the kernel's.
    pub fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        self.check_fork().ok()?;
        self.driver.local()?.server.packet_bytes_max(to)
    }

    /// Restricts a datagram socket on our own stack to one peer; it goes before the others
    /// that share its address; `None`: to none. Returns its address: one of all addresses
    /// while it has a peer.
    ///
    /// # Errors
    /// [`OpError::NetworkUnreachable`]: there is no way to the peer; [`OpError::NotSupported`] for
    /// what is the kernel's, [`OpError::BadDescriptor`] for a stale handle.
    pub fn connect_datagram(
        &mut self,
        handle: Handle,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        local.connect_datagram(state, index, peer)
    }

    /// The connections that our own stack has at some local ports, also those that no handle stands
    /// for any more, and in TIME-WAIT, with what was said of others at their local addresses
    /// ([`ConnOption::Reuse`], [`crate::ListenOptions::reuse`]). Of several that are alike, one;
    /// without a stack, none. Listening there is not refused: this is for who refuses it, as
    /// bind(2) does.
    pub fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        let local = self.check_fork().ok().and_then(|()| self.driver.local());
        local.map(|local| local.server.holders(ports)).unwrap_or_default()
    }

    /// The first port at which our own stack has no connection, from `from` on and then from the
    /// range's beginning; `None`: each has one, or there is no stack.
    pub fn port_without_connections(
        &mut self,
        ports: RangeInclusive<u16>,
        from: u16,
    ) -> Option<u16> {
        self.check_fork().ok()?;
        self.driver.local()?.server.port_without_connections(ports, from)
    }

    /// What our own stack knows of a connection.
    ///
    /// # Errors
    /// As for [`Channel::set_conn_option`].
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

    fn on_conn<T>(
        &mut self,
        handle: Handle,
        call: impl FnOnce(&mut AnyLocal, megapipe_stack::ConnId) -> Result<T, OperationError>,
    ) -> Result<T, OpError> {
        let (local, state, index) = self.on_stack(handle)?;
        let conn = local.conn(state, index).ok_or(OpError::NotConnected)?;
        let done = call(local, conn);
        // An option may make the stack send something.
        local.ask(state);
        done.map_err(|_| OpError::NotConnected)
    }
}
