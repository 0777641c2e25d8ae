//! Sets and listeners as they change, and connections as they end, with the output that programs
//! have on Linux: issue 16, "Known traps".

use std::process::Command;

use super::service::ServiceHosts;
use super::{
    C11, Hosts, ReservedPort, compile, library, prefix, preloaded, said, sources, started,
    with_peer_of,
};

/// Compares what a program of `preload/tests` says on each back end with what it says on Linux.
fn compare(test: &str, name: &str) {
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let source = sources().join(format!("../preload/tests/{name}.c"));
    let program = compile(prefix, &source, &format!("preload-{name}"), C11);
    let expected = said(Command::new(&program).arg("127.0.0.1"));
    assert!(expected.ends_with("end\n"), "{expected}");
    let mut on_kernel = preloaded(&program, &library, "kernel");
    assert_eq!(said(on_kernel.arg("127.0.0.1")), expected, "kernel");
    let hosts = Hosts::new(library.clone());
    let mut on_local = hosts.server(&program);
    on_local.arg("10.9.8.1");
    assert_eq!(with_peer_of(&hosts, on_local, &program), expected, "local");
    let hosts = ServiceHosts::new(library, name);
    let mut on_service = hosts.program(0, &program);
    assert_eq!(said(on_service.arg("10.9.7.1")), expected, "service");
}

#[test]
fn sets_and_listeners_change_as_on_linux() {
    compare("sets_and_listeners_change_as_on_linux", "sets");
}

#[test]
fn connections_end_as_on_linux() {
    compare("connections_end_as_on_linux", "ends");
}

/// A server that goes to the background when its stack has started: the child waits for its
/// parent's end, and has its parent's listener and set.
#[test]
fn child_serves_on_local_after_its_parent() {
    let test = "child_serves_on_local_after_its_parent";
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let source = sources().join("../preload/tests/inherited_sets.c");
    let program = compile(prefix, &source, "preload-background", C11);
    let (hosts, reserved) = (Hosts::new(library), ReservedPort::new());
    let port = reserved.port().to_string();
    let mut server = hosts.server(&program);
    server.args(["10.9.8.1", "serve", &port]);
    assert!(started(server).0.wait().expect("its end").success());
    let program = program.to_str().expect("text");
    let ask = |client: &mut Command| {
        client.args(["10.9.8.1", "ask", &port]);
    };
    assert_eq!(hosts.until_success(ask, program), "answer: 4\n");
}
