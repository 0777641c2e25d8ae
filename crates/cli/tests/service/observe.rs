//! `megapipe ss` and `megapipe explain` with running daemons, a server and a load.

use rustix::process::geteuid;
use serde_json::Value;

use super::*;

/// `megapipe` with the words of `line` and an expression, about one of the daemons.
fn shown(folder: &Folder, end: usize, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    let path = folder.file(&format!("service{end}"));
    command.args(words).args(["--service", &path]).stdin(Stdio::null());
    command.output().expect("it runs")
}

#[track_caller]
fn text(folder: &Folder, end: usize, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = shown(folder, end, &words);
    let text = text_of(&output);
    assert!(output.status.success(), "{line}: {text}");
    text
}

#[track_caller]
pub(crate) fn json(folder: &Folder, end: usize, line: &str) -> Value {
    let text = text(folder, end, &format!("{line} --json"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits until a port of the first daemon has so many connections.
#[track_caller]
pub(crate) fn loaded(folder: &Folder, port: u16, connections: usize) {
    let start = Instant::now();
    loop {
        let sockets = json(folder, 0, &format!("ss -tn sport = :{port}"));
        if sockets["sockets"].as_array().expect("a list").len() == connections {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{sockets}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A load of four connections that is under way.
fn load_under_way(folder: &Folder) -> Running {
    let load = Running::start(load_command(folder, "60"));
    loaded(folder, 7000, 4);
    load
}

#[test]
fn sockets_of_a_daemon_are_shown_as_in_ss() {
    let folder = Folder::new("ss");
    let daemons = daemons(&folder);
    let server = server(&folder);
    let pid = server.child.id();
    let load = load_under_way(&folder);

    let listening = text(&folder, 0, "ss -tlnp");
    let lines: Vec<&str> = listening.lines().collect();
    assert!(lines[0].starts_with("State  Recv-Q Send-Q Local Address:Port"), "{listening}");
    assert!(lines[1].starts_with("LISTEN 0"), "{listening}");
    let users = format!("users:((\"megapipe\",pid={pid}))");
    assert!(lines[1].contains("10.9.0.1:7000") && lines[1].contains(&users), "{listening}");
    assert_eq!(lines.len(), 2);

    let open = text(&folder, 0, "ss -tnpi state established sport = :7000");
    assert_eq!(open.matches(&users).count(), 4, "{open}");
    assert_eq!(open.matches("\t ts sack ").count(), 4, "{open}");
    assert_eq!(text(&folder, 0, "ss -H state established sport = :7001"), "");
    assert_eq!(text(&folder, 0, "ss -Hua"), "");

    // The peers are those of the other daemon, from the other side.
    let ends = |end: usize, line: &str, of: [&str; 2]| {
        let report = json(&folder, end, line);
        let sockets = report["sockets"].as_array().expect("a list").iter();
        let ends = sockets.map(|it| of.map(|name| it[name].as_str().expect("one").to_owned()));
        let mut ends: Vec<_> = ends.collect();
        ends.sort();
        ends
    };
    let ours = ends(0, "ss -ti state connected", ["local", "peer"]);
    assert_eq!(ours, ends(1, "ss -t", ["peer", "local"]));
    let report = json(&folder, 0, "ss -ti");
    let socket = &report["sockets"][0];
    assert_eq!(socket["state"], "ESTAB");
    assert_eq!(socket["uid"], geteuid().as_raw());
    assert_eq!(socket["processes"][0]["pid"], pid);
    assert!(socket["tcp_info"]["bytes_received"].as_u64().expect("a number") > 0, "{socket}");
    drop((load, server, daemons));
}

#[test]
fn port_process_and_connection_are_explained() {
    let folder = Folder::new("explain");
    let daemons = daemons(&folder);
    let server = server(&folder);
    let pid = server.child.id();
    let load = load_under_way(&folder);

    let port = json(&folder, 0, "explain :7000");
    let listener = &port["listeners"][0];
    assert_eq!(listener["local"], "10.9.0.1:7000");
    assert_eq!(listener["acceptors"][0]["pid"], pid);
    assert_eq!(port["states"]["ESTAB"], 4);
    assert_eq!(port["shards"][0]["link"]["driver"], "memif");
    assert_eq!(port["daemon"]["sessions"], 1);
    let session = &port["sessions"][0];
    assert_eq!(session["connections"]["now"], 4);
    assert!(session["operations"].as_u64().expect("a number") > 0, "{session}");
    assert!(session["older_than_daemon_s"].is_null(), "{session}");

    let process = text(&folder, 0, &format!("explain {pid}"));
    assert!(process.contains(&format!("process {pid} (megapipe) of user")), "{process}");
    assert!(process.contains("connections 4"), "{process}");
    let peer = json(&folder, 0, "ss -t")["sockets"][0]["peer"].as_str().expect("one").to_owned();
    let connection = text(&folder, 0, &format!("explain {peer}"));
    assert!(connection.contains(&format!("10.9.0.1:7000 to {peer}: ESTAB")), "{connection}");
    assert!(text(&folder, 0, "explain").contains("shard 0"));

    for target in [":7001", "10.9.9.9:1", "1"] {
        let output = shown(&folder, 0, &["explain", target]);
        assert_eq!(output.status.code(), Some(1), "{target}");
        assert!(text_of(&output).contains("has nothing"), "{target}: {}", text_of(&output));
    }
    drop((load, server, daemons));
}

/// The daemon dies, and another one takes its place: `explain` says what happened.
#[test]
fn explain_tells_a_channel_that_attached_again() {
    let folder = Folder::new("again");
    let [daemon, other] = daemons(&folder);
    let server = server(&folder);
    let pid = server.child.id();
    daemon.end(Signal::KILL);
    drop(other);
    // A process begins in a tick of 10 ms: the daemon begins in a later one.
    std::thread::sleep(Duration::from_millis(50));
    let daemons = daemons(&folder);
    let start = Instant::now();
    let session = loop {
        let output = shown(&folder, 0, &["explain", "--json", &pid.to_string()]);
        if output.status.success() {
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            break report["sessions"][0].clone();
        }
        assert!(start.elapsed() < PATIENCE, "{}", text_of(&output));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(session["older_than_daemon_s"].as_f64().is_some_and(|it| it > 0.0), "{session}");
    let process = text(&folder, 0, &format!("explain {pid}"));
    assert!(process.contains("older than the daemon"), "{process}");
    drop((server, daemons));
}

/// `megapipe` with some words, as the user 65534.
fn as_other_user(folder: &Folder, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(env!("CARGO_BIN_EXE_megapipe")).args(words);
    command.args(["--service", &folder.file("service0")]).stdin(Stdio::null());
    command
}

/// Another user sees its own sockets and sessions, and root those of both.
#[test]
fn users_see_their_own_programs_only() {
    if !geteuid().is_root() {
        println!("skipped: root can become another user, and this user cannot");
        return;
    }
    let folder = Folder::new("user");
    let daemons = daemons(&folder);
    let server = server(&folder);
    let pid = server.child.id().to_string();
    let shown = |words: &[&str]| as_other_user(&folder, words).output();
    // The folder and the program have to be there for others, too.
    let Ok(output) = shown(&["ss", "-Htan"]) else {
        println!("skipped: setpriv is not installed");
        return;
    };
    if text_of(&output).contains("Permission denied") || output.status.code() == Some(126) {
        println!("skipped: another user may not run {}", env!("CARGO_BIN_EXE_megapipe"));
        return;
    }
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(text_of(&output), "");
    for target in [":7000", &*pid] {
        let output = shown(&["explain", target]).expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        let text = text_of(&output);
        assert!(text.contains("that this user may see"), "{text}");
    }
    let text = text_of(&shown(&["explain"]).expect("it runs"));
    assert!(text.contains("is not shown") && !text.contains(&pid), "{text}");

    let listen = ["serve", "rpc", "--backend", "service", "--listen", "10.9.0.1:7001"];
    let other = Running::start(as_other_user(&folder, &listen)).until_ready("listening on");
    let text = text_of(&shown(&["ss", "-Htln"]).expect("it runs"));
    assert!(text.contains("10.9.0.1:7001") && text.lines().count() == 1, "{text}");
    let report = json(&folder, 0, "explain");
    let users = report["users"].as_array().expect("a list");
    assert_eq!(users.len(), 1, "root has no quotas: {report}");
    assert_eq!(
        (&users[0]["uid"], &users[0]["quotas"]["channels"]["now"]),
        (&65_534.into(), &1.into())
    );
    assert_eq!(json(&folder, 0, "ss -ln")["sockets"].as_array().expect("a list").len(), 2);
    drop((other, server, daemons));
}

#[test]
fn without_a_daemon_both_commands_name_the_path() {
    for (line, code, named) in [
        ("ss --service /nowhere/x", 1, "no service at /nowhere/x"),
        ("explain :80 --service /nowhere/x", 1, "Only programs on the back end `service`"),
        ("ss --service /nowhere/x state asleep", 2, "asleep"),
        ("explain nginx --service /nowhere/x", 2, "expected a port"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
        let output = command.args(line.split_whitespace()).output().expect("it runs");
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {text}");
        assert!(text.contains(named), "{line}: {text}");
    }
}
