//! TIME-WAIT: compact records of closed connections.
//!
//! Read first: RFC 9293 §3.4.2, §3.6.1, §3.10.7.4; RFC 1337; RFC 6191.
//!
//! A server that closes first has many times more of them than connections, so each is a record of
//! its own, and the connection's place is free again. All wait equally long: the queue is sorted
//! by itself, and needs no wheel.
//!
//! Invariants
//! - A record is in the queue and in the flow table, or its place is free.
//! - If there are too many the oldest goes: it has waited longest.

use alloc::vec::Vec;
use core::time::Duration;

use super::deadline::{Stamp, WAIT_MAX};
use super::lists::Lists;
use super::segment::Segment;
use super::send_hold::Reuse;
use crate::flow_table::Flow;
use crate::seq::SeqNum;
use crate::slab::Places;
use crate::time::Instant;
use crate::wire::tcp::Flags;

/// What is left of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) flow: Flow,
    /// The window field of the last ACK.
    pub(crate) window: u16,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    /// Last timestamp of the peer; means something with `timestamps` only.
    pub(crate) ts_recent: u32,
    pub(crate) ts_offset: u32,
    /// Of `flow`, in the flow table.
    pub(crate) hash: u32,
    /// When the wait began (anew).
    pub(crate) begun: Stamp,
}

const _: () = assert!(size_of::<Record>() <= 64, "a connection that is over costs one cache line");

/// What to do about a segment for such a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Drop,
    /// Acknowledge what was received.
    Acknowledge,
    /// Acknowledge, and wait anew: the peer sent its FIN again (RFC 9293 §3.10.7.4, eighth).
    Restart,
    /// A new connection may take the place of the old one, from a sequence number after `after`.
    Reopen {
        /// Our last sequence number of the old connection.
        after: SeqNum,
    },
}

impl Record {
    /// RFC 9293 §3.10.7.4 for TIME-WAIT, with RFC 1337's and RFC 6191's advice. `timestamps`:
    /// the old connection used them.
    pub(crate) fn judge(&self, segment: &Segment<'_>, timestamps: bool) -> Verdict {
        if segment.has(Flags::RST) {
            // RFC 1337 §3: a RST does not end the wait.
            return Verdict::Drop;
        }
        let newer = segment
            .options
            .timestamps
            .filter(|_| timestamps)
            .map(|times| (times.value.wrapping_sub(self.ts_recent) as i32).signum());
        if segment.has(Flags::SYN) && !segment.has(Flags::ACK) {
            // RFC 6191 §2: a later timestamp, or else a later sequence number, cannot be an old
            // duplicate.
            let is_new = match newer {
                Some(1) => true,
                Some(0) | None => segment.seq.after(self.rcv_nxt),
                Some(_) => false,
            };
            return if is_new {
                Verdict::Reopen { after: self.snd_nxt }
            } else {
                Verdict::Acknowledge
            };
        }
        let is_last_fin = segment.has(Flags::FIN) && segment.end() == self.rcv_nxt;
        if is_last_fin && newer != Some(-1) {
            return Verdict::Restart;
        }
        // An ACK of everything is what we wait for to die out.
        if segment.len() == 0 && segment.seq == self.rcv_nxt {
            return Verdict::Drop;
        }
        Verdict::Acknowledge
    }
}

/// What else is known of a connection that is over: in the lowest bit, whether it used timestamps;
/// above, what its socket said of others at its local address.
#[derive(Debug, Clone, Copy, Default)]
struct Note(u8);

impl Note {
    const fn new((timestamps, reuse): (bool, Reuse)) -> Self {
        Self(timestamps as u8 | reuse.to_bits() << 1)
    }

    const fn timestamps(self) -> bool {
        self.0 & 1 != 0
    }

    const fn reuse(self) -> Reuse {
        Reuse::from_bits(self.0 >> 1)
    }
}

/// A wait in milliseconds, at most what a deadline can name.
fn whole_ms(wait: Duration) -> u32 {
    wait.min(WAIT_MAX).as_millis() as u32
}

/// All of a shard.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    records: Vec<Record>,
    notes: Vec<Note>,
    places: Places,
    queue: Lists<1>,
    wait_ms: u32,
}

impl TimeWaits {
    /// Room for `capacity`, which wait for `wait` each.
    pub(crate) fn new(capacity: u32, wait: Duration) -> Self {
        Self {
            records: Vec::with_capacity(capacity as usize),
            notes: alloc::vec![Note::default(); capacity as usize],
            places: Places::new(capacity),
            queue: Lists::new(capacity),
            wait_ms: whole_ms(wait),
        }
    }

    /// A new record; `None`: the table is full, the oldest must go first.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        record: Record,
        note: (bool, Reuse),
    ) -> Option<u32> {
        let (index, _) = self.places.take()?;
        let record = Record { begun: Stamp::of(now), ..record };
        match self.records.get_mut(index as usize) {
            Some(place) => *place = record,
            None => self.records.push(record),
        }
        self.notes[index as usize] = Note::new(note);
        self.queue.put(0, index);
        Some(index)
    }

    pub(crate) fn get(&self, index: u32) -> (&Record, bool) {
        (&self.records[index as usize], self.notes[index as usize].timestamps())
    }

    /// Places that were ever in use.
    pub(crate) const fn slots(&self) -> u32 {
        self.records.len() as u32
    }

    /// The record in a place; `None`: it is free.
    pub(crate) fn at(&self, index: u32) -> Option<&Record> {
        self.places.is_in_use(index).then(|| &self.records[index as usize])
    }

    /// When the wait of a record is over, as seen from `now`.
    pub(crate) fn end_of(&self, record: &Record, now: Instant) -> Instant {
        record.begun.plus_ms(self.wait_ms).get(now).unwrap_or(now)
    }

    /// All of them, with what their sockets said of others at their local addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Record, Reuse)> {
        let record =
            |index: u32| (&self.records[index as usize], self.notes[index as usize].reuse());
        self.places.iter().map(record)
    }

    /// Waits anew.
    pub(crate) fn restart(&mut self, now: Instant, index: u32) {
        self.records[index as usize].begun = Stamp::of(now);
        self.queue.take_off(index);
        self.queue.put(0, index);
    }

    /// The one that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.queue.first(0)
    }

    /// When the next one is over, as seen from `now`.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let begun = self.records[self.oldest()? as usize].begun;
        begun.plus_ms(self.wait_ms).get(now)
    }

    /// [`TimeWaits::next`] is not after `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.oldest().is_some_and(|oldest| {
            self.records[oldest as usize].begun.plus_ms(self.wait_ms).has_come(now)
        })
    }

    /// Frees a record; what it was.
    pub(crate) fn remove(&mut self, index: u32) -> Record {
        self.queue.take_off(index);
        self.places.give_back(index);
        self.records[index as usize]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() as usize == self.notes.len()
    }

    /// Memory set aside, and the part of it that was touched, in bytes.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        let each = size_of::<Record>() + size_of::<Note>() + Lists::<1>::ENTRY_BYTES;
        let (reserved, touched) = self.places.memory_bytes();
        (reserved + self.records.capacity() * each, touched + self.records.len() * each)
    }

    pub(crate) const fn len(&self) -> u32 {
        self.places.len()
    }
}

impl Record {
    /// Our timestamps of `now` are later than all that the old connection sent (RFC 6191 §2): the
    /// clock has ticked since.
    pub(crate) fn is_older_than(&self, now: Instant) -> bool {
        !self.begun.age(now).is_zero()
    }

    pub(crate) const fn new(flow: Flow, snd_nxt: SeqNum, rcv_nxt: SeqNum) -> Self {
        Self {
            flow,
            window: 0,
            snd_nxt,
            rcv_nxt,
            ts_recent: 0,
            ts_offset: 0,
            hash: 0,
            begun: Stamp::of(Instant::ZERO),
        }
    }
}
