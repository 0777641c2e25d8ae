//! References of file heads: a `//!` line that names a source file names one that exists.
//!
//! Pure: files in, findings out.

use super::{Finding, Tree};

const EXTENSION: &str = ".rs";

/// Rejects names of source files that no file of the tree has. A name may begin with folders.
pub(super) fn file_heads(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files().filter(|file| file.path.ends_with(EXTENSION)) {
        for (index, line) in file.text.lines().enumerate() {
            let Some(line) = line.trim_start().strip_prefix("//!") else { continue };
            for name in named_files(line) {
                let exists = tree.files().any(|other| is_at(&other.path, name));
                if !exists {
                    let text = format!("no file is called {name}: name the one that is meant");
                    found.push(Finding::new(&file.path, index + 1, text));
                }
            }
        }
    }
    found
}

/// Names of source files in a line of text.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_/.-".contains(letter);
    let words = line.split(move |letter| !is_part(letter));
    words.map(|word| word.trim_end_matches('.')).filter(|word| {
        word.strip_suffix(EXTENSION).is_some_and(|stem| stem.ends_with(char::is_alphanumeric))
    })
}

/// Whether a path is this name, or ends with it behind a folder.
fn is_at(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|folders| folders.is_empty() || folders.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_names_files_that_exist() {
        let files = [
            ("a/src/lib.rs", "//! Read first: `ring.rs`, and `src/ring.rs` for more.\nmod ring;\n"),
            ("a/src/ring.rs", "//! See docs.rs/libc and lib.rs.\n\n// other.rs is not looked at\n"),
        ];
        assert_eq!(file_heads(&Tree::of(&files)), []);
        let files = [("a/src/lib.rs", "//! Rings.\n//!\n//! Read first: `ring.rs`.\n")];
        let found = file_heads(&Tree::of(&files));
        assert_eq!(found.len(), 1);
        assert!(found[0].line == 3 && found[0].text.contains("ring.rs"), "{found:?}");
        assert!(!is_at("a/src/spring.rs", "ring.rs"));
    }
}
