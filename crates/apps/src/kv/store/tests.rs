//! The store as all channels see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::kv::limits::KEY_BYTES_MAX;

const NOW: u32 = 1_000_000;

fn store() -> KvStore {
    KvStore::new(MEMORY_BYTES_MIN).expect("the least memory is enough")
}

#[test]
fn shards_are_a_power_of_two_of_at_least_their_least_size() {
    for (mebibytes, shards) in [(8, 1), (15, 1), (16, 2), (64, 8), (100, 8), (3000, 256)] {
        let store = KvStore::new(mebibytes << 20).expect("within the limits");
        assert_eq!(store.shard_count(), shards, "{mebibytes} MiB");
        let counters = store.counters();
        let total = counters.log_bytes + counters.table_bytes;
        assert!(total <= (mebibytes << 20) as u64);
        assert!(total > (mebibytes << 20) as u64 * 9 / 10, "{total} of {mebibytes} MiB");
    }
    assert_eq!(
        KvStore::new(MEMORY_BYTES_MIN - 1).err(),
        Some(StoreError::TooLittleMemory(MEMORY_BYTES_MIN - 1))
    );
    assert!(matches!(KvStore::new(usize::MAX), Err(StoreError::TooMuchMemory(_))));
}

#[test]
fn keys_spread_over_shards_and_differently_in_each_store() {
    let stores = [64 << 20, 64 << 20].map(|bytes| KvStore::new(bytes).expect("within the limits"));
    let places = stores.each_ref().map(|store| {
        (0u32..4_000).map(|key| store.place_of(&key.to_be_bytes()).0).collect::<Vec<_>>()
    });
    for shard in 0..8 {
        let count = places[0].iter().filter(|&&place| place == shard).count();
        assert!((350..650).contains(&count), "{count} keys in shard {shard}");
    }
    assert_ne!(places[0], places[1]);
}

#[test]
fn the_largest_item_fits_and_one_byte_more_does_not() {
    let store = store();
    let key = [b'k'; KEY_BYTES_MAX];
    let len = ITEM_BYTES_MAX - ITEM_FIXED_BYTES - key.len();
    let value = vec![5; len + 1];
    assert!(matches!(store.store(&key, &Write::PLAIN, &value[1..], NOW), StoreOutcome::Stored(_)));
    assert_eq!(store.get(&key, None, NOW, |item| item.value.len()), Some(len));
    assert_eq!(store.store(&key, &Write::PLAIN, &value, NOW), StoreOutcome::TooLarge);
    assert_eq!(store.get(&key, None, NOW, |_| ()), None, "the old value must not be read again");
    assert_eq!(
        store.reserve(&key, &Write::PLAIN, len + 1, NOW).err(),
        Some(StoreOutcome::TooLarge)
    );
}

#[test]
fn expiry_times_are_read_as_memcached_reads_them() {
    for (exptime, expected) in [
        (0, 0),
        (-1, 1),
        (i64::MIN, 1),
        (1, NOW + 1),
        (RELATIVE_EXPIRY_S_MAX, NOW + 2_592_000),
        (RELATIVE_EXPIRY_S_MAX + 1, 2_592_001),
        (i64::MAX, u32::MAX),
    ] {
        assert_eq!(expiry(exptime, NOW), expected, "{exptime}");
    }
}

#[test]
fn numbers_are_read_as_strtoull_reads_them() {
    for (text, expected) in [
        (&b"0"[..], Some(0)),
        (b"18446744073709551615", Some(u64::MAX)),
        (b"18446744073709551616", None),
        (b"12   ", Some(12)),
        (b" \t12", Some(12)),
        (b"+12", Some(12)),
        (b"-1", None),
        (b"1a", None),
        (b"1 a", Some(1)),
        (b"1\x002", Some(1)),
        (b"000000000000000000000000012", Some(12)),
        (b"", None),
        (b"   ", None),
        (b"+", None),
    ] {
        assert_eq!(number::parse_value(text), expected, "{text:?}");
    }
    for number in [0, 9, 10, 99, 12_345, u64::MAX] {
        assert_eq!(&*Digits::new(number), number.to_string().as_bytes());
    }
}

#[test]
fn counters_of_all_shards_add_up_and_reset_leaves_the_items() {
    let store = KvStore::new(64 << 20).expect("within the limits");
    for key in 0u32..1_000 {
        store.store(&key.to_be_bytes(), &Write::PLAIN, b"value", NOW);
    }
    for key in 0u32..2_000 {
        store.get(&key.to_be_bytes(), None, NOW, |_| ());
    }
    let counters = store.counters();
    assert_eq!((counters.items, counters.get_hits, counters.get_misses), (1_000, 1_000, 1_000));
    store.reset_counters();
    let counters = store.counters();
    assert_eq!((counters.items, counters.get_hits, counters.total_items), (1_000, 0, 1_000));
    store.flush(NOW, NOW);
    assert_eq!(store.get(&5u32.to_be_bytes(), None, NOW, |_| ()), None);
    assert_eq!((store.counters().get_flushed, store.flush_count()), (1, 1));
}

/// Each value names its key and is filled with one byte, so that a torn or foreign read shows.
#[test]
fn concurrent_readers_see_only_stored_values() {
    let store = store();
    let stop = AtomicBool::new(false);
    let value = |key: u32, byte: u8, len: usize| {
        let mut value = vec![byte; len + 4];
        value[..4].copy_from_slice(&key.to_be_bytes());
        value
    };
    thread::scope(|scope| {
        for writer in 0u8..3 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                for round in 0u32..30_000 {
                    let key = (round * 7 + u32::from(writer)) % 500;
                    let len = (round as usize * 13) % 3_000;
                    let bytes = value(key, round as u8, len);
                    if round % 3 == 0 {
                        let name = key.to_be_bytes();
                        let reserved = store.reserve(&name, &Write::PLAIN, bytes.len(), NOW);
                        let reservation = reserved.expect("three small values are in arrival");
                        store.fill(&reservation, 0, &bytes[..2]);
                        store.fill(&reservation, 2, &bytes[2..]);
                        store.commit(reservation, &Write::PLAIN, NOW);
                    } else {
                        store.store(&key.to_be_bytes(), &Write::PLAIN, &bytes, NOW);
                    }
                    if round % 97 == 0 {
                        store.delete(&key.to_be_bytes(), None, NOW);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut key = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    key = (key + 1) % 500;
                    store.get(&key.to_be_bytes(), None, NOW, |item| {
                        assert_eq!(item.value[..4], key.to_be_bytes());
                        let rest = &item.value[4..];
                        assert!(rest.iter().all(|byte| Some(byte) == rest.first()));
                    });
                }
            });
        }
    });
    let counters = store.counters();
    assert_eq!(counters.reserved_bytes, 0);
    assert!(counters.items <= 500);
}

#[test]
fn increments_of_many_threads_all_count() {
    let store = store();
    store.store(b"n", &Write::PLAIN, b"0", NOW);
    let change = NumberChange { delta: 1, down: false, cas: None, create: None, expires: None };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    assert!(matches!(
                        store.add(b"n", &change, NOW),
                        ArithmeticOutcome::Value { .. }
                    ));
                }
            });
        }
    });
    assert_eq!(store.get(b"n", None, NOW, |item| item.value.to_vec()), Some(b"20000".to_vec()));
}
