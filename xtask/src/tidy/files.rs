//! Rules about files as such: names, heads, lengths, sizes, manifests.

use super::{Finding, Tree};
use crate::limits;

/// Words without information about a file.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "misc", "helper", "helpers", "manager"];

/// Names of the papers' own that have such a word in them: a connection manager is one of the
/// three servers [PIKA 3.1].
const PAPERS_NAMES: &[&str] = &["connection_manager"];

/// No file, folder or crate is named after nothing in particular.
pub(super) fn names(tree: &Tree) -> Vec<Finding> {
    let is_empty = |part: &str| {
        let stem = part.split('.').next().unwrap_or(part);
        !PAPERS_NAMES.contains(&stem)
            && stem.split(['_', '-']).any(|word| EMPTY_NAMES.contains(&word))
    };
    tree.files()
        .filter(|file| file.path.split('/').any(is_empty))
        .map(|file| {
            Finding::new(&file.path, 0, "name it after what it holds, in the field's words")
        })
        .collect()
}

/// Every source file opens with its subject.
pub(super) fn heads(tree: &Tree) -> Vec<Finding> {
    let wanted = |path: &str| match path.rsplit('.').next() {
        Some("rs") => Some("//!"),
        Some("c" | "h") => Some("/*"),
        _ => None,
    };
    tree.files()
        .filter(|file| wanted(&file.path).is_some_and(|head| !file.text.starts_with(head)))
        .map(|file| Finding::new(&file.path, 1, "open the file with `//!` and its subject"))
        .collect()
}

/// Files and lines stay readable.
pub(super) fn lengths(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files() {
        let is_c = file.path.ends_with(".c") || file.path.ends_with(".h");
        let is_generated = file.text.lines().take(3).any(|line| line.contains("generated"));
        if !file.is_rust() && !is_c || is_generated {
            continue;
        }
        let count = file.text.lines().count();
        if count > limits::FILE_LINES_MAX && !file.is_test() {
            let text = format!("{count} lines; split it, {} at most", limits::FILE_LINES_MAX);
            found.push(Finding::new(&file.path, 0, text));
        }
        for (index, line) in file.text.lines().enumerate() {
            let chars = line.chars().count();
            // An address cannot be broken.
            if chars > limits::LINE_CHARS_MAX && !line.contains("://") {
                let text = format!("{chars} characters; {} at most", limits::LINE_CHARS_MAX);
                found.push(Finding::new(&file.path, index + 1, text));
            }
            if line.ends_with([' ', '\t']) {
                found.push(Finding::new(&file.path, index + 1, "blanks at the end of the line"));
            }
        }
    }
    found
}

/// No merge was left halfway: git marks with such lines what it could not merge.
pub(super) fn merges(tree: &Tree) -> Vec<Finding> {
    let is_mark = |line: &str| {
        let rest =
            ["<<<<<<<", "|||||||", ">>>>>>>"].iter().find_map(|mark| line.strip_prefix(mark));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let marks = tree.files().flat_map(|file| {
        let lines = file.text.lines().enumerate().filter(|(_, line)| is_mark(line));
        lines.map(|(index, _)| Finding::new(&file.path, index + 1, "a mark of a merge"))
    });
    marks.collect()
}

/// No blobs: what a program makes is made again, not committed.
pub(super) fn bytes(tree: &Tree) -> Vec<Finding> {
    let too_big = |file: &&super::tree::File| file.bytes > limits::FILE_BYTES_MAX;
    let text = |bytes: u64| format!("{bytes} bytes; {} at most", limits::FILE_BYTES_MAX);
    tree.files()
        .filter(too_big)
        .filter(|file| file.name() != "Cargo.lock")
        .map(|file| Finding::new(&file.path, 0, text(file.bytes)))
        .collect()
}

/// Every package takes the workspace's lints.
pub(super) fn manifests(tree: &Tree) -> Vec<Finding> {
    let takes_lints = |text: &str| {
        let mut lines = text.lines().skip_while(|line| line.trim() != "[lints]");
        lines.nth(1).is_some_and(|line| line.replace(' ', "") == "workspace=true")
    };
    tree.files()
        .filter(|file| file.name() == "Cargo.toml" && file.text.contains("[package]"))
        .filter(|file| !takes_lints(&file.text))
        .map(|file| Finding::new(&file.path, 0, "take the lints: [lints] workspace = true"))
        .collect()
}

/// A package uses what it depends on: each dependency's name stands in its code.
pub(super) fn dependencies(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files().filter(|file| file.name() == "Cargo.toml") {
        let folder = file.path.trim_end_matches("Cargo.toml");
        let sources = || tree.rust().filter(|source| source.path.starts_with(folder));
        for (line, name) in dependency_names(&file.text) {
            let word = name.replace('-', "_");
            if !sources().any(|source| source.tokens().iter().any(|token| token.text == word)) {
                found.push(Finding::new(&file.path, line, format!("{name} is not used")));
            }
        }
    }
    found
}

/// The keys, with their lines, of a package's tables of dependencies.
fn dependency_names(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_table = false;
    manifest.lines().enumerate().filter_map(move |(index, line)| {
        if line.starts_with('[') {
            in_table = line.ends_with("dependencies]") && !line.starts_with("[workspace");
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_key = in_table && name.starts_with(|first: char| first.is_alphanumeric());
        is_key.then_some((index + 1, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_no_code_names_is_found() {
        let manifest = "[package]\nname = \"a\"\n\n[dependencies]\n# Why.\n\
                        io-uring.workspace = true\nlibc = \"0.2\"\n\n[features]\nx = []\n";
        let source = "//! A, without libc.\nuse io_uring::IoUring;";
        let tree = Tree::of(&[("a/Cargo.toml", manifest), ("a/src/lib.rs", source)]);
        assert_eq!(dependencies(&tree), [Finding::new("a/Cargo.toml", 7, "libc is not used")]);
        let source = "//! A.\nuse io_uring::IoUring;\nuse libc::c_int;";
        let tree = Tree::of(&[("a/Cargo.toml", manifest), ("a/src/lib.rs", source)]);
        assert_eq!(dependencies(&tree), []);
    }

    #[test]
    fn marks_of_a_merge_are_found() {
        let mark = |text: &str| format!("{}{text}", &text[..1].repeat(6));
        let text = [mark("< ours"), "=======".to_owned(), mark("> theirs"), mark("|")].join("\n");
        let found: Vec<usize> =
            merges(&Tree::of(&[("a.md", &text)])).iter().map(|finding| finding.line).collect();
        assert_eq!(found, [1, 3, 4]);
        let good = "<<<<<<<b\n ======= \n a << b\n>> c";
        assert_eq!(merges(&Tree::of(&[("a.md", good)])), []);
    }

    #[test]
    fn empty_names_are_found_in_files_and_folders() {
        let bad = [("crates/a/src/utils.rs", ""), ("crates/common/x.rs", ""), ("a/io_util.rs", "")];
        assert_eq!(names(&Tree::of(&bad)).len(), 3);
        let good = [("crates/a/src/utility_meter.rs", ""), ("crates/commons/x.rs", "")];
        assert_eq!(names(&Tree::of(&good)), []);
    }

    #[test]
    fn sources_without_a_head_are_found() {
        let bad = [("a.rs", "use b;\n"), ("a.c", "#include <b.h>\n")];
        assert_eq!(heads(&Tree::of(&bad)).len(), 2);
        let good = [("a.rs", "//! A.\n"), ("a.c", "/* A. */\n"), ("a.toml", "")];
        assert_eq!(heads(&Tree::of(&good)), []);
    }

    #[test]
    fn long_files_are_found_outside_tests() {
        let long = "//\n".repeat(limits::FILE_LINES_MAX + 1);
        assert_eq!(lengths(&Tree::of(&[("a/src/b.rs", &long)])).len(), 1);
        assert_eq!(lengths(&Tree::of(&[("a/src/b/tests.rs", &long)])), []);
        let short = "//\n".repeat(limits::FILE_LINES_MAX);
        assert_eq!(lengths(&Tree::of(&[("a/src/b.rs", &short)])), []);
    }

    #[test]
    fn long_lines_and_trailing_blanks_are_found() {
        let wide = format!("// {}\n", "é".repeat(limits::LINE_CHARS_MAX - 3));
        assert_eq!(lengths(&Tree::of(&[("a.rs", &wide)])), []);
        let wider = format!("// {}\n", "é".repeat(limits::LINE_CHARS_MAX - 2));
        assert_eq!(lengths(&Tree::of(&[("a.rs", &wider)])).len(), 1);
        assert_eq!(lengths(&Tree::of(&[("a.rs", "// x \n")])).len(), 1);
    }

    #[test]
    fn blobs_are_found_and_the_lock_file_is_none() {
        let blob = "x".repeat(300 * 1024);
        assert_eq!(bytes(&Tree::of(&[("a.bin", &blob)])).len(), 1);
        assert_eq!(bytes(&Tree::of(&[("Cargo.lock", &blob), ("b", "x")])), []);
    }

    #[test]
    fn a_package_that_ignores_the_lints_is_found() {
        assert_eq!(manifests(&Tree::of(&[("a/Cargo.toml", "[package]\nname = \"a\"\n")])).len(), 1);
        let good = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";
        assert_eq!(manifests(&Tree::of(&[("a/Cargo.toml", good)])), []);
        assert_eq!(manifests(&Tree::of(&[("Cargo.toml", "[workspace]\n")])), []);
    }
}
