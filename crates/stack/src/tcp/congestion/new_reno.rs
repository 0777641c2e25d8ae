//! Additive increase, multiplicative decrease: the congestion avoidance of RFC 5681.
//!
//! Read first: RFC 5681 §3.1 and equation (4), RFC 3465 §2.1 (count bytes). What NewReno does
//! between a loss and its repair (RFC 6582) is in `recovery`.

use super::{Congestion, Growth, Window};

/// RFC 5681's congestion avoidance.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NewReno {
    /// Bytes acknowledged that have not grown the window yet.
    acked: u32,
}

impl Congestion for NewReno {
    fn avoid(&mut self, window: &mut Window, growth: &Growth) {
        // RFC 3465 §2.1: one MSS for each window acknowledged.
        self.acked = self.acked.saturating_add(growth.acked);
        if self.acked >= window.cwnd {
            self.acked -= window.cwnd;
            window.grow(growth.mss);
            // One ACK can cover more than a window only after the window shrank.
            self.acked = self.acked.min(window.cwnd);
        }
    }

    fn reduce(&mut self, window: &Window, flight: u32, mss: u32) -> u32 {
        self.acked = 0;
        // RFC 5681 equation (4), without what limited transmit sent beyond the window (§3.2).
        (flight.min(window.cwnd) / 2).max(2 * mss)
    }

    fn undo(&mut self, _cwnd: u32) {
        self.acked = 0;
    }

    fn pause(&mut self) {}
}
