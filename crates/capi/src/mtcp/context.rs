//! `mctx_t`: the table of contexts, their owner threads, and the only access to their state.
//!
//! Contexts lie in a static table, one entry for each core, as in mTCP. A program's pointer points
//! into the table, so it is checked by its index alone: a null, free or stale pointer, or one of
//! another thread, gives errno and is not followed.
//!
//! Invariants
//! - Only the thread in `owner` changes an entry or uses `inner`; other threads read `owner`, and
//!   set `interrupted` and write to `waker` in signal handlers.
//! - `waker` is valid as long as a handler may use it: see [`ContextEntry::take_waker`].

use std::ffi::c_int;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use channel::{Counters, Waker};
use sockets::{Attempt, CallRunner, Context, EpollEvent, Error, Sockets};

use super::claims::Claimed;
use crate::error::{CallError, CallFailure, Errno};
use crate::fork::ProcessMark;
use crate::guarded::GuardedCell;
use crate::limits::MTCP_CONTEXTS_MAX;
use crate::registry::ThreadNumber;

/// The public part of a context.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
#[repr(C)]
pub struct mtcp_context {
    /// The core that the context was created for.
    cpu: AtomicI32,
}

/// A context's name in C.
#[allow(non_camel_case_types, reason = "the name in C")]
pub type mctx_t = *mut mtcp_context;

/// An entry of the table. The public part is first: its address is the entry's.
#[repr(C)]
struct ContextEntry {
    public: mtcp_context,
    /// A signal arrived since the last wait that was interrupted.
    interrupted: AtomicBool,
    /// The number of the owner thread; 0: free.
    owner: AtomicU64,
    inner: AtomicPtr<ContextInner>,
    waker: AtomicPtr<Waker>,
}

static ENTRIES: [ContextEntry; MTCP_CONTEXTS_MAX] = [const {
    ContextEntry {
        public: mtcp_context { cpu: AtomicI32::new(-1) },
        interrupted: AtomicBool::new(false),
        owner: AtomicU64::new(0),
        inner: AtomicPtr::new(ptr::null_mut()),
        waker: AtomicPtr::new(ptr::null_mut()),
    }
}; MTCP_CONTEXTS_MAX];

/// Signal handlers that are scanning the table now.
static HANDLERS_RUNNING: AtomicUsize = AtomicUsize::new(0);

struct ContextInner {
    process: ProcessMark,
    waiting: GuardedCell<BlockingSockets>,
}

/// A context's sockets, whose calls block until they are complete or a signal arrives.
pub(crate) struct BlockingSockets {
    context: Context,
    entry: &'static ContextEntry,
    /// Source addresses of connections, after `mtcp_init_rss()`.
    pub(super) sources: Option<Sources>,
    /// Addresses that may be shared with other contexts of the process.
    pub(super) claimed: Claimed,
    /// Description of the context's carrier, if its counters are to be printed when it ends.
    pub(super) placement_text: Option<String>,
    /// Buffer for the events of a wait, kept so that no wait allocates.
    events: Vec<EpollEvent>,
}

impl BlockingSockets {
    /// The context's core and its counters.
    pub(super) fn counted(&self) -> (c_int, Counters) {
        (self.entry.public.cpu.load(Ordering::Relaxed), self.context.counters())
    }

    /// Takes the buffer, for at least `count` events; return it with [`Self::put_events`].
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

/// Source addresses of connections to one server, used in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) to: SocketAddr,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) next: u32,
}

impl Sources {
    /// The address for the next connection to `to`, with port 0; `None`: any address.
    pub(super) fn next(&mut self, to: SocketAddr) -> Option<SocketAddr> {
        if to != self.to {
            return None;
        }
        let ip = std::net::Ipv4Addr::from_bits(self.first.wrapping_add(self.next));
        self.next = (self.next + 1) % self.count;
        Some(SocketAddr::new(ip.into(), 0))
    }
}

impl CallRunner for BlockingSockets {
    #[inline]
    fn run<T>(
        &mut self,
        attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        // Acquire pairs with the Release in `interrupt_all`: the handler's stores are visible.
        let interrupted = || self.entry.interrupted.swap(false, Ordering::Acquire);
        self.context.run_unless(interrupted, attempt)
    }

    #[inline]
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        self.context.once(call)
    }
}

impl ContextEntry {
    /// Hides the waker from later handlers, and waits for those that are running.
    fn take_waker(&self) {
        // SeqCst, as in `interrupt_all`: either the handler reads `waker` after this store and gets
        // null, or its count is seen below.
        let waker = self.waker.swap(ptr::null_mut(), Ordering::SeqCst);
        while HANDLERS_RUNNING.load(Ordering::SeqCst) > 0 {
            // A handler only writes to eventfds; it never waits.
            std::hint::spin_loop();
        }
        if !waker.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `create`, was taken out of the table
            // once, here, and no handler that could have read it is still running.
            drop(unsafe { Box::from_raw(waker) });
        }
    }

    fn name(&'static self) -> mctx_t {
        (&raw const self.public).cast_mut()
    }
}

/// Creates the context of a core for the calling thread, one of several or the only one.
pub(super) fn create(
    core: usize,
    has_siblings: bool,
    make: impl FnOnce() -> Result<Context, CallFailure>,
) -> Result<mctx_t, CallFailure> {
    let entry = ENTRIES.get(core).ok_or(CallError::Argument("cpu"))?;
    let owner = ThreadNumber::current().number();
    // Acquire pairs with the Release in `destroy`: the stores below come after its stores.
    let won = entry.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed);
    won.map_err(|_| CallError::Occupied(core))?;
    let made = ProcessMark::current().and_then(|process| Ok((process, make()?)));
    let (process, context) = made.inspect_err(|_| entry.owner.store(0, Ordering::Release))?;
    let waker = Box::into_raw(Box::new(context.waker()));
    let waiting = GuardedCell::new(BlockingSockets {
        context,
        entry,
        sources: None,
        claimed: Claimed::new(core as c_int, has_siblings),
        placement_text: None,
        events: Vec::new(),
    });
    let inner = Box::new(ContextInner { process, waiting });
    entry.public.cpu.store(core as c_int, Ordering::Relaxed);
    entry.interrupted.store(false, Ordering::Relaxed);
    entry.inner.store(Box::into_raw(inner), Ordering::Relaxed);
    // Release: a handler that reads the pointer sees the initialised waker.
    entry.waker.store(waker, Ordering::Release);
    Ok(entry.name())
}

/// Ends a context of the calling thread: its connections are closed.
pub(super) fn destroy(context: mctx_t) -> Result<(), CallFailure> {
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
    // A context that panics while it is dropped is leaked.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(inner)));
    // Release pairs with the Acquire in `create`.
    entry.owner.store(0, Ordering::Release);
    errno.put_back();
    dropped.map_err(|_| CallError::Poisoned.into())
}

/// Runs `work` inside a context of the calling thread.
#[inline]
pub(super) fn with_context<T>(
    context: mctx_t,
    work: impl FnOnce(&mut BlockingSockets) -> Result<T, CallFailure>,
) -> Result<T, CallFailure> {
    let entry = owned(context)?;
    // SAFETY: the calling thread owns the entry, and only it ends the context.
    let inner = unsafe { &*entry.inner.load(Ordering::Relaxed) };
    inner.process.check()?;
    inner.waiting.enter(work)
}

/// The entry that a program's pointer names, if it is the calling thread's context.
#[inline]
fn owned(context: mctx_t) -> Result<&'static ContextEntry, CallFailure> {
    if context.is_null() {
        return Err(CallError::Null("mctx").into());
    }
    let offset = context.addr().wrapping_sub(ENTRIES.as_ptr().addr());
    let entry = offset
        .is_multiple_of(size_of::<ContextEntry>())
        .then(|| ENTRIES.get(offset / size_of::<ContextEntry>()))
        .flatten()
        .ok_or(CallError::NoContext)?;
    // Relaxed: a thread sees its own stores in order, and reads nothing else of other threads'
    // entries.
    match entry.owner.load(Ordering::Relaxed) {
        0 => Err(CallError::NoContext.into()),
        owner if owner == ThreadNumber::current().number() => Ok(entry),
        _ => Err(CallError::WrongThread.into()),
    }
}

/// Interrupts the current or next wait of every context. May be called from a signal handler.
pub(super) fn interrupt_all() {
    // SeqCst: see `take_waker`.
    HANDLERS_RUNNING.fetch_add(1, Ordering::SeqCst);
    for entry in &ENTRIES {
        let waker = entry.waker.load(Ordering::SeqCst);
        if !waker.is_null() {
            // Release pairs with the Acquire in `run`.
            entry.interrupted.store(true, Ordering::Release);
            // SAFETY: `take_waker` waits until `HANDLERS_RUNNING` is 0 before the waker is freed;
            // writing to an eventfd is async-signal-safe.
            unsafe { &*waker }.wake();
        }
    }
    HANDLERS_RUNNING.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of<T>(result: Result<T, CallFailure>) -> c_int {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    fn make() -> Result<Context, CallFailure> {
        Ok(Context::create(sockets::Config::default())?)
    }

    #[test]
    fn context_is_usable_only_by_its_thread_until_destroyed() {
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
        for unowned in [context.wrapping_byte_add(1), context.wrapping_add(1_000_000)] {
            assert_eq!(enter(unowned), libc::EBADF);
        }
        assert_eq!(errno_of(destroy(context)), 0);
        assert_eq!((enter(context), errno_of(destroy(context))), (libc::EBADF, libc::EBADF));
        assert_eq!(errno_of(create(MTCP_CONTEXTS_MAX, false, make)), libc::EINVAL);
    }

    #[test]
    fn panic_breaks_the_context_and_destroy_frees_its_entry() {
        let core = MTCP_CONTEXTS_MAX - 2;
        let context = create(core, false, make).unwrap();
        let panicked =
            with_context(context, |_| -> Result<(), CallFailure> { panic!("on purpose") });
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
    fn sources_are_used_in_turn_for_their_server_only() {
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
