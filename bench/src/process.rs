//! Child processes: affinity, namespaces, and termination with the benchmark.
//!
//! Every server and load is started through `megapipe bench exec`, which enters the network
//! namespace, takes its cores, asks to be killed when the benchmark dies, and then becomes the
//! program. [`ChildProcess`] ends its process on drop. Only processes started here are ever
//! signalled.

use crate::limits;
use megapipe_apps::{serve::CpuList, threads};
use rustix::{
    process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal},
    thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity},
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Where a child runs.
#[derive(Clone, Debug)]
pub(crate) struct ProcessPlace {
    /// The `megapipe` executable, through which children are started.
    pub(crate) program: PathBuf,
    /// The network namespace to enter; none for the host's own.
    pub(crate) netns: Option<PathBuf>,
    /// The cores it may use.
    pub(crate) cpus: CpuList,
}

impl ProcessPlace {
    /// The command that runs `program args…` in this place; streams are closed or captured by the
    /// caller.
    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(&self.program);
        let parent = std::process::id().to_string();
        command.args(["bench", "exec", "--parent", &parent, "--cpus", &self.cpus.to_string()]);
        if let Some(netns) = &self.netns {
            command.arg("--netns").arg(netns);
        }
        command.arg("--").arg(program).args(args).stdin(Stdio::null());
        command
    }

    /// As `command`, of a program that begins when there is something at `path`.
    pub(crate) fn command_after<A: AsRef<OsStr>>(
        &self,
        path: &Path,
        program: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let then = [program.as_os_str().to_owned()].into_iter();
        let then = then.chain(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        let words = ["bench", "await"].map(OsString::from);
        let path = path.as_os_str().to_owned();
        let words = words.into_iter().chain([path, OsString::from("--")]).chain(then);
        self.command(&self.program, words)
    }
}

/// Options of `megapipe bench exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecArgs {
    /// The process that has to be its parent
    #[arg(long)]
    parent: u32,
    /// Network namespace to enter first
    #[arg(long)]
    netns: Option<PathBuf>,
    /// Cores to run on
    #[arg(long)]
    cpus: CpuList,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Options of `megapipe bench await`.
#[derive(Clone, Debug, clap::Args)]
pub struct AwaitArgs {
    /// What has to be there first
    path: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Waits until there is something at a path, then becomes another program. Returns only if either
/// fails. Blocks.
pub(crate) fn await_path(args: &AwaitArgs) -> io::Error {
    let deadline = Instant::now() + limits::AWAITED_MAX;
    while !args.path.exists() {
        if Instant::now() > deadline {
            let why = format!("nothing came at {}", args.path.display());
            return io::Error::new(io::ErrorKind::TimedOut, why);
        }
        thread::sleep(limits::AWAITED_POLL);
    }
    Command::new(&args.command[0]).args(&args.command[1..]).exec()
}

/// Becomes another program on the given cores and namespace. Returns only if that fails.
pub(crate) fn exec(args: &ExecArgs) -> io::Error {
    if let Err(error) = enter(args) {
        return error;
    }
    Command::new(&args.command[0]).args(&args.command[1..]).exec()
}

fn enter(args: &ExecArgs) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent died before that call, no signal comes, and the process has another parent now.
    let parent = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
    if parent != Some(args.parent) {
        let why = format!("process {} is not the parent any more", args.parent);
        return Err(io::Error::other(why));
    }
    if let Some(netns) = &args.netns {
        enter_netns(netns)?;
    }
    pin(&args.cpus)
}

/// Confines the calling thread, and what it starts from now on, to some cores.
pub(crate) fn pin(cpus: &CpuList) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.as_slice() {
        set.set(cpu);
    }
    sched_setaffinity(None, &set)?;
    Ok(())
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_netns(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// A child that is ended when dropped.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
}

impl ChildProcess {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: command.spawn()? })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's output, if it is captured. Each stream is returned once.
    pub(crate) fn streams(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// The exit status if the child has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the child's end, at most `limit`, and ends it then. Blocks.
    pub(crate) fn output_within(mut self, limit: Duration) -> io::Result<Option<Output>> {
        let stdout = self.child.stdout.take().map(reader).transpose()?;
        let stderr = self.child.stderr.take().map(reader).transpose()?;
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if Instant::now() >= deadline {
                self.stop();
                break None;
            }
            thread::sleep(limits::CHILD_POLL);
        };
        let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
            reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        Ok(status.map(|status| Output { status, stdout, stderr }))
    }

    /// Asks the child to end, waits a little, then ends it.
    pub(crate) fn stop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The child has not been waited for, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + limits::CHILD_STOP_MAX;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(limits::CHILD_POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a thread that reads a stream of a child to its end.
fn reader(stream: impl io::Read + Send + 'static) -> io::Result<thread::JoinHandle<Vec<u8>>> {
    threads::spawn("drain", || drain(stream))
}

/// Output of a stream until its end, at most [`limits::OUTPUT_BYTES_MAX`].
fn drain(stream: impl io::Read) -> Vec<u8> {
    let mut text = Vec::new();
    let mut limited = io::Read::take(stream, limits::OUTPUT_BYTES_MAX);
    // What was read before an error is what there is to show.
    let _ = io::Read::read_to_end(&mut limited, &mut text);
    // Read on, so that the child never blocks on a full pipe.
    let _ = io::copy(&mut limited.into_inner(), &mut io::sink());
    text
}

/// The full path of a program in `PATH` or where Debian keeps daemons.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(daemons)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}
