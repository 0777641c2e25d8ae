//! Both algorithms against the RFCs' own formulas.

use super::*;

const MSS: u32 = 1460;

fn growth(acked: u32, now_ms: u32) -> Growth {
    Growth { acked, mss: MSS, now_ms, srtt_us: 0, after_timeout: false, limited: true }
}

/// An algorithm that has seen one reduction from `segments` segments.
fn reduced(kind: Kind, segments: u32) -> (Algorithm, Window) {
    let mut algorithm = Algorithm::new();
    let mut window = Window { cwnd: segments * MSS, ssthresh: u32::MAX };
    window.ssthresh = algorithm.reduce(kind, &window, window.cwnd, MSS);
    window.cwnd = window.ssthresh;
    (algorithm, window)
}

#[test]
fn rfc5681_3_1_slow_start_grows_by_what_is_acknowledged() {
    let mut algorithm = Algorithm::new();
    let mut window = Window { cwnd: 10 * MSS, ssthresh: u32::MAX };
    for _ in 0..5 {
        algorithm.grow(Kind::NewReno, &mut window, &growth(2 * MSS, 0));
    }
    assert_eq!(window.cwnd, 20 * MSS);
}

#[test]
fn rfc3465_divided_acknowledgments_grow_no_more_than_whole_ones() {
    for kind in [Kind::NewReno, Kind::Cubic] {
        let mut grown = [0; 2];
        for (pieces, grown) in [1, 20].into_iter().zip(&mut grown) {
            let (mut algorithm, mut window) = reduced(kind, 40);
            for _ in 0..28 * pieces {
                algorithm.grow(kind, &mut window, &growth(MSS / pieces, 0));
            }
            *grown = window.cwnd;
        }
        assert!(grown[0].abs_diff(grown[1]) <= 1, "{kind:?}: {grown:?}");
    }
}

#[test]
fn without_a_limit_an_acknowledgment_counts_in_full() {
    let mut algorithm = Algorithm::new();
    let mut window = Window { cwnd: 10 * MSS, ssthresh: u32::MAX };
    let growth = Growth { limited: false, ..growth(10 * MSS, 0) };
    algorithm.grow(Kind::Cubic, &mut window, &growth);
    assert_eq!(window.cwnd, 20 * MSS);
}

#[test]
fn rfc3465_2_3_one_segment_per_acknowledgment_after_a_timeout() {
    let (mut algorithm, mut window) = reduced(Kind::NewReno, 40);
    window.cwnd = MSS;
    let careful = Growth { after_timeout: true, ..growth(10 * MSS, 0) };
    algorithm.grow(Kind::NewReno, &mut window, &careful);
    assert_eq!(window.cwnd, 2 * MSS);
    algorithm.grow(Kind::NewReno, &mut window, &growth(10 * MSS, 0));
    assert_eq!(window.cwnd, 4 * MSS);
}

#[test]
fn rfc5681_3_1_avoidance_adds_one_segment_per_window() {
    let (mut algorithm, mut window) = reduced(Kind::NewReno, 40);
    assert_eq!(window.ssthresh, 20 * MSS);
    for windows in 1..=5 {
        let acks = window.cwnd / MSS;
        for _ in 0..acks {
            algorithm.grow(Kind::NewReno, &mut window, &growth(MSS, 0));
        }
        assert_eq!(window.cwnd, (20 + windows) * MSS);
    }
}

#[test]
fn rfc5681_equation_4_the_threshold_is_at_least_two_segments() {
    for kind in [Kind::NewReno, Kind::Cubic] {
        let (_, window) = reduced(kind, 1);
        assert_eq!(window.ssthresh, 2 * MSS);
    }
}

/// RFC 9438 §4.2 to §4.5 in floating point, in segments and seconds.
struct Reference {
    w_max: f64,
    cwnd: f64,
    epoch: f64,
    cwnd_prior: f64,
    cwnd_epoch: f64,
    w_est: f64,
}

impl Reference {
    fn reduced(cwnd: f64) -> Self {
        let after = cwnd * 0.7;
        let w_max = cwnd;
        Self { w_max, cwnd: after, epoch: 0.0, cwnd_prior: cwnd, cwnd_epoch: after, w_est: after }
    }

    fn curve(&self, t: f64) -> f64 {
        let k = ((self.w_max - self.cwnd_epoch) / 0.4).cbrt();
        0.4 * (t - k).powi(3) + self.w_max
    }

    fn on_ack(&mut self, segments: f64, now: f64, rtt: f64) {
        let t = now - self.epoch;
        let alpha = if self.w_est >= self.cwnd_prior { 1.0 } else { 3.0 * 0.3 / 1.7 };
        self.w_est += alpha * segments / self.cwnd;
        if self.curve(t) < self.w_est {
            self.cwnd = self.cwnd.max(self.w_est);
        } else {
            let target = self.curve(t + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd * segments;
        }
    }
}

#[test]
fn rfc9438_4_the_curve_is_the_formulas() {
    for (segments, rtt_ms) in [(20, 10), (100, 20), (1000, 100), (5000, 50), (20_000, 200)] {
        let (mut algorithm, mut window) = reduced(Kind::Cubic, segments);
        let mut reference = Reference::reduced(f64::from(segments));
        let mut now_ms = 0;
        while now_ms < 40_000 {
            // One round trip: a window is acknowledged, two segments at a time.
            let acks = window.cwnd / MSS / 2;
            for ack in 0..acks {
                let at = now_ms + rtt_ms * ack / acks;
                let input = Growth { srtt_us: rtt_ms * 1000, ..growth(2 * MSS, at) };
                algorithm.grow(Kind::Cubic, &mut window, &input);
                reference.on_ack(2.0, f64::from(at) / 1e3, f64::from(rtt_ms) / 1e3);
            }
            now_ms += rtt_ms;
            let ours = f64::from(window.cwnd) / f64::from(MSS);
            let off = (ours - reference.cwnd).abs() / reference.cwnd;
            assert!(off < 0.01, "{segments} segments, {now_ms} ms: {ours}, not {}", reference.cwnd);
        }
    }
}

#[test]
fn rfc9438_4_7_who_loses_below_the_last_plateau_makes_room() {
    let (mut algorithm, mut window) = reduced(Kind::Cubic, 1000);
    // Lost again at 800 segments, below the 1000 of before: the plateau is 680, not 800.
    window.cwnd = 800 * MSS;
    window.ssthresh = algorithm.reduce(Kind::Cubic, &window, window.cwnd, MSS);
    window.cwnd = window.ssthresh;
    let mut at_ms = 0;
    for _ in 0..200 {
        for _ in 0..window.cwnd / MSS {
            let input = Growth { srtt_us: 20_000, ..growth(MSS, at_ms) };
            algorithm.grow(Kind::Cubic, &mut window, &input);
        }
        at_ms += 20;
    }
    // K is 6.7 s for a plateau of 680: after four seconds it is nearly there, and not beyond.
    let segments = window.cwnd / MSS;
    assert!((670..=690).contains(&segments), "{segments}");
}

#[test]
fn rfc9438_5_8_time_without_data_is_not_on_the_curve() {
    let (mut algorithm, mut window) = reduced(Kind::Cubic, 1000);
    let step = |algorithm: &mut Algorithm, window: &mut Window, at_ms: u32| {
        let input = Growth { srtt_us: 20_000, ..growth(window.cwnd, at_ms) };
        algorithm.grow(Kind::Cubic, window, &input);
    };
    for round in 0..50 {
        step(&mut algorithm, &mut window, round * 20);
    }
    let (mut paused, mut paused_window) = (algorithm, window);
    paused.pause();
    for round in 0..50 {
        step(&mut algorithm, &mut window, 1_000 + round * 20);
        step(&mut paused, &mut paused_window, 500_000 + round * 20);
    }
    let off = window.cwnd.abs_diff(paused_window.cwnd);
    assert!(off < window.cwnd / 100, "{} and {}", window.cwnd, paused_window.cwnd);
}

#[test]
fn rfc9438_4_9_1_a_needless_reduction_leaves_no_trace_in_the_plateau() {
    let (mut algorithm, mut window) = reduced(Kind::Cubic, 100);
    window.cwnd = 100 * MSS;
    algorithm.undo(Kind::Cubic, window.cwnd);
    window.ssthresh = 50 * MSS;
    algorithm.grow(Kind::Cubic, &mut window, &growth(2 * MSS, 10));
    assert!(window.cwnd >= 100 * MSS && window.cwnd < 101 * MSS);
}

#[test]
fn the_window_has_an_end() {
    for kind in [Kind::NewReno, Kind::Cubic] {
        let (mut algorithm, mut window) = reduced(kind, 40);
        window.cwnd = CWND_MAX - 1;
        for at_ms in 0..100 {
            algorithm.grow(kind, &mut window, &growth(CWND_MAX, at_ms * 10_000_000));
        }
        assert!(window.cwnd <= CWND_MAX);
    }
}

#[test]
fn rfc9406_4_2_slow_start_ends_after_five_rounds_of_longer_delay() {
    let mut algorithm = Algorithm::new();
    let mut window = Window { cwnd: 10 * MSS, ssthresh: u32::MAX };
    let mut round = |window: &mut Window, rtt_us: u32| {
        let before = window.cwnd;
        for _ in 0..40 {
            algorithm.on_rtt(rtt_us);
            algorithm.grow(Kind::Cubic, window, &growth(before / 40, 0));
        }
        algorithm.on_round(Kind::Cubic, window);
        f64::from(window.cwnd) / f64::from(before)
    };
    assert!((round(&mut window, 20_000) - 2.0).abs() < 0.01);
    assert!((round(&mut window, 23_900) - 2.0).abs() < 0.01, "less than 4 ms is noise");
    // Eight samples into this round the delay is known to have grown: a quarter from then on.
    assert!(round(&mut window, 28_000) < 1.45);
    for _ in 0..3 {
        assert!((round(&mut window, 28_000) - 1.25).abs() < 0.01);
        assert_eq!(window.ssthresh, u32::MAX);
    }
    round(&mut window, 28_000);
    assert_eq!(window.ssthresh, window.cwnd, "five rounds, the one that began it included");
}

#[test]
fn rfc9406_4_2_slow_start_goes_on_when_the_delay_passes() {
    let mut start = HyStart::new();
    let round = |start: &mut HyStart, rtt_us: u32| {
        (0..10).for_each(|_| start.on_rtt(rtt_us));
        start.on_round()
    };
    round(&mut start, 20_000);
    round(&mut start, 30_000);
    assert_eq!(start.paced(4_000), 1_000);
    round(&mut start, 20_000);
    assert_eq!(start.paced(4_000), 4_000);
}
