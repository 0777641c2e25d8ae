//! The keeper process: removes namespaces and files after a benchmark that was killed.
//!
//! It holds one end of a pipe and waits until the other end closes: when the benchmark ends, on
//! success and on error, on Ctrl-C, and if it is killed. Then it removes the network namespaces
//! and the scratch directory, if they are still there.

use crate::{layout, scratch};
use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

/// A keeper at work. On drop it does what is left to do and ends.
#[derive(Debug)]
pub(crate) struct KeeperProcess(Child);

impl KeeperProcess {
    /// A keeper for this process. To be started before there is anything to tidy up.
    pub(crate) fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["bench", "keep", "--pid", &std::process::id().to_string()]);
        // In a separate process group, so that Ctrl-C does not end it before its work is done.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for KeeperProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Options of `megapipe bench keep`.
#[derive(Clone, Debug, clap::Args)]
pub struct KeepArgs {
    /// The benchmark whose resources are removed when standard input ends
    #[arg(long)]
    pid: u32,
}

/// Waits until the benchmark closes its end of the pipe, then tidies up. Blocks.
pub(crate) fn keep(args: &KeepArgs) -> io::Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    layout::remove_namespaces_of(args.pid);
    scratch::remove_directory_of(args.pid);
    Ok(())
}
