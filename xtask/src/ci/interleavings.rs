//! The steps that look at shared memory as a single run cannot: loom tries every order of threads
//! and every value that a load may return, Miri checks each access against the language's rules.
//!
//! Both compile with their own flags, so each has its own target folder.

use std::path::Path;

use super::{Display, StepOutcome, counted};
use crate::error::ToolError;
use crate::process;

const PACKAGE: &str = "megapipe-shm";

/// The models of the ring and the doorbell.
pub(super) fn loom(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    let mut test = process::cargo(root);
    // Optimised: a model runs many thousand times.
    test.args(["test", "--package", PACKAGE, "--lib", "--release", "--locked"]);
    test.args(["--target-dir", "target/loom", "--", "--show-output"]);
    // Nothing here is shipped: what is built must only build fast.
    test.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    test.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    counted("loom", test.env("RUSTFLAGS", "--cfg loom"), &mut |line| display.tick(line))
}

/// The tests of the library that need no system call.
pub(super) fn miri(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    if process::output_of(process::nightly(root).args(["miri", "--version"])).is_err() {
        let why = "no nightly with Miri; `rustup +nightly component add miri` brings it";
        return Ok(StepOutcome::skip("miri", why));
    }
    let mut test = process::nightly(root);
    test.args(["miri", "test", "--package", PACKAGE, "--lib", "--locked"]);
    test.args(["--target-dir", "target/miri", "--", "--show-output"]);
    let test = test.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    counted("miri", test, &mut |line| display.tick(line))
}
