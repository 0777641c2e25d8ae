//! Each fuzz target for a few seconds: that it builds, that its seeds pass, and what luck finds.
//!
//! Longer runs are a person's: `cargo +nightly fuzz run TARGET`, in the root.

use std::path::Path;

use super::lanes::{self, Tick};
use super::{Display, StepOutcome, checked, command};
use crate::error::ToolError;
use crate::limits;
use crate::process;

/// Seconds for each target, in addition to its seeds.
const SECONDS: u32 = 3;

/// Builds all targets and runs each. Findings are in `fuzz/artifacts`.
pub(super) fn smoke(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    if process::output_of(process::nightly(root).args(["fuzz", "--version"])).is_err() {
        let why = "no cargo-fuzz, or no nightly for it; `cargo xtask setup` installs the first, \
                   `rustup toolchain install nightly` the second";
        return Ok(StepOutcome::skip("fuzz", why));
    }
    // The crates under test have no unsafe code, so that a sanitizer would only cost time.
    let built =
        command(process::nightly(root).args(["fuzz", "build", "--sanitizer", "none"]), display)?;
    if !built.counts.failures.is_empty() {
        return Ok(built);
    }
    let targets = process::output_of(process::nightly(root).args(["fuzz", "list"]))?;
    let targets = targets.lines().map(str::to_owned).collect();
    let (counts, output) =
        lanes::run(targets, limits::BUSY_LANES, display, |target, tick| one(root, target, tick));
    let note = format!("{} targets", counts.passed + counts.failures.len());
    Ok(StepOutcome { counts, output, note })
}

fn one(root: &Path, target: &str, tick: Tick<'_>) -> Result<StepOutcome, ToolError> {
    let mut run = process::nightly(root);
    run.args(["fuzz", "run", "--sanitizer", "none", target]);
    // New inputs go to the first folder.
    let corpus = root.join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&corpus).map_err(ToolError::file(&corpus))?;
    run.arg(corpus);
    let seeds = root.join("fuzz/seeds").join(target);
    if seeds.is_dir() {
        run.arg(seeds);
    }
    run.args(["--", &format!("-max_total_time={SECONDS}"), "-max_len=4096", "-len_control=0"]);
    checked(&mut run, tick)
}
