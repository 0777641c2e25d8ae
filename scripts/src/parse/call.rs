//! System calls: `connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)`.
//!
//! Arguments are parsed by form alone (lists, structures, functions); what they mean for a call is
//! `call.rs`'s business. So structures of any name can be written.

use super::{Definitions, ParseError, ScriptProblem};
use crate::limits::{ELEMENTS_MAX, EXPRESSION_DEPTH_MAX};
use crate::parse::cursor::Cursor;
use crate::parse::number::integer;
use crate::parse::time::seconds;
use crate::script::{CallLine, EventTime, Expression, ScriptAction};

/// A call, with the end of its time before it if it blocks.
pub(super) fn call(
    cursor: &mut Cursor<'_>,
    when: EventTime,
    definitions: &Definitions,
) -> Result<ScriptAction, ParseError> {
    let start = cursor.at();
    let end_us = if cursor.take("...") {
        cursor.skip_blank();
        cursor.take("+");
        cursor.skip_blank();
        Some(seconds(cursor)?)
    } else {
        None
    };
    let begins_at = match when {
        EventTime::Absolute { at_us, .. } | EventTime::Relative { at_us, .. } => at_us,
        EventTime::Any => 0,
    };
    if end_us.is_some_and(|end_us| end_us < begins_at) {
        return Err(cursor.error_at(start, ScriptProblem::BackwardRange));
    }
    let name = cursor.take_word().ok_or_else(|| {
        cursor.expected("`<`, `>`, a system call, a command in backticks or code in %{ }%")
    })?;
    if let Some(command) = definitions.value(&name).and_then(|value| value.strip_prefix('`')) {
        return Ok(ScriptAction::Command(command.trim_end_matches('`').to_owned()));
    }
    cursor.expect("(")?;
    let arguments = elements(cursor, ")", definitions, 0)?;
    cursor.expect("=")?;
    let result = expression(cursor, definitions, 0)?;
    let errno = cursor.take_word();
    note(cursor)?;
    Ok(ScriptAction::Call(CallLine { name, arguments, end_us, result, errno }))
}

/// `(Operation now in progress)`: for the reader only.
fn note(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    if cursor.take_next("(") && cursor.take_until(")", false).is_none() {
        return Err(cursor.error(ScriptProblem::Unclosed("a note in parentheses")));
    }
    Ok(())
}

/// Expressions with commas between them, up to `end`, which is taken too.
fn elements(
    cursor: &mut Cursor<'_>,
    end: &'static str,
    definitions: &Definitions,
    depth: usize,
) -> Result<Vec<Expression>, ParseError> {
    let mut elements = Vec::new();
    if cursor.take_next(end) {
        return Ok(elements);
    }
    loop {
        elements.push(expression(cursor, definitions, depth)?);
        if elements.len() > ELEMENTS_MAX {
            return Err(cursor.error(ScriptProblem::TooMuch("a list")));
        }
        if !cursor.take_next(",") {
            break;
        }
        // FreeBSD's scripts let a list end with a comma.
        if cursor.take_next(end) {
            return Ok(elements);
        }
    }
    cursor.expect(end)?;
    Ok(elements)
}

/// One expression, alternatives with `|` included.
fn expression(
    cursor: &mut Cursor<'_>,
    definitions: &Definitions,
    depth: usize,
) -> Result<Expression, ParseError> {
    if depth > EXPRESSION_DEPTH_MAX {
        return Err(cursor.error(ScriptProblem::TooMuch("an expression")));
    }
    let mut left = term(cursor, definitions, depth + 1)?;
    let mut count = 0;
    while cursor.take_next("|") {
        count += 1;
        if count > EXPRESSION_DEPTH_MAX {
            return Err(cursor.error(ScriptProblem::TooMuch("an expression")));
        }
        let right = term(cursor, definitions, depth + 1)?;
        left = Expression::Or(Box::new(left), Box::new(right));
    }
    Ok(left)
}

fn term(
    cursor: &mut Cursor<'_>,
    definitions: &Definitions,
    depth: usize,
) -> Result<Expression, ParseError> {
    cursor.skip_blank();
    match cursor.peek() {
        Some(b'[') => {
            cursor.advance(1);
            Ok(Expression::List(elements(cursor, "]", definitions, depth)?))
        }
        Some(b'{') => {
            cursor.advance(1);
            Ok(Expression::Structure(elements(cursor, "}", definitions, depth)?))
        }
        Some(b'"') => text(cursor),
        Some(b'.') if cursor.take("...") => Ok(Expression::Ellipsis),
        Some(b'-' | b'0'..=b'9') => Ok(Expression::Integer(integer(cursor, "a number")?)),
        _ => word(cursor, definitions, depth),
    }
}

/// Adjacent strings are joined. An ellipsis after them allows more bytes.
fn text(cursor: &mut Cursor<'_>) -> Result<Expression, ParseError> {
    let mut bytes = Vec::new();
    while cursor.take_next("\"") {
        let inside = cursor.take_until("\"", true);
        let inside = inside.ok_or_else(|| cursor.error(ScriptProblem::Unclosed("a string")))?;
        unescape(inside, &mut bytes);
    }
    cursor.take_next("...");
    Ok(Expression::Text(bytes))
}

/// Resolves C's escapes.
fn unescape(inside: &[u8], bytes: &mut Vec<u8>) {
    let mut rest = inside.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'0') => bytes.push(0),
            Some(b'x') => {
                let mut value = 0_u8;
                for _ in 0..2 {
                    let digit = rest.peek().and_then(|&digit| char::from(digit).to_digit(16));
                    let Some(digit) = digit else { break };
                    value = (value << 4) | u8::try_from(digit).unwrap_or(0);
                    rest.next();
                }
                bytes.push(value);
            }
            Some(other) => bytes.push(other),
            None => bytes.push(b'\\'),
        }
    }
}

/// A word, a function, or a field `name = value`.
fn word(
    cursor: &mut Cursor<'_>,
    definitions: &Definitions,
    depth: usize,
) -> Result<Expression, ParseError> {
    let name = cursor.take_word().ok_or_else(|| cursor.expected("an expression"))?;
    let arguments =
        if cursor.take_next("(") { Some(elements(cursor, ")", definitions, depth)?) } else { None };
    if cursor.take_next("=") {
        let value = expression(cursor, definitions, depth)?;
        return Ok(Expression::Field(name, Box::new(value)));
    }
    if let Some(arguments) = arguments {
        return Ok(Expression::Function(name, arguments));
    }
    Ok(match definitions.value(&name) {
        Some(value) => match value.strip_prefix('"') {
            Some(text) => Expression::Text(text.trim_end_matches('"').as_bytes().to_vec()),
            None => value
                .parse()
                .map_or_else(|_| Expression::Word(value.to_owned()), Expression::Integer),
        },
        None => Expression::Word(name),
    })
}
