//! The record that packetdrill hands us, and the function that fills it.
//!
//! The order of the entries is packetdrill's, and so is what each gets and returns: what its
//! namesake in libc does, after `userdata`; -1 and errno where it fails.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval, timezone, useconds_t,
};

use megapipe_scripts::world::{ScriptWorld, WorldError};

use crate::calls;
use crate::flags::{FlagError, PacketdrillFlags};
use crate::limits::NOTE_TIME;

/// What packetdrill calls us by.
///
/// `fcntl` and `ioctl` are variadic in C. What they are given is an int or a pointer, which on the
/// machines that we build for travels in the same register as a fixed argument of a word's size.
#[derive(Debug)]
#[repr(C)]
pub struct PacketdrillInterface {
    /// Passed to each call: the simulated host; null if there is none.
    pub userdata: *mut c_void,
    pub(crate) free: extern "C" fn(*mut c_void),
    pub(crate) socket: extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) listen: extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub(crate) accept:
        unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(crate) connect:
        unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t,
    pub(crate) readv: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) recv:
        unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub(crate) recvfrom: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub(crate) recvmsg: unsafe extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    pub(crate) write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t,
    pub(crate) writev: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) send:
        unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub(crate) sendto: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub(crate) sendmsg: unsafe extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    pub(crate) fcntl: extern "C" fn(*mut c_void, c_int, c_int, usize) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(*mut c_void, c_int, libc::c_ulong, *mut c_int) -> c_int,
    pub(crate) close: extern "C" fn(*mut c_void, c_int) -> c_int,
    pub(crate) shutdown: extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub(crate) getsockopt: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        c_int,
        c_int,
        *mut c_void,
        *mut socklen_t,
    ) -> c_int,
    pub(crate) setsockopt:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(crate) poll: unsafe extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    pub(crate) netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int,
    pub(crate) netdev_receive:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub(crate) usleep: extern "C" fn(*mut c_void, useconds_t) -> c_int,
    pub(crate) gettimeofday:
        unsafe extern "C" fn(*mut c_void, *mut timeval, *mut timezone) -> c_int,
    pub(crate) epoll_create: extern "C" fn(*mut c_void, c_int) -> c_int,
    pub(crate) epoll_ctl:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const epoll_event) -> c_int,
    pub(crate) epoll_wait:
        unsafe extern "C" fn(*mut c_void, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub(crate) pipe: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    pub(crate) splice: extern "C" fn(
        *mut c_void,
        c_int,
        *mut loff_t,
        c_int,
        *mut loff_t,
        size_t,
        c_uint,
    ) -> ssize_t,
}

/// Why there is no simulated host.
#[derive(Debug, thiserror::Error)]
enum NoWorld {
    #[error("so_flags: {0}")]
    Flags(#[from] FlagError),
    #[error(transparent)]
    World(#[from] WorldError),
}

/// `userdata` and 32 functions.
const _: () = assert!(size_of::<PacketdrillInterface>() == 33 * size_of::<usize>());

impl PacketdrillInterface {
    const fn of(userdata: *mut c_void) -> Self {
        Self {
            userdata,
            free: calls::free,
            socket: calls::socket,
            bind: calls::bind,
            listen: calls::listen,
            accept: calls::accept,
            connect: calls::connect,
            read: calls::read,
            readv: calls::readv,
            recv: calls::recv,
            recvfrom: calls::recvfrom,
            recvmsg: calls::recvmsg,
            write: calls::write,
            writev: calls::writev,
            send: calls::send,
            sendto: calls::sendto,
            sendmsg: calls::sendmsg,
            fcntl: calls::fcntl,
            ioctl: calls::ioctl,
            close: calls::close,
            shutdown: calls::shutdown,
            getsockopt: calls::getsockopt,
            setsockopt: calls::setsockopt,
            poll: calls::poll,
            netdev_send: calls::netdev_send,
            netdev_receive: calls::netdev_receive,
            usleep: calls::usleep,
            gettimeofday: calls::gettimeofday,
            epoll_create: calls::epoll_create,
            epoll_ctl: calls::epoll_ctl,
            epoll_wait: calls::epoll_wait,
            pipe: calls::pipe,
            splice: calls::splice,
        }
    }
}

/// Fills packetdrill's record. `flags` is the text of `--so_flags`, or null. If they are invalid, a
/// line on standard error names the cause and every call fails with ENODEV, because this function
/// returns no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut PacketdrillInterface,
) {
    let make = || -> Result<ScriptWorld, NoWorld> {
        // SAFETY: packetdrill promises text that ends with a NUL, or null.
        let text = (!flags.is_null()).then(|| unsafe { CStr::from_ptr(flags) });
        let text = text.unwrap_or_default().to_string_lossy();
        Ok(ScriptWorld::new(PacketdrillFlags::parse(&text)?.settings()?, NOTE_TIME)?)
    };
    let userdata = match catch_unwind(AssertUnwindSafe(make)) {
        Ok(Ok(world)) => Box::into_raw(Box::new(world)).cast(),
        Ok(Err(error)) => {
            eprintln!("megapipe: {error}");
            ptr::null_mut()
        }
        Err(_) => ptr::null_mut(),
    };
    if !interface.is_null() {
        // SAFETY: packetdrill promises a writable record.
        unsafe { interface.write(PacketdrillInterface::of(userdata)) };
    }
}
