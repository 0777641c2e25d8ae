//! Signal handlers: which have run, and when they may.
//!
//! A handler may make calls wherever it interrupts the program, as on Linux. While a call of its
//! thread works inside the library, the handler has to wait (decision 0052): the signal is queued
//! again and blocked, and delivered when the call sleeps or ends. A call that sleeps has no lock:
//! a handler runs at once there, and its calls are calls like others.
//!
//! A call of the library that a handler interrupts goes on if that handler was installed with
//! SA_RESTART.
//!
//! Read first: signal(7) on interrupted calls; rt_sigqueueinfo(2); `calls/signals.rs`.
//!
//! Invariants
//! - The kernel has [`noting`] in place of the program's handler; programs see their own.
//! - Handlers of a process's own faults are passed on: they interrupt no call, and may make none
//!   inside the library.
//! - With a report, the default action of [`ENDS`] is [`noting`], too. Programs see SIG_DFL.
//! - One signal of a thread waits at most: it blocks the others.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use libc::{sighandler_t, siginfo_t, ucontext_t};

use crate::raw::{process, system_call};
use crate::report;

/// One more than the highest signal.
pub(crate) const SIGNALS: usize = 65;
/// Signals of a process's own faults.
pub(crate) const FAULTS: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// Signals that end a process by default, and before whose action the report gets its end.
const ENDS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Signals of the C library's own (nptl(7)), which are never blocked.
const OF_LIBC: [c_int; 2] = [32, 33];

/// Whether there is a report.
static WATCHES_END: AtomicBool = AtomicBool::new(false);

/// The program's handlers.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// Signals whose handlers take a `siginfo_t`, a bit each.
static TAKE_INFO: AtomicU64 = AtomicU64::new(0);
/// Signals whose handlers run once (SA_RESETHAND), a bit each.
static RUN_ONCE: AtomicU64 = AtomicU64::new(0);
/// Signals whose handlers were installed with SA_RESTART, a bit each.
static RESTART: AtomicU64 = AtomicU64::new(0);

/// Where a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadPlace {
    /// In the program, or in a handler.
    Outside,
    /// In a call that works: handlers wait.
    Inside,
    /// In a call that starts the stack, which may wait for long: handlers run, and their calls are
    /// refused.
    Starting,
    /// In a call that sleeps, without any lock: handlers run, and may make calls.
    Asleep,
}

/// A signal that waits, with the thread's mask of before.
#[derive(Debug, Clone, Copy)]
struct WaitingSignal {
    number: c_int,
    mask: u64,
}

thread_local! {
    static PLACE: Cell<ThreadPlace> = const { Cell::new(ThreadPlace::Outside) };
    static WAITING: Cell<Option<WaitingSignal>> = const { Cell::new(None) };
    /// The signals whose handlers have run since the thread entered the library, a bit each.
    static RAN: Cell<u64> = const { Cell::new(0) };
}

/// A handler as programs have it; the last two arguments exist for all handlers.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

const fn bit(number: c_int) -> u64 {
    1 << ((number - 1) as u32 % 64)
}

/// A call begins: handlers that ran before do not interrupt it. `false`: it may not, because it is
/// of a handler that has interrupted the library where no call is possible.
#[inline]
pub(crate) fn begin() -> bool {
    if is_inside() {
        return false;
    }
    PLACE.set(ThreadPlace::Inside);
    compiler_fence(Ordering::SeqCst);
    RAN.set(0);
    true
}

/// A call ends: a handler that has waited runs.
#[inline]
pub(crate) fn end() {
    compiler_fence(Ordering::SeqCst);
    PLACE.set(ThreadPlace::Outside);
    compiler_fence(Ordering::SeqCst);
    run_waiting();
}

/// Whether a call of this thread works or sleeps.
pub(crate) fn is_inside() -> bool {
    PLACE.get() != ThreadPlace::Outside
}

/// A call sleeps from now on, without any lock. Returns whether handlers have run since it began.
pub(crate) fn fall_asleep() -> bool {
    PLACE.set(ThreadPlace::Asleep);
    compiler_fence(Ordering::SeqCst);
    run_waiting();
    RAN.get() != 0
}

/// A call goes on.
pub(crate) fn wake_up() {
    compiler_fence(Ordering::SeqCst);
    PLACE.set(ThreadPlace::Inside);
}

/// Runs `start`, which may wait for long: handlers do not wait for it.
pub(crate) fn while_starting<T>(start: impl FnOnce() -> T) -> T {
    let before = PLACE.replace(ThreadPlace::Starting);
    compiler_fence(Ordering::SeqCst);
    run_waiting();
    let started = start();
    compiler_fence(Ordering::SeqCst);
    PLACE.set(before);
    started
}

/// Delivers the signal that waits, and all that came after it.
#[inline]
fn run_waiting() {
    if WAITING.get().is_some() {
        deliver_waiting();
    }
}

#[cold]
fn deliver_waiting() {
    let Some(WaitingSignal { number, mask }) = WAITING.take() else { return };
    // A call with a mask may have let the signal in that the thread blocks otherwise.
    if mask & bit(number) != 0 {
        set_mask(mask & !bit(number));
    }
    set_mask(mask);
}

/// Sets the signals that the thread blocks; those that are not blocked any more are delivered
/// before it returns.
fn set_mask(mask: u64) {
    let place = (&raw const mask) as usize;
    let arguments = [libc::SIG_SETMASK as usize, place, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the mask is a local.
    unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
}

/// Returns the program's handler of a signal; 0: it had none yet.
pub(crate) fn known(number: c_int) -> usize {
    HANDLERS[number as usize].load(Ordering::Relaxed)
}

/// Notes the flags of a new handler. Returns those for [`noting`].
pub(crate) fn replaced_flags(number: c_int, flags: c_int) -> c_int {
    let noted = [
        (libc::SA_SIGINFO, &TAKE_INFO),
        (libc::SA_RESETHAND, &RUN_ONCE),
        (libc::SA_RESTART, &RESTART),
    ];
    for (flag, signals) in noted {
        match flags & flag != 0 {
            true => signals.fetch_or(bit(number), Ordering::Relaxed),
            false => signals.fetch_and(!bit(number), Ordering::Relaxed),
        };
    }
    flags & !libc::SA_RESETHAND
}

/// The flag that the kernel does not have of a handler.
pub(crate) fn hidden_flag(number: c_int) -> c_int {
    match RUN_ONCE.load(Ordering::Relaxed) & bit(number) != 0 {
        true => libc::SA_RESETHAND,
        false => 0,
    }
}

/// What the kernel gets in place of a handler, which is remembered.
pub(crate) fn replaced(number: c_int, handler: sighandler_t) -> sighandler_t {
    match handler {
        libc::SIG_DFL if WATCHES_END.load(Ordering::Relaxed) && ENDS.contains(&number) => {
            HANDLERS[number as usize].store(libc::SIG_DFL, Ordering::Relaxed);
            noting as *const () as sighandler_t
        }
        libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR => handler,
        _ => {
            HANDLERS[number as usize].store(handler, Ordering::Relaxed);
            noting as *const () as sighandler_t
        }
    }
}

/// What the program sees in place of what the kernel has.
pub(crate) fn shown(handler: sighandler_t, known: usize) -> sighandler_t {
    match handler == noting as *const () as sighandler_t {
        true => known,
        false => handler,
    }
}

/// Notes that a signal's handler runs, and runs it, or lets it wait.
unsafe extern "C-unwind" fn noting(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let handler = HANDLERS[number as usize].load(Ordering::Relaxed);
    if handler == 0 {
        RAN.set(RAN.get() | bit(number));
        if ENDS.contains(&number) {
            report::finish();
            die_by(number);
        }
        return;
    }
    if PLACE.get() == ThreadPlace::Inside {
        // SAFETY: the arguments are the kernel's.
        unsafe { let_wait(number, info, context.cast()) };
        return;
    }
    if RUN_ONCE.load(Ordering::Relaxed) & bit(number) != 0 {
        take_default(number);
    }
    let place = PLACE.get();
    if place == ThreadPlace::Asleep {
        PLACE.set(ThreadPlace::Outside);
    }
    compiler_fence(Ordering::SeqCst);
    let ran = RAN.get() | bit(number);
    // SAFETY: the program has installed the handler for the signal; one that takes fewer arguments
    // ignores the others.
    let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
    // SAFETY: the arguments are the kernel's.
    unsafe { handler(number, info, context) };
    compiler_fence(Ordering::SeqCst);
    RAN.set(ran);
    PLACE.set(place);
}

/// Queues a signal again, which is blocked until the call of this thread sleeps or ends.
///
/// # Safety
/// The arguments are those of a handler.
#[cold]
unsafe fn let_wait(number: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let never = FAULTS.iter().chain(&OF_LIBC).chain(&[libc::SIGSYS]);
    let blocked = !never.fold(0, |all, number| all | bit(*number));
    // The kernel's part of the mask that it restores when the handler returns.
    // SAFETY: the kernel has filled the context.
    let mask = unsafe { (&raw mut (*context).uc_sigmask).cast::<u64>() };
    // SAFETY: as above.
    let before = unsafe { mask.read() };
    if WAITING.get().is_none() {
        WAITING.set(Some(WaitingSignal { number, mask: before }));
    }
    // SAFETY: the kernel reads it when the handler returns.
    unsafe { mask.write(before | blocked) };
    // A handler with SA_NODEFER does not block its own signal.
    set_mask(before | blocked);
    // SAFETY: takes nothing.
    let thread = unsafe { system_call(libc::SYS_gettid, [0; 6]) } as usize;
    let target = [process() as usize, thread, number as usize];
    if TAKE_INFO.load(Ordering::Relaxed) & bit(number) != 0 {
        let arguments = [target[0], target[1], target[2], info as usize, 0, 0];
        // SAFETY: the kernel has filled the record.
        if unsafe { system_call(libc::SYS_rt_tgsigqueueinfo, arguments) } == 0 {
            return;
        }
    }
    // SAFETY: takes integers.
    unsafe { system_call(libc::SYS_tgkill, [target[0], target[1], target[2], 0, 0, 0]) };
}

/// Gives a signal its default action.
fn take_default(number: c_int) {
    // A record of the kernel with its default action.
    let action = [0_u64; 4];
    let arguments = [number as usize, action.as_ptr() as usize, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the action is a local.
    unsafe { system_call(libc::SYS_rt_sigaction, arguments) };
}

/// Takes the default action of a signal: it is delivered again when its handler returns.
fn die_by(number: c_int) {
    take_default(number);
    // SAFETY: takes nothing.
    let thread = unsafe { system_call(libc::SYS_gettid, [0; 6]) };
    let arguments = [process() as usize, thread as usize, number as usize, 0, 0, 0];
    // SAFETY: takes integers.
    unsafe { system_call(libc::SYS_tgkill, arguments) };
}

/// From now on the report has its end also if a signal ends the process by default.
pub(crate) fn watch_end() {
    WATCHES_END.store(true, Ordering::Relaxed);
    for number in ENDS {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: with a null action nothing is changed, and there is room for the old one.
        unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeros are an action, too.
        let mut action = unsafe { action.assume_init() };
        if action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = replaced(number, libc::SIG_DFL);
            // SAFETY: the action is that of before, with a function that takes these signals.
            unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) };
        }
    }
}

/// Whether all handlers that ran during this call were installed with SA_RESTART. `None`: no
/// handler is known to have run.
pub(crate) fn restart() -> Option<bool> {
    let ran = RAN.take();
    let numbers = (1..SIGNALS as c_int).filter(|number| ran & bit(*number) != 0);
    let restarts = numbers.map(|number| {
        if RUN_ONCE.load(Ordering::Relaxed) & bit(number) != 0 {
            return RESTART.load(Ordering::Relaxed) & bit(number) != 0;
        }
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: with a null action nothing is changed, and there is room for the old one.
        unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeros are an action, too.
        unsafe { action.assume_init() }.sa_flags & libc::SA_RESTART != 0
    });
    restarts.reduce(|all, one| all && one)
}
