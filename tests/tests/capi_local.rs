//! C programs on the library's own stack, over a TAP device in a network namespace: chosen by the
//! fields of a configuration, and by the environment alone.
//!
//! Needs root and a C compiler; otherwise each test says that it was skipped.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
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
    within("environment", run_pingpong);
}

fn run_pingpong() {
    let prefix = prefix("the_example_runs_on_the_stack").expect("it was there");
    let mut command = Command::new(prefix.join("tests/pingpong-local"));
    command.arg("7601").stdin(Stdio::null()).stdout(Stdio::piped());
    command.env("MEGAPIPE_BACKEND", "local").env("MEGAPIPE_LINK", "tap:tap0");
    command.env("MEGAPIPE_ADDRESS", "10.76.0.2/24");
    let mut server = Ended(command.spawn().expect("the program starts"));
    let stdout = server.0.stdout.take().expect("asked for above");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("a line");
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
fn mtcps_calls_used_wrongly_answer_on_the_stack_as_on_linux() {
    let test = "mtcps_calls_used_wrongly_answer_on_the_stack_as_on_linux";
    let Some(prefix) = prefix(test) else { return };
    compile(prefix, &sources().join("tests/mtcp_misuse.c"), "mtcp-misuse-local", C11);
    within("misuse", run_misuse);
}

fn run_misuse() {
    let prefix = prefix("mtcps_calls_used_wrongly").expect("it was there");
    let conf = prefix.join("tests/mtcp-misuse-local.conf");
    let text = "io = tap\nport = tap0\naddress = 10.76.0.2/24\nnum_cores = 1\n\
                max_concurrency = 1000\n";
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
    within("bsd", run_bsd);
}

/// One side is Linux, the other our stack: what the client says is what it says of Linux alone.
fn run_bsd() {
    let prefix = prefix("a_program_of_linux_talks").expect("it was there");
    let command = |program: &str, arguments: [&str; 3], whose: &str| {
        let mut command = Command::new(prefix.join("tests").join(program));
        command.args(arguments).env("MEGAPIPE_SOCKETS", whose);
        command.env("MEGAPIPE_BACKEND", "local").env("MEGAPIPE_LINK", "tap:tap0");
        command.env("MEGAPIPE_ADDRESS", "10.76.0.2/24");
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
        let mut said = BufReader::new(server.0.stdout.take().expect("asked for above"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "{client} and {whose}");
        let (status, mut text) = run(&mut command(client, ["client", at, "7701"], whose));
        assert!(status.success(), "{client} and {whose}: {status}\n{text}");
        said.read_to_string(&mut text).expect("text");
        assert_eq!(text, alone, "{client} and {whose}");
        assert!(server.0.wait().expect("its end").success());
    }
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
