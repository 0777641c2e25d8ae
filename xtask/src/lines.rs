//! `cargo xtask lines`: lines of Rust code of each crate, without comments, blank lines and tests.
//!
//! A line counts if it holds a token outside test code. Comments, documentation included, hold
//! none. Test code is: items under `#[cfg(test)]`, files named `tests.rs`, files in folders named
//! `tests` or `benches`, modules that only tests compile or call ([`TEST_MODULES`]), and, in rows
//! of their own below the total, the programs that only test or show the others
//! ([`TEST_PROGRAMS`]). The tools that users and developers run (`bench`, `scripts`, `packetdrill`,
//! `xtask`) are in the total.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::error::ToolError;
use crate::process;
use crate::tidy::{File, Tree, find};

/// Folders of programs that only test the crates, or show their use: not in the total.
const TEST_PROGRAMS: [&str; 3] = ["examples", "fuzz", "sim"];

/// Modules that only tests compile or call: the conformance suite of links, the invariants that
/// tests of the stack check, and the models for loom.
const TEST_MODULES: [&str; 3] = ["conformance.rs", "invariants.rs", "models.rs"];

/// Lines of code by crate.
type Counts = BTreeMap<String, usize>;

/// The command: prints a row for each crate and the sum; with a revision, its figures and the
/// change since.
pub(crate) fn run(root: &Path, revision: Option<&str>) -> Result<bool, ToolError> {
    let mut now = Counts::new();
    Tree::read(root)?.rust().for_each(|file| count(file, &mut now));
    let before = revision.map(|revision| counts_of(root, revision)).transpose()?;
    let row = |name: &str, of: &dyn Fn(&Counts) -> usize| match &before {
        None => println!("{name:<20} {:>8}", of(&now)),
        Some(before) => {
            let (before, now) = (of(before), of(&now));
            println!("{name:<20} {before:>8} {now:>8} {:>+8}", now as i64 - before as i64);
        }
    };
    if before.is_some() {
        println!("{:<20} {:>8} {:>8} {:>8}", "crate", "before", "now", "change");
    }
    let names: BTreeSet<&String> = now.keys().chain(before.iter().flat_map(Counts::keys)).collect();
    let (tests, crates): (Vec<&String>, Vec<&String>) =
        names.into_iter().partition(|name| is_test_program(name));
    let lines_of = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
    crates.iter().for_each(|name| row(name, &|counts| lines_of(counts, name)));
    row("total", &total);
    println!("test programs, not in the total:");
    tests.iter().for_each(|name| row(name, &|counts| lines_of(counts, name)));
    Ok(true)
}

fn is_test_program(name: &str) -> bool {
    TEST_PROGRAMS.contains(&name)
}

/// The lines of all crates, without the test programs.
fn total(counts: &Counts) -> usize {
    counts.iter().filter(|(name, _)| !is_test_program(name)).map(|(_, lines)| lines).sum()
}

/// The lines of a revision, read from git.
fn counts_of(root: &Path, revision: &str) -> Result<Counts, ToolError> {
    let git = |args: &[&str]| process::output_of(Command::new("git").current_dir(root).args(args));
    let list = git(&["ls-tree", "-r", "-z", "--name-only", revision])?;
    let mut counts = Counts::new();
    for path in list.split('\0').filter(|path| path.ends_with(".rs")) {
        let text = git(&["show", &format!("{revision}:{path}")])?;
        count(&File::new(path.to_owned(), text, 0), &mut counts);
    }
    Ok(counts)
}

/// Adds the lines of code of a file to those of its crate.
fn count(file: &File, counts: &mut Counts) {
    if file.is_test() || TEST_MODULES.contains(&file.name()) {
        return;
    }
    let tokens = file.tokens();
    let mut is_comment = vec![false; tokens.len()];
    // The lexer turns documentation into attributes.
    for start in find(tokens, &["[", "doc", "="]) {
        let from = start - if tokens[start - 1].text == "!" { 2 } else { 1 };
        is_comment[from..start + 5].fill(true);
    }
    let mut lines = BTreeSet::new();
    for (token, is_comment) in tokens.iter().zip(is_comment) {
        if !is_comment && !token.in_test {
            lines.extend((token.line..).take(token.text.lines().count()));
        }
    }
    let mut folders = file.path.split('/');
    let name = match (folders.next(), folders.next(), folders.next()) {
        (Some("crates"), Some(_), Some(folder)) if is_test_program(folder) => folder,
        (Some("crates"), Some(name), _) => name,
        (first, ..) => first.unwrap_or_default(),
    };
    *counts.entry(name.to_owned()).or_default() += lines.len();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Counts {
        let mut counts = Counts::new();
        count(&File::new(path.to_owned(), text.to_owned(), 0), &mut counts);
        counts
    }

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        let text = "//! A.\n\n/// B,\n/// c.\nfn a() {\n    // D.\n    b(); // e\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn c() {}\n}\n";
        assert_eq!(lines("crates/x/src/a.rs", text)["x"], 3);
        assert!(lines("crates/x/src/a/tests.rs", text).is_empty());
        assert!(lines("crates/x/src/a/models.rs", text).is_empty());
    }

    #[test]
    fn test_programs_and_examples_are_not_in_the_total() {
        let mut counts = lines("crates/x/examples/a.rs", "fn a() {}\n");
        counts.extend(lines("sim/src/a.rs", "fn a() {}\n"));
        counts.extend(lines("crates/x/src/a.rs", "fn a() {}\nfn b() {}\n"));
        assert_eq!((counts["examples"], counts["sim"], total(&counts)), (1, 1, 2));
    }

    #[test]
    fn text_over_several_lines_counts_each() {
        assert_eq!(lines("sim/src/a.rs", "const A: &str = \"b\n\nc\";\n")["sim"], 3);
    }
}
