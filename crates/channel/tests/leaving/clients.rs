//! Many clients at once on one thread: each connects, sends eight bytes and reads them back.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// How long one transaction may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

struct Client {
    stream: TcpStream,
    number: u64,
    begun: Instant,
    is_connected: bool,
}

/// What became of the connections: how many were served, and how many ended in each error.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) served: usize,
    pub(crate) lost: BTreeMap<String, usize>,
}

/// Makes `total` connections, `at_once` of them at a time.
pub(crate) fn run(address: SocketAddr, total: usize, at_once: usize) -> Outcome {
    let (mut outcome, mut begun) = (Outcome::default(), 0);
    let mut clients: Vec<Client> = Vec::new();
    while begun < total || !clients.is_empty() {
        while begun < total && clients.len() < at_once {
            begun += 1;
            match Client::begin(address, begun as u64) {
                Ok(client) => clients.push(client),
                Err(error) => outcome.lose(&error),
            }
        }
        let wanted = |client: &Client| match client.is_connected {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        let mut polled: Vec<_> =
            clients.iter().map(|client| PollFd::new(&client.stream, wanted(client))).collect();
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        poll(&mut polled, Some(&wait)).expect("sockets can be polled");
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        clients.retain_mut(|client| {
            let is_ready = ready.next().unwrap_or(false);
            match if is_ready { client.step() } else { client.wait() } {
                Ok(true) => outcome.served += 1,
                Ok(false) => return true,
                Err(error) => outcome.lose(&error),
            }
            false
        });
    }
    outcome
}

impl Outcome {
    fn lose(&mut self, error: &io::Error) {
        *self.lost.entry(error.kind().to_string()).or_default() += 1;
    }
}

impl Client {
    fn begin(address: SocketAddr, number: u64) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket: OwnedFd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // Closes with a reset, which leaves no port in TIME-WAIT behind.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let stream = TcpStream::from(socket);
        Ok(Self { stream, number, begun: Instant::now(), is_connected: false })
    }

    /// `true`: the transaction is done.
    fn step(&mut self) -> io::Result<bool> {
        if !self.is_connected {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            self.is_connected = true;
            self.stream.write_all(&self.number.to_ne_bytes())?;
            return Ok(false);
        }
        let mut got = [0; 8];
        match self.stream.read(&mut got) {
            Ok(8) if got == self.number.to_ne_bytes() => Ok(true),
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(),
            Err(error) => Err(error),
        }
    }

    fn wait(&self) -> io::Result<bool> {
        match self.begun.elapsed() < PATIENCE {
            true => Ok(false),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }
}
