//! read(2), recv(2) and their kin: one attempt, on whatever a descriptor stands for.
//!
//! Read first: recv(2); `stream/receive.rs`, `datagram.rs`.

use std::os::fd::AsFd;
use std::time::Duration;

use super::pipe::{read_counter, read_pipe};
use crate::attempt::{Attempt, Wait};
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::MsgFlags;
use crate::gather::{ReceivePieces, ReceivedMessage};
use crate::kernel;
use crate::limits::FETCH_ROUNDS;
use crate::stream::{Blank, StreamSocket};
use crate::table::{ObjectKind, Sockets};
use crate::transport::ObjectTransport;

/// How a call receives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) flags: MsgFlags,
    /// The time is over: the attempt must not ask to wait.
    pub(super) is_over: bool,
}

/// read(2).
#[inline]
pub(super) fn read(
    sockets: &mut Sockets,
    fd: Fd,
    to: &mut ReceivePieces<'_, '_>,
    is_over: bool,
) -> Attempt<usize> {
    let object = match sockets.descriptors.object(fd) {
        Ok(object) => object,
        Err(error) => return Attempt::Done(Err(error)),
    };
    // What most calls do, and nothing else.
    match sockets.read_stream(object, |stream, _| stream.take_whole(to).map(Ok)) {
        Some(result) => Attempt::Done(result),
        None => read_slowly(sockets, object, to, is_over),
    }
}

#[inline(never)]
fn read_slowly(
    sockets: &mut Sockets,
    object: u32,
    to: &mut ReceivePieces<'_, '_>,
    is_over: bool,
) -> Attempt<usize> {
    let Some(entry) = sockets.object(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    let is_socket = matches!(
        entry.kind,
        ObjectKind::Stream(_) | ObjectKind::Listener(_) | ObjectKind::Datagram(_)
    );
    if is_socket && to.left() == 0 && to.filled() == 0 {
        // As Linux (`sock_read_iter`), unlike recv(2).
        return Attempt::Done(Ok(0));
    }
    let waits = !entry.nonblocking && !is_over;
    let how = Receive { flags: MsgFlags::empty(), is_over };
    match entry.kind {
        ObjectKind::Stream(_) => receive_from_stream(sockets, object, to, how),
        ObjectKind::Pipe(end) => read_pipe(sockets, object, end, to, waits),
        ObjectKind::Counter(_) => read_counter(sockets, object, to, waits),
        ObjectKind::Epoll(_) => Attempt::Done(Err(Error::InvalidArgument)),
        ObjectKind::Listener(_) => Attempt::Done(Err(Error::NotConnected)),
        ObjectKind::Datagram(_) => length(receive_datagram(sockets, object, to, &mut [], how)),
    }
}

fn length(attempt: Attempt<ReceivedMessage>) -> Attempt<usize> {
    match attempt {
        Attempt::Done(done) => Attempt::Done(done.map(|received| received.len)),
        Attempt::Wait(wait) => Attempt::Wait(wait),
    }
}

/// recvmsg(2).
#[inline]
pub(super) fn receive(
    sockets: &mut Sockets,
    fd: Fd,
    to: &mut ReceivePieces<'_, '_>,
    control: &mut [u8],
    how: Receive,
) -> Attempt<ReceivedMessage> {
    let object = match sockets.socket_of(fd) {
        Ok(object) => object,
        Err(error) => return Attempt::Done(Err(error)),
    };
    if how.flags.contains(MsgFlags::ERRQUEUE) {
        return Attempt::Done(receive_error(sockets, object, to, control, how.flags));
    }
    if sockets.is_datagram(object) {
        return receive_datagram(sockets, object, to, control, how);
    }
    let len = match receive_from_stream(sockets, object, to, how) {
        Attempt::Done(Ok(len)) => len,
        Attempt::Done(Err(error)) => return Attempt::Done(Err(error)),
        Attempt::Wait(wait) => return Attempt::Wait(wait),
    };
    Attempt::Done(Ok(match sockets.stream_mut(object) {
        Some((stream, channel)) if stream.reports_unread() => {
            stream.received_with_unread(len, control, channel)
        }
        _ => ReceivedMessage { len, ..ReceivedMessage::NOTHING },
    }))
}

/// recv(2) on a stream; what earlier attempts of the call have copied is in `to`.
#[inline]
fn receive_from_stream(
    sockets: &mut Sockets,
    object: u32,
    to: &mut ReceivePieces<'_, '_>,
    how: Receive,
) -> Attempt<usize> {
    let flags = how.flags;
    if flags.contains(MsgFlags::OOB) {
        let stream = sockets.stream_mut(object).ok_or(Error::NotConnected);
        return Attempt::Done(
            stream.and_then(|(stream, channel)| stream.recv_urgent(to, flags, channel)),
        );
    }
    let mut looked_again = false;
    loop {
        take_all(sockets, object, to, flags);
        let read =
            |stream: &mut StreamSocket, channel: &mut _| stream.read_result(to, flags, channel);
        if let Some(result) = sockets.read_stream(object, read) {
            return Attempt::Done(result);
        }
        sockets.settle(object);
        let Some(entry) = sockets.object(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        let ObjectKind::Stream(stream) = &entry.kind else {
            return Attempt::Done(Err(Error::NotConnected));
        };
        if !entry.nonblocking && !flags.contains(MsgFlags::DONTWAIT) && !how.is_over {
            let wait = Wait::on(object, stream.options.receive_timeout);
            return Attempt::Wait(wait.with_part(to.filled() > 0));
        }
        if to.filled() > 0 {
            return Attempt::Done(Ok(to.filled()));
        }
        if looked_again || !sockets.refreshed(object) {
            return Attempt::Done(Err(Error::WouldBlock));
        }
        looked_again = true;
    }
}

/// Takes what is here, and what waits below because the program has fallen behind.
#[inline]
fn take_all(sockets: &mut Sockets, object: u32, to: &mut ReceivePieces<'_, '_>, flags: MsgFlags) {
    if let Some((stream, channel)) = sockets.stream_mut(object) {
        stream.retry_read(channel);
    }
    if flags.contains(MsgFlags::PEEK) {
        to.rewind();
        look_for(sockets, object, to.left());
    }
    while let Some((stream, channel)) = sockets.stream_mut(object) {
        let Some(wanted) = stream.take_here(to, flags, channel) else { return };
        if !fetch(sockets, object, wanted) {
            return;
        }
    }
}

/// A call looks for bytes that stay here (MSG_PEEK).
#[cold]
fn look_for(sockets: &mut Sockets, object: u32, wanted: usize) {
    if sockets.stream_mut(object).is_some_and(|(stream, _)| stream.look_for(wanted)) {
        fetch(sockets, object, wanted);
    }
}

/// Takes from the channel what waits there for a stream of which the program has read too little,
/// until `wanted` bytes are here or no more can be had without waiting. Returns whether bytes are
/// here.
#[cold]
fn fetch(sockets: &mut Sockets, object: u32, wanted: usize) -> bool {
    let mut rounds = 0;
    while let Some((stream, channel)) = sockets.stream_mut(object) {
        stream.post_read(channel);
        let before = stream.unread();
        if before >= wanted || stream.is_behind() || rounds == FETCH_ROUNDS {
            return before > 0;
        }
        sockets.take_completions();
        let Some((stream, channel)) = sockets.stream_mut(object) else { return false };
        if stream.unread() > before {
            continue;
        }
        // The kernel, or a stack on another thread, has to be polled for it. What that has handed
        // over is not counted there any more, and comes with this poll or a later one.
        let below = stream.unread_below(channel);
        stream.expect(below);
        let is_polled = sockets.poll_channel(Some(Duration::ZERO)).is_ok();
        let Some((stream, _)) = sockets.stream_mut(object) else { return false };
        let has_come = stream.unread() > before;
        if !is_polled || (!has_come && !stream.expects_more_than(before)) {
            stream.expect_nothing();
            return before > 0;
        }
        rounds = if has_come { 0 } else { rounds + 1 };
    }
    false
}

/// recv(2) on a datagram socket.
fn receive_datagram(
    sockets: &mut Sockets,
    object: u32,
    to: &mut ReceivePieces<'_, '_>,
    control: &mut [u8],
    how: Receive,
) -> Attempt<ReceivedMessage> {
    let mut looked_again = false;
    loop {
        let is_blocking = sockets.object(object).is_some_and(|entry| !entry.nonblocking);
        let flags = if is_blocking { how.flags } else { how.flags | MsgFlags::DONTWAIT };
        let Some((socket, channel)) = sockets.datagram_mut(object) else {
            return Attempt::Done(Err(Error::NotASocket));
        };
        if let Some(result) = socket.receive(to, control, flags, channel) {
            return Attempt::Done(result);
        }
        let timeout = socket.options.receive_timeout;
        if channel.is_down() {
            return Attempt::Done(Err(Error::NetworkDown));
        }
        if !flags.contains(MsgFlags::DONTWAIT) && !how.is_over {
            return Attempt::Wait(Wait::on(object, timeout));
        }
        if looked_again || !sockets.refreshed(object) {
            return Attempt::Done(Err(Error::WouldBlock));
        }
        looked_again = true;
    }
}

/// recv(2) with MSG_ERRQUEUE: never waits.
#[cold]
fn receive_error(
    sockets: &mut Sockets,
    object: u32,
    to: &mut ReceivePieces<'_, '_>,
    control: &mut [u8],
    flags: MsgFlags,
) -> Result<ReceivedMessage, Error> {
    if sockets.is_local() {
        return match take_failure(sockets, object, to, control) {
            Err(Error::WouldBlock) if sockets.refreshed(object) => {
                take_failure(sockets, object, to, control)
            }
            done => done,
        };
    }
    let Sockets { objects, channel, .. } = sockets;
    let entry = objects.get(object).ok_or(Error::BadDescriptor)?;
    let handle = match &entry.kind {
        ObjectKind::Stream(StreamSocket { blank: Blank::Kernel(socket), .. }) => {
            return kernel::receive_error(socket.as_fd(), to, control, flags);
        }
        ObjectKind::Stream(stream) => stream.handle,
        ObjectKind::Listener(listener) => listener.handle(),
        ObjectKind::Datagram(socket) => socket.handle(),
        _ => return Err(Error::NotASocket),
    };
    let socket = channel.kernel_socket(handle).ok_or(Error::InvalidArgument)?;
    kernel::receive_error(socket, to, control, flags)
}

/// The oldest error of a socket on our own stack. Streams have none.
fn take_failure(
    sockets: &mut Sockets,
    object: u32,
    to: &mut ReceivePieces<'_, '_>,
    control: &mut [u8],
) -> Result<ReceivedMessage, Error> {
    let Some((socket, _)) = sockets.datagram_mut(object) else { return Err(Error::WouldBlock) };
    let effects = socket.take_failure(to, control);
    sockets.apply(object, effects)
}
