//! The virtio network header: describes a frame's offloads in both directions, on TAP
//! devices (`IFF_VNET_HDR`) and packet sockets (`PACKET_VNET_HDR`).
//!
//! Read first: virtio 1.2 §5.1.6 and the kernel's `linux/virtio_net.h`. The form is the legacy
//! one of ten bytes, in the byte order of the machine.
//!
//! Pure: what is to be done with a frame in, header out, and back.
//!
//! Invariants
//! - A header that contradicts its frame is refused on both ways, never handed on.

use crate::{LinkMedium, RxChecksum, RxMetadata, TxMetadata};

/// Length of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const SEGMENTS_NONE: u8 = 0;
const SEGMENTS_TCP_IPV4: u8 = 1;
const SEGMENTS_TCP_IPV6: u8 = 4;
const SEGMENTS_ECN: u8 = 0x80;

/// Offset of the flags in a TCP header, and the bit of CWR (RFC 9293 §3.1).
const TCP_FLAGS: usize = 13;
const TCP_CWR: u8 = 0x80;

/// Where the IP header of a frame starts, VLAN tags skipped, and its version. `None`: not IP.
pub(crate) fn ip_header(medium: LinkMedium, frame: &[u8]) -> Option<(usize, u8)> {
    let start = match medium {
        LinkMedium::Ip => 0,
        LinkMedium::Ethernet => {
            let mut kind = 12;
            while let [0x81 | 0x88, 0x00 | 0xa8] = frame.get(kind..kind + 2)? {
                kind += 4;
            }
            match frame.get(kind..kind + 2)? {
                [0x08, 0x00] | [0x86, 0xdd] => kind + 2,
                _ => return None,
            }
        }
    };
    let version = frame.get(start)? >> 4;
    matches!(version, 4 | 6).then_some((start, version))
}

/// The header for a frame on its way out. `None`: what is asked for does not fit the frame.
pub(crate) fn encode(medium: LinkMedium, frame: &[u8], transmit: TxMetadata) -> Option<[u8; 10]> {
    let mut header = [0; HEADER_BYTES];
    if transmit.checksum_start == 0 {
        // Segments need checksums of their own.
        return (transmit.segment_bytes == 0).then_some(header);
    }
    let start = usize::from(transmit.checksum_start);
    let field = start + usize::from(transmit.checksum_field);
    if field + 2 > frame.len() {
        return None;
    }
    header[0] = NEEDS_CHECKSUM;
    header[6..8].copy_from_slice(&transmit.checksum_start.to_ne_bytes());
    header[8..10].copy_from_slice(&transmit.checksum_field.to_ne_bytes());
    if transmit.segment_bytes > 0 {
        let (_, version) = ip_header(medium, frame)?;
        let headers_bytes = usize::from(transmit.header_bytes);
        let tcp = frame.get(start..headers_bytes)?;
        let flags = tcp.get(TCP_FLAGS)?;
        header[1] = if version == 4 { SEGMENTS_TCP_IPV4 } else { SEGMENTS_TCP_IPV6 };
        if flags & TCP_CWR != 0 {
            header[1] |= SEGMENTS_ECN;
        }
        if frame.len() - headers_bytes <= usize::from(transmit.segment_bytes) {
            // One segment is no segmentation: Linux refuses it.
            header[1] = SEGMENTS_NONE;
            return Some(header);
        }
        header[2..4].copy_from_slice(&transmit.header_bytes.to_ne_bytes());
        header[4..6].copy_from_slice(&transmit.segment_bytes.to_ne_bytes());
    }
    Some(header)
}

/// What came with a received frame. `None`: the header is of no kind that we asked for.
pub(crate) fn decode(header: [u8; HEADER_BYTES]) -> Option<RxMetadata> {
    let [flags, kind, ..] = header;
    let is_vouched = flags & (NEEDS_CHECKSUM | DATA_VALID) != 0;
    let checksums = if is_vouched { RxChecksum::Verified } else { RxChecksum::Unverified };
    let segment_bytes = match kind & !SEGMENTS_ECN {
        SEGMENTS_NONE => 0,
        SEGMENTS_TCP_IPV4 | SEGMENTS_TCP_IPV6 => u16::from_ne_bytes([header[4], header[5]]),
        _ => return None,
    };
    Some(RxMetadata { checksums, segment_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_frame(len: usize, flags: u8) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[34 + TCP_FLAGS] = flags;
        frame
    }

    const CUT: TxMetadata = TxMetadata {
        len: 4_054,
        checksum_start: 34,
        checksum_field: 16,
        segment_bytes: 1_000,
        header_bytes: 54,
    };

    #[test]
    fn a_complete_frame_needs_nothing() {
        let plain = TxMetadata { len: 60, ..TxMetadata::default() };
        assert_eq!(encode(LinkMedium::Ethernet, &tcp_frame(60, 0), plain), Some([0; 10]));
        assert_eq!(decode([0; 10]), Some(RxMetadata::default()));
    }

    #[test]
    fn segments_are_described_and_read_back() {
        let header = encode(LinkMedium::Ethernet, &tcp_frame(4_054, TCP_CWR), CUT).expect("fits");
        let le = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        assert_eq!(header[..2], [NEEDS_CHECKSUM, SEGMENTS_TCP_IPV4 | SEGMENTS_ECN]);
        assert_eq!([le(2), le(4), le(6), le(8)], [54, 1_000, 34, 16]);
        let received = decode(header).expect("our own");
        assert_eq!((received.checksums, received.segment_bytes), (RxChecksum::Verified, 1_000));
    }

    #[test]
    fn one_segment_is_only_a_checksum() {
        let header = encode(LinkMedium::Ethernet, &tcp_frame(1_054, 0), CUT).expect("fits");
        assert_eq!((header[0], header[1], header[4]), (NEEDS_CHECKSUM, SEGMENTS_NONE, 0));
    }

    #[test]
    fn contradictions_are_refused() {
        let frame = tcp_frame(4_054, 0);
        let no_checksum = TxMetadata { checksum_start: 0, ..CUT };
        assert_eq!(encode(LinkMedium::Ethernet, &frame, no_checksum), None);
        let beyond = TxMetadata { checksum_start: 4_050, ..CUT };
        assert_eq!(encode(LinkMedium::Ethernet, &frame, beyond), None);
        let short_headers = TxMetadata { header_bytes: 40, ..CUT };
        assert_eq!(encode(LinkMedium::Ethernet, &frame, short_headers), None);
        assert_eq!(encode(LinkMedium::Ip, &frame, CUT), None, "no IP version");
        assert_eq!(decode([1, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None, "UDP fragments");
    }

    #[test]
    fn vlan_tags_are_skipped() {
        let mut frame = vec![0; 12];
        frame.extend([0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x86, 0xdd, 0x60]);
        assert_eq!(ip_header(LinkMedium::Ethernet, &frame), Some((22, 6)));
        assert_eq!(ip_header(LinkMedium::Ethernet, &frame[..20]), None);
        assert_eq!(ip_header(LinkMedium::Ip, &[0x45]), Some((0, 4)));
    }
}
