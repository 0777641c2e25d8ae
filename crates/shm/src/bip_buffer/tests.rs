//! Bip buffers: order, room, commits, and every length between two threads.

use std::collections::VecDeque;
use std::thread;

use proptest::bool::weighted;
use proptest::prelude::*;

use super::*;

fn numbered(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|place| (number as usize * 31 + place) as u8).collect()
}

/// Lengths about the copy's borders, long and short in turn.
fn len(number: u64) -> usize {
    match number % 4 {
        0 => 1 + (number * 7919 % 300) as usize,
        1 => [1, 63, 64, 65, 127, 128, 129, 255, 256, 257][number as usize / 4 % 10],
        _ => 1 + (number * 7919 % 3000) as usize,
    }
}

/// How often, of what takes long where each step is looked at.
const fn often(times: u64) -> u64 {
    if cfg!(miri) { times / 200 } else { times }
}

#[test]
fn a_place_is_packed_whole() {
    for tag in [0, (1 << BIP_TAG_BITS) - 1] {
        let place = StringPlace { line: (1 << LINE_BITS) - 1, len: BIP_STRING_BYTES_MAX, tag };
        assert_eq!(StringPlace::unpack(place.pack()), place);
    }
}

#[test]
fn strings_of_all_lengths_come_out_as_they_went_in() {
    let (mut sender, mut receiver) = bip_buffer(64, 8 << 10, 4096).unwrap();
    let (mut sent, mut taken, mut refused) = (0_u64, 0_u64, 0_u64);
    for round in 0..often(5_000) {
        for _ in 0..round % 7 {
            if sender.put(&numbered(sent, len(sent)), sent as u32 & 0x7f_ffff).unwrap() {
                sent += 1;
            } else {
                refused += 1;
            }
        }
        sender.commit();
        let most = (round % 5) as usize;
        let took = receiver.receive(most, |string, tag| {
            assert_eq!(string, numbered(taken, len(taken)));
            assert_eq!(tag, taken as u32 & 0x7f_ffff);
            taken += 1;
        });
        assert!(took.unwrap() <= most);
    }
    while receiver.has_strings().unwrap() {
        receiver.receive(9, |_, _| taken += 1).unwrap();
    }
    assert_eq!(sent, taken);
    assert!(sent > often(5_000) && refused > often(100), "{sent} sent, {refused} refused");
}

/// Strings come into an area of 16 lines with 8 records, and go, as a sender sees it that looks
/// when it has to, and at times when it has not.
fn strings_come_and_go(steps: &[(usize, usize, bool)]) -> Result<(), TestCaseError> {
    const LINES: usize = 16;
    const RECORDS: usize = 8;
    let mut space = Space::new(LINES * LINE_BYTES);
    let mut kept = VecDeque::<(usize, usize)>::new();
    for &(lines, released, looks) in steps {
        if looks || lines > space.clear {
            kept.drain(..released.min(kept.len()));
            let oldest = kept.front().map(|(start, _)| *start);
            space.clear(oldest, lines, (RECORDS - kept.len()) as u32);
        }
        let end = kept.back().map_or(0, |(start, lines)| start + lines);
        if lines <= space.clear {
            let start = space.take(lines);
            prop_assert!(start + lines <= LINES, "within the area");
            let apart = |(from, its)| from + its <= start || start + lines <= from;
            prop_assert!(kept.iter().all(|one| apart(*one)), "{start} in {kept:?}");
            prop_assert!(kept.len() < RECORDS);
            kept.push_back((start, lines));
        } else if kept.len() < RECORDS {
            let first = kept.front().map_or(LINES, |(start, _)| *start);
            let is_around = !kept.is_empty() && end <= first;
            let fits = if is_around { end + lines <= first } else { lines <= first };
            prop_assert!(!fits && (is_around || end + lines > LINES), "{lines} in {kept:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 2_000 }))]

    #[test]
    fn no_string_lies_where_another_is_kept_and_none_that_fits_is_refused(
        steps in prop::collection::vec(
            (prop_oneof![2 => 1..=2_usize, 1 => 1..=17_usize], 0..4_usize, weighted(0.2)),
            1..60,
        ),
    ) {
        strings_come_and_go(&steps)?;
    }
}

#[test]
fn small_strings_fill_all_records_and_large_ones_all_bytes() {
    let (mut sender, mut receiver) = bip_buffer(8, 1 << 10, 1 << 10).unwrap();
    // Each time from another place of the records' ring on.
    for round in 0..often(100).max(2) {
        let fits = |sender: &mut BipProducer, bytes: &[u8]| {
            let mut count = 0;
            while sender.put(bytes, 0).unwrap() {
                count += 1;
            }
            sender.commit();
            count
        };
        assert_eq!(fits(&mut sender, &[1; 60]), 8, "round {round}");
        assert_eq!(receiver.receive(3, |_, _| ()).unwrap(), 3);
        assert_eq!(fits(&mut sender, &[2; 65]), 3, "round {round}");
        assert_eq!(receiver.receive(99, |_, _| ()).unwrap(), 8);
        assert_eq!(fits(&mut sender, &[3; 512]), 2, "round {round}");
        assert_eq!(receiver.receive(1, |_, _| ()).unwrap(), 1);
        assert_eq!(fits(&mut sender, &[4; 448]), 1, "round {round}");
        assert_eq!(receiver.receive(99, |_, _| ()).unwrap(), 2);
    }
}

#[test]
fn uncommitted_is_invisible_and_too_long_refused() {
    let (mut sender, mut receiver) = bip_buffer(2, 1 << 20, usize::MAX).unwrap();
    assert!(!sender.commit());
    assert!(sender.put(&[1; 60], 0).unwrap());
    assert!(!receiver.has_strings().unwrap());
    assert!(sender.commit() && receiver.has_strings().unwrap());
    assert!(!sender.put(&vec![0; BIP_STRING_BYTES_MAX + 1], 0).unwrap());
    assert!(!sender.put(&[], 0).unwrap());
    assert!(sender.put(&[2; 60], 0).unwrap());
    assert!(!sender.put(&[3; 60], 0).unwrap(), "two are the most");
    let longer_than_the_area = bip_buffer(2, 128, 4096).unwrap().0.put(&[0; 129], 0).unwrap();
    assert!(!longer_than_the_area);
}

#[test]
fn sizes_that_a_record_cannot_name_are_refused() {
    for bytes in [0, 63, 65, BIP_AREA_BYTES_MAX + 64, usize::MAX] {
        assert_eq!(bip_buffer(8, bytes, 64).err(), Some(BipError::Area { bytes }));
    }
    for entries in [0, 1, 3, 1 << 21] {
        let refused = bip_buffer(entries, 1 << 10, 64).err();
        assert_eq!(refused, Some(BipError::Ring(RingError::Entries { entries })));
    }
}

#[test]
fn two_threads_see_the_same_bytes() {
    const STRINGS: u64 = if cfg!(miri) { 50 } else { 100_000 };
    let (mut sender, mut receiver) = bip_buffer(64, 16 << 10, 4096).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 0;
            while number < STRINGS {
                while number < STRINGS && sender.put(&numbered(number, len(number)), 7).unwrap() {
                    number += 1;
                }
                if !sender.commit() {
                    thread::yield_now();
                }
            }
        });
        let mut taken = 0;
        while taken < STRINGS {
            let count = receiver.receive(16, |string, tag| {
                assert_eq!((string, tag), (&numbered(taken, len(taken))[..], 7));
                taken += 1;
            });
            if count.unwrap() == 0 {
                thread::yield_now();
            }
        }
    });
}
