//! What a channel knows of its handles, whichever driver serves it.
//!
//! Read first: `slot.rs` (one handle), `arena.rs` (the queues), `driver.rs` (what a driver
//! does). The public calls (`channel.rs`) put operations in here; the driver reports what the
//! kernel did through the `on_*` functions, which turn operations into completions.
//!
//! Invariants
//! - Every operation that was taken gives exactly one completion (an accept: `count` of them),
//!   unless its handle is unregistered first: then none.
//! - Completions of one direction of one stream come in the order of the operations.
//! - `ready` holds completions not yet handed out; those of a handle that left are skipped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::arena::Arena;
use crate::buffer::ReadBuf;
use crate::completion::{Datagram, Event, ToFd};
use crate::completion_queue::{Ready, UNASKED_ROOM, Whose};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::{Limit, OpError};
use crate::handle::{ChannelTag, Handle};
use crate::kernel::pool::{HeldBuffer, PoolOwner};
use crate::kernel::sys;
use crate::limits;
use crate::slot::{
    Awaited, Body, Extra, Kind, ReadOp, Receiving, Slot, SlotPhase, StreamEnd, Target, WriteOp,
};
use crate::timers::{Due, Timers};

mod accepting;
mod handing_out;
mod handles;
mod unsent;

use handing_out::SlotSet;

const NO_SLOT: u32 = u32::MAX;

/// Pieces of unread bytes that can come between two polls: from our own stack one with each
/// dispatch.
const UNREAD_PER_POLL: usize = limits::DISPATCHES_PER_POLL as usize + limits::ANSWERS_PER_FETCH;

pub(crate) struct State {
    pub(crate) tag: ChannelTag,
    pub(crate) config: Config,
    slots: Vec<Slot>,
    /// The slot that was freed last, the head of a list ([`Slot::next_free`]).
    first_free: u32,
    descriptors: handles::Descriptors,
    /// Slots whose `first_read` is taken.
    first_reads: usize,
    pub(crate) reads: Arena<ReadOp>,
    pub(crate) unread: Arena<ReadBuf>,
    pub(crate) writes: Arena<WriteOp>,
    /// Slots that may hold unread pool buffers (`Flags::in_unread_list`), oldest first.
    unread_slots: VecDeque<u32>,
    ready: Ready,
    /// Connections that began in the batch that `dispatch_many` gathers.
    begun_in_batch: SlotSet,
    pub(crate) receive_pool: PoolOwner,
    pub(crate) send_pool: PoolOwner,
    pub(crate) timers: Timers,
    /// The driver, which watches the timers, found that one may be due.
    pub(crate) timers_due: bool,
    /// Dispatches since the driver was polled last.
    pub(crate) since_poll: u32,
    pub(crate) counters: Counters,
    /// Listeners that wait for a descriptor to become free.
    pub(crate) exhausted_listeners: u32,
    /// The channel's eventfd was rung.
    pub(crate) woken: bool,
    /// A signal handler ran while the driver waited, since that was last asked.
    pub(crate) interrupted: bool,
    /// Something waits for a send of which the kernel tells nothing if all goes well
    /// (`Slot::silent_bytes`): what is queued behind it, or its slot's end.
    pub(crate) silence_awaited: bool,
}

impl State {
    pub(crate) fn new(config: Config) -> io::Result<Self> {
        let receive_pool = PoolOwner::new(config.buffer_len, config.buffer_count)?;
        let send_pool = PoolOwner::new(config.buffer_len, config.buffer_count)?;
        Ok(Self {
            tag: ChannelTag::next(),
            config,
            slots: Vec::new(),
            first_free: NO_SLOT,
            descriptors: handles::Descriptors::default(),
            first_reads: 0,
            reads: Arena::new(),
            unread: Arena::new(),
            writes: Arena::new(),
            unread_slots: VecDeque::new(),
            ready: Ready::new(receive_pool.held_table()),
            begun_in_batch: SlotSet::default(),
            receive_pool,
            send_pool,
            timers: Timers::default(),
            timers_due: false,
            since_poll: 0,
            counters: Counters::default(),
            exhausted_listeners: 0,
            woken: false,
            interrupted: false,
            silence_awaited: false,
        })
    }

    /// A signal came, and the program wants to wait no longer then.
    pub(crate) const fn is_interrupted(&self) -> bool {
        self.interrupted && self.config.interruptible
    }

    // -- slots

    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// Slots, in use or free.
    pub(crate) const fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn peek(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// The slot is a listener's.
    #[inline]
    pub(crate) fn is_listener(&self, index: u32) -> bool {
        self.peek(index).kind == Kind::Listener
    }

    /// The slots in use, with their indices.
    pub(crate) fn live_slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let indexed = self.slots.iter().enumerate().map(|(index, slot)| (index as u32, slot));
        indexed.filter(|(_, slot)| slot.is_live())
    }

    /// The slots that are not free.
    pub(crate) fn used_slots(&self) -> impl Iterator<Item = u32> {
        let indexed = (0u32..).zip(&self.slots);
        indexed.filter(|(_, slot)| slot.phase != SlotPhase::Free).map(|(index, _)| index)
    }

    /// Bytes of user-space memory behind the handles, used or not, without room that no handle
    /// has touched yet.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + self.reads.memory_bytes()
            + self.unread.memory_bytes()
            + self.writes.memory_bytes()
    }

    #[inline(always)]
    fn cancel_deadline(&mut self, index: u32) {
        if self.slot(index).deadline.is_some() {
            self.cancel_timer(index);
        }
    }

    #[inline(never)]
    fn cancel_timer(&mut self, index: u32) {
        if let Some(key) = self.slot(index).deadline.take() {
            self.timers.cancel(key);
        }
    }

    /// Memory for one deadline, so that [`State::set_deadline`] cannot fail.
    pub(crate) fn reserve_deadline(&mut self) -> Result<(), Limit> {
        if self.timers.reserve_one() { Ok(()) } else { Err(Limit::Memory) }
    }

    /// Replaces the slot's deadline.
    pub(crate) fn set_deadline(&mut self, index: u32, at: Option<Instant>, due: Due) {
        self.cancel_deadline(index);
        self.slot(index).deadline = at.map(|at| self.timers.set(at, index, due));
    }

    // -- completions

    /// Memory for what one fetch of the kernel's answers can complete: each operation, and
    /// something for each answer.
    pub(crate) fn reserve_completions(&mut self) -> Result<(), Limit> {
        let operations = self.first_reads + self.reads.len() + self.writes.len();
        let count = operations + self.timers.len() + limits::ANSWERS_PER_FETCH;
        let has_room = self.ready.reserve(count) && self.reserve_unread();
        if has_room { Ok(()) } else { Err(Limit::Memory) }
    }

    /// Room for one more operation, and memory for its completion: what completes operations need
    /// not be asked whether there is any.
    #[inline(always)]
    pub(crate) fn admit(&mut self) -> Result<(), Limit> {
        let waiting = self.first_reads + self.reads.len() + self.writes.len();
        if waiting + UNASKED_ROOM >= self.ready.room() {
            self.admit_with_memory(waiting)?;
        }
        self.counters.operations += 1;
        Ok(())
    }

    #[cold]
    fn admit_with_memory(&mut self, waiting: usize) -> Result<(), Limit> {
        if waiting >= limits::OPERATIONS_MAX {
            return Err(Limit::Operations);
        }
        let count = waiting + limits::ANSWERS_PER_FETCH;
        if self.ready.reserve(count) && self.reserve_unread() { Ok(()) } else { Err(Limit::Memory) }
    }

    /// Memory for the bytes that come unread until the next poll.
    fn reserve_unread(&mut self) -> bool {
        self.unread.reserve(UNREAD_PER_POLL)
            && self.unread_slots.try_reserve(UNREAD_PER_POLL).is_ok()
    }

    #[inline(always)]
    pub(crate) fn complete(&mut self, index: u32, event: Event) {
        let handle = self.handle(index);
        self.ready.push(handle, index, event);
    }

    /// The handle's connection is ended, as it was asked for.
    #[inline]
    #[cfg(feature = "local")]
    pub(crate) fn complete_disconnect(&mut self, index: u32) {
        let handle = self.handle(index);
        self.ready.push_disconnected(handle, index);
    }

    pub(crate) fn complete_wake(&mut self) {
        self.ready.push(Handle::NONE, NO_SLOT, Event::Wake);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    // -- receiving

    /// `false`: there is no memory for it, and nothing has changed. A slot without a read always
    /// takes one.
    pub(crate) fn queue_read(&mut self, index: u32, read: ReadOp) -> bool {
        let slot = &mut self.slots[index as usize];
        if slot.first_read.is_none() {
            self.put_first_read(index, read);
        } else if self.reads.reserve_one() {
            self.reads.push_back(&mut slot.more_reads, read);
        } else {
            return false;
        }
        true
    }

    /// A read of a handle of which none waits.
    #[inline(always)]
    pub(crate) fn put_first_read(&mut self, index: u32, read: ReadOp) {
        self.slots[index as usize].first_read = Some(read);
        self.first_reads += 1;
    }

    /// Removes the oldest read; false if none waits.
    #[inline]
    fn drop_read(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        if slot.first_read.take().is_none() {
            return false;
        }
        if !slot.more_reads.is_empty() {
            slot.first_read = self.reads.pop_front(&mut slot.more_reads);
        } else {
            self.first_reads -= 1;
        }
        true
    }

    /// The reads of a handle that wait.
    pub(crate) fn reads_waiting(&self, index: u32) -> usize {
        let slot = self.peek(index);
        usize::from(slot.first_read.is_some()) + self.reads.iter(slot.more_reads).count()
    }

    /// Completes the oldest read of a message socket. A message for which there is no memory is
    /// lost, and the read says so.
    pub(crate) fn answer_message(
        &mut self,
        index: u32,
        with_sender: bool,
        received: Result<Datagram, OpError>,
    ) {
        if !self.drop_read(index) {
            return;
        }
        let event = if with_sender {
            let in_box = |datagram| sys::try_box(datagram).map_err(|_| OpError::NoMemory);
            Event::RecvFrom(received.and_then(in_box))
        } else {
            Event::Read(received.map(|datagram| datagram.data))
        };
        self.complete(index, event);
    }

    /// Answers reads of a stream from what has arrived, as far as it goes.
    pub(crate) fn answer_reads(&mut self, index: u32) {
        loop {
            let slot = &mut self.slots[index as usize];
            let Some(read) = slot.first_read else { return };
            if slot.unread.is_empty() {
                match slot.end {
                    StreamEnd::Not => return,
                    StreamEnd::Eof => self.answer_one(index, Ok(ReadBuf::END)),
                    StreamEnd::Failed(error) => self.answer_one(index, Err(error)),
                }
                continue;
            }
            let wanted = read.len as usize;
            let Some(front) = self.unread.front_mut(slot.unread) else { return };
            let buffer = if front.len() > wanted {
                Some(front.split_to(wanted))
            } else {
                self.unread.pop_front(&mut slot.unread)
            };
            let Some(buffer) = buffer else { return };
            slot.unread_bytes -= buffer.len() as u32;
            self.answer_one(index, Ok(buffer));
        }
    }

    /// Completes the oldest read.
    #[inline]
    pub(crate) fn answer_one(&mut self, index: u32, result: Result<ReadBuf, OpError>) {
        if self.drop_read(index) {
            self.complete(index, Event::Read(result));
        }
    }

    /// `len` bytes arrived in receive buffer `id` on a stream. If exactly one read waits, takes all
    /// of them, and nothing else is to be done, it is answered past the queue of completions;
    /// else nothing has changed.
    #[inline(always)]
    pub(crate) fn on_received_for_one(
        &mut self,
        index: u32,
        id: u16,
        len: u32,
    ) -> Option<(Whose, ReadBuf)> {
        if !self.has_sole_read(index, len) {
            return None;
        }
        let bytes = self.receive_pool.receive(id, len)?;
        Some((self.take_sole_read(index), ReadBuf::new(bytes)))
    }

    /// The same for a buffer that is held already: `take` gives its token.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(crate) fn on_held_for_one(
        &mut self,
        index: u32,
        take: impl FnOnce() -> Option<HeldBuffer>,
        len: u32,
    ) -> Option<(Whose, ReadBuf)> {
        if !self.has_sole_read(index, len) {
            return None;
        }
        let bytes = self.receive_pool.adopt(take()?, len)?;
        Some((self.take_sole_read(index), ReadBuf::new(bytes)))
    }

    /// Exactly one read waits on a stream, takes `len` bytes, and none are before them.
    #[inline(always)]
    fn has_sole_read(&self, index: u32, len: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| {
            slot.first_read.is_some_and(|read| read.len >= len)
                && slot.phase == SlotPhase::Open
                && slot.unread.is_empty()
                && slot.more_reads.is_empty()
        })
    }

    #[inline(always)]
    fn take_sole_read(&mut self, index: u32) -> Whose {
        let slot = &mut self.slots[index as usize];
        slot.first_read = None;
        self.first_reads -= 1;
        self.counters.completions += 1;
        Whose { handle: slot.handle, slot: index }
    }

    /// The receiving direction ended in order. If exactly one read waits, it is answered past the
    /// queue of completions; else nothing has changed.
    #[cfg(feature = "local")]
    pub(crate) fn on_end_for_one(&mut self, index: u32) -> Option<(Whose, ReadBuf)> {
        let is_first = self.slots.get(index as usize)?.end == StreamEnd::Not;
        if !is_first || !self.has_sole_read(index, 0) || self.slot(index).flags.reset {
            return None;
        }
        self.slot(index).end = StreamEnd::Eof;
        Some((self.take_sole_read(index), ReadBuf::END))
    }

    /// `len` bytes arrived on a stream, in a receive buffer. Says whether receiving should pause,
    /// because too much is unread.
    #[inline(always)]
    pub(crate) fn on_received_held(&mut self, index: u32, buffer: HeldBuffer, len: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        // The common case: one read waits and takes all of it.
        if slot.unread.is_empty()
            && let Some(read) = slot.first_read
            && read.len >= len
        {
            let handle = slot.handle;
            self.drop_read(index);
            self.ready.push_read(handle, index, buffer, len);
            return false;
        }
        let Some(bytes) = self.receive_pool.adopt(buffer, len) else { return false };
        self.on_received(index, ReadBuf::new(bytes))
    }

    /// Bytes arrived on a stream. Says whether receiving should pause, because too much is unread.
    pub(crate) fn on_received(&mut self, index: u32, buffer: ReadBuf) -> bool {
        let slot = &mut self.slots[index as usize];
        if slot.phase == SlotPhase::Closing {
            return false;
        }
        slot.unread_bytes += buffer.len() as u32;
        self.unread.push_back(&mut slot.unread, buffer);
        self.answer_reads(index);
        let slot = &mut self.slots[index as usize];
        if !slot.unread.is_empty() && !slot.flags.in_unread_list {
            slot.flags.in_unread_list = true;
            self.unread_slots.push_back(index);
        }
        self.slot(index).unread_bytes as usize >= limits::READ_AHEAD_BYTES_MAX
    }

    /// Ends the receiving direction: completes waiting reads, and later ones.
    #[inline]
    pub(crate) fn on_receive_end(&mut self, index: u32, end: StreamEnd) {
        let slot = self.slot(index);
        if slot.end == StreamEnd::Not {
            // A reset ends both directions, but the kernel tells only the first that asks.
            let unheard = end == StreamEnd::Eof && slot.flags.reset;
            slot.end = if unheard { StreamEnd::Failed(OpError::Reset) } else { end };
        }
        if slot.is_live() && slot.first_read.is_some() {
            self.answer_reads(index);
        }
    }

    /// Ends both directions: completes operations that wait for that.
    #[inline]
    pub(crate) fn on_end(&mut self, index: u32, result: Result<(), OpError>) {
        if self.slot(index).flags.awaited.take(Awaited::END) {
            // The kernel reports an error once: a send may have had it, or the receive that is
            // ahead of the program's reads.
            let slot = self.slot(index);
            let result = match (result, slot.end) {
                (Ok(()) | Err(OpError::Reset), StreamEnd::Failed(error)) => Err(error),
                (Ok(()), _) if slot.flags.reset => Err(OpError::Reset),
                (result, _) => result,
            };
            let handle = self.handle(index);
            self.ready.push_over(handle, index, result);
        }
    }

    /// A stream has reads that only the network can answer.
    pub(crate) fn wants_data(&mut self, index: u32) -> bool {
        let slot = self.slot(index);
        matches!(slot.phase, SlotPhase::Open)
            && slot.first_read.is_some()
            && slot.unread.is_empty()
            && slot.end == StreamEnd::Not
    }

    /// Moves unread bytes out of pool buffers until about `wanted` buffers are free, so that
    /// unread handles cannot starve the others. Without memory for them, the rest stays.
    pub(crate) fn spill_unread(&mut self, wanted: usize) {
        while self.receive_pool.free_count() < wanted {
            let Some(index) = self.unread_slots.front().copied() else { return };
            if !self.spill_slot(index) {
                return;
            }
            self.unread_slots.pop_front();
            self.slot(index).flags.in_unread_list = false;
        }
    }

    /// Moves the unread bytes of a slot. `false`: there is no memory for all of them.
    fn spill_slot(&mut self, index: u32) -> bool {
        let Self { slots, unread, counters, .. } = self;
        let slot = &mut slots[index as usize];
        let mut all = true;
        for _ in 0..unread.iter(slot.unread).count() {
            let Some(mut buffer) = unread.pop_front(&mut slot.unread) else { break };
            if all && buffer.holds_pool_buffer() {
                match buffer.try_detached() {
                    Some(detached) => {
                        counters.spilled_bytes += buffer.len() as u64;
                        buffer = detached;
                    }
                    None => all = false,
                }
            }
            unread.push_back(&mut slot.unread, buffer);
        }
        all
    }

    /// Unread bytes of a handle that leaves, oldest first.
    pub(crate) fn take_unread(&mut self, index: u32) -> Vec<ReadBuf> {
        let Self { slots, unread, .. } = self;
        let slot = &mut slots[index as usize];
        slot.unread_bytes = 0;
        let mut taken = Vec::new();
        unread.drain(&mut slot.unread, |buffer| taken.push(buffer));
        taken
    }

    // -- sending

    #[inline(always)]
    pub(crate) fn queue_write(&mut self, index: u32, mut write: WriteOp) {
        let slot = &mut self.slots[index as usize];
        self.silence_awaited |= slot.silent_bytes > 0;
        write.start = self.writes.back(slot.writes).map_or(0, WriteOp::end);
        self.writes.push_back(&mut slot.writes, write);
    }

    /// A quiet write went past the queue, but not all of it went out: now it is the oldest in it.
    pub(crate) fn queue_write_first(&mut self, index: u32, mut write: WriteOp) {
        let slot = &mut self.slots[index as usize];
        let next = self.writes.front(slot.writes).map_or(0, |next| next.start);
        write.start = next.wrapping_sub(write.len);
        self.writes.push_front(&mut slot.writes, write);
    }

    /// `sent` bytes of the queued writes went out, oldest first; completes those that are whole.
    #[inline(always)]
    pub(crate) fn on_sent(&mut self, index: u32, sent: usize) {
        self.take_sent(index, sent);
        self.tell_drained(index);
    }

    #[inline(always)]
    fn take_sent(&mut self, index: u32, mut sent: usize) {
        loop {
            let slot = &mut self.slots[index as usize];
            let Some(write) = self.writes.front_mut(slot.writes) else { return };
            if !write.is_data() {
                return;
            }
            let step = sent.min(write.len - write.done);
            write.done += step;
            sent -= step;
            if write.done < write.len {
                return;
            }
            let (len, to_address, quiet) = (write.len, write.to.is_some(), write.quiet);
            self.writes.drop_front(&mut slot.writes);
            if !quiet {
                self.complete_write(index, to_address, Ok(len));
            }
            if sent == 0 {
                return;
            }
        }
    }

    /// The oldest write failed. On a stream all writes behind it fail too: it was left in the
    /// middle, or its sending direction is closed.
    pub(crate) fn on_send_failed(&mut self, index: u32, error: OpError) {
        let is_stream = self.slot(index).kind.is_stream();
        let flags = &mut self.slot(index).flags;
        flags.reset |= error == OpError::Reset;
        // The failed writes say that the sending direction is over.
        if is_stream {
            flags.awaited.take(Awaited::DRAINED | Awaited::DRAINED_IS_READY);
        }
        loop {
            let slot = &mut self.slots[index as usize];
            let is_data = self.writes.front(slot.writes).is_some_and(WriteOp::is_data);
            if !is_data {
                return;
            }
            let Some(write) = self.writes.pop_front(&mut slot.writes) else { return };
            self.complete_write(index, write.to.is_some(), Err(error));
            if !is_stream {
                return self.tell_drained(index);
            }
        }
    }

    #[inline(always)]
    fn complete_write(&mut self, index: u32, to_address: bool, result: Result<usize, OpError>) {
        if !self.slot(index).is_live() {
            return;
        }
        match result {
            Ok(len) if !to_address => {
                let handle = self.handle(index);
                self.ready.push_written(handle, index, len as u32);
            }
            _ if to_address => self.complete(index, Event::SendTo(result)),
            _ => self.complete(index, Event::Write(result)),
        }
    }

    /// Removes the disconnect or move at the head of the writes, which is done.
    pub(crate) fn pop_control(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let popped = self.writes.pop_front(&mut slot.writes);
        debug_assert!(matches!(
            popped.map(|write| write.body),
            Some(Body::Disconnect(_) | Body::ToFd)
        ));
    }

    // -- connections

    /// The connection attempt ended.
    pub(crate) fn on_connected(&mut self, index: u32, result: Result<(), OpError>) {
        self.cancel_deadline(index);
        let slot = self.slot(index);
        if slot.phase != SlotPhase::Starting {
            return;
        }
        slot.phase = SlotPhase::Open;
        slot.extra = slot.extra.take().filter(|extra| extra.outlasts_connect());
        let Err(error) = result else {
            let handle = self.handle(index);
            return self.ready.push_connected(handle, index);
        };
        slot.end = StreamEnd::Failed(error);
        self.complete(index, Event::Connect(Err(error)));
        self.on_send_failed(index, error);
        self.answer_reads(index);
    }

    /// The handle's descriptor and unread bytes leave the channel.
    pub(crate) fn on_moved(&mut self, index: u32, result: Result<OwnedFd, OpError>) {
        match result {
            Ok(fd) => {
                let unread = self.take_unread(index);
                // Operations that were queued behind or beside the move end here.
                while let Some(read) = self.peek(index).first_read {
                    self.drop_read(index);
                    let cancelled = match read.with_sender {
                        true => Event::RecvFrom(Err(OpError::Cancelled)),
                        false => Event::Read(Err(OpError::Cancelled)),
                    };
                    self.complete(index, cancelled);
                }
                self.on_send_failed(index, OpError::Cancelled);
                self.slot(index).target = Target::None;
                self.complete(index, Event::ToFd(Ok(ToFd { fd, unread })));
            }
            Err(error) => {
                self.slot(index).phase = SlotPhase::Open;
                self.complete(index, Event::ToFd(Err(error)));
            }
        }
    }

    /// The file is open, or is not going to be.
    pub(crate) fn on_opened(&mut self, index: u32, result: Result<(), OpError>) {
        self.slot(index).phase = SlotPhase::Open;
        self.complete(index, Event::Open(result));
    }

    /// The program's timer expired.
    pub(crate) fn on_timer(&mut self, index: u32, now: Instant) {
        let slot = self.slot(index);
        let set_for = slot.deadline.take().map_or(now, |(at, _)| at);
        let Some(Extra::Timer { period }) = slot.extra.as_deref() else { return };
        let mut expirations = 1;
        if let Some(period) = *period {
            // Expirations that were slept through are counted, not repeated, and the rhythm
            // stays that of the first deadline.
            let late = now.saturating_duration_since(set_for).as_nanos();
            let missed = (late / period.as_nanos().max(1)).min(u64::MAX as u128 - 1) as u64;
            expirations += missed;
            let ahead = period.saturating_mul(missed.saturating_add(1).min(u32::MAX.into()) as u32);
            self.set_deadline(index, set_for.checked_add(ahead), Due::Timer);
        }
        self.complete(index, Event::Timer { expirations });
    }

    /// A receiving slot stopped for want of buffers.
    pub(crate) fn starve(&mut self, index: u32) {
        self.counters.buffers_exhausted += 1;
        self.slot(index).receiving = Receiving::Starved;
    }
}
