//! Instructions of the stack per connection and segment: none above its limit.
//!
//! Counts, not times: they do not depend on the machine's speed, so they may decide. Read first:
//! `bench/instructions.rs` for the rows and their limits.

use std::path::Path;

use super::{Display, StepOutcome, command};
use crate::bench::instructions::{self, GuardedRow};
use crate::ci::tally::TestCounts;
use crate::error::ToolError;
use crate::process;

/// Builds the programs that are counted, and counts them under callgrind.
pub(super) fn check(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    if !process::is_installed("valgrind") {
        let why = "valgrind is not installed; `cargo xtask setup` says how";
        return Ok(StepOutcome::skip("instructions", why));
    }
    let built = command(&mut instructions::build(root), display)?;
    if !built.counts.failures.is_empty() {
        return Ok(built);
    }
    let rows = instructions::count_guarded(root, |title| display.tick(Some(title)))?;
    Ok(StepOutcome::counted(judge(&rows), rows.iter().map(line_of).collect()))
}

/// Each row is a test.
fn judge(rows: &[GuardedRow]) -> TestCounts {
    let failures: Vec<String> = rows
        .iter()
        .filter(|row| row.instructions > row.limit)
        .map(|row| format!("instructions: {}", line_of(row)))
        .collect();
    TestCounts { passed: rows.len() - failures.len(), failures, skips: Vec::new() }
}

fn line_of(row: &GuardedRow) -> String {
    format!("{}: {:.0}, at most {:.0}", row.title, row.instructions, row.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_above_its_limit_fails() {
        let row = |instructions| GuardedRow { title: "a segment", instructions, limit: 301.0 };
        let counts = judge(&[row(301.0), row(302.0), row(290.0)]);
        assert_eq!(counts.passed, 2);
        assert_eq!(counts.failures, ["instructions: a segment: 302, at most 301"]);
    }
}
