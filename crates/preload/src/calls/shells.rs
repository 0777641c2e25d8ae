//! system(3) and popen(3): libc starts a shell, which goes on with connections as a program does
//! that posix_spawn(3) starts.
//!
//! libc does the work, with its signals, statuses, cancellation and streams; the tokens stand at
//! their numbers meanwhile.

use std::ffi::{CStr, c_char, c_int};

use libc::FILE;

use crate::exec_sharing;
use crate::next::interpose;
use crate::program_check;
use crate::raw::{errno, set_errno};
use crate::restored_environment::environment_is_complete;

/// The shell of libc.
const SHELL: &CStr = c"/bin/sh";

interpose! {
    /// system(3).
    fn system(line: *const c_char) -> c_int |pass| {
        match line.is_null() {
            // It only looks whether there is a shell.
            true => pass(),
            false => with_connections(pass),
        }
    }

    /// popen(3).
    fn popen(line: *const c_char, mode: *const c_char) -> *mut FILE |pass| {
        with_connections(pass)
    }
}

/// Starts a shell by `start`, which may wait for its end. Where the thread is cancelled meanwhile,
/// the tokens stay: the program notices nothing of it.
fn with_connections<T>(start: impl FnOnce() -> T) -> T {
    let check = || match environment_is_complete() {
        // SAFETY: the path is a C string.
        true => unsafe { program_check::check_program(SHELL.as_ptr(), None) },
        false => Some(Err("the environment lacks the library or its settings")),
    };
    let mut passed = exec_sharing::prepare(check);
    passed.resume();
    let started = start();
    let errno = errno();
    passed.put_back();
    set_errno(errno);
    started
}
