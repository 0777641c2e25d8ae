//! Completions on their way to the program, oldest first.
//!
//! Nearly all completions are "these bytes arrived", "so many bytes went out" and, with short
//! connections, "this one was accepted", or "established", or "ended", or "over". They are kept as
//! three words each and become a `Completion` only when they are handed out; a full one is eight
//! words, and moving it about costs more than making it. The rest is kept whole, in a queue of its
//! own that keeps the same order.
//!
//! Invariants
//! - `others` holds one event for each entry of kind `Other`, in the same order.
//! - The token of a held buffer in an entry is in `held` until the entry is taken.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::buffer::ReadBuf;
use crate::completion::{Accepted, Connection, Event};
use crate::error::OpError;
use crate::handle::Handle;
use crate::kernel::pool::{HeldBuffer, HeldTable, Pool};
use crate::limits::OPERATIONS_MAX;

/// Three words, written and read as words: a processor hands a store on to a load that follows
/// it closely only if the load is no wider.
#[derive(Clone, Copy)]
struct QueuedEntry {
    handle: Handle,
    /// Slot (low half) and length (high half).
    slot_and_len: u64,
    /// `OTHER`, `WRITTEN`, `READ` and above it a held buffer's index, `ACCEPTED` and above it the
    /// connection's handle in this channel, `CONNECTED`, `DISCONNECTED`, `OVER` or `RESET`.
    what: u64,
}

const OTHER: u64 = 0;
const WRITTEN: u64 = 1;
const READ: u64 = 2;
const ACCEPTED: u64 = 3;
const CONNECTED: u64 = 4;
const DISCONNECTED: u64 = 5;
const OVER: u64 = 6;
const RESET: u64 = 7;
const WHAT_BITS: u32 = 8;
const WHAT_MASK: u64 = (1 << WHAT_BITS) - 1;

/// Entries that were taken stay in front until so many have gathered, and as many as are left:
/// each entry is then moved once at most, however long the queue is.
const TAKEN_MIN: usize = 1024;

/// Completions that no operation asked for, beside those of all operations, that one event of our
/// own stack can bring.
pub(crate) const UNASKED_ROOM: usize = 16;

/// Most entries that are reserved at once: of all operations.
const RESERVED_MAX: usize = OPERATIONS_MAX + UNASKED_ROOM;

/// The owner of a completion.
#[derive(Clone, Copy)]
pub(crate) struct Whose {
    pub(crate) handle: Handle,
    pub(crate) slot: u32,
}

/// A completion of one of the common kinds, in parts.
#[derive(Clone, Copy)]
pub(crate) struct Common {
    pub(crate) handle: Handle,
    pub(crate) slot: u32,
    pub(crate) what: CommonEvent,
}

/// What happened, of the common kinds.
#[derive(Clone, Copy)]
pub(crate) enum CommonEvent {
    /// Bytes arrived in a buffer: its number, for [`Ready::take_held`], and how many.
    Read(u16, u32),
    /// So many bytes went out.
    Written(u32),
    /// A connection was accepted, and so many more wait.
    Accepted(Handle, u32),
    /// The connection is established.
    Connected,
    /// It is ended.
    Disconnected,
    /// It is over in both directions: in order, or by the peer's reset.
    Over(Result<(), OpError>),
}

/// The queue.
pub(crate) struct Ready {
    entries: Vec<QueuedEntry>,
    /// Entries before this one were taken.
    first: usize,
    others: VecDeque<Event>,
    held: HeldTable,
    /// Entries that both queues have memory for, at most [`RESERVED_MAX`].
    reserved: usize,
}

impl Ready {
    /// An empty queue. `held` is a table of the pool that held buffers come from.
    pub(crate) const fn new(held: HeldTable) -> Self {
        Self { entries: Vec::new(), first: 0, others: VecDeque::new(), held, reserved: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.entries.len()
    }

    /// Makes room for so many completions more. `false`: there is no memory for them.
    #[inline]
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        let all = self.entries.len() + count;
        // Without a copy of unused memory, in either direction.
        let mut others = Vec::from(std::mem::take(&mut self.others));
        let has_room = grow(&mut self.entries, all) && grow(&mut others, all);
        self.others = others.into();
        if has_room {
            self.reserved = self.reserved.max(all).min(RESERVED_MAX);
        }
        has_room
    }

    /// For how many more completions there is memory.
    #[inline(always)]
    pub(crate) const fn room(&self) -> usize {
        self.reserved.saturating_sub(self.entries.len())
    }

    /// The first `len` bytes of a receive buffer arrived.
    #[inline(always)]
    pub(crate) fn push_read(&mut self, handle: Handle, slot: u32, buffer: HeldBuffer, len: u32) {
        let Some(number) = self.held.put(buffer) else { return };
        let what = READ | u64::from(number) << WHAT_BITS;
        self.entries.push(QueuedEntry { handle, slot_and_len: pair(slot, len), what });
    }

    /// A write of `len` bytes is done.
    #[inline(always)]
    pub(crate) fn push_written(&mut self, handle: Handle, slot: u32, len: u32) {
        self.entries.push(QueuedEntry { handle, slot_and_len: pair(slot, len), what: WRITTEN });
    }

    /// A listener's connection is there, and `pending` more wait. Both are of the same channel.
    #[inline(always)]
    pub(crate) fn push_accepted(
        &mut self,
        (listener, slot): (Handle, u32),
        connection: Handle,
        pending: u32,
    ) {
        let what = ACCEPTED | connection.in_channel() << WHAT_BITS;
        self.entries.push(QueuedEntry {
            handle: listener,
            slot_and_len: pair(slot, pending),
            what,
        });
    }

    /// A connection is established.
    #[inline(always)]
    pub(crate) fn push_connected(&mut self, handle: Handle, slot: u32) {
        self.entries.push(QueuedEntry { handle, slot_and_len: pair(slot, 0), what: CONNECTED });
    }

    /// A connection is ended, as it was asked for.
    #[inline(always)]
    #[cfg(feature = "local")]
    pub(crate) fn push_disconnected(&mut self, handle: Handle, slot: u32) {
        self.entries.push(QueuedEntry { handle, slot_and_len: pair(slot, 0), what: DISCONNECTED });
    }

    /// A connection is over in both directions, whose end was awaited.
    #[inline(always)]
    pub(crate) fn push_over(&mut self, handle: Handle, slot: u32, result: Result<(), OpError>) {
        let what = match result {
            Ok(()) => OVER,
            Err(OpError::Reset) => RESET,
            Err(_) => return self.push(handle, slot, Event::End(result)),
        };
        self.entries.push(QueuedEntry { handle, slot_and_len: pair(slot, 0), what });
    }

    /// Anything.
    pub(crate) fn push(&mut self, handle: Handle, slot: u32, event: Event) {
        self.others.push_back(event);
        self.entries.push(QueuedEntry { handle, slot_and_len: pair(slot, 0), what: OTHER });
    }

    /// Whose the oldest completion is.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Whose> {
        let entry = self.entries.get(self.first)?;
        Some(Whose { handle: entry.handle, slot: entry.slot_and_len as u32 })
    }

    /// The oldest completion, if it is of one of the common kinds.
    #[inline(always)]
    pub(crate) fn common(&self) -> Option<Common> {
        let QueuedEntry { handle, slot_and_len, what } = *self.entries.get(self.first)?;
        let (slot, len) = (slot_and_len as u32, (slot_and_len >> 32) as u32);
        let what = match what & WHAT_MASK {
            READ => CommonEvent::Read((what >> WHAT_BITS) as u16, len),
            WRITTEN => CommonEvent::Written(len),
            ACCEPTED => CommonEvent::Accepted(Handle::beside(handle, what >> WHAT_BITS), len),
            CONNECTED => CommonEvent::Connected,
            DISCONNECTED => CommonEvent::Disconnected,
            OVER => CommonEvent::Over(Ok(())),
            RESET => CommonEvent::Over(Err(OpError::Reset)),
            _ => return None,
        };
        Some(Common { handle, slot, what })
    }

    /// Goes on to the next completion; what `common` told of is the caller's now.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.first += 1;
        if self.first == self.entries.len() {
            self.entries.clear();
            self.first = 0;
        } else if self.first >= TAKEN_MIN && self.first * 2 >= self.entries.len() {
            self.entries.drain(..self.first);
            self.first = 0;
        }
    }

    /// The held buffer that a common completion names, once.
    #[inline(always)]
    pub(crate) fn take_held(&mut self, number: u16) -> Option<HeldBuffer> {
        self.held.take(number)
    }

    /// Takes the oldest completion. `pool` is the one that held buffers come from.
    pub(crate) fn pop(&mut self, pool: &Arc<Pool>) -> Option<Event> {
        let QueuedEntry { handle, slot_and_len, what } = *self.entries.get(self.first)?;
        self.advance();
        let len = (slot_and_len >> 32) as usize;
        match what & WHAT_MASK {
            READ => {
                let held = self.take_held((what >> WHAT_BITS) as u16)?;
                let bytes = pool.adopt(held, len as u32)?;
                Some(Event::Read(Ok(ReadBuf::new(bytes))))
            }
            WRITTEN => Some(Event::Write(Ok(len))),
            ACCEPTED => Some(accepted(Handle::beside(handle, what >> WHAT_BITS), len as u32)),
            CONNECTED => Some(Event::Connect(Ok(()))),
            DISCONNECTED => Some(Event::Disconnect(Ok(()))),
            OVER => Some(Event::End(Ok(()))),
            RESET => Some(Event::End(Err(OpError::Reset))),
            _ => self.others.pop_front(),
        }
    }

    /// Removes those of a handle's completions that `wanted` takes apart.
    pub(crate) fn take<T>(
        &mut self,
        of: Handle,
        pool: &Arc<Pool>,
        wanted: impl Fn(Event) -> Result<T, Event>,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        for _ in self.first..self.entries.len() {
            let Some(Whose { handle, slot }) = self.next() else { break };
            let Some(event) = self.pop(pool) else { continue };
            match if handle == of { wanted(event) } else { Err(event) } {
                Ok(found) => taken.push(found),
                Err(event) => self.push(handle, slot, event),
            }
        }
        taken
    }
}

/// Gives a queue a capacity of `len` or more, in new memory: a larger block of the old would be
/// copied whole, and so become resident, though nearly all of it was never used. A few large steps
/// touch fewer pages than many small ones. `false`: there is no memory.
fn grow<T>(queue: &mut Vec<T>, len: usize) -> bool {
    if queue.capacity() >= len {
        return true;
    }
    let mut larger = Vec::new();
    if larger.try_reserve_exact(len.max(4 * queue.capacity())).is_err() {
        return false;
    }
    larger.append(queue);
    *queue = larger;
    true
}

/// The event of an accepted lwsocket.
#[inline(always)]
pub(crate) const fn accepted(connection: Handle, pending: u32) -> Event {
    Event::Accept(Ok(Accepted { connection: Connection::Lwsocket(connection), pending }))
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::pool::PoolOwner;

    #[test]
    fn completions_come_out_in_order_whatever_their_kind() {
        let pool = PoolOwner::new(64, 4).unwrap();
        pool.lend_free(|_, _| {});
        let handles = [1, 2, 3, 4].map(Handle::from_bits);
        let mut ready = Ready::new(pool.held_table());
        ready.push_written(handles[0], 10, 7);
        ready.push(handles[1], 11, Event::Wake);
        ready.push_read(handles[2], 12, pool.hold(3).unwrap(), 5);
        ready.push(handles[3], 13, Event::Timer { expirations: 2 });
        let taken = ready.take(handles[1], &pool, |event| match event {
            Event::Wake => Ok(()),
            other => Err(other),
        });
        assert_eq!(taken.len(), 1);
        assert!(ready.next().is_some_and(|whose| (whose.handle, whose.slot) == (handles[0], 10)));
        assert!(matches!(ready.pop(&pool), Some(Event::Write(Ok(7)))));
        assert!(ready.next().is_some_and(|whose| whose.slot == 12));
        let Some(Event::Read(Ok(bytes))) = ready.pop(&pool) else { panic!() };
        assert_eq!((bytes.len(), pool.free_count()), (5, 0));
        drop(bytes);
        assert_eq!(pool.free_count(), 1);
        assert!(matches!(ready.pop(&pool), Some(Event::Timer { expirations: 2 })));
        assert!(ready.is_empty() && ready.next().is_none() && ready.pop(&pool).is_none());
    }

    #[test]
    fn room_for_more_keeps_what_is_queued_in_order() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut ready = Ready::new(pool.held_table());
        let handle = Handle::from_bits(1);
        for round in 0..6_u32 {
            for slot in 0..100 {
                ready.push(handle, slot, Event::Timer { expirations: u64::from(slot) });
            }
            // The oldest are taken, so that the queue of whole events begins in its middle.
            assert!((0..50).all(|_| ready.pop(&pool).is_some()));
            assert!(ready.reserve(100 << round));
            assert!(ready.room() >= 100 << round);
        }
        let left: Vec<u64> = std::iter::from_fn(|| ready.pop(&pool))
            .map(|event| match event {
                Event::Timer { expirations } => expirations,
                other => panic!("{other:?}"),
            })
            .collect();
        let expected: Vec<u64> = (0..6).flat_map(|_| 0..100).skip(300).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn an_accepted_connection_keeps_its_whole_handle() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut ready = Ready::new(pool.held_table());
        let tag = crate::handle::ChannelTag::next();
        let listener = Handle::new(7, 1, tag);
        for number in [crate::handle::FIRST_LWSOCKET, i32::MAX as u32] {
            let connection = Handle::new(number, crate::handle::GENERATION_MASK, tag);
            ready.push_accepted((listener, 3), connection, u32::MAX);
            let Some(Common { what: CommonEvent::Accepted(seen, pending), slot: 3, .. }) =
                ready.common()
            else {
                panic!("it is a common kind")
            };
            assert_eq!((seen, pending), (connection, u32::MAX));
            let Some(Event::Accept(Ok(accepted))) = ready.pop(&pool) else { panic!() };
            let Connection::Lwsocket(seen) = accepted.connection else { panic!() };
            assert_eq!((seen, accepted.pending), (connection, u32::MAX));
        }
    }

    #[test]
    fn end_completion_keeps_its_result() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut ready = Ready::new(pool.held_table());
        for (result, is_common) in
            [(Ok(()), true), (Err(OpError::Reset), true), (Err(OpError::TimedOut), false)]
        {
            ready.push_over(Handle::NONE, 7, result);
            let told = ready.common().map(|common| match common.what {
                CommonEvent::Over(told) => told,
                _ => panic!("it is an end"),
            });
            assert_eq!(told, is_common.then_some(result));
            let Some(Event::End(told)) = ready.pop(&pool) else { panic!("it is an end") };
            assert_eq!((told, ready.is_empty()), (result, true));
        }
    }

    #[test]
    fn taken_entries_free_their_space() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut ready = Ready::new(pool.held_table());
        ready.push_written(Handle::NONE, 0, 0);
        for turn in 0..10_000 {
            ready.push_written(Handle::NONE, 0, turn + 1);
            assert!(
                matches!(ready.pop(&pool), Some(Event::Write(Ok(len))) if len == turn as usize)
            );
        }
        assert!(ready.entries.len() <= TAKEN_MIN + 1);
    }

    #[test]
    fn entries_of_a_long_queue_are_moved_once_at_most() {
        let pool = PoolOwner::new(64, 4).unwrap();
        let mut ready = Ready::new(pool.held_table());
        let count = 64 * TAKEN_MIN;
        for len in 0..count {
            ready.push_written(Handle::NONE, 0, len as u32);
        }
        let mut moved = 0;
        for taken in 0..count {
            let first = ready.first;
            assert!(matches!(ready.pop(&pool), Some(Event::Write(Ok(len))) if len == taken));
            if ready.first < first {
                moved += ready.entries.len();
            }
            let left = count - taken - 1;
            assert!(ready.entries.len() <= 2 * left + TAKEN_MIN + 1, "{left} left");
        }
        assert!((1..count).contains(&moved), "{moved} entries were moved");
    }
}
