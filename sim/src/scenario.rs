//! What a seed decides.
//!
//! Pure: a number in, a description of a world out.

use std::time::Duration;

use megapipe_stack::{CloseReason, Congestion, SynCookies, TcpConfig};

/// What a scenario is about. Each kind is drawn with the same chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioKind {
    /// Links that lose, repeat, reorder and corrupt; everything must arrive all the same.
    Faults,
    /// Many short connections at once.
    Short,
    /// A few long streams, windows and buffers of odd sizes.
    Bulk,
    /// Applications that stall, reset and go away, hosts that die and come back.
    Deaths,
    /// Streams of the same age over one bottleneck.
    Fairness,
    /// An attacker who forges segments and ICMP errors.
    Attacks,
    /// So few ports that connections wait for those of connections that are over.
    Ports,
    /// Programs on sockets, of many sorts.
    Sockets,
    /// Datagrams by sockets, and fragments of them.
    Datagrams,
    /// A host with another implementation of TCP among the others.
    Foreign,
}

/// What runs on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPrograms {
    /// A program on the stack itself.
    Stack,
    /// Sockets: many connections at once, both as client and as server.
    Events,
    /// Sockets: a server of one connection at a time, by calls that wait.
    SerialServer,
    /// Sockets: a client of one connection at a time, by calls that wait.
    SerialClient,
    /// Sockets: datagrams.
    Datagrams,
    /// smoltcp, as client and server.
    Foreign,
}

impl HostPrograms {
    /// Whether others may connect to it.
    #[must_use]
    pub const fn serves(self) -> bool {
        !matches!(self, Self::SerialClient)
    }

    /// Whether it is a program on the stack itself.
    #[must_use]
    pub const fn is_on_stack(self) -> bool {
        matches!(self, Self::Stack)
    }
}

impl ScenarioKind {
    /// Programs on the stack itself, on a network that no third party harms.
    const PLAIN: [Self; 5] = [Self::Faults, Self::Short, Self::Bulk, Self::Deaths, Self::Fairness];
    /// All others.
    const OTHERS: [Self; 5] =
        [Self::Attacks, Self::Ports, Self::Sockets, Self::Datagrams, Self::Foreign];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faults => "faults",
            Self::Short => "short",
            Self::Bulk => "bulk",
            Self::Deaths => "deaths",
            Self::Fairness => "fairness",
            Self::Attacks => "attacks",
            Self::Ports => "ports",
            Self::Sockets => "sockets",
            Self::Datagrams => "datagrams",
            Self::Foreign => "foreign",
        }
    }
}

/// What the links do to frames. Chances are in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkFaults {
    /// A frame is lost.
    pub loss: u32,
    /// A frame arrives twice.
    pub duplication: u32,
    /// A frame is overtaken by those that left up to [`LinkFaults::reordering_delay`] after it.
    pub reordering: u32,
    /// How long an overtaken frame is held back.
    pub reordering_delay: Duration,
    /// One byte of a frame is changed.
    pub corruption: u32,
}

/// A world, described.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What it was made from.
    pub seed: u64,
    /// What it is about.
    pub kind: ScenarioKind,
    /// How many hosts there are.
    pub hosts: usize,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Ethernet with ARP or NDP, instead of bare IP packets.
    pub ethernet: bool,
    /// One way, without queueing.
    pub delay: Duration,
    /// Bytes a second out of each host; `None`: no limit.
    pub bytes_per_s: Option<u64>,
    /// Frames that wait for a host's link at most.
    pub queue_frames: usize,
    /// What the links do.
    pub faults: LinkFaults,
    /// Largest IP packet, for each host.
    pub mtu: Vec<u16>,
    /// How much faster a host's clock runs than the world's, in millionths.
    pub skew_ppm: Vec<i32>,
    /// TCP's knobs, for each host.
    pub tcp: Vec<TcpConfig>,
    /// Connections that each host but the first begins.
    pub connections: usize,
    /// Bytes a connection carries at most, in each direction.
    pub bytes_max: u64,
    /// Chance in thousandths that an application stalls before it reads on.
    pub stall: u32,
    /// Chance in thousandths that a connection is reset on the way.
    pub abort: u32,
    /// When hosts die and come back.
    pub deaths: Vec<(usize, Duration)>,
    /// When a host's link is cut, and for how long.
    pub outages: Vec<(usize, Duration, Duration)>,
    /// What the way between hosts takes from some time on, in bytes of an IP packet; until the
    /// first: anything.
    pub path_mtu: Vec<(Duration, u16)>,
    /// The way says nothing about packets that it does not take (RFC 2923 §2.1).
    pub black_hole: bool,
    /// Servers have nothing to say and close at once, so that both ends close at about one time.
    pub silent_servers: bool,
    /// Connections that two hosts open towards each other at the same moment.
    pub crossing: u16,
    /// Size of the buffers that payload lies in.
    pub buf_bytes: u32,
    /// How long after the last act everything has to be quiet.
    pub patience: Duration,
    /// How many shards each host has, each with a stack and an application of its own.
    pub shards: Vec<u16>,
    /// When the listeners of a host's other shards come; until then the first accepts for all.
    /// `None`: all are there from the beginning.
    pub listeners_come: Vec<Option<Duration>>,
    /// What the attacker does; `None`: there is none.
    pub attack: Option<Attack>,
    /// The ports that connections begin at; `None`: the stack's own.
    pub client_ports: Option<(u16, u16)>,
    /// What runs on each host.
    pub programs: Vec<HostPrograms>,
}

impl Scenario {
    /// The world of `seed`.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plain = ScenarioKind::PLAIN[rng.usize(..ScenarioKind::PLAIN.len())];
        // Drawn apart, so that plain worlds are what they were before there were others.
        let mut of_others = fastrand::Rng::with_seed(seed ^ 0x6f74_6865_7273_0000);
        let is_plain = of_others.bool();
        let other = ScenarioKind::OTHERS[of_others.usize(..ScenarioKind::OTHERS.len())];
        Self::of_kind(seed, if is_plain { plain } else { other }, &mut rng)
    }

    fn of_kind(seed: u64, kind: ScenarioKind, rng: &mut fastrand::Rng) -> Self {
        // Drawn apart, so that the rest of a seed's world is what it was before hosts had shards.
        let mut of_shards = fastrand::Rng::with_seed(seed ^ 0x7368_6172_6473_0000);
        let mut of_ways = fastrand::Rng::with_seed(seed ^ 0x7761_7973_0000_0000);
        let hosts = match kind {
            ScenarioKind::Fairness => rng.usize(3..6),
            ScenarioKind::Short => rng.usize(2..9),
            _ => rng.usize(2..5),
        };
        let (connections, bytes_max) = load(kind, rng);
        let delay = Duration::from_micros(1 << rng.u32(4..16));
        let mut scenario = Self {
            seed,
            kind,
            hosts,
            v6: rng.bool(),
            ethernet: rng.bool(),
            delay,
            bytes_per_s: (kind == ScenarioKind::Fairness || rng.u32(..3) == 0)
                .then(|| 125_000 << rng.u32(1..7)),
            queue_frames: if kind == ScenarioKind::Fairness { 64 } else { rng.usize(32..1024) },
            faults: faults(kind, delay, rng),
            // A share is counted in segments: those of one size are compared.
            mtu: (0..hosts)
                .map(|_| match kind {
                    ScenarioKind::Fairness => 1500,
                    _ => [1280, 1500, 1500, 9000][rng.usize(..4)],
                })
                .collect(),
            skew_ppm: (0..hosts).map(|_| rng.i32(-200_000..200_000)).collect(),
            tcp: (0..hosts).map(|_| tcp(kind, rng)).collect(),
            connections,
            bytes_max,
            stall: match kind {
                ScenarioKind::Deaths => rng.u32(..200),
                // An application that does not read gets no share of the link.
                ScenarioKind::Fairness => 0,
                _ => rng.u32(..20),
            },
            abort: if kind == ScenarioKind::Deaths { rng.u32(1..30) } else { 0 },
            deaths: match kind {
                ScenarioKind::Deaths => (0..rng.usize(..4))
                    .map(|_| (rng.usize(..hosts), Duration::from_millis(rng.u64(1..5_000))))
                    .collect(),
                _ => Vec::new(),
            },
            buf_bytes: [256, 2048, 2048, 4096][rng.usize(..4)],
            patience: Duration::from_secs(3_600),
            shards: (0..hosts).map(|_| shards(kind, &mut of_shards)).collect(),
            // A handshake that is under way when listeners come may meet two of them, and fail.
            listeners_come: (0..hosts)
                .map(|_| Duration::from_millis(of_shards.u64(1..4_000)))
                .map(|at| (kind == ScenarioKind::Deaths).then_some(at))
                .collect(),
            outages: Vec::new(),
            path_mtu: Vec::new(),
            black_hole: false,
            silent_servers: false,
            crossing: 0,
            attack: None,
            client_ports: None,
            programs: vec![HostPrograms::Stack; hosts],
        };
        if kind != ScenarioKind::Fairness {
            scenario.draw_ways(&mut of_ways);
        }
        scenario.draw_others(&mut fastrand::Rng::with_seed(seed ^ 0x6b69_6e64_7300_0000));
        scenario
    }

    /// What only kinds of [`ScenarioKind::OTHERS`] have.
    fn draw_others(&mut self, rng: &mut fastrand::Rng) {
        match self.kind {
            ScenarioKind::Attacks => {
                let hits = rng.u32(..3) == 0;
                self.attack = Some(Attack { strikes: rng.u32(5..200), hits });
                // An end that only waits hears of a reset at the other one by keepalives alone.
                let idle = hits.then(|| Duration::from_secs(60));
                self.tcp.iter_mut().for_each(|tcp| tcp.keepalive_idle = idle);
            }
            ScenarioKind::Ports => {
                let first = rng.u16(1024..60_000);
                self.client_ports = Some((first, first + rng.u16(..12)));
                let msl = Duration::from_millis(1 << rng.u32(6..14));
                self.tcp.iter_mut().for_each(|tcp| tcp.msl = msl);
                // A shard gets the ports whose flows reach it: maybe none of so few.
                self.shards.fill(1);
            }
            ScenarioKind::Sockets => self.draw_programs(rng),
            ScenarioKind::Datagrams => {
                self.programs.fill(HostPrograms::Datagrams);
                self.crossing = 0;
            }
            ScenarioKind::Foreign => {
                self.programs[rng.usize(..self.hosts)] = HostPrograms::Foreign;
                (self.crossing, self.silent_servers) = (0, false);
                // It looks for no narrow ways.
                self.path_mtu.clear();
            }
            _ => {}
        }
    }

    fn draw_programs(&mut self, rng: &mut fastrand::Rng) {
        let first = [HostPrograms::Events, HostPrograms::SerialServer, HostPrograms::Stack];
        let others = [HostPrograms::Events, HostPrograms::SerialClient, HostPrograms::Stack];
        self.programs = (0..self.hosts)
            .map(|host| if host == 0 { first } else { others }[rng.usize(..3)])
            .collect();
        if self.programs.iter().all(|it| it.is_on_stack()) {
            self.programs[0] = HostPrograms::Events;
        }
        (self.crossing, self.silent_servers) = (0, false);
        // What waits for a peer that broke the connection hears of it by keepalives alone.
        self.tcp.iter_mut().for_each(|tcp| tcp.keepalive_idle = Some(Duration::from_secs(60)));
    }

    /// What happens to the ways between hosts, and what is rare at their ends.
    fn draw_ways(&mut self, rng: &mut fastrand::Rng) {
        if rng.u32(..3) == 0 {
            let outage = |rng: &mut fastrand::Rng| {
                let begins = Duration::from_millis(rng.u64(..3_000));
                (rng.usize(..self.hosts), begins, Duration::from_millis(1 << rng.u32(4..15)))
            };
            self.outages = (0..rng.usize(1..4)).map(|_| outage(rng)).collect();
        }
        if rng.u32(..3) == 0 {
            // RFC 791 lets links take 68 bytes; hosts of ours send no smaller packets than 576.
            let sizes: &[u16] =
                if self.v6 { &[1280, 1400, 1492] } else { &[576, 1006, 1280, 1400, 1492] };
            let change = |rng: &mut fastrand::Rng| {
                (Duration::from_millis(rng.u64(..2_000)), sizes[rng.usize(..sizes.len())])
            };
            self.path_mtu = (0..rng.usize(1..4)).map(|_| change(rng)).collect();
            self.path_mtu.sort_unstable();
            self.black_hole = rng.u32(..4) == 0;
        }
        self.silent_servers = rng.u32(..5) == 0;
        if rng.u32(..4) == 0 {
            self.crossing = rng.u16(1..8);
        }
        for tcp in &mut self.tcp {
            match rng.u32(..12) {
                // Less than a segment, and more than any window without a scale.
                0 => (tcp.receive_buffer, tcp.receive_buffer_max) = (256, 256 << rng.u32(..4)),
                1 => (tcp.receive_buffer, tcp.receive_buffer_max) = (1 << 20, 1 << 30),
                2 => (tcp.send_buffer, tcp.send_buffer_max) = (256, 256 << rng.u32(..4)),
                _ => {}
            }
        }
    }

    /// Whether a connection may end like this in this world without anybody's mistake.
    #[must_use]
    pub fn may_fail(&self, reason: CloseReason) -> bool {
        let is_reset = reason == CloseReason::ResetByPeer && self.attack.is_some_and(|it| it.hits);
        self.kind == ScenarioKind::Deaths || is_reset
    }
}

/// What an attacker does, who sees every frame and knows every number.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Chance in thousandths that a frame makes it strike.
    pub strikes: u32,
    /// Among its segments are resets that hit, which end connections.
    pub hits: bool,
}

/// Connections that each host but the first begins, and bytes that each carries at most.
fn load(kind: ScenarioKind, rng: &mut fastrand::Rng) -> (usize, u64) {
    match kind {
        ScenarioKind::Faults => (rng.usize(1..12), 1 << rng.u32(6..18)),
        ScenarioKind::Short => (rng.usize(20..120), 1 << rng.u32(4..13)),
        ScenarioKind::Bulk => (rng.usize(1..4), 1 << rng.u32(16..22)),
        ScenarioKind::Deaths => (rng.usize(2..20), 1 << rng.u32(8..17)),
        ScenarioKind::Fairness => (1, 1 << 40),
        ScenarioKind::Attacks => (rng.usize(1..8), 1 << rng.u32(10..19)),
        ScenarioKind::Ports => (rng.usize(10..60), 1 << rng.u32(4..12)),
        ScenarioKind::Sockets => (rng.usize(1..10), 1 << rng.u32(6..18)),
        ScenarioKind::Datagrams => (rng.usize(1..25), 0),
        ScenarioKind::Foreign => (rng.usize(1..6), 1 << rng.u32(6..19)),
    }
}

fn faults(kind: ScenarioKind, delay: Duration, rng: &mut fastrand::Rng) -> LinkFaults {
    let worst = match kind {
        ScenarioKind::Fairness => return LinkFaults::default(),
        ScenarioKind::Faults => 80,
        ScenarioKind::Short
        | ScenarioKind::Deaths
        | ScenarioKind::Attacks
        | ScenarioKind::Ports
        | ScenarioKind::Sockets
        | ScenarioKind::Datagrams
        | ScenarioKind::Foreign => 30,
        ScenarioKind::Bulk => 10,
    };
    LinkFaults {
        loss: rng.u32(..worst),
        duplication: rng.u32(..worst),
        reordering: rng.u32(..worst * 2),
        reordering_delay: delay.mul_f64(rng.f64() * 3.0),
        corruption: rng.u32(..worst / 2),
    }
}

fn shards(kind: ScenarioKind, rng: &mut fastrand::Rng) -> u16 {
    match (kind, rng.u32(..3)) {
        // A share is a connection's, whatever shard it is on.
        (ScenarioKind::Fairness, _) | (_, 0) => 1,
        _ => rng.u16(2..6),
    }
}

fn tcp(kind: ScenarioKind, rng: &mut fastrand::Rng) -> TcpConfig {
    let even = TcpConfig { syn_retries: 10, synack_retries: 10, ..TcpConfig::default() };
    if kind == ScenarioKind::Fairness {
        return even;
    }
    let receive_buffer = 1 << rng.u32(11..18);
    TcpConfig {
        receive_buffer,
        receive_buffer_max: receive_buffer << rng.u32(..4),
        window_scaling: rng.u32(..4) > 0,
        timestamps: rng.u32(..4) > 0,
        sack: rng.u32(..4) > 0,
        rack: rng.u32(..4) > 0,
        ecn: rng.bool(),
        nagle: rng.bool(),
        initial_window: rng.u32(1..12),
        congestion: if rng.bool() { Congestion::Cubic } else { Congestion::NewReno },
        delayed_ack: Duration::from_millis(rng.u64(..100)),
        // A cookie is lost with the first segment that carries it back: a later one has another
        // sequence number, and is answered by a RST (RFC 4987 §3.6 on the limits of cookies).
        syn_cookies: match (kind, rng.bool()) {
            (ScenarioKind::Deaths, true) => SynCookies::Always,
            _ => SynCookies::WhenFull,
        },
        // An end that only waits hears of a peer's death by keepalives alone (RFC 9293 §3.8.4).
        keepalive_idle: (kind == ScenarioKind::Deaths).then(|| Duration::from_secs(60)),
        ..even
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides() {
        let (one, again) = (Scenario::of(42), Scenario::of(42));
        assert_eq!(format!("{one:?}"), format!("{again:?}"));
        assert_ne!(format!("{one:?}"), format!("{:?}", Scenario::of(43)));
        let shards = |seed| Scenario::of(seed).shards.into_iter().max();
        assert!((0..100).any(|seed| shards(seed) > Some(1)));
        for kind in ScenarioKind::PLAIN.into_iter().chain(ScenarioKind::OTHERS) {
            assert!((0..100).any(|seed| Scenario::of(seed).kind == kind), "{}", kind.name());
        }
    }
}
