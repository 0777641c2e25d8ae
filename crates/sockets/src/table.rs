//! The descriptor table: descriptors, the objects that they stand for, and the effects of calls and
//! completions on others.
//!
//! Objects are values that know neither the table nor each other: [`StreamSocket`], [`Listener`],
//! [`DatagramSocket`], [`Pipe`], [`EventCounter`], and the sets of [`EpollSets`]. A call
//! (`calls/`) looks an object up, gives it one attempt, and has the table apply the effects: the
//! events that watchers and waiters are notified of, and the addresses that are free again. A
//! completion takes the same way (`table/completions.rs`). Waiting is the part of
//! [`crate::Context`] and [`crate::SharedContext`].
//!
//! Read first: `effects.rs`, `transport.rs`; then `stream.rs` and `listener.rs`.
//! `table/polling.rs` drives the channel, `table/watching.rs` notifies sets and waiters.
//!
//! Invariants
//! - The cookie of a handle in the channel is the index of its object; a listener's is that of its
//!   group (`reuseport_group.rs`); [`crate::transport::CLOSED`] where the object is gone and its
//!   last bytes are not sent.
//! - An object lives as long as a descriptor stands for it, it waits in a listener's queue, or a
//!   close waits for its end to be delivered.
//! - No reference to memory of the channel leaves an attempt: bytes are copied into and out of
//!   the caller's.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

use megapipe::{Backend, ServerConfig};

use crate::config::{Config, CreateError};
use crate::counter::EventCounter;
use crate::datagram::DatagramSocket;
use crate::descriptors::{DescriptorTable, Fd, NumberReuse};
use crate::effects::Released;
use crate::epoll_set::EpollSets;
use crate::error::Error;
use crate::fallible_box::FallibleBox;
use crate::flags::{Events, OpenFlags};
use crate::foreign_fds::Lookout;
use crate::index_table::{IndexTable, TableEntry};
use crate::limits::NIL;
use crate::listener::Listener;
use crate::options::StackDefaults;
use crate::pipe::Pipe;
use crate::polled_channel::PolledChannel;
use crate::ports::LocalPorts;
use crate::reuseport_group::ReuseportGroups;
use crate::stream::{Blank, StreamSocket};
use crate::transport::ObjectTransport;

mod completions;
mod polling;
mod watching;

/// What a descriptor stands for (POSIX's open file description). Each begins a line of the cache,
/// with what every message touches in front.
#[repr(C, align(64))]
pub(crate) struct SocketObject {
    /// The first item of a set that watches it.
    pub(crate) watchers: u32,
    /// Threads that wait for it.
    pub(crate) sleepers: u32,
    /// The poll that brought the bytes last read from it.
    pub(crate) served_in: u32,
    /// The poll after which a call on it last found nothing.
    pub(crate) blocked_in: u32,
    /// Descriptors that stand for it.
    pub(crate) descriptors: u32,
    /// Entries for it in [`Sockets::wakes`].
    wakes: u16,
    /// Calls on it do not wait.
    pub(crate) nonblocking: bool,
    pub(crate) kind: ObjectKind,
}

// A place of the table that is free costs no line of its own.
const _: () = assert!(size_of::<TableEntry<SocketObject>>() == size_of::<SocketObject>());
// Nor does a listener need more than a connection.
const _: () = assert!(size_of::<Listener>() <= size_of::<StreamSocket>());

pub(crate) enum ObjectKind {
    Stream(StreamSocket),
    Listener(Listener),
    Datagram(FallibleBox<DatagramSocket>),
    Pipe(PipeEnd),
    Counter(EventCounter),
    Epoll(u32),
}

/// One end of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PipeEnd {
    pipe: u32,
    pub(crate) is_reader: bool,
}

/// A pipe, and the objects of its ends.
struct SharedPipe {
    pipe: Pipe,
    reader: u32,
    writer: u32,
}

/// What a descriptor that is to be watched stands for.
pub(crate) enum NamedFd {
    /// An object of the context.
    Object(u32),
    /// A number of the process, which may stand for nothing.
    Process(RawFd),
}

impl ObjectKind {
    /// How it was opened, as F_GETFL tells.
    pub(crate) const fn access(&self) -> i32 {
        match self {
            Self::Pipe(PipeEnd { is_reader: true, .. }) => libc::O_RDONLY,
            Self::Pipe(_) => libc::O_WRONLY,
            _ => libc::O_RDWR,
        }
    }

    pub(crate) const fn is_socket(&self) -> bool {
        matches!(self, Self::Stream(_) | Self::Listener(_) | Self::Datagram(_))
    }
}

/// The sockets of a context, and the channel that carries them. Its calls are made by way of a
/// context ([`crate::Bsd`]).
pub struct Sockets {
    // Before the channel: what they hold are its buffers.
    pub(crate) objects: IndexTable<SocketObject>,
    pub(crate) descriptors: DescriptorTable,
    pub(crate) sets: EpollSets,
    pub(crate) lookout: Lookout,
    /// Numbers below the first descriptor are the process's.
    pub(crate) process_below_first: bool,
    /// A listener that is closed hands back what it has accepted in advance.
    hands_back: bool,
    pipes: IndexTable<SharedPipe>,
    pub(crate) channel: PolledChannel,
    /// Connections that were closed and still have bytes to send.
    pub(crate) closing: usize,
    pub(crate) ports: LocalPorts,
    pub(crate) groups: ReuseportGroups,
    pub(crate) defaults: StackDefaults,
    /// Objects that threads wait for and that something happened to: each once, a set once for each
    /// event, at most as often as threads wait for it ([`Sockets::reserve_wakes`]).
    pub(crate) wakes: Vec<u32>,
    /// A completion came or an event happened, for any object, since this was last read: threads
    /// that wait in poll(2) or select(2) look again.
    pub(crate) happened: bool,
}

impl SocketObject {
    /// Something happened to an object, whose index is `object`: the threads that wait for it are
    /// to be woken, of those that wait for a set one.
    #[inline]
    fn wake_sleepers(&mut self, object: u32, wakes: &mut Vec<u32>) {
        let most = match self.kind {
            ObjectKind::Epoll(_) => self.sleepers,
            _ => self.sleepers.min(1),
        };
        if u32::from(self.wakes) < most && self.wakes < u16::MAX {
            self.wakes += 1;
            wakes.push(object);
        }
    }
}

impl Sockets {
    pub(crate) fn create(config: Config) -> Result<Self, CreateError> {
        let Config { channel, descriptors, first_descriptor, process_below_first, .. } = config;
        let Config { freshness, clock, rest_below, reuse_after, hand_back: hands_back, .. } =
            config;
        let reuse = match rest_below {
            0 => NumberReuse::After(reuse_after),
            below => NumberReuse::RestsBelow(below),
        };
        // With descriptors behind them, the kernel's sockets take any option of the kernel's. What
        // may be unsent is SO_SNDBUF's to say, and bounded here.
        let channel = channel
            .lwsockets(false)
            .partition(false)
            .nagle(true)
            .interruptible(true)
            .unsolicited_events(true);
        let channel = channel.unsent_bytes_max(usize::MAX);
        let (addresses, defaults) = match &channel.backend {
            Backend::Local(network) => {
                (network.addresses().collect(), StackDefaults::of(network.settings()))
            }
            _ => (Vec::new(), StackDefaults::of(&ServerConfig::default())),
        };
        let has_others = matches!(channel.backend, Backend::Service(_));
        let mut channel = PolledChannel::create(channel, clock, freshness)?;
        // Those of a daemon are known when the channel is attached.
        let addresses = if addresses.is_empty() { channel.stack_addresses() } else { addresses };
        Ok(Self {
            objects: IndexTable::default(),
            descriptors: DescriptorTable::new(first_descriptor, descriptors as usize, reuse),
            sets: EpollSets::default(),
            lookout: Lookout::default(),
            process_below_first,
            hands_back,
            pipes: IndexTable::default(),
            channel,
            closing: 0,
            ports: match has_others {
                true => LocalPorts::of(addresses).searching_from(fastrand::u16(..)),
                false => LocalPorts::of(addresses),
            },
            groups: ReuseportGroups::default(),
            defaults,
            wakes: Vec::new(),
            happened: false,
        })
    }

    /// Whether our own stack serves the sockets, and not the kernel's.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        self.channel.is_local()
    }

    /// Time since the clock's origin.
    pub(crate) fn now(&self) -> Duration {
        self.channel.now()
    }

    // -- objects and descriptors

    #[inline]
    pub(crate) fn object(&self, index: u32) -> Option<&SocketObject> {
        self.objects.get(index)
    }

    #[inline]
    pub(crate) fn object_mut(&mut self, index: u32) -> Option<&mut SocketObject> {
        self.objects.get_mut(index)
    }

    /// Makes room for `count` more objects, beside those of connections that the channel was asked
    /// for.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn reserve_objects(&mut self, count: usize) -> Result<(), Error> {
        self.objects.reserve(self.groups.asked_of_all() + count)
    }

    /// A new object, for which there is room.
    pub(crate) fn insert(&mut self, kind: ObjectKind, nonblocking: bool) -> u32 {
        let object = SocketObject {
            kind,
            descriptors: 0,
            nonblocking,
            watchers: NIL,
            sleepers: 0,
            wakes: 0,
            blocked_in: self.channel.polls().wrapping_sub(1),
            served_in: self.channel.polls().wrapping_sub(1),
        };
        self.objects.insert(object)
    }

    /// Makes room for a new object and its descriptor. Returns the descriptor.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`], [`Error::NoMemory`].
    pub(crate) fn reserve_one(&mut self) -> Result<Fd, Error> {
        let fd = self.descriptors.lowest_free(0)?;
        self.reserve_objects(1)?;
        Ok(fd)
    }

    /// A descriptor for a new object.
    pub(crate) fn open(&mut self, kind: ObjectKind, flags: OpenFlags) -> Result<Fd, Error> {
        let fd = self.reserve_one()?;
        let object = self.insert(kind, flags.contains(OpenFlags::NONBLOCK));
        self.name(fd, object, flags)?;
        Ok(fd)
    }

    /// One more descriptor for an object; the descriptor is free.
    pub(crate) fn name(&mut self, fd: Fd, object: u32, flags: OpenFlags) -> Result<(), Error> {
        self.descriptors.set(fd, object, flags.contains(OpenFlags::CLOEXEC))?;
        if let Some(entry) = self.object_mut(object) {
            entry.descriptors += 1;
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, fd: Fd) -> Result<(), Error> {
        let object = self.descriptors.remove(fd)?;
        self.unname(object);
        Ok(())
    }

    /// Closes every descriptor.
    pub(crate) fn close_all(&mut self) {
        let mut from = 0;
        while let Some(fd) = self.descriptors.next_open(from) {
            // It is open.
            let _ = self.close(fd);
            from = fd.saturating_add(1);
        }
    }

    /// One descriptor less stands for an object; after the last one it is gone.
    pub(crate) fn unname(&mut self, object: u32) {
        let Some(entry) = self.object_mut(object) else { return };
        entry.descriptors = entry.descriptors.saturating_sub(1);
        if entry.descriptors == 0 {
            self.free(object);
        }
    }

    fn free(&mut self, object: u32) {
        self.forget_watchers(object);
        self.give_back_at_close(object);
        let is_listener =
            matches!(self.object(object).map(|it| &it.kind), Some(ObjectKind::Listener(_)));
        if is_listener && !self.is_local() {
            self.take_all_connections(object);
        }
        let Some(entry) = self.objects.remove(object) else { return };
        if entry.sleepers > 0 && entry.wakes == 0 {
            self.wakes.push(object);
        }
        self.channel.note_uncounted();
        match entry.kind {
            ObjectKind::Stream(stream) => {
                let released = stream.close(&mut self.channel);
                self.release(released);
            }
            ObjectKind::Listener(listener) => self.close_listener(object, listener),
            ObjectKind::Datagram(socket) => {
                let released = socket.into_inner().close(&mut self.channel);
                self.release(released);
            }
            ObjectKind::Pipe(end) => self.close_pipe(end),
            ObjectKind::Counter(_) => {}
            ObjectKind::Epoll(set) => self.close_set(set),
        }
    }

    /// A listener of the kernel's is about to go: takes what the channel was asked for and has, so
    /// that it is reset like what is in the queue. The channel would close it in order.
    fn take_all_connections(&mut self, object: u32) {
        // What one poll brings is asked for again, which may bring more.
        while let Some(before) = self.listener(object).map(Listener::queued) {
            // A link that is gone has nothing to be reset.
            let polled = self.poll_channel(Some(Duration::ZERO));
            let after = self.listener(object).map_or(0, Listener::queued);
            if polled.is_err() || after <= before {
                return;
            }
        }
    }

    /// The listener is gone: connections that were not accepted are reset, or go to another
    /// listener at its address.
    fn close_listener(&mut self, object: u32, listener: Listener) {
        let bound = listener.bound;
        self.end_listening(object, listener);
        if let Some(bound) = bound {
            self.ports.release(bound);
        }
    }

    fn end_listening(&mut self, object: u32, mut listener: Listener) {
        let queue = listener.take_queue();
        if !self.hands_back {
            self.end_unaccepted(queue);
            self.leave_groups(object, &listener);
        } else {
            // It leaves first: a connection must not come back to it.
            self.leave_groups(object, &listener);
            self.end_unaccepted(queue);
        }
    }

    /// shutdown(2) of a listener: it is a fresh socket again, bound where it was, and calls that
    /// wait for connections end.
    ///
    /// # Errors
    /// As shutdown(2) and dup(2), of the kernel's socket.
    pub(crate) fn stop_listening(&mut self, object: u32) -> Result<(), Error> {
        if !self.is_local() {
            self.take_all_connections(object);
        }
        let Some(listener) = self.listener(object) else { return Ok(()) };
        let blank = match self.channel.kernel_socket(listener.handle()) {
            Some(socket) => {
                let socket = rustix::io::fcntl_dupfd_cloexec(socket, 0)?;
                rustix::net::shutdown(&socket, rustix::net::Shutdown::Read)?;
                Blank::Kernel(socket)
            }
            None => Blank::Local,
        };
        let stream = ObjectKind::Stream(listener.as_stream(blank));
        let Some(entry) = self.object_mut(object) else { return Ok(()) };
        if let ObjectKind::Listener(listener) = std::mem::replace(&mut entry.kind, stream) {
            if let Some(bound) = listener.bound {
                self.ports.stop_listening(bound);
            }
            self.end_listening(object, listener);
        }
        self.notify(object, Events::READABLE | Events::WRITABLE | Events::HUP);
        Ok(())
    }

    fn end_unaccepted(&mut self, queue: VecDeque<u32>) {
        for connection in queue {
            if let Some(entry) = self.objects.remove(connection)
                && let ObjectKind::Stream(stream) = entry.kind
            {
                let released = match self.hands_back {
                    true => stream.hand_back(&mut self.channel),
                    false => stream.reset(&mut self.channel),
                };
                self.release(released);
            }
        }
    }

    fn leave_groups(&mut self, object: u32, listener: &Listener) {
        for group in listener.groups() {
            match self.groups.leave(group, object) {
                Some(handle) => ObjectTransport::unregister(&mut self.channel, handle),
                None => self.request_at_group(group),
            }
        }
    }

    /// Asks for the connections that a listener has room for.
    pub(crate) fn request_connections(&mut self, object: u32) {
        let Some(groups) = self.listener(object).map(Listener::groups) else { return };
        for group in groups {
            self.request_at_group(group);
        }
    }

    /// Asks for the connections that a group's members have room for, and that there is memory for.
    fn request_at_group(&mut self, group: u32) {
        let members = self.groups.members(group).iter();
        let room = members.filter_map(|member| self.listener(*member)).map(Listener::room).sum();
        let mut more = self.groups.missing(group, room);
        if more > 0 && self.reserve_objects(more).is_err() {
            more = 1;
        }
        if more == 0 {
            return;
        }
        let reserved = self.reserve_objects(more);
        let requested = reserved.and_then(|()| self.groups.request(group, more, &mut self.channel));
        if requested == Err(Error::NoMemory) && self.groups.asked(group) == 0 {
            self.note_accept_error(group, Error::NoMemory);
        }
    }

    /// The listeners of a group that have no connection left report an error: to their programs,
    /// whose next accept(2) asks again.
    fn note_accept_error(&mut self, group: u32, error: Error) {
        let mut place = 0;
        while let Some(object) = self.groups.members(group).get(place).copied() {
            place += 1;
            let Some(listener) = self.listener_mut(object) else { continue };
            if listener.queued() == 0 {
                let events = listener.on_error(error);
                self.notify(object, events);
            }
        }
    }

    /// Frees what is left of a closed stream.
    pub(crate) fn release(&mut self, released: Released) {
        if let Some(bound) = released.bound {
            self.ports.release(bound);
        }
        self.closing += usize::from(released.is_sending);
    }

    // -- objects by their kind

    /// The object of a socket's descriptor.
    ///
    /// # Errors
    /// [`Error::NotASocket`], [`Error::BadDescriptor`].
    #[inline]
    pub(crate) fn socket_of(&self, fd: Fd) -> Result<u32, Error> {
        let object = self.descriptors.object(fd)?;
        match self.object(object) {
            Some(entry) if entry.kind.is_socket() => Ok(object),
            Some(_) => Err(Error::NotASocket),
            None => Err(Error::BadDescriptor),
        }
    }

    #[inline]
    pub(crate) fn is_datagram(&self, object: u32) -> bool {
        matches!(self.object(object).map(|entry| &entry.kind), Some(ObjectKind::Datagram(_)))
    }

    /// A stream and its transport.
    #[inline]
    pub(crate) fn stream_mut(
        &mut self,
        object: u32,
    ) -> Option<(&mut StreamSocket, &mut PolledChannel)> {
        let Self { objects, channel, .. } = self;
        match &mut objects.get_mut(object)?.kind {
            ObjectKind::Stream(stream) => Some((stream, channel)),
            _ => None,
        }
    }

    /// A listener.
    pub(crate) fn listener(&self, object: u32) -> Option<&Listener> {
        match &self.object(object)?.kind {
            ObjectKind::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    fn listener_mut(&mut self, object: u32) -> Option<&mut Listener> {
        match &mut self.object_mut(object)?.kind {
            ObjectKind::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// A datagram socket and its transport.
    pub(crate) fn datagram_mut(
        &mut self,
        object: u32,
    ) -> Option<(&mut DatagramSocket, &mut PolledChannel)> {
        let Self { objects, channel, .. } = self;
        match &mut objects.get_mut(object)?.kind {
            ObjectKind::Datagram(socket) => Some((socket, channel)),
            _ => None,
        }
    }

    /// Runs a call on a datagram socket that takes or frees a local address.
    ///
    /// # Errors
    /// Those of the call; [`Error::NotASocket`].
    pub(crate) fn with_datagram<T, F>(&mut self, object: u32, call: F) -> Result<T, Error>
    where
        F: FnOnce(&mut DatagramSocket, &mut LocalPorts, &mut PolledChannel) -> Result<T, Error>,
    {
        let Self { objects, ports, channel, .. } = self;
        match objects.get_mut(object).map(|entry| &mut entry.kind) {
            Some(ObjectKind::Datagram(socket)) => call(socket, ports, channel),
            _ => Err(Error::NotASocket),
        }
    }

    /// Lets a call read from a stream; `None`: nothing was read. The items that watch the stream
    /// are settled: they have nothing to report but what it is ready for afterwards.
    #[inline]
    pub(crate) fn read_stream(
        &mut self,
        object: u32,
        read: impl FnOnce(&mut StreamSocket, &mut PolledChannel) -> Option<Result<usize, Error>>,
    ) -> Option<Result<usize, Error>> {
        let Self { objects, channel, sets, .. } = self;
        let entry = objects.get_mut(object)?;
        let ObjectKind::Stream(stream) = &mut entry.kind else { return None };
        let result = read(stream, channel)?;
        sets.settle(entry.watchers, stream.readiness());
        if result.is_ok_and(|len| len > 0) {
            entry.served_in = channel.polls();
        }
        Some(result)
    }

    /// A call has looked at an object: the items that watch it are settled.
    pub(crate) fn settle(&mut self, object: u32) {
        let ready = self.readiness(object);
        if let Some(entry) = self.objects.get(object) {
            self.sets.settle(entry.watchers, ready);
        }
    }

    // -- pipes and counters

    /// A pipe: the objects of the end to read from, and of the one to write to.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn insert_pipe(&mut self, nonblocking: bool) -> Result<[u32; 2], Error> {
        self.reserve_objects(2)?;
        self.pipes.reserve(1)?;
        let pipe = self.pipes.next();
        let reader = self.insert(ObjectKind::Pipe(PipeEnd { pipe, is_reader: true }), nonblocking);
        let writer = self.insert(ObjectKind::Pipe(PipeEnd { pipe, is_reader: false }), nonblocking);
        self.pipes.insert(SharedPipe { pipe: Pipe::default(), reader, writer });
        Ok([reader, writer])
    }

    /// The pipe behind an end, and the object of the other end.
    pub(crate) fn pipe_mut(&mut self, end: PipeEnd) -> (&mut Pipe, u32) {
        let SharedPipe { pipe, reader, writer } = &mut self.pipes[end.pipe];
        (pipe, if end.is_reader { *writer } else { *reader })
    }

    fn close_pipe(&mut self, end: PipeEnd) {
        let (pipe, other) = self.pipe_mut(end);
        match pipe.close(end.is_reader) {
            Some(events) => self.notify(other, events),
            None => drop(self.pipes.remove(end.pipe)),
        }
    }

    /// An event counter.
    pub(crate) fn counter_mut(&mut self, object: u32) -> Option<&mut EventCounter> {
        match &mut self.object_mut(object)?.kind {
            ObjectKind::Counter(counter) => Some(counter),
            _ => None,
        }
    }

    /// The object is a set.
    pub(crate) fn is_set(&self, object: u32) -> bool {
        self.set_of_object(object).is_some()
    }

    /// A thread waits for an object, or does not any more.
    pub(crate) fn count_sleeper(&mut self, object: Option<u32>, more: bool) {
        let Some(entry) = object.and_then(|object| self.object_mut(object)) else { return };
        entry.sleepers = if more { entry.sleepers + 1 } else { entry.sleepers.saturating_sub(1) };
    }

    /// Makes room for what may happen before so many waiting threads are woken.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn reserve_wakes(&mut self, sleepers: usize) -> Result<(), Error> {
        // A call may change what it waits for between two deliveries, and objects go away.
        let most = 2 * (sleepers + 1);
        let missing = most.saturating_sub(self.wakes.len());
        self.wakes.try_reserve(missing).map_err(|_| Error::NoMemory)
    }

    /// The threads that wait for an object are being woken.
    pub(crate) fn clear_wakes(&mut self, object: u32) {
        if let Some(entry) = self.object_mut(object) {
            entry.wakes = 0;
        }
    }

    // -- readiness

    /// What an object is ready for now.
    #[inline]
    pub(crate) fn readiness(&self, object: u32) -> Events {
        readiness(&self.objects, &self.pipes, &self.sets, object)
    }
}

/// What an object is ready for now.
#[inline]
fn readiness(
    objects: &IndexTable<SocketObject>,
    pipes: &IndexTable<SharedPipe>,
    sets: &EpollSets,
    object: u32,
) -> Events {
    match objects.get(object).map(|entry| &entry.kind) {
        Some(ObjectKind::Stream(stream)) => stream.readiness(),
        Some(other) => readiness_of(objects, pipes, sets, other),
        None => Events::NVAL,
    }
}

#[inline(never)]
fn readiness_of(
    objects: &IndexTable<SocketObject>,
    pipes: &IndexTable<SharedPipe>,
    sets: &EpollSets,
    kind: &ObjectKind,
) -> Events {
    match kind {
        ObjectKind::Stream(stream) => stream.readiness(),
        ObjectKind::Listener(listener) => listener.readiness(),
        ObjectKind::Datagram(socket) => socket.readiness(),
        ObjectKind::Pipe(end) => pipes[end.pipe].pipe.readiness(end.is_reader),
        ObjectKind::Counter(counter) => counter.readiness(),
        // A set is readable when one of its items has something to report.
        ObjectKind::Epoll(set) => {
            let ready = |sets: &EpollSets, object| readiness(objects, pipes, sets, object);
            if sets.is_readable(*set, &ready) { Events::READABLE } else { Events::empty() }
        }
    }
}
