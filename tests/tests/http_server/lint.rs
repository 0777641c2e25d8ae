//! httplint reads our responses: it must find nothing to warn of but what is listed with a reason.

use std::process::Command;

use super::fixture::{Folder, Response, Server, drivers, get, get_with, target_folder};

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

/// httplint takes one response per run and half a second to start; this reads many in one run.
const LINT_FILES: &str = "
import sys
from argparse import Namespace
from httplint.cli.http_parser import HttpCliParser, modes
from httplint.i18n import set_locale
for name in sys.argv[1:]:
    print('=== ' + name)
    with set_locale(None):
        parser = HttpCliParser(Namespace(mode=modes.RESPONSE))
        parser.handle_input(open(name, 'rb').read())
    print('[BAD] no response' if parser.failed else '=== read')
";

/// The notes of httplint on each of `responses`.
fn notes(folder: &Folder, responses: &[Response]) -> Vec<String> {
    let mut python = Command::new(target_folder().join("tools/httplint/bin/python"));
    python.args(["-c", LINT_FILES]);
    for (index, response) in responses.iter().enumerate() {
        let file = folder.0.join(format!("response-{index}"));
        std::fs::write(&file, [response.head.as_bytes(), &response.body].concat()).unwrap();
        python.arg(file);
    }
    let output = python.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{text}{errors}");
    let notes: Vec<String> = text.split("=== read\n").map(str::to_owned).collect();
    assert_eq!(notes.len(), responses.len() + 1, "{text}");
    notes
}

fn requests() -> Vec<String> {
    vec![
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
    ]
}

#[test]
fn with_httplint() {
    if !target_folder().join("tools/httplint/bin/httplint").is_file() {
        println!("skipped: with_httplint: httplint is not installed (cargo xtask setup)");
        return;
    }
    for driver in drivers("with_httplint").into_iter().take(1) {
        for max_age in [None, Some(60)] {
            let server = Server::start(driver, |args| args.max_age = max_age);
            let responses: Vec<Response> =
                requests().iter().map(|request| server.ask(request.as_bytes())).collect();
            for (response, text) in responses.iter().zip(notes(&server.folder, &responses)) {
                let warnings: Vec<&str> = text
                    .lines()
                    .filter(|line| line.contains("[WARN]") || line.contains("[BAD]"))
                    .filter(|line| !MEANT.iter().any(|(note, _)| line.contains(note)))
                    .collect();
                assert!(warnings.is_empty(), "{}{warnings:#?}", response.head);
                assert!(text.contains("===") && response.status >= 200);
                if max_age.is_some() && response.status == 200 {
                    assert!(!text.contains("assign their own"), "{}{text}", response.head);
                }
            }
        }
    }
}
