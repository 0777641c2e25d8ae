//! Numbers: decimal or hexadecimal, with a sign, within limits.

use super::{ParseError, ScriptProblem};
use crate::parse::cursor::Cursor;

/// A number from 0 to `max`.
pub(super) fn unsigned(
    cursor: &mut Cursor<'_>,
    what: &'static str,
    max: i64,
) -> Result<i64, ParseError> {
    cursor.skip_blank();
    let start = cursor.at();
    let value = integer(cursor, what)?;
    if (0..=max).contains(&value) {
        Ok(value)
    } else {
        Err(cursor.error_at(start, ScriptProblem::OutOfRange { what, value, max }))
    }
}

/// A decimal or `0x` number, with or without a sign.
pub(super) fn integer(cursor: &mut Cursor<'_>, what: &'static str) -> Result<i64, ParseError> {
    cursor.skip_blank();
    let start = cursor.at();
    let is_negative = cursor.take("-");
    let is_hexadecimal = cursor.take("0x") || cursor.take("0X");
    let digits = if is_hexadecimal {
        cursor.take_while(|byte| byte.is_ascii_hexdigit())
    } else {
        cursor.take_while(|byte| byte.is_ascii_digit())
    };
    if digits.is_empty() {
        cursor.back_to(start);
        return Err(cursor.expected(what));
    }
    let digits = std::str::from_utf8(digits).unwrap_or_default();
    let value = if is_hexadecimal {
        // Masks have 64 bits; the sign is only in how they are written.
        u64::from_str_radix(digits, 16).ok().map(u64::cast_signed)
    } else {
        digits.parse().ok()
    };
    let value: Option<i64> = if is_negative { value.and_then(i64::checked_neg) } else { value };
    value.ok_or_else(|| cursor.error_at(start, ScriptProblem::TooMuch("a number")))
}
