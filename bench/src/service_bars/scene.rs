//! A daemon and the programs that it serves, for the daemon's bars.
//!
//! The daemon and its programs are processes on the server's cores. The client is in this process,
//! on the load's cores, at the other end of a memif; programs on the kernel's TCP have no daemon,
//! and their client is at the layout's load side.
//!
//! Invariant: no process outlives the scene, also one that is stopped.

use super::{loop_client::LoopClient, neighbour::NeighbourKind};
use crate::{
    accept_reset::AcceptError,
    answer_server::SlowPeriod,
    instructions::{callgrind_words, counted_in},
    layout::BenchLayout,
    limits,
    peer_channel::PeerError,
    process::ChildProcess,
    server::{self, control_socket, session_args},
    stack_link::{LinkSide, StackLink},
};
use megapipe::{Backend, Config, LocalNetwork, ServerConfig};
use megapipe_service::attach::{ServiceObserver, ServiceQueryError};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A bar of the daemon could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SceneError {
    #[error("the operating system refused a step: {0}")]
    System(#[from] io::Error),
    #[error("the client: {0}")]
    Peer(#[from] PeerError),
    #[error("a server in this process: {0}")]
    Server(#[from] AcceptError),
    #[error(transparent)]
    Query(#[from] ServiceQueryError),
    #[error("{what} did not come within {} s: {printed}", limits::SCENE_PATIENCE.as_secs())]
    Late { what: String, printed: String },
    #[error("{what} has ended: {printed}")]
    Ended { what: &'static str, printed: String },
    /// What happened is not what the bar is about.
    #[error("{0}")]
    Unfit(String),
}

/// The parts of a layout that a scene stands on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SceneStage<'bench> {
    pub(crate) layout: &'bench BenchLayout,
    pub(crate) scratch: &'bench Path,
}

/// What a program does with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// Each request is answered.
    Answer,
    /// Each connection is reset at once.
    Reset,
    /// It keeps the daemon busy, and serves no connection of others.
    Neighbour(NeighbourKind),
}

/// Where the stack of a scene's programs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SceneStack {
    Daemon,
    /// Inside the program, over the same link.
    Inline,
    Kernel,
}

/// How a program of a scene differs from the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramPlan {
    pub(super) port: u16,
    /// Sleep per request.
    pub(super) delay: Duration,
    /// When it sleeps longer.
    pub(super) slow: SlowPeriod,
    /// Most connections, of a program that answers.
    pub(super) connections: u32,
    pub(super) kind: ProgramKind,
}

impl ProgramPlan {
    /// A program at a port.
    pub(super) const fn at(port: u16) -> Self {
        let connections = limits::ACCEPT_CONNECTIONS_MAX;
        let slow = SlowPeriod { from_ns: 0, until_ns: 0, by: Duration::ZERO };
        Self { port, delay: Duration::ZERO, slow, connections, kind: ProgramKind::Answer }
    }
}

/// A process of the scene and what it prints.
#[derive(Debug)]
pub(super) struct SceneProcess {
    child: ChildProcess,
    log: PathBuf,
    /// Readable when it has ended.
    pidfd: OwnedFd,
}

/// The scene.
#[derive(Debug)]
pub(super) struct ServiceScene<'bench> {
    stage: SceneStage<'bench>,
    stack: SceneStack,
    programs: Vec<SceneProcess>,
    /// Last, so that the programs end first.
    daemon: Option<SceneProcess>,
    /// Options of the daemon.
    options: Vec<String>,
    /// The program that counts the instructions of all processes, if they are counted.
    valgrind: Option<PathBuf>,
}

fn pid_of(child: &ChildProcess) -> io::Result<Pid> {
    let pid = i32::try_from(child.pid()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl SceneProcess {
    pub(super) fn new(child: ChildProcess, log: PathBuf) -> io::Result<Self> {
        let pidfd = pidfd_open(pid_of(&child)?, PidfdFlags::empty())?;
        Ok(Self { child, log, pidfd })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// What it has printed.
    pub(super) fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(pid_of(&self.child)?, signal)?)
    }

    /// Stops the process, and waits until it runs no more.
    pub(super) fn stop(&self) -> Result<(), SceneError> {
        self.signal(Signal::STOP)?;
        let path = format!("/proc/{}/stat", self.pid());
        self.wait_for("the stop of a program", || {
            let stat = fs::read_to_string(&path)?;
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            Ok(state == Some('T'))
        })
    }

    /// Kills the process, and waits until it has ended.
    pub(super) fn kill(&self) -> Result<(), SceneError> {
        self.end(Signal::KILL)
    }

    /// Sends a signal that ends the process, and waits for the end.
    pub(super) fn end(&self, signal: Signal) -> Result<(), SceneError> {
        self.signal(signal)?;
        let patience =
            Timespec { tv_sec: limits::SCENE_PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        if poll(&mut ended, Some(&patience)).map_err(io::Error::from)? == 0 {
            return Err(self.late("the end of a process"));
        }
        Ok(())
    }

    fn late(&self, what: impl Into<String>) -> SceneError {
        SceneError::Late { what: what.into(), printed: last_lines(&self.printed()) }
    }

    /// Waits until a condition holds.
    pub(super) fn wait_for(
        &self,
        what: &'static str,
        mut condition: impl FnMut() -> Result<bool, SceneError>,
    ) -> Result<(), SceneError> {
        let deadline = Instant::now() + limits::SCENE_PATIENCE;
        while !condition()? {
            if Instant::now() > deadline {
                return Err(self.late(what));
            }
            thread::sleep(limits::SCENE_POLL);
        }
        Ok(())
    }

    /// Waits until it has printed a text, or fails if it ends.
    pub(super) fn wait_for_text(
        &mut self,
        what: &'static str,
        text: &str,
    ) -> Result<(), SceneError> {
        let deadline = Instant::now() + limits::SCENE_PATIENCE;
        while !self.printed().contains(text) {
            self.check(what)?;
            if Instant::now() > deadline {
                return Err(self.late(what));
            }
            thread::sleep(limits::SCENE_POLL);
        }
        Ok(())
    }

    fn check(&mut self, what: &'static str) -> Result<(), SceneError> {
        if self.child.ended()?.is_none() {
            return Ok(());
        }
        Err(SceneError::Ended { what, printed: last_lines(&self.printed()) })
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.len().saturating_sub(limits::LOG_LINES_SHOWN);
    if lines.is_empty() { "it printed nothing".to_owned() } else { lines[last..].join(" | ") }
}

/// What callgrind writes of a process with this log.
fn counts_file(log: &Path) -> PathBuf {
    log.with_extension("callgrind")
}

/// Waits until a process has made the socket of its link.
fn await_socket(
    socket: &Path,
    process: &mut SceneProcess,
    what: &'static str,
) -> Result<(), SceneError> {
    let deadline = Instant::now() + limits::SCENE_PATIENCE;
    while !socket.exists() {
        process.check(what)?;
        if Instant::now() > deadline {
            return Err(process.late(what));
        }
        thread::sleep(limits::SCENE_POLL);
    }
    Ok(())
}

impl<'bench> ServiceScene<'bench> {
    /// Starts a daemon with more options. It is ready when its link has a client.
    pub(super) fn start(stage: SceneStage<'bench>, options: &[&str]) -> Result<Self, SceneError> {
        Self::start_with(stage, options, None)
    }

    /// As [`Self::start`], with all processes under callgrind.
    pub(super) fn start_counted(
        stage: SceneStage<'bench>,
        valgrind: &Path,
        options: &[&str],
    ) -> Result<Self, SceneError> {
        Self::start_with(stage, options, Some(valgrind.to_owned()))
    }

    fn start_with(
        stage: SceneStage<'bench>,
        options: &[&str],
        valgrind: Option<PathBuf>,
    ) -> Result<Self, SceneError> {
        let mut scene = Self::without_daemon(stage, SceneStack::Daemon);
        scene.options = options.iter().map(|&option| option.to_owned()).collect();
        scene.valgrind = valgrind;
        scene.start_daemon()?;
        Ok(scene)
    }

    const fn without_daemon(stage: SceneStage<'bench>, stack: SceneStack) -> Self {
        Self {
            stage,
            stack,
            programs: Vec::new(),
            daemon: None,
            options: Vec::new(),
            valgrind: None,
        }
    }

    /// A scene without a daemon, whose programs are on the kernel's TCP.
    pub(super) const fn of_kernel(stage: SceneStage<'bench>) -> Self {
        Self::without_daemon(stage, SceneStack::Kernel)
    }

    /// A scene of one program with the stack inside. It listens when its link has a client.
    pub(super) fn of_inline(
        stage: SceneStage<'bench>,
        plan: ProgramPlan,
        is_polling: bool,
    ) -> Result<Self, SceneError> {
        let side = StackLink::MemifAsleep(LinkSide::Server);
        let link = if is_polling { StackLink::Memif } else { side };
        Self::without_daemon(stage, SceneStack::Inline).with_inline(plan, link)
    }

    /// As [`Self::of_inline`], of a program that sleeps when it is idle, under callgrind.
    pub(super) fn of_counted_inline(
        stage: SceneStage<'bench>,
        valgrind: &Path,
        plan: ProgramPlan,
    ) -> Result<Self, SceneError> {
        let mut scene = Self::without_daemon(stage, SceneStack::Inline);
        scene.valgrind = Some(valgrind.to_owned());
        scene.with_inline(plan, StackLink::MemifAsleep(LinkSide::Server))
    }

    fn with_inline(mut self, plan: ProgramPlan, link: StackLink) -> Result<Self, SceneError> {
        let SceneStage { layout, scratch } = self.stage;
        let socket = self.new_socket()?;
        let mut program = self.start_program(plan, link.server_args(layout, scratch))?;
        await_socket(&socket, &mut program, "the program")?;
        self.programs.push(program);
        Ok(self)
    }

    /// Waits until the program with the stack inside listens.
    pub(super) fn await_inline(&mut self) -> Result<(), SceneError> {
        let mut programs = self.programs.iter_mut();
        programs.try_for_each(|program| program.wait_for_text("the program", "listening on"))
    }

    /// The path of the link's socket. That of a process that was killed is removed.
    fn new_socket(&self) -> io::Result<PathBuf> {
        let socket = self.stage.scratch.join("memif.sock");
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(socket),
        }
    }

    /// Starts a daemon in place of the one that has ended.
    pub(super) fn start_daemon(&mut self) -> Result<(), SceneError> {
        let SceneStage { layout, scratch } = self.stage;
        let socket = self.new_socket()?;
        let log = scratch.join("daemon.log");
        let file = File::create(&log)?;
        let words = server::daemon_words(StackLink::Memif, layout, scratch, &self.options)?;
        let mut command = self.command(&server::daemon_program(layout), words, &log);
        command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
        let mut daemon = SceneProcess::new(ChildProcess::start(&mut command)?, log)?;
        await_socket(&socket, &mut daemon, "the daemon")?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// The client's end of the link, for so many connections. The daemon attaches programs from
    /// then on.
    pub(super) fn client(&self, connections: u32) -> Result<LoopClient, SceneError> {
        if self.stack == SceneStack::Kernel {
            return Ok(LoopClient::open(Config::default(), connections)?);
        }
        let SceneStage { layout, scratch } = self.stage;
        let (link, address, prefix_bits) = StackLink::memif_peer(layout, scratch);
        let settings = ServerConfig {
            addresses: vec![(address, prefix_bits)],
            connections: connections.saturating_mul(2),
            ..ServerConfig::default()
        };
        let network = LocalNetwork::open(&link, settings).map_err(PeerError::from)?;
        let config = Config::default().backend(Backend::Local(network));
        Ok(LoopClient::open(config, connections)?)
    }

    /// Waits until programs can attach.
    pub(super) fn await_daemon(&mut self) -> Result<(), SceneError> {
        match &mut self.daemon {
            Some(daemon) => daemon.wait_for_text("the daemon", "ready at"),
            None => Ok(()),
        }
    }

    /// Where a program at a port is reached.
    pub(super) fn address(&self, port: u16) -> SocketAddr {
        let layout = self.stage.layout;
        match self.stack {
            SceneStack::Kernel => SocketAddr::new(layout.server_address(), port),
            _ => SocketAddr::new(StackLink::Memif.server_address(layout), port),
        }
    }

    /// Starts a program and waits until it listens. Returns its number in the scene.
    pub(super) fn program(&mut self, plan: ProgramPlan) -> Result<usize, SceneError> {
        let options = match self.stack {
            SceneStack::Daemon => session_args(self.stage.scratch),
            _ => Vec::new(),
        };
        let mut program = self.start_program(plan, options)?;
        program.wait_for_text("a program", "listening on")?;
        self.programs.push(program);
        Ok(self.programs.len() - 1)
    }

    fn start_program(
        &self,
        plan: ProgramPlan,
        options: Vec<String>,
    ) -> Result<SceneProcess, SceneError> {
        let SceneStage { layout, scratch } = self.stage;
        let (address, cpus) = (self.address(plan.port).to_string(), layout.server.cpus.to_string());
        let (delay, most) = (plan.delay.as_micros().to_string(), plan.connections.to_string());
        let words = match plan.kind {
            ProgramKind::Answer => {
                vec!["answer-server", &address, "--delay", &delay, "--connections", &most]
            }
            ProgramKind::Reset => vec!["accept-server", &address, "--cpus", &cpus],
            ProgramKind::Neighbour(kind) => vec!["neighbour", &address, kind.name()],
        };
        let SlowPeriod { from_ns, until_ns, by } = plan.slow;
        let slow = [
            ("--slow-from", from_ns.into()),
            ("--slow-until", until_ns.into()),
            ("--slow-by", by.as_micros()),
        ];
        let slow = slow.into_iter().filter(|_| !by.is_zero());
        let slow = slow.flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
        let args = ["bench"].into_iter().chain(words).map(str::to_owned);
        let args = args.chain(slow).chain(options);
        let log = scratch.join(format!("program-{}.log", self.programs.len()));
        let file = File::create(&log)?;
        let mut command = self.command(&layout.server.program, args, &log);
        command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
        Ok(SceneProcess::new(ChildProcess::start(&mut command)?, log)?)
    }

    /// A command in the server's place, with a log; under callgrind, if instructions are counted.
    fn command(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = String>,
        log: &Path,
    ) -> Command {
        let place = &self.stage.layout.server;
        let Some(valgrind) = &self.valgrind else { return place.command(program, args) };
        let words = callgrind_words(&counts_file(log));
        let program = program.to_string_lossy().into_owned();
        place.command(valgrind, words.into_iter().chain([program]).chain(args))
    }

    /// Ends all processes. Returns the instructions that callgrind has counted in them.
    pub(super) fn end_counted(self) -> Result<u64, SceneError> {
        let mut sum = 0;
        for process in self.programs.iter().chain(&self.daemon) {
            process.end(Signal::TERM)?;
            let counted = counted_in(&fs::read_to_string(counts_file(&process.log))?);
            let none = || SceneError::Unfit("callgrind has counted nothing".to_owned());
            sum += counted.ok_or_else(none)?;
        }
        Ok(sum)
    }

    /// Several equal programs at a port.
    pub(super) fn programs_at(&mut self, port: u16, count: usize) -> Result<(), SceneError> {
        (0..count).try_for_each(|_| self.program(ProgramPlan::at(port)).map(|_| ()))
    }

    pub(super) fn programs(&mut self) -> &mut [SceneProcess] {
        &mut self.programs
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.programs.iter().map(SceneProcess::pid).collect()
    }

    /// # Errors
    /// A scene of programs on the kernel's TCP has none.
    pub(super) fn daemon(&mut self) -> Result<&mut SceneProcess, SceneError> {
        self.daemon.as_mut().ok_or_else(|| SceneError::Unfit("there is no daemon".to_owned()))
    }

    pub(super) const fn has_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// A look into the daemon's tables.
    pub(super) fn observer(&self) -> Result<ServiceObserver, SceneError> {
        Ok(ServiceObserver::connect(&control_socket(self.stage.scratch))?)
    }

    /// An error if a process has ended that should not have.
    pub(super) fn check(&mut self) -> Result<(), SceneError> {
        if let Some(daemon) = &mut self.daemon {
            daemon.check("the daemon")?;
        }
        self.programs.iter_mut().try_for_each(|program| program.check("a program"))
    }
}

impl Drop for ServiceScene<'_> {
    fn drop(&mut self) {
        // A stopped process would not end before it is killed.
        for program in &self.programs {
            let _ = program.signal(Signal::CONT);
        }
    }
}
