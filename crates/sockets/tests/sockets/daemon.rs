//! Daemons of the back end `service`, on threads of this process.
//!
//! Invariant: a thread has the daemons of one world at a time. Those of the next one replace them.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use megapipe::{Daemon, LocalNetwork, ServiceAddress};

/// A daemon on a thread. Dropping it ends it.
struct TestDaemon {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a daemon does not panic");
        }
    }
}

thread_local! {
    static DAEMONS: RefCell<Vec<TestDaemon>> = const { RefCell::new(Vec::new()) };
}

/// Replaces the daemons of the calling thread by one on each of the networks.
pub(crate) fn serve(networks: [LocalNetwork; 2]) -> [ServiceAddress; 2] {
    DAEMONS.with_borrow_mut(Vec::clear);
    networks.map(|network| {
        let (daemon, address) = start(network);
        DAEMONS.with_borrow_mut(|all| all.push(daemon));
        address
    })
}

fn start(network: LocalNetwork) -> (TestDaemon, ServiceAddress) {
    let path = unused_path();
    let address = ServiceAddress::new(&path);
    let (stop, stopped) = UnixStream::pair().expect("a pair of sockets");
    let (ready, is_ready) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let notice = |line: &str| println!("daemon: {line}");
        let daemon = Daemon::start(&network, &path, &[], notice);
        let (mut daemon, outcome) = match daemon {
            Ok(daemon) => (Some(daemon), Ok(())),
            Err(error) => (None, Err(format!("{error:?}"))),
        };
        ready.send(outcome).expect("the test waits for it");
        if let Some(daemon) = &mut daemon {
            // The link of the second one goes with the first.
            let _ = daemon.run(stopped.as_fd());
        }
    });
    let daemon = TestDaemon { stop: Some(stop), thread: Some(thread) };
    is_ready.recv().expect("the daemon reports").expect("a daemon can be had");
    (daemon, address)
}

fn unused_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the counter orders nothing but itself.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("mp-sockets-{}-{count}", std::process::id()))
}
