//! `megapipe-http` as a process: what it prints, how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const LARGE_LEN: usize = 20_000_000;

/// A folder with one large file, removed again.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("mp-http-program-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(folder));
        std::fs::create_dir_all(&folder.0).unwrap();
        std::fs::write(folder.0.join("large.bin"), vec![b'x'; LARGE_LEN]).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program, ended with the test whatever happens.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signal_drains_pending_responses() {
    let folder = Folder::new("signal");
    let child = Command::new(env!("CARGO_BIN_EXE_megapipe-http"))
        .args(["--listen", "127.0.0.1:0", "--drain", "10", "--root"])
        .arg(&folder.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut program = Program(child);
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on ").unwrap().split(',').next().unwrap();

    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    kill_process(Pid::from_child(&program.0), Signal::TERM).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > LARGE_LEN, "cut off after {} bytes", rest.len());
    drop(stream);
    assert!(program.0.wait().unwrap().success());
}

#[test]
fn a_root_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_megapipe-http"))
        .args(["--listen", "127.0.0.1:0", "--root", "/nowhere/at/all"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--root /nowhere/at/all: "), "{said}");
}
