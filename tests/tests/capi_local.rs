//! C programs on the library's own stack, over a TAP device in a network namespace: chosen by the
//! fields of a configuration, and by the environment alone; in the program and in a daemon.
//!
//! Needs root and a C compiler; otherwise each test says that it was skipped.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use capi_prefix::{C11, Ended, compile, prefix, run, sources};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PATIENCE: Duration = Duration::from_secs(30);

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip is not installed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {}", said.trim())) }
}

/// The namespace goes with this.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns delete {}", self.0));
    }
}

/// Moves the calling thread into a namespace with a TAP device.
fn enter(test: &str) -> Result<Namespace, String> {
    let name = format!("mp-move-capi-{}-{test}", std::process::id());
    ip(&format!("netns add {name}"))?;
    let namespace = Namespace(name);
    let file = File::open(format!("/run/netns/{}", namespace.0));
    let file = file.map_err(|error| format!("no network namespace: {error}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| format!("no network namespace: {error}"))?;
    ip("link set lo up")?;
    ip("tuntap add tap0 mode tap")?;
    ip("addr add 10.76.0.1/24 dev tap0")?;
    ip("link set tap0 up")?;
    Ok(namespace)
}

/// Runs `work` in a namespace of its own, or says why not.
fn within(test: &'static str, work: fn()) {
    let run = move || match enter(test) {
        Ok(_namespace) => work(),
        Err(why) => println!("skipped: {test}: {why}"),
    };
    let ended = thread::spawn(run).join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// A daemon on the namespace's TAP device, with a folder for its socket.
struct TestDaemon {
    _process: Ended,
    folder: PathBuf,
}

impl TestDaemon {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!(
            "mp-capi-service-{}-{:?}",
            std::process::id(),
            thread::current().id()
        ));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_daemon"));
        command.args(["--link", "tap:tap0", "--address", "10.76.0.2/24", "--service"]);
        command.arg(folder.join("service")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Ended(command.spawn().expect("the daemon starts"));
        assert_eq!(first_line(&mut process.0).0, "ready\n");
        Self { _process: process, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("service")
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        // What is left of it does not fail the test.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The first line of a program, and the rest.
fn first_line(child: &mut Child) -> (String, BufReader<ChildStdout>) {
    let mut rest = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    rest.read_line(&mut line).expect("a line");
    (line, rest)
}

/// Gives a program the stack at the other end of the TAP device by its environment: one of its own,
/// or that of the daemon at a path.
fn choose_stack(command: &mut Command, service: Option<&Path>) {
    match service {
        None => {
            command.env("MEGAPIPE_BACKEND", "local").env("MEGAPIPE_LINK", "tap:tap0");
            command.env("MEGAPIPE_ADDRESS", "10.76.0.2/24");
        }
        Some(path) => {
            command.env("MEGAPIPE_BACKEND", "service").env("MEGAPIPE_SERVICE", path);
        }
    }
}

#[test]
fn fields_of_a_configuration_choose_the_stack() {
    let Some(prefix) = prefix("fields_of_a_configuration_choose_the_stack") else { return };
    compile(prefix, &sources().join("tests/local.c"), "local", C11);
    within("fields", run_fields);
}

fn run_fields() {
    let prefix = prefix("fields_of_a_configuration_choose_the_stack").expect("it was there");
    let (status, text) = run(&mut Command::new(prefix.join("tests/local")));
    assert!(status.success(), "{status}\n{text}");
}

#[test]
fn the_example_runs_on_the_stack_by_its_environment_alone() {
    let Some(prefix) = prefix("the_example_runs_on_the_stack_by_its_environment_alone") else {
        return;
    };
    compile(prefix, &sources().join("examples/pingpong.c"), "pingpong-local", C11);
    within("environment", || run_pingpong(None));
    within("service-environment", || {
        let daemon = TestDaemon::start();
        run_pingpong(Some(&daemon.path()));
    });
}

fn run_pingpong(service: Option<&Path>) {
    let prefix = prefix("the_example_runs_on_the_stack").expect("it was there");
    let mut command = Command::new(prefix.join("tests/pingpong-local"));
    command.arg("7601").stdin(Stdio::null()).stdout(Stdio::piped());
    choose_stack(&mut command, service);
    let mut server = Ended(command.spawn().expect("the program starts"));
    let (line, _) = first_line(&mut server.0);
    assert_eq!(line.trim_end(), "listening on 127.0.0.1:7601");
    // At the stack's own address, and through the kernel where the program has bound its socket.
    for address in ["10.76.0.2:7601", "127.0.0.1:7601", "10.76.0.2:7601"] {
        let address = address.parse().expect("an address");
        let mut stream = connect(&address);
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        for text in ["ping", "pong"] {
            stream.write_all(text.as_bytes()).expect("sent");
            let mut got = [0; 4];
            stream.read_exact(&mut got).expect("received");
            assert_eq!(&got, text.as_bytes());
        }
    }
}

#[test]
fn connection_and_listener_are_shared_by_two_processes() {
    let Some(prefix) = prefix("connection_and_listener_are_shared_by_two_processes") else {
        return;
    };
    compile(prefix, &sources().join("tests/share.c"), "share", C11);
    within("service-share", || {
        let daemon = TestDaemon::start();
        let prefix = prefix_of_share();
        let mut command = Command::new(prefix.join("tests/share"));
        command.arg("7602").stdin(Stdio::null()).stdout(Stdio::piped());
        choose_stack(&mut command, Some(&daemon.path()));
        let mut server = Ended(command.spawn().expect("the program starts"));
        assert_eq!(first_line(&mut server.0).0, "listening\n");
        let mut stream = connect(&"10.76.0.2:7602".parse().expect("an address"));
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        stream.write_all(b"early ").expect("sent");
        stream.write_all(b"late").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("received");
        assert_eq!(answer, "late");
        // The listener is the other process's by now.
        let mut stream = connect(&"10.76.0.2:7602".parse().expect("an address"));
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("received");
        assert_eq!(answer, "adopted");
        assert!(server.0.wait().expect("its end").success());
    });
}

fn prefix_of_share() -> &'static Path {
    prefix("connection_and_listener_are_shared_by_two_processes").expect("it was there")
}

#[test]
fn mtcps_calls_used_wrongly_answer_on_the_stack_as_on_linux() {
    let test = "mtcps_calls_used_wrongly_answer_on_the_stack_as_on_linux";
    let Some(prefix) = prefix(test) else { return };
    compile(prefix, &sources().join("tests/mtcp_misuse.c"), "mtcp-misuse-local", C11);
    within("misuse", || run_misuse("io = tap\nport = tap0\naddress = 10.76.0.2/24\n"));
    within("service-misuse", || {
        let daemon = TestDaemon::start();
        run_misuse(&format!("io = service\nport = {}\n", daemon.path().display()));
    });
}

fn run_misuse(stack: &str) {
    let prefix = prefix("mtcps_calls_used_wrongly").expect("it was there");
    let conf = prefix.join("tests/mtcp-misuse-local.conf");
    let text = format!("{stack}num_cores = 1\nmax_concurrency = 1000\n");
    std::fs::write(&conf, text).expect("a file");
    let mut command = Command::new(prefix.join("tests/mtcp-misuse-local"));
    let (status, text) = run(command.arg(&conf).arg("10.76.0.2"));
    assert!(status.success(), "{status}\n{text}");
}

#[test]
fn a_program_of_linux_talks_to_linux_on_the_stack() {
    let test = "a_program_of_linux_talks_to_linux_on_the_stack";
    let Some(prefix) = prefix(test) else { return };
    let ours = ["-std=gnu11", "-D_GNU_SOURCE", "-include", "megapipe_bsd.h"];
    compile(prefix, &sources().join("tests/bsd.c"), "bsd-local", &ours);
    compile(prefix, &sources().join("tests/bsd.c"), "bsd-linux", C11);
    within("bsd", || run_bsd(None));
    within("service-bsd", || {
        let daemon = TestDaemon::start();
        run_bsd(Some(&daemon.path()));
    });
}

/// One side is Linux, the other our stack: what the client says is what it says of Linux alone.
fn run_bsd(service: Option<&Path>) {
    let prefix = prefix("a_program_of_linux_talks").expect("it was there");
    let command = |program: &str, arguments: [&str; 3], whose: &str| {
        let mut command = Command::new(prefix.join("tests").join(program));
        command.args(arguments).env("MEGAPIPE_SOCKETS", whose);
        choose_stack(&mut command, service);
        command
    };
    let (_, alone) = run(&mut command("bsd-linux", ["both", "127.0.0.1", "7700"], "shared"));
    for (server, client, at, whose) in [
        ("bsd-local", "bsd-linux", "10.76.0.2", "shared"),
        ("bsd-linux", "bsd-local", "10.76.0.1", "shared"),
        ("bsd-linux", "bsd-local", "10.76.0.1", "thread"),
    ] {
        let mut server = command(server, ["server", at, "7701"], whose);
        let mut server = Ended(server.stdout(Stdio::piped()).spawn().expect("the program starts"));
        let (line, mut said) = first_line(&mut server.0);
        assert_eq!(line, "ready\n", "{client} and {whose}");
        let (status, mut text) = run(&mut command(client, ["client", at, "7701"], whose));
        assert!(status.success(), "{client} and {whose}: {status}\n{text}");
        said.read_to_string(&mut text).expect("text");
        assert_eq!(text, alone, "{client} and {whose}");
        assert!(server.0.wait().expect("its end").success());
    }
}

#[test]
fn mtcps_web_server_shares_its_port_among_contexts_of_a_daemon() {
    let test = "mtcps_web_server_shares_its_port_among_contexts_of_a_daemon";
    let Some(prefix) = prefix(test) else { return };
    compile(prefix, &sources().join("examples/mtcp_web_server.c"), "web-service", C11);
    within("service-web", || {
        let daemon = TestDaemon::start();
        run_web_server(&daemon);
    });
}

fn run_web_server(daemon: &TestDaemon) {
    let prefix = prefix("mtcps_web_server").expect("it was there");
    let (conf, root) = (daemon.folder.join("conf"), daemon.folder.join("www"));
    std::fs::create_dir_all(&root).expect("a folder");
    let page: Vec<u8> = (0..300_000).map(|index| (index * 31 % 251) as u8).collect();
    std::fs::write(root.join("page"), &page).expect("a file");
    // By the environment: the configuration has no port.
    std::fs::write(&conf, "io = service\nnum_cores = 2\n").expect("a file");
    let mut command = Command::new(prefix.join("tests/web-service"));
    command.arg(&conf).arg(&root).arg("8080").env("MEGAPIPE_SERVICE", daemon.path());
    command.env("MEGAPIPE_STATS", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Ended(command.spawn().expect("the program starts"));
    let (first, said) = first_line(&mut server.0);
    let second = said.lines().next().expect("a line").expect("text");
    assert!(first.ends_with("serves\n") && second.ends_with("serves"), "{first}{second}");
    for _ in 0..40 {
        let mut stream = connect(&"10.76.0.2:8080".parse().expect("an address"));
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("received");
        assert!(answer.starts_with(b"HTTP/1.") && answer.ends_with(&page), "{}", answer.len());
    }
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let mut text = String::new();
    let mut errors = server.0.stderr.take().expect("a pipe");
    errors.read_to_string(&mut text).expect("text");
    assert!(server.0.wait().expect("its end").success(), "{text}");
    let place = format!("our own stack in the service at {}: ", daemon.path().display());
    let accepted = |line: &str| -> Option<u32> {
        let (_, counters) = line.split_once(&place)?;
        let count = counters.split(", ").find_map(|it| it.strip_prefix("accepted "))?;
        count.parse().ok()
    };
    let accepted: Vec<u32> = text.lines().filter_map(accepted).collect();
    assert_eq!((accepted.len(), accepted.iter().sum()), (2, 40), "{text}");
}

/// The program registers its socket a moment after it has said where it listens.
fn connect(address: &std::net::SocketAddr) -> TcpStream {
    let start = std::time::Instant::now();
    loop {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}
