//! Pipes and event counters of a context: for threads and layers of a program that wake each other
//! through the same sets as their sockets [MT 3.3].
//!
//! Read first: pipe(7), eventfd(2).
//!
//! They live in the context's memory: no system call, and no descriptor of the process.
//!
//! Invariants
//! - A pipe lives as long as one of its ends; `bytes` is never longer than its capacity.
//! - A write of up to [`PIPE_ATOMIC_BYTES`] goes in whole or not at all.
//! - A counter is never `u64::MAX`.

use std::collections::VecDeque;

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::{Events, OpenFlags};
use crate::gather::{Gather, Scatter};
use crate::limits::{PIPE_ATOMIC_BYTES, PIPE_BYTES};
use crate::sockets::{Attempt, Kind, NIL, Sockets, Wait};

/// What both ends of a pipe share.
pub(crate) struct Pipe {
    bytes: VecDeque<u8>,
    /// The objects of the ends; `NIL`: closed.
    reader: u32,
    writer: u32,
}

/// One end of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PipeEnd {
    pipe: u32,
    pub(crate) is_reader: bool,
}

/// An event counter (eventfd).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    count: u64,
    /// EFD_SEMAPHORE: a read takes one.
    is_semaphore: bool,
}

impl Counter {
    /// Readable when it is not zero, writable when at least one more fits.
    pub(crate) const fn readiness(self) -> Events {
        let mut events = Events::empty();
        if self.count > 0 {
            events = events.union(Events::IN);
        }
        if self.count < u64::MAX - 1 {
            events = events.union(Events::OUT);
        }
        events
    }
}

/// Making.
impl Sockets {
    /// pipe2(2): the end to read from, then the one to write to.
    pub(crate) fn pipe(&mut self, flags: OpenFlags) -> Result<[Fd; 2], Error> {
        let nonblocking = flags.contains(OpenFlags::NONBLOCK);
        let first = self.table.lowest_free(0)?;
        let second = self.table.lowest_free(first + 1)?;
        let empty = Pipe { bytes: VecDeque::new(), reader: NIL, writer: NIL };
        let pipe = self.pipes.insert(empty) as u32;
        let reader = self.insert(Kind::Pipe(PipeEnd { pipe, is_reader: true }), nonblocking);
        let writer = self.insert(Kind::Pipe(PipeEnd { pipe, is_reader: false }), nonblocking);
        let entry = &mut self.pipes[pipe as usize];
        (entry.reader, entry.writer) = (reader, writer);
        self.name(first, reader, flags)?;
        self.name(second, writer, flags)?;
        Ok([first, second])
    }

    /// eventfd(2).
    pub(crate) fn eventfd(
        &mut self,
        count: u32,
        is_semaphore: bool,
        flags: OpenFlags,
    ) -> Result<Fd, Error> {
        self.open(Kind::Counter(Counter { count: count.into(), is_semaphore }), flags)
    }

    pub(crate) fn close_pipe(&mut self, end: PipeEnd) {
        let entry = &mut self.pipes[end.pipe as usize];
        let other = if end.is_reader {
            entry.reader = NIL;
            entry.writer
        } else {
            entry.writer = NIL;
            entry.reader
        };
        if other == NIL {
            self.pipes.remove(end.pipe as usize);
            return;
        }
        let happened = if end.is_reader { Events::ERR | Events::OUT } else { Events::HUP };
        self.notify(other, happened);
    }

    /// What an end is ready for (pipe_poll in the kernel).
    pub(crate) fn readiness_of_pipe(&self, end: PipeEnd) -> Events {
        let Some(pipe) = self.pipes.get(end.pipe as usize) else { return Events::HUP };
        let mut events = Events::empty();
        if end.is_reader {
            events.set(Events::READABLE, !pipe.bytes.is_empty());
            events.set(Events::HUP, pipe.writer == NIL);
        } else {
            // Room for what may not be torn.
            let has_room = pipe.bytes.len() + PIPE_ATOMIC_BYTES <= PIPE_BYTES;
            events.set(Events::WRITABLE, has_room);
            events.set(Events::ERR, pipe.reader == NIL);
        }
        events
    }

    pub(crate) fn unread_in_pipe(&self, end: PipeEnd) -> usize {
        self.pipes.get(end.pipe as usize).map_or(0, |pipe| pipe.bytes.len())
    }
}

/// Reading and writing.
impl Sockets {
    pub(crate) fn read_pipe(
        &mut self,
        object: u32,
        end: PipeEnd,
        to: &mut Scatter<'_, '_>,
        waits: bool,
    ) -> Attempt<usize> {
        if !end.is_reader {
            return Attempt::Done(Err(Error::BadDescriptor));
        }
        let pipe = &mut self.pipes[end.pipe as usize];
        if to.left() == 0 {
            return Attempt::Done(Ok(0));
        }
        if pipe.bytes.is_empty() {
            return match (pipe.writer == NIL, waits) {
                (true, _) => Attempt::Done(Ok(0)),
                (false, true) => Attempt::Wait(Wait::on(object, None)),
                (false, false) => Attempt::Done(Err(Error::WouldBlock)),
            };
        }
        let len = to.left().min(pipe.bytes.len());
        let (front, back) = pipe.bytes.as_slices();
        to.put(&front[..len.min(front.len())], false);
        to.put(&back[..len.saturating_sub(front.len())], false);
        pipe.bytes.drain(..len);
        let writer = pipe.writer;
        if writer != NIL {
            self.notify(writer, Events::WRITABLE);
        }
        Attempt::Done(Ok(len))
    }

    pub(crate) fn write_pipe(
        &mut self,
        object: u32,
        end: PipeEnd,
        from: &mut Gather<'_>,
        waits: bool,
    ) -> Attempt<usize> {
        if end.is_reader {
            return Attempt::Done(Err(Error::BadDescriptor));
        }
        let pipe = &mut self.pipes[end.pipe as usize];
        if from.left() == 0 {
            return Attempt::Done(Ok(from.taken()));
        }
        if pipe.reader == NIL {
            let partly = (from.taken() > 0).then_some(from.taken());
            return Attempt::Done(partly.ok_or(Error::BrokenPipe));
        }
        let room = PIPE_BYTES - pipe.bytes.len();
        let is_whole = from.taken() + from.left() <= PIPE_ATOMIC_BYTES;
        let len = if is_whole && room < from.left() { 0 } else { room.min(from.left()) };
        if len > 0 {
            from.take(len, |part| pipe.bytes.extend(part));
            let reader = pipe.reader;
            self.notify(reader, Events::READABLE);
        }
        match (from.left() == 0, waits, from.taken()) {
            (true, _, taken) => Attempt::Done(Ok(taken)),
            (false, true, _) => Attempt::Wait(Wait::on(object, None)),
            (false, false, 0) => Attempt::Done(Err(Error::WouldBlock)),
            (false, false, taken) => Attempt::Done(Ok(taken)),
        }
    }

    fn counter_mut(&mut self, object: u32) -> Option<&mut Counter> {
        match &mut self.object_mut(object)?.kind {
            Kind::Counter(counter) => Some(counter),
            _ => None,
        }
    }

    pub(crate) fn read_counter(
        &mut self,
        object: u32,
        to: &mut Scatter<'_, '_>,
        waits: bool,
    ) -> Attempt<usize> {
        let Some(counter) = self.counter_mut(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        if to.left() < 8 {
            return Attempt::Done(Err(Error::InvalidArgument));
        }
        if counter.count == 0 {
            return match waits {
                true => Attempt::Wait(Wait::on(object, None)),
                false => Attempt::Done(Err(Error::WouldBlock)),
            };
        }
        let taken = if counter.is_semaphore { 1 } else { counter.count };
        counter.count -= taken;
        to.put(&taken.to_ne_bytes(), false);
        self.notify(object, Events::OUT);
        Attempt::Done(Ok(8))
    }

    pub(crate) fn write_counter(
        &mut self,
        object: u32,
        from: &mut Gather<'_>,
        waits: bool,
    ) -> Attempt<usize> {
        let mut bytes = [0; 8];
        let Some(counter) = self.counter_mut(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        if from.left() + from.taken() < bytes.len() {
            return Attempt::Done(Err(Error::InvalidArgument));
        }
        from.rewind();
        let mut filled = 0;
        from.take(bytes.len(), |part| {
            bytes[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        });
        let more = u64::from_ne_bytes(bytes);
        if more == u64::MAX {
            return Attempt::Done(Err(Error::InvalidArgument));
        }
        if u64::MAX - 1 - counter.count < more {
            return match waits {
                true => Attempt::Wait(Wait::on(object, None)),
                false => Attempt::Done(Err(Error::WouldBlock)),
            };
        }
        counter.count += more;
        self.notify(object, Events::IN);
        Attempt::Done(Ok(8))
    }
}
