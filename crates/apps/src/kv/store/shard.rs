//! One shard: a hash table over a log, under one lock that [`super::KvStore`] holds for it.
//!
//! Read first: [`super::log`].
//!
//! ```text
//!   heads[hash & mask] -> record -> record -> nowhere        (chains run through the records)
//! ```
//!
//! Storing over an item rewrites its record in place if the new value fits and would not leave most
//! of it empty; else the old record dies and a new one goes to the log's head. Room at the head is
//! made at the tail (`shard/room.rs`): dead records and items after their time are dropped, items
//! that were used since the tail last passed, and any item while much of the log is dead, are
//! carried to the head, all others are evicted. What one store may carry is bounded.
//!
//! Invariants
//! - A record is LIVE exactly if it is in one chain; RESERVED exactly if `reservations` names it.
//! - A cas number is given once, and `cas <= flushed_cas` exactly for items of before a flush.
//! - A record that is PINNED or RESERVED is carried, never evicted.

mod room;

use std::collections::TryReserveError;

use super::log::{Log, LogPosition, LogRecord, RECORD_HEADER_BYTES, attribute};
use super::{
    ArithmeticOutcome, ItemChange, NumberChange, Removal, StoreCounters, StoreOutcome, StoredItem,
    Write, item_fits, number,
};
use crate::kv::limits::{
    BYTES_PER_HEAD, KEY_BYTES_MAX, RESERVATIONS_PER_SHARD_MAX, RESERVED_SHARE,
};
use crate::kv::protocol::text::StoreVerb;
use crate::memory::{reserved, zeroed};

/// A key with its hash.
pub(super) type Probe<'a> = (u32, &'a [u8]);

pub(super) struct StoreShard {
    log: Log,
    /// First record of each chain.
    heads: Vec<u32>,
    /// Places of values in arrival; `LogPosition::NOWHERE` where free.
    reservations: Vec<LogPosition>,
    free_reservations: Vec<u32>,
    reserved_bytes: usize,
    /// Live records of after the last flush, and their bytes.
    items: u64,
    item_bytes: usize,
    /// The last cas number given.
    cas: u64,
    /// From one cas number to the next: the number of shards.
    cas_step: u64,
    flushed_cas: u64,
    /// Second at which all items then here are to be dropped; 0 is none.
    flush_at: u32,
    counters: StoreCounters,
}

/// Why a lookup found nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Absence {
    Unknown,
    Expired,
    Flushed,
}

const _: () = assert!(LogPosition::NOWHERE.0 == 0, "a table of zeros is empty");

/// What to do with a store.
enum StoreDecision {
    Refuse(StoreOutcome),
    Put { stale: bool },
    Concatenate { front: bool },
}

/// Where a value to be stored lies.
#[derive(Clone, Copy)]
enum ValueSource<'a> {
    Bytes(&'a [u8]),
    /// In the record of this reservation.
    Arrived(u32),
}

type Found = (LogPosition, LogRecord);

impl StoreShard {
    /// Shard `index` of `count`, in `memory_bytes` with everything that it will ever hold.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(super) fn new(
        index: u64,
        count: u64,
        memory_bytes: usize,
    ) -> Result<Self, TryReserveError> {
        let heads = 1usize << (memory_bytes / BYTES_PER_HEAD).ilog2();
        let reservations = RESERVATIONS_PER_SHARD_MAX;
        let tables = (heads + 2 * reservations) * size_of::<u32>();
        let fixed = tables + size_of::<Self>().next_multiple_of(128);
        Ok(Self {
            log: Log::new(memory_bytes - fixed)?,
            heads: zeroed(heads)?,
            reservations: reserved(reservations)?,
            free_reservations: reserved(reservations)?,
            reserved_bytes: 0,
            items: 0,
            item_bytes: 0,
            cas: index,
            cas_step: count,
            flushed_cas: 0,
            flush_at: 0,
            counters: StoreCounters::default(),
        })
    }

    pub(super) fn get<R>(
        &mut self,
        probe: Probe<'_>,
        touch: Option<u32>,
        now: u32,
        read: impl FnOnce(&StoredItem<'_>) -> R,
    ) -> Option<R> {
        self.counters.cmd_touch += u64::from(touch.is_some());
        let (place, mut record) = match self.find(probe, now) {
            Ok(found) => found,
            Err(absence) => {
                self.count_miss(absence);
                self.counters.touch_misses += u64::from(touch.is_some());
                return None;
            }
        };
        self.counters.get_hits += 1;
        self.counters.touch_hits += u64::from(touch.is_some());
        record.expires = touch.unwrap_or(record.expires);
        let result = read(&self.item((place, &record), false));
        let used = record.attributes | attribute::REFERENCED | attribute::FETCHED;
        // Most hits change nothing: then the record's cache line stays clean.
        if used != record.attributes || record.accessed != now || touch.is_some() {
            record.attributes = used;
            record.accessed = now;
            self.log.set_record(place, record);
        }
        Some(result)
    }

    pub(super) fn visit<R>(
        &mut self,
        probe: Probe<'_>,
        vivify: Option<u32>,
        now: u32,
        visit: impl FnOnce(Option<&StoredItem<'_>>) -> (R, ItemChange),
    ) -> R {
        let (found, created) = match (self.find(probe, now), vivify) {
            (Ok(found), _) => {
                self.counters.get_hits += 1;
                (Some(found), false)
            }
            (Err(absence), vivify) => {
                self.count_miss(absence);
                (vivify.and_then(|expires| self.insert(probe, 0, expires, b"", now)), true)
            }
        };
        let Some((place, mut record)) = found else {
            return visit(None).0;
        };
        let (result, change) = visit(Some(&self.item((place, &record), created)));
        if let Some(expires) = change.expires {
            self.counters.cmd_touch += 1;
            self.counters.touch_hits += 1;
            record.expires = expires;
        }
        if change.win {
            record.attributes |= attribute::WON;
        }
        if !change.no_bump && !created {
            record.attributes |= attribute::REFERENCED | attribute::FETCHED;
            record.accessed = now;
        }
        self.log.set_record(place, record);
        result
    }

    pub(super) fn peek<R>(
        &mut self,
        probe: Probe<'_>,
        now: u32,
        read: impl FnOnce(&StoredItem<'_>) -> R,
    ) -> Option<R> {
        let (place, record) = self.find(probe, now).ok()?;
        Some(read(&self.item((place, &record), false)))
    }

    pub(super) fn store(
        &mut self,
        probe: Probe<'_>,
        write: &Write,
        value: &[u8],
        now: u32,
    ) -> StoreOutcome {
        self.store_from(probe, write, ValueSource::Bytes(value), now)
    }

    /// A set that cannot be done must not leave the old value for others to read.
    pub(super) fn refuse_too_large(&mut self, probe: Probe<'_>, write: &Write, now: u32) {
        self.counters.too_large += 1;
        self.drop_replaced(probe, write, now);
    }

    pub(super) fn reserve(
        &mut self,
        probe: Probe<'_>,
        write: &Write,
        value_len: usize,
        now: u32,
    ) -> Result<u32, StoreOutcome> {
        let (hash, key) = probe;
        let len = LogRecord::bytes_for(key.len(), value_len);
        let index = self.free_reservations.pop().or_else(|| {
            let index = self.reservations.len();
            (index < RESERVATIONS_PER_SHARD_MAX).then(|| {
                self.reservations.push(LogPosition::NOWHERE);
                index as u32
            })
        });
        let fits = self.reserved_bytes + len <= self.log.capacity() / RESERVED_SHARE;
        let record = LogRecord {
            attributes: attribute::RESERVED,
            next: index.unwrap_or(0),
            value_len: value_len as u32,
            ..LogRecord::new(hash, now)
        };
        let place = match index {
            Some(_) if fits => self.allocate(&record, key, now),
            _ => None,
        };
        let (Some(index), Some(place)) = (index, place) else {
            self.free_reservations.extend(index);
            self.counters.out_of_memory += 1;
            self.drop_replaced(probe, write, now);
            return Err(StoreOutcome::OutOfMemory);
        };
        self.reserved_bytes += len;
        self.reservations[index as usize] = place;
        Ok(index)
    }

    pub(super) fn fill(&mut self, index: u32, at: usize, piece: &[u8]) {
        let place = self.reservations[index as usize];
        let record = self.log.record(place);
        let value = self.log.value_mut(place, &record);
        let room = value.get_mut(at..).unwrap_or_default();
        let len = room.len().min(piece.len());
        room[..len].copy_from_slice(&piece[..len]);
    }

    pub(super) fn reserved_len(&self, index: u32) -> usize {
        self.arrived(index).1.value_len as usize
    }

    pub(super) fn commit(&mut self, index: u32, write: &Write, now: u32) -> StoreOutcome {
        let outcome = self.try_commit(index, write, now);
        if !matches!(outcome, StoreOutcome::Stored(_)) {
            self.abandon(index);
        }
        outcome
    }

    /// As [`StoreShard::commit`], but a value that is not stored stays reserved.
    pub(super) fn try_commit(&mut self, index: u32, write: &Write, now: u32) -> StoreOutcome {
        let place = self.reservations[index as usize];
        let record = self.log.record(place);
        let mut key = [0; KEY_BYTES_MAX];
        let key = &mut key[..usize::from(record.key_len)];
        key.copy_from_slice(self.log.key(place, &record));
        let outcome = self.store_from((record.hash, key), write, ValueSource::Arrived(index), now);
        let was_copied = !self.reservations[index as usize].is_nowhere();
        if was_copied && matches!(outcome, StoreOutcome::Stored(_)) {
            self.abandon(index);
        }
        outcome
    }

    pub(super) fn abandon(&mut self, index: u32) {
        let (place, record) = self.take_reservation(index);
        self.kill(place, record);
    }

    pub(super) fn add(
        &mut self,
        probe: Probe<'_>,
        change: &NumberChange,
        now: u32,
    ) -> ArithmeticOutcome {
        let found = self.find(probe, now);
        let (hits, misses) = if change.down {
            (&mut self.counters.decr_hits, &mut self.counters.decr_misses)
        } else {
            (&mut self.counters.incr_hits, &mut self.counters.incr_misses)
        };
        let Ok((place, mut record)) = found else {
            *misses += 1;
            return self.add_to_nothing(probe, change, now);
        };
        if change.cas.is_some_and(|cas| cas != record.cas) {
            return ArithmeticOutcome::Exists;
        }
        let Some(old) = number::parse_value(self.log.value(place, &record)) else {
            return ArithmeticOutcome::NonNumeric;
        };
        *hits += 1;
        let number = if change.down {
            old.saturating_sub(change.delta)
        } else {
            old.wrapping_add(change.delta)
        };
        let digits = number::Digits::new(number);
        let expires = change.expires.unwrap_or(record.expires);
        if digits.len() <= record.value_len as usize {
            record.attributes |= attribute::REFERENCED;
            record.expires = expires;
            record.cas = self.next_cas();
            self.log.set_record(place, record);
            let value = self.log.value_mut(place, &record);
            value[..digits.len()].copy_from_slice(&digits);
            value[digits.len()..].fill(b' ');
            return ArithmeticOutcome::Value { number, cas: record.cas, expires, created: false };
        }
        let flags = record.flags;
        let fields = Write { flags, expires, ..Write::PLAIN };
        match self.put((place, record), probe, &fields, &digits, now) {
            Some(cas) => ArithmeticOutcome::Value { number, cas, expires, created: false },
            None => ArithmeticOutcome::OutOfMemory,
        }
    }

    pub(super) fn touch(&mut self, probe: Probe<'_>, expires: u32, now: u32) -> Option<(u32, u64)> {
        self.counters.cmd_touch += 1;
        let Ok((place, mut record)) = self.find(probe, now) else {
            self.counters.touch_misses += 1;
            return None;
        };
        self.counters.touch_hits += 1;
        record.expires = expires;
        record.accessed = now;
        record.attributes |= attribute::REFERENCED | attribute::FETCHED;
        self.log.set_record(place, record);
        Some((record.flags, record.cas))
    }

    pub(super) fn delete(&mut self, probe: Probe<'_>, cas: Option<u64>, now: u32) -> Removal {
        let Ok((place, record)) = self.find(probe, now) else {
            self.counters.delete_misses += 1;
            return Removal::NotFound;
        };
        if cas.is_some_and(|cas| cas != record.cas) {
            return Removal::Exists;
        }
        self.counters.delete_hits += 1;
        self.remove(place, record);
        Removal::Done
    }

    pub(super) fn mark_stale(
        &mut self,
        probe: Probe<'_>,
        cas: Option<u64>,
        expires: Option<u32>,
        now: u32,
    ) -> Removal {
        let Ok((place, mut record)) = self.find(probe, now) else {
            self.counters.delete_misses += 1;
            return Removal::NotFound;
        };
        if cas.is_some_and(|cas| cas != record.cas) {
            return Removal::Exists;
        }
        record.attributes = (record.attributes | attribute::STALE) & !attribute::WON;
        record.expires = expires.unwrap_or(record.expires);
        record.cas = self.next_cas();
        self.log.set_record(place, record);
        Removal::Done
    }

    pub(super) fn flush(&mut self, at: u32, now: u32) {
        // One that is due must not be forgotten for this one.
        self.flush_if_due(now);
        self.flush_at = at.max(1);
        self.flush_if_due(now);
    }

    pub(super) fn counters(&self) -> StoreCounters {
        StoreCounters {
            items: self.items,
            item_bytes: self.item_bytes as u64,
            used_bytes: self.log.used() as u64,
            dead_bytes: self.log.dead() as u64,
            reserved_bytes: self.reserved_bytes as u64,
            log_bytes: self.log.capacity() as u64,
            table_bytes: (self.heads.len() * size_of::<u32>()) as u64,
            ..self.counters
        }
    }

    pub(super) fn reset_counters(&mut self) {
        let total_items = self.counters.total_items;
        self.counters = StoreCounters { total_items, ..StoreCounters::default() };
    }

    fn item(&self, (place, record): (LogPosition, &LogRecord), created: bool) -> StoredItem<'_> {
        StoredItem {
            value: self.log.value(place, record),
            flags: record.flags,
            cas: record.cas,
            expires: record.expires,
            accessed: record.accessed,
            fetched: record.has(attribute::FETCHED),
            stale: record.has(attribute::STALE),
            won: record.has(attribute::WON),
            created,
            record_bytes: RECORD_HEADER_BYTES
                + usize::from(record.key_len)
                + record.value_len as usize,
        }
    }

    fn count_miss(&mut self, absence: Absence) {
        self.counters.get_misses += 1;
        match absence {
            Absence::Unknown => {}
            Absence::Expired => self.counters.get_expired += 1,
            Absence::Flushed => self.counters.get_flushed += 1,
        }
    }

    /// The live record of a key. One that has expired or was flushed is dropped on the way.
    fn find(&mut self, (hash, key): Probe<'_>, now: u32) -> Result<Found, Absence> {
        self.flush_if_due(now);
        let mut place = LogPosition(self.heads[self.chain(hash)]);
        while !place.is_nowhere() {
            let record = self.log.record(place);
            if record.hash == hash && self.log.key(place, &record) == key {
                let Some(absence) = self.absence(&record, now) else {
                    return Ok((place, record));
                };
                self.counters.reclaimed += 1;
                self.remove(place, record);
                return Err(absence);
            }
            place = LogPosition(record.next);
        }
        Err(Absence::Unknown)
    }

    /// Whether a record that is still in its chain counts as gone.
    const fn absence(&self, record: &LogRecord, now: u32) -> Option<Absence> {
        if record.cas <= self.flushed_cas {
            Some(Absence::Flushed)
        } else if record.expires != 0 && record.expires <= now {
            Some(Absence::Expired)
        } else {
            None
        }
    }

    const fn flush_if_due(&mut self, now: u32) {
        if self.flush_at != 0 && self.flush_at <= now {
            self.flushed_cas = self.cas;
            self.flush_at = 0;
            // Their records are dropped one by one, as they are met.
            self.items = 0;
            self.item_bytes = 0;
        }
    }

    const fn next_cas(&mut self) -> u64 {
        self.cas += self.cas_step;
        self.cas
    }

    const fn chain(&self, hash: u32) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    /// What memcached does for each verb, with and without an item and a cas unique.
    fn decide(&self, write: &Write, old: Option<&LogRecord>) -> StoreDecision {
        let Some(old) = old else {
            return match (write.verb, write.cas) {
                (StoreVerb::Set, Some(_)) => StoreDecision::Refuse(StoreOutcome::NotFound),
                (StoreVerb::Set | StoreVerb::Add, _) => StoreDecision::Put { stale: false },
                _ => StoreDecision::Refuse(StoreOutcome::NotStored),
            };
        };
        match (write.verb, write.cas) {
            (StoreVerb::Add, _) => StoreDecision::Refuse(StoreOutcome::NotStored),
            (StoreVerb::Set, Some(cas)) if cas != old.cas => {
                if write.stale_if_older && cas != 0 && cas < old.cas {
                    StoreDecision::Put { stale: true }
                } else {
                    StoreDecision::Refuse(StoreOutcome::Exists)
                }
            }
            (StoreVerb::Set | StoreVerb::Replace, _) => StoreDecision::Put { stale: false },
            (_, Some(cas)) if cas != old.cas => StoreDecision::Refuse(StoreOutcome::Exists),
            (verb, _) => StoreDecision::Concatenate { front: verb == StoreVerb::Prepend },
        }
    }

    fn store_from(
        &mut self,
        probe: Probe<'_>,
        write: &Write,
        source: ValueSource<'_>,
        now: u32,
    ) -> StoreOutcome {
        self.counters.cmd_set += 1;
        let old = self.find(probe, now).ok();
        let decision = self.decide(write, old.as_ref().map(|(_, record)| record));
        self.count_cas(write, &decision);
        match (decision, old) {
            (StoreDecision::Refuse(outcome), old) => {
                if let Some((place, mut record)) = old {
                    record.attributes |= attribute::REFERENCED;
                    self.log.set_record(place, record);
                }
                outcome
            }
            (StoreDecision::Concatenate { front }, Some(old)) => {
                self.concatenate(old, probe, source, front, now)
            }
            (StoreDecision::Put { stale }, old) => {
                // An older value does not refresh the item: it stays as stale as it was.
                let (write, kept) = match old {
                    Some((_, old)) if stale => {
                        let kept = attribute::STALE | old.attributes & attribute::WON;
                        (&Write { expires: old.expires, ..*write }, kept)
                    }
                    _ => (write, 0),
                };
                let cas = match (source, old) {
                    (ValueSource::Bytes(value), Some(old)) => {
                        self.put(old, probe, write, value, now)
                    }
                    (ValueSource::Bytes(value), None) => self
                        .insert(probe, write.flags, write.expires, value, now)
                        .map(|(_, record)| record.cas),
                    (ValueSource::Arrived(index), old) => {
                        if let Some((place, record)) = old {
                            self.remove(place, record);
                        }
                        Some(self.link_arrived(index, write, now))
                    }
                };
                if kept != 0 {
                    self.mark(probe, kept, now);
                }
                cas.map_or(StoreOutcome::OutOfMemory, StoreOutcome::Stored)
            }
            (StoreDecision::Concatenate { .. }, None) => StoreOutcome::NotStored,
        }
    }

    fn count_cas(&mut self, write: &Write, decision: &StoreDecision) {
        if write.cas.is_none() {
            return;
        }
        match decision {
            StoreDecision::Refuse(StoreOutcome::NotFound) => self.counters.cas_misses += 1,
            StoreDecision::Refuse(StoreOutcome::Exists) => self.counters.cas_badval += 1,
            StoreDecision::Refuse(_) => {}
            StoreDecision::Put { .. } | StoreDecision::Concatenate { .. } => {
                self.counters.cas_hits += 1
            }
        }
    }

    fn mark(&mut self, probe: Probe<'_>, attributes: u8, now: u32) {
        if let Ok((place, mut record)) = self.find(probe, now) {
            record.attributes |= attributes;
            self.log.set_record(place, record);
        }
    }

    /// Puts a value in the place of an item, in its record if that is about as large.
    fn put(
        &mut self,
        (place, old): Found,
        probe: Probe<'_>,
        write: &Write,
        value: &[u8],
        now: u32,
    ) -> Option<u64> {
        let len = LogRecord::bytes_for(probe.1.len(), value.len());
        let capacity = old.capacity as usize;
        if len > capacity || len < capacity / 2 {
            self.remove(place, old);
            let inserted = self.insert(probe, write.flags, write.expires, value, now);
            return inserted.map(|(_, record)| record.cas);
        }
        self.counters.total_items += 1;
        let record = LogRecord {
            attributes: attribute::LIVE | attribute::REFERENCED,
            cas: self.next_cas(),
            value_len: value.len() as u32,
            flags: write.flags,
            expires: write.expires,
            accessed: now,
            ..old
        };
        self.log.set_record(place, record);
        self.log.value_mut(place, &record).copy_from_slice(value);
        Some(record.cas)
    }

    /// Makes a record for a key that has none.
    fn insert(
        &mut self,
        probe: Probe<'_>,
        flags: u32,
        expires: u32,
        value: &[u8],
        now: u32,
    ) -> Option<Found> {
        let (hash, key) = probe;
        let fields = LogRecord {
            attributes: attribute::LIVE,
            cas: self.next_cas(),
            value_len: value.len() as u32,
            flags,
            expires,
            ..LogRecord::new(hash, now)
        };
        let Some(place) = self.allocate(&fields, key, now) else {
            self.counters.out_of_memory += 1;
            return None;
        };
        let record = self.link(place);
        self.log.value_mut(place, &record).copy_from_slice(value);
        Some((place, record))
    }

    fn link_arrived(&mut self, index: u32, write: &Write, now: u32) -> u64 {
        let (place, mut record) = self.take_reservation(index);
        record.attributes = attribute::LIVE;
        record.flags = write.flags;
        record.expires = write.expires;
        record.accessed = now;
        record.cas = self.next_cas();
        self.log.set_record(place, record);
        self.link(place).cas
    }

    /// Puts a live record at the front of its chain.
    fn link(&mut self, place: LogPosition) -> LogRecord {
        let mut record = self.log.record(place);
        let chain = self.chain(record.hash);
        record.next = self.heads[chain];
        self.log.set_record(place, record);
        self.heads[chain] = place.0;
        self.items += 1;
        self.item_bytes += record.capacity as usize;
        self.counters.total_items += 1;
        record
    }

    fn add_to_nothing(
        &mut self,
        probe: Probe<'_>,
        change: &NumberChange,
        now: u32,
    ) -> ArithmeticOutcome {
        let Some((number, expires)) = change.create else {
            return ArithmeticOutcome::NotFound;
        };
        let expires = change.expires.unwrap_or(expires);
        let digits = number::Digits::new(number);
        match self.insert(probe, 0, expires, &digits, now) {
            Some((_, record)) => {
                ArithmeticOutcome::Value { number, cas: record.cas, expires, created: true }
            }
            None => ArithmeticOutcome::OutOfMemory,
        }
    }

    /// Appends to, or prepends to, the value of an item. Its flags and expiry time stay.
    fn concatenate(
        &mut self,
        (place, mut old): Found,
        probe: Probe<'_>,
        source: ValueSource<'_>,
        front: bool,
        now: u32,
    ) -> StoreOutcome {
        let old_len = old.value_len as usize;
        let piece_len = match source {
            ValueSource::Bytes(piece) => piece.len(),
            ValueSource::Arrived(index) => self.arrived(index).1.value_len as usize,
        };
        let value_len = old_len + piece_len;
        if !item_fits(probe.1.len(), value_len, old.flags) {
            self.counters.too_large += 1;
            return StoreOutcome::TooLarge;
        }
        old.attributes |= attribute::PINNED;
        self.log.set_record(place, old);
        let fields = LogRecord {
            attributes: attribute::LIVE,
            cas: self.next_cas(),
            value_len: value_len as u32,
            flags: old.flags,
            expires: old.expires,
            ..LogRecord::new(probe.0, now)
        };
        let new = self.allocate(&fields, probe.1, now);
        // Making room may have carried the old record elsewhere, but not away.
        let found = self.find_pinned(probe);
        let (place, mut old) = found;
        old.attributes &= !attribute::PINNED;
        let Some(new) = new else {
            self.log.set_record(place, old);
            self.counters.out_of_memory += 1;
            return StoreOutcome::OutOfMemory;
        };
        let record = self.log.record(new);
        let (old_at, piece_at) = if front { (piece_len, 0) } else { (0, old_len) };
        self.log.copy_value((place, &old), (new, &record), old_at);
        match source {
            ValueSource::Bytes(piece) => {
                self.log.value_mut(new, &record)[piece_at..piece_at + piece_len]
                    .copy_from_slice(piece);
            }
            ValueSource::Arrived(index) => {
                let (from, arrived) = self.arrived(index);
                self.log.copy_value((from, &arrived), (new, &record), piece_at);
            }
        }
        self.remove(place, old);
        StoreOutcome::Stored(self.link(new).cas)
    }

    /// The record of a key that is pinned, and therefore still in its chain.
    fn find_pinned(&self, (hash, key): Probe<'_>) -> Found {
        let mut place = LogPosition(self.heads[self.chain(hash)]);
        loop {
            assert!(!place.is_nowhere(), "a pinned record is not evicted");
            let record = self.log.record(place);
            if record.hash == hash && self.log.key(place, &record) == key {
                return (place, record);
            }
            place = LogPosition(record.next);
        }
    }

    fn arrived(&self, index: u32) -> Found {
        let place = self.reservations[index as usize];
        (place, self.log.record(place))
    }

    fn take_reservation(&mut self, index: u32) -> Found {
        let (place, record) = self.arrived(index);
        self.reservations[index as usize] = LogPosition::NOWHERE;
        self.free_reservations.push(index);
        self.reserved_bytes -= record.capacity as usize;
        (place, record)
    }

    fn drop_replaced(&mut self, probe: Probe<'_>, write: &Write, now: u32) {
        if write.verb == StoreVerb::Set
            && let Ok((place, record)) = self.find(probe, now)
        {
            self.remove(place, record);
        }
    }
}

impl LogRecord {
    /// A record with nothing in it yet.
    const fn new(hash: u32, now: u32) -> Self {
        Self {
            capacity: 0,
            attributes: 0,
            key_len: 0,
            next: LogPosition::NOWHERE.0,
            hash,
            cas: 0,
            value_len: 0,
            flags: 0,
            expires: 0,
            accessed: now,
        }
    }
}

impl Write {
    /// A set without conditions, flags and expiry time.
    pub(in crate::kv) const PLAIN: Self =
        Self { verb: StoreVerb::Set, cas: None, flags: 0, expires: 0, stale_if_older: false };
}

#[cfg(test)]
mod tests;
