//! ioctl(2), fcntl(2) and dup3(2).
//!
//! Read first: ioctl_list(2) on FIONREAD and FIONBIO, tcp(7) on SIOCINQ and SIOCOUTQ, fcntl(2).

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::OpenFlags;
use crate::kernel::{SIOCATMARK, SIOCOUTQNSD};
use crate::table::{ObjectKind, Sockets};

/// ioctl(2). `argument` is what lies at the caller's pointer; returns what has to lie there
/// afterwards.
pub(super) fn ioctl(
    sockets: &mut Sockets,
    fd: Fd,
    request: u64,
    argument: i32,
) -> Result<i32, Error> {
    let object = sockets.descriptors.object(fd)?;
    match request {
        libc::FIONBIO => {
            let entry = sockets.object_mut(object).ok_or(Error::BadDescriptor)?;
            entry.nonblocking = argument != 0;
            Ok(argument)
        }
        libc::FIOCLEX | libc::FIONCLEX => {
            sockets.descriptors.set_close_on_exec(fd, request == libc::FIOCLEX);
            Ok(argument)
        }
        SIOCATMARK => is_at_mark(sockets, object).map(i32::from),
        _ => {
            let count = count_bytes(sockets, object, request)?;
            Ok(i32::try_from(count).unwrap_or(i32::MAX))
        }
    }
}

/// Bytes that wait to be read (FIONREAD), sent (SIOCOUTQNSD) or acknowledged (SIOCOUTQ).
fn count_bytes(sockets: &mut Sockets, object: u32, request: u64) -> Result<usize, Error> {
    if request == libc::FIONREAD && sockets.is_datagram(object) {
        sockets.resume_if_withheld(object);
    }
    if request == libc::FIONREAD
        && let Some((socket, _)) = sockets.datagram_mut(object)
        && socket.next_len() == 0
    {
        // Datagrams are counted where they have come. A link that is gone brings none.
        let _ = sockets.take_in();
    }
    let Sockets { objects, channel, .. } = sockets;
    let entry = objects.get_mut(object).ok_or(Error::BadDescriptor)?;
    match (&mut entry.kind, request) {
        (ObjectKind::Pipe(end), libc::FIONREAD) => {
            let end = *end;
            Ok(sockets.pipe_mut(end).0.unread())
        }
        (ObjectKind::Datagram(socket), libc::FIONREAD) => Ok(socket.next_len()),
        (ObjectKind::Stream(stream), libc::FIONREAD) => {
            let below = stream.unread_below(channel);
            stream.note_counted(below);
            Ok(stream.readable(below))
        }
        (ObjectKind::Stream(stream), libc::TIOCOUTQ) => Ok(stream.unacknowledged(channel)),
        (ObjectKind::Stream(stream), SIOCOUTQNSD) => Ok(stream.unsent(channel)),
        (ObjectKind::Listener(_), libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD) => {
            Err(Error::InvalidArgument)
        }
        _ => Err(Error::NoSuchRequest),
    }
}

fn is_at_mark(sockets: &Sockets, object: u32) -> Result<bool, Error> {
    match sockets.object(object).map(|entry| &entry.kind) {
        Some(ObjectKind::Stream(stream)) => stream.is_at_mark(&sockets.channel),
        Some(ObjectKind::Listener(_)) if sockets.is_local() => Ok(false),
        _ => Err(Error::NoSuchRequest),
    }
}

/// fcntl(2).
pub(super) fn fcntl(
    sockets: &mut Sockets,
    fd: Fd,
    command: i32,
    argument: i32,
) -> Result<i32, Error> {
    let object = sockets.descriptors.object(fd)?;
    let entry = sockets.object_mut(object).ok_or(Error::BadDescriptor)?;
    match command {
        libc::F_GETFL => {
            let nonblocking = if entry.nonblocking { libc::O_NONBLOCK } else { 0 };
            Ok(entry.kind.access() | nonblocking)
        }
        libc::F_SETFL => {
            entry.nonblocking = argument & libc::O_NONBLOCK != 0;
            Ok(0)
        }
        libc::F_GETFD => {
            Ok(if sockets.descriptors.closes_on_exec(fd) { libc::FD_CLOEXEC } else { 0 })
        }
        libc::F_SETFD => {
            sockets.descriptors.set_close_on_exec(fd, argument & libc::FD_CLOEXEC != 0);
            Ok(0)
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            if argument < 0 || !sockets.descriptors.can_be(argument) {
                return Err(Error::InvalidArgument);
            }
            let free = sockets.descriptors.lowest_free(argument)?;
            let flags = match command {
                libc::F_DUPFD_CLOEXEC => OpenFlags::CLOEXEC,
                _ => OpenFlags::empty(),
            };
            sockets.name(free, object, flags)?;
            Ok(free)
        }
        _ => Err(Error::InvalidArgument),
    }
}

/// dup3(2): `new` stands for what `old` stands for.
pub(super) fn dup3(sockets: &mut Sockets, old: Fd, new: Fd, flags: OpenFlags) -> Result<Fd, Error> {
    if old == new || !OpenFlags::CLOEXEC.contains(flags) {
        return Err(Error::InvalidArgument);
    }
    let object = sockets.descriptors.object(old)?;
    let before = sockets.descriptors.set(new, object, flags.contains(OpenFlags::CLOEXEC))?;
    if let Some(entry) = sockets.object_mut(object) {
        entry.descriptors += 1;
    }
    if let Some(before) = before {
        sockets.unname(before);
    }
    Ok(new)
}
