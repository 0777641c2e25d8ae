//! A channel's session of a daemon: how it begins, and how a daemon that is back is found.
//!
//! Read first: `megapipe_service::attach`.
//!
//! Invariants
//! - While there is no daemon, attempts to attach take at most a tenth of the time.
//! - The descriptor that a sleeping program waits for is the same in all sessions: an epoll set
//!   that contains the bell of the present one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant as Time};

use megapipe_service::attach::{AttachError, attach, attach_by_token};
use megapipe_service::limits::{LANE_EVENTS, LANE_OPS, LARGE_SENDS, SMALL_SENDS};
use megapipe_service::{LaneSet, SessionSizes};
use megapipe_stack::Instant;
use rustix::event::epoll;

use super::service_address::ServiceAddress;
use crate::config::Config;
use crate::error::CreateError;
use crate::limits::{DAEMON_LOOK_PERIOD, REATTACH_PERIOD, SERVICE_RESERVE_BYTES};

/// Pause after an attempt, in units of the time that it took.
const PAUSE_FACTOR: u32 = 9;

/// What a session of a daemon has besides its client.
pub(super) struct DaemonSession {
    address: ServiceAddress,
    /// Time of the last look whether the daemon's process is there.
    looked_at: Instant,
    /// Time of the next attempt to attach again. `None`: the daemon is there.
    next_attempt: Option<Instant>,
    /// Set with the session's bell. Empty while the daemon is gone.
    bells: OwnedFd,
    /// Connections start with Nagle's algorithm. The daemon's start without.
    pub(super) nagle: bool,
}

impl DaemonSession {
    /// Attaches to the daemon at an address. Blocks for a second at most.
    ///
    /// # Errors
    /// [`CreateError::Service`] names the path and what is missing or refused there;
    /// [`CreateError::Kernel`]: no descriptor is left.
    pub(super) fn begin(
        address: &ServiceAddress,
        config: &Config,
    ) -> Result<(Self, LaneSet), CreateError> {
        let client = attach_to(address, config).map_err(CreateError::Service)?;
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|bells| {
            add_bell(&bells, &client)?;
            Ok(bells)
        });
        let bells = bells
            .map_err(|errno| CreateError::Kernel { what: "an epoll set", source: errno.into() })?;
        let (address, looked_at) = (address.clone(), Instant::from_nanos(0));
        let (next_attempt, nagle) = (None, config.nagle);
        Ok((Self { address, looked_at, next_attempt, bells, nagle }, client))
    }

    /// Whether the daemon is gone.
    pub(super) const fn is_gone(&self) -> bool {
        self.next_attempt.is_some()
    }

    /// The daemon of this client has ended.
    pub(super) fn end(&mut self, now: Instant, client: &LaneSet) {
        // Readable from now on, and of no use.
        let _ = epoll::delete(&self.bells, client.wait_fd());
        self.next_attempt = Some(now);
    }

    /// Whether it is time to look if the daemon's process is there.
    pub(super) fn is_look_due(&mut self, now: Instant) -> bool {
        let is_due = now.since(self.looked_at) >= DAEMON_LOOK_PERIOD;
        if is_due {
            self.looked_at = now;
        }
        is_due
    }

    /// Time until the next attempt to attach. `None`: the daemon is there.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        self.next_attempt.map(|at| at.since(now))
    }

    /// Tries to attach again, if it is time for it. Blocks for a second at most: where a daemon
    /// listens and does not answer.
    #[cold]
    pub(super) fn attach_again(&mut self, now: Instant, config: &Config) -> Option<LaneSet> {
        let at = self.next_attempt.filter(|at| *at <= now)?;
        let began = Time::now();
        let client = attach_to(&self.address, config).ok();
        let client = client.filter(|client| add_bell(&self.bells, client).is_ok());
        let took = began.elapsed();
        let pause = REATTACH_PERIOD.max(took * PAUSE_FACTOR);
        self.next_attempt = client.is_none().then(|| at.max(now) + took + pause);
        client
    }

    /// Readable when the daemon rings.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bells.as_fd()
    }
}

fn add_bell(bells: &OwnedFd, client: &LaneSet) -> rustix::io::Result<()> {
    epoll::add(bells, client.wait_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

fn attach_to(address: &ServiceAddress, config: &Config) -> Result<LaneSet, AttachError> {
    let (path, name, wanted) = (address.path(), program_name(), wanted(config));
    match address.token() {
        Some(token) => attach_by_token(token, path, &name, &wanted),
        None => attach(path, &name, &wanted),
    }
}

/// The sizes that a channel asks for: receive buffers of its own size, and some more.
fn wanted(config: &Config) -> SessionSizes {
    let reserve = (SERVICE_RESERVE_BYTES / config.buffer_len) as u32;
    SessionSizes {
        ops: LANE_OPS,
        events: LANE_EVENTS,
        receive_bytes: config.buffer_len as u32,
        receive_buffers: u32::from(config.buffer_count) + reserve,
        small_sends: SMALL_SENDS / 4,
        // Each of the 128 segments of a UDP_SEGMENT send takes one, and as many stay free for
        // other sockets.
        large_sends: LARGE_SENDS / 2,
    }
}

/// The name of the thread that attaches, as ps(1) shows it.
fn program_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}
