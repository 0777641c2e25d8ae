//! The object behind `mp_channel_t *`, and the only way to what is inside it.
//!
//! Every call of the library passes through [`with_channel`] or [`with_handle`], which see to it
//! that no mistake of the program becomes undefined behaviour in Rust and no panic leaves it:
//!
//! 1. a null pointer, another thread, a handle of no channel: an error;
//! 2. a call in the child of a fork: an error;
//! 3. a call from a signal handler that interrupted a call on the same channel: an error;
//! 4. a panic: caught; the channel is broken from then on, which every later call reports;
//! 5. errno: left alone by what succeeds.
//!
//! What cannot be seen from here: a pointer to a channel that was destroyed. That is use after
//! free, as with `FILE *`.
//!
//! Read first: `guarded.rs`, which does 3 to 5.
//!
//! Invariant: `owner`, `waker` and `process` never change; other threads read nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use channel::{Channel, Completion, Handle, Waker};

use crate::abi::{mp_channel_t, mp_handle_t};
use crate::error::{CallError, Errno, Failure};
use crate::event::Events;
use crate::fork::ProcessMark;
use crate::guarded::Guarded;
use crate::registry::{self, ThreadNumber};

/// What is behind `mp_channel_t *`; its inside is the library's.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct mp_channel {
    owner: ThreadNumber,
    waker: Waker,
    process: ProcessMark,
    tag: u16,
    inner: Guarded<Inner>,
}

/// What the calls work on.
pub(crate) struct Inner {
    pub(crate) channel: Channel,
    pub(crate) events: Events,
    /// Completions on their way into the array of `mp_dispatch_many()`.
    pub(crate) batch: Vec<Completion>,
}

impl mp_channel {
    /// A new object for the calling thread's channel, entered in the registry.
    pub(crate) fn create(channel: Channel) -> Result<*mut Self, Failure> {
        let tag = channel.tag();
        let object = Box::into_raw(Box::new(Self {
            owner: ThreadNumber::current(),
            waker: channel.waker(),
            process: ProcessMark::current()?,
            tag,
            inner: Guarded::new(Inner { channel, events: Events::default(), batch: Vec::new() }),
        }));
        if registry::enter(tag, object) {
            return Ok(object);
        }
        // SAFETY: the pointer came from `Box::into_raw` above and nobody else has seen it.
        drop(unsafe { Box::from_raw(object) });
        Err(CallError::TooManyChannels.into())
    }

    /// Ends the object's life.
    ///
    /// # Safety
    /// `object` is null or came from [`Self::create`] and was not destroyed.
    pub(crate) unsafe fn destroy(object: *mut Self) -> Result<(), Failure> {
        // SAFETY: the caller keeps the contract.
        let shared = unsafe { owned(object)? };
        if shared.inner.is_busy() {
            return Err(CallError::Reentered.into());
        }
        let errno = Errno::now();
        registry::leave(shared.tag);
        // SAFETY: the pointer came from `Box::into_raw`, and `shared` is not used any more.
        let object = unsafe { Box::from_raw(object) };
        // A channel that panics on its way out is left to the process's end.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(object)));
        errno.put_back();
        dropped.map_err(|_| CallError::Broken.into())
    }
}

/// Runs `work` inside the channel.
///
/// # Safety
/// `object` is null or came from [`mp_channel::create`] and was not destroyed.
#[inline]
pub(crate) unsafe fn with_channel<T>(
    object: *mut mp_channel_t,
    work: impl FnOnce(&mut Inner) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // SAFETY: the caller keeps the contract.
    enter(unsafe { owned(object)? }, work)
}

/// Runs `work` inside the channel that the handle belongs to.
#[inline]
pub(crate) fn with_handle<T>(
    handle: mp_handle_t,
    work: impl FnOnce(&mut Inner, Handle) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let handle = Handle::from_bits(handle);
    let object = registry::find(handle.channel_tag())?;
    // SAFETY: the registry holds the channels of this thread that are not destroyed, and only
    // this thread destroys them.
    let object = unsafe { &*object };
    enter(object, |inner| work(inner, handle))
}

/// Wakes a channel from any thread.
///
/// # Safety
/// `object` is null or came from [`mp_channel::create`] and is not destroyed before this returns.
pub(crate) unsafe fn wake(object: *const mp_channel_t) -> Result<(), Failure> {
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
unsafe fn owned<'a>(object: *const mp_channel_t) -> Result<&'a mp_channel, Failure> {
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
    work: impl FnOnce(&mut Inner) -> Result<T, Failure>,
) -> Result<T, Failure> {
    object.process.check()?;
    object.inner.enter(work)
}

#[cfg(test)]
mod tests {
    use channel::Config;

    use super::*;

    fn errno_of<T>(result: Result<T, Failure>) -> i32 {
        result.err().map_or(0, |failure| failure.why().errno())
    }

    #[test]
    fn a_panic_stops_at_the_border_and_breaks_the_channel() {
        let object = mp_channel::create(Channel::create(Config::default()).unwrap()).unwrap();
        // SAFETY: the object is live until it is destroyed below.
        let enter =
            |work: fn(&mut Inner) -> Result<(), Failure>| unsafe { with_channel(object, work) };
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
    fn what_succeeds_leaves_errno_alone() {
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
    fn a_call_inside_a_call_is_an_error() {
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
