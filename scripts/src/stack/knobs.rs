//! Knobs of scripts as settings of the stack.
//!
//! Invariants: a knob is done only if the stack behaves as its value says, either because a setting
//! follows it or because that is what the stack does anyway. Everything else is unknown, so that a
//! script's report shows it.

use std::time::Duration;

use megapipe_stack::{Congestion, SynCookies, TcpConfig};

use crate::knobs::Knob;
use crate::system::KnobResult;

/// Fixed behaviour of the stack: names, and the values that match it.
const AS_IS: &[(&str, &[&str])] = &[
    ("net.ipv4.tcp_dsack", &["1"]),
    ("net.ipv4.tcp_fack", &["0", "1"]),
    ("net.ipv4.tcp_reordering", &["3"]),
    ("net.ipv4.tcp_rfc1337", &["1"]),
    ("net.ipv4.tcp_abort_on_overflow", &["0"]),
    ("net.ipv4.tcp_moderate_rcvbuf", &["1"]),
    ("net.ipv4.tcp_no_metrics_save", &["1"]),
    ("net.ipv4.tcp_autocorking", &["0", "1"]),
    ("net.ipv4.tcp_notsent_lowat", &["4294967295"]),
    ("net.ipv4.ip_default_ttl", &["64"]),
    // A listener with the option has it.
    ("net.ipv4.tcp_fastopen", &["0", "1", "2", "3", "0x0", "0x1", "0x2", "0x3"]),
    ("device.tso", &["off"]),
    ("device.gso", &["off"]),
    ("device.gro", &["off"]),
    ("net.inet.tcp.blackhole", &["0"]),
    ("net.inet.tcp.rfc3042", &["1"]),
    ("net.inet.tcp.rfc5827", &["0"]),
    ("net.inet.tcp.rfc6675_pipe", &["0", "1"]),
    ("net.inet.tcp.insecure_rst", &["0"]),
    ("net.inet.tcp.insecure_syn", &["0"]),
    ("net.inet.tcp.tso", &["0", "1"]),
];

/// What has no counterpart here, whatever it is set to: how Linux cuts, paces and counts, and what
/// it remembers of peers.
const WITHOUT_EFFECT: &[&str] = &[
    "net.ipv4.tcp_min_tso_segs",
    "net.ipv4.tcp_tso_win_divisor",
    "net.ipv4.tcp_pacing_ss_ratio",
    "net.ipv4.tcp_pacing_ca_ratio",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_retries1",
    "net.ipv4.tcp_low_latency",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.somaxconn",
    "net.core.default_qdisc",
    "net.inet.tcp.hostcache.enable",
    "net.inet.tcp.hostcache.purge",
    "net.inet.tcp.hostcache.purgenow",
    "net.inet.tcp.rexmit_drop_options",
    "net.inet.tcp.log_debug",
    "net.inet.tcp.do_autorcvbuf",
    "net.inet.tcp.do_autosndbuf",
];

/// What scripts turn on in order to try it, and the stack has not: names, values, and what it is.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("net.ipv4.tcp_ecn", &["3", "4", "5"], "accurate ECN (RFC 9768)"),
    ("net.inet.tcp.ecn.plusplus", &["1", "2"], "ECN in control packets"),
    ("net.inet.tcp.insecure_rst", &["1"], "resets as before RFC 5961"),
    ("net.inet.tcp.insecure_syn", &["1"], "SYNs as before RFC 5961"),
    ("net.inet.tcp.rfc5827", &["1"], "early retransmit (RFC 5827)"),
    (
        "net.ipv4.tcp_fastopen",
        &["0x202", "0x207", "0x402", "0x602"],
        "TCP Fast Open of every listener",
    ),
    ("net.ipv4.tcp_shrink_window", &["1"], "windows that shrink"),
    ("net.ipv4.tcp_mtu_probing", &["2"], "path MTU discovery without ICMP (RFC 4821)"),
];

/// What the stack under test is made with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Knobs {
    pub(super) tcp: TcpConfig,
    pub(super) mtu: u16,
}

/// Turns a knob of the configuration.
pub(super) fn set_knob(config: &mut Knobs, knob: &Knob) -> KnobResult {
    let (name, value) = (knob.name.as_str(), knob.value.as_str());
    if let Some((_, _, what)) = REFUSED.iter().find(|(n, v, _)| *n == name && v.contains(&value)) {
        return KnobResult::Refused(what);
    }
    if WITHOUT_EFFECT.contains(&name) {
        return KnobResult::Done;
    }
    if let Some((_, values)) = AS_IS.iter().find(|(known, _)| *known == name) {
        return if values.contains(&value) { KnobResult::Done } else { KnobResult::Unknown };
    }
    let done = switch(&mut config.tcp, name, value)
        .or_else(|| number(&mut config.tcp, name, value))
        .or_else(|| time(&mut config.tcp, name, value))
        .or_else(|| buffers(&mut config.tcp, name, value))
        .or_else(|| choice(config, name, value));
    if done.is_some() { KnobResult::Done } else { KnobResult::Unknown }
}

/// Things that are on or off.
fn switch(tcp: &mut TcpConfig, name: &str, value: &str) -> Option<()> {
    let setting = match name {
        "net.ipv4.tcp_sack" | "stack.sack" => &mut tcp.sack,
        "net.ipv4.tcp_timestamps" | "stack.timestamps" => &mut tcp.timestamps,
        "net.ipv4.tcp_window_scaling" | "stack.window_scaling" => &mut tcp.window_scaling,
        "net.ipv4.tcp_recovery" | "stack.rack" => &mut tcp.rack,
        "net.ipv4.tcp_slow_start_after_idle" => &mut tcp.slow_start_after_idle,
        "net.ipv4.tcp_frto" | "stack.frto" => &mut tcp.frto,
        "stack.tail_loss_probes" => &mut tcp.tail_loss_probes,
        "stack.delay_fin_ack" => &mut tcp.delay_fin_ack,
        "stack.slow_start_limits" => &mut tcp.slow_start_limits,
        "stack.paws" => &mut tcp.paws,
        "stack.nagle" => &mut tcp.nagle,
        "stack.path_mtu_discovery" => &mut tcp.path_mtu_discovery,
        _ => return None,
    };
    *setting = match value {
        "0" => false,
        "1" => true,
        // Linux has a second kind of timestamps, without a random offset, and two of F-RTO.
        "2" if matches!(name, "net.ipv4.tcp_timestamps" | "net.ipv4.tcp_frto") => true,
        _ => return None,
    };
    Some(())
}

/// Counts.
fn number(tcp: &mut TcpConfig, name: &str, value: &str) -> Option<()> {
    match name {
        "net.ipv4.tcp_syn_retries" => tcp.syn_retries = value.parse().ok()?,
        "net.ipv4.tcp_synack_retries" => tcp.synack_retries = value.parse().ok()?,
        "net.ipv4.tcp_retries2" => tcp.retries = value.parse().ok()?,
        "net.ipv4.tcp_keepalive_probes" => tcp.keepalive_probes = value.parse().ok()?,
        "net.ipv4.tcp_max_syn_backlog" => tcp.syn_backlog = value.parse().ok()?,
        "net.ipv4.tcp_challenge_ack_limit" => tcp.challenge_acks_per_s = value.parse().ok()?,
        "stack.initial_window_segments" => tcp.initial_window = value.parse().ok()?,
        "stack.window_scale" => tcp.window_scale = Some(value.parse().ok()?),
        "stack.mss" => tcp.mss = Some(value.parse().ok()?),
        _ => return None,
    }
    Some(())
}

/// Times, in the unit of each name.
fn time(tcp: &mut TcpConfig, name: &str, value: &str) -> Option<()> {
    let number: u64 = value.parse().ok()?;
    let ms = Duration::from_millis(number);
    let seconds = Duration::from_secs(number);
    match name {
        "net.ipv4.tcp_fin_timeout" => tcp.fin_timeout = seconds,
        "net.ipv4.tcp_keepalive_intvl" => tcp.keepalive_interval = seconds,
        // Linux sends none before a socket enables them; then this is the interval.
        "net.ipv4.tcp_keepalive_time" => {}
        "net.ipv4.tcp_rto_min_us" => tcp.rto_min = Duration::from_micros(number),
        "net.ipv4.tcp_rto_max_ms" | "stack.rto_max_ms" => tcp.rto_max = ms,
        "stack.rto_min_ms" => tcp.rto_min = ms,
        "stack.rto_initial_ms" => tcp.rto_initial = ms,
        "stack.delayed_ack_ms" => tcp.delayed_ack = ms,
        "stack.delayed_ack" if number == 0 => tcp.delayed_ack = Duration::ZERO,
        // Only Linux acknowledges the first segments of a connection immediately.
        "stack.delayed_ack" => tcp.quick_acks = 0,
        "stack.quick_acks" => tcp.quick_acks = number.clamp(0, 255) as u8,
        "stack.msl_ms" => tcp.msl = ms,
        _ => return None,
    }
    Some(())
}

/// Buffers in bytes.
fn buffers(tcp: &mut TcpConfig, name: &str, value: &str) -> Option<()> {
    if let "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem" = name {
        let bytes: Vec<u32> =
            value.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [_, first, max] = bytes[..] else { return None };
        if name == "net.ipv4.tcp_rmem" {
            (tcp.receive_buffer, tcp.receive_buffer_max) = (first, max.max(first));
        } else {
            (tcp.send_buffer, tcp.send_buffer_max) = (first, max.max(first));
        }
        return Some(());
    }
    let bytes: u32 = value.parse().ok()?;
    match name {
        "stack.receive_buffer_bytes" => {
            tcp.receive_buffer = bytes;
            tcp.receive_buffer_max = tcp.receive_buffer_max.max(bytes);
        }
        "stack.receive_buffer_max_bytes" => tcp.receive_buffer_max = bytes.max(tcp.receive_buffer),
        "stack.send_buffer_bytes" => {
            tcp.send_buffer = bytes;
            tcp.send_buffer_max = tcp.send_buffer_max.max(bytes);
        }
        "stack.send_buffer_max_bytes" => tcp.send_buffer_max = bytes.max(tcp.send_buffer),
        "stack.socket_buffer_max_bytes" => {
            tcp.receive_buffer_max = bytes.max(tcp.receive_buffer);
            tcp.send_buffer_max = bytes.max(tcp.send_buffer);
        }
        _ => return None,
    }
    Some(())
}

/// A key as Linux writes it: four words in hexadecimal digits.
fn fast_open_key(text: &str) -> Option<[u8; 16]> {
    let words: Vec<u32> =
        text.split('-').map(|word| u32::from_str_radix(word, 16)).collect::<Result<_, _>>().ok()?;
    let [a, b, c, d] = words[..] else { return None };
    let bytes = [a, b, c, d].map(u32::to_le_bytes).concat();
    bytes.try_into().ok()
}

/// Things with names or several meanings.
fn choice(config: &mut Knobs, name: &str, value: &str) -> Option<()> {
    match (name, value) {
        // 2 accepts ECN from peers, as 0 does here; 1 requests it as well.
        ("net.ipv4.tcp_ecn", "0" | "2") => config.tcp.ecn = false,
        ("net.ipv4.tcp_ecn", "1") => config.tcp.ecn = true,
        ("net.ipv4.tcp_congestion_control", "cubic") => config.tcp.congestion = Congestion::Cubic,
        ("net.ipv4.tcp_congestion_control", "reno" | "newreno") => {
            config.tcp.congestion = Congestion::NewReno;
        }
        ("net.ipv4.tcp_syncookies", "0") => config.tcp.syn_cookies = SynCookies::Never,
        ("net.ipv4.tcp_syncookies", "1") => config.tcp.syn_cookies = SynCookies::WhenFull,
        ("net.ipv4.tcp_syncookies", "2") => config.tcp.syn_cookies = SynCookies::Always,
        ("net.ipv4.tcp_fastopen_key", key) => config.tcp.fast_open_key = Some(fast_open_key(key)?),
        // Tail loss probes are what is left of early retransmit.
        ("net.ipv4.tcp_early_retrans", "0" | "1" | "2") => config.tcp.tail_loss_probes = false,
        ("net.ipv4.tcp_early_retrans", "3" | "4") => config.tcp.tail_loss_probes = true,
        ("device.mtu", _) => config.mtu = value.parse().ok()?,
        ("net.ipv4.tcp_mtu_probing", "0") => config.tcp.black_hole_detection = false,
        ("net.ipv4.tcp_mtu_probing", "1") => config.tcp.black_hole_detection = true,
        ("net.ipv4.ip_no_pmtu_disc", "0") => config.tcp.path_mtu_discovery = true,
        ("net.ipv4.ip_no_pmtu_disc", "1") => config.tcp.path_mtu_discovery = false,
        _ => return None,
    }
    Some(())
}
