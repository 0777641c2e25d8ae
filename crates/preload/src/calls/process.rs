//! Calls that start programs or end the process, and syscall(2).
//!
//! A program may clear its environment before exec(3): the settings and the library are put back
//! (`restored_environment.rs`).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::{by_number, descriptors};
use crate::exec_sharing;
use crate::foreign_children;
use crate::fork_sharing;
use crate::handlers;
use crate::inheritance;
use crate::link;
use crate::memory;
use crate::next::interpose;
use crate::numbers::child_views;
use crate::program_check::{self, ProgramPath};
use crate::raw::{errno, set_errno, system_call};
use crate::records::RECORDS;
use crate::refusals::{self, CallRefusal};
use crate::report;
use crate::restored_environment::{RestoredEnvironment, Strings, environment, variable_of};
use crate::stack;

interpose! {
    /// execve(2).
    fn execve(path: *const c_char, list: Strings, environment: Strings) -> c_int |pass| {
        // SAFETY: the program promises what execve(2) asks for; the environment lives on.
        let start = |it| unsafe { started(path, list, it) };
        // SAFETY: it promises an environment, or null.
        unsafe { with_settings((path, false), environment, link::pass_turn_on(), pass, start) }
    }

    /// execv(3).
    fn execv(path: *const c_char, list: Strings) -> c_int |pass| {
        // SAFETY: as in `execve`.
        let start = |it| unsafe { started(path, list, it) };
        // SAFETY: the environment of the process ends with a null pointer.
        unsafe { with_settings((path, false), environment(), link::pass_turn_on(), pass, start) }
    }

    /// execvp(3).
    fn execvp(path: *const c_char, list: Strings) -> c_int |pass| {
        // SAFETY: as in `execve`.
        let start = |it| unsafe { libc::execvpe(path, list, it) };
        // SAFETY: as in `execv`.
        unsafe { with_settings((path, true), environment(), link::pass_turn_on(), pass, start) }
    }

    /// execvpe(3).
    fn execvpe(path: *const c_char, list: Strings, environment: Strings) -> c_int |pass| {
        // SAFETY: as in `execve`.
        let start = |it| unsafe { libc::execvpe(path, list, it) };
        // SAFETY: as in `execve`.
        unsafe { with_settings((path, true), environment, link::pass_turn_on(), pass, start) }
    }

    /// fexecve(3).
    fn fexecve(file: c_int, list: Strings, environment: Strings) -> c_int |pass| {
        // SAFETY: as in `execve`.
        let start = |it| unsafe { started_at(file, c"".as_ptr(), list, it, libc::AT_EMPTY_PATH) };
        let path = ProgramPath::at(file, b"");
        let program = (path.as_ptr(), false);
        // SAFETY: as in `execve`.
        unsafe { with_settings(program, environment, link::pass_turn_on(), pass, start) }
    }

    /// execveat(2).
    fn execveat(
        at: c_int,
        path: *const c_char,
        list: Strings,
        environment: Strings,
        flags: c_int,
    ) -> c_int |pass| {
        if !memory::is_string(path) {
            // EFAULT, by the kernel.
            return pass();
        }
        // SAFETY: as in `execve`.
        let start = |it| unsafe { started_at(at, path, list, it, flags) };
        // SAFETY: it is a string.
        let name = unsafe { CStr::from_ptr(path) }.to_bytes();
        let found = ProgramPath::at(at, name);
        let is_relative = !name.starts_with(b"/") && at != libc::AT_FDCWD;
        let program = (if is_relative { found.as_ptr() } else { path }, false);
        // SAFETY: as in `execve`.
        unsafe { with_settings(program, environment, link::pass_turn_on(), pass, start) }
    }

    /// posix_spawn(3).
    fn posix_spawn(
        process: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        list: *const *mut c_char,
        environment: Strings,
    ) -> c_int |pass| {
        let start = |it: Strings| {
            // SAFETY: as in `execve`.
            unsafe { libc::posix_spawn(process, path, actions, attributes, list, it.cast()) }
        };
        // SAFETY: as in `execve`.
        counted(unsafe { with_settings((path, false), environment, None, pass, start) })
    }

    /// posix_spawnp(3).
    fn posix_spawnp(
        process: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        list: *const *mut c_char,
        environment: Strings,
    ) -> c_int |pass| {
        let start = |it: Strings| {
            // SAFETY: as in `execve`.
            unsafe { libc::posix_spawnp(process, path, actions, attributes, list, it.cast()) }
        };
        // SAFETY: as in `execve`.
        counted(unsafe { with_settings((path, true), environment, None, pass, start) })
    }

    /// _exit(2). Bytes that were written are sent first, as in Linux.
    fn _exit(status: c_int) -> c_int |pass| {
        stack::flush();
        report::finish();
        pass()
    }

    /// _Exit(3).
    fn _Exit(status: c_int) -> c_int |pass| {
        stack::flush();
        report::finish();
        pass()
    }

    /// fork(2).
    fn fork() -> pid_t |pass| {
        let child = pass();
        if child > 0 {
            report::count(&report::COUNTS.children);
        }
        child
    }

    /// _Fork(3).
    fn _Fork() -> pid_t |pass| {
        foreign_children::note_new();
        pass()
    }

    /// clone(2), which is variadic; the places of its arguments are the same.
    fn clone(
        work: usize,
        stack: usize,
        flags: c_int,
        argument: usize,
        parent: usize,
        tls: usize,
        child: usize,
    ) -> c_int |pass| {
        if flags & libc::CLONE_THREAD == 0 {
            foreign_children::note_new();
        }
        pass()
    }

    /// syscall(2).
    fn syscall(
        number: c_long,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> c_long |pass| {
        match number {
            // SAFETY: takes an integer.
            libc::SYS_close => unsafe { descriptors::close(a as c_int).into() },
            libc::SYS_close_range => {
                // SAFETY: takes integers.
                unsafe { descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into() }
            }
            // SAFETY: takes an integer.
            libc::SYS_dup => unsafe { descriptors::dup(a as c_int).into() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: takes integers.
            libc::SYS_dup2 => unsafe { descriptors::dup2(a as c_int, b as c_int).into() },
            libc::SYS_dup3 => {
                // SAFETY: takes integers.
                unsafe { descriptors::dup3(a as c_int, b as c_int, c as c_int).into() }
            }
            // SAFETY: the program promises what the call asks for.
            libc::SYS_execve => unsafe { execve(a as _, b as _, c as _).into() },
            libc::SYS_execveat => {
                // SAFETY: the same.
                unsafe { execveat(a as c_int, b as _, c as _, d as _, e as c_int).into() }
            }
            libc::SYS_exit_group => {
                stack::flush();
                report::finish();
                pass()
            }
            // Requests of a ring would not meet the sockets of the stack.
            libc::SYS_io_uring_setup if stack::settings().is_some() => {
                refusals::count(CallRefusal::IoUring);
                set_errno(libc::ENOSYS);
                -1
            }
            libc::SYS_getpid if a == QUESTION => match stack::settings() {
                Some(_) => ANSWER,
                None => pass(),
            },
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => {
                foreign_children::note_new();
                pass()
            }
            libc::SYS_clone | libc::SYS_clone3 => {
                foreign_children::note_new();
                pass()
            }
            // SAFETY: the program promises what the call asks for.
            _ => match unsafe { by_number::call(number, [a, b, c, d, e, f]) } {
                Some(result) => result,
                // libc's own function is variadic; the registers are the same.
                None => pass(),
            },
        }
    }
}

/// An argument that getpid(2) ignores, and that asks another copy of the library whether it is
/// active.
const QUESTION: usize = 0x6d65_6761_7069_7065;
/// What an active copy returns: no process.
const ANSWER: c_long = -0x6d70;

/// Whether another copy of the library is active in the process.
pub(crate) fn has_other_copy() -> bool {
    type Function = unsafe extern "C-unwind" fn(c_long, usize) -> c_long;
    [libc::RTLD_NEXT, libc::RTLD_DEFAULT].into_iter().any(|place| {
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(place, c"syscall".as_ptr()) };
        if found.is_null() {
            return false;
        }
        // This copy may ask itself: it is not active yet.
        // SAFETY: dlsym(3) found syscall(2), which takes words.
        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
        // SAFETY: the call takes nothing.
        unsafe { function(libc::SYS_getpid, QUESTION) == ANSWER }
    })
}

/// execve(2) of the library's own.
///
/// # Safety
/// As execve(2).
unsafe fn started(path: *const c_char, list: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { crate::inner::execve(path as usize, list as usize, environment as usize) as c_int }
}

/// execveat(2) of the library's own.
///
/// # Safety
/// As execveat(2).
unsafe fn started_at(
    at: c_int,
    path: *const c_char,
    list: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    let [at, flags] = [at, flags].map(|it| it as usize);
    let (path, list, environment) = (path as usize, list as usize, environment as usize);
    // SAFETY: the caller keeps the contract.
    unsafe { crate::inner::execveat(at, path, list, environment, flags) as c_int }
}

/// The result of posix_spawn(3), whose child is counted.
fn counted(result: c_int) -> c_int {
    if result == 0 {
        report::count(&report::COUNTS.children);
    }
    result
}

/// Starts a program by `start` with the settings in its environment; by `pass` if they are there,
/// or if new programs get no settings. The program is its path, or a name in the folders of PATH.
///
/// # Safety
/// As [`RestoredEnvironment::of`]; the program is null or a C string.
unsafe fn with_settings(
    (program, is_in_folders): (*const c_char, bool),
    given: Strings,
    turn: Option<c_int>,
    pass: impl FnOnce() -> c_int,
    start: impl FnOnce(Strings) -> c_int,
) -> c_int {
    if !memory::is_string(program) || !memory::is_string_list(given) {
        // EFAULT, by the kernel.
        return pass();
    }
    // SAFETY: the environment of the process ends with a null pointer, as the caller's does.
    let variable = unsafe { variable_of(environment(), b"PATH") };
    let folders = is_in_folders.then(|| program_check::folders(variable));
    // SAFETY: the caller promises the program's name.
    if unsafe { program_check::note_program(program, folders) } && foreign_children::is_foreign() {
        // The child of a vfork(2): fork(2) has counted the others.
        report::count(&report::COUNTS.children);
    }
    let settings = stack::settings().filter(|settings| !settings.follows);
    if let Some(library) = settings.and_then(|settings| settings.library.as_deref()) {
        // SAFETY: the caller promises the environment.
        let list = unsafe { variable_of(given, b"LD_PRELOAD") }.unwrap_or_default();
        if report::is_on() && !String::from_utf8_lossy(list).contains(library) {
            program_check::note_without_library();
        }
        return pass();
    }
    // SAFETY: as above.
    let passed =
        exec_sharing::prepare(|| unsafe { program_check::check_program(program, folders) });
    // SAFETY: the caller keeps the contract.
    let result = match unsafe { RestoredEnvironment::of(given, turn) } {
        None => pass(),
        Some(restored) => restored.lend(start),
    };
    let errno = errno();
    passed.put_back();
    set_errno(errno);
    result
}

/// Registers what runs around a fork(2).
pub(crate) fn watch_forks() {
    // SAFETY: the handlers only take and release a lock, and in the child change atomics and close
    // descriptors.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
}

thread_local! {
    /// The thread forks, and its handlers wait.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn before_fork() {
    FORKS.set(handlers::begin());
    RECORDS.take();
    if FORKS.get() {
        fork_sharing::prepare();
    }
    child_views::pause();
}

extern "C" fn after_fork() {
    child_views::resume();
    fork_sharing::resume();
    RECORDS.release();
    end_fork();
}

fn end_fork() {
    if FORKS.take() {
        handlers::end();
    }
}

extern "C" fn in_child() {
    child_views::forget();
    let parent = foreign_children::owner();
    if stack::forget_in_child() {
        crate::records::forget_anchor();
    }
    inheritance::inherit();
    RECORDS.release();
    // One thread exists; nothing here allocates.
    crate::kernel_waits::forget();
    foreign_children::forget();
    RECORDS.lock().inherit(parent);
    report::begin_in_child();
    end_fork();
}

/// Ends the process at once, before the program runs.
pub(crate) fn end(status: c_int) -> ! {
    loop {
        // SAFETY: takes an integer.
        unsafe { system_call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}
