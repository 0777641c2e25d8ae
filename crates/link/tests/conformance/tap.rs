//! `tap` and `tun`, the kernel at the other end.

use std::time::{Duration, Instant};

use megapipe_link::conformance::{self, FarEnd, Opened, TestedLink};
use megapipe_link::tap::{self, TapConfig};
use megapipe_link::{Link, LinkError, LinkMedium, LinkSpec, TxMetadata};

use crate::counting::allocations;
use crate::wire::{Wire, enter_own_namespace, ip, until_active};

struct Device(TapConfig);

impl TestedLink for Device {
    fn open(&self) -> Result<Opened, String> {
        let mut queues = open_free(&self.0).map_err(|error| error.to_string())?;
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

/// Opens a device that only a child of another test may still hold: it has a copy of the
/// descriptor until it has become another program.
fn open_free(config: &TapConfig) -> Result<Vec<tap::Tap>, LinkError> {
    let start = Instant::now();
    loop {
        match tap::open(config) {
            Err(LinkError::Unavailable { why, .. })
                if why.contains("is held by") && start.elapsed() < Duration::from_secs(10) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
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
    check("tap::tap_with_offloads", TapConfig::new("mp-tap", LinkMedium::Ethernet));
}

#[test]
fn tap_plain() {
    let config = TapConfig::new("mp-tap", LinkMedium::Ethernet);
    check("tap::tap_plain", TapConfig { offloads: false, mtu: Some(9_000), ..config });
}

#[test]
fn tun_with_offloads() {
    check("tap::tun_with_offloads", TapConfig::new("mp-tun", LinkMedium::Ip));
}

#[test]
fn queues_are_links_of_one_device_and_mistakes_are_named() {
    const NAME: &str = "tap::queues_are_links_of_one_device_and_mistakes_are_named";
    if let Err(why) = enter_own_namespace() {
        return println!("skipped: {NAME}: {why}");
    }
    let config = TapConfig::new("mp-tap", LinkMedium::Ethernet);
    let several = TapConfig { queues: 3, mtu: Some(1_300), ..config.clone() };
    let mut queues = match open_free(&several) {
        Err(error @ LinkError::Unavailable { .. }) => {
            return println!("skipped: {NAME}: {error}");
        }
        other => other.expect("a device"),
    };
    until_active("mp-tap").expect("up");
    assert_eq!(queues.len(), 3);
    assert!(queues.iter().all(|queue| queue.caps() == queues[0].caps()));
    assert_eq!(queues[0].caps().mtu, 1_300);

    // What each queue sends arrives at the one interface.
    let mut wire = Wire::open("mp-tap", "link del mp-tap").expect("a socket");
    for (number, queue) in (0..).zip(&mut queues) {
        let sent = queue.tx_burst(1, &mut |room| {
            room[..60].fill(number);
            Some(TxMetadata { len: 60, ..TxMetadata::default() })
        });
        assert_eq!(sent.expect("sent"), 1);
        let deadline = Instant::now() + Duration::from_secs(5);
        assert_eq!(wire.capture(deadline).expect("a frame"), [number; 60]);
    }

    let again = tap::open(&TapConfig { queues: 1, medium: LinkMedium::Ip, ..config.clone() });
    let Err(LinkError::Setting { setting: "interface", why }) = again else { panic!("{again:?}") };
    assert_eq!(why, "\"mp-tap\" exists and is no tun device of this kind");
    drop(queues);
    let alone = open_free(&config).expect("the device went with its queues");
    let busy = tap::open(&config);
    assert!(matches!(busy, Err(LinkError::InUse { .. })), "{busy:?}");
    drop(alone);
    for (config, name) in [
        (TapConfig { queues: 0, ..config.clone() }, "queues"),
        (TapConfig { name: "a/b".to_owned(), ..config.clone() }, "interface"),
    ] {
        let refused = tap::open(&config);
        let Err(LinkError::Setting { setting, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(setting, name);
    }
}

#[test]
fn tap_that_was_made_gives_notice() {
    const NAME: &str = "tap::tap_that_was_made_gives_notice";
    if let Err(why) = enter_own_namespace() {
        return println!("skipped: {NAME}: {why}");
    }
    let spec: LinkSpec = "tap:mp-tap".parse().expect("a description");
    let mut notices = Vec::new();
    let mut open = || megapipe_link::open(&spec, &mut |text| notices.push(text.to_owned()));
    match open() {
        Err(error @ LinkError::Unavailable { .. }) => {
            return println!("skipped: {NAME}: {error}");
        }
        // Gone with its link.
        made => drop(made.expect("a device")),
    }
    ip("tuntap add dev mp-tap mode tap vnet_hdr").expect("a device that stays");
    drop(open().expect("the device is there"));
    assert!(notices.len() == 1 && notices[0].contains("mp-tap did not exist"), "{notices:?}");
    assert!(notices[0].contains("ip address add"), "{notices:?}");
}
