//! What `docs/RFC9293.md` claims: every MUST of the RFC has a row, and every test that a row names
//! exists.
//!
//! A row is `| number | words | shown by |`. The last cell names tests between backticks, as
//! `src/tcp/close.rs::function`, from the stack's folder, or `script.pkt`, or says `exception: `
//! and why there is none; or both, where a test shows a part.

use super::tokens;
use super::{Finding, Tree};

const PAGE: &str = "docs/RFC9293.md";
/// Where paths of tests begin.
const SOURCES: &str = "crates/stack/src/";
const SCRIPTS: &str = "tests/scripts/";

/// The RFC's numbers (its appendix B): each kind counts from 1 without a gap, to this.
const NUMBERS: &[(&str, u8)] = &[("MUST", 69), ("SHLD", 31), ("MAY", 18)];
/// Those of this kind all need a row.
const DEMANDED: &str = "MUST";

/// One row of the page.
struct RequirementRow<'a> {
    line: usize,
    id: &'a str,
    shown_by: &'a str,
}

/// The page is complete, and nothing in it is invented.
pub(super) fn coverage(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::new(PAGE, 0, "the page is missing: name a test for each MUST")];
    };
    let rows: Vec<RequirementRow<'_>> = rows(&page.text).collect();
    let mut found = missing(&rows);
    for (index, row) in rows.iter().enumerate() {
        let mut report = |text: String| found.push(Finding::new(PAGE, row.line, text));
        if !is_number(row.id) {
            report(format!("RFC 9293 has no {}", row.id));
        }
        if rows[..index].iter().any(|other| other.id == row.id) {
            report(format!("a second row of {}", row.id));
        }
        for name in tests(row.shown_by).filter(|name| !exists(tree, name)) {
            report(format!("no such test: {name}"));
        }
        if tests(row.shown_by).next().is_none() && reason(row.shown_by).is_none() {
            report(format!("{}: name a test, or write `exception: ` and why", row.id));
        }
    }
    found
}

/// The numbers that need a row and have none.
fn missing(rows: &[RequirementRow<'_>]) -> Vec<Finding> {
    let demanded = NUMBERS.iter().filter(|(kind, _)| *kind == DEMANDED);
    demanded
        .flat_map(|(kind, last)| (1..=*last).map(move |number| format!("{kind}-{number}")))
        .filter(|id| !rows.iter().any(|row| row.id == id))
        .map(|id| Finding::new(PAGE, 0, format!("{id} has no row")))
        .collect()
}

/// Rows whose first cell looks like a number: not heads, rulers and other tables.
fn rows(text: &str) -> impl Iterator<Item = RequirementRow<'_>> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let id = cells.next()?;
        let (kind, number) = id.split_once('-')?;
        let is_id = !kind.is_empty()
            && kind.chars().all(|c| c.is_ascii_uppercase())
            && number.starts_with(|c: char| c.is_ascii_digit());
        is_id.then(|| RequirementRow {
            line: index + 1,
            id,
            shown_by: cells.nth(1).unwrap_or_default(),
        })
    })
}

/// A number as the RFC writes it.
fn is_number(id: &str) -> bool {
    NUMBERS.iter().any(|(kind, last)| (1..=*last).any(|number| id == format!("{kind}-{number}")))
}

/// What stands between backticks.
fn tests(shown_by: &str) -> impl Iterator<Item = &str> {
    shown_by.split('`').skip(1).step_by(2)
}

/// Why there is no test.
fn reason(shown_by: &str) -> Option<&str> {
    let (_, why) = shown_by.split_once("exception:")?;
    Some(why.trim()).filter(|why| !why.is_empty())
}

fn exists(tree: &Tree, name: &str) -> bool {
    let Some((path, function)) = name.split_once("::") else {
        return name.ends_with(".pkt") && tree.get(&format!("{SCRIPTS}{name}")).is_some();
    };
    let test = ["#", "[", "test", "]", "fn", function];
    tree.get(&format!("{SOURCES}{path}"))
        .is_some_and(|file| tokens::find(file.tokens(), &test).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! T.\n#[test]\nfn holds() {}\n\nfn of_no_test() {}\n";

    /// The findings about a page which has a row of each MUST, and these.
    fn findings(more: &str) -> Vec<(usize, String)> {
        let row = |number| format!("| MUST-{number} | words | `tcp/tests.rs::holds` |\n");
        let page: String = [more.to_owned()].into_iter().chain((1..=69).map(row)).collect();
        found(&page)
    }

    fn found(page: &str) -> Vec<(usize, String)> {
        let tree = Tree::of(&[
            (PAGE, page),
            ("crates/stack/src/tcp/tests.rs", SOURCE),
            ("tests/scripts/nagle.pkt", "0 socket(...) = 3\n"),
        ]);
        coverage(&tree).into_iter().map(|finding| (finding.line, finding.text)).collect()
    }

    #[test]
    fn a_complete_page_passes() {
        let more = "# P\n\n| number | asks for | shown by |\n|---|---|---|\n\
                    | SHLD-7 | Nagle | `nagle.pkt`, `tcp/tests.rs::holds` |\n\
                    | SHLD-13 | none | exception: a matter of applications |\n\
                    | MAY-5 | some | `nagle.pkt`; exception: not on Sundays |\n";
        assert_eq!(findings(more), []);
    }

    #[test]
    fn each_must_needs_one_row() {
        let two = "| MUST-2 | a | exception: why |\n| MUST-2 | a | exception: why |\n";
        let texts = found(two);
        assert_eq!(texts.len(), 69);
        assert!(texts.contains(&(0, "MUST-1 has no row".to_owned())));
        assert!(texts.contains(&(0, "MUST-69 has no row".to_owned())));
        assert!(texts.contains(&(2, "a second row of MUST-2".to_owned())));
        assert_eq!(findings("| MUST-70 | a | exception: why |\n").len(), 1);
        assert_eq!(findings("| MUST-07 | a | exception: why |\n").len(), 1);
    }

    #[test]
    fn tests_that_do_not_exist_are_found() {
        for name in [
            "tcp/tests.rs::held",
            "tcp/tests.rs::of_no_test",
            "tcp/other.rs::holds",
            "holds",
            "zero.pkt",
        ] {
            let row = format!("| SHLD-1 | a | `{name}` |\n");
            assert_eq!(findings(&row), [(1, format!("no such test: {name}"))]);
        }
    }

    #[test]
    fn a_row_without_test_or_reason_is_found() {
        for shown_by in ["", "by and by", "exception: "] {
            assert_eq!(findings(&format!("| SHLD-1 | a | {shown_by} |\n")).len(), 1);
        }
    }

    #[test]
    fn the_page_has_to_be_there() {
        assert_eq!(coverage(&Tree::of(&[])).len(), 1);
    }
}
