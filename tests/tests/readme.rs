//! The README's C example is a program that a strict compiler takes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_c_example_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("a README");
    let (_, rest) = readme.split_once("```c\n").expect("an example in C");
    let (example, _) = rest.split_once("```").expect("its end");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-xc", "-"]);
    compiler.arg("-I").arg(root.join("crates/capi/include"));
    let mut compiler = match compiler.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!("skipped: the_c_example_compiles: cc: {error}");
            return;
        }
    };
    let mut input = compiler.stdin.take().expect("a pipe");
    input.write_all(example.as_bytes()).expect("cc reads its input");
    drop(input);
    let output = compiler.wait_with_output().expect("cc ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
