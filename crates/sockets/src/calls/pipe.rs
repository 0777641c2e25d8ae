//! pipe2(2) and eventfd(2), and reads and writes on both.
//!
//! Read first: pipe(7), eventfd(2); `pipe.rs`, `counter.rs`.

use crate::attempt::{Attempt, Wait};
use crate::counter::EventCounter;
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::OpenFlags;
use crate::gather::{ReceivePieces, SendPieces};
use crate::table::{ObjectKind, PipeEnd, Sockets};

/// pipe2(2): the end to read from, then the one to write to.
pub(super) fn pipe(sockets: &mut Sockets, flags: OpenFlags) -> Result<[Fd; 2], Error> {
    let first = sockets.descriptors.lowest_free(0)?;
    let second = sockets.descriptors.lowest_free(first + 1)?;
    let [reader, writer] = sockets.insert_pipe(flags.contains(OpenFlags::NONBLOCK))?;
    sockets.name(first, reader, flags)?;
    sockets.name(second, writer, flags)?;
    Ok([first, second])
}

/// eventfd(2).
pub(super) fn eventfd(
    sockets: &mut Sockets,
    count: u32,
    is_semaphore: bool,
    flags: OpenFlags,
) -> Result<Fd, Error> {
    sockets.open(ObjectKind::Counter(EventCounter::new(count, is_semaphore)), flags)
}

pub(super) fn read_pipe(
    sockets: &mut Sockets,
    object: u32,
    end: PipeEnd,
    to: &mut ReceivePieces<'_, '_>,
    waits: bool,
) -> Attempt<usize> {
    if !end.is_reader {
        return Attempt::Done(Err(Error::BadDescriptor));
    }
    let (pipe, other) = sockets.pipe_mut(end);
    let effects = pipe.read(to);
    or_wait(sockets.apply(other, effects), object, waits)
}

pub(super) fn write_pipe(
    sockets: &mut Sockets,
    object: u32,
    end: PipeEnd,
    from: &mut SendPieces<'_>,
    waits: bool,
) -> Attempt<usize> {
    if end.is_reader {
        return Attempt::Done(Err(Error::BadDescriptor));
    }
    let (pipe, other) = sockets.pipe_mut(end);
    let effects = pipe.write(from);
    match sockets.apply(other, effects) {
        Err(Error::WouldBlock) if !waits && from.taken() > 0 => Attempt::Done(Ok(from.taken())),
        result => or_wait(result, object, waits),
    }
}

pub(super) fn read_counter(
    sockets: &mut Sockets,
    object: u32,
    to: &mut ReceivePieces<'_, '_>,
    waits: bool,
) -> Attempt<usize> {
    let Some(counter) = sockets.counter_mut(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    let effects = counter.read(to);
    or_wait(sockets.apply(object, effects), object, waits)
}

pub(super) fn write_counter(
    sockets: &mut Sockets,
    object: u32,
    from: &mut SendPieces<'_>,
    waits: bool,
) -> Attempt<usize> {
    let Some(counter) = sockets.counter_mut(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    let effects = counter.write(from);
    or_wait(sockets.apply(object, effects), object, waits)
}

/// Waits where a call found nothing, and may wait.
fn or_wait(result: Result<usize, Error>, object: u32, waits: bool) -> Attempt<usize> {
    match result {
        Err(Error::WouldBlock) if waits => Attempt::Wait(Wait::on(object, None)),
        result => Attempt::Done(result),
    }
}
