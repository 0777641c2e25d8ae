//! Whose sockets a call is about: those of its thread, or those that all threads share.
//!
//! A thread finds what it has in memory of its own ([`HERE`]): a context, or one more name for the
//! context that is shared. So no call takes a lock that the sockets themselves do not have.
//!
//! Read first: `guarded.rs`; `megapipe_sockets::{Context, SharedContext}`.
//!
//! Invariants
//! - Contexts of threads have numbers of their own: those of another thread are nobody's here, and
//!   never somebody else's.
//! - What a thread has of a shared context that was ended is given up with its next call.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use sockets::{Attempt, Bsd, Context, EpollEvent, Error, PollFd, Run, SharedContext, Sockets};

use super::setup;
use crate::border::Failed;
use crate::error::{CallError, Failure, set_last, set_last_of_socket};
use crate::fork::ProcessMark;
use crate::guarded::Guarded;
use crate::limits::{BSD_FIRST, BSD_NUMBERS, BSD_THREADS_MAX};

/// How long the end of a thread, or of the process, waits for what was written to go out.
const PATIENCE: Duration = Duration::from_secs(2);

/// The lowest number of ours.
static FIRST: AtomicI32 = AtomicI32::new(BSD_FIRST);

/// Changes when the context that threads share is ended.
static ERA: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Here = const { Here(RefCell::new(None)) };
    /// The thread has ended in the middle of a call: a signal handler has called exit(3).
    static ENDED_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// What the calling thread has.
struct Here(RefCell<Option<Rc<Thread>>>);

impl Drop for Here {
    fn drop(&mut self) {
        let thread = self.0.get_mut();
        ENDED_INSIDE.set(thread.as_ref().is_some_and(|thread| thread.inside.is_busy()));
    }
}

/// Why a call failed: because of a socket, of which programs hear often, or for another reason.
pub(super) enum Refusal {
    Socket(Error),
    Call(Failure),
}

impl From<Error> for Refusal {
    #[inline]
    fn from(error: Error) -> Self {
        Self::Socket(error)
    }
}

impl From<Failure> for Refusal {
    #[cold]
    fn from(failure: Failure) -> Self {
        Self::Call(failure)
    }
}

impl From<CallError> for Refusal {
    #[cold]
    fn from(error: CallError) -> Self {
        Self::Call(error.into())
    }
}

/// The value that a call returns.
#[inline]
pub(super) fn answer<T: Failed>(call: &'static str, result: Result<T, Refusal>) -> T {
    match result {
        Ok(value) => return value,
        Err(Refusal::Socket(error)) => set_last_of_socket(call, error),
        Err(Refusal::Call(failure)) => set_last(call, failure.why()),
    }
    T::FAILED
}

/// The same, for a call that returns 0 when it succeeds.
#[inline]
pub(super) fn status(call: &'static str, result: Result<(), Refusal>) -> c_int {
    answer(call, result.map(|()| 0))
}

/// The same, for a call that returns how many there were, of which none has more than fit.
#[inline]
pub(super) fn count(call: &'static str, result: Result<usize, Refusal>) -> c_int {
    answer(call, result.map(|count| c_int::try_from(count).unwrap_or(c_int::MAX)))
}

/// What a thread has.
struct Thread {
    process: ProcessMark,
    /// The [`ERA`] of a shared context.
    era: u64,
    inside: Guarded<Inside>,
    /// Whose numbers its own context has; none: it is shared.
    place: Option<Place>,
}

/// What the calls work on.
pub(super) struct Inside {
    carrier: Carrier,
    /// Room for events and entries, kept so that no wait allocates.
    pub(super) events: Vec<EpollEvent>,
    pub(super) entries: Vec<PollFd<'static>>,
}

/// The sockets of one thread or of all.
#[expect(clippy::large_enum_variant, reason = "there is one for each thread")]
pub(super) enum Carrier {
    Own(Context),
    Shared(SharedContext),
}

impl Run for Inside {
    #[inline]
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        match &mut self.carrier {
            Carrier::Own(context) => context.run(attempt),
            Carrier::Shared(context) => context.run(attempt),
        }
    }

    #[inline]
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        match &mut self.carrier {
            Carrier::Own(context) => context.once(call),
            Carrier::Shared(context) => context.once(call),
        }
    }
}

/// A range of numbers, which is one thread's as long as this is there.
pub(super) struct Place(usize);

/// One bit for each range that is taken.
static PLACES: [AtomicU64; BSD_THREADS_MAX.div_ceil(64)] =
    [const { AtomicU64::new(0) }; BSD_THREADS_MAX.div_ceil(64)];

impl Place {
    pub(super) fn take() -> Result<Self, Failure> {
        for (word, bits) in PLACES.iter().enumerate() {
            let lowest_free = |bits: u64| {
                let bit = bits.trailing_ones() as usize;
                (bit < 64 && word * 64 + bit < BSD_THREADS_MAX).then(|| bits | 1 << bit)
            };
            // Relaxed: nothing but the number is handed on by it.
            let taken = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lowest_free);
            if let Ok(before) = taken {
                return Ok(Self(word * 64 + before.trailing_ones() as usize));
            }
        }
        Err(CallError::TooManyThreads.into())
    }

    /// The first number of the range.
    pub(super) const fn first(&self) -> c_int {
        BSD_FIRST + self.0 as c_int * BSD_NUMBERS
    }

    const fn has(&self, fd: c_int) -> bool {
        fd >= self.first() && fd - self.first() < BSD_NUMBERS
    }

    /// Whether nobody has one.
    pub(super) fn are_all_free() -> bool {
        PLACES.iter().all(|bits| bits.load(Ordering::Relaxed) == 0)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PLACES[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
    }
}

impl Thread {
    fn new(carrier: Carrier, place: Option<Place>) -> Result<Self, Failure> {
        Ok(Self {
            process: ProcessMark::current()?,
            era: ERA.load(Ordering::Relaxed),
            place,
            inside: Guarded::new(Inside { carrier, events: Vec::new(), entries: Vec::new() }),
        })
    }

    /// What it has of a shared context was ended by somebody.
    #[inline]
    fn is_over(&self) -> bool {
        self.place.is_none() && self.era != ERA.load(Ordering::Relaxed)
    }

    #[inline]
    fn enter<T>(&self, work: impl FnOnce(&mut Inside) -> Result<T, Error>) -> Result<T, Refusal> {
        self.process.check()?;
        Ok(self.inside.enter(|inside| Ok(work(inside)))??)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // What a child has of it is its parent's.
        if self.place.is_some() && self.process.check().is_ok() {
            // What is not out when the time is over is lost, as is said in the manual.
            let _ = self.inside.enter(|inside| Ok(inside.close_all(PATIENCE)));
        }
    }
}

/// Whether a number is one of ours; any other is the process's.
#[inline]
pub(super) fn is_ours(fd: c_int) -> bool {
    // Relaxed: it changes before there are descriptors.
    fd >= FIRST.load(Ordering::Relaxed)
}

/// The lowest number of ours, from now on.
pub(super) fn set_first(first: c_int) {
    FIRST.store(first, Ordering::Relaxed);
}

/// What the calling thread has, if it has anything.
#[inline]
fn here() -> Result<Option<Rc<Thread>>, Refusal> {
    let look = |here: &Here| match here.0.try_borrow() {
        Ok(here) => Ok(here.clone()),
        // A signal came while the thread looked.
        Err(_) => Err(Refusal::from(CallError::Reentered)),
    };
    // A thread at its end has given up what it had.
    let found = HERE.try_with(look).unwrap_or_else(|_| Err(CallError::NoContext.into()))?;
    match found {
        Some(thread) if thread.is_over() => {
            put_here(None)?;
            Ok(None)
        }
        found => Ok(found),
    }
}

fn put_here(thread: Option<Rc<Thread>>) -> Result<(), Refusal> {
    let put = |here: &Here| match here.0.try_borrow_mut() {
        Ok(mut here) => Ok(std::mem::replace(&mut *here, thread)),
        Err(_) => Err(Refusal::from(CallError::Reentered)),
    };
    let before = HERE.try_with(put).unwrap_or_else(|_| Err(CallError::NoContext.into()))?;
    // Not while it is borrowed: what it closes may take a while, and signals come meanwhile.
    drop(before);
    Ok(())
}

/// The calling thread gets these sockets.
pub(super) fn settle(carrier: Carrier, place: Option<Place>) -> Result<(), Refusal> {
    put_here(Some(Rc::new(Thread::new(carrier, place)?)))
}

/// Whether the calling thread has sockets.
pub(super) fn has_sockets() -> bool {
    here().is_ok_and(|thread| thread.is_some())
}

/// Whether a call of the calling thread is inside; whoever ends the process in a signal handler
/// asks that.
pub(super) fn is_inside() -> bool {
    let is_inside = |here: &Here| match here.0.try_borrow() {
        Ok(here) => here.as_ref().is_some_and(|thread| thread.inside.is_busy()),
        Err(_) => true,
    };
    HERE.try_with(is_inside).unwrap_or_else(|_| ENDED_INSIDE.get())
}

/// The calling thread gives up what it has.
pub(super) fn give_up() -> Result<(), Refusal> {
    if let Some(thread) = here()? {
        if thread.inside.is_busy() {
            return Err(CallError::Reentered.into());
        }
        thread.process.check()?;
    }
    put_here(None)
}

/// Ends a context that is shared. Who is inside with another thread finds nothing there any more.
pub(super) fn end_shared(context: &mut SharedContext) {
    ERA.fetch_add(1, Ordering::Relaxed);
    // As with the end of a thread.
    let _ = context.close_all(PATIENCE);
}

/// Runs `work` with the sockets of the calling thread, which are made if it has none.
#[inline]
pub(super) fn with_sockets<T>(
    work: impl FnOnce(&mut Inside) -> Result<T, Error>,
) -> Result<T, Refusal> {
    if let Some(thread) = here()? {
        return thread.enter(work);
    }
    setup::make()?;
    match here()? {
        Some(thread) => thread.enter(work),
        None => Err(CallError::NoContext.into()),
    }
}

/// Runs `work` with the sockets that a descriptor is of.
#[inline]
pub(super) fn with_fd<T>(
    fd: c_int,
    work: impl FnOnce(&mut Inside) -> Result<T, Error>,
) -> Result<T, Refusal> {
    match here()? {
        Some(thread) if thread.place.as_ref().is_none_or(|place| place.has(fd)) => {
            thread.enter(work)
        }
        Some(thread) => {
            thread.process.check()?;
            Err(CallError::OtherThreads.into())
        }
        None if setup::join()? => with_sockets(work),
        None => Err(CallError::OtherThreads.into()),
    }
}

/// What a call about a descriptor has come to. If something else is wrong, such as a pointer, it
/// comes after whose descriptor it is, as in Linux.
#[inline]
pub(super) fn in_order<T>(fd: c_int, result: Result<T, Refusal>) -> Result<T, Refusal> {
    match result {
        Err(Refusal::Call(failure)) => Err(refused(fd, failure)),
        result => result,
    }
}

#[cold]
fn refused(fd: c_int, failure: Failure) -> Refusal {
    match with_fd(fd, |sockets| sockets.fcntl(fd, libc::F_GETFD, 0)) {
        Ok(_) => failure.into(),
        Err(refusal) => refusal,
    }
}
