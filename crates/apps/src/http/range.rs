//! Byte ranges: the parts of a file that a request selects.
//!
//! Read first: RFC 9110 §14 (§14.1.2 syntax, §14.2 when to ignore, §17.15 abuse).
//!
//! Pure: a field's value and a length in, ranges out.
//!
//! Invariants
//! - Every range in an answer lies inside the file and is not empty.
//! - The ranges of one answer do not overlap, so their sum is at most the file's length.
//! - No number that a peer writes overflows.

use std::ops::Range;

use super::limits::RANGES_MAX;

/// At most [`RANGES_MAX`] ranges of one file, in the order of the request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

/// The selection of a `Range` field.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Selection {
    /// The whole file: the field is of another unit, malformed, or asks for too many parts.
    Whole,
    /// Parts that exist.
    Parts(Ranges),
    /// No part that exists: 416.
    Unsatisfiable,
}

impl Ranges {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds a part; one that overlaps or touches others becomes one with them, at the place of the
    /// first of them (§15.3.7.2 lets a server coalesce).
    fn add(&mut self, mut part: Range<u64>) {
        let mut place = None;
        let mut kept = 0;
        self.0.retain(|other| {
            let apart = other.end < part.start || part.end < other.start;
            if apart {
                kept += 1;
            } else {
                part = part.start.min(other.start)..part.end.max(other.end);
                place.get_or_insert(kept);
            }
            apart
        });
        self.0.insert(place.unwrap_or(kept), part);
    }
}

/// Reads the value of a `Range` field for a file of `len` bytes.
pub(crate) fn select(value: &[u8], len: u64) -> Selection {
    let Some(set) = strip_unit(value) else { return Selection::Whole };
    let mut ranges = Ranges::default();
    let (mut asked, mut suffix_of_nothing) = (0, false);
    for spec in set.split(|&byte| byte == b',') {
        let spec = spec.trim_ascii();
        if spec.is_empty() {
            continue;
        }
        let Some(spec) = Spec::parse(spec) else { return Selection::Whole };
        asked += 1;
        if asked > RANGES_MAX {
            return Selection::Whole;
        }
        // A suffix of an empty file is all of it (§14.1.2), which no Content-Range can say.
        suffix_of_nothing |= len == 0 && matches!(spec, Spec::Suffix(1..));
        if let Some(part) = spec.within(len) {
            ranges.add(part);
        }
    }
    match (asked, ranges.count()) {
        (0, _) => Selection::Whole,
        (_, 0) if suffix_of_nothing => Selection::Whole,
        (_, 0) => Selection::Unsatisfiable,
        _ => Selection::Parts(ranges),
    }
}

/// One element of a range set.
enum Spec {
    /// `first-last` or `first-`
    From(u64, Option<u64>),
    /// `-length`
    Suffix(u64),
}

impl Spec {
    fn parse(text: &[u8]) -> Option<Self> {
        let dash = text.iter().position(|&byte| byte == b'-')?;
        let (first, last) = (&text[..dash], &text[dash + 1..]);
        if first.is_empty() {
            return Some(Self::Suffix(number(last)?));
        }
        let first = number(first)?;
        let last = if last.is_empty() { None } else { Some(number(last)?) };
        // §14.1.1: a last position below the first makes the whole field invalid.
        (last.is_none_or(|last| first <= last)).then_some(Self::From(first, last))
    }

    /// The part of a file of `len` bytes; `None` if there is none.
    fn within(&self, len: u64) -> Option<Range<u64>> {
        let (start, end) = match *self {
            Self::From(first, last) => (first, last.map_or(len, |last| last.saturating_add(1))),
            Self::Suffix(suffix_len) => (len.saturating_sub(suffix_len), len),
        };
        (start < end.min(len)).then_some(start..end.min(len))
    }
}

fn strip_unit(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// Digits only; a number too large for a position in any file is the largest there is.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(value.saturating_mul(10).saturating_add(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn parts(value: &str, len: u64) -> Vec<(u64, u64)> {
        match select(value.as_bytes(), len) {
            Selection::Parts(ranges) => ranges.iter().map(|part| (part.start, part.end)).collect(),
            other => panic!("{value} of {len}: {other:?}"),
        }
    }

    #[test]
    fn the_examples_of_the_rfc() {
        assert_eq!(parts("bytes=0-499", 10_000), [(0, 500)]);
        assert_eq!(parts("bytes=500-999", 10_000), [(500, 1000)]);
        assert_eq!(parts("bytes=-500", 10_000), [(9500, 10_000)]);
        assert_eq!(parts("bytes=9500-", 10_000), [(9500, 10_000)]);
        assert_eq!(parts("bytes=0-0,-1", 10_000), [(0, 1), (9999, 10_000)]);
        assert_eq!(parts("bytes= 0-999, 4500-5499, -1000", 10_000).len(), 3);
        assert_eq!(parts("bytes=500-600,601-999", 10_000), [(500, 1000)]);
        assert_eq!(parts("bytes=500-700,601-999", 10_000), [(500, 1000)]);
    }

    #[test]
    fn ranges_are_cut_at_the_end_of_the_file() {
        assert_eq!(parts("bytes=5-99999999999999999999999", 10), [(5, 10)]);
        assert_eq!(parts("bytes=0-18446744073709551615", 10), [(0, 10)]);
        assert_eq!(parts("bytes=-99", 10), [(0, 10)]);
        assert_eq!(parts("BYTES=9-9,10-11", 10), [(9, 10)]);
        assert_eq!(parts("bytes=,1-2,,", 10), [(1, 3)]);
    }

    #[test]
    fn order_is_kept_and_what_overlaps_is_joined() {
        assert_eq!(parts("bytes=90-99,0-9,50-59", 100), [(90, 100), (0, 10), (50, 60)]);
        assert_eq!(parts("bytes=0-9,90-99,5-94", 100), [(0, 100)]);
        assert_eq!(parts("bytes=40-49,0-9,20-29,10-19", 100), [(40, 50), (0, 30)]);
    }

    #[test]
    fn unsatisfiable_range_is_416() {
        for (value, len) in [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=9-9", 5)]
        {
            assert_eq!(select(value.as_bytes(), len), Selection::Unsatisfiable, "{value}");
        }
    }

    #[test]
    fn malformed_range_is_ignored() {
        let many: String =
            (0..=RANGES_MAX as u64).map(|n| format!("{}-{},", n * 9, n * 9)).collect();
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "lines=1-2",
            "bytes=5-4",
            "bytes=a-b",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=--1",
            "bytes=-",
            "bytes=0-1;2-3",
            "bytes=0x1-2",
            &format!("bytes={many}"),
        ] {
            assert_eq!(select(value.as_bytes(), 1000), Selection::Whole, "{value}");
        }
        assert_eq!(select(b"bytes=-5", 0), Selection::Whole);
    }

    proptest! {
        #[test]
        fn parts_lie_in_the_file_and_never_overlap(
            specs in vec((any::<Option<u64>>(), any::<Option<u64>>()), 0..20),
            len in any::<u64>(), small in any::<bool>(),
        ) {
            let len = if small { len % 64 } else { len };
            let set: Vec<String> = specs.iter().map(|(first, last)| {
                let text = |value: &Option<u64>| match value {
                    Some(value) if small => (value % 80).to_string(),
                    Some(value) => value.to_string(),
                    None => String::new(),
                };
                format!("{}-{}", text(first), text(last))
            }).collect();
            let value = format!("bytes={}", set.join(","));
            if let Selection::Parts(ranges) = select(value.as_bytes(), len) {
                prop_assert!((1..=RANGES_MAX).contains(&ranges.count()));
                let mut sorted: Vec<_> = ranges.iter().collect();
                sorted.sort_by_key(|part| part.start);
                for part in &sorted {
                    prop_assert!(part.start < part.end && part.end <= len);
                }
                for pair in sorted.windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                }
            }
        }

        /// Bytes served are exactly the bytes that some satisfiable spec covers.
        #[test]
        fn joining_loses_and_adds_nothing(
            specs in vec((0_u64..40, 0_u64..12), 1..RANGES_MAX), len in 1_u64..40,
        ) {
            let set: Vec<String> =
                specs.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
            let value = format!("bytes={}", set.join(","));
            let asked =
                |at: u64| specs.iter().any(|(first, more)| (*first..=first + more).contains(&at));
            match select(value.as_bytes(), len) {
                Selection::Parts(ranges) => for at in 0..len {
                    prop_assert_eq!(ranges.iter().any(|part| part.contains(&at)), asked(at));
                },
                Selection::Unsatisfiable => prop_assert!((0..len).all(|at| !asked(at))),
                Selection::Whole => prop_assert!(false, "valid sets are not ignored"),
            }
        }

        #[test]
        fn any_bytes_are_survived(value in vec(any::<u8>(), 0..60), len: u64) {
            let _ = select(&value, len);
        }
    }
}
