//! The ping-pong server once more, as a program that knows sockets and epoll and no channel:
//! `--api sockets`. The difference in cost from `shard.rs` is the cost of readiness over
//! completions.
//!
//! Each channel of the server is a context of [`megapipe_sockets`], with a listener of its own
//! (SO_REUSEPORT) and one epoll set; nothing is shared. Connections are edge-triggered: a read that
//! does not fill the buffer is not repeated, because a new edge comes with new data (epoll(7)).
//!
//! Read first: `shard.rs`, the same server on completions; then [`serve`] below, the whole loop.
//!
//! Invariants
//! - While a response is not sent whole, nothing more is read from its connection: a peer that
//!   takes nothing holds what one read has asked for.
//! - An echo is sent from where it was read to; nothing else of a request is kept but its prefix.
//! - Every wait for a peer that others may have to wait for is bounded (`timeouts.rs`).
//! - A connection leaves the table in one place, [`SocketShard::close`].

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;

use megapipe::Address;
use megapipe_sockets::{
    Attempt, Bsd, CallRunner, Config, Context, EpollEvent, EpollOp, Error, Events, Fd, OpenFlags,
    Shutdown, Sockets,
};
use slab::Slab;

use super::protocol::{Framer, Lengths, RpcReply, echoes};
use super::timeouts::{AwaitedStep, Overdue, WaitClock};
use crate::backend::warn_of_fall_back;
use crate::limits::rpc::{EVENTS, PIECES, SWEEP_MS};
use crate::limits::{QUIET_TICKS, REST_TICK, TICK};
use crate::serve::{
    ChannelReady, ReadySender, ServeError, ServerControl, ServerEndpoint, ServerPhase, ShardPlan,
    driver_of, end_of_keys,
};
use crate::serve::{FRAME_COOKIES, ServerTally, Ticks};

/// What a connection is watched for, always.
const EDGES: Events = Events::IN.union(Events::RDHUP).union(Events::EDGE);
/// After one of these there may be no other edge: everything is read.
const LAST: Events = Events::RDHUP.union(Events::HUP).union(Events::ERR);
/// Descriptors in addition to connections and listeners: the epoll set, and one to reject with.
const DESCRIPTORS_BESIDE: u32 = 4;

/// A response, or what is left of it.
#[derive(Debug)]
struct Owed {
    reply: RpcReply,
    sent_bytes: usize,
}

impl Owed {
    const fn left(&self) -> usize {
        self.reply.response_len as usize - self.sent_bytes
    }
}

#[derive(Debug)]
struct SocketPeer {
    fd: Fd,
    wait: WaitClock,
    framer: Framer,
    /// Responses that the socket did not take yet, oldest first.
    owed: VecDeque<Owed>,
    /// The epoll set reports when sending is possible.
    waits_for_room: bool,
    /// Our side has sent its end of stream; what still arrives is thrown away until the peer's
    /// comes.
    lingers: bool,
}

impl SocketPeer {
    fn new(fd: Fd, now: Ticks) -> Self {
        Self {
            fd,
            wait: WaitClock::new(now),
            framer: Framer::default(),
            owed: VecDeque::new(),
            waits_for_room: false,
            lingers: false,
        }
    }

    /// No request is half read, and no response half sent.
    fn rests(&self) -> bool {
        self.framer.at_boundary() && self.owed.is_empty()
    }

    fn awaited(&self) -> AwaitedStep {
        if self.lingers {
            AwaitedStep::End
        } else if !self.owed.is_empty() {
            AwaitedStep::Room
        } else if self.framer.at_boundary() {
            AwaitedStep::Request
        } else {
            AwaitedStep::Rest
        }
    }

    /// Sends pending responses until all are sent or the socket is full. Returns the bytes sent.
    fn send_owed(&mut self, context: &mut impl Bsd) -> Result<usize, Error> {
        let mut taken = 0;
        while !self.owed.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let left = self.owed.iter().flat_map(|it| it.reply.pieces_after(it.sent_bytes));
            let count = pieces.iter_mut().zip(left).map(|(to, from)| *to = IoSlice::new(from));
            let count = count.count();
            let sent = match context.writev(self.fd, &pieces[..count]) {
                Ok(sent) => sent,
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(error),
            };
            taken += sent;
            self.tick_off(sent);
        }
        Ok(taken)
    }

    /// Removes bytes that were sent from the pending responses.
    fn tick_off(&mut self, mut sent: usize) {
        while let Some(front) = self.owed.front_mut() {
            let done = front.left().min(sent);
            front.sent_bytes += done;
            sent -= done;
            if front.left() > 0 {
                return;
            }
            self.owed.pop_front();
        }
    }
}

/// Why a connection is of no more use.
enum Ended {
    /// The peer has sent its last byte.
    Peer,
    /// It requested lengths that the protocol does not allow.
    Rejected,
    /// The socket failed, mostly because the peer reset it.
    Failed,
}

/// Sockets whose wait ends when the server enters its next phase.
struct Interruptible {
    context: Context,
    control: Arc<ServerControl>,
    /// The phase that the loop knows of.
    phase: ServerPhase,
}

impl CallRunner for Interruptible {
    #[inline]
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        let Self { context, control, phase } = self;
        context.run_unless(|| control.phase() != *phase, attempt)
    }

    #[inline]
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        self.context.once(call)
    }
}

/// One context's part of the server.
struct SocketShard {
    sockets: Interruptible,
    epoll: Fd,
    /// Those that are open; none any more while draining.
    listeners: Vec<Fd>,
    /// The listeners are registered: connections are below the limit, and the last accept
    /// succeeded.
    accepts: bool,
    connections_max: usize,
    lengths: Lengths,
    peers: Slab<SocketPeer>,
    buffer: Box<[u8]>,
    stall_ms: u32,
    /// The time as of the last event or tick.
    now: Ticks,
    swept: Ticks,
    draining: bool,
    tally: ServerTally,
}

/// The whole life of one thread: sockets, listeners, serving, draining.
pub(super) fn serve(
    plan: &ShardPlan,
    lengths: Lengths,
    stall_ms: u32,
    ready: &ReadySender,
) -> Result<(), ServeError> {
    let (mut shard, report) = match SocketShard::set_up(plan, lengths, stall_ms) {
        Ok(parts) => parts,
        Err(error) => {
            // The receiver is gone only if the server is already ending.
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    if ready.send(Ok(report)).is_err() {
        return Ok(());
    }
    let served = shard.run(plan);
    shard.publish(plan);
    served.map_err(|source| ServeError::Sockets { index: plan.index, source })
}

/// From nothing to the last connection.
impl SocketShard {
    fn set_up(
        plan: &ShardPlan,
        lengths: Lengths,
        stall_ms: u32,
    ) -> Result<(Self, ChannelReady), ServeError> {
        let index = plan.index;
        let beside = plan.endpoints.len() as u32 + DESCRIPTORS_BESIDE;
        let config = Config::default()
            .channel(plan.config.clone())
            .descriptors(plan.connections_max.saturating_add(beside));
        let context = Context::create(config);
        let context = context.map_err(|source| ServeError::CreateSockets { index, source })?;
        let report = context.report();
        if index == 0 {
            warn_of_fall_back(report);
        }
        let (driver, why) = driver_of(report);
        let waker = context.waker();
        let control = Arc::clone(&plan.control);
        let mut sockets = Interruptible { context, control, phase: ServerPhase::Serve };
        let broken = |source| ServeError::Sockets { index, source };
        let epoll = sockets.epoll_create1(OpenFlags::CLOEXEC).map_err(broken)?;
        let mut shard = Self {
            sockets,
            epoll,
            listeners: Vec::with_capacity(plan.endpoints.len()),
            accepts: true,
            connections_max: plan.connections_max as usize,
            lengths,
            peers: Slab::new(),
            buffer: vec![0; plan.config.buffer_len].into(),
            stall_ms,
            now: Ticks::now(),
            swept: Ticks::now(),
            draining: false,
            tally: ServerTally::default(),
        };
        let addresses: Result<Vec<Address>, ServeError> = plan
            .endpoints
            .iter()
            .map(|endpoint| shard.listen(endpoint, plan.backlog).map(Address::Inet))
            .collect();
        Ok((shard, ChannelReady { waker, addresses: addresses?, driver, why }))
    }

    fn listen(
        &mut self,
        endpoint: &ServerEndpoint,
        backlog: u32,
    ) -> Result<SocketAddr, ServeError> {
        let address = endpoint.address();
        let failed = |source: Error| ServeError::Bind {
            address: address.clone(),
            source: std::io::Error::from_raw_os_error(source.raw_os_error()),
        };
        let inet = address.as_inet().ok_or(Error::FamilyNotSupported).map_err(failed)?;
        self.listen_on(inet, backlog).map_err(failed)
    }

    fn listen_on(&mut self, address: SocketAddr, backlog: u32) -> Result<SocketAddr, Error> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let listener = self.sockets.socket(family, kind, 0)?;
        let on = 1_i32.to_ne_bytes();
        // Accepted connections inherit TCP_NODELAY; nothing is saved by waiting to send.
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        ] {
            self.sockets.setsockopt(listener, level, name, &on)?;
        }
        self.sockets.bind(listener, address)?;
        self.sockets.listen(listener, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        let index = self.listeners.len() as u64;
        let event = EpollEvent { events: Events::IN, data: FRAME_COOKIES + index };
        self.sockets.epoll_ctl(self.epoll, EpollOp::Add(event), listener)?;
        self.listeners.push(listener);
        self.sockets.getsockname(listener)
    }

    fn run(&mut self, plan: &ShardPlan) -> Result<(), Error> {
        let mut events = [EpollEvent::default(); EVENTS];
        let mut ticked = self.now;
        let mut deadline = None;
        // Ticks since the last event: after many of them there are fewer.
        let mut quiet = 0_u32;
        loop {
            let rests = quiet >= QUIET_TICKS && self.accepts && deadline.is_none();
            let tick = if rests { REST_TICK } else { TICK };
            let wait = tick.saturating_sub(self.now.since(ticked));
            let count = match self.sockets.epoll_wait(self.epoll, &mut events, Some(wait)) {
                Ok(count) => count,
                Err(Error::Interrupted) => 0,
                Err(error) => return Err(error),
            };
            self.now = Ticks::now();
            events[..count].iter().for_each(|event| self.on_event(*event));
            if count > 0 {
                quiet = 0;
            }
            let now = self.now;
            if now.since(ticked) >= TICK {
                ticked = now;
                quiet = quiet.saturating_add(1);
                self.watch_listeners();
                self.sweep();
                self.publish(plan);
            }
            self.sockets.phase = plan.control.phase();
            match self.sockets.phase {
                ServerPhase::Serve => {}
                ServerPhase::Drain if deadline.is_none() => {
                    deadline = Some(now.after(plan.drain));
                    self.drain();
                }
                ServerPhase::Drain => {}
                ServerPhase::Stop => return Ok(()),
            }
            if deadline.is_some_and(|deadline| self.is_drained() || now >= deadline) {
                // What was closed last leaves with this.
                return self.sockets.context.drive(Some(std::time::Duration::ZERO));
            }
        }
    }

    /// Whether all closed connections have sent their last bytes.
    fn is_drained(&self) -> bool {
        self.peers.is_empty() && self.sockets.context.closing() == 0
    }

    fn publish(&self, plan: &ShardPlan) {
        plan.published.store(self.tally.with_wakeups(self.sockets.context.counters()));
    }

    /// No new connections; those that rest are ended, the others when they rest.
    fn drain(&mut self) {
        self.draining = true;
        for index in 0..self.listeners.len() {
            self.accept_all(index);
        }
        for listener in std::mem::take(&mut self.listeners) {
            // It was opened here and is closed once.
            let _ = self.sockets.close(listener);
        }
        (0..end_of_keys(&self.peers)).for_each(|key| self.linger_if_resting(key));
    }
}

/// Connections as they come and go.
impl SocketShard {
    fn on_event(&mut self, event: EpollEvent) {
        match event.data.checked_sub(FRAME_COOKIES) {
            Some(listener) => self.accept_all(listener as usize),
            None => self.on_ready(event.data as usize, event.events),
        }
    }

    fn accept_all(&mut self, index: usize) {
        while let Some(&listener) = self.listeners.get(index)
            && self.peers.len() < self.connections_max
        {
            match self.sockets.accept4(listener, OpenFlags::NONBLOCK) {
                Ok(fd) => self.admit(fd),
                Err(Error::WouldBlock) => return,
                // The peer left while it was queued: its business.
                Err(Error::Aborted | Error::Interrupted) => {}
                // Out of descriptors or memory: those that are open go on, the backlog waits.
                Err(_) => break,
            }
        }
        self.ignore_listeners();
    }

    fn admit(&mut self, fd: Fd) {
        self.tally.accepted += 1;
        let key = self.peers.insert(SocketPeer::new(fd, self.now));
        let event = EpollEvent { events: EDGES, data: key as u64 };
        if self.sockets.epoll_ctl(self.epoll, EpollOp::Add(event), fd).is_err() {
            self.close(key);
        } else if self.draining {
            self.linger_if_resting(key);
        }
    }

    /// Tells of listeners no more until [`Self::watch_listeners`]: they are level-triggered.
    fn ignore_listeners(&mut self) {
        if std::mem::take(&mut self.accepts) {
            self.set_listeners(Events::empty());
        }
    }

    /// Registers listeners again, if connections are below the limit.
    fn watch_listeners(&mut self) {
        if !self.accepts && self.peers.len() < self.connections_max {
            self.accepts = true;
            self.set_listeners(Events::IN);
        }
    }

    fn set_listeners(&mut self, events: Events) {
        for (&listener, data) in self.listeners.iter().zip(FRAME_COOKIES..) {
            // They are in the set as long as they are open.
            let change = EpollOp::Modify(EpollEvent { events, data });
            let _ = self.sockets.epoll_ctl(self.epoll, change, listener);
        }
    }

    /// An event of the connection at `key`. It may be one of a connection that was closed earlier
    /// in the same batch, whose place a new one has taken: then nothing is there to read.
    fn on_ready(&mut self, key: usize, events: Events) {
        if !self.peers.contains(key) {
            return;
        }
        match self.exchange(key, events) {
            Ok(()) if self.draining => self.linger_if_resting(key),
            Ok(()) => {}
            Err(Ended::Peer) => self.close(key),
            Err(Ended::Rejected) => {
                self.tally.rejected += 1;
                self.close(key);
            }
            Err(Ended::Failed) => {
                // That is how many clients say goodbye, so it counts as a failure only where
                // something was left undone.
                let peer = &self.peers[key];
                self.tally.failed += u64::from(!peer.rests() && !peer.lingers);
                self.close(key);
            }
        }
    }

    /// While draining: ends our side of a connection that rests.
    fn linger_if_resting(&mut self, key: usize) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.lingers || !peer.rests() {
            return;
        }
        peer.lingers = true;
        peer.wait.restart(self.now);
        if self.sockets.shutdown(peer.fd, Shutdown::Write).is_err() {
            self.close(key);
        }
    }

    /// Closes connections that have timed out, and idle ones if new connections need their slots.
    fn sweep(&mut self) {
        let Self { peers, stall_ms, now, .. } = self;
        if now.since(self.swept).as_millis() < u128::from(SWEEP_MS) {
            return;
        }
        self.swept = *now;
        let is_full = peers.len() >= self.connections_max;
        let overdue = |(key, peer): (usize, &SocketPeer)| {
            let overdue = peer.wait.overdue(peer.awaited(), *stall_ms, is_full, *now);
            overdue.map(|overdue| (key, overdue))
        };
        let overdue: Vec<(usize, Overdue)> = peers.iter().filter_map(overdue).collect();
        for (key, overdue) in overdue {
            match overdue {
                Overdue::TooSlow => self.cut_off(key),
                Overdue::GivesWay | Overdue::Lingers => self.close(key),
            }
        }
    }

    /// Resets a connection in the middle of a request or of a response.
    fn cut_off(&mut self, key: usize) {
        let Some(peer) = self.peers.get(key) else { return };
        self.tally.failed += 1;
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        // Without it the connection ends in order, later.
        let _ = self.sockets.setsockopt(peer.fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        self.close(key);
    }

    fn close(&mut self, key: usize) {
        let Some(peer) = self.peers.try_remove(key) else { return };
        self.tally.closed += 1;
        // It was open; that is all that could go wrong.
        let _ = self.sockets.close(peer.fd);
        self.watch_listeners();
    }
}

/// Requests and responses.
impl SocketShard {
    /// Sends pending responses, then reads and answers until it can neither read nor send more.
    fn exchange(&mut self, key: usize, events: Events) -> Result<(), Ended> {
        let Self { sockets, peers, buffer, tally, lengths, epoll, now, .. } = self;
        let Some(peer) = peers.get_mut(key) else { return Ok(()) };
        let mut is_last = events.intersects(LAST);
        if peer.waits_for_room {
            let sent = peer.send_owed(sockets).map_err(|_| Ended::Failed)?;
            tally.bytes_out += sent as u64;
            if sent > 0 {
                peer.wait.restart(*now);
            }
            // Edges that came while nothing was read are spent.
            is_last = true;
        }
        while peer.owed.is_empty() {
            let len = match sockets.read(peer.fd, buffer) {
                Ok(0) => return Err(Ended::Peer),
                Ok(len) => len,
                Err(Error::WouldBlock) => break,
                Err(_) => return Err(Ended::Failed),
            };
            if !peer.lingers {
                let requests = tally.requests;
                let is_new = peer.framer.at_boundary();
                answer(sockets, peer, &buffer[..len], *lengths, tally)?;
                if is_new || tally.requests > requests {
                    peer.wait.restart(*now);
                }
            }
            if len < buffer.len() && !is_last {
                break;
            }
        }
        let waits_for_room = !peer.owed.is_empty();
        if waits_for_room != peer.waits_for_room {
            peer.waits_for_room = waits_for_room;
            let events = if waits_for_room { EDGES | Events::OUT } else { EDGES };
            let change = EpollOp::Modify(EpollEvent { events, data: key as u64 });
            sockets.epoll_ctl(*epoll, change, peer.fd).map_err(|_| Ended::Failed)?;
        }
        Ok(())
    }
}

/// Answers the requests in `data`, which was read while no response was pending.
#[inline]
fn answer(
    sockets: &mut impl Bsd,
    peer: &mut SocketPeer,
    mut data: &[u8],
    lengths: Lengths,
    tally: &mut ServerTally,
) -> Result<(), Ended> {
    tally.bytes_in += data.len() as u64;
    if peer.framer.at_boundary() {
        let whole = echoes(data, lengths);
        if whole.len > 0 {
            let (echo, rest) = data.split_at(whole.len);
            let sent = match sockets.write(peer.fd, echo) {
                Ok(sent) => sent,
                Err(Error::WouldBlock) => 0,
                Err(_) => return Err(Ended::Failed),
            };
            tally.requests += whole.count;
            tally.bytes_out += sent as u64;
            data = rest;
            if sent < echo.len() {
                frame(peer, echo, lengths)?;
                peer.tick_off(sent);
            }
        }
    }
    if !data.is_empty() {
        tally.requests += frame(peer, data, lengths)?;
        tally.bytes_out += peer.send_owed(sockets).map_err(|_| Ended::Failed)? as u64;
    }
    Ok(())
}

/// Parses the requests in `data` and queues their responses. Returns their number.
fn frame(peer: &mut SocketPeer, mut data: &[u8], lengths: Lengths) -> Result<u64, Ended> {
    let mut count = 0;
    while !data.is_empty() {
        match peer.framer.next(&mut data, lengths) {
            Ok(None) => break,
            Ok(Some(reply)) => {
                peer.owed.push_back(Owed { reply, sent_bytes: 0 });
                count += 1;
            }
            Err(_) => return Err(Ended::Rejected),
        }
    }
    Ok(count)
}
