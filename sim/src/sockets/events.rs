//! A program that serves and asks on many connections at once: no call on a connection waits, and
//! one call waits for all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use megapipe_sockets::{Bsd, Error, Events, Fd, OpenFlags};
use megapipe_stack::Instant;

use super::ProgramSetting;
use super::end::{EndStep, SocketEnd};
use super::pace::Calls;
use super::wait::Waiter;
use crate::check::Violation;
use crate::check::streams::CheckedStream;
use crate::host::address;
use crate::program::PORT;

/// Steps on one connection before the others have theirs.
const STEPS: u32 = 8;
/// Rounds without a byte before a program that is ready for something else pauses.
const FRUITLESS_MAX: u32 = 16;
/// A program looks so often whether all is over.
pub(super) const LOOKS_AT_LEAST: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

struct Loop<'a> {
    setting: &'a ProgramSetting,
    waiter: Waiter,
    listener: Fd,
    ends: BTreeMap<Fd, SocketEnd>,
    to_begin: Vec<(CheckedStream, SocketAddr)>,
    begin_at: Option<Instant>,
    /// It looks for room also while it has nothing to write.
    is_greedy: bool,
    fruitless: u32,
}

/// A listener at the port of all servers.
pub(super) fn listen(
    calls: &mut Calls,
    setting: &ProgramSetting,
    flags: i32,
) -> Result<Fd, Violation> {
    let ProgramSetting { scenario, host, .. } = setting;
    let family = if scenario.v6 { libc::AF_INET6 } else { libc::AF_INET };
    let fd = calls.must("socket", |it| it.socket(family, libc::SOCK_STREAM | flags, 0))?;
    let here = SocketAddr::new(address(scenario, *host), PORT);
    calls.must("bind", |it| it.bind(fd, here))?;
    calls.must("listen", |it| it.listen(fd, BACKLOG))?;
    Ok(fd)
}

/// Serves until all is over, and begins its connections.
pub(super) fn run(calls: &mut Calls, setting: &ProgramSetting) -> Result<(), Violation> {
    let waiter = Waiter::new(calls)?;
    let listener = listen(calls, setting, libc::SOCK_NONBLOCK)?;
    let mut it = Loop {
        setting,
        waiter,
        listener,
        ends: BTreeMap::new(),
        to_begin: setting.to_begin.clone(),
        begin_at: None,
        is_greedy: calls.rng.u32(..4) == 0,
        fruitless: 0,
    };
    while it.round(calls)? {}
    let Loop { ends, .. } = it;
    ends.into_values().try_for_each(|end| end.close(calls))
}

impl Loop<'_> {
    /// Waits and acts. `false`: nothing comes any more.
    fn round(&mut self, calls: &mut Calls) -> Result<bool, Violation> {
        if calls.is_finished() {
            return Ok(false);
        }
        self.begin(calls)?;
        calls.note_open(self.ends.len() + self.to_begin.len());
        let wanted = self.wanted(calls.now());
        let timeout = self.timeout(calls.now());
        let ready = self.waiter.wait(calls, &wanted, timeout)?;
        for (fd, events) in ready {
            if fd == self.listener {
                // By edge, no event reports those that are left.
                while self.accept(calls)? {}
            } else if let Some(end) = self.ends.get_mut(&fd) {
                let over = events.intersects(Events::HUP | Events::ERR);
                end.may_read |= over || events.intersects(Events::IN | Events::RDHUP);
                end.may_write |= over || events.contains(Events::OUT);
            }
        }
        let fds: Vec<Fd> = self.ends.keys().copied().collect();
        let mut has_moved = false;
        for fd in fds {
            has_moved |= self.act(calls, fd)?;
        }
        self.fruitless = if has_moved { 0 } else { self.fruitless + 1 };
        if self.fruitless > FRUITLESS_MAX {
            let more = (self.fruitless - FRUITLESS_MAX).min(10);
            calls.sleep(Duration::from_micros(100 << more));
        }
        Ok(true)
    }

    fn wanted(&self, now: Instant) -> Vec<(Fd, Events)> {
        let mut wanted = vec![(self.listener, Events::IN)];
        for (fd, end) in &self.ends {
            let mut events = Events::empty();
            let stalls = end.stalled_until.is_some_and(|at| at > now);
            if end.wants_to_read() && !stalls && !end.is_connecting {
                events |= Events::IN;
            }
            if end.wants_to_write() || self.is_greedy || end.is_connecting {
                events |= Events::OUT;
            }
            wanted.push((*fd, events));
        }
        wanted
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        // By edge, no event reports what was there before.
        if self.ends.values().any(SocketEnd::can_go_on) {
            return Some(Duration::ZERO);
        }
        let stalls = self.ends.values().filter_map(|end| end.stalled_until);
        let at = stalls.chain(self.begin_at).min().unwrap_or(now + LOOKS_AT_LEAST);
        Some((at.since(now.min(at)) + Duration::from_micros(1)).min(LOOKS_AT_LEAST))
    }

    /// Takes a connection. Whether there was one.
    fn accept(&mut self, calls: &mut Calls) -> Result<bool, Violation> {
        let listener = self.listener;
        match calls.call(|it| it.accept4(listener, OpenFlags::NONBLOCK)) {
            Ok(fd) => {
                let buffer = self.setting.scenario.tcp[self.setting.host].receive_buffer;
                self.ends.insert(fd, SocketEnd::new(calls, fd, None, buffer)?);
                Ok(true)
            }
            Err(Error::Aborted) => Ok(true),
            Err(Error::WouldBlock) => Ok(false),
            Err(error) => Err(calls.failed("accept4", error)),
        }
    }

    /// Begins a connection, if it is time to.
    fn begin(&mut self, calls: &mut Calls) -> Result<(), Violation> {
        if self.begin_at.is_some_and(|at| at > calls.now()) {
            return Ok(());
        }
        let Some((stream, remote)) = self.to_begin.pop() else { return Ok(()) };
        let end = connect(calls, self.setting, (stream, remote), libc::SOCK_NONBLOCK)?;
        self.ends.insert(end.fd, end);
        let pause = Duration::from_micros(1 << calls.rng.u32(1..15));
        self.begin_at = (!self.to_begin.is_empty()).then(|| calls.now() + pause);
        Ok(())
    }

    /// Lets a connection go on as far as it can. Whether it did.
    fn act(&mut self, calls: &mut Calls, fd: Fd) -> Result<bool, Violation> {
        let Some(end) = self.ends.get_mut(&fd) else { return Ok(false) };
        if end.is_connecting && end.may_write {
            let plan = end.plan;
            if let Some((stream, remote)) = plan
                && !is_connected(calls, self.setting, (fd, remote))?
            {
                self.waiter.forget(fd);
                self.ends.remove(&fd);
                calls.must("close", |it| it.close(fd))?;
                self.to_begin.push((stream, remote));
                self.begin_at = Some(calls.now() + Duration::from_millis(100));
                return Ok(true);
            }
            end.is_connecting = false;
        }
        if end.is_connecting {
            return Ok(false);
        }
        if end.stalled_until.is_some_and(|at| at <= calls.now()) {
            end.stalled_until = None;
        }
        let (mut has_moved, mut is_broken) = (false, false);
        for _ in 0..STEPS {
            let mut goes_on = false;
            if end.may_read && end.stalled_until.is_none() && end.wants_to_read() {
                let step = end.read(calls)?;
                is_broken |= step == EndStep::Broken;
                end.may_read = step == EndStep::Moved;
                goes_on |= step == EndStep::Moved;
                has_moved |= step != EndStep::WouldWait;
                let stall = SocketEnd::draw_stall(calls, self.setting.scenario.stall);
                end.stalled_until = stall.map(|stall| calls.now() + stall);
            }
            if end.may_write && end.wants_to_write() && !is_broken {
                let step = end.write(calls)?;
                is_broken |= step == EndStep::Broken;
                end.may_write = step != EndStep::WouldWait;
                goes_on |= step == EndStep::Moved;
                has_moved |= step != EndStep::WouldWait;
            }
            if is_broken || !goes_on {
                break;
            }
        }
        let is_over = is_broken || end.is_over();
        self.is_asked_again(fd);
        if is_over && let Some(end) = self.ends.remove(&fd) {
            self.waiter.forget(fd);
            end.close(calls)?;
        }
        Ok(has_moved)
    }

    /// By level the next wait tells anew what a connection is ready for.
    fn is_asked_again(&mut self, fd: Fd) {
        if let Some(end) = self.ends.get_mut(&fd)
            && !self.waiter.is_by_edge()
        {
            (end.may_read, end.may_write) = (false, false);
        }
    }
}

/// A socket that connects; `flags`: whether the call waits.
pub(super) fn connect(
    calls: &mut Calls,
    setting: &ProgramSetting,
    (stream, remote): (CheckedStream, SocketAddr),
    flags: i32,
) -> Result<SocketEnd, Violation> {
    let family = if setting.scenario.v6 { libc::AF_INET6 } else { libc::AF_INET };
    let fd = calls.must("socket", |it| it.socket(family, libc::SOCK_STREAM | flags, 0))?;
    let buffer = setting.scenario.tcp[setting.host].receive_buffer;
    let mut end = SocketEnd::new(calls, fd, Some(stream), buffer)?;
    end.plan = Some((stream, remote));
    end.is_connecting = true;
    if flags & libc::SOCK_NONBLOCK != 0 {
        (end.may_read, end.may_write) = (false, false);
        match calls.call(|it| it.connect(fd, Some(remote))) {
            Ok(()) | Err(Error::InProgress) => {}
            Err(error) => return Err(calls.failed("connect", error)),
        }
    }
    Ok(end)
}

/// Whether a handshake has succeeded that is over. One may fail where the peer's neighbour cannot
/// be asked because a link is cut.
pub(super) fn is_connected(
    calls: &mut Calls,
    setting: &ProgramSetting,
    (fd, remote): (Fd, SocketAddr),
) -> Result<bool, Violation> {
    let is_cut = setting.scenario.ethernet && !setting.scenario.outages.is_empty();
    match calls.call(|it| it.connect(fd, Some(remote))) {
        Ok(()) | Err(Error::AlreadyConnected) => Ok(true),
        Err(Error::HostUnreachable | Error::TimedOut) if is_cut => Ok(false),
        Err(error) => Err(calls.failed("connect", error)),
    }
}
