//! An attacker who sees every frame and forges packets in the name of a peer or a router.
//!
//! Read first: RFC 5961 (blind in-window attacks), RFC 7323 §5 (PAWS), RFC 5927 and RFC 5461
//! (ICMP against TCP).
//!
//! A forgery is made when it strikes, from the numbers that the victim has then, so that what it
//! has to do is known exactly: be dropped and counted under one of its reasons, or, if it is a
//! reset at the next sequence number, end the connection.
//!
//! Invariant: nothing here is random but by the world's seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use megapipe_stack::wire::Protocol;
use megapipe_stack::wire::tcp::{Flags, Options, Repr, Timestamps};
use megapipe_stack::{ConnInfo, Drop, Instant, SeqNum, TcpState};

use crate::check::Violation;
use crate::check::segments::{RST, SYN, SeenSegment};
use crate::node::SimNode;
use crate::packets;
use crate::program::PORT;
use crate::router::{self, RouterProblem};
use crate::scenario::{Attack, Scenario};

/// Old segments that are kept to be sent again.
const KEPT: usize = 64;

/// What one end of a flow has sent.
#[derive(Debug, Clone, Copy)]
struct FlowSent {
    /// Which host it is.
    host: usize,
    /// The number of its SYN.
    first: SeqNum,
    /// The farthest number it has used, and one.
    end: SeqNum,
    /// The first value of its timestamps.
    time: Option<u32>,
}

/// What is forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForgedSegment {
    /// Outside the window.
    FarReset,
    FarSyn,
    FarData,
    FarFin,
    /// In the window, but not at its beginning.
    NearReset,
    NearSyn,
    /// At the window's beginning, acknowledging what was never sent, or what no window reaches.
    DataAckingTooMuch,
    DataAckingTooLittle,
    /// At the window's beginning, with a timestamp from the past.
    OldData,
    /// An ICMP error about a segment that is not in flight.
    FarNoPort,
    FarTooLarge,
    /// An ICMP error about a segment that may be.
    NearNoPort,
    NearNoHost,
    /// A segment of long ago, once more.
    Replay,
    /// The beginning of a connection that the peer knows nothing about.
    Spoofed,
    /// A reset at the window's beginning.
    ExactReset,
}

impl ForgedSegment {
    const ALL: [Self; 16] = [
        Self::FarReset,
        Self::FarSyn,
        Self::FarData,
        Self::FarFin,
        Self::NearReset,
        Self::NearSyn,
        Self::DataAckingTooMuch,
        Self::DataAckingTooLittle,
        Self::OldData,
        Self::FarNoPort,
        Self::FarTooLarge,
        Self::NearNoPort,
        Self::NearNoHost,
        Self::Replay,
        Self::Spoofed,
        Self::ExactReset,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::FarReset => "a reset outside the window",
            Self::FarSyn => "a SYN outside the window",
            Self::FarData => "data outside the window",
            Self::FarFin => "a FIN outside the window",
            Self::NearReset => "a reset in the window",
            Self::NearSyn => "a SYN in the window",
            Self::DataAckingTooMuch => "data that acknowledges what was never sent",
            Self::DataAckingTooLittle => "data that acknowledges what no window reaches",
            Self::OldData => "data with an old timestamp",
            Self::FarNoPort => "an unreachable port, about nothing in flight",
            Self::FarTooLarge => "a narrow way, about nothing in flight",
            Self::NearNoPort => "an unreachable port",
            Self::NearNoHost => "an unreachable host",
            Self::Replay => "an old segment",
            Self::Spoofed => "a SYN in the peer's name",
            Self::ExactReset => "a reset at the next number",
        }
    }

    /// The reason under which it has to be counted as dropped; `None`: it need not be dropped.
    const fn reason(self) -> Option<Drop> {
        match self {
            Self::FarReset | Self::FarSyn | Self::FarData | Self::FarFin => {
                Some(Drop::OutsideWindow)
            }
            Self::NearReset => Some(Drop::UnexactReset),
            Self::NearSyn => Some(Drop::SynInConnection),
            Self::DataAckingTooMuch | Self::DataAckingTooLittle => Some(Drop::BadAck),
            Self::OldData => Some(Drop::OldTimestamp),
            Self::FarNoPort | Self::FarTooLarge => Some(Drop::BadIcmpError),
            Self::NearNoPort
            | Self::NearNoHost
            | Self::Replay
            | Self::Spoofed
            | Self::ExactReset => None,
        }
    }
}

/// A connection under attack, as it is now.
struct Victim {
    local: SocketAddr,
    remote: SocketAddr,
    host: usize,
    ours: FlowSent,
    theirs: FlowSent,
    info: ConnInfo,
}

impl Victim {
    /// RCV.NXT.
    const fn next(&self) -> SeqNum {
        SeqNum(self.theirs.first.0.wrapping_add(1).wrapping_add(self.info.bytes_in as u32))
    }
}

/// The attacker of a world.
#[derive(Debug)]
pub(crate) struct Attacker {
    scenario: Scenario,
    attack: Attack,
    rng: fastrand::Rng,
    sent: BTreeMap<(SocketAddr, SocketAddr), FlowSent>,
    /// Frames of long ago, and the host that each went to.
    kept: Vec<(usize, Vec<u8>)>,
    /// Forgeries that struck.
    pub(crate) strikes: u64,
    /// Connections that were ended.
    pub(crate) hits: u64,
}

impl Attacker {
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        Some(Self {
            scenario: scenario.clone(),
            attack: scenario.attack?,
            rng: fastrand::Rng::with_seed(scenario.seed ^ 0x6174_7461_636b_0000),
            sent: BTreeMap::new(),
            kept: Vec::new(),
            strikes: 0,
            hits: 0,
        })
    }

    /// A frame goes from host `from` to host `to`. Whether that makes the attacker strike.
    pub(crate) fn sees(&mut self, (from, to): (usize, usize), frame: &[u8]) -> bool {
        let packet = &frame[packets::ethernet_bytes(&self.scenario)..];
        let Some(segment) = crate::check::segments::segment_in(packet) else { return false };
        self.note(from, &segment);
        if self.kept.len() < KEPT {
            self.kept.push((to, frame.to_vec()));
        } else if self.rng.u32(..16) == 0 {
            let place = self.rng.usize(..KEPT);
            self.kept[place] = (to, frame.to_vec());
        }
        self.rng.u32(..1_000) < self.attack.strikes
    }

    fn note(&mut self, host: usize, segment: &SeenSegment) {
        let SeenSegment { from, to, seq, flags, time, len, .. } = *segment;
        if flags & RST != 0 {
            return;
        }
        let end = seq + len + u32::from(flags & SYN != 0) + u32::from(flags & 1);
        if flags & SYN != 0 {
            self.sent.insert((from, to), FlowSent { host, first: seq, end, time });
        } else if let Some(sent) = self.sent.get_mut(&(from, to)) {
            sent.end = sent.end.later(end);
        }
    }

    /// Forges a packet and hands it to a host. Which host; `None`: there was none to attack.
    pub(crate) fn strike(
        &mut self,
        now: Instant,
        hosts: &mut [Box<dyn SimNode>],
    ) -> Result<Option<usize>, Violation> {
        let Some(victim) = self.victim(hosts) else { return Ok(None) };
        let forgery = ForgedSegment::ALL[self.rng.usize(..ForgedSegment::ALL.len())];
        if forgery == ForgedSegment::ExactReset && (!self.attack.hits || self.rng.u32(..4) > 0) {
            return Ok(None);
        }
        let Some((to, frame)) = self.forge(forgery, &victim) else { return Ok(None) };
        let host = &mut hosts[to];
        let reason = forgery.reason().unwrap_or(Drop::OutsideWindow);
        let Some(before) = host.dropped(reason) else { return Ok(None) };
        let resets_no_connection = self.resets_no_connection(&**host, &frame);
        host.on_frame(now, &frame);
        self.strikes += 1;
        let after = host.dropped(reason).unwrap_or(before);
        let resets = after.1 - before.1;
        let is_hit = forgery == ForgedSegment::ExactReset;
        self.hits += u64::from(is_hit);
        let is_gone = host.connection(victim.local, victim.remote).is_none();
        let drops = after.0 - before.0;
        let is_counted = forgery.reason().is_none() || drops == 1;
        // A segment that was lost, or is on its way, may be what the victim waits for.
        let is_replay = forgery == ForgedSegment::Replay
            && (resets == 0 || self.attack.hits || resets_no_connection);
        let is_as_it_was = resets == 0 && !is_gone;
        let has_hit = is_hit && resets == 1;
        if is_counted && (is_replay || is_as_it_was || has_hit) {
            return Ok(Some(to));
        }
        let Victim { local, remote, info, .. } = victim;
        let effect = format!(
            "{resets} resets, {drops} drops, gone: {is_gone}; {remote} to {local}, {info:?}"
        );
        Err(Violation::Forged { host: to, forgery: forgery.name(), effect })
    }

    /// The frame holds a RST of a flow without a connection. A handshake that
    /// [`ForgedSegment::Spoofed`] began ends by the RST of the host whose name was used, be it sent
    /// again.
    fn resets_no_connection(&self, host: &dyn SimNode, frame: &[u8]) -> bool {
        let packet = &frame[packets::ethernet_bytes(&self.scenario)..];
        crate::check::segments::segment_in(packet).is_some_and(|segment| {
            segment.flags & RST != 0 && host.connection(segment.to, segment.from).is_none()
        })
    }

    /// A connection that is open at both ends, seen from one of them.
    fn victim(&mut self, hosts: &mut [Box<dyn SimNode>]) -> Option<Victim> {
        let flows: Vec<_> = self.sent.keys().copied().collect();
        let (local, remote) = self.rng.choice(flows)?;
        let (ours, theirs) = (self.sent[&(local, remote)], *self.sent.get(&(remote, local))?);
        let info = hosts[ours.host].connection(local, remote)?;
        let is_open =
            matches!(info.state, TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2);
        is_open.then_some(Victim { local, remote, host: ours.host, ours, theirs, info })
    }

    /// Forges a frame, and names the host it is for; `None`: it cannot be, now.
    fn forge(&mut self, forgery: ForgedSegment, victim: &Victim) -> Option<(usize, Vec<u8>)> {
        match forgery {
            ForgedSegment::Replay => self.rng.choice(self.kept.iter()).cloned(),
            ForgedSegment::FarNoPort
            | ForgedSegment::FarTooLarge
            | ForgedSegment::NearNoPort
            | ForgedSegment::NearNoHost => Some((victim.host, self.forge_error(forgery, victim)?)),
            _ => Some((victim.host, self.forge_segment(forgery, victim)?)),
        }
    }

    fn forge_segment(&mut self, forgery: ForgedSegment, victim: &Victim) -> Option<Vec<u8>> {
        let (next, window) = (victim.next(), victim.info.rcv_wnd);
        let (mut from, mut to) = (victim.remote, victim.local);
        let flags = match forgery {
            ForgedSegment::FarReset | ForgedSegment::NearReset | ForgedSegment::ExactReset => {
                Flags::RST
            }
            ForgedSegment::FarSyn | ForgedSegment::NearSyn | ForgedSegment::Spoofed => Flags::SYN,
            ForgedSegment::FarFin => Flags::FIN | Flags::ACK,
            _ => Flags::ACK | Flags::PSH,
        };
        let is_data = flags == Flags::ACK | Flags::PSH;
        let payload = if is_data { vec![0xee; self.rng.usize(1..500)] } else { Vec::new() };
        let far = |rng: &mut fastrand::Rng| match rng.bool() {
            true => next + window + rng.u32(2..1 << 30),
            // All of it was received.
            false => next - rng.u32(600..1 << 30),
        };
        let seq = match forgery {
            ForgedSegment::FarReset
            | ForgedSegment::FarSyn
            | ForgedSegment::FarData
            | ForgedSegment::FarFin => far(&mut self.rng),
            ForgedSegment::NearReset | ForgedSegment::NearSyn if window < 2 => return None,
            ForgedSegment::NearReset | ForgedSegment::NearSyn => next + self.rng.u32(1..window),
            _ => next,
        };
        let (una, sent) = (victim.ours.end - victim.info.flight_bytes, victim.ours.end);
        let ack = match forgery {
            ForgedSegment::DataAckingTooMuch => sent + self.rng.u32(1..1 << 30),
            // No window is larger than 2^30 (RFC 7323 §2.3).
            ForgedSegment::DataAckingTooLittle => una - (1 << 30) - self.rng.u32(1..1 << 29),
            _ => sent,
        };
        let mut options = Options::default();
        if forgery == ForgedSegment::OldData {
            // The victim has seen a later one, in the SYN.
            let first = victim.theirs.time.filter(|_| victim.info.timestamps)?;
            let value = first.wrapping_sub(self.rng.u32(1..1 << 20));
            options.timestamps = Some(Timestamps { value, echo: 0 });
        }
        if forgery == ForgedSegment::Spoofed {
            from.set_port(self.rng.u16(1024..));
            to.set_port(PORT);
        }
        let ack = if flags.contains(Flags::ACK) { ack } else { SeqNum(0) };
        let header = Repr { seq, ack, flags, window: 1_000, options, ..Repr::default() };
        let bytes = packets::segment((from, to), header, &payload);
        let ends = (from.ip(), to.ip());
        Some(packets::frame(&self.scenario, victim.host, ends, Protocol::Tcp, &bytes))
    }

    fn forge_error(&mut self, forgery: ForgedSegment, victim: &Victim) -> Option<Vec<u8>> {
        let (una, sent) = (victim.ours.end - victim.info.flight_bytes, victim.ours.end);
        let is_near = matches!(forgery, ForgedSegment::NearNoPort | ForgedSegment::NearNoHost);
        let seq = match is_near {
            true if victim.info.flight_bytes == 0 => return None,
            true => una + self.rng.u32(..victim.info.flight_bytes),
            false => sent + self.rng.u32(1..1 << 30),
        };
        let header = Repr { seq, ack: victim.next(), flags: Flags::ACK, ..Repr::default() };
        let bytes = packets::segment((victim.local, victim.remote), header, &[0; 600]);
        let ends = (victim.local.ip(), victim.remote.ip());
        let whole = packets::packet(ends, Protocol::Tcp, &bytes);
        let problem = match forgery {
            ForgedSegment::FarTooLarge => RouterProblem::TooLarge { mtu: 1_280 },
            ForgedSegment::NearNoHost => RouterProblem::NoHost,
            _ => RouterProblem::NoPort,
        };
        Some(router::error(&self.scenario, victim.host, &whole[..64], problem))
    }
}
