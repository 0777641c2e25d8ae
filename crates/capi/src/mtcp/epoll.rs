//! `mtcp_epoll.h`: epoll sets, as in epoll(7).

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::time::Duration;

use sockets::{Bsd, EpollEvent, EpollOp, Events, OpenFlags};

use super::context::{mctx_t, with_context};
use crate::border::{finish, status};
use crate::error::{CallError, CallFailure};
use crate::limits::MTCP_EVENTS_MAX;

/// An event of a socket, or the events that it is registered for.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct mtcp_epoll_event {
    /// Bits of `enum mtcp_epoll_type`.
    pub events: u32,
    /// The program's: `union mtcp_epoll_data`.
    pub data: u64,
}

const _: () = assert!(size_of::<mtcp_epoll_event>() == 16);
const _: () = assert!(std::mem::offset_of!(mtcp_epoll_event, data) == 8);

const CTL_ADD: c_int = 1;
const CTL_DEL: c_int = 2;
const CTL_MOD: c_int = 3;

/// Creates a set; `size` must be positive and has no other meaning.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_create(mctx: mctx_t, size: c_int) -> c_int {
    finish(
        "mtcp_epoll_create",
        match size {
            1.. => create(mctx, 0),
            _ => Err(CallError::Argument("size").into()),
        },
    )
}

/// Creates a set; `flags` as in epoll_create1(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_create1(mctx: mctx_t, flags: c_int) -> c_int {
    finish("mtcp_epoll_create1", create(mctx, flags))
}

fn create(mctx: mctx_t, flags: c_int) -> Result<c_int, CallFailure> {
    let flags = OpenFlags::from_bits(flags).filter(|flags| OpenFlags::CLOEXEC.contains(*flags));
    let flags = flags.ok_or(CallError::Argument("flags"))?;
    with_context(mctx, |waiting| Ok(waiting.epoll_create1(flags)?))
}

/// Adds, changes or removes a socket of a set, as epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_ctl(
    mctx: mctx_t,
    epid: c_int,
    op: c_int,
    sockid: c_int,
    event: *const mtcp_epoll_event,
) -> c_int {
    let read = || {
        if event.is_null() {
            return Err(CallError::Null("event"));
        }
        // SAFETY: the program promises a readable event.
        let mtcp_epoll_event { events, data } = unsafe { event.read() };
        Ok(EpollEvent { events: Events::from_bits_truncate(events), data })
    };
    let control = || {
        let op = match op {
            CTL_ADD => EpollOp::Add(read()?),
            CTL_MOD => EpollOp::Modify(read()?),
            CTL_DEL => EpollOp::Delete,
            _ => return Err(CallError::Argument("op").into()),
        };
        with_context(mctx, |waiting| Ok(waiting.epoll_ctl(epid, op, sockid)?))
    };
    status("mtcp_epoll_ctl", control())
}

/// Waits for events of a set, at most `timeout` milliseconds (-1: no limit) or until a signal.
/// Returns their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_wait(
    mctx: mctx_t,
    epid: c_int,
    events: *mut mtcp_epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    let wait = || {
        let max = usize::try_from(maxevents).ok().filter(|&max| max > 0);
        let max = max.ok_or(CallError::Argument("maxevents"))?.min(MTCP_EVENTS_MAX);
        if events.is_null() {
            return Err(CallError::Null("events").into());
        }
        let patience = u64::try_from(timeout).ok().map(Duration::from_millis);
        with_context(mctx, |waiting| {
            let mut found = waiting.take_events(max);
            let count = waiting.epoll_wait(epid, &mut found[..max], patience);
            for (index, event) in found[..*count.as_ref().unwrap_or(&0)].iter().enumerate() {
                let event = mtcp_epoll_event { events: event.events.bits(), data: event.data };
                // SAFETY: the program promises memory for `maxevents` events, and `max` is not
                // more.
                unsafe { events.wrapping_add(index).write(event) };
            }
            waiting.put_events(found);
            Ok(count? as c_int)
        })
    };
    finish("mtcp_epoll_wait", wait())
}

/// mTCP's own names. mTCP has one for the first seven only, and ends the process for another.
const NAMES: [(u32, &CStr); 14] = [
    (0x000, c"NONE"),
    (0x001, c"IN"),
    (0x002, c"PRI"),
    (0x004, c"OUT"),
    (0x008, c"ERR"),
    (0x010, c"HUP"),
    (0x2000, c"RDHUP"),
    (0x040, c"RDNORM"),
    (0x080, c"RDBAND"),
    (0x100, c"WRNORM"),
    (0x200, c"WRBAND"),
    (0x400, c"MSG"),
    (1 << 30, c"ONESHOT"),
    (1 << 31, c"ET"),
];

/// The name of one event; null for no event, or several. The caller must not free or change it.
#[unsafe(no_mangle)]
pub extern "C" fn EventToString(event: u32) -> *mut c_char {
    let name = NAMES.iter().find(|(bits, _)| *bits == event);
    name.map_or(ptr::null_mut(), |(_, name)| name.as_ptr().cast_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_match_mtcp() {
        let name = |event: u32| {
            let name = EventToString(event);
            // SAFETY: a name that is not null is a static string with a NUL.
            (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().unwrap())
        };
        assert_eq!(name(Events::IN.bits()), Some("IN"));
        assert_eq!(name(Events::EDGE.bits()), Some("ET"));
        assert_eq!(name(Events::ONE_SHOT.bits()), Some("ONESHOT"));
        assert_eq!(name(Events::RDHUP.bits()), Some("RDHUP"));
        assert_eq!((name(0), name(3), name(1 << 20)), (Some("NONE"), None, None));
    }
}
