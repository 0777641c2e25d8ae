//! A world: two ends, a link with faults, and one clock that leaps to where something happens.
//!
//! Invariant: nothing in here asks a real clock, so a seed is the same world each time.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use megapipe_link::{Fault, LinkMedium, PairConfig, pair};
use megapipe_stack::{CloseReason, ConnectError, Instant};

use crate::ours::Ours;
use crate::scenario::Scenario;
use crate::theirs::Theirs;

pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// A world that is not over by then is stuck. A stream may rest for minutes where retransmissions
/// are lost again and again.
const TIME_MAX: Duration = Duration::from_secs(4 * 3_600);
/// Leaps of the clock in one world.
const LEAPS_MAX: u64 = 3_000_000;
/// Turns without a leap.
const TURNS_MAX: u64 = 200_000;
/// Smallest step of the virtual clock, for an end that requests an immediate call.
const LEAP_MIN: Duration = Duration::from_micros(20);

/// One of the two ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Theirs,
}

/// Where an end is.
pub(crate) fn address(is_ipv6: bool, side: Side) -> IpAddr {
    let last = match side {
        Side::Ours => 1,
        Side::Theirs => 2,
    };
    if is_ipv6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])
    } else {
        IpAddr::from([10, 0, 0, last as u8])
    }
}

/// Where the listener of an exchange is.
pub(crate) fn port(number: usize) -> u16 {
    7_000 + number as u16
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NotBegun {
        number: usize,
        error: ConnectError,
    },
    NeverConnected {
        number: usize,
    },
    WrongBytes {
        number: usize,
        side: Side,
    },
    EndedEarly {
        number: usize,
        side: Side,
    },
    ClosedBecause {
        number: usize,
        reason: CloseReason,
    },
    /// An event of a connection that is over, or of none.
    Unknown,
    Leaked {
        buffers: usize,
    },
    /// Nothing happens any more, or too much; how things stand.
    Stuck {
        at_s: u64,
        state: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck { at_s, state } => write!(f, "stuck after {at_s} s: {state}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// What was done.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) worlds: u64,
    pub(crate) streams: u64,
    pub(crate) bytes: u64,
    /// Frames that met a fault.
    pub(crate) harmed: u64,
    pub(crate) leaps: u64,
    /// Worlds in which smoltcp had bytes to send and an open window, and stopped.
    pub(crate) peer_stopped: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.streams += other.streams;
        self.bytes += other.bytes;
        self.harmed += other.harmed;
        self.leaps += other.leaps;
        self.peer_stopped += other.peer_stopped;
    }
}

/// Runs a world to its end.
pub(crate) fn run(scenario: &Scenario) -> Result<Outcome, Failure> {
    let medium = if scenario.is_ethernet { LinkMedium::Ethernet } else { LinkMedium::Ip };
    let mtu = scenario.mtu.into();
    let config = PairConfig { medium, mtu, macs: [OUR_MAC, THEIR_MAC], ..PairConfig::default() };
    let (near, far) = pair(&config).expect("memory");
    let nanos = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&nanos);
    // Relaxed: one thread.
    let clock = Box::new(move || Duration::from_nanos(clock.load(Ordering::Relaxed)));
    let link = Fault::new(near, scenario.seed, scenario.inward, scenario.outward, clock);
    let mut now = Instant::ZERO;
    let mut ours = Ours::new(scenario, link, now)?;
    let mut theirs = Theirs::new(scenario, far, now);
    let (mut leaps, mut peer_stopped) = (0, 0);
    loop {
        let stuck = |ours: &Ours, theirs: &Theirs| Failure::Stuck {
            at_s: now.as_millis() / 1_000,
            state: format!("{}; {}", ours.state(), theirs.state()),
        };
        let mut turns = 0;
        while ours.turn(now)? | theirs.turn(now)? {
            turns += 1;
            if turns > TURNS_MAX {
                return Err(stuck(&ours, &theirs));
            }
        }
        if ours.is_done() && theirs.is_done() {
            break;
        }
        let next = ours.next().into_iter().chain(theirs.next(now)).min();
        if next.is_none() && ours.is_peers_turn() && theirs.has_stopped(now) {
            // A sender has to probe a window that it takes for closed, as long as it has something
            // to send (RFC 9293 §3.8.6.1: MUST-36), whatever became of our updates. smoltcp 0.14
            // stops for good now and then, where windows are tiny and segments come out of order.
            peer_stopped = 1;
            break;
        }
        let Some(next) = next else { return Err(stuck(&ours, &theirs)) };
        leaps += 1;
        if leaps > LEAPS_MAX || now.since(Instant::ZERO) > TIME_MAX {
            return Err(stuck(&ours, &theirs));
        }
        now = next.max(now + LEAP_MIN);
        nanos.store(now.as_nanos(), Ordering::Relaxed);
    }
    if peer_stopped == 0 {
        ours.check_nothing_held()?;
    }
    let streams = &scenario.exchanges;
    Ok(Outcome {
        worlds: 1,
        streams: streams.len() as u64,
        bytes: streams.iter().map(|it| it.ours_len + it.theirs_len).sum(),
        harmed: ours.harmed(),
        peer_stopped,
        leaps,
    })
}
