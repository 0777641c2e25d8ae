//! `cargo xtask lines`: lines of Rust code of each crate, without comments, blank lines and tests.
//!
//! A line counts if it holds a token outside test code. Comments, documentation included, hold
//! none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::error::ToolError;
use crate::process;
use crate::tidy::{File, Tree, find};

/// Lines of code by crate.
type Counts = BTreeMap<String, usize>;

/// The command: prints a row for each crate and the sum; with a revision, its figures and the
/// change since.
pub(crate) fn run(root: &Path, revision: Option<&str>) -> Result<bool, ToolError> {
    let mut now = Counts::new();
    Tree::read(root)?.rust().for_each(|file| count(file, &mut now));
    let Some(revision) = revision else {
        now.iter().for_each(|(name, lines)| println!("{name:<20} {lines:>8}"));
        println!("{:<20} {:>8}", "total", now.values().sum::<usize>());
        return Ok(true);
    };
    let before = counts_of(root, revision)?;
    let row = |name: &str, before: usize, now: usize| {
        println!("{name:<20} {before:>8} {now:>8} {:>+8}", now as i64 - before as i64);
    };
    println!("{:<20} {:>8} {:>8} {:>8}", "crate", "before", "now", "change");
    for name in now.keys().chain(before.keys()).collect::<BTreeSet<_>>() {
        row(name, before.get(name).copied().unwrap_or(0), now.get(name).copied().unwrap_or(0));
    }
    row("total", before.values().sum(), now.values().sum());
    Ok(true)
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
    if file.is_test() {
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
    let name = match (folders.next(), folders.next()) {
        (Some("crates"), Some(name)) => name,
        (first, _) => first.unwrap_or_default(),
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
    }

    #[test]
    fn text_over_several_lines_counts_each() {
        assert_eq!(lines("sim/src/a.rs", "const A: &str = \"b\n\nc\";\n")["sim"], 3);
    }
}
