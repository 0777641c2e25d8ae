//! Calls that create, name, connect and accept sockets.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sockaddr, socklen_t};
use megapipe_marshal::{ArgumentError, check_room, read_address, write_address};
use megapipe_sockets::{Bsd, Error, Events, Fd, OpenFlags, PollFd, SharedContext, Shutdown};

use super::{
    CallTarget, answer, passed, passed_unchanged, retried_on_stack, status, target, without_record,
};
use crate::foreign_children;
use crate::link;
use crate::memory::{self, Access};
use crate::next::interpose;
use crate::numbers::{self, NumberEntry};
use crate::raw::system_call;
use crate::records::{RECORDS, SocketRecord, release, reserve};
use crate::refusals::{self, CallRefusal};
use crate::report::{self, COUNTS};
use crate::rules::{PathCall, PathReason, SocketPath};
use crate::settings::KernelUse;
use crate::stack::{self, WithoutWaiting};

/// As IP_FREEBIND.
const IPV6_FREEBIND: c_int = 78;
/// MPTCP, which becomes TCP.
const IPPROTO_MPTCP: c_int = 262;

interpose! {
    /// socket(2). TCP and UDP sockets are recorded; the others are the kernel's.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int |pass| {
        let fd = pass();
        if fd >= 0 && stack::settings().is_some() {
            super::descriptors::reap(fd);
            if is_stacks(domain, kind, protocol) && !foreign_children::is_foreign() {
                let protocol = if protocol == IPPROTO_MPTCP { 0 } else { protocol };
                let added = stack::enter(|| {
                    RECORDS.lock().add(fd, domain, kind, protocol);
                    Ok(())
                });
                // From a signal handler that interrupted the library: it is the kernel's.
                let _ = added;
            }
        }
        fd
    }

    /// bind(2).
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            return pass();
        }
        // SAFETY: the program promises an address of that size, or null.
        let to = unsafe { address_of(address, len) };
        answer(retried_on_stack(|| match target_without_start(fd)? {
            CallTarget::Stack(inner) => {
                let to = to?.ok_or(Error::FamilyNotSupported)?;
                stack::with_stack(|sockets| sockets.bind(inner, to)).map(|()| Some(0))
            }
            CallTarget::Kernel => match to {
                Ok(Some(to)) => stack::enter(|| bind_recorded(fd, to, &pass)),
                _ => Ok(Some(pass())),
            },
        }))
    }

    /// listen(2).
    fn listen(fd: c_int, backlog: c_int) -> c_int |pass| {
        answer(retried_on_stack(|| match target_without_start(fd)? {
            CallTarget::Kernel if numbers::is_kernel(fd) => Ok(Some(pass())),
            CallTarget::Kernel => stack::enter(|| listen_recorded(fd, backlog, &pass)),
            CallTarget::Stack(inner) => {
                stack::with_stack(|sockets| sockets.listen(inner, backlog)).map(|()| Some(0))
            }
        }))
    }

    /// accept(2).
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            let accepted = pass();
            super::descriptors::reap(accepted);
            return accepted;
        }
        // SAFETY: the program promises what accept(2) asks for.
        unsafe { accept4(fd, address, len, 0) }
    }

    /// accept4(2).
    fn accept4(
        fd: c_int,
        address: *mut sockaddr,
        len: *mut socklen_t,
        flags: c_int,
    ) -> c_int |pass| {
        let accept = || match listener(fd)? {
            ListenerPaths::Kernel => {
                let accepted = pass();
                super::descriptors::reap(accepted);
                Ok(accepted)
            }
            ListenerPaths::Stack(inner) => {
                let flags = OpenFlags::from_bits(flags).ok_or(Error::InvalidArgument)?;
                let accepted = accept_from_stack(inner, flags, true)?;
                // SAFETY: the program promises a buffer for an address with its size, or null.
                unsafe { with_peer_name(accepted, address, len) }
            }
            ListenerPaths::Both(inner) => {
                let stacks = OpenFlags::from_bits(flags).ok_or(Error::InvalidArgument)?;
                accept_from_both((fd, inner), |is_stacks| match is_stacks {
                    true => {
                        let accepted = accept_from_stack(inner, stacks, false)?;
                        // SAFETY: as above.
                        unsafe { with_peer_name(accepted, address, len) }
                    }
                    false => match pass() {
                        -1 => Err(Error::from_raw_os_error(crate::raw::errno())),
                        accepted => {
                            super::descriptors::reap(accepted);
                            note_accepted(None, SocketPath::Kernel);
                            Ok(accepted)
                        }
                    },
                })
            }
        };
        if numbers::is_kernel(fd) {
            let accepted = pass();
            super::descriptors::reap(accepted);
            return accepted;
        }
        answer(accept())
    }

    /// connect(2).
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            return pass();
        }
        // SAFETY: the program promises an address of that size, or null.
        let to = unsafe { address_of(address, len) };
        answer(retried_on_stack(|| {
            if let (NumberEntry::Recorded(_), Ok(None)) = (numbers::entry(fd), to) {
                return stack::enter(|| stop_listening(fd, None, &pass));
            }
            if let (CallTarget::Kernel, Ok(Some(to))) = (target(fd)?, to) {
                stack::enter(|| connect_recorded(fd, to))?;
            }
            match target(fd)? {
                CallTarget::Kernel => Ok(Some(pass())),
                CallTarget::Stack(inner) => {
                    let to = to?;
                    stack::with_stack(|sockets| sockets.connect(inner, to)).map(|()| Some(0))
                }
            }
        }))
    }

    /// shutdown(2).
    fn shutdown(fd: c_int, how: c_int) -> c_int |pass| {
        let Some(how) = Shutdown::from_raw(how) else { return pass() };
        answer(retried_on_stack(|| match target_without_start(fd)? {
            CallTarget::Kernel if numbers::is_kernel(fd) => Ok(Some(pass())),
            CallTarget::Kernel => stack::enter(|| stop_listening(fd, Some(how), &pass)),
            CallTarget::Stack(inner) => {
                stack::with_stack(|sockets| sockets.shutdown(inner, how)).map(|()| Some(0))
            }
        }))
    }

    /// getsockname(2).
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int |pass| {
        if let Some(name) = recorded_name(fd) {
            // SAFETY: the program promises a buffer for an address with its size.
            return status(unsafe { write_name(address, len, Some(name)) });
        }
        let name = |inner| stack::with_stack(|sockets| sockets.getsockname(inner));
        // SAFETY: the program promises a buffer for an address with its size.
        unsafe { name_of(fd, address, len, pass, name) }
    }

    /// getpeername(2).
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int |pass| {
        let name = |inner| stack::with_stack(|sockets| sockets.getpeername(inner));
        // SAFETY: the program promises a buffer for an address with its size.
        unsafe { name_of(fd, address, len, pass, name) }
    }
}

/// As [`target`], for calls that are recorded: they start no stack, because the process that makes
/// a listener is often not the one that serves it.
fn target_without_start(fd: c_int) -> Result<CallTarget, Error> {
    match numbers::entry(fd) {
        NumberEntry::Recorded(_) => Ok(CallTarget::Kernel),
        _ => target(fd),
    }
}

/// shutdown(2) of a recorded socket; `how` is `None` for connect(2) to nowhere. A listener is a
/// socket that is bound afterwards, on both its paths; it may listen again.
fn stop_listening(
    fd: c_int,
    how: Option<Shutdown>,
    pass: &dyn Fn() -> c_int,
) -> Result<Option<c_int>, Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return without_record(fd, pass) };
    if record.backlog.is_none() {
        return passed(pass).map(Some);
    }
    if how == Some(Shutdown::Write) {
        // Of a listener that direction alone is nothing but an event.
        if let (Some(inner), Some(mut context)) = (record.inner, stack::context()) {
            context.shutdown(inner, Shutdown::Write)?;
        }
        return Ok(Some(0));
    }
    let is_kept = record.is_kept();
    match (record.inner, stack::context()) {
        (Some(inner), Some(mut context)) => {
            // From now on the stack's part alone reports it to its sets.
            record.leave_kernels_sets();
            record.has_left_sets = true;
            match how {
                Some(how) => context.shutdown(inner, how)?,
                None => context.connect(inner, None)?,
            }
        }
        _ => record.backlog = None,
    }
    if is_kept { passed(pass).map(Some) } else { Ok(Some(0)) }
}

/// Whether the stack has the protocol.
fn is_stacks(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_internet = domain == libc::AF_INET || domain == libc::AF_INET6;
    is_internet
        && matches!(
            (kind, protocol),
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP | IPPROTO_MPTCP)
                | (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP)
        )
}

/// Writes a name of a socket: of the stack's what `name` returns, else what `pass` does.
///
/// # Safety
/// As [`write_address`].
unsafe fn name_of(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    pass: impl Fn() -> c_int,
    name: impl Fn(Fd) -> Result<SocketAddr, Error>,
) -> c_int {
    // SAFETY: the caller keeps the contract.
    let write = |name| unsafe { write_name(address, len, Some(name)) };
    answer(retried_on_stack(|| match target(fd)? {
        CallTarget::Kernel => Ok(passed_unchanged(fd, &pass)),
        CallTarget::Stack(inner) => name(inner).and_then(write).map(|()| Some(0)),
    }))
}

/// # Safety
/// As [`write_address`].
unsafe fn write_name(
    address: *mut sockaddr,
    len: *mut socklen_t,
    name: Option<SocketAddr>,
) -> Result<(), Error> {
    memory::check(len as usize, size_of::<socklen_t>(), Access::Write)?;
    // SAFETY: the caller keeps the contract.
    unsafe { check_room(len) }?;
    // SAFETY: the size is there.
    let room = (unsafe { len.read() } as usize).min(size_of::<libc::sockaddr_storage>());
    memory::check(address as usize, room, Access::Write)?;
    if address.is_null() {
        return Err(Error::Fault);
    }
    // SAFETY: the caller keeps the contract.
    unsafe { write_address(address, len, name) };
    Ok(())
}

/// # Safety
/// As [`read_address`], except that the memory may not exist.
unsafe fn address_of(
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, ArgumentError> {
    memory::check(address as usize, len as usize, Access::Read)?;
    // SAFETY: the caller keeps the contract.
    unsafe { read_address(address, len) }
}

/// Returns the number of an accepted connection, and writes its peer's address unless `address` is
/// null. As in Linux the connection is lost where this fails.
///
/// # Errors
/// EFAULT, EINVAL.
///
/// # Safety
/// As [`write_address`].
unsafe fn with_peer_name(
    (accepted, peer): (c_int, Option<SocketAddr>),
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<c_int, Error> {
    if address.is_null() {
        return Ok(accepted);
    }
    // SAFETY: the caller keeps the contract.
    if let Err(error) = unsafe { write_name(address, len, peer) } {
        // SAFETY: takes an integer; the program does not know the number.
        unsafe { super::descriptors::close(accepted) };
        return Err(error);
    }
    Ok(accepted)
}

/// Selects the path of a socket, and notes it.
///
/// # Errors
/// ENETUNREACH for a TCP socket that would be the kernel's without a rule, with `--require stack`.
pub(super) fn select(
    record: &SocketRecord,
    call: PathCall,
    address: SocketAddr,
) -> Result<SocketPath, Error> {
    let call = if record.kind == libc::SOCK_STREAM { call } else { PathCall::Udp };
    let Some(settings) = stack::settings() else { return Ok(SocketPath::Kernel) };
    let (path, why) = settings.selector.select(call, address);
    let (path, why) = match path {
        // A socket of IPv6 alone, and a stack without such an address.
        SocketPath::Both if !has_family(record, address) => {
            (SocketPath::Kernel, PathReason::Reach("the stack has no address of its family"))
        }
        SocketPath::Stack | SocketPath::Both if stack::has_fallen_back() => {
            (SocketPath::Kernel, PathReason::Reach("--fall-back: the stack cannot start"))
        }
        path => (path, why),
    };
    if path == SocketPath::Kernel
        && call != PathCall::Udp
        && settings.kernel_use == KernelUse::RulesOnly
        && let PathReason::Reach(why) = why
    {
        return Err(refuse_kernel(call, address, why));
    }
    report::count(match path {
        SocketPath::Stack => &COUNTS.stack,
        SocketPath::Kernel => &COUNTS.kernel,
        SocketPath::Both => &COUNTS.both,
    });
    report::note(format_args!("{call} {address}: {path} ({why})"));
    Ok(path)
}

/// The error of a TCP socket that the kernel would serve, with one line on standard error.
#[cold]
fn refuse_kernel(call: PathCall, address: SocketAddr, why: &str) -> Error {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    refusals::count(CallRefusal::KernelPath);
    if !PRINTED.swap(true, Ordering::Relaxed) {
        report::complain(format_args!(
            "{call} {address} would go to the kernel ({why}); --require stack refuses that without \
             a rule that names it"
        ));
    }
    Error::from_raw_os_error(libc::ENETUNREACH)
}

fn has_family(record: &SocketRecord, address: SocketAddr) -> bool {
    let Some(settings) = stack::settings() else { return false };
    let selector = &settings.selector;
    // Loopback has an address of both families.
    let has = |is_ipv4| {
        selector.has_loopback || selector.addresses.iter().any(|(it, _)| it.is_ipv4() == is_ipv4)
    };
    match address.is_ipv4() {
        true => has(true),
        false => has(false) || (has(true) && !record.is_v6_only()),
    }
}

/// The name of a socket that waits for its stack to start, if the program has selected its port.
fn recorded_name(fd: c_int) -> Option<SocketAddr> {
    let NumberEntry::Recorded(_) = numbers::entry(fd) else { return None };
    let name = stack::enter(|| {
        let mut records = RECORDS.lock();
        let record = records.of(fd).filter(|record| record.path == Some(SocketPath::Stack));
        Ok(record.and_then(|record| record.bound))
    });
    name.ok().flatten().filter(|name| name.port() != 0)
}

/// bind(2) of a recorded socket: the path of a TCP listener is decided here.
fn bind_recorded(
    fd: c_int,
    to: SocketAddr,
    pass: &dyn Fn() -> c_int,
) -> Result<Option<c_int>, Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return without_record(fd, pass) };
    check_family(record.domain, to)?;
    let path = select(record, PathCall::Listen, to)?;
    // The kernel has loopback addresses of its own, and their ports.
    let is_loopback = to.ip().to_canonical().is_loopback();
    let may_listen = record.kind == libc::SOCK_STREAM && stack::has_own_ports() && !is_loopback;
    let mut is_reserved = false;
    if path != SocketPath::Stack {
        let bound = passed(pass)?;
        if path == SocketPath::Kernel {
            records.give_to_kernel(fd);
            return Ok(Some(bound));
        }
    } else if record.bound.is_some() {
        return Err(Error::InvalidArgument);
    } else if may_listen {
        is_reserved = reserve_address(fd, record.domain, pass)?;
    }
    if let Some(record) = records.of(fd) {
        record.is_reserved = is_reserved;
        record.has_kernels_port = is_reserved && to.port() == 0;
        record.bound = Some(match path {
            SocketPath::Stack if !is_reserved => to,
            _ => kernel_name(fd).unwrap_or(to),
        });
    }
    records.decide(fd, path);
    prepare_link();
    let is_running = stack::context().is_some();
    if path == SocketPath::Stack && is_running && !may_listen {
        // Its address is checked now.
        records.activate(fd).inspect_err(|_| {
            if let Some(record) = records.of(fd) {
                (record.bound, record.path) = (None, None);
            }
        })?;
    }
    Ok(Some(0))
}

/// As Linux (`inet6_bind`, `inet_bind`): an address of IPv4 is no address of an IPv6 socket.
///
/// # Errors
/// EINVAL, EAFNOSUPPORT.
fn check_family(domain: c_int, to: SocketAddr) -> Result<(), Error> {
    match (domain, to) {
        (libc::AF_INET6, SocketAddr::V4(_)) => Err(Error::InvalidArgument),
        (libc::AF_INET, SocketAddr::V6(_)) => Err(Error::FamilyNotSupported),
        _ => Ok(()),
    }
}

/// Binds the kernel's socket to an address of the stack, which the kernel does not have: no frame
/// reaches it there, and another program that binds to the address gets EADDRINUSE. Returns
/// whether it is bound.
///
/// # Errors
/// EADDRINUSE. What else the kernel refuses, such as a privileged port, the stack decides.
fn reserve_address(fd: c_int, domain: c_int, pass: &dyn Fn() -> c_int) -> Result<bool, Error> {
    let (level, name) = match domain {
        libc::AF_INET6 => (libc::IPPROTO_IPV6, IPV6_FREEBIND),
        _ => (libc::IPPROTO_IP, libc::IP_FREEBIND),
    };
    let on: c_int = 1;
    let (at, size) = ((&raw const on) as usize, size_of_val(&on));
    let arguments = [fd as usize, level as usize, name as usize, at, size, 0];
    // SAFETY: the value is a local.
    unsafe { system_call(libc::SYS_setsockopt, arguments) };
    match passed(pass) {
        Ok(_) => Ok(true),
        Err(Error::AddressInUse) => Err(Error::AddressInUse),
        Err(_) => Ok(false),
    }
}

/// The address of a kernel socket, whose port the kernel may have chosen.
pub(super) fn kernel_name(fd: c_int) -> Option<SocketAddr> {
    let mut room = [0_u64; 16];
    let mut len = size_of_val(&room) as socklen_t;
    let (at, size) = (room.as_mut_ptr() as usize, (&raw mut len) as usize);
    // SAFETY: both are locals.
    unsafe { system_call(libc::SYS_getsockname, [fd as usize, at, size, 0, 0, 0]) };
    // SAFETY: the kernel has filled the local up to `len` bytes, which its size bounds.
    unsafe { read_address(room.as_ptr().cast(), len.min(size_of_val(&room) as socklen_t)) }
        .ok()
        .flatten()
}

/// listen(2) of a recorded socket.
fn listen_recorded(
    fd: c_int,
    backlog: c_int,
    pass: &dyn Fn() -> c_int,
) -> Result<Option<c_int>, Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return without_record(fd, pass) };
    if record.kind != libc::SOCK_STREAM {
        return passed(pass).map(Some);
    }
    let path = match record.path {
        Some(path) => path,
        None => {
            let any: std::net::IpAddr = match record.domain {
                libc::AF_INET => std::net::Ipv4Addr::UNSPECIFIED.into(),
                _ => std::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            let any = SocketAddr::new(any, 0);
            let path = select(record, PathCall::Listen, any)?;
            records.decide(fd, path);
            path
        }
    };
    let is_reserved = records.of(fd).is_some_and(|record| record.is_reserved);
    if path != SocketPath::Stack || is_reserved {
        let listening = passed(pass)?;
        if path == SocketPath::Kernel {
            records.give_to_kernel(fd);
            return Ok(Some(listening));
        }
    }
    if let Some(record) = records.of(fd)
        && let (Some(inner), Some(mut context)) = (record.inner, stack::context())
    {
        context.listen(inner, backlog)?;
        record.backlog = Some(backlog);
        // It may have been shut down before.
        if std::mem::take(&mut record.has_left_sets) {
            record.join_kernels_sets();
        }
        return Ok(Some(0));
    }
    if let Some(record) = records.of(fd) {
        if path == SocketPath::Both && record.bound.is_none_or(|bound| bound.port() == 0) {
            record.bound = kernel_name(fd);
        }
        record.backlog = Some(backlog);
    }
    prepare_link();
    if stack::context().is_some() {
        match records.activate(fd) {
            Err(_) if stack::falls_back() => records.fall_back_one(fd),
            activated => activated?,
        }
    }
    Ok(Some(0))
}

/// A listener needs the stack: the link is opened while the program has the rights.
fn prepare_link() {
    if stack::context().is_none()
        && let Some(settings) = stack::settings()
    {
        link::prepare(settings);
    }
}

/// connect(2) of a recorded socket: its path is decided here.
fn connect_recorded(fd: c_int, to: SocketAddr) -> Result<(), Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return Ok(()) };
    match select(record, PathCall::Connect, to)? {
        SocketPath::Kernel | SocketPath::Both => records.give_to_kernel(fd),
        SocketPath::Stack => {
            records.decide(fd, SocketPath::Stack);
            records.activate_all()?;
            records.activate(fd)?;
        }
    }
    Ok(())
}

/// Decides the path of a UDP socket by the address of its first message.
pub(super) fn decide_by_destination(fd: c_int, to: Option<SocketAddr>) -> Result<(), Error> {
    let Some(to) = to else { return Ok(()) };
    stack::enter(|| {
        let mut records = RECORDS.lock();
        let Some(record) = records.of(fd) else { return Ok(()) };
        if record.path.is_some() || record.kind != libc::SOCK_DGRAM {
            return Ok(());
        }
        drop(records);
        connect_recorded(fd, to)
    })
}

/// Where a listener's connections come from.
enum ListenerPaths {
    Kernel,
    Stack(Fd),
    Both(Fd),
}

fn listener(fd: c_int) -> Result<ListenerPaths, Error> {
    if let CallTarget::Stack(inner) = target(fd)? {
        return Ok(ListenerPaths::Stack(inner));
    }
    stack::enter(|| {
        let mut records = RECORDS.lock();
        let is_started = match records.of(fd) {
            Some(record) if record.is_kept() && record.backlog.is_some() => record.inner.is_some(),
            _ => return Ok(ListenerPaths::Kernel),
        };
        if !is_started {
            records.use_here(fd);
            records.activate_all()?;
        }
        Ok(match records.of(fd).map(|record| (record.inner, record.path)) {
            Some((Some(inner), Some(SocketPath::Stack))) => ListenerPaths::Stack(inner),
            Some((Some(inner), _)) => ListenerPaths::Both(inner),
            Some((None, Some(SocketPath::Stack))) if stack::is_down() => {
                return Err(Error::NetworkDown);
            }
            _ => ListenerPaths::Kernel,
        })
    })
}

/// Notes a connection and its path, if there is a report.
fn note_accepted(peer: Option<SocketAddr>, path: SocketPath) {
    if !report::is_on() {
        return;
    }
    report::count(match path {
        SocketPath::Kernel => &COUNTS.accepted_in_kernel,
        SocketPath::Stack | SocketPath::Both => &COUNTS.accepted,
    });
    match peer {
        Some(peer) => report::note(format_args!("accept from {peer}: {path} (its listener)")),
        None => report::note(format_args!("accept: {path} (its listener)")),
    }
}

/// Accepts a connection of the stack. Like the kernel it takes the number first, so that a process
/// without a free number leaves the connection in the queue.
fn accept_from_stack(
    inner: Fd,
    flags: OpenFlags,
    waits: bool,
) -> Result<(c_int, Option<SocketAddr>), Error> {
    let context = stack::context().ok_or(Error::NetworkDown)?;
    let number = stack::enter(|| reserve(0, flags.contains(OpenFlags::CLOEXEC)))?;
    let accepted = stack::with_stack(|sockets| {
        let accepted = match waits {
            true => sockets.accept4(inner, flags)?,
            false => WithoutWaiting(context).accept4(inner, flags)?,
        };
        Ok((accepted, sockets.accepted_peer(accepted).ok()))
    });
    match accepted {
        Ok((accepted, peer)) => {
            super::descriptors::reap(number);
            numbers::set(number, NumberEntry::Stack(accepted));
            note_accepted(peer, SocketPath::Stack);
            Ok((number, peer))
        }
        Err(error) => {
            release(number);
            Err(error)
        }
    }
}

/// Accepts from the stack or the kernel, which take turns.
fn accept_from_both(
    (fd, inner): (c_int, Fd),
    mut accept: impl FnMut(bool) -> Result<c_int, Error>,
) -> Result<c_int, Error> {
    loop {
        let is_kernels_turn = stack::enter(|| {
            let mut records = RECORDS.lock();
            let record = records.of(fd).ok_or(Error::BadDescriptor)?;
            record.is_kernels_turn = !record.is_kernels_turn;
            Ok(record.is_kernels_turn)
        })?;
        for is_stacks in [!is_kernels_turn, is_kernels_turn] {
            if !is_stacks && !has_connection(fd) {
                continue;
            }
            match accept(is_stacks) {
                Err(Error::WouldBlock) => {}
                done => return done,
            }
        }
        stack::with_stack(|sockets| {
            if sockets.fcntl(inner, libc::F_GETFL, 0)? & libc::O_NONBLOCK != 0 {
                return Err(Error::WouldBlock);
            }
            wait_for_either(sockets, fd, inner)
        })?;
    }
}

fn wait_for_either(
    sockets: &mut &'static SharedContext,
    fd: c_int,
    inner: Fd,
) -> Result<(), Error> {
    // SAFETY: the number is the program's listener, which it keeps open while it accepts from it.
    let kernels = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let mut either = [PollFd::new(inner, Events::IN), PollFd::new(kernels, Events::IN)];
    sockets.poll(&mut either, None).map(drop)
}

/// Whether a kernel's listener has a connection, so that accepting it does not wait.
fn has_connection(fd: c_int) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let arguments = [(&raw mut entry) as usize, 1, (&raw const now) as usize, 0, 8, 0];
    // SAFETY: both are locals.
    unsafe { system_call(libc::SYS_ppoll, arguments) == 1 }
}
