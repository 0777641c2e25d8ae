//! The `megapipe` command: servers, load, benchmark, and machine report.
//!
//! In: a command line. Out: one of the programs of `megapipe-apps` and `megapipe-bench`, or `info`.
//! This crate only wires them together; `command.rs` is the table of what there is.
//!
//! Invariants
//! - Exit codes: 0 done, 1 failed (with one line on standard error that names every cause), 2
//!   invalid arguments, 3 a load without a single response.
//!   Those of `megapipe run` are in `run.rs`.
//! - A closed output pipe ends the output without a panic.
#![forbid(unsafe_code)]

mod command;
mod explain;
mod info;
mod manual;
mod observed;
mod run;
mod ss;

use std::process::ExitCode;

use megapipe_apps::number::parse_command_line;
use megapipe_apps::reason::{exit_code, reason};

fn main() -> ExitCode {
    let arguments = match parse_command_line::<command::CliArguments>() {
        Ok(arguments) => arguments,
        Err(error) => return run::usage_status(&error),
    };
    match arguments.run() {
        Ok(code) => code,
        Err(command::CommandError::Run(error)) => {
            eprintln!("megapipe: {}", reason(&error));
            error.status()
        }
        Err(error) => {
            eprintln!("megapipe: {}", reason(&error));
            exit_code(error.is_usage())
        }
    }
}
