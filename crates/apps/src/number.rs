//! Numbers on the command line: parsed within a range that the error names.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns a parser for numbers in `range`. Its error names the range, also where the text is no
/// number.
///
/// # Examples
/// ```
/// let channels = megapipe_apps::number::within(1_u32..=256);
/// assert_eq!(channels("8"), Ok(8));
/// assert_eq!(channels("x"), Err("expected a number in 1..=256".to_owned()));
/// assert_eq!(channels("0"), Err("0 is not in 1..=256".to_owned()));
/// ```
pub fn within<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let (low, high) = (range.start(), range.end());
        match text.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            // Also numbers that T cannot hold.
            _ if is_integer(text) => Err(format!("{text} is not in {low}..={high}")),
            _ => Err(format!("expected a number in {low}..={high}")),
        }
    }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
