//! Connection information and options, similar to TCP_INFO.

use core::time::Duration;

use super::connection::{Connection, Options, Role};
use super::dirty_list::EntryQueue;
use super::fast_open;
use super::flags::ConnFlags;
use super::lists::Lists;
use super::send_hold::Reuse;
use super::state::{State, SynReceived};
use super::{LISTS, Tcp, events, window};
use crate::context::Context;
use crate::error::OperationError;
use crate::id::ConnId;
use crate::memory::Memory;
use crate::table_memory::{TABLES, Table, TableMemory};
use crate::wheel::Wheel;

/// The state of a connection (RFC 9293 §3.3.2). TIME-WAIT is not among them: by then the connection
/// is closed, as far as an application can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TcpState {
    /// Over.
    #[default]
    Closed,
    /// Sent a SYN.
    SynSent,
    /// Sent and received a SYN.
    SynReceived,
    /// Data flows.
    Established,
    /// We closed.
    FinWait1,
    /// We closed, and the peer knows.
    FinWait2,
    /// The peer closed.
    CloseWait,
    /// Both closed at once.
    Closing,
    /// Both closed, the peer first.
    LastAck,
}

impl TcpState {
    /// Returns its name in RFC 9293.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
        }
    }

    /// Returns the number that Linux gives this state, as in `<netinet/tcp.h>`.
    #[must_use]
    pub const fn linux_number(self) -> u8 {
        match self {
            Self::Established => 1,
            Self::SynSent => 2,
            Self::SynReceived => 3,
            Self::FinWait1 => 4,
            Self::FinWait2 => 5,
            Self::Closed => 7,
            Self::CloseWait => 8,
            Self::LastAck => 9,
            Self::Closing => 11,
        }
    }
}

/// What is known about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConnInfo {
    /// Its state.
    pub state: TcpState,
    /// Smoothed round-trip time (RFC 6298); `None`: no sample yet.
    pub srtt: Option<Duration>,
    /// Its variation.
    pub rttvar: Duration,
    /// Retransmission timeout.
    pub rto: Duration,
    /// The smallest round trip of late.
    pub min_rtt: Option<Duration>,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes; `None`: not known yet.
    pub ssthresh: Option<u32>,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// Largest window that the peer announced.
    pub snd_wnd_max: u32,
    /// Our window in bytes, as the peer knows it.
    pub rcv_wnd: u32,
    /// Largest payload of a segment that we send, in bytes.
    pub mss: u16,
    /// Bytes sent and not acknowledged.
    pub flight_bytes: u32,
    /// Bytes queued, sent or not.
    pub queued_bytes: u32,
    /// Chunks queued, wholly or in part.
    pub queued_chunks: u32,
    /// Bytes sent that are known to be lost, and not sent again yet.
    pub lost_bytes: u32,
    /// Bytes that the peer has out of order.
    pub sacked_bytes: u32,
    /// Bytes received and not taken.
    pub unread_bytes: u32,
    /// Bytes received out of order.
    pub out_of_order_bytes: u32,
    /// Size of the receive buffer in bytes.
    pub receive_buffer_bytes: u32,
    /// Size of the send buffer in bytes.
    pub send_buffer_bytes: u32,
    /// Bytes received in order.
    pub bytes_in: u64,
    /// Bytes sent, retransmissions included.
    pub bytes_out: u64,
    /// Segments received.
    pub segments_in: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments sent again.
    pub segments_retransmitted: u32,
    /// Timeouts in a row without progress.
    pub timeouts: u8,
    /// The peer's window shift and ours, if windows are scaled.
    pub window_scale: Option<(u8, u8)>,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// SACK is in use.
    pub sack: bool,
    /// ECN is in use.
    pub ecn: bool,
    /// Urgent bytes that are still to be read (MUST-33); 0: none.
    pub urgent_bytes: u32,
    /// ICMP said that something is wrong, but not for good (SHLD-25).
    pub soft_error: bool,
    /// Bytes that the SYN may carry, if it waits for them ([`ConnOption::FastOpen`]); `None`: no
    /// SYN waits.
    pub syn_room: Option<u32>,
    /// Data went with a SYN and was acknowledged with it (Fast Open, RFC 7413): ours, or the
    /// peer's.
    pub syn_data: bool,
    /// Bytes queued and not sent yet.
    pub unsent_bytes: u32,
}

/// How much of its tables a stack uses. When all applications are gone and everything waited for
/// has passed, all of it is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TcpUsage {
    /// Connections, those that are over and wait to be reported too.
    pub connections: u32,
    /// Handshakes of which only the SYN has come.
    pub embryonic: u32,
    /// Connections in TIME-WAIT.
    pub time_waits: u32,
    /// Flows in the flow table.
    pub flows: u32,
    /// Chunks in the queues of all connections.
    pub chunks: u32,
    /// Records of what is in flight.
    pub records: u32,
    /// Connections with bytes behind gaps.
    pub gaps: u32,
    /// Connections that keep an account of losses, or of a window that is full.
    pub stresses: u32,
    /// Connections that have what few need: timers of their own, urgent bytes, duplicates.
    pub rares: u32,
}

/// Something that an application sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnOption {
    /// Small segments are not held back (MUST-17). What waits now goes, even if corked.
    NoDelay(bool),
    /// Nothing but full segments, until this is taken back or one RTO has passed with nothing in
    /// flight.
    Cork(bool),
    /// More follows what is queued next: until then, or until an ACK comes, only full segments
    /// leave, and the end of the queue gets no PSH. Holds for one `send` and those after it until
    /// `false`.
    More(bool),
    /// Keepalives after so much idle time; `None`: none (MUST-24).
    KeepaliveIdle(Option<Duration>),
    /// Time between keepalives.
    KeepaliveInterval(Duration),
    /// Unanswered keepalives before giving up.
    KeepaliveProbes(u8),
    /// Give up when nothing was acknowledged for so long (MUST-21); `None`: retries decide.
    UserTimeout(Option<Duration>),
    /// Receive buffer in bytes; it is not tuned any more.
    ReceiveBuffer(u32),
    /// Send buffer in bytes; it is not tuned any more.
    SendBuffer(u32),
    /// Hops that segments may go (MUST-49); at least 1.
    HopLimit(u8),
    /// Differentiated services code point of segments (MUST-48), below 64.
    Dscp(u8),
    /// Report once when fewer bytes than this are queued and not sent
    /// ([`crate::Event::UnsentBelow`]): at once if it is so now. Of several such, the largest
    /// number counts until it is reported.
    ReportUnsentBelow(u32),
    /// What was queued so far is urgent (MUST-30).
    Urgent,
    /// What was queued so far ends a record: no segment holds bytes of it and of what comes after,
    /// and its last segment is pushed. The peer sees nothing but where segments end.
    EndOfRecord,
    /// Acknowledge at once what has been received, and the next segments; `false`: late, from now
    /// on.
    QuickAck(bool),
    /// What is said of others at its local address ([`crate::Stack::holders`]).
    Reuse(Reuse),
    /// Fast Open as a client (RFC 7413). If the peer's cookie is known, the SYN waits for the first
    /// data that is queued, and carries as much of it as fits ([`ConnInfo::syn_room`]); without any
    /// it never leaves, and no timer runs. Otherwise the SYN leaves at once and requests a cookie.
    /// Data may be queued from then on; what the SYN does not carry leaves when the handshake is
    /// complete. Asked for again, a SYN that waits leaves without data; once the SYN has left it is
    /// without effect. If the network repeats the SYN, the peer's application may see its data
    /// twice.
    FastOpen,
}

impl ConnInfo {
    /// Bytes that may be queued now under a limit of unsent bytes (TCP_NOTSENT_LOWAT). As in Linux,
    /// the limit counts when a packet buffer of half the peer's largest window is begun: what was
    /// begun may be filled.
    ///
    /// ```
    /// # use megapipe_stack::ConnInfo;
    /// fn may_queue(info: &ConnInfo) -> bool {
    ///     info.room_below(128 << 10) > 0
    /// }
    /// ```
    #[must_use]
    pub fn room_below(&self, limit: u32) -> u32 {
        /// The longest packet buffer, as Linux has it without BIG TCP.
        const PACKET_BUFFER_MAX: u32 = 0xffff;
        let mss = u32::from(self.mss).max(1);
        let half = (self.snd_wnd_max / 2).min(PACKET_BUFFER_MAX);
        let buffer = (half - half % mss).max(mss);
        match self.unsent_bytes % buffer {
            0 if self.unsent_bytes >= limit => 0,
            begun => buffer - begun,
        }
    }
}

fn state(state: State) -> TcpState {
    match state {
        State::Closed(_) | State::Listen(_) | State::TimeWait(_) => TcpState::Closed,
        State::SynSent(_) => TcpState::SynSent,
        State::SynReceived(SynReceived { .. }) | State::FastOpen(_) => TcpState::SynReceived,
        State::Established(_) => TcpState::Established,
        State::FinWait1(_) => TcpState::FinWait1,
        State::FinWait2(_) => TcpState::FinWait2,
        State::CloseWait(_) => TcpState::CloseWait,
        State::Closing(_) => TcpState::Closing,
        State::LastAck(_) => TcpState::LastAck,
    }
}

/// Sets what few applications set.
fn set_few(options: &mut Options, option: ConnOption) {
    match option {
        ConnOption::Cork(on) => options.corked = on,
        ConnOption::More(on) => (options.held, options.unpushed) = (on, on),
        ConnOption::KeepaliveIdle(idle) => {
            options.keepalive_idle_ms = idle.map_or(0, milliseconds);
        }
        ConnOption::KeepaliveInterval(interval) => {
            options.keepalive_interval_ms = milliseconds(interval);
        }
        ConnOption::KeepaliveProbes(probes) => options.keepalive_probes = probes,
        ConnOption::UserTimeout(timeout) => {
            options.user_timeout_ms = timeout.map_or(0, milliseconds);
        }
        _ => {}
    }
}

/// In whole milliseconds, 1 at least: 0 means "off".
fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).max(1)
}

impl Tcp {
    /// How full the tables are.
    pub(crate) const fn usage(&self) -> TcpUsage {
        TcpUsage {
            connections: self.places.len(),
            embryonic: self.half_open.len(),
            time_waits: self.time_waits.len(),
            flows: self.shard.flows.len(),
            chunks: self.shard.nodes.len(),
            records: self.shard.records.held(),
            gaps: self.shard.nodes.out_of_orders.len(),
            stresses: self.shard.records.stressed(),
            rares: self.shard.rares.len(),
        }
    }

    /// What the tables cost.
    pub(crate) fn memory(&self) -> [TableMemory; TABLES] {
        let shard = &self.shard;
        let connections = self.half_open_from as usize;
        let entries = self.time_waits_from as usize;
        let used = self.connections.len();
        let lists = Lists::<LISTS>::ENTRY_BYTES;
        let lists = (
            entries * lists + connections * EntryQueue::ENTRY_BYTES,
            used * (lists + EntryQueue::ENTRY_BYTES),
        );
        let flows = shard.flows.memory_bytes();
        let of = |table, (reserved_bytes, touched_bytes)| TableMemory {
            table,
            reserved_bytes,
            touched_bytes,
        };
        let each = size_of::<Connection>();
        [
            of(Table::Connections, (connections * each, used * each)),
            of(Table::Places, self.places.memory_bytes()),
            of(Table::Lists, lists),
            of(Table::Wheel, (entries * Wheel::ENTRY_BYTES, used * Wheel::ENTRY_BYTES)),
            of(Table::Flows, (flows, if used > 0 { flows } else { 0 })),
            of(Table::HalfOpen, self.half_open.memory_bytes()),
            of(Table::TimeWaits, self.time_waits.memory_bytes()),
            of(Table::Chunks, shard.nodes.memory_bytes()),
            of(Table::Records, shard.records.memory_bytes()),
            of(Table::Gaps, shard.nodes.out_of_orders.memory_bytes()),
            of(Table::Stresses, shard.records.stress_memory_bytes()),
            of(Table::Rares, shard.rares.memory_bytes()),
        ]
    }

    /// # Errors
    /// The id is stale.
    pub(crate) fn info(&self, id: ConnId) -> Result<ConnInfo, OperationError> {
        if !self.places.holds(id.index, id.generation) {
            return Err(OperationError::Unknown);
        }
        let conn = self.connection(id.index);
        let (cold, accounting, rare) =
            (&conn.cold, &conn.cold.accounting, self.shard.rares.get(conn));
        let urgent = conn.flags.has(ConnFlags::RCV_URGENT);
        Ok(ConnInfo {
            state: state(conn.state),
            srtt: cold.recovery.srtt(),
            rttvar: cold.recovery.rttvar(),
            rto: cold.recovery.rto(&self.shard.records),
            min_rtt: cold.recovery.min_rtt(),
            cwnd: cold.recovery.cwnd(),
            ssthresh: cold.recovery.ssthresh(),
            snd_wnd: conn.send.wnd,
            snd_wnd_max: cold.snd_wnd_max,
            rcv_wnd: conn.receive.wnd(),
            mss: conn.mss,
            flight_bytes: conn.send.flight(),
            queued_bytes: conn.send.queue.bytes(),
            queued_chunks: conn.send.queue.chunks(),
            lost_bytes: cold.recovery.lost_bytes(&self.shard.records),
            sacked_bytes: cold.recovery.sacked_bytes(&self.shard.records),
            out_of_order_bytes: conn.receive.queue.out_of_order_bytes(&self.shard.nodes),
            unread_bytes: conn.receive.queue.ready_bytes(),
            receive_buffer_bytes: cold.receive_buffer,
            send_buffer_bytes: cold.send_buffer,
            bytes_in: accounting.bytes_in(),
            bytes_out: accounting.bytes_out(),
            segments_in: accounting.segments_in(),
            segments_out: accounting.segments_out(),
            segments_retransmitted: rare.map_or(0, |rare| rare.segments_retransmitted),
            timeouts: cold.recovery.retransmissions(),
            window_scale: conn
                .flags
                .has(ConnFlags::WINDOW_SCALE)
                .then_some((conn.snd_scale, conn.rcv_scale)),
            timestamps: conn.flags.has(ConnFlags::TIMESTAMPS),
            sack: conn.flags.has(ConnFlags::SACK),
            ecn: conn.flags.has(ConnFlags::ECN),
            urgent_bytes: rare
                .filter(|_| urgent)
                .map_or(0, |rare| rare.rcv_up.since(conn.unread_seq())),
            soft_error: rare.is_some_and(|rare| rare.soft_error),
            syn_room: rare.and_then(|rare| match rare.fast_open {
                Role::Held { room } => Some(room.into()),
                _ => None,
            }),
            syn_data: rare
                .is_some_and(|rare| matches!(rare.fast_open, Role::Server(_) | Role::Arrived)),
            unsent_bytes: conn.unsent(),
        })
    }

    /// # Errors
    /// The id is stale, or for [`ConnOption::Urgent`] and [`ConnOption::EndOfRecord`], nothing can
    /// be sent.
    pub(crate) fn set_option<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        id: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError> {
        match option {
            ConnOption::Urgent => return self.mark_urgent(context, id),
            ConnOption::EndOfRecord => return self.end_record(context, id),
            _ => {}
        }
        self.open(id)?;
        let (conn, shard) = (&mut self.connections[id.index as usize], &mut self.shard);
        match option {
            ConnOption::NoDelay(on) => {
                conn.flags.put(ConnFlags::NO_DELAY, on);
                if on && conn.unsent() > 0 {
                    conn.flags.set(ConnFlags::OVERRIDE);
                }
            }
            ConnOption::Cork(_)
            | ConnOption::More(_)
            | ConnOption::KeepaliveIdle(_)
            | ConnOption::KeepaliveInterval(_)
            | ConnOption::KeepaliveProbes(_)
            | ConnOption::UserTimeout(_) => {
                set_few(&mut shard.rares.of(conn, context.now).options, option);
            }
            ConnOption::ReceiveBuffer(bytes) => {
                let bytes = bytes.min(crate::limits::BUFFER_BYTES_MAX);
                conn.cold.receive_buffer = bytes;
                conn.flags.set(ConnFlags::FIXED_RECEIVE_BUFFER);
                window::widen(conn);
            }
            ConnOption::SendBuffer(bytes) => {
                let bytes = bytes.min(crate::limits::BUFFER_BYTES_MAX);
                conn.cold.send_buffer = bytes;
                conn.flags.set(ConnFlags::FIXED_SEND_BUFFER);
            }
            ConnOption::HopLimit(hops) => conn.cold.service.hop_limit = hops.max(1),
            ConnOption::Dscp(dscp) => conn.cold.service.dscp = dscp & 0x3f,
            ConnOption::Reuse(reuse) => shard.locals.set_reuse(&mut conn.ends, reuse),
            ConnOption::QuickAck(false) => conn.flags.set(ConnFlags::INTERACTIVE),
            ConnOption::QuickAck(true) => {
                conn.flags.clear(ConnFlags::INTERACTIVE);
                conn.flags.put(ConnFlags::ACK_NOW, conn.receive.last_ack_sent != conn.receive.nxt);
            }
            ConnOption::FastOpen => fast_open::request(conn, shard, context),
            ConnOption::ReportUnsentBelow(bytes) => {
                let rare = shard.rares.of(conn, context.now);
                rare.report_unsent_below = rare.report_unsent_below.max(bytes);
                events::note_unsent(conn, shard);
            }
            ConnOption::Urgent | ConnOption::EndOfRecord => {}
        }
        self.schedule(context, id.index);
        Ok(())
    }
}
