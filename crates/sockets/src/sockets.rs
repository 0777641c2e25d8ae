//! All of a context's sockets: a step of each call that never waits, and what completions do to
//! them.
//!
//! A call is an *attempt*: it does what can be done now, or says what it would have to wait for
//! ([`Attempt`]). Who waits, and how, is the part of [`crate::Context`] and
//! [`crate::SharedContext`]. Between attempts, [`Sockets::turn`] drives the channel and hands each
//! completion to the object that it is about.
//!
//! Read first: `readiness.rs`; then `stream.rs` and `listener.rs`, and `epoll.rs` for who is told.
//!
//! Invariants
//! - The cookie of a handle in the channel is the index of its object; a listener's is that of its
//!   door (`door.rs`); [`CLOSED`] where the object
//!   is gone and its last bytes are not out yet.
//! - An object lives as long as a descriptor stands for it, it waits in a listener's queue, or a
//!   close waits for its end to be delivered.
//! - Nothing that refers to the channel's memory leaves an attempt: bytes are copied to and from
//!   the caller's.

use std::net::IpAddr;
use std::time::Duration;

use megapipe::{Backend, Channel, Clock, Completion, DispatchError, Event, Rest, ServerConfig};
use slab::Slab;

use crate::context::{Config, CreateError};
use crate::datagram::Endpoint;
use crate::descriptors::{Descriptors, Fd};
use crate::door::Doors;
use crate::epoll::Epolls;
use crate::error::Error;
use crate::flags::{Events, OpenFlags};
use crate::kernel;
use crate::limits::{CALLS_PER_CHECK, CALLS_TO_FIRST_CHECK, CHECKS_PER_TURN, TURN_AGE_MAX};
use crate::listener::Listener;
use crate::options::StackDefaults;
use crate::pipe::{Counter, Pipe, PipeEnd};
use crate::ports::Ports;
use crate::process::Lookout;
use crate::signal::SignalMask;
use crate::stream::Stream;

/// No item, no object: the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// The cookie of a connection that no descriptor stands for any more, and that has bytes to send.
pub(crate) const CLOSED: u64 = u64::MAX;

/// What came of an attempt.
#[derive(Debug)]
pub enum Attempt<T> {
    /// The call is over.
    Done(Result<T, Error>),
    /// It has to wait.
    Wait(Wait),
}

impl<T> Attempt<T> {
    /// If it waits, then with that mask.
    pub(crate) fn masked(self, mask: Option<SignalMask>) -> Self {
        match self {
            Self::Wait(wait) => Self::Wait(Wait { mask, ..wait }),
            done @ Self::Done(_) => done,
        }
    }
}

/// What a signal does to a call that waits, as in signal(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// It goes on, if the handler was installed with SA_RESTART; else it ends with EINTR.
    MayRestart,
    /// It ends with EINTR: what waits for several descriptors, or has a time-out.
    Ends,
    /// It ends with what was done of it so far.
    EndsWithPart,
}

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The object whose readiness matters; `None`: anything may.
    pub on: Option<u32>,
    /// From the first attempt on; `None`: for ever. When it is over, the call is tried once more
    /// and told so.
    pub timeout: Option<Duration>,
    pub(crate) on_signal: OnSignal,
    /// The signals that are blocked meanwhile; `None`: those that the thread blocks.
    pub(crate) mask: Option<SignalMask>,
}

impl Wait {
    pub(crate) const fn on(object: u32, timeout: Option<Duration>) -> Self {
        let on_signal = match timeout {
            Some(_) => OnSignal::Ends,
            None => OnSignal::MayRestart,
        };
        Self { on: Some(object), timeout, on_signal, mask: None }
    }

    /// For a set, whose calls no handler restarts.
    pub(crate) const fn on_set(set: u32, timeout: Option<Duration>) -> Self {
        Self { on: Some(set), timeout, on_signal: OnSignal::Ends, mask: None }
    }

    pub(crate) const fn on_anything(timeout: Option<Duration>) -> Self {
        Self { on: None, timeout, on_signal: OnSignal::Ends, mask: None }
    }

    /// Some of what was asked for is done already.
    pub(crate) const fn with_part(mut self, has_part: bool) -> Self {
        if has_part {
            self.on_signal = OnSignal::EndsWithPart;
        }
        self
    }
}

/// What a descriptor stands for (POSIX's open file description). Each begins a line of the cache,
/// with what every message touches in front.
#[repr(C, align(64))]
pub(crate) struct Object {
    /// The first item of a set that watches it.
    pub(crate) watchers: u32,
    /// Threads that wait for it.
    pub(crate) sleepers: u32,
    /// The turn in which bytes were last read from it.
    pub(crate) served_in: u32,
    /// The turn in which a call on it last found nothing.
    pub(crate) blocked_in: u32,
    /// Descriptors that stand for it.
    pub(crate) descriptors: u32,
    /// Calls on it do not wait.
    pub(crate) nonblocking: bool,
    pub(crate) kind: Kind,
}

// A place of the table that is free costs no line of its own.
const _: () = assert!(size_of::<Option<Object>>() == size_of::<Object>());

#[expect(clippy::large_enum_variant, reason = "nearly all are connections; a box is an allocation")]
pub(crate) enum Kind {
    Stream(Stream),
    Listener(Box<Listener>),
    Datagram(Box<Endpoint>),
    Pipe(PipeEnd),
    Counter(Counter),
    Epoll(u32),
}

impl Kind {
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

/// Where the count of calls starts after a turn, so that the first check of the turn's age comes
/// after [`CALLS_TO_FIRST_CHECK`] calls.
const CALLS_AFTER_TURN: u32 = CALLS_PER_CHECK - CALLS_TO_FIRST_CHECK;

/// The sockets of a context, and the channel that carries them. Its calls are made by way of a
/// context ([`crate::Bsd`]).
pub struct Sockets {
    // Before the channel: what they hold are its buffers.
    pub(crate) objects: Slab<Object>,
    pub(crate) table: Descriptors,
    pub(crate) epolls: Epolls,
    pub(crate) lookout: Lookout,
    /// Numbers below the first descriptor are the process's.
    pub(crate) process_below_first: bool,
    pub(crate) pipes: Slab<Pipe>,
    pub(crate) channel: Channel,
    /// Connections that were closed and still have bytes to send.
    pub(crate) closing: usize,
    pub(crate) ports: Ports,
    pub(crate) doors: Doors,
    /// Our addresses where the stack is our own; none: the kernel's, or not known here.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) is_local: bool,
    pub(crate) defaults: StackDefaults,
    /// Objects that threads wait for and that something happened to.
    pub(crate) wakes: Vec<u32>,
    /// A completion came, for anybody, since this was last looked at.
    pub(crate) happened: bool,
    clock: Clock,
    /// It is the stack's as well.
    shares_clock: bool,
    turns: u32,
    /// Calls that returned without waiting since the last turn, counted from
    /// [`CALLS_AFTER_TURN`] on.
    calls: u32,
    /// On the clock.
    turned_at: Duration,
    freshness: Duration,
    /// Operations asked of the channel when they were last handed over.
    handed_over: u64,
    /// A signal ended the wait of the last turn.
    pub(crate) interrupted: bool,
    /// The channel is not ready for sleep: something was asked that is not counted among its
    /// operations, or it was turned since.
    pub(crate) is_restless: bool,
}

impl Sockets {
    pub(crate) fn create(config: Config) -> Result<Self, CreateError> {
        let Config { channel, descriptors, first_descriptor, process_below_first, .. } = config;
        let Config { freshness, clock, rest_below, .. } = config;
        // With descriptors behind them, the kernel's sockets take any option of the kernel's.
        let channel =
            channel.lwsockets(false).partition(false).nagle(true).interruptible(true).asides(true);
        let (addresses, defaults) = match &channel.backend {
            Backend::Local(network) => {
                (network.addresses().collect(), StackDefaults::of(network.settings()))
            }
            _ => (Vec::new(), StackDefaults::of(&ServerConfig::default())),
        };
        let shares_clock = matches!(
            &channel.backend, Backend::Local(network) if network.settings().clock == clock
        );
        let is_local = channel.backend.name() == "local";
        Ok(Self {
            objects: Slab::new(),
            table: Descriptors::new(first_descriptor, descriptors as usize, rest_below),
            epolls: Epolls::default(),
            lookout: Lookout::default(),
            process_below_first,
            pipes: Slab::new(),
            channel: Channel::create(channel)?,
            closing: 0,
            ports: Ports::default(),
            doors: Doors::default(),
            addresses,
            is_local,
            defaults,
            wakes: Vec::new(),
            happened: false,
            turns: 0,
            calls: CALLS_AFTER_TURN,
            turned_at: clock.elapsed(),
            shares_clock,
            clock,
            freshness,
            handed_over: 0,
            interrupted: false,
            is_restless: true,
        })
    }

    /// Turns so far.
    #[inline]
    pub(crate) const fn turns(&self) -> u32 {
        self.turns
    }

    /// What time it is, from the clock's own beginning on.
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    // -- objects and descriptors

    #[inline]
    pub(crate) fn object(&self, index: u32) -> Option<&Object> {
        self.objects.get(index as usize)
    }

    #[inline]
    pub(crate) fn object_mut(&mut self, index: u32) -> Option<&mut Object> {
        self.objects.get_mut(index as usize)
    }

    pub(crate) fn insert(&mut self, kind: Kind, nonblocking: bool) -> u32 {
        let object = Object {
            kind,
            descriptors: 0,
            nonblocking,
            watchers: NIL,
            sleepers: 0,
            blocked_in: self.turns.wrapping_sub(1),
            served_in: self.turns.wrapping_sub(1),
        };
        self.objects.insert(object) as u32
    }

    /// A descriptor for a new object.
    pub(crate) fn open(&mut self, kind: Kind, flags: OpenFlags) -> Result<Fd, Error> {
        let fd = self.table.lowest_free(0)?;
        let object = self.insert(kind, flags.contains(OpenFlags::NONBLOCK));
        self.name(fd, object, flags)?;
        Ok(fd)
    }

    /// One more descriptor for an object; the descriptor is free.
    pub(crate) fn name(&mut self, fd: Fd, object: u32, flags: OpenFlags) -> Result<(), Error> {
        self.table.set(fd, object, flags.contains(OpenFlags::CLOEXEC))?;
        if let Some(entry) = self.object_mut(object) {
            entry.descriptors += 1;
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, fd: Fd) -> Result<(), Error> {
        let object = self.table.remove(fd)?;
        self.unname(object);
        Ok(())
    }

    /// Closes every descriptor.
    pub(crate) fn close_all(&mut self) {
        for fd in self.table.open() {
            // It is open.
            let _ = self.close(fd);
        }
    }

    /// close(2), as an attempt: `lingering` is the object that a first attempt has left without a
    /// descriptor.
    #[inline]
    pub(crate) fn close_and_linger(
        &mut self,
        fd: Fd,
        lingering: &mut Option<u32>,
        is_over: bool,
    ) -> Attempt<()> {
        let object = match *lingering {
            Some(object) => object,
            None => match self.table.remove(fd) {
                Ok(object) => object,
                Err(error) => return Attempt::Done(Err(error)),
            },
        };
        let waits = match lingering {
            Some(_) => self.is_lingering(object),
            None => self.begin_to_linger(object),
        };
        if let Some(time) = waits
            && !is_over
        {
            *lingering = Some(object);
            // A signal ends it, and close(2) has done what it can.
            return Attempt::Wait(Wait::on(object, Some(time)).with_part(true));
        }
        self.unname(object);
        Attempt::Done(Ok(()))
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
        let is_listener = matches!(self.object(object).map(|it| &it.kind), Some(Kind::Listener(_)));
        if is_listener && !self.is_local {
            self.take_all_connections(object);
        }
        let Some(entry) = self.objects.try_remove(object as usize) else { return };
        if entry.sleepers > 0 {
            self.wakes.push(object);
        }
        self.is_restless = true;
        match entry.kind {
            Kind::Stream(stream) => self.close_stream(stream),
            Kind::Listener(listener) => self.close_listener(object, *listener),
            Kind::Datagram(endpoint) => self.close_endpoint(*endpoint),
            Kind::Pipe(end) => self.close_pipe(end),
            Kind::Counter(_) => {}
            Kind::Epoll(set) => self.close_set(set),
        }
    }

    // -- readiness

    /// What an object is ready for now.
    #[inline]
    pub(crate) fn readiness(&self, object: u32) -> Events {
        match self.object(object).map(|entry| &entry.kind) {
            Some(Kind::Stream(stream)) => stream.readiness(),
            Some(other) => self.readiness_of(other),
            None => Events::NVAL,
        }
    }

    #[inline(never)]
    fn readiness_of(&self, kind: &Kind) -> Events {
        match kind {
            Kind::Stream(stream) => stream.readiness(),
            Kind::Listener(listener) => listener.readiness(),
            Kind::Datagram(endpoint) => endpoint.readiness(),
            Kind::Pipe(end) => self.readiness_of_pipe(*end),
            Kind::Counter(counter) => counter.readiness(),
            Kind::Epoll(set) => self.readiness_of_set(*set),
        }
    }

    /// A call on an object found nothing, and must not wait. Whether it is worth another look,
    /// because the channel was driven meanwhile: that is done for a program that asks again and
    /// again, or asks late; one that goes by its sets has the answer from its last turn.
    pub(crate) fn refreshed(&mut self, object: u32) -> bool {
        let turns = self.turns;
        let Some(entry) = self.object_mut(object) else { return false };
        let asked_before = std::mem::replace(&mut entry.blocked_in, turns) == turns;
        // Read until there is nothing, after the turn that brought what was read.
        if !asked_before && entry.served_in == turns && !self.freshness.is_zero() {
            return false;
        }
        if !asked_before && self.now().saturating_sub(self.turned_at) < self.freshness {
            return false;
        }
        let driven = self.turn(Some(Duration::ZERO)).is_ok();
        let turns = self.turns;
        if let Some(entry) = self.object_mut(object) {
            entry.blocked_in = turns;
        }
        driven
    }

    // -- liveness

    /// Counts a call that returns without having waited. Returns whether the channel has to be
    /// turned now: a program that never waits still receives and acknowledges.
    #[inline(always)]
    pub(crate) fn count_call(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.calls.is_multiple_of(CALLS_PER_CHECK) && self.is_turn_due()
    }

    #[cold]
    fn is_turn_due(&self) -> bool {
        self.calls >= CHECKS_PER_TURN * CALLS_PER_CHECK
            || self.now().saturating_sub(self.turned_at) >= TURN_AGE_MAX
    }

    /// As [`Sockets::count_call`], for the only thread of a context: turns the channel itself.
    #[inline(always)]
    pub(crate) fn after_call(&mut self) {
        if self.count_call() {
            self.turn_overdue();
        }
    }

    /// The call is done, whatever the turn brings. A link that is gone is reported by the next
    /// call that waits.
    #[cold]
    fn turn_overdue(&mut self) {
        let _ = self.turn(Some(Duration::ZERO));
    }

    // -- completions

    /// Drives the channel: hands over what is queued, and takes the completions of one turn. Waits
    /// at most `patience` for the first, or for something that happens to a descriptor of the
    /// process that is watched.
    ///
    /// # Errors
    /// The link is gone, or the kernel refused.
    #[inline]
    pub(crate) fn turn(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        if !self.lookout.is_used() {
            return self.turn_channel(patience);
        }
        if patience != Some(Duration::ZERO) {
            return self.turn_beside_kernel(patience, None);
        }
        self.turn_channel(patience)?;
        if self.lookout.is_due(self.turned_at, self.turns) { self.look_out() } else { Ok(()) }
    }

    /// A turn that does not wait, for a call that is about to say that there is nothing.
    pub(crate) fn turn_and_look_out(&mut self) -> Result<(), Error> {
        self.turn_channel(Some(Duration::ZERO))?;
        self.look_out()
    }

    /// A turn that knows nothing of descriptors of the process.
    pub(crate) fn turn_channel(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        self.turns = self.turns.wrapping_add(1);
        self.calls = CALLS_AFTER_TURN;
        self.is_restless = true;
        let mut next = self.channel.dispatch(patience).map_err(|error| not_driven(&error))?;
        while let Some(completion) = next {
            self.on_completion(completion);
            next = self.channel.dispatch_ready();
        }
        self.turned_at = match self.channel.turned_at() {
            Some(at) if self.shares_clock => at,
            _ => self.now(),
        };
        self.interrupted = self.channel.take_interrupted();
        Ok(())
    }

    /// A signal ended the wait of the last turn, and a call that found nothing ends with it.
    #[inline]
    pub(crate) fn is_ended_by_signal(&self, wait: Wait) -> bool {
        self.interrupted && ends_by_signal(wait.on_signal)
    }

    /// As [`Sockets::turn`] without waiting, as long as there is work to hand over; then whether
    /// there is something to take.
    pub(crate) fn rest(&mut self) -> Result<Rest, Error> {
        self.handed_over = self.channel.counters().operations;
        self.calls = CALLS_AFTER_TURN;
        self.is_restless = false;
        self.channel.rest().map_err(|error| not_driven(&error))
    }

    /// Whoever sleeps on the channel would sleep too long: since [`Sockets::rest`] something was
    /// asked of it, or it was turned, and looks out for nothing any more.
    pub(crate) fn is_restless(&self) -> bool {
        self.is_restless || self.channel.counters().operations != self.handed_over
    }

    /// The object is a set.
    pub(crate) fn is_set(&self, object: u32) -> bool {
        matches!(self.object(object).map(|entry| &entry.kind), Some(Kind::Epoll(_)))
    }

    /// A thread waits for an object, or does not any more.
    pub(crate) fn count_sleeper(&mut self, object: Option<u32>, more: bool) {
        let Some(entry) = object.and_then(|object| self.object_mut(object)) else { return };
        entry.sleepers = if more { entry.sleepers + 1 } else { entry.sleepers.saturating_sub(1) };
    }

    /// By far the most frequent completion, bytes for a connection, is dealt with where it is taken
    /// from the channel, and not copied before.
    #[inline(always)]
    pub(crate) fn on_completion(&mut self, completion: Completion) {
        self.happened = true;
        match completion.event {
            Event::Read(Ok(bytes)) if !bytes.is_empty() => {
                self.on_bytes(completion.cookie as u32, bytes);
            }
            _ => self.on_other(completion),
        }
    }

    #[inline(never)]
    fn on_other(&mut self, completion: Completion) {
        let Completion { handle, cookie, event } = completion;
        let object = cookie as u32;
        match event {
            Event::Read(result) => self.on_read_end(object, result.err()),
            Event::Write(result) => self.on_written(object, result),
            Event::Accept(result) => self.on_accepted(object, result),
            Event::RecvFrom(result) => self.on_datagram(object, handle, result),
            Event::SendTo(result) => self.on_datagram_sent(object, result),
            Event::Connect(result) => self.on_connected(object, result),
            Event::End(result) => self.on_end(object, result),
            Event::Delivered(_) => self.on_delivered(object),
            Event::Disconnect(_) if cookie == CLOSED => self.on_closed(handle),
            Event::Urgent { bytes } => self.on_urgent(object, bytes),
            Event::Undelivered(undelivered) => self.on_undelivered(object, &undelivered),
            // Asked for where there is nothing more to be told.
            _ => {}
        }
    }
}

/// A handler has run: the call ends, unless it may be restarted and the handlers say so.
#[cold]
pub(crate) fn ends_by_signal(on_signal: OnSignal) -> bool {
    on_signal != OnSignal::MayRestart || !kernel::handlers_restart()
}

#[cold]
fn not_driven(error: &DispatchError) -> Error {
    match error {
        DispatchError::Kernel(source) => {
            Error::from_raw_os_error(source.raw_os_error().unwrap_or(libc::EIO))
        }
        DispatchError::Forked => Error::BadDescriptor,
        _ => Error::NetworkDown,
    }
}
