//! Fault injection: a link wrapper that drops, duplicates, reorders, corrupts and delays frames.
//!
//! Read first: [`Faults`] for the kinds of faults, then `Path` for the processing of a frame.
//!
//! Time comes from a closure, randomness from the seed: the same frames at the same times have the
//! same faults. Each direction has its own faults and generator, so that sent frames do not
//! influence the faults of received ones.
//!
//! Invariants
//! - Nothing is allocated after the link was made: delayed frames lie in slots of a fixed number,
//!   and a frame that finds none is lost, and counted.
//! - Chance is drawn the same number of times for each frame, whatever befalls it.
//! - Frames of one delay keep their order, unless reordering picks them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::limits::{FAULT_DELAYED_FRAMES, OFFLOAD_FRAME_BYTES};
use crate::{Caps, FrameCounters, Link, LinkError, Ownership, RxChecksum, RxMetadata, TxMetadata};

mod alarm;

use alarm::Alarm;

/// What goes wrong in one direction. Chances are in parts of a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// A frame is lost.
    pub loss_ppm: u32,
    /// A frame comes twice.
    pub duplication_ppm: u32,
    /// A frame is held back by `reordering_delay`, so that others overtake it.
    pub reordering_ppm: u32,
    /// How long such a frame is held back.
    pub reordering_delay: Duration,
    /// Flips one bit of a frame and marks its checksum as unverified. Frames that the link still
    /// has to segment or checksum are not corrupted: the new checksum would hide the damage.
    pub corruption_ppm: u32,
    /// Every frame is delayed by this.
    pub delay: Duration,
    /// And by a random time up to this. Frames overtake each other then.
    pub jitter: Duration,
}

/// What befell the frames of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounters {
    /// Frames that came to the fault.
    pub frames: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// With a bit turned over.
    pub corrupted: u64,
    /// Lost because too many frames were delayed already.
    pub overflowed: u64,
}

/// Time since some start; never goes back.
pub type Clock = Box<dyn FnMut() -> Duration + Send>;

/// A link with faults in both directions.
///
/// A delayed frame requires a call when it is due: [`Link::wait`] wakes for it, and [`Link::arm`]
/// reports work only once it is due. Callers that sleep on [`Link::wait_fd`] must also wake at
/// [`Fault::next_due`], unless the link was made by
/// [`Fault::in_real_time`].
pub struct Fault<L> {
    link: L,
    clock: Clock,
    /// Wakes for delayed frames, where the clock is the kernel's.
    alarm: Option<Alarm>,
    inward: Path<RxMetadata>,
    outward: Path<TxMetadata>,
    counters: FrameCounters,
    /// The last `tx_burst` ended because too many frames are delayed.
    was_full: bool,
    /// Where `fill` writes.
    scratch: Box<[u8]>,
}

impl<L: Link> Fault<L> {
    /// Puts faults before and behind `link`.
    pub fn new(link: L, seed: u64, inward: Faults, outward: Faults, clock: Clock) -> Self {
        let bytes = link.caps().tx_frame_bytes.max(link.caps().mtu + 18);
        let rx_bytes = if link.caps().tso { OFFLOAD_FRAME_BYTES.max(bytes) } else { bytes };
        Self {
            clock,
            alarm: None,
            inward: Path::new(inward, seed, rx_bytes),
            // Another start of the same generator.
            outward: Path::new(outward, seed ^ 0x9e37_79b9_7f4a_7c15, bytes),
            counters: FrameCounters::default(),
            was_full: false,
            scratch: vec![0; bytes].into(),
            link,
        }
    }

    /// The same with the kernel's monotonic clock: [`Link::wait_fd`] becomes readable for delayed
    /// frames.
    ///
    /// # Errors
    /// [`LinkError::Io`] when the process has no descriptor left for the timer.
    pub fn in_real_time(
        link: L,
        seed: u64,
        inward: Faults,
        outward: Faults,
    ) -> Result<Self, LinkError> {
        let start = Instant::now();
        let mut fault = Self::new(link, seed, inward, outward, Box::new(move || start.elapsed()));
        let alarm = Alarm::new(fault.link.wait_fd());
        fault.alarm = Some(alarm.map_err(|source| LinkError::Io { what: "set a timer", source })?);
        Ok(fault)
    }

    /// Sets other faults. Frames that are delayed already keep their time.
    pub fn set(&mut self, inward: Faults, outward: Faults) {
        self.inward.faults = inward;
        self.outward.faults = outward;
    }

    /// What befell received and sent frames.
    pub fn fault_counters(&self) -> (FaultCounters, FaultCounters) {
        (self.inward.counters, self.outward.counters)
    }

    /// When the next delayed frame is due, by the clock; `None`: none is delayed.
    pub fn next_due(&self) -> Option<Duration> {
        let dues = [self.inward.next_due(), self.outward.next_due()];
        dues.into_iter().flatten().min()
    }

    /// Takes in what has arrived, as far as there are slots.
    fn take_in(&mut self, now: Duration) -> Result<(), LinkError> {
        let Self { link, inward, .. } = self;
        while inward.has_room() {
            // Two slots for each frame: it may be doubled.
            let max = inward.room() / 2;
            let take = &mut |frame: &[u8], received| inward.add(now, frame, received);
            if link.rx_burst(max, take)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Hands over what is due, as far as the link takes it.
    fn send_due(&mut self, now: Duration) -> Result<(), LinkError> {
        let Self { link, outward, .. } = self;
        while let Some(slot) = outward.due(now) {
            let (bytes, transmit) = outward.frame(slot);
            let mut is_filled = false;
            let count = link.tx_burst(1, &mut |room| {
                if std::mem::replace(&mut is_filled, true) {
                    return None;
                }
                room[..bytes.len()].copy_from_slice(bytes);
                Some(TxMetadata { len: bytes.len(), ..transmit })
            })?;
            if count == 0 {
                break;
            }
            outward.pop();
        }
        Ok(())
    }
}

impl<L: Link> Link for Fault<L> {
    fn caps(&self) -> &Caps {
        self.link.caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let now = (self.clock)();
        self.send_due(now)?;
        let taken = if max > 0 { self.take_in(now) } else { Ok(()) };
        let mut count = 0;
        while count < max
            && let Some(slot) = self.inward.due(now)
        {
            let (bytes, received) = self.inward.frame(slot);
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += bytes.len() as u64;
            count += 1;
            each(bytes, received);
            self.inward.pop();
        }
        // Frames received before the end are returned first.
        if count == 0 { taken.map(|()| 0) } else { Ok(count) }
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let now = (self.clock)();
        let mut count = 0;
        // An empty burst still checks whether the peer is connected.
        self.link.tx_burst(0, &mut |_| None)?;
        self.was_full = false;
        while count < max {
            if !self.outward.has_room() {
                self.send_due(now)?;
            }
            if !self.outward.has_room() {
                self.was_full = true;
                self.counters.tx_full += 1;
                break;
            }
            let room = &mut self.scratch[..self.link.caps().tx_frame_bytes];
            let Some(transmit) = fill(room) else { break };
            count += 1;
            let Some(frame) = room.get(..transmit.len).filter(|frame| !frame.is_empty()) else {
                self.counters.tx_dropped_refused += 1;
                continue;
            };
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += frame.len() as u64;
            self.outward.add(now, frame, transmit);
        }
        self.send_due(now)?;
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        let now = (self.clock)();
        self.send_due(now)?;
        if self.inward.due(now).is_some() || (self.was_full && self.outward.has_room()) {
            return Ok(false);
        }
        if let Some(alarm) = &self.alarm {
            // What is overdue waits for room, and the link wakes for that.
            let dues = [self.inward.next_due(), self.outward.next_due()];
            let next = dues.into_iter().flatten().filter(|due| *due > now).min();
            self.counters.system_calls += 1;
            alarm
                .set(next.map(|due| due - now))
                .map_err(|source| LinkError::Io { what: "set a timer", source })?;
        }
        self.link.arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_ref().map_or_else(|| self.link.wait_fd(), AsFd::as_fd)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        if !self.arm()? {
            return Ok(true);
        }
        let now = (self.clock)();
        let until_due = self.next_due().map(|due| due.saturating_sub(now));
        let is_due_first = until_due.is_some_and(|due| timeout.is_none_or(|limit| due <= limit));
        let timeout = if is_due_first { until_due } else { timeout };
        Ok(self.link.wait(timeout)? || is_due_first)
    }

    fn counters(&self) -> FrameCounters {
        let below = self.link.counters();
        let own = self.counters;
        FrameCounters {
            rx_frames: own.rx_frames,
            rx_bytes: own.rx_bytes,
            tx_frames: own.tx_frames,
            tx_bytes: own.tx_bytes,
            tx_dropped_refused: own.tx_dropped_refused + below.tx_dropped_refused,
            tx_full: own.tx_full,
            system_calls: own.system_calls + below.system_calls,
            // What the link refused was counted as sent here.
            ..below
        }
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.set_ownership(ownership)
    }

    fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.check_ownership(ownership)
    }
}

impl<L: fmt::Debug> fmt::Debug for Fault<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Fault");
        debug.field("link", &self.link).field("inward", &self.inward.counters);
        debug.field("outward", &self.outward.counters).finish_non_exhaustive()
    }
}

/// What is known about a frame and travels with it.
trait Meta: Copy + Default {
    /// Damage would be hidden by a checksum that is made later.
    fn hides_damage(self) -> bool;
    /// Marks the frame's checksum as unverified.
    fn distrusted(self) -> Self;
}

impl Meta for RxMetadata {
    fn hides_damage(self) -> bool {
        self.segment_bytes != 0
    }

    fn distrusted(self) -> Self {
        Self { checksums: RxChecksum::Unverified, ..self }
    }
}

impl Meta for TxMetadata {
    fn hides_damage(self) -> bool {
        self.checksum_start != 0 || self.segment_bytes != 0
    }

    fn distrusted(self) -> Self {
        self
    }
}

/// A frame on its way.
#[derive(Debug, Clone, Default)]
struct DelayedFrame<M> {
    len: usize,
    meta: M,
}

/// When a slot's frame is due. Frames of one time go in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FrameDue {
    at: Duration,
    number: u64,
    slot: usize,
}

/// One direction: frames between coming and being due.
struct Path<M> {
    faults: Faults,
    chance: fastrand::Rng,
    slots: Box<[DelayedFrame<M>]>,
    /// `frame_bytes` for each slot.
    bytes: Box<[u8]>,
    frame_bytes: usize,
    free: Vec<usize>,
    /// Slots in use, the first due on top. Together with `free` it has each slot once, so neither
    /// grows.
    dues: BinaryHeap<Reverse<FrameDue>>,
    next_number: u64,
    counters: FaultCounters,
}

impl<M: Meta> Path<M> {
    fn new(faults: Faults, seed: u64, frame_bytes: usize) -> Self {
        Self {
            faults,
            chance: fastrand::Rng::with_seed(seed),
            slots: vec![DelayedFrame::default(); FAULT_DELAYED_FRAMES].into(),
            bytes: vec![0; FAULT_DELAYED_FRAMES * frame_bytes].into(),
            frame_bytes,
            free: (0..FAULT_DELAYED_FRAMES).rev().collect(),
            dues: BinaryHeap::with_capacity(FAULT_DELAYED_FRAMES),
            next_number: 0,
            counters: FaultCounters::default(),
        }
    }

    fn room(&self) -> usize {
        self.free.len()
    }

    /// Room for a frame and its double.
    fn has_room(&self) -> bool {
        self.room() >= 2
    }

    /// Decides about one frame.
    fn add(&mut self, now: Duration, frame: &[u8], meta: M) {
        let Faults { delay, jitter, .. } = self.faults;
        self.counters.frames += 1;
        let is_lost = strikes(&mut self.chance, self.faults.loss_ppm);
        let is_doubled = strikes(&mut self.chance, self.faults.duplication_ppm);
        let is_held = strikes(&mut self.chance, self.faults.reordering_ppm);
        let is_damaged = strikes(&mut self.chance, self.faults.corruption_ppm);
        let (bit, share) = (self.chance.u64(..), self.chance.u64(..));
        if is_lost {
            self.counters.lost += 1;
            return;
        }
        let mut due = now + delay + scaled(jitter, share);
        if is_held {
            self.counters.reordered += 1;
            due += self.faults.reordering_delay;
        }
        let damage = (is_damaged && !meta.hides_damage()).then_some(bit);
        self.counters.corrupted += u64::from(damage.is_some());
        self.put(due, frame, meta, damage);
        if is_doubled {
            self.counters.duplicated += 1;
            self.put(due, frame, meta, damage);
        }
    }

    fn put(&mut self, due: Duration, frame: &[u8], meta: M, damage: Option<u64>) {
        let slot = if frame.len() <= self.frame_bytes { self.free.pop() } else { None };
        let Some(index) = slot else {
            self.counters.overflowed += 1;
            return;
        };
        let bytes = &mut self.bytes[index * self.frame_bytes..][..frame.len()];
        bytes.copy_from_slice(frame);
        let mut meta = meta;
        if let Some(bit) = damage {
            let bit = (bit % (frame.len() as u64 * 8)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            meta = meta.distrusted();
        }
        let number = self.next_number;
        self.next_number += 1;
        self.slots[index] = DelayedFrame { len: frame.len(), meta };
        self.dues.push(Reverse(FrameDue { at: due, number, slot: index }));
    }

    /// The frame that is due first, if it is due.
    fn due(&self, now: Duration) -> Option<usize> {
        self.dues.peek().filter(|due| due.0.at <= now).map(|due| due.0.slot)
    }

    fn next_due(&self) -> Option<Duration> {
        self.dues.peek().map(|due| due.0.at)
    }

    fn frame(&self, index: usize) -> (&[u8], M) {
        let slot = &self.slots[index];
        (&self.bytes[index * self.frame_bytes..][..slot.len], slot.meta)
    }

    /// The frame that is due first has gone.
    fn pop(&mut self) {
        if let Some(Reverse(due)) = self.dues.pop() {
            self.free.push(due.slot);
        }
    }
}

fn scaled(time: Duration, share: u64) -> Duration {
    let ns = (u128::from(share) * time.as_nanos()) >> 64;
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Whether an event of that probability, in parts of a million, happens.
fn strikes(chance: &mut fastrand::Rng, ppm: u32) -> bool {
    chance.u32(..1_000_000) < ppm
}

#[cfg(test)]
mod tests;
