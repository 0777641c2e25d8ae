//! CUBIC in integers.
//!
//! Read first: RFC 9438 §4.
//!
//! ```text
//!  bytes                                     .
//!   W_max - - - - - - - - - - - - - -_.---'''
//!                              _.-''  :   convex: probe for more
//!              concave     .-'        :
//!   cwnd_epoch +--------'             :
//!              |<---------- K ------->|
//!            epoch                 plateau          time
//! ```
//!
//! RFC 9438 keeps the epoch's start and K; only their sum, the time of the plateau, enters the
//! curve: W(t) = C (t - plateau)^3 + W_max. So an epoch can begin anywhere on the curve: the
//! plateau is put where the curve passes through the window of now. That is how time in which the
//! application had nothing to send is taken out (§4.2, §5.8).
//!
//! Invariant: `w_est` is zero exactly between epochs.

use super::{CWND_MAX, Congestion, Growth, Window};

/// Distances from the plateau beyond this, in milliseconds, are taken as this.
const DISTANCE_MS_MAX: i64 = 1_000_000;

/// RFC 9438's congestion avoidance.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cubic {
    /// The window just before the last reduction in bytes, or less (fast convergence).
    w_max: u32,
    /// When the curve passes `w_max`, in wrapping milliseconds.
    plateau_ms: u32,
    /// What Reno would have by now, in bytes.
    w_est: u32,
    /// Fractions of a byte of `w_est` and of the window, in 65536ths.
    w_est_part: u16,
    cwnd_part: u16,
}

impl Cubic {
    fn start_epoch(&mut self, cwnd: u32, growth: &Growth) {
        if self.w_max == 0 {
            // No congestion seen since the connection began.
            self.w_max = cwnd;
        }
        let distance = distance_ms(self.w_max.abs_diff(cwnd), growth.mss);
        self.plateau_ms = if cwnd < self.w_max {
            growth.now_ms.wrapping_add(distance)
        } else {
            growth.now_ms.wrapping_sub(distance)
        };
        self.w_est = cwnd;
        self.w_est_part = 0;
        self.cwnd_part = 0;
    }

    /// The curve at `at_ms` in bytes (RFC 9438 equation 1).
    fn curve(&self, at_ms: u32, mss: u32) -> u32 {
        let distance = i64::from(at_ms.wrapping_sub(self.plateau_ms) as i32)
            .clamp(-DISTANCE_MS_MAX, DISTANCE_MS_MAX);
        // C is 0.4 segments/s³; a thousandth of a segment is 2.5e6 ms³.
        let thousandths = distance * distance * distance / 2_500_000;
        let bytes = thousandths * i64::from(mss) / 1000;
        (i64::from(self.w_max) + bytes).clamp(0, i64::from(CWND_MAX)) as u32
    }

    /// Grows the window that Reno would have (RFC 9438 §4.3, equation 4).
    fn grow_estimate(&mut self, window: &Window, growth: &Growth) {
        // Until it has caught up with the window before the reduction, Reno with a decrease of
        // 0.7 is as fast as Reno with an α of 3 (1 - 0.7) / (1 + 0.7) = 9/17.
        let caught_up = u64::from(self.w_est) * 7 >= u64::from(window.ssthresh) * 10;
        let (over, under) = if caught_up { (1, 1) } else { (9, 17) };
        let gain = u64::from(growth.mss) * u64::from(growth.acked) * over / under;
        add_parts(&mut self.w_est, &mut self.w_est_part, gain, window.cwnd);
    }
}

impl Congestion for Cubic {
    fn avoid(&mut self, window: &mut Window, growth: &Growth) {
        if self.w_est == 0 {
            self.start_epoch(window.cwnd, growth);
        }
        self.grow_estimate(window, growth);
        if self.curve(growth.now_ms, growth.mss) < self.w_est {
            // RFC 9438 §4.3: the Reno-friendly region.
            window.cwnd = window.cwnd.max(self.w_est);
            return;
        }
        // RFC 9438 §4.2: where the curve will be in one round trip, within half a window.
        let ahead = growth.now_ms.wrapping_add(growth.srtt_us / 1000);
        let most = window.cwnd.saturating_add(window.cwnd / 2);
        let target = self.curve(ahead, growth.mss).clamp(window.cwnd, most);
        // RFC 9438 §4.4 and §4.5: (target - cwnd) / cwnd for each byte acknowledged.
        let gain = u64::from(target - window.cwnd) * u64::from(growth.acked);
        let cwnd = window.cwnd;
        add_parts(&mut window.cwnd, &mut self.cwnd_part, gain, cwnd);
    }

    fn reduce(&mut self, window: &Window, _flight: u32, mss: u32) -> u32 {
        // RFC 9438 §4.7, fast convergence: who loses below its last plateau makes room.
        let cwnd = u64::from(window.cwnd);
        self.w_max = if window.cwnd < self.w_max { cwnd * 17 / 20 } else { cwnd } as u32;
        self.w_est = 0;
        // RFC 9438 §4.6. The window, not the flight: it does not grow while it is not filled.
        ((cwnd * 7 / 10) as u32).max(2 * mss)
    }

    fn undo(&mut self, cwnd: u32) {
        // RFC 9438 §4.9.1 restores W_max too; the window of before is as good a plateau.
        self.w_max = self.w_max.max(cwnd);
        self.w_est = 0;
    }

    fn pause(&mut self) {
        self.w_est = 0;
    }
}

/// Adds `gain / over` bytes to `whole` and its 65536ths.
fn add_parts(whole: &mut u32, part: &mut u16, gain: u64, over: u32) {
    // `gain` is below 2^30 * 2^30 and more than 2^47 only where the ACK covers a whole huge window.
    let over = u64::from(over.max(1));
    let parts = match gain.checked_shl(16).filter(|_| gain < 1 << 47) {
        Some(scaled) => scaled / over,
        None => (gain / over) << 16,
    };
    let sum = (u64::from(*whole) << 16 | u64::from(*part)).saturating_add(parts);
    let most = u64::from(CWND_MAX) << 16;
    let sum = sum.min(most);
    *whole = (sum >> 16) as u32;
    *part = sum as u16;
}

/// How long the curve takes for `bytes` at the plateau, in milliseconds (RFC 9438 equation 2).
fn distance_ms(bytes: u32, mss: u32) -> u32 {
    // K = cbrt(segments / 0.4) seconds, in ms: cbrt(segments * 2.5e9).
    cube_root(u64::from(bytes) * 2_500_000_000 / u64::from(mss.max(1)))
}

/// The integer cube root.
fn cube_root(of: u64) -> u32 {
    let mut root: u64 = 0;
    for bit in (0..22).rev() {
        let candidate = root | 1 << bit;
        if candidate * candidate * candidate <= of {
            root = candidate;
        }
    }
    root as u32
}
