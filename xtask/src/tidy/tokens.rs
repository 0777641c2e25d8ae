//! Rust as a flat list of tokens, each with its line and whether it is test code.
//!
//! Reading tokens, and not lines, keeps comments and strings out of the rules: a comment may name a
//! banned call. `proc-macro2` does the lexing; a syntax tree is not needed for any rule.
//!
//! Invariant: every opening delimiter in the list has its closing one, at the same depth.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// One token; a delimiter is a separate token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// As written; `{`, `(`, `[` and their partners for delimiters.
    pub(crate) text: String,
    /// Its line, from 1.
    pub(crate) line: usize,
    /// How many delimiters are open around it.
    pub(crate) depth: usize,
    /// Inside an item marked `#[test]` or `#[cfg(test)]`.
    pub(crate) in_test: bool,
}

/// All tokens of a source, or the line of the first error.
pub(crate) fn read(source: &str) -> Result<Vec<Token>, usize> {
    let stream: TokenStream = source.parse().map_err(|error: proc_macro2::LexError| {
        let line = error.span().start().line;
        line.max(1)
    })?;
    let mut tokens = Vec::new();
    flatten(stream, 0, false, &mut tokens);
    Ok(tokens)
}

fn flatten(stream: TokenStream, depth: usize, in_test: bool, out: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    let mut file_in_test = in_test;
    let mut item_in_test = false;
    while let Some(tree) = trees.next() {
        let in_test = file_in_test || item_in_test;
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let ends_item = group.delimiter() == Delimiter::Brace;
                push_group(&group, depth, in_test, out);
                item_in_test &= !ends_item;
            }
            other => {
                let text = other.to_string();
                let ends_item = text == ";";
                let is_attribute = text == "#";
                if is_attribute {
                    let inner = trees.next_if(|next| next.to_string() == "!");
                    let marks = matches!(trees.peek(), Some(TokenTree::Group(g)) if marks_test(g));
                    file_in_test |= marks && inner.is_some();
                    item_in_test |= marks && inner.is_none();
                    let in_test = in_test || marks;
                    out.push(Token { text, line, depth, in_test });
                    if inner.is_some() {
                        out.push(Token { text: "!".to_owned(), line, depth, in_test });
                    }
                } else {
                    out.push(Token { text, line, depth, in_test });
                }
                item_in_test &= !ends_item;
            }
        }
    }
}

fn push_group(group: &Group, depth: usize, in_test: bool, out: &mut Vec<Token>) {
    let (open, close) = match group.delimiter() {
        Delimiter::Brace => ("{", "}"),
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => return flatten(group.stream(), depth, in_test, out),
    };
    let token = |text: &str, line| Token { text: text.to_owned(), line, depth, in_test };
    out.push(token(open, group.span_open().start().line));
    flatten(group.stream(), depth + 1, in_test, out);
    out.push(token(close, group.span_close().start().line));
}

/// `[test]`, `[cfg(test)]`, `[cfg(all(test, …))]`; not `[cfg(not(test))]`.
fn marks_test(attribute: &Group) -> bool {
    if attribute.delimiter() != Delimiter::Bracket {
        return false;
    }
    let mut inner = Vec::new();
    flatten(attribute.stream(), 0, false, &mut inner);
    let names = |word: &str| inner.iter().any(|token| token.text == word);
    match inner.first().map(|token| token.text.as_str()) {
        Some("test") => true,
        Some("cfg") => names("test") && !names("not"),
        _ => false,
    }
}

/// Where `pattern` (token texts) stands in `tokens`: the index of each match's first token.
pub(crate) fn find<'a>(
    tokens: &'a [Token],
    pattern: &'a [&str],
) -> impl Iterator<Item = usize> + 'a {
    let fits =
        move |window: &[Token]| window.iter().zip(pattern).all(|(token, text)| token.text == *text);
    tokens.windows(pattern.len()).enumerate().filter(move |(_, w)| fits(w)).map(|(index, _)| index)
}

/// The index of the delimiter that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let depth = tokens.get(open)?.depth;
    let rest = tokens.get(open + 1..)?;
    rest.iter().position(|token| token.depth == depth).map(|offset| open + 1 + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(String, bool)> {
        let tokens = read(source).expect("valid Rust");
        tokens.into_iter().map(|token| (token.text, token.in_test)).collect()
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let tokens = read("// unsafe\nconst A: &str = \"unsafe\"; /* unsafe */").expect("valid");
        assert_eq!(find(&tokens, &["unsafe"]).count(), 0);
    }

    #[test]
    fn test_items_are_marked_and_only_they() {
        let source = "fn a() { x } #[cfg(test)] mod t { fn b() { y } } fn c() { z }\n\
                      #[cfg(test)] use q; use r;";
        let marked: Vec<String> =
            texts(source).into_iter().filter(|(_, test)| *test).map(|(text, _)| text).collect();
        assert!(marked.contains(&"y".to_owned()) && marked.contains(&"q".to_owned()));
        assert!(!marked.contains(&"x".to_owned()) && !marked.contains(&"z".to_owned()));
        assert!(!marked.contains(&"r".to_owned()));
    }

    #[test]
    fn a_file_can_be_a_test_as_a_whole_and_not_test_is_code() {
        assert!(texts("#![cfg(test)] fn a() {}").iter().any(|(text, test)| text == "a" && *test));
        assert!(texts("#[cfg(not(test))] fn a() {}").iter().all(|(_, test)| !test));
    }

    #[test]
    fn lines_and_partners_are_right() {
        let tokens = read("fn a() {\n  (b);\n}\n").expect("valid");
        let open = find(&tokens, &["{"]).next().expect("a body");
        let close = closing(&tokens, open).expect("its end");
        assert_eq!((tokens[open].line, tokens[close].line), (1, 3));
        assert_eq!(tokens[close].text, "}");
    }
}
