//! Where a channel under test and its peers are.
//!
//! With the kernel's drivers both are on the loopback interface. With the `local` back end the
//! test's thread moves into a network namespace of its own; the kernel there is the peers' host,
//! and each scene's stack is a host of its own behind a TUN device.
//!
//! Invariants
//! - [`here`] and [`there`] are the only way in which a fact comes by an Internet address that
//!   both sides use.
//! - A namespace goes with the thread that made it, and the devices in it.

use std::cell::Cell;
#[cfg(feature = "local")]
use std::cell::RefCell;
#[cfg(feature = "local")]
use std::io::Write;
#[cfg(feature = "local")]
use std::net::IpAddr;
use std::net::SocketAddr;
#[cfg(feature = "local")]
use std::os::fd::AsFd;
#[cfg(feature = "local")]
use std::os::unix::net::UnixStream;
#[cfg(feature = "local")]
use std::process::{Command, Stdio};
#[cfg(feature = "local")]
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "local")]
use std::thread::JoinHandle;

use megapipe::{Address, Config};
#[cfg(feature = "local")]
use megapipe::{Backend, Daemon, LocalNetwork, LoopbackOwner, ServerConfig, ServiceAddress};

/// A scene's network within the namespace: 10.77.N.0/24 and fd77:0:0:N::/64.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(u8);

thread_local! {
    /// The network of this thread's newest scene; `None`: loopback serves both sides.
    static PLACE: Cell<Option<Place>> = const { Cell::new(None) };
    /// Networks that this thread has made.
    #[cfg(feature = "local")]
    static NETWORKS: Cell<u8> = const { Cell::new(0) };
}

/// `address`, which names a loopback interface, as an address of the channel's.
pub(crate) fn here(address: &str) -> Address {
    let address: Address = address.parse().expect("an address");
    match (PLACE.get(), address.as_inet()) {
        (Some(place), Some(inet)) if inet.ip().is_loopback() => place.host(inet, 2).into(),
        _ => address,
    }
}

/// `address`, which names a loopback interface, as an address of its peers'.
pub(crate) fn there(address: &str) -> SocketAddr {
    let address: SocketAddr = address.parse().expect("an address");
    PLACE.get().map_or(address, |place| place.host(address, 1))
}

impl Place {
    /// A host of this network: 1 is the kernel, 2 the stack.
    fn host(self, address: SocketAddr, last: u8) -> SocketAddr {
        let net = self.0;
        let ip = match address {
            SocketAddr::V4(_) => [10, 77, net, last].into(),
            SocketAddr::V6(_) => [0xfd77, 0, 0, net.into(), 0, 0, 0, last.into()].into(),
        };
        SocketAddr::new(ip, address.port())
    }

    #[cfg(feature = "local")]
    fn configure(self) -> Result<(), String> {
        let device = self.device();
        let (v4, v6) = (loopback(4), loopback(6));
        let (v4, v6) = (self.host(v4, 1).ip(), self.host(v6, 1).ip());
        ip(&format!("addr add {v4}/24 dev {device}\naddr add {v6}/64 dev {device} nodad\n"))
    }

    #[cfg(feature = "local")]
    fn device(self) -> String {
        format!("mp-local{}", self.0)
    }
}

#[cfg(feature = "local")]
fn loopback(version: u8) -> SocketAddr {
    let address = if version == 4 { "127.0.0.1:0" } else { "[::1]:0" };
    address.parse().expect("an address")
}

/// Runs `ip` on lines of its commands.
#[cfg(feature = "local")]
pub(crate) fn ip(lines: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let missing = |error| format!("ip is not installed: {error}");
    let mut child = crate::scene::start(&mut command).map_err(missing)?;
    let mut input = child.stdin.take().expect("asked for above");
    input.write_all(lines.as_bytes()).map_err(|error| error.to_string())?;
    drop(input);
    let output = child.wait_with_output().map_err(missing)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip: {said}")) }
}

/// Moves the calling thread into a network namespace of its own.
///
/// # Errors
/// What is missing on this machine.
#[cfg(feature = "local")]
pub(crate) fn enter() -> Result<(), String> {
    // SAFETY: `unshare` takes no pointer. The network namespace is the calling thread's alone, and
    // that of the threads and processes it starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no network namespace: {}", std::io::Error::last_os_error()));
    }
    PLACE.set(None);
    ip("link set lo up\n")?;
    network().map(drop)
}

/// Another network of the namespace, with a stack's addresses on it and the kernel beyond.
///
/// # Errors
/// What is missing on this machine.
#[cfg(feature = "local")]
pub(crate) fn network() -> Result<Backend, String> {
    network_with(LoopbackOwner::Kernel, None)
}

#[cfg(feature = "local")]
fn network_with(loopback_owner: LoopbackOwner, shards: Option<u16>) -> Result<Backend, String> {
    let place = Place(NETWORKS.get());
    // Those of long ago are gone.
    NETWORKS.set(place.0.wrapping_add(1));
    let (v4, v6) = (place.host(loopback(4), 2).ip(), place.host(loopback(6), 2).ip());
    let addresses = vec![(v4, 24), (v6, 64)];
    let settings =
        ServerConfig { addresses, loopback: loopback_owner, shards, ..ServerConfig::default() };
    let link = format!("tun:{}", place.device());
    let network = LocalNetwork::open(&link, settings).map_err(|error| error.to_string())?;
    place.configure()?;
    PLACE.set(Some(place));
    Ok(Backend::Local(network))
}

/// A daemon on a thread of this process. Dropping it ends it.
#[cfg(feature = "local")]
struct TestDaemon {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

#[cfg(feature = "local")]
impl Drop for TestDaemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a daemon does not panic");
        }
    }
}

#[cfg(feature = "local")]
thread_local! {
    /// The daemons of this thread's scenes.
    static DAEMONS: RefCell<Vec<TestDaemon>> = const { RefCell::new(Vec::new()) };
}

/// As [`network`], with the stack in a daemon. The file's name ends with the number of the place.
///
/// # Errors
/// What is missing on this machine.
#[cfg(feature = "local")]
pub(crate) fn service() -> Result<Backend, String> {
    service_with(LoopbackOwner::Kernel)
}

#[cfg(feature = "local")]
pub(crate) fn service_with(loopback: LoopbackOwner) -> Result<Backend, String> {
    daemon(network_with(loopback, None)?)
}

/// As [`service`], with so many shards.
#[cfg(feature = "local")]
pub(crate) fn service_of_shards(count: u16) -> Result<Backend, String> {
    daemon(network_with(LoopbackOwner::Kernel, Some(count))?)
}

/// A daemon at the newest network.
#[cfg(feature = "local")]
fn daemon(network: Backend) -> Result<Backend, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Backend::Local(network) = network else {
        return Err("no network".to_owned());
    };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let number = PLACE.get().map_or(0, |place| place.0);
    let name = format!("mp-service-{}-{count}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let (stop, stopped) = UnixStream::pair().map_err(|error| error.to_string())?;
    let (ready, is_ready) = std::sync::mpsc::channel();
    let at = path.clone();
    let run = move || {
        let started = Daemon::start(&network, &at, &[], |line| println!("daemon: {line}"));
        let started = started.map_err(|error| format!("{error:?}"));
        let (mut daemon, outcome) = match started {
            Ok(daemon) => (Some(daemon), Ok(())),
            Err(error) => (None, Err(error)),
        };
        ready.send(outcome).expect("the test waits for it");
        if let Some(daemon) = &mut daemon {
            // A test may take its link away.
            let _ = daemon.run(stopped.as_fd());
        }
    };
    let thread = Some(std::thread::spawn(run));
    is_ready.recv().map_err(|error| error.to_string())??;
    DAEMONS.with_borrow_mut(|all| all.push(TestDaemon { stop: Some(stop), thread }));
    Ok(Backend::Service(ServiceAddress::new(path)))
}

/// From now on [`here`] and [`there`] are about the network of this configuration.
pub(crate) fn settle(config: &Config) {
    PLACE.set(match &config.backend {
        #[cfg(feature = "local")]
        Backend::Local(network) => match network.addresses().next() {
            Some(IpAddr::V4(ours)) => Some(Place(ours.octets()[2])),
            // A host's own network: the test names its addresses itself.
            _ => return,
        },
        #[cfg(feature = "local")]
        Backend::Service(address) => {
            let number = address.path().to_str().and_then(|path| path.rsplit('-').next());
            number.and_then(|number| number.parse().ok()).map(Place)
        }
        _ => None,
    });
}

/// The device of the newest scene's network.
#[cfg(feature = "local")]
pub(crate) fn device() -> String {
    PLACE.get().expect("a network was made").device()
}

/// The place that [`here`] and [`there`] are about.
pub(crate) fn get() -> Option<Place> {
    PLACE.get()
}

/// From now on they are about this one.
pub(crate) fn set(place: Option<Place>) {
    PLACE.set(place);
}

/// The thread's scenes are on networks of a namespace.
pub(crate) fn is_local() -> bool {
    PLACE.get().is_some()
}
