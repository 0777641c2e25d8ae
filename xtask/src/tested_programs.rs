//! `cargo xtask tested-programs`: the table of tested programs in `docs/PROGRAMS.md`, from what the
//! tests have recorded.
//!
//! A test that passes records the programs that it has run under the preload library
//! (`tests/tests/preload/tested_programs.rs`). Run all of them before the table is written:
//! `cargo test -p megapipe-tests --test preload`.
//!
//! The table and the records are compared without versions: another Debian has others. Where a test
//! has skipped itself, because the machine lacks a program or a right, rows that no test has shown
//! are no difference.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::error::ToolError;

/// The page with the table, and the lines around it.
const PAGE: &str = "docs/PROGRAMS.md";
const BEGIN: &str = "<!-- cargo xtask tested-programs: begin -->";
const END: &str = "<!-- cargo xtask tested-programs: end -->";

const HEAD: &str = "| program | version | back end | role | works |\n|---|---|---|---|---|\n";

/// Below the workspace's root: a file for each test, with a line for each program.
const RECORDS: &str = "target/tested-programs";
/// The line of a test that has skipped itself.
const SKIPPED: &str = "skipped";

/// What the tests have recorded.
#[derive(Debug, Default)]
struct TestRecords {
    rows: BTreeSet<TestedRow>,
    has_skips: bool,
}

impl TestRecords {
    fn add(&mut self, text: &str) {
        self.has_skips |= text.lines().any(|line| line == SKIPPED);
        self.rows.extend(text.lines().filter_map(|line| TestedRow::of(line.split('\t'))));
    }
}

/// What a test has shown of a program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TestedRow {
    program: String,
    backend: String,
    role: String,
    works: String,
    version: String,
}

impl TestedRow {
    /// From its fields in the order of the table.
    fn of<'a>(fields: impl Iterator<Item = &'a str>) -> Option<Self> {
        let fields: Vec<String> = fields.map(|field| field.trim().to_owned()).collect();
        let [program, version, backend, role, works] = fields.try_into().ok()?;
        Some(Self { program, backend, role, works, version })
    }

    /// The row without its version.
    fn claim(&self) -> [&str; 4] {
        [&self.program, &self.backend, &self.role, &self.works]
    }

    fn line(&self) -> String {
        let Self { program, backend, role, works, version } = self;
        format!("| {program} | {version} | {backend} | {role} | {works} |\n")
    }
}

/// Before the tests run: what they have recorded before is of no use.
pub(crate) fn forget(root: &Path) -> Result<(), ToolError> {
    let folder = root.join(RECORDS);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ToolError::file(&folder)(error))
        }
        _ => Ok(()),
    }
}

/// Writes the table; always `true`.
pub(crate) fn write(root: &Path) -> Result<bool, ToolError> {
    let (page, text) = page(root)?;
    let TestRecords { rows, has_skips } = records(root)?;
    if has_skips {
        println!("a test has skipped itself: the table would lack its rows");
        return Ok(false);
    }
    let Some(text) = with_table(&text, &rows) else {
        println!("{PAGE}: no line {BEGIN}, or none {END} behind it");
        return Ok(false);
    };
    fs::write(&page, text).map_err(ToolError::file(&page))?;
    println!("wrote {} rows into {}", rows.len(), page.display());
    Ok(true)
}

/// Compares the table with the records; prints the differences.
pub(crate) fn check(root: &Path) -> Result<bool, ToolError> {
    let found = findings(root)?;
    found.iter().for_each(|finding| println!("{finding}"));
    Ok(found.is_empty())
}

/// Where the table and the records differ.
pub(crate) fn findings(root: &Path) -> Result<Vec<String>, ToolError> {
    let (_, text) = page(root)?;
    Ok(match table(&text) {
        Some(rows) => differences(&rows, &records(root)?),
        None => vec![format!("{PAGE}: no table between {BEGIN} and {END}")],
    })
}

/// Whether any test has recorded anything.
pub(crate) fn has_records(root: &Path) -> bool {
    root.join(RECORDS).is_dir()
}

fn page(root: &Path) -> Result<(std::path::PathBuf, String), ToolError> {
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).map_err(ToolError::file(&page))?;
    Ok((page, text))
}

/// All records.
fn records(root: &Path) -> Result<TestRecords, ToolError> {
    let folder = root.join(RECORDS);
    let mut records = TestRecords::default();
    for entry in fs::read_dir(&folder).map_err(ToolError::file(&folder))? {
        let path = entry.map_err(ToolError::file(&folder))?.path();
        records.add(&fs::read_to_string(&path).map_err(ToolError::file(&path))?);
    }
    Ok(records)
}

/// The text before the table, the table, and the text behind it.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    Some((before, table, after))
}

/// The rows of the page's table.
fn table(text: &str) -> Option<Vec<TestedRow>> {
    let (_, table, _) = parts(text)?;
    let lines = table.lines().filter(|line| line.starts_with('|')).skip(HEAD.lines().count());
    Some(lines.filter_map(|line| TestedRow::of(line.trim_matches('|').split('|'))).collect())
}

/// The page with a new table.
fn with_table(text: &str, rows: &BTreeSet<TestedRow>) -> Option<String> {
    let (before, _, after) = parts(text)?;
    let lines: String = rows.iter().map(TestedRow::line).collect();
    Some(format!("{before}{BEGIN}\n\n{HEAD}{lines}\n{END}{after}"))
}

fn differences(table: &[TestedRow], records: &TestRecords) -> Vec<String> {
    let listed: BTreeSet<[&str; 4]> = table.iter().map(TestedRow::claim).collect();
    let recorded: BTreeSet<[&str; 4]> = records.rows.iter().map(TestedRow::claim).collect();
    let lacking = recorded.difference(&listed).map(|row| ("lacks", row));
    let extra = listed.difference(&recorded).filter(|_| !records.has_skips);
    let extra = extra.map(|row| ("has, and no test has shown", row));
    let lines = lacking.chain(extra).map(|(what, row)| {
        let row = row.join(" | ");
        format!("{PAGE} {what}: {row}; `cargo xtask tested-programs` writes the table")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(lines: &[&str]) -> TestRecords {
        let mut records = TestRecords::default();
        lines.iter().for_each(|line| records.add(line));
        records
    }

    #[test]
    fn table_has_what_was_recorded() {
        let recorded = recorded(&[
            "nginx\t1.22.1\tservice\tserver\ttwo workers",
            "curl\t7.88.1\tlocal\tclient\tfiles",
            "nginx\t1.22.1\tlocal\tserver\tfiles",
        ]);
        let page = format!("text\n{BEGIN}\nold\n{END}\nmore\n");
        let page = with_table(&page, &recorded.rows).unwrap();
        let expected = format!(
            "text\n{BEGIN}\n\n{HEAD}| curl | 7.88.1 | local | client | files |\n\
             | nginx | 1.22.1 | local | server | files |\n\
             | nginx | 1.22.1 | service | server | two workers |\n\n{END}\nmore\n"
        );
        assert_eq!(page, expected);
        let listed = table(&page).unwrap();
        assert_eq!(listed, recorded.rows.iter().cloned().collect::<Vec<_>>());
        assert_eq!(with_table(&page, &recorded.rows).as_deref(), Some(&*page));
        assert_eq!(table("no marks"), None);
    }

    #[test]
    fn versions_and_skipped_tests_are_no_difference() {
        let listed = recorded(&[
            "curl\t7.88.1\tlocal\tclient\tfiles",
            "nginx\t1.22.1\tlocal\tserver\tfiles",
        ]);
        let listed: Vec<TestedRow> = listed.rows.into_iter().collect();
        let mut shown = recorded(&[
            "curl\t8.14.1\tlocal\tclient\tfiles",
            "nginx\t1.26.3\tlocal\tserver\tfiles and a reload",
        ]);
        let found = differences(&listed, &shown);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("lacks: nginx | local | server | files and a reload;"));
        assert!(found[1].contains("no test has shown: nginx | local | server | files;"));
        shown.add("skipped\n");
        assert_eq!(differences(&listed, &shown).len(), 1);
        assert_eq!(differences(&listed[..1], &recorded(&["skipped\n"])), [""; 0]);
    }
}
