//! Creates sockets from a configuration, for each thread or for all, and ends them.
//!
//! Read first: `mps_init` in `man/megapipe_sockets.7`; `network.rs`.
//!
//! Invariant: the choice does not change while any thread has sockets.

use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

use channel::{Backend, Placement};
use sockets::{Config, Context, CreateError, Driving, SharedContext};

use super::outcome::{SocketCallError, status};
use super::thread::{self, DescriptorRange, ThreadSockets};
use crate::abi::mp_config;
use crate::border::caught;
use crate::calls::lifecycle::{defaults, translate};
use crate::calls::read_sized;
use crate::error::{CallError, CallFailure, WithCauses, print};
use crate::fork::ProcessMark;
use crate::limits::{BSD_DESCRIPTORS_FOR_SELECT, BSD_FIRST, BSD_FIRST_FOR_SELECT};
use crate::network::{self, StackChoice};

/// Flag of `mps_init`: threads share all sockets.
const MPS_SHARED: c_uint = 1;
/// Flag of `mps_init`: each thread has sockets of its own.
const MPS_PER_THREAD: c_uint = 2;
/// Flag of `mps_init`: threads share all sockets, sharing numbers fit into an fd_set.
const MPS_SELECT: c_uint = 3;

/// Sharing of sockets between threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketSharing {
    All,
    /// With descriptors that fit into an fd_set.
    AllForSelect,
    Thread,
}

/// The options of the process's sockets.
#[derive(Clone)]
struct Choice {
    sharing: SocketSharing,
    channel: channel::Config,
    /// The link of the library's own stack; `None`: the kernel does TCP and UDP.
    wanted: Option<StackChoice>,
}

/// The process's choice and its shared sockets.
struct Process {
    choice: Option<Choice>,
    shared: Option<(ProcessMark, SharedContext)>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { choice: None, shared: None });

fn process() -> MutexGuard<'static, Process> {
    // Each change is one store.
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chooses the back end of sockets, and whether threads share them (MPS_SHARED, MPS_PER_THREAD,
/// MPS_SELECT; 0: the value of MEGAPIPE_SOCKETS, else shared). A null `config` means the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mps_init(config: *const mp_config, flags: c_uint) -> c_int {
    let init = || {
        let record = if config.is_null() {
            defaults(size_of::<mp_config>())
        } else {
            // SAFETY: the program promises a record that begins with its size; it holds only
            // integers and pointers.
            unsafe { read_sized(config, "config") }?
        };
        // SAFETY: the program promises that the texts are null or end with a NUL.
        let choice = unsafe { Choice::of(&record, flags) }?;
        let mut process = process();
        if process.shared.is_some() || !DescriptorRange::are_all_free() {
            return Err(CallError::InUse.into());
        }
        // Reports errors now as far as possible.
        if choice.sharing != SocketSharing::Thread {
            process.shared = Some(choice.share()?);
        }
        process.choice = Some(choice);
        Ok(())
    };
    status("mps_init", caught(init))
}

/// Closes the calling thread's sockets, or those that all threads share, and waits briefly until
/// written bytes are sent. Does nothing without sockets.
#[unsafe(no_mangle)]
pub extern "C" fn mps_destroy() -> c_int {
    let destroy = || {
        thread::give_up()?;
        let mut process = process();
        process.shared.take().into_iter().for_each(end);
        if DescriptorRange::are_all_free() {
            process.choice = None;
        }
        Ok(())
    };
    status("mps_destroy", caught(destroy))
}

/// Sends what was written and closes everything. In the child of a fork the parent does it.
fn end((mark, mut shared): (ProcessMark, SharedContext)) {
    if mark.check().is_ok() {
        thread::end_shared(&mut shared);
    }
}

/// Creates sockets for the calling thread, which has none.
#[cold]
pub(super) fn make() -> Result<(), SocketCallError> {
    let made = || -> Result<_, CallFailure> {
        let mut process = process();
        if process.choice.is_none() {
            // SAFETY: the defaults have no strings.
            process.choice = Some(unsafe { Choice::of(&defaults(size_of::<mp_config>()), 0) }?);
        }
        let choice = process.choice.clone().ok_or(CallError::NotInitialised)?;
        if choice.sharing == SocketSharing::Thread {
            return choice.own().map(|(context, place)| (ThreadSockets::Own(context), Some(place)));
        }
        if process.shared.is_none() {
            process.shared = Some(choice.share()?);
        }
        let (mark, shared) = process.shared.as_ref().ok_or(CallError::NotInitialised)?;
        mark.check()?;
        Ok((ThreadSockets::Shared(shared.clone()), None))
    };
    let (carrier, place) = caught(made).inspect_err(print_once)?;
    thread::set_sockets(carrier, place)
}

/// Prints the cause once per process: a program that was written for Linux reports only errno.
fn print_once(failure: &CallFailure) {
    static PRINTED: Once = Once::new();
    PRINTED.call_once(|| print(format_args!("no sockets: {}", WithCauses(failure.why()))));
}

/// Joins the shared sockets, if there are some; returns whether it did.
#[cold]
pub(super) fn join() -> Result<bool, SocketCallError> {
    match &process().shared {
        Some((mark, _)) => Ok(mark.check().map(|()| true)?),
        None => Ok(false),
    }
}

impl Choice {
    /// # Safety
    /// The texts of `record` are null or C strings.
    unsafe fn of(record: &mp_config, flags: c_uint) -> Result<Self, CallFailure> {
        let sharing = sharing(flags)?;
        if record.core != -1 {
            let allowed = "must be -1: it would be one core for all threads";
            return Err(CallError::setting("config->core", record.core, allowed).into());
        }
        // SAFETY: the caller promises these.
        let wanted = unsafe { network::wanted(record) }?;
        let mut channel = translate(record)?;
        if wanted.as_ref().is_some_and(StackChoice::has_placement) {
            channel = channel.placement(placement(record, sharing)?);
        }
        Ok(Self { sharing, channel, wanted })
    }

    /// A configuration of sockets with descriptors from `first` on.
    fn config(&self, backend: Backend, first: c_int) -> Config {
        let descriptors = self.channel.max_lwsockets.min(sockets::limits::DESCRIPTORS_MAX);
        Config::default()
            .channel(self.channel.clone().backend(backend))
            .descriptors(match self.sharing {
                SocketSharing::AllForSelect => descriptors.min(BSD_DESCRIPTORS_FOR_SELECT),
                SocketSharing::All | SocketSharing::Thread => descriptors,
            })
            .first_descriptor(first)
            .process_below_first(true)
    }

    fn made<T>(&self, make: impl Fn(Backend) -> Result<T, CreateError>) -> Result<T, CallFailure> {
        match &self.wanted {
            None => Ok(make(Backend::Kernel)?),
            Some(wanted) => network::on_stack(wanted, make),
        }
    }

    fn own(&self) -> Result<(Context, DescriptorRange), CallFailure> {
        let place = DescriptorRange::take()?;
        let make = |backend| {
            let context = Context::create(self.config(backend, place.first()))?;
            network::note_fall_back(context.report());
            Ok(context)
        };
        Ok((self.made(make)?, place))
    }

    fn share(&self) -> Result<(ProcessMark, SharedContext), CallFailure> {
        let first = match self.sharing {
            SocketSharing::AllForSelect => BSD_FIRST_FOR_SELECT,
            SocketSharing::All | SocketSharing::Thread => BSD_FIRST,
        };
        if self.sharing == SocketSharing::AllForSelect {
            check_room(descriptors_of_process())?;
        }
        let mark = ProcessMark::current()?;
        let make = |backend| {
            let shared = SharedContext::create(self.config(backend, first), Driving::Callers)?;
            network::note_fall_back(shared.report());
            Ok(shared)
        };
        let shared = self.made(make)?;
        thread::set_first(first);
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: the function takes nothing and returns nothing. If it cannot be registered,
            // bytes written last are lost.
            unsafe { libc::atexit(at_exit) };
        });
        Ok((mark, shared))
    }
}

/// Runs at the end of the process: sends written bytes, as the kernel would. Threads' own sockets
/// end with their threads.
extern "C" fn at_exit() {
    if thread::is_inside() {
        // A signal handler ends the process inside a call.
        return;
    }
    // A panic here is caught.
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

fn sharing(flags: c_uint) -> Result<SocketSharing, CallFailure> {
    match flags {
        0 => match network::variable("MEGAPIPE_SOCKETS").as_deref() {
            None | Some("shared") => Ok(SocketSharing::All),
            Some("thread") => Ok(SocketSharing::Thread),
            Some("select") => Ok(SocketSharing::AllForSelect),
            Some(other) => {
                let allowed = "must be shared, thread or select";
                Err(CallError::setting("MEGAPIPE_SOCKETS", other, allowed).into())
            }
        },
        MPS_SHARED => Ok(SocketSharing::All),
        MPS_PER_THREAD => Ok(SocketSharing::Thread),
        MPS_SELECT => Ok(SocketSharing::AllForSelect),
        _ => {
            let allowed = "must be 0, MPS_SHARED, MPS_PER_THREAD or MPS_SELECT";
            Err(CallError::setting("flags", flags, allowed).into())
        }
    }
}

/// The placement of the stack. Shared sockets need a TCP that runs without calls; a thread with its
/// own sockets calls often.
fn placement(record: &mp_config, sharing: SocketSharing) -> Result<Placement, CallFailure> {
    let default = match sharing {
        SocketSharing::All | SocketSharing::AllForSelect => Placement::Thread,
        SocketSharing::Thread => Placement::Inline,
    };
    Ok(network::placement_if_named(record)?.unwrap_or(default))
}

/// Most descriptors that the process may have, by RLIMIT_NOFILE.
fn descriptors_of_process() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: the record is a local. On failure the limit stays infinite.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Descriptors of the kernel must stay below the library's.
fn check_room(limit: u64) -> Result<(), CallFailure> {
    if limit <= BSD_FIRST_FOR_SELECT as u64 {
        return Ok(());
    }
    Err(CallError::NumbersOverlap(limit.saturating_sub(1)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_select_sharing() {
        for (flags, expected) in [
            (MPS_SHARED, SocketSharing::All),
            (MPS_PER_THREAD, SocketSharing::Thread),
            (MPS_SELECT, SocketSharing::AllForSelect),
        ] {
            assert_eq!(sharing(flags).unwrap(), expected);
        }
        assert_eq!(sharing(4).unwrap_err().why().errno(), libc::EINVAL);
    }

    #[test]
    fn core_is_rejected_for_all_threads() {
        let record = mp_config { core: 0, ..defaults(size_of::<mp_config>()) };
        // SAFETY: the defaults have no strings.
        let refused = unsafe { Choice::of(&record, MPS_PER_THREAD) }.err().unwrap();
        assert_eq!(refused.why().errno(), libc::EINVAL);
    }

    #[test]
    fn select_descriptors_lie_above_the_kernels() {
        assert!(check_room(512).is_ok());
        assert_eq!(check_room(513).unwrap_err().why().errno(), libc::EINVAL);
        assert_eq!(check_room(libc::RLIM_INFINITY).unwrap_err().why().errno(), libc::EINVAL);
    }
}
