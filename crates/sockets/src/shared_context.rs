//! A context that threads share: calls from any of them, and waiting without the lock.
//!
//! Read first: decision 0015. Schmidt et al., "Leader/Followers" for the pattern.
//!
//! One mutex lies around the sockets, which costs the thread that makes most calls no locked
//! instruction ([`BiasedMutex`]). A call takes it for one attempt. A thread that has to wait
//! becomes a *sleeper*, and gives the lock back before sleeping. Of the sleepers one *leads*: it
//! sleeps in the kernel, on the context's lookout (`foreign_fds.rs`), and when there is something
//! it takes the lock, polls the channel and wakes those whose sockets something happened to. The
//! others sleep on a futex each (`sleeper_bells.rs`). Who leads next, and when, is in `lead.rs`.
//!
//! Where a driver works from outside ([`Driving::Outside`]), in virtual time for instance, no
//! sleeper leads: all sleep until a poll of the channel wakes them.
//!
//! Invariants
//! - While the lock is free there is a leader exactly if that sleeper sleeps in the kernel.
//! - With [`Driving::Callers`], while any thread sleeps and the lock is free, one leads, one was
//!   woken that will, or a deputy looks after the channel at least every [`VACANCY_MAX`].
//! - What a call asked of the channel is handed over before the call returns, or sleeps: the
//!   program may make no further call. If a thread sleeps, the channel is also polled then; else
//!   what has arrived stays in the batch of the next poll. Nothing relies on that poll, the end of
//!   the process neither ([`crate::Bsd::close_all`]).
//! - A signal ends the call of the thread on which its handler ran, and no other's.
//! - A handler that interrupts a sleep may make calls ([`crate::SignalHooks`]). While one of them
//!   waits, it leads in place of the sleep beneath it, and gives the lead back.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe::{DriverChoice, DriverReport, Park};
use megapipe_shm::{BiasedGuard, BiasedMutex};

use crate::attempt::{Attempt, OnSignal, Wait};
use crate::call_runner::CallRunner;
use crate::config::{Config, CreateError};
use crate::context::interrupted;
use crate::error::Error;
use crate::index_table::IndexTable;
use crate::kernel;
use crate::lead::{Lead, LeadPart, Leader, Succession};
use crate::limits::NIL;
#[cfg(doc)]
use crate::limits::VACANCY_MAX;
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
    inside: BiasedMutex<LockedContext>,
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
    lead: Lead,
}

/// The lock, with the thread that has it bound to the channel.
struct Locked<'lock>(BiasedGuard<'lock, LockedContext>);

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
        let inside =
            LockedContext { sockets, sleepers: IndexTable::default(), lead: Lead::default() };
        let report = inside.sockets.channel.report().clone();
        let inside = BiasedMutex::new(inside);
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
        let (inside, until) = self.poll_all(self.lock())?;
        inside.sockets.channel.check_link().map(|()| until)
    }

    /// Blocks for at most `timeout` until there is something to do, then polls as
    /// [`SharedContext::poll_channel`] does. For a thread that does nothing else. With a manual
    /// clock it does not wait for time.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]: the link is gone.
    pub fn drive(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let (inside, until) = self.poll_all(self.lock())?;
        inside.sockets.channel.check_link()?;
        let patience = [until, timeout].into_iter().flatten().min();
        if inside.lead.leader().is_some() {
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

    /// As [`CallRunner::once`]; `None`: no lock within `patience`, because the call of another
    /// thread waits for a service that does not answer.
    pub(crate) fn once_within<T>(
        &self,
        patience: Duration,
        call: impl FnOnce(&mut Sockets) -> T,
    ) -> Option<T> {
        const STEP: Duration = Duration::from_millis(1);
        let start = Instant::now();
        let mut inside = loop {
            if let Some(inside) = self.shared.try_lock() {
                break inside;
            }
            if start.elapsed() >= patience {
                return None;
            }
            std::thread::sleep(STEP);
        };
        let result = call(&mut inside.sockets);
        self.leave(inside);
        Some(result)
    }

    /// Ends a call: its requests go out, and the threads that it woke are notified.
    fn leave(&self, mut inside: Locked<'_>) {
        let inside = &mut *inside;
        if self.shared.driving == Driving::Outside {
            return inside.hand_over(None, &self.shared.bells);
        }
        inside.lead.note_call();
        if inside.lead.leader().is_some() {
            // The leader sleeps, and is not woken otherwise.
            return inside.hand_over(None, &self.shared.bells);
        }
        // No thread sleeps in the kernel for the channel, so the calls themselves drive it.
        if inside.sockets.channel.count_call() {
            inside.sockets.channel.note_uncounted();
            inside.hand_over(None, &self.shared.bells);
        } else {
            inside.submit(&self.shared.bells);
        }
        if inside.sleepers.len() > 0 {
            inside.settle_succession(&self.shared.bells);
        }
    }

    /// Sleeps until the sleeper is woken or its time is over. Leads, if no other does.
    fn sleep<'lock>(
        &'lock self,
        mut inside: Locked<'lock>,
        me: u32,
    ) -> Result<Locked<'lock>, Error> {
        while !inside.is_due(me) {
            if self.shared.driving == Driving::Outside {
                inside = self.follow(inside, me, None);
                continue;
            }
            // Also after an attempt that found nothing: the thread may have led before it.
            if let Some(successor) = inside.lead.give_up(me) {
                inside.wake_to_lead(successor, &self.shared.bells);
            }
            match inside.part_of(me) {
                LeadPart::Follows(tick) => {
                    if inside.lead.asks(me) {
                        self.shared.bells.recall.ring();
                    }
                    inside = self.follow(inside, me, tick);
                    inside.lead.look(me);
                }
                LeadPart::Leads => inside = self.lead(inside, me)?,
            }
        }
        inside.sleepers[me].is_woken = false;
        Ok(inside)
    }

    /// One sleep beside the leader, or without one; `tick`: at most so long.
    fn follow<'lock>(
        &'lock self,
        mut inside: Locked<'lock>,
        me: u32,
        tick: Option<Duration>,
    ) -> Locked<'lock> {
        // The leader sleeps, and is not woken otherwise.
        inside.hand_over(Some(me), &self.shared.bells);
        if inside.is_due(me) {
            return inside;
        }
        let WaitingCall { on_signal, mask, .. } = inside.sleepers[me];
        let Some(bell) = self.shared.bells.get(me) else { return inside };
        let patience = match self.shared.driving {
            Driving::Callers => [inside.left(me), tick].into_iter().flatten().min(),
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
        let until = patience.map(|patience| inside.sockets.now() + patience);
        let beneath = inside.lead.begin(Leader { sleeper: leader, thread: this_thread(), until });
        let mask = inside.sleepers.get(leader).and_then(|sleeper| sleeper.mask);
        drop(inside);
        let has_signal = kernel::asleep(|| self.shared.poll(patience, mask));
        let mut inside = self.lock();
        inside.lead.end(beneath);
        self.shared.bells.recall.clear();
        if beneath.is_some() {
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
        Self::bound(self.inside.lock())
    }

    fn try_lock(&self) -> Option<Locked<'_>> {
        self.inside.try_lock().map(Self::bound)
    }

    fn bound(inside: BiasedGuard<'_, LockedContext>) -> Locked<'_> {
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
            match sockets.prepare_sleep()? {
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
        let Self { sockets, sleepers, lead } = self;
        let leader = lead.leader().map(|leader| leader.sleeper);
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
            if leader == Some(index) {
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
        let sleeps_on = |leader: Leader| leader.until.is_none_or(|until| until > at);
        if self.lead.leader().is_some_and(sleeps_on) {
            self.lead.shorten(at);
            bells.recall.ring();
        }
    }

    /// No thread leads, and some sleep: wakes the one that leads, or becomes the deputy.
    fn settle_succession(&mut self, bells: &SleeperBells) {
        let mut asleep = self.sleepers.iter().filter(|(_, it)| !it.is_woken).map(|(at, _)| at);
        match self.lead.succession() {
            Succession::Kept => {}
            Succession::Leads(asked) => {
                let asked = asked.filter(|asked| self.sleepers.get(*asked).is_some());
                if let Some(sleeper) = asked.or_else(|| asleep.next()) {
                    self.wake_to_lead(sleeper, bells);
                }
            }
            Succession::Deputy => {
                if let Some(sleeper) = asleep.next() {
                    self.lead.appoint(sleeper);
                    self.wake_to_lead(sleeper, bells);
                }
            }
        }
    }

    /// Wakes a sleeper, to look what its part is.
    fn wake_to_lead(&self, sleeper: u32, bells: &SleeperBells) {
        if let Some(it) = self.sleepers.get(sleeper) {
            bells.ring(sleeper, it.mask.is_some());
        }
    }

    /// What a sleeper does that has nothing yet.
    fn part_of(&self, me: u32) -> LeadPart {
        let channel = &self.sockets.channel;
        self.lead.part_of(me, this_thread(), || channel.now().saturating_sub(channel.polled_at()))
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
        let now = self.sockets.now();
        self.lead.note_wait(this_thread(), now);
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
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
        self.lead.note_return(me, this_thread(), self.sockets.channel.polled_at());
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
        let began = inside.sockets.descriptors.opens();
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
        let mut attempt = |sockets: &mut Sockets, is_over: bool| {
            sockets.descriptors.resume(began);
            let outcome = attempt(sockets, is_over);
            sockets.descriptors.end_resumed();
            outcome
        };
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
