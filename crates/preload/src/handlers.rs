//! Which signal handlers have run: a call of the library that a handler interrupts goes on if that
//! handler was installed with SA_RESTART.
//!
//! Read first: signal(7) on interrupted calls; `calls/signals.rs`.
//!
//! Invariants
//! - The kernel has [`noting`] in place of the program's handler; programs see their own.
//! - Handlers of a process's own faults are passed on: they interrupt no call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{sighandler_t, siginfo_t};

/// One more than the highest signal.
pub(crate) const SIGNALS: usize = 65;
/// Signals of a process's own faults.
pub(crate) const FAULTS: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

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
