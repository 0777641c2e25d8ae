//! A shard against a naive oracle: a map that never forgets. What the shard lacks and the oracle
//! has must have been evicted, and nothing else may differ.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::kv::store::expiry;

const SMALL_BYTES: usize = 160 << 10;
const NOW: u32 = 1_000_000;

fn shard() -> StoreShard {
    StoreShard::new(0, 1, SMALL_BYTES).expect("memory")
}

fn hash(key: &[u8]) -> u32 {
    // Few chains, so that they are long.
    key.iter().fold(7u32, |hash, &byte| hash.wrapping_mul(31) ^ u32::from(byte)) % 16
}

fn probe(key: &[u8]) -> Probe<'_> {
    (hash(key), key)
}

fn set(shard: &mut StoreShard, key: &[u8], value: &[u8], now: u32) -> StoreOutcome {
    shard.store(probe(key), &Write::PLAIN, value, now)
}

fn value_of(shard: &mut StoreShard, key: &[u8], now: u32) -> Option<Vec<u8>> {
    shard.get(probe(key), None, now, |item| item.value.to_vec())
}

impl StoreShard {
    /// Checks every invariant that the files' heads state.
    fn check(&self) {
        let (mut live, mut live_bytes, mut reserved_bytes, mut dead_bytes) = (0, 0, 0, 0);
        let mut record_bytes = 0;
        for (place, record) in self.log.records() {
            let capacity = record.capacity as usize;
            record_bytes += capacity;
            assert!(!record.has(attribute::PINNED));
            let needed =
                LogRecord::bytes_for(usize::from(record.key_len), record.value_len as usize);
            assert!(needed <= capacity);
            if record.has(attribute::LIVE) {
                live += 1;
                live_bytes += capacity;
                let found = self.find_pinned((record.hash, self.log.key(place, &record)));
                assert_eq!(found.0, place);
            } else if record.has(attribute::RESERVED) {
                reserved_bytes += capacity;
                assert_eq!(self.reservations[record.next as usize], place);
            } else {
                dead_bytes += capacity;
            }
        }
        let chained: u64 = self
            .heads
            .iter()
            .map(|&head| {
                let mut count = 0;
                let mut place = LogPosition(head);
                while !place.is_nowhere() {
                    count += 1;
                    place = LogPosition(self.log.record(place).next);
                }
                count
            })
            .sum();
        assert_eq!(chained, self.items);
        assert_eq!(live, self.items);
        assert_eq!(live_bytes, self.item_bytes);
        assert_eq!(reserved_bytes, self.reserved_bytes);
        let filler_bytes = self.log.used() - record_bytes;
        assert_eq!(dead_bytes + filler_bytes, self.log.dead());
        assert!(self.log.used() <= self.log.capacity());
        let tables = (self.heads.capacity()
            + self.reservations.capacity()
            + self.free_reservations.capacity())
            * size_of::<u32>();
        assert!(self.log.capacity() + tables + size_of::<Self>() <= SMALL_BYTES);
    }
}

#[test]
fn stored_value_is_read_back() {
    let mut shard = shard();
    assert!(matches!(set(&mut shard, b"a", b"one", NOW), StoreOutcome::Stored(_)));
    assert_eq!(value_of(&mut shard, b"a", NOW).as_deref(), Some(&b"one"[..]));
    assert_eq!(value_of(&mut shard, b"b", NOW), None);
    set(&mut shard, b"a", b"a longer value than before", NOW);
    assert_eq!(
        value_of(&mut shard, b"a", NOW).as_deref(),
        Some(&b"a longer value than before"[..])
    );
    set(&mut shard, b"a", b"", NOW);
    assert_eq!(value_of(&mut shard, b"a", NOW).as_deref(), Some(&b""[..]));
    shard.check();
}

#[test]
fn an_item_is_gone_at_its_second() {
    let mut shard = shard();
    let write = Write { expires: NOW + 10, ..Write::PLAIN };
    shard.store(probe(b"a"), &write, b"x", NOW);
    assert!(value_of(&mut shard, b"a", NOW + 9).is_some());
    assert!(value_of(&mut shard, b"a", NOW + 10).is_none());
    assert_eq!(shard.counters().get_expired, 1);
    assert_eq!(shard.counters().items, 0);
}

#[test]
fn a_flush_to_come_drops_what_is_there_then() {
    let mut shard = shard();
    set(&mut shard, b"early", b"x", NOW);
    shard.flush(NOW + 2, NOW);
    set(&mut shard, b"late", b"x", NOW + 1);
    assert!(value_of(&mut shard, b"early", NOW + 1).is_some());
    assert!(value_of(&mut shard, b"early", NOW + 2).is_none());
    assert!(value_of(&mut shard, b"late", NOW + 2).is_none());
    set(&mut shard, b"early", b"y", NOW + 2);
    assert!(value_of(&mut shard, b"early", NOW + 3).is_some());
}

#[test]
fn a_hot_item_outlives_any_number_of_cold_ones() {
    let mut shard = shard();
    set(&mut shard, b"hot", &[7; 500], NOW);
    for round in 0u32..5_000 {
        set(&mut shard, &round.to_be_bytes(), &[1; 400], NOW);
        if round.is_multiple_of(50) {
            assert!(value_of(&mut shard, b"hot", NOW).is_some(), "round {round}");
        }
    }
    assert!(shard.counters().evictions > 4_000);
    assert!(shard.counters().carried > 0);
    shard.check();
}

#[test]
fn rewriting_one_item_does_not_push_out_others() {
    let mut shard = shard();
    // A quarter of the shard is settled and never read again.
    for index in 0u32..60 {
        set(&mut shard, &index.to_be_bytes(), &[1; 400], NOW);
    }
    for round in 0usize..3_000 {
        set(&mut shard, b"rewritten", &vec![2; 100 + 37 * (round % 40)], NOW);
    }
    assert_eq!(shard.counters().evictions, 0);
    assert_eq!(shard.counters().items, 61);
    shard.check();
}

#[test]
fn a_value_in_arrival_is_not_evicted_and_holds_at_most_its_share() {
    let mut shard = shard();
    let index = shard.reserve(probe(b"slow"), &Write::PLAIN, 3_000, NOW).expect("room");
    shard.fill(index, 0, &[9; 1_500]);
    for round in 0u32..2_000 {
        set(&mut shard, &round.to_be_bytes(), &[1; 400], NOW);
    }
    shard.fill(index, 1_500, &[8; 1_500]);
    // Beyond the end: cut off.
    shard.fill(index, 2_990, &[8; 1_500]);
    assert!(value_of(&mut shard, b"slow", NOW).is_none());
    assert!(matches!(shard.commit(index, &Write::PLAIN, NOW), StoreOutcome::Stored(_)));
    let value = value_of(&mut shard, b"slow", NOW).expect("committed");
    assert_eq!((value[0], value[2_999], value.len()), (9, 8, 3_000));
    let mut held = Vec::new();
    while let Ok(index) = shard.reserve(probe(b"more"), &Write::PLAIN, 3_000, NOW) {
        held.push(index);
    }
    let reserved = shard.counters().reserved_bytes as usize;
    assert!(reserved <= shard.log.capacity() / RESERVED_SHARE);
    assert!(reserved + 6_100 > shard.log.capacity() / RESERVED_SHARE);
    assert!(matches!(set(&mut shard, b"others", &[3; 3_000], NOW), StoreOutcome::Stored(_)));
    shard.check();
    held.into_iter().for_each(|index| shard.abandon(index));
    assert_eq!(shard.counters().reserved_bytes, 0);
    shard.check();
}

#[test]
fn cas_numbers_of_different_shards_differ() {
    let mut shards: Vec<_> =
        (0..4).map(|index| StoreShard::new(index, 4, SMALL_BYTES).expect("memory")).collect();
    let mut seen = std::collections::HashSet::new();
    for round in 0..100 {
        for shard in &mut shards {
            let StoreOutcome::Stored(cas) = set(shard, b"k", &[round], NOW) else {
                panic!("a small value is stored");
            };
            assert!(cas > 0 && seen.insert(cas));
        }
    }
}

/// What the oracle knows of an item.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    value: Vec<u8>,
    flags: u32,
    expires: u32,
    cas: u64,
    stale: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Store { key: u8, verb: StoreVerb, cas: Cas, len: usize, exptime: i64, arrives: bool },
    Get { key: u8, touch: Option<i64> },
    Vivify { key: u8, exptime: i64 },
    Add { key: u8, delta: u64, down: bool, create: bool },
    Number { key: u8, number: u64 },
    Touch { key: u8, exptime: i64 },
    Delete { key: u8, cas: Cas },
    MarkStale { key: u8 },
    Flush { delay: u32 },
    Abandoned { key: u8, len: usize },
    Wait { seconds: u32 },
}

#[derive(Clone, Copy, Debug)]
enum Cas {
    None,
    Right,
    Older,
    Newer,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0u8..40;
    let exptime = prop_oneof![4 => Just(0i64), 2 => 1i64..20, 1 => Just(-1i64)];
    let verb = prop_oneof![
        5 => Just(StoreVerb::Set),
        1 => Just(StoreVerb::Add),
        1 => Just(StoreVerb::Replace),
        1 => Just(StoreVerb::Append),
        1 => Just(StoreVerb::Prepend),
    ];
    let cas = prop_oneof![
        6 => Just(Cas::None),
        2 => Just(Cas::Right),
        1 => Just(Cas::Older),
        1 => Just(Cas::Newer),
    ];
    let len = prop_oneof![6 => 0usize..200, 3 => 0usize..5_000, 1 => 20_000usize..40_000];
    let write = (key.clone(), verb, cas.clone(), len.clone(), exptime.clone(), any::<bool>());
    let op = prop_oneof![
        10 => write.prop_map(|(key, verb, cas, len, exptime, arrives)| {
            Op::Store { key, verb, cas, len, exptime, arrives }
        }),
        10 => (key.clone(), proptest::option::weighted(0.2, exptime.clone()))
            .prop_map(|(key, touch)| Op::Get { key, touch }),
        1 => (key.clone(), exptime.clone()).prop_map(|(key, exptime)| Op::Vivify { key, exptime }),
        3 => (key.clone(), any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(key, delta, down, create)| Op::Add { key, delta, down, create }),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, number)| Op::Number { key, number }),
        1 => (key.clone(), exptime).prop_map(|(key, exptime)| Op::Touch { key, exptime }),
        2 => (key.clone(), cas).prop_map(|(key, cas)| Op::Delete { key, cas }),
        1 => key.clone().prop_map(|key| Op::MarkStale { key }),
        1 => (0u32..3).prop_map(|delay| Op::Flush { delay }),
        1 => (key, len).prop_map(|(key, len)| Op::Abandoned { key, len }),
        1 => (0u32..5).prop_map(|seconds| Op::Wait { seconds }),
    ];
    proptest::collection::vec(op, 1..400)
}

/// Shard and oracle side by side.
struct Pair {
    shard: StoreShard,
    known: HashMap<u8, Known>,
    now: u32,
    flush_at: Option<u32>,
    lost: u64,
    filler: u8,
}

impl Pair {
    fn new() -> Self {
        let known = HashMap::new();
        Self { shard: shard(), known, now: NOW, flush_at: None, lost: 0, filler: 0 }
    }

    fn wait(&mut self, seconds: u32) {
        self.now += seconds;
        if self.flush_at.is_some_and(|at| at <= self.now) {
            self.flush_at = None;
            self.known.clear();
        }
        let now = self.now;
        self.known.retain(|_, known| known.expires == 0 || known.expires > now);
    }

    /// Brings the oracle up to date with evictions of `key` and compares all that can be seen.
    fn agree(&mut self, key: u8) {
        self.wait(0);
        let seen = self.shard.peek(probe(&[key]), self.now, |item| Known {
            value: item.value.to_vec(),
            flags: item.flags,
            expires: item.expires,
            cas: item.cas,
            stale: item.stale,
        });
        match (seen, self.known.get(&key)) {
            (None, Some(_)) => {
                self.lost += 1;
                self.known.remove(&key);
            }
            (seen, known) => assert_eq!(seen.as_ref(), known),
        }
    }

    fn cas(&self, key: u8, cas: Cas) -> Option<u64> {
        let right = self.known.get(&key).map_or(5, |known| known.cas);
        match cas {
            Cas::None => None,
            Cas::Right => Some(right),
            Cas::Older => Some(right - 1),
            Cas::Newer => Some(right + 1),
        }
    }

    fn value(&mut self, len: usize) -> Vec<u8> {
        self.filler = (self.filler + 1) % 26;
        vec![b'a' + self.filler; len]
    }

    fn store(&mut self, key: u8, write: &Write, value: Vec<u8>, arrives: bool) {
        self.agree(key);
        let outcome = if arrives {
            match self.shard.reserve(probe(&[key]), write, value.len(), self.now) {
                Ok(index) => {
                    for (number, piece) in value.chunks(700).enumerate() {
                        self.shard.fill(index, number * 700, piece);
                    }
                    self.agree(key);
                    self.shard.commit(index, write, self.now)
                }
                Err(outcome) => outcome,
            }
        } else {
            self.shard.store(probe(&[key]), write, &value, self.now)
        };
        let expected = self.expect(key, write, value);
        match (outcome, expected) {
            (StoreOutcome::Stored(cas), Some(known)) => {
                self.known.insert(key, Known { cas, ..known });
            }
            // Two large values and their sum may not fit beside each other.
            (StoreOutcome::OutOfMemory, _) => self.forget_unless_there(key),
            (StoreOutcome::Stored(_), None) => panic!("stored against {write:?}"),
            (refusal, Some(_)) => panic!("{refusal:?} for {write:?}"),
            (_, None) => {}
        }
    }

    fn forget_unless_there(&mut self, key: u8) {
        if self.shard.peek(probe(&[key]), self.now, |_| ()).is_none() {
            self.known.remove(&key);
        }
    }

    /// What the item should be afterwards, if it is to be stored at all.
    fn expect(&self, key: u8, write: &Write, value: Vec<u8>) -> Option<Known> {
        let old = self.known.get(&key);
        let cas_differs = write.cas.is_some() && old.map(|old| old.cas) != write.cas;
        let (flags, expires) = (write.flags, write.expires);
        let new = |value| Known { value, flags, expires, cas: 0, stale: false };
        match (write.verb, old) {
            (StoreVerb::Set, None) => write.cas.is_none().then(|| new(value)),
            (StoreVerb::Set, Some(old)) if cas_differs => {
                let older = write.stale_if_older && (Some(1)..Some(old.cas)).contains(&write.cas);
                older.then(|| Known { stale: true, expires: old.expires, ..new(value) })
            }
            (StoreVerb::Set, Some(_)) => Some(new(value)),
            (StoreVerb::Add, old) => old.is_none().then(|| new(value)),
            (_, None) => None,
            (StoreVerb::Replace, Some(_)) => Some(new(value)),
            (_, Some(_)) if cas_differs => None,
            (StoreVerb::Append, Some(old)) => {
                let value = [old.value.clone(), value].concat();
                Some(Known { value, stale: false, ..old.clone() })
            }
            (StoreVerb::Prepend, Some(old)) => {
                let value = [value, old.value.clone()].concat();
                Some(Known { value, stale: false, ..old.clone() })
            }
        }
    }

    fn add(&mut self, key: u8, delta: u64, down: bool, create: bool) {
        self.agree(key);
        let create = create.then_some((3, 0));
        let change = NumberChange { delta, down, cas: None, create, expires: None };
        let sum = self.shard.add(probe(&[key]), &change, self.now);
        let old = self.known.get(&key).cloned();
        // What is a number is `number`'s to say, which has tests of its own.
        let number = old.as_ref().and_then(|old| number::parse_value(&old.value));
        match (sum, old, number) {
            (ArithmeticOutcome::NotFound, None, _) => assert!(create.is_none()),
            (ArithmeticOutcome::Value { number: 3, cas, expires: 0, created: true }, None, _) => {
                assert!(create.is_some());
                let value = b"3".to_vec();
                self.known.insert(key, Known { value, flags: 0, expires: 0, cas, stale: false });
            }
            (ArithmeticOutcome::NonNumeric, Some(_), None) => {}
            (ArithmeticOutcome::Value { number: sum, cas, .. }, Some(old), Some(number)) => {
                let right =
                    if down { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
                assert_eq!(sum, right);
                let grown = right.to_string().len() > old.value.len();
                let value = format!("{right:<width$}", width = old.value.len()).into_bytes();
                // A number that grows out of its record is a new item, so no longer stale.
                let stale = old.stale && !grown;
                self.known.insert(key, Known { value, cas, stale, ..old });
            }
            (ArithmeticOutcome::OutOfMemory, ..) => self.forget_unless_there(key),
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Store { key, verb, cas, len, exptime, arrives } => {
                self.agree(key);
                let cas = self.cas(key, cas);
                let expires = expiry(exptime, self.now);
                let flags = len as u32;
                let write = Write { verb, cas, flags, expires, stale_if_older: len % 2 == 0 };
                let value = self.value(len);
                self.store(key, &write, value, arrives);
            }
            Op::Number { key, number } => {
                self.store(key, &Write::PLAIN, number.to_string().into_bytes(), false);
            }
            Op::Get { key, touch } => {
                self.agree(key);
                let touch = touch.map(|exptime| expiry(exptime, self.now));
                let value =
                    self.shard.get(probe(&[key]), touch, self.now, |item| item.value.to_vec());
                let known = self.known.get_mut(&key);
                assert_eq!(value.as_ref(), known.as_ref().map(|known| &known.value));
                if let (Some(known), Some(expires)) = (known, touch) {
                    known.expires = expires;
                }
            }
            Op::Vivify { key, exptime } => self.vivify(key, exptime),
            Op::Add { key, delta, down, create } => self.add(key, delta, down, create),
            Op::Touch { key, exptime } => {
                self.agree(key);
                let expires = expiry(exptime, self.now);
                let touched = self.shard.touch(probe(&[key]), expires, self.now);
                let known = self.known.get_mut(&key);
                assert_eq!(touched, known.as_ref().map(|known| (known.flags, known.cas)));
                if let Some(known) = known {
                    known.expires = expires;
                }
            }
            Op::Delete { key, cas } => self.delete(key, cas),
            Op::MarkStale { key } => {
                self.agree(key);
                let removal = self.shard.mark_stale(probe(&[key]), None, None, self.now);
                let cas = self.shard.cas;
                if let Some(known) = self.known.get_mut(&key) {
                    assert_eq!(removal, Removal::Done);
                    known.stale = true;
                    known.cas = cas;
                }
            }
            Op::Flush { delay } => {
                self.wait(0);
                self.shard.flush(self.now + delay, self.now);
                self.flush_at = Some(self.now + delay);
            }
            Op::Abandoned { key, len } => {
                if let Ok(index) = self.shard.reserve(probe(&[key]), &Write::PLAIN, len, self.now) {
                    self.shard.fill(index, 0, &vec![1; len / 2]);
                    self.shard.abandon(index);
                }
            }
            Op::Wait { seconds } => self.wait(seconds),
        }
    }

    fn delete(&mut self, key: u8, cas: Cas) {
        self.agree(key);
        let cas = self.cas(key, cas);
        let removal = self.shard.delete(probe(&[key]), cas, self.now);
        let expected = match self.known.get(&key) {
            None => Removal::NotFound,
            Some(known) if cas.is_some_and(|cas| cas != known.cas) => Removal::Exists,
            Some(_) => Removal::Done,
        };
        assert_eq!(removal, expected);
        if removal == Removal::Done {
            self.known.remove(&key);
        }
    }

    fn vivify(&mut self, key: u8, exptime: i64) {
        self.agree(key);
        let expires = expiry(exptime, self.now);
        let (created, cas) = self.shard.visit(probe(&[key]), Some(expires), self.now, |item| {
            let item = item.expect("there is always room for an empty item");
            ((item.created, item.cas), ItemChange::default())
        });
        assert_eq!(created, !self.known.contains_key(&key));
        if created {
            let value = Vec::new();
            self.known.insert(key, Known { value, flags: 0, expires, cas, stale: false });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_shard_is_a_map_that_forgets_only_by_eviction(ops in ops()) {
        let mut pair = Pair::new();
        for op in &ops {
            pair.run(op);
        }
        (0..40).for_each(|key| pair.agree(key));
        pair.shard.check();
        prop_assert!(pair.lost <= pair.shard.counters().evictions);
    }
}
