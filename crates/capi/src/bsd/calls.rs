//! Calls that create, address and close sockets: those that transfer no bytes.

use std::ffi::c_int;
use std::net::SocketAddr;

use libc::{sockaddr, socklen_t};
use marshal::{check_room, read_address, write_address};
use sockets::{Bsd, Error, OpenFlags, Shutdown};

use super::context::{in_order, with_fd, with_sockets};
use super::outcome::{SocketCallError, answer, status};
use super::thread::{ThreadState, is_ours};
use crate::error::CallError;

/// socket(2). AF_INET and AF_INET6 are the library's sockets; other families are the kernel's.
#[unsafe(no_mangle)]
pub extern "C" fn mps_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain != libc::AF_INET && domain != libc::AF_INET6 {
        // SAFETY: takes integers.
        return unsafe { libc::socket(domain, kind, protocol) };
    }
    let made = with_sockets(|sockets| sockets.socket(domain, kind, protocol));
    answer("mps_socket", made)
}

/// bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_bind(fd: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what bind(2) asks for.
        return unsafe { libc::bind(fd, addr, addrlen) };
    }
    // SAFETY: the program promises an address of that size, or null.
    let to = unsafe { read_address(addr, addrlen) };
    let bind = |to: Option<SocketAddr>| {
        with_fd(fd, |sockets| sockets.bind(fd, to.ok_or(Error::FamilyNotSupported)?))
    };
    status("mps_bind", in_order(fd, to.map_err(SocketCallError::from).and_then(bind)))
}

/// listen(2).
#[unsafe(no_mangle)]
pub extern "C" fn mps_listen(fd: c_int, backlog: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: takes integers.
        return unsafe { libc::listen(fd, backlog) };
    }
    status("mps_listen", with_fd(fd, |sockets| sockets.listen(fd, backlog)))
}

/// accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_accept(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what accept(2) asks for.
        return unsafe { libc::accept(fd, addr, addrlen) };
    }
    // SAFETY: the program promises a buffer for an address with its size, or null.
    answer("mps_accept", in_order(fd, unsafe { accepted(fd, addr, addrlen, 0) }))
}

/// accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_accept4(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what accept4(2) asks for.
        return unsafe { libc::accept4(fd, addr, addrlen, flags) };
    }
    // SAFETY: the program promises a buffer for an address with its size, or null.
    answer("mps_accept4", in_order(fd, unsafe { accepted(fd, addr, addrlen, flags) }))
}

/// # Safety
/// As [`write_address`].
unsafe fn accepted(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, SocketCallError> {
    // SOCK_NONBLOCK and SOCK_CLOEXEC are O_NONBLOCK and O_CLOEXEC.
    let flags = OpenFlags::from_bits(flags).ok_or(CallError::Argument("flags"))?;
    if !addr.is_null() {
        // SAFETY: the caller keeps the contract.
        unsafe { check_room(addrlen) }?;
    }
    let (accepted, peer) = with_fd(fd, |sockets| {
        let accepted = sockets.accept4(fd, flags)?;
        // A connection that has already ended has no peer address.
        let peer = if addr.is_null() { None } else { sockets.accepted_peer(accepted).ok() };
        Ok((accepted, peer))
    })?;
    if !addr.is_null() {
        // SAFETY: the caller keeps the contract.
        unsafe { write_address(addr, addrlen, peer) };
    }
    Ok(accepted)
}

/// connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_connect(
    fd: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what connect(2) asks for.
        return unsafe { libc::connect(fd, addr, addrlen) };
    }
    // SAFETY: the program promises an address of that size, or null.
    let to = unsafe { read_address(addr, addrlen) };
    let connect = |to: Option<SocketAddr>| with_fd(fd, |sockets| sockets.connect(fd, to));
    status("mps_connect", in_order(fd, to.map_err(SocketCallError::from).and_then(connect)))
}

/// shutdown(2).
#[unsafe(no_mangle)]
pub extern "C" fn mps_shutdown(fd: c_int, how: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: takes integers.
        return unsafe { libc::shutdown(fd, how) };
    }
    let how = Shutdown::from_raw(how).ok_or_else(|| CallError::Argument("how").into());
    let shut = how.and_then(|how| with_fd(fd, |sockets| sockets.shutdown(fd, how)));
    status("mps_shutdown", in_order(fd, shut))
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C" fn mps_close(fd: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: takes an integer; the program owns the descriptor.
        return unsafe { libc::close(fd) };
    }
    status("mps_close", with_fd(fd, |sockets| sockets.close(fd)))
}

/// getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what getsockname(2) asks for.
        return unsafe { libc::getsockname(fd, addr, addrlen) };
    }
    // SAFETY: the program promises a buffer for an address with its size.
    status("mps_getsockname", unsafe { named(fd, addr, addrlen, |it| it.getsockname(fd)) })
}

/// getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the program promises what getpeername(2) asks for.
        return unsafe { libc::getpeername(fd, addr, addrlen) };
    }
    // SAFETY: the program promises a buffer for an address with its size.
    status("mps_getpeername", unsafe { named(fd, addr, addrlen, |it| it.getpeername(fd)) })
}

/// # Safety
/// As [`write_address`].
unsafe fn named(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    name: impl FnOnce(&mut ThreadState) -> Result<SocketAddr, Error>,
) -> Result<(), SocketCallError> {
    let address = with_fd(fd, name)?;
    // SAFETY: the caller keeps the contract.
    unsafe { check_room(addrlen) }?;
    if addr.is_null() {
        return Err(CallError::Null("addr").into());
    }
    // SAFETY: the caller keeps the contract.
    unsafe { write_address(addr, addrlen, Some(address)) };
    Ok(())
}
