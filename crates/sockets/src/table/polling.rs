//! Polling: the table drives its channel, and looks out for descriptors of the process.
//!
//! Read first: `polled_channel.rs`, `foreign_fds.rs`.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe::Park;

use super::{ObjectKind, Sockets};
use crate::attempt::Wait;
use crate::error::Error;
use crate::flags::Events;
use crate::foreign_fds::{KernelPoll, LookoutEvent};
use crate::kernel;
use crate::limits::{LOOKOUT_EVENTS, TAKE_IN_POLLS_MAX};
use crate::signal::SignalMask;

impl Sockets {
    /// A call on an object found nothing, and must not wait. Whether it is worth another look,
    /// because the channel was driven meanwhile: that is done for a program that asks again and
    /// again, or asks late; one that goes by its sets has the answer from its last poll.
    pub(crate) fn refreshed(&mut self, object: u32) -> bool {
        let polls = self.channel.polls();
        let Some(entry) = self.object_mut(object) else { return false };
        let asked_before = std::mem::replace(&mut entry.blocked_in, polls) == polls;
        let served_in = entry.served_in;
        if !asked_before && self.channel.is_answer_fresh(served_in) {
            return false;
        }
        let driven = self.drive(Some(Duration::ZERO)).is_ok();
        let polls = self.channel.polls();
        if let Some(entry) = self.object_mut(object) {
            entry.blocked_in = polls;
        }
        driven
    }

    /// Counts a call that returns without having waited, for the only thread of a context: polls
    /// the channel if its last poll is too old.
    #[inline(always)]
    pub(crate) fn after_call(&mut self) {
        if self.channel.count_call() {
            self.drive_overdue();
        }
    }

    /// The call is done, whatever the poll returns. A link that is gone is reported by the next
    /// call that waits.
    #[cold]
    fn drive_overdue(&mut self) {
        let _ = self.drive(Some(Duration::ZERO));
    }

    /// Drives the channel: hands over what is queued, and takes the completions of one poll. Waits
    /// at most `patience` for the first, or for something that happens to a descriptor of the
    /// process that is watched.
    ///
    /// # Errors
    /// The link is gone, or the kernel refused.
    #[inline]
    pub(crate) fn drive(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        if patience != Some(Duration::ZERO) && (self.lookout.is_used() || self.channel.is_down()) {
            return self.drive_with_kernel(patience, None);
        }
        if !self.lookout.is_used() {
            return self.poll_channel(patience);
        }
        self.poll_channel(patience)?;
        if self.lookout.is_due(self.channel.polled_at(), self.channel.polls()) {
            self.look_out()
        } else {
            Ok(())
        }
    }

    /// Polls without waiting until nothing more comes, so that a call sees all that has arrived.
    ///
    /// # Errors
    /// As [`Sockets::drive`].
    pub(crate) fn take_in(&mut self) -> Result<(), Error> {
        let (mut taken, mut has_come) = (Ok(()), std::mem::take(&mut self.happened));
        for _ in 0..TAKE_IN_POLLS_MAX {
            taken = self.drive_if_memory();
            if taken.is_err() || !std::mem::take(&mut self.happened) {
                break;
            }
            has_come = true;
        }
        self.happened |= has_come;
        taken
    }

    /// A poll that does not wait, of a call that has `count` events. Without memory for the poll
    /// the events are returned, and the next call polls.
    ///
    /// # Errors
    /// As [`Sockets::drive`].
    pub(crate) fn drive_behind(&mut self, count: usize) -> Result<usize, Error> {
        self.drive_if_memory().map(|()| count)
    }

    /// A poll that does not wait, and is left out where there is no memory for it.
    fn drive_if_memory(&mut self) -> Result<(), Error> {
        match self.drive(Some(Duration::ZERO)) {
            Err(Error::NoMemory) => Ok(()),
            driven => driven,
        }
    }

    /// A poll that does not wait, for a call that is about to say that there is nothing.
    pub(crate) fn drive_and_look_out(&mut self) -> Result<(), Error> {
        self.poll_channel(Some(Duration::ZERO))?;
        self.look_out()
    }

    /// What a thread sleeps on for the context: readable when there is something to do for the
    /// channel, or the kernel has events of a descriptor that is watched.
    ///
    /// # Errors
    /// As epoll_create1(2).
    pub(crate) fn lookout(&mut self) -> Result<BorrowedFd<'_>, Error> {
        self.lookout.open(&self.channel)
    }

    /// The call is going to wait for descriptors of the process as well.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(crate) fn await_kernels(&mut self, kernels: &mut KernelPoll) -> Result<(), Error> {
        kernels.arm(&mut self.lookout, &self.channel)
    }

    /// Polls the kernel for events of what sets and polls watch, and notifies the watchers and
    /// waiters. Does not wait.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub(crate) fn look_out(&mut self) -> Result<(), Error> {
        if self.lookout.is_used() {
            while self.take_lookout()?.count == LOOKOUT_EVENTS {}
        }
        Ok(())
    }

    fn take_lookout(&mut self) -> Result<LookoutResult, Error> {
        let mut result = LookoutResult::default();
        let events = self.lookout.take(self.channel.now(), self.channel.polls())?;
        result.count = events.len();
        for event in events {
            match event {
                LookoutEvent::Channel => result.has_channel = true,
                LookoutEvent::Poll => (result.has_kernel, self.happened) = (true, true),
                LookoutEvent::Set(set) => {
                    (result.has_kernel, self.happened) = (true, true);
                    self.on_kernel_set(set);
                }
            }
        }
        Ok(result)
    }

    /// The kernel's part of a set may have something to report.
    fn on_kernel_set(&mut self, set: u32) {
        let Some(object) = self.sets.object_of(set) else { return };
        if let Some(kernels) = self.sets.kernels(set) {
            kernels.note_event();
            self.notify(object, Events::READABLE);
        }
    }

    /// A poll of the channel that waits for the kernel's descriptors as well: until something
    /// happened to either, or there was work, at most `patience`.
    fn drive_with_kernel(
        &mut self,
        patience: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<(), Error> {
        let Park::Until(until) = self.prepare_sleep()? else {
            return self.poll_channel(Some(Duration::ZERO));
        };
        let least = [until, patience].into_iter().flatten().min();
        let mut has_signal = false;
        if let Some(fd) = self.lookout.descriptor()
            && least != Some(Duration::ZERO)
        {
            // Not in epoll_wait(2), which the kernel's own work for this thread ends as a signal
            // does (io_uring's completions are such work).
            has_signal = kernel::sleep([fd], least, mask)?;
        }
        let found = self.take_lookout()?;
        self.channel.is_interrupted = false;
        if found.has_channel || !found.has_kernel {
            self.poll_channel(Some(Duration::ZERO))?;
        }
        self.channel.is_interrupted |= has_signal;
        Ok(())
    }

    /// As [`PolledChannel::prepare_sleep`]. Where the link is gone there is work first: the ends
    /// of all sockets.
    ///
    /// # Errors
    /// The kernel refused.
    ///
    /// [`PolledChannel::prepare_sleep`]: crate::polled_channel::PolledChannel::prepare_sleep
    pub(crate) fn prepare_sleep(&mut self) -> Result<Park, Error> {
        match self.channel.prepare_sleep() {
            Err(Error::NetworkDown) => {
                self.on_link_gone();
                Ok(Park::Work)
            }
            park => park,
        }
    }

    /// The link is gone: all sockets of our own stack end with an error, and what is the process's
    /// goes on.
    #[cold]
    fn on_link_gone(&mut self) {
        self.channel.note_down();
        // What the channel sleeps on reports the lost link for ever. Without a lookout, for which
        // there are no descriptors, calls do not wait for those of the process.
        if self.lookout.open(&self.channel).is_ok() {
            self.lookout.forget_channel(&self.channel);
        }
        (self.closing, self.happened) = (0, true);
        for object in 0..self.objects.end() as u32 {
            let events = match self.objects.get_mut(object).map(|entry| &mut entry.kind) {
                Some(ObjectKind::Stream(stream)) => stream.on_link_gone(),
                Some(ObjectKind::Listener(listener)) => listener.on_error(Error::NetworkDown),
                Some(ObjectKind::Datagram(socket)) => socket.on_link_gone(),
                _ => Events::empty(),
            };
            self.notify_any(object, events);
        }
    }

    /// As [`Sockets::drive`], with other signals blocked while it sleeps.
    ///
    /// # Errors
    /// As [`Sockets::drive`].
    #[cold]
    pub(crate) fn drive_with_mask(
        &mut self,
        patience: Option<Duration>,
        mask: SignalMask,
    ) -> Result<(), Error> {
        self.lookout()?;
        self.drive_with_kernel(patience, Some(mask))
    }

    /// A poll without descriptors of the process.
    pub(crate) fn poll_channel(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        let mut next = match self.channel.begin_poll(patience) {
            Err(Error::NetworkDown) => {
                self.on_link_gone();
                return Ok(());
            }
            first => first?,
        };
        while let Some(completion) = next {
            self.on_completion(completion);
            next = self.channel.dispatch_ready();
        }
        self.channel.end_poll();
        Ok(())
    }

    /// Takes the completions that are there already.
    pub(crate) fn take_completions(&mut self) {
        while let Some(completion) = self.channel.dispatch_ready() {
            self.on_completion(completion);
        }
    }

    /// A signal ended the wait of the last poll, and a call that found nothing ends with it.
    #[inline]
    pub(crate) fn is_ended_by_signal(&self, wait: Wait) -> bool {
        self.channel.is_interrupted && wait.on_signal.ends_call()
    }
}

/// What a poll of the lookout has found.
#[derive(Debug, Clone, Copy, Default)]
struct LookoutResult {
    count: usize,
    has_channel: bool,
    has_kernel: bool,
}
