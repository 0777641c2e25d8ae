//! One request, one answer: which, and its bytes into the outbox.
//!
//! Read first: RFC 9110 §9.3 (methods), §13.2.2 (preconditions come before ranges), §15.
//!
//! Pure: a request and what its path names in, bytes out.
//!
//! Invariants
//! - Exactly one final response per call.
//! - A whole cached file is answered without allocating: one lookup, one copy, one patch.

use super::conditional::Verdict;
use super::connection::Turn;
use super::limits::{INLINE_BODY_BYTES_MAX, WRITE_BYTES_MAX};
use super::outbox::Outbox;
use super::path;
use super::range::{self, Ranges, Selection};
use super::representation::Representation;
use super::request::{Method, Persistence, Request, Target};
use super::response::{self, ALLOWED, Head, Multipart, Prepared, Status};
use super::site::{Found, Site};
use super::stream::{Part, Stream};

/// What part of a file answers a request.
#[derive(Debug)]
enum Decision {
    Whole,
    NotModified,
    PreconditionFailed,
    Parts(Ranges),
    Unsatisfiable,
}

/// What every response of one exchange needs.
#[derive(Copy, Clone, Debug)]
struct Manner<'n> {
    date: &'n [u8; super::date::DATE_BYTES],
    persistence: Persistence,
    /// The request was a HEAD: no body.
    head_only: bool,
}

/// Answers `request`. What is left of a long body is returned; if it is not in memory, its file is
/// in `turn.opened`.
pub(crate) fn answer<S: Site>(
    request: &Request<'_, '_>,
    persistence: Persistence,
    turn: &mut Turn<'_, S>,
) -> Option<Stream> {
    turn.tally.requests += 1;
    let head_only = request.method == Method::Head;
    let manner = Manner { date: &turn.now.date, persistence, head_only };
    let out = &mut *turn.out;
    let (path, query) = match (request.method, request.target) {
        (Method::Get | Method::Head, Target::Path { path, query }) => (path, query),
        (Method::Get | Method::Head, Target::Server) => {
            manner.message(out, Status::BadRequest, &[]);
            return None;
        }
        (Method::Options, _) => {
            let mut head = Head::new(&mut out.bytes, Status::NoContent, manner.date);
            head.field("Allow", ALLOWED.as_bytes());
            head.end(persistence);
            return None;
        }
        (Method::NotAllowed, _) => {
            manner.message(out, Status::MethodNotAllowed, &[("Allow", ALLOWED.as_bytes())]);
            return None;
        }
        (Method::Unknown, _) => {
            manner.message(out, Status::NotImplemented, &[]);
            return None;
        }
    };
    match turn.site.find(path, turn.now) {
        Found::Held(entry) => {
            let file = &entry.representation;
            return match decide(request, file, turn.now.unix_s) {
                Decision::Whole => manner.whole(out, &entry.prepared),
                decision => manner.held(out, file, &entry.prepared, &decision),
            };
        }
        Found::Open(file, opened) => {
            let decision = decide(request, &file, turn.now.unix_s);
            let stream = manner.opened(out, &file, &decision);
            turn.opened = stream.is_some().then_some(opened);
            return stream;
        }
        Found::Directory(with_slash) => {
            let mut location = Vec::with_capacity(with_slash.len() + query.len());
            path::encode(&with_slash, &mut location);
            location.extend_from_slice(query);
            manner.message(out, Status::MovedPermanently, &[("Location", &location)]);
        }
        Found::Missing => manner.message(out, Status::NotFound, &[]),
        Found::Forbidden => manner.message(out, Status::Forbidden, &[]),
        Found::Malformed => manner.message(out, Status::BadRequest, &[]),
        Found::Exhausted => {
            manner.message(out, Status::ServiceUnavailable, &[("Retry-After", b"1")]);
        }
        Found::Failed => manner.message(out, Status::InternalServerError, &[]),
    }
    None
}

/// Answers what is no request, or one that is refused whole; the connection closes.
pub(crate) fn refuse<S: Site>(status: Status, turn: &mut Turn<'_, S>) {
    let date = &turn.now.date;
    let manner = Manner { date, persistence: Persistence::Close, head_only: false };
    manner.message(turn.out, status, &[]);
}

fn decide(request: &Request<'_, '_>, file: &Representation, now_s: i64) -> Decision {
    match request.preconditions.evaluate(file, now_s) {
        Verdict::Proceed => {}
        Verdict::NotModified => return Decision::NotModified,
        Verdict::Failed => return Decision::PreconditionFailed,
    }
    // §14.2: GET is the only method that ranges are defined for.
    if !request.ranged || request.method != Method::Get {
        return Decision::Whole;
    }
    match request.preconditions.range(file, now_s) {
        None => Decision::Whole,
        Some(value) => match range::select(value, file.len()) {
            Selection::Whole => Decision::Whole,
            Selection::Parts(ranges) => Decision::Parts(ranges),
            Selection::Unsatisfiable => Decision::Unsatisfiable,
        },
    }
}

/// The parts of a body in memory: at once if one write takes them, else as a stream.
fn send_held(out: &mut Outbox, parts: Vec<Part>, prepared: &Prepared) -> Option<Stream> {
    let len_of = |part: &Part| match part {
        Part::Bytes(bytes) => bytes.len() as u64,
        Part::File(range) => range.end - range.start,
    };
    if parts.iter().map(len_of).sum::<u64>() > WRITE_BYTES_MAX as u64 {
        return Some(Stream::of_memory(parts, prepared));
    }
    for part in parts {
        match part {
            Part::Bytes(bytes) => out.bytes.extend_from_slice(&bytes),
            Part::File(range) => {
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
    fn whole(self, out: &mut Outbox, prepared: &Prepared) -> Option<Stream> {
        let body_len = if self.head_only { 0 } else { prepared.body_len() };
        let inline_len = if body_len <= INLINE_BODY_BYTES_MAX { body_len } else { 0 };
        prepared.push(&mut out.bytes, inline_len, self.date, self.persistence);
        if inline_len == body_len {
            return None;
        }
        send_held(out, vec![Part::File(0..body_len as u64)], prepared)
    }

    /// Anything but 200 with a file in memory.
    fn held(
        self,
        out: &mut Outbox,
        file: &Representation,
        prepared: &Prepared,
        decision: &Decision,
    ) -> Option<Stream> {
        let parts = self.partial(out, file, decision);
        send_held(out, parts, prepared)
    }

    /// Any answer from an open file.
    fn opened(
        self,
        out: &mut Outbox,
        file: &Representation,
        decision: &Decision,
    ) -> Option<Stream> {
        let parts = match decision {
            Decision::Whole => {
                let mut head = Head::new(&mut out.bytes, Status::Ok, self.date);
                head.describe(file);
                head.end(self.persistence);
                match file.len() {
                    0 => Vec::new(),
                    len => vec![Part::File(0..len)],
                }
            }
            decision => self.partial(out, file, decision),
        };
        (!parts.is_empty() && !self.head_only).then(|| Stream::of_file(parts))
    }

    /// The head of an answer that is not the whole file, and the parts of its body.
    fn partial(self, out: &mut Outbox, file: &Representation, decision: &Decision) -> Vec<Part> {
        match decision {
            Decision::Whole => {}
            Decision::NotModified => {
                let mut head = Head::new(&mut out.bytes, Status::NotModified, self.date);
                head.identify(file);
                head.end(self.persistence);
            }
            Decision::PreconditionFailed => {
                self.message(out, Status::PreconditionFailed, &[]);
            }
            Decision::Unsatisfiable => {
                let range = format!("bytes */{}", file.len());
                let fields = [("Content-Range", range.as_bytes())];
                self.message(out, Status::RangeNotSatisfiable, &fields);
            }
            Decision::Parts(ranges) => return self.parts(out, file, ranges),
        }
        Vec::new()
    }

    /// The head of a 206 and the parts of its body.
    fn parts(self, out: &mut Outbox, file: &Representation, ranges: &Ranges) -> Vec<Part> {
        let boundary = if ranges.count() > 1 { out.next_boundary() } else { 0 };
        let mut head = Head::new(&mut out.bytes, Status::PartialContent, self.date);
        let parts = if ranges.count() > 1 {
            let multipart = Multipart::new(boundary, ranges, file);
            head.field("Content-Type", multipart.media_type().as_bytes());
            head.content_length(multipart.len);
            let mut parts = Vec::with_capacity(2 * ranges.count() + 1);
            for (text, range) in multipart.part_heads.into_iter().zip(ranges.iter()) {
                parts.extend([Part::Bytes(text), Part::File(range)]);
            }
            parts.push(Part::Bytes(multipart.end));
            parts
        } else {
            let mut parts = Vec::with_capacity(1);
            for range in ranges.iter() {
                head.field("Content-Type", file.media_type.as_bytes());
                head.content_length(range.end - range.start);
                head.field("Content-Range", response::content_range(&range, file.len()).as_bytes());
                parts.push(Part::File(range));
            }
            parts
        };
        head.validators(file);
        head.end(self.persistence);
        parts
    }

    /// An answer whose body is its status.
    fn message(self, out: &mut Outbox, status: Status, fields: &[(&str, &[u8])]) {
        out.count(status);
        let text = response::message(status);
        let mut head = Head::new(&mut out.bytes, status, self.date);
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
