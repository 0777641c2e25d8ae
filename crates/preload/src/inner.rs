//! The library's own calls of libc's functions that it interposes: system calls by number.
//!
//! The build renames every reference of the library, of its crates and of Rust's standard library
//! from `read` to `mp_inner_read`, and so on (decision 0049). So no call from inside enters an
//! interposed function. No function here is a cancellation point.
//!
//! Invariant: a descriptor that is created here lies at the top of the range and is marked as the
//! library's ([`crate::numbers::raise`]), so that the program finds the lowest number free and
//! cannot close it.

use std::ffi::{c_char, c_int, c_long};

use crate::numbers::{forget_own, raise};
use crate::raw::{c_call, set_errno};

/// Functions whose system call has the same arguments.
macro_rules! by_number {
    ($($name:ident = $number:ident($($argument:ident),*) $(=> $made:ident)?;)*) => {$(
        #[unsafe(export_name = concat!("mp_inner_", stringify!($name)))]
        #[allow(non_snake_case, reason = "it is named as the function")]
        pub(crate) unsafe extern "C" fn $name($($argument: usize),*) -> isize {
            let mut arguments = [0; 6];
            let given: &[usize] = &[$($argument),*];
            arguments[..given.len()].copy_from_slice(given);
            // SAFETY: the caller promises what the function of this name asks for.
            let result = unsafe { c_call(libc::$number, arguments) };
            $(let result = $made(result);)?
            result
        }
    )*};
}

by_number! {
    socket = SYS_socket(domain, kind, protocol) => raise;
    bind = SYS_bind(fd, address, len);
    listen = SYS_listen(fd, backlog);
    accept4 = SYS_accept4(fd, address, len, flags) => raise;
    connect = SYS_connect(fd, address, len);
    shutdown = SYS_shutdown(fd, how);
    getsockname = SYS_getsockname(fd, address, len);
    getpeername = SYS_getpeername(fd, address, len);
    getsockopt = SYS_getsockopt(fd, level, name, value, len);
    setsockopt = SYS_setsockopt(fd, level, name, value, len);
    read = SYS_read(fd, to, len);
    readv = SYS_readv(fd, pieces, count);
    recvfrom = SYS_recvfrom(fd, to, len, flags, address, address_len);
    recvmmsg = SYS_recvmmsg(fd, messages, count, flags, timeout);
    write = SYS_write(fd, from, len);
    writev = SYS_writev(fd, pieces, count);
    sendto = SYS_sendto(fd, from, len, flags, address, address_len);
    sendmsg = SYS_sendmsg(fd, message, flags);
    sendmmsg = SYS_sendmmsg(fd, messages, count, flags);
    sendfile = SYS_sendfile(to, from, offset, count);
    sendfile64 = SYS_sendfile(to, from, offset, count);
    splice = SYS_splice(from, from_offset, to, to_offset, len, flags);
    epoll_create1 = SYS_epoll_create1(flags) => raise;
    epoll_ctl = SYS_epoll_ctl(set, op, fd, event);
    close_range = SYS_close_range(first, last, flags);
    dup = SYS_dup(fd) => raise;
    dup3 = SYS_dup3(old, new, flags);
    ioctl = SYS_ioctl(fd, request, argument);
    openat = SYS_openat(at, path, flags, mode) => raise;
    openat64 = SYS_openat(at, path, flags, mode) => raise;
    eventfd = SYS_eventfd2(count, flags) => raise;
    timerfd_create = SYS_timerfd_create(clock, flags) => raise;
    memfd_create = SYS_memfd_create(name, flags) => raise;
    inotify_init1 = SYS_inotify_init1(flags) => raise;
    execve = SYS_execve(path, list, environment);
    execveat = SYS_execveat(at, path, list, environment, flags);
    _exit = SYS_exit_group(status);
    _Exit = SYS_exit_group(status);
}

/// close(2).
#[unsafe(export_name = "mp_inner_close")]
pub(crate) unsafe extern "C" fn close(fd: usize) -> isize {
    forget_own(fd as c_int);
    // SAFETY: takes an integer; the library owns the descriptor.
    unsafe { c_call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) }
}

/// syscall(2), of any number.
#[unsafe(export_name = "mp_inner_syscall")]
#[expect(clippy::many_single_char_names, reason = "the arguments of a call have no names")]
pub(crate) unsafe extern "C" fn syscall(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the caller promises what the call of this number asks for.
    let result = unsafe { c_call(number as c_long, [a, b, c, d, e, f]) };
    if makes_descriptor(number as c_long, a as c_int) { raise(result) } else { result }
}

/// Whether a system call that crates make by its number returns a new descriptor.
fn makes_descriptor(number: c_long, command: c_int) -> bool {
    const BPF_MAP_CREATE: c_int = 0;
    const BPF_PROG_LOAD: c_int = 5;
    const BPF_OBJ_GET: c_int = 7;
    const BPF_BTF_LOAD: c_int = 18;
    const BPF_LINK_CREATE: c_int = 28;
    match number {
        libc::SYS_eventfd2
        | libc::SYS_epoll_create1
        | libc::SYS_memfd_create
        | libc::SYS_timerfd_create
        | libc::SYS_signalfd4
        | libc::SYS_inotify_init1
        | libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_socket
        | libc::SYS_accept4
        | libc::SYS_pidfd_open
        | libc::SYS_pidfd_getfd
        | libc::SYS_perf_event_open
        | libc::SYS_io_uring_setup => true,
        libc::SYS_bpf => matches!(
            command,
            BPF_MAP_CREATE | BPF_PROG_LOAD | BPF_OBJ_GET | BPF_BTF_LOAD | BPF_LINK_CREATE
        ),
        _ => false,
    }
}

/// Functions that are another one with more arguments.
macro_rules! by_other {
    ($($name:ident($($argument:ident),*) = $other:ident($($value:expr),*);)*) => {$(
        #[unsafe(export_name = concat!("mp_inner_", stringify!($name)))]
        pub(crate) unsafe extern "C" fn $name($($argument: usize),*) -> isize {
            // SAFETY: the caller promises what the function of this name asks for.
            unsafe { $other($($value),*) }
        }
    )*};
}

const EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;
const HERE: usize = libc::AT_FDCWD as usize;
const EPOLL_PWAIT: usize = libc::SYS_epoll_pwait as usize;
const EPOLL_PWAIT2: usize = libc::SYS_epoll_pwait2 as usize;
const CREATE: usize = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as usize;

by_other! {
    accept(fd, address, len) = accept4(fd, address, len, 0);
    recv(fd, to, len, flags) = recvfrom(fd, to, len, flags, 0, 0);
    send(fd, from, len, flags) = sendto(fd, from, len, flags, 0, 0);
    epoll_create(_size) = epoll_create1(0);
    open(path, flags, mode) = openat(HERE, path, flags, mode);
    open64(path, flags, mode) = openat(HERE, path, flags, mode);
    creat(path, mode) = openat(HERE, path, CREATE, mode);
    creat64(path, mode) = openat(HERE, path, CREATE, mode);
    fexecve(file, list, environment) =
        execveat(file, c"".as_ptr() as usize, list, environment, EMPTY_PATH);
    inotify_init() = inotify_init1(0);
    pipe(ends) = pipe2(ends, 0);
    fcntl64(fd, command, argument) = fcntl(fd, command, argument);
    closefrom(first) = close_range(first, u32::MAX as usize, 0);
    epoll_wait(set, events, count, timeout) = epoll_pwait(set, events, count, timeout, 0);
    epoll_pwait(set, events, count, timeout, mask) =
        syscall(EPOLL_PWAIT, set, events, count, timeout, mask, MASK_BYTES);
    epoll_pwait2(set, events, count, timeout, mask) =
        syscall(EPOLL_PWAIT2, set, events, count, timeout, mask, MASK_BYTES);
    __read_chk(fd, to, len, _room) = read(fd, to, len);
    __recv_chk(fd, to, len, _room, flags) = recv(fd, to, len, flags);
    __recvfrom_chk(fd, to, len, _room, flags, address, address_len) =
        recvfrom(fd, to, len, flags, address, address_len);
    __poll_chk(entries, count, timeout, _room) = poll(entries, count, timeout);
    __ppoll_chk(entries, count, timeout, mask, _room) = ppoll(entries, count, timeout, mask);
}

/// Bytes of a signal mask of the kernel.
const MASK_BYTES: usize = 8;

/// fcntl(2).
#[unsafe(export_name = "mp_inner_fcntl")]
pub(crate) unsafe extern "C" fn fcntl(fd: usize, command: usize, argument: usize) -> isize {
    // SAFETY: the caller promises what the command asks for.
    let result = unsafe { c_call(libc::SYS_fcntl, [fd, command, argument, 0, 0, 0]) };
    match command as c_int {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => raise(result),
        _ => result,
    }
}

/// dup2(2).
#[unsafe(export_name = "mp_inner_dup2")]
pub(crate) unsafe extern "C" fn dup2(old: usize, new: usize) -> isize {
    if old == new {
        // SAFETY: takes integers.
        let known = unsafe { fcntl(old, libc::F_GETFD as usize, 0) };
        return if known < 0 { -1 } else { new as isize };
    }
    // SAFETY: takes integers.
    unsafe { dup3(old, new, 0) }
}

/// signalfd(2).
#[unsafe(export_name = "mp_inner_signalfd")]
pub(crate) unsafe extern "C" fn signalfd(fd: usize, mask: usize, flags: usize) -> isize {
    // SAFETY: the caller promises a mask.
    unsafe { c_call(libc::SYS_signalfd4, [fd, mask, MASK_BYTES, flags, 0, 0]) }
}

/// pipe2(2).
#[unsafe(export_name = "mp_inner_pipe2")]
pub(crate) unsafe extern "C" fn pipe2(ends: usize, flags: usize) -> isize {
    // SAFETY: the caller promises room for two descriptors.
    let result = unsafe { c_call(libc::SYS_pipe2, [ends, flags, 0, 0, 0, 0]) };
    if result == 0 {
        // SAFETY: the kernel has filled both.
        unsafe { raise_all(ends as *mut c_int, 2) };
    }
    result
}

/// socketpair(2).
#[unsafe(export_name = "mp_inner_socketpair")]
pub(crate) unsafe extern "C" fn socketpair(
    domain: usize,
    kind: usize,
    protocol: usize,
    ends: usize,
) -> isize {
    // SAFETY: the caller promises room for two descriptors.
    let result = unsafe { c_call(libc::SYS_socketpair, [domain, kind, protocol, ends, 0, 0]) };
    if result == 0 {
        // SAFETY: the kernel has filled both.
        unsafe { raise_all(ends as *mut c_int, 2) };
    }
    result
}

/// # Safety
/// `at` points to `count` descriptors of the library.
unsafe fn raise_all(at: *mut c_int, count: usize) {
    for index in 0..count {
        let place = at.wrapping_add(index);
        // SAFETY: the caller promises the descriptors.
        let fd = unsafe { place.read_unaligned() };
        let raised = raise(fd as isize) as c_int;
        // SAFETY: as above.
        unsafe { place.write_unaligned(raised) };
    }
}

/// recvmsg(2). Descriptors that arrive are the library's.
#[unsafe(export_name = "mp_inner_recvmsg")]
pub(crate) unsafe extern "C" fn recvmsg(fd: usize, message: usize, flags: usize) -> isize {
    // SAFETY: the caller promises a message to fill.
    let result = unsafe { c_call(libc::SYS_recvmsg, [fd, message, flags, 0, 0, 0]) };
    if result < 0 {
        return result;
    }
    let header = message as *const libc::msghdr;
    // SAFETY: the kernel has filled the message.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or within the control data of the message.
    while let Some(head) = unsafe { part.as_ref() } {
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: computes a size.
            let size = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = head.cmsg_len.saturating_sub(size) / size_of::<c_int>();
            // SAFETY: the part has a header.
            let at = unsafe { libc::CMSG_DATA(part) };
            // SAFETY: the kernel has put that many descriptors there.
            unsafe { raise_all(at.cast(), count) };
        }
        // SAFETY: as above.
        part = unsafe { libc::CMSG_NXTHDR(header, part) };
    }
    result
}

/// poll(2).
#[unsafe(export_name = "mp_inner_poll")]
pub(crate) unsafe extern "C" fn poll(entries: usize, count: usize, timeout: usize) -> isize {
    let milliseconds = i64::from(timeout as c_int);
    let time =
        libc::timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    let time = if milliseconds < 0 { 0 } else { (&raw const time) as usize };
    // SAFETY: the caller promises the entries; the time is a local.
    unsafe { ppoll(entries, count, time, 0) }
}

/// ppoll(2).
#[unsafe(export_name = "mp_inner_ppoll")]
pub(crate) unsafe extern "C" fn ppoll(
    entries: usize,
    count: usize,
    timeout: usize,
    mask: usize,
) -> isize {
    // The kernel writes the time that remains; the C function does not.
    // SAFETY: the caller promises a time, or null.
    let mut time = unsafe { (timeout as *const libc::timespec).as_ref() }.copied();
    let time = time.as_mut().map_or(0, |time| &raw mut *time as usize);
    let arguments = [entries, count, time, mask, MASK_BYTES, 0];
    // SAFETY: the caller promises the entries and the mask; the time is a local.
    unsafe { c_call(libc::SYS_ppoll, arguments) }
}

/// select(2).
#[unsafe(export_name = "mp_inner_select")]
pub(crate) unsafe extern "C" fn select(
    count: usize,
    read: usize,
    write: usize,
    except: usize,
    timeout: usize,
) -> isize {
    // SAFETY: the caller promises a time, or null.
    let time = unsafe { (timeout as *const libc::timeval).as_ref() };
    let mut time = time.map(|it| libc::timespec { tv_sec: it.tv_sec, tv_nsec: it.tv_usec * 1000 });
    let time = time.as_mut().map_or(0, |time| &raw mut *time as usize);
    // SAFETY: the caller promises the sets; the time is a local.
    unsafe { c_call(libc::SYS_pselect6, [count, read, write, except, time, 0]) }
}

/// pselect(2).
#[unsafe(export_name = "mp_inner_pselect")]
pub(crate) unsafe extern "C" fn pselect(
    count: usize,
    read: usize,
    write: usize,
    except: usize,
    timeout: usize,
    mask: usize,
) -> isize {
    // SAFETY: the caller promises a time, or null.
    let mut time = unsafe { (timeout as *const libc::timespec).as_ref() }.copied();
    let time = time.as_mut().map_or(0, |time| &raw mut *time as usize);
    let masked = [mask, MASK_BYTES];
    let arguments = [count, read, write, except, time, (&raw const masked) as usize];
    // SAFETY: the caller promises the sets and the mask; the others are locals.
    unsafe { c_call(libc::SYS_pselect6, arguments) }
}

/// Functions of libc without a system call of their own: they fail before the constructor.
macro_rules! by_libc {
    ($($name:ident($($argument:ident),*) -> $result:ty;)*) => {$(
        #[unsafe(export_name = concat!("mp_inner_", stringify!($name)))]
        #[allow(non_snake_case, reason = "it is named as the function")]
        pub(crate) unsafe extern "C" fn $name($($argument: usize),*) -> isize {
            let name = concat!(stringify!($name), "\0").as_ptr().cast::<c_char>();
            // SAFETY: the name ends with a NUL.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
            if found.is_null() {
                set_errno(libc::ENOSYS);
                return -1;
            }
            type Function = unsafe extern "C" fn($(by_libc!(@ $argument)),*) -> $result;
            // SAFETY: dlsym(3) found the function by its name; words are passed as its arguments.
            let function: Function = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller promises what the function asks for.
            unsafe { function($($argument),*) as isize }
        }
    )*};
    (@ $argument:ident) => { usize };
}

by_libc! {
    fclose(stream) -> c_int;
    fdopen(fd, mode) -> isize;
    fileno(stream) -> c_int;
    fileno_unlocked(stream) -> c_int;
    getifaddrs(list) -> c_int;
    freeifaddrs(list) -> c_int;
    fork() -> c_int;
    _Fork() -> c_int;
    clone(work, stack, flags, argument, parent, tls, child) -> c_int;
    execv(path, list) -> c_int;
    execvp(path, list) -> c_int;
    execvpe(path, list, environment) -> c_int;
    system(line) -> c_int;
    popen(line, mode) -> isize;
    posix_spawn(process, path, actions, attributes, list, environment) -> c_int;
    posix_spawnp(process, path, actions, attributes, list, environment) -> c_int;
    sigaction(number, action, before) -> c_int;
    signal(number, handler) -> isize;
    bsd_signal(number, handler) -> isize;
    ssignal(number, handler) -> isize;
    sysv_signal(number, handler) -> isize;
    __sysv_signal(number, handler) -> isize;
    sockatmark(fd) -> c_int;
}
