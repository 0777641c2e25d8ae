//! A wrapper around a link is a link.

use megapipe_link::capture::Capture;
use megapipe_link::conformance::{self, Bench, Opened, OtherEnd};
use megapipe_link::{Link, PairConfig, Pcap, pair};

use crate::counting::allocations;

type Wrap = fn(Box<dyn Link>) -> Box<dyn Link>;

struct Wrapped(Wrap);

impl Bench for Wrapped {
    fn open(&self) -> Result<Opened, String> {
        let config = PairConfig { frames: 64, ..PairConfig::default() };
        let (here, there) = pair(&config).map_err(|error| error.to_string())?;
        Ok(((self.0)(Box::new(here)), Box::new(OtherEnd(there))))
    }

    fn fills(&self) -> bool {
        true
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

fn check(wrap: Wrap) {
    conformance::all(&Wrapped(wrap)).expect("needs nothing but memory");
}

#[test]
fn pcap() {
    check(|link| {
        let capture = Capture::new(Box::new(std::io::sink())).expect("a sink takes all");
        Box::new(Pcap::new(link, capture))
    });
}
