//! A small part of a foreign test suite, under the preload library and plainly: CPython's cases of
//! epoll, poll, select and selectors.
//!
//! The whole suites take minutes: `cargo xtask programs SUITE`.

use std::path::Path;
use std::process::Command;

use super::{Display, StepOutcome, command};
use crate::error::ToolError;
use crate::programs;

const MODULES: [&str; 4] = ["test_epoll", "test_poll", "test_select", "test_selectors"];

pub(super) fn check(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    if programs::has_python_tests() != Some(true) {
        let why = "libpython3.11-testsuite is not installed; `cargo xtask setup` does";
        return Ok(StepOutcome::skip("programs", why));
    }
    if !programs::has_network_namespaces() {
        return Ok(StepOutcome::skip("programs", "no network namespace can be made here"));
    }
    // The file itself was replaced if an earlier step has built this command again.
    let mut suite = Command::new("/proc/self/exe");
    suite.current_dir(root).args(["programs", "cpython"]).args(MODULES);
    command(&mut suite, display)
}
