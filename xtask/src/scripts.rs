//! `cargo xtask scripts`: packet scripts on our stack and on Linux, one line for each.
//!
//! Read first: `docs/SCRIPTS.md`. The running itself is `megapipe script`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ToolError;
use crate::process;

/// Runs the files, or all of `tests/scripts`, on both systems.
pub(crate) fn run(root: &Path, files: &[PathBuf]) -> Result<bool, ToolError> {
    let mut build = process::cargo(root);
    build.args(["build", "--locked", "--package", "megapipe-cli"]);
    if !process::passes_through(&mut build)? {
        return Ok(false);
    }
    let own = if files.is_empty() { own(root)? } else { Vec::new() };
    let mut fine = true;
    for system in ["stack", "linux"] {
        println!("on {system}");
        let mut command = Command::new(root.join("target/debug/megapipe"));
        command.args(["script", "--on", system]).args(files).args(&own);
        fine &= process::passes_through(&mut command)?;
    }
    Ok(fine)
}

/// The project's scripts, by name.
fn own(root: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let folder = root.join("tests/scripts");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(ToolError::file(&folder))? {
        let path = entry.map_err(ToolError::file(&folder))?.path();
        if path.extension().is_some_and(|extension| extension == "pkt") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
