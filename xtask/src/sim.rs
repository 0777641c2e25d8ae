//! `cargo xtask sim`: worlds of many hosts with the real stack, by their seeds.
//!
//! Read first: `sim/src/lib.rs`. The running itself is the package `megapipe-sim`.

use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::process;

/// Builds the simulation and runs one seed, or many. `false`: a world broke a rule.
pub(crate) fn run(root: &Path, seed: Option<u64>, fixed: u64, fresh: u64) -> Result<bool, Error> {
    let mut command = command(root, fixed, fresh);
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    process::passes_through(&mut command)
}

/// The command that runs many seeds.
pub(crate) fn command(root: &Path, fixed: u64, fresh: u64) -> Command {
    let mut command = process::cargo(root);
    command.args(["run", "--quiet", "--locked", "--profile", "fast", "--package", "megapipe-sim"]);
    command.args(["--", "--fixed", &fixed.to_string(), "--fresh", &fresh.to_string()]);
    command
}
