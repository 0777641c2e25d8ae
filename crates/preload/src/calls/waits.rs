//! poll and select, with sockets of the stack and descriptors of the kernel in one call.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use megapipe_marshal::{duration, milliseconds, with_time_left};
use megapipe_sockets::{Bsd, Error, Events, Fd, PollFd, SignalMask};

use super::{answer, sets};
use crate::fork_sharing;
use crate::inherited_sets;
use crate::memory::{self, Access};
use crate::next::interpose;
use crate::numbers::{self, NumberEntry};
use crate::records::RECORDS;
use crate::stack;

/// Descriptors of an fd_set.
const SELECT_MAX: usize = libc::FD_SETSIZE;
/// Entries of one poll(2).
const POLL_MAX: usize = 1 << 20;

interpose! {
    /// poll(2).
    fn poll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int |pass| {
        // SAFETY: the program promises `count` entries.
        match unsafe { mixed(entries, count) } {
            None => pass(),
            Some(entries) => answer(polled(entries, milliseconds(timeout), None)),
        }
    }

    /// poll(2), fortified.
    fn __poll_chk(
        entries: *mut pollfd,
        count: nfds_t,
        timeout: c_int,
        room: size_t,
    ) -> c_int |pass| {
        // SAFETY: the program promises `count` entries.
        match unsafe { mixed(entries, count) } {
            Some(entries) if size_of_val(entries) <= room => {
                answer(polled(entries, milliseconds(timeout), None))
            }
            _ => pass(),
        }
    }

    /// ppoll(2).
    fn ppoll(
        entries: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int |pass| {
        // SAFETY: the program promises `count` entries.
        match unsafe { mixed(entries, count) } {
            None => pass(),
            // SAFETY: the program promises a time and a mask, or null.
            Some(entries) => answer(unsafe { polled_until(entries, timeout, mask) }),
        }
    }

    /// ppoll(2), fortified.
    fn __ppoll_chk(
        entries: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int |pass| {
        // SAFETY: the program promises `count` entries.
        match unsafe { mixed(entries, count) } {
            Some(entries) if size_of_val(entries) <= room => {
                // SAFETY: the program promises a time and a mask, or null.
                answer(unsafe { polled_until(entries, timeout, mask) })
            }
            _ => pass(),
        }
    }

    /// select(2). As in Linux, `timeout` is set to the time that remains.
    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int |pass| {
        // SAFETY: the program promises sets, or null.
        let Some(mut sets) = (unsafe { SelectSets::mixed(count, [read, write, except]) }) else {
            return pass();
        };
        // SAFETY: the program promises a writable time, or null.
        answer(unsafe { with_time_left(timeout, |time| sets.select(time, None)) })
    }

    /// pselect(2).
    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int |pass| {
        // SAFETY: the program promises sets, or null.
        let Some(mut sets) = (unsafe { SelectSets::mixed(count, [read, write, except]) }) else {
            return pass();
        };
        let mut select = || {
            // SAFETY: the program promises a time, or null.
            let time = unsafe { duration(timeout) }?;
            // SAFETY: the program promises a mask, or null.
            sets.select(time, unsafe { memory::mask(mask) }?)
        };
        answer(select())
    }
}

/// The entries of a call, if one of them is the library's.
///
/// # Safety
/// `entries` is null or points to `count` entries that nothing else uses for `'a`.
unsafe fn mixed<'a>(entries: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let len = usize::try_from(count).ok().filter(|len| (1..=POLL_MAX).contains(len))?;
    // What is wrong is the kernel's to find.
    memory::check(entries as usize, len * size_of::<pollfd>(), Access::Write).ok()?;
    // SAFETY: the caller promises the entries.
    let entries = unsafe { std::slice::from_raw_parts_mut(entries, len) };
    entries.iter().any(|entry| !numbers::is_kernel(entry.fd)).then_some(entries)
}

/// # Safety
/// `timeout` and `mask` are null or point to their values.
unsafe fn polled_until(
    entries: &mut [pollfd],
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Result<c_int, Error> {
    // SAFETY: the caller promises a time, or null.
    let timeout = unsafe { duration(timeout) }?;
    // SAFETY: the caller promises a mask, or null.
    polled(entries, timeout, unsafe { memory::mask(mask) }?)
}

/// The parts of a descriptor that are watched.
struct WatchedParts {
    kernels: bool,
    stacks: Option<Fd>,
}

/// Returns what a call watches for a number; `None`: it is no descriptor of the program's. Recorded
/// sockets of the stack start it.
fn watched(fd: c_int) -> Result<Option<WatchedParts>, Error> {
    if let NumberEntry::Recorded(_) = numbers::entry(fd) {
        let recorded = stack::enter(|| {
            let mut records = RECORDS.lock();
            let is_decided = records.of(fd).is_some_and(|record| record.path.is_some());
            if is_decided {
                records.use_here(fd);
                records.activate_all()?;
            }
            let Some(record) = records.of(fd) else { return Ok(None) };
            // In the kernel a listener that only the stack would have served hangs up for ever.
            let is_silent = stack::is_down() && record.backlog.is_some() && !record.is_kept();
            Ok(Some(WatchedParts { kernels: !is_silent, stacks: record.inner }))
        })?;
        if let Some(parts) = recorded
            && let NumberEntry::Recorded(_) = numbers::entry(fd)
        {
            return Ok(Some(parts));
        }
    }
    if inherited_sets::has_any() {
        sets::join_inherited(fd)?;
    }
    match fork_sharing::resolved(fd)? {
        NumberEntry::Stack(inner) | NumberEntry::Set(inner) => {
            Ok(Some(WatchedParts { kernels: false, stacks: Some(inner) }))
        }
        NumberEntry::Parent => Err(stack::refuse_in_child()),
        NumberEntry::Own | NumberEntry::Inherited(_) | NumberEntry::Token => Ok(None),
        NumberEntry::Kernel | NumberEntry::Recorded(_) | NumberEntry::PendingSet => {
            Ok(Some(WatchedParts { kernels: true, stacks: None }))
        }
    }
}

/// poll(2) of mixed entries.
fn polled(
    entries: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<c_int, Error> {
    let mut asked = Vec::with_capacity(entries.len() + 1);
    let mut places = Vec::with_capacity(entries.len() + 1);
    let mut invalid = 0;
    for (place, entry) in entries.iter_mut().enumerate() {
        entry.revents = 0;
        if entry.fd < 0 {
            continue;
        }
        let events = Events::from_bits_retain(entry.events.cast_unsigned().into());
        let Some(WatchedParts { kernels, stacks }) = watched(entry.fd)? else {
            entry.revents = libc::POLLNVAL;
            invalid += 1;
            continue;
        };
        if let Some(inner) = stacks {
            asked.push(PollFd::new(inner, events));
            places.push(place);
        }
        if kernels {
            // SAFETY: the number is not -1; one that is closed is reported as such (POLLNVAL).
            let fd = unsafe { BorrowedFd::borrow_raw(entry.fd) };
            asked.push(PollFd::new(fd, events));
            places.push(place);
        }
    }
    let timeout = if invalid > 0 { Some(Duration::ZERO) } else { timeout };
    if stack::context().is_none() {
        // Recorded sockets that are not decided are the kernel's.
        return polled_by_kernel(entries, &places, timeout, mask);
    }
    stack::with_stack(|sockets| sockets.ppoll(&mut asked, timeout, mask))?;
    for (asked, place) in asked.iter().zip(&places) {
        entries[*place].revents |= asked.revents.bits() as i16;
    }
    Ok(entries.iter().filter(|entry| entry.revents != 0).count() as c_int)
}

/// poll(2) of the entries at `places` in the kernel, where there is no stack. The others keep what
/// they report.
fn polled_by_kernel(
    entries: &mut [pollfd],
    places: &[usize],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<c_int, Error> {
    let mut asked: Vec<pollfd> = places.iter().map(|place| entries[*place]).collect();
    let mut time = timeout.map(megapipe_marshal::timespec_of);
    let time = time.as_mut().map_or(0, |time| &raw mut *time as usize);
    let mask = mask.map(SignalMask::bits);
    let mask = mask.as_ref().map_or(0, |mask| &raw const *mask as usize);
    let arguments = [asked.as_mut_ptr() as usize, asked.len(), time, mask, size_of::<u64>(), 0];
    // SAFETY: entries, time and mask are locals.
    let ready = unsafe { crate::raw::system_call(libc::SYS_ppoll, arguments) };
    if ready < 0 {
        return Err(Error::from_raw_os_error(-ready as c_int));
    }
    for (asked, place) in asked.iter().zip(places) {
        entries[*place].revents = asked.revents;
    }
    Ok(entries.iter().filter(|entry| entry.revents != 0).count() as c_int)
}

/// The events of poll(2) behind the three sets of select(2), to ask for and to report.
const SELECT_EVENTS: [(i16, i16); 3] = [
    (
        libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND,
        libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    ),
    (
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
    ),
    (libc::POLLPRI, libc::POLLPRI),
];

/// The sets of one select(2).
struct SelectSets {
    places: [*mut fd_set; 3],
    entries: Vec<pollfd>,
}

impl SelectSets {
    /// Reads the sets; `None`: they name descriptors of the kernel only.
    ///
    /// # Safety
    /// Each place is null or points to a set, as long as this lives.
    unsafe fn mixed(count: c_int, places: [*mut fd_set; 3]) -> Option<Self> {
        let count = usize::try_from(count).ok()?.min(SELECT_MAX);
        for place in places.iter().filter(|place| !place.is_null()) {
            memory::check(*place as usize, count.div_ceil(8), Access::Write).ok()?;
        }
        let mut entries = Vec::new();
        let mut is_mixed = false;
        for fd in 0..count {
            let mut events = 0;
            for (place, (asked, _)) in places.iter().zip(SELECT_EVENTS) {
                // SAFETY: the caller promises a set, and the number is below its size.
                if !place.is_null() && unsafe { libc::FD_ISSET(fd as c_int, *place) } {
                    events |= asked;
                }
            }
            if events != 0 {
                is_mixed |= !numbers::is_kernel(fd as c_int);
                entries.push(pollfd { fd: fd as c_int, events, revents: 0 });
            }
        }
        is_mixed.then_some(Self { places, entries })
    }

    fn select(
        &mut self,
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<c_int, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            polled(&mut self.entries, left, mask)?;
            if self.entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
                return Err(Error::BadDescriptor);
            }
            let ready = self.count();
            left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // What poll(2) reports without a request may be in no set.
            if ready > 0 || left == Some(Duration::ZERO) {
                self.write();
                return Ok(ready);
            }
        }
    }

    /// Bits that are set afterwards.
    fn count(&self) -> c_int {
        let bits = self.entries.iter().map(|entry| {
            let is_ready =
                |(asked, told): &(i16, i16)| entry.events & asked != 0 && entry.revents & told != 0;
            SELECT_EVENTS.iter().filter(|it| is_ready(it)).count()
        });
        bits.sum::<usize>() as c_int
    }

    fn write(&self) {
        for (place, (asked, told)) in self.places.iter().zip(SELECT_EVENTS) {
            if place.is_null() {
                continue;
            }
            for entry in self.entries.iter().filter(|entry| entry.events & asked != 0) {
                if entry.revents & told == 0 {
                    // SAFETY: the set is the program's, as `mixed` requires; the number was in it.
                    unsafe { libc::FD_CLR(entry.fd, *place) };
                }
            }
        }
    }
}
