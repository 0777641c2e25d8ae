//! What most frames are, read in a few wide loads: whole segments and datagrams of IPv4 without
//! options.
//!
//! Read first: `classify.rs`, which reads everything. What is said here about a frame is said there
//! as well: a test compares the two for any bytes.

use megapipe_stack::Medium;
use megapipe_stack::wire::tcp::Flags;

use super::bindings::Transport;
use super::classify::{Classified, begins};
use super::hash::{End4, SteeringKey};

const ETHERNET_BYTES: usize = 14;
/// An IPv4 header without options, and the part of a TCP header up to its flags.
const LOOKED_AT_BYTES: usize = 20 + 14;

/// A segment or datagram of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastParsed {
    pub(super) src: End4,
    pub(super) dst: End4,
    pub(super) transport: Transport,
    /// Of a segment; none of a datagram.
    flags: Flags,
}

/// Reads a received frame; `None`: it takes the full parser.
#[must_use]
#[inline]
pub fn fast_parse(medium: Medium, frame: &[u8]) -> Option<FastParsed> {
    let packet = match medium {
        Medium::Ip => frame,
        Medium::Ethernet(_) => {
            let (header, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
            if header[12..] != [0x08, 0x00] {
                return None;
            }
            packet
        }
    };
    let head: &[u8; LOOKED_AT_BYTES] = packet.first_chunk()?;
    let length = usize::from(half(head, 2));
    // Version 4 and five words; no fragment: neither more to come nor an offset.
    let is_plain = head[0] == 0x45 && half(head, 6) & 0x3fff == 0;
    if !is_plain || length < LOOKED_AT_BYTES || length > packet.len() {
        return None;
    }
    let (transport, flags) = match head[9] {
        6 => (Transport::Tcp, Flags(head[33])),
        17 => (Transport::Udp, Flags(0)),
        _ => return None,
    };
    let end = |ip: usize, port: usize| {
        let ip = [head[ip], head[ip + 1], head[ip + 2], head[ip + 3]];
        End4::new(ip.into(), half(head, port))
    };
    Some(FastParsed { src: end(12, 20), dst: end(16, 22), transport, flags })
}

#[inline]
fn half(head: &[u8; LOOKED_AT_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

impl FastParsed {
    /// What the full reading says about it.
    #[must_use]
    pub fn classified(&self) -> Classified {
        let ends = SteeringKey::of_v4(self.src, self.dst);
        Classified::Flow { transport: self.transport, ends, begins: begins(self.flags) }
    }
}
