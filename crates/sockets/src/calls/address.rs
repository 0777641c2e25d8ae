//! socket(2), bind(2), getsockname(2) and getpeername(2).
//!
//! Read first: socket(2), bind(2); `stream/address.rs`, `datagram/address.rs`.

use std::net::SocketAddr;

use crate::datagram::DatagramSocket;
use crate::descriptors::Fd;
use crate::error::Error;
use crate::fallible_box::FallibleBox;
use crate::flags::OpenFlags;
use crate::stream::StreamSocket;
use crate::table::{ObjectKind, Sockets};

/// socket(2) with the numbers of its three arguments.
pub(super) fn socket(
    sockets: &mut Sockets,
    domain: i32,
    kind: i32,
    protocol: i32,
) -> Result<Fd, Error> {
    const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    /// AF_MAX and IPPROTO_MAX of Linux.
    const FAMILIES: i32 = 46;
    const PROTOCOLS: i32 = 263;
    let flags = OpenFlags::from_bits_truncate(kind & FLAGS);
    let kind = kind & !FLAGS;
    if !(0..FAMILIES).contains(&domain) {
        return Err(Error::FamilyNotSupported);
    }
    // SOCK_PACKET is the last that Linux knows.
    if !(0..=10).contains(&kind) {
        return Err(Error::InvalidArgument);
    }
    let is_v6 = match domain {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return Err(Error::FamilyNotSupported),
    };
    match (kind, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            sockets.reserve_one()?;
            let stream = StreamSocket::open(is_v6, sockets.is_local())?;
            sockets.open(ObjectKind::Stream(stream), flags)
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            sockets.reserve_one()?;
            let socket = DatagramSocket::open(is_v6, &mut sockets.channel)?;
            let socket = FallibleBox::try_new(socket).map_err(|socket| {
                // Nothing is bound yet.
                let _ = socket.close(&mut sockets.channel);
                Error::NoMemory
            })?;
            let fd = sockets.open(ObjectKind::Datagram(socket), flags)?;
            let object = sockets.descriptors.object(fd)?;
            if let Some((socket, channel)) = sockets.datagram_mut(object) {
                socket.start(object.into(), channel);
            }
            Ok(fd)
        }
        (_, PROTOCOLS.. | ..0) => Err(Error::InvalidArgument),
        (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => Err(Error::ProtocolNotSupported),
        _ => Err(Error::TypeNotSupported),
    }
}

/// bind(2).
pub(super) fn bind(sockets: &mut Sockets, fd: Fd, address: SocketAddr) -> Result<(), Error> {
    let object = sockets.descriptors.object(fd)?;
    let Sockets { objects, ports, channel, .. } = sockets;
    let entry = objects.get_mut(object).ok_or(Error::BadDescriptor)?;
    match &mut entry.kind {
        ObjectKind::Stream(stream) => stream.bind(address, ports, channel),
        ObjectKind::Datagram(socket) => socket.bind(address, ports, object.into(), channel),
        ObjectKind::Listener(_) => Err(Error::InvalidArgument),
        _ => Err(Error::NotASocket),
    }
}

/// bind(2) of a stream, beside connections.
pub(super) fn bind_beside_connections(
    sockets: &mut Sockets,
    fd: Fd,
    address: SocketAddr,
) -> Result<(), Error> {
    let object = sockets.descriptors.object(fd)?;
    let Sockets { objects, ports, .. } = sockets;
    let entry = objects.get_mut(object).ok_or(Error::BadDescriptor)?;
    match &mut entry.kind {
        ObjectKind::Stream(stream) => stream.bind_beside_connections(address, ports),
        _ => Err(Error::InvalidArgument),
    }
}

/// getsockname(2).
pub(super) fn local_name(sockets: &mut Sockets, fd: Fd) -> Result<SocketAddr, Error> {
    let object = sockets.descriptors.object(fd)?;
    let Sockets { objects, channel, .. } = sockets;
    match objects.get(object).map(|entry| &entry.kind) {
        Some(ObjectKind::Stream(stream)) => stream.local_name(channel),
        Some(ObjectKind::Listener(listener)) => Ok(listener.local_name(channel)),
        Some(ObjectKind::Datagram(socket)) => Ok(socket.local_name(channel)),
        Some(_) => Err(Error::NotASocket),
        None => Err(Error::BadDescriptor),
    }
}

/// getpeername(2). Polls first: a connection that the peer has reset has no peer, and the program
/// may not have waited for anything since.
pub(super) fn peer_name(sockets: &mut Sockets, fd: Fd) -> Result<SocketAddr, Error> {
    // A link that is gone is reported by the calls that transfer data.
    let _ = sockets.take_in();
    peer_at_accept(sockets, fd)
}

/// The peer of a connection that was just accepted. Does not poll.
pub(super) fn peer_at_accept(sockets: &mut Sockets, fd: Fd) -> Result<SocketAddr, Error> {
    let object = sockets.descriptors.object(fd)?;
    let Sockets { objects, channel, .. } = sockets;
    match objects.get(object).map(|entry| &entry.kind) {
        Some(ObjectKind::Stream(stream)) => stream.peer_name(channel),
        Some(ObjectKind::Datagram(socket)) => socket.peer.ok_or(Error::NotConnected),
        Some(ObjectKind::Listener(_)) => Err(Error::NotConnected),
        Some(_) => Err(Error::NotASocket),
        None => Err(Error::BadDescriptor),
    }
}
