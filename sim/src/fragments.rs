//! Cuts packets that are too large for the way between two hosts into fragments: as a router does
//! with IPv4 (RFC 791 §3.2), and as a tunnel does with IPv6 in its sender's name (RFC 8200 §4.5).
//!
//! Pure: a packet goes in, fragments come out.

use megapipe_stack::wire::checksum;

const IPV6_HEADER_BYTES: usize = 40;
const FRAGMENT_HEADER_BYTES: usize = 8;
const FRAGMENT: u8 = 44;
const UDP: u8 = 17;

/// Whether a packet is one that is cut here: UDP's.
pub(crate) fn is_cut(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(9) == Some(&UDP),
        Some(6) => packet.get(6) == Some(&UDP),
        _ => false,
    }
}

/// The fragments of a packet, of at most `mtu` bytes each. `number` is no other packet's.
pub(crate) fn fragments(packet: &[u8], mtu: u16, number: u32) -> Vec<Vec<u8>> {
    let is_v4 = packet[0] >> 4 == 4;
    let header_bytes = if is_v4 { usize::from(packet[0] & 15) * 4 } else { IPV6_HEADER_BYTES };
    let (header, payload) = packet.split_at(header_bytes);
    let room = usize::from(mtu) - header_bytes - if is_v4 { 0 } else { FRAGMENT_HEADER_BYTES };
    let step = room / 8 * 8;
    let count = payload.len().div_ceil(step);
    let fragment = |(index, piece): (usize, &[u8])| {
        let (offset, has_more) = (index * step, index + 1 < count);
        if is_v4 {
            fragment_v4(header, piece, (number as u16, offset, has_more))
        } else {
            fragment_v6(header, piece, (number, offset, has_more))
        }
    };
    payload.chunks(step).enumerate().map(fragment).collect()
}

fn fragment_v4(header: &[u8], piece: &[u8], place: (u16, usize, bool)) -> Vec<u8> {
    let (number, offset, has_more) = place;
    let mut bytes = [header, piece].concat();
    let total = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[4..6].copy_from_slice(&number.to_be_bytes());
    let place = (offset / 8) as u16 | u16::from(has_more) << 13;
    bytes[6..8].copy_from_slice(&place.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&bytes[..header.len()]));
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn fragment_v6(header: &[u8], piece: &[u8], place: (u32, usize, bool)) -> Vec<u8> {
    let (number, offset, has_more) = place;
    let mut header = header.to_vec();
    let payload_bytes = (FRAGMENT_HEADER_BYTES + piece.len()) as u16;
    header[4..6].copy_from_slice(&payload_bytes.to_be_bytes());
    let next = std::mem::replace(&mut header[6], FRAGMENT);
    let place = offset as u16 | u16::from(has_more);
    let mut fragment = vec![next, 0];
    fragment.extend(place.to_be_bytes());
    fragment.extend(number.to_be_bytes());
    [&header[..], &fragment, piece].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_hold_all_of_a_packet_and_fit() {
        for (first, protocol_at, header_bytes) in [(0x45, 9, 20), (0x60, 6, 40)] {
            let mut packet: Vec<u8> = (0..4_000).map(|at| at as u8).collect();
            (packet[0], packet[protocol_at]) = (first, UDP);
            assert!(is_cut(&packet));
            let all = fragments(&packet, 1_280, 7);
            assert!(all.iter().all(|it| it.len() <= 1_280));
            let skipped = header_bytes + if first == 0x45 { 0 } else { FRAGMENT_HEADER_BYTES };
            let whole: Vec<u8> = all.iter().flat_map(|it| it[skipped..].to_vec()).collect();
            assert_eq!(whole, packet[header_bytes..]);
        }
    }
}
