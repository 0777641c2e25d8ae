//! What the kernel sends, as a packet socket sees it: with the kernel's own times.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use rustix::time::Timespec;

use super::sys;
use crate::system::SystemError;

/// All protocols, in network byte order.
const ETH_P_ALL: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;
/// Buffer for packets that arrive between two reads.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
const PACKET_BYTES_MAX: usize = 1 << 17;

/// A packet socket on all interfaces of the namespace.
pub(super) struct NamespaceCapture {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl NamespaceCapture {
    pub(super) fn new() -> Result<Self, SystemError> {
        let broken = |error: rustix::io::Errno| SystemError::Failed {
            what: "no packet socket",
            why: error.to_string(),
        };
        let protocol = NonZeroU32::new(ETH_P_ALL).map(Protocol::from_raw);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Datagrams begin with the IP header: a TUN device has no link header.
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, protocol)
            .map_err(broken)?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)
            .map_err(broken)?;
        // Nothing has arrived, so there is no time to read; the kernel keeps times from now on.
        let _ = sys::packet_time(&socket);
        Ok(Self { socket, buffer: vec![0; PACKET_BYTES_MAX] })
    }

    /// The next packet and its time in microseconds since 1970, waiting at most so long. Packets
    /// that the script itself sent come by too.
    pub(super) fn next(&mut self, wait_us: i64) -> Result<Option<(i64, Vec<u8>)>, SystemError> {
        match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => {
                let (seconds, nanoseconds) = sys::packet_time(&self.socket).map_err(|error| {
                    SystemError::Failed { what: "a packet without a time", why: error.to_string() }
                })?;
                let at_us = seconds * 1_000_000 + nanoseconds / 1000;
                return Ok(Some((at_us, self.buffer[..len].to_vec())));
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => {
                let why = error.to_string();
                return Err(SystemError::Failed { what: "the packet socket", why });
            }
        }
        let timeout = Timespec { tv_sec: wait_us / 1_000_000, tv_nsec: wait_us % 1_000_000 * 1000 };
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
        Ok(None)
    }
}
