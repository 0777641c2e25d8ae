//! Descriptors of the process, which are the kernel's, in a context's sets, polls and selects.
//!
//! Read first: epoll(7), poll(2); `epoll_set.rs`; decision 0024.
//!
//! A set of ours that watches descriptors of the process has a set of the kernel's for them
//! ([`KernelSet`]), and hands each `epoll_ctl` on: what can be watched, when an item tells, what
//! becomes of it when a descriptor is closed is then what the kernel says. All the kernel sets of a
//! context, and what its channel sleeps on, are in one more, the *lookout*: one wait covers them.
//!
//! Invariants
//! - A kernel set that has events has `may_report` set, or the lookout reports it next.
//! - The lookout watches kernel sets by edges, so that unread events wake no thread twice;
//!   `may_report` is cleared only when the kernel set was asked and had nothing.
//! - Where nothing of the kernel's was ever watched, no system call is made and nothing is asked.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use megapipe::{Channel, ThreadsInTurn};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::{EpollEvent, EpollOp, Events};
use crate::kernel;
use crate::limits::{KERNEL_EVENTS_MAX, LOOKOUT_EVENTS, LOOKOUT_PERIOD, LOOKOUT_POLLS};

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

impl AnyFd<'_> {
    /// The number itself.
    pub(crate) fn number(&self) -> RawFd {
        match self {
            Self::Own(fd) => *fd,
            Self::Process(fd) => fd.as_raw_fd(),
        }
    }
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

/// Marks of what the lookout watches beside the kernel's part of a set, which has the set's index.
const CHANNEL: u64 = u64::MAX;
const POLLS: u64 = u64::MAX - 1;

/// What a lookout has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookoutEvent {
    /// The channel has something to do.
    Channel,
    /// A descriptor of a call of poll(2) or select(2) may be ready.
    Poll,
    /// The kernel's part of a set may have events.
    Set(u32),
}

/// What a context sleeps on when descriptors of the process are watched.
#[derive(Default)]
pub(crate) struct Lookout {
    fd: Option<OwnedFd>,
    /// Something of the kernel's is in it, or was.
    is_used: bool,
    /// When it was last asked, by the clock and by polls.
    asked_at: Duration,
    asked_in: u32,
}

impl Lookout {
    /// Makes it, around what the channel sleeps on.
    pub(crate) fn open(
        &mut self,
        channel: &Channel<ThreadsInTurn>,
    ) -> Result<BorrowedFd<'_>, Error> {
        if self.fd.is_none() {
            let fd = epoll::create(CreateFlags::CLOEXEC)?;
            for descriptor in channel.descriptors() {
                epoll::add(&fd, descriptor, EventData::new_u64(CHANNEL), EventFlags::IN)?;
            }
            self.fd = Some(fd);
        }
        self.fd.as_ref().map(AsFd::as_fd).ok_or(Error::BadDescriptor)
    }

    /// The channel has nothing to do any more.
    pub(crate) fn forget_channel(&mut self, channel: &Channel<ThreadsInTurn>) {
        let Some(fd) = &self.fd else { return };
        for descriptor in channel.descriptors() {
            // One that is closed is not in it.
            let _ = epoll::delete(fd, descriptor);
        }
    }

    /// A set of the kernel's that the lookout watches.
    fn watched_set(
        &mut self,
        channel: &Channel<ThreadsInTurn>,
        data: u64,
    ) -> Result<OwnedFd, Error> {
        let lookout = self.open(channel)?;
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(lookout, &fd, EventData::new_u64(data), EventFlags::IN | EventFlags::ET)?;
        self.is_used = true;
        Ok(fd)
    }

    /// The kernel's part of a set, by the set's index.
    ///
    /// # Errors
    /// As epoll_create1(2).
    pub(crate) fn open_set(
        &mut self,
        channel: &Channel<ThreadsInTurn>,
        set: u32,
    ) -> Result<KernelSet, Error> {
        let fd = self.watched_set(channel, set.into())?;
        Ok(KernelSet { fd, may_report: false, had_only_place: false })
    }

    /// What the context sleeps on, if descriptors of the process were ever watched.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Polls the kernel without waiting; up to [`LOOKOUT_EVENTS`] are returned at once.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub(crate) fn take(
        &mut self,
        now: Duration,
        polls: u32,
    ) -> Result<impl ExactSizeIterator<Item = LookoutEvent> + use<>, Error> {
        let mut room = [const { MaybeUninit::<Event>::uninit() }; LOOKOUT_EVENTS];
        let (mut found, mut count) = ([LookoutEvent::Channel; LOOKOUT_EVENTS], 0);
        if let Some(fd) = &self.fd {
            count = poll_set(fd.as_fd(), &mut room, |index, event| {
                let data = event.data;
                found[index] = match data.u64() {
                    CHANNEL => LookoutEvent::Channel,
                    POLLS => LookoutEvent::Poll,
                    set => LookoutEvent::Set(set as u32),
                };
            })?;
            (self.asked_at, self.asked_in) = (now, polls);
        }
        Ok(found.into_iter().take(count))
    }

    pub(crate) const fn is_used(&self) -> bool {
        self.is_used
    }

    /// It is time to ask the kernel, however much there is to do beside it.
    pub(crate) fn is_due(&self, now: Duration, polls: u32) -> bool {
        polls.wrapping_sub(self.asked_in) >= LOOKOUT_POLLS
            || now.saturating_sub(self.asked_at) >= LOOKOUT_PERIOD
    }
}

/// The kernel's part of one set.
pub(crate) struct KernelSet {
    fd: OwnedFd,
    /// It may have something to report.
    may_report: bool,
    /// It had the only place of the last call that had one.
    had_only_place: bool,
}

impl KernelSet {
    /// epoll_ctl(2) for a descriptor of the process.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(crate) fn control(&self, op: EpollOp, fd: RawFd) -> Result<(), Error> {
        kernel::control(self.fd.as_fd(), op, fd)
    }

    /// The lookout found that it may have something to report.
    pub(crate) const fn note_event(&mut self) {
        self.may_report = true;
    }

    /// Fills the kernel's share of `out`, where `own` items of ours may have events. Returns how
    /// many were filled.
    ///
    /// # Errors
    /// As epoll_wait(2).
    #[inline]
    pub(crate) fn take_share(
        &mut self,
        out: &mut [EpollEvent],
        own: usize,
    ) -> Result<usize, Error> {
        if !self.may_report {
            return Ok(0);
        }
        let share = share(out.len(), own, self.had_only_place);
        let count = if share > 0 { self.take(&mut out[..share])? } else { 0 };
        self.had_only_place = share > 0 && out.len() == 1;
        Ok(count)
    }

    /// Fills `out` from the front.
    fn take(&mut self, out: &mut [EpollEvent]) -> Result<usize, Error> {
        let mut room = [const { MaybeUninit::<Event>::uninit() }; KERNEL_EVENTS_MAX];
        let len = out.len().min(KERNEL_EVENTS_MAX);
        let count = poll_set(self.fd.as_fd(), &mut room[..len], |index, event| {
            let (flags, data) = (event.flags, event.data);
            let events = Events::from_bits_retain(flags.bits());
            out[index] = EpollEvent { events, data: data.u64() };
        })?;
        // A level triggered item is reported again; one that did not fit was not reported yet.
        self.may_report = count > 0;
        Ok(count)
    }

    /// It has events.
    pub(crate) fn is_readable(&self) -> bool {
        self.may_report && kernel::is_readable(self.fd.as_fd())
    }
}

/// How many of `room` places are the kernel's to fill first, where `own` items of ours may have
/// something to tell as well: those that ours cannot fill, and no less than half. A single place is
/// filled alternately.
fn share(room: usize, own: usize, had_only_place: bool) -> usize {
    match (room, own) {
        (1, 1..) => usize::from(!had_only_place),
        _ => room.saturating_sub(own).max(room / 2).min(KERNEL_EVENTS_MAX),
    }
}

/// epoll_wait(2) without waiting: hands each event to `each`, and returns how many there were.
fn poll_set(
    set: BorrowedFd<'_>,
    room: &mut [MaybeUninit<Event>],
    mut each: impl FnMut(usize, &Event),
) -> Result<usize, Error> {
    loop {
        match epoll::wait(set, &mut *room, Some(&Timespec::default())) {
            Ok((events, _)) => {
                events.iter().enumerate().for_each(|(index, event)| each(index, event));
                return Ok(events.len());
            }
            // A signal: calls that wait check for it; this does not wait.
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
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
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn push(&mut self, place: usize, fd: RawFd, events: Events) -> Result<(), Error> {
        self.places.try_reserve(1).map_err(|_| Error::NoMemory)?;
        self.asked.try_reserve(1).map_err(|_| Error::NoMemory)?;
        self.places.push(place);
        self.asked.push(libc::pollfd { fd, events: events.bits() as i16, revents: 0 });
        Ok(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Polls the kernel without waiting: how many of the entries are ready.
    pub(crate) fn poll(&mut self) -> Result<usize, Error> {
        if self.is_empty() { Ok(0) } else { kernel::poll_now(&mut self.asked) }
    }

    /// The events of each entry, as the last poll found them.
    pub(crate) fn results(&self) -> impl Iterator<Item = (usize, Events)> {
        self.places.iter().zip(&self.asked).map(|(place, asked)| {
            (*place, Events::from_bits_retain(asked.revents.cast_unsigned().into()))
        })
    }

    /// The call is going to wait: the lookout reports when something happens to its descriptors of
    /// the process.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(crate) fn arm(
        &mut self,
        lookout: &mut Lookout,
        channel: &Channel<ThreadsInTurn>,
    ) -> Result<(), Error> {
        if self.is_empty() || self.set.is_some() {
            return Ok(());
        }
        let set = lookout.watched_set(channel, POLLS)?;
        for asked in &self.asked {
            // One descriptor may be asked of twice, for different events.
            let same = self.asked.iter().filter(|other| other.fd == asked.fd);
            let events = same.fold(0, |all, other| all | other.events);
            let events = Events::from_bits_retain(events.cast_unsigned().into());
            let op = EpollOp::Add(EpollEvent { events, data: 0 });
            match kernel::control(set.as_fd(), op, asked.fd) {
                // A disk file, which does not change, or a number that poll has called none.
                Ok(()) | Err(Error::Exists | Error::NotPermitted | Error::BadDescriptor) => {}
                Err(error) => return Err(error),
            }
        }
        self.set = Some(set);
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
        assert_eq!(share(1, 0, true), 1, "no other set watches it");
    }
}
