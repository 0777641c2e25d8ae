//! mTCP's API in C: its own test program, and the web server and the fetcher of the examples, on
//! Linux's TCP and on our own stack.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use capi_prefix::{C11, compile, is_installed, prefix, run, sources};
use megapipe_tests::ReservedPort;

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mp-mtcp-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("www")).expect("a directory");
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Foreign files in it do not fail the test.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The server of the examples, until it is dropped.
struct WebServer(Child);

impl WebServer {
    /// Starts it and waits until each core serves.
    fn start(program: &Path, conf: &Path, root: &Path, port: u16, cores: usize) -> Self {
        let mut server = Self::launch(program, conf, root, port);
        server.wait_for(cores);
        server
    }

    fn launch(program: &Path, conf: &Path, root: &Path, port: u16) -> Self {
        let mut command = Command::new(program);
        command.arg(conf).arg(root).arg(port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the server starts"))
    }

    fn wait_for(&mut self, cores: usize) {
        let lines = BufReader::new(self.0.stdout.as_mut().expect("its output"));
        let ready = lines.lines().take(cores).map_while(Result::ok);
        assert_eq!(ready.filter(|line| line.ends_with("serves")).count(), cores);
    }

    /// SIGINT, and the exit status with what was said on standard error.
    fn stop(mut self) -> Option<(i32, String)> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().expect("its end") {
                let mut said = String::new();
                let stderr = self.0.stderr.as_mut().expect("its output");
                stderr.read_to_string(&mut said).expect("text");
                return status.code().map(|code| (code, said));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program of the examples. It is compiled once: a file that another test runs is busy.
fn example(prefix: &Path, name: &'static str) -> PathBuf {
    static PROGRAMS: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = || compile(prefix, &sources().join(format!("examples/{name}.c")), name, C11);
    programs.entry(name).or_insert_with(compiled).clone()
}

/// What the context of a core told when it ended.
fn counters(text: &str, core: usize) -> BTreeMap<String, u64> {
    let start = format!("megapipe: context of core {core}, ");
    let line = text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| {
        panic!("nothing of core {core}: {text}");
    });
    let (_, list) = line.rsplit_once(": ").expect("a list");
    let counter = |part: &str| {
        let (name, count) = part.rsplit_once(' ').expect("a name and a count");
        (name.to_owned(), count.parse().expect("a count"))
    };
    list.split(", ").map(counter).collect()
}

/// Bytes that are not all alike.
fn page(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
}

#[test]
fn calls_do_what_mtcps_do() {
    let Some(prefix) = prefix("calls_do_what_mtcps_do") else { return };
    let scratch = Scratch::new("calls");
    let program = compile(prefix, &sources().join("tests/mtcp.c"), "mtcp", C11);
    let (status, text) = run(Command::new(&program).arg(&scratch.0));
    assert!(status.success(), "{status}\n{text}");
    assert!(text.contains("num_mem_ch has no effect"), "warnings are printed: {text}");
    assert!(!text.contains("context of core"), "counters were not requested: {text}");
    let (status, text) = run(Command::new(&program).arg(&scratch.0).env("MEGAPIPE_STATS", "1"));
    assert!(status.success(), "{status}\n{text}");
    for core in [1, 2] {
        let told = format!("context of core {core}, TCP by Linux: operations ");
        assert!(text.contains(&told), "{text}");
    }
    assert!(counters(&text, 1)["accepted"] > 0, "{text}");
}

#[test]
fn calls_used_wrongly_answer_as_linuxs_do() {
    let Some(prefix) = prefix("calls_used_wrongly_answer_as_linuxs_do") else { return };
    let scratch = Scratch::new("misuse");
    let program = compile(prefix, &sources().join("tests/mtcp_misuse.c"), "mtcp-misuse", C11);
    // As an editor on another system leaves it, with a comment that is not UTF-8.
    let text = b"io = kernel\r\n# gr\xfc\xdfe\r\nnum_cores = 1\r\nmax_concurrency=1000\r\n";
    let conf = scratch.write("crlf.conf", text);
    let (status, text) = run(Command::new(&program).arg(&conf).arg("127.0.0.1"));
    assert!(status.success(), "{status}\n{text}");
}

/// The commands that `mtcp(7)` prints in its example, with lines that go on joined.
fn commands_of_the_manual() -> Vec<String> {
    let page = fs::read_to_string(sources().join("man/mtcp.7")).expect("the page");
    let example = page.split(".EX\n").nth(1).expect("an example");
    let text = example.split("\n.EE").next().expect("its end");
    let text = text.replace("\\fB", "").replace("\\fP", "").replace("\\-", "-");
    let text = text.replace("\\e\n", " ");
    text.lines().filter_map(|line| Some(line.strip_prefix("$ ")?.to_owned())).collect()
}

#[test]
fn manual_example_builds_a_tree_like_mtcps() {
    let test = "manual_example_builds_a_tree_like_mtcps";
    let Some(prefix) = prefix(test) else { return };
    if !is_installed("pkg-config") {
        println!("skipped: {test}: pkg-config is not installed");
        return;
    }
    let scratch = Scratch::new("tree");
    for folder in ["util/include", "apps/example"] {
        fs::create_dir_all(scratch.0.join(folder)).expect("a directory");
    }
    // As in mTCP, a header that several files include defines a variable.
    scratch.write("util/include/netlib.h", b"struct Options { int count; } Options;\n");
    let uses = "#include \"netlib.h\"\n#include \"eventpoll.h\"\n";
    for (file, body) in [
        ("util/http_parsing.c", "int parse(void) { return Options.count; }\n"),
        ("util/tdate_parse.c", "int date(void) { return Options.count; }\n"),
        ("util/netlib.c", "int options(void) { return Options.count; }\n"),
        ("util/cpu.c", "#include <mtcp_api.h>\nint cpus(void) { return INPORT_ANY; }\n"),
        (
            "apps/example/epserver.c",
            "#include <mtcp_epoll.h>\nint main(void)\n{\n    struct mtcp_epoll_event event = \
             {.events = MTCP_EPOLLIN};\n    return mtcp_epoll_wait(NULL, 1, &event, 1, 0) + 1;\n\
             }\n",
        ),
    ] {
        scratch.write(file, format!("{uses}{body}").as_bytes());
    }
    let compiles = commands_of_the_manual().into_iter().find(|command| command.starts_with("cc "));
    let compiles = compiles.expect("a command that compiles");
    // mTCP's tree wants libnuma; this one does not.
    let compiles = compiles.replace(" -lnuma", "");
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &format!("{compiles} -Wl,-rpath,{}/lib", prefix.display())]);
    shell.current_dir(scratch.0.join("util"));
    let (status, text) = run(shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
    assert!(status.success(), "{compiles}: {status}\n{text}");
    let (status, text) = run(&mut Command::new(scratch.0.join("util/epserver")));
    assert!(status.success(), "{status}\n{text}");
}

#[test]
fn headers_define_no_variables() {
    let Some(prefix) = prefix("headers_define_no_variables") else { return };
    let scratch = Scratch::new("headers");
    let includes = "#include <eventpoll.h>\n#include <mtcp_api.h>\n#include <mtcp_epoll.h>\n\
                    #include <megapipe.h>\n#include <megapipe_sockets.h>\n";
    let other = scratch.write(
        "other.c",
        format!(
            "{includes}int other(void);\n\
                                                  int other(void) {{ return 0; }}\n"
        )
        .as_bytes(),
    );
    let main = format!("{includes}int other(void);\nint main(void) {{ return other(); }}\n");
    let main = scratch.write("main.c", main.as_bytes());
    let other = other.to_string_lossy();
    let program = compile(prefix, &main, "headers", &["-std=gnu11", "-fno-common", &other]);
    assert!(run(&mut Command::new(program)).0.success());
}

#[test]
fn contexts_listen_at_one_port_and_closed_numbers_rest_as_in_mtcp() {
    let test = "contexts_listen_at_one_port_and_closed_numbers_rest_as_in_mtcp";
    let Some(prefix) = prefix(test) else { return };
    let scratch = Scratch::new("cores");
    let program = compile(prefix, &sources().join("tests/mtcp_cores.c"), "mtcp-cores", C11);
    let conf = scratch.write("cores.conf", b"io = kernel\nnum_cores = 3\nmax_concurrency = 200\n");
    let reserved = ReservedPort::new();
    let mut command = Command::new(&program);
    let (status, text) = run(command.arg(&conf).arg(reserved.port().to_string()));
    assert!(status.success(), "{status}\n{text}");
}

#[test]
fn a_configuration_file_that_never_ends_is_refused() {
    let Some(prefix) = prefix("a_configuration_file_that_never_ends_is_refused") else { return };
    let program = example(prefix, "mtcp_web_server");
    let scratch = Scratch::new("endless");
    let long = [b"io = kernel\n".as_slice(), &vec![b'#'; 2 << 20]].concat();
    for conf in [scratch.write("long.conf", &long), PathBuf::from("/dev/zero"), scratch.0.clone()] {
        let mut command = Command::new(&program);
        let (status, text) = run(command.arg(&conf).arg(&scratch.0).arg("80"));
        let named = text.contains("mtcp_init: ") && text.contains(&*conf.to_string_lossy());
        assert!(!status.success() && named, "{status}\n{text}");
    }
}

#[test]
fn curl_gets_pages_from_the_web_server_on_each_of_its_cores() {
    let test = "curl_gets_pages_from_the_web_server_on_each_of_its_cores";
    let Some(prefix) = prefix(test) else { return };
    if !is_installed("curl") {
        println!("skipped: {test}: curl is not installed");
        return;
    }
    let scratch = Scratch::new("curl");
    let pages = [("small", page(64)), ("large", page(3_000_000)), ("empty", Vec::new())];
    for (name, bytes) in &pages {
        scratch.write(&format!("www/{name}"), bytes);
    }
    let conf = scratch.write("server.conf", b"io = kernel\nnum_cores = 2\n");
    let (program, reserved) = (example(prefix, "mtcp_web_server"), ReservedPort::new());
    let port = reserved.port();
    let server = WebServer::start(&program, &conf, &scratch.0.join("www"), port, 2);
    let curl = |args: &[&str]| {
        let output = Command::new("curl").args(["-s", "--max-time", "20"]).args(args).output();
        output.expect("curl runs").stdout
    };
    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    for _ in 0..20 {
        for (name, bytes) in &pages {
            assert!(curl(&[&url(name)]) == *bytes, "{name}");
        }
    }
    // Two on one connection, and what is not there.
    let both = curl(&[&url("small"), &url("small")]);
    assert_eq!(both, [page(64), page(64)].concat());
    let missing = curl(&["-o", "/dev/null", "-w", "%{http_code}", &url("missing")]);
    assert_eq!(missing, b"404");
    let head = curl(&["-I", &url("large")]);
    assert!(String::from_utf8_lossy(&head).contains("Content-Length: 3000000"));
    let (code, said) = server.stop().expect("it ends");
    assert_eq!(code, 0, "{said}");
}

#[test]
fn the_fetcher_gets_every_page_from_the_web_server_over_our_own_stack() {
    let test = "the_fetcher_gets_every_page_from_the_web_server_over_our_own_stack";
    let Some(prefix) = prefix(test) else { return };
    let server_program = example(prefix, "mtcp_web_server");
    let fetcher = example(prefix, "mtcp_web_fetcher");
    for (cores, placement, len, requests) in [
        (1, "inline", 64, 2_000),
        (1, "inline", 200_000, 100),
        (2, "inline", 1_000, 1_000),
        (1, "thread", 64, 2_000),
        (2, "thread", 20_000, 500),
        (1, "core", 1_000, 1_000),
    ] {
        let scratch = Scratch::new(&format!("memif-{cores}-{placement}-{len}"));
        scratch.write("www/page", &page(len));
        let socket = scratch.0.join("memif.sock");
        let conf = |role: &str, host: u8, cores: usize| {
            format!(
                "io = memif\nport = {},role={role}\naddress = 10.9.8.{host}/24\n\
                 num_cores = {cores}\nrcvbuf = 65536\nsndbuf = 65536\n\
                 placement = {placement}\nstat_print = {}\n",
                socket.display(),
                socket.display()
            )
        };
        let server_conf = scratch.write("server.conf", conf("server", 1, cores).as_bytes());
        let client_conf = scratch.write("client.conf", conf("client", 2, 1).as_bytes());
        let root = scratch.0.join("www");
        let mut server = WebServer::launch(&server_program, &server_conf, &root, 80);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !socket.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let fetch = |requests: u32, connections: &str| {
            let mut command = Command::new(&fetcher);
            command.arg(&client_conf).args(["10.9.8.1", "80", "/page"]);
            run(command.args([&requests.to_string(), connections]))
        };
        // The server has its link when the first client has come, and listens after that.
        while !fetch(1, "1").0.success() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        // It listens for the next client as soon as it has seen that this one left.
        let (mut status, mut text) = fetch(requests, "32");
        while text.contains("no server is listening") && Instant::now() < deadline {
            (status, text) = fetch(requests, "32");
        }
        let expected = format!("{requests} responses of {len} bytes");
        let what = format!("{cores} cores, {placement}, {len} bytes");
        assert!(status.success() && text.contains(&expected), "{what}: {status}\n{text}");
        server.wait_for(cores);
        let (code, said) = server.stop().expect("it ends");
        assert_eq!(code, 0, "{what}: {said}");
        let accepted: u64 = (0..cores).map(|core| counters(&said, core)["accepted"]).sum();
        assert!(accepted >= 32, "{what}: {said}");
        for core in 0..cores {
            // A stack on a thread of its own tells of events, and wakes the context's for some.
            let told = counters(&said, core);
            assert_eq!(told["server_events"] > 0, placement != "inline", "{what}: {said}");
            assert!(told["server_wakeups"] <= told["server_events"], "{what}: {said}");
            assert!(said.contains(&format!("placement {placement}: ")), "{what}: {said}");
        }
    }
}

#[test]
fn web_server_without_link_names_the_reason() {
    let test = "web_server_without_link_names_the_reason";
    let Some(prefix) = prefix(test) else { return };
    let scratch = Scratch::new("refused");
    let conf = scratch.write("server.conf", b"io = dpdk\nport = nosuch0\nnum_cores = 1\n");
    let mut command = Command::new(example(prefix, "mtcp_web_server"));
    command.arg(&conf).arg(scratch.0.join("www")).arg("80").stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().expect("the server starts");
    let mut said = String::new();
    let stderr = child.stderr.as_mut().expect("its output");
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("its end").code(), Some(1));
    assert!(said.contains("io = dpdk is not supported: xdp (AF_XDP) is used"), "{said}");
    assert!(said.contains("xdp:nosuch0"), "{said}");
}

#[test]
fn a_placement_is_refused_where_it_cannot_be() {
    let test = "a_placement_is_refused_where_it_cannot_be";
    let Some(prefix) = prefix(test) else { return };
    let program = example(prefix, "mtcp_web_server");
    let scratch = Scratch::new("placement");
    let kernel = "io = kernel\nnum_cores = 1\n";
    let stack = "io = tap\nport = nosuch0\naddress = 10.0.0.2/24\nnum_cores = 1\n";
    for (conf, variable, why) in [
        (format!("{kernel}placement = thread\n"), "", "placement: with io = kernel"),
        (format!("{stack}placement = beside\n"), "", "line 5: placement = beside"),
        (stack.to_owned(), "beside", "MEGAPIPE_PLACEMENT = beside: must be inline, thread or core"),
    ] {
        let conf = scratch.write("server.conf", conf.as_bytes());
        let mut command = Command::new(&program);
        command.arg(&conf).arg(scratch.0.join("www")).arg("80");
        let (status, text) = run(command.env("MEGAPIPE_PLACEMENT", variable));
        assert!(!status.success() && text.contains(why), "{why}: {status}\n{text}");
    }
}
