//! Many shards over one link: each reads its queues, an idle one those of busy shards, too. Or link
//! servers on threads of their own read them all, without the locks below
//! (`rx_mux/split_server.rs`).
//!
//! ```text
//!            queue 0 (lock)         queue 1 (lock)
//!              |  reads and steers: any shard that wants frames
//!        .-----+-----.           .-----+-----.
//!      ring  ring  ring        ring  ring  ring      frames of other shards
//!        |     |     |           |     |     |
//!      shard 0  1    2 ...     shard 0  1    2
//! ```
//!
//! Read first: the decision on steering in `docs/decisions`; `steering.rs` for the shard of a
//! frame; `rx_mux/shard_link.rs` for a shard's view.
//!
//! A queue has a lock that is only ever tried, never waited for on the way of a frame. Who gets it
//! is the link server for one burst: frames of its own it handles in place, frames of others it
//! copies into their rings. So a queue is read as long as one shard is awake, whatever the
//! application of any other does. With several queues each has its readers, and others read it when
//! those do not come.
//!
//! Invariants
//! - A frame of a flow reaches its shard through one queue's lock and then one ring, so that what
//!   came over one queue stays in order.
//! - A sleeping shard is woken by its doorbell; by the link, if all shards or all owners of the
//!   queue sleep; or after [`WATCH_PERIOD`](crate::limits::WATCH_PERIOD) to see whether those that
//!   are awake still look after the link.
//! - A ring that is full drops what comes, counted.
//! - A frame that no shard knows ends at the shard that serves its flow now, after all that served
//!   it before have been asked. So whatever moves between shards is found.

mod attachment;
mod inbox;
mod mailbox;
mod mux_queue;
mod queue_way;
mod served_link;
mod shard_link;
mod split_server;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use megapipe_link::{Caps, Link, LinkError, LinkMedium, Ownership};
use megapipe_shm::limits::BELL_BYTES;
use megapipe_shm::{BipError, DoorbellError, Region, RegionError, Ringer, Sleeper, doorbell};
use megapipe_stack as stack;
use stack::{Handover, Received};

use crate::clock::Clock;
use crate::frame_ring::frame_ring;
use crate::limits::{
    HANDOVER_LASTS, SHARDS_MAX, STEERED_BYTES, STEERED_FRAMES_MAX, STEERED_MERGED_BYTES,
};
use crate::steering::{BindingTable, Bindings, Fragments, Steering, SteeringKey};

pub use attachment::Attachment;
use inbox::{Inbox, Inboxes};
use mailbox::Mailbox;
use mux_queue::{Feed, MuxQueue};
use queue_way::QueueWay;
pub use served_link::ServedLink;
pub use shard_link::ShardLink;
pub use split_server::SplitLinkServer;
use split_server::{LinkDoor, ServedQueue};
pub(crate) use split_server::{LinkServerAccount, LinkServerControl, OnAccount};

/// Why there is no switch.
#[derive(Debug, thiserror::Error)]
pub enum RxMuxError {
    /// No queue, no shard, or too many.
    #[error("{shards} shards cannot share {queues} queues")]
    Count {
        /// How many shards were asked for.
        shards: usize,
        /// How many queues there are.
        queues: usize,
    },
    /// A link server without a queue.
    #[error(
        "{servers} link servers apart from the shards need as many queues, and the link has \
         {queues}"
    )]
    LinkServers {
        /// How many there are to be.
        servers: u16,
        /// How many queues there are.
        queues: usize,
    },
    /// No memory for a ring.
    #[error(transparent)]
    Ring(#[from] BipError),
    /// No memory for a doorbell.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No doorbell.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
    /// No descriptor to sleep on.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// What was steered, and what was lost on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SteeringCounters {
    /// Frames kept by the shard that read them.
    pub kept: u64,
    /// Frames that went to another shard.
    pub steered: u64,
    /// Frames that went to all.
    pub to_everyone: u64,
    /// Frames that a shard passed on to the one that had their flow before.
    pub passed_on: u64,
    /// Frames of others that were dropped because their shard's ring was full.
    pub dropped_full: u64,
    /// Fragments that were dropped because too many waited for their first.
    pub dropped_fragments: u64,
    /// Times that frames could not leave because another shard had the queue.
    pub tx_busy: u64,
}

impl SteeringCounters {
    fn add(&mut self, other: &Self) {
        self.kept += other.kept;
        self.steered += other.steered;
        self.to_everyone += other.to_everyone;
        self.passed_on += other.passed_on;
        self.dropped_full += other.dropped_full;
        self.dropped_fragments += other.dropped_fragments;
        self.tx_busy += other.tx_busy;
    }
}

/// Takes frames: a shard's stack.
pub trait FrameSink {
    /// The shard has this flow: as a connection, one that begins, or one that has just ended.
    fn knows(&self, ends: &SteeringKey) -> bool;
    /// A frame for it.
    fn on_frame(&mut self, frame: &[u8], received: Received);
    /// A frame that no shard knows, and whose connection may be on its way from one to another: it
    /// is not answered by a RST.
    fn on_stray(&mut self, frame: &[u8], received: Received);
    /// A frame that begins a connection which no shard may accept.
    fn refuse(&mut self, frame: &[u8], received: Received);
    /// A connection that another shard hands over.
    fn on_handover(&mut self, handover: Handover);
}

/// What all shards of a network share.
struct MuxShared {
    /// That shards read. None where link servers are apart from the shards.
    queues: Box<[Mutex<MuxQueue>]>,
    /// By queue.
    visits: Box<[Visits]>,
    /// By shard: connections that others hand over to it.
    mailboxes: Box<[Mailbox]>,
    /// When listeners changed last, in milliseconds.
    changed_at_ms: AtomicU64,
    /// How often they have changed.
    changes: AtomicU64,
    caps: Caps,
    medium: stack::Medium,
    steering: Steering,
    control: Mutex<MuxControl>,
    /// Set by the first shard to wake while all sleep, off while all sleep: wakes the others if
    /// that shard stays awake.
    alarm: OwnedFd,
}

/// How often those whose queue it is came to it, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Visits(AtomicU64);

impl MuxShared {
    /// The shard has this flow, be it that another has just handed it over.
    fn knows(&self, shard: u16, ends: &SteeringKey, taker: &mut dyn FrameSink) -> bool {
        if taker.knows(ends) {
            return true;
        }
        let handovers = self.mailboxes[usize::from(shard)].take();
        let has_more = !handovers.is_empty();
        handovers.into_iter().for_each(|handover| taker.on_handover(handover));
        has_more && taker.knows(ends)
    }

    /// Listeners have changed.
    fn changed(&self) {
        // Relaxed: a frame that looks too early was steered before, too.
        self.changed_at_ms.store(Clock::new().now().as_millis(), Ordering::Relaxed);
    }

    /// The shard takes a frame of TCP that neither it nor any former shard of its flow knows. While
    /// listeners change, its connection may have moved from one that was not asked yet to one that
    /// was: then a RST would end it.
    fn take_unknown(&self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        let changed_at = self.changed_at_ms.load(Ordering::Relaxed);
        let age_ms = Clock::new().now().as_millis().saturating_sub(changed_at);
        if u128::from(age_ms) < HANDOVER_LASTS.as_millis() {
            taker.on_stray(frame, received);
        } else {
            taker.on_frame(frame, received);
        }
    }

    /// One of those whose queue it is has come to it. Relaxed: it orders nothing; two that come at
    /// once may be counted as one.
    fn visited(&self, index: usize) {
        let visits = &self.visits[index].0;
        visits.store(visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A shard owns these frames from now on, and the link takes what any of them owns.
    fn set_ownership(&self, shard: u16, ownership: &Ownership) -> Result<(), LinkError> {
        let mut control = lock(&self.control);
        let place = usize::from(shard);
        let before = control.owned[place].replace(ownership.clone());
        let set = union(control.owned.iter().flatten()).and_then(|all| {
            let mut queues = self.queues.iter();
            queues.try_for_each(|queue| lock(queue).link.set_ownership(&all))?;
            control.doors.iter().try_for_each(|door| door.set_ownership(&all))
        });
        if set.is_err() {
            control.owned[place] = before;
        }
        set
    }

    /// Whether an ownership of a shard's fits the link beside those of the others.
    fn check_ownership(&self, shard: u16, ownership: &Ownership) -> Result<(), LinkError> {
        let control = lock(&self.control);
        let others = control.owned.iter().enumerate();
        let others = others.filter(|(other, _)| *other != usize::from(shard));
        let all = union(others.filter_map(|(_, owned)| owned.as_ref()).chain([ownership]))?;
        self.queues.iter().try_for_each(|queue| lock(queue).link.check_ownership(&all))?;
        control.doors.iter().try_for_each(|door| door.check_ownership(&all))
    }

    /// How often that was. Relaxed: see [`MuxShared::visited`].
    fn visits(&self, index: usize) -> u64 {
        self.visits[index].0.load(Ordering::Relaxed)
    }
}

/// What is changed by commands, not by frames.
struct MuxControl {
    bindings: Bindings,
    /// What the queues go by.
    table: Arc<BindingTable>,
    owned: Vec<Option<Ownership>>,
    /// By shard: what wakes it.
    bells: Box<[Ringer]>,
    /// Of the link servers that are apart from the shards.
    doors: Box<[LinkDoor]>,
}

/// A poisoned lock is taken all the same: what it guards is whole between two frames.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Makes a network of `queues` that `shards` shards share: a link for each of them. Flows are at
/// home where the device says that it brings them ([`Caps::rss`]); `key` is for our own hash, where
/// the device says nothing.
///
/// # Errors
/// [`RxMuxError`].
pub fn switch(
    queues: Vec<Box<dyn Link>>,
    shards: u16,
    key: &[u8; 16],
) -> Result<Vec<ShardLink>, RxMuxError> {
    let mut rings = QueueRings::new(&queues, shards)?;
    let fragments = Arc::default();
    let queues = queues.into_iter().map(|link| rings.queue(link, &fragments).map(Mutex::new));
    let queues = queues.collect::<Result<_, _>>()?;
    let (shared, inboxes) = rings.shared(queues, Vec::new(), key)?;
    let links = (0..).zip(inboxes);
    links.map(|(shard, inboxes)| ShardLink::new(&shared, shard, inboxes)).collect()
}

/// Makes the same network for `servers` link servers that are apart from the shards: they read the
/// queues, and send what the shards have put into rings. Returns the servers, whose
/// [`SplitLinkServer::poll`] moves frames, and the shards' links. Commands of a shard, and its end,
/// wait for the servers: while there are links, the servers are polled on other threads, or gone.
///
/// # Errors
/// [`RxMuxError`].
pub fn split_switch(
    queues: Vec<Box<dyn Link>>,
    (servers, shards): (u16, u16),
    key: &[u8; 16],
) -> Result<(Vec<SplitLinkServer>, Vec<ServedLink>), RxMuxError> {
    let mut rings = QueueRings::new(&queues, shards)?;
    if servers == 0 || usize::from(servers) > queues.len() {
        return Err(RxMuxError::LinkServers { servers, queues: queues.len() });
    }
    let made = (0..servers).map(|_| SplitLinkServer::new()).collect::<Result<Vec<_>, _>>()?;
    let (mut readers, doors): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let mut ways: Vec<Vec<QueueWay>> = (0..shards).map(|_| Vec::new()).collect();
    let count = queues.len();
    for (index, link) in queues.into_iter().enumerate() {
        let place = index % usize::from(servers);
        let server = &mut readers[place];
        let queue = rings.queue(link, server.fragments())?;
        let mut served = ServedQueue::new(queue);
        for (shard, ways) in ways.iter_mut().enumerate() {
            let is_its = shard % count == index;
            ways.push(served.connect(&rings.caps, is_its, doors[place].bell())?);
        }
        server.add(served)?;
    }
    let (shared, inboxes) = rings.shared(Box::default(), doors, key)?;
    readers.iter_mut().for_each(|server| server.begin(&shared));
    let mut links = Vec::with_capacity(shards.into());
    for (shard, (inboxes, ways)) in (0..).zip(inboxes.into_iter().zip(ways)) {
        match ServedLink::new(&shared, shard, inboxes, ways) {
            Ok(link) => links.push(link),
            Err(error) => {
                drop(readers);
                return Err(error);
            }
        }
    }
    Ok((readers, links))
}

/// What the queues of a network have in common while they are made, and the shards' ends of them.
struct QueueRings {
    caps: Caps,
    shards: u16,
    queues: u16,
    table: Arc<BindingTable>,
    inboxes: Vec<Vec<Inbox>>,
    /// By shard: what wakes it, whatever the queue.
    bells: Vec<Ringer>,
}

impl QueueRings {
    fn new(queues: &[Box<dyn Link>], shards: u16) -> Result<Self, RxMuxError> {
        let count = || RxMuxError::Count { shards: shards.into(), queues: queues.len() };
        let caps = queues.first().map(|link| link.caps().clone()).ok_or_else(count)?;
        if shards == 0 || shards > SHARDS_MAX {
            return Err(count());
        }
        Ok(Self {
            caps,
            shards,
            // A device has no more.
            queues: u16::try_from(queues.len()).unwrap_or(u16::MAX),
            table: Arc::new(BindingTable::new(shards)),
            inboxes: (0..shards).map(|_| Vec::new()).collect(),
            bells: Vec::new(),
        })
    }

    /// A queue with a ring to each shard. Queues whose fragments may belong together share
    /// `fragments`.
    fn queue(
        &mut self,
        link: Box<dyn Link>,
        fragments: &Arc<Mutex<Fragments>>,
    ) -> Result<MuxQueue, RxMuxError> {
        let frame_bytes = received_frame_bytes(&self.caps);
        let mut feeds = Vec::with_capacity(self.shards.into());
        for inboxes in &mut self.inboxes {
            let (sender, receiver) =
                frame_ring(STEERED_FRAMES_MAX, steered_bytes(&self.caps), frame_bytes)?;
            let (sleeper, ringer) = bell()?;
            feeds.push(Feed { frames: sender, bell: ringer });
            inboxes.push(Inbox { frames: receiver, bell: sleeper });
        }
        if self.bells.is_empty() {
            self.bells = feeds.iter().map(|feed| feed.bell.clone()).collect();
        }
        Ok(MuxQueue {
            link,
            feeds: feeds.into(),
            fragments: Arc::clone(fragments),
            table: Arc::clone(&self.table),
            used: Vec::new(),
            asleep: vec![true; self.shards.into()].into(),
            is_armed: false,
            counters: SteeringCounters::default(),
        })
    }

    /// What all shards share, and their ends of the queues' rings.
    fn shared(
        self,
        queues: Box<[Mutex<MuxQueue>]>,
        doors: Vec<LinkDoor>,
        key: &[u8; 16],
    ) -> Result<(Arc<MuxShared>, Vec<Inboxes>), RxMuxError> {
        let Self { caps, shards, table, inboxes, bells, .. } = self;
        let shared = MuxShared {
            visits: queues.iter().map(|_| Visits::default()).collect(),
            queues,
            mailboxes: (0..shards).map(|_| Mailbox::default()).collect(),
            changed_at_ms: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            medium: match caps.medium {
                LinkMedium::Ethernet => stack::Medium::Ethernet(caps.mac),
                LinkMedium::Ip => stack::Medium::Ip,
            },
            steering: match &caps.rss {
                Some(rss) => Steering::by_device(Arc::clone(rss), self.queues, shards),
                None => Steering::new(key, shards),
            },
            caps,
            control: Mutex::new(MuxControl {
                bindings: Bindings::new(shards),
                table,
                owned: vec![None; shards.into()],
                bells: bells.into(),
                doors: doors.into(),
            }),
            alarm: shard_link::make_timer()?,
        };
        Ok((Arc::new(shared), inboxes.into_iter().map(Inboxes::new).collect()))
    }
}

/// Bytes of frames that wait in a ring between a queue and a shard.
const fn steered_bytes(caps: &Caps) -> usize {
    if caps.tso { STEERED_MERGED_BYTES } else { STEERED_BYTES }
}

/// The longest frame that a queue may bring, in bytes.
const fn received_frame_bytes(caps: &Caps) -> usize {
    if caps.tso { 1 << 17 } else { (caps.mtu + 64).next_multiple_of(64) }
}

/// A doorbell between two threads.
fn bell() -> Result<(Sleeper, Ringer), RxMuxError> {
    let mut parts = Region::heap(BELL_BYTES)?.into_parts();
    Ok(doorbell(&mut parts)?)
}

/// The union of several ownerships.
fn union<'a>(all: impl Iterator<Item = &'a Ownership>) -> Result<Ownership, LinkError> {
    let mut union = Ownership::new();
    let refused = |error: megapipe_link::OwnershipError| LinkError::Setting {
        setting: "ownership",
        why: error.to_string(),
    };
    for one in all {
        for address in one.addresses() {
            union.add_address(*address).map_err(refused)?;
        }
        for (first, last) in one.tcp_ports.ranges() {
            union.tcp_ports.insert(*first..=*last).map_err(refused)?;
        }
        for (first, last) in one.udp_ports.ranges() {
            union.udp_ports.insert(*first..=*last).map_err(refused)?;
        }
        for (first, last) in one.client_ports.ranges() {
            union.client_ports.insert(*first..=*last).map_err(refused)?;
        }
        for flow in one.taken() {
            union.take(*flow).map_err(refused)?;
        }
        for flow in one.released() {
            union.release(*flow).map_err(refused)?;
        }
        for (transport, port) in one.held_elsewhere() {
            union.hold_elsewhere(*transport, *port).map_err(refused)?;
        }
        union.whole_address |= one.whole_address;
        union.neighbours |= one.neighbours;
    }
    Ok(union)
}

#[cfg(test)]
mod tests;
