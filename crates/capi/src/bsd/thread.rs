//! The sockets of each thread: its own, or a handle of those that all threads share.
//!
//! They lie in thread-local memory ([`HERE`]), so that no call takes a lock that the sockets
//! themselves do not have.
//!
//! Read first: `guarded.rs`; `megapipe_sockets::{Context, SharedContext}`.
//!
//! Invariants
//! - Contexts of threads have disjoint ranges of descriptors: a descriptor of another thread is
//!   invalid here, and never names another socket.
//! - A thread drops its handle of a shared context that was ended with its next call.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use sockets::{
    Attempt, Bsd, CallRunner, Context, EpollEvent, Error, PollFd, SharedContext, Sockets,
};

use super::outcome::SocketCallError;
use crate::error::{CallError, CallFailure};
use crate::fork::ProcessMark;
use crate::guarded::GuardedCell;
use crate::limits::{BSD_FIRST, BSD_NUMBERS, BSD_THREADS_MAX};

/// Time that the end of a thread, or of the process, waits for written bytes to be sent.
const PATIENCE: Duration = Duration::from_secs(2);

/// The lowest descriptor of the library.
static FIRST: AtomicI32 = AtomicI32::new(BSD_FIRST);

/// Incremented when the context that threads share is ended.
static ERA: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Here = const { Here(RefCell::new(None)) };
    /// The thread ended inside a call: a signal handler called exit(3).
    static ENDED_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's sockets.
struct Here(RefCell<Option<Rc<SocketThread>>>);

impl Drop for Here {
    fn drop(&mut self) {
        let thread = self.0.get_mut();
        ENDED_INSIDE.set(thread.as_ref().is_some_and(|thread| thread.inside.is_busy()));
    }
}

/// The sockets of one thread.
pub(super) struct SocketThread {
    process: ProcessMark,
    /// The [`ERA`] of a shared context.
    era: u64,
    inside: GuardedCell<ThreadState>,
    /// The descriptors of its own context; `None`: it is shared.
    place: Option<DescriptorRange>,
}

/// The state that calls work on.
pub(super) struct ThreadState {
    carrier: ThreadSockets,
    /// Buffers for events and entries, kept so that no wait allocates.
    pub(super) events: Vec<EpollEvent>,
    pub(super) entries: Vec<PollFd<'static>>,
}

/// The sockets of one thread or of all.
#[expect(clippy::large_enum_variant, reason = "there is one for each thread")]
pub(super) enum ThreadSockets {
    Own(Context),
    Shared(SharedContext),
}

impl CallRunner for ThreadState {
    #[inline]
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        match &mut self.carrier {
            ThreadSockets::Own(context) => context.run(attempt),
            ThreadSockets::Shared(context) => context.run(attempt),
        }
    }

    #[inline]
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        match &mut self.carrier {
            ThreadSockets::Own(context) => context.once(call),
            ThreadSockets::Shared(context) => context.once(call),
        }
    }
}

/// A range of descriptors, reserved for one thread until this is dropped.
pub(super) struct DescriptorRange(usize);

/// One bit for each range in use.
static PLACES: [AtomicU64; BSD_THREADS_MAX.div_ceil(64)] =
    [const { AtomicU64::new(0) }; BSD_THREADS_MAX.div_ceil(64)];

impl DescriptorRange {
    pub(super) fn take() -> Result<Self, CallFailure> {
        for (word, bits) in PLACES.iter().enumerate() {
            let lowest_free = |bits: u64| {
                let bit = bits.trailing_ones() as usize;
                (bit < 64 && word * 64 + bit < BSD_THREADS_MAX).then(|| bits | 1 << bit)
            };
            // Relaxed: it publishes only the number.
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

    /// Whether no thread has one.
    pub(super) fn are_all_free() -> bool {
        PLACES.iter().all(|bits| bits.load(Ordering::Relaxed) == 0)
    }
}

impl Drop for DescriptorRange {
    fn drop(&mut self) {
        PLACES[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
    }
}

impl SocketThread {
    fn new(carrier: ThreadSockets, place: Option<DescriptorRange>) -> Result<Self, CallFailure> {
        Ok(Self {
            process: ProcessMark::current()?,
            era: ERA.load(Ordering::Relaxed),
            place,
            inside: GuardedCell::new(ThreadState {
                carrier,
                events: Vec::new(),
                entries: Vec::new(),
            }),
        })
    }

    /// Whether a descriptor is in the thread's range; any is in a shared context's.
    #[inline]
    pub(super) fn has(&self, fd: c_int) -> bool {
        self.place.as_ref().is_none_or(|place| place.has(fd))
    }

    /// Refuses the child of a fork.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), CallFailure> {
        self.process.check()
    }

    /// Whether another thread has ended the shared context.
    #[inline]
    fn is_over(&self) -> bool {
        self.place.is_none() && self.era != ERA.load(Ordering::Relaxed)
    }

    /// Runs `work` with the thread's sockets.
    #[inline]
    pub(super) fn enter<T>(
        &self,
        work: impl FnOnce(&mut ThreadState) -> Result<T, Error>,
    ) -> Result<T, SocketCallError> {
        self.process.check()?;
        Ok(self.inside.enter(|inside| Ok(work(inside)))??)
    }
}

impl Drop for SocketThread {
    fn drop(&mut self) {
        // A child's copies belong to its parent.
        if self.place.is_some() && self.process.check().is_ok() {
            // Bytes not sent within the time are lost, as the man page says.
            let _ = self.inside.enter(|inside| Ok(inside.close_all(PATIENCE)));
        }
    }
}

/// Whether a descriptor is the library's; any other is the process's.
#[inline]
pub(super) fn is_ours(fd: c_int) -> bool {
    // Relaxed: it changes before there are descriptors.
    fd >= FIRST.load(Ordering::Relaxed)
}

/// Sets the lowest descriptor of the library.
pub(super) fn set_first(first: c_int) {
    FIRST.store(first, Ordering::Relaxed);
}

/// The calling thread's sockets, if it has any.
#[inline]
pub(super) fn here() -> Result<Option<Rc<SocketThread>>, SocketCallError> {
    let look = |here: &Here| match here.0.try_borrow() {
        Ok(here) => Ok(here.clone()),
        // A signal interrupted the lookup.
        Err(_) => Err(SocketCallError::from(CallError::Reentered)),
    };
    // A thread that is ending has dropped its sockets.
    let found = HERE.try_with(look).unwrap_or_else(|_| Err(CallError::NoContext.into()))?;
    match found {
        Some(thread) if thread.is_over() => {
            put_here(None)?;
            Ok(None)
        }
        found => Ok(found),
    }
}

fn put_here(thread: Option<Rc<SocketThread>>) -> Result<(), SocketCallError> {
    let put = |here: &Here| match here.0.try_borrow_mut() {
        Ok(mut here) => Ok(std::mem::replace(&mut *here, thread)),
        Err(_) => Err(SocketCallError::from(CallError::Reentered)),
    };
    let before = HERE.try_with(put).unwrap_or_else(|_| Err(CallError::NoContext.into()))?;
    // Not while it is borrowed: closing may take a while, and signals may interrupt it.
    drop(before);
    Ok(())
}

/// Gives these sockets to the calling thread.
pub(super) fn set_sockets(
    carrier: ThreadSockets,
    place: Option<DescriptorRange>,
) -> Result<(), SocketCallError> {
    put_here(Some(Rc::new(SocketThread::new(carrier, place)?)))
}

/// Whether the calling thread has sockets.
pub(super) fn has_sockets() -> bool {
    here().is_ok_and(|thread| thread.is_some())
}

/// Whether a call of the calling thread is inside, for a signal handler that ends the process.
pub(super) fn is_inside() -> bool {
    let is_inside = |here: &Here| match here.0.try_borrow() {
        Ok(here) => here.as_ref().is_some_and(|thread| thread.inside.is_busy()),
        Err(_) => true,
    };
    HERE.try_with(is_inside).unwrap_or_else(|_| ENDED_INSIDE.get())
}

/// Drops the calling thread's sockets.
pub(super) fn give_up() -> Result<(), SocketCallError> {
    if let Some(thread) = here()? {
        if thread.inside.is_busy() {
            return Err(CallError::Reentered.into());
        }
        thread.process.check()?;
    }
    put_here(None)
}

/// Ends a shared context. A call of another thread that is inside gets errors from then on.
pub(super) fn end_shared(context: &mut SharedContext) {
    ERA.fetch_add(1, Ordering::Relaxed);
    // As at the end of a thread.
    let _ = context.close_all(PATIENCE);
}
