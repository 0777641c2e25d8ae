//! Connections that our stack opens from addresses that it shares with the kernel, with few
//! descriptors and many addresses.

use std::fs::read_dir;
use std::net::TcpListener;
use std::process::Command;

use megapipe::{Channel, ConnectError, ConnectOptions, Event, errno_of};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::hosts::{FAR, Hosts, PATIENCE, at, ip, with_hosts};
use super::ports::LINKS;

/// Set in the process whose descriptors are few.
const CHILD: &str = "MEGAPIPE_TEST_FEW_DESCRIPTORS";
/// Descriptors of that process: more than two blocks of ports take, fewer than all ports.
const DESCRIPTORS: u64 = 240;
/// More than one block of ports has.
const CONNECTIONS: usize = 40;
const PORT: u16 = 8_200;

#[test]
fn connect_needs_few_descriptors_with_many_addresses() {
    let name = "connect_needs_few_descriptors_with_many_addresses";
    if std::env::var_os(CHILD).is_some() {
        for link in LINKS {
            with_hosts(name, move |hosts| {
                add_addresses();
                match hosts.channel(link) {
                    Ok(channel) => connect_many(hosts, channel),
                    Err(why) => println!("skipped: {name} on {link}: {why}"),
                }
            });
        }
        return;
    }
    // The limit is a process's, and other tests run in this one.
    let shell =
        format!("ulimit -n {DESCRIPTORS}; exec \"$0\" --exact --nocapture outgoing::{name}");
    let program = std::env::current_exe().expect("a program");
    let output = Command::new("sh").args(["-c", &shell]).arg(program).env(CHILD, "1").output();
    let output = output.expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Gives the near host more addresses than fit the limit, if each port took a socket for each.
fn add_addresses() {
    for last in 11..17 {
        ip(&format!("addr add 10.79.0.{last}/24 dev mp-near")).expect("an address");
    }
}

fn connect_many(hosts: &Hosts, mut channel: Channel) {
    let listening = hosts.far(|| TcpListener::bind((FAR[0], PORT)).expect("a port"));
    let _listener = listening.join().expect("no panic");
    let (to, options) = (at(FAR[0], PORT).into(), ConnectOptions::default());

    let open = read_dir("/proc/self/fd").expect("a list").count() as u64;
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 8), ..before }).expect("less");
    let refused = channel.connect(&to, &options, 0);
    setrlimit(Resource::Nofile, before).expect("the limit as it was");
    let Err(ConnectError::Kernel { source, .. }) = refused else { panic!("{refused:?}") };
    assert!(source.to_string().contains("ulimit -n"), "{source}");
    assert_eq!(errno_of(&source), Errno::MFILE.raw_os_error(), "{source}");

    for cookie in 0..CONNECTIONS as u64 {
        channel.connect(&to, &options, cookie).expect("a port is free");
    }
    for _ in 0..CONNECTIONS {
        let done = channel.dispatch(Some(PATIENCE)).expect("dispatch").expect("in time");
        assert!(matches!(done.event, Event::Connect(Ok(_))), "{done:?}");
    }
}
