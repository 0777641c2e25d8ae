//! Sleep of an application and its server: arm, wait, wake, abandon.
//!
//! Each of the two has a [`SleepingEnd`]: a doorbell that the other one rings, and a ringer of the
//! other one's. An end sleeps in three steps, so that no ring is lost:
//!
//! 1. It arms its doorbell.
//! 2. It looks for work that was published before.
//! 3. Without any, it waits for the doorbell, the link and, where the link shares its address, the
//!    host ([`wait_readable`]).
//!
//! An end that ends marks itself, and wakes the other one.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use megapipe_link::LinkError;
use megapipe_shm::{DoorbellError, RegionParts, Ringer, Sleeper, doorbell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::server_thread;

/// Waits until one of the descriptors is readable, or until `timeout` has passed (`None`: for
/// ever). Returns which are. `None` in the list stands for a descriptor that there is not.
///
/// # Errors
/// [`Errno::INTR`] after a signal; others as poll(2).
pub fn wait_readable<const COUNT: usize>(
    fds: [Option<BorrowedFd<'_>>; COUNT],
    timeout: Option<Duration>,
) -> Result<[bool; COUNT], Errno> {
    // A time beyond what the kernel can count is as good as for ever.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let Some(filler) = fds.iter().flatten().next() else { return Ok([false; COUNT]) };
    let mut polled: [PollFd<'_>; COUNT] = std::array::from_fn(|place| {
        let fd = fds.iter().flatten().nth(place).unwrap_or(filler);
        PollFd::from_borrowed_fd(*fd, PollFlags::IN)
    });
    let count = fds.iter().flatten().count();
    poll(&mut polled[..count], timeout.as_ref())?;
    let mut results = polled.iter().map(|fd| !fd.revents().is_empty());
    Ok(fds.map(|fd| fd.is_some() && results.next().unwrap_or(false)))
}

/// The core that the calling thread runs on. About 10 ns, without a system call.
pub(crate) fn current_core() -> u32 {
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(u32::MAX)
}

/// One of two ends that sleep and wake each other. For one thread.
pub(crate) struct SleepingEnd {
    sleeper: Sleeper,
    ringer: Ringer,
}

impl SleepingEnd {
    /// An end with its own doorbell, and a ringer of the other end's.
    pub(crate) const fn new(sleeper: Sleeper, ringer: Ringer) -> Self {
        Self { sleeper, ringer }
    }

    /// This end, with a ringer of another lane's server: it sleeps once for all lanes.
    pub(crate) fn for_lane(&self, ringer: Ringer) -> Self {
        Self::new(self.sleeper.clone(), ringer)
    }

    /// Both ends, for two threads of this process.
    ///
    /// # Errors
    /// As [`doorbell`].
    pub(crate) fn pair(parts: &mut RegionParts) -> Result<(Self, Self), DoorbellError> {
        let (sleeper, other_ringer) = doorbell(parts)?;
        let (other_sleeper, ringer) = doorbell(parts)?;
        Ok((Self::new(sleeper, ringer), Self::new(other_sleeper, other_ringer)))
    }

    /// Requests to be woken at [`SleepingEnd::fd`]. Look for work afterwards.
    #[inline]
    pub(crate) fn arm(&self) {
        self.sleeper.arm();
    }

    /// As `arm`, by an end that looks again after a short time ([`Sleeper::arm_briefly`]).
    #[inline]
    pub(crate) fn arm_briefly(&self) {
        self.sleeper.arm_briefly();
    }

    /// As `arm`, for [`SleepingEnd::wait_at_flag`].
    #[inline]
    pub(crate) fn arm_at_flag(&self) {
        self.sleeper.arm_at_flag();
    }

    /// Sleeps until woken, without descriptors, or until `timeout` has passed. Only between threads
    /// of one process.
    ///
    /// # Errors
    /// [`Errno::INTR`]: a signal came.
    pub(crate) fn wait_at_flag(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        self.sleeper.sleep_at_flag(timeout)
    }

    /// Ends the request to be woken.
    #[inline]
    pub(crate) fn disarm(&self) {
        self.sleeper.disarm();
    }

    /// Clears rings that came at the descriptor.
    ///
    /// # Errors
    /// [`DoorbellError`]: the other end is gone.
    pub(crate) fn clear(&self) -> Result<(), DoorbellError> {
        self.sleeper.clear()
    }

    /// Whether the process of the other end is gone ([`Sleeper::is_other_gone`]).
    pub(crate) fn is_other_gone(&self) -> bool {
        self.sleeper.is_other_gone()
    }

    /// Descriptor that is readable after a ring.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.sleeper.fd()
    }

    /// Wakes the other end if it sleeps. Call it after publishing.
    ///
    /// # Errors
    /// [`DoorbellError`]: the other end is gone.
    #[inline]
    pub(crate) fn wake(&self) -> Result<(), DoorbellError> {
        self.ringer.ring().map(|_| ())
    }

    /// As `wake`, by an end that goes on ([`Ringer::ring_from`]).
    ///
    /// # Errors
    /// [`DoorbellError`]: the other end is gone.
    #[inline]
    pub(crate) fn wake_if_needed(&self) -> Result<(), DoorbellError> {
        self.ringer.ring_from(current_core).map(|_| ())
    }

    /// Publishes the core that this end runs on.
    pub(crate) fn note_core(&self, core: u32) {
        self.sleeper.note_core(core);
    }

    /// Whether the other end runs on this core, as far as it has published that
    /// ([`Ringer::core`]).
    pub(crate) fn is_other_on(&self, core: u32) -> bool {
        self.ringer.core() == Some(core)
    }

    /// Whether the other end sleeps, or is about to ([`Ringer::is_awaited`]).
    pub(crate) fn is_other_asleep(&self) -> bool {
        self.ringer.is_awaited()
    }

    /// Whether it does so without descriptors.
    pub(crate) fn is_other_asleep_at_flag(&self) -> bool {
        self.ringer.is_awaited_at_flag()
    }

    /// Whether the other end has ended. What it published before is visible then.
    #[inline]
    pub(crate) fn has_other_ended(&self) -> bool {
        self.ringer.has_ended()
    }

    /// Marks this end as ended, and wakes the other one, which sees it.
    pub(crate) fn mark_ended(&self) {
        self.sleeper.end();
        // An end that goes to sleep at this moment sees the mark, or is woken.
        let _ = self.ringer.ring();
    }
}

/// Where the server of an application runs.
pub(crate) enum ServerLocation {
    /// On a thread of this process.
    Thread(JoinHandle<Result<(), LinkError>>),
    /// In another process. The session lasts while the control socket is open.
    Process(Arc<OwnedFd>),
}

/// The application's end of a server on a thread of its own, or in another process.
pub(crate) struct ServerPeer {
    end: SleepingEnd,
    /// `None`: in another process, joined, or the parent's after a fork.
    thread: Option<JoinHandle<Result<(), LinkError>>>,
    /// The control socket of a server in another process. All lanes share it.
    control: Option<Arc<OwnedFd>>,
    /// This is a forked child's copy.
    is_abandoned: bool,
    /// All lanes share it, as they share the bell.
    is_armed: Arc<AtomicBool>,
    /// The server broke the protocol, or its doorbell is gone.
    has_failed: bool,
}

impl ServerPeer {
    /// The end of a server.
    pub(crate) fn new(end: SleepingEnd, location: ServerLocation) -> Self {
        let (thread, control) = match location {
            ServerLocation::Thread(thread) => (Some(thread), None),
            ServerLocation::Process(control) => (None, Some(control)),
        };
        let (is_abandoned, has_failed) = (false, false);
        Self { end, thread, control, is_abandoned, is_armed: Arc::default(), has_failed }
    }

    /// The end of another lane's server, in the same process as this one. `end` has the same bell.
    pub(crate) fn for_lane(&self, end: SleepingEnd) -> Self {
        let (control, is_armed) = (self.control.clone(), Arc::clone(&self.is_armed));
        Self { end, thread: None, control, is_abandoned: false, is_armed, has_failed: false }
    }

    /// Whether the server is in another process.
    pub(crate) const fn is_in_other_process(&self) -> bool {
        self.control.is_some()
    }

    /// The end itself.
    #[inline]
    pub(crate) const fn sleeping_end(&self) -> &SleepingEnd {
        &self.end
    }

    /// Whether the server polls.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        !self.has_failed && !self.end.has_other_ended()
    }

    /// Whether the server runs on the core of the calling thread, as far as it has published that.
    pub(crate) fn is_on_this_core(&self) -> bool {
        self.end.is_other_on(current_core())
    }

    /// Checks that the server polls.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<(), LinkError> {
        // The thread itself is still there when it rings for the last time: a caller that relied on
        // that would sleep again.
        if self.is_running() { Ok(()) } else { self.stop() }
    }

    /// Ends a server that still runs, and joins the thread.
    #[cold]
    fn stop(&mut self) -> Result<(), LinkError> {
        self.end.mark_ended();
        self.has_failed = true;
        if self.is_in_other_process() {
            return Err(LinkError::Gone { driver: "the service" });
        }
        server_thread::join(&mut self.thread)
    }

    /// Marks the server as failed: nothing more is exchanged with it.
    #[cold]
    pub(crate) const fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Whether this end is armed.
    pub(crate) fn is_armed(&self) -> bool {
        // Relaxed: one thread at a time has the lanes.
        self.is_armed.load(Ordering::Relaxed)
    }

    /// Wakes the server if it sleeps.
    #[inline]
    pub(crate) fn wake(&mut self) {
        self.has_failed |= self.end.wake() == Err(DoorbellError::Gone);
    }

    /// As `wake`, by an application that goes on: a server that sleeps briefly on this core is left
    /// asleep. Call `wake` before there is nothing more to do.
    #[inline]
    pub(crate) fn wake_if_needed(&mut self) {
        self.has_failed |= self.end.wake_if_needed() == Err(DoorbellError::Gone);
    }

    /// Requests to be woken at [`ServerPeer::wait_fd`]. Look for work afterwards.
    pub(crate) fn arm(&mut self) {
        self.end.note_core(current_core());
        self.end.arm();
        self.is_armed.store(true, Ordering::Relaxed);
    }

    /// Ends the request to be woken. Returns `false` if there was none.
    #[inline]
    pub(crate) fn disarm(&mut self) -> bool {
        if !self.is_armed() {
            return false;
        }
        self.is_armed.store(false, Ordering::Relaxed);
        self.end.disarm();
        self.has_failed |= self.end.clear() == Err(DoorbellError::Gone);
        true
    }

    /// Marks the server as failed if its process is gone, without clearing rings.
    #[cold]
    pub(crate) fn look_for_process(&mut self) {
        self.has_failed |= self.end.is_other_gone();
    }

    /// Descriptor that becomes readable after `arm` when there is work.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.end.fd()
    }

    /// Whether this is a forked child's copy.
    pub(crate) const fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Marks this as a forked child's copy: the server is the parent's, and stays untouched.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
        // Neither to be joined nor to be detached.
        std::mem::forget(self.thread.take());
    }
}

/// Ends the server and waits for it.
impl Drop for ServerPeer {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        self.end.mark_ended();
        if let Some(thread) = self.thread.take() {
            // A panic of the server was printed; nothing else is left to do.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use megapipe_shm::Region;
    use megapipe_shm::limits::BELL_BYTES;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Longer than any wait here takes.
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

    fn pair() -> (SleepingEnd, SleepingEnd) {
        let mut parts = Region::heap(2 * BELL_BYTES).expect("memory").into_parts();
        SleepingEnd::pair(&mut parts).expect("two doorbells")
    }

    #[test]
    fn wait_readable_reports_each_descriptor() {
        let event = |count| eventfd(count, EventfdFlags::CLOEXEC).expect("a descriptor");
        let (silent, rung) = (event(0), event(1));
        let (silent, rung) = (Some(silent.as_fd()), Some(rung.as_fd()));
        assert_eq!(wait_readable([silent, rung], PATIENCE), Ok([false, true]));
        assert_eq!(
            wait_readable([None, rung, None, silent], PATIENCE),
            Ok([false, true, false, false])
        );
        assert_eq!(wait_readable([rung, rung, None], PATIENCE), Ok([true, true, false]));
        let start = Instant::now();
        let short = Duration::from_millis(2);
        assert_eq!(wait_readable([None, silent], Some(short)), Ok([false, false]));
        assert!(start.elapsed() >= short);
    }

    #[test]
    fn armed_end_is_woken_at_its_descriptor() {
        let (one, other) = pair();
        other.wake().expect("an end that is awake");
        let fds = [Some(one.fd())];
        assert_eq!(wait_readable(fds, Some(Duration::ZERO)), Ok([false]), "it was awake");
        one.arm();
        assert!(other.is_other_asleep() && !other.is_other_asleep_at_flag());
        other.wake().expect("an end that sleeps");
        assert_eq!(wait_readable(fds, PATIENCE), Ok([true]));
        one.disarm();
        one.clear().expect("the other end");
        assert_eq!(wait_readable(fds, Some(Duration::ZERO)), Ok([false]));
    }

    #[test]
    fn ended_end_wakes_the_other_one() {
        let (one, other) = pair();
        one.arm_at_flag();
        let thread = std::thread::spawn(move || {
            other.mark_ended();
            other
        });
        one.wait_at_flag(PATIENCE).expect("no signal");
        assert!(one.has_other_ended());
        let other = thread.join().expect("it does not panic");
        assert!(!other.has_other_ended());
        one.wake().expect("nothing is written to an end that has ended");
        assert_eq!(wait_readable([Some(other.fd())], Some(Duration::ZERO)), Ok([false]));
    }
}
