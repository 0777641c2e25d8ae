//! Times: `0`, `1.5`, `+.1`, `*`, `1.5~1.8`, `+0~+.1`.

use super::{ParseError, ScriptProblem};
use crate::limits::TIME_US_MAX;
use crate::parse::cursor::Cursor;
use crate::script::EventTime;

/// Digits after the point that count.
const FRACTION_DIGITS: usize = 6;

/// When an event happens.
pub(super) fn when(cursor: &mut Cursor<'_>) -> Result<EventTime, ParseError> {
    if cursor.take("*") {
        return Ok(EventTime::Any);
    }
    let start = cursor.at();
    let is_relative = cursor.take("+");
    cursor.skip_blank();
    let at_us = seconds(cursor)?;
    let until_us = if cursor.take_next("~") {
        cursor.skip_blank();
        cursor.take("+");
        cursor.skip_blank();
        Some(seconds(cursor)?)
    } else {
        None
    };
    if until_us.is_some_and(|until_us| until_us < at_us) {
        return Err(cursor.error_at(start, ScriptProblem::BackwardRange));
    }
    Ok(if is_relative {
        EventTime::Relative { at_us, until_us }
    } else {
        EventTime::Absolute { at_us, until_us }
    })
}

/// A number of seconds, as microseconds. `1...` is 1 and an ellipsis.
pub(super) fn seconds(cursor: &mut Cursor<'_>) -> Result<i64, ParseError> {
    let start = cursor.at();
    let whole = cursor.take_while(|byte| byte.is_ascii_digit());
    let has_fraction =
        cursor.peek() == Some(b'.') && cursor.peek_after(1).is_some_and(|b| b.is_ascii_digit());
    if whole.is_empty() && !has_fraction {
        return Err(cursor.expected("a time"));
    }
    let mut us = number(whole).and_then(|seconds| seconds.checked_mul(1_000_000));
    if has_fraction {
        cursor.advance(1);
        let digits = cursor.take_while(|byte| byte.is_ascii_digit());
        let kept = &digits[..digits.len().min(FRACTION_DIGITS)];
        let scale = (kept.len()..FRACTION_DIGITS).fold(1, |scale, _| scale * 10);
        us = us.and_then(|us| us.checked_add(number(kept)? * scale));
    }
    us.filter(|&us| us <= TIME_US_MAX)
        .ok_or_else(|| cursor.error_at(start, ScriptProblem::TooMuch("a time")))
}

/// Decimal digits as a number; none when they do not fit.
fn number(digits: &[u8]) -> Option<i64> {
    digits
        .iter()
        .try_fold(0_i64, |sum, digit| sum.checked_mul(10)?.checked_add(i64::from(digit - b'0')))
}
