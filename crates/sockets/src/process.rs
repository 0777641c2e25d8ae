//! Descriptors of the process, which are the kernel's, in a context's sets, polls and selects.
//!
//! Read first: epoll(7), poll(2); `epoll.rs`; decision 0024.
//!
//! A set of ours that watches descriptors of the process has a set of the kernel's for them
//! ([`KernelSet`]), and hands each `epoll_ctl` on: what can be watched, when an item tells, what
//! becomes of it when a descriptor is closed is then what the kernel says. All the kernel sets of a
//! context, and what its channel sleeps on, are in one more, the *lookout*: one wait covers them.
//!
//! Invariants
//! - A kernel set that has something to tell has `may_tell` set, or the lookout tells of it next.
//! - The lookout hears of kernel sets by edges, so that what nobody asks for wakes nobody twice;
//!   `may_tell` is cleared only when the kernel set was asked and had nothing.
//! - Where nothing of the kernel's was ever watched, no system call is made and nothing is asked.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use megapipe::{Channel, Rest};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::descriptors::Fd;
use crate::epoll::{EpollEvent, EpollOp};
use crate::error::Error;
use crate::flags::Events;
use crate::kernel;
use crate::limits::{KERNEL_EVENTS_MAX, LOOKOUT_EVENTS, LOOKOUT_PERIOD, LOOKOUT_TURNS};
use crate::poll::PollFd;
use crate::signal::SignalMask;
use crate::sockets::Sockets;

/// What a call that watches descriptors takes: one of the context's, or one of the process's.
///
/// A number alone is the context's. It is the process's if [`crate::Config::process_below_first`]
/// says so and it is below [`crate::Config::first_descriptor`].
#[derive(Debug, Clone, Copy)]
pub enum AnyFd<'fd> {
    /// By its number in the context.
    Own(Fd),
    /// Of the process: anything that epoll(7) or poll(2) takes.
    Process(BorrowedFd<'fd>),
}

impl From<Fd> for AnyFd<'_> {
    fn from(fd: Fd) -> Self {
        Self::Own(fd)
    }
}

impl<'fd> From<BorrowedFd<'fd>> for AnyFd<'fd> {
    fn from(fd: BorrowedFd<'fd>) -> Self {
        Self::Process(fd)
    }
}

impl<'fd, F: AsFd> From<&'fd F> for AnyFd<'fd> {
    fn from(fd: &'fd F) -> Self {
        Self::Process(fd.as_fd())
    }
}

/// What a descriptor that is to be watched stands for.
pub(crate) enum Named {
    /// An object of the context.
    Object(u32),
    /// A number of the process, which may stand for nothing.
    Process(RawFd),
}

/// What the lookout says of itself instead of a set's index.
const CHANNEL: u64 = u64::MAX;
const POLLS: u64 = u64::MAX - 1;

/// What a context sleeps on when descriptors of the process are watched.
#[derive(Default)]
pub(crate) struct Lookout {
    fd: Option<OwnedFd>,
    /// Something of the kernel's is in it, or was.
    is_used: bool,
    /// When it was last asked, by the clock and by turns.
    asked_at: Duration,
    asked_in: u32,
}

/// What a lookout told of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    count: usize,
    channel: bool,
    kernel: bool,
}

impl Lookout {
    /// Makes it, around what the channel sleeps on.
    pub(crate) fn open(&mut self, channel: &Channel) -> Result<BorrowedFd<'_>, Error> {
        if self.fd.is_none() {
            let fd = epoll::create(CreateFlags::CLOEXEC)?;
            for descriptor in channel.descriptors() {
                epoll::add(&fd, descriptor, EventData::new_u64(CHANNEL), EventFlags::IN)?;
            }
            self.fd = Some(fd);
        }
        self.fd.as_ref().map(AsFd::as_fd).ok_or(Error::BadDescriptor)
    }

    /// A set of the kernel's that the lookout tells of.
    fn watched_set(&mut self, channel: &Channel, data: u64) -> Result<OwnedFd, Error> {
        let lookout = self.open(channel)?;
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(lookout, &fd, EventData::new_u64(data), EventFlags::IN | EventFlags::ET)?;
        self.is_used = true;
        Ok(fd)
    }

    pub(crate) const fn is_used(&self) -> bool {
        self.is_used
    }

    /// It is time to ask the kernel, however much there is to do beside it.
    pub(crate) fn is_due(&self, now: Duration, turns: u32) -> bool {
        turns.wrapping_sub(self.asked_in) >= LOOKOUT_TURNS
            || now.saturating_sub(self.asked_at) >= LOOKOUT_PERIOD
    }
}

/// The kernel's part of one set.
pub(crate) struct KernelSet {
    fd: OwnedFd,
    /// It may have something to tell.
    may_tell: bool,
    /// It had the only place of the last call that had one.
    had_only_place: bool,
}

impl KernelSet {
    /// Fills `out` from the front.
    fn take(&mut self, out: &mut [EpollEvent]) -> Result<usize, Error> {
        let mut room = [const { MaybeUninit::<Event>::uninit() }; KERNEL_EVENTS_MAX];
        let len = out.len().min(KERNEL_EVENTS_MAX);
        let told = loop {
            match epoll::wait(&self.fd, &mut room[..len], Some(&Timespec::default())) {
                Ok((told, _)) => break told,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        for (out, event) in out.iter_mut().zip(&*told) {
            let (flags, data) = (event.flags, event.data);
            *out = EpollEvent { events: Events::from_bits_retain(flags.bits()), data: data.u64() };
        }
        // An item that is level triggered is told again; one that did not fit was not told yet.
        self.may_tell = !told.is_empty();
        Ok(told.len())
    }

    /// It has something to tell.
    pub(crate) fn is_readable(&self) -> bool {
        self.may_tell && kernel::is_readable(self.fd.as_fd())
    }
}

/// How many of `room` places are the kernel's to fill first, where `own` items of ours may have
/// something to tell as well: those that ours cannot fill, and no less than half. A single place is
/// filled in turns.
fn share(room: usize, own: usize, had_only_place: bool) -> usize {
    match (room, own) {
        (1, 1..) => usize::from(!had_only_place),
        _ => room.saturating_sub(own).max(room / 2).min(KERNEL_EVENTS_MAX),
    }
}

/// Sets.
impl Sockets {
    /// What a descriptor stands for.
    pub(crate) fn named(&self, fd: AnyFd<'_>) -> Result<Named, Error> {
        match fd {
            AnyFd::Process(fd) => Ok(Named::Process(fd.as_raw_fd())),
            AnyFd::Own(fd) if self.process_below_first && self.table.is_below(fd) => {
                Ok(Named::Process(fd))
            }
            AnyFd::Own(fd) => self.table.object(fd).map(Named::Object),
        }
    }

    /// epoll_ctl(2) where the member is the process's.
    pub(crate) fn control_kernels(
        &mut self,
        epoll: Fd,
        op: EpollOp,
        fd: RawFd,
    ) -> Result<(), Error> {
        let set = match self.set(epoll) {
            Ok((set, _)) => set,
            Err(error) => {
                // In the kernel's order: first what is wrong with the member.
                kernel::check_pollable(fd)?;
                return Err(error);
            }
        };
        let Self { epolls, lookout, channel, .. } = self;
        let kernels = match epolls.kernels(set) {
            Some(kernels) => kernels,
            none => {
                let fd = lookout.watched_set(channel, set.into())?;
                none.insert(KernelSet { fd, may_tell: false, had_only_place: false })
            }
        };
        kernel::control(kernels.fd.as_fd(), op, fd)
    }

    /// Lets the kernel fill its share of `out`, where `own` items of ours may tell something. How
    /// many were filled.
    #[inline]
    pub(crate) fn collect_kernels(
        &mut self,
        set: u32,
        out: &mut [EpollEvent],
        own: usize,
    ) -> Result<usize, Error> {
        match self.epolls.kernels(set) {
            Some(kernels) if kernels.may_tell => {
                let share = share(out.len(), own, kernels.had_only_place);
                let count = if share > 0 { kernels.take(&mut out[..share])? } else { 0 };
                kernels.had_only_place = share > 0 && out.len() == 1;
                Ok(count)
            }
            _ => Ok(0),
        }
    }
}

/// Looking out.
impl Sockets {
    /// What sleeps for the context: readable when there is something to do for the channel, or the
    /// kernel has something to tell.
    pub(crate) fn lookout(&mut self) -> Result<BorrowedFd<'_>, Error> {
        self.lookout.open(&self.channel)
    }

    /// Asks the kernel whether something happened to what sets and polls watch, and tells whoever
    /// watches or waits. Does not wait.
    pub(crate) fn look_out(&mut self) -> Result<(), Error> {
        if self.lookout.is_used() {
            while self.ask_lookout()?.count == LOOKOUT_EVENTS {}
        }
        Ok(())
    }

    fn ask_lookout(&mut self) -> Result<Seen, Error> {
        let Some(fd) = &self.lookout.fd else { return Ok(Seen::default()) };
        let mut room = [const { MaybeUninit::<Event>::uninit() }; LOOKOUT_EVENTS];
        let told = loop {
            match epoll::wait(fd, &mut room[..], Some(&Timespec::default())) {
                Ok((told, _)) => break told,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut seen = Seen { count: told.len(), ..Seen::default() };
        for event in &*told {
            let data = event.data;
            match data.u64() {
                CHANNEL => seen.channel = true,
                data => {
                    seen.kernel = true;
                    self.on_kernel_event(data);
                }
            }
        }
        self.lookout.asked_at = self.now();
        self.lookout.asked_in = self.turns();
        Ok(seen)
    }

    /// A kernel set, or what a poll waits for, may have something to tell.
    fn on_kernel_event(&mut self, data: u64) {
        self.happened = true;
        if data == POLLS {
            return;
        }
        let Some(object) = self.epolls.object_of(data as u32) else { return };
        if let Some(kernels) = self.epolls.kernels(data as u32) {
            kernels.may_tell = true;
            self.notify(object, Events::READABLE);
        }
    }

    /// A turn of the channel that waits for the kernel's descriptors as well: until something
    /// happened to either, or there was work, at most `patience`.
    pub(crate) fn turn_beside_kernel(
        &mut self,
        patience: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<(), Error> {
        let Rest::Until(until) = self.rest()? else {
            return self.turn_channel(Some(Duration::ZERO));
        };
        let least = [until, patience].into_iter().flatten().min();
        let mut has_signal = false;
        if let Some(fd) = &self.lookout.fd
            && least != Some(Duration::ZERO)
        {
            // Not in epoll_wait(2), which the kernel's own work for this thread ends as a signal
            // does (io_uring's completions are such work).
            has_signal = kernel::sleep([fd.as_fd()], least, mask)?;
        }
        let seen = self.ask_lookout()?;
        self.interrupted = false;
        if seen.channel || !seen.kernel {
            self.turn_channel(Some(Duration::ZERO))?;
        }
        self.interrupted |= has_signal;
        Ok(())
    }
}

impl Sockets {
    /// As [`Sockets::turn`], with other signals blocked while it sleeps.
    #[cold]
    pub(crate) fn turn_with_mask(
        &mut self,
        patience: Option<Duration>,
        mask: SignalMask,
    ) -> Result<(), Error> {
        self.lookout()?;
        self.turn_beside_kernel(patience, Some(mask))
    }
}

/// The descriptors of the process in one call of poll(2) or select(2).
#[derive(Default)]
pub(crate) struct KernelPoll {
    /// Which of the call's entries they are.
    places: Vec<usize>,
    asked: Vec<libc::pollfd>,
    /// What wakes the call when it waits.
    set: Option<OwnedFd>,
}

impl KernelPoll {
    /// One more entry of the call.
    pub(crate) fn push(&mut self, place: usize, fd: RawFd, events: Events) {
        self.places.push(place);
        self.asked.push(libc::pollfd { fd, events: events.bits() as i16, revents: 0 });
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Asks the kernel, and writes down what it says. How many have something to tell.
    pub(crate) fn ask(&mut self, fds: &mut [PollFd<'_>]) -> Result<usize, Error> {
        if self.is_empty() {
            return Ok(0);
        }
        let count = kernel::poll_now(&mut self.asked)?;
        for (place, asked) in self.places.iter().zip(&self.asked) {
            fds[*place].revents = Events::from_bits_retain(asked.revents.cast_unsigned().into());
        }
        Ok(count)
    }
}

impl Sockets {
    /// The call is going to wait: the lookout tells when something happens to its descriptors of
    /// the process.
    pub(crate) fn await_kernels(&mut self, poll: &mut KernelPoll) -> Result<(), Error> {
        if poll.is_empty() || poll.set.is_some() {
            return Ok(());
        }
        let set = self.lookout.watched_set(&self.channel, POLLS)?;
        for asked in &poll.asked {
            // One descriptor may be asked of twice, for different events.
            let same = poll.asked.iter().filter(|other| other.fd == asked.fd);
            let events = same.fold(0, |all, other| all | other.events);
            let events = Events::from_bits_retain(events.cast_unsigned().into());
            let op = EpollOp::Add(EpollEvent { events, data: 0 });
            match kernel::control(set.as_fd(), op, asked.fd) {
                // A disk file, which does not change, or a number that poll has called none.
                Ok(()) | Err(Error::Exists | Error::NotPermitted | Error::BadDescriptor) => {}
                Err(error) => return Err(error),
            }
        }
        poll.set = Some(set);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_what_ours_cannot_fill_and_half_at_least() {
        for (room, own, expected) in
            [(8, 0, 8), (8, 3, 5), (8, 4, 4), (8, 9, 4), (3, 9, 1), (1, 0, 1), (100_000, 0, 256)]
        {
            assert_eq!(share(room, own, false), expected, "{room} places, {own} of ours");
        }
    }

    #[test]
    fn the_only_place_goes_from_one_to_the_other() {
        assert_eq!((share(1, 5, false), share(1, 5, true)), (1, 0));
        assert_eq!(share(1, 0, true), 1, "nobody else wants it");
    }
}
