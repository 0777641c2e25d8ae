//! Layouts of a daemon: two programs that share a port, one of which dies and one of which stops.

use super::*;

/// A load with one transaction in each connection: all of them are handed over.
#[track_caller]
fn assert_short_connections_are_served(folder: &Folder) {
    let target = ADDRESSES[0];
    let line = format!(
        "load rpc {target}:7000 --connections 4 --transactions 1 --warmup 0 --duration 0.5"
    );
    let load = attached(folder, 1, &line).output().expect("it runs");
    let text = text_of(&load);
    assert!(load.status.success(), "{text}");
    assert!(text.contains("errors          none"), "{text}");
}

fn explained(folder: &Folder) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    command.args(["explain", ":7000", "--json", "--service", &folder.file("service0")]);
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// CPU time and frames in both directions of each link server on a thread of its own.
fn link_servers(report: &serde_json::Value) -> Vec<(f64, u64, u64)> {
    let servers = report["link_servers"].as_array().expect("a list");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let account = |it: &serde_json::Value| {
        let cpu_s = it["cpu_s"].as_f64().expect("seconds");
        (cpu_s, number(&it["frames_in"]), number(&it["frames_out"]))
    };
    servers.iter().map(account).collect()
}

/// Offers that a program got, by the homes of the acceptors: every manager has one. The accounts of
/// link servers, of which so many have threads of their own, grow with the connections.
fn check(layout: &str, managers: u64, links: usize) {
    let folder = Folder::new(layout);
    let start = |end: usize, options: &[&str]| {
        let mut command = megapiped(&folder, end);
        command.args(options);
        Running::start(command)
    };
    // Each waits for the other one.
    let daemons = [start(0, &["--layout", layout]), start(1, &["--shards", "2"])];
    let _daemons = daemons.map(|daemon| daemon.until_ready("ready at"));
    let [first, second] = [server(&folder), server(&folder)];
    assert_short_connections_are_served(&folder);
    let report = explained(&folder);
    assert_eq!(report["daemon"]["layout"], layout, "{report}");
    for listener in report["listeners"].as_array().expect("a list") {
        let acceptors = listener["acceptors"].as_array().expect("a list");
        assert_eq!(acceptors.len(), 2, "each shard knows both: {report}");
        assert!(listener["hand_over"]["offers"].as_u64() > Some(0), "{report}");
        let homes = acceptors.iter().map(|acceptor| acceptor["home"].as_u64());
        let homes: std::collections::BTreeSet<_> = homes.collect();
        let expected: std::collections::BTreeSet<_> = (0..managers.min(2)).map(Some).collect();
        assert_eq!(homes, expected, "{report}");
    }
    let before = link_servers(&report);
    assert_eq!(before.len(), links, "{report}");
    // The one that is left serves all shards, whatever its home is.
    first.end(Signal::KILL);
    assert_short_connections_are_served(&folder);
    let _third = server(&folder);
    second.signal(Signal::STOP);
    assert_short_connections_are_served(&folder);
    second.signal(Signal::CONT);
    let after = link_servers(&explained(&folder));
    assert_eq!(after.len(), links);
    for ((cpu, frames_in, frames_out), before) in after.into_iter().zip(before) {
        assert!(cpu > before.0 && frames_in > before.1 && frames_out > before.2, "{before:?}");
    }
}

#[test]
fn combined_layout_serves_by_acceptors_of_other_shards() {
    check("TS3LS3CM3", 3, 0);
}

#[test]
fn subset_layout_serves_shards_without_a_manager() {
    check("TS2LS2CM1", 1, 0);
}

#[test]
fn manager_on_a_thread_of_its_own_serves_all_shards() {
    check("TS2LS2+CM2", 2, 0);
}

#[test]
fn link_server_on_a_thread_of_its_own_serves_all_shards() {
    check("TS2+LS1+CM1", 1, 1);
}

#[test]
fn link_servers_serve_shards_with_managers() {
    check("TS3CM3+LS1", 3, 1);
}

#[test]
fn layout_that_is_not_built_is_refused_with_a_sentence() {
    let folder = Folder::new("layouts");
    for (layout, expected) in [
        ("TS2LS1+CM1", "either each TS has its own LS, as in TS2LS2+CM1, or each LS is alone"),
        ("TS2LS2CM3", "CM3 exceeds the 2 servers of its group"),
        ("TS2LS2", "CM is missing"),
    ] {
        let output = megapiped(&folder, 0).args(["--layout", layout]).output().expect("it runs");
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}
