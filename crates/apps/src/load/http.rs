//! The client of a web server: GET after GET on a connection, status and length checked.
//!
//! Reads responses as HTTP/1.1 frames them (RFC 9112 §6): by Content-Length, by chunks, or up to
//! the end of the connection.
//!
//! Invariants
//! - A response is complete when its framing ends; bytes after it are an error, because
//!   nothing else was asked for.
//! - A header section is at most [`HEADER_LEN_MAX`] bytes long.

use std::io;
use std::sync::Arc;

use crate::limits::load::{HEADER_LEN_MAX, REQUEST_BYTES_RESERVED};
use crate::memory::{require, reserved};

use super::client_protocol::{ClientProtocol, RequestBuilder, ResponseProgress};
use super::file_set::FileSet;
use super::rng::Rng;

/// The most header fields of a response.
const FIELDS_MAX: usize = 64;

/// One target of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestTarget {
    /// The request in full, which all threads share.
    request: Arc<[u8]>,
    /// How long the response's content has to be; unknown until it was seen once.
    len: Option<u64>,
    /// The number of the file in a set, with known content.
    file: Option<usize>,
}

impl RequestTarget {
    /// A path with unknown content: later responses must have the length of the first.
    pub(crate) fn path(path: &str, host: &str, keep_alive: bool) -> Self {
        Self { request: get(path, host, keep_alive), len: None, file: None }
    }

    /// The path, from the request.
    fn shown(&self) -> String {
        let path = self.request.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        String::from_utf8_lossy(path).into_owned()
    }

    /// All files of a set.
    ///
    /// # Errors
    /// There is no memory for their number.
    pub(crate) fn files(set: &FileSet, host: &str, keep_alive: bool) -> io::Result<Vec<Self>> {
        let each = REQUEST_BYTES_RESERVED + host.len();
        require(set.lens().len().saturating_mul(each))?;
        let target = |(file, &len)| Self {
            request: get(&FileSet::path(file), host, keep_alive),
            len: Some(len),
            file: Some(file),
        };
        let mut targets = reserved(set.lens().len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        targets.extend(set.lens().iter().enumerate().map(target));
        Ok(targets)
    }

    /// The targets for one more thread.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn copies(targets: &[Self]) -> io::Result<Vec<Self>> {
        let mut copies = reserved(targets.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        copies.extend_from_slice(targets);
        Ok(copies)
    }
}

fn get(path: &str, host: &str, keep_alive: bool) -> Arc<[u8]> {
    let close = if keep_alive { "" } else { "Connection: close\r\n" };
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: megapipe-load\r\n{close}\r\n")
        .into_bytes()
        .into()
}

/// The requests of a thread.
#[derive(Debug)]
pub(crate) struct HttpClient {
    targets: Vec<RequestTarget>,
    rng: Rng,
    status: u16,
    verify_every: u32,
    requests: u32,
    content_bytes: u64,
    /// The first status that is not `status`, with its path.
    unexpected: Option<String>,
}

/// One request under way.
#[derive(Debug, Default)]
pub(crate) struct HttpExchange {
    target: usize,
    verified: bool,
    /// The header section as far as it has come; empty once it is read.
    header: Vec<u8>,
    body: RemainingBody,
    reusable: bool,
    content_len: u64,
}

/// How much of the content is still to come.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum RemainingBody {
    /// The header section is not complete.
    #[default]
    Unknown,
    Length(u64),
    UntilEnd,
    Chunks(ChunkState),
}

/// Where in a chunked content the stream is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ChunkState {
    /// In a chunk's size line; the line itself is gathered in `header`.
    Size,
    Data(u64),
    /// After a chunk's data; the number of bytes of CR LF still to come.
    End(u8),
    /// In the trailer section, gathered in `header`.
    Trailer,
}

impl HttpClient {
    /// Asks for the targets at random; each response has to have this status.
    pub(crate) fn new(
        targets: Vec<RequestTarget>,
        status: u16,
        verify_every: u32,
        rng: Rng,
    ) -> Self {
        let verify_every = verify_every.max(1);
        let (requests, content_bytes, unexpected) = (0, 0, None);
        Self { targets, rng, status, verify_every, requests, content_bytes, unexpected }
    }

    /// Parses the header section. Returns the framing of the body, or None if it is wrong.
    fn read_header(&mut self, exchange: &mut HttpExchange) -> Option<RemainingBody> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        if !response.parse(&exchange.header).ok()?.is_complete() {
            return None;
        }
        let code = response.code?;
        if code != self.status {
            let path = self.targets[exchange.target].shown();
            let seen = || format!("status {code} for {path}, and not {}", self.status);
            self.unexpected.get_or_insert_with(seen);
            return None;
        }
        exchange.reusable = response.version? >= 1;
        let mut body = RemainingBody::UntilEnd;
        for field in response.headers.iter() {
            let value = field.value;
            if field.name.eq_ignore_ascii_case("content-length") {
                body = match body {
                    RemainingBody::Chunks(_) => body,
                    _ => {
                        RemainingBody::Length(std::str::from_utf8(value).ok()?.trim().parse().ok()?)
                    }
                };
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return None;
                }
                body = RemainingBody::Chunks(ChunkState::Size);
            } else if field.name.eq_ignore_ascii_case("connection") {
                exchange.reusable &= !value.eq_ignore_ascii_case(b"close");
            }
        }
        exchange.reusable &= body != RemainingBody::UntilEnd;
        Some(body)
    }

    /// Takes content. False if it is not what the target holds.
    fn content(&mut self, exchange: &mut HttpExchange, mut bytes: &[u8]) -> bool {
        let mut offset = exchange.content_len;
        exchange.content_len += bytes.len() as u64;
        self.content_bytes += bytes.len() as u64;
        let Some(file) = self.targets[exchange.target].file.filter(|_| exchange.verified) else {
            return true;
        };
        while !bytes.is_empty() {
            let expected = FileSet::content(file, offset, offset + bytes.len() as u64);
            let (piece, rest) = bytes.split_at(expected.len());
            if piece != expected {
                return false;
            }
            (offset, bytes) = (offset + piece.len() as u64, rest);
        }
        true
    }

    /// The response is complete: was it as long as it has to be?
    fn done(&mut self, exchange: &HttpExchange) -> ResponseProgress {
        let expected = self.targets[exchange.target].len.get_or_insert(exchange.content_len);
        if *expected != exchange.content_len {
            return ResponseProgress::Wrong;
        }
        ResponseProgress::Done { reusable: exchange.reusable }
    }

    /// Takes what belongs to the header section. What is left, or None if it is wrong.
    fn take_header<'a>(
        &mut self,
        exchange: &mut HttpExchange,
        bytes: &'a [u8],
    ) -> Option<&'a [u8]> {
        // The end may lie across two pieces: look again at the last three bytes.
        let before = exchange.header.len();
        exchange.header.extend_from_slice(bytes);
        let from = before.saturating_sub(3);
        let end = exchange.header[from..].windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end.map(|end| from + end + 4) else {
            return (exchange.header.len() <= HEADER_LEN_MAX).then_some(&[]);
        };
        exchange.header.truncate(end);
        exchange.body = self.read_header(exchange)?;
        exchange.header.clear();
        Some(&bytes[end - before..])
    }

    /// Takes what belongs to a chunked body. What is left and whether it was the end.
    fn take_chunks<'a>(
        &mut self,
        exchange: &mut HttpExchange,
        chunk: ChunkState,
        bytes: &'a [u8],
    ) -> Option<(&'a [u8], bool)> {
        match chunk {
            ChunkState::Data(len) => {
                let (data, rest) = bytes.split_at(len.min(bytes.len() as u64) as usize);
                if !self.content(exchange, data) {
                    return None;
                }
                let left = len - data.len() as u64;
                let next = if left == 0 { ChunkState::End(2) } else { ChunkState::Data(left) };
                exchange.body = RemainingBody::Chunks(next);
                Some((rest, false))
            }
            ChunkState::End(left) => {
                let (&byte, rest) = bytes.split_first()?;
                if byte != b"\r\n"[usize::from(2 - left)] {
                    return None;
                }
                let next = if left == 1 { ChunkState::Size } else { ChunkState::End(1) };
                exchange.body = RemainingBody::Chunks(next);
                Some((rest, false))
            }
            ChunkState::Size | ChunkState::Trailer => {
                let end = bytes.iter().position(|&byte| byte == b'\n');
                let len = end.map_or(bytes.len(), |end| end + 1);
                exchange.header.extend_from_slice(&bytes[..len]);
                if exchange.header.len() > HEADER_LEN_MAX {
                    return None;
                }
                let ended = end.is_some() && chunk_line(exchange, chunk)?;
                Some((&bytes[len..], ended))
            }
        }
    }
}

/// Reads a whole line of a chunked body's framing. Whether it ends the response.
fn chunk_line(exchange: &mut HttpExchange, chunk: ChunkState) -> Option<bool> {
    let line = std::mem::take(&mut exchange.header);
    if chunk == ChunkState::Trailer {
        return Some(line == b"\r\n");
    }
    let Ok(httparse::Status::Complete((_, size))) = httparse::parse_chunk_size(&line) else {
        return None;
    };
    exchange.body =
        RemainingBody::Chunks(if size == 0 { ChunkState::Trailer } else { ChunkState::Data(size) });
    Some(false)
}

impl ClientProtocol for HttpClient {
    type Exchange = HttpExchange;

    fn request(&mut self, exchange: &mut HttpExchange, request: &mut RequestBuilder<'_>) {
        self.requests = self.requests.wrapping_add(1);
        exchange.header.clear();
        exchange.target = self.rng.below(self.targets.len() as u64) as usize;
        exchange.verified = self.requests.is_multiple_of(self.verify_every);
        exchange.body = RemainingBody::Unknown;
        exchange.content_len = 0;
        request.head.append(&self.targets[exchange.target].request);
    }

    fn response(&mut self, exchange: &mut HttpExchange, mut bytes: &[u8]) -> ResponseProgress {
        loop {
            let ended = match exchange.body {
                RemainingBody::Unknown => match self.take_header(exchange, bytes) {
                    Some(rest) => {
                        bytes = rest;
                        false
                    }
                    None => return ResponseProgress::Wrong,
                },
                RemainingBody::Length(len) => {
                    let (data, rest) = bytes.split_at(len.min(bytes.len() as u64) as usize);
                    if !self.content(exchange, data) {
                        return ResponseProgress::Wrong;
                    }
                    let left = len - data.len() as u64;
                    (exchange.body, bytes) = (RemainingBody::Length(left), rest);
                    left == 0
                }
                RemainingBody::UntilEnd => {
                    if !self.content(exchange, bytes) {
                        return ResponseProgress::Wrong;
                    }
                    return ResponseProgress::More;
                }
                RemainingBody::Chunks(chunk) => match self.take_chunks(exchange, chunk, bytes) {
                    Some((rest, ended)) => {
                        bytes = rest;
                        ended
                    }
                    None if bytes.is_empty() => return ResponseProgress::More,
                    None => return ResponseProgress::Wrong,
                },
            };
            if ended {
                return if bytes.is_empty() {
                    self.done(exchange)
                } else {
                    ResponseProgress::Wrong
                };
            }
            // An empty body is complete without a byte; everything else waits for more.
            if bytes.is_empty() && exchange.body != RemainingBody::Length(0) {
                return ResponseProgress::More;
            }
        }
    }

    fn end_of_stream(&mut self, exchange: &mut HttpExchange) -> ResponseProgress {
        match exchange.body {
            RemainingBody::UntilEnd => self.done(exchange),
            _ => ResponseProgress::Wrong,
        }
    }

    fn unexpected(&self) -> Option<&str> {
        self.unexpected.as_deref()
    }

    fn details(&self) -> Vec<(&'static str, u64)> {
        vec![("content_bytes", self.content_bytes)]
    }
}

#[cfg(test)]
mod tests;
