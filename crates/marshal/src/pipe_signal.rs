//! SIGPIPE, where Linux raises it: for a stream whose sending direction is closed.

use libc::c_int;
use megapipe_sockets::{Bsd, Fd};

/// Returns whether a socket is a stream, whose failed writes raise SIGPIPE.
pub fn is_stream(sockets: &mut impl Bsd, fd: Fd) -> bool {
    let mut kind = [0; size_of::<c_int>()];
    let asked = sockets.getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind);
    asked.is_ok() && c_int::from_ne_bytes(kind) == libc::SOCK_STREAM
}

/// Raises SIGPIPE in the calling thread. No call of the library may be inside.
pub fn raise_pipe() {
    // SAFETY: takes an integer. The program chooses the signal's action.
    unsafe { libc::raise(libc::SIGPIPE) };
}
