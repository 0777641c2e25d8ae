//! Conditional parts: `#ifdef NAME`, `#ifndef NAME`, `#else` and `#endif`, each on its own line.
//!
//! In: a script's text and the definitions. Out: the same text with blanks for the parts that do
//! not hold, so that lines and columns stay what they are. As in FreeBSD's packetdrill a name holds
//! if it is that of the system that packetdrill runs on, in any case of letters: `Linux`. One that
//! is defined (`-D NAME=value`) holds as well, and all others (`FreeBSD`, `STANDARD`) do not.
//!
//! Invariant: the result has the length of the text, and its line ends in the same places.

use super::{Definitions, ParseError, ScriptProblem};

/// The name that always holds.
const SYSTEM: &str = "Linux";

/// How deep parts may nest.
const DEPTH_MAX: usize = 32;

/// A line that begins or ends a part.
enum Directive<'a> {
    If { name: &'a str, is_wanted: bool },
    Else,
    End,
}

/// A part that is open.
struct OpenPart {
    line: u32,
    /// The parts around it hold.
    outer_holds: bool,
    /// Its condition holds, in the branch that is under way.
    holds: bool,
    has_else: bool,
}

/// The text without the parts that do not hold.
pub(super) fn select(text: &[u8], definitions: &Definitions) -> Result<Vec<u8>, ParseError> {
    let mut selected = Vec::with_capacity(text.len());
    let mut open: Vec<OpenPart> = Vec::new();
    for (line, bytes) in (1_u32..).zip(text.split_inclusive(|&byte| byte == b'\n')) {
        let holds = open.last().is_none_or(|part| part.outer_holds && part.holds);
        let directive = directive(bytes);
        if holds && directive.is_none() {
            selected.extend_from_slice(bytes);
        } else {
            selected.extend(bytes.iter().map(|&byte| if byte == b'\n' { byte } else { b' ' }));
        }
        match directive {
            None => {}
            Some(Directive::If { .. }) if open.len() == DEPTH_MAX => {
                return Err(error(line, ScriptProblem::TooMuch("nested #ifdef")));
            }
            Some(Directive::If { name, is_wanted }) => {
                let is_known =
                    name.eq_ignore_ascii_case(SYSTEM) || definitions.value(name).is_some();
                let holds_inside = is_known == is_wanted;
                open.push(OpenPart {
                    line,
                    outer_holds: holds,
                    holds: holds_inside,
                    has_else: false,
                });
            }
            Some(Directive::Else) => match open.last_mut() {
                Some(part) if !part.has_else => {
                    part.holds = !part.holds;
                    part.has_else = true;
                }
                _ => return Err(unopened(line, "#else")),
            },
            Some(Directive::End) => {
                open.pop().ok_or_else(|| unopened(line, "#endif"))?;
            }
        }
    }
    match open.last() {
        Some(part) => Err(error(part.line, ScriptProblem::Unclosed("#ifdef"))),
        None => Ok(selected),
    }
}

fn error(line: u32, problem: ScriptProblem) -> ParseError {
    ParseError { line, column: 1, problem }
}

fn unopened(line: u32, found: &str) -> ParseError {
    error(line, ScriptProblem::Expected { what: "#ifdef before it", found: found.to_owned() })
}

/// What a line of the text means here; none: it is a part's content. A comment may follow in the
/// line.
fn directive(line: &[u8]) -> Option<Directive<'_>> {
    let text = std::str::from_utf8(line.trim_ascii()).ok()?;
    let mut words = text.split_ascii_whitespace();
    match (words.next()?, words.next()) {
        ("#ifdef", Some(name)) => Some(Directive::If { name, is_wanted: true }),
        ("#ifndef", Some(name)) => Some(Directive::If { name, is_wanted: false }),
        ("#else", _) => Some(Directive::Else),
        ("#endif", _) => Some(Directive::End),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(text: &str, definitions: &[&str]) -> Vec<String> {
        let mut all = Definitions::default();
        assert!(definitions.iter().all(|definition| all.define(definition)));
        let bytes = select(text.as_bytes(), &all).expect("balanced");
        assert_eq!(bytes.len(), text.len());
        let text = String::from_utf8(bytes).expect("text");
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn ifdef_of_linux_holds_and_of_other_systems_does_not() {
        let text = "a\n#ifdef Linux\nb\n#else\nc\n#endif\n#ifdef FreeBSD\nd\n#endif\n\
                    #ifdef STANDARD\ne\n#else // others\nf\n#endif\n#ifndef linux\ng\n#endif\nh";
        let kept = ["a", "b", "f", "h"].map(str::to_owned).to_vec();
        let lines: Vec<String> =
            selected(text, &[]).into_iter().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines, kept);
    }

    #[test]
    fn ifdef_of_a_defined_name_holds_and_parts_nest() {
        let text = "#ifdef STANDARD\n#ifdef FreeBSD\na\n#else\nb\n#endif\nc\n#endif\n";
        assert_eq!(selected(text, &["STANDARD=1"]), ["", "", "", "", "b", "", "c", ""]);
        assert!(selected(text, &[]).iter().all(String::is_empty));
    }

    #[test]
    fn ifdef_without_endif_is_an_error_with_its_line() {
        let wrong = |text: &str| select(text.as_bytes(), &Definitions::default()).map(drop);
        let error = wrong("a\n#ifdef Linux\nb\n").expect_err("it stays open");
        assert_eq!((error.line, error.problem), (2, ScriptProblem::Unclosed("#ifdef")));
        assert_eq!(wrong("a\n#else\n").expect_err("not open").line, 2);
        assert_eq!(wrong("#ifdef A\n#else\n#else\n#endif").expect_err("two of them").line, 3);
        assert_eq!(wrong("# a comment\n#!shell\n"), Ok(()));
    }
}
