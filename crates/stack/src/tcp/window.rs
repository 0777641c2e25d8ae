//! Receive window, its announcement, and automatic tuning of both buffers.
//!
//! Read first: RFC 9293 §3.8.6.2.2 (silly windows, the receiver's side), §3.8.6.3 (delayed ACKs);
//! RFC 7323 §2.4 (a scaled window seems to shrink); Fisk and Feng, "Dynamic Right-Sizing", 2001.
//!
//! Invariants
//! - `rcv_adv` never moves back (SHLD-14). A scaled window cannot name every edge: what is said
//!   may lie up to one unit before `rcv_adv`, and what arrives up to `rcv_adv` is taken.
//! - Bytes that wait in order, and those that the window still invites, are `receive_buffer`
//!   together at most, but for what was invited before the application fell behind.

use core::time::Duration;

use super::Shard;
use super::congestion::CWND_MAX;
use super::connection::{Cold, Connection};
use super::deadline::Stamp;
use super::flags::ConnFlags;
use super::isn::timestamp;
use super::segment::Segment;
use crate::config::TcpConfig;
use crate::context::Context;
use crate::limits::DELAYED_ACK_MS_MAX;
use crate::time::Instant;
use crate::wire::tcp::Timestamps;

/// An echo older than this is no measure of a round trip.
const ECHO_AGE_MS_MAX: u32 = 60_000;

/// The window of a SYN: it is never scaled.
pub(crate) fn first(receive_buffer: u32) -> u32 {
    receive_buffer.min(u32::from(u16::MAX))
}

/// The window field of a segment that leaves now; moves `rcv_adv`.
#[inline(always)]
pub(crate) fn announce(conn: &mut Connection) -> u16 {
    let room = free(conn);
    let edge = conn.receive.nxt + sayable(conn, room);
    // Where the field is what limits the window, every edge is as far as can be said.
    let is_open = room > u32::from(u16::MAX) << conn.rcv_scale;
    let is_worth_it = is_open || edge.since(conn.receive.adv) >= smallest_step(conn);
    if edge.after(conn.receive.adv) && is_worth_it {
        conn.receive.adv = edge;
    }
    let window = conn.receive.wnd() >> conn.rcv_scale;
    window.min(u32::from(u16::MAX)) as u16
}

/// The application chose a larger buffer: that much is said, be it less than a segment.
pub(crate) fn widen(conn: &mut Connection) {
    if conn.state.is_synchronized() {
        conn.receive.adv = conn.receive.adv.later(conn.receive.nxt + sayable(conn, free(conn)));
    }
}

/// Room in the buffer, in bytes.
fn free(conn: &Connection) -> u32 {
    conn.cold.receive_buffer.saturating_sub(conn.receive.queue.ready_bytes())
}

/// What of `bytes` a window field can say.
fn sayable(conn: &Connection, bytes: u32) -> u32 {
    let field = (bytes >> conn.rcv_scale).min(u32::from(u16::MAX));
    field << conn.rcv_scale
}

/// MUST-39: the window opens by no less than this.
fn smallest_step(conn: &Connection) -> u32 {
    u32::from(conn.cold.rcv_mss).min(conn.cold.receive_buffer / 2).max(1)
}

/// What of a segment with text is looked at here.
pub(crate) struct Text {
    pub(crate) bytes: u32,
    /// As in [`Segment`].
    pub(crate) segment_bytes: u16,
    pub(crate) times: Option<Timestamps>,
}

impl Text {
    pub(crate) const fn of(segment: &Segment<'_>) -> Self {
        Self {
            bytes: segment.payload.len() as u32,
            segment_bytes: segment.segment_bytes,
            times: segment.options.timestamps,
        }
    }
}

/// New text came: when is it acknowledged (SHLD-18, SHLD-19, MUST-40)?
#[inline(always)]
pub(crate) fn on_received<M>(
    conn: &mut Connection,
    context: &Context<'_, M>,
    text: &Text,
    advanced: u32,
) {
    let size = match text.segment_bytes {
        0 => text.bytes,
        bytes => u32::from(bytes),
    };
    let mut rcv_mss = u32::from(conn.cold.rcv_mss);
    if size >= rcv_mss {
        // Only full segments show that the sender had more data; the gap before a small one may be
        // idle time of the application.
        core::hint::cold_path();
        rcv_mss = size;
        conn.cold.rcv_mss = size as u16;
        measure_round_trip(conn, context, text.times);
    }
    if advanced == 0 {
        return;
    }
    let unacked = conn.receive.nxt.since(conn.receive.last_ack_sent);
    if unacked > rcv_mss || is_young(conn, context) {
        conn.flags.set(ConnFlags::ACK_NOW);
    } else {
        acknowledge_late(conn);
    }
}

/// An ACK when something else carries it, or when the delay is over (SHLD-18).
/// When that is, is decided before frames leave: an answer in the same turn carries it.
#[inline]
pub(crate) fn acknowledge_late(conn: &mut Connection) {
    conn.cold.timers.delay_ack();
}

/// Decides when an ACK leaves that was put off in this turn.
#[inline]
pub(crate) fn date_ack(conn: &mut Connection, shard: &Shard) {
    if conn.cold.timers.date_ack(shard.now, shard.delayed_ack_ms) {
        conn.flags.set(ConnFlags::ACK_NOW);
    }
}

/// How long an ACK may be held back, in whole milliseconds, not less.
pub(crate) fn delayed_ack_ms(config: &TcpConfig) -> u32 {
    let delay = config.delayed_ack.min(Duration::from_millis(DELAYED_ACK_MS_MAX - 1));
    delay.as_micros().div_ceil(1000) as u32
}

/// A peer that begins to send waits for each ACK: the first segments get theirs at once, as from
/// Linux, unless there is data to carry it.
fn is_young<M>(conn: &Connection, context: &Context<'_, M>) -> bool {
    // The handshake brought one segment.
    let young = 1 + u32::from(context.base.config.tcp.quick_acks);
    !conn.flags.has(ConnFlags::INTERACTIVE) && conn.cold.accounting.segments_in() <= young
}

/// The receiver's own guess of the round trip: the age of the timestamp that a segment echoes. It
/// is too long rather than too short.
#[inline(never)]
fn measure_round_trip<M>(
    conn: &mut Connection,
    context: &Context<'_, M>,
    times: Option<Timestamps>,
) {
    if !conn.flags.has(ConnFlags::TIMESTAMPS) {
        return;
    }
    let Some(times) = times else { return };
    let age = timestamp(context.now, conn.cold.ts_offset).wrapping_sub(times.echo);
    if age < ECHO_AGE_MS_MAX {
        keep_round_trip(conn, age.max(1) * 1000);
    }
}

fn keep_round_trip(conn: &mut Connection, sample_us: u32) {
    let old = conn.cold.rtt_or_syn_at_us;
    let is_first_or_less = old == 0 || sample_us < old;
    conn.cold.rtt_or_syn_at_us =
        if is_first_or_less { sample_us } else { old - old / 8 + sample_us / 8 };
}

/// Nothing follows when the application has taken `taken` bytes but that they are counted: neither
/// is that half of the buffer, nor is less than half of the window left.
#[inline(always)]
pub(crate) const fn is_wide(conn: &Connection, taken: u32) -> bool {
    let half = conn.cold.receive_buffer / 2;
    taken <= half && conn.receive.wnd() > half
}

/// The application took `bytes`: the buffer grows, up to `most` bytes, if it takes more in a round
/// trip than half of it; a window update is sent if the window grew much.
pub(crate) fn on_taken(conn: &mut Connection, now: Instant, bytes: u32, most: u32) {
    conn.cold.taken_bytes = conn.cold.taken_bytes.saturating_add(bytes);
    if conn.cold.taken_bytes > conn.cold.receive_buffer / 2 {
        if !conn.flags.has(ConnFlags::FIXED_RECEIVE_BUFFER) {
            tune_receive_buffer(&mut conn.cold, now, most);
        } else {
            conn.cold.taken_bytes = 0;
        }
    }
    let half = conn.cold.receive_buffer / 2;
    if !conn.state.may_receive() || conn.receive.wnd() > half {
        return;
    }
    let gain = (conn.receive.nxt + sayable(conn, free(conn))).since(conn.receive.adv) as i32;
    let worth = (2 * u32::from(conn.cold.rcv_mss)).min(half).max(1);
    if gain >= worth as i32 {
        conn.flags.set(ConnFlags::ACK_NOW);
    }
}

/// More than half of the buffer was taken since `tune_at`: was that within a round trip or so?
fn tune_receive_buffer(cold: &mut Cold, now: Instant, most: u32) {
    // Without timestamps the handshake's round trip must do, and what our own data measured.
    let round_trip_us = match cold.rtt_or_syn_at_us {
        0 => cold.recovery.srtt_us(),
        us => us,
    };
    let age_us = u64::from(cold.tune_at.age_ms(now)) * 1000;
    if round_trip_us == 0 || age_us < u64::from(round_trip_us) {
        return;
    }
    if age_us < 2 * u64::from(round_trip_us.max(1000)) {
        let wanted = cold.taken_bytes.saturating_mul(2).min(most);
        cold.receive_buffer = cold.receive_buffer.max(wanted);
    }
    cold.taken_bytes = 0;
    cold.tune_at = Stamp::of(now);
}

/// The send queue should hold two congestion windows: one in flight, one to follow; `most` bytes at
/// most.
#[inline(always)]
pub(crate) fn grow_send_buffer(conn: &mut Connection, most: u32) {
    let cold = &mut conn.cold;
    let wanted = 2 * cold.recovery.cwnd();
    if wanted > cold.send_buffer && !conn.flags.has(ConnFlags::FIXED_SEND_BUFFER) {
        cold.send_buffer = cold.send_buffer.max(wanted.min(most));
    }
}

const _: () = assert!(CWND_MAX <= u32::MAX / 2);
