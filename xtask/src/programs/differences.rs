//! The list of cases that pass without the library and not with it.
//!
//! In: `tests/programs/differences.txt`, of lines `SUITE BACKEND CASE: REASON`. Out: the cases of a
//! suite by back end.

use std::collections::BTreeSet;
use std::path::Path;

use super::launcher::RunMode;
use crate::error::ToolError;

/// The list.
pub(super) const FILE: &str = "tests/programs/differences.txt";

/// The known differences of one suite.
#[derive(Debug, Default)]
pub(super) struct KnownDifferences(BTreeSet<(RunMode, String)>);

impl KnownDifferences {
    pub(super) fn read(root: &Path, suite: &str) -> Result<Self, ToolError> {
        let path = root.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(ToolError::file(&path))?;
        Self::parse(suite, &text)
    }

    /// # Errors
    /// The first line that is none of the list's.
    pub(super) fn parse(suite: &str, text: &str) -> Result<Self, ToolError> {
        let mut known = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let wrong = || ToolError::Wrong(format!("{FILE}: {line}: no SUITE BACKEND CASE: WHY"));
            let (words, why) = line.split_once(": ").ok_or_else(wrong)?;
            let words: Vec<&str> = words.split(' ').collect();
            let [of, mode, case] = words[..] else { return Err(wrong()) };
            let mode = RunMode::ALL.into_iter().find(|it| it.to_string() == mode);
            let mode = mode.filter(|it| *it != RunMode::Plain && !why.is_empty());
            let mode = mode.ok_or_else(wrong)?;
            if of == suite {
                known.0.insert((mode, case.to_owned()));
            }
        }
        Ok(known)
    }

    pub(super) fn has(&self, mode: RunMode, case: &str) -> bool {
        self.0.contains(&(mode, case.to_owned()))
    }

    pub(super) fn of(&self, mode: RunMode) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(of, _)| *of == mode).map(|(_, case)| case.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_a_reason_or_back_end_are_refused() {
        let text = "# comment\n\na kernel x.y: because\nb local z: because: of this\n";
        let known = KnownDifferences::parse("b", text).unwrap();
        assert_eq!(known.of(RunMode::Local).collect::<Vec<_>>(), ["z"]);
        assert!(known.has(RunMode::Local, "z") && !known.has(RunMode::Kernel, "x.y"));
        for wrong in ["a kernel x.y", "a plain x: why", "a x: why", "a kernel x: "] {
            assert!(KnownDifferences::parse("a", wrong).is_err(), "{wrong}");
        }
    }
}
