//! Descriptors in messages of AF_UNIX sockets (SCM_RIGHTS).
//!
//! A socket of the stack cannot go to another process, where its placeholder would stand for
//! nothing. On the back end `service` the token of a connection goes in its place, and another
//! preloaded process adopts it (`received_tokens.rs`). To a program that is not preloaded it is a
//! socket from which nothing comes. A listener of both paths is also the kernel's, and goes as it
//! is.
//!
//! Invariant: the program's message is not changed; a copy of its control data has the tokens.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{mmsghdr, msghdr};
use megapipe_sockets::{Bsd, Error, Fd};

use crate::fork_sharing;
use crate::memory::{Access, check as check_memory};
use crate::numbers::{self, NumberEntry};
use crate::raw::{c_call, process};
use crate::received_tokens;
use crate::refusals::{self, CallRefusal};
use crate::report::{self, COUNTS};
use crate::stack;

/// Longest control data that is looked at: the kernel has no room for more.
const CONTROL_MAX: usize = 1 << 20;

/// A message with tokens in place of connections.
struct TokenMessage {
    header: msghdr,
    /// The control data, in words because the kernel asks for aligned headers.
    _control: Vec<usize>,
    /// Closed when the message has its own.
    _tokens: Vec<OwnedFd>,
}

/// sendmsg(2) on a socket of the kernel.
///
/// # Errors
/// EOPNOTSUPP: the message has a socket of the stack that cannot be passed, with one line on
/// standard error in a process; else as sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
#[inline]
pub(super) unsafe fn send(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    pass: impl FnOnce() -> isize,
) -> Result<isize, Error> {
    // SAFETY: the caller keeps the contract.
    match unsafe { with_tokens(message) }? {
        None => Ok(pass()),
        Some(replaced) => {
            let at = (&raw const replaced.header) as usize;
            // SAFETY: as sendmsg(2), of a copy of the program's header and control data.
            Ok(unsafe { c_call(libc::SYS_sendmsg, [fd as usize, at, flags as usize, 0, 0, 0]) })
        }
    }
}

/// sendmmsg(2) on a socket of the kernel. Messages with a connection are sent one by one.
///
/// # Errors
/// As [`send`].
///
/// # Safety
/// As sendmmsg(2).
pub(super) unsafe fn send_all(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    pass: impl FnOnce() -> c_int,
) -> Result<c_int, Error> {
    let count = count.min(libc::UIO_MAXIOV as c_uint);
    let at = |index: c_uint| messages.wrapping_add(index as usize);
    // SAFETY: the caller keeps the contract; a message begins with its header.
    if !(0..count).any(|index| unsafe { has_sockets(at(index).cast()) }) {
        return Ok(pass());
    }
    for index in 0..count {
        let one = at(index).cast::<msghdr>();
        let plain = || {
            let arguments = [fd as usize, one as usize, flags as usize, 0, 0, 0];
            // SAFETY: the caller keeps the contract.
            unsafe { c_call(libc::SYS_sendmsg, arguments) }
        };
        // SAFETY: the caller keeps the contract.
        match unsafe { send(fd, one, flags, plain) } {
            Ok(sent @ 0..) => {
                check_memory(at(index) as usize, size_of::<mmsghdr>(), Access::Write)?;
                // SAFETY: the caller promises a message, which exists.
                unsafe { (*at(index)).msg_len = sent as c_uint };
            }
            // What was sent before is not taken back.
            Ok(_) | Err(_) if index > 0 => return Ok(index.cast_signed()),
            Ok(_) => return Ok(-1),
            Err(error) => return Err(error),
        }
    }
    Ok(count.cast_signed())
}

/// The header of a message with control data. `None`: it has none, or what is wrong is the kernel's
/// to find.
///
/// # Safety
/// Where the header exists, it is not written meanwhile.
unsafe fn header_with_control<'a>(message: *const msghdr) -> Option<&'a msghdr> {
    stack::settings()?;
    check_memory(message as usize, size_of::<msghdr>(), Access::Read).ok()?;
    // SAFETY: the header is readable, as was checked.
    let header = unsafe { &*message };
    let has_control = !header.msg_control.is_null() && header.msg_controllen > 0;
    (has_control && header.msg_controllen <= CONTROL_MAX).then_some(header)
}

/// Whether a message has descriptors that are not the kernel's.
///
/// # Safety
/// Where the header exists, neither it nor its control data is written meanwhile.
unsafe fn has_sockets(message: *const msghdr) -> bool {
    // SAFETY: the caller keeps the contract.
    let Some(header) = (unsafe { header_with_control(message) }) else { return false };
    let mut has = false;
    // SAFETY: the same.
    unsafe { descriptors(header, |fd| has |= !numbers::is_kernel(fd)) };
    has
}

/// The message with tokens, if it passes connections of the stack.
///
/// # Errors
/// As [`send`].
///
/// # Safety
/// As [`has_sockets`].
#[inline]
unsafe fn with_tokens(message: *const msghdr) -> Result<Option<TokenMessage>, Error> {
    // SAFETY: the caller keeps the contract.
    match unsafe { header_with_control(message) } {
        None => Ok(None),
        // SAFETY: the same.
        Some(header) => unsafe { replaced(header) },
    }
}

#[cold]
unsafe fn replaced(header: &msghdr) -> Result<Option<TokenMessage>, Error> {
    let (mut passed, mut failed) = (Vec::<(c_int, OwnedFd)>::new(), Ok(()));
    let mut replace = |fd| {
        if failed.is_ok() && !passed.iter().any(|(known, _)| *known == fd) {
            match token_of(fd) {
                Ok(token) => passed.extend(token.map(|token| (fd, token))),
                Err(error) => failed = Err(error),
            }
        }
    };
    // SAFETY: the caller keeps the contract.
    unsafe { descriptors(header, &mut replace) };
    failed?;
    if passed.is_empty() {
        return Ok(None);
    }
    let len = header.msg_controllen;
    let mut control = vec![0_usize; len.div_ceil(size_of::<usize>())];
    // SAFETY: the control data is readable, as `descriptors` has checked, and there is room for it.
    unsafe {
        let to = control.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(header.msg_control.cast::<u8>(), to, len);
    }
    let mut copy = *header;
    copy.msg_control = control.as_mut_ptr().cast();
    let change = |at: *mut c_int| {
        // SAFETY: it is within the copy.
        let fd = unsafe { at.read_unaligned() };
        if let Some((_, token)) = passed.iter().find(|(known, _)| *known == fd) {
            // SAFETY: as above.
            unsafe { at.write_unaligned(token.as_raw_fd()) };
        }
    };
    // SAFETY: the copy is of this function alone.
    unsafe { each_descriptor(&copy, change) };
    let tokens = passed.into_iter().map(|(_, token)| token).collect();
    Ok(Some(TokenMessage { header: copy, _control: control, _tokens: tokens }))
}

/// What goes in place of a number. `None`: the number itself.
///
/// # Errors
/// EBADF for the library's own; EOPNOTSUPP.
fn token_of(fd: c_int) -> Result<Option<OwnedFd>, Error> {
    match numbers::entry(fd) {
        NumberEntry::Own => Err(Error::BadDescriptor),
        NumberEntry::Parent => Err(refuse("it is the parent's")),
        NumberEntry::Inherited(_) => match fork_sharing::resolved(fd)? {
            NumberEntry::Stack(inner) => token_of_stream(inner).map(Some),
            _ => Err(Error::BadDescriptor),
        },
        NumberEntry::Stack(inner) => token_of_stream(inner).map(Some),
        // A listener of both paths, or a socket without a path, is also the kernel's; a token is
        // what another process needs.
        _ => Ok(None),
    }
}

fn token_of_stream(inner: Fd) -> Result<OwnedFd, Error> {
    if !stack::is_shared() {
        return Err(refuse("on the back end service another process can have it"));
    }
    let shared = stack::with_stack(|sockets| {
        let token = sockets.share_stream(inner)?;
        sockets.resume_stream(inner);
        let mode = sockets.fcntl(inner, libc::F_GETFL, 0)? & libc::O_NONBLOCK;
        Ok((token, mode))
    });
    let (token, mode) = shared.map_err(|error| match error {
        Error::NotSupported => refuse("it is no connection or UDP socket with an address"),
        error => error,
    })?;
    received_tokens::set_mode(&token, mode)?;
    report::count(&COUNTS.connections_passed);
    Ok(token)
}

fn refuse(why: &str) -> Error {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    refusals::count(CallRefusal::PassedSocket);
    if !PRINTED.swap(true, Ordering::Relaxed) {
        report::complain(format_args!(
            "process {} passes a socket of the stack to another process (SCM_RIGHTS), which is \
             refused: {why}",
            process()
        ));
    }
    Error::NotSupported
}

/// Gives the descriptors in a message's control data to `take`.
///
/// # Safety
/// Where the control data exists, it is not written meanwhile.
pub(super) unsafe fn descriptors(header: &msghdr, mut take: impl FnMut(c_int)) {
    if check_memory(header.msg_control as usize, header.msg_controllen, Access::Read).is_err() {
        return;
    }
    // SAFETY: the places are readable.
    let take = |at: *mut c_int| take(unsafe { at.read_unaligned() });
    // SAFETY: the control data is readable, as was checked.
    unsafe { each_descriptor(header, take) };
}

/// Gives the places of the descriptors in a message's control data to `take`.
///
/// # Safety
/// The control data exists and is not written meanwhile but by `take`.
unsafe fn each_descriptor(header: &msghdr, mut take: impl FnMut(*mut c_int)) {
    let end = (header.msg_control as usize).saturating_add(header.msg_controllen);
    let header = &raw const *header;
    // SAFETY: the caller promises the control data.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or within the control data.
    while let Some(head) = unsafe { part.as_ref() } {
        // SAFETY: computes a size.
        let size = unsafe { libc::CMSG_LEN(0) } as usize;
        // A size beyond the control data is the kernel's to refuse.
        let room = end.saturating_sub(part as usize);
        let bytes = head.cmsg_len.min(room).saturating_sub(size);
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: the part has a header.
            let at = unsafe { libc::CMSG_DATA(part) }.cast::<c_int>();
            (0..bytes / size_of::<c_int>()).for_each(|index| take(at.wrapping_add(index)));
        }
        // SAFETY: as above.
        part = unsafe { libc::CMSG_NXTHDR(header, part) };
    }
}
