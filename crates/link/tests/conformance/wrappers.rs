//! A wrapper around a link is a link.

use std::time::{Duration, Instant};

use megapipe_link::capture::Capture;
use megapipe_link::conformance::{self, Opened, OtherEnd, TestedLink};
use megapipe_link::fault::Faults;
use megapipe_link::pace::Rate;
use megapipe_link::{Fault, Link, Pace, PairConfig, Pcap, pair};

use crate::counting::allocations;

type Wrap = fn(Box<dyn Link>) -> Box<dyn Link>;

/// The wrapper, and whether a full link below makes it full.
struct Wrapped(Wrap, bool);

impl TestedLink for Wrapped {
    fn open(&self) -> Result<Opened, String> {
        let config = PairConfig { frames: 64, ..PairConfig::default() };
        let (here, there) = pair(&config).map_err(|error| error.to_string())?;
        Ok(((self.0)(Box::new(here)), Box::new(OtherEnd(there))))
    }

    fn fills(&self) -> bool {
        self.1
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

fn check(wrap: Wrap) {
    check_with(Wrapped(wrap, true));
}

fn check_with(wrapped: Wrapped) {
    conformance::all(&wrapped).expect("needs nothing but memory");
}

#[test]
fn pcap() {
    check(|link| {
        let capture = Capture::new(Box::new(std::io::sink())).expect("a sink takes all");
        Box::new(Pcap::new(link, capture))
    });
}

#[test]
fn fault_without_faults() {
    let wrap: Wrap = |link| {
        let start = Instant::now();
        let clock = Box::new(move || start.elapsed());
        Box::new(Fault::new(link, 1, Faults::default(), Faults::default(), clock))
    };
    // It keeps what the link below has no room for, and passes it on when it is called.
    check_with(Wrapped(wrap, false));
}

#[test]
fn fault_that_delays() {
    let wrap: Wrap = |link| {
        let late = Faults { delay: Duration::from_micros(300), ..Faults::default() };
        // Only what comes: what is sent late goes when the link is called again, and the suite
        // looks for it without that.
        Box::new(Fault::in_real_time(link, 1, late, Faults::default()).expect("descriptors"))
    };
    check_with(Wrapped(wrap, false));
}

#[test]
fn pace_that_is_fast_enough() {
    check(|link| {
        let start = Instant::now();
        let rate = Rate { bytes_per_second: 100_000_000_000, burst_bytes: 1 << 30 };
        Box::new(Pace::new(link, rate, Box::new(move || start.elapsed())).expect("a rate"))
    });
}
