//! System calls by number, and errno.
//!
//! Read first: syscall(2), on the registers of each machine.

use std::ffi::{c_int, c_long};

/// Largest error number of the kernel.
const ERRNO_MAX: isize = 4095;

/// Makes a system call. Returns what the kernel returns: a value, or a negative error number.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller promises what the call asks for; the kernel changes rax, rcx and r11 only.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call. Returns what the kernel returns: a value, or a negative error number.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller promises what the call asks for; the kernel changes x0 only.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    result
}

/// As [`system_call`], with the result of a C function: -1 and errno.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn c_call(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller keeps the contract.
    let result = unsafe { system_call(number, arguments) };
    if (-ERRNO_MAX..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// For an operation of epoll_ctl(2) that has no event.
pub(crate) const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };

/// epoll_ctl(2) in the kernel, which ignores the event of EPOLL_CTL_DEL. Returns 0, or a negative
/// error number.
pub(crate) fn epoll_control(
    set: c_int,
    operation: c_int,
    member: c_int,
    event: libc::epoll_event,
) -> isize {
    let [set, operation, member] = [set, operation, member].map(|it| it as usize);
    let arguments = [set, operation, member, (&raw const event) as usize, 0, 0];
    // SAFETY: the event is a local; numbers that are no set or member are refused.
    unsafe { system_call(libc::SYS_epoll_ctl, arguments) }
}

/// Sets errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: errno has an address in every thread, for the thread's whole life.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid and aligned, and only this thread uses it.
    unsafe { location.write(errno) };
}

/// Returns errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: errno has an address in every thread, for the thread's whole life.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid and aligned, and only this thread uses it.
    unsafe { location.read() }
}

/// Runs `work` while this thread blocks all signals.
pub(crate) fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let all = u64::MAX;
    let mut before = 0_u64;
    let (all, place) = ((&raw const all) as usize, (&raw mut before) as usize);
    let arguments = [libc::SIG_SETMASK as usize, all, place, size_of::<u64>(), 0, 0];
    // SAFETY: both masks are locals.
    unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
    let done = work();
    let arguments = [libc::SIG_SETMASK as usize, place, 0, size_of::<u64>(), 0, 0];
    // SAFETY: as above.
    unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
    done
}

/// Returns the process, also in the child of vfork(2).
pub(crate) fn process() -> c_int {
    // SAFETY: takes nothing.
    unsafe { system_call(libc::SYS_getpid, [0; 6]) as c_int }
}

/// Returns the thread.
pub(crate) fn thread() -> c_int {
    // SAFETY: takes nothing.
    unsafe { system_call(libc::SYS_gettid, [0; 6]) as c_int }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_call_sets_errno() {
        let bad = [usize::MAX, 0, 0, 0, 0, 0];
        // SAFETY: close(2) takes an integer.
        assert_eq!(unsafe { c_call(libc::SYS_close, bad) }, -1);
        assert_eq!(errno(), libc::EBADF);
        assert_eq!(process(), std::process::id() as c_int);
    }
}
