//! Runs each example as its file head describes and talks to it.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest wait for one answer, on a busy machine.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A running example. Ends with the test.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a program and reads the address from its first line, `listening on ADDRESS`.
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).arg("127.0.0.1:0").stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program that cargo built");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ").expect("the address");
        Self { address: address.parse().expect("an address with a port"), child }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a listener");
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time-out above zero");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends bytes, ends the stream and compares the answer.
fn check_echo(server: &Server) {
    let bytes: Vec<u8> = (0..300_000u32).map(|it| it as u8).collect();
    let mut stream = server.connect();
    let mut sender = stream.try_clone().expect("a descriptor");
    let sent = bytes.clone();
    // The server reads on only when its answer is taken, so both directions run at once.
    let sending = std::thread::spawn(move || {
        sender.write_all(&sent).expect("a peer that reads");
        sender.shutdown(Shutdown::Write).expect("a connected socket");
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the end of the stream");
    sending.join().expect("no panic");
    assert!(answer == bytes, "{} of {} bytes, or others", answer.len(), bytes.len());
}

#[test]
fn echo_returns_each_byte() {
    let server = Server::start(env!("CARGO_BIN_EXE_echo"), &[]);
    (0..3).for_each(|_| check_echo(&server));
}

#[test]
fn tokio_bridge_echoes_within_a_runtime() {
    let server = Server::start(env!("CARGO_BIN_EXE_tokio_bridge"), &[]);
    (0..3).for_each(|_| check_echo(&server));
}

#[test]
fn chat_line_reaches_all_other_clients() {
    let server = Server::start(env!("CARGO_BIN_EXE_chat"), &[]);
    // Enough for both channels, however the cores are divided.
    let mut clients: Vec<_> = (0..12).map(|_| BufReader::new(server.connect())).collect();
    // A line that each client receives from the first shows that all are accepted.
    let mut is_known = vec![false; clients.len()];
    is_known[0] = true;
    for attempt in 0.. {
        assert!(attempt < 600, "clients that receive nothing: {is_known:?}");
        clients[0].get_mut().write_all(b"probe\n").expect("a server that reads");
        for (client, is_known) in clients.iter_mut().zip(&mut is_known) {
            if !*is_known {
                let socket = client.get_mut();
                socket.set_read_timeout(Some(Duration::from_millis(100))).expect("above zero");
                *is_known = client.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
                client.get_mut().set_read_timeout(Some(ANSWER_TIME_MAX)).expect("above zero");
            }
        }
        if is_known.iter().all(|it| *it) {
            break;
        }
    }
    for sender in 0..clients.len() {
        let line = format!("from {sender}\n");
        let (front, back) = line.split_at(4);
        // A line may come in two segments.
        clients[sender].get_mut().write_all(front.as_bytes()).expect("a server that reads");
        clients[sender].get_mut().write_all(back.as_bytes()).expect("a server that reads");
        for (number, client) in clients.iter_mut().enumerate().filter(|(it, _)| *it != sender) {
            let mut received = String::from("probe\n");
            while received == "probe\n" {
                received.clear();
                client.read_line(&mut received).expect("a line");
            }
            assert_eq!(received, line, "client {number}");
        }
    }
}

#[test]
fn chat_removes_a_client_whose_line_is_too_long() {
    let server = Server::start(env!("CARGO_BIN_EXE_chat"), &[]);
    let mut client = server.connect();
    client.write_all(&[b'x'; 1500]).expect("a server that reads");
    // An end of the stream or a reset: bytes of the client may be unread.
    assert!(client.read(&mut [0; 16]).map_or(true, |len| len == 0));
    assert!(server.connect().write_all(b"still there\n").is_ok());
}

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn file_server_sends_files_of_its_folder_only() {
    let top = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("file-server-{}", std::process::id()));
    let folder = Folder(top.clone());
    let root = top.join("root");
    fs::create_dir_all(root.join("sub")).expect("a folder of cargo's");
    let long: Vec<u8> = (0..1_000_003u32).map(|it| (it / 7) as u8).collect();
    fs::write(root.join("sub/long"), &long).expect("a file");
    fs::write(root.join("empty"), "").expect("a file");
    fs::write(top.join("outside"), "secret").expect("a file");
    std::os::unix::fs::symlink(top.join("outside"), root.join("link")).expect("a link");
    let server = Server::start(env!("CARGO_BIN_EXE_file_server"), &[root.to_str().expect("UTF-8")]);
    let fetch = |request: &str| {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).expect("a server that reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the end of the stream");
        answer
    };
    assert!(fetch("sub/long\n") == long, "the file arrives whole and in order");
    assert_eq!(fetch("empty\r\n"), b"");
    for outside in ["../outside\n", "link\n", "/etc/passwd\n", "sub\n", "absent\n", "\n", "a\0b\n"]
    {
        assert_eq!(fetch(outside), b"no such file\n", "{outside:?}");
    }
    assert_eq!(fetch(&"x".repeat(1025)), b"the name is too long\n");
    drop(folder);
}
