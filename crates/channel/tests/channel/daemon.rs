//! What is about the daemon of the back end `service` alone: whose death ends a session.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use megapipe::{Backend, Channel, Config, ConnectOptions, DatagramSharing, Event, ServiceAddress};

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

/// What this process is to do as the other one.
fn asked_for() -> Option<(String, SocketAddr)> {
    let session = std::env::var_os(SESSION)?.into_string().expect("text");
    let (path, address) = session.split_once('=').expect("two parts");
    Some((path.to_owned(), address.parse().expect("an address")))
}

/// A process that runs a test of this program, and finds [`asked_for`] there.
fn other_process(name: &str, service: &ServiceAddress, address: SocketAddr) -> Child {
    let this = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(this);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(SESSION, format!("{}={address}", service.path().display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    crate::scene::start(&mut command).expect("a test can run itself")
}

#[test]
fn child_of_a_fork_does_not_keep_its_dead_parents_session() {
    let name = "daemon::child_of_a_fork_does_not_keep_its_dead_parents_session";
    if let Some((path, address)) = asked_for() {
        bind_and_fork(path.as_ref(), address);
    }
    if let Err(why) = place::enter() {
        return println!("skipped: {name}: {why}");
    }
    let Ok(Backend::Service(service)) = place::service() else { panic!("a daemon") };
    let address = place::here("127.0.0.1:7").as_inet().expect("an address");
    let mut parent = other_process(name, &service, address);
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

/// Connects twice, and lives until it is killed. The first connection has SO_LINGER 0.
fn connect_and_pause(path: &Path, address: SocketAddr) -> ! {
    let mut channel = attached(path);
    for resets in [true, false] {
        let options = ConnectOptions::default().reset_on_close(resets);
        channel.connect(&address.into(), &options, 0).expect("the daemon begins it");
        let completion = channel.dispatch(Some(PATIENCE)).expect("no error").expect("in time");
        assert!(matches!(completion.event, Event::Connect(Ok(()))), "{completion:?}");
    }
    println!("\nconnected");
    loop {
        // SAFETY: takes no argument.
        unsafe { libc::pause() };
    }
}

#[test]
fn killed_program_with_linger_of_zero_resets_its_connection() {
    let name = "daemon::killed_program_with_linger_of_zero_resets_its_connection";
    if let Some((path, address)) = asked_for() {
        connect_and_pause(path.as_ref(), address);
    }
    if let Err(why) = place::enter() {
        return println!("skipped: {name}: {why}");
    }
    let Ok(Backend::Service(service)) = place::service() else { panic!("a daemon") };
    let listener = TcpListener::bind(place::there("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut program = other_process(name, &service, address);
    let output = BufReader::new(program.stdout.take().expect("asked for above"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "connected"), "it connects");
    let mut ends = [true, false].map(|_| listener.accept().expect("it is connected").0);
    program.kill().expect("it is ours");
    program.wait().expect("it has ended");
    let read = ends.each_mut().map(|end| {
        end.set_read_timeout(Some(PATIENCE)).expect("a socket");
        end.read(&mut [0; 8]).map_err(|error| error.kind())
    });
    assert_eq!(read, [Err(ErrorKind::ConnectionReset), Ok(0)]);
}
