//! The network: every host is on one segment, behind a link of its own that delays, loses,
//! repeats, reorders and corrupts. Between them is a way that may take no more than so large a
//! packet, and says so (`router.rs`) or does not.
//!
//! Pure: a frame and the time go in, the times at which it arrives (none, one, two) come out.

use std::time::Duration;

use megapipe_stack::Instant;

use crate::scenario::Scenario;
use crate::{fragments, packets, router};

/// The time in which a host asks for an address: three questions, a second apart by its own clock.
const ASKING_LASTS: Duration = Duration::from_secs(4);
/// A question or an answer that takes so long may come after the last question.
const LATE: Duration = Duration::from_millis(300);

/// A frame on its way to a host.
#[derive(Debug, Clone)]
pub(crate) struct FrameArrival {
    pub(crate) at: Instant,
    pub(crate) host: usize,
    pub(crate) frame: Vec<u8>,
}

/// The links of all hosts.
#[derive(Debug)]
pub(crate) struct Network {
    scenario: Scenario,
    rng: fastrand::Rng,
    /// When the link to a host has sent what it was given.
    busy_until: Vec<Instant>,
    /// How many times over a host's link is cut.
    cut: Vec<u32>,
    /// When the world began.
    began: Instant,
    pub(crate) lost: u64,
    /// Packets that were too large for their way.
    pub(crate) too_large: u64,
    pub(crate) corrupted: u64,
    /// Datagrams that were sent on in fragments.
    pub(crate) cut_datagrams: u32,
    /// Messages of ARP and NDP that were lost, changed or late: when, from and to.
    harmed_neighbour: Vec<(Instant, usize, usize)>,
}

impl Network {
    pub(crate) fn new(scenario: &Scenario, began: Instant) -> Self {
        Self {
            scenario: scenario.clone(),
            rng: fastrand::Rng::with_seed(scenario.seed ^ 0x6e65_7477_6f72_6b00),
            busy_until: vec![Instant::ZERO; scenario.hosts],
            cut: vec![0; scenario.hosts],
            began,
            lost: 0,
            too_large: 0,
            corrupted: 0,
            cut_datagrams: 0,
            harmed_neighbour: Vec::new(),
        }
    }

    /// Questions of `host` for the address of `peer`, and answers, that were harmed in the time
    /// that a host asks before it gives up.
    pub(crate) fn harmed_questions(&self, now: Instant, host: usize, peer: usize) -> usize {
        let is_recent = |at: Instant| now.since(at) <= ASKING_LASTS;
        let is_theirs = |from, to| (from, to) == (host, peer) || (from, to) == (peer, host);
        let harmed = self.harmed_neighbour.iter();
        harmed.filter(|(at, from, to)| is_recent(*at) && is_theirs(*from, *to)).count()
    }

    /// Cuts a host's link, or mends one cut.
    pub(crate) fn set_cut(&mut self, host: usize, cut: bool) {
        self.cut[host] = if cut { self.cut[host] + 1 } else { self.cut[host].saturating_sub(1) };
    }

    /// The largest packet that the way takes; `None`: any.
    fn path_mtu(&self, now: Instant) -> Option<u16> {
        let age = now.since(self.began);
        let changes = self.scenario.path_mtu.iter();
        changes.take_while(|(after, _)| *after <= age).last().map(|(_, mtu)| *mtu)
    }

    /// `frame` leaves host `from` at `now` for host `to`; each time that it arrives.
    pub(crate) fn carry(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
        frame: &[u8],
    ) -> Vec<FrameArrival> {
        if let Some(mtu) = self.path_mtu(now)
            && let Some(pieces) = self.pieces(frame, mtu)
        {
            return pieces.iter().flat_map(|it| self.carry_whole(now, from, to, it)).collect();
        }
        self.carry_whole(now, from, to, frame)
    }

    /// The fragments of a datagram that is larger than its way takes; `None`: it goes whole, or not
    /// at all.
    fn pieces(&mut self, frame: &[u8], mtu: u16) -> Option<Vec<Vec<u8>>> {
        let (ethernet, packet) = frame.split_at(packets::ethernet_bytes(&self.scenario));
        if packet.len() <= mtu.into() || !fragments::is_cut(packet) {
            return None;
        }
        self.cut_datagrams += 1;
        let pieces = fragments::fragments(packet, mtu, self.cut_datagrams);
        Some(pieces.iter().map(|piece| [ethernet, piece].concat()).collect())
    }

    fn carry_whole(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
        frame: &[u8],
    ) -> Vec<FrameArrival> {
        let corrupted = self.corrupted;
        let arrivals = self.carry_any(now, from, to, frame);
        if self.scenario.ethernet && is_neighbour_message(frame) {
            let is_in_time = arrivals.iter().any(|it| it.at.since(now) < LATE);
            if !is_in_time || self.corrupted > corrupted {
                self.harmed_neighbour.push((now, from, to));
            }
        }
        arrivals
    }

    fn carry_any(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
        frame: &[u8],
    ) -> Vec<FrameArrival> {
        let faults = self.scenario.faults;
        if self.cut[from] > 0 || self.cut[to] > 0 || self.happens(faults.loss) {
            self.lost += 1;
            return Vec::new();
        }
        if let Some(mtu) = self.path_mtu(now)
            && router::is_too_large(&self.scenario, frame, mtu)
        {
            self.too_large += 1;
            let at = now + self.scenario.delay;
            let told = (!self.scenario.black_hole).then(|| {
                let frame = router::too_large(&self.scenario, from, frame, mtu);
                FrameArrival { at, host: from, frame }
            });
            return told.into_iter().collect();
        }
        let Some(sent) = self.queue(now, to, frame.len()) else {
            self.lost += 1;
            return Vec::new();
        };
        let mut at = sent + self.scenario.delay;
        if self.happens(faults.reordering) {
            at += faults.reordering_delay;
        }
        let mut frame = frame.to_vec();
        if self.happens(faults.corruption) {
            self.corrupt(&mut frame);
        }
        let mut arrivals = Vec::with_capacity(2);
        if self.happens(faults.duplication) {
            let again = at + Duration::from_micros(self.rng.u64(..1_000));
            arrivals.push(FrameArrival { at: again, host: to, frame: frame.clone() });
        }
        arrivals.push(FrameArrival { at, host: to, frame });
        arrivals
    }

    /// When the link to host `to`, which all that send to it share, has sent the frame; `None`: its
    /// queue is full.
    fn queue(&mut self, now: Instant, to: usize, len: usize) -> Option<Instant> {
        let Some(rate) = self.scenario.bytes_per_s else { return Some(now) };
        let nanos = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / rate);
        let start = self.busy_until[to].max(now);
        if start.since(now) > nanos(self.scenario.queue_frames as u64 * 1_500) {
            return None;
        }
        self.busy_until[to] = start + nanos(len as u64);
        Some(self.busy_until[to])
    }

    /// Changes a bit that the IP or the transport checksum covers. What only Ethernet's own check
    /// sequence protects, ARP and its header, arrives whole or not at all.
    fn corrupt(&mut self, frame: &mut [u8]) {
        let start = if self.scenario.ethernet { 14 } else { 0 };
        if start > 0 && frame.get(12..14) == Some(&[0x08, 0x06]) {
            return;
        }
        self.corrupted += 1;
        let place = self.rng.usize(start..frame.len());
        frame[place] ^= 1 << self.rng.u32(..8);
    }

    fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.u32(..1_000) < thousandths
    }
}

/// The frame asks for a link-layer address, or answers such a question.
fn is_neighbour_message(frame: &[u8]) -> bool {
    let is_arp = frame.get(12..14) == Some(&[0x08, 0x06]);
    let is_icmp6 = frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58);
    is_arp || is_icmp6 && matches!(frame.get(54), Some(135 | 136))
}
