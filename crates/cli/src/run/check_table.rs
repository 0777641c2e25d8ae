//! The table of `megapipe run --check`: functions that a program and its libraries import, and the
//! path of their calls.
//!
//! Read first: `megapipe_preload::imports`.

use std::collections::BTreeMap;

use megapipe_preload::imports::{ImportFate, fate_of};

use super::program::{Program, ProgramError};

/// A line: a function, its fate, the reason, and the files that import it.
type CheckRow = [String; 4];

/// Names of files in a line; the others are counted.
const FILES_SHOWN: usize = 3;

/// Returns the table, with a line for the program and one for the result.
pub(super) fn table(program: &Program) -> Result<String, ProgramError> {
    let mut text = format!("program  {}\n", program.path.display());
    if let Some(interpreter) = &program.script {
        text.push_str(&format!("script of {}\n", interpreter.display()));
    }
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, names) in program.imports()? {
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        for name in names {
            files.entry(name).or_default().push(file.clone());
        }
    }
    text.push_str(&aligned(rows(&files)));
    text.push_str(match program.check() {
        Ok(()) => "result   it can be preloaded\n",
        Err(_) => "result   refused\n",
    });
    Ok(text)
}

fn rows(files: &BTreeMap<String, Vec<String>>) -> Vec<CheckRow> {
    let head = ["function", "calls", "reason", "imported by"].map(str::to_owned);
    let mut rows: Vec<(u8, CheckRow)> = Vec::new();
    for (name, files) in files {
        let Some(fate) = fate_of(name) else { continue };
        let (order, calls, reason) = match fate {
            ImportFate::Interposed(None) => (0, "interposed", String::new()),
            ImportFate::Interposed(Some(part)) => (0, "interposed", format!("refused: {part}")),
            ImportFate::PassedThrough(reason) => (1, "passed through", reason.to_owned()),
            ImportFate::Refused(reason) => (2, "refused", reason.to_owned()),
        };
        rows.push((order, [name.clone(), calls.to_owned(), reason, shown(files)]));
    }
    // Stable: within a group by name.
    rows.sort_by_key(|(order, _)| *order);
    std::iter::once(head).chain(rows.into_iter().map(|(_, row)| row)).collect()
}

fn shown(files: &[String]) -> String {
    let shown = files.iter().take(FILES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(FILES_SHOWN) {
        0 => shown,
        others => format!("{shown}, {others} more"),
    }
}

/// The lines, with columns of one width.
fn aligned(rows: Vec<CheckRow>) -> String {
    let mut widths = [0; 4];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let line = |row: CheckRow| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_grouped() {
        let files = [("read", 5), ("strlen", 1), ("lseek", 1), ("io_uring_setup", 1)];
        let files = files.map(|(name, count)| {
            (name.to_owned(), (0..count).map(|index| format!("lib{index}")).collect::<Vec<_>>())
        });
        let text = aligned(rows(&BTreeMap::from(files)));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("function        calls           reason"), "{text}");
        assert!(lines[1].starts_with("read            interposed "), "{text}");
        assert!(lines[1].ends_with("lib0, lib1, lib2, 2 more"), "{text}");
        assert!(lines[2].starts_with("lseek           passed through  the placeholder"), "{text}");
        assert!(lines[3].starts_with("io_uring_setup  refused         io_uring_setup"), "{text}");
        assert_eq!(lines.len(), 4, "{text}");
    }
}
