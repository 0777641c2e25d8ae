//! Deaths and stops under load, with a daemon of two shards: of the daemon, of an application, and
//! of many that attach and die.

use std::collections::BTreeMap;

use super::observe::{json, loaded};
use super::*;

const SHARDS: [&str; 2] = ["--shards", "2"];

/// Descriptors of a process by what they are of, without numbers: `socket`, `memfd:...`, a path.
fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours") {
        // One that was closed meanwhile is none.
        let Ok(target) = entry.and_then(|entry| std::fs::read_link(entry.path())) else { continue };
        let target = target.to_string_lossy().into_owned();
        let kind = target.split(":[").next().unwrap_or_default().to_owned();
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts
}

/// Mappings of memfds in a process.
fn shared_mappings(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process of ours");
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Waits until `now` is as `then`, and fails with both if it never is.
#[track_caller]
fn becomes<T: PartialEq + std::fmt::Debug>(then: &T, mut now: impl FnMut() -> T) {
    let start = Instant::now();
    loop {
        let seen = now();
        if seen == *then {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{seen:?} instead of {then:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server at a port of the first daemon.
fn server_at(folder: &Folder, port: u16) -> Command {
    attached(folder, 0, &format!("serve rpc --listen {}:{port}", ADDRESSES[0]))
}

/// A load of some connections to a port that is under way, and prints its result.
fn load_at(folder: &Folder, port: u16, connections: usize, more: &str) -> Child {
    let line =
        format!("load rpc {}:{port} --connections {connections} --warmup 0 {more}", ADDRESSES[0]);
    let mut command = attached(folder, 1, &line);
    let load = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    loaded(folder, port, connections);
    load
}

/// Ends a load. Returns what it has printed.
fn stopped(load: Child) -> String {
    let pid = Pid::from_raw(load.id().cast_signed()).expect("a process");
    // It may have ended.
    let _ = kill_process(pid, Signal::INT);
    printed(load)
}

/// Waits for the end of a load. Returns what it has printed.
fn printed(load: Child) -> String {
    text_of(&load.wait_with_output().expect("it ends"))
}

/// Transactions of any number with a load that begins now, none of which fails.
fn assert_serves(folder: &Folder, port: u16) {
    let line = format!(
        "load rpc {}:{port} --connections 8 --transactions 5 --warmup 0 --total 400",
        ADDRESSES[0]
    );
    let output = attached(folder, 1, &line).output().expect("it runs");
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("errors          none"), "{text}");
}

#[test]
fn daemon_of_two_shards_is_killed_under_load_and_leaves_nothing() {
    let folder = Folder::new("again2");
    let mut both = daemons_of(&folder, &SHARDS);
    let server = Running::start(server_at(&folder, 7000)).until_ready("listening on");
    let pid = server.child.id();
    assert_serves(&folder, 7000);
    let before = (descriptors(pid), shared_mappings(pid));
    assert_eq!(before.1, 1, "one region for both lanes");
    for _ in 0..3 {
        let load = load_at(&folder, 7000, 16, "--duration 60");
        let [daemon, other] = both;
        daemon.end(Signal::KILL);
        other.end(Signal::KILL);
        let text = stopped(load);
        assert!(!text.contains("errors          none"), "{text}");
        both = daemons_of(&folder, &SHARDS);
        let start = Instant::now();
        while json(&folder, 0, "ss -tln")["sockets"].as_array().is_none_or(|all| all.len() < 2) {
            assert!(start.elapsed() < PATIENCE, "{}", json(&folder, 0, "explain"));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_serves(&folder, 7000);
        becomes(&before, || (descriptors(pid), shared_mappings(pid)));
    }
    let (code, text) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn kill_of_an_application_under_load_disturbs_no_other() {
    let folder = Folder::new("beside");
    let [daemon, _other] = daemons_of(&folder, &SHARDS);
    let start = |port| Running::start(server_at(&folder, port)).until_ready("listening on");
    let (dying, living) = (start(7000), start(7001));
    let doomed = load_at(&folder, 7000, 16, "--duration 60");
    let load = load_at(&folder, 7001, 16, "--duration 3");
    let dead = dying.child.id();
    dying.end(Signal::KILL);
    let text = printed(load);
    assert!(text.contains("errors          none"), "{text}");
    let text = stopped(doomed);
    assert!(!text.contains("errors          none"), "{text}");
    // Its port and its sessions are free.
    becomes(&1, || json(&folder, 0, "explain")["daemon"]["sessions"].as_u64().unwrap_or(0));
    let output = std::fs::metadata(format!("/proc/{dead}"));
    assert!(output.is_err(), "it is gone");
    let again = start(7000);
    assert_serves(&folder, 7000);
    assert_serves(&folder, 7001);
    for server in [again, living] {
        let (code, text) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{text}");
    }
    let (code, text) = daemon.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn stop_of_an_application_under_load_is_no_end_with_two_shards() {
    let folder = Folder::new("stop2");
    let [daemon, _other] = daemons_of(&folder, &SHARDS);
    let start = || Running::start(server_at(&folder, 7000)).until_ready("listening on");
    let servers = [start(), start()];
    assert_serves(&folder, 7000);
    for stopped in &servers {
        stopped.signal(Signal::STOP);
        // It has no connection: those that it is offered from now on another answers.
        for _ in 0..2 {
            assert_serves(&folder, 7000);
        }
        stopped.signal(Signal::CONT);
        assert_serves(&folder, 7000);
    }
    // Connections that it has wait for it, and go on.
    let load = load_at(&folder, 7000, 16, "--duration 60");
    for stopped in &servers {
        stopped.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(300));
        stopped.signal(Signal::CONT);
    }
    let text = stopped(load);
    assert!(text.contains("errors          none"), "{text}");
    for server in servers {
        let (code, text) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{text}");
    }
    let (code, text) = daemon.end(Signal::TERM);
    assert_eq!(code, Some(0), "{text}");
}

/// What a daemon has of its sessions: nothing of those that are gone.
fn holdings(folder: &Folder, end: usize) -> Vec<u64> {
    let report = json(folder, end, "explain");
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{report}"));
    let mut all = vec![number(&report["daemon"]["sessions"])];
    for shard in report["shards"].as_array().expect("a list") {
        all.extend(["sessions", "ended_sessions", "handshakes"].map(|name| number(&shard[name])));
        all.push(number(&shard["connections"]["now"]));
        all.push(number(&shard["private_buffers"]["now"]));
    }
    let listening = json(folder, end, "ss -ln");
    all.push(listening["sockets"].as_array().map_or(1, Vec::len) as u64);
    all
}

#[test]
fn two_hundred_deaths_leave_nothing_in_the_daemon() {
    const AT_ONCE: u32 = 8;
    let deaths = std::env::var("MEGAPIPE_DEATHS").map_or(200, |it| it.parse().expect("a number"));
    let folder = Folder::new("deaths");
    let [daemon, other] = daemons_of(&folder, &SHARDS);
    let state = || {
        let of = |daemon: &Running, end| {
            let pid = daemon.child.id();
            (descriptors(pid), shared_mappings(pid), holdings(&folder, end))
        };
        (of(&daemon, 0), of(&other, 1))
    };
    // What is made once is there after the first.
    let server = Running::start(server_at(&folder, 7000)).until_ready("listening on");
    assert_serves(&folder, 7000);
    server.end(Signal::KILL);
    let is_empty = |end| holdings(&folder, end).iter().all(|count| *count == 0);
    becomes(&true, || is_empty(0) && is_empty(1));
    let before = state();
    for round in 0..deaths / AT_ONCE {
        let commands = (0..AT_ONCE).map(|place| match place {
            0..4 => server_at(&folder, 7000),
            4..6 => attached(
                &folder,
                0,
                &format!("serve rpc --listen {}:{}", ADDRESSES[0], 7001 + place),
            ),
            _ => attached(
                &folder,
                1,
                &format!("load rpc {}:7000 --connections 4 --warmup 0", ADDRESSES[0]),
            ),
        });
        let running: Vec<_> = commands.map(Running::start).collect();
        // At any moment: while they start, attach, listen, connect, or serve.
        std::thread::sleep(Duration::from_millis(u64::from(round * 7 % 120)));
        for one in running {
            one.end(Signal::KILL);
        }
    }
    becomes(&before, state);
    let _server = Running::start(server_at(&folder, 7000)).until_ready("listening on");
    assert_serves(&folder, 7000);
}
