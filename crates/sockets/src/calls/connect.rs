//! connect(2), also with MSG_FASTOPEN: one attempt, for streams and datagram sockets.
//!
//! Read first: connect(2); `stream/connect.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::attempt::{Attempt, Wait};
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::{Events, MsgFlags};
use crate::stream::Connecting;
use crate::table::{ObjectKind, Sockets};
use crate::transport::ObjectTransport;

/// Which attempt of a call this is.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectAttempt {
    pub(super) is_first: bool,
    /// The time is over.
    pub(super) is_over: bool,
}

/// connect(2); `None`: a fresh socket again (AF_UNSPEC).
pub(super) fn connect(
    sockets: &mut Sockets,
    fd: Fd,
    address: Option<SocketAddr>,
    attempt: ConnectAttempt,
) -> Attempt<()> {
    let object = match sockets.socket_of(fd) {
        Ok(object) => object,
        Err(error) => return Attempt::Done(Err(error)),
    };
    if sockets.is_datagram(object) {
        return Attempt::Done(sockets.with_datagram(object, |socket, ports, channel| {
            socket.connect(address, ports, object.into(), channel)
        }));
    }
    match address {
        Some(address) => connect_stream(sockets, object, address, attempt),
        None if sockets.listener(object).is_some() => Attempt::Done(sockets.stop_listening(object)),
        None => {
            if let Some((stream, channel)) = sockets.stream_mut(object) {
                stream.disconnect(channel);
                sockets.notify(object, Events::WRITABLE | Events::ALWAYS);
            }
            Attempt::Done(Ok(()))
        }
    }
}

fn connect_stream(
    sockets: &mut Sockets,
    object: u32,
    to: SocketAddr,
    attempt: ConnectAttempt,
) -> Attempt<()> {
    let is_blocking = sockets.object(object).is_some_and(|entry| !entry.nonblocking);
    if attempt.is_first
        && let Some((stream, _)) = sockets.stream_mut(object)
        && stream.connecting == Connecting::Begun
        && let Err(error) = sockets.take_in()
    {
        // An earlier attempt may have ended.
        return Attempt::Done(Err(error));
    }
    let Some((stream, _)) = sockets.stream_mut(object) else {
        return Attempt::Done(Err(Error::AlreadyConnected));
    };
    let mut otherwise = Error::InProgress;
    match stream.connecting {
        Connecting::Done => return Attempt::Done(Err(Error::AlreadyConnected)),
        Connecting::Begun if stream.has_syn_waiting() => {
            return Attempt::Done(Err(Error::AlreadyConnected));
        }
        Connecting::Begun if attempt.is_first => otherwise = Error::AlreadyConnecting,
        Connecting::Begun => {}
        Connecting::Not => {
            let is_fast = stream.options.fast_open_connect;
            match begin(sockets, object, to, is_fast) {
                Ok(true) => return Attempt::Done(Ok(())),
                Ok(false) => {}
                Err(error) => return Attempt::Done(Err(error)),
            }
        }
    }
    finish(sockets, object, is_blocking && !attempt.is_over, otherwise)
}

/// MSG_FASTOPEN: connects, unless the SYN can carry the data. Afterwards the send goes on as one
/// without the flag.
#[cold]
pub(super) fn connect_to_send(
    sockets: &mut Sockets,
    object: u32,
    to: Option<SocketAddr>,
    flags: MsgFlags,
    is_over: bool,
) -> Attempt<()> {
    let Some(entry) = sockets.object(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    let waits = !entry.nonblocking && !flags.contains(MsgFlags::DONTWAIT) && !is_over;
    let ObjectKind::Stream(stream) = &entry.kind else {
        return Attempt::Done(Err(Error::AlreadyConnected));
    };
    let mut otherwise = Error::AlreadyConnecting;
    match (stream.connecting, to) {
        (Connecting::Done, _) => return Attempt::Done(Err(Error::AlreadyConnected)),
        (Connecting::Not, None) => return Attempt::Done(Err(Error::InvalidArgument)),
        (Connecting::Not, Some(to)) => {
            otherwise = Error::InProgress;
            if let Err(error) = begin(sockets, object, to, true) {
                return Attempt::Done(Err(error));
            }
        }
        (Connecting::Begun, _) if is_over => otherwise = Error::InProgress,
        (Connecting::Begun, _) => {}
    }
    match sockets.stream_mut(object) {
        Some((stream, _)) if stream.has_syn_waiting() => Attempt::Done(Ok(())),
        _ => finish(sockets, object, waits, otherwise),
    }
}

/// Begins to connect; `is_fast`: by Fast Open. Returns whether the SYN waits for data.
fn begin(sockets: &mut Sockets, object: u32, to: SocketAddr, is_fast: bool) -> Result<bool, Error> {
    let Sockets { objects, ports, channel, .. } = sockets;
    let Some(ObjectKind::Stream(stream)) = objects.get_mut(object).map(|it| &mut it.kind) else {
        return Err(Error::InvalidArgument);
    };
    stream.replace_port_given_up(ports, channel)?;
    stream.begin_connect(to, is_fast, object.into(), channel)?;
    if !is_fast {
        return Ok(false);
    }
    if !channel.is_local() {
        // The kernel answers at once if it knows a cookie.
        sockets.drive(Some(Duration::ZERO))?;
    }
    let Some((stream, channel)) = sockets.stream_mut(object) else {
        return Err(Error::BadDescriptor);
    };
    Ok(stream.holds_syn(channel))
}

/// Returns how connecting went, or waits for it; `otherwise` is the answer where it goes on and the
/// call must not wait.
fn finish(sockets: &mut Sockets, object: u32, waits: bool, otherwise: Error) -> Attempt<()> {
    let Some((stream, channel)) = sockets.stream_mut(object) else {
        return Attempt::Done(Err(Error::BadDescriptor));
    };
    match stream.connect_result(channel) {
        Some(result) => Attempt::Done(result),
        None if waits => Attempt::Wait(Wait::on(object, stream.options.send_timeout)),
        None => Attempt::Done(Err(otherwise)),
    }
}
