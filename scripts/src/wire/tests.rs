//! What is written reads back, checksums are those of RFC 1071, and nothing makes `parse` panic.

use proptest::prelude::*;

use super::*;
use crate::script::TcpOption;

fn segment(options: Vec<TcpOption>, payload: Vec<u8>) -> TcpHeader {
    TcpHeader {
        source_port: 80,
        destination_port: 1234,
        seq: 0xfeed_beef,
        ack: 7,
        flags: 0x112,
        reserved: 5,
        window: 512,
        urgent: 3,
        options,
        payload,
    }
}

fn packet(is_ipv6: bool, payload: PacketTransport) -> IpPacket {
    let (source, destination): (IpAddr, IpAddr) = if is_ipv6 {
        (Ipv6Addr::new(0xfd3d, 1, 2, 3, 4, 5, 6, 7).into(), Ipv6Addr::LOCALHOST.into())
    } else {
        (Ipv4Addr::new(192, 168, 0, 1).into(), Ipv4Addr::new(192, 0, 2, 1).into())
    };
    let flow_label = if is_ipv6 { 0x12345 } else { 0 };
    IpPacket { source, destination, tos: 2, flow_label, ttl: 64, payload }
}

fn some_options() -> Vec<TcpOption> {
    vec![
        TcpOption::Mss(Some(1460)),
        TcpOption::SackPermitted,
        TcpOption::Timestamps { val: Some(1), ecr: Some(2), absolute_ecr: false },
        TcpOption::Nop,
        TcpOption::WindowScale(Some(7)),
        TcpOption::FastOpenExperiment(vec![1, 2, 3, 4, 5, 6]),
        TcpOption::Nop,
        TcpOption::AccurateEcn { kind: 172, counters: vec![0x01_0203] },
    ]
}

#[test]
fn every_packet_reads_back() {
    for is_ipv6 in [false, true] {
        let payloads = [
            PacketTransport::Tcp(segment(some_options(), vec![1, 2, 3])),
            PacketTransport::Tcp(segment(
                vec![TcpOption::Sack(vec![(1, 2), (3, 4)]), TcpOption::Eol],
                vec![],
            )),
            PacketTransport::Udp { source_port: 1, destination_port: 2, payload: vec![9; 5] },
            PacketTransport::Icmp { kind: 3, code: 4, rest: 1200, payload: vec![8; 28] },
        ];
        for payload in payloads {
            let packet = packet(is_ipv6, payload);
            assert_eq!(parse(&emit(&packet), ChecksumTrust::Verified), Ok(packet));
        }
    }
}

#[test]
fn a_known_header_has_its_known_checksum() {
    // The example of RFC 1071, section 3.
    assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0), !0xddf2);
}

#[test]
fn a_flipped_bit_is_found_unless_checksums_are_left_to_a_device() {
    let mut bytes = emit(&packet(false, PacketTransport::Tcp(segment(vec![], vec![1, 2]))));
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    assert_eq!(parse(&bytes, ChecksumTrust::Verified), Err(WireError::BadChecksum("TCP")));
    assert!(parse(&bytes, ChecksumTrust::Offloaded).is_ok());
    bytes[8] ^= 1;
    assert_eq!(parse(&bytes, ChecksumTrust::Offloaded), Err(WireError::BadIpChecksum));
}

#[test]
fn options_that_lie_about_their_length_are_refused() {
    let mut bytes =
        emit(&packet(false, PacketTransport::Tcp(segment(vec![TcpOption::Mss(None)], vec![]))));
    for len in [0, 1, 3, 5] {
        bytes[41] = len;
        assert_eq!(parse(&bytes, ChecksumTrust::Offloaded), Err(WireError::BadOption), "{len}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        version in prop::sample::select(vec![0x45_u8, 0x4f, 0x60, 0x00]),
        protocol in prop::sample::select(vec![1_u8, 6, 17, 58, 99]),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        let at = if version == 0x60 { 6 } else { 9 };
        if let Some(byte) = bytes.get_mut(at) {
            *byte = protocol;
        }
        for checksums in [ChecksumTrust::Verified, ChecksumTrust::Offloaded] {
            let _ = parse(&bytes, checksums);
        }
    }
}
