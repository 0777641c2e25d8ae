//! Listening sockets, and the calls that give a socket its place: bind(2), listen(2), accept(2).
//!
//! Read first: listen(2), accept(2), ip(7).
//!
//! A backlog of `n` lets `n + 1` connections wait, as in Linux. They wait in two places: a few were
//! taken from the channel already and are in `queue`, the rest is the kernel's or our stack's.
//!
//! A socket at all of IPv6 that is not IPV6_V6ONLY listens on our own stack at all of IPv4 as well:
//! two listeners beneath, each with the backlog's second place. What listens beneath is a door
//! (`door.rs`), which sockets with SO_REUSEPORT share.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use megapipe::{
    Accepted, Address, Connection, Disconnect, Handle, ListenError, ListenOptions, OpError,
    RegisterError,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::descriptors::Fd;
use crate::error::Error;
use crate::family;
use crate::flags::{Events, OpenFlags};
use crate::limits::{ACCEPT_AHEAD, BACKLOG_MAX};
use crate::options::Options;
use crate::ports::{Bound, Transport};
use crate::readiness::{self, Progress};
use crate::sockets::{Attempt, Kind, NIL, Sockets, Wait};
use crate::stream::{Blank, Connecting, Stream};

/// A listening socket.
pub(crate) struct Listener {
    /// Where its connections come from. The second is IPv4's, of a socket for both families, or
    /// `NIL`.
    pub(crate) doors: [u32; 2],
    /// The first door's.
    handle: Handle,
    /// Connections for the program, oldest first: objects without a descriptor.
    pub(crate) queue: VecDeque<u32>,
    /// How many are taken from the channel ahead of the program.
    pub(crate) ahead: usize,
    pub(crate) error: Option<Error>,
    pub(crate) is_v6: bool,
    pub(crate) options: Options,
    pub(crate) bound: Option<Bound>,
}

impl Listener {
    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn readiness(&self) -> Events {
        let events = readiness::of_listener(!self.queue.is_empty());
        if self.error.is_some() { events | Events::ERR } else { events }
    }
}

/// How many of `backlog + 1` connections are taken ahead, and how many may wait behind them. The
/// kernel needs room for those that come between two turns, so a quarter is all that is taken out
/// of its queue; our own stack hands on at once what was asked for before.
fn share(backlog: i32, is_local: bool) -> (usize, usize) {
    // A negative backlog is a very large one: it is unsigned in the kernel.
    let backlog = usize::try_from(backlog).unwrap_or(BACKLOG_MAX).min(BACKLOG_MAX);
    let ahead = if is_local { backlog } else { backlog / 4 }.clamp(1, ACCEPT_AHEAD);
    (ahead, (backlog + 1 - ahead).max(1))
}

/// The kernel and our own stack let one more wait than they are told.
const fn backlog_beneath(behind: usize) -> u32 {
    behind as u32 - 1
}

/// Making and naming.
impl Sockets {
    /// A fresh TCP socket in the kernel, or only a promise of one.
    pub(crate) fn blank(&self, is_v6: bool) -> Result<Blank, Error> {
        if self.is_local {
            return Ok(Blank::Local);
        }
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        Ok(Blank::Kernel(fd))
    }

    /// socket(2) with the numbers of its three arguments.
    pub(crate) fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Error> {
        const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        /// AF_MAX and IPPROTO_MAX of Linux.
        const FAMILIES: i32 = 46;
        const PROTOCOLS: i32 = 263;
        let flags = OpenFlags::from_bits_truncate(kind & FLAGS);
        let kind = kind & !FLAGS;
        if !(0..FAMILIES).contains(&domain) {
            return Err(Error::FamilyNotSupported);
        }
        // SOCK_PACKET is the last that Linux knows.
        if !(0..=10).contains(&kind) {
            return Err(Error::InvalidArgument);
        }
        let is_v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Error::FamilyNotSupported),
        };
        match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                self.table.lowest_free(0)?;
                let stream = Stream::new(self.blank(is_v6)?, is_v6);
                self.open(Kind::Stream(stream), flags)
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                self.table.lowest_free(0)?;
                let endpoint = Box::new(self.endpoint(is_v6)?);
                let fd = self.open(Kind::Datagram(endpoint), flags)?;
                let object = self.table.object(fd)?;
                self.start_endpoint(object);
                Ok(fd)
            }
            (_, PROTOCOLS.. | ..0) => Err(Error::InvalidArgument),
            (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => Err(Error::ProtocolNotSupported),
            _ => Err(Error::TypeNotSupported),
        }
    }

    pub(crate) fn bind(&mut self, fd: Fd, address: SocketAddr) -> Result<(), Error> {
        let object = self.table.object(fd)?;
        if matches!(self.object(object).map(|it| &it.kind), Some(Kind::Datagram(_))) {
            return self.bind_endpoint(object, address);
        }
        let Self { objects, ports, addresses, channel, .. } = self;
        let entry = objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        match &mut entry.kind {
            Kind::Stream(stream) => {
                let sharing = &mut stream.options.sharing;
                let plain = family::to_bind(stream.is_v6, sharing.v6_only, address)?;
                if let Blank::Kernel(fd) = &stream.blank {
                    rustix::net::bind(fd, &address)?;
                    stream.asked = Some(plain);
                    sharing.v6_only |= family::is_one_of_v6(plain);
                    return Ok(());
                }
                let address = plain;
                if stream.bound.is_some() || !matches!(stream.blank, Blank::Local) {
                    return Err(Error::InvalidArgument);
                }
                check_ours(addresses, address.ip())?;
                stream.bound = Some(ports.bind(Transport::Tcp, address, *sharing, channel)?);
                sharing.v6_only |= family::is_one_of_v6(address);
                Ok(())
            }
            Kind::Listener(_) => Err(Error::InvalidArgument),
            _ => Err(Error::NotASocket),
        }
    }

    pub(crate) fn check_ours(&self, ip: IpAddr) -> Result<(), Error> {
        check_ours(&self.addresses, ip)
    }

    pub(crate) fn listen(&mut self, fd: Fd, backlog: i32) -> Result<(), Error> {
        let object = self.table.object(fd)?;
        let (ahead, behind) = share(backlog, self.is_local);
        let entry = self.objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        match &mut entry.kind {
            Kind::Stream(stream) => {
                let is_fresh = matches!(stream.progress, Progress::Closed)
                    && stream.connecting == Connecting::Not;
                if !is_fresh {
                    return Err(Error::InvalidArgument);
                }
            }
            Kind::Listener(listener) => {
                listener.ahead = ahead;
                let handle = listener.handle();
                // Our own stack's part of the backlog stays as it was first asked for.
                if let Ok(Some(fd)) = self.channel.descriptor(handle) {
                    rustix::net::listen(fd, backlog_beneath(behind) as i32)?;
                }
                self.ask_for_connections(object);
                return Ok(());
            }
            Kind::Datagram(_) => return Err(Error::NotSupported),
            _ => return Err(Error::NotASocket),
        }
        let doors = match self.is_local {
            true => self.listen_on_stack(object, behind)?,
            false => [self.listen_in_kernel(object, behind)?, NIL],
        };
        self.become_listener(object, doors, ahead);
        self.ask_for_connections(object);
        Ok(())
    }

    fn listen_in_kernel(&mut self, object: u32, behind: usize) -> Result<u32, Error> {
        let cookie = self.doors.next();
        let Self { objects, channel, .. } = self;
        let Some(Kind::Stream(stream)) = objects.get_mut(object as usize).map(|it| &mut it.kind)
        else {
            return Err(Error::InvalidArgument);
        };
        let Blank::Kernel(fd) = &stream.blank else { return Err(Error::InvalidArgument) };
        rustix::net::listen(fd, backlog_beneath(behind) as i32)?;
        let Blank::Kernel(fd) = std::mem::replace(&mut stream.blank, Blank::Used) else {
            return Err(Error::InvalidArgument);
        };
        let handle = channel.register(fd, cookie.into(), None).map_err(|error| match error {
            RegisterError::Kernel { source, .. } => source.into(),
            RegisterError::Misuse(misuse) => misuse.into(),
            RegisterError::Limit(limit) => limit.into(),
            _ => Error::InvalidArgument,
        })?;
        Ok(self.doors.open(handle, None, object))
    }

    fn listen_on_stack(&mut self, object: u32, behind: usize) -> Result<[u32; 2], Error> {
        let Self { objects, channel, ports, doors, .. } = self;
        let Some(Kind::Stream(stream)) = objects.get_mut(object as usize).map(|it| &mut it.kind)
        else {
            return Err(Error::InvalidArgument);
        };
        let bound = match stream.bound {
            Some(bound) => bound,
            None => {
                let any = SocketAddr::new(family::any(stream.is_v6), 0);
                let sharing = stream.options.sharing;
                *stream.bound.insert(ports.bind(Transport::Tcp, any, sharing, channel)?)
            }
        };
        ports.listen(bound)?;
        // With SO_REUSEPORT, contexts of the process's other shards may listen there too, and other
        // sockets of this one.
        let is_shared = stream.options.sharing.port;
        let options = ListenOptions::default()
            .backlog(backlog_beneath(behind))
            .share(is_shared)
            .reuse(stream.options.sharing.reuse())
            .fast_open(stream.options.fast_open());
        let mut listen = |address| {
            if is_shared && let Some(door) = doors.join(address, object) {
                return Ok(door);
            }
            let cookie = doors.next();
            let handle = channel.listen(&Address::Inet(address), &options, cookie.into());
            match handle {
                Ok(handle) => Ok(doors.open(handle, Some(address), object)),
                Err(ListenError::Kernel { source, .. }) => Err(source.into()),
                Err(ListenError::Misuse(misuse)) => Err(misuse.into()),
                Err(ListenError::Limit(limit)) => Err(limit.into()),
                Err(_) => Err(Error::InvalidArgument),
            }
        };
        let first = listen(bound.address)?;
        let Some(beside) = family::beside(stream.options.sharing.v6_only, bound.address) else {
            return Ok([first, NIL]);
        };
        match listen(beside) {
            Ok(second) => Ok([first, second]),
            Err(error) => {
                if let Some(handle) = doors.leave(first, object) {
                    drop(channel.unregister(handle));
                }
                Err(error)
            }
        }
    }

    /// TCP_FASTOPEN was set on a listening socket.
    #[cold]
    pub(crate) fn set_fast_open(&mut self, object: u32) {
        let Some(listener) = self.listener_mut(object) else { return };
        let (doors, pending_max) = (listener.doors, listener.options.fast_open());
        for door in doors.into_iter().filter(|door| *door != NIL) {
            let handle = self.doors.handle(door);
            // One that is not there any more has nothing to be set.
            let _ = self.channel.set_fast_open(handle, pending_max);
        }
    }

    fn become_listener(&mut self, object: u32, doors: [u32; 2], ahead: usize) {
        let handle = self.doors.handle(doors[0]);
        let Some(entry) = self.object_mut(object) else { return };
        let Kind::Stream(stream) = &mut entry.kind else { return };
        let mut options = stream.options;
        options.forget_quick_ack();
        let listener = Listener {
            doors,
            handle,
            queue: VecDeque::new(),
            ahead,
            error: None,
            is_v6: stream.is_v6,
            options,
            bound: stream.bound,
        };
        entry.kind = Kind::Listener(Box::new(listener));
    }
}

/// Accepting.
impl Sockets {
    fn listener_mut(&mut self, object: u32) -> Option<&mut Listener> {
        match &mut self.object_mut(object)?.kind {
            Kind::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    fn ask_for_connections(&mut self, object: u32) {
        let Some(listener) = self.listener_mut(object) else { return };
        let doors = listener.doors;
        for door in doors.into_iter().filter(|door| *door != NIL) {
            self.ask_at_door(door);
        }
    }

    /// A connection came, or an error, to a door.
    pub(crate) fn on_accepted(&mut self, door: u32, result: Result<Accepted, OpError>) {
        match result {
            Ok(Accepted { connection: Connection::Lwsocket(handle), .. }) => {
                let Some(object) = self.choose_listener(door, handle) else { return };
                let Some(listener) = self.listener_mut(object) else { return };
                let options = listener.options;
                let mut stream = Stream::accepted(handle, listener.is_v6, options);
                if self.is_local {
                    let name = self.channel.local_address(handle).ok();
                    stream.name = name.and_then(|name| name.as_inet());
                }
                let connection = self.insert(Kind::Stream(stream), false);
                // It is there: it was accepted just now.
                let _ = self.channel.set_cookie(handle, connection.into());
                Self::apply_options(&mut self.channel, handle, &options);
                if let Some(listener) = self.listener_mut(object) {
                    listener.queue.push_back(connection);
                }
                self.notify(object, Events::ARRIVED);
            }
            // Descriptors were not asked for.
            Ok(_) => {}
            Err(error) => {
                for object in self.doors.members(door).to_vec() {
                    if let Some(listener) = self.listener_mut(object) {
                        listener.error = Some(error.into());
                    }
                    self.notify(object, Events::READABLE | Events::ERR);
                }
            }
        }
    }

    pub(crate) fn accept(&mut self, fd: Fd, flags: OpenFlags, is_over: bool) -> Attempt<Fd> {
        let mut looked_again = false;
        loop {
            let object = match self.table.object(fd) {
                Ok(object) => object,
                Err(error) => return Attempt::Done(Err(error)),
            };
            let Some(entry) = self.objects.get_mut(object as usize) else {
                return Attempt::Done(Err(Error::BadDescriptor));
            };
            let listener = match &mut entry.kind {
                Kind::Listener(listener) => listener,
                Kind::Stream(_) => return Attempt::Done(Err(Error::InvalidArgument)),
                Kind::Datagram(_) => return Attempt::Done(Err(Error::NotSupported)),
                _ => return Attempt::Done(Err(Error::NotASocket)),
            };
            // In Linux's order: first a descriptor, then a connection for it.
            let free = match self.table.lowest_free(0) {
                Ok(free) => free,
                Err(error) => return Attempt::Done(Err(error)),
            };
            if let Some(connection) = listener.queue.pop_front() {
                let asked = self.doors.asked_least(listener.doors);
                if listener.queue.len() + asked <= listener.ahead / 2 {
                    self.ask_for_connections(object);
                }
                return Attempt::Done(self.hand_over(free, connection, flags));
            }
            if let Some(error) = listener.error.take() {
                return Attempt::Done(Err(error));
            }
            if !entry.nonblocking && !is_over {
                return Attempt::Wait(Wait::on(object, listener.options.receive_timeout));
            }
            if looked_again || !self.refreshed(object) {
                return Attempt::Done(Err(Error::WouldBlock));
            }
            looked_again = true;
        }
    }

    fn hand_over(&mut self, fd: Fd, connection: u32, flags: OpenFlags) -> Result<Fd, Error> {
        if let Some(entry) = self.object_mut(connection) {
            entry.nonblocking = flags.contains(OpenFlags::NONBLOCK);
        }
        self.name(fd, connection, flags)?;
        Ok(fd)
    }

    /// A listener of the kernel's is about to go: takes what the channel was asked for and has, so
    /// that it is reset like what is in the queue. The channel would close it in order.
    pub(crate) fn take_all_connections(&mut self, object: u32) {
        // What one turn brings is asked for again, which may bring more.
        while let Some(before) = self.listener_mut(object).map(|it| it.queue.len()) {
            // A link that is gone has nothing to be reset.
            let turned = self.turn_channel(Some(Duration::ZERO));
            let after = self.listener_mut(object).map_or(0, |it| it.queue.len());
            if turned.is_err() || after <= before {
                return;
            }
        }
    }

    /// The listener is gone: connections that nobody accepted are reset.
    pub(crate) fn close_listener(&mut self, object: u32, listener: Listener) {
        for connection in listener.queue {
            if let Some(entry) = self.objects.try_remove(connection as usize)
                && let Kind::Stream(stream) = entry.kind
            {
                let _ = self.channel.disconnect(stream.handle, Disconnect::Reset);
                self.close_stream(stream);
            }
        }
        for door in listener.doors.into_iter().filter(|door| *door != NIL) {
            match self.doors.leave(door, object) {
                // A descriptor that comes back is closed with what it is in.
                Some(handle) => drop(self.channel.unregister(handle)),
                None => self.ask_at_door(door),
            }
        }
        if let Some(bound) = listener.bound {
            self.ports.release(bound);
        }
    }
}

/// Which addresses a socket has.
impl Sockets {
    pub(crate) fn getsockname(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        let object = self.table.object(fd)?;
        let Self { objects, channel, .. } = self;
        let entry = objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        let (handle, is_v6, bound) = match &entry.kind {
            Kind::Stream(Stream { blank: Blank::Kernel(fd), .. }) => return kernel_name(fd),
            Kind::Stream(Stream { name: Some(name), is_v6, .. }) => {
                return Ok(family::told(*is_v6, *name));
            }
            Kind::Stream(stream) => (stream.handle, stream.is_v6, stream.bound),
            Kind::Listener(listener) => (listener.handle(), listener.is_v6, listener.bound),
            Kind::Datagram(it) => (it.handle_towards_peer(), it.is_v6, it.bound),
            _ => return Err(Error::NotASocket),
        };
        let known = match handle {
            Handle::NONE => None,
            handle => channel.local_address(handle).ok().and_then(|address| address.as_inet()),
        };
        let otherwise =
            bound.map_or_else(|| SocketAddr::new(family::any(is_v6), 0), |bound| bound.address);
        Ok(family::told(is_v6, known.unwrap_or(otherwise)))
    }

    pub(crate) fn getpeername(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        let object = self.table.object(fd)?;
        let Self { objects, channel, .. } = self;
        let entry = objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        match &entry.kind {
            Kind::Stream(stream) if matches!(stream.progress, Progress::Connected) => {
                let address = channel.peer_address(stream.handle)?.as_inet();
                Ok(family::told(stream.is_v6, address.ok_or(Error::NotConnected)?))
            }
            Kind::Datagram(endpoint) => endpoint.peer.ok_or(Error::NotConnected),
            Kind::Stream(_) | Kind::Listener(_) => Err(Error::NotConnected),
            _ => Err(Error::NotASocket),
        }
    }
}

fn kernel_name(fd: impl AsFd) -> Result<SocketAddr, Error> {
    SocketAddr::try_from(rustix::net::getsockname(fd)?).map_err(|_| Error::InvalidArgument)
}

/// The address is one of this host's, or any.
fn check_ours(ours: &[IpAddr], ip: IpAddr) -> Result<(), Error> {
    if ip.is_unspecified() || ours.is_empty() || ours.contains(&ip) {
        return Ok(());
    }
    Err(Error::AddressNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_shared_between_us_and_the_stack() {
        for (backlog, kernels, ours) in [
            (0, (1, 1), (1, 1)),
            (1, (1, 1), (1, 1)),
            (64, (16, 49), (64, 1)),
            (65, (16, 50), (64, 2)),
            (128, (32, 97), (64, 65)),
            (256, (64, 193), (64, 193)),
            (i32::MAX, (64, BACKLOG_MAX + 1 - 64), (64, BACKLOG_MAX + 1 - 64)),
            (-1, (64, BACKLOG_MAX + 1 - 64), (64, BACKLOG_MAX + 1 - 64)),
        ] {
            assert_eq!((share(backlog, false), share(backlog, true)), (kernels, ours), "{backlog}");
        }
    }

    #[test]
    fn only_our_own_addresses_can_be_bound_where_they_are_known() {
        let ours = [IpAddr::from([10, 0, 0, 1])];
        assert_eq!(check_ours(&ours, ours[0]), Ok(()));
        assert_eq!(check_ours(&ours, IpAddr::from([0, 0, 0, 0])), Ok(()));
        let other = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(check_ours(&ours, other), Err(Error::AddressNotAvailable));
        assert_eq!(check_ours(&[], other), Ok(()));
    }
}
