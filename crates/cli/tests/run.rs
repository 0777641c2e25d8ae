//! `megapipe run`: what it refuses, with the exit status, and what it passes to the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// `megapipe run` with a library that exists and does nothing: the C library itself is loaded
/// anyway.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    command.arg("run").args(arguments).env("MEGAPIPE_PRELOAD", library());
    command.env_remove("LD_PRELOAD").output().expect("it runs")
}

/// A shared object that this program has loaded.
fn library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is readable");
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let library = paths.filter(|path| path.contains("/libc.so")).map(PathBuf::from).next();
    library.expect("libc is loaded")
}

fn refused(arguments: &[&str], status: i32, text: &str) {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(said.contains(text), "{arguments:?}: {said}");
}

const MEMIF: [&str; 6] =
    ["--backend", "local", "--link", "memif:/tmp/x", "--address", "10.0.0.1/24"];

#[test]
fn errors_of_run_have_status_125() {
    refused(&["--service", "/nonexistent/x", "--", "true"], 125, "no service at /nonexistent/x:");
    refused(&["--backend", "lokal", "--", "true"], 125, "invalid value 'lokal'");
    refused(&["--backend", "local", "--", "true"], 125, "MEGAPIPE_LINK = : the back end local");
    let lo = ["--backend", "local", "--link", "packet:lo", "--", "true"];
    refused(&lo, 125, "the stack needs an address of its own");
    refused(&["--backend", "local", "--link", "lo", "--", "true"], 125, "packet:INTERFACE");
    let both = ["--require", "stack", "--fall-back", "--", "true"];
    refused(&[&MEMIF[..], &both].concat(), 125, "cannot be used with '--fall-back'");
    let require = ["--require", "kernel", "--", "true"];
    refused(&[&MEMIF[..], &require].concat(), 125, "MEGAPIPE_REQUIRE = kernel: must be stack");
    let loopback = ["--loopback", "ours", "--", "true"];
    refused(&[&MEMIF[..], &loopback].concat(), 125, "must be kernel or stack");
    let kernel = ["--backend", "kernel", "--loopback", "stack", "--", "true"];
    refused(&kernel, 125, "the back end kernel has no stack");
    let rule = ["--rule", "stack listen 80", "--", "true"];
    let said = "--rule: rule \"stack listen 80\": \"80\" must be ADDRESS[/BITS]:PORTS";
    refused(&[&MEMIF[..], &rule].concat(), 125, said);
    let report = ["--report", "/nonexistent/report", "--", "true"];
    let said = "--report: /nonexistent/report: No such file or directory";
    refused(&[&MEMIF[..], &report].concat(), 125, said);
    let rules = ["--rules", "/nonexistent/rules", "--", "true"];
    refused(&[&MEMIF[..], &rules].concat(), 125, "/nonexistent/rules: No such file");
    for (option, value, said) in [
        ("--placement", "here", "MEGAPIPE_PLACEMENT = here: must be inline, thread or core"),
        ("--gateway", "10.0.0", "MEGAPIPE_GATEWAY = 10.0.0: must be IP addresses"),
        ("--fall-back", "--no-such-option", "unexpected argument '--no-such-option'"),
    ] {
        refused(&[&MEMIF[..], &[option, value, "--", "true"]].concat(), 125, said);
    }
}

#[test]
fn fall_back_runs_the_program_without_a_daemon() {
    let report = std::env::temp_dir().join(format!("mp-fall-back-{}", std::process::id()));
    let report = report.to_string_lossy().into_owned();
    let script = "test -z \"$LD_PRELOAD\" && exit 7";
    let service = ["--service", "/nonexistent/x", "--report", &report];
    let program = ["--", "sh", "-c", script];
    let output = run(&[&service[..], &["--fall-back"], &program].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    let line = "no service at /nonexistent/x:";
    assert!(said.contains(line) && said.contains("runs in the kernel (--fall-back)"), "{said}");
    assert!(std::fs::read_to_string(&report).expect("a report").contains(line));
    std::fs::remove_file(&report).expect("it is there");
    // The variable is the option; a wrong one starts nothing.
    for (value, status) in [("1", 7), ("0", 125), ("yes", 125)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
        command.args(["run", "--service", "/nonexistent/x"]).args(program);
        command.env("MEGAPIPE_PRELOAD", library()).env("MEGAPIPE_FALL_BACK", value);
        let output = command.env_remove("LD_PRELOAD").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{value}: {said}");
        assert_eq!(said.contains("MEGAPIPE_FALL_BACK = yes: must be 0 or 1"), value == "yes");
    }
}

#[test]
fn rule_in_a_file_is_named_by_its_line() {
    let path = std::env::temp_dir().join(format!("mp-rules-{}", std::process::id()));
    std::fs::write(&path, "# ports\nkernel listen *:22\nkernel accept *:23 # no\n")
        .expect("a file");
    let shown = path.to_string_lossy().into_owned();
    let arguments = [&MEMIF[..], &["--rules", &shown, "--", "true"]].concat();
    refused(&arguments, 125, &format!("{shown}:3: rule \"kernel accept *:23\": \"accept\""));
    std::fs::remove_file(path).expect("it is there");
}

#[test]
fn program_that_is_missing_or_unsuitable_is_refused() {
    let missing = [&MEMIF[..], &["--", "no-such-program-here"]].concat();
    refused(&missing, 127, "no-such-program-here: not found");
    let text = std::env::temp_dir().join(format!("mp-text-{}", std::process::id()));
    std::fs::write(&text, "neither a script nor a program").expect("a file");
    let shown = text.to_string_lossy().into_owned();
    refused(&[&MEMIF[..], &["--", &shown]].concat(), 126, "cannot be preloaded: it is no ELF");
    std::fs::remove_file(text).expect("it is there");
}

#[test]
fn check_prints_what_is_interposed_and_starts_nothing() {
    let output = run(&[&MEMIF[..], &["--check", "--", "cat", "/no/such/file"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let words = |name: &str| {
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {said}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(words("read"), ["read", "interposed", "cat"]);
    let passed = words("lseek");
    assert_eq!(passed[1..3], ["passed", "through"], "{said}");
    assert!(passed.len() > 4 && passed.last() == Some(&"cat"), "{said}");
    assert!(said.ends_with("result   it can be preloaded\n"), "{said}");
}

#[test]
fn program_gets_the_settings_and_its_own_status() {
    let script = "test -n \"$LD_PRELOAD\" && test \"$MEGAPIPE_LINK\" = memif:/tmp/x && \
                  test \"$MEGAPIPE_LOOPBACK\" = stack && exit 7";
    let options = ["--loopback", "stack", "--", "sh", "-c", script];
    let output = run(&[&MEMIF[..], &options].concat());
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The sockets of daemons in a folder.
fn daemons_in(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).expect("a folder").map_while(Result::ok);
    entries.filter(|it| it.file_name().to_string_lossy().starts_with("megapiped-")).count()
}

/// A folder of the test's own for daemons' sockets.
fn private_folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("mp-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A command with a private daemon at 10.9.6.HOST. The library that is preloaded does nothing: the
/// token alone keeps the daemon.
fn with_private_daemon(folder: &Path, link: &str, host: u8, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    command.args(["run", "--service", "/nonexistent/x", "--link", link]);
    command.args(["--address", &format!("10.9.6.{host}/24"), "--loopback", "stack"]);
    command.args(["--", "sh", "-c", script]);
    command.env("MEGAPIPE_PRELOAD", library()).env("XDG_RUNTIME_DIR", folder);
    command.env_remove("LD_PRELOAD");
    command
}

#[test]
fn program_follows_another_one_that_had_a_private_daemon() {
    let folder = private_folder("follows");
    let link = format!("memif:{},role=server,wait=0", folder.join("memif").display());
    for _ in 0..3 {
        let status = with_private_daemon(&folder, &link, 1, "true").status().expect("it runs");
        assert!(status.success(), "{status}");
    }
    std::fs::remove_dir_all(folder).expect("it is there");
}

#[test]
fn private_daemon_starts_with_the_program_and_ends_with_it() {
    let folder = private_folder("private");
    // Two hosts, each with a program and its daemon: the ends of the link wait for each other.
    let started = [("server", 1), ("client", 2)].map(|(role, host)| {
        let link = format!("memif:{},role={role}", folder.join("memif").display());
        let script = "test -S \"$MEGAPIPE_SERVICE\" && test -n \"$MEGAPIPE_SESSION_FD\" && sleep 1";
        with_private_daemon(&folder, &link, host, script).spawn().expect("it runs")
    });
    for mut program in started {
        assert!(program.wait().expect("it ends").success());
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while daemons_in(&folder) > 0 {
        assert!(Instant::now() < deadline, "a daemon goes on without its program");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_dir_all(folder).expect("it is there");
}
