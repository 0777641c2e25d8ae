//! Timer expiry of connections.
//!
//! Read first: RFC 9293 §3.8.1 (retransmission), §3.8.3 (R1 and R2), §3.8.4 (keepalive), §3.8.6.1
//! (zero windows), §3.8.6.3 (delayed ACKs), §3.10.8; RFC 5482; RFC 4821 §4.3 for black holes.
//!
//! A connection has one entry in the wheel, at the earliest of its deadlines or before it: arming
//! is lazy, and an entry that expires too early is armed again.

use core::time::Duration;

use super::conn_timers::{ConnTimer, ConnTimerKind};
use super::connection::{Connection, Options, Rare};
use super::deadline::{Deadline, Stamp, WAIT_MAX};
use super::flags::ConnFlags;
use super::handshake::default_mss;
use super::recovery::Timeout;
use super::state::{Input, State, TimeWait, transition};
use super::{Shard, Tcp, close, output};
use crate::context::Context;
use crate::error::CloseReason;
use crate::limits::BLACK_HOLE_MSS;
use crate::memory::Memory;
use crate::time::Instant;

/// How long to wait for a record to become free.
const STARVED_WAIT: Duration = Duration::from_millis(10);
/// So many timeouts of segments that every path need not take are a black hole's doing (RFC 4821
/// §7.7).
const BLACK_HOLE_TIMEOUTS: u8 = 3;

/// The earliest deadline of a connection.
pub(super) fn earliest(conn: &Connection, shard: &Shard) -> Option<Instant> {
    if conn.state.is_closed() {
        return None;
    }
    let deadlines = conn.cold.timers.deadlines();
    let mut earliest = conn.cold.recovery.deadline();
    let rare = shard.rares.get(conn);
    if rare.is_none() && deadlines.is_none() {
        return earliest;
    }
    let now = shard.now;
    let mut consider = |deadline: Deadline| {
        if let Some(at) = deadline.get(now) {
            earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
        }
    };
    deadlines.into_iter().flatten().for_each(&mut consider);
    if let Some(rare) = rare
        && rare.options.has_timers()
    {
        consider(keepalive_at(conn, &rare.options));
        consider(user_timeout_at(conn, rare));
    }
    earliest
}

/// What a connection waits for, as ss(8) shows it; a delayed ACK is not among it.
pub(super) fn shown(conn: &Connection, shard: &Shard, now: Instant) -> Option<ConnTimer> {
    if conn.state.is_closed() {
        return None;
    }
    let attends_at = conn.cold.timers.attends_at(now);
    let timer = |kind, attempts| move |at| ConnTimer { kind, at, attempts };
    if conn.flags.has(ConnFlags::PERSIST) {
        return attends_at.map(timer(ConnTimerKind::Persist, conn.attempts));
    }
    if let Some(at) = conn.cold.recovery.deadline() {
        let attempts = conn.cold.recovery.retransmissions();
        return Some(timer(ConnTimerKind::Retransmission, attempts)(at));
    }
    if attends_at.is_some() {
        let kind = match conn.state {
            State::FinWait2(_) => ConnTimerKind::End,
            _ => ConnTimerKind::Retransmission,
        };
        return attends_at.map(timer(kind, conn.attempts));
    }
    let options = &shard.rares.get(conn)?.options;
    keepalive_at(conn, options).get(now).map(timer(ConnTimerKind::Keepalive, conn.attempts))
}

/// When the next keepalive is due (MUST-24 to MUST-28).
fn keepalive_at(conn: &Connection, options: &Options) -> Deadline {
    if options.keepalive_idle_ms == 0 || !conn.state.is_synchronized() || conn.send.flight() > 0 {
        return Deadline::NEVER;
    }
    if conn.flags.has(ConnFlags::PERSIST) {
        return Deadline::NEVER;
    }
    let idle = u64::from(options.keepalive_idle_ms);
    let more = u64::from(conn.attempts) * u64::from(options.keepalive_interval_ms);
    conn.cold.timers.after_silence(Duration::from_millis(idle + more))
}

/// When the peer has been silent for too long (MUST-21, RFC 5482).
fn user_timeout_at(conn: &Connection, rare: &Rare) -> Deadline {
    let timeout = rare.options.user_timeout_ms;
    let waits = conn.send.flight() > 0 || conn.flags.has(ConnFlags::PERSIST);
    if timeout == 0 || !waits {
        return Deadline::NEVER;
    }
    rare.progress_at.plus(Duration::from_millis(u64::from(timeout)))
}

/// Starts or stops the timer that only a connection that cannot send needs.
pub(super) fn attend(conn: &mut Connection, shard: &mut Shard, has_data: bool) {
    let stuck = output::is_stuck(conn, has_data);
    if stuck && !conn.flags.has(ConnFlags::PERSIST) {
        // SHLD-29: the first probe after one RTO.
        let wait = conn.cold.recovery.rto(&shard.records);
        let wait = if conn.flags.has(ConnFlags::STARVED) { STARVED_WAIT } else { wait };
        conn.flags.set(ConnFlags::PERSIST);
        conn.attempts = 0;
        if let Some(rare) = shard.rares.get_mut(conn) {
            rare.probes = 0;
            rare.progress_at = Stamp::of(shard.now);
        }
        conn.cold.timers.attend_after(shard.now, wait);
    } else if !stuck && conn.flags.has(ConnFlags::PERSIST) {
        conn.flags.clear(ConnFlags::PERSIST.or(ConnFlags::STARVED));
        conn.attempts = 0;
        conn.cold.timers.stop_attending();
    }
}

/// A wait in whole milliseconds, not less, and at most what a deadline can name.
pub(super) fn whole_ms(wait: Duration) -> u32 {
    wait.min(WAIT_MAX).as_nanos().div_ceil(1_000_000) as u32
}

/// `base`, doubled `times` times, `most` at most.
pub(super) fn back_off(base: Duration, times: u8, most: Duration) -> Duration {
    let doubled = base.checked_mul(1 << u32::from(times).min(30));
    doubled.map_or(most, |wait| wait.min(most)).max(base.min(most))
}

impl Tcp {
    /// Looks after everything whose time has come.
    pub(crate) fn on_timeout<M: Memory>(&mut self, context: &mut Context<'_, M>) {
        self.shard.now = context.now;
        self.schedule_dirty();
        while let Some(entry) = self.shard.wheel.expire(context.now) {
            match entry.checked_sub(self.half_open_from) {
                Some(half_open) => self.on_half_open_timeout(context, half_open),
                None => {
                    let conn = &mut self.connections[entry as usize];
                    if !conn.state.is_closed() {
                        on_connection_timeout(conn, &mut self.shard, context);
                    }
                    if !self.connections[entry as usize].flags.has(ConnFlags::RELEASED) {
                        self.schedule(context, entry);
                    }
                }
            }
        }
        while self.time_waits.is_due(context.now)
            && let Some(oldest) = self.time_waits.oldest()
        {
            debug_assert!(transition(State::TimeWait(TimeWait), Input::TwoMsl).is_some());
            self.end_time_wait(oldest);
        }
        self.schedule_dirty();
    }

    /// No later than this `on_timeout` has something to do: at once, while it is not decided what
    /// those wait for that were touched since frames left last.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.shard.dirty.is_empty() { self.next_timer() } else { Some(self.shard.now) }
    }

    /// [`Tcp::next_timer`] is not after `now`.
    #[inline(always)]
    pub(crate) fn has_timer_due(&self, now: Instant) -> bool {
        self.shard.wheel.is_due(now) || self.time_waits.is_due(now)
    }

    /// When the next timer is due that is armed already.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        match (self.shard.wheel.next(), self.time_waits.next(self.shard.now)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

fn on_connection_timeout<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
) {
    if conn.cold.timers.take_due_ack(context.now) {
        conn.flags.set(ConnFlags::ACK_NOW);
    }
    if conn.cold.recovery.deadline().is_some_and(|at| at <= context.now) {
        on_recovery_timeout(conn, shard, context);
    }
    if conn.cold.timers.take_due_attention(context.now) {
        on_attention(conn, shard, context);
    }
    let Some(rare) = shard.rares.get(conn).copied() else { return };
    if keepalive_at(conn, &rare.options).has_come(context.now) {
        on_keepalive(conn, shard, context);
    }
    if user_timeout_at(conn, &rare).has_come(context.now) {
        close::apply(conn, shard, context, Input::GiveUp(CloseReason::TimedOut));
    }
}

fn on_recovery_timeout<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
) {
    match conn.cold.recovery.on_timeout(&mut shard.records, context.now, conn.send.nxt) {
        Timeout::Nothing => {}
        Timeout::Probe => {
            context.base.counters.totals.tail_loss_probes += 1;
            conn.flags.set(ConnFlags::TAIL_PROBE_DUE);
        }
        Timeout::Retransmit { count } => {
            context.base.counters.totals.retransmission_timeouts += 1;
            conn.flags.clear(ConnFlags::TAIL_PROBE_DUE);
            if conn.flags.has(ConnFlags::ECN) {
                conn.flags.set(ConnFlags::CWR_DUE);
            }
            // Another way may be open (RFC 9293 §3.8.3, R1).
            conn.cold.hop = None;
            suspect_black_hole(conn, shard, context);
            if count > context.base.config.tcp.retries && has_no_answer(conn, shard, context) {
                close::apply(conn, shard, context, Input::GiveUp(CloseReason::TimedOut));
            }
        }
    }
}

/// R2, unless the user timeout decides. A peer whose window is closed and who answers is alive
/// (MUST-37), whatever is in flight beyond its window.
fn has_no_answer<M>(conn: &Connection, shard: &Shard, context: &Context<'_, M>) -> bool {
    let answers =
        conn.cold.timers.silence(context.now) < conn.cold.recovery.rto(&shard.records) * 2;
    shard.rares.options(conn).user_timeout_ms == 0 && !(conn.send.wnd == 0 && answers)
}

/// RFC 4821 §7.7: large segments vanish, and no ICMP says why. Smaller ones may pass. A segment
/// need not be full for that: the last one of a message may be too large as well. An outage looks
/// the same, so larger ones are tried again later (`plpmtud.rs`).
fn suspect_black_hole<M>(conn: &mut Connection, shard: &mut Shard, context: &Context<'_, M>) {
    let config = &context.base.config.tcp;
    let floor = default_mss(conn.ends.remote_address());
    // Options take part of a segment: what every path takes holds less with timestamps.
    let always_fits = u32::from(conn.mss_within(floor));
    if !config.path_mtu_discovery
        || !config.black_hole_detection
        || conn.send.flight() <= always_fits
    {
        return;
    }
    let rare = shard.rares.of(conn, context.now);
    rare.full_timeouts = rare.full_timeouts.saturating_add(1);
    if rare.full_timeouts < BLACK_HOLE_TIMEOUTS {
        return;
    }
    let next = if conn.mss > BLACK_HOLE_MSS { BLACK_HOLE_MSS.max(floor) } else { floor };
    let mss = conn.mss_within(next);
    if mss < conn.mss {
        conn.mss = mss;
        let rare = shard.rares.of(conn, context.now);
        rare.full_timeouts = 0;
        rare.search.begin_after_silence(context.now);
        conn.cold.recovery.on_packet_too_big(&mut shard.records, context.now, u32::from(mss));
    }
}

/// The one timer that is for whatever the state needs.
fn on_attention<M: Memory>(conn: &mut Connection, shard: &mut Shard, context: &mut Context<'_, M>) {
    match conn.state {
        State::SynSent(_) | State::SynReceived(_) | State::FastOpen(_) => {
            on_syn_timeout(conn, shard, context);
        }
        _ if conn.flags.has(ConnFlags::PERSIST) => on_persist(conn, shard, context),
        State::FinWait2(_) if conn.flags.has(ConnFlags::ORPHAN) => {
            close::apply(conn, shard, context, Input::GiveUp(CloseReason::TimedOut));
        }
        _ => {}
    }
}

/// MUST-22, MUST-23: a SYN is sent again as data would be.
fn on_syn_timeout<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
) {
    let config = &context.base.config.tcp;
    let most = match conn.state {
        State::SynSent(_) => config.syn_retries,
        _ => config.synack_retries,
    };
    if conn.attempts >= most {
        return close::apply(conn, shard, context, Input::GiveUp(CloseReason::TimedOut));
    }
    conn.attempts += 1;
    let wait = back_off(config.rto_initial, conn.attempts, config.rto_max);
    conn.cold.timers.attend_after(context.now, wait);
    conn.cold.hop = None;
    conn.flags.set(ConnFlags::SYN_DUE);
    context.base.counters.totals.segments_retransmitted += 1;
}

/// The window is closed, or so small that we did not want to use it (§3.8.6.1, §3.8.6.2.1).
fn on_persist<M: Memory>(conn: &mut Connection, shard: &mut Shard, context: &mut Context<'_, M>) {
    if conn.flags.take(ConnFlags::STARVED) {
        conn.flags.clear(ConnFlags::PERSIST);
        return;
    }
    if conn.send.window_room() > 0 {
        conn.flags.set(ConnFlags::OVERRIDE);
        if let Some(rare) = shard.rares.get_mut(conn) {
            rare.options.unpushed = false;
        }
        return;
    }
    // MUST-37: answers set `attempts` back, and then this goes on for ever; but not for an
    // application that is gone (RFC 6429 §3).
    let config = &context.base.config.tcp;
    let rare = shard.rares.of(conn, context.now);
    let silent = conn.attempts >= config.retries && rare.options.user_timeout_ms == 0;
    let orphan = conn.flags.has(ConnFlags::ORPHAN) && rare.probes >= config.retries;
    if silent || orphan {
        return close::apply(conn, shard, context, Input::GiveUp(CloseReason::TimedOut));
    }
    conn.attempts += 1;
    rare.probes = rare.probes.saturating_add(1);
    let probes = rare.probes;
    // SHLD-30.
    let base = conn.cold.recovery.rto(&shard.records);
    let wait = back_off(base, probes, config.rto_max);
    conn.cold.timers.attend_after(context.now, wait);
    conn.flags.set(ConnFlags::PROBE_DUE);
    context.base.counters.totals.window_probes += 1;
}

fn on_keepalive<M: Memory>(conn: &mut Connection, shard: &mut Shard, context: &mut Context<'_, M>) {
    // MUST-29: one that is not answered is no reason to give up. A peer that could not answer
    // learns of it by a RST.
    if conn.attempts >= shard.rares.options(conn).keepalive_probes {
        close::send_reset(conn, shard, context);
        return close::apply(conn, shard, context, Input::GiveUp(CloseReason::KeepaliveTimedOut));
    }
    conn.attempts += 1;
    conn.flags.set(ConnFlags::PROBE_DUE);
    context.base.counters.totals.keepalives += 1;
}
