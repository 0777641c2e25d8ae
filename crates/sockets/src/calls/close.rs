//! close(2) and shutdown(2): one attempt.
//!
//! Read first: close(2), shutdown(2), socket(7) on SO_LINGER; `stream/close.rs`.

use std::time::Duration;

use crate::attempt::{Attempt, Wait};
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::Events;
use crate::stream::Shutdown;
use crate::table::{ObjectKind, Sockets};

/// shutdown(2).
pub(super) fn shutdown(sockets: &mut Sockets, fd: Fd, how: Shutdown) -> Result<(), Error> {
    let object = sockets.socket_of(fd)?;
    if let Some((socket, _)) = sockets.datagram_mut(object) {
        let effects = socket.shutdown(how);
        return sockets.apply(object, effects);
    }
    if sockets.listener(object).is_some() {
        if how != Shutdown::Write {
            return sockets.stop_listening(object);
        }
        // Of that direction alone Linux ends nothing, and wakes all that watch (`inet_shutdown`).
        sockets.notify(object, Events::READABLE | Events::WRITABLE);
        return Ok(());
    }
    if sockets.stream_mut(object).is_some_and(|(stream, _)| stream.shut.send) {
        // The peer may have closed, too, since the program waited last. A link that is gone is
        // reported by the calls that transfer data.
        let _ = sockets.take_in();
    }
    let Some((stream, channel)) = sockets.stream_mut(object) else {
        return Err(Error::NotConnected);
    };
    let effects = stream.shutdown(how, channel);
    sockets.apply(object, effects)
}

/// `mtcp_abort`: a reset, and the descriptor is free.
pub(super) fn abort(sockets: &mut Sockets, fd: Fd) -> Result<(), Error> {
    let object = sockets.socket_of(fd)?;
    if let Some((stream, _)) = sockets.stream_mut(object) {
        stream.abort();
    }
    sockets.close(fd)
}

/// close(2). `lingering` is the object that a first attempt has left without a descriptor.
#[inline]
pub(super) fn close(
    sockets: &mut Sockets,
    fd: Fd,
    lingering: &mut Option<u32>,
    is_over: bool,
) -> Attempt<()> {
    let (object, waits) = match *lingering {
        Some(object) => (object, is_lingering(sockets, object)),
        None => match sockets.descriptors.remove(fd) {
            Ok(object) => (object, begin_to_linger(sockets, object)),
            Err(error) => return Attempt::Done(Err(error)),
        },
    };
    if let Some(time) = waits
        && !is_over
    {
        *lingering = Some(object);
        // A signal ends it, and close(2) has done what it can.
        return Attempt::Wait(Wait::on(object, Some(time)).with_part(true));
    }
    sockets.unname(object);
    Attempt::Done(Ok(()))
}

/// A descriptor of an object is closed. Returns how long to wait until the peer has everything;
/// `None`: there is nothing to wait for.
fn begin_to_linger(sockets: &mut Sockets, object: u32) -> Option<Duration> {
    let entry = sockets.object(object)?;
    let ObjectKind::Stream(stream) = &entry.kind else { return None };
    let time = stream.linger_time(&sockets.channel).filter(|_| entry.descriptors == 1)?;
    sockets.forget_watchers(object);
    let (stream, channel) = sockets.stream_mut(object)?;
    stream.begin_to_linger(channel).then_some(time)
}

fn is_lingering(sockets: &Sockets, object: u32) -> Option<Duration> {
    match &sockets.object(object)?.kind {
        ObjectKind::Stream(stream) => stream.is_lingering(),
        _ => None,
    }
}
