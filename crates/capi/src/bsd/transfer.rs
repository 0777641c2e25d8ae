//! Receives and sends bytes and messages.
//!
//! Read first: read(2), write(2), recv(2), send(2).

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use marshal::{
    check_room, is_stream, memory, memory_mut, raise_pipe, read_address, receive_message,
    receive_messages, send_message, send_messages, with_parts, with_parts_mut, write_address,
};
use sockets::{Bsd, Error, MsgFlags};

use super::context::{in_order, with_fd};
use super::outcome::{SocketCallError, answer, count};
use super::thread::is_ours;

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
    let flags = MsgFlags::from_bits_retain(flags);
    let receive = |to: &mut [IoSliceMut<'_>], control: &mut [u8]| {
        with_fd(fd, |sockets| sockets.recvmsg(fd, to, control, flags))
    };
    // SAFETY: the program promises a message to fill, or null.
    answer("mps_recvmsg", in_order(fd, unsafe { receive_message(msg, receive) }).map(len))
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
    let receive = |to: &mut [IoSliceMut<'_>], control: &mut [u8], flags: MsgFlags| {
        with_fd(fd, |sockets| sockets.recvmsg(fd, to, control, flags))
    };
    // SAFETY: the program promises `vlen` messages to fill, and a time, or null.
    let received = unsafe { receive_messages(messages, vlen, flags, timeout, receive) };
    count("mps_recvmmsg", in_order(fd, received))
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
    // SAFETY: the program promises `vlen` messages.
    let sent = unsafe { send_messages(messages, vlen, sending(fd, flags)) };
    count("mps_sendmmsg", in_order(fd, piped(fd, flags, sent)))
}

/// Sends one message.
fn sending(
    fd: c_int,
    flags: c_int,
) -> impl FnMut(&[IoSlice<'_>], Option<SocketAddr>, &[u8]) -> Result<usize, SocketCallError> {
    let flags = MsgFlags::from_bits_retain(flags);
    move |from, to, control| with_fd(fd, |sockets| sockets.sendmsg(fd, from, to, control, flags))
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
    let sent = unsafe { send_message(msg, sending(fd, flags)) };
    answer("mps_sendmsg", in_order(fd, piped(fd, flags, sent)).map(len))
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
        raise_pipe_of(fd);
    }
    sent
}

#[cold]
fn raise_pipe_of(fd: c_int) {
    // No call of the library is inside after it.
    if with_fd(fd, |sockets| Ok(is_stream(sockets, fd))).unwrap_or(false) {
        raise_pipe();
    }
}
