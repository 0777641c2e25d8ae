//! UDP sockets.
//!
//! Read first: udp(7), recv(2), send(2).
//!
//! A [`DatagramSocket`] is a value that knows no other object: calls and completions go in,
//! operations go out to its transport (`transport.rs`), and each method returns the events that
//! others are notified of. `datagram/address.rs` has bind(2) and connect(2).
//!
//! One receive is always with the channel, and what it brings waits in `inbox`, as much as the
//! receive buffer holds; what comes then waits in the kernel, or is dropped by our stack and
//! counted there. What is sent is complete for the program when the channel has it: an error that
//! comes later is returned by the next call, as an ICMP error would be.
//!
//! Invariants
//! - `inbox_bytes` is the sum over `inbox`.
//! - `receiving` is set for a side exactly while a receive of it is with the channel. A side that
//!   other processes have takes its datagrams from the service (`datagram/shared.rs`).
//! - `unsent_bytes` is what the channel has and has not answered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use megapipe::{Arrival, Datagram, Departure, Handle, OpError, ReadBuf, Undelivered};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::control_data::{ControlKinds, parse_departure, parse_segment_len, write_error};
use crate::dual_stack;
use crate::effects::{Effects, Released};
use crate::error::Error;
use crate::error_queue::{ErrorQueue, QueuedError};
use crate::flags::{Events, MsgFlags};
use crate::gather::{MessageTarget, ReceivePieces, ReceivedMessage, SendPieces};
use crate::kernel;
use crate::limits::{
    DATAGRAM_BYTES_MAX, DATAGRAM_INBOX_BYTES_MAX, DATAGRAM_INBOX_MAX, DATAGRAM_OUTBOX_BYTES_MAX,
    SEGMENTS_MAX,
};
use crate::options::SocketOptions;
use crate::ports::{BoundPort, LocalPorts};
use crate::readiness::Shut;
use crate::stream::Shutdown;
use crate::transport::{DatagramRoute, DatagramTransport};

mod address;
mod segments;
mod shared;
#[cfg(test)]
mod tests;

pub use shared::InheritedDatagram;
use shared::SharedQueue;

/// A datagram that waits for the program.
struct QueuedDatagram {
    from: SocketAddr,
    data: ReadBuf,
    arrival: Option<Arrival>,
    /// The kernel's.
    control: Box<[u8]>,
    /// When it came, since 1970.
    stamp: Duration,
}

/// An endpoint below a socket.
#[derive(Debug, Clone, Copy)]
struct DatagramSide {
    /// `Handle::NONE`: our own stack knows nothing of it yet.
    handle: Handle,
    receiving: bool,
    queue: SharedQueue,
}

const NO_SIDE: DatagramSide =
    DatagramSide { handle: Handle::NONE, receiving: false, queue: SharedQueue::NotShared };

/// A UDP socket.
pub(crate) struct DatagramSocket {
    /// The second is IPv4's, of a socket for both families on our own stack, or `NO_SIDE`.
    sides: [DatagramSide; 2],
    pub(crate) is_v6: bool,
    pub(crate) options: SocketOptions,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) bound: Option<BoundPort>,
    /// What bind(2) asked for; of an IPv6 socket, IPv4 as itself.
    asked: Option<SocketAddr>,
    /// The pending error, for the next call that reports it.
    pub(crate) error: Option<Error>,
    errors: ErrorQueue,
    shut: Shut,
    inbox: VecDeque<QueuedDatagram>,
    inbox_bytes: usize,
    unsent_bytes: usize,
    /// There is no memory to receive further. The next call that receives tries again, and the
    /// socket is ready for it.
    starved: bool,
}

impl DatagramSocket {
    /// A fresh socket in the kernel, or one that our own stack knows nothing of yet.
    ///
    /// # Errors
    /// As socket(2).
    pub(crate) fn open<T: DatagramTransport>(
        is_v6: bool,
        transport: &mut T,
    ) -> Result<Self, Error> {
        let mut handle = Handle::NONE;
        if !transport.is_local() {
            let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
            handle = transport.register(fd, u64::MAX)?;
        }
        Ok(Self {
            sides: [DatagramSide { handle, ..NO_SIDE }, NO_SIDE],
            is_v6,
            options: SocketOptions::DEFAULT,
            peer: None,
            bound: None,
            asked: None,
            error: None,
            errors: ErrorQueue::default(),
            shut: Shut::default(),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            unsent_bytes: 0,
            starved: false,
        })
    }

    /// The socket has its object: completions carry `cookie`, and datagrams are received.
    pub(crate) fn start<T: DatagramTransport>(&mut self, cookie: u64, transport: &mut T) {
        if self.handle() != Handle::NONE {
            transport.set_cookie(self.handle(), cookie);
            self.post_receives(transport);
        }
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.sides[0].handle
    }

    /// The endpoints below, if there are any yet.
    fn handles(&self) -> impl Iterator<Item = Handle> + use<> {
        self.sides.map(|side| side.handle).into_iter().filter(|handle| *handle != Handle::NONE)
    }

    fn side(&mut self, handle: Handle) -> &mut DatagramSide {
        let index = usize::from(handle != self.sides[0].handle);
        &mut self.sides[index]
    }

    /// The endpoint that has the peer's family, or the first.
    fn handle_towards_peer(&self) -> Handle {
        self.peer
            .map_or_else(|| self.handle(), |peer| self.towards(dual_stack::plain_address(peer)))
    }

    /// The endpoint that sends to an address of a family.
    fn towards(&self, to: SocketAddr) -> Handle {
        match self.sides[1].handle {
            second if to.is_ipv4() && second != Handle::NONE => second,
            _ => self.handle(),
        }
    }

    /// Bytes that the channel has and has not answered.
    fn count_unsent<T: DatagramTransport>(&self, transport: &T) -> usize {
        self.handles().map(|handle| transport.unsent_bytes(handle).unwrap_or_default()).sum()
    }

    fn leave<T: DatagramTransport>(&mut self, transport: &mut T) {
        for side in std::mem::replace(&mut self.sides, [NO_SIDE; 2]) {
            if side.handle != Handle::NONE {
                transport.unregister(side.handle);
            }
        }
    }

    pub(crate) fn readiness(&self) -> Events {
        let mut events = Events::empty();
        let has_news = !self.inbox.is_empty() || self.starved || self.has_shared_datagram();
        events.set(Events::READABLE, has_news || self.shut.receive);
        events.set(Events::RDHUP, self.shut.receive);
        events.set(Events::HUP, self.shut.receive && self.shut.send);
        events.set(Events::ERR, self.error.is_some() || !self.errors.is_empty());
        // With WRBAND, unlike a stream (Linux's `datagram_poll`).
        events.set(Events::HAS_ROOM, self.has_room());
        events
    }

    /// A datagram can be sent.
    pub(crate) const fn has_room(&self) -> bool {
        self.unsent_bytes < DATAGRAM_OUTBOX_BYTES_MAX
    }

    /// Bytes that the next read takes.
    pub(crate) fn next_len(&self) -> usize {
        match self.run() {
            run if run.count > 0 => run.bytes,
            _ => self.shared_len(),
        }
    }

    fn post_receives<T: DatagramTransport>(&mut self, transport: &mut T) {
        self.starved = false;
        let is_full = self.inbox_bytes >= DATAGRAM_INBOX_BYTES_MAX;
        if is_full || self.inbox.len() >= DATAGRAM_INBOX_MAX {
            return;
        }
        if self.inbox.try_reserve(self.sides.len()).is_err() {
            self.starved = true;
            return;
        }
        for side in &mut self.sides {
            let is_shared = side.queue != SharedQueue::NotShared;
            if side.handle == Handle::NONE || side.receiving || is_shared {
                continue;
            }
            match transport.receive_datagram(side.handle) {
                Ok(()) => side.receiving = true,
                Err(Error::NoMemory | Error::NoBuffers) => self.starved = true,
                // It has ended, which the channel reports.
                Err(_) => {}
            }
        }
    }

    /// shutdown(2), for good. Without a peer it is an error that ends the directions nevertheless
    /// (`inet_shutdown`).
    pub(crate) fn shutdown(&mut self, how: Shutdown) -> Effects<()> {
        self.shut.receive |= how != Shutdown::Write;
        self.shut.send |= how != Shutdown::Read;
        Effects {
            result: self.peer.map(drop).ok_or(Error::NotConnected),
            events: Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::HUP,
        }
    }

    /// The last descriptor is gone.
    pub(crate) fn close<T: DatagramTransport>(mut self, transport: &mut T) -> Released {
        self.inbox.clear();
        self.leave(transport);
        Released { bound: self.bound, is_sending: false }
    }
}

/// Completions.
impl DatagramSocket {
    /// A receive of one endpoint has ended.
    pub(crate) fn on_datagram<T: DatagramTransport>(
        &mut self,
        endpoint: Handle,
        result: Result<Box<Datagram>, OpError>,
        transport: &mut T,
    ) -> Events {
        self.side(endpoint).receiving = false;
        let events = match result {
            Ok(datagram) => self.keep(*datagram),
            Err(error) => {
                self.error = Some(error.into());
                Events::ERR | Events::READABLE
            }
        };
        self.post_receives(transport);
        if self.starved { events | Events::READABLE } else { events }
    }

    /// Queues a datagram for the program; one without a sender's address is dropped.
    fn keep(&mut self, datagram: Datagram) -> Events {
        let Datagram { data, from, arrival, control, .. } = datagram;
        let Some(from) = from.and_then(|from| from.as_inet()) else { return Events::empty() };
        let from = dual_stack::program_address(self.is_v6, from);
        self.inbox_bytes += data.len();
        let stamp = match self
            .options
            .control_kinds
            .intersects(ControlKinds::STAMP | ControlKinds::STAMP_NS)
        {
            true => since_1970(),
            false => Duration::ZERO,
        };
        self.inbox.push_back(QueuedDatagram { from, data, arrival, control, stamp });
        Events::ARRIVED
    }

    /// A send by the kernel has ended.
    pub(crate) fn on_sent<T: DatagramTransport>(
        &mut self,
        result: Result<usize, OpError>,
        transport: &T,
    ) -> Events {
        let was_full = !self.has_room();
        self.unsent_bytes = self.count_unsent(transport);
        let mut events = Events::empty();
        events.set(Events::HAS_ROOM, was_full);
        if let Err(error) = result {
            self.error = Some(error.into());
            events |= Events::ERR;
        }
        events
    }

    /// Our own stack has lost its link.
    pub(crate) fn on_link_gone(&mut self) -> Events {
        self.error = Some(Error::NetworkDown);
        Events::ERR | Events::READABLE
    }

    /// A datagram did not arrive. As in Linux a socket learns of it that queues errors; another
    /// one if it is connected to where the datagram went, and the error is for good.
    #[cold]
    pub(crate) fn on_undelivered(&mut self, undelivered: Undelivered) -> Events {
        let Some(to) = undelivered.to.as_inet() else { return Events::empty() };
        let (queued, to) =
            (ControlKinds::errors_of(to.ip()), dual_stack::program_address(self.is_v6, to));
        if self.peer.is_some_and(|peer| peer != to) {
            return Events::empty();
        }
        let (error, is_final) = (undelivered.error, undelivered.is_final);
        if self.options.control_kinds.contains(queued) {
            self.errors.push(QueuedError::of(undelivered, to, since_1970()));
        } else if !is_final || self.peer.is_none() {
            return Events::empty();
        }
        self.error = Some(error.into());
        Events::ERR
    }
}

/// Receiving.
impl DatagramSocket {
    /// recvmsg(2); `None`: the call has to wait. One without MSG_DONTWAIT returns where the
    /// direction is shut (`__skb_wait_for_more_packets`).
    pub(crate) fn receive<T: DatagramTransport>(
        &mut self,
        to: &mut ReceivePieces<'_, '_>,
        control: &mut [u8],
        flags: MsgFlags,
        transport: &mut T,
    ) -> Option<Result<ReceivedMessage, Error>> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        if self.starved {
            self.post_receives(transport);
        }
        let is_copy = self.inbox.is_empty() && self.take_shared(flags, transport);
        let Some(from) = self.inbox.front().map(|message| message.from) else {
            let is_over = (self.shut.receive && !flags.contains(MsgFlags::DONTWAIT))
                .then_some(Ok(ReceivedMessage::NOTHING));
            return is_over.or_else(|| self.starved.then_some(Err(Error::NoMemory)));
        };
        let run = self.run();
        let whole = run.bytes;
        let (control_len, is_cut) = self.show(run, to, control);
        let copied = to.filled();
        if is_copy || !flags.contains(MsgFlags::PEEK) {
            self.inbox_bytes -= whole;
            self.inbox.drain(..run.count);
            self.post_receives(transport);
        }
        let mut answer = MsgFlags::empty();
        answer.set(MsgFlags::TRUNC, copied < whole);
        answer.set(MsgFlags::CTRUNC, is_cut);
        let len = if flags.contains(MsgFlags::TRUNC) { whole } else { copied };
        Some(Ok(ReceivedMessage { len, from: Some(from), flags: answer, control_len }))
    }

    /// recvmsg(2) with MSG_ERRQUEUE, on our own stack.
    pub(crate) fn take_failure(
        &mut self,
        to: &mut ReceivePieces<'_, '_>,
        control: &mut [u8],
    ) -> Effects<ReceivedMessage> {
        let Some(failure) = self.errors.take(&mut self.error) else {
            return Effects::quiet(Err(Error::WouldBlock));
        };
        to.put(&failure.bytes, false);
        let len = to.filled();
        let (control_len, is_cut) =
            write_error(self.options.control_kinds, &failure, self.is_v6, control);
        let mut flags = MsgFlags::ERRQUEUE;
        flags.set(MsgFlags::TRUNC, len < failure.bytes.len());
        flags.set(MsgFlags::CTRUNC, is_cut);
        Effects {
            result: Ok(ReceivedMessage { len, from: Some(failure.to), flags, control_len }),
            events: if self.errors.is_empty() { Events::empty() } else { Events::ERR },
        }
    }

    /// IP_RECVERR or IPV6_RECVERR was set; `on`: not to zero, which empties the queue.
    #[cold]
    pub(crate) fn queue_errors<T: DatagramTransport>(&mut self, on: bool, transport: &mut T) {
        if !on {
            self.errors = ErrorQueue::default();
        }
        let on = self.wants_quotes();
        for handle in self.handles() {
            transport.quote_errors(handle, on);
        }
    }

    /// Errors are to be queued, so that the stack has to quote datagrams.
    fn wants_quotes(&self) -> bool {
        self.options.control_kinds.intersects(ControlKinds::ERRORS4 | ControlKinds::ERRORS6)
    }
}

/// Sending.
impl DatagramSocket {
    /// sendmsg(2). [`Error::WouldBlock`]: there is no room.
    pub(crate) fn send<T: DatagramTransport>(
        &mut self,
        from: &mut SendPieces<'_>,
        target: &MessageTarget<'_>,
        ports: &mut LocalPorts,
        cookie: u64,
        transport: &mut T,
    ) -> Effects<usize> {
        let queued = self.errors.len();
        let result = match transport.is_local() {
            true => self.send_to_stack(from, target, ports, cookie, transport),
            false => self.send_to_kernel(from, target, transport),
        };
        // A datagram that is too long may have queued an error.
        let has_queued = self.errors.len() > queued;
        Effects { result, events: if has_queued { Events::ERR } else { Events::empty() } }
    }

    /// Where a message goes, as the endpoint below has it.
    fn check_target(
        &self,
        len: usize,
        target: &MessageTarget<'_>,
        is_local: bool,
    ) -> Result<SocketAddr, Error> {
        if target.flags.contains(MsgFlags::OOB) {
            return Err(Error::NotSupported);
        }
        if len > usize::from(u16::MAX) {
            return Err(Error::MessageTooLong);
        }
        let to = target.to.or(self.peer).ok_or(Error::NoDestination)?;
        let v6_only = self.options.sharing.v6_only;
        let plain = dual_stack::to_send(self.is_v6, v6_only, self.place(), to)?;
        // The kernel takes IPv4 from IPv6 sockets as they have it.
        let to = if is_local { plain } else { to };
        if to.port() == 0 { Err(Error::InvalidArgument) } else { Ok(to) }
    }

    /// Checks that the socket may send now.
    fn check_open(&mut self) -> Result<(), Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.shut.send {
            return Err(Error::BrokenPipe);
        }
        if !self.has_room() {
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    fn send_to_kernel<T: DatagramTransport>(
        &mut self,
        from: &mut SendPieces<'_>,
        target: &MessageTarget<'_>,
        transport: &mut T,
    ) -> Result<usize, Error> {
        let len = from.left();
        let to = self.check_target(len, target, false)?;
        if len > DATAGRAM_BYTES_MAX {
            return Err(Error::MessageTooLong);
        }
        self.check_open()?;
        let handle = self.towards(to);
        if !target.control.is_empty() {
            // The channel has no place for it: it goes to the kernel at once.
            let socket = transport.kernel_socket(self.handle()).ok_or(Error::InvalidArgument)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(len).map_err(|_| Error::NoMemory)?;
            from.take(len, |part| bytes.extend_from_slice(part));
            return kernel::send_with_control(socket, &bytes, to, target.control);
        }
        transport.send_by_kernel(handle, from, to)?;
        self.unsent_bytes += len.max(1);
        Ok(len)
    }

    /// Gives a datagram to our own stack, or several where it is longer than a segment.
    fn send_to_stack<T: DatagramTransport>(
        &mut self,
        from: &mut SendPieces<'_>,
        target: &MessageTarget<'_>,
        ports: &mut LocalPorts,
        cookie: u64,
        transport: &mut T,
    ) -> Result<usize, Error> {
        let len = from.left();
        let to = self.check_target(len, target, true)?;
        let departure = parse_departure(target.control, to.is_ipv4(), self.options.departure())?;
        let segment_len = parse_segment_len(target.control, self.options.segment_len)?;
        let segment_len = usize::from(segment_len);
        if len > DATAGRAM_BYTES_MAX {
            self.note_too_long(to, transport);
            return Err(Error::MessageTooLong);
        }
        self.check_open()?;
        check_source(&departure, ports)?;
        self.bind_if_unbound(ports, cookie, transport)?;
        if segment_len > 0 && len > segment_len * SEGMENTS_MAX {
            return Err(Error::InvalidArgument);
        }
        let segment_len = (segment_len > 0 && len > segment_len).then_some(segment_len);
        let route = DatagramRoute { to, departure, segment_len };
        match transport.send_by_stack(self.towards(to), from, &route) {
            Ok(()) => Ok(len),
            Err(error) => {
                if error == Error::MessageTooLong && segment_len.is_none() {
                    self.note_too_long(to, transport);
                }
                Err(error)
            }
        }
    }

    /// A datagram to `to` is longer than any packet: queues the error, if that is asked for.
    fn note_too_long<T: DatagramTransport>(&mut self, to: SocketAddr, transport: &mut T) {
        if !self.options.control_kinds.contains(ControlKinds::errors_of(to.ip())) {
            return;
        }
        let info = transport.packet_bytes_max(to.ip()).unwrap_or_default().into();
        // As Linux: of IPv4 the port is that of the peer, if the socket has one.
        let port = match to {
            SocketAddr::V4(_) => self.peer.map_or(0, |peer| peer.port()),
            SocketAddr::V6(to) => to.port(),
        };
        let to = dual_stack::program_address(self.is_v6, SocketAddr::new(to.ip(), port));
        self.errors.push(QueuedError::too_long(to, info, since_1970()));
    }
}

/// Checks that the source which control data asks for is one of ours. As Linux answers: for IPv4
/// as a matter of routes.
fn check_source(departure: &Departure, ports: &LocalPorts) -> Result<(), Error> {
    match departure.from {
        Some(source) if ports.check_local(source).is_err() => Err(match source.is_ipv4() {
            true => Error::NetworkUnreachable,
            false => Error::InvalidArgument,
        }),
        _ => Ok(()),
    }
}

/// Time since 1970, for stamps.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
