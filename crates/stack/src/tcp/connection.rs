//! The record of one connection (RFC 9293 §3.3.1: the transmission control block).
//!
//! ```text
//!        1         2          3                        1          2          3
//!   ----------|----------|----------              ----------|----------|----------
//!          SND.UNA    SND.NXT    SND.UNA              RCV.NXT    RCV.ADV
//!                               +SND.WND
//!   1 acknowledged, 2 in flight, 3 may be sent    1 received, 2 what we have offered room for
//! ```
//!
//! Invariants
//! - What every segment touches comes first; everything from `receive` on is beside that, and from
//!   `cold` on belongs to handshakes, timers and exceptions.
//! - `snd_una` ≤ `snd_nxt` ≤ `snd_una` + queued bytes + one for a FIN or a SYN.
//! - `rcv_adv` never moves back (SHLD-14), and `rcv_nxt` ≤ `rcv_adv`.
//! - The send queue starts at `snd_una`, once the SYN is acknowledged.

use core::mem::offset_of;
use core::time::Duration;

use super::deadline::{Deadline, Stamp};
use super::facts::Facts;
use super::handshake::{Offer, TIMESTAMPS_BYTES};
use super::receive_queue::ReceiveQueue;
use super::recovery::{Opening, Records, Recovery};
use super::send_queue::SendQueue;
use super::state::{Closed, State};
use crate::config::TcpConfig;
use crate::error::CloseReason;
use crate::flow_table::Flow;
use crate::id::PoolId;
use crate::ip::{Hop, Service};
use crate::seq::{SeqNum, SeqRange};
use crate::time::Instant;

/// A connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Connection {
    pub(crate) flow: Flow,
    pub(crate) state: State,
    /// Of `flow`, in the flow table.
    pub(crate) hash: u32,
    /// Largest payload of a segment that carries the usual options, in bytes.
    pub(crate) mss: u16,
    /// Shift of windows that the peer announces.
    pub(crate) snd_scale: u8,
    /// Shift of windows that we announce.
    pub(crate) rcv_scale: u8,
    pub(crate) facts: Facts,
    pub(crate) snd_una: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) snd_wnd: u32,
    /// SEG.SEQ of the last window update. SND.WL2 is not kept: an ACK below `snd_una` updates no
    /// window, and no SND.WL2 lies above it.
    pub(crate) snd_wl1: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    /// The right edge of the window that we announced last.
    pub(crate) rcv_adv: SeqNum,
    /// TS.Recent (RFC 7323 §4.3).
    pub(crate) ts_recent: u32,
    /// Last.ACK.sent (RFC 7323 §4.3).
    pub(crate) last_ack_sent: SeqNum,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    pub(crate) cold: Cold,
}

/// What few segments touch.
#[derive(Debug)]
pub(crate) struct Cold {
    pub(crate) recovery: Recovery,
    pub(crate) hop: Option<Hop>,
    /// What is added to the clock for our timestamps.
    pub(crate) ts_offset: u32,
    /// When `ts_recent` was set, in milliseconds: it grows too old to compare (RFC 7323 §5.5).
    pub(crate) ts_recent_at_ms: u32,
    /// Largest window that the peer announced (RFC 5961 §5, RFC 9293 §3.8.6.2.1).
    pub(crate) snd_wnd_max: u32,
    /// End of the last segment sent that was not full (Minshall's form of Nagle's algorithm).
    pub(crate) small_end: SeqNum,
    /// One past the last urgent byte to send.
    pub(crate) snd_up: SeqNum,
    /// One past the last urgent byte received.
    pub(crate) rcv_up: SeqNum,
    /// Bytes that may wait to be read: decides the window that we announce.
    pub(crate) receive_buffer: u32,
    /// Bytes that may wait to be acknowledged.
    pub(crate) send_buffer: u32,
    /// Auto-tuning: bytes that the application took since `tune_at`.
    pub(crate) taken_bytes: u32,
    pub(crate) tune_at: Stamp,
    /// The receiver's guess of the round trip, in microseconds; 0: none yet.
    pub(crate) rcv_rtt_us: u32,
    /// A delayed ACK is sent at this time.
    pub(crate) ack_at: Deadline,
    /// SYN, window probe, keepalive's answer, or the end of an orphan: what it is hangs on state
    /// and facts.
    pub(crate) attend_at: Deadline,
    /// Last time that a segment came.
    pub(crate) heard_at: Stamp,
    /// When our SYN was sent first, in microseconds that wrap; 0: nobody knows.
    pub(crate) syn_at_us: u32,
    /// Last time that something was acknowledged, or that something was sent with nothing in
    /// flight.
    pub(crate) progress_at: Stamp,
    /// SYNs, window probes or keepalives that got no answer so far.
    pub(crate) attempts: u8,
    /// Window probes sent since the window closed, answered or not.
    pub(crate) probes: u8,
    /// Retransmission timeouts of full-sized segments in a row.
    pub(crate) full_timeouts: u8,
    /// When a segment outside the window was answered last, in milliseconds.
    pub(crate) refused_at_ms: u32,
    /// Largest segment that came: guesses the peer's full size.
    pub(crate) rcv_mss: u16,
    /// MSS that the peer offered, without options.
    pub(crate) peer_mss: u16,
    pub(crate) service: Service,
    /// ICMP told of trouble that may pass.
    pub(crate) soft_error: bool,
    pub(crate) pool: PoolId,
    /// Index of the listener that it waits for to be accepted.
    pub(crate) listener: u32,
    /// Chunks acknowledged and not reported.
    pub(crate) acked_chunks: u32,
    /// Where the peer's FIN is, with `Facts::RCV_FIN`.
    pub(crate) rcv_fin: SeqNum,
    /// What came twice: goes as D-SACK with the next ACK (RFC 2883).
    /// Empty: nothing did.
    pub(crate) duplicate: SeqRange,
    pub(crate) options: Options,
    pub(crate) tally: Tally,
}

/// What an application may set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Milliseconds; 0: off.
    pub(crate) keepalive_idle_ms: u32,
    pub(crate) keepalive_interval_ms: u32,
    pub(crate) keepalive_probes: u8,
    /// Milliseconds; 0: `retries` decide.
    pub(crate) user_timeout_ms: u32,
    /// Only full segments leave.
    pub(crate) corked: bool,
    /// The same, until an ACK comes.
    pub(crate) held: bool,
    /// The end of the queue is not the end of what the application has to say: no PSH.
    pub(crate) unpushed: bool,
}

/// What is counted of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) segments_in: u32,
    pub(crate) segments_out: u32,
    pub(crate) segments_retransmitted: u32,
}

/// Where a connection begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    pub(crate) flow: Flow,
    pub(crate) hash: u32,
    pub(crate) state: State,
    pub(crate) iss: SeqNum,
    pub(crate) ts_offset: u32,
    pub(crate) pool: PoolId,
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl Options {
    fn new(config: &TcpConfig) -> Self {
        Self {
            keepalive_idle_ms: config.keepalive_idle.map_or(0, milliseconds),
            keepalive_interval_ms: milliseconds(config.keepalive_interval),
            keepalive_probes: config.keepalive_probes,
            user_timeout_ms: config.user_timeout.map_or(0, milliseconds),
            corked: false,
            held: false,
            unpushed: false,
        }
    }
}

impl Connection {
    /// A connection whose SYN is numbered, and which knows nothing of its peer.
    pub(crate) fn new(config: &TcpConfig, records: &Records, begin: &Begin, now: Instant) -> Self {
        let Begin { flow, state, iss, .. } = *begin;
        let mut facts = Facts::default();
        facts.put(Facts::NO_DELAY, !config.nagle);
        Self {
            flow,
            state,
            hash: begin.hash,
            mss: super::handshake::default_mss(flow.remote),
            snd_scale: 0,
            rcv_scale: 0,
            facts,
            snd_una: iss,
            snd_nxt: iss + 1,
            snd_wnd: 0,
            snd_wl1: SeqNum(0),
            rcv_nxt: SeqNum(0),
            rcv_adv: SeqNum(0),
            ts_recent: 0,
            last_ack_sent: SeqNum(0),
            send: SendQueue::default(),
            receive: ReceiveQueue::default(),
            cold: Cold::new(config, records, begin, now),
        }
    }

    /// Takes over what the SYNs agreed on; `room` is the largest payload that a packet to the
    /// peer holds, without options.
    pub(crate) fn agree(&mut self, config: &TcpConfig, offer: &Offer, room: u16) {
        self.facts.put(Facts::TIMESTAMPS, offer.timestamps);
        self.facts.put(Facts::SACK, offer.sack);
        self.facts.put(Facts::ECN, offer.ecn);
        self.facts.put(Facts::WINDOW_SCALE, offer.window_scale.is_some());
        if let Some(shift) = offer.window_scale {
            self.snd_scale = shift;
            self.rcv_scale = super::handshake::announced_scale(config);
        }
        self.cold.peer_mss = offer.mss;
        self.mss = self.mss_within(room);
    }

    /// Our SYN was acknowledged: what is sent from now on can be lost. `rtt` is the handshake's
    /// round trip, if that is known for sure.
    pub(crate) fn begin_recovery(
        &mut self,
        records: &Records,
        now: Instant,
        rtt: Option<Duration>,
    ) {
        let opening = Opening {
            mss: u32::from(self.mss),
            sack: self.facts.has(Facts::SACK),
            syn_retransmissions: self.cold.attempts,
            rtt,
        };
        self.cold.recovery = Recovery::new(records, now, &opening);
    }

    /// The payload of a full segment where a packet has room for `room` bytes of payload and
    /// options.
    pub(crate) fn mss_within(&self, room: u16) -> u16 {
        let options = if self.facts.has(Facts::TIMESTAMPS) { TIMESTAMPS_BYTES } else { 0 };
        self.cold.peer_mss.min(room).saturating_sub(options).max(1)
    }

    /// Our FIN's sequence number, if it has its place: nothing is queued behind it.
    pub(crate) fn fin_seq(&self) -> SeqNum {
        self.snd_una + self.send.bytes()
    }

    /// Sequence numbers in flight, a SYN's and a FIN's too.
    pub(crate) fn flight(&self) -> u32 {
        self.snd_nxt.since(self.snd_una)
    }

    /// Bytes that were never sent.
    pub(crate) fn unsent(&self) -> u32 {
        let sent =
            self.flight() - u32::from(self.facts.has(Facts::FIN_SENT) && self.state.owes_fin());
        self.send.bytes().saturating_sub(sent)
    }

    /// A FIN waits behind the queue.
    pub(crate) fn fin_waits(&self) -> bool {
        self.state.owes_fin() && !self.facts.has(Facts::FIN_SENT)
    }

    /// Sequence numbers that the peer's window lets us send. RFC 9293 §3.8.6: a window that
    /// shrank (MUST-34) leaves none.
    pub(crate) fn window_room(&self) -> u32 {
        self.snd_wnd.saturating_sub(self.flight())
    }

    /// The first byte that the application has not taken.
    pub(crate) fn unread_seq(&self) -> SeqNum {
        let finished = State::Closed(Closed { reason: CloseReason::Finished });
        let has_fin = self.state.peer_has_closed() || self.state == finished;
        self.rcv_nxt - self.receive.ready_bytes() - u32::from(has_fin)
    }

    /// Urgent are bytes until they are read, not until they arrive (RFC 9293 §3.8.5, MUST-33).
    pub(crate) fn pass_urgent(&mut self) {
        if self.facts.has(Facts::RCV_URGENT) && self.cold.rcv_up.at_or_before(self.unread_seq()) {
            self.facts.clear(Facts::RCV_URGENT);
        }
    }

    /// The window that the peer may use now, in bytes.
    pub(crate) fn rcv_wnd(&self) -> u32 {
        self.rcv_adv.since(self.rcv_nxt)
    }
}

impl Cold {
    fn new(config: &TcpConfig, records: &Records, begin: &Begin, now: Instant) -> Self {
        let mss = super::handshake::default_mss(begin.flow.remote);
        let opening =
            Opening { mss: u32::from(mss), sack: false, syn_retransmissions: 0, rtt: None };
        Self {
            recovery: Recovery::new(records, now, &opening),
            hop: None,
            ts_offset: begin.ts_offset,
            ts_recent_at_ms: 0,
            snd_wnd_max: 0,
            small_end: begin.iss,
            snd_up: begin.iss,
            rcv_up: SeqNum(0),
            receive_buffer: config.receive_buffer,
            send_buffer: config.send_buffer,
            taken_bytes: 0,
            tune_at: Stamp::of(now),
            rcv_rtt_us: 0,
            ack_at: Deadline::NEVER,
            attend_at: Deadline::NEVER,
            heard_at: Stamp::of(now),
            syn_at_us: 0,
            progress_at: Stamp::of(now),
            attempts: 0,
            probes: 0,
            full_timeouts: 0,
            refused_at_ms: (now.as_millis() as u32).wrapping_sub(u32::MAX / 2),
            rcv_mss: config.mss.map_or(mss, |own| own.min(mss)),
            peer_mss: mss,
            service: Service::default(),
            soft_error: false,
            pool: begin.pool,
            listener: 0,
            acked_chunks: 0,
            rcv_fin: SeqNum(0),
            duplicate: SeqRange::default(),
            options: Options::new(config),
            tally: Tally::default(),
        }
    }
}

const _: () = assert!(
    offset_of!(Connection, receive) <= 128,
    "what every segment touches fits into two cache lines"
);

/// With its share of lists, wheel and flow table this is what an idle connection costs.
const _: () = assert!(size_of::<Connection>() <= 448);
