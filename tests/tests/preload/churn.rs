//! Children without number on the back end `service`, of which many are killed: the daemon has
//! afterwards what it had before (issue 16, "Processes, threads, signals").

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use megapipe::{Daemon, LocalNetwork, ServerConfig};

use super::{C11, Ended, PATIENCE, compile, library, prefix, preloaded, said, sources};

/// Children after which the daemon has what it keeps, and those that are counted.
const WARM_UP: u32 = 40;
const CHILDREN: u32 = 200;
/// Memory that the allocator may keep for itself.
const GROWTH_MAX_KIB: u64 = 1024;

/// The variable with the folder of the daemon's socket.
const FOLDER: &str = "MP_CHURN_FOLDER";

/// What a process has of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessResources {
    descriptors: usize,
    mappings: usize,
    resident_kib: u64,
}

fn resources(process: u32) -> ProcessResources {
    let of = |name: &str| format!("/proc/{process}/{name}");
    let text = |name: &str| std::fs::read_to_string(of(name)).expect("the daemon runs");
    let status = text("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|rest| rest.split_whitespace().next());
    ProcessResources {
        descriptors: std::fs::read_dir(of("fd")).expect("the daemon runs").count(),
        mappings: text("maps").lines().count(),
        resident_kib: resident.and_then(|number| number.parse().ok()).expect("a number"),
    }
}

/// The daemon, in a process of its own, until standard input ends.
#[test]
fn daemon_in_a_process_of_its_own() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        println!("skipped: daemon_in_a_process_of_its_own: started by the other test of this file");
        return;
    };
    let addresses = vec![([10, 9, 5, 1].into(), 24)];
    let settings = ServerConfig { addresses, ..ServerConfig::default() };
    let network = LocalNetwork::open("pair", settings).expect("a link");
    let path = Path::new(&folder).join("service");
    let mut daemon = Daemon::start(&network, &path, &[], |_| ()).expect("it runs");
    println!("ready");
    daemon.run(std::io::stdin().as_fd()).expect("it runs");
}

#[test]
fn children_that_are_killed_leave_nothing_in_the_daemon() {
    let test = "children_that_are_killed_leave_nothing_in_the_daemon";
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let source = sources().join("../preload/tests/forks.c");
    let program = compile(prefix, &source, "preload-forks", C11);
    let folder = std::env::temp_dir().join(format!("mp-churn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut daemon = Command::new(std::env::current_exe().expect("this file"));
    daemon.args(["--exact", "churn::daemon_in_a_process_of_its_own", "--nocapture"]);
    daemon.env(FOLDER, &folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut daemon = Ended(daemon.spawn().expect("it runs"));
    let mut output = BufReader::new(daemon.0.stdout.take().expect("asked for")).lines();
    assert!(output.any(|line| line.is_ok_and(|line| line.ends_with("ready"))));
    let process = daemon.0.id();
    let at_rest = resources(process);
    let churn = |count: u32, seed: u32| {
        let mut command = preloaded(&program, &library, "service");
        command.env("MEGAPIPE_SERVICE", folder.join("service"));
        command.env("MEGAPIPE_ADDRESS", "10.9.5.1/24").arg("churn").arg("10.9.5.1");
        said(command.args([count.to_string(), seed.to_string()]))
    };
    let mut seen = Vec::new();
    for (count, seed) in [(WARM_UP, 1), (CHILDREN, std::process::id())] {
        assert_eq!(churn(count, seed), "churned\n", "seed {seed}");
        let deadline = Instant::now() + PATIENCE;
        while resources(process).descriptors > at_rest.descriptors {
            assert!(Instant::now() < deadline, "seed {seed}: {:?}", resources(process));
            std::thread::sleep(Duration::from_millis(20));
        }
        seen.push(resources(process));
    }
    let [warm, after] = seen[..] else { unreachable!("two rounds") };
    assert_eq!(after.mappings, warm.mappings, "{warm:?}, {after:?}");
    assert!(after.resident_kib <= warm.resident_kib + GROWTH_MAX_KIB, "{warm:?}, {after:?}");
    drop(daemon.0.stdin.take());
    assert!(daemon.0.wait().expect("its end").success());
    drop(output);
    std::fs::remove_dir_all(folder).expect("it is there");
}
