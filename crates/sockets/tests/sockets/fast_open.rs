//! TCP Fast Open of clients: TCP_FASTOPEN_CONNECT and MSG_FASTOPEN. (Of listeners: `options.rs`.)

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use megapipe::Clock;
use megapipe_sockets::{Bsd, Config, Context, Error, MsgFlags, OpenFlags};

use crate::host::Fd;
use crate::namespace::allow_fast_open;
use crate::world::{
    Client, STACK_IPS, STACK_PLACES, Server, Side, StackPlace, World, alone, compare, stack_configs,
};

const TCP: i32 = libc::IPPROTO_TCP;
/// TCPI_OPT_SYN_DATA among the options of `struct tcp_info`.
const SYN_DATA: u8 = 32;

fn set(world: &mut World, side: Side, fd: Fd, name: i32, number: i32) {
    let answer = world.host(side).setsockopt(fd, TCP, name, &number.to_ne_bytes());
    let told = world.host(side).getsockopt(fd, TCP, name, 4);
    world.note(&format!("set {name} to {number}"), &(answer, told));
}

/// A listener with Fast Open.
fn server(world: &mut World) -> (Fd, SocketAddr) {
    let fd = world.tcp(Server);
    let any_port = world.address(Server, 0);
    world.host(Server).bind(fd, any_port).unwrap();
    set(world, Server, fd, libc::TCP_FASTOPEN, 16);
    world.host(Server).listen(fd, 16).unwrap();
    let address = world.host(Server).getsockname(fd).unwrap();
    (fd, address)
}

/// A socket that connects by Fast Open.
fn fast(world: &mut World) -> Fd {
    let fd = world.tcp(Client);
    set(world, Client, fd, libc::TCP_FASTOPEN_CONNECT, 1);
    fd
}

fn note_info(world: &mut World, what: &str, side: Side, fd: Fd) {
    let told = world.host(side).getsockopt(fd, TCP, libc::TCP_INFO, 8);
    world.note(what, &told.map(|bytes| (bytes[0], bytes[5] & SYN_DATA != 0)));
}

fn note_poll(world: &mut World, what: &str, side: Side, fd: Fd) {
    world.settle();
    let told = world.host(side).poll(&[(fd, libc::POLLIN | libc::POLLOUT)]);
    world.note(what, &told);
}

/// Connects once, so that the client knows the server's cookie. On Linux it may know it already:
/// the kernel keeps cookies by address.
fn learn_cookie(world: &mut World, listener: Fd, address: SocketAddr) {
    let fd = fast(world);
    if world.host(Client).connect(fd, Some(address)).is_err() {
        let accepted = world.accept(listener);
        world.host(Server).close(accepted).unwrap();
    }
    world.host(Client).close(fd).unwrap();
    world.settle();
}

/// Runs a program with a listener and a cookie that the client knows.
fn compare_with_cookie(program: impl Fn(&mut World, Fd, SocketAddr)) {
    if !allow_fast_open() {
        println!("skipped: Fast Open of servers cannot be allowed here");
        return;
    }
    compare(|world| {
        let (listener, address) = server(world);
        learn_cookie(world, listener, address);
        program(world, listener, address);
    });
}

fn note_accept(world: &mut World, what: &str, listener: Fd) {
    world.settle();
    let accepted = world.host(Server).accept4(listener, libc::SOCK_NONBLOCK);
    world.note(what, &accepted.map(drop));
}

#[test]
fn fast_open_connect_sends_the_first_write_with_the_syn() {
    compare_with_cookie(|world, listener, address| {
        let fd = fast(world);
        let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT);
        let begun = world.host(Client).connect(fd, Some(address));
        world.note("with a cookie", &begun);
        let again = world.host(Client).connect(fd, Some(address));
        world.note("again", &again);
        note_accept(world, "nothing has left", listener);
        note_info(world, "waits for data", Client, fd);
        note_poll(world, "can be written to", Client, fd);
        world.note_events("in a set", Client, epoll);
        world.note_recv("nothing to read", Client, fd, 10, 0);
        set(world, Client, fd, libc::TCP_FASTOPEN_CONNECT, 0);
        world.note_send("question", Client, fd, b"question", 0);
        let accepted = world.accept(listener);
        note_info(world, "took data", Server, accepted);
        note_info(world, "sent data", Client, fd);
        world.note_recv("question", Server, accepted, 100, 0);
        world.note_send("answer", Server, accepted, b"answer", 0);
        world.note_recv("answer", Client, fd, 100, 0);
        for _ in 0..2 {
            let late = world.host(Client).connect(fd, Some(address));
            world.note("connect when connected", &late);
        }
        note_poll(world, "open", Client, fd);
    });
}

#[test]
fn fast_open_flag_connects_and_sends() {
    compare_with_cookie(|world, listener, address| {
        let fd = world.tcp(Client);
        world.note_send("no address", Client, fd, b"x", libc::MSG_FASTOPEN);
        let sent = world.host(Client).sendto(fd, b"question", libc::MSG_FASTOPEN, address);
        world.note("sendto", &sent);
        let accepted = world.accept(listener);
        note_info(world, "sent data", Client, fd);
        world.note_recv("question", Server, accepted, 100, 0);
        let first = world.host(Client).connect(fd, Some(address));
        world.note("connect", &first);
        world.note_send("connected", Client, fd, b"x", libc::MSG_FASTOPEN);
        let again = world.host(Client).sendto(fd, b"x", libc::MSG_FASTOPEN, address);
        world.note("connected, to an address", &again);
        world.note_send("plain", Client, fd, b"more", 0);
        world.note_recv("plain", Server, accepted, 100, 0);
        let server_s = world.host(Server).sendto(listener, b"x", libc::MSG_FASTOPEN, address);
        world.note("a listener", &server_s);
    });
}

#[test]
fn fast_open_without_a_cookie_begins_to_connect() {
    for place in STACK_PLACES {
        let mut world = alone(place);
        let world = &mut world;
        let (listener, address) = server(world);
        let fd = world.tcp(Client);
        let sent = world.host(Client).sendto(fd, b"question", libc::MSG_FASTOPEN, address);
        assert_eq!(sent, Err(libc::EINPROGRESS));
        let sent = world.host(Client).sendto(fd, b"question", libc::MSG_FASTOPEN, address);
        assert_eq!(sent, Err(libc::EALREADY));
        let accepted = world.accept(listener);
        assert_eq!(world.host(Server).recv(accepted, 100, 0), Err(libc::EAGAIN));
        // The handshake brought the cookie; the server announced an MSS of 1460.
        for (fd, bytes) in [(fast(world), 5000), (world.tcp(Client), 5000), (fast(world), 0)] {
            let data = vec![7; bytes];
            let begun = world.host(Client).connect(fd, None);
            assert_eq!(begun, Ok(()));
            let sent = world.host(Client).sendto(fd, &data, libc::MSG_FASTOPEN, address);
            assert_eq!(sent, if bytes > 0 { Ok(1420) } else { Err(libc::EINPROGRESS) });
            if place == StackPlace::INLINE {
                // The server has had no turn, so the handshake is not complete.
                assert_eq!(world.host(Client).send(fd, b"x", 0), Err(libc::EAGAIN));
                assert_eq!(world.host(Client).poll(&[(fd, libc::POLLOUT)]), Ok(vec![0]));
            }
            let accepted = world.accept(listener);
            let came = world.host(Server).recv(accepted, 5000, 0).map(|bytes| bytes.len());
            assert_eq!(came, if bytes > 0 { Ok(1420) } else { Err(libc::EAGAIN) });
        }
    }
}

#[test]
fn fast_open_connect_is_retried_until_it_is_done() {
    for place in STACK_PLACES {
        let mut world = alone(place);
        let world = &mut world;
        let (listener, address) = server(world);
        let fd = fast(world);
        let connect = |world: &mut World| world.host(Client).connect(fd, Some(address));
        assert_eq!(connect(world), Err(libc::EINPROGRESS), "{place:?}");
        // A server on a thread of its own may have answered meanwhile.
        let retried = connect(world);
        let is_connected = retried == Ok(()) && place != StackPlace::INLINE;
        assert!(is_connected || retried == Err(libc::EALREADY), "{retried:?} {place:?}");
        let accepted = world.accept(listener);
        world.settle();
        if !is_connected {
            assert_eq!(connect(world), Ok(()), "{place:?}");
        }
        assert_eq!(connect(world), Err(libc::EISCONN), "{place:?}");
        assert_eq!(world.host(Client).send(fd, b"question", 0), Ok(8));
        world.settle();
        assert_eq!(world.host(Server).recv(accepted, 100, 0), Ok(b"question".to_vec()));
    }
}

#[test]
fn fast_open_socket_that_ends_before_its_syn_leaves() {
    compare_with_cookie(|world, listener, address| {
        for way in ["close", "shut both", "shut write", "unspecified"] {
            let fd = fast(world);
            let begun = world.host(Client).connect(fd, Some(address));
            world.note("with a cookie", &begun);
            let ended = match way {
                "close" => world.host(Client).close(fd),
                "shut both" => world.host(Client).shutdown(fd, libc::SHUT_RDWR),
                "shut write" => world.host(Client).shutdown(fd, libc::SHUT_WR),
                _ => world.host(Client).connect(fd, None),
            };
            world.note(way, &ended);
            if way != "close" {
                note_poll(world, "afterwards", Client, fd);
                let begun = world.host(Client).connect(fd, Some(address));
                world.note("once more", &begun);
                world.host(Client).close(fd).unwrap();
            }
            note_accept(world, "nothing has left", listener);
        }
    });
}

#[test]
fn fast_open_to_a_port_without_listener() {
    compare_with_cookie(|world, listener, address| {
        world.host(Server).close(listener).unwrap();
        let fd = fast(world);
        let begun = world.host(Client).connect(fd, Some(address));
        world.note("connect", &begun);
        let epoll = world.watch(Client, fd, libc::EPOLLIN | libc::EPOLLOUT);
        world.note_send("write", Client, fd, b"question", 0);
        world.note_events("refused", Client, epoll);
        world.note_send("write", Client, fd, b"question", 0);
        world.note_send("write", Client, fd, b"question", 0);
    });
}

#[test]
fn fast_open_to_a_server_without_it_falls_back() {
    compare_with_cookie(|world, listener, address| {
        set(world, Server, listener, libc::TCP_FASTOPEN, 0);
        let fd = fast(world);
        let begun = world.host(Client).connect(fd, Some(address));
        world.note("connect", &begun);
        world.note_send("write", Client, fd, b"question", 0);
        let accepted = world.accept(listener);
        note_info(world, "the data was sent again", Client, fd);
        world.note_recv("question", Server, accepted, 100, 0);
        note_poll(world, "open", Client, fd);
    });
}

#[test]
fn fast_open_connect_takes_two_values_before_connecting() {
    compare(|world| {
        let fresh = world.tcp(Client);
        let (_, connected) = world.connection();
        let (listener, _) = world.listener(Client, 4);
        for fd in [fresh, connected, listener] {
            for number in [1, 0, 2, -1] {
                set(world, Client, fd, libc::TCP_FASTOPEN_CONNECT, number);
            }
        }
    });
}

/// A server that reads three connections to their ends, and then listens no more.
fn serve_three(config: Config, listening: &Sender<SocketAddr>, read: &Sender<Vec<u8>>) {
    let mut context = Context::create(config).unwrap();
    let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    context.bind(listener, (STACK_IPS[0], 0).into()).unwrap();
    context.setsockopt(listener, TCP, libc::TCP_FASTOPEN, &16_i32.to_ne_bytes()).unwrap();
    context.listen(listener, 16).unwrap();
    let patience = [20_i64.to_ne_bytes(), 0_i64.to_ne_bytes()].concat();
    context.setsockopt(listener, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience).unwrap();
    listening.send(context.getsockname(listener).unwrap()).unwrap();
    for _ in 0..3 {
        let fd = context.accept4(listener, OpenFlags::empty()).unwrap();
        let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            match context.read(fd, &mut bytes).unwrap() {
                0 => break,
                len => all.extend_from_slice(&bytes[..len]),
            }
        }
        context.close(fd).unwrap();
        if all.len() == 3000 {
            context.close(listener).unwrap();
        }
        read.send(all).unwrap();
    }
    // Refuses until the client is gone.
    while context.drive(Some(Duration::from_millis(1))).is_ok()
        && listening.send((STACK_IPS[0], 0).into()).is_ok()
    {}
}

/// What the server has read next, by a client that takes turns meanwhile.
fn heard(context: &mut Context, read: &Receiver<Vec<u8>>) -> Vec<u8> {
    loop {
        context.drive(Some(Duration::from_millis(1))).unwrap();
        match read.try_recv() {
            Err(TryRecvError::Empty) => {}
            heard => return heard.expect("the server goes on"),
        }
    }
}

/// A client whose calls wait.
fn call_three(config: Config, listening: Receiver<SocketAddr>, read: Receiver<Vec<u8>>) {
    let mut context = Context::create(config).unwrap();
    let address = listening.recv().unwrap();
    let data: Vec<u8> = (0..5000_u32).map(|index| (index % 251) as u8).collect();
    // Without a cookie, then with one.
    for has_cookie in [false, true] {
        let fd = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let pieces = [IoSlice::new(&data)];
        let sent = context.sendto(fd, &pieces, Some(address), MsgFlags::FASTOPEN);
        assert_eq!(sent, Ok(data.len()));
        let mut info = [0; 8];
        context.getsockopt(fd, TCP, libc::TCP_INFO, &mut info).unwrap();
        assert_eq!((info[0], info[5] & SYN_DATA != 0), (1, has_cookie));
        assert_eq!(context.connect(fd, Some(address)), Err(Error::AlreadyConnected));
        context.close(fd).unwrap();
        assert!(heard(&mut context, &read) == data);
    }
    let fd = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let on = 1_i32.to_ne_bytes();
    context.setsockopt(fd, TCP, libc::TCP_FASTOPEN_CONNECT, &on).unwrap();
    context.connect(fd, Some(address)).unwrap();
    assert_eq!(context.write(fd, &data[..3000]), Ok(3000));
    context.close(fd).unwrap();
    assert!(heard(&mut context, &read) == data[..3000]);
    // The call returns a refusal, and leaves a socket that may connect again.
    let fd = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    for _ in 0..2 {
        let pieces = [IoSlice::new(&data)];
        let sent = context.sendto(fd, &pieces, Some(address), MsgFlags::FASTOPEN);
        assert_eq!(sent, Err(Error::Refused));
    }
}

#[test]
fn fast_open_send_that_waits_sends_all() {
    for place in STACK_PLACES {
        let [here, there] = stack_configs(&Clock::new(), place);
        let ((tell, listening), (took, read)) = (channel(), channel());
        std::thread::scope(|scope| {
            scope.spawn(move || serve_three(here, &tell, &took));
            call_three(there, listening, read);
        });
    }
}
