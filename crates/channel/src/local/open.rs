//! What a channel makes on the stack instead of in the kernel: listeners, connections, endpoints.
//!
//! Read first: `Channel::listen`, `connect` and `socket`, which come here when the channel's back
//! end is `local` and the address is an Internet one.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use megapipe_link::LinkError;
use megapipe_service::PortError;
use megapipe_service::policy::PolicyRefusal;
use megapipe_service::steering::BindingError;
use megapipe_stack::{self as stack, DatagramSharing};

use super::{Local, StackHandle, is_stacks};
use crate::address::Address;
use crate::channel::Channel;
use crate::cpu_mask::CpuMask;
use crate::error::{ConnectError, Limit, ListenError, OpError, RegisterError};
use crate::handle::Handle;
use crate::kernel::sys;
use crate::options::{ConnectOptions, ListenOptions};
use crate::slot::{Extra, Kind, Listener, SlotPhase};
use crate::state::State;

impl<T> Channel<T> {
    /// The address, if the stack is to serve it.
    pub(crate) fn stack_address(&mut self, address: &Address) -> Option<SocketAddr> {
        self.driver.local()?;
        address.as_inet()
    }

    pub(crate) fn listen_on_stack(
        &mut self,
        address: SocketAddr,
        options: &ListenOptions,
        cookie: u64,
    ) -> Result<Handle, ListenError> {
        let listener = Extra::Listener(Listener::new(Kind::Tcp, options.backlog, None));
        let extra = sys::try_box(listener)?;
        if self.driver.local().is_some_and(|local| !local.reserve_listener()) {
            return Err(Limit::Memory.into());
        }
        let index = self.state.allocate(Kind::Listener, cookie)?;
        self.state.slot(index).extra = Some(extra);
        let Self { driver, state, .. } = self;
        let listening = driver
            .local()
            .map_or(Err(NO_LISTENING), |local| local.listen(state, index, address, options));
        if let Err(error) = listening {
            state.release(index);
            return Err(refused(error));
        }
        Ok(self.state.handle(index))
    }

    pub(crate) fn connect_on_stack(
        &mut self,
        remote: SocketAddr,
        options: &ConnectOptions,
        cookie: u64,
    ) -> Result<Handle, ConnectError> {
        let index = self.state.allocate(Kind::Tcp, cookie)?;
        self.state.slot(index).phase = SlotPhase::Starting;
        let Self { driver, state, .. } = self;
        let begun = driver.local().map_or(Ok(()), |it| it.begin(state, index, (remote, options)));
        if let Err(error) = begun {
            self.state.retire(index);
            self.state.release(index);
            let source = match error {
                PortError::Stack(stack::ConnectError::InUse) => errno(libc::EADDRINUSE),
                PortError::Stack(_) => errno(libc::EADDRNOTAVAIL),
                PortError::Shared(_) => errno(libc::EADDRINUSE),
                PortError::Host(refusal) => by_host(refusal),
                PortError::Policy(refusal) => by_policy(refusal),
            };
            return Err(ConnectError::Kernel { what: "bind", source });
        }
        Ok(self.state.handle(index))
    }

    pub(crate) fn bind_on_stack(
        &mut self,
        v6: bool,
        bind: Option<&Address>,
        cookie: u64,
    ) -> Result<Handle, ListenError> {
        let any: IpAddr =
            if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let local = bind.and_then(Address::as_inet).unwrap_or_else(|| SocketAddr::new(any, 0));
        self.bind_datagram(local, DatagramSharing::default(), cookie)
    }

    /// Creates a datagram socket on our own stack, at an address that others may have as well. Does
    /// not block.
    ///
    /// # Errors
    /// [`ListenError`] says what is wrong with the address, or that the channel has no stack.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, DatagramSharing, Handle, ListenError};
    ///
    /// /// One of several sockets at port 53, each in a channel of its own.
    /// fn bind_dns(channel: &mut Channel) -> Result<Handle, ListenError> {
    ///     let sharing =
    ///         DatagramSharing { is_shared: true, spreads: true, ..DatagramSharing::default() };
    ///     channel.bind_datagram(([0, 0, 0, 0], 53).into(), sharing, 0)
    /// }
    /// ```
    pub fn bind_datagram(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
        cookie: u64,
    ) -> Result<Handle, ListenError> {
        self.check_fork()?;
        let index = self.state.allocate(Kind::Udp, cookie)?;
        let Self { driver, state, .. } = self;
        let place = (local, sharing);
        let bound = driver.local().map_or(Err(NO_BINDING), |it| it.bind(state, index, place));
        if let Err(error) = bound {
            state.release(index);
            return Err(not_bound(error));
        }
        Ok(self.state.handle(index))
    }
}

/// The local address, and the peer's where there is one.
type AddressPair = (Address, Option<Address>);

impl<T> Channel<T> {
    /// The addresses of what is the stack's; `None`: it is the kernel's.
    pub(crate) fn addresses_on_stack(
        &mut self,
        handle: Handle,
    ) -> Result<Option<AddressPair>, OpError> {
        self.check_fork().map_err(|_| OpError::BadDescriptor)?;
        let index = self.state.find(handle).map_err(|_| OpError::BadDescriptor)?;
        if !is_stacks(self.state.peek(index)) {
            return Ok(None);
        }
        let Self { driver, state, .. } = self;
        let ends = driver.local().and_then(|local| local.ends(state, index));
        ends.map(Some).ok_or(OpError::NotConnected)
    }
}

impl<T> Channel<T> {
    /// The link of what is the stack's, and what a connection has agreed on; `None`: it is the
    /// kernel's.
    pub(crate) fn described_by_stack(&mut self, index: u32) -> Option<String> {
        let Self { driver, state, .. } = self;
        is_stacks(state.peek(index)).then_some(())?;
        driver.local().map(|local| local.describe(state, index))
    }
}

impl<T> Channel<T> {
    /// Gives a listener of the stack's other cores; `None`: it is the kernel's.
    pub(crate) fn set_mask_on_stack(
        &mut self,
        index: u32,
        mask: CpuMask,
    ) -> Option<Result<(), RegisterError>> {
        let Self { driver, state, .. } = self;
        is_stacks(state.peek(index)).then_some(())?;
        driver.local().map(|local| local.set_mask(state, index, mask))
    }

    /// Where the stack runs that serves a slot; `None`: it is the kernel's.
    pub(crate) fn place_of_stack(&mut self, index: u32) -> Option<String> {
        is_stacks(self.state.peek(index)).then_some(())?;
        self.driver.local().map(|local| local.place().to_owned())
    }

    /// The cores whose connections a listener of the stack's takes.
    pub(crate) fn mask_on_stack(&mut self, index: u32) -> Option<CpuMask> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        if is_stacks(state.peek(index)) {
            return local.mask(state, index);
        }
        local.stack_mask(index)
    }
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// Where the stack runs, for whom it is not the kernel's.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    fn describe(&mut self, state: &State, slot: u32) -> String {
        let driver = self.server.caps().driver;
        let Some(conn) = self.conn(state, slot) else {
            return format!("our own stack on {driver}");
        };
        let Some(info) = self.server.info(conn) else {
            return format!("our own stack on {driver}, connection {}", conn.index);
        };
        let mut agreed = vec![format!("{:?}", info.state), format!("mss {}", info.mss)];
        if let Some((theirs, ours)) = info.window_scale {
            agreed.push(format!("window scale {theirs}/{ours}"));
        }
        let options = [(info.sack, "SACK"), (info.timestamps, "timestamps"), (info.ecn, "ECN")];
        agreed.extend(options.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()));
        let agreed = agreed.join(", ");
        format!("our own stack on {driver}, connection {}: {agreed}", conn.index)
    }

    fn ends(&mut self, state: &State, slot: u32) -> Option<AddressPair> {
        let inet = Address::Inet;
        if let Some(conn) = self.conn(state, slot) {
            let (local, remote) = self.server.addresses(conn)?;
            return Some((inet(local), Some(inet(remote))));
        }
        if let Some(listener) = self.listener(state, slot) {
            let address = self.listeners.get(listener.index as usize)?.address?;
            return Some((inet(address), None));
        }
        let endpoint = self.endpoint(state, slot)?;
        Some((inet(self.server.datagram_address(endpoint)?), None))
    }
}

/// A channel without a stack has no address on one.
const NO_LISTENING: PortError<stack::ListenError> =
    PortError::Stack(stack::ListenError::BadLocalAddress);
const NO_BINDING: PortError<stack::BindError> = PortError::Stack(stack::BindError::BadLocalAddress);

/// The stack's answer in the words of the kernel's.
fn not_bound(error: PortError<stack::BindError>) -> ListenError {
    let source = match error {
        PortError::Stack(stack::BindError::BadLocalAddress) => errno(libc::EADDRNOTAVAIL),
        PortError::Stack(stack::BindError::InUse | stack::BindError::NoPort) => {
            errno(libc::EADDRINUSE)
        }
        PortError::Stack(stack::BindError::NoMemory) => return Limit::Memory.into(),
        PortError::Stack(_) => errno(libc::ENOBUFS),
        PortError::Host(refusal) => by_host(refusal),
        PortError::Policy(refusal) => by_policy(refusal),
        PortError::Shared(_) => errno(libc::EADDRINUSE),
    };
    ListenError::Kernel { what: "bind", source }
}

/// The same for a listener.
fn refused(error: PortError<stack::ListenError>) -> ListenError {
    use stack::ListenError::{BadLocalAddress, InUse, NoMemory, TooManyListeners};
    let (what, source) = match error {
        PortError::Stack(BadLocalAddress) => ("bind", errno(libc::EADDRNOTAVAIL)),
        PortError::Stack(InUse) => ("bind", errno(libc::EADDRINUSE)),
        PortError::Stack(TooManyListeners) => ("listen", errno(libc::ENOBUFS)),
        PortError::Stack(NoMemory) => return Limit::Memory.into(),
        PortError::Stack(_) => ("listen", errno(libc::EINVAL)),
        PortError::Host(refusal) => ("bind", by_host(refusal)),
        PortError::Policy(refusal @ PolicyRefusal::Port(_)) => ("bind", by_policy(refusal)),
        PortError::Policy(refusal) => ("listen", by_policy(refusal)),
        PortError::Shared(BindingError::Overlap { core }) => {
            return RegisterError::MaskOverlaps { core: core as usize }.into();
        }
        PortError::Shared(BindingError::NoCore) => return RegisterError::MaskNotPossible.into(),
        PortError::Shared(_) => ("bind", errno(libc::EADDRINUSE)),
    };
    ListenError::Kernel { what, source }
}

fn errno(number: i32) -> Error {
    Error::from_raw_os_error(number)
}

/// The daemon's policy refuses it, in its words.
pub(super) fn by_policy(refusal: PolicyRefusal) -> Error {
    let kind = match refusal {
        PolicyRefusal::Port(_) => ErrorKind::PermissionDenied,
        PolicyRefusal::Quota(_) => ErrorKind::QuotaExceeded,
    };
    Error::new(kind, refusal)
}

/// The host that the address is shared with keeps the port, or the process lacks what holds it.
fn by_host(refusal: LinkError) -> Error {
    let kind = match &refusal {
        LinkError::Io { source, .. } => source.kind(),
        // The server of the address is gone.
        LinkError::Gone { .. } => return errno(libc::ENETDOWN),
        _ => ErrorKind::AddrInUse,
    };
    Error::new(kind, refusal)
}
