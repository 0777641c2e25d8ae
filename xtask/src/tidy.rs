//! `cargo xtask tidy`: checks the project's rules that the compiler does not check.
//!
//! Each rule is a function from the tree (file names and texts) to findings. A rule reads no clock,
//! no file and no other rule's result, so each has a passing and a failing fixture in its tests.
//! `docs/STYLE.md` lists the rules with their reasons.
//!
//! Read first: `tidy/tree.rs` for what a rule gets; `tidy/tokens.rs` for how Rust is read.

mod arrows;
mod banned;
mod circles;
mod code;
mod files;
mod language;
mod markdown;
mod modules;
mod references;
mod rfc9293;
mod tokens;
mod tree;
mod types;
mod unsafety;

use std::fmt;
use std::path::Path;

use crate::error::ToolError;
use crate::{header, workspace};

pub(crate) use tokens::find;
pub(crate) use tree::{File, Tree};

/// One place where the tree breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The file, from the root.
    pub(crate) path: String,
    /// The line, from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    /// What is wrong and what to do instead.
    pub(crate) text: String,
}

impl Finding {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// The rules that need the tree alone.
const RULES: &[fn(&Tree) -> Vec<Finding>] = &[
    files::names,
    references::file_heads,
    files::heads,
    files::lengths,
    files::bytes,
    files::merges,
    files::manifests,
    files::dependencies,
    code::function_lengths,
    code::attribute_reasons,
    banned::calls,
    unsafety::allow_list,
    unsafety::forbidden_elsewhere,
    circles::circles,
    modules::orphans,
    types::duplicates,
    language::plain_english,
    markdown::links,
    markdown::headings,
    markdown::ledger,
    rfc9293::coverage,
];

/// Everything that is wrong with the sources, sorted by place.
pub(crate) fn findings(root: &Path) -> Result<Vec<Finding>, ToolError> {
    let tree = Tree::read(root)?;
    let mut found: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    found.extend(tree.unreadable());
    found.extend(arrows::pointing_up(&workspace::packages(root)?));
    found.sort();
    Ok(found)
}

/// The command: prints the findings, and whether the C header matches the sources.
pub(crate) fn run(root: &Path) -> Result<bool, ToolError> {
    let found = findings(root)?;
    for finding in &found {
        println!("{finding}");
    }
    println!("tidy: {} findings", found.len());
    let header_is_current = header::check(root)?;
    Ok(found.is_empty() && header_is_current)
}

#[cfg(test)]
mod tests;
