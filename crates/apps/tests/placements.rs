//! Every server and every load with several channels and each placement of our own stack, over
//! shared memory between two processes; and what is refused.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
const PLACEMENTS: [&str; 3] = ["inline", "thread", "core"];

/// A program, ended with the test whatever happens.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(executable: &str, args: &[&str]) -> Self {
        let mut command = Command::new(executable);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program of ours");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdout }
    }

    /// Waits for its end: whether it succeeded, and what it said on both of its outputs.
    fn ended(mut self) -> (bool, String, String) {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("a child of ours").is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let [mut said, mut complaint] = [String::new(), String::new()];
        self.stdout.read_to_string(&mut said).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut complaint).expect("text");
        (self.child.wait().expect("it has ended").success(), said, complaint)
    }

    /// The first line that it says.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        line
    }

    fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it has not been waited for");
    }
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mp-apps-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Foreign files in it do not fail the test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One server and its load: their executables, what is particular to each, and the port.
struct Pair<'a> {
    name: &'a str,
    server: &'a str,
    serve: &'a [&'a str],
    load: &'a [&'a str],
}

/// Runs the pair on two channels each and returns the load's summary, and what the server's
/// channels have done.
///
/// A server has its link when the first client has come, and a client that is quick meets the first
/// channel alone. So the one that counts comes when both are there.
fn run(pair: &Pair<'_>, placement: &str, scratch: &Path) -> (Value, Value) {
    let own = scratch.file_name().expect("a name").to_string_lossy();
    let link = format!("memif:@{own}-{placement}");
    let (serving, loading) = (format!("{link},role=server"), format!("{link},role=client"));
    let report = scratch.join(format!("{}-{placement}.json", pair.name));
    let report = report.to_str().expect("text");
    let local = |link, address| {
        ["--backend", "local", "--link", link, "--address", address, "--placement", placement]
    };
    let mut args = vec!["--listen", "10.9.1.1:7000", "--channels", "2", "--json", report];
    args.extend(local(&serving, "10.9.1.1/24"));
    args.extend(pair.serve);
    let mut server = Program::start(pair.server, &args);
    let load = |how: &[&str]| {
        let mut args = vec![pair.name, "10.9.1.1:7000", "--threads", "2", "--json", "-", "--quiet"];
        args.extend(local(&loading, "10.9.1.2/24"));
        args.extend(how);
        args.extend(pair.load);
        Program::start(env!("CARGO_BIN_EXE_megapipe-load"), &args).ended()
    };
    load(&["--connections", "2", "--total", "2"]);
    let line = server.line();
    assert!(line.starts_with("listening on ") && line.contains("2 channels"), "{line}");
    let how = ["--connections", "16", "--transactions", "16", "--verify", "1", "--total", "600"];
    let (succeeded, summary, complaint) = load(&how);
    assert!(succeeded, "{} {placement}: {summary}{complaint}", pair.name);
    server.terminate();
    let (succeeded, said, complaint) = server.ended();
    assert!(succeeded, "{} {placement}: {said}{complaint}", pair.name);
    let done = std::fs::read_to_string(report).expect("the server's report");
    (serde_json::from_str(&summary).expect("JSON"), serde_json::from_str(&done).expect("JSON"))
}

/// What is the same for every server.
fn check(pair: &Pair<'_>, scratch: &Path) {
    for placement in PLACEMENTS {
        let (summary, channels) = run(pair, placement, scratch);
        let context = format!("{} {placement}: {summary} {channels}", pair.name);
        assert!(summary["transactions"].as_u64() >= Some(600), "{context}");
        assert_eq!(summary["errors"]["wrong_response"], 0, "{context}");
        assert_eq!(summary["errors"]["other"], 0, "{context}");
        let channels = channels.as_array().expect("one object for each channel");
        assert_eq!(channels.len(), 2, "{context}");
        for channel in channels {
            assert!(channel["requests"].as_u64() > Some(0), "both serve: {context}");
            let (events, wakeups) = (&channel["server_events"], &channel["server_wakeups"]);
            // A channel whose stack runs in its own dispatch has no wake-ups.
            assert_eq!(events.as_u64() > Some(0), placement != "inline", "{context}");
            assert!(wakeups.as_u64() <= events.as_u64(), "{context}");
        }
    }
}

#[test]
fn rpc_is_served_and_loaded_in_every_placement() {
    let scratch = Scratch::new("rpc");
    let server = env!("CARGO_BIN_EXE_megapipe-rpc");
    check(&Pair { name: "rpc", server, serve: &[], load: &[] }, &scratch.0);
}

#[test]
fn rpc_on_sockets_is_served_in_every_placement() {
    let scratch = Scratch::new("sockets");
    let server = env!("CARGO_BIN_EXE_megapipe-rpc");
    let load = ["--response-bytes", "uniform:1-20000"];
    check(&Pair { name: "rpc", server, serve: &["--api", "sockets"], load: &load }, &scratch.0);
}

#[test]
fn http_is_served_and_loaded_in_every_placement() {
    let scratch = Scratch::new("http");
    std::fs::write(scratch.0.join("page"), [b'x'; 3_000]).expect("a file");
    let root = scratch.0.to_str().expect("text");
    let pair = Pair {
        name: "http",
        server: env!("CARGO_BIN_EXE_megapipe-http"),
        serve: &["--root", root],
        load: &["--path", "/page", "--status", "200"],
    };
    check(&pair, &scratch.0);
}

#[test]
fn kv_is_served_and_loaded_in_every_placement() {
    let scratch = Scratch::new("kv");
    let load = ["--keys", "200", "--value-bytes", "500"];
    let server = env!("CARGO_BIN_EXE_megapipe-kv");
    check(&Pair { name: "kv", server, serve: &["--memory", "16M"], load: &load }, &scratch.0);
}

#[test]
fn a_placement_is_refused_where_there_is_no_stack_to_place() {
    let servers = [
        env!("CARGO_BIN_EXE_megapipe-rpc"),
        env!("CARGO_BIN_EXE_megapipe-http"),
        env!("CARGO_BIN_EXE_megapipe-kv"),
    ];
    let refused = |executable: &str, args: &[&str]| {
        let (succeeded, said, complaint) = Program::start(executable, args).ended();
        assert!(!succeeded, "{executable}: {said}");
        let what = "--placement: only --backend local has a stack";
        assert!(complaint.contains(what), "{executable}: {complaint}");
    };
    for placement in ["thread", "core"] {
        for server in servers {
            let mut args = vec!["--listen", "127.0.0.1:0", "--placement", placement];
            if server.ends_with("http") {
                args.extend(["--root", "/"]);
            }
            refused(server, &args);
        }
        for load in ["rpc", "http", "kv"] {
            let args = [load, "127.0.0.1:9", "--placement", placement];
            refused(env!("CARGO_BIN_EXE_megapipe-load"), &args);
        }
    }
}
