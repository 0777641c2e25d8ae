//! Calls that have a better replacement here, each with it. Clippy bans the rest (`Cargo.toml`, and
//! the crates' roots): what it cannot know is that a module is pure, or a function is of tests.

use super::tokens;
use super::tree::File;
use super::{Finding, Tree};

/// A sequence of tokens, where it is banned, and what to write instead.
struct Ban {
    pattern: &'static [&'static str],
    applies: fn(&File) -> bool,
    instead: &'static str,
}

fn everywhere(_: &File) -> bool {
    true
}

/// The parts that servers run: a thread that sleeps is a channel that does not answer.
fn in_servers(file: &File) -> bool {
    let servers = ["crates/channel/src/", "crates/capi/src/", "crates/apps/src/"];
    servers.iter().any(|server| file.path.starts_with(server))
}

/// A module whose head has a line `Pure: …` promises to be a function of its arguments.
fn in_pure_modules(file: &File) -> bool {
    file.head().any(|line| line.starts_with("Pure:"))
}

const NO_CLOCK: &str = "a pure module gets the time as an argument";
const NO_IO: &str = "a pure module does no input or output";

const BANS: &[Ban] = &[
    Ban {
        pattern: &[".", "unwrap", "("],
        applies: everywhere,
        instead: "return the error, or `expect` with the invariant that makes it impossible",
    },
    Ban {
        pattern: &["thread", ":", ":", "sleep"],
        applies: in_servers,
        instead: "a timer of the channel, or the timeout of dispatch",
    },
    Ban { pattern: &["Instant", ":", ":", "now"], applies: in_pure_modules, instead: NO_CLOCK },
    Ban { pattern: &["SystemTime", ":", ":", "now"], applies: in_pure_modules, instead: NO_CLOCK },
    Ban { pattern: &["std", ":", ":", "fs"], applies: in_pure_modules, instead: NO_IO },
    Ban { pattern: &["std", ":", ":", "thread"], applies: in_pure_modules, instead: NO_IO },
    Ban { pattern: &["rustix", ":", ":"], applies: in_pure_modules, instead: NO_IO },
];

/// No banned call outside tests.
pub(super) fn calls(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust().filter(|file| !file.is_test()) {
        let tokens = file.tokens();
        for ban in BANS.iter().filter(|ban| (ban.applies)(file)) {
            for index in tokens::find(tokens, ban.pattern).filter(|index| !tokens[*index].in_test) {
                let text = format!("`{}`: {}", ban.pattern.concat(), ban.instead);
                found.push(Finding::new(&file.path, tokens[index].line, text));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        calls(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn unwrap_is_for_tests() {
        assert_eq!(count("crates/a/src/lib.rs", "fn a() { b.unwrap() }"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "fn a() { b.unwrap_or(3) } // .unwrap()"), 0);
        assert_eq!(count("crates/a/src/lib.rs", "#[cfg(test)] mod t { fn a() { b.unwrap() } }"), 0);
        assert_eq!(count("crates/a/src/b/tests.rs", "fn a() { b.unwrap() }"), 0);
        assert_eq!(count("tests/tests/kv.rs", "fn a() { b.unwrap() }"), 0);
    }

    #[test]
    fn servers_do_not_sleep() {
        let source = "use std::thread;\nfn a() { thread::sleep(b) }";
        assert_eq!(count("crates/apps/src/http/server.rs", source), 1);
        assert_eq!(count("bench/src/run.rs", source), 0);
    }

    #[test]
    fn pure_modules_have_no_clock_and_no_io() {
        let source = "fn a() { Instant::now(); rustix::fs::open(); std::fs::read(b); }";
        let pure = format!("//! A parser.\n//!\n//! Pure: bytes in, requests out.\n{source}");
        assert_eq!(count("crates/apps/src/http/parser.rs", &pure), 3);
        assert_eq!(count("crates/apps/src/http/server.rs", &format!("//! A.\n{source}")), 0);
    }
}
