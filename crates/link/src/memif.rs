//! memif: a link over memory shared with another process, compatible with VPP and DPDK (version
//! 2.0).
//!
//! One side is the *server* (the *master* of older documents): it listens on a UNIX socket. The
//! other is the *client* (the *slave*): it connects, and owns the memory of all rings and buffers.
//! Once they are connected frames pass without system calls; each queue is a [`Memif`], a link of
//! its own with a ring in each direction.
//!
//! Read first: `memif.h` of VPP or DPDK for the terms; `ring.rs` for the writer of each field;
//! `handshake.rs` for the control channel; then `lane.rs`.
//!
//! Invariants
//! - The peer is hostile: it can write all of the shared memory at any time. Each index, region,
//!   offset and length is read once, checked, and used from private memory; frames are copied out
//!   before they are lent, and are filled in private before they are copied in.
//! - No call waits for the peer: interrupts are raised, and seen, without the flag of their
//!   descriptors, which is the peer's as well (`interrupt.rs`).
//! - Polling by default: our receiving ring masks interrupts but between [`Link::arm`] and the next
//!   burst.
//! - Head and tail move once per burst.
//! - A session that is over stays over ([`LinkError::Gone`]); a client connects again by
//!   [`connect`]. The links of a server that [`open`] made go on with the next client's session.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::held_signals::HeldSignals;
use crate::{Caps, FrameCounters, Link, LinkError, LinkMedium, RxChecksum, RxMetadata, TxMetadata};

mod control;
mod handshake;
mod interrupt;
mod lane;
mod listener;
mod place;
mod refusal;
mod region;
mod ring;
mod session;
mod settings;
mod socket;

use crate::limits::{
    MEMIF_FULL_SLEEP_US, MEMIF_NOTICE_AFTER_MS, MEMIF_POLLS_PER_CONTROL_LOOK,
    MEMIF_PRESENT_WAIT_MS, MEMIF_RETRY_MIN_MS, MEMIF_SPINS_BEFORE_SLEEP,
};
use interrupt::Interrupts;
use lane::{GatheredFrame, Nonsense};
pub use listener::Listener;
use place::PeerPlace;
use session::{Joined, Joining, Lanes, NoSession, Session};
use settings::OWN_NAME;
pub use settings::{MemifRole, MemifSettings};

const DRIVER: &str = "memif";

/// Time without a peer after which the link reports that it waits for one.
const NOTICE_AFTER: Duration = Duration::from_millis(MEMIF_NOTICE_AFTER_MS);
/// How long a client waits between two tries to connect to a server that is not there yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(MEMIF_RETRY_MIN_MS);

/// Which of them is ready is no matter.
const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);
/// What the set reports of the control channel with the peer.
const CHANNEL: epoll::EventData = epoll::EventData::new_u64(1);
/// A timer of zero would be none.
const SHORTEST_SLEEP: Duration = Duration::from_micros(1);

/// Opens a memif in either role and waits until the peer is there, at most `timeout`. One link per
/// queue. Calls `waits`, with the reason, if the peer is not there after a second.
///
/// A server's links outlive their client. Until the next one comes, on the same socket and with as
/// many queues, nothing is received and what is sent is lost, as with a cable that is not plugged
/// in. Use [`Listener`] for links that end with their client.
///
/// With a `timeout` of zero the links start without their peer, as without a carrier, and `waits`
/// is called at once if none is there. A client waits for a server that is there, at most 50 ms;
/// later it tries again by itself, and its links end with the first server that they got. All
/// queues have to be taken.
///
/// # Errors
/// [`LinkError::Setting`]; [`LinkError::Unavailable`] when no peer came in time or it could not be
/// agreed with; [`LinkError::Io`], also when a signal came that ends a process. In a process with
/// other threads such a signal can end it through one of those: a server's socket file then stays
/// until the next server replaces it.
pub fn open(
    role: MemifRole,
    settings: &MemifSettings,
    timeout: Duration,
    waits: &mut dyn FnMut(&str),
) -> Result<Vec<Memif>, LinkError> {
    match role {
        MemifRole::Server => {
            // Until the listener is dropped, and its socket's file removed with it, no signal ends
            // the process.
            let held =
                HeldSignals::hold().map_err(|source| LinkError::Io { what: "signalfd", source })?;
            let mut listener = Listener::bind(settings)?;
            if timeout.is_zero() {
                waits("no client has come");
                let count = settings.queue_count.into();
                let places = PeerPlace::of_server(listener, settings, count)?;
                return unplugged_links(role, settings, places);
            }
            let joined = listener.first_client(timeout, &held, waits)?;
            let (session, queue_count) = (Arc::clone(&joined.0), joined.1.len());
            let mut places = PeerPlace::of_server(listener, settings, queue_count)?;
            PeerPlace::begin_with(&mut places, &session);
            with_places(links(role, settings, joined)?, places)
        }
        MemifRole::Client if timeout.is_zero() => {
            settings.check()?;
            let mut places = PeerPlace::of_client(settings, Instant::now())?;
            let patience = Duration::from_millis(MEMIF_PRESENT_WAIT_MS);
            match PeerPlace::await_present(&mut places, patience) {
                Some(joined) => links(role, settings, joined),
                None => {
                    waits("no server has answered");
                    unplugged_links(role, settings, places)
                }
            }
        }
        MemifRole::Client => connect_noting(settings, timeout, waits),
    }
}

/// The links of a socket that has no peer yet.
fn unplugged_links(
    role: MemifRole,
    settings: &MemifSettings,
    places: Vec<PeerPlace>,
) -> Result<Vec<Memif>, LinkError> {
    let links = places.iter().map(|_| Memif::new(role, settings, None));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    with_places(links, places)
}

/// Gives each link its place, where it gets a peer when it has none.
fn with_places(mut links: Vec<Memif>, places: Vec<PeerPlace>) -> Result<Vec<Memif>, LinkError> {
    for (link, place) in links.iter_mut().zip(places) {
        link.set_place(place)?;
    }
    Ok(links)
}

/// Connects to a server, waiting at most `timeout` for it to appear and to agree. A server that
/// sends us away is asked again: DPDK's does so until its port is started. Blocks.
///
/// # Errors
/// As [`open`].
pub fn connect(settings: &MemifSettings, timeout: Duration) -> Result<Vec<Memif>, LinkError> {
    connect_noting(settings, timeout, &mut |_| ())
}

fn connect_noting(
    settings: &MemifSettings,
    timeout: Duration,
    waits: &mut dyn FnMut(&str),
) -> Result<Vec<Memif>, LinkError> {
    settings.check()?;
    // A signal that is to end the process ends the wait.
    let held = HeldSignals::hold().map_err(|source| LinkError::Io { what: "signalfd", source })?;
    let start = Instant::now();
    let deadline = start + timeout;
    let mut notice_at = Some(start + NOTICE_AFTER);
    let mut reason = None;
    loop {
        // A server that is busy with another client lets us wait in its queue.
        let until = notice_at.map_or(deadline, |at| at.min(deadline));
        let not_yet = match try_connect(settings, until, &held) {
            Ok(joined) => return links(MemifRole::Client, settings, joined),
            Err(NoSession::Io(_, error)) if error.kind() == io::ErrorKind::WouldBlock => {
                "the server has not yet seen the clients that came before".to_owned()
            }
            Err(NoSession::Io(_, error)) if is_not_there_yet(&error) => {
                "no server is listening on the socket".to_owned()
            }
            Err(NoSession::SentAway(why)) => why,
            Err(why) if why.is_interrupted() => return Err(failed(why)),
            Err(_) if Instant::now() >= until && until < deadline => {
                "the server does not answer: it may have another client".to_owned()
            }
            Err(why) => return Err(failed(why)),
        };
        let now = Instant::now();
        // The last try is cut short by the deadline: what an earlier one heard says more.
        let last = if now >= deadline { reason.take().unwrap_or(not_yet) } else { not_yet };
        if now >= deadline {
            return Err(unavailable(last));
        }
        if notice_at.is_some_and(|at| now >= at) {
            notice_at = None;
            waits(&last);
        }
        reason = Some(last);
        let is_ended = socket::readable(held.as_fd(), Some(now + CONNECT_PAUSE), None);
        if is_ended.unwrap_or(true) {
            let source = io::ErrorKind::Interrupted.into();
            return Err(LinkError::Io { what: "waiting for a memif's server", source });
        }
    }
}

fn try_connect(
    settings: &MemifSettings,
    deadline: Instant,
    held: &HeldSignals,
) -> Result<Joined, NoSession> {
    let channel = socket::connect(&settings.socket)
        .map_err(|error| NoSession::Io("connecting to a memif", error))?;
    Joining::join(channel, settings.wanted(), Instant::now()).finish(deadline, Some(held))
}

fn is_not_there_yet(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused | BrokenPipe | ConnectionReset)
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
    role: MemifRole,
    settings: &MemifSettings,
    (session, lanes): Joined,
) -> Result<Vec<Memif>, LinkError> {
    let peer = |lanes| MemifPeer { session: Arc::clone(&session), lanes };
    lanes.into_iter().map(|lanes| Memif::new(role, settings, Some(peer(lanes)))).collect()
}

/// One queue of a memif.
pub struct Memif {
    caps: Caps,
    counters: FrameCounters,
    /// `None`: there is none just now.
    peer: Option<MemifPeer>,
    /// Where the next peer comes from; `None`: there is none after this one.
    place: Option<PeerPlace>,
    /// Where a received frame is while it is lent.
    rx_frame: Box<[u8]>,
    /// Where a frame is filled before it is copied into shared memory.
    tx_frame: Box<[u8]>,
    /// The peer may interrupt us: `arm` was the last call.
    is_armed: bool,
    /// Whether interrupts may be pending at `wakes_us`.
    pending: PendingInterrupts,
    /// The timer was set since it was stopped last; it may have expired.
    is_timer_set: bool,
    /// The last `tx_burst` ended because the ring was full.
    is_full: bool,
    /// Polls that found nothing to do since the control channel was last looked at.
    idle_polls: u32,
    /// What `wait_fd` shows: our interrupt, the control channel, the timer for a full ring.
    epoll: OwnedFd,
    interrupts: Interrupts,
    timer: OwnedFd,
}

/// The other end of a queue.
struct MemifPeer {
    session: Arc<Session>,
    lanes: Lanes,
}

impl MemifPeer {
    /// Makes its interrupts and its words wake.
    fn watch(&self, epoll: &OwnedFd) -> Result<(), LinkError> {
        watch_interrupts(epoll, self.lanes.wakes_us.as_fd())?;
        watch(epoll, self.session.channel(), CHANNEL)
    }
}

impl std::fmt::Debug for Memif {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Memif");
        if let Some(MemifPeer { lanes, .. }) = &self.peer {
            shown.field("receiving", &lanes.receiving).field("sending", &lanes.sending);
        }
        shown.finish_non_exhaustive()
    }
}

impl Memif {
    fn new(
        role: MemifRole,
        settings: &MemifSettings,
        peer: Option<MemifPeer>,
    ) -> Result<Self, LinkError> {
        let frame_bytes = settings.frame_bytes();
        let io =
            |what| move |source: rustix::io::Errno| LinkError::Io { what, source: source.into() };
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, timer_flags)
            .map_err(io("timerfd_create"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create"))?;
        let interrupts =
            Interrupts::new().map_err(|source| LinkError::Io { what: "io_setup", source })?;
        if let Some(peer) = &peer {
            peer.watch(&epoll)?;
        }
        watch(&epoll, timer.as_fd(), NO_DATA)?;
        let caps = Caps {
            driver: DRIVER,
            medium: settings.medium,
            mac: if settings.medium == LinkMedium::Ethernet { settings.mac } else { [0; 6] },
            mtu: settings.mtu,
            tx_frame_bytes: frame_bytes,
            tx_checksum: false,
            tso: false,
            shares_host_address: false,
            rss: None,
            notes: notes(role, peer.as_ref()),
        };
        Ok(Self {
            caps,
            counters: FrameCounters::default(),
            peer,
            place: None,
            rx_frame: vec![0; frame_bytes].into(),
            tx_frame: vec![0; frame_bytes].into(),
            is_armed: false,
            pending: PendingInterrupts::Possible,
            is_timer_set: false,
            is_full: false,
            idle_polls: 0,
            epoll,
            interrupts,
            timer,
        })
    }

    /// From now on the link gets its peers from `place` while it has none.
    fn set_place(&mut self, place: PeerPlace) -> Result<(), LinkError> {
        if place.serves() {
            self.caps.notes.push("serves the next client when this one leaves".to_owned());
        }
        if self.peer.is_none() {
            watch(&self.epoll, place.wait_fd(), NO_DATA)?;
        }
        self.place = Some(place);
        Ok(())
    }

    /// Why the session is over, if it is: the peer's words or ours. `None` for a link that waits
    /// for its next peer.
    #[must_use]
    pub fn gone_reason(&self) -> Option<&str> {
        self.peer.as_ref().and_then(|peer| peer.session.reason())
    }

    /// `false`: there is no peer just now. An error: there will not be one any more.
    fn has_peer(&mut self) -> Result<bool, LinkError> {
        match &self.peer {
            Some(peer) if peer.session.is_gone() => self.unplug().map(|()| false),
            peer => Ok(peer.is_some()),
        }
    }

    /// The peer broke the protocol: there is nothing to go on with, but perhaps the next peer.
    fn broken(&mut self, nonsense: Nonsense) -> Result<(), LinkError> {
        if let Some(peer) = &self.peer {
            peer.session.disconnect(&nonsense.to_string());
        }
        self.has_peer().map(drop)
    }

    /// The peer is gone: from now on the next one is waited for, if there can be one.
    #[cold]
    fn unplug(&mut self) -> Result<(), LinkError> {
        let Some(place) = &self.place else { return Err(LinkError::Gone { driver: DRIVER }) };
        self.is_armed = false;
        self.pending = PendingInterrupts::Possible;
        self.is_full = false;
        if let Some(peer) = self.peer.take() {
            for fd in [peer.lanes.wakes_us.as_fd(), peer.session.channel()] {
                // What is not in the set any more needs no removing.
                let _ = epoll::delete(&self.epoll, fd);
            }
        }
        watch(&self.epoll, place.wait_fd(), NO_DATA)
    }

    /// Looks for the next peer. `true`: it is there, and with it may be frames.
    #[cold]
    fn plug_in(&mut self) -> Result<bool, LinkError> {
        self.counters.system_calls += 1;
        let Some(place) = &mut self.place else { return Ok(false) };
        let Some((session, lanes)) = place.next_lanes(Instant::now()) else { return Ok(false) };
        let _ = epoll::delete(&self.epoll, place.wait_fd());
        // A client's connections end with its server.
        self.place.take_if(|place| !place.serves());
        let peer = self.peer.insert(MemifPeer { session, lanes });
        peer.watch(&self.epoll)?;
        Ok(true)
    }

    /// Without a peer frames go nowhere.
    #[cold]
    fn lose(&mut self, max: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>) -> usize {
        let lost = (0..max).take_while(|_| fill(&mut self.tx_frame).is_some()).count();
        self.counters.tx_dropped_refused += lost as u64;
        lost
    }

    /// Nothing was to be done; now and then that is because the peer is gone.
    fn idle(&mut self) -> Result<(), LinkError> {
        self.idle_polls += 1;
        if self.idle_polls >= MEMIF_POLLS_PER_CONTROL_LOOK {
            self.idle_polls = 0;
            if self.peer.is_none() {
                self.plug_in()?;
            } else {
                self.look()?;
            }
        }
        Ok(())
    }

    /// As `has_peer`, after a look at the control channel.
    fn look(&mut self) -> Result<bool, LinkError> {
        self.counters.system_calls += 1;
        if let Some(peer) = &self.peer {
            peer.session.look();
        }
        self.has_peer()
    }

    /// Back to polling after a sleep.
    fn disarm(&mut self) {
        if let Some(MemifPeer { lanes, .. }) = self.peer.as_ref().filter(|_| self.is_armed) {
            self.is_armed = false;
            lanes.receiving.ring.mask_interrupt(true);
            // The peer interrupts only for frames, behind them.
            let is_quiet = lanes.receiving.waiting().is_ok_and(|count| count == 0);
            self.pending = match self.pending {
                PendingInterrupts::Cleared if is_quiet => PendingInterrupts::Impossible,
                _ => PendingInterrupts::Possible,
            };
        }
    }

    fn receive(
        &mut self,
        max: usize,
        mut waiting: u16,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> usize {
        let Self { peer: Some(MemifPeer { lanes, .. }), counters, rx_frame, .. } = self else {
            return 0;
        };
        let mut lent = 0;
        while lent < max && waiting > 0 {
            waiting -= match lanes.receiving.gather(waiting, rx_frame) {
                GatheredFrame::Frame { len, slots } => {
                    counters.rx_frames += 1;
                    counters.rx_bytes += len as u64;
                    lent += 1;
                    // The peer's checksums are believed as little as the peer is.
                    let received =
                        RxMetadata { checksums: RxChecksum::Unverified, ..RxMetadata::default() };
                    each(&rx_frame[..len], received);
                    slots
                }
                GatheredFrame::TooLong { slots } => {
                    counters.rx_dropped_too_long += 1;
                    slots
                }
                GatheredFrame::Malformed { slots } => {
                    counters.rx_dropped_malformed += 1;
                    slots
                }
                GatheredFrame::Incomplete => break,
            };
        }
        lanes.receiving.give_back();
        lent
    }

    /// Lends room and copies in what was filled, until one of the three ends comes. The frames are
    /// not handed over yet.
    fn fill(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, Nonsense> {
        let Self { peer: Some(MemifPeer { lanes, .. }), counters, tx_frame, is_full, .. } = self
        else {
            return Ok(0);
        };
        let mut room = lanes.sending.room()?;
        let mut filled = 0;
        *is_full = false;
        while filled < max {
            let Some(place) = lanes.sending.reserve(room, tx_frame.len())? else {
                *is_full = true;
                counters.tx_full += 1;
                break;
            };
            let Some(transmit) = fill(tx_frame) else { break };
            filled += 1;
            // What the caps do not offer cannot be done: a frame that asks for it would arrive
            // wrong.
            let is_plain = transmit.checksum_start == 0 && transmit.segment_bytes == 0;
            let frame = tx_frame.get(..transmit.len);
            let Some(frame) = frame.filter(|frame| is_plain && !frame.is_empty()) else {
                counters.tx_dropped_refused += 1;
                continue;
            };
            room -= lanes.sending.put((room, place), frame)?;
            counters.tx_frames += 1;
            counters.tx_bytes += transmit.len as u64;
        }
        Ok(filled)
    }

    /// Hands over what was filled.
    fn publish(&mut self) {
        if let Some(MemifPeer { lanes, .. }) = &mut self.peer
            && lanes.sending.publish()
        {
            self.counters.system_calls += self.interrupts.raise(lanes.wakes_peer.as_fd());
        }
    }

    fn arm_for_frames(&mut self) -> Result<bool, Disturbed> {
        if self.has_work()? {
            return Ok(false);
        }
        if !self.has_peer()? {
            return Err(Disturbed::Unplugged);
        }
        let is_channel_readable = self.prepare_wake()?;
        let Some(peer) = &self.peer else { return Err(Disturbed::Unplugged) };
        self.is_armed = true;
        peer.lanes.receiving.ring.mask_interrupt(false);
        let spins = if peer.session.peer() == OWN_NAME { 0 } else { MEMIF_SPINS_BEFORE_SLEEP };
        (0..spins).for_each(|_| std::hint::spin_loop());
        if self.has_work()? {
            self.disarm();
            return Ok(false);
        }
        // The peer may have sent its last frames just before it left. If it leaves from here on,
        // the channel wakes us.
        if !is_channel_readable || self.look()? { Ok(true) } else { Err(Disturbed::Unplugged) }
    }

    fn has_work(&self) -> Result<bool, Nonsense> {
        let Some(MemifPeer { lanes, .. }) = &self.peer else { return Ok(false) };
        if lanes.receiving.waiting()? > 0 {
            return Ok(true);
        }
        let sending = &lanes.sending;
        Ok(self.is_full && sending.reserve(sending.room()?, self.tx_frame.len())?.is_some())
    }

    /// Clears pending interrupts and sets the timer if the ring to the peer is full. Returns
    /// whether the control channel is readable.
    fn prepare_wake(&mut self) -> Result<bool, LinkError> {
        let full_sleep = Duration::from_micros(MEMIF_FULL_SLEEP_US.into());
        let wake_after = if self.is_full { full_sleep } else { Duration::ZERO };
        if self.pending == PendingInterrupts::Impossible {
            // Not twice in a row: a control channel that is readable ends each sleep.
            self.pending = PendingInterrupts::Possible;
            self.set_timer(wake_after)?;
            return Ok(false);
        }
        let mut seen = [epoll::Event { flags: epoll::EventFlags::empty(), data: NO_DATA }; 4];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // What else is ready is so the next time, too.
        let count = epoll::wait(&self.epoll, &mut seen, Some(&at_once)).unwrap_or(0);
        self.counters.system_calls += 1;
        self.pending = PendingInterrupts::Cleared;
        self.set_timer(wake_after)?;
        let is_channel = |event: &epoll::Event| event.data.u64() == CHANNEL.u64();
        Ok(seen.iter().take(count).any(is_channel))
    }

    /// Makes `wait_fd` readable after a while; zero: the timer is stopped.
    fn set_timer(&mut self, after: Duration) -> Result<(), LinkError> {
        let is_stopped = !std::mem::replace(&mut self.is_timer_set, !after.is_zero());
        if is_stopped && after.is_zero() {
            return Ok(());
        }
        self.counters.system_calls += 1;
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The longest is that of a message.
        let it_value = Timespec::try_from(after).unwrap_or(never);
        // Setting it makes it unreadable.
        let once = Itimerspec { it_interval: never, it_value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .map_err(|errno| LinkError::Io { what: "timerfd_settime", source: errno.into() })?;
        Ok(())
    }
}

/// Whether interrupts of the peer are pending, which a system call has to clear before a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingInterrupts {
    /// Some may have come since they were last cleared.
    Possible,
    /// They were cleared for the present sleep.
    Cleared,
    /// None came in the last sleep, before which they were cleared: something else ended it.
    Impossible,
}

/// Why no frame can be waited for.
enum Disturbed {
    Nonsense(Nonsense),
    /// The peer is gone; the next one can be waited for.
    Unplugged,
    Failed(LinkError),
}

impl From<Nonsense> for Disturbed {
    fn from(nonsense: Nonsense) -> Self {
        Self::Nonsense(nonsense)
    }
}

impl From<LinkError> for Disturbed {
    fn from(error: LinkError) -> Self {
        Self::Failed(error)
    }
}

/// Adds `fd` to `epoll`, level-triggered.
fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, what: epoll::EventData) -> Result<(), LinkError> {
    epoll::add(epoll, fd, what, epoll::EventFlags::IN)
        .map_err(|errno| LinkError::Io { what: "epoll_ctl", source: errno.into() })
}

/// Adds what the peer interrupts us through, edge-triggered: each interrupt wakes once, and its
/// counter is never read, since a read waits where the peer has emptied it and taken `O_NONBLOCK`
/// away.
fn watch_interrupts(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), LinkError> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, fd, NO_DATA, flags)
        .map_err(|errno| LinkError::Io { what: "epoll_ctl", source: errno.into() })
}

fn notes(role: MemifRole, peer: Option<&MemifPeer>) -> Vec<String> {
    let role = match role {
        MemifRole::Server => "server (master): the memory is the peer's",
        MemifRole::Client => "client (slave): the memory is ours",
    };
    let first = match peer {
        Some(MemifPeer { session, lanes }) => {
            let (size, peer) = (lanes.receiving.ring.size(), session.peer());
            format!("{role}; rings of {size} slots; the peer is {peer:?}")
        }
        None => format!("{role}; no peer was there at the start"),
    };
    vec![
        first,
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
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        self.disarm();
        let Some(MemifPeer { lanes, .. }) = &self.peer else {
            self.idle()?;
            return Ok(0);
        };
        let waiting = match lanes.receiving.waiting() {
            Ok(waiting) => waiting,
            Err(nonsense) => return self.broken(nonsense).map(|()| 0),
        };
        if waiting == 0 {
            // Only now: what a peer sent before it left is received.
            if self.has_peer()? {
                self.idle()?;
            }
            return Ok(0);
        }
        Ok(self.receive(max, waiting, each))
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        if !self.has_peer()? {
            return Ok(self.lose(max, fill));
        }
        let outcome = self.fill(max, fill);
        self.publish();
        let filled = match outcome {
            Ok(filled) => filled,
            Err(nonsense) => return self.broken(nonsense).map(|()| 0),
        };
        if filled == 0 && self.is_full {
            self.idle()?;
        }
        Ok(filled)
    }

    /// Unmasks our interrupts and looks once more. A peer of ours cannot slip through between the
    /// two (see `MemifRing::mask_interrupt`). DPDK's driver makes no fence between its index and
    /// its look at our mask, so its last store may still be on its way when we look. After a spin
    /// of some microseconds, longer than a store takes to leave the core, we look again.
    fn arm(&mut self) -> Result<bool, LinkError> {
        if self.peer.is_some() {
            match self.arm_for_frames() {
                Ok(is_armed) => return Ok(is_armed),
                Err(Disturbed::Nonsense(nonsense)) => self.broken(nonsense)?,
                Err(Disturbed::Unplugged) => {}
                Err(Disturbed::Failed(error)) => return Err(error),
            }
        }
        // The next peer, or the end of the patience with the one on its way in.
        if self.plug_in()? {
            return Ok(false);
        }
        let due = self.place.as_ref().and_then(PeerPlace::due);
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        self.set_timer(left.map_or(Duration::ZERO, |left| left.max(SHORTEST_SLEEP)))?;
        Ok(true)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn slept(&mut self) {
        self.counters.system_calls += 1;
        self.disarm();
    }

    fn counters(&self) -> FrameCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
