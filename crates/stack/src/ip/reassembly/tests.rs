//! Fragments: order, overlaps, floods, time.

use super::*;
use proptest::prelude::*;

fn key(n: u32) -> Key {
    let ip = |last| IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, last));
    Key { src: ip(2), dst: ip(1), protocol: 17, identification: n }
}

fn key6(n: u32) -> Key {
    let ip = |last| IpAddr::V6(core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
    Key { src: ip(2), dst: ip(1), protocol: 0, identification: n }
}

fn piece(n: u32, offset: usize, more: bool, payload: &[u8]) -> Piece<'_> {
    Piece { key: key(n), header: b"head", offset, more, ecn: Ecn::NotEct, payload }
}

/// The packet, if `piece` completes one; [`Drop::ReassemblyFull`] if another was given up for it.
fn add(reassembly: &mut Reassembly, piece: &Piece<'_>) -> Result<Option<Vec<u8>>, Drop> {
    match reassembly.add(Instant::ZERO, piece)? {
        FragmentOutcome::Waits => Ok(None),
        FragmentOutcome::WaitsInPlaceOfAnother => Err(Drop::ReassemblyFull),
        FragmentOutcome::Whole(whole) => Ok(Some(whole.packet.to_vec())),
    }
}

#[test]
fn the_last_piece_completes_the_packet() {
    let mut reassembly = Reassembly::new();
    assert_eq!(add(&mut reassembly, &piece(1, 16, false, b"end")), Ok(None));
    assert_eq!(add(&mut reassembly, &piece(2, 0, true, b"12345678")), Ok(None));
    assert_eq!(add(&mut reassembly, &piece(1, 0, true, b"abcdefgh")), Ok(None));
    let whole = add(&mut reassembly, &piece(1, 8, true, b"ijklmnop")).unwrap().unwrap();
    assert_eq!(whole, b"headabcdefghijklmnopend");
}

#[test]
fn a_copy_is_ignored_and_an_overlap_refuses_the_packet() {
    let mut reassembly = Reassembly::new();
    let first = piece(1, 0, true, b"abcdefghijklmnop");
    assert_eq!(add(&mut reassembly, &first), Ok(None));
    assert_eq!(add(&mut reassembly, &first), Ok(None));
    let overlap = piece(1, 8, false, b"evil");
    assert_eq!(add(&mut reassembly, &overlap), Err(Drop::BadFragment));
    let rest = piece(1, 16, false, b"end");
    assert_eq!(add(&mut reassembly, &rest), Err(Drop::BadFragment), "nor what comes later");
    // The same place with other bytes is an overlap too.
    let v6 = |payload| Piece { key: key6(2), ..piece(2, 0, true, payload) };
    assert_eq!(add(&mut reassembly, &v6(b"abcdefgh")), Ok(None));
    assert_eq!(add(&mut reassembly, &v6(b"abcdefgX")), Err(Drop::BadFragment));
}

#[test]
fn impossible_pieces_are_refused() {
    let mut n = 0;
    let mut refused = |pieces: &[(usize, bool, usize)]| {
        n += 1;
        let mut reassembly = Reassembly::new();
        let bytes = vec![0; 65_535];
        let results = pieces.iter().map(|(offset, more, len)| {
            add(&mut reassembly, &piece(n, *offset, *more, &bytes[..*len]))
        });
        results.last().unwrap() == Err(Drop::BadFragment)
    };
    assert!(refused(&[(0, true, 7)]), "not a multiple of eight");
    assert!(refused(&[(8, true, 0)]), "empty");
    assert!(refused(&[(65_528, false, 8)]), "too long");
    assert!(refused(&[(8, false, 8), (16, true, 8)]), "beyond the end");
    assert!(refused(&[(32, true, 8), (8, false, 8)]), "an end before what is there");
    assert!(refused(&[(8, false, 8), (16, false, 8)]), "two ends");
    assert!(!refused(&[(8, false, 8), (0, true, 8)]));
}

#[test]
fn a_flood_is_bounded_and_the_newest_still_gets_through() {
    let mut reassembly = Reassembly::new();
    let memory = reassembly.bytes.capacity();
    let mut full = 0;
    for n in 0..10_000 {
        match add(&mut reassembly, &piece(n, 0, true, &[0; 1480])) {
            Ok(None) => {}
            Err(Drop::ReassemblyFull) => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(full, 10_000 - REASSEMBLIES_MAX);
    let whole = add(&mut reassembly, &piece(9_999, 1480, false, b"end")).unwrap();
    assert_eq!(whole.unwrap().len(), 4 + 1480 + 3);
    assert_eq!(reassembly.bytes.capacity(), memory);
    // Ever smaller pieces of one packet.
    let mut reassembly = Reassembly::new();
    for n in 0..FRAGMENTS_MAX {
        assert_eq!(add(&mut reassembly, &piece(1, n * 8, true, &[0; 8])), Ok(None));
    }
    let more = piece(1, FRAGMENTS_MAX * 8, true, &[0; 8]);
    assert_eq!(add(&mut reassembly, &more), Err(Drop::BadFragment));
}

#[test]
fn what_does_not_become_whole_is_given_up_in_time() {
    let mut reassembly = Reassembly::new();
    assert_eq!(reassembly.poll_timeout(), None);
    add(&mut reassembly, &piece(1, 0, true, b"abcdefgh")).unwrap();
    add(&mut reassembly, &piece(2, 8, true, b"abcdefgh")).unwrap();
    let end = Instant::ZERO + KEPT_V4;
    assert_eq!(reassembly.poll_timeout(), Some(end));
    let mut told = Vec::new();
    let given_up = reassembly.on_timeout(end, |first| told.push(first.map(<[u8]>::to_vec)));
    assert_eq!(given_up, 2);
    assert_eq!(told, [Some(b"headabcdefgh".to_vec()), None]);
    assert_eq!(reassembly.poll_timeout(), None);
    assert_eq!(add(&mut reassembly, &piece(1, 8, false, b"end")), Ok(None), "begins anew");
}

/// 16 bits of identification come round again within seconds (RFC 4963).
#[test]
fn ipv4_fragment_of_reused_identification_begins_anew() {
    let mut reassembly = Reassembly::new();
    assert_eq!(add(&mut reassembly, &piece(1, 0, true, b"old bytes ------")), Ok(None));
    let new = add(&mut reassembly, &piece(1, 0, true, b"new bytes ------"));
    assert_eq!(new, Err(Drop::ReassemblyFull), "the old packet is given up");
    let whole = add(&mut reassembly, &piece(1, 16, false, b"end")).unwrap().unwrap();
    assert_eq!(whole, b"headnew bytes ------end");
    // IPv6 has 32 bits, and gives up the packet (RFC 5722 §4).
    let v6 = |payload| Piece { key: key6(1), ..piece(1, 0, true, payload) };
    assert_eq!(add(&mut reassembly, &v6(b"old bytes ------")), Ok(None));
    assert_eq!(add(&mut reassembly, &v6(b"new bytes ------")), Err(Drop::BadFragment));
}

#[test]
fn ipv4_fragments_are_kept_for_less_time() {
    let mut reassembly = Reassembly::new();
    add(&mut reassembly, &piece(1, 0, true, b"abcdefgh")).unwrap();
    assert_eq!(reassembly.poll_timeout(), Some(Instant::from_millis(30_000)));
    assert_eq!(reassembly.on_timeout(Instant::from_millis(30_000), |_| {}), 1);
    let v6 = Piece { key: key6(1), ..piece(1, 0, true, b"abcdefgh") };
    add(&mut reassembly, &v6).unwrap();
    assert_eq!(reassembly.poll_timeout(), Some(Instant::from_millis(60_000)));
}

#[test]
fn marks_are_joined_and_must_agree() {
    assert_eq!(join(Ecn::Ect0, Ecn::Ce), Some(Ecn::Ce));
    assert_eq!(join(Ecn::Ect0, Ecn::Ect0), Some(Ecn::Ect0));
    assert_eq!(join(Ecn::NotEct, Ecn::Ce), None);
    let mut reassembly = Reassembly::new();
    add(&mut reassembly, &piece(1, 0, true, b"abcdefgh")).unwrap();
    let marked = Piece { ecn: Ecn::Ce, ..piece(1, 8, false, b"end") };
    assert_eq!(add(&mut reassembly, &marked), Err(Drop::BadFragment));
}

proptest! {
    #[test]
    fn any_order_gives_the_packet_back(
        cuts in prop::collection::vec(1_usize..40, 1..30),
        last in prop::collection::vec(any::<u8>(), 1..9),
        order in any::<u64>(),
    ) {
        let middle: usize = cuts.iter().sum::<usize>() * 8;
        let mut whole: Vec<u8> = (0..middle).map(|n| (n * 7) as u8).collect();
        whole.extend(&last);
        let mut pieces = Vec::new();
        let mut at = 0;
        for cut in &cuts {
            pieces.push((at, true, &whole[at..at + cut * 8]));
            at += cut * 8;
        }
        pieces.push((at, false, &whole[at..]));
        let mut seed = order;
        pieces.sort_by_cached_key(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 32
        });
        let mut reassembly = Reassembly::new();
        for (count, (offset, more, payload)) in pieces.iter().enumerate() {
            let result = add(&mut reassembly, &piece(1, *offset, *more, payload)).unwrap();
            if count + 1 < pieces.len() {
                prop_assert_eq!(result, None);
            } else {
                prop_assert_eq!(&result.unwrap()[4..], &whole[..]);
            }
        }
    }
}
