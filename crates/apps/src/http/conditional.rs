//! Conditional requests: whether the state of a file lets a request go on.
//!
//! Read first: RFC 9110 §13 (§13.1 fields, §13.2.2 order of evaluation), §8.8.3.2 (comparison).
//!
//! A field that cannot be understood is treated as its section says: an unreadable date is ignored;
//! a list of entity tags that is malformed matches nothing behind the fault.
//!
//! Pure: fields, a file's validators and `now` in, a verdict out.

use super::date;
use super::limits::ENTITY_TAGS_MAX;
use super::representation::Representation;

/// The precondition fields of a request. List fields keep all their lines.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Preconditions<'h, 'b> {
    /// The request's header fields; searched for the lines of the list fields.
    pub(crate) fields: &'h [httparse::Header<'b>],
    /// Whether there is any precondition.
    pub(crate) any: bool,
}

/// What evaluating the preconditions leads to.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum PreconditionVerdict {
    /// Go on as if there were none.
    Proceed,
    /// The peer has this version: 304.
    NotModified,
    /// The peer requires another version: 412.
    Failed,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum TagComparison {
    Strong,
    Weak,
}

impl<'b> Preconditions<'_, 'b> {
    /// Steps 1 to 4 of §13.2.2 for a GET or HEAD.
    pub(crate) fn evaluate(&self, current: &Representation, now_s: i64) -> PreconditionVerdict {
        if !self.any {
            return PreconditionVerdict::Proceed;
        }
        if self.has("if-match") {
            if !self.tags_match("if-match", current, TagComparison::Strong) {
                return PreconditionVerdict::Failed;
            }
        } else if let Some(date_s) = self.date("if-unmodified-since", now_s)
            && current.last_modified_s > date_s
        {
            return PreconditionVerdict::Failed;
        }
        if self.has("if-none-match") {
            if self.tags_match("if-none-match", current, TagComparison::Weak) {
                return PreconditionVerdict::NotModified;
            }
        } else if let Some(date_s) = self.date("if-modified-since", now_s)
            && current.last_modified_s <= date_s
        {
            return PreconditionVerdict::NotModified;
        }
        PreconditionVerdict::Proceed
    }

    /// Step 5: the `Range` field, if `If-Range` is absent or names this very version. More than one
    /// line of either is a fault, and the whole file the safe answer.
    pub(crate) fn range(&self, current: &Representation, now_s: i64) -> Option<&'b [u8]> {
        let range = self.single("range")?;
        if !self.has("if-range") {
            return Some(range);
        }
        let validator = self.single("if-range")?;
        let same = if validator.starts_with(b"\"") || validator.starts_with(b"W/") {
            tag_matches(validator, current, TagComparison::Strong)
        } else {
            // §13.1.5: the date must be exact, and strong as §8.8.2.2 defines it.
            !current.racy && date::parse(validator, now_s) == Some(current.last_modified_s)
        };
        same.then_some(range)
    }

    fn lines(&self, name: &'static str) -> impl Iterator<Item = &'b [u8]> + '_ {
        self.fields
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    fn has(&self, name: &'static str) -> bool {
        self.lines(name).next().is_some()
    }

    fn single(&self, name: &'static str) -> Option<&'b [u8]> {
        let mut lines = self.lines(name);
        let first = lines.next()?;
        lines.next().is_none().then_some(first)
    }

    fn date(&self, name: &'static str, now_s: i64) -> Option<i64> {
        date::parse(self.single(name)?, now_s)
    }

    fn tags_match(
        &self,
        name: &'static str,
        current: &Representation,
        comparison: TagComparison,
    ) -> bool {
        let mut left = ENTITY_TAGS_MAX;
        self.lines(name).any(|line| {
            line.trim_ascii() == b"*"
                || Tags { rest: line }
                    .take_while(|_| {
                        left = left.saturating_sub(1);
                        left > 0
                    })
                    .any(|tag| tag_matches(tag, current, comparison))
        })
    }
}

/// §8.8.3.2: strong comparison requires both tags to be strong, weak ignores the mark.
fn tag_matches(tag: &[u8], current: &Representation, comparison: TagComparison) -> bool {
    let ours = current.entity_tag.as_bytes();
    match comparison {
        TagComparison::Strong => tag == ours && !tag.starts_with(b"W/"),
        TagComparison::Weak => opaque(tag) == opaque(ours),
    }
}

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The entity tags of a list, each as it is written; ends at the first fault. A tag may hold
/// commas, so the list cannot be split at them.
struct Tags<'b> {
    rest: &'b [u8],
}

impl<'b> Iterator for Tags<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        let separator = |byte: &u8| matches!(byte, b' ' | b'\t' | b',');
        let start = self.rest.iter().position(|byte| !separator(byte))?;
        let text = &self.rest[start..];
        let open = if text.starts_with(b"W/") { 2 } else { 0 };
        if text.get(open) != Some(&b'"') {
            return None;
        }
        let close = open + 1 + text[open + 1..].iter().position(|&byte| byte == b'"')?;
        let (tag, rest) = text.split_at(close + 1);
        if rest.first().is_some_and(|byte| !separator(byte)) {
            return None;
        }
        self.rest = rest;
        Some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::super::representation::tests::representation;
    use super::*;
    use proptest::prelude::*;

    const MODIFIED_S: i64 = 784_111_777;
    const NOW_S: i64 = MODIFIED_S + 86_400;
    const AT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn with<T>(fields: &[(&str, &str)], ask: impl FnOnce(Preconditions<'_, '_>) -> T) -> T {
        let fields: Vec<httparse::Header<'_>> = fields
            .iter()
            .map(|(name, value)| httparse::Header { name, value: value.as_bytes() })
            .collect();
        ask(Preconditions { fields: &fields, any: true })
    }

    fn verdict(fields: &[(&str, &str)]) -> PreconditionVerdict {
        with(fields, |asked| asked.evaluate(&representation(100, MODIFIED_S), NOW_S))
    }

    fn tag() -> String {
        String::from_utf8(representation(100, MODIFIED_S).entity_tag.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn if_match_compares_strongly() {
        let ours = tag();
        for (value, expected) in [
            (ours.clone(), PreconditionVerdict::Proceed),
            (format!("\"x\", {ours}"), PreconditionVerdict::Proceed),
            (format!("\"a,b\",{ours} ,"), PreconditionVerdict::Proceed),
            ("*".into(), PreconditionVerdict::Proceed),
            (format!("W/{ours}"), PreconditionVerdict::Failed),
            ("\"x\"".into(), PreconditionVerdict::Failed),
            (ours.trim_matches('"').into(), PreconditionVerdict::Failed),
            (String::new(), PreconditionVerdict::Failed),
        ] {
            assert_eq!(verdict(&[("If-Match", &value)]), expected, "{value}");
        }
    }

    #[test]
    fn if_none_match_compares_weakly() {
        let ours = tag();
        for (value, expected) in [
            (ours.clone(), PreconditionVerdict::NotModified),
            (format!("W/{ours}"), PreconditionVerdict::NotModified),
            (format!("\"x\",W/{ours}"), PreconditionVerdict::NotModified),
            ("*".into(), PreconditionVerdict::NotModified),
            ("\"x\"".into(), PreconditionVerdict::Proceed),
            (format!("junk {ours}"), PreconditionVerdict::Proceed),
            (format!("\"x\"{ours}"), PreconditionVerdict::Proceed),
            ("\"".into(), PreconditionVerdict::Proceed),
            ("W/".into(), PreconditionVerdict::Proceed),
        ] {
            assert_eq!(verdict(&[("If-None-Match", &value)]), expected, "{value}");
        }
        let lines = [("if-none-match", "\"x\""), ("IF-NONE-MATCH", ours.as_str())];
        assert_eq!(
            verdict(&lines),
            PreconditionVerdict::NotModified,
            "lines of one field are one list"
        );
    }

    #[test]
    fn dates_are_compared_to_the_second() {
        for (value, since, unmodified) in [
            (BEFORE, PreconditionVerdict::Proceed, PreconditionVerdict::Failed),
            (AT, PreconditionVerdict::NotModified, PreconditionVerdict::Proceed),
            (AFTER, PreconditionVerdict::NotModified, PreconditionVerdict::Proceed),
            ("yesterday", PreconditionVerdict::Proceed, PreconditionVerdict::Proceed),
        ] {
            assert_eq!(verdict(&[("If-Modified-Since", value)]), since, "{value}");
            assert_eq!(verdict(&[("If-Unmodified-Since", value)]), unmodified, "{value}");
        }
    }

    #[test]
    fn tags_go_before_dates() {
        let ours = tag();
        let modified = ("If-Modified-Since", AFTER);
        assert_eq!(verdict(&[("If-None-Match", "\"x\""), modified]), PreconditionVerdict::Proceed);
        let unmodified = ("If-Unmodified-Since", BEFORE);
        assert_eq!(verdict(&[("If-Match", &ours), unmodified]), PreconditionVerdict::Proceed);
        let both = [("If-Match", "\"x\""), ("If-None-Match", ours.as_str())];
        assert_eq!(verdict(&both), PreconditionVerdict::Failed, "If-Match is step 1");
        let both = [("If-Match", ours.as_str()), ("If-None-Match", ours.as_str())];
        assert_eq!(verdict(&both), PreconditionVerdict::NotModified);
    }

    #[test]
    fn if_range_wants_the_very_same_version() {
        let ours = tag();
        let range = |validator: &str| {
            let fields = [("Range", "bytes=0-1"), ("If-Range", validator)];
            with(&fields, |asked| asked.range(&representation(100, MODIFIED_S), NOW_S).is_some())
        };
        assert!(range(&ours) && range(AT));
        assert!(!range(&format!("W/{ours}")));
        assert!(!range(BEFORE) && !range(AFTER) && !range("\"x\"") && !range("*") && !range(""));
        with(&[("Range", "bytes=0-1"), ("range", "bytes=2-3")], |asked| {
            assert_eq!(asked.range(&representation(9, MODIFIED_S), NOW_S), None);
        });
    }

    #[test]
    fn young_files_have_no_strong_validator() {
        let mut young = representation(100, MODIFIED_S);
        young = Representation::new(young.stamp, young.media_type, MODIFIED_S + 1);
        let weak = String::from_utf8(young.entity_tag.as_bytes().to_vec()).unwrap();
        assert!(weak.starts_with("W/"));
        with(&[("If-Match", &weak)], |asked| {
            assert_eq!(asked.evaluate(&young, NOW_S), PreconditionVerdict::Failed);
        });
        with(&[("If-None-Match", &weak)], |asked| {
            assert_eq!(asked.evaluate(&young, NOW_S), PreconditionVerdict::NotModified);
        });
        with(&[("Range", "bytes=0-1"), ("If-Range", AT)], |asked| {
            assert_eq!(asked.range(&young, NOW_S), None);
        });
    }

    proptest! {
        #[test]
        fn any_list_of_tags_is_survived(value in "[W/\", *a-c]{0,40}") {
            let current = representation(1, MODIFIED_S);
            with(&[("If-None-Match", &value), ("If-Match", &value)], |asked| {
                let _ = asked.evaluate(&current, NOW_S);
            });
            let tags: usize = Tags { rest: value.as_bytes() }.map(<[u8]>::len).sum();
            prop_assert!(tags <= value.len());
        }
    }
}
