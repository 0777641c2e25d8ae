//! A directory for one benchmark run: configurations, served files, logs. Removed on drop.
//!
//! That of a benchmark that was killed is removed by its keeper, or at the next start.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const PREFIX: &str = "megapipe-bench-";

/// The directory of a process.
fn directory_of(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{pid}"))
}

/// Removes the directory of a process, if it is there.
pub(crate) fn remove_directory_of(pid: u32) {
    let _ = fs::remove_dir_all(directory_of(pid));
}

/// The directory.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let path = directory_of(std::process::id());
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is swept at the next start.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
