//! TCP ports that stay free for one test.
//!
//! A port that is chosen by "bind, read, close" can belong to another program before the test uses
//! it. A bound socket that does not listen keeps it: Linux then gives the port to no socket that
//! asks for any port, while a server that sets SO_REUSEADDR can bind it and listen. Connections to
//! a reserved port without a server are refused.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// A port of 127.0.0.1 that no other program is given while this exists.
pub struct ReservedPort {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl ReservedPort {
    /// Reserves a free port.
    ///
    /// # Panics
    /// No port is free.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one is another port")]
    pub fn new() -> Self {
        let kind = (AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = socket_with(kind.0, kind.1, kind.2, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("an option of all sockets");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        // Only for its method: the socket does not listen.
        let bound = TcpListener::from(socket);
        let address = bound.local_addr().expect("it is bound");
        Self { _socket: bound.into(), address }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its number.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }
}

#[test]
fn reserved_port_refuses_until_a_server_listens() {
    let reserved = ReservedPort::new();
    let refused = std::net::TcpStream::connect(reserved.address()).expect_err("no server");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // The standard library sets SO_REUSEADDR.
    let server = TcpListener::bind(reserved.address()).expect("it is free for a server");
    std::net::TcpStream::connect(reserved.address()).expect("the server listens");
    drop(server);
}
