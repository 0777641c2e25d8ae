//! One shard's link to the switch: what others have read for it, and the queues that it reads
//! itself.
//!
//! Invariants
//! - While it sleeps, `asleep` says so in every queue, and its doorbells are armed.
//! - A queue whose own shards all sleep is armed, and the last of them to sleep listens to it:
//!   another shard that reads it arms it again.
//! - A shard that sleeps while another is awake has a timer that wakes it: its own watch, set when
//!   it goes to sleep, or the shared alarm, set by the first shard to wake while all sleep. The
//!   alarm is changed under the lock of queue 0 and is off while all shards sleep, so that idle
//!   shards do not wake each other.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use megapipe_link::{Caps, FrameCounters, LinkError, Ownership, TxMetadata};
use megapipe_stack::{Handover, Received};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::inbox::{Counted, GivesAway, Inboxes};
use super::{Attachment, FrameSink, MuxShared, RxMuxError, lock, try_lock};
use crate::limits::{LOCK_TRIES, LOOKS_BEFORE_READING, WATCH_PERIOD, WATCH_PERIOD_MAX};
use crate::loopback::{self, LoopbackQueue};
use crate::steering::{BindingTable, Note, SteeringKey, Transport};

/// What polls of the sleeping set are about.
const BELL: u64 = 0;
const QUEUE: u64 = 1;
const WATCH: u64 = 2;
const ALARM: u64 = 3;

/// What a shard knows of a queue.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// It is this shard's to read.
    is_own: bool,
    /// It is in the set for reading.
    listens: bool,
    /// How often its owners had read it.
    visits: u64,
    /// How often this shard has looked since, and had nothing else to do.
    count: u32,
}

/// Whether a queue is the shard's to read: a shard has several, or several shards share one.
fn owns(shard: u16, shards: usize, (index, queues): (usize, usize)) -> bool {
    let shard = usize::from(shard);
    if shards <= queues { index % shards == shard } else { index == shard % queues }
}

/// One shard's view of a network that many share. It is the shard's alone: one thread at a time.
pub struct ShardLink {
    shared: Arc<MuxShared>,
    shard: u16,
    caps: Caps,
    inboxes: Inboxes,
    /// Doorbells, queues, the watch and the alarm in one. The two timers are edge-triggered: a
    /// wake-up consumes their expirations by reading the set.
    set: OwnedFd,
    /// Goes off when it is time to see whether those who are awake look after the link.
    watch: OwnedFd,
    is_armed: bool,
    /// The last transmit found the queue taken, and frames may be left.
    is_refused: bool,
    /// How long the next sleep beside others who are awake lasts at most.
    watch_period: Duration,
    /// What it knows of each queue.
    looks: Box<[Look]>,
    /// Where it begins to read its own queues.
    first: usize,
    /// What frames went by when this shard last read a queue: whose ports are whose.
    table: Arc<BindingTable>,
    counters: FrameCounters,
}

impl ShardLink {
    pub(super) fn new(
        shared: &Arc<MuxShared>,
        shard: u16,
        inboxes: Inboxes,
    ) -> Result<Self, RxMuxError> {
        let io = |what| move |errno: Errno| LinkError::Io { what, source: errno.into() };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("make an epoll set"))?;
        let add = |fd: BorrowedFd<'_>, what, flags| {
            epoll::add(&set, fd, epoll::EventData::new_u64(what), flags)
                .map_err(io("add to an epoll set"))
        };
        for bell in inboxes.bells() {
            add(bell, BELL, epoll::EventFlags::IN)?;
        }
        for queue in &shared.queues {
            add(lock(queue).link.wait_fd(), QUEUE, epoll::EventFlags::empty())?;
        }
        let watch = make_timer()?;
        let timer = epoll::EventFlags::IN | epoll::EventFlags::ET;
        add(watch.as_fd(), WATCH, timer)?;
        add(shared.alarm.as_fd(), ALARM, timer)?;
        let queues = shared.queues.len();
        let own = |index| owns(shard, shared.steering.shards().into(), (index, queues));
        let looks = (0..queues).map(|index| Look { is_own: own(index), ..Look::default() });
        let mut caps = shared.caps.clone();
        let whose = if caps.rss.is_some() { "the device's" } else { "our own" };
        caps.notes.push(format!(
            "shard {shard} of {}, steered by {whose} hash over {} queues",
            shared.steering.shards(),
            shared.queues.len()
        ));
        Ok(Self {
            shared: Arc::clone(shared),
            shard,
            caps,
            inboxes,
            set,
            watch,
            // Until it first asks for frames it is as good as asleep.
            is_armed: true,
            is_refused: false,
            watch_period: WATCH_PERIOD,
            looks: looks.collect(),
            first: 0,
            table: Arc::new(BindingTable::new(shared.steering.shards())),
            counters: FrameCounters::default(),
        })
    }

    /// The shard's place among the others, for commands.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        Attachment::new(&self.shared, self.shard)
    }

    /// Whether what `remote` sends to `local` arrives here. Takes no lock: the hash decides, and
    /// the bindings as they were when this shard last read a queue.
    #[must_use]
    pub fn arrives_here(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let ends = SteeringKey::from_peer(remote, local);
        let steering = &self.shared.steering;
        steering.shard_of(&self.table, Transport::Tcp, &ends) == self.shard
            && (steering.arrives(Transport::Tcp, &ends) || local.ip() == remote.ip())
    }

    /// What this shard's link can do.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Lends at most `max` frames to the shard: what others have read for it, then what it reads.
    /// How many.
    ///
    /// # Errors
    /// What the link says.
    pub fn receive(&mut self, max: usize, taker: &mut dyn FrameSink) -> Result<usize, LinkError> {
        self.wake_up()?;
        let Self { shared, shard, inboxes, counters, .. } = self;
        let mut away = UnderLock { shared, shard: *shard };
        let mut count =
            inboxes.take_in((shared, *shard), max, &mut away, &mut Counted { taker, counters })?;
        let queues = self.looks.len();
        self.first = (self.first + 1) % queues;
        for index in (self.first..queues).chain(0..self.first) {
            if self.looks[index].is_own {
                self.shared.visited(index);
                count += self.read(index, max - count, taker)?;
            }
        }
        // The others' when nothing else is to do, and they do not look after them.
        for index in 0..queues {
            if count == 0 && self.is_left_alone(index) {
                count += self.read(index, max, taker)?;
            }
        }
        if count > 0 {
            self.watch_period = WATCH_PERIOD;
        }
        Ok(count)
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

    /// Reads a queue, unless another shard does. How many frames were this shard's.
    fn read(
        &mut self,
        index: usize,
        max: usize,
        taker: &mut dyn FrameSink,
    ) -> Result<usize, LinkError> {
        let Self { shared, shard, counters, table, looks, .. } = self;
        if max == 0 {
            return Ok(0);
        }
        let Some(mut queue) = try_lock(&shared.queues[index]) else { return Ok(0) };
        let (_, count) = queue.run(shared, *shard, max, &mut Counted { taker, counters })?;
        if queue.is_armed {
            let look = &mut looks[index];
            queue.is_armed = !look.is_own;
            if !look.is_own {
                queue.arm_again()?;
                // Not at each poll: that would be a system call each time on some links.
                look.count = 0;
            }
        }
        if !Arc::ptr_eq(table, &queue.table) {
            *table = Arc::clone(&queue.table);
        }
        Ok(count)
    }

    /// Those whose queue it is have not come to it for so long that they sleep or are busy.
    fn is_left_alone(&mut self, index: usize) -> bool {
        let visits = self.shared.visits(index);
        let look = &mut self.looks[index];
        if look.is_own {
            return false;
        }
        if look.visits != visits {
            *look = Look { visits, count: 0, ..*look };
            return false;
        }
        look.count = look.count.saturating_add(1);
        look.count >= LOOKS_BEFORE_READING
    }

    /// Lets `fill` fill frames until it has none left, `max` are filled or the queue is full. How
    /// many. None while another shard has the queue: they stay where they are.
    ///
    /// # Errors
    /// What the link says.
    pub fn transmit(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let Self { shared, shard, counters, .. } = self;
        let index = usize::from(*shard) % shared.queues.len();
        let queue = &shared.queues[index];
        let mut tries = 0;
        let mut queue = loop {
            if let Some(queue) = try_lock(queue) {
                break queue;
            }
            tries += 1;
            if tries == LOCK_TRIES {
                self.is_refused = true;
                self.counters.tx_full += 1;
                return Ok(0);
            }
            std::hint::spin_loop();
        };
        self.is_refused = false;
        queue.link.tx_burst(max, &mut |room| {
            let transmit = fill(room)?;
            counters.tx_frames += 1;
            counters.tx_bytes += transmit.len as u64;
            Some(transmit)
        })
    }

    /// Steers what the shard sends to its own addresses, as if the link had brought it. How many
    /// frames that were; none while another shard has the queue.
    pub(crate) fn loop_back(
        &mut self,
        looped: &mut LoopbackQueue,
        taker: &mut dyn FrameSink,
    ) -> usize {
        let Self { shared, shard, .. } = self;
        // Always the same queue, so that the frames of a flow stay in order.
        let index = usize::from(*shard) % shared.queues.len();
        let Some(mut queue) = try_lock(&shared.queues[index]) else { return 0 };
        let mut mine = 0;
        let (link, mut burst) = queue.burst((shared, *shard), &mut mine);
        let count = looped.take(|frame, transmit| {
            link.record_looped(frame, transmit);
            burst.steer(frame, loopback::received(transmit), taker);
        });
        queue.deliver();
        count
    }

    /// Prepares for sleep. `false`: there is work already.
    ///
    /// # Errors
    /// What the link says.
    pub fn arm(&mut self) -> Result<bool, LinkError> {
        if self.is_refused {
            return Ok(false);
        }
        self.is_armed = true;
        self.inboxes.arm();
        let is_filled = self.shared.mailboxes[usize::from(self.shard)].is_filled();
        if is_filled || self.inboxes.has_frames()? {
            self.wake_up()?;
            return Ok(false);
        }
        let Some(others_are_awake) = self.go_to_sleep()? else {
            self.wake_up()?;
            return Ok(false);
        };
        if others_are_awake {
            set_timer(&self.watch, self.watch_period)?;
            self.watch_period = WATCH_PERIOD_MAX.min(self.watch_period * 2);
        }
        Ok(true)
    }

    /// Says in every queue that this shard sleeps, and arms and listens to those where all do, and
    /// its own where all owners sleep. Whether a shard is awake; `None`: there is work.
    fn go_to_sleep(&mut self) -> Result<Option<bool>, LinkError> {
        let Self { shared, shard, looks, set, .. } = self;
        let (shards, queues) = (usize::from(shared.steering.shards()), shared.queues.len());
        let mut others_are_awake = false;
        for (index, (queue, look)) in shared.queues.iter().zip(looks).enumerate() {
            let Some(mut queue) = try_lock(queue) else { return Ok(None) };
            queue.asleep[usize::from(*shard)] = true;
            let awake = (0..).zip(&queue.asleep).filter(|(_, asleep)| !**asleep);
            let (mut all_sleep, mut own_sleep) = (true, look.is_own);
            for (other, _) in awake {
                all_sleep = false;
                own_sleep &= !owns(other, shards, (index, queues));
            }
            others_are_awake |= !all_sleep;
            if index == 0 && all_sleep {
                // The link wakes this shard, so no other shard's sleep has to be watched.
                set_timer(&shared.alarm, Duration::ZERO)?;
            }
            let listens = all_sleep || own_sleep;
            if listens {
                if !queue.link.arm()? {
                    return Ok(None);
                }
                queue.is_armed = true;
            }
            if look.listens != listens {
                listen(set, queue.link.wait_fd(), listens)?;
                look.listens = listens;
            }
        }
        Ok(Some(others_are_awake))
    }

    /// Is awake again, if it slept or was about to.
    fn wake_up(&mut self) -> Result<(), LinkError> {
        if !self.is_armed {
            return Ok(());
        }
        self.is_armed = false;
        for look in &mut self.looks {
            // An owner that has not read its queue while this shard slept has abandoned it.
            look.count = LOOKS_BEFORE_READING;
        }
        self.inboxes.disarm()?;
        // Timers that went off are seen: they are edge-triggered. All else stays readable.
        let mut events: Vec<epoll::Event> = Vec::with_capacity(2 * self.looks.len() + 2);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.set, spare_capacity(&mut events), Some(&now))
            .map_err(|errno| LinkError::Io { what: "epoll_wait", source: errno.into() })?;
        let place = usize::from(self.shard);
        for (index, queue) in self.shared.queues.iter().enumerate() {
            // Held briefly: the holder is about to release it.
            let mut queue = lock(queue);
            if index == 0 && queue.asleep.len() > 1 && !queue.asleep.contains(&false) {
                // The others sleep on the link alone, which this shard is about to read: should it
                // be busy afterwards, they are to see that for themselves.
                set_timer(&self.shared.alarm, WATCH_PERIOD)?;
            }
            queue.asleep[place] = false;
        }
        Ok(())
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Arms and sleeps until there may be work (`true`) or `timeout` has passed.
    ///
    /// # Errors
    /// What the link says.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        if !self.arm()? {
            return Ok(true);
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.set, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(LinkError::Io { what: "poll", source: errno.into() }),
        }
    }

    /// What this shard counted: frames that it was lent, and those that it sent.
    #[must_use]
    pub const fn counters(&self) -> FrameCounters {
        self.counters
    }

    /// Says which frames are this shard's, where the host's address is shared: the link takes what
    /// any of the shards owns.
    ///
    /// # Errors
    /// What the link says; the ownership is then as it was.
    pub fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.shared.set_ownership(self.shard, ownership)
    }

    /// Whether an ownership of this shard's fits the link beside those of the others.
    ///
    /// # Errors
    /// What the link says; nothing has changed.
    pub fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        self.shared.check_ownership(self.shard, ownership)
    }
}

/// A queue's descriptor wakes a shard, or does not.
fn listen(set: &OwnedFd, queue: BorrowedFd<'_>, listens: bool) -> Result<(), LinkError> {
    let flags = if listens { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
    epoll::modify(set, queue, epoll::EventData::new_u64(QUEUE), flags)
        .map_err(|errno| LinkError::Io { what: "epoll_ctl", source: errno.into() })
}

/// A timer that is off.
pub(super) fn make_timer() -> Result<OwnedFd, LinkError> {
    timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .map_err(|errno| LinkError::Io { what: "make a timer", source: errno.into() })
}

/// Lets a timer expire once, after `period`; zero turns it off.
fn set_timer(timer: &OwnedFd, period: Duration) -> Result<(), LinkError> {
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() },
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)
        .map(drop)
        .map_err(|errno| LinkError::Io { what: "set a timer", source: errno.into() })
}

impl Drop for ShardLink {
    fn drop(&mut self) {
        self.attachment().leave();
    }
}

/// Gives frames away under the lock of their queue.
struct UnderLock<'a> {
    shared: &'a MuxShared,
    shard: u16,
}

impl GivesAway for UnderLock<'_> {
    fn pass_on(
        &mut self,
        index: usize,
        (frame, received, note): (&[u8], Received, Note),
        ends: &SteeringKey,
    ) -> bool {
        let mut queue = lock(&self.shared.queues[index]);
        let (to, note) = queue.next_to_ask(&self.shared.steering, self.shard, note, ends);
        if to == self.shard {
            return false;
        }
        queue.counters.passed_on += 1;
        queue.send(to, (frame, received, note));
        queue.deliver();
        true
    }

    fn steer_again(
        &mut self,
        index: usize,
        (frame, received): (&[u8], Received),
        taker: &mut dyn FrameSink,
    ) {
        let mut queue = lock(&self.shared.queues[index]);
        let mut mine = 0;
        let (_, mut burst) = queue.burst((self.shared, self.shard), &mut mine);
        burst.steer(frame, received, taker);
        queue.deliver();
    }
}

#[cfg(test)]
mod tests;
