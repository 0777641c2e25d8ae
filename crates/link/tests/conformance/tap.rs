//! `tap` and `tun`, the kernel at the other end.

use megapipe_link::conformance::{self, Bench, Opened};
use megapipe_link::tap::{self, TapConfig};
use megapipe_link::{Link, Medium};

use crate::counting::allocations;
use crate::wire::{Wire, enter_own_namespace, until_active};

struct Device(TapConfig);

impl Bench for Device {
    fn open(&self) -> Result<Opened, String> {
        let mut queues = tap::open(&self.0).map_err(|error| error.to_string())?;
        let link = queues.pop().expect("a queue");
        until_active(&self.0.name)?;
        let wire = Wire::open(&self.0.name, &format!("link del {}", self.0.name))?;
        assert_eq!(link.caps().tso, self.0.offloads, "{:?}", link.caps().notes);
        Ok((Box::new(link), Box::new(wire)))
    }

    fn fills(&self) -> bool {
        false
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

fn check(test: &str, config: TapConfig) {
    let done = enter_own_namespace().and_then(|()| conformance::all(&Device(config)));
    if let Err(why) = done {
        println!("skipped: {test}: {why}");
    }
}

#[test]
fn tap_with_offloads() {
    check("tap::tap_with_offloads", TapConfig::new("mp-tap", Medium::Ethernet));
}

#[test]
fn tap_plain() {
    let config = TapConfig::new("mp-tap", Medium::Ethernet);
    check("tap::tap_plain", TapConfig { offloads: false, mtu: Some(9_000), ..config });
}

#[test]
fn tun_with_offloads() {
    check("tap::tun_with_offloads", TapConfig::new("mp-tun", Medium::Ip));
}
