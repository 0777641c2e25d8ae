//! Accepting and connecting: forms, cookies, addresses, refusals, time-outs.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, ConnectOptions, Connection, Disconnect, Event, ListenOptions, Misuse, OpError,
    UnixAddress,
};

use rustix::event::{PollFd, PollFlags, poll};

use crate::place::{here, there};
use crate::scene::{
    A_WHILE, Case, Folder, PATIENCE, Stream, deserted, on_each_driver, pattern, peer,
};

on_each_driver![
    accept_returns_count_and_leaves_the_rest_queued,
    accept_for_ever_goes_on,
    a_first_read_is_answered_after_its_accept,
    accepted_connections_carry_the_cookie_asked_for,
    a_listener_that_was_registered_accepts,
    a_unix_listener_in_the_abstract_name_space_accepts,
    connections_that_were_reset_in_the_queue_do_no_harm,
    connect_without_listener_is_refused,
    connect_to_a_missing_unix_path_is_not_found,
    connect_fails_after_its_timeout,
    a_reset_ends_an_attempt_to_connect,
    a_sequenced_packet_listener_accepts,
    binding_to_an_address_in_use_fails_at_once,
    writes_and_reads_may_be_queued_before_the_connection_is_there,
    operations_queued_before_a_refusal_fail_with_it;
    kernel:
    accept_returns_lwsockets_or_descriptors,
    both_ends_name_their_addresses,
    a_connection_in_time_outlives_its_time_out,
    connect_binds_the_local_address,
    fast_open_option_is_set_on_the_kernel_socket,
    second_listener_is_shared_or_refused,
];

fn accept_returns_count_and_leaves_the_rest_queued(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().unwrap();
    scene.channel.accept(listener, Accept::lwsocket(2)).unwrap();
    let _clients: Vec<_> = (0..5).map(|_| scene.dial(address).unwrap()).collect();
    for _ in 0..2 {
        scene.accepted(listener);
    }
    scene.expect_silence();
    scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
    scene.channel.accept(listener, Accept::lwsocket(2)).unwrap();
    for _ in 0..3 {
        scene.accepted(listener);
    }
    scene.expect_silence();
    assert_eq!(scene.counters().accepted, 5);
}

fn accept_returns_lwsockets_or_descriptors(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().unwrap();
    for turn in 0..3 {
        scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
        scene.channel.accept(listener, Accept::fd(2)).unwrap();
        scene.channel.accept(listener, Accept::lwsocket(1)).unwrap();
        let mut clients: Vec<_> = (0..4).map(|_| scene.dial(address).unwrap()).collect();
        for place in 0..4 {
            let Event::Accept(Ok(accepted)) = scene.next_of(listener) else { panic!() };
            match (place, accepted.connection) {
                (0 | 3, Connection::Lwsocket(handle)) => {
                    assert!(handle.is_lwsocket());
                    scene.write(handle, vec![place; 4]).unwrap();
                    scene.expect_written(handle, 4);
                }
                (1 | 2, Connection::Fd(fd)) => scene.send(&mut peer(fd), &[place; 4]),
                other => panic!("turn {turn}: {other:?}"),
            }
        }
        for (place, client) in (0u8..).zip(&mut clients) {
            assert_eq!(scene.receive(client, 4), [place; 4], "turn {turn}");
        }
    }
}

fn accept_for_ever_goes_on(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("[::1]:0");
    let address = address.as_inet().unwrap();
    scene.channel.accept(listener, Accept::lwsocket(u32::MAX)).unwrap();
    for _ in 0..200 {
        let client = scene.dial(address).unwrap();
        let handle = scene.accepted(listener);
        drop(client);
        scene.unregister(handle).unwrap();
    }
    assert_eq!(scene.counters().accepted, 200);
    scene.expect_no_strays();
}

fn a_first_read_is_answered_after_its_accept(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().unwrap();
    let accept = Accept::lwsocket(u32::MAX).first_read(64).cookie(5);
    scene.channel.accept(listener, accept).unwrap();
    let clients: Vec<_> = (0..20)
        .map(|turn| {
            let mut client = scene.dial(address).unwrap();
            scene.send(&mut client, &pattern(turn, 50));
            client
        })
        .collect();
    let (mut accepted, mut read) = (Vec::new(), 0);
    while read < clients.len() {
        let done = scene.next();
        match done.event {
            Event::Accept(Ok(it)) => match it.connection {
                Connection::Lwsocket(handle) => accepted.push(handle),
                Connection::Fd(_) => panic!("a descriptor"),
            },
            Event::Read(Ok(bytes)) => {
                let turn = accepted.iter().position(|handle| *handle == done.handle);
                assert_eq!(*bytes, pattern(turn.expect("accepted before"), 50));
                assert_eq!(done.cookie, 5);
                read += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn accepted_connections_carry_the_cookie_asked_for(case: &Case) {
    let mut scene = case.scene();
    let address = here("127.0.0.1:0");
    let listener = scene.listen(&address, &ListenOptions::default(), 70).unwrap();
    let address = scene.local_address(listener).unwrap().as_inet().unwrap();
    for cookie in [1, 2, u64::MAX] {
        scene.channel.accept(listener, Accept::lwsocket(1).cookie(cookie).first_read(9)).unwrap();
        let mut client = scene.dial(address).unwrap();
        scene.send(&mut client, b"x");
        let done = scene.next();
        assert!(matches!(done.event, Event::Accept(Ok(_))) && done.cookie == 70);
        let done = scene.next();
        assert!(matches!(done.event, Event::Read(Ok(_))), "{done:?}");
        assert_eq!(done.cookie, cookie);
    }
}

fn a_listener_that_was_registered_accepts(case: &Case) {
    let mut scene = case.scene();
    let listening = TcpListener::bind(there("127.0.0.1:0")).unwrap();
    let address = listening.local_addr().unwrap();
    let listener = scene.register(listening.into(), 3, None).unwrap();
    assert!(!listener.is_lwsocket());
    for turn in 0..10 {
        let mut client = scene.dial(address).unwrap();
        let handle = scene.accept_one(listener);
        scene.send(&mut client, &pattern(turn, 30));
        assert_eq!(scene.read_exact(handle, 30), pattern(turn, 30));
    }
    let left = scene.unregister(listener).unwrap();
    let listening = TcpListener::from(left.fd.expect("it was registered"));
    listening.set_nonblocking(false).unwrap();
    let _client = scene.dial(address).unwrap();
    listening.accept().expect("the socket still listens");
}

fn a_unix_listener_in_the_abstract_name_space_accepts(case: &Case) {
    let mut scene = case.scene();
    let name = format!("unix:@megapipe-test-{}-{:?}", std::process::id(), case.driver);
    let (listener, address) = scene.listening(&name);
    assert_eq!(address.to_string(), name);
    let client = scene.connected(&address);
    let server = scene.accept_one(listener);
    scene.write(client, "across").unwrap();
    assert_eq!(scene.read_exact(server, 6), b"across");
    assert_eq!(scene.peer_address(client).unwrap(), address);
    let unnamed = Address::Unix(UnixAddress::Unnamed);
    assert_eq!(scene.peer_address(server).unwrap(), unnamed);
}

fn connections_that_were_reset_in_the_queue_do_no_harm(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let address = address.as_inet().unwrap();
    for _ in 0..10 {
        crate::scene::reset(peer(scene.dial(address).unwrap()));
    }
    let mut client = scene.dial(address).unwrap();
    scene.send(&mut client, b"alive");
    scene.channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(5)).unwrap();
    loop {
        match scene.next().event {
            Event::Read(Ok(bytes)) if &*bytes == b"alive" => break,
            Event::Accept(Ok(_)) | Event::Read(Err(OpError::Reset)) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn both_ends_name_their_addresses(case: &Case) {
    let mut scene = case.scene();
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, address) = scene.listening(local);
        let client = scene.connected(&address);
        let server = scene.accept_one(listener);
        assert_eq!(scene.peer_address(client).unwrap(), address);
        assert_eq!(scene.local_address(server).unwrap(), address);
        let ours = scene.local_address(client).unwrap();
        assert_eq!(scene.peer_address(server).unwrap(), ours);
        assert_eq!(scene.peer_address(listener), Err(OpError::NotConnected));
    }
    let timer = scene.timer(Duration::from_secs(100), None, 0).unwrap();
    assert_eq!(scene.local_address(timer), Err(OpError::BadDescriptor));
}

fn connect_without_listener_is_refused(case: &Case) {
    let mut scene = case.scene();
    let handle = scene.connect(&deserted().into(), &ConnectOptions::default(), 8).unwrap();
    let done = scene.next();
    assert_eq!((done.handle, done.cookie), (handle, 8));
    assert!(matches!(done.event, Event::Connect(Err(OpError::Refused))), "{done:?}");
    // The handle stays until it is unregistered, and says the same to later operations.
    assert_eq!(scene.read_once(handle, 1).unwrap_err(), OpError::Refused);
    scene.unregister(handle).unwrap();
    assert_eq!(scene.read(handle, 1), Err(Misuse::StaleHandle.into()));
}

fn connect_to_a_missing_unix_path_is_not_found(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let nowhere = Address::unix(folder.path("no-listener")).unwrap();
    let handle = scene.connect(&nowhere, &ConnectOptions::default(), 0).unwrap();
    let Event::Connect(Err(OpError::NotFound)) = scene.next_of(handle) else { panic!() };
    let path = folder.path("deserted");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let handle = scene.connect(&Address::unix(path).unwrap(), &ConnectOptions::default(), 0);
    let Event::Connect(Err(OpError::Refused)) = scene.next_of(handle.unwrap()) else { panic!() };
}

/// A listening socket whose accept queue is full: the kernel answers no further SYN.
fn silent_listener() -> (TcpListener, SocketAddr, TcpStream) {
    let listener = TcpListener::bind(there("127.0.0.1:0")).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    // One more than none waits in a queue of none, from when the listener is readable.
    let waiting = TcpStream::connect(address).unwrap();
    let mut readable = [PollFd::new(&listener, PollFlags::IN)];
    assert_eq!(poll(&mut readable, Some(&PATIENCE.try_into().unwrap())), Ok(1));
    (listener, address, waiting)
}

fn connect_fails_after_its_timeout(case: &Case) {
    let mut scene = case.scene();
    let (listener, address, waiting) = silent_listener();
    let options = ConnectOptions::default().timeout(Duration::from_millis(80));
    let start = Instant::now();
    let handle = scene.connect(&address.into(), &options, 0).unwrap();
    scene.write(handle, "never sent").unwrap();
    let Event::Connect(Err(OpError::TimedOut)) = scene.next_of(handle) else { panic!() };
    assert!(start.elapsed() >= Duration::from_millis(80));
    let Event::Write(Err(_)) = scene.next_of(handle) else { panic!() };
    scene.unregister(handle).unwrap();
    // Without a time-out the attempt waits, and unregister ends it at once.
    let handle = scene.connect(&address.into(), &ConnectOptions::default(), 0).unwrap();
    scene.expect_silence();
    scene.unregister(handle).unwrap();
    scene.expect_silence();
    scene.expect_no_strays();
    drop((listener, waiting));
}

fn a_connection_in_time_outlives_its_time_out(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let options = ConnectOptions::default().timeout(A_WHILE);
    let client = scene.connect(&address, &options, 0).unwrap();
    let Event::Connect(Ok(())) = scene.next_of(client) else { panic!() };
    let server = scene.accept_one(listener);
    for _ in 0..3 {
        scene.expect_silence();
    }
    scene.write(client, "still here").unwrap();
    assert_eq!(scene.read_exact(server, 10), b"still here");
}

fn a_reset_ends_an_attempt_to_connect(case: &Case) {
    let mut scene = case.scene();
    let (_listener, address, _waiting) = silent_listener();
    let handle = scene.connect(&address.into(), &ConnectOptions::default(), 0).unwrap();
    scene.expect_silence();
    scene.disconnect(handle, Disconnect::Reset).unwrap();
    let (mut connect, mut disconnect) = (false, false);
    while !(connect && disconnect) {
        match scene.next_of(handle) {
            Event::Connect(Err(_)) => connect = true,
            Event::Disconnect(Ok(())) => disconnect = true,
            other => panic!("{other:?}"),
        }
    }
    scene.unregister(handle).unwrap();
    scene.expect_silence();
    scene.expect_no_strays();
}

fn a_sequenced_packet_listener_accepts(case: &Case) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
    let mut scene = case.scene();
    let folder = Folder::new();
    let address = SocketAddrUnix::new(folder.path("packets")).unwrap();
    let sequenced = || socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let (listening, client) = (sequenced(), sequenced());
    bind(&listening, &address).unwrap();
    listen(&listening, 5).unwrap();
    let listener = scene.register(listening, 0, None).unwrap();
    connect(&client, &address).unwrap();
    let handle = scene.accept_one(listener);
    assert_eq!(scene.explain(handle).unwrap().kind, "UNIX seqpacket socket");
    for message in ["one", "and two"] {
        rustix::io::write(&client, message.as_bytes()).unwrap();
    }
    assert_eq!(&*scene.read_once(handle, 100).unwrap(), b"one");
    assert_eq!(&*scene.read_once(handle, 100).unwrap(), b"and two");
    scene.write(handle, "three").unwrap();
    scene.expect_written(handle, 5);
    assert_eq!(rustix::io::read(&client, &mut [0; 10][..]).unwrap(), 5);
}

fn connect_binds_the_local_address(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    let ours = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 77), 0));
    let options = ConnectOptions::default().bind(ours.into());
    let client = scene.connect(&address, &options, 0).unwrap();
    let Event::Connect(Ok(())) = scene.next_of(client) else { panic!() };
    let server = scene.accept_one(listener);
    let seen = scene.peer_address(server).unwrap().as_inet().unwrap();
    assert_eq!(seen.ip(), ours.ip());
    assert_eq!(scene.local_address(client).unwrap().as_inet(), Some(seen));
}

fn fast_open_option_is_set_on_the_kernel_socket(case: &Case) {
    let mut scene = case.scene();
    let (_listener, address) = scene.listening("127.0.0.1:0");
    for asked in [false, true] {
        let options = ConnectOptions::default().fast_open(asked);
        let client = scene.connect(&address, &options, 0).unwrap();
        let Event::Connect(Ok(())) = scene.next_of(client) else { panic!() };
        let socket = scene.channel.descriptor(client).unwrap().unwrap();
        let mut told = 0_i32;
        let mut len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: `told` and `len` outlive the call, and `len` is the size of `told`.
        let answer = unsafe {
            libc::getsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&socket),
                libc::IPPROTO_TCP,
                libc::TCP_FASTOPEN_CONNECT,
                (&raw mut told).cast(),
                &raw mut len,
            )
        };
        assert_eq!((answer, told), (0, i32::from(asked)));
    }
}

fn binding_to_an_address_in_use_fails_at_once(case: &Case) {
    let mut scene = case.scene();
    // On our own stack an address is as good as in use if it is the kernel's.
    let taken = TcpListener::bind(there("127.0.0.1:0")).unwrap();
    let address = taken.local_addr().unwrap().into();
    let options = ConnectOptions::default().bind(taken.local_addr().unwrap().into());
    let error = scene.connect(&address, &options, 0).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind");
    let error = scene.listen(&address, &ListenOptions::default(), 0).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind");
}

fn writes_and_reads_may_be_queued_before_the_connection_is_there(case: &Case) {
    let mut scene = case.scene();
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(there(local)).unwrap();
        let address = listener.local_addr().unwrap().into();
        let handle = scene.connect(&address, &ConnectOptions::default(), 0).unwrap();
        scene.read(handle, 100).unwrap();
        scene.write(handle, "early").unwrap();
        scene.write(handle, "bird").unwrap();
        let Event::Connect(Ok(())) = scene.next_of(handle) else { panic!("connect is first") };
        scene.expect_written(handle, 5);
        scene.expect_written(handle, 4);
        let mut server = scene.admit(&listener);
        assert_eq!(scene.receive(&mut server, 9), b"earlybird");
        scene.send(&mut server, b"worm");
        let Event::Read(Ok(bytes)) = scene.next_of(handle) else { panic!() };
        assert_eq!(&*bytes, b"worm");
    }
}

fn operations_queued_before_a_refusal_fail_with_it(case: &Case) {
    let mut scene = case.scene();
    let handle = scene.connect(&deserted().into(), &ConnectOptions::default(), 0).unwrap();
    scene.read(handle, 100).unwrap();
    scene.write(handle, "one").unwrap();
    scene.write(handle, "two").unwrap();
    let Event::Connect(Err(OpError::Refused)) = scene.next_of(handle) else { panic!() };
    let (mut reads, mut writes) = (0, 0);
    while reads + writes < 3 {
        match scene.next_of(handle) {
            Event::Read(Err(OpError::Refused)) => reads += 1,
            Event::Write(Err(OpError::Refused)) => writes += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((reads, writes), (1, 2));
}

fn second_listener_is_shared_or_refused(case: &Case) {
    let mut scene = case.scene();
    let (first, address) = scene.listening("127.0.0.1:0");
    let second = scene.listen(&address, &ListenOptions::default(), 0).unwrap();
    assert_eq!(scene.local_address(second).unwrap(), address);
    let error = scene.listen(&address, &ListenOptions::default().share(false), 0).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind");
    for handle in [first, second] {
        scene.channel.accept(handle, Accept::lwsocket(u32::MAX)).unwrap();
    }
    for _ in 0..20 {
        let mut client = scene.dial(address.as_inet().unwrap()).unwrap();
        let Event::Accept(Ok(accepted)) = scene.next().event else { panic!() };
        let Connection::Lwsocket(handle) = accepted.connection else { panic!() };
        scene.unregister(handle).unwrap();
        scene.flush().unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
    let folder = Folder::new();
    let path = Address::unix(folder.path("socket")).unwrap();
    scene.listen(&path, &ListenOptions::default(), 0).unwrap();
    let error = scene.listen(&path, &ListenOptions::default(), 0).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind");
    UnixStream::connect(folder.path("socket")).unwrap();
    let (handle, _) = scene.stream(Stream::Connected6);
    scene.unregister(handle).unwrap();
}
