//! A stack that cannot start, or whose link goes away: its sockets fail with ENETDOWN, and the
//! program's other descriptors go on.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use super::service::ServiceHosts;
use super::{Ended, Hosts, library, preloaded, run, started};

/// Waits for a listener of the stack and a pipe, by each call that waits. Argument: a port.
const PROGRAM: &str = "\
import errno, os, select, socket, sys
server = socket.create_server(('10.9.8.1', int(sys.argv[1])))
server.setblocking(False)
reader, writer = os.pipe()
epoll, poll = select.epoll(), select.poll()
for one, events in (epoll, select.EPOLLIN), (poll, select.POLLIN):
    one.register(server, events)
    one.register(reader, events)
def fails(call, *arguments):
    try:
        raise SystemExit('%s' % call(*arguments))
    except OSError as error:
        assert error.errno == errno.ENETDOWN, error
fails(epoll.poll, 0)
for is_ready in (False, True, False, True):
    if is_ready: os.write(writer, b'x')
    expected = [reader] if is_ready else []
    seconds = 20 if is_ready else 0.02
    assert [fd for fd, _ in epoll.poll(seconds)] == expected
    assert [fd for fd, _ in poll.poll(seconds * 1000)] == expected
    assert select.select([server, reader], [], [], seconds)[0] == expected
    if is_ready: os.read(reader, 1)
    epoll.modify(server, select.EPOLLIN | select.EPOLLOUT if is_ready else select.EPOLLIN)
fails(server.accept)
fails(socket.create_connection, ('10.9.8.2', 80), 20)
print('all is well')
";

#[test]
fn sockets_of_a_stack_that_is_down_leave_others_alone() {
    let test = "sockets_of_a_stack_that_is_down_leave_others_alone";
    let Some(library) = library(test, &["python3"]) else { return };
    let mut program = preloaded("python3", &library, "local");
    let link = "memif:/nonexistent/memif.sock,role=server";
    program.env("MEGAPIPE_LINK", link).env("MEGAPIPE_ADDRESS", "10.9.8.1/24");
    let (status, text) = run(program.args(["-c", PROGRAM, "8080"]));
    assert!(status.success() && text.contains("all is well"), "{status}: {text}");
    assert_eq!(text.matches("its sockets fail with ENETDOWN").count(), 1, "{text}");
}

/// The other end of a link, until it is killed.
const PEER: &str = "import socket; socket.create_server(('10.9.8.1', 7)).accept()";

/// Has connections and a set of both kinds, says so, and looks at them when the link is gone.
const LOSER: &str = "\
import errno, select, socket, sys, threading
def said(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
kernel = socket.create_server(('127.0.0.1', 0))
server = socket.create_server(('10.9.8.2', 7))
datagrams = socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(('10.9.8.2', 9))
client = socket.create_connection(('10.9.8.2', 7), 20)
there = server.accept()[0]
client.sendall(b'x')
assert there.recv(1) == b'x'
epoll, other = select.epoll(), select.epoll()
epoll.register(there, select.EPOLLIN)
other.register(kernel, select.EPOLLIN)
other.register(client, select.EPOLLOUT | select.EPOLLET)
other.poll()
calls = dict(accept=server.accept, recv=lambda: client.recv(1), recvfrom=lambda: datagrams.recv(1),
             poll=lambda: [events & select.EPOLLERR for _, events in epoll.poll(20)])
results = {}
def note(name): results[name] = said(calls[name])
threads = [threading.Thread(target=note, args=[name]) for name in calls]
for thread in threads: thread.start()
print('up', flush=True)
for thread in threads: thread.join(20)
print(*sorted(results.items()))
print(said(there.recv, 1), said(there.recv, 1), said(there.send, b'x'), said(server.accept))
print(said(datagrams.sendto, b'x', ('10.9.8.1', 9)), said(datagrams.recv, 1))
print(said(socket.create_connection, ('10.9.8.2', 7), 20))
print(said(socket.create_server, ('10.9.8.2', 8)))
print(len(other.poll(20)), other.poll(0.05))
to = socket.create_connection(kernel.getsockname(), 20)
print(other.poll(20) == [(kernel.fileno(), select.EPOLLIN)])
kernel.accept()[0].sendall(b'from the kernel')
print(to.recv(100))
client.close(); there.close(); server.close()
";

const LOST: &str = "\
('accept', 'ENETDOWN') ('poll', [8]) ('recv', 'ENETDOWN') ('recvfrom', 'ENETDOWN')
ENETDOWN b'' EPIPE ENETDOWN
ENETDOWN ENETDOWN
ENETDOWN
ENETDOWN
1 []
True
b'from the kernel'
";

/// A program that a test speaks with, line by line.
struct Dialogue {
    program: Ended,
    output: BufReader<std::process::ChildStdout>,
}

impl Dialogue {
    fn with(mut program: Command) -> Self {
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = Ended(program.spawn().expect("it starts"));
        let output = BufReader::new(program.0.stdout.take().expect("asked for"));
        Self { program, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line
    }

    fn go_on(&mut self) {
        self.program.0.stdin.as_mut().expect("asked for").write_all(b"\n").expect("it reads");
    }

    /// What else it says, and its errors.
    fn rest(mut self) -> (String, String) {
        let (mut text, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut text).expect("text");
        let mut stderr = self.program.0.stderr.take().expect("asked for");
        stderr.read_to_string(&mut errors).expect("text");
        assert!(self.program.0.wait().expect("its end").success(), "{text}\n{errors}");
        (text, errors)
    }
}

#[test]
fn link_that_goes_away_ends_the_sockets_of_the_stack_alone() {
    let test = "link_that_goes_away_ends_the_sockets_of_the_stack_alone";
    let Some(library) = library(test, &["python3"]) else { return };
    let hosts = Hosts::new(library);
    let mut peer = hosts.server("python3");
    peer.args(["-c", PEER]);
    let mut peer = started(peer);
    hosts.wait();
    let mut program = hosts.client("python3");
    program.args(["-c", LOSER]);
    let mut program = Dialogue::with(program);
    assert_eq!(program.line(), "up\n");
    peer.0.kill().expect("it runs");
    let (text, errors) = program.rest();
    assert_eq!(text, LOST, "{errors}");
    assert_eq!(errors.matches("the link is gone").count(), 1, "{errors}");
}

/// Serves while its daemon is replaced.
const SURVIVOR: &str = "\
import errno, select, socket, sys, time
def said(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
kernel = socket.create_server(('127.0.0.1', 0))
server = socket.create_server(('10.9.7.1', 7))
client = socket.create_connection(('10.9.7.1', 7), 20)
there = server.accept()[0]
epoll = select.epoll()
for one in kernel, server, there: epoll.register(one, select.EPOLLIN)
print('up', flush=True)
sys.stdin.readline()
print([fd for fd, _ in epoll.poll(20)] == [there.fileno()], said(there.recv, 1))
print(said(client.recv, 1), said(client.send, b'x'))
there.close()
to = socket.create_connection(kernel.getsockname(), 20)
print([fd for fd, _ in epoll.poll(20)] == [kernel.fileno()])
kernel.accept()
print('down', flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 40
while isinstance(client := said(socket.create_connection, ('10.9.7.1', 7), 20), str):
    if time.monotonic() > deadline: raise SystemExit(client)
    time.sleep(0.05)
print([fd for fd, _ in epoll.poll(20)] == [server.fileno()])
server.accept()[0].sendall(b'back')
print(client.recv(10))
";

#[test]
fn listener_of_a_program_returns_with_the_next_daemon() {
    let test = "listener_of_a_program_returns_with_the_next_daemon";
    let Some(library) = library(test, &["python3"]) else { return };
    let hosts = ServiceHosts::new(library.clone(), "returns");
    let mut program = hosts.program(0, "python3");
    program.args(["-c", SURVIVOR]);
    let mut program = Dialogue::with(program);
    assert_eq!(program.line(), "up\n");
    drop(hosts);
    program.go_on();
    let expected = ["True ENETDOWN\n", "ENETDOWN EPIPE\n", "True\n", "down\n"];
    assert_eq!([(); 4].map(|()| program.line()), expected);
    let _hosts = ServiceHosts::new(library, "returns");
    program.go_on();
    let (text, errors) = program.rest();
    assert_eq!(text, "True\nb'back'\n", "{errors}");
    assert_eq!(errors.matches("the daemon has ended").count(), 1, "{errors}");
}
