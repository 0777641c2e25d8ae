//! Ten thousand connections at once in one channel.

use std::process::{Child, Command};

use megapipe::{
    Accept, Address, Channel, Config, ConnectOptions, Connection, Event, Handle, OpError,
};

use crate::scene::{Case, PATIENCE, on_kernel_drivers, pattern};

on_kernel_drivers![ten_thousand_connections_are_served_at_once];

const CONNECTIONS: usize = 10_000;
/// Connection attempts under way at once, well below the listener's backlog.
const CONNECTING: usize = 500;
const MESSAGE_BYTES: usize = 64;
/// The bar for an idle connection's memory in user space.
const BYTES_PER_CONNECTION_MAX: usize = 256;

/// Tells the process that holds the clients where to connect.
const CROWD: &str = "MEGAPIPE_TEST_CROWD";

fn ten_thousand_connections_are_served_at_once(case: &Case) {
    // The clients live in a process of their own, so that a limit of 20,000 descriptors, which
    // is common, is enough for each side.
    if let Ok(address) = std::env::var(CROWD) {
        return clients(case, &address.parse().expect("an address"));
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if limit.is_some_and(|limit| limit < CONNECTIONS as u64 + 500) {
        println!("skipped: {}: only {limit:?} descriptors are allowed", case.name);
        return;
    }
    // And the server in another: when a test beside it starts a program, the new process has
    // copies of all descriptors for a moment, and an epoll set tells of those that were closed
    // here meanwhile.
    case.alone(|| serve(case));
}

fn serve(case: &Case) {
    let mut scene = case.scene();
    let (listener, address) = scene.listening("127.0.0.1:0");
    scene.channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(MESSAGE_BYTES)).unwrap();
    scene.flush().unwrap();
    let mut crowd = start_clients(case, &address);
    let before = scene.memory_bytes();
    let (mut accepted, mut answered) = (0, 0);
    let mut handles: Vec<Handle> = Vec::new();
    // The clients send only when all of them are connected, and close only when all of them are
    // answered: then all are open at once.
    while answered < CONNECTIONS {
        let done = scene.next();
        match done.event {
            Event::Accept(Ok(it)) => {
                let Connection::Lwsocket(handle) = it.connection else { panic!("an lwsocket") };
                handles.push(handle);
                accepted += 1;
            }
            Event::Read(Ok(bytes)) => {
                assert_eq!(bytes.len(), MESSAGE_BYTES);
                scene.write(done.handle, bytes).unwrap();
            }
            Event::Write(Ok(MESSAGE_BYTES)) => answered += 1,
            other => panic!("{other:?} after {accepted} and {answered}"),
        }
    }
    assert_eq!(accepted, CONNECTIONS);
    let each = (scene.memory_bytes() - before) / CONNECTIONS;
    println!("{each} bytes of user-space memory for each of {CONNECTIONS} idle connections");
    assert!(each <= BYTES_PER_CONNECTION_MAX, "{each} bytes a connection");
    for handle in &handles {
        scene.read(*handle, 1).unwrap();
    }
    let mut ended = 0;
    while ended < CONNECTIONS {
        let done = scene.next();
        match done.event {
            Event::Read(Err(OpError::Reset)) => {}
            Event::Read(Ok(bytes)) if bytes.is_empty() => {}
            other => panic!("{other:?}"),
        }
        scene.unregister(done.handle).unwrap();
        ended += 1;
    }
    scene.expect_silence();
    scene.expect_no_strays();
    assert!(crowd.wait().unwrap().success(), "the clients had what they wanted");
}

fn start_clients(case: &Case, address: &Address) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", case.name, "--nocapture", "--test-threads=1"]);
    command.env(CROWD, address.to_string()).stdout(std::process::Stdio::null()).spawn().unwrap()
}

fn clients(case: &Case, address: &Address) {
    let config: Config = case.config();
    let mut channel = Channel::create(config).unwrap();
    let options = ConnectOptions::default().reset_on_close(true);
    let mut handles = Vec::new();
    let mut connected = 0;
    while connected < CONNECTIONS {
        while handles.len() < CONNECTIONS && handles.len() - connected < CONNECTING {
            let cookie = handles.len() as u64;
            handles.push(channel.connect(address, &options, cookie).unwrap());
        }
        let done = channel.dispatch(Some(PATIENCE)).unwrap().expect("connects in time");
        assert!(matches!(done.event, Event::Connect(Ok(()))), "{done:?}");
        connected += 1;
    }
    for (turn, handle) in handles.iter().enumerate() {
        channel.write(*handle, pattern(turn, MESSAGE_BYTES)).unwrap();
        channel.read(*handle, MESSAGE_BYTES).unwrap();
    }
    let mut read = 0;
    while read < CONNECTIONS {
        let done = channel.dispatch(Some(PATIENCE)).unwrap().expect("an answer in time");
        match done.event {
            Event::Write(Ok(MESSAGE_BYTES)) => {}
            Event::Read(Ok(bytes)) => {
                assert_eq!(*bytes, pattern(done.cookie as usize, MESSAGE_BYTES));
                read += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    for handle in handles {
        channel.unregister(handle).unwrap();
    }
    channel.flush().unwrap();
}
