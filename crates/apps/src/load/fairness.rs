//! How evenly connections shared what the server could give: Jain's index over what each received.
//!
//! Read first: [MT 5.2, "Fairness"]. The index of n shares is (Σx)² / (n·Σx²): 1 if all are
//! equal, 1/n if one has everything.
//!
//! Pure.

/// The shares of connections, as far as the index needs them. Those of several threads add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    count: u64,
    sum: f64,
    sum_of_squares: f64,
}

impl Shares {
    /// Adds the bytes that a connection received.
    pub(crate) fn record(&mut self, bytes: u64) {
        let share = bytes as f64;
        self.count += 1;
        self.sum += share;
        self.sum_of_squares += share * share;
    }

    /// Adds another thread's connections.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
    }

    /// Returns Jain's index; `None` if no connection received anything.
    pub(crate) fn jain(&self) -> Option<f64> {
        let spread = self.count as f64 * self.sum_of_squares;
        (spread > 0.0).then(|| self.sum * self.sum / spread)
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;

    fn jain(bytes: &[u64]) -> Option<f64> {
        let mut shares = Shares::default();
        bytes.iter().for_each(|&bytes| shares.record(bytes));
        shares.jain()
    }

    #[test]
    fn equal_shares_are_fair_whatever_their_size() {
        for size in [1, 1_000, 1 << 50] {
            assert!((jain(&[size; 256]).unwrap() - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn single_receiver_has_lowest_fairness() {
        assert!((jain(&[0, 0, 0, 42]).unwrap() - 0.25).abs() < 1e-9);
        assert!((jain(&[1, 3]).unwrap() - 0.8).abs() < 1e-9);
    }

    #[test]
    fn nothing_shared_has_no_index() {
        assert_eq!((jain(&[]), jain(&[0, 0])), (None, None));
    }

    #[test]
    fn threads_add_up() {
        let (mut one, mut two) = (Shares::default(), Shares::default());
        one.record(1);
        two.record(3);
        one.add(&two);
        assert_eq!(one.jain(), jain(&[1, 3]));
    }
}
