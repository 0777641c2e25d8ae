//! A test sender: SND.UNA, SND.NXT and a clock around a [`Recovery`].

use core::time::Duration;

use super::super::*;
use crate::config::{Congestion, TcpConfig};

pub(super) const MSS: u32 = 1000;
/// Most connections of one set of records.
pub(super) const FLOWS_MAX: u32 = 16;

pub(super) struct Sender {
    pub(super) records: Records,
    pub(super) recovery: Recovery,
    pub(super) now: Instant,
    pub(super) una: SeqNum,
    pub(super) nxt: SeqNum,
    pub(super) start: SeqNum,
    pub(super) unsent: bool,
    /// Nothing waits so long that 32 bits of microseconds wrap.
    pub(super) short_waits: bool,
    /// No short way is taken, and every burst has its record.
    pub(super) full_way: bool,
}

pub(super) fn config(congestion: Congestion) -> TcpConfig {
    TcpConfig { congestion, ..TcpConfig::default() }
}

impl Sender {
    pub(super) fn new(config: &TcpConfig) -> Self {
        Self::with_capacity(config, 4096)
    }

    pub(super) fn with_capacity(config: &TcpConfig, capacity: u32) -> Self {
        let records = Records::new(capacity, FLOWS_MAX, config);
        let now = Instant::from_millis(5_000_000);
        let opening = Opening { mss: MSS, sack: config.sack, syn_retransmissions: 0, rtt_us: None };
        let recovery = Recovery::new(&records, now, &opening);
        let start = SeqNum(u32::MAX - 20_000);
        Self {
            records,
            recovery,
            now,
            una: start,
            nxt: start,
            start,
            unsent: true,
            short_waits: true,
            full_way: false,
        }
    }

    pub(super) fn wait_ms(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    pub(super) fn wait_us(&mut self, us: u64) {
        self.now += Duration::from_micros(us);
    }

    /// The segment that begins `segment` full segments behind the stream's start.
    pub(super) fn range(&self, segment: u32, segments: u32) -> SeqRange {
        SeqRange::new(self.start + segment * MSS, segments * MSS)
    }

    /// Sends `bytes` new bytes whatever the window says.
    pub(super) fn send(&mut self, bytes: u32) {
        let range = SeqRange::new(self.nxt, bytes);
        self.on_sent(range, Sent::New).expect("a record");
        self.nxt = range.end;
        self.check();
    }

    /// `range` leaves.
    pub(super) fn on_sent(&mut self, range: SeqRange, kind: Sent) -> Result<(), Full> {
        if self.full_way {
            return self.recovery.send_any(&mut self.records, self.now, range, kind);
        }
        self.recovery.on_sent(&mut self.records, self.now, range, kind)
    }

    /// Sends `segments` full segments, one record each: a microsecond apart.
    pub(super) fn send_apart(&mut self, segments: u32) {
        for _ in 0..segments {
            self.wait_us(1);
            self.send(MSS);
        }
    }

    /// Sends again what is to be sent again, as far as the window goes; which segments that was.
    pub(super) fn resend(&mut self) -> Vec<u32> {
        let mut segments = Vec::new();
        while let Some(range) = self.recovery.next_retransmission(&self.records) {
            self.on_sent(range, Sent::Retransmission).expect("a retransmission needs no record");
            segments.push(range.start.since(self.start) / MSS);
            self.check();
        }
        segments
    }

    /// How many new full segments the window allows; they are sent.
    pub(super) fn fill(&mut self) -> u32 {
        let mut segments = 0;
        while self.recovery.allowance(&self.records) >= MSS {
            self.send(MSS);
            segments += 1;
        }
        segments
    }

    /// An ACK of everything before `segment`, with SACK blocks given in segments.
    pub(super) fn ack(&mut self, segment: u32, sack: &[(u32, u32)]) -> Acked {
        self.ack_echo(segment, sack, None)
    }

    pub(super) fn ack_echo(
        &mut self,
        segment: u32,
        sack: &[(u32, u32)],
        echo_rtt: Option<Duration>,
    ) -> Acked {
        let blocks: Vec<SeqRange> =
            sack.iter().map(|(from, to)| self.range(*from, to - from)).collect();
        let ack = self.start + segment * MSS;
        self.ack_raw(ack, &blocks, echo_rtt, false)
    }

    pub(super) fn ack_raw(
        &mut self,
        ack: SeqNum,
        sack: &[SeqRange],
        echo_rtt: Option<Duration>,
        ece: bool,
    ) -> Acked {
        let input = Ack {
            now: self.now,
            ack,
            una: self.una,
            nxt: self.nxt,
            sack,
            echo_rtt,
            ece,
            window_changed: false,
            has_payload: false,
            unsent: self.unsent,
        };
        let acked = if self.full_way {
            self.recovery
                .whole(&mut self.records, |whole, records| whole.on_any_ack(records, &input))
        } else {
            self.recovery.on_ack(&mut self.records, &input)
        };
        self.una = self.una.later(ack);
        self.check();
        acked
    }

    /// Lets time run to the deadline.
    pub(super) fn time_out(&mut self) -> Timeout {
        self.now = self.recovery.deadline().expect("a timer runs").max(self.now);
        let timeout = self.recovery.on_timeout(&mut self.records, self.now, self.nxt);
        self.check();
        timeout
    }

    pub(super) fn until_deadline(&self) -> Duration {
        self.recovery.deadline().expect("a timer runs").since(self.now)
    }

    /// RACK.reo_wnd_mult.
    pub(super) fn reo_mult(&self) -> u8 {
        self.records.stresses.get(self.recovery.stress).map_or(1, |stress| stress.reo_mult)
    }

    /// Every invariant of the scoreboard.
    pub(super) fn check(&self) {
        check(&self.recovery, &self.records, self.una, self.nxt, self.short_waits);
    }
}

/// Walks all rings and compares them with the counts.
pub(super) fn check(
    recovery: &Recovery,
    records: &Records,
    una: SeqNum,
    nxt: SeqNum,
    short_waits: bool,
) {
    if recovery.head == ALONE {
        assert_eq!(recovery.unwritten(), SeqRange { start: una, end: nxt });
        assert!(recovery.phase == Phase::Open && !recovery.stress.is_some());
        assert!(recovery.deadline().is_some() && una != nxt);
        return;
    }
    let (mut sacked, mut lost, mut at) = (0, 0, una);
    let mut turns = 0;
    if recovery.head != NIL {
        let mut index = recovery.head;
        loop {
            let record = records.get(index);
            assert_eq!(record.range.start, at, "records lie end to end");
            assert!(!record.range.is_empty());
            at = record.range.end;
            match record.state {
                State::Sacked => sacked += record.len(),
                State::Lost => lost += record.len(),
                State::InFlight => {}
            }
            turns += u32::from(record.state != State::Sacked);
            index = records.next(Ring::Sequence, index);
            if index == recovery.head {
                break;
            }
        }
    }
    assert_eq!(at, nxt, "records reach from SND.UNA to SND.NXT");
    assert_eq!(recovery.outstanding(records), nxt.since(una));
    assert_eq!(recovery.lost_bytes(records), lost);
    if recovery.has(flag::SACK) {
        assert_eq!(recovery.sacked_bytes(records), sacked);
    } else {
        assert_eq!(sacked, 0, "nothing is marked without SACK");
    }
    let counted = recovery.sacked_bytes(records) + recovery.lost_bytes(records);
    assert!(counted <= recovery.outstanding(records));
    let lost_head = records.stresses.get(recovery.stress).map_or(NIL, |stress| stress.lost_head);
    let in_turn = ring(records, recovery.oldest, State::InFlight, |before, after| {
        !short_waits || !rtt::is_later(before.sent_us, after.sent_us)
    }) + ring(records, lost_head, State::Lost, |before, after| {
        before.range.start.before(after.range.start)
    });
    assert_eq!(in_turn, turns, "each record that is not SACKed has its turn");
    assert_eq!(recovery.deadline().is_some(), una != nxt, "a timer runs while bytes are out");
    assert!(recovery.cwnd() >= recovery.mss());
}

fn ring(
    records: &Records,
    head: u32,
    state: State,
    sorted: impl Fn(&records::Record, &records::Record) -> bool,
) -> u32 {
    let (mut count, mut index) = (0, head);
    while index != NIL {
        count += 1;
        assert_eq!(records.get(index).state, state);
        let next = records.next(Ring::State, index);
        if next == head {
            break;
        }
        assert!(sorted(records.get(index), records.get(next)), "a ring of a state is sorted");
        index = next;
    }
    count
}
