//! Which signal handlers have run: a call of the library that a handler interrupts goes on if that
//! handler was installed with SA_RESTART.
//!
//! Read first: signal(7) on interrupted calls; `calls/signals.rs`.
//!
//! Invariants
//! - The kernel has [`noting`] in place of the program's handler; programs see their own.
//! - Handlers of a process's own faults are passed on: they interrupt no call.
//! - With a report, the default action of [`ENDS`] is [`noting`], too. Programs see SIG_DFL.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{sighandler_t, siginfo_t};

use crate::raw::{process, system_call};
use crate::report;

/// One more than the highest signal.
pub(crate) const SIGNALS: usize = 65;
/// Signals of a process's own faults.
pub(crate) const FAULTS: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// Signals that end a process by default, and before whose action the report gets its end.
const ENDS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Whether there is a report.
static WATCHES_END: AtomicBool = AtomicBool::new(false);

/// The program's handlers.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

thread_local! {
    /// The signals whose handlers have run since the thread entered the library, a bit each.
    static RAN: Cell<u64> = const { Cell::new(0) };
}

/// A handler as programs have it; the last two arguments exist for all handlers.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Returns the program's handler of a signal; 0: it had none yet.
pub(crate) fn known(number: c_int) -> usize {
    HANDLERS[number as usize].load(Ordering::Relaxed)
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

/// Notes that a signal's handler runs, and runs it.
unsafe extern "C-unwind" fn noting(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    RAN.set(RAN.get() | 1 << (number as u32 % 64));
    let handler = HANDLERS[number as usize].load(Ordering::Relaxed);
    if handler != 0 {
        // SAFETY: the program has installed the handler for the signal; one that takes fewer
        // arguments ignores the others.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
        // SAFETY: the arguments are the kernel's.
        unsafe { handler(number, info, context) };
    } else if ENDS.contains(&number) {
        report::finish();
        die_by(number);
    }
}

/// Takes the default action of a signal: it is delivered again when its handler returns.
fn die_by(number: c_int) {
    // A record of the kernel with its default action.
    let action = [0_u64; 4];
    let arguments = [number as usize, action.as_ptr() as usize, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the action is a local.
    unsafe { system_call(libc::SYS_rt_sigaction, arguments) };
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

/// A call begins: handlers that ran before do not interrupt it.
#[inline]
pub(crate) fn begin() {
    RAN.set(0);
}

/// Whether all handlers that ran during this call were installed with SA_RESTART. `None`: no
/// handler is known to have run.
pub(crate) fn restart() -> Option<bool> {
    let ran = RAN.take();
    let numbers = (1..SIGNALS as c_int).filter(|number| ran & 1 << (*number as u32 % 64) != 0);
    let restarts = numbers.map(|number| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: with a null action nothing is changed, and there is room for the old one.
        unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeros are an action, too.
        unsafe { action.assume_init() }.sa_flags & libc::SA_RESTART != 0
    });
    restarts.reduce(|all, one| all && one)
}
