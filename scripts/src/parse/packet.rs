//! Packets: `> P. 1:1001(1000) ack 1 win 257 <nop,nop,TS val 1 ecr 2>`, UDP and ICMP.

use super::{Definitions, ParseError, ScriptProblem};
use crate::parse::cursor::Cursor;
use crate::parse::number::unsigned;
use crate::parse::option;
use crate::script::{
    ACK, AE, CWR, ECE, FIN, Icmp, IpFields, PSH, PacketBody, PacketDirection, Quoted, RST, SYN,
    ScriptPacket, ScriptSegment, Sequence, TcpFlags, TcpOption, Tos, URG,
};

/// Not-ECT, ECT(1), ECT(0) and CE (RFC 3168, section 5).
const ECN_NAMES: [(&str, u8); 4] = [("noecn", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];
const FLOW_LABEL_MAX: i64 = 0xf_ffff;

/// What a packet may begin with that this interpreter does not have.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("ipv4", "encapsulation in IPv4"),
    ("ipv6", "encapsulation in IPv6"),
    ("gre", "encapsulation in GRE"),
    ("GREv0", "encapsulation in GRE"),
    ("mpls", "encapsulation in MPLS"),
    ("psp", "encapsulation in PSP"),
    ("sctp", "SCTP"),
    ("udplite", "UDP-Lite"),
];

impl ScriptPacket {
    pub(crate) fn is_outbound(&self) -> bool {
        self.direction == PacketDirection::Outbound
    }
}

/// A packet, from its `<` or `>` on.
pub(super) fn packet(
    cursor: &mut Cursor<'_>,
    definitions: &Definitions,
) -> Result<ScriptPacket, ParseError> {
    let start = cursor.at();
    let direction = if cursor.take("<") {
        PacketDirection::Inbound
    } else {
        cursor.expect(">")?;
        PacketDirection::Outbound
    };
    refuse_unsupported(cursor)?;
    let ip = ip_fields(cursor)?;
    refuse_unsupported(cursor)?;
    let quoted_before = quoted_before(cursor)?;
    let mut ports = ports(cursor)?;
    let body = if cursor.take_keyword("udp") {
        if ports.is_none() {
            ports = self::ports(cursor)?;
        }
        PacketBody::Udp(parenthesized(cursor)?)
    } else if cursor.take_keyword("icmp") {
        let message = icmp(cursor)?;
        PacketBody::Icmp(Icmp { quoted: quoted_before.unwrap_or(message.quoted), ..message })
    } else if quoted_before.is_some() {
        return Err(cursor.expected("`icmp`"));
    } else {
        PacketBody::Tcp(segment(cursor, definitions)?)
    };
    let packet = ScriptPacket { direction, ip, ports, body };
    match wildcard(&packet) {
        Some(what) if !packet.is_outbound() => {
            Err(cursor.error_at(start, ScriptProblem::OutboundOnly(what)))
        }
        _ => Ok(packet),
    }
}

fn refuse_unsupported(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    cursor.skip_blank();
    for (keyword, what) in UNSUPPORTED {
        let start = cursor.at();
        if cursor.take_keyword(keyword) {
            return Err(cursor.error_at(start, ScriptProblem::Unsupported(what.to_owned())));
        }
    }
    Ok(())
}

/// Fields of a packet that are "any", so that it cannot be sent.
fn wildcard(packet: &ScriptPacket) -> Option<&'static str> {
    if packet.ip.tos == Tos::EitherEct {
        return Some("`ect01`");
    }
    let PacketBody::Tcp(segment) = &packet.body else { return None };
    if segment.seq == Sequence::Any {
        return Some("a sequence number of `...`");
    }
    let Some(options) = &segment.options else { return Some("`<...>`") };
    let is_wild = |option: &TcpOption| match option {
        TcpOption::Mss(value) => value.is_none(),
        TcpOption::WindowScale(value) => value.is_none(),
        TcpOption::Timestamps { val, ecr, .. } => val.is_none() || ecr.is_none(),
        _ => false,
    };
    options.iter().any(is_wild).then_some("an option's value of `*`")
}

/// `(tos 0x10)`, `[ect0]`, `[ect0, flowlabel 0x3]`, `(ttl 64)`.
fn ip_fields(cursor: &mut Cursor<'_>) -> Result<IpFields, ParseError> {
    let mut fields = IpFields::default();
    let start = cursor.at();
    let end = if cursor.take_next("[") {
        "]"
    } else if cursor.take_next("(") {
        ")"
    } else {
        return Ok(fields);
    };
    cursor.skip_blank();
    if cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) || cursor.looks_at("udp") {
        // What an ICMP message quotes.
        cursor.back_to(start);
        return Ok(fields);
    }
    loop {
        cursor.skip_blank();
        let start = cursor.at();
        let name = cursor.take_word().ok_or_else(|| cursor.expected("a field of the IP header"))?;
        if let Some((_, bits)) = ECN_NAMES.iter().find(|(known, _)| *known == name) {
            fields.tos = Tos::Ecn(*bits);
        } else {
            match name.as_str() {
                "ect01" => fields.tos = Tos::EitherEct,
                "tos" => fields.tos = Tos::Byte(narrow(unsigned(cursor, "tos", 0xff)?)),
                "ttl" => fields.ttl = Some(narrow(unsigned(cursor, "ttl", 0xff)?)),
                "flowlabel" => {
                    let label = unsigned(cursor, "flow label", FLOW_LABEL_MAX)?;
                    fields.flow_label = u32::try_from(label).ok();
                }
                _ => {
                    cursor.back_to(start);
                    return Err(
                        cursor.expected("ect0, ect1, ect01, ce, noecn, tos, flowlabel or ttl")
                    );
                }
            }
        }
        if !cursor.take_next(",") {
            cursor.expect(end)?;
            return Ok(fields);
        }
    }
}

/// `[1:1001(1000)]` before `icmp`, as old scripts have it.
fn quoted_before(cursor: &mut Cursor<'_>) -> Result<Option<Quoted>, ParseError> {
    if !cursor.take_next("[") {
        return Ok(None);
    }
    let quoted = quoted(cursor)?;
    cursor.expect("]")?;
    Ok(Some(quoted))
}

/// `1234 > 8080`.
fn ports(cursor: &mut Cursor<'_>) -> Result<Option<(u16, u16)>, ParseError> {
    cursor.skip_blank();
    if !cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let source = word16(cursor, "source port")?;
    cursor.expect(">")?;
    Ok(Some((source, word16(cursor, "destination port")?)))
}

fn segment(
    cursor: &mut Cursor<'_>,
    definitions: &Definitions,
) -> Result<ScriptSegment, ParseError> {
    let flags = flags(cursor)?;
    let (seq, payload_len) = sequence(cursor)?;
    let ack = if cursor.take_keyword("ack") { word32(cursor, "acknowledgment number")? } else { 0 };
    let window = if cursor.take_keyword("win") && !cursor.take_next("*") {
        Some(word16(cursor, "window")?)
    } else {
        None
    };
    let urgent = if cursor.take_keyword("urg") { word16(cursor, "urgent pointer")? } else { 0 };
    let options = option::options(cursor, definitions)?;
    let encapsulation = encapsulation(cursor)?;
    if cursor.take_next("{") {
        return Err(cursor.error(ScriptProblem::Unsupported("mutation of packets".to_owned())));
    }
    Ok(ScriptSegment { flags, seq, payload_len, ack, window, urgent, options, encapsulation })
}

/// `/udp(9900 > 8080)`.
fn encapsulation(cursor: &mut Cursor<'_>) -> Result<Option<(u16, u16)>, ParseError> {
    cursor.skip_blank();
    // Not the beginning of a comment.
    if !cursor.take("/udp") {
        return Ok(None);
    }
    cursor.expect("(")?;
    let source = word16(cursor, "source port")?;
    cursor.expect(">")?;
    let destination = word16(cursor, "destination port")?;
    cursor.expect(")")?;
    Ok(Some((source, destination)))
}

/// `S`, `F.`, `.`, `SEW`, `-` for none; a digit among them is the ACE field.
fn flags(cursor: &mut Cursor<'_>) -> Result<TcpFlags, ParseError> {
    cursor.skip_blank();
    let start = cursor.at();
    let mut flags = TcpFlags::default();
    while let Some(byte) = cursor.peek() {
        match byte {
            b'-' => {}
            b'0'..=b'7' => flags.ace = Some(byte - b'0'),
            _ => match flag(byte) {
                Some(bit) => flags.bits |= bit,
                None => break,
            },
        }
        cursor.advance(1);
    }
    let ended = cursor.peek().is_none_or(|byte| byte.is_ascii_whitespace());
    if cursor.at() == start || !ended {
        cursor.back_to(start);
        return Err(cursor.expected("TCP flags, `udp` or `icmp`"));
    }
    Ok(flags)
}

fn flag(letter: u8) -> Option<u16> {
    Some(match letter {
        b'F' => FIN,
        b'S' => SYN,
        b'R' => RST,
        b'P' => PSH,
        b'.' => ACK,
        b'U' => URG,
        b'E' => ECE,
        b'W' | b'C' => CWR,
        b'A' | b'N' => AE,
        _ => return None,
    })
}

/// `1:1001(1000)`, with `!` for a number as on the wire; `...(1000)` for any number.
fn sequence(cursor: &mut Cursor<'_>) -> Result<(Sequence, u16), ParseError> {
    cursor.skip_blank();
    if cursor.take("...") {
        return Ok((Sequence::Any, parenthesized(cursor)?));
    }
    let at = cursor.at();
    let start = word32(cursor, "sequence number")?;
    cursor.expect(":")?;
    let end = word32(cursor, "sequence number")?;
    let len = parenthesized(cursor)?;
    if start.wrapping_add(u32::from(len)) != end {
        return Err(cursor.error_at(at, ScriptProblem::InconsistentSequence { start, end, len }));
    }
    let seq =
        if cursor.take_next("!") { Sequence::Absolute(start) } else { Sequence::Relative(start) };
    Ok((seq, len))
}

fn icmp(cursor: &mut Cursor<'_>) -> Result<Icmp, ParseError> {
    let kind = cursor.take_word().ok_or_else(|| cursor.expected("a type of ICMP message"))?;
    let before = cursor.at();
    let code = match cursor.take_word() {
        Some(word) if word != "mtu" && word != "id" => Some(word),
        _ => {
            cursor.back_to(before);
            None
        }
    };
    let mtu = if cursor.take_keyword("mtu") { Some(word32(cursor, "MTU")?) } else { None };
    let id = if cursor.take_keyword("id") { Some(word16(cursor, "identifier")?) } else { None };
    let quoted = if cursor.take_next("[") {
        let quoted = quoted(cursor)?;
        cursor.expect("]")?;
        quoted
    } else {
        Quoted::Tcp { seq: 0, payload_len: 0, encapsulation: None }
    };
    Ok(Icmp { kind, code, mtu, id, quoted })
}

fn quoted(cursor: &mut Cursor<'_>) -> Result<Quoted, ParseError> {
    refuse_unsupported(cursor)?;
    if cursor.take_keyword("udp") {
        return Ok(Quoted::Udp(parenthesized(cursor)?));
    }
    if cursor.take_keyword("raw") {
        return Ok(Quoted::Raw(parenthesized(cursor)?));
    }
    let at = cursor.at();
    let (seq, payload_len) = sequence(cursor)?;
    let encapsulation = encapsulation(cursor)?;
    match seq {
        Sequence::Relative(seq) => Ok(Quoted::Tcp { seq, payload_len, encapsulation }),
        _ => Err(cursor.error_at(
            at,
            ScriptProblem::Unsupported("absolute numbers in a quotation".to_owned()),
        )),
    }
}

/// `(1000)`: a length in bytes.
fn parenthesized(cursor: &mut Cursor<'_>) -> Result<u16, ParseError> {
    cursor.expect("(")?;
    let len = word16(cursor, "length")?;
    cursor.expect(")")?;
    Ok(len)
}

fn word16(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u16, ParseError> {
    let value = unsigned(cursor, what, i64::from(u16::MAX))?;
    Ok(u16::try_from(value).unwrap_or(u16::MAX))
}

fn word32(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u32, ParseError> {
    let value = unsigned(cursor, what, i64::from(u32::MAX))?;
    Ok(u32::try_from(value).unwrap_or(u32::MAX))
}

/// A checked byte.
fn narrow(value: i64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}
