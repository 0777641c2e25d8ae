//! packetdrill's shared object, driven by a C program that plays packetdrill's part.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::path::Path;
use std::process::Command;

use capi_prefix::{C11, is_installed, run, text_of};

#[test]
fn a_harness_drives_connections_through_the_record() {
    if !is_installed("gcc") {
        println!("skipped: a_harness_drives_connections_through_the_record: gcc is not installed");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package=megapipe-packetdrill", "--lib"]);
    cargo.current_dir(root).env("CARGO_TARGET_DIR", target);
    // What cargo told this test about itself must not reach the next cargo.
    cargo.env_remove("CARGO_MANIFEST_DIR");
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", text_of(&output));
    let library = target.join("debug/libmegapipe_packetdrill.so");
    let source = root.join("crates/packetdrill/tests/harness.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packetdrill-harness");
    let mut gcc = Command::new("gcc");
    gcc.args(C11).args(["-g", "-pthread", "-Wall", "-Wextra", "-Werror"]).arg(&source);
    let output = gcc.arg("-o").arg(&program).arg("-ldl").output().expect("gcc runs");
    assert!(output.status.success(), "{}", text_of(&output));
    let (status, text) = run(Command::new(program).arg(&library));
    assert!(status.success(), "{status}\n{text}");
}
