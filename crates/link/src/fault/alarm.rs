//! Waking for frames that are held back: one descriptor for the link and for a timer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A descriptor that is readable when the link's is, or when a time has come.
#[derive(Debug)]
pub(super) struct Alarm {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Alarm {
    /// Watches `link`, whose descriptor must stay the same; no time is set.
    pub(super) fn new(link: BorrowedFd<'_>) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for fd in [link, timer.as_fd()] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self { epoll, timer })
    }

    /// Wakes after `delay`, or not any more. What an earlier time did is forgotten.
    pub(super) fn set(&self, delay: Option<Duration>) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would be never; and a time beyond the kernel's is as good as never.
        let delay = delay.map(|delay| delay.max(Duration::from_nanos(1)));
        let value = delay.and_then(|delay| Timespec::try_from(delay).ok()).unwrap_or(zero);
        let times = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
