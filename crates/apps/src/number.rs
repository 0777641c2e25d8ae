//! Numbers on the command line: parsed within a range that the error names, negative ones too.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::{Arg, Command, Parser};

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

/// Parses the command line of this process. Options take negative numbers as values, so that their
/// errors name the option and its range; by default clap takes `-1` for an unknown option.
///
/// # Errors
/// A mistake in the command line, or help or version to be printed.
pub fn parse_command_line<P: Parser>() -> Result<P, clap::Error> {
    parse_words(std::env::args_os())
}

/// As [`parse_command_line`]. Ends the process with its text and status if there is an error.
#[must_use]
pub fn parse_or_exit<P: Parser>() -> P {
    parse_command_line().unwrap_or_else(|error| error.exit())
}

/// As [`parse_command_line`], from words that begin with the command's name.
///
/// # Errors
/// As [`parse_command_line`].
pub fn parse_words<P: Parser>(
    words: impl IntoIterator<Item: Into<OsString> + Clone>,
) -> Result<P, clap::Error> {
    let mut command = with_negative_numbers(P::command());
    let matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn with_negative_numbers(command: Command) -> Command {
    let take = |arg: Arg| {
        let is_option = arg.get_long().is_some() && arg.get_action().takes_values();
        if is_option { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(take).mut_subcommands(with_negative_numbers)
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
