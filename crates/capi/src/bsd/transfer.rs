//! Receives and sends bytes and messages.
//!
//! Read first: read(2), write(2), recv(2), send(2).

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use sockets::{Bsd, Error, MsgFlags};

use super::calls::{check_room, read_address, write_address};
use super::context::{in_order, with_fd};
use super::outcome::{SocketCallError, answer, count};
use super::sets::{duration, timespec_of};
use super::thread::is_ours;
use crate::error::{CallError, CallFailure};
use crate::limits::PARTS_MAX;
use crate::memory::{memory, memory_mut, with_parts, with_parts_mut};

/// read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what read(2) asks for.
        return unsafe { libc::read(fd, buf, count) };
    }
    let read = || {
        // SAFETY: the program promises `count` writable bytes.
        let to = unsafe { memory_mut(buf, count, "buf") }?;
        with_fd(fd, |sockets| sockets.read(fd, to))
    };
    answer("mps_read", in_order(fd, read()).map(len))
}

/// readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_readv(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what readv(2) asks for.
        return unsafe { libc::readv(fd, iov, iovcnt) };
    }
    let read = |to: &mut [IoSliceMut<'_>]| with_fd(fd, |sockets| sockets.readv(fd, to));
    // SAFETY: the program promises `iovcnt` pieces of writable memory.
    let read = unsafe { with_parts_mut(iov, usize::try_from(iovcnt).ok(), read) };
    answer("mps_readv", in_order(fd, read).map(len))
}

/// recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_recv(
    fd: c_int,
    buf: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what recv(2) asks for.
        return unsafe { libc::recv(fd, buf, count, flags) };
    }
    let receive = || {
        // SAFETY: the program promises `count` writable bytes.
        let to = unsafe { memory_mut(buf, count, "buf") }?;
        with_fd(fd, |sockets| sockets.recv(fd, to, MsgFlags::from_bits_retain(flags)))
    };
    answer("mps_recv", in_order(fd, receive()).map(len))
}

/// recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_recvfrom(
    fd: c_int,
    buf: *mut c_void,
    count: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what recvfrom(2) asks for.
        return unsafe { libc::recvfrom(fd, buf, count, flags, addr, addrlen) };
    }
    let receive = || {
        // SAFETY: the program promises `count` writable bytes.
        let to = unsafe { memory_mut(buf, count, "buf") }?;
        if !addr.is_null() {
            // SAFETY: it promises a size, or null.
            unsafe { check_room(addrlen) }?;
        }
        let flags = MsgFlags::from_bits_retain(flags);
        let mut parts = [IoSliceMut::new(to)];
        let received = with_fd(fd, |sockets| sockets.recvfrom(fd, &mut parts, flags))?;
        if !addr.is_null() {
            // SAFETY: it promises a buffer for an address with its size.
            unsafe { write_address(addr, addrlen, received.from) };
        }
        Ok(received.len)
    };
    answer("mps_recvfrom", in_order(fd, receive()).map(len))
}

/// recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what recvmsg(2) asks for.
        return unsafe { libc::recvmsg(fd, msg, flags) };
    }
    // SAFETY: the program promises a message to fill, or null.
    answer("mps_recvmsg", in_order(fd, unsafe { receive_message(fd, msg, flags) }).map(len))
}

/// # Safety
/// `msg` is null or points to a writable header, with pieces of writable memory and buffers for an
/// address and control data, where these are not null.
unsafe fn receive_message(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> Result<usize, SocketCallError> {
    // SAFETY: the caller promises a header, or null.
    let header = unsafe { msg.as_mut() }.ok_or(CallError::Null("msg"))?;
    check_parts(header)?;
    let flags = MsgFlags::from_bits_retain(flags);
    // SAFETY: the caller promises `msg_controllen` writable bytes, or null.
    let control = unsafe { control_of(header) };
    let receive =
        |to: &mut [IoSliceMut<'_>]| with_fd(fd, |sockets| sockets.recvmsg(fd, to, control, flags));
    // SAFETY: the caller promises that the pieces are writable memory.
    let received = unsafe { with_parts_mut(header.msg_iov, Some(header.msg_iovlen), receive) }?;
    if !header.msg_name.is_null() {
        let size = &raw mut header.msg_namelen;
        // SAFETY: the caller promises a buffer for an address with its size.
        unsafe { write_address(header.msg_name.cast(), size, received.from) };
    }
    header.msg_controllen = received.control_len;
    header.msg_flags = received.flags.bits();
    Ok(received.len)
}

/// The buffer for control data: empty if the pointer is null, as in Linux.
///
/// # Safety
/// `msg_control` is null or points to `msg_controllen` bytes that nothing else uses.
unsafe fn control_of<'a>(header: &msghdr) -> &'a mut [u8] {
    // SAFETY: the caller keeps the contract.
    let control = unsafe { memory_mut(header.msg_control, header.msg_controllen, "msg_control") };
    control.unwrap_or_default()
}

/// recvmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    vlen: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what recvmmsg(2) asks for.
        return unsafe { libc::recvmmsg(fd, messages, vlen, flags, timeout) };
    }
    let receive = || {
        // SAFETY: the program promises a time, or null.
        let deadline = unsafe { duration(timeout) }?.map(|left| (Instant::now(), left));
        let mut flags = flags;
        let one = |message: &mut msghdr| {
            // SAFETY: the program promises that each message can be filled.
            let received = unsafe { receive_message(fd, message, flags & !libc::MSG_WAITFORONE) }?;
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            let is_over = deadline.is_some_and(|(from, left)| from.elapsed() >= left);
            Ok((received, is_over))
        };
        // SAFETY: it promises `vlen` messages.
        let received = unsafe { each_message(messages, vlen, one) };
        received.inspect(|_| {
            if let (Some((from, left)), false) = (deadline, timeout.is_null()) {
                // SAFETY: the program promises a writable time.
                unsafe { timeout.write(timespec_of(left.saturating_sub(from.elapsed()))) };
            }
        })
    };
    count("mps_recvmmsg", in_order(fd, receive()))
}

/// sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    vlen: c_uint,
    flags: c_int,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what sendmmsg(2) asks for.
        return unsafe { libc::sendmmsg(fd, messages, vlen, flags) };
    }
    let one = |message: &mut msghdr| {
        // SAFETY: the program promises that each message can be sent.
        Ok((unsafe { send_message(fd, message, flags) }?, false))
    };
    // SAFETY: it promises `vlen` messages.
    let sent = unsafe { each_message(messages, vlen, one) };
    count("mps_sendmmsg", in_order(fd, piped(fd, flags, sent)))
}

/// Transfers messages one after the other, until `one` reports the last. An error is returned only
/// for the first.
///
/// # Safety
/// `messages` is null or points to `len` messages, each valid for `one`.
unsafe fn each_message(
    messages: *mut mmsghdr,
    len: c_uint,
    mut one: impl FnMut(&mut msghdr) -> Result<(usize, bool), SocketCallError>,
) -> Result<usize, SocketCallError> {
    let len = (len as usize).min(PARTS_MAX);
    if messages.is_null() && len > 0 {
        return Err(CallError::Null("msgvec").into());
    }
    for index in 0..len {
        // SAFETY: the caller promises `len` messages.
        let message = unsafe { &mut *messages.wrapping_add(index) };
        match one(&mut message.msg_hdr) {
            Ok((moved, is_last)) => {
                message.msg_len = moved as c_uint;
                if is_last {
                    return Ok(index + 1);
                }
            }
            Err(refusal) if index == 0 => return Err(refusal),
            Err(_) => return Ok(index),
        }
    }
    Ok(len)
}

/// write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what write(2) asks for.
        return unsafe { libc::write(fd, buf, count) };
    }
    let write = || {
        // SAFETY: the program promises `count` readable bytes.
        let bytes = unsafe { memory(buf, count, "buf") }?;
        with_fd(fd, |sockets| sockets.write(fd, bytes))
    };
    answer("mps_write", in_order(fd, piped(fd, 0, write())).map(len))
}

/// writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_writev(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what writev(2) asks for.
        return unsafe { libc::writev(fd, iov, iovcnt) };
    }
    let write = |from: &[IoSlice<'_>]| with_fd(fd, |sockets| sockets.writev(fd, from));
    // SAFETY: the program promises `iovcnt` pieces of readable memory.
    let written = unsafe { with_parts(iov, usize::try_from(iovcnt).ok(), write) };
    answer("mps_writev", in_order(fd, piped(fd, 0, written)).map(len))
}

/// send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_send(
    fd: c_int,
    buf: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what send(2) asks for.
        return unsafe { libc::send(fd, buf, count, flags) };
    }
    let send = || {
        // SAFETY: the program promises `count` readable bytes.
        let bytes = unsafe { memory(buf, count, "buf") }?;
        with_fd(fd, |sockets| sockets.send(fd, bytes, MsgFlags::from_bits_retain(flags)))
    };
    answer("mps_send", in_order(fd, piped(fd, flags, send())).map(len))
}

/// sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_sendto(
    fd: c_int,
    buf: *const c_void,
    count: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what sendto(2) asks for.
        return unsafe { libc::sendto(fd, buf, count, flags, addr, addrlen) };
    }
    let send = || {
        // SAFETY: the program promises `count` readable bytes.
        let bytes = unsafe { memory(buf, count, "buf") }?;
        let to = match addr.is_null() {
            true => None,
            // SAFETY: it promises an address of that size.
            false => unsafe { read_address(addr, addrlen) }?,
        };
        let parts = [IoSlice::new(bytes)];
        let flags = MsgFlags::from_bits_retain(flags);
        with_fd(fd, |sockets| sockets.sendto(fd, &parts, to, flags))
    };
    answer("mps_sendto", in_order(fd, piped(fd, flags, send())).map(len))
}

/// sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the program promises what sendmsg(2) asks for.
        return unsafe { libc::sendmsg(fd, msg, flags) };
    }
    // SAFETY: the program promises a message, or null.
    let sent = unsafe { send_message(fd, msg, flags) };
    answer("mps_sendmsg", in_order(fd, piped(fd, flags, sent)).map(len))
}

/// # Safety
/// `msg` is null or points to a header with pieces of readable memory, an address and control data,
/// where these are not null.
unsafe fn send_message(
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> Result<usize, SocketCallError> {
    // SAFETY: the caller promises a header, or null.
    let header = unsafe { msg.as_ref() }.ok_or(CallError::Null("msg"))?;
    check_parts(header)?;
    let to = match header.msg_name.is_null() || header.msg_namelen == 0 {
        true => None,
        // SAFETY: the caller promises an address of that size.
        false => unsafe { read_address(header.msg_name.cast(), header.msg_namelen) }?,
    };
    let flags = MsgFlags::from_bits_retain(flags);
    let control_len = header.msg_controllen;
    // SAFETY: the caller promises that many readable bytes, or null.
    let control = unsafe { memory(header.msg_control, control_len, "msg_control") }?;
    let send =
        |from: &[IoSlice<'_>]| with_fd(fd, |sockets| sockets.sendmsg(fd, from, to, control, flags));
    // SAFETY: the caller promises that the pieces are readable memory.
    unsafe { with_parts(header.msg_iov, Some(header.msg_iovlen), send) }
}

/// A message with too many pieces is too long (EMSGSIZE), not invalid.
fn check_parts(header: &msghdr) -> Result<(), SocketCallError> {
    match header.msg_iovlen > PARTS_MAX {
        true => Err(CallFailure::from(Error::MessageTooLong).into()),
        false => Ok(()),
    }
}

#[inline]
fn len(len: usize) -> ssize_t {
    // No call moves more than `MOVED_BYTES_MAX`.
    len as ssize_t
}

/// Raises SIGPIPE where Linux does: for a stream whose sending direction is closed.
#[inline]
fn piped<T>(
    fd: c_int,
    flags: c_int,
    sent: Result<T, SocketCallError>,
) -> Result<T, SocketCallError> {
    if matches!(sent, Err(SocketCallError::Socket(Error::BrokenPipe)))
        && flags & libc::MSG_NOSIGNAL == 0
    {
        raise_pipe(fd);
    }
    sent
}

#[cold]
fn raise_pipe(fd: c_int) {
    let mut kind = [0; size_of::<c_int>()];
    let asked = with_fd(fd, |it| it.getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind));
    if asked.is_ok() && c_int::from_ne_bytes(kind) == libc::SOCK_STREAM {
        // SAFETY: takes an integer. The program chooses the signal's action; no call of the library
        // is inside.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
}
