//! Ports at which several contexts of the process listen.
//!
//! In mTCP every context may listen at any port, even if another context does; a server has a
//! listener in each context and sets no option. Linux, and the library's sockets, require
//! SO_REUSEPORT. So a socket that `mtcp_bind` binds may share its port with sockets of the
//! process's other contexts, but not with one of its own context or of another process. As in mTCP,
//! connections of an earlier run in TIME-WAIT do not keep a server from starting (SO_REUSEADDR).
//!
//! Read first: socket(7) on SO_REUSEADDR and SO_REUSEPORT.
//!
//! The port is bound without the option first, as an exclusive one, and made shared afterwards. If
//! the port is in use by another context, it is bound with the option.

use std::ffi::c_int;
use std::net::SocketAddr;

use sockets::{Bsd, Error};

use super::claims::claims;
use super::context::BlockingSockets;

/// bind(2), for a socket that may share its port with those of sibling contexts.
pub(super) fn bind(waiting: &mut BlockingSockets, fd: c_int, to: SocketAddr) -> Result<(), Error> {
    let is_stream = option(waiting, fd, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if to.port() == 0 || !is_stream {
        return waiting.bind(fd, to);
    }
    if option(waiting, fd, libc::SO_REUSEADDR) != Ok(0) {
        return bind_beside_siblings(waiting, fd, to);
    }
    if waiting.claimed.is_own(to) {
        return Err(Error::AddressInUse);
    }
    set(waiting, fd, (libc::SO_REUSEADDR, true))?;
    bind_beside_siblings(waiting, fd, to).inspect_err(|_| undo(waiting, fd, libc::SO_REUSEADDR))
}

fn bind_beside_siblings(
    waiting: &mut BlockingSockets,
    fd: c_int,
    to: SocketAddr,
) -> Result<(), Error> {
    let mut claims = claims();
    let shares_by_itself = option(waiting, fd, libc::SO_REUSEPORT) != Ok(0);
    if !waiting.claimed.has_siblings || shares_by_itself {
        waiting.bind(fd, to)?;
    } else {
        match waiting.bind(fd, to) {
            Err(Error::AddressInUse) if waiting.claimed.is_siblings(&claims, to) => {
                set(waiting, fd, (libc::SO_REUSEPORT, true))?;
                let bound = waiting.bind(fd, to);
                bound.inspect_err(|_| undo(waiting, fd, libc::SO_REUSEPORT))?;
            }
            bound => {
                bound?;
                set(waiting, fd, (libc::SO_REUSEPORT, true))?;
            }
        }
    }
    waiting.claimed.add(&mut claims, fd, to);
    Ok(())
}

fn option(waiting: &mut BlockingSockets, fd: c_int, name: c_int) -> Result<c_int, Error> {
    let mut value = [0; size_of::<c_int>()];
    waiting.getsockopt(fd, libc::SOL_SOCKET, name, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

fn set(waiting: &mut BlockingSockets, fd: c_int, (name, on): (c_int, bool)) -> Result<(), Error> {
    let value = c_int::from(on).to_ne_bytes();
    waiting.setsockopt(fd, libc::SOL_SOCKET, name, &value)
}

/// Restores the socket's option.
fn undo(waiting: &mut BlockingSockets, fd: c_int, name: c_int) {
    // An option that could be set can be reset; otherwise bind(2) has failed already.
    let _ = set(waiting, fd, (name, false));
}
