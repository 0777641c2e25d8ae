//! Opens links from a description: selects the driver.

use std::time::Duration;

use crate::fault::Faults;
use crate::limits::{FAULT_REORDERING_DELAY_US, OPEN_SPARE_BYTES};
use crate::spec::{FaultSpec, MemifSpec, XdpSpec};
use crate::tap::{self, Tap, TapConfig};
use crate::xdp::{self, SocketMap, XdpConfig};
use crate::{Fault, Link, LinkError, LinkSpec, MacAddress, PairConfig, memif, packet, pair};

/// Opens what `spec` describes: one link for each queue. A pair gives its two ends.
///
/// A memif waits for its peer, unless its description says `wait=0`. A link that shares the host's
/// address starts with nothing of its own: see [`Link::set_ownership`].
///
/// `notice` receives lines for a person: what is waited for, if that takes a second, and what the
/// other end of a new device lacks, each with what to do about it.
///
/// # Errors
/// What the driver says, as a [`LinkError`].
pub fn open(
    spec: &LinkSpec,
    notice: &mut dyn FnMut(&str),
) -> Result<Vec<Box<dyn Link>>, LinkError> {
    // The small allocations of a driver end the process where there is no memory.
    let spare = Vec::<u8>::new().try_reserve_exact(OPEN_SPARE_BYTES);
    spare.map_err(|_| LinkError::Io {
        what: "memory for the link",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    match spec {
        LinkSpec::Pair => {
            let (here, there) = pair(&PairConfig::default())?;
            Ok(boxed([here, there]))
        }
        LinkSpec::Tap(config) => open_tap(config, notice).map(boxed),
        LinkSpec::Packet(config) => packet::open(config).map(|link| boxed([link])),
        LinkSpec::Xdp(spec) => xdp::open(&xdp_config(spec)).map(boxed),
        LinkSpec::Memif(spec) => open_memif(spec, notice).map(boxed),
        LinkSpec::Faulty(spec, faults) => faulty(open(spec, notice)?, faults),
    }
}

fn boxed<L: Link + 'static>(links: impl IntoIterator<Item = L>) -> Vec<Box<dyn Link>> {
    links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect()
}

fn xdp_config(spec: &XdpSpec) -> XdpConfig {
    let socket_map = spec.xskmap.clone().map_or(SocketMap::Own, SocketMap::Pinned);
    XdpConfig {
        queues: spec.queues,
        mode: spec.mode,
        zero_copy: spec.zero_copy,
        socket_map,
        ..XdpConfig::new(&spec.interface)
    }
}

/// The same faults in both directions, and for each queue a chance of its own.
fn faulty(links: Vec<Box<dyn Link>>, spec: &FaultSpec) -> Result<Vec<Box<dyn Link>>, LinkError> {
    let faults = Faults {
        loss_ppm: spec.loss_ppm,
        duplication_ppm: spec.duplication_ppm,
        reordering_ppm: spec.reordering_ppm,
        reordering_delay: Duration::from_micros(FAULT_REORDERING_DELAY_US),
        corruption_ppm: spec.corruption_ppm,
        ..Faults::default()
    };
    let seeds = (0..).map(|queue| spec.seed.wrapping_add(queue));
    let wrap = |(link, seed)| {
        let link = Fault::in_real_time(link, seed, faults, faults)?;
        Ok(Box::new(link) as Box<dyn Link>)
    };
    links.into_iter().zip(seeds).map(wrap).collect()
}

/// A device that did not exist has no address at the kernel's end: nothing arrives until it has.
fn open_tap(config: &TapConfig, notice: &mut dyn FnMut(&str)) -> Result<Vec<Tap>, LinkError> {
    let existed = tap::exists(config);
    let links = tap::open(config)?;
    if !existed {
        let name = &config.name;
        notice(&format!(
            "{name} did not exist: it was made, and goes with this program. Its kernel's end has \
             no address, so nothing arrives: give it one by `ip address add ADDRESS/BITS dev \
             {name}`, or make {name} first (`ip tuntap add`)"
        ));
    }
    Ok(links)
}

fn open_memif(
    spec: &MemifSpec,
    notice: &mut dyn FnMut(&str),
) -> Result<Vec<memif::Memif>, LinkError> {
    let role = if spec.is_server { memif::MemifRole::Server } else { memif::MemifRole::Client };
    let mut settings =
        memif::MemifSettings::new(&spec.socket, spec.mac.unwrap_or_else(|| memif_mac(spec)));
    settings.id = spec.id;
    settings.secret.clone_from(&spec.secret);
    settings.mtu = spec.mtu;
    settings.queue_count = spec.queues;
    // A power of two of at most 2^14: the description was checked.
    settings.ring_size_log2 = spec.ring_slots.ilog2() as u8;
    settings.buffer_bytes = spec.buffer_bytes;
    let timeout = Duration::from_secs(spec.wait_s.into());
    let path = spec.socket.display();
    memif::open(role, &settings, timeout, &mut |why| {
        let (waits_for, remedy) = match role {
            memif::MemifRole::Server => ("a client", format!("start one with --link memif:{path}")),
            memif::MemifRole::Client => {
                ("the server", format!("start one with --link memif:{path},role=server"))
            }
        };
        let fate = match timeout.as_secs() {
            0 => "until then the link has no carrier".to_owned(),
            seconds => format!("waiting for {waits_for}, at most {seconds} s"),
        };
        notice(&format!("memif:{path}: {why}; {fate}: {remedy}"));
    })
}

/// An address of our own choice (the second lowest bit says so) that differs between the two ends
/// and between the interfaces of one socket.
fn memif_mac(spec: &MemifSpec) -> MacAddress {
    let [a, b, c, d] = spec.id.to_be_bytes();
    [2, u8::from(spec.is_server), a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TxMetadata;

    fn opened(spec: &LinkSpec) -> Result<Vec<Box<dyn Link>>, LinkError> {
        open(spec, &mut |_| ())
    }

    #[test]
    fn a_pair_has_two_ends() {
        let mut links = opened(&"pair".parse().expect("a description")).expect("memory");
        let [here, there] = links.as_mut_slice() else { panic!("two ends") };
        let plain = TxMetadata { len: 60, ..TxMetadata::default() };
        here.tx_burst(1, &mut |_| Some(plain)).expect("sent");
        assert_eq!(there.rx_burst(9, &mut |_, _| ()).expect("received"), 1);
    }

    #[test]
    fn faults_meet_frames_of_both_directions() {
        let spec = "pair:loss=50%,seed=1".parse().expect("a description");
        let mut links = opened(&spec).expect("memory");
        let [here, there] = links.as_mut_slice() else { panic!("two ends") };
        let plain = TxMetadata { len: 60, ..TxMetadata::default() };
        // In turns, so that no ring is full: what is lost is lost to chance.
        let mut arrived = 0;
        for _ in 0..400 {
            here.tx_burst(1, &mut |_| Some(plain)).expect("sent");
            arrived += there.rx_burst(9, &mut |_, _| ()).expect("received");
        }
        // Half is lost by the sender's wrapper and half of the rest by the receiver's.
        assert!((60..140).contains(&arrived), "{arrived} of 400");
    }

    #[test]
    fn a_memif_described_on_both_sides_is_one_link() {
        let name = format!("@megapipe-open-{}", std::process::id());
        let text = format!("memif:{name},id=7,queues=2,ring=64,mtu=900");
        let server: LinkSpec = format!("{text},role=server").parse().expect("a description");
        let serving = std::thread::spawn(move || opened(&server));
        let clients = opened(&text.parse().expect("a description")).expect("the server comes");
        let servers = serving.join().expect("no panic").expect("the client came");
        assert_eq!((clients.len(), servers.len()), (2, 2));
        let (client, server) = (clients[0].caps(), servers[0].caps());
        assert_eq!((client.mac, server.mac), ([2, 0, 0, 0, 0, 7], [2, 1, 0, 0, 0, 7]));
        assert_eq!(client.mtu, 900);
    }

    #[test]
    fn failed_open_names_the_reason() {
        let absent = "packet:mp-absent".parse().expect("a description");
        let Err(error) = opened(&absent) else { panic!("there is no such interface") };
        assert_eq!(error.to_string(), "interface: there is no interface \"mp-absent\"");
    }

    /// The peer connects only after the notice that it is missing.
    fn comes_when_told(late: &str, early: &str) {
        let spec = |text: &str| text.parse::<LinkSpec>().expect("a description");
        let (late, early) = (spec(late), spec(early));
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            open(&early, &mut |text| tell.send(text.to_owned()).expect("the test waits")).map(drop)
        });
        let text = told.recv_timeout(Duration::from_secs(20)).expect("a notice");
        assert!(text.contains("waiting for") && text.contains("--link memif:@mp-"), "{text}");
        // Kept until the other end has opened, too.
        let links = opened(&late).expect("the other end waits");
        waiting.join().expect("no panic").expect("the other end came");
        assert!(told.try_recv().is_err(), "one notice");
        drop(links);
    }

    #[test]
    fn memif_without_peer_gives_notice_and_goes_on() {
        let name = format!("@mp-open-notice-{}", std::process::id());
        let (server, client) = (format!("memif:{name},role=server"), format!("memif:{name}"));
        comes_when_told(&server, &client);
        comes_when_told(&client, &server);
    }
}
