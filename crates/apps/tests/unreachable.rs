//! A load on our own stack whose server is unreachable at first, because its address is not
//! resolved: it counts the failed connections, and continues when the server appears.
//!
//! Needs root, for a network namespace with a TAP device; otherwise it says that it was skipped.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the three questions for a hardware address take, a second each (RFC 1122 §2.3.2.1).
const UNANSWERED: Duration = Duration::from_millis(3_500);

fn ip(args: &str) -> Result<(), String> {
    let output = Command::new("ip").args(args.split(' ')).output();
    let output = output.map_err(|error| format!("ip is not installed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {args}: {}", said.trim())) }
}

/// A namespace with the device `tap0`; it goes with the test.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Result<Self, String> {
        let namespace = Self(format!("mp-apps-{name}-{}", std::process::id()));
        ip(&format!("netns add {}", namespace.0))?;
        namespace.ip("tuntap add tap0 mode tap")?;
        namespace.ip("addr add 10.78.0.1/24 dev tap0")?;
        namespace.ip("link set tap0 up")?;
        Ok(namespace)
    }

    fn ip(&self, args: &str) -> Result<(), String> {
        ip(&format!("-n {} {args}", self.0))
    }

    /// How many frames have come in by the device.
    fn frames(&self) -> u64 {
        let path = "/sys/class/net/tap0/statistics/rx_packets";
        let output = Command::new("ip").args(["netns", "exec", &self.0, "cat", path]).output();
        let said = String::from_utf8(output.expect("ip").stdout).expect("text");
        said.trim().parse().expect("a number")
    }

    fn start(&self, executable: &str, args: &[&str]) -> Program {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, executable]).args(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Program(child.expect("a program of ours"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns delete {}", self.0));
    }
}

/// A program, ended with the test whatever happens.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    /// Its standard output, once it has ended, and its exit code.
    fn ended(mut self) -> (String, Option<i32>) {
        let deadline = Instant::now() + PATIENCE;
        while self.0.try_wait().expect("a child of ours").is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut said = String::new();
        self.0.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        (said, self.0.wait().expect("it has ended").code())
    }
}

/// The server listens everywhere in its namespace, and the address that the load asks for comes
/// when the load has given up on it.
fn check(name: &str, server: &str, serve: &[&str], load: &[&str]) {
    let namespace = match Namespace::new(name) {
        Ok(namespace) => namespace,
        Err(why) => return println!("skipped: {name}: {why}"),
    };
    let mut args = vec!["--listen", "0.0.0.0:7000"];
    args.extend(serve);
    let _server = namespace.start(server, &args);
    let mut args = vec![name, "10.78.0.9:7000", "--backend", "local", "--link", "tap:tap0"];
    args.extend(["--address", "10.78.0.2/24", "--connections", "16", "--transactions", "8"]);
    args.extend(["--warmup", "0", "--duration", "9", "--json", "-", "--quiet"]);
    args.extend(load);
    let load = namespace.start(env!("CARGO_BIN_EXE_megapipe-load"), &args);
    // From when it has asked for the address: a busy machine may take a while to start it.
    let before = namespace.frames();
    let deadline = Instant::now() + PATIENCE;
    while namespace.frames() == before {
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(UNANSWERED);
    namespace.ip("addr add 10.78.0.9/24 dev tap0").expect("an address");
    let (said, code) = load.ended();
    let summary: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(code, Some(0), "{said}");
    assert!(summary["errors_before"]["unreachable"].as_u64() >= Some(16), "each once: {said}");
    assert_eq!(summary["errors_before"]["other"], 0, "{said}");
    assert!(summary["transactions"].as_u64() > Some(0), "it goes on: {said}");
    assert_eq!(summary["failed"], 0, "{said}");
    assert!(said.contains("10.78.0.9:7000 was unreachable"), "{said}");
}

#[test]
fn an_rpc_load_goes_on() {
    check("rpc", env!("CARGO_BIN_EXE_megapipe-rpc"), &[], &[]);
}

#[test]
fn a_web_load_goes_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).to_str().expect("text");
    let load = ["--path", "/Cargo.toml"];
    check("http", env!("CARGO_BIN_EXE_megapipe-http"), &["--root", root], &load);
}

#[test]
fn a_key_value_load_goes_on() {
    let serve = ["--memory", "16M"];
    check("kv", env!("CARGO_BIN_EXE_megapipe-kv"), &serve, &["--keys", "100"]);
}

#[test]
fn load_without_answers_is_reported() {
    let name = "absent";
    let namespace = match Namespace::new(name) {
        Ok(namespace) => namespace,
        Err(why) => return println!("skipped: {name}: {why}"),
    };
    let mut args = vec!["http", "10.78.0.9:80", "--backend", "local", "--link", "tap:tap0"];
    args.extend(["--address", "10.78.0.2/24", "--connections", "4", "--json", "-", "--quiet"]);
    args.extend(["--warmup", "0", "--duration", "0.2"]);
    let (said, code) = namespace.start(env!("CARGO_BIN_EXE_megapipe-load"), &args).ended();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("Not one transaction was answered."), "{said}");
}
