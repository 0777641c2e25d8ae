//! The ways in which a program with many sockets waits: poll(2), select(2), and epoll(7) by level
//! and by edge.

use std::collections::BTreeMap;
use std::time::Duration;

use megapipe_sockets::{Bsd, EpollEvent, EpollOp, Events, Fd, FdSet, OpenFlags, PollFd};

use super::pace::Calls;
use crate::check::Violation;

/// How a program waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMethod {
    Poll,
    Select,
    Level,
    Edge,
}

/// What is watched, and how.
pub(super) struct Waiter {
    way: WaitMethod,
    epoll: Fd,
    /// What the epoll set watches.
    watched: BTreeMap<Fd, Events>,
}

const ALL: Events = Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::PRI);

impl Waiter {
    pub(super) fn new(calls: &mut Calls) -> Result<Self, Violation> {
        let way = [WaitMethod::Poll, WaitMethod::Select, WaitMethod::Level, WaitMethod::Edge]
            [calls.rng.usize(..4)];
        let epoll = calls.must("epoll_create1", |it| it.epoll_create1(OpenFlags::empty()))?;
        Ok(Self { way, epoll, watched: BTreeMap::new() })
    }

    /// Events are reported once, when they happen.
    pub(super) fn is_by_edge(&self) -> bool {
        self.way == WaitMethod::Edge
    }

    /// A descriptor is about to be closed.
    pub(super) fn forget(&mut self, fd: Fd) {
        // Closing takes it out of the set.
        self.watched.remove(&fd);
    }

    /// Waits until one of `wanted` is ready, at most `timeout`: what each is ready for.
    pub(super) fn wait(
        &mut self,
        calls: &mut Calls,
        wanted: &[(Fd, Events)],
        timeout: Option<Duration>,
    ) -> Result<Vec<(Fd, Events)>, Violation> {
        match self.way {
            WaitMethod::Poll => poll(calls, wanted, timeout),
            WaitMethod::Select => select(calls, wanted, timeout),
            WaitMethod::Level | WaitMethod::Edge => self.epoll(calls, wanted, timeout),
        }
    }

    fn epoll(
        &mut self,
        calls: &mut Calls,
        wanted: &[(Fd, Events)],
        timeout: Option<Duration>,
    ) -> Result<Vec<(Fd, Events)>, Violation> {
        let (set, is_by_edge) = (self.epoll, self.is_by_edge());
        for (fd, events) in wanted.iter().copied() {
            let events = if is_by_edge { ALL | Events::EDGE } else { events };
            let event = EpollEvent { events, data: fd as u64 };
            let op = match self.watched.insert(fd, events) {
                None => EpollOp::Add(event),
                Some(before) if before != events => EpollOp::Modify(event),
                Some(_) => continue,
            };
            calls.must("epoll_ctl", |it| it.epoll_ctl(set, op, fd))?;
        }
        let mut events = [EpollEvent::default(); 16];
        let count = calls.must("epoll_wait", |it| it.epoll_wait(set, &mut events, timeout))?;
        Ok(events[..count].iter().map(|it| (it.data as Fd, it.events)).collect())
    }
}

fn poll(
    calls: &mut Calls,
    wanted: &[(Fd, Events)],
    timeout: Option<Duration>,
) -> Result<Vec<(Fd, Events)>, Violation> {
    let mut fds: Vec<PollFd<'_>> =
        wanted.iter().map(|(fd, events)| PollFd::new(*fd, *events)).collect();
    let count = calls.must("poll", |it| it.poll(&mut fds, timeout))?;
    let ready = wanted.iter().zip(&fds).map(|((fd, _), it)| (*fd, it.revents));
    let ready: Vec<_> = ready.filter(|(_, events)| !events.is_empty()).collect();
    debug_assert_eq!(ready.len(), count);
    Ok(ready)
}

fn select(
    calls: &mut Calls,
    wanted: &[(Fd, Events)],
    timeout: Option<Duration>,
) -> Result<Vec<(Fd, Events)>, Violation> {
    let kinds = [Events::IN, Events::OUT, Events::PRI];
    let place = |fd: Fd| (fd as usize / 64, 1_u64 << (fd % 64));
    let words = wanted.iter().map(|(fd, _)| place(*fd).0 + 1).max().unwrap_or(0);
    let mut sets: [FdSet; 3] = kinds.map(|kind| {
        let mut set = vec![0; words];
        for (fd, _) in wanted.iter().filter(|(_, events)| events.contains(kind)) {
            set[place(*fd).0] |= place(*fd).1;
        }
        set
    });
    calls.must("select", |it| it.select(&mut sets, timeout))?;
    let ready_for = |fd: Fd| {
        let (word, bit) = place(fd);
        let is_in = |set: &FdSet| set.get(word).is_some_and(|it| it & bit != 0);
        let ready = kinds.iter().zip(&sets).filter(|(_, set)| is_in(set));
        ready.fold(Events::empty(), |events, (kind, _)| events | *kind)
    };
    let ready = wanted.iter().map(|(fd, _)| (*fd, ready_for(*fd)));
    Ok(ready.filter(|(_, events)| !events.is_empty()).collect())
}
