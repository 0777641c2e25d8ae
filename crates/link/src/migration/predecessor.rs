//! A connection of the kernel's that is about to leave it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{connect_unspec, getpeername, getsockname, sockopt};

use super::socket::{self, Off, SocketQueue};
use super::{Agreed, Checkpoint, RepairError, Windows, failed};

/// `TCP_ESTABLISHED` of the kernel's `enum`, which `TCP_INFO` tells.
const ESTABLISHED: u8 = 1;
/// The kernel's states, from 1 on, as RFC 9293 §3.3.2 calls them.
const STATES: [&str; 12] = [
    "ESTABLISHED",
    "SYN-SENT",
    "SYN-RECEIVED",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "CLOSED",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "SYN-RECEIVED",
];
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 4;
const OPTION_ECN: u8 = 8;

/// A kernel socket whose connection is to live elsewhere.
///
/// Dropped when it is frozen it goes without a segment; descriptors of the same socket that others
/// hold keep it deaf.
#[derive(Debug)]
pub struct Predecessor {
    socket: OwnedFd,
    is_aside: bool,
    is_frozen: bool,
    /// SO_REUSEADDR before it was frozen.
    reuses_address: bool,
}

impl Predecessor {
    /// Looks at a connection; nothing changes.
    ///
    /// # Errors
    /// [`RepairError`], with the socket.
    pub fn new(socket: OwnedFd) -> Result<Self, (OwnedFd, RepairError)> {
        match check(socket.as_fd()) {
            Ok(()) => Ok(Self { socket, is_aside: false, is_frozen: false, reuses_address: false }),
            Err(error) => Err((socket, error)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// This host's end and the peer's.
    ///
    /// # Errors
    /// [`RepairError::Io`].
    pub fn ends(&self) -> Result<(SocketAddr, SocketAddr), RepairError> {
        ends(self.fd()).map_err(failed("ask for the addresses"))
    }

    /// From now on it neither hears nor sends. Blocks for a few system calls.
    ///
    /// # Errors
    /// [`RepairError::NotAllowed`], [`RepairError::Io`].
    pub fn freeze(&mut self) -> Result<(), RepairError> {
        self.reuses_address =
            socket::reuses_address(self.fd()).map_err(failed("read SO_REUSEADDR"))?;
        socket::begin_repair(self.fd()).map_err(failed("enter repair mode"))?;
        self.is_frozen = true;
        socket::deafen(self.fd()).map_err(failed("attach a filter that drops everything"))
    }

    /// All there is to know of the frozen connection. Costs a copy of both queues.
    ///
    /// # Errors
    /// [`RepairError::WrongState`] for an end that arrived before it was frozen;
    /// [`RepairError::Io`].
    pub fn checkpoint(&self) -> Result<Checkpoint, RepairError> {
        // Since `check` the peer may have closed.
        let info = established(self.fd())?;
        let (local, remote) = self.ends()?;
        let read = |what| move |error| failed(what)(error);
        let (rcv_nxt, unread) = self.receive_queue().map_err(read("read the receive queue"))?;
        let (write_seq, queue, unsent_bytes) =
            self.send_queue().map_err(read("read the send queue"))?;
        let raw = socket::windows(self.fd()).map_err(read("read the windows"))?;
        let agreed = self.agreed(&info).map_err(read("read the options"))?;
        let mut sent = queue;
        let unsent = sent.split_off(sent.len().saturating_sub(unsent_bytes));
        let queued_bytes = (sent.len() + unsent.len()) as u32;
        Ok(Checkpoint {
            local,
            remote,
            snd_una: write_seq.wrapping_sub(queued_bytes),
            rcv_nxt,
            windows: Windows {
                snd_wl1: raw.snd_wl1,
                snd_wnd: raw.snd_wnd,
                snd_wnd_max: raw.max_window,
                // The right edge of what was announced, from where the peer is now.
                rcv_wnd: raw.rcv_wup.wrapping_add(raw.rcv_wnd).wrapping_sub(rcv_nxt),
            },
            agreed,
            sent,
            unsent,
            unread,
            nodelay: sockopt::tcp_nodelay(&self.socket).unwrap_or(false),
            srtt_us: info.srtt_us,
        })
    }

    fn receive_queue(&self) -> io::Result<(u32, Vec<u8>)> {
        socket::choose_queue(self.fd(), SocketQueue::Receive)?;
        let rcv_nxt = socket::queue_seq(self.fd())?;
        let unread = socket::peek(self.fd(), socket::unread_bytes(self.fd())?)?;
        Ok((rcv_nxt, unread))
    }

    /// The number after the last byte, the bytes, and how many of them were never sent.
    fn send_queue(&self) -> io::Result<(u32, Vec<u8>, usize)> {
        // From here on a timer of the kernel's may count bytes as sent, but sends none.
        socket::choose_queue(self.fd(), SocketQueue::Send)?;
        let unsent_bytes = socket::unsent_bytes(self.fd())?;
        let write_seq = socket::queue_seq(self.fd())?;
        let queue = socket::peek(self.fd(), socket::unacked_bytes(self.fd())?)?;
        Ok((write_seq, queue, unsent_bytes))
    }

    fn agreed(&self, info: &socket::TcpInfo) -> io::Result<Agreed> {
        let has = |option| info.options & option != 0;
        let mss = u16::try_from(socket::mss(self.fd())?).unwrap_or(u16::MAX);
        let timestamp = match has(OPTION_TIMESTAMPS) {
            // The lowest bit says which clock it is and not what it shows; a later value than the
            // last that was sent is what the peer has to see (RFC 7323 §5.2).
            true => Some(socket::timestamp(self.fd())?.wrapping_add(1)),
            false => None,
        };
        Ok(Agreed {
            mss,
            window_scale: has(OPTION_WINDOW_SCALE).then_some((info.snd_scale, info.rcv_scale)),
            sack: has(OPTION_SACK),
            timestamp,
            ecn: has(OPTION_ECN),
        })
    }

    /// Makes room beside it: another socket may have the same addresses and ports, if it is bound
    /// to no interface. The frames of this interface still find one of the two.
    ///
    /// # Errors
    /// [`RepairError::Unmovable`] for a socket that is bound to another interface.
    pub fn stand_aside(&mut self, interface: u32) -> Result<(), RepairError> {
        let bound = socket::bound_interface(self.fd()).map_err(failed("ask for the interface"))?;
        if bound != 0 && bound != interface {
            return Err(RepairError::Unmovable("another interface that it is bound to"));
        }
        if bound == 0 {
            socket::bind_to_interface(self.fd(), interface).map_err(failed("stand aside"))?;
            self.is_aside = true;
        }
        Ok(())
    }

    /// The kernel goes on with it as if nothing had been.
    #[must_use]
    pub fn thaw(self) -> OwnedFd {
        if self.is_aside {
            // It was bound by us, so it can be let go by us.
            let _ = socket::bind_to_interface(self.fd(), 0);
        }
        if self.is_frozen {
            // A socket that was not made deaf has nothing to detach.
            let _ = socket::undeafen(self.fd());
            let _ = socket::end_repair(self.fd(), Off::Silent, self.reuses_address);
        }
        self.socket
    }

    /// Removes the connection from the kernel without sending a segment, also if other descriptors
    /// refer to it. Called when it has migrated.
    pub fn end(self) {
        // In repair mode this sends nothing. If it fails, closing does the same for our descriptor.
        let _ = connect_unspec(&self.socket);
    }
}

/// What has to be so before anything is changed.
fn check(fd: BorrowedFd<'_>) -> Result<(), RepairError> {
    match socket::protocol(fd).map_err(|_| RepairError::NotTcp("no socket"))?.cast_signed() {
        libc::IPPROTO_TCP => {}
        libc::IPPROTO_MPTCP => return Err(RepairError::NotTcp("one of Multipath TCP")),
        libc::IPPROTO_UDP => return Err(RepairError::NotTcp("a UDP socket")),
        _ => return Err(RepairError::NotTcp("a socket of another protocol")),
    }
    established(fd)?;
    if socket::has_upper_protocol(fd) {
        return Err(RepairError::Unmovable("a protocol on top (TLS in the kernel)"));
    }
    if socket::has_filter(fd) {
        return Err(RepairError::Unmovable("a socket filter"));
    }
    Ok(())
}

fn established(fd: BorrowedFd<'_>) -> Result<socket::TcpInfo, RepairError> {
    let info = socket::info(fd).map_err(failed("ask for the connection's state"))?;
    if info.state != ESTABLISHED {
        let state = STATES.get(usize::from(info.state).wrapping_sub(1));
        return Err(RepairError::WrongState(state.copied().unwrap_or("an unknown state")));
    }
    Ok(info)
}

/// The addresses; those of IPv4 that an IPv6 socket has, as IPv4's.
fn ends(fd: BorrowedFd<'_>) -> io::Result<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(getsockname(fd)?)?;
    let remote = getpeername(fd)?.ok_or(Errno::NOTCONN)?;
    let remote = SocketAddr::try_from(remote)?;
    Ok((plain(local), plain(remote)))
}

/// Without flow label and scope.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
