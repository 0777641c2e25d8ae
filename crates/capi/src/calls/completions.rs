//! Calls that return completions.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::slice;
use std::time::Duration;

use channel::Park;

use crate::abi::{MP_FOREVER, MP_LENT, mp_event};
use crate::border::{finish, status};
use crate::calls::non_null;
use crate::error::{CallError, CallFailure};
use crate::lent::LentKey;
use crate::limits::DISPATCH_MANY_MAX;
use crate::object::{self, ChannelInner, mp_channel_t, with_channel, with_handle};

/// Submits queued operations to the kernel now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_flush(channel: *mut mp_channel_t) -> c_int {
    // SAFETY: the program promises a channel that it has not destroyed.
    status("mp_flush", unsafe { with_channel(channel, |inner| Ok(inner.channel.flush()?)) })
}

/// Returns 1 and the next completion, 0 if there was none within `timeout_ns` nanoseconds
/// (MP_FOREVER: no limit), -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_dispatch(
    channel: *mut mp_channel_t,
    event: *mut mp_event,
    timeout_ns: i64,
) -> c_int {
    let dispatch = |inner: &mut ChannelInner| {
        non_null(event, "event")?;
        let timeout = timeout(timeout_ns)?;
        let ChannelInner { channel, events, .. } = inner;
        // SAFETY: the program promises that `event` is writable, and not used elsewhere.
        let event = unsafe { &mut *event.cast::<MaybeUninit<mp_event>>() };
        if let Some(refused) = events.refused.pop_front() {
            event.write(refused);
            return Ok(1);
        }
        // No `?`: it would move the completion before it is converted.
        match channel.dispatch(timeout) {
            Ok(Some(completion)) => {
                // SAFETY: the program keeps the buffers of reads valid until their events.
                unsafe { events.convert(channel, completion, event) };
                Ok(1)
            }
            Ok(None) => Ok(0),
            Err(error) => Err(error.into()),
        }
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    finish("mp_dispatch", unsafe { with_channel(channel, dispatch) })
}

/// Returns up to `events_count` completions and their number, 0 if there was none in time, -1 on
/// failure. Waits only for the first one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_dispatch_many(
    channel: *mut mp_channel_t,
    events: *mut mp_event,
    events_count: c_int,
    timeout_ns: i64,
) -> c_int {
    let dispatch = |inner: &mut ChannelInner| {
        non_null(events, "events")?;
        let max = usize::try_from(events_count).unwrap_or(0).min(DISPATCH_MANY_MAX);
        if max == 0 {
            return Err(CallError::Argument("events_count").into());
        }
        let timeout = timeout(timeout_ns)?;
        let ChannelInner { channel, events: border, batch } = inner;
        if border.refused.is_empty() {
            channel.dispatch_many(batch, max, timeout)?;
        }
        // SAFETY: the program promises `events_count` writable events, and `max` is not above it.
        let events = unsafe { slice::from_raw_parts_mut(events.cast::<MaybeUninit<_>>(), max) };
        let mut events = events.iter_mut();
        let mut count = 0;
        for (refused, event) in
            border.refused.drain(..max.min(border.refused.len())).zip(&mut events)
        {
            event.write(refused);
            count += 1;
        }
        for (completion, event) in batch.drain(..).zip(&mut events) {
            // SAFETY: the program keeps the buffers of reads valid until their events.
            unsafe { border.convert(channel, completion, event) };
            count += 1;
        }
        Ok(count)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    finish("mp_dispatch_many", unsafe { with_channel(channel, dispatch) })
}

/// Prepares the channel for a wait outside the library. Returns 1 if there may be an event to
/// dispatch now; 0 if there is none before one of mp_descriptors() is readable or `*timeout_ns`
/// nanoseconds have passed (MP_FOREVER: no limit); -1 on failure. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_park(channel: *mut mp_channel_t, timeout_ns: *mut i64) -> c_int {
    let park = |inner: &mut ChannelInner| {
        non_null(timeout_ns, "timeout_ns")?;
        let rest = match inner.events.refused.is_empty() {
            true => inner.channel.park()?,
            false => Park::Work,
        };
        let (has_work, wait_ns) = match rest {
            Park::Work => (1, 0),
            Park::Until(None) => (0, MP_FOREVER),
            Park::Until(Some(wait)) => (0, i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX)),
        };
        // SAFETY: the program promises that `timeout_ns` is writable.
        unsafe { timeout_ns.write(wait_ns) };
        Ok(has_work)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    finish("mp_park", unsafe { with_channel(channel, park) })
}

/// The descriptors to poll for reading after mp_park() has returned 0: writes up to `fds_count` of
/// them and returns their number. The channel owns them, and they do not change until mp_destroy().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_descriptors(
    channel: *mut mp_channel_t,
    fds: *mut c_int,
    fds_count: c_int,
) -> c_int {
    let descriptors = |inner: &mut ChannelInner| {
        let room = usize::try_from(fds_count).map_err(|_| CallError::Argument("fds_count"))?;
        if room > 0 {
            non_null(fds, "fds")?;
        }
        let descriptors = inner.channel.descriptors();
        for (index, descriptor) in descriptors.iter().take(room).enumerate() {
            // SAFETY: the index is below `fds_count`, and the program promises that many elements.
            let place = unsafe { fds.add(index) };
            // SAFETY: the same.
            unsafe { place.write(descriptor.as_raw_fd()) };
        }
        Ok(c_int::try_from(descriptors.len()).unwrap_or(c_int::MAX))
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    finish("mp_descriptors", unsafe { with_channel(channel, descriptors) })
}

/// Returns the buffer that an event lends; the event then lends none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_release(event: *mut mp_event) -> c_int {
    let release = || {
        non_null(event, "event")?;
        // SAFETY: the program promises an event of this library.
        let mut released = unsafe { event.read() };
        let key = LentKey { index: released.lent_index, generation: released.lent_generation };
        if released.flags & MP_LENT == 0 {
            return Err(CallError::NotLent.into());
        }
        with_handle(released.handle, |inner, _| {
            inner.events.lent.give_back(key).map(drop).ok_or_else(|| CallError::NotLent.into())
        })?;
        released.flags &= !MP_LENT;
        released.buf = std::ptr::null();
        (released.lent_index, released.lent_generation) = (0, 0);
        // SAFETY: the program promises that `event` is writable.
        unsafe { event.write(released) };
        Ok(())
    };
    status("mp_release", release())
}

/// Makes mp_dispatch() of the channel return MP_WAKE. May be called by any thread and any signal
/// handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_wake(channel: *mut mp_channel_t) -> c_int {
    // SAFETY: the program promises a channel that is not destroyed during the call.
    status("mp_wake", unsafe { object::wake(channel) })
}

/// `None` is no limit.
fn timeout(timeout_ns: i64) -> Result<Option<Duration>, CallFailure> {
    match u64::try_from(timeout_ns) {
        Ok(timeout_ns) => Ok(Some(Duration::from_nanos(timeout_ns))),
        Err(_) if timeout_ns == MP_FOREVER => Ok(None),
        Err(_) => Err(CallError::Argument("timeout_ns").into()),
    }
}
