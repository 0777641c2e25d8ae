//! `crates/stack` for a machine without an operating system: the proof that it knows no clock, no
//! thread and no system call.

use std::path::Path;
use std::process::Command;

use super::{Display, StepOutcome, command};
use crate::error::ToolError;
use crate::process;

/// A microcontroller: 32 bits, no operating system, `core` and `alloc` alone.
const TARGET: &str = "thumbv7em-none-eabi";

/// Checks the crate for [`TARGET`], and gets the target where rustup is there to get it.
pub(super) fn check(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    if !is_installed(root) {
        let mut rustup = Command::new("rustup");
        rustup.args(["target", "add", TARGET]).current_dir(root);
        let added = process::output_of(&mut rustup);
        if added.is_err() || !is_installed(root) {
            let why = format!("no {TARGET}; with a network `rustup target add {TARGET}` gets it");
            return Ok(StepOutcome::skip("no-os", &why));
        }
    }
    let mut check = process::cargo(root);
    check.args(["check", "--package", "megapipe-stack", "--target", TARGET, "--locked"]);
    command(&mut check, display)
}

fn is_installed(root: &Path) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(root);
    let library = process::output_of(&mut rustc);
    library.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}
