//! A toy network: flows that send bytes to receivers through one link with a queue, and ACKs that
//! come back. Everything is decided by one seed.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap};

use super::super::*;
use super::path::{MSS, check};
use crate::config::TcpConfig;

/// What the network does to segments and ACKs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    /// In thousandths, each way.
    pub(super) loss: u32,
    pub(super) duplication: u32,
    /// This many in a thousand take up to `late_us` longer.
    pub(super) reordering: u32,
    pub(super) late_us: u32,
    /// This many in a thousand segments make the receiver drop what waits out of order.
    pub(super) reneging: u32,
}

pub(super) const FAITHFUL: Faults =
    Faults { loss: 0, duplication: 0, reordering: 0, late_us: 0, reneging: 0 };

/// The link that all segments share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) one_way_us: u64,
    /// Bytes per millisecond.
    pub(super) rate: u64,
    /// Bytes that may wait.
    pub(super) queue: u64,
}

pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn one_in_thousand(&mut self, times: u32) -> bool {
        self.next() % 1000 < u64::from(times)
    }
}

/// A receiver: RFC 2018 §4 and RFC 2883 §4, with delayed ACKs.
#[derive(Default)]
struct Receiver {
    nxt: SeqNum,
    /// Start and length by offset from the stream's start.
    waiting: BTreeMap<u32, u32>,
    origin: SeqNum,
    recent: Vec<u32>,
    ts_recent: Option<Instant>,
    unacknowledged: u32,
}

impl Receiver {
    /// Takes a segment. Returns the D-SACK block if it was a duplicate, and whether to answer now.
    fn take(&mut self, range: SeqRange, stamp: Instant) -> (Option<SeqRange>, bool) {
        // RFC 7323 §4.3.
        if range.start.at_or_before(self.nxt) && range.end.after(self.nxt) {
            self.ts_recent = Some(stamp);
        }
        let (start, end) = (range.start.since(self.origin), range.end.since(self.origin));
        let nxt = self.nxt.since(self.origin);
        if end <= nxt {
            return (Some(range), true);
        }
        let start = start.max(nxt);
        let covered = self.waiting.iter().any(|(at, len)| *at <= start && end <= at + len);
        if covered {
            return (Some(range), true);
        }
        self.insert(start, end);
        let had_gap = !self.waiting.is_empty();
        let front = self.waiting.first_key_value().map(|(at, len)| (*at, *len));
        if let Some((at, len)) = front
            && at <= nxt
        {
            self.waiting.remove(&at);
            self.nxt = self.origin + (at + len);
            self.unacknowledged += 1;
            let in_order = range.start.since(self.origin) == nxt && self.waiting.is_empty();
            return (None, !in_order || self.unacknowledged >= 2);
        }
        (None, had_gap)
    }

    fn insert(&mut self, mut start: u32, mut end: u32) {
        let touching: Vec<(u32, u32)> = self
            .waiting
            .iter()
            .filter(|(at, len)| **at <= end && start <= **at + **len)
            .map(|(at, len)| (*at, *len))
            .collect();
        for (at, len) in touching {
            self.waiting.remove(&at);
            start = start.min(at);
            end = end.max(at + len);
        }
        self.waiting.insert(start, end - start);
        self.recent.insert(0, start);
    }

    /// The blocks to report, those that changed last first.
    fn blocks(&mut self, duplicate: Option<SeqRange>) -> Vec<SeqRange> {
        let mut blocks: Vec<SeqRange> = duplicate.into_iter().collect();
        let mut seen = Vec::new();
        for mark in &self.recent {
            let holder = self.waiting.range(..=mark).next_back();
            if let Some((at, len)) = holder
                && *mark < at + len
                && !seen.contains(at)
            {
                seen.push(*at);
                blocks.push(SeqRange::new(self.origin + *at, *len));
            }
        }
        self.recent = seen;
        blocks.truncate(4);
        blocks
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Parcel {
    Segment { range: SeqRange, stamp: Instant },
    Ack { ack: SeqNum, blocks: Vec<SeqRange>, echo: Option<Instant> },
    DelayedAck,
}

/// A sender and its receiver.
pub(super) struct Flow {
    pub(super) recovery: Recovery,
    receiver: Receiver,
    una: SeqNum,
    nxt: SeqNum,
    end: SeqNum,
    sack: bool,
    timestamps: bool,
    pub(super) segments_sent: u64,
    pub(super) probes: u64,
    pub(super) timeouts: u64,
    pub(super) undone: u64,
    pub(super) entered: u64,
}

impl Flow {
    pub(super) fn delivered(&self) -> u32 {
        self.receiver.nxt.since(self.receiver.origin)
    }

    pub(super) fn is_done(&self) -> bool {
        self.una == self.end
    }
}

/// Flows, the link, and what is on its way.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) records: Records,
    pub(super) flows: Vec<Flow>,
    link: Link,
    faults: Faults,
    rng: Rng,
    /// When the link has sent all that waits.
    busy_until: Instant,
    parcels: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    contents: BTreeMap<u64, Parcel>,
    count: u64,
}

fn micros_of(us: u64) -> Duration {
    Duration::from_micros(us)
}

impl World {
    pub(super) fn new(link: Link, faults: Faults, seed: u64, records: Records) -> Self {
        let now = Instant::from_millis(4_294_960);
        Self {
            now,
            records,
            flows: Vec::new(),
            link,
            faults,
            rng: Rng(seed),
            busy_until: now,
            parcels: BinaryHeap::new(),
            contents: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) fn add_flow(&mut self, config: &TcpConfig, bytes: u32) {
        let opening = Opening { mss: MSS, sack: config.sack, syn_retransmissions: 0, rtt_us: None };
        let recovery = Recovery::new(&self.records, self.now, &opening);
        let start = SeqNum(self.rng.next() as u32);
        let receiver = Receiver { nxt: start, origin: start, ..Receiver::default() };
        self.flows.push(Flow {
            recovery,
            receiver,
            una: start,
            nxt: start,
            end: start + bytes,
            sack: config.sack,
            timestamps: config.timestamps,
            segments_sent: 0,
            probes: 0,
            timeouts: 0,
            undone: 0,
            entered: 0,
        });
        let flow = self.flows.len() - 1;
        self.transmit(flow);
    }

    /// Runs until all is delivered or `until`; how many events that took.
    pub(super) fn run(&mut self, until: Instant) -> u64 {
        let mut events = 0;
        while !self.flows.iter().all(Flow::is_done) {
            events += 1;
            let parcel = self.parcels.peek().map(|Reverse((at, ..))| *at);
            let timer = (0..self.flows.len())
                .filter_map(|flow| Some((self.flows[flow].recovery.deadline()?, flow)))
                .min();
            let timer_at = timer.map(|(at, _)| at);
            let next = [parcel, timer_at].into_iter().flatten().min();
            let next = next.expect("a connection with work to do waits for something");
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            if parcel == Some(next) {
                let Reverse((_, id, flow)) = self.parcels.pop().expect("it was peeked at");
                let parcel = self.contents.remove(&id).expect("it was sent");
                self.arrive(flow, parcel);
            } else if let Some((_, flow)) = timer {
                self.time_out(flow);
            }
            for flow in 0..self.flows.len() {
                self.transmit(flow);
            }
        }
        events
    }

    fn arrive(&mut self, flow: usize, parcel: Parcel) {
        match parcel {
            Parcel::Segment { range, stamp } => {
                if self.rng.one_in_thousand(self.faults.reneging) {
                    self.flows[flow].receiver.waiting.clear();
                }
                let (duplicate, answer) = self.flows[flow].receiver.take(range, stamp);
                if answer {
                    self.answer(flow, duplicate);
                } else {
                    self.deliver_at(self.now + micros_of(40_000), flow, Parcel::DelayedAck);
                }
            }
            Parcel::DelayedAck => {
                if self.flows[flow].receiver.unacknowledged > 0 {
                    self.answer(flow, None);
                }
            }
            Parcel::Ack { ack, blocks, echo } => self.on_ack(flow, ack, &blocks, echo),
        }
    }

    fn answer(&mut self, flow: usize, duplicate: Option<SeqRange>) {
        let receiver = &mut self.flows[flow].receiver;
        receiver.unacknowledged = 0;
        let blocks = receiver.blocks(duplicate);
        let echo = receiver.ts_recent;
        let flow_ = &self.flows[flow];
        let blocks = if flow_.sack { blocks } else { Vec::new() };
        let echo = if flow_.timestamps { echo } else { None };
        let ack = flow_.receiver.nxt;
        let at = self.now + micros_of(self.link.one_way_us);
        self.send_faulty(at, flow, Parcel::Ack { ack, blocks, echo });
    }

    fn on_ack(&mut self, index: usize, ack: SeqNum, sack: &[SeqRange], echo: Option<Instant>) {
        let flow = &mut self.flows[index];
        if ack.before(flow.una) {
            // Old: only what RFC 9293 §3.10.7.4 lets through gets to recovery.
            return;
        }
        let input = Ack {
            now: self.now,
            ack,
            una: flow.una,
            nxt: flow.nxt,
            sack,
            echo_rtt: echo.map(|at| self.now.since(at)),
            ece: false,
            window_changed: false,
            has_payload: false,
            unsent: flow.nxt.before(flow.end),
        };
        let acked = flow.recovery.on_ack(&mut self.records, &input);
        flow.undone += u64::from(acked.undone);
        flow.entered += u64::from(acked.entered);
        assert_eq!(acked.bytes, ack.since(flow.una));
        flow.una = ack;
        self.check(index);
    }

    fn time_out(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        match flow.recovery.on_timeout(&mut self.records, self.now, flow.nxt) {
            Timeout::Nothing => {}
            Timeout::Retransmit { .. } => flow.timeouts += 1,
            Timeout::Probe => {
                flow.probes += 1;
                if flow.nxt.before(flow.end) {
                    self.send_new(index);
                } else if let Some(range) = flow.recovery.probe(&self.records) {
                    self.send(index, range, Sent::Probe);
                }
            }
        }
        self.check(index);
    }

    fn transmit(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        flow.recovery.restart_after_idle(&mut self.records, self.now);
        loop {
            let flow = &self.flows[index];
            if let Some(range) = flow.recovery.next_retransmission(&self.records) {
                self.send(index, range, Sent::Retransmission);
            } else if flow.nxt.before(flow.end)
                && flow.recovery.allowance(&self.records) >= MSS.min(flow.end.since(flow.nxt))
            {
                if !self.send_new(index) {
                    return;
                }
            } else {
                return;
            }
        }
    }

    fn send_new(&mut self, index: usize) -> bool {
        let flow = &self.flows[index];
        let range = SeqRange::new(flow.nxt, MSS.min(flow.end.since(flow.nxt)));
        self.send(index, range, Sent::New)
    }

    fn send(&mut self, index: usize, range: SeqRange, kind: Sent) -> bool {
        let flow = &mut self.flows[index];
        assert!(flow.una.at_or_before(range.start) && range.len() <= MSS && !range.is_empty());
        if flow.recovery.on_sent(&mut self.records, self.now, range, kind).is_err() {
            assert_eq!(self.records.available(), 0);
            assert_eq!(kind, Sent::New);
            return false;
        }
        flow.nxt = flow.nxt.later(range.end);
        flow.segments_sent += 1;
        self.check(index);
        // The link: a queue that drops its tail.
        let waiting = self.busy_until.since(self.now).as_micros() as u64 * self.link.rate / 1000;
        if waiting + u64::from(range.len()) > self.link.queue {
            return true;
        }
        let on_wire = micros_of(u64::from(range.len()) * 1000 / self.link.rate);
        self.busy_until = self.busy_until.max(self.now) + on_wire;
        let stamp = Instant::from_millis(self.now.as_millis());
        let at = self.busy_until + micros_of(self.link.one_way_us);
        self.send_faulty(at, index, Parcel::Segment { range, stamp });
        true
    }

    fn send_faulty(&mut self, at: Instant, flow: usize, parcel: Parcel) {
        if self.rng.one_in_thousand(self.faults.loss) {
            return;
        }
        let copies = 1 + u32::from(self.rng.one_in_thousand(self.faults.duplication));
        for _ in 0..copies {
            let mut at = at;
            if self.rng.one_in_thousand(self.faults.reordering) {
                at += micros_of(self.rng.next() % u64::from(self.faults.late_us.max(1)));
            }
            self.deliver_at(at, flow, parcel.clone());
        }
    }

    fn deliver_at(&mut self, at: Instant, flow: usize, parcel: Parcel) {
        self.count += 1;
        self.contents.insert(self.count, parcel);
        self.parcels.push(Reverse((at, self.count, flow)));
    }

    fn check(&self, index: usize) {
        // Long runs of several flows look now and then.
        if self.flows.len() > 1 && !self.count.is_multiple_of(64) {
            return;
        }
        let flow = &self.flows[index];
        check(&flow.recovery, &self.records, flow.una, flow.nxt, true);
    }
}
