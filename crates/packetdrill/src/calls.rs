//! The functions of packetdrill's record: C arguments in, results of the simulated host out.
//!
//! Each checks its pointers, makes the call and sets errno if it failed; `answer` keeps panics in.

use std::ffi::{c_int, c_longlong, c_uint, c_ulong, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Duration;

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval, timezone, useconds_t,
};
use megapipe_marshal::limits::PARTS_MAX;
use megapipe_marshal::{
    memory, memory_mut, milliseconds, read_address, receive_message, send_message, with_parts,
    with_parts_mut, write_address,
};
use megapipe_scripts::world::ScriptWorld;
use megapipe_sockets::{
    Bsd, EpollEvent, EpollOp, Error, Events, MsgFlags, OpenFlags, PollFd, ReceivedMessage, Shutdown,
};

use crate::limits::{EPOCH_US, RECEIVE_TIME};

/// A pointer is null that must not be.
const FAULT: Error = Error::Os(libc::EFAULT);

/// Runs a call on the host behind `userdata`; -1 and errno if it fails.
fn answer<T: From<i8>>(
    userdata: *mut c_void,
    call: impl FnOnce(&ScriptWorld) -> Result<T, Error>,
) -> T {
    let result = match userdata.is_null() {
        true => Err(Error::Os(libc::ENODEV)),
        false => {
            // SAFETY: packetdrill hands back what `packetdrill_interface_init` gave it, until it
            // calls `free`; a world may be used by several threads.
            let world = unsafe { &*userdata.cast::<ScriptWorld>() };
            catch_unwind(AssertUnwindSafe(|| call(world))).unwrap_or(Err(Error::Os(libc::EIO)))
        }
    };
    result.unwrap_or_else(|error| {
        // SAFETY: errno has an address in every thread, for the thread's whole life.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address is valid and aligned, and only this thread uses it.
        unsafe { errno.write(error.raw_os_error()) };
        T::from(-1)
    })
}

/// 0, for functions without a result.
fn zero(result: Result<(), Error>) -> Result<c_int, Error> {
    result.map(|()| 0)
}

fn len(result: Result<usize, Error>) -> Result<isize, Error> {
    result.map(|len| isize::try_from(len).unwrap_or(isize::MAX))
}

pub(crate) extern "C" fn free(userdata: *mut c_void) {
    if !userdata.is_null() {
        // SAFETY: the pointer came from `Box::into_raw`, and packetdrill is done with it.
        let world = unsafe { Box::from_raw(userdata.cast::<ScriptWorld>()) };
        // A panic on the way out stays here too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(world)));
    }
}

pub(crate) extern "C" fn socket(
    userdata: *mut c_void,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    answer(userdata, |world| world.call(|sockets| sockets.socket(domain, kind, protocol)))
}

pub(crate) unsafe extern "C" fn bind(
    userdata: *mut c_void,
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `size` readable bytes.
        let address = unsafe { read_address(address, size) }?;
        zero(world.call(|sockets| sockets.bind(fd, address.ok_or(Error::InvalidArgument)?)))
    })
}

pub(crate) extern "C" fn listen(userdata: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    answer(userdata, |world| zero(world.call(|sockets| sockets.listen(fd, backlog))))
}

pub(crate) unsafe extern "C" fn accept(
    userdata: *mut c_void,
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    answer(userdata, |world| {
        let accepted = world.call(|sockets| sockets.accept4(fd, OpenFlags::empty()))?;
        // One that is over already has no peer to name any more.
        let peer = world.call(|sockets| sockets.accepted_peer(accepted)).ok();
        // SAFETY: packetdrill promises a buffer for an address with its size, or null.
        unsafe { write_address(address, size, peer) };
        Ok(accepted)
    })
}

pub(crate) unsafe extern "C" fn connect(
    userdata: *mut c_void,
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `size` readable bytes.
        let address = unsafe { read_address(address, size) }?;
        zero(world.call(|sockets| sockets.connect(fd, address)))
    })
}

pub(crate) unsafe extern "C" fn read(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
) -> ssize_t {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `count` writable bytes.
        let to = unsafe { memory_mut(buffer, count, "buffer") }?;
        len(world.call(|sockets| sockets.read(fd, to)))
    })
}

pub(crate) unsafe extern "C" fn readv(
    userdata: *mut c_void,
    fd: c_int,
    parts: *const iovec,
    count: c_int,
) -> ssize_t {
    answer(userdata, |world| {
        let read = |to: &mut [IoSliceMut<'_>]| world.call(|sockets| sockets.readv(fd, to));
        // SAFETY: packetdrill promises `count` pieces of writable memory.
        len(unsafe { with_parts_mut(parts, usize::try_from(count).ok(), read) })
    })
}

pub(crate) unsafe extern "C" fn recv(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `count` writable bytes.
        let to = unsafe { memory_mut(buffer, count, "buffer") }?;
        len(world.call(|sockets| sockets.recv(fd, to, MsgFlags::from_bits_retain(flags))))
    })
}

pub(crate) unsafe extern "C" fn recvfrom(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `count` writable bytes.
        let to = unsafe { memory_mut(buffer, count, "buffer") }?;
        let mut parts = [IoSliceMut::new(to)];
        let flags = MsgFlags::from_bits_retain(flags);
        let received: ReceivedMessage =
            world.call(|sockets| sockets.recvfrom(fd, &mut parts, flags))?;
        // SAFETY: packetdrill promises a buffer for an address with its size, or null.
        unsafe { write_address(address, size, received.from) };
        len(Ok(received.len))
    })
}

pub(crate) unsafe extern "C" fn recvmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    answer(userdata, |world| {
        let flags = MsgFlags::from_bits_retain(flags);
        let receive = |to: &mut [IoSliceMut<'_>], control: &mut [u8]| {
            world.call(|sockets| sockets.recvmsg(fd, to, control, flags))
        };
        // SAFETY: packetdrill promises a header with pieces and buffers that are writable, or null.
        len(unsafe { receive_message(message, receive) })
    })
}

pub(crate) unsafe extern "C" fn write(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
) -> ssize_t {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `count` readable bytes.
        let bytes = unsafe { memory(buffer, count, "buffer") }?;
        len(world.call(|sockets| sockets.write(fd, bytes)))
    })
}

pub(crate) unsafe extern "C" fn writev(
    userdata: *mut c_void,
    fd: c_int,
    parts: *const iovec,
    count: c_int,
) -> ssize_t {
    answer(userdata, |world| {
        let write = |from: &[IoSlice<'_>]| world.call(|sockets| sockets.writev(fd, from));
        // SAFETY: packetdrill promises `count` pieces of readable memory.
        len(unsafe { with_parts(parts, usize::try_from(count).ok(), write) })
    })
}

pub(crate) unsafe extern "C" fn send(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `count` readable bytes.
        let bytes = unsafe { memory(buffer, count, "buffer") }?;
        len(world.call(|sockets| sockets.send(fd, bytes, MsgFlags::from_bits_retain(flags))))
    })
}

pub(crate) unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `count` readable bytes.
        let bytes = unsafe { memory(buffer, count, "buffer") }?;
        // SAFETY: it promises `size` readable bytes, or null.
        let to = unsafe { optional_address(address, size) }?;
        let flags = MsgFlags::from_bits_retain(flags);
        len(world.call(|sockets| sockets.sendto(fd, &[IoSlice::new(bytes)], to, flags)))
    })
}

pub(crate) unsafe extern "C" fn sendmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    answer(userdata, |world| {
        let flags = MsgFlags::from_bits_retain(flags);
        let send = |from: &[IoSlice<'_>], to: Option<SocketAddr>, control: &[u8]| {
            world.call(|sockets| sockets.sendmsg(fd, from, to, control, flags))
        };
        // SAFETY: packetdrill promises a header with pieces and buffers that are readable, or null.
        len(unsafe { send_message(message, send) })
    })
}

pub(crate) extern "C" fn fcntl(
    userdata: *mut c_void,
    fd: c_int,
    command: c_int,
    argument: usize,
) -> c_int {
    // The argument is an int; the upper half of the register is undefined.
    let argument = argument as c_int;
    answer(userdata, |world| world.call(|sockets| sockets.fcntl(fd, command, argument)))
}

pub(crate) unsafe extern "C" fn ioctl(
    userdata: *mut c_void,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: for all requests that there are, packetdrill promises a pointer to an int, or
        // null.
        let place = unsafe { argument.as_mut() };
        let given = place.as_ref().map_or(0, |place| **place);
        let told = world.call(|sockets| sockets.ioctl(fd, request, given))?;
        if let Some(place) = place {
            *place = told;
        }
        Ok(0)
    })
}

pub(crate) extern "C" fn close(userdata: *mut c_void, fd: c_int) -> c_int {
    answer(userdata, |world| zero(world.call(|sockets| sockets.close(fd))))
}

pub(crate) extern "C" fn shutdown(userdata: *mut c_void, fd: c_int, how: c_int) -> c_int {
    answer(userdata, |world| {
        let how = Shutdown::from_raw(how).ok_or(Error::InvalidArgument)?;
        zero(world.call(|sockets| sockets.shutdown(fd, how)))
    })
}

pub(crate) unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises a readable and writable size, or null.
        let size = unsafe { size.as_mut() }.ok_or(FAULT)?;
        // SAFETY: it promises as many writable bytes.
        let room = unsafe { memory_mut(value, *size as usize, "value") }?;
        let told = world.call(|sockets| sockets.getsockopt(fd, level, name, room))?;
        *size = socklen_t::try_from(told).unwrap_or(*size);
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    size: socklen_t,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `size` readable bytes.
        let value = unsafe { memory(value, size as usize, "value") }?;
        zero(world.call(|sockets| sockets.setsockopt(fd, level, name, value)))
    })
}

pub(crate) unsafe extern "C" fn poll(
    userdata: *mut c_void,
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    answer(userdata, |world| {
        let count = usize::try_from(count).map_err(|_| Error::InvalidArgument)?;
        if count > PARTS_MAX {
            return Err(Error::InvalidArgument);
        }
        if fds.is_null() && count > 0 {
            return Err(FAULT);
        }
        let places = match count {
            0 => &mut [][..],
            // SAFETY: packetdrill promises `count` readable and writable records.
            _ => unsafe { slice::from_raw_parts_mut(fds, count) },
        };
        let asked = |place: &pollfd| {
            let events = Events::from_bits_retain(u32::from(place.events.cast_unsigned()));
            PollFd::new(place.fd, events)
        };
        let mut asked: Vec<PollFd<'_>> = places.iter().map(asked).collect();
        let ready = world.call(|sockets| sockets.poll(&mut asked, milliseconds(timeout)))?;
        for (place, asked) in places.iter_mut().zip(asked) {
            place.revents = asked.revents.bits() as i16;
        }
        Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
    })
}

pub(crate) unsafe extern "C" fn netdev_send(
    userdata: *mut c_void,
    packet: *const c_void,
    size: size_t,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises `size` readable bytes.
        zero(world.send(unsafe { memory(packet, size, "packet") }?, 0))
    })
}

pub(crate) unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    buffer: *mut c_void,
    size: *mut size_t,
    time_us: *mut c_longlong,
) -> c_int {
    answer(userdata, |world| {
        // SAFETY: packetdrill promises a readable and writable size, or null.
        let size = unsafe { size.as_mut() }.ok_or(FAULT)?;
        // SAFETY: it promises as many writable bytes.
        let room = unsafe { memory_mut(buffer, *size, "buffer") }?;
        let sent = world.receive(world.elapsed() + RECEIVE_TIME)?.ok_or(Error::TimedOut)?;
        let kept = sent.bytes.len().min(room.len());
        room[..kept].copy_from_slice(&sent.bytes[..kept]);
        *size = kept;
        // SAFETY: it promises a writable time, or null.
        if let Some(time_us) = unsafe { time_us.as_mut() } {
            *time_us = c_longlong::try_from(epoch_us(sent.at)).unwrap_or(c_longlong::MAX);
        }
        Ok(0)
    })
}

pub(crate) extern "C" fn usleep(userdata: *mut c_void, time_us: useconds_t) -> c_int {
    answer(userdata, |world| zero(run_for(world, Duration::from_micros(time_us.into()))))
}

pub(crate) unsafe extern "C" fn gettimeofday(
    userdata: *mut c_void,
    time: *mut timeval,
    _: *mut timezone,
) -> c_int {
    answer(userdata, |world| {
        // Time passes, so that a caller which polls the clock makes progress.
        run_for(world, Duration::from_micros(1))?;
        let now_us = epoch_us(world.elapsed());
        // SAFETY: packetdrill promises a writable record, or null.
        if let Some(time) = unsafe { time.as_mut() } {
            time.tv_sec = i64::try_from(now_us / 1_000_000).unwrap_or(i64::MAX);
            time.tv_usec = (now_us % 1_000_000) as i64;
        }
        Ok(0)
    })
}

pub(crate) extern "C" fn epoll_create(userdata: *mut c_void, size: c_int) -> c_int {
    answer(userdata, |world| match size {
        1.. => world.call(|sockets| sockets.epoll_create1(OpenFlags::empty())),
        _ => Err(Error::InvalidArgument),
    })
}

pub(crate) unsafe extern "C" fn epoll_ctl(
    userdata: *mut c_void,
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *const epoll_event,
) -> c_int {
    answer(userdata, |world| {
        let event = || {
            if event.is_null() {
                return Err(FAULT);
            }
            // SAFETY: packetdrill promises a readable event; it is packed, so it is copied.
            let epoll_event { events, u64: data } = unsafe { event.read_unaligned() };
            Ok(EpollEvent { events: Events::from_bits_truncate(events), data })
        };
        let op = match op {
            libc::EPOLL_CTL_ADD => EpollOp::Add(event()?),
            libc::EPOLL_CTL_MOD => EpollOp::Modify(event()?),
            libc::EPOLL_CTL_DEL => EpollOp::Delete,
            _ => return Err(Error::InvalidArgument),
        };
        zero(world.call(|sockets| sockets.epoll_ctl(epoll, op, fd)))
    })
}

pub(crate) unsafe extern "C" fn epoll_wait(
    userdata: *mut c_void,
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    answer(userdata, |world| {
        let max = usize::try_from(max).ok().filter(|&max| max > 0);
        let max = max.ok_or(Error::InvalidArgument)?.min(PARTS_MAX);
        if events.is_null() {
            return Err(FAULT);
        }
        let mut found = vec![EpollEvent::default(); max];
        let wait = milliseconds(timeout);
        let count = world.call(|sockets| sockets.epoll_wait(epoll, &mut found, wait))?;
        for (index, event) in found[..count].iter().enumerate() {
            let told = epoll_event { events: event.events.bits(), u64: event.data };
            // SAFETY: packetdrill promises memory for `max` events.
            unsafe { events.wrapping_add(index).write_unaligned(told) };
        }
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    })
}

pub(crate) unsafe extern "C" fn pipe(userdata: *mut c_void, ends: *mut c_int) -> c_int {
    answer(userdata, |world| {
        if ends.is_null() {
            return Err(FAULT);
        }
        let made = world.call(|sockets| sockets.pipe2(OpenFlags::empty()))?;
        // SAFETY: packetdrill promises memory for two descriptors.
        unsafe { ends.cast::<[c_int; 2]>().write(made) };
        Ok(0)
    })
}

/// Moving bytes between a socket and a pipe here would need a copy: ENOSYS, as from a kernel
/// without splice(2).
pub(crate) extern "C" fn splice(
    userdata: *mut c_void,
    _: c_int,
    _: *mut loff_t,
    _: c_int,
    _: *mut loff_t,
    _: size_t,
    _: c_uint,
) -> ssize_t {
    answer(userdata, |_| Err(Error::Os(libc::ENOSYS)))
}

/// Lets time pass.
fn run_for(world: &ScriptWorld, time: Duration) -> Result<(), Error> {
    world.run_until(world.elapsed() + time, || None::<()>).map(drop)
}

/// A virtual time in microseconds since 1970.
fn epoch_us(at: Duration) -> u64 {
    EPOCH_US + u64::try_from(at.as_micros()).unwrap_or(u64::MAX - EPOCH_US)
}

/// An address that may be left out.
///
/// # Safety
/// As [`read_address`].
unsafe fn optional_address(
    at: *const sockaddr,
    size: socklen_t,
) -> Result<Option<SocketAddr>, Error> {
    match at.is_null() || size == 0 {
        true => Ok(None),
        // SAFETY: the caller promises the bytes.
        false => Ok(unsafe { read_address(at, size) }?),
    }
}
