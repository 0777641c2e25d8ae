//! Ports of a link that shares the host's address: the kernel decides, by its rules for the
//! program. Two hosts joined by veth, several users; needs root.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Users that no machine has.
const USERS: [u32; 2] = [54_321, 54_322];
/// The host of the daemon, and its peer.
const HOSTS: [&str; 2] = ["10.81.0.1", "10.81.0.2"];

/// Two hosts, which are gone on drop.
struct Hosts {
    names: [String; 2],
    folder: Folder,
}

impl Hosts {
    fn new(name: &str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the values must differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let host = |end| format!("mp-port-{}-{number}-{end}", std::process::id());
        let hosts = Self { names: ["n", "f"].map(host), folder: Folder::new(name) };
        let [near, far] = &hosts.names;
        ip(&format!("netns add {near}"))?;
        ip(&format!("netns add {far}"))?;
        ip(&format!("-n {near} link add mp-near type veth peer name mp-far netns {far}"))?;
        for (host, device, address) in [(near, "mp-near", HOSTS[0]), (far, "mp-far", HOSTS[1])] {
            ip(&format!("-n {host} addr add {address}/24 dev {device}"))?;
            ip(&format!("-n {host} link set {device} up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        // The users may not get to where the programs were built.
        for program in [env!("CARGO_BIN_EXE_megapipe"), env!("CARGO_BIN_EXE_megapiped")] {
            let name = Path::new(program).file_name().expect("a file").to_str().expect("text");
            std::fs::copy(program, hosts.folder.file(name)).expect("there is room");
        }
        Ok(hosts)
    }

    /// A program on one of the hosts, as a user.
    fn run(&self, end: usize, user: Option<u32>, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end]]).stdin(Stdio::null());
        if let Some(user) = user {
            let id = user.to_string();
            command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        }
        let mut words = line.split_whitespace();
        command.arg(self.folder.file(words.next().expect("a program"))).args(words);
        command
    }

    fn daemon(&self) -> Running {
        let service = self.folder.file("service");
        let line = format!("megapiped --link packet:mp-near --service {service} --shards 2");
        Running::start(self.run(0, None, &line)).until_ready("ready at")
    }

    fn server_at(&self, end: usize, user: u32, address: &str) -> Command {
        let service = self.folder.file("service");
        let line = format!("megapipe serve rpc --listen {address}");
        self.run(end, Some(user), &format!("{line} --backend service --service {service}"))
    }

    fn server(&self, user: u32, port: u16) -> Running {
        let command = self.server_at(0, user, &format!("{}:{port}", HOSTS[0]));
        Running::start(command).until_ready("listening on")
    }

    #[track_caller]
    fn assert_refused(&self, end: usize, user: u32, address: &str, why: &[&str]) {
        let output = self.server_at(end, user, address).output().expect("it runs");
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for part in why {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// What a load of the peer's kernel says.
    fn load(&self, port: u16) -> String {
        let line = format!("megapipe load rpc {}:{port} --connections 4 --warmup 0", HOSTS[0]);
        text_of(&self.run(1, None, &format!("{line} --duration 0.5")).output().expect("it runs"))
    }

    #[track_caller]
    fn assert_served(&self, port: u16) {
        let text = self.load(port);
        assert!(text.contains("transactions") && text.contains("errors          none"), "{text}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip {line}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn hosts(name: &str) -> Option<Hosts> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name}: needs root");
        return None;
    }
    Hosts::new(name).inspect_err(|why| println!("skipped: {name}: {why}")).ok()
}

/// The sockets of a process.
fn sockets_of(daemon: &Running) -> Vec<String> {
    // `ip netns exec` has become the program.
    let folder = format!("/proc/{}/fd", daemon.child.id());
    let entries = std::fs::read_dir(folder).expect("it lives");
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let targets = targets.map(|target| target.to_string_lossy().into_owned());
    targets.filter(|target| target.starts_with("socket:")).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn kernel_decides_about_ports_of_a_shared_link() {
    let Some(hosts) = hosts("ports") else { return };
    let daemon = hosts.daemon();
    let before = sockets_of(&daemon).len();
    let [one, other] = USERS;
    let at = |port: u16| format!("{}:{port}", HOSTS[0]);
    let first = hosts.server(one, 7000);
    hosts.assert_served(7000);
    hosts.assert_refused(0, other, &at(7000), &["10.81.0.1:7000", "in use"]);
    let second = hosts.server(one, 7000);
    hosts.assert_served(7000);
    let rule = ["CAP_NET_BIND_SERVICE", "ip_unprivileged_port_start"];
    hosts.assert_refused(0, one, &at(80), &rule);
    // Another user's program on the kernel.
    let line = format!("megapipe serve rpc --listen {} --backend kernel", at(7001));
    let kernels = Running::start(hosts.run(0, Some(other), &line)).until_ready("listening on");
    hosts.assert_refused(0, one, &at(7001), &["10.81.0.1:7001", "in use"]);
    hosts.assert_served(7001);
    drop(kernels);
    // From another network namespace, where the address would be another one.
    hosts.assert_refused(1, one, "0.0.0.0:7002", &["another network namespace"]);
    // The first of two listeners leaves, then the last.
    drop(first);
    hosts.assert_served(7000);
    drop(second);
    until("the daemon holds sockets", || sockets_of(&daemon).len() == before);
    let _third = hosts.server(other, 7000);
    hosts.assert_served(7000);
}

#[test]
fn port_of_a_dead_daemon_refuses_until_another_one_runs() {
    let Some(hosts) = hosts("silent") else { return };
    let daemon = hosts.daemon();
    let _server = hosts.server(USERS[0], 7000);
    hosts.assert_served(7000);
    daemon.end(Signal::KILL);
    // The kernel answers with a reset: no process holds the port.
    until("the port stays silent", || hosts.load(7000).contains("refused"));
    let _daemon = hosts.daemon();
    let mut text = String::new();
    until("the server does not listen again", || {
        let _ = write!(text, "{}", hosts.load(7000));
        text.contains("errors          none")
    });
}
