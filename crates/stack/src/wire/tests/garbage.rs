//! Random bytes: no accessor panics.

use proptest::prelude::*;

use super::super::*;

fn read_tcp(view: &tcp::View<'_>) {
    let _ = (view.src_port(), view.dst_port(), view.seq(), view.ack(), view.header_bytes());
    let _ = (view.flags(), view.accurate_ecn(), view.window(), view.checksum(), view.urgent());
    let _ = (view.option_bytes(), view.header(), view.payload(), view.bytes());
    let _ = (view.sequence_len(), view.checksum_is_right(0));
    let options = tcp::Repr::parse(view).options;
    assert!(options.sack().len() <= tcp::SACK_BLOCKS_MAX);
}

fn read_ipv4(view: &ipv4::View<'_>) {
    let _ = (view.dscp(), view.ecn(), view.identification(), view.dont_fragment(), view.ttl());
    let _ = (view.more_fragments(), view.fragment_offset(), view.is_fragment(), view.protocol());
    let _ = (view.src(), view.dst(), view.check_options(), ipv4::Repr::parse(view));
    assert_eq!(view.header_bytes() + view.payload().len(), view.bytes().len());
}

fn read_ipv6(view: &ipv6::View<'_>) {
    let _ = (view.ecn(), view.flow_label(), view.next_header(), view.hop_limit());
    let _ = ipv6::Repr::parse(view);
    if let Ok(chain) = extension::walk(view.next_header(), view.payload(), true) {
        assert!(chain.offset <= view.payload().len());
        let _ = extension::Fragment::parse(&view.payload()[chain.offset..]);
    }
}

/// Reads `bytes` as everything that they might be.
fn read_all(bytes: &[u8]) {
    if let Ok(view) = ethernet::View::new(bytes) {
        let _ = (ethernet::Repr::parse(&view), view.payload());
    }
    if let Ok(view) = arp::View::new(bytes) {
        let _ = arp::Repr::parse(&view);
    }
    if let Ok(view) = ipv4::View::new(bytes) {
        read_ipv4(&view);
    }
    if let Ok(view) = ipv6::View::new(bytes) {
        read_ipv6(&view);
    }
    if let Ok(view) = tcp::View::new(bytes) {
        read_tcp(&view);
    }
    if let Ok(view) = udp::View::new(bytes) {
        let _ = (udp::Repr::parse(&view), view.checksum(), view.payload());
        let _ = view.checksum_is_right(0);
    }
    if let Ok(view) = icmp4::View::new(bytes) {
        let _ = (icmp4::Repr::parse(&view), view.kind(), view.code(), view.payload());
    }
    if let Ok(view) = icmp6::View::new(bytes) {
        let _ = (icmp6::Repr::parse(&view, 0), view.kind(), view.code(), view.payload());
    }
    if let Ok(view) = ndp::View::new(bytes) {
        let _ = ndp::Repr::parse(&view);
    }
    let _ = mld::Query::parse(bytes);
    let _ = (quote::Quote::v4(bytes), quote::Quote::v6(bytes));
    for first in [extension::HOP_BY_HOP, extension::DESTINATION, extension::ROUTING] {
        let _ = extension::walk(first, bytes, true);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
    }

    /// Bytes whose first ones look like a header, so that more than the first check is met.
    #[test]
    fn likely_bytes_are_read(
        first in prop::sample::select(vec![0x45, 0x46, 0x4f, 0x60, 0x00, 0x80]),
        len in 0_u8..120,
        offset in 0_u8..16,
        mut bytes in prop::collection::vec(any::<u8>(), 28..120),
    ) {
        bytes[0] = first;
        bytes[2..4].copy_from_slice(&[0, len]);
        bytes[4..6].copy_from_slice(&[0, len]);
        bytes[12] = offset << 4;
        read_all(&bytes);
        for cut in 0..bytes.len() {
            read_all(&bytes[..cut]);
        }
    }
}
