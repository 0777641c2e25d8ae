//! `ServedLink`: connects a shard to the queues of separate link servers, by rings.
//!
//! Read first: `split_server.rs`.
//!
//! Invariants
//! - A frame of the shard that found no room is kept, and leaves before those behind it.
//! - While the shard sleeps its doorbells are armed, that for room if a frame waits for it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use megapipe_link::{Caps, FrameCounters, LinkError, Ownership, TxMetadata};
use megapipe_shm::DoorbellError;
use megapipe_stack::{Handover, Received};
use rustix::event::epoll;
use rustix::io::Errno;

use super::inbox::{Counted, GivesAway, Inboxes, broken};
use super::queue_way::{LOOPED, OutWay, QueueWay};
use super::{Attachment, FrameSink, MuxShared, RxMuxError, lock, try_lock};
use crate::loopback::{self, LoopbackQueue};
use crate::steering::{BindingTable, NOTHING, Note, SteeringKey, Transport};

/// One shard's view of a network whose queues link servers read. It is the shard's alone: one
/// thread at a time.
pub struct ServedLink {
    shared: Arc<MuxShared>,
    shard: u16,
    caps: Caps,
    inboxes: Inboxes,
    ways: Vec<QueueWay>,
    /// The doorbells in one.
    set: OwnedFd,
    /// A frame waits for room.
    is_refused: bool,
    /// It was armed, and has not looked since.
    is_armed: bool,
    /// Whose ports are whose, after so many changes.
    table: (Arc<BindingTable>, u64),
    counters: FrameCounters,
}

impl ServedLink {
    pub(super) fn new(
        shared: &Arc<MuxShared>,
        shard: u16,
        inboxes: Inboxes,
        ways: Vec<QueueWay>,
    ) -> Result<Self, RxMuxError> {
        let io = |what| move |errno: Errno| LinkError::Io { what, source: errno.into() };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("make an epoll set"))?;
        let rooms = ways.iter().filter_map(|way| way.out.as_ref()).map(|out| out.room.fd());
        for bell in inboxes.bells().chain(rooms) {
            epoll::add(&set, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(io("add to an epoll set"))?;
        }
        let (servers, table) = {
            let control = lock(&shared.control);
            (control.doors.len(), Arc::clone(&control.table))
        };
        let mut caps = shared.caps.clone();
        let whose = if caps.rss.is_some() { "the device's" } else { "our own" };
        caps.notes.push(format!(
            "shard {shard} of {}, steered by {whose} hash, link servers {servers}, queues {}",
            shared.steering.shards(),
            ways.len()
        ));
        Ok(Self {
            shared: Arc::clone(shared),
            shard,
            caps,
            inboxes,
            ways,
            set,
            is_refused: false,
            is_armed: false,
            table: (table, 0),
            counters: FrameCounters::default(),
        })
    }

    /// The shard's place among the others, for commands.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        Attachment::new(&self.shared, self.shard)
    }

    /// Whether what `remote` sends to `local` arrives here. Takes no lock: the hash decides, and
    /// the bindings as they were when this shard last asked for frames.
    #[must_use]
    pub fn arrives_here(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let ends = SteeringKey::from_peer(remote, local);
        let steering = &self.shared.steering;
        steering.shard_of(&self.table.0, Transport::Tcp, &ends) == self.shard
            && (steering.arrives(Transport::Tcp, &ends) || local.ip() == remote.ip())
    }

    /// What this shard's link can do.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Lends at most `max` frames to the shard. How many.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub fn receive(&mut self, max: usize, taker: &mut dyn FrameSink) -> Result<usize, LinkError> {
        self.wake_up()?;
        self.look_at_changes();
        let Self { shared, shard, inboxes, ways, counters, .. } = self;
        let mut away = ThroughServers { ways, lost: 0 };
        let taker = &mut Counted { taker, counters };
        let count = inboxes.take_in((shared, *shard), max, &mut away, taker)?;
        self.counters.tx_dropped_refused += away.lost;
        self.deliver();
        Ok(count)
    }

    /// Goes by the table of now where arrivals are concerned.
    fn look_at_changes(&mut self) {
        let changes = self.shared.changes.load(Ordering::Acquire);
        // A command that holds the lock waits for servers: then the next look is in time as well.
        if changes != self.table.1
            && let Some(control) = try_lock(&self.shared.control)
        {
            self.table = (Arc::clone(&control.table), changes);
        }
    }

    /// Shows the servers what was put into rings.
    fn deliver(&mut self) {
        for way in &mut self.ways {
            let is_sent = way.out.as_mut().is_some_and(|out| out.frames.commit());
            if way.back.commit() || is_sent {
                // An eventfd that cannot be written to is closed: no server sleeps on it.
                let _ = way.server.ring();
            }
        }
    }

    /// Takes what other shards hand over to this one.
    pub fn take_handovers(&mut self) -> Vec<Handover> {
        self.shared.mailboxes[usize::from(self.shard)].take()
    }

    /// The shard has stopped to listen somewhere: frames that were steered to it before, and that
    /// it does not know, go on to the shards that take them now.
    pub fn steer_again(&mut self) {
        self.inboxes.steer_again();
    }

    /// Lets `fill` fill frames until it has none left, `max` are filled or the ring is full. How
    /// many.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub fn transmit(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let Self { ways, counters, .. } = self;
        let Some(out) = out_way(ways) else { return Ok(0) };
        let filled = out.frames.fill(max, &mut |room| {
            let transmit = fill(room)?;
            counters.tx_frames += 1;
            counters.tx_bytes += transmit.len as u64;
            Some(transmit)
        });
        let filled = filled.map_err(|_| broken())?;
        self.is_refused = !out.frames.put_waiting().map_err(|_| broken())?;
        self.counters.tx_full += u64::from(self.is_refused);
        self.deliver();
        Ok(filled)
    }

    /// Lets the servers steer what the shard sends to its own addresses. How many frames that were.
    /// Those without room in the ring stay where they are.
    pub(crate) fn loop_back(&mut self, looped: &mut LoopbackQueue) -> usize {
        // Always the same queue, so that the frames of a flow stay in order.
        let index = usize::from(self.shard) % self.ways.len();
        let back = &mut self.ways[index].back;
        let count = looped.offer(|frame, transmit| {
            let with = (loopback::received(transmit), LOOPED);
            // A ring that is broken is found by those who read.
            back.put(frame, &transmit, with).unwrap_or(true)
        });
        self.deliver();
        count
    }

    /// Prepares for sleep. `false`: there is work already.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub fn arm(&mut self) -> Result<bool, LinkError> {
        self.is_armed = true;
        self.inboxes.arm();
        let mut has_work = self.inboxes.has_frames()?
            || self.shared.mailboxes[usize::from(self.shard)].is_filled();
        if self.is_refused
            && let Some(out) = out_way(&mut self.ways)
        {
            out.room.arm();
            // It may have been made before that was seen.
            self.is_refused = !out.frames.put_waiting().map_err(|_| broken())?;
            has_work |= !self.is_refused;
        }
        if has_work {
            self.deliver();
            self.wake_up()?;
        }
        Ok(!has_work)
    }

    /// Waits until the frame that waits for room has some, at most `timeout`. Whether it is worth
    /// another try: `false` if none waits, or there was no room.
    ///
    /// # Errors
    /// [`LinkError::Gone`], [`LinkError::Io`].
    pub(crate) fn wait_for_room(&mut self, timeout: Duration) -> Result<bool, LinkError> {
        let out = out_way(&mut self.ways);
        let Some(OutWay { frames, room }) = out.filter(|_| self.is_refused) else {
            return Ok(false);
        };
        let has_room = || frames.put_waiting().map_err(|_| DoorbellError::Gone);
        let may_send = room.sleep(Some(timeout), has_room).map_err(|_| broken())?;
        self.deliver();
        Ok(may_send)
    }

    /// Is awake again, if it slept or was about to.
    fn wake_up(&mut self) -> Result<(), LinkError> {
        if !std::mem::take(&mut self.is_armed) {
            return Ok(());
        }
        for out in self.ways.iter().filter_map(|way| way.out.as_ref()) {
            out.room.disarm();
            out.room.clear().map_err(|_| broken())?;
        }
        self.inboxes.disarm()
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// What this shard counted: frames that it was lent, and those that it sent.
    #[must_use]
    pub const fn counters(&self) -> FrameCounters {
        self.counters
    }

    /// Says which frames are this shard's, where the host's address is shared: the link takes what
    /// any of the shards owns. Waits for the link servers.
    ///
    /// # Errors
    /// What the link says; the ownership is then as it was.
    pub fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.shared.set_ownership(self.shard, ownership)
    }

    /// Whether an ownership of this shard's fits the link beside those of the others. Waits for the
    /// link servers.
    ///
    /// # Errors
    /// What the link says; nothing has changed.
    pub fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        self.shared.check_ownership(self.shard, ownership)
    }
}

impl Drop for ServedLink {
    fn drop(&mut self) {
        self.attachment().leave();
    }
}

/// The way by which a shard sends.
fn out_way(ways: &mut [QueueWay]) -> Option<&mut OutWay> {
    ways.iter_mut().find_map(|way| way.out.as_mut())
}

/// Gives frames away through the link servers that have read them.
struct ThroughServers<'a> {
    ways: &'a mut [QueueWay],
    /// Frames without room in a ring.
    lost: u64,
}

impl ThroughServers<'_> {
    fn put(&mut self, index: usize, (frame, received, note): (&[u8], Received, Note)) {
        let metadata = TxMetadata { len: frame.len(), ..TxMetadata::default() };
        let put = self.ways[index].back.put(frame, &metadata, (received, note));
        self.lost += u64::from(put != Ok(true));
    }
}

impl GivesAway for ThroughServers<'_> {
    fn pass_on(&mut self, index: usize, frame: (&[u8], Received, Note), _: &SteeringKey) -> bool {
        // The server returns it, marked, if the flow is this shard's.
        self.put(index, frame);
        true
    }

    fn steer_again(&mut self, index: usize, frame: (&[u8], Received), _: &mut dyn FrameSink) {
        self.put(index, (frame.0, frame.1, NOTHING));
    }
}
