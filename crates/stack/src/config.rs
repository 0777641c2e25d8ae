//! Configuration of a stack: settings, units and ranges.
//!
//! Read first: `limits.rs` for the ceilings. Names follow the RFCs, and where there is none, the
//! `sysctl` of Linux that does the same.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use crate::frame::Medium;
use crate::limits::{EMBRYOS_MAX, EMBRYOS_MIN, MTU_MIN_V6};

/// Configuration of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What frames start with.
    pub medium: Medium,
    /// Largest IP packet in bytes that the link takes. 576 to 65535; at least 1280 for IPv6.
    pub mtu: u16,
    /// Largest frame in bytes that `poll_transmit` may fill, over `mtu` where the link segments.
    pub tx_frame_bytes: u32,
    /// The link fills in transport checksums.
    pub tx_checksum: bool,
    /// The link cuts large TCP frames.
    pub tso: bool,
    /// Our addresses, each with the length of its on-link prefix in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// 127.0.0.0/8 and ::1 are ours as well, among connections and endpoints of ours: frames for
    /// them never leave through the link, and from the link they are dropped. ::1 needs an `mtu` of
    /// 1280.
    pub loopback: bool,
    /// Routes beyond the links' own prefixes.
    pub routes: Vec<Route>,
    /// The kernel answers ARP and NDP (shared host address): the stack does neither, and learns
    /// neighbours from [`crate::Stack::set_neighbour`] only.
    pub external_neighbours: bool,
    /// VLAN identifier that our frames carry and that frames for us must carry; `None`: untagged.
    pub vlan: Option<u16>,
    /// Most connections at once, TIME-WAIT not counted.
    pub connections: u32,
    /// Most connections in TIME-WAIT; the oldest goes first.
    pub time_waits: u32,
    /// Most listeners.
    pub listeners: u32,
    /// Most UDP endpoints.
    pub datagram_endpoints: u32,
    /// Ports that `connect` chooses from, first and last.
    pub ephemeral_ports: (u16, u16),
    /// TCP's own.
    pub tcp: TcpConfig,
    /// Secrets of this stack: sequence numbers, ports, cookies and the flow table's hash hang on
    /// them. Fresh random bytes, but in a test.
    pub secret: [u8; 32],
}

/// Packets for `prefix` go to `via`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Which destinations.
    pub prefix: IpAddr,
    /// Length of `prefix` in bits.
    pub prefix_bits: u8,
    /// The next hop; `None`: on the link.
    pub via: Option<IpAddr>,
}

/// Which algorithm decides how much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and RFC 6582.
    NewReno,
}

impl Congestion {
    /// As Linux calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::NewReno => "reno",
        }
    }
}

/// TCP's knobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpConfig {
    /// Receive buffer of a new connection in bytes.
    pub receive_buffer: u32,
    /// What it may grow to by auto-tuning; equal to `receive_buffer`: it does not grow.
    pub receive_buffer_max: u32,
    /// Receive buffer of an accepted connection until [`crate::Stack::set_pool`] names its owner;
    /// at most `receive_buffer`.
    pub unowned_receive_buffer: u32,
    /// Send queue limit of a new connection in bytes.
    pub send_buffer: u32,
    /// What it may grow to.
    pub send_buffer_max: u32,
    /// Window scaling (RFC 7323 §2).
    pub window_scaling: bool,
    /// The shift to offer; `None`: as large as `receive_buffer_max` needs.
    pub window_scale: Option<u8>,
    /// Timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Protection against wrapped sequence numbers (RFC 7323 §5), where timestamps are in use.
    pub paws: bool,
    /// Selective acknowledgments (RFC 2018), with D-SACK (RFC 2883).
    pub sack: bool,
    /// RACK-TLP (RFC 8985) where SACK is in use.
    pub rack: bool,
    /// Tail loss probes (RFC 8985 §7) where RACK is.
    pub tail_loss_probes: bool,
    /// After a timeout, new data asks whether it was needless (F-RTO, RFC 5682).
    pub frto: bool,
    /// A window that was not used for an RTO begins anew (RFC 5681 §4.1).
    pub slow_start_after_idle: bool,
    /// Explicit congestion notification (RFC 3168): ask for it. A peer that asks gets it anyway.
    pub ecn: bool,
    /// Initial window in segments (RFC 6928).
    pub initial_window: u32,
    /// Algorithm.
    pub congestion: Congestion,
    /// In slow start an ACK grows the window by 8 segments at most, in a later one by 2, after a
    /// timeout by 1 (RFC 9406 §4.2, RFC 3465 §2). Else by all that it acknowledges, as on Linux.
    pub slow_start_limits: bool,
    /// MSS to offer, and the most to use; `None`: what `mtu` allows.
    pub mss: Option<u16>,
    /// Retransmission timeout before there is a sample (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// Its lower bound.
    pub rto_min: Duration,
    /// Its upper bound.
    pub rto_max: Duration,
    /// How long an ACK may be held back (RFC 9293 §3.8.6.3; at most 500 ms). Zero: never.
    pub delayed_ack: Duration,
    /// So many of a connection's first segments are acknowledged at once, while no data goes the
    /// other way.
    pub quick_acks: u8,
    /// A FIN after text is acknowledged as late as text is: the FIN that answers it may carry the
    /// ACK. Else at once.
    pub delay_fin_ack: bool,
    /// Nagle's algorithm for new connections (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Maximum segment lifetime; TIME-WAIT lasts twice that.
    pub msl: Duration,
    /// Timeout of an orphaned connection in FIN-WAIT-2.
    pub fin_timeout: Duration,
    /// Retransmissions of a SYN before giving up.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before giving up.
    pub synack_retries: u8,
    /// Retransmissions of data before giving up, if there is no user timeout.
    pub retries: u8,
    /// Give up when nothing sent was acknowledged for so long (RFC 5482); `None`: `retries`.
    pub user_timeout: Option<Duration>,
    /// Idle time before the first keepalive; `None`: none.
    pub keepalive_idle: Option<Duration>,
    /// Time between keepalives.
    pub keepalive_interval: Duration,
    /// Unanswered keepalives before giving up.
    pub keepalive_probes: u8,
    /// SYN cookies (RFC 4987 §3.6): when the table of embryonic connections is full, or always.
    pub syn_cookies: SynCookies,
    /// Key of the cookies that listeners with Fast Open hand out, for hosts that share one
    /// (RFC 7413 §4.1.2): as Linux's `net.ipv4.tcp_fastopen_key`, with the same cookies. They are
    /// valid as long as the key. `None`: of [`Config::secret`], another one every 12 hours.
    pub fast_open_key: Option<[u8; 16]>,
    /// Most connections of a listener between SYN and its last ACK.
    pub syn_backlog: u32,
    /// Listeners that are expected. At most 4,096.
    pub awaited_listeners: Vec<AwaitedListener>,
    /// Challenge ACKs per second of the whole shard (RFC 5961 §7).
    pub challenge_acks_per_s: u32,
    /// Path MTU discovery (RFC 1191, 8201).
    pub path_mtu_discovery: bool,
    /// With it: full segments that time out again and again are sent smaller (RFC 4821 §7.7), and
    /// larger ones are tried later.
    pub black_hole_detection: bool,
}

/// An address where a listener is expected. SYNs for it are dropped while there is none, and not
/// refused, so that their senders repeat them; for [`crate::limits::LISTENER_WAIT_MAX`] at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedListener {
    /// The address, as [`crate::Stack::listen`] takes it.
    pub local: SocketAddr,
    /// Another process listens there after the listener has closed: the address is awaited again.
    pub has_successor: bool,
}

/// When SYN cookies are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SynCookies {
    /// Never: SYNs beyond [`TcpConfig::syn_backlog`] are dropped.
    Never,
    /// Beyond [`TcpConfig::syn_backlog`].
    #[default]
    WhenFull,
    /// For every SYN.
    Always,
}

impl TcpConfig {
    /// Receive buffer of a connection that a listener makes.
    pub(crate) fn accepted_receive_buffer(&self) -> u32 {
        self.receive_buffer.min(self.unowned_receive_buffer)
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            receive_buffer: 128 << 10,
            receive_buffer_max: 6 << 20,
            unowned_receive_buffer: u32::MAX,
            send_buffer: 256 << 10,
            send_buffer_max: 4 << 20,
            window_scaling: true,
            window_scale: None,
            timestamps: true,
            paws: true,
            sack: true,
            rack: true,
            tail_loss_probes: true,
            frto: true,
            slow_start_after_idle: true,
            ecn: false,
            initial_window: 10,
            congestion: Congestion::Cubic,
            slow_start_limits: true,
            mss: None,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            delay_fin_ack: false,
            nagle: true,
            msl: Duration::from_secs(30),
            fin_timeout: Duration::from_secs(60),
            // Four minutes: three are the least (RFC 9293 §3.8.3).
            syn_retries: 7,
            synack_retries: 5,
            retries: 15,
            user_timeout: None,
            keepalive_idle: None,
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            syn_cookies: SynCookies::WhenFull,
            fast_open_key: None,
            syn_backlog: 4096,
            awaited_listeners: Vec::new(),
            challenge_acks_per_s: 1000,
            path_mtu_discovery: true,
            black_hole_detection: true,
        }
    }
}

/// The addresses of [`Config::loopback`], each with the length of its prefix in bits.
pub const LOOPBACK_ADDRESSES: [(IpAddr, u8); 2] =
    [(IpAddr::V4(Ipv4Addr::LOCALHOST), 8), (IpAddr::V6(Ipv6Addr::LOCALHOST), 128)];

impl Config {
    /// Our addresses, each with the length of its prefix in bits: those on the link, and with
    /// [`Config::loopback`] [`LOOPBACK_ADDRESSES`].
    pub fn all_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        let is_possible = |ip: IpAddr| ip.is_ipv4() || self.mtu >= MTU_MIN_V6;
        let loopback = LOOPBACK_ADDRESSES.into_iter();
        let loopback = loopback.filter(move |(ip, _)| self.loopback && is_possible(*ip));
        self.addresses.iter().copied().chain(loopback)
    }

    /// Most connections between SYN and its last ACK.
    pub(crate) fn half_open_max(&self) -> u32 {
        // Not many more than can become connections: each makes the flow table larger, and slower.
        let embryos_max = self.connections.clamp(EMBRYOS_MIN, EMBRYOS_MAX);
        self.tcp.syn_backlog.saturating_mul(self.listeners).clamp(1, embryos_max)
    }

    /// Bytes that [`crate::Stack::new`] allocates at most with these settings; it ends the process
    /// where they are not to be had.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // Each bound is above what the tables take, as `channel/tests/stack_memory.rs`
        // counts it.
        const FIXED: usize = 8 << 20;
        const CONNECTION: usize = 1 << 10;
        const HALF_OPEN: usize = 160;
        const TIME_WAIT: usize = 160;
        const LISTENER: usize = 1 << 10;
        const ENDPOINT: usize = 1 << 10;
        let half_open = self.half_open_max();
        [
            (self.connections, CONNECTION),
            (half_open, HALF_OPEN),
            (self.time_waits, TIME_WAIT),
            (self.listeners, LISTENER),
            (self.datagram_endpoints, ENDPOINT),
        ]
        .iter()
        .fold(FIXED, |sum, (count, bytes)| sum.saturating_add(*count as usize * bytes))
    }

    /// A stack of one address, behind a medium of IP packets: what tests and simulations start
    /// from.
    #[must_use]
    pub fn single(address: Ipv4Addr, prefix_bits: u8, secret: [u8; 32]) -> Self {
        Self {
            medium: Medium::Ip,
            mtu: 1500,
            tx_frame_bytes: 1514,
            tx_checksum: false,
            tso: false,
            addresses: alloc::vec![(IpAddr::V4(address), prefix_bits)],
            routes: Vec::new(),
            loopback: false,
            external_neighbours: false,
            vlan: None,
            connections: 1024,
            time_waits: 1024,
            listeners: 16,
            datagram_endpoints: 16,
            ephemeral_ports: (32_768, 60_999),
            tcp: TcpConfig::default(),
            secret,
        }
    }
}
