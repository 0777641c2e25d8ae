//! write(2), send(2) and their kin: one attempt, on whatever a descriptor stands for.
//!
//! Read first: send(2); `stream/send.rs`, `datagram.rs`.

use std::time::Duration;

use super::connect::connect_to_send;
use super::pipe::{write_counter, write_pipe};
use crate::attempt::{Attempt, Wait};
use crate::control_data::check_for_stream;
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::MsgFlags;
use crate::gather::{MessageTarget, SendPieces};
use crate::stream::{Connecting, SendStep};
use crate::table::{ObjectKind, Sockets};

/// write(2).
#[inline]
pub(super) fn write(
    sockets: &mut Sockets,
    fd: Fd,
    from: &mut SendPieces<'_>,
    is_over: bool,
) -> Attempt<usize> {
    let object = match sockets.descriptors.object(fd) {
        Ok(object) => object,
        Err(error) => return Attempt::Done(Err(error)),
    };
    // What most calls do, and nothing else.
    let written = sockets.stream_mut(object);
    match written.and_then(|(stream, channel)| stream.write_whole(from, channel)) {
        Some(len) => Attempt::Done(Ok(len)),
        None => write_slowly(sockets, object, from, is_over),
    }
}

#[inline(never)]
fn write_slowly(
    sockets: &mut Sockets,
    object: u32,
    from: &mut SendPieces<'_>,
    is_over: bool,
) -> Attempt<usize> {
    let Some(entry) = sockets.object(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    let waits = !entry.nonblocking && !is_over;
    match entry.kind {
        ObjectKind::Stream(_) => send_on_stream(sockets, object, from, MsgFlags::empty(), is_over),
        ObjectKind::Pipe(end) => write_pipe(sockets, object, end, from, waits),
        ObjectKind::Counter(_) => write_counter(sockets, object, from, waits),
        ObjectKind::Epoll(_) => Attempt::Done(Err(Error::InvalidArgument)),
        ObjectKind::Listener(_) => Attempt::Done(Err(Error::BrokenPipe)),
        ObjectKind::Datagram(_) => {
            send_datagram(sockets, object, from, &MessageTarget::NONE, is_over)
        }
    }
}

/// sendmsg(2). The flags lose MSG_FASTOPEN once the call has connected.
#[inline]
pub(super) fn send(
    sockets: &mut Sockets,
    fd: Fd,
    from: &mut SendPieces<'_>,
    target: &mut MessageTarget<'_>,
    is_over: bool,
) -> Attempt<usize> {
    let MessageTarget { to, control, flags } = *target;
    let object = match sockets.socket_of(fd) {
        Ok(object) => object,
        Err(error) => return Attempt::Done(Err(error)),
    };
    if sockets.is_datagram(object) {
        return send_datagram(sockets, object, from, target, is_over);
    }
    if !control.is_empty() && check_for_stream(control).is_err() {
        return Attempt::Done(Err(Error::InvalidArgument));
    }
    // A connection's address is its own: another one is passed over, as in Linux.
    if flags.contains(MsgFlags::FASTOPEN) {
        match connect_to_send(sockets, object, to, flags, is_over) {
            Attempt::Done(Ok(())) => target.flags.remove(MsgFlags::FASTOPEN),
            Attempt::Done(Err(error)) => return Attempt::Done(Err(error)),
            Attempt::Wait(wait) => return Attempt::Wait(wait),
        }
    }
    send_on_stream(sockets, object, from, target.flags, is_over)
}

#[inline]
fn send_on_stream(
    sockets: &mut Sockets,
    object: u32,
    from: &mut SendPieces<'_>,
    flags: MsgFlags,
    is_over: bool,
) -> Attempt<usize> {
    if flags.contains(MsgFlags::OOB) && !sockets.is_local() {
        // On the kernel, urgent bytes would go in line: refused, because a program that asked for
        // the one must not get the other.
        return Attempt::Done(Err(Error::NotSupported));
    }
    let (mut begins, mut looked_again) = (false, false);
    loop {
        if sockets.object(object).is_none() {
            return Attempt::Done(Err(Error::BadDescriptor));
        }
        let Some((stream, channel)) = sockets.stream_mut(object) else {
            return Attempt::Done(Err(Error::BrokenPipe));
        };
        match stream.send(from, flags, channel) {
            Err(error) => return Attempt::Done(Err(error)),
            Ok(SendStep::Done) => return Attempt::Done(Ok(from.taken())),
            Ok(SendStep::Pushed) => {
                poll_below_mark(sockets, object);
                if from.left() > 0 {
                    continue;
                }
                return Attempt::Done(Ok(from.taken()));
            }
            Ok(SendStep::Connects) => begins = true,
            Ok(SendStep::Full) => {}
        }
        let timeout = stream.options.send_timeout;
        let is_blocking = sockets.object(object).is_some_and(|entry| !entry.nonblocking);
        if is_blocking && !flags.contains(MsgFlags::DONTWAIT) && !is_over {
            if begins && let Some((stream, _)) = sockets.stream_mut(object) {
                // A send that waits for the handshake returns its result, as connect does.
                stream.connecting = Connecting::Done;
            }
            return Attempt::Wait(Wait::on(object, timeout).with_part(from.taken() > 0));
        }
        if from.taken() > 0 {
            return Attempt::Done(Ok(from.taken()));
        }
        if begins {
            return Attempt::Done(Err(Error::InProgress));
        }
        if looked_again || !sockets.refreshed(object) {
            return Attempt::Done(Err(Error::WouldBlock));
        }
        looked_again = true;
    }
}

/// Lets the stack send what a stream with a mark has written, and looks at what is left.
#[cold]
fn poll_below_mark(sockets: &mut Sockets, object: u32) {
    // A channel that does not run any more reports that to the next call.
    let _ = sockets.poll_channel(Some(Duration::ZERO));
    if let Some((stream, channel)) = sockets.stream_mut(object) {
        stream.look_at_mark(channel);
    }
}

/// sendmsg(2) on a datagram socket.
fn send_datagram(
    sockets: &mut Sockets,
    object: u32,
    from: &mut SendPieces<'_>,
    target: &MessageTarget<'_>,
    is_over: bool,
) -> Attempt<usize> {
    let Sockets { objects, ports, channel, .. } = sockets;
    let Some(entry) = objects.get_mut(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    let waits = !entry.nonblocking && !target.flags.contains(MsgFlags::DONTWAIT) && !is_over;
    let ObjectKind::Datagram(socket) = &mut entry.kind else {
        return Attempt::Done(Err(Error::NotASocket));
    };
    let effects = socket.send(from, target, ports, object.into(), channel);
    let (timeout, has_room) = (socket.options.send_timeout, socket.has_room());
    match sockets.apply(object, effects) {
        Err(Error::WouldBlock) if waits => Attempt::Wait(Wait::on(object, timeout)),
        Ok(len) => {
            // As in Linux (`sock_wfree`): a datagram that leaves makes an edge. Of a full socket,
            // the edge follows once there is room.
            if has_room {
                sockets.notify_sets_of_room(object);
            }
            Attempt::Done(Ok(len))
        }
        result => Attempt::Done(result),
    }
}
