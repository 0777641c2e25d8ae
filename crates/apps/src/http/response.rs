//! Response heads: from a decision to bytes.
//!
//! Read first: RFC 9112 §4; RFC 9110 §6.6.1 (Date), §8 (representation fields), §14.4 and §14.6
//! (Content-Range, multipart/byteranges), §15 (what each status must carry).
//!
//! Pure: decisions in, bytes out.
//!
//! Invariants
//! - Every response has a `Date` and, where a body may follow, a `Content-Length`: no response of
//!   this server ends with the connection.
//! - The date of a prepared head lies at [`DATE_AT`], so that sending it is one copy and one patch.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use super::date::{self, DATE_BYTES};
use super::range::Ranges;
use super::representation::Representation;
use super::request::Persistence;
use super::status::HttpStatus;

/// Methods that this server answers, as an `Allow` field lists them.
pub(crate) const ALLOWED: &str = "GET, HEAD, OPTIONS";

/// Where the date lies in a prepared head: it begins with the line of 200 and the `Server` field.
pub(crate) const DATE_AT: usize = b"HTTP/1.1 200 OK\r\nServer: megapipe\r\nDate: ".len();

/// A whole file in memory, with its head before it: what a cached answer is copied from.
#[derive(Clone, Debug)]
pub(crate) struct PreparedFile {
    /// Head, empty line and body.
    pub(crate) memory: Arc<[u8]>,
    /// Where the body begins.
    pub(crate) body_at: usize,
}

impl PreparedFile {
    /// The answer 200 with all of `body`.
    pub(crate) fn new(representation: &Representation, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(512 + body.len());
        let mut head = ResponseHead::new(&mut bytes, HttpStatus::Ok, &date::format(0));
        head.describe(representation);
        head.end(Persistence::Implied);
        let body_at = bytes.len();
        bytes.extend_from_slice(body);
        Self { memory: bytes.into(), body_at }
    }

    pub(crate) fn body_len(&self) -> usize {
        self.memory.len() - self.body_at
    }

    /// Appends the head and the first `inline_len` bytes of the body.
    pub(crate) fn push(
        &self,
        out: &mut Vec<u8>,
        inline_len: usize,
        date: &[u8; DATE_BYTES],
        persistence: Persistence,
    ) {
        let start = out.len();
        let end = self.body_at + inline_len;
        match connection_field(persistence) {
            "" => out.extend_from_slice(&self.memory[..end]),
            field => {
                // In front of the empty line.
                let fields_end = self.body_at - 2;
                out.extend_from_slice(&self.memory[..fields_end]);
                out.extend_from_slice(field.as_bytes());
                out.extend_from_slice(&self.memory[fields_end..end]);
            }
        }
        let date_at = start + DATE_AT;
        out[date_at..date_at + DATE_BYTES].copy_from_slice(date);
    }
}

/// A head that is being written.
pub(crate) struct ResponseHead<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> ResponseHead<'o> {
    /// Status line and the fields that every response has.
    pub(crate) fn new(out: &'o mut Vec<u8>, status: HttpStatus, date: &[u8; DATE_BYTES]) -> Self {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.line().as_bytes());
        out.extend_from_slice(b"\r\nServer: megapipe\r\nDate: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n");
        Self { out }
    }

    pub(crate) fn field(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.out.extend_from_slice(part);
        }
    }

    pub(crate) fn content_length(&mut self, len: u64) {
        // Writing to memory does not fail.
        let _ = write!(self.out, "Content-Length: {len}\r\n");
    }

    /// All header fields of a whole response (200, and HEAD of it).
    pub(crate) fn describe(&mut self, representation: &Representation) {
        self.field("Content-Type", representation.media_type.as_bytes());
        self.content_length(representation.len());
        self.validators(representation);
        self.field("Accept-Ranges", b"bytes");
    }

    pub(crate) fn validators(&mut self, representation: &Representation) {
        self.field("Last-Modified", &date::format(representation.last_modified_s));
        self.identify(representation);
    }

    /// The fields that a 304 has too (RFC 9110 §15.4.5).
    pub(crate) fn identify(&mut self, representation: &Representation) {
        self.field("ETag", representation.entity_tag.as_bytes());
        if let Some(max_age_s) = representation.max_age_s {
            let _ = write!(self.out, "Cache-Control: max-age={max_age_s}\r\n");
        }
    }

    pub(crate) fn end(self, persistence: Persistence) {
        self.out.extend_from_slice(connection_field(persistence).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// RFC 9112 §9.3 and §9.6: sent if the peer cannot infer it.
fn connection_field(persistence: Persistence) -> &'static str {
    match persistence {
        Persistence::Implied => "",
        Persistence::Asked => "Connection: keep-alive\r\n",
        Persistence::Close => "Connection: close\r\n",
    }
}

/// The value of a `Content-Range` for `part` of `len` bytes.
pub(crate) fn content_range(part: &Range<u64>, len: u64) -> String {
    format!("bytes {}-{}/{len}", part.start, part.end - 1)
}

/// The text around the parts of a multipart/byteranges body (RFC 9110 §14.6).
pub(crate) struct Multipart {
    boundary: u64,
    /// One head per part.
    pub(crate) part_heads: Vec<Vec<u8>>,
    pub(crate) end: Vec<u8>,
    /// Bytes of the body, parts included.
    pub(crate) len: u64,
}

impl Multipart {
    pub(crate) fn new(boundary: u64, ranges: &Ranges, file: &Representation) -> Self {
        let part_heads: Vec<Vec<u8>> = ranges
            .iter()
            .map(|part| {
                format!(
                    "\r\n--megapipe-{boundary:016x}\r\n\
                    Content-Type: {}\r\nContent-Range: {}\r\n\r\n",
                    file.media_type,
                    content_range(&part, file.len())
                )
                .into_bytes()
            })
            .collect();
        let end = format!("\r\n--megapipe-{boundary:016x}--\r\n").into_bytes();
        // Parts do not overlap, so their sum is at most the file's length: no overflow.
        let len = part_heads.iter().map(|head| head.len() as u64).sum::<u64>()
            + ranges.iter().map(|part| part.end - part.start).sum::<u64>()
            + end.len() as u64;
        Self { boundary, part_heads, end, len }
    }

    pub(crate) fn media_type(&self) -> String {
        format!("multipart/byteranges; boundary=megapipe-{:016x}", self.boundary)
    }
}

/// The body of an answer that is about the request and not a file.
pub(crate) fn message(status: HttpStatus) -> String {
    format!("{}\n", status.line())
}

#[cfg(test)]
mod tests {
    use super::super::range::{Selection, select};
    use super::super::representation::tests::representation;
    use super::*;

    const MODIFIED_S: i64 = 784_111_777;

    #[test]
    fn a_prepared_answer_differs_only_in_date_and_connection() {
        let prepared = PreparedFile::new(&representation(5, MODIFIED_S), b"hello");
        let date = b"Mon, 07 Nov 1994 00:00:00 GMT";
        let text = |persistence, inline_len| {
            let mut out = b"before".to_vec();
            prepared.push(&mut out, inline_len, date, persistence);
            String::from_utf8(out).unwrap()
        };
        let head = "beforeHTTP/1.1 200 OK\r\nServer: megapipe\r\n\
            Date: Mon, 07 Nov 1994 00:00:00 GMT\r\nContent-Type: text/plain; charset=utf-8\r\n\
            Content-Length: 5\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            ETag: \"2-5-ae1b981bc490a05\"\r\nAccept-Ranges: bytes\r\n";
        assert_eq!(text(Persistence::Implied, 5), format!("{head}\r\nhello"));
        assert_eq!(text(Persistence::Implied, 0), format!("{head}\r\n"));
        let closing = format!("{head}Connection: close\r\n\r\nhello");
        assert_eq!(text(Persistence::Close, 5), closing);
        let asked = format!("{head}Connection: keep-alive\r\n\r\nhe");
        assert_eq!(text(Persistence::Asked, 2), asked);
    }

    #[test]
    fn multipart_body_matches_content_length() {
        let file = representation(1000, MODIFIED_S);
        let Selection::Parts(ranges) = select(b"bytes=0-9,-5,100-199", 1000) else { panic!() };
        let multipart = Multipart::new(0xabc, &ranges, &file);
        let mut body = Vec::new();
        for (head, part) in multipart.part_heads.iter().zip(ranges.iter()) {
            body.extend(head);
            body.extend(vec![b'x'; (part.end - part.start) as usize]);
        }
        body.extend(&multipart.end);
        assert_eq!(body.len() as u64, multipart.len);
        let text = String::from_utf8(body).unwrap();
        assert_eq!(text.matches("\r\n--megapipe-0000000000000abc\r\n").count(), 3);
        assert!(text.ends_with("\r\n--megapipe-0000000000000abc--\r\n"));
        assert!(text.contains("\r\nContent-Range: bytes 995-999/1000\r\n\r\nxxxxx\r\n--"));
    }
}
