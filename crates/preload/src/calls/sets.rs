//! epoll, with sockets of the stack and descriptors of the kernel in one set.
//!
//! Read first: `records.rs` on sets; decision 0024.
//!
//! A set is the kernel's. When the first socket of the stack joins it, it gets a set of the stack
//! beside it, which has the stack's sockets and the kernel's set as members. The sets that have it
//! as a member get one, too (`nested_sets.rs`), and threads that wait in the kernel for one of them
//! follow (`kernel_waits.rs`).

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t, timespec};
use megapipe_marshal::{duration, milliseconds};
use megapipe_sockets::{Bsd, EpollEvent, EpollOp, Error, Events, Fd, SignalMask};

use super::descriptors::reap;
use super::{answer, passed, retried_on_stack, without_record};
use crate::foreign_children;
use crate::fork_sharing;
use crate::inherited_sets;
use crate::kernel_waits::{KernelWait, kernel_part};
use crate::memory::{self, Access};
use crate::nested_sets;
use crate::next::interpose;
use crate::numbers::{self, NumberEntry};
use crate::raw::system_call;
use crate::records::RECORDS;
use crate::stack;

/// The longest tick of a kernel (100 Hz).
const COARSE_TICK_MAX: Duration = Duration::from_millis(10);

/// Most events of one wait on a set with sockets of the stack.
const EVENTS_MAX: usize = 256;

interpose! {
    /// epoll_create(2).
    fn epoll_create(size: c_int) -> c_int |pass| {
        created(pass())
    }

    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int |pass| {
        created(pass())
    }

    /// epoll_ctl(2).
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int |pass| {
        if inherited_sets::has_any() {
            // SAFETY: the program promises an event, or null.
            match control_inherited(set, fd, || unsafe { operation(op, event) }) {
                Ok(false) => {}
                done => return answer(done.map(|_| 0)),
            }
        }
        answer(retried_on_stack(|| match fork_sharing::resolved(fd)? {
            NumberEntry::Kernel if !nested_sets::was_set(fd) => Ok(Some(pass())),
            NumberEntry::Recorded(_) => {
                // SAFETY: the program promises an event, or null.
                let op = || unsafe { operation(op, event) };
                stack::enter(|| control_recorded(set, fd, op, &pass))
            }
            entry @ (NumberEntry::Kernel | NumberEntry::PendingSet) => {
                let passed = pass();
                if passed == 0 {
                    // SAFETY: the kernel has read the event.
                    let op = unsafe { operation(op, event) }?;
                    stack::enter(|| note_control(set, op, (fd, entry)))?;
                }
                Ok(Some(passed))
            }
            NumberEntry::Stack(inner) | NumberEntry::Set(inner) if fd != set => {
                // SAFETY: the program promises an event, or null.
                let op = unsafe { operation(op, event) }?;
                stack::with_stack(|sockets| {
                    let mixed = RECORDS.lock().mixed_set(sockets, set)?;
                    sockets.epoll_ctl_by_number(mixed, op, inner, fd)
                })?;
                Ok(Some(0))
            }
            NumberEntry::Own => Err(Error::BadDescriptor),
            NumberEntry::Parent => Err(stack::refuse_in_child()),
            _ => Ok(Some(pass())),
        }))
    }

    /// epoll_wait(2).
    fn epoll_wait(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
    ) -> c_int |pass| {
        let patience = || Ok((milliseconds(timeout), None));
        // SAFETY: the program promises memory for `max` events.
        answer(unsafe { wait_for(set, (events, max), patience, &pass) })
    }

    /// epoll_pwait(2).
    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int |pass| {
        // SAFETY: the program promises a mask, or null.
        let patience = || Ok((milliseconds(timeout), unsafe { memory::mask(mask) }?));
        // SAFETY: the program promises memory for `max` events.
        answer(unsafe { wait_for(set, (events, max), patience, &pass) })
    }

    /// epoll_pwait2(2).
    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int |pass| {
        let patience = || {
            if !timeout.is_null() {
                memory::check(timeout as usize, size_of::<timespec>(), Access::Read)?;
            }
            // SAFETY: the program promises a time, or null.
            let timeout = unsafe { duration(timeout) }?;
            // SAFETY: the program promises a mask, or null.
            Ok((timeout, unsafe { memory::mask(mask) }?))
        };
        // SAFETY: the program promises memory for `max` events.
        answer(unsafe { wait_for(set, (events, max), patience, &pass) })
    }
}

/// A new set, unless the kernel refused it.
fn created(set: c_int) -> c_int {
    reap(set);
    if nested_sets::note_created(set) {
        let _ = stack::enter(|| {
            RECORDS.lock().nested.forget(set);
            Ok(())
        });
    }
    set
}

/// epoll_ctl(2) with a member of a set that this process has inherited and not used. Returns
/// whether it was one.
#[cold]
fn control_inherited(
    set: c_int,
    fd: c_int,
    op: impl Fn() -> Result<EpollOp, Error>,
) -> Result<bool, Error> {
    if foreign_children::is_foreign() || numbers::is_kernel(fd) {
        return Ok(false);
    }
    stack::enter(|| {
        let done = {
            let _records = RECORDS.lock();
            inherited_sets::control((set, fd), op()?)
        };
        done.map_or(Ok(false), |done| done.map(|()| true))
    })
}

/// This process uses a set: what it has inherited of it joins it.
///
/// # Errors
/// ENETDOWN.
#[cold]
pub(super) fn join_inherited(set: c_int) -> Result<(), Error> {
    match numbers::entry(set) {
        NumberEntry::Set(_) | NumberEntry::PendingSet if !foreign_children::is_foreign() => {
            stack::enter(|| fork_sharing::join_members(&mut RECORDS.lock(), set))
        }
        _ => Ok(()),
    }
}

/// epoll_ctl(2) with a recorded socket. A listener that was shut down is in no set of the kernel.
fn control_recorded(
    set: c_int,
    fd: c_int,
    op: impl Fn() -> Result<EpollOp, Error>,
    pass: &dyn Fn() -> c_int,
) -> Result<Option<c_int>, Error> {
    let mut records = RECORDS.lock();
    let Some(record) = records.of(fd) else { return without_record(fd, pass) };
    if !record.has_left_sets {
        passed(pass)?;
    }
    records.watch(set, fd, op()?)?;
    Ok(Some(0))
}

/// Notes an epoll_ctl(2) that the kernel has accepted, for a set.
fn note_control(set: c_int, op: EpollOp, (fd, entry): (c_int, NumberEntry)) -> Result<(), Error> {
    let mut records = RECORDS.lock();
    records.nested.note(set, fd, op);
    if entry == NumberEntry::PendingSet {
        records.mark_pending(set);
    }
    Ok(())
}

/// Waits for a set: in the kernel, until it has a socket of the stack.
///
/// # Safety
/// `events` is null or points to memory for `max` events.
unsafe fn wait_for(
    set: c_int,
    (events, max): (*mut epoll_event, c_int),
    patience: impl FnOnce() -> Result<(Option<Duration>, Option<SignalMask>), Error>,
    pass: &dyn Fn() -> c_int,
) -> Result<c_int, Error> {
    let (mut inner, mut elapsed) = (set_of(set)?, Duration::ZERO);
    if inner.is_none() {
        let began = coarse_now();
        // SAFETY: the caller keeps the contract.
        if let Some(count) = unsafe { wait_in_kernel(set, events, pass) } {
            return Ok(count);
        }
        elapsed = coarse_now().saturating_sub(began + COARSE_TICK_MAX);
        inner = set_of(set)?;
    }
    // Without one, its stack could not start.
    let Some(inner) = inner else { return Ok(pass()) };
    let (timeout, mask) = patience()?;
    let left = timeout.map(|timeout| timeout.saturating_sub(elapsed));
    // SAFETY: the caller keeps the contract.
    unsafe { wait((set, inner), (events, max), left, mask) }
}

/// A wait for a set of the kernel, with its result; `None`: the set has sockets of the stack since.
///
/// # Safety
/// `events` is where `pass` has the kernel write.
unsafe fn wait_in_kernel(
    set: c_int,
    events: *mut epoll_event,
    pass: &dyn Fn() -> c_int,
) -> Option<c_int> {
    let _wait = KernelWait::begin(set)?;
    let count = pass();
    if count <= 0 {
        return Some(count);
    }
    // SAFETY: the kernel has written so many events.
    let kept = unsafe { without_mark(events, count as usize) };
    (kept > 0).then_some(kept as c_int)
}

/// Takes out of `count` events of the kernel what ends waits (`kernel_waits.rs`). Returns how many
/// are left.
///
/// # Safety
/// `events` points to so many events.
unsafe fn without_mark(events: *mut epoll_event, count: usize) -> usize {
    let mut kept = 0;
    for place in 0..count {
        // SAFETY: the caller promises the events, which are packed.
        let event = unsafe { events.wrapping_add(place).read_unaligned() };
        if event.u64 == kernel_part() {
            continue;
        }
        if kept < place {
            // SAFETY: it is one of those before.
            unsafe { events.wrapping_add(kept).write_unaligned(event) };
        }
        kept += 1;
    }
    kept
}

/// A time that costs little to read, as exact as [`COARSE_TICK_MAX`].
fn coarse_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32)
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
    if inherited_sets::has_any() {
        join_inherited(set)?;
    }
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
            // SAFETY: the kernel has written so many events.
            filled += unsafe { without_mark(at as *mut epoll_event, kernels.max(0) as usize) };
        }
        left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if filled > 0 || !has_kernels || left == Some(Duration::ZERO) {
            return Ok(filled as c_int);
        }
    }
}
