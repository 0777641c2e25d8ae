//! epoll, with sockets of the stack and descriptors of the kernel in one set.
//!
//! Read first: `records.rs` on sets; decision 0024.
//!
//! A set is the kernel's. When the first socket of the stack joins it, it gets a set of the stack
//! beside it, which has the stack's sockets and the kernel's set as members. A set without sockets
//! of the stack costs what it did.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t, timespec};
use megapipe_marshal::{duration, milliseconds};
use megapipe_sockets::{Bsd, EpollEvent, EpollOp, Error, Events, Fd, SignalMask};

use super::answer;
use super::descriptors::reap;
use crate::fork_sharing;
use crate::memory::{self, Access};
use crate::next::interpose;
use crate::numbers::{self, NumberEntry};
use crate::raw::system_call;
use crate::records::{RECORDS, kernel_part, mixed_set};
use crate::stack;

/// Most events of one wait on a set with sockets of the stack.
const EVENTS_MAX: usize = 256;

interpose! {
    /// epoll_create(2).
    fn epoll_create(size: c_int) -> c_int |pass| {
        let set = pass();
        reap(set);
        set
    }

    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int |pass| {
        let set = pass();
        reap(set);
        set
    }

    /// epoll_ctl(2).
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int |pass| {
        let entry = match fork_sharing::settled(fd) {
            Ok(NumberEntry::Kernel) => return pass(),
            Ok(entry) => entry,
            Err(error) => return answer(Err(error)),
        };
        let control = || match entry {
            NumberEntry::Recorded(_) => {
                let passed = pass();
                if passed == 0 {
                    // SAFETY: the kernel has read the event.
                    let op = unsafe { operation(op, event) }?;
                    stack::enter(|| RECORDS.lock().watch(set, fd, op))?;
                }
                Ok(passed)
            }
            NumberEntry::Stack(inner) | NumberEntry::Set(inner) if fd != set => {
                // SAFETY: the program promises an event, or null.
                let op = unsafe { operation(op, event) }?;
                stack::with_stack(|sockets| {
                    let _records = RECORDS.lock();
                    let mixed = mixed_set(sockets, set)?;
                    sockets.epoll_ctl(mixed, op, inner)
                })?;
                Ok(0)
            }
            NumberEntry::Own => Err(Error::BadDescriptor),
            NumberEntry::Parent => Err(stack::refuse_in_child()),
            _ => Ok(pass()),
        };
        answer(control())
    }

    /// epoll_wait(2).
    fn epoll_wait(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
    ) -> c_int |pass| {
        match set_of(set) {
            Ok(None) => pass(),
            Ok(Some(inner)) => {
                // SAFETY: the program promises memory for `max` events.
                answer(unsafe { wait((set, inner), (events, max), milliseconds(timeout), None) })
            }
            Err(error) => answer(Err(error)),
        }
    }

    /// epoll_pwait(2).
    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int |pass| {
        match set_of(set) {
            Ok(None) => pass(),
            Ok(Some(inner)) => {
                let wait = || {
                    // SAFETY: the program promises a mask, or null.
                    let mask = unsafe { memory::mask(mask) }?;
                    // SAFETY: the program promises memory for `max` events.
                    unsafe { wait((set, inner), (events, max), milliseconds(timeout), mask) }
                };
                answer(wait())
            }
            Err(error) => answer(Err(error)),
        }
    }

    /// epoll_pwait2(2).
    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int |pass| {
        let waited = || {
            let Some(inner) = set_of(set)? else { return Ok(pass()) };
            if !timeout.is_null() {
                memory::check(timeout as usize, size_of::<timespec>(), Access::Read)?;
            }
            // SAFETY: the program promises a time, or null.
            let timeout = unsafe { duration(timeout) }?;
            // SAFETY: the program promises a mask, or null.
            let mask = unsafe { memory::mask(mask) }?;
            // SAFETY: the program promises memory for `max` events.
            unsafe { wait((set, inner), (events, max), timeout, mask) }
        };
        answer(waited())
    }
}

/// # Safety
/// `event` is null or points to a readable event.
unsafe fn operation(op: c_int, event: *const epoll_event) -> Result<EpollOp, Error> {
    let read = || -> Result<EpollEvent, Error> {
        memory::check(event as usize, size_of::<epoll_event>(), Access::Read)?;
        // SAFETY: the caller promises the event; it is packed, so it is copied.
        let epoll_event { events, u64: data } = unsafe { event.read_unaligned() };
        Ok(EpollEvent { events: Events::from_bits_truncate(events), data })
    };
    match op {
        libc::EPOLL_CTL_ADD => Ok(EpollOp::Add(read()?)),
        libc::EPOLL_CTL_MOD => Ok(EpollOp::Modify(read()?)),
        libc::EPOLL_CTL_DEL => Ok(EpollOp::Delete),
        _ => Err(Error::InvalidArgument),
    }
}

/// Returns the stack's part of a set. Recorded members start the stack.
fn set_of(set: c_int) -> Result<Option<Fd>, Error> {
    match numbers::entry(set) {
        NumberEntry::Set(inner) => Ok(Some(inner)),
        NumberEntry::PendingSet => stack::enter(|| {
            let mut records = RECORDS.lock();
            records.use_members(set);
            records.activate_all()?;
            Ok(match numbers::entry(set) {
                NumberEntry::Set(inner) => Some(inner),
                _ => None,
            })
        }),
        NumberEntry::Parent => Err(stack::refuse_in_child()),
        NumberEntry::Own => Err(Error::BadDescriptor),
        NumberEntry::Kernel
        | NumberEntry::Stack(_)
        | NumberEntry::Recorded(_)
        | NumberEntry::Inherited(_)
        | NumberEntry::Token => Ok(None),
    }
}

/// # Safety
/// `events` is null or points to memory for `max` events.
unsafe fn wait(
    (set, inner): (c_int, Fd),
    (events, max): (*mut epoll_event, c_int),
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<c_int, Error> {
    let max = usize::try_from(max).ok().filter(|max| *max > 0).ok_or(Error::InvalidArgument)?;
    memory::check(events as usize, max.min(EVENTS_MAX) * size_of::<epoll_event>(), Access::Write)?;
    let mut found = [EpollEvent::default(); EVENTS_MAX];
    let found = &mut found[..max.min(EVENTS_MAX)];
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut left = timeout;
    loop {
        let count = stack::with_stack(|it| it.epoll_pwait(inner, found, left, mask))?;
        let (mut filled, mut has_kernels) = (0, false);
        for event in &found[..count] {
            if event.data == kernel_part() {
                has_kernels = true;
                continue;
            }
            let event = epoll_event { events: event.events.bits(), u64: event.data };
            // SAFETY: the caller promises the memory, and events are packed.
            unsafe { events.wrapping_add(filled).write_unaligned(event) };
            filled += 1;
        }
        if has_kernels {
            let at = events.wrapping_add(filled) as usize;
            let arguments = [set as usize, at, max - filled, 0, 0, 8];
            // SAFETY: the caller promises the memory.
            let kernels = unsafe { system_call(libc::SYS_epoll_pwait, arguments) };
            filled += usize::try_from(kernels).unwrap_or(0);
        }
        left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if filled > 0 || !has_kernels || left == Some(Duration::ZERO) {
            return Ok(filled as c_int);
        }
    }
}
