//! Weighted random selection among candidates, in one round or in three [PIKA 3.3, figure 2].
//!
//! Pure: candidates and a random number in, the index of one out.

use super::config::Tariff;
use crate::limits::{ACCEPTORS_MAX, SHARDS_MAX};

/// A sequence of random numbers that follows from one (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct RandomSequence(u64);

impl RandomSequence {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Returns a number below `count`, equally probable up to 2⁻⁴⁰; 0 if `count` is 0.
pub(crate) fn below(random: u64, count: usize) -> usize {
    scaled(random, count as u64) as usize
}

/// `random` / 2⁶⁴ of `total`.
const fn scaled(random: u64, total: u64) -> u64 {
    ((random as u128 * total as u128) >> 64) as u64
}

/// The largest weight. The sum of as many as there can be candidates is a `u64`.
const WEIGHT_MAX: u64 = 1 << 50;

const _: () =
    assert!(WEIGHT_MAX.checked_mul((ACCEPTORS_MAX + SHARDS_MAX as usize) as u64).is_some());

/// Weight of a candidate with this service time, in nanoseconds: its inverse, at least 1.
#[inline]
pub(crate) fn weight(service_time: u64) -> u64 {
    (WEIGHT_MAX / service_time.max(1)).max(1)
}

/// Weight of an offer: the tariff divides it.
pub(crate) fn taxed_weight(service_time: u64, tariff: Tariff) -> u64 {
    let taxed = u128::from(service_time) * u128::from(tariff.hundredths()) / 100;
    weight(u64::try_from(taxed).unwrap_or(u64::MAX))
}

/// Selects one of some weights with a probability in proportion to it. `None` if there are none.
#[inline]
pub(crate) fn select(weights: impl Iterator<Item = u64> + Clone, random: u64) -> Option<usize> {
    let mut left = scaled(random, weights.clone().sum());
    for (index, weight) in weights.enumerate() {
        match left.checked_sub(weight) {
            Some(less) => left = less,
            None => return Some(index),
        }
    }
    None
}

/// Whether an offer beats the best local service time by `percent` of the tariff.
pub(crate) fn beats(offer: u64, local: u64, tariff: Tariff, percent: u8) -> bool {
    let needed = u128::from(offer) * u128::from(tariff.hundredths()) * u128::from(percent);
    u128::from(local) * 10_000 > needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tariff(hundredths: u32) -> Tariff {
        Tariff::from_hundredths(hundredths).unwrap()
    }

    #[test]
    fn shares_are_inverse_to_service_times() {
        let times = [100_u64, 200, 400];
        let mut random = RandomSequence::new(1);
        let mut counts = [0_u32; 3];
        for _ in 0..70_000 {
            let weights = times.iter().map(|&time| weight(time));
            counts[select(weights, random.next()).unwrap()] += 1;
        }
        for (count, expected) in counts.into_iter().zip([40_000_f64, 20_000.0, 10_000.0]) {
            assert!((f64::from(count) / expected - 1.0).abs() < 0.03, "{counts:?}");
        }
    }

    #[test]
    fn tariff_divides_the_weight_of_an_offer() {
        assert_eq!(taxed_weight(100, tariff(200)), weight(200));
        assert_eq!(taxed_weight(100, tariff(100)), weight(100));
        assert_eq!(taxed_weight(u64::MAX, tariff(100_000)), 1);
    }

    #[test]
    fn offer_beats_local_only_by_more_than_the_tariff() {
        assert!(!beats(100, 200, tariff(200), 100));
        assert!(beats(100, 201, tariff(200), 100));
        assert!(beats(100, 151, tariff(200), 75));
        assert!(!beats(100, 150, tariff(200), 75));
        assert!(!beats(u64::MAX, u64::MAX, tariff(100), 100));
    }

    proptest! {
        #[test]
        fn selection_is_always_one_of_the_candidates(
            times in prop::collection::vec(any::<u64>(), 0..20),
            random: u64,
        ) {
            let chosen = select(times.iter().map(|&time| weight(time)), random);
            prop_assert_eq!(chosen.is_some(), !times.is_empty());
            prop_assert!(chosen.is_none_or(|index| index < times.len()));
            prop_assert!(below(random, times.len().max(1)) < times.len().max(1));
        }
    }
}
