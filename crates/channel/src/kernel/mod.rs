//! The `kernel` back end: Linux does TCP, and a driver carries operations to it and answers back.
//!
//! Two drivers, one meaning: [`uring`] and [`epoll`] implement [`Driver`] over the same
//! [`State`]. A driver decides *how* something is asked of the kernel and when; what an operation
//! means, and which completions it gives, is decided in `state.rs`, once.
//!
//! Unsafe code is allowed in this folder and nowhere else in the crate.
//!
//! Invariants
//! - A driver never calls the program. It calls `State::on_*`, which queue completions.
//! - `slot.kernel_requests` counts the requests whose last answer has not come; a driver calls
//!   `State::release` only when it is 0.
//! - Memory that the kernel was given stays where it is until the last answer to that request.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::buffer::ReadBuf;
use crate::config::{Backend, Config, DriverChoice, Placement};
use crate::error::{CreateError, DispatchError, OpError};
use crate::options::OpenOptions;
use crate::ready::Whose;
use crate::report::{DriverKind, DriverReport};
use crate::slot::FileJob;
use crate::state::State;

pub(crate) mod epoll;
pub(crate) mod fork;
pub(crate) mod pool;
pub(crate) mod steering;
pub(crate) mod sys;
pub(crate) mod uring;

/// Whether there is anything to do for who drives a channel from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// There is: ask for completions.
    Work,
    /// Not before one of the channel's descriptors is readable or so much time has passed; `None`:
    /// however much.
    Until(Option<Duration>),
}

/// How operations reach the kernel and answers come back. All slots are named by index.
pub(crate) trait Driver {
    /// A slot has its descriptor and is open: make it known to the kernel, if that is needed.
    fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()>;

    /// A stream has a read that waits and nothing unread (`State::wants_data`).
    fn start_receive(&mut self, state: &mut State, slot: u32);

    /// A message or plain descriptor has a read that waits, and none is with the kernel.
    fn start_read(&mut self, state: &mut State, slot: u32);

    /// The head of the slot's writes is to be done, and none is with the kernel: data, a
    /// disconnect or a move.
    fn start_write(&mut self, state: &mut State, slot: u32);

    /// Whether `send_silently` may be called.
    fn sends_silently(&self) -> bool {
        false
    }

    /// A quiet write to a stream that can take one at once (`Slot::can_send_at_once`), past the
    /// queue of writes. Only where `sends_silently` says so.
    fn send_silently(&mut self, _state: &mut State, _slot: u32, _bytes: ReadBuf) {}

    /// As `send_silently`, of a copy of `bytes`, which are not none. `false`: it may not be called,
    /// or there is no memory for a copy now, and nothing was done.
    #[inline]
    fn send_copied(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool {
        if !self.sends_silently() {
            return false;
        }
        let copy = ReadBuf::copied(&state.send_pool, bytes);
        let has_memory = copy.is_some();
        if let Some(copy) = copy {
            self.send_silently(state, slot, copy);
        }
        has_memory
    }

    /// The next completion, if it is an answer fetched already that needs no queue: bytes for the
    /// one read that waits for them. Asked for only when no completion is ready.
    fn next_read(&mut self, _state: &mut State) -> Option<(Whose, ReadBuf)> {
        None
    }

    /// The slot is `Starting`, with `Extra::Connecting`: connect it.
    fn start_connect(&mut self, state: &mut State, slot: u32);

    /// The connection attempt has taken too long: end it with `OpError::TimedOut`.
    fn abandon_connect(&mut self, state: &mut State, slot: u32);

    /// The slot is `Starting`: open the file.
    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions);

    /// Work at an offset of a disk file; any number may be with the kernel, in any order.
    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob);

    /// The listener's credit or the room for connections changed: accept as far as they allow.
    fn start_accept(&mut self, state: &mut State, slot: u32);

    /// Reset the connection at once; complete the `Disconnect` when done.
    fn start_reset(&mut self, state: &mut State, slot: u32);

    /// The end of a connection is awaited (`flags.end_awaited`): `State::on_end`, now or when it
    /// comes.
    fn watch_end(&mut self, state: &mut State, slot: u32);

    /// The slot was retired: take everything back from the kernel, close what the slot owns, and
    /// release the slot, now or when the last answer comes.
    fn detach(&mut self, state: &mut State, slot: u32);

    /// The slot's descriptor goes back to the program: take everything back from the kernel,
    /// before returning. Bytes that arrive meanwhile are in `slot.unread`. Blocks shortly.
    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd>;

    /// Hand over what is queued.
    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError>;

    /// Turn answers that were fetched already into completions, until there is one or no answer
    /// is left. No system call.
    fn harvest(&mut self, state: &mut State);

    /// As `harvest`, right after `next_read` had nothing while no completion was ready.
    fn harvest_rest(&mut self, state: &mut State) {
        self.harvest(state);
    }

    /// Sees to it that `wait` ends when the next of `state.timers` is due, and that
    /// `state.timers_due` is set then. `false`: the driver cannot, and whoever calls `wait` has to
    /// look after the timers by its `timeout`.
    fn watches_timers(&mut self, _state: &mut State) -> bool {
        false
    }

    /// Hand over what is queued and fetch answers; wait for the first one at most `timeout`
    /// (`None`: for ever).
    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError>;

    /// When the last turn of our own stack began, on its clock.
    fn turned_at(&self) -> Option<Duration> {
        None
    }

    /// Hand over what is queued, and get ready for sleep on `descriptors`.
    fn rest(&mut self, state: &mut State) -> Result<Rest, DispatchError>;

    /// What becomes readable when there are answers.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// A file descriptor beside a direct one. Blocks shortly.
    fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError>;

    /// Close a direct descriptor that no slot has.
    fn discard(&mut self, state: &mut State, direct: u32);

    /// The channel woke up in a fork's child: never touch the kernel's side again.
    fn abandon(&mut self);

    /// The channel ends: take all memory back from the kernel.
    fn shut_down(&mut self, state: &mut State);
}

/// Makes the driver that the configuration's back end asks for.
///
/// # Errors
/// [`CreateError`] says what is missing.
pub(crate) fn create(
    config: &Config,
    state: &mut State,
    wake: &OwnedFd,
) -> Result<(AnyDriver, DriverReport), CreateError> {
    match &config.backend {
        Backend::Kernel if config.placement != Placement::Inline => {
            Err(CreateError::Placement { placement: config.placement.name() })
        }
        Backend::Kernel => create_kernel(config, state, wake),
        #[cfg(feature = "local")]
        Backend::Local(network) => {
            let (driver, report) = crate::local::create(network, config, state, wake)?;
            Ok((AnyDriver::Local(Box::new(driver)), report))
        }
    }
}

/// Why a driver cannot be had.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The kernel or the sandbox has not what the driver needs.
    Missing(String),
    /// There is no memory or no descriptor now; later there may be.
    Exhausted {
        /// What was to be had.
        what: &'static str,
        source: io::Error,
    },
}

impl Refusal {
    /// What an error means that came of asking for `what`.
    pub(crate) fn of(what: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match is_exhausted(&source) {
            true => Self::Exhausted { what, source },
            false => Self::Missing(format!("{what}: {source}")),
        }
    }

    fn of_driver(self, driver: &'static str) -> CreateError {
        match self {
            Self::Missing(reason) => CreateError::DriverUnavailable { driver, reason },
            Self::Exhausted { what, source } => CreateError::Kernel { what, source },
        }
    }
}

/// The error says nothing about what the kernel can do, but that it has no resource now.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    const EXHAUSTED: [i32; 6] =
        [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE, libc::EAGAIN, libc::EINTR];
    error.raw_os_error().is_some_and(|errno| EXHAUSTED.contains(&errno))
}

/// Whether something worked that was tried.
///
/// # Errors
/// [`Refusal::Exhausted`] if the trial says nothing, for want of a resource.
pub(crate) fn has_worked<T>(
    what: &'static str,
    tried: io::Result<T>,
) -> Result<Option<T>, Refusal> {
    match tried {
        Ok(result) => Ok(Some(result)),
        Err(source) if is_exhausted(&source) => Err(Refusal::Exhausted { what, source }),
        Err(_) => Ok(None),
    }
}

/// What was found out once per process, or is to be found out now. Where a resource was missing
/// nothing was found out, and the next call tries again.
pub(crate) fn found_once<T: Clone>(
    found: &'static OnceLock<Result<T, String>>,
    find: impl FnOnce() -> Result<T, Refusal>,
) -> Result<&'static T, Refusal> {
    let known = match found.get() {
        Some(known) => known,
        None => {
            let answer = match find() {
                Ok(capabilities) => Ok(capabilities),
                Err(Refusal::Missing(reason)) => Err(reason),
                Err(exhausted) => return Err(exhausted),
            };
            found.get_or_init(|| answer)
        }
    };
    known.as_ref().map_err(|reason| Refusal::Missing(reason.clone()))
}

/// Chooses and makes the driver: what was asked for, or the first that a trial shows to work.
///
/// `wake` is the descriptor that [`crate::Waker`] writes to.
///
/// # Errors
/// [`CreateError::DriverUnavailable`] if a driver was forced and does not work here;
/// [`CreateError::Kernel`] if there is no memory or no descriptor for it now.
fn create_kernel(
    config: &Config,
    state: &mut State,
    wake: &OwnedFd,
) -> Result<(AnyDriver, DriverReport), CreateError> {
    match config.driver {
        DriverChoice::Uring => {
            let (driver, report) =
                uring::Uring::create(state, wake).map_err(|it| it.of_driver("uring"))?;
            Ok((AnyDriver::Uring(Box::new(driver)), report.chosen("forced by configuration")))
        }
        DriverChoice::Epoll => {
            let (driver, report) = create_epoll(state, wake)?;
            Ok((AnyDriver::Epoll(Box::new(driver)), report.chosen("forced by configuration")))
        }
        DriverChoice::Auto => match uring::Uring::create(state, wake) {
            Ok((driver, report)) => {
                let driver = AnyDriver::Uring(Box::new(driver));
                Ok((driver, report.chosen("io_uring works on this kernel")))
            }
            Err(refusal) => {
                let (driver, report) = create_epoll(state, wake)?;
                let why = match refusal {
                    Refusal::Missing(reason) => format!("io_uring does not work here: {reason}"),
                    Refusal::Exhausted { what, source } => {
                        format!("io_uring could not be had: {what}: {source}")
                    }
                };
                let driver = AnyDriver::Epoll(Box::new(driver));
                Ok((driver, report.fallen_back(DriverKind::Uring, &why)))
            }
        },
    }
}

/// Makes the epoll driver.
///
/// # Errors
/// As [`create_kernel`] if it was forced.
pub(crate) fn create_epoll(
    state: &mut State,
    wake: &OwnedFd,
) -> Result<(epoll::Epoll, DriverReport), CreateError> {
    epoll::Epoll::create(state, wake).map_err(|refusal| refusal.of_driver("epoll"))
}

/// The driver of a channel. Not `dyn`: the calls on the way of every message are short, and are
/// made in place.
pub(crate) enum AnyDriver {
    Uring(Box<uring::Uring>),
    Epoll(Box<epoll::Epoll>),
    #[cfg(feature = "local")]
    Local(Box<crate::local::Local>),
}

#[cfg(feature = "local")]
impl AnyDriver {
    /// The stack beside the kernel, if there is one.
    pub(crate) fn local(&mut self) -> Option<&mut crate::local::Local> {
        match self {
            Self::Local(local) => Some(local),
            Self::Uring(_) | Self::Epoll(_) => None,
        }
    }
}

/// The same call on whichever driver it is.
macro_rules! on_driver {
    ($self:ident, $driver:ident => $call:expr) => {
        match $self {
            Self::Uring($driver) => $call,
            Self::Epoll($driver) => $call,
            #[cfg(feature = "local")]
            Self::Local($driver) => $call,
        }
    };
}

impl Driver for AnyDriver {
    fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()> {
        on_driver!(self, driver => driver.attach(state, slot))
    }

    fn start_receive(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.start_receive(state, slot))
    }

    fn start_read(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.start_read(state, slot))
    }

    fn start_write(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.start_write(state, slot))
    }

    #[inline]
    fn sends_silently(&self) -> bool {
        on_driver!(self, driver => driver.sends_silently())
    }

    #[inline(always)]
    fn send_silently(&mut self, state: &mut State, slot: u32, bytes: ReadBuf) {
        on_driver!(self, driver => driver.send_silently(state, slot, bytes))
    }

    #[inline(always)]
    fn send_copied(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool {
        on_driver!(self, driver => driver.send_copied(state, slot, bytes))
    }

    #[inline(always)]
    fn next_read(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)> {
        on_driver!(self, driver => driver.next_read(state))
    }

    fn start_connect(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.start_connect(state, slot))
    }

    fn abandon_connect(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.abandon_connect(state, slot))
    }

    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions) {
        on_driver!(self, driver => driver.start_open(state, slot, path, options))
    }

    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        on_driver!(self, driver => driver.start_job(state, slot, job))
    }

    fn start_accept(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.start_accept(state, slot))
    }

    fn start_reset(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.start_reset(state, slot))
    }

    fn watch_end(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.watch_end(state, slot))
    }

    fn detach(&mut self, state: &mut State, slot: u32) {
        on_driver!(self, driver => driver.detach(state, slot))
    }

    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd> {
        on_driver!(self, driver => driver.withdraw(state, slot))
    }

    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError> {
        on_driver!(self, driver => driver.flush(state))
    }

    #[inline]
    fn harvest(&mut self, state: &mut State) {
        on_driver!(self, driver => driver.harvest(state))
    }

    #[inline]
    fn harvest_rest(&mut self, state: &mut State) {
        on_driver!(self, driver => driver.harvest_rest(state))
    }

    #[inline]
    fn watches_timers(&mut self, state: &mut State) -> bool {
        on_driver!(self, driver => driver.watches_timers(state))
    }

    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError> {
        on_driver!(self, driver => driver.wait(state, timeout))
    }

    #[inline]
    fn turned_at(&self) -> Option<Duration> {
        on_driver!(self, driver => driver.turned_at())
    }

    fn rest(&mut self, state: &mut State) -> Result<Rest, DispatchError> {
        on_driver!(self, driver => driver.rest(state))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        on_driver!(self, driver => driver.descriptors())
    }

    fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError> {
        on_driver!(self, driver => driver.install(state, direct))
    }

    fn discard(&mut self, state: &mut State, direct: u32) {
        on_driver!(self, driver => driver.discard(state, direct))
    }

    fn abandon(&mut self) {
        on_driver!(self, driver => driver.abandon())
    }

    fn shut_down(&mut self, state: &mut State) {
        on_driver!(self, driver => driver.shut_down(state))
    }
}
