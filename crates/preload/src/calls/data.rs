//! Calls that transfer bytes and messages.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use megapipe_marshal::{
    ArgumentError, check_room, is_stream, raise_pipe, read_address, receive_message,
    receive_messages, send_message, send_messages, with_parts, with_parts_mut, write_address,
};
use megapipe_sockets::{Bsd, Error, Fd, MsgFlags};

use super::create::decide_by_destination;
use super::inherited::{adopt_all_received, adopt_received};
use super::{CallTarget, answer, target};
use crate::memory::{self, Access, check_message, check_pieces, memory, memory_mut};
use crate::next::interpose;
use crate::numbers;
use crate::raw::{set_errno, system_call};
use crate::stack::with_stack;

/// Bytes that a call throws away at once.
const DISCARDED_BYTES: usize = 4 << 10;
/// Bytes that sendfile(2) reads at once.
const FILE_BYTES: usize = 16 << 10;

interpose! {
    /// read(2).
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            // SAFETY: the program promises `len` writable bytes.
            match unsafe { memory_mut(to, len, "buf") } {
                Ok(to) => with_stack(|sockets| sockets.read(inner, to)),
                Err(_) => receive_without_memory(inner, len, MsgFlags::empty()),
            }
        })
    }

    /// read(2), fortified.
    fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t |pass| {
        if numbers::is_kernel(fd) || len > room {
            return pass();
        }
        // SAFETY: the program promises what read(2) asks for.
        unsafe { read(fd, to, len) }
    }

    /// readv(2).
    fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            // SAFETY: the program promises that the array stays as it is.
            if unsafe { check_pieces(pieces, count as usize, Access::Write) }? == 0 {
                // As in Linux's `vfs_readv`: the socket is not asked.
                return Ok(0);
            }
            let read = |to: &mut [IoSliceMut<'_>]| -> Result<usize, TransferFailure> {
                Ok(with_stack(|sockets| sockets.readv(inner, to))?)
            };
            // SAFETY: the program promises `count` pieces of writable memory.
            Ok(unsafe { with_parts_mut(pieces, usize::try_from(count).ok(), read) }?)
        })
    }

    /// recv(2).
    fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            let flags = MsgFlags::from_bits_retain(flags);
            // SAFETY: the program promises `len` writable bytes.
            match unsafe { memory_mut(to, len, "buf") } {
                Ok(to) => with_stack(|sockets| sockets.recv(inner, to, flags)),
                Err(_) => receive_without_memory(inner, len, flags),
            }
        })
    }

    /// recv(2), fortified.
    fn __recv_chk(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t |pass| {
        if numbers::is_kernel(fd) || len > room {
            return pass();
        }
        // SAFETY: the program promises what recv(2) asks for.
        unsafe { recv(fd, to, len, flags) }
    }

    /// recvfrom(2).
    fn recvfrom(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            // SAFETY: the program promises `len` writable bytes.
            let to = unsafe { memory_mut(to, len, "buf") }?;
            if !address.is_null() {
                memory::check(address_len as usize, size_of::<socklen_t>(), Access::Write)?;
                // SAFETY: it promises a size, or null.
                unsafe { check_room(address_len) }?;
                // SAFETY: the same.
                let room = unsafe { address_len.read() } as usize;
                let room = room.min(size_of::<libc::sockaddr_storage>());
                memory::check(address as usize, room, Access::Write)?;
            }
            let flags = MsgFlags::from_bits_retain(flags);
            let mut parts = [IoSliceMut::new(to)];
            let received = with_stack(|sockets| sockets.recvfrom(inner, &mut parts, flags))?;
            if !address.is_null() {
                // SAFETY: it promises a buffer for an address with its size.
                unsafe { write_address(address, address_len, received.from) };
            }
            Ok(received.len)
        })
    }

    /// recvfrom(2), fortified.
    fn __recvfrom_chk(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t |pass| {
        if numbers::is_kernel(fd) || len > room {
            return pass();
        }
        // SAFETY: the program promises what recvfrom(2) asks for.
        unsafe { recvfrom(fd, to, len, flags, address, address_len) }
    }

    /// recvmsg(2).
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t |pass| {
        let pass = || {
            let result = pass();
            // SAFETY: the kernel has filled the message, if it succeeded.
            unsafe { adopt_received(message, result) };
            result
        };
        run(fd, pass, |inner| {
            // SAFETY: the program promises that the header stays as it is.
            unsafe { check_message(message, Access::Write) }?;
            let flags = MsgFlags::from_bits_retain(flags);
            let receive = |to: &mut [IoSliceMut<'_>], control: &mut [u8]| {
                Ok(with_stack(|sockets| sockets.recvmsg(inner, to, control, flags))?)
            };
            // SAFETY: the program promises a message to fill, or null.
            Ok(unsafe { receive_message::<TransferFailure>(message, receive) }?)
        })
    }

    /// recvmmsg(2).
    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int |pass| {
        let pass = || {
            let count = pass() as ssize_t;
            // SAFETY: the kernel has filled so many messages.
            unsafe { adopt_all_received(messages, count) };
            count
        };
        run(fd, pass, |inner| {
            if !timeout.is_null() {
                memory::check(timeout as usize, size_of::<timespec>(), Access::Write)?;
            }
            // SAFETY: the program promises that the headers stay as they are.
            let count = unsafe { checked_messages(messages, count, Access::Write) }?;
            let receive = |to: &mut [IoSliceMut<'_>], control: &mut [u8], flags: MsgFlags| {
                let received = with_stack(|sockets| sockets.recvmsg(inner, to, control, flags));
                Ok::<_, TransferFailure>(received?)
            };
            // SAFETY: the program promises `count` messages to fill, and a time, or null.
            Ok(unsafe { receive_messages(messages, count, flags, timeout, receive) }?)
        }) as c_int
    }

    /// write(2).
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            // SAFETY: the program promises `len` readable bytes.
            let from = unsafe { memory(from, len, "buf") }?;
            piped(inner, 0, with_stack(|sockets| sockets.write(inner, from)))
        })
    }

    /// writev(2).
    fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            // SAFETY: the program promises that the array stays as it is.
            if unsafe { check_pieces(pieces, count as usize, Access::Read) }? == 0 {
                return Ok(0);
            }
            let write = |from: &[IoSlice<'_>]| -> Result<usize, TransferFailure> {
                Ok(with_stack(|sockets| sockets.writev(inner, from))?)
            };
            // SAFETY: the program promises `count` pieces of readable memory.
            let written = unsafe { with_parts(pieces, usize::try_from(count).ok(), write) };
            piped(inner, 0, written.map_err(Error::from))
        })
    }

    /// send(2).
    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t |pass| {
        run(fd, pass, |inner| {
            // SAFETY: the program promises `len` readable bytes.
            let from = unsafe { memory(from, len, "buf") }?;
            let bits = MsgFlags::from_bits_retain(flags);
            piped(inner, flags, with_stack(|sockets| sockets.send(inner, from, bits)))
        })
    }

    /// sendto(2).
    fn sendto(
        fd: c_int,
        from: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t,
    ) -> ssize_t |pass| {
        if numbers::is_kernel(fd) {
            return pass();
        }
        let to = match address.is_null() {
            true => Ok(None),
            // SAFETY: the program promises an address of that size.
            false => memory::check(address as usize, address_len as usize, Access::Read)
                .and_then(|()| unsafe { read_address(address, address_len) }),
        };
        let decided = decide_by_destination(fd, to.ok().flatten());
        run(fd, pass, |inner| {
            decided?;
            // SAFETY: the program promises `len` readable bytes.
            let parts = [IoSlice::new(unsafe { memory(from, len, "buf") }?)];
            let (to, bits) = (to?, MsgFlags::from_bits_retain(flags));
            piped(inner, flags, with_stack(|sockets| sockets.sendto(inner, &parts, to, bits)))
        })
    }

    /// sendmsg(2).
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t |pass| {
        if numbers::is_kernel(fd) {
            // SAFETY: the program promises what sendmsg(2) asks for.
            return answer(unsafe { super::passing::send(fd, message, flags, pass) });
        }
        // SAFETY: the program promises a message, or null.
        let decided = unsafe { decide_by_message(fd, message) };
        run(fd, pass, |inner| {
            decided?;
            // SAFETY: the program promises that the header stays as it is.
            unsafe { check_message(message, Access::Read) }?;
            // SAFETY: the program promises a message, or null.
            let sent = unsafe { send_message(message, sending(inner, flags)) };
            piped(inner, flags, sent.map_err(Error::from))
        })
    }

    /// sendmmsg(2).
    fn sendmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            // SAFETY: the program promises what sendmmsg(2) asks for.
            return answer(unsafe { super::passing::send_all(fd, messages, count, flags, pass) });
        }
        // SAFETY: the program promises messages, or null; the first begins with its header.
        let decided = unsafe { decide_by_message(fd, messages.cast()) };
        let pass = || pass() as ssize_t;
        run(fd, pass, |inner| {
            decided?;
            // SAFETY: the program promises that the headers stay as they are.
            let count = unsafe { checked_messages(messages, count, Access::Read) }?;
            // SAFETY: the program promises `count` messages.
            let sent = unsafe { send_messages(messages, count, sending(inner, flags)) };
            piped(inner, flags, sent.map_err(Error::from))
        }) as c_int
    }

    /// sendfile(2).
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t |pass| {
        run(to, pass, |inner| {
            // SAFETY: the program promises an offset that no other thread uses, or null.
            let offset = unsafe { offset_at(offset) }?;
            piped(inner, 0, send_file(inner, from, offset, count))
        })
    }

    /// sendfile(2), where offsets have 64 bits in any case.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t |pass| {
        run(to, pass, |inner| {
            // SAFETY: the program promises an offset that no other thread uses, or null.
            let offset = unsafe { offset_at(offset) }?;
            piped(inner, 0, send_file(inner, from, offset, count))
        })
    }
}

/// recv(2) to where no memory is: as in Linux that is found out when there is something to copy.
/// The bytes of a stream that MSG_TRUNC throws away need none.
#[cold]
fn receive_without_memory(inner: Fd, len: usize, flags: MsgFlags) -> Result<usize, Error> {
    with_stack(|sockets| {
        let mut room = [0; DISCARDED_BYTES];
        if !flags.contains(MsgFlags::TRUNC) || !is_stream(sockets, inner) {
            sockets.recv(inner, &mut room[..len.min(1)], flags | MsgFlags::PEEK)?;
            return Err(Error::Fault);
        }
        let (mut taken, mut flags) = (0, flags);
        while taken < len {
            let part = &mut room[..(len - taken).min(DISCARDED_BYTES)];
            match sockets.recv(inner, part, flags) {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            }
            if taken % DISCARDED_BYTES != 0 || flags.contains(MsgFlags::PEEK) {
                break;
            }
            if !flags.contains(MsgFlags::WAITALL) {
                flags |= MsgFlags::DONTWAIT;
            }
        }
        Ok(taken)
    })
}

/// An argument or a socket is at fault.
struct TransferFailure(Error);

impl From<ArgumentError> for TransferFailure {
    fn from(error: ArgumentError) -> Self {
        Self(error.into())
    }
}

impl From<Error> for TransferFailure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<TransferFailure> for Error {
    fn from(TransferFailure(error): TransferFailure) -> Self {
        error
    }
}

/// Runs a transfer on the stack's socket behind a number, or passes it on.
#[inline]
fn run(
    fd: c_int,
    pass: impl FnOnce() -> ssize_t,
    transfer: impl FnOnce(Fd) -> Result<usize, Error>,
) -> ssize_t {
    let moved = match target(fd) {
        Ok(CallTarget::Kernel) => return pass(),
        Ok(CallTarget::Stack(inner)) => transfer(inner),
        Err(error) => Err(error),
    };
    match moved {
        // No call moves more than `MOVED_BYTES_MAX`.
        Ok(moved) => moved as ssize_t,
        Err(error) => {
            set_errno(error.raw_os_error());
            -1
        }
    }
}

/// Sends one message.
fn sending(
    inner: Fd,
    flags: c_int,
) -> impl FnMut(&[IoSlice<'_>], Option<SocketAddr>, &[u8]) -> Result<usize, TransferFailure> {
    let flags = MsgFlags::from_bits_retain(flags);
    move |from, to, control| {
        Ok(with_stack(|sockets| sockets.sendmsg(inner, from, to, control, flags))?)
    }
}

/// Checks the messages of one call. Returns how many come before the first one that is wrong.
///
/// # Errors
/// EFAULT: none.
///
/// # Safety
/// Where headers exist, they are not written meanwhile.
unsafe fn checked_messages(
    messages: *const mmsghdr,
    count: c_uint,
    access: Access,
) -> Result<c_uint, ArgumentError> {
    let count = count.min(libc::UIO_MAXIOV as c_uint);
    memory::check(messages as usize, count as usize * size_of::<mmsghdr>(), Access::Write)?;
    for index in 0..count {
        let message = messages.wrapping_add(index as usize).cast();
        // SAFETY: the caller keeps the contract; a message begins with its header.
        match unsafe { check_message(message, access) } {
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index),
            Ok(()) => {}
        }
    }
    Ok(count)
}

/// # Safety
/// `message` is null or points to a header with an address, where this is not null.
unsafe fn decide_by_message(fd: c_int, message: *const msghdr) -> Result<(), Error> {
    if memory::check(message as usize, size_of::<msghdr>(), Access::Read).is_err() {
        return Ok(());
    }
    // SAFETY: the caller promises a header, or null.
    let Some(header) = (unsafe { message.as_ref() }) else { return Ok(()) };
    let name = (header.msg_name as usize, header.msg_namelen as usize);
    if header.msg_name.is_null() || memory::check(name.0, name.1, Access::Read).is_err() {
        return Ok(());
    }
    // SAFETY: the address is there, as was checked.
    let to = unsafe { read_address(header.msg_name.cast(), header.msg_namelen) };
    decide_by_destination(fd, to.ok().flatten())
}

/// Raises SIGPIPE where Linux does.
#[inline]
pub(super) fn piped(inner: Fd, flags: c_int, sent: Result<usize, Error>) -> Result<usize, Error> {
    if matches!(sent, Err(Error::BrokenPipe))
        && flags & libc::MSG_NOSIGNAL == 0
        && with_stack(|sockets| Ok(is_stream(sockets, inner))).unwrap_or(false)
    {
        raise_pipe();
    }
    sent
}

/// The offset of a file in the program's memory; `None` for null.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Where there is memory, it is used by no other thread.
unsafe fn offset_at<'a>(offset: *mut off_t) -> Result<Option<&'a mut off_t>, Error> {
    if !offset.is_null() {
        memory::check(offset as usize, size_of::<off_t>(), Access::Write)?;
    }
    // SAFETY: it is null or exists, and the caller keeps the contract.
    Ok(unsafe { offset.as_mut() })
}

/// sendfile(2) to a socket of the stack. With an offset the file's own position stays; else it
/// moves by the bytes that were sent.
fn send_file(
    inner: Fd,
    from: c_int,
    offset: Option<&mut off_t>,
    count: size_t,
) -> Result<usize, Error> {
    let start = match &offset {
        Some(offset) => **offset,
        None => seek(from, 0, libc::SEEK_CUR)?,
    };
    let mut bytes = [0; FILE_BYTES];
    let mut sent = 0;
    while sent < count {
        let want = (count - sent).min(FILE_BYTES);
        let at = start + sent as off_t;
        let arguments = [from as usize, bytes.as_mut_ptr() as usize, want, at as usize, 0, 0];
        // SAFETY: the memory is a local of at least `want` bytes.
        let read = value(unsafe { system_call(libc::SYS_pread64, arguments) })? as usize;
        if read == 0 {
            break;
        }
        match with_stack(|sockets| sockets.write(inner, &bytes[..read])) {
            Ok(written) => {
                sent += written;
                if written < read {
                    break;
                }
            }
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    match offset {
        Some(offset) => *offset = start + sent as off_t,
        None => drop(seek(from, start + sent as off_t, libc::SEEK_SET)?),
    }
    Ok(sent)
}

fn seek(fd: c_int, offset: off_t, whence: c_int) -> Result<off_t, Error> {
    let arguments = [fd as usize, offset as usize, whence as usize, 0, 0, 0];
    // SAFETY: takes integers. The kernel refuses a descriptor without a position (ESPIPE), where
    // sendfile(2) has EINVAL.
    match value(unsafe { system_call(libc::SYS_lseek, arguments) }) {
        Ok(at) => Ok(at as off_t),
        Err(Error::NoPosition) => Err(Error::InvalidArgument),
        Err(error) => Err(error),
    }
}

pub(super) fn value(result: isize) -> Result<isize, Error> {
    match result {
        0.. => Ok(result),
        _ => Err(Error::from_raw_os_error(-result as c_int)),
    }
}
