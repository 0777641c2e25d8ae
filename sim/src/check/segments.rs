//! Every segment on the wire, looked at as the network would: by a parser of our own that shares
//! nothing with the stack's.
//!
//! Invariants checked (RFC 9293 §3.8.6, §3.10.7.4)
//! - IP and TCP checksums are right.
//! - No host sends past `ack + window` of any segment that the peer ever sent, but for a
//!   zero-window probe of one byte.
//! - No host acknowledges more than the peer sent.
//!
//! An edge is the farthest that was ever put on the wire, so that a lost announcement cannot be
//! taken for a violation; a flow is forgotten when a SYN begins it again.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use megapipe_link::checksum::{fold, sum};
use megapipe_stack::SeqNum;

use super::Violation;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
const ACK: u8 = 16;
const WINDOW_SCALE: u8 = 3;
const TIMESTAMPS: u8 = 8;

/// What one end of a flow has said so far.
#[derive(Debug, Clone, Copy, Default)]
struct FlowHistory {
    /// The farthest number it has used, and one.
    end: Option<SeqNum>,
    /// The farthest number it allows the other end to use, and one.
    edge: Option<SeqNum>,
    /// Its window shift, if it offered one.
    shift: Option<u8>,
    /// It sent a SYN, so that `shift` is known for sure.
    began: bool,
}

/// A segment in one line, as a trace shows it; `None`: the packet is none.
pub(crate) fn describe(packet: &[u8]) -> Option<String> {
    let segment = segment_in(packet)?;
    let names = [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (8, 'P'), (ACK, '.'), (64, 'E'), (128, 'W')];
    let set = names.iter().filter(|(bit, _)| segment.flags & bit != 0);
    let flags: String = set.map(|(_, name)| *name).collect();
    let SeenSegment { from, to, seq, ack, window, len, .. } = segment;
    let end = seq + len;
    Some(format!("{from} > {to} {flags} {}:{}({len}) ack {} win {window}", seq.0, end.0, ack.0))
}

/// The flows seen so far.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    flows: BTreeMap<(SocketAddr, SocketAddr), FlowHistory>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenSegment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: u8,
    window: u16,
    shift: Option<u8>,
    /// The timestamp's value.
    pub(crate) time: Option<u32>,
    pub(crate) len: u32,
}

impl SeenSegment {
    /// The first sequence number behind the segment, its SYN and its FIN.
    fn end(&self) -> SeqNum {
        let controls = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.seq + self.len + controls
    }
}

/// The TCP segment in a packet; `None`: there is none, or it cannot be read.
pub(crate) fn segment_in(packet: &[u8]) -> Option<SeenSegment> {
    let (src, dst, bytes) = tcp_of(packet).ok()??;
    parse(src, dst, bytes).ok()
}

impl Segments {
    /// Host `host` put an IP packet on the wire.
    pub(crate) fn on_packet(&mut self, host: usize, packet: &[u8]) -> Result<(), Violation> {
        let malformed = |what| Violation::Malformed { host, what };
        let Some((src, dst, segment)) = tcp_of(packet).map_err(malformed)? else { return Ok(()) };
        let segment = parse(src, dst, segment).map_err(malformed)?;
        self.check(host, &segment)
    }

    fn check(&mut self, host: usize, segment: &SeenSegment) -> Result<(), Violation> {
        let SeenSegment { from, to, seq, flags, .. } = *segment;
        if flags & SYN != 0 {
            let said = self.flows.entry((from, to)).or_default();
            if said.end != Some(seq + 1) || !said.began {
                let is_another = said.began;
                *said = FlowHistory { shift: segment.shift, began: true, ..FlowHistory::default() };
                self.doubt_peer(segment, is_another);
            }
        }
        let verdict = self.judge(host, segment);
        self.note(segment);
        verdict
    }

    /// Whether a segment respects what its receiver has announced and sent.
    fn judge(&self, host: usize, segment: &SeenSegment) -> Result<(), Violation> {
        let SeenSegment { from, to, ack, flags, .. } = *segment;
        let mine = self.flows.get(&(from, to)).copied().unwrap_or_default();
        let theirs = self.flows.get(&(to, from)).copied().unwrap_or_default();
        let end = segment.end();
        if flags & RST == 0 && flags & SYN == 0 && mine.began {
            // A FIN may go where a probe may: one past the edge. A peer in doubt may have
            // allowed what belongs to another answer to its SYN.
            if let Some(edge) = theirs.edge
                && theirs.began
                && end.after(edge + 1)
            {
                return Err(Violation::OutsideWindow { host, from, end, edge });
            }
            if let Some(sent) = theirs.end
                && flags & ACK != 0
                && ack.after(sent)
            {
                return Err(Violation::AckOfNothing { host, from, ack });
            }
        }
        Ok(())
    }

    /// Keeps what a segment uses, acknowledges and announces.
    fn note(&mut self, segment: &SeenSegment) {
        let SeenSegment { from, to, ack, flags, .. } = *segment;
        let mine = self.flows.get(&(from, to)).copied().unwrap_or_default();
        let theirs = self.flows.get(&(to, from)).copied().unwrap_or_default();
        let end = segment.end();
        let both_scale = mine.shift.is_some() && theirs.shift.is_some();
        let shift = if both_scale && flags & SYN == 0 { mine.shift.unwrap_or(0) } else { 0 };
        let said = self.flows.entry((from, to)).or_default();
        if flags & RST == 0 {
            said.end = Some(said.end.map_or(end, |known| known.later(end)));
        }
        if flags & ACK != 0 && flags & RST == 0 {
            let edge = ack + (u32::from(segment.window) << shift);
            said.edge = Some(said.edge.map_or(edge, |known| known.later(edge)));
        }
    }

    /// A SYN that answers none of the peer's begins the flow anew, be it by an old duplicate: what
    /// the peer says until its own next SYN may be about the flow as it was. So does another answer
    /// to the same SYN, from a listener that came in between: the peer may have taken the first.
    fn doubt_peer(&mut self, segment: &SeenSegment, is_another: bool) {
        let peer = self.flows.entry((segment.to, segment.from)).or_default();
        let answers = segment.flags & ACK != 0 && peer.end == Some(segment.ack);
        peer.began &= answers && !is_another;
    }
}

type Transport<'a> = (IpAddr, IpAddr, &'a [u8]);

/// The TCP segment in a packet, its IP header checked; `None`: another protocol.
fn tcp_of(packet: &[u8]) -> Result<Option<Transport<'_>>, &'static str> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let header = packet.get(..20).ok_or("an IPv4 header that is cut")?;
            let header_bytes = usize::from(header[0] & 15) * 4;
            let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let body = packet.get(header_bytes..len).ok_or("an IPv4 length that is wrong")?;
            if fold(sum(0, &packet[..header_bytes])) != 0xffff {
                return Err("a wrong IPv4 checksum");
            }
            let address = |at: usize| {
                IpAddr::from(<[u8; 4]>::try_from(&header[at..at + 4]).unwrap_or_default())
            };
            Ok((header[9] == 6).then(|| (address(12), address(16), body)))
        }
        Some(6) => {
            let header = packet.get(..40).ok_or("an IPv6 header that is cut")?;
            let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let body = packet.get(40..40 + len).ok_or("an IPv6 length that is wrong")?;
            let address = |at: usize| {
                IpAddr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap_or_default())
            };
            Ok((header[6] == 6).then(|| (address(8), address(24), body)))
        }
        _ => Err("neither IPv4 nor IPv6"),
    }
}

fn parse(src: IpAddr, dst: IpAddr, bytes: &[u8]) -> Result<SeenSegment, &'static str> {
    let header = bytes.get(..20).ok_or("a TCP header that is cut")?;
    let header_bytes = usize::from(header[12] >> 4) * 4;
    let options = bytes.get(20..header_bytes).ok_or("a TCP data offset that is wrong")?;
    let mut pseudo = Vec::new();
    for address in [src, dst] {
        match address {
            IpAddr::V4(address) => pseudo.extend(address.octets()),
            IpAddr::V6(address) => pseudo.extend(address.octets()),
        }
    }
    pseudo.extend([0, 6]);
    pseudo.extend((bytes.len() as u16).to_be_bytes());
    if fold(sum(sum(0, &pseudo), bytes)) != 0xffff {
        return Err("a wrong TCP checksum");
    }
    let word = |at: usize| {
        u32::from_be_bytes(<[u8; 4]>::try_from(&header[at..at + 4]).unwrap_or_default())
    };
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    Ok(SeenSegment {
        from: SocketAddr::new(src, port(0)),
        to: SocketAddr::new(dst, port(2)),
        seq: SeqNum(word(4)),
        ack: SeqNum(word(8)),
        flags: header[13],
        window: port(14),
        shift: option(options, WINDOW_SCALE)?.and_then(|value| value.first().copied()),
        time: option(options, TIMESTAMPS)?
            .and_then(|value| value.first_chunk().map(|time| u32::from_be_bytes(*time))),
        len: (bytes.len() - header_bytes) as u32,
    })
}

/// The value of the last option of a kind, if there is one.
fn option(mut options: &[u8], wanted: u8) -> Result<Option<&[u8]>, &'static str> {
    let mut found = None;
    while let Some(kind) = options.first() {
        match kind {
            0 => break,
            1 => options = &options[1..],
            kind => {
                let len = usize::from(*options.get(1).ok_or("a TCP option without a length")?);
                let value = options.get(2..len).ok_or("a TCP option that is cut")?;
                if *kind == wanted {
                    found = Some(value);
                }
                options = &options[len..];
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from: u16, to: u16, flags: u8, seq: u32, ack: u32) -> SeenSegment {
        let end = |port| SocketAddr::from(([10, 0, 0, 1], port));
        SeenSegment {
            from: end(from),
            to: end(to),
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags,
            window: 100,
            shift: None,
            time: None,
            len: 0,
        }
    }

    fn established() -> Segments {
        let mut segments = Segments::default();
        segments.check(0, &segment(1, 2, SYN, 1_000, 0)).unwrap();
        segments.check(1, &segment(2, 1, SYN | ACK, 5_000, 1_001)).unwrap();
        segments.check(0, &segment(1, 2, ACK, 1_001, 5_001)).unwrap();
        segments
    }

    #[test]
    fn a_sender_that_leaves_its_window_is_seen() {
        let mut segments = established();
        let inside = SeenSegment { len: 100, ..segment(1, 2, ACK, 1_001, 5_001) };
        assert_eq!(segments.check(0, &inside), Ok(()));
        let probe = SeenSegment { len: 1, ..segment(1, 2, ACK, 1_101, 5_001) };
        assert_eq!(segments.check(0, &probe), Ok(()));
        let outside = SeenSegment { len: 2, ..probe };
        let seen = segments.check(0, &outside);
        assert!(matches!(seen, Err(Violation::OutsideWindow { host: 0, .. })), "{seen:?}");
    }

    #[test]
    fn an_acknowledgment_of_nothing_is_seen() {
        let seen = established().check(1, &segment(2, 1, ACK, 5_001, 1_002));
        assert!(matches!(seen, Err(Violation::AckOfNothing { host: 1, .. })), "{seen:?}");
    }

    #[test]
    fn either_of_two_answers_may_be_taken() {
        let mut segments = Segments::default();
        segments.check(0, &segment(1, 2, SYN, 1_000, 0)).unwrap();
        segments.check(1, &segment(2, 1, SYN | ACK, 5_000, 1_001)).unwrap();
        segments.check(1, &segment(2, 1, SYN | ACK, 3_000, 1_001)).unwrap();
        assert_eq!(segments.check(0, &segment(1, 2, ACK, 1_001, 5_001)), Ok(()));
        assert_eq!(segments.check(0, &segment(1, 2, ACK, 1_001, 3_001)), Ok(()));
    }

    #[test]
    fn packets_that_cannot_be_read_are_seen() {
        let mut segments = Segments::default();
        for packet in [&[0x45, 0][..], &[0x60; 39], &[0x15; 60], &[]] {
            assert!(segments.on_packet(0, packet).is_err());
        }
    }
}
