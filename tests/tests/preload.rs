//! Unmodified programs under `libmegapipe-preload.so`: a C program that prints the same as on
//! Linux, and Debian's servers and clients over a memif between two stacks.

#![forbid(unsafe_code)]

mod capi_prefix;
#[path = "preload/churn.rs"]
mod churn;
#[path = "preload/down.rs"]
mod down;
#[path = "preload/paths.rs"]
mod paths;
#[path = "preload/random.rs"]
mod random;
#[path = "preload/reload.rs"]
mod reload;
#[path = "preload/report.rs"]
mod report;
#[path = "preload/service.rs"]
mod service;
#[path = "preload/service_programs.rs"]
mod service_programs;
#[path = "preload/states.rs"]
mod states;
#[path = "preload/tested_programs.rs"]
mod tested_programs;
#[path = "preload/traps.rs"]
mod traps;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capi_prefix::{C11, Ended, compile, is_installed, prefix, run, sources};
use megapipe_preload::imports::NOT_INTERPOSED;
use megapipe_tests::ReservedPort;

/// No program waits longer for another one.
const PATIENCE: Duration = Duration::from_secs(60);

/// The installed library, if `programs` are installed, too.
fn library(test: &str, programs: &[&str]) -> Option<PathBuf> {
    let prefix = prefix(test)?;
    if let Some(missing) = programs.iter().find(|program| !is_installed(program)) {
        tested_programs::skip(test, &format!("{missing} is not installed"));
        return None;
    }
    Some(prefix.join("lib/megapipe/libmegapipe-preload.so"))
}

/// Two hosts at the ends of a memif.
struct Hosts {
    library: PathBuf,
    socket: PathBuf,
}

impl Hosts {
    fn new(library: PathBuf) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mp-preload-{}-{count}.sock", std::process::id());
        Self { library, socket: std::env::temp_dir().join(name) }
    }

    /// A program at 10.9.8.1.
    fn server(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command(program, "server", 1)
    }

    /// A program at 10.9.8.2.
    fn client(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command(program, "client", 2)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, role: &str, host: u8) -> Command {
        let mut command = preloaded(program, &self.library, "local");
        command.env("MEGAPIPE_LINK", format!("memif:{},role={role}", self.socket.display()));
        command.env("MEGAPIPE_ADDRESS", format!("10.9.8.{host}/24"));
        command
    }

    /// Waits until the server has opened its link.
    fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.socket.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a client until it succeeds, and returns its output without the library's notes. The
    /// first SYN may reach a stack that does not listen yet.
    fn until_success(&self, make: impl Fn(&mut Command), program: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut client = self.client(program);
            make(&mut client);
            let (status, text) = run(&mut client);
            if status.success() {
                return without_notes(&text);
            }
            assert!(Instant::now() < deadline, "{client:?}: {status}\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The link goes with the processes; the file may be left.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn preloaded(program: impl AsRef<std::ffi::OsStr>, library: &Path, backend: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("MEGAPIPE_BACKEND", backend);
    command.env("MEGAPIPE_PRELOAD", library);
    command
}

fn started(mut command: Command) -> Ended {
    command.stdin(Stdio::null());
    Ended(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

fn said(command: &mut Command) -> String {
    let (status, text) = run(command);
    assert!(status.success(), "{command:?}: {status}\n{text}");
    text
}

/// Output of a program without the library's notes: a server may answer its client's link late.
fn without_notes(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with("megapipe: ")).collect()
}

/// The words that nm(1) prints last for a file's dynamic symbols of one kind.
fn symbols(file: &Path, kind: &str) -> Vec<String> {
    let output = Command::new("nm").args(["-D", kind]).arg(file).output().expect("nm runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

fn without_version(symbol: &str) -> &str {
    symbol.split('@').next().unwrap_or(symbol)
}

#[test]
fn names_have_no_version_and_no_caller_inside() {
    let test = "names_have_no_version_and_no_caller_inside";
    let Some(library) = library(test, &["nm", "readelf"]) else { return };
    let defined: BTreeSet<String> = symbols(&library, "--defined-only").into_iter().collect();
    assert!(defined.contains("read") && defined.contains("epoll_wait") && defined.len() > 60);
    for name in &defined {
        assert!(!name.contains('@') && !name.starts_with("mp_"), "{name}");
    }
    // The library's own references were renamed: none is left that would enter its functions.
    let inside = symbols(&library, "--undefined-only");
    let entering: Vec<&String> =
        inside.iter().filter(|name| defined.contains(without_version(name))).collect();
    assert!(entering.is_empty(), "{entering:?}");
    let relocations = Command::new("readelf").arg("-rW").arg(&library).output().expect("it runs");
    let text = String::from_utf8_lossy(&relocations.stdout).into_owned();
    let names = text.lines().filter(|line| line.contains("_SLOT") || line.contains("GLOB_DAT"));
    let entered = names.filter_map(|line| line.split_whitespace().nth(4)).map(without_version);
    let entered: BTreeSet<&str> = entered.filter(|name| defined.contains(*name)).collect();
    // Interposed functions that end in another one, with the program's arguments.
    let passed_on = [
        "accept4",
        "close",
        // By `execle` and others, whose arguments are a list.
        "execv",
        "execvp",
        "ioctl",
        "read",
        "recv",
        "recvfrom",
        "write",
        // By `syscall`, with the program's numbers.
        "close_range",
        "dup",
        "dup2",
        "dup3",
        "accept",
        "bind",
        "connect",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "execve",
        "execveat",
        "fcntl",
        "getpeername",
        "getsockname",
        "getsockopt",
        "listen",
        "poll",
        "ppoll",
        "readv",
        "recvmmsg",
        "recvmsg",
        "select",
        "sendfile",
        "sendmmsg",
        "sendmsg",
        "sendto",
        "setsockopt",
        "shutdown",
        "socket",
        "writev",
    ];
    assert_eq!(entered, BTreeSet::from(passed_on), "references to its own names");
}

/// Functions without code in Rust describe their frames, too: debuggers, profilers and the end of a
/// cancelled thread unwind through them.
#[test]
fn functions_describe_their_frames() {
    let Some(library) = library("functions_describe_their_frames", &["nm", "readelf"]) else {
        return;
    };
    let output = |command: &str, arguments: &[&str]| {
        let mut command = Command::new(command);
        let output = command.args(arguments).arg(&library).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let frames = output("readelf", &["--debug-dump=frames"]);
    let frames: Vec<_> = frames
        .lines()
        .filter_map(|line| line.split_once(" pc=")?.1.trim().split_once(".."))
        .filter_map(|(from, to)| Some(number(from)?..number(to)?))
        .collect();
    let symbols = output("nm", &["-D", "--defined-only"]);
    let functions: Vec<_> = symbols
        .lines()
        .filter_map(|line| line.split_once(" T "))
        .filter_map(|(address, name)| Some((number(address)?, name)))
        .collect();
    assert!(functions.iter().any(|(_, name)| *name == "vfork"), "{symbols}");
    for (address, name) in functions {
        assert!(frames.iter().any(|frame| frame.contains(&address)), "{name}");
    }
}

#[test]
fn static_thread_memory_is_small() {
    let Some(library) = library("static_thread_memory_is_small", &["readelf"]) else { return };
    let output = Command::new("readelf").arg("-lW").arg(&library).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.trim_start().starts_with("TLS")).expect("a segment");
    let size = line.split_whitespace().nth(5).and_then(|size| size.strip_prefix("0x"));
    let size = u64::from_str_radix(size.expect("a size"), 16).expect("a number");
    assert!(size <= 1024, "{size} bytes: threads with small stacks cannot start (trap 9)");
}

#[test]
fn descriptor_functions_of_programs_are_interposed_or_listed() {
    let test = "descriptor_functions_of_programs_are_interposed_or_listed";
    let Some(library) = library(test, &["nm", "ldd"]) else { return };
    let defined: BTreeSet<String> = symbols(&library, "--defined-only").into_iter().collect();
    let listed: BTreeSet<&str> =
        NOT_INTERPOSED.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    for name in &listed {
        assert!(!defined.contains(*name), "{name} is interposed and on the list");
    }
    let takes_descriptor = |name: &str| {
        let parts = ["read", "write", "send", "recv", "poll", "select", "accept", "sock", "dup"];
        let has_part = parts.iter().any(|part| name.contains(part));
        let is_other = ["fd", "pipe", "open", "close", "connect", "listen", "bind", "shutdown"]
            .iter()
            .any(|part| name.contains(part));
        has_part || is_other
    };
    let of_libc: BTreeSet<String> = libc_names();
    let mut unknown = BTreeSet::new();
    for program in ["nginx", "redis-server", "memcached", "curl", "wrk", "python3.11"] {
        for file in with_libraries(program) {
            for symbol in symbols(&file, "--undefined-only") {
                let name = without_version(&symbol);
                if of_libc.contains(name)
                    && takes_descriptor(name)
                    && !defined.contains(name)
                    && !listed.contains(name)
                    && !is_no_descriptor_function(name)
                {
                    unknown.insert(format!("{name} of {}", file.display()));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "neither interposed nor listed: {unknown:#?}");
}

/// Functions whose names have such a part and that take no descriptor of a socket: threads, locks,
/// streams, directories, logs and libraries.
fn is_no_descriptor_function(name: &str) -> bool {
    let families = [
        "pthread_",
        "thrd_",
        "sem_",
        "wcs",
        "str",
        "dl",
        "cat",
        "msg",
        "mq_",
        "shm",
        "fread",
        "fwrite",
        "__f",
        "open_",
        "posix_spawn_file_actions",
        "posix_spawnattr",
        "process_vm_",
        "readdir",
        "readlink",
        "iconv_",
        "bindtextdomain",
        "bind_textdomain_codeset",
        "__readlink",
    ];
    let others = [
        "closedir",
        "closelog",
        "openlog",
        "pclose",
        "sigblock",
        "gettimeofday",
        "duplocale",
        "__duplocale",
        "fmemopen",
        "__sched_cpufree",
        "getdtablesize",
        "__open_2",
        "__open64_2",
        "__openat_2",
        "__openat64_2",
    ];
    let has_family = families.iter().any(|family| name.starts_with(family));
    others.contains(&name) || has_family || name.contains("thread")
}

fn libc_names() -> BTreeSet<String> {
    let libc =
        with_libraries("true").into_iter().find(|file| file.to_string_lossy().contains("libc.so"));
    let Some(libc) = libc else { return BTreeSet::new() };
    symbols(&libc, "--defined-only").iter().map(|name| without_version(name).to_owned()).collect()
}

/// A program and the libraries that it loads; empty if it is not installed.
fn with_libraries(program: &str) -> Vec<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(program));
    let Some(program) = found.into_iter().find(|path| path.is_file()) else { return Vec::new() };
    let output = Command::new("ldd").arg(&program).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text
        .lines()
        .filter_map(|line| line.split("=>").nth(1)?.split_whitespace().next().map(PathBuf::from));
    let libraries: Vec<PathBuf> = libraries.filter(|path| path.is_file()).collect();
    [vec![program], libraries].concat()
}

#[test]
fn program_of_linux_prints_the_same_when_it_is_preloaded() {
    let test = "program_of_linux_prints_the_same_when_it_is_preloaded";
    let Some(library) = library(test, &[]) else { return };
    let Some(prefix) = prefix(test) else { return };
    let program = compile(prefix, &sources().join("tests/bsd.c"), "preload-plain", C11);
    let at_port = |command: &mut Command| {
        let reserved = ReservedPort::new();
        said(command.args(["both", "127.0.0.1", &reserved.port().to_string()]))
    };
    let expected = at_port(&mut Command::new(&program));
    assert!(expected.contains("SIGPIPE 2 times"), "{expected}");
    assert_eq!(at_port(&mut preloaded(&program, &library, "kernel")), expected);
    for placement in ["thread", "inline"] {
        let hosts = Hosts::new(library.clone());
        let mut server = hosts.server(&program);
        server.args(["server", "10.9.8.1", "7000"]).env("MEGAPIPE_PLACEMENT", placement);
        server.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Ended(server.spawn().expect("the server starts"));
        hosts.wait();
        let mut client = hosts.client(&program);
        client.args(["client", "10.9.8.1", "7000"]).env("MEGAPIPE_PLACEMENT", placement);
        let client = without_notes(&said(&mut client));
        let lines = BufReader::new(server.0.stdout.take().expect("its output")).lines();
        let lines: Vec<String> = lines.map_while(Result::ok).collect();
        assert!(server.0.wait().expect("its end").success(), "{lines:?}");
        assert_eq!(client + &lines[1..].join("\n") + "\n", expected, "{placement}");
    }
}

#[test]
fn calls_of_programs_end_as_on_linux() {
    let test = "calls_of_programs_end_as_on_linux";
    let Some(library) = library(test, &[]) else { return };
    let Some(prefix) = prefix(test) else { return };
    let source = sources().join("../preload/tests/calls.c");
    let program = compile(prefix, &source, "preload-calls", C11);
    let expected = said(Command::new(&program).arg("127.0.0.1"));
    assert!(expected.ends_with("end\n"), "{expected}");
    let mut on_kernel = preloaded(&program, &library, "kernel");
    assert_eq!(said(on_kernel.arg("127.0.0.1")), expected);
    assert_eq!(with_peer(&Hosts::new(library.clone()), &program, None), expected);
    let refused = "FIOASYNC: -1, ENOTTY\nF_SETOWN: -1, EINVAL\nsockatmark: 0\n\
                   io_uring_setup: -1, ENOSYS\n\
                   SCM_RIGHTS, a file: 1\nSCM_RIGHTS, a connection: -1, EOPNOTSUPP\n\
                   afterwards: 4\nafterwards: 4\n";
    assert_eq!(with_peer(&Hosts::new(library), &program, Some("refusals")), refused);
}

/// What `calls.c` prints on a stack of its own, for whose link other processes are the other end:
/// each ends with the stack that it met.
fn with_peer(hosts: &Hosts, program: &Path, argument: Option<&str>) -> String {
    let mut main = hosts.server(program);
    main.arg("10.9.8.1").args(argument);
    with_peer_of(hosts, main, program)
}

/// As [`with_peer`], of a command at 10.9.8.1.
fn with_peer_of(hosts: &Hosts, mut main: Command, program: &Path) -> String {
    main.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut main = Ended(main.spawn().expect("the program starts"));
    let deadline = Instant::now() + PATIENCE;
    let mut peer: Option<Ended> = None;
    while main.0.try_wait().expect("its state").is_none() {
        assert!(Instant::now() < deadline, "{program:?} does not end");
        let has_ended = |peer: &mut Ended| peer.0.try_wait().expect("its state").is_some();
        if peer.as_mut().is_none_or(has_ended) {
            let mut command = hosts.client(program);
            command.args(["10.9.8.2", "peer"]).stdout(Stdio::null()).stderr(Stdio::null());
            peer = Some(started(command));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::io::read_to_string(main.0.stdout.take().expect("its output"));
    text.expect("text")
}

#[test]
fn wrong_setting_ends_the_program_before_it_runs() {
    let test = "wrong_setting_ends_the_program_before_it_runs";
    let Some(library) = library(test, &[]) else { return };
    let mut command = preloaded("true", &library, "lokal");
    let (status, text) = run(&mut command);
    assert_eq!(status.code(), Some(125), "{text}");
    assert!(text.contains("MEGAPIPE_BACKEND = lokal: must be kernel, local or"), "{text}");
    for (name, value, allowed) in [
        ("MEGAPIPE_FALL_BACK", &b"yes"[..], "MEGAPIPE_FALL_BACK = yes: must be 0 or 1"),
        ("MEGAPIPE_REQUIRE", b"all", "MEGAPIPE_REQUIRE = all: must be stack"),
        ("MEGAPIPE_NO_FOLLOW", b"2", "MEGAPIPE_NO_FOLLOW = 2: must be 0 or 1"),
        ("MEGAPIPE_SHOW_ADDRESSES", b"on", "MEGAPIPE_SHOW_ADDRESSES = on: must be 0 or 1"),
        ("MEGAPIPE_RULES", b"stack listen \xff:80", "must be UTF-8"),
    ] {
        let mut command = preloaded("echo", &library, "kernel");
        command.env(name, std::ffi::OsStr::from_bytes(value)).arg("started");
        let (status, text) = run(&mut command);
        assert_eq!(status.code(), Some(125), "{text}");
        assert!(text.contains(allowed) && !text.contains("started"), "{text}");
    }
    said(Command::new("true").env("LD_PRELOAD", &library));
    // A second copy passes everything through.
    let copy = std::env::temp_dir().join(format!("mp-preload-{}-copy.so", std::process::id()));
    std::fs::copy(&library, &copy).expect("a copy");
    let mut command = preloaded("true", &library, "kernel");
    command.env("LD_PRELOAD", format!("{}:{}", library.display(), copy.display()));
    let text = said(&mut command);
    std::fs::remove_file(&copy).expect("the copy");
    assert_eq!(text, "megapipe: the preload library is loaded twice: one copy is used\n");
}

/// A file of random bytes in a folder of its own.
fn site(name: &str) -> (PathBuf, Vec<u8>) {
    let folder = std::env::temp_dir().join(format!("mp-preload-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let bytes: Vec<u8> = (0..300_000).map(|_| fastrand::u8(..)).collect();
    std::fs::write(folder.join("file"), &bytes).expect("a file");
    (folder, bytes)
}

/// Fetches the file over the stack, and by the kernel's loopback from the same listener.
fn fetch_both_ways(hosts: &Hosts, port: u16, folder: &Path, expected: &[u8]) {
    fetch_over_stack(hosts, port, folder, expected);
    let copy = folder.join("copy");
    let mut curl = Command::new("curl");
    fetch(&mut curl, &copy, &format!("127.0.0.1:{port}"));
    said(&mut curl);
    assert!(std::fs::read(&copy).expect("the copy") == expected, "the bytes differ on loopback");
}

/// Fetches the file over the stack.
fn fetch_over_stack(hosts: &Hosts, port: u16, folder: &Path, expected: &[u8]) {
    let copy = folder.join("copy");
    hosts.until_success(|curl| fetch(curl, &copy, &format!("10.9.8.1:{port}")), "curl");
    assert!(std::fs::read(&copy).expect("the copy") == expected, "the bytes differ");
    std::fs::remove_file(&copy).expect("the copy");
}

fn fetch(curl: &mut Command, copy: &Path, host: &str) {
    curl.args(["-sS", "--max-time", "50", "-o"]).arg(copy).arg(format!("http://{host}/file"));
}

#[test]
fn python_serves_files_to_curl() {
    let test = "python_serves_files_to_curl";
    let Some(library) = library(test, &["python3", "curl"]) else { return };
    let (hosts, (folder, bytes)) = (Hosts::new(library), site("python"));
    let reserved = ReservedPort::new();
    let mut server = hosts.server("python3");
    server.args(["-m", "http.server", &reserved.port().to_string()]).current_dir(&folder);
    let _server = started(server);
    hosts.wait();
    fetch_both_ways(&hosts, reserved.port(), &folder, &bytes);
    tested_programs::record(
        test,
        &[
            ["python3", "local", "server", "`http.server`, also for clients in the kernel"],
            ["curl", "local", "client", "files"],
        ],
    );
}

/// A server and a client of one program, over loopback: the kernel has no such socket. Arguments: a
/// word that is sent, a file that is made at the end, and one that is waited for.
const LOOPBACK_PROGRAM: &str = "\
import os, socket, struct, sys, threading, time
word = sys.argv[1].encode()
bulk = word * 20000
def echo(server):
    connection, _ = server.accept()
    while part := connection.recv(1 << 16):
        connection.sendall(part)
    connection.close()
# Other programs' sockets in the kernel may have the port, because the stack chooses its own ports.
def ours_in_kernel(port, table):
    rows = [row.split() for row in open('/proc/net/' + table)]
    at_port = {'socket:[%s]' % row[9] for row in rows if row[1].endswith(':%04X' % port)}
    return at_port.intersection(map(link, os.listdir('/proc/self/fd')))
def link(number):
    try:
        return os.readlink('/proc/self/fd/' + number)
    except FileNotFoundError:
        return None
v4, v6 = (socket.AF_INET, '127.0.0.1', 'tcp'), (socket.AF_INET6, '::1', 'tcp6')
for family, host, table in (v4, v6):
    server = socket.create_server((host, 0), family=family)
    port = server.getsockname()[1]
    assert not ours_in_kernel(port, table), 'the kernel listens'
    threads = [threading.Thread(target=echo, args=(server,))]
    client = socket.create_connection((host, port), 20)
    assert client.getpeername()[:2] == (host, port) and client.getsockname()[0] == host
    def send():
        client.sendall(bulk)
        client.shutdown(socket.SHUT_WR)
    threads.append(threading.Thread(target=send))
    for thread in threads: thread.start()
    back = b''
    while part := client.recv(1 << 16): back += part
    assert back == bulk, len(back)
    for thread in threads: thread.join()
    client.close(); server.close()
    one, other = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
    one.bind((host, 0)); other.bind((host, 0))
    one.settimeout(20); other.settimeout(20)
    one.sendto(word, other.getsockname())
    text, source = other.recvfrom(100)
    other.sendto(text, source)
    assert one.recv(100) == word
    unbound = socket.socket(family, socket.SOCK_DGRAM)
    unbound.sendto(word, one.getsockname())
    unbound.close()
    assert one.recv(100) == word, 'a datagram outlives its socket'
    anywhere = socket.create_server(('', 0), family=family)
    client = socket.create_connection((host, anywhere.getsockname()[1]), 20)
    connection, _ = anywhere.accept()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.send(word)
    connection.close()
    assert client.recv(100) == word, 'what was written leaves before a RST'
    client.close(); anywhere.close()
    try:
        socket.create_connection((host, port), 20)
        raise SystemExit('the port still listens')
    except ConnectionRefusedError:
        pass
open(sys.argv[2], 'w').close()
deadline = time.monotonic() + 60
while not os.path.exists(sys.argv[3]) and time.monotonic() < deadline: time.sleep(0.01)
print('all is well')
";

#[test]
fn loopback_of_the_stack_connects_the_sockets_of_a_program() {
    let test = "loopback_of_the_stack_connects_the_sockets_of_a_program";
    let Some(library) = library(test, &["python3"]) else { return };
    let hosts = Hosts::new(library);
    let file = |word, what| format!("{}.{word}.{what}", hosts.socket.display());
    // Two hosts, because a link needs its other end; each has a loopback of its own.
    let words = ["first-host", "second-host"];
    let programs = [("server", 1), ("client", 2)].map(|(role, host)| {
        let mut python = hosts.command("python3", role, host);
        let (word, other) = (words[usize::from(host) - 1], words[usize::from(2 - host)]);
        let [ours, theirs] = [word, other].map(|word| file(word, "done"));
        python.args(["-c", LOOPBACK_PROGRAM, word, &ours, &theirs]);
        python.env("MEGAPIPE_LOOPBACK", "stack").env("MEGAPIPE_CAPTURE", file(word, "pcap"));
        std::thread::spawn(move || said(&mut python))
    });
    for program in programs {
        assert!(program.join().expect("it ends well").contains("all is well"));
    }
    let has =
        |frames: &[u8], word: &str| frames.windows(word.len()).any(|it| it == word.as_bytes());
    for (word, other) in [(words[0], words[1]), (words[1], words[0])] {
        let frames = std::fs::read(file(word, "pcap")).expect("a capture");
        assert!(has(&frames, word), "the capture shows frames of loopback");
        assert!(!has(&frames, other), "no frame of loopback reaches the link");
        for what in ["pcap", "done"] {
            std::fs::remove_file(file(word, what)).expect("it is there");
        }
    }
    let works = "TCP and UDP over the loopback of the stack, from several threads";
    tested_programs::record(test, &[["python3", "local", "server and client", works]]);
}

#[test]
fn nginx_with_a_master_and_a_worker_serves_curl() {
    let test = "nginx_with_a_master_and_a_worker_serves_curl";
    let Some(library) = library(test, &["nginx", "curl"]) else { return };
    let (hosts, (folder, bytes)) = (Hosts::new(library), site("nginx"));
    let reserved = ReservedPort::new();
    let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
    // The other one is at an address that the kernel does not have.
    let (port, path, other) = (reserved.port(), folder.display(), ReservedPort::new());
    let address = format!("10.9.8.1:{}", other.port());
    let text = format!(
        "{user} worker_processes 1; daemon off; error_log stderr; pid {path}/pid;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b;\n\
         fastcgi_temp_path {path}/c; uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;\n\
         sendfile on; server {{ listen {port}; listen {address}; root {path}; }} }}\n"
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut server = hosts.server("nginx");
    server.arg("-c").arg(folder.join("conf")).arg("-p").arg(&folder);
    let server = started(server);
    hosts.wait();
    fetch_both_ways(&hosts, port, &folder, &bytes);
    fetch_over_stack(&hosts, other.port(), &folder, &bytes);
    // The next worker waits for the end of the one before.
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it runs");
    fetch_over_stack(&hosts, port, &folder, &bytes);
    fetch_over_stack(&hosts, other.port(), &folder, &bytes);
    rustix::process::kill_process(pid, rustix::process::Signal::QUIT).expect("it runs");
    let mut server = server;
    assert!(server.0.wait().expect("its end").success());
    let works = "files by sendfile(2), one worker and its master, reload";
    tested_programs::record(test, &[["nginx", "local", "server", works]]);
}

#[test]
fn lighttpd_serves_files_and_cgi_to_curl() {
    let test = "lighttpd_serves_files_and_cgi_to_curl";
    let Some(library) = library(test, &["lighttpd", "curl"]) else { return };
    let (hosts, (folder, bytes)) = (Hosts::new(library), site("lighttpd"));
    let (reserved, path) = (ReservedPort::new(), folder.display());
    let script = "printf 'Content-Type: text/plain\\r\\n\\r\\n'; echo $QUERY_STRING; cat\n";
    std::fs::write(folder.join("echo.sh"), script).expect("a file");
    let text = format!(
        "server.document-root = \"{path}\"\nserver.port = {}\nserver.modules = (\"mod_cgi\")\n\
         server.errorlog = \"{path}/log\"\ncgi.assign = (\".sh\" => \"/bin/sh\")\n",
        reserved.port()
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut server = hosts.server("lighttpd");
    server.arg("-D").arg("-f").arg(folder.join("conf"));
    let _server = started(server);
    hosts.wait();
    fetch_both_ways(&hosts, reserved.port(), &folder, &bytes);
    let url = format!("http://10.9.8.1:{}/echo.sh?query", reserved.port());
    let post = |curl: &mut Command| {
        curl.args(["-sS", "--max-time", "50", "-d", "body", &url]);
    };
    assert_eq!(hosts.until_success(post, "curl"), "query\nbody");
    tested_programs::record(test, &[["lighttpd", "local", "server", "files and CGI"]]);
}

#[test]
fn haproxy_with_a_master_forwards_to_the_kernel() {
    let test = "haproxy_with_a_master_forwards_to_the_kernel";
    let Some(library) = library(test, &["haproxy", "curl", "python3"]) else { return };
    let (hosts, (folder, bytes)) = (Hosts::new(library), site("haproxy"));
    let (front, back) = (ReservedPort::new(), ReservedPort::new());
    let mut site = Command::new("python3");
    site.args(["-m", "http.server", &back.port().to_string(), "--bind", "127.0.0.1"]);
    let _site = started({
        site.current_dir(&folder);
        site
    });
    let text = format!(
        "defaults\n mode http\n timeout connect 20s\n timeout client 20s\n timeout server 20s\n\
         frontend f\n bind 10.9.8.1:{}\n default_backend b\n\
         backend b\n server s 127.0.0.1:{}\n",
        front.port(),
        back.port()
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut server = hosts.server("haproxy");
    server.args(["-W", "-db", "-f"]).arg(folder.join("conf"));
    let mut server = started(server);
    hosts.wait();
    let copy = folder.join("copy");
    let fetch = |curl: &mut Command| {
        curl.args(["-sSf", "--max-time", "50", "-o"]).arg(&copy);
        curl.arg(format!("http://10.9.8.1:{}/file", front.port()));
    };
    hosts.until_success(fetch, "curl");
    assert!(std::fs::read(&copy).expect("the copy") == bytes, "the bytes differ");
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it runs");
    server.0.wait().expect("its end");
    let works = "`-W`, to a server in the kernel";
    tested_programs::record(test, &[["haproxy", "local", "server", works]]);
}

#[test]
fn iperf3_measures_over_select() {
    let test = "iperf3_measures_over_select";
    let Some(library) = library(test, &["iperf3"]) else { return };
    let (hosts, reserved) = (Hosts::new(library), ReservedPort::new());
    let port = reserved.port().to_string();
    let mut server = hosts.server("iperf3");
    server.args(["-s", "-1", "-B", "10.9.8.1", "-p", &port]).stdout(Stdio::null());
    let mut server = started(server);
    hosts.wait();
    let measure = |it: &mut Command| {
        it.args(["-c", "10.9.8.1", "-p", &port, "-n", "200K"]);
    };
    let text = hosts.until_success(measure, "iperf3");
    assert!(text.contains("receiver"), "{text}");
    server.0.wait().expect("its end");
    tested_programs::record(test, &[["iperf3", "local", "server and client", "TCP"]]);
}

#[test]
fn redis_server_answers_its_own_clients() {
    let test = "redis_server_answers_its_own_clients";
    let programs = ["redis-server", "redis-cli", "redis-benchmark"];
    let Some(library) = library(test, &programs) else { return };
    let hosts = Hosts::new(library);
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let mut server = hosts.server("redis-server");
    server.args(["--port", &port, "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"]);
    server.current_dir(std::env::temp_dir()).stdout(Stdio::null());
    let _server = started(server);
    hosts.wait();
    let cli = |command: &mut Command, rest: &[&str]| {
        command.args(["-h", "10.9.8.1", "-p", &port]).args(rest);
    };
    // redis-cli ends with 0 where it cannot connect, and prints that.
    let deadline = Instant::now() + PATIENCE;
    while !hosts.until_success(|it| cli(it, &["set", "key", "value"]), "redis-cli").contains("OK") {
        assert!(Instant::now() < deadline, "redis-cli does not reach the server");
    }
    let value = hosts.until_success(|it| cli(it, &["get", "key"]), "redis-cli");
    assert_eq!(value.trim(), "value");
    let load = ["-t", "get,set", "-n", "2000", "-c", "20", "-q", "--csv"];
    let text = hosts.until_success(|it| cli(it, &load), "redis-benchmark");
    assert!(text.contains("\"GET\"") && text.contains("\"SET\""), "{text}");
    let mut kernel = Command::new("redis-cli");
    assert_eq!(said(kernel.args(["-p", &port, "get", "key"])).trim(), "value");
    tested_programs::record(
        test,
        &[
            ["redis-server", "local", "server", "also for clients in the kernel"],
            ["redis-cli", "local", "client", "GET and SET"],
            ["redis-benchmark", "local", "client", "GET and SET, 20 connections"],
        ],
    );
}

#[test]
fn memcached_serves_from_several_threads() {
    let test = "memcached_serves_from_several_threads";
    let Some(library) = library(test, &["memcached", "python3"]) else { return };
    let hosts = Hosts::new(library);
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let mut server = hosts.server("memcached");
    server.args(["-U", "0", "-t", "4", "-p", &port, "-l", "0.0.0.0"]);
    if rustix::process::getuid().is_root() {
        server.args(["-u", "root"]);
    }
    let _server = started(server);
    hosts.wait();
    let script = "import socket, sys\n\
                  address = (sys.argv[1], int(sys.argv[2]))\n\
                  for i in range(8):\n\
                  \x20   s = socket.create_connection(address, 5)\n\
                  \x20   s.sendall(b'set k%d 0 0 5\\r\\nhello\\r\\nget k%d\\r\\n' % (i, i))\n\
                  \x20   text = b''\n\
                  \x20   while not text.endswith(b'END\\r\\n'):\n\
                  \x20       part = s.recv(100)\n\
                  \x20       assert part\n\
                  \x20       text += part\n\
                  \x20   assert text.startswith(b'STORED\\r\\nVALUE k%d 0 5\\r\\nhe' % i)\n";
    let ask = |it: &mut Command| {
        it.args(["-c", script, "10.9.8.1", &port]);
    };
    hosts.until_success(ask, "python3");
    tested_programs::record(test, &[["memcached", "local", "server", "`-t 4`"]]);
}
