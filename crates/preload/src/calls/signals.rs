//! Calls that install signal handlers: the kernel gets a function of the library in their place,
//! which notes that they run (`handlers.rs`). Programs see their own.

use std::ffi::c_int;

use libc::sighandler_t;

use crate::handlers::{FAULTS, SIGNALS, known, replaced, shown};
use crate::next::interpose;
use crate::stack;

interpose! {
    /// sigaction(2).
    fn sigaction(
        number: c_int,
        action: *const libc::sigaction,
        before: *mut libc::sigaction,
    ) -> c_int |pass| {
        if !is_noted(number) {
            return pass();
        }
        let before_it = known(number);
        // SAFETY: the program promises an action, or null.
        let given = unsafe { action.as_ref() }.copied();
        let noted = given.map(|mut noted| {
            noted.sa_sigaction = replaced(number, noted.sa_sigaction);
            noted
        });
        let noted = noted.as_ref().map_or(std::ptr::null(), |noted| &raw const *noted);
        // SAFETY: the program promises what sigaction(2) asks for.
        let result = unsafe { libc::sigaction(number, noted, before) };
        // SAFETY: it promises room for the action before, or null.
        if let Some(before) = unsafe { before.as_mut() }
            && result == 0
        {
            before.sa_sigaction = shown(before.sa_sigaction, before_it);
        }
        result
    }

    /// signal(2).
    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t |pass| {
        if !is_noted(number) {
            return pass();
        }
        let before_it = known(number);
        // SAFETY: the program promises a handler.
        shown(unsafe { libc::signal(number, replaced(number, handler)) }, before_it)
    }
}

fn is_noted(number: c_int) -> bool {
    (1..SIGNALS as c_int).contains(&number)
        && !FAULTS.contains(&number)
        && stack::settings().is_some()
}
