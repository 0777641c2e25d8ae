//! `pair`: two connected links in memory. For tests, and for two stacks in one
//! process: both ends in one thread, or one in each of two threads.
//!
//! Read first: [`pair`], then `pair/ring.rs` for the memory between the ends.
//!
//! Invariants
//! - Frames are not copied: the sender fills the slot that is lent to the receiver.
//! - A sleeper sets `is_asleep` before its last check of the ring; a sender reads `is_asleep` after
//!   it publishes. So at least one of them sees the other's write.
//! - An end that is dropped leaves its frames behind: they are received before `Gone`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

use crate::limits::{ETHERNET_HEADER_BYTES, OFFLOAD_FRAME_BYTES, PAIR_FRAMES_MAX};
use crate::{
    Caps, FrameCounters, Link, LinkError, LinkMedium, MacAddress, RxChecksum, RxMetadata,
    TxMetadata,
};

mod ring;

use ring::{PairConsumer, PairProducer};

const DRIVER: &str = "pair";

/// How a pair is made. Both ends are alike but for their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairConfig {
    /// What frames start with.
    pub medium: LinkMedium,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// Frames that wait in each direction; a power of two.
    pub frames: usize,
    /// Checksums are vouched for and large TCP frames pass whole, as between virtual machines of
    /// one host.
    pub offloads: bool,
    /// The Ethernet addresses of the first and the second end.
    pub macs: [MacAddress; 2],
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            medium: LinkMedium::Ethernet,
            mtu: 1500,
            frames: 512,
            offloads: false,
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        }
    }
}

impl PairConfig {
    fn check(&self) -> Result<(), LinkError> {
        let fail = |setting, why: String| Err(LinkError::Setting { setting, why });
        if !self.frames.is_power_of_two() || self.frames > PAIR_FRAMES_MAX {
            let why = format!("{} is no power of two up to {PAIR_FRAMES_MAX}", self.frames);
            return fail("frames", why);
        }
        if !(68..=65_535).contains(&self.mtu) {
            return fail("mtu", format!("{} is not within 68-65535", self.mtu));
        }
        Ok(())
    }

    fn caps(&self, mac: MacAddress) -> Caps {
        let header_bytes = match self.medium {
            LinkMedium::Ethernet => ETHERNET_HEADER_BYTES,
            LinkMedium::Ip => 0,
        };
        let plain = self.mtu + header_bytes;
        Caps {
            driver: DRIVER,
            medium: self.medium,
            mac: if self.medium == LinkMedium::Ethernet { mac } else { [0; 6] },
            mtu: self.mtu,
            tx_frame_bytes: if self.offloads { plain.max(OFFLOAD_FRAME_BYTES) } else { plain },
            tx_checksum: self.offloads,
            tso: self.offloads,
            shares_host_address: false,
            rss: None,
            notes: Vec::new(),
        }
    }
}

/// Makes a pair: what one end sends, the other receives.
///
/// # Errors
/// [`LinkError::Setting`] for a setting out of range, [`LinkError::Io`] when the process has no
/// descriptor left for the two eventfds.
pub fn pair(config: &PairConfig) -> Result<(Pair, Pair), LinkError> {
    config.check()?;
    let bells = Arc::new([PairBell::new()?, PairBell::new()?]);
    let frame_bytes = config.caps([0; 6]).tx_frame_bytes;
    let (there_out, here_in) = ring::ring(config.frames, frame_bytes);
    let (here_out, there_in) = ring::ring(config.frames, frame_bytes);
    let end = |which: usize, outgoing, incoming| Pair {
        caps: config.caps(config.macs[which]),
        counters: FrameCounters::default(),
        outgoing,
        incoming,
        bells: Arc::clone(&bells),
        which,
        is_armed: false,
        was_full: false,
    };
    Ok((end(0, here_out, here_in), end(1, there_out, there_in)))
}

/// Where one end sleeps.
#[derive(Debug)]
struct PairBell {
    /// The end sleeps, or is about to: ring.
    is_asleep: AtomicBool,
    eventfd: OwnedFd,
}

impl PairBell {
    fn new() -> Result<Self, LinkError> {
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|source| LinkError::Io { what: "make an eventfd", source: source.into() })?;
        Ok(Self { is_asleep: AtomicBool::new(false), eventfd })
    }

    /// Wakes the end if it sleeps. Call after publishing. `true`: a system call was made.
    fn ring(&self) -> bool {
        // Pairs with the fence in `Pair::arm`: either we see `is_asleep`, or it sees what we
        // published before this fence.
        fence(Ordering::SeqCst);
        if !self.is_asleep.load(Ordering::Relaxed) {
            return false;
        }
        // Only the thread that clears the flag writes the eventfd. Relaxed: the eventfd orders the
        // rest.
        if !self.is_asleep.swap(false, Ordering::Relaxed) {
            return false;
        }
        // Cannot fail: the counter is at most 1, and the descriptor lives as long as both ends.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        true
    }

    /// Takes back a ring that was not needed or has been heard.
    fn silence(&self) {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }
}

/// One end of a pair.
#[derive(Debug)]
pub struct Pair {
    caps: Caps,
    counters: FrameCounters,
    outgoing: PairProducer,
    incoming: PairConsumer,
    bells: Arc<[PairBell; 2]>,
    /// Which bell is ours.
    which: usize,
    is_armed: bool,
    /// The last `tx_burst` ended because there was no room.
    was_full: bool,
}

impl Pair {
    fn ring_other(&mut self) {
        self.counters.system_calls += u64::from(self.bells[1 - self.which].ring());
    }

    /// Awake: the other end need not ring.
    fn disarm(&mut self) {
        if self.is_armed {
            self.is_armed = false;
            // Relaxed: a ring that comes all the same is taken back by the next `arm`.
            self.bells[self.which].is_asleep.store(false, Ordering::Relaxed);
        }
    }

    fn has_work(&mut self) -> bool {
        self.incoming.has_frame()
            || self.incoming.is_abandoned()
            || (self.was_full && self.outgoing.has_room())
    }
}

/// Adjusts what is known about a frame as it passes from a sender to a receiver.
fn received(transmit: TxMetadata) -> RxMetadata {
    let is_vouched = transmit.checksum_start != 0 || transmit.segment_bytes != 0;
    RxMetadata {
        checksums: if is_vouched { RxChecksum::Verified } else { RxChecksum::Unverified },
        segment_bytes: transmit.segment_bytes,
    }
}

impl Link for Pair {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        self.disarm();
        let counters = &mut self.counters;
        let count = self.incoming.take(max, &mut |bytes, transmit| {
            counters.rx_frames += 1;
            counters.rx_bytes += bytes.len() as u64;
            each(bytes, received(transmit));
        });
        if count > 0 {
            self.ring_other();
        } else if max > 0 && self.incoming.is_abandoned() && !self.incoming.has_frame() {
            // Looked for frames again: the last ones were published before the flag.
            return Err(LinkError::Gone { driver: DRIVER });
        }
        Ok(count)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        self.disarm();
        if self.outgoing.is_abandoned() {
            return Err(LinkError::Gone { driver: DRIVER });
        }
        self.was_full = false;
        let mut count = 0;
        while count < max {
            let Some(room) = self.outgoing.room() else {
                self.was_full = true;
                self.counters.tx_full += 1;
                break;
            };
            let Some(transmit) = fill(room) else { break };
            count += 1;
            if transmit.len == 0 || transmit.len > self.caps.tx_frame_bytes {
                self.counters.tx_dropped_refused += 1;
                continue;
            }
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += transmit.len as u64;
            self.outgoing.put(transmit);
        }
        if count > 0 {
            self.outgoing.publish();
            self.ring_other();
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        let bells = Arc::clone(&self.bells);
        let bell = &bells[self.which];
        bell.silence();
        self.counters.system_calls += 1;
        bell.is_asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `PairBell::ring`.
        fence(Ordering::SeqCst);
        self.is_armed = true;
        if self.has_work() {
            self.disarm();
            return Ok(false);
        }
        Ok(true)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bells[self.which].eventfd.as_fd()
    }

    fn slept(&mut self) {
        self.counters.system_calls += 1;
        self.disarm();
    }

    fn counters(&self) -> FrameCounters {
        self.counters
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.outgoing.abandon();
        self.incoming.abandon();
        self.bells[1 - self.which].ring();
    }
}

#[cfg(test)]
mod tests;
