//! The same bytes, read by smoltcp and by etherparse.

use etherparse as other;
use proptest::prelude::*;
use smoltcp::wire as smol;

use super::super::*;
use super::round_trip::{
    arp_message, discovery, icmp4_message, icmp6_message, packet4, packet6, segment,
};
use super::{V4, V6};

/// What smoltcp and we say about a segment's options must agree wherever smoltcp reads the list to
/// its end (it refuses a known option with a wrong length; we skip it).
fn same_options(ours: &tcp::Options, packet: &smol::TcpPacket<&[u8]>) {
    let mut rest = packet.options();
    let mut theirs = tcp::Options::default();
    while !rest.is_empty() {
        let Ok((next, option)) = smol::TcpOption::parse(rest) else { return };
        rest = next;
        match option {
            smol::TcpOption::EndOfList => break,
            smol::TcpOption::MaxSegmentSize(mss) => theirs.mss = Some(mss),
            smol::TcpOption::WindowScale(shift) => theirs.window_scale = Some(shift),
            smol::TcpOption::SackPermitted => theirs.sack_permitted = true,
            smol::TcpOption::TimeStamp { tsval, tsecr } => {
                theirs.timestamps = Some(tcp::Timestamps { value: tsval, echo: tsecr });
            }
            smol::TcpOption::SackRange(blocks) => {
                for (ours, theirs) in ours.sack().iter().zip(blocks.iter().flatten()) {
                    assert_eq!((ours.start.0, ours.end.0), *theirs);
                }
                // Only the last list counts with us, so that the zip above needs it to be alone.
                return;
            }
            _ => {}
        }
    }
    assert!(!ours.malformed);
    assert_eq!(ours.mss, theirs.mss);
    assert_eq!(ours.window_scale, theirs.window_scale);
    assert_eq!(ours.sack_permitted, theirs.sack_permitted);
    assert_eq!(ours.timestamps, theirs.timestamps);
}

fn same_segment(bytes: &[u8]) {
    let ours = tcp::View::new(bytes);
    let theirs = smol::TcpPacket::new_checked(bytes);
    let third = other::TcpSlice::from_slice(bytes);
    assert_eq!(ours.is_ok(), theirs.is_ok());
    assert_eq!(ours.is_ok(), third.is_ok());
    let (Ok(ours), Ok(theirs), Ok(third)) = (ours, theirs, third) else { return };
    assert_eq!(ours.src_port(), theirs.src_port());
    assert_eq!(ours.dst_port(), theirs.dst_port());
    assert_eq!(ours.seq().0, theirs.seq_number().0 as u32);
    assert_eq!(ours.ack().0, theirs.ack_number().0 as u32);
    assert_eq!(ours.window(), theirs.window_len());
    assert_eq!(ours.urgent(), theirs.urgent_at());
    assert_eq!(ours.checksum(), theirs.checksum());
    assert_eq!(ours.payload(), theirs.payload());
    let flags = ours.flags();
    assert_eq!(flags.contains(tcp::Flags::SYN), theirs.syn());
    assert_eq!(flags.contains(tcp::Flags::FIN), theirs.fin());
    assert_eq!(flags.contains(tcp::Flags::RST), theirs.rst());
    assert_eq!(flags.contains(tcp::Flags::PSH), third.psh());
    assert_eq!(flags.contains(tcp::Flags::ACK), third.ack());
    assert_eq!(flags.contains(tcp::Flags::URG), third.urg());
    assert_eq!(flags.contains(tcp::Flags::ECE), third.ece());
    assert_eq!(flags.contains(tcp::Flags::CWR), third.cwr());
    assert_eq!(ours.payload(), third.payload());
    assert_eq!(ours.option_bytes(), third.options());
    let pseudo_header = checksum::pseudo_header(V4[0].into(), V4[1].into(), 6, bytes.len());
    let [src, dst] = V4.map(smol::IpAddress::Ipv4);
    assert_eq!(ours.checksum_is_right(pseudo_header), theirs.verify_checksum(&src, &dst));
    same_options(&ours.options(), &theirs);
}

proptest! {
    #[test]
    fn any_segment_is_read_the_same(
        repr in segment(),
        payload in prop::collection::vec(any::<u8>(), 0..40),
        change in any::<Option<(u8, u8)>>(),
        cut in 0_usize..100,
    ) {
        let mut bytes = vec![0; repr.header_bytes()];
        let sum = repr.emit(&mut bytes);
        bytes.extend(&payload);
        let pseudo_header = checksum::pseudo_header(V4[0].into(), V4[1].into(), 6, bytes.len());
        let sum = checksum::combine(sum, checksum::combine(pseudo_header, checksum::sum(&payload)));
        tcp::write_checksum(&mut bytes, sum);
        let [src, dst] = V4.map(smol::IpAddress::Ipv4);
        prop_assert!(smol::TcpPacket::new_checked(&bytes[..]).unwrap().verify_checksum(&src, &dst));
        if let Some((at, byte)) = change {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        same_segment(&bytes);
        same_segment(&bytes[..bytes.len() - cut.min(bytes.len())]);
    }

    #[test]
    fn any_datagram_is_read_the_same(mut bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if bytes.len() > 8 {
            bytes[4] = 0;
            bytes[5] %= 64;
        }
        let ours = udp::View::new(&bytes);
        let theirs = smol::UdpPacket::new_checked(&bytes[..]);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours.src_port(), theirs.src_port());
            prop_assert_eq!(ours.dst_port(), theirs.dst_port());
            prop_assert_eq!(ours.payload(), theirs.payload());
            let len = ours.bytes().len();
            let pseudo_header = checksum::pseudo_header(V6[0].into(), V6[1].into(), 17, len);
            let [src, dst] = V6.map(smol::IpAddress::Ipv6);
            let right = theirs.verify_checksum(&src, &dst);
            // Without a checksum smoltcp calls it right; we leave that to the version of IP.
            prop_assert_eq!(ours.checksum_is_right(pseudo_header), right && ours.checksum() != 0);
        }
    }

    #[test]
    fn any_ipv4_packet_is_read_the_same(
        repr in packet4(),
        change in any::<Option<(u8, u8)>>(),
        cut in 0_usize..30,
    ) {
        let mut bytes = vec![0xab; ipv4::HEADER_BYTES + repr.payload_bytes];
        repr.emit(&mut bytes);
        if let Some((at, byte)) = change {
            bytes[usize::from(at) % ipv4::HEADER_BYTES] = byte;
        }
        let bytes = &bytes[..bytes.len() - cut.min(bytes.len())];
        let ours = ipv4::View::new(bytes);
        let theirs = smol::Ipv4Packet::new_checked(bytes).ok().filter(|it| it.version() == 4);
        prop_assert_eq!(ours.is_ok(), theirs.is_some());
        if let (Ok(ours), Some(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours.src(), theirs.src_addr());
            prop_assert_eq!(ours.dst(), theirs.dst_addr());
            prop_assert_eq!(ours.ttl(), theirs.hop_limit());
            prop_assert_eq!(ours.protocol(), u8::from(theirs.next_header()));
            prop_assert_eq!(ours.fragment_offset(), usize::from(theirs.frag_offset()));
            prop_assert_eq!(ours.more_fragments(), theirs.more_frags());
            prop_assert_eq!(ours.dont_fragment(), theirs.dont_frag());
            prop_assert_eq!(ours.identification(), theirs.ident());
            prop_assert_eq!(ours.dscp(), theirs.dscp());
            prop_assert_eq!(ours.ecn() as u8, theirs.ecn());
            prop_assert_eq!(ours.payload(), theirs.payload());
            prop_assert_eq!(ours.checksum_is_right(), theirs.verify_checksum());
            let third = other::Ipv4HeaderSlice::from_slice(bytes).unwrap();
            prop_assert_eq!(ours.payload().len(), usize::from(third.payload_len().unwrap()));
        }
    }

    #[test]
    fn any_ipv6_packet_is_read_the_same(
        repr in packet6(),
        change in any::<Option<(u8, u8)>>(),
        cut in 0_usize..50,
    ) {
        let mut bytes = vec![0xab; ipv6::HEADER_BYTES + repr.payload_bytes];
        repr.emit(&mut bytes);
        if let Some((at, byte)) = change {
            bytes[usize::from(at) % ipv6::HEADER_BYTES] = byte;
        }
        let bytes = &bytes[..bytes.len() - cut.min(bytes.len())];
        let ours = ipv6::View::new(bytes);
        let theirs = smol::Ipv6Packet::new_checked(bytes).ok().filter(|it| it.version() == 6);
        prop_assert_eq!(ours.is_ok(), theirs.is_some());
        if let (Ok(ours), Some(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours.src(), theirs.src_addr());
            prop_assert_eq!(ours.dst(), theirs.dst_addr());
            prop_assert_eq!(ours.hop_limit(), theirs.hop_limit());
            prop_assert_eq!(ours.next_header(), u8::from(theirs.next_header()));
            prop_assert_eq!(ours.flow_label(), theirs.flow_label());
            prop_assert_eq!(ours.ecn() as u8, theirs.traffic_class() & 3);
            prop_assert_eq!(ours.payload(), theirs.payload());
        }
    }

    #[test]
    fn arp_is_read_the_same(repr in arp_message()) {
        let mut bytes = vec![0; repr.header_bytes()];
        repr.emit(&mut bytes);
        let theirs = smol::ArpRepr::parse(&smol::ArpPacket::new_checked(&bytes[..]).unwrap());
        let smol::ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = theirs.unwrap() else { panic!("not Ethernet and IPv4") };
        prop_assert_eq!(
            operation == smol::ArpOperation::Request,
            repr.operation == arp::Operation::Request
        );
        prop_assert_eq!(source_hardware_addr.0, repr.sender_mac);
        prop_assert_eq!(target_hardware_addr.0, repr.target_mac);
        prop_assert_eq!(source_protocol_addr, repr.sender_ip);
        prop_assert_eq!(target_protocol_addr, repr.target_ip);
    }

    #[test]
    fn icmp_is_read_the_same(
        four in icmp4_message(),
        six in icmp6_message(),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = vec![0; icmp4::HEADER_BYTES];
        bytes.extend(&payload);
        four.emit(&mut bytes);
        let theirs = smol::Icmpv4Packet::new_checked(&bytes[..]).unwrap();
        prop_assert!(theirs.verify_checksum());
        let view = icmp4::View::new(&bytes).unwrap();
        prop_assert_eq!(view.kind(), u8::from(theirs.msg_type()));
        prop_assert_eq!(view.code(), theirs.msg_code());
        if let icmp4::Repr::Echo { identifier, sequence, .. } = four {
            prop_assert_eq!((identifier, sequence), (theirs.echo_ident(), theirs.echo_seq_no()));
            prop_assert_eq!(theirs.data(), &payload[..]);
        }
        let pseudo_header = checksum::pseudo_header(V6[0].into(), V6[1].into(), 58, bytes.len());
        six.emit(&mut bytes, pseudo_header);
        let Ok(theirs) = smol::Icmpv6Packet::new_checked(&bytes[..]) else {
            prop_assert!(matches!(six, icmp6::Repr::Other { .. }), "it refuses unknown types");
            return Ok(());
        };
        prop_assert!(theirs.verify_checksum(&V6[0], &V6[1]));
        if let icmp6::Repr::PacketTooBig { mtu } = six {
            prop_assert_eq!(theirs.pkt_too_big_mtu(), mtu);
        }
    }

    #[test]
    fn discovery_is_read_the_same(repr in discovery()) {
        let mut bytes = vec![0; repr.header_bytes()];
        let pseudo_header = checksum::pseudo_header(V6[0].into(), V6[1].into(), 58, bytes.len());
        repr.emit(&mut bytes, pseudo_header);
        let packet = smol::Icmpv6Packet::new_checked(&bytes[..]).unwrap();
        prop_assert!(packet.verify_checksum(&V6[0], &V6[1]));
        let mac = |mac: smol::RawHardwareAddress| -> [u8; 6] { mac.as_bytes().try_into().unwrap() };
        match (smol::NdiscRepr::parse(&packet).unwrap(), repr) {
            (
                smol::NdiscRepr::NeighborSolicit { target_addr, lladdr },
                ndp::Repr::Solicitation { target, source_mac },
            ) => {
                prop_assert_eq!(target_addr, target);
                prop_assert_eq!(lladdr.map(mac), source_mac);
            }
            (
                smol::NdiscRepr::NeighborAdvert { flags, target_addr, lladdr },
                ndp::Repr::Advertisement { target, target_mac, router, solicited, replaces },
            ) => {
                prop_assert_eq!(target_addr, target);
                prop_assert_eq!(lladdr.map(mac), target_mac);
                prop_assert_eq!(flags.contains(smol::NdiscNeighborFlags::ROUTER), router);
                prop_assert_eq!(flags.contains(smol::NdiscNeighborFlags::SOLICITED), solicited);
                prop_assert_eq!(flags.contains(smol::NdiscNeighborFlags::OVERRIDE), replaces);
            }
            (theirs, ours) => prop_assert!(false, "{theirs:?} is not {ours:?}"),
        }
    }

    /// A whole frame, as etherparse reads it.
    #[test]
    fn a_frame_is_read_the_same(
        repr in segment(),
        vlan in prop::option::of(1_u16..4095),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let ethernet = ethernet::Repr {
            dst: [2, 0, 0, 0, 0, 1],
            src: [2, 0, 0, 0, 0, 2],
            vlan,
            ethertype: ethernet::IPV6,
        };
        let ip = ipv6::Repr {
            src: V6[0],
            dst: V6[1],
            next_header: 6,
            hop_limit: 64,
            dscp: 0,
            ecn: Ecn::Ect0,
            payload_bytes: repr.header_bytes() + payload.len(),
        };
        let (link, net) = (ethernet.header_bytes(), ip.header_bytes());
        let mut frame = vec![0; link + net + ip.payload_bytes];
        ethernet.emit(&mut frame);
        ip.emit(&mut frame[link..]);
        repr.emit(&mut frame[link + net..]);
        let at = frame.len() - payload.len();
        frame[at..].copy_from_slice(&payload);
        let sliced = other::SlicedPacket::from_ethernet(&frame).unwrap();
        let found = sliced.vlan_ids().first().map(|id| id.value());
        prop_assert_eq!(found, vlan);
        let Some(other::NetSlice::Ipv6(net)) = sliced.net else { panic!("not IPv6") };
        prop_assert_eq!(net.header().source_addr(), V6[0]);
        prop_assert_eq!(net.header().traffic_class() & 3, 2);
        let Some(other::TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("not TCP") };
        prop_assert_eq!(tcp.sequence_number(), repr.seq.0);
        prop_assert_eq!(tcp.payload(), &payload[..]);
        let view = ethernet::View::new(&frame).unwrap();
        prop_assert_eq!(view.vlan(), vlan);
        prop_assert_eq!(tcp::Repr::parse(&tcp::View::new(&frame[link + 40..]).unwrap()), repr);
    }
}
