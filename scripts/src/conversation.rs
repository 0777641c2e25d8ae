//! The connection under test: how a script's numbers map to live ones.
//!
//! A script counts sequence numbers from the initial ones and writes timestamps as if a clock had
//! begun with it. Live, both are the system's to choose. A conversation learns them from the first
//! packets that carry them.
//!
//! Invariants
//! - In a SYN, numbers are as written, apart from the distance between the two initial sequence
//!   numbers; in any other segment they count from the initial sequence number of their side.
//! - The remote side is the interpreter, so its numbers are the script's: its initial sequence
//!   number is the one that its SYN carries.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::icmp;
use crate::script::{
    ACK, Icmp, IpFields, PacketBody, PacketDirection, Quoted, SYN, ScriptPacket, ScriptSegment,
    Sequence, TcpFlags, TcpOption, Tos,
};
use crate::settings::ScriptSettings;
use crate::wire::tcp::TcpHeader;
use crate::wire::{self, IpPacket, PacketTransport};

/// The hop limit of packets without one in the script.
const INBOUND_TTL: u8 = 255;
/// What an ICMP error quotes after the IP header (RFC 792).
const QUOTED_BYTES: usize = 8;
/// A TCP header as quoted, with a window and no options.
const QUOTED_TCP_HEADER_BYTES: usize = 20;

/// How far a conversation has come, as far as mapping numbers needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    New,
    Listening,
    /// A packet for a listener has been injected; its answer has the local sequence number.
    Received,
    /// The system has called connect and its SYN has not been looked for.
    Connecting,
    /// The script has come to the SYN.
    SynSent,
    /// Both initial sequence numbers are known.
    Open,
}

/// A number on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NumberPair {
    script: u32,
    live: u32,
}

/// A connection, or a UDP socket and its peer.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub(crate) stage: Stage,
    pub(crate) protocol: u8,
    /// On the wire: IPv4 where a socket has a mapped address.
    pub(crate) local: SocketAddr,
    /// Whether the local port is certain: a client's is known from its first packet.
    pub(crate) is_local_known: bool,
    pub(crate) remote: SocketAddr,
    local_isn: NumberPair,
    remote_isn: NumberPair,
    /// The number of the last SYN to a listener: its answer may begin the conversation anew.
    last_syn: Option<u32>,
    first_timestamp: Option<NumberPair>,
    /// Live TSval by the script's.
    timestamps: BTreeMap<u32, u32>,
    flow_label: Option<NumberPair>,
}

/// Why a packet of a script cannot be made into a live one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapError {
    #[error("TSecr {0} answers no TSval that was sent, so its live value is not known")]
    UnknownEcho(u32),
    #[error("not supported: ICMP message {0} in this version of IP")]
    UnknownIcmp(String),
    #[error("not supported: encapsulation in UDP")]
    Encapsulated,
    #[error("a flow label in an IPv4 packet")]
    NoFlowLabel,
}

impl Conversation {
    pub(crate) fn new(protocol: u8, settings: &ScriptSettings, remote_port: u16) -> Self {
        Self {
            stage: Stage::New,
            protocol,
            local: SocketAddr::new(settings.local_ip, settings.bind_port),
            is_local_known: true,
            remote: SocketAddr::new(settings.remote_ip, remote_port),
            local_isn: NumberPair::default(),
            remote_isn: NumberPair::default(),
            last_syn: None,
            first_timestamp: None,
            timestamps: BTreeMap::new(),
            flow_label: None,
        }
    }

    /// Learns from an inbound packet of the script.
    pub(crate) fn on_inbound(&mut self, segment: &ScriptSegment) {
        let seq = match segment.seq {
            Sequence::Relative(seq) | Sequence::Absolute(seq) => seq,
            Sequence::Any => return,
        };
        let is_syn = segment.flags.bits & SYN != 0;
        if is_syn && segment.flags.bits & ACK == 0 {
            self.last_syn = Some(seq);
        }
        match self.stage {
            Stage::New | Stage::Listening => {
                self.stage = Stage::Received;
                self.remote_isn = NumberPair { script: seq, live: seq };
            }
            // A SYN without an acknowledgment is a simultaneous open (RFC 9293, figure 7).
            Stage::SynSent if is_syn => {
                self.remote_isn = NumberPair { script: seq, live: seq };
                if segment.flags.bits & ACK != 0 {
                    self.stage = Stage::Open;
                }
            }
            _ => {}
        }
    }

    /// Learns from an outbound packet of the script, before it is expected.
    pub(crate) fn on_expected(&mut self, segment: &ScriptSegment) {
        let Sequence::Relative(seq) = segment.seq else { return };
        let is_syn = segment.flags.bits & SYN != 0;
        let is_ack = segment.flags.bits & ACK != 0;
        match self.stage {
            Stage::Connecting if is_syn && !is_ack => {
                self.stage = Stage::SynSent;
                self.local_isn.script = seq;
            }
            Stage::Received | Stage::Open if is_syn && is_ack => self.local_isn.script = seq,
            _ => {}
        }
    }

    /// Whether the system sent this packet in this conversation. Learns a client's port and the
    /// local initial sequence number.
    pub(crate) fn owns(&mut self, packet: &IpPacket, expected: &ScriptPacket) -> bool {
        if packet.destination != self.remote.ip() {
            return false;
        }
        let (source_port, destination_port) = match &packet.payload {
            PacketTransport::Tcp(header) if self.protocol == wire::PROTOCOL_TCP => {
                (header.source_port, header.destination_port)
            }
            PacketTransport::Udp { source_port, destination_port, .. }
                if self.protocol == wire::PROTOCOL_UDP =>
            {
                (*source_port, *destination_port)
            }
            PacketTransport::Icmp { .. } => return matches!(expected.body, PacketBody::Icmp(_)),
            _ => return false,
        };
        if let Some(ports) = expected.ports {
            return ports == (source_port, destination_port);
        }
        if destination_port != self.remote.port() {
            return false;
        }
        if !self.is_local_known {
            self.local = SocketAddr::new(packet.source, source_port);
            self.is_local_known = true;
        }
        if (packet.source, source_port) != (self.local.ip(), self.local.port()) {
            return false;
        }
        if let PacketTransport::Tcp(header) = &packet.payload {
            self.learn_isn(header);
        }
        true
    }

    fn learn_isn(&mut self, header: &TcpHeader) {
        if header.flags & SYN == 0 {
            return;
        }
        match self.stage {
            Stage::Received if header.flags & ACK != 0 => {
                self.stage = Stage::Open;
                self.local_isn.live = header.seq;
            }
            Stage::SynSent => self.local_isn.live = header.seq,
            // The same ports again, after TIME-WAIT or a reset.
            Stage::Open if header.flags & ACK != 0 => {
                if let Some(syn) = self.last_syn.filter(|syn| header.ack == syn.wrapping_add(1)) {
                    self.local_isn.live = header.seq;
                    self.remote_isn = NumberPair { script: syn, live: syn };
                }
            }
            _ => {}
        }
    }

    /// What to add to a local number of the script to get the live one.
    fn local_offset(&self, is_syn: bool) -> u32 {
        let script = if is_syn { self.local_isn.script } else { 0 };
        self.local_isn.live.wrapping_sub(script)
    }

    /// The same for the remote side.
    fn remote_offset(&self, is_syn: bool) -> u32 {
        let script = if is_syn { self.remote_isn.script } else { 0 };
        self.remote_isn.live.wrapping_sub(script)
    }

    /// The live packet for an inbound packet of the script.
    pub(crate) fn to_live(
        &self,
        packet: &ScriptPacket,
        settings: &ScriptSettings,
    ) -> Result<IpPacket, MapError> {
        let (source_port, destination_port) =
            packet.ports.unwrap_or_else(|| (self.remote.port(), self.local.port()));
        let payload = match &packet.body {
            PacketBody::Tcp(segment) => {
                let mut header = self.live_segment(segment, settings)?;
                header.source_port = source_port;
                header.destination_port = destination_port;
                PacketTransport::Tcp(header)
            }
            PacketBody::Udp(len) => PacketTransport::Udp {
                source_port,
                destination_port,
                payload: vec![0; usize::from(*len)],
            },
            PacketBody::Icmp(message) => self.live_icmp(message)?,
        };
        let tos = match packet.ip.tos {
            Tos::Any | Tos::EitherEct => 0,
            Tos::Ecn(bits) | Tos::Byte(bits) => bits,
        };
        if packet.ip.flow_label.is_some() && self.local.is_ipv4() {
            return Err(MapError::NoFlowLabel);
        }
        Ok(IpPacket {
            source: self.remote.ip(),
            destination: self.local.ip(),
            tos,
            flow_label: packet.ip.flow_label.unwrap_or(0),
            ttl: packet.ip.ttl.unwrap_or(INBOUND_TTL),
            payload,
        })
    }

    fn live_segment(
        &self,
        segment: &ScriptSegment,
        settings: &ScriptSettings,
    ) -> Result<TcpHeader, MapError> {
        if segment.encapsulation.is_some() {
            return Err(MapError::Encapsulated);
        }
        let is_syn = segment.flags.bits & SYN != 0;
        let is_ack = segment.flags.bits & ACK != 0;
        let seq = match segment.seq {
            Sequence::Relative(seq) => seq.wrapping_add(self.remote_offset(is_syn)),
            Sequence::Absolute(seq) => seq,
            Sequence::Any => 0,
        };
        let offset = self.local_offset(is_syn);
        let ack = if is_ack { segment.ack.wrapping_add(offset) } else { segment.ack };
        let mut options = segment.options.clone().unwrap_or_default();
        for option in &mut options {
            match option {
                TcpOption::Sack(blocks) => shift(blocks, offset),
                TcpOption::Timestamps { ecr: Some(ecr), absolute_ecr: false, .. } if is_ack => {
                    *ecr = self.live_echo(*ecr, settings)?;
                }
                _ => {}
            }
        }
        Ok(TcpHeader {
            source_port: 0,
            destination_port: 0,
            seq,
            ack,
            flags: wire_flags(segment.flags),
            reserved: 0,
            window: segment.window.unwrap_or(0),
            urgent: segment.urgent,
            options,
            payload: vec![0; usize::from(segment.payload_len)],
        })
    }

    fn live_echo(&self, ecr: u32, settings: &ScriptSettings) -> Result<u32, MapError> {
        if let Some(&live) = self.timestamps.get(&ecr) {
            return Ok(live);
        }
        match self.first_timestamp {
            Some(first) if settings.is_echo_scaled => {
                Ok(ecr.wrapping_sub(first.script).wrapping_add(first.live))
            }
            Some(_) => Err(MapError::UnknownEcho(ecr)),
            // The script has not read any TSval, so it cannot expect a certain one.
            None => Ok(ecr),
        }
    }

    fn live_icmp(&self, message: &Icmp) -> Result<PacketTransport, MapError> {
        let is_ipv6 = self.local.is_ipv6();
        let numbers = icmp::numbers(is_ipv6, &message.kind, message.code.as_deref());
        let numbers = numbers.ok_or_else(|| {
            let code = message.code.as_deref().unwrap_or_default();
            MapError::UnknownIcmp(format!("{} {code}", message.kind).trim_end().to_owned())
        })?;
        let rest = match (message.mtu, message.id) {
            (Some(mtu), _) => mtu,
            (None, Some(id)) => u32::from(id) << 16,
            (None, None) => 0,
        };
        Ok(PacketTransport::Icmp {
            kind: numbers.kind,
            code: numbers.code,
            rest,
            payload: if message.id.is_some() { Vec::new() } else { self.quote(message.quoted)? },
        })
    }

    /// The outbound packet that an ICMP error quotes.
    fn quote(&self, quoted: Quoted) -> Result<Vec<u8>, MapError> {
        let ports = [self.local.port(), self.remote.port()];
        let mut bytes: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        let (payload, total) = match quoted {
            Quoted::Tcp { encapsulation: Some(_), .. } => return Err(MapError::Encapsulated),
            Quoted::Tcp { seq, payload_len, .. } => {
                let live = seq.wrapping_add(self.local_offset(false));
                bytes.extend_from_slice(&live.to_be_bytes());
                let other =
                    PacketTransport::Other { protocol: wire::PROTOCOL_TCP, payload: Vec::new() };
                (other, QUOTED_TCP_HEADER_BYTES + usize::from(payload_len))
            }
            Quoted::Udp(len) => {
                let total = len.saturating_add(8);
                bytes.extend_from_slice(&total.to_be_bytes());
                bytes.extend_from_slice(&[0, 0]);
                let other =
                    PacketTransport::Other { protocol: wire::PROTOCOL_UDP, payload: Vec::new() };
                (other, usize::from(total))
            }
            Quoted::Raw(len) => {
                bytes = vec![0; QUOTED_BYTES];
                (PacketTransport::Other { protocol: 255, payload: Vec::new() }, usize::from(len))
            }
        };
        let packet = IpPacket {
            source: self.local.ip(),
            destination: self.remote.ip(),
            tos: 0,
            flow_label: 0,
            ttl: INBOUND_TTL,
            payload,
        };
        Ok(wire::emit_quoted(&packet, &bytes, total))
    }

    /// A live outbound packet in the script's numbers. `expected` is what the script has there:
    /// its TSval is what the live one maps to from now on.
    pub(crate) fn in_script(&mut self, packet: &IpPacket, expected: &ScriptPacket) -> ScriptPacket {
        let body = match &packet.payload {
            PacketTransport::Tcp(header) => {
                let expected = match &expected.body {
                    PacketBody::Tcp(segment) => Some(segment),
                    _ => None,
                };
                PacketBody::Tcp(self.script_segment(header, expected))
            }
            PacketTransport::Udp { payload, .. } => {
                PacketBody::Udp(u16::try_from(payload.len()).unwrap_or(u16::MAX))
            }
            PacketTransport::Icmp { kind, code, rest, .. } => {
                let numbers = icmp::IcmpNumbers { kind: *kind, code: *code };
                let (kind, code) = icmp::names(packet.source.is_ipv6(), numbers);
                let mtu = Some(*rest).filter(|&rest| rest != 0);
                let quoted = Quoted::Raw(0);
                PacketBody::Icmp(Icmp { kind, code, mtu, id: None, quoted })
            }
            PacketTransport::Other { .. } => PacketBody::Udp(0),
        };
        let flow_label = self.script_flow_label(packet.flow_label, expected.ip.flow_label);
        let tos = Tos::Byte(packet.tos);
        ScriptPacket {
            direction: PacketDirection::Outbound,
            ip: IpFields { tos, flow_label, ttl: Some(packet.ttl) },
            ports: None,
            body,
        }
    }

    fn script_segment(
        &mut self,
        header: &TcpHeader,
        expected: Option<&ScriptSegment>,
    ) -> ScriptSegment {
        let is_syn = header.flags & SYN != 0;
        let is_ack = header.flags & ACK != 0;
        let seq = match expected.map(|segment| segment.seq) {
            Some(Sequence::Absolute(_)) => Sequence::Absolute(header.seq),
            _ => Sequence::Relative(header.seq.wrapping_sub(self.local_offset(is_syn))),
        };
        let offset = self.remote_offset(is_syn);
        let ack = if is_ack { header.ack.wrapping_sub(offset) } else { header.ack };
        let expected_val = expected.and_then(expected_timestamp);
        let mut options = header.options.clone();
        for option in &mut options {
            match option {
                TcpOption::Sack(blocks) => shift(blocks, offset.wrapping_neg()),
                TcpOption::Timestamps { val: Some(val), .. } => {
                    *val = self.script_timestamp(*val, expected_val);
                }
                _ => {}
            }
        }
        let ace = expected.and_then(|segment| segment.flags.ace).map(|_| ace(header.flags));
        ScriptSegment {
            flags: TcpFlags { bits: header.flags, ace },
            seq,
            payload_len: u16::try_from(header.payload.len()).unwrap_or(u16::MAX),
            ack,
            window: Some(header.window),
            urgent: header.urgent,
            options: Some(options),
            encapsulation: None,
        }
    }

    fn script_timestamp(&mut self, live: u32, expected: Option<u32>) -> u32 {
        if let Some(script) = expected {
            self.timestamps.insert(script, live);
            self.first_timestamp.get_or_insert(NumberPair { script, live });
        }
        match self.first_timestamp {
            Some(first) => live.wrapping_sub(first.live).wrapping_add(first.script),
            None => live,
        }
    }

    /// Live flow labels are random: what counts is whether they stay and change when they should.
    fn script_flow_label(&mut self, live: u32, expected: Option<u32>) -> Option<u32> {
        let script = expected?;
        if live == 0 {
            return Some(0);
        }
        match self.flow_label {
            Some(known) if known.live == live => Some(known.script),
            Some(known) if known.script == script => Some(live),
            _ => {
                self.flow_label = Some(NumberPair { script, live });
                Some(script)
            }
        }
    }
}

/// The three ECN bits as a counter: AE, CWR, ECE.
pub(crate) fn ace(bits: u16) -> u8 {
    u8::try_from((bits >> 6) & 0x7).unwrap_or(0)
}

fn wire_flags(flags: TcpFlags) -> u16 {
    flags.bits | flags.ace.map_or(0, |ace| u16::from(ace) << 6)
}

fn expected_timestamp(segment: &ScriptSegment) -> Option<u32> {
    segment.options.as_ref()?.iter().find_map(|option| match option {
        TcpOption::Timestamps { val, .. } => *val,
        _ => None,
    })
}

fn shift(blocks: &mut [(u32, u32)], offset: u32) {
    for (left, right) in blocks {
        *left = left.wrapping_add(offset);
        *right = right.wrapping_add(offset);
    }
}
