//! HTTP dates: seconds since 1970 to text and back.
//!
//! Read first: RFC 9110 §5.6.7 (the three formats; only the first is ever sent).
//!
//! Pure: seconds in, text out, and back.
//!
//! Invariants
//! - `parse(format(t)) == t` for every `t` from 1970 to the end of 9999.
//! - No date that a peer can write panics or overflows; what is no date is `None`.

/// Bytes of an IMF-fixdate such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) const DATE_BYTES: usize = 29;

/// Last second that four digits of year can represent.
pub(crate) const SECONDS_MAX: i64 = 253_402_300_799;

/// The time, by the clock of the shell.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Now {
    /// Milliseconds of a clock that never goes back.
    pub(crate) ms: u64,
    /// Seconds since 1970.
    pub(crate) unix_s: i64,
    /// `unix_s` as a `Date` field writes it.
    pub(crate) date: [u8; DATE_BYTES],
}

const DAY_S: i64 = 86_400;
const DAYS: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];
const LONG_DAYS: [&[u8]; 7] =
    [b"Sunday", b"Monday", b"Tuesday", b"Wednesday", b"Thursday", b"Friday", b"Saturday"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The IMF-fixdate of `unix_s`; times before 1970 or after 9999 become the nearest end.
pub(crate) fn format(unix_s: i64) -> [u8; DATE_BYTES] {
    let unix_s = unix_s.clamp(0, SECONDS_MAX);
    let days = unix_s / DAY_S;
    let (year, month, day) = civil_from_days(days);
    let second = unix_s % DAY_S;
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    // 1970-01-01 was a Thursday, the fifth of DAYS.
    text[0..3].copy_from_slice(DAYS[((days + 4) % 7) as usize]);
    put_digits(&mut text[5..7], day);
    text[8..11].copy_from_slice(MONTHS[(month - 1) as usize]);
    put_digits(&mut text[12..16], year);
    put_digits(&mut text[17..19], second / 3600);
    put_digits(&mut text[20..22], second / 60 % 60);
    put_digits(&mut text[23..25], second % 60);
    text
}

/// Seconds since 1970 of a date in any of the three formats, negative before 1970. `now_s` places
/// the two-digit years of the RFC 850 format: at most 50 years ahead.
pub(crate) fn parse(text: &[u8], now_s: i64) -> Option<i64> {
    match text.iter().position(|&byte| byte == b',' || byte == b' ')? {
        3 if text[3] == b',' => parse_imf(text),
        3 => parse_asctime(text),
        _ => parse_rfc850(text, now_s),
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn parse_imf(text: &[u8]) -> Option<i64> {
    if text.len() != DATE_BYTES || !DAYS.iter().any(|day| text[..3] == day[..]) {
        return None;
    }
    expect(text, &[(3, b", "), (7, b" "), (11, b" "), (16, b" "), (25, b" GMT")])?;
    let date = (digits(&text[12..16])?, month(&text[8..11])?, digits(&text[5..7])?);
    seconds(date, clock(&text[17..25])?)
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`
fn parse_rfc850(text: &[u8], now_s: i64) -> Option<i64> {
    let comma = text.iter().position(|&byte| byte == b',')?;
    let (day_name, rest) = text.split_at(comma);
    if rest.len() != 24 || !LONG_DAYS.contains(&day_name) {
        return None;
    }
    expect(rest, &[(0, b", "), (4, b"-"), (8, b"-"), (11, b" "), (20, b" GMT")])?;
    let (now_year, _, _) = civil_from_days(now_s.clamp(0, SECONDS_MAX) / DAY_S);
    let mut year = now_year - now_year % 100 + digits(&rest[9..11])?;
    // §5.6.7: more than 50 years ahead means the most recent past year with these digits.
    if year > now_year + 50 {
        year -= 100;
    }
    let date = (year, month(&rest[5..8])?, digits(&rest[2..4])?);
    seconds(date, clock(&rest[12..20])?)
}

/// `Sun Nov  6 08:49:37 1994`
fn parse_asctime(text: &[u8]) -> Option<i64> {
    if text.len() != 24 || !DAYS.iter().any(|day| text[..3] == day[..]) {
        return None;
    }
    expect(text, &[(3, b" "), (7, b" "), (10, b" "), (19, b" ")])?;
    let day = if text[8] == b' ' { digits(&text[9..10])? } else { digits(&text[8..10])? };
    seconds((digits(&text[20..24])?, month(&text[4..7])?, day), clock(&text[11..19])?)
}

fn expect(text: &[u8], fixed: &[(usize, &[u8])]) -> Option<()> {
    fixed.iter().all(|(at, bytes)| text[*at..].starts_with(bytes)).then_some(())
}

fn month(name: &[u8]) -> Option<i64> {
    MONTHS.iter().position(|known| name == &known[..]).map(|index| index as i64 + 1)
}

/// Seconds of the day of `08:49:37`; 60 is let through for leap seconds.
fn clock(text: &[u8]) -> Option<i64> {
    expect(text, &[(2, b":"), (5, b":")])?;
    let (hour, minute, second) = (digits(&text[0..2])?, digits(&text[3..5])?, digits(&text[6..8])?);
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

fn seconds((year, month, day): (i64, i64, i64), second_of_day: i64) -> Option<i64> {
    let days = days_from_civil(year, month, day);
    // A day that the month does not have comes back as another date.
    (day >= 1 && civil_from_days(days) == (year, month, day))
        .then_some(days * DAY_S + second_of_day)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
    })
}

fn put_digits(out: &mut [u8], mut value: i64) {
    for byte in out.iter_mut().rev() {
        *byte = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar. Years are counted from March, so
/// that the leap day is the last of its year; 400 years are 146,097 days.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let march_year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leap_days =
        march_year.div_euclid(4) - march_year.div_euclid(100) + march_year.div_euclid(400);
    march_year * 365 + leap_days + day_of_year - 719_468
}

/// The inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RFC_EXAMPLE_S: i64 = 784_111_777;
    const NOW_S: i64 = 1_795_000_000; // November 2026

    #[test]
    fn the_three_formats_of_the_rfc_mean_the_same() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes(), NOW_S), Some(RFC_EXAMPLE_S), "{text}");
        }
        assert_eq!(&format(RFC_EXAMPLE_S), b"Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn known_days_are_right() {
        assert_eq!(&format(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&format(951_782_400), b"Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(&format(SECONDS_MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(&format(i64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(&format(i64::MIN), b"Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn two_digit_years_lie_at_most_fifty_years_ahead() {
        let year_of = |text: &[u8]| civil_from_days(parse(text, NOW_S).unwrap() / DAY_S).0;
        assert_eq!(year_of(b"Friday, 01-Jan-76 00:00:00 GMT"), 2076);
        assert_eq!(year_of(b"Friday, 01-Jan-77 00:00:00 GMT"), 1977);
    }

    #[test]
    fn invalid_date_is_none() {
        for text in [
            "",
            "GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 GMT ",
            "Xun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GM",
            "Sun Nov  6 08:49:37 94",
            "Sun, +6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(text.as_bytes(), NOW_S), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn dates_round_trip(unix_s in 0..=SECONDS_MAX) {
            prop_assert_eq!(parse(&format(unix_s), NOW_S), Some(unix_s));
        }

        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&text, NOW_S);
        }

        #[test]
        fn a_damaged_date_is_survived(
            unix_s in 0..=SECONDS_MAX, at in 0..DATE_BYTES, byte in any::<u8>(),
        ) {
            let mut text = format(unix_s);
            text[at] = byte;
            if let Some(parsed) = parse(&text, NOW_S) {
                prop_assert!((-62_200_000_000..=SECONDS_MAX + 1).contains(&parsed));
            }
        }

        #[test]
        fn days_and_dates_are_inverse(days in -1_000_000_i64..4_000_000) {
            let (year, month, day) = civil_from_days(days);
            prop_assert!((1..=12).contains(&month) && (1..=31).contains(&day));
            prop_assert_eq!(days_from_civil(year, month, day), days);
        }
    }
}
