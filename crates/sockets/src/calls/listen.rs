//! listen(2) and accept(2): one attempt.
//!
//! Read first: listen(2), accept(2); `listener.rs`, `reuseport_group.rs`.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::attempt::{Attempt, Wait};
use crate::descriptors::Fd;
use crate::dual_stack;
use crate::error::Error;
use crate::flags::OpenFlags;
use crate::limits::NIL;
use crate::listener::{BacklogShare, Listener, options_of};
use crate::stream::Blank;
use crate::table::{ObjectKind, Sockets};
use crate::transport::{ListenerTransport, ObjectTransport};

/// listen(2).
pub(super) fn listen(sockets: &mut Sockets, fd: Fd, backlog: i32) -> Result<(), Error> {
    let object = sockets.descriptors.object(fd)?;
    let share = BacklogShare::of(backlog, sockets.is_local());
    let Sockets { objects, channel, .. } = sockets;
    let entry = objects.get_mut(object).ok_or(Error::BadDescriptor)?;
    match &mut entry.kind {
        ObjectKind::Stream(stream) if stream.may_listen() => {}
        ObjectKind::Stream(_) => return Err(Error::InvalidArgument),
        ObjectKind::Listener(listener) => {
            listener.set_backlog(share, channel)?;
            sockets.request_connections(object);
            return Ok(());
        }
        ObjectKind::Datagram(_) => return Err(Error::NotSupported),
        _ => return Err(Error::NotASocket),
    }
    let queue = Listener::queue_of(share)?;
    let groups = match sockets.is_local() {
        true => listen_on_stack(sockets, object, share)?,
        false => [listen_in_kernel(sockets, object, share)?, NIL],
    };
    become_listener(sockets, object, groups, (queue, share.ahead));
    sockets.request_connections(object);
    Ok(())
}

fn listen_in_kernel(sockets: &mut Sockets, object: u32, share: BacklogShare) -> Result<u32, Error> {
    let members = sockets.groups.prepare(object)?;
    let cookie = sockets.groups.next();
    let (stream, channel) = sockets.stream_mut(object).ok_or(Error::InvalidArgument)?;
    let fd = stream.listen_in_kernel(share.backlog_below() as i32)?;
    // The channel keeps the descriptor also where it has no memory for the listener.
    let spare = fd.try_clone();
    match ObjectTransport::register(channel, fd, cookie.into()) {
        Ok(handle) => Ok(sockets.groups.open(handle, None, members)),
        Err(error) => {
            if let Ok(spare) = spare {
                stream.blank = Blank::Kernel(spare);
            }
            Err(error)
        }
    }
}

fn listen_on_stack(
    sockets: &mut Sockets,
    object: u32,
    share: BacklogShare,
) -> Result<[u32; 2], Error> {
    let Sockets { objects, channel, ports, groups, .. } = sockets;
    let Some(ObjectKind::Stream(stream)) = objects.get_mut(object).map(|it| &mut it.kind) else {
        return Err(Error::InvalidArgument);
    };
    let bound = stream.bind_if_unbound(ports, channel)?;
    ports.listen(bound)?;
    let is_shared = stream.options.sharing.port;
    let options = options_of(stream, share);
    let mut listen = |address: SocketAddr| {
        if is_shared && let Some(group) = groups.join(address, object)? {
            return Ok(group);
        }
        let members = groups.prepare(object)?;
        let cookie = groups.next();
        let handle = ListenerTransport::listen(channel, address, &options, cookie.into())?;
        Ok(groups.open(handle, Some(address), members))
    };
    let first = listen(bound.address)?;
    let Some(beside) = dual_stack::beside(stream.options.sharing.v6_only, bound.address) else {
        return Ok([first, NIL]);
    };
    match listen(beside) {
        Ok(second) => Ok([first, second]),
        Err(error) => {
            if let Some(handle) = groups.leave(first, object) {
                ObjectTransport::unregister(channel, handle);
            }
            Err(error)
        }
    }
}

fn become_listener(
    sockets: &mut Sockets,
    object: u32,
    groups: [u32; 2],
    queue: (VecDeque<u32>, usize),
) {
    let handle = sockets.groups.handle(groups[0]);
    let Some(entry) = sockets.object_mut(object) else { return };
    if let ObjectKind::Stream(stream) = &entry.kind {
        let listener = Listener::of(stream, groups, handle, queue);
        entry.kind = ObjectKind::Listener(listener);
    }
}

/// accept4(2).
pub(super) fn accept(
    sockets: &mut Sockets,
    fd: Fd,
    flags: OpenFlags,
    is_over: bool,
) -> Attempt<Fd> {
    let mut looked_again = false;
    loop {
        let object = match sockets.descriptors.object(fd) {
            Ok(object) => object,
            Err(error) => return Attempt::Done(Err(error)),
        };
        let Sockets { objects, descriptors, groups, .. } = sockets;
        let Some(entry) = objects.get_mut(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        let listener = match &mut entry.kind {
            ObjectKind::Listener(listener) => listener,
            ObjectKind::Stream(_) => return Attempt::Done(Err(Error::InvalidArgument)),
            ObjectKind::Datagram(_) => return Attempt::Done(Err(Error::NotSupported)),
            _ => return Attempt::Done(Err(Error::NotASocket)),
        };
        // In Linux's order: first a descriptor, then a connection for it.
        let free = match descriptors.lowest_free(0) {
            Ok(free) => free,
            Err(error) => return Attempt::Done(Err(error)),
        };
        if let Some(accepted) = listener.accept() {
            if listener.needs_more(groups.asked_least(listener.groups())) {
                sockets.request_connections(object);
            }
            let handed = |connection| hand_over(sockets, free, connection, flags);
            return Attempt::Done(accepted.and_then(handed));
        }
        if sockets.channel.is_down() {
            return Attempt::Done(Err(Error::NetworkDown));
        }
        if !entry.nonblocking && !is_over {
            return Attempt::Wait(Wait::on(object, listener.options.receive_timeout));
        }
        if looked_again || !sockets.refreshed(object) {
            return Attempt::Done(Err(Error::WouldBlock));
        }
        looked_again = true;
    }
}

/// Gives an accepted connection its descriptor.
fn hand_over(
    sockets: &mut Sockets,
    fd: Fd,
    connection: u32,
    flags: OpenFlags,
) -> Result<Fd, Error> {
    if let Some(entry) = sockets.object_mut(connection) {
        entry.nonblocking = flags.contains(OpenFlags::NONBLOCK);
    }
    sockets.name(fd, connection, flags)?;
    Ok(fd)
}
