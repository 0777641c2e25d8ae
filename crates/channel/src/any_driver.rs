//! The driver of a channel: which one is chosen, and calls to whichever it is.
//!
//! No other module knows all drivers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::buffer::ReadBuf;
use crate::completion_queue::Whose;
use crate::config::{Backend, Config, DriverChoice, Placement};
use crate::driver::{Driver, Park};
use crate::error::{CreateError, DispatchError, OpError};
use crate::kernel::epoll::Epoll;
use crate::kernel::uring::Uring;
use crate::kernel::{Refusal, create_epoll};
#[cfg(feature = "local")]
use crate::local::{AnyLocal, Inline, Local, LocalNetwork, Remote, SharedThread};
use crate::options::OpenOptions;
use crate::report::{DriverKind, DriverReport};
use crate::slot::FileJob;
use crate::state::State;

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
        Backend::Local(network) => create_local(network, config, state, wake),
        #[cfg(feature = "local")]
        Backend::Service(_) if config.placement != Placement::Inline => {
            Err(CreateError::Placement { placement: config.placement.name() })
        }
        #[cfg(feature = "local")]
        Backend::Service(address) => {
            match Local::attach(address, config, state, wake) {
                Ok((driver, report)) => Ok((AnyDriver::Remote(Box::new(driver)), report)),
                Err(CreateError::Service(why)) if config.fall_back => {
                    // The slots that are the kernel's say so.
                    state.config.backend = Backend::Kernel;
                    let (driver, report) = create_kernel(config, state, wake)?;
                    Ok((driver, report.without_service(why.to_string())))
                }
                Err(error) => Err(error),
            }
        }
    }
}

/// Makes the driver over our own stack, with its server where the configuration places it.
///
/// # Errors
/// As [`Local::create`].
#[cfg(feature = "local")]
fn create_local(
    network: &LocalNetwork,
    config: &Config,
    state: &mut State,
    wake: &OwnedFd,
) -> Result<(AnyDriver, DriverReport), CreateError> {
    match config.placement {
        Placement::Inline => {
            let (driver, report) = Local::create(network, config, None, state, wake)?;
            Ok((AnyDriver::Inline(Box::new(driver)), report))
        }
        Placement::Thread => {
            let (driver, report) = Local::create(network, config, None, state, wake)?;
            Ok((AnyDriver::SharedThread(Box::new(driver)), report))
        }
        Placement::Core(core) => {
            let (driver, report) = Local::create(network, config, core, state, wake)?;
            Ok((AnyDriver::Remote(Box::new(driver)), report))
        }
    }
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
                Uring::create(state, wake).map_err(|it| it.of_driver("uring"))?;
            Ok((AnyDriver::Uring(Box::new(driver)), report.chosen("forced by configuration")))
        }
        DriverChoice::Epoll => {
            let (driver, report) = create_epoll(state, wake)?;
            Ok((AnyDriver::Epoll(Box::new(driver)), report.chosen("forced by configuration")))
        }
        DriverChoice::Auto => match Uring::create(state, wake) {
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

/// The driver of a channel. Not `dyn`: the calls on the way of every message are short, and are
/// made in place.
pub(crate) enum AnyDriver {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
    #[cfg(feature = "local")]
    Inline(Box<Local<Inline>>),
    #[cfg(feature = "local")]
    SharedThread(Box<Local<SharedThread>>),
    #[cfg(feature = "local")]
    Remote(Box<Local<Remote>>),
}

#[cfg(feature = "local")]
impl AnyDriver {
    /// The stack beside the kernel, if there is one.
    pub(crate) fn local(&mut self) -> Option<&mut AnyLocal> {
        match self {
            Self::Inline(local) => Some(&mut **local),
            Self::SharedThread(local) => Some(&mut **local),
            Self::Remote(local) => Some(&mut **local),
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
            Self::Inline($driver) => $call,
            #[cfg(feature = "local")]
            Self::SharedThread($driver) => $call,
            #[cfg(feature = "local")]
            Self::Remote($driver) => $call,
        }
    };
}

/// Methods of [`Driver`] that call the same one of whichever driver it is.
macro_rules! forward_to_driver {
    ($($(#[$meta:meta])? fn $name:ident(&mut $self:ident $(, $arg:ident: $type:ty)*)
        $(-> $result:ty)?;)*) => {
        $($(#[$meta])?
        fn $name(&mut $self $(, $arg: $type)*) $(-> $result)? {
            on_driver!($self, driver => driver.$name($($arg),*))
        })*
    };
}

impl Driver for AnyDriver {
    forward_to_driver! {
        fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()>;
        fn start_receive(&mut self, state: &mut State, slot: u32);
        fn start_read(&mut self, state: &mut State, slot: u32);
        fn start_write(&mut self, state: &mut State, slot: u32);
        #[inline(always)]
        fn send_silently(&mut self, state: &mut State, slot: u32, bytes: ReadBuf);
        #[inline(always)]
        fn send_copied(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool;
        #[inline(always)]
        fn next_answer(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)>;
        fn start_connect(&mut self, state: &mut State, slot: u32);
        fn abandon_connect(&mut self, state: &mut State, slot: u32);
        fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions);
        fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob);
        fn start_accept(&mut self, state: &mut State, slot: u32);
        fn start_reset(&mut self, state: &mut State, slot: u32);
        fn watch_end(&mut self, state: &mut State, slot: u32);
        fn detach(&mut self, state: &mut State, slot: u32);
        fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd>;
        fn flush(&mut self, state: &mut State) -> Result<(), DispatchError>;
        #[inline]
        fn harvest(&mut self, state: &mut State);
        #[inline]
        fn watches_timers(&mut self, state: &mut State) -> bool;
        fn wait(&mut self, state: &mut State, timeout: Option<Duration>)
            -> Result<(), DispatchError>;
        fn park(&mut self, state: &mut State) -> Result<Park, DispatchError>;
        fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError>;
        fn discard(&mut self, state: &mut State, direct: u32);
        fn abandon(&mut self);
        fn shut_down(&mut self, state: &mut State);
    }

    #[inline]
    fn sends_silently(&self) -> bool {
        on_driver!(self, driver => driver.sends_silently())
    }

    #[inline]
    fn polled_at(&self) -> Option<Duration> {
        on_driver!(self, driver => driver.polled_at())
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        on_driver!(self, driver => driver.descriptors())
    }
}
