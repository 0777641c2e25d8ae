//! The stack of the process: started by the first call that needs it, entered by every call on its
//! sockets, ended when the process ends.
//!
//! Read first: `megapipe_sockets::SharedContext`; `records.rs`.
//!
//! Invariants
//! - The context is never freed: calls of other threads may be inside when the process ends.
//! - The child of a fork forgets the context of its parent and never touches its memory.
//! - A call from the handler of a fault inside the library, or from a handler that runs while a
//!   stack of the back end `local` starts, is refused (EDEADLK). Other handlers wait until they can
//!   make calls (`handlers.rs`).

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use megapipe::{AwaitedListener, Backend, ErrorChain, Placement};
use megapipe_sockets::{
    Attempt, Bsd, CallRunner, Config, Driving, Error, SharedContext, SignalHooks, Sockets,
};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::foreign_children;
use crate::handlers;
use crate::inheritance;
use crate::link;
use crate::numbers::{self, NumberEntry};
use crate::raw;
use crate::refusals::{self, CallRefusal};
use crate::report;
use crate::settings::{KernelUse, PreloadBackend, PreloadSettings};

/// A thread has looked up the stack's number of a descriptor, and another one closes it: so many
/// closes later that number may be another socket's.
const REUSE_AFTER: u32 = 4096;

/// Time that the end of the process waits for the peers to acknowledge what was written.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time that the end of a process may take: calls of other threads wait for it, and a child for
/// the end of its parent. One that ends by exit(3) may have handlers that wait for such a thread.
const END_PATIENCE: Duration = Duration::from_secs(4);

/// The settings; null: the library passes everything through.
static SETTINGS: AtomicPtr<PreloadSettings> = AtomicPtr::new(std::ptr::null_mut());

/// The stack's sockets; null: it has not started.
static CONTEXT: AtomicPtr<SharedContext> = AtomicPtr::new(std::ptr::null_mut());

/// The thread that ends the process and has closed all sockets; 0: none.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// The parent process whose stack this process has inherited; 0: none.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// Whether the stack can start, as one of the following.
static START: AtomicU8 = AtomicU8::new(MAY_START);
/// The next call that needs it starts it.
const MAY_START: u8 = 0;
/// The parent process ([`HOLDER`]) has it, on the back end `local`, until it ends.
const IN_PARENT: u8 = 1;
/// It could not start, and a line has named the reason.
const IS_DOWN: u8 = 2;

/// Installs the settings: the library is active from now on.
pub(crate) fn activate(settings: PreloadSettings) {
    foreign_children::own_tables();
    megapipe_sockets::set_signal_hooks(SignalHooks {
        restart: handlers::restart,
        fall_asleep: handlers::fall_asleep,
        wake_up: handlers::wake_up,
    });
    report::open(settings.report.as_deref());
    if report::is_on() {
        handlers::watch_end();
        // SAFETY: the function takes nothing and returns nothing. If it cannot be registered, the
        // report has no end.
        unsafe { libc::atexit(report_at_exit) };
    }
    link::inherit_turn(std::env::var(link::TURN_VARIABLE).ok());
    if let Some(token) = settings.token.filter(|token| is_token(*token)) {
        numbers::set(token, NumberEntry::Own);
    }
    SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
}

/// Returns the settings, if the library is active.
#[inline]
pub(crate) fn settings() -> Option<&'static PreloadSettings> {
    let settings = SETTINGS.load(Ordering::Acquire);
    // SAFETY: null, or a value that `activate` has leaked.
    unsafe { settings.as_ref() }
}

/// Whether the stack has ports of its own, and does not share the kernel's.
pub(crate) fn has_own_ports() -> bool {
    settings().is_some_and(|settings| match &settings.backend {
        PreloadBackend::Kernel => false,
        PreloadBackend::Local { link, .. } => {
            !link.starts_with("packet:") && !link.starts_with("xdp:")
        }
        PreloadBackend::Service(_) => true,
    })
}

/// Whether several processes use the stack, each by a session of its own.
pub(crate) fn is_shared() -> bool {
    settings().is_some_and(|settings| matches!(settings.backend, PreloadBackend::Service(_)))
}

/// Whether sockets of the stack are the kernel's, because the stack could not start.
pub(crate) fn has_fallen_back() -> bool {
    is_down() && falls_back()
}

/// Whether the stack could not start; a line has named the reason.
pub(crate) fn is_down() -> bool {
    START.load(Ordering::Relaxed) == IS_DOWN
}

/// Whether the kernel serves if the stack cannot start.
pub(crate) fn falls_back() -> bool {
    settings().is_some_and(|settings| settings.kernel_use == KernelUse::FallBack)
}

/// Returns the stack's sockets, if it has started.
#[inline]
pub(crate) fn context() -> Option<&'static SharedContext> {
    let context = CONTEXT.load(Ordering::Acquire);
    // SAFETY: null, or a value that `start` has leaked.
    unsafe { context.as_ref() }
}

/// Runs `work` inside the library: a panic is caught, and errno is kept unless it fails.
///
/// # Errors
/// Those of `work`; EDEADLK from a handler that cannot make calls; ENOTRECOVERABLE after a panic.
#[inline]
pub(crate) fn enter<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    if !handlers::begin() {
        refusals::count(CallRefusal::InHandler);
        return Err(Error::from_raw_os_error(libc::EDEADLK));
    }
    let errno = raw::errno();
    // Unwind safe: the sockets leave a socket as it was when a call panics.
    let result = catch_unwind(AssertUnwindSafe(work));
    raw::set_errno(errno);
    handlers::end();
    // Relaxed: a call that ended before the sockets were closed needs no wait.
    if ENDING.load(Ordering::Relaxed) != 0 {
        wait_for_end();
    }
    result.unwrap_or(Err(Error::from_raw_os_error(libc::ENOTRECOVERABLE)))
}

/// Waits for the end of the process, unless this thread ends it. In Linux no thread finds its
/// sockets closed because another one has called _exit(2).
#[cold]
fn wait_for_end() {
    let is_ending = || ENDING.load(Ordering::Relaxed) == raw::thread();
    let deadline = Instant::now() + END_PATIENCE;
    while !is_ending() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `work` with the stack's sockets.
///
/// # Errors
/// As [`enter`]; ENETDOWN without a stack.
#[inline]
pub(crate) fn with_stack<T>(
    work: impl FnOnce(&mut &'static SharedContext) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut context = context().ok_or(Error::NetworkDown)?;
    let done = enter(|| work(&mut context));
    if let Err(Error::NetworkDown) = done {
        note_link_gone();
    }
    done
}

/// A call of a stack that runs has failed because its link or daemon is gone: one line.
#[cold]
fn note_link_gone() {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if let Some(settings) = settings()
        && !PRINTED.swap(true, Ordering::Relaxed)
    {
        let what = match settings.backend {
            PreloadBackend::Service(_) => "the daemon has ended; until there is another one",
            _ => "the link is gone;",
        };
        let name = name(settings);
        report::complain(format_args!("{name}: {what} the stack's sockets fail with ENETDOWN"));
    }
}

/// Starts the stack, unless it runs. `awaited`: the listeners that it will have.
///
/// # Errors
/// ENETDOWN, with a line on standard error for the first failure.
pub(crate) fn start(
    awaited: impl FnOnce() -> Vec<AwaitedListener>,
) -> Result<&'static SharedContext, Error> {
    if let Some(context) = context() {
        return Ok(context);
    }
    let settings = settings().ok_or(Error::NetworkDown)?;
    let created = match START.load(Ordering::Relaxed) {
        IS_DOWN => return Err(Error::NetworkDown),
        IN_PARENT if !handlers::while_starting(holder_ends) => Err(format!(
            "{}: the parent process has the stack; on the back end local one process has it",
            name(settings)
        )),
        _ => {
            let awaited = awaited();
            let create = || create(settings, awaited);
            match settings.backend {
                // Each of its sockets is a file of the process.
                PreloadBackend::Kernel => create(),
                // A daemon answers soon. A handler that forks, as PostgreSQL's do, waits: this
                // thread has the lock that a fork takes.
                PreloadBackend::Service(_) => numbers::with_room_above(create),
                // A link may be free after seconds only.
                PreloadBackend::Local { .. } => {
                    numbers::with_room_above(|| handlers::while_starting(create))
                }
            }
        }
    };
    match created {
        Ok(context) => {
            // SAFETY: the function takes nothing and returns nothing. If it cannot be registered,
            // bytes written last are lost.
            unsafe { libc::atexit(at_exit) };
            CONTEXT.store(Box::into_raw(Box::new(context)), Ordering::Release);
            self::context().ok_or(Error::NetworkDown)
        }
        Err(why) => {
            START.store(IS_DOWN, Ordering::Relaxed);
            let fate = match falls_back() {
                true => "; its sockets go on in the kernel (--fall-back)",
                false => "; its sockets fail with ENETDOWN",
            };
            report::complain(format_args!("{why}{fate}"));
            Err(Error::NetworkDown)
        }
    }
}

/// What a line for a person calls the stack.
fn name(settings: &PreloadSettings) -> String {
    match &settings.backend {
        PreloadBackend::Kernel => "kernel".to_owned(),
        PreloadBackend::Local { link, .. } => link.clone(),
        PreloadBackend::Service(address) => address.path().display().to_string(),
    }
}

fn create(
    settings: &PreloadSettings,
    awaited: Vec<AwaitedListener>,
) -> Result<SharedContext, String> {
    let channel = megapipe::Config::default();
    let channel = match &settings.backend {
        PreloadBackend::Kernel => channel,
        PreloadBackend::Local { link, server } => {
            let network = link::open(link, server, awaited)?;
            channel.backend(Backend::Local(network)).placement(placement(settings))
        }
        PreloadBackend::Service(address) => {
            let inherited = inheritance::token();
            let given = settings.token.filter(|token| is_token(*token));
            let address = match inherited.or(given) {
                // The library never closes it, nor does the program: the number is the library's.
                // SAFETY: the descriptor is open, and stays so as long as the process.
                Some(token) => address.clone().with_token(unsafe { OwnedFd::from_raw_fd(token) }),
                None => address.clone(),
            };
            channel.backend(Backend::Service(address))
        }
    };
    let config = Config::default().channel(channel).hand_back(is_shared()).reuse_after(REUSE_AFTER);
    let created = SharedContext::create(config, Driving::Callers);
    created.map_err(|error| format!("{}: no sockets: {}", name(settings), ErrorChain(&error)))
}

/// Where the stack runs: in a process that may have no more threads, in the program's calls.
fn placement(settings: &PreloadSettings) -> Placement {
    if settings.placement != Placement::Thread {
        return settings.placement;
    }
    let tried = std::thread::Builder::new().spawn(|| ());
    match tried.map(|thread| thread.join()) {
        Ok(_) => Placement::Thread,
        Err(error) => {
            report::note(format_args!("no thread for the stack ({error}): inline"));
            Placement::Inline
        }
    }
}

/// Whether a number that was inherited is a token of a daemon, and not another file meanwhile.
fn is_token(number: c_int) -> bool {
    if number < 0 {
        return false;
    }
    // SAFETY: the number is not -1; one that is closed is an error of the calls.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let kind = rustix::net::sockopt::socket_type(socket);
    let domain = rustix::net::sockopt::socket_domain(socket);
    kind == Ok(rustix::net::SocketType::SEQPACKET) && domain == Ok(rustix::net::AddressFamily::UNIX)
}

/// Sends what was written, as the kernel does when a process ends.
pub(crate) fn flush() {
    if foreign_children::is_foreign() || handlers::is_inside() {
        return;
    }
    if context().is_some() {
        ENDING.store(raw::thread(), Ordering::Relaxed);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Bytes that are not delivered within the time are lost.
        match with_stack(|sockets| sockets.close_all(left)) {
            Err(Error::Interrupted) if !left.is_zero() => {}
            _ => return,
        }
    }
}

extern "C" fn at_exit() {
    flush();
}

extern "C" fn report_at_exit() {
    report::finish();
}

/// Waits for the end of the process whose stack this process has inherited. Returns whether it has
/// ended.
fn holder_ends() -> bool {
    let Some(holder) = Pid::from_raw(HOLDER.load(Ordering::Relaxed)) else { return true };
    let pidfd = match pidfd_open(holder, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => return error == Errno::SRCH,
    };
    let deadline = Instant::now() + END_PATIENCE;
    let mut looked = [PollFd::new(&pidfd, PollFlags::IN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let tv_nsec = left.subsec_nanos().into();
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec };
        match rustix::event::poll(&mut looked, Some(&left)) {
            Ok(1) => {
                START.store(MAY_START, Ordering::Relaxed);
                return true;
            }
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
}

/// In the child of a fork: what was the stack's is the parent's. Returns whether there was a stack.
/// A stack that is shared starts again when the child needs it.
pub(crate) fn forget_in_child() -> bool {
    let parent = foreign_children::owner();
    foreign_children::own_tables();
    ENDING.store(0, Ordering::Relaxed);
    let had_stack = !CONTEXT.swap(std::ptr::null_mut(), Ordering::Relaxed).is_null();
    if !had_stack {
        return false;
    }
    let (is_shared, token) = (is_shared(), settings().and_then(|it| it.token));
    START.store(if is_shared { MAY_START } else { IN_PARENT }, Ordering::Relaxed);
    HOLDER.store(parent, Ordering::Relaxed);
    link::forget();
    for (fd, entry) in numbers::known(0, u32::MAX) {
        match entry {
            NumberEntry::Set(_) if is_shared => {
                numbers::set(fd, NumberEntry::PendingSet);
            }
            NumberEntry::Stack(inner) => {
                let place = inheritance::place_of(inner);
                numbers::set(fd, place.map_or(NumberEntry::Parent, NumberEntry::Inherited));
            }
            NumberEntry::Set(_) => {
                numbers::set(fd, NumberEntry::Parent);
            }
            // The child attaches by it.
            NumberEntry::Own
                if token == Some(fd) || inheritance::is_childs(fd) || report::is_target(fd) => {}
            NumberEntry::Own => {
                // The link must be free when the parent ends.
                // SAFETY: takes an integer; the child never uses the library's descriptors.
                unsafe { raw::system_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
                numbers::set(fd, NumberEntry::Kernel);
            }
            NumberEntry::Recorded(_)
            | NumberEntry::PendingSet
            | NumberEntry::Parent
            | NumberEntry::Inherited(_)
            | NumberEntry::Token
            | NumberEntry::Kernel => {}
        }
    }
    true
}

/// The error of a call on a socket of the parent process, with one line on standard error.
#[cold]
pub(crate) fn refuse_in_child() -> Error {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    refusals::count(CallRefusal::ParentsSocket);
    if !PRINTED.swap(true, Ordering::Relaxed) {
        report::complain(format_args!(
            "a forked child ({}) uses a socket of its parent's stack: {}",
            raw::process(),
            match is_shared() {
                true =>
                    "on the back end service a child has its parent's listeners, connections and \
                         UDP sockets, but of an older daemon not those that still connect, and no \
                         UDP sockets",
                false => "on the back end local, one process has the stack",
            }
        ));
    }
    Error::from_raw_os_error(libc::ECHILD)
}

/// Tries calls once: what would block is EAGAIN, whatever the socket's mode.
pub(crate) struct WithoutWaiting(pub(crate) &'static SharedContext);

impl CallRunner for WithoutWaiting {
    fn run<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>,
    ) -> Result<T, Error> {
        self.once(|sockets| match attempt(sockets, false) {
            Attempt::Done(result) => result,
            Attempt::Wait(_) => Err(Error::WouldBlock),
        })
    }

    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error> {
        self.0.once(call)
    }
}
