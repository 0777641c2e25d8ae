//! Packets in the language's own words, for reports.

use std::fmt::{Display, Formatter, Result, Write};

use crate::script::{
    ACK, AE, CWR, ECE, FIN, IpFields, PSH, PacketBody, PacketDirection, RST, SYN, ScriptPacket,
    ScriptSegment, Sequence, TcpFlags, TcpOption, Tos, URG,
};

impl Display for ScriptPacket {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_char(if self.direction == PacketDirection::Inbound { '<' } else { '>' })?;
        self.ip.fmt(f)?;
        if let Some((source, destination)) = self.ports {
            write!(f, " {source} > {destination}")?;
        }
        match &self.body {
            PacketBody::Tcp(segment) => write!(f, " {segment}"),
            PacketBody::Udp(len) => write!(f, " udp ({len})"),
            PacketBody::Icmp(message) => {
                write!(f, " icmp {}", message.kind)?;
                if let Some(code) = &message.code {
                    write!(f, " {code}")?;
                }
                if let Some(mtu) = message.mtu {
                    write!(f, " mtu {mtu}")?;
                }
                Ok(())
            }
        }
    }
}

impl Display for IpFields {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.tos {
            Tos::Any => Ok(()),
            Tos::Ecn(bits) | Tos::Byte(bits @ 0..=3) => {
                let names = ["noecn", "ect1", "ect0", "ce"];
                write!(f, " [{}]", names[usize::from(bits & 3)])
            }
            Tos::EitherEct => f.write_str(" [ect01]"),
            Tos::Byte(byte) => write!(f, " (tos {byte:#04x})"),
        }
    }
}

impl Display for ScriptSegment {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} ", self.flags)?;
        match self.seq {
            Sequence::Any => write!(f, "...({})", self.payload_len)?,
            Sequence::Relative(seq) | Sequence::Absolute(seq) => {
                let end = seq.wrapping_add(u32::from(self.payload_len));
                write!(f, "{seq}:{end}({})", self.payload_len)?;
            }
        }
        if matches!(self.seq, Sequence::Absolute(_)) {
            f.write_char('!')?;
        }
        if self.flags.bits & ACK != 0 || self.ack != 0 {
            write!(f, " ack {}", self.ack)?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        match &self.options {
            None => f.write_str(" <...>"),
            Some(options) if options.is_empty() => Ok(()),
            Some(options) => {
                for (index, option) in options.iter().enumerate() {
                    write!(f, "{}{option}", if index == 0 { " <" } else { "," })?;
                }
                f.write_char('>')
            }
        }
    }
}

impl Display for TcpFlags {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        const LETTERS: [(char, u16); 9] = [
            ('S', SYN),
            ('F', FIN),
            ('R', RST),
            ('P', PSH),
            ('U', URG),
            ('E', ECE),
            ('W', CWR),
            ('A', AE),
            ('.', ACK),
        ];
        let hidden = if self.ace.is_some() { ECE | CWR | AE } else { 0 };
        let shown = self.bits & !hidden;
        for (letter, _) in LETTERS.into_iter().filter(|&(_, bit)| shown & bit != 0) {
            f.write_char(letter)?;
        }
        match self.ace {
            Some(ace) => write!(f, "{ace}"),
            None if shown == 0 => f.write_char('-'),
            None => Ok(()),
        }
    }
}

impl Display for TcpOption {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let wild = |value: Option<u32>| value.map_or_else(|| "*".to_owned(), |it| it.to_string());
        match self {
            Self::Eol => f.write_str("eol"),
            Self::Nop => f.write_str("nop"),
            Self::Mss(mss) => write!(f, "mss {}", wild(mss.map(u32::from))),
            Self::WindowScale(shift) => write!(f, "wscale {}", wild(shift.map(u32::from))),
            Self::SackPermitted => f.write_str("sackOK"),
            Self::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(left, right)| write!(f, " {left}:{right}"))
            }
            Self::Timestamps { val, ecr, .. } => {
                write!(f, "TS val {} ecr {}", wild(*val), wild(*ecr))
            }
            Self::Md5(digest) => write!(f, "md5 {}", Hexadecimal(digest)),
            Self::FastOpen(cookie) => write!(f, "FO {}", Hexadecimal(cookie)),
            Self::FastOpenExperiment(cookie) => write!(f, "FOEXP {}", Hexadecimal(cookie)),
            Self::AccurateEcn { kind, counters } => {
                let names =
                    if *kind == 172 { ["e0b", "ceb", "e1b"] } else { ["e1b", "ceb", "e0b"] };
                f.write_str("ECN")?;
                let named = names.iter().zip(counters);
                named.into_iter().try_for_each(|(name, counter)| write!(f, " {name} {counter}"))
            }
            Self::Other { kind, data } if data.is_empty() => write!(f, "gen-{kind}"),
            Self::Other { kind, data } => write!(f, "gen-{kind} {}", Hexadecimal(data)),
        }
    }
}

struct Hexadecimal<'a>(&'a [u8]);

impl Display for Hexadecimal<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
