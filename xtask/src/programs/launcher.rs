//! Starts a program in a network namespace of its own, plain or by `megapipe run`.
//!
//! Invariants
//! - The namespace has a loopback device, and no other.
//! - A program that takes too long ends, with all that it has started.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::ToolError;
use crate::process;

/// How a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RunMode {
    /// Without the library.
    Plain,
    Kernel,
    /// With loopback in the stack, on a memif without a peer.
    Local,
}

impl RunMode {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Kernel, Self::Local];
}

impl fmt::Display for RunMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Local => "local",
        })
    }
}

/// What starts programs in one mode.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    /// The command `megapipe`.
    megapipe: PathBuf,
    library: PathBuf,
    mode: RunMode,
}

/// How a program ended, and what it printed.
pub(super) struct Launched {
    /// `None`: it took too long.
    pub(super) status: Option<ExitStatus>,
    pub(super) text: String,
}

/// A command whose arguments are a program and its arguments: the program has a network namespace
/// of its own, with a loopback device.
pub(super) fn in_namespace() -> Command {
    let mut command = Command::new("unshare");
    let is_root = rustix::process::geteuid().is_root();
    command.arg(if is_root { "-n" } else { "-rn" });
    command.args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command
}

impl Launcher {
    /// # Errors
    /// No network namespace can be made here.
    pub(super) fn new(
        megapipe: PathBuf,
        library: PathBuf,
        folder: &Path,
    ) -> Result<Self, ToolError> {
        fs::create_dir_all(folder).map_err(ToolError::file(folder))?;
        let launcher = Self { megapipe, library, mode: RunMode::Plain };
        let mut probe = launcher.command(Path::new("true"), folder);
        process::output_of(&mut probe)?;
        Ok(launcher)
    }

    pub(super) fn with_mode(&self, mode: RunMode) -> Self {
        Self { mode, ..self.clone() }
    }

    /// A new folder for the files of a program, which may write there.
    pub(super) fn folder() -> Result<ProgramFolder, ToolError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mp-programs-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).map_err(ToolError::file(&path))?;
        Ok(ProgramFolder(path))
    }

    /// The command that starts a program, with its files in `folder`.
    pub(super) fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = in_namespace();
        let backend = self.mode.to_string();
        if self.mode != RunMode::Plain {
            command.arg(&self.megapipe).args(["run", "--backend", &backend]);
            command.env("MEGAPIPE_PRELOAD", &self.library);
        }
        if self.mode == RunMode::Local {
            let link = format!("memif:{},role=server", folder.join("link").display());
            command.args(["--loopback", "stack", "--address", "10.99.0.1/24", "--link", &link]);
        }
        if self.mode != RunMode::Plain {
            command.arg("--");
        }
        command.arg(program).current_dir(folder).env("HOME", folder).stdin(Stdio::null());
        command
    }

    /// Runs a command of [`Self::command`] to its end, at most for `limit`.
    pub(super) fn run(
        command: &mut Command,
        folder: &Path,
        limit: Duration,
    ) -> Result<Launched, ToolError> {
        let log = folder.join("output");
        let file = File::create(&log).map_err(ToolError::file(&log))?;
        let errors = file.try_clone().map_err(ToolError::file(&log))?;
        let program = process::describe(command);
        let broken = |source| ToolError::Start { program: program.clone(), source };
        let mut child = command.stdout(file).stderr(errors).spawn().map_err(broken)?;
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(broken)? {
                break Some(status);
            }
            if Instant::now() > deadline {
                process::stop_tree(child.id());
                child.wait().map_err(broken)?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let bytes = fs::read(&log).map_err(ToolError::file(&log))?;
        Ok(Launched { status, text: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// A folder that goes on drop.
pub(super) struct ProgramFolder(PathBuf);

impl ProgramFolder {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ProgramFolder {
    fn drop(&mut self) {
        // A folder that stays costs a little space.
        let _ = fs::remove_dir_all(&self.0);
    }
}
