//! The `kernel` back end: Linux does TCP, and a driver carries operations to it and answers back.
//!
//! Two drivers, one meaning: [`uring`] and [`epoll`] implement [`crate::driver::Driver`] over the
//! same [`State`]. A driver decides *how* something is asked of the kernel and when; what an
//! operation means, and which completions it gives, is decided in `state.rs`, once.
//!
//! Unsafe code is allowed in this folder and nowhere else in the crate.
//!
//! Invariants
//! - A driver never calls the program. It calls `State::on_*`, which queue completions.
//! - `slot.kernel_requests` counts the requests whose last answer has not come; a driver calls
//!   `State::release` only when it is 0.
//! - Memory that the kernel was given stays where it is until the last answer to that request.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use crate::error::CreateError;
use crate::report::DriverReport;
use crate::state::State;

pub(crate) mod epoll;
pub(crate) mod fork;
pub(crate) mod movable;
pub(crate) mod pool;
pub(crate) mod steering;
pub(crate) mod sys;
pub(crate) mod uring;

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

    /// The error of a channel whose driver was refused.
    pub(crate) fn of_driver(self, driver: &'static str) -> CreateError {
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

/// Makes the epoll driver.
///
/// # Errors
/// As [`Refusal::of_driver`].
pub(crate) fn create_epoll(
    state: &mut State,
    wake: &OwnedFd,
) -> Result<(epoll::Epoll, DriverReport), CreateError> {
    epoll::Epoll::create(state, wake).map_err(|refusal| refusal.of_driver("epoll"))
}
