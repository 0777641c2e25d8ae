//! Over loopback: how many sockets hold the ports, and what other programs may still bind.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::*;
use crate::test_namespace::isolated;

const QUICK: Duration = Duration::from_millis(150);

fn loopback() -> u32 {
    let lo = crate::interface::InterfaceQuery::new("lo").expect("a socket");
    lo.index().expect("an index").unsigned_abs()
}

/// A port at which nothing of this host is bound now.
fn free_port() -> u16 {
    let any = TcpListener::bind("[::]:0").expect("a free port");
    any.local_addr().expect("an address").port()
}

/// What is ours: a port at three addresses.
fn owning(port: u16, is_client_port: bool) -> Ownership {
    let mut ownership = Ownership::new();
    for address in ["127.0.0.1", "127.0.0.2", "::1"] {
        ownership.add_address(address.parse().expect("an address")).expect("room");
    }
    ownership.tcp_ports.insert(port..=port).expect("room");
    if is_client_port {
        ownership.client_ports.insert(port..=port).expect("room");
    }
    ownership
}

/// Holds what is ours; `None`, and a line, where that needs more than this process may do.
fn held(name: &str, ownership: &Ownership) -> Option<PortTable> {
    let mut port_table = PortTable::new(loopback());
    match port_table.prepare(ownership) {
        Ok(change) => port_table.commit(change),
        Err(error) if error.to_string().contains("CAP_NET_ADMIN") => {
            println!("skipped: {name}: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    Some(port_table)
}

#[test]
fn client_port_takes_one_socket_for_all_addresses() {
    isolated(|| {
        let name = "client_port_takes_one_socket_for_all_addresses";
        let port = free_port();
        let ownership = owning(port, true);
        let Some(port_table) = held(name, &ownership) else { return };
        assert_eq!(port_table.held.len(), 1);
        for address in ownership.addresses() {
            let address = SocketAddr::new(*address, port);
            let error = TcpStream::connect_timeout(&address, QUICK).expect_err("a silent port");
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{address}: {error}");
            assert!(TcpListener::bind(address).is_err(), "{address} is reserved");
            // The other protocol is not.
            UdpSocket::bind(address).expect("a free port");
        }
        // What is held stays, and is not taken again.
        let change = port_table.prepare(&ownership).expect("nothing is new");
        assert!(change.new.is_empty());
    });
}

#[test]
fn client_port_in_use_elsewhere_is_held_at_each_address() {
    isolated(|| {
        let name = "client_port_in_use_elsewhere_is_held_at_each_address";
        let other = TcpListener::bind("127.0.0.3:0").expect("a port");
        let port = other.local_addr().expect("an address").port();
        let Some(mut port_table) = held(name, &owning(port, true)) else { return };
        assert_eq!(port_table.held.len(), 3);
        TcpStream::connect(("127.0.0.3", port)).expect("the other program is not disturbed");
        let change = port_table.prepare(&owning(port, true)).expect("nothing is new");
        assert!(change.new.is_empty());
        port_table.commit(change);
        assert_eq!(port_table.held.len(), 3);
    });
}

#[test]
fn listening_port_leaves_other_addresses_to_other_programs() {
    isolated(|| {
        let name = "listening_port_leaves_other_addresses_to_other_programs";
        let port = free_port();
        let Some(port_table) = held(name, &owning(port, false)) else { return };
        assert_eq!(port_table.held.len(), 3);
        TcpListener::bind(("127.0.0.3", port)).expect("the port is free at this address");
    });
}
