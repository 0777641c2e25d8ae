//! ARP, neighbour discovery, VLANs: replies, and accepted or ignored claims.

use super::*;
use crate::wire::{extension, mld};
use arp::Operation::{Reply, Request};

fn arp(operation: arp::Operation, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Vec<u8> {
    let target_mac = [0; 6];
    let message = arp::Repr { operation, sender_mac: PEER_MAC, sender_ip, target_mac, target_ip };
    let mut bytes = vec![0; 46];
    message.emit(&mut bytes);
    let to_all = operation == Request;
    ethernet(if to_all { ethernet::BROADCAST } else { OUR_MAC }, ethernet::ARP, &bytes)
}

fn discovery((src, dst): (Ipv6Addr, Ipv6Addr), repr: ndp::Repr) -> Vec<u8> {
    let mut message = vec![0; repr.header_bytes()];
    let pseudo_header = checksum::pseudo_header(src.into(), dst.into(), 58, message.len());
    repr.emit(&mut message, pseudo_header);
    let to = if dst.is_multicast() { [0x33, 0x33, 0xff, 0, 0, 1] } else { OUR_MAC };
    ethernet(to, ethernet::IPV6, &packet6(src, dst, 58, &message))
}

fn advertisement(target: Ipv6Addr, solicited: bool) -> ndp::Repr {
    let target_mac = Some(PEER_MAC);
    ndp::Repr::Advertisement { target, target_mac, router: false, solicited, replaces: true }
}

#[test]
fn a_stack_says_where_its_addresses_are() {
    let mut host = Host::silent(|_| ());
    let frames = host.frames();
    assert_eq!(frames.len(), 4, "IPv4, IPv6, link-local, and the groups");
    let (dst, announcement) = open_arp(&frames[0]);
    assert_eq!(dst, ethernet::BROADCAST);
    assert_eq!((announcement.sender_ip, announcement.target_ip), (OURS, OURS));
    assert_eq!(announcement.operation, Request);
    let (header, _, _) = open_icmp6(&frames[1]);
    assert_eq!((header.src, header.hop_limit), (OURS6, 255));
    assert_eq!(header.dst.to_string(), "ff02::1");
    assert_eq!(Host::silent(|config| config.external_neighbours = true).frames().len(), 0);
}

#[test]
fn questions_for_us_are_answered_and_others_ignored() {
    let mut host = Host::new();
    let frames = host.reply(&arp(Request, PEER, OURS));
    let (dst, answer) = open_arp(&frames[0]);
    assert_eq!((frames.len(), dst, answer.operation), (1, PEER_MAC, Reply));
    assert_eq!((answer.sender_mac, answer.sender_ip), (OUR_MAC, OURS));
    assert_eq!((answer.target_mac, answer.target_ip), (PEER_MAC, PEER));
    assert!(host.reply(&arp(Request, PEER, ROUTER)).is_empty());
    // A probe before another host uses an address (RFC 5227).
    let frames = host.reply(&arp(Request, Ipv4Addr::UNSPECIFIED, OURS));
    assert_eq!(open_arp(&frames[0]).1.sender_ip, OURS);
    assert_eq!(host.stack.counters().drops().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn unsolicited_link_messages_are_counted_and_ignored() {
    let mut host = Host::new();
    host.drops(&arp(Reply, PEER, OURS), Drop::BadNeighbourMessage);
    host.drops(&arp(Request, OURS, OURS), Drop::BadNeighbourMessage);
    host.drops(&arp(Reply, OURS, PEER), Drop::BadNeighbourMessage);
    host.drops(&discovery((PEER6, OURS6), advertisement(PEER6, true)), Drop::BadNeighbourMessage);
    host.drops(&discovery((PEER6, OURS6), advertisement(OURS6, false)), Drop::BadNeighbourMessage);
    let id = host.bind(53);
    host.send(id, peer(), b"x").unwrap();
    assert_eq!(open_arp(&host.frames()[0]).1.operation, Request, "the peer is still unknown");
}

#[test]
fn a_datagram_waits_for_the_answer_to_a_question() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.send(id, peer(), b"hello").unwrap();
    let frames = host.frames();
    let (dst, question) = open_arp(&frames[0]);
    assert_eq!((frames.len(), dst), (1, ethernet::BROADCAST));
    assert_eq!((question.sender_ip, question.target_ip), (OURS, PEER));
    let frames = host.reply(&arp(Reply, PEER, OURS));
    let (link, header, _) = open4(&frames[0]);
    assert_eq!((frames.len(), link.dst, link.src), (1, PEER_MAC, OUR_MAC));
    assert_eq!((header.src, header.dst, header.ttl), (OURS, PEER, 64));
    host.send(id, peer(), b"again").unwrap();
    assert_eq!(open4(&host.frames()[0]).0.dst, PEER_MAC, "without a question");
    assert_eq!(host.memory.in_use(), 0);
}

#[test]
fn what_is_far_goes_by_the_router() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.send(id, SocketAddr::new(FAR.into(), 9), b"hello").unwrap();
    assert_eq!(open_arp(&host.frames()[0]).1.target_ip, ROUTER);
    let frames = host.reply(&arp(Reply, ROUTER, OURS));
    let (link, header, _) = open4(&frames[0]);
    assert_eq!((link.dst, header.dst), (PEER_MAC, FAR));
}

#[test]
fn a_neighbour_that_does_not_answer_is_given_up() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.stack.quote_errors(id, true).unwrap();
    host.send(id, peer(), b"hello").unwrap();
    assert_eq!(host.frames().len(), 1);
    assert_eq!(host.pass(Duration::from_secs(5)).len(), 2, "two more questions");
    let why = Undelivered::HostUnreachable;
    let refused = Event::DatagramRefused { endpoint: id, to: peer(), why };
    assert_eq!(host.stack.poll_event(), Some(refused));
    assert_eq!(host.dropped(Drop::NextHopUnresolved), 1);
    let notice = host.stack.take_notice().unwrap();
    assert_eq!((notice.by, notice.kind, notice.code), (OURS.into(), 3, 1), "as we would say it");
    let quote = notice.quote.unwrap();
    let mut quoted = [0; 5];
    host.memory.copy_out(quote, &mut quoted);
    assert_eq!((quote.len, &quoted), (5, b"hello"));
    host.memory.free(quote.buf);
    assert_eq!(host.memory.in_use(), 0);
    assert_eq!(host.stack.poll_timeout(), None, "and nothing more is to be done");
}

#[test]
fn ipv6_asks_the_group_and_believes_the_answer() {
    let mut host = Host::new();
    let id = host.bind6(53);
    host.send(id, peer6(), b"hello").unwrap();
    let frames = host.frames();
    let (link, header, message) = open6(&frames[0]);
    assert_eq!(link.dst, [0x33, 0x33, 0xff, 0, 0, 2]);
    assert_eq!((header.src, header.dst.to_string().as_str()), (OURS6, "ff02::1:ff00:2"));
    let asked = ndp::Repr::parse(&ndp::View::new(message).unwrap()).unwrap();
    let question = ndp::Repr::Solicitation { target: PEER6, source_mac: Some(OUR_MAC) };
    assert_eq!(asked, question);
    let mut over_a_router = discovery((PEER6, OURS6), advertisement(PEER6, true));
    over_a_router[14 + 7] = 254;
    host.drops(&over_a_router, Drop::BadNeighbourMessage);
    let frames = host.reply(&discovery((PEER6, OURS6), advertisement(PEER6, true)));
    let (link, header, _) = open6(&frames[0]);
    assert_eq!((frames.len(), link.dst, header.dst), (1, PEER_MAC, PEER6));
}

#[test]
fn solicitations_for_us_are_answered() {
    let mut host = Host::new();
    let question = |source_mac| ndp::Repr::Solicitation { target: OURS6, source_mac };
    for (source_mac, dst) in [(Some(PEER_MAC), GROUP), (None, OURS6)] {
        let frames = host.reply(&discovery((PEER6, dst), question(source_mac)));
        let (link, header, message) = open6(&frames[0]);
        assert_eq!((frames.len(), link.dst), (1, PEER_MAC));
        assert_eq!((header.src, header.dst), (OURS6, PEER6));
        let answer = ndp::Repr::parse(&ndp::View::new(message).unwrap()).unwrap();
        let ndp::Repr::Advertisement { target, target_mac, solicited, .. } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!((target, target_mac, solicited), (OURS6, Some(OUR_MAC), true));
    }
    // Duplicate address detection by another host.
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let frames = host.reply(&discovery((unspecified, GROUP), question(None)));
    assert_eq!(open6(&frames[0]).1.dst.to_string(), "ff02::1");
    let contradiction = discovery((unspecified, GROUP), question(Some(PEER_MAC)));
    host.drops(&contradiction, Drop::BadNeighbourMessage);
    let other = ndp::Repr::Solicitation { target: PEER6, source_mac: None };
    assert!(host.reply(&discovery((PEER6, GROUP), other)).is_empty());
}

#[test]
fn routers_and_redirects_are_not_listened_to() {
    let mut host = Host::new();
    for kind in [ndp::ROUTER_SOLICITATION, ndp::ROUTER_ADVERTISEMENT, ndp::REDIRECT] {
        let other = icmp6::Repr::Other { kind, code: 0 };
        let message = message6((PEER6, OURS6), other, &[0; 32]);
        host.drops(&frame6(58, &message), Drop::IgnoredMessage);
    }
    let redirect = message4(icmp4::Repr::Other { kind: 5, code: 1 }, &[0; 28]);
    host.drops(&frame4(Protocol::Icmp, &redirect), Drop::IgnoredMessage);
}

#[test]
fn floods_of_questions_are_answered_up_to_a_bound() {
    let mut host = Host::new();
    for n in 0..10_000_u32 {
        let asker = Ipv4Addr::from_bits(0x0a00_0000 | (n & 0xff) | 0x100);
        host.give(&arp(Request, asker, OURS));
    }
    assert_eq!(host.frames().len(), crate::limits::ANSWERS_MAX);
    assert!(host.dropped(Drop::QueueFull) > 9_000);
}

#[test]
fn frames_for_others_are_not_ours() {
    let mut host = Host::new();
    let hello = datagram4(53, b"hello");
    let mut frame = frame4(Protocol::Udp, &hello);
    frame[5] ^= 1;
    host.drops(&frame, Drop::OtherLinkAddress);
    let mut frame = frame4(Protocol::Udp, &hello);
    frame[..6].copy_from_slice(&ethernet::BROADCAST);
    host.drops(&frame, Drop::OtherLinkAddress);
    let mut frame = frame4(Protocol::Udp, &hello);
    frame[6] |= 1;
    host.drops(&frame, Drop::BadSource);
    host.drops(&ethernet(OUR_MAC, 0x88cc, &[0; 50]), Drop::UnknownNetworkProtocol);
    host.drops(&[0; 13], Drop::Truncated);
    let packet = packet4(header4(PEER, FAR, Protocol::Udp, hello.len()), &hello);
    host.drops(&ethernet(OUR_MAC, ethernet::IPV4, &packet), Drop::OtherAddress);
    let packet = packet6(PEER6, PEER6, 17, &hello);
    host.drops(&ethernet(OUR_MAC, ethernet::IPV6, &packet), Drop::OtherAddress);
}

#[test]
fn sources_that_cannot_be_are_refused() {
    let mut host = Host::new();
    let hello = datagram4(53, b"hello");
    for src in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.255", "10.0.0.1"] {
        let src = src.parse().unwrap();
        let packet = packet4(header4(src, OURS, Protocol::Udp, hello.len()), &hello);
        host.drops(&ethernet(OUR_MAC, ethernet::IPV4, &packet), Drop::BadSource);
    }
    for src in ["::", "::1", "ff02::1", "::ffff:10.0.0.2", "2001:db8::1"] {
        let packet = packet6(src.parse().unwrap(), OURS6, 17, &hello);
        host.drops(&ethernet(OUR_MAC, ethernet::IPV6, &packet), Drop::BadSource);
    }
}

#[test]
fn a_vlan_is_worn_and_asked_for() {
    let mut host = Host::with(|config| config.vlan = Some(7));
    let id = host.bind(53);
    host.meet(PEER.into());
    host.send(id, peer(), b"hello").unwrap();
    let frame = host.transmit().unwrap();
    let (link, header, _) = open4(&frame);
    assert_eq!((link.vlan, header.dst), (Some(7), PEER));
    let hello = datagram4(53, b"hello");
    let untagged = frame4(Protocol::Udp, &hello);
    host.drops(&untagged, Drop::OtherLinkAddress);
    let mut tagged = untagged[..12].to_vec();
    tagged.extend([0x81, 0, 0xe0, 7]);
    tagged.extend(&untagged[12..]);
    host.give(&tagged);
    assert_eq!(host.receive(), Some((peer(), b"hello".to_vec())));
    let mut host = Host::new();
    host.drops(&tagged, Drop::OtherLinkAddress);
    tagged[15] = 0;
    host.bind(53);
    host.give(&tagged);
    assert!(host.receive().is_some(), "a priority is no VLAN");
}

#[test]
fn external_neighbours_are_requested_from_caller() {
    let mut host = Host::with(|config| config.external_neighbours = true);
    let id = host.bind(53);
    host.send(id, peer(), b"hello").unwrap();
    assert!(host.frames().is_empty());
    assert_eq!(host.stack.poll_wanted(host.now), Some(PEER.into()));
    assert_eq!(host.stack.poll_wanted(host.now), None);
    host.drops(&arp(Reply, PEER, OURS), Drop::BadNeighbourMessage);
    host.drops(&arp(Request, PEER, OURS), Drop::BadNeighbourMessage);
    host.meet(PEER.into());
    let frames = host.frames();
    assert_eq!(open4(&frames[0]).0.dst, PEER_MAC);
    host.stack.remove_neighbour(PEER.into());
    host.send(id, peer(), b"hello").unwrap();
    assert!(host.frames().is_empty());
    assert_eq!(host.stack.poll_wanted(host.now), Some(PEER.into()));
    assert!(host.pass(Duration::from_secs(1)).is_empty());
    assert_eq!(host.stack.poll_wanted(host.now), Some(PEER.into()), "again after a second");
}

#[test]
fn new_routes_and_addresses_count_from_then_on() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.meet(PEER.into());
    let far = SocketAddr::new(FAR.into(), 9);
    let prefix = IpAddr::V4(FAR);
    let route = Route { prefix, prefix_bits: 32, via: Some(PEER.into()) };
    host.stack.set_routes(&[route]).unwrap();
    host.send(id, far, b"x").unwrap();
    assert_eq!(open4(&host.frames()[0]).0.dst, PEER_MAC);
    assert!(host.stack.set_routes(&[Route { prefix_bits: 99, ..route }]).is_err());
    host.send(id, far, b"x").unwrap();
    assert_eq!(host.frames().len(), 1, "the old ones stay");
    let moved = Ipv4Addr::new(10, 0, 0, 9);
    host.stack.set_addresses(&[(moved.into(), 24)]).unwrap();
    let frames = host.frames();
    assert_eq!(open_arp(&frames[0]).1.sender_ip, moved, "it says so");
    host.drops(&frame4(Protocol::Udp, &datagram4(53, b"x")), Drop::OtherAddress);
    host.send(id, far, b"x").unwrap();
    assert_eq!(open4(&host.frames()[0]).1.src, moved);
}

#[test]
fn the_groups_of_our_addresses_are_reported() {
    let mut host = Host::silent(|_| ());
    let said = |frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let reports = frames.iter().filter(|frame| frame[..6] == [0x33, 0x33, 0, 0, 0, 0x16]);
        reports.cloned().collect()
    };
    let reports = said(&host.frames());
    assert_eq!(reports.len(), 1);
    let (_, header, payload) = open6(&reports[0]);
    assert_eq!((header.hop_limit, header.next_header), (1, 0));
    assert!(header.src.is_unicast_link_local());
    let chain = extension::walk(0, payload, true).unwrap();
    let message = &payload[chain.offset..];
    let sum = checksum::pseudo_header(header.src.into(), header.dst.into(), 58, message.len());
    assert!(icmp6::View::new(message).unwrap().checksum_is_right(sum));
    assert_eq!(message[..8], [143, 0, message[2], message[3], 0, 0, 0, 2]);
    // Both addresses end in the same bytes, so that their groups are one.
    assert_eq!(message[8..12], [4, 0, 0, 0]);
    assert_eq!(message[12..28], GROUP.octets());
    assert_eq!(said(&host.pass(Duration::from_secs(60))).len(), 1, "said twice");

    let router: Ipv6Addr = "fe80::9".parse().unwrap();
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let mut query = vec![0; 28];
    query[..6].copy_from_slice(&[mld::QUERY, 0, 0, 0, 0x27, 0x10]);
    let sum = checksum::pseudo_header(router.into(), all.into(), 58, query.len());
    icmp6::write_checksum(&mut query, sum);
    let mut packet = packet6(router, all, 58, &query);
    packet[7] = 2;
    host.drops(
        &ethernet([0x33, 0x33, 0, 0, 0, 1], ethernet::IPV6, &packet),
        Drop::BadNeighbourMessage,
    );
    packet[7] = 1;
    assert!(host.reply(&ethernet([0x33, 0x33, 0, 0, 0, 1], ethernet::IPV6, &packet)).is_empty());
    let reports = said(&host.pass(Duration::from_secs(10)));
    assert_eq!(reports.len(), 1);
    assert_eq!(open6(&reports[0]).2[16], 2, "so it is, and was");
}

/// A SYN to port 80, with its checksum.
fn syn(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let header = tcp::Repr {
        src_port: 5000,
        dst_port: 80,
        flags: tcp::Flags::SYN,
        window: 1000,
        ..tcp::Repr::default()
    };
    let mut segment = vec![0; header.header_bytes()];
    let sum = header.emit(&mut segment);
    let pseudo_header = checksum::pseudo_header(src, dst, 6, segment.len());
    tcp::write_checksum(&mut segment, checksum::combine(sum, pseudo_header));
    segment
}

/// The peer's segment in a frame to us, from the host `last` of its network.
fn from_host(last: u8) -> Vec<u8> {
    let src = Ipv4Addr::new(10, 0, 0, last);
    let syn = syn(src.into(), OURS.into());
    ethernet(OUR_MAC, ethernet::IPV4, &packet4(header4(src, OURS, Protocol::Tcp, syn.len()), &syn))
}

#[test]
fn a_refusal_waits_until_it_is_known_where_the_host_is() {
    let mut host = Host::new();
    let frames = host.reply(&from_host(2));
    let (_, question) = open_arp(&frames[0]);
    assert_eq!((frames.len(), question.operation, question.target_ip), (1, Request, PEER));
    let frames = host.reply(&arp(Reply, PEER, OURS));
    let (link, header, segment) = open4(&frames[0]);
    assert_eq!((frames.len(), link.dst, header.dst), (1, PEER_MAC, PEER));
    assert_eq!(tcp::Repr::parse(&tcp::View::new(segment).unwrap()).flags.0, 0x14, "RST and ACK");
    assert_eq!(host.dropped(Drop::NextHopUnresolved), 0);

    // Unresolved hosts get no answer, and do not block the answers of others.
    let mut host = Host::new();
    for last in 100..200 {
        host.give(&from_host(last));
    }
    host.give(&from_host(2));
    host.frames();
    assert_eq!(host.dropped(Drop::NextHopUnresolved), 37, "64 wait at most, the latest");
    assert_eq!(host.reply(&arp(Reply, PEER, OURS)).len(), 1);
    host.pass(Duration::from_secs(5));
    assert_eq!(host.dropped(Drop::NextHopUnresolved), 100);
}

#[test]
fn a_refusal_goes_another_way_when_routes_change() {
    let mut host = Host::new();
    host.meet(ROUTER.into());
    assert_eq!(open_arp(&host.reply(&from_host(2))[0]).1.operation, Request);
    let by_router = Route { prefix: PEER.into(), prefix_bits: 32, via: Some(ROUTER.into()) };
    host.stack.set_routes(&[by_router]).unwrap();
    let frames = host.frames();
    assert_eq!((frames.len(), open4(&frames[0]).1.dst), (1, PEER));
}

#[test]
fn syn_with_broadcast_or_invalid_address_is_not_answered() {
    let mut host = Host::new();
    host.meet(PEER.into());
    for any in ["0.0.0.0:80", "[::]:80"] {
        host.stack.listen(any.parse().unwrap(), 4, PoolId(0)).unwrap();
    }
    let to = |src: Ipv4Addr, dst: Ipv4Addr, mac| {
        let syn = syn(src.into(), dst.into());
        let packet = packet4(header4(src, dst, Protocol::Tcp, syn.len()), &syn);
        ethernet(mac, ethernet::IPV4, &packet)
    };
    // RFC 9293, MUST-57.
    for dst in ["10.0.0.255", "255.255.255.255", "224.0.0.1"] {
        for mac in [OUR_MAC, ethernet::BROADCAST] {
            host.drops(&to(PEER, dst.parse().unwrap(), mac), Drop::OtherAddress);
        }
    }
    host.drops(&to(PEER, OURS, ethernet::BROADCAST), Drop::OtherLinkAddress);
    let segment = syn(PEER6.into(), GROUP.into());
    let packet = packet6(PEER6, GROUP, 6, &segment);
    host.drops(&ethernet(OUR_MAC, ethernet::IPV6, &packet), Drop::OtherAddress);
    // RFC 9293, MUST-63.
    for src in ["0.0.0.0", "10.0.0.255", "224.0.0.1", "255.255.255.255", "10.0.0.1"] {
        host.drops(&to(src.parse().unwrap(), OURS, OUR_MAC), Drop::BadSource);
    }
    // And one that means us.
    assert_eq!(host.reply(&to(PEER, OURS, OUR_MAC)).len(), 1);
}
