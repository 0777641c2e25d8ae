//! Connections and datagram sockets that other processes own too, on the back end `service`: the
//! child of a fork inherits them all, and a message passes one on.
//!
//! Read first: decision 0055; `stream.rs`.
//!
//! ```text
//!  parent  share_for_fork     one token owns all connections; unread bytes go back to the service
//!          fork
//!  parent  resume_after_fork  closes its copy of the token; goes on to read where a thread waits
//!  child   adopt_inherited    on first use of a socket, in a context of its own
//!
//!  sender    share_stream     a token owns one connection
//!  receiver  adopt_token      on first use
//! ```
//!
//! Invariant: between the fork and its program's next look at it, the parent reads nothing of a
//! connection ahead: bytes that arrive are the child's as well. Nor does a process that has adopted
//! one, before its program looks at it.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use megapipe::{Handle, ShareError, SharedConn, SharedEndpoint};

use crate::calls::epoll;
use crate::datagram::{DatagramSocket, InheritedDatagram};
use crate::descriptors::Fd;
use crate::error::Error;
use crate::fallible_box::FallibleBox;
use crate::flags::{EpollEvent, OpenFlags};
use crate::limits::NIL;
use crate::ports::{NoConnections, PortSpace};
use crate::readiness::ConnectProgress;
use crate::shared_context::SharedContext;
use crate::stream::{InheritedStream, StreamSocket};
use crate::table::{ObjectKind, Sockets};
use crate::transport::ObjectTransport;

/// A socket, as a child process inherits it.
#[derive(Debug, Clone)]
pub enum InheritedSocket {
    /// A connection.
    Stream(InheritedStream),
    /// A datagram socket.
    Datagram(InheritedDatagram),
}

impl InheritedSocket {
    /// Ends the ownership of the holder of a token by which it has the socket.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn release(&self, token: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Stream(stream) => match stream.shared_name() {
                Some(name) => megapipe::release_shared(token, &[name]),
                None => Ok(()),
            },
            Self::Datagram(socket) => {
                let names: Vec<SharedEndpoint> = socket.names().collect();
                megapipe::release_shared_endpoints(token, &names)
            }
        }
    }
}

/// What a child process inherits.
#[derive(Debug)]
pub struct SharedSockets {
    /// The token by which it attaches to the service.
    pub token: OwnedFd,
    /// The sockets.
    pub sockets: Vec<InheritedSocket>,
    /// By descriptor: the place of its socket.
    pub places: BTreeMap<Fd, usize>,
}

impl SharedContext {
    /// Prepares for a fork: all connections, also those that are being established, and datagram
    /// sockets that have descriptors belong to the child as well. `None`: there are none, or
    /// another back end has them. A service that does not answer delays the fork for some seconds
    /// at most.
    ///
    /// # Errors
    /// The service's refusal, or ETIMEDOUT; the child inherits nothing then.
    pub fn share_for_fork(&self) -> Result<Option<SharedSockets>, Error> {
        let shared = self.once_within(PATIENCE, Sockets::share_for_fork);
        shared.unwrap_or(Err(Error::TimedOut))
    }

    /// After the fork, in the parent.
    pub fn resume_after_fork(&self) {
        let mut context = self;
        // It does not fail.
        let _ = crate::CallRunner::once(&mut context, |sockets| {
            sockets.resume_after_fork();
            Ok(())
        });
    }

    /// The members of a set that are descriptors of this context: the number by which each joined
    /// ([`crate::Bsd::epoll_ctl_by_number`]), and what was asked for it. `fd_of` returns what a
    /// number stands for now; one that stands for something else is left out. No members where
    /// `set` is no set, or another thread does not leave the context in time.
    pub fn set_members(
        &self,
        set: Fd,
        fd_of: impl Fn(RawFd) -> Option<Fd>,
    ) -> Vec<(RawFd, EpollEvent)> {
        let members = self.once_within(PATIENCE, |sockets| epoll::members(sockets, set, fd_of));
        members.and_then(Result::ok).unwrap_or_default()
    }

    /// Adopts a socket that this process has inherited: its context was attached by the token. A
    /// connection that has ended meanwhile reports that, by its error.
    ///
    /// # Errors
    /// The service's refusal; as accept(2).
    pub fn adopt_inherited(&self, socket: &InheritedSocket) -> Result<Fd, Error> {
        let mut context = self;
        crate::CallRunner::once(&mut context, |sockets| match socket {
            InheritedSocket::Stream(stream) => sockets.adopt_inherited(stream),
            InheritedSocket::Datagram(socket) => sockets.adopt_inherited_datagram(socket),
        })
    }
}

impl SharedContext {
    /// Shares a connection or a datagram socket: returns a token, which any process may adopt. What
    /// has arrived and was not read is for the owner that reads next. Nothing is read ahead until
    /// the program looks, or [`SharedContext::resume_stream`].
    ///
    /// # Errors
    /// EOPNOTSUPP: another back end, no connection, or a datagram socket without an address; the
    /// service's refusal.
    pub fn share_stream(&self, fd: Fd) -> Result<OwnedFd, Error> {
        let mut context = self;
        crate::CallRunner::once(&mut context, |sockets| sockets.share_stream(fd))
    }

    /// Reads ahead again after [`SharedContext::share_stream`], if a thread or a set waits for it.
    pub fn resume_stream(&self, fd: Fd) {
        let mut context = self;
        // It does not fail.
        let _ = crate::CallRunner::once(&mut context, |sockets| {
            let object = sockets.descriptors.object(fd);
            object.into_iter().for_each(|object| sockets.resume_for_readers(object));
            Ok(())
        });
    }

    /// Adopts the connection or datagram socket of a token. Of one that this process has already,
    /// the descriptor is a duplicate.
    ///
    /// # Errors
    /// EBADF: it is no token of this service; ESTALE: what it stands for is over; the service's
    /// refusal; as accept(2).
    pub fn adopt_token(&self, token: BorrowedFd<'_>, is_nonblocking: bool) -> Result<Fd, Error> {
        let mut context = self;
        crate::CallRunner::once(&mut context, |sockets| sockets.adopt_token(token, is_nonblocking))
    }
}

/// A fork waits for calls of other threads no longer.
const PATIENCE: Duration = Duration::from_secs(1);

fn error_of(error: &ShareError) -> Error {
    Error::from_raw_os_error(error.raw_os_error())
}

/// The child has no descriptor of what the program has not accepted yet, or has closed and not sent
/// all of: it would keep that open for as long as it runs.
fn release_others(
    shared: &SharedSockets,
    (mut conns, mut endpoints): (Vec<SharedConn>, Vec<SharedEndpoint>),
) {
    let (mut known, mut known_endpoints) = (HashSet::new(), HashSet::new());
    for socket in &shared.sockets {
        match socket {
            InheritedSocket::Stream(stream) => known.extend(stream.shared_name()),
            InheritedSocket::Datagram(socket) => known_endpoints.extend(socket.names()),
        }
    }
    conns.retain(|name| !known.contains(name));
    endpoints.retain(|name| !known_endpoints.contains(name));
    // If the service does not read, they end with the child.
    if !conns.is_empty() {
        let _ = megapipe::release_shared(shared.token.as_fd(), &conns);
    }
    if !endpoints.is_empty() {
        let _ = megapipe::release_shared_endpoints(shared.token.as_fd(), &endpoints);
    }
}

impl Sockets {
    fn share_for_fork(&mut self) -> Result<Option<SharedSockets>, Error> {
        if self.channel.report().backend != "service" {
            return Ok(None);
        }
        let (streams, datagrams) = (self.shareable_streams(), self.shareable_datagrams());
        if streams.is_empty() && datagrams.is_empty() {
            return Ok(None);
        }
        let token = self.channel.share_all();
        if token.is_err() {
            // The service may have begun to keep datagrams before it refused.
            self.give_datagrams_back(&datagrams, true);
        }
        let token = token.map_err(|error| error_of(&error))?;
        // Completions that were on their way; connections come and end by them.
        let polled = self.poll_channel(Some(Duration::ZERO));
        let lost = self.give_back_unread();
        self.give_datagrams_back(&datagrams, false);
        let all = (self.channel.shared_names(), self.channel.shared_endpoint_names());
        for object in lost {
            let broken = self.stream_mut(object).map(|(stream, channel)| stream.break_off(channel));
            broken.into_iter().for_each(|events| self.notify(object, events));
        }
        let shared = self.inherited(token);
        release_others(&shared, all);
        if polled.is_err() {
            self.resume_after_fork();
        }
        polled.map(|()| Some(shared))
    }

    /// Those that a child may inherit. Of one that connects the service may not have sent the name.
    fn shareable_streams(&self) -> Vec<u32> {
        let streams = self.objects.iter().filter(|(_, entry)| {
            let ObjectKind::Stream(stream) = &entry.kind else { return false };
            stream.may_be_inherited()
        });
        streams.map(|(object, _)| object).collect()
    }

    /// What was read ahead is for the process that reads next. Returns the connections whose bytes
    /// the service has not taken.
    fn give_back_unread(&mut self) -> Vec<u32> {
        let mut streams = self.shareable_streams();
        streams.retain(|object| {
            let Some((stream, channel)) = self.stream_mut(*object) else { return false };
            if !stream.has_connection_to_share() || channel.shared_name(stream.handle).is_none() {
                return false;
            }
            let seen = stream.withhold();
            channel.give_back(stream.handle, &seen).is_err()
        });
        streams
    }

    /// What descriptors of sockets stand for.
    fn inherited(&mut self, token: OwnedFd) -> SharedSockets {
        let (mut sockets, mut places, mut by_object) =
            (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut from = 0;
        while let Some(fd) = self.descriptors.next_open(from) {
            from = fd.saturating_add(1);
            let Ok(object) = self.descriptors.object(fd) else { continue };
            if let Some(place) = by_object.get(&object) {
                places.insert(fd, *place);
                continue;
            }
            let inherited = self.inherited_stream(object).map(InheritedSocket::Stream);
            let inherited = inherited
                .or_else(|| self.inherited_datagram(object).map(InheritedSocket::Datagram));
            let Some(inherited) = inherited else { continue };
            places.insert(fd, sockets.len());
            by_object.insert(object, sockets.len());
            sockets.push(inherited);
        }
        SharedSockets { token, sockets, places }
    }

    fn inherited_stream(&mut self, object: u32) -> Option<InheritedStream> {
        let is_nonblocking = self.object(object).is_some_and(|entry| entry.nonblocking);
        let (stream, channel) = self.stream_mut(object)?;
        stream.for_child(is_nonblocking, |handle| channel.shared_name(handle))
    }

    fn resume_after_fork(&mut self) {
        self.channel.end_withholding();
        self.sets.withhold_all();
        let waiting = self.objects.iter().filter(|(_, entry)| entry.sleepers > 0);
        let waiting: Vec<u32> = waiting.map(|(object, _)| object).collect();
        waiting.into_iter().for_each(|object| self.resume_if_withheld(object));
        self.channel.note_uncounted();
    }

    /// The program looks at a socket: bytes of a connection are read ahead again, and datagrams
    /// are looked for. The same of the members of a set.
    pub(crate) fn resume(&mut self, object: u32) {
        if let Some((stream, channel)) = self.stream_mut(object) {
            stream.resume(channel);
        } else if let Some((socket, channel)) = self.datagram_mut(object) {
            let events = socket.look(channel);
            self.notify_any(object, events);
        } else if let Some(set) = self.set_of_object(object) {
            self.sets.end_withholding(set);
            let members = self.sets.objects_of(set);
            members.into_iter().for_each(|member| self.resume_if_withheld(member));
        }
    }

    /// As [`Sockets::resume`], where nothing was read ahead since a fork.
    #[inline]
    pub(crate) fn resume_if_withheld(&mut self, object: u32) {
        let is_withheld = self.object(object).is_some_and(|entry| match &entry.kind {
            ObjectKind::Epoll(set) => self.sets.is_withheld(*set),
            kind => is_withheld(kind),
        });
        if is_withheld {
            self.resume(object);
        }
    }

    fn share_stream(&mut self, fd: Fd) -> Result<OwnedFd, Error> {
        let object = self.descriptors.object(fd)?;
        if self.is_datagram(object) {
            return self.share_datagram(object);
        }
        let (stream, channel) = self.stream_mut(object).ok_or(Error::NotSupported)?;
        let is_connecting = matches!(stream.progress, ConnectProgress::Connecting);
        let is_known = !is_connecting || channel.shares_connecting();
        if !stream.has_connection_to_share() || !is_known {
            return Err(Error::NotSupported);
        }
        let handle = stream.handle;
        let token = channel.share_withheld(handle).map_err(|error| error_of(&error))?;
        stream.withheld = true;
        // Completions that were on their way; the connection may end by them.
        let polled = self.poll_channel(Some(Duration::ZERO));
        let given = match self.stream_mut(object) {
            Some((stream, channel)) => {
                let seen = stream.withhold();
                channel.give_back(handle, &seen)
            }
            None => Ok(()),
        };
        if given.is_err() {
            let broken = self.stream_mut(object).map(|(stream, channel)| stream.break_off(channel));
            broken.into_iter().for_each(|events| self.notify(object, events));
        }
        self.channel.note_uncounted();
        polled?;
        given.map(|()| token).map_err(|error| error_of(&error))
    }

    /// The last descriptor of a connection is about to be closed: what its program has not read is
    /// for the other owners.
    pub(crate) fn give_back_at_close(&mut self, object: u32) {
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        let is_connected = matches!(stream.progress, ConnectProgress::Connected);
        let has_nothing = stream.withheld && stream.unread() == 0;
        if !stream.shared || !is_connected || has_nothing {
            return;
        }
        let handle = stream.handle;
        // One that no other process owns any more ends as others do.
        if channel.withhold(handle).is_err() {
            return;
        }
        stream.withheld = true;
        // What the link may lack is found by the next call.
        let _ = self.poll_channel(Some(Duration::ZERO));
        if let Some((stream, channel)) = self.stream_mut(object) {
            let seen = stream.withhold();
            if channel.give_back(handle, &seen).is_err() {
                stream.break_off(channel);
            }
        }
    }

    fn resume_for_readers(&mut self, object: u32) {
        let entry = self.object(object);
        if entry.is_some_and(|entry| entry.watchers != NIL || entry.sleepers > 0) {
            self.resume_if_withheld(object);
        }
        self.channel.note_uncounted();
    }

    fn adopt_token(&mut self, token: BorrowedFd<'_>, is_nonblocking: bool) -> Result<Fd, Error> {
        let fd = self.reserve_one()?;
        let handle = match self.channel.adopt_shared_connection(token, 0) {
            Ok(handle) => handle,
            Err(ShareError::Known { handle }) => {
                let object = self.object_of(handle).ok_or(Error::NotSupported)?;
                self.name(fd, object, OpenFlags::empty())?;
                return Ok(fd);
            }
            // What it was connected to, and so its family, the service does not know any more.
            Err(ShareError::NotConnected(error)) => {
                let inherited = InheritedStream::passed(false, is_nonblocking);
                return self.insert_over(fd, &inherited.not_connected(error.into()));
            }
            Err(error) => {
                let error = error_of(&error);
                return match error.raw_os_error() {
                    // It is no connection's.
                    libc::ESTALE => self.adopt_token_of_datagrams(token, is_nonblocking),
                    _ => Err(error),
                };
            }
        };
        let local = ObjectTransport::local_address(&mut self.channel, handle);
        let is_v6 = local.is_some_and(|address| address.is_ipv6());
        let inherited = InheritedStream::passed(is_v6, is_nonblocking);
        self.insert_adopted((fd, handle), &inherited)
    }

    /// The object of a connection or datagram socket.
    fn object_of(&self, handle: Handle) -> Option<u32> {
        let mut objects = self.objects.iter();
        let has = |kind: &ObjectKind| match kind {
            ObjectKind::Stream(stream) => stream.handle == handle,
            ObjectKind::Datagram(socket) => socket.handles_by_side().contains(&handle),
            _ => false,
        };
        objects.find(|(_, entry)| has(&entry.kind)).map(|(object, _)| object)
    }

    fn adopt_inherited(&mut self, inherited: &InheritedStream) -> Result<Fd, Error> {
        let fd = self.reserve_one()?;
        let Some(name) = inherited.shared_name() else { return self.insert_over(fd, inherited) };
        match self.channel.adopt_inherited(name, 0) {
            Ok(handle) => self.insert_adopted((fd, handle), inherited),
            Err(ShareError::NotConnected(error)) => {
                self.insert_over(fd, &inherited.not_connected(error.into()))
            }
            // It ended while no process used it.
            Err(error) if error.raw_os_error() == libc::ESTALE => {
                self.insert_over(fd, &inherited.ended(Error::Reset))
            }
            Err(error) => Err(error_of(&error)),
        }
    }

    fn insert_adopted(
        &mut self,
        (fd, handle): (Fd, Handle),
        inherited: &InheritedStream,
    ) -> Result<Fd, Error> {
        let is_connecting = self.channel.is_connecting(handle);
        let channel = &mut self.channel;
        let stream = StreamSocket::inherited(inherited, (handle, is_connecting), channel);
        let object = self.insert(ObjectKind::Stream(stream), inherited.is_nonblocking());
        // The handle is known: it was adopted just now.
        let _ = ObjectTransport::set_cookie(&mut self.channel, handle, object.into());
        self.name(fd, object, OpenFlags::empty())?;
        Ok(fd)
    }

    /// A connection that is over, or was not established: nothing of it is shared.
    fn insert_over(&mut self, fd: Fd, inherited: &InheritedStream) -> Result<Fd, Error> {
        let stream = StreamSocket::inherited_over(inherited);
        let object = self.insert(ObjectKind::Stream(stream), inherited.is_nonblocking());
        self.name(fd, object, OpenFlags::empty())?;
        Ok(fd)
    }
}

/// Whether the service is to be asked for what a socket has received when its program looks at it.
#[inline]
fn is_withheld(kind: &ObjectKind) -> bool {
    match kind {
        ObjectKind::Stream(stream) => stream.withheld,
        ObjectKind::Datagram(socket) => socket.is_shared(),
        _ => false,
    }
}

/// Datagram sockets.
impl Sockets {
    /// Those that a child inherits: of a service that shares endpoints.
    fn shareable_datagrams(&mut self) -> Vec<u32> {
        let datagrams =
            self.objects.iter().filter(|(_, entry)| matches!(&entry.kind, ObjectKind::Datagram(_)));
        let mut objects: Vec<u32> = datagrams.map(|(object, _)| object).collect();
        objects.retain(|object| self.inherited_datagram(*object).is_some());
        objects
    }

    fn inherited_datagram(&mut self, object: u32) -> Option<InheritedDatagram> {
        let is_nonblocking = self.object(object).is_some_and(|entry| entry.nonblocking);
        let (socket, channel) = self.datagram_mut(object)?;
        let mut names = [None; 2];
        for (name, handle) in names.iter_mut().zip(socket.handles_by_side()) {
            if handle != Handle::NONE {
                *name = Some(channel.shared_endpoint_name(handle)?);
            }
        }
        Some(socket.for_child(names, is_nonblocking))
    }

    /// Datagrams of these sockets wait at the service from now on, also those that their programs
    /// have not read. The service drops what it has no room for. `asks`: of some sockets perhaps.
    fn give_datagrams_back(&mut self, objects: &[u32], asks: bool) {
        for object in objects {
            let Some((socket, channel)) = self.datagram_mut(*object) else { continue };
            let is_shared = |handle| !asks || channel.await_shared_datagram(handle).is_some();
            for (handle, unread) in socket.share(is_shared) {
                // What the service refuses is lost, as datagrams are.
                let _ = channel.give_datagrams_back(handle, unread);
            }
        }
    }

    fn share_datagram(&mut self, object: u32) -> Result<OwnedFd, Error> {
        let (socket, channel) = self.datagram_mut(object).ok_or(Error::NotSupported)?;
        let handles = socket.handles_by_side().into_iter();
        let handles: Vec<_> = handles.filter(|handle| *handle != Handle::NONE).collect();
        if handles.is_empty() || channel.shared_endpoint_name(handles[0]).is_none() {
            return Err(Error::NotSupported);
        }
        let token = channel.share_datagram_sockets(&handles);
        // Completions that were on their way. What the link may lack is found by the next call.
        let _ = self.poll_channel(Some(Duration::ZERO));
        self.give_datagrams_back(&[object], token.is_err());
        self.channel.note_uncounted();
        token.map_err(|error| error_of(&error))
    }

    fn adopt_token_of_datagrams(
        &mut self,
        token: BorrowedFd<'_>,
        is_nonblocking: bool,
    ) -> Result<Fd, Error> {
        let fd = self.reserve_one()?;
        let adopted = match self.channel.adopt_datagram_sockets(token) {
            Ok(adopted) => adopted,
            Err(ShareError::Known { handle }) => {
                let object = self.object_of(handle).ok_or(Error::NotSupported)?;
                self.name(fd, object, OpenFlags::empty())?;
                return Ok(fd);
            }
            Err(error) => return Err(error_of(&error)),
        };
        let passed = InheritedDatagram::passed(&adopted, is_nonblocking);
        let passed = passed.ok_or(Error::NotSupported)?;
        let mut handles = [Handle::NONE; 2];
        for socket in &adopted {
            // The second side is IPv4's, of a socket for both families.
            let side = adopted.len() > 1 && socket.local.is_ipv4();
            handles[usize::from(side)] = socket.handle;
        }
        self.insert_datagram(fd, &passed, handles)
    }

    fn adopt_inherited_datagram(&mut self, inherited: &InheritedDatagram) -> Result<Fd, Error> {
        let fd = self.reserve_one()?;
        let mut handles = [Handle::NONE; 2];
        for (handle, name) in handles.iter_mut().zip(inherited.names_by_side()) {
            let Some(name) = name else { continue };
            match self.channel.adopt_inherited_endpoint(name, 0) {
                Ok(adopted) => *handle = adopted,
                Err(error) => {
                    self.leave_adopted(handles);
                    return Err(error_of(&error));
                }
            }
        }
        self.insert_datagram(fd, inherited, handles)
    }

    fn leave_adopted(&mut self, handles: [Handle; 2]) {
        for handle in handles.into_iter().filter(|handle| *handle != Handle::NONE) {
            ObjectTransport::unregister(&mut self.channel, handle);
        }
    }

    fn insert_datagram(
        &mut self,
        fd: Fd,
        inherited: &InheritedDatagram,
        handles: [Handle; 2],
    ) -> Result<Fd, Error> {
        // Without an entry the port can be asked for again, which the service refuses.
        let sharing = inherited.options.sharing;
        let bound = inherited.bound.and_then(|address| {
            self.ports.bind(PortSpace::Udp, address, sharing, &mut NoConnections).ok()
        });
        let socket = DatagramSocket::inherited(inherited, handles, bound);
        let Ok(socket) = FallibleBox::try_new(socket) else {
            bound.into_iter().for_each(|bound| self.ports.release(bound));
            self.leave_adopted(handles);
            return Err(Error::NoMemory);
        };
        let kind = ObjectKind::Datagram(socket);
        let object = self.insert(kind, inherited.is_nonblocking);
        for handle in handles.into_iter().filter(|handle| *handle != Handle::NONE) {
            // The handle is known: it was adopted just now.
            let _ = ObjectTransport::set_cookie(&mut self.channel, handle, object.into());
        }
        self.name(fd, object, OpenFlags::empty())?;
        Ok(fd)
    }
}
