//! What is known of a file when a response head is written: length, type and validators.
//!
//! Read first: RFC 9110 §8.8 (validators), §8.8.1 (weak and strong).
//!
//! The entity tag is made of the file's inode, length and time of change in nanoseconds: it differs
//! between any two versions that the kernel can tell apart. A file younger than
//! [`RACY_S`] may change again without its time stamp moving, so until then
//! its validators count as weak.
//!
//! Pure: a stamp and `now` in, validators out.

use std::io::Write;

use super::limits::RACY_S;

const ENTITY_TAG_BYTES_MAX: usize = 64;

/// Identifies one version of a file.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct FileStamp {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) len: u64,
    pub(crate) modified_s: i64,
    pub(crate) modified_ns: u32,
}

/// An entity tag, quotes and weakness mark included.
#[derive(Copy, Clone)]
pub(crate) struct EntityTag {
    text: [u8; ENTITY_TAG_BYTES_MAX],
    len: u8,
}

/// A file's metadata as responses need it.
#[derive(Clone, Debug)]
pub(crate) struct Representation {
    pub(crate) stamp: FileStamp,
    pub(crate) entity_tag: EntityTag,
    /// Seconds since 1970; never later than the time it was first sent (§8.8.2.1).
    pub(crate) last_modified_s: i64,
    pub(crate) media_type: &'static str,
    /// Whether the file can have changed again without its stamp showing it.
    pub(crate) racy: bool,
    /// Freshness lifetime for caches, if configured.
    pub(crate) max_age_s: Option<u32>,
}

impl Representation {
    /// Of a file with `stamp`, looked at at `now_s`.
    pub(crate) fn new(stamp: FileStamp, media_type: &'static str, now_s: i64) -> Self {
        let racy = stamp.modified_s.saturating_add(RACY_S) > now_s;
        Self {
            stamp,
            entity_tag: EntityTag::of(&stamp, racy),
            last_modified_s: stamp.modified_s.min(now_s),
            media_type,
            racy,
            max_age_s: None,
        }
    }

    /// Bytes of the whole file.
    pub(crate) fn len(&self) -> u64 {
        self.stamp.len
    }
}

impl EntityTag {
    fn of(stamp: &FileStamp, weak: bool) -> Self {
        let mut text = [0; ENTITY_TAG_BYTES_MAX];
        let mut rest = &mut text[..];
        let modified_ns =
            i128::from(stamp.modified_s) * 1_000_000_000 + i128::from(stamp.modified_ns);
        // The time has at most 24 hexadecimal digits, the others 16, the signs and quotes 8.
        let written =
            write!(rest, "{}\"{:x}-{:x}-", if weak { "W/" } else { "" }, stamp.inode, stamp.len)
                .and_then(|()| write!(rest, "{:x}\"", modified_ns & ((1 << 80) - 1)));
        debug_assert!(written.is_ok());
        let len = ENTITY_TAG_BYTES_MAX - rest.len();
        Self { text, len: len as u8 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for EntityTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file of `len` bytes, changed at `modified_s`, looked at a day later.
    pub(crate) fn representation(len: u64, modified_s: i64) -> Representation {
        let stamp = FileStamp { device: 1, inode: 2, len, modified_s, modified_ns: 5 };
        Representation::new(stamp, "text/plain; charset=utf-8", modified_s + 86_400)
    }

    #[test]
    fn tags_are_quoted_and_weak_only_while_the_file_is_young() {
        let stamp =
            FileStamp { device: 1, inode: 0xabc, len: 16, modified_s: 1000, modified_ns: 255 };
        let young = Representation::new(stamp, "image/png", 1001);
        let old = Representation::new(stamp, "image/png", 1002);
        assert_eq!(old.entity_tag.as_bytes(), b"\"abc-10-e8d4a510ff\"");
        assert_eq!(young.entity_tag.as_bytes(), b"W/\"abc-10-e8d4a510ff\"");
        assert!(young.racy && !old.racy);
    }

    #[test]
    fn a_file_from_the_future_was_modified_now() {
        let stamp = FileStamp { device: 1, inode: 1, len: 1, modified_s: 5000, modified_ns: 0 };
        let early = Representation::new(stamp, "image/png", 1000);
        assert_eq!(early.last_modified_s, 1000);
        assert!(early.racy);
    }

    proptest! {
        #[test]
        fn tags_fit_and_differ(
            a in any::<(u64, u64, i64, u32)>(), b in any::<(u64, u64, i64, u32)>(), weak: bool,
        ) {
            let tag = |(inode, len, modified_s, ns): (u64, u64, i64, u32)| EntityTag::of(
                &FileStamp { device: 0, inode, len, modified_s, modified_ns: ns % 1_000_000_000 },
                weak,
            );
            prop_assert!(tag(a).as_bytes().ends_with(b"\""));
            let same = (a.0, a.1, a.2, a.3 % 1_000_000_000) == (b.0, b.1, b.2, b.3 % 1_000_000_000);
            prop_assert_eq!(tag(a).as_bytes() == tag(b).as_bytes(), same);
        }
    }
}
