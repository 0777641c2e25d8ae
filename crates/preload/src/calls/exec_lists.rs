//! The functions of exec(3) whose arguments are a list: execl, execlp and execle.
//!
//! Their arguments are made an array in memory, which is that of execv(3): those in registers are
//! pushed before those that are on the stack already.
//!
//! Read first: the System V ABI for AMD64, 3.2.3.

use std::ffi::{c_char, c_int};

use super::process::{execv, execve, execvp};

/// The names of the functions.
pub(crate) const NAMES: &[&str] = &["execl", "execlp", "execle"];

/// Defines a function that passes its path and the array of its other arguments on.
macro_rules! listed {
    ($($(#[$doc:meta])* $name:ident => $to:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the function of libc.
        #[unsafe(naked)]
        #[unsafe(export_name = concat!("mp_preload_", stringify!($name)))]
        pub(crate) unsafe extern "C-unwind" fn $name() -> c_int {
            std::arch::naked_asm!(
                // The return address lies between the arguments; it returns to its place. The
                // directives describe that to debuggers and unwinders (DWARF: 11 is r11, 16 the
                // return address).
                ".cfi_startproc",
                "pop r11",
                ".cfi_def_cfa_offset 0",
                ".cfi_register 16, 11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset 16, -48",
                "call {to}",
                "pop r11",
                ".cfi_def_cfa_offset 40",
                ".cfi_register 16, 11",
                "add rsp, 40",
                "push r11",
                ".cfi_def_cfa_offset 8",
                ".cfi_offset 16, -8",
                "ret",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    )*};
}

listed! {
    /// execl(3).
    execl => execv;
    /// execlp(3).
    execlp => execvp;
    /// execle(3).
    execle => execve_of_list;
}

/// execve(2) of a list of arguments, a null pointer and an environment.
///
/// # Safety
/// As execle(3).
unsafe extern "C-unwind" fn execve_of_list(
    path: *const c_char,
    list: *const *const c_char,
) -> c_int {
    let mut end = list;
    // SAFETY: the program promises a null pointer behind the arguments.
    while !unsafe { end.read() }.is_null() {
        end = end.wrapping_add(1);
    }
    // SAFETY: it promises the environment behind that.
    let environment = unsafe { end.wrapping_add(1).read() };
    // SAFETY: as execle(3).
    unsafe { execve(path, list, environment.cast()) }
}
