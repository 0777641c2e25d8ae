//! Request content: finding its end while throwing it away.
//!
//! Read first: RFC 9112 §6.3, §7.1 (chunked), §7.1.1 (extensions), §7.1.2 (trailers).
//!
//! A server of files has no use for content, but must know where it ends, or the next request is
//! read from the middle of it.
//!
//! Pure: bytes in, how far the content reaches out.
//!
//! Invariants
//! - Content that can be read in two ways is malformed, not skipped: sizes are hexadecimal digits,
//!   lines end in CRLF, chunk data ends where its size says.
//! - What may come without being counted as content (sizes, extensions, trailers) is bounded.

use super::limits::CHUNK_OVERHEAD_BYTES_MAX;
use super::request::Framing;

/// Content that is being thrown away.
#[derive(Clone, Debug)]
pub(crate) struct DiscardedContent {
    state: ContentState,
    /// Bytes of content that may still come.
    left_bytes: u64,
    overhead_left_bytes: u32,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum ContentState {
    /// So many bytes are left.
    Length(u64),
    /// In the digits of a chunk size; how many there were.
    Size {
        size: u64,
        digits: u8,
    },
    /// Behind the size, up to the CR.
    Extension {
        size: u64,
        at: Extension,
    },
    SizeLineFeed {
        size: u64,
    },
    Data(u64),
    DataReturn,
    DataLineFeed,
    /// In a trailer line.
    Trailer(Trailer),
    TrailerLineFeed {
        empty: bool,
    },
    Done,
}

/// Where a byte stands in chunk extensions: `*( BWS ";" BWS name [ BWS "=" BWS value ] )`.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Extension {
    /// In blanks that only another extension may follow.
    Blank,
    BeforeName,
    Name,
    /// In blanks behind a name.
    AfterName,
    BeforeValue,
    Value,
    Quoted,
    /// Behind a backslash in quotes.
    Escaped,
    QuoteEnd,
}

/// Where a byte stands in a trailer line: `name ":" value`.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Trailer {
    Start,
    Name,
    Value,
}

/// Where the content stands after some bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum ContentProgress {
    /// All bytes were content, and there is more to come.
    Incomplete,
    /// The content ended; the number of its bytes.
    Complete(usize),
    /// More than allowed: 413.
    TooLarge,
    /// 400.
    Malformed,
}

impl DiscardedContent {
    /// Content as `framing` announces it, of at most `bytes_max`.
    pub(crate) fn new(framing: Framing, bytes_max: u64) -> Self {
        let state = match framing {
            Framing::Length(0) => ContentState::Done,
            Framing::Length(len) => ContentState::Length(len),
            Framing::Chunked => ContentState::Size { size: 0, digits: 0 },
        };
        Self { state, left_bytes: bytes_max, overhead_left_bytes: CHUNK_OVERHEAD_BYTES_MAX }
    }

    /// Takes the next bytes.
    pub(crate) fn on_bytes(&mut self, bytes: &[u8]) -> ContentProgress {
        if let ContentState::Length(len) = self.state
            && len > self.left_bytes
        {
            return ContentProgress::TooLarge;
        }
        let mut at = 0;
        while self.state != ContentState::Done {
            let Some(&byte) = bytes.get(at) else { return ContentProgress::Incomplete };
            match self.state {
                ContentState::Length(left) => {
                    let taken = left.min((bytes.len() - at) as u64);
                    at += taken as usize;
                    let rest = left - taken;
                    self.state =
                        if rest == 0 { ContentState::Done } else { ContentState::Length(rest) };
                }
                ContentState::Data(left) => {
                    let taken = left.min((bytes.len() - at) as u64);
                    at += taken as usize;
                    let rest = left - taken;
                    self.state =
                        if rest == 0 { ContentState::DataReturn } else { ContentState::Data(rest) };
                }
                _ => {
                    at += 1;
                    if let Err(fault) = self.on_chunk_byte(byte) {
                        return fault;
                    }
                }
            }
        }
        ContentProgress::Complete(at)
    }

    /// One byte of the chunked coding that is not chunk data.
    fn on_chunk_byte(&mut self, byte: u8) -> Result<(), ContentProgress> {
        let left = self.overhead_left_bytes.checked_sub(1).ok_or(ContentProgress::TooLarge)?;
        self.overhead_left_bytes = left;
        self.state = match (self.state, byte) {
            (ContentState::Size { size, digits }, byte) => size_byte(size, digits, byte)?,
            (ContentState::Extension { size, at }, byte) => match extension_byte(at, byte)? {
                Some(at) => ContentState::Extension { size, at },
                None => ContentState::SizeLineFeed { size },
            },
            (ContentState::SizeLineFeed { size: 0 }, b'\n') => {
                ContentState::Trailer(Trailer::Start)
            }
            (ContentState::SizeLineFeed { size }, b'\n') => {
                self.left_bytes =
                    self.left_bytes.checked_sub(size).ok_or(ContentProgress::TooLarge)?;
                ContentState::Data(size)
            }
            (ContentState::DataReturn, b'\r') => ContentState::DataLineFeed,
            (ContentState::DataLineFeed, b'\n') => ContentState::Size { size: 0, digits: 0 },
            (ContentState::Trailer(at), byte) => trailer_byte(at, byte)?,
            (ContentState::TrailerLineFeed { empty: true }, b'\n') => ContentState::Done,
            (ContentState::TrailerLineFeed { empty: false }, b'\n') => {
                ContentState::Trailer(Trailer::Start)
            }
            _ => return Err(ContentProgress::Malformed),
        };
        Ok(())
    }
}

fn size_byte(size: u64, digits: u8, byte: u8) -> Result<ContentState, ContentProgress> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        b'\r' if digits > 0 => return Ok(ContentState::SizeLineFeed { size }),
        b';' if digits > 0 => {
            return Ok(ContentState::Extension { size, at: Extension::BeforeName });
        }
        b' ' | b'\t' if digits > 0 => {
            return Ok(ContentState::Extension { size, at: Extension::Blank });
        }
        _ => return Err(ContentProgress::Malformed),
    };
    // Sixteen digits fill 64 bits; leading zeros are no reason to read on for ever.
    if digits == 16 {
        return Err(ContentProgress::TooLarge);
    }
    Ok(ContentState::Size { size: size << 4 | u64::from(digit), digits: digits + 1 })
}

/// A byte of chunk extensions; `None`: it is the CR that ends them.
fn extension_byte(at: Extension, byte: u8) -> Result<Option<Extension>, ContentProgress> {
    use Extension::{
        AfterName, BeforeName, BeforeValue, Blank, Escaped, Name, QuoteEnd, Quoted, Value,
    };
    let is_blank = matches!(byte, b' ' | b'\t');
    Ok(Some(match (at, byte) {
        (Quoted, b'"') => QuoteEnd,
        (Quoted, b'\\') => Escaped,
        (Quoted | Escaped, byte) if is_field_byte(byte) => Quoted,
        (Name | Value | QuoteEnd, b'\r') => return Ok(None),
        (Blank | Name | AfterName | Value | QuoteEnd, b';') => BeforeName,
        (Name | AfterName, b'=') => BeforeValue,
        (BeforeValue, b'"') => Quoted,
        (Blank | BeforeName | AfterName | BeforeValue, _) if is_blank => at,
        (Name, _) if is_blank => AfterName,
        (Value | QuoteEnd, _) if is_blank => Blank,
        (BeforeName | Name, byte) if is_token_byte(byte) => Name,
        (BeforeValue | Value, byte) if is_token_byte(byte) => Value,
        _ => return Err(ContentProgress::Malformed),
    }))
}

/// A byte of a trailer line.
fn trailer_byte(at: Trailer, byte: u8) -> Result<ContentState, ContentProgress> {
    Ok(match (at, byte) {
        (Trailer::Start, b'\r') => ContentState::TrailerLineFeed { empty: true },
        (Trailer::Start | Trailer::Name, byte) if is_token_byte(byte) => {
            ContentState::Trailer(Trailer::Name)
        }
        (Trailer::Name, b':') => ContentState::Trailer(Trailer::Value),
        (Trailer::Value, b'\r') => ContentState::TrailerLineFeed { empty: false },
        (Trailer::Value, byte) if is_field_byte(byte) => ContentState::Trailer(Trailer::Value),
        _ => return Err(ContentProgress::Malformed),
    })
}

/// RFC 9110 §5.6.2: what names consist of.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// RFC 9110 §5.5: what values consist of. No control character ends a line for any reader.
const fn is_field_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn chunked(bytes: &[u8]) -> ContentProgress {
        DiscardedContent::new(Framing::Chunked, 1000).on_bytes(bytes)
    }

    #[test]
    fn a_length_is_counted_down() {
        let mut content = DiscardedContent::new(Framing::Length(5), 5);
        assert_eq!(content.on_bytes(b"abc"), ContentProgress::Incomplete);
        assert_eq!(content.on_bytes(b"deNEXT"), ContentProgress::Complete(2));
        assert_eq!(
            DiscardedContent::new(Framing::Length(0), 0).on_bytes(b"NEXT"),
            ContentProgress::Complete(0)
        );
        assert_eq!(
            DiscardedContent::new(Framing::Length(6), 5).on_bytes(b""),
            ContentProgress::TooLarge
        );
        let endless = Framing::Length(u64::MAX);
        assert_eq!(
            DiscardedContent::new(endless, u64::MAX).on_bytes(b"x"),
            ContentProgress::Incomplete
        );
    }

    #[test]
    fn chunks_end_where_they_say() {
        for (text, consumed) in [
            ("0\r\n\r\n", 5),
            ("3\r\nabc\r\n0\r\n\r\nNEXT", 13),
            ("a;name=value;x=\"y\"\r\n0123456789\r\n000\r\n\r\n", 39),
            ("1 ;x\r\nz\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n", 36),
            ("1 ; a ; b= c; d = \"\\\"; =\" ;e\r\nz\r\n0\r\nT:\r\nU:\t\u{e9}\r\n\r\n", 49),
            ("0000000000000001\r\nz\r\n0\r\n\r\n", 26),
        ] {
            assert_eq!(chunked(text.as_bytes()), ContentProgress::Complete(consumed), "{text}");
        }
    }

    #[test]
    fn chunks_that_can_be_read_two_ways_are_malformed() {
        for text in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1\nz\r\n",
            "1;ext\nz\r\n",
            "1\rz\r\n",
            "1\r\nzz\r\n",
            "1\r\nz\n0\r\n\r\n",
            "0\r\n\n",
            "0\r\nTrailer: x\n\r\n",
            "0\r\n\rX",
            ";\r\n",
            "1;\0\r\n",
            "1_\r\n",
            "5 x\r\n",
            "5 \r\n",
            "5\t\r\n",
            "5 1\r\n",
            "5;\r\n",
            "5;;a\r\n",
            "5; \r\n",
            "5;a;\r\n",
            "5;a \r\n",
            "5;a=\r\n",
            "5;a=\"\r\n",
            "5;a=\"b\r\n",
            "5;a=\"b\\\r\n",
            "5;a=\"b\"c\r\n",
            "5;a=\"b\" \r\n",
            "5;a b\r\n",
            "5;a=b c\r\n",
            "5;a=b=c\r\n",
            "5;a=\x07\r\n",
            "5;(\r\n",
            "0\r\nno colon\r\n",
            "0\r\nnone\r\n",
            "0\r\n: value\r\n",
            "0\r\nName : value\r\n",
            "0\r\n folded: value\r\n",
            "0\r\nName: \x01\r\n",
            "0\r\nName: value\r\n folded\r\n",
        ] {
            assert_eq!(chunked(text.as_bytes()), ContentProgress::Malformed, "{text:?}");
        }
    }

    #[test]
    fn oversized_content_is_rejected() {
        assert_eq!(chunked(b"3e9\r\n"), ContentProgress::TooLarge);
        assert_eq!(chunked(b"FFFFFFFFFFFFFFFF\r\n"), ContentProgress::TooLarge);
        assert_eq!(chunked(b"00000000000000001\r\n"), ContentProgress::TooLarge);
        let two = format!("1f4\r\n{}\r\n1f5\r\n", "x".repeat(500));
        assert_eq!(chunked(two.as_bytes()), ContentProgress::TooLarge, "the sum counts");
        let extension = format!("1;{}", "x".repeat(CHUNK_OVERHEAD_BYTES_MAX as usize));
        assert_eq!(chunked(extension.as_bytes()), ContentProgress::TooLarge);
        let trailers =
            format!("0\r\n{}", "a: b\r\n".repeat(CHUNK_OVERHEAD_BYTES_MAX as usize / 6 + 1));
        assert_eq!(chunked(trailers.as_bytes()), ContentProgress::TooLarge);
    }

    proptest! {
        /// However the bytes are cut, the outcome is the same.
        #[test]
        fn cuts_make_no_difference(
            text in "[0-3a]{1,2}(;x)?\r\n[a-z]{0,4}(\r\n)?0?\r?\n?(t: v\r\n)?\r?\n?.{0,3}",
            cuts in vec(1_usize..6, 0..20),
        ) {
            let whole = DiscardedContent::new(Framing::Chunked, 8).on_bytes(text.as_bytes());
            let mut content = DiscardedContent::new(Framing::Chunked, 8);
            let (mut at, mut cuts) = (0, cuts.into_iter());
            let outcome = loop {
                let step = cuts.next().unwrap_or(text.len()).min(text.len() - at);
                match content.on_bytes(&text.as_bytes()[at..at + step]) {
                    ContentProgress::Incomplete if at + step < text.len() => at += step,
                    ContentProgress::Complete(end) => break ContentProgress::Complete(at + end),
                    other => break other,
                }
            };
            prop_assert_eq!(outcome, whole);
        }

        #[test]
        fn well_formed_content_is_complete(
            chunks in vec(vec(any::<u8>(), 1..50), 0..8),
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend(format!("{:X}\r\n", chunk.len()).bytes());
                text.extend(chunk);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\n\r\n");
            let end = text.len();
            text.extend(b"GET / HTTP/1.1\r\n");
            prop_assert_eq!(chunked(&text), ContentProgress::Complete(end));
        }
    }
}
