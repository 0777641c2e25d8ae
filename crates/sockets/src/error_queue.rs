//! The queue of errors of a UDP socket on our own stack: what recvmsg(2) takes with MSG_ERRQUEUE.
//!
//! Read first: ip(7) on IP_RECVERR, ipv6(7) on IPV6_RECVERR; linux/errqueue.h for the bytes.
//!
//! Each error waits with where the datagram was to go, who says that it did not get there, and as
//! much of it as that quotes. The one error that the next call answers (SO_ERROR) is beside the
//! queue: an error that comes sets it, and with an error that is taken it becomes the next one's,
//! as in Linux (`sock_dequeue_err_skb`).
//!
//! Invariant: at most [`ERRORS_MAX`] wait; what comes then is lost, but for the one beside the
//! queue.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use megapipe::{Arrival, Channel, Undelivered};

use crate::control::{Told, tell_failure};
use crate::datagram::{Endpoint, Received, since_1970};
use crate::error::Error;
use crate::family;
use crate::flags::{Events, MsgFlags};
use crate::gather::Scatter;
use crate::kernel::{self, SOCKADDR_BYTES};
use crate::limits::ERRORS_MAX;
use crate::sockets::{Kind, Sockets};
use crate::stream::{Blank, Stream};

/// Who found the error (`SO_EE_ORIGIN_…`).
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
pub(crate) struct Failure {
    /// Where the datagram was to go.
    to: SocketAddr,
    error: Error,
    origin: Origin,
    kind: u8,
    code: u8,
    info: u32,
    /// Who says so (SO_EE_OFFENDER).
    offender: Option<IpAddr>,
    /// How that was said.
    pub(crate) arrival: Option<Arrival>,
    bytes: Box<[u8]>,
    /// When it came, since 1970.
    pub(crate) stamp: Duration,
}

/// `struct sock_extended_err`.
const EXTENDED_BYTES: usize = 16;

impl Failure {
    fn of(undelivered: &Undelivered, to: SocketAddr, stamp: Duration) -> Self {
        let notice = &undelivered.notice;
        Self {
            to,
            error: undelivered.error.into(),
            origin: if notice.by.is_ipv4() { Origin::Icmp } else { Origin::Icmp6 },
            kind: notice.kind,
            code: notice.code,
            info: notice.info,
            offender: Some(notice.by),
            arrival: Some(notice.arrival),
            bytes: notice.quote.clone(),
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
            let offender = family::told(is_v6, SocketAddr::new(ip, 0));
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
    waiting: VecDeque<Failure>,
}

impl ErrorQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn push(&mut self, failure: Failure) {
        if self.waiting.len() < ERRORS_MAX {
            self.waiting.push_back(failure);
        }
    }

    /// Takes the oldest; `pending`, what the next call answers, becomes what the next one says.
    fn take(&mut self, pending: &mut Option<Error>) -> Option<Failure> {
        let failure = self.waiting.pop_front()?;
        let next = self.waiting.front().filter(|next| next.origin != Origin::Local);
        if next.is_some() || failure.origin != Origin::Local {
            *pending = next.map(|next| next.error);
        }
        Some(failure)
    }
}

/// The errors of which family are queued that concern a datagram to `ip`.
const fn asked_by(ip: IpAddr) -> Told {
    if ip.is_ipv4() { Told::ERRORS4 } else { Told::ERRORS6 }
}

impl Endpoint {
    /// Errors are to be queued, so that what is beneath has to quote.
    fn wants_quotes(&self) -> bool {
        self.options.told.intersects(Told::ERRORS4 | Told::ERRORS6)
    }

    /// Tells the stack whether to quote, if it knows of the socket.
    pub(crate) fn ask_for_quotes(&self, channel: &mut Channel, is_new: bool) {
        let on = self.wants_quotes();
        if is_new && !on {
            return;
        }
        for handle in self.handles() {
            // It is there, and the stack's.
            let _ = channel.quote_errors(handle, on);
        }
    }

    /// A datagram to `to` is longer than any packet.
    fn note_too_long(&mut self, channel: &mut Channel, to: SocketAddr) {
        if !self.options.told.contains(asked_by(to.ip())) {
            return;
        }
        let info = channel.packet_bytes_max(to.ip()).unwrap_or_default().into();
        // As Linux: of IPv4 the port is that of the peer, if the socket has one.
        let port = match to {
            SocketAddr::V4(_) => self.peer.map_or(0, |peer| peer.port()),
            SocketAddr::V6(to) => to.port(),
        };
        self.errors.push(Failure {
            to: family::told(self.is_v6, SocketAddr::new(to.ip(), port)),
            error: Error::MessageTooLong,
            origin: Origin::Local,
            kind: 0,
            code: 0,
            info,
            offender: None,
            arrival: None,
            bytes: Box::default(),
            stamp: since_1970(),
        });
    }
}

impl Sockets {
    /// A datagram did not get there. As in Linux a socket hears of it that queues errors; another
    /// one if it is connected to where the datagram went, and the error is for good.
    #[cold]
    pub(crate) fn on_undelivered(&mut self, object: u32, undelivered: &Undelivered) {
        let Some((endpoint, _)) = self.endpoint_mut(object) else { return };
        let Some(to) = undelivered.to.as_inet() else { return };
        let (asked, to) = (asked_by(to.ip()), family::told(endpoint.is_v6, to));
        if endpoint.peer.is_some_and(|peer| peer != to) {
            return;
        }
        if endpoint.options.told.contains(asked) {
            endpoint.errors.push(Failure::of(undelivered, to, since_1970()));
        } else if !undelivered.is_final || endpoint.peer.is_none() {
            return;
        }
        endpoint.error = Some(undelivered.error.into());
        self.notify(object, Events::ERR);
    }

    /// IP_RECVERR or IPV6_RECVERR was set; `on`: not to zero, which empties the queue.
    #[cold]
    pub(crate) fn on_errors_asked(&mut self, object: u32, on: bool) {
        let Some((endpoint, channel)) = self.endpoint_mut(object) else { return };
        if !on {
            endpoint.errors = ErrorQueue::default();
        }
        endpoint.ask_for_quotes(channel, false);
    }

    /// A datagram to `to` does not fit any packet: what the call answers, and queues if asked.
    #[cold]
    pub(crate) fn refuse_length(&mut self, object: u32, to: SocketAddr) -> Error {
        let is_local = self.is_local;
        if let Some((endpoint, channel)) = self.endpoint_mut(object).filter(|_| is_local) {
            endpoint.note_too_long(channel, to);
            if !endpoint.errors.is_empty() {
                self.notify(object, Events::ERR);
            }
        }
        Error::MessageTooLong
    }

    /// recv(2) with MSG_ERRQUEUE: never waits.
    #[cold]
    pub(crate) fn recv_error(
        &mut self,
        object: u32,
        to: &mut Scatter<'_, '_>,
        control: &mut [u8],
        flags: MsgFlags,
    ) -> Result<Received, Error> {
        if self.is_local {
            return match self.take_failure(object, to, control) {
                Err(Error::WouldBlock) if self.refreshed(object) => {
                    self.take_failure(object, to, control)
                }
                done => done,
            };
        }
        let Self { objects, channel, .. } = self;
        let entry = objects.get_mut(object as usize).ok_or(Error::BadDescriptor)?;
        let handle = match &entry.kind {
            Kind::Stream(Stream { blank: Blank::Kernel(socket), .. }) => {
                return kernel::receive_error(socket.as_fd(), to, control, flags);
            }
            Kind::Stream(stream) => stream.handle,
            Kind::Listener(listener) => listener.handle(),
            Kind::Datagram(endpoint) => endpoint.handle(),
            _ => return Err(Error::NotASocket),
        };
        let socket = channel.descriptor(handle)?.ok_or(Error::InvalidArgument)?;
        kernel::receive_error(socket, to, control, flags)
    }

    /// The oldest error of a socket on our own stack. Streams have none.
    fn take_failure(
        &mut self,
        object: u32,
        to: &mut Scatter<'_, '_>,
        control: &mut [u8],
    ) -> Result<Received, Error> {
        let Some((endpoint, _)) = self.endpoint_mut(object) else { return Err(Error::WouldBlock) };
        let failure = endpoint.errors.take(&mut endpoint.error).ok_or(Error::WouldBlock)?;
        let has_more = !endpoint.errors.is_empty();
        to.put(&failure.bytes, false);
        let len = to.filled();
        let (control_len, is_cut) =
            tell_failure(endpoint.options.told, &failure, endpoint.is_v6, control);
        let mut flags = MsgFlags::ERRQUEUE;
        flags.set(MsgFlags::TRUNC, len < failure.bytes.len());
        flags.set(MsgFlags::CTRUNC, is_cut);
        if has_more {
            self.notify(object, Events::ERR);
        }
        Ok(Received { len, from: Some(failure.to), flags, control_len })
    }
}
