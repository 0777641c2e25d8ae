//! Many shards over one link: each reads its queues, an idle one those of busy shards, too.
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
mod mailbox;
mod shard_link;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use megapipe_link::{Caps, Link, LinkError, LinkMedium, Ownership};
use megapipe_shm::limits::BELL_BYTES;
use megapipe_shm::{BipError, DoorbellError, Region, RegionError, Ringer, Sleeper, doorbell};
use megapipe_stack as stack;
use stack::{Handover, Received};

use crate::clock::Clock;
use crate::frame_ring::{FrameReceiver, FrameSender, frame_ring};
use crate::limits::{
    HANDOVER_LASTS, SHARDS_MAX, STEERED_BYTES, STEERED_FRAMES_MAX, STEERED_MERGED_BYTES,
};
use crate::steering::{
    self, BindingTable, Bindings, Classified, Destination, Fragments, Later, NOTHING, Note, PAST,
    REFUSED, Steering, SteeringKey,
};

pub use attachment::Attachment;
use mailbox::Mailbox;
pub use shard_link::ShardLink;

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

/// The way from one queue to one shard.
#[derive(Debug)]
struct Feed {
    frames: FrameSender,
    bell: Ringer,
}

/// A queue, and whom it feeds. Under its lock.
struct MuxQueue {
    link: Box<dyn Link>,
    feeds: Box<[Feed]>,
    table: Arc<BindingTable>,
    /// By the table's rows: a connection has begun by it.
    used: Vec<bool>,
    /// By shard: it sleeps.
    asleep: Box<[bool]>,
    /// A shard sleeps that the link has to wake.
    is_armed: bool,
    counters: SteeringCounters,
}

/// What all shards of a network share.
struct MuxShared {
    queues: Box<[Mutex<MuxQueue>]>,
    /// By queue.
    visits: Box<[Visits]>,
    /// By shard: connections that others hand over to it.
    mailboxes: Box<[Mailbox]>,
    /// When listeners changed last, in milliseconds.
    changed_at_ms: AtomicU64,
    caps: Caps,
    medium: stack::Medium,
    steering: Steering,
    fragments: Mutex<Fragments>,
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

    /// How often that was. Relaxed: see [`MuxShared::visited`].
    fn visits(&self, index: usize) -> u64 {
        self.visits[index].0.load(Ordering::Relaxed)
    }
}

/// What is changed by commands, not by frames.
struct MuxControl {
    bindings: Bindings,
    owned: Vec<Option<Ownership>>,
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

/// One end of each queue's feed to a shard.
#[derive(Debug)]
struct Inbox {
    frames: FrameReceiver,
    bell: Sleeper,
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
    let Some(caps) = queues.first().map(|link| link.caps().clone()) else {
        return Err(RxMuxError::Count { shards: shards.into(), queues: 0 });
    };
    if shards == 0 || shards > SHARDS_MAX {
        return Err(RxMuxError::Count { shards: shards.into(), queues: queues.len() });
    }
    // A device has no more.
    let queue_count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
    let merges = caps.tso;
    let area_bytes = if merges { STEERED_MERGED_BYTES } else { STEERED_BYTES };
    let frame_bytes = if merges { 1 << 17 } else { (caps.mtu + 64).next_multiple_of(64) };
    let table = Arc::new(BindingTable::new(shards));
    let mut inboxes: Vec<Vec<Inbox>> = (0..shards).map(|_| Vec::new()).collect();
    let queue = |link| {
        let mut feeds = Vec::with_capacity(shards.into());
        for inboxes in &mut inboxes {
            let (sender, receiver) = frame_ring(STEERED_FRAMES_MAX, area_bytes, frame_bytes)?;
            let mut parts = Region::heap(BELL_BYTES)?.into_parts();
            let (sleeper, ringer) = doorbell(&mut parts)?;
            feeds.push(Feed { frames: sender, bell: ringer });
            inboxes.push(Inbox { frames: receiver, bell: sleeper });
        }
        Ok(Mutex::new(MuxQueue {
            link,
            feeds: feeds.into(),
            table: Arc::clone(&table),
            used: Vec::new(),
            asleep: vec![true; shards.into()].into(),
            is_armed: false,
            counters: SteeringCounters::default(),
        }))
    };
    let queues: Result<Box<[_]>, RxMuxError> = queues.into_iter().map(queue).collect();
    let shared = Arc::new(MuxShared {
        queues: queues?,
        visits: (0..queue_count).map(|_| Visits::default()).collect(),
        mailboxes: (0..shards).map(|_| Mailbox::default()).collect(),
        changed_at_ms: AtomicU64::new(0),
        medium: match caps.medium {
            LinkMedium::Ethernet => stack::Medium::Ethernet(caps.mac),
            LinkMedium::Ip => stack::Medium::Ip,
        },
        steering: match &caps.rss {
            Some(rss) => Steering::by_device(Arc::clone(rss), queue_count, shards),
            None => Steering::new(key, shards),
        },
        caps,
        fragments: Mutex::new(Fragments::new()),
        control: Mutex::new(MuxControl {
            bindings: Bindings::new(shards),
            owned: vec![None; shards.into()],
        }),
        alarm: shard_link::make_timer()?,
    });
    let links = (0..).zip(inboxes);
    links.map(|(shard, inboxes)| ShardLink::new(&shared, shard, inboxes)).collect()
}

impl MuxQueue {
    /// Reads a burst: frames for `shard` go to `taker`, the others to their shards. How many frames
    /// were the taker's.
    fn run(
        &mut self,
        shared: &MuxShared,
        shard: u16,
        max: usize,
        taker: &mut dyn FrameSink,
    ) -> Result<usize, LinkError> {
        let mut mine = 0;
        let (link, mut burst) = self.burst((shared, shard), &mut mine);
        let read = link.rx_burst(max, &mut |frame, received| {
            let received = stack_received(received);
            burst.steer(frame, received, taker);
        });
        self.deliver();
        read.map(|_| mine)
    }

    /// The link, and what steers its frames.
    fn burst<'a>(
        &'a mut self,
        (shared, shard): (&'a MuxShared, u16),
        mine: &'a mut usize,
    ) -> (&'a mut dyn Link, Burst<'a>) {
        let Self { link, feeds, table, used, counters, .. } = self;
        (&mut **link, Burst { shared, shard, feeds, table, used, counters, mine })
    }

    /// Arms the link for the sleeping shards, after another shard has read it.
    fn arm_again(&mut self) -> Result<(), LinkError> {
        if !self.link.arm()? {
            // Frames have come: sleeping shards are woken as the link would have done it.
            for feed in &self.feeds {
                // An eventfd that cannot be written to is closed: no shard sleeps on it.
                let _ = feed.bell.ring();
            }
        }
        Ok(())
    }

    /// Shows every shard what was put into its ring.
    fn deliver(&mut self) {
        for feed in &mut self.feeds {
            if feed.frames.commit() {
                // An eventfd that cannot be written to is closed: no shard sleeps on it.
                let _ = feed.bell.ring();
            }
        }
    }
}

/// A burst that is being steered.
struct Burst<'a> {
    shared: &'a MuxShared,
    shard: u16,
    feeds: &'a mut [Feed],
    table: &'a BindingTable,
    used: &'a mut [bool],
    counters: &'a mut SteeringCounters,
    mine: &'a mut usize,
}

impl Burst<'_> {
    #[inline]
    fn steer(&mut self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        let usual = steering::fast_parse(self.shared.medium, frame);
        match usual.and_then(|it| self.shared.steering.home_of_usual(self.table, it)) {
            Some(to) if to == self.shard => self.keep(frame, received, taker),
            Some(to) => send(self.feeds, self.counters, to, (frame, received, NOTHING)),
            None => self.steer_further(frame, received, taker),
        }
    }

    /// What has more to be looked at than a home. It is read once more: what all others would have
    /// to keep for that costs them more.
    #[inline(never)]
    fn steer_further(&mut self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        let reading = steering::fast_parse(self.shared.medium, frame)
            .map_or_else(|| steering::read(self.shared.medium, frame), |usual| usual.reading());
        self.steer_by_reading(&reading, (frame, received), taker);
    }

    fn steer_by_reading(
        &mut self,
        reading: &Classified,
        (frame, received): (&[u8], Received),
        taker: &mut dyn FrameSink,
    ) {
        if matches!(reading, Classified::First(..) | Classified::Later(_)) {
            return self.steer_fragment(reading, (frame, received), taker);
        }
        match self.shared.steering.destination(self.table, self.used, reading) {
            (Destination::Shard(to), note) => {
                if to != self.shard {
                    return self.send(to, frame, received, note);
                }
                if note == REFUSED {
                    self.counters.kept += 1;
                    return taker.refuse(frame, received);
                }
                if note == PAST
                    && let Classified::Flow { transport, ends, .. } = reading
                    && !self.shared.knows(self.shard, ends, taker)
                {
                    let flow = (*transport, ends);
                    match self.shared.steering.former(self.table, flow, to, 0) {
                        Some((to, note)) => {
                            self.counters.passed_on += 1;
                            return self.send(to, frame, received, note);
                        }
                        None => {
                            self.counters.kept += 1;
                            *self.mine += 1;
                            return self.shared.take_unknown(frame, received, taker);
                        }
                    }
                }
                self.keep(frame, received, taker);
            }
            (Destination::Anyone, _) => self.keep(frame, received, taker),
            (Destination::Everyone, _) => {
                self.counters.to_everyone += 1;
                for to in 0..self.shared.steering.shards() {
                    if to != self.shard {
                        self.send(to, frame, received, NOTHING);
                    }
                }
                self.keep(frame, received, taker);
            }
        }
    }

    #[cold]
    fn steer_fragment(
        &mut self,
        reading: &Classified,
        (frame, received): (&[u8], Received),
        taker: &mut dyn FrameSink,
    ) {
        let now = Clock::new().now();
        let mut fragments = lock(&self.shared.fragments);
        match reading {
            Classified::First(datagram, transport, ends) => {
                let to = self.shared.steering.shard_of(self.table, *transport, ends);
                self.hand(to, frame, received, taker);
                fragments.on_first(now, (*datagram, to), |frame, received| {
                    self.hand(to, frame, received, taker);
                });
            }
            Classified::Later(datagram) => {
                match fragments.on_later(now, *datagram, (frame, received)) {
                    Later::Shard(to) => self.hand(to, frame, received, taker),
                    Later::Held => {}
                    Later::Dropped => self.counters.dropped_fragments += 1,
                }
            }
            _ => {}
        }
    }

    fn hand(&mut self, to: u16, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        if to == self.shard {
            self.keep(frame, received, taker);
        } else {
            self.send(to, frame, received, NOTHING);
        }
    }

    #[inline]
    fn keep(&mut self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        self.counters.kept += 1;
        *self.mine += 1;
        taker.on_frame(frame, received);
    }

    /// Not for what goes to its home: there the same stands in line.
    #[inline(never)]
    fn send(&mut self, to: u16, frame: &[u8], received: Received, note: Note) {
        send(self.feeds, self.counters, to, (frame, received, note));
    }
}

/// Puts a frame into a shard's ring, or drops and counts it.
#[inline(always)]
fn send(
    feeds: &mut [Feed],
    counters: &mut SteeringCounters,
    to: u16,
    (frame, received, note): (&[u8], Received, Note),
) {
    let Some(feed) = feeds.get_mut(usize::from(to)) else { return };
    match feed.frames.push(frame, received, note) {
        Ok(true) => counters.steered += 1,
        Ok(false) | Err(_) => counters.dropped_full += 1,
    }
}

fn stack_received(received: megapipe_link::RxMetadata) -> Received {
    Received {
        checksums: match received.checksums {
            megapipe_link::RxChecksum::Unverified => stack::Checksums::Unverified,
            megapipe_link::RxChecksum::Verified => stack::Checksums::Verified,
        },
        segment_bytes: received.segment_bytes,
    }
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
