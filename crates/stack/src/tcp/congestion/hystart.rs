//! HyStart++: leaves the first slow start when the delay grows, before a buffer overflows.
//!
//! Read first: RFC 9406 §4.2 (the algorithm) and §4.3 (the constants).
//!
//! Rounds are the caller's: [`HyStart::on_round`] says that one is over.

/// RFC 9406 §4.3, in microseconds.
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
/// No sample yet.
const UNKNOWN: u32 = u32::MAX;

/// The state of the first slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HyStart {
    last_round_min_us: u32,
    round_min_us: u32,
    /// The smallest RTT as conservative slow start began; `UNKNOWN`: it has not.
    css_baseline_us: u32,
    samples: u8,
    css_rounds: u8,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            last_round_min_us: UNKNOWN,
            round_min_us: UNKNOWN,
            css_baseline_us: UNKNOWN,
            samples: 0,
            css_rounds: 0,
        }
    }

    const fn in_css(&self) -> bool {
        self.css_baseline_us != UNKNOWN
    }

    /// How much of `bytes` the window grows by.
    pub(super) const fn paced(&self, bytes: u32) -> u32 {
        if self.in_css() { bytes.div_ceil(CSS_GROWTH_DIVISOR) } else { bytes }
    }

    /// A round trip was measured.
    pub(super) fn on_rtt(&mut self, rtt_us: u32) {
        self.round_min_us = self.round_min_us.min(rtt_us);
        self.samples = self.samples.saturating_add(1);
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        if self.in_css() {
            if self.round_min_us < self.css_baseline_us {
                // The delay was passing: back to slow start.
                self.css_baseline_us = UNKNOWN;
            }
        } else if self.last_round_min_us != UNKNOWN {
            let thresh = (self.last_round_min_us / MIN_RTT_DIVISOR)
                .clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
            if self.round_min_us >= self.last_round_min_us.saturating_add(thresh) {
                self.css_baseline_us = self.round_min_us;
                self.css_rounds = 0;
            }
        }
    }

    /// A round is over. True: slow start is over too.
    pub(super) fn on_round(&mut self) -> bool {
        self.last_round_min_us = self.round_min_us;
        self.round_min_us = UNKNOWN;
        self.samples = 0;
        if self.in_css() {
            self.css_rounds += 1;
        }
        self.in_css() && self.css_rounds >= CSS_ROUNDS
    }
}
