//! The examples of the C library that no other test runs, as its users build and start them.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use capi_prefix::{C11, compile, is_installed, prefix};
use rustix::process::{Pid, Signal, kill_process};

const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A running example. Ends with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts a server on a free port, which its first line ends with.
    fn start(command: &mut Command) -> Self {
        let mut child = command.arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().unwrap().parse().expect(&line);
        Self { child, port }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).unwrap();
        stream
    }

    /// Sends requests, ends the stream and returns what comes until the server closes.
    fn ask(&self, requests: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        let mut sender = stream.try_clone().unwrap();
        let requests = requests.to_vec();
        let sending = std::thread::spawn(move || {
            let sent = sender.write_all(&requests);
            sent.and_then(|()| sender.shutdown(Shutdown::Write))
        });
        let mut answers = Vec::new();
        // A reset is possible where the server closes with requests unread.
        let _ = stream.read_to_end(&mut answers);
        let _ = sending.join().unwrap();
        answers
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The installed file of an example.
fn example(prefix: &Path, name: &str) -> std::path::PathBuf {
    prefix.join("share/doc/megapipe/examples").join(name)
}

#[test]
fn kv_server_in_c_answers_each_request_in_order() {
    let Some(prefix) = prefix("kv_server_in_c_answers_each_request_in_order") else { return };
    let program = compile(prefix, &example(prefix, "kv_server.c"), "kv_server", C11);
    let mut server = Server::start(&mut Command::new(program));
    let requests = b"get a\nset a one two\nget a\r\ndel a\nget a\ndel a\nset b\nhello\n\n";
    let answers = String::from_utf8(server.ask(requests)).unwrap();
    let wrong = "error the commands are set KEY VALUE, get KEY, del KEY";
    let missing = "error a command and a key are missing";
    let expected = [
        "not found",
        "stored",
        "value one two",
        "deleted",
        "not found",
        "not found",
        wrong,
        missing,
        missing,
    ];
    assert_eq!(answers.lines().collect::<Vec<_>>(), expected);
    // Many requests at once, with answers far longer than they are; other clients go on meanwhile.
    let value = "v".repeat(1000);
    assert_eq!(server.ask(format!("set k {value}\n").as_bytes()), b"stored\n");
    let idle = server.connect();
    let answers = server.ask("get k\n".repeat(5_000).as_bytes());
    assert_eq!(answers.len(), 5_000 * (value.len() + 7));
    drop(idle);
    // A line that does not end closes the connection, and nothing else.
    assert_eq!(server.ask(&[b'x'; 5_000]), b"");
    assert!(server.ask(b"get k\n").starts_with(b"value v"));
    let pid = Pid::from_raw(server.child.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn echo_in_python_returns_each_byte() {
    let test = "echo_in_python_returns_each_byte";
    let Some(prefix) = prefix(test) else { return };
    if !is_installed("python3") {
        println!("skipped: {test}: python3 is not installed");
        return;
    }
    let mut python = Command::new("python3");
    python.arg(example(prefix, "echo.py")).env("LD_LIBRARY_PATH", prefix.join("lib"));
    let server = Server::start(&mut python);
    let bytes: Vec<u8> = (0..300_000u32).map(|it| it as u8).collect();
    for _ in 0..2 {
        let answer = server.ask(&bytes);
        assert!(answer == bytes, "{} of {} bytes, or others", answer.len(), bytes.len());
    }
}
