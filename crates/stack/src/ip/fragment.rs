//! Cutting what we send (RFC 791 §3.2, RFC 8200 §4.5): answers to echoes that are longer than the
//! way to the asker takes, and nothing else. RFC 4443 §4.2 wants all that was asked to come back.
//! TCP's segments always fit, and datagrams that do not are refused.
//!
//! Read first: `outbox.rs`, where a message waits until its last part is gone.
//!
//! Invariants
//! - All parts of a message have one identification, which attackers cannot predict (RFC 7739 §4).
//! - Each part but the last holds a multiple of eight bytes, and a part fits the path's MTU.

use core::net::IpAddr;

use super::outbox::Next;
use super::{Departing, Hop, Ip, Service, ip_header_bytes};
use crate::siphash::Sip;
use crate::wire::extension::{self, Fragment};
use crate::wire::{Ecn, ipv4, ipv6};

/// Identifications of cut messages.
#[derive(Debug)]
pub(super) struct Identifications(Sip<2, 4>);

impl Identifications {
    /// Those that `secret` decides.
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        let key = secret.first_chunk().copied().unwrap_or_default();
        // The same key serves other hashes: no two uses share values.
        Self(Sip::new(&key).and(u64::from_be_bytes(*b"fragment")))
    }

    /// That of the message with this number.
    fn of(&self, number: u64) -> u32 {
        self.0.and(number).finish() as u32
    }
}

/// Bytes of the next part of `left` bytes, where a packet has `room` for them.
const fn part_bytes(left: usize, room: usize) -> usize {
    if left <= room { left } else { room - room % ipv4::FRAGMENT_UNIT }
}

impl Ip {
    /// `next` goes in parts: it is longer than a packet may be, or was when its first part went.
    pub(super) fn is_cut(&self, next: &Next) -> bool {
        let dst = next.message.dst;
        let whole = ip_header_bytes(&dst) + next.message.len;
        next.taken > 0 || whole > usize::from(self.path_mtu(dst.into()))
    }

    /// Writes the next part of `next` to `frame`. How long the frame is.
    pub(super) fn write_part(&mut self, frame: &mut [u8], hop: Hop, next: &Next) -> usize {
        let Next { message, taken, number } = *next;
        let dst = message.dst;
        let header_bytes = if dst.is_ipv4() { 0 } else { extension::FRAGMENT_BYTES };
        let room = usize::from(self.path_mtu(dst.into())) - ip_header_bytes(&dst) - header_bytes;
        let bytes = part_bytes(message.len - taken, room);
        let more = taken + bytes < message.len;
        let departing = Departing {
            src: message.src,
            dst,
            protocol: message.protocol,
            service: Service::default(),
            ecn: Ecn::NotEct,
            payload_bytes: header_bytes + bytes,
            dont_fragment: false,
        };
        let at = self.header_bytes(&dst);
        self.write_headers(frame, hop, &departing);
        let packet = &mut frame[at - ip_header_bytes(&dst)..];
        let identification = self.identifications.of(number);
        match dst {
            IpAddr::V4(_) => ipv4::set_part(packet, identification as u16, taken, more),
            IpAddr::V6(_) => {
                let next_header = message.protocol.number();
                ipv6::set_next_header(packet, extension::FRAGMENT);
                let fragment = Fragment { next_header, offset: taken, more, identification };
                fragment.emit(&mut packet[ipv6::HEADER_BYTES..]);
            }
        }
        let at = at + header_bytes;
        self.outbox.take(&mut frame[at..at + bytes]);
        at + bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_eight_bytes_each_and_the_last_of_what_is_left() {
        assert_eq!(part_bytes(4_000, 1_480), 1_480);
        assert_eq!(part_bytes(4_000, 1_479), 1_472);
        assert_eq!(part_bytes(1_479, 1_479), 1_479);
    }

    #[test]
    fn identifications_follow_from_the_secret_and_differ() {
        let of = |secret: u8, number| Identifications::new(&[secret; 32]).of(number);
        assert_eq!(of(1, 5), of(1, 5));
        assert_ne!(of(1, 5), of(1, 6));
        assert_ne!(of(1, 5), of(2, 5));
    }
}
