//! The back end `service`: a session of a daemon, in place of a server of this process.
//!
//! The driver and the handle are those of placement `core`; what is different is how a session
//! begins (`megapipe_service::attach`) and how it ends: a daemon that dies ends connections and
//! operations with [`OpError::ServiceGone`], and the channel goes on without a stack.
//!
//! Invariant: after the daemon's end every handle of the stack has its completions, and a new
//! operation fails at once.

use std::os::fd::OwnedFd;

use megapipe_link::LinkError;
use megapipe_service::Clock;
use megapipe_service::SessionSizes;
use megapipe_service::attach::attach;
use megapipe_service::limits::{LARGE_SENDS, SESSION_EVENTS, SESSION_OPS, SMALL_SENDS};

use super::service_address::ServiceAddress;
use super::stack_handle::Polled;
use super::{Local, NO_OWNER, NO_SLOT, Remote, StackHandle, own_core};
use crate::config::{Config, DriverChoice};
use crate::error::{CreateError, DispatchError, OpError};
use crate::kernel::create_epoll;
use crate::limits::SERVICE_RESERVE_BYTES;
use crate::report::DriverReport;
use crate::slot::{StreamEnd, Target};
use crate::state::State;

/// The sizes that a channel asks for: receive buffers of its own size, and some more.
fn wanted(config: &Config) -> SessionSizes {
    let reserve = (SERVICE_RESERVE_BYTES / config.buffer_len) as u32;
    SessionSizes {
        ops: SESSION_OPS.1,
        events: SESSION_EVENTS.1,
        receive_bytes: config.buffer_len as u32,
        receive_buffers: u32::from(config.buffer_count) + reserve,
        small_sends: SMALL_SENDS / 4,
        large_sends: LARGE_SENDS / 8,
    }
}

/// The name of the thread that attaches, as ps(1) shows it.
fn program_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}

impl Local<Remote> {
    /// Attaches a channel to the daemon at an address.
    ///
    /// # Errors
    /// [`CreateError::Service`] names the path and what is missing or refused there.
    pub(crate) fn attach(
        address: &ServiceAddress,
        config: &Config,
        state: &mut State,
        wake: &OwnedFd,
    ) -> Result<(Self, DriverReport), CreateError> {
        if config.driver == DriverChoice::Uring {
            let reason = "the service back end serves what is the kernel's by epoll".to_owned();
            return Err(CreateError::DriverUnavailable { driver: "uring", reason });
        }
        let (kernel, report) = create_epoll(state, wake)?;
        let client = attach(address.path(), &program_name(), &wanted(config));
        let client = client.map_err(CreateError::Service)?;
        let path = address.path().display();
        let (driver, mtu) = (client.caps().driver, client.caps().mtu);
        let mut place = format!("in the service at {path}");
        if let Some((shard, shards)) = client.shard() {
            place = format!("{place}; shard {shard} of {shards}");
        }
        let mut server = Remote::attached(client, config, state)?;
        server.set_core(own_core().and_then(|core| u32::try_from(core).ok()));
        let reason =
            format!("TCP and UDP by our own stack on {driver} of {mtu} bytes MTU; it runs {place}");
        let ours = Some(place.clone());
        let report = DriverReport { backend: "service", place: ours, ..report.chosen(&reason) };
        Ok((Self::new(kernel, server, place, Clock::new()), report))
    }
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// Polls the stack. The end of a daemon is no error: its objects end.
    ///
    /// # Errors
    /// As [`StackHandle::poll`].
    #[inline]
    pub(super) fn poll_stack(&mut self, state: &mut State) -> Result<Polled, DispatchError> {
        match self.server.poll(self.now) {
            Ok(polled) => Ok(polled),
            Err(error) => self.on_poll_error(state, error),
        }
    }

    #[cold]
    fn on_poll_error(
        &mut self,
        state: &mut State,
        error: LinkError,
    ) -> Result<Polled, DispatchError> {
        if !self.server.is_session() {
            return Err(super::poll::link_failed(error));
        }
        if !self.is_service_gone {
            self.is_service_gone = true;
            self.end_all(state);
        }
        Ok(Polled { has_worked: false, has_event: false })
    }

    /// Ends all connections and endpoints. Listeners stay, and get no connection any more.
    fn end_all(&mut self, state: &mut State) {
        for index in 0..self.conns.len() {
            let slot = std::mem::replace(&mut self.conns[index], NO_OWNER).slot;
            if slot != NO_SLOT {
                self.end_stream(state, slot, Some(OpError::ServiceGone));
            }
        }
        for index in 0..self.endpoints.len() {
            let slot = std::mem::replace(&mut self.endpoints[index], NO_OWNER).slot;
            if slot != NO_SLOT {
                state.slot(slot).target = Target::None;
                state.on_receive_end(slot, StreamEnd::Failed(OpError::ServiceGone));
            }
        }
    }
}
