//! Socket options of TCP, and what they do to a connection or to the stack it will be made by.
//!
//! Read first: socket(7), ip(7) and tcp(7), whose values and errors these are; then
//! `megapipe_stack::ConnOption`.
//!
//! Invariants
//! - An option that is accepted does what its page says, or changes nothing that a packet script
//!   could see. All others are refused by name.
//! - What only the stack's configuration knows can be set until the stack runs.

use std::time::Duration;

use megapipe_stack::{ConnInfo, ConnOption, TcpConfig, TcpState};

use super::host::Host;
use super::personality::linux_window;
use super::sockets::{Attempt, Role, Sockets, Stream, ended, failed, unsupported};
use super::write::{excess_bytes, send_buffer_bytes};
use crate::dialect::Dialect;
use crate::symbols::{
    SOF_TIMESTAMPING_OPT_ID, SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_TX_ACK,
    SOF_TIMESTAMPING_TX_SCHED, SOF_TIMESTAMPING_TX_SOFTWARE, TCP_KEEPINIT, option_name,
};
use crate::system::{Fd, Output, Returned, SystemError};

/// Options that change nothing that a packet script could see.
const WITHOUT_EFFECT: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_DEBUG),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK),
];
/// Options whose value is asked for where they matter.
const KEPT: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
    (libc::IPPROTO_TCP, TCP_KEEPINIT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
];
/// What of SO_TIMESTAMPING there is: times of bytes that were sent, by the stack's clock.
const STAMPS: i64 = SOF_TIMESTAMPING_TX_SOFTWARE
    | SOF_TIMESTAMPING_TX_SCHED
    | SOF_TIMESTAMPING_TX_ACK
    | SOF_TIMESTAMPING_SOFTWARE
    | SOF_TIMESTAMPING_OPT_ID;
/// Without TCP_KEEPIDLE (tcp(7)).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(7200);
/// What the option takes from a segment's payload, with its padding (RFC 7323, appendix A).
const TIMESTAMPS_BYTES: u32 = 12;
/// What the kernel answers where there is no connection yet.
const MSS_UNKNOWN: u16 = megapipe_stack::limits::MSS_DEFAULT;

impl Stream {
    /// An option as a number, if it was set.
    pub(super) fn number(&self, level: i32, name: i32) -> Option<i64> {
        self.options.get(&(level, name)).map(|value| int(value))
    }

    /// SO_RCVTIMEO or SO_SNDTIMEO; none: for ever.
    pub(super) fn timeout_us(&self, name: i32) -> Option<i64> {
        let value = self.options.get(&(libc::SOL_SOCKET, name))?;
        // A script's structure may have fields of 32 bits.
        let half = value.len() / 2;
        let part = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) if half == 8 => bytes.try_into().map_or(0, i64::from_ne_bytes),
            Some(bytes) => int(bytes),
            None => 0,
        };
        let seconds = part(value.get(..half)).saturating_mul(1_000_000);
        let us = seconds.saturating_add(part(value.get(half..)));
        (us > 0).then_some(us)
    }
}

impl Sockets {
    pub(super) fn set_option(
        &mut self,
        fd: Fd,
        (level, name): (i32, i32),
        value: &[u8],
        host: &mut Host,
    ) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        if let Some(refusal) = configure(level, name, value, host)? {
            return refusal;
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
            let before = stream.number(level, name).unwrap_or(0);
            stream.error_queue.number_from_here(before, int(value));
        }
        stream.options.insert((level, name), value.to_vec());
        apply_options(stream, Some((level, name)), host)?;
        self.listen_anew(host)?;
        ended(0)
    }

    pub(super) fn get_option(
        &mut self,
        fd: Fd,
        (level, name): (i32, i32),
        bytes: usize,
        host: &Host,
    ) -> Attempt {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(errno) => return failed(errno),
        };
        let info = stream.conn().and_then(|conn| host.running()?.info(conn).ok());
        let mut value = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let mut value = host.congestion().as_bytes().to_vec();
                value.resize(bytes.max(value.len()), 0);
                value
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => tcp_info(stream, info.as_ref()),
            key => match number_of(stream, key, info.as_ref(), host) {
                Some(number) => number.to_ne_bytes().to_vec(),
                None => match stream.options.get(&key) {
                    Some(value) => value.clone(),
                    None if is_known(key) => vec![0; 4],
                    None => return unsupported(option_name(level, name)),
                },
            },
        };
        value.truncate(bytes);
        Ok(Some(Returned { output: Output::Bytes(value), ..Returned::success(0) }))
    }
}

fn is_known(key: (i32, i32)) -> bool {
    WITHOUT_EFFECT.contains(&key) || KEPT.contains(&key)
}

/// Turns what the stack is made with; says so if the option cannot be had.
fn configure(
    level: i32,
    name: i32,
    value: &[u8],
    host: &mut Host,
) -> Result<Option<Attempt>, SystemError> {
    let is_running = host.is_running();
    let number = int(value);
    let kind = (host.dialect, host.segment_bytes);
    let tcp = &mut host.config.tcp;
    let size = u16::try_from(number).ok().filter(|&mss| mss > 0);
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {
            // Known before the first SYN, it decides on the window and its scale.
            if !is_running {
                let bytes = buffer_bytes(name, number, kind);
                set_buffer(name, bytes, tcp);
            }
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) if !matches!(number, 0 | 1) => {
            return Ok(Some(failed(libc::EINVAL)));
        }
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) if number & !STAMPS != 0 => {
            return unsupported("SO_TIMESTAMPING of anything but what was sent");
        }
        key if is_known(key) => {}
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if size.is_none() => {
            return Ok(Some(failed(libc::EINVAL)));
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if !is_running => tcp.mss = size,
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) if !is_running => {
            tcp.syn_retries = u8::try_from(number).unwrap_or(u8::MAX);
        }
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) if !is_running && number > 0 => {
            tcp.fin_timeout = Duration::from_secs(number.unsigned_abs());
        }
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
        | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
            let is_wanted = number != i64::from(libc::IP_PMTUDISC_DONT);
            if tcp.path_mtu_discovery != is_wanted && is_running {
                return unsupported(format!("{} from here on", option_name(level, name)));
            }
            tcp.path_mtu_discovery = is_wanted;
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
            let name = String::from_utf8_lossy(&value[..end]).into_owned();
            if host.congestion() != name && !host.use_congestion(&name) {
                return unsupported(format!("congestion control {name} from here on"));
            }
        }
        _ => return unsupported(option_name(level, name)),
    }
    Ok(None)
}

/// SO_RCVBUF and SO_SNDBUF fix a buffer's size.
fn set_buffer(name: i32, bytes: u32, tcp: &mut TcpConfig) {
    if name == libc::SO_RCVBUF {
        (tcp.receive_buffer, tcp.receive_buffer_max) = (bytes, bytes);
    } else {
        (tcp.send_buffer, tcp.send_buffer_max) = (bytes, bytes);
    }
}

/// What a buffer's size means: Linux doubles both. Half of a receive buffer is for its own needs
/// and the rest is a window of whole segments; a send buffer is all for the program.
fn buffer_bytes(name: i32, number: i64, (dialect, segment_bytes): (Dialect, u32)) -> u32 {
    let told = u32::try_from(number).unwrap_or(0);
    let bytes = match (dialect, name) {
        (Dialect::FreeBsd, _) => told,
        (Dialect::Linux, libc::SO_SNDBUF) => told.saturating_mul(2),
        (Dialect::Linux, _) => linux_window(told, segment_bytes),
    };
    bytes.max(1)
}

/// The value of an option that is a number of the socket, of its connection or of the stack.
fn number_of(
    stream: &mut Stream,
    (level, name): (i32, i32),
    info: Option<&ConnInfo>,
    host: &Host,
) -> Option<i32> {
    let tcp = &host.config.tcp;
    let told = stream.number(level, name);
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => stream.take_error().unwrap_or(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => stream.domain,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            i32::from(matches!(stream.role, Role::Listening { .. }))
        }
        // Linux doubles what it is told, and tells that (socket(7)).
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF)
            if told.is_some() && host.dialect == Dialect::Linux =>
        {
            i32::try_from(told?.saturating_mul(2)).unwrap_or(i32::MAX)
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            info.map_or(tcp.receive_buffer, |info| info.receive_buffer_bytes).cast_signed()
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            info.map_or(tcp.send_buffer, |info| send_buffer_bytes(info, host.dialect)).cast_signed()
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => i32::try_from(told.unwrap_or(1)).ok()?,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match info {
            Some(info) if info.state != TcpState::SynSent => i32::from(info.mss),
            _ => i32::from(tcp.mss.unwrap_or(MSS_UNKNOWN)),
        },
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => i32::from(tcp.syn_retries),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) if told.is_none() => i32::from(tcp.keepalive_probes),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) if told.is_none() => {
            i32::try_from(tcp.keepalive_interval.as_secs()).unwrap_or(i32::MAX)
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if told.is_none() => {
            i32::try_from(KEEPALIVE_IDLE.as_secs()).unwrap_or(i32::MAX)
        }
        (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU) => {
            i32::from(host.config.mtu)
        }
        _ => return None,
    })
}

/// The beginning of Linux's `struct tcp_info`, as far as it tells of the connection alone.
fn tcp_info(stream: &Stream, info: Option<&ConnInfo>) -> Vec<u8> {
    let mut value = vec![0; 8];
    value[0] = tcp_state(stream, info);
    let Some(info) = info else {
        value.resize(8 + 4 * TCP_INFO_WORDS, 0);
        return value;
    };
    value[2] = info.timeouts;
    value[5] = u8::from(info.timestamps)
        | u8::from(info.sack) << 1
        | u8::from(info.window_scale.is_some()) << 2
        | u8::from(info.ecn) << 3;
    let (theirs, ours) = info.window_scale.unwrap_or_default();
    value[6] = theirs & 0xf | ours << 4;
    let mss = u32::from(info.mss).max(1);
    let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let mut words = [0_u32; TCP_INFO_WORDS];
    words[0] = us(info.rto);
    (words[2], words[3]) = (mss, mss);
    words[4] = segments(info.flight_bytes);
    words[5] = segments(info.sacked_bytes);
    words[6] = segments(info.lost_bytes);
    words[15] = info.srtt.map_or(0, us);
    words[16] = us(info.rttvar);
    words[17] = info.ssthresh.map_or(i32::MAX.cast_unsigned(), segments);
    words[18] = segments(info.cwnd);
    words[22] = info.receive_buffer_bytes;
    words[23] = info.segments_retransmitted;
    value.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    value
}

/// Words of `struct tcp_info` after its eight bytes, up to `tcpi_total_retrans`.
const TCP_INFO_WORDS: usize = 24;

/// TCP_ESTABLISHED and the like.
fn tcp_state(stream: &Stream, info: Option<&ConnInfo>) -> u8 {
    match (&stream.role, info.map(|info| info.state)) {
        (Role::Listening { .. }, _) => 10,
        (_, Some(TcpState::Established)) => 1,
        (_, Some(TcpState::SynSent)) => 2,
        (_, Some(TcpState::SynReceived)) => 3,
        (_, Some(TcpState::FinWait1)) => 4,
        (_, Some(TcpState::FinWait2)) => 5,
        (_, Some(TcpState::CloseWait)) => 8,
        (_, Some(TcpState::LastAck)) => 9,
        (_, Some(TcpState::Closing)) => 11,
        (_, Some(TcpState::Closed) | None) => 7,
    }
}

/// Hands a socket's options to its connection: all of them, or one that was just set.
pub(super) fn apply_options(
    stream: &Stream,
    only: Option<(i32, i32)>,
    host: &mut Host,
) -> Result<(), SystemError> {
    let Some(conn) = stream.conn() else { return Ok(()) };
    let now = host.now();
    let kind = (host.dialect, host.segment_bytes);
    let (stack, memory) = host.parts()?;
    let is_new = only.is_none() && matches!(stream.role, Role::Connected(_));
    if kind.0 == Dialect::FreeBsd
        && is_new
        && let Ok(info) = stack.info(conn)
    {
        let bytes = whole_segments(&info);
        let _ = stack.set_option(now, conn, ConnOption::ReceiveBuffer(bytes), memory);
    }
    let mut apply = |option: ConnOption| {
        // A connection that is over has no options any more.
        let _ = stack.set_option(now, conn, option, memory);
    };
    for (&key, value) in &stream.options {
        if only.is_none_or(|only| only == key || is_keepalive(only) && is_keepalive(key))
            && let Some(option) = connection_option(stream, key, (int(value), kind))
        {
            apply(option);
        }
    }
    // The limit of the handshake's time ends with it.
    if is_new
        && stream.number(libc::IPPROTO_TCP, TCP_KEEPINIT).is_some()
        && stream.number(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).is_none()
    {
        apply(ConnOption::UserTimeout(None));
    }
    Ok(())
}

/// FreeBSD rounds a connection's receive buffer up to whole segments.
fn whole_segments(info: &ConnInfo) -> u32 {
    let segment = u32::from(info.mss) + if info.timestamps { TIMESTAMPS_BYTES } else { 0 };
    info.receive_buffer_bytes.next_multiple_of(segment.max(1))
}

/// Two options that make up one of the connection's.
fn is_keepalive(key: (i32, i32)) -> bool {
    key == (libc::SOL_SOCKET, libc::SO_KEEPALIVE) || key == (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE)
}

/// What an option is for a connection.
fn connection_option(
    stream: &Stream,
    key: (i32, i32),
    (value, kind): (i64, (Dialect, u32)),
) -> Option<ConnOption> {
    let count = u8::try_from(value).unwrap_or(u8::MAX);
    let seconds = Duration::from_secs(u64::try_from(value).unwrap_or(0));
    let ms = Duration::from_millis(u64::try_from(value).unwrap_or(0));
    Some(match key {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            let idle = stream.number(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE);
            let idle = idle.and_then(|idle| u64::try_from(idle).ok()).map(Duration::from_secs);
            let idle = idle.unwrap_or(KEEPALIVE_IDLE);
            ConnOption::KeepaliveIdle((value != 0).then_some(idle))
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            ConnOption::ReceiveBuffer(buffer_bytes(libc::SO_RCVBUF, value, kind))
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            let bytes = buffer_bytes(libc::SO_SNDBUF, value, kind);
            ConnOption::SendBuffer(bytes.saturating_add(excess_bytes(kind.0)))
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => ConnOption::NoDelay(value != 0),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => ConnOption::Cork(value != 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => ConnOption::KeepaliveInterval(seconds),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => ConnOption::KeepaliveProbes(count),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            ConnOption::UserTimeout((value > 0).then_some(ms))
        }
        (libc::IPPROTO_TCP, TCP_KEEPINIT) if matches!(stream.role, Role::Connecting(_)) => {
            ConnOption::UserTimeout(Some(seconds))
        }
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => ConnOption::QuickAck(value != 0),
        // The two low bits are ECN's, and TCP's own (RFC 3168, section 5).
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            ConnOption::Dscp(count >> 2)
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            ConnOption::HopLimit(count)
        }
        _ => return None,
    })
}

/// An option's value as a number, 0 where it is too short for one.
pub(super) fn int(value: &[u8]) -> i64 {
    let bytes = value.get(..4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or_else(
        || value.first().copied().map_or(0, i64::from),
        |bytes| i64::from(i32::from_ne_bytes(bytes)),
    )
}
