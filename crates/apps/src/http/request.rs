//! Parses request headers.
//!
//! Read first: RFC 9112 §2.2, §3, §5, §6, §9.3, §11.2 (request smuggling); RFC 9110 §7.2 (Host),
//! §9 (methods), §10.1.1 (Expect).
//!
//! httparse reads the syntax; everything that decides where a request ends, and what another HTTP
//! implementation in front of us might read differently, is checked here and refused when in doubt.
//!
//! Pure: bytes in, a request or a refusal out.
//!
//! Invariants
//! - A request that is accepted has exactly one reading of its length.
//! - A request that is refused ends the connection, because where the next one starts is unknown;
//!   the exceptions are made by `connection.rs` and only for requests accepted here.

use std::mem::MaybeUninit;

use httparse::Header;

use super::conditional::Preconditions;
use super::limits::{FIELDS_MAX, TARGET_BYTES_MAX};
use super::status::HttpStatus;

/// Room for the fields of one head; lives on the caller's stack.
pub(crate) type FieldStorage<'b> = [MaybeUninit<Header<'b>>; FIELDS_MAX];

/// Methods that matter here (RFC 9110 §9).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Method {
    Get,
    Head,
    Options,
    /// Known, and not allowed on a file: 405.
    NotAllowed,
    /// Not known: 501.
    Unknown,
}

/// What a request is about (RFC 9112 §3.2).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum HttpTarget<'b> {
    /// Origin form, or the path of the absolute form. `query` has its question mark.
    Path { path: &'b [u8], query: &'b [u8] },
    /// `*`
    Server,
}

/// How long the content is (RFC 9112 §6.3).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
}

/// What the connection does after the response (RFC 9112 §9.3).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Persistence {
    /// HTTP/1.1: stays open, without a `HttpConnection` field.
    Implied,
    /// HTTP/1.0 with `keep-alive`: stays open, and the response confirms it.
    Asked,
    Close,
}

/// One request head. Borrows the bytes it was read from.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest<'h, 'b> {
    pub(crate) method: Method,
    pub(crate) target: HttpTarget<'b>,
    pub(crate) framing: Framing,
    pub(crate) persistence: Persistence,
    /// The peer waits for a word before it sends the content.
    pub(crate) expects_continue: bool,
    pub(crate) preconditions: Preconditions<'h, 'b>,
    /// There is a `Range` field.
    pub(crate) ranged: bool,
    /// Bytes of the head.
    pub(crate) head_len: usize,
}

/// Why a head is refused.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum HeadRefusal {
    /// Not HTTP/1 as RFC 9112 writes it.
    Syntax,
    /// A line that ends without a carriage return.
    BareLineFeed,
    /// No `Host` in HTTP/1.1, several, or one that is no authority.
    Host,
    /// `Content-Length` and `Transfer-Encoding` contradict themselves, each other or the version.
    Framing,
    /// A request target that is neither a path nor an http URI.
    Target,
    TargetTooLong,
    HeadTooLarge,
    /// HTTP/2 or later, or HTTP/0.
    Version,
    /// A transfer coding that is not chunked.
    TransferCoding,
    /// An expectation that is not 100-continue.
    Expectation,
}

impl HeadRefusal {
    /// The status of this error.
    pub(crate) fn status(self) -> HttpStatus {
        match self {
            Self::Syntax | Self::BareLineFeed | Self::Host | Self::Framing | Self::Target => {
                HttpStatus::BadRequest
            }
            Self::TargetTooLong => HttpStatus::UriTooLong,
            Self::HeadTooLarge => HttpStatus::RequestHeaderFieldsTooLarge,
            Self::Version => HttpStatus::HttpVersionNotSupported,
            Self::TransferCoding => HttpStatus::NotImplemented,
            Self::Expectation => HttpStatus::ExpectationFailed,
        }
    }
}

/// Reads the head at the start of `bytes`. `Ok(None)` means that it is not complete.
pub(crate) fn parse<'h, 'b>(
    bytes: &'b [u8],
    storage: &'h mut FieldStorage<'b>,
) -> Result<Option<HttpRequest<'h, 'b>>, HeadRefusal> {
    let mut parsed = httparse::Request::new(&mut []);
    let head_len = match parsed.parse_with_uninit_headers(bytes, storage) {
        Ok(httparse::Status::Complete(head_len)) => head_len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadRefusal::HeadTooLarge),
        Err(httparse::Error::Version) => return Err(version_refusal(bytes)),
        Err(_) => return Err(HeadRefusal::Syntax),
    };
    if has_bare_line_feed(&bytes[..head_len]) {
        return Err(HeadRefusal::BareLineFeed);
    }
    let httparse::Request {
        method: Some(method), path: Some(target), version: Some(version), ..
    } = parsed
    else {
        return Err(HeadRefusal::Syntax);
    };
    let fields: &'h [Header<'b>] = parsed.headers;
    let read = HeaderFields::read(fields, version)?;
    let method = method_of(method);
    Ok(Some(HttpRequest {
        method,
        target: target_of(target.as_bytes(), method)?,
        framing: read.framing(version)?,
        persistence: read.persistence(version),
        expects_continue: read.expects_continue && version >= 1,
        preconditions: Preconditions { fields, any: read.conditional },
        ranged: read.ranged,
        head_len,
    }))
}

/// What an incomplete head that has already reached the limit is refused for.
pub(crate) fn too_large(bytes: &[u8]) -> HeadRefusal {
    match bytes.iter().position(|&byte| byte == b'\n') {
        Some(line_len) if line_len <= TARGET_BYTES_MAX => HeadRefusal::HeadTooLarge,
        _ => HeadRefusal::TargetTooLong,
    }
}

/// Whether the empty line that ends a head may have come: `bytes[..searched]` was searched before.
pub(crate) fn may_be_complete(bytes: &[u8], searched: usize) -> bool {
    let tail = &bytes[searched.saturating_sub(2)..];
    tail.windows(3).any(|three| three == b"\n\r\n") || tail.windows(2).any(|two| two == b"\n\n")
}

/// httparse lets a lone LF end a line; two implementations that disagree on that disagree on what
/// the fields are. A CR comes only before LF, so the counts are equal if all lines end in both.
fn has_bare_line_feed(head: &[u8]) -> bool {
    let count = |wanted: u8| head.iter().filter(|&&byte| byte == wanted).count();
    count(b'\n') != count(b'\r')
}

/// RFC 9112 §2.3 and RFC 9110 §15.6.6: a version that looks like one but is not ours is 505.
fn version_refusal(bytes: &[u8]) -> HeadRefusal {
    let line_end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let line = bytes[..line_end].trim_ascii_end();
    let mut words = line.split(|&byte| byte == b' ').skip(2);
    let version = words.next().filter(|_| words.next().is_none());
    match version.and_then(|word| word.strip_prefix(b"HTTP/")) {
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => {
            HeadRefusal::Version
        }
        _ => HeadRefusal::Syntax,
    }
}

fn method_of(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "OPTIONS" => Method::Options,
        "POST" | "PUT" | "DELETE" | "CONNECT" | "TRACE" | "PATCH" => Method::NotAllowed,
        _ => Method::Unknown,
    }
}

fn target_of(text: &[u8], method: Method) -> Result<HttpTarget<'_>, HeadRefusal> {
    if text.len() > TARGET_BYTES_MAX {
        return Err(HeadRefusal::TargetTooLong);
    }
    if text.contains(&b'#') {
        return Err(HeadRefusal::Target);
    }
    if text.starts_with(b"/") {
        return Ok(split_query(text));
    }
    if text == b"*" && method == Method::Options {
        return Ok(HttpTarget::Server);
    }
    match strip_scheme(text) {
        Some(rest) => absolute(rest, method),
        // An authority (CONNECT) or anything else of a method that is refused anyway.
        None if matches!(method, Method::NotAllowed | Method::Unknown) => Ok(HttpTarget::Server),
        None => Err(HeadRefusal::Target),
    }
}

/// The absolute form behind its scheme: the authority is checked, and unused as there is one site.
fn absolute(rest: &[u8], method: Method) -> Result<HttpTarget<'_>, HeadRefusal> {
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if !is_authority(authority) {
        return Err(HeadRefusal::Target);
    }
    match path {
        b"" if method == Method::Options => Ok(HttpTarget::Server),
        [b'/', ..] => Ok(split_query(path)),
        query => Ok(HttpTarget::Path { path: b"/", query }),
    }
}

fn strip_scheme(text: &[u8]) -> Option<&[u8]> {
    ["http://", "https://"].iter().find_map(|scheme| {
        let (start, rest) = text.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme.as_bytes()).then_some(rest)
    })
}

fn split_query(text: &[u8]) -> HttpTarget<'_> {
    let end = text.iter().position(|&byte| byte == b'?').unwrap_or(text.len());
    let (path, query) = text.split_at(end);
    HttpTarget::Path { path, query }
}

/// Host and port as RFC 3986 §3.2.2 spells them; user information is refused (RFC 9110 §4.2.4), and
/// so is an empty host, which no http URI has (§4.2.1).
fn is_authority(text: &[u8]) -> bool {
    !text.is_empty()
        && text
            .iter()
            .all(|&byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%:[]".contains(&byte))
}

/// The fields of a header that the server uses.
#[derive(Debug, Default)]
struct HeaderFields {
    content_length: Option<u64>,
    transfer_encoding: Option<Coding>,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    conditional: bool,
    ranged: bool,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Coding {
    Chunked,
    /// One that is not implemented.
    Other,
}

impl HeaderFields {
    fn read(fields: &[Header<'_>], version: u8) -> Result<Self, HeadRefusal> {
        let mut read = Self::default();
        let mut hosts = 0;
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            match field.name.len() {
                4 if is("host") => {
                    hosts += 1;
                    if !is_authority(field.value) {
                        return Err(HeadRefusal::Host);
                    }
                }
                5 if is("range") => read.ranged = true,
                6 if is("expect") => read.expect(field.value, version)?,
                8 if is("if-match") => read.conditional = true,
                10 if is("connection") => read.connection(field.value),
                13 if is("if-none-match") => read.conditional = true,
                14 if is("content-length") => read.content_length(field.value)?,
                17 if is("if-modified-since") => read.conditional = true,
                17 if is("transfer-encoding") => read.transfer_encoding(field.value)?,
                19 if is("if-unmodified-since") => read.conditional = true,
                _ => {}
            }
        }
        // RFC 9112 §3.2: exactly one in HTTP/1.1, and never two that might differ.
        if hosts > 1 || (hosts == 0 && version >= 1) {
            return Err(HeadRefusal::Host);
        }
        Ok(read)
    }

    fn expect(&mut self, value: &[u8], version: u8) -> Result<(), HeadRefusal> {
        if value.eq_ignore_ascii_case(b"100-continue") {
            self.expects_continue = true;
            return Ok(());
        }
        // An HTTP/1.0 peer does not know the field (§10.1.1).
        if version == 0 { Ok(()) } else { Err(HeadRefusal::Expectation) }
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',') {
            let option = option.trim_ascii();
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// Digits and nothing else, once. A list of equal numbers may be folded (§6.3) and is refused.
    fn content_length(&mut self, value: &[u8]) -> Result<(), HeadRefusal> {
        if self.content_length.is_some() || value.is_empty() {
            return Err(HeadRefusal::Framing);
        }
        let len = value.iter().try_fold(0_u64, |len, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            Some(len.saturating_mul(10).saturating_add(digit))
        });
        self.content_length = Some(len.ok_or(HeadRefusal::Framing)?);
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), HeadRefusal> {
        for coding in value.split(|&byte| byte == b',') {
            // Chunked must be the last coding and not applied twice (§6.1).
            if self.transfer_encoding == Some(Coding::Chunked) {
                return Err(HeadRefusal::Framing);
            }
            let chunked = coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
            self.transfer_encoding = Some(match (chunked, self.transfer_encoding) {
                (true, None) => Coding::Chunked,
                (true, Some(_)) => return Err(HeadRefusal::TransferCoding),
                (false, _) => Coding::Other,
            });
        }
        Ok(())
    }

    fn framing(&self, version: u8) -> Result<Framing, HeadRefusal> {
        match (self.transfer_encoding, self.content_length) {
            (None, len) => Ok(Framing::Length(len.unwrap_or(0))),
            // §6.1: both fields, or a coding from an HTTP/1.0 peer, is how requests are smuggled.
            (Some(_), Some(_)) => Err(HeadRefusal::Framing),
            (Some(_), None) if version == 0 => Err(HeadRefusal::Framing),
            (Some(Coding::Chunked), None) => Ok(Framing::Chunked),
            (Some(Coding::Other), None) => Err(HeadRefusal::TransferCoding),
        }
    }

    fn persistence(&self, version: u8) -> Persistence {
        match (self.close, version, self.keep_alive) {
            (true, _, _) | (false, 0, false) => Persistence::Close,
            (false, 0, true) => Persistence::Asked,
            (false, _, _) => Persistence::Implied,
        }
    }
}

#[cfg(test)]
mod tests;
