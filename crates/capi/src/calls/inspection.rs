//! Inspection: the state of a channel and the causes of its choices.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use channel::{Address, Channel, ConnInfo, Counters, Handle, OpError};
use libc::{sockaddr, socklen_t, ssize_t};

use crate::abi::{
    MP_CONN_ECN, MP_CONN_SACK, MP_CONN_SOFT_ERROR, MP_CONN_TIMESTAMPS, MP_CONN_WINDOW_SCALE,
    mp_conn_info, mp_counters, mp_handle_t,
};
use crate::address;
use crate::border::{finish, status};
use crate::calls::{non_null, write_sized};
use crate::error::{self, CallFailure};
use crate::object::{ChannelInner, mp_channel_t, with_channel, with_handle};
use crate::pending::Sender;
use crate::text;

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn mp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The last failed call of this thread and its cause, as text; empty if none has failed. Valid
/// until the next failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn mp_last_error() -> *const c_char {
    error::last()
}

/// The channel's driver, the reason for it, and what was tried, as text: written like snprintf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_report(
    channel: *mut mp_channel_t,
    text: *mut c_char,
    size: usize,
) -> ssize_t {
    let report = |inner: &mut ChannelInner| {
        check_room(text, size)?;
        // SAFETY: the program promises `size` writable bytes.
        Ok(unsafe { text::write(text, size, inner.channel.report()) } as ssize_t)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    finish("mp_report", unsafe { with_channel(channel, report) })
}

/// The path of a handle and the reason for it, as text: written like snprintf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_explain(
    handle: mp_handle_t,
    text: *mut c_char,
    size: usize,
) -> ssize_t {
    let result = with_handle(handle, |inner, handle| {
        check_room(text, size)?;
        let explained = inner.channel.explain(handle)?;
        // SAFETY: the program promises `size` writable bytes.
        Ok(unsafe { text::write(text, size, &explained) } as ssize_t)
    });
    finish("mp_explain", result)
}

/// The counters of the channel. `size` is sizeof(struct mp_counters).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_counters(
    channel: *mut mp_channel_t,
    counters: *mut mp_counters,
    size: usize,
) -> c_int {
    let count = |inner: &mut ChannelInner| {
        let counted = translate(&inner.channel.counters());
        // SAFETY: the program promises `size` writable bytes, or null.
        unsafe { write_sized(counters, size, &counted, "counters") }
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    status("mp_counters", unsafe { with_channel(channel, count) })
}

/// The state of a TCP connection of the library's own stack. `size` is
/// sizeof(struct mp_conn_info).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_conn_info(
    handle: mp_handle_t,
    info: *mut mp_conn_info,
    size: usize,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        let known = translate_info(&inner.channel.conn_info(handle)?);
        // SAFETY: the program promises `size` writable bytes, or null.
        unsafe { write_sized(info, size, &known, "info") }
    });
    status("mp_conn_info", result)
}

/// The number of bytes of the handle's writes that are not known to be with the kernel; -1 on
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn mp_unsent_bytes(handle: mp_handle_t) -> ssize_t {
    let result = with_handle(handle, |inner, handle| {
        // Never negative: `limits` bounds what can be queued.
        Ok(inner.channel.unsent_bytes(handle)? as ssize_t)
    });
    finish("mp_unsent_bytes", result)
}

/// The handle's own address, as getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_local_address(
    handle: mp_handle_t,
    address: *mut sockaddr,
    address_size: *mut socklen_t,
) -> c_int {
    let place = Sender { address, size: address_size };
    // SAFETY: the program promises a buffer as in `place`.
    status("mp_local_address", unsafe { write_address(handle, place, Channel::local_address) })
}

/// The address of the handle's peer, as getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_peer_address(
    handle: mp_handle_t,
    address: *mut sockaddr,
    address_size: *mut socklen_t,
) -> c_int {
    let place = Sender { address, size: address_size };
    // SAFETY: the program promises a buffer as in `place`.
    status("mp_peer_address", unsafe { write_address(handle, place, Channel::peer_address) })
}

/// # Safety
/// As [`address::write`].
unsafe fn write_address(
    handle: mp_handle_t,
    place: Sender,
    ask: impl FnOnce(&mut Channel, Handle) -> Result<Address, OpError>,
) -> Result<(), CallFailure> {
    with_handle(handle, |inner, handle| {
        non_null(place.address, "address")?;
        non_null(place.size, "address_size")?;
        let address = ask(&mut inner.channel, handle)?;
        // SAFETY: the caller keeps the contract.
        unsafe { address::write(place, Some(&address)) };
        Ok(())
    })
}

fn check_room(text: *const c_char, size: usize) -> Result<(), CallFailure> {
    if size > 0 { non_null(text, "text") } else { Ok(()) }
}

fn translate(counters: &Counters) -> mp_counters {
    mp_counters {
        operations: counters.operations,
        completions: counters.completions,
        system_calls: counters.system_calls,
        kernel_requests: counters.kernel_requests,
        kernel_answers: counters.kernel_answers,
        accepted: counters.accepted,
        writes_refused: counters.writes_refused,
        reads_at_once: counters.reads_at_once,
        buffers_exhausted: counters.buffers_exhausted,
        spilled_bytes: counters.spilled_bytes,
        receive_paused: counters.receive_paused,
        completion_overflows: counters.completion_overflows,
        accept_exhausted: counters.accept_exhausted,
        connections_passed: counters.connections_passed,
        connections_dropped: counters.connections_dropped,
        datagrams_dropped: counters.datagrams_dropped,
        stray_answers: counters.stray_answers,
        server_events: counters.server_events,
        server_wakeups: counters.server_wakeups,
    }
}

fn translate_info(info: &ConnInfo) -> mp_conn_info {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (send_window_shift, receive_window_shift) = info.window_scale.unwrap_or_default();
    let flags = [
        (info.timestamps, MP_CONN_TIMESTAMPS),
        (info.sack, MP_CONN_SACK),
        (info.window_scale.is_some(), MP_CONN_WINDOW_SCALE),
        (info.ecn, MP_CONN_ECN),
        (info.soft_error, MP_CONN_SOFT_ERROR),
    ];
    mp_conn_info {
        srtt_ns: info.srtt.map_or(0, nanos),
        rttvar_ns: nanos(info.rttvar),
        min_rtt_ns: info.min_rtt.map_or(0, nanos),
        rto_ns: nanos(info.rto),
        bytes_received: info.bytes_in,
        bytes_sent: info.bytes_out,
        state: info.state.linux_number().into(),
        flags: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
        mss: info.mss.into(),
        congestion_window: info.cwnd,
        slow_start_threshold: info.ssthresh.unwrap_or(u32::MAX),
        send_window: info.snd_wnd,
        receive_window: info.rcv_wnd,
        send_window_shift: send_window_shift.into(),
        receive_window_shift: receive_window_shift.into(),
        send_buffer_bytes: info.send_buffer_bytes,
        receive_buffer_bytes: info.receive_buffer_bytes,
        queued_bytes: info.queued_bytes,
        flight_bytes: info.flight_bytes,
        sacked_bytes: info.sacked_bytes,
        lost_bytes: info.lost_bytes,
        unread_bytes: info.unread_bytes,
        out_of_order_bytes: info.out_of_order_bytes,
        urgent_bytes: info.urgent_bytes,
        segments_received: info.segments_in,
        segments_sent: info.segments_out,
        segments_retransmitted: info.segments_retransmitted,
        timeouts: info.timeouts.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_channel_is_exported() {
        let counters = Counters::default();
        assert_eq!(size_of::<mp_counters>(), counters.iter().count() * size_of::<u64>());
    }
}
