//! The queue of errors of a UDP socket on our own stack: what recvmsg(2) takes with MSG_ERRQUEUE.
//!
//! Read first: ip(7) on IP_RECVERR, ipv6(7) on IPV6_RECVERR; linux/errqueue.h for the bytes.
//!
//! Each error waits with the datagram's destination, the host that reports the error, and as much
//! of the datagram as that host quotes. The one error that the next call returns (SO_ERROR) is
//! beside the queue: an error that comes sets it, and with an error that is taken it becomes the
//! next one's, as in Linux (`sock_dequeue_err_skb`).
//!
//! Invariant: at most [`ERRORS_MAX`] wait; what comes then is lost, but for the one beside the
//! queue.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use megapipe::{Arrival, Undelivered};

use crate::dual_stack;
use crate::error::Error;
use crate::kernel::{self, SOCKADDR_BYTES};
use crate::limits::ERRORS_MAX;

/// What found the error (`SO_EE_ORIGIN_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Origin {
    /// This host, before anything was sent.
    Local = 1,
    Icmp = 2,
    Icmp6 = 3,
}

/// An error that waits.
#[derive(Debug)]
pub(crate) struct QueuedError {
    /// Where the datagram was to go.
    pub(crate) to: SocketAddr,
    error: Error,
    origin: Origin,
    kind: u8,
    code: u8,
    info: u32,
    /// Address of the host that reports it (SO_EE_OFFENDER).
    offender: Option<IpAddr>,
    /// How the report arrived.
    pub(crate) arrival: Option<Arrival>,
    pub(crate) bytes: Box<[u8]>,
    /// When it came, since 1970.
    pub(crate) stamp: Duration,
}

/// `struct sock_extended_err`.
const EXTENDED_BYTES: usize = 16;

impl QueuedError {
    /// An error that the network reports of a datagram to `to`.
    pub(crate) fn of(undelivered: Undelivered, to: SocketAddr, stamp: Duration) -> Self {
        let notice = undelivered.notice;
        Self {
            to,
            error: undelivered.error.into(),
            origin: if notice.by.is_ipv4() { Origin::Icmp } else { Origin::Icmp6 },
            kind: notice.kind,
            code: notice.code,
            info: notice.info,
            offender: Some(notice.by),
            arrival: Some(notice.arrival),
            bytes: notice.quote,
            stamp,
        }
    }

    /// A datagram to `to` is longer than any packet, which has `info` bytes at most.
    pub(crate) fn too_long(to: SocketAddr, info: u32, stamp: Duration) -> Self {
        Self {
            to,
            error: Error::MessageTooLong,
            origin: Origin::Local,
            kind: 0,
            code: 0,
            info,
            offender: None,
            arrival: None,
            bytes: Box::default(),
            stamp,
        }
    }

    /// `struct sock_extended_err`, and the address behind it: the bytes, and how many.
    pub(crate) fn extended(&self, is_v6: bool) -> ([u8; EXTENDED_BYTES + SOCKADDR_BYTES], usize) {
        let mut bytes = [0; EXTENDED_BYTES + SOCKADDR_BYTES];
        bytes[..4].copy_from_slice(&self.error.raw_os_error().to_ne_bytes());
        bytes[4..7].copy_from_slice(&[self.origin as u8, self.kind, self.code]);
        bytes[8..12].copy_from_slice(&self.info.to_ne_bytes());
        if let Some(ip) = self.offender {
            let offender = dual_stack::program_address(is_v6, SocketAddr::new(ip, 0));
            bytes[EXTENDED_BYTES..].copy_from_slice(&kernel::raw_address(offender).0);
        }
        (bytes, EXTENDED_BYTES + if is_v6 { SOCKADDR_BYTES } else { SOCKADDR4_BYTES })
    }
}

/// `struct sockaddr_in`.
const SOCKADDR4_BYTES: usize = 16;

/// The errors of a socket, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct ErrorQueue {
    waiting: VecDeque<QueuedError>,
}

impl ErrorQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Queues an error, if there is room and memory.
    pub(crate) fn push(&mut self, failure: QueuedError) {
        if self.waiting.len() < ERRORS_MAX && self.waiting.try_reserve(1).is_ok() {
            self.waiting.push_back(failure);
        }
    }

    /// Takes the oldest; `pending`, what the next call returns, becomes the error of the next one.
    pub(crate) fn take(&mut self, pending: &mut Option<Error>) -> Option<QueuedError> {
        let failure = self.waiting.pop_front()?;
        let next = self.waiting.front().filter(|next| next.origin != Origin::Local);
        if next.is_some() || failure.origin != Origin::Local {
            *pending = next.map(|next| next.error);
        }
        Some(failure)
    }
}
