//! The `megapipe` command: servers, load, benchmark, and what this machine offers.
//!
//! In: a command line. Out: one of the programs of `megapipe-apps` and `megapipe-bench`, or `info`.
//! This crate only wires them together; `command.rs` is the table of what there is.
//!
//! Invariants
//! - Exit codes: 0 done, 1 failed (with one line on standard error, which says why to the last
//!   cause), 2 a mistake in the arguments, 3 a load that got not one answer.
//! - A reader of the output that goes away ends the output, not the program with a panic.
#![forbid(unsafe_code)]

mod command;
mod info;
mod manual;

use std::process::ExitCode;

use clap::Parser;
use megapipe_apps::reason::{exit_code, reason};

fn main() -> ExitCode {
    match command::Command::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("megapipe: {}", reason(&error));
            exit_code(error.is_usage())
        }
    }
}
