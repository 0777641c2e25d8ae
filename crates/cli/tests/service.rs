//! `megapiped` and the programs that it serves, each in a process of its own: two daemons at the
//! ends of a memif, a server at one of them and a load at the other. No process needs a privilege.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

#[path = "service/deaths.rs"]
mod deaths;
#[path = "service/fall_back.rs"]
mod fall_back;
#[path = "service/layout.rs"]
mod layout;
#[path = "service/observe.rs"]
mod observe;
#[path = "service/policy.rs"]
mod policy;
#[path = "service/ports.rs"]
mod ports;

/// Longer than any wait here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// The addresses of the two daemons.
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mp-service-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is ended on drop, whatever happens. Its standard output begins with a line that
/// says that it is ready.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    ready: String,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdout, ready: String::new() }
    }

    /// Waits for the first line. `false`: it is another one.
    fn becomes_ready(&mut self, with: &str) -> bool {
        self.stdout.read_line(&mut self.ready).expect("a line");
        self.ready.contains(with)
    }

    fn until_ready(mut self, with: &str) -> Self {
        if self.becomes_ready(with) {
            return self;
        }
        let line = self.ready.clone();
        panic!("{line:?}: {}", self.end(Signal::KILL).1);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it is ours");
    }

    /// Sends a signal and waits for the end. Returns the exit code and standard error.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut text).expect("text");
        (self.wait(), text)
    }

    fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut rest = String::new();
        let _ = self.stdout.read_to_string(&mut rest);
    }
}

/// The daemon at one end of the folder's link.
fn megapiped(folder: &Folder, end: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapiped"));
    let link = format!("memif:{},role={}", folder.file("memif"), ["server", "client"][end]);
    let address = format!("{}/24", ADDRESSES[end]);
    command.args(["--link", &link, "--address", &address]);
    command.args(["--service", &folder.file(&format!("service{end}"))]);
    command
}

/// Both daemons.
fn daemons(folder: &Folder) -> [Running; 2] {
    daemons_of(folder, &[])
}

/// Both daemons, with more options.
fn daemons_of(folder: &Folder, options: &[&str]) -> [Running; 2] {
    let start = |end| {
        let mut command = megapiped(folder, end);
        command.args(options);
        Running::start(command)
    };
    // Each waits for the other one.
    [0, 1].map(start).map(|it| it.until_ready("ready at"))
}

/// `megapipe` with the words of `line`, attached to one of the daemons.
fn attached(folder: &Folder, end: usize, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    let path = folder.file(&format!("service{end}"));
    command.args(["--backend", "service", "--service", &path]);
    command
}

fn server_command(folder: &Folder) -> Command {
    attached(folder, 0, &format!("serve rpc --listen {}:7000", ADDRESSES[0]))
}

fn server(folder: &Folder) -> Running {
    Running::start(server_command(folder)).until_ready("listening on")
}

fn load_command(folder: &Folder, seconds: &str) -> Command {
    let target = ADDRESSES[0];
    let line = format!("load rpc {target}:7000 --connections 4 --warmup 0 --duration {seconds}");
    attached(folder, 1, &line)
}

/// Both streams of a program that has ended.
fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[track_caller]
fn assert_served(folder: &Folder) {
    let load = load_command(folder, "0.5").output().expect("it runs");
    let text = text_of(&load);
    assert!(load.status.success(), "{text}");
    assert!(text.contains("transactions") && text.contains("errors          none"), "{text}");
}

/// Bytes of the process's region of its session that are resident.
fn resident_region(program: &Running) -> u64 {
    let path = format!("/proc/{}/smaps", program.child.id());
    let maps = std::fs::read_to_string(path).expect("our own process");
    let region = maps.lines().skip_while(|line| !line.contains("memfd:megapipe-session"));
    let rss = region.take(8).find_map(|line| line.strip_prefix("Rss:")).expect("a region");
    rss.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn idle_channel_has_at_most_a_mebibyte_resident() {
    let folder = Folder::new("memory");
    let _daemons = daemons(&folder);
    let server = server(&folder);
    assert!(resident_region(&server) <= 1 << 20, "{}", resident_region(&server));
    // Also after its rings were used all round, which takes a busy machine more than one load.
    let start = Instant::now();
    let resident = loop {
        assert_served(&folder);
        let resident = resident_region(&server);
        if resident >= 256 << 10 || start.elapsed() > PATIENCE {
            break resident;
        }
    };
    assert!((256 << 10..=1 << 20).contains(&resident), "{resident}");
}

#[test]
fn http_is_served_by_daemons_of_two_shards() {
    let folder = Folder::new("shards");
    let [daemon, _other] = daemons_of(&folder, &["--shards", "2"]);
    std::fs::write(folder.file("page.html"), b"a page").expect("a file");
    let address = ADDRESSES[0];
    let serve = format!("serve http --listen {address}:80 --root {}", folder.file(""));
    let server = Running::start(attached(&folder, 0, &serve)).until_ready("listening on");
    for keeps in ["", "--no-keep-alive"] {
        let line = format!("load http {address}:80 --path /page.html --connections 32 {keeps}");
        let line = format!("{line} --warmup 0 --duration 0.5");
        let printed = text_of(&attached(&folder, 1, &line).output().expect("it runs"));
        assert!(printed.contains("errors          none"), "{printed}");
    }
    assert!((1..=2 << 20).contains(&resident_region(&server)), "of both lanes");
    let (code, text) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = daemon.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn programs_are_served_after_the_death_of_another() {
    let folder = Folder::new("death");
    let [daemon, other] = daemons(&folder);
    let first = server(&folder);
    assert_served(&folder);
    first.end(Signal::KILL);
    // Its port is free as soon as the daemon has noticed.
    let start = Instant::now();
    let second = loop {
        let mut second = Running::start(server_command(&folder));
        if second.becomes_ready("listening on") {
            break second;
        }
        assert!(start.elapsed() < PATIENCE, "{}", second.end(Signal::KILL).1);
    };
    assert_served(&folder);
    let (code, _) = second.end(Signal::TERM);
    assert_eq!(code, Some(0));
    let (code, text) = daemon.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
    assert!(!Path::new(&folder.file("service0")).exists(), "it removes its socket");
    drop(other);
}

#[test]
fn death_of_the_daemon_ends_connections_but_no_program() {
    let folder = Folder::new("daemon");
    let [daemon, other] = daemons(&folder);
    let server = server(&folder);
    assert_served(&folder);
    daemon.end(Signal::KILL);
    drop(other);
    let output = server_command(&folder).output().expect("it runs");
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&folder.file("service0")), "{text}");
    // A daemon takes the socket of the dead one, and the server of the dead one listens there.
    let daemons = daemons(&folder);
    let start = Instant::now();
    let served = loop {
        let load = load_command(&folder, "0.5").output().expect("it runs");
        if load.status.success() {
            break text_of(&load);
        }
        assert!(start.elapsed() < PATIENCE, "{}", text_of(&load));
    };
    assert!(served.contains("transactions"), "{served}");
    assert_served(&folder);
    let (code, text) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
    drop(daemons);
}

#[test]
fn connections_of_a_stopped_program_are_answered_by_another() {
    let folder = Folder::new("stopped");
    let _daemons = daemons(&folder);
    let servers = [server(&folder), server(&folder)];
    assert_served(&folder);
    let total = |count: &str| {
        let line = format!(
            "load rpc {}:7000 --connections 16 --transactions 1 --warmup 0 --total {count}",
            ADDRESSES[0]
        );
        let output = attached(&folder, 1, &line).output().expect("it runs");
        let text = text_of(&output);
        assert!(output.status.success() && text.contains("errors          none"), "{text}");
    };
    for stopped in &servers {
        // It has no connection: those that it is offered from now on it does not claim.
        stopped.signal(Signal::STOP);
        total("2000");
        stopped.signal(Signal::CONT);
        total("200");
    }
    for server in servers {
        let (code, text) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{text}");
    }
}

#[test]
fn load_whose_daemon_dies_ends_with_an_error() {
    let folder = Folder::new("load");
    let [_daemon, other] = daemons(&folder);
    let _server = server(&folder);
    let mut command = load_command(&folder, "2");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let load = command.spawn().expect("it runs");
    // The load has attached and sends by then, or attaches to no daemon: both end it.
    std::thread::sleep(Duration::from_secs(1));
    other.end(Signal::KILL);
    let output = load.wait_with_output().expect("it ends");
    let text = text_of(&output);
    let has_errors = text.contains("errors") && !text.contains("errors          none");
    assert!(has_errors || text.contains("no service at"), "{text}");
}

/// `serve rpc` at a port, run by a user without privileges.
fn server_of(folder: &Folder, user: u32, port: u16) -> Command {
    let id = user.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--no-new-privs"]);
    command.arg(env!("CARGO_BIN_EXE_megapipe")).args(["serve", "rpc", "--listen"]);
    command.arg(format!("{}:{port}", ADDRESSES[0])).args(["--backend", "service", "--service"]);
    command.arg(folder.file("service0")).stdin(Stdio::null());
    command
}

/// Whether other users can run the program; only root can try.
fn can_others_run_it() -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "4711", "--regid", "4711", "--clear-groups"]);
    let command = command.arg(env!("CARGO_BIN_EXE_megapipe")).arg("--version");
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn users_share_a_port_by_linuxs_rules() {
    if !can_others_run_it() {
        println!("skipped: users_share_a_port_by_linuxs_rules: other users cannot run megapipe");
        return;
    }
    let folder = Folder::new("users");
    let _daemons = daemons(&folder);
    let start = |user, port| Running::start(server_of(&folder, user, port));
    let _same = [(); 2].map(|()| start(4711, 7000).until_ready("listening on"));
    let refused = server_of(&folder, 4712, 7000).output().expect("it runs");
    let text = text_of(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("10.9.0.1:7000") && text.contains("in use"), "{text}");
    let _other = start(4712, 7001).until_ready("listening on");
    assert_served(&folder);
}

#[test]
fn path_of_the_socket_is_taken_with_care() {
    let folder = Folder::new("path");
    let alone = |folder: &Folder| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapiped"));
        command.args(["--link", "pair", "--address", "10.9.1.1/24"]);
        command.args(["--service", &folder.file("service")]).stdin(Stdio::null());
        command
    };
    let daemon = Running::start(alone(&folder)).until_ready("ready at");
    let refused = |folder: &Folder| {
        let output = alone(folder).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        text
    };
    let text = refused(&folder);
    assert!(text.contains("in use by another server"), "{text}");
    let (code, _) = daemon.end(Signal::INT);
    assert_eq!(code, Some(0));
    std::fs::write(folder.file("service"), b"precious").expect("a file");
    let text = refused(&folder);
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(std::fs::read(folder.file("service")).expect("a file"), b"precious");
}

#[test]
fn options_of_the_back_end_are_checked() {
    let megapipe = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
        let output = command.args(line.split_whitespace()).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (line, code, named) in [
        ("serve rpc --service /nowhere", 2, "--service"),
        ("serve rpc --backend service --link tap:x", 2, "--link"),
        ("serve rpc --backend service --placement core", 2, "--placement"),
        ("serve rpc --backend service --service /nowhere/x", 1, "/nowhere/x"),
        ("load rpc 10.0.0.1:1 --backend service --service /nowhere/x", 1, "/nowhere/x"),
    ] {
        let (found, text) = megapipe(line);
        assert_eq!(found, Some(code), "{line}: {text}");
        assert!(text.contains(named), "{line}: {text}");
    }
}
