//! Listeners that another process made, and tokens of connections: open at the start of a program
//! that exec(3) started, or received in a message of an AF_UNIX socket (SCM_RIGHTS).
//!
//! Such a listener's number is a listening socket of the kernel. It becomes a record, as if this
//! process had called bind(2) and listen(2), where the rules give its address to the stack: the
//! program may be the new version of a server, or one whose service manager listens for it. The
//! stack's part begins with the first call that uses the number, since most programs that inherit a
//! listener never do. On a link that shares the host's addresses it stays the kernel's, which has
//! its port.
//!
//! Read first: `records.rs`.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::path::Path;

use libc::{mmsghdr, msghdr, ssize_t};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::create::{kernel_name, select};
use super::descriptors::reap;
use crate::foreign_children;
use crate::numbers;
use crate::raw::system_call;
use crate::received_tokens;
use crate::records::{FoundListener, RECORDS, SocketOption};
use crate::rules::{PathCall, SocketPath};
use crate::stack;

/// Where the numbers of the process are listed.
const NUMBERS: &str = "/proc/self/fd";

/// Options that a listener gives to its connections, or that say what it takes.
const OPTIONS: [(c_int, c_int); 4] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

/// Records the listeners and tokens among the numbers that are open when the library is loaded.
/// Without /proc none is found.
pub(crate) fn adopt_open() {
    if !stack::has_own_ports() {
        return;
    }
    let Ok(listed) = Path::new(NUMBERS).read_dir() else { return };
    let numbers = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<c_int> = numbers.collect();
    numbers.into_iter().for_each(adopt_given);
}

/// After a receiving call on a socket of the kernel: records the listeners among the descriptors
/// that came with the message, and notes the tokens. `result`: of the call.
///
/// # Safety
/// `message` is what the call filled, if it succeeded.
#[inline]
pub(super) unsafe fn adopt_received(message: *const msghdr, result: ssize_t) {
    if result < 0 || !stack::has_own_ports() || foreign_children::is_foreign() {
        return;
    }
    // SAFETY: the kernel has filled it.
    let header = unsafe { &*message };
    if !header.msg_control.is_null() && header.msg_controllen > 0 {
        // SAFETY: the caller keeps the contract.
        unsafe { super::passing::descriptors(header, take_over) };
    }
}

/// As [`adopt_received`], for the messages of one recvmmsg(2), which received `count`.
///
/// # Safety
/// As [`adopt_received`], for each message.
pub(super) unsafe fn adopt_all_received(messages: *const mmsghdr, count: ssize_t) {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller keeps the contract; a message begins with its header.
        unsafe { adopt_received(messages.wrapping_add(index).cast(), 0) };
    }
}

fn take_over(fd: c_int) {
    reap(fd);
    adopt_given(fd);
}

/// A number that this process was given: a token, a listener, or something else.
fn adopt_given(fd: c_int) {
    if stack::is_shared() {
        received_tokens::note(fd);
    }
    adopt(fd);
}

/// Records a number of the kernel, if it is a listener whose address belongs to the stack.
fn adopt(fd: c_int) {
    if fd < 0 || !numbers::is_kernel(fd) {
        return;
    }
    let Some(found) = found(fd) else { return };
    // A refused adoption leaves the number to the kernel.
    let _ = stack::enter(|| {
        let mut records = RECORDS.lock();
        records.adopt(fd, found, |record, address| {
            // It exists: what the kernel alone could serve stays there.
            select(record, PathCall::Listen, address).unwrap_or(SocketPath::Kernel)
        });
        Ok(())
    });
}

/// What a listening TCP socket of the kernel is like. `None`: the number is something else.
fn found(fd: c_int) -> Option<FoundListener> {
    // SAFETY: the number is looked at in these calls alone; a number that is not open is refused.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let domain = match sockopt::socket_domain(socket).ok()? {
        AddressFamily::INET => libc::AF_INET,
        AddressFamily::INET6 => libc::AF_INET6,
        _ => return None,
    };
    let is_stream = sockopt::socket_type(socket).ok()? == SocketType::STREAM;
    let protocol = sockopt::socket_protocol(socket).ok()?;
    let is_tcp = is_stream && protocol.is_none_or(|it| it == rustix::net::ipproto::TCP);
    if !is_tcp || !sockopt::socket_acceptconn(socket).ok()? {
        return None;
    }
    let mode = rustix::fs::fcntl_getfl(socket).ok()?;
    let options = OPTIONS.into_iter().filter(|(level, _)| {
        // Of IPv6 sockets alone.
        domain == libc::AF_INET6 || *level != libc::IPPROTO_IPV6
    });
    let options = options.filter_map(|(level, name)| {
        let value = option(fd, level, name)?;
        // Others are as they are without being set; whether IPv4 is taken differs by system.
        let is_set = value != 0 || name == libc::IPV6_V6ONLY && level == libc::IPPROTO_IPV6;
        is_set.then(|| SocketOption { level, name, value: value.to_ne_bytes().to_vec() })
    });
    Some(FoundListener {
        cookie: sockopt::socket_cookie(socket).ok()?,
        domain,
        address: kernel_name(fd)?,
        backlog: backlog(fd),
        is_nonblocking: mode.contains(rustix::fs::OFlags::NONBLOCK),
        options: options.collect(),
    })
}

/// The value of an option that is an integer.
fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value = [0; size_of::<c_int>()];
    let filled = read_option(fd, level, name, &mut value)?;
    (filled == value.len()).then_some(c_int::from_ne_bytes(value))
}

/// The backlog of a listener: Linux shows it in place of the segments that SACK has reported.
fn backlog(fd: c_int) -> c_int {
    /// `tcpi_sacked` of `struct tcp_info` (linux/tcp.h): behind eight bytes and five words.
    const SACKED_OFFSET: usize = 28;
    let mut info = [0; 104];
    let known = read_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    let known = known.and_then(|filled| info[..filled].get(SACKED_OFFSET..SACKED_OFFSET + 4));
    let backlog = known.and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
    backlog.and_then(|backlog| c_int::try_from(backlog).ok()).unwrap_or(libc::SOMAXCONN)
}

/// getsockopt(2). Returns how many bytes the kernel has filled.
fn read_option(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<usize> {
    let mut len = value.len() as libc::socklen_t;
    let (at, size) = (value.as_mut_ptr() as usize, (&raw mut len) as usize);
    let arguments = [fd as usize, level as usize, name as usize, at, size, 0];
    // SAFETY: both are the caller's or a local, and the size bounds what is written.
    let result = unsafe { system_call(libc::SYS_getsockopt, arguments) };
    (result == 0).then_some((len as usize).min(value.len()))
}
