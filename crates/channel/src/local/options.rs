//! What can be set and known of a connection on our own stack. On the kernel a program has the
//! socket's descriptor for that (`Channel::descriptor`).

use std::net::SocketAddr;

use megapipe_stack::{ConnInfo, ConnOption, Departure, OperationError};

use crate::buffer::Payload;
use crate::channel::Channel;
use crate::error::OpError;
use crate::handle::Handle;

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
        self.check_fork().map_err(|_| OpError::BadDescriptor)?;
        let index = self.state.find(handle).map_err(|_| OpError::BadDescriptor)?;
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(OpError::NotSupported)?;
        if !super::is_stacks(state.peek(index)) {
            return Err(OpError::NotSupported);
        }
        // Counted, so that who looks at what was asked for hands it over.
        state.admit().map_err(|_| OpError::NoBuffers)?;
        let sent = local.send_datagram_as(state, index, (to, departure), bytes.into());
        local.ask(state);
        sent
    }

    /// What our own stack knows of a connection.
    ///
    /// # Errors
    /// As for [`Channel::set_conn_option`].
    pub fn conn_info(&mut self, handle: Handle) -> Result<ConnInfo, OpError> {
        self.on_conn(handle, |local, conn| local.server.info(conn).ok_or(OperationError::Unknown))
    }

    fn on_conn<T>(
        &mut self,
        handle: Handle,
        call: impl FnOnce(&mut super::Local, megapipe_stack::ConnId) -> Result<T, OperationError>,
    ) -> Result<T, OpError> {
        self.check_fork().map_err(|_| OpError::BadDescriptor)?;
        let index = self.state.find(handle).map_err(|_| OpError::BadDescriptor)?;
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(OpError::NotSupported)?;
        if !super::is_stacks(state.peek(index)) {
            return Err(OpError::NotSupported);
        }
        let conn = local.conn(state, index).ok_or(OpError::NotConnected)?;
        let done = call(local, conn);
        // An option may make the stack send something.
        local.ask(state);
        done.map_err(|_| OpError::NotConnected)
    }
}
