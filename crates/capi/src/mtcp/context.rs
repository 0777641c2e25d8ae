//! `mctx_t`: which contexts there are, whose they are, and the only way to what is inside them.
//!
//! Contexts lie in a static table, one place for each core, as mTCP has them. What a program holds
//! points into the table, so a pointer is checked by its number alone: a null one, one of nobody's,
//! one of a context that is gone or of another thread gives errno, and is not followed.
//!
//! Invariants
//! - Only the thread in `owner` changes an entry or looks into `inner`; others read `owner`, and
//!   set `interrupted` and ring `waker` from signal handlers.
//! - `waker` points to a bell as long as a handler may ring it: see [`Entry::take_waker`].

use std::ffi::c_int;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use channel::{Counters, Waker};
use sockets::{Attempt, Context, EpollEvent, Error, Run, Sockets};

use super::ports::Claimed;
use crate::error::{CallError, Errno, Failure};
use crate::fork::ProcessMark;
use crate::guarded::Guarded;
use crate::limits::MTCP_CONTEXTS_MAX;
use crate::registry::ThreadNumber;

/// What a program sees of a context.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
#[repr(C)]
pub struct mtcp_context {
    /// The core it was made for.
    cpu: AtomicI32,
}

/// A context's name in C.
#[allow(non_camel_case_types, reason = "the name in C")]
pub type mctx_t = *mut mtcp_context;

/// A place of the table. What the program sees comes first: its address is the entry's.
#[repr(C)]
struct Entry {
    public: mtcp_context,
    /// A signal came since the last wait that it ended.
    interrupted: AtomicBool,
    /// The number of the thread whose context this is; 0: nobody's.
    owner: AtomicU64,
    inner: AtomicPtr<Inner>,
    waker: AtomicPtr<Waker>,
}

static ENTRIES: [Entry; MTCP_CONTEXTS_MAX] = [const {
    Entry {
        public: mtcp_context { cpu: AtomicI32::new(-1) },
        interrupted: AtomicBool::new(false),
        owner: AtomicU64::new(0),
        inner: AtomicPtr::new(ptr::null_mut()),
        waker: AtomicPtr::new(ptr::null_mut()),
    }
}; MTCP_CONTEXTS_MAX];

/// Handlers that are looking through the table now.
static RINGING: AtomicUsize = AtomicUsize::new(0);

struct Inner {
    process: ProcessMark,
    waiting: Guarded<Waiting>,
}

/// A context's sockets, whose calls wait until they are done, or a signal comes.
pub(crate) struct Waiting {
    context: Context,
    entry: &'static Entry,
    /// Where connections come from, if `mtcp_init_rss()` said so.
    pub(super) sources: Option<Sources>,
    /// Addresses that others of the process may share.
    pub(super) claimed: Claimed,
    /// What carries the context, in words, if its counters are to be told when it ends.
    pub(super) told_as: Option<String>,
    /// Room for the events of a wait, kept so that no wait allocates.
    events: Vec<EpollEvent>,
}

impl Waiting {
    /// The core that the context was made for, and what it has counted.
    pub(super) fn counted(&self) -> (c_int, Counters) {
        (self.entry.public.cpu.load(Ordering::Relaxed), self.context.counters())
    }

    /// Room for at least `count` events; give it back with [`Self::put_events`].
    pub(super) fn take_events(&mut self, count: usize) -> Vec<EpollEvent> {
        let mut events = std::mem::take(&mut self.events);
        if events.len() < count {
            events.resize(count, EpollEvent::default());
        }
        events
    }

    pub(super) fn put_events(&mut self, events: Vec<EpollEvent>) {
        self.events = events;
    }
}

/// Addresses that connections to one server come from, in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) to: SocketAddr,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) next: u32,
}

impl Sources {
    /// The address for the next connection to `to`, with port 0; none: any will do.
    pub(super) fn next(&mut self, to: SocketAddr) -> Option<SocketAddr> {
        if to != self.to {
            return None;
        }
        let ip = std::net::Ipv4Addr::from_bits(self.first.wrapping_add(self.next));
        self.next = (self.next + 1) % self.count;
        Some(SocketAddr::new(ip.into(), 0))
    }
}

impl Run for Waiting {
    #[inline]
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        // Acquire pairs with the Release in `interrupt_all`: what the handler did is seen.
        let interrupted = || self.entry.interrupted.swap(false, Ordering::Acquire);
        self.context.run_unless(interrupted, attempt)
    }

    #[inline]
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        self.context.once(call)
    }
}

impl Entry {
    /// Takes the bell away from handlers that come later, and waits for those that are there.
    fn take_waker(&self) {
        // SeqCst, as in `interrupt_all`: either the handler's look at `waker` comes after this and
        // sees null, or its count is seen below.
        let waker = self.waker.swap(ptr::null_mut(), Ordering::SeqCst);
        while RINGING.load(Ordering::SeqCst) > 0 {
            // A handler only rings bells; it does not wait for anything.
            std::hint::spin_loop();
        }
        if !waker.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `create`, was taken out of the table
            // once, here, and no handler that could have seen it is at work any more.
            drop(unsafe { Box::from_raw(waker) });
        }
    }

    fn name(&'static self) -> mctx_t {
        (&raw const self.public).cast_mut()
    }
}

/// Makes the context of a core for the calling thread, one of several or the only one.
pub(super) fn create(
    core: usize,
    has_siblings: bool,
    make: impl FnOnce() -> Result<Context, Failure>,
) -> Result<mctx_t, Failure> {
    let entry = ENTRIES.get(core).ok_or(CallError::Argument("cpu"))?;
    let owner = ThreadNumber::current().number();
    // Acquire pairs with the Release in `destroy`: the stores below come after its stores.
    let won = entry.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed);
    won.map_err(|_| CallError::Occupied(core))?;
    let made = ProcessMark::current().and_then(|process| Ok((process, make()?)));
    let (process, context) = made.inspect_err(|_| entry.owner.store(0, Ordering::Release))?;
    let waker = Box::into_raw(Box::new(context.waker()));
    let waiting = Guarded::new(Waiting {
        context,
        entry,
        sources: None,
        claimed: Claimed::new(core as c_int, has_siblings),
        told_as: None,
        events: Vec::new(),
    });
    let inner = Box::new(Inner { process, waiting });
    entry.public.cpu.store(core as c_int, Ordering::Relaxed);
    entry.interrupted.store(false, Ordering::Relaxed);
    entry.inner.store(Box::into_raw(inner), Ordering::Relaxed);
    // Release: a handler that sees the bell sees what it is made of.
    entry.waker.store(waker, Ordering::Release);
    Ok(entry.name())
}

/// Ends a context of the calling thread: its connections are closed.
pub(super) fn destroy(context: mctx_t) -> Result<(), Failure> {
    let entry = owned(context)?;
    let inner = entry.inner.load(Ordering::Relaxed);
    // SAFETY: the calling thread owns the entry, so `inner` is its own live context.
    if unsafe { &*inner }.waiting.is_busy() {
        return Err(CallError::Reentered.into());
    }
    let errno = Errno::now();
    entry.take_waker();
    entry.inner.store(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: the pointer came from `Box::into_raw` in `create`, and nothing else has it any more.
    let inner = unsafe { Box::from_raw(inner) };
    // A context that panics on its way out is left to the process's end.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(inner)));
    // Release pairs with the Acquire in `create`.
    entry.owner.store(0, Ordering::Release);
    errno.put_back();
    dropped.map_err(|_| CallError::Broken.into())
}

/// Runs `work` inside a context of the calling thread.
#[inline]
pub(super) fn with_context<T>(
    context: mctx_t,
    work: impl FnOnce(&mut Waiting) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let entry = owned(context)?;
    // SAFETY: the calling thread owns the entry, and only it ends the context.
    let inner = unsafe { &*entry.inner.load(Ordering::Relaxed) };
    inner.process.check()?;
    inner.waiting.enter(work)
}

/// The entry that a pointer of the program's names, if it is the calling thread's context.
#[inline]
fn owned(context: mctx_t) -> Result<&'static Entry, Failure> {
    if context.is_null() {
        return Err(CallError::Null("mctx").into());
    }
    let offset = context.addr().wrapping_sub(ENTRIES.as_ptr().addr());
    let entry = offset
        .is_multiple_of(size_of::<Entry>())
        .then(|| ENTRIES.get(offset / size_of::<Entry>()))
        .flatten()
        .ok_or(CallError::NoContext)?;
    // Relaxed: a thread sees its own stores in order, and looks no further into others' entries.
    match entry.owner.load(Ordering::Relaxed) {
        0 => Err(CallError::NoContext.into()),
        owner if owner == ThreadNumber::current().number() => Ok(entry),
        _ => Err(CallError::WrongThread.into()),
    }
}

/// Ends the wait of every context, or its next one. May be called from a signal handler.
pub(super) fn interrupt_all() {
    // SeqCst: see `take_waker`.
    RINGING.fetch_add(1, Ordering::SeqCst);
    for entry in &ENTRIES {
        let waker = entry.waker.load(Ordering::SeqCst);
        if !waker.is_null() {
            // Release pairs with the Acquire in `run`.
            entry.interrupted.store(true, Ordering::Release);
            // SAFETY: whoever takes the bell out of the table waits until `RINGING` is 0 again
            // before it is freed; writing to an eventfd is safe in a handler.
            unsafe { &*waker }.wake();
        }
    }
    RINGING.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of<T>(result: Result<T, Failure>) -> c_int {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    fn make() -> Result<Context, Failure> {
        Ok(Context::create(sockets::Config::default())?)
    }

    #[test]
    fn only_its_own_thread_gets_into_a_context_and_only_while_it_lives() {
        let core = MTCP_CONTEXTS_MAX - 1;
        let context = create(core, false, make).unwrap();
        let enter = |context: mctx_t| errno_of(with_context(context, |_| Ok(())));
        assert_eq!(enter(context), 0);
        assert_eq!(errno_of(create(core, false, make)), libc::EEXIST);
        let name = context.addr();
        let foreign = move || {
            let context = ENTRIES[core].name();
            assert_eq!(context.addr(), name);
            let enter = errno_of(with_context(context, |_| Ok(())));
            (enter, errno_of(destroy(context)))
        };
        assert_eq!(std::thread::spawn(foreign).join().unwrap(), (libc::EPERM, libc::EPERM));
        assert_eq!(enter(ptr::null_mut()), libc::EFAULT);
        for nobodys in [context.wrapping_byte_add(1), context.wrapping_add(1_000_000)] {
            assert_eq!(enter(nobodys), libc::EBADF);
        }
        assert_eq!(errno_of(destroy(context)), 0);
        assert_eq!((enter(context), errno_of(destroy(context))), (libc::EBADF, libc::EBADF));
        assert_eq!(errno_of(create(MTCP_CONTEXTS_MAX, false, make)), libc::EINVAL);
    }

    #[test]
    fn a_panic_breaks_its_context_and_leaves_the_place_free_in_the_end() {
        let core = MTCP_CONTEXTS_MAX - 2;
        let context = create(core, false, make).unwrap();
        let panicked = with_context(context, |_| -> Result<(), Failure> { panic!("on purpose") });
        assert_eq!(errno_of(panicked), libc::ENOTRECOVERABLE);
        assert_eq!(errno_of(with_context(context, |_| Ok(()))), libc::ENOTRECOVERABLE);
        assert_eq!(errno_of(destroy(context)), 0);
        let again = create(core, false, make).unwrap();
        assert_eq!(errno_of(destroy(again)), 0);
        let refused = create(core, false, || Err(CallError::NoContext.into()));
        assert_eq!(errno_of(refused), libc::EBADF);
        assert_eq!(ENTRIES[core].owner.load(Ordering::Relaxed), 0, "free after a failure");
    }

    #[test]
    fn sources_are_used_in_turn_and_only_for_their_server() {
        let to: SocketAddr = "10.0.0.9:80".parse().unwrap();
        let first = u32::from_be_bytes([10, 0, 0, 1]);
        let mut sources = Sources { to, first, count: 2, next: 0 };
        let mut next = |to| sources.next(to).map(|from| from.to_string());
        assert_eq!(next(to).as_deref(), Some("10.0.0.1:0"));
        assert_eq!(next(to).as_deref(), Some("10.0.0.2:0"));
        assert_eq!(next("10.0.0.9:81".parse().unwrap()), None);
        assert_eq!(next(to).as_deref(), Some("10.0.0.1:0"));
    }
}
