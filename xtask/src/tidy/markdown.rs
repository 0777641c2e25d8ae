//! Pages: every link leads somewhere, every page has one title.

use std::collections::BTreeSet;

use super::tree::File;
use super::{Finding, Tree, tokens};

/// Relative links and anchors resolve.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in pages(tree) {
        for (line, target) in targets(&page.text) {
            if let Some(text) = broken(tree, page, target) {
                found.push(Finding::new(&page.path, line, text));
            }
        }
    }
    found
}

/// One first-level heading per page.
pub(super) fn headings(tree: &Tree) -> Vec<Finding> {
    pages(tree)
        .map(|page| (page, prose(&page.text).filter(|(_, line)| line.starts_with("# ")).count()))
        .filter(|(_, count)| *count != 1)
        .map(|(page, count)| Finding::new(&page.path, 0, format!("{count} titles (`# `), not 1")))
        .collect()
}

/// The page whose rows name tests.
const LEDGER: &str = "docs/ATTACKS.md";

/// Each test that the ledger names exists: a function of Rust, or a C program.
pub(super) fn ledger(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(LEDGER) else { return Vec::new() };
    let functions: BTreeSet<&str> = tree
        .rust()
        .flat_map(|file| {
            let tokens = file.tokens();
            tokens::find(tokens, &["fn"]).filter_map(|index| tokens.get(index + 1))
        })
        .map(|token| token.text.as_str())
        .collect();
    let exists = |name: &str| {
        functions.contains(name) || tree.files().any(|file| file.is_test() && file.name() == name)
    };
    let mut found = Vec::new();
    for (line, row) in prose(&page.text).filter(|(_, line)| line.starts_with('|')) {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        // Every second piece between backticks is a name, or the text of a link.
        let pieces: Vec<&str> = tests.split('`').chain([""]).collect();
        let names = pieces.windows(2).skip(1).step_by(2).filter(|pair| !pair[1].starts_with("]("));
        for name in names.map(|pair| pair[0]).filter(|name| !exists(name)) {
            found.push(Finding::new(LEDGER, line, format!("no such test: {name}")));
        }
    }
    found
}

fn pages(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files().filter(|file| file.path.ends_with(".md"))
}

/// The numbered lines that are not inside a code block.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((index + 1, line))
    })
}

/// The target of each `[text](target)` with its line; code spans are not links, but may be texts.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Every second piece between backticks is code.
        for piece in line.split('`').step_by(2) {
            found.extend(piece.split("](").skip(1).filter_map(|rest| {
                let target = rest.split(')').next()?.split(' ').next()?;
                Some((number, target))
            }));
        }
    }
    found
}

fn broken(tree: &Tree, page: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let full = if path.is_empty() { Some(page.path.clone()) } else { resolve(folder, path) };
    let Some(full) = full else {
        return Some(format!("link leaves the project: {target}"));
    };
    match tree.get(&full) {
        None if full.is_empty() || tree.has_folder(&full) => None,
        None => Some(format!("link leads nowhere: {target}")),
        Some(file) if anchor.is_empty() || anchors(&file.text).any(|a| a == anchor) => None,
        Some(_) => Some(format!("no such heading: {target}")),
    }
}

/// The anchors of a page's headings, as hosts make them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// `path` seen from `folder`, both from the root; `None` when it climbs out.
pub(super) fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_links(page: &str) -> Vec<usize> {
        let tree = Tree::of(&[
            ("docs/page.md", page),
            ("docs/other.md", "# Other\n\n## A b, c\n"),
            ("README.md", "# R\n"),
        ]);
        links(&tree).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn good_links_pass() {
        let page = "# P\n[a](other.md) [b](../README.md) [c](other.md#a-b-c) [d](#p)\n\
                    [e](https://example.org/x) [f](../docs/) [`g`](other.md)\n";
        assert_eq!(broken_links(page), [0; 0]);
    }

    #[test]
    fn bad_links_are_found() {
        let page = "# P\n[a](gone.md)\n[b](other.md#gone)\n[c](../../out.md)\n[`d`](gone.md)\n";
        assert_eq!(broken_links(page), [2, 3, 4, 5]);
    }

    #[test]
    fn code_holds_no_links() {
        assert_eq!(broken_links("# P\n```\n[a](gone.md)\n```\nand `[a](gone.md)` too\n"), [0; 0]);
    }

    #[test]
    fn the_ledger_names_tests_that_exist() {
        let files = |row: &'static str| {
            [
                (LEDGER, row),
                ("crates/a/src/b.rs", "//! B.\n#[test]\nfn holds() {}"),
                ("crates/a/tests/misuse.c", "/* C. */"),
            ]
        };
        let good = "| attack | answer `x` | `holds`, `misuse.c` |\n| a | b | [`c`](d) |\n";
        assert_eq!(ledger(&Tree::of(&files(good))), []);
        let found = ledger(&Tree::of(&files("| attack | answer | `held`, `holds` |\n")));
        assert_eq!(found, [Finding::new(LEDGER, 1, "no such test: held")]);
    }

    #[test]
    fn each_page_has_one_title() {
        let count = |text: &str| headings(&Tree::of(&[("a.md", text)])).len();
        assert_eq!(count("# A\n\n```sh\n# a comment\n```\n"), 0);
        assert_eq!(count("## A\n"), 1);
        assert_eq!(count("# A\n\n# B\n"), 1);
    }
}
