//! A connection that is about to become the kernel's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use super::socket::{self, Off, RawOption, RawWindows, SocketQueue};
use super::{Agreed, Checkpoint, RepairError, failed};
use crate::limits::{REPAIR_PLAIN_BYTES, REPAIR_ROOM_BYTES};
use crate::port_guard::scoped;

// Numbers of options in SYNs (RFC 9293 §3.2, RFC 2018, RFC 7323).
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW_SCALE: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMPS: u32 = 8;

/// A socket that knows all of a connection's past, in repair mode and deaf.
///
/// Dropped, it goes without a segment.
#[derive(Debug)]
pub struct Successor {
    socket: OwnedFd,
    unsent: Vec<u8>,
}

impl Successor {
    /// Makes the socket. `interface` is the one that the peer is reached through: link-local
    /// addresses of IPv6 mean nothing without it. Blocks for some twenty system calls.
    ///
    /// # Errors
    /// [`RepairError::NotAllowed`], [`RepairError::InUse`], [`RepairError::Io`]; nothing is left.
    pub fn prepare(checkpoint: Checkpoint, interface: u32) -> Result<Self, RepairError> {
        let socket = connected(&checkpoint, interface)?;
        let fd = socket.as_fd();
        agree(fd, &checkpoint.agreed).map_err(failed("set the options"))?;
        refill(fd, SocketQueue::Receive, &checkpoint.unread)
            .map_err(failed("fill the receive queue"))?;
        refill(fd, SocketQueue::Send, &checkpoint.sent).map_err(failed("fill the send queue"))?;
        let windows = RawWindows {
            snd_wl1: checkpoint.windows.snd_wl1,
            snd_wnd: checkpoint.windows.snd_wnd,
            max_window: checkpoint.windows.snd_wnd_max.max(checkpoint.windows.snd_wnd),
            rcv_wnd: checkpoint.windows.rcv_wnd,
            rcv_wup: checkpoint.rcv_nxt,
        };
        socket::set_windows(fd, &windows).map_err(failed("set the windows"))?;
        Ok(Self { socket, unsent: checkpoint.unsent })
    }

    /// The socket, for a copy of the descriptor. It neither sends nor receives yet.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets the kernel go on with the connection: what was never sent is sent, and the peer is
    /// asked for its window. From now on its segments have to reach the kernel.
    ///
    /// # Errors
    /// [`RepairError::Io`]; the socket is gone then, without a segment of its own about that. Some
    /// of what had never been sent may have been.
    pub fn start(self) -> Result<OwnedFd, RepairError> {
        let started = self.try_start();
        match started {
            Ok(()) => Ok(self.socket),
            Err(error) => {
                // So that closing it is silent.
                let _ = socket::begin_repair(self.socket.as_fd());
                Err(error)
            }
        }
    }

    fn try_start(&self) -> Result<(), RepairError> {
        let fd = self.socket.as_fd();
        socket::undeafen(fd).map_err(failed("detach the filter"))?;
        // As an accepted connection has it: neither this nor its TIME-WAIT blocks a listener.
        socket::end_repair(fd, Off::Probe, true).map_err(failed("leave repair mode"))?;
        socket::fill(fd, &self.unsent).map_err(failed("send what was queued"))?;
        socket::unlock_sizes(fd);
        Ok(())
    }
}

/// An unconnected socket, deaf and in repair mode.
pub(super) fn blank(family: AddressFamily) -> Result<OwnedFd, RepairError> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed("make a socket")(errno.into()))?;
    // Before it can be reached.
    socket::deafen(socket.as_fd()).map_err(failed("attach a filter that drops everything"))?;
    socket::begin_repair(socket.as_fd()).map_err(failed("enter repair mode"))?;
    Ok(socket)
}

/// A socket that believes to be established, with its first numbers.
fn connected(checkpoint: &Checkpoint, interface: u32) -> Result<OwnedFd, RepairError> {
    let local = scoped(checkpoint.local, interface);
    let remote = scoped(checkpoint.remote, interface);
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = blank(family)?;
    let fd = socket.as_fd();
    let room = |bytes: usize| match bytes {
        0..=REPAIR_PLAIN_BYTES => 0,
        _ => bytes * 2 + REPAIR_ROOM_BYTES,
    };
    let queued_bytes = checkpoint.sent.len() + checkpoint.unsent.len();
    socket::make_room(fd, room(checkpoint.unread.len()), room(queued_bytes))
        .map_err(failed("size the queues"))?;
    // In repair mode a port may be bound that other sockets have.
    bind(fd, &local).map_err(|errno| failed("bind")(errno.into()))?;
    let unread_bytes = checkpoint.unread.len() as u32;
    for (queue, seq) in [
        (SocketQueue::Receive, checkpoint.rcv_nxt.wrapping_sub(unread_bytes)),
        (SocketQueue::Send, checkpoint.snd_una),
    ] {
        socket::choose_queue(fd, queue).map_err(failed("choose a queue"))?;
        socket::set_queue_seq(fd, seq).map_err(failed("number a queue"))?;
    }
    // In repair mode this sends nothing: the socket is established at once.
    connect(fd, &remote).map_err(|errno| failed("connect")(errno.into()))?;
    sockopt::set_tcp_nodelay(fd, checkpoint.nodelay)
        .map_err(|errno| failed("set TCP_NODELAY")(errno.into()))?;
    Ok(socket)
}

fn agree(fd: BorrowedFd<'_>, agreed: &Agreed) -> std::io::Result<()> {
    let option = |code, value| RawOption { code, value };
    socket::set_options(fd, &[option(OPTION_MSS, agreed.mss.into())])?;
    if let Some((theirs, ours)) = agreed.window_scale {
        let shifts = u32::from(theirs) | u32::from(ours) << 16;
        socket::set_options(fd, &[option(OPTION_WINDOW_SCALE, shifts)])?;
    }
    if agreed.sack {
        socket::set_options(fd, &[option(OPTION_SACK_PERMITTED, 0)])?;
    }
    if let Some(value) = agreed.timestamp {
        socket::set_options(fd, &[option(OPTION_TIMESTAMPS, 0)])?;
        // An even number means a clock of milliseconds (Linux 6.7). Up: it must not go back.
        socket::set_timestamp(fd, value.wrapping_add(1) & !1)?;
    }
    Ok(())
}

fn refill(fd: BorrowedFd<'_>, queue: SocketQueue, bytes: &[u8]) -> std::io::Result<()> {
    socket::choose_queue(fd, queue)?;
    socket::fill(fd, bytes)
}
