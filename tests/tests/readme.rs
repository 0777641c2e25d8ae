//! Compiles the README's C examples with a strict compiler.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The C examples of a Markdown page.
fn c_examples(page: &str) -> Vec<&str> {
    let blocks = page.split("```c\n").skip(1);
    blocks.map(|block| block.split_once("```").expect("a closing fence").0).collect()
}

#[test]
fn readme_c_examples_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("a README");
    let examples = c_examples(&readme);
    assert_eq!(examples.len(), 2, "one on the channel, one on sockets");
    for (example, header) in examples.into_iter().zip(["megapipe.h", "megapipe_bsd.h"]) {
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
        compiler.arg("-I").arg(root.join("crates/capi/include"));
        compiler.args(["-include", header, "-xc", "-"]);
        let mut compiler = match compiler.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() {
            Ok(compiler) => compiler,
            Err(error) => {
                println!("skipped: readme_c_examples_compile: cc: {error}");
                return;
            }
        };
        let mut input = compiler.stdin.take().expect("a pipe");
        input.write_all(example.as_bytes()).expect("cc reads its input");
        drop(input);
        let output = compiler.wait_with_output().expect("cc ends");
        assert!(output.status.success(), "{header}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
