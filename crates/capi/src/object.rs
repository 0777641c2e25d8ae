//! The object behind `mp_channel_t *`, and the only access to its state.
//!
//! Every call of the library passes through [`with_channel`] or [`with_handle`]. They ensure that
//! no mistake of the program becomes undefined behaviour in Rust and no panic unwinds into C:
//!
//! 1. a null pointer, another thread, a handle of no channel: an error;
//! 2. a call in the child of a fork: an error;
//! 3. a call from a signal handler that interrupted a call on the same channel: an error;
//! 4. a panic: caught; the channel is broken from then on, which every later call reports;
//! 5. errno: unchanged by a call that succeeds.
//!
//! Not detected: a pointer to a channel that was destroyed. That is use after free, as with `FILE
//! *`.
//!
//! Read first: `guarded.rs`, which implements 3 to 5.
//!
//! Invariants
//! - `owner`, `waker` and `process` never change; other threads read nothing else.
//! - When a thread ends, the channels that it did not destroy are destroyed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use channel::{Channel, Completion, Handle, Waker};

use crate::abi::mp_handle_t;
use crate::error::{CallError, CallFailure, Errno};
use crate::event::EventConverter;
use crate::fork::ProcessMark;
use crate::guarded::GuardedCell;
use crate::registry::{Registry, ThreadNumber};

/// The object behind `mp_channel_t *`; its fields are private to the library.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct mp_channel {
    owner: ThreadNumber,
    waker: Waker,
    process: ProcessMark,
    tag: u16,
    inner: GuardedCell<ChannelInner>,
}

/// A channel. One per thread: only the thread that created it may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub type mp_channel_t = mp_channel;

/// The channels of this process.
static CHANNELS: Registry<mp_channel> = Registry::new();

thread_local! {
    static AT_END: AtEnd = const { AtEnd };
}

/// Destroys the channels of a thread when the thread ends: no other thread can, and each holds
/// descriptors of the process.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        if is_main_thread() {
            // The process ends, and the kernel frees everything.
            return;
        }
        for channel in CHANNELS.own() {
            // SAFETY: the registry holds the channels of this thread that are not destroyed. A
            // channel with a call inside, because a signal handler ends the thread, is leaked.
            let _ = unsafe { mp_channel::destroy(channel) };
        }
    }
}

fn is_main_thread() -> bool {
    // SAFETY: the call takes nothing and returns a number.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the same.
    thread == unsafe { libc::getpid() }
}

/// The state that calls work on.
pub(crate) struct ChannelInner {
    pub(crate) channel: Channel,
    pub(crate) events: EventConverter,
    /// Completions to be copied into the array of `mp_dispatch_many()`.
    pub(crate) batch: Vec<Completion>,
}

impl mp_channel {
    /// Creates an object for the calling thread's channel and adds it to the registry.
    pub(crate) fn create(channel: Channel) -> Result<*mut Self, CallFailure> {
        let tag = channel.tag();
        let object = Box::into_raw(Box::new(Self {
            owner: ThreadNumber::current(),
            waker: channel.waker(),
            process: ProcessMark::current()?,
            tag,
            inner: GuardedCell::new(ChannelInner {
                channel,
                events: EventConverter::default(),
                batch: Vec::new(),
            }),
        }));
        if CHANNELS.enter(tag, object) {
            // The first use in a thread registers the destructor. In a thread that is already
            // ending, no destructor runs after this, and the program must destroy the channel.
            let _ = AT_END.try_with(|_| ());
            return Ok(object);
        }
        // SAFETY: the pointer came from `Box::into_raw` above and is not shared yet.
        drop(unsafe { Box::from_raw(object) });
        Err(CallError::TooManyChannels.into())
    }

    /// Destroys the object.
    ///
    /// # Safety
    /// `object` is null or came from [`Self::create`] and was not destroyed.
    pub(crate) unsafe fn destroy(object: *mut Self) -> Result<(), CallFailure> {
        // SAFETY: the caller keeps the contract.
        let shared = unsafe { owned(object)? };
        if shared.inner.is_busy() {
            return Err(CallError::Reentered.into());
        }
        let errno = Errno::now();
        CHANNELS.leave(shared.tag);
        // SAFETY: the pointer came from `Box::into_raw`, and `shared` is not used any more.
        let object = unsafe { Box::from_raw(object) };
        // A channel that panics while it is dropped is leaked.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(object)));
        errno.put_back();
        dropped.map_err(|_| CallError::Poisoned.into())
    }
}

/// Runs `work` inside the channel.
///
/// # Safety
/// `object` is null or came from [`mp_channel::create`] and was not destroyed.
#[inline]
pub(crate) unsafe fn with_channel<T>(
    object: *mut mp_channel_t,
    work: impl FnOnce(&mut ChannelInner) -> Result<T, CallFailure>,
) -> Result<T, CallFailure> {
    // SAFETY: the caller keeps the contract.
    enter(unsafe { owned(object)? }, work)
}

/// Runs `work` inside the channel that the handle belongs to.
#[inline]
pub(crate) fn with_handle<T>(
    handle: mp_handle_t,
    work: impl FnOnce(&mut ChannelInner, Handle) -> Result<T, CallFailure>,
) -> Result<T, CallFailure> {
    let handle = Handle::from_bits(handle);
    let object = CHANNELS.find(handle.channel_tag())?;
    // SAFETY: the registry holds the channels of this thread that are not destroyed, and only
    // this thread destroys them.
    let object = unsafe { &*object };
    enter(object, |inner| work(inner, handle))
}

/// Wakes a channel from any thread.
///
/// # Safety
/// `object` is null or came from [`mp_channel::create`] and is not destroyed before this returns.
pub(crate) unsafe fn wake(object: *const mp_channel_t) -> Result<(), CallFailure> {
    if object.is_null() {
        return Err(CallError::Null("channel").into());
    }
    // SAFETY: the caller promises a live object.
    let process = unsafe { &raw const (*object).process };
    // SAFETY: `process` is never written after `create`.
    unsafe { process.read() }.check()?;
    // SAFETY: the caller promises a live object.
    let waker = unsafe { &raw const (*object).waker };
    // SAFETY: `waker` is never written after `create`, and it is `Sync`.
    unsafe { &*waker }.wake();
    Ok(())
}

/// The object, if the calling thread owns it.
///
/// # Safety
/// As [`with_channel`]. The reference must not outlive the object.
#[inline]
unsafe fn owned<'a>(object: *const mp_channel_t) -> Result<&'a mp_channel, CallFailure> {
    if object.is_null() {
        return Err(CallError::Null("channel").into());
    }
    // SAFETY: the caller promises a live object.
    let owner = unsafe { &raw const (*object).owner };
    // SAFETY: `owner` is never written after `create`, so any thread may read it.
    if unsafe { owner.read() } != ThreadNumber::current() {
        return Err(CallError::WrongThread.into());
    }
    // SAFETY: the object is live, and this thread is the only one that touches its cells.
    Ok(unsafe { &*object })
}

#[inline]
fn enter<T>(
    object: &mp_channel,
    work: impl FnOnce(&mut ChannelInner) -> Result<T, CallFailure>,
) -> Result<T, CallFailure> {
    object.process.check()?;
    object.inner.enter(work)
}

#[cfg(test)]
mod tests {
    use channel::Config;

    use super::*;

    fn errno_of<T>(result: Result<T, CallFailure>) -> i32 {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    #[test]
    fn panic_is_caught_and_breaks_the_channel() {
        let object = mp_channel::create(Channel::create(Config::default()).unwrap()).unwrap();
        // SAFETY: the object is live until it is destroyed below.
        let enter = |work: fn(&mut ChannelInner) -> Result<(), CallFailure>| unsafe {
            with_channel(object, work)
        };
        assert_eq!(errno_of(enter(|_| Ok(()))), 0);
        // SAFETY: as above.
        let timer = unsafe {
            with_channel(object, |inner| {
                Ok(inner.channel.timer(std::time::Duration::MAX, None, 0)?)
            })
        };
        assert_eq!(errno_of(timer), libc::EINVAL, "a mistake breaks nothing");
        // SAFETY: as above.
        let timer = unsafe {
            with_channel(object, |inner| {
                Ok(inner.channel.timer(std::time::Duration::ZERO, None, 0)?)
            })
        };
        let handle = timer.unwrap().to_bits();
        assert_eq!(errno_of(enter(|_| panic!("on purpose"))), libc::ENOTRECOVERABLE);
        assert_eq!(errno_of(enter(|_| Ok(()))), libc::ENOTRECOVERABLE);
        assert_eq!(errno_of(with_handle(handle, |_, _| Ok(()))), libc::ENOTRECOVERABLE);
        // SAFETY: the object is live, and not used any more.
        assert_eq!(errno_of(unsafe { mp_channel::destroy(object) }), 0);
        assert_eq!(errno_of(with_handle(handle, |_, _| Ok(()))), libc::EBADF);
    }

    fn from_a_signal_handler(object: *mut mp_channel) {
        // SAFETY: the object is live for the whole test.
        let entered = unsafe { with_channel(object, |_| Ok(())) };
        assert_eq!(errno_of(entered), libc::EDEADLK);
        // SAFETY: the same; a busy channel is not destroyed.
        assert_eq!(errno_of(unsafe { mp_channel::destroy(object) }), libc::EDEADLK);
    }

    #[test]
    fn success_leaves_errno_unchanged() {
        let object = mp_channel::create(Channel::create(Config::default()).unwrap()).unwrap();
        // SAFETY: no such descriptor is open; the call does nothing but fail.
        let fail = || unsafe { libc::close(-1) };
        let errno = || std::io::Error::last_os_error().raw_os_error();
        let before = errno();
        assert_ne!(before, Some(libc::EBADF));
        // SAFETY: the object is live until it is destroyed below.
        let entered = unsafe {
            with_channel(object, |_| {
                assert_eq!((fail(), errno()), (-1, Some(libc::EBADF)));
                Ok(())
            })
        };
        assert_eq!(errno(), before);
        assert_eq!(errno_of(entered), 0);
        // SAFETY: the object is live, and not used any more.
        assert_eq!(errno_of(unsafe { mp_channel::destroy(object) }), 0);
    }

    #[test]
    fn reentrant_call_is_an_error() {
        let object = mp_channel::create(Channel::create(Config::default()).unwrap()).unwrap();
        // SAFETY: the object is live until it is destroyed below.
        let outer = unsafe {
            with_channel(object, |_| {
                from_a_signal_handler(object);
                Ok(())
            })
        };
        assert_eq!(errno_of(outer), 0);
        // SAFETY: the object is live, and not used any more.
        assert_eq!(errno_of(unsafe { mp_channel::destroy(object) }), 0);
    }
}
