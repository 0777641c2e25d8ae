//! A program under load: starts it on one of the stacks, puts its load on it, and ends it.
//!
//! Invariant: no process outlives the stage, also a worker of a program that was killed.

use super::{last_lines, programs::TestedProgram, unfit};
use crate::{
    cpu_time::process_and_descendants,
    layout::BenchLayout,
    limits,
    load::{LoadFailure, LoadPath, LoadPlan},
    measure::median,
    point::BarServer,
    preload_library::{self, PreloadLibrary, run_words},
    process::ChildProcess,
    server::{self, control_socket, session_args},
    stack_link::StackLink,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    fs::{self, File},
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A row could not be measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum PreloadBarError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error(transparent)]
    Load(#[from] LoadFailure),
    #[error("{program} has ended: {printed}")]
    Ended { program: String, printed: String },
    #[error("{program} was not ready within {} s: {printed}", limits::SCENE_PATIENCE.as_secs())]
    Late { program: String, printed: String },
}

/// What is behind the sockets of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramStack {
    /// Linux's TCP, without the library.
    Kernel,
    /// Linux's TCP by rules, with the library.
    KernelByRules,
    /// The stack in the process.
    Local,
    /// The stack of a daemon on the same core.
    Service,
}

impl ProgramStack {
    /// As results have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelByRules => "rules",
            Self::Local => "local",
            Self::Service => "service",
        }
    }

    /// The link to the load; `None`: that of the layout.
    pub(super) const fn link(self) -> Option<StackLink> {
        match self {
            Self::Kernel | Self::KernelByRules => None,
            Self::Local | Self::Service => Some(StackLink::Memif),
        }
    }

    /// Options of `megapipe run`; none for a program that is not preloaded.
    fn options(self, layout: &BenchLayout, scratch: &Path) -> Option<Vec<String>> {
        let local = || StackLink::Memif.server_args(layout, scratch);
        match self {
            Self::Kernel => None,
            Self::Local => Some(local()),
            Self::Service => Some(session_args(scratch)),
            Self::KernelByRules => {
                let rules = ["listen", "connect", "udp"].map(|call| format!("kernel {call} *:*"));
                let rules = rules.into_iter().flat_map(|rule| ["--rule".to_owned(), rule]);
                Some(local().into_iter().chain(rules).collect())
            }
        }
    }

    /// Worker processes of a program that has some: two with a daemon, which shares them out.
    const fn workers(self) -> usize {
        match self {
            Self::Service => 2,
            _ => 1,
        }
    }
}

/// Where programs run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramStage<'bench> {
    pub(super) layout: &'bench BenchLayout,
    pub(super) scratch: &'bench Path,
    pub(super) library: &'bench PreloadLibrary,
}

/// What one run of a program came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProgramSample {
    pub(super) requests_per_s: f64,
    pub(super) cpu_us: f64,
    /// Of the server's core.
    pub(super) idle_share: f64,
}

impl ProgramSample {
    /// Pure: the medians of a program's samples on one back end, if there are samples.
    pub(super) fn medians(program: &str, backend: &str, samples: &[Self]) -> Option<BarServer> {
        if samples.is_empty() {
            return None;
        }
        let of = |value: fn(&Self) -> f64| median(samples.iter().map(value));
        let idle_share = of(|it| it.idle_share);
        Some(BarServer {
            program: program.to_owned(),
            backend: backend.to_owned(),
            requests_per_s: of(|it| it.requests_per_s),
            cpu_us_per_request: of(|it| it.cpu_us),
            idle_share,
            saturated: idle_share < limits::SATURATED_IDLE_SHARE_MAX,
        })
    }
}

/// A program that serves. Ends on drop, with its children.
#[derive(Debug)]
pub(super) struct ServingProgram {
    pub(super) address: SocketAddr,
    label: String,
    log: PathBuf,
    process: ChildProcess,
    /// Ends after the program.
    daemon: Option<ChildProcess>,
    /// The address of what a proxy passes requests on to.
    pub(super) origin: SocketAddr,
    /// What runs there, in the order in which it ends, and the options of a load that shares the
    /// link's end with it.
    origin_processes: Vec<ChildProcess>,
    load_args: Option<Vec<String>>,
}

impl<'bench> ProgramStage<'bench> {
    /// Starts a program and waits until it can be connected to; over a link of its own, until the
    /// link can.
    pub(super) fn start(
        self,
        program: TestedProgram,
        stack: ProgramStack,
    ) -> Result<ServingProgram, PreloadBarError> {
        let Self { layout, scratch, library } = self;
        let link = stack.link();
        let (address, reserved) = server::free_address(link, layout)?;
        let (origin, reserved_origin) = server::free_address(link, layout)?;
        let origin = SocketAddr::new(self.load_ip(stack), origin.port());
        let (path, args) = program.command_line([address, origin], stack.workers(), scratch)?;
        let log = scratch.join("preloaded.log");
        let file = File::create(&log)?;
        remove_if_there(&scratch.join("memif.sock"))?;
        let place = &layout.server;
        let mut command = match stack.options(layout, scratch) {
            None => place.command(&path, args),
            Some(options) => {
                let words = run_words(options, &path, args);
                match stack {
                    // The daemon opens its control socket when its link has a peer.
                    ProgramStack::Service => {
                        place.command_after(&control_socket(scratch), &place.program, words)
                    }
                    _ => place.command(&place.program, words),
                }
            }
        };
        let daemon = match (stack, link) {
            (ProgramStack::Service, Some(link)) => {
                Some(server::start_daemon(link, layout, scratch, &file, &[])?)
            }
            _ => None,
        };
        command.env(preload_library::VARIABLE, &library.0);
        command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
        let process = ChildProcess::start(&mut command)?;
        let label = format!("{program:?} on {}", stack.name());
        let mut serving = ServingProgram {
            address,
            label,
            log,
            process,
            daemon,
            origin,
            origin_processes: Vec::new(),
            load_args: None,
        };
        serving.wait_until_ready(self, stack)?;
        drop((reserved, reserved_origin));
        Ok(serving)
    }

    /// As [`ProgramStage::start`], on `local`, of a command that is made for an address.
    pub(super) fn start_command(
        self,
        label: &str,
        command: impl FnOnce(SocketAddr) -> io::Result<Command>,
    ) -> Result<ServingProgram, PreloadBarError> {
        let stack = ProgramStack::Local;
        let (address, _) = server::free_address(stack.link(), self.layout)?;
        let log = self.scratch.join("preloaded.log");
        let file = File::create(&log)?;
        remove_if_there(&self.scratch.join("memif.sock"))?;
        let mut command = command(address)?;
        command.env(preload_library::VARIABLE, &self.library.0);
        command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
        let process = ChildProcess::start(&mut command)?;
        let label = label.to_owned();
        let mut serving = ServingProgram {
            address,
            label,
            log,
            process,
            daemon: None,
            origin: address,
            origin_processes: Vec::new(),
            load_args: None,
        };
        serving.wait_until_ready(self, stack)?;
        Ok(serving)
    }

    /// The address of the load's end on a stack.
    fn load_ip(self, stack: ProgramStack) -> IpAddr {
        match stack.link() {
            Some(_) => StackLink::memif_peer(self.layout, self.scratch).1,
            None => self.layout.load_address(),
        }
    }

    /// The way from the load to a program.
    pub(super) fn load_path(self, stack: ProgramStack) -> LoadPath {
        LoadPath::over(stack.link(), self.layout, self.scratch)
    }

    /// Measures a program under the load of `megapipe bench load`.
    pub(super) fn loaded(
        self,
        plan: &LoadPlan,
        serving: &mut ServingProgram,
        stack: ProgramStack,
        window: Duration,
    ) -> Result<ProgramSample, PreloadBarError> {
        let mut path = self.load_path(stack);
        if stack.link().is_some() {
            path.server_pids = serving.pids();
        }
        match &serving.load_args {
            Some(args) => path.link_args.clone_from(args),
            // A load that sleeps has to be woken by the program's core.
            None if stack.link().is_some() => {
                path.link_args.extend(["--spin", "always"].map(str::to_owned));
            }
            None => {}
        }
        let report = serving.retried(|serving| Ok(plan.run(serving.address, window, &path)?))?;
        if report.transactions_per_s <= 0.0 || report.seconds <= 0.0 {
            return Err(unfit(format!("{}: no request was answered", serving.label)));
        }
        let busy_us = report.server_ran_us.unwrap_or_else(|| report.server.busy_us(report.seconds));
        Ok(ProgramSample {
            requests_per_s: report.transactions_per_s,
            cpu_us: busy_us / (report.transactions_per_s * report.seconds),
            idle_share: report.server.idle_share(),
        })
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl ServingProgram {
    /// The program, and its daemon. Their children are found by these.
    pub(super) fn pids(&self) -> Vec<u32> {
        [&self.process].into_iter().chain(&self.daemon).map(ChildProcess::pid).collect()
    }

    /// What a proxy passes requests on to runs; it ends after the program.
    pub(super) fn set_origin(&mut self, processes: Vec<ChildProcess>, load_args: Vec<String>) {
        self.origin_processes = processes;
        self.load_args = Some(load_args).filter(|args| !args.is_empty());
    }

    /// An error if the program or its daemon has ended.
    pub(super) fn check(&mut self) -> Result<(), PreloadBarError> {
        let has_ended = |it: &mut ChildProcess| !matches!(it.ended(), Ok(None));
        if !has_ended(&mut self.process) && !self.daemon.as_mut().is_some_and(has_ended) {
            return Ok(());
        }
        Err(PreloadBarError::Ended { program: self.label.clone(), printed: last_lines(&self.log) })
    }

    /// Repeats a load that fails as long as the program may not listen yet: over a memif that is
    /// known only by trying, and a load may be what it waits for.
    pub(super) fn retried<T>(
        &mut self,
        mut load: impl FnMut(&mut Self) -> Result<T, PreloadBarError>,
    ) -> Result<T, PreloadBarError> {
        let deadline = Instant::now() + limits::SCENE_PATIENCE;
        loop {
            match load(self) {
                Err(PreloadBarError::Load(LoadFailure::Failed { .. }))
                    if Instant::now() < deadline =>
                {
                    self.check()?;
                    thread::sleep(limits::PRELOAD_RETRY);
                }
                other => return other,
            }
        }
    }

    fn wait_until_ready(
        &mut self,
        stage: ProgramStage<'_>,
        stack: ProgramStack,
    ) -> Result<(), PreloadBarError> {
        let deadline = Instant::now() + limits::SCENE_PATIENCE;
        let (address, socket) = (self.address, stage.scratch.join("memif.sock"));
        loop {
            let is_ready = match stack.link() {
                Some(_) => socket.exists(),
                None => stage.layout.on_load_side(|| TcpStream::connect(address).is_ok())?,
            };
            self.check()?;
            if is_ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                let (program, printed) = (self.label.clone(), last_lines(&self.log));
                return Err(PreloadBarError::Late { program, printed });
            }
            thread::sleep(limits::CHILD_POLL);
        }
    }

    /// The children of the program, by descriptors that stay theirs.
    fn children(&self) -> Vec<OwnedFd> {
        let list = || process_and_descendants(self.process.pid()).unwrap_or_default();
        let open = |pid: u32| {
            let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
            Some((pid, pidfd_open(raw, PidfdFlags::empty()).ok()?))
        };
        let opened: Vec<(u32, OwnedFd)> = list().into_iter().skip(1).filter_map(open).collect();
        // One that is a child still was one when its descriptor was opened.
        let still = list();
        opened.into_iter().filter(|(pid, _)| still.contains(pid)).map(|(_, fd)| fd).collect()
    }
}

impl Drop for ServingProgram {
    fn drop(&mut self) {
        let children = self.children();
        self.process.stop();
        for child in children {
            // It has ended with the program, unless that was killed.
            let _ = pidfd_send_signal(&child, Signal::KILL);
        }
    }
}

/// A preloaded command without a server, in the server's place.
pub(super) fn preloaded(stage: ProgramStage<'_>, program: &Path, args: Vec<String>) -> Command {
    let ProgramStage { layout, scratch, library } = stage;
    let options = StackLink::Memif.server_args(layout, scratch);
    let words = run_words(options, program, args);
    let mut command = layout.server.command(&layout.server.program, words);
    command.env(preload_library::VARIABLE, &library.0);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_daemon_has_two_workers_and_the_kernel_has_the_layouts_link() {
        let all = [ProgramStack::Kernel, ProgramStack::KernelByRules, ProgramStack::Local];
        assert!(all.iter().all(|stack| stack.workers() == 1));
        assert_eq!(ProgramStack::Service.workers(), 2);
        assert!(ProgramStack::KernelByRules.link().is_none());
        assert_eq!(ProgramStack::Local.link(), ProgramStack::Service.link());
    }
}
