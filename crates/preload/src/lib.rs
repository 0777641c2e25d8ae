//! `libmegapipe-preload.so`: unmodified programs on megapipe's sockets.
//!
//! In: calls of a program on libc's names, by LD_PRELOAD. Out: the same calls on a stack
//! ([`megapipe_sockets`]) for sockets that belong to it, and on the next library for all others.
//! `megapipe run` sets the variables and starts the program. Read first: decisions 0049 and 0024.
//!
//! - `next.rs`, `inner.rs`, `raw.rs`: the functions of the next library, and the library's own
//!   calls.
//! - `memory.rs`, `handlers.rs`: whether the program's pointers are valid, which of its signal
//!   handlers ran.
//! - `numbers.rs`: what a descriptor number stands for, `child_views.rs` in a child of vfork(2).
//! - `settings.rs`, `rules.rs`: variables of the environment, and which sockets belong to the
//!   stack.
//! - `records.rs`, `state_lock.rs`: sockets and sets that wait for the stack.
//! - `fall_back.rs`: sockets that go on in the kernel, because the stack cannot start.
//! - `elf.rs`, `program_check.rs`: whether a program can be preloaded. `imports.rs`: what it calls.
//! - `restored_environment.rs`: the settings in the environment of a program that is started.
//! - `exec_sharing.rs`, `fork_sharing.rs`: connections that programs and children go on with.
//! - `inherited_sets.rs`: members of sets that a child inherits.
//! - `link.rs`: the link of the stack, which a master opens for its worker.
//! - `stack.rs`: its start, its end, and the guard of every call.
//! - `calls/`: the interposed functions, by family. `report.rs`, `refusals.rs`: lines for a person.
//!
//! `cargo xtask install` links the shared library from the static one: it gives the functions
//! `mp_preload_read` and so on libc's names, and the crate's own references to libc the names
//! `mp_inner_read` and so on. Without that step (in tests) nothing is interposed.
//!
//! Invariants
//! - A call on a kernel descriptor takes no lock, allocates nothing and uses no thread-local
//!   memory.
//! - No panic unwinds into the program.
//! - No call of the library's own code enters an interposed function.

// The terminal belongs to the program; `report.rs` writes to it.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod calls;
pub mod elf;
mod exec_sharing;
mod fall_back;
mod foreign_children;
mod fork_sharing;
mod handlers;
pub mod imports;
mod inheritance;
mod inherited_sets;
mod inner;
mod kernel_waits;
mod link;
mod memory;
mod nested_sets;
mod next;
mod numbers;
mod program_check;
mod raw;
mod received_tokens;
mod records;
mod refusals;
mod report;
mod restored_environment;
pub mod rules;
mod settings;
mod stack;
mod state_lock;

pub use settings::{
    KernelUse, LIBRARY, LOOPBACK, PreloadBackend, PreloadSettingError, PreloadSettings, TOKEN,
    VARIABLES, falls_back,
};

/// Returns the names of libc that the library interposes.
pub fn interposed_names() -> impl Iterator<Item = &'static str> {
    calls::names()
}

/// Exit status of a program whose settings are wrong.
pub const STATUS_OF_SETTINGS: i32 = 125;

/// Starts the library when it is loaded.
#[cfg_attr(not(feature = "library"), expect(dead_code, reason = "only the shared library starts"))]
fn load() {
    // SAFETY: takes an integer, and returns one.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights {
        return;
    }
    calls::resolve();
    match PreloadSettings::read_environment() {
        Ok(None) => {}
        Ok(Some(_)) if calls::process::has_other_copy() => {
            report::complain(format_args!("the preload library is loaded twice: one copy is used"));
        }
        Ok(Some(settings)) => {
            numbers::choose_own_range();
            calls::process::watch_forks();
            stack::activate(settings);
            calls::inherited::adopt_open();
        }
        Err(error) => {
            report::complain(format_args!("{error}"));
            calls::process::end(STATUS_OF_SETTINGS);
        }
    }
}

#[cfg(feature = "library")]
extern "C" fn constructor() {
    load();
}

#[cfg(feature = "library")]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
