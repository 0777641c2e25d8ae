//! `cargo xtask sim`: worlds of many hosts with the real stack, by their seeds.
//!
//! Read first: `sim/src/lib.rs`. The running itself is the package `megapipe-sim`.

use std::path::Path;
use std::process::Command;

use crate::error::ToolError;
use crate::process;

/// Builds the simulation and runs one seed, or many. `false`: an invariant was violated.
pub(crate) fn run(
    root: &Path,
    seed: Option<u64>,
    fixed: u64,
    fresh: u64,
) -> Result<bool, ToolError> {
    let mut command = command(root, fixed, fresh);
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    process::passes_through(&mut command)
}

/// The command that runs many seeds.
pub(crate) fn command(root: &Path, fixed: u64, fresh: u64) -> Command {
    let mut command = process::cargo(root);
    // Not quiet: a cold build takes minutes, and CI stops what is silent for long.
    command.args(["run", "--locked", "--profile", "fast", "--package", "megapipe-sim"]);
    command.args(["--", "--fixed", &fixed.to_string(), "--fresh", &fresh.to_string()]);
    command
}
