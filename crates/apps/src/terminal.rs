//! Text for a terminal: wraps lines at [`COLUMNS`].
//!
//! Pure. Widths count characters, so combining and double-width characters are counted as one
//! column each; the programs print none.

/// Columns of a terminal that everything printed for people fits into.
pub const COLUMNS: usize = 80;

/// Wraps `text` at blanks into lines of at most `columns` characters. The first line begins with
/// `head`, the others are indented by its width. A word that is longer than a line is not split,
/// so that a path can be copied.
///
/// # Examples
/// ```
/// use megapipe_apps::terminal::wrap;
///
/// assert_eq!(wrap("note: ", "one two three", 13), ["note: one two", "      three"]);
/// ```
#[must_use]
pub fn wrap(head: &str, text: &str, columns: usize) -> Vec<String> {
    let indent = width(head);
    let mut lines = Vec::new();
    let mut line = head.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let gap = usize::from(!is_empty);
        if !is_empty && width(&line) + gap + width(word) > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Columns that `text` takes.
#[must_use]
pub fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrap_fills_lines_and_indents_those_after_the_first() {
        assert_eq!(wrap("", "a bc d", 4), ["a bc", "d"]);
        assert_eq!(wrap("µs: ", "a bc d", 8), ["µs: a bc", "    d"]);
        assert_eq!(wrap("head  ", "", 80), ["head"]);
    }

    #[test]
    fn wrap_keeps_long_words_whole() {
        assert_eq!(wrap("! ", "a /a/long/path b", 8), ["! a", "  /a/long/path", "  b"]);
    }
}
