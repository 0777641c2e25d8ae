//! httplint reads our responses: it must find nothing to warn of but what is listed with a reason.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::fixture::{Server, drivers, get, get_with, target_folder};

/// What httplint says that is meant as it is: part of the note, and why.
const MEANT: &[(&str, &str)] = &[
    (
        "allows caches to assign their own freshness lifetimes",
        "how long a file stays fresh is the operator's to say (--max-age); a redirect follows suit",
    ),
    (
        "is partial, but doesn't have a Content-Range",
        "a multipart answer must not have one (RFC 9110 §15.3.7.2), which httplint does not know",
    ),
    ("The server didn't understand the request", "what 400 means"),
    ("The request HTTP version isn't supported", "what 505 means"),
    ("The server won't accept a URI this long", "what 414 means"),
];

fn httplint() -> Option<PathBuf> {
    let program = target_folder().join("tools/httplint/bin/httplint");
    program.is_file().then_some(program)
}

fn notes(program: &PathBuf, response: &[u8]) -> String {
    let mut child = Command::new(program)
        .args(["--input", "response"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(response).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{text}{errors}");
    text
}

#[test]
fn with_httplint() {
    let Some(program) = httplint() else {
        println!("skipped: with_httplint: httplint is not installed (cargo xtask setup)");
        return;
    };
    let requests = [
        get("/hello.txt"),
        get("/"),
        get("/1k.bin"),
        get("/large.bin"),
        get("/empty.txt"),
        get("/nothing"),
        get("/plain/"),
        get("/dir"),
        get("/%zz"),
        get_with("/hello.txt", "Connection: close\r\n"),
        get_with("/hello.txt", "Range: bytes=0-4\r\n"),
        get_with("/hello.txt", "Range: bytes=0-1,5-6\r\n"),
        get_with("/hello.txt", "Range: bytes=99-\r\n"),
        get_with("/hello.txt", "If-None-Match: *\r\n"),
        get_with("/hello.txt", "If-Match: \"x\"\r\n"),
        get_with("/hello.txt", "Expect: tea\r\n"),
        get("/hello.txt").replacen("GET", "POST", 1),
        get("/hello.txt").replacen("GET", "BREW", 1),
        get("*").replacen("GET", "OPTIONS", 1),
        get("/hello.txt").replacen("HTTP/1.1", "HTTP/2.0", 1),
        get("/hello.txt").replacen("HTTP/1.1", "HTTP/1.0", 1),
        get_with("/hello.txt", &format!("X: {}\r\n", "y".repeat(20_000))),
        get(&format!("/{}", "x".repeat(9_000))),
    ];
    for driver in drivers("with_httplint").into_iter().take(1) {
        let mut unmeant = Vec::new();
        for max_age in [None, Some(60)] {
            let server = Server::start(driver, |args| args.max_age = max_age);
            // What a maximum age changes, it changes in answers of files alone.
            let count = if max_age.is_some() { 2 } else { requests.len() };
            for request in &requests[..count] {
                let start = &request[..request.len().min(60)];
                let response = server.ask(request.as_bytes());
                let bytes = [response.head.as_bytes(), &response.body].concat();
                let text = notes(&program, &bytes);
                if max_age.is_some() && response.status == 200 {
                    assert!(!text.contains("assign their own"), "{start:?}: {text}");
                }
                let warnings: Vec<&str> = text
                    .lines()
                    .filter(|line| line.contains("[WARN]") || line.contains("[BAD]"))
                    .filter(|line| !MEANT.iter().any(|(note, _)| line.contains(note)))
                    .collect();
                if !warnings.is_empty() {
                    unmeant.push(format!("{start:?}: {warnings:#?}\n{}", response.head));
                }
            }
        }
        assert!(unmeant.is_empty(), "{}", unmeant.join("\n"));
    }
}
