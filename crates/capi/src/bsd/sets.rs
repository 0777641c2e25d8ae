//! epoll, poll and select, for descriptors of the library and of the process in one call.
//!
//! Read first: epoll(7), poll(2), select(2); decision 0024.
//!
//! A call that names only descriptors of the process goes to the C library if the thread has no
//! sockets; otherwise the sockets are driven while it waits.

use std::ffi::c_int;
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use marshal::{duration, mask_of, milliseconds, with_time_left};
use sockets::{Bsd, EpollEvent, EpollOp, Events, FdSet, OpenFlags, PollFd, SignalMask};

use super::context::{in_order, with_fd, with_sockets};
use super::outcome::{SocketCallError, answer, count, status};
use super::thread::{has_sockets, is_ours};
use crate::error::{CallError, CallFailure};
use crate::limits::{BSD_EVENTS_MAX, BSD_POLL_MAX};

/// Descriptors of an fd_set.
const SELECT_MAX: usize = libc::FD_SETSIZE;
const SELECT_WORDS: usize = SELECT_MAX / 64;
const _: () = assert!(size_of::<fd_set>() * 8 == SELECT_MAX);

/// epoll_create(2).
#[unsafe(no_mangle)]
pub extern "C" fn mps_epoll_create(size: c_int) -> c_int {
    let create = || match size {
        1.. => with_sockets(|sockets| sockets.epoll_create1(OpenFlags::empty())),
        _ => Err(CallError::Argument("size").into()),
    };
    answer("mps_epoll_create", create())
}

/// epoll_create1(2).
#[unsafe(no_mangle)]
pub extern "C" fn mps_epoll_create1(flags: c_int) -> c_int {
    let flags = OpenFlags::from_bits(flags).ok_or_else(|| CallError::Argument("flags").into());
    let create = |flags| with_sockets(|sockets| sockets.epoll_create1(flags));
    answer("mps_epoll_create1", flags.and_then(create))
}

/// epoll_ctl(2). Members may be descriptors of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !is_ours(epoll) {
        // SAFETY: the program promises what epoll_ctl(2) asks for.
        return unsafe { libc::epoll_ctl(epoll, op, fd, event) };
    }
    let read = || {
        if event.is_null() {
            return Err(CallError::Null("event"));
        }
        // SAFETY: the program promises a readable event; it is packed, so it is copied.
        let epoll_event { events, u64: data } = unsafe { event.read_unaligned() };
        Ok(EpollEvent { events: Events::from_bits_truncate(events), data })
    };
    let control = || {
        let op = match op {
            libc::EPOLL_CTL_ADD => EpollOp::Add(read()?),
            libc::EPOLL_CTL_MOD => EpollOp::Modify(read()?),
            libc::EPOLL_CTL_DEL => EpollOp::Delete,
            _ => return Err(CallError::Argument("op").into()),
        };
        with_fd(epoll, |sockets| sockets.epoll_ctl(epoll, op, fd))
    };
    status("mps_epoll_ctl", in_order(epoll, control()))
}

/// epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    if !is_ours(epoll) {
        // SAFETY: the program promises what epoll_wait(2) asks for.
        return unsafe { libc::epoll_wait(epoll, events, max, timeout) };
    }
    // SAFETY: the program promises memory for `max` events.
    let told = unsafe { wait(epoll, (events, max), milliseconds(timeout), None) };
    count("mps_epoll_wait", in_order(epoll, told))
}

/// epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !is_ours(epoll) {
        // SAFETY: the program promises what epoll_pwait(2) asks for.
        return unsafe { libc::epoll_pwait(epoll, events, max, timeout, mask) };
    }
    // SAFETY: the program promises a mask, or null.
    let mask = unsafe { mask_of(mask) };
    // SAFETY: the program promises memory for `max` events.
    let told = unsafe { wait(epoll, (events, max), milliseconds(timeout), mask) };
    count("mps_epoll_pwait", in_order(epoll, told))
}

/// # Safety
/// `events` is null or points to memory for `max` events.
unsafe fn wait(
    epoll: c_int,
    (events, max): (*mut epoll_event, c_int),
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize, SocketCallError> {
    let max = usize::try_from(max).ok().filter(|&max| max > 0);
    let max = max.ok_or(CallError::Argument("maxevents"))?.min(BSD_EVENTS_MAX);
    if events.is_null() {
        return Err(CallError::Null("events").into());
    }
    with_fd(epoll, |sockets| {
        let mut found = std::mem::take(&mut sockets.events);
        if found.len() < max {
            let missing = max - found.len();
            if found.try_reserve(missing).is_err() {
                sockets.events = found;
                return Err(::sockets::Error::NoMemory);
            }
            found.resize(max, EpollEvent::default());
        }
        let told = sockets.epoll_pwait(epoll, &mut found[..max], timeout, mask);
        for (index, event) in found[..*told.as_ref().unwrap_or(&0)].iter().enumerate() {
            let event = epoll_event { events: event.events.bits(), u64: event.data };
            // SAFETY: the caller promises the memory, and events are packed.
            unsafe { events.wrapping_add(index).write_unaligned(event) };
        }
        sockets.events = found;
        told
    })
}

/// poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_poll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program promises `nfds` entries.
    match unsafe { entries(fds, nfds) } {
        Ok(entries) if is_kernels(entries) => {
            // SAFETY: the program promises what poll(2) asks for.
            unsafe { libc::poll(fds, nfds, timeout) }
        }
        entries => {
            let polled = entries.map_err(SocketCallError::from);
            let polled = polled.and_then(|it| polled_of(it, milliseconds(timeout), None));
            count("mps_poll", polled)
        }
    }
}

/// ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_ppoll(
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program promises `nfds` entries.
    match unsafe { entries(fds, nfds) } {
        Ok(entries) if is_kernels(entries) => {
            // SAFETY: the program promises what ppoll(2) asks for.
            unsafe { libc::ppoll(fds, nfds, timeout, mask) }
        }
        entries => {
            // SAFETY: the program promises a time, or null.
            let time = unsafe { duration(timeout) };
            // SAFETY: it promises a mask, or null.
            let mask = unsafe { mask_of(mask) };
            let polled = || polled_of(entries?, time?, mask);
            count("mps_ppoll", polled())
        }
    }
}

/// # Safety
/// `fds` is null or points to `nfds` entries that nothing else uses for `'a`.
unsafe fn entries<'a>(fds: *mut pollfd, nfds: nfds_t) -> Result<&'a mut [pollfd], CallFailure> {
    let len = usize::try_from(nfds).ok().filter(|&len| len <= BSD_POLL_MAX);
    let len = len.ok_or(CallError::Argument("nfds"))?;
    match (fds.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CallError::Null("fds").into()),
        // SAFETY: the caller promises the entries.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(fds, len) }),
    }
}

/// Whether no entry is the library's, and the thread has no sockets to drive meanwhile.
fn is_kernels(entries: &[pollfd]) -> bool {
    !entries.iter().any(|entry| is_ours(entry.fd)) && !has_sockets()
}

fn polled_of(
    entries: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize, SocketCallError> {
    with_sockets(|sockets| {
        let mut asked = std::mem::take(&mut sockets.entries);
        if asked.try_reserve(entries.len()).is_err() {
            sockets.entries = asked;
            return Err(::sockets::Error::NoMemory);
        }
        asked.extend(entries.iter().map(|entry| {
            let events = Events::from_bits_retain(entry.events.cast_unsigned().into());
            PollFd::new(entry.fd, events)
        }));
        let polled = sockets.ppoll(&mut asked, timeout, mask);
        if polled.is_ok() {
            for (entry, asked) in entries.iter_mut().zip(&asked) {
                entry.revents = asked.revents.bits() as i16;
            }
        }
        asked.clear();
        sockets.entries = asked;
        polled
    })
}

/// select(2). As in Linux, `timeout` is set to the time that remains.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_select(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    if !has_sockets() {
        // SAFETY: the program promises what select(2) asks for.
        return unsafe { libc::select(nfds, read, write, except, timeout) };
    }
    // SAFETY: the program promises sets, or null.
    let select = |time| unsafe { selected(nfds, [read, write, except], time, None) };
    // SAFETY: the program promises a writable time, or null.
    count("mps_select", unsafe { with_time_left(timeout, select) })
}

/// pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_pselect(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if !has_sockets() {
        // SAFETY: the program promises what pselect(2) asks for.
        return unsafe { libc::pselect(nfds, read, write, except, timeout, mask) };
    }
    let select = || {
        // SAFETY: the program promises a time, or null.
        let time = unsafe { duration(timeout) }?;
        // SAFETY: it promises a mask, or null.
        let mask = unsafe { mask_of(mask) };
        // SAFETY: it promises sets, or null.
        unsafe { selected(nfds, [read, write, except], time, mask) }
    };
    count("mps_pselect", select())
}

/// # Safety
/// Each of `sets` is null or points to a set of [`SELECT_MAX`] descriptors.
unsafe fn selected(
    nfds: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize, SocketCallError> {
    let nfds = usize::try_from(nfds).map_err(|_| CallError::Argument("nfds"))?.min(SELECT_MAX);
    let mut asked: [FdSet; 3] = Default::default();
    for (set, words) in sets.iter().zip(&mut asked) {
        words.try_reserve_exact(nfds.div_ceil(64)).map_err(|_| ::sockets::Error::NoMemory)?;
        words.resize(nfds.div_ceil(64), 0);
        if !set.is_null() {
            // SAFETY: the caller promises a set, which has that many words.
            let bits = unsafe { set.cast::<[u64; SELECT_WORDS]>().read() };
            words.copy_from_slice(&bits[..nfds.div_ceil(64)]);
        }
        if let Some(last) = words.last_mut().filter(|_| !nfds.is_multiple_of(64)) {
            *last &= (1 << (nfds % 64)) - 1;
        }
    }
    let ready = with_sockets(|sockets| sockets.pselect(&mut asked, timeout, mask))?;
    for (set, words) in sets.iter().zip(&asked).filter(|(set, _)| !set.is_null()) {
        // SAFETY: as above; the first words of the set are the requested ones.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), set.cast(), words.len()) };
    }
    Ok(ready)
}
