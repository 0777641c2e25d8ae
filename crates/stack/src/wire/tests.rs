//! Formats: no panic, round trips, and equality with two other parsers.

mod differential;
mod garbage;
mod round_trip;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;
use crate::counters::Drop;
use crate::seq::SeqNum;

const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
];

/// The sum of `bytes`, pair by pair.
fn slow_sum(bytes: &[u8]) -> u16 {
    let mut total = 0_u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[test]
fn sums_are_those_of_rfc_1071() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(checksum::sum(&bytes), 0xddf2, "the RFC's own example, section 3");
    assert_eq!(checksum::sum(&[]), 0);
    assert_eq!(checksum::sum(&[0xab]), 0xab00);
    for len in 0..100 {
        let bytes: Vec<u8> = (0..len).map(|n| 255 - n).collect();
        assert_eq!(checksum::sum(&bytes), slow_sum(&bytes), "{len}");
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            let joined = checksum::append(checksum::sum(a), cut, checksum::sum(b));
            assert_eq!(joined, slow_sum(&bytes), "{len} cut at {cut}");
        }
    }
    assert_eq!(checksum::sum(&[0xff; 65_535]), slow_sum(&[0xff; 65_535]));
}

/// Both ways of summing, for few and for many bytes, and copies.
#[test]
fn checksum_of_any_length_matches_definition() {
    let mut seed = 1_u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Many ones, so that carries run.
        if seed >> 31 == 0 { 0xff } else { (seed >> 24) as u8 }
    };
    let bytes: Vec<u8> = (0..70_000).map(|_| byte()).collect();
    for len in (0..700).chain([1448, 1460, 2048, 65_535, 65_536]) {
        for start in [0, 1, 7] {
            let bytes = &bytes[start..start + len];
            let expected = slow_sum(bytes);
            assert_eq!(checksum::sum(bytes), expected, "{len} from {start}");
            let mut copied = vec![0xee; len + 9];
            assert_eq!(checksum::copy(bytes, &mut copied), expected, "{len} from {start}");
            assert_eq!(&copied[..len], bytes);
            assert_eq!(copied[len..], [0xee; 9]);
        }
    }
    let mut short = [0; 300];
    assert_eq!(checksum::copy(&bytes, &mut short), slow_sum(&bytes[..300]));
    assert_eq!(short, bytes[..300]);
}

#[test]
fn source_routes_are_refused_and_other_options_skipped() {
    let check = |options: &[u8]| {
        let mut packet = [0; 60];
        let repr = ipv4::Repr {
            src: V4[0],
            dst: V4[1],
            protocol: 6,
            ttl: 64,
            dscp: 0,
            ecn: Ecn::NotEct,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            payload_bytes: options.len(),
        };
        repr.emit(&mut packet);
        packet[0] = 0x45 + (options.len() / 4) as u8;
        packet[20..20 + options.len()].copy_from_slice(options);
        let view = ipv4::View::new(&packet).unwrap();
        assert_eq!(view.header_bytes(), 20 + options.len());
        view.check_options()
    };
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&[148, 4, 0, 0]), Ok(()), "router alert");
    assert_eq!(check(&[1, 1, 1, 0]), Ok(()));
    assert_eq!(check(&[1, 131, 3, 0]), Err(Drop::ForbiddenOption));
    assert_eq!(check(&[137, 3, 0, 0]), Err(Drop::ForbiddenOption));
    assert_eq!(check(&[0, 137, 3, 0]), Ok(()), "after the end");
    assert_eq!(check(&[7, 0, 0, 0]), Err(Drop::BadHeader), "no length");
    assert_eq!(check(&[7, 5, 0, 0]), Err(Drop::BadHeader), "beyond the header");
    assert_eq!(check(&[1, 1, 1, 7]), Err(Drop::BadHeader), "no room for a length");
}

#[test]
fn syn_options_go_out_in_the_order_of_linux() {
    let mut options = tcp::Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(tcp::Timestamps { value: 0x0102_0304, echo: 0 }),
        ..tcp::Options::default()
    };
    let mut bytes = [0xee; 40];
    options.emit(&mut bytes);
    let expected = [2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
    assert_eq!(bytes[..options.bytes()], expected);
    options.timestamps = None;
    options.emit(&mut bytes);
    assert_eq!(bytes[..options.bytes()], [2, 4, 5, 180, 1, 1, 4, 2, 1, 3, 3, 7]);
}

#[test]
fn a_broken_list_of_options_counts_up_to_where_it_breaks() {
    let parse = tcp::Options::parse;
    let unknown = parse(&[253, 6, 1, 2, 3, 4, 2, 4, 1, 0]);
    assert_eq!((unknown.mss, unknown.malformed), (Some(256), false), "skipped by its length");
    let wrong_length = parse(&[2, 3, 9, 3, 3, 5]);
    assert_eq!((wrong_length.mss, wrong_length.window_scale), (None, Some(5)));
    for broken in [&[3, 3, 5, 2, 0, 1, 1][..], &[3, 3, 5, 2, 1], &[3, 3, 5, 2, 5, 0], &[3, 3, 5, 2]]
    {
        let options = parse(broken);
        assert!(options.malformed, "{broken:?}");
        assert_eq!(options.window_scale, Some(5));
        assert_eq!(options.mss, None);
    }
    assert!(!parse(&[1, 0, 2, 0]).malformed, "after the end nothing is read");
    assert_eq!(parse(&[2, 4, 1, 0, 2, 4, 2, 0]).mss, Some(512), "the later one counts");
}

#[test]
fn sack_blocks_leave_room_for_timestamps() {
    let block = |n| tcp::SackBlock { start: SeqNum(n), end: SeqNum(n + 1) };
    let blocks = [block(1), block(5), block(9), block(13)];
    let mut options = tcp::Options::default();
    options.set_sack(&blocks);
    assert_eq!(options.sack(), blocks);
    assert_eq!(options.bytes(), 36);
    options.timestamps = Some(tcp::Timestamps::default());
    options.set_sack(&blocks);
    assert_eq!(options.sack(), &blocks[..3]);
    assert_eq!(options.bytes(), tcp::OPTIONS_BYTES_MAX);
}

#[test]
fn fast_open_option_is_read_as_it_is_written() {
    for len in 0..=18 {
        let bytes: Vec<u8> = (1..=len).collect();
        let is_cookie = len == 0 || (4..=16).contains(&len) && len.is_multiple_of(2);
        let cookie = tcp::Cookie::new(&bytes);
        assert_eq!(cookie.is_some(), is_cookie, "{len}");
        // What is no cookie is skipped, as RFC 7413 §4.1.1 wants it.
        let mut list = vec![34, len + 2];
        list.extend(&bytes);
        list.extend([4, 2]);
        let options = tcp::Options::parse(&list);
        assert_eq!((options.fast_open, options.sack_permitted), (cookie, true), "{len}");
        let Some(cookie) = cookie else { continue };
        assert_eq!((cookie.bytes(), cookie.is_request()), (&bytes[..], len == 0));
        let options = tcp::Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(tcp::Timestamps { value: 1, echo: 2 }),
            fast_open: Some(cookie),
            ..tcp::Options::default()
        };
        let mut written = vec![0xee; options.bytes()];
        options.emit(&mut written);
        assert!(written.len() <= tcp::OPTIONS_BYTES_MAX && written.len().is_multiple_of(4));
        assert_eq!(tcp::Options::parse(&written), options);
        assert!(!written[20..].contains(&0xee));
    }
}

#[test]
fn a_udp_checksum_of_zero_is_written_as_its_other_form() {
    let mut datagram = [0; 8];
    udp::write_checksum(&mut datagram, 0xffff);
    assert_eq!(udp::View::new(&[0, 0, 0, 0, 0, 8, 0, 0]).unwrap().checksum(), 0);
    assert_eq!(datagram[6..], [0xff, 0xff]);
}

/// A header of options with `options` in it, padded as far as needed.
fn options_header(next: u8, options: &[u8]) -> Vec<u8> {
    let mut header = vec![next, 0];
    header.extend(options);
    while header.len() % 8 != 0 {
        header.push(0);
    }
    header[1] = (header.len() / 8 - 1) as u8;
    header
}

#[test]
fn extension_headers_are_followed_to_the_transport() {
    let mut bytes = options_header(extension::DESTINATION, &[5, 2, 0, 0, 1, 3, 0, 0, 0]);
    bytes.extend(options_header(6, &[0x1e, 1, 7]));
    let end = bytes.len();
    bytes.extend([0xab; 20]);
    let chain = extension::walk(extension::HOP_BY_HOP, &bytes, true).unwrap();
    assert_eq!((chain.protocol, chain.offset, chain.named_at), (6, end, Some(16)));
    let chain = extension::walk(17, &bytes, true).unwrap();
    assert_eq!((chain.protocol, chain.offset, chain.named_at), (17, 0, None));
}

#[test]
fn extension_headers_that_must_not_be_followed_are_reported() {
    let refused = |first, bytes: &[u8]| {
        let problem = extension::walk(first, bytes, true).unwrap_err();
        (problem.drop, problem.report.map(|report| (report.code, report.pointer)))
    };
    let again = options_header(extension::HOP_BY_HOP, &[]);
    let at = (Drop::ForbiddenOption, Some((extension::CODE_NEXT_HEADER, Some(0))));
    assert_eq!(refused(extension::DESTINATION, &again), at, "hop-by-hop is first or not at all");
    let silent = options_header(6, &[0x40, 0]);
    assert_eq!(refused(extension::DESTINATION, &silent), (Drop::ForbiddenOption, None));
    for kind in [0x80, 0xc2] {
        let loud = options_header(6, &[0, kind, 0]);
        let at = (Drop::ForbiddenOption, Some((extension::CODE_OPTION, Some(3))));
        assert_eq!(refused(extension::DESTINATION, &loud), at);
    }
    // A source route, of the deprecated type and of another.
    for kind in [0, 4] {
        let route = [6, 0, kind, 1, 0, 0, 0, 0];
        let at = (Drop::ForbiddenOption, Some((extension::CODE_FIELD, Some(2))));
        assert_eq!(refused(extension::ROUTING, &route), at);
        let done = [6, 0, kind, 0, 0, 0, 0, 0];
        assert_eq!(extension::walk(extension::ROUTING, &done, true).unwrap().protocol, 6);
    }
    let long = options_header(6, &[1, 200]);
    let at = (Drop::BadHeader, Some((extension::CODE_FIELD, Some(3))));
    assert_eq!(refused(extension::DESTINATION, &long), at);
    let no_length = [6, 0, 0, 0, 0, 0, 0, 7];
    let at = (Drop::BadHeader, Some((extension::CODE_FIELD, Some(7))));
    assert_eq!(refused(extension::DESTINATION, &no_length), at);
    assert_eq!(refused(extension::DESTINATION, &[6, 1, 0, 0, 0, 0, 0, 0]), (Drop::Truncated, None));
    let chain: Vec<u8> =
        (0..20).flat_map(|_| options_header(extension::DESTINATION, &[])).collect();
    assert_eq!(refused(extension::DESTINATION, &chain), (Drop::ForbiddenOption, None));
}

#[test]
fn a_quote_is_the_beginning_of_a_packet() {
    let mut packet = [0; 28];
    let mut repr = ipv4::Repr {
        src: V4[0],
        dst: V4[1],
        protocol: 6,
        ttl: 1,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 7,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        payload_bytes: 1400,
    };
    repr.emit(&mut packet);
    packet[20..28].copy_from_slice(&[0, 80, 1, 0, 0xde, 0xad, 0xbe, 0xef]);
    let quote = quote::Quote::v4(&packet).unwrap();
    assert_eq!((quote.src, quote.dst), (IpAddr::V4(V4[0]), IpAddr::V4(V4[1])));
    assert_eq!((quote.src_port(), quote.dst_port()), (80, 256));
    assert_eq!(quote.seq(), SeqNum(0xdead_beef));
    assert!(quote::Quote::v4(&packet[..27]).is_err());
    repr.fragment_offset = 8;
    repr.emit(&mut packet);
    assert!(quote::Quote::v4(&packet).is_err(), "the ports are in another fragment");

    let mut packet = vec![0; 40];
    let repr = ipv6::Repr {
        src: V6[0],
        dst: V6[1],
        next_header: extension::FRAGMENT,
        hop_limit: 1,
        dscp: 0,
        ecn: Ecn::NotEct,
        payload_bytes: 9000,
    };
    repr.emit(&mut packet);
    let fragment =
        extension::Fragment { next_header: 17, offset: 0, more: true, identification: 9 };
    let mut header = [0; 8];
    fragment.emit(&mut header);
    packet.extend(header);
    packet.extend([1, 0, 0, 53, 0, 8, 0, 0]);
    let quote = quote::Quote::v6(&packet).unwrap();
    assert_eq!((quote.src, quote.dst), (IpAddr::V6(V6[0]), IpAddr::V6(V6[1])));
    assert_eq!((quote.protocol, quote.src_port(), quote.dst_port()), (17, 256, 53));
    assert!(quote::Quote::v6(&packet[..55]).is_err());
}
