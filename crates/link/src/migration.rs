//! TCP_REPAIR: migrates established connections out of the kernel and into it.
//!
//! Read first: tcp(7) on `TCP_REPAIR`; the kernel's `net/ipv4/tcp.c` where it says `repair`. A
//! socket in repair mode tells and takes the variables of RFC 9293 §3.3.1, and is closed without a
//! segment. What moves is a [`Checkpoint`]: the variables, what both SYNs agreed on, and the bytes
//! that lie in both queues.
//!
//! ```text
//!  kernel ──> Predecessor: freeze, checkpoint ─┬─> end    gone without a segment
//!                                              └─> thaw   as if nothing had been
//!  kernel <── Successor: prepare ──────────────┬─> start  alive; the peer is asked for its window
//!                                              └─> drop   gone without a segment
//! ```
//!
//! A socket in repair mode still acknowledges arriving segments. Therefore a socket filter drops
//! all segments (the socket is *deaf*) until the socket is active, as with
//! [`PortGuard`](crate::PortGuard). The peer retransmits those segments, and the kernel sends
//! no reset, because it has a socket for the connection.
//!
//! Needs CAP_NET_ADMIN in the user namespace of the network namespace.
//!
//! Not restored, because the kernel has no interface for it: congestion window, round trip time,
//! out-of-order data, ECN, the peer's last timestamp (which is learned from its next segment).
//!
//! Invariants
//! - Between `freeze` and `thaw` the kernel neither acknowledges a byte nor sends a new one.
//! - A successor's port and addresses may be those of a connection that lives elsewhere: before
//!   `start` it neither answers nor sends.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::AddressFamily;

mod predecessor;
mod socket;
mod successor;

pub use predecessor::Predecessor;
pub use successor::Successor;

/// What both SYNs agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The MSS of the peer's SYN, in bytes, without options.
    pub mss: u16,
    /// The peer's window shift and ours; `None`: windows are not scaled.
    pub window_scale: Option<(u8, u8)>,
    /// SACK is in use (RFC 2018).
    pub sack: bool,
    /// What our clock of timestamps shows, in milliseconds: at least what was sent last; `None`:
    /// timestamps are not in use (RFC 7323).
    pub timestamp: Option<u32>,
    /// ECN is in use (RFC 3168). The kernel tells, but cannot be told.
    pub ecn: bool,
}

/// Windows, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// SND.WL1.
    pub snd_wl1: u32,
    /// SND.WND.
    pub snd_wnd: u32,
    /// The largest window that the peer ever announced.
    pub snd_wnd_max: u32,
    /// Bytes from RCV.NXT on that the peer may send.
    pub rcv_wnd: u32,
}

/// An established connection between two stacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// This host's end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// SND.UNA: the number of the first byte of `sent`.
    pub snd_una: u32,
    /// RCV.NXT: the number after the last byte of `unread`.
    pub rcv_nxt: u32,
    /// The windows.
    pub windows: Windows,
    /// The options.
    pub agreed: Agreed,
    /// Bytes that were sent and not acknowledged.
    pub sent: Vec<u8>,
    /// Bytes behind them that were never sent.
    pub unsent: Vec<u8>,
    /// Bytes that arrived and were not read.
    pub unread: Vec<u8>,
    /// Small segments are not held back (TCP_NODELAY).
    pub nodelay: bool,
    /// Smoothed round trip in microseconds; 0: not known. The kernel tells, but cannot be told.
    pub srtt_us: u32,
}

/// Why a connection did not move.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The process lacks the capability for TCP_REPAIR.
    #[error("moving a connection needs CAP_NET_ADMIN")]
    NotAllowed,
    /// It is no TCP socket.
    #[error("only a TCP connection can move, and this is {0}")]
    NotTcp(&'static str),
    /// A connection in another state than ESTABLISHED.
    #[error("only an established connection can move, and this one is in {0}")]
    WrongState(&'static str),
    /// It has something that cannot move with it.
    #[error("the socket has {0}, which cannot move")]
    Unmovable(&'static str),
    /// Another socket of this host has the same addresses and ports.
    #[error("another socket of this host has the connection's addresses and ports")]
    InUse,
    /// The kernel said no to one of the steps.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl RepairError {
    /// The kernel's number for what is wrong.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::NotAllowed => libc::EPERM,
            Self::NotTcp(_) | Self::Unmovable(_) => libc::EOPNOTSUPP,
            Self::WrongState(_) => libc::ENOTCONN,
            Self::InUse => libc::EADDRINUSE,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Whether connections can move here at all: a trial with a socket of its own, some microseconds.
///
/// # Errors
/// [`RepairError::NotAllowed`], or what the kernel says.
pub fn trial() -> Result<(), RepairError> {
    successor::blank(AddressFamily::INET).map(drop)
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RepairError {
    move |source| match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => RepairError::NotAllowed,
        Some(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => RepairError::InUse,
        _ => RepairError::Io { what, source },
    }
}

#[cfg(test)]
mod tests;
