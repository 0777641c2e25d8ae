//! One connection to a peer: its control channel, and the handshake in either role.
//!
//! Invariants
//! - All queues of a connection share it; the last one to go says DISCONNECT.
//! - Once a session is gone it stays so, and the first reason is kept.

use std::io;
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;

use super::control::{AddRing, MemifMessage, Name};
use super::handshake::{self, AgreedMemory, RingOffer, ServerHandshake, ServerReply, Terms};
use super::lane::{LaneBuffers, ReceiveLane, SendLane};
use super::refusal::MemifRefusal;
use super::region::MemifRegion;
use super::ring::{MemifRing, ring_bytes};
use super::socket::{self, SocketArrival};
use crate::held_signals::HeldSignals;
use crate::limits::{MEMIF_MESSAGE_TIMEOUT_MS, MEMIF_REGION_BYTES_MAX};

/// How long a peer may take over one message.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(MEMIF_MESSAGE_TIMEOUT_MS);

/// Both rings of one queue, and what wakes their consumers.
pub(super) struct Lanes {
    pub(super) receiving: ReceiveLane,
    pub(super) sending: SendLane,
    /// Readable when the peer has sent.
    pub(super) wakes_us: OwnedFd,
    /// To be raised when we have sent (`interrupt.rs`).
    pub(super) wakes_peer: OwnedFd,
}

/// Why there is no session.
#[derive(Debug)]
pub(super) enum NoSession {
    /// A system call failed.
    Io(&'static str, io::Error),
    /// We sent the peer away.
    Refused(String),
    /// The peer sent us away, left, or took too long.
    SentAway(String),
}

impl NoSession {
    /// A held signal ended the wait.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self, Self::Io(_, error) if error.kind() == io::ErrorKind::Interrupted)
    }
}

impl From<MemifRefusal> for NoSession {
    fn from(refusal: MemifRefusal) -> Self {
        Self::Refused(refusal.to_string())
    }
}

/// The control channel of a connection.
#[derive(Debug)]
pub(super) struct Session {
    channel: OwnedFd,
    peer: OnceLock<String>,
    gone: AtomicBool,
    reason: OnceLock<String>,
}

impl Session {
    fn new(channel: OwnedFd) -> Self {
        let gone = AtomicBool::new(false);
        Self { channel, peer: OnceLock::new(), gone, reason: OnceLock::new() }
    }

    /// What the peer calls itself.
    pub(super) fn peer(&self) -> &str {
        self.peer.get().map_or("", String::as_str)
    }

    /// The descriptor that becomes readable when the peer says something or goes.
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether it is over. Relaxed: nothing else is read on the strength of it.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Why it is over.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Looks at the control channel: after CONNECTED only a DISCONNECT or the end comes. One
    /// system call or two.
    pub(super) fn look(&self) {
        if self.is_gone() {
            return;
        }
        match socket::receive(self.channel(), Instant::now()) {
            Ok(SocketArrival::Nothing | SocketArrival::Message(MemifMessage::Ack, _)) => {}
            Ok(SocketArrival::Message(MemifMessage::Disconnect { reason, .. }, _)) => {
                self.over(&format!("the peer disconnected: {}", reason.to_text()));
            }
            Ok(SocketArrival::Closed) => self.over("the peer closed the control channel"),
            Ok(SocketArrival::Message(..)) => self.disconnect("unexpected message"),
            Ok(SocketArrival::Nonsense(nonsense)) => self.disconnect(&nonsense.to_string()),
            Err(error) => self.over(&format!("the control channel failed: {error}")),
        }
    }

    /// Ends the connection from our side.
    pub(super) fn disconnect(&self, reason: &str) {
        if !self.is_gone() {
            // A peer that cannot be told learns it from the channel's end.
            let _ = socket::send(self.channel(), &handshake::disconnect(reason), None);
            self.over(reason);
        }
    }

    fn over(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.gone.store(true, Ordering::Relaxed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.disconnect("closed");
    }
}

/// Sends one message, and names what it was if it fails.
fn send_message(
    session: &Session,
    message: &MemifMessage,
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), NoSession> {
    let sent = socket::send(session.channel(), message, fd);
    sent.map_err(|error| NoSession::Io("sending on the control channel", error))
}

/// The next message; `None`: none came until `deadline`.
fn heard(
    session: &Session,
    deadline: Instant,
) -> Result<Option<(MemifMessage, Option<OwnedFd>)>, NoSession> {
    match socket::receive(session.channel(), deadline) {
        Ok(SocketArrival::Message(MemifMessage::Disconnect { reason, .. }, _)) => {
            Err(NoSession::SentAway(format!("the peer disconnected: {}", reason.to_text())))
        }
        Ok(SocketArrival::Message(message, fd)) => Ok(Some((message, fd))),
        Ok(SocketArrival::Nonsense(nonsense)) => Err(NoSession::Refused(nonsense.to_string())),
        Ok(SocketArrival::Closed) => {
            Err(NoSession::SentAway("the peer closed the control channel".to_owned()))
        }
        Ok(SocketArrival::Nothing) => Ok(None),
        Err(error) => Err(NoSession::Io("receiving on the control channel", error)),
    }
}

fn too_late() -> NoSession {
    NoSession::SentAway("the peer took too long".to_owned())
}

/// A session and the rings of each of its queues.
pub(super) type Joined = (Arc<Session>, Vec<Lanes>);

/// A connection to a peer, until everything is agreed with it.
pub(super) struct Joining {
    session: Session,
    side: HandshakeSide,
    /// When the peer's next message has to be there.
    due: Instant,
}

/// Our side of the handshake.
enum HandshakeSide {
    Server(ServerHandshake<OwnedFd>),
    Client(ClientHandshake),
}

impl Joining {
    /// As the server of a client that has just connected: says HELLO.
    pub(super) fn serve(channel: OwnedFd, terms: &Terms, now: Instant) -> Result<Self, NoSession> {
        let session = Session::new(channel);
        let handshake = ServerHandshake::new(terms.clone());
        send_message(&session, &handshake.hello(), None)?;
        let side = HandshakeSide::Server(handshake);
        Ok(Self { session, side, due: now + MESSAGE_TIMEOUT })
    }

    /// As the client of a server that it has just connected to, which says HELLO.
    pub(super) fn join(channel: OwnedFd, wanted: WantedMemory, now: Instant) -> Self {
        let side = HandshakeSide::Client(ClientHandshake { wanted, offer: None });
        Self { session: Session::new(channel), side, due: now + MESSAGE_TIMEOUT }
    }

    /// Answers what the peer has said so far. `None`: more is to come. Does not block. After an
    /// error the peer is gone.
    pub(super) fn go_on(&mut self, now: Instant) -> Result<Option<Vec<Lanes>>, NoSession> {
        let outcome = self.answer(now);
        if let Err(NoSession::Refused(reason)) = &outcome {
            self.session.disconnect(reason);
        }
        outcome
    }

    fn answer(&mut self, now: Instant) -> Result<Option<Vec<Lanes>>, NoSession> {
        while let Some((message, fd)) = heard(&self.session, now)? {
            self.due = now + MESSAGE_TIMEOUT;
            let lanes = match &mut self.side {
                HandshakeSide::Server(server) => answer_client(&self.session, server, message, fd)?,
                HandshakeSide::Client(client) => client.answer_server(&self.session, message)?,
            };
            if lanes.is_some() {
                return Ok(lanes);
            }
        }
        if now >= self.due { Err(too_late()) } else { Ok(None) }
    }

    /// Waits until everything is agreed, until `deadline` or a held signal at most.
    pub(super) fn finish(
        mut self,
        deadline: Instant,
        held: Option<&HeldSignals>,
    ) -> Result<Joined, NoSession> {
        loop {
            if let Some(lanes) = self.go_on(Instant::now())? {
                return Ok((self.into_session(), lanes));
            }
            let until = deadline.min(self.due());
            let is_heard = socket::readable(self.channel(), Some(until), held)
                .map_err(|error| NoSession::Io("waiting on the control channel", error))?;
            if !is_heard && Instant::now() >= deadline {
                return Err(too_late());
            }
        }
    }

    /// The descriptor that becomes readable when the peer says something or goes.
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.session.channel()
    }

    /// When the peer's next message has to be there.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// The session, after `go_on` gave its rings.
    pub(super) fn into_session(self) -> Arc<Session> {
        Arc::new(self.session)
    }
}

/// A server's answer to a message of its client. Returns the rings once they are agreed.
fn answer_client(
    session: &Session,
    handshake: &mut ServerHandshake<OwnedFd>,
    message: MemifMessage,
    fd: Option<OwnedFd>,
) -> Result<Option<Vec<Lanes>>, NoSession> {
    if handshake.on_message(message, fd)? == ServerReply::Ack {
        send_message(session, &MemifMessage::Ack, None)?;
        return Ok(None);
    }
    let _ = session.peer.set(handshake.peer().to_text());
    let name = handshake.name();
    let lanes = adopt(handshake)?;
    send_message(session, &MemifMessage::Connected { name }, None)?;
    Ok(Some(lanes))
}

/// Maps what a client offered.
fn adopt(offer: &mut ServerHandshake<OwnedFd>) -> Result<Vec<Lanes>, NoSession> {
    let mut regions = Vec::with_capacity(offer.regions.len());
    for region in &offer.regions {
        regions.push(Arc::new(MemifRegion::adopt(&region.fd, region.bytes)?));
    }
    let regions: Arc<[Arc<MemifRegion>]> = regions.into();
    let adopt_ring = |offer: RingOffer<OwnedFd>| -> Result<(MemifRing, OwnedFd), MemifRefusal> {
        let AddRing { region, offset, size_log2, .. } = offer.ring;
        let region = regions.get(usize::from(region)).ok_or(MemifRefusal("a ring in no region"))?;
        let ring = MemifRing::at(region, offset as usize, size_log2);
        let ring =
            ring.filter(MemifRing::has_cookie).ok_or(MemifRefusal("a ring without its cookie"))?;
        check_eventfd(&offer.fd)?;
        Ok((ring, offer.fd))
    };
    let (to_server, to_client) = (take(&mut offer.to_server), take(&mut offer.to_client));
    let mut lanes = Vec::with_capacity(to_server.len());
    for (to_us, to_client) in to_server.into_iter().zip(to_client) {
        let buffers = LaneBuffers::Theirs { regions: Arc::clone(&regions) };
        let (ring, wakes_us) = adopt_ring(to_us)?;
        ring.mask_interrupt(true);
        let receiving = ReceiveLane::new(ring, buffers.clone());
        let (ring, wakes_peer) = adopt_ring(to_client)?;
        let sending = SendLane::new(ring, buffers);
        lanes.push(Lanes { receiving, sending, wakes_us, wakes_peer });
    }
    Ok(lanes)
}

/// Lets only an event descriptor pass: nothing else can be raised.
fn check_eventfd(fd: &OwnedFd) -> Result<(), MemifRefusal> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    match std::fs::read_link(link) {
        Ok(to) if to.as_os_str() == "anon_inode:[eventfd]" => Ok(()),
        _ => Err(MemifRefusal("a ring's descriptor must be an eventfd")),
    }
}

/// What a client wants of memory.
#[derive(Clone)]
pub(super) struct WantedMemory {
    /// What both sides have to agree about.
    pub(super) terms: Terms,
    /// Bytes of one buffer.
    pub(super) buffer_bytes: u32,
}

/// A client's side of a handshake: what it wants, and what it offers once it knows what the server
/// takes.
struct ClientHandshake {
    wanted: WantedMemory,
    offer: Option<MemoryOffer>,
}

impl ClientHandshake {
    /// The answer to a message of the server. Returns the rings once they are agreed.
    fn answer_server(
        &mut self,
        session: &Session,
        message: MemifMessage,
    ) -> Result<Option<Vec<Lanes>>, NoSession> {
        let Some(offer) = &mut self.offer else {
            let MemifMessage::Hello(hello) = message else {
                return Err(MemifRefusal("HELLO comes first").into());
            };
            let _ = session.peer.set(hello.name.to_text());
            let agreed = handshake::agree(&self.wanted.terms, &hello)?;
            self.offer = Some(MemoryOffer::make(agreed, self.wanted.buffer_bytes)?);
            send_message(session, &handshake::init(&self.wanted.terms), None)?;
            return Ok(None);
        };
        match (message, offer.next_message(self.wanted.terms.name)) {
            (MemifMessage::Ack, Some((message, fd))) => {
                send_message(session, &message, fd)?;
                offer.acknowledged += 1;
                Ok(None)
            }
            (MemifMessage::Connected { .. }, None) => {
                self.offer.take().map(MemoryOffer::into_lanes).transpose()
            }
            (_, Some(_)) => Err(MemifRefusal("ACK was due").into()),
            (_, None) => Err(MemifRefusal("CONNECTED was due").into()),
        }
    }
}

/// The client's memory: one region with all rings, then all buffers.
struct MemoryOffer {
    agreed: AgreedMemory,
    buffer_bytes: u32,
    region: Arc<MemifRegion>,
    memory: OwnedFd,
    bytes: usize,
    /// One per ring: those to the server first.
    wakes: Vec<OwnedFd>,
    /// Messages of the client that the server has acknowledged.
    acknowledged: usize,
}

impl MemoryOffer {
    fn make(agreed: AgreedMemory, buffer_bytes: u32) -> Result<Self, NoSession> {
        let ring_count = 2 * usize::from(agreed.queue_count);
        let buffers_bytes = (buffer_bytes as usize) << agreed.ring_size_log2;
        let bytes = ring_count * (ring_bytes(agreed.ring_size_log2) + buffers_bytes);
        if bytes as u64 > MEMIF_REGION_BYTES_MAX {
            return Err(MemifRefusal("rings and buffers take more than a region holds").into());
        }
        let created = MemifRegion::create(bytes);
        let (region, memory) =
            created.map_err(|error| NoSession::Io("making shared memory", error))?;
        let mut wakes = Vec::with_capacity(ring_count);
        for _ in 0..ring_count {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let wake = rustix::event::eventfd(0, flags);
            wakes.push(wake.map_err(|error| NoSession::Io("eventfd", error.into()))?);
        }
        let region = Arc::new(region);
        let offer = Self { agreed, buffer_bytes, region, memory, bytes, wakes, acknowledged: 0 };
        for index in 0..ring_count {
            offer.open_ring(index)?.clear();
        }
        Ok(offer)
    }

    /// The `index`th ring, those to the server first.
    fn open_ring(&self, index: usize) -> Result<MemifRing, MemifRefusal> {
        let ring = MemifRing::at(&self.region, self.ring_offset(index), self.agreed.ring_size_log2);
        ring.ok_or(MemifRefusal("a ring outside of its region, or misaligned"))
    }

    fn ring_offset(&self, index: usize) -> usize {
        index * ring_bytes(self.agreed.ring_size_log2)
    }

    /// What the client says next: the region, each ring, CONNECT. `None`: it has said everything.
    fn next_message(&self, name: Name) -> Option<(MemifMessage, Option<BorrowedFd<'_>>)> {
        let ring_count = self.wakes.len();
        Some(match self.acknowledged {
            0 => {
                let bytes = self.bytes as u64;
                let region = MemifMessage::AddRegion { index: 0, bytes };
                (region, Some(self.memory.as_fd()))
            }
            number if number <= ring_count => {
                let wakes = self.wakes[number - 1].as_fd();
                (MemifMessage::AddRing(self.ring(number - 1)), Some(wakes))
            }
            number if number == ring_count + 1 => (MemifMessage::Connect { name }, None),
            _ => return None,
        })
    }

    /// The `index`th ring, those to the server first.
    fn ring(&self, index: usize) -> AddRing {
        let queue_count = usize::from(self.agreed.queue_count);
        AddRing {
            to_server: index < queue_count,
            // There are twice as many rings as queues.
            index: (index % queue_count) as u16,
            region: 0,
            // Inside the region, whose offsets have 32 bits (`make`).
            offset: self.ring_offset(index) as u32,
            size_log2: self.agreed.ring_size_log2,
            private_header_bytes: 0,
        }
    }

    fn buffers(&self, index: usize) -> LaneBuffers {
        let rings = self.wakes.len() * ring_bytes(self.agreed.ring_size_log2);
        let each = (self.buffer_bytes as usize) << self.agreed.ring_size_log2;
        LaneBuffers::Ours {
            region: Arc::clone(&self.region),
            first_offset: (rings + index * each) as u32,
            buffer_bytes: self.buffer_bytes,
        }
    }

    /// The rings, once the server has said CONNECTED.
    fn into_lanes(mut self) -> Result<Vec<Lanes>, NoSession> {
        let queue_count = usize::from(self.agreed.queue_count);
        let mut lanes = Vec::with_capacity(queue_count);
        for queue in 0..queue_count {
            let to_us = queue_count + queue;
            let receiving = ReceiveLane::new(self.open_ring(to_us)?, self.buffers(to_us));
            let sending = SendLane::new(self.open_ring(queue)?, self.buffers(queue));
            lanes.push((receiving, sending));
        }
        let wakes_us = self.wakes.split_off(queue_count);
        let wakes = self.wakes.into_iter().zip(wakes_us);
        let lanes = lanes.into_iter().zip(wakes);
        let lanes = lanes.map(|((receiving, sending), (wakes_peer, wakes_us))| Lanes {
            receiving,
            sending,
            wakes_us,
            wakes_peer,
        });
        Ok(lanes.collect())
    }
}
