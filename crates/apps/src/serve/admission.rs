//! How many connections may be open: credit for a listener, without one call per connection.
//!
//! A channel accepts as many connections as it was asked for. Asking for one more whenever one
//! closes would cost an operation per connection, so credit is given back in lots.
//!
//! Invariants
//! - `open + granted + withheld <= limit`: connections open, those that the channel may still
//!   accept, and those that wait for the next tick.
//! - With anything free, the channel's credit does not stay at zero beyond the next tick.

/// Share of the limit that is gathered before it is granted again.
const LOTS: u32 = 8;

/// The books of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    limit: u32,
    open: u32,
    granted: u32,
    withheld: u32,
}

impl Admission {
    /// Books for at most `limit` connections; all of it is to be granted by the first
    /// [`Admission::start`].
    pub(crate) const fn new(limit: u32) -> Self {
        Self { limit, open: 0, granted: 0, withheld: 0 }
    }

    /// Most connections at once.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// The credit to begin with.
    pub(crate) const fn start(&mut self) -> u32 {
        self.granted = self.limit;
        self.limit
    }

    /// One connection was accepted. Returns the credit to grant now, mostly zero.
    pub(crate) fn accepted(&mut self) -> u32 {
        self.open += 1;
        self.granted = self.granted.saturating_sub(1);
        self.grant()
    }

    /// One connection has ended. Returns the credit to grant now, mostly zero.
    pub(crate) fn closed(&mut self) -> u32 {
        self.open = self.open.saturating_sub(1);
        self.grant()
    }

    /// Whether as many connections are open as may be.
    pub(crate) const fn is_full(&self) -> bool {
        self.open >= self.limit
    }

    /// Grants what is free, if it is a lot or all that the channel has left.
    fn grant(&mut self) -> u32 {
        let taken = self.open + self.granted + self.withheld;
        let free = self.limit.saturating_sub(taken);
        let lot = (self.limit / LOTS).max(1);
        if free >= lot || self.granted == 0 {
            self.granted += free;
            return free;
        }
        0
    }

    /// An accept completed with an error: its credit is used up, no connection is open. What
    /// failed for want of descriptors would fail again at once, so the credit is withheld.
    pub(crate) const fn failed(&mut self) {
        self.granted = self.granted.saturating_sub(1);
        self.withheld += 1;
    }

    /// Some time has passed: the credit to grant again after failures.
    pub(crate) const fn on_tick(&mut self) -> u32 {
        let credit = self.withheld;
        self.granted += credit;
        self.withheld = 0;
        credit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the channel's part: accepts while there is credit.
    fn play(limit: u32, steps: &[bool]) {
        let mut books = Admission::new(limit);
        let mut credit = books.start();
        let mut open = 0;
        for &open_one in steps {
            if open_one && credit > 0 {
                credit -= 1;
                open += 1;
                credit += books.accepted();
            } else if !open_one && open > 0 {
                open -= 1;
                credit += books.closed();
            }
            assert!(open + credit <= limit, "over the limit: {open} open, {credit} credit");
            assert!(open == limit || credit > 0, "stuck with {open} of {limit} open");
        }
    }

    #[test]
    fn credit_never_exceeds_the_limit_and_never_runs_dry() {
        for limit in [1, 2, 7, 8, 9, 100] {
            let mut seed = u64::from(limit);
            let steps: Vec<bool> = (0..10_000)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    seed >> 63 == 1
                })
                .collect();
            play(limit, &steps);
        }
    }

    #[test]
    fn grants_come_in_lots() {
        let mut books = Admission::new(800);
        books.start();
        let mut grants = 0;
        for _ in 0..800 {
            books.accepted();
            grants += u32::from(books.closed() > 0);
        }
        assert_eq!(grants, 8);
    }

    #[test]
    fn a_failed_accept_gives_its_credit_back_at_the_next_tick() {
        let mut books = Admission::new(2);
        assert_eq!(books.start(), 2);
        books.failed();
        books.accepted();
        assert_eq!(books.closed(), 1, "the failed one is withheld");
        assert_eq!(books.on_tick(), 1);
        assert_eq!(books.on_tick(), 0);
    }
}
