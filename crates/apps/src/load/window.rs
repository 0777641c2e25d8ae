//! Which transactions count: those of a window between the warm-up and the end.
//!
//! Pure: times are nanoseconds and passed in.
//!
//! Invariants
//! - Of the transactions meant to start in the window, each is counted as completed, failed or
//!   unfinished in the end: `started = completed + failed + unfinished`.
//! - The rate counts the responses received in the window, whenever they were requested.

use std::ops::Range;

use super::fairness::Shares;
use super::fault::{FaultCounts, TransactionFault};
use super::latency::{Latencies, Times, TransactionLatencies};

/// What one thread counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count {
    /// Transactions meant to start in the window that did start.
    pub(crate) started: u64,
    /// Those of them that were answered.
    pub(crate) completed: u64,
    /// Those of them that were not, because of a fault.
    pub(crate) failed: u64,
    /// Those of them (and those due but never started) that were still open at the end.
    pub(crate) unfinished: u64,
    /// Responses that came in the window.
    pub(crate) answered: u64,
    /// Connections established in the window.
    pub(crate) connected: u64,
    /// Payload bytes received in the window.
    pub(crate) bytes_in: u64,
    /// Payload bytes submitted to the channel in the window.
    pub(crate) bytes_out: u64,
    /// Faults from the window's beginning on.
    pub(crate) faults: FaultCounts,
    /// Faults before.
    pub(crate) faults_before: FaultCounts,
    /// How long the transactions of the window took.
    pub(crate) latencies: TransactionLatencies,
    /// How long it took to connect, in the window.
    pub(crate) connecting: Latencies,
    /// How late a transaction with a fixed rate started although a connection was free for it.
    pub(crate) lateness: Latencies,
    /// What each kept connection received in the window.
    pub(crate) shares: Shares,
}

impl Count {
    /// Adds what another thread counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.completed += other.completed;
        self.failed += other.failed;
        self.unfinished += other.unfinished;
        self.answered += other.answered;
        self.connected += other.connected;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.faults.add(&other.faults);
        self.faults_before.add(&other.faults_before);
        self.latencies.add(&other.latencies);
        self.connecting.add(&other.connecting);
        self.lateness.add(&other.lateness);
        self.shares.add(&other.shares);
    }
}

/// A thread's counts and the window that they belong to.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredWindow {
    range: Range<u64>,
    pub(crate) count: Count,
}

impl MeasuredWindow {
    /// A window that has not been set yet: nothing counts.
    pub(crate) fn unset() -> Self {
        Self { range: u64::MAX..u64::MAX, count: Count::default() }
    }

    /// Sets the window. Its end may be set anew later, never its beginning.
    pub(crate) fn set(&mut self, range: Range<u64>) {
        self.range = range;
    }

    /// Whether something that happens at this time counts.
    pub(crate) fn contains(&self, now_ns: u64) -> bool {
        self.range.contains(&now_ns)
    }

    /// Whether the window has begun (and perhaps ended).
    pub(crate) const fn begun(&self, now_ns: u64) -> bool {
        now_ns >= self.range.start
    }

    /// Whether the window is over.
    pub(crate) const fn over(&self, now_ns: u64) -> bool {
        now_ns >= self.range.end
    }

    /// The end of the window.
    pub(crate) const fn end_ns(&self) -> u64 {
        self.range.end
    }

    pub(crate) fn on_start(&mut self, intended_ns: u64, now_ns: u64, bytes: usize) {
        self.count.started += u64::from(self.contains(intended_ns));
        self.count.bytes_out += if self.contains(now_ns) { bytes as u64 } else { 0 };
    }

    pub(crate) fn on_bytes(&mut self, now_ns: u64, bytes: usize) {
        self.count.bytes_in += if self.contains(now_ns) { bytes as u64 } else { 0 };
    }

    pub(crate) fn on_done(&mut self, times: Times) {
        self.count.answered += u64::from(self.contains(times.done_ns));
        if self.contains(times.intended_ns) {
            self.count.completed += 1;
            self.count.latencies.record(times);
        }
    }

    pub(crate) fn on_connected(&mut self, began_ns: u64, now_ns: u64) {
        if self.contains(now_ns) {
            self.count.connected += 1;
            self.count.connecting.record(now_ns.saturating_sub(began_ns));
        }
    }

    /// A fault; `intended_ns` is that of the transaction that it ended, if any.
    pub(crate) fn on_fault(
        &mut self,
        fault: TransactionFault,
        intended_ns: Option<u64>,
        now_ns: u64,
    ) {
        let faults = match self.begun(now_ns) {
            true => &mut self.count.faults,
            false => &mut self.count.faults_before,
        };
        faults.count(fault);
        self.count.failed += u64::from(intended_ns.is_some_and(|intended| self.contains(intended)));
    }

    /// A transaction that is open at the end of the run; `started` is whether it was counted as
    /// started already.
    pub(crate) fn on_unfinished(&mut self, intended_ns: u64, now_ns: u64, started: bool) {
        if self.contains(intended_ns) {
            self.count.started += u64::from(!started);
            self.count.unfinished += 1;
            self.count.latencies.record_unfinished(intended_ns, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> MeasuredWindow {
        let mut window = MeasuredWindow::unset();
        window.set(100..200);
        window
    }

    #[test]
    fn transactions_of_the_window_add_up() {
        let mut window = window();
        for intended_ns in (50..250).step_by(10) {
            window.on_start(intended_ns, intended_ns, 1);
            match intended_ns % 40 {
                0 => window.on_fault(TransactionFault::Reset, Some(intended_ns), intended_ns + 5),
                10 => window.on_unfinished(intended_ns, 260, true),
                _ => window.on_done(Times {
                    intended_ns,
                    sent_ns: intended_ns,
                    done_ns: intended_ns + 15,
                }),
            }
        }
        let count = &window.count;
        assert_eq!(count.started, 10);
        assert_eq!(count.started, count.completed + count.failed + count.unfinished);
        assert_eq!(count.latencies.corrected.count(), count.completed + count.unfinished);
        assert_eq!(count.bytes_out, 10);
    }

    #[test]
    fn the_rate_counts_what_arrives_in_the_window() {
        let mut window = window();
        for (sent_ns, done_ns) in [(90, 100), (90, 99), (199, 199), (150, 200)] {
            window.on_done(Times { intended_ns: sent_ns, sent_ns, done_ns });
        }
        assert_eq!((window.count.answered, window.count.completed), (2, 2));
    }

    #[test]
    fn faults_of_the_warm_up_are_kept_apart() {
        let mut window = window();
        window.on_fault(TransactionFault::Refused, None, 99);
        window.on_fault(TransactionFault::Refused, None, 100);
        window.on_fault(TransactionFault::Refused, None, 300);
        assert_eq!((window.count.faults_before.refused, window.count.faults.refused), (1, 2));
        assert_eq!(window.count.failed, 0, "no transaction was under way");
    }

    #[test]
    fn nothing_counts_before_there_is_a_window() {
        let mut window = MeasuredWindow::unset();
        window.on_start(5, 5, 1);
        window.on_connected(1, 5);
        window.on_unfinished(5, 9, false);
        assert_eq!((window.count.started, window.count.connected), (0, 0));
        assert!(!window.begun(u64::MAX - 1) && !window.over(u64::MAX - 1));
    }
}
