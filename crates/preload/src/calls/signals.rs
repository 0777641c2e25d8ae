//! Calls that install signal handlers: the kernel gets a function of the library in their place,
//! which notes that they run and lets them wait (`handlers.rs`). Programs see their own.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::sighandler_t;

use crate::handlers::{FAULTS, SIGNALS, hidden_flag, known, replaced, replaced_flags, shown};
use crate::next::interpose;
use crate::stack;

interpose! {
    /// sigaction(2).
    fn sigaction(
        number: c_int,
        action: *const libc::sigaction,
        before: *mut libc::sigaction,
    ) -> c_int |pass| {
        match is_noted(number) {
            // SAFETY: the program promises what sigaction(2) asks for.
            true => unsafe { install(number, action, before) },
            false => pass(),
        }
    }

    /// signal(2).
    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t |pass| {
        match is_noted(number) {
            true => install_restarting(number, handler),
            false => pass(),
        }
    }

    /// signal(2) of BSD, which is the C library's.
    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t |pass| {
        match is_noted(number) {
            true => install_restarting(number, handler),
            false => pass(),
        }
    }

    /// signal(2) of BSD, which is the C library's.
    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t |pass| {
        match is_noted(number) {
            true => install_restarting(number, handler),
            false => pass(),
        }
    }

    /// signal(2) of System V.
    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t |pass| {
        match is_noted(number) {
            true => install_once(number, handler),
            false => pass(),
        }
    }

    /// signal(2) of System V, in programs that ask for it.
    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t |pass| {
        match is_noted(number) {
            true => install_once(number, handler),
            false => pass(),
        }
    }
}

fn is_noted(number: c_int) -> bool {
    (1..SIGNALS as c_int).contains(&number)
        && !FAULTS.contains(&number)
        && stack::settings().is_some()
}

/// # Safety
/// As sigaction(2).
unsafe fn install(
    number: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    let (before_it, hidden) = (known(number), hidden_flag(number));
    // SAFETY: the caller promises an action, or null.
    let given = unsafe { action.as_ref() }.copied();
    let noted = given.map(|mut noted| {
        noted.sa_sigaction = replaced(number, noted.sa_sigaction);
        noted.sa_flags = replaced_flags(number, noted.sa_flags);
        noted
    });
    let noted = noted.as_ref().map_or(std::ptr::null(), |noted| &raw const *noted);
    // SAFETY: the caller keeps the contract.
    let result = unsafe { libc::sigaction(number, noted, before) };
    // SAFETY: it promises room for the action before, or null.
    if let Some(before) = unsafe { before.as_mut() }
        && result == 0
    {
        before.sa_sigaction = shown(before.sa_sigaction, before_it);
        before.sa_flags |= hidden;
    }
    result
}

/// Calls of the library are restarted after the handler, as far as siginterrupt(3) allows it.
fn install_restarting(number: c_int, handler: sighandler_t) -> sighandler_t {
    let before_it = known(number);
    replaced_flags(number, libc::SA_RESTART);
    // SAFETY: the program promises a handler.
    shown(unsafe { libc::signal(number, replaced(number, handler)) }, before_it)
}

/// The handler runs once, does not block its own signal, and interrupts calls.
fn install_once(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: zeros are an action, too.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    let mut before = action;
    // SAFETY: both are locals; the program promises a handler.
    match unsafe { install(number, &raw const action, &raw mut before) } {
        0 => before.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}
