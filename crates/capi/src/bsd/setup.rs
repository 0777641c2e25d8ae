//! From a configuration to sockets, for each thread or for all, and their end.
//!
//! Read first: `mps_init` in `man/megapipe_sockets.7`; `network.rs`.
//!
//! Invariant: what was chosen does not change as long as anybody has sockets.

use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

use channel::{Backend, Placement};
use sockets::{Config, Context, CreateError, Driving, SharedContext};

use super::context::{self, Carrier, Place, Refusal, status};
use crate::abi::mp_config;
use crate::border::caught;
use crate::calls::lifecycle::{defaults, translate};
use crate::calls::read_sized;
use crate::error::{CallError, Failure, WithCauses, print};
use crate::fork::ProcessMark;
use crate::limits::{BSD_DESCRIPTORS_FOR_SELECT, BSD_FIRST, BSD_FIRST_FOR_SELECT};
use crate::network::{self, Wanted};

/// Flag of `mps_init`: threads share all sockets.
const MPS_SHARED: c_uint = 1;
/// Flag of `mps_init`: each thread has sockets of its own.
const MPS_PER_THREAD: c_uint = 2;
/// Flag of `mps_init`: threads share all sockets, whose numbers fit into an fd_set.
const MPS_SELECT: c_uint = 3;

/// Whose sockets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    All,
    /// With numbers that fit into an fd_set.
    AllForSelect,
    Thread,
}

/// How sockets are made.
#[derive(Clone)]
struct Choice {
    whose: Whose,
    channel: channel::Config,
    /// The link of our own stack; none: the kernel does TCP and UDP.
    wanted: Option<Wanted>,
}

/// What the process has.
struct Process {
    choice: Option<Choice>,
    shared: Option<(ProcessMark, SharedContext)>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { choice: None, shared: None });

fn process() -> MutexGuard<'static, Process> {
    // Each change is one store.
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chooses how sockets are made: by what, and whether threads share them (MPS_SHARED,
/// MPS_PER_THREAD, MPS_SELECT; 0: as MEGAPIPE_SOCKETS says, else shared). A null `config` means
/// the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_init(config: *const mp_config, flags: c_uint) -> c_int {
    let init = || {
        let record = if config.is_null() {
            defaults(size_of::<mp_config>())
        } else {
            // SAFETY: the program promises a record that begins with its size; it holds nothing
            // but integers and pointers.
            unsafe { read_sized(config, "config") }?
        };
        // SAFETY: the program promises that the texts are null or end with a NUL.
        let choice = unsafe { Choice::of(&record, flags) }?;
        let mut process = process();
        if process.shared.is_some() || !Place::are_all_free() {
            return Err(CallError::InUse.into());
        }
        // Whoever can be told now is told now.
        if choice.whose != Whose::Thread {
            process.shared = Some(choice.share()?);
        }
        process.choice = Some(choice);
        Ok(())
    };
    status("mps_init", caught(init))
}

/// Closes the calling thread's sockets, or those that all threads share, and waits a moment until
/// what was written is out. Without sockets it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn mps_destroy() -> c_int {
    let destroy = || {
        context::give_up()?;
        let mut process = process();
        process.shared.take().into_iter().for_each(end);
        if Place::are_all_free() {
            process.choice = None;
        }
        Ok(())
    };
    status("mps_destroy", caught(destroy))
}

/// What was written goes out, and all is closed. In the child of a fork it is the parent's.
fn end((mark, mut shared): (ProcessMark, SharedContext)) {
    if mark.check().is_ok() {
        context::end_shared(&mut shared);
    }
}

/// The calling thread, which has none, gets sockets.
#[cold]
pub(super) fn make() -> Result<(), Refusal> {
    let made = || -> Result<_, Failure> {
        let mut process = process();
        if process.choice.is_none() {
            // SAFETY: the defaults have no texts.
            process.choice = Some(unsafe { Choice::of(&defaults(size_of::<mp_config>()), 0) }?);
        }
        let choice = process.choice.clone().ok_or(CallError::NotInitialised)?;
        if choice.whose == Whose::Thread {
            return choice.own().map(|(context, place)| (Carrier::Own(context), Some(place)));
        }
        if process.shared.is_none() {
            process.shared = Some(choice.share()?);
        }
        let (mark, shared) = process.shared.as_ref().ok_or(CallError::NotInitialised)?;
        mark.check()?;
        Ok((Carrier::Shared(shared.clone()), None))
    };
    let (carrier, place) = caught(made).inspect_err(print_once)?;
    context::settle(carrier, place)
}

/// Prints why there are no sockets, the first time only: a program that was written for Linux shows
/// errno and nothing else.
fn print_once(failure: &Failure) {
    static PRINTED: Once = Once::new();
    PRINTED.call_once(|| print(format_args!("no sockets: {}", WithCauses(failure.why()))));
}

/// Whether threads share sockets, and there are some, of which the calling thread has not heard.
#[cold]
pub(super) fn join() -> Result<bool, Refusal> {
    match &process().shared {
        Some((mark, _)) => Ok(mark.check().map(|()| true)?),
        None => Ok(false),
    }
}

impl Choice {
    /// # Safety
    /// The texts of `record` are null or C strings.
    unsafe fn of(record: &mp_config, flags: c_uint) -> Result<Self, Failure> {
        let whose = whose(flags)?;
        if record.core != -1 {
            let allowed = "must be -1: it would be one core for all threads";
            return Err(CallError::setting("config->core", record.core, allowed).into());
        }
        // SAFETY: the caller promises these.
        let wanted = unsafe { network::wanted(record) }?;
        let mut channel = translate(record)?;
        if wanted.is_some() {
            channel = channel.placement(placement(record, whose)?);
        }
        Ok(Self { whose, channel, wanted })
    }

    /// A configuration of sockets from `first` on.
    fn config(&self, backend: Backend, first: c_int) -> Config {
        let descriptors = self.channel.max_lwsockets.min(sockets::limits::DESCRIPTORS_MAX);
        Config::default()
            .channel(self.channel.clone().backend(backend))
            .descriptors(match self.whose {
                Whose::AllForSelect => descriptors.min(BSD_DESCRIPTORS_FOR_SELECT),
                Whose::All | Whose::Thread => descriptors,
            })
            .first_descriptor(first)
            .process_below_first(true)
    }

    fn made<T>(&self, make: impl Fn(Backend) -> Result<T, CreateError>) -> Result<T, Failure> {
        match &self.wanted {
            None => Ok(make(Backend::Kernel)?),
            Some(wanted) => network::on(wanted, make),
        }
    }

    fn own(&self) -> Result<(Context, Place), Failure> {
        let place = Place::take()?;
        let make = |backend| Context::create(self.config(backend, place.first()));
        Ok((self.made(make)?, place))
    }

    fn share(&self) -> Result<(ProcessMark, SharedContext), Failure> {
        let first = match self.whose {
            Whose::AllForSelect => BSD_FIRST_FOR_SELECT,
            Whose::All | Whose::Thread => BSD_FIRST,
        };
        if self.whose == Whose::AllForSelect {
            check_room(descriptors_of_process())?;
        }
        let mark = ProcessMark::current()?;
        let make = |backend| SharedContext::create(self.config(backend, first), Driving::Callers);
        let shared = self.made(make)?;
        context::set_first(first);
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: the function takes nothing and returns nothing. Where it cannot be kept,
            // what was written last is lost.
            unsafe { libc::atexit(at_exit) };
        });
        Ok((mark, shared))
    }
}

/// The process ends: what was written goes out, as the kernel's would. Threads' own sockets end
/// with their threads.
extern "C" fn at_exit() {
    if context::is_inside() {
        // A signal handler ends the process in the middle of a call.
        return;
    }
    // A panic on the way out stays here.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut process = match PROCESS.try_lock() {
            Ok(process) => process,
            Err(TryLockError::Poisoned(process)) => process.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let shared = process.shared.take();
        drop(process);
        shared.into_iter().for_each(end);
    }));
}

fn whose(flags: c_uint) -> Result<Whose, Failure> {
    match flags {
        0 => match network::variable("MEGAPIPE_SOCKETS").as_deref() {
            None | Some("shared") => Ok(Whose::All),
            Some("thread") => Ok(Whose::Thread),
            Some("select") => Ok(Whose::AllForSelect),
            Some(other) => {
                let allowed = "must be shared, thread or select";
                Err(CallError::setting("MEGAPIPE_SOCKETS", other, allowed).into())
            }
        },
        MPS_SHARED => Ok(Whose::All),
        MPS_PER_THREAD => Ok(Whose::Thread),
        MPS_SELECT => Ok(Whose::AllForSelect),
        _ => {
            let allowed = "must be 0, MPS_SHARED, MPS_PER_THREAD or MPS_SELECT";
            Err(CallError::setting("flags", flags, allowed).into())
        }
    }
}

/// Where the stack runs. Who shares sockets expects a TCP that works while nobody calls it; who
/// has sockets for each thread calls them all the time.
fn placement(record: &mp_config, whose: Whose) -> Result<Placement, Failure> {
    let default = match whose {
        Whose::All | Whose::AllForSelect => Placement::Thread,
        Whose::Thread => Placement::Inline,
    };
    Ok(network::placement_if_named(record)?.unwrap_or(default))
}

/// How many descriptors the process may have, by RLIMIT_NOFILE.
fn descriptors_of_process() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: the record is ours. Where it fails the limit stays infinite.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Numbers of the kernel's must not reach ours.
fn check_room(limit: u64) -> Result<(), Failure> {
    if limit <= BSD_FIRST_FOR_SELECT as u64 {
        return Ok(());
    }
    Err(CallError::NumbersOverlap(limit.saturating_sub(1)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_whose_sockets_are() {
        for (flags, expected) in [
            (MPS_SHARED, Whose::All),
            (MPS_PER_THREAD, Whose::Thread),
            (MPS_SELECT, Whose::AllForSelect),
        ] {
            assert_eq!(whose(flags).unwrap(), expected);
        }
        assert_eq!(whose(4).unwrap_err().why().errno(), libc::EINVAL);
    }

    #[test]
    fn a_core_is_not_for_all_threads() {
        let record = mp_config { core: 0, ..defaults(size_of::<mp_config>()) };
        // SAFETY: the defaults have no texts.
        let refused = unsafe { Choice::of(&record, MPS_PER_THREAD) }.err().unwrap();
        assert_eq!(refused.why().errno(), libc::EINVAL);
    }

    #[test]
    fn numbers_for_select_have_room_above_the_kernels() {
        assert!(check_room(512).is_ok());
        assert_eq!(check_room(513).unwrap_err().why().errno(), libc::EINVAL);
        assert_eq!(check_room(libc::RLIM_INFINITY).unwrap_err().why().errno(), libc::EINVAL);
    }
}
