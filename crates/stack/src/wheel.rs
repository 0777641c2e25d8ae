//! Timer wheel: which of many deadlines come next, in constant time for each.
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
//! Invariants
//! - `tick` is the first tick that has not been expired. Every entry's tick is at or after it.
//! - An entry never expires before its deadline, and at most one tick after it, if asked.
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

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// The next entry of the slot, plus one; 0: none.
    next: u32,
    /// The entry before, plus one, or the slot with `IS_SLOT`; 0: not armed.
    previous: u32,
    /// The tick to expire at, its low 32 bits.
    tick: u32,
}

/// The wheel of one shard.
#[derive(Debug)]
pub(crate) struct Wheel {
    tick: u64,
    entries: Vec<Entry>,
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
            entries: alloc::vec![Entry::default(); entries as usize],
            slots: [[0; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
        }
    }

    /// Bytes of each entry.
    pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();

    /// Makes `entry` expire at `at`, or leaves it armed if it expires earlier already.
    pub(crate) fn arm(&mut self, entry: u32, at: Instant) {
        let tick = at.as_nanos().div_ceil(1 << TICK_SHIFT);
        let tick = tick.clamp(self.tick, self.tick + TICKS_MAX);
        let armed = self.entries[entry as usize];
        if armed.previous != 0 {
            if self.whole(armed.tick) <= tick {
                return;
            }
            self.unlink(entry);
        }
        self.link(entry, tick);
    }

    /// `entry` expires at `at` or earlier.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) fn is_armed_by(&self, entry: u32, at: Instant) -> bool {
        let armed = self.entries[entry as usize];
        let tick = at.as_nanos().div_ceil(1 << TICK_SHIFT).max(self.tick);
        armed.previous != 0 && self.whole(armed.tick) <= tick
    }

    /// Disarms `entry`.
    pub(crate) fn cancel(&mut self, entry: u32) {
        if self.entries[entry as usize].previous != 0 {
            self.unlink(entry);
        }
    }

    /// No earlier than this does anything expire; `None`: nothing is armed.
    pub(crate) fn next(&self) -> Option<Instant> {
        (0..LEVELS)
            .filter_map(|level| self.next_slot(level))
            .min()
            .map(|tick| Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// Takes one entry whose time has come by `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_nanos() >> TICK_SHIFT;
        while self.tick <= now_tick {
            let head = self.slots[0][slot_of(self.tick, 0)];
            if head != 0 {
                self.unlink(head - 1);
                return Some(head - 1);
            }
            self.advance(now_tick);
        }
        None
    }

    /// Moves to the next tick at which a slot must be looked at, `now_tick + 1` at most.
    fn advance(&mut self, now_tick: u64) {
        let next = (0..LEVELS).filter_map(|level| self.next_slot(level)).min();
        self.tick = next.unwrap_or(u64::MAX).min(now_tick + 1).max(self.tick + 1);
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
            head = self.entries[entry as usize].next;
            let tick = self.whole(self.entries[entry as usize].tick);
            self.link(entry, tick);
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
        let previous = IS_SLOT | (level * SLOTS + slot) as u32;
        self.entries[entry as usize] = Entry { next, previous, tick: tick as u32 };
    }

    fn unlink(&mut self, entry: u32) {
        let Entry { next, previous, .. } = core::mem::take(&mut self.entries[entry as usize]);
        if next != 0 {
            self.entries[next as usize - 1].previous = previous;
        }
        if previous & IS_SLOT == 0 {
            self.entries[previous as usize - 1].next = next;
            return;
        }
        let place = (previous & !IS_SLOT) as usize;
        let (level, slot) = (place / SLOTS, place % SLOTS);
        self.slots[level][slot] = next;
        if next == 0 {
            self.occupied[level] &= !(1 << slot);
        }
    }

    /// The tick that `low` is the low half of: at or after `self.tick`, less than 2^32 from it.
    fn whole(&self, low: u32) -> u64 {
        self.tick + u64::from(low.wrapping_sub(self.tick as u32))
    }
}

fn slot_of(tick: u64, level: usize) -> usize {
    (tick >> (SLOT_SHIFT * level as u32)) as usize & (SLOTS - 1)
}

const _: () = assert!(TICKS_MAX < 1 << 31, "an entry keeps 32 bits of its tick");
const _: () = assert!(size_of::<Entry>() == 12);

#[cfg(test)]
mod tests;
