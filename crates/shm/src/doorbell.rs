//! Sleeping until the other end has something, without a system call while both are busy.
//!
//! Read first: `wakeup.rs` for the flag; `eventfd(2)`; `send(2)` on `MSG_DONTWAIT`; the decision on
//! doorbells in `docs/decisions`.
//!
//! ```text
//!  sleeper                                ringer
//!  flag = 1                               publish (a ring's commit)
//!  fence                                  fence
//!  look at the ring again                 flag = 1 ?  flag = 0, write the descriptor
//!  nothing ?  poll the descriptor
//! ```
//!
//! Between threads of one process the descriptor is an eventfd. Between processes it is a socket
//! pair, because both holders of an eventfd share its `O_NONBLOCK`: one that fills the counter and
//! clears the flag would make the other's next ring block for ever. An end of a socket pair is its
//! holder's own, and each call says for itself that it will not wait.
//!
//! Invariants
//! - Ringing never blocks, raises no signal, and makes at most one system call, whatever the other
//!   end does. While neither sleeps it makes none.
//! - A sleeper that sleeps is rung by whatever was published after its last look.
//! - A ring that is not needed wakes the sleeper in vain, once.
//!
//! Beside the flag each sleeper publishes the core that it runs on, so that a ringer on the same
//! core can ring when it has nothing else to do: until then the sleeper could not run anyway. A
//! ringer that may compute for long first needs a sleeper that sleeps briefly
//! ([`Sleeper::arm_briefly`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::futex;

use crate::limits::BELL_BYTES;
use crate::region::{OutOfRegion, Part, RegionParts};
use crate::wakeup;

/// Why a doorbell was not made, or does not work any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DoorbellError {
    /// The flag does not fit into what is left of the region.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The process at the other end of the socket is gone.
    #[error("the other end is gone")]
    Gone,
}

/// The flag's place, which has a pair of cache lines of its own.
#[derive(Debug, Clone)]
struct Flag {
    part: Arc<Part>,
}

impl Flag {
    fn new(parts: &mut RegionParts) -> Result<Self, OutOfRegion> {
        Ok(Self { part: Arc::new(parts.take(BELL_BYTES)?) })
    }

    /// The flag itself.
    #[inline]
    fn atomic(&self) -> &AtomicU32 {
        self.word::<0>()
    }

    /// One more than the core that the sleeper ran on last; 0: unknown.
    #[inline]
    fn core(&self) -> &AtomicU32 {
        self.word::<1>()
    }

    #[inline]
    fn word<const INDEX: usize>(&self) -> &AtomicU32 {
        const { assert!((INDEX + 1) * size_of::<AtomicU32>() <= BELL_BYTES) };
        let word = self.part.start().as_ptr().cast::<u32>().wrapping_add(INDEX);
        // SAFETY: the start of a part, which is aligned, has `BELL_BYTES` bytes and is kept mapped;
        // the word lies within them. The part was taken for this, and whichever process writes it,
        // this program's accesses are atomic and of this size.
        unsafe { AtomicU32::from_ptr(word) }
    }
}

/// What carries a ring.
#[derive(Debug, Clone)]
enum Wire {
    /// One description for both ends: only within a process.
    Event(Arc<OwnedFd>),
    /// An end of a socket pair.
    Socket(Arc<OwnedFd>),
}

impl Wire {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Event(fd) | Self::Socket(fd) => fd.as_fd(),
        }
    }
}

/// The end that sleeps. For one thread at a time. A clone is the same end.
#[derive(Debug, Clone)]
pub struct Sleeper {
    flag: Flag,
    wire: Wire,
}

/// The end that rings. For one thread at a time. A clone rings the same sleeper, and may do so on
/// another thread.
#[derive(Debug, Clone)]
pub struct Ringer {
    flag: Flag,
    wire: Wire,
}

/// A doorbell between two threads of this process; its flag is the next part of a region.
///
/// # Errors
/// [`DoorbellError::Region`], [`DoorbellError::System`].
pub fn doorbell(parts: &mut RegionParts) -> Result<(Sleeper, Ringer), DoorbellError> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| DoorbellError::System { call: "eventfd", errno })?;
    let wire = Wire::Event(Arc::new(fd));
    let flag = Flag::new(parts)?;
    Ok((Sleeper { flag: flag.clone(), wire: wire.clone() }, Ringer { flag, wire }))
}

/// The two ends of what carries rings between processes, in both directions: one to keep, one to
/// hand over. Each process makes its [`Sleeper`] and its [`Ringer`] of the end that it has.
///
/// # Errors
/// [`DoorbellError::System`].
pub fn bell_sockets() -> Result<(OwnedFd, OwnedFd), DoorbellError> {
    let flags = SocketFlags::CLOEXEC;
    net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| DoorbellError::System { call: "socketpair", errno })
}

/// Most bytes, so most rings in vain, that one look at a socket clears.
const DRAIN_BYTES: usize = 256;

impl Sleeper {
    /// A sleeper that the process at the other end of `socket` rings. Its flag is the next part of
    /// a region.
    ///
    /// # Errors
    /// [`DoorbellError::Region`].
    pub fn over_socket(
        parts: &mut RegionParts,
        socket: Arc<OwnedFd>,
    ) -> Result<Self, DoorbellError> {
        Ok(Self { flag: Flag::new(parts)?, wire: Wire::Socket(socket) })
    }

    /// Sleeps until rung, or until `timeout` has passed (`None`: for ever); but not at all if
    /// `has_work`, which is asked after the wish to be rung is known. `true`: there may be work.
    ///
    /// # Errors
    /// That of `has_work`; [`DoorbellError::Gone`], [`DoorbellError::System`].
    pub fn sleep<E: From<DoorbellError>>(
        &self,
        timeout: Option<Duration>,
        has_work: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        self.arm();
        let outcome = match has_work() {
            Ok(false) => self.wait(timeout).map_err(E::from),
            other => other,
        };
        self.disarm();
        outcome
    }

    /// Asks to be rung. Look for work after it; then poll [`Sleeper::fd`], or
    /// [`Sleeper::disarm`].
    #[inline]
    pub fn arm(&self) {
        wakeup::arm(self.flag.atomic(), wakeup::AT_DESCRIPTOR);
    }

    /// As [`Sleeper::arm`], for [`Sleeper::sleep_at_flag`]. Only between threads of one process.
    #[inline]
    pub fn arm_at_flag(&self) {
        debug_assert!(matches!(self.wire, Wire::Event(_)), "a futex of this process");
        wakeup::arm(self.flag.atomic(), wakeup::AT_FLAG);
    }

    /// As [`Sleeper::arm`], by a sleeper that looks for work again after a short time: a ringer on
    /// its core may leave the ring out ([`Ringer::ring_from`]).
    #[inline]
    pub fn arm_briefly(&self) {
        wakeup::arm(self.flag.atomic(), wakeup::BRIEFLY);
    }

    /// After [`Sleeper::arm_at_flag`] and a look for work: sleeps until rung, or until `timeout`
    /// has passed (`None`: for ever). There is nothing to clear afterwards. Costs less than the
    /// descriptor, for a thread that waits for other descriptors too.
    ///
    /// # Errors
    /// [`Errno::INTR`]: a signal came.
    pub fn sleep_at_flag(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        // A time beyond what the kernel can count is as good as for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let flag = self.flag.atomic();
        match futex::wait(flag, futex::Flags::PRIVATE, wakeup::AT_FLAG, timeout.as_ref()) {
            Err(Errno::INTR) => Err(Errno::INTR),
            // Rung, or rung before, or the time is over.
            _ => Ok(()),
        }
    }

    /// Takes the wish to be rung back.
    #[inline]
    pub fn disarm(&self) {
        wakeup::disarm(self.flag.atomic());
    }

    /// Publishes the core that this end runs on, for [`Ringer::core`].
    pub fn note_core(&self, core: u32) {
        // Relaxed: a hint, which orders nothing.
        self.flag.core().store(core.wrapping_add(1), Ordering::Relaxed);
    }

    /// Marks this end as ended, for [`Ringer::has_ended`]. It cannot sleep any more.
    pub fn end(&self) {
        wakeup::end(self.flag.atomic());
    }

    /// Readable when rung.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wire.fd()
    }

    /// Clears rings that have come, so that the descriptor is no longer readable. Does not block.
    ///
    /// # Errors
    /// [`DoorbellError::Gone`], [`DoorbellError::System`].
    pub fn clear(&self) -> Result<(), DoorbellError> {
        let read = match &self.wire {
            Wire::Event(fd) => rustix::io::read(fd, &mut [0u8; 8]),
            Wire::Socket(fd) => {
                let flags = RecvFlags::DONTWAIT;
                match net::recv(fd, &mut [0u8; DRAIN_BYTES], flags) {
                    Ok((0, _)) => return Err(DoorbellError::Gone),
                    other => other.map(|(len, _)| len),
                }
            }
        };
        match read {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(Errno::CONNRESET) => Err(DoorbellError::Gone),
            Err(errno) => Err(DoorbellError::System { call: "read", errno }),
        }
    }

    /// Whether the process at the other end of the socket is gone. Rings that came stay.
    #[must_use]
    pub fn is_other_gone(&self) -> bool {
        let fd = self.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::empty())];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut fds, Some(&zero));
        polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, DoorbellError> {
        // A time beyond what the kernel can count is as good as for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let fd = self.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Ok(false),
            Ok(_) => self.clear().map(|()| true),
            // A signal: the caller looks whether there is anything to do.
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(DoorbellError::System { call: "poll", errno }),
        }
    }
}

impl Ringer {
    /// A ringer for the process at the other end of `socket`. Its flag is the next part of a
    /// region.
    ///
    /// # Errors
    /// [`DoorbellError::Region`].
    pub fn over_socket(
        parts: &mut RegionParts,
        socket: Arc<OwnedFd>,
    ) -> Result<Self, DoorbellError> {
        Ok(Self { flag: Flag::new(parts)?, wire: Wire::Socket(socket) })
    }

    /// Wakes the other end if it sleeps. Call it after publishing. Answers whether it was rung.
    ///
    /// # Errors
    /// [`DoorbellError::Gone`], [`DoorbellError::System`].
    #[inline]
    pub fn ring(&self) -> Result<bool, DoorbellError> {
        match wakeup::take_wish(self.flag.atomic()) {
            None => Ok(false),
            Some(place) => self.ring_at(place).map(|()| true),
        }
    }

    /// As [`Ringer::ring`], by a caller that goes on: a sleeper that sleeps briefly on the caller's
    /// own core ([`Sleeper::arm_briefly`]) is not rung. The caller rings it when it has nothing
    /// more to do. `core` is asked only if it matters.
    ///
    /// # Errors
    /// As [`Ringer::ring`].
    #[inline]
    pub fn ring_from(&self, core: impl FnOnce() -> u32) -> Result<bool, DoorbellError> {
        let may_wait = || self.core() == Some(core());
        match wakeup::take_wish_unless(self.flag.atomic(), may_wait) {
            None => Ok(false),
            Some(place) => self.ring_at(place).map(|()| true),
        }
    }

    /// Whether the sleeper has ended ([`Sleeper::end`]). What it published before is visible then.
    #[inline]
    #[must_use]
    pub fn has_ended(&self) -> bool {
        wakeup::has_ended(self.flag.atomic())
    }

    /// The other end sleeps, or is about to. A hint, unless the caller has armed a doorbell of its
    /// own before (of two who do so one sees the other), or has entered a lock that the other end
    /// enters after arming.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        wakeup::wish(self.flag.atomic()) != 0
    }

    /// The same of the flag, see [`Sleeper::sleep_at_flag`].
    #[must_use]
    pub fn is_awaited_at_flag(&self) -> bool {
        wakeup::wish(self.flag.atomic()) == wakeup::AT_FLAG
    }

    /// The core that the sleeper has published ([`Sleeper::note_core`]). A hint: the thread may run
    /// on another one by now, and another process may write anything.
    #[must_use]
    pub fn core(&self) -> Option<u32> {
        // Relaxed: as in `note_core`.
        self.flag.core().load(Ordering::Relaxed).checked_sub(1)
    }

    #[cold]
    fn ring_at(&self, place: u32) -> Result<(), DoorbellError> {
        match self.wire {
            Wire::Event(_) if place == wakeup::AT_FLAG => {
                let woken = futex::wake(self.flag.atomic(), futex::Flags::PRIVATE, 1);
                debug_assert!(woken.is_ok(), "{woken:?}");
                Ok(())
            }
            _ => self.write(),
        }
    }

    fn write(&self) -> Result<(), DoorbellError> {
        let written = match &self.wire {
            Wire::Event(fd) => rustix::io::write(fd, &1u64.to_ne_bytes()),
            Wire::Socket(fd) => net::send(fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
        match written {
            // Full of unread rings: the other end has enough to wake it.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(DoorbellError::Gone),
            Err(errno) => Err(DoorbellError::System { call: "write", errno }),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
