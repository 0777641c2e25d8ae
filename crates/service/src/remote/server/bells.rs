//! The doorbells of a shard's sessions, and what else it sleeps on: one epoll set.
//!
//! Read first: `sleep.rs`; epoll(7).
//!
//! Invariants
//! - The set has the bell of each session, so a session that is armed needs no look at its ring.
//! - Rings are cleared when the set reports them. A ring that comes to a shard that is awake wakes
//!   its next sleep in vain, once.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_stack::PoolId;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::sleep::SleepingEnd;

/// What the set reports, other than bells of sessions.
const LINK: u64 = u64::MAX;
const HOST: u64 = u64::MAX - 1;
const REQUESTS: u64 = u64::MAX - 2;
const MAIL: u64 = u64::MAX - 3;

/// Most reports that one look takes: others come with the next.
const REPORTS_MAX: usize = 64;

/// The bells of a shard.
pub(super) struct Bells {
    set: OwnedFd,
    /// By the session's number.
    ends: Vec<Option<SleepingEnd>>,
    reports: Vec<u64>,
}

fn io(what: &'static str) -> impl FnOnce(Errno) -> LinkError {
    move |errno| LinkError::Io { what, source: errno.into() }
}

impl Bells {
    /// No bells yet; the set has the descriptors of the link, of the host, of requests and of other
    /// servers' messages.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(super) fn new(
        link: BorrowedFd<'_>,
        host: Option<BorrowedFd<'_>>,
        (requests, mail): (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>),
    ) -> Result<Self, LinkError> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create"))?;
        let others = [(Some(link), LINK), (host, HOST), (requests, REQUESTS), (mail, MAIL)];
        for (fd, what) in others {
            if let Some(fd) = fd {
                let data = epoll::EventData::new_u64(what);
                epoll::add(&set, fd, data, epoll::EventFlags::IN).map_err(io("epoll_ctl"))?;
            }
        }
        Ok(Self { set, ends: Vec::new(), reports: Vec::with_capacity(REPORTS_MAX) })
    }

    /// Adds the bell of a session.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(super) fn insert(&mut self, id: PoolId, end: SleepingEnd) -> Result<(), LinkError> {
        let data = epoll::EventData::new_u64(id.0.into());
        epoll::add(&self.set, end.fd(), data, epoll::EventFlags::IN).map_err(io("epoll_ctl"))?;
        let index = usize::from(id.0);
        if self.ends.len() <= index {
            self.ends.resize_with(index + 1, || None);
        }
        self.ends[index] = Some(end);
        Ok(())
    }

    /// Removes the bell of a session, whose application sees that it has ended.
    pub(super) fn remove(&mut self, id: PoolId) {
        if let Some(end) = self.ends.get_mut(usize::from(id.0)).and_then(Option::take) {
            end.mark_ended();
            let removed = epoll::delete(&self.set, end.fd());
            debug_assert!(removed.is_ok(), "{removed:?}");
        }
    }

    /// The bell of a session.
    #[inline]
    pub(super) fn of(&self, id: PoolId) -> Option<&SleepingEnd> {
        self.ends.get(usize::from(id.0))?.as_ref()
    }

    /// Publishes the core of the shard's thread to all applications.
    pub(super) fn note_core(&self, core: u32) {
        self.ends.iter().flatten().for_each(|end| end.note_core(core));
    }

    /// Waits until something is reported, or until `timeout` has passed (`None`: for ever).
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), LinkError> {
        self.reports.clear();
        // A time beyond what the kernel can count is as good as for ever.
        let mut timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if let Some(short) = timeout.filter(|it| it.tv_sec == 0 && it.tv_nsec > 0) {
            // epoll_wait(2) counts milliseconds: a claim time would be over up to one later.
            let mut polled = [PollFd::new(&self.set, PollFlags::IN)];
            match poll(&mut polled, Some(&short)) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => timeout = Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
                Err(errno) => return Err(io("poll")(errno)),
            }
        }
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; REPORTS_MAX];
        match epoll::wait(&self.set, &mut room[..], timeout.as_ref()) {
            Ok((reports, _)) => self.reports.extend(reports.iter().map(|it| it.data.u64())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io("epoll_wait")(errno)),
        }
        Ok(())
    }

    /// The next session that the last wait reported.
    pub(super) fn next_rung(&mut self) -> Option<PoolId> {
        loop {
            if let Ok(number) = u16::try_from(self.reports.pop()?) {
                return Some(PoolId(number));
            }
        }
    }

    /// Whether the last wait reported rings of other servers. Ask before [`Bells::next_rung`].
    pub(super) fn has_mail(&self) -> bool {
        self.reports.contains(&MAIL)
    }

    /// Whether the last wait reported requests. Ask before [`Bells::next_rung`].
    pub(super) fn has_requests(&self) -> bool {
        self.reports.contains(&REQUESTS)
    }
}

/// Also after a panic: nothing else would wake applications that sleep.
impl Drop for Bells {
    fn drop(&mut self) {
        self.ends.iter().flatten().for_each(SleepingEnd::mark_ended);
    }
}
