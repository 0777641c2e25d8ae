//! A link server apart from the shards [PIKA 3.1, 5.4]: reads queues for all of them, and sends
//! what they have put into rings.
//!
//! ```text
//!        queue ---- SplitLinkServer ---- queue        a thread of its own
//!                    |          ^
//!        frames in,  |          |  frames out; frames to be steered:
//!        by shard    v          |  looped ones, and those of a flow that is another shard's
//!                   ServedLink (a shard)
//! ```
//!
//! Frames pass no lock that a shard takes: each ring has one end on each side. Commands (a shard
//! listens, or owns a port) come over a queue of requests that each poll looks at, and wait for
//! their answer. While listeners change, the server waits for the new table, so that what it has
//! steered by the old one is known to those who make the new one.
//!
//! Fragments of a datagram have to come over queues of one server, as devices bring them that
//! spread fragments by addresses alone.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use megapipe_link::{Caps, LinkError, Ownership};
use megapipe_shm::{RingFault, Ringer, Sleeper};
use megapipe_stack::{Handover, Received};
use rustix::event::epoll;
use rustix::io::Errno;

use super::inbox::broken;
use super::mux_queue::{MuxQueue, NO_SHARD};
use super::queue_way::{LOOPED, OutWay, QueueWay};
use super::{
    FrameSink, MuxShared, RxMuxError, SteeringCounters, bell, received_frame_bytes, steered_bytes,
};
use crate::clock::Clock;
use crate::frame_ring::{OutReceiver, out_ring};
use crate::limits::{RX_FRAMES_PER_POLL, STEERED_FRAMES_MAX, TX_FRAMES_PER_POLL};
use crate::loopback;
use crate::sleep::wait_readable;
use crate::steering::{self, BindingTable, Classified, Fragments, NOTHING, SteeringKey, Transport};

/// A link server that is apart from the shards. For one thread at a time.
pub struct SplitLinkServer {
    /// `None` until all of the network's parts are made.
    shared: Option<Arc<MuxShared>>,
    queues: Vec<ServedQueue>,
    fragments: Arc<Mutex<Fragments>>,
    requests: Receiver<LinkRequest>,
    /// The way to it, for the holder of its thread.
    door: LinkDoor,
    bell: Sleeper,
    /// The doorbell and the queues in one.
    set: OwnedFd,
    is_stopped: bool,
}

/// One of its queues, and the rings to it.
pub(super) struct ServedQueue {
    queue: MuxQueue,
    /// By shard: frames to be steered.
    backs: Vec<OutReceiver>,
    /// Frames to be sent, of the shards that send here.
    outs: Vec<ShardFrames>,
    /// Whose turn it is to send.
    turn: usize,
    /// The link had no room for all that was to be sent.
    is_full: bool,
}

/// Frames of a shard on their way out.
struct ShardFrames {
    frames: OutReceiver,
    /// Wakes the shard when there is room again.
    room: Ringer,
}

/// What others ask of the server.
enum LinkRequest {
    SetOwnership(Box<Ownership>, Sender<Result<(), LinkError>>),
    CheckOwnership(Box<Ownership>, Sender<Result<(), LinkError>>),
    /// To answer with the rows of its table that are in use, and then to wait for another table.
    Pause(Sender<Vec<usize>>, Receiver<Arc<BindingTable>>),
    Counters(Sender<SteeringCounters>),
    Account(OnAccount),
    Stop,
}

/// What a server has used and moved since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkServerAccount {
    /// CPU time of its thread.
    pub(crate) cpu: Duration,
    /// Its queues of the link.
    pub(crate) queues: usize,
    /// Frames that it has read from them.
    pub(crate) frames_in: u64,
    /// Frames that it has sent over them.
    pub(crate) frames_out: u64,
}

/// Gets an account, on the server's thread.
pub(crate) type OnAccount = Box<dyn FnOnce(LinkServerAccount) + Send>;

/// The way to a server, for commands.
#[derive(Clone)]
pub(super) struct LinkDoor {
    requests: Sender<LinkRequest>,
    bell: Ringer,
}

/// A server that was asked to wait for a table.
pub(super) struct PausingServer {
    used: Receiver<Vec<usize>>,
    table: Sender<Arc<BindingTable>>,
}

impl PausingServer {
    /// Blocks until the server waits. `None`: it is gone.
    pub(super) fn paused(self) -> Option<PausedServer> {
        let Self { used, table } = self;
        Some(PausedServer { used: used.recv().ok()?, table })
    }
}

/// A server that waits for a table. It goes on with its own if this is dropped.
pub(super) struct PausedServer {
    /// Rows of its table by which connections have begun.
    pub(super) used: Vec<usize>,
    table: Sender<Arc<BindingTable>>,
}

impl PausedServer {
    pub(super) fn go_on(self, table: &Arc<BindingTable>) {
        // A server that is gone needs none.
        let _ = self.table.send(Arc::clone(table));
    }
}

impl LinkDoor {
    /// What wakes the server.
    pub(super) const fn bell(&self) -> &Ringer {
        &self.bell
    }

    /// Sends a request. A server that is gone drops it, and with it where its answer would go.
    fn send(&self, request: LinkRequest) {
        let _ = self.requests.send(request);
        // An eventfd that cannot be written to is not there: no thread sleeps on it.
        let _ = self.bell.ring();
    }

    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> LinkRequest) -> Option<T> {
        let (answer, answered) = channel();
        self.send(request(answer));
        answered.recv().ok()
    }

    pub(super) fn set_ownership(&self, all: &Ownership) -> Result<(), LinkError> {
        let all = Box::new(all.clone());
        let set = self.ask(|answer| LinkRequest::SetOwnership(all, answer));
        set.unwrap_or_else(|| Err(broken()))
    }

    pub(super) fn check_ownership(&self, all: &Ownership) -> Result<(), LinkError> {
        let all = Box::new(all.clone());
        let checked = self.ask(|answer| LinkRequest::CheckOwnership(all, answer));
        checked.unwrap_or_else(|| Err(broken()))
    }

    /// Asks the server to wait until it gets a table.
    pub(super) fn pause(&self) -> PausingServer {
        let (table, next) = channel();
        let (answer, used) = channel();
        self.send(LinkRequest::Pause(answer, next));
        PausingServer { used, table }
    }

    pub(super) fn counters(&self) -> SteeringCounters {
        self.ask(LinkRequest::Counters).unwrap_or_default()
    }
}

/// The way to a server that is on a thread of its own, for the holder of the thread.
pub(crate) struct LinkServerControl(LinkDoor);

impl LinkServerControl {
    /// Requests the server's account. A server that is gone drops `on_account`.
    pub(crate) fn request_account(&self, on_account: OnAccount) {
        self.0.send(LinkRequest::Account(on_account));
    }

    /// Requests that the server sends what there is, and ends.
    pub(crate) fn stop(&self) {
        self.0.send(LinkRequest::Stop);
    }
}

impl SplitLinkServer {
    /// A server without queues, and the way to it.
    pub(super) fn new() -> Result<(Self, LinkDoor), RxMuxError> {
        let (sleeper, ringer) = bell()?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("make an epoll set"))?;
        let (sender, requests) = channel();
        let door = LinkDoor { requests: sender, bell: ringer };
        let server = Self {
            shared: None,
            queues: Vec::new(),
            fragments: Arc::default(),
            requests,
            door: door.clone(),
            bell: sleeper,
            set,
            is_stopped: false,
        };
        server.listen(server.bell.fd())?;
        Ok((server, door))
    }

    /// What its queues have in common.
    pub(super) const fn fragments(&self) -> &Arc<Mutex<Fragments>> {
        &self.fragments
    }

    /// The server serves a queue.
    pub(super) fn add(&mut self, served: ServedQueue) -> Result<(), RxMuxError> {
        self.listen(served.queue.link.wait_fd())?;
        self.queues.push(served);
        Ok(())
    }

    /// All parts of the network are made.
    pub(super) fn begin(&mut self, shared: &Arc<MuxShared>) {
        self.shared = Some(Arc::clone(shared));
    }

    fn listen(&self, fd: std::os::fd::BorrowedFd<'_>) -> Result<(), LinkError> {
        let flags = epoll::EventFlags::IN;
        epoll::add(&self.set, fd, epoll::EventData::new_u64(0), flags)
            .map_err(io("add to an epoll set"))
    }

    /// The way to it.
    pub(crate) fn control(&self) -> LinkServerControl {
        LinkServerControl(self.door.clone())
    }

    /// Whether it was stopped.
    pub(crate) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Moves a share of the frames that wait, in both directions, and answers requests. Whether
    /// there was anything.
    ///
    /// # Errors
    /// What a link says.
    pub fn poll(&mut self) -> Result<bool, LinkError> {
        let mut worked = self.answer_requests();
        let Some(shared) = &self.shared else { return Ok(worked) };
        for served in &mut self.queues {
            worked |= served.poll(shared)?;
        }
        Ok(worked)
    }

    /// Sends a share of what shards have put into its rings, as far as the links have room. Returns
    /// the number of frames.
    ///
    /// # Errors
    /// What a link says.
    pub(crate) fn send(&mut self) -> Result<usize, LinkError> {
        let mut count = 0;
        for served in &mut self.queues {
            count += served.send()?;
        }
        Ok(count)
    }

    /// Frames of shards wait in its rings.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub(crate) fn has_outgoing(&mut self) -> Result<bool, LinkError> {
        for served in &mut self.queues {
            if served.has_outgoing().map_err(|_| broken())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sleeps until there may be work.
    ///
    /// # Errors
    /// What a link says.
    pub fn sleep(&mut self) -> Result<(), LinkError> {
        self.bell.arm();
        let mut slept = Ok(());
        if self.may_sleep()? {
            slept = match wait_readable([Some(self.set.as_fd())], None) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(LinkError::Io { what: "poll", source: errno.into() }),
            };
        }
        self.bell.disarm();
        self.bell.clear().map_err(|_| broken())?;
        slept
    }

    /// There is no work that its doorbell and its queues would not announce.
    fn may_sleep(&mut self) -> Result<bool, LinkError> {
        if self.answer_requests() {
            return Ok(false);
        }
        for served in &mut self.queues {
            if served.has_work().map_err(|_| broken())? || !served.queue.link.arm()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers what was asked. Whether there was anything.
    fn answer_requests(&mut self) -> bool {
        let mut worked = false;
        while let Ok(request) = self.requests.try_recv() {
            worked = true;
            // Without a receiver an answer is dropped.
            match request {
                LinkRequest::SetOwnership(all, answer) => {
                    let mut queues = self.queues.iter_mut();
                    let set = queues.try_for_each(|it| it.queue.link.set_ownership(&all));
                    let _ = answer.send(set);
                }
                LinkRequest::CheckOwnership(all, answer) => {
                    let mut queues = self.queues.iter();
                    let checked = queues.try_for_each(|it| it.queue.link.check_ownership(&all));
                    let _ = answer.send(checked);
                }
                LinkRequest::Pause(answer, table) => {
                    let used = self.queues.iter().flat_map(|it| it.queue.used_rows());
                    let _ = answer.send(used.collect());
                    if let Ok(table) = table.recv() {
                        self.queues.iter_mut().for_each(|it| it.queue.go_by(&table));
                    }
                }
                LinkRequest::Counters(answer) => {
                    let mut sum = SteeringCounters::default();
                    self.queues.iter().for_each(|it| sum.add(&it.queue.counters));
                    let _ = answer.send(sum);
                }
                LinkRequest::Account(on_account) => on_account(self.account()),
                LinkRequest::Stop => self.is_stopped = true,
            }
        }
        worked
    }

    /// What the calling thread, which is the server's, has used, and its queues have moved.
    fn account(&self) -> LinkServerAccount {
        let cpu = Clock::new().thread_busy().unwrap_or_default();
        let queues = self.queues.len();
        let mut account = LinkServerAccount { cpu, queues, frames_in: 0, frames_out: 0 };
        for counters in self.queues.iter().map(|it| it.queue.link.counters()) {
            account.frames_in += counters.rx_frames;
            account.frames_out += counters.tx_frames;
        }
        account
    }
}

impl ServedQueue {
    pub(super) const fn new(queue: MuxQueue) -> Self {
        Self { queue, backs: Vec::new(), outs: Vec::new(), turn: 0, is_full: false }
    }

    /// Makes the next shard's way to the queue. `sends`: it sends its frames here. `server`: what
    /// wakes the server.
    pub(super) fn connect(
        &mut self,
        caps: &Caps,
        sends: bool,
        server: &Ringer,
    ) -> Result<QueueWay, RxMuxError> {
        let ring = |frames, frame_bytes| out_ring(frames, steered_bytes(caps), frame_bytes);
        // Received frames, and the shard's own.
        let back_bytes = received_frame_bytes(caps).max(caps.tx_frame_bytes);
        let (sender, back) = ring(STEERED_FRAMES_MAX, back_bytes)?;
        self.backs.push(back);
        let mut way = QueueWay { back: sender, server: server.clone(), out: None };
        if sends {
            // A poll's share and not more: what waits in it can no longer be changed.
            let (frames, receiver) = ring(TX_FRAMES_PER_POLL as u32, caps.tx_frame_bytes)?;
            let (room, ringer) = bell()?;
            self.outs.push(ShardFrames { frames: receiver, room: ringer });
            way.out = Some(OutWay { frames, room });
        }
        Ok(way)
    }

    /// Whether there was anything.
    fn poll(&mut self, shared: &MuxShared) -> Result<bool, LinkError> {
        let (read, _) = self.queue.run(shared, NO_SHARD, RX_FRAMES_PER_POLL, &mut NoShard)?;
        let steered = self.steer_back(shared)?;
        let sent = self.send()?;
        Ok(read + steered + sent > 0)
    }

    /// Steers a share of the frames that shards have given away. How many.
    fn steer_back(&mut self, shared: &MuxShared) -> Result<usize, LinkError> {
        let Self { queue, backs, .. } = self;
        let mut count = 0;
        for (shard, back) in (0..).zip(backs) {
            let taken = back.receive(RX_FRAMES_PER_POLL, |frame, metadata, (received, note)| {
                if matches!(note, NOTHING | LOOPED) {
                    let mut mine = 0;
                    let (link, mut burst) = queue.burst((shared, NO_SHARD), &mut mine);
                    let mut received = received;
                    if note == LOOPED {
                        link.record_looped(frame, metadata);
                        received = loopback::received(metadata);
                    }
                    return burst.steer(frame, received, &mut NoShard);
                }
                let read = steering::classify(shared.medium, frame);
                if let Classified::Flow { transport: Transport::Tcp, ends, .. } = read {
                    let (to, note) = queue.next_to_ask(&shared.steering, shard, note, &ends);
                    queue.counters.passed_on += u64::from(to != shard);
                    queue.send(to, (frame, received, note));
                }
            });
            count += taken.map_err(|_| broken())?;
        }
        if count > 0 {
            queue.deliver();
        }
        Ok(count)
    }

    /// Sends a share of the shards' frames, one of each in turn, as far as the link has room. How
    /// many.
    fn send(&mut self) -> Result<usize, LinkError> {
        let Self { queue, outs, turn, .. } = self;
        let (mut taken, mut fault) = (0, None);
        // Without frames, too: the link may still hold some of the burst before.
        queue.link.tx_burst(TX_FRAMES_PER_POLL, &mut |room| {
            for _ in 0..outs.len() {
                *turn = (*turn + 1) % outs.len();
                match outs[*turn].frames.next_into(room) {
                    Ok(None) => {}
                    Ok(Some(metadata)) => {
                        taken += 1;
                        return Some(metadata);
                    }
                    Err(error) => fault = Some(error),
                }
            }
            None
        })?;
        if fault.is_some() {
            return Err(broken());
        }
        if taken > 0 {
            for out in outs {
                // An eventfd that cannot be written to is closed: no shard sleeps on it.
                let _ = out.room.ring();
            }
        }
        // What is left waits for room, unless it was the poll's share that ended.
        self.is_full = taken < TX_FRAMES_PER_POLL && self.has_outgoing().map_err(|_| broken())?;
        Ok(taken)
    }

    fn has_outgoing(&mut self) -> Result<bool, RingFault> {
        for out in &mut self.outs {
            if out.frames.has_frames()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// There is work. Frames that the link has no room for are none: it announces room.
    fn has_work(&mut self) -> Result<bool, RingFault> {
        for back in &mut self.backs {
            if back.has_frames()? {
                return Ok(true);
            }
        }
        Ok(!self.is_full && self.has_outgoing()?)
    }
}

/// A reader that is no shard: nothing is its own.
struct NoShard;

impl FrameSink for NoShard {
    fn knows(&self, _: &SteeringKey) -> bool {
        false
    }

    fn on_frame(&mut self, _: &[u8], _: Received) {
        debug_assert!(false, "no frame is a link server's own");
    }

    fn on_stray(&mut self, _: &[u8], _: Received) {}

    fn refuse(&mut self, _: &[u8], _: Received) {}

    fn on_handover(&mut self, _: Handover) {}
}

fn io(what: &'static str) -> impl Fn(Errno) -> LinkError {
    move |errno| LinkError::Io { what, source: errno.into() }
}
