//! Timer wheel: deadlines with constant cost per operation.
//!
//! One entry per connection, at the earliest of its deadlines. Five levels of 64 slots: a slot of
//! the lowest is one tick wide, a slot of the next is as wide as the whole level below it. An entry
//! lies in the lowest level that reaches its tick; when time enters a slot of a higher level, its
//! entries are put into the levels below (Varghese and Lauck, 1987; [mTCP 3.2.1] for why a
//! connection's timers want it).
//!
//! Arming is lazy. A retransmission timer moves on with every acknowledgment; an entry that is
//! armed earlier than asked stays where it is, and its owner, asked too early, arms it again.
//!
//! So is cancelling. Connections come and go much faster than their timers would, and a place that
//! is free is taken again at once: an entry that is cancelled stays in its slot, said to be so. If
//! it is armed again for a later tick it is as if it had not been cancelled: it stays there too.
//!
//! Invariants
//! - `tick` is the first tick that has not been expired. Every entry's tick is at or after it.
//! - An entry expires at its tick, and at most one tick after its deadline, if asked. It may expire
//!   before a deadline that it was armed for while it had an earlier tick.
//! - An entry lies in the slot of its tick.
//! - `soonest` is at or before the first tick of every slot that holds something.
//! - `armed` counts the entries that were not cancelled.
//! - Links are stored plus one, so that zeroed memory is an empty wheel: places that were never
//!   used cost no memory.

use alloc::vec::Vec;

use crate::time::Instant;

/// Nanoseconds of a tick, as a power of two: 262 µs.
const TICK_SHIFT: u32 = 18;
const LEVELS: usize = 5;
const SLOT_SHIFT: u32 = 6;
const SLOTS: usize = 1 << SLOT_SHIFT;
/// Farthest deadline from now, in ticks: about 78 hours. Later ones are asked again then.
const TICKS_MAX: u64 = (1 << (SLOT_SHIFT * LEVELS as u32)) - 1;
/// In `Entry::previous`: the rest is a slot, not an entry.
const IS_SLOT: u32 = 1 << 31;
/// In `Entry::tick`: the entry was cancelled.
const IS_CANCELLED: u32 = 1 << 31;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// The next entry of the slot, plus one; 0: none.
    next: u32,
    /// The entry before, plus one, or the slot with `IS_SLOT`; 0: in no slot.
    previous: u32,
    /// The tick to expire at, its low 31 bits, or `IS_CANCELLED` with those.
    tick: u32,
}

/// The wheel of one shard.
#[derive(Debug)]
pub(crate) struct Wheel {
    tick: u64,
    /// No slot that holds something begins before this tick.
    soonest: u64,
    entries: Vec<Entry>,
    armed: u32,
    /// First entry of each slot, plus one.
    slots: [[u32; SLOTS]; LEVELS],
    /// Which slots of a level hold something.
    occupied: [u64; LEVELS],
}

impl Wheel {
    /// A wheel for entries below `entries`, none of them armed.
    pub(crate) fn new(entries: u32, now: Instant) -> Self {
        Self {
            tick: now.as_nanos() >> TICK_SHIFT,
            soonest: u64::MAX,
            entries: alloc::vec![Entry::default(); entries as usize],
            armed: 0,
            slots: [[0; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
        }
    }

    /// Bytes of each entry.
    pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();

    /// Makes `entry` expire at `at`, or earlier if it lies in the slot of an earlier tick.
    #[inline(always)]
    pub(crate) fn arm(&mut self, entry: u32, at: Instant) {
        let tick = at.as_nanos().div_ceil(1 << TICK_SHIFT);
        let tick = tick.max(self.tick).min(self.tick + TICKS_MAX);
        let lies = &mut self.entries[entry as usize];
        let (is_linked, is_cancelled) = (lies.previous != 0, lies.is_cancelled());
        if is_linked && whole(self.tick, lies.tick) <= tick {
            if is_cancelled {
                lies.tick &= !IS_CANCELLED;
                self.armed += 1;
            }
            return;
        }
        self.armed += u32::from(!is_linked || is_cancelled);
        self.put(entry, tick);
    }

    /// Takes an entry out of the slot where it lies, if it does, and puts it where it belongs.
    #[inline(never)]
    fn put(&mut self, entry: u32, tick: u64) {
        if self.entries[entry as usize].previous != 0 {
            self.unlink(entry);
        }
        self.link(entry, tick);
    }

    /// `entry` expires at `at` or earlier.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) fn is_armed_by(&self, entry: u32, at: Instant) -> bool {
        let armed = self.entries[entry as usize];
        let tick = at.as_nanos().div_ceil(1 << TICK_SHIFT).max(self.tick);
        armed.previous != 0 && !armed.is_cancelled() && whole(self.tick, armed.tick) <= tick
    }

    /// Disarms `entry`.
    #[inline]
    pub(crate) fn cancel(&mut self, entry: u32) {
        let entry = &mut self.entries[entry as usize];
        if entry.previous != 0 && !entry.is_cancelled() {
            entry.tick |= IS_CANCELLED;
            self.armed -= 1;
        }
    }

    /// No earlier than this does anything expire; `None`: nothing is armed.
    pub(crate) fn next(&self) -> Option<Instant> {
        if self.armed == 0 {
            return None;
        }
        self.next_tick().map(|tick| Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// [`Wheel::next`] is not after `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.soonest <= now.as_nanos() >> TICK_SHIFT && self.next().is_some_and(|at| at <= now)
    }

    /// Takes one entry whose time has come by `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_nanos() >> TICK_SHIFT;
        if self.tick > now_tick {
            return None;
        }
        while self.tick <= now_tick {
            let head = self.slots[0][slot_of(self.tick, 0)];
            if head == 0 {
                self.advance(now_tick);
                continue;
            }
            let entry = head - 1;
            if !self.unlink(entry).is_cancelled() {
                self.armed -= 1;
                return Some(entry);
            }
        }
        self.soonest = self.next_tick().unwrap_or(u64::MAX);
        None
    }

    /// The first tick of the next slot that holds something.
    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS).filter_map(|level| self.next_slot(level)).min()
    }

    /// Moves to the next tick at which a slot must be looked at, `now_tick + 1` at most.
    fn advance(&mut self, now_tick: u64) {
        self.tick = self.next_tick().unwrap_or(u64::MAX).min(now_tick + 1).max(self.tick + 1);
        for level in 1..LEVELS {
            if self.tick & ((1 << (SLOT_SHIFT * level as u32)) - 1) != 0 {
                break;
            }
            self.cascade(level);
        }
    }

    /// Puts the entries of the slot that time has entered into the levels below.
    fn cascade(&mut self, level: usize) {
        let slot = slot_of(self.tick, level);
        let mut head = core::mem::take(&mut self.slots[level][slot]);
        self.occupied[level] &= !(1 << slot);
        while head != 0 {
            let entry = head - 1;
            let lies = core::mem::take(&mut self.entries[entry as usize]);
            head = lies.next;
            if !lies.is_cancelled() {
                self.link(entry, whole(self.tick, lies.tick));
            }
        }
    }

    /// The first tick of the next slot of `level` that holds something.
    fn next_slot(&self, level: usize) -> Option<u64> {
        let occupied = self.occupied[level];
        if occupied == 0 {
            return None;
        }
        let shift = SLOT_SHIFT * level as u32;
        let current = self.tick >> shift;
        // Level 0 may hold the current tick. The slot that time is in was emptied on the levels
        // above: what lies there is a whole turn away.
        let first = if level == 0 { current } else { current + 1 };
        let ahead = occupied.rotate_right((first & (SLOTS as u64 - 1)) as u32).trailing_zeros();
        Some((first + u64::from(ahead)) << shift)
    }

    fn link(&mut self, entry: u32, tick: u64) {
        let ahead = tick - self.tick;
        let level = if ahead == 0 { 0 } else { (ahead.ilog2() / SLOT_SHIFT) as usize };
        let slot = slot_of(tick, level);
        let next = self.slots[level][slot];
        if next != 0 {
            self.entries[next as usize - 1].previous = entry + 1;
        }
        self.slots[level][slot] = entry + 1;
        self.occupied[level] |= 1 << slot;
        let shift = SLOT_SHIFT * level as u32;
        self.soonest = self.soonest.min(tick >> shift << shift);
        let previous = IS_SLOT | (level * SLOTS + slot) as u32;
        self.entries[entry as usize] = Entry { next, previous, tick: low(tick) };
    }

    /// Takes an entry out of the slot where it lies; what it was.
    fn unlink(&mut self, entry: u32) -> Entry {
        let lay = core::mem::take(&mut self.entries[entry as usize]);
        let Entry { next, previous, .. } = lay;
        if next != 0 {
            self.entries[next as usize - 1].previous = previous;
        }
        if previous & IS_SLOT == 0 {
            self.entries[previous as usize - 1].next = next;
            return lay;
        }
        let place = (previous & !IS_SLOT) as usize;
        let (level, slot) = (place / SLOTS, place % SLOTS);
        self.slots[level][slot] = next;
        if next == 0 {
            self.occupied[level] &= !(1 << slot);
        }
        lay
    }
}

impl Entry {
    #[inline]
    const fn is_cancelled(self) -> bool {
        self.tick & IS_CANCELLED != 0
    }
}

/// What an entry keeps of a tick.
#[inline]
const fn low(tick: u64) -> u32 {
    tick as u32 & !IS_CANCELLED
}

/// The tick that `kept` is the low part of: at or after `from`, less than 2^31 from it.
#[inline]
const fn whole(from: u64, kept: u32) -> u64 {
    from + low(kept.wrapping_sub(from as u32) as u64) as u64
}

fn slot_of(tick: u64, level: usize) -> usize {
    (tick >> (SLOT_SHIFT * level as u32)) as usize & (SLOTS - 1)
}

const _: () = assert!(TICKS_MAX < 1 << 31, "an entry keeps 31 bits of its tick");
const _: () = assert!(size_of::<Entry>() == 12);

#[cfg(test)]
mod tests;
