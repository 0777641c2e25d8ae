//! Options and modes of a socket, resets and pipes: the calls of `mtcp_api.h` that transfer no
//! bytes.

use std::ffi::{c_int, c_void};

use libc::socklen_t;
use sockets::{Bsd, OpenFlags};

use super::context::{BlockingSockets, mctx_t, with_context};
use crate::border::status;
use crate::error::{CallError, CallFailure};

/// The largest value of an option that is read.
const VALUE_BYTES_MAX: usize = 512;

/// Reads an option, as getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockopt(
    mctx: mctx_t,
    sockid: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    let get = || {
        if optval.is_null() || optlen.is_null() {
            return Err(CallFailure::from(CallError::Null("optval or optlen")));
        }
        // SAFETY: the program promises a readable size.
        let room = (unsafe { optlen.read() } as usize).min(VALUE_BYTES_MAX);
        let mut value = [0; VALUE_BYTES_MAX];
        let len = with_context(mctx, |waiting| {
            Ok(waiting.getsockopt(sockid, level, optname, &mut value[..room])?)
        })?;
        let len = len.min(room);
        // SAFETY: the program promises `*optlen` writable bytes, and `len` is not more; `value` is
        // a local and does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), optval.cast(), len) };
        // SAFETY: the program promises a writable size.
        unsafe { optlen.write(len as socklen_t) };
        Ok(())
    };
    status("mtcp_getsockopt", get())
}

/// Sets an option, as setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setsockopt(
    mctx: mctx_t,
    sockid: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    let set = || {
        if optval.is_null() && optlen > 0 {
            return Err(CallFailure::from(CallError::Null("optval")));
        }
        let len = optlen as usize;
        if len > VALUE_BYTES_MAX {
            return Err(CallError::Argument("optlen").into());
        }
        let mut value = [0; VALUE_BYTES_MAX];
        // SAFETY: the program promises `optlen` readable bytes; `value` is a local that is large
        // enough.
        unsafe { std::ptr::copy_nonoverlapping(optval.cast(), value.as_mut_ptr(), len) };
        with_context(mctx, |waiting| {
            Ok(waiting.setsockopt(sockid, level, optname, &value[..len])?)
        })
    };
    status("mtcp_setsockopt", set())
}

/// Makes calls on the socket nonblocking.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_setsock_nonblock(mctx: mctx_t, sockid: c_int) -> c_int {
    let set = with_context(mctx, |waiting| {
        let flags = waiting.fcntl(sockid, libc::F_GETFL, 0)?;
        waiting.fcntl(sockid, libc::F_SETFL, flags | libc::O_NONBLOCK)?;
        Ok(())
    });
    status("mtcp_setsock_nonblock", set)
}

/// FIONREAD, SIOCOUTQ and FIONBIO, as ioctl(2); `argp` points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_socket_ioctl(
    mctx: mctx_t,
    sockid: c_int,
    request: c_int,
    argp: *mut c_void,
) -> c_int {
    let control = || {
        if argp.is_null() {
            return Err(CallFailure::from(CallError::Null("argp")));
        }
        let place = argp.cast::<c_int>();
        // SAFETY: the program promises an int.
        let argument = unsafe { place.read() };
        // The kernel's requests are unsigned numbers of 32 bits.
        let request = u64::from(request.cast_unsigned());
        let answer = with_context(mctx, |waiting| Ok(waiting.ioctl(sockid, request, argument)?))?;
        // SAFETY: the program promises a writable int.
        unsafe { place.write(answer) };
        Ok(())
    };
    status("mtcp_socket_ioctl", control())
}

/// Closes with a reset.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_abort(mctx: mctx_t, sockid: c_int) -> c_int {
    let abort = |waiting: &mut BlockingSockets| {
        let aborted = waiting.abort(sockid);
        waiting.claimed.release(sockid);
        Ok(aborted?)
    };
    status("mtcp_abort", with_context(mctx, abort))
}

/// Creates a pipe whose ends are descriptors of the context: the read end, then the write end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_pipe(mctx: mctx_t, pipeid: *mut c_int) -> c_int {
    let pipe = || {
        if pipeid.is_null() {
            return Err(CallFailure::from(CallError::Null("pipeid")));
        }
        let ends = with_context(mctx, |waiting| Ok(waiting.pipe2(OpenFlags::empty())?))?;
        // SAFETY: the program promises memory for two descriptors.
        unsafe { pipeid.cast::<[c_int; 2]>().write(ends) };
        Ok(())
    };
    status("mtcp_pipe", pipe())
}
