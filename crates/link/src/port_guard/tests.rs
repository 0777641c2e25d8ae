//! Over loopback: who knocks at a reserved port hears nothing.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::*;
use crate::test_namespace::isolated;

/// How long silence is listened to.
const QUICK: Duration = Duration::from_millis(150);
/// How long an answer is waited for: a busy machine may take its time for it.
const PATIENCE: Duration = Duration::from_secs(10);

fn anywhere(is_ipv6: bool) -> SocketAddr {
    if is_ipv6 { "[::1]:0".parse().unwrap() } else { "127.0.0.1:0".parse().unwrap() }
}

#[test]
fn a_reserved_tcp_port_is_silent_and_a_free_one_is_not() {
    isolated(|| {
        for is_ipv6 in [false, true] {
            let held = match PortGuard::port(Transport::Tcp, anywhere(is_ipv6)) {
                Ok(held) => held,
                Err(
                    error @ (PortGuardError::NotAllowed { .. } | PortGuardError::NotLocal { .. }),
                ) => {
                    println!("skipped: a reserved TCP port on {}: {error}", anywhere(is_ipv6));
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let address = held.local_address().unwrap();
            let error = TcpStream::connect_timeout(&address, QUICK).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            drop(held);
            let error = TcpStream::connect_timeout(&address, PATIENCE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        }
    });
}

#[test]
fn a_reserved_udp_port_is_silent_and_a_free_one_is_not() {
    isolated(|| {
        let held = PortGuard::port(Transport::Udp, anywhere(false)).unwrap();
        let knocking = UdpSocket::bind("127.0.0.1:0").unwrap();
        knocking.connect(held.local_address().unwrap()).unwrap();
        let knock = |time| {
            knocking.set_read_timeout(Some(time)).unwrap();
            knocking.send(b"knock").unwrap();
            knocking.recv(&mut [0; 9]).unwrap_err().kind()
        };
        assert_eq!(knock(QUICK), ErrorKind::WouldBlock);
        drop(held);
        assert_eq!(knock(PATIENCE), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn refusals_say_what_is_wrong() {
    isolated(|| {
        for transport in [Transport::Tcp, Transport::Udp] {
            let held = match PortGuard::port(transport, anywhere(false)) {
                Err(error @ PortGuardError::NotAllowed { .. }) => {
                    println!("skipped: refusals of {transport:?}: {error}");
                    continue;
                }
                other => other.unwrap(),
            };
            let taken = held.local_address().unwrap();
            let twice = PortGuard::port(transport, taken);
            assert!(
                matches!(twice, Err(PortGuardError::InUse { address, .. }) if address == taken)
            );
            let other = match transport {
                Transport::Tcp => TcpListener::bind(taken).map(drop),
                Transport::Udp => UdpSocket::bind(taken).map(drop),
            };
            assert!(other.is_err(), "nor can another program have it");
        }
        let foreign = PortGuard::port(Transport::Udp, "192.0.2.1:9".parse().unwrap());
        assert!(matches!(foreign, Err(PortGuardError::NotLocal { .. })));
    });
}

/// A TCP socket that shares its port with others that do not listen.
fn reusing() -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    socket
}

#[test]
fn one_flow_of_a_port_that_the_kernel_has_is_silent() {
    isolated(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        // Bound as long as the test runs, so that no other program gets the port.
        let reserved = reusing();
        bind(&reserved, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let peer = TcpListener::from(reserved.try_clone().unwrap()).local_addr().unwrap();
        let flow = FlowTuple {
            transport: Transport::Tcp,
            local: local.ip(),
            local_port: local.port(),
            remote: peer.ip(),
            remote_port: peer.port(),
        };
        let held = match PortGuard::flow(&flow, 0) {
            Err(error @ PortGuardError::NotAllowed { .. }) => {
                println!("skipped: one_flow_of_a_port_that_the_kernel_has_is_silent: {error}");
                return;
            }
            other => other.unwrap(),
        };
        let knock = |time| {
            let socket = reusing();
            bind(&socket, &peer).unwrap();
            let stream = TcpStream::from(socket);
            rustix::net::sockopt::set_socket_timeout(
                &stream,
                rustix::net::sockopt::Timeout::Send,
                Some(time),
            )
            .unwrap();
            connect(&stream, &local).err()
        };
        // The flow's own socket drops the handshake; the listener, next to it, would take it.
        assert_eq!(knock(QUICK), Some(Errno::INPROGRESS));
        let other = TcpStream::connect_timeout(&local, PATIENCE);
        assert!(other.is_ok(), "the port's other flows go on: {other:?}");
        drop(held);
        assert_eq!(knock(PATIENCE), None);
    });
}
