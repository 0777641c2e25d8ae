//! A listener that leaves its group under load, again and again: not one connection is lost,
//! whichever drivers serve the channel that leaves and the one that stays.
//!
//! Here on loopback, where a handshake takes no time; `rolling.rs` has a wire with delay, and
//! `local.rs` the shards of our own stack.

mod clients;
#[cfg(feature = "local")]
mod local;
mod rolling;
mod wire;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Address, Channel, Config, Connection, DriverChoice, Event, Handle, ListenOptions,
};

const CLIENTS: usize = 4;
const LEAVES: u32 = 12;
/// How long anything may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// An echo server on a channel of its own.
struct Server {
    channel: Channel,
    listener: Option<Handle>,
    accepted: u64,
    /// Connections that have not ended.
    open: usize,
}

impl Server {
    fn new(driver: DriverChoice) -> Self {
        Self::of(Channel::create(Config::default().driver(driver)).unwrap())
    }

    fn of(channel: Channel) -> Self {
        Self { channel, listener: None, accepted: 0, open: 0 }
    }

    fn listen(&mut self, address: &Address) -> SocketAddr {
        let listener = self.channel.listen(address, &ListenOptions::default(), 0).unwrap();
        self.channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(64)).unwrap();
        self.listener = Some(listener);
        self.channel.local_address(listener).unwrap().as_inet().unwrap()
    }

    fn leave(&mut self) {
        let left = self.channel.unregister(self.listener.take().unwrap()).unwrap();
        assert!(left.connections.is_empty(), "a sibling takes them");
    }

    /// For so long at least, and until a connection came.
    fn serve_one_for(&mut self, time: Duration) {
        let (start, accepted) = (Instant::now(), self.accepted);
        self.serve_for(time);
        while self.accepted == accepted {
            assert!(start.elapsed() < PATIENCE, "no connection comes");
            self.serve_for(time);
        }
    }

    fn serve_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let Some(done) = self.channel.dispatch(Some(left)).unwrap() else { return };
            let handle = done.handle;
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    assert!(matches!(accepted.connection, Connection::Lwsocket(_)));
                    self.accepted += 1;
                    self.open += 1;
                }
                Event::Read(Ok(data)) if !data.is_empty() => {
                    self.channel.write(handle, data).unwrap();
                }
                Event::Write(Ok(_)) => self.channel.read(handle, 64).unwrap(),
                Event::Read(_) | Event::Write(_) => {
                    self.channel.unregister(handle).unwrap();
                    self.open -= 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// One connection, one transaction.
fn transact(address: SocketAddr, number: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Closes with a reset, which leaves no port in TIME-WAIT behind.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    let sent = number.to_ne_bytes();
    stream.write_all(&sent)?;
    let mut got = [0; 8];
    stream.read_exact(&mut got)?;
    assert_eq!(sent, got);
    Ok(())
}

/// Whether a driver works here; says "skipped" if not.
fn works(driver: DriverChoice) -> bool {
    let tried = Channel::create(Config::default().driver(driver));
    if let Err(error) = &tried {
        eprintln!("skipped: a listener that leaves, on {driver:?}: {error}");
    }
    tried.is_ok()
}

fn leaves_under_load(leaving: DriverChoice, staying: DriverChoice) {
    if !works(leaving) || !works(staying) {
        return;
    }
    let done = Arc::new(AtomicBool::new(false));
    let are_gone = Arc::new(AtomicBool::new(false));
    let mut stayer = Server::new(staying);
    let address = stayer.listen(&"127.0.0.1:0".parse().unwrap());
    let leaver = {
        let (done, are_gone) = (Arc::clone(&done), Arc::clone(&are_gone));
        thread::spawn(move || {
            let mut server = Server::new(leaving);
            for _ in 0..LEAVES {
                server.listen(&address.into());
                server.serve_one_for(Duration::from_millis(30));
                server.leave();
                server.serve_for(Duration::from_millis(10));
            }
            // Relaxed: nothing else is shared.
            done.store(true, Ordering::Relaxed);
            // A client may be in the midst of its last transaction.
            while !are_gone.load(Ordering::Relaxed) {
                server.serve_for(Duration::from_millis(20));
            }
            server.accepted
        })
    };
    let count = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (done, count) = (Arc::clone(&done), Arc::clone(&count));
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let number = count.fetch_add(1, Ordering::Relaxed);
                    transact(address, number).unwrap();
                }
            })
        })
        .collect();
    while clients.iter().any(|client| !client.is_finished()) {
        stayer.serve_for(Duration::from_millis(20));
        if leaver.is_finished() {
            // It failed, or it would go on until the clients have gone.
            done.store(true, Ordering::Relaxed);
        }
    }
    are_gone.store(true, Ordering::Relaxed);
    let lost = clients.into_iter().filter_map(|client| client.join().err()).count();
    assert_eq!(lost, 0, "clients that lost a connection");
    let by_leaver = leaver.join().unwrap();
    assert!(by_leaver > 0 && stayer.accepted > 0, "{by_leaver} and {}", stayer.accepted);
    assert_eq!(by_leaver + stayer.accepted, count.load(Ordering::Relaxed));
    assert_eq!(stayer.channel.counters().connections_dropped, 0);
}

#[test]
fn uring_leaves_uring() {
    leaves_under_load(DriverChoice::Uring, DriverChoice::Uring);
}

#[test]
fn epoll_leaves_epoll() {
    leaves_under_load(DriverChoice::Epoll, DriverChoice::Epoll);
}

#[test]
fn uring_leaves_epoll() {
    leaves_under_load(DriverChoice::Uring, DriverChoice::Epoll);
}

#[test]
fn epoll_leaves_uring() {
    leaves_under_load(DriverChoice::Epoll, DriverChoice::Uring);
}

/// A socket that came from an epoll channel is non-blocking: waiting on it must not spin.
#[test]
fn a_non_blocking_listener_costs_nothing_while_idle() {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll].into_iter().filter(|it| works(*it)) {
        let mut channel = Channel::create(Config::default().driver(driver)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let handle = channel.register(listener.into(), 0, None).unwrap();
        channel.accept(handle, Accept::lwsocket(u32::MAX)).unwrap();
        assert!(channel.dispatch(Some(Duration::from_millis(100))).unwrap().is_none());
        let calls = channel.counters().system_calls;
        assert!(calls < 20, "{driver:?}: {calls} system calls");
        let _client = TcpStream::connect(address).unwrap();
        let done = channel.dispatch(Some(PATIENCE)).unwrap().unwrap();
        assert!(matches!(done.event, Event::Accept(Ok(_))));
    }
}
