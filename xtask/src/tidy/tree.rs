//! The files that git tracks, or would track, with their texts: what every rule reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::Finding;
use super::tokens::{self, Token};
use crate::error::ToolError;
use crate::process;

/// One file.
pub(crate) struct File {
    /// From the root, with `/`.
    pub(crate) path: String,
    /// Its text; empty when it is no UTF-8.
    pub(crate) text: String,
    /// Its length on disk.
    pub(crate) bytes: u64,
    /// Its tokens when it is Rust: `Err` is the line where it stops being Rust.
    tokens: Option<Result<Vec<Token>, usize>>,
}

impl File {
    pub(crate) fn new(path: String, text: String, bytes: u64) -> Self {
        let tokens = path.ends_with(".rs").then(|| tokens::read(&text));
        Self { path, text, bytes, tokens }
    }

    /// The tokens of a Rust file; none for another file.
    pub(crate) fn tokens(&self) -> &[Token] {
        self.tokens.as_ref().and_then(|tokens| tokens.as_deref().ok()).unwrap_or_default()
    }

    /// The last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Rust?
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// A file of tests as a whole: in a `tests` or `benches` folder, or a `tests.rs`.
    pub(crate) fn is_test(&self) -> bool {
        let mut folders = self.path.split('/');
        self.name() == "tests.rs" || folders.any(|folder| folder == "tests" || folder == "benches")
    }

    /// The first lines that start with `//!`.
    pub(crate) fn head(&self) -> impl Iterator<Item = &str> {
        self.text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim)
    }
}

/// The files by path.
pub(crate) struct Tree {
    files: BTreeMap<String, File>,
}

impl Tree {
    /// The tree below `root` as git sees it, new files included, ignored ones not.
    pub(crate) fn read(root: &Path) -> Result<Self, ToolError> {
        let mut git = std::process::Command::new("git");
        git.current_dir(root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let list = process::output_of(&mut git)?;
        let mut files = BTreeMap::new();
        for path in list.split('\0').filter(|path| !path.is_empty()) {
            let full = root.join(path);
            // A file that was deleted and not committed yet is still listed; a link is not ours.
            let Ok(metadata) = full.symlink_metadata() else { continue };
            if metadata.is_file() {
                let bytes = fs::read(&full).map_err(ToolError::file(&full))?;
                let text = String::from_utf8(bytes).unwrap_or_default();
                files.insert(path.to_owned(), File::new(path.to_owned(), text, metadata.len()));
            }
        }
        Ok(Self { files })
    }

    /// A tree for a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| {
            let bytes = text.len().try_into().expect("a fixture is small");
            (path.to_owned(), File::new(path.to_owned(), text.to_owned(), bytes))
        };
        Self { files: files.iter().map(file).collect() }
    }

    /// All files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// All Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.is_rust())
    }

    /// The file of that path.
    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// The entries of a list, each with its line: lines that are neither blank nor a comment (`#`).
    pub(crate) fn entries(&self, path: &str) -> impl Iterator<Item = (usize, &str)> {
        let text = self.get(path).map_or("", |file| &file.text);
        (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    }

    /// Whether a folder of that path holds any file.
    pub(crate) fn has_folder(&self, path: &str) -> bool {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        self.files.keys().any(|file| file.starts_with(&prefix))
    }

    /// Rust files that cannot be read as Rust: no other rule sees into them.
    pub(crate) fn unreadable(&self) -> Vec<Finding> {
        let broken = |file: &File| match file.tokens {
            Some(Err(line)) => Some(Finding::new(&file.path, line, "this is not Rust")),
            _ => None,
        };
        self.files().filter_map(broken).collect()
    }
}
