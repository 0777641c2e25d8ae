//! Listening sockets that the program registers: our stack listens at their ports.
//!
//! ```text
//!   program's socket, bound to an address and listening
//!      |  stays in the kernel, and with the kernel's driver: one handle
//!      |
//!      +-- link shares the host's address:  the socket is deaf to the link's interface, and our
//!      |                                    stack serves what comes from there; on `service` the
//!      |                                    daemon makes it deaf, which the socket is passed to
//!      +-- link has an address of its own:  our stack listens at the same port of that address
//! ```
//!
//! Either way the accepts of the one handle are completed by the side that has a connection first;
//! what comes over other interfaces, loopback for one, is the kernel's.
//!
//! Read first: `listener.rs`, `megapipe_link::deafen_on`, `megapipe_service`'s `migration.rs`.
//!
//! Invariants
//! - The port is silent before the link takes its frames, and until it does not any more.
//! - A connection that our stack had credit for, and whose accept is gone, is held here, for
//!   the next accept.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use megapipe_link::{deafen_on, undeafen};
use megapipe_service::steering::BindingError;
use megapipe_service::{AcceptorId, Offer, PortError, covered};
use megapipe_stack::{ConnId, ListenError, ListenerId};
use rustix::net::sockopt;

use super::listener::{CREDIT_MAX, sharing};
use super::open::by_policy;
use super::{Local, StackHandle};
use crate::address::Address;
use crate::channel::Channel;
use crate::cpu_mask::CpuMask;
use crate::error::RegisterError;
use crate::kernel::sys;
use crate::limits;
use crate::options::ListenOptions;
use crate::slot::{Extra, Kind, NewConnection, Slot};
use crate::state::State;

/// What our stack does for one registered listening socket.
#[derive(Debug)]
pub(super) struct RegisteredPort {
    /// The socket's slot, which is the kernel driver's.
    slot: u32,
    /// The stack's listeners, one for each address.
    listeners: Vec<StackListener>,
    /// Addresses of the host at which the kernel is silent; empty: the link has its own.
    silent: Vec<SocketAddr>,
    mask: Option<CpuMask>,
}

/// One listener of the stack beside the socket.
#[derive(Debug)]
struct StackListener {
    id: ListenerId,
    address: SocketAddr,
    /// Credit that the server holds.
    outstanding: u32,
    held: VecDeque<ConnId>,
}

impl<T> Channel<T> {
    /// Lets the stack listen where a registered socket does, if the channel has one.
    pub(crate) fn listen_registered_on_stack(
        &mut self,
        index: u32,
        cpu_mask: Option<CpuMask>,
    ) -> Result<(), RegisterError> {
        let Self { driver, state, .. } = self;
        let Some(local) = driver.local() else { return Ok(()) };
        local.listen_registered_on_stack(state, index, cpu_mask)
    }

    /// Gives a registered socket's connections on our stack other cores.
    pub(crate) fn set_stack_mask(
        &mut self,
        index: u32,
        mask: CpuMask,
    ) -> Result<(), RegisterError> {
        self.driver.local().map_or(Ok(()), |local| local.set_stack_mask(index, mask))
    }

    /// What our stack does at the port of a listening socket of the kernel's.
    pub(crate) fn described_on_stack(&mut self, index: u32) -> Option<String> {
        self.driver.local()?.describe_on_stack(index)
    }
}

impl<H: StackHandle + ?Sized> Local<H> {
    fn listen_registered_on_stack(
        &mut self,
        state: &State,
        slot: u32,
        mask: Option<CpuMask>,
    ) -> Result<(), RegisterError> {
        let kernel = |what| move |source| RegisterError::Kernel { what, source };
        let entry = state.peek(slot);
        let (Some(fd), Kind::Listener) = (entry.fd.as_ref(), entry.kind) else { return Ok(()) };
        if mask.is_some_and(|mask| mask.is_empty()) {
            return Err(RegisterError::MaskNotPossible);
        }
        let fd = fd.as_fd();
        let bound = sys::local_address(fd).map_err(kernel("cannot ask where it listens"))?;
        let Some(Address::Inet(bound)) = bound else { return Ok(()) };
        let is_dual = bound.is_ipv6() && !sockopt::ipv6_v6only(fd).unwrap_or(true);
        let shared = self.server.caps().shares_host_address;
        let silent = match self.server.migration_server() {
            Ok(server) if shared => server.covered(bound, is_dual),
            Err(_) if shared => covered(self.server.addresses_of_stack(), bound, is_dual),
            // A server that another thread polls takes over no port of the host.
            Ok(_) | Err(_) => Vec::new(),
        };
        let is_everywhere = bound.ip().is_unspecified() && !silent.is_empty();
        let wanted =
            if !shared || is_everywhere { everywhere(bound, is_dual) } else { silent.clone() };
        self.now = self.clock.now();
        let passed = match silent.is_empty() {
            true => None,
            false => self.silence_or_pass(&sockets(entry), &silent)?,
        };
        let backlog = match entry.extra.as_deref() {
            Some(Extra::Listener(listener)) => listener.backlog,
            _ => limits::BACKLOG_DEFAULT,
        };
        let mut options = ListenOptions::default().backlog(backlog);
        options.cpu_mask = mask;
        let mut port = RegisteredPort { slot, listeners: Vec::new(), silent, mask };
        for address in wanted {
            let at = (address, passed.unwrap_or(0));
            let listening = match passed {
                None => self.server.listen(self.now, address, backlog, sharing(&options)),
                Some(_) => self.server.listen_passed(self.now, at, backlog, sharing(&options)),
            };
            match listening {
                Ok(id) => {
                    let (outstanding, held) = (0, VecDeque::new());
                    port.listeners.push(StackListener { id, address, outstanding, held });
                }
                Err(error) => {
                    self.give_port_back(port, &sockets(state.peek(slot)));
                    self.forget_passed(passed);
                    return Err(not_listening(error));
                }
            }
        }
        self.forget_passed(passed);
        self.registered_ports.push(port);
        Ok(())
    }

    /// Keeps the kernel silent at ports, or passes the sockets to the daemon, which does so.
    /// Returns the daemon's cookie.
    fn silence_or_pass(
        &mut self,
        sockets: &[BorrowedFd<'_>],
        silent: &[SocketAddr],
    ) -> Result<Option<u64>, RegisterError> {
        let kernel = |what| move |source| RegisterError::Kernel { what, source };
        if !self.server.is_session() {
            self.silence(sockets, silent)
                .map_err(kernel("cannot keep the kernel silent at its port"))?;
            return Ok(None);
        }
        let passed = self.server.lanes().and_then(|lanes| lanes.pass_listener(sockets));
        passed.map(Some).map_err(|refusal| {
            let kind = io::Error::from_raw_os_error(refusal.raw_os_error()).kind();
            kernel("the service does not take its port")(io::Error::new(kind, refusal))
        })
    }

    /// No listener is to be at passed sockets any more but those that are.
    fn forget_passed(&mut self, cookie: Option<u64>) {
        if let (Some(cookie), Ok(lanes)) = (cookie, self.server.lanes()) {
            lanes.forget_port(cookie);
        }
    }

    /// The daemon has ended: the kernel serves the ports until another one runs.
    pub(super) fn lose_registered_ports(&mut self, state: &State) {
        for port in &mut self.registered_ports {
            port.listeners.clear();
            if !port.silent.is_empty() {
                for socket in sockets(state.peek(port.slot)) {
                    // The daemon may have removed it at its end.
                    let _ = undeafen(socket);
                }
            }
        }
    }

    /// A daemon is back: its stack listens at the ports. Where it does not, the kernel goes on.
    pub(super) fn listen_on_stack_again(&mut self, state: &mut State) {
        for port in std::mem::take(&mut self.registered_ports) {
            match self.listen_registered_on_stack(state, port.slot, port.mask) {
                Ok(()) => self.accept_on_stack(state, port.slot),
                Err(_) => self.registered_ports.push(port),
            }
        }
    }

    fn silence(&mut self, sockets: &[BorrowedFd<'_>], ports: &[SocketAddr]) -> io::Result<()> {
        let interface = self.server.shared_interface();
        let interface = interface.map_err(|_| ErrorKind::NotFound)?;
        for socket in sockets {
            match deafen_on(*socket, interface) {
                // Another channel of this process has registered the same socket.
                Err(error)
                    if error.kind() == ErrorKind::AlreadyExists
                        && self.server.is_listening(ports[0]) => {}
                other => other?,
            }
        }
        let server = self.server.migration_server().map_err(|_| ErrorKind::NotFound)?;
        server.hold_elsewhere(ports).map_err(io::Error::other)
    }

    /// A registered socket leaves: its port is the kernel's again.
    pub(super) fn leave_port(&mut self, state: &State, slot: u32) {
        let Some(place) = self.registered_ports.iter().position(|port| port.slot == slot) else {
            return;
        };
        let port = self.registered_ports.swap_remove(place);
        self.give_port_back(port, &sockets(state.peek(slot)));
    }

    fn give_port_back(&mut self, port: RegisteredPort, sockets: &[BorrowedFd<'_>]) {
        for listener in port.listeners {
            self.server.unlisten(self.now, listener.id);
            for conn in listener.held {
                self.server.hand_over_offered(self.now, conn);
            }
            self.credit_out = self.credit_out.saturating_sub(listener.outstanding);
        }
        // Another channel may go on with the same socket.
        if port.silent.is_empty() || port.silent.iter().any(|it| self.server.is_listening(*it)) {
            return;
        }
        // If the link does not let go of the port, the kernel stays silent there.
        let Ok(server) = self.server.migration_server() else { return };
        if server.give_back(self.now, &port.silent).is_ok() {
            for socket in sockets {
                let _ = undeafen(*socket);
            }
        }
    }

    /// The accepts of a registered socket are for what our stack has, too.
    pub(super) fn accept_on_stack(&mut self, state: &mut State, slot: u32) {
        let Some(place) = self.registered_ports.iter().position(|port| port.slot == slot) else {
            return;
        };
        for at in 0..self.registered_ports[place].listeners.len() {
            while state.accept_wanted(slot).is_some()
                && !self.is_held_back(state, slot)
                && let Some(conn) = self.registered_ports[place].listeners[at].held.pop_front()
            {
                self.hand_over(state, slot, NewConnection::Stack(conn.index, conn.generation));
            }
            let taken = self.lwsockets_open.saturating_add(self.credit_out);
            let room = state.config.max_lwsockets.saturating_sub(taken);
            let wanted = state.accept_credit(slot).min(CREDIT_MAX);
            let listener = &mut self.registered_ports[place].listeners[at];
            let more = wanted.saturating_sub(listener.outstanding).min(room);
            if more > 0 {
                listener.outstanding += more;
                self.credit_out += more;
                let asked = self.server.accept(listener.id, AcceptorId(slot.into()), more);
                debug_assert!(asked.is_ok(), "the listener is there, with one acceptor");
            }
        }
    }

    /// The same for all of them: there is room again.
    pub(super) fn accept_all_on_stack(&mut self, state: &mut State) {
        for place in 0..self.registered_ports.len() {
            let slot = self.registered_ports[place].slot;
            self.accept_on_stack(state, slot);
        }
    }

    /// A connection came to one of these listeners. `false`: to none of them.
    pub(super) fn on_incoming_for_registered(
        &mut self,
        state: &mut State,
        listener: ListenerId,
        conn: ConnId,
        offer: Option<Offer>,
    ) -> bool {
        let ports = self.registered_ports.iter_mut();
        let found = ports.filter_map(|port| {
            let listener = port.listeners.iter_mut().find(|it| it.id == listener)?;
            Some((port.slot, listener))
        });
        let Some((slot, listener)) = { found }.next() else { return false };
        if offer.is_some_and(|offer| offer.acceptor == AcceptorId(slot.into())) {
            let used = listener.outstanding.min(1);
            listener.outstanding -= used;
            self.credit_out = self.credit_out.saturating_sub(used);
        }
        listener.held.push_back(conn);
        self.accept_on_stack(state, slot);
        true
    }

    /// Gives a registered socket's connections on our stack other cores.
    fn set_stack_mask(&mut self, slot: u32, mask: CpuMask) -> Result<(), RegisterError> {
        let Some(place) = self.registered_ports.iter().position(|port| port.slot == slot) else {
            return Ok(());
        };
        let ids: Vec<ListenerId> =
            self.registered_ports[place].listeners.iter().map(|it| it.id).collect();
        for id in ids {
            self.share(id, mask)?;
        }
        self.registered_ports[place].mask = Some(mask);
        Ok(())
    }

    /// The cores whose connections a registered socket takes on our stack.
    pub(super) fn stack_mask(&self, slot: u32) -> Option<CpuMask> {
        self.registered_ports.iter().find(|port| port.slot == slot)?.mask
    }

    fn describe_on_stack(&self, slot: u32) -> Option<String> {
        let driver = self.server.caps().driver;
        let port = self.registered_ports.iter().find(|port| port.slot == slot)?;
        let list = |all: &mut dyn Iterator<Item = SocketAddr>| {
            all.map(|address| address.to_string()).collect::<Vec<_>>().join(" and ")
        };
        Some(if port.listeners.is_empty() {
            // Bound to an address that is not ours, or the stack runs on a thread of its own.
            format!("our own stack on {driver} leaves its port to the kernel")
        } else if port.silent.is_empty() {
            let at = list(&mut port.listeners.iter().map(|it| it.address));
            format!("our own stack listens beside it, at {at} of its own address on {driver}")
        } else {
            let at = list(&mut port.silent.iter().copied());
            format!(
                "our own stack on {driver} has taken over {at}: the kernel serves what comes over \
                 other interfaces"
            )
        })
    }
}

/// All addresses of the stack at a port, of the family of the socket or of both.
fn everywhere(bound: SocketAddr, is_dual: bool) -> Vec<SocketAddr> {
    let v4 = (bound.is_ipv4() || is_dual).then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let v6 = bound.is_ipv6().then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    v4.into_iter().chain(v6).map(|ip| SocketAddr::new(ip, bound.port())).collect()
}

/// A registered listening socket: the channel's own of a group, and the program's.
fn sockets(entry: &Slot) -> Vec<BorrowedFd<'_>> {
    let reserved = match entry.extra.as_deref() {
        Some(Extra::Listener(listener)) => listener.reserved.as_ref(),
        _ => None,
    };
    entry.fd.as_ref().into_iter().chain(reserved).map(AsFd::as_fd).collect()
}

fn not_listening(error: PortError<ListenError>) -> RegisterError {
    let source = match error {
        PortError::Shared(BindingError::Overlap { core }) => {
            return RegisterError::MaskOverlaps { core: core as usize };
        }
        PortError::Stack(ListenError::InUse) => io::Error::from_raw_os_error(libc::EADDRINUSE),
        PortError::Stack(ListenError::TooManyListeners) => {
            io::Error::from_raw_os_error(libc::ENOBUFS)
        }
        PortError::Policy(refusal) => by_policy(refusal),
        other => io::Error::new(ErrorKind::AddrInUse, other.to_string()),
    };
    RegisterError::Kernel { what: "our stack cannot listen at its port", source }
}
