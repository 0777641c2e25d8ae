//! A context that threads share: calls from any of them, and waiting without the lock.
//!
//! Read first: decision 0015. Schmidt et al., "Leader/Followers" for the pattern.
//!
//! One mutex lies around the sockets. A call takes it for one attempt. A thread that has to wait
//! becomes a *sleeper*, and gives the lock back before sleeping. Of the sleepers one *leads*: it
//! sleeps in the kernel, on the context's lookout (`foreign_fds.rs`), and when there is something
//! it takes the lock, polls the channel and wakes those whose sockets something happened to. The
//! others sleep on a futex each (`sleeper_bells.rs`). When the leader has what it waited for, the
//! next one leads.
//!
//! Where a driver works from outside ([`Driving::Outside`]), in virtual time for instance, no
//! sleeper leads: all sleep until a poll of the channel wakes them.
//!
//! Invariants
//! - `leader` is set while the lock is free exactly if that sleeper sleeps in the kernel.
//! - With [`Driving::Callers`], while any thread sleeps and the lock is free, one leads, or
//!   one was woken that will.
//! - What a call asked of the channel is handed over before the call returns, or sleeps: the
//!   program may make no further call. If a thread sleeps, the channel is also polled then; else
//!   what has arrived stays in the batch of the next poll. Nothing relies on that poll, the end of
//!   the process neither ([`crate::Bsd::close_all`]).
//! - A signal ends the call of the thread on which its handler ran, and no other's.
//! - A handler that interrupts a sleep may make calls ([`crate::SignalHooks`]). While one of them
//!   waits, it leads in place of the sleep beneath it, and gives the lead back.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use megapipe::{DriverChoice, DriverReport, Park};

use crate::attempt::{Attempt, OnSignal, Wait};
use crate::calls::CallRunner;
use crate::config::{Config, CreateError};
use crate::context::interrupted;
use crate::error::Error;
use crate::index_table::IndexTable;
use crate::kernel;
use crate::limits::NIL;
use crate::signal::SignalMask;
use crate::sleeper_bells::SleeperBells;
use crate::table::Sockets;

/// The threads that drive a shared context's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driving {
    /// The blocked threads, one of them at a time.
    #[default]
    Callers,
    /// Another thread, by [`SharedContext::poll_channel`] or [`SharedContext::drive`]; blocked
    /// calls only sleep. Required with a manual clock.
    Outside,
}

/// BSD sockets and epoll for many threads ([`crate::Bsd`]). A clone refers to the same context;
/// give one to each thread.
///
/// Blocked calls sleep on a futex or in the kernel, without the lock. Between calls nothing drives
/// the sockets, unless a thread is blocked in a call or drives from outside.
///
/// # Examples
/// ```
/// use megapipe_sockets::{Bsd, Config, Driving, OpenFlags, SharedContext};
///
/// let mut context = SharedContext::create(Config::default(), Driving::Callers)?;
/// let [reader, writer] = context.pipe2(OpenFlags::empty())?;
/// let mut other = context.clone();
/// let thread = std::thread::spawn(move || other.write(writer, b"hello"));
/// let mut bytes = [0; 5];
/// assert_eq!(context.read(reader, &mut bytes)?, 5);
/// assert_eq!(thread.join().expect("it does not panic")?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedContext {
    shared: Arc<SharedState>,
}

struct SharedState {
    inside: Mutex<LockedContext>,
    driving: Driving,
    bells: SleeperBells,
    /// The context's lookout, so that the leader can sleep on it without the lock.
    lookout: OwnedFd,
    /// What was decided when the channel was created.
    report: DriverReport,
}

/// The leader when no waiting call leads.
const DRIVER: u32 = NIL;

struct LockedContext {
    sockets: Sockets,
    sleepers: IndexTable<WaitingCall>,
    leader: Option<u32>,
    /// The thread of the leader.
    leader_thread: usize,
    /// Until when the leader sleeps, if nothing happens; `None`: for ever.
    leads_until: Option<Duration>,
}

/// The lock, with the thread that has it bound to the channel.
struct Locked<'lock>(MutexGuard<'lock, LockedContext>);

impl Deref for Locked<'_> {
    type Target = LockedContext;

    fn deref(&self) -> &LockedContext {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut LockedContext {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.sockets.channel.unbind_thread();
    }
}

/// A call that waits.
struct WaitingCall {
    on: Option<u32>,
    /// On the context's clock.
    deadline: Option<Duration>,
    is_woken: bool,
    on_signal: OnSignal,
    mask: Option<SignalMask>,
    /// A signal has ended its sleep, and ends the call.
    is_interrupted: bool,
}

/// Longer than anybody sleeps. The kernel restarts a futex(2) without a time-out after a handler
/// with SA_RESTART, and none that has one (signal(7)).
const FAR: Duration = Duration::from_secs(1 << 30);

impl SharedContext {
    /// Creates a context for many threads. The kernel's descriptors are served by the epoll driver.
    ///
    /// # Errors
    /// [`CreateError`], also if the configuration names another driver or a core.
    pub fn create(config: Config, driving: Driving) -> Result<Self, CreateError> {
        let mut config = config.checked()?;
        if config.channel.driver == DriverChoice::Uring {
            return Err(CreateError::NotShared { what: "the uring driver" });
        }
        if config.channel.core.is_some() {
            return Err(CreateError::NotShared { what: "a core" });
        }
        config.channel.driver = DriverChoice::Epoll;
        let by_hand = config.clock.is_by_hand();
        if by_hand && driving == Driving::Callers {
            return Err(CreateError::NoDriver);
        }
        let mut sockets = Sockets::create(config)?;
        let lookout = sockets.lookout().map_err(std::io::Error::from);
        let lookout = lookout.and_then(|fd| fd.try_clone_to_owned()).map_err(|source| {
            CreateError::Channel(megapipe::CreateError::Kernel { what: "an epoll set", source })
        })?;
        // Each call binds its thread.
        sockets.channel.unbind_thread();
        let bells = SleeperBells::new().map_err(|errno| {
            CreateError::Channel(megapipe::CreateError::Kernel {
                what: "an eventfd",
                source: errno.into(),
            })
        })?;
        let inside = LockedContext {
            sockets,
            sleepers: IndexTable::default(),
            leader: None,
            leader_thread: 0,
            leads_until: None,
        };
        let report = inside.sockets.channel.report().clone();
        let inside = Mutex::new(inside);
        Ok(Self { shared: Arc::new(SharedState { inside, driving, bells, lookout, report }) })
    }

    /// Returns which driver serves the context, and why.
    #[must_use]
    pub fn report(&self) -> &DriverReport {
        &self.shared.report
    }

    /// Polls the channel once and wakes the threads whose calls can complete. Returns the time
    /// until the next timer is due, even if nothing arrives; `None`: no timer. Does not block.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]: the link is gone.
    pub fn poll_channel(&self) -> Result<Option<Duration>, Error> {
        self.poll_all(self.lock()).map(|(_, until)| until)
    }

    /// Blocks for at most `timeout` until there is something to do, then polls as
    /// [`SharedContext::poll_channel`] does. For a thread that does nothing else. With a manual
    /// clock it does not wait for time.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]: the link is gone.
    pub fn drive(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let (inside, until) = self.poll_all(self.lock())?;
        let patience = [until, timeout].into_iter().flatten().min();
        if inside.leader.is_some() {
            // A thread sleeps in the kernel already, and does what is to be done.
            return Ok(());
        }
        let slept = self.sleep_in_kernel(inside, DRIVER, patience);
        let driven = slept.and_then(|(inside, _)| self.poll_all(inside).map(drop));
        // A thread that fell asleep meanwhile depends on a leader.
        self.leave(self.lock());
        driven
    }

    /// How many calls sleep now and were not woken: what they wait for has not happened.
    #[must_use]
    pub fn sleeping(&self) -> usize {
        let inside = self.lock();
        inside.sleepers.iter().filter(|(_, sleeper)| !sleeper.is_woken).count()
    }

    fn poll_all<'lock>(
        &'lock self,
        mut inside: Locked<'lock>,
    ) -> Result<(Locked<'lock>, Option<Duration>), Error> {
        inside.sockets.look_out()?;
        let until = inside.poll_channel(None, &self.shared.bells)?;
        let now = inside.sockets.now();
        let deadlines = inside.sleepers.iter().filter_map(|(_, sleeper)| sleeper.deadline);
        let first = deadlines.min().map(|at| at.saturating_sub(now));
        inside.wake_late(now, &self.shared.bells);
        Ok((inside, [until, first].into_iter().flatten().min()))
    }

    fn lock(&self) -> Locked<'_> {
        self.shared.lock()
    }

    /// Ends a call: its requests go out, the threads that it woke are notified, and one leads.
    fn leave(&self, mut inside: Locked<'_>) {
        let inside = &mut *inside;
        // No thread sleeps in the kernel for the channel, so the calls themselves drive it.
        if self.shared.driving == Driving::Callers && inside.leader.is_none() {
            let is_poll_due = inside.sockets.channel.count_call();
            if inside.sleepers.len() == 0 && !is_poll_due {
                return inside.submit(&self.shared.bells);
            }
            if is_poll_due {
                inside.sockets.channel.note_uncounted();
            }
        }
        inside.hand_over(None, &self.shared.bells);
        if self.shared.driving == Driving::Callers && inside.leader.is_none() {
            inside.appoint(&self.shared.bells);
        }
    }

    /// Sleeps until the sleeper is woken or its time is over. Leads, if no other does.
    fn sleep<'lock>(
        &'lock self,
        mut inside: Locked<'lock>,
        me: u32,
    ) -> Result<Locked<'lock>, Error> {
        while !inside.is_due(me) {
            if inside.is_led_by_other_thread(me) || self.shared.driving == Driving::Outside {
                inside = self.follow(inside, me);
                continue;
            }
            inside = self.lead(inside, me)?;
        }
        inside.sleepers[me].is_woken = false;
        Ok(inside)
    }

    fn follow<'lock>(&'lock self, mut inside: Locked<'lock>, me: u32) -> Locked<'lock> {
        // The leader sleeps, and is not woken otherwise.
        inside.hand_over(Some(me), &self.shared.bells);
        if inside.is_due(me) {
            return inside;
        }
        let WaitingCall { on_signal, mask, .. } = inside.sleepers[me];
        let Some(bell) = self.shared.bells.get(me) else { return inside };
        let patience = match self.shared.driving {
            Driving::Callers => inside.left(me),
            // The driver ends the wait when the time is over.
            Driving::Outside => None,
        };
        let far = (on_signal != OnSignal::MayRestart).then_some(FAR);
        let rings = bell.rings();
        drop(inside);
        let has_signal = kernel::asleep(|| match mask {
            None => bell.sleep(rings, patience.or(far)),
            Some(mask) => bell.sleep_with_mask(patience, mask),
        });
        let mut inside = self.lock();
        inside.sleepers[me].is_interrupted = has_signal && on_signal.ends_call();
        inside
    }

    /// One sleep in the kernel, and the poll after it.
    fn lead<'lock>(
        &'lock self,
        mut inside: Locked<'lock>,
        me: u32,
    ) -> Result<Locked<'lock>, Error> {
        let until = inside.poll_channel(Some(me), &self.shared.bells)?;
        if inside.is_due(me) {
            return Ok(inside);
        }
        let patience = [until, inside.left(me)].into_iter().flatten().min();
        let (mut inside, has_signal) = self.sleep_in_kernel(inside, me, patience)?;
        inside.poll_channel(Some(me), &self.shared.bells)?;
        let sleeper = &mut inside.sleepers[me];
        sleeper.is_interrupted = has_signal && sleeper.on_signal.ends_call();
        Ok(inside)
    }

    /// Whether a signal ended it, too.
    fn sleep_in_kernel<'lock>(
        &'lock self,
        mut inside: Locked<'lock>,
        leader: u32,
        patience: Option<Duration>,
    ) -> Result<(Locked<'lock>, bool), Error> {
        // A sleep of this thread, which a handler has interrupted that makes this call.
        let beneath = inside.leader.replace(leader).map(|leader| (leader, inside.leads_until));
        inside.leader_thread = this_thread();
        inside.leads_until = patience.map(|patience| inside.sockets.now() + patience);
        let mask = inside.sleepers.get(leader).and_then(|sleeper| sleeper.mask);
        drop(inside);
        let has_signal = kernel::asleep(|| self.shared.poll(patience, mask));
        let mut inside = self.lock();
        inside.leader = None;
        self.shared.bells.recall.clear();
        if let Some((leader, until)) = beneath {
            (inside.leader, inside.leads_until) = (Some(leader), until);
            // What happened meanwhile is not known to it.
            self.shared.bells.recall.ring();
        }
        inside.sockets.look_out()?;
        Ok((inside, has_signal))
    }
}

impl SharedState {
    fn lock(&self) -> Locked<'_> {
        // A call that panicked left its socket as it was; the others go on.
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        // All that lock it unbind themselves.
        let is_bound = inside.sockets.channel.bind_thread();
        debug_assert!(is_bound, "a thread that does not have the lock is bound");
        Locked(inside)
    }

    /// Sleeps until there is something to do. Whether a signal ended it.
    fn poll(&self, patience: Option<Duration>, mask: Option<SignalMask>) -> bool {
        // It fails only for wrong arguments; the caller looks for itself at what has happened.
        let fds = [self.lookout.as_fd(), self.bells.recall.counter.as_fd()];
        kernel::sleep(fds, patience, mask).unwrap_or(false)
    }
}

impl LockedContext {
    /// Everything that can be done now. How long the channel has nothing to do after it.
    fn poll_channel(
        &mut self,
        me: Option<u32>,
        bells: &SleeperBells,
    ) -> Result<Option<Duration>, Error> {
        let sockets = &mut self.sockets;
        let until = loop {
            match sockets.channel.prepare_sleep()? {
                Park::Work => sockets.drive(Some(Duration::ZERO))?,
                Park::Until(until) => break until,
            }
        };
        self.deliver(me, bells);
        Ok(until)
    }

    /// Sends a call's requests, and notifies the threads that it woke.
    fn hand_over(&mut self, me: Option<u32>, bells: &SleeperBells) {
        // First of all: the places of objects that are gone must not be taken by others meanwhile.
        self.deliver(me, bells);
        if self.sockets.channel.is_restless() {
            // The link reports to waiting calls that it is gone; this call is done.
            let until = self.poll_channel(me, bells).unwrap_or(Some(Duration::ZERO));
            self.recall_leader(until, bells);
        }
    }

    /// Sends a call's requests where no thread sleeps: none has to look at the channel again, and
    /// what has arrived stays in the batch of the next poll.
    fn submit(&mut self, bells: &SleeperBells) {
        self.deliver(None, bells);
        // A link that is gone is reported by the next call that waits.
        let _ = self.sockets.channel.submit();
    }

    /// Wakes the sleepers that something happened for; `first` before others, because it is awake.
    ///
    /// All who wait for a socket try again. Of those who wait for a set, one for each event: that
    /// one takes what is there, and wakes the next if it leaves something.
    fn deliver(&mut self, first: Option<u32>, bells: &SleeperBells) {
        let Self { sockets, sleepers, leader, .. } = self;
        let anything = std::mem::take(&mut sockets.happened);
        if sockets.wakes.is_empty() && !anything {
            return;
        }
        let mut wakes = std::mem::take(&mut sockets.wakes);
        for object in &wakes {
            sockets.clear_wakes(*object);
        }
        let others = (0..sleepers.end() as u32).filter(|index| Some(*index) != first);
        for index in first.into_iter().chain(others) {
            let Some(sleeper) = sleepers.get_mut(index) else { continue };
            let place = wakes.iter().position(|object| sleeper.on == Some(*object));
            if sleeper.is_woken || (place.is_none() && !(anything && sleeper.on.is_none())) {
                continue;
            }
            if let Some(place) = place
                && sockets.is_set(wakes[place])
            {
                wakes.swap_remove(place);
            }
            // An object that is gone will be another's place.
            sleeper.on = sleeper.on.filter(|object| sockets.object(*object).is_some());
            sleeper.is_woken = true;
            if *leader == Some(index) {
                bells.recall.ring();
            } else {
                bells.ring(index, sleeper.mask.is_some());
            }
        }
        wakes.clear();
        sockets.wakes = wakes;
    }

    /// Wakes the sleepers whose time is over, which only a driver from outside tells them.
    fn wake_late(&mut self, now: Duration, bells: &SleeperBells) {
        for (index, sleeper) in self.sleepers.iter_mut() {
            if sleeper.deadline.is_some_and(|at| at <= now) {
                sleeper.is_woken = true;
                bells.ring(index, sleeper.mask.is_some());
            }
        }
    }

    /// The leader sleeps longer than the channel can wait by now: it has to look again.
    fn recall_leader(&mut self, until: Option<Duration>, bells: &SleeperBells) {
        let Some(until) = until else { return };
        let at = self.sockets.now() + until;
        if self.leader.is_some() && self.leads_until.is_none_or(|leads| leads > at) {
            self.leads_until = Some(at);
            bells.recall.ring();
        }
    }

    /// Wakes a sleeper, to lead.
    fn appoint(&self, bells: &SleeperBells) {
        if let Some((index, next)) = self.sleepers.iter().find(|(_, it)| !it.is_woken) {
            bells.ring(index, next.mask.is_some());
        }
    }

    /// A leader of this thread is beneath the signal handler that makes the call, and sleeps on
    /// when that has returned.
    fn is_led_by_other_thread(&self, me: u32) -> bool {
        let is_led = self.leader.is_some_and(|leader| leader != me);
        is_led && self.leader_thread != this_thread()
    }

    fn is_due(&self, me: u32) -> bool {
        let sleeper = &self.sleepers[me];
        sleeper.is_woken || sleeper.is_interrupted || self.left(me) == Some(Duration::ZERO)
    }

    /// How long a sleeper may still sleep.
    fn left(&self, me: u32) -> Option<Duration> {
        let deadline = self.sleepers[me].deadline?;
        Some(deadline.saturating_sub(self.sockets.now()))
    }

    /// A call begins to wait, for at most `timeout` from now on.
    ///
    /// # Errors
    /// [`Error::NoMemory`], where more calls wait than ever before; as eventfd(2), with a mask.
    fn fall_asleep(&mut self, wait: Wait, bells: &SleeperBells) -> Result<u32, Error> {
        let Wait { on, timeout, on_signal, mask } = wait;
        self.sleepers.reserve(1)?;
        self.sockets.reserve_wakes(self.sleepers.len() + 1)?;
        bells.prepare(self.sleepers.next(), mask)?;
        let deadline = timeout.and_then(|timeout| self.sockets.now().checked_add(timeout));
        self.sockets.count_sleeper(on, true);
        let (is_woken, is_interrupted) = (false, false);
        let sleeper = WaitingCall { on, deadline, is_woken, on_signal, mask, is_interrupted };
        Ok(self.sleepers.insert(sleeper))
    }

    /// It waits on, perhaps for something else.
    fn change_wait(&mut self, me: u32, Wait { on, on_signal, .. }: Wait) {
        self.sleepers[me].on_signal = on_signal;
        let before = std::mem::replace(&mut self.sleepers[me].on, on);
        if before != on {
            self.sockets.count_sleeper(before, false);
            self.sockets.count_sleeper(on, true);
        }
    }

    fn wake_up(&mut self, me: u32) {
        let sleeper = self.sleepers.remove(me);
        self.sockets.count_sleeper(sleeper.and_then(|sleeper| sleeper.on), false);
        if self.leader == Some(me) {
            self.leader = None;
        }
    }
}

/// A number of the calling thread. It takes no lock, allocates nothing and has no destructor.
fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl CallRunner for SharedContext {
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        let mut shared: &Self = self;
        shared.run(attempt)
    }

    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        let mut shared: &Self = self;
        shared.once(call)
    }
}

/// The same calls by a reference: each thread has one of its own.
impl CallRunner for &SharedContext {
    fn run<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        let mut inside = self.lock();
        let wait = match attempt(&mut inside.sockets, false) {
            Attempt::Done(result) => {
                self.leave(inside);
                return result;
            }
            Attempt::Wait(wait) => wait,
        };
        let me = match inside.fall_asleep(wait, &self.shared.bells) {
            Ok(me) => me,
            Err(error) => {
                self.leave(inside);
                return Err(error);
            }
        };
        if self.shared.driving == Driving::Outside {
            let left = inside.left(me);
            inside.recall_leader(left, &self.shared.bells);
        }
        let result = loop {
            inside = match self.sleep(inside, me) {
                Ok(inside) => inside,
                Err(error) => {
                    inside = self.lock();
                    break Err(error);
                }
            };
            let is_over = inside.left(me) == Some(Duration::ZERO);
            match attempt(&mut inside.sockets, is_over) {
                Attempt::Done(result) => break result,
                Attempt::Wait(wait) if inside.sleepers[me].is_interrupted => {
                    break interrupted(&mut inside.sockets, wait, &mut attempt);
                }
                Attempt::Wait(wait) => inside.change_wait(me, wait),
            }
        };
        inside.wake_up(me);
        self.leave(inside);
        result
    }

    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        let mut inside = self.lock();
        let result = call(&mut inside.sockets);
        self.leave(inside);
        result
    }
}
