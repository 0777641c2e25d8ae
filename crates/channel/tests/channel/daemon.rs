//! What is about the daemon of the back end `service` alone: whose death ends a session.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use megapipe::{Backend, Channel, Config, DatagramSharing, ServiceAddress};

use crate::place;
use crate::scene::PATIENCE;

/// Set in the process that attaches and has a child: the path of the daemon's socket and an
/// address.
const SESSION: &str = "MEGAPIPE_TEST_SESSION";

fn attached(path: &Path) -> Channel {
    let backend = Backend::Service(ServiceAddress::new(path));
    Channel::create(Config::default().backend(backend)).expect("the daemon runs")
}

/// The child of a process that is killed. It is ended on drop: it holds this test's pipes.
struct ChildOfFork(i32);

impl ChildOfFork {
    /// Returns `false` if it has ended before.
    fn kill(&self) -> bool {
        let pid = rustix::process::Pid::from_raw(self.0).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
    }
}

impl Drop for ChildOfFork {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Attaches, binds an endpoint that no other session can have, and leaves a child that holds a copy
/// of the control socket.
fn bind_and_fork(path: &Path, address: SocketAddr) -> ! {
    let mut channel = attached(path);
    channel.bind_datagram(address, DatagramSharing::default(), 0).expect("the port is free");
    // SAFETY: the child calls nothing but `pause`, until it is killed.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork fails");
    if child > 0 {
        println!("\nchild {child}");
    }
    loop {
        // SAFETY: takes no argument.
        unsafe { libc::pause() };
    }
}

#[test]
fn child_of_a_fork_does_not_keep_its_dead_parents_session() {
    let name = "daemon::child_of_a_fork_does_not_keep_its_dead_parents_session";
    if let Some(session) = std::env::var_os(SESSION) {
        let session = session.into_string().expect("text");
        let (path, address) = session.split_once('=').expect("two parts");
        bind_and_fork(path.as_ref(), address.parse().expect("an address"));
    }
    if let Err(why) = place::enter() {
        return println!("skipped: {name}: {why}");
    }
    let Ok(Backend::Service(service)) = place::service() else { panic!("a daemon") };
    let address = place::here("127.0.0.1:7").as_inet().expect("an address");
    let this = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(this);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(SESSION, format!("{}={address}", service.path().display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut parent = crate::scene::start(&mut command).expect("a test can run itself");
    let output = BufReader::new(parent.stdout.take().expect("asked for above"));
    let child = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("child ").and_then(|number| number.parse::<i32>().ok()));
    let child = ChildOfFork(child.expect("it attaches and forks"));
    let mut channel = attached(service.path());
    let bind = |channel: &mut Channel| {
        channel.bind_datagram(address, DatagramSharing::default(), 0).map(|_| ())
    };
    bind(&mut channel).expect_err("the other session has the address");
    parent.kill().expect("it is ours");
    parent.wait().expect("it has ended");
    let start = Instant::now();
    while let Err(error) = bind(&mut channel) {
        assert!(start.elapsed() < PATIENCE, "the session outlives its process: {error:?}");
        std::thread::sleep(crate::scene::A_WHILE);
    }
    assert!(child.kill(), "the child lived all the time");
}
