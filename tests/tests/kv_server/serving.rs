//! Servers to talk to, ours and memcached, and a socket to do it with.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use megapipe_apps::kv::{KvArgs, start};
use megapipe_apps::serve::{DriverName, Running, ServeArgs};
use megapipe_tests::ReservedPort;

/// How long anything may take before it counts as not happening.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The drivers that work here; one that does not is named.
pub(crate) fn drivers(test: &str) -> Vec<DriverName> {
    let works = |driver: &DriverName| {
        let started = start(&args(*driver));
        if let Err(error) = &started {
            println!("skipped: {test} on {driver}: {error}");
        }
        started.is_ok()
    };
    let drivers: Vec<_> =
        [DriverName::Uring, DriverName::Epoll].into_iter().filter(works).collect();
    assert!(!drivers.is_empty(), "no driver works here");
    drivers
}

/// Options for a server of one channel on a free port, which does not wait for clients that stay
/// when it is to end.
pub(crate) fn args(driver: DriverName) -> KvArgs {
    let mut serve = ServeArgs::on(["127.0.0.1:0".parse().expect("an address")]);
    (serve.driver, serve.drain) = (driver, 0);
    KvArgs::new(serve)
}

/// A server that runs.
pub(crate) fn serve(args: &KvArgs) -> (Running, SocketAddr) {
    let running = start(args).expect("the server starts");
    let address = running.addresses()[0].as_inet().expect("TCP");
    (running, address)
}

/// memcached on a free port, ended on drop.
pub(crate) struct Memcached {
    _process: Process,
    pub(crate) address: SocketAddr,
}

impl Memcached {
    /// Starts it; none if it is not installed, which is said.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let reserved = ReservedPort::new();
        let (address, port) = (reserved.address(), reserved.port().to_string());
        let arguments = ["-u", "daemon", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", &port];
        let process = Process::start(test, "memcached", &arguments, address)?;
        Some(Self { _process: process, address })
    }
}

/// Redis on a free port, without a file, ended on drop.
pub(crate) struct Redis {
    _process: Process,
    pub(crate) address: SocketAddr,
}

impl Redis {
    /// Starts it; none if it is not installed, which is said.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let reserved = ReservedPort::new();
        let (address, port) = (reserved.address(), reserved.port().to_string());
        let arguments =
            ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let process = Process::start(test, "redis-server", &arguments, address)?;
        Some(Self { _process: process, address })
    }
}

/// A server that others wrote, ended on drop.
struct Process(Child);

impl Process {
    /// Starts it and waits until it listens.
    fn start(test: &str, program: &str, arguments: &[&str], address: SocketAddr) -> Option<Self> {
        if !is_installed(program) {
            println!("skipped: {test}: {program} is not installed");
            return None;
        }
        let child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let started = Self(child);
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "{program} listens");
            thread::sleep(Duration::from_millis(10));
        }
        Some(started)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a program can be run here.
pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// A client's side of a connection.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connecting");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out");
        stream.set_write_timeout(Some(DEADLINE)).expect("a time-out");
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sending");
    }

    /// Receives until `enough` says so; returns all of it. What came by the deadline otherwise.
    pub(crate) fn receive_until(&mut self, mut enough: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        while !enough(&self.received) && Instant::now() < deadline {
            if !self.receive_some() {
                break;
            }
        }
        std::mem::take(&mut self.received)
    }

    /// Receives exactly this many bytes, or what came by the deadline.
    pub(crate) fn receive(&mut self, len: usize) -> Vec<u8> {
        self.receive_until(|received| received.len() >= len)
    }

    /// Sends a command and compares the answer.
    pub(crate) fn expect(&mut self, command: &[u8], answer: &[u8]) {
        self.send(command);
        let got = self.receive(answer.len());
        let (command, got, wanted) =
            (command.escape_ascii(), got.escape_ascii().to_string(), answer.escape_ascii());
        assert_eq!(got, wanted.to_string(), "{command}");
    }

    /// Whether the server ends the connection before the deadline.
    pub(crate) fn is_closed(&mut self) -> bool {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            if !self.receive_some() {
                return true;
            }
        }
        false
    }

    /// Waits for bytes a little; false if the connection has ended.
    fn receive_some(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(len) => {
                self.received.extend_from_slice(&buffer[..len]);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}
