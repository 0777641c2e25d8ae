//! The place in a script, what may be skipped there, and where an error is.
//!
//! The language has no context-free tokens: `.` is a flag, a fraction or an ellipsis by where it
//! stands. So the parser reads characters, and each rule knows what it looks for.
//!
//! Invariants: the place never moves back beyond where a rule began, and never past the end.

use super::{ParseError, ScriptProblem};
use crate::script::Remark;

/// How much of the text an error shows.
const FOUND_BYTES_MAX: usize = 24;

/// A place in a script.
pub(super) struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    /// A place and its line, so that lines of later places need not be counted from the start.
    counted: (usize, u32),
    pub(super) remarks: Vec<Remark>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, counted: (0, 1), remarks: Vec::new() }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Goes back to a place that `at` gave.
    pub(super) fn back_to(&mut self, at: usize) {
        debug_assert!(at <= self.at);
        self.at = at;
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub(super) fn peek_after(&self, count: usize) -> Option<u8> {
        self.text.get(self.at + count).copied()
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.at = (self.at + count).min(self.text.len());
    }

    pub(super) fn looks_at(&self, what: &str) -> bool {
        self.text[self.at..].starts_with(what.as_bytes())
    }

    /// Takes `what` where it stands right here.
    pub(super) fn take(&mut self, what: &str) -> bool {
        let found = self.looks_at(what);
        if found {
            self.at += what.len();
        }
        found
    }

    /// Takes `what` after white space and comments.
    pub(super) fn take_next(&mut self, what: &str) -> bool {
        let before = self.at;
        self.skip_blank();
        let found = self.take(what);
        if !found {
            self.at = before;
        }
        found
    }

    pub(super) fn expect(&mut self, what: &'static str) -> Result<(), ParseError> {
        self.skip_blank();
        if self.take(what) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// Takes characters as long as they fit.
    pub(super) fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let len = rest.iter().position(|&byte| !fits(byte)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Takes a word of letters, digits and underscores, after white space.
    pub(super) fn take_word(&mut self) -> Option<String> {
        let before = self.at;
        self.skip_blank();
        if !self.peek().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_') {
            self.at = before;
            return None;
        }
        let word = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        Some(String::from_utf8_lossy(word).into_owned())
    }

    /// Takes this very word, not the beginning of a longer one.
    pub(super) fn take_keyword(&mut self, keyword: &str) -> bool {
        let before = self.at;
        let found = self.take_word().is_some_and(|word| word == keyword);
        if !found {
            self.at = before;
        }
        found
    }

    /// Everything up to `end`, which is taken too. `escapes` lets a backslash hide its end.
    pub(super) fn take_until(&mut self, end: &'static str, escapes: bool) -> Option<&'a [u8]> {
        let from = self.at;
        while !self.is_at_end() {
            if self.looks_at(end) {
                let found = &self.text[from..self.at];
                self.at += end.len();
                return Some(found);
            }
            self.at += if escapes && self.peek() == Some(b'\\') { 2 } else { 1 };
        }
        self.at = from;
        None
    }

    /// Skips white space and comments. A comment with a remark for this interpreter is kept.
    pub(super) fn skip_blank(&mut self) {
        loop {
            self.take_while(|byte| byte.is_ascii_whitespace());
            if self.looks_at("//") || self.peek() == Some(b'#') {
                let comment = self.take_while(|byte| byte != b'\n');
                self.remarks.extend(remark(comment));
            } else if self.looks_at("/*") {
                self.at += 2;
                if self.take_until("*/", false).is_none() {
                    self.at = self.text.len();
                }
            } else {
                return;
            }
        }
    }

    /// Line and column of a place, from 1.
    pub(super) fn position(&self, at: usize) -> (u32, u32) {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    /// The line of this place, from 1.
    pub(super) fn line(&mut self) -> u32 {
        let (at, line) = self.counted;
        let between = self.text.get(at..self.at).unwrap_or_default();
        let more = between.iter().filter(|&&byte| byte == b'\n').count();
        let line = line.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        self.counted = (self.at.max(at), line);
        line
    }

    /// An error at this place.
    pub(super) fn error(&self, problem: ScriptProblem) -> ParseError {
        self.error_at(self.at, problem)
    }

    pub(super) fn error_at(&self, at: usize, problem: ScriptProblem) -> ParseError {
        let (line, column) = self.position(at);
        ParseError { line, column, problem }
    }

    /// "Something else should stand here."
    pub(super) fn expected(&self, what: &'static str) -> ParseError {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let rest = &rest[..rest.len().min(FOUND_BYTES_MAX)];
        let len = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let found = String::from_utf8_lossy(&rest[..len]).trim_end().to_owned();
        self.error(ScriptProblem::Expected { what, found })
    }
}

/// `// linux: differs: why`, else nothing.
fn remark(comment: &[u8]) -> Option<Remark> {
    let text = std::str::from_utf8(comment).ok()?.trim_start_matches(['/', '#', ' ']);
    let (system, rest) = text.split_once(':')?;
    let reason = rest.trim_start().strip_prefix("differs:")?;
    matches!(system, "linux" | "stack" | "service")
        .then(|| Remark { system: system.to_owned(), reason: reason.trim().to_owned() })
}
