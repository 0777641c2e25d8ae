//! The socket calls of `mtcp_api.h`: like the system calls of the same names, in a context.

use std::ffi::{c_char, c_int};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use channel::Address;
use libc::{iovec, sockaddr, socklen_t, ssize_t};
use sockets::{Bsd, MsgFlags, OpenFlags, Shutdown};

use super::context::{BlockingSockets, mctx_t, with_context};
use super::ports;
use crate::address;
use crate::border::{finish, status};
use crate::error::{CallError, CallFailure};
use crate::pending::Sender;
use marshal::{memory, memory_mut, with_parts, with_parts_mut};

/// Creates a socket: AF_INET or AF_INET6, SOCK_STREAM (or MTCP_SOCK_STREAM, which is the same).
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_socket(mctx: mctx_t, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let socket = with_context(mctx, |waiting| Ok(waiting.socket(domain, kind, protocol)?));
    finish("mtcp_socket", socket)
}

/// Binds a socket to a local address. Sockets of other contexts may be bound to the same address,
/// and listen there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_bind(
    mctx: mctx_t,
    sockid: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    // SAFETY: the program promises an address of that size, or null.
    let result = unsafe { inet(addr, addrlen) }
        .and_then(|to| with_context(mctx, |waiting| Ok(ports::bind(waiting, sockid, to)?)));
    status("mtcp_bind", result)
}

/// Listens.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_listen(mctx: mctx_t, sockid: c_int, backlog: c_int) -> c_int {
    status("mtcp_listen", with_context(mctx, |waiting| Ok(waiting.listen(sockid, backlog)?)))
}

/// Accepts a connection; `addr` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_accept(
    mctx: mctx_t,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    let accept = |waiting: &mut BlockingSockets| {
        let accepted = waiting.accept4(sockid, OpenFlags::empty())?;
        if !addr.is_null() {
            // A connection that has already ended has no peer address.
            let peer = waiting.accepted_peer(accepted).ok().map(Address::from);
            // SAFETY: the program promises a buffer for an address with its size.
            unsafe { address::write(Sender { address: addr, size: addrlen }, peer.as_ref()) };
        }
        Ok(accepted)
    };
    finish("mtcp_accept", with_context(mctx, accept))
}

/// Connects. With mtcp_init_rss() for this server, from the next of its addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_connect(
    mctx: mctx_t,
    sockid: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    let connect = |to: SocketAddr| {
        with_context(mctx, |waiting| {
            let source = waiting.sources.as_mut().and_then(|sources| sources.next(to));
            if let Some(source) = source
                && waiting.getsockname(sockid)?.port() == 0
            {
                waiting.bind(sockid, source)?;
            }
            Ok(waiting.connect(sockid, Some(to))?)
        })
    };
    // SAFETY: the program promises an address of that size, or null.
    status("mtcp_connect", unsafe { inet(addr, addrlen) }.and_then(connect))
}

/// Closes a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_close(mctx: mctx_t, sockid: c_int) -> c_int {
    let close = |waiting: &mut BlockingSockets| {
        let closed = waiting.close(sockid);
        waiting.claimed.release(sockid);
        Ok(closed?)
    };
    status("mtcp_close", with_context(mctx, close))
}

/// Ends one direction of a connection, or both.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_shutdown(mctx: mctx_t, sockid: c_int, how: c_int) -> c_int {
    let shutdown = |waiting: &mut BlockingSockets| {
        // An invalid descriptor is reported first, as in Linux.
        waiting.getsockopt(
            sockid,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            &mut [0; size_of::<c_int>()],
        )?;
        let how = Shutdown::from_raw(how).ok_or(CallError::Argument("how"))?;
        Ok(waiting.shutdown(sockid, how)?)
    };
    status("mtcp_shutdown", with_context(mctx, shutdown))
}

/// The address that a socket is bound to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockname(
    mctx: mctx_t,
    sock: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    let name = |waiting: &mut BlockingSockets| Ok(waiting.getsockname(sock)?);
    // SAFETY: the program promises a buffer for an address with its size.
    status("mtcp_getsockname", unsafe { named(mctx, addr, addrlen, name) })
}

/// The address that a socket is connected to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getpeername(
    mctx: mctx_t,
    sock: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    let name = |waiting: &mut BlockingSockets| Ok(waiting.getpeername(sock)?);
    // SAFETY: the program promises a buffer for an address with its size.
    status("mtcp_getpeername", unsafe { named(mctx, addr, addrlen, name) })
}

/// Reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_read(
    mctx: mctx_t,
    sockid: c_int,
    buf: *mut c_char,
    len: usize,
) -> ssize_t {
    // SAFETY: the program promises `len` writable bytes.
    finish("mtcp_read", unsafe { received(mctx, sockid, buf, len, None) })
}

/// Reads, with flags as in recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_recv(
    mctx: mctx_t,
    sockid: c_int,
    buf: *mut c_char,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program promises `len` writable bytes.
    finish("mtcp_recv", unsafe { received(mctx, sockid, buf, len, Some(flags)) })
}

/// Reads into several pieces of memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_readv(
    mctx: mctx_t,
    sockid: c_int,
    iov: *const iovec,
    num_iov: c_int,
) -> c_int {
    let read = |pieces: &mut [IoSliceMut<'_>]| {
        let len = with_context(mctx, |waiting| Ok(waiting.readv(sockid, pieces)?))?;
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    };
    // SAFETY: the program promises `num_iov` pieces, each of them writable memory of its own.
    finish("mtcp_readv", unsafe { with_parts_mut(iov, usize::try_from(num_iov).ok(), read) })
}

/// Writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_write(
    mctx: mctx_t,
    sockid: c_int,
    buf: *const c_char,
    len: usize,
) -> ssize_t {
    let write = || {
        // SAFETY: the program promises `len` readable bytes.
        let bytes = unsafe { memory(buf.cast(), len, "buf") }?;
        with_context(mctx, |waiting| Ok(waiting.write(sockid, bytes)? as ssize_t))
    };
    finish("mtcp_write", write())
}

/// Writes several pieces of memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_writev(
    mctx: mctx_t,
    sockid: c_int,
    iov: *const iovec,
    num_iov: c_int,
) -> c_int {
    let write = |pieces: &[IoSlice<'_>]| {
        let len = with_context(mctx, |waiting| Ok(waiting.writev(sockid, pieces)?))?;
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    };
    // SAFETY: the program promises `num_iov` pieces, each of them readable memory.
    finish("mtcp_writev", unsafe { with_parts(iov, usize::try_from(num_iov).ok(), write) })
}

/// Reads an internet address of the program.
///
/// # Safety
/// `addr` is null or points to `addrlen` readable bytes.
unsafe fn inet(addr: *const sockaddr, addrlen: socklen_t) -> Result<SocketAddr, CallFailure> {
    if !addr.is_null() && (addrlen as usize) < size_of::<libc::sockaddr_in>() {
        // Linux requires this size for every family.
        return Err(CallError::Argument("addrlen").into());
    }
    // SAFETY: the caller keeps the contract.
    match unsafe { address::read(addr, addrlen, "addr") }? {
        Address::Inet(inet) => Ok(inet),
        Address::Unix(_) => Err(sockets::Error::FamilyNotSupported.into()),
    }
}

/// Writes the address that `name` returns.
///
/// # Safety
/// As [`address::write`].
unsafe fn named(
    mctx: mctx_t,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    name: impl FnOnce(&mut BlockingSockets) -> Result<SocketAddr, CallFailure>,
) -> Result<(), CallFailure> {
    if addr.is_null() || addrlen.is_null() {
        return Err(CallError::Null("addr or addrlen").into());
    }
    let address = with_context(mctx, name)?.into();
    // SAFETY: the caller keeps the contract.
    unsafe { address::write(Sender { address: addr, size: addrlen }, Some(&address)) };
    Ok(())
}

/// Reads, which any descriptor supports, or receives, which a socket supports.
///
/// # Safety
/// `buf` is null or points to `len` writable bytes.
unsafe fn received(
    mctx: mctx_t,
    sockid: c_int,
    buf: *mut c_char,
    len: usize,
    flags: Option<c_int>,
) -> Result<ssize_t, CallFailure> {
    // SAFETY: the caller promises `len` writable bytes.
    let to = unsafe { memory_mut(buf.cast(), len, "buf") }?;
    let flags = flags.map(MsgFlags::from_bits_retain);
    with_context(mctx, |waiting| {
        let len = match flags {
            None => waiting.read(sockid, to)?,
            Some(flags) => waiting.recv(sockid, to, flags)?,
        };
        Ok(len as ssize_t)
    })
}
