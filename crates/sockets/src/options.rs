//! Socket options: what a value means, its effect on the channel, and the list of them.
//!
//! Read first: socket(7), tcp(7), ip(7), ipv6(7).
//!
//! Pure: level, name and bytes go in; a change of [`SocketOptions`], or the error number that Linux
//! would give, comes out. On the kernel the socket itself decides first, and only those that
//! determine how calls behave are kept here too ([`SocketOptions::note`]). On our own stack
//! everything is decided here, and what concerns the stack goes to it as a [`ConnOption`]; what
//! neither can do is refused with ENOPROTOOPT, as an option that this system does not have.

use std::time::Duration;

use megapipe::{ConnOption, Departure, ServerConfig};

use crate::control_data::{ControlKinds, TCP_INQ};
use crate::error::Error;
use crate::limits::LOW_WATER_MAX;
use crate::ports::AddressSharing;

/// Bytes of a buffer at least and at most, as getsockopt reports them: twice what was set.
const SEND_BUFFER_RANGE: (i32, i32) = (4608, 8 << 20);
const RECEIVE_BUFFER_RANGE: (i32, i32) = (2304, 8 << 20);

/// The most that a keepalive time may be, in seconds (`MAX_TCP_KEEPIDLE` in the kernel).
const KEEPALIVE_SECONDS_MAX: i32 = 32_767;
const KEEPALIVE_PROBES_MAX: i32 = 127;
const LINUX_KEEPALIVE_IDLE_S: i32 = 7200;
/// The segment size that is reported before there is a connection (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;

/// What can be said of a socket of one family; a connection starts with its listener's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// SO_REUSEADDR, SO_REUSEPORT, IPV6_V6ONLY.
    pub(crate) sharing: AddressSharing,
    /// SO_LINGER: `None`: off.
    pub(crate) linger: Option<Duration>,
    /// SO_RCVTIMEO.
    pub(crate) receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO.
    pub(crate) send_timeout: Option<Duration>,
    /// SO_RCVLOWAT in bytes, at least 1.
    pub(crate) low_water: u32,
    /// SO_OOBINLINE, SO_BROADCAST.
    pub(crate) inline_urgent: bool,
    broadcast: bool,
    priority: i32,
    /// TCP_NODELAY, TCP_CORK, TCP_QUICKACK.
    pub(crate) no_delay: bool,
    cork: bool,
    quick_ack: bool,
    /// SO_KEEPALIVE and what it goes by; 0: the stack's own.
    keepalive: bool,
    keepalive_idle_s: i32,
    keepalive_interval_s: i32,
    keepalive_probes: i32,
    /// TCP_FASTOPEN: connections that may wait for the end of their handshake.
    fast_open: i32,
    /// TCP_FASTOPEN_CONNECT.
    pub(crate) fast_open_connect: bool,
    /// TCP_NOTSENT_LOWAT in bytes; 0: none.
    pub(crate) notsent_lowat: u32,
    user_timeout_ms: i32,
    /// As asked for; 0: the stack's own.
    receive_buffer: i32,
    pub(crate) send_buffer: i32,
    /// IP_TOS or IPV6_TCLASS, IP_TTL or IPV6_UNICAST_HOPS; `hops` 0: the stack's own.
    traffic_class: u8,
    hops: u8,
    /// IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, as asked for.
    mtu_discovery: u8,
    mtu_discovery_v6: u8,
    /// UDP_SEGMENT: bytes of each datagram into which what is sent is cut; 0: it is not.
    pub(crate) segment_len: u16,
    /// What recvmsg(2) tells beside a datagram's bytes.
    pub(crate) control_kinds: ControlKinds,
}

/// What the stack has, where a socket has nothing of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StackDefaults {
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    pub(crate) congestion: &'static str,
    pub(crate) keepalive_idle_s: i32,
    pub(crate) keepalive_interval_s: i32,
    pub(crate) keepalive_probes: i32,
    pub(crate) mss: i32,
}

impl StackDefaults {
    pub(crate) fn of(settings: &ServerConfig) -> Self {
        let tcp = &settings.tcp;
        let seconds = |time: Duration| i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
        Self {
            receive_buffer: tcp.receive_buffer,
            send_buffer: tcp.send_buffer,
            congestion: tcp.congestion.name(),
            keepalive_idle_s: tcp.keepalive_idle.map_or(LINUX_KEEPALIVE_IDLE_S, seconds),
            keepalive_interval_s: seconds(tcp.keepalive_interval),
            keepalive_probes: tcp.keepalive_probes.into(),
            mss: tcp.mss.unwrap_or(MSS_DEFAULT).into(),
        }
    }
}

/// What else of a socket can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketRole {
    pub(crate) is_v6: bool,
    pub(crate) is_stream: bool,
    pub(crate) is_listener: bool,
    /// It has an address, by bind or otherwise.
    pub(crate) is_bound: bool,
}

impl SocketRole {
    /// Our own stack tells that of such a socket.
    fn has(self, what: ControlKinds) -> bool {
        let of_v6 = ControlKinds::PLACE6
            | ControlKinds::HOPS6
            | ControlKinds::CLASS6
            | ControlKinds::ERRORS6;
        !self.is_stream && (self.is_v6 || !of_v6.contains(what))
    }
}

impl SocketOptions {
    pub(crate) const DEFAULT: Self = Self {
        sharing: AddressSharing { address: false, port: false, v6_only: false },
        linger: None,
        receive_timeout: None,
        send_timeout: None,
        low_water: 1,
        inline_urgent: false,
        broadcast: false,
        priority: 0,
        no_delay: false,
        cork: false,
        quick_ack: true,
        keepalive: false,
        keepalive_idle_s: 0,
        keepalive_interval_s: 0,
        keepalive_probes: 0,
        fast_open: 0,
        fast_open_connect: false,
        notsent_lowat: 0,
        user_timeout_ms: 0,
        receive_buffer: 0,
        send_buffer: 0,
        traffic_class: 0,
        hops: 0,
        mtu_discovery: libc::IP_PMTUDISC_WANT as u8,
        mtu_discovery_v6: libc::IPV6_PMTUDISC_WANT as u8,
        segment_len: 0,
        control_kinds: ControlKinds::empty(),
    };

    /// TCP_FASTOPEN: how many connections may wait for the end of their handshake.
    pub(crate) const fn fast_open(&self) -> u32 {
        self.fast_open.unsigned_abs()
    }

    pub(crate) const fn low_water(&self) -> usize {
        self.low_water as usize
    }

    /// The kernel took an option: keeps it if it says how calls behave.
    pub(crate) fn note(&mut self, level: i32, name: i32, value: &[u8]) {
        let kept = [libc::SO_LINGER, libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_SNDBUF];
        // The kernel took it, so it is in range.
        if level == libc::SOL_SOCKET && kept.contains(&name) {
            let _ = self.set_socket(name, value);
        }
        if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
            self.sharing.v6_only = int(value).is_ok_and(|number| number != 0);
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) {
            self.fast_open_connect = int(value).is_ok_and(|number| number != 0);
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) {
            self.notsent_lowat = int(value).map_or(0, i32::cast_unsigned);
        }
    }

    /// setsockopt(2) on our own stack. What the stack has to hear at once, if there is a
    /// connection.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub(crate) fn set(
        &mut self,
        (level, name): (i32, i32),
        value: &[u8],
        role: SocketRole,
        defaults: &StackDefaults,
    ) -> Result<Option<ConnOption>, Error> {
        if let Some(what) = ControlKinds::by(level, name)
            && role.has(what)
        {
            let number = if level == libc::IPPROTO_IP { short_int(value)? } else { int(value)? };
            self.control_kinds.ask(what, number != 0);
            return Ok(None);
        }
        match level {
            libc::SOL_SOCKET => self.set_socket(name, value),
            libc::IPPROTO_TCP if role.is_stream => self.set_tcp(name, value, defaults),
            libc::SOL_UDP if !role.is_stream => self.set_udp(name, value),
            libc::IPPROTO_IP => self.set_ip(name, value, role),
            libc::IPPROTO_IPV6 if role.is_v6 => self.set_ipv6(name, value, role),
            _ => Err(Error::NoSuchOption),
        }
    }

    fn set_socket(&mut self, name: i32, value: &[u8]) -> Result<Option<ConnOption>, Error> {
        match name {
            libc::SO_LINGER => self.linger = linger(value)?,
            libc::SO_RCVTIMEO => self.receive_timeout = timeout(value)?,
            libc::SO_SNDTIMEO => self.send_timeout = timeout(value)?,
            // A name, which may be shorter than a number.
            libc::SO_BINDTODEVICE => return Err(Error::NoSuchOption),
            _ => return self.set_number(name, value),
        }
        Ok(None)
    }

    fn set_number(&mut self, name: i32, value: &[u8]) -> Result<Option<ConnOption>, Error> {
        let number = int(value)?;
        let on = number != 0;
        match name {
            libc::SO_REUSEADDR => {
                self.sharing.address = on;
                return Ok(Some(ConnOption::Reuse(self.sharing.reuse())));
            }
            libc::SO_REUSEPORT => {
                self.sharing.port = on;
                return Ok(Some(ConnOption::Reuse(self.sharing.reuse())));
            }
            libc::SO_OOBINLINE => self.inline_urgent = on,
            // Nothing is sent from the program's own memory.
            libc::SO_ZEROCOPY if number == 0 => {}
            libc::SO_ZEROCOPY if number != 1 => return Err(Error::InvalidArgument),
            libc::SO_BROADCAST => self.broadcast = on,
            libc::SO_PRIORITY if (0..=6).contains(&number) => self.priority = number,
            libc::SO_PRIORITY => return Err(Error::NotPermitted),
            // Zero means one; a negative one is "as much as there is room for".
            libc::SO_RCVLOWAT => {
                self.low_water = u32::try_from(number).unwrap_or(u32::MAX).clamp(1, LOW_WATER_MAX);
            }
            libc::SO_KEEPALIVE => {
                self.keepalive = on;
                return Ok(Some(self.keepalive_option()));
            }
            libc::SO_RCVBUF => {
                self.receive_buffer = buffer(number, RECEIVE_BUFFER_RANGE);
                return Ok(Some(ConnOption::ReceiveBuffer(self.receive_buffer as u32 / 2)));
            }
            libc::SO_SNDBUF => {
                self.send_buffer = buffer(number, SEND_BUFFER_RANGE);
                return Ok(Some(ConnOption::SendBuffer(self.send_buffer as u32 / 2)));
            }
            _ => return Err(Error::NoSuchOption),
        }
        Ok(None)
    }

    fn set_tcp(
        &mut self,
        name: i32,
        value: &[u8],
        defaults: &StackDefaults,
    ) -> Result<Option<ConnOption>, Error> {
        if name == libc::TCP_CONGESTION {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            // The one that the stack runs; another one is not loaded.
            return match text == defaults.congestion.as_bytes() {
                true => Ok(None),
                false => Err(Error::NotFound),
            };
        }
        let number = int(value)?;
        let on = number != 0;
        let within = |max: i32| match (1..=max).contains(&number) {
            true => Ok(number),
            false => Err(Error::InvalidArgument),
        };
        match name {
            libc::TCP_NODELAY => {
                self.no_delay = on;
                Ok(Some(ConnOption::NoDelay(on)))
            }
            libc::TCP_CORK => {
                self.cork = on;
                Ok(Some(ConnOption::Cork(on)))
            }
            libc::TCP_QUICKACK => {
                self.quick_ack = on;
                Ok(Some(ConnOption::QuickAck(on)))
            }
            libc::TCP_KEEPIDLE => {
                self.keepalive_idle_s = within(KEEPALIVE_SECONDS_MAX)?;
                Ok(self.keepalive.then(|| self.keepalive_option()))
            }
            libc::TCP_KEEPINTVL => {
                self.keepalive_interval_s = within(KEEPALIVE_SECONDS_MAX)?;
                Ok(Some(ConnOption::KeepaliveInterval(seconds(number))))
            }
            libc::TCP_KEEPCNT => {
                self.keepalive_probes = within(KEEPALIVE_PROBES_MAX)?;
                Ok(Some(ConnOption::KeepaliveProbes(number as u8)))
            }
            libc::TCP_FASTOPEN | libc::TCP_USER_TIMEOUT if number < 0 => {
                Err(Error::InvalidArgument)
            }
            libc::TCP_FASTOPEN => {
                self.fast_open = number.min(crate::limits::BACKLOG_MAX as i32);
                Ok(None)
            }
            libc::TCP_FASTOPEN_CONNECT if !matches!(number, 0 | 1) => Err(Error::InvalidArgument),
            libc::TCP_FASTOPEN_CONNECT => {
                self.fast_open_connect = on;
                Ok(None)
            }
            TCP_INQ if !matches!(number, 0 | 1) => Err(Error::InvalidArgument),
            TCP_INQ => {
                self.control_kinds.set(ControlKinds::UNREAD, on);
                Ok(None)
            }
            // Unsigned, as in the kernel.
            libc::TCP_NOTSENT_LOWAT => {
                self.notsent_lowat = number.cast_unsigned();
                Ok(None)
            }
            libc::TCP_USER_TIMEOUT => {
                self.user_timeout_ms = number;
                let timeout = on.then(|| Duration::from_millis(number as u64));
                Ok(Some(ConnOption::UserTimeout(timeout)))
            }
            _ => Err(Error::NoSuchOption),
        }
    }

    fn set_udp(&mut self, name: i32, value: &[u8]) -> Result<Option<ConnOption>, Error> {
        let number = int(value)?;
        match name {
            libc::UDP_SEGMENT => {
                self.segment_len = u16::try_from(number).map_err(|_| Error::InvalidArgument)?;
                Ok(None)
            }
            _ => Err(Error::NoSuchOption),
        }
    }

    fn set_ip(
        &mut self,
        name: i32,
        value: &[u8],
        role: SocketRole,
    ) -> Result<Option<ConnOption>, Error> {
        // Bytes, of which there may be none.
        if name == libc::IP_OPTIONS {
            return Err(Error::NoSuchOption);
        }
        let number = short_int(value)?;
        match name {
            libc::IP_TOS => Ok(Some(self.set_class(number as u8, role))),
            libc::IP_TTL => self.set_hops(number),
            libc::IP_MTU_DISCOVER => {
                self.mtu_discovery = path_mtu_discovery(number)?;
                Ok(None)
            }
            _ => Err(Error::NoSuchOption),
        }
    }

    fn set_ipv6(
        &mut self,
        name: i32,
        value: &[u8],
        role: SocketRole,
    ) -> Result<Option<ConnOption>, Error> {
        let number = int(value)?;
        match name {
            libc::IPV6_V6ONLY if role.is_bound => Err(Error::InvalidArgument),
            libc::IPV6_V6ONLY => {
                self.sharing.v6_only = number != 0;
                Ok(None)
            }
            libc::IPV6_TCLASS if (-1..=255).contains(&number) => {
                Ok(Some(self.set_class(number.max(0) as u8, role)))
            }
            libc::IPV6_TCLASS => Err(Error::InvalidArgument),
            libc::IPV6_UNICAST_HOPS if number == 0 => Err(Error::InvalidArgument),
            libc::IPV6_UNICAST_HOPS => self.set_hops(number),
            libc::IPV6_MTU_DISCOVER => {
                self.mtu_discovery_v6 = path_mtu_discovery(number)?;
                Ok(None)
            }
            _ => Err(Error::NoSuchOption),
        }
    }

    /// The two low bits of a stream's are the congestion control's (RFC 3168), and stay.
    const fn set_class(&mut self, class: u8, role: SocketRole) -> ConnOption {
        self.traffic_class = if role.is_stream { class & !0x3 } else { class };
        ConnOption::Dscp(class >> 2)
    }

    /// How datagrams leave our own stack, if nothing else is said of one.
    pub(crate) fn departure(&self) -> Departure {
        let hop_limit = (self.hops != 0).then_some(self.hops);
        Departure { from: None, hop_limit, traffic_class: self.traffic_class }
    }

    fn set_hops(&mut self, number: i32) -> Result<Option<ConnOption>, Error> {
        if number != -1 && !(1..=255).contains(&number) {
            return Err(Error::InvalidArgument);
        }
        self.hops = number.max(0) as u8;
        Ok(Some(ConnOption::HopLimit(self.hops_or_default())))
    }

    const fn hops_or_default(&self) -> u8 {
        if self.hops == 0 { 64 } else { self.hops }
    }

    fn keepalive_option(&self) -> ConnOption {
        let idle = match self.keepalive_idle_s {
            0 => LINUX_KEEPALIVE_IDLE_S,
            idle => idle,
        };
        ConnOption::KeepaliveIdle(self.keepalive.then(|| seconds(idle)))
    }

    /// What TCP_QUICKACK said does not outlive connect(2) and listen(2), as on Linux.
    pub(crate) const fn forget_quick_ack(&mut self) {
        self.quick_ack = true;
    }

    /// What a new connection of our own stack has to hear, beyond Nagle's algorithm.
    pub(crate) fn for_connection(&self) -> impl Iterator<Item = ConnOption> + use<> {
        let set = |value: i32, option: ConnOption| (value != 0).then_some(option);
        let options = *self;
        [
            options.no_delay.then_some(ConnOption::NoDelay(true)),
            options.cork.then_some(ConnOption::Cork(true)),
            (!options.quick_ack).then_some(ConnOption::QuickAck(false)),
            options.keepalive.then(|| options.keepalive_option()),
            set(
                options.keepalive_interval_s,
                ConnOption::KeepaliveInterval(seconds(options.keepalive_interval_s)),
            ),
            set(
                options.keepalive_probes,
                ConnOption::KeepaliveProbes(options.keepalive_probes as u8),
            ),
            set(
                options.user_timeout_ms,
                ConnOption::UserTimeout(Some(Duration::from_millis(
                    options.user_timeout_ms.unsigned_abs().into(),
                ))),
            ),
            set(
                options.receive_buffer,
                ConnOption::ReceiveBuffer(options.receive_buffer.unsigned_abs() / 2),
            ),
            set(
                options.send_buffer,
                ConnOption::SendBuffer(options.send_buffer.unsigned_abs() / 2),
            ),
            set(options.traffic_class.into(), ConnOption::Dscp(options.traffic_class >> 2)),
            set(options.hops.into(), ConnOption::HopLimit(options.hops)),
        ]
        .into_iter()
        .flatten()
    }

    /// SO_LINGER with time 0: a close, or the program's end, resets the connection.
    pub(crate) fn resets_on_close(&self) -> bool {
        self.linger == Some(Duration::ZERO)
    }

    /// Whether a new connection has anything to hear: most sockets have nothing set.
    pub(crate) fn has_any(&self) -> bool {
        self.resets_on_close() || self.for_connection().next().is_some()
    }

    /// getsockopt(2) on our own stack, but for what is not an option: SO_ERROR, TCP_INFO.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub(crate) fn value(
        &self,
        (level, name): (i32, i32),
        role: SocketRole,
        defaults: &StackDefaults,
    ) -> Result<Value, Error> {
        if let Some(what) = ControlKinds::by(level, name)
            && role.has(what)
        {
            return Ok(Value::Int(self.control_kinds.contains(what).into()));
        }
        let number = match level {
            libc::SOL_SOCKET => return self.socket_value(name, role, defaults),
            libc::IPPROTO_TCP if role.is_stream => match name {
                libc::TCP_CONGESTION => return Ok(Value::Text(defaults.congestion)),
                _ => self.tcp_value(name, defaults),
            },
            libc::SOL_UDP if !role.is_stream => match name {
                libc::UDP_SEGMENT => Some(self.segment_len.into()),
                _ => None,
            },
            libc::IPPROTO_IP => match name {
                libc::IP_TOS => Some(self.traffic_class.into()),
                libc::IP_TTL => Some(self.hops_or_default().into()),
                libc::IP_MTU_DISCOVER => Some(self.mtu_discovery.into()),
                _ => None,
            },
            libc::IPPROTO_IPV6 if role.is_v6 => match name {
                libc::IPV6_V6ONLY => Some(i32::from(self.sharing.v6_only)),
                libc::IPV6_TCLASS => Some(self.traffic_class.into()),
                libc::IPV6_UNICAST_HOPS => Some(self.hops_or_default().into()),
                libc::IPV6_MTU_DISCOVER => Some(self.mtu_discovery_v6.into()),
                _ => None,
            },
            // Only IPv4 in the kernel says that it does not know the level.
            _ if role.is_v6 => None,
            _ => return Err(Error::NotSupported),
        };
        number.map(Value::Int).ok_or(Error::NoSuchOption)
    }

    fn socket_value(
        &self,
        name: i32,
        role: SocketRole,
        defaults: &StackDefaults,
    ) -> Result<Value, Error> {
        let or = |value: i32, default: u32| match value {
            0 => i32::try_from(default).unwrap_or(i32::MAX),
            value => value,
        };
        let (kind, protocol) = match role.is_stream {
            true => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            false => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        };
        Ok(Value::Int(match name {
            libc::SO_LINGER => return Ok(Value::Linger(self.linger)),
            libc::SO_RCVTIMEO => return Ok(Value::Time(self.receive_timeout)),
            libc::SO_SNDTIMEO => return Ok(Value::Time(self.send_timeout)),
            libc::SO_TYPE => kind,
            libc::SO_PROTOCOL => protocol,
            libc::SO_DOMAIN if role.is_v6 => libc::AF_INET6,
            libc::SO_DOMAIN => libc::AF_INET,
            libc::SO_ACCEPTCONN => role.is_listener.into(),
            libc::SO_REUSEADDR => self.sharing.address.into(),
            libc::SO_REUSEPORT => self.sharing.port.into(),
            libc::SO_KEEPALIVE => self.keepalive.into(),
            libc::SO_OOBINLINE => self.inline_urgent.into(),
            libc::SO_BROADCAST => self.broadcast.into(),
            libc::SO_PRIORITY => self.priority,
            libc::SO_RCVLOWAT => self.low_water as i32,
            libc::SO_SNDLOWAT => 1,
            libc::SO_ZEROCOPY => 0,
            libc::SO_RCVBUF => or(self.receive_buffer, defaults.receive_buffer),
            libc::SO_SNDBUF => or(self.send_buffer, defaults.send_buffer),
            _ => return Err(Error::NoSuchOption),
        }))
    }

    fn tcp_value(&self, name: i32, defaults: &StackDefaults) -> Option<i32> {
        let or = |value: i32, default: i32| if value == 0 { default } else { value };
        Some(match name {
            libc::TCP_NODELAY => self.no_delay.into(),
            libc::TCP_CORK => self.cork.into(),
            libc::TCP_QUICKACK => self.quick_ack.into(),
            libc::TCP_KEEPIDLE => or(self.keepalive_idle_s, defaults.keepalive_idle_s),
            libc::TCP_KEEPINTVL => or(self.keepalive_interval_s, defaults.keepalive_interval_s),
            libc::TCP_KEEPCNT => or(self.keepalive_probes, defaults.keepalive_probes),
            libc::TCP_USER_TIMEOUT => self.user_timeout_ms,
            libc::TCP_FASTOPEN => self.fast_open,
            libc::TCP_FASTOPEN_CONNECT => self.fast_open_connect.into(),
            libc::TCP_NOTSENT_LOWAT => self.notsent_lowat.cast_signed(),
            TCP_INQ => self.control_kinds.contains(ControlKinds::UNREAD).into(),
            libc::TCP_MAXSEG => defaults.mss,
            _ => return None,
        })
    }
}

/// An option's value, as getsockopt reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Int(i32),
    Linger(Option<Duration>),
    Time(Option<Duration>),
    Text(&'static str),
}

impl Value {
    /// Writes as much as there is room for; how much that was.
    pub(crate) fn write(self, to: &mut [u8]) -> usize {
        // The longest, a name, is padded, as the kernel's are (TCP_CA_NAME_MAX).
        let mut bytes = [0; 16];
        let mut filled = 0;
        let mut put = |part: &[u8]| {
            bytes[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        };
        match self {
            Self::Int(number) => put(&number.to_ne_bytes()),
            Self::Linger(linger) => {
                put(&i32::from(linger.is_some()).to_ne_bytes());
                put(&linger.map_or(0, |linger| linger.as_secs() as i32).to_ne_bytes());
            }
            Self::Time(time) => {
                let time = time.unwrap_or_default();
                put(&(time.as_secs() as i64).to_ne_bytes());
                put(&i64::from(time.subsec_micros()).to_ne_bytes());
            }
            Self::Text(text) => {
                // With its NUL.
                put(&text.as_bytes()[..text.len().min(15)]);
                filled = bytes.len();
            }
        }
        let len = filled.min(to.len());
        to[..len].copy_from_slice(&bytes[..len]);
        len
    }
}

const fn seconds(number: i32) -> Duration {
    Duration::from_secs(number.unsigned_abs() as u64)
}

fn buffer(asked: i32, (min, max): (i32, i32)) -> i32 {
    asked.clamp(0, max / 2).saturating_mul(2).clamp(min, max)
}

/// Path MTU discovery is always on: it may be asked for, and whether packets may be cut on the way.
fn path_mtu_discovery(asked: i32) -> Result<u8, Error> {
    match asked {
        libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO => Ok(asked as u8),
        0..=5 => Err(Error::NoSuchOption),
        _ => Err(Error::InvalidArgument),
    }
}

fn int(value: &[u8]) -> Result<i32, Error> {
    let bytes = value.first_chunk().ok_or(Error::InvalidArgument)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// IP's options may be a byte.
fn short_int(value: &[u8]) -> Result<i32, Error> {
    match value.first() {
        Some(byte) if value.len() < 4 => Ok((*byte).into()),
        _ => int(value),
    }
}

fn linger(value: &[u8]) -> Result<Option<Duration>, Error> {
    let seconds = value.get(4..).ok_or(Error::InvalidArgument)?;
    let (on, seconds) = (int(value)?, int(seconds)?);
    // Unsigned in the kernel: a negative time is a very long one.
    let seconds = Duration::from_secs(u64::from(seconds as u32));
    Ok((on != 0).then_some(seconds))
}

fn timeout(value: &[u8]) -> Result<Option<Duration>, Error> {
    let rest = value.get(8..).ok_or(Error::InvalidArgument)?;
    let (Some(seconds), Some(micros)) = (value.first_chunk(), rest.first_chunk()) else {
        return Err(Error::InvalidArgument);
    };
    let (seconds, micros) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros));
    if !(0..1_000_000).contains(&micros) {
        return Err(Error::OutOfDomain);
    }
    // As Linux has it: a negative time is over at once.
    let Ok(seconds) = u64::try_from(seconds) else { return Ok(Some(Duration::ZERO)) };
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros.unsigned_abs());
    Ok((!time.is_zero()).then_some(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: SocketRole =
        SocketRole { is_v6: false, is_stream: true, is_listener: false, is_bound: false };
    const DEFAULTS: StackDefaults = StackDefaults {
        receive_buffer: 131_072,
        send_buffer: 16_384,
        congestion: "cubic",
        keepalive_idle_s: 7200,
        keepalive_interval_s: 75,
        keepalive_probes: 9,
        mss: 1460,
    };

    fn set(
        options: &mut SocketOptions,
        at: (i32, i32),
        number: i32,
    ) -> Result<Option<ConnOption>, Error> {
        options.set(at, &number.to_ne_bytes(), STREAM, &DEFAULTS)
    }

    #[test]
    fn options_are_read_back_and_inherited() {
        let mut options = SocketOptions::DEFAULT;
        assert!(!options.has_any());
        let tcp = libc::IPPROTO_TCP;
        for (at, number, told, heard) in [
            ((tcp, libc::TCP_NODELAY), 5, 1, Some(ConnOption::NoDelay(true))),
            ((tcp, libc::TCP_KEEPIDLE), 30, 30, None),
            (
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
                1,
                1,
                Some(ConnOption::KeepaliveIdle(Some(seconds(30)))),
            ),
            ((tcp, libc::TCP_KEEPCNT), 3, 3, Some(ConnOption::KeepaliveProbes(3))),
            (
                (libc::SOL_SOCKET, libc::SO_RCVBUF),
                10_000,
                20_000,
                Some(ConnOption::ReceiveBuffer(10_000)),
            ),
            ((libc::SOL_SOCKET, libc::SO_SNDBUF), 1, 4608, Some(ConnOption::SendBuffer(2304))),
            ((libc::IPPROTO_IP, libc::IP_TOS), 0xff, 0xfc, Some(ConnOption::Dscp(0x3f))),
            ((libc::IPPROTO_IP, libc::IP_TTL), 7, 7, Some(ConnOption::HopLimit(7))),
            ((libc::SOL_SOCKET, libc::SO_RCVLOWAT), 0, 1, None),
        ] {
            assert_eq!(set(&mut options, at, number), Ok(heard), "{at:?}");
            assert_eq!(options.value(at, STREAM, &DEFAULTS), Ok(Value::Int(told)), "{at:?}");
        }
        let heard: Vec<ConnOption> = options.for_connection().collect();
        assert!(heard.contains(&ConnOption::NoDelay(true)));
        assert!(heard.contains(&ConnOption::KeepaliveIdle(Some(seconds(30)))));
        assert!(heard.contains(&ConnOption::Dscp(0x3f)));
    }

    #[test]
    fn unknown_or_invalid_options_are_refused() {
        let mut options = SocketOptions::DEFAULT;
        let tcp = libc::IPPROTO_TCP;
        for (at, value) in [
            ((libc::SOL_SOCKET, libc::SO_BINDTODEVICE), &b"lo\0"[..]),
            ((libc::IPPROTO_IP, libc::IP_OPTIONS), b""),
        ] {
            let refused = options.set(at, value, STREAM, &DEFAULTS);
            assert_eq!(refused, Err(Error::NoSuchOption), "{at:?}");
        }
        for (at, number, error) in [
            ((tcp, libc::TCP_KEEPIDLE), 0, Error::InvalidArgument),
            ((tcp, libc::TCP_KEEPIDLE), 32_768, Error::InvalidArgument),
            ((tcp, libc::TCP_KEEPCNT), 128, Error::InvalidArgument),
            ((tcp, libc::TCP_USER_TIMEOUT), -1, Error::InvalidArgument),
            ((tcp, libc::TCP_FASTOPEN), -1, Error::InvalidArgument),
            ((tcp, libc::TCP_FASTOPEN_CONNECT), 2, Error::InvalidArgument),
            ((tcp, 4000), 1, Error::NoSuchOption),
            ((libc::IPPROTO_IP, libc::IP_TTL), 0, Error::InvalidArgument),
            ((libc::IPPROTO_IP, libc::IP_TTL), 256, Error::InvalidArgument),
            ((libc::SOL_SOCKET, libc::SO_TYPE), 1, Error::NoSuchOption),
            ((libc::SOL_SOCKET, libc::SO_ZEROCOPY), 1, Error::NoSuchOption),
            ((libc::SOL_SOCKET, libc::SO_PRIORITY), 7, Error::NotPermitted),
            ((libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), 1, Error::NoSuchOption),
            ((4000, 1), 1, Error::NoSuchOption),
        ] {
            assert_eq!(set(&mut options, at, number), Err(error), "{at:?} {number}");
        }
        assert_eq!(options, SocketOptions::DEFAULT, "nothing has changed");
        let short = options.set((tcp, libc::TCP_NODELAY), &[1, 0], STREAM, &DEFAULTS);
        assert_eq!(short, Err(Error::InvalidArgument));
        let name = options.set((tcp, libc::TCP_CONGESTION), b"vegas", STREAM, &DEFAULTS);
        assert_eq!(name, Err(Error::NotFound));
    }

    #[test]
    fn times_are_taken_as_linux_takes_them() {
        let time = |seconds: i64, micros: i64| {
            timeout(&[seconds.to_ne_bytes(), micros.to_ne_bytes()].concat())
        };
        assert_eq!(time(0, 0), Ok(None));
        assert_eq!(time(2, 500_000), Ok(Some(Duration::from_millis(2500))));
        assert_eq!(time(0, 1_000_000), Err(Error::OutOfDomain));
        assert_eq!(time(-1, 0), Ok(Some(Duration::ZERO)));
        let mut told = [0; 16];
        assert_eq!(Value::Time(Some(Duration::from_millis(2500))).write(&mut told), 16);
        assert_eq!(timeout(&told), Ok(Some(Duration::from_millis(2500))));
        assert_eq!(linger(&[1, 0, 0, 0, 5, 0, 0, 0]), Ok(Some(seconds(5))));
        assert_eq!(linger(&[0; 8]), Ok(None));
        assert_eq!(linger(&[0; 7]), Err(Error::InvalidArgument));
    }
}
