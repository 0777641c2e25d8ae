//! A script as a syntax tree: what `parse` makes of a file and `run` works through.
//!
//! Invariants
//! - Times are microseconds and never negative; a range never ends before it begins.
//! - Numbers have been checked against the width of their header field.
//! - Names (options of sockets, error numbers) are kept as written: `symbols` knows their values.

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The lines `--name=value` at its beginning, in order.
    pub settings: Vec<ScriptSetting>,
    /// What happens, in order.
    pub events: Vec<ScriptEvent>,
    /// Comments that are addressed to this interpreter, such as `// linux: differs: why`.
    pub remarks: Vec<Remark>,
}

/// One `--name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSetting {
    /// The line that it stands in, from 1.
    pub line: u32,
    /// Without the dashes.
    pub name: String,
    /// Empty when there is none.
    pub value: String,
}

/// A comment of the form `// linux: differs: reason` or `// stack: differs: reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// `linux` or `stack`.
    pub system: String,
    /// Why the script does not hold there.
    pub reason: String,
}

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptEvent {
    /// The line that it begins in, from 1.
    pub line: u32,
    /// When.
    pub when: EventTime,
    /// What.
    pub action: ScriptAction,
}

/// When an event happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTime {
    /// `*`: at whatever time.
    Any,
    /// `1.5` or `1.5~1.8`: after the script's beginning.
    Absolute {
        /// Microseconds.
        at_us: i64,
        /// The end of a range.
        until_us: Option<i64>,
    },
    /// `+.1` or `+0~+.1`: after the event before.
    Relative {
        /// Microseconds.
        at_us: i64,
        /// The end of a range.
        until_us: Option<i64>,
    },
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptAction {
    /// `<` or `>`.
    Packet(ScriptPacket),
    /// A system call of the program under test.
    Call(CallLine),
    /// A shell command in backticks.
    Command(String),
    /// Code between `%{` and `}%`.
    Code(String),
}

/// A system call with what it has to return.
#[derive(Clone, Debug, PartialEq)]
pub struct CallLine {
    /// As `accept`.
    pub name: String,
    /// As written.
    pub arguments: Vec<Expression>,
    /// When a blocking call returns: on the event's own time base.
    pub end_us: Option<i64>,
    /// What it returns.
    pub result: Expression,
    /// The name of the error number that goes with -1.
    pub errno: Option<String>,
}

/// An argument or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// `...`: whatever fits.
    Ellipsis,
    /// `17`, `0x11`, `-1`.
    Integer(i64),
    /// `SOCK_STREAM`.
    Word(String),
    /// `"text"`.
    Text(Vec<u8>),
    /// `[a, b]`.
    List(Vec<Self>),
    /// `{a, b}`.
    Structure(Vec<Self>),
    /// `name = value`, also `name(3) = value`.
    Field(String, Box<Self>),
    /// `a | b`.
    Or(Box<Self>, Box<Self>),
    /// `htons(8080)`.
    Function(String, Vec<Self>),
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// `<`: the interpreter sends it.
    Inbound,
    /// `>`: the system under test has to send it.
    Outbound,
}

/// A packet that is sent or expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptPacket {
    /// Which way.
    pub direction: PacketDirection,
    /// The fields of the IP header.
    pub ip: IpFields,
    /// Source and destination port, where the script names them.
    pub ports: Option<(u16, u16)>,
    /// What it carries.
    pub body: PacketBody,
}

/// Conditions of a script on an IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// The byte once called type of service.
    pub tos: Tos,
    /// IPv6 only.
    pub flow_label: Option<u32>,
    /// Time to live, or hop limit.
    pub ttl: Option<u8>,
}

/// Conditions of a script on the DSCP and ECN byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tos {
    /// Nothing.
    #[default]
    Any,
    /// The two low bits (RFC 3168, section 5).
    Ecn(u8),
    /// ECT(0) or ECT(1).
    EitherEct,
    /// All of it.
    Byte(u8),
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketBody {
    /// A TCP segment.
    Tcp(ScriptSegment),
    /// A UDP datagram with this many bytes.
    Udp(u16),
    /// An ICMP or ICMPv6 message.
    Icmp(Icmp),
}

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSegment {
    /// The control bits.
    pub flags: TcpFlags,
    /// Where it begins.
    pub seq: Sequence,
    /// How many bytes it carries.
    pub payload_len: u16,
    /// The acknowledgment number; 0 where the script has none.
    pub ack: u32,
    /// The field as in the header; none to accept any.
    pub window: Option<u16>,
    /// The urgent pointer.
    pub urgent: u16,
    /// None for `<...>`.
    pub options: Option<Vec<TcpOption>>,
    /// Ports of UDP encapsulation, in the order of the packet.
    pub encapsulation: Option<(u16, u16)>,
}

/// A sequence number in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Counted from the initial sequence number.
    Relative(u32),
    /// `!`: as on the wire.
    Absolute(u32),
    /// `...`: any.
    Any,
}

/// TCP's control bits, with the two halves of accurate ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags {
    /// As in the header's low nine bits: AE is 0x100.
    pub bits: u16,
    /// The three ECN bits as a counter, where the script writes them as a number.
    pub ace: Option<u8>,
}

/// FIN.
pub const FIN: u16 = 0x001;
/// SYN.
pub const SYN: u16 = 0x002;
/// RST.
pub const RST: u16 = 0x004;
/// PSH.
pub const PSH: u16 = 0x008;
/// ACK.
pub const ACK: u16 = 0x010;
/// URG.
pub const URG: u16 = 0x020;
/// ECE.
pub const ECE: u16 = 0x040;
/// CWR.
pub const CWR: u16 = 0x080;
/// AE, once NS.
pub const AE: u16 = 0x100;

/// A TCP option. `None` stands for a value that may be any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// Kind 0.
    Eol,
    /// Kind 1.
    Nop,
    /// Kind 2 (RFC 9293, section 3.7.1).
    Mss(Option<u16>),
    /// Kind 3 (RFC 7323, section 2).
    WindowScale(Option<u8>),
    /// Kind 4 (RFC 2018, section 2).
    SackPermitted,
    /// Kind 5 (RFC 2018, section 3).
    Sack(Vec<(u32, u32)>),
    /// Kind 8 (RFC 7323, section 3).
    Timestamps {
        /// TSval.
        val: Option<u32>,
        /// TSecr.
        ecr: Option<u32>,
        /// The echo as on the wire, not mapped to the live value.
        absolute_ecr: bool,
    },
    /// Kind 19 (RFC 2385).
    Md5(Vec<u8>),
    /// Kind 34 (RFC 7413), a cookie or none.
    FastOpen(Vec<u8>),
    /// Kind 254 with the fast-open magic number.
    FastOpenExperiment(Vec<u8>),
    /// Kinds 172 and 174 (accurate ECN): the three counters, in the order of the option.
    AccurateEcn {
        /// 172 or 174.
        kind: u8,
        /// 24 bits each.
        counters: Vec<u32>,
    },
    /// An option that was seen and has no name here.
    Other {
        /// Its kind.
        kind: u8,
        /// Its bytes after kind and length.
        data: Vec<u8>,
    },
}

/// An ICMP message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// As `unreachable`.
    pub kind: String,
    /// As `frag_needed`.
    pub code: Option<String>,
    /// For messages that carry one.
    pub mtu: Option<u32>,
    /// For an echo.
    pub id: Option<u16>,
    /// What is quoted of the packet that caused it.
    pub quoted: Quoted,
}

/// What an ICMP message quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoted {
    /// A TCP segment.
    Tcp {
        /// Counted from the initial sequence number.
        seq: u32,
        /// Its length.
        payload_len: u16,
        /// Where it was encapsulated: the UDP ports.
        encapsulation: Option<(u16, u16)>,
    },
    /// A UDP datagram of this length.
    Udp(u16),
    /// An IP packet of this length.
    Raw(u16),
}
