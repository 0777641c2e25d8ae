//! `cargo xtask bench instructions`: instruction counts of the stack beside smoltcp, with bars.
//!
//! Read first: the heads of `crates/stack/examples/short_connections` and `segment_cost.rs`, which
//! are run under callgrind. Counts do not depend on the machine's speed; the row of nanoseconds is
//! a ratio of two runs in turn, so it depends little on it.
//!
//! `make test` counts our own rows as well, by [`count_guarded`]: none may be above its limit.
//!
//! Invariant: a row is printed only if it was counted; without valgrind there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ToolError;
use crate::process;

/// A count of the example `short_connections`.
struct ConnectionRow {
    title: &'static str,
    load: &'static str,
    /// Results that the example divides by.
    count: f64,
    bar: f64,
}

const CONNECTION_ROWS: [ConnectionRow; 3] = [
    ConnectionRow {
        title: "connection, one transaction, RST; one at a time",
        load: "reset",
        count: 4096.0,
        bar: 9_950.0,
    },
    ConnectionRow {
        title: "the same, 256 at once",
        load: "reset-256",
        count: 4096.0,
        bar: 10_015.0,
    },
    ConnectionRow {
        title: "the same with FINs, one at a time",
        load: "fin",
        count: 4096.0,
        bar: 13_340.0,
    },
];

/// A count of the example `segment_cost`.
struct SegmentRow {
    title: &'static str,
    arguments: &'static [&'static str],
    bar: SegmentBar,
}

enum SegmentBar {
    AtMost(f64),
    /// At most 1.05 times the row of IPv4 with timestamps. Beside it, what the test allows: the
    /// count that was reached.
    NearIpv4(f64),
}

impl SegmentBar {
    /// The most that the test allows, without its tolerance.
    fn guard(&self) -> f64 {
        match self {
            Self::AtMost(most) | Self::NearIpv4(most) => *most,
        }
    }
}

const SEGMENT_ROWS: [SegmentRow; 6] = [
    SegmentRow {
        title: "received segment of 64 B, to its event",
        arguments: &["data"],
        bar: SegmentBar::AtMost(295.0),
    },
    SegmentRow {
        title: "the same over IPv4 without timestamps",
        arguments: &["data", "plain"],
        bar: SegmentBar::NearIpv4(309.0),
    },
    SegmentRow {
        title: "the same over IPv6",
        arguments: &["data", "ipv6"],
        bar: SegmentBar::NearIpv4(293.0),
    },
    SegmentRow {
        title: "the same over IPv6 without timestamps",
        arguments: &["data", "ipv6", "plain"],
        bar: SegmentBar::NearIpv4(304.0),
    },
    SegmentRow {
        title: "received segment that acknowledges the answer before",
        arguments: &["requests"],
        bar: SegmentBar::AtMost(383.0),
    },
    SegmentRow {
        title: "answer of 64 B, from the command to its frame",
        arguments: &["answers"],
        bar: SegmentBar::AtMost(698.0),
    },
];

/// Where cargo puts the examples.
const EXAMPLES: &str = "target/release/examples";
/// What is not counted: the examples' memory of buffers.
const OUTSIDE: &str = "--toggle-collect=*Outside as *";
/// Segments that `segment_cost` counts.
const SEGMENTS: f64 = 1000.0;
/// How far above its bar the test lets a row be, as a factor: copies of the C library take other
/// instructions on other processors, and compilers allocate registers in other ways.
const GUARD_TOLERANCE: f64 = 1.01;
/// What IPv6, and segments without timestamps, may cost over IPv4 with timestamps.
const LAYOUT_RATIO_MAX: f64 = 1.05;
/// Nanoseconds of a transaction over smoltcp's.
const TIME_RATIO_MAX: f64 = 0.80;

/// A line of the table.
struct TableRow {
    title: String,
    ours: String,
    smoltcp: String,
    bar: String,
    is_met: bool,
}

/// Builds both examples, counts every row and prints the table. `false`: an example does not build.
/// A row over its bar is a result, and no failure.
pub(super) fn run(root: &Path) -> Result<bool, ToolError> {
    if !process::is_installed("valgrind") {
        println!("instructions: skipped, valgrind is not installed (`cargo xtask setup`)");
        return Ok(true);
    }
    if !process::passes_through(&mut build(root))? {
        return Ok(false);
    }
    let folder = root.join(EXAMPLES);
    let mut rows = connection_rows(&folder)?;
    rows.extend(segment_rows(&folder)?);
    rows.push(time_row(&folder)?);
    print!("{}", table_of(&rows));
    Ok(true)
}

/// The command that builds both examples.
pub(crate) fn build(root: &Path) -> Command {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "megapipe-stack"]);
    build.args(["--example", "short_connections", "--example", "segment_cost"]);
    build
}

/// A row that the test has counted.
pub(crate) struct GuardedRow {
    pub(crate) title: &'static str,
    pub(crate) instructions: f64,
    pub(crate) limit: f64,
}

/// Counts our rows in the examples that [`build`] has built. Takes some ten seconds.
pub(crate) fn count_guarded(
    root: &Path,
    mut each: impl FnMut(&str),
) -> Result<Vec<GuardedRow>, ToolError> {
    let folder = root.join(EXAMPLES);
    let mut rows = Vec::new();
    for row in &CONNECTION_ROWS {
        each(row.title);
        let instructions = row.count(&folder, "ours")?;
        rows.push(GuardedRow { title: row.title, instructions, limit: row.bar * GUARD_TOLERANCE });
    }
    for row in &SEGMENT_ROWS {
        each(row.title);
        let limit = row.bar.guard() * GUARD_TOLERANCE;
        rows.push(GuardedRow { title: row.title, instructions: row.count(&folder)?, limit });
    }
    Ok(rows)
}

impl ConnectionRow {
    fn count(&self, folder: &Path, stack: &str) -> Result<f64, ToolError> {
        let program = folder.join("short_connections");
        Ok(counted(&program, &["run", stack, self.load], "*::measured")? / self.count)
    }
}

impl SegmentRow {
    fn count(&self, folder: &Path) -> Result<f64, ToolError> {
        Ok(counted(&folder.join("segment_cost"), self.arguments, "*measured*")? / SEGMENTS)
    }
}

fn connection_rows(folder: &Path) -> Result<Vec<TableRow>, ToolError> {
    let mut rows = Vec::new();
    for row in &CONNECTION_ROWS {
        let (ours, smoltcp) = (row.count(folder, "ours")?, row.count(folder, "smoltcp")?);
        let ConnectionRow { title, bar, .. } = *row;
        rows.push(TableRow {
            title: title.to_owned(),
            ours: format!("{ours:.0}"),
            smoltcp: format!("{smoltcp:.0}"),
            bar: format!("<= {bar:.0}"),
            is_met: ours <= bar,
        });
    }
    Ok(rows)
}

fn segment_rows(folder: &Path) -> Result<Vec<TableRow>, ToolError> {
    let mut rows = Vec::new();
    let mut ipv4 = None;
    for row in &SEGMENT_ROWS {
        let ours = row.count(folder)?;
        let first = *ipv4.get_or_insert(ours);
        let most = match row.bar {
            SegmentBar::AtMost(most) => most,
            SegmentBar::NearIpv4(_) => first * LAYOUT_RATIO_MAX,
        };
        rows.push(TableRow {
            title: row.title.to_owned(),
            ours: format!("{ours:.0}"),
            smoltcp: String::new(),
            bar: format!("<= {most:.0}"),
            is_met: ours.round() <= most,
        });
    }
    Ok(rows)
}

/// Nanoseconds of a transaction, and their ratio.
fn time_row(folder: &Path) -> Result<TableRow, ToolError> {
    let mut command = Command::new(folder.join("short_connections"));
    let printed = process::output_of(command.args(["time", "transactions"]))?;
    let numbers: Vec<f64> =
        printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [ours, smoltcp, ratio] = numbers[..] else {
        return Err(unreadable(&command, &printed));
    };
    Ok(TableRow {
        title: "ns per transaction, 16 connections with 128 each".to_owned(),
        ours: format!("{ours:.0}"),
        smoltcp: format!("{smoltcp:.0}"),
        bar: format!("ratio {ratio:.2} <= {TIME_RATIO_MAX:.2}"),
        is_met: ratio <= TIME_RATIO_MAX,
    })
}

/// Instructions of the function `counted` in a run of `program` under callgrind.
fn counted(program: &PathBuf, arguments: &[&str], counted: &str) -> Result<f64, ToolError> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null"]);
    command.args(["--log-fd=1", OUTSIDE]).arg(format!("--toggle-collect={counted}"));
    let printed = process::output_of(command.arg(program).args(arguments))?;
    collected(&printed).ok_or_else(|| unreadable(&command, &printed))
}

/// The sum that callgrind printed; `None`: it counted nothing.
fn collected(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.contains("Collected :"))?;
    let count: f64 = line.rsplit(':').next()?.trim().parse().ok()?;
    (count > 0.0).then_some(count)
}

fn unreadable(command: &Command, printed: &str) -> ToolError {
    ToolError::Failed { command: process::describe(command), output: printed.to_owned() }
}

/// The rows with aligned columns.
fn table_of(rows: &[TableRow]) -> String {
    let width = |column: fn(&TableRow) -> &str, head: &str| {
        rows.iter().map(|row| column(row).len()).fold(head.len(), usize::max)
    };
    let [title, ours, smoltcp, bar] = [
        width(|row| &row.title, "instructions"),
        width(|row| &row.ours, "ours"),
        width(|row| &row.smoltcp, "smoltcp"),
        width(|row| &row.bar, "bar"),
    ];
    let mut table = format!(
        "{:title$}  {:>ours$}  {:>smoltcp$}  {:<bar$}  met\n",
        "instructions", "ours", "smoltcp", "bar"
    );
    for row in rows {
        let met = if row.is_met { "yes" } else { "no" };
        table += &format!(
            "{:title$}  {:>ours$}  {:>smoltcp$}  {:<bar$}  {met}\n",
            row.title, row.ours, row.smoltcp, row.bar
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_callgrind_is_read() {
        let printed = "==7== Events    : Ir\n==7== Collected : 53237012\n==7==\n";
        assert_eq!(collected(printed), Some(53_237_012.0));
        assert_eq!(collected("==7== Collected : 0\n"), None, "nothing was counted");
        assert_eq!(collected("error"), None);
    }

    #[test]
    fn columns_of_table_are_aligned() {
        let row = |title: &str, ours: &str, is_met| TableRow {
            title: title.to_owned(),
            ours: ours.to_owned(),
            smoltcp: "7".to_owned(),
            bar: "<= 10".to_owned(),
            is_met,
        };
        let table = table_of(&[row("a longer title", "12000", false), row("b", "9", true)]);
        assert_eq!(
            table,
            "instructions     ours  smoltcp  bar    met\n\
             a longer title  12000        7  <= 10  no\n\
             b                   9        7  <= 10  yes\n"
        );
    }
}
