//! Duplicate type names: one name stands for one meaning in the whole workspace.
//!
//! Read first: `docs/STYLE.md`. A name that is defined more than once is a finding, unless
//! `types/duplicates.txt` allows that number of definitions with a reason. The numbers only shrink.
//!
//! Pure: files and the list in, findings out.

use std::collections::BTreeMap;

use super::tokens::Token;
use super::{Finding, Tree};

/// The allow-list, from the root of the workspace.
const LIST: &str = "xtask/src/tidy/types/duplicates.txt";

/// A line of the allow-list.
struct Allowed {
    line: usize,
    definitions: usize,
}

/// Finds names of structs, enums and traits with more than one definition outside tests.
pub(super) fn duplicates(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let allowed = allowed(tree, &mut found);
    let definitions = definitions(tree);
    for (name, places) in &definitions {
        let most = allowed.get(name).map_or(1, |entry| entry.definitions);
        if places.len() > most {
            let (path, line) = &places[places.len() - 1];
            let others: Vec<&str> =
                places[..places.len() - 1].iter().map(|(path, _)| path.as_str()).collect();
            let text = format!("type {name} is also defined in {}: qualify it", others.join(", "));
            found.push(Finding::new(path, *line, text));
        }
    }
    for (name, entry) in allowed {
        let text = match definitions.get(name).map_or(0, Vec::len) {
            0 | 1 => format!("{name} is no duplicate any more: remove this line"),
            count if count < entry.definitions => format!("{name} has {count} definitions now"),
            _ => continue,
        };
        found.push(Finding::new(LIST, entry.line, text));
    }
    found
}

/// Parses the allow-list: `NAME COUNT: REASON` in each entry.
fn allowed<'t>(tree: &'t Tree, found: &mut Vec<Finding>) -> BTreeMap<&'t str, Allowed> {
    let mut allowed = BTreeMap::new();
    for (line, entry) in tree.entries(LIST) {
        let parsed = entry.split_once(": ").and_then(|(head, reason)| {
            let (name, count) = head.split_once(' ')?;
            (!reason.trim().is_empty()).then_some(())?;
            Some((name, count.parse().ok()?))
        });
        match parsed {
            Some((name, definitions)) => {
                allowed.insert(name, Allowed { line, definitions });
            }
            None => found.push(Finding::new(LIST, line, "expected `NAME COUNT: REASON`")),
        }
    }
    allowed
}

/// The definitions of each name: path and line.
fn definitions(tree: &Tree) -> BTreeMap<&str, Vec<(String, usize)>> {
    let mut definitions: BTreeMap<&str, Vec<(String, usize)>> = BTreeMap::new();
    for file in tree.rust().filter(|file| !file.is_test()) {
        for pair in file.tokens().windows(2) {
            if is_definition(pair) {
                let place = (file.path.clone(), pair[0].line);
                definitions.entry(pair[1].text.as_str()).or_default().push(place);
            }
        }
    }
    definitions
}

/// Whether a keyword and a name define a type outside test code.
fn is_definition(pair: &[Token]) -> bool {
    let is_keyword = matches!(&*pair[0].text, "struct" | "enum" | "trait");
    let is_name = pair[1].text.starts_with(char::is_uppercase);
    is_keyword && is_name && !pair[0].in_test
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        duplicates(&Tree::of(files)).into_iter().map(|found| (found.path, found.line)).collect()
    }

    #[test]
    fn type_defined_twice_is_found_in_the_last_file() {
        let files = [("a/src/a.rs", "struct Slot;"), ("b/src/b.rs", "\npub enum Slot { A }")];
        assert_eq!(lines(&files), [("b/src/b.rs".to_owned(), 2)]);
    }

    #[test]
    fn tests_and_other_items_are_not_counted() {
        let test = "#[cfg(test)] mod tests { struct Slot; }";
        let files = [
            ("a/src/a.rs", "struct Slot;"),
            ("b/src/b.rs", test),
            ("c/tests/c.rs", "struct Slot;"),
        ];
        assert_eq!(lines(&files), []);
        assert_eq!(lines(&[("a/src/a.rs", "fn f() { let a = Slot; impl Slot {} }")]), []);
    }

    #[test]
    fn allowed_duplicates_are_limited_to_their_count() {
        let two = [("a/src/a.rs", "struct Slot;"), ("b/src/b.rs", "trait Slot {}")];
        let listed = (LIST, "# why\n\nSlot 2: generated\n");
        assert_eq!(lines(&[two[0], two[1], listed]), []);
        assert_eq!(lines(&[two[0], two[1], ("c/src/c.rs", "enum Slot {}"), listed]).len(), 1);
        assert_eq!(lines(&[two[0], listed]), [(LIST.to_owned(), 3)]);
        let too_many = (LIST, "Slot 3: generated\n");
        assert_eq!(lines(&[two[0], two[1], too_many]), [(LIST.to_owned(), 1)]);
    }

    #[test]
    fn allow_list_without_a_reason_is_rejected() {
        assert_eq!(lines(&[(LIST, "Slot 2\nSlot 2: \nSlot x: y\n")]).len(), 3);
    }
}
