//! Fast path for the segments that end a connection: the last ACK, the last FIN, and a reset.
//!
//! Read first: RFC 9293 §3.6, §3.10.7.4; `mod.rs` in this folder is the slow path.
//!
//! Nothing follows these segments. So what the slow path would still measure or note for later ones
//! (round trip, windows, timers) has no reader: numbers, queues, and the place of the connection
//! are all that is left to settle. A connection that ends with FINs has no application any more
//! here; where it has one, that may ask for what the slow path keeps.
//!
//! Gain (`examples/short_connections`): a connection that ends with FINs takes 1,000 instructions
//! less.
//!
//! Invariant: the frames, events and counters are those of the slow path; a test runs both.

use super::*;
use crate::tcp::Tcp;
use crate::tcp::state::Closed;

/// Flags of a connection whose last segments need the slow path.
const UNUSUAL: ConnFlags = ConnFlags::PERSIST
    .or(ConnFlags::TAIL_PROBE_DUE)
    .or(ConnFlags::PURE_ACK)
    .or(ConnFlags::SYN_DUE)
    .or(ConnFlags::RCV_FIN)
    .or(ConnFlags::RCV_URGENT)
    .or(ConnFlags::WAITS_FOR_ACCEPT)
    .or(ConnFlags::RELEASED)
    .or(ConnFlags::ECN);

/// What the segment after which nothing is expected does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastStep {
    /// It resets an established connection.
    Reset,
    /// It acknowledges our FIN; the peer's came before.
    Forget,
    /// It has the peer's FIN, and our FIN is or was acknowledged.
    Wait,
}

impl Tcp {
    /// Takes `segment`, if it ends connection `index`. `false`: it goes the slow path, nothing
    /// happened.
    #[inline(always)]
    pub(in crate::tcp) fn on_last_segment<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        segment: &Segment<'_>,
    ) -> bool {
        let conn = &self.connections[index as usize];
        let Some(step) = last_step(conn, &self.shard, segment) else { return false };
        self.take_last_segment(context, index, (segment, step));
        true
    }

    #[inline(never)]
    fn take_last_segment<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        index: u32,
        (segment, step): (&Segment<'_>, LastStep),
    ) {
        let (conn, shard) = (&mut self.connections[index as usize], &mut self.shard);
        shard.now = context.now;
        match step {
            LastStep::Reset => {
                debug_assert!(transition(conn.state, Input::Reset).is_some());
                context.base.counters.totals.resets_in += 1;
                conn.cold.accounting.count_segment_in();
                conn.state = State::Closed(Closed { reason: CloseReason::ResetByPeer });
                conn.flags.clear(ConnFlags::RCV_FIN);
                close::release_queues(conn, shard, context);
                self.release(index);
                if !self.connections[index as usize].flags.has(ConnFlags::ORPHAN) {
                    return self.announce(index);
                }
            }
            LastStep::Forget => {
                context.base.ip.confirm(context.now, conn.cold.hop);
                debug_assert!(transition(conn.state, Input::AckOfFin).is_some());
                conn.state = State::Closed(Closed { reason: CloseReason::Finished });
                conn.send.queue.clear(&mut shard.nodes, context.memory);
                conn.cold.recovery.clear(&mut shard.records);
                self.release(index);
            }
            LastStep::Wait => {
                if conn.send.flight() > 0 {
                    context.base.ip.confirm(context.now, conn.cold.hop);
                }
                if let Some(times) = segment.options.timestamps
                    && conn.flags.has(ConnFlags::TIMESTAMPS)
                    && segment.seq.at_or_before(conn.receive.last_ack_sent)
                {
                    conn.receive.ts_recent = times.value;
                }
                conn.receive.nxt += 1;
                conn.receive.adv = conn.receive.adv.later(conn.receive.nxt);
                conn.flags.set(ConnFlags::ACK_NOW);
                self.leave_for_time_wait(context, index);
            }
        }
        let (conn, shard) = (&mut self.connections[index as usize], &mut self.shard);
        conn.receive.queue.clear(&mut shard.nodes, context.memory);
        self.free(index);
    }
}

/// What `segment` ends; `None`: nothing, or there is more to it.
#[inline(always)]
fn last_step(conn: &Connection, shard: &Shard, segment: &Segment<'_>) -> Option<LastStep> {
    #[cfg(test)]
    if shard.sends_by_slow_path {
        return None;
    }
    let (step, flags) = match conn.state {
        // RFC 5961 §3.2: only a RST that hits `rcv.nxt` counts. It may carry text (SHLD-2).
        State::Established(_) if segment.has(Flags::RST) => {
            return (segment.seq == conn.receive.nxt).then_some(LastStep::Reset);
        }
        State::LastAck(_) => (LastStep::Forget, Flags::ACK),
        State::FinWait1(_) | State::FinWait2(_) => (LastStep::Wait, Flags::ACK | Flags::FIN),
        _ => return None,
    };
    let is_last = segment.flags == flags
        && segment.payload.is_empty()
        && segment.seq == conn.receive.nxt
        && segment.ack == conn.send.nxt
        && conn.flags.has(ConnFlags::ORPHAN)
        && !conn.flags.any(UNUSUAL)
        && !conn.fin_waits()
        && conn.cold.recovery.ends_plainly(segment.ack)
        && shard.rares.get(conn).is_none()
        && !conn.receive.queue.has_gap()
        && segment.ecn != Ecn::Ce
        && segment.options.are_timestamps_alone();
    let is_old = conn.flags.has(ConnFlags::TIMESTAMPS)
        && segment
            .options
            .timestamps
            .is_some_and(|times| (times.value.wrapping_sub(conn.receive.ts_recent) as i32) < 0);
    (is_last && !is_old).then_some(step)
}
