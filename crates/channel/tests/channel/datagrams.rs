//! Messages: UDP on both families, UNIX datagrams and sequenced packets; their boundaries.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use megapipe::limits::GATHER_PARTS_MAX;
use megapipe::{
    Address, Completion, Datagram, Event, Handle, OpError, Payload, ReadBuf, SocketKind,
    UnixAddress,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use crate::place::{here, there};
use crate::scene::{Case, Folder, PATIENCE, Scene, on_each_driver, pattern};

/// When a datagram that did not arrive is sent again.
const AGAIN: Duration = Duration::from_secs(1);

on_each_driver![
    udp_messages_go_both_ways_with_their_addresses,
    unix_datagrams_go_both_ways_with_their_addresses,
    a_registered_socket_that_is_connected_reads_and_writes,
    sequenced_packets_keep_their_boundaries,
    the_end_of_sequenced_packets_is_an_empty_read,
    longer_message_is_truncated_and_flagged,
    reads_outstanding_take_messages_in_order,
    a_vector_of_many_parts_is_one_message,
    a_message_beyond_what_udp_carries_is_too_long,
    connected_socket_gets_the_icmp_refusal,
    sending_to_an_address_of_another_family_fails,
    a_full_receiver_delays_the_sender_and_loses_nothing,
    unregister_of_a_registered_socket_keeps_waiting_messages,
    two_sockets_of_one_channel_talk,
    empty_messages_are_messages;
    kernel:
    to_fd_of_a_message_socket_keeps_waiting_messages,
];

impl Scene {
    #[track_caller]
    fn receive_from(&mut self, handle: Handle, len: usize) -> Datagram {
        self.recvfrom(handle, len).expect("a message socket");
        match self.next_of(handle) {
            Event::RecvFrom(Ok(datagram)) => *datagram,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn expect_sent(&mut self, handle: Handle, len: usize) {
        match self.next_of(handle) {
            Event::SendTo(Ok(sent)) => assert_eq!(sent, len),
            other => panic!("{other:?}"),
        }
    }
}

/// UDP from one socket of the kernel to another. The kernel drops a datagram where 1,000 packets
/// wait for a CPU (the second column of `/proc/net/softnet_stat`), whatever network they are of,
/// and only TCP sends again.
impl Scene {
    /// The message that a peer sends, again while none arrives at the registered socket, of which
    /// `own` is a copy. One that has arrived and is not read is an error.
    #[track_caller]
    fn read_from_kernel(
        &mut self,
        handle: Handle,
        (peer, own): (&UdpSocket, &UdpSocket),
        message: &[u8],
    ) -> ReadBuf {
        self.read(handle, 100).expect("reading is possible");
        let (start, mut has_arrived) = (Instant::now(), false);
        while start.elapsed() < PATIENCE {
            if !has_arrived {
                peer.send(message).unwrap();
            }
            match self.dispatch(Some(AGAIN)).expect("dispatch works") {
                Some(Completion { event: Event::Read(read), .. }) => return read.unwrap(),
                Some(other) => panic!("{other:?}"),
                None => {
                    assert!(!has_arrived, "a message waits and is not read");
                    let looks = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                    has_arrived = recv(own, &mut [0; 100][..], looks).is_ok();
                }
            }
        }
        panic!("no message comes in time");
    }

    /// Writes a message to a peer, again while none arrives there.
    #[track_caller]
    fn write_to_kernel(&mut self, handle: Handle, peer: &UdpSocket, message: &'static str) {
        peer.set_read_timeout(Some(AGAIN)).unwrap();
        let start = Instant::now();
        let mut back = [0; 100];
        while start.elapsed() < PATIENCE {
            self.write(handle, message).unwrap();
            self.expect_written(handle, message.len());
            if let Ok(len) = peer.recv(&mut back) {
                return assert_eq!(&back[..len], message.as_bytes());
            }
        }
        panic!("no message comes in time");
    }
}

fn udp(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(there(address)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn sequenced_pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn udp_messages_go_both_ways_with_their_addresses(case: &Case) {
    let mut scene = case.scene();
    for (kind, local) in [(SocketKind::Udp4, "127.0.0.1:0"), (SocketKind::Udp6, "[::1]:0")] {
        let handle = scene.socket(kind, Some(&here(local)), 4).unwrap();
        let ours = scene.local_address(handle).unwrap().as_inet().unwrap();
        let peer = udp(local);
        let theirs = Address::from(peer.local_addr().unwrap());
        for turn in 0..10 {
            peer.send_to(&pattern(turn, 100 + turn), ours).unwrap();
            let datagram = scene.receive_from(handle, 2000);
            assert_eq!(*datagram.data, pattern(turn, 100 + turn));
            assert_eq!(datagram.from.as_ref(), Some(&theirs));
            assert!(!datagram.truncated);
            scene.sendto(handle, datagram.data, &theirs).unwrap();
            scene.expect_sent(handle, 100 + turn);
            assert_eq!(scene.receive_message(&peer), (pattern(turn, 100 + turn), ours));
        }
    }
}

fn unix_datagrams_go_both_ways_with_their_addresses(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let (ours, theirs) = (folder.path("ours"), folder.path("theirs"));
    let bound = Address::unix(&ours).unwrap();
    let handle = scene.socket(SocketKind::UnixDatagram, Some(&bound), 0).unwrap();
    assert_eq!(scene.local_address(handle).unwrap(), bound);
    let peer = UnixDatagram::bind(&theirs).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.send_to(b"question", &ours).unwrap();
    let datagram = scene.receive_from(handle, 100);
    assert_eq!(&*datagram.data, b"question");
    assert_eq!(datagram.from, Some(Address::unix(&theirs).unwrap()));
    scene.sendto(handle, "answer", &datagram.from.unwrap()).unwrap();
    scene.expect_sent(handle, 6);
    let mut back = [0; 100];
    let (len, from) = peer.recv_from(&mut back).unwrap();
    assert_eq!((&back[..len], from.as_pathname()), (&b"answer"[..], Some(&*ours)));
    // A sender without a name is not named.
    UnixDatagram::unbound().unwrap().send_to(b"anonymous", &ours).unwrap();
    let from = scene.receive_from(handle, 100).from;
    assert!(matches!(from, None | Some(Address::Unix(UnixAddress::Unnamed))), "{from:?}");
    // No socket is there.
    let absent = Address::unix(folder.path("absent")).unwrap();
    scene.sendto(handle, "lost", &absent).unwrap();
    let Event::SendTo(Err(OpError::NotFound)) = scene.next_of(handle) else { panic!() };
}

fn two_sockets_of_one_channel_talk(case: &Case) {
    let mut scene = case.scene();
    let local = here("[::1]:0");
    let first = scene.socket(SocketKind::Udp6, Some(&local), 1).unwrap();
    let second = scene.socket(SocketKind::Udp6, Some(&local), 2).unwrap();
    let there = scene.local_address(second).unwrap();
    for turn in 0..50 {
        scene.sendto(first, pattern(turn, 40), &there).unwrap();
    }
    for turn in 0..50 {
        assert_eq!(*scene.receive_from(second, 40).data, pattern(turn, 40));
        scene.expect_sent(first, 40);
    }
}

fn a_registered_socket_that_is_connected_reads_and_writes(case: &Case) {
    let mut scene = case.scene();
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let (ours, theirs) = (udp(local), udp(local));
        ours.connect(theirs.local_addr().unwrap()).unwrap();
        theirs.connect(ours.local_addr().unwrap()).unwrap();
        let copy = ours.try_clone().unwrap();
        let handle = scene.register(ours.into(), 0, None).unwrap();
        let read = scene.read_from_kernel(handle, (&theirs, &copy), b"to the channel");
        assert_eq!(&*read, b"to the channel");
        scene.write_to_kernel(handle, &theirs, "to the peer");
    }
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    theirs.send(b"one").unwrap();
    theirs.send(b"two").unwrap();
    assert_eq!(&*scene.read_once(handle, 100).unwrap(), b"one");
    assert_eq!(&*scene.read_once(handle, 100).unwrap(), b"two");
    scene.write(handle, "three").unwrap();
    scene.expect_written(handle, 5);
    assert_eq!(theirs.recv(&mut [0; 100]).unwrap(), 5);
}

fn sequenced_packets_keep_their_boundaries(case: &Case) {
    let mut scene = case.scene();
    let (ours, theirs) = sequenced_pair();
    let ours = scene.register(ours, 0, None).unwrap();
    let theirs = scene.register(theirs, 0, None).unwrap();
    for turn in 0..20 {
        scene.write(ours, pattern(turn, 1 + turn * 50)).unwrap();
    }
    for turn in 0..20 {
        assert_eq!(*scene.read_once(theirs, 4096).unwrap(), pattern(turn, 1 + turn * 50));
        scene.expect_written(ours, 1 + turn * 50);
    }
}

fn the_end_of_sequenced_packets_is_an_empty_read(case: &Case) {
    let mut scene = case.scene();
    let (ours, theirs) = sequenced_pair();
    let handle = scene.register(ours, 0, None).unwrap();
    rustix::io::write(&theirs, b"last").unwrap();
    drop(theirs);
    assert_eq!(&*scene.read_once(handle, 100).unwrap(), b"last");
    assert!(scene.read_once(handle, 100).unwrap().is_empty());
    scene.write(handle, "unread").unwrap();
    match scene.next_of(handle) {
        Event::Write(Err(OpError::BrokenPipe | OpError::Reset)) => {}
        other => panic!("{other:?}"),
    }
}

fn longer_message_is_truncated_and_flagged(case: &Case) {
    let mut scene = case.scene();
    let handle = scene.socket(SocketKind::Udp4, Some(&here("127.0.0.1:0")), 0);
    let handle = handle.unwrap();
    let ours = scene.local_address(handle).unwrap().as_inet().unwrap();
    let peer = udp("127.0.0.1:0");
    for message in [pattern(1, 100), pattern(2, 100), pattern(3, 60)] {
        peer.send_to(&message, ours).unwrap();
    }
    let cut = scene.receive_from(handle, 60);
    assert_eq!((&*cut.data, cut.truncated), (&pattern(1, 100)[..60], true));
    assert_eq!(*scene.read_once(handle, 10).unwrap(), pattern(2, 100)[..10]);
    let whole = scene.receive_from(handle, 60);
    assert_eq!((&*whole.data, whole.truncated), (&pattern(3, 60)[..], false));
}

fn empty_messages_are_messages(case: &Case) {
    let mut scene = case.scene();
    let local = here("127.0.0.1:0");
    let first = scene.socket(SocketKind::Udp4, Some(&local), 0).unwrap();
    let second = scene.socket(SocketKind::Udp4, Some(&local), 0).unwrap();
    let there = scene.local_address(second).unwrap();
    for message in ["", "x", ""] {
        scene.sendto(first, message, &there).unwrap();
        scene.expect_sent(first, message.len());
        let datagram = scene.receive_from(second, 10);
        assert_eq!((&*datagram.data, datagram.truncated), (message.as_bytes(), false));
        assert!(datagram.from.is_some());
    }
}

fn reads_outstanding_take_messages_in_order(case: &Case) {
    let mut scene = case.scene();
    let local = here("127.0.0.1:0");
    let handle = scene.socket(SocketKind::Udp4, Some(&local), 0).unwrap();
    let ours = scene.local_address(handle).unwrap().as_inet().unwrap();
    for turn in 0..10 {
        match turn % 2 {
            0 => scene.recvfrom(handle, 100).unwrap(),
            _ => scene.read(handle, 100).unwrap(),
        }
    }
    scene.flush().unwrap();
    let peer = udp("127.0.0.1:0");
    for turn in 0..10 {
        peer.send_to(&pattern(turn, 30), ours).unwrap();
    }
    for turn in 0..10 {
        let data = match (turn % 2, scene.next_of(handle)) {
            (0, Event::RecvFrom(Ok(datagram))) => datagram.data,
            (1, Event::Read(Ok(data))) => data,
            (_, other) => panic!("{other:?}"),
        };
        assert_eq!(*data, pattern(turn, 30));
    }
}

fn a_vector_of_many_parts_is_one_message(case: &Case) {
    let mut scene = case.scene();
    for parts in [2, GATHER_PARTS_MAX, GATHER_PARTS_MAX + 1, 300] {
        let (ours, theirs) = sequenced_pair();
        let handle = scene.register(ours, 0, None).unwrap();
        let vector: Vec<_> = (0..parts).map(|turn| pattern(turn, 10)).collect();
        let whole = vector.concat();
        scene.writev(handle, vector.into_iter().map(Payload::from)).unwrap();
        scene.expect_written(handle, whole.len());
        let mut got = vec![0; 10_000];
        let len = rustix::io::read(&theirs, &mut got[..]).unwrap();
        assert!(got[..len] == whole, "{parts} parts arrived as {len} of {} bytes", whole.len());
    }
}

fn a_message_beyond_what_udp_carries_is_too_long(case: &Case) {
    let mut scene = case.scene();
    let handle = scene.socket(SocketKind::Udp4, None, 0).unwrap();
    // Bound until the end: what is sent to a port that another test gets would reach that test.
    let receiver = udp("127.0.0.1:0");
    let there = receiver.local_addr().unwrap().into();
    scene.sendto(handle, vec![0; 70_000], &there).unwrap();
    scene.sendto(handle, vec![0; 100], &there).unwrap();
    let Event::SendTo(Err(OpError::MessageTooLong)) = scene.next_of(handle) else { panic!() };
    scene.expect_sent(handle, 100);
}

fn connected_socket_gets_the_icmp_refusal(case: &Case) {
    let mut scene = case.scene();
    let ours = udp("127.0.0.1:0");
    // No other socket gets its port, and it receives from the other peer only.
    let deaf = udp("127.0.0.1:0");
    deaf.connect("127.0.0.1:9").unwrap();
    ours.connect(deaf.local_addr().unwrap()).unwrap();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    scene.read(handle, 10).unwrap();
    scene.flush().unwrap();
    scene.write(handle, "anybody?").unwrap();
    let mut refused = false;
    for _ in 0..2 {
        match scene.next_of(handle) {
            Event::Write(Ok(8)) => {}
            Event::Read(Err(OpError::Refused)) => refused = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused);
}

fn sending_to_an_address_of_another_family_fails(case: &Case) {
    let mut scene = case.scene();
    let handle = scene.socket(SocketKind::Udp4, None, 0).unwrap();
    match scene.sendto(handle, "x", &"[::1]:9".parse().unwrap()) {
        // Refused at once or by the kernel; either way it is reported and nothing is sent.
        Err(_) => {}
        Ok(()) => match scene.next_of(handle) {
            Event::SendTo(Err(_)) => {}
            other => panic!("{other:?}"),
        },
    }
    let (ours, _theirs) = UnixDatagram::pair().unwrap();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    scene.write(handle, "still works").unwrap();
    scene.expect_written(handle, 11);
}

fn a_full_receiver_delays_the_sender_and_loses_nothing(case: &Case) {
    let mut scene = case.scene();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    for turn in 0..1000 {
        scene.write(handle, pattern(turn, 1000)).unwrap();
    }
    scene.flush().unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = [0; 2000];
        for turn in 0..1000 {
            let len = theirs.recv(&mut got).unwrap();
            assert_eq!(got[..len], pattern(turn, 1000));
        }
    });
    for _ in 0..1000 {
        scene.expect_written(handle, 1000);
    }
    scene.join(reader);
}

fn to_fd_of_a_message_socket_keeps_waiting_messages(case: &Case) {
    let mut scene = case.scene();
    let handle = scene.socket(SocketKind::Udp4, Some(&here("127.0.0.1:0")), 0);
    let handle = handle.unwrap();
    let ours = scene.local_address(handle).unwrap().as_inet().unwrap();
    scene.recvfrom(handle, 100).unwrap();
    scene.flush().unwrap();
    scene.to_fd(handle).unwrap();
    let Event::RecvFrom(Err(OpError::Cancelled)) = scene.next_of(handle) else { panic!() };
    let Event::ToFd(Ok(moved)) = scene.next_of(handle) else { panic!() };
    udp("127.0.0.1:0").send_to(b"later", ours).unwrap();
    let socket = UdpSocket::from(moved.fd);
    socket.set_nonblocking(false).unwrap();
    assert_eq!(socket.recv(&mut [0; 10]).unwrap(), 5);
}

fn unregister_of_a_registered_socket_keeps_waiting_messages(case: &Case) {
    let mut scene = case.scene();
    let ours = udp("127.0.0.1:0");
    let address = ours.local_addr().unwrap();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    let peer = udp("127.0.0.1:0");
    peer.send_to(b"one", address).unwrap();
    assert_eq!(&*scene.read_once(handle, 10).unwrap(), b"one");
    peer.send_to(b"two", address).unwrap();
    let left = scene.unregister(handle).unwrap();
    assert!(left.unread.is_empty());
    let socket = UdpSocket::from(left.fd.unwrap());
    socket.set_nonblocking(false).unwrap();
    assert_eq!(socket.recv(&mut [0; 10]).unwrap(), 3);
}
