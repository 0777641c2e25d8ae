//! Options and modes of sockets.
//!
//! `fcntl` and `ioctl` take an argument of any type. On the supported machines a word-sized
//! argument after `...` is passed as an ordinary one, so here it is a word.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;
use megapipe_marshal::{IntArgument, check_room};
use megapipe_sockets::{Bsd, Error, SIOCATMARK};

use super::descriptors::duplicated;
use super::{
    CallTarget, answer, is_stacks, passed, passed_unchanged, retried_on_stack, target,
    without_record,
};
use crate::memory::{self, Access, memory, memory_mut};
use crate::next::interpose;
use crate::numbers;
use crate::records::{RECORDS, SocketOption, SocketRecord};
use crate::refusals::{self, CallRefusal};
use crate::rules::SocketPath;
use crate::stack;

interpose! {
    /// getsockopt(2).
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        size: *mut socklen_t,
    ) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            return pass();
        }
        answer(retried_on_stack(|| {
            let recorded = recorded_option(fd, level, name)?;
            if recorded == RecordedOption::OfKernel {
                return Ok(passed_unchanged(fd, &pass));
            }
            memory::check(size as usize, size_of::<socklen_t>(), Access::Write)?;
            // SAFETY: the program promises a size, or null.
            unsafe { check_room(size) }?;
            // SAFETY: the same.
            let room = unsafe { size.read() } as usize;
            // SAFETY: it promises that many writable bytes.
            let room = unsafe { memory_mut(value, room, "optval") }?;
            if let RecordedOption::Known(known) = recorded {
                let bytes = known.to_ne_bytes();
                let filled = room.len().min(bytes.len());
                room[..filled].copy_from_slice(&bytes[..filled]);
                // SAFETY: it promises a writable size.
                unsafe { size.write(filled as socklen_t) };
                return Ok(Some(0));
            }
            let CallTarget::Stack(inner) = target(fd)? else { return Ok(Some(pass())) };
            let filled = stack::with_stack(|sockets| sockets.getsockopt(inner, level, name, room))?;
            // SAFETY: it promises a writable size.
            unsafe { size.write(filled as socklen_t) };
            Ok(Some(0))
        }))
    }

    /// setsockopt(2). Before the path of a socket is decided, options are recorded, too.
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        size: socklen_t,
    ) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            return pass();
        }
        answer(retried_on_stack(|| {
            let len = usize::try_from(size.cast_signed()).map_err(|_| Error::InvalidArgument)?;
            // SAFETY: the program promises that many readable bytes.
            let bytes = unsafe { memory(value, len, "optval") };
            // An option does not start the stack: only the table is looked at.
            if let numbers::NumberEntry::Stack(inner) = numbers::entry(fd) {
                let bytes = bytes?;
                let set = stack::with_stack(|it| it.setsockopt(inner, level, name, bytes));
                let refusal = CallRefusal::Option(level, name);
                return set.map(|()| Some(0)).inspect_err(|error| note(refusal, error));
            }
            // The kernel checks the memory first, and reports what is wrong with it.
            let value = bytes.map(<[u8]>::to_vec).unwrap_or_default();
            let option = SocketOption { level, name, value };
            stack::enter(|| set_recorded_option(fd, option, &pass))
        }))
    }

    /// ioctl(2).
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int |pass| {
        if numbers::is_kernel(fd) || matches!(request, libc::FIOCLEX | libc::FIONCLEX) {
            return pass();
        }
        answer(retried_on_stack(|| {
            if let numbers::NumberEntry::Recorded(_) = numbers::entry(fd) {
                if request != libc::FIONBIO {
                    return Ok(passed_unchanged(fd, &pass));
                }
                // SAFETY: the kernel has read an int there.
                let mode = || unsafe { argument.cast::<c_int>().read() } != 0;
                return stack::enter(|| set_recorded_mode(fd, mode, &pass));
            }
            let CallTarget::Stack(inner) = target(fd)? else { return Ok(Some(pass())) };
            let int = IntArgument::of(request);
            if int != IntArgument::Ignored {
                memory::check(argument as usize, size_of::<c_int>(), Access::Write)?;
            }
            let place = argument.cast::<c_int>();
            // SAFETY: for these requests the program promises a pointer to an int.
            let given = if int == IntArgument::Read { unsafe { place.read() } } else { 0 };
            let value = stack::with_stack(|sockets| sockets.ioctl(inner, request, given));
            let value = value.inspect_err(|error| note(CallRefusal::Ioctl(request), error))?;
            if int == IntArgument::Written {
                // SAFETY: the same.
                unsafe { place.write(value) };
            }
            Ok(Some(0))
        }))
    }

    /// sockatmark(3), which libc makes of its own ioctl(2).
    fn sockatmark(fd: c_int) -> c_int |pass| {
        if numbers::is_kernel(fd) {
            return pass();
        }
        let mut is_at_mark: c_int = 0;
        // SAFETY: the request fills a local.
        match unsafe { ioctl(fd, SIOCATMARK, (&raw mut is_at_mark).cast()) } {
            0 => is_at_mark,
            failed => failed,
        }
    }

    /// fcntl(2).
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int |pass| {
        control((fd, command, argument), pass)
    }

    /// fcntl(2), with locks of 64 bits in any case.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int |pass| {
        control((fd, command, argument), pass)
    }
}

/// Counts a refusal, if the stack lacks the option, and not the program's value is wrong.
#[cold]
fn note(refusal: CallRefusal, error: &Error) {
    let is_ours = matches!(
        error.raw_os_error(),
        libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL
    );
    if is_ours {
        refusals::count(refusal);
    }
}

fn control((fd, command, argument): (c_int, c_int, usize), pass: impl Fn() -> c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicated(fd, pass);
    }
    let is_of_number = matches!(command, libc::F_GETFD | libc::F_SETFD);
    answer(retried_on_stack(|| match numbers::entry(fd) {
        numbers::NumberEntry::Stack(inner) if !is_of_number => {
            // The argument is an int; the upper half of the register is undefined.
            let argument = argument as c_int;
            let result = stack::with_stack(|sockets| sockets.fcntl(inner, command, argument));
            result.map(Some).inspect_err(|error| note(CallRefusal::Fcntl(command), error))
        }
        numbers::NumberEntry::Recorded(_) if command == libc::F_SETFL => {
            let mode = || argument as c_int & libc::O_NONBLOCK != 0;
            stack::enter(|| set_recorded_mode(fd, mode, &pass))
        }
        numbers::NumberEntry::Recorded(_) if !is_of_number => Ok(passed_unchanged(fd, &pass)),
        numbers::NumberEntry::Own => Err(Error::BadDescriptor),
        _ => Ok(Some(pass())),
    }))
}

/// Sets an option of the kernel's socket, and records it.
fn set_recorded_option(
    fd: c_int,
    option: SocketOption,
    pass: &dyn Fn() -> c_int,
) -> Result<Option<c_int>, Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return without_record(fd, pass) };
    let set = passed(pass)?;
    if let (Some(inner), Some(mut context)) = (record.inner, stack::context()) {
        context.setsockopt(inner, option.level, option.name, &option.value)?;
    }
    record.options.retain(|it| (it.level, it.name) != (option.level, option.name));
    record.options.push(option);
    Ok(Some(set))
}

/// Where the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordedOption {
    /// At the kernel's socket, which has all options that were set.
    OfKernel,
    /// It follows from the record.
    Known(c_int),
    /// At the stack.
    OfStack,
}

/// An option of a socket that waits for its stack to start does not start it: a program that lets
/// its children serve looks at its listeners before it has any.
fn recorded_option(fd: c_int, level: c_int, name: c_int) -> Result<RecordedOption, Error> {
    let numbers::NumberEntry::Recorded(_) = numbers::entry(fd) else {
        return Ok(RecordedOption::OfStack);
    };
    stack::enter(|| {
        let mut records = RECORDS.lock();
        let record = records.of(fd).filter(|record| record.path == Some(SocketPath::Stack));
        Ok(match (record, level, name) {
            (Some(record), libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                RecordedOption::Known(is_listening(record)?.into())
            }
            (Some(_), libc::IPPROTO_TCP, libc::TCP_INFO) => RecordedOption::OfStack,
            (None, ..) if is_stacks(fd) => RecordedOption::OfStack,
            _ => RecordedOption::OfKernel,
        })
    })
}

/// Whether a recorded socket listens. The stack's part knows whether it was shut down.
fn is_listening(record: &SocketRecord) -> Result<bool, Error> {
    let (Some(inner), Some(mut context)) = (record.inner, stack::context()) else {
        return Ok(record.backlog.is_some());
    };
    let mut value = 0_i32.to_ne_bytes();
    context.getsockopt(inner, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, &mut value)?;
    Ok(i32::from_ne_bytes(value) != 0)
}

/// Sets the mode of the kernel's socket, and records it.
fn set_recorded_mode(
    fd: c_int,
    is_nonblocking: impl Fn() -> bool,
    pass: &dyn Fn() -> c_int,
) -> Result<Option<c_int>, Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return without_record(fd, pass) };
    let set = passed(pass)?;
    let is_nonblocking = is_nonblocking();
    record.is_nonblocking = is_nonblocking;
    if let (Some(inner), Some(mut context)) = (record.inner, stack::context()) {
        let flags = if is_nonblocking { libc::O_NONBLOCK } else { 0 };
        context.fcntl(inner, libc::F_SETFL, flags)?;
    }
    Ok(Some(set))
}
