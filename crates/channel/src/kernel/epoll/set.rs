//! The epoll set: what is watched, and waiting for it.
//!
//! Read first: epoll(7), epoll_ctl(2), epoll_wait(2).
//!
//! Invariant: `events[..count]` of the last `wait` are what it found; nothing else is read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

pub(super) struct Set {
    fd: OwnedFd,
    events: Box<[Event]>,
    /// epoll_pwait2 works: time-outs are exact.
    precise: bool,
}

// SAFETY: what is not `Send` is a variant of the data of an event, a pointer. All data are numbers
// (`add`, `modify`), and no pointer is read from them. An epoll set may be used from any thread.
unsafe impl Send for Set {}

/// `struct __kernel_timespec`.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanoseconds: i64,
}

impl Set {
    pub(super) fn new(event_count: usize, precise: bool) -> io::Result<Self> {
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Ok(Self { fd, events: vec![none; event_count].into(), precise })
    }

    /// The set itself.
    #[cfg(feature = "local")]
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Watches a descriptor, or watches it for something else.
    pub(super) fn add(
        &self,
        source: BorrowedFd<'_>,
        data: u64,
        flags: EventFlags,
    ) -> Result<(), Errno> {
        let data = EventData::new_u64(data);
        match epoll::add(&self.fd, source, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.fd, source, data, flags),
            other => other,
        }
    }

    pub(super) fn modify(
        &self,
        source: BorrowedFd<'_>,
        data: u64,
        flags: EventFlags,
    ) -> Result<(), Errno> {
        epoll::modify(&self.fd, source, EventData::new_u64(data), flags)
    }

    pub(super) fn remove(&self, source: BorrowedFd<'_>) {
        // It fails only for what is not in the set, which is what was asked for.
        let _ = epoll::delete(&self.fd, source);
    }

    /// Waits at most `timeout` (`None`: for ever) for events; says how many there are.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Errno> {
        match timeout {
            Some(timeout) if self.precise && !timeout.is_zero() => self.wait_precisely(timeout),
            Some(timeout) => {
                // rustix rounds up to the milliseconds of epoll_wait(2).
                let timeout = Timespec::try_from(timeout).ok();
                epoll::wait(&self.fd, &mut self.events[..], timeout.as_ref())
            }
            None => epoll::wait(&self.fd, &mut self.events[..], None),
        }
    }

    fn wait_precisely(&mut self, timeout: Duration) -> Result<usize, Errno> {
        let timeout = KernelTimespec {
            seconds: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            nanoseconds: timeout.subsec_nanos().into(),
        };
        let (events, event_count) = (self.events.as_mut_ptr(), self.events.len());
        let no_signals = std::ptr::null::<libc::sigset_t>();
        // SAFETY: `events` has room for `event_count` events, laid out as the kernel's (rustix
        // uses the type for the same calls), and any bits are a valid event; `timeout` is read
        // only, and both outlive the call. A null mask changes no signal.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events,
                event_count as libc::c_int,
                &raw const timeout,
                no_signals,
                0usize,
            )
        };
        usize::try_from(count)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// An event of the last `wait`: what it is about, and what happened.
    pub(super) fn event(&self, index: usize) -> (u64, EventFlags) {
        let Event { flags, data, .. } = self.events[index];
        (data.u64(), flags)
    }
}

/// Whether epoll_pwait2 (Linux 5.11) works here.
pub(super) fn waits_precisely() -> io::Result<bool> {
    let mut set = Set::new(1, true)?;
    Ok(set.wait(Some(Duration::from_nanos(1))) == Ok(0))
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
