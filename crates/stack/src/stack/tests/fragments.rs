//! Fragments, from frame to datagram.

use super::*;
use crate::limits::REASSEMBLIES_MAX;
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

/// The same for IPv6, each with `before` between its header and the fragment header.
fn cut6(identification: u32, payload: &[u8], step: usize, before: &[u8]) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(step);
    let piece = |(n, part): (usize, &[u8])| {
        let fragment = extension::Fragment {
            next_header: 17,
            offset: n * step,
            more: n + 1 < count,
            identification,
        };
        let mut bytes = before.to_vec();
        let at = bytes.len();
        bytes.extend([0; 8]);
        fragment.emit(&mut bytes[at..]);
        bytes.extend(part);
        let first = if before.is_empty() { extension::FRAGMENT } else { extension::HOP_BY_HOP };
        frame6(first, &bytes)
    };
    payload.chunks(step).enumerate().map(piece).collect()
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
    assert!(host.pass(Duration::from_secs(59)).is_empty());
    let frames = host.pass(Duration::from_secs(1));
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

#[test]
fn an_echo_too_long_to_go_back_whole_is_shortened_or_ignored() {
    let mut host = Host::new();
    host.meet(PEER.into());
    let echo = icmp4::Repr::Echo { identifier: 3, sequence: 9 };
    let frames = cut4(1, Protocol::Icmp, &message4(echo, &[7; 3000]), 1480);
    let replies: Vec<_> = frames.iter().flat_map(|frame| host.reply(frame)).collect();
    let (_, header, payload) = open4(&replies[0]);
    assert_eq!((replies.len(), header.payload_bytes), (1, 1480));
    let reply = icmp4::Repr::parse(&icmp4::View::new(payload).unwrap()).unwrap();
    assert_eq!(reply, icmp4::Repr::EchoReply { identifier: 3, sequence: 9 });
    assert_eq!(payload[8..], [7; 1472]);
    // IPv6 wants it back as it was.
    let echo = icmp6::Repr::Echo { identifier: 3, sequence: 9 };
    let message = message6((PEER6, OURS6), echo, &[7; 3000]);
    let mut frames = cut6(1, &message, 1232, &[]);
    for frame in &mut frames {
        frame[54] = 58;
    }
    let last = frames.pop().unwrap();
    for frame in &frames {
        assert!(host.reply(frame).is_empty());
    }
    host.drops(&last, Drop::IgnoredMessage);
}
