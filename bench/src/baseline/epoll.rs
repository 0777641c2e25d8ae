//! The epoll baselines: one loop for both, with a shared listener or one for each thread.
//!
//! Built to spend as little as epoll allows: accepted sockets are non-blocking and edge-triggered,
//! so that one `epoll_ctl` per connection is all there ever is (closing leaves the set by
//! itself); a receive that fills less than the buffer is not repeated, because a new edge comes
//! with new data (epoll(7)); accepts run until the queue is empty; the listener is
//! level-triggered and, where it is shared, `EPOLLEXCLUSIVE`. Edge-triggered is what ought to be
//! cheaper: level-triggered asks each socket once more before it leaves the ready list.
//!
//! Invariant: while a connection has a reply left to send nothing more is read from it, so a peer
//! that never reads holds one reply and what it sent ahead in one receive.

use super::{
    BaselineError, Stop,
    framing::{self, Requests},
    room, socket,
};
use crate::limits;
use megapipe_apps::rpc::protocol::{Lengths, RpcReply};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, SocketFlags, sendmsg},
};
use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd},
};

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
const EDGES: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// What kind of server.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpollServerKind {
    /// The listener is shared with other threads.
    pub(super) shared: bool,
    /// Connections are closed as soon as they are accepted, which resets them.
    pub(super) reset: bool,
}

struct EpollConnection {
    socket: OwnedFd,
    requests: Requests,
    /// The reply that the socket did not take whole yet.
    unsent: Option<Unsent>,
}

struct Unsent {
    reply: RpcReply,
    sent_bytes: usize,
}

/// A connection is over: the peer closed it, broke the protocol, or the socket failed.
struct ConnectionOver;

impl From<framing::ProtocolViolation> for ConnectionOver {
    fn from(_: framing::ProtocolViolation) -> Self {
        Self
    }
}

impl From<io::Error> for ConnectionOver {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<Errno> for ConnectionOver {
    fn from(_: Errno) -> Self {
        Self
    }
}

struct EpollServer {
    epoll: OwnedFd,
    listener: OwnedFd,
    reset: bool,
    /// Indexed by descriptor number, which the kernel keeps small.
    connections: Vec<Option<EpollConnection>>,
    buffer: Vec<u8>,
    defaults: Lengths,
}

/// Serves `listener` until `stop`. Blocks.
pub(super) fn run(
    listener: OwnedFd,
    serve: EpollServerKind,
    defaults: Lengths,
    stop: &Stop,
) -> Result<(), BaselineError> {
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?;
    let exclusive = if serve.shared { EventFlags::EXCLUSIVE } else { EventFlags::empty() };
    add(&epoll, &listener, LISTENER, EventFlags::IN | exclusive)?;
    epoll::add(&epoll, stop.as_fd(), EventData::new_u64(STOP), EventFlags::IN)
        .map_err(io::Error::from)?;
    let mut buffer = room(limits::EPOLL_BUFFER_BYTES)?;
    buffer.resize(limits::EPOLL_BUFFER_BYTES, 0);
    let mut events = room(limits::EPOLL_EVENTS)?;
    let (reset, connections) = (serve.reset, Vec::new());
    let mut server = EpollServer { epoll, listener, reset, connections, buffer, defaults };
    loop {
        events.clear();
        match epoll::wait(&server.epoll, spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(BaselineError::Loop(error.into())),
        }
        for event in &events {
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                LISTENER => server.accept_all()?,
                STOP => return Ok(()),
                index => server.on_ready(index as usize, flags),
            }
        }
    }
}

fn add(epoll: &OwnedFd, fd: &OwnedFd, data: u64, flags: EventFlags) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, EventData::new_u64(data), flags)?)
}

impl EpollServer {
    fn accept_all(&mut self) -> io::Result<()> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) if self.reset => drop(socket),
                Ok(socket) => self.admit(socket)?,
                Err(Errno::AGAIN) => return Ok(()),
                // The peer left while it was queued: its business.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                // Out of descriptors: those that are open go on; the backlog waits.
                Err(Errno::MFILE | Errno::NFILE) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let index = socket.as_raw_fd() as usize;
        add(&self.epoll, &socket, index as u64, EDGES)?;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        let requests = Requests::default();
        self.connections[index] = Some(EpollConnection { socket, requests, unsent: None });
        Ok(())
    }

    /// An event of the connection at `index`. It may be one of a connection that was closed
    /// earlier in the same batch, whose number a new one has taken: then nothing is there to
    /// receive and nothing happens.
    fn on_ready(&mut self, index: usize, flags: EventFlags) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let outcome = connection.on_ready(flags, &self.epoll, &mut self.buffer, self.defaults);
        if outcome.is_err() {
            self.connections[index] = None;
        }
    }
}

impl EpollConnection {
    fn on_ready(
        &mut self,
        flags: EventFlags,
        epoll: &OwnedFd,
        buffer: &mut [u8],
        defaults: Lengths,
    ) -> Result<(), ConnectionOver> {
        let mut drain = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if self.unsent.is_some() {
            self.send_owed(epoll, defaults)?;
            // Edges that came while nothing was read are spent, so ask until there is no more.
            drain = true;
        }
        while self.unsent.is_none() {
            let Some(received_bytes) = socket::receive(&self.socket, buffer)? else {
                return Ok(());
            };
            let received = &buffer[..received_bytes];
            if received.is_empty() {
                return Err(ConnectionOver);
            }
            self.answer(received, epoll, defaults)?;
            if received_bytes < buffer.len() && !drain {
                return Ok(());
            }
        }
        Ok(())
    }

    fn answer(
        &mut self,
        received: &[u8],
        epoll: &OwnedFd,
        defaults: Lengths,
    ) -> Result<(), ConnectionOver> {
        let mut sent_bytes = 0;
        if self.requests.is_echo(received, defaults) {
            sent_bytes = match rustix::net::send(&self.socket, received, SEND_FLAGS) {
                Ok(sent_bytes) if sent_bytes == received.len() => return Ok(()),
                Ok(sent_bytes) => sent_bytes,
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(_) => return Err(ConnectionOver),
            };
        }
        let Some(reply) = self.requests.on_received(received, defaults)? else { return Ok(()) };
        self.unsent = Some(Unsent { reply, sent_bytes });
        self.send_owed(epoll, defaults)
    }

    /// Sends replies until none is pending or the socket is full; then waits for the next edge.
    fn send_owed(&mut self, epoll: &OwnedFd, defaults: Lengths) -> Result<(), ConnectionOver> {
        let mut asked = false;
        while let Some(unsent) = &mut self.unsent {
            if unsent.sent_bytes == unsent.reply.response_len as usize {
                let next = self.requests.next(defaults)?;
                self.unsent = next.map(|reply| Unsent { reply, sent_bytes: 0 });
                continue;
            }
            let (pieces, count) = framing::pieces(&unsent.reply, unsent.sent_bytes);
            let pieces = pieces.map(IoSlice::new);
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &pieces[..count], &mut control, SEND_FLAGS) {
                Ok(sent_bytes) => unsent.sent_bytes += sent_bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if asked => return Ok(()),
                Err(Errno::AGAIN) => {
                    // Asking first and trying once more after leaves no gap for a lost edge.
                    asked = true;
                    let data = EventData::new_u64(self.socket.as_raw_fd() as u64);
                    epoll::modify(epoll, &self.socket, data, EDGES | EventFlags::OUT)?;
                }
                Err(_) => return Err(ConnectionOver),
            }
        }
        Ok(())
    }
}
