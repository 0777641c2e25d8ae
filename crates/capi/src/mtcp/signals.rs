//! `mtcp_register_signal`: runs the program's handler, and interrupts waits.
//!
//! Read first: `signal(7)`, `signal-safety(7)`.
//!
//! The library's handler wraps the program's: it calls that on the thread that got the signal, and
//! then interrupts the wait of every context with EINTR.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{SIG_DFL, SIG_ERR, SIG_IGN, sighandler_t};

use super::context;
use crate::error::{CallError, CallFailure, Errno, set_last};

/// Signals have numbers below this.
const SIGNALS: usize = 65;

/// The program's handlers, by signal; [`SIG_DFL`]: none was registered.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(SIG_DFL) }; SIGNALS];

/// Registers a handler for a signal; SIG_IGN and SIG_DFL as with signal(2). A signal interrupts
/// waits of all contexts with EINTR. Returns the previous handler, or SIG_ERR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_register_signal(
    signum: c_int,
    handler: sighandler_t,
) -> sighandler_t {
    match register(signum, handler) {
        Ok(before) => before,
        Err(failure) => {
            set_last("mtcp_register_signal", failure.why());
            SIG_ERR
        }
    }
}

fn register(signum: c_int, handler: sighandler_t) -> Result<sighandler_t, CallFailure> {
    let entry = usize::try_from(signum).ok().filter(|&signum| signum != 0);
    let entry = entry.and_then(|signum| HANDLERS.get(signum));
    let entry = entry.ok_or(CallError::Argument("signum"))?;
    if handler == SIG_ERR {
        return Err(CallError::Argument("handler").into());
    }
    // Before the action is set: a signal that arrives in between runs the new handler.
    let before = entry.swap(handler, Ordering::SeqCst);
    let ours: extern "C" fn(c_int) = on_signal;
    let action = match handler {
        SIG_DFL | SIG_IGN => handler,
        _ => ours as sighandler_t,
    };
    set_action(signum, action).inspect_err(|_| entry.store(before, Ordering::SeqCst))?;
    Ok(before)
}

fn set_action(signum: c_int, handler: sighandler_t) -> Result<(), CallFailure> {
    // SAFETY: a sigaction of zeros is one: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // No SA_RESTART: a wait in the kernel is interrupted too.
    action.sa_sigaction = handler;
    // SAFETY: the record is a local, and the handler is async-signal-safe.
    match unsafe { libc::sigaction(signum, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

extern "C" fn on_signal(signum: c_int) {
    let errno = Errno::now();
    let handler = usize::try_from(signum).ok().and_then(|signum| HANDLERS.get(signum));
    let handler = handler.map_or(SIG_DFL, |entry| entry.load(Ordering::SeqCst));
    if handler != SIG_DFL && handler != SIG_IGN {
        // SAFETY: the program gave the address of a function that takes a signal's number.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signum);
    }
    // After the program's handler, so that an interrupted wait returns after its effects.
    context::interrupt_all();
    errno.put_back();
}
