//! Transmission records: sent range, time, and state.
//!
//! Read first: RFC 8985 §5.2 (what RACK keeps per segment), RFC 6675 §3 (the scoreboard).
//!
//! One pool per shard, made once. A record covers bytes that left together: the segments of one
//! burst share one record as long as each but the last is a full MSS, because then their borders
//! are still known. Each record is in the ring of its connection by sequence number, and in at
//! most one ring, of its state:
//!
//! ```text
//! state     ring                                          leaves it when
//! InFlight  sent order, `Recovery::oldest` first          acknowledged, SACKed, marked lost
//! Lost      sequence order, `Recovery::lost_head` first   resent, SACKed, acknowledged
//! Sacked    none; neighbours are merged into one record   acknowledged, or the peer reneges
//! ```
//!
//! Invariants
//! - Records of a connection lie end to end and in order: no gap, no overlap.
//! - The ring of sent order is sorted by `sent_us`.
//! - A reserved record is always available: reserved ones count as in use.
//! - Nothing allocates after [`Records::new`]. As the pool runs dry, first new data joins the
//!   newest record ([`Records::is_short`]), then SACK blocks that would need a split are left
//!   alone ([`Records::may_split`]): both lose precision and no correctness.

use alloc::vec::Vec;

use super::Stress;
use super::policy::Policy;
use super::rtt::micros;
use crate::config::TcpConfig;
use crate::seq::{SeqNum, SeqRange};
use crate::slab::Spares;

/// No record.
pub(super) const NIL: u32 = u32::MAX;
/// No record is written, and one is reserved: see [`super::Recovery::write_down`].
pub(super) const ALONE: u32 = u32::MAX - 1;

/// What became of a record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Sent, and nothing heard since.
    InFlight = 0,
    /// Deemed lost, and not yet resent.
    Lost,
    /// The peer says it has them (RFC 2018); it may still take that back.
    Sacked,
}

/// Which of a record's two rings.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ring {
    /// By sequence number.
    Sequence = 0,
    /// By state: in flight in the order of sending, or lost in the order of sequence numbers.
    State = 1,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    next: u32,
    prev: u32,
}

const UNLINKED: Link = Link { next: NIL, prev: NIL };

/// Bytes that left together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    links: [Link; 2],
    pub(super) range: SeqRange,
    /// When they left last, in wrapping microseconds.
    pub(super) sent_us: u32,
    pub(super) state: State,
    /// They left more than once: an ACK does not say which time it is for (Karn).
    pub(super) resent: bool,
    /// They did not leave at one time: `sent_us` is the last of several.
    pub(super) blurred: bool,
    /// For want of a record to split it, only the first segment was resent.
    pub(super) partial: bool,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    pub(super) const fn len(&self) -> u32 {
        self.range.len()
    }

    /// It, which lies at `index`, is all that its connection has outstanding.
    pub(super) const fn is_alone(&self, index: u32) -> bool {
        self.links[Ring::Sequence as usize].next == index
    }
}

/// The shard's pool of transmission records, and the policy of its connections.
#[derive(Debug)]
pub(crate) struct Records {
    /// Those that were ever used: the others' memory is not touched.
    nodes: Vec<Record>,
    capacity: u32,
    free: u32,
    /// Neither in use nor reserved.
    free_count: u32,
    /// What only some connections have.
    pub(super) stresses: Spares<Stress>,
    pub(super) policy: Policy,
}

impl Records {
    /// A pool of `capacity` records, 32 bytes each, and a [`Stress`] for each of `connections`. All
    /// memory is set aside here. One record per connection that sends at the same time is enough
    /// to work; four times the segments in flight at once is plenty.
    pub(crate) fn new(capacity: u32, connections: u32, config: &TcpConfig) -> Self {
        let policy = Policy {
            rto_initial_us: micros(config.rto_initial),
            rto_min_us: micros(config.rto_min),
            rto_max_us: micros(config.rto_max),
            rto_least_us: micros(config.rto_min.min(config.rto_initial).min(config.rto_max)),
            initial_window: config.initial_window,
            congestion: config.congestion,
            tail_loss_probes: config.tail_loss_probes,
            frto: config.frto,
            slow_start_after_idle: config.slow_start_after_idle,
            slow_start_limits: config.slow_start_limits,
            rack: config.rack,
        };
        let nodes = Vec::with_capacity(capacity as usize);
        let stresses = Spares::new(connections);
        Self { nodes, capacity, free: NIL, free_count: capacity, stresses, policy }
    }

    /// How many records are free.
    #[cfg(test)]
    pub(crate) const fn available(&self) -> u32 {
        self.free_count
    }

    /// How many records are in use, or reserved.
    pub(crate) const fn held(&self) -> u32 {
        self.capacity - self.free_count
    }

    /// Memory set aside for records, and the part of it that was touched, in bytes.
    pub(crate) const fn memory_bytes(&self) -> (usize, usize) {
        (self.capacity as usize * size_of::<Record>(), self.nodes.len() * size_of::<Record>())
    }

    /// How many connections have a [`Stress`].
    pub(crate) const fn stressed(&self) -> u32 {
        self.stresses.len()
    }

    /// The memory of those, as [`Spares::memory_bytes`].
    pub(crate) const fn stress_memory_bytes(&self) -> (usize, usize) {
        self.stresses.memory_bytes()
    }

    /// Fewer than a quarter are free: new data joins an old record where it can.
    pub(super) fn is_short(&self) -> bool {
        self.free_count < self.capacity / 4
    }

    /// Enough are free that a peer's SACK block may have one.
    pub(super) fn may_split(&self) -> bool {
        self.free_count > self.capacity / 16
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Record {
        &self.nodes[index as usize]
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Record {
        &mut self.nodes[index as usize]
    }

    /// A record outside all rings; `None`: the pool is empty.
    pub(super) fn take(&mut self, range: SeqRange, sent_us: u32) -> Option<u32> {
        self.reserve()?;
        Some(self.take_reserved(range, sent_us))
    }

    /// Sets a record aside that is not written yet; `None`: the pool is empty.
    #[inline(always)]
    pub(super) const fn reserve(&mut self) -> Option<()> {
        if self.free_count == 0 {
            return None;
        }
        self.free_count -= 1;
        Some(())
    }

    /// What was reserved is not needed any more.
    #[inline(always)]
    pub(super) const fn give_reserved(&mut self) {
        self.free_count += 1;
    }

    /// A record outside all rings, which was reserved.
    fn take_reserved(&mut self, range: SeqRange, sent_us: u32) -> u32 {
        let record = Record {
            links: [UNLINKED; 2],
            range,
            sent_us,
            state: State::InFlight,
            resent: false,
            blurred: false,
            partial: false,
        };
        let index = self.free;
        match self.nodes.get_mut(index as usize) {
            Some(node) => {
                self.free = node.links[0].next;
                *node = record;
                index
            }
            None => {
                debug_assert!(self.nodes.len() < self.capacity as usize, "it was reserved");
                self.nodes.push(record);
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// A record that is alone in both rings, and was reserved.
    pub(super) fn write_reserved(&mut self, range: SeqRange, sent_us: u32) -> u32 {
        let index = self.take_reserved(range, sent_us);
        self.get_mut(index).links = [Link { next: index, prev: index }; 2];
        index
    }

    /// Takes a record, which is in no ring any more, back.
    #[inline]
    pub(super) fn give(&mut self, index: u32) {
        self.nodes[index as usize].links = [Link { next: self.free, prev: NIL }, UNLINKED];
        self.free = index;
        self.free_count += 1;
    }

    /// Takes `index` back if it is all that its connection has outstanding, ends at `end`, and left
    /// once and at one time: its length, and when that was. `None`: it is not that, or none.
    #[inline(always)]
    pub(super) fn give_plain(&mut self, index: u32, end: SeqNum) -> Option<(u32, u32)> {
        let record = self.nodes.get_mut(index as usize)?;
        let is_other = record.state as u8 | u8::from(record.resent) | u8::from(record.blurred);
        if record.range.end != end || !record.is_alone(index) || is_other != 0 {
            return None;
        }
        // It was alone in both rings; its next user inserts it into others.
        record.links[0].next = self.free;
        let what = (record.len(), record.sent_us);
        self.free = index;
        self.free_count += 1;
        Some(what)
    }

    pub(super) fn next(&self, ring: Ring, index: u32) -> u32 {
        self.get(index).links[ring as usize].next
    }

    pub(super) fn prev(&self, ring: Ring, index: u32) -> u32 {
        self.get(index).links[ring as usize].prev
    }

    /// The last of a ring; `head` is not `NIL`.
    pub(super) fn last(&self, ring: Ring, head: u32) -> u32 {
        self.prev(ring, head)
    }

    /// Puts `index` behind `at`.
    pub(super) fn insert_after(&mut self, ring: Ring, at: u32, index: u32) {
        let next = self.next(ring, at);
        self.get_mut(index).links[ring as usize] = Link { next, prev: at };
        self.get_mut(at).links[ring as usize].next = index;
        self.get_mut(next).links[ring as usize].prev = index;
    }

    /// Puts `index` at the end of the ring.
    pub(super) fn push(&mut self, ring: Ring, head: &mut u32, index: u32) {
        if *head == NIL {
            self.get_mut(index).links[ring as usize] = Link { next: index, prev: index };
            *head = index;
        } else {
            let last = self.last(ring, *head);
            self.insert_after(ring, last, index);
        }
    }

    /// Puts `index` where `goes_after` wants it, looking from the end.
    pub(super) fn insert_sorted(
        &mut self,
        ring: Ring,
        head: &mut u32,
        index: u32,
        goes_after: impl Fn(&Record) -> bool,
    ) {
        if *head == NIL {
            return self.push(ring, head, index);
        }
        let mut at = self.last(ring, *head);
        while !goes_after(self.get(at)) {
            if at == *head {
                let last = self.last(ring, *head);
                self.insert_after(ring, last, index);
                *head = index;
                return;
            }
            at = self.prev(ring, at);
        }
        self.insert_after(ring, at, index);
    }

    /// Takes `index` out of a ring that it is in.
    pub(super) fn unlink(&mut self, ring: Ring, head: &mut u32, index: u32) {
        let Link { next, prev } = self.get(index).links[ring as usize];
        debug_assert!(next != NIL, "a record is taken out of a ring that it is in");
        if next == index {
            *head = NIL;
        } else {
            self.get_mut(prev).links[ring as usize].next = next;
            self.get_mut(next).links[ring as usize].prev = prev;
            if *head == index {
                *head = next;
            }
        }
        self.get_mut(index).links[ring as usize] = UNLINKED;
    }

    /// Cuts `index` at `at`, which lies inside: it keeps what is before, the new record behind it
    /// in both rings gets the rest. `None`: the pool is empty, nothing changed.
    pub(super) fn split(&mut self, index: u32, at: SeqNum) -> Option<u32> {
        let left = *self.get(index);
        debug_assert!(at.after(left.range.start) && at.before(left.range.end));
        let right = self.take(SeqRange { start: at, end: left.range.end }, left.sent_us)?;
        let node = self.get_mut(right);
        node.state = left.state;
        node.resent = left.resent;
        node.blurred = left.blurred;
        node.partial = left.partial;
        self.get_mut(index).range.end = at;
        self.insert_after(Ring::Sequence, index, right);
        if left.links[Ring::State as usize].next != NIL {
            self.insert_after(Ring::State, index, right);
        }
        Some(right)
    }
}
