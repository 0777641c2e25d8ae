//! Plain English: rejects words that use people for threads, sockets and peers (`docs/STYLE.md`).
//!
//! Pure: files in, findings out.

use super::{Finding, Tree};

/// Not checked: its entries of earlier changes stay as they were written.
const EXEMPT: &str = "CHANGELOG.md";

/// Words and phrases in lower case, one a line.
const WORDS: &str = include_str!("language/words.txt");

/// Rejects the words in sources, headers, pages and manuals.
pub(super) fn plain_english(tree: &Tree) -> Vec<Finding> {
    let is_text = |path: &str| {
        let extension = path.rsplit('.').next().unwrap_or_default();
        ["rs", "md", "h", "c", "1", "3", "7", "8"].contains(&extension)
    };
    let mut found = Vec::new();
    for file in tree.files() {
        if !is_text(&file.path) || file.path == EXEMPT {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            if let Some(word) = first_word(&line.to_lowercase()) {
                let text = format!("\"{word}\": name the component that acts (docs/STYLE.md)");
                found.push(Finding::new(&file.path, index + 1, text));
            }
        }
    }
    found
}

/// Returns the first listed word of a line in lower case.
fn first_word(line: &str) -> Option<&'static str> {
    WORDS.lines().find(|word| contains_word(line, word))
}

/// Whether `word` occurs in `line`, not as a part of a longer word. An underscore separates words,
/// so that names of tests are checked too. A quoted word is a value, such as a user name.
fn contains_word(line: &str, word: &str) -> bool {
    let is_letter = |next: Option<char>| next.is_some_and(char::is_alphanumeric);
    line.match_indices(word).any(|(start, _)| {
        let (before, after) =
            (line[..start].chars().next_back(), line[start + word.len()..].chars().next());
        let is_quoted = before == Some('"') && after == Some('"');
        !is_letter(before) && !is_letter(after) && !is_quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        plain_english(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    /// A line of a text with each listed word.
    fn samples() -> String {
        WORDS.lines().map(|word| format!("/// Then {word}.\n")).collect()
    }

    #[test]
    fn plain_english_rejects_listed_words() {
        let all: Vec<usize> = (1..=WORDS.lines().count()).collect();
        assert_eq!(lines("xtask/src/a.rs", &samples()), all);
        let word = WORDS.lines().next().expect("a word");
        let text = format!("//! {}.\nfn stops_{word}() {{}}\n", word.to_uppercase());
        assert_eq!(lines("crates/link/src/a.rs", &text), [1, 2]);
    }

    #[test]
    fn plain_english_accepts_parts_of_words_and_values() {
        let word = WORDS.lines().next().expect("a word");
        let text = format!("//! The threshold, x{word}x.\n// \"{word}\"\n");
        assert_eq!(lines("xtask/src/a.rs", &text), NONE);
    }

    #[test]
    fn plain_english_skips_other_files() {
        assert_eq!(lines(EXEMPT, &samples()), NONE);
        assert_eq!(lines("xtask/a.json", &samples()), NONE);
    }
}
