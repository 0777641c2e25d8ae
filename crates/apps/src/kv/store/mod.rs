//! The item store, shared by all channels: which key has which value, flags, expiry time and cas.
//!
//! Read first: `shard` for one shard's rules, `log` for its memory.
//! Input: keys, values and `now` in Unix seconds. Knows no clock, no connection, no protocol.
//!
//! ```text
//!   key -- SipHash with the server's secret --> upper half: shard     lower half: hash chain
//!   shard 0: lock [ heads | log ]   shard 1: lock [ heads | log ]   ...
//! ```
//!
//! Nothing is shared by all cores: a shard has its own lock, memory, hash table, cas numbers and
//! counters. The hash table is sized when the server starts and never grows, because the memory
//! behind it does not grow either: there is no expansion that all others must wait for, which is
//! what cost memcached on MegaPipe its gain.
//!
//! Eviction is CLOCK over the log: the oldest record goes unless it was used since the tail last
//! passed it; then it is carried to the head. A hit therefore writes one bit, not a list.
//!
//! Invariants
//! - The memory of all shards together, hash tables included, is at most the configured limit,
//!   from the first moment on.
//! - A lock is held for one item: one lookup, one copy of its value, and for a store at most
//!   [`MOVED_BYTES_PER_STORE_MAX`](super::limits::MOVED_BYTES_PER_STORE_MAX) of carried records.
//! - No client can choose keys that meet in one chain or one shard: the hash is keyed.

mod counters;
mod log;
mod number;
mod shard;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use siphasher::sip::SipHasher13;

pub use counters::StoreCounters;
pub(crate) use number::Digits;
use shard::StoreShard;

use super::limits::{
    ITEM_BYTES_MAX, ITEM_FIXED_BYTES, ITEM_FLAGS_BYTES, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN,
    RELATIVE_EXPIRY_S_MAX, SHARD_BYTES_MAX, SHARD_BYTES_MIN, SHARDS_MAX,
};
use super::protocol::text::StoreVerb;

/// The store.
pub struct KvStore {
    shards: Box<[PaddedShard]>,
    secret: (u64, u64),
    memory_bytes: usize,
    flush_count: AtomicU64,
}

/// A shard in cache lines of its own.
#[repr(align(128))]
struct PaddedShard(Mutex<StoreShard>);

/// Why a store cannot be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// Less memory than one shard needs.
    #[error("--memory: {0} bytes are below the least, {MEMORY_BYTES_MIN}")]
    TooLittleMemory(usize),
    /// More memory than the shards can address.
    #[error("--memory: {0} bytes are above the most, {MEMORY_BYTES_MAX}")]
    TooMuchMemory(usize),
    /// The system does not give so much.
    #[error("--memory: {0} bytes are not to be had: Cannot allocate memory")]
    NoMemory(usize),
}

/// An item as it lies in the store, lent while its shard is locked.
#[derive(Clone, Copy, Debug)]
pub struct StoredItem<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// Changes whenever the item does; rising for one key.
    pub cas: u64,
    /// Unix seconds; 0 is never.
    pub expires: u32,
    /// Unix seconds of the use before this one.
    pub accessed: u32,
    /// Whether it was fetched before.
    pub fetched: bool,
    /// Whether it is marked as stale.
    pub stale: bool,
    /// Whether a client received the win token to refresh it.
    pub won: bool,
    /// Whether this very call created it.
    pub created: bool,
    /// Bytes it takes in the log.
    pub record_bytes: usize,
}

/// What a visitor of an item wants changed; see [`KvStore::visit`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemChange {
    /// New expiry time.
    pub expires: Option<u32>,
    /// This client received the win token to refresh the item.
    pub win: bool,
    /// Neither the item's age nor its place in the eviction order change.
    pub no_bump: bool,
}

/// How a value is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Under which condition, and where.
    pub verb: StoreVerb,
    /// The cas unique that the item must have. With [`StoreVerb::Set`] there must be an item.
    pub cas: Option<u64>,
    /// Client flags of a new item.
    pub flags: u32,
    /// Expiry time of a new item, in Unix seconds; 0 is never.
    pub expires: u32,
    /// With a `cas` lower than the item's: store, mark as stale, and keep the item's expiry time
    /// and win token.
    pub stale_if_older: bool,
}

/// What became of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreOutcome {
    /// Done; the item's new cas unique.
    Stored(u64),
    /// The verb's condition does not hold.
    NotStored,
    /// The cas unique differs.
    Exists,
    /// A cas unique was given, but there is no item.
    NotFound,
    /// The item would be too large.
    TooLarge,
    /// Values in arrival hold too much of the shard.
    OutOfMemory,
}

/// Memory for a value that arrives in pieces. It must go back through [`KvStore::commit`] or
/// [`KvStore::abandon`]; the store's owner sees to that when a connection ends.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "its memory stays taken until it is committed or abandoned"]
pub struct Reservation {
    shard: u32,
    index: u32,
}

/// How a number is to be changed.
#[derive(Clone, Copy, Debug)]
pub struct NumberChange {
    /// By how much.
    pub delta: u64,
    /// Down, and not below 0; up wraps at 2^64.
    pub down: bool,
    /// The cas unique that the item must have.
    pub cas: Option<u64>,
    /// Value and expiry time of an item to create if there is none.
    pub create: Option<(u64, u32)>,
    /// New expiry time.
    pub expires: Option<u32>,
}

/// What became of a change of a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArithmeticOutcome {
    /// The number now.
    Value {
        /// The number.
        number: u64,
        /// The item's new cas unique.
        cas: u64,
        /// Its expiry time.
        expires: u32,
        /// Whether there was no item before.
        created: bool,
    },
    /// There is no item.
    NotFound,
    /// The value is no number.
    NonNumeric,
    /// The cas unique differs.
    Exists,
    /// Values in arrival hold too much of the shard.
    OutOfMemory,
}

/// What became of a deletion or of a mark.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Removal {
    /// Done.
    Done,
    /// There is no item.
    NotFound,
    /// The cas unique differs.
    Exists,
}

impl KvStore {
    /// A store in at most `memory_bytes` of memory.
    ///
    /// # Errors
    /// The limit is outside [`MEMORY_BYTES_MIN`] and [`MEMORY_BYTES_MAX`], or more than there is.
    pub fn new(memory_bytes: usize) -> Result<Self, StoreError> {
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(StoreError::TooLittleMemory(memory_bytes));
        }
        if memory_bytes > MEMORY_BYTES_MAX {
            return Err(StoreError::TooMuchMemory(memory_bytes));
        }
        let fitting = memory_bytes / SHARD_BYTES_MIN;
        let count = (1usize << fitting.ilog2()).min(SHARDS_MAX);
        let bytes = (memory_bytes / count).min(SHARD_BYTES_MAX);
        let shard = |index| {
            let shard = StoreShard::new(index as u64, count as u64, bytes);
            shard.map(|shard| PaddedShard(Mutex::new(shard)))
        };
        let shards: Result<_, _> = (0..count).map(shard).collect();
        let shards = shards.map_err(|_| StoreError::NoMemory(memory_bytes))?;
        let random = RandomState::new();
        let secret = (random.hash_one(0u8), random.hash_one(1u8));
        Ok(Self { shards, secret, memory_bytes, flush_count: AtomicU64::new(0) })
    }

    /// The configured limit.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Number of shards: a power of two.
    #[must_use]
    pub const fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Lends the item of `key` to `read`; with `touch` its expiry time becomes that first.
    pub fn get<R>(
        &self,
        key: &[u8],
        touch: Option<u32>,
        now: u32,
        read: impl FnOnce(&StoredItem<'_>) -> R,
    ) -> Option<R> {
        let (mut shard, hash) = self.shard_of(key);
        shard.get((hash, key), touch, now, read)
    }

    /// Lends the item of `key` to `visit`, or nothing if there is none, and makes the change that
    /// it returns. With `vivify` an empty item with that expiry time is created on a miss.
    pub fn visit<R>(
        &self,
        key: &[u8],
        vivify: Option<u32>,
        now: u32,
        visit: impl FnOnce(Option<&StoredItem<'_>>) -> (R, ItemChange),
    ) -> R {
        let (mut shard, hash) = self.shard_of(key);
        shard.visit((hash, key), vivify, now, visit)
    }

    /// Lends the item of `key` to `read` and changes nothing at all, not even counters.
    pub fn peek<R>(
        &self,
        key: &[u8],
        now: u32,
        read: impl FnOnce(&StoredItem<'_>) -> R,
    ) -> Option<R> {
        let (mut shard, hash) = self.shard_of(key);
        shard.peek((hash, key), now, read)
    }

    /// Stores a value that is here as a whole.
    pub fn store(&self, key: &[u8], write: &Write, value: &[u8], now: u32) -> StoreOutcome {
        let (mut shard, hash) = self.shard_of(key);
        if !item_fits(key.len(), value.len(), write.flags) {
            shard.refuse_too_large((hash, key), write, now);
            return StoreOutcome::TooLarge;
        }
        shard.store((hash, key), write, value, now)
    }

    /// Takes memory for a value of `value_len` bytes that arrives in pieces.
    ///
    /// # Errors
    /// [`StoreOutcome::TooLarge`] or [`StoreOutcome::OutOfMemory`]; the item that `write` would
    /// have replaced is deleted then, so that no client reads an old value after a failed set.
    pub fn reserve(
        &self,
        key: &[u8],
        write: &Write,
        value_len: usize,
        now: u32,
    ) -> Result<Reservation, StoreOutcome> {
        let (shard_index, hash) = self.place_of(key);
        let mut shard = self.lock(shard_index);
        if !item_fits(key.len(), value_len, write.flags) {
            shard.refuse_too_large((hash, key), write, now);
            return Err(StoreOutcome::TooLarge);
        }
        let index = shard.reserve((hash, key), write, value_len, now)?;
        Ok(Reservation { shard: shard_index as u32, index })
    }

    /// Writes a piece of the value, `at` bytes from its start. A piece beyond the value's end is
    /// cut off.
    pub fn fill(&self, reservation: &Reservation, at: usize, piece: &[u8]) {
        self.lock(reservation.shard as usize).fill(reservation.index, at, piece);
    }

    /// Stores the value that has arrived.
    pub fn commit(&self, reservation: Reservation, write: &Write, now: u32) -> StoreOutcome {
        self.lock(reservation.shard as usize).commit(reservation.index, write, now)
    }

    /// Bytes of the value that memory was taken for.
    #[must_use]
    pub fn reserved_len(&self, reservation: &Reservation) -> usize {
        self.lock(reservation.shard as usize).reserved_len(reservation.index)
    }

    /// Stores the value that has arrived, if what `write` asks for holds; the memory goes back only
    /// then.
    pub fn try_commit(&self, reservation: &Reservation, write: &Write, now: u32) -> StoreOutcome {
        self.lock(reservation.shard as usize).try_commit(reservation.index, write, now)
    }

    /// Gives the memory back.
    pub fn abandon(&self, reservation: Reservation) {
        self.lock(reservation.shard as usize).abandon(reservation.index);
    }

    /// Changes a number.
    pub fn add(&self, key: &[u8], arithmetic: &NumberChange, now: u32) -> ArithmeticOutcome {
        let (mut shard, hash) = self.shard_of(key);
        shard.add((hash, key), arithmetic, now)
    }

    /// Sets an item's expiry time; returns its client flags and cas unique.
    pub fn touch(&self, key: &[u8], expires: u32, now: u32) -> Option<(u32, u64)> {
        let (mut shard, hash) = self.shard_of(key);
        shard.touch((hash, key), expires, now)
    }

    /// Deletes an item.
    pub fn delete(&self, key: &[u8], cas: Option<u64>, now: u32) -> Removal {
        let (mut shard, hash) = self.shard_of(key);
        shard.delete((hash, key), cas, now)
    }

    /// Marks an item as stale and gives it a new cas unique.
    pub fn mark_stale(
        &self,
        key: &[u8],
        cas: Option<u64>,
        expires: Option<u32>,
        now: u32,
    ) -> Removal {
        let (mut shard, hash) = self.shard_of(key);
        shard.mark_stale((hash, key), cas, expires, now)
    }

    /// Drops all items that are here at the second `at`, which may be now.
    pub fn flush(&self, at: u32, now: u32) {
        // Relaxed: a number for people; nothing is ordered by it.
        self.flush_count.fetch_add(1, Ordering::Relaxed);
        for index in 0..self.shards.len() {
            self.lock(index).flush(at, now);
        }
    }

    /// How often [`KvStore::flush`] was called.
    #[must_use]
    pub fn flush_count(&self) -> u64 {
        self.flush_count.load(Ordering::Relaxed)
    }

    /// The sum of all shards' counters. Each shard is looked at in turn, so the sum is of no one
    /// moment while others store.
    #[must_use]
    pub fn counters(&self) -> StoreCounters {
        let mut sum = StoreCounters::default();
        for index in 0..self.shards.len() {
            sum.add(&self.lock(index).counters());
        }
        sum
    }

    /// Sets to nought what `stats reset` does.
    pub fn reset_counters(&self) {
        for index in 0..self.shards.len() {
            self.lock(index).reset_counters();
        }
    }

    fn shard_of(&self, key: &[u8]) -> (MutexGuard<'_, StoreShard>, u32) {
        let (shard, hash) = self.place_of(key);
        (self.lock(shard), hash)
    }

    fn place_of(&self, key: &[u8]) -> (usize, u32) {
        let hash = SipHasher13::new_with_keys(self.secret.0, self.secret.1).hash(key);
        ((hash >> 32) as usize & (self.shards.len() - 1), hash as u32)
    }

    /// A panic while a shard is locked cannot leave it worse than a lost item; go on.
    fn lock(&self, index: usize) -> MutexGuard<'_, StoreShard> {
        self.shards[index].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an item is within [`ITEM_BYTES_MAX`], counted as memcached counts it.
#[must_use]
pub const fn item_fits(key_len: usize, value_len: usize, flags: u32) -> bool {
    let flags_bytes = if flags == 0 { 0 } else { ITEM_FLAGS_BYTES };
    ITEM_FIXED_BYTES + flags_bytes + key_len + value_len <= ITEM_BYTES_MAX
}

/// The Unix second that an expiry time as a client sends it stands for: 0 never, up to 30 days from
/// now, larger numbers absolute, negative at once.
#[must_use]
pub fn expiry(exptime: i64, now: u32) -> u32 {
    const AT_ONCE: u32 = 1;
    match exptime {
        0 => 0,
        ..0 => AT_ONCE,
        1..=RELATIVE_EXPIRY_S_MAX => now.saturating_add(exptime as u32),
        _ => u32::try_from(exptime).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
