//! The back end `service`: a session of a daemon, in place of a server of this process.
//!
//! The driver and the handle are those of placement `core`; what is different is how a session
//! begins (`megapipe_service::attach`) and how it ends: a daemon that dies ends connections and
//! operations with [`OpError::ServiceGone`], and the channel goes on without a stack. When a daemon
//! is back, the channel attaches to it, and its listeners listen there.
//!
//! Invariants
//! - After the daemon's end every handle of the stack has its completions, and a new operation
//!   fails at once.
//! - Nothing names an object of an earlier session: connections accepted ahead went with it.

use std::os::fd::OwnedFd;

use megapipe_link::LinkError;
use megapipe_service::Clock;

use super::cores::own_shard_core;
use super::daemon_session::DaemonSession;
use super::service_address::ServiceAddress;
use super::stack_handle::Polled;
use super::{Local, NO_OWNER, NO_SLOT, Remote, StackHandle};
use crate::config::{Config, DriverChoice};
use crate::error::{CreateError, DispatchError, OpError};
use crate::kernel::create_epoll;
use crate::report::DriverReport;
use crate::slot::{StreamEnd, Target};
use crate::state::State;

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
        let (session, client) = DaemonSession::begin(address, config)?;
        let (kernel, report) = create_epoll(state, wake)?;
        let path = address.path().display();
        let (driver, mtu) = (client.caps().driver, client.caps().mtu);
        let mut place = format!("in the service at {path}");
        if client.lanes() > 1 {
            place = format!("{place}; on all of its {} shards", client.lanes());
        }
        let mut server = Remote::attached(client, session, state);
        server.set_core(own_shard_core());
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
        if self.server.attach_again(self.now, &state.config) {
            self.listen_again(state);
        }
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
        self.end_all(state);
        Ok(Polled { has_worked: false, has_event: false })
    }

    /// Listens where the channel listened at the daemon before. Where that fails, the accepts of
    /// the listener fail.
    #[cold]
    fn listen_again(&mut self, state: &mut State) {
        self.credit_out = 0;
        for listening in std::mem::take(&mut self.listeners) {
            let slot = listening.owner.slot;
            let Some(address) = listening.address.filter(|_| slot != NO_SLOT) else { continue };
            state.slot(slot).target = Target::None;
            match self.listen(state, slot, address, &listening.options) {
                Ok(()) => self.accept(state, slot),
                Err(_) => state.on_accept_failed(slot, OpError::ServiceGone),
            }
        }
        self.listen_on_stack_again(state);
    }

    /// Ends all connections and endpoints, also those accepted ahead. Listeners stay, and get no
    /// connection until a daemon is back.
    fn end_all(&mut self, state: &mut State) {
        self.lose_registered_ports(state);
        for listening in &self.listeners {
            let slot = listening.owner.slot;
            if slot != NO_SLOT
                && let Some(listener) = state.slot(slot).listener()
            {
                listener.held.clear();
            }
        }
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
