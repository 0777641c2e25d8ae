//! Unmodified programs on the back end `service`: each process has a session of its own, and child
//! processes listen where their parent did.

use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use megapipe::{Daemon, LocalNetwork, LoopbackOwner, ServerConfig};
use rustix::process::{Pid, Signal, kill_process};

use super::capi_prefix::{C11, Ended, compile, prefix, sources};
use super::{
    PATIENCE, ReservedPort, library, preloaded, run, said, site, started, tested_programs,
};

/// A daemon of this process. It ends on drop.
struct DaemonThread {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for DaemonThread {
    fn drop(&mut self) {
        self.stop.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Two hosts, each with a daemon, at the ends of a memif.
pub(super) struct ServiceHosts {
    library: PathBuf,
    folder: PathBuf,
    _daemons: [DaemonThread; 2],
}

impl ServiceHosts {
    pub(super) fn new(library: PathBuf, name: &str) -> Self {
        let folder = format!("mp-preload-service-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let (ready, is_ready) = mpsc::channel();
        // Each waits for the other one.
        let daemons = [0_usize, 1].map(|end| {
            let (stopped, stop) = pipe().expect("a pipe");
            let (folder, ready) = (folder.clone(), ready.clone());
            let thread = std::thread::spawn(move || {
                let role = ["server", "client"][end];
                let link = format!("memif:{},role={role}", folder.join("memif").display());
                let addresses = vec![([10, 9, 7, end as u8 + 1].into(), 24)];
                let loopback = LoopbackOwner::Stack;
                let settings = ServerConfig { addresses, loopback, ..ServerConfig::default() };
                let network = LocalNetwork::open(&link, settings).expect("a link");
                let path = folder.join(format!("service{end}"));
                let mut daemon = Daemon::start(&network, &path, &[], |line| println!("{line}"))
                    .expect("it runs");
                ready.send(()).expect("the test waits");
                daemon.run(stopped.as_fd()).expect("it runs");
            });
            DaemonThread { stop: Some(stop), thread: Some(thread) }
        });
        for _ in &daemons {
            is_ready.recv_timeout(PATIENCE).expect("both start");
        }
        Self { library, folder, _daemons: daemons }
    }

    /// A program at 10.9.7.1 or 10.9.7.2.
    pub(super) fn program(&self, end: usize, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = preloaded(name, &self.library, "service");
        command.env("MEGAPIPE_SERVICE", self.folder.join(format!("service{end}")));
        command.env("MEGAPIPE_ADDRESS", format!("10.9.7.{}/24", end + 1));
        command
    }

    /// Where the daemons have their sockets. It is removed at the end.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// nginx with two workers, which serves a folder at 10.9.7.1.
    pub(super) fn nginx(&self, folder: &Path, port: u16) -> Command {
        let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
        let path = folder.display();
        let text = format!(
            "{user} worker_processes 2; daemon off; error_log stderr; pid {path}/pid;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b;\n\
             fastcgi_temp_path {path}/c; uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;\n\
             server {{ listen 10.9.7.1:{port}; root {path}; }} }}\n"
        );
        std::fs::write(folder.join("conf"), text).expect("a file");
        let mut server = self.program(0, "nginx");
        server.arg("-c").arg(folder.join("conf")).arg("-p").arg(folder);
        server
    }

    /// Fetches a page as often as asked for, each time by a new connection, from 10.9.7.1.
    fn fetches(&self, port: u16, count: u32) -> Command {
        let mut curl = self.program(1, "curl");
        curl.args(["-sSf", "--max-time", "50", "-H", "Connection: close", "-o", "/dev/null"]);
        curl.arg(format!("http://10.9.7.1:{port}/file?[1-{count}]"));
        curl
    }

    pub(super) fn until_served(&self, port: u16) {
        let deadline = Instant::now() + PATIENCE;
        while !run(&mut self.fetches(port, 1)).0.success() {
            assert!(Instant::now() < deadline, "the server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for ServiceHosts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn workers_listen_where_their_master_did() {
    let test = "workers_listen_where_their_master_did";
    let Some(library) = library(test, &["nginx", "curl"]) else { return };
    let (hosts, (folder, _)) = (ServiceHosts::new(library, "nginx"), site("service"));
    let reserved = ReservedPort::new();
    let port = reserved.port();
    let mut server = started(hosts.nginx(&folder, port));
    hosts.until_served(port);
    said(&mut hosts.fetches(port, 20));
    // Another program cannot take the address.
    let mut other = hosts.program(0, "python3");
    let script = format!("import socket; socket.create_server(('10.9.7.1', {port}))");
    let (status, text) = run(other.args(["-c", &script]));
    assert!(!status.success() && text.contains("Address already in use"), "{text}");
    kill_process(Pid::from_child(&server.0), Signal::QUIT).expect("it runs");
    assert!(server.0.wait().expect("its end").success());
    tested_programs::record(
        test,
        &[
            ["nginx", "service", "server", "two workers and their master"],
            ["curl", "service", "client", "files"],
        ],
    );
}

/// A server whose listener is made by another program: `exec` becomes the server by exec(3), `pass`
/// sends it a message.
const HEIRS: &str = r#"
import os, signal, socket, subprocess, sys
def serve(listener):
    signal.alarm(100)
    for _ in range(6):
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(b'HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok')
        connection.close()
how, value = sys.argv[1:]
me = [sys.executable, __file__]
if how == 'exec':
    listener = socket.create_server(('10.9.7.1', int(value)))
    listener.set_inheritable(True)
    os.execv(me[0], me + ['serve', str(listener.fileno())])
elif how == 'serve':
    serve(socket.socket(fileno=int(value)))
elif how == 'pass':
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    child = subprocess.Popen(me + ['receive', str(number)], pass_fds=[number])
    listener = socket.create_server(('10.9.7.1', int(value)))
    socket.send_fds(ours, [b'x'], [listener.fileno()])
    listener.close()
    sys.exit(child.wait())
elif how == 'receive':
    numbers = socket.recv_fds(socket.socket(fileno=int(value)), 1, 1)[1]
    serve(socket.socket(fileno=numbers[0]))
"#;

#[test]
fn listeners_pass_through_exec_and_messages() {
    let test = "listeners_pass_through_exec_and_messages";
    let Some(library) = library(test, &["python3", "curl"]) else { return };
    let (hosts, (folder, _)) = (ServiceHosts::new(library, "heirs"), site("heirs"));
    let script = folder.join("heirs.py");
    std::fs::write(&script, HEIRS).expect("a file");
    for how in ["exec", "pass"] {
        let reserved = ReservedPort::new();
        let port = reserved.port();
        let mut server = hosts.program(0, "python3");
        server.arg(&script).args([how, &port.to_string()]);
        let mut server = started(server);
        hosts.until_served(port);
        said(&mut hosts.fetches(port, 5));
        assert!(server.0.wait().expect("its end").success(), "{how}");
    }
    let works = "listeners that exec(3) or a message passes on";
    tested_programs::record(test, &[["python3", "service", "server", works]]);
}

#[test]
fn loopback_of_the_daemon_connects_its_programs() {
    let test = "loopback_of_the_daemon_connects_its_programs";
    let Some(library) = library(test, &["python3"]) else { return };
    let hosts = ServiceHosts::new(library, "loopback");
    let reserved = ReservedPort::new();
    let port = reserved.port();
    let program = |script: String| {
        let mut python = hosts.program(0, "python3");
        python.env("MEGAPIPE_LOOPBACK", "stack").args(["-c", &script]);
        python
    };
    let serve = format!(
        "import socket; server = socket.create_server(('127.0.0.1', {port}))\n\
         while True: server.accept()[0].sendall(b'from the stack')"
    );
    let _server = started(program(serve));
    let ask = format!(
        "import socket\n\
         s = socket.create_connection(('127.0.0.1', {port}), 20)\n\
         assert s.recv(100) == b'from the stack'"
    );
    let deadline = Instant::now() + PATIENCE;
    while !run(&mut program(ask.clone())).0.success() {
        assert!(Instant::now() < deadline, "the server does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A program without the setting has the kernel's loopback, where nothing listens.
    let mut other = hosts.program(0, "python3");
    let (status, text) = run(other.args(["-c", &ask]));
    assert!(!status.success() && text.contains("ConnectionRefusedError"), "{text}");
    let works = "TCP over the loopback of the daemon";
    tested_programs::record(test, &[["python3", "service", "server and client", works]]);
}

#[test]
fn server_forks_for_each_connection() {
    let test = "server_forks_for_each_connection";
    let Some(library) = library(test, &["socat", "cat", "timeout"]) else { return };
    let hosts = ServiceHosts::new(library, "fork");
    let reserved = ReservedPort::new();
    let port = reserved.port();
    let mut server = hosts.program(0, "socat");
    server.arg(format!("TCP-LISTEN:{port},bind=10.9.7.1,fork")).arg("EXEC:cat");
    let _server = started(server);
    let echo = |text: &str| {
        let mut client = hosts.program(1, "timeout");
        client.args(["-s", "KILL", "50", "socat", "-t", "20", "-"]);
        client.arg(format!("TCP:10.9.7.1:{port}"));
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = client.spawn().expect("it starts");
        // A client whose connection is refused has ended.
        let _ = client.stdin.take().expect("asked for").write_all(text.as_bytes());
        let output = client.wait_with_output().expect("it is ours");
        String::from_utf8(output.stdout).expect("text")
    };
    let deadline = Instant::now() + PATIENCE;
    while echo("first\n") != "first\n" {
        assert!(Instant::now() < deadline, "the server does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let long = "a line of text that is longer than a segment\n".repeat(200);
    for text in ["second\n", &long] {
        assert_eq!(echo(text), text);
    }
    tested_programs::record(
        test,
        &[
            ["socat", "service", "server", "`TCP-LISTEN` with `fork`, `EXEC`"],
            ["socat", "service", "client", "`TCP`"],
        ],
    );
}

/// Runs a C program of the preload library's tests as server and client. Both print the same on
/// Linux and on `service`; the back end `kernel` has no connections for other processes.
fn serve_and_ask(test: &str, source: &str) {
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let path = sources().join("../preload/tests").join(source);
    let program = compile(prefix, &path, &format!("preload-{source}"), C11);
    let expected = served_and_asked("127.0.0.1", |_| Command::new(&program));
    let hosts = ServiceHosts::new(library, source);
    let on_service = served_and_asked("10.9.7.1", |end| hosts.program(end, &program));
    assert_eq!(on_service, expected);
}

/// What a server prints at whose address a client asks.
fn served_and_asked(address: &str, program: impl Fn(usize) -> Command) -> String {
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let mut server = program(0);
    server.args(["serve", address, &port]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Ended(server.spawn().expect("it starts"));
    let mut output = server.0.stdout.take().expect("asked for");
    let printed = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let deadline = Instant::now() + PATIENCE;
    let ask = || run(program(1).args(["ask", address, &port]));
    let mut asked = ask();
    // It may come before the server listens.
    while asked.0.code() == Some(2) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        asked = ask();
    }
    assert!(asked.0.success() && asked.1 == "asked\n", "{asked:?}");
    assert!(server.0.wait().expect("its end").success());
    printed.join().expect("it does not panic").expect("text")
}

/// Runs a C program of the preload library's tests, which prints the same on Linux and on
/// `service`.
fn compare_with_linux(test: &str, source: &str) {
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let path = sources().join("../preload/tests").join(source);
    let program = compile(prefix, &path, &format!("preload-{source}"), C11);
    let hosts = ServiceHosts::new(library, source);
    let on_linux = std::thread::spawn({
        let mut command = Command::new(&program);
        command.arg("127.0.0.1");
        move || said(&mut command)
    });
    let on_service = said(hosts.program(0, &program).arg("10.9.7.1"));
    let on_linux = on_linux.join().expect("it does not panic");
    assert!(on_linux.ends_with("end\n"), "{on_linux}");
    assert_eq!(on_service, on_linux);
}

#[test]
fn sockets_that_connect_are_inherited() {
    compare_with_linux("sockets_that_connect_are_inherited", "connecting.c");
}

#[test]
fn children_use_the_sets_of_their_parent() {
    compare_with_linux("children_use_the_sets_of_their_parent", "inherited_sets.c");
}

#[test]
fn udp_sockets_of_several_processes_work() {
    serve_and_ask("udp_sockets_of_several_processes_work", "datagrams.c");
}

#[test]
fn connections_pass_in_messages() {
    serve_and_ask("connections_pass_in_messages", "passes.c");
}

#[test]
fn programs_go_on_with_connections_after_exec() {
    serve_and_ask("programs_go_on_with_connections_after_exec", "execs.c");
}

/// A server whose threads give each connection to `cat`, as its input and output, by vfork(2), and
/// write the last line themselves. Its client checks that nothing is missing.
const ECHOES: &str = r#"
import signal, socket, subprocess, sys, threading
signal.alarm(100)
TEXT = b'a line that goes to another program\n' * 500
def serve_one(connection):
    assert connection.recv(6, socket.MSG_WAITALL) == b'first\n'
    subprocess.run(['cat'], stdin=connection, stdout=connection, check=True)
    connection.sendall(b'last\n')
    connection.close()
def ask_one(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b'first\n' + TEXT)
        connection.shutdown(socket.SHUT_WR)
        answer = b''.join(iter(lambda: connection.recv(4096), b''))
    assert answer == TEXT + b'last\n', answer[-50:]
    answered.append(True)
def together(work, arguments):
    threads = []
    for it in arguments:
        threads.append(threading.Thread(target=work, args=(it,)))
        threads[-1].start()
    for thread in threads: thread.join()
answered = []
how, port = sys.argv[1:]
address = ('10.9.7.1', int(port))
if how == 'serve':
    listener = socket.create_server(address)
    together(serve_one, (listener.accept()[0] for _ in range(20)))
else:
    try:
        ask_one(address)
    except ConnectionRefusedError:
        sys.exit(2)
    for count in [5, 5, 5, 4]:
        together(ask_one, [address] * count)
    assert len(answered) == 20
"#;

#[test]
fn programs_of_python_have_connections_as_input() {
    let test = "programs_of_python_have_connections_as_input";
    let Some(library) = library(test, &["python3", "cat"]) else { return };
    let (hosts, reserved) = (ServiceHosts::new(library, "echoes"), ReservedPort::new());
    let port = reserved.port().to_string();
    let mut server = hosts.program(0, "python3");
    server.args(["-c", ECHOES, "serve", &port]);
    let mut server = started(server);
    let deadline = Instant::now() + PATIENCE;
    let ask = || run(hosts.program(1, "python3").args(["-c", ECHOES, "ask", &port]));
    let mut asked = ask();
    while asked.0.code() == Some(2) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        asked = ask();
    }
    assert!(asked.0.success(), "{asked:?}");
    assert!(server.0.wait().expect("its end").success());
    let works = "`subprocess` with a connection as input and output";
    tested_programs::record(test, &[["python3", "service", "server", works]]);
}

#[test]
fn children_use_the_connections_of_their_parent() {
    let test = "children_use_the_connections_of_their_parent";
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let source = sources().join("../preload/tests/forks.c");
    let program = compile(prefix, &source, "preload-forks", C11);
    let hosts = ServiceHosts::new(library, "children");
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let mut server = hosts.program(0, &program);
    server.args(["serve", "10.9.7.1", &port, "5"]);
    let mut server = started(server);
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..5 {
        let ask = || run(hosts.program(1, &program).args(["ask", "10.9.7.1", &port]));
        let mut asked = ask();
        // The first ones may come before the server listens.
        while asked.0.code() == Some(2) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            asked = ask();
        }
        assert!(asked.0.success() && asked.1 == "asked\n", "{asked:?}");
    }
    assert!(server.0.wait().expect("its end").success());
}

/// UDP addresses of several processes, each of which prints what bind(2) says to it, and clients
/// that have one peer.
const UDP_ADDRESSES: &str = r#"
import errno, os, signal, socket, sys
signal.alarm(60)
HOST = sys.argv[1]
ADDRESS, PORT = socket.SO_REUSEADDR, socket.SO_REUSEPORT
def bound(port, *options):
    it = socket.socket(type=socket.SOCK_DGRAM)
    for option in options:
        it.setsockopt(socket.SOL_SOCKET, option, 1)
    it.bind((HOST, port))
    return it
def port_of(it):
    return it.getsockname()[1]
def result(port, *options):
    try:
        return port_of(bound(port, *options)) == port
    except OSError as error:
        return errno.errorcode[error.errno]
def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
for options in [(), (ADDRESS,), (PORT,), (ADDRESS, PORT)]:
    port = port_of(here := bound(0, *options))
    def others():
        # From now on the stack of this process runs, and not only records what is bound.
        ports = [port_of(bound(0)) for _ in range(10)]
        print(port in ports, 0 in ports)
        asked = [(), (ADDRESS,), (PORT,), (ADDRESS, PORT)]
        print(len(options), [result(port, *of) for of in asked])
    in_child(others)
    here.close()
server = bound(0)
def ask(number):
    def work():
        client = socket.socket(type=socket.SOCK_DGRAM)
        client.connect(server.getsockname())
        client.send(b'%d' % number)
        in_child(lambda: None)
        print(client.recv(9))
        if number < 5:
            in_child(ask(number + 1))
        client.send(b'again %d' % number)
        print(client.recv(9))
    return work
answering = os.fork()
if answering == 0:
    for _ in range(10):
        text, peer = server.recvfrom(9)
        server.sendto(text, peer)
    os._exit(0)
in_child(ask(1))
assert os.waitpid(answering, 0)[1] == 0
"#;

#[test]
fn udp_addresses_are_of_one_process_as_on_linux() {
    let test = "udp_addresses_are_of_one_process_as_on_linux";
    let Some(library) = library(test, &["python3"]) else { return };
    let hosts = ServiceHosts::new(library, "addresses");
    let (status, expected) = run(Command::new("python3").args(["-c", UDP_ADDRESSES, "127.0.0.1"]));
    assert!(status.success(), "{expected}");
    let mut program = hosts.program(0, "python3");
    let (status, output) = run(program.args(["-c", UDP_ADDRESSES, "10.9.7.1"]));
    assert!(status.success() && output == expected, "{output}\nLinux: {expected}");
}
