//! Rules about the shape of Rust code.

use std::collections::BTreeSet;

use super::tokens::{self, Token};
use super::{Finding, Tree};
use crate::limits;

/// A function fits on a screen. Comments and blank lines are free, signatures are not.
pub(super) fn function_lengths(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        for (name, tokens) in functions(file.tokens()) {
            let lines: BTreeSet<usize> = tokens.iter().map(|token| token.line).collect();
            if lines.len() > limits::FUNCTION_LINES_MAX {
                let (count, max) = (lines.len(), limits::FUNCTION_LINES_MAX);
                let text = format!("fn {name} has {count} lines of code; {max} at most");
                found.push(Finding::new(&file.path, tokens[0].line, text));
            }
        }
    }
    found
}

/// Each function with a body: its name and its tokens from `fn` to the closing brace.
fn functions(tokens: &[Token]) -> impl Iterator<Item = (&str, &[Token])> {
    tokens::find(tokens, &["fn"]).filter_map(move |start| {
        let name = tokens.get(start + 1)?.text.as_str();
        let depth = tokens[start].depth;
        let is_end =
            |token: &Token| token.depth == depth && matches!(&*token.text, "{" | ";" | ",");
        let end = start + tokens[start..].iter().position(is_end)?;
        // `fn(…)` is a type, and a declaration ends in `;`.
        if name == "(" || tokens[end].text != "{" {
            return None;
        }
        let close = tokens::closing(tokens, end)?;
        Some((name, &tokens[start..=close]))
    })
}

/// A silenced lint has a reason.
pub(super) fn attribute_reasons(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let tokens = file.tokens();
        for word in ["allow", "expect"] {
            for index in tokens::find(tokens, &["[", word, "("]) {
                let close = tokens::closing(tokens, index + 2).unwrap_or(index + 2);
                let has_reason = tokens[index..close].iter().any(|token| token.text == "reason");
                if !has_reason {
                    let text = format!("#[{word}] without a reason = \"…\"");
                    found.push(Finding::new(&file.path, tokens[index].line, text));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(lines: usize) -> String {
        format!("//! A.\nfn a() {{\n{}}}\n", "    b();\n".repeat(lines))
    }

    #[test]
    fn long_functions_are_found() {
        let fits = body(limits::FUNCTION_LINES_MAX - 2);
        assert_eq!(function_lengths(&Tree::of(&[("a.rs", &fits)])), []);
        let long = body(limits::FUNCTION_LINES_MAX - 1);
        let found = function_lengths(&Tree::of(&[("a.rs", &long)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].text.starts_with("fn a has 71 lines"), "{}", found[0].text);
        assert_eq!(found[0].line, 2);
    }

    #[test]
    fn comments_are_free_and_declarations_are_no_functions() {
        let comments = "    // why\n\n".repeat(limits::FUNCTION_LINES_MAX);
        let source = format!("fn a() {{\n{comments}}}\n");
        assert_eq!(function_lengths(&Tree::of(&[("a.rs", &source)])), []);
        let tokens = tokens::read("trait T { fn a(b: fn(u8) -> [u8; 2]); fn c() {} }");
        let tokens = tokens.expect("valid");
        assert_eq!(functions(&tokens).map(|(name, _)| name).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn a_silenced_lint_needs_a_reason() {
        let bad = "#[allow(dead_code)]\nfn a() {}\n#![expect(unused)]\n";
        assert_eq!(attribute_reasons(&Tree::of(&[("a.rs", bad)])).len(), 2);
        let good = "#[allow(dead_code, reason = \"used by C\")]\nfn a() { b.expect(\"c\") }\n";
        assert_eq!(attribute_reasons(&Tree::of(&[("a.rs", good)])), []);
    }
}
