//! `megapipe bench` as a process: that it measures, and that nothing outlives it.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const DEADLINE: Duration = Duration::from_secs(60);

const MEGAPIPE: &str = env!("CARGO_BIN_EXE_megapipe");

/// A benchmark that ends with this process, and with it all that it starts: also where the test is
/// killed and drops nothing.
fn megapipe(args: &[&str]) -> Command {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = cpus.expect("which processors it may use").trim();
    let mut command = Command::new(MEGAPIPE);
    command.args(["bench", "exec", "--parent", &std::process::id().to_string()]);
    command.args(["--cpus", cpus, "--", MEGAPIPE]).args(args).stdin(Stdio::null());
    command
}

/// Why nothing can be measured here, if so.
fn refused() -> Option<String> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        return Some("server and load need a core each".to_owned());
    }
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    (setting.trim() != "0").then(|| format!("io_uring_disabled is {}", setting.trim()))
}

/// Where network namespaces of the process `pid` would be.
fn namespaces(pid: u32) -> [PathBuf; 2] {
    let path = |side| Path::new("/run/netns").join(format!("mp-bench-{side}-{pid}"));
    [path("srv"), path("cli")]
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The processes of a group that still run, and what they are.
fn running_in(group: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let line = |name: &str, what: &str| fs::read_to_string(format!("/proc/{name}/{what}")).ok();
    let running = processes.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let stat = line(&name, "stat")?;
        let mut fields = stat.rsplit(") ").next()?.split(' ');
        let (state, _parent, of) = (fields.next()?, fields.next()?, fields.next()?);
        // A process that has ended exists until it is waited for.
        let is_it = state != "Z" && of == group.to_string();
        is_it.then(|| line(&name, "cmdline").unwrap_or_default().replace('\0', " "))
    });
    running.collect()
}

/// Ends on drop.
struct Bench(Child);

impl Bench {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("signalling");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_channel_is_measured_beside_io_uring_by_hand() {
    if let Some(why) = refused() {
        println!("skipped: a_channel_is_measured_beside_io_uring_by_hand: {why}");
        return;
    }
    let args = ["bench", "bars", "--only", "io_uring-128", "--runs", "1", "--seconds", "2"];
    let json = std::env::temp_dir().join(format!("mp-cli-by-hand-{}.json", std::process::id()));
    let output = megapipe(&args).args(["--link", "loopback", "--json"]).arg(&json).output();
    let output = output.expect("megapipe runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let results: serde_json::Value =
        serde_json::from_slice(&fs::read(&json).expect(&said)).expect(&said);
    fs::remove_file(&json).expect("it was there");
    let tables = String::from_utf8_lossy(&output.stdout);
    let long: Vec<&str> = tables.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(tables.contains("p99.9 µs") && long.is_empty(), "{long:#?}");
    let points = results["points"].as_array().expect("points");
    let servers: Vec<&str> = points.iter().filter_map(|it| it["server"].as_str()).collect();
    assert_eq!(servers, ["channel", "io_uring"], "{said}");
    for point in points {
        assert_eq!(point["link"], "loopback");
        assert_eq!(point["errors"], 0);
        assert!(point["transactions_per_s"].as_f64() > Some(100.0), "{point}");
        assert!(point["server_cpu_us_per_transaction"].as_f64() > Some(0.1), "{point}");
        assert!(point["latency_us"]["p50"].as_f64() > Some(1.0), "{point}");
    }
    // Whether the promise is kept is no matter of a test on a busy machine.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
}

/// The bars of `bench bars --shards --only …`, by name, and the points; as short as it gets.
fn shard_bars(only: &[&str]) -> (serde_json::Value, Vec<serde_json::Value>) {
    let (status, results, said) = bars(&["--shards"], only);
    let bars = results["bars"].as_array().expect("bars").clone();
    let names: Vec<&str> = bars.iter().filter_map(|bar| bar["name"].as_str()).collect();
    assert_eq!(names, only, "{said}");
    for bar in &bars {
        let runs = bar["runs"].as_array().expect("runs");
        assert!(runs.len() == 1 && bar["median"] == runs[0], "{bar}: {said}");
        assert!(bar["met"].is_boolean() && bar["why"].is_null(), "{bar}");
    }
    let met = bars.iter().all(|bar| bar["met"] == true);
    // A benchmark on a busy machine may miss its goals; then it reports that.
    assert_eq!(status.code(), Some(i32::from(!met)), "{said}");
    (results["points"].clone(), bars)
}

/// Runs `bench bars` once, as short as it gets. Returns its status, its JSON and what it said.
fn bars(args: &[&str], only: &[&str]) -> (ExitStatus, serde_json::Value, String) {
    let mut command = megapipe(&["bench", "bars", "--runs", "1", "--seconds", "2"]);
    command.args(args);
    for name in only {
        command.args(["--only", name]);
    }
    let output = command.args(["--link", "loopback", "--json", "-"]).output();
    let output = output.expect("megapipe runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let results = serde_json::from_slice(&output.stdout).expect(&said);
    (output.status, results, said)
}

#[test]
fn placements_and_sockets_are_measured_beside_the_channel() {
    let test = "placements_and_sockets_are_measured_beside_the_channel";
    if let Some(why) = refused() {
        println!("skipped: {test}: {why}");
        return;
    }
    let (points, bars) = shard_bars(&["thread", "sockets"]);
    for server in ["channel", "sockets"] {
        let found = |point: &serde_json::Value| point["server"] == server;
        assert!(points.as_array().expect("points").iter().any(found), "{server}: {points}");
    }
    let placed = |point: &serde_json::Value| point["placement"] == "thread";
    assert!(points.as_array().expect("points").iter().any(placed), "{points}");
    for bar in &bars {
        let ratio = bar["median"].as_f64().expect("a ratio");
        assert!(ratio > 0.1 && ratio < 10.0, "{bar}");
    }
}

#[test]
fn programs_are_skipped_without_the_library() {
    if let Some(why) = refused() {
        println!("skipped: programs_are_skipped_without_the_library: {why}");
        return;
    }
    let mut command = megapipe(&["bench", "bars", "--preload", "--link", "loopback"]);
    let output = command.args(["--json", "-"]).env("MEGAPIPE_PRELOAD", "/nowhere").output();
    let output = output.expect("megapipe runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
    let bars = results["bars"].as_array().expect("bars");
    assert!(bars.len() > 10 && output.status.success(), "{said}");
    for bar in bars {
        assert!(bar["skipped"] == true && bar["met"].is_null(), "{bar}");
        assert!(bar["why"].as_str().is_some_and(|why| why.contains("/nowhere")), "{bar}");
    }
}

/// The value of each bar of `bench bars --service --only …`, by its text; with few connections, and
/// once. Numbers of a busy machine are no matter of a test.
fn service_bars(only: &[&str]) -> Vec<(String, f64)> {
    let (_, results, said) = bars(&["--service", "--quick"], only);
    let bars = results["bars"].as_array().expect("bars").iter();
    let values: Vec<(String, f64)> = bars
        .map(|bar| {
            assert!(only.iter().any(|name| bar["name"] == *name), "{bar}");
            let value = bar["median"].as_f64().unwrap_or_else(|| panic!("{bar}: {said}"));
            (bar["what"].as_str().expect("a text").to_owned(), value)
        })
        .collect();
    assert!(!values.is_empty(), "{said}");
    values
}

/// The value of the bar whose text contains a part.
#[track_caller]
fn value(bars: &[(String, f64)], part: &str) -> f64 {
    bars.iter().find(|bar| bar.0.contains(part)).unwrap_or_else(|| panic!("{part}: {bars:?}")).1
}

#[test]
fn no_connection_is_lost_beside_stopped_and_dead_programs() {
    if let Some(why) = refused() {
        println!("skipped: no_connection_is_lost_beside_stopped_and_dead_programs: {why}");
        return;
    }
    let bars = service_bars(&["stopped", "killed", "reclaim", "daemon-killed"]);
    assert!(value(&bars, "answered by another") >= 5.0, "the claim time is 5 ms: {bars:?}");
    for part in ["connections lost", "errors at others"] {
        assert!(value(&bars, part).abs() < 1e-9, "{bars:?}");
    }
    for part in ["p99 of others", "buffers, ports", "all serve again"] {
        assert!(value(&bars, part) > 0.0, "{bars:?}");
    }
    // It may be negative: sockets are closed before a process has ended.
    assert!(value(&bars, "programs notified").abs() < 10_000.0, "{bars:?}");
}

#[test]
fn connections_are_divided_among_programs_of_a_daemon() {
    if let Some(why) = refused() {
        println!("skipped: connections_are_divided_among_programs_of_a_daemon: {why}");
        return;
    }
    let bars = service_bars(&["fair", "slow"]);
    // A quarter is the index of one program that has all.
    assert!((0.3..=1.0).contains(&value(&bars, "Jain")), "{bars:?}");
    assert_eq!(bars.len(), 7);
    assert!(bars.iter().all(|bar| bar.1 > 0.0), "{bars:?}");
}

#[test]
fn costs_of_a_daemon_are_counted() {
    if let Some(why) = refused() {
        println!("skipped: costs_of_a_daemon_are_counted: {why}");
        return;
    }
    let bars = service_bars(&["memory", "accept"]);
    for part in ["over all of inline's", "8 programs over 1", "256 idle programs"] {
        assert!(value(&bars, part) > 0.0, "{bars:?}");
    }
    // As for tables that grow by pages.
    assert!((0.0..=4096.0).contains(&value(&bars, "idle connection")), "{bars:?}");
    if !tracing_is_possible() {
        println!("skipped: system calls: strace cannot be used here");
        return;
    }
    let calls = value(&service_bars(&["syscalls"]), "system calls");
    assert!(calls > 0.0 && calls < 100.0, "{calls}");
}

/// Whether strace is there and may attach to another process of this user.
fn tracing_is_possible() -> bool {
    let Ok(mut child) = Command::new("sleep").arg("10").spawn() else { return false };
    let pid = child.id().to_string();
    let strace = Command::new("timeout").args(["-s", "INT", "1", "strace", "-p", &pid]).output();
    let _ = child.kill();
    let _ = child.wait();
    strace.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("attached"))
}

#[test]
fn missing_cores_are_simulated_and_marked() {
    if let Some(why) = refused() {
        println!("skipped: missing_cores_are_simulated_and_marked: {why}");
        return;
    }
    let (points, bars) = shard_bars(&["shards", "steering", "idle"]);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(bars[0]["simulated"], cpus < 4, "{}", bars[0]);
    let ratio = bars[0]["median"].as_f64().expect("a ratio");
    assert!(ratio > 1.0 && ratio < 2.5, "{ratio}");
    let points = points.as_array().expect("points");
    let simulated = points.iter().filter(|point| point["simulated"].is_object()).count();
    assert_eq!(simulated > 0, cpus < 4);
    assert!(points.iter().any(|point| point["simulated"].is_null()), "what was measured for it");
    for bar in &bars[1..] {
        assert_eq!(bar["simulated"], false);
        assert!(bar["median"].as_f64() > Some(0.0), "{bar}");
    }
}

#[test]
fn readiness_is_measured_beside_completions_in_every_placement() {
    let test = "readiness_is_measured_beside_completions_in_every_placement";
    if let Some(why) = refused() {
        println!("skipped: {test}: {why}");
        return;
    }
    let scratch = std::env::temp_dir().join(format!("mp-cli-programs-{}.html", std::process::id()));
    let args = ["bench", "rpc", "--only", "rpc-1k", "--runs", "1", "--seconds", "2", "--json", "-"];
    let mut command = megapipe(&args);
    command.args(["--backend", "local", "--server", "channel,sockets"]);
    command.args(["--placement", "inline,thread,core", "--report"]).arg(&scratch);
    let output = command.output().expect("megapipe runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
    let page = fs::read_to_string(&scratch).expect("a report");
    fs::remove_file(&scratch).expect("it was there");
    let points = results["points"].as_array().expect("points");
    let servers: Vec<_> = points.iter().map(|it| (&it["server"], &it["placement"])).collect();
    let both = ["channel", "sockets"];
    let expected = both.iter().flat_map(|&api| ["inline", "thread", "core"].map(|it| (api, it)));
    let named = |it: &(&serde_json::Value, &serde_json::Value)| {
        (it.0.as_str().unwrap_or_default().to_owned(), it.1.as_str().unwrap_or_default().to_owned())
    };
    let expected = expected.map(|(api, place)| (api.to_owned(), place.to_owned()));
    assert_eq!(
        servers.iter().map(named).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>(),
        "{said}"
    );
    for point in points {
        assert_eq!((&point["backend"], &point["errors"]), (&"local".into(), &0.into()));
        assert!(point["transactions_per_s"].as_f64() > Some(100.0), "{point}");
        // Only a stack on another thread wakes the channel's thread.
        let events = point["events_per_wakeup"].as_f64();
        assert_eq!(events >= Some(1.0), point["placement"] != "inline", "{point}");
    }
    for shown in ["over channel", "over inline", "events/wake", "sockets (memif), thread"] {
        assert!(page.contains(shown), "{shown}");
    }
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_placement_without_a_stack_is_refused() {
    let output = megapipe(&["bench", "rpc", "--placement", "thread"]).output();
    let output = output.expect("megapipe runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--placement: only --backend local"), "{said}");
}

#[test]
fn nothing_is_left_of_a_benchmark_that_is_ended() {
    let test = "nothing_is_left_of_a_benchmark_that_is_ended";
    if let Some(why) = refused() {
        println!("skipped: {test}: {why}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {test}: network namespaces need root");
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let args = ["bench", "accept", "--quick", "--link", "veth"];
        let mut command = megapipe(&args);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn();
        let mut bench = Bench(child.expect("megapipe runs"));
        let pid = bench.0.id();
        let ended = |bench: &mut Bench| bench.0.try_wait().expect("a status").is_some();
        let deadline = Instant::now() + DEADLINE;
        while !namespaces(pid).iter().all(|path| path.exists()) {
            if ended(&mut bench) {
                println!("skipped: {test}: this kernel or container gives no namespaces");
                return;
            }
            assert!(Instant::now() < deadline, "no namespaces in time");
            thread::sleep(Duration::from_millis(10));
        }
        let scratch = std::env::temp_dir().join(format!("megapipe-bench-{pid}"));
        // In the midst of a run, with a server and a load.
        wait_until("a run", || scratch.join("server.log").exists());
        bench.signal(signal);
        bench.0.wait().expect("an end");
        wait_until("removal", || namespaces(pid).iter().all(|path| !path.exists()));
        wait_until("removal of files", || !scratch.exists());
        wait_until("the end of what it started", || running_in(pid).is_empty());
    }
}

#[test]
fn child_of_a_dead_benchmark_does_not_start() {
    let exec = |parent: u32| {
        let parent = parent.to_string();
        let args = ["bench", "exec", "--parent", &parent, "--cpus", "0", "--", "echo", "begun"];
        let output = megapipe(&args).output().expect("megapipe runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), output.stdout == b"begun\n", said)
    };
    let (is_success, has_begun, said) = exec(std::process::id());
    assert!(is_success && has_begun, "{said}");
    let (is_success, has_begun, said) = exec(1);
    assert!(!is_success && !has_begun, "{said}");
    assert!(said.contains("process 1 is not the parent any more"), "{said}");
}
