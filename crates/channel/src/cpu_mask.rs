//! A set of CPUs: which cores' connections a listener takes [MP 3.4.1].

use std::fmt;

use crate::limits::CPUS_MAX;

const WORDS: usize = CPUS_MAX / 64;

/// A set of CPU numbers, 0 to 1,023.
///
/// # Examples
/// ```
/// use megapipe::CpuMask;
///
/// let mask = CpuMask::cpus(0..4).with(8);
/// assert!(mask.contains(8) && !mask.contains(4));
/// assert_eq!(mask.to_string(), "0,1,2,3,8");
/// assert_eq!(mask, CpuMask::from_bits(0b1_0000_1111));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuMask([u64; WORDS]);

impl CpuMask {
    /// No CPU.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// One CPU. A number of 1,024 or more gives the empty set.
    #[must_use]
    pub fn cpu(cpu: usize) -> Self {
        Self::EMPTY.with(cpu)
    }

    /// Several CPUs.
    #[must_use]
    pub fn cpus(cpus: impl IntoIterator<Item = usize>) -> Self {
        cpus.into_iter().fold(Self::EMPTY, Self::with)
    }

    /// This set and one CPU more. A number of 1,024 or more changes nothing.
    #[must_use]
    pub fn with(mut self, cpu: usize) -> Self {
        if let Some(word) = self.0.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
        self
    }

    /// The set whose bit `n` of `bits` stands for CPU `n` (CPUs 0 to 63).
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let mut mask = Self::EMPTY;
        mask.0[0] = bits;
        mask
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Whether no CPU is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The CPUs of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..CPUS_MAX).filter(|&cpu| self.contains(cpu))
    }

    /// The smallest CPU that both sets have.
    #[must_use]
    pub fn first_common(&self, other: &Self) -> Option<usize> {
        self.iter().find(|&cpu| other.contains(cpu))
    }
}

impl fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cpu) in self.iter().enumerate() {
            write!(f, "{}{cpu}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::CpuMask;

    #[test]
    fn sets_behave_like_sets() {
        let mask = CpuMask::cpus([3, 64, 1023]);
        assert!(mask.contains(64) && !mask.contains(65) && !mask.contains(5000));
        assert_eq!(mask.to_string(), "3,64,1023");
        assert_eq!(mask.first_common(&CpuMask::cpus([1, 1023])), Some(1023));
        assert!(CpuMask::cpu(1024).is_empty());
        assert_eq!(CpuMask::from_bits(0b101), CpuMask::cpus([0, 2]));
    }
}
