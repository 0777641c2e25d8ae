//! The `megapipe` command as a process: what it prints, how it ends, what signals do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::{Pid, Signal, kill_process};

fn megapipe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    megapipe(args).output().expect("megapipe runs")
}

fn stdout(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A server process that is ended on drop, whatever happens.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    ready: String,
}

impl Server {
    /// Starts a server and waits for its `listening on` line.
    fn start(args: &[&str]) -> Self {
        Self::from(megapipe(args))
    }

    fn from(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("megapipe runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let stderr = child.stderr.take().expect("a pipe");
        let mut ready = String::new();
        stdout.read_line(&mut ready).expect("a line");
        Self { child, stdout, stderr, ready }
    }

    fn address(&self) -> &str {
        let rest = self.ready.strip_prefix("listening on ").expect(&self.ready);
        rest.split(',').next().expect("an address")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("signalling");
    }

    /// Waits for the end: whether it was a success, and what else was printed.
    fn end(mut self) -> (bool, String, String) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waiting") {
                break status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).expect("UTF-8");
        self.stderr.read_to_string(&mut err).expect("UTF-8");
        (status.success(), out, err)
    }
}

/// A program that runs in parallel to the test and ends with it.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn info_names_the_driver_every_feature_and_the_limits() {
    let text = stdout(&["info"]);
    for expected in [
        "A channel gets the driver ",
        "\nuring ",
        "\nepoll ",
        "RLIMIT_NOFILE",
        "kernel.io_uring_disabled",
        "net.ipv4.tcp_migrate_req",
        "processors online",
        "RPS of lo",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("forced by configuration"), "no driver was configured: {text}");
    let json: serde_json::Value = serde_json::from_str(&stdout(&["info", "--json"])).expect("JSON");
    let driver = json["chosen"]["driver"].as_str().expect("a name");
    assert!(text.contains(&format!("A channel gets the driver {driver}: ")));
    let drivers = json["drivers"].as_array().expect("an array");
    assert_eq!(drivers.len(), 2);
    assert!(drivers.iter().any(|trial| trial["available"] == true), "{drivers:?}");
    assert!(drivers.iter().all(|trial| !trial["reason"].as_str().unwrap_or("").is_empty()));
}

#[test]
fn info_describes_channels_on_the_kernel() {
    let text = stdout(&["info", "--channels", "2"]);
    for expected in [
        "A server with 2 channels on the kernel back end\n",
        "\n  placement  kernel: Linux does TCP",
        "\n  channel 0  on core ",
        "\n  channel 1  on core ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let json = stdout(&["info", "--json", "--channels", "2"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let server = &json["server"];
    assert_eq!((&server["backend"], &server["shards"]), (&"kernel".into(), &().into()));
    // On a small machine with one core only a hash distinguishes two channels.
    let cores: Vec<_> = (0..2).map(|index| &server["channels"][index]["core"]).collect();
    let steering = if cores[0] == cores[1] { "hash" } else { "core" };
    assert_eq!(server["steering"]["name"], steering, "{server}");
    for args in [
        &["info", "--placement", "thread"][..],
        &["info", "--backend", "local", "--link", "carrier:pigeon"],
    ] {
        let output = megapipe(args).output().expect("the program");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn info_names_placement_shards_and_queues() {
    let link = format!("memif:@mp-info-{}", std::process::id());
    let local = |role: &str, address: &str| {
        let link = format!("{link},role={role}");
        ["--backend", "local", "--link", &link, "--address", address].map(str::to_owned)
    };
    let ask = |args: &[&str]| {
        let mut command = megapipe(&["info"]);
        command.args(local("client", "10.9.2.2/24")).args(["--channels", "2"]).args(args);
        command.output().expect("the program")
    };
    let server_args = local("server", "10.9.2.1/24");
    let mut command = megapipe(&["serve", "rpc", "--listen", "10.9.2.1:7000"]);
    command.args(server_args).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Beside(command.spawn().expect("a server"));
    let deadline = Instant::now() + Duration::from_secs(30);
    for (placement, place) in [
        ("inline", "inside dispatch"),
        ("thread", "on a second thread, on core "),
        ("core", "on a core of its own, on core "),
    ] {
        let args = ["--placement", placement, "--json"];
        let mut output = ask(&args);
        // The server is starting, or still closing the link of the last command.
        while !output.status.success() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            output = ask(&args);
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let server = &json["server"];
        assert_eq!(server["placement"]["name"], placement, "{server}");
        assert_eq!(
            (&server["shards"], &server["steering"]["name"]),
            (&2.into(), &"software".into())
        );
        assert!(server["link"].as_str().is_some_and(|link| link.starts_with("memif ")), "{server}");
        assert!(server["queues"].as_u64() >= Some(1), "{server}");
        for (index, channel) in server["channels"].as_array().expect("channels").iter().enumerate()
        {
            let told = channel["place"].as_str().expect("a place");
            assert!(told.starts_with(place), "{told}");
            assert!(told.contains(&format!("shard {index} of 2 on core ")), "{told}");
        }
    }
}

#[test]
fn info_does_not_wait_for_ever_for_the_other_end_of_a_link() {
    let path = std::env::temp_dir().join(format!("mp-info-alone-{}.sock", std::process::id()));
    let link = format!("memif:{},role=server", path.display());
    let args = ["info", "--backend", "local", "--link", &link, "--address", "10.9.3.1/24"];
    let output = megapipe(&args).output().expect("the program");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no client has come"), "{said}");
    assert!(!path.exists(), "its socket is left");
}

#[test]
fn help_and_completions_are_there_for_everything() {
    for args in [
        &["--help"][..],
        &["serve", "--help"],
        &["serve", "rpc", "--help"],
        &["serve", "http", "--help"],
        &["serve", "kv", "--help"],
        &["load", "rpc", "--help"],
        &["load", "http", "--help"],
        &["load", "kv", "--help"],
        &["bench", "--help"],
        &["demo", "--help"],
        &["info", "--help"],
    ] {
        assert!(stdout(args).contains("Usage: megapipe"), "{args:?}");
    }
    for (shell, text) in
        [("bash", "_megapipe"), ("zsh", "#compdef megapipe"), ("fish", "complete -c megapipe")]
    {
        assert!(stdout(&["completions", shell]).contains(text), "{shell}");
    }
    assert!(stdout(&["--version"]).starts_with("megapipe "));
}

/// Our own stack on a link that is never opened, with more options.
fn local(options: &'static str) -> Vec<&'static str> {
    let args = "serve rpc --backend local --link pair --address 10.0.0.2/24";
    args.split(' ').chain(options.split(' ')).collect()
}

#[test]
fn manual_has_a_page_for_each_command_that_groff_accepts() {
    let folder = std::env::temp_dir().join(format!("mp-manual-{}", std::process::id()));
    stdout(&["manual", folder.to_str().expect("text")]);
    let daemon = Command::new(env!("CARGO_BIN_EXE_megapiped")).arg("manual").arg(&folder).status();
    assert!(daemon.expect("it runs").success());
    let groff = Command::new("groff").arg("--version").output().is_ok();
    for (page, text) in [
        ("megapipe.1", "EXIT STATUS"),
        ("megapipe-serve-http.1", "\\-\\-listen"),
        ("megapipe-load-kv.1", "\\-\\-duration"),
        ("megapipe-bench.1", "OPTIONS"),
        ("megapiped.8", "\\-\\-service"),
        ("megapiped.8", "SIGTERM"),
        ("megapiped.8", "channel.chunks"),
        ("megapiped.8", "user.ports_per_destination"),
    ] {
        let path = folder.join(page);
        let written = std::fs::read_to_string(&path).expect(page);
        assert!(written.contains(text), "{page}: {written}");
        if groff {
            let arguments = ["-man", "-ww", "-b", "-z", "-Tutf8", "-rLL=100n"];
            let output = Command::new("groff").args(arguments).arg(&path).output().expect("groff");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{page}: {said}");
        }
    }
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn exit_codes_tell_mistakes_from_failures() {
    let unbound = "cannot listen on 192.0.2.1:1: Cannot assign requested address (os error 99)";
    for (line, code, named) in [
        ("serve", 2, "Usage"),
        ("serve rpc --listen here", 2, "expected IP:PORT"),
        ("serve rpc --batch 0", 2, "--batch"),
        ("serve rpc --cpus 0,999", 2, "processor 999"),
        ("serve rpc --json /nonexistent/x", 2, "--json /nonexistent/x: "),
        ("serve rpc --listen 192.0.2.1:1", 1, unbound),
        ("serve rpc --gateway 10.0.0.1", 2, "--gateway: "),
        ("serve rpc --spin 50", 2, "--spin: "),
        ("serve rpc --backend local --link pair", 2, "--address: there is none"),
        ("serve rpc --backend local --link carrier:pigeon", 2, "--link carrier:pigeon: "),
        ("serve rpc --backend local --link tap:mp-no-such-device-x", 2, "--link tap:"),
        ("serve http --root /nonexistent", 2, "/nonexistent"),
        ("serve rpc --channels x", 2, "'--channels <N>': expected a number in 1..=256"),
        ("serve rpc --channels 18446744073709551616", 2, "is not in 1..=256"),
        ("serve rpc --ready-fd x", 2, "'--ready-fd <FD>': expected a number in 0..="),
        ("serve kv --memory 3", 2, "--memory: 3 bytes are below the least, 8388608"),
        ("serve kv --memory x", 2, "'--memory <SIZE>': expected 8388608 to "),
        ("serve rpc --listen unix:/dev/null", 2, "--listen unix:/dev/null: the file exists"),
        (
            "serve rpc --listen unix:/nonexistent/x",
            2,
            "--listen unix:/nonexistent/x: the directory",
        ),
        ("serve rpc --listen 224.0.0.1:7000", 2, "--listen 224.0.0.1:7000: a multicast"),
        (
            "info --backend local --link memif:/dev/null,role=server --address 10.0.0.2/24",
            2,
            "not a socket",
        ),
        (
            "info --backend local --link tap:mp-absent --address 10.0.0.2/24",
            2,
            "there is no interface \"mp-absent\"; a server would make it",
        ),
        ("load rpc 127.0.0.1:0", 2, "the server's address: 127.0.0.1:0 has port 0"),
        ("bench bars --backend local --link veth", 2, "--link veth: it takes --backend kernel"),
        ("bench rpc --backend local --link loopback", 2, "--link loopback: it takes"),
        ("load rpc --transactions 0", 2, "'--transactions <DIST>'"),
        ("load rpc --total 0", 2, "'--total <N>': 0 is not in 1..="),
        ("load http --path x", 2, "--path: `x` is no path"),
        ("load http --path-list /dev/stdout/x", 2, "/dev/stdout/x"),
        ("manual /proc/x", 2, "`/proc/x`"),
        ("bench bars --link memif --backend kernel", 2, "--link memif: it takes --backend local"),
        ("serve kv --memory 1k", 2, "below the least"),
        ("load http --path no-slash", 2, "`no-slash` is no path"),
        ("load http --path-list /nonexistent", 2, "/nonexistent"),
        ("load rpc --cpus 999", 2, "processor 999"),
        ("load rpc 127.0.0.1:1 --json /nonexistent/x", 2, "/nonexistent/x"),
        ("load rpc 127.0.0.1:1 -d 0.2 --warmup 0", 3, ""),
        ("bench rpc --only nosuch", 2, "nosuch"),
        ("bench bars --only nosuch", 2, "nosuch"),
        ("bench idle --only nosuch", 2, "nosuch"),
        ("bench idle --link memif --backend kernel", 2, "--link memif: it takes"),
        ("bench rpc --seconds 0", 2, "window of 0 s"),
        ("bench rpc --runs 99999999999999", 2, "1..=1000"),
        ("bench rpc --json /proc/nonexistent/x", 2, "/proc/nonexistent/x"),
        ("bench rpc --report /proc/nonexistent/x", 2, "/proc/nonexistent/x"),
        ("bench report /nonexistent --report x", 2, "/nonexistent"),
        ("script /nonexistent.pkt", 2, "/nonexistent.pkt"),
    ] {
        assert_ends(line, code, named);
    }
}

/// Runs a command that ends with this status and names this on standard error.
fn assert_ends(line: &str, code: i32, named: &str) {
    let output = output(&line.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}: {said}");
    assert!(said.contains(named), "{line}: {said}");
}

#[test]
fn options_out_of_range_are_named_with_what_is_allowed() {
    for (line, named) in [
        ("serve rpc --request-bytes 3", "'--request-bytes <BYTES>': 3 is not in 16..=1048576"),
        ("serve rpc --request-bytes foo", "expected a number in 16..=1048576"),
        ("serve rpc --response-bytes 0", "'--response-bytes <BYTES>': 0 is not in 1..=1048576"),
        ("load rpc --request-bytes 15", "--request-bytes: a request of 15 bytes is outside 16..="),
        ("load rpc --response-bytes 2M", "--response-bytes: a response of 2097152 bytes"),
        ("serve rpc --channels -1", "'--channels <N>': -1 is not in 1..=256"),
        ("serve kv --idle-timeout -1", "'--idle-timeout <SECONDS>': -1 is not in 0..=86400"),
        ("load rpc --batch -1", "'--batch <N>': -1 is not in 1..="),
        ("load rpc --rate -1.5", "'--rate <PER_SECOND>': -1.5 is outside"),
        ("load rpc --source 192.0.2.9:0 --total 1", "--source 192.0.2.9:0: it is no address of"),
        ("load http --host a/b", "--host: `a/b` is no host"),
        ("load http --path-list /dev/null", "--path-list /dev/null: it has no path"),
    ] {
        assert_ends(line, 2, named);
    }
}

#[test]
fn ready_fd_without_a_descriptor_is_refused_before_listening() {
    // 3 and 7 would be descriptors of the server's own a moment later.
    for fd in ["3", "7", "77"] {
        let output = output(&["serve", "rpc", "--listen", "127.0.0.1:0", "--ready-fd", fd]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("--ready-fd {fd}: no descriptor")), "{said}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn addresses_that_no_host_can_have_are_refused() {
    for (options, named) in [
        ("--address 10.1.0.255/24", "10.1.0.255/24 is a broadcast address"),
        ("--address 10.1.0.0/24", "10.1.0.0/24 is a broadcast address"),
        ("--address 255.255.255.255/32", "broadcast address"),
        ("--address 10.1.0.1/33", "10.1.0.1/33"),
        ("--address 127.0.0.1/8", "--address: 127.0.0.1/8 is a loopback address"),
        ("--address ::/64", "--address: ::/64 is the unspecified address"),
        ("--address 224.0.0.1/24", "--address: 224.0.0.1/24 is a multicast address"),
        ("--address 10.0.0.2/24", "--address: 10.0.0.2 is given twice"),
        ("--listen 10.0.0.3:7000", "--listen 10.0.0.3:7000: the stack has only --address 10.0.0.2"),
        ("--driver uring", "--driver uring: --backend local takes auto or epoll"),
        ("--placement core --server-cpus 999", "--server-cpus: processor 999 is not among"),
        ("--gateway 10.0.0.2", "10.0.0.2 is an address of our own"),
        ("--gateway 10.0.0.255", "10.0.0.255 is a broadcast address"),
        ("--gateway 10.0.1.1", "10.0.1.1 is on no prefix"),
    ] {
        let output = output(&local(options));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains(named), "{options}: {said}");
    }
}

#[test]
fn address_mistakes_show_before_a_link_waits_for_its_peer() {
    let link = format!("memif:@mp-cli-mistake-{},role=server", std::process::id());
    for options in ["", "--address 10.1.0.255/24", "--address 10.1.0.1/24 --gateway 10.2.0.1"] {
        let line = format!("serve rpc --backend local --link {link} {options}");
        let started = Instant::now();
        let output = output(&line.split_whitespace().collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains("--address: ") || said.contains("--gateway: "), "{said}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}

#[test]
fn memif_server_ended_while_it_waits_removes_its_socket() {
    let path = std::env::temp_dir().join(format!("mp-cli-ended-{}.sock", std::process::id()));
    let link = format!("memif:{},role=server", path.display());
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)] {
        // What starts this test may ignore SIGINT, as a shell does for its background jobs.
        let mut command = Command::new("env");
        command.args(["--default-signal=TERM,INT,HUP", env!("CARGO_BIN_EXE_megapipe")]);
        command.args(["serve", "rpc", "--backend", "local", "--address", "10.0.0.1/24", "--link"]);
        let mut child = command.arg(&link).stderr(Stdio::null()).spawn().expect("env runs");
        until("the socket", || path.exists());
        // Bound, and soon waiting.
        std::thread::sleep(Duration::from_millis(100));
        kill_process(Pid::from_child(&child), signal).expect("signalling");
        let status = child.wait().expect("an end");
        assert_eq!(status.signal(), Some(number), "{status}");
        assert!(!path.exists(), "{signal:?} left {}", path.display());
    }
}

#[test]
fn memif_client_that_waits_ends_by_a_signal() {
    let link = format!("memif:@mp-cli-alone-{},wait=300", std::process::id());
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = Command::new("env");
        command.args(["--default-signal=TERM,INT", env!("CARGO_BIN_EXE_megapipe")]);
        command.args(["load", "rpc", "10.0.0.1:7", "--backend", "local", "--link", &link]);
        command.args(["--address", "10.0.0.2/24"]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("env runs");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let first = said.next().expect("a line").expect("text");
        assert!(first.contains("waiting for the server"), "{first}");
        kill_process(Pid::from_child(&child), signal).expect("signalling");
        let mut status = None;
        until("the end", || {
            status = child.try_wait().expect("it is a child");
            status.is_some()
        });
        assert!(!status.expect("it has ended").success(), "{signal:?}");
    }
}

/// A command line of megapipe's under limits of the shell.
fn limited(limits: &str, args: &str) -> Command {
    let line = format!("{limits}; ulimit -c 0; exec {} {args}", env!("CARGO_BIN_EXE_megapipe"));
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn too_many_channels_are_refused_before_memory_is_allocated() {
    for count in ["0", "257", "4294967296", "18446744073709551615"] {
        for server in [&["serve", "kv"][..], &["serve", "rpc"], &["info"]] {
            let output = output(&[server, &["--channels", count]].concat());
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{server:?} {count}: {said}");
            assert!(said.contains("--channels") && said.contains("1..=256"), "{said}");
        }
    }
    let cpus = output(&["serve", "kv", "--cpus", "0-1023"]);
    assert!(String::from_utf8_lossy(&cpus.stderr).contains("1 to 256 channels"), "{cpus:?}");
}

/// Whatever the limit of the address space, a server starts or names what is missing.
/// Least address space that the program starts in, in KiB: it is mapped whole, some 24,000 in a
/// debug build.
fn least_kib() -> u64 {
    let mut limits = (10..200).map(|thousands| thousands * 1_000);
    let starts_with =
        |kib: &u64| limited(&format!("ulimit -v {kib}"), "--version").status().unwrap().success();
    limits.find(starts_with).expect("the program starts with 200 MB")
}

#[test]
fn too_little_memory_is_an_error_and_no_abort() {
    let mut refused = 0;
    let least_kib = least_kib();
    let limits = [0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 160];
    for kib in limits.map(|thousands| least_kib + thousands * 1_000) {
        for args in [
            "info",
            "load http 127.0.0.1:1 --files yahoo@60000 -d 0.1 --warmup 0 -q -c 2",
            "load kv 127.0.0.1:1 -d 0.1 --warmup 0 -q --threads 8",
            "serve http --root . --listen 127.0.0.1:0",
            "script /dev/null",
            "serve kv --listen 127.0.0.1:0 --channels 8",
            "info --channels 8",
            "serve rpc --listen 127.0.0.1:0 --driver epoll",
            "serve rpc --backend local --link pair --address 10.0.0.1/24 --listen 10.0.0.1:1",
            "load rpc 127.0.0.1:1 --connections 500000 -d 0.1 --warmup 0 -q",
            "bench server epoll-reuseport --threads 8 --listen 127.0.0.1:0",
            "bench accept-server 127.0.0.1:0 --cpus 0 --driver epoll",
        ] {
            let mut child = limited(&format!("ulimit -v {kib}"), args).spawn().expect("a shell");
            let mut ready = String::new();
            let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
            stdout.read_line(&mut ready).expect("a line");
            if ready.starts_with("listening on ") {
                drop(Beside(child));
                continue;
            }
            let output = child.wait_with_output().expect("an end");
            let said = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(matches!(code, Some(0..=3)), "{args} in {kib} KiB: {code:?}: {said}");
            refused += usize::from(code == Some(1) && said.starts_with("megapipe: "));
        }
    }
    assert!(refused > 0, "no limit was too small");
}

/// A short run is enough: its threads and processes are started first.
#[test]
fn demo_under_small_limits_does_not_abort() {
    let bench = std::env::temp_dir().join(format!("megapipe-demo-{}", std::process::id()));
    let args = format!("demo --link loopback --report {}", bench.display());
    let least_kib = least_kib();
    for kib in [0, 8, 24, 64, 160].map(|thousands| least_kib + thousands * 1_000) {
        let limits = format!("ulimit -v {kib}; ulimit -c 0");
        let line =
            format!("{limits}; exec timeout -s INT 1 {} {args}", env!("CARGO_BIN_EXE_megapipe"));
        let output = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output();
        let output = output.expect("a shell");
        let said = String::from_utf8_lossy(&output.stderr);
        // 124: it ran until the end of its time.
        assert!(matches!(output.status.code(), Some(0..=3 | 124)), "{kib} KiB: {output:?}");
        assert!(!said.contains("panicked") && !said.contains("memory allocation"), "{kib}: {said}");
    }
    let _ = std::fs::remove_file(bench);
}

#[test]
fn files_are_served_at_the_limit_of_descriptors() {
    let root = std::env::temp_dir().join(format!("megapipe-descriptors-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a folder");
    for index in 0..100 {
        let len = if index % 2 == 0 { 10 } else { 300_000 };
        std::fs::write(root.join(format!("f{index}")), vec![b'x'; len]).expect("a file");
    }
    for driver in ["epoll", "auto"] {
        let args =
            format!("serve http --root {} --listen 127.0.0.1:0 --driver {driver}", root.display());
        let server = Server::from(limited("ulimit -n 80", &args));
        // More than can be open at once: the others wait until a connection is closed.
        let ask = |index: usize| {
            let mut client = TcpStream::connect(server.address()).expect("connecting");
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
            let request = format!("GET /f{index} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.write_all(request.as_bytes()).expect("sending");
            client
        };
        let clients: Vec<TcpStream> = (0..100).map(ask).collect();
        for (index, mut client) in clients.into_iter().enumerate() {
            let mut status = [0; 12];
            client.read_exact(&mut status).expect("an answer");
            let status = String::from_utf8_lossy(&status).into_owned();
            assert_eq!(status, "HTTP/1.1 200", "/f{index} with {driver}");
        }
    }
    std::fs::remove_dir_all(root).expect("tidying up");
}

#[test]
fn help_has_groups_and_the_ready_line_is_one_row() {
    for (args, groups) in [
        (&["serve", "http", "--help"][..], &["Back end:", "Channels:", "Limits:", "Files:"][..]),
        (&["serve", "kv", "--help"], &["Back end:", "Channels:", "Limits:", "Output:"]),
        (&["load", "rpc", "--help"], &["Back end:", "Channels:", "Connections:", "Output:"]),
    ] {
        let text = stdout(args);
        for group in groups {
            assert!(text.lines().any(|line| line == *group), "{args:?}: {group}: {text}");
        }
    }
    let server = Server::start(&["serve", "rpc", "--listen", "localhost:0", "--verbose"]);
    assert!(server.ready.starts_with("listening on 127.0.0.1:"), "{}", server.ready);
    assert!(server.ready.contains(", back end kernel, driver "), "{}", server.ready);
    assert!(server.ready.len() <= 80, "{}", server.ready);
    server.signal(Signal::TERM);
    let (success, _, said) = server.end();
    assert!(success && said.contains("driver ") && said.contains(": "), "{said}");
}

#[track_caller]
fn assert_fits_a_terminal(args: &[&str], text: &str) {
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(!text.is_empty() && long.is_empty(), "{args:?}: {long:#?}");
}

#[test]
fn help_and_tables_fit_80_columns() {
    let server = Server::start(&["serve", "rpc", "--listen", "127.0.0.1:0", "--channels", "2"]);
    let rate = ["--rate", "1e6", "-c", "2", "-d", "0.3", "--warmup", "0"];
    let total = ["--total", "10", "--threads", "2", "--cpus", "0"];
    let load = ["load", "rpc", server.address()];
    for args in [
        &["--help"][..],
        &["-h"],
        &["serve", "rpc", "--help"],
        &["serve", "http", "--help"],
        &["serve", "kv", "--help"],
        &["load", "rpc", "--help"],
        &["load", "http", "-h"],
        &["load", "kv", "--help"],
        &["bench", "--help"],
        &["bench", "rpc", "--help"],
        &["bench", "bars", "--help"],
        &["demo", "--help"],
        &["script", "--help"],
        &["info", "--help"],
        &["info"],
        &["info", "--channels", "4"],
        &[&load[..], &rate].concat(),
        &[&load[..], &total].concat(),
    ] {
        let output = megapipe(args).env("COLUMNS", "80").output().expect("megapipe runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_fits_a_terminal(args, &String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn failed_run_leaves_no_empty_result_file() {
    let folder = std::env::temp_dir().join(format!("megapipe-no-result-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (new, old) = (folder.join("new.json"), folder.join("old.json"));
    std::fs::write(&old, "old").expect("a file");
    let args = |path| ["--json", path, "--cpus", "999", "--quiet"];
    for command in [&["load", "rpc", "127.0.0.1:1"][..], &["load", "kv", "127.0.0.1:1"]] {
        for path in [&new, &old] {
            let path = path.to_str().expect("UTF-8");
            let output = output(&[command, &args(path)].concat());
            assert_eq!(output.status.code(), Some(2), "{output:?}");
        }
    }
    assert!(!new.exists(), "an empty file is left");
    assert_eq!(std::fs::read_to_string(&old).expect("the file"), "old");
    std::fs::remove_dir_all(folder).expect("tidying up");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = megapipe(&["info"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().expect("megapipe runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("waiting").success());
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
    assert_eq!(said, "");
}

#[test]
fn a_second_server_at_the_same_address_is_refused() {
    let server = Server::start(&["serve", "rpc", "--listen", "127.0.0.1:0"]);
    for channels in ["1", "2"] {
        let output =
            output(&["serve", "rpc", "--listen", server.address(), "--channels", channels]);
        let said = String::from_utf8_lossy(&output.stderr);
        let named = format!("cannot listen on {}: Address already in use", server.address());
        assert!(output.status.code() == Some(1) && said.contains(&named), "{said}");
    }
}

#[test]
fn servers_started_at_once_have_one_winner() {
    for round in 0..8 {
        // Bound and not listening, it keeps the port from other programs.
        let flags = SocketFlags::CLOEXEC;
        let kept = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let kept = kept.expect("a socket");
        sockopt::set_socket_reuseaddr(&kept, true).expect("an option of all sockets");
        bind(&kept, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let kept = std::net::TcpListener::from(kept);
        let address = kept.local_addr().expect("an address").to_string();
        let channels = if round % 2 == 0 { "1" } else { "2" };
        let start = || {
            let mut command =
                megapipe(&["serve", "rpc", "--listen", &address, "--channels", channels]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("megapipe runs")
        };
        // Both run before either result is checked.
        let mut started = [start(), start()];
        let ready = started.each_mut().map(|child| {
            let mut line = String::new();
            let stdout = child.stdout.as_mut().expect("a pipe");
            BufReader::new(stdout).read_line(&mut line).expect("a line, or the end");
            line.starts_with("listening on ")
        });
        for child in started {
            drop(Beside(child));
        }
        assert_eq!(ready.iter().filter(|it| **it).count(), 1, "round {round}: {ready:?}");
    }
}

#[test]
fn a_server_and_its_load_meet() {
    let server = Server::start(&["serve", "rpc", "--listen", "127.0.0.1:0", "--channels", "2"]);
    assert!(server.ready.contains(", driver ") && server.ready.ends_with(", 2 channels\n"));
    let json = stdout(&[
        "load",
        "rpc",
        server.address(),
        "--connections",
        "16",
        "--transactions",
        "8",
        "--duration",
        "0.5",
        "--warmup",
        "0.1",
        "--threads",
        "2",
        "--quiet",
        "--json",
        "-",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON and nothing else");
    assert!(json["transactions"].as_u64() > Some(0), "{json}");
    assert_eq!(json["transactions_per_connection"], "8");
    let table = stdout(&["load", "rpc", server.address(), "--total", "100", "-c", "4"]);
    assert!(table.contains("transactions") && table.contains("p99.9"), "{table}");
    server.signal(Signal::TERM);
    let (success, _, said) = server.end();
    assert!(success, "{said}");
}

/// Tries until it is so, as long as anything may take.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process has a handler for a signal by now; before, the signal would be its end.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
    let caught = u64::from_str_radix(caught.expect("a set of signals"), 16).expect("a number");
    caught & 1 << (signal.as_raw() - 1) != 0
}

/// Bytes that the server has not read of what this connection sent, as the kernel lists them:
/// local address, remote address, state, and what is queued to be sent and to be read.
fn unread_of(client: &TcpStream) -> u64 {
    let port = |address: std::io::Result<SocketAddr>| address.expect("an address").port();
    let ends = [port(client.peer_addr()), port(client.local_addr())];
    let ends = ends.map(|port| format!("0100007F:{port:04X}"));
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("a list");
    let server = sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[1..3] == ends).then(|| fields[4].split_once(':').expect("two numbers").1.to_owned())
    });
    u64::from_str_radix(&server.expect("the server's end"), 16).expect("a number")
}

#[test]
fn a_load_that_is_interrupted_sums_up_what_it_has() {
    let server = Server::start(&["serve", "rpc", "--listen", "127.0.0.1:0"]);
    let mut command = megapipe(&["load", "rpc", server.address(), "-c", "4", "-d", "60"]);
    command.args(["--warmup", "0"]).stdout(Stdio::piped());
    let mut load = command.spawn().expect("megapipe runs");
    until("a handler", || catches(load.id(), Signal::INT));
    std::thread::sleep(Duration::from_millis(600));
    let pid = Pid::from_raw(load.id().cast_signed()).expect("a process");
    kill_process(pid, Signal::INT).expect("signalling");
    let mut table = String::new();
    load.stdout.take().expect("a pipe").read_to_string(&mut table).expect("UTF-8");
    assert!(load.wait().expect("waiting").success());
    assert!(table.contains("latency (µs)"), "{table}");
}

#[test]
fn the_first_signal_drains_and_the_second_ends() {
    let args = ["serve", "rpc", "--listen", "127.0.0.1:0", "--drain", "60"];
    let server = Server::start(&args);
    let mut stubborn = TcpStream::connect(server.address()).expect("connecting");
    // Half a request: the server waits for the rest while it drains.
    stubborn.write_all(&[1; 32]).expect("sending");
    until("half a request is read", || unread_of(&stubborn) == 0);
    std::thread::sleep(Duration::from_millis(300));
    server.signal(Signal::INT);
    until("no socket listens", || TcpStream::connect(server.address()).is_err());
    stubborn.write_all(&[1; 32]).expect("sending");
    let mut echo = [0; 64];
    stubborn.read_exact(&mut echo).expect("what was owed");
    assert_eq!(echo, [1; 64]);
    server.signal(Signal::INT);
    let began = Instant::now();
    let (success, _, said) = server.end();
    assert!(success && began.elapsed() < Duration::from_secs(30), "{said}");
}

#[test]
fn counters_are_shown_and_readiness_is_written_where_asked() {
    let path = std::env::temp_dir().join(format!("megapipe-ready-{}", std::process::id()));
    let line = format!(
        "exec {} serve rpc --listen 127.0.0.1:0 --stats 1 --ready-fd 7 7>{}",
        env!("CARGO_BIN_EXE_megapipe"),
        path.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a shell");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let stderr = child.stderr.take().expect("a pipe");
    let mut ready = String::new();
    stdout.read_line(&mut ready).expect("a line");
    let mut server = Server { child, stdout, stderr, ready };
    let mut stream = TcpStream::connect(server.address()).expect("connecting");
    for _ in 0..5 {
        stream.write_all(&[1; 64]).expect("sending");
        stream.read_exact(&mut [0; 64]).expect("an echo");
    }
    // One line per second; the first of these reports all of that.
    let mut shown = String::new();
    let tells = |line: &str| {
        let numbers: Vec<&str> = line.split_whitespace().collect();
        numbers.len() > 6 && (numbers[0], numbers[1], numbers[6]) == ("all", "1", "5")
    };
    while !shown.lines().any(tells) {
        assert!(shown.lines().count() < 20, "{shown}");
        let mut more = [0; 4_096];
        let len = server.stderr.read(&mut more).expect("a pipe");
        assert!(len > 0, "{shown}");
        shown += std::str::from_utf8(&more[..len]).expect("UTF-8");
    }
    assert!(shown.lines().next().is_some_and(|line| line.contains("requests/s")), "{shown}");
    assert_eq!(std::fs::read(&path).expect("the file"), b"\n");
    drop(stream);
    server.signal(Signal::TERM);
    let (success, _, said) = server.end();
    std::fs::remove_file(path).expect("tidying up");
    assert!(success, "{said}");
}
