//! Which TCP connections the kernel has: one question and one answer at a time.
//!
//! Read first: sock_diag(7), on `inet_diag_req_v2`.
//!
//! Invariant: only an answer of the kernel's to the last question counts.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, sendto, socket_with,
};

use crate::limits::NETLINK_TIMEOUT_MS;
use crate::{FlowTuple, LinkError, Transport, sleep};

const WHAT: &str = "ask the kernel about a connection";
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
/// Header, `inet_diag_req_v2`.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// `TCP_LISTEN` of the kernel's states: what answers for a connection that is not there.
const LISTEN: u8 = 10;

/// A socket to ask through. Needs no privilege.
#[derive(Debug)]
pub struct SocketDiag {
    socket: OwnedFd,
    sequence: u32,
}

fn failed(source: Errno) -> LinkError {
    LinkError::Io { what: WHAT, source: source.into() }
}

/// The question, for a connection of TCP.
fn question(flow: &FlowTuple, sequence: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    let family = if flow.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(16, &[family as u8, flow.transport.number()]);
    // In every state.
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &flow.local_port.to_be_bytes());
    put(26, &flow.remote_port.to_be_bytes());
    for (at, address) in [(28, flow.local), (44, flow.remote)] {
        match address {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    // No cookie is known.
    put(64, &[0xff; 8]);
    bytes
}

/// What an answer says; `None`: it answers something else.
fn answer(bytes: &[u8], sequence: u32) -> Option<Result<bool, Errno>> {
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if word(8)? != sequence {
        return None;
    }
    match half(4)? {
        BY_FAMILY => Some(Ok(*bytes.get(HEADER_BYTES + 1)? != LISTEN)),
        ERROR => match Errno::from_raw_os_error(word(HEADER_BYTES)?.cast_signed().wrapping_neg()) {
            Errno::NOENT => Some(Ok(false)),
            errno => Some(Err(errno)),
        },
        _ => None,
    }
}

impl SocketDiag {
    /// Opens the socket, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub fn open() -> Result<Self, LinkError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
        Ok(Self { socket: socket.map_err(failed)?, sequence: 0 })
    }

    /// Whether the kernel has a connection of this flow, be it in TIME-WAIT. Blocks for the
    /// kernel's answer, some microseconds.
    ///
    /// # Errors
    /// [`LinkError::Io`]: the kernel cannot tell (it was built without `CONFIG_INET_TCP_DIAG`).
    pub fn has(&mut self, flow: &FlowTuple) -> Result<bool, LinkError> {
        debug_assert_eq!(flow.transport, Transport::Tcp, "only TCP has connections");
        self.sequence = self.sequence.wrapping_add(1);
        let kernel = SocketAddrNetlink::new(0, 0);
        let question = question(flow, self.sequence);
        sendto(&self.socket, &question, SendFlags::empty(), &kernel).map_err(failed)?;
        let mut buffer = [0; 1024];
        loop {
            match recvfrom(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    let is_kernels = from.is_some_and(|from| from.pid() == 0);
                    match answer(&buffer[..len], self.sequence) {
                        Some(answer) if is_kernels => return answer.map_err(failed),
                        _ => {}
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let patience = Some(Duration::from_millis(NETLINK_TIMEOUT_MS));
                    if !sleep::until_readable(self.socket.as_fd(), patience)? {
                        return Err(failed(Errno::TIMEDOUT));
                    }
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_there_until_it_is_over() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let mut sockets = SocketDiag::open().unwrap();
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (local, remote) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let flow = FlowTuple {
                transport: Transport::Tcp,
                local: local.ip(),
                local_port: local.port(),
                remote: remote.ip(),
                remote_port: remote.port(),
            };
            let back = FlowTuple {
                local: flow.remote,
                local_port: flow.remote_port,
                remote: flow.local,
                remote_port: flow.local_port,
                ..flow
            };
            match sockets.has(&flow) {
                Err(error) => return println!("skipped: netlink::sockets: {error}"),
                Ok(has) => assert!(has),
            }
            assert!(sockets.has(&back).unwrap());
            rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
            drop(client);
            assert!(!sockets.has(&flow).unwrap());
            assert!(!sockets.has(&back).unwrap(), "its listener is something else");
        }
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        assert_eq!(answer(&[], 1), None);
        let mut bytes = [0; 20];
        bytes[4] = ERROR as u8;
        bytes[8] = 7;
        bytes[16..].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(answer(&bytes, 7), Some(Ok(false)));
        assert_eq!(answer(&bytes, 8), None);
        assert_eq!(answer(&bytes[..16], 7), None);
        bytes[16..].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(answer(&bytes, 7), Some(Err(Errno::PERM)));
    }
}
