//! The servers under test: names, start, readiness.

use crate::{
    baseline::Baseline,
    debian::{DebianPlace, DebianProgram},
    files::ServedFileSet,
    layout::{BenchLayout, MeasuredLink},
    limits,
    preload_library::{self, PreloadLibrary, run_words},
    process::ChildProcess,
    stack_link::{LinkSide, StackLink, StackPlacement},
};
use megapipe_apps::serve::CpuList;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use serde::Deserialize;
use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::Instant,
};

/// Statistics that a server with a stack thread writes at its end.
const STATISTICS_FILE: &str = "server.json";

/// Features disabled in a channel server, for the ablation [MP table 5.1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ablation {
    pub(crate) no_partition: bool,
    pub(crate) no_batching: bool,
    pub(crate) no_lwsockets: bool,
}

impl Ablation {
    /// As the paper writes it: what the baseline has been given, `+PBL` being everything.
    pub(crate) fn name(self) -> String {
        let given = [(self.no_partition, 'P'), (self.no_batching, 'B'), (self.no_lwsockets, 'L')];
        let letters: String =
            given.iter().filter(|(missing, _)| !missing).map(|(_, letter)| letter).collect();
        if letters.is_empty() { "none".to_owned() } else { format!("+{letters}") }
    }
}

/// The driver that a channel server is forced to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ForcedDriver {
    Uring,
    Epoll,
}

impl ForcedDriver {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Epoll => "epoll",
        }
    }
}

/// One server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TestedServer {
    /// A megapipe server; without an ablation, as it comes.
    Channel(ForcedDriver, Option<Ablation>),
    /// A megapipe server on the stack, in placement `inline`.
    Local(StackLink),
    /// The same with the stack somewhere else.
    Placed(StackLink, StackPlacement),
    /// The megapipe server that is written on sockets and epoll, on our own stack, which runs
    /// inside the calls unless it is placed somewhere else.
    Sockets(StackLink, Option<StackPlacement>),
    /// The same on the kernel's TCP.
    KernelSockets(ForcedDriver),
    /// So many processes of the megapipe server, which share a port and the stack of a daemon.
    Shared(StackLink, u8),
    Baseline(Baseline),
    /// A program as Debian packages it.
    Debian(DebianProgram, DebianPlace),
}

impl TestedServer {
    /// Programs of Debian's on the kernel's TCP.
    pub(crate) const NGINX: Self = Self::Debian(DebianProgram::Nginx, DebianPlace::Kernel);
    pub(crate) const MEMCACHED: Self = Self::Debian(DebianProgram::Memcached, DebianPlace::Kernel);
    pub(crate) const LIGHTTPD: Self = Self::Debian(DebianProgram::Lighttpd, DebianPlace::Kernel);

    /// `server` in points.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Channel(..) | Self::Local(_) | Self::Placed(..) | Self::Shared(..) => "channel",
            Self::Sockets(..) | Self::KernelSockets(_) => "sockets",
            Self::Baseline(baseline) => baseline.name(),
            Self::Debian(program, _) => program.name(),
        }
    }

    /// `driver` in points.
    pub(crate) const fn driver(self) -> &'static str {
        match self {
            Self::Channel(driver, _) | Self::KernelSockets(driver) => driver.name(),
            Self::Local(_) | Self::Placed(..) | Self::Sockets(..) | Self::Shared(..) => "stack",
            Self::Debian(_, DebianPlace::Local(_) | DebianPlace::Service(_)) => "stack",
            Self::Baseline(Baseline::IoUring) => "uring",
            Self::Baseline(_) | Self::Debian(_, DebianPlace::Kernel) => "epoll",
        }
    }

    /// `backend` in points.
    pub(crate) const fn backend(self) -> &'static str {
        match (self.place(), self.stack_link()) {
            (Some(StackPlacement::Service), _) => "service",
            (_, Some(_)) => "local",
            (_, None) => "kernel",
        }
    }

    /// `placement` in points.
    pub(crate) const fn placement(self) -> &'static str {
        match (self.place(), self.stack_link()) {
            (Some(placement), _) => placement.name(),
            (None, Some(_)) => "inline",
            (None, None) => "kernel",
        }
    }

    /// The program on sockets to compare with a channel, on the kernel's TCP.
    pub(crate) const fn on_sockets(self) -> Option<Self> {
        match self {
            Self::Channel(driver, None) => Some(Self::KernelSockets(driver)),
            _ => None,
        }
    }

    /// The placement of the stack, if it has its own thread.
    pub(crate) const fn place(self) -> Option<StackPlacement> {
        match self {
            Self::Placed(_, placement) => Some(placement),
            Self::Sockets(_, placement) => placement,
            Self::Shared(..) | Self::Debian(_, DebianPlace::Service(_)) => {
                Some(StackPlacement::Service)
            }
            // What `megapipe run` chooses.
            Self::Debian(_, DebianPlace::Local(_)) => Some(StackPlacement::Thread),
            _ => None,
        }
    }

    /// The same program of Debian's, unmodified, over a link of our own stack.
    pub(crate) fn preloaded(self, link: StackLink) -> Option<[Self; 2]> {
        let Self::Debian(program, DebianPlace::Kernel) = self else { return None };
        let places = [DebianPlace::Local(link), DebianPlace::Service(link)];
        Some(places.map(|place| Self::Debian(program, place)))
    }

    /// Whether it writes statistics of its stack's thread at its end.
    const fn tells(self) -> bool {
        self.place().is_some() && self.programs() == 1 && !matches!(self, Self::Debian(..))
    }

    /// Number of its processes, without a daemon.
    const fn programs(self) -> u8 {
        match self {
            Self::Shared(_, programs) => programs,
            _ => 1,
        }
    }

    /// The link of the stack; `None` for servers on the kernel's TCP.
    pub(crate) const fn stack_link(self) -> Option<StackLink> {
        match self {
            Self::Local(link)
            | Self::Placed(link, _)
            | Self::Sockets(link, _)
            | Self::Shared(link, _)
            | Self::Debian(_, DebianPlace::Local(link) | DebianPlace::Service(link)) => Some(link),
            _ => None,
        }
    }

    /// The link to the load: the stack's own, or the layout's.
    pub(crate) const fn link(self, layout: &BenchLayout) -> MeasuredLink {
        match self.stack_link() {
            Some(link) => link.link(),
            None => layout.link,
        }
    }

    /// `variant` in points.
    pub(crate) fn variant(self) -> String {
        match self {
            Self::Channel(_, Some(ablation)) => ablation.name(),
            Self::Shared(_, programs) => format!("{programs} programs"),
            _ => self.stack_link().map_or("", StackLink::variant).to_owned(),
        }
    }

    /// The name in tables and legends.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Channel(driver, None) => format!("channel ({})", driver.name()),
            Self::KernelSockets(driver) => format!("sockets ({})", driver.name()),
            Self::Channel(_, Some(ablation)) => format!("channel {}", ablation.name()),
            Self::Shared(link, _) => format!("service ({}), {}", link.name(), self.variant()),
            Self::Local(link) | Self::Placed(link, _) | Self::Sockets(link, _) => {
                let place = self.place().map_or("", StackPlacement::name);
                let more = [place, link.variant()].into_iter().filter(|more| !more.is_empty());
                let server = format!("{} ({})", self.name(), link.name());
                more.fold(server, |label, more| label + ", " + more)
            }
            Self::Debian(program, DebianPlace::Local(link)) => {
                format!("{} preloaded ({})", program.name(), link.name())
            }
            Self::Debian(program, DebianPlace::Service(link)) => {
                format!("{} preloaded ({}), service", program.name(), link.name())
            }
            other => other.name().to_owned(),
        }
    }

    /// Whether both are started by the same command: an ablation that takes nothing away is the
    /// server as it comes.
    pub(crate) fn is_same_process(self, other: Self) -> bool {
        let plain = |server| match server {
            Self::Channel(driver, Some(ablation)) if ablation == Ablation::default() => {
                Self::Channel(driver, None)
            }
            server => server,
        };
        plain(self) == plain(other)
    }

    /// Why this server cannot be measured here, if so.
    pub(crate) fn missing(self) -> Option<String> {
        let of_program = match self {
            Self::Debian(program, _) => program.missing(),
            _ => None,
        };
        of_program.or_else(|| self.stack_link()?.missing())
    }
}

/// What a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServiceKind {
    Rpc,
    Kv,
    Http(ServedFileSet),
    /// Connections that are accepted and reset.
    AcceptReset,
    /// Rpc, with enough connection slots.
    ManyIdle,
    /// Rpc by two channels, whatever the number of cores: on the stack they share the link's queue.
    TwoChannels,
}

impl ServiceKind {
    /// As messages have it.
    const fn name(self) -> &'static str {
        match self {
            Self::Rpc | Self::ManyIdle | Self::TwoChannels => "rpc",
            Self::AcceptReset => "accept and reset",
            Self::Kv => "kv",
            Self::Http(_) => "http",
        }
    }
}

/// A server could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerStartError {
    /// The operating system refused a step.
    #[error("cannot start {server}: {source}")]
    Start {
        /// Which server.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// It ended unexpectedly.
    #[error("{server} ended immediately: {said}")]
    Ended {
        /// Which server.
        server: String,
        /// Its last words.
        said: String,
    },
    /// It accepts no connection.
    #[error("{server} does not accept connections after {} s: {said}",
        limits::SERVER_READY_MAX.as_secs())]
    NotReady {
        /// Which server.
        server: String,
        /// Its last words.
        said: String,
    },
    /// There is no such server for this service.
    #[error("{server} does not serve {service}")]
    Unfit {
        /// Which server.
        server: String,
        /// The operation that failed.
        service: &'static str,
    },
}

/// A server that accepts connections. Ends on drop.
#[derive(Debug)]
pub(crate) struct RunningServer {
    pub(crate) address: SocketAddr,
    process: ChildProcess,
    /// The other programs that share its port.
    siblings: Vec<ChildProcess>,
    /// The daemon with its stack; ends after the server.
    daemon: Option<ChildProcess>,
    server: TestedServer,
    label: String,
    log: PathBuf,
}

impl RunningServer {
    /// Starts `server` in the layout's server place and waits until it accepts. Blocks.
    pub(crate) fn start(
        server: TestedServer,
        service: ServiceKind,
        layout: &BenchLayout,
        scratch: &Path,
    ) -> Result<Self, ServerStartError> {
        let label = server.label();
        let failed = |source| ServerStartError::Start { server: label.clone(), source };
        if let ServiceKind::Http(files) = service {
            files.prepare(scratch).map_err(failed)?;
        }
        let link = server.stack_link();
        let offload = link != Some(StackLink::Xdp);
        layout.offload_load_checksums(offload).map_err(io::Error::from).map_err(failed)?;
        if let Some(link) = link {
            link.prepare(layout).map_err(io::Error::from).map_err(failed)?;
        }
        let (address, _reserved) = free_address(link, layout).map_err(failed)?;
        let (program, args) = command_line(server, service, address, layout, scratch)?;
        let library = match server {
            TestedServer::Debian(_, DebianPlace::Local(_) | DebianPlace::Service(_)) => {
                let found = PreloadLibrary::find(&layout.server.program);
                Some(found.map_err(io::Error::other).map_err(failed)?)
            }
            _ => None,
        };
        let log = scratch.join("server.log");
        let said = File::create(&log).map_err(failed)?;
        let daemon = match (server.place(), link) {
            (Some(StackPlacement::Service), Some(link)) => {
                Some(start_daemon(link, layout, scratch, &said, &[]).map_err(failed)?)
            }
            _ => None,
        };
        let start = || {
            let mut command = match &daemon {
                // It opens its control socket when its link has a peer.
                Some(_) => layout.server.command_after(&control_socket(scratch), &program, &args),
                None => layout.server.command(&program, &args),
            };
            if let Some(library) = &library {
                command.env(preload_library::VARIABLE, &library.0);
            }
            command.stdout(Stdio::from(said.try_clone()?)).stderr(Stdio::from(said.try_clone()?));
            ChildProcess::start(&mut command)
        };
        let process = start().map_err(failed)?;
        let siblings = (1..server.programs()).map(|_| start());
        let siblings = siblings.collect::<io::Result<_>>().map_err(failed)?;
        let mut running = Self { address, process, siblings, daemon, server, label, log };
        running.wait_until_ready(layout)?;
        Ok(running)
    }

    /// The process in `/proc`.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All its processes, and that of its daemon.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let programs = [&self.process].into_iter().chain(&self.siblings);
        programs.chain(&self.daemon).map(ChildProcess::pid).collect()
    }

    /// The process of its daemon, where it has one.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(ChildProcess::pid)
    }

    /// An error if the server or its daemon has ended.
    pub(crate) fn check(&mut self) -> Result<(), ServerStartError> {
        let has_ended = |it: &mut ChildProcess| !matches!(it.ended(), Ok(None));
        let mut others = self.siblings.iter_mut().chain(&mut self.daemon);
        if has_ended(&mut self.process) || others.any(has_ended) {
            return Err(ServerStartError::Ended { server: self.label.clone(), said: self.said() });
        }
        Ok(())
    }

    /// Ends the server: how many events its stack's thread told for each time that it woke the
    /// server's [MT 3.2]; none where the stack has no thread of its own. Blocks until the end.
    pub(crate) fn finish(mut self) -> io::Result<Option<f64>> {
        self.process.stop();
        if !self.server.tells() {
            return Ok(None);
        }
        let told = fs::read(self.log.with_file_name(STATISTICS_FILE))?;
        let channels: Vec<ChannelStatistics> = serde_json::from_slice(&told)?;
        Ok(events_per_wakeup(&channels))
    }

    fn wait_until_ready(&mut self, layout: &BenchLayout) -> Result<(), ServerStartError> {
        let deadline = Instant::now() + limits::SERVER_READY_MAX;
        let address = self.address;
        loop {
            let is_ready = match self.server.stack_link() {
                // What it listens on can be reached by a load of its own, or from one place.
                Some(_) => self.says_it_listens(),
                None => layout.on_load_side(|| TcpStream::connect(address).is_ok()).map_err(
                    |source| ServerStartError::Start { server: self.label.clone(), source },
                )?,
            };
            self.check()?;
            if is_ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(ServerStartError::NotReady {
                    server: self.label.clone(),
                    said: self.said(),
                });
            }
            thread::sleep(limits::CHILD_POLL);
        }
    }

    /// Whether it printed that it is ready. A memif's server says so when a load has come, and is
    /// ready for one as soon as its socket is there.
    fn says_it_listens(&self) -> bool {
        let socket = self.log.with_file_name("memif.sock");
        self.server.stack_link().is_some_and(StackLink::is_memif) && socket.exists()
            || fs::read_to_string(&self.log).is_ok_and(|text| text.contains("listening on"))
    }

    /// The end of what it printed.
    fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.len().saturating_sub(limits::LOG_LINES_SHOWN);
        if lines.is_empty() { "it printed nothing".to_owned() } else { lines[last..].join(" | ") }
    }
}

/// An address of the server side that nothing listens on. A port of the host's comes with a bound
/// socket that does not listen: it keeps the port from other programs, and every tested server sets
/// SO_REUSEADDR.
pub(crate) fn free_address(
    link: Option<StackLink>,
    layout: &BenchLayout,
) -> io::Result<(SocketAddr, Option<TcpListener>)> {
    // A ring gives up its listener some time after its process has gone, so that a port is best
    // not used twice. In a namespace of our own all ports are ours.
    static NEXT_PORT: AtomicU16 = AtomicU16::new(limits::PORT_FIRST);
    let (ip, is_own) = match link {
        Some(link) => (link.server_address(layout), true),
        None => (layout.server_address(), layout.server.netns.is_some()),
    };
    if is_own {
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed).max(limits::PORT_FIRST);
        return Ok((SocketAddr::new(ip, port), None));
    }
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::new(ip, 0))?;
    let reserved = TcpListener::from(socket);
    Ok((reserved.local_addr()?, Some(reserved)))
}

fn command_line(
    server: TestedServer,
    service: ServiceKind,
    address: SocketAddr,
    layout: &BenchLayout,
    scratch: &Path,
) -> Result<(PathBuf, Vec<String>), ServerStartError> {
    let own = || layout.server.program.clone();
    let unfit = |service| ServerStartError::Unfit { server: server.label(), service };
    match (server, service) {
        (TestedServer::Channel(driver, ablation), service) => {
            let ablation = ablation.unwrap_or_default();
            let mut args = service_args(service, address, layout, scratch);
            args.extend(channel_args(driver, ablation));
            Ok((own(), args))
        }
        (TestedServer::Local(link), service) => {
            let mut args = service_args(service, address, layout, scratch);
            args.extend(link.server_args(layout, scratch));
            Ok((own(), args))
        }
        (TestedServer::Placed(link, placement), service) => {
            let mut args = service_args(service, address, layout, scratch);
            if placement != StackPlacement::Service {
                args.extend(link.server_args(layout, scratch));
            }
            args.extend(placement_args(placement, service, scratch));
            Ok((own(), args))
        }
        (TestedServer::Shared(..), service) => {
            let mut args = service_args(service, address, layout, scratch);
            args.extend(session_args(scratch));
            Ok((own(), args))
        }
        (TestedServer::Sockets(link, placement), ServiceKind::Rpc) => {
            let mut args = service_args(service, address, layout, scratch);
            args.extend(link.server_args(layout, scratch));
            args.extend(["--api", "sockets"].map(str::to_owned));
            let placed = placement.map(|placement| placement_args(placement, service, scratch));
            args.extend(placed.into_iter().flatten());
            Ok((own(), args))
        }
        (TestedServer::KernelSockets(driver), ServiceKind::Rpc) => {
            let mut args = service_args(service, address, layout, scratch);
            args.extend(["--api", "sockets", "--driver", driver.name()].map(str::to_owned));
            Ok((own(), args))
        }
        (TestedServer::Baseline(baseline), ServiceKind::Rpc) => {
            Ok((own(), baseline_args(baseline, address, layout)))
        }
        (TestedServer::Baseline(baseline), ServiceKind::AcceptReset) => {
            let mut args = baseline_args(baseline, address, layout);
            args.push("--reset".to_owned());
            Ok((own(), args))
        }
        (TestedServer::Debian(program, place), service) => {
            let files = match service {
                ServiceKind::Http(files) => Some(files),
                ServiceKind::Kv => None,
                other => return Err(unfit(other.name())),
            };
            let words = program.words(files, address, layout, scratch);
            let words = words
                .map_err(|source| ServerStartError::Start { server: server.label(), source })?;
            let words = words.ok_or_else(|| unfit(service.name()))?;
            let options = match place {
                DebianPlace::Kernel => return Ok((program.path(), words)),
                DebianPlace::Local(link) => link.server_args(layout, scratch),
                DebianPlace::Service(_) => session_args(scratch),
            };
            Ok((own(), run_words(options, &program.path(), words)))
        }
        (_, service) => Err(unfit(service.name())),
    }
}

/// What is served, where, and on which cores.
fn service_args(
    service: ServiceKind,
    address: SocketAddr,
    layout: &BenchLayout,
    scratch: &Path,
) -> Vec<String> {
    let mut args: Vec<String> = vec!["serve".to_owned()];
    match service {
        ServiceKind::AcceptReset => {
            let cpus = layout.server.cpus.to_string();
            let words = ["bench", "accept-server", &address.to_string(), "--cpus", &cpus];
            return words.map(str::to_owned).to_vec();
        }
        ServiceKind::ManyIdle => {
            let room = limits::STACK_IDLE_ROOM.to_string();
            args.extend(["rpc", "--max-connections", &room].map(str::to_owned));
        }
        ServiceKind::Rpc | ServiceKind::TwoChannels => args.push("rpc".to_owned()),
        ServiceKind::Kv => args.extend(["kv", "--memory", "1G"].map(str::to_owned)),
        ServiceKind::Http(files) => {
            let root = files.directory(scratch).to_string_lossy().into_owned();
            args.extend(["http".to_owned(), "--root".to_owned(), root]);
        }
    }
    let channels = match service {
        ServiceKind::TwoChannels => 2,
        _ => layout.server.cpus.as_slice().len(),
    };
    let channels = channels.to_string();
    args.extend(["--listen".to_owned(), address.to_string(), "--channels".to_owned(), channels]);
    args.extend(["--cpus".to_owned(), layout.server.cpus.to_string()]);
    args
}

/// Where the daemon and its applications meet.
pub(crate) fn control_socket(scratch: &Path) -> PathBuf {
    scratch.join("service.sock")
}

/// Starts a daemon in the server's place, with more options. What it prints goes into a file.
pub(crate) fn start_daemon(
    link: StackLink,
    layout: &BenchLayout,
    scratch: &Path,
    log: &File,
    options: &[String],
) -> io::Result<ChildProcess> {
    let args = daemon_words(link, layout, scratch, options)?;
    let mut command = layout.server.command(&daemon_program(layout), args);
    command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log.try_clone()?));
    ChildProcess::start(&mut command)
}

/// The daemon's program: beside that of the servers.
pub(crate) fn daemon_program(layout: &BenchLayout) -> PathBuf {
    layout.server.program.with_file_name("megapiped")
}

/// The arguments of a daemon in the server's place, whose control socket is not there yet.
pub(crate) fn daemon_words(
    link: StackLink,
    layout: &BenchLayout,
    scratch: &Path,
    options: &[String],
) -> io::Result<Vec<String>> {
    let args = link.daemon_args(LinkSide::Server, layout, scratch);
    let mut words = daemon_words_at(args, &layout.server.cpus, scratch)?;
    words.extend(options.iter().cloned());
    Ok(words)
}

/// The same with these options of the link, on these cores, and the control socket in `folder`.
pub(crate) fn daemon_words_at(
    link_args: Vec<String>,
    cpus: &CpuList,
    folder: &Path,
) -> io::Result<Vec<String>> {
    let path = control_socket(folder);
    // One of an earlier run that was killed would be taken for this one's.
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut words = link_args;
    words.extend(["--service".to_owned(), path.to_string_lossy().into_owned()]);
    words.extend(["--cpus".to_owned(), cpus.to_string()]);
    Ok(words)
}

/// The options of a server whose stack is in a daemon.
pub(crate) fn session_args(scratch: &Path) -> Vec<String> {
    let path = control_socket(scratch).to_string_lossy().into_owned();
    ["--backend", "service", "--service"].map(str::to_owned).into_iter().chain([path]).collect()
}

/// A server with a stack thread writes its statistics at its end.
fn placement_args(placement: StackPlacement, service: ServiceKind, scratch: &Path) -> Vec<String> {
    let mut args = match placement {
        StackPlacement::Service => session_args(scratch),
        _ => ["--placement", placement.name()].map(str::to_owned).to_vec(),
    };
    if service != ServiceKind::AcceptReset {
        let drain = limits::SERVER_DRAIN.as_secs().to_string();
        let told = scratch.join(STATISTICS_FILE).to_string_lossy().into_owned();
        args.extend(["--drain".to_owned(), drain, "--json".to_owned(), told]);
    }
    args
}

/// What such a server writes, read back.
#[derive(Debug, Deserialize)]
struct ChannelStatistics {
    server_events: u64,
    server_wakeups: u64,
}

/// Returns the events per wake-up of all channels; `None` without wake-ups.
fn events_per_wakeup(channels: &[ChannelStatistics]) -> Option<f64> {
    let events: u64 = channels.iter().map(|channel| channel.server_events).sum();
    let wakeups: u64 = channels.iter().map(|channel| channel.server_wakeups).sum();
    (wakeups > 0).then(|| events as f64 / wakeups as f64)
}

fn channel_args(driver: ForcedDriver, ablation: Ablation) -> Vec<String> {
    let mut args = ["--driver", driver.name()].map(str::to_owned).to_vec();
    if ablation.no_partition {
        args.push("--no-partition".to_owned());
    }
    if ablation.no_batching {
        args.extend(["--batch", "1"].map(str::to_owned));
    }
    if ablation.no_lwsockets {
        args.push("--no-lwsockets".to_owned());
    }
    args
}

fn baseline_args(baseline: Baseline, address: SocketAddr, layout: &BenchLayout) -> Vec<String> {
    let threads = layout.server.cpus.as_slice().len().to_string();
    let cpus = layout.server.cpus.to_string();
    let address = address.to_string();
    let args = ["bench", "server", baseline.name(), "--listen", &address, "--threads", &threads];
    args.into_iter().chain(["--cpus", &cpus]).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        Ablation, ChannelStatistics, DebianPlace, DebianProgram, ForcedDriver, LinkSide, StackLink,
        StackPlacement, TestedServer, events_per_wakeup,
    };

    #[test]
    fn ablations_are_named_as_in_the_paper() {
        let all = Ablation { no_partition: true, no_batching: true, no_lwsockets: true };
        assert_eq!(all.name(), "none");
        assert_eq!(Ablation { no_partition: false, ..all }.name(), "+P");
        assert_eq!(Ablation { no_lwsockets: true, ..Ablation::default() }.name(), "+PB");
        assert_eq!(Ablation::default().name(), "+PBL");
    }

    #[test]
    fn events_are_divided_by_the_wake_ups_of_all_channels() {
        let told = r#"[{"requests": 9, "server_events": 4000, "server_wakeups": 1},
                       {"requests": 9, "server_events": 340, "server_wakeups": 1}]"#;
        let channels: Vec<ChannelStatistics> = serde_json::from_str(told).unwrap();
        assert_eq!(events_per_wakeup(&channels), Some(2_170.0));
        assert_eq!(events_per_wakeup(&[]), None);
    }

    #[test]
    fn labels_tell_servers_apart() {
        let servers = [
            TestedServer::Channel(ForcedDriver::Uring, None),
            TestedServer::Channel(ForcedDriver::Epoll, None),
            TestedServer::Channel(ForcedDriver::Uring, Some(Ablation::default())),
            TestedServer::Baseline(crate::baseline::Baseline::IoUring),
            TestedServer::NGINX,
            TestedServer::MEMCACHED,
            TestedServer::LIGHTTPD,
            TestedServer::Debian(DebianProgram::Nginx, DebianPlace::Local(StackLink::Memif)),
            TestedServer::Debian(DebianProgram::Nginx, DebianPlace::Service(StackLink::Memif)),
            TestedServer::Local(StackLink::Memif),
            TestedServer::Local(StackLink::MemifAsleep(LinkSide::Server)),
            TestedServer::Local(StackLink::MemifAsleep(LinkSide::Load)),
            TestedServer::Placed(StackLink::Memif, StackPlacement::Thread),
            TestedServer::Placed(StackLink::MemifAsleep(LinkSide::Server), StackPlacement::Thread),
            TestedServer::Placed(StackLink::Memif, StackPlacement::Core),
            TestedServer::Placed(StackLink::Memif, StackPlacement::Service),
            TestedServer::Shared(StackLink::Memif, 2),
            TestedServer::Sockets(StackLink::Memif, None),
            TestedServer::Sockets(StackLink::Memif, Some(StackPlacement::Thread)),
            TestedServer::KernelSockets(ForcedDriver::Uring),
            TestedServer::Local(StackLink::Xdp),
        ];
        let mut labels: Vec<String> = servers.iter().map(|server| server.label()).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), servers.len());
    }
}
