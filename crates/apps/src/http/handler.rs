//! Answers one request: selects the response, and writes it to the outbox.
//!
//! Read first: RFC 9110 §9.3 (methods), §13.2.2 (preconditions come before ranges), §15.
//!
//! Pure: a request and what its path names in, bytes out.
//!
//! Invariants
//! - Exactly one final response per call.
//! - A whole cached file is answered without allocating: one lookup, one copy, one patch.

use super::conditional::PreconditionVerdict;
use super::date::{DATE_BYTES, Now};
use super::document_root::{DocumentRoot, PathLookup};
use super::limits::{INLINE_BODY_BYTES_MAX, WRITE_BYTES_MAX};
use super::outbox::HttpOutbox;
use super::path;
use super::range::{self, Ranges, Selection};
use super::representation::Representation;
use super::request::{HttpRequest, HttpTarget, Method, Persistence};
use super::response::{self, ALLOWED, Multipart, PreparedFile, ResponseHead};
use super::settings::HttpSettings;
use super::status::HttpStatus;
use super::stream::{BodyPart, BodyStream};
use crate::serve::ServerTally;

/// What an input may use and leave behind.
#[derive(Debug)]
pub(crate) struct InputContext<'t, S: DocumentRoot> {
    pub(crate) now: &'t Now,
    pub(crate) settings: &'t HttpSettings,
    pub(crate) document_root: &'t mut S,
    pub(crate) out: &'t mut HttpOutbox,
    pub(crate) tally: &'t mut ServerTally,
    /// The file that the connection has begun to stream.
    pub(crate) opened: Option<S::File>,
}

/// What part of a file answers a request.
#[derive(Debug)]
enum ResponseDecision {
    Whole,
    NotModified,
    PreconditionFailed,
    Parts(Ranges),
    Unsatisfiable,
}

/// What every response of one exchange needs.
#[derive(Copy, Clone, Debug)]
struct Manner<'n> {
    date: &'n [u8; DATE_BYTES],
    persistence: Persistence,
    /// The request was a HEAD: no body.
    head_only: bool,
}

/// Answers `request`. What is left of a long body is returned; if it is not in memory, its file is
/// in `context.opened`.
pub(crate) fn answer<S: DocumentRoot>(
    request: &HttpRequest<'_, '_>,
    persistence: Persistence,
    context: &mut InputContext<'_, S>,
) -> Option<BodyStream> {
    context.tally.requests += 1;
    let head_only = request.method == Method::Head;
    let manner = Manner { date: &context.now.date, persistence, head_only };
    let out = &mut *context.out;
    let (path, query) = match (request.method, request.target) {
        (Method::Get | Method::Head, HttpTarget::Path { path, query }) => (path, query),
        (Method::Get | Method::Head, HttpTarget::Server) => {
            manner.message(out, HttpStatus::BadRequest, &[]);
            return None;
        }
        (Method::Options, _) => {
            let mut head = ResponseHead::new(&mut out.bytes, HttpStatus::NoContent, manner.date);
            head.field("Allow", ALLOWED.as_bytes());
            head.end(persistence);
            return None;
        }
        (Method::NotAllowed, _) => {
            manner.message(out, HttpStatus::MethodNotAllowed, &[("Allow", ALLOWED.as_bytes())]);
            return None;
        }
        (Method::Unknown, _) => {
            manner.message(out, HttpStatus::NotImplemented, &[]);
            return None;
        }
    };
    match context.document_root.find(path, context.now) {
        PathLookup::Held(entry) => {
            let file = &entry.representation;
            return match decide(request, file, context.now.unix_s) {
                ResponseDecision::Whole => manner.whole(out, &entry.prepared),
                decision => manner.held(out, file, &entry.prepared, &decision),
            };
        }
        PathLookup::Open(file, opened) => {
            let decision = decide(request, &file, context.now.unix_s);
            let stream = manner.opened(out, &file, &decision);
            context.opened = stream.is_some().then_some(opened);
            return stream;
        }
        PathLookup::Directory(with_slash) => {
            let mut location = Vec::with_capacity(with_slash.len() + query.len());
            path::encode(&with_slash, &mut location);
            location.extend_from_slice(query);
            manner.message(out, HttpStatus::MovedPermanently, &[("Location", &location)]);
        }
        PathLookup::Missing => manner.message(out, HttpStatus::NotFound, &[]),
        PathLookup::Forbidden => manner.message(out, HttpStatus::Forbidden, &[]),
        PathLookup::Malformed => manner.message(out, HttpStatus::BadRequest, &[]),
        PathLookup::Exhausted => {
            manner.message(out, HttpStatus::ServiceUnavailable, &[("Retry-After", b"1")]);
        }
        PathLookup::Failed => manner.message(out, HttpStatus::InternalServerError, &[]),
    }
    None
}

/// Answers what is no request, or one that is refused whole; the connection closes.
pub(crate) fn refuse<S: DocumentRoot>(status: HttpStatus, context: &mut InputContext<'_, S>) {
    let date = &context.now.date;
    let manner = Manner { date, persistence: Persistence::Close, head_only: false };
    manner.message(context.out, status, &[]);
}

fn decide(request: &HttpRequest<'_, '_>, file: &Representation, now_s: i64) -> ResponseDecision {
    match request.preconditions.evaluate(file, now_s) {
        PreconditionVerdict::Proceed => {}
        PreconditionVerdict::NotModified => return ResponseDecision::NotModified,
        PreconditionVerdict::Failed => return ResponseDecision::PreconditionFailed,
    }
    // §14.2: GET is the only method that ranges are defined for.
    if !request.ranged || request.method != Method::Get {
        return ResponseDecision::Whole;
    }
    match request.preconditions.range(file, now_s) {
        None => ResponseDecision::Whole,
        Some(value) => match range::select(value, file.len()) {
            Selection::Whole => ResponseDecision::Whole,
            Selection::Parts(ranges) => ResponseDecision::Parts(ranges),
            Selection::Unsatisfiable => ResponseDecision::Unsatisfiable,
        },
    }
}

/// The parts of a body in memory: at once if one write takes them, else as a stream.
fn send_held(
    out: &mut HttpOutbox,
    parts: Vec<BodyPart>,
    prepared: &PreparedFile,
) -> Option<BodyStream> {
    let len_of = |part: &BodyPart| match part {
        BodyPart::Bytes(bytes) => bytes.len() as u64,
        BodyPart::File(range) => range.end - range.start,
    };
    if parts.iter().map(len_of).sum::<u64>() > WRITE_BYTES_MAX as u64 {
        return Some(BodyStream::of_memory(parts, prepared));
    }
    for part in parts {
        match part {
            BodyPart::Bytes(bytes) => out.bytes.extend_from_slice(&bytes),
            BodyPart::File(range) => {
                let start = prepared.body_at + range.start as usize;
                let range = start..start + (range.end - range.start) as usize;
                if range.len() <= INLINE_BODY_BYTES_MAX {
                    out.bytes.extend_from_slice(&prepared.memory[range]);
                } else {
                    out.share(&prepared.memory, range);
                }
            }
        }
    }
    None
}

impl Manner<'_> {
    /// 200 with a file in memory.
    fn whole(self, out: &mut HttpOutbox, prepared: &PreparedFile) -> Option<BodyStream> {
        let body_len = if self.head_only { 0 } else { prepared.body_len() };
        let inline_len = if body_len <= INLINE_BODY_BYTES_MAX { body_len } else { 0 };
        prepared.push(&mut out.bytes, inline_len, self.date, self.persistence);
        if inline_len == body_len {
            return None;
        }
        send_held(out, vec![BodyPart::File(0..body_len as u64)], prepared)
    }

    /// Anything but 200 with a file in memory.
    fn held(
        self,
        out: &mut HttpOutbox,
        file: &Representation,
        prepared: &PreparedFile,
        decision: &ResponseDecision,
    ) -> Option<BodyStream> {
        let parts = self.partial(out, file, decision);
        send_held(out, parts, prepared)
    }

    /// Any answer from an open file.
    fn opened(
        self,
        out: &mut HttpOutbox,
        file: &Representation,
        decision: &ResponseDecision,
    ) -> Option<BodyStream> {
        let parts = match decision {
            ResponseDecision::Whole => {
                let mut head = ResponseHead::new(&mut out.bytes, HttpStatus::Ok, self.date);
                head.describe(file);
                head.end(self.persistence);
                match file.len() {
                    0 => Vec::new(),
                    len => vec![BodyPart::File(0..len)],
                }
            }
            decision => self.partial(out, file, decision),
        };
        (!parts.is_empty() && !self.head_only).then(|| BodyStream::of_file(parts))
    }

    /// The head of an answer that is not the whole file, and the parts of its body.
    fn partial(
        self,
        out: &mut HttpOutbox,
        file: &Representation,
        decision: &ResponseDecision,
    ) -> Vec<BodyPart> {
        match decision {
            ResponseDecision::Whole => {}
            ResponseDecision::NotModified => {
                let mut head =
                    ResponseHead::new(&mut out.bytes, HttpStatus::NotModified, self.date);
                head.identify(file);
                head.end(self.persistence);
            }
            ResponseDecision::PreconditionFailed => {
                self.message(out, HttpStatus::PreconditionFailed, &[]);
            }
            ResponseDecision::Unsatisfiable => {
                let range = format!("bytes */{}", file.len());
                let fields = [("Content-Range", range.as_bytes())];
                self.message(out, HttpStatus::RangeNotSatisfiable, &fields);
            }
            ResponseDecision::Parts(ranges) => return self.parts(out, file, ranges),
        }
        Vec::new()
    }

    /// The head of a 206 and the parts of its body.
    fn parts(self, out: &mut HttpOutbox, file: &Representation, ranges: &Ranges) -> Vec<BodyPart> {
        let boundary = if ranges.count() > 1 { out.next_boundary() } else { 0 };
        let mut head = ResponseHead::new(&mut out.bytes, HttpStatus::PartialContent, self.date);
        let parts = if ranges.count() > 1 {
            let multipart = Multipart::new(boundary, ranges, file);
            head.field("Content-Type", multipart.media_type().as_bytes());
            head.content_length(multipart.len);
            let mut parts = Vec::with_capacity(2 * ranges.count() + 1);
            for (text, range) in multipart.part_heads.into_iter().zip(ranges.iter()) {
                parts.extend([BodyPart::Bytes(text), BodyPart::File(range)]);
            }
            parts.push(BodyPart::Bytes(multipart.end));
            parts
        } else {
            let mut parts = Vec::with_capacity(1);
            for range in ranges.iter() {
                head.field("Content-Type", file.media_type.as_bytes());
                head.content_length(range.end - range.start);
                head.field("Content-Range", response::content_range(&range, file.len()).as_bytes());
                parts.push(BodyPart::File(range));
            }
            parts
        };
        head.validators(file);
        head.end(self.persistence);
        parts
    }

    /// A response with its status as body.
    fn message(self, out: &mut HttpOutbox, status: HttpStatus, fields: &[(&str, &[u8])]) {
        out.count(status);
        let text = response::message(status);
        let mut head = ResponseHead::new(&mut out.bytes, status, self.date);
        for (name, value) in fields {
            head.field(name, value);
        }
        head.field("Content-Type", b"text/plain; charset=utf-8");
        head.content_length(text.len() as u64);
        head.end(self.persistence);
        if !self.head_only {
            out.bytes.extend_from_slice(text.as_bytes());
        }
    }
}
