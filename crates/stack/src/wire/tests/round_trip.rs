//! Random values round-trip through builders and parsers.

use proptest::prelude::*;

use super::super::*;
use crate::seq::SeqNum;

prop_compose! {
    pub(super) fn options()(
        mss in any::<Option<u16>>(),
        window_scale in any::<Option<u8>>(),
        sack_permitted in any::<bool>(),
        timestamps in any::<Option<(u32, u32)>>(),
        blocks in prop::collection::vec(any::<(u32, u32)>(), 0..=4),
    ) -> tcp::Options {
        let timestamps = timestamps.map(|(value, echo)| tcp::Timestamps { value, echo });
        let mut options = tcp::Options { timestamps, ..tcp::Options::default() };
        let blocks: Vec<_> = blocks
            .into_iter()
            .map(|(start, end)| tcp::SackBlock { start: SeqNum(start), end: SeqNum(end) })
            .collect();
        if blocks.is_empty() {
            options = tcp::Options { mss, window_scale, sack_permitted, ..options };
        }
        options.set_sack(&blocks);
        options
    }
}

prop_compose! {
    pub(super) fn segment()(
        ports in any::<(u16, u16)>(),
        numbers in any::<(u32, u32)>(),
        flags in any::<u8>(),
        window in any::<u16>(),
        urgent in any::<u16>(),
        options in options(),
    ) -> tcp::Repr {
        let flags = tcp::Flags(flags);
        tcp::Repr {
            src_port: ports.0,
            dst_port: ports.1,
            seq: SeqNum(numbers.0),
            ack: if flags.contains(tcp::Flags::ACK) { SeqNum(numbers.1) } else { SeqNum(0) },
            flags,
            window,
            urgent: if flags.contains(tcp::Flags::URG) { urgent } else { 0 },
            options,
        }
    }
}

pub(super) fn ecn() -> impl Strategy<Value = Ecn> {
    (0_u8..4).prop_map(Ecn::from_bits)
}

prop_compose! {
    pub(super) fn packet4()(
        src in any::<[u8; 4]>(),
        dst in any::<[u8; 4]>(),
        protocol in any::<u8>(),
        ttl in any::<u8>(),
        dscp in 0_u8..64,
        ecn in ecn(),
        identification in any::<u16>(),
        flags in any::<(bool, bool)>(),
        offset in 0_usize..0x2000,
        payload_bytes in 0_usize..1500,
    ) -> ipv4::Repr {
        ipv4::Repr {
            src: src.into(),
            dst: dst.into(),
            protocol,
            ttl,
            dscp,
            ecn,
            identification,
            dont_fragment: flags.0,
            more_fragments: flags.1,
            fragment_offset: offset * ipv4::FRAGMENT_UNIT,
            payload_bytes,
        }
    }
}

prop_compose! {
    pub(super) fn packet6()(
        src in any::<[u8; 16]>(),
        dst in any::<[u8; 16]>(),
        next_header in any::<u8>(),
        hop_limit in any::<u8>(),
        dscp in 0_u8..64,
        ecn in ecn(),
        payload_bytes in 0_usize..1500,
    ) -> ipv6::Repr {
        ipv6::Repr {
            src: src.into(),
            dst: dst.into(),
            next_header,
            hop_limit,
            dscp,
            ecn,
            payload_bytes,
        }
    }
}

prop_compose! {
    pub(super) fn arp_message()(
        is_request in any::<bool>(),
        mut sender_mac in any::<[u8; 6]>(),
        sender_ip in any::<[u8; 4]>(),
        target_mac in any::<[u8; 6]>(),
        target_ip in any::<[u8; 4]>(),
    ) -> arp::Repr {
        sender_mac[0] &= 0xfe;
        let operation = if is_request { arp::Operation::Request } else { arp::Operation::Reply };
        arp::Repr {
            operation,
            sender_mac,
            sender_ip: sender_ip.into(),
            target_mac,
            target_ip: target_ip.into(),
        }
    }
}

pub(super) fn icmp4_message() -> impl Strategy<Value = icmp4::Repr> {
    use icmp4::Repr;
    prop_oneof![
        any::<(u8, u16, u16)>().prop_map(|(code, identifier, sequence)| Repr::Echo {
            code,
            identifier,
            sequence
        }),
        any::<(u8, u16, u16)>().prop_map(|(code, identifier, sequence)| Repr::EchoReply {
            code,
            identifier,
            sequence
        }),
        any::<u16>().prop_map(|mtu| Repr::Unreachable { code: 4, mtu }),
        (0_u8..4).prop_map(|code| Repr::Unreachable { code, mtu: 0 }),
        (0_u8..2).prop_map(|code| Repr::TimeExceeded { code }),
        any::<u8>().prop_map(|pointer| Repr::ParameterProblem { code: 0, pointer }),
        any::<u8>().prop_map(|code| Repr::Other { kind: 42, code }),
    ]
}

pub(super) fn icmp6_message() -> impl Strategy<Value = icmp6::Repr> {
    use icmp6::Repr;
    prop_oneof![
        any::<(u8, u16, u16)>().prop_map(|(code, identifier, sequence)| Repr::Echo {
            code,
            identifier,
            sequence
        }),
        any::<(u8, u16, u16)>().prop_map(|(code, identifier, sequence)| Repr::EchoReply {
            code,
            identifier,
            sequence
        }),
        (0_u8..5).prop_map(|code| Repr::Unreachable { code }),
        any::<u32>().prop_map(|mtu| Repr::PacketTooBig { mtu }),
        (0_u8..2).prop_map(|code| Repr::TimeExceeded { code }),
        ((0_u8..3), any::<u32>())
            .prop_map(|(code, pointer)| Repr::ParameterProblem { code, pointer }),
        any::<u8>().prop_map(|code| Repr::Other { kind: 200, code }),
    ]
}

pub(super) fn discovery() -> impl Strategy<Value = ndp::Repr> {
    let target = any::<[u8; 16]>().prop_map(|mut octets| {
        octets[0] = 0x20;
        octets.into()
    });
    let mac = any::<Option<[u8; 6]>>().prop_map(|mac| {
        mac.map(|mut mac| {
            mac[0] &= 0xfe;
            mac
        })
    });
    (target, mac, any::<Option<(bool, bool, bool)>>()).prop_map(
        |(target, mac, flags)| match flags {
            None => ndp::Repr::Solicitation { target, source_mac: mac },
            Some((router, solicited, replaces)) => {
                ndp::Repr::Advertisement { target, target_mac: mac, router, solicited, replaces }
            }
        },
    )
}

proptest! {
    #[test]
    fn tcp_reads_what_it_wrote(
        repr in segment(),
        payload in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut bytes = vec![0xee; repr.header_bytes()];
        let header_sum = repr.emit(&mut bytes);
        bytes.extend(&payload);
        let sum = checksum::combine(header_sum, checksum::sum(&payload));
        tcp::write_checksum(&mut bytes, sum);
        let view = tcp::View::new(&bytes).unwrap();
        prop_assert_eq!(tcp::Repr::parse(&view), repr);
        prop_assert_eq!(view.payload(), &payload[..]);
        prop_assert!(view.checksum_is_right(0));
        let control = u32::from(repr.flags.contains(tcp::Flags::SYN))
            + u32::from(repr.flags.contains(tcp::Flags::FIN));
        prop_assert_eq!(view.sequence_len(), payload.len() as u32 + control);
    }

    #[test]
    fn udp_reads_what_it_wrote(
        ports in any::<(u16, u16)>(),
        payload in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let repr =
            udp::Repr { src_port: ports.0, dst_port: ports.1, payload_bytes: payload.len() };
        let mut bytes = vec![0xee; repr.header_bytes()];
        let header_sum = repr.emit(&mut bytes);
        bytes.extend(&payload);
        udp::write_checksum(&mut bytes, checksum::combine(header_sum, checksum::sum(&payload)));
        bytes.extend([0; 3]);
        let view = udp::View::new(&bytes).unwrap();
        prop_assert_eq!(udp::Repr::parse(&view), repr);
        prop_assert_eq!(view.payload(), &payload[..]);
        prop_assert!(view.checksum_is_right(0));
    }

    #[test]
    fn ipv4_reads_what_it_wrote(repr in packet4()) {
        let mut bytes = vec![0xee; ipv4::HEADER_BYTES + repr.payload_bytes + 7];
        repr.emit(&mut bytes);
        let view = ipv4::View::new(&bytes).unwrap();
        prop_assert_eq!(ipv4::Repr::parse(&view), Ok(repr));
        bytes[1] ^= 0x80;
        let view = ipv4::View::new(&bytes).unwrap();
        prop_assert_eq!(ipv4::Repr::parse(&view), Err(crate::counters::Drop::BadIpChecksum));
    }

    #[test]
    fn ipv6_reads_what_it_wrote(repr in packet6()) {
        let mut bytes = vec![0xee; ipv6::HEADER_BYTES + repr.payload_bytes + 7];
        repr.emit(&mut bytes);
        prop_assert_eq!(ipv6::Repr::parse(&ipv6::View::new(&bytes).unwrap()), repr);
    }

    #[test]
    fn ethernet_reads_what_it_wrote(
        dst in any::<[u8; 6]>(),
        src in any::<[u8; 6]>(),
        vlan in prop::option::of(1_u16..4095),
        ethertype in any::<u16>().prop_filter("a tag", |ethertype| *ethertype != ethernet::VLAN),
    ) {
        let repr = ethernet::Repr { dst, src, vlan, ethertype };
        let mut bytes = vec![0xee; repr.header_bytes() + 3];
        repr.emit(&mut bytes);
        let view = ethernet::View::new(&bytes).unwrap();
        prop_assert_eq!(ethernet::Repr::parse(&view), repr);
        prop_assert_eq!(view.payload(), &[0xee; 3][..]);
    }

    #[test]
    fn arp_reads_what_it_wrote(repr in arp_message()) {
        let mut bytes = vec![0xee; repr.header_bytes() + 18];
        repr.emit(&mut bytes);
        prop_assert_eq!(arp::Repr::parse(&arp::View::new(&bytes).unwrap()), Ok(repr));
    }

    #[test]
    fn icmp_reads_what_it_wrote(
        four in icmp4_message(),
        six in icmp6_message(),
        pseudo_header in any::<u16>(),
        payload in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut bytes = vec![0xee; icmp4::HEADER_BYTES];
        bytes.extend(&payload);
        four.emit(&mut bytes);
        let view = icmp4::View::new(&bytes).unwrap();
        prop_assert_eq!(icmp4::Repr::parse(&view), Ok(four));
        prop_assert_eq!(view.payload(), &payload[..]);
        six.emit(&mut bytes, pseudo_header);
        let view = icmp6::View::new(&bytes).unwrap();
        prop_assert_eq!(icmp6::Repr::parse(&view, pseudo_header), Ok(six));
        prop_assert_eq!(view.payload(), &payload[..]);
    }

    #[test]
    fn discovery_reads_what_it_wrote(repr in discovery(), pseudo_header in any::<u16>()) {
        let mut bytes = vec![0xee; repr.header_bytes()];
        repr.emit(&mut bytes, pseudo_header);
        prop_assert!(icmp6::View::new(&bytes).unwrap().checksum_is_right(pseudo_header));
        prop_assert_eq!(ndp::Repr::parse(&ndp::View::new(&bytes).unwrap()), Ok(repr));
    }
}
