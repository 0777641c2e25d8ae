//! Calls by number, syscall(2), of sockets and sets: libuv sends and receives UDP messages so.
//!
//! Each is the call by name with the same arguments. Numbers that the kernel alone serves pass.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a block makes one of its calls, whose contract is that of the program's"
)]

use std::ffi::{c_int, c_long, c_uint};

use super::{create, data, options, sets, waits};
use crate::numbers;

/// Calls the function of a system call of sockets, sets or descriptors. `None`: the call passes to
/// the kernel.
///
/// # Safety
/// As the function.
pub(super) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let is_kernels = || numbers::is_kernel(arguments[0] as c_int);
    // SAFETY: the caller keeps the contract.
    unsafe {
        match number {
            libc::SYS_socket
            | libc::SYS_accept4
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg => Some(message_call(number, arguments)),
            libc::SYS_ppoll => Some(waiting_call(number, arguments)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll | libc::SYS_select => Some(waiting_call(number, arguments)),
            _ if is_kernels() => None,
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendfile => Some(data_call(number, arguments)),
            _ => socket_call(number, arguments).or_else(|| set_call(number, arguments)),
        }
    }
}

/// Calls that make descriptors, or may pass them.
unsafe fn message_call(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller keeps the contract of the function.
    unsafe {
        match number {
            libc::SYS_socket => create::socket(fd, b as c_int, c as c_int).into(),
            libc::SYS_accept4 => create::accept4(fd, b as _, c as _, d as c_int).into(),
            libc::SYS_recvmsg => data::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvmmsg => {
                data::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _).into()
            }
            libc::SYS_sendmsg => data::sendmsg(fd, b as _, c as c_int) as c_long,
            _ => data::sendmmsg(fd, b as _, c as c_uint, d as c_int).into(),
        }
    }
}

/// Calls whose descriptors lie in memory.
unsafe fn waiting_call(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> c_long {
    // SAFETY: the caller keeps the contract of the function.
    unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => waits::poll(a as _, b as _, c as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => waits::select(a as c_int, b as _, c as _, d as _, e as _).into(),
            // The size of the mask is the kernel's own affair.
            _ => waits::ppoll(a as _, b as _, c as _, d as _).into(),
        }
    }
}

unsafe fn data_call(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller keeps the contract of the function.
    let len = unsafe {
        match number {
            libc::SYS_read => data::read(fd, b as _, c),
            libc::SYS_readv => data::readv(fd, b as _, c as c_int),
            libc::SYS_recvfrom => data::recvfrom(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_write => data::write(fd, b as _, c),
            libc::SYS_writev => data::writev(fd, b as _, c as c_int),
            libc::SYS_sendto => data::sendto(fd, b as _, c, d as c_int, e as _, f as _),
            _ => data::sendfile(fd, b as c_int, c as _, d),
        }
    };
    len as c_long
}

unsafe fn socket_call(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the caller keeps the contract of the function.
    let result = unsafe {
        match number {
            libc::SYS_bind => create::bind(fd, b as _, c as _),
            libc::SYS_listen => create::listen(fd, b as c_int),
            libc::SYS_accept => create::accept(fd, b as _, c as _),
            libc::SYS_connect => create::connect(fd, b as _, c as _),
            libc::SYS_shutdown => create::shutdown(fd, b as c_int),
            libc::SYS_getsockname => create::getsockname(fd, b as _, c as _),
            libc::SYS_getpeername => create::getpeername(fd, b as _, c as _),
            libc::SYS_getsockopt => options::getsockopt(fd, b as c_int, c as c_int, d as _, e as _),
            libc::SYS_setsockopt => options::setsockopt(fd, b as c_int, c as c_int, d as _, e as _),
            libc::SYS_ioctl => options::ioctl(fd, b as _, c as _),
            libc::SYS_fcntl => options::fcntl(fd, b as c_int, c),
            _ => return None,
        }
    };
    Some(result.into())
}

unsafe fn set_call(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    let set = a as c_int;
    // SAFETY: the caller keeps the contract of the function.
    let result = unsafe {
        match number {
            libc::SYS_epoll_ctl => sets::epoll_ctl(set, b as c_int, c as c_int, d as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => sets::epoll_wait(set, b as _, c as c_int, d as c_int),
            libc::SYS_epoll_pwait => sets::epoll_pwait(set, b as _, c as c_int, d as c_int, e as _),
            libc::SYS_epoll_pwait2 => sets::epoll_pwait2(set, b as _, c as c_int, d as _, e as _),
            _ => return None,
        }
    };
    Some(result.into())
}
