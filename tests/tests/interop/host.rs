//! Network namespaces, what joins them, and our programs there.
//!
//! ```text
//!  Tap              Linux and ours in one namespace: tap0 and the stack at its other end
//!  Packet, Xdp      Linux in one, ours in another: mp-far --veth-- mp-near, whose address the
//!                   kernel there shares with us
//! ```
//!
//! Invariants
//! - A test runs on a thread of its own, which enters Linux's namespace: what it starts is in
//!   there, but for our programs where they have a namespace of their own.
//! - Everything that was started ends with the test, and the namespaces and the folder go.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::judge;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Our stack's addresses.
pub(crate) const OURS: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// Linux's.
pub(crate) const LINUXES: [&str; 2] = ["10.77.0.1", "fd77::1"];
/// Our address on the wire.
pub(crate) const MAC: &str = "02:00:00:00:77:02";

/// What joins Linux and us.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// A TAP device; our address is ours alone.
    Tap,
    /// A packet socket on an interface of a kernel that has our address, too.
    Packet,
    /// AF_XDP on such an interface.
    Xdp,
}

/// Whose process has our stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum StackOwner {
    /// The program that uses it.
    Program,
    /// A daemon, which each of our programs has for itself.
    Daemon,
}

/// What befalls frames in both directions, in percent, by a seed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) reordering: u32,
    pub(crate) corruption: u32,
    pub(crate) seed: u64,
}

/// Loss of frames in percent, in both directions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss(pub(crate) u32);

/// What every kind of traffic has to stand.
pub(crate) const LOSSES: [Loss; 3] = [Loss(0), Loss(1), Loss(5)];

impl From<Loss> for Faults {
    fn from(Loss(loss): Loss) -> Self {
        Self { loss, seed: if loss > 0 { 7 } else { 0 }, ..Self::default() }
    }
}

impl Faults {
    const fn is_none(&self) -> bool {
        self.loss + self.duplication + self.reordering + self.corruption == 0
    }

    /// As settings of a link. With faults a frame is a segment: one loss takes up to 64 KiB
    /// otherwise.
    fn settings(&self, link: &str) -> String {
        if self.is_none() {
            return String::new();
        }
        let has_offloads = ["tap", "packet"].iter().any(|driver| link.starts_with(driver));
        let whole = if has_offloads { ",offload=off" } else { "" };
        let Self { loss, duplication, reordering, corruption, seed } = self;
        format!(
            "{whole},loss={loss}%,duplication={duplication}%,reordering={reordering}%,\
             corruption={corruption}%,seed={seed}"
        )
    }
}

impl Wire {
    /// Our end.
    const fn place(self) -> &'static str {
        match self {
            Self::Tap => "tap:tap0,mac=02:00:00:00:77:02",
            Self::Packet => "packet:mp-near",
            Self::Xdp => "xdp:mp-near",
        }
    }

    /// Linux's end.
    pub(crate) const fn interface(self) -> &'static str {
        match self {
            Self::Tap => "tap0",
            Self::Packet | Self::Xdp => "mp-far",
        }
    }
}

/// A namespace that goes with the value.
struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Result<Self, String> {
        ip(&format!("netns add {name}"))?;
        Ok(Self(name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns delete {}", self.0));
    }
}

/// Where a test takes place.
pub(crate) struct Host {
    test: &'static str,
    pub(crate) wire: Wire,
    owner: StackOwner,
    folder: PathBuf,
    captures: AtomicU32,
    /// Where our programs run, if not where Linux's do.
    ours: Option<Namespace>,
    _linuxes: Namespace,
}

impl Host {
    fn new(test: &'static str, wire: Wire, owner: StackOwner) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the values must differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mp-interop-{}-{number}", std::process::id());
        let linuxes = Namespace::new(name.clone())?;
        let ours = match wire {
            Wire::Tap => None,
            Wire::Packet | Wire::Xdp => Some(Namespace::new(format!("{name}-ours"))?),
        };
        let folder = std::env::temp_dir().join(&name);
        let captures = AtomicU32::new(0);
        let host = Self { test, wire, owner, folder, captures, ours, _linuxes: linuxes };
        fs::create_dir_all(&host.folder).map_err(|error| error.to_string())?;
        let file = File::open(format!("/run/netns/{name}"));
        let file = file.map_err(|error| format!("no network namespace: {error}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("no network namespace: {error}"))?;
        host.configure()?;
        Ok(host)
    }

    fn configure(&self) -> Result<(), String> {
        ip("link set lo up")?;
        match &self.ours {
            None => ip("tuntap add tap0 mode tap")?,
            Some(Namespace(ours)) => {
                let near = format!("mp-near address {MAC} netns {ours}");
                ip(&format!("link add {near} type veth peer name mp-far"))?;
                for (address, bits) in OURS.iter().zip([24, 64]) {
                    let nodad = if bits == 64 { " nodad" } else { "" };
                    ip(&format!("-n {ours} addr add {address}/{bits} dev mp-near{nodad}"))?;
                }
                for interface in ["lo", "mp-near"] {
                    ip(&format!("-n {ours} link set {interface} up"))?;
                }
            }
        }
        match self.wire {
            Wire::Tap => {}
            Wire::Packet => self.set_offloads(&["tso", "gso"], true)?,
            // A veth passes frames with incomplete checksums, which are not completed before an XDP
            // program.
            Wire::Xdp => self.set_offloads(&["tx"], false)?,
        }
        let interface = self.wire.interface();
        for conf in ["all", interface] {
            // An interface that comes back finds its address again.
            let knob = format!("/proc/sys/net/ipv6/conf/{conf}/keep_addr_on_down");
            fs::write(&knob, "1").map_err(|error| format!("{knob}: {error}"))?;
        }
        ip(&format!("addr add 10.77.0.1/24 dev {interface}"))?;
        ip(&format!("addr add fd77::1/64 dev {interface} nodad"))?;
        ip(&format!("link set {interface} up"))
    }

    /// What Linux's end of a veth leaves to the link.
    fn set_offloads(&self, names: &[&str], are_on: bool) -> Result<(), String> {
        let mut command = Command::new("ethtool");
        command.args(["-K", self.wire.interface()]);
        let switch = if are_on { "on" } else { "off" };
        command.args(names.iter().flat_map(|name| [*name, switch]));
        let done =
            command.output().map_err(|error| format!("ethtool is not installed: {error}"))?;
        let said = String::from_utf8_lossy(&done.stderr);
        if done.status.success() { Ok(()) } else { Err(format!("ethtool: {said}")) }
    }

    /// A program of ours, where our programs run.
    fn ours(&self, program: &str) -> Command {
        let Some(Namespace(ours)) = &self.ours else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ours, program]);
        command
    }

    /// A folder that goes with the test.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes of no order, in a file of the folder.
    pub(crate) fn random_file(&self, name: &str, len: usize) -> PathBuf {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let mut state = len as u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(len)
        .collect();
        fs::write(&path, bytes).expect("a file");
        path
    }

    /// Starts one of our programs on the wire; its capture is judged when it has ended.
    pub(crate) fn start(&self, faults: impl Into<Faults>, arguments: &[&str]) -> Program<'_> {
        self.start_at((self.wire.place(), MAC, OURS), faults, arguments)
    }

    /// The same on a link of its own, with its address there and above.
    pub(crate) fn start_at(
        &self,
        (link, mac, addresses): (&str, &'static str, [&str; 2]),
        faults: impl Into<Faults>,
        arguments: &[&str],
    ) -> Program<'_> {
        let faults = faults.into();
        if self.wire == Wire::Packet {
            // With faults a frame has to be a segment here, too.
            self.set_offloads(&["tso", "gso"], faults.is_none()).expect("it was done before");
        }
        let link = link.to_owned() + &faults.settings(link);
        // Relaxed: only the values must differ.
        let number = self.captures.fetch_add(1, Ordering::Relaxed);
        let capture = self.folder.join(format!("{number}.pcapng"));
        let mut network = vec!["--link".to_owned(), link];
        for (address, bits) in addresses.iter().zip([24, 64]) {
            network.extend(["--address".to_owned(), format!("{address}/{bits}")]);
        }
        let mut command = self.ours(env!("CARGO_BIN_EXE_interop"));
        command.args(arguments);
        let daemon = match self.owner {
            StackOwner::Program => {
                command.args(["--backend", "local"]).args(&network);
                command.env("MEGAPIPE_CAPTURE", &capture);
                None
            }
            StackOwner::Daemon => {
                let path = self.folder.join(format!("{number}.service"));
                command.args(["--backend", "service", "--service"]).arg(&path);
                Some(self.start_daemon(&network, &path, &capture))
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let running = Running::start(&mut command);
        let sender = judge::Sender { mac, has_damaged_peer: faults.corruption > 0 };
        Program { host: self, capture, sender, running, daemon }
    }

    /// Starts a daemon and waits until it is ready.
    fn start_daemon(&self, network: &[String], path: &Path, capture: &Path) -> Running {
        let mut command = self.ours(env!("CARGO_BIN_EXE_daemon"));
        command.args(network).arg("--service").arg(path).env("MEGAPIPE_CAPTURE", capture);
        let daemon = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        daemon.line("ready");
        daemon
    }

    /// Starts a server of ours on port 80 of both families and waits until it listens.
    pub(crate) fn serve(&self, faults: impl Into<Faults>, arguments: &[&str]) -> Program<'_> {
        let listen = OURS.map(|address| at(address, 80).to_string());
        let listen = ["--listen", &listen[0], "--listen", &listen[1]];
        let mut program = self.start(faults, &[arguments, &listen].concat());
        program.line("listening on ");
        program
    }

    /// Runs one of Linux's programs to its end.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(program).args(arguments);
        command.stdin(Stdio::null()).env("PATH", PATHS).output().expect("timeout runs")
    }

    /// The same; it has to succeed. What it printed.
    pub(crate) fn must_run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}{wrong}");
        said
    }

    /// The SHA-256 of a file, by coreutils.
    pub(crate) fn sha256(&self, path: &Path) -> String {
        let said = self.must_run("sha256sum", &[path.to_str().expect("a path of ours")]);
        said.split(' ').next().expect("a sum").to_owned()
    }

    /// Starts one of Linux's programs.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Running {
        Running::start(Command::new(program).args(arguments).env("PATH", PATHS))
    }
}

const PATHS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() {
            // What was captured is worth more than the space.
            eprintln!("captures and files stay in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A process that ends with the test.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (tell, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Ends with the process.
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = tell.send(line);
                }
            });
        }
        Self { stdin: child.stdin.take(), child, lines }
    }

    /// The next line that begins like this, without its beginning.
    fn line(&self, start: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.starts_with(start) => return line[start.len()..].to_owned(),
                Ok(_) => {}
                Err(error) => panic!("no line {start:?}: {error}"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("signalling");
    }

    /// Waits for the process's own end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.stdin = None;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of our programs.
pub(crate) struct Program<'a> {
    host: &'a Host,
    capture: PathBuf,
    sender: judge::Sender,
    pub(crate) running: Running,
    /// The daemon that has its stack, and its end of the link.
    daemon: Option<Running>,
}

impl Program<'_> {
    /// The next line that begins like this, without its beginning.
    pub(crate) fn line(&mut self, start: &str) -> String {
        self.running.line(start)
    }

    /// Lets a server end, and judges what it sent.
    pub(crate) fn stop(self) -> judge::Verdict {
        self.running.signal(Signal::INT);
        self.finish()
    }

    /// Waits for the end of a program whose link may have broken: the program at its other end is
    /// over.
    pub(crate) fn end_with_link(mut self) -> judge::Verdict {
        let status = self.end();
        assert!(matches!(status.code(), Some(0 | 1)), "{status}");
        judge::judge(self.host.test, &self.capture, self.sender)
    }

    /// Lets a server end that need not have sent anything.
    pub(crate) fn stop_unheard(mut self) -> judge::Verdict {
        self.running.signal(Signal::INT);
        let status = self.end();
        assert!(status.success(), "{status}");
        judge::look_through(self.host.test, &self.capture, self.sender).unwrap_or_default()
    }

    /// Waits for the end of a program that ends by itself once standard input does.
    pub(crate) fn finish(mut self) -> judge::Verdict {
        let status = self.end();
        assert!(status.success(), "{status}");
        judge::judge(self.host.test, &self.capture, self.sender)
    }

    /// The program's own end, and that of its daemon.
    fn end(&mut self) -> ExitStatus {
        let status = self.running.end();
        if let Some(daemon) = &mut self.daemon {
            let ended = daemon.end();
            assert!(ended.success(), "the daemon: {ended}");
        }
        status
    }

    /// Kills it, with its stack, in the middle of what it does. Its capture ends anywhere and is
    /// not judged.
    pub(crate) fn kill(mut self) {
        for mut running in self.daemon.take().into_iter().chain([self.running]) {
            running.signal(Signal::KILL);
            running.end();
        }
    }
}

/// Runs `test` in namespaces of its own, or says why not.
pub(crate) fn with_host(
    name: &'static str,
    (wire, owner): (Wire, StackOwner),
    programs: &[&str],
    test: fn(&Host),
) {
    for program in programs {
        let found = PATHS.split(':').any(|folder| Path::new(folder).join(program).is_file());
        if !found {
            println!("skipped: {name}: {program} is not installed");
            return;
        }
    }
    let run = move || match Host::new(name, wire, owner) {
        Ok(host) => test(&host),
        Err(why) => println!("skipped: {name}: {why}"),
    };
    // The thread goes, and with it what belongs to the namespace.
    let ended = thread::spawn(run).join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Runs `ip` with arguments that hold no spaces.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip is not installed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {}", said.trim())) }
}

/// `10.77.0.2:80` and `[fd77::2]:80`.
pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port)
}
