//! BSD sockets and epoll in C: one program of Linux, compiled as it is and with `megapipe_bsd.h` in
//! front, says the same on Linux, on our sockets over Linux's TCP, and on our own stack.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use capi_prefix::{C11, Ended, compile, is_installed, prefix, run, sources};
use megapipe_tests::ReservedPort;

/// What a program of Linux is compiled with to be one of ours.
const OURS: &[&str] = &["-std=gnu11", "-D_GNU_SOURCE", "-include", "megapipe_bsd.h"];

/// The program, as it is and on our sockets.
struct Programs {
    plain: PathBuf,
    ours: PathBuf,
}

/// They are compiled once: a file that another test runs is busy.
fn programs(prefix: &Path) -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let source = sources().join("tests/bsd.c");
        Programs {
            plain: compile(prefix, &source, "bsd-plain", C11),
            ours: compile(prefix, &source, "bsd-ours", OURS),
        }
    })
}

/// What a program says that runs to its end.
fn said(command: &mut Command) -> String {
    let (status, text) = run(command);
    assert!(status.success(), "{command:?}: {status}\n{text}");
    text
}

/// What a program says that serves at a port of the loopback interface.
fn at_reserved_port(command: &mut Command, role: &str) -> String {
    let reserved = ReservedPort::new();
    said(command.args([role, "127.0.0.1", &reserved.port().to_string()]))
}

/// What the program of Linux says on Linux's loopback.
fn expected(prefix: &Path) -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut command = Command::new(&programs(prefix).plain);
        let text = at_reserved_port(&mut command, "both");
        assert!(text.contains("SIGPIPE 2 times") && text.contains("server: 5 datagrams"));
        text
    })
}

#[test]
fn first_socket_failure_prints_its_reason_once() {
    let test = "first_socket_failure_prints_its_reason_once";
    let Some(prefix) = prefix(test) else { return };
    let source = prefix.join("first-socket.c");
    let text = "#include <stdio.h>\n#include <sys/socket.h>\n\
                int main(void)\n{\n    for (int i = 0; i < 3; i++)\n\
                \x20       if (socket(AF_INET, SOCK_STREAM, 0) < 0)\n\
                \x20           perror(\"socket\");\n    return 0;\n}\n";
    std::fs::write(&source, text).expect("a file");
    let program = compile(prefix, &source, "first-socket", OURS);
    let cases: [(&[(&str, &str)], &str); 7] = [
        (
            &[("MEGAPIPE_BACKEND", "lokal")],
            "no sockets: MEGAPIPE_BACKEND = lokal: must be kernel, local or service",
        ),
        (&[("MEGAPIPE_BACKEND", "local")], "no sockets: MEGAPIPE_LINK is not set: the local"),
        (
            &[("MEGAPIPE_BACKEND", "local"), ("MEGAPIPE_LINK", "tap:nosuch-device-name")],
            "no sockets: MEGAPIPE_LINK = tap:nosuch-device-name: ",
        ),
        (
            &[("MEGAPIPE_BACKEND", "local"), ("MEGAPIPE_LINK", "pigeon")],
            "no sockets: MEGAPIPE_LINK = pigeon: \"pigeon\" is no link: pair, tap, ",
        ),
        (
            &[("MEGAPIPE_SOCKETS", "all")],
            "no sockets: MEGAPIPE_SOCKETS = all: must be shared, thread or select",
        ),
        (
            &[
                ("MEGAPIPE_BACKEND", "local"),
                ("MEGAPIPE_LINK", "tap:x"),
                ("MEGAPIPE_ADDRESS", "10.0.0.2"),
            ],
            "no sockets: MEGAPIPE_ADDRESS: \"10.0.0.2\" is not ADDRESS/BITS, as 10.0.0.2/24",
        ),
        (
            &[
                ("MEGAPIPE_BACKEND", "local"),
                ("MEGAPIPE_LINK", "tap:x"),
                ("MEGAPIPE_LOOPBACK", "ours"),
            ],
            "no sockets: MEGAPIPE_LOOPBACK = ours: must be kernel or stack",
        ),
    ];
    for (environment, expected) in cases {
        let (status, text) = run(Command::new(&program).envs(environment.iter().copied()));
        assert!(status.success(), "{environment:?}: {status}\n{text}");
        assert_eq!(text.matches("megapipe: ").count(), 1, "{environment:?}: {text}");
        assert!(text.contains(expected), "{environment:?}: {text}");
        assert_eq!(text.matches("socket: ").count(), 3, "{environment:?}: {text}");
    }
}

#[test]
fn first_socket_names_the_missing_peer_of_a_memif() {
    let test = "first_socket_names_the_missing_peer_of_a_memif";
    let Some(prefix) = prefix(test) else { return };
    let source = prefix.join("first-socket-alone.c");
    let text = "#include <sys/socket.h>\n\
                int main(void)\n{\n    return socket(AF_INET, SOCK_STREAM, 0) < 0;\n}\n";
    std::fs::write(&source, text).expect("a file");
    let mut command = Command::new(compile(prefix, &source, "first-socket-alone", OURS));
    let link = format!("memif:@mp-bsd-alone-{}", std::process::id());
    command.env("MEGAPIPE_BACKEND", "local").env("MEGAPIPE_LINK", &link);
    command.env("MEGAPIPE_ADDRESS", "10.0.0.2/24").stderr(Stdio::piped());
    let mut waiting = Ended(command.spawn().expect("the program starts"));
    let mut line = String::new();
    let stderr = waiting.0.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    assert!(line.starts_with(&format!("megapipe: {link}: no server is listening")), "{line}");
    assert!(line.contains(&format!("start one with --link {link},role=server")), "{line}");
}

#[test]
fn a_program_of_linux_says_the_same_on_our_sockets() {
    let Some(prefix) = prefix("a_program_of_linux_says_the_same_on_our_sockets") else { return };
    for whose in ["shared", "thread"] {
        let mut command = Command::new(&programs(prefix).ours);
        command.env("MEGAPIPE_SOCKETS", whose);
        assert_eq!(at_reserved_port(&mut command, "both"), expected(prefix), "{whose}");
    }
}

#[test]
fn descriptors_go_from_thread_to_thread() {
    let Some(prefix) = prefix("descriptors_go_from_thread_to_thread") else { return };
    let mut command = Command::new(&programs(prefix).ours);
    let text = at_reserved_port(&mut command, "crew");
    assert_eq!(text, "10 connections served by a crew\n");
}

#[test]
fn a_program_of_linux_is_clean_under_valgrind() {
    let test = "a_program_of_linux_is_clean_under_valgrind";
    let Some(prefix) = prefix(test) else { return };
    if !is_installed("valgrind") {
        println!("skipped: {test}: valgrind is not installed");
        return;
    }
    for role in ["both", "crew"] {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        valgrind.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
        let suppressions = sources().join("tests/valgrind.supp");
        valgrind.arg(format!("--suppressions={}", suppressions.display()));
        at_reserved_port(valgrind.arg(&programs(prefix).ours), role);
    }
}

/// Server and client over a memif, in two processes.
fn over_memif(prefix: &Path, whose: &str, placement: Option<&str>) -> String {
    let name = format!("mp-bsd-{}-{whose}-{placement:?}.sock", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let command = |role: &str, host: u8, channels: u32| {
        let mut command = Command::new(&programs(prefix).ours);
        command.args([role, "10.9.7.1", "7000"]).env("MEGAPIPE_SOCKETS", whose);
        command.env("MEGAPIPE_BACKEND", "local").env("MEGAPIPE_CHANNELS", channels.to_string());
        command.env("MEGAPIPE_LINK", format!("memif:{},role={role}", socket.display()));
        command.env("MEGAPIPE_ADDRESS", format!("10.9.7.{host}/24"));
        if let Some(placement) = placement {
            command.env("MEGAPIPE_PLACEMENT", placement);
        }
        command
    };
    let threads = if whose == "thread" { 2 } else { 1 };
    let mut server = command("server", 1, threads);
    server.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Ended(server.spawn().expect("the server starts"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !socket.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let client = said(&mut command("client", 2, 1));
    let lines = BufReader::new(server.0.stdout.take().expect("its output")).lines();
    let lines: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(server.0.wait().expect("its end").success(), "{lines:?}");
    assert_eq!(lines.first().map(String::as_str), Some("ready"));
    // The link goes with the processes; the file may be left.
    let _ = std::fs::remove_file(&socket);
    client + &lines[1..].join("\n") + "\n"
}

#[test]
fn a_program_of_linux_says_the_same_on_our_own_stack() {
    let test = "a_program_of_linux_says_the_same_on_our_own_stack";
    let Some(prefix) = prefix(test) else { return };
    for (whose, placement) in
        [("shared", None), ("shared", Some("inline")), ("thread", None), ("thread", Some("thread"))]
    {
        let text = over_memif(prefix, whose, placement);
        assert_eq!(text, expected(prefix), "{whose} {placement:?}");
    }
}

#[test]
fn whose_sockets_are_and_how_they_end() {
    let test = "whose_sockets_are_and_how_they_end";
    let Some(prefix) = prefix(test) else { return };
    let program = compile(prefix, &sources().join("tests/bsd_misuse.c"), "bsd-misuse", C11);
    for whose in ["shared", "thread", "select"] {
        said(Command::new(&program).arg(whose));
    }
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = peer.local_addr().expect("its address").port().to_string();
    for whose in ["shared", "thread"] {
        let mut command = Command::new(&program);
        command.args(["exit", &port]).env("MEGAPIPE_SOCKETS", whose);
        let reading = std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let (mut stream, _) = peer.accept().expect("it connects");
                stream.set_read_timeout(Some(Duration::from_secs(60))).expect("TCP");
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).expect("the end, and no reset");
                bytes.len()
            });
            said(&mut command);
            reading.join().expect("it counts")
        });
        assert_eq!(reading, 3_000_000, "{whose}");
    }
}

#[test]
fn c_program_goes_on_after_each_refused_allocation() {
    let test = "c_program_goes_on_after_each_refused_allocation";
    let Some(prefix) = prefix(test) else { return };
    let source = sources().join("tests/bsd_memory.c");
    let program = compile(prefix, &source, "bsd-memory", &["-std=gnu11"]);
    for whose in ["shared", "thread"] {
        let goes_on = |number: &usize| {
            let mut command = Command::new(&program);
            command.arg(number.to_string()).env("MEGAPIPE_SOCKETS", whose);
            !said(&mut command).contains("all granted")
        };
        let refused = (0..1000).step_by(3).take_while(goes_on).count();
        assert!((4..300).contains(&refused), "{whose}: {refused} allocations were refused");
    }
}

#[test]
fn the_header_gives_functions_other_symbols_in_c_and_in_cxx() {
    let test = "the_header_gives_functions_other_symbols_in_c_and_in_cxx";
    let Some(prefix) = prefix(test) else { return };
    let source = prefix.join("bsd-symbols.c");
    let text = "#include <fcntl.h>\n#include <poll.h>\n#include <stdio.h>\n\
                #include <sys/socket.h>\n#include <unistd.h>\n\
                struct stream { int close, read; };\n\
                int main(void)\n{\n    ssize_t (*reads)(int, void *, size_t) = read;\n\
                struct stream it = {0, 0};\n    struct pollfd none = {-1, 0, 0};\n\
                char byte;\n    int fd = socket(AF_INET, SOCK_DGRAM, 0);\n\
                if (fd < 1 << 30 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)\n        return 1;\n\
                if (reads(fd, &byte, 1) != -1 || recv(fd, &byte, 1, 0) != -1)\n\
                return 2;\n    return poll(&none, 1, 0) + close(fd) + it.close + it.read;\n}\n";
    std::fs::write(&source, text).expect("a file");
    let include = ["-include", "megapipe_bsd.h"];
    let mut languages = vec![
        vec!["-std=c11"],
        vec!["-std=gnu11", "-O2", "-D_FORTIFY_SOURCE=2"],
        vec!["-std=gnu11", "-D_FILE_OFFSET_BITS=64"],
    ];
    if is_installed("g++") {
        languages.push(vec!["-xc++", "-std=c++11"]);
        languages.push(vec!["-xc++", "-std=c++20", "-O2"]);
    }
    for (index, language) in languages.iter().enumerate() {
        let flags = [&language[..], &include].concat();
        said(&mut Command::new(compile(prefix, &source, &format!("bsd-symbols-{index}"), &flags)));
    }
    // After others, behind whose bodies the names lead past it.
    let late = "#include <unistd.h>\n#include <megapipe_bsd.h>\nint main(void) { return 0; }\n";
    std::fs::write(&source, late).expect("a file");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-D_FORTIFY_SOURCE=2", "-fsyntax-only"]).arg("-I").arg(prefix.join("include"));
    let (status, text) = run(gcc.arg(&source));
    assert!(!status.success() && text.contains("before any other header"), "{text}");
}

#[test]
fn the_web_server_of_the_examples_is_built_both_ways() {
    let test = "the_web_server_of_the_examples_is_built_both_ways";
    let Some(prefix) = prefix(test) else { return };
    let source = prefix.join("share/doc/megapipe/examples/bsd_web_server.c");
    for (name, language, whose) in [
        ("bsd-web-plain", C11, "shared"),
        ("bsd-web-shared", OURS, "shared"),
        ("bsd-web-thread", OURS, "thread"),
    ] {
        let program = compile(prefix, &source, name, language);
        let reserved = ReservedPort::new();
        let port = reserved.port().to_string();
        let mut command = Command::new(&program);
        command.args([&port, "2"]).env("MEGAPIPE_SOCKETS", whose).stdout(Stdio::piped());
        let mut server = Ended(command.spawn().expect("the server starts"));
        let mut lines = BufReader::new(server.0.stdout.take().expect("its output")).lines();
        assert!(lines.by_ref().take(2).all(|line| line.is_ok_and(|line| line == "serving")));
        for _ in 0..20 {
            assert_eq!(fetched(&port, 3), 3 * PAGE_BYTES, "{name}");
        }
        let pid = rustix::process::Pid::from_child(&server.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(server.0.wait().expect("its end").success(), "{name}");
    }
}

const PAGE_BYTES: usize = 52;

/// Asks several times on one connection; how many bytes were answered.
fn fetched(port: &str, requests: usize) -> usize {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("TCP");
    for _ in 0..requests {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    }
    stream.shutdown(Shutdown::Write).expect("TCP");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    assert!(bytes.ends_with(b"Hello, world\n"));
    bytes.len()
}
