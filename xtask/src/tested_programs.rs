//! `cargo xtask tested-programs`: the table of tested programs in `docs/PROGRAMS.md`, from what the
//! tests have recorded.
//!
//! A test that passes records the programs that it has run under the preload library
//! (`tests/tests/preload/tested_programs.rs`). Run all of them before the table is written:
//! `cargo test -p megapipe-tests --test preload`.
//!
//! The table and the records are compared without versions: another Debian has others. Where a test
//! has not run, or has skipped itself because the machine lacks a program or a right, rows that no
//! test has shown are no difference. Records of tests that the sources no longer have are ignored.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ToolError;
use crate::workspace;

/// The page with the table, and the lines around it.
const PAGE: &str = "docs/PROGRAMS.md";
const BEGIN: &str = "<!-- cargo xtask tested-programs: begin -->";
const END: &str = "<!-- cargo xtask tested-programs: end -->";

const HEAD: &str = "| program | version | back end | role | works |\n|---|---|---|---|---|\n";

/// Below cargo's folder for what it builds: a file for each test, with a line for each program.
const RECORDS: &str = "tested-programs";
/// The sources of the tests that record programs: a file, and a folder of its modules.
const TESTS: [&str; 2] = ["tests/tests/preload.rs", "tests/tests/preload"];
/// The call in them.
const RECORDING: &str = "tested_programs::record(";
/// The line of a test that has skipped itself.
const SKIPPED: &str = "skipped";

/// What the tests have recorded.
#[derive(Debug, Default)]
struct TestRecords {
    rows: BTreeSet<TestedRow>,
    /// Tests that would record programs, and have not.
    missing: BTreeSet<String>,
}

impl TestRecords {
    /// Before any test has run.
    fn of(tests: BTreeSet<String>) -> Self {
        Self { rows: BTreeSet::new(), missing: tests }
    }

    /// Takes the record of a test. One that the sources do not have is ignored.
    fn add(&mut self, test: &str, text: &str) {
        if text.lines().any(|line| line == SKIPPED) || !self.missing.remove(test) {
            return;
        }
        self.rows.extend(text.lines().filter_map(|line| TestedRow::of(line.split('\t'))));
    }

    /// Rows of the table that no test has shown.
    fn not_shown<'a>(&self, table: &'a [TestedRow]) -> BTreeSet<[&'a str; 4]> {
        let listed = table.iter().map(TestedRow::claim);
        listed.filter(|claim| !self.rows.iter().any(|row| row.claim() == *claim)).collect()
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
    let folder = folder(root)?;
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ToolError::file(&folder)(error))
        }
        _ => Ok(()),
    }
}

/// Writes the table. `false`, and nothing is written, where it would lose rows because their tests
/// have not run, unless `drops_missing`.
pub(crate) fn write(root: &Path, drops_missing: bool) -> Result<bool, ToolError> {
    let (page, text) = page(root)?;
    let records = records(root)?;
    if !drops_missing {
        let lost = losses(&table(&text).unwrap_or_default(), &records);
        if !lost.is_empty() {
            lost.iter().for_each(|line| println!("{line}"));
            println!("nothing is written; `--drop-missing` writes the table without these rows");
            return Ok(false);
        }
    }
    let Some(text) = with_table(&text, &records.rows) else {
        println!("{PAGE}: no line {BEGIN}, or none {END} behind it");
        return Ok(false);
    };
    fs::write(&page, text).map_err(ToolError::file(&page))?;
    println!("wrote {} rows into {}", records.rows.len(), page.display());
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
pub(crate) fn has_records(root: &Path) -> Result<bool, ToolError> {
    Ok(folder(root)?.is_dir())
}

/// Where the tests write their records.
fn folder(root: &Path) -> Result<PathBuf, ToolError> {
    Ok(workspace::target_folder(root)?.join(RECORDS))
}

fn page(root: &Path) -> Result<(PathBuf, String), ToolError> {
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).map_err(ToolError::file(&page))?;
    Ok((page, text))
}

/// All records.
fn records(root: &Path) -> Result<TestRecords, ToolError> {
    let folder = folder(root)?;
    if !folder.is_dir() {
        return Err(ToolError::Wrong(format!(
            "no test has recorded a program in {}; `cargo test -p megapipe-tests --test preload` \
             runs the tests",
            folder.display()
        )));
    }
    let mut records = TestRecords::of(recording_tests(root)?);
    for path in files(&folder)? {
        let test = path.file_name().unwrap_or_default().to_string_lossy();
        records.add(&test, &fs::read_to_string(&path).map_err(ToolError::file(&path))?);
    }
    Ok(records)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let entries = fs::read_dir(folder).map_err(ToolError::file(folder))?;
    let paths = entries.map(|entry| Ok(entry.map_err(ToolError::file(folder))?.path()));
    paths.collect()
}

/// The tests that record programs.
fn recording_tests(root: &Path) -> Result<BTreeSet<String>, ToolError> {
    let [file, modules] = TESTS.map(|path| root.join(path));
    let mut sources = files(&modules)?;
    sources.push(file);
    let mut tests = BTreeSet::new();
    for source in &sources {
        let text = fs::read_to_string(source).map_err(ToolError::file(source))?;
        tests.extend(recording_functions(&text).map(str::to_owned));
    }
    Ok(tests)
}

/// The functions of a source file that record programs.
fn recording_functions(text: &str) -> impl Iterator<Item = &str> {
    let functions = text.split("\nfn ").skip(1).filter(|function| function.contains(RECORDING));
    functions.filter_map(|function| Some(function.split_once('(')?.0))
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
    let lacking = recorded.difference(&listed).map(|row| ("lacks", *row));
    let not_shown = records.not_shown(table).into_iter().filter(|_| records.missing.is_empty());
    let extra = not_shown.map(|row| ("has, and no test has shown", row));
    let lines = lacking.chain(extra).map(|(what, row)| {
        let row = row.join(" | ");
        format!("{PAGE} {what}: {row}; `cargo xtask tested-programs` writes the table")
    });
    lines.collect()
}

/// The rows that a new table would not have because a test has not run, and these tests.
fn losses(table: &[TestedRow], records: &TestRecords) -> Vec<String> {
    let rows = records.not_shown(table);
    if records.missing.is_empty() || rows.is_empty() {
        return Vec::new();
    }
    let rows = rows.iter().map(|row| format!("no test has shown: {}", row.join(" | ")));
    let tests = records.missing.iter().map(|test| format!("has not run, or skipped: {test}"));
    rows.chain(tests).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a test records, where `others` have not run.
    fn recorded(lines: &[&str], others: &[&str]) -> TestRecords {
        let tests = others.iter().chain(&["test"]).map(|test| (*test).to_owned());
        let mut records = TestRecords::of(tests.collect());
        records.add("test", &lines.join("\n"));
        records
    }

    #[test]
    fn table_has_what_was_recorded() {
        let recorded = recorded(
            &[
                "nginx\t1.22.1\tservice\tserver\ttwo workers",
                "curl\t7.88.1\tlocal\tclient\tfiles",
                "nginx\t1.22.1\tlocal\tserver\tfiles",
            ],
            &[],
        );
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

    const LISTED: [&str; 2] =
        ["curl\t7.88.1\tlocal\tclient\tfiles", "nginx\t1.22.1\tlocal\tserver\tfiles"];

    #[test]
    fn versions_and_missing_tests_are_no_difference() {
        let listed: Vec<TestedRow> = recorded(&LISTED, &[]).rows.into_iter().collect();
        let lines = [
            "curl\t8.14.1\tlocal\tclient\tfiles",
            "nginx\t1.26.3\tlocal\tserver\tfiles and a reload",
        ];
        let found = differences(&listed, &recorded(&lines, &[]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("lacks: nginx | local | server | files and a reload;"));
        assert!(found[1].contains("no test has shown: nginx | local | server | files;"));
        assert_eq!(differences(&listed, &recorded(&lines, &["other"])).len(), 1);
        assert_eq!(differences(&listed[..1], &recorded(&["skipped"], &[])), [""; 0]);
    }

    #[test]
    fn rows_of_missing_tests_are_losses() {
        let listed: Vec<TestedRow> = recorded(&LISTED, &[]).rows.into_iter().collect();
        assert_eq!(losses(&listed, &recorded(&LISTED, &["other"])), [""; 0]);
        assert_eq!(losses(&listed, &recorded(&LISTED[..1], &[])), [""; 0]);
        let row = "no test has shown: nginx | local | server | files";
        let mut records = recorded(&LISTED[..1], &["other"]);
        assert_eq!(losses(&listed, &records), [row, "has not run, or skipped: other"]);
        records.add("other", "skipped\n");
        assert_eq!(losses(&listed, &records), [row, "has not run, or skipped: other"]);
        records.add("other", LISTED[1]);
        assert_eq!(losses(&listed, &records), [""; 0]);
    }

    #[test]
    fn records_of_removed_tests_are_ignored() {
        let mut records = recorded(&LISTED[..1], &[]);
        records.add("removed", LISTED[1]);
        assert_eq!(records.rows.len(), 1);
        let source = "\nfn helper() {}\n\n#[test]\nfn one() {\n    let test = \"one\";\n    \
                      tested_programs::record(test, &[]);\n}\n\n#[test]\nfn two() {}\n";
        assert_eq!(recording_functions(source).collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn sources_have_tests_that_record() {
        let tests = recording_tests(&workspace::root().unwrap()).unwrap();
        assert!(tests.contains("python_serves_files_to_curl"), "{tests:?}");
        assert!(tests.contains("redis_saves_in_a_child_on_the_service"), "{tests:?}");
    }
}
