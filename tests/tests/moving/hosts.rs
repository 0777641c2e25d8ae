//! Two hosts joined by veth, and what was said between them.
//!
//! Invariant: namespaces, capture and threads go with the test.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use megapipe::{Backend, Channel, Config, LocalNetwork, ServerConfig};
use megapipe_link::set_transmit_checksums;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The near host's addresses: the kernel's there, and our stack's.
pub(crate) const NEAR: [&str; 2] = ["10.79.0.1", "fd79::1"];
/// The far host's.
pub(crate) const FAR: [&str; 2] = ["10.79.0.2", "fd79::2"];

/// Both hosts. The calling thread is on the near one.
pub(crate) struct Hosts {
    test: &'static str,
    near: String,
    far: String,
    capture: PathBuf,
    tcpdump: Option<Child>,
}

impl Hosts {
    fn new(test: &'static str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the values must differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mp-move-{}-{number}", std::process::id());
        let capture = std::env::temp_dir().join(format!("{name}.pcap"));
        let (near, far) = (format!("{name}-n"), format!("{name}-f"));
        let mut hosts = Self { test, near, far, capture, tcpdump: None };
        ip(&format!("netns add {}", hosts.near))?;
        ip(&format!("netns add {}", hosts.far))?;
        enter(&hosts.near)?;
        ip(&format!("link add mp-near type veth peer name mp-far netns {}", hosts.far))?;
        configure("mp-near", NEAR)?;
        hosts.far(|| configure("mp-far", FAR)).join().expect("no panic")?;
        until_active("mp-near")?;
        hosts.far(|| until_active("mp-far")).join().expect("no panic")?;
        hosts.listen_in();
        Ok(hosts)
    }

    /// Runs something on the far host, on a thread of its own.
    pub(crate) fn far<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let far = self.far.clone();
        thread::spawn(move || {
            enter(&far).expect("the namespace is there");
            work()
        })
    }

    /// A channel whose stack shares the near host's addresses.
    pub(crate) fn channel(&self, link: &str) -> Result<Channel, String> {
        self.channels(link, 1).map(|mut channels| channels.remove(0))
    }

    /// So many channels, each with a shard of one network.
    pub(crate) fn channels(&self, link: &str, count: u16) -> Result<Vec<Channel>, String> {
        self.channels_for(link, count, 64)
    }

    /// The same, for so many connections each.
    pub(crate) fn channels_for(
        &self,
        link: &str,
        count: u16,
        connections: u32,
    ) -> Result<Vec<Channel>, String> {
        let shards = Some(count);
        let settings = ServerConfig { connections, shards, ..ServerConfig::default() };
        let network = LocalNetwork::open(link, settings).map_err(|error| error.to_string())?;
        let config = Config::default().backend(Backend::Local(network));
        let channel = |_| Channel::create(config.clone()).map_err(|error| format!("{error:?}"));
        (0..count).map(channel).collect()
    }

    /// Segments that the far kernel has sent again.
    pub(crate) fn far_retransmissions(&self) -> usize {
        let snmp = self.far(|| fs::read_to_string("/proc/thread-self/net/snmp"));
        let snmp = snmp.join().expect("no panic").expect("the kernel counts");
        let mut rows = snmp.lines().filter(|line| line.starts_with("Tcp:"));
        let mut row = || rows.next().expect("names, then values").split(' ');
        let (mut names, mut values) = (row(), row());
        let place = names.position(|name| name == "RetransSegs").expect("it is counted");
        values.nth(place).and_then(|value| value.parse().ok()).expect("a number")
    }

    /// Starts to write down what passes, if tcpdump is there.
    fn listen_in(&mut self) {
        let mut command = Command::new("tcpdump");
        command.args(["-i", "mp-near", "-U", "-s", "200", "-B", "16384", "-w"]).arg(&self.capture);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.tcpdump = command.spawn().ok();
        let start = Instant::now();
        while self.tcpdump.is_some() && fs::metadata(&self.capture).map_or(0, |it| it.len()) < 24 {
            if start.elapsed() > Duration::from_secs(5) {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the capture: no reset and nothing malformed may be in it. How many segments there were.
    pub(crate) fn judge(&mut self) -> usize {
        let Some(mut tcpdump) = self.tcpdump.take() else {
            println!("skipped: {} on its capture: tcpdump is not installed", self.test);
            return 0;
        };
        // What was said last is on its way to the file.
        thread::sleep(Duration::from_millis(100));
        let pid = Pid::from_raw(tcpdump.id().cast_signed()).expect("a process");
        kill_process(pid, Signal::INT).expect("signalling");
        tcpdump.wait().expect("tcpdump ends");
        let mut command = Command::new("tshark");
        command.args(["-n", "-Y", "tcp", "-T", "fields", "-E", "separator=/t"]);
        for field in ["frame.number", "tcp.flags.reset", "_ws.malformed", "ip.src", "tcp.seq"] {
            command.args(["-e", field]);
        }
        command.arg("-r").arg(&self.capture).stdin(Stdio::null());
        let Ok(output) = command.output() else {
            println!("skipped: {} on its capture: tshark is not installed", self.test);
            return 0;
        };
        let rows = String::from_utf8_lossy(&output.stdout);
        for row in rows.lines() {
            let fields: Vec<&str> = row.split('\t').collect();
            let is_reset = matches!(fields.get(1), Some(&"1" | &"True"));
            let is_malformed = fields.get(2).is_some_and(|it| !it.is_empty());
            assert!(!is_reset && !is_malformed, "{}: {row}", self.capture.display());
        }
        rows.lines().count()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(mut tcpdump) = self.tcpdump.take() {
            let _ = tcpdump.kill();
            let _ = tcpdump.wait();
        }
        if thread::panicking() {
            eprintln!("the capture stays in {}", self.capture.display());
        } else {
            let _ = fs::remove_file(&self.capture);
        }
        for name in [&self.near, &self.far] {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn enter(namespace: &str) -> Result<(), String> {
    let file = File::open(format!("/run/netns/{namespace}"));
    let file = file.map_err(|error| format!("no network namespace: {error}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| format!("no network namespace: {error}"))
}

fn configure(interface: &str, addresses: [&str; 2]) -> Result<(), String> {
    // Checksums are complete on the wire, which XDP and the judge want.
    set_transmit_checksums(interface, false).map_err(|error| format!("{interface}: {error}"))?;
    ip(&format!("addr add {}/24 dev {interface}", addresses[0]))?;
    ip(&format!("addr add {}/64 dev {interface} nodad", addresses[1]))?;
    ip(&format!("link set {interface} up"))?;
    ip("link set lo up")
}

/// Waits until the kernel passes frames: some time after an interface was switched on.
fn until_active(interface: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let output = Command::new("ip").args(["link", "show", interface]).output();
        let said = output.map_err(|error| error.to_string())?.stdout;
        let said = String::from_utf8_lossy(&said);
        if said.contains("LOWER_UP")
            && !said.contains("qdisc noop ")
            && !said.contains("state DOWN")
        {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Err(format!("{interface} does not come up"))
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|_| format!("{program} is not installed"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", said.trim())) }
}

/// Runs `ip` with arguments that hold no spaces.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    run("ip", &arguments.split(' ').collect::<Vec<_>>())
}

/// `10.79.0.2:80` and `[fd79::2]:80`.
pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port)
}

/// Runs `test` with two hosts, or says why not.
pub(crate) fn with_hosts(name: &'static str, test: impl FnOnce(&mut Hosts) + Send + 'static) {
    let run = move || match Hosts::new(name) {
        Ok(mut hosts) => test(&mut hosts),
        Err(why) => println!("skipped: {name}: {why}"),
    };
    // The thread goes, and with it what belongs to the namespace.
    let ended = thread::spawn(run).join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
