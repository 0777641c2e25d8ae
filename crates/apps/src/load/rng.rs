//! Reproducible randomness: the same seed gives the same load, on any machine.

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// Creates a generator whose sequence depends on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// The generator of stream `index`: streams of one seed do not repeat each other.
    #[must_use]
    pub fn stream(seed: u64, index: u64) -> Self {
        // Nearby seeds would give overlapping sequences: the stream's seed is drawn.
        let spread = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(fastrand::Rng::with_seed(seed ^ spread).fork())
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound.max(1))
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    /// A number from the normal distribution with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let first = |seed| {
            let mut rng = Rng::new(seed);
            [(); 3].map(|()| rng.below(u64::MAX))
        };
        assert_eq!(first(1_234_567), first(1_234_567));
        assert_ne!(first(1_234_567), first(1_234_568));
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut rng = Rng::new(7);
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        let mean = (0..100_000).map(|_| rng.unit()).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }

    #[test]
    fn the_normal_distribution_has_its_moments() {
        let mut rng = Rng::new(3);
        let draws: Vec<f64> = (0..200_000).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn streams_differ() {
        let firsts: Vec<u64> =
            (0..100).map(|index| Rng::stream(1, index).below(u64::MAX)).collect();
        let mut unique = firsts.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), firsts.len());
    }
}
