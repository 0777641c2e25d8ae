//! UDP sockets.
//!
//! Read first: udp(7), recv(2), send(2).
//!
//! One read is always with the channel, and what it brings waits in `inbox`, as much as the receive
//! buffer holds; what comes then waits in the kernel, or is dropped by our stack and counted there.
//! What is sent is complete for the program when the channel has it: an error that comes later is
//! told by the next call, as an ICMP error would be.
//!
//! Invariants
//! - `inbox_bytes` is the sum over `inbox`.
//! - `reading` is set for a side exactly while a read of it is with the channel.
//! - `unsent_bytes` is what the channel has and has not answered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use megapipe::{
    Address, Arrival, Channel, Datagram, DatagramSharing, Departure, Handle, ListenError, OpError,
    ReadBuf,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::control::{Told, asked, segment_asked};
use crate::error::Error;
use crate::error_queue::ErrorQueue;
use crate::family;
use crate::flags::{Events, MsgFlags};
use crate::gather::{Gather, Scatter};
use crate::kernel;
use crate::limits::{DATAGRAM_BYTES_MAX, DATAGRAM_INBOX_BYTES_MAX, DATAGRAM_OUTBOX_BYTES_MAX};
use crate::options::Options;
use crate::ports::{Bound, NoConnections, Transport};
use crate::readiness::Shut;
use crate::sockets::{Attempt, Kind, Sockets, Wait};
use crate::stream::Shutdown;

/// What `recvmsg` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes that were copied; with MSG_TRUNC asked for, the datagram's whole length.
    pub len: usize,
    /// The sender; of a connection: nobody.
    pub from: Option<SocketAddr>,
    /// [`MsgFlags::TRUNC`]: the datagram was longer than there was room for.
    /// [`MsgFlags::CTRUNC`]: there was more control data than room for it.
    pub flags: MsgFlags,
    /// Bytes of control data.
    pub control_len: usize,
}

impl Received {
    pub(crate) const NOTHING: Self =
        Self { len: 0, from: None, flags: MsgFlags::empty(), control_len: 0 };
}

/// A datagram that waits for the program.
pub(crate) struct Message {
    pub(crate) from: SocketAddr,
    pub(crate) data: ReadBuf,
    pub(crate) arrival: Option<Arrival>,
    /// The kernel's.
    pub(crate) control: Box<[u8]>,
    /// When it came, since 1970.
    pub(crate) stamp: Duration,
}

/// An endpoint beneath a socket.
#[derive(Debug, Clone, Copy)]
struct Side {
    /// `Handle::NONE`: our own stack knows nothing of it yet.
    handle: Handle,
    reading: bool,
}

const NO_SIDE: Side = Side { handle: Handle::NONE, reading: false };

/// A UDP socket.
pub(crate) struct Endpoint {
    /// The second is IPv4's, of a socket for both families on our own stack, or `NO_SIDE`.
    sides: [Side; 2],
    pub(crate) is_v6: bool,
    pub(crate) options: Options,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) bound: Option<Bound>,
    /// What bind(2) asked for; of an IPv6 socket, IPv4 as itself.
    asked: Option<SocketAddr>,
    pub(crate) error: Option<Error>,
    pub(crate) errors: ErrorQueue,
    shut: Shut,
    pub(crate) inbox: VecDeque<Message>,
    inbox_bytes: usize,
    unsent_bytes: usize,
}

impl Endpoint {
    pub(crate) const fn handle(&self) -> Handle {
        self.sides[0].handle
    }

    /// What is beneath, if there is anything yet.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Handle> + use<> {
        self.sides.map(|side| side.handle).into_iter().filter(|handle| *handle != Handle::NONE)
    }

    fn side(&mut self, handle: Handle) -> &mut Side {
        let index = usize::from(handle != self.sides[0].handle);
        &mut self.sides[index]
    }

    /// What it is called by in the channel, as far as the peer that it has decides.
    pub(crate) fn handle_towards_peer(&self) -> Handle {
        self.peer.map_or_else(|| self.handle(), |peer| self.towards(family::meant(peer)))
    }

    /// What sends to an address of a family.
    pub(crate) fn towards(&self, to: SocketAddr) -> Handle {
        match self.sides[1].handle {
            second if to.is_ipv4() && second != Handle::NONE => second,
            _ => self.handle(),
        }
    }

    /// Bytes that the channel has and has not answered.
    fn count_unsent(&self, channel: &Channel) -> usize {
        let unsent = |side: &Side| channel.unsent_bytes(side.handle).unwrap_or_default();
        self.sides.iter().filter(|side| side.handle != Handle::NONE).map(unsent).sum()
    }

    fn leave(&mut self, channel: &mut Channel) {
        for side in std::mem::replace(&mut self.sides, [NO_SIDE; 2]) {
            if side.handle != Handle::NONE {
                // A descriptor that comes back is closed with what it is in.
                drop(channel.unregister(side.handle));
            }
        }
    }

    /// Where it is bound, as far as that decides whom it reaches.
    fn place(&self) -> Option<SocketAddr> {
        let peer = self.peer.map(family::meant).filter(SocketAddr::is_ipv4);
        peer.or(self.asked)
    }

    pub(crate) fn readiness(&self) -> Events {
        let mut events = Events::empty();
        events.set(Events::READABLE, !self.inbox.is_empty() || self.shut.receive);
        events.set(Events::RDHUP, self.shut.receive);
        events.set(Events::HUP, self.shut.receive && self.shut.send);
        events.set(Events::ERR, self.error.is_some() || !self.errors.is_empty());
        // With WRBAND, unlike a stream (Linux's `datagram_poll`).
        events.set(Events::HAS_ROOM, self.unsent_bytes < DATAGRAM_OUTBOX_BYTES_MAX);
        events
    }

    /// Bytes that the next read takes.
    pub(crate) fn next_len(&self) -> usize {
        self.run().bytes
    }

    /// Where a datagram is to go, as what is beneath has it.
    fn destination(&self, to: SocketAddr, is_local: bool) -> Result<SocketAddr, Error> {
        let v6_only = self.options.sharing.v6_only;
        let plain = family::to_send(self.is_v6, v6_only, self.place(), to)?;
        // The kernel takes IPv4 from IPv6 sockets as they have it.
        Ok(if is_local { plain } else { to })
    }

    /// It may be connected to that peer.
    fn check_peer(&self, peer: SocketAddr) -> Result<(), Error> {
        let v6_only = self.options.sharing.v6_only;
        if self.is_v6 && v6_only && peer.is_ipv4() {
            return Err(Error::FamilyNotSupported);
        }
        family::to_send(self.is_v6, v6_only, self.place(), peer).map(drop)
    }

    fn ask(&mut self, channel: &mut Channel) {
        if self.inbox_bytes >= DATAGRAM_INBOX_BYTES_MAX {
            return;
        }
        for side in &mut self.sides {
            if side.handle != Handle::NONE && !side.reading {
                side.reading = channel.recvfrom(side.handle, DATAGRAM_BYTES_MAX).is_ok();
            }
        }
    }
}

/// Making and naming.
impl Sockets {
    pub(crate) fn endpoint(&mut self, is_v6: bool) -> Result<Endpoint, Error> {
        let mut handle = Handle::NONE;
        if !self.is_local {
            let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
            handle = self.channel.register(fd, u64::MAX, None).map_err(|error| match error {
                megapipe::RegisterError::Kernel { source, .. } => source.into(),
                megapipe::RegisterError::Misuse(misuse) => Error::from(misuse),
                megapipe::RegisterError::Limit(limit) => limit.into(),
                _ => Error::InvalidArgument,
            })?;
        }
        Ok(Endpoint {
            sides: [Side { handle, ..NO_SIDE }, NO_SIDE],
            is_v6,
            options: Options::DEFAULT,
            peer: None,
            bound: None,
            asked: None,
            error: None,
            errors: ErrorQueue::default(),
            shut: Shut::default(),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            unsent_bytes: 0,
        })
    }

    pub(crate) fn endpoint_mut(&mut self, object: u32) -> Option<(&mut Endpoint, &mut Channel)> {
        let Self { objects, channel, .. } = self;
        match &mut objects.get_mut(object as usize)?.kind {
            Kind::Datagram(endpoint) => Some((endpoint, channel)),
            _ => None,
        }
    }

    /// The socket has its object: completions find it, and datagrams are asked for.
    pub(crate) fn start_endpoint(&mut self, object: u32) {
        let Some((endpoint, channel)) = self.endpoint_mut(object) else { return };
        if endpoint.handle() != Handle::NONE {
            // It is there: it was registered just now.
            let _ = channel.set_cookie(endpoint.handle(), object.into());
            endpoint.ask(channel);
        }
    }

    pub(crate) fn bind_endpoint(&mut self, object: u32, address: SocketAddr) -> Result<(), Error> {
        let is_local = self.is_local;
        let Some((endpoint, channel)) = self.endpoint_mut(object) else {
            return Err(Error::InvalidArgument);
        };
        let v6_only = endpoint.options.sharing.v6_only;
        let plain = family::to_bind(endpoint.is_v6, v6_only, address)?;
        if !is_local {
            let socket = channel.descriptor(endpoint.handle())?.ok_or(Error::InvalidArgument)?;
            rustix::net::bind(socket, &address)?;
        } else if endpoint.bound.is_some() {
            return Err(Error::InvalidArgument);
        } else {
            self.check_ours(plain.ip())?;
            self.bind_to_stack(object, plain)?;
        }
        let address = plain;
        if let Some((endpoint, _)) = self.endpoint_mut(object) {
            endpoint.asked = Some(address);
            endpoint.options.sharing.v6_only |= family::is_one_of_v6(address);
        }
        Ok(())
    }

    /// An address on our own stack; port 0 and an unspecified address are chosen.
    fn bind_to_stack(&mut self, object: u32, address: SocketAddr) -> Result<(), Error> {
        let Self { objects, channel, ports, .. } = self;
        let Some(Kind::Datagram(endpoint)) =
            objects.get_mut(object as usize).map(|entry| &mut entry.kind)
        else {
            return Err(Error::InvalidArgument);
        };
        let sharing = endpoint.options.sharing;
        let bound = ports.bind(Transport::Udp, address, sharing, &mut NoConnections)?;
        let places = [Some(bound.address), family::beside(sharing.v6_only, bound.address)];
        for (side, place) in places.into_iter().enumerate() {
            let Some(place) = place else { continue };
            // Who may be there beside whom, `ports` has said.
            let beside = DatagramSharing {
                is_shared: true,
                spreads: sharing.port,
                is_mapped: endpoint.is_v6 && place.is_ipv4(),
            };
            match channel.bind_datagram(place, beside, object.into()) {
                Ok(handle) => endpoint.sides[side].handle = handle,
                Err(error) => {
                    endpoint.leave(channel);
                    ports.release(bound);
                    return Err(not_made(error));
                }
            }
        }
        endpoint.bound = Some(bound);
        endpoint.ask_for_quotes(channel, true);
        endpoint.ask(channel);
        Ok(())
    }

    fn bind_if_unbound(&mut self, object: u32) -> Result<(), Error> {
        let Some((endpoint, _)) = self.endpoint_mut(object) else {
            return Err(Error::InvalidArgument);
        };
        if endpoint.handle() != Handle::NONE {
            return Ok(());
        }
        let any = SocketAddr::new(family::any(endpoint.is_v6), 0);
        let local = endpoint.asked.unwrap_or(any);
        self.bind_to_stack(object, local)
    }

    /// A port that nobody asked for goes with the peer that it was for, as in Linux.
    fn unbind_if_chosen(&mut self, object: u32) {
        let Self { objects, channel, ports, .. } = self;
        let Some(Kind::Datagram(endpoint)) =
            objects.get_mut(object as usize).map(|entry| &mut entry.kind)
        else {
            return;
        };
        if endpoint.asked.is_some_and(|asked| asked.port() != 0) {
            return;
        }
        if let Some(bound) = endpoint.bound.take() {
            ports.release(bound);
            // Its datagrams go with it.
            endpoint.leave(channel);
        }
    }

    /// connect(2): the one peer from now on; `None`: anybody again.
    pub(crate) fn connect_endpoint(
        &mut self,
        object: u32,
        peer: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let is_local = self.is_local;
        let Some((endpoint, channel)) = self.endpoint_mut(object) else {
            return Err(Error::InvalidArgument);
        };
        if let Some(peer) = peer {
            endpoint.check_peer(peer)?;
        }
        if !is_local {
            let socket = channel.descriptor(endpoint.handle())?.ok_or(Error::InvalidArgument)?;
            match peer {
                Some(peer) => rustix::net::connect(socket, &peer)?,
                None => rustix::net::connect_unspec(socket)?,
            }
        } else {
            match peer {
                Some(_) => self.bind_if_unbound(object)?,
                None => self.unbind_if_chosen(object),
            }
            self.connect_on_stack(object, peer.map(family::meant))?;
        }
        if let Some((endpoint, _)) = self.endpoint_mut(object) {
            endpoint.peer = peer.map(|peer| family::told(endpoint.is_v6, peer));
            endpoint.shut = Shut::default();
        }
        Ok(())
    }

    /// Our own stack brings what that peer sends, before it goes to others at the address.
    fn connect_on_stack(&mut self, object: u32, peer: Option<SocketAddr>) -> Result<(), Error> {
        let Self { objects, channel, ports, .. } = self;
        let Some(Kind::Datagram(endpoint)) =
            objects.get_mut(object as usize).map(|entry| &mut entry.kind)
        else {
            return Err(Error::InvalidArgument);
        };
        let Some(bound) = endpoint.bound else { return Ok(()) };
        let towards = peer.map_or_else(|| endpoint.handle(), |peer| endpoint.towards(peer));
        for side in endpoint.sides.iter().filter(|side| side.handle != Handle::NONE) {
            let local = channel.connect_datagram(side.handle, peer)?;
            if side.handle == towards {
                ports.move_to(bound, local.ip());
            }
        }
        Ok(())
    }

    pub(crate) fn shutdown_endpoint(&mut self, object: u32, how: Shutdown) -> Result<(), Error> {
        let Some((endpoint, _)) = self.endpoint_mut(object) else {
            return Err(Error::NotConnected);
        };
        if endpoint.peer.is_none() {
            return Err(Error::NotConnected);
        }
        endpoint.shut.receive |= how != Shutdown::Write;
        endpoint.shut.send |= how != Shutdown::Read;
        self.notify(object, Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::HUP);
        Ok(())
    }

    pub(crate) fn close_endpoint(&mut self, mut endpoint: Endpoint) {
        endpoint.inbox.clear();
        if let Some(bound) = endpoint.bound {
            self.ports.release(bound);
        }
        endpoint.leave(&mut self.channel);
    }
}

/// Datagrams.
impl Sockets {
    pub(crate) fn on_datagram(
        &mut self,
        object: u32,
        side: Handle,
        result: Result<Box<Datagram>, OpError>,
    ) {
        let Some((endpoint, channel)) = self.endpoint_mut(object) else { return };
        endpoint.side(side).reading = false;
        let happened = match result {
            Ok(datagram) => {
                let Datagram { data, from, arrival, control, .. } = *datagram;
                let is_v6 = endpoint.is_v6;
                let from = from.and_then(|from| from.as_inet());
                let from = from.map(|from| family::told(is_v6, from));
                let Some(from) = from else { return endpoint.ask(channel) };
                endpoint.inbox_bytes += data.len();
                let stamp = match endpoint.options.told.intersects(Told::STAMP | Told::STAMP_NS) {
                    true => since_1970(),
                    false => Duration::ZERO,
                };
                endpoint.inbox.push_back(Message { from, data, arrival, control, stamp });
                Events::ARRIVED
            }
            Err(error) => {
                endpoint.error = Some(error.into());
                Events::ERR | Events::READABLE
            }
        };
        endpoint.ask(channel);
        self.notify(object, happened);
    }

    pub(crate) fn on_datagram_sent(&mut self, object: u32, result: Result<usize, OpError>) {
        let Some((endpoint, channel)) = self.endpoint_mut(object) else { return };
        let was_full = endpoint.unsent_bytes >= DATAGRAM_OUTBOX_BYTES_MAX;
        endpoint.unsent_bytes = endpoint.count_unsent(channel);
        let mut happened = Events::empty();
        happened.set(Events::HAS_ROOM, was_full);
        if let Err(error) = result {
            endpoint.error = Some(error.into());
            happened |= Events::ERR;
        }
        if !happened.is_empty() {
            self.notify(object, happened);
        }
    }

    pub(crate) fn recv_datagram(
        &mut self,
        object: u32,
        to: &mut Scatter<'_, '_>,
        control: &mut [u8],
        (flags, is_over): (MsgFlags, bool),
    ) -> Attempt<Received> {
        let mut looked_again = false;
        loop {
            let Self { objects, channel, .. } = self;
            let Some(entry) = objects.get_mut(object as usize) else {
                return Attempt::Done(Err(Error::BadDescriptor));
            };
            let Kind::Datagram(endpoint) = &mut entry.kind else {
                return Attempt::Done(Err(Error::NotASocket));
            };
            if let Some(error) = endpoint.error.take() {
                return Attempt::Done(Err(error));
            }
            if let Some(from) = endpoint.inbox.front().map(|message| message.from) {
                let run = endpoint.run();
                let whole = run.bytes;
                let (control_len, is_cut) = endpoint.show(run, to, control);
                let copied = to.filled();
                if !flags.contains(MsgFlags::PEEK) {
                    endpoint.inbox_bytes -= whole;
                    endpoint.inbox.drain(..run.count);
                    endpoint.ask(channel);
                }
                let mut told = MsgFlags::empty();
                told.set(MsgFlags::TRUNC, copied < whole);
                told.set(MsgFlags::CTRUNC, is_cut);
                let len = if flags.contains(MsgFlags::TRUNC) { whole } else { copied };
                let received = Received { len, from: Some(from), flags: told, control_len };
                return Attempt::Done(Ok(received));
            }
            if endpoint.shut.receive {
                return Attempt::Done(Ok(Received::NOTHING));
            }
            if !entry.nonblocking && !flags.contains(MsgFlags::DONTWAIT) && !is_over {
                return Attempt::Wait(Wait::on(object, endpoint.options.receive_timeout));
            }
            if looked_again || !self.refreshed(object) {
                return Attempt::Done(Err(Error::WouldBlock));
            }
            looked_again = true;
        }
    }

    pub(crate) fn send_datagram(
        &mut self,
        object: u32,
        from: &mut Gather<'_>,
        (to, control, flags): (Option<SocketAddr>, &[u8], MsgFlags),
        is_over: bool,
    ) -> Attempt<usize> {
        match self.try_send_datagram(object, from, (to, control), flags) {
            Err(Error::WouldBlock) if !is_over && !flags.contains(MsgFlags::DONTWAIT) => {
                let Some(entry) = self.object(object) else {
                    return Attempt::Done(Err(Error::BadDescriptor));
                };
                match &entry.kind {
                    Kind::Datagram(endpoint) if !entry.nonblocking => {
                        Attempt::Wait(Wait::on(object, endpoint.options.send_timeout))
                    }
                    _ => Attempt::Done(Err(Error::WouldBlock)),
                }
            }
            done => Attempt::Done(done),
        }
    }

    fn try_send_datagram(
        &mut self,
        object: u32,
        from: &mut Gather<'_>,
        (to, control): (Option<SocketAddr>, &[u8]),
        flags: MsgFlags,
    ) -> Result<usize, Error> {
        if flags.contains(MsgFlags::OOB) {
            return Err(Error::NotSupported);
        }
        let len = from.left();
        let is_local = self.is_local;
        let Some((endpoint, _)) = self.endpoint_mut(object) else {
            return Err(Error::NotASocket);
        };
        if len > usize::from(u16::MAX) {
            return Err(Error::MessageTooLong);
        }
        let to = to.or(endpoint.peer).ok_or(Error::NoDestination)?;
        let to = endpoint.destination(to, is_local)?;
        if to.port() == 0 {
            return Err(Error::InvalidArgument);
        }
        let (departure, segment_len) = match is_local {
            true => (
                asked(control, to.is_ipv4(), endpoint.options.departure())?,
                segment_asked(control, endpoint.options.segment_len)?,
            ),
            false => (Departure::default(), 0),
        };
        if len > DATAGRAM_BYTES_MAX {
            return Err(self.refuse_length(object, to));
        }
        if let Some(error) = endpoint.error.take() {
            return Err(error);
        }
        if endpoint.shut.send {
            return Err(Error::BrokenPipe);
        }
        if endpoint.unsent_bytes >= DATAGRAM_OUTBOX_BYTES_MAX {
            return Err(Error::WouldBlock);
        }
        if let Some(source) = departure.from
            && self.check_ours(source).is_err()
        {
            // As Linux answers: for IPv4 as a matter of routes.
            return Err(match source.is_ipv4() {
                true => Error::NetworkUnreachable,
                false => Error::InvalidArgument,
            });
        }
        if is_local {
            self.bind_if_unbound(object)?;
            return self.send_to_stack(object, from, to, (&departure, segment_len.into()));
        }
        let Some((endpoint, channel)) = self.endpoint_mut(object) else {
            return Err(Error::NotASocket);
        };
        if !control.is_empty() {
            // The channel has no place for it: it goes to the kernel at once.
            let socket = channel.descriptor(endpoint.handle())?.ok_or(Error::InvalidArgument)?;
            let mut bytes = Vec::with_capacity(len);
            from.take(len, |part| bytes.extend_from_slice(part));
            return kernel::send_with_control(socket, &bytes, to, control);
        }
        let mut bytes = channel.alloc(len);
        from.take(len, |part| bytes.extend_from_slice(part));
        channel.sendto(endpoint.towards(to), bytes, &Address::Inet(to))?;
        endpoint.unsent_bytes += len.max(1);
        Ok(len)
    }
}

fn not_made(error: ListenError) -> Error {
    match error {
        ListenError::Kernel { source, .. } => source.into(),
        ListenError::Misuse(misuse) => misuse.into(),
        ListenError::Limit(limit) => limit.into(),
        _ => Error::InvalidArgument,
    }
}

/// What time it is, for stamps.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
