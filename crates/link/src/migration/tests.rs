//! Over loopback: connections between kernel sockets that move from one socket to another.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

/// Freezes, or says that this is not allowed here.
fn frozen(test: &str, stream: TcpStream) -> Option<Predecessor> {
    let mut predecessor = Predecessor::new(stream.into()).map_err(|(_, error)| error).unwrap();
    match predecessor.freeze() {
        Ok(()) => Some(predecessor),
        Err(RepairError::NotAllowed) => {
            println!("skipped: migration::{test}: {}", RepairError::NotAllowed);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn loopback_index() -> u32 {
    std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap()
}

/// To another socket of the kernel's.
fn moved(frozen: Predecessor) -> TcpStream {
    let checkpoint = frozen.checkpoint().unwrap();
    frozen.end();
    let successor = Successor::prepare(checkpoint, loopback_index()).unwrap();
    let stream = TcpStream::from(successor.start().unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[test]
fn a_connection_goes_on_in_another_socket() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut client, mut server) = pair(address);
        client.write_all(b"not read yet").unwrap();
        server.set_nodelay(true).unwrap();
        let name = "a_connection_goes_on_in_another_socket";
        for _ in 0..3 {
            let Some(frozen) = frozen(name, server) else { return };
            server = moved(frozen);
            assert!(server.nodelay().unwrap());
        }
        let mut got = [0; 12];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"not read yet");
        server.write_all(b"answer").unwrap();
        client.read_exact(&mut got[..6]).unwrap();
        assert_eq!(&got[..6], b"answer");
        drop(server);
        assert_eq!(client.read(&mut got).unwrap(), 0, "an orderly end");
    }
}

#[test]
fn moved_and_thawed_connections_leave_their_port_to_listeners() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let name = "moved_and_thawed_connections_leave_their_port_to_listeners";
        let (client, server) = pair(address);
        let port = server.local_addr().unwrap();
        let Some(still) = frozen(name, server) else { return };
        let server = TcpStream::from(still.thaw());
        TcpListener::bind(port).expect("thawed: as the kernel accepted it");
        let Some(frozen) = frozen(name, server) else { return };
        let server = moved(frozen);
        TcpListener::bind(port).expect("moved: as the kernel accepted it");
        drop(server);
        drop(client);
        TcpListener::bind(port).expect("in TIME-WAIT");
    }
}

#[test]
fn full_queues_move_with_their_connection() {
    let (client, mut server) = pair("127.0.0.1:0");
    let stream = pattern(6 << 20);
    // Neither end reads: both windows close, and both send queues fill.
    for end in [&client, &server] {
        end.set_nonblocking(true).unwrap();
    }
    let mut sent = [0; 2];
    let start = Instant::now();
    let mut full_since = start;
    while full_since.elapsed() < Duration::from_millis(200) || sent.contains(&0) {
        assert!(start.elapsed() < PATIENCE, "never full: {sent:?}");
        for (mut end, sent) in [&client, &server].into_iter().zip(&mut sent) {
            let taken = end.write(&stream[*sent..]).unwrap_or(0);
            if taken > 0 {
                (*sent, full_since) = (*sent + taken, Instant::now());
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(sent[0] > 256 << 10 && sent[1] > 256 << 10, "{sent:?}");
    for _ in 0..2 {
        let Some(frozen) = frozen("full_queues_move_with_their_connection", server) else { return };
        let checkpoint = frozen.checkpoint().unwrap();
        assert!(!checkpoint.unread.is_empty() && !checkpoint.unsent.is_empty());
        server = moved(frozen);
    }
    client.set_nonblocking(false).unwrap();
    let mut other = client.try_clone().unwrap();
    let stream_of_client = stream.clone();
    let client_reads = thread::spawn(move || {
        let mut got = vec![0; sent[1]];
        other.read_exact(&mut got).unwrap();
        assert!(got == stream_of_client[..sent[1]]);
    });
    let mut got = vec![0; sent[0]];
    server.read_exact(&mut got).unwrap();
    assert!(got == stream[..sent[0]]);
    client_reads.join().unwrap();
}

#[test]
fn thawed_socket_is_unchanged() {
    let (mut client, server) = pair("127.0.0.1:0");
    let Some(mut frozen) = frozen("thawed_socket_is_unchanged", server) else { return };
    client.write_all(b"while it was deaf").unwrap();
    let checkpoint = frozen.checkpoint().unwrap();
    assert_eq!(checkpoint.local.port(), client.peer_addr().unwrap().port());
    assert!(checkpoint.unread.is_empty() && checkpoint.sent.is_empty());
    frozen.stand_aside(loopback_index()).unwrap();
    // Another may have its place now, and goes.
    let beside = Successor::prepare(checkpoint.clone(), loopback_index()).unwrap();
    drop(beside);
    let mut server = TcpStream::from(frozen.thaw());
    assert_eq!(socket::bound_interface(server.as_fd()).unwrap(), 0);
    let mut got = [0; 17];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"while it was deaf", "sent again by the peer");
    server.write_all(b"x").unwrap();
    client.read_exact(&mut got[..1]).unwrap();
}

#[test]
fn two_sockets_never_have_the_same_connection() {
    let (client, server) = pair("127.0.0.1:0");
    let name = "two_sockets_never_have_the_same_connection";
    let Some(frozen) = frozen(name, server) else { return };
    let checkpoint = frozen.checkpoint().unwrap();
    let error = Successor::prepare(checkpoint, loopback_index()).unwrap_err();
    assert!(matches!(error, RepairError::InUse), "{error}");
    drop(frozen.thaw());
    drop(client);
}

#[test]
fn unmovable_socket_is_refused_unchanged() {
    let refused = |socket: OwnedFd| Predecessor::new(socket).unwrap_err().1;
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(refused(udp.into()), RepairError::NotTcp("a UDP socket")));
    let pipe = OwnedFd::from(io::pipe().unwrap().0);
    assert_eq!(refused(pipe).raw_os_error(), libc::EOPNOTSUPP);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(refused(listener.into()), RepairError::WrongState("LISTEN")));
    let (client, mut server) = pair("127.0.0.1:0");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
    let error = refused(server.into());
    assert_eq!(error.raw_os_error(), libc::ENOTCONN);
    assert!(error.to_string().ends_with("CLOSE-WAIT"), "{error}");
    drop(client);
    let (client, server) = pair("127.0.0.1:0");
    if socket::deafen(server.as_fd()).is_err() {
        println!("skipped: migration::what_cannot_move, filters: {}", RepairError::NotAllowed);
        return;
    }
    assert!(matches!(refused(server.into()), RepairError::Unmovable("a socket filter")));
    drop(client);
}
