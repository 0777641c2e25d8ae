//! What `cargo xtask install` puts below a prefix: a C and a C++ program find it by pkg-config, the
//! symbols have versions, nothing but the calls is visible, and the paper's server runs.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use capi_prefix::{
    C11, Ended, compile, is_installed, pkg_config_words, prefix, run, sources, text_of,
};
use rustix::process::{Pid, Signal};

/// The calls that the header declares.
fn calls_in_headers() -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for header in ["megapipe.h", "megapipe_sockets.h", "mtcp_api.h", "mtcp_epoll.h"] {
        let header = fs::read_to_string(sources().join("include").join(header)).unwrap();
        let is_comment = |line: &&str| line.starts_with("//") || line.starts_with(['*', '/']);
        let lines = header.lines().map(str::trim_start).filter(|line| !is_comment(line));
        let names = lines.filter_map(|line| {
            let before = line.split_once('(')?.0;
            let name = before.rsplit([' ', '*']).next()?;
            let is_ours =
                ["mp_", "mps_", "mtcp_", "EventToString"].iter().any(|it| name.starts_with(it));
            is_ours.then(|| name.to_owned())
        });
        calls.extend(names);
    }
    calls
}

#[test]
fn records_are_laid_out_alike_in_c_and_in_cxx() {
    let Some(prefix) = prefix("records_are_laid_out_alike_in_c_and_in_cxx") else { return };
    let source = sources().join("tests/layout.c");
    let strict = compile(prefix, &source, "layout-c11", &["-std=c11"]);
    assert!(run(&mut Command::new(strict)).0.success());
    // gcc compiles C++ by the compiler that g++ brings.
    if is_installed("g++") {
        let cxx = compile(prefix, &source, "layout-cxx", &["-xc++", "-std=c++11"]);
        assert!(run(&mut Command::new(cxx)).0.success());
    }
}

#[test]
fn every_symbol_has_a_version_and_no_other_is_visible() {
    let test = "every_symbol_has_a_version_and_no_other_is_visible";
    let Some(prefix) = prefix(test) else { return };
    if !is_installed("nm") {
        println!("skipped: {test}: nm is not installed");
        return;
    }
    let library = prefix.join("lib/libmegapipe.so");
    let arguments = ["--dynamic", "--defined-only", "--with-symbol-versions"];
    let output = Command::new("nm").args(arguments).arg(&library).output().unwrap();
    let text = text_of(&output);
    let symbols = text.lines().filter_map(|line| line.split_whitespace().last());
    let symbols: BTreeSet<String> =
        symbols.filter(|&name| name != "MEGAPIPE_0.1").map(str::to_owned).collect();
    let expected = calls_in_headers().into_iter().map(|call| format!("{call}@@MEGAPIPE_0.1"));
    assert_eq!(symbols, expected.collect());
}

#[test]
fn the_shared_library_is_known_by_its_abi() {
    let Some(prefix) = prefix("the_shared_library_is_known_by_its_abi") else { return };
    let lib = prefix.join("lib");
    let link = |name: &str| fs::read_link(lib.join(name)).unwrap();
    assert_eq!(link("libmegapipe.so"), Path::new("libmegapipe.so.0"));
    let version = pkg_config_version(prefix);
    assert_eq!(link("libmegapipe.so.0"), Path::new(&format!("libmegapipe.so.{version}")));
    let program = compile(prefix, &sources().join("tests/layout.c"), "layout-soname", C11);
    let bytes = fs::read(program).unwrap();
    let needed = b"\0libmegapipe.so.0\0";
    assert!(bytes.windows(needed.len()).any(|window| window == needed));
}

/// The version in the pkg-config file, read as text: pkg-config may be missing.
fn pkg_config_version(prefix: &Path) -> String {
    let text = fs::read_to_string(prefix.join("lib/pkgconfig/megapipe.pc")).unwrap();
    assert!(!text.contains('@'), "all places of the template are filled");
    let line = text.lines().find_map(|line| line.strip_prefix("Version: ")).unwrap();
    line.to_owned()
}

#[test]
fn a_static_program_needs_no_shared_library() {
    let test = "a_static_program_needs_no_shared_library";
    let Some(prefix) = prefix(test) else { return };
    if !is_installed("pkg-config") {
        println!("skipped: {test}: pkg-config is not installed");
        return;
    }
    let source = sources().join("tests/messages.c");
    let archive = prefix.join("lib/libmegapipe.a");
    let words = pkg_config_words(prefix, &["--static", "--libs-only-l", "--cflags"]);
    // The unwinder is in libgcc_s, which some linkers do not add by themselves.
    assert!(words.iter().any(|word| word == "-lgcc_s"), "{words:?}");
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|&word| word != "-lmegapipe").collect();
    let program = prefix.join("tests/messages-static");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-pthread"]).arg(&source).arg("-o").arg(&program);
    let output = gcc.arg(&archive).args(words).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(!fs::read(&program).unwrap().windows(16).any(|part| part == b"libmegapipe.so.0"));
    // The same program, the same library, on whichever driver works.
    let works = ["uring", "epoll"].iter().any(|driver| {
        let (status, _) = run(Command::new(&program).arg(driver));
        assert!(status.success() || status.code() == Some(77), "{status}");
        status.success()
    });
    assert!(works);
}

/// The server of the paper's listing, on a port of its own.
fn start_pingpong(prefix: &Path, name: &str) -> (Ended, String) {
    let source = prefix.join("share/doc/megapipe/examples/pingpong.c");
    let program = compile(prefix, &source, name, &["-std=c11"]);
    let mut child = Command::new(program).arg("0").stdout(Stdio::piped()).spawn().unwrap();
    let port = port_of(&mut child);
    (Ended(child), port)
}

fn port_of(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim().rsplit(':').next().unwrap().to_owned()
}

#[test]
fn papers_server_answers_and_stops() {
    let test = "papers_server_answers_and_stops";
    let Some(prefix) = prefix(test) else { return };
    let (mut server, port) = start_pingpong(prefix, "pingpong");
    let client = compile(prefix, &sources().join("tests/client.c"), "client", C11);
    let (status, text) = run(Command::new(client).args([&port, "200", "20"]));
    assert!(status.success(), "{text}");
    let pid = Pid::from_raw(server.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn the_papers_listing_stands_in_the_example_in_its_order() {
    let example = fs::read_to_string(sources().join("examples/pingpong.c")).unwrap();
    let listing = [
        "ch = mp_create()",
        "handle = mp_register(ch, listen_sd, mask=0x01)",
        "mp_accept(handle)",
        "while true:",
        "ev = mp_dispatch(ch)",
        "conn = ev.cookie",
        "if ev.cmd == ACCEPT:",
        "mp_accept(conn.handle)",
        "conn = new Connection()",
        "conn.handle = mp_register(ch, ev.fd, cookie=conn)",
        "mp_read(conn.handle, conn.buf, READSIZE)",
        "elif ev.cmd == READ:",
        "mp_write(conn.handle, conn.buf, ev.size)",
        "elif ev.cmd == WRITE:",
        "mp_read(conn.handle, conn.buf, READSIZE)",
        "elif ev.cmd == DISCONNECT:",
        "mp_unregister(ch, conn.handle)",
        "delete conn",
    ];
    let mut rest = example.as_str();
    for line in listing {
        let quoted = format!("/* \"{line}\"");
        let Some((_, after)) = rest.split_once(&quoted) else { panic!("{line} is not next") };
        rest = after;
    }
}

#[test]
fn the_manuals_pages_are_installed_in_their_sections() {
    let Some(prefix) = prefix("the_manuals_pages_are_installed_in_their_sections") else { return };
    let man = prefix.join("share/man");
    assert!(man.join("man7/megapipe.7").is_file());
    assert!(man.join("man7/mtcp.7").is_file());
    for call in calls_in_headers().iter().filter(|call| call.starts_with("mp_")) {
        assert!(man.join(format!("man3/{call}.3")).is_file(), "{call}");
    }
}
