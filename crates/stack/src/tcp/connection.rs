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
//! Its parts: [`SendHalf`] and [`ReceiveHalf`], [`ConnTimers`], [`Accounting`], loss recovery
//! ([`Recovery`]), and [`Rare`] for what few connections need.
//!
//! Invariants
//! - What every segment touches comes first, in two cache lines; the third is recovery's.
//! - What few connections need is not here but in a [`Rare`].
//! - `send.una` ≤ `send.nxt` ≤ `send.una` + queued bytes + one for a FIN or a SYN.
//! - `receive.adv` never moves back (SHLD-14), and `receive.nxt` ≤ `receive.adv`.
//! - The send queue starts at `send.una`, once the SYN is acknowledged.

use core::mem::offset_of;
use core::time::Duration;

use super::accounting::Accounting;
use super::conn_timers::ConnTimers;
use super::deadline::{CoarseStamp, Stamp};
use super::flags::ConnFlags;
use super::flow_key::FlowKey;
use super::handshake::{Offer, TIMESTAMPS_BYTES};
use super::mss_search::Search;
use super::receive_queue::ReceiveQueue;
use super::recovery::{Opening, Records, Recovery};
use super::send_queue::SendQueue;
use super::state::{Closed, State};
use crate::config::TcpConfig;
use crate::error::CloseReason;
use crate::id::{ListenerId, PoolId};
use crate::ip::{Hop, Service};
use crate::seq::{SeqNum, SeqRange};
use crate::slab::{Spare, Spares};
use crate::time::Instant;

/// A connection. (One is copied only to make others of: [`Connection::blank`].)
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Connection {
    pub(crate) ends: FlowKey,
    /// Shift of windows that the peer announces.
    pub(crate) snd_scale: u8,
    /// Largest payload of a segment that carries the usual options, in bytes.
    pub(crate) mss: u16,
    /// Of its flow, in the flow table.
    pub(crate) hash: u32,
    pub(crate) flags: ConnFlags,
    pub(crate) send: SendHalf,
    pub(crate) receive: ReceiveHalf,
    pub(crate) state: State,
    /// Shift of windows that we announce.
    pub(crate) rcv_scale: u8,
    /// SYNs, window probes or keepalives that got no answer so far.
    pub(crate) attempts: u8,
    pub(crate) cold: Cold,
}

/// The sending half: send sequence space and queue.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct SendHalf {
    /// SND.UNA.
    pub(crate) una: SeqNum,
    /// SND.NXT.
    pub(crate) nxt: SeqNum,
    /// SND.WND, scaled.
    pub(crate) wnd: u32,
    /// SEG.SEQ of the last window update. SND.WL2 is not kept: an ACK below `una` updates no
    /// window, and no SND.WL2 lies above it.
    pub(crate) wl1: SeqNum,
    pub(crate) queue: SendQueue,
}

/// The receiving half: receive sequence space and queue.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ReceiveHalf {
    /// RCV.NXT.
    pub(crate) nxt: SeqNum,
    /// The right edge of the window that we announced last.
    pub(crate) adv: SeqNum,
    /// TS.Recent (RFC 7323 §4.3).
    pub(crate) ts_recent: u32,
    /// Last.ACK.sent (RFC 7323 §4.3).
    pub(crate) last_ack_sent: SeqNum,
    pub(crate) queue: ReceiveQueue,
}

/// Fields that fewer segments use, the most used ones first.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cold {
    pub(crate) timers: ConnTimers,
    pub(crate) hop: Option<Hop>,
    /// Bytes that may wait to be read: decides the window that we announce.
    pub(crate) receive_buffer: u32,
    /// Largest segment that came: guesses the peer's full size.
    pub(crate) rcv_mss: u16,
    /// When `ts_recent` was set: it grows too old to compare (RFC 7323 §5.5).
    pub(crate) ts_recent_at: CoarseStamp,
    pub(crate) recovery: Recovery,
    /// Largest window that the peer announced (RFC 5961 §5, RFC 9293 §3.8.6.2.1).
    pub(crate) snd_wnd_max: u32,
    /// End of the last segment sent that was not full (Minshall's form of Nagle's algorithm).
    pub(crate) small_end: SeqNum,
    /// Bytes that may wait to be acknowledged.
    pub(crate) send_buffer: u32,
    /// Auto-tuning: bytes that the application took since `tune_at`.
    pub(crate) taken_bytes: u32,
    pub(crate) tune_at: Stamp,
    /// The receiver's guess of the round trip, in microseconds; 0: none yet. Before our SYN is
    /// acknowledged: when it was sent first, in microseconds that wrap; 0: unknown.
    pub(crate) rtt_or_syn_at_us: u32,
    /// What is added to the clock for our timestamps.
    pub(crate) ts_offset: u32,
    /// In `Shard::rares`.
    pub(crate) rare: Spare,
    pub(crate) accounting: Accounting,
    /// MSS that the peer offered, without options.
    pub(crate) peer_mss: u16,
    pub(crate) service: Service,
    pub(crate) pool: PoolId,
    /// Index of the listener where it waits to be accepted. Of one that does not wait: the group of
    /// the listener where it began; 0: none.
    pub(crate) listener_or_group: u16,
}

/// What few connections need at all: taken when it is wanted, given back with the place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rare {
    pub(crate) options: Options,
    /// Last time that something was acknowledged, or that something was sent with nothing in
    /// flight, since this record was taken.
    pub(crate) progress_at: Stamp,
    /// One past the last urgent byte to send.
    pub(crate) snd_up: SeqNum,
    /// One past the last urgent byte received, with `ConnFlags::RCV_URGENT`.
    pub(crate) rcv_up: SeqNum,
    /// Where the peer's FIN is, with `ConnFlags::RCV_FIN`.
    pub(crate) rcv_fin: SeqNum,
    /// What came twice: goes as D-SACK with the next ACK (RFC 2883).
    /// Empty: nothing did.
    pub(crate) duplicate: SeqRange,
    /// When a segment outside the window was answered last, in milliseconds.
    pub(crate) refused_at_ms: u32,
    pub(crate) segments_retransmitted: u32,
    /// Window probes sent since the window closed, answered or not.
    pub(crate) probes: u8,
    /// Retransmission timeouts of full-sized segments in a row.
    pub(crate) full_timeouts: u8,
    /// ICMP told of trouble that may pass.
    pub(crate) soft_error: bool,
    /// `Urgent` is to be reported.
    pub(crate) urgent_moved: bool,
    /// `UnsentBelow` is to be reported.
    pub(crate) is_unsent_low: bool,
    /// `UnsentBelow` is due when fewer bytes are unsent; 0: never.
    pub(crate) report_unsent_below: u32,
    /// For larger segments, where they were made smaller.
    pub(crate) search: Search,
    pub(crate) fast_open: Role,
}

/// What Fast Open is to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    None,
    /// It began with a SYN to this listener, whose data was taken.
    Server(ListenerId),
    /// The application asked for it, and the SYN waits for its data, of which it has `room` for so
    /// many bytes.
    Held { room: u16 },
    /// The application asked for it. `sent`: bytes in the first SYN.
    Client { sent: u16 },
    /// Data went with a SYN, and was acknowledged with it.
    Arrived,
}

/// What few connections need, of a shard.
#[derive(Debug)]
pub(crate) struct Rares {
    spares: Spares<Rare>,
    /// What an application has not set.
    options: Options,
}

impl Rares {
    pub(crate) fn new(connections: u32, config: &TcpConfig) -> Self {
        Self { spares: Spares::new(connections), options: Options::new(config) }
    }

    /// What `conn` has.
    #[inline]
    pub(crate) fn get(&self, conn: &Connection) -> Option<&Rare> {
        self.spares.get(conn.cold.rare)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, conn: &Connection) -> Option<&mut Rare> {
        self.spares.get_mut(conn.cold.rare)
    }

    /// What `conn` has from now on.
    pub(crate) fn of(&mut self, conn: &mut Connection, now: Instant) -> &mut Rare {
        let (options, snd_una) = (self.options, conn.send.una);
        self.spares.get_or_take(&mut conn.cold.rare, || Rare {
            options,
            progress_at: Stamp::of(now),
            snd_up: snd_una,
            rcv_up: SeqNum(0),
            rcv_fin: SeqNum(0),
            duplicate: SeqRange::default(),
            refused_at_ms: (now.as_millis() as u32).wrapping_sub(u32::MAX / 2),
            segments_retransmitted: 0,
            probes: 0,
            full_timeouts: 0,
            soft_error: false,
            urgent_moved: false,
            is_unsent_low: false,
            report_unsent_below: 0,
            search: Search::NONE,
            fast_open: Role::None,
        })
    }

    /// The options of `conn`.
    #[inline]
    pub(crate) fn options(&self, conn: &Connection) -> &Options {
        self.get(conn).map_or(&self.options, |rare| &rare.options)
    }

    /// New connections have timers that are kept here.
    pub(crate) const fn wanted_at_once(&self) -> bool {
        self.options.has_timers()
    }

    /// `conn` is over.
    pub(crate) fn give_back(&mut self, conn: &mut Connection) {
        self.spares.give_back(&mut conn.cold.rare);
    }

    /// How many connections have one.
    pub(crate) const fn len(&self) -> u32 {
        self.spares.len()
    }

    /// See [`Spares::memory_bytes`].
    pub(crate) const fn memory_bytes(&self) -> (usize, usize) {
        self.spares.memory_bytes()
    }
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
    /// More data will follow the queued data (MSG_MORE): no PSH.
    pub(crate) unpushed: bool,
    /// The application ends records: segments do not reach across their ends.
    pub(crate) has_records: bool,
}

/// Where a connection begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    pub(crate) ends: FlowKey,
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
    /// A timer of these runs, or may have to.
    pub(crate) const fn has_timers(&self) -> bool {
        self.keepalive_idle_ms | self.user_timeout_ms != 0
    }

    fn new(config: &TcpConfig) -> Self {
        Self {
            keepalive_idle_ms: config.keepalive_idle.map_or(0, milliseconds),
            keepalive_interval_ms: milliseconds(config.keepalive_interval),
            keepalive_probes: config.keepalive_probes,
            user_timeout_ms: config.user_timeout.map_or(0, milliseconds),
            corked: false,
            held: false,
            unpushed: false,
            has_records: false,
        }
    }
}

impl Connection {
    /// What all new connections have in common.
    pub(crate) fn blank(config: &TcpConfig, records: &Records, now: Instant) -> Self {
        let mut flags = ConnFlags::default();
        flags.put(ConnFlags::NO_DELAY, !config.nagle);
        Self {
            ends: FlowKey::NONE,
            hash: 0,
            flags,
            send: SendHalf::default(),
            receive: ReceiveHalf::default(),
            mss: 0,
            state: State::Closed(Closed { reason: CloseReason::Aborted }),
            snd_scale: 0,
            rcv_scale: 0,
            attempts: 0,
            cold: Cold::blank(config, records, now),
        }
    }

    /// A connection whose SYN is numbered, and which knows nothing of its peer.
    pub(crate) fn new(blank: &Self, begin: &Begin, now: Instant) -> Self {
        let mut conn = *blank;
        conn.number(begin, now);
        conn
    }

    /// The same in the place of one that is over.
    #[inline]
    pub(crate) fn renew(&mut self, blank: &Self, begin: &Begin, now: Instant) {
        let touched = self.flags.has(ConnFlags::DIRTY);
        *self = *blank;
        self.flags.put(ConnFlags::DIRTY, touched);
        self.number(begin, now);
    }

    /// What a new connection has of its own.
    #[inline]
    fn number(&mut self, begin: &Begin, now: Instant) {
        let Begin { ends, hash, state, iss, ts_offset, pool } = *begin;
        let mss = super::handshake::default_mss(ends.remote_address());
        self.ends = ends;
        self.hash = hash;
        self.state = state;
        self.send.una = iss;
        self.send.nxt = iss + 1;
        self.mss = mss;
        let cold = &mut self.cold;
        cold.ts_offset = ts_offset;
        cold.pool = pool;
        cold.small_end = iss;
        cold.peer_mss = mss;
        // What was configured to be less is less.
        cold.rcv_mss = cold.rcv_mss.min(mss);
        cold.timers.hear(now);
        cold.tune_at = Stamp::of(now);
        cold.ts_recent_at = CoarseStamp::of(now);
    }

    /// Takes over what the SYNs agreed on; `room` is the largest payload that a packet to the
    /// peer holds, without options.
    pub(crate) fn agree(&mut self, config: &TcpConfig, offer: &Offer, room: u16) {
        self.flags.put(ConnFlags::TIMESTAMPS, offer.timestamps);
        self.flags.put(ConnFlags::SACK, offer.sack);
        self.flags.put(ConnFlags::ECN, offer.ecn);
        self.flags.put(ConnFlags::WINDOW_SCALE, offer.window_scale.is_some());
        if let Some(shift) = offer.window_scale {
            self.snd_scale = shift;
            self.rcv_scale = super::handshake::announced_scale(config);
        }
        // What was chosen smaller than the link's counts both ways (tcp(7), TCP_MAXSEG).
        self.cold.peer_mss = config.mss.map_or(offer.mss, |own| own.min(offer.mss));
        self.mss = self.mss_within(room);
    }

    /// Our SYN was acknowledged: what is sent from now on can be lost. `rtt_us` is the handshake's
    /// round trip in microseconds, if that is known for sure.
    #[inline]
    pub(crate) fn begin_recovery(&mut self, records: &Records, now: Instant, rtt_us: Option<u32>) {
        let opening = Opening {
            mss: u32::from(self.mss),
            sack: self.flags.has(ConnFlags::SACK),
            syn_retransmissions: self.attempts,
            rtt_us,
        };
        self.cold.recovery.begin(records, now, &opening);
    }

    /// The payload of a full segment where a packet has room for `room` bytes of payload and
    /// options.
    pub(crate) fn mss_within(&self, room: u16) -> u16 {
        let options = if self.flags.has(ConnFlags::TIMESTAMPS) { TIMESTAMPS_BYTES } else { 0 };
        self.cold.peer_mss.min(room).saturating_sub(options).max(1)
    }

    /// Our FIN's sequence number, if it has its place: nothing is queued behind it.
    pub(crate) fn fin_seq(&self) -> SeqNum {
        self.send.una + self.send.queue.bytes()
    }

    /// Bytes that were never sent.
    pub(crate) fn unsent(&self) -> u32 {
        let sent = self.send.flight()
            - u32::from(self.flags.has(ConnFlags::FIN_SENT) && self.state.owes_fin());
        self.send.queue.bytes().saturating_sub(sent)
    }

    /// A FIN waits behind the queue.
    pub(crate) fn fin_waits(&self) -> bool {
        self.state.owes_fin() && !self.flags.has(ConnFlags::FIN_SENT)
    }

    /// There is nothing in flight and nothing to send, as long as neither the peer nor the
    /// application says something; and no timer runs that would have to be stopped for that.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.send.queue.bytes() == 0
            && self.send.flight() == 0
            && self.state.may_send()
            && !self.flags.any(ConnFlags::PERSIST.or(ConnFlags::TAIL_PROBE_DUE))
    }

    /// The connection is closed, and the peer's whole stream arrived before that: unread bytes and
    /// the end of file are still reported.
    pub(crate) fn is_closed_whole(&self) -> bool {
        let finished = State::Closed(Closed { reason: CloseReason::Finished });
        self.state.is_closed() && (self.flags.has(ConnFlags::RCV_FIN) || self.state == finished)
    }

    /// The connection is closed, and bytes that arrived before that are still for the application:
    /// also after a RST or a time-out, as in Linux.
    pub(crate) fn is_closed_readable(&self) -> bool {
        let State::Closed(Closed { reason }) = self.state else { return false };
        reason.leaves_bytes() && self.flags.is_attached() || self.is_closed_whole()
    }

    /// The first byte that the application has not taken.
    pub(crate) fn unread_seq(&self) -> SeqNum {
        let has_fin = self.state.peer_has_closed() || self.is_closed_whole();
        self.receive.nxt - self.receive.queue.ready_bytes() - u32::from(has_fin)
    }

    /// Urgent are bytes until they are read, not until they arrive (RFC 9293 §3.8.5, MUST-33).
    pub(crate) fn pass_urgent(&mut self, rares: &Rares) {
        if self.flags.has(ConnFlags::RCV_URGENT)
            && rares.get(self).is_none_or(|rare| rare.rcv_up.at_or_before(self.unread_seq()))
        {
            self.flags.clear(ConnFlags::RCV_URGENT);
        }
    }
}

impl SendHalf {
    /// Sequence numbers in flight, a SYN's and a FIN's too.
    pub(crate) fn flight(&self) -> u32 {
        self.nxt.since(self.una)
    }

    /// Sequence numbers that the peer's window lets us send. RFC 9293 §3.8.6: a window that
    /// shrank (MUST-34) leaves none.
    pub(crate) fn window_room(&self) -> u32 {
        self.wnd.saturating_sub(self.flight())
    }
}

impl ReceiveHalf {
    /// The window that the peer may use now, in bytes.
    pub(crate) const fn wnd(&self) -> u32 {
        self.adv.since(self.nxt)
    }
}

impl Cold {
    fn blank(config: &TcpConfig, records: &Records, now: Instant) -> Self {
        let mss = config.mss.unwrap_or(u16::MAX);
        let opening =
            Opening { mss: u32::from(mss), sack: false, syn_retransmissions: 0, rtt_us: None };
        Self {
            timers: ConnTimers::new(now),
            hop: None,
            receive_buffer: config.receive_buffer,
            rcv_mss: mss,
            ts_recent_at: CoarseStamp::of(now),
            recovery: Recovery::new(records, now, &opening),
            snd_wnd_max: 0,
            small_end: SeqNum(0),
            send_buffer: config.send_buffer,
            taken_bytes: 0,
            tune_at: Stamp::of(now),
            rtt_or_syn_at_us: 0,
            ts_offset: 0,
            rare: Spare::NONE,
            accounting: Accounting::default(),
            peer_mss: mss,
            service: Service::default(),
            pool: PoolId::default(),
            listener_or_group: 0,
        }
    }
}

const _: () = assert!(
    offset_of!(Connection, cold.recovery) <= 128,
    "what every segment touches fits into two cache lines"
);

/// With its share of lists, wheel and flow table this is what an idle connection costs.
const _: () = assert!(size_of::<Connection>() == 256);
