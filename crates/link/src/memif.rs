//! memif: a network cable made of shared memory, as VPP and DPDK speak it (version 2.0).
//!
//! One side is the *server* (the *master* of older documents): it listens on a UNIX socket. The
//! other is the *client* (the *slave*): it connects, and owns the memory of all rings and buffers.
//! Once they are connected frames pass without system calls; each queue is a [`Memif`], a link of
//! its own with a ring in each direction.
//!
//! Read first: `memif.h` of VPP or DPDK for the words; `ring.rs` for who writes what;
//! `handshake.rs` for the control channel; then `lane.rs`.
//!
//! Invariants
//! - The peer is hostile: it can write all of the shared memory at any time. Each index, region,
//!   offset and length is read once, checked, and used from private memory; frames are copied out
//!   before they are lent, and are filled in private before they are copied in.
//! - Polling by default: our receiving ring masks interrupts but between [`Link::arm`] and the next
//!   burst.
//! - Head and tail move once per burst.
//! - A session that is over stays over ([`LinkError::Gone`]); a server serves the next client by
//!   [`Listener::accept`], a client connects again by [`connect`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::{Caps, Checksums, Counters, Link, LinkError, MacAddress, Medium, Received, Transmit};

mod control;
mod copy;
mod handshake;
mod lane;
mod region;
mod ring;
mod session;
mod socket;

use crate::limits::{
    ETHERNET_HEADER_BYTES, MEMIF_BUFFER_BYTES_MAX, MEMIF_BUFFER_BYTES_MIN, MEMIF_FRAME_BYTES_MAX,
    MEMIF_FULL_SLEEP_US, MEMIF_POLLS_PER_CONTROL_LOOK, MEMIF_QUEUE_COUNT_MAX,
    MEMIF_RING_SIZE_LOG2_MAX, MEMIF_RING_SIZE_LOG2_MIN, MEMIF_SPINS_BEFORE_SLEEP,
};
use control::{SECRET_BYTES, Text};
use handshake::Terms;
use lane::{Gathered, Nonsense};
use session::{Lanes, NoSession, Session, Wanted};

const DRIVER: &str = "memif";

/// How long a client waits between two tries to connect to a server that is not there yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Which end of the cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Listens; the *master* of older documents.
    Server,
    /// Connects and owns the memory; the *slave* of older documents.
    Client,
}

/// How a memif is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the server listens: a path, or `@name` for a name without a file.
    pub socket: PathBuf,
    /// Which interface on that socket. Both ends say the same.
    pub id: u32,
    /// At most 24 bytes that a client has to know; empty: none. Both ends say the same.
    pub secret: String,
    /// What a frame starts with. Both ends say the same.
    pub medium: Medium,
    /// Our address, for [`Medium::Ethernet`].
    pub mac: MacAddress,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// Queues, each a link: wanted by a client, at most taken by a server. 1 to 64.
    pub queue_count: u16,
    /// Slots of a ring, as a power of two: wanted by a client, at most taken by a server. 1 to 14.
    pub ring_size_log2: u8,
    /// Bytes of one buffer, 64 to 65,536; longer frames are chained. The client's word counts.
    pub buffer_bytes: u32,
    /// What the peer shows as our name, at most 31 bytes.
    pub name: String,
}

impl Settings {
    /// DPDK's defaults for everything but `socket` and `mac`: 1 queue, 1024 slots of 2048 bytes,
    /// an MTU of 1500.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, mac: MacAddress) -> Self {
        Self {
            socket: socket.into(),
            id: 0,
            secret: String::new(),
            medium: Medium::Ethernet,
            mac,
            mtu: 1500,
            queue_count: 1,
            ring_size_log2: 10,
            buffer_bytes: 2048,
            name: "megapipe".to_owned(),
        }
    }

    fn check(&self) -> Result<(), LinkError> {
        let wrong = |setting, why: String| Err(LinkError::Setting { setting, why });
        if !(1..=MEMIF_QUEUE_COUNT_MAX).contains(&self.queue_count) {
            return wrong("queue_count", format!("1 to {MEMIF_QUEUE_COUNT_MAX} are possible"));
        }
        if !(MEMIF_RING_SIZE_LOG2_MIN..=MEMIF_RING_SIZE_LOG2_MAX).contains(&self.ring_size_log2) {
            let why =
                format!("{MEMIF_RING_SIZE_LOG2_MIN} to {MEMIF_RING_SIZE_LOG2_MAX} are possible");
            return wrong("ring_size_log2", why);
        }
        if !(MEMIF_BUFFER_BYTES_MIN..=MEMIF_BUFFER_BYTES_MAX).contains(&self.buffer_bytes) {
            let why = format!("{MEMIF_BUFFER_BYTES_MIN} to {MEMIF_BUFFER_BYTES_MAX} are possible");
            return wrong("buffer_bytes", why);
        }
        // IPv6 asks for 1280 (RFC 8200 section 5), IPv4 for 68 (RFC 791).
        if !(68..=MEMIF_FRAME_BYTES_MAX - ETHERNET_HEADER_BYTES).contains(&self.mtu) {
            let most = MEMIF_FRAME_BYTES_MAX - ETHERNET_HEADER_BYTES;
            return wrong("mtu", format!("68 to {most} are possible"));
        }
        if self.frame_bytes() > (self.buffer_bytes as usize) << self.ring_size_log2 {
            return wrong("mtu", "a frame does not fit into the whole ring".to_owned());
        }
        if self.secret.len() > SECRET_BYTES {
            return wrong("secret", format!("at most {SECRET_BYTES} bytes are possible"));
        }
        Ok(())
    }

    /// The largest frame in bytes.
    fn frame_bytes(&self) -> usize {
        match self.medium {
            Medium::Ethernet => self.mtu + ETHERNET_HEADER_BYTES,
            Medium::Ip => self.mtu,
        }
    }

    fn terms(&self) -> Terms {
        let mut secret = [0; SECRET_BYTES];
        // `check` saw that it fits.
        let len = self.secret.len().min(SECRET_BYTES);
        secret[..len].copy_from_slice(&self.secret.as_bytes()[..len]);
        Terms {
            id: self.id,
            mode: match self.medium {
                Medium::Ethernet => 0,
                Medium::Ip => 1,
            },
            secret,
            name: Text::new(&self.name),
            queue_count: self.queue_count,
            ring_size_log2: self.ring_size_log2,
        }
    }
}

/// Opens a memif in either role and waits until the peer is there, at most `timeout`. One link per
/// queue. A server's listener is closed again: to serve one client after another, use
/// [`Listener`].
///
/// # Errors
/// [`LinkError::Setting`]; [`LinkError::Unavailable`] when no peer came in time or it could not be
/// agreed with; [`LinkError::Io`].
pub fn open(role: Role, settings: &Settings, timeout: Duration) -> Result<Vec<Memif>, LinkError> {
    match role {
        Role::Server => Listener::bind(settings)?.accept(timeout),
        Role::Client => connect(settings, timeout),
    }
}

/// Connects to a server, waiting at most `timeout` for it to appear and to agree. A server that
/// sends us away is asked again: DPDK's does so until its port is started. Blocks.
///
/// # Errors
/// As [`open`].
pub fn connect(settings: &Settings, timeout: Duration) -> Result<Vec<Memif>, LinkError> {
    settings.check()?;
    let deadline = Instant::now() + timeout;
    let mut reason = None;
    loop {
        let not_yet = match try_connect(settings, deadline) {
            Ok((session, lanes)) => return links(Role::Client, settings, &session, lanes),
            Err(NoSession::Io(_, error)) if is_not_there_yet(&error) => {
                "no server is listening on the socket".to_owned()
            }
            Err(NoSession::SentAway(why)) => why,
            Err(why) => return Err(failed(why)),
        };
        let is_late = Instant::now() >= deadline;
        // The last try is cut short by the deadline: what an earlier one heard says more.
        let last = if is_late { reason.take().unwrap_or(not_yet) } else { not_yet };
        if is_late {
            return Err(unavailable(last));
        }
        reason = Some(last);
        std::thread::sleep(CONNECT_PAUSE);
    }
}

fn try_connect(
    settings: &Settings,
    deadline: Instant,
) -> Result<(Arc<Session>, Vec<Lanes>), NoSession> {
    let channel = socket::connect(&settings.socket)
        .map_err(|error| NoSession::Io("connecting to a memif", error))?;
    let wanted = Wanted { terms: settings.terms(), buffer_bytes: settings.buffer_bytes };
    session::join(channel, &wanted, deadline)
}

fn is_not_there_yet(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock | BrokenPipe | ConnectionReset)
}

fn unavailable(why: String) -> LinkError {
    LinkError::Unavailable { driver: DRIVER, why }
}

fn failed(why: NoSession) -> LinkError {
    match why {
        NoSession::Io(what, source) => LinkError::Io { what, source },
        NoSession::Refused(reason) | NoSession::SentAway(reason) => unavailable(reason),
    }
}

fn links(
    role: Role,
    settings: &Settings,
    session: &Arc<Session>,
    lanes: Vec<Lanes>,
) -> Result<Vec<Memif>, LinkError> {
    let open = |lanes| Memif::new(role, settings, Arc::clone(session), lanes);
    lanes.into_iter().map(open).collect()
}

/// A server's socket, where one client after another can be served.
#[derive(Debug)]
pub struct Listener {
    settings: Settings,
    listener: OwnedFd,
    refused_count: u64,
    last_refusal: Option<String>,
}

impl Listener {
    /// Listens. A socket file that nobody listens on any more is replaced; the file is removed
    /// when the listener is dropped. Access is by the file's permissions and the secret.
    ///
    /// # Errors
    /// [`LinkError::Setting`] or [`LinkError::Io`].
    pub fn bind(settings: &Settings) -> Result<Self, LinkError> {
        settings.check()?;
        let listener = socket::listen(&settings.socket)
            .map_err(|source| LinkError::Io { what: "listening for a memif", source })?;
        let settings = settings.clone();
        Ok(Self { settings, listener, refused_count: 0, last_refusal: None })
    }

    /// Waits for the next client with which everything can be agreed, at most `timeout`; one link
    /// per queue that it wants. Clients that are sent away meanwhile are counted. Blocks.
    ///
    /// # Errors
    /// [`LinkError::Unavailable`] when none came in time; [`LinkError::Io`].
    pub fn accept(&mut self, timeout: Duration) -> Result<Vec<Memif>, LinkError> {
        let deadline = Instant::now() + timeout;
        let terms = self.settings.terms();
        loop {
            let channel = socket::accept(&self.listener, Some(deadline))
                .map_err(|source| LinkError::Io { what: "accepting a memif client", source })?;
            let Some(channel) = channel else {
                return Err(unavailable(match &self.last_refusal {
                    Some(reason) => format!("no client in time; the last one left: {reason}"),
                    None => "no client in time".to_owned(),
                }));
            };
            match session::serve(channel, &terms, deadline) {
                Ok((session, lanes)) => {
                    return links(Role::Server, &self.settings, &session, lanes);
                }
                Err(why) => {
                    self.refused_count += 1;
                    self.last_refusal = Some(match why {
                        NoSession::Refused(reason) | NoSession::SentAway(reason) => reason,
                        NoSession::Io(what, error) => format!("{what}: {error}"),
                    });
                }
            }
        }
    }

    /// Clients that were sent away, or left before they were connected.
    #[must_use]
    pub fn refused_count(&self) -> u64 {
        self.refused_count
    }

    /// Becomes readable when a client wants to be accepted.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        remove_socket(&self.settings.socket);
    }
}

/// Removes the socket's file, if it has one. A file that is gone already is as good.
fn remove_socket(path: &Path) {
    if !path.as_os_str().as_encoded_bytes().starts_with(b"@") {
        let _ = std::fs::remove_file(path);
    }
}

/// One queue of a memif.
pub struct Memif {
    caps: Caps,
    counters: Counters,
    session: Arc<Session>,
    lanes: Lanes,
    /// Where a received frame is while it is lent.
    rx_frame: Box<[u8]>,
    /// Where a frame is filled before it is copied into shared memory.
    tx_frame: Box<[u8]>,
    /// The peer may interrupt us: `arm` was the last call.
    is_armed: bool,
    /// The last `tx_burst` ended because the ring was full.
    is_full: bool,
    /// Polls that found nothing to do since the control channel was last looked at.
    idle_polls: u32,
    /// What `wait_fd` shows: our interrupt, the control channel, the timer for a full ring.
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl std::fmt::Debug for Memif {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (receiving, sending) = (&self.lanes.receiving, &self.lanes.sending);
        f.debug_struct("Memif")
            .field("receiving", receiving)
            .field("sending", sending)
            .finish_non_exhaustive()
    }
}

impl Memif {
    fn new(
        role: Role,
        settings: &Settings,
        session: Arc<Session>,
        lanes: Lanes,
    ) -> Result<Self, LinkError> {
        let frame_bytes = settings.frame_bytes();
        let io =
            |what| move |source: rustix::io::Errno| LinkError::Io { what, source: source.into() };
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, timer_flags)
            .map_err(io("timerfd_create"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create"))?;
        for fd in [lanes.wakes_us.as_fd(), session.channel(), timer.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN).map_err(io("epoll_ctl"))?;
        }
        let caps = Caps {
            driver: DRIVER,
            medium: settings.medium,
            mac: if settings.medium == Medium::Ethernet { settings.mac } else { [0; 6] },
            mtu: settings.mtu,
            tx_frame_bytes: frame_bytes,
            tx_checksum: false,
            tso: false,
            shares_host_address: false,
            notes: notes(role, session.peer(), &lanes),
        };
        Ok(Self {
            caps,
            counters: Counters::default(),
            session,
            lanes,
            rx_frame: vec![0; frame_bytes].into(),
            tx_frame: vec![0; frame_bytes].into(),
            is_armed: false,
            is_full: false,
            idle_polls: 0,
            epoll,
            timer,
        })
    }

    /// Why the session is over, if it is: the peer's words or ours.
    #[must_use]
    pub fn gone_reason(&self) -> Option<&str> {
        self.session.reason()
    }

    fn check_session(&self) -> Result<(), LinkError> {
        if self.session.is_gone() { Err(LinkError::Gone { driver: DRIVER }) } else { Ok(()) }
    }

    /// Ends the session: there is nothing to go on with.
    fn broken(&self, nonsense: Nonsense) -> LinkError {
        self.session.disconnect(&nonsense.to_string());
        LinkError::Gone { driver: DRIVER }
    }

    /// Nothing was to be done; now and then that is because the peer is gone.
    fn idle(&mut self) -> Result<(), LinkError> {
        self.idle_polls += 1;
        if self.idle_polls >= MEMIF_POLLS_PER_CONTROL_LOOK {
            self.idle_polls = 0;
            self.look()?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), LinkError> {
        self.counters.system_calls += 1;
        self.session.look();
        self.check_session()
    }

    /// Back to polling after a sleep.
    fn disarm(&mut self) {
        if self.is_armed {
            self.is_armed = false;
            self.lanes.receiving.ring.mask_interrupt(true);
        }
    }

    fn receive(
        &mut self,
        max: usize,
        mut waiting: u16,
        each: &mut dyn FnMut(&[u8], Received),
    ) -> usize {
        let mut lent = 0;
        while lent < max && waiting > 0 {
            waiting -= match self.lanes.receiving.gather(waiting, &mut self.rx_frame) {
                Gathered::Frame { len, slots } => {
                    self.counters.rx_frames += 1;
                    self.counters.rx_bytes += len as u64;
                    lent += 1;
                    // The peer's checksums are believed as little as the peer is.
                    let received =
                        Received { checksums: Checksums::Unverified, ..Received::default() };
                    each(&self.rx_frame[..len], received);
                    slots
                }
                Gathered::TooLong { slots } => {
                    self.counters.rx_dropped_too_long += 1;
                    slots
                }
                Gathered::Malformed { slots } => {
                    self.counters.rx_dropped_malformed += 1;
                    slots
                }
                Gathered::Incomplete => break,
            };
        }
        lent
    }

    /// Lends room and copies in what was filled, until one of the three ends comes. The frames are
    /// not handed over yet.
    fn fill(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, Nonsense> {
        let mut room = self.lanes.sending.room()?;
        let mut filled = 0;
        self.is_full = false;
        while filled < max {
            if !self.lanes.sending.fits(room, self.tx_frame.len())? {
                self.is_full = true;
                self.counters.tx_full += 1;
                break;
            }
            let Some(transmit) = fill(&mut self.tx_frame) else { break };
            filled += 1;
            // What the caps do not offer cannot be done: a frame that asks for it would arrive
            // wrong.
            let is_plain = transmit.checksum_start == 0 && transmit.segment_bytes == 0;
            let frame = self.tx_frame.get(..transmit.len);
            let Some(frame) = frame.filter(|frame| is_plain && !frame.is_empty()) else {
                self.counters.tx_dropped_refused += 1;
                continue;
            };
            room -= self.lanes.sending.scatter(room, frame)?;
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += transmit.len as u64;
        }
        Ok(filled)
    }

    /// Writes the peer's event descriptor. One that is full wakes the peer all the same.
    fn interrupt(&mut self) {
        self.counters.system_calls += 1;
        let _ = rustix::io::write(&self.lanes.wakes_peer, &1u64.to_ne_bytes());
    }

    fn has_work(&self) -> Result<bool, Nonsense> {
        if self.lanes.receiving.waiting()? > 0 {
            return Ok(true);
        }
        let sending = &self.lanes.sending;
        Ok(self.is_full && sending.fits(sending.room()?, self.tx_frame.len())?)
    }

    /// Empties the interrupt and sets the timer if the ring to the peer is full.
    fn prepare_wake(&mut self) -> Result<(), LinkError> {
        let mut count = [0; 8];
        // Empty is what it should be.
        let _ = rustix::io::read(&self.lanes.wakes_us, &mut count);
        self.counters.system_calls += 2;
        // Zero stops the timer, and setting it makes it unreadable.
        let tv_nsec = if self.is_full { i64::from(MEMIF_FULL_SLEEP_US) * 1000 } else { 0 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: never, it_value: Timespec { tv_sec: 0, tv_nsec } };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .map_err(|errno| LinkError::Io { what: "timerfd_settime", source: errno.into() })?;
        Ok(())
    }
}

fn notes(role: Role, peer: &str, lanes: &Lanes) -> Vec<String> {
    let size = lanes.receiving.ring.size();
    let role = match role {
        Role::Server => "server (master): the memory is the peer's",
        Role::Client => "client (slave): the memory is ours",
    };
    vec![
        format!("{role}; rings of {size} slots; the peer is {peer:?}"),
        "frames are copied out of and into the shared memory: the peer may write it at any time"
            .to_owned(),
        "polls; asks for interrupts only while it sleeps; room in a full ring is looked for by a \
         timer, since the protocol has no interrupt for it"
            .to_owned(),
    ]
}

impl Link for Memif {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], Received),
    ) -> Result<usize, LinkError> {
        self.disarm();
        let waiting = self.lanes.receiving.waiting().map_err(|nonsense| self.broken(nonsense))?;
        if waiting == 0 {
            // Only now: what a peer sent before it left is received.
            self.check_session()?;
            self.idle()?;
            return Ok(0);
        }
        let lent = self.receive(max, waiting, each);
        self.lanes.receiving.give_back();
        Ok(lent)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        self.check_session()?;
        let outcome = self.fill(max, fill);
        if self.lanes.sending.publish() {
            self.interrupt();
        }
        let filled = outcome.map_err(|nonsense| self.broken(nonsense))?;
        if filled == 0 && self.is_full {
            self.idle()?;
        }
        Ok(filled)
    }

    /// Unmasks our interrupts and looks once more. A peer of ours cannot slip through between the
    /// two (see `Ring::mask_interrupt`). DPDK's driver makes no fence between its index and its
    /// look at our mask, so its last store may still be on its way when we look; after a short
    /// spin, longer than a store takes to leave the core, we look again.
    fn arm(&mut self) -> Result<bool, LinkError> {
        if self.has_work().map_err(|nonsense| self.broken(nonsense))? {
            return Ok(false);
        }
        self.check_session()?;
        self.prepare_wake()?;
        self.is_armed = true;
        self.lanes.receiving.ring.mask_interrupt(false);
        for _ in 0..MEMIF_SPINS_BEFORE_SLEEP {
            std::hint::spin_loop();
        }
        if self.has_work().map_err(|nonsense| self.broken(nonsense))? {
            self.disarm();
            return Ok(false);
        }
        // The peer may have sent its last frames just before it left.
        self.look()?;
        Ok(true)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        if !self.arm()? {
            return Ok(true);
        }
        self.counters.system_calls += 1;
        let woken = crate::sleep::until_readable(self.epoll.as_fd(), timeout)?;
        self.disarm();
        Ok(woken)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
