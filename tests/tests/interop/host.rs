//! A network namespace with a TAP device, and our programs on it.
//!
//! Invariants
//! - A test runs on a thread of its own, which enters the namespace: what it starts is in there.
//! - Everything that was started ends with the test, and the namespace and the folder go.

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

/// Loss of frames in percent, in both directions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss(pub(crate) u32);

/// What every kind of traffic has to stand.
pub(crate) const LOSSES: [Loss; 3] = [Loss(0), Loss(1), Loss(5)];

impl Loss {
    fn link(self) -> String {
        match self.0 {
            0 => format!("tap:tap0,mac={MAC}"),
            percent => format!("tap:tap0,mac={MAC},offload=off,loss={percent}%,seed=7"),
        }
    }
}

/// The namespace of a test.
pub(crate) struct Host {
    test: &'static str,
    name: String,
    folder: PathBuf,
    captures: AtomicU32,
}

impl Host {
    fn new(test: &'static str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the values must differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mp-interop-{}-{number}", std::process::id());
        ip(&format!("netns add {name}"))?;
        let folder = std::env::temp_dir().join(&name);
        let host = Self { test, name, folder, captures: AtomicU32::new(0) };
        fs::create_dir_all(&host.folder).map_err(|error| error.to_string())?;
        let file = File::open(format!("/run/netns/{}", host.name));
        let file = file.map_err(|error| format!("no network namespace: {error}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("no network namespace: {error}"))?;
        host.configure()?;
        Ok(host)
    }

    fn configure(&self) -> Result<(), String> {
        ip("link set lo up")?;
        ip("tuntap add tap0 mode tap")?;
        for conf in ["all", "tap0"] {
            // An interface that comes back finds its address again.
            let knob = format!("/proc/sys/net/ipv6/conf/{conf}/keep_addr_on_down");
            fs::write(&knob, "1").map_err(|error| format!("{knob}: {error}"))?;
        }
        ip("addr add 10.77.0.1/24 dev tap0")?;
        ip("addr add fd77::1/64 dev tap0 nodad")?;
        ip("link set tap0 up")
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

    /// Starts one of our programs on the TAP device; its capture is judged when it has ended.
    pub(crate) fn start(&self, loss: Loss, arguments: &[&str]) -> Program<'_> {
        // Relaxed: only the values must differ.
        let number = self.captures.fetch_add(1, Ordering::Relaxed);
        let capture = self.folder.join(format!("{number}.pcapng"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_interop"));
        command.args(arguments).args(["--backend", "local", "--link", &loss.link()]);
        for (address, bits) in OURS.iter().zip([24, 64]) {
            command.args(["--address", &format!("{address}/{bits}")]);
        }
        command.env("MEGAPIPE_CAPTURE", &capture).stdin(Stdio::piped()).stdout(Stdio::piped());
        Program { host: self, capture, running: Running::start(&mut command) }
    }

    /// Starts a server of ours on port 80 of both families and waits until it listens.
    pub(crate) fn serve(&self, loss: Loss, arguments: &[&str]) -> Program<'_> {
        let listen = OURS.map(|address| at(address, 80).to_string());
        let listen = ["--listen", &listen[0], "--listen", &listen[1]];
        let mut program = self.start(loss, &[arguments, &listen].concat());
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
        let _ = ip(&format!("netns delete {}", self.name));
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
    pub(crate) running: Running,
}

impl Program<'_> {
    /// The next line that begins like this, without its beginning.
    pub(crate) fn line(&mut self, start: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.running.lines.recv_timeout(left) {
                Ok(line) if line.starts_with(start) => return line[start.len()..].to_owned(),
                Ok(_) => {}
                Err(error) => panic!("no line {start:?}: {error}"),
            }
        }
    }

    /// Lets a server end, and judges what it sent.
    pub(crate) fn stop(self) -> judge::Verdict {
        self.running.signal(Signal::INT);
        self.finish()
    }

    /// Waits for the end of a program that ends by itself once standard input does.
    pub(crate) fn finish(mut self) -> judge::Verdict {
        let status = self.running.end();
        assert!(status.success(), "{status}");
        judge::judge(self.host.test, &self.capture)
    }

    /// Kills it in the middle of what it does. Its capture ends anywhere and is not judged.
    pub(crate) fn kill(mut self) {
        self.running.signal(Signal::KILL);
        self.running.end();
    }
}

/// Runs `test` in a namespace of its own, or says why not.
pub(crate) fn with_host(name: &'static str, programs: &[&str], test: fn(&Host)) {
    for program in programs {
        let found = PATHS.split(':').any(|folder| Path::new(folder).join(program).is_file());
        if !found {
            println!("skipped: {name}: {program} is not installed");
            return;
        }
    }
    let run = move || match Host::new(name) {
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
