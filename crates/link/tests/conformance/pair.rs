//! `pair`, with each medium, plain and with offloads.

use megapipe_link::conformance::{self, Opened, OtherEnd, TestedLink};
use megapipe_link::{LinkMedium, PairConfig, pair};

use crate::counting::allocations;

struct Memory(PairConfig);

impl TestedLink for Memory {
    fn open(&self) -> Result<Opened, String> {
        let (here, there) = pair(&self.0).map_err(|error| error.to_string())?;
        Ok((Box::new(here), Box::new(OtherEnd(there))))
    }

    fn fills(&self) -> bool {
        true
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

fn check(config: PairConfig) {
    conformance::all(&Memory(config)).expect("needs nothing but memory");
}

#[test]
fn pair_ethernet() {
    check(PairConfig::default());
}

#[test]
fn pair_ip() {
    check(PairConfig { medium: LinkMedium::Ip, frames: 64, ..PairConfig::default() });
}

#[test]
fn pair_with_offloads() {
    check(PairConfig { offloads: true, frames: 64, ..PairConfig::default() });
}
