//! splice(2) between pipes and sockets of the stack.
//!
//! Bytes go through the process. What a pipe gives is read from a copy of it (tee(2)) and removed
//! when the socket has taken it; what a socket gives is looked at (MSG_PEEK) and removed when the
//! pipe has taken it. So no byte is lost where the other side takes less.

use std::ffi::{c_int, c_uint};
use std::os::fd::AsRawFd;

use libc::{off64_t, size_t, ssize_t};
use megapipe_sockets::{Bsd, Error, Fd, MsgFlags};

use super::data::{piped, value};
use super::{CallTarget, answer, target};
use crate::memory::{self, Access};
use crate::next::interpose;
use crate::numbers;
use crate::raw::system_call;
use crate::stack;

/// Bytes that one call moves at most: those of a pipe of the usual size.
const MOVED_MAX: usize = 64 << 10;
/// Bytes that a pipe takes without waiting, if it takes any (PIPE_BUF).
const PIPE_BYTES: usize = 4096;

interpose! {
    /// splice(2).
    fn splice(
        from: c_int,
        from_offset: *mut off64_t,
        to: c_int,
        to_offset: *mut off64_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t |pass| {
        if numbers::is_kernel(from) && numbers::is_kernel(to) {
            return pass();
        }
        let offsets = [(from, from_offset), (to, to_offset)];
        let moved = || {
            let (source, sink) = (target(from)?, target(to)?);
            match (source, sink) {
                (CallTarget::Kernel, CallTarget::Kernel) => Ok(pass()),
                _ if len == 0 => Ok(0),
                _ if offsets.iter().any(|(_, offset)| !offset.is_null()) => {
                    Err(error_of_offsets(offsets))
                }
                (CallTarget::Kernel, CallTarget::Stack(sink)) => from_pipe(from, sink, len, flags),
                (CallTarget::Stack(source), CallTarget::Kernel) => to_pipe(source, to, len, flags),
                (CallTarget::Stack(_), CallTarget::Stack(_)) => Err(Error::InvalidArgument),
            }
        };
        answer(moved())
    }
}

/// The error of a call with offsets, one end of which is a socket. Linux looks for pipes, then
/// reads the offsets.
fn error_of_offsets(offsets: [(c_int, *mut off64_t); 2]) -> Error {
    let given = offsets.into_iter().filter(|(_, offset)| !offset.is_null());
    if given.clone().any(|(fd, _)| pipe_size(fd).is_ok()) {
        return Error::NoPosition;
    }
    let mut checked =
        given.map(|(_, it)| memory::check(it as usize, size_of::<off64_t>(), Access::Read));
    checked.find_map(Result::err).map_or(Error::InvalidArgument, Error::from)
}

/// # Errors
/// EBADF: it is no pipe, but another file.
fn pipe_size(fd: c_int) -> Result<isize, Error> {
    let arguments = [fd, libc::F_GETPIPE_SZ, 0, 0, 0, 0].map(|it| it as usize);
    // SAFETY: takes integers.
    value(unsafe { system_call(libc::SYS_fcntl, arguments) })
}

fn from_pipe(pipe: c_int, sink: Fd, len: usize, flags: c_uint) -> Result<ssize_t, Error> {
    let len = len.min(MOVED_MAX);
    // The copy is larger than what a pipe of the usual size has; it is closed with its numbers.
    let (copy, filled) =
        stack::enter(|| Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?))?;
    let arguments = [pipe as usize, filled.as_raw_fd() as usize, len, flags as usize, 0, 0];
    // SAFETY: takes integers. It waits for the pipe, unless the flags forbid it.
    let copied = value(unsafe { system_call(libc::SYS_tee, arguments) })? as usize;
    if copied == 0 {
        return Ok(0);
    }
    let mut bytes = vec![0; copied];
    read(copy.as_raw_fd(), &mut bytes)?;
    let sent = piped(sink, 0, stack::with_stack(|sockets| sockets.write(sink, &bytes)))?;
    read(pipe, &mut bytes[..sent])?;
    Ok(sent as ssize_t)
}

fn to_pipe(source: Fd, pipe: c_int, len: usize, flags: c_uint) -> Result<ssize_t, Error> {
    // Another file is refused before bytes are read: only a pipe has a size.
    pipe_size(pipe).map_err(|error| match error {
        Error::BadDescriptor => Error::InvalidArgument,
        error => error,
    })?;
    let mut bytes = vec![0; len.min(MOVED_MAX)];
    let seen = stack::with_stack(|it| it.recv(source, &mut bytes, MsgFlags::PEEK))?;
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    let mut moved = 0;
    while moved < seen {
        let mut entry = libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = if waits && moved == 0 { 0 } else { (&raw const now) as usize };
        let arguments = [(&raw mut entry) as usize, 1, time, 0, 8, 0];
        // SAFETY: both are locals.
        let has_room = value(unsafe { system_call(libc::SYS_ppoll, arguments) })? == 1;
        if !has_room {
            break;
        }
        let part = &bytes[moved..seen.min(moved + PIPE_BYTES)];
        let arguments = [pipe as usize, part.as_ptr() as usize, part.len(), 0, 0, 0];
        // SAFETY: the memory is a local.
        match value(unsafe { system_call(libc::SYS_write, arguments) }) {
            Ok(written) => moved += written as usize,
            Err(_) if moved > 0 => break,
            Err(error) => return Err(error),
        }
    }
    if seen > 0 && moved == 0 {
        return Err(Error::WouldBlock);
    }
    // The bytes are there: this does not wait.
    let mut taken = 0;
    while taken < moved {
        let room = &mut bytes[taken..moved];
        taken += stack::with_stack(|it| it.recv(source, room, MsgFlags::DONTWAIT))?;
    }
    Ok(moved as ssize_t)
}

/// Reads bytes that are there.
fn read(fd: c_int, to: &mut [u8]) -> Result<(), Error> {
    let mut done = 0;
    while done < to.len() {
        let rest = &mut to[done..];
        let arguments = [fd as usize, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0];
        // SAFETY: the memory is the caller's.
        done += match value(unsafe { system_call(libc::SYS_read, arguments) })? {
            0 => break,
            got => got as usize,
        };
    }
    Ok(())
}
