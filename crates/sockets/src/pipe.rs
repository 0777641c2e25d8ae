//! Pipes of a context: for threads and layers of a program that wake each other through the same
//! sets as their sockets [MT 3.3].
//!
//! Read first: pipe(7).
//!
//! They live in the context's memory: no system call, and no descriptor of the process. A [`Pipe`]
//! knows neither its ends' objects nor the table: what a call on one end means for the other one is
//! returned as events.
//!
//! Invariants
//! - `bytes` is never longer than a pipe's capacity.
//! - A write of up to [`PIPE_ATOMIC_BYTES`] goes in whole or not at all.

use std::collections::VecDeque;

use crate::effects::Effects;
use crate::error::Error;
use crate::flags::Events;
use crate::gather::{ReceivePieces, SendPieces};
use crate::limits::{PIPE_ATOMIC_BYTES, PIPE_BYTES};

/// What both ends of a pipe share.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    bytes: VecDeque<u8>,
    /// The end to read from is closed.
    has_no_reader: bool,
    /// The end to write to is closed.
    has_no_writer: bool,
}

impl Pipe {
    /// Bytes that wait.
    pub(crate) fn unread(&self) -> usize {
        self.bytes.len()
    }

    /// What an end is ready for (pipe_poll in the kernel).
    pub(crate) fn readiness(&self, is_reader: bool) -> Events {
        let mut events = Events::empty();
        if is_reader {
            events.set(Events::READABLE, !self.bytes.is_empty());
            events.set(Events::HUP, self.has_no_writer);
        } else {
            events.set(Events::WRITABLE, self.has_room());
            events.set(Events::ERR, self.has_no_reader);
        }
        events
    }

    /// Room for what may not be torn.
    fn has_room(&self) -> bool {
        self.bytes.len() + PIPE_ATOMIC_BYTES <= PIPE_BYTES
    }

    /// An end is closed. Returns the events of the other end; `None`: it is closed, too.
    pub(crate) fn close(&mut self, is_reader: bool) -> Option<Events> {
        if is_reader {
            self.has_no_reader = true;
            (!self.has_no_writer).then_some(Events::ERR | Events::OUT)
        } else {
            self.has_no_writer = true;
            (!self.has_no_reader).then_some(Events::HUP)
        }
    }

    /// read(2); the events are the writer's: there are some if the pipe was full and has room again
    /// (pipe_read in the kernel). [`Error::WouldBlock`]: there is nothing to read.
    pub(crate) fn read(&mut self, to: &mut ReceivePieces<'_, '_>) -> Effects<usize> {
        if to.left() == 0 {
            return Effects::quiet(Ok(0));
        }
        if self.bytes.is_empty() {
            let is_over = self.has_no_writer;
            return Effects::quiet(if is_over { Ok(0) } else { Err(Error::WouldBlock) });
        }
        let len = to.left().min(self.bytes.len());
        let (front, back) = self.bytes.as_slices();
        to.put(&front[..len.min(front.len())], false);
        to.put(&back[..len.saturating_sub(front.len())], false);
        let was_full = !self.has_room();
        self.bytes.drain(..len);
        let is_news = was_full && self.has_room();
        let events = if is_news { Events::WRITABLE } else { Events::empty() };
        Effects { result: Ok(len), events }
    }

    /// write(2); the events are the reader's. [`Error::WouldBlock`]: something is left to write;
    /// [`Error::NoMemory`]: nothing was written, for want of memory.
    pub(crate) fn write(&mut self, from: &mut SendPieces<'_>) -> Effects<usize> {
        if from.left() == 0 {
            return Effects::quiet(Ok(from.taken()));
        }
        if self.has_no_reader {
            let partly = (from.taken() > 0).then_some(from.taken());
            return Effects::quiet(partly.ok_or(Error::BrokenPipe));
        }
        let room = PIPE_BYTES - self.bytes.len();
        let is_whole = from.taken() + from.left() <= PIPE_ATOMIC_BYTES;
        let len = if is_whole && room < from.left() { 0 } else { room.min(from.left()) };
        if self.bytes.try_reserve(len).is_err() {
            let partly = (from.taken() > 0).then_some(from.taken());
            return Effects::quiet(partly.ok_or(Error::NoMemory));
        }
        from.take(len, |part| self.bytes.extend(part));
        Effects {
            result: if from.left() == 0 { Ok(from.taken()) } else { Err(Error::WouldBlock) },
            events: if len > 0 { Events::READABLE } else { Events::empty() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, IoSliceMut};

    use super::*;

    fn write(pipe: &mut Pipe, bytes: &[u8]) -> Effects<usize> {
        pipe.write(&mut SendPieces::new(&[IoSlice::new(bytes)]))
    }

    fn read(pipe: &mut Pipe, room: &mut [u8]) -> Effects<usize> {
        pipe.read(&mut ReceivePieces::new(&mut [IoSliceMut::new(room)]))
    }

    #[test]
    fn pipe_write_notifies_the_reader() {
        let (mut pipe, mut room) = (Pipe::default(), [0; 8]);
        assert_eq!(read(&mut pipe, &mut room), Effects::quiet(Err(Error::WouldBlock)));
        let written = write(&mut pipe, b"abc");
        assert_eq!(written, Effects { result: Ok(3), events: Events::READABLE });
        assert_eq!(pipe.readiness(true), Events::READABLE);
        let taken = read(&mut pipe, &mut room);
        assert_eq!(taken, Effects::quiet(Ok(3)), "the writer had room before");
        assert_eq!(&room[..3], b"abc");
    }

    #[test]
    fn pipe_read_notifies_the_writer_of_a_full_pipe() {
        let (mut pipe, mut room) = (Pipe::default(), vec![0; PIPE_BYTES]);
        assert_eq!(write(&mut pipe, &vec![0; PIPE_BYTES]).result, Ok(PIPE_BYTES));
        let taken = read(&mut pipe, &mut room[..PIPE_ATOMIC_BYTES - 1]);
        assert_eq!(taken, Effects::quiet(Ok(PIPE_ATOMIC_BYTES - 1)), "it is full still");
        let taken = read(&mut pipe, &mut room[..1]);
        assert_eq!(taken, Effects { result: Ok(1), events: Events::WRITABLE });
        let taken = read(&mut pipe, &mut room);
        assert_eq!(taken, Effects::quiet(Ok(PIPE_BYTES - PIPE_ATOMIC_BYTES)));
    }

    #[test]
    fn pipe_takes_a_short_write_whole_or_not_at_all() {
        let mut pipe = Pipe::default();
        assert_eq!(write(&mut pipe, &vec![0; PIPE_BYTES - 1]).result, Ok(PIPE_BYTES - 1));
        assert_eq!(write(&mut pipe, b"ab"), Effects::quiet(Err(Error::WouldBlock)));
        assert_eq!(pipe.unread(), PIPE_BYTES - 1);
        assert_eq!(pipe.readiness(false), Events::empty());
    }

    #[test]
    fn pipe_reports_a_closed_end_to_the_other_one() {
        let (mut pipe, mut room) = (Pipe::default(), [0; 8]);
        assert_eq!(write(&mut pipe, b"a").result, Ok(1));
        assert_eq!(pipe.close(false), Some(Events::HUP));
        assert_eq!(pipe.readiness(true), Events::READABLE | Events::HUP);
        assert_eq!(read(&mut pipe, &mut room).result, Ok(1));
        assert_eq!(read(&mut pipe, &mut room), Effects::quiet(Ok(0)));
        assert_eq!(pipe.close(true), None);
        assert_eq!(write(&mut pipe, b"b").result, Err(Error::BrokenPipe));
    }
}
