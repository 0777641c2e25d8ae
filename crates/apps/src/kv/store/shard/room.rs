//! Room in a shard's log: what is carried, what is evicted, and how chains follow what moves.
//!
//! Read first: [`super`], whose invariants these functions keep, and `log.rs`.

use super::super::log::{LogPosition, LogRecord, Oldest, attribute};
use super::StoreShard;
use crate::kv::limits::{DEAD_SHARE, MOVED_BYTES_PER_STORE_MAX, MOVES_PER_STORE_MAX};

impl StoreShard {
    /// Takes a live record out of its chain and leaves it dead.
    pub(super) fn remove(&mut self, place: LogPosition, record: LogRecord) {
        self.repoint(place, &record, record.next);
        if record.cas > self.flushed_cas {
            self.items -= 1;
            self.item_bytes -= record.capacity as usize;
        }
        self.kill(place, record);
    }

    pub(super) fn kill(&mut self, place: LogPosition, record: LogRecord) {
        self.log.set_record(place, LogRecord { attributes: 0, ..record });
        self.log.add_dead(record.capacity);
    }

    /// Makes what points to `place` in its chain point to `target`.
    fn repoint(&mut self, place: LogPosition, record: &LogRecord, target: u32) {
        let chain = self.chain(record.hash);
        let mut at = LogPosition(self.heads[chain]);
        if at == place {
            self.heads[chain] = target;
            return;
        }
        while !at.is_nowhere() {
            let mut before = self.log.record(at);
            if before.next == place.0 {
                before.next = target;
                self.log.set_record(at, before);
                return;
            }
            at = LogPosition(before.next);
        }
        debug_assert!(false, "a live record is in its chain");
    }

    /// Room for a record at the log's head, with `fields` and `key` written there.
    pub(super) fn allocate(
        &mut self,
        fields: &LogRecord,
        key: &[u8],
        now: u32,
    ) -> Option<LogPosition> {
        let len = LogRecord::bytes_for(key.len(), fields.value_len as usize);
        let mut moves_left = MOVES_PER_STORE_MAX;
        let mut moved_left = len + MOVED_BYTES_PER_STORE_MAX;
        // Two rounds over the ring meet every record; if that was not enough, nothing is.
        let mut passed_left = 2 * self.log.capacity();
        loop {
            if let Some(place) = self.log.append(fields, key) {
                return Some(place);
            }
            let (place, record) = match self.log.oldest() {
                Oldest::Empty => return None,
                Oldest::Filler => {
                    self.log.release_oldest();
                    continue;
                }
                Oldest::Record(place, record) => (place, record),
            };
            let bytes = record.capacity as usize;
            passed_left = passed_left.checked_sub(bytes)?;
            if record.is_dead() {
                self.log.release_oldest();
            } else if record.has(attribute::RESERVED | attribute::PINNED) {
                self.carry_oldest(place, &record);
            } else if self.absence(&record, now).is_some() {
                self.counters.reclaimed += 1;
                self.remove(place, record);
                self.log.release_oldest();
            } else if self.is_worth_keeping(&record) && moves_left > 0 && bytes <= moved_left {
                moves_left -= 1;
                moved_left -= bytes;
                self.carry_oldest(place, &record);
            } else {
                self.counters.evictions += 1;
                self.remove(place, record);
                self.log.release_oldest();
            }
        }
    }

    fn is_worth_keeping(&self, record: &LogRecord) -> bool {
        record.has(attribute::REFERENCED) || self.log.dead() > self.log.capacity() / DEAD_SHARE
    }

    /// Moves the record at the tail to the head and updates the pointer to it.
    fn carry_oldest(&mut self, from: LogPosition, record: &LogRecord) {
        self.counters.carried += 1;
        let to = self.log.carry_oldest();
        let mut carried = *record;
        carried.attributes &= !attribute::REFERENCED;
        if record.has(attribute::RESERVED) {
            self.reservations[record.next as usize] = to;
        } else if from != to {
            // The old bytes may be overwritten already, but nothing follows a link through them:
            // only the chain's links to `from` are looked for.
            self.repoint(from, &carried, to.0);
        }
        self.log.set_record(to, carried);
    }
}
