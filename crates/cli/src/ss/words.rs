//! The words of ss(8): states, addresses, owners, and TCP_INFO.

use std::net::SocketAddr;
use std::time::Duration;

use megapipe::{ConnInfo, TcpState};
use megapipe_service::observe::{ServiceSocket, SocketState, SocketTimer, SocketTimerKind};

use crate::observed::SocketOwner;

/// The name of a state.
pub(crate) const fn state_name(state: SocketState) -> &'static str {
    match state {
        SocketState::Unconnected => "UNCONN",
        SocketState::Listen => "LISTEN",
        SocketState::TimeWait => "TIME-WAIT",
        SocketState::Connection(TcpState::SynReceived) => "SYN-RECV",
        SocketState::Connection(TcpState::Established) => "ESTAB",
        SocketState::Connection(state) => state.name(),
    }
}

/// Both ends of a socket. A peer that may be any is `0.0.0.0:*` or `[::]:*`.
pub(crate) fn ends(socket: &ServiceSocket) -> (String, String) {
    let text = |end: Option<SocketAddr>| end.map(|end| end.to_string());
    let is_v6 = socket.local.is_some_and(|local| local.is_ipv6());
    let any = if is_v6 { "[::]:*" } else { "0.0.0.0:*" };
    let local = text(socket.local).unwrap_or_else(|| any.to_owned());
    (local, text(socket.peer).unwrap_or_else(|| any.to_owned()))
}

/// `users:(("program",pid=1),…)`; empty without owners.
pub(crate) fn users(owners: &[SocketOwner]) -> String {
    if owners.is_empty() {
        return String::new();
    }
    let each = owners.iter().map(|SocketOwner { program, pid, .. }| {
        // A name is shown in quotes, and has none of its own.
        format!("(\"{}\",pid={pid})", program.replace('"', "'"))
    });
    format!("users:({})", each.collect::<Vec<_>>().join(","))
}

/// The name of what a timer is for.
pub(crate) const fn timer_name(kind: SocketTimerKind) -> &'static str {
    match kind {
        SocketTimerKind::On => "on",
        SocketTimerKind::Persist => "persist",
        SocketTimerKind::Keepalive => "keepalive",
        SocketTimerKind::TimeWait => "timewait",
    }
}

/// `timer:(keepalive,1min59sec,0)`: name, time left, and attempts.
pub(crate) fn timer_words(timer: &SocketTimer) -> String {
    let SocketTimer { kind, left, attempts } = timer;
    let (seconds, ms) = (left.as_secs(), left.subsec_millis());
    let mut time = String::new();
    if seconds >= 60 {
        time += &format!("{}min", seconds / 60);
    }
    if seconds % 60 > 0 {
        // As ss(8) has it: milliseconds only below ten seconds.
        let tenths = if seconds < 10 { format!(".{ms:03}") } else { String::new() };
        time += &format!("{}{tenths}sec", seconds % 60);
    } else if seconds == 0 {
        time += &format!("{ms}ms");
    }
    format!("timer:({},{time},{attempts})", timer_name(*kind))
}

/// Milliseconds as ss(8) prints them: at most three digits after the point.
fn milliseconds(time: Duration) -> String {
    let text = format!("{:.3}", time.as_secs_f64() * 1e3);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bits per second with three digits and a unit.
fn bits_per_second(rate: f64) -> String {
    let mut value = rate;
    for unit in ["", "K", "M", "G", "T"] {
        if value < 999.5 || unit == "T" {
            let digits = match value {
                _ if value < 9.995 => 2,
                _ if value < 99.95 => 1,
                _ => 0,
            };
            return format!("{value:.digits$}{unit}bps");
        }
        value /= 1e3;
    }
    String::new()
}

/// What TCP knows, in the words of `ss -i`. Windows of congestion and numbers of lost and
/// unacknowledged segments are bytes divided by the MSS.
pub(crate) fn tcp_words(info: &ConnInfo) -> String {
    let mss = u32::from(info.mss).max(1);
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let mut words = Vec::new();
    let flags = [(info.timestamps, "ts"), (info.sack, "sack"), (info.ecn, "ecn")];
    let flags = flags.into_iter().chain([(info.syn_data, "fastopen")]);
    words.extend(flags.filter(|(on, _)| *on).map(|(_, word)| word.to_owned()));
    let mut word = |name: &str, value: String| words.push(format!("{name}:{value}"));
    if let Some((theirs, ours)) = info.window_scale {
        word("wscale", format!("{theirs},{ours}"));
    }
    word("rto", milliseconds(info.rto));
    if info.timeouts > 0 {
        word("backoff", info.timeouts.to_string());
    }
    if let Some(srtt) = info.srtt {
        word("rtt", format!("{}/{}", milliseconds(srtt), milliseconds(info.rttvar)));
    }
    word("mss", info.mss.to_string());
    word("cwnd", (info.cwnd / mss).to_string());
    if let Some(ssthresh) = info.ssthresh {
        word("ssthresh", (ssthresh / mss).to_string());
    }
    for (name, value) in [
        ("bytes_sent", info.bytes_out),
        ("bytes_received", info.bytes_in),
        ("segs_out", info.segments_out.into()),
        ("segs_in", info.segments_in.into()),
        ("segs_retrans", info.segments_retransmitted.into()),
        ("unacked", segments(info.flight_bytes).into()),
        ("lost", segments(info.lost_bytes).into()),
        ("sacked", segments(info.sacked_bytes).into()),
        ("notsent", info.unsent_bytes.into()),
        ("rcv_ooo_bytes", info.out_of_order_bytes.into()),
    ] {
        if value > 0 {
            word(name, value.to_string());
        }
    }
    if let Some(min_rtt) = info.min_rtt {
        word("minrtt", milliseconds(min_rtt));
    }
    word("snd_wnd", info.snd_wnd.to_string());
    word("rcv_wnd", info.rcv_wnd.to_string());
    if let Some(srtt) = info.srtt.filter(|srtt| !srtt.is_zero()) {
        let rate = f64::from(info.cwnd) * 8.0 / srtt.as_secs_f64();
        words.push(format!("send {}", bits_per_second(rate)));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_info_has_the_words_of_ss() {
        let mut info = ConnInfo::default();
        (info.timestamps, info.sack, info.window_scale) = (true, true, Some((7, 9)));
        (info.rto, info.rttvar) = (Duration::from_millis(204), Duration::from_micros(15));
        (info.srtt, info.min_rtt) =
            (Some(Duration::from_micros(30)), Some(Duration::from_micros(21)));
        (info.mss, info.cwnd, info.flight_bytes) = (1_448, 14_480, 1_449);
        (info.bytes_out, info.segments_out, info.snd_wnd, info.rcv_wnd) = (12, 3, 64_000, 65_535);
        assert_eq!(
            tcp_words(&info),
            "ts sack wscale:7,9 rto:204 rtt:0.03/0.015 mss:1448 cwnd:10 bytes_sent:12 segs_out:3 \
             unacked:2 minrtt:0.021 snd_wnd:64000 rcv_wnd:65535 send 3.86Gbps"
        );
        // Nothing is known yet: no division by an MSS of zero.
        assert_eq!(tcp_words(&ConnInfo::default()), "rto:0 mss:0 cwnd:0 snd_wnd:0 rcv_wnd:0");
    }

    #[test]
    fn timers_are_shown_as_in_ss() {
        for (kind, ms, text) in [
            (SocketTimerKind::On, 204, "timer:(on,204ms,0)"),
            (SocketTimerKind::Persist, 3_400, "timer:(persist,3.400sec,0)"),
            (SocketTimerKind::Keepalive, 119_500, "timer:(keepalive,1min59sec,0)"),
            (SocketTimerKind::TimeWait, 60_000, "timer:(timewait,1min,0)"),
            (SocketTimerKind::TimeWait, 0, "timer:(timewait,0ms,0)"),
        ] {
            let timer = SocketTimer { kind, left: Duration::from_millis(ms), attempts: 0 };
            assert_eq!(timer_words(&timer), text);
        }
    }

    #[test]
    fn rates_have_three_digits() {
        for (rate, text) in [
            (0.0, "0.00bps"),
            (999.0, "999bps"),
            (1_234.0, "1.23Kbps"),
            (56_789.0, "56.8Kbps"),
            (1e9, "1.00Gbps"),
            (5e15, "5000Tbps"),
        ] {
            assert_eq!(bits_per_second(rate), text);
        }
    }

    #[test]
    fn owners_are_users_of_a_socket() {
        let owner =
            |program: &str, pid| SocketOwner { program: program.to_owned(), pid, session: 1 };
        assert_eq!(users(&[]), "");
        assert_eq!(users(&[owner("serve", 7)]), "users:((\"serve\",pid=7))");
        let both = users(&[owner("a", 1), owner("b\"c", 2)]);
        assert_eq!(both, "users:((\"a\",pid=1),(\"b'c\",pid=2))");
    }

    #[test]
    fn missing_peer_is_any_of_its_family() {
        let socket =
            |local: &str| ServiceSocket { local: local.parse().ok(), ..ServiceSocket::default() };
        let of = |local| ends(&socket(local));
        assert_eq!(of("10.0.0.2:80"), ("10.0.0.2:80".to_owned(), "0.0.0.0:*".to_owned()));
        assert_eq!(of("[::1]:80"), ("[::1]:80".to_owned(), "[::]:*".to_owned()));
    }
}
