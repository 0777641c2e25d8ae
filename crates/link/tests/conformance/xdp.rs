//! `xdp` over veth: the suite, and what sharing an address with the kernel promises.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe_link::conformance::{self, FarEnd, Opened, TestedLink};
use megapipe_link::spec::XdpMode;
use megapipe_link::xdp::{self, SocketMap, Xdp, XdpConfig};
use megapipe_link::{Link, LinkError, RxChecksum, RxMetadata, TxMetadata, set_transmit_checksums};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::counting::allocations;
use crate::hosts::{
    HERE, KERNELS, OURS, OURS_UDP, QUICK, at, is_silent, knock, sharing, with_two_hosts,
};
use crate::veth::{answer_to_datagram, ports, share_link_local, veth, whole_address};
use crate::wire::{Wire, enter_own_namespace, ip, until_active};

/// On a veth with this MTU.
struct Veth(XdpConfig, u32);

impl TestedLink for Veth {
    fn open(&self) -> Result<Opened, String> {
        veth()?;
        for interface in ["mp-near", "mp-far"] {
            ip(&format!("link set {interface} mtu {}", self.1))?;
        }
        let mut links = xdp::open(&self.0).map_err(|error| error.to_string())?;
        assert_eq!(links.len(), 1);
        let mut link = links.remove(0);
        link.set_ownership(&whole_address()).map_err(|error| error.to_string())?;
        let wire = Wire::open("mp-far", "link del mp-near")?;
        Ok((Box::new(link), Box::new(wire)))
    }

    fn fills(&self) -> bool {
        false
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

fn check(test: &str, config: XdpConfig, mtu: u32) {
    let done = enter_own_namespace().and_then(|()| conformance::all(&Veth(config, mtu)));
    if let Err(why) = done {
        println!("skipped: {test}: {why}");
    }
}

#[test]
fn xdp_in_the_driver() {
    let config = XdpConfig { mode: Some(XdpMode::Native), ..XdpConfig::new("mp-near") };
    check("xdp::xdp_in_the_driver", config, 1_500);
}

#[test]
fn xdp_in_the_general_path() {
    let config = XdpConfig {
        mode: Some(XdpMode::Generic),
        ring_size: 128,
        frame_bytes: 4_096,
        ..XdpConfig::new("mp-near")
    };
    check("xdp::xdp_in_the_general_path", config, 1_500);
}

#[test]
fn xdp_with_frames_of_several_buffers() {
    for (mode, ring_size) in [(XdpMode::Native, 128), (XdpMode::Generic, 2_048)] {
        let config = XdpConfig { mode: Some(mode), ring_size, ..XdpConfig::new("mp-near") };
        check("xdp::xdp_with_frames_of_several_buffers", config, 5_000);
    }
}

#[test]
fn xdp_that_makes_its_checksums() {
    let config = XdpConfig { checksums: false, ..XdpConfig::new("mp-near") };
    check("xdp::xdp_that_makes_its_checksums", config, 1_500);
}

/// A UDP packet to the far end, whose checksum field holds the pseudo header's part.
fn unsummed(payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16;
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2]);
    let halves = [0x0a63, 0x0001, 0x0a63, 0x0002, 17, u32::from(udp_len)];
    frame.extend([0x23, 0x28, 0x23, 0x29]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend(folded(halves.into_iter().sum()).to_be_bytes());
    frame.extend(payload);
    frame
}

/// A sum of halves in 16 bits (RFC 1071).
fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// Sends one frame and hands what the link counts as refused back.
fn send_unsummed(link: &mut Xdp, frame: &[u8]) -> u64 {
    let mut is_filled = false;
    let sent = link.tx_burst(1, &mut |room| {
        if std::mem::replace(&mut is_filled, true) {
            return None;
        }
        room[..frame.len()].copy_from_slice(frame);
        let (checksum_start, checksum_field) = (34, 6);
        Some(TxMetadata {
            len: frame.len(),
            checksum_start,
            checksum_field,
            ..TxMetadata::default()
        })
    });
    assert_eq!(sent.expect("tx_burst"), 1);
    link.counters().tx_dropped_refused
}

#[test]
fn checksums_are_filled_in_where_the_kernel_takes_them() {
    let test = "xdp::checksums_are_filled_in_where_the_kernel_takes_them";
    if let Err(why) = enter_own_namespace().and_then(|()| veth()) {
        return println!("skipped: {test}: {why}");
    }
    // The interface is to leave nothing to the one behind it.
    let done = Command::new("ethtool").args(["-K", "mp-near", "tx", "off"]).output();
    if !done.is_ok_and(|output| output.status.success()) {
        return println!("skipped: {test}: ethtool cannot turn off an interface's checksums");
    }
    let mut far = Wire::open("mp-far", "link del mp-near").expect("a packet socket");
    let mut link = opened();
    let notes = link.caps().notes.join("; ");
    if !link.caps().tx_checksum {
        assert!(notes.contains("checksums are made here; the kernel refused metadata"), "{notes}");
        return println!("skipped: {test}: this kernel takes no metadata");
    }
    assert!(notes.contains("transport checksums are left to the kernel"), "{notes}");
    for len in [1, 2, 31, 1_000, 1_472] {
        let payload: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
        let frame = unsummed(&payload);
        assert_eq!(send_unsummed(&mut link, &frame), 0);
        let deadline = Instant::now() + Duration::from_secs(5);
        let got =
            std::iter::from_fn(|| far.capture(deadline)).find(|got| got[6..12] == frame[6..12]);
        let got = got.expect("it arrives");
        assert_eq!((got.len(), &got[..40], &got[42..]), (frame.len(), &frame[..40], &frame[42..]));
        let halves = got[34..]
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u32::from(*byte)));
        let pseudo = 0x0a63 + 0x0001 + 0x0a63 + 0x0002 + 17 + got.len() as u32 - 34;
        assert_eq!(folded(halves.sum::<u32>() + pseudo), 0xffff, "{len} bytes");
    }
    drop(link);
    let config = XdpConfig { checksums: false, ..XdpConfig::new("mp-near") };
    let mut link = xdp::open(&config).expect("a link").remove(0);
    assert!(!link.caps().tx_checksum);
    assert!(link.caps().notes.join("; ").contains("checksums are made here, as asked"));
    assert_eq!(send_unsummed(&mut link, &unsummed(b"no")), 1, "it would arrive wrong");
}

fn opened() -> Xdp {
    xdp::open(&XdpConfig::new("mp-near")).expect("root, and no other program").remove(0)
}

/// Bytes in both directions over the kernel's TCP, a datagram and its answer, and an echo request:
/// what SSH, DNS and ping do.
fn the_kernel_serves(elsewhere: &crate::wire::Elsewhere, address: &'static str) {
    let listener = TcpListener::bind(at(address, KERNELS)).expect("the kernel's port");
    let resolver = UdpSocket::bind(at(address, KERNELS)).expect("the kernel's port");
    resolver.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let server = std::thread::spawn(move || {
        let mut question = [0; 512];
        let (len, from) = resolver.recv_from(&mut question).expect("a question");
        resolver.send_to(&question[..len], from).expect("an answer");
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = vec![0; 100_000];
        stream.read_exact(&mut request).expect("a request");
        stream.write_all(&request).expect("a response");
    });
    let is_answered = elsewhere.run(move || {
        let any: IpAddr = if address == HERE[0] { [0; 4].into() } else { [0; 16].into() };
        let resolver = UdpSocket::bind((any, 0)).expect("a port");
        resolver.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        resolver.send_to(b"where?", at(address, KERNELS)).expect("sent");
        assert_eq!(resolver.recv(&mut [0; 512]).expect("an answer"), 6);
        let mut stream = TcpStream::connect(at(address, KERNELS)).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let request: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        stream.write_all(&request).expect("sent");
        let mut response = vec![0; request.len()];
        stream.read_exact(&mut response).expect("a response");
        let ping = Command::new("ping").args(["-c1", "-W20", "-q", address]).output();
        (response == request, ping.map(|output| output.status.success()).ok())
    });
    server.join().expect("the server's own checks");
    if is_answered.1.is_none() {
        println!("skipped: the echo request of the_kernel_serves: no ping (iputils-ping)");
    }
    assert!(is_answered.0 && is_answered.1 != Some(false), "{is_answered:?}");
}

#[test]
fn a_link_local_address_is_shared_too() {
    with_two_hosts("xdp::a_link_local_address_is_shared_too", |elsewhere| {
        share_link_local(elsewhere, &mut opened());
    });
}

#[test]
fn the_kernel_is_silent_on_our_ports_and_serves_its_own() {
    with_two_hosts("xdp::the_kernel_is_silent_on_our_ports_and_serves_its_own", |elsewhere| {
        for address in HERE {
            let refused = Err(ErrorKind::ConnectionRefused);
            assert_eq!(knock(elsewhere, at(address, OURS)), refused, "before");
            let mut link = opened();
            assert_eq!(knock(elsewhere, at(address, OURS)), refused, "nothing is ours yet");
            link.set_ownership(&sharing(&[OURS])).expect("maps");

            assert!(is_silent(elsewhere, at(address, OURS)));
            let seen = ports(&mut link);
            assert!(!seen.is_empty() && seen.iter().all(|port| *port == OURS), "{seen:?}");

            let answer = answer_to_datagram(elsewhere, at(address, OURS_UDP));
            assert_eq!(answer, Err(ErrorKind::WouldBlock), "no ICMP error");
            assert!(ports(&mut link).contains(&OURS_UDP));

            the_kernel_serves(elsewhere, address);
            assert_eq!(ports(&mut link), [], "what is the kernel's we do not see");
            assert_eq!(knock(elsewhere, at(address, KERNELS + 1)), refused);

            link.set_ownership(&sharing(&[OURS + 1])).expect("maps");
            assert_eq!(knock(elsewhere, at(address, OURS)), refused, "given back");
            assert!(is_silent(elsewhere, at(address, OURS + 1)));

            drop(link);
            // The kernel takes the program away some time after its last descriptor was closed.
            let deadline = Instant::now() + Duration::from_secs(5);
            while knock(elsewhere, at(address, OURS + 1)) != refused {
                assert!(Instant::now() < deadline, "afterwards");
            }
            the_kernel_serves(elsewhere, address);
        }
    });
}

#[test]
fn a_queue_can_be_opened_again_at_once_and_by_one_program_only() {
    with_two_hosts("xdp::a_queue_can_be_opened_again_at_once_and_by_one_program_only", |_| {
        for _ in 0..3 {
            let link = opened();
            let Err(LinkError::InUse { why, .. }) = xdp::open(&XdpConfig::new("mp-near")) else {
                panic!("two programs on one interface");
            };
            assert!(why.contains("another program or socket"), "{why}");
            drop(link);
        }
    });
}

#[test]
fn ownership_changes_while_the_link_is_open_or_not_at_all() {
    with_two_hosts("xdp::ownership_changes_while_the_link_is_open_or_not_at_all", |elsewhere| {
        let mut link = opened();
        link.set_ownership(&sharing(&[OURS])).expect("free ports");
        let listener = TcpListener::bind(at(HERE[0], KERNELS)).expect("the kernel's port");
        let refused = link.set_ownership(&sharing(&[OURS + 1, KERNELS]));
        let Err(LinkError::Setting { setting: "ownership", why }) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("2222 is in use by another program"), "{why}");
        assert!(is_silent(elsewhere, at(HERE[0], OURS)), "as before");
        assert!(knock(elsewhere, at(HERE[0], KERNELS)).is_ok());
        let closed = Err(ErrorKind::ConnectionRefused);
        assert_eq!(knock(elsewhere, at(HERE[0], OURS + 1)), closed, "nothing of it was done");
        drop(listener);
        let taken = TcpListener::bind(at(HERE[0], OURS)).expect_err("it is ours");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn link_notes_describe_the_link() {
    with_two_hosts("xdp::link_notes_describe_the_link", |_| {
        let notes = opened().caps().notes.join("; ");
        assert!(notes.contains("runs in the driver (native)"), "{notes}");
        assert!(notes.contains("the kernel copies each frame; zero-copy was refused"), "{notes}");
        let insists = XdpConfig { zero_copy: Some(true), ..XdpConfig::new("mp-near") };
        assert!(xdp::open(&insists).is_err(), "veth has no zero-copy");
        let config = XdpConfig {
            mode: Some(XdpMode::Generic),
            zero_copy: Some(false),
            ..XdpConfig::new("mp-near")
        };
        let notes = xdp::open(&config).expect("a link")[0].caps().notes.join("; ");
        assert!(notes.contains("in the general path, as asked"), "{notes}");
        assert!(notes.contains("copies each frame, as asked"), "{notes}");
    });
}

#[test]
fn settings_out_of_range_are_named() {
    with_two_hosts("xdp::settings_out_of_range_are_named", |_| {
        let good = XdpConfig::new("mp-near");
        for (bad, name) in [
            (XdpConfig { ring_size: 32, ..good.clone() }, "ring_size"),
            (XdpConfig { ring_size: 100, ..good.clone() }, "ring_size"),
            (XdpConfig { frame_bytes: 1_024, ..good.clone() }, "frame_bytes"),
            (XdpConfig { queues: Some((1, 1)), ..good.clone() }, "queues"),
            (XdpConfig { queues: Some((1, 0)), ..good.clone() }, "queues"),
            (XdpConfig::new("mp-absent"), "interface"),
        ] {
            let Err(LinkError::Setting { setting, .. }) = xdp::open(&bad) else {
                panic!("{bad:?} was taken");
            };
            assert_eq!(setting, name);
        }
        ip("link set mp-near mtu 3000").expect("veth takes it");
        let longer = XdpConfig { frame_bytes: 4_096, ..good.clone() };
        for (config, is_cut) in [(&good, true), (&longer, false)] {
            let link = xdp::open(config).expect("they fit, whole or in pieces").remove(0);
            assert_eq!(link.caps().mtu, 3_000);
            let notes = link.caps().notes.join("; ");
            assert_eq!(notes.contains("3018 bytes go in several buffers"), is_cut, "{notes}");
        }
        ip("link set mp-near mtu 60000").expect("veth takes it");
        let too_long = xdp::open(&good).expect_err("60000 bytes in frames of 2048").to_string();
        assert!(too_long.contains("at most 28654 fit"), "{too_long}");
    });
}

/// A veth pair with two queues at each end, and a link on each queue of the far end. What goes out
/// of a queue there arrives on the same one here.
fn two_queues() -> Result<Vec<Xdp>, String> {
    enter_own_namespace()?;
    let queues = "numrxqueues 2 numtxqueues 2";
    ip(&format!("link add mp-near {queues} type veth peer name mp-far {queues}"))?;
    for interface in ["mp-near", "mp-far"] {
        ip(&format!("link set {interface} up"))?;
    }
    until_active("mp-near")?;
    xdp::open(&XdpConfig::new("mp-far")).map_err(|error| error.to_string())
}

fn owning_all(link: &mut Xdp) {
    link.set_ownership(&whole_address()).expect("maps");
}

/// Sends a packet to 10.99.0.1 with `mark` in it.
fn send(link: &mut Xdp, mark: u8) {
    let mut is_filled = false;
    let sent = link.tx_burst(2, &mut |room| {
        if std::mem::replace(&mut is_filled, true) {
            return None;
        }
        room[..60].fill(mark);
        room[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        room[26..34].copy_from_slice(&[10, 99, 0, 2, 10, 99, 0, 1]);
        Some(TxMetadata { len: 60, ..TxMetadata::default() })
    });
    assert_eq!(sent.expect("tx_burst"), 1);
}

/// The mark of the next packet.
fn mark(link: &mut Xdp) -> Option<u8> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut mark = None;
    while mark.is_none() && Instant::now() < deadline {
        link.wait(Some(QUICK)).expect("wait");
        link.rx_burst(1, &mut |frame, _| mark = frame.last().copied()).expect("rx_burst");
    }
    mark
}

#[test]
fn each_queue_is_a_link_of_its_own() {
    let mut far = match two_queues() {
        Ok(far) => far,
        Err(why) => return println!("skipped: xdp::each_queue_is_a_link_of_its_own: {why}"),
    };
    for shares_memory in [true, false] {
        let config = XdpConfig { shares_memory, ring_size: 64, ..XdpConfig::new("mp-near") };
        let mut near = xdp::open(&config).expect("links");
        assert_eq!((near.len(), far.len()), (2, 2));
        let notes = near[1].caps().notes.join("; ");
        let said = if shares_memory { "2 queues share memory" } else { "own, as asked" };
        assert!(notes.contains(said), "{notes}");
        owning_all(&mut near[0]);
        // More than either has chunks, so that each of them comes round.
        for turn in 0..300 {
            let queue = turn % 3 % 2;
            send(&mut far[queue], turn as u8);
            assert_eq!(mark(&mut near[queue]), Some(turn as u8));
            assert_eq!(near[1 - queue].rx_burst(9, &mut |_, _| ()).expect("rx_burst"), 0);
        }
    }
    let near = xdp::open(&XdpConfig::new("mp-near")).expect("links");
    let only = XdpConfig { queues: Some((1, 1)), ..XdpConfig::new("mp-near") };
    drop(near);
    let links = xdp::open(&only).expect("the second queue alone");
    assert_eq!(links.len(), 1);
    assert!(links[0].caps().notes.iter().any(|note| note.contains("not open are dropped")));
}

#[test]
fn foreign_xskmap_receives_frames() {
    let mut far = match two_queues() {
        Ok(far) => far,
        Err(why) => {
            return println!("skipped: xdp::foreign_xskmap_receives_frames: {why}");
        }
    };
    let mut first = xdp::open(&first_queue()).expect("a link").remove(0);
    owning_all(&mut first);
    let map = Arc::new(first.socket_map().expect("a descriptor"));
    let second = XdpConfig {
        queues: Some((1, 1)),
        socket_map: SocketMap::Given(map),
        ..XdpConfig::new("mp-near")
    };
    let mut given = xdp::open(&second).expect("no program is needed").remove(0);
    assert!(given.caps().notes.iter().any(|note| note.contains("another XDP program")));
    send(&mut far[1], 7);
    assert_eq!(mark(&mut given), Some(7));
    drop(given);

    let folder = std::env::temp_dir().join(format!("mp-xdp-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let mounted = Command::new("mount").args(["-t", "bpf", "none"]).arg(&folder).output();
    if mounted.is_ok_and(|output| output.status.success()) {
        first.pin_socket_map(&folder.join("sockets")).expect("a free name");
        let socket_map = SocketMap::Pinned(folder.join("sockets"));
        let mut pinned = xdp::open(&XdpConfig { socket_map, ..second }).expect("a link").remove(0);
        send(&mut far[1], 8);
        assert_eq!(mark(&mut pinned), Some(8));
        let unmounted = Command::new("umount").arg("-l").arg(&folder).status();
        assert!(unmounted.expect("umount").success());
    } else {
        println!("skipped: the pinned map: no BPF file system can be mounted");
    }
    std::fs::remove_dir(&folder).expect("it is empty again");

    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("eventfd");
    let socket_map = SocketMap::Given(Arc::new(event));
    assert!(xdp::open(&XdpConfig { socket_map, ..first_queue() }).is_err(), "that is no map");
}

fn first_queue() -> XdpConfig {
    XdpConfig { queues: Some((0, 0)), ..XdpConfig::new("mp-near") }
}

#[test]
fn xdp_names_each_missing_capability() {
    let name = "xdp::xdp_names_each_missing_capability";
    const NEEDED: [(&str, CapabilitySet); 5] = [
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_BPF", CapabilitySet::BPF),
        ("CAP_PERFMON", CapabilitySet::PERFMON),
        ("CAP_IPC_LOCK", CapabilitySet::IPC_LOCK),
    ];
    with_two_hosts(name, |_| {
        // Other threads have CAP_IPC_LOCK and do not meet this limit.
        let limit = getrlimit(Resource::Memlock);
        let low = Rlimit { current: Some(64 << 10), ..limit };
        setrlimit(Resource::Memlock, low).expect("a lower limit");
        let all = capabilities(None).expect("asked");
        let open_with = |effective| {
            set_capabilities(None, CapabilitySets { effective, ..all }).expect("fewer");
            let opened = xdp::open(&XdpConfig::new("mp-near")).and_then(|mut links| {
                links[0].set_ownership(&sharing(&[OURS]))?;
                Ok(links)
            });
            set_capabilities(None, all).expect("they were permitted");
            opened.map(drop).map_err(|error| error.to_string())
        };
        let needed = NEEDED.iter().fold(CapabilitySet::empty(), |all, (_, one)| all | *one);
        assert_eq!(open_with(needed), Ok(()));
        for (name, capability) in NEEDED {
            let why = open_with(needed - capability).expect_err(name);
            let missing = why.split("missing: ").nth(1).expect("a list");
            assert!(missing.starts_with(name), "{why}");
            assert!(NEEDED.iter().all(|(name, _)| why.contains(name)), "{why}");
            assert!(!why.contains("verifier"), "{why}");
        }
        let why = open_with(CapabilitySet::IPC_LOCK).expect_err("hardly any");
        assert!(why.ends_with("CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON"), "{why}");
        setrlimit(Resource::Memlock, limit).expect("as it was");
    });
}

#[test]
fn xdp_takes_checksums_that_a_veth_left_out() {
    let name = "xdp::xdp_takes_checksums_that_a_veth_left_out";
    with_two_hosts(name, |elsewhere| {
        let switch = |on| set_transmit_checksums("mp-far", on).map_err(|error| error.to_string());
        for (is_offloaded, checksums) in
            [(true, RxChecksum::Verified), (false, RxChecksum::Unverified)]
        {
            elsewhere.run(move || switch(is_offloaded)).expect("the veth has the offload");
            let mut links = xdp::open(&XdpConfig::new("mp-near")).expect("AF_XDP on veth");
            links[0].set_ownership(&sharing(&[OURS])).expect("free ports");
            for address in HERE {
                assert!(is_silent(elsewhere, at(address, OURS)));
                let mut seen = Vec::new();
                let take = &mut |_: &[u8], received: RxMetadata| seen.push(received.checksums);
                links[0].wait(Some(QUICK)).expect("wait");
                links[0].rx_burst(64, take).expect("rx_burst");
                assert!(!seen.is_empty() && seen.iter().all(|it| *it == checksums), "{seen:?}");
            }
        }
    });
}
