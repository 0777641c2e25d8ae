//! Fragments, from frame to datagram.

use super::*;
use crate::limits::{OUTBOX_MESSAGE_BYTES, REASSEMBLIES_MAX};
use crate::wire::extension;

/// `payload` as fragments of IPv4, cut every `step` bytes.
fn cut4(identification: u16, protocol: Protocol, payload: &[u8], step: usize) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(step);
    let piece = |(n, part): (usize, &[u8])| {
        let header = ipv4::Repr {
            identification,
            more_fragments: n + 1 < count,
            fragment_offset: n * step,
            ..header4(PEER, OURS, protocol, part.len())
        };
        ethernet(OUR_MAC, ethernet::IPV4, &packet4(header, part))
    };
    payload.chunks(step).enumerate().map(piece).collect()
}

/// A fragment of IPv6 with `before` between its header and the fragment header.
fn piece6(fragment: extension::Fragment, before: &[u8], part: &[u8]) -> Vec<u8> {
    let mut bytes = [before, &[0; extension::FRAGMENT_BYTES]].concat();
    fragment.emit(&mut bytes[before.len()..]);
    bytes.extend(part);
    let first = if before.is_empty() { extension::FRAGMENT } else { extension::HOP_BY_HOP };
    frame6(first, &bytes)
}

/// `payload` as fragments of IPv6, cut every `step` bytes, each with `before` in front.
fn cut6(identification: u32, payload: &[u8], step: usize, before: &[u8]) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(step);
    let piece = |(n, part): (usize, &[u8])| {
        let (offset, more) = (n * step, n + 1 < count);
        let fragment = extension::Fragment { next_header: 17, offset, more, identification };
        piece6(fragment, before, part)
    };
    payload.chunks(step).enumerate().map(piece).collect()
}

/// RFC 8200 §4.5: only the first fragment's next header and its headers count, whatever the order.
#[test]
fn ipv6_reassembly_takes_headers_of_first_fragment() {
    let datagram = datagram6(53, &[7; 40]);
    let options: &[u8] = &[extension::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
    let cases: [[(u8, &[u8]); 2]; 5] = [
        [(17, &[]), (6, &[])],
        [(17, &[]), (extension::NO_NEXT, &[])],
        [(17, options), (17, &[])],
        [(17, &[]), (17, options)],
        [(17, options), (6, &[])],
    ];
    for (case, [first, last]) in cases.into_iter().enumerate() {
        for is_reversed in [false, true] {
            let piece = |(next_header, before): (u8, &[u8]), offset, more, part: &[u8]| {
                let fragment = extension::Fragment { next_header, offset, more, identification: 3 };
                piece6(fragment, before, part)
            };
            let mut pieces =
                [piece(first, 0, true, &datagram[..16]), piece(last, 16, false, &datagram[16..])];
            if is_reversed {
                pieces.reverse();
            }
            let mut host = Host::new();
            host.bind6(53);
            pieces.iter().for_each(|piece| host.give(piece));
            let received = host.receive();
            assert_eq!(received, Some((peer6(), vec![7; 40])), "case {case}, {is_reversed}");
        }
    }
}

#[test]
fn fragments_become_datagrams() {
    let payload: Vec<u8> = (0..4000).map(|n| n as u8).collect();
    let mut host = Host::new();
    host.bind(53);
    host.bind6(53);
    for frame in cut4(1, Protocol::Udp, &datagram4(53, &payload), 1480).iter().rev() {
        host.give(frame);
    }
    assert_eq!(host.receive(), Some((peer(), payload.clone())));
    let options = [extension::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
    for before in [&[][..], &options] {
        for frame in cut6(1, &datagram6(53, &payload), 1232, before) {
            host.give(&frame);
        }
        assert_eq!(host.receive(), Some((peer6(), payload.clone())));
    }
    assert_eq!(host.stack.counters().totals.packets_reassembled, 3);
    assert_eq!(host.stack.counters().drops().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn a_fragment_that_is_the_whole_needs_no_others() {
    let mut host = Host::new();
    host.bind6(53);
    let pieces = cut6(1, &datagram6(53, &[1; 2000]), 1232, &[]);
    host.give(&pieces[0]);
    host.give(&cut6(1, &datagram6(53, b"alone"), 1232, &[])[0]);
    assert_eq!(host.receive(), Some((peer6(), b"alone".to_vec())));
    host.give(&pieces[1]);
    assert_eq!(host.receive().unwrap().1.len(), 2000);
}

#[test]
fn the_sum_of_the_whole_counts_whatever_the_link_says_of_parts() {
    let mut host = Host::new();
    host.bind(53);
    let mut bytes = datagram4(53, &[1; 2000]);
    bytes[1999] ^= 1;
    let received = Received { checksums: Checksums::Verified, segment_bytes: 0 };
    for frame in cut4(1, Protocol::Udp, &bytes, 1480) {
        host.stack.on_frame(host.now, &frame, received, &mut host.memory);
    }
    assert_eq!(host.dropped(Drop::BadTransportChecksum), 1);
    assert_eq!(host.memory.in_use(), 0);
}

#[test]
fn a_packet_that_stays_incomplete_is_reported() {
    let mut host = Host::new();
    host.meet(PEER.into());
    host.meet(PEER6.into());
    let four = cut4(1, Protocol::Udp, &datagram4(53, &[1; 3000]), 1480);
    let six = cut6(1, &datagram6(53, &[1; 3000]), 1232, &[]);
    host.give(&four[0]);
    host.give(&six[0]);
    // Of this one the first fragment is missing, so that its sender cannot be told.
    host.give(&cut4(2, Protocol::Udp, &datagram4(53, &[1; 3000]), 1480)[1]);
    assert!(host.pass(Duration::from_secs(29)).is_empty());
    let mut frames = host.pass(Duration::from_secs(1));
    assert_eq!(frames.len(), 1, "of IPv4");
    assert!(host.pass(Duration::from_secs(29)).is_empty());
    frames.extend(host.pass(Duration::from_secs(1)));
    assert_eq!(frames.len(), 2);
    let (_, _, payload) = open4(&frames[0]);
    let message = icmp4::Repr::parse(&icmp4::View::new(payload).unwrap()).unwrap();
    assert_eq!(message, icmp4::Repr::TimeExceeded { code: 1 });
    assert_eq!(payload[8..], four[0][14..14 + payload.len() - 8]);
    let (_, message, quoted) = open_icmp6(&frames[1]);
    assert_eq!(message, icmp6::Repr::TimeExceeded { code: 1 });
    assert_eq!(quoted, &six[0][14..14 + quoted.len()]);
    assert_eq!(host.dropped(Drop::BadFragment), 3);
    assert_eq!(host.stack.poll_timeout(), None);
}

#[test]
fn misshapen_fragments_are_refused() {
    let mut host = Host::new();
    host.meet(PEER6.into());
    let shape = |offset, more, len: usize| {
        let fragment = extension::Fragment { next_header: 17, offset, more, identification: 5 };
        let mut bytes = vec![0; 8 + len];
        fragment.emit(&mut bytes);
        frame6(extension::FRAGMENT, &bytes)
    };
    let problem = |frames: &[Vec<u8>]| open_icmp6(&frames[0]).1;
    let frames = host.reply(&shape(0, true, 9));
    assert_eq!(problem(&frames), icmp6::Repr::ParameterProblem { code: 0, pointer: 4 });
    let frames = host.reply(&shape(65_528, false, 8));
    assert_eq!(problem(&frames), icmp6::Repr::ParameterProblem { code: 0, pointer: 42 });
    // Headers that go on in the next fragment.
    let fragment = extension::Fragment {
        next_header: extension::DESTINATION,
        offset: 0,
        more: true,
        identification: 6,
    };
    let mut bytes = vec![0; 16];
    fragment.emit(&mut bytes);
    bytes[9] = 200;
    host.drops(&frame6(extension::FRAGMENT, &bytes), Drop::BadFragment);
    // A fragment within a fragment.
    let mut bytes = vec![0; 16];
    let whole = extension::Fragment { offset: 0, more: false, next_header: 44, identification: 7 };
    whole.emit(&mut bytes);
    host.drops(&frame6(extension::FRAGMENT, &bytes), Drop::BadFragment);
}

/// `payload` in two fragments, of which the fragmentable part begins with header `next_header`;
/// `before` lies between the IPv6 header and the fragment header.
fn halves6(next_header: u8, payload: &[u8], before: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = cut6(9, payload, 16, before);
    frames.iter_mut().for_each(|frame| frame[54 + before.len()] = next_header);
    frames
}

/// The kernel puts the packet together before it looks at such headers, and reports them then.
#[test]
fn reassembled_packet_with_bad_headers_is_reported() {
    let mut host = Host::new();
    host.meet(PEER6.into());
    host.bind6(53);
    let datagram = datagram6(53, &[7; 40]);
    let options = [extension::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
    // A source route with segments left: the field that says how its type is to be read.
    let route = [&[17, 0, 0, 1, 0, 0, 0, 0][..], &datagram].concat();
    // Options for every hop, which belong directly behind the IPv6 header.
    let hops = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &datagram].concat();
    // An option that must be known.
    let unknown = [&[17, 0, 0x80, 4, 0, 0, 0, 0][..], &datagram].concat();
    let cases = [
        (extension::ROUTING, &route, &[][..], (extension::CODE_FIELD, 42)),
        (extension::ROUTING, &route, &options, (extension::CODE_FIELD, 50)),
        (extension::HOP_BY_HOP, &hops, &[], (extension::CODE_NEXT_HEADER, 6)),
        (extension::HOP_BY_HOP, &hops, &options, (extension::CODE_NEXT_HEADER, 40)),
        (extension::DESTINATION, &unknown, &[], (extension::CODE_OPTION, 42)),
    ];
    for (next_header, payload, before, (code, pointer)) in cases {
        let pieces = halves6(next_header, payload, before);
        let (last, others) = pieces.split_last().unwrap();
        for piece in others {
            assert_eq!(host.reply(piece), Vec::<Vec<u8>>::new());
        }
        let dropped = host.dropped(Drop::ForbiddenOption);
        let frames = host.reply(last);
        let (header, message, quoted) = open_icmp6(&frames[0]);
        assert_eq!((frames.len(), header.dst), (1, PEER6));
        assert_eq!(message, icmp6::Repr::ParameterProblem { code, pointer });
        assert_eq!(quoted.len(), 40 + before.len() + payload.len(), "the whole packet");
        assert_eq!(host.dropped(Drop::ForbiddenOption), dropped + 1);
    }
    assert_eq!(host.receive(), None);
    assert_eq!(host.dropped(Drop::BadFragment), 0);
    // On a link whose address the kernel has, too, the kernel reports.
    let mut host = Host::with(|config| config.external_neighbours = true);
    assert!(host.stack.set_neighbour(host.now, PEER6.into(), PEER_MAC, &mut host.memory));
    for piece in halves6(extension::ROUTING, &route, &[]) {
        assert_eq!(host.reply(&piece), Vec::<Vec<u8>>::new());
    }
    assert_eq!(host.dropped(Drop::ForbiddenOption), 1);
}

#[test]
fn a_flood_of_fragments_costs_nothing_but_other_fragments() {
    let mut host = Host::new();
    host.bind(53);
    for n in 0..5000 {
        host.give(&cut4(n, Protocol::Udp, &datagram4(53, &[1; 3000]), 1480)[0]);
    }
    assert_eq!(host.dropped(Drop::ReassemblyFull), 5000 - REASSEMBLIES_MAX as u64);
    host.give(&frame4(Protocol::Udp, &datagram4(53, b"hello")));
    assert_eq!(host.receive(), Some((peer(), b"hello".to_vec())));
    for frame in cut4(9000, Protocol::Udp, &datagram4(53, &[1; 3000]), 1480) {
        host.give(&frame);
    }
    assert_eq!(host.receive().unwrap().1.len(), 3000);
    assert_eq!(host.memory.in_use(), 0);
}

#[test]
fn overlapping_fragments_refuse_the_datagram() {
    let mut host = Host::new();
    host.bind6(53);
    let pieces = cut6(1, &datagram6(53, &[1; 3000]), 1232, &[]);
    let evil = cut6(1, &datagram6(53, &[2; 3000]), 1224, &[]);
    host.give(&pieces[0]);
    host.drops(&evil[1], Drop::BadFragment);
    assert_eq!(host.dropped(Drop::BadFragment), 1);
    for piece in &pieces[1..] {
        host.drops(piece, Drop::BadFragment);
    }
    assert_eq!(host.receive(), None);
}

/// Puts the first fragments of as many datagrams as are kept into `host`; returns the others.
fn fill_reassembly(host: &mut Host) -> Vec<Vec<u8>> {
    let mut others = Vec::new();
    for n in 0..REASSEMBLIES_MAX {
        let mut pieces = cut4(n as u16, Protocol::Udp, &datagram4(53, &[1; 2000]), 1480);
        others.extend(pieces.pop());
        host.give(&pieces[0]);
    }
    assert_eq!(host.dropped(Drop::ReassemblyFull), 0);
    others
}

/// Asserts that each datagram of [`fill_reassembly`] is still there, and arrives.
fn complete_reassembly(host: &mut Host, others: &[Vec<u8>]) {
    assert_eq!(host.dropped(Drop::ReassemblyFull), 0);
    for other in others {
        host.give(other);
        assert_eq!(host.receive(), Some((peer(), vec![1; 2000])));
    }
}

/// RFC 6946 §4: an atomic fragment is processed independently of any other fragment.
#[test]
fn atomic_fragment_uses_no_place_in_reassembly() {
    let mut host = Host::new();
    host.bind(53);
    host.bind6(53);
    let others = fill_reassembly(&mut host);
    let options = [extension::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
    for before in [&[][..], &options] {
        host.give(&cut6(1, &datagram6(53, b"alone"), 1232, before)[0]);
        assert_eq!(host.receive(), Some((peer6(), b"alone".to_vec())));
    }
    complete_reassembly(&mut host, &others);
}

/// Errors point into the packet that arrived, the fragment header included.
#[test]
fn atomic_fragment_with_bad_headers_is_reported() {
    let mut host = Host::new();
    host.meet(PEER6.into());
    let options = [extension::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
    // An option that must be known.
    let unknown = [&[17, 0, 0x80, 4, 0, 0, 0, 0][..], &datagram6(53, &[7; 40])].concat();
    let cases = [
        (200, &[][..], (extension::CODE_NEXT_HEADER, 40)),
        (200, &options, (extension::CODE_NEXT_HEADER, 48)),
        (extension::HOP_BY_HOP, &[], (extension::CODE_NEXT_HEADER, 40)),
        (extension::HOP_BY_HOP, &options, (extension::CODE_NEXT_HEADER, 48)),
        (extension::DESTINATION, &[], (extension::CODE_OPTION, 50)),
        (extension::DESTINATION, &options, (extension::CODE_OPTION, 58)),
    ];
    for (next_header, before, (code, pointer)) in cases {
        let fragment =
            extension::Fragment { next_header, offset: 0, more: false, identification: 3 };
        let frame = piece6(fragment, before, &unknown);
        let frames = host.reply(&frame);
        let (_, message, quoted) = open_icmp6(&frames[0]);
        assert_eq!(message, icmp6::Repr::ParameterProblem { code, pointer });
        assert_eq!(quoted, &frame[14..]);
    }
}

#[test]
fn misshapen_fragment_gives_up_no_other_datagram() {
    let mut host = Host::new();
    host.bind(53);
    let others = fill_reassembly(&mut host);
    for (identification, part) in [(0, &[2; 9][..]), (0, &[]), (999, &[2; 9]), (999, &[])] {
        let header = ipv4::Repr {
            identification,
            more_fragments: true,
            fragment_offset: 1480,
            ..header4(PEER, OURS, Protocol::Udp, part.len())
        };
        let frame = ethernet(OUR_MAC, ethernet::IPV4, &packet4(header, part));
        host.drops(&frame, Drop::BadFragment);
    }
    complete_reassembly(&mut host, &others);
}

/// The parts of an answer, put together: what they carry. Each must fit the link and carry on where
/// the one before ended, under one identification.
fn joined4(replies: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = Vec::new();
    let first = open4(&replies[0]).1.identification;
    for (n, frame) in replies.iter().enumerate() {
        let (_, header, payload) = open4(frame);
        assert!(frame.len() <= 14 + 1500 && header.identification == first);
        assert_eq!(header.fragment_offset, whole.len());
        assert_eq!(header.more_fragments, n + 1 < replies.len());
        assert!(!header.dont_fragment);
        whole.extend(payload);
    }
    whole
}

/// The same for IPv6.
fn joined6(replies: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = Vec::new();
    let first = extension::Fragment::parse(&replies[0][54..]).unwrap().identification;
    for (n, frame) in replies.iter().enumerate() {
        assert!(frame.len() <= 14 + 1500);
        assert_eq!(frame[20], extension::FRAGMENT);
        assert_eq!(usize::from(u16::from_be_bytes([frame[18], frame[19]])), frame.len() - 54);
        let part = extension::Fragment::parse(&frame[54..]).unwrap();
        assert_eq!((part.next_header, part.identification), (58, first));
        assert_eq!((part.offset, part.more), (whole.len(), n + 1 < replies.len()));
        whole.extend(&frame[62..]);
    }
    whole
}

const ECHO4: icmp4::Repr = icmp4::Repr::Echo { code: 0, identifier: 3, sequence: 9 };
const ECHO6: icmp6::Repr = icmp6::Repr::Echo { code: 0, identifier: 3, sequence: 9 };

fn echo4(host: &mut Host, bytes: usize) -> Vec<Vec<u8>> {
    let data: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
    let frames = cut4(1, Protocol::Icmp, &message4(ECHO4, &data), 1480);
    frames.iter().flat_map(|frame| host.reply(frame)).collect()
}

fn echo6(host: &mut Host, bytes: usize) -> Vec<Vec<u8>> {
    let data: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
    let mut frames = cut6(1, &message6((PEER6, OURS6), ECHO6, &data), 1232, &[]);
    frames.iter_mut().for_each(|frame| frame[54] = 58);
    frames.iter().flat_map(|frame| host.reply(frame)).collect()
}

#[test]
fn an_echo_goes_back_whole_in_as_many_packets_as_it_needs() {
    let mut host = Host::new();
    host.meet(PEER.into());
    host.meet(PEER6.into());
    for bytes in [1473, 2952, 3000, OUTBOX_MESSAGE_BYTES - 8] {
        let replies = echo4(&mut host, bytes);
        assert_eq!(replies.len(), (8 + bytes).div_ceil(1480));
        let whole = joined4(&replies);
        let reply = icmp4::Repr::parse(&icmp4::View::new(&whole).unwrap()).unwrap();
        assert_eq!(reply, icmp4::Repr::EchoReply { code: 0, identifier: 3, sequence: 9 });
        assert!(whole[8..].iter().enumerate().all(|(n, byte)| *byte == n as u8));

        let replies = echo6(&mut host, bytes);
        let whole = joined6(&replies);
        let pseudo = checksum::pseudo_header(OURS6.into(), PEER6.into(), 58, whole.len());
        let reply = icmp6::Repr::parse(&icmp6::View::new(&whole).unwrap(), pseudo).unwrap();
        assert_eq!(reply, icmp6::Repr::EchoReply { code: 0, identifier: 3, sequence: 9 });
        assert_eq!(whole.len(), 8 + bytes);
    }
    // What is kept for answers has a bound: IPv4 lets us shorten, IPv6 does not.
    let replies = echo4(&mut host, OUTBOX_MESSAGE_BYTES);
    assert_eq!(joined4(&replies).len(), OUTBOX_MESSAGE_BYTES);
    assert_eq!(echo6(&mut host, OUTBOX_MESSAGE_BYTES), Vec::<Vec<u8>>::new());
    assert_eq!(host.dropped(Drop::IgnoredMessage), 1);
}

#[test]
fn two_answers_in_parts_do_not_share_an_identification() {
    let mut host = Host::new();
    host.meet(PEER6.into());
    let identification = |frame: &[u8]| extension::Fragment::parse(&frame[54..]).unwrap();
    let one = echo6(&mut host, 2_000);
    let other = echo6(&mut host, 2_000);
    assert_ne!(identification(&one[0]).identification, identification(&other[0]).identification);
}

/// Fragments do not show whether they are the kernel's, so both stacks get them. Packets for ports
/// unused here are answered by the kernel.
#[test]
fn what_comes_in_fragments_to_a_shared_address_is_left_to_the_kernel() {
    let mut host = Host::with(|config| config.external_neighbours = true);
    for (ip, mac) in [(PEER.into(), PEER_MAC), (IpAddr::V6(PEER6), PEER_MAC)] {
        assert!(host.stack.set_neighbour(host.now, ip, mac, &mut host.memory));
    }
    host.bind(53);
    for frame in cut4(1, Protocol::Udp, &datagram4(53, &[1; 3000]), 1480) {
        host.give(&frame);
    }
    assert_eq!(host.receive(), Some((peer(), vec![1; 3000])), "a port of ours");
    // Ports unused here, and packets that the kernel answers for the host.
    let mut frames = cut4(2, Protocol::Udp, &datagram4(54, &[1; 3000]), 1480);
    frames.extend(cut6(2, &datagram6(54, &[1; 3000]), 1232, &[]));
    let syn = [0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    let mut syn = syn.to_vec();
    let pseudo = checksum::pseudo_header(PEER.into(), OURS.into(), 6, syn.len());
    let sum = checksum::finish(checksum::combine(pseudo, checksum::sum(&syn)));
    syn[16..18].copy_from_slice(&sum.to_be_bytes());
    frames.extend(cut4(3, Protocol::Tcp, &syn, 8));
    frames.extend(cut4(4, Protocol::Icmp, &message4(ECHO4, &[7; 3000]), 1480));
    let mut echo = cut6(4, &message6((PEER6, OURS6), ECHO6, &[7; 3000]), 1232, &[]);
    echo.iter_mut().for_each(|frame| frame[54] = 58);
    frames.extend(echo);
    frames.extend(cut4(5, Protocol::Udp, &datagram4(54, &[1; 3000]), 1480).pop());
    frames.push(cut6(5, &datagram6(54, &[1; 3000]), 1232, &[]).swap_remove(0));
    for frame in &frames {
        assert_eq!(host.reply(frame), Vec::<Vec<u8>>::new());
    }
    assert_eq!(host.stack.counters().totals.packets_reassembled, 6);
    assert_eq!((host.dropped(Drop::NoConnection), host.dropped(Drop::NoEndpoint)), (1, 4));
    // Two that stay incomplete are given up without a word.
    assert_eq!(host.pass(Duration::from_secs(120)), Vec::<Vec<u8>>::new());
    assert_eq!(host.dropped(Drop::BadFragment), 2);
    assert_eq!(host.memory.in_use(), 0);
}
