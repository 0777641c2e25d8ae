//! `xdp` over veth: the suite, and what sharing an address with the kernel promises.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe_link::conformance::{self, Bench, Opened};
use megapipe_link::spec::XdpMode;
use megapipe_link::xdp::{self, SocketMap, Xdp, XdpConfig};
use megapipe_link::{Link, LinkError, Transmit};

use crate::counting::allocations;
use crate::hosts::{HERE, KERNELS, OURS, OURS_UDP, QUICK, at, knock, sharing, with_two_hosts};
use crate::veth::{ports, veth, whole_address};
use crate::wire::{Wire, enter_own_namespace, ip, until_active};

struct Veth(XdpConfig);

impl Bench for Veth {
    fn open(&self) -> Result<Opened, String> {
        veth()?;
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

fn check(test: &str, config: XdpConfig) {
    let done = enter_own_namespace().and_then(|()| conformance::all(&Veth(config)));
    if let Err(why) = done {
        println!("skipped: {test}: {why}");
    }
}

#[test]
fn xdp_in_the_driver() {
    let config = XdpConfig { mode: Some(XdpMode::Native), ..XdpConfig::new("mp-near") };
    check("xdp::xdp_in_the_driver", config);
}

#[test]
fn xdp_in_the_general_path() {
    let config = XdpConfig {
        mode: Some(XdpMode::Generic),
        ring_size: 128,
        frame_bytes: 4_096,
        ..XdpConfig::new("mp-near")
    };
    check("xdp::xdp_in_the_general_path", config);
}

fn opened() -> Xdp {
    xdp::open(&XdpConfig::new("mp-near")).expect("root, and no other program").remove(0)
}

/// Bytes to and fro over the kernel's TCP, a datagram and its answer, and an echo request: what
/// SSH, DNS and ping do.
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
        let ping = Command::new("ping").args(["-c1", "-W2", "-q", address]).output();
        (response == request, ping.map(|output| output.status.success()).ok())
    });
    server.join().expect("the server's own checks");
    if is_answered.1.is_none() {
        println!("skipped: the echo request of the_kernel_serves: no ping (iputils-ping)");
    }
    assert!(is_answered.0 && is_answered.1 != Some(false), "{is_answered:?}");
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

            assert_eq!(knock(elsewhere, at(address, OURS)), Err(ErrorKind::TimedOut));
            let seen = ports(&mut link);
            assert!(!seen.is_empty() && seen.iter().all(|port| *port == OURS), "{seen:?}");

            let datagram = elsewhere.run(move || {
                let any: IpAddr = if address == HERE[0] { [0; 4].into() } else { [0; 16].into() };
                let socket = UdpSocket::bind((any, 0)).expect("a port");
                socket.set_read_timeout(Some(QUICK)).expect("a timeout");
                socket.connect(at(address, OURS_UDP)).expect("an address");
                socket.send(b"hello").expect("sent");
                socket.recv(&mut [0; 9]).map_err(|error| error.kind())
            });
            assert_eq!(datagram, Err(ErrorKind::WouldBlock), "no ICMP error");
            assert!(ports(&mut link).contains(&OURS_UDP));

            the_kernel_serves(elsewhere, address);
            assert_eq!(ports(&mut link), [], "what is the kernel's we do not see");
            assert_eq!(knock(elsewhere, at(address, KERNELS + 1)), refused);

            link.set_ownership(&sharing(&[OURS + 1])).expect("maps");
            assert_eq!(knock(elsewhere, at(address, OURS)), refused, "given back");
            assert_eq!(knock(elsewhere, at(address, OURS + 1)), Err(ErrorKind::TimedOut));

            drop(link);
            assert_eq!(knock(elsewhere, at(address, OURS + 1)), refused, "afterwards");
            the_kernel_serves(elsewhere, address);
        }
    });
}

#[test]
fn a_queue_can_be_opened_again_at_once_and_by_one_program_only() {
    with_two_hosts("xdp::a_queue_can_be_opened_again_at_once_and_by_one_program_only", |_| {
        for _ in 0..3 {
            let link = opened();
            let Err(LinkError::Unavailable { why, .. }) = xdp::open(&XdpConfig::new("mp-near"))
            else {
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
        assert_eq!(knock(elsewhere, at(HERE[0], OURS)), Err(ErrorKind::TimedOut), "as before");
        assert!(knock(elsewhere, at(HERE[0], KERNELS)).is_ok());
        let closed = Err(ErrorKind::ConnectionRefused);
        assert_eq!(knock(elsewhere, at(HERE[0], OURS + 1)), closed, "nothing of it was done");
        drop(listener);
        let taken = TcpListener::bind(at(HERE[0], OURS)).expect_err("it is ours");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn what_a_link_is_stands_in_its_notes() {
    with_two_hosts("xdp::what_a_link_is_stands_in_its_notes", |_| {
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
        let too_long = xdp::open(&good).expect_err("3000 bytes in frames of 2048").to_string();
        assert!(too_long.contains("at most 1774 fit"), "{too_long}");
        let longer = XdpConfig { frame_bytes: 4_096, ..good };
        assert_eq!(xdp::open(&longer).expect("they fit")[0].caps().mtu, 3_000);
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
        Some(Transmit { len: 60, ..Transmit::default() })
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
    let mut near = xdp::open(&XdpConfig::new("mp-near")).expect("links");
    assert_eq!((near.len(), far.len()), (2, 2));
    owning_all(&mut near[0]);
    for queue in [0, 1, 1, 0] {
        send(&mut far[queue], 0x50 + queue as u8);
        assert_eq!(mark(&mut near[queue]), Some(0x50 + queue as u8));
        assert_eq!(near[1 - queue].rx_burst(9, &mut |_, _| ()).expect("rx_burst"), 0);
    }
    let only = XdpConfig { queues: Some((1, 1)), ..XdpConfig::new("mp-near") };
    drop(near);
    let links = xdp::open(&only).expect("the second queue alone");
    assert_eq!(links.len(), 1);
    assert!(links[0].caps().notes.iter().any(|note| note.contains("not open are dropped")));
}

#[test]
fn a_map_that_somebody_else_made_brings_frames() {
    let mut far = match two_queues() {
        Ok(far) => far,
        Err(why) => {
            return println!("skipped: xdp::a_map_that_somebody_else_made_brings_frames: {why}");
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
    assert!(given.caps().notes.iter().any(|note| note.contains("somebody else's XDP program")));
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
