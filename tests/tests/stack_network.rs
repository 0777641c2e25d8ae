//! The network of our own stack against Linux: a TAP device whose other end is in a namespace,
//! where ping and bash talk to it; tshark judges every frame.
//!
//! Needs root, `ip`, `ping` and `bash`; says so and passes where they are missing.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use megapipe_link::capture::{Capture, Pcap};
use megapipe_link::tap::{self, Tap, TapConfig};
use megapipe_link::{Link, LinkMedium, RxChecksum, TxMetadata};
use megapipe_stack as stack;
use stack::{Config, Event, HeapMemory, Memory, PoolId, Stack};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const THEIRS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
const PATIENCE: Duration = Duration::from_secs(10);

/// A namespace that goes with the value.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Self, String> {
        let name = format!("mp-ip-{}", std::process::id());
        ip(&["netns", "add", &name])?;
        Ok(Self(name))
    }

    /// A program in the namespace.
    fn start(&self, program: &[&str]) -> Result<Child, String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| error.to_string())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip is not installed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments:?}: {said}")) }
}

/// Our stack on a TAP device, whose frames are captured.
struct Host {
    link: Pcap<Tap>,
    stack: Stack,
    memory: HeapMemory,
    start: Instant,
    events: Vec<Event>,
    capture: Capture,
    file: PathBuf,
    namespace: Namespace,
}

impl Host {
    fn new(test: &str, offloads: bool) -> Result<Self, String> {
        let namespace = Namespace::new()?;
        let name = format!("mpip{}", std::process::id());
        let config = TapConfig { offloads, ..TapConfig::new(&name, LinkMedium::Ethernet) };
        let tap = tap::open(&config).map_err(|error| error.to_string())?.pop().expect("a queue");
        let inside = namespace.0.clone();
        ip(&["link", "set", "dev", &name, "netns", &inside])?;
        ip(&["-n", &inside, "addr", "add", &format!("{THEIRS}/24"), "dev", &name])?;
        ip(&["-n", &inside, "addr", "add", &format!("{THEIRS6}/64"), "dev", &name, "nodad"])?;
        ip(&["-n", &inside, "link", "set", "dev", &name, "up"])?;

        let file = std::env::temp_dir().join(format!("mp-ip-{test}-{}.pcapng", std::process::id()));
        let capture = Capture::create(&file).map_err(|error| error.to_string())?;
        let link = Pcap::new(tap, capture.clone());
        let caps = link.caps();
        let mut config = Config::single(OURS, 24, [7; 32]);
        config.medium = stack::Medium::Ethernet(caps.mac);
        config.addresses.push((IpAddr::V6(OURS6), 64));
        config.mtu = u16::try_from(caps.mtu).expect("an MTU");
        config.tx_frame_bytes = u32::try_from(caps.tx_frame_bytes).expect("a length");
        config.tx_checksum = caps.tx_checksum;
        config.tso = caps.tso;
        let stack = Stack::new(config, stack::Instant::ZERO).map_err(|error| error.to_string())?;
        let memory = HeapMemory::new(64, 16 << 10);
        let events = Vec::new();
        Ok(Self { link, stack, memory, start: Instant::now(), events, capture, file, namespace })
    }

    /// One turn: frames in, time, frames out, events.
    fn turn(&mut self) {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).expect("a short test");
        let now = stack::Instant::from_nanos(nanos);
        let Self { link, stack, memory, events, .. } = self;
        link.rx_burst(64, &mut |frame, received| {
            let checksums = match received.checksums {
                RxChecksum::Verified => stack::Checksums::Verified,
                RxChecksum::Unverified => stack::Checksums::Unverified,
            };
            let segment_bytes = received.segment_bytes;
            let received = stack::Received { checksums, segment_bytes };
            stack.on_frame(now, frame, received, memory);
        })
        .expect("the link stands");
        stack.on_timeout(now, memory);
        events.extend(std::iter::from_fn(|| stack.poll_event()));
        link.tx_burst(64, &mut |room| {
            let sent = stack.poll_transmit(now, room, memory)?;
            Some(TxMetadata {
                len: sent.frame_bytes(),
                checksum_start: sent.checksum_start(),
                checksum_field: sent.checksum_field().into(),
                segment_bytes: sent.segment_bytes(),
                header_bytes: sent.header_bytes(),
            })
        })
        .expect("the link stands");
        let _ = link.wait(Some(Duration::from_millis(2)));
    }

    /// Runs a program in the namespace while our stack works: whether it succeeded, and its output.
    fn run(&mut self, program: &[&str]) -> (bool, String) {
        let mut child = self.namespace.start(program).expect("it was started before");
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().expect("a child").is_none() {
            self.turn();
            if Instant::now() > deadline {
                child.kill().expect("a child");
                panic!("{program:?} does not end");
            }
        }
        let output = child.wait_with_output().expect("a child");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn until(&mut self, mut is: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is(self) {
            assert!(Instant::now() < deadline, "it does not happen: {:?}", self.stack.counters());
            self.turn();
        }
    }

    fn datagram(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let at = self.events.iter().position(|event| matches!(event, Event::Datagram { .. }))?;
        let Event::Datagram { from, chunk, .. } = self.events.remove(at) else { return None };
        let bytes = self.memory.bytes(chunk).to_vec();
        self.memory.free(chunk.buf);
        Some((from, bytes))
    }

    /// What tshark finds wrong with what we sent. `None`: there is no tshark.
    fn verdict(&self) -> Option<String> {
        self.capture.flush();
        // A quoted datagram has the checksum that it had in memory: with offloads, half of one.
        let filter = "_ws.malformed || ip.checksum.status == 0 \
                      || icmp.checksum.status == 0 || icmpv6.checksum.status == 0 \
                      || (_ws.expert.severity == error && !icmp && !icmpv6)";
        let mut tshark = Command::new("tshark");
        for option in ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE"] {
            tshark.args(["-o", option]);
        }
        let output = tshark.arg("-r").arg(&self.file).args(["-Y", filter]).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// All of it, with and without the device's offloads.
fn talk(host: &mut Host) {
    let (ours, ours6) = (OURS.to_string(), OURS6.to_string());
    for target in [&ours, &ours6] {
        for size in ["0", "56", "1400"] {
            // Without a deadline ping waits for the last answer no longer than the others took.
            let ping = ["ping", "-n", "-c", "3", "-i", "0.01", "-w", "20", "-s", size, target];
            let (done, said) = host.run(&ping);
            let is_answered = |number| said.contains(&format!("icmp_seq={number} ttl="));
            assert!(done && (1..=3).all(is_answered), "{said}");
        }
    }
    let (_, neighbours) = host.run(&["ip", "neigh"]);
    assert!(neighbours.lines().filter(|line| line.contains("lladdr")).count() >= 2, "{neighbours}");

    // A datagram that fits, and one that the kernel cuts into fragments.
    for ip in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
        host.stack.bind_datagram(SocketAddr::new(ip, 40400), PoolId(0)).expect("a free port");
    }
    for target in [&ours, &ours6] {
        for len in [1, 1000, 4000] {
            let send = format!("head -c {len} /dev/zero > /dev/udp/{target}/40400");
            let (done, said) = host.run(&["bash", "-c", &send]);
            assert!(done, "{said}");
            host.until(|host| match host.datagram() {
                Some((from, bytes)) => {
                    assert_eq!((from.ip().is_ipv6(), bytes.len()), (target.contains(':'), len));
                    true
                }
                None => false,
            });
        }
    }
    assert_eq!(host.stack.counters().totals.packets_reassembled, 2);

    // A closed port of ours, as the kernel tells its program.
    for target in [&ours, &ours6] {
        let twice = format!("exec 3<>/dev/udp/{target}/9; echo x >&3; sleep 0.3; echo y >&3");
        let (done, said) = host.run(&["bash", "-c", &twice]);
        assert!(!done && said.contains("refused"), "{said}");
    }
    // A closed port of the kernel's, as it tells us.
    for (local, to) in [
        (IpAddr::V4(OURS), SocketAddr::new(THEIRS.into(), 9)),
        (IpAddr::V6(OURS6), SocketAddr::new(THEIRS6.into(), 9)),
    ] {
        let id = host.stack.bind_datagram(SocketAddr::new(local, 0), PoolId(0)).expect("a port");
        let chunk = host.memory.chunk_of(b"anybody there?").expect("a buffer");
        let now = stack::Instant::ZERO;
        host.stack.send_datagram(now, id, (to, chunk), &mut host.memory).expect("a way there");
        let why = stack::Undelivered::PortUnreachable;
        let refused = Event::DatagramRefused { endpoint: id, to, why };
        host.until(|host| host.events.contains(&refused));
    }
    assert_eq!(host.memory.in_use(), 0);
}

fn check(test: &str, offloads: bool) {
    for program in ["ping", "bash"] {
        if Command::new(program).arg("-h").output().is_err() {
            return println!("skipped: {test}: {program} is not installed");
        }
    }
    let mut host = match Host::new(test, offloads) {
        Ok(host) => host,
        Err(why) => return println!("skipped: {test}: {why}"),
    };
    talk(&mut host);
    match host.verdict() {
        Some(findings) => assert_eq!(findings, "", "tshark"),
        None => println!("skipped: {test}: tshark is not installed"),
    }
}

#[test]
fn linux_talks_to_us_and_we_to_it() {
    check("linux_talks_to_us_and_we_to_it", false);
    check("linux_talks_to_us_and_we_to_it", true);
}
